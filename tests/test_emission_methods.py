"""Continuous channels beside everything else that a posterior is asked for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import logsumexp
from test_emissions import (
    BLANK,
    _assert_same_posterior,
    _chains,
    _demos,
    _enumerated,
    _log_evidence,
    _model,
    _rescaled,
)

import btil
from btil.inference import ascents, channels, gibbs
from btil.inference.checkpoint import Checkpoint
from btil.inference.collapsed import drawn_channels
from btil.inference.mean_field import State
from btil.inference.mfvi import Run
from btil.inference.result import FitResult
from btil.messages.layout import lay_out
from btil.models.emission import (
    Normals,
    channel_log_density,
    channel_sites,
    step_log_density,
)
from btil.models.parametric import expected_rows, parametric_site
from btil.models.team import bind, likelihood_name
from btil.numerics.precision import precision
from btil.numpyro_forms.model_data import ChannelSites, model_data
from btil.numpyro_forms.team_dbn import (
    ChannelValues,
    sample_channel_posteriors,
    sample_channels,
    step_evidence,
)
from btil.suggestion import motion
from btil.suggestion.motion import own_columns, proposals


@pytest.mark.covers("normal columns", "refined")
@pytest.mark.covers("regressions on covariates", "refined")
@pytest.mark.covers("members without actions", "refined")
def test_refined_draws_are_those_of_the_exact_posterior():
    # Most steps labelled: chains go everywhere in a few sweeps.
    labelled = [[1, 0], [0, 1], [-1, -1], [1, 2], [0, -1]]
    demos = _demos(lengths=(3, 2)).replace(latents=labelled)
    model = _model(parents=(), covariates=("bob_x",))
    coarse = btil.fit(model, demos, progress=False, dtype="float64")
    refined = coarse.refined(2000, num_sweeps=60, seed=1, progress=False)
    exact = btil.fit(model, demos, "exact", progress=False)
    own, other = (one.sample(number, seed=2) for one, number in ((refined, 2000), (exact, 40_000)))
    assert set(own) == set(other)
    _assert_same_posterior(own, other)
    # What it says of the likelihood is that of the draw.
    tables = {name: table.prior_mean() for name, table in refined.bound.tables.items()}
    tables |= {name: rows.draws[0, 5] for name, rows in refined.result.rows.items()}
    for agent, channel in refined.bound.channels.items():
        drawn = refined.result.channels[channel.name]
        tables[likelihood_name(agent)] = step_log_density(
            channel, drawn.coefficients[0, 5], drawn.covariance[0, 5]
        )
    again = refined.episode_log_likelihood(refined.bound, lay_out(refined.bound), tables)
    np.testing.assert_allclose(refined.result.log_likelihood[0, 5], again, rtol=1e-9)


@pytest.mark.covers("normal columns", "devices")
@pytest.mark.covers("blank cells of columns", "devices")
@pytest.mark.covers("members without actions", "devices")
def test_two_devices_say_the_same():
    one, two = (
        btil.fit(_model(), _demos(blank=BLANK), dtype="float64", devices=number, progress=False)
        for number in (None, 2)
    )
    assert two.elbo == pytest.approx(one.elbo, abs=1e-9)
    for mine, own in zip(one.emission("ann", [0, 1]), two.emission("ann", [0, 1]), strict=True):
        np.testing.assert_allclose(mine, own, rtol=1e-7)


class _Ended(RuntimeError):
    """What ends a run."""


@pytest.mark.parametrize("labelled", [1, 7])
def test_a_run_that_was_cut_anywhere_goes_on(labelled, tmp_path, monkeypatch):
    """The same bits, whichever offer was the last one; with few labels climbs compete."""
    monkeypatch.setattr(ascents, "SWEEPS_PER_CALL", 4)
    monkeypatch.setattr(channels, "SWEEPS_PER_CALL", 4)
    demos, model = _demos(labelled=labelled), _model()
    options = {"progress": False, "num_restarts": 2, "max_iterations": 12, "tolerance": 1e-9}
    whole = btil.fit(model, demos, **options)
    offers = []

    def cut(self, **progress):
        offers.append(None)
        if len(offers) == stop:
            plain(self, **progress)
            self.write()
            raise _Ended
        plain(self, **progress)

    plain, stop = Checkpoint.offer, -1
    monkeypatch.setattr(Checkpoint, "offer", cut)
    btil.fit(model, demos, **options)
    number = len(offers)
    for stop in {1, 2, number // 3, number // 2, number - 1}:
        path = tmp_path / f"run-{stop}"
        offers.clear()
        with pytest.raises(_Ended):
            btil.fit(model, demos, checkpoint=path, **options)
        stop = -1
        again = btil.fit(model, demos, checkpoint=path, resume=True, **options)
        np.testing.assert_array_equal(again.elbo_trace, whole.elbo_trace)
        assert [len(one) for one in again.result.restart_traces] == [
            len(one) for one in whole.result.restart_traces
        ]
        for one, other in zip(whole.emission("bob", [0]), again.emission("bob", [0]), strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.covers("tables with parameters beside columns", "mfvi", "refined")
@pytest.mark.parametrize("family", [btil.SoftmaxCPT, btil.HierarchicalDirichletCPT])
def test_tables_with_parameters_stand_beside_channels(family):
    """Columns that say nothing of the latent add their density to the bound, and nothing else."""
    demos = _demos(lengths=(20, 10), labelled=6, scale=1.0)
    tables = {
        "policy": {"ann": family(parents=("state",)), "bob": None},
        "transition": btil.DirichletCPT(0.8, parents=()),
    }
    certain = {"location": 1000.0, "pseudo_steps": 1e12, "noise": 1.5, "degrees_of_freedom": 1e12}
    said = {
        "ann": btil.NormalEmission(("ann_x", "ann_y"), **certain),
        "bob": btil.NormalEmission(("bob_x",), **certain),
    }
    options = {"progress": False, "dtype": "float64", "tolerance": 1e-7}
    plain = btil.fit(btil.TeamModel(**tables), demos, **options)
    both = btil.fit(btil.TeamModel(**tables, emissions=said), demos, **options)
    density = sum(
        stats.norm(1000.0, 1.5).logpdf(values).sum() for values in demos.continuous.values()
    )
    assert both.elbo == pytest.approx(plain.elbo + density, abs=1e-2)
    np.testing.assert_allclose(
        both.policy("ann", demos.states), plain.policy("ann", demos.states), atol=2e-3
    )
    refined = both.refined(60, num_sweeps=4, progress=False)
    assert refined.result.log_likelihood.shape == (1, 60, 2)


CHIB = {"method": "chib", "num_warmup": 100, "num_samples": 600, "progress": False}


@pytest.mark.covers("normal columns", "evidence")
@pytest.mark.covers("regressions on covariates", "evidence")
@pytest.mark.covers("members without actions", "evidence")
@pytest.mark.parametrize("labelled", [5, 0])
def test_the_evidence_by_chib_is_the_sum_over_all_paths(labelled):
    """Without labels, too, where the average is over all namings of the latents."""
    demos, model = _demos(labelled=labelled), _model(covariates=("previous_bob_x",))
    found = btil.analysis.log_evidence(model, demos, **CHIB)
    exact = _log_evidence(model, demos)
    assert found.se < 0.4
    assert abs(found.value - exact) < 4.5 * found.se


@pytest.mark.covers("blank cells of columns", "evidence")
def test_the_evidence_of_blank_cells_is_a_quadrature_over_them():
    demos = _demos(lengths=(3, 2), blank=[("ann_y", 4)])
    model = _model().resolved(demos)
    found = btil.analysis.log_evidence(model, demos, **CHIB)
    centre, width = 1000.0, 2500.0
    angles = np.linspace(-1.55, 1.55, 121)
    grid = centre + width * np.tan(angles) / np.tan(1.55)
    stretch = width / np.cos(angles) ** 2 / np.tan(1.55) * (angles[1] - angles[0])
    logs = []
    for value, weight in zip(grid, stretch, strict=True):
        columns = {name: values.copy() for name, values in demos.continuous.items()}
        columns["ann_y"][4] = value
        filled = demos.replace(continuous=columns)
        logs.append(logsumexp(_enumerated(model, filled, "ann")[1]) + np.log(weight))
    exact = logsumexp(logs) + logsumexp(_enumerated(model, demos, "bob")[1])
    assert abs(found.value - exact) < 4.5 * found.se
    with pytest.raises(ValueError, match=r"smc does not take .* emissions; .*method=.chib"):
        btil.analysis.log_evidence(model, demos)


def test_densities_are_those_of_scipy():
    generator = np.random.default_rng(0)
    location, factor, wide = (generator.normal(size=size) for size in ((3, 2), (3, 3), (2, 2)))
    precision, scale = factor @ factor.T + np.eye(3), wide @ wide.T + np.eye(2)
    covariance = stats.invwishart(5.5, scale).rvs(random_state=1)
    coefficients = generator.normal(size=(3, 2))
    normals = Normals(location, precision, scale, np.asarray(5.5))
    expected = stats.invwishart(5.5, scale).logpdf(covariance) + stats.matrix_normal(
        location, np.linalg.inv(precision), covariance
    ).logpdf(coefficients)
    found = channel_log_density(normals, coefficients, covariance)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


def _small_team():
    """Weak priors of which simulated columns are near 1, and labels for every latent."""
    demos = _demos(lengths=(5, 3), labelled=5, scale=1.0)
    labels = np.array([[0, 0], [1, 1], [0, 2], [1, 0], [-1, -1], [-1, -1], [-1, -1], [-1, -1]])
    weak = {"noise": 0.7, "degrees_of_freedom": 6, "location": 0.0, "pseudo_steps": 0.5}
    model = btil.TeamModel(
        policy={"ann": btil.DirichletCPT(0.7, parents=("state",)), "bob": None},
        transition=btil.DirichletCPT(0.8, parents=()),
        emissions={
            "ann": btil.NormalEmission(("ann_x", "ann_y"), **weak),
            "bob": btil.NormalEmission(("bob_x",), **weak),
        },
    )
    return demos.replace(latents=labels), model


@pytest.mark.covers("normal columns", "calibration")
@pytest.mark.covers("members without actions", "calibration")
def test_draws_of_columns_are_given_in_the_units_of_the_data():
    """A standardised draw times the columns' standard deviations, from their means."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=(50, 2)) * [0.01, 300.0] + [5.0, -2000.0]
    demos = btil.Demonstrations(
        None, np.zeros(50, int), num_latents=2, num_actions=1,
        continuous={"x": values[:, 0], "y": values[:, 1]},
    )  # fmt: skip
    bound = bind(btil.TeamModel(emissions=btil.NormalEmission(("x", "y"))), demos)
    sites = ChannelSites.of(bound.channels["agent_0"])
    factor = np.tril(generator.normal(size=(1, 3, 1, 2, 2, 2)))
    means = generator.normal(size=(1, 3, 1, 2, 1, 2))
    draws = {sites.factor: factor, sites.standardised: means}
    found = drawn_channels(bound, draws)["emission_agent_0"]
    mean, sd = values.mean(0), values.std(0)
    covariance = np.einsum("...ik,...jk->...ij", factor, factor) * np.outer(sd, sd)
    np.testing.assert_allclose(found.covariance, covariance, rtol=1e-9)
    np.testing.assert_allclose(found.coefficients, mean + means * sd, rtol=1e-9)


