"""Calibration: right posteriors pass, wrong ones are found out, and the numbers are the right ones.

Seeds are fixed. A verdict on a right posterior is wrong with probability 0.01 per group, which is
said where a test relies on it.
"""

import dataclasses
import itertools
import sys

import matplotlib.figure
import numpy as np
import pandas as pd
import pytest
from enumeration import log_prior as enumerated_log_prior
from markupsafe import Markup
from scipy import stats
from teams import random_demos, rich_model
from typer.testing import CliRunner

import btil
from btil.analysis.calibration import calibrating, calibration_page
from btil.analysis.calibration import simulation as simulation_module
from btil.analysis.calibration.calibrating import Calibration, calibrate
from btil.analysis.calibration.figures import plot_ecdf_pit, plot_error_ratios, plot_latents
from btil.analysis.calibration.ranks import (
    Ranked,
    Reliability,
    bins_of,
    coverage,
    error_ratio,
    in_hundredths,
    place_among,
    place_of_latents,
    rank,
    rank_latents,
    ratio_of_sums,
    reliability,
    spread,
    uniformity_band,
    verdict,
    wilson_interval,
)
from btil.analysis.calibration.simulation import (
    Cell,
    Settings,
    Simulation,
    choose_cells,
    draw_data,
    evaluate,
    log_prior,
    run_simulation,
    thinned,
    unconstrained_parameters,
)
from btil.analysis.output import output_console
from btil.cli import app
from btil.inference.chains import ess
from btil.inference.result import DirichletRows, DrawnRows, FitResult, MixtureRows
from btil.models.draws import prior_tables
from btil.models.team import bind
from btil.posterior.posterior import TeamPosterior


def tiny_team(labelled=0.0):
    """Agents of 2 latents each, 3 and 2 actions; seven steps, a context of one binary state."""
    return random_demos(
        lengths=(3, 2, 2),
        num_latents=(2, 2),
        num_actions=(3, 2),
        num_states=(2,),
        labelled=labelled,
    )


def tiny_model():
    return btil.TeamModel(
        policy=btil.DirichletCPT(0.8, parents=("x",)),
        transition=btil.DirichletCPT([[2.0, 1.0], [0.5, 1.0]]),
        initial=btil.DirichletCPT(1.0),
    )


def calibrate_tiny(method="exact", num_simulations=40, **options):
    chosen = {"share_labelled": 1 / 3, "num_draws": 25, "seed": 3, "progress": False} | options
    return calibrate(tiny_model(), tiny_team(), method, num_simulations, **chosen)


@pytest.fixture(scope="module")
def exact() -> Calibration:
    return calibrate_tiny()


@pytest.fixture(scope="module")
def too_narrow() -> Calibration:
    """The exact posterior with all concentrations times four: means stay, variances shrink."""
    true_fit = simulation_module.fit

    def narrow_fit(*args, **kwargs):
        posterior = true_fit(*args, **kwargs)
        rows = {}
        for site, mixture in posterior.result.rows.items():
            assert isinstance(mixture, MixtureRows)
            rows[site] = mixture._replace(concentration=4 * mixture.concentration)
        return dataclasses.replace(posterior, result=posterior.result._replace(rows=rows))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation_module, "fit", narrow_fit)
        return calibrate_tiny()


# ---------------------------------------------------------------------- whole runs


def test_the_exact_posterior_is_called_right(exact):
    """Seven verdicts, each wrong with probability 0.01."""
    assert set(exact.verdicts()) == {
        "policy rows", "transition rows", "initial rows",
        "log likelihood", "log prior", "log joint", "latents",
    }  # fmt: skip
    assert set(exact.verdicts().values()) == {"uniform"}
    table = exact.table()
    for column, right in (("error_ratio", 1), ("spread", 1), ("coverage_50", 0.5)):
        shown = table[column].dropna()
        assert len(shown) >= 6
        # The largest of seven normal errors lies above 3.5 with probability 0.003.
        assert (np.abs(shown - right) < 3.5 * table[f"{column}_se"][shown.index]).all()
    for excess, error in exact.overconfidence().values():
        assert 0 < error < 0.05
        assert abs(excess) < 3.5 * error


def test_a_posterior_that_is_too_narrow_is_found_out(too_narrow):
    verdicts = too_narrow.verdicts()
    assert verdicts["policy rows"] == verdicts["transition rows"] == "overconfident"
    table = too_narrow.table()
    rows = ["policy rows", "transition rows"]
    assert (table.loc[rows, "error_ratio"] > 1.3).all()
    assert (table.loc[rows, "spread"] > 1.2).all()
    assert (table.loc[rows, "coverage_89"] < 0.8).all()


def test_truths_and_data_do_not_depend_on_the_method():
    one, other = (
        Settings(tiny_model(), tiny_team(), method, {}, 10, 5, 1 / 3, 0)
        for method in ("exact", "mfvi")
    )
    (_, full, observed), (_, same, seen) = draw_data(one, 4), draw_data(other, 4)
    assert np.array_equal(full.actions, same.actions)
    assert np.array_equal(full.latents, same.latents)
    assert np.array_equal(observed.latents, seen.latents)
    assert not np.array_equal(draw_data(one, 5)[1].latents, full.latents)


def test_labels_are_those_of_the_data_or_of_whole_episodes():
    demos = tiny_team(labelled=0.4)
    settings = Settings(tiny_model(), demos, "exact", {}, 10, 5, None, 0)
    _, full, observed = draw_data(settings, 0)
    assert full.latents.min() >= 0
    assert np.array_equal(observed.latents >= 0, demos.latents >= 0)
    shown = observed.latents >= 0
    assert np.array_equal(observed.latents[shown], full.latents[shown])
    chosen = set()
    for number in range(20):
        _, _, observed = draw_data(dataclasses.replace(settings, share_labelled=0.4), number)
        whole = np.add.reduceat((observed.latents >= 0).all(1), observed.episode_starts)
        labelled = np.flatnonzero(whole == observed.episode_lengths)
        assert len(labelled) == 1
        assert (observed.latents >= 0).sum() == 2 * observed.episode_lengths[labelled[0]]
        chosen |= set(labelled.tolist())
    assert chosen == {0, 1, 2}
    # Six tenths of three are two.
    most = draw_data(dataclasses.replace(settings, share_labelled=0.6), 0)[2]
    assert np.add.reduceat((most.latents >= 0).all(1), most.episode_starts).astype(bool).sum() == 2


def test_every_simulation_is_fitted_with_a_seed_of_its_own(monkeypatch):
    asked = []

    def fit(model, demos, method, **options):
        asked.append((method, options))
        raise ArithmeticError("that will do")

    monkeypatch.setattr(simulation_module, "fit", fit)
    settings = Settings(tiny_model(), tiny_team(), "gibbs", {"num_chains": 2}, 10, 5, 1 / 3, 0)
    for seed, number in ((0, 1), (0, 1), (0, 2), (1, 1)):
        with pytest.raises(ArithmeticError, match="that will do"):
            run_simulation(dataclasses.replace(settings, seed=seed), number)
    seeds = [options.pop("seed") for _, options in asked]
    assert seeds[0] == seeds[1]
    assert len(set(seeds)) == 3
    assert asked == [("gibbs", {"num_chains": 2, "progress": False})] * 4


