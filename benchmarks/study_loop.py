"""The whole loop of a study, with simulated participants in a real browser.

`python benchmarks/study_loop.py --out loop` serves a study of Movers and Cleanup on a small map;
simulated participants open it in Chromium, one after the other, agree, answer the survey, do the
tutorial by pressing keys, play all sessions and say where they are heading. Then, as a researcher
would from a shell, with `btil` alone:

- `btil collect export`: demonstrations with labels;
- `btil fit` on two thirds of the participants, of whom only every other session keeps its labels,
  with one table for both members (the recommended model) and with tables of their own;
- `btil decode` of the others: the share of steps at which what they had in mind is told wrongly;
- `btil compare`: a report.

Needs Chromium and the packages of the extras `study` and `test`.
"""

import argparse
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
from study_site import BROWSER, Person, Process, open_browser, write_study

import btil
from btil.models.description import describe

SETTINGS = """
title = "Working as a team"
consent = "consent.md"
thanks = "thanks.md"
opening_survey = "opening_survey.toml"
closing_survey = "closing_survey.toml"
max_steps = 150
[[tasks]]
domain = "movers"
map = "{map}"
sessions = {sessions}
practice = 1
[[tasks]]
domain = "cleanup"
map = "{map}"
sessions = {sessions}
practice = 1
"""


def shell(*words: object) -> None:
    """Run `btil`, and show what a researcher would see."""
    text = [str(word) for word in words]
    print(f"\n$ btil {shlex.join(text)}", flush=True)
    subprocess.run([sys.executable, "-m", "btil", *text], check=True)


def take_part(server: Process, number: int, seed: int) -> None:
    """Participants, one after the other, each in a browser of its own."""
    with open_browser() as browser:
        for who in range(number):
            person = Person(browser, server.origin)
            person.generator = np.random.default_rng([seed, who])
            person.tab.get_by_role("button", name="I agree").click()
            person.until(lambda seen: bool(seen))
            person.play(lambda seen: seen["kind"] != "thanks", most=10_000)
            assert person.errors == [], person.errors
            person.tab.context.close()
            print(f"participant {who + 1} of {number} is done", flush=True)


def main() -> None:
    """The loop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("study-loop"))
    parser.add_argument("--participants", type=int, default=9)
    parser.add_argument(
        "--sessions", type=int, default=4, help="of each task; the first is practice"
    )
    parser.add_argument("--map", default="lesson")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if BROWSER is None:
        sys.exit("there is no Chromium: apt install chromium, or name one by BTIL_BROWSER")
    out = options.out
    study = out / "study"
    settings = SETTINGS.format(map=options.map, sessions=options.sessions)
    server = Process(write_study(study, settings), 0, "--seed", str(options.seed))
    try:
        take_part(server, options.participants, options.seed)
    finally:
        server.kill()

    surveys, steps = out / "answers.csv", out / "steps.csv"
    shell(
        "collect", "export", study, "--out", out / "demos.parquet", "--derived",
        "--surveys", surveys, "--steps", steps,
    )  # fmt: skip
    for domain in ("movers", "cleanup"):
        demos = btil.read_demonstrations(out / f"demos-{domain}.parquet")
        people = np.array([str(episode).split("-")[0] for episode in demos.episode_ids])
        held_out = np.isin(people, np.unique(people)[2::3])
        train = demos.select(~held_out)
        partly = train.without_labels(np.arange(1, train.num_episodes, 2))
        btil.write_demonstrations(partly, out / f"{domain}-train.parquet")
        btil.write_demonstrations(demos.select(held_out), out / f"{domain}-test.parquet")
        task = getattr(btil.domains, domain)(options.map)
        shared = task.recommended_model()
        # A person and an AI may not be alike: the same model with a table for each of them.
        own = btil.TeamModel(shared.policy.cpt, shared.transition.cpt, shared.initial.cpt)
        train_file, test_file = (out / f"{domain}-{part}.parquet" for part in ("train", "test"))
        for name, tables in ((domain, shared), (f"{domain}-own", own)):
            model, posterior = out / f"{name}.toml", out / f"{name}.nc"
            model.write_text(describe(tables), encoding="utf-8")
            shell("fit", train_file, "--model", model, "--out", posterior, "--quiet")
            shell("decode", posterior, test_file, "--out", out / f"{name}-decoded.csv", "--smooth")
        shell(
            "compare", train_file, "--test", test_file, "--model", out / f"{domain}.toml",
            "--methods", "mfvi,gibbs", "--num-samples", 200, "--num-warmup", 100,
            "--num-chains", 2, "--quiet", "--out", out / f"{domain}-report",
        )  # fmt: skip
    print(f"\nplay it back: btil collect replay {study} --posterior {out / 'movers.nc'}")


if __name__ == "__main__":
    main()