def test_chains_of_gibbs_are_given_in_the_units_of_the_data():
    """Blank cells have no density; the first episode is the longer one."""
    generator = np.random.default_rng(0)
    values = generator.normal(size=(7, 2)) * [0.01, 300.0] + [5.0, -2000.0]
    values[1, 0] = values[5, 1] = np.nan
    demos = btil.Demonstrations(
        None, np.zeros(7, int), episodes=[0] * 4 + [1] * 3, num_latents=2, num_actions=1,
        continuous={"x": values[:, 0], "y": values[:, 1]},
    )  # fmt: skip
    bound = bind(btil.TeamModel(emissions=btil.NormalEmission(("x", "y"))), demos)
    laid = channels.laid_channels(bound, lay_out(bound), np.dtype(np.float64))
    name = "emission_agent_0"
    factor = generator.normal(size=(2, 5, 1, 2, 2, 2))
    plain = {
        f"{name}/coefficients": generator.normal(size=(2, 5, 1, 2, 1, 2)),
        f"{name}/covariance": factor @ np.swapaxes(factor, -1, -2),
    }
    rows = {
        site: generator.dirichlet(
            np.ones(table.shape[-1]), (2, 5, len(table.contexts.rows), *table.shape[1:-1])
        )
        for site, table in bound.learned.items()
    }
    likelihood = generator.normal(size=(2, 5, 2))
    record = gibbs.Record(likelihood, rows | plain, {}, {}, [])
    found = gibbs._result(bound, record, laid, None, np.array([5]))
    mean, sd = np.nanmean(values, 0), np.nanstd(values, 0)
    # Seen cells of x and y, of each episode.
    in_units = likelihood - np.array([[3, 4], [3, 2]]) @ np.log(sd)
    np.testing.assert_allclose(found.log_likelihood, in_units, rtol=1e-9)
    np.testing.assert_allclose(
        found.sample_stats["log_likelihood_total"], in_units.sum(-1), rtol=1e-9
    )
    of_channel = found.channels[name]
    np.testing.assert_allclose(
        of_channel.coefficients, mean + plain[f"{name}/coefficients"] * sd, rtol=1e-9
    )
    np.testing.assert_allclose(
        of_channel.covariance, plain[f"{name}/covariance"] * np.outer(sd, sd), rtol=1e-9
    )
    assert set(found.rows) == set(rows)
    assert not found.parameters


