"""The paper's tables made again: what is run, saved, taken up again, compared and written."""

import functools
import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner, Result

import btil
from btil.analysis import reproduce
from btil.analysis.reproduction import (
    experiments,
    paper_tables,
    records,
    reproducing,
    targets,
    trials,
    workspace,
)
from btil.analysis.reproduction.experiments import (
    HAMMING,
    JS,
    TEAM,
    HumanDecoding,
    Imitation,
    Outcome,
    Score,
    Simulation,
)
from btil.analysis.reproduction.figures import plot_numbers, plot_supervision
from btil.analysis.reproduction.models import model_named
from btil.analysis.reproduction.targets import (
    AGENTS,
    PAPER,
    QUICK,
    TARGETS,
    Reported,
    Row,
    target_rows,
)
from btil.analysis.reproduction.trials import Trial
from btil.cli import app
from btil.demonstrations import Demonstrations, read_demonstrations
from btil.domains.gridworld.task import GridTask
from btil.figures import BLUE, VERMILION

FILES = (".csv", "-trials.csv", ".md", ".html", ".svg", ".png")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, list(map(str, arguments)), prog_name="btil")


def assert_refused(result: Result, *says: str) -> None:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    for text in says:
        assert text in result.stderr


class StandIn:
    """Takes the place of `btil.imitation.learn`: answers at once, by its seed alone."""

    def __init__(self, interrupt_after: int | None = None) -> None:
        self.calls: list[dict[str, Any]] = []
        self.interrupt_after = interrupt_after

    def __call__(
        self, task, demos, method, *, known_transition, seed, progress, **options
    ) -> SimpleNamespace:
        if len(self.calls) == self.interrupt_after:
            raise KeyboardInterrupt
        labelled = (demos.latents[demos.episode_starts] >= 0).all(axis=1)
        self.calls.append(
            {
                "domain": task.name,
                "method": method,
                "known": known_transition,
                "episodes": demos.episode_ids.tolist(),
                "labelled": labelled.tolist(),
                "seed": seed,
                "derived": "lying" in demos.num_states,
                "options": options,
            }
        )
        generator = np.random.default_rng(seed)
        rows = generator.dirichlet(np.ones(task.num_actions), (task.num_states, task.num_latents))
        return SimpleNamespace(
            policies=dict.fromkeys(task.agents, rows),
            decode=functools.partial(self.decode, task, generator),
            learning_curve={"elbo": np.array([-3.0, -2.0, -1.5])},
            converged=True,
            reason="nothing to do",
        )

    def decode(
        self, task: GridTask, generator: np.random.Generator, test: Demonstrations
    ) -> np.ndarray:
        """Anything; other things where derived variables are read."""
        read = "lying" in test.num_states
        return (generator.integers(0, task.num_latents, test.latents.shape) + read) % 3


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is drawn: it takes longer than all the rest."""
    run_module = "btil.analysis.reproduction.reproducing"
    for name in ("plot_numbers", "plot_supervision"):
        monkeypatch.setattr(f"{run_module}.{name}", lambda *arguments: None)
    empty = {"svg": b"", "png": bytes(24)}
    monkeypatch.setattr("btil.analysis.output.save_figure", lambda figure, stem: empty)


@functools.cache
def simulated(domain: str, num_episodes: int, seed: int) -> Demonstrations:
    """What the workspace of a quick run simulates, for as many tests as need it."""
    task = getattr(btil.domains, domain)(QUICK.map)
    return task.simulate(num_episodes, seed=seed, max_steps=QUICK.max_steps)


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch, no_figures: None) -> StandIn:
    learner = StandIn()
    monkeypatch.setattr("btil.imitation.learn", learner)
    monkeypatch.setattr(
        workspace.Workspace, "simulate", lambda self, *arguments: simulated(*arguments)
    )
    return learner


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all targets, so that they share data and trials."""
    return tmp_path_factory.mktemp("results")


# ---------------------------------------------------------------------- every target, quickly


@pytest.mark.parametrize(
    ("target", "options", "expected"),
    [
        # Its other learners are run for the other targets: what takes time is their compilation.
        ("table1", ["--methods", "random"], ["with T_x", "w/o T_x", "(0.72 ± 0.00)"]),
        ("tableA1", [], ["BC", "MAGAIL", "(0.22)"]),
        ("figure-supervision", [], ["d = 12, l = 4 (33%)", "d = 12, l = 12 (100%)"]),
        ("parents", [], ["policy reads what matters", "both, agents share tables"]),
        ("suboptimality", [], ["episodes cut", "test, recommended model", "(0.49)"]),
        ("table2-overcooked", [], ["cramped_room", "50% labelled", "(0.35 ± 0.03)"]),
        (
            "performance",
            ["--methods", "demonstrators,random,btil"],
            ["Demonstrators", "recommended model, modes", "return"],
        ),
    ],
)
def test_every_target_in_its_quick_form(
    target: str, options: list[str], expected: list[str], results: Path
) -> None:
    result = run("reproduce", target, "--quick", "--quiet", "--out", results, *options)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    for text in [*expected, "Its numbers mean nothing"]:
        assert text in re.sub(r"\s+", " ", result.stdout)
    for ending in FILES:
        assert (results / f"{target}{ending}").stat().st_size > 0
    page = (results / f"{target}.html").read_text(encoding="utf-8")
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    assert "data:image/svg+xml;base64," in page
    numbers = pd.read_csv(results / f"{target}-trials.csv").set_index("metric")["value"]
    assert len(numbers) > 0
    assert np.isfinite(numbers).all()
    assert (numbers.drop("returns", errors="ignore") >= 0).all()
    assert not pd.read_csv(results / f"{target}.csv")["differs"].notna().any()


def test_models_of_parents_differ_from_the_paper_in_what_their_names_say() -> None:
    task = btil.domains.movers("tiny")
    paper, recommended = model_named("paper", task), task.recommended_model()
    for name, policy_changed, transition_changed in (
        ("transition-parents", False, True),
        ("policy-parents", True, False),
        ("all-parents", True, True),
    ):
        model = model_named(name, task)
        for role, changed in (("policy", policy_changed), ("transition", transition_changed)):
            shared = getattr(recommended, role).cpt
            expected = shared.parents if changed else getattr(paper, role).parents
            assert getattr(model, role).parents == expected
    with pytest.raises(ValueError, match="unknown model 'own'; there are paper, "):
        model_named("own", task)


def test_quick_options_are_options_of_the_learners() -> None:
    from btil.imitation import method_options
    from btil.posterior.fit import method_options as fit_options

    for protocol in (QUICK, PAPER):
        for method, options in protocol.options.items():
            known = fit_options(method) if method == "mfvi" else method_options(method)
            assert set(options) <= set(known)


def test_quick_domains_and_methods_belong_to_their_targets() -> None:
    for name, target in TARGETS.items():
        rows = target_rows(name, QUICK)
        assert {row.domain for row in rows if row.experiment} <= set(target.domains)
        assert target_rows(name, PAPER)


# ---------------------------------------------------------------------- what is run


def test_table_1_runs_the_settings_of_the_paper() -> None:
    rows = target_rows("table1", PAPER)
    assert [(row.setting, row.algorithm) for row in rows if row.domain == "movers"] == [
        ("with T_x", "Random"),
        ("with T_x", "BC"),
        ("with T_x", "MAGAIL"),
        ("with T_x", "BTIL-Sup"),
        ("with T_x", "BTIL-Semi"),
        ("w/o T_x", "Random"),
        ("w/o T_x", "BTIL-Sup"),
        ("w/o T_x", "BTIL-Semi"),
    ]
    for row in rows:
        given = row.experiment
        assert isinstance(given, Imitation)
        assert given.num_labelled == 20
        assert given.num_demos == (200 if row.algorithm == "BTIL-Semi" else 20)
        assert given.known_transition == (row.setting == "with T_x")
    assert (PAPER.num_train, PAPER.num_test, PAPER.max_steps) == (200, 100, 200)