def test_truths_are_ranked_among_as_many_draws_as_there_are(monkeypatch):
    def fit(model, demos, method, **options):
        bound = bind(model, demos)
        rows = {
            site: DrawnRows(
                np.random.default_rng(0).dirichlet(np.ones(t.shape[-1]), (2, 5, *t.shape[:-1]))
            )
            for site, t in bound.learned.items()
        }
        result = FitResult(rows, False, "made by hand")
        return TeamPosterior(bound, method, result, 0, np.dtype(np.float32), 1.0)

    monkeypatch.setattr(simulation_module, "fit", fit)
    for asked, there in ((25, 10), (4, 4)):
        demos = tiny_team(labelled=0.4)  # single steps, which tell of those around them
        settings = Settings(tiny_model(), demos, "svi", {}, asked, 5, None, 0)
        found = run_simulation(settings, 0)
        assert (found.num_draws, found.converged, found.aligned) == (there, False, False)
        assert len(found.ranked["policy rows"].place) == 5
    # Ranked is the truth that the data are of, and beliefs are about what was hidden of them.
    truth, full, observed = draw_data(settings, 0)
    fitted = fit(settings.bound.model, observed, "svi")
    policies = [
        truth.rows(f"policy_{agent}", fitted.bound.tables[f"policy_{agent}"].contexts).ravel()
        for agent in full.agents
    ]
    known = np.concatenate(policies)
    gaps = np.abs(known - found.ranked["policy rows"].truth[:, None]).min(1)
    np.testing.assert_allclose(gaps, 0, atol=1e-6)
    beliefs = fitted.smooth(observed, use_labels=True)
    hidden = observed.latents < 0
    said, right = [], []
    for i, agent in enumerate(full.agents):
        own = beliefs[agent][hidden[:, i]]
        said += own.max(1).tolist()
        right += (own.argmax(1) == full.latents[hidden[:, i], i]).tolist()
    assert found.averaged.steps.sum() == found.point.steps.sum() == hidden.sum()
    assert found.point.said.sum() == pytest.approx(sum(said), rel=1e-5)
    assert found.point.right.sum() == sum(right)
    assert found.averaged.said.sum() != pytest.approx(sum(said), rel=1e-3)
    assert len(found.ranked["latents"].place) == 5


def test_a_folder_knows_states_that_no_table_reads():
    """The same tables and actions, on other states."""
    demos = random_demos(lengths=(3, 2), num_latents=(2,), num_actions=(3,), num_states=(2, 3))
    states = demos.state_variables
    other = demos.replace(states=dict(states) | {"y": 2 - states["y"]})

    def known(data, **changes):
        settings = Settings(tiny_model(), data, "exact", {}, 10, 5, 1 / 3, 0)
        return calibrating._fingerprint(dataclasses.replace(settings, **changes))

    assert known(demos) == known(demos) == known(demos, method="mfvi", num_draws=7)
    assert known(other) != known(demos)
    assert known(demos, seed=1) != known(demos)
    assert known(demos, share_labelled=1.0) != known(demos)


def test_latents_that_nothing_pins_are_named_after_the_truth_and_it_is_said():
    model = btil.TeamModel(*(btil.DirichletCPT(1.0) for _ in range(3)))
    options = {"share_labelled": 0.0, "num_draws": 10, "progress": False}
    found = calibrate(model, tiny_team(), "mfvi", 1, **options)
    assert found.fits["aligned"].all()
    assert any("named so as to match the truth best" in note for note in found.notes())
    assert set(found.verdicts().values()) == {"too few simulations"}
    unpinned = calibrate(model, tiny_team(), "exact", 1, **options)
    assert any("holds all their names at once" in note for note in unpinned.notes())
    # The prior of the other model tells its latents apart: no name is open.
    assert not calibrate_tiny(num_simulations=1, share_labelled=0.0).fits["aligned"].any()


def test_renaming_recovers_a_posterior_whose_names_are_swapped():
    demos = random_demos(lengths=(3,) * 40, num_latents=(2,), num_actions=(3,), num_states=(2,))
    model = btil.TeamModel(
        btil.DirichletCPT(0.5, parents=("x",)), btil.DirichletCPT(0.5), btil.DirichletCPT(1.0)
    )
    settings = Settings(model, demos, "mfvi", {}, 10, 5, 0.0, 0)
    truth, full, observed = draw_data(settings, 0)
    swapped = full.replace(latents=1 - full.latents)
    # With every step labelled the posterior is a single Dirichlet per row.
    fitted = btil.fit(model, swapped, "exact", progress=False)
    rows = {s: DirichletRows(m.concentration[0]) for s, m in fitted.result.rows.items()}
    fitted = dataclasses.replace(fitted, method="mfvi", result=fitted.result._replace(rows=rows))
    hidden = dataclasses.replace(fitted, bound=bind(model, observed))
    renamed = simulation_module.named_as_in(hidden, truth)
    right = {site: truth.rows(site, t.contexts) for site, t in hidden.bound.learned.items()}
    for site in ("policy_ann", "transition_ann"):
        before, after = (
            np.abs(one.result.rows[site].mean() - right[site]).mean() for one in (fitted, renamed)
        )
        assert after < 0.1
        assert before > 2 * after


def test_every_step_labelled_leaves_no_latents_to_rank():
    found = calibrate_tiny(num_simulations=2, share_labelled=1.0)
    assert "latents" not in found.ranked
    assert found.overconfidence() == {}
    with pytest.raises(ValueError, match="every step is labelled"):
        found.plot_latents()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"share_labelled": 1.2},
            "share_labelled must be a number from 0 to 1",
        ),
        ({"num_draws": 0}, "num_draws must be a whole number of at least 1"),
        ({"num_cells": 0}, "num_cells must be a whole number of at least 1"),
        ({"num_simulations": 0}, "num_simulations must be a whole number of at least 1"),
        ({"method": "magic"}, "unknown method 'magic'"),
    ],
)
def test_what_makes_no_sense_is_refused_before_any_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        calibrate_tiny(**arguments)


def test_options_that_a_method_does_not_have_are_refused():
    with pytest.raises(TypeError, match="exact has no option 'num_chains'"):
        calibrate_tiny(num_chains=2)


def test_a_fit_without_numbers_is_an_error(monkeypatch):
    true_fit = simulation_module.fit

    def broken_fit(*args, **kwargs):
        posterior = true_fit(*args, **kwargs)
        rows = {
            site: mixture._replace(concentration=mixture.concentration * np.nan)
            for site, mixture in posterior.result.rows.items()
        }
        return dataclasses.replace(posterior, result=posterior.result._replace(rows=rows))

    monkeypatch.setattr(simulation_module, "fit", broken_fit)
    with pytest.raises(ArithmeticError, match="simulation 0: the exact fit failed"):
        calibrate_tiny(num_simulations=1)


# ---------------------------------------------------------------------- a folder


def test_a_run_that_was_cut_off_goes_on(tmp_path, monkeypatch, exact):
    first = calibrate_tiny(num_simulations=2, directory=tmp_path / "made")
    assert len(list((tmp_path / "made").glob("simulation-*.npz"))) == 2
    ran = []

    def counted(settings, number):
        ran.append(number)
        return run_simulation(settings, number)

    monkeypatch.setattr("btil.analysis.calibration.calibrating.run_simulation", counted)
    more = calibrate_tiny(num_simulations=3, directory=tmp_path / "made")
    assert ran == [2]
    for group, ranked in exact.ranked.items():
        for before, after, all_at_once in zip(
            first.ranked[group], more.ranked[group], ranked, strict=True
        ):
            assert np.array_equal(before, after[:2], equal_nan=True)
            assert np.array_equal(after, all_at_once[:3], equal_nan=True)
    assert np.array_equal(more.averaged.right, exact.averaged.right[:3])


