"""Make small slips of the kind a person makes, one at a time, and see whether the tests notice.

A slip that survives names a test that is missing. Each is made in a copy of the project's tracked
files, where the test files that concern it run until one of them fails; nothing here is changed.

    .venv/bin/python scripts/try_slips.py                      # all of them: half an hour
    .venv/bin/python scripts/try_slips.py --only gibbs         # whose file or slip has that text
    .venv/bin/python scripts/try_slips.py --list
    .venv/bin/python scripts/try_slips.py --only cli -- -m "not slow"   # options of pytest

The exit code is 1 if a slip survived, could not be tried (the test that fails does so without it
too), or has become out of date: its old text must stand exactly once in its file.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
# A slip may well make a loop endless.
_LONGEST = 900.0


class Slip(NamedTuple):
    """A small mistake.

    Attributes:
        file: Where, from the project's root.
        what: What goes wrong.
        old: The text as it is, exactly once in the file.
        new: What it becomes.
        tests: Names of the files in `tests/` that should notice, the likeliest first.
    """

    file: str
    what: str
    old: str
    new: str
    tests: tuple[str, ...]


SLIPS = (
    # ------------------------------------------------------ demonstrations
    Slip(
        "btil/demonstrations/data.py",
        "the last part's sizes count when parts are joined",
        "            sizes[column] = max(sizes[column], size)\n",
        "            sizes[column] = size\n",
        ("test_demonstrations.py",),
    ),
    Slip(
        "btil/demonstrations/data.py",
        "names make no difference between demonstrations",
        "            and self._names == other._names\n",
        "",
        ("test_demonstrations.py",),
    ),
    Slip(
        "btil/demonstrations/stream.py",
        "the first latent's labels are not counted in a file",
        "labelled += (part.latents >= 0).sum(axis=0)",
        "labelled += (part.latents > 0).sum(axis=0)",
        ("test_demonstration_files.py",),
    ),
    # ------------------------------------------------------ models
    Slip(
        "btil/models/cpt.py",
        "uniform rows divided by the number of latents",
        "1.0 / contexts.num_values)",
        "1.0 / contexts.num_latents)",
        ("test_cpt.py",),
    ),
    Slip(
        "btil/models/team.py",
        "agents that share a table may differ in actions",
        "(one.num_latents, one.num_values, len(one.names))",
        "(one.num_latents, one.num_latents, len(one.names))",
        ("test_cpt.py",),
    ),
    Slip(
        "btil/models/simulate.py",
        "the next state of a simulated transition is the present one",
        "columns = _parents_at(contexts, demos, acted, before, now)",
        "columns = _parents_at(contexts, demos, acted, before, before)",
        ("test_simulate.py",),
    ),
    Slip(
        "btil/models/crowding.py",
        "a third of the steps is crowded already",
        "if len(table.contexts.rows) <= largest:",
        "if len(table.contexts.rows) < largest:",
        ("test_cases_data.py",),
    ),
    Slip(
        "btil/models/draws.py",
        "all parameters are drawn with one key",
        "        key, own = jax.random.split(key)\n        drawn[site]",
        "        own = key\n        drawn[site]",
        ("test_families.py", "test_calibration.py"),
    ),
    # ------------------------------------------------------ inference
    Slip(
        "btil/messages/smoother.py",
        "Viterbi's values are not rescaled",
        "value = value - jnp.where(jnp.isfinite(peak), peak, 0.0)[None]",
        "value = value + 0 * peak[None]",
        ("test_messages.py",),
    ),
    Slip(
        "btil/inference/mfvi.py",
        "restarts begin at the given start too",
        "run.known if start is None else labelled_counts(bound, run.num_rows)",
        "run.known",
        ("test_mfvi.py",),
    ),
    Slip(
        "btil/inference/gibbs.py",
        "chains begin alike",
        "np.random.default_rng([seed, chain])",
        "np.random.default_rng([seed])",
        ("test_gibbs.py",),
    ),
    Slip(
        "btil/inference/nuts.py",
        "the verdict forgets divergences",
        "judge_chains(rows | parameters, num_divergences, found.log_likelihood)",
        "judge_chains(rows | parameters, None, found.log_likelihood)",
        ("test_nuts.py",),
    ),
    Slip(
        "btil/inference/nuts.py",
        "trees of the largest depth are not counted",
        '(statistics["num_steps"] >= 2**max_tree_depth - 1)',
        '(statistics["num_steps"] > 2**max_tree_depth - 1)',
        ("test_nuts.py",),
    ),
    Slip(
        "btil/posterior/posterior.py",
        "draws do not depend on the seed",
        "chance = Chance(np.random.default_rng([seed, 0]))",
        "chance = Chance(np.random.default_rng([0, 0]))",
        ("test_posterior.py",),
    ),
    Slip(
        "btil/posterior/posterior.py",
        "draws of unvisited rows do not depend on the seed",
        "generator = np.random.default_rng([seed, 1])",
        "generator = np.random.default_rng([0, 1])",
        ("test_posterior.py",),
    ),
    Slip(
        "btil/inference/result.py",
        "sites of a chain are picked independently of each other",
        "if group not in self._picked:",
        "if True:",
        ("test_posterior.py",),
    ),
    Slip(
        "btil/posterior/posterior.py",
        "the tracker's draws do not depend on the seed",
        "return Tracker(self, estimate, num_draws, seed)",
        "return Tracker(self, estimate, num_draws)",
        ("test_tracker.py",),
    ),
    Slip(
        "btil/inference/svi.py",
        "the noise of the bound does not depend on the seed",
        "generator = np.random.default_rng([seed, 1])",
        "generator = np.random.default_rng([0, 1])",
        ("test_svi.py",),
    ),
    Slip(
        "btil/posterior/tracker.py",
        "the tracker's unvisited rows do not depend on the seed",
        "np.random.default_rng([seed, 2, *context])",
        "np.random.default_rng([2, *context])",
        ("test_tracker.py",),
    ),
    Slip(
        "btil/posterior/tracker.py",
        "one draw of the parameters serves all draws",
        "different = drawn if tables[site].parametric else drawn[:1]",
        "different = drawn[:1]",
        ("test_tracker.py",),
    ),
    Slip(
        "btil/posterior/tracker.py",
        "the initial table's variables are not required",
        "for reader in readers)",
        "for reader in readers[:2])",
        ("test_tracker.py",),
    ),
    Slip(
        "btil/inference/chains.py",
        "chains that disagree about the log likelihood have converged",
        "agree = num_above == 0 and not any(total.above.any() for total in totals)",
        "agree = num_above == 0",
        ("test_chains.py",),
    ),
    Slip(
        "btil/inference/gibbs.py",
        "draws of the least read rows are kept",
        'np.argsort(-context_visits(bound, name), kind="stable")',
        'np.argsort(context_visits(bound, name), kind="stable")',
        ("test_keep_rows.py",),
    ),
    Slip(
        "btil/inference/moments.py",
        "blocks of draws are merged without their sizes",
        "(count * added / total)",
        "(added / total)",
        ("test_keep_rows.py",),
    ),
    Slip(
        "btil/inference/stochastic.py",
        "steps by batches begin with the second one's size",
        "(state.iteration + problem.delay) **",
        "(state.iteration + 1 + problem.delay) **",
        ("test_stochastic.py",),
    ),
    Slip(
        "btil/inference/stochastic.py",
        "an epoch that leaves episodes out counts as a whole one",
        "state.log_evidence / share - divergence",
        "state.log_evidence - divergence",
        ("test_stochastic.py",),
    ),
    Slip(
        "btil/posterior/datatree.py",
        "draws of a tree do not depend on the seed",
        "posterior.sample(num_draws, seed).items()",
        "posterior.sample(num_draws).items()",
        ("test_datatree.py",),
    ),
    # ------------------------------------------------------ domains
    Slip(
        "btil/domains/recording.py",
        "the environment is always reset with the same seed",
        "env.reset(seed=int(rng.integers(2**31)))",
        "env.reset(seed=int(rng.integers(2**31)) * 0)",
        ("test_record.py",),
    ),
    Slip(
        "btil/domains/recording.py",
        "latents move by what the first agent observed",
        "before.observations[position])",
        "before.observations[0])",
        ("test_record.py",),
    ),
    Slip(
        "btil/domains/gridworld/parallel_env.py",
        "an episode is cut a step too late",
        "self._num_steps >= self.max_steps",
        "self._num_steps > self.max_steps",
        ("test_parallel_env.py",),
    ),
    Slip(
        "btil/domains/overcooked.py",
        "soup is ready a step too late",
        "np.where(timer >= _COOKING_TIME",
        "np.where(timer > _COOKING_TIME",
        ("test_overcooked.py",),
    ),
    Slip(
        "btil/domains/overcooked.py",
        "the last action goes over from one trial to the next",
        '    last_action[1:][trial[1:] != trial[:-1]] = _LAST_ACTIONS.index("none")\n',
        "",
        ("test_overcooked.py",),
    ),
    # ------------------------------------------------------ analysis
    Slip(
        "btil/analysis/calibration/ranks.py",
        "the sd of few draws is not widened",
        "np.sqrt((1 + 1 / number) * variance)",
        "np.sqrt(variance)",
        ("test_calibration.py",),
    ),
    Slip(
        "btil/analysis/compare.py",
        "a bound of other data is set against the evidence",
        "posterior.elbo is None or posterior.demos != reference.demos:",
        "posterior.elbo is None:",
        ("test_compare.py",),
    ),
    Slip(
        "btil/analysis/selection.py",
        "a model is fitted anew without its options",
        "        **posterior.options,\n",
        "",
        ("test_selection.py",),
    ),
    Slip(
        "btil/analysis/debriefing/findings.py",
        "of a repeated episode the last one's labels count",
        "learned[one] = learned.get(one, False) | labelled",
        "learned[one] = labelled",
        ("test_debrief.py",),
    ),
    Slip(
        "btil/analysis/debriefing/findings.py",
        "a new episode is a change of mind",
        "    switched[starts] = False\n",
        "",
        ("test_debrief.py",),
    ),
    Slip(
        "btil/analysis/debriefing/findings.py",
        "changes are shares of all steps in a mind",
        "float(switch.sum() / left.sum())",
        "float(switch.sum() / holding.sum())",
        ("test_debrief.py",),
    ),
    Slip(
        "btil/analysis/debriefing/findings.py",
        "agents that share a table do not share its experience",
        "for one in table.agents], axis=0)",
        "for one in [agent]], axis=0)",
        ("test_debrief.py",),
    ),
    Slip(
        "btil/analysis/debriefing/findings.py",
        "ten steps are not yet well known",
        "np.where(behind >= WELL_KNOWN, 0,",
        "np.where(behind > WELL_KNOWN, 0,",
        ("test_debrief.py",),
    ),
    Slip(
        "btil/analysis/teamwork.py",
        "a stretch's last step does not count in its probability",
        "probability[start + first : start + last + 1].mean()",
        "probability[start + first : start + max(last, first + 1)].mean()",
        ("test_teamwork.py", "test_debrief.py"),
    ),
    Slip(
        "btil/analysis/predictive.py",
        "latents of all draws come from the same random numbers",
        "key = jax.random.fold_in(jax.random.key(seed), draw)",
        "key = jax.random.key(seed)",
        ("test_predictive.py",),
    ),
    Slip(
        "btil/analysis/predictive.py",
        "replicates equal to what was seen count as below",
        "0.5 * (self.replicated == self.observed)",
        "1.0 * (self.replicated == self.observed)",
        ("test_predictive.py",),
    ),
    Slip(
        "btil/analysis/latent_draws.py",
        "agents' latents come from the same random numbers",
        "(jax.random.fold_in(key, position) for",
        "(key for",
        ("test_predictive.py", "test_compare.py"),
    ),
    Slip(
        "btil/analysis/monte_carlo.py",
        "fewer draws than were asked for",
        "-(-num_draws // num_chains)",
        "num_draws // num_chains",
        ("test_monte_carlo.py",),
    ),
    Slip(
        "btil/analysis/known_truth.py",
        "rows that are read once are not in use",
        "used = visits[site] >= 1",
        "used = visits[site] > 1",
        ("test_known_truth.py",),
    ),
    Slip(
        "btil/analysis/modes.py",
        "the least probable mode comes first",
        "key=lambda mode: -mode.log_likelihood",
        "key=lambda mode: mode.log_likelihood",
        ("test_modes.py",),
    ),
    Slip(
        "btil/analysis/reference.py",
        "a reference may have seen fewer steps",
        "        and posterior.demos.num_steps == most\n",
        "",
        ("test_reference.py", "test_compare.py"),
    ),
    Slip(
        "btil/analysis/efficiency.py",
        "a reference comes near its first half",
        "draws[:, half:].mean",
        "draws[:, :half].mean",
        ("test_efficiency.py",),
    ),
    Slip(
        "btil/analysis/evidence.py",
        "modes of other names do not count",
        "return math.log(len(renamings)) + weighted",
        "return weighted",
        ("test_evidence.py",),
    ),
    # ------------------------------------------------------ imitation
    Slip(
        "btil/imitation/ppo.py",
        "values after a cut episode are 0",
        "np.where(final, 0.0, next_values)",
        "np.where(ended, 0.0, next_values)",
        ("test_imitation.py",),
    ),
    Slip(
        "btil/imitation/magail.py",
        "an episode is cut a step too late",
        "(scene.steps + 1 == settings.max_steps)",
        "(scene.steps == settings.max_steps)",
        ("test_imitation.py",),
    ),
    Slip(
        "btil/imitation/magail.py",
        "policies are rewarded for being sure",
        "(gain + settings.entropy_weight * spread)",
        "(gain - settings.entropy_weight * spread)",
        ("test_imitation.py",),
    ),
    Slip(
        "btil/imitation/magail.py",
        "players are rewarded for being found out",
        "rewards = jax.nn.softplus(outputs(discriminator, own))",
        "rewards = jax.nn.softplus(-outputs(discriminator, own))",
        ("test_imitation.py",),
    ),
    Slip(
        "btil/imitation/magail.py",
        "learning does not depend on the seed",
        "generator = np.random.default_rng(seed)",
        "generator = np.random.default_rng(0)",
        ("test_imitation.py",),
    ),
    # ------------------------------------------------------ study
    Slip(
        "btil/study/episode.py",
        "a clock set back gives negative seconds",
        "seconds=max(now - episode.last, 0.0),",
        "seconds=now - episode.last,",
        ("test_study.py",),
    ),
    Slip(
        "btil/study/export.py",
        "time in the selector is the other one's",
        "answer.seat == seat) for seat in SEATS",
        "answer.seat != seat) for seat in SEATS",
        ("test_study_people.py",),
    ),
    Slip(
        "btil/study/export.py",
        "sessions counted from 0",
        "for stage in stages[: position + 1])",
        "for stage in stages[:position])",
        ("test_study.py",),
    ),
    Slip(
        "btil/study/export.py",
        "a tab or a carriage return may begin a formula",
        '("=", "+", "-", "@", "\\t", "\\r")',
        '("=", "+", "-", "@")',
        ("test_study.py",),
    ),
    Slip(
        "btil/study/sessions.py",
        "the most steps are the best",
        "min(best.get(domain, episode.step), episode.step)",
        "max(best.get(domain, episode.step), episode.step)",
        ("test_study.py",),
    ),
    Slip(
        "btil/study/live.py",
        "all games have the same chance",
        "key = [self._store.seed, person.game, person.journey.position, moment]",
        "key = [self._store.seed, person.journey.position, moment]",
        ("test_study_server.py",),
    ),
    Slip(
        "btil/study/live.py",
        "one participant too many",
        "self._people.values())) >= settings.most_participants",
        "self._people.values())) > settings.most_participants",
        ("test_study_server.py",),
    ),
    Slip(
        "btil/study/replay.py",
        "steps without labels are at cross purposes",
        "np.maximum(labels, 0)) & known",
        "np.maximum(labels, 0))",
        ("test_study_replay.py",),
    ),
    Slip(
        "btil/study/live.py",
        "a place that was left stays taken",
        "if person.journey.outcome in UNPAID:\n            return False",
        "if False:\n            return False",
        ("test_study_people.py",),
    ),
    Slip(
        "btil/study/live.py",
        "shares of conditions do not count",
        "of_arm[arm.arm] / arm.share",
        "of_arm[arm.arm] / 1",
        ("test_study_people.py",),
    ),
    Slip(
        "btil/study/episode.py",
        "a break counts for the selector",
        "opened=_pair(at + seconds for at in episode.opened)",
        "opened=episode.opened",
        ("test_study_people.py",),
    ),
    Slip(
        "btil/study/store.py",
        "a partner's sessions stay when somebody is erased",
        "for game in games:",
        "for game in list(games)[:0]:",
        ("test_study_people.py",),
    ),
    Slip(
        "btil/study/settings.py",
        "answers are kept in the language they were given in",
        "answer = same.options[question.options.index(answer)]",
        "answer = question.options[question.options.index(answer)]",
        ("test_study_people.py",),
    ),
    # ------------------------------------------------------ shell
    Slip(
        "btil/cli/learning.py",
        "btil fit drops the seed",
        "        method,\n        seed=seed,\n        progress=not quiet,\n        checkpoint",
        "        method,\n        progress=not quiet,\n        checkpoint",
        ("test_cli.py",),
    ),
    Slip(
        "btil/cli/comparing.py",
        "btil compare drops the accuracy",
        "        accuracy=accuracy,\n",
        "",
        ("test_cli.py", "test_compare.py"),
    ),
    Slip(
        "btil/cli/comparing.py",
        "btil calibrate drops the seed",
        "            share_labelled=share_labelled,\n            seed=seed,\n",
        "            share_labelled=share_labelled,\n",
        ("test_calibration.py",),
    ),
    Slip(
        "btil/cli/learning.py",
        "btil decode smooths without the labels",
        "fitted.smooth(demos, use_labels) if smooth else None",
        "fitted.smooth(demos) if smooth else None",
        ("test_cli.py",),
    ),
    Slip(
        "btil/cli/comparing.py",
        "btil compare reads held-out data by their own names",
        "read(test, reading, like=demos)",
        "read(test, reading)",
        ("test_cli.py",),
    ),
)


class Copy:
    """The project's tracked files in a folder of their own, where tests run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in _tracked():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
        self.environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONUNBUFFERED": "1"}
        found = self._python("-c", "import btil; print(btil.__file__)").stdout.strip()
        if Path(found) != folder / "btil" / "__init__.py":
            raise SystemExit(f"the tests would run on {found}, not on the copy in {folder}")

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_LONGEST,
        )

    def write(self, name: str, text: str) -> None:
        """Change a file; no bytecode of an older text of it is left."""
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
            compiled.unlink()

    def run(self, tests: Sequence[str], more: Sequence[str] = ()) -> tuple[str, str]:
        """Run tests until one fails: "passed", "failed" or "broken", and what was said."""
        flags = ("-x", "-q", "-p", "no:cacheprovider")
        try:
            done = self._python("-m", "pytest", *flags, *tests, *more)
        except subprocess.TimeoutExpired:
            return "failed", f"no end after {_LONGEST:.0f} seconds"
        lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        told = lines[0] if lines else (done.stdout + done.stderr).strip().split("\n")[-1]
        # 0: all passed, 1: some failed, 2: stopped, as by a file that cannot be imported.
        return {0: "passed", 1: "failed", 2: "failed"}.get(done.returncode, "broken"), told