def test_other_targets_run_the_settings_of_the_paper() -> None:
    for row in target_rows("tableA1", PAPER):
        given = row.experiment
        assert (given.num_demos, given.num_labelled, given.known_transition) == (200, 200, True)
    grid = {
        (e.num_demos, e.num_labelled, e.known_transition)
        for e in (row.experiment for row in target_rows("figure-supervision", PAPER, ["cleanup"]))
    }
    assert len(grid) == 2 * len(PAPER.sizes) * len(PAPER.shares)
    assert {(200, 20, True), (200, 200, False), (20, 20, True), (50, 25, False)} <= grid
    shares = {row.experiment.share_labelled for row in target_rows("table2-overcooked", PAPER)[:4]}
    assert shares == {None, 1.0, 0.5, 0.2}


@pytest.mark.parametrize(
    ("target", "domain", "setting", "algorithm", "agent", "metric", "expected"),
    [
        ("table1", "movers", "with T_x", "BTIL-Semi", "rob", HAMMING, Reported(0.16, 0.02)),
        ("table1", "movers", "with T_x", "MAGAIL", "rob", JS, Reported(0.24, 0.01)),
        ("table1", "movers", "w/o T_x", "Random", "alice", HAMMING, Reported(0.72, 0.0)),
        ("table1", "cleanup", "with T_x", "BC", "alice", JS, Reported(0.22, 0.03)),
        ("table1", "cleanup", "w/o T_x", "BTIL-Sup", "rob", HAMMING, Reported(0.48, 0.03)),
        ("table1", "cleanup", "w/o T_x", "BTIL-Semi", "alice", JS, Reported(0.05, 0.0)),
        ("tableA1", "movers", "with T_x", "BTIL", "rob", HAMMING, Reported(0.23)),
        ("tableA1", "cleanup", "with T_x", "MAGAIL", "rob", JS, Reported(0.31)),
        ("suboptimality", "cleanup", "", "simulation", TEAM, "suboptimal", Reported(0.07)),
    ],
)
def test_numbers_of_the_paper(
    target: str,
    domain: str,
    setting: str,
    algorithm: str,
    agent: str,
    metric: str,
    expected: Reported,
) -> None:
    found = [
        row.reported[agent, metric]
        for row in target_rows(target, PAPER)
        if (row.domain, row.setting, row.algorithm) == (domain, setting, algorithm)
    ]
    assert found == [expected]


def test_rows_that_the_paper_does_not_have_run_what_they_are_called() -> None:
    parents = target_rows("parents", PAPER, ["cleanup"])
    for row, (number, model) in zip(
        parents, itertools.product((200, 20), targets.MODELS), strict=True
    ):
        assert row.experiment == Imitation("cleanup", "btil", False, number, 20, model)
        assert row.setting == f"d = {number}, l = 20"
        assert row.algorithm == targets.MODELS[model]
    # The paper has numbers of its own model alone, "w/o T_x".
    assert [row.reported[AGENTS[1], HAMMING].mean for row in parents if row.reported] == [
        *(0.36, 0.48)
    ]
    minds = [row.experiment for row in target_rows("suboptimality", PAPER, ["movers"])]
    assert minds == [
        Simulation("movers"),
        *(
            experiments.DecodedMinds("movers", model, 200, 20)
            for model in (None, "paper", "recommended")
        ),
    ]
    rows = target_rows("performance", PAPER, ["movers"])
    acting = {(row.setting, row.algorithm): row.experiment for row in rows}
    assert len(acting) == len(rows) == 13
    for (setting, algorithm), experiment in acting.items():
        assert isinstance(experiment, experiments.Acting)
        learned = experiment.learner == "btil"
        assert (experiment.num_demos, experiment.num_labelled) == (200 if learned else 20, 20)
        assert experiment.known_transition == (setting != "w/o T_x")
        assert (experiment.model == "recommended") == ("recommended" in algorithm)
        for words, estimate in (("modes", "map"), ("a draw per episode", "draw")):
            assert (experiment.estimate == estimate) == (words in algorithm)
        assert experiment.beside == ("rob" if "true Rob" in algorithm else None)
    assert {e.learner for e in acting.values() if e.learner != "btil"} == {
        "demonstrators", "random", "behavioral-cloning", "magail", "ppo",
    }  # fmt: skip


def test_every_number_of_the_tables_is_there() -> None:
    assert sum(len(row.reported) for row in target_rows("table1", PAPER)) == 64
    assert sum(len(row.reported) for row in target_rows("tableA1", PAPER)) == 24
    theirs = [row for row in target_rows("table2-overcooked", PAPER) if row.experiment is None]
    assert [row.reported[TEAM, HAMMING].mean for row in theirs] == [
        *(0.72, 0.14, 0.16, 0.20),
        *(0.77, 0.30, 0.35, 0.42),
    ]


def test_the_figure_knows_the_points_that_the_tables_tell() -> None:
    known = {
        (row.domain, row.setting, row.experiment.num_demos, row.experiment.num_labelled)
        for row in target_rows("figure-supervision", PAPER)
        if row.reported
    }
    assert {point[2:] for point in known if point[1] == "with T_x"} == {
        (20, 20),
        (200, 20),
        (200, 200),
    }
    assert {point[2:] for point in known if point[1] == "w/o T_x"} == {(20, 20), (200, 20)}


def test_shuffles_hide_labels_of_all_but_the_first() -> None:
    episodes = np.repeat(np.arange(10), 3)
    demos = Demonstrations(episodes, episodes % 2, episodes % 3, episodes=episodes)
    few = experiments.shuffled_and_hidden(demos, 2, 2, seed=5)
    many = experiments.shuffled_and_hidden(demos, 10, 2, seed=5)
    assert many.episode_ids[:2].tolist() == few.episode_ids.tolist()
    assert sorted(many.episode_ids.tolist()) == list(range(10))
    assert many.episode_ids.tolist() != list(range(10))
    assert many.select([0, 1]) == few
    assert (many.latents[6:] == -1).all()
    np.testing.assert_array_equal(many.latents[:6, 0], many.episodes[:6] % 3)
    other = experiments.shuffled_and_hidden(demos, 10, 2, seed=6)
    assert other.episode_ids.tolist() != many.episode_ids.tolist()


@pytest.mark.parametrize(("num_demos", "num_labelled"), [(4, 1), (2, 3), (0, 0), (2, -1)])
def test_impossible_amounts_are_refused(num_demos: int, num_labelled: int) -> None:
    demos = Demonstrations([0, 0, 0], [0, 0, 0], [1, 1, 1], episodes=[0, 1, 2], num_latents=2)
    with pytest.raises(ValueError, match="there are 3"):
        experiments.shuffled_and_hidden(demos, num_demos, num_labelled, seed=0)