@pytest.mark.parametrize(
    ("changes", "different"),
    [({"seed": 4}, "seed, model or data"), ({"num_draws": 7}, "num_draws"),
     ({"share_labelled": 0.5}, "share_labelled")],
)  # fmt: skip
def test_a_folder_of_another_run_is_refused(tmp_path, changes, different):
    calibrate_tiny(num_simulations=1, directory=tmp_path)
    with pytest.raises(ValueError, match=different):
        calibrate_tiny(num_simulations=1, directory=tmp_path, **changes)


# ---------------------------------------------------------------------- what is ranked


def test_log_likelihoods_and_beliefs_are_those_of_the_posterior():
    demos = random_demos()
    posterior = btil.fit(rich_model(), demos, "exact", progress=False)
    truth = prior_tables(rich_model(), demos, np.random.default_rng(0))
    draws = list(posterior.drawn_tables(5, seed=2))
    names, values, beliefs = evaluate(posterior, [truth, *draws], [])
    assert names == ["log likelihood", "log prior", "log joint"]
    average = np.exp(values[1:, 0])
    expected = posterior.smooth(demos, use_labels=True, num_draws=5, seed=2)
    for agent in demos.agents:
        assert np.allclose(beliefs[agent], expected[agent], atol=1e-5)
    # Episodes are averaged by themselves there, all together here: compare single draws.
    for d, one in enumerate([truth, *draws]):
        rows = {s: one.rows(s, t.contexts) for s, t in posterior.bound.tables.items()}
        layout = simulation_module.lay_out(posterior.bound)
        alone = posterior.episode_log_likelihood(posterior.bound, layout, rows).sum()
        assert values[d, 0] == pytest.approx(alone, rel=1e-5)
    assert len(set(average.tolist())) == 5


def test_log_prior_is_the_density():
    bound = bind(rich_model(), random_demos())
    truth = prior_tables(bound.model, bound.demos, np.random.default_rng(4))
    rows = {site: truth.rows(site, table.contexts) for site, table in bound.learned.items()}
    two = {site: np.stack([values, values]) for site, values in rows.items()}
    expected = enumerated_log_prior(bound, rows)
    assert log_prior(bound, two, {}) == pytest.approx([expected, expected], rel=1e-12)


def test_columns_are_ranked_and_count_in_the_prior(monkeypatch):
    """A mean and a variance for each latent: by the normal inverse-gamma density of SciPy."""
    demos = btil.Demonstrations(
        np.zeros(4, int), None, np.array([[0], [1], [1], [0]]), agents=("ann",), num_latents=2,
        continuous={"x": np.array([1.0, 2.0, 4.0, 0.0])},
    )  # fmt: skip
    model = btil.TeamModel(
        policy=None,
        transition=btil.DirichletCPT([[2.0, 1.0], [0.5, 1.0]]),
        initial=btil.DirichletCPT(3.0),
        emissions=btil.NormalEmission(("x",)),
    )
    bound = bind(model.resolved(demos), demos)
    draws = [prior_tables(bound.model, demos, np.random.default_rng(seed)) for seed in range(3)]
    answer = FitResult({}, True, "made by hand")
    posterior = TeamPosterior(bound, "gibbs", answer, 0, np.dtype(float), 1.0)
    likelihood = np.arange(64.0)
    asked = []

    def run_messages(one, rows, number, channels):
        asked.append((number, {site: len(values) for site, values in rows.items()}, channels))
        return likelihood, {"ann": np.full((4, 2), 0.5)}

    monkeypatch.setattr(simulation_module, "run_messages", run_messages)
    cells = [Cell("transition", "transition_ann", np.array([2, 1]))]
    names, values, beliefs = evaluate(posterior, draws, cells)
    assert names == [
        *["transition rows"] * 2, *["emission coefficients"] * 2, *["emission noise"] * 2,
        "log likelihood", "log prior", "log joint",
    ]  # fmt: skip
    ((number, sizes, channels),) = asked
    assert (number, set(sizes.values())) == (3, {64})
    assert (beliefs["ann"] == 0.5).all()
    prior = bound.channels["ann"].prior()
    for d, draw in enumerate(draws):
        transition = draw.rows("transition_ann", bound.tables["transition_ann"].contexts)
        initial = draw.rows("initial_ann", bound.tables["initial_ann"].contexts)
        means, variances = (
            part.reshape(2) for part in draw.channels["ann"].rows(bound.channels["ann"].contexts)
        )
        np.testing.assert_array_equal(channels["ann"][0][d].ravel(), means)
        density = stats.dirichlet([3.0, 3.0]).logpdf(initial[0])
        for k, row in enumerate(transition[0]):
            density += stats.dirichlet([[2.0, 1.0], [0.5, 1.0]][k]).logpdf(row)
            location, precision, scale, degrees = (part[0, k].item() for part in prior)
            density += stats.norm(location, np.sqrt(variances[k] / precision)).logpdf(means[k])
            density += stats.invgamma(degrees / 2, scale=scale / 2).logpdf(variances[k])
        expected = [*transition.ravel()[[2, 1]], *means, *np.log(variances) / 2]
        expected += [likelihood[d], density, likelihood[d] + density]
        np.testing.assert_allclose(values[d], expected, rtol=1e-9)


def parametric_model():
    """A base row with a learned strength; weights on the line."""
    return btil.TeamModel(
        policy=btil.SoftmaxCPT(parents=("x",)),
        transition=btil.HierarchicalDirichletCPT(base_concentration=2.0, stay=1.0, parents=("x",)),
    )


def test_log_prior_of_parameters_and_of_rows_given_them():
    bound = bind(parametric_model(), tiny_team())
    truth = prior_tables(bound.model, bound.demos, np.random.default_rng(4))
    rows = {site: truth.rows(site, table.contexts) for site, table in bound.learned.items()}
    expected = 0.0
    for agent in ("ann", "bob"):
        for name in ("bias", "weights"):
            values = truth.parameters[f"policy_{agent}_{name}"]
            expected += stats.norm(0, 1.5).logpdf(values).sum()
        strength = float(truth.parameters[f"transition_{agent}_strength"])
        expected += stats.lognorm(1.5, scale=np.exp(2.0)).logpdf(strength)
        base = truth.parameters[f"transition_{agent}_base"].astype(np.float64)
        for latent in range(2):
            expected += stats.dirichlet([2.0, 2.0]).logpdf(base[latent] / base[latent].sum())
            concentration = strength * base[latent] + np.eye(2)[latent]
            for row in rows[f"transition_{agent}"][:, latent]:
                expected += stats.dirichlet(concentration).logpdf(row)
    two = {site: np.stack([values, values]) for site, values in rows.items()}
    twice = {site: np.stack([values, values]) for site, values in truth.parameters.items()}
    found = log_prior(bound, two, twice)
    assert found == pytest.approx([expected, expected], rel=1e-5)
    free = unconstrained_parameters(bound, twice)
    assert set(free) == set(truth.parameters)
    assert free["transition_ann_strength"][1, 0] == pytest.approx(
        np.log(truth.parameters["transition_ann_strength"])
    )


def test_parameters_at_the_edge_of_their_support_stay_finite():
    bound = bind(parametric_model(), tiny_team())
    truth = prior_tables(bound.model, bound.demos, np.random.default_rng(4))
    edge = truth.parameters | {"transition_ann_base": np.array([[1.0, 0.0], [0.0, 1.0]])}
    one = {site: np.asarray(values)[None] for site, values in edge.items()}
    free = unconstrained_parameters(bound, one)["transition_ann_base"]
    assert np.isfinite(free).all()
    assert free[0, 0] > free[0, 1]


