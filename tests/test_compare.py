"""Comparisons: every number against its own calculation, names, notes, what is refused."""

import dataclasses
import itertools
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import btil
import btil.messages.layout as layout_module
from btil.analysis import compare
from btil.analysis.compare import compare_posteriors, compare_rows
from btil.analysis.efficiency import latent_ess
from btil.analysis.evidence import Evidence
from btil.analysis.known_truth import coverage_table
from btil.analysis.modes import Mode
from btil.analysis.reference import Convergence
from btil.inference.result import DirichletRows, DrawnRows, FitResult
from btil.models.draws import prior_tables
from btil.models.hierarchical import HierarchicalDirichletCPT
from btil.models.team import bind
from btil.posterior.posterior import TeamPosterior

AGENTS = ("ann", "bob")
MODEL = btil.TeamModel(
    policy=btil.DirichletCPT(1.0, parents=("place",)),
    transition=btil.DirichletCPT(1.0),
    initial=btil.DirichletCPT(1.0),
)


def demonstrations(
    num_episodes: int, num_labelled: int, seed: int, num_places: int = 3
) -> btil.Demonstrations:
    generator = np.random.default_rng(seed)
    num_steps = 5 * num_episodes
    latents = generator.integers(2, size=(num_steps, 2))
    actions = np.where(generator.random((num_steps, 2)) < 0.85, latents, 1 - latents)
    latents[5 * num_labelled :] = -1
    return btil.Demonstrations(
        {"place": generator.integers(num_places, size=num_steps)},
        actions,
        latents=latents,
        episodes=np.repeat(np.arange(num_episodes), 5),
        agents=AGENTS,
        num_states={"place": 3},
        num_actions=2,
        num_latents=2,
    )


def posterior(
    demos: btil.Demonstrations, seed: int, model: btil.TeamModel = MODEL, num_chains: int = 0
) -> TeamPosterior:
    """A posterior that no method has fitted: random rows, which is all that is compared."""
    generator = np.random.default_rng(seed)
    bound = bind(model, demos)
    rows: dict[str, Any] = {}
    for name, table in bound.learned.items():
        concentration = generator.gamma(2.0, size=table.shape) + 0.1
        rows[name] = DirichletRows(concentration)
        if num_chains:
            draws = rows[name].sample(8 * num_chains, generator)
            rows[name] = DrawnRows(draws.reshape(num_chains, 8, *table.shape))
    result = FitResult(rows, True, "made up")
    if num_chains:
        log_likelihood = generator.normal(-10, 1, (num_chains, 8, demos.num_episodes))
        result = with_log_likelihood(result, log_likelihood)
    method = "gibbs" if num_chains else "mfvi"
    return TeamPosterior(bound, method, result, seed=0, dtype=np.dtype(float), wall_time=2.0)


def counted_calls(patch: pytest.MonkeyPatch, *functions: Callable[..., Any]) -> Counter[str]:
    """Counts calls of functions from anywhere in btil, by their names."""
    calls: Counter[str] = Counter()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls[function.__name__] += 1
            return function(*args, **options)

        return call

    modules = [module for name, module in sys.modules.items() if name.startswith("btil.")]
    for function in functions:
        for module in modules:
            if getattr(module, function.__name__, None) is function:
                patch.setattr(module, function.__name__, counted(function))
    return calls


def with_log_likelihood(result: FitResult, log_likelihood: Any) -> FitResult:
    """As a method with chains leaves it."""
    stats = {"log_likelihood_total": log_likelihood.sum(-1)}
    return result._replace(log_likelihood=log_likelihood, sample_stats=stats)


def swapped(one: TeamPosterior) -> TeamPosterior:
    """Both agents' two latents under each other's name."""
    rows = {}
    for name, given in one.result.rows.items():
        values = given.concentration
        if not name.startswith("policy"):
            values = values[..., ::-1]
        if not name.startswith("initial"):
            values = values[..., ::-1, :]
        rows[name] = DirichletRows(values.copy())
    return dataclasses.replace(one, result=one.result._replace(rows=rows))


TRUTH = prior_tables(MODEL, demonstrations(1, 1, 0), np.random.default_rng(8))


@pytest.fixture(scope="module")
def train() -> btil.Demonstrations:
    return demonstrations(3, num_labelled=2, seed=1)


@pytest.fixture(scope="module")
def test_data() -> btil.Demonstrations:
    return demonstrations(2, num_labelled=2, seed=2)


@pytest.fixture(scope="module")
def counted_comparison(
    train: btil.Demonstrations, test_data: btil.Demonstrations
) -> tuple[Any, Counter[str]]:
    """A comparison, and how often a model was bound and laid out for it."""
    with pytest.MonkeyPatch.context() as patch:
        calls = counted_calls(patch, bind, layout_module.pack_lanes)
        found = btil.compare(
            MODEL,
            train,
            ("mfvi", "exact", "gibbs"),
            test_data,
            seed=3,
            progress=False,
            options={"gibbs": {"num_chains": 2, "num_warmup": 20, "num_samples": 30}},
            truth=TRUTH,
            evidence=True,
            accuracy=0.05,
            num_draws=100,
        )
    return found, calls