def test_learners_get_what_the_paper_says(stand_in: StandIn, tmp_path: Path) -> None:
    reproduce("table1", tmp_path, trials=2, quick=True, progress=False)
    assert len(stand_in.calls) == 16
    sizes = {
        (call["method"], call["known"]): (len(call["episodes"]), sum(call["labelled"]))
        for call in stand_in.calls
        if call["method"] != "btil"
    }
    assert set(sizes) == {
        ("random", True),
        ("random", False),
        ("behavioral-cloning", True),
        ("magail", True),
    }
    assert set(sizes.values()) == {(4, 4)}
    semi = [call for call in stand_in.calls if len(call["episodes"]) == 12]
    assert [call["known"] for call in semi] == [True, True, False, False]
    for call in semi:
        assert call["labelled"] == [True] * 4 + [False] * 8
        assert sorted(call["episodes"]) == list(range(12))
        assert call["options"] == QUICK.options["btil"]
    # The same shuffle for all learners of a trial, another one in the next trial.
    assert semi[0]["episodes"] == semi[2]["episodes"] != semi[1]["episodes"]
    first = next(c for c in stand_in.calls if c["method"] == "magail")
    assert first["episodes"] == semi[0]["episodes"][:4]
    # The slow ones come last.
    assert [call["method"] for call in stand_in.calls[-4:]] == [
        *("behavioral-cloning",) * 2,
        *("magail",) * 2,
    ]


def test_scores_are_those_of_the_metrics(stand_in: StandIn, tmp_path: Path) -> None:
    made = reproduce("tableA1", tmp_path, methods=["btil"], quick=True, progress=False)
    task = btil.domains.movers("tiny")
    demos = simulated("movers", 16, 0)
    train, test = demos.select(np.arange(12)), demos.select(np.arange(12, 16))
    team = StandIn()(
        task, train, "btil", known_transition=True, seed=trials.trial_seed(0, 1), progress=False
    )
    errors = btil.analysis.hamming_distance(test, team.decode(test))
    values = made.trials.set_index(["agent", "metric"])["value"]
    for position, agent in enumerate(task.agents):
        weights = np.zeros((task.num_states, task.num_latents))
        np.add.at(weights, (train.states, train.latents[:, position]), 1 / train.num_steps)
        divergence = btil.analysis.weighted_js_divergence(
            task.policies()[agent], team.policies[agent], weights
        )
        assert values[agent, HAMMING] == errors[position]
        assert values[agent, JS] == pytest.approx(divergence, rel=1e-12)


def test_suboptimality_is_the_mean_over_episodes(no_figures: None, tmp_path: Path) -> None:
    made = reproduce(
        "suboptimality", tmp_path, 2, methods=["simulation"], quick=True, progress=False
    )
    drawn = made.trials.query("algorithm == 'simulation'")
    task = btil.domains.movers("tiny")
    for trial, seed in enumerate((0, trials.trial_seed(0, 2)), 1):
        demos = task.simulate(12, seed=seed, max_steps=30)
        shares = []
        for episode in range(12):
            one = demos.select([episode])
            shares.append(np.mean(one.latents[:, 0] != one.latents[:, 1]))
        values = drawn.query(f"trial == {trial}").set_index("metric")["value"]
        assert values["suboptimal"] == pytest.approx(np.mean(shares), rel=1e-12)
        apart = demos.latents[:, 0] != demos.latents[:, 1]
        assert values["suboptimal_steps"] == pytest.approx(np.mean(apart), rel=1e-12)
        assert values["steps"] == demos.num_steps / 12
        assert values["cut"] == np.mean(demos.episode_lengths == 30)


def test_minds_that_are_decoded_stand_beside_the_true_ones(
    no_figures: None, tmp_path: Path
) -> None:
    made = reproduce("suboptimality", tmp_path, trials=1, quick=True, progress=False)
    values = made.trials.set_index(["algorithm", "metric"])["value"]
    task, seed = btil.domains.movers("tiny"), trials.trial_seed(0, 1)
    demos = task.simulate(16, seed=0, max_steps=30)
    train, test = demos.select(np.arange(12)), demos.select(np.arange(12, 16))
    given = train.select(np.random.default_rng(seed).permutation(12))
    posterior = btil.fit(
        task.recommended_model(),
        task.add_derived_variables(given.without_labels(np.arange(4, 12))),
        max_iterations=5,
        seed=seed,
        progress=False,
    )
    truth = btil.analysis.suboptimal_share(task, test)
    decoded = btil.analysis.suboptimal_share(task, task.add_derived_variables(test), posterior)
    for name, share in (
        ("test", truth),
        ("test, recommended model", decoded),
    ):
        assert values[name, "suboptimal"] == share.over_episodes
        assert values[name, "suboptimal_steps"] == share.over_steps
    assert values["test, the paper's model", "suboptimal"] >= 0


def test_minds_of_the_test_episodes_are_decoded_by_what_was_learned(
    stand_in: StandIn, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"methods": ["btil"], "quick": True, "progress": False}
    made = reproduce("suboptimality", tmp_path, 1, **arguments)
    values = made.trials.set_index(["algorithm", "metric"])["value"]
    task, seed = btil.domains.movers("tiny"), trials.trial_seed(0, 1)
    order = np.random.default_rng(seed).permutation(12).tolist()
    paper, own = stand_in.calls
    for call in (paper, own):
        assert (call["known"], call["seed"], call["episodes"]) == (False, seed, order)
        assert call["labelled"] == [True] * 4 + [False] * 8
    assert (paper["derived"], own["derived"]) == (False, True)
    assert paper["options"] == QUICK.options["btil"]
    assert own["options"] == {**QUICK.options["btil"], "model": task.recommended_model()}
    test = simulated("movers", 16, 0).select(np.arange(12, 16))
    for name, seen in (
        ("test, the paper's model", test),
        ("test, recommended model", task.add_derived_variables(test)),
    ):
        team = StandIn()(task, test, "", known_transition=True, seed=seed, progress=False)
        share = btil.analysis.suboptimal_share(task, test, team.decode(seen))
        assert values[name, "suboptimal"] == pytest.approx(share.over_episodes, rel=1e-12)
        assert values[name, "suboptimal_steps"] == pytest.approx(share.over_steps, rel=1e-12)


