"""Case 22, scoring with the answers left in: labels are looked at where that is asked for, only.

Every public function that takes a posterior and demonstrations stands in `QUESTIONS`, or in
`LABELS_ARE_DATA` with the reason; a new one that stands in neither fails here.
"""

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.text import Text
from teams import chain_truth, hmm_demos, random_demos, rich_model
from typer.testing import CliRunner

import btil
from btil import analysis
from btil.analysis import belief_scores, compare, held_out, metrics, teamwork
from btil.analysis.debriefing import debrief
from btil.analysis.debriefing.findings import find
from btil.analysis.decoding import decoded_table
from btil.analysis.selection import rank_models
from btil.cli import app
from btil.inference.result import DirichletRows, FitResult
from btil.models.team import bind
from btil.numpyro_forms.numpyro_model import bind_numpyro_model
from btil.posterior.numpyro_posterior import NumpyroPosterior
from btil.posterior.posterior import TeamPosterior

ASKED = ("smooth", "filter", "predict_actions", "decode")


class Blind(TeamPosterior):
    """Is never given a label, but in what it learned from: the reference."""

    def _bind(self, demos: Any, use_labels: Any) -> Any:
        own = demos is self.demos
        return super()._bind(demos if own else demos.without_labels(), use_labels or not own)


class Peeking(TeamPosterior):
    """Always looks: what comes of a function that forgets."""

    def _bind(self, demos: Any, use_labels: Any) -> Any:
        return super()._bind(demos, True)


def become(kind: type[TeamPosterior], posterior: TeamPosterior) -> TeamPosterior:
    fields = {f.name: getattr(posterior, f.name) for f in dataclasses.fields(posterior)}
    return kind(**fields)


class Asked(NamedTuple):
    """What a question may use.

    Attributes:
        posterior: The posterior that is asked.
        task: The grid world.
        demos: Episodes not learned from, every step labelled at random.
        training: Those learned from.
        folder: An empty one.
    """

    posterior: TeamPosterior
    task: Any
    demos: btil.Demonstrations
    training: btil.Demonstrations
    folder: Any


@pytest.fixture(scope="module")
def world() -> Asked:
    """A grid world whose team was learned from labelled episodes; others are labelled at random."""
    task = btil.domains.movers("tiny")
    training = task.add_derived_variables(task.simulate(6, seed=0, max_steps=15))
    made = task.add_derived_variables(task.simulate(3, seed=1, max_steps=15))
    labels = np.random.default_rng(2).integers(0, task.num_latents, made.latents.shape)
    model = task.recommended_model()
    bound = bind(model, training)
    rows = {}
    for site, table in bound.learned.items():
        values = np.random.default_rng(len(site)).gamma(2.0, 1.0, table.shape) + 0.3
        if site != "initial":
            own = np.arange(min(table.shape[-2:]))
            values[..., own, own] += 3.0
        rows[site] = DirichletRows(values)
    posterior = TeamPosterior(
        bound=bound,
        method="mfvi",
        result=FitResult(rows=rows, converged=True, reason="made by hand"),
        seed=0,
        dtype=np.dtype(np.float32),
        wall_time=1.0,
    )
    return Asked(posterior, task, made.replace(latents=labels), training, None)


def team_with(asked: Asked) -> btil.imitation.LearnedTeam:
    return btil.imitation.LearnedTeam(
        task=asked.task, method="btil", policies={}, learning_curve={}, converged=True,
        reason="made by hand", posterior=asked.posterior, wall_time=1.0, seed=0,
        known_transition=False, options={},
    )  # fmt: skip


def decoded_part_by_part(asked: Asked, **options: Any) -> Any:
    """The table that `decode_file` writes."""
    source, out = (asked.folder.with_name(f"{name}.parquet") for name in ("team", "decoded"))
    btil.write_demonstrations(asked.demos, source)
    file = btil.open_demonstrations(source)
    analysis.decode_file(asked.posterior, file, out, smooth=True, progress=False, **options)
    return pd.read_parquet(out)