def test_a_mean_field_is_told_in_the_units_of_the_data():
    """Its bounds, those of all runs, and the densities of the columns."""
    bound = bind(_model(), _demos(labelled=5, blank=[("bob_x", 0), ("ann_x", 6)]))
    with precision(np.float64) as dtype:
        run = Run(bound, dtype, None, None, None)
        state = run.begin(run.known)
        traces = np.array([-5.0, -3.0]), np.array([-7.0])
        plain = FitResult({}, True, "", -3.0, elbo_trace=traces[0], restart_traces=traces)
        found = run._with_channels(plain, state)
    columns = bound.demos.continuous
    shift = -sum(np.isfinite(one).sum() * np.log(np.nanstd(one)) for one in columns.values())
    assert found.elbo == pytest.approx(-3 + shift)
    np.testing.assert_allclose(found.elbo_trace, traces[0] + shift)
    for own, trace in zip(found.restart_traces, traces, strict=True):
        np.testing.assert_allclose(own, trace + shift)
    # Bob's third latent and the others by their labelled steps, without the blank one.
    mean, strength = (part[0, 0].item() for part in bound.channels["bob"].prior()[:2])
    labels, bob = bound.demos.latents[:, 1], columns["bob_x"]
    for latent, location in enumerate(found.channels["emission_bob"].location[0, :, 0, 0]):
        own = bob[(labels == latent) & np.isfinite(bob)]
        expected = (strength * mean + own.sum()) / (strength + len(own))
        assert location == pytest.approx(expected)