def test_latents_without_names_are_refused_in_models_with_parameters():
    with pytest.raises(ValueError, match=r"simulation 0: .* ann, bob, and.*share_labelled"):
        calibrate(parametric_model(), tiny_team(), "gibbs", 2, share_labelled=0.0, progress=False)


def test_nuts_is_right_about_parameters():
    """Verdicts of so few simulations are wrong with probability 0.01 each as well."""
    policy = btil.KnownCPT([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]])
    model = btil.TeamModel(policy, btil.HierarchicalDirichletCPT(parents=("x",)))
    demos = random_demos(lengths=(4, 4), num_latents=(2,), num_actions=(3,), num_states=(2,))
    options = {"num_chains": 1, "num_warmup": 100, "num_samples": 100, "seed": 1}
    found = calibrate(model, demos, "nuts", 10, share_labelled=0.5, progress=False, **options)
    # The base of two latents has one free value each, and there is the strength.
    assert found.ranked["parameters"].place.shape == (10, 3)
    assert set(found.verdicts().values()) == {"uniform"}
    assert found.fits["draws"].min() < 100


def test_cells_are_chosen_among_those_that_the_data_read_and_more_often_where_they_do():
    demos = random_demos(lengths=(6,) * 20, num_latents=(2,), num_actions=(1,), num_states=(3,))
    states = np.where(np.arange(demos.num_steps) % 6 == 0, 1, 0)
    model = btil.TeamModel(
        btil.DirichletCPT(1.0, parents=("x",)), btil.DirichletCPT(1.0, parents=("x",))
    )
    bound = bind(model, demos.replace(states={"x": states}))
    generator = np.random.default_rng(0)
    counts = np.zeros((2, 2, 2))
    for _ in range(500):
        (cells,) = choose_cells(bound, 1, generator)
        # The policy's rows have one value, the initial is given: neither can be ranked.
        assert (cells.role, cells.site) == ("transition", "transition_ann")
        counts.ravel()[cells.flat] += 1
    # x = 0 at four of the five steps that something follows.
    by_context = counts.sum((1, 2))
    assert stats.binomtest(int(by_context[0]), 500, 0.8).pvalue > 1e-3
    assert stats.chisquare(counts[0].ravel()).pvalue > 1e-3
    (every,) = choose_cells(bound, 100, generator)
    assert sorted(every.flat.tolist()) == list(range(8))


