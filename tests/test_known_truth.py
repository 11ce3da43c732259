"""Made-up recordings and how posteriors cover their truth."""

import dataclasses

import numpy as np
import pytest
from teams import hmm_demos, hmm_model, random_demos

import btil
from btil.analysis import known_truth
from btil.analysis.known_truth import check_truth, coverage_table, simulate_truth
from btil.inference.result import DirichletRows, DrawnChannel, DrawnRows, FitResult
from btil.models.draws import prior_tables
from btil.models.team import bind
from btil.posterior.numpyro_posterior import bind_model
from btil.posterior.posterior import TeamPosterior


def uniform(data):
    """A model of one's own in which everything is as likely as anything else."""
    for agent in data.agents:
        latents, actions = np.zeros(data.num_latents[agent]), np.zeros(data.num_actions[agent])
        data.observe(agent, latents, latents, actions)


def demos_of(num_episodes=30, labelled=1.0):
    return random_demos(
        lengths=(8,) * num_episodes,
        num_latents=(2, 3),
        num_actions=(3, 4),
        num_states=(6, 2),
        labelled=labelled,
    )


MODEL = btil.TeamModel(
    btil.DirichletCPT(0.8, parents=("x",)),
    btil.DirichletCPT(0.8, parents=("x", "y")),
    btil.DirichletCPT(1.0),
)


def rows_of_labels(made, scale=1.0):
    """The exact posterior where every step is labelled: prior plus counts, scaled."""
    bound = bind(MODEL, made.demos)
    fitted = btil.fit(MODEL, made.demos, progress=False, max_iterations=2)
    rows = {
        site: DirichletRows(scale * fitted.result.rows[site].concentration)
        for site in bound.learned
    }
    return dataclasses.replace(fitted, result=fitted.result._replace(rows=rows))


@pytest.fixture(scope="module")
def made():
    return simulate_truth(MODEL, demos_of(), seed=3)


def test_right_intervals_cover_as_often_as_they_say(made):
    found = coverage_table(rows_of_labels(made), made.tables)
    assert found.index.tolist() == ["policy", "transition", "initial", "all"]
    assert found.loc["all", "rows"] == found["rows"].iloc[:-1].sum()
    for name, right in (("coverage_50", 0.5), ("coverage_89", 0.89)):
        error = found.loc["all", f"{name}_se"]
        assert 0 < error < 0.06
        assert abs(found.loc["all", name] - right) < 3 * error


def test_narrow_intervals_do_not(made):
    found = coverage_table(rows_of_labels(made, 10.0), made.tables)
    assert found.loc["all", "coverage_50"] < 0.3
    assert found.loc["all", "coverage_89"] < 0.6


def test_all_or_none_of_a_few_rows_is_no_certainty(made):
    few = coverage_table(rows_of_labels(made, 1000.0), made.tables).loc["initial"]
    assert few["rows"] == 2
    assert few["coverage_50"] == 0
    assert few["coverage_50_se"] == pytest.approx(np.sqrt(1 / 3 * 2 / 3 / 6))


def test_rows_that_the_data_read_once_are_in_use():
    # One step in each latent, and no move from the last one.
    demos = hmm_demos([0, 1], [0, 1], num_actions=2)
    truth = prior_tables(hmm_model(), demos, np.random.default_rng(0))
    table = coverage_table(btil.fit(hmm_model(), demos, progress=False), truth)
    assert table["rows"].to_dict() == {"policy": 2, "transition": 1, "initial": 1, "all": 4}


def test_intervals_of_columns_cover_coefficients_and_noise():
    """Two labelled latents with two columns; of one draws are right, of the other far too high."""
    demos = btil.Demonstrations(
        np.zeros(4, int), None, np.array([[0], [0], [1], [1]]), agents=("ann",), num_latents=3,
        continuous={"x": np.array([1.0, 2.0, 3.0, np.nan]), "y": np.array([0.0, 1.0, 0.0, np.nan])},
    )  # fmt: skip
    model = btil.TeamModel(
        policy=None,
        transition=btil.DirichletCPT(1.0, parents=()),
        emissions=btil.NormalEmission(("x", "y")),
    )
    bound = bind(model.resolved(demos), demos)
    truth = prior_tables(bound.model, demos, np.random.default_rng(0))
    coefficients, covariance = truth.channels["ann"].rows(bound.channels["ann"].contexts)
    generator = np.random.default_rng(1)
    drawn = coefficients + generator.normal(0, 0.1, (1, 200, *coefficients.shape))
    drawn[..., 1, :, :] += 10
    scales = np.exp(generator.normal(0, 0.1, (1, 200, 1, 3, 1, 1)))
    scales[..., 1, :, :] *= 10
    rows = {
        site: DrawnRows(generator.dirichlet(np.ones(t.shape[-1]), (1, 200, *t.shape[:-1])))
        for site, t in bound.learned.items()
    }
    channel = DrawnChannel(drawn, covariance * scales)
    result = FitResult(rows, True, "made by hand", channels={"emission_ann": channel})
    posterior = TeamPosterior(bound, "gibbs", result, 0, np.dtype(float), 1.0)
    found = coverage_table(posterior, truth)
    # The third latent has no step, and the last step of the second no columns.
    for kind in ("coefficients", "noise"):
        assert found.loc[kind, "rows"] == 2
        assert found.loc[kind, "coverage_89"] == 0.5
    assert found.index.tolist() == ["transition", "coefficients", "noise", "all"]
    assert found.loc["all", "rows"] == 4 + found.loc["transition", "rows"]