@pytest.fixture(scope="module")
def comparison(counted_comparison: tuple[Any, Counter[str]]) -> Any:
    return counted_comparison[0]


def test_model_and_data_are_bound_once(counted_comparison: tuple[Any, Counter[str]]) -> None:
    # To what was learned from, its episode without labels, and the test data.
    assert counted_comparison[1]["bind"] == 3
    # What was learned from once for fits and once for questions, the others once.
    assert counted_comparison[1]["pack_lanes"] == 4


def test_numbers_of_the_table_are_those_of_the_posteriors(
    comparison: Any, test_data: btil.Demonstrations
) -> None:
    assert list(comparison.table.index) == ["mfvi", "exact", "gibbs"]
    assert comparison.reference == "exact"
    unlabelled = test_data.without_labels()
    for name, fitted in comparison.posteriors.items():
        row = comparison.table.loc[name]
        assert fitted.method == name
        assert fitted.seed == 3
        assert row["seconds"] == fitted.wall_time
        assert row["converged"] == fitted.converged
        assert row["reason"] == fitted.reason
        assert row["episodes"] == 3
        expected = fitted.log_likelihood(unlabelled).sum() / test_data.num_steps
        assert row["log_likelihood_per_step"] == pytest.approx(expected, rel=1e-12)
        decoded = fitted.decode(test_data)
        filtered = fitted.filter(test_data)
        for i, agent in enumerate(AGENTS):
            truth = test_data.latents[:, i].reshape(2, 5)
            wrong = (decoded[:, i].reshape(2, 5) != truth).mean(1).mean()
            assert row[f"viterbi_error_{agent}"] == pytest.approx(wrong)
            online = filtered[agent].argmax(1).reshape(2, 5)
            assert row[f"filtering_error_{agent}"] == pytest.approx((online != truth).mean())
    assert comparison.table.loc["mfvi", "elbo"] == comparison.posteriors["mfvi"].elbo
    assert np.isnan(comparison.table.loc["gibbs", "elbo"])
    assert comparison.table.loc["mfvi", "elbo"] < comparison.table.loc["exact", "elbo"]


def test_differences_are_pooled_over_cells(comparison: Any, train: btil.Demonstrations) -> None:
    exact = comparison.posteriors["exact"].result.rows
    for name, fitted in comparison.posteriors.items():
        rows = fitted.result.rows
        differences = [np.abs(rows[s].mean() - exact[s].mean()).ravel() for s in exact]
        ratios = [(rows[s].sd() / exact[s].sd()).ravel() for s in exact]
        row = comparison.table.loc[name]
        assert row["mean_difference"] == pytest.approx(np.concatenate(differences).mean())
        assert row["sd_ratio"] == pytest.approx(np.median(np.concatenate(ratios)))
        assert row["shared_rows"] == sum(np.prod(exact[s].mean().shape[:-1]) for s in exact)
    # Rows in use: read at least once by the exact posterior's beliefs of latents.
    beliefs = comparison.posteriors["exact"].smooth(train, use_labels=True)
    mfvi = comparison.posteriors["mfvi"].result.rows
    differences, ratios = [], []
    for agent in AGENTS:
        contexts = comparison.posteriors["exact"].contexts(agent, "policy")["place"]
        last = np.arange(15) % 5 == 4
        in_use = {
            f"policy_{agent}": np.array(
                [beliefs[agent][train.state_variables["place"] == p].sum(0) for p in contexts]
            ),
            f"transition_{agent}": beliefs[agent][~last].sum(0)[None],
            f"initial_{agent}": np.array([3.0]),
        }
        for site, reads in in_use.items():
            used = reads >= 1
            differences.append(np.abs(mfvi[site].mean() - exact[site].mean())[used].ravel())
            ratios.append((mfvi[site].sd() / exact[site].sd())[used].ravel())
    row = comparison.table.loc["mfvi"]
    expected = np.concatenate(differences).mean()
    assert row["mean_difference_in_use"] == pytest.approx(expected)
    expected = np.median(np.concatenate(ratios))
    assert row["sd_ratio_in_use"] == pytest.approx(expected)
    assert len(np.concatenate(ratios)) < sum(exact[s].mean().size for s in exact)
    assert comparison.table.loc["exact", "mean_difference"] == 0
    assert 0 < comparison.table.loc["gibbs", "mean_difference"] < 0.1