def test_a_learned_team_acts_as_often_and_as_long_as_the_protocol_says(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played: list[tuple[Any, ...]] = []

    def play(
        task: GridTask, cast: Any, number: int, seed: int, max_steps: int, **how: str
    ) -> Demonstrations:
        played.append((cast, number, seed, max_steps, how["estimate"]))
        return simulated("movers", 4, len(played))

    monkeypatch.setattr("btil.domains.playing.play", play)
    task, seed = btil.domains.movers("tiny"), 3
    desk = workspace.Workspace(tmp_path, QUICK, 0)
    acting = experiments.Acting("movers", "btil", False, 12, 4, "recommended", estimate="map")
    outcome = acting.run(desk, 2, seed, False)
    (call,) = stand_in.calls
    assert (call["known"], call["seed"], call["derived"]) == (False, seed, True)
    assert call["episodes"] == np.random.default_rng(seed).permutation(12).tolist()
    assert call["labelled"] == [True] * 4 + [False] * 8
    cast, *how = played[0]
    assert how == [QUICK.num_test, seed + 1, QUICK.max_steps, "map"]
    assert list(cast) == list(task.agents)
    assert cast["alice"] is cast["rob"]
    expected = btil.analysis.team_performance(task, simulated("movers", 4, 1))
    metrics = ("steps", "cut", "returns", "suboptimal", "misaligned")
    assert outcome.scores == tuple(
        Score(TEAM, name, getattr(expected, name).value) for name in metrics
    )
    assert (outcome.converged, outcome.reason) == (True, "nothing to do")
    # Who differs only in how it acts, or beside whom, has been learned.
    beside = experiments.Acting("movers", "btil", False, 12, 4, "recommended", beside="rob")
    beside.run(desk, 2, seed, False)
    cast, *how = played[1]
    assert (how[-1], cast["alice"]) == ("mean", played[0][0]["alice"])
    np.testing.assert_array_equal(cast["rob"], task.policies()["rob"])
    assert len(stand_in.calls) == 1
    beside.run(desk, 2, seed + 1, False)
    assert len(stand_in.calls) == 2


def test_demonstrators_act_themselves(tmp_path: Path) -> None:
    task, desk = btil.domains.movers("tiny"), workspace.Workspace(tmp_path, QUICK, 0)
    outcome = experiments.Acting("movers", "demonstrators", True, 4, 4).run(desk, 1, 3, False)
    expected = btil.analysis.team_performance(task, task.simulate(4, seed=4, max_steps=30))
    assert outcome.scores[0] == Score(TEAM, "steps", expected.steps.value)
    assert outcome.converged is None


def test_people_are_decoded_by_what_some_of_their_trials_taught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = workspace.Workspace(tmp_path, QUICK, 0)
    train, test = desk.kitchen("cramped_room")[:2]
    assert (train.num_episodes, test.num_episodes) == (2, 2)
    asked: list[Any] = []

    class Fitted:
        converged, reason, elbo_trace = False, "the cap was reached", np.array([-3.0, -2.0])

        def decode(self, demos: Demonstrations) -> np.ndarray:
            assert demos == test
            guesses = np.zeros_like(demos.latents)
            guesses[::3, 1] = np.maximum(test.latents[::3, 1], 0)
            return guesses

    def fit(model: btil.TeamModel, demos: Demonstrations, **options: Any) -> Fitted:
        asked.append((model, demos, options))
        return Fitted()

    monkeypatch.setattr("btil.posterior.fit.fit", fit)
    outcome = HumanDecoding("cramped_room", 0.5).run(desk, 1, 5, False)
    model, given, options = asked[0]
    assert model == btil.domains.overcooked.recommended_model("cramped_room")
    order = np.random.default_rng(5).permutation(2)
    assert given == train.select(order).without_labels([1])
    expected = {"method": "mfvi", "seed": 5, "progress": False, **QUICK.options["mfvi"]}
    assert options == expected
    wrong = Fitted().decode(test) != test.latents
    # The mean over trials of the share of the labelled steps that are wrong.
    episodes = np.split(np.where(test.latents >= 0, wrong, np.nan), test.episode_starts[1:])
    errors = np.mean([np.nanmean(one, axis=0) for one in episodes], axis=0)
    assert [score.value for score in outcome.scores] == pytest.approx([*errors, np.mean(errors)])
    assert [score.agent for score in outcome.scores] == [*test.agents, TEAM]
    assert (outcome.converged, outcome.reason) == (False, "the cap was reached")
    assert outcome.learning_curve == {
        "elbo": {"length": 2, "steps": [0, 1], "values": [-3.0, -2.0]}
    }
    # At least one trial is labelled.
    HumanDecoding("cramped_room", 0.1).run(desk, 1, 5, False)
    assert (asked[1][1].latents >= 0).any()


def test_performance_is_that_of_the_team_that_was_learned(no_figures: None, tmp_path: Path) -> None:
    methods = ["demonstrators", "random", "btil"]
    made = reproduce("performance", tmp_path, quick=True, methods=methods, progress=False)
    assert set(made.trials["domain"]) == {"movers"}
    values = made.trials.set_index(["setting", "algorithm", "metric"])["value"]
    task, seed = btil.domains.movers("tiny"), trials.trial_seed(0, 1)
    demos = task.simulate(12, seed=seed, max_steps=30)
    order = np.random.default_rng(seed).permutation(12)
    given = demos.select(order).without_labels(np.arange(4, 12))
    # As the quick form does, which learns for five sweeps.
    posterior = btil.fit(
        task.recommended_model(),
        task.add_derived_variables(given),
        max_iterations=5,
        seed=seed,
        progress=False,
    )
    team = {"alice": posterior, "rob": task.policies()["rob"]}
    for setting, name, played in (
        ("", "Demonstrators", task.simulate(4, seed=seed + 1, max_steps=30)),
        (
            "w/o T_x",
            "recommended model, modes",
            btil.domains.play(task, posterior, 4, seed + 1, 30, estimate="map"),
        ),
        (
            "w/o T_x",
            "recommended model, Alice with the true Rob",
            btil.domains.play(task, team, 4, seed + 1, 30),
        ),
    ):
        expected = btil.analysis.team_performance(task, played)
        for metric in ("steps", "cut", "returns", "suboptimal", "misaligned"):
            assert values[setting, name, metric] == getattr(expected, metric).value
    random = values["with T_x", "Random", "cut"]
    assert random > values["", "Demonstrators", "cut"]


def test_guessing_is_right_once_in_as_many_times_as_there_are_intents(tmp_path: Path) -> None:
    desk = workspace.Workspace(tmp_path, QUICK, 0)
    guess = HumanDecoding("cramped_room", None)
    outcome = guess.run(desk, 1, 3, False)
    steps = int((desk.kitchen("cramped_room").test.latents >= 0).sum())
    share = outcome.scores[-1].value
    assert outcome.scores[-1].agent == TEAM
    assert abs(share - 5 / 6) < 5 * math.sqrt(5 / 36 / steps)
    assert guess.run(desk, 1, 3, False) == outcome


# ---------------------------------------------------------------------- saving and resuming


def test_an_interrupted_run_is_taken_up_where_it_was(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"trials": 1, "quick": True, "progress": False}
    whole = reproduce("table1", tmp_path / "whole", **arguments)
    cut = StandIn(interrupt_after=3)
    monkeypatch.setattr("btil.imitation.learn", cut)
    with pytest.raises(KeyboardInterrupt):
        reproduce("table1", tmp_path / "cut", **arguments)
    assert len(list((tmp_path / "cut" / "trials").iterdir())) == 3
    rest = StandIn()
    monkeypatch.setattr("btil.imitation.learn", rest)
    resumed = reproduce("table1", tmp_path / "cut", **arguments)
    assert cut.calls + rest.calls == stand_in.calls
    for name in ("trials", "table"):
        pd.testing.assert_frame_equal(
            getattr(resumed, name).drop(columns="seconds"),
            getattr(whole, name).drop(columns="seconds"),
        )
    again = StandIn()
    monkeypatch.setattr("btil.imitation.learn", again)
    finished = reproduce("table1", tmp_path / "cut", **arguments)
    assert again.calls == []
    pd.testing.assert_frame_equal(finished.trials, resumed.trials)


def test_more_trials_and_other_targets_use_what_is_there(stand_in: StandIn, tmp_path: Path) -> None:
    reproduce("table1", tmp_path, 1, methods=["btil"], quick=True, progress=False)
    assert len(stand_in.calls) == 4
    reproduce("table1", tmp_path, 2, methods=["btil"], quick=True, progress=False)
    assert len(stand_in.calls) == 8
    made = reproduce("figure-supervision", tmp_path, 2, quick=True, progress=False)
    # d = 12, l = 4 is BTIL-Semi.
    assert {sum(call["labelled"]) for call in stand_in.calls[8:]} == {12}
    assert len(stand_in.calls) == 12
    assert len(made.trials) == 2 * 2 * 2 * 2 * 2


def test_data_are_simulated_once(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    simulate = workspace.Workspace.simulate

    def counted(self: workspace.Workspace, *arguments: Any) -> Demonstrations:
        made.append(arguments)
        return simulate(self, *arguments)

    monkeypatch.setattr(workspace.Workspace, "simulate", counted)
    for target in ("tableA1", "table1", "tableA1"):
        reproduce(target, tmp_path, methods=["btil"], quick=True, progress=False)
    assert made == [("movers", 16, 0)]
    kept = read_demonstrations(tmp_path / "data" / "movers.parquet")
    assert kept == simulated("movers", 16, 0)


@pytest.fixture
def folder(stand_in: StandIn, tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """A folder with finished trials, and one of them; nothing is to be run in it."""
    arguments = ("table1", tmp_path, 1, None, ["random"])
    reproduce(*arguments, quick=True, progress=False)
    first = sorted((tmp_path / "trials").iterdir())[0]
    stand_in.calls.clear()
    yield tmp_path, first
    assert stand_in.calls == []


def again(folder: Path, **changes: Any) -> None:
    arguments = {"trials": 1, "methods": ["random"], "quick": True, "progress": False}
    reproduce("table1", folder, **(arguments | changes))


@pytest.mark.parametrize("contents", ["", "{", "[1, 2]", '{"mean": 1}', "\ufffd"])
def test_a_foreign_file_is_refused(folder: tuple[Path, Path], contents: str) -> None:
    path, trial = folder
    trial.write_text(contents, encoding="utf-8")
    with pytest.raises(ValueError, match=re.escape(str(trial))):
        again(path)
    assert trial.read_text(encoding="utf-8") == contents


@pytest.mark.parametrize("part", ["contents", "settings"])
def test_a_damaged_trial_is_refused(folder: tuple[Path, Path], part: str) -> None:
    path, trial = folder
    record = json.loads(trial.read_text(encoding="utf-8"))
    if part == "contents":
        record["contents"]["scores"][0]["value"] += 1e-9
    else:
        record["settings"]["seed"] = 0.5
    trial.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"{re.escape(str(trial))}: damaged: its {part}"):
        again(path)


def test_other_settings_are_refused(
    folder: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = folder
    with pytest.raises(ValueError, match=r"data.movers\.json: made with other settings \(seed"):
        again(path, seed=1)
    with pytest.raises(ValueError, match=r"movers\.json.*map: 'tiny' there, 'paper' asked for"):
        again(path, quick=False)
    other = QUICK._replace(options={"random": {"anything": 2}})
    monkeypatch.setattr("btil.analysis.reproduction.reproducing.QUICK", other)
    with pytest.raises(ValueError, match=r"trial-1\.json.*experiment\.options\.anything"):
        again(path)


def test_a_trial_of_another_version_is_refused(
    folder: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, trial = folder
    monkeypatch.setattr(btil, "__version__", "99.0")
    with pytest.raises(ValueError, match=rf"{re.escape(trial.name)}: made with other.*99\.0"):
        again(path)


def test_data_of_others_are_refused(folder: tuple[Path, Path]) -> None:
    path, _ = folder
    data, record = path / "data" / "movers.parquet", path / "data" / "movers.json"
    kept = data.read_bytes()
    other = simulated("movers", 16, 4)
    btil.write_demonstrations(other, data)
    with pytest.raises(ValueError, match=r"movers\.parquet: not the episodes that movers\.json"):
        again(path)
    data.write_bytes(kept[:100])
    with pytest.raises(ValueError, match=r"movers\.parquet"):
        again(path)
    data.write_bytes(kept)
    record.unlink()
    with pytest.raises(ValueError, match=r"movers\.parquet: movers\.json.* is missing"):
        again(path)


def test_fingerprints_of_data_are_of_sizes_and_values() -> None:
    demos = Demonstrations(
        {"x": [0, 1, 0], "y": [1, 0, 0]}, [[0, 1], [1, 1], [0, 0]], [[0, 1], [1, 0], [0, 0]],
        [0, 0, 1], num_states={"x": 2, "y": 2}, num_actions=2, num_latents=2,
    )  # fmt: skip
    same = workspace.data_fingerprint(demos)
    assert workspace.data_fingerprint(demos.replace(episodes=["a", "a", "b"])) == same
    changed = [
        demos.replace(num_states={"x": 3, "y": 2}),
        demos.replace(num_actions=3),
        demos.replace(num_latents=3),
        demos.replace(states={"x": [0, 1, 0], "y": [1, 1, 0]}),
        demos.replace(actions=[[0, 1], [1, 1], [0, 1]]),
        demos.replace(latents=[[0, 1], [1, 0], [0, 1]]),
        demos.replace(episodes=[0, 1, 1]),
    ]
    others = {workspace.data_fingerprint(one) for one in changed}
    assert len(others - {same}) == len(changed)
    # Of several parts all count, in their order.
    pair = workspace.data_fingerprint(demos, changed[-1])
    assert pair not in (same, workspace.data_fingerprint(changed[-1], demos))


def test_numbers_come_back_exactly(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    contents = {"value": 0.1 + 0.2, "list": [1e-300, None, "Ü"]}
    records.write_record(path, "trial", {"pair": (1, 2)}, contents)
    assert records.read_record(path, "trial", {"pair": (1, 2)}) == contents
    with pytest.raises(ValueError, match="holds a trial, a fit was expected"):
        records.read_record(path, "fit", {"pair": (1, 2)})
    with pytest.raises(ValueError, match=r"pair: \[1, 2\] there, \[1, 3\] asked for"):
        records.read_record(path, "trial", {"pair": (1, 3)})
    with pytest.raises(ValueError, match="JSON compliant"):
        records.write_record(path, "trial", {"pair": (1, 2)}, {"value": math.inf})
    assert records.read_record(path, "trial", {"pair": (1, 2)}) == contents
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_a_trial_tells_how_the_learner_fared(stand_in: StandIn, tmp_path: Path) -> None:
    reproduce("tableA1", tmp_path, methods=["btil"], quick=True, progress=False)
    (path,) = (tmp_path / "trials").iterdir()
    assert path.name == "movers-btil-known-transition-12-episodes-12-labelled-trial-1.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["settings"]["trial_seed"] == trials.trial_seed(0, 1)
    assert len(record["fingerprint"]) == 64
    contents = record["contents"]
    assert contents["converged"] is True
    assert contents["reason"] == "nothing to do"
    assert contents["seconds"] >= 0
    assert contents["learning_curve"] == {
        "elbo": {"length": 3, "steps": [0, 1, 2], "values": [-3.0, -2.0, -1.5]}
    }


def test_long_curves_are_thinned_and_keep_their_ends() -> None:
    curve = np.arange(500.0)
    curve[0] = np.nan
    short = experiments.summarise_curve(curve)
    assert short["length"] == 500
    assert (short["steps"][0], short["steps"][-1]) == (0, 499)
    assert len(short["steps"]) == 12
    assert short["values"] == [None, *map(float, short["steps"][1:])]
    empty = experiments.summarise_curve([])
    assert empty == {"length": 0, "steps": [], "values": []}


# ---------------------------------------------------------------------- tables


def hand_made() -> tuple[list[Row], list[Trial]]:
    """Two rows with known means and spreads: 0.20 ± 0.02 and, of one number, 0.5 ± 0."""
    first = Imitation("movers", "btil", True, 20, 20)
    second = Imitation("movers", "random", False, 20, 20)
    reported = {
        ("alice", HAMMING): Reported(0.22, 0.01),
        ("rob", HAMMING): Reported(0.30, 0.01),
        ("alice", JS): Reported(0.19),
    }
    rows = [
        Row("movers", "with T_x", "BTIL", first, reported),
        Row("movers", "w/o T_x", "Random", second, {("alice", HAMMING): Reported(0.496, 0.0)}),
    ]
    made = []
    for number, shift in ((1, -0.02), (2, 0.0), (3, 0.02)):
        scores = [Score(a, m, 0.2 + shift) for a in ("alice", "rob") for m in (HAMMING, JS)]
        made.append(Trial(first, number, number, Outcome(tuple(scores), True, "ok"), 1.5))
        guess = (Score("alice", HAMMING, 0.5), Score("rob", HAMMING, 0.5))
        made.append(Trial(second, number, number, Outcome(guess), 0.5))
    return rows, made


def test_means_spreads_and_differences() -> None:
    rows, made = hand_made()
    numbers = paper_tables.trials_table(rows, made)
    assert len(numbers) == 3 * 4 + 3 * 2
    table = paper_tables.summarise(rows, numbers).set_index(["algorithm", "agent", "metric"])
    alice = table.loc["BTIL", "alice", HAMMING]
    assert alice["mean"] == pytest.approx(0.2)
    assert alice["sd"] == pytest.approx(0.02)
    assert alice["spread"] == pytest.approx(math.hypot(0.02, 0.01))
    assert alice["difference"] == pytest.approx(-0.02)
    assert (alice["trials"], alice["seconds"], alice["differs"]) == (3, 1.5, "")
    assert table.loc["BTIL", "rob", HAMMING]["differs"] == "lower"
    # No spread in the paper: ours is taken for it.
    assert table.loc["BTIL", "alice", JS]["spread"] == pytest.approx(0.02 * math.sqrt(2))
    # A number that the paper does not have is compared with nothing.
    rob = table.loc["BTIL", "rob", JS]
    assert math.isnan(rob["paper"])
    assert rob["differs"] == ""
    # Within what rounding to two decimals hides.
    assert table.loc["Random", "alice", HAMMING]["differs"] == ""
    rows[1].reported["alice", HAMMING] = Reported(0.494, 0.0)
    changed = paper_tables.summarise(rows, numbers).set_index(["algorithm", "agent", "metric"])
    assert changed.loc["Random", "alice", HAMMING]["differs"] == "higher"
    assert set(paper_tables.summarise(rows, numbers, comparable=False)["differs"]) == {""}


def test_a_single_trial_marks_nothing() -> None:
    rows, made = hand_made()
    table = paper_tables.summarise(rows, paper_tables.trials_table(rows, made[:2]))
    assert set(table["trials"]) == {1}
    assert table["sd"].isna().all()
    assert set(table["differs"]) == {""}


def test_rows_of_the_paper_alone_have_no_numbers_of_ours() -> None:
    rows = target_rows("table2-overcooked", PAPER, ["random0"])
    ours = [row for row in rows if row.experiment is not None]
    made = [
        Trial(row.experiment, 1, 1, Outcome((Score("player_0", HAMMING, 0.1),
              Score("player_1", HAMMING, 0.3), Score(TEAM, HAMMING, 0.2))), 1.0)
        for row in ours
    ]  # fmt: skip
    table = paper_tables.summarise(rows, paper_tables.trials_table(rows, made), comparable=False)
    (sheet,) = paper_tables.sheets(table, TARGETS["table2-overcooked"].layout)
    assert sheet.columns[:4] == ("Random", "100% labelled", "50% labelled", "20% labelled")
    assert [labels[1] for labels, _ in sheet.rows] == ["random0", "Movers", "Cleanup"]
    assert [cell.ours for cell in sheet.rows[0][1]] == ["0.200"] * 4 + ["1.0"]
    assert [cell.paper for cell in sheet.rows[1][1][:2]] == ["0.72 ± 0.00", "0.14 ± 0.02"]
    assert {cell.ours for cell in sheet.rows[1][1]} == {""}


def test_renderings_show_both_numbers_and_the_mark() -> None:
    rows, made = hand_made()
    table = paper_tables.summarise(rows, paper_tables.trials_table(rows, made))
    (sheet,) = paper_tables.sheets(table, TARGETS["table1"].layout)
    assert sheet.title == "Movers"
    assert sheet.columns == (
        *("Alice Hamming", "Alice JS div.", "Rob Hamming", "Rob JS div."),
        "seconds",
    )
    markdown = paper_tables.markdown_table(sheet)
    assert "0.200 ± 0.020 (0.30 ± 0.01) ↓ |" in markdown
    assert len({line.count("|") for line in markdown.splitlines() if "|" in line}) == 1
    page = paper_tables.html_sheet(sheet)
    assert '<td class="number warn">0.200 ± 0.020 ↓<small>paper 0.30 ± 0.01</small>' in page
    from rich.console import Console

    console = Console(width=120)
    with console.capture() as captured:
        console.print(paper_tables.terminal_table(sheet))
    text = captured.get()
    assert "0.200 ± 0.020 ↓" in text
    assert "(0.30 ± 0.01)" in text


def test_sheets_have_decimals_by_metric_and_mean_seconds_of_a_row() -> None:
    lines = [
        ("movers", "a", "x", "alice", "hamming", 0.12345, 0.01, 0.2, 0.05, "lower", 3.0),
        ("movers", "a", "x", "team", "steps", 21.26, 1.04, math.nan, math.nan, "", 4.0),
        ("movers", "a", "y", "team", "steps", 9.0, math.nan, math.nan, math.nan, "", math.nan),
        ("cleanup", "b", "x", "team", "returns", -5.55, 0.05, 7.0, math.nan, "higher", 1.5),
    ]
    table = pd.DataFrame(
        lines,
        columns=["domain", "setting", "algorithm", "agent", "metric", "mean", "sd", "paper",
                 "paper_sd", "differs", "seconds"],
    )  # fmt: skip
    layout = TARGETS["table1"].layout
    first, second = paper_tables.sheets(table, layout)
    assert (first.title, second.title) == ("Movers", "Cleanup")
    assert first.columns == ("Alice Hamming", "team steps per episode", "seconds")
    Cell = paper_tables.Cell
    assert first.rows == [
        (("a", "x"), [Cell("0.123 ± 0.010", "0.20 ± 0.05", "lower"), Cell("21.3 ± 1.0"),
                      Cell("3.5")]),
        (("a", "y"), [Cell(), Cell("9.0"), Cell("")]),
    ]  # fmt: skip
    assert second.rows == [(("b", "x"), [Cell("-5.5 ± 0.1", "7.00", "higher"), Cell("1.5")])]
    (only,) = paper_tables.sheets(table, layout._replace(agents=("alice",)))
    assert only.columns == ("Alice Hamming", "seconds")
    (one,) = paper_tables.sheets(table, layout._replace(tables=None))
    assert (one.title, len(one.rows)) == ("", 3)
    # A group is named once, and set off from the one before.
    three = one._replace(rows=[*first.rows, *second.rows])
    assert [(labels, begins) for labels, _, begins in paper_tables._grouped(three)] == [
        (("a", "x"), False), (("", "y"), False), (("b", "x"), True)
    ]  # fmt: skip
    alone = one._replace(labels=("algorithm",), rows=[(("x",), []), (("x",), [])])
    assert [labels for labels, _, _ in paper_tables._grouped(alone)] == [("x",), ("x",)]


def test_notes_tell_what_was_compared_and_how() -> None:
    _, made = hand_made()
    stuck = made[0]._replace(outcome=made[0].outcome._replace(converged=False, reason="the cap"))
    target = TARGETS["table1"]

    def told(*arguments: Any) -> list[str]:
        return reproducing._notes(target, PAPER, [stuck, *made[1:]], *arguments)

    whole = told(5, 3, False, "btil reproduce table1")
    assert whole[0] == (
        "Ours: mean ± standard deviation of 5 trials. In parentheses the paper's: Table 1."
    )
    assert whole[1].startswith("Per domain 200 training and 100 test episodes on the map 'paper'")
    assert whole[2].startswith("↑ and ↓: higher or lower than the paper's")
    # Three trials of 1.5 s and three of 0.5 s; only what infers can fail to converge.
    assert whole[3:] == [
        f"Not converged: {stuck.experiment.name}, trial 1 (the cap).",
        f"Made by btil {btil.__version__}, seed 3: btil reproduce table1; 6 s of trials in all.",
    ]
    single = told(1, 3, False, None)
    assert single[0].startswith("Ours: a single trial.")
    assert not any("↑" in note for note in single)
    assert single[-1].endswith("seed 3; 6 s of trials in all.")
    quick = told(5, 3, True, None)
    assert quick[0].startswith("The quick form")
    assert not any(note.startswith(("↑", "Not converged")) for note in quick)
    target = TARGETS["performance"]
    assert told(5, 3, False, None)[0] == "Ours: mean ± standard deviation of 5 trials."
    assert "↑" not in "".join(told(5, 3, False, None))


def test_renderings_escape_names() -> None:
    cell = paper_tables.Cell("<i>0</i>", "<u>1</u>")
    rows = [(("x|<y>",), [cell])]
    sheet = paper_tables.Sheet("<b>", ("a|b",), ("<script>",), rows)
    page = paper_tables.html_sheet(sheet)
    for tag in ("<b>", "<script>", "<y>", "<i>", "<u>"):
        assert tag not in page
    assert "| x\\|\\<y\\> |" in paper_tables.markdown_table(sheet)


def test_figures_show_ours_and_the_papers() -> None:
    rows, made = hand_made()
    numbers = paper_tables.trials_table(rows, made)
    table = paper_tables.summarise(rows, numbers)
    figure = plot_numbers(table, TARGETS["table1"].layout)
    hamming, js = figure.axes
    assert (hamming.get_title(loc="left"), hamming.get_xlabel()) == ("Movers", "Hamming")
    assert js.get_xlabel() == "JS div."
    points = {
        (round(float(x), 3), line.get_marker())
        for line in hamming.lines
        for x in line.get_xdata()
        if line.get_marker() in "osD"
    }
    assert points == {(0.2, "o"), (0.2, "s"), (0.5, "o"), (0.5, "s"), (0.22, "D"), (0.3, "D"),
                      (0.496, "D")}  # fmt: skip
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["Alice", "Rob", "± standard deviation over trials", "the paper"]
    # A line for each row, in it a height for each agent; bars are standard deviations.
    rows_named = [text.get_text() for text in hamming.get_yticklabels()]
    assert rows_named == ["with T_x, BTIL", "w/o T_x, Random"]
    heights = {
        (line.get_marker(), line.get_color(), round(float(line.get_xdata()[0]), 3)): float(
            line.get_ydata()[0]
        )
        for line in hamming.lines
        if line.get_marker() in "osD"
    }
    assert heights == pytest.approx(
        {
            ("o", BLUE, 0.2): -0.15, ("s", VERMILION, 0.2): 0.15, ("o", BLUE, 0.5): 0.85,
            ("s", VERMILION, 0.5): 1.15, ("D", BLUE, 0.22): -0.15, ("D", VERMILION, 0.3): 0.15,
            ("D", BLUE, 0.496): 0.85,
        }
    )  # fmt: skip
    bars = {
        tuple(np.round(segment[:, 0], 3))
        for collection in hamming.collections
        for segment in collection.get_segments()
    }
    assert bars == {(0.18, 0.22), (0.5, 0.5), (0.21, 0.23), (0.29, 0.31), (0.496, 0.496)}
    assert hamming.get_ylim() == (1.5, -0.5)
    assert hamming.get_xlim()[0] == 0
    # Of some agents alone; without numbers of the paper nothing is said of it.
    ours = table.assign(paper=np.nan, paper_sd=np.nan)
    alone = plot_numbers(ours, TARGETS["table1"].layout._replace(agents=("rob",)))
    labels = [text.get_text() for text in alone.legends[0].get_texts()]
    assert labels == ["Rob", "± standard deviation over trials"]


def test_the_supervision_figure_averages_agents_then_trials() -> None:
    rows = target_rows("figure-supervision", PAPER, ["movers"])
    made = [
        Trial(row.experiment, number, number, Outcome(tuple(
            Score(agent, metric, side * number / row.experiment.num_labelled)
            for agent, side in (("alice", 0.5), ("rob", 1.5)) for metric in (HAMMING, JS)
        ), True), 1.0)
        for row in rows
        for number in (1, 2)
    ]  # fmt: skip
    numbers = paper_tables.trials_table(rows, made)
    figure = plot_supervision(numbers, paper_tables.summarise(rows, numbers))
    axes = figure.axes[0]
    assert axes.get_ylabel() == "JS divergence of the policies"
    assert axes.get_xscale() == "log"
    line = next(one for one in axes.lines if one.get_marker() == "v")  # d = 200
    np.testing.assert_allclose(np.asarray(line.get_xdata(), float), [20, 40, 100, 200])
    np.testing.assert_allclose(
        np.asarray(line.get_ydata(), float), 1.5 / np.array([20, 40, 100, 200])
    )
    diamonds = [one for one in axes.lines if one.get_marker() == "D"]
    found = sorted((float(d.get_xdata()[0]), float(d.get_ydata()[0])) for d in diamonds)
    np.testing.assert_allclose(found, [(20, 0.05), (20, 0.07), (200, 0.03)])
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == ["d = 20", "d = 50", "d = 100", "d = 200", "all labelled", "the paper"]


# ---------------------------------------------------------------------- outputs and refusals


def test_fits_that_did_not_converge_are_told(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stuck(*arguments: Any, **options: Any) -> SimpleNamespace:
        team = stand_in(*arguments, **options)
        team.converged, team.reason = False, "the cap was reached"
        return team

    monkeypatch.setattr("btil.imitation.learn", stuck)
    small = QUICK._replace(domains=("movers",))
    monkeypatch.setattr("btil.analysis.reproduction.reproducing.PAPER", small)
    made = reproduce("tableA1", tmp_path, 2, methods=["btil"], progress=False)
    (told,) = [note for note in made.notes if note.startswith("Not converged")]
    assert "12-episodes-12-labelled, trial 1, 2 (the cap was reached)" in told
    assert any(note.startswith("↑ and ↓") for note in made.notes)
    assert made.table["differs"].isin(["higher", "lower"]).any()
    page = (tmp_path / "tableA1.html").read_text(encoding="utf-8")
    assert "the cap was reached" in page


def test_progress_goes_to_standard_error(stand_in: StandIn, tmp_path: Path) -> None:
    arguments = ("reproduce", "tableA1", "--methods", "btil", "--quick", "--out", tmp_path)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert "trials" in result.stderr
    assert "movers-btil-known-transition-12-episodes-12-labelled, trial 1" in result.stderr
    assert "trials:" not in result.stdout
    for ending in FILES:
        assert f"saved {tmp_path / 'tableA1'}{ending}" in result.stdout
    # Nothing is left to be run, and nothing is shown of it.
    assert run(*arguments).stderr == ""


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["table9"], f"there are {', '.join(TARGETS)}"),
        (["table1", "--domain", "cramped_room"], "it has movers, cleanup"),
        (["tableA1", "--methods", "random"], "it has behavioral-cloning, magail, btil"),
        (["table2-overcooked", "--methods", "btil"], "it has random, mfvi"),
        (["table1", "--trials", "0"], "trials must be a whole number of at least 1, got 0"),
        (["table1", "--seed", "-1"], "seed must be a non-negative integer, got -1"),
        (["table1", "--methods", ","], "--methods"),
    ],
)
def test_wrong_arguments_are_one_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert_refused(run("reproduce", *arguments, "--quick", "--out", out), says)
    assert not out.exists()


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert_refused(run("reproduce", "table1", "--out", tmp_path / "file"), "not a folder")


def test_a_damaged_trial_is_one_line(folder: tuple[Path, Path]) -> None:
    path, trial = folder
    trial.write_text("{}", encoding="utf-8")
    arguments = ("table1", "--quick", "--methods", "random", "--out", path)
    assert_refused(run("reproduce", *arguments), str(trial))


# ---------------------------------------------------------------------- btil simulate


def test_simulate_saves_what_the_task_simulates(tmp_path: Path) -> None:
    out = tmp_path / "demos.parquet"
    options = ("--map", "tiny", "--num-episodes", 5, "--seed", 3, "--max-steps", 12)
    result = run("simulate", "cleanup", *options, "--out", out)
    assert result.exit_code == 0, result.output
    expected = btil.domains.cleanup("tiny").simulate(5, seed=3, max_steps=12)
    assert read_demonstrations(out) == expected
    assert "labelled" in result.stdout
    assert f"saved {out}" in result.stdout
    assert "at cross purposes" in result.stdout


def test_simulate_on_a_drawing_of_ones_own(tmp_path: Path) -> None:
    drawing, out = tmp_path / "my map.txt", tmp_path / "demos.csv"
    drawing.write_text("A 0 .\nR # G\n", encoding="utf-8")
    result = run("simulate", "movers", "--map", drawing, "--num-episodes", 2, "--out", out)
    assert result.exit_code == 0, result.output
    assert read_demonstrations(out).num_states["alice_cell"] == 5


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["chess"], "there are movers, cleanup"),
        (["movers", "--map", "maze"], "paper, lesson, tiny"),
        (["movers", "--map", "tiny", "--num-episodes", "0"], "num_episodes"),
        (["movers", "--map", "tiny", "--max-steps", "-1"], "max_steps"),
    ],
)
def test_simulate_refuses_in_one_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    result = run("simulate", *arguments, "--quiet", "--out", tmp_path / "demos.csv")
    assert_refused(result, says)
    assert_refused(run("simulate", "movers", "--out", tmp_path / "demos.txt"), ".parquet")
    assert list(tmp_path.iterdir()) == []