def test_of_columns_coefficients_and_log_standard_deviations_are_looked_at():
    coefficients = np.arange(12.0).reshape(1, 2, 3, 2)
    covariance = np.array([[[[1.0, 0.5], [0.5, 4.0]], [[9.0, 0.0], [0.0, 16.0]]]])
    flat, noise = known_truth._of_columns(coefficients, covariance)
    np.testing.assert_array_equal(flat, np.arange(12.0).reshape(1, 2, 6))
    np.testing.assert_allclose(noise, np.log([[[1, 2], [3, 4]]]))


def test_labels_are_those_of_the_data():
    demos = demos_of(6, labelled=0.4)
    made = simulate_truth(MODEL, demos, seed=1)
    assert np.array_equal(made.demos.latents >= 0, demos.latents >= 0)
    assert np.array_equal(made.demos.state_variables["x"], demos.state_variables["x"])
    assert not np.array_equal(made.demos.actions, demos.actions)
    assert made.test.latents.min() >= 0
    assert made.test.num_steps == demos.num_steps
    assert not np.array_equal(made.test.actions, made.demos.actions)
    again = simulate_truth(MODEL, demos, seed=1)
    assert again.demos == made.demos
    assert again.test == made.test
    assert simulate_truth(MODEL, demos, seed=2).demos != made.demos
    third = simulate_truth(MODEL, demos, seed=1, share_labelled=1 / 3)
    whole = np.add.reduceat((third.demos.latents >= 0).all(1), demos.episode_starts)
    assert sorted(whole.tolist()) == [0, 0, 0, 0, 8, 8]
    other = demos_of(2)
    elsewhere = simulate_truth(MODEL, demos, other, seed=1)
    assert elsewhere.demos == made.demos
    assert elsewhere.test.num_steps == 16


def test_latents_that_nothing_pins_are_named_as_in_the_truth():
    made = simulate_truth(MODEL, demos_of(), seed=3)
    known = rows_of_labels(made)
    hidden = made.demos.without_labels()
    posterior = dataclasses.replace(known, bound=bind(MODEL, hidden))
    rows = {}
    for site, one in posterior.result.rows.items():
        values = one.concentration
        if site.endswith("ann"):
            values = values[..., ::-1] if not site.startswith("policy") else values
            values = values[..., ::-1, :] if not site.startswith("initial") else values
        rows[site] = DirichletRows(values.copy())
    swapped = dataclasses.replace(posterior, result=posterior.result._replace(rows=rows))
    found = coverage_table(swapped, made.tables)
    assert abs(found.loc["all", "coverage_89"] - 0.89) < 0.15


def test_other_tables_are_refused(made):
    generator = np.random.default_rng(0)
    other = dataclasses.replace(MODEL, policy=btil.DirichletCPT(0.8, parents=("y",)))
    with pytest.raises(ValueError, match="truth: policy_ann has parents \\('y',\\)"):
        check_truth(bind(MODEL, demos_of(2)), prior_tables(other, demos_of(2), generator))
    shared = btil.TeamModel(btil.Shared(btil.DirichletCPT(0.8, parents=("x",))))
    same = random_demos(lengths=(4,), num_latents=(2, 2), num_actions=(2, 2), num_states=(6, 2))
    with pytest.raises(ValueError, match="there is no table 'policy_ann'; its tables are policy,"):
        check_truth(bind(MODEL, demos_of(2)), prior_tables(shared, same, generator))
    with pytest.raises(ValueError, match="is a NumpyroModel, which has no tables to cover"):
        check_truth(bind_model(btil.NumpyroModel(uniform), demos_of(2)), made.tables)
    with pytest.raises(
        ValueError,
        match="share_labelled must be a number from 0 to 1, got 2",
    ):
        simulate_truth(MODEL, demos_of(2), share_labelled=2.0)