def test_chains_are_thinned_to_what_they_are_worth():
    model, demos = tiny_model(), tiny_team(labelled=0.5)
    mixture = btil.fit(model, demos, "exact", progress=False)
    generator = np.random.default_rng(0)
    # Draws that go on for 20 iterations: 2 chains of 2,000 are worth about 100.
    rows = {}
    for site, table in mixture.bound.learned.items():
        noise = generator.standard_normal((2, 2000, *table.shape))
        values = np.empty_like(noise)
        values[:, 0] = noise[:, 0]
        rho = 0.95
        for i in range(1, 2000):
            values[:, i] = rho * values[:, i - 1] + np.sqrt(1 - rho**2) * noise[:, i]
        rows[site] = DrawnRows(values)
    result = mixture.result._replace(rows=rows, sample_stats={"step": np.zeros((2, 2000))})
    slow = dataclasses.replace(mixture, method="gibbs", result=result)
    cells = choose_cells(mixture.bound, 10, generator)
    drawn = [
        rows[cell.site].draws.reshape(2, 2000, -1)[:, :, cell.flat].reshape(2, 2000, -1)
        for cell in cells
    ]
    least = min(float(ess(one).min()) for one in drawn)
    assert 40 < least < 200
    few = thinned(slow, 1000, cells).result.rows["policy_ann"].draws
    assert few.shape[:2] == (2, int(least) // 2)
    assert np.array_equal(few[:, 0], rows["policy_ann"].draws[:, 0])
    assert np.array_equal(few[:, -1], rows["policy_ann"].draws[:, -1])
    assert thinned(slow, 10, cells).result.rows["policy_ann"].draws.shape[:2] == (2, 5)
    assert thinned(mixture, 5, cells) is mixture
    # Rows that are independent, and log likelihoods that are not.
    quick = {
        site: DrawnRows(generator.standard_normal(one.draws.shape)) for site, one in rows.items()
    }
    likelihood = rows["policy_ann"].draws.reshape(2, 2000, -1)[:, :, :1]
    for kept, most in ((None, 1000), (likelihood, 200)):
        made = result._replace(rows=quick, log_likelihood=kept)
        few = thinned(dataclasses.replace(slow, result=made), 1000, cells)
        number = 2 * few.result.rows["policy_ann"].draws.shape[1]
        assert most / 5 < number <= most
    assert few.result.log_likelihood.shape == (2, number // 2, 1)


# ---------------------------------------------------------------------- ranks


def test_ties_are_broken_at_random():
    generator = np.random.default_rng(0)
    truth = np.full(4_000, 1e-38)
    draws = np.full((9, 4_000), 1e-38)
    draws[:3] = 0.5
    places = place_among(truth, draws, generator)
    # Six of nine draws are equal, three above: any of the first seven ranks of ten.
    assert stats.kstest(places, stats.uniform(0, 0.7).cdf).pvalue > 1e-3


def test_errors_are_as_large_as_few_right_draws_say():
    """The mean of three draws is not exact, which must not look like an overconfident posterior."""
    generator = np.random.default_rng(2)
    simulations = [
        rank(generator.standard_normal(50), generator.standard_normal((3, 50)), generator)
        for _ in range(200)
    ]
    found = error_ratio(Ranked(*map(np.stack, zip(*simulations, strict=True))))
    assert abs(found.value - 1) < 4 * found.error < 0.06
    single = rank(np.zeros(2), np.ones((1, 2)), generator)
    assert np.isnan(single.sd).all()


def test_true_latents_are_placed_uniformly_if_beliefs_are_right_and_high_if_too_sure():
    generator = np.random.default_rng(1)
    beliefs = generator.dirichlet([0.7, 0.7, 0.7], 4_000)
    beliefs[:500] = 1 / 3
    truth = (np.cumsum(beliefs, 1) < generator.random((4_000, 1))).sum(1)
    places = place_of_latents(beliefs, truth, generator)
    assert stats.kstest(places, "uniform").pvalue > 1e-3
    sure = beliefs**2 / (beliefs**2).sum(1, keepdims=True)
    assert place_of_latents(sure, truth, generator).mean() > 0.52


def normal_ranks(generator, scale, shift=0.0, simulations=60, quantities=5):
    """Normal mean with known variance: ranks in a posterior whose sd is `scale` times the right."""
    shape = (simulations, quantities)
    # Quantities of a simulation share most of their error: they are not independent.
    common = generator.standard_normal((simulations, 1))
    truth = np.sqrt(0.8) * common + np.sqrt(0.2) * generator.standard_normal(shape)
    draws = shift + scale * generator.standard_normal((99, *shape))
    place = place_among(truth.ravel(), draws.reshape(99, -1), generator)
    return Ranked(place.reshape(shape), truth, draws.mean(0), draws.std(0))


def test_verdicts_keep_their_promise():
    """At probability 0.9, of 300 right posteriors at most 30 + 4 sd are called anything else."""
    generator = np.random.default_rng(5)
    words = [verdict(normal_ranks(generator, 1.0, simulations=40), 0.9) for _ in range(300)]
    wrong = sum(word != "uniform" for word in words)
    assert 3 <= wrong <= 30 + 4 * np.sqrt(300 * 0.1 * 0.9)


@pytest.mark.parametrize(
    ("scale", "shift", "word"),
    [(0.6, 0.0, "overconfident"), (1.7, 0.0, "underconfident"), (1.0, -0.8, "too low"),
     (1.0, 0.8, "too high"), (1.0, 0.0, "uniform")],
)  # fmt: skip
def test_verdicts_say_what_is_wrong(scale, shift, word):
    ranked = normal_ranks(np.random.default_rng(6), scale, shift)
    assert verdict(ranked, 0.99) == word
    ratio = error_ratio(ranked)
    assert abs(ratio.value - np.hypot(1, shift) / scale) < 4 * ratio.error
    if word == "uniform":
        for share, right in ((spread(ranked), 1.0), (coverage(ranked, 0.89), 0.89)):
            assert abs(share.value - right) < 4 * share.error


def test_errors_allow_for_dependence_within_simulations():
    """Five copies of one quantity tell no more than one."""
    generator = np.random.default_rng(7)
    one = normal_ranks(generator, 1.0, quantities=1)
    five = Ranked(*(np.repeat(part, 5, axis=1) for part in one))
    assert spread(five).error == pytest.approx(spread(one).error)
    assert error_ratio(five).error == pytest.approx(error_ratio(one).error)


def test_an_error_without_a_spread_to_hold_it_against_does_not_count():
    """Of a single draw no spread is known: its simulation says nothing of the ratio."""
    generator = np.random.default_rng(4)
    many = [rank(generator.normal(size=3), generator.normal(size=(50, 3)), generator)
            for _ in range(12)]  # fmt: skip
    single = rank(np.full(3, 100.0), generator.normal(size=(1, 3)), generator)
    without, with_it = (
        error_ratio(Ranked(*map(np.stack, zip(*some, strict=True))))
        for some in (many, [*many, single])
    )
    assert with_it == pytest.approx(without)


def test_the_band_is_left_as_often_as_it_says():
    generator = np.random.default_rng(8)
    left = sum(uniformity_band(generator.random(50), 0.9).left for _ in range(1_000))
    # ArviZ simulates its band 1,000 times, which adds an error of its own of about 0.01.
    assert abs(left / 1_000 - 0.1) < 4 * np.hypot(np.sqrt(0.09 / 1_000), 0.01)


def test_sure_steps_are_counted_in_hundredths():
    beliefs = np.array([[0.95, 0.05], [0.05, 0.95], [0.35, 0.65], [1.0, 0.0]])
    counted = reliability(beliefs, np.array([0, 0, 1, 0]))
    assert counted.steps.sum() == 4
    assert counted.steps[[65, 95, 99]].tolist() == [1, 2, 1]
    assert counted.said[95] == pytest.approx(1.9)
    assert counted.right[[65, 95, 99]].tolist() == [1, 1, 1]
    low, middle, high = bins_of(Reliability(*(part[None] for part in counted)))
    assert (low.low, low.high, low.steps, low.right) == (0.65, 0.66, 1, 1.0)
    assert (middle.steps, middle.said, middle.right) == (2, pytest.approx(0.95), 0.5)
    assert (high.low, high.high, high.steps) == (0.99, 1.0, 1)


def test_bins_hold_about_equal_numbers_of_steps():
    generator = np.random.default_rng(0)
    best = np.concatenate([np.full(500, 0.999), generator.uniform(0.5, 1.0, 1500)])
    beliefs = np.stack([best, 1 - best], 1)
    counted = reliability(beliefs, (generator.random(2000) > best).astype(int))
    bins = bins_of(Reliability(*(part[None] for part in counted)))
    assert sum(one.steps for one in bins) == 2000
    assert 7 <= len(bins) <= 10
    assert min(one.steps for one in bins) >= 200
    assert all(one.high <= other.low for one, other in itertools.pairwise(bins))


def test_counts_by_wider_bins_are_read_as_they_were_written():
    steps, said = np.zeros((2, 10)), np.zeros((2, 10))
    steps[:, 7], said[:, 7] = 5, 3.8
    found = in_hundredths(Reliability(steps, said, steps))
    assert found.steps.shape == (2, 100)
    (one,) = bins_of(found)
    assert (one.steps, one.said, one.low) == (10, pytest.approx(0.76), 0.7)


def test_intervals_widen_where_steps_are_right_together():
    """100 simulations of 20 steps, all right or all wrong, are worth 100 steps and not 2,000."""
    steps = np.zeros((100, 10))
    steps[:, 8] = 20
    right = np.zeros((100, 10))
    right[:80, 8] = 20
    (together,) = bins_of(Reliability(steps, 0.85 * steps, right))
    expected = wilson_interval(0.8, 99.0)
    assert (together.lower, together.upper) == pytest.approx(expected)
    exact = stats.binomtest(80, 100).proportion_ci(method="wilson")
    assert wilson_interval(0.8, 100.0) == pytest.approx((exact.low, exact.high))
    everywhere = np.where(steps > 0, 16.0, 0.0)
    (apart,) = bins_of(Reliability(steps, 0.85 * steps, everywhere))
    assert apart.upper - apart.lower < 0.25 * (together.upper - together.lower)
    assert ratio_of_sums(right[:, 8], steps[:, 8]).value == pytest.approx(0.8)
    # More even than chance is: no more than so many steps that are independent.
    even = np.where(steps > 0, np.where(np.arange(100)[:, None] % 2, 16.0, 17.0), 0.0)
    (alike,) = bins_of(Reliability(steps, 0.85 * steps, even))
    assert (alike.lower, alike.upper) == pytest.approx(wilson_interval(0.825, 2000.0))
    (single,) = bins_of(Reliability(steps[:1], 0.85 * steps[:1], everywhere[:1]))
    assert (single.lower, single.upper) == pytest.approx(wilson_interval(0.8, 1.0))


# ---------------------------------------------------------------------- what is shown


def made_up_simulation(generator, groups, number):
    """A simulation with so many quantities of each group, and other numbers everywhere."""

    def counts():
        return Reliability(*generator.random((len(Reliability._fields), 100)))

    return Simulation(
        ranked={
            group: Ranked(*generator.random((len(Ranked._fields), size)))
            for group, size in groups.items()
        },
        point=counts(),
        averaged=counts(),
        num_draws=10 + number,
        converged=number != 1,
        aligned=number == 1,
        seconds=0.5 * number,
    )


def test_a_simulation_is_read_as_it_was_written(tmp_path):
    generator = np.random.default_rng(0)
    for number in range(2):
        made = made_up_simulation(generator, {"policy rows": 3, "log joint": 1}, number)
        calibrating._save(made, tmp_path / "one.npz")
        found = calibrating._load(tmp_path / "one.npz")
        np.testing.assert_equal(found._asdict(), made._asdict())
        assert list(found.ranked) == ["policy rows", "log joint"]
    (tmp_path / "one.npz").write_bytes((tmp_path / "one.npz").read_bytes()[:300])
    with pytest.raises(ValueError, match=r"one\.npz: damaged .*; delete it and the simulation is"):
        calibrating._load(tmp_path / "one.npz")


def test_simulations_with_fewer_quantities_are_filled_up():
    generator = np.random.default_rng(1)
    groups = ({"latents": 2, "policy rows": 1}, {"policy rows": 3}, {"initial rows": 1})
    made = [made_up_simulation(generator, own, k) for k, own in enumerate(groups)]
    settings = Settings(tiny_model(), tiny_team(), "gibbs", {"num_chains": 2}, 30, 5, 0.25, 7)
    found = calibrating._collect(settings, made)
    assert list(found.ranked) == ["policy rows", "initial rows", "latents"]
    for name in Ranked._fields:
        rows = getattr(found.ranked["policy rows"], name)
        np.testing.assert_array_equal(rows[0, :1], getattr(made[0].ranked["policy rows"], name))
        np.testing.assert_array_equal(rows[1], getattr(made[1].ranked["policy rows"], name))
        assert np.isnan(rows).tolist() == [[False, True, True], [False] * 3, [True] * 3]
        assert getattr(found.ranked["latents"], name).shape == (3, 2)
    for kind in ("point", "averaged"):
        for name in Reliability._fields:
            own = [getattr(getattr(one, kind), name) for one in made]
            np.testing.assert_array_equal(getattr(getattr(found, kind), name), own)
    assert found.fits.to_dict("list") == {
        "draws": [10, 11, 12],
        "converged": [True, False, True],
        "aligned": [False, True, False],
        "seconds": [0.0, 0.5, 1.0],
    }
    assert (found.method, found.options, found.seed) == ("gibbs", {"num_chains": 2}, 7)
    assert (found.num_draws, found.share_labelled, found.num_simulations) == (30, 0.25, 3)


def made_up_calibration(**changes):
    """Twelve simulations: places all high, rows twice, latents once; steps of two kinds."""
    place = np.linspace(0.7, 0.98, 24).reshape(12, 2)
    place[3, 1] = np.nan  # one of them has a single quantity
    truth = np.where(np.arange(24).reshape(12, 2) % 2, 3.0, -1.0)
    rows = Ranked(place, truth, np.zeros((12, 2)), np.full((12, 2), 2.0))
    latents = Ranked(*(part[:, :1] for part in (place - 0.01, truth + 4, *rows[2:])))
    steps = np.zeros((2, 12, 100))
    steps[:, :, 60], steps[:, :, 90] = 4, 6
    said = steps * (np.arange(100) + 0.5) / 100
    right = np.zeros_like(steps)
    right[0, :, 60], right[0, :, 90] = 1, 6
    right[1, :, 60], right[1, :, 90] = 2, [5, 6] * 6
    fits = pd.DataFrame({"draws": [25] * 12, "converged": True, "aligned": False})
    arguments = {
        "method": "exact",
        "options": {},
        "model": tiny_model(),
        "demos": tiny_team(),
        "share_labelled": 1 / 3,
        "num_draws": 25,
        "seed": 0,
        "ranked": {"policy rows": rows, "latents": latents},
        "point": Reliability(steps[0], said[0], right[0]),
        "averaged": Reliability(steps[1], said[1], right[1]),
        "fits": fits,
    } | changes
    return Calibration(**arguments)


def test_the_table_of_groups_by_hand():
    found = made_up_calibration()
    table = found.table()
    # The posterior's values are too low; of latents the true ones were thought improbable.
    assert table["verdict"].to_dict() == {"policy rows": "too low", "latents": "overconfident"}
    assert table["simulations"].tolist() == [12, 12]
    assert table["quantities"].tolist() == [23, 12]
    rows, place = table.loc["policy rows"], found.ranked["policy rows"].place
    known = place[~np.isnan(place)]
    assert rows["spread"] == pytest.approx(12 * ((known - 0.5) ** 2).mean())
    assert rows["coverage_50"] == pytest.approx((known < 0.75).mean())
    assert rows["coverage_89"] == pytest.approx((known < 0.945).mean())
    assert rows["error_ratio"] == pytest.approx(np.sqrt((12 * 9 + 12) / (24 * 4)))
    assert table.loc["latents", "error_ratio"] == pytest.approx(1.5)  # 3 over 2
    assert table.loc["latents", ["spread", "coverage_50", "coverage_89"]].isna().all()
    inside = (place < 0.945).sum(1)
    apart = inside - rows["coverage_89"] * (~np.isnan(place)).sum(1)
    assert rows["coverage_89_se"] == pytest.approx(np.sqrt((apart**2).sum() * 12 / 11) / 23)
    headings, written = found.written_table()
    assert headings == ["ranks of", "verdict", "error / sd", "spread", "in 50%", "in 89%"]
    assert [row[:2] for row in written] == [
        ("policy rows", "too low"), ("latents", "overconfident"),
    ]  # fmt: skip
    assert written[0][5] == f"{rows['coverage_89']:.2f} ± {rows['coverage_89_se']:.2f}"
    assert written[1][3:] == ("–", "–", "–")
    # What may be chance is no fault, if one is not to be found where there is none.
    doubtful = made_up_calibration(
        ranked={"log prior": normal_ranks(np.random.default_rng(1), 1.0, -0.4, 12)}
    )
    assert doubtful.verdicts(0.5) == {"log prior": "too low"}
    assert doubtful.table(0.5)["verdict"].tolist() == ["too low"]
    assert doubtful.written_table(0.5)[1][0][1] == "too low"
    assert doubtful.verdicts() == {"log prior": "uniform"}


def test_sure_and_right_by_hand():
    found = made_up_calibration()
    table = found.latent_table()
    assert table["kind"].tolist() == ["point", "point", "averaged", "averaged"]
    assert table["steps"].tolist() == [48, 72, 48, 72]
    assert table["low"].tolist() == [0.6, 0.9, 0.6, 0.9]
    np.testing.assert_allclose(table["said"], [0.605, 0.905, 0.605, 0.905])
    np.testing.assert_allclose(table["right"], [1 / 4, 1, 2 / 4, 5.5 / 6])
    excess = found.overconfidence()
    said = 0.4 * 0.605 + 0.6 * 0.905
    assert excess["point"] == pytest.approx((said - 0.7, 0))
    assert excess["averaged"][0] == pytest.approx(said - 0.75)
    # Seven or eight of ten are right, in turn.
    assert excess["averaged"][1] == pytest.approx(0.05 / np.sqrt(11))
    nothing = Reliability(*np.zeros((3, 12, 100)))
    assert list(made_up_calibration(point=nothing).overconfidence()) == ["averaged"]


def test_places_for_arviz_are_as_many_of_each_group():
    found = made_up_calibration()
    first = found.ranked["latents"].place
    first[3] = np.nan  # nothing to test in one of them
    places = found.to_datatree()["prior_sbc"]
    assert dict(places.sizes) == {"simulation": 11}
    np.testing.assert_array_equal(places["latents"], np.delete(first[:, 0], 3))
    rows = found.ranked["policy rows"].place[:11, 0]
    np.testing.assert_array_equal(places["policy rows"], rows)


def test_ratios_stand_in_the_order_of_the_calibrations_with_a_line_for_each_method():
    one = made_up_calibration()
    wide = one.ranked["policy rows"]
    narrow = {"policy rows": wide._replace(sd=wide.sd / 2), "log prior": wide}
    other = made_up_calibration(method="mfvi", ranked=narrow)
    axes = plot_error_ratios({"exact, few": one, "mfvi": other, "exact, many": one}).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        "exact, few", "mfvi", "exact, many",
    ]  # fmt: skip
    bars = [container.lines[0] for container in axes.containers]
    drawn = [
        ([round(float(x), 2) for x in line.get_xdata()], list(line.get_ydata())) for line in bars
    ]
    rows, latents = np.sqrt(120 / 96), 1.5
    # The log prior is no quantity of which errors are told.
    assert drawn == [
        ([-0.03, 1.97], pytest.approx([rows, rows])),
        ([0.97], pytest.approx([2 * rows])),
        ([0.03, 2.03], pytest.approx([latents, latents])),
        ([], []),
    ]
    assert axes.get_yscale() == "log"


def test_distribution_functions_are_drawn_less_what_they_should_be():
    found = made_up_calibration()
    figure = plot_ecdf_pit({"one": found}, groups=["latents"])
    (panel,) = figure.axes
    solid, dotted = (line for line in panel.lines if len(line.get_xdata()) > 2)
    places = found.ranked["latents"].place[:, 0]
    at = np.arange(13) / 12
    expected = (places[:, None] <= at).mean(0) - at
    np.testing.assert_allclose(solid.get_xdata(), at)
    np.testing.assert_allclose(solid.get_ydata(), expected, atol=1e-12)
    assert (solid.get_linestyle(), dotted.get_linestyle()) == ("-", ":")
    grid = dotted.get_xdata()
    np.testing.assert_allclose(dotted.get_ydata(), (places[:, None] <= grid).mean(0) - grid)
    assert len(panel.collections) == 1
    with pytest.raises(ValueError, match="no group nonsense; there are policy rows, latents"):
        plot_ecdf_pit({"one": found}, groups=["nonsense"])


def test_hollow_marks_are_of_the_point_estimate():
    found = made_up_calibration()
    # Of fewer than twenty steps no mark is made.
    few = found.point.steps.copy()
    few[2:, 60] = 0
    point = Reliability(few, few * 0.7, few * 0.5)
    above, below = plot_latents({"one": made_up_calibration(point=point)}).axes
    hollow = [line for line in above.lines if line.get_markerfacecolor() == "none"]
    assert [line.get_xdata() for line in hollow] == [[pytest.approx(0.7)]]
    assert [line.get_ydata() for line in hollow] == [[0.5]]
    assert above.get_xlim() == below.get_xlim() == (0.48, 1.02)
    every = Reliability(*np.zeros((3, 12, 100)))
    with pytest.raises(ValueError, match="every step is labelled"):
        plot_latents({"one": made_up_calibration(averaged=every)})


def test_a_page_shows_what_there_is(tmp_path, monkeypatch):
    drawn = []

    def written_figure(figure, stem, caption):
        drawn.append(stem.name)
        return Markup("<figure>") + caption

    monkeypatch.setattr(calibration_page, "written_figure", written_figure)
    found = made_up_calibration()
    monkeypatch.setattr(Calibration, "plot_ecdf_pit", lambda self: None)
    monkeypatch.setattr(Calibration, "plot_latents", lambda self: None)
    page = found.report(tmp_path, command="btil calibrate <team>")
    assert (page, drawn) == (tmp_path / "calibration.html", ["ecdf", "latents"])
    text = page.read_text(encoding="utf-8")
    assert "btil calibrate &lt;team&gt;" in text
    assert "Is the posterior of exact right?" in text
    assert text.index("12 truths from the prior") < text.index("overconfident")
    assert text.index("overconfident") < text.index("Where truths lie among posterior draws")
    for name, table in (("table", found.table()), ("fits", found.fits)):
        read = pd.read_csv(tmp_path / f"{name}.csv", index_col=0)
        pd.testing.assert_frame_equal(read, table, check_names=False)
    latents = pd.read_csv(tmp_path / "latents.csv")
    pd.testing.assert_frame_equal(latents, found.latent_table())
    # Of one simulation there is no band, and no latent to be sure of where all are labelled.
    drawn.clear()
    nothing = Reliability(*np.zeros((3, 1, 100)))
    ranked = {"latents": Ranked(*(part[:1] for part in found.ranked["latents"]))}
    changes = {"ranked": ranked, "averaged": nothing, "fits": found.fits[:1]}
    made_up_calibration(**changes).report(tmp_path)
    assert drawn == []
    text = page.read_text(encoding="utf-8")
    assert "too few simulations" in text
    assert "btil calibrate" not in text
    assert not (tmp_path / "latents.csv").read_text(encoding="utf-8").count("averaged")


def test_of_latents_it_is_ranked_whether_the_most_probable_is_wrong():
    beliefs = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    found = rank_latents(beliefs, np.array([1, 1, 0]), np.random.default_rng(0))
    assert found.truth.tolist() == [1, 0, 0]
    np.testing.assert_allclose(found.mean, [0.1, 0.2, 0.5])
    np.testing.assert_allclose(found.sd, [0.3, 0.4, 0.5])
    assert (found.place <= [1.0, 0.8, 1.0]).all()
    assert found.place[0] >= 0.9


def test_places_of_equal_beliefs_take_any_order():
    """By plain loops: the probability of all latents before the true one, and a part of its own."""
    generator = np.random.default_rng(0)
    beliefs = np.tile([0.2, 0.5, 0.3], (3000, 1))
    for truth, low, high in ((1, 0.0, 0.5), (2, 0.5, 0.8), (0, 0.8, 1.0)):
        places = place_of_latents(beliefs, np.full(3000, truth), generator)
        assert low <= places.min() < places.max() <= high
        assert places.mean() == pytest.approx((low + high) / 2, abs=0.03)
    even = place_of_latents(np.full((3000, 2), 0.5), np.zeros(3000, int), generator)
    assert stats.kstest(even, "uniform").pvalue > 1e-3


def test_hidden_steps_are_those_whose_label_was_not_seen():
    there = np.array([[True, True], [True, False], [True, True], [True, True]])
    full = btil.Demonstrations(
        [0] * 4, [[0, 0]] * 4, latents=[[0, 1], [1, -1], [1, 2], [0, 0]], present=there,
        agents=("ann", "bob"), num_latents=(2, 3), num_actions=1,
    )  # fmt: skip
    observed = full.replace(latents=[[0, -1], [-1, -1], [1, -1], [-1, 0]])
    beliefs = {"ann": np.eye(4, 2), "bob": np.eye(4, 3)}
    (ann, told), (bob, said) = simulation_module._hidden(beliefs, full, observed)
    np.testing.assert_array_equal(ann, np.eye(4, 2)[[1, 3]])
    np.testing.assert_array_equal(bob, np.eye(4, 3)[[0, 2]])
    assert (told.tolist(), said.tolist()) == ([1, 0], [1, 2])
    counted = simulation_module._reliability([(ann, told), (bob, said)])
    assert (counted.steps.sum(), counted.right.sum()) == (4, 3)
    ranked = simulation_module._rank_latents(
        [(ann, told), (bob, said)], 3, np.random.default_rng(0)
    )
    assert ranked.place.shape == (3,)
    every = simulation_module._rank_latents([(ann, told), (bob, said)], 9, np.random.default_rng(0))
    assert sorted(every.truth.tolist()) == [0, 0, 0, 1]
    assert simulation_module._rank_latents([], 3, np.random.default_rng(0)) is None


def test_tables_say_what_was_found(exact, too_narrow):
    table = exact.table()
    assert table.index.name == "group"
    assert (table["simulations"] == 40).all()
    assert np.isnan(table.loc["latents", "spread"])
    latents = exact.latent_table()
    assert set(latents["kind"]) == {"point", "averaged"}
    assert (latents.groupby("kind")["steps"].sum() == exact.point.steps.sum()).all()
    assert ((latents["said"] >= latents["low"]) & (latents["said"] <= latents["high"])).all()
    assert ((latents["lower"] <= latents["right"]) & (latents["right"] <= latents["upper"])).all()
    console = output_console()
    with console.capture() as captured:
        console.print(too_narrow.summary_table())
    assert "overconfident" in captured.get()
    assert "33% of the episodes" in exact.notes()[0]
    assert "policy rows uniform" in repr(exact)


def test_notes_count_what_went_otherwise():
    fits = pd.DataFrame({"draws": [25] * 40, "converged": True, "aligned": False})
    nothing = Reliability(*np.zeros((len(Reliability._fields), 40, 1)))
    found = Calibration(
        "exact", {}, tiny_model(), tiny_team(), 1 / 3, 25, 0, {}, nothing, nothing, fits
    )

    def notes(**changes):
        return dataclasses.replace(found, **changes).notes()

    assert len(notes()) == 2
    assert "labelled: 33% of the episodes." in notes()[0]
    assert "labelled: the steps that the data label." in notes(share_labelled=None)[0]
    (told,) = notes(fits=fits.assign(converged=[False] * 3 + [True] * 37))[2:]
    assert told == "3 of 40 fits did not converge by their own criterion."
    (told,) = notes(fits=fits.assign(draws=[5, *[12] * 20, *[25] * 19]))[2:]
    assert told.endswith("as many draws as they are worth: 5 to 25, median 12.")
    unpinned = fits.assign(aligned=[True] * 7 + [False] * 33)
    (told,) = notes(fits=unpinned)[2:]
    assert told.startswith("In 7 of 40 simulations nothing pins some latents; the exact")
    (told,) = notes(fits=unpinned, method="mfvi")[2:]
    assert told.startswith("In 7 of 40 simulations nothing pins some latents; they were named")


def test_pictures(exact, too_narrow):
    both = {"exact": exact, "too narrow": too_narrow}
    figure = plot_ecdf_pit(both, groups=["policy rows", "latents"])
    first, second = figure.axes
    assert (first.get_title(), second.get_title()) == ("policy rows", "latents")
    solid = [
        line for line in first.lines if line.get_linestyle() == "-" and len(line.get_xdata()) > 2
    ]
    # Differences of distribution functions begin and end at zero.
    assert len(solid) == 2
    assert all(line.get_ydata()[[0, -1]].tolist() == [0, 0] for line in solid)
    with pytest.raises(ValueError, match="no group nonsense; there are policy rows"):
        plot_ecdf_pit(both, groups=["nonsense"])
    # One without latents to be sure of is passed over.
    labelled = calibrate_tiny(num_simulations=2, share_labelled=1.0)
    plot_latents({"labelled": labelled, "exact": exact})
    above = matplotlib.figure.Figure().subplots(2, 1)
    assert plot_latents({"exact": exact}, axes=above) is above[0].get_figure()
    assert above[1].get_xlabel() == "probability of the most probable latent"
    ratios = plot_error_ratios(both).axes[0]
    assert [label.get_text() for label in ratios.get_xticklabels()] == ["exact", "too narrow"]
    with pytest.raises(ValueError, match="there is no calibration"):
        plot_error_ratios({})


def test_arviz_takes_the_ranks(exact):
    import arviz

    tree = exact.to_datatree()
    assert dict(tree["prior_sbc"].sizes) == {"simulation": 40}
    assert np.array_equal(tree["prior_sbc"]["policy rows"], exact.ranked["policy rows"].place[:, 0])
    shown = arviz.plot_ecdf_pit(
        tree, var_names=["policy rows"], sample_dims=["simulation"], backend="none"
    )
    assert "policy rows" in shown.viz["ecdf_lines"]


def test_the_page_has_what_there_is_and_drops_what_there_is_no_more(exact, tmp_path):
    page = exact.report(tmp_path / "told", command="btil calibrate <team>.csv")
    text = page.read_text(encoding="utf-8")
    assert "btil calibrate &lt;team&gt;.csv" in text
    assert "33% of the episodes" in text
    assert text.count("<figure") == 2
    table = pd.read_csv(tmp_path / "told" / "table.csv", index_col="group")
    pd.testing.assert_frame_equal(table, exact.table(), check_exact=False)
    fits = pd.read_csv(tmp_path / "told" / "fits.csv", index_col="simulation")
    assert fits["draws"].tolist() == exact.fits["draws"].tolist()
    assert (tmp_path / "told" / "figures" / "latents.svg").is_file()
    # Of one simulation there is no band; with every step labelled, no latent to be sure of.
    calibrate_tiny(num_simulations=1, share_labelled=1.0).report(tmp_path / "told")
    assert "<figure" not in page.read_text(encoding="utf-8")
    assert list((tmp_path / "told" / "figures").iterdir()) == []


# ---------------------------------------------------------------------- from a shell


def run_command(*arguments):
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)], prog_name="btil")