Question = Callable[..., Any]
# Every public function that takes a posterior and demonstrations, as a plain call. Those with
# `use_labels` are handed it on.
QUESTIONS: dict[str, Question] = {
    "btil.posterior.beliefs.Posterior.smooth": lambda a, **o: a.posterior.smooth(a.demos, **o),
    "btil.posterior.beliefs.Posterior.filter": lambda a, **o: a.posterior.filter(a.demos, **o),
    "btil.posterior.beliefs.Posterior.predict_actions": (
        lambda a, **o: a.posterior.predict_actions(a.demos, **o)
    ),
    "btil.posterior.beliefs.Posterior.decode": lambda a, **o: a.posterior.decode(a.demos, **o),
    "btil.imitation.learning.LearnedTeam.decode": lambda a, **o: team_with(a).decode(a.demos, **o),
    "btil.analysis.metrics.decoded_latents": lambda a: metrics.decoded_latents(
        a.demos, a.posterior
    )[1],
    "btil.analysis.metrics.smoothed_beliefs": lambda a: metrics.smoothed_beliefs(
        a.demos, a.posterior
    )[1],
    "btil.analysis.metrics.most_probable": lambda a: analysis.most_probable(a.demos, a.posterior),
    "btil.analysis.metrics.hamming_distance": lambda a: analysis.hamming_distance(
        a.demos, a.posterior
    ),
    "btil.analysis.held_out.viterbi_error": lambda a: held_out.viterbi_error(a.demos, a.posterior),
    "btil.analysis.held_out.filtering_error": lambda a: held_out.filtering_error(
        a.demos, a.posterior
    ),
    "btil.analysis.held_out.held_out": lambda a: held_out.held_out(a.demos, a.posterior),
    "btil.analysis.metrics.decoding_error": lambda a: analysis.decoding_error(a.demos, a.posterior),
    "btil.analysis.metrics.confusion_matrix": lambda a: analysis.confusion_matrix(
        a.demos, a.posterior, "rob"
    ),
    "btil.analysis.metrics.team_alignment": lambda a: analysis.team_alignment(a.demos, a.posterior),
    "btil.analysis.metrics.suboptimal_steps": lambda a: metrics.suboptimal_steps(
        a.task, a.demos, a.posterior
    ),
    "btil.analysis.metrics.suboptimal_share": lambda a: analysis.suboptimal_share(
        a.task, a.demos, a.posterior
    ),
    "btil.analysis.belief_scores.score_beliefs": lambda a: belief_scores.score_beliefs(
        a.demos, a.posterior, "rob"
    ),
    "btil.analysis.belief_scores.reliability_by_episode": lambda a: (
        belief_scores.reliability_by_episode(a.demos, a.posterior, "rob")
    ),
    "btil.analysis.decoding.decoded_table": lambda a: decoded_table(
        a.demos, a.posterior, a.posterior
    ),
    "btil.analysis.by_parts.decode_file": decoded_part_by_part,
    "btil.analysis.teamwork.misaligned": lambda a: teamwork.misaligned(a.demos, a.posterior),
    "btil.analysis.teamwork.misalignment_probability": (
        lambda a: analysis.misalignment_probability(a.demos, a.posterior, a.task)
    ),
    "btil.analysis.teamwork.misaligned_stretches": lambda a: analysis.misaligned_stretches(
        a.demos, a.posterior
    ),
    "btil.analysis.plots.confusion.plot_confusion": lambda a: analysis.plot_confusion(
        a.demos, a.posterior, "rob"
    ),
    "btil.analysis.plots.timeline.plot_timeline": lambda a, **o: analysis.plot_timeline(
        a.posterior, a.demos, 0, **o
    ),
    "btil.analysis.plots.timeline.plot_alignment": lambda a, **o: analysis.plot_alignment(
        a.posterior, a.demos, 0, a.task, **o
    ),
    "btil.analysis.debriefing.findings.find": lambda a, **o: find(a.posterior, a.demos, **o),
    "btil.analysis.debriefing.debrief_page.debrief": lambda a, **o: debrief(
        a.posterior, a.demos, a.folder, max_episodes=1, progress=False, **o
    ).page.read_text(encoding="utf-8"),
    "btil.analysis.compare.compare_posteriors": lambda a: compare.compare_posteriors(
        {"a": a.posterior}, a.demos, progress=False
    ),
    "btil.analysis.selection.rank_models": lambda a: (
        rank_models(
            {"a": a.posterior, "b": a.posterior}, a.demos, method="held_out", num_draws=100
        ).table
    ),
}
# No question of what somebody had in mind, or labels are what is asked about.
LABELS_ARE_DATA = {
    "btil.posterior.beliefs.Posterior.log_likelihood": "the density of actions and labels",
    "btil.analysis.by_parts.score_file": "errors, and the density of actions and labels",
    "btil.analysis.predictive.posterior_predictive_check": "checks the model on actions and labels",
    "btil.analysis.compare.name_by_labels": "gives arbitrary latents the names that fit labels",
    "btil.analysis.metrics.with_learned_latents": "sizes and names",
    "btil.posterior.beliefs.Posterior.conformed": "sizes and names",
    "btil.posterior.posterior.TeamPosterior.predict_columns": "held to it in test_emissions.py",
    "btil.posterior.fit.fit_again": "learns from the labels",
    "btil.analysis.plots.paths.shown_latents": "labels, or the latents that it is given",
    "btil.analysis.plots.paths.plot_paths": "draws labels, or the latents that it is given",
    "btil.analysis.plots.films.plot_motion_strip": "draws labels, or the latents it is given",
    "btil.analysis.plots.films.animate_motion": "draws labels, or the latents that it is given",
}
# Log densities of actions alone: no belief is asked for.
NEVER_PEEK = {"btil.analysis.selection.rank_models"}
_TELLING = {"posterior", "posteriors", "decoded", "beliefs", "latents", "team"}