def test_different_experiments_have_files_of_their_own() -> None:
    """Of every target: what was saved of one is never read as another's."""
    every = {
        row.experiment
        for protocol in (PAPER, QUICK)
        for target in TARGETS
        for row in target_rows(target, protocol)
        if row.experiment is not None
    }
    names = [one.name for one in every]
    assert len(names) > 100
    assert len(set(names)) == len(names)
    acting = experiments.Acting("movers", "btil", False, 9, 4, "recommended", "map", "rob")
    assert acting.name == (
        "movers-btil-acting-learned-transition-9-episodes-4-labelled-recommended-map-beside-rob"
    )
    assert experiments.DecodedMinds("movers", None, 9, 4).name == (
        "movers-minds-labels-9-episodes-4-labelled"
    )


def test_trials_depend_on_all_that_their_settings_say(tmp_path: Path, stand_in: StandIn) -> None:
    desk = workspace.Workspace(tmp_path, QUICK, 0)
    found = experiments.Acting("movers", "btil", False, 9, 4, beside="rob").settings(desk)
    assert found == {
        "kind": "Acting", "domain": "movers", "learner": "btil", "known_transition": False,
        "num_demos": 9, "num_labelled": 4, "model": "paper", "estimate": "mean", "beside": "rob",
        "map": "tiny", "num_train": 12, "num_test": 4, "options": QUICK.options["btil"],
        "max_steps": 30,
    }  # fmt: skip
    data = {"data": desk.split("movers").fingerprint}
    learned = {"known_transition": True, "num_demos": 9, "num_labelled": 4, "model": "paper"}
    assert Imitation("movers", "magail", True, 9, 4).settings(desk) == {
        "kind": "Imitation", "domain": "movers", "learner": "magail", **learned,
        "map": "tiny", "num_train": 12, "num_test": 4, "options": QUICK.options["magail"], **data,
    }  # fmt: skip
    assert Simulation("movers").settings(desk) == {
        "kind": "Simulation", "domain": "movers", "map": "tiny", "episodes": 12, "max_steps": 30,
        **data,
    }  # fmt: skip
    assert experiments.DecodedMinds("movers", "paper", 9, 4).settings(desk) == {
        "kind": "DecodedMinds", "domain": "movers", "model": "paper", "num_demos": 9,
        "num_labelled": 4, "map": "tiny", "options": QUICK.options["btil"], **data,
    }  # fmt: skip
    assert desk.split("movers").fingerprint == workspace.data_fingerprint(
        simulated("movers", 16, 0)
    )
    assert trials.trial_settings(Simulation("movers"), 3, desk) == {
        "btil": btil.__version__, "experiment": Simulation("movers").settings(desk), "seed": 0,
        "trial": 3, "trial_seed": trials.trial_seed(0, 3),
    }  # fmt: skip