@pytest.mark.parametrize("shared", [False, True])
def test_who_tries_again_takes_what_is_its_own_and_leaves_the_others_where_they_are(shared):
    initial = btil.DirichletCPT(1.3)
    model = dataclasses.replace(_model(), initial=btil.Shared(initial) if shared else initial)
    bound = bind(model, _demos(num_latents=(2, 2)))
    run = Run(bound, np.dtype(np.float32), None, None, None)
    kept, dealt = (
        State(
            {site: jnp.full(1, k) for site in bound.learned},
            channels={f"emission_{agent}": k for agent in ("ann", "bob")},
        )
        for k in (0, 1)
    )
    for agent, mix in zip(("ann", "bob"), run.mixes, strict=True):
        found = mix(kept, dealt)
        for site, value in (found.concentration | found.channels).items():
            assert int(np.asarray(value).item()) == site.endswith(agent), site


def test_calibration_ranks_coefficients_and_noise():
    demos, model = _small_team()
    found = btil.analysis.calibrate(
        model, demos, "exact", num_simulations=40, num_draws=60, seed=2, progress=False
    )
    table = found.table()
    assert {"emission coefficients", "emission noise", "log joint"} <= set(table.index)
    assert set(found.verdicts().values()) == {"uniform"}
    with pytest.raises(ValueError, match="in a model with parameters or emissions they cannot be"):
        btil.analysis.calibrate(model, demos.without_labels(), "exact", 2, progress=False)


def test_simulations_of_other_priors_of_columns_are_of_another_kind():
    from btil.analysis.calibration.calibrating import _fingerprint
    from btil.analysis.calibration.simulation import Settings

    demos = _demos()
    prints = [
        _fingerprint(Settings(model, demos, "exact", {}, 10, 10, None, 0))
        for model in (_model(), _model(), _with_pseudo_steps(0.4))
    ]
    assert prints[0] == prints[1]
    assert prints[2] != prints[0]


def _with_pseudo_steps(number):
    family = btil.NormalEmission(("bob_x",), pseudo_steps=number)
    model = _model()
    return dataclasses.replace(model, emissions=dict(model.emissions) | {"bob": family})