def public_functions() -> Iterator[tuple[str, Any]]:
    """Every public function and method of the package, by the name of where it is written."""
    for module in pkgutil.walk_packages(btil.__path__, "btil."):
        if module.name.endswith("__main__"):
            continue
        written = importlib.import_module(module.name)
        for name, found in vars(written).items():
            if name.startswith("_") or getattr(found, "__module__", None) != module.name:
                continue
            if inspect.isclass(found):
                for method, function in vars(found).items():
                    if not method.startswith("_") and inspect.isfunction(function):
                        yield f"{module.name}.{name}.{method}", function
            elif callable(found):
                yield f"{module.name}.{name}", found


def asks_of_demonstrations(name: str, function: Any) -> bool:
    """Whether a function takes demonstrations and a posterior, or what one has answered."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return False
    demos = any("Demonstrations" in str(one.annotation) for one in parameters)
    answers = "Posterior." in name or "LearnedTeam." in name
    return demos and (
        answers
        or any("Posterior" in str(one.annotation) or one.name in _TELLING for one in parameters)
    )


def test_no_function_that_takes_a_posterior_and_demonstrations_is_forgotten() -> None:
    found = {name: f for name, f in public_functions() if asks_of_demonstrations(name, f)}
    assert set(found) == set(QUESTIONS) | set(LABELS_ARE_DATA)
    for name, function in found.items():
        option = inspect.signature(function).parameters.get("use_labels")
        assert option is None or option.default is False, name


def contents(answer: Any) -> Any:
    """An answer as plain values that can be compared; a figure by all that it shows of beliefs."""
    if isinstance(answer, Figure):
        image = [np.asarray(i.get_array()).tolist() for i in answer.findobj(AxesImage)]
        lines = [list(line.get_ydata()) for axes in answer.axes for line in axes.lines]
        patches = [patch for axes in answer.axes for patch in axes.patches]
        bars = [
            (p.get_path().vertices.tolist(), p.get_transform().transform([[0, 0], [1, 1]]).tolist())
            for p in patches
        ]
        return image, lines, bars, [t.get_text() for t in answer.findobj(Text)]
    if isinstance(answer, compare.Comparison):
        figures = answer.plot_timeline("rob"), answer.plot_confusion("rob")
        tables = answer.table.drop(columns="seconds"), answer.decoded, answer.reliability_table()
        return contents([*tables, *figures, answer.plot_reliability()])
    if isinstance(answer, pd.DataFrame):
        return answer.to_csv()
    if isinstance(answer, np.ndarray):
        return answer.tolist()
    if isinstance(answer, Mapping):
        return {name: contents(value) for name, value in answer.items()}
    if isinstance(answer, list | tuple):
        return [contents(value) for value in answer]
    if dataclasses.is_dataclass(answer) and not isinstance(answer, btil.Demonstrations):
        fields = [f.name for f in dataclasses.fields(answer) if f.name != "demos"]
        return {name: contents(getattr(answer, name)) for name in fields}
    return repr(answer)


@pytest.mark.parametrize("name", QUESTIONS)
def test_labels_are_looked_at_where_asked_for_only(name: str, world: Asked, tmp_path: Any) -> None:
    question = QUESTIONS[name]

    def ask(kind: type[TeamPosterior], **options: Any) -> Any:
        # All pages are written to the same folder, of which they may speak.
        asked = world._replace(posterior=become(kind, world.posterior), folder=tmp_path / "out")
        return contents(question(asked, **options))

    plain = ask(TeamPosterior)
    assert repr(plain) == repr(ask(Blind))
    if name not in NEVER_PEEK:
        assert repr(plain) != repr(ask(Peeking))
    if "use_labels" in inspect.signature(dict(public_functions())[name]).parameters:
        told = ask(TeamPosterior, use_labels=True)
        assert repr(told) != repr(plain)


# ------------------------------------------------------------------ the case itself

STEPS = 400


def unrelated(labelled: float = 1.0) -> btil.Demonstrations:
    """A recording whose labels were thrown by dice: whoever looks away is right by chance."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, (STEPS, 2))
    return btil.Demonstrations(
        states={"where": generator.integers(0, 2, STEPS)},
        actions=generator.integers(0, 2, (STEPS, 2)),
        latents=np.where(generator.random(labels.shape) < labelled, labels, -1),
        episodes=np.repeat(np.arange(20), STEPS // 20),
        agents=("ann", "bob"), num_states={"where": 2}, num_actions=2, num_latents=2,
        latent_names=("help", "wait"),
    )  # fmt: skip


@pytest.fixture(scope="module")
def learned() -> TeamPosterior:
    """Each mind mostly does its own action, and mostly stays."""
    rows = np.array([[0.9, 0.1], [0.1, 0.9]])
    model = btil.TeamModel(btil.KnownCPT(rows), btil.KnownCPT(rows))
    return btil.fit(model, unrelated(), progress=False)


def test_random_labels_are_decoded_by_chance_in_python(learned: TeamPosterior) -> None:
    test = unrelated()
    spread = 4.5 * np.sqrt(0.25 / STEPS)
    error = analysis.hamming_distance(test, learned)
    np.testing.assert_allclose(error, 0.5, atol=spread)
    assert (error == analysis.hamming_distance(test, learned.decode(test))).all()
    assert (analysis.hamming_distance(test, learned.decode(test, use_labels=True)) == 0).all()
    for beliefs in (learned, learned.filter(test)):
        np.testing.assert_allclose(analysis.decoding_error(test, beliefs), 0.5, atol=spread)
    table = analysis.confusion_matrix(test, learned, "bob")
    assert np.trace(table) == pytest.approx((1 - error[1]) * STEPS)
    # A tracker looks at what it is told, and is told nothing unasked.
    tracker = learned.tracker()
    seen = [tracker.update(test.states[t], test.actions[t]).latents["ann"] for t in range(20)]
    np.testing.assert_allclose(seen, learned.filter(test)["ann"][:20], atol=1e-6)


@pytest.fixture
def files(learned: TeamPosterior, tmp_path: Any) -> Any:
    learned.save(tmp_path / "p.nc")
    btil.write_demonstrations(unrelated(labelled=0.5), tmp_path / "new.csv")
    return tmp_path


def run(*arguments: object) -> Any:
    result = CliRunner().invoke(app, list(map(str, arguments)), prog_name="btil")
    assert result.exit_code == 0, result.output
    return result


def test_random_labels_are_decoded_by_chance_from_a_shell(
    files: Any, learned: TeamPosterior
) -> None:
    out, test = files / "decoded.csv", unrelated(labelled=0.5)
    decode = ("decode", files / "p.nc", files / "new.csv", "--smooth", "--out", out)
    said = run(*decode).stdout
    for agent, error in zip(test.agents, analysis.hamming_distance(test, learned), strict=True):
        assert f"error of {agent}: {error:.4f}" in said
        assert abs(error - 0.5) < 0.15
    table = pd.read_csv(out)
    np.testing.assert_allclose(
        table["probability_ann_wait"], learned.smooth(test)["ann"][:, 1], atol=1e-6
    )
    said = run(*decode, "--use-labels").stdout
    assert "error of" not in said
    share = (test.latents[:, 0] >= 0).mean()
    assert f"labels of ann used: {share:.1%} of the steps are labelled" in said
    told = pd.read_csv(out)
    known = test.latents[:, 0] >= 0
    names = np.array(["help", "wait"])
    assert (told["decoded_ann"][known] == names[test.latents[known, 0]]).all()
    np.testing.assert_allclose(
        told["probability_ann_wait"], learned.smooth(test, use_labels=True)["ann"][:, 1], atol=1e-6
    )


def test_a_debrief_from_a_shell_says_what_it_did_with_labels(files: Any) -> None:
    report = ("report", files / "new.csv", "--posterior", files / "p.nc", "--max-episodes", 0)
    plain = run(*report, "--out", files / "plain").stdout
    assert "The labels were left aside here" in plain
    assert "taken for true" not in plain
    told = run(*report, "--out", files / "told", "--use-labels").stdout
    assert "was labelled, and taken for true, at 5" in told
    assert "The labels were left aside here" not in told
    steps = {kind: pd.read_csv(files / kind / "tables" / "steps.csv") for kind in ("plain", "told")}
    test = unrelated(labelled=0.5)
    known = test.latents[:, 0] >= 0
    names = np.array(["help", "wait"])[test.latents[known, 0]]
    assert (steps["told"]["decoded_ann"][known] == names).all()
    assert 0.3 < (steps["plain"]["decoded_ann"][known] == names).mean() < 0.7


# ------------------------------------------------------------------ to complete a recording


@pytest.mark.parametrize("verb", ASKED)
@pytest.mark.parametrize("num_draws", [None, 3])
def test_hidden_is_what_is_not_asked_for(
    verb: str, num_draws: int | None, learned: TeamPosterior
) -> None:
    demos = unrelated(labelled=0.5)
    ask = getattr(learned, verb)
    for own in (demos, learned.demos):  # others, and those learned from
        found = ask(own, num_draws=num_draws)
        expected = ask(own.without_labels(), use_labels=True, num_draws=num_draws)
        assert repr(contents(found)) == repr(contents(expected))
        assert repr(contents(found)) != repr(contents(ask(own, True, num_draws=num_draws)))
    assert learned.demos.latents.min() >= 0  # nothing was dropped from what was learned from


@pytest.mark.usefixtures("x64")
def test_a_partly_labelled_recording_is_completed_as_by_enumeration() -> None:
    """Four steps between two labels, known tables: 2^4 paths, of which 4 agree with the labels."""
    policy, transition = np.array([[0.7, 0.3], [0.2, 0.8]]), np.array([[0.9, 0.1], [0.4, 0.6]])
    initial, actions, labels = np.array([0.6, 0.4]), [0, 1, 1, 0], [0, -1, -1, 1]
    model = btil.TeamModel(*map(btil.KnownCPT, (policy, transition, initial)))
    demos = hmm_demos(actions, labels)
    posterior = btil.fit(model, demos, progress=False)
    for use_labels in (False, True):
        weights = {}
        for path in np.ndindex(2, 2, 2, 2):
            agrees = all(label in (-1, x) for x, label in zip(path, labels, strict=True))
            weight = initial[path[0]] * np.prod(transition[path[:-1], path[1:]])
            weight *= np.prod(policy[path, actions])
            weights[path] = weight if agrees or not use_labels else 0.0
        total = sum(weights.values())
        expected = [sum(w for path, w in weights.items() if path[t]) / total for t in range(4)]
        smoothed = posterior.smooth(demos, use_labels)["agent_0"]
        np.testing.assert_allclose(smoothed[:, 1], expected, atol=1e-12)
        best = max(weights, key=lambda path: weights[path])
        assert posterior.decode(demos, use_labels)[:, 0].tolist() == list(best)
        seen = demos if use_labels else demos.without_labels()
        np.testing.assert_allclose(posterior.log_likelihood(seen), np.log(total), atol=1e-12)


@pytest.mark.usefixtures("x64")
def test_beliefs_without_labels_are_those_of_actions_alone() -> None:
    demos = random_demos(5, (4, 1, 3), labelled=0.6)
    posterior = btil.fit(rich_model(), demos, progress=False)
    rows = {name: one.mean() for name, one in posterior.result.rows.items()}
    for seen, use_labels in ((demos, True), (demos.without_labels(), False)):
        smoothed = posterior.smooth(demos, use_labels)
        filtered = posterior.filter(demos, use_labels)
        bound = bind(posterior.model, seen)
        for agent in demos.agents:
            truth = chain_truth(bound, agent, rows)
            np.testing.assert_allclose(smoothed[agent], truth.smoothed, atol=1e-12)
            np.testing.assert_allclose(filtered[agent], truth.filtered, atol=1e-12)


def test_an_impossible_label_is_an_error_where_it_is_looked_at() -> None:
    model = btil.TeamModel(
        policy=btil.KnownCPT([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]]), transition=btil.StaticCPT()
    )
    options: Any = {"latent_names": ["help", "wait"], "action_names": ["go", "stay", "hide"]}
    posterior = btil.fit(model, hmm_demos([0, 1], **options), progress=False)
    demos = hmm_demos([0, 1, 0], [0, -1, 1], **options)
    hopeless = hmm_demos([0, 2, 0], [0, 1, 1], **options)
    for verb in ASKED:
        ask = getattr(posterior, verb)
        ask(demos)
        told = "episode 0, agent agent_0, step 2: action go with label wait has probability 0"
        with pytest.raises(ValueError, match=told):
            ask(demos, use_labels=True)
        # What is wrong without labels is told without them.
        with pytest.raises(ValueError, match="step 1: action hide has probability 0"):
            ask(hopeless)
    assert posterior.log_likelihood(demos).tolist() == [-np.inf]
    assert np.isfinite(posterior.log_likelihood(demos.without_labels())).all()


