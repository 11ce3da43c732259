"""What else is asked of recordings with gaps: evidence, calibration, guides, models, files."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from test_emission_methods import CHIB, _reading_actions, _with_gaps
from test_emissions import _demos, _model
from test_recordings_inference import model, team

import btil
from btil.analysis.debriefing.findings import find
from btil.models.draws import prior_tables
from btil.models.emission import step_log_density
from btil.models.simulate import simulate
from btil.models.team import bind


def team_with_columns():
    """Bob leaves, an unseen action that the own transition reads, weights, columns."""
    labelled = [[1, 0], [0, 1], [-1, -1], [1, 2], [0, -1]]
    demos = _with_gaps(_demos(lengths=(3, 2)).replace(latents=labelled), away=3)
    return demos, _reading_actions().resolved(_demos())


CASES = {"gaps": lambda: (team(), model()), "columns": team_with_columns}


@pytest.mark.covers("unseen actions and states", "evidence")
@pytest.mark.covers("members who come and go", "evidence")
@pytest.mark.covers("unsure labels", "evidence")
@pytest.mark.covers("gaps beside columns", "evidence")
@pytest.mark.parametrize("case", CASES)
def test_the_evidence_is_the_sum_over_all_that_nobody_saw(case):
    demos, given = CASES[case]()
    exact = btil.fit(given, demos, "exact", progress=False)
    found = btil.analysis.log_evidence(given, demos, **CHIB)
    assert found.se < 0.4
    assert abs(found.value - exact.elbo) < 4.5 * found.se


def test_the_evidence_by_tempering_draws_unseen_actions_at_the_temperature_of_paths():
    exact = btil.fit(model(), team(), "exact", progress=False)
    options = {"num_replicates": 20, "num_particles": 128, "num_temperatures": 20, "seed": 1}
    found = btil.analysis.log_evidence(model(), team(), progress=False, **options)
    assert found.se < 0.03
    assert abs(found.value - exact.elbo) < 4.5 * found.se


@pytest.mark.covers("unseen actions and states", "mfvi_guide")
@pytest.mark.covers("members who come and go", "mfvi_guide")
@pytest.mark.covers("unsure labels", "mfvi_guide")
@pytest.mark.covers("gaps beside columns", "mfvi_guide")
@pytest.mark.parametrize("case", CASES)
def test_the_guide_is_between_mean_field_and_evidence(case, numpyro_as_it_is, x64):
    from numpyro.infer import Trace_ELBO

    demos, given = CASES[case]()
    posterior = btil.fit(given, demos, progress=False, dtype="float64")
    elbo = Trace_ELBO(num_particles=100, vectorize_particles=True)
    target, guide = btil.team_dbn(posterior.model, demos), btil.mfvi_guide(posterior)
    loss = jax.jit(lambda key: elbo.loss(key, {}, target, guide))
    bounds = np.array([-float(loss(jax.random.key(k))) for k in range(6)])
    error = bounds.std(ddof=1) / np.sqrt(6)
    exact = btil.fit(given, demos, "exact", progress=False)
    assert posterior.elbo < bounds.mean() + 4 * error
    assert bounds.mean() - 4 * error < exact.elbo


@pytest.mark.covers("unseen actions and states", "calibration")
@pytest.mark.covers("members who come and go", "calibration")
@pytest.mark.covers("unsure labels", "calibration")
def test_calibration_with_gaps_is_right():
    """Recordings are drawn with the same gaps; the exact posterior's ranks are uniform."""
    found = btil.analysis.calibrate(
        model(), team(), "exact", num_simulations=40, num_draws=40, seed=2, progress=False
    )
    assert set(found.verdicts().values()) == {"uniform"}
    assert {"policy rows", "transition rows", "latents"} <= set(found.table().index)


@pytest.mark.covers("unseen actions and states", "suggest_model")
@pytest.mark.covers("members who come and go", "suggest_model")
@pytest.mark.covers("unsure labels", "suggest_model")
@pytest.mark.covers("gaps beside columns", "suggest_model")
def test_a_model_is_suggested_for_recordings_with_gaps():
    for demos, acts in (
        (btil.concatenate([team()] * 12), True),
        (_with_gaps(_demos(lengths=(30, 20), labelled=40)), False),
    ):
        found = btil.suggest_model(demos, progress=False, refit=False).model
        assert found.explains_actions("bob") == acts
        assert (found.emission("ann") is None) == acts
        bind(found, demos)