def test_a_known_truth_is_made_written_and_read(tmp_path):
    from btil.analysis.known_truth import write_truth

    demos, model = _small_team()
    made = btil.analysis.simulate_truth(model, demos, seed=3)
    assert made.test.latents.min() >= 0
    assert not np.allclose(made.demos.continuous["bob_x"], demos.continuous["bob_x"])
    write_truth(made.tables, tmp_path / "truth.npz")
    again = btil.analysis.read_truth(tmp_path / "truth.npz", model, demos)
    contexts = bind(model, demos).channels["ann"].contexts
    for one, other in zip(
        made.tables.channels["ann"].rows(contexts),
        again.channels["ann"].rows(contexts),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    wider = dataclasses.replace(
        model, emissions={**model.emissions, "ann": btil.NormalEmission(("ann_x",))}
    )
    with pytest.raises(ValueError, match="the emission of ann has another shape in the model"):
        btil.analysis.read_truth(tmp_path / "truth.npz", wider, demos)


@pytest.mark.covers("normal columns", "mfvi_guide")
@pytest.mark.covers("regressions on covariates", "mfvi_guide")
@pytest.mark.covers("members without actions", "mfvi_guide")
def test_the_guide_is_the_mean_field(numpyro_as_it_is, x64):
    """Its bound, latents summed out, lies between that of the mean field and the evidence."""
    from numpyro.infer import Predictive, Trace_ELBO

    demos, model = _demos(), _model(covariates=("bob_x",))
    posterior = btil.fit(model, demos, progress=False, dtype="float64")
    guide, target = btil.mfvi_guide(posterior), btil.team_dbn(posterior.model, demos)
    elbo = Trace_ELBO(num_particles=100, vectorize_particles=True)
    loss = jax.jit(lambda key: elbo.loss(key, {}, target, guide))
    losses = np.array([float(loss(jax.random.key(k))) for k in range(8)])
    error = losses.std(ddof=1) / np.sqrt(8)
    assert posterior.elbo < -losses.mean() + 4 * error
    assert -losses.mean() - 4 * error < _log_evidence(model, demos)
    assert -losses.mean() < posterior.elbo + 5
    draws = Predictive(guide, num_samples=4000)(jax.random.key(1))
    units = posterior.bound.channels["ann"].units()
    standardised = np.asarray(draws["emission_standardised_ann"])
    mean = posterior.emission("ann", [0, 1]).coefficients
    found = units.coefficients(standardised)
    assert np.all(np.abs(found.mean(0) - mean) < 4.5 * found.std(0) / np.sqrt(4000))
    gibbs = btil.fit(
        model, demos, "gibbs", num_chains=1, num_warmup=2, num_samples=3, progress=False
    )
    with pytest.raises(ValueError, match="gibbs did not give Dirichlet rows"):
        btil.mfvi_guide(gibbs)


def test_columns_have_the_density_of_the_data_in_whichever_units(numpyro_as_it_is, x64):
    """Sites are in units of one: of prior and guide what they differ by, of steps the density."""
    from numpyro import handlers

    # SciPy takes a precision of columns far from nought for singular.
    demos = _rescaled(_demos(lengths=(3, 2), blank=BLANK[:3]), lambda _, x: x - 900.0)
    bound = bind(_model(covariates=("bob_x",)), demos)
    structure, data = model_data(bound)
    generator = np.random.default_rng(0)
    values, priors, posteriors = {}, {}, {}
    for one in structure.channels:
        channel = bound.channels[one.agent]
        contexts, latents, p, d = channel.shape
        values[one.standardised] = generator.normal(size=(contexts, latents, p, d))
        factor = np.tril(generator.normal(size=(contexts, latents, d, d)), -1)
        values[one.factor] = factor + generator.uniform(0.5, 1.5, (contexts, latents, d, 1)) * (
            np.eye(d)
        )
        priors[channel.name] = prior = Normals(*channel.prior())
        posteriors[channel.name] = prior._replace(
            location=prior.location * generator.uniform(0.9, 1.1, prior.location.shape),
            precision=1.5 * prior.precision,
            scale=1.3 * prior.scale,
            degrees=prior.degrees + 2.5,
        )

    @jax.jit
    def traced(values):
        found, told = {}, {}
        for name, sample in (
            ("prior", lambda: sample_channels(structure, data)),
            ("guide", lambda: sample_channel_posteriors(bound, posteriors)),
        ):
            trace = handlers.trace(handlers.substitute(sample, data=values)).get_trace()
            sampled = [one for one in trace.values() if one["type"] == "sample"]
            found[name] = sum(one["fn"].log_prob(one["value"]) for one in sampled)
            told |= {n: one["value"] for n, one in trace.items() if one["type"] != "sample"}
        said = {
            one.agent: step_evidence(
                data, one.agent, ChannelValues(values[one.standardised], values[one.factor])
            )
            for one in structure.channels
        }
        return found, told, said

    found, told, said = jax.device_get(traced(values))
    apart = 0.0
    for agent, channel in bound.channels.items():
        coefficients, covariance = (told[site] for site in channel_sites(channel))
        coefficients = coefficients.reshape(channel.shape)
        for at in np.ndindex(*channel.shape[:2]):
            for sign, of in ((1, posteriors), (-1, priors)):
                location, precision, scale, degrees = (part[at] for part in of[channel.name])
                apart += sign * stats.invwishart(float(degrees), scale).logpdf(covariance[at])
                apart += sign * stats.matrix_normal(
                    location, np.linalg.inv(precision), covariance[at]
                ).logpdf(coefficients[at])
        expected = step_log_density(channel, coefficients, covariance)
        np.testing.assert_allclose(said[agent][0], expected[:3], rtol=1e-8)
        np.testing.assert_allclose(said[agent][1, :2], expected[3:], rtol=1e-8)
    assert found["guide"] - found["prior"] == pytest.approx(apart, rel=1e-8)


def _with_gaps(demos, away=1):
    """Bob leaves for a step, nobody saw an action of ann's that her transition reads."""
    there = np.ones((demos.num_steps, 2), bool)
    there[away, 1] = False
    actions = np.where(np.arange(demos.num_steps) == 0, -1, demos.actions[:, 0])
    weights = np.random.default_rng(3).uniform(0.1, 2.0, size=(demos.num_steps, 2))
    return demos.replace(
        present=there,
        actions={"ann": actions},
        latents=np.where(there, demos.latents, -1),
        missing="allow",
        latent_weights={"ann": weights},
    )


def _reading_actions():
    model = _model(parents=())
    transition = {
        "ann": btil.DirichletCPT(0.8, parents=("own_action",)),
        "bob": btil.DirichletCPT(0.8, parents=()),
    }
    return dataclasses.replace(model, transition=transition)


@pytest.mark.covers("gaps beside columns", "exact", "mfvi", "gibbs", "refined")
def test_gaps_beside_columns():
    """Exact: one sum over the latents and the unseen action, held against filled-in data."""
    # Most steps labelled: chains go everywhere in a few sweeps.
    labelled = [[1, 0], [0, 1], [-1, -1], [1, 2], [0, -1]]
    demos = _with_gaps(_demos(lengths=(3, 2)).replace(latents=labelled), away=3)
    model = _reading_actions().resolved(_demos())
    exact = btil.fit(model, demos, "exact", progress=False)
    logs = [
        btil.fit(model, demos.replace(actions={"ann": [a, *demos.actions[1:, 0]]}), "exact",
                 progress=False).elbo
        for a in range(3)
    ]  # fmt: skip
    assert exact.elbo == pytest.approx(logsumexp(logs), abs=1e-8)
    coarse = btil.fit(model, demos, dtype="float64", progress=False, tolerance=1e-8)
    assert exact.elbo - 5 < coarse.elbo < exact.elbo
    gibbs = btil.fit(
        model, demos, "gibbs", progress=False, num_chains=4, num_warmup=100, num_samples=3000
    )
    refined = coarse.refined(2000, num_sweeps=60, progress=False)
    for found in (gibbs, refined):
        _assert_same_posterior(_chains(found), exact.sample(40_000, seed=1))


@pytest.mark.covers("blank cells of columns", "refined")
def test_refined_draws_with_a_blank_cell_are_those_of_gibbs():
    labelled = [[1, 0], [0, 1], [-1, -1], [1, 2], [0, -1]]
    demos = _demos(lengths=(3, 2), blank=[("ann_y", 2)]).replace(latents=labelled)
    model = _model(parents=())
    gibbs = btil.fit(
        model, demos, "gibbs", progress=False, num_chains=4, num_warmup=100, num_samples=3000
    )
    coarse = btil.fit(model, demos, dtype="float64", progress=False)
    refined = coarse.refined(2000, num_sweeps=60, progress=False)
    _assert_same_posterior(_chains(refined), gibbs.sample(6000, seed=1))


@pytest.mark.covers("gaps beside columns", "svi", "nuts")
@pytest.mark.covers("tables with parameters beside columns", "svi", "nuts")
@pytest.mark.parametrize("family", [None, btil.SoftmaxCPT])
def test_numpyro_density_is_that_of_the_messages(family, numpyro_as_it_is, x64):
    """The likelihood of every episode at drawn values, gaps and columns and parameters and all."""
    from numpyro import handlers

    from btil.numpyro_forms.team_dbn import team_dbn

    demos = _demos(blank=BLANK) if family else _with_gaps(_demos(blank=BLANK))
    model = _reading_actions().resolved(demos)
    if family:
        model = dataclasses.replace(model, policy={"ann": family(parents=("state",)), "bob": None})

    def drawn(key):
        """A draw of every site, and the likelihood of the episodes there."""
        trace = handlers.trace(handlers.seed(team_dbn(model, demos), key)).get_trace()
        sampled = {name: one for name, one in trace.items() if one["type"] == "sample"}
        observed = [one for one in sampled.values() if one["is_observed"]]
        return (
            {name: one["value"] for name, one in trace.items() if "value" in one},
            sum(one["fn"].log_prob(one["value"]) for one in observed),
        )

    values, found = jax.tree.map(np.asarray, jax.jit(drawn)(jax.random.key(1)))
    posterior = btil.fit(model, demos, progress=False, dtype="float64")
    tables = {name: table.prior_mean() for name, table in posterior.bound.tables.items()}
    tables |= {name: rows for name, rows in values.items() if name in tables}
    if family:
        parameters = {name: one for name, one in values.items() if name.startswith("policy_ann_")}
        described = parametric_site(posterior.bound.tables["policy_ann"])
        draws = {name: one[None] for name, one in parameters.items()}
        contexts = posterior.bound.tables["policy_ann"].contexts
        tables["policy_ann"] = expected_rows(described, draws, contexts)
    for agent, channel in posterior.bound.channels.items():
        coefficients, covariance = (values[site] for site in channel_sites(channel))
        tables[likelihood_name(agent)] = step_log_density(
            channel, coefficients.reshape(channel.shape), covariance
        )
    expected = posterior.episode_log_likelihood(posterior.bound, lay_out(posterior.bound), tables)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.covers("tables with parameters beside columns", "gibbs")
@pytest.mark.refuses("tables with parameters beside columns", "exact", remedy="use gibbs or mfvi")
def test_gibbs_with_parameters_and_columns():
    """Columns that say nothing of the latents leave the tables as they are without them."""
    demos = _demos(lengths=(20, 10), labelled=30, scale=1.0)
    policy = {"ann": btil.SoftmaxCPT(parents=("state",)), "bob": None}
    said = {"bob": btil.NormalEmission(("bob_x",))}
    options = {"progress": False, "num_warmup": 150, "num_samples": 500}
    plain, both = (
        btil.fit(
            btil.TeamModel(policy, btil.DirichletCPT(0.8, parents=()), emissions=given),
            demos, "gibbs", **options,
        )
        for given in (None, said)
    )  # fmt: skip
    one, other = (p.result.rows["policy_ann"] for p in (plain, both))
    np.testing.assert_allclose(one.mean(), other.mean(), atol=0.05)
    np.testing.assert_allclose(one.sd(), other.sd(), rtol=0.3)
    with pytest.raises(ValueError, match=r"SoftmaxCPT.*use"):
        btil.fit(both.model, demos, "exact", progress=False)


def test_columns_that_the_step_before_tells_are_covariates():
    """Positions are told by velocities; a constant says nothing; a blank is no obstacle."""
    task = btil.domains.errands(num_steps=20)
    demos = task.simulate(10, seed=0)
    columns = {name: values.copy() for name, values in demos.continuous.items()}
    columns["bob_vx"][[3, 40]] = np.nan
    columns["ann_height"] = np.ones(demos.num_steps)
    columns["heat"] = np.arange(demos.num_steps) * 1.0  # nobody's
    demos = demos.replace(continuous=columns)
    for agent in task.agents:
        x, y, vx, vy = task.columns(agent)
        assert own_columns(demos, agent) == ((vx, vy), (x, y))
    assert own_columns(_demos(), "bob") == (("bob_x",), ())
    assert [type(one["bob"]).__name__ for one in proposals(_demos())] == [
        "NormalEmission", "LinearNormalEmission",
    ]  # fmt: skip


def test_columns_that_say_nothing_of_a_member_are_no_emission():
    """Those of nobody, of two, of another, of one value, and those that nobody saw."""
    steps = np.arange(6.0)
    demos = _demos(lengths=(6,)).replace(
        continuous={
            "heat": steps, "ann_to_bob": steps, "bob_x": steps, "ann_low": 0 * steps,
            "ann_unseen": np.nan * steps, "ann_some": np.where(steps < 4, np.nan, steps),
        }
    )  # fmt: skip
    assert own_columns(demos, "ann") == (("ann_some",), ())
    assert own_columns(demos, "bob") == (("bob_x",), ())
    alone = btil.Demonstrations(None, [0, 1], num_latents=2, continuous={"heat": [0, 1]})
    assert own_columns(alone, "agent_0") == (("heat",), ())
    assert proposals(demos.replace(continuous={"heat": steps})) == []


def test_emissions_are_tried_from_the_fullest_where_positions_are_told():
    """Walkers: where they are is told by where they were; of who stands nothing is."""
    generator = np.random.default_rng(0)
    speed = generator.normal(size=60)
    place = np.concatenate([[0.0], np.cumsum(speed)[:-1]])
    demos = btil.Demonstrations(
        None, None, episodes=np.zeros(60, int), agents=("ann", "bob"), num_latents=2,
        continuous={"ann_at": place, "ann_v": speed, "bob_v": generator.normal(size=60)},
    )  # fmt: skip
    assert own_columns(demos, "ann") == (("ann_v",), ("ann_at",))
    full, places, plain = proposals(demos)
    assert full == {
        "ann": btil.LinearNormalEmission(("ann_v",), ("ann_at", "previous_ann_v")),
        "bob": btil.LinearNormalEmission(("bob_v",), ("previous_bob_v",)),
    }
    assert places == {
        "ann": btil.LinearNormalEmission(("ann_v",), ("ann_at",)),
        "bob": btil.NormalEmission(("bob_v",)),
    }
    assert plain == {a: btil.NormalEmission((f"{a}_v",)) for a in ("ann", "bob")}
    without = demos.replace(continuous={"ann_v": speed, "bob_v": demos.continuous["bob_v"]})
    first, second = proposals(without)
    assert first == plain
    assert second["ann"] == btil.LinearNormalEmission(("ann_v",), ("previous_ann_v",))
    # An episode that begins, here elsewhere, is told by nothing before it.
    second_half = np.repeat([0, 1], 30)
    moved = {**demos.continuous, "ann_at": place + 5.0 * second_half}
    cut = demos.replace(episodes=second_half, continuous=moved)
    assert own_columns(cut, "ann") == (("ann_v",), ("ann_at",))
    # A regression takes three moves for each number that it learns of a column: nine here.
    for steps, told in ((10, (("ann_v",), ("ann_at",))), (9, (("ann_at", "ann_v"), ()))):
        few = btil.Demonstrations(
            None, None, episodes=np.zeros(steps, int), agents=("ann", "bob"), num_latents=2,
            continuous={"ann_at": place[:steps], "ann_v": speed[:steps]},
        )  # fmt: skip
        assert own_columns(few, "ann") == told


@pytest.mark.covers("normal columns", "suggest_model")
@pytest.mark.covers("members without actions", "suggest_model")
@pytest.mark.covers("blank cells of columns", "suggest_model")
def test_a_model_is_suggested_for_members_with_and_without_actions():
    demos = _demos(lengths=(30, 20), labelled=40, blank=BLANK)
    found = btil.suggest_model(demos, progress=False, refit=False)
    assert found.model.explains_actions("ann")
    assert not found.model.explains_actions("bob")
    assert found.model.emission("bob").columns == ("bob_x",)
    assert "columns of ann: ann_x and ann_y, by its intent alone" in str(found)
    posterior = btil.fit(found.model, demos, max_iterations=3, progress=False)
    assert posterior.decode(demos).shape == (50, 2)


@pytest.mark.covers("regressions on covariates", "suggest_model")
def test_the_model_suggested_for_motion_decodes_as_the_true_one():
    task = btil.domains.errands()
    few = task.simulate(100, seed=0).without_labels(np.arange(10, 100))
    test = task.simulate(100, seed=1)
    found = btil.suggest_model(few, progress=False)
    fits = (btil.fit(one, few, progress=False) for one in (task.true_model(), found.model))
    errors = [(fit.decode(test) != test.latents).mean() for fit in fits]
    assert errors[1] < 1.2 * errors[0]
    assert "columns of bob: bob_vx and bob_vy, by bob_x, bob_y, previous_bob_vx" in str(found)


def test_coverage_of_columns_is_what_intervals_say():
    """Draws of the prior with every step labelled: intervals of the exact posterior are right."""
    from btil.analysis.known_truth import coverage_table

    _, model = _small_team()
    demos = _demos(lengths=(40, 30), labelled=70, scale=1.0)
    model = dataclasses.replace(
        model,
        emissions={
            "ann": btil.NormalEmission(
                ("ann_x", "ann_y"), parents=("state",), noise=0.7, degrees_of_freedom=6,
                location=0.0, pseudo_steps=0.5,
            ),
            "bob": model.emissions["bob"],
        },
    )  # fmt: skip
    kinds = ("coefficients", "noise")
    covered = {kind: [] for kind in kinds}
    for seed in range(8):
        made = btil.analysis.simulate_truth(model, demos, seed=seed, share_labelled=1.0)
        fitted = btil.fit(model, made.demos, progress=False, max_iterations=3)
        table = coverage_table(fitted, made.tables, seed)
        assert table.loc["all", "rows"] == table["rows"].iloc[:-1].sum()
        for kind in kinds:
            assert 4 <= table.loc[kind, "rows"] <= 7  # those held at all
            covered[kind].append(table.loc[kind, "coverage_50"])
        if seed == 0:  # far too sure
            sure = {
                name: one._replace(
                    precision=400 * one.precision, scale=400 * one.scale, degrees=400 * one.degrees
                )
                for name, one in fitted.result.channels.items()
            }
            result = fitted.result._replace(channels=sure)
            narrow = coverage_table(dataclasses.replace(fitted, result=result), made.tables)
            assert narrow.loc["coefficients", "coverage_89"] < 0.5
    for kind, number in (("coefficients", 11), ("noise", 11)):
        # 8 teams, 11 numbers each: a standard error of some 0.05.
        assert abs(np.mean(covered[kind]) - 0.5) < 4 * 0.5 / np.sqrt(8 * number)


def test_what_the_step_before_leaves_is_what_a_regression_does():
    generator = np.random.default_rng(0)
    before = generator.normal(size=40)
    after = 3.0 - 2.0 * before + 0.5 * generator.normal(size=40)
    left = motion._left(after[:, None], before[:, None])
    correlation = np.corrcoef(before, after)[0, 1]
    np.testing.assert_allclose(left, [np.sqrt(1 - correlation**2)])
    # Both columns before tell of either.
    both = np.stack([before, generator.normal(size=40)], axis=1)
    told = np.stack([both.sum(1) + 7.0, generator.normal(size=40)], axis=1)
    first, second = motion._left(told, both)
    assert first < 1e-12
    assert 0.8 < second < 1
    # Of fewer than three steps a number nothing can be said.
    assert motion._left(after[:5, None], before[:5, None]).tolist() == [1]
    assert motion._left(after[:6, None], before[:6, None])[0] < 1