def test_chains_are_told_one_by_one(comparison: Any, test_data: btil.Demonstrations) -> None:
    gibbs = comparison.posteriors["gibbs"]
    info = gibbs.draws_info
    row = comparison.table.loc["gibbs"]
    assert row["max_rhat"] == info["max_rhat"].max()
    assert row["rows_above"] == info["rows_above"].sum()
    assert row["min_ess_per_second"] == pytest.approx(info["min_ess_bulk"].min() / gibbs.wall_time)
    size = latent_ess(gibbs)
    assert size is not None
    assert row["min_ess_per_second_latents"] == pytest.approx(size / gibbs.wall_time)
    assert row["rows"] == info["rows"].sum()
    assert list(comparison.chains.index) == [("gibbs", 0), ("gibbs", 1)]
    total = gibbs.result.log_likelihood.sum(2)
    rows = {n: DrawnRows(r.draws[1:]) for n, r in gibbs.result.rows.items()}
    alone = dataclasses.replace(gibbs, result=gibbs.result._replace(rows=rows))
    errors = btil.analysis.hamming_distance(test_data, alone)
    second = comparison.chains.loc[("gibbs", 1)]
    assert second["mean_log_likelihood"] == pytest.approx(total[1].mean(), rel=1e-6)
    assert second["viterbi_error_bob"] == errors[1]
    disagree = [note for note in comparison.notes if "the chains disagree" in note]
    assert len(disagree) == (row["rows_above"] > 0)


def by_draw(fitted: TeamPosterior, demos: btil.Demonstrations) -> dict[str, Any]:
    """Smoothed beliefs averaged over every draw of a posterior's chains, one after the other."""
    beliefs: dict[str, Any] = {}
    chains, draws = next(iter(fitted.result.rows.values())).draws.shape[:2]
    for at in itertools.product(range(chains), range(draws)):
        rows = {n: DrawnRows(r.draws[at][None, None]) for n, r in fitted.result.rows.items()}
        alone = dataclasses.replace(fitted, result=fitted.result._replace(rows=rows))
        for agent, own in alone.smooth(demos).items():
            beliefs[agent] = beliefs.get(agent, 0.0) + own / (chains * draws)
    return beliefs


def test_decoded_latents_are_scored(comparison: Any, test_data: btil.Demonstrations) -> None:
    unlabelled = test_data.without_labels()
    for name, fitted in comparison.posteriors.items():
        beliefs = {"smoothed": fitted.smooth(unlabelled), "filtered": fitted.filter(unlabelled)}
        if name == "gibbs":
            beliefs["smoothed, averaged"] = by_draw(fitted, unlabelled)
        for i, agent in enumerate(AGENTS):
            for kind, own in beliefs.items():
                found = comparison.decoded.loc[(name, agent, kind)]
                truth = test_data.latents[:, i]
                given = np.log(own[agent].astype(float)[np.arange(10), truth])
                assert found["steps"] == 10
                assert found["log_score"] == pytest.approx(given.mean())
                right = (own[agent].argmax(1) == truth).mean()
                assert found["right"] == pytest.approx(right)
                excess = own[agent].max(1).mean(dtype=float) - right
                assert found["surer_than_right"] == pytest.approx(excess)
            shown = comparison.table.loc[name]
            averaged = comparison.decoded.loc[(name, agent, "smoothed, averaged")]
            assert averaged["draws"] == (60 if name == "gibbs" else 100)
            assert shown[f"log_score_{agent}"] == averaged["log_score"]
            assert shown[f"log_score_se_{agent}"] == averaged["log_score_se"]
            assert averaged["log_score_se"] > averaged["log_score_monte_carlo"] > 0
            # Means of Dirichlet rows are known, those of chains are not.
            exactly = np.isnan(
                comparison.decoded.loc[(name, agent, "filtered"), "brier_monte_carlo"]
            )
            assert exactly == (name != "gibbs")
            assert comparison.reliabilities[agent][name].steps.sum() == 10


def test_differences_tell_what_may_be_chance(comparison: Any) -> None:
    """Both from the draws: the mean absolute error of means, and the spread of a median."""
    gibbs = comparison.posteriors["gibbs"].result.rows
    exact = comparison.posteriors["exact"].result.rows
    errors, ratios = [], []
    for site, rows in gibbs.items():
        draws = rows.draws.reshape(2, 30, -1).astype(float)
        blocks = np.concatenate([np.split(chain, 10) for chain in draws])  # three draws each
        means = blocks.mean(1)
        errors.append(means.std(0, ddof=1) / np.sqrt(20))
        without = [np.delete(blocks, k, 0).reshape(57, -1).std(0) for k in range(20)]
        ratios.append(np.array(without) / exact[site].sd().ravel())
    row = comparison.table.loc["gibbs"]
    expected = np.sqrt(2 / np.pi) * np.concatenate(errors).mean()
    assert row["mean_difference_se"] == pytest.approx(expected)
    medians = np.median(np.concatenate(ratios, axis=1), axis=1)
    assert row["sd_ratio_se"] == pytest.approx(np.sqrt(19 * medians.var()))
    assert np.isnan(comparison.table.loc["mfvi", "mean_difference_se"])
    told = comparison.written(quantity(comparison, "sd_ratio"), "gibbs")
    assert told == f"{row['sd_ratio']:.2f} ± {row['sd_ratio_se']:.2f}"


def test_bounds_are_set_against_the_evidence(comparison: Any) -> None:
    evidence = comparison.evidence
    assert evidence.method == "exact"
    table = comparison.table
    assert table.loc["exact", "evidence_gap"] == 0
    gap = table.loc["exact", "elbo"] - table.loc["mfvi", "elbo"]
    assert table.loc["mfvi", "evidence_gap"] == pytest.approx(gap)
    assert gap > 0
    assert np.isnan(table.loc["gibbs", "evidence_gap"])
    assert any(note.startswith("Log evidence -") for note in comparison.notes)