def test_an_own_model_sees_no_label_unless_asked() -> None:
    """A function may read labels as it may read states: it gets -1 where they are not used."""
    rows = jnp.log(jnp.array([[0.8, 0.2], [0.3, 0.7]]))

    def reads_labels(data: Any) -> None:
        known = (data.labels["agent_0"] >= 0)[:, :, None, None]
        policy = jnp.where(known, rows, jnp.log(0.5))
        data.observe("agent_0", jnp.log(jnp.array([0.5, 0.5])), rows, policy)

    demos = hmm_demos([0, 1, 1, 0], [0, -1, 1, 1])
    bound = bind_numpyro_model(btil.NumpyroModel(reads_labels), demos)
    posterior = NumpyroPosterior(
        bound=bound, method="svi", result=FitResult({}, True, "nothing to learn"), seed=0,
        dtype=np.dtype(np.float64), wall_time=0.0,
    )  # fmt: skip
    for own in (demos, hmm_demos([0, 1, 1, 0], [0, -1, 1, 1])):
        smoothed = posterior.smooth(own)["agent_0"]
        np.testing.assert_allclose(smoothed, posterior.smooth(own.without_labels())["agent_0"])
        told = posterior.smooth(own, use_labels=True)["agent_0"]
        assert told[[0, 2, 3], [0, 1, 1]].tolist() == [1, 1, 1]