@pytest.mark.covers("gaps beside columns", "saved files", "simulation", "tracker")
def test_gaps_beside_columns_are_kept_simulated_and_tracked(tmp_path):
    demos, given = team_with_columns()
    posterior = btil.fit(given, demos, progress=False, dtype="float64")
    posterior.save(tmp_path / "one.nc")
    again = btil.load_posterior(tmp_path / "one.nc")
    np.testing.assert_array_equal(again.log_likelihood(demos), posterior.log_likelihood(demos))
    generator = np.random.default_rng(0)
    played = simulate(given, demos, prior_tables(given, demos, generator), generator)
    np.testing.assert_array_equal(played.actions < 0, demos.actions < 0)
    np.testing.assert_array_equal(played.present, demos.present)
    assert (played.latents[demos.present] >= 0).all()
    filtered, tracker = posterior.filter(demos.without_labels()), posterior.tracker()
    for t in range(demos.num_steps):
        if t in demos.episode_starts:
            tracker.reset()
        away = [agent for i, agent in enumerate(demos.agents) if not demos.present[t, i]]
        actions = {"ann": int(demos.actions[t, 0])} if demos.actions[t, 0] >= 0 else {"ann": None}
        columns = {name: values[t] for name, values in demos.continuous.items()}
        belief = tracker.update(int(demos.states[t]), actions, continuous=columns, away=away)
        for agent in set(demos.agents) - set(away):
            np.testing.assert_allclose(belief.latents[agent], filtered[agent][t], atol=1e-9)


@pytest.mark.covers(
    "tables with parameters beside columns",
    "smoothing and decoding",
    "tracker",
    "simulation",
    "saved files",
    "predictive check",
    "debrief",
)
@pytest.mark.covers("regressions on covariates", "debrief")
@pytest.mark.covers("blank cells of columns", "debrief")
def test_tables_with_parameters_beside_columns_are_asked_alike(tmp_path):
    """Beliefs by enumeration at the posterior means; the rest against these."""
    demos = _demos(blank=[("ann_y", 4)])
    given = _model(covariates=("bob_x",))
    policy = {"ann": btil.SoftmaxCPT(parents=("state",)), "bob": None}
    posterior = btil.fit(
        dataclasses.replace(given, policy=policy), demos, progress=False, dtype="float64"
    )
    policy = posterior.policy("ann", demos.states)
    said = step_log_density(
        posterior.bound.channels["ann"], *posterior.emission("ann", [0, 1])
    ) + np.log(policy[np.arange(7), :, demos.actions[:, 0]])
    initial, transition = posterior.initial("ann")[0], posterior.transition("ann")[0]
    paths = np.array(list(itertools.product(range(2), repeat=7)))
    logs = said[np.arange(7), paths].sum(1)
    for t in range(7):
        first = t in demos.episode_starts
        logs += np.log(initial[paths[:, t]] if first else transition[paths[:, t - 1], paths[:, t]])
    weights = np.exp(logs - logs.max())
    marginal = weights @ paths / weights.sum()
    np.testing.assert_allclose(posterior.smooth(demos)["ann"][:, 1], marginal, rtol=1e-8)
    np.testing.assert_array_equal(posterior.decode(demos)[:, 0], paths[logs.argmax()])
    filtered, tracker = posterior.filter(demos), posterior.tracker()
    for t in range(7):
        if t in demos.episode_starts:
            tracker.reset()
        columns = {name: values[t] for name, values in demos.continuous.items()}
        action = {"ann": int(demos.actions[t, 0])}
        belief = tracker.update(int(demos.states[t]), action, continuous=columns)
        np.testing.assert_allclose(belief.latents["ann"], filtered["ann"][t], atol=1e-9)
    posterior.save(tmp_path / "one.nc")
    again = btil.load_posterior(tmp_path / "one.nc")
    np.testing.assert_array_equal(again.log_likelihood(demos), posterior.log_likelihood(demos))
    made = btil.analysis.simulate_truth(posterior.model, demos, seed=1).test
    assert np.isnan(made.continuous["ann_y"]).sum() == 1
    check = btil.analysis.posterior_predictive_check(posterior, num_draws=3)
    assert {"actions", "columns"} <= {one.group for one in check.statistics}
    does = find(posterior, demos).habits["does"]
    assert does.str.contains("ann_x").any()