def test_the_command_passes_on_what_it_is_given(tmp_path, monkeypatch):
    asked = []

    def calibrate(model, demos, method, **given):
        asked.append((demos.episode_lengths.tolist(), method, given))
        raise ValueError("that will do")

    monkeypatch.setattr("btil.analysis.calibration.calibrate", calibrate)
    file = tmp_path / "team.csv"
    btil.write_demonstrations(tiny_team(), file)
    options = ("--method", "gibbs", "--seed", 5, "--share-labelled", 0.5, "--num-episodes", 2)
    numbers = ("--num-simulations", 7, "--num-draws", 33, "--num-chains", 2, "--num-samples", 9)
    refused = run_command(file, "--out", tmp_path / "out", "-q", *options, *numbers)
    assert refused.stderr == "error: that will do\n"
    ((lengths, method, given),) = asked
    assert (lengths, method) == ([3, 2], "gibbs")
    wanted = {"seed": 5, "share_labelled": 0.5, "num_simulations": 7, "num_draws": 33}
    assert (
        given.items() >= (wanted | {"num_chains": 2, "num_samples": 9, "progress": False}).items()
    )


def test_the_command_prints_verdicts_writes_a_page_and_goes_on(tmp_path, monkeypatch):
    file, out = tmp_path / "team.csv", tmp_path / "out"
    btil.write_demonstrations(tiny_team(), file)
    options = [file, "--num-latents", "2", "--transition-parents", "", "--out", out, "-q"]
    options += ["--share-labelled", 0.5, "--num-episodes", 2, "--num-simulations"]
    monkeypatch.setattr(sys, "argv", ["btil", "calibrate", *map(str, [*options, 2])])
    result = run_command(*options, 2)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "policy rows" in result.stdout
    assert "too few simulations" in result.stdout
    assert "latents: surer than right by" in result.stdout
    assert "2 truths from the prior; data on the states of 2 episodes" in result.stdout
    page = out / "calibration.html"
    assert result.stdout.splitlines()[-1] == f"page       {page}"
    assert "btil calibrate" in page.read_text(encoding="utf-8")
    stored = out / "simulations" / "simulation-00001.npz"
    before = stored.stat().st_mtime_ns
    assert run_command(*options, 3).exit_code == 0
    assert stored.stat().st_mtime_ns == before
    assert len(list(stored.parent.glob("simulation-*.npz"))) == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--method", "magic"), "unknown method 'magic'"),
        (("--num-episodes", 4), "--num-episodes is 4; allowed are 1 to 3"),
        (
            ("--share-labelled", 1.5),
            "share_labelled must be a number from 0 to 1",
        ),
        (("--num-chains", 2), "num_chains"),
    ],
)
def test_the_command_refuses_bad_options(tmp_path, options, says):
    btil.write_demonstrations(tiny_team(), tmp_path / "team.csv")
    result = run_command(tmp_path / "team.csv", "--out", tmp_path / "out", *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert says in result.stderr