def test_few_labels_may_name_fewer_latents_than_the_posterior_knows(learned: TeamPosterior) -> None:
    """No label says `wait`: by itself the recording knows one latent only."""
    acted = {"ann": [0, 1, 0, 1], "bob": [1, 1, 1, 0]}
    labels = {"ann": ["help", "help", "", ""], "bob": ["help", "", "", ""]}
    test = btil.Demonstrations({"where": [0, 1, 0, 1]}, acted, labels)
    assert test.num_latents == (1, 1)
    error = analysis.hamming_distance(test, learned)
    path = learned.decode(test)
    assert error.tolist() == [np.mean(path[:2, 0] == 1), path[0, 1] == 1]
    assert analysis.confusion_matrix(test, learned, "ann").shape == (2, 2)
    figure = analysis.plot_timeline(learned, test, 0)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["help", "wait"]
    same = path[:, 0] == path[:, 1]
    assert analysis.team_alignment(test, learned).over_steps == same.mean()
    # Where numbers were learned from, one name does not say which of them it is.
    nameless = unrelated().replace(latent_names=None)
    posterior = btil.fit(learned.model, nameless, progress=False)
    with pytest.raises(ValueError, match="latent_names of ann: the values here have names"):
        analysis.hamming_distance(test, posterior)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        # The types of the tests' own calls are checked before this, but not those of a user.
        (lambda p, d: p._bind(d, "map"), "use_labels must be True or False, got 'map'"),
        (lambda p, d: p._bind(d, 1), "use_labels must be True or False, got 1"),
        (lambda p, d: analysis.most_probable(d, p.decode(d)), "a posterior or {agent: .* ndarray"),
        (
            lambda p, d: analysis.misaligned_stretches(d, p.decode(d)),
            "a posterior or {agent: .* ndarray",
        ),
        (
            lambda p, d: analysis.team_alignment(p.decode(d), d.episodes),
            "of an array alone, name the episodes",
        ),
    ],
)
def test_what_is_no_answer_is_refused(call: Any, told: str, learned: TeamPosterior) -> None:
    with pytest.raises(ValueError, match=told):
        call(learned, unrelated())