def test_simulation_experiments_are_named_by_what_they_do() -> None:
    assert Simulation("movers").name == "movers-simulation"
    assert HumanDecoding("random0", 0.2).name == "overcooked-random0-20-percent-labelled"
    assert targets.target_named("table1") is TARGETS["table1"]


# ---------------------------------------------------------------------- what is somebody else's


def test_data_records_of_others_are_refused_before_anything_is_run(
    tmp_path: Path, stand_in: StandIn
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "movers.json").write_text('{"mine": 1}')
    with pytest.raises(ValueError, match=r"movers\.json: not written by btil reproduce"):
        reproduce("table1", tmp_path, quick=True, progress=False, methods=["random"])
    assert (tmp_path / "data" / "movers.json").read_text() == '{"mine": 1}'
    assert stand_in.calls == []


@pytest.mark.parametrize("name", ["trials", "table1.md"])
def test_places_that_cannot_be_written_are_told_before_anything_is_run(
    name: str, tmp_path: Path, stand_in: StandIn
) -> None:
    if name == "trials":
        (tmp_path / name).touch()
    else:
        (tmp_path / name).mkdir()
    with pytest.raises(OSError, match=re.escape(name)):
        reproduce("table1", tmp_path, quick=True, progress=False, methods=["random"])
    assert stand_in.calls == []