def _tracked() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def out_of_date(slip: Slip) -> str | None:
    """Why a slip cannot be made any more; None if it can."""
    missing = [name for name in slip.tests if not (ROOT / "tests" / name).is_file()]
    if missing:
        return f"there is no tests/{missing[0]}"
    if not (ROOT / slip.file).is_file():
        return "there is no such file"
    number = (ROOT / slip.file).read_text(encoding="utf-8").count(slip.old)
    return None if number == 1 else f"its old text is there {number} times"


def tried(copy: Copy, slips: Sequence[Slip], more: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Make each slip, run its tests and undo it: "caught", "SURVIVED" or "BROKEN", and why.

    A test that notices must pass without the slip.
    """
    sound: dict[str, bool] = {}
    for slip in slips:
        text = (ROOT / slip.file).read_text(encoding="utf-8")
        copy.write(slip.file, text.replace(slip.old, slip.new))
        ended, told = copy.run([f"tests/{name}" for name in slip.tests], more)
        copy.write(slip.file, text)
        if ended == "passed":
            yield "SURVIVED", told
        elif ended == "broken":
            yield "BROKEN", told
        else:
            # "FAILED tests/test_x.py::test_y[a] - what was wrong"
            kind, _, rest = told.partition(" ")
            test = rest.split(" - ")[0]
            if kind in ("FAILED", "ERROR") and test not in sound:
                sound[test] = copy.run([test])[0] == "passed"
            if sound.get(test, True):
                yield "caught", told
            else:
                yield "BROKEN", f"fails without the slip too: {test}"


def main() -> int:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description="Do the tests notice small slips?")
    parser.add_argument("--only", metavar="TEXT", help="slips with this text in file or name")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    parser.add_argument("pytest", nargs="*", help="after --: more arguments of pytest")
    given = parser.parse_args()
    wanted = (given.only or "").lower()
    slips = [slip for slip in SLIPS if wanted in f"{slip.file}: {slip.what}".lower()]
    if not slips:
        raise SystemExit(f"no slip has the text {given.only!r}; --list shows all")
    old = [(slip, why) for slip in slips if (why := out_of_date(slip)) is not None]
    for slip, why in old:
        print(f"OUT OF DATE {slip.file}: {slip.what}: {why}")
    current = [slip for slip in slips if out_of_date(slip) is None]
    if given.list:
        for slip in current:
            print(f"{slip.file}: {slip.what} ({', '.join(slip.tests)})")
        return int(bool(old))
    counted = dict.fromkeys(("caught", "SURVIVED", "BROKEN"), 0)
    with tempfile.TemporaryDirectory(prefix="btil-slips-") as folder:
        copy = Copy(Path(folder).resolve())
        begun = time.perf_counter()
        for slip, (word, told) in zip(current, tried(copy, current, given.pytest), strict=True):
            counted[word] += 1
            seconds, begun = time.perf_counter() - begun, time.perf_counter()
            print(
                f"{word:8} {slip.file}: {slip.what} ({seconds:.0f} s)\n         {told}", flush=True
            )
    print(", ".join(f"{number} {word}" for word, number in counted.items()), end="")
    print(f", {len(old)} out of date" if old else "")
    return int(counted["caught"] < len(slips))


if __name__ == "__main__":
    sys.exit(main())