def test_evidence_is_estimated_from_the_mean_field(
    train: btil.Demonstrations, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def estimate(bound: Any, method: str, seed: int, progress: bool, **options: Any) -> Evidence:
        asked.append((method, options["posterior"].method, seed))
        return Evidence(-9.0, 0.3, method, False, None, ("Runs differ.",))

    monkeypatch.setattr("btil.analysis.compare.estimate_bound", estimate)
    one = posterior(train, 5)
    bounded = dataclasses.replace(one, result=one.result._replace(elbo=-10.0))
    chains = posterior(train, 5, num_chains=2)
    found = compare_posteriors({"chains": chains, "bounded": bounded}, evidence=True, seed=4)
    assert asked == [("smc", "mfvi", 4)]
    assert found.written(quantity(found, "evidence_gap"), "bounded") == "1.00 ± 0.30"
    told = [note for note in found.notes if note.startswith("Log evidence")]
    assert told == ["Log evidence -9.00 ± 0.30, by smc. It is not to be relied on: Runs differ."]


def test_a_bound_of_other_data_is_not_set_against_the_evidence(train: btil.Demonstrations) -> None:
    def bounded(demos: btil.Demonstrations) -> TeamPosterior:
        one = posterior(demos, 5)
        return dataclasses.replace(one, result=one.result._replace(elbo=-10.0))

    others = demonstrations(3, num_labelled=2, seed=4)
    compared = {"chains": posterior(train, 5, num_chains=2), "own": bounded(train)}
    found = compare_posteriors(
        {**compared, "other": bounded(others)}, evidence=Evidence(-9.0, 0.3, "smc", True, None, ())
    )
    gaps = found.table["evidence_gap"]
    assert gaps["own"] == 1
    assert np.isnan(gaps["other"])


def test_the_evidence_is_that_of_the_same_data(
    train: btil.Demonstrations, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def estimate(bound: Any, method: str, seed: int, progress: bool, **options: Any) -> Evidence:
        asked.append(options)
        return Evidence(-9.0, 0.3, method, True, None, ())

    monkeypatch.setattr(compare, "estimate_bound", estimate)
    chains, field = posterior(train, 5, num_chains=2), posterior(train, 6)
    elsewhere = demonstrations(3, num_labelled=2, seed=4)
    foreign = posterior(elsewhere, 5)
    known = dataclasses.replace(field, method="exact", result=field.result._replace(elbo=-7.0))
    moved = dataclasses.replace(known, bound=bind(MODEL, elsewhere))
    every = {"chains": chains, "foreign": foreign, "moved": moved}
    assert compare._estimate_evidence(every, "chains", 1, False).value == -9
    assert compare._estimate_evidence(every | {"field": field}, "chains", 1, False).value == -9
    assert asked == [{}, {"posterior": field}]
    found = compare._estimate_evidence(every | {"known": known}, "chains", 1, False)
    assert found == Evidence(-7.0, 0.0, "exact", True, None, ())


def test_of_other_data_no_time_to_the_reference_is_told(train: btil.Demonstrations) -> None:
    both = {"whole": posterior(train, 5), "few": posterior(train.select([0, 1]), 6)}
    courses, differences = compare._measure(both | {"same": both["whole"]}, "whole")
    assert list(courses) == ["same"]
    assert list(differences) == ["whole", "few", "same"]


def quantity(comparison: Any, column: str) -> Any:
    return next(q for q in comparison.quantities() if q.column == column)


def test_truth_is_covered_or_not(comparison: Any) -> None:
    """The data come from another team than these tables: intervals lie elsewhere."""
    expected = coverage_table(comparison.posteriors["mfvi"], TRUTH, 3)
    own = comparison.coverage.loc["mfvi"]
    assert own.loc["all"].to_dict() == expected.loc["all"].to_dict()
    row = comparison.table.loc["mfvi"]
    assert row["coverage_89"] == expected.loc["all", "coverage_89"]
    assert row["coverage_89"] < 0.8
    assert any(note.startswith("Coverage is of one made-up truth") for note in comparison.notes)


def test_time_to_the_reference_is_told(comparison: Any) -> None:
    courses = comparison.courses
    # The exact posterior has no draws by which it could come near itself.
    assert list(courses) == ["mfvi", "gibbs"]
    row = comparison.table
    in_use = row.loc["mfvi", "mean_difference_in_use"]
    assert courses["mfvi"].error[-1] == pytest.approx(in_use)
    assert courses["gibbs"].error[-1] == pytest.approx(row.loc["gibbs", "mean_difference_in_use"])
    for name in courses:
        assert row.loc[name, "seconds_to_accuracy"] == courses[name].reached(0.05)
    assert quantity(comparison, "seconds_to_accuracy").label == "seconds to within 0.05"
    assert courses["gibbs"].seconds[-1] == pytest.approx(row.loc["gibbs", "seconds"])
    late = comparison.table.copy()
    late.loc["mfvi", "seconds_to_accuracy"] = np.inf
    changed = dataclasses.replace(comparison, table=late)
    assert changed.written(quantity(changed, "seconds_to_accuracy"), "mfvi") == "not yet"


def test_chains_in_different_modes_are_told(train: btil.Demonstrations) -> None:
    together = posterior(train, 1, num_chains=3)
    log_likelihood = together.result.log_likelihood + np.array([0.0, 50.0, 0.0])[:, None, None]
    result = with_log_likelihood(together.result, log_likelihood)
    apart = dataclasses.replace(together, result=result)
    found = compare_posteriors({"together": together, "apart": apart})
    modes = [note for note in found.notes if "sit in different modes, or" in note]
    assert len(modes) == 1
    assert modes[0].startswith("apart:")
    assert "chain 1 (mean log likelihood" in modes[0]
    assert "; chains 0 and 2 (mean log likelihood" in modes[0]
    assert "the table shows chain 1 alone" in modes[0]
    assert found.table["modes"].tolist() == [1, 2]
    assert found.modes["chains"].to_dict() == {("apart", 1): "1", ("apart", 2): "0, 2"}
    means = log_likelihood.sum(-1).mean(1)
    assert found.modes.loc[("apart", 1), "mean_log_likelihood"] == pytest.approx(means[1])
    assert found.modes.loc[("apart", 2), "mean_log_likelihood"] == pytest.approx(
        means[[0, 2]].mean()
    )
    # How many chains are in a mode tells nothing of its weight.
    assert found.weights["weight"].tolist() == pytest.approx([2 / 3, 1 / 3])
    assert found.weights["weight_se"].isna().all()
    assert found.weights.index.tolist() == [("apart", 1), ("apart", 2)]
    assert len(found.weighed["together"]) == 1
    # Not averaged: the second chain's rows alone are compared.
    for site, rows in found.compared["apart"].result.rows.items():
        np.testing.assert_array_equal(
            rows.draws, found.aligned["apart"].result.rows[site].draws[[1]]
        )
    assert len(found.compared["together"].result.rows["policy_ann"].draws) == 3


def made_of(concentrations: dict[str, Any]) -> TeamPosterior:
    """A posterior of one agent with one visited context, of given concentrations."""
    demos = btil.Demonstrations([0, 0], [0, 1], latents=[0, 1], num_actions=2)
    bound = bind(btil.TeamModel(transition=btil.DirichletCPT(1.0)), demos)
    rows = {site: DirichletRows(np.array(w, float)) for site, w in concentrations.items()}
    result = FitResult(rows, True, "made up")
    return TeamPosterior(bound, "mfvi", result, seed=0, dtype=np.dtype(float), wall_time=1.0)


def test_rows_in_use_differ_by_hand() -> None:
    one = made_of({"policy_agent_0": [[[1, 3], [2, 2]]], "transition_agent_0": [[[6, 2], [5, 5]]]})
    other = made_of(
        {"policy_agent_0": [[[2, 2], [1, 4]]], "transition_agent_0": [[[1, 1], [3, 1]]]}
    )
    visits = {
        "policy_agent_0": np.array([[1.0, 0.9]]),
        "transition_agent_0": np.array([[0.0, 7.0]]),
    }
    found = compare_rows(one, other, visits)
    assert found.shared_rows == 4
    assert found.mean_difference == pytest.approx((0.25 + 0.3 + 0.25 + 0.25) / 4)
    # The first row of the policy, the second of the transition.
    assert found.mean_difference_in_use == pytest.approx(0.25)

    def sd(a: float, b: float) -> float:
        return float(np.sqrt(a * b / (a + b + 1)) / (a + b))

    ratios = [sd(1, 3) / sd(2, 2), sd(2, 2) / sd(1, 4), sd(6, 2) / sd(1, 1), sd(5, 5) / sd(3, 1)]
    assert found.sd_ratio == pytest.approx(np.median(ratios))
    assert found.sd_ratio_in_use == pytest.approx((ratios[0] + ratios[3]) / 2)
    assert found.mean_sd_in_use == pytest.approx((sd(2, 2) + sd(3, 1)) / 2)
    in_sds = (0.25 / sd(2, 2) + 0.25 / sd(3, 1)) / 2
    assert found.mean_difference_in_sds == pytest.approx(in_sds)
    assert np.isnan([found.mean_difference_se, found.sd_ratio_se]).all()
    unread = compare_rows(one, other, {site: 0 * read for site, read in visits.items()})
    assert np.isnan(unread[3:5]).all()
    assert np.isnan(unread[7:]).all()
    assert unread[:3] == pytest.approx(found[:3], nan_ok=True)


def test_cells_that_the_reference_knows_have_no_ratio(train: btil.Demonstrations) -> None:
    chains = posterior(train, 5, num_chains=2)
    policy = chains.result.rows["policy_ann"].draws.copy()
    policy[:, :, 0, 0] = 0.3, 0.7
    rows = chains.result.rows | {"policy_ann": DrawnRows(policy)}
    known = dataclasses.replace(chains, result=chains.result._replace(rows=rows))
    visits = {site: np.ones(t.shape[:-1]) for site, t in known.bound.learned.items()}
    wide = {
        site: DirichletRows(np.full(table.shape, 0.5))
        for site, table in known.bound.learned.items()
    }
    found = compare_rows(
        dataclasses.replace(known, result=FitResult(wide, True, "made up")), known, visits
    )
    flat = np.concatenate([one.sd().ravel() for one in rows.values()])
    assert (flat < 1e-12).sum() == 2
    assert found.sd_ratio == pytest.approx(np.median(np.sqrt(1 / 8) / flat[flat > 1e-12]))
    assert found.mean_sd_in_use == pytest.approx(flat[flat > 1e-12].mean())
    assert found.sd_ratio_se > 0
    # Measured against itself nothing is left to chance.
    itself = compare_rows(known, known, visits)
    assert (itself.mean_difference, itself.sd_ratio) == (0, 1)
    assert np.isnan([itself.mean_difference_se, itself.sd_ratio_se]).all()


def test_latents_get_the_names_under_which_most_steps_are_right() -> None:
    # Label 0 is decoded as 2, 2 as 3, 3 as 0; that 1 is decoded as 0 leads nowhere.
    counts = np.array([[1, 0, 9, 3], [50, 1, 0, 0], [2, 0, 0, 5], [4, 0, 3, 3]])
    assert compare._best_names(((0, 2, 3), (1,)), counts).tolist() == [2, 1, 3, 0]
    assert compare._best_names(((0, 2), (1,), (3,)), counts).tolist() == [2, 1, 0, 3]


def test_a_gap_has_the_errors_of_bound_and_evidence(train: btil.Demonstrations) -> None:
    def gap(error: float, bound_error: float | None) -> dict[str, float]:
        one = posterior(train, 5)
        result = one.result._replace(elbo=-10.0, elbo_standard_error=bound_error)
        one = dataclasses.replace(one, result=result)
        return compare._evidence_record(one, one, Evidence(-8.5, error, "smc", True, None, ()))

    assert gap(0.3, 0.4) == pytest.approx({"evidence_gap": 1.5, "evidence_gap_se": 0.5})
    assert gap(0.3, None)["evidence_gap_se"] == 0.3
    assert np.isnan(gap(0.0, None)["evidence_gap_se"])


def test_notes_tell_which_data_methods_have_seen(train: btil.Demonstrations) -> None:
    few = posterior(train.select([0]), 5)
    both = {"few": few, "whole": posterior(train, 5)}
    told = "few learned from 1 episode, whole from 3 episodes: their bounds are of different data"
    rows = (
        ", and their rows differ for that reason too. Rows are compared over contexts that both "
        "have seen."
    )
    assert compare._notes_on_data(both, "whole", True) == [f"{told}{rows}"]
    assert compare._notes_on_data(both, "whole", False) == [f"{told}."]
    assert compare._notes_on_data({"few": few, "same": few}, "few", True) == []


def test_notes_tell_what_distinguishes_mental_states(train: btil.Demonstrations) -> None:
    labels = train.latents.copy()
    labels[:, 1] = -1
    half = posterior(train.replace(latents=labels), 5)
    (ann, bob) = compare._notes_on_names({"one": half}, None)
    assert ann.startswith("Mental states of ann: labels, priors or given tables distinguish them")
    assert bob.startswith("Mental states of bob: nothing distinguishes at least two of them. ")
    assert "held-out labels" not in bob
    exact = dataclasses.replace(half, method="exact")
    both = {"one": posterior(train, 5), "other": exact}
    (ann, bob, averaged) = compare._notes_on_names(both, train)
    assert bob.startswith("Mental states of bob: nothing distinguishes at least two of them in oth")
    assert bob.endswith("which makes its errors look a little small.")
    assert averaged.startswith("other averages over all orders of such mental states of bob;")


def test_notes_tell_of_chains_that_disagree() -> None:
    table = pd.DataFrame(
        {"rows_above": [2.0, 0.0, np.nan, 3.0], "rows": [1200.0, 12.0, np.nan, 9.0]},
        index=["wild", "calm", "stopped", "apart"],
    )
    verdicts = {name: Convergence(name == "calm", "the cap was reached") for name in table.index}
    one = [Mode((0, 1), -9.0, 1.0)]
    modes = dict.fromkeys(table.index, one) | {"apart": one * 2}
    wild, stopped, apart = compare._notes_on_convergence(table, verdicts, modes)
    told = "the chains disagree (R-hat of 1.05 or more in a cell) about"
    assert wild.startswith(f"wild: {told} 2 of 1,200 rows of the tables. Either they have not")
    assert apart == f"apart: {told} 3 of 9 rows of the tables."
    assert stopped == "stopped did not converge: the cap was reached."


def test_teams_play_the_task_of_the_data_as_often_as_asked(
    train: btil.Demonstrations, monkeypatch: pytest.MonkeyPatch
) -> None:
    bold, shy = posterior(train, 5), posterior(train, 6)
    task = btil.domains.movers("tiny")
    played = task.simulate(3, seed=2)
    lengths = played.episode_lengths
    asked = []

    def play(*given: Any, **options: Any) -> btil.Demonstrations:
        asked.append((*given, options))
        if given[1] is shy:
            raise ValueError("it cannot.")
        return played

    finished = {id(train): np.array([True, False, True]), id(played): np.array([True, True, False])}
    monkeypatch.setattr("btil.domains.task_of", lambda demos: task if demos is train else None)
    monkeypatch.setattr("btil.domains.play", play)
    monkeypatch.setattr(compare, "finished_episodes", lambda _, demos: finished[id(demos)])
    found, notes = compare._play({"bold": bold, "shy": shy}, train, 3, seed=4)
    assert asked == [(task, one, 3, {"seed": 4, "max_steps": 200}) for one in (bold, shy)]
    assert found == {
        "bold": pytest.approx(
            {
                "played_steps": lengths.mean(),
                "played_steps_se": lengths.std(ddof=1) / np.sqrt(3),
                "played_cut": 1 / 3,
                "played_cut_se": np.sqrt(1 / 3) / np.sqrt(3),
            }
        )
    }
    told, refused = notes
    assert told.startswith(
        f"As the data are of {task!r}, each method's team was let play 3 episodes"
    )
    assert "of at most 200 steps, by posterior means. The demonstrators took 5.0 steps" in told
    assert told.endswith("and 33% of their episodes were cut.")
    assert refused == "shy was not let play: it cannot."
    assert compare._play({"bold": bold}, train, 0, 4) == ({}, [])
    assert compare._play({"bold": bold}, played, 3, 4) == ({}, [])


def test_rows_are_matched_by_context() -> None:
    whole = posterior(demonstrations(6, num_labelled=6, seed=3), 1)
    few = posterior(demonstrations(1, num_labelled=1, seed=4, num_places=2), 2)
    found = compare_rows(few, whole)
    differences, ratios = [], []
    for agent in AGENTS:
        own = few.contexts(agent, "policy")["place"].tolist()
        other = whole.contexts(agent, "policy")["place"].tolist()
        assert own != other
        for role in ("policy", "transition", "initial"):
            a, b = few.result.rows[f"{role}_{agent}"], whole.result.rows[f"{role}_{agent}"]
            pairs = [(0, 0)]
            if role == "policy":
                pairs = [(own.index(p), other.index(p)) for p in own if p in other]
            for i, j in pairs:
                differences.append(np.abs(a.mean()[i] - b.mean()[j]).ravel())
                ratios.append((a.sd()[i] / b.sd()[j]).ravel())
    assert found.mean_difference == pytest.approx(np.concatenate(differences).mean())
    assert found.sd_ratio == pytest.approx(np.median(np.concatenate(ratios)))
    notes = compare_posteriors({"whole": whole, "few": few}).notes
    assert any(
        note.startswith("few learned from 1 episode, whole from 6 episodes") for note in notes
    )


def test_renamed_latents_are_no_difference(
    train: btil.Demonstrations, test_data: btil.Demonstrations
) -> None:
    one = posterior(train.without_labels(), 5)
    found = compare_posteriors({"one": one, "other": swapped(one)}, test_data, num_draws=20)
    assert found.table.loc["other", "mean_difference"] < 1e-12
    assert compare_rows(swapped(one), one).mean_difference > 0.05
    # The errors are those of the best of all namings, of each agent.
    decoded = one.decode(test_data.without_labels())
    for i, agent in enumerate(AGENTS):
        best = min(
            btil.analysis.hamming_distance(test_data, np.array(names)[decoded])[i]
            for names in itertools.permutations(range(2))
        )
        for name in ("one", "other"):
            assert found.table.loc[name, f"viterbi_error_{agent}"] == best
    assert sum("nothing distinguishes at least two" in note for note in found.notes) == 2


def test_chains_that_differ_in_names_agree(train: btil.Demonstrations) -> None:
    one = posterior(train.without_labels(), 5)
    rows: dict[str, Any] = {}
    for site in one.result.rows:
        chains = []
        for chain, named in enumerate((one, swapped(one))):
            # Tight draws, so that names and nothing else keep the chains apart.
            tight = DirichletRows(1000 * named.result.rows[site].concentration)
            chains.append(tight.sample(100, np.random.default_rng(chain)))
        rows[site] = DrawnRows(np.stack(chains))
    log_likelihood = np.random.default_rng(2).normal(size=(2, 100, 3))
    result = with_log_likelihood(one.result._replace(rows=rows), log_likelihood)
    chains = dataclasses.replace(one, method="gibbs", result=result)
    found = compare_posteriors({"chains": chains, "one": one})
    assert chains.draws_info["max_rhat"].max() > 1.5
    assert found.table.loc["chains", "max_rhat"] < 1.05
    assert found.table.loc["chains", "modes"] == 1
    assert found.table.loc["one", "mean_difference"] < 0.01


def test_names_pinned_by_labels_stay(
    train: btil.Demonstrations, test_data: btil.Demonstrations
) -> None:
    names = {"ann": ("in", "out")}
    one = posterior(train.replace(latent_names=names), 5)
    # The same under numbers of its own.
    ann, bob = test_data.latents.T
    turned = test_data.replace(
        latents=np.stack([1 - ann, bob], axis=1), latent_names={"ann": ("out", "in")}
    )
    found = compare_posteriors({"one": one, "other": swapped(one)}, turned, num_draws=20)
    assert found.table.loc["other", "mean_difference"] > 0.05
    assert found.named["other"].result.rows == found.posteriors["other"].result.rows
    assert any(note.startswith("Mental states of ann and bob: labels") for note in found.notes)
    wrong = one.decode(test_data.replace(latent_names=names)) != test_data.latents
    shown = found.table.loc["one", ["viterbi_error_ann", "viterbi_error_bob"]]
    assert shown.tolist() == wrong.mean(0).tolist()
    right = found.decoded.loc[[("one", "ann", "smoothed"), ("other", "ann", "smoothed")], "right"]
    assert right.sum() == 1


def test_agents_that_share_a_table_are_renamed_together(test_data: btil.Demonstrations) -> None:
    model = dataclasses.replace(MODEL, transition=btil.Shared(btil.DirichletCPT(1.0)))
    one = posterior(test_data.without_labels(), 6, model)
    named = compare_posteriors({"one": one}, test_data, num_draws=20).named["one"]
    wrong = {}
    for candidate, found in (("as it is", one), ("named", named), ("swapped", swapped(one))):
        decoded = found.decode(test_data.without_labels())
        wrong[candidate] = int((decoded != test_data.latents).sum())
    assert wrong["named"] == min(wrong.values())
    assert wrong["as it is"] != wrong["swapped"]


def test_summary_fits_a_terminal(comparison: Any) -> None:
    from rich.console import Console

    console = Console(width=100)
    with console.capture() as captured:
        console.print(comparison.summary_table())
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 100
    assert all(any(text in line for line in lines) for text in ("mfvi", "Viterbi error, ann"))
    error = comparison.table.loc["exact", "viterbi_error_bob"]
    assert any(line.count(f"{error:.3f}") for line in lines if "Viterbi error, bob" in line)


OTHER = (
    dataclasses.replace(MODEL, policy=btil.DirichletCPT(1.0)),
    demonstrations(1, num_labelled=1, seed=0),
)
PARAMETRIC = dataclasses.replace(MODEL, policy=HierarchicalDirichletCPT(parents=("place",)))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"methods": ()}, ValueError, "name at least one"),
        ({"methods": "mfvi"}, ValueError, "names in a tuple or list"),
        ({"methods": "mfvi, gibbs"}, ValueError, r"such as \['mfvi', 'gibbs'\]"),
        ({"methods": ("mfvi", "mfvi")}, ValueError, "named twice"),
        ({"methods": ("mcmc",)}, ValueError, "unknown method 'mcmc'"),
        ({"methods": {"../out": "mfvi"}}, ValueError, "not a name for files"),
        ({"reference": "nuts"}, ValueError, "'nuts' is not among mfvi"),
        ({"options": {"gibbs": {}}}, ValueError, "options: no method gibbs"),
        ({"options": {"mfvi": {"num_chains": 2}}}, TypeError, "no option 'num_chains'"),
        (
            {"accuracy": 0.0},
            ValueError,
            "accuracy must be a number strictly between 0 and 1, got 0.0",
        ),
        ({"num_draws": 5}, ValueError, "num_draws must be a whole number of at least 20, got 5"),
        ({"truth": prior_tables(*OTHER, np.random.default_rng(0))}, ValueError, "truth: policy_"),
        ({"model": PARAMETRIC, "evidence": True}, ValueError, "Dirichlet rows only; this family"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_fit(
    arguments: dict[str, Any],
    error: type[Exception],
    message: str,
    train: btil.Demonstrations,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_fit(*args: Any, **options: Any) -> None:
        raise AssertionError("a fit began")

    monkeypatch.setattr("btil.analysis.compare.fit_bound", no_fit)
    with pytest.raises(error, match=message):
        btil.compare(**({"model": MODEL, "demos": train, "methods": ("mfvi",)} | arguments))


def test_other_data_are_refused_before_any_fit(
    train: btil.Demonstrations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_fit(*args: Any, **options: Any) -> None:
        raise AssertionError("a fit began")

    monkeypatch.setattr("btil.analysis.compare.fit_bound", no_fit)
    with pytest.raises(ValueError, match="demos_by_method: no method nuts"):
        btil.compare(MODEL, train, ("mfvi",), demos_by_method={"nuts": train})
    other = btil.Demonstrations([0], [[0, 0]], agents=("ann", "eve"), num_latents=2)
    with pytest.raises(ValueError, match="agents"):
        btil.compare(MODEL, train, ("mfvi",), test=other)
    with pytest.raises(ValueError, match="agents"):
        btil.compare(MODEL, train, ("mfvi",), demos_by_method={"mfvi": other})