@pytest.mark.parametrize("damage", ["NaN", "1e400", "[" * 100_000])
def test_numbers_and_nesting_that_are_never_written_are_damage(
    damage: str, tmp_path: Path, stand_in: StandIn
) -> None:
    arguments: dict[str, Any] = {"quick": True, "progress": False, "methods": ["random"]}
    reproduce("table1", tmp_path, **arguments)
    trial = next((tmp_path / "trials").iterdir())
    text = trial.read_text()
    assert '"seconds": ' in text
    trial.write_text(re.sub(r'"seconds": [^,\n]*', f'"seconds": {damage}', text))
    with pytest.raises(ValueError, match=re.escape(f"{trial.name}: damaged")):
        reproduce("table1", tmp_path, **arguments)


def test_a_file_in_the_way_does_not_hide_a_map_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").write_text("A 0 .\nR # G\n")
    for text, cells in (("tiny", 6), ("./tiny", 5)):
        arguments = ("movers", "--map", text, "--num-episodes", "1", "--out", "demos.npz")
        assert run("simulate", *arguments).exit_code == 0
        assert btil.read_demonstrations("demos.npz").num_states["alice_cell"] == cells
    (tmp_path / "picture").write_bytes(b"\xff\xfe\x00")
    result = run("simulate", "movers", "--map", "picture", "--out", "demos.npz")
    assert result.exit_code != 0
    assert "picture: not a text file" in result.stderr
