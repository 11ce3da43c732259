"""SVI: bounds against the exact log evidence and a hand-written bound; what a guide gives back."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from enumeration import episode_log_likelihoods, exact_posterior
from teams import hmm_demos, hmm_model, two_labelled_episodes

import btil
from btil.inference import svi
from btil.inference.checkpoint import Checkpoint, Saved
from btil.inference.collapsed import collapsed_data
from btil.inference.result import DirichletRows, DrawnRows
from btil.models.team import bind
from btil.numerics.precision import precision

DEMOS = hmm_demos([0, 0, 1, 1], [0, -1, -1, 1], num_actions=2)


def fit(bound, seed=0, progress=False, dtype=np.float32, **options):
    with precision(dtype) as chosen:
        return svi.fit(bound, seed=seed, progress=progress, dtype=chosen, **options)


def log_density_of_dirichlet(rows, concentration):
    """Log density of Dirichlet rows, one value per row."""
    from scipy.special import gammaln

    normaliser = gammaln(concentration.sum(-1)) - gammaln(concentration).sum(-1)
    return normaliser + ((concentration - 1) * np.log(rows)).sum(-1)


@pytest.mark.parametrize("labels", [None, [0, -1, -1, 1]])
def test_dirichlet_guide_stays_below_the_evidence(labels):
    bound = bind(hmm_model(), hmm_demos([0, 0, 1, 1], labels, num_actions=2))
    result = fit(bound)
    truth = exact_posterior(bound)
    assert result.converged
    assert result.elbo <= truth.log_evidence + 4 * result.elbo_standard_error
    assert result.elbo > truth.log_evidence - 1
    assert all(isinstance(rows, DirichletRows) for rows in result.rows.values())
    assert {name: rows.concentration.shape for name, rows in result.rows.items()} == {
        name: table.shape for name, table in bound.tables.items()
    }


def test_bound_is_that_of_its_own_guide():
    """E_q[log p(data, rows) - log q(rows)], every term written out, by other draws."""
    bound = bind(hmm_model(0.5), DEMOS)
    result = fit(bound, dtype=np.float64)
    generator = np.random.default_rng(5)
    values = []
    draws = {name: rows.sample(2000, generator) for name, rows in result.rows.items()}
    for d in range(2000):
        rows = {name: draw[d] for name, draw in draws.items()}
        value = episode_log_likelihoods(bound, rows).sum()
        for name, row in rows.items():
            prior = np.full(row.shape, 0.5)
            value += log_density_of_dirichlet(row, prior).sum()
            value -= log_density_of_dirichlet(row, result.rows[name].concentration).sum()
        values.append(value)
    error = np.hypot(np.std(values) / np.sqrt(2000), result.elbo_standard_error)
    assert abs(np.mean(values) - result.elbo) < 4 * error


def test_dirichlet_guide_is_exact_where_all_is_labelled():
    bound = bind(hmm_model(), two_labelled_episodes())
    result = fit(bound, tolerance=1e-4, max_iterations=20_000)
    truth = exact_posterior(bound)
    assert result.converged
    assert abs(result.elbo - truth.log_evidence) < 4 * result.elbo_standard_error + 0.01
    for name, rows in result.rows.items():
        np.testing.assert_allclose(rows.mean(), truth.mean[name], atol=0.03)
        np.testing.assert_allclose(rows.sd(), truth.sd[name], atol=0.03)


def test_unlabelled_data_start_off_the_saddle():
    """A start that treats both latents alike would stay so: equal rows for both."""
    bound = bind(hmm_model(), hmm_demos([0, 0, 1, 1], num_actions=2))
    start = svi.starting_concentrations(bound, np.random.default_rng(0))
    assert np.any(start["policy_agent_0"][:, 0] != start["policy_agent_0"][:, 1])
    # Every step is dealt to some latent, beside the prior of 1 of each cell.
    for name, number in (("policy_agent_0", 4), ("transition_agent_0", 3), ("initial_agent_0", 1)):
        added = start[name] - 1
        assert added.min() >= 0
        assert added.sum() == pytest.approx(number)
    labelled = svi.starting_concentrations(bind(hmm_model(), DEMOS), np.random.default_rng(0))
    np.testing.assert_array_equal(labelled["policy_agent_0"], [[[2, 1], [1, 2]]])
    np.testing.assert_array_equal(labelled["transition_agent_0"], [[[1, 1], [1, 1]]])
    np.testing.assert_array_equal(labelled["initial_agent_0"], [[2, 1]])


@pytest.mark.parametrize("guide", svi.AUTOGUIDES)
def test_every_autoguide_runs(guide):
    bound = bind(hmm_model(), DEMOS)
    result = fit(bound, guide=guide, max_iterations=1000, num_samples=200)
    truth = exact_posterior(bound)
    draws = 1 if guide == "AutoDelta" else 200
    for name, rows in result.rows.items():
        assert isinstance(rows, DrawnRows)
        assert rows.draws.shape == (1, draws, *bound.tables[name].shape)
        np.testing.assert_allclose(rows.draws.sum(-1), 1, atol=1e-5)
        # A mode is not near the mean here.
        assert guide == "AutoDelta" or np.abs(rows.mean() - truth.mean[name]).max() < 0.3
    assert result.log_likelihood.shape == (1, draws, 1)
    first = {name: rows.draws[0, 0] for name, rows in result.rows.items()}
    np.testing.assert_allclose(
        result.log_likelihood[0, 0], episode_log_likelihoods(bound, first), atol=1e-4
    )
    if guide == "AutoDelta":
        assert result.elbo is None
        assert result.elbo_trace is None
        # The flat prior's density is one. The last update came after the last evaluation.
        np.testing.assert_allclose(
            result.notes["log_joint"], result.log_likelihood.item(), atol=1e-2
        )
    else:
        assert result.elbo <= truth.log_evidence + 4 * result.elbo_standard_error
        assert result.elbo > truth.log_evidence - 3


def test_autoguides_of_small_concentrations_and_one_latent():
    from numpyro.infer.autoguide import AutoNormal

    small = bind(hmm_model(0.1), DEMOS)
    result = fit(small, guide=AutoNormal, max_iterations=1000)
    assert result.elbo <= exact_posterior(small).log_evidence + 4 * result.elbo_standard_error
    single = bind(hmm_model(), hmm_demos([0, 0, 1], num_latents=1, num_actions=2))
    for guide in ("dirichlet", "AutoNormal"):
        result = fit(single, guide=guide)
        truth = exact_posterior(single)
        assert result.elbo <= truth.log_evidence + 4 * result.elbo_standard_error + 1e-6
        np.testing.assert_array_equal(result.rows["transition_agent_0"].mean(), 1.0)


def test_equal_seeds_give_equal_bits_and_progress_changes_none(capfd):
    bound = bind(hmm_model(), DEMOS)
    first = fit(bound, seed=3)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    other = fit(bound, seed=4)
    second = fit(bound, seed=3, progress=True)
    assert "svi" in capfd.readouterr().err
    assert first.elbo == second.elbo != other.elbo
    np.testing.assert_array_equal(first.elbo_trace, second.elbo_trace)
    for name, rows in first.rows.items():
        np.testing.assert_array_equal(rows.concentration, second.rows[name].concentration)


def test_the_noise_of_the_bound_follows_the_seed(monkeypatch):
    """The guide begins at the labelled counts, whatever the seed; here it stays there."""
    verdict = svi.judge(np.zeros(3), 1.0, 3)
    monkeypatch.setattr(svi, "ascend", lambda begin, *_: (begin(), np.zeros(3), verdict))
    bound = bind(hmm_model(), hmm_demos([0, 0, 1, 1], [0, 0, 1, 1], num_actions=2))
    first, other = fit(bound, seed=0), fit(bound, seed=1)
    for name, rows in first.rows.items():
        np.testing.assert_array_equal(rows.concentration, other.rows[name].concentration)
    assert abs(first.elbo - other.elbo) > 0.1 * first.elbo_standard_error


def test_an_autoguide_forgets_what_ran_before():
    bound = bind(hmm_model(), DEMOS)
    options = {"guide": "AutoDiagonalNormal", "max_iterations": 200}
    first = fit(bound, **options)
    fit(bind(hmm_model(3.0), hmm_demos([1, 1, 0, 1], num_actions=2)), seed=8, **options)
    svi.make_programs.cache_clear()
    fit(bind(hmm_model(3.0), hmm_demos([1, 1, 0, 1], num_actions=2)), seed=8, **options)
    second = fit(bound, **options)
    for name, rows in first.rows.items():
        np.testing.assert_array_equal(rows.draws, second.rows[name].draws)
    np.testing.assert_array_equal(first.elbo_trace, second.elbo_trace)


def test_data_are_arguments_and_a_second_fit_compiles_nothing():

    fit(bind(hmm_model(), DEMOS))
    count = []

    def listen(event, duration, **_):
        if "backend_compile" in event:
            count.append(event)

    other = bind(hmm_model(2.0), hmm_demos([1, 0, 1, 1], [1, -1, -1, 1], num_actions=2))
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        result = fit(other, seed=1)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert count == []
    assert result.elbo <= exact_posterior(other).log_evidence + 4 * result.elbo_standard_error


def test_double_precision_needs_no_switch():
    result = fit(bind(hmm_model(), DEMOS), dtype=np.float64)
    assert all(rows.concentration.dtype == np.float64 for rows in result.rows.values())


class TestJudge:
    def test_settled(self):
        noise = np.random.default_rng(0).normal(size=4000)
        verdict = svi.judge(-10 + noise, 1e-3, 5000)
        assert verdict.stop
        assert verdict.converged

    def test_noise_too_large_to_tell(self):
        noise = np.random.default_rng(0).normal(size=500)
        assert not svi.judge(-10 + 100 * noise, 1e-3, 5000).stop
        capped = svi.judge(-10 + 100 * noise, 1e-3, 500)
        assert capped.stop
        assert not capped.converged
        assert "cap of 500" in capped.reason

    def test_still_rising(self):
        noise = np.random.default_rng(0).normal(size=4000)
        rising = 0.01 * np.arange(4000) + noise
        assert not svi.judge(rising, 1e-3, 5000).converged
        assert not svi.judge(-rising, 1e-3, 4000).converged

    def test_not_finite(self):
        verdict = svi.judge(np.array([-10.0, np.nan, -9.0]), 1e-3, 5000)
        assert verdict.stop
        assert not verdict.converged
        assert "iteration 2" in verdict.reason

    def test_too_short(self):
        verdict = svi.judge(np.array([-10.0, -9.0, -8.5]), 1e9, 3)
        assert verdict.stop
        assert not verdict.converged


def test_the_cap_is_not_convergence():
    result = fit(bind(hmm_model(), DEMOS), max_iterations=150)
    assert not result.converged
    assert "cap of 150" in result.reason
    assert len(result.elbo_trace) == 150


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"guide": "AutoNorml"}, "unknown guide 'AutoNorml'; there are dirichlet, AutoNormal"),
        ({"guide": 3}, "unknown guide 3"),
        ({"max_iterations": 0}, "max_iterations must be a whole number of at least 1, got 0"),
        ({"num_particles": 0}, "num_particles must be"),
        ({"num_samples": 0}, "num_samples must be"),
        ({"tolerance": 0.0}, "tolerance must be a positive number"),
        ({"learning_rate": float("nan")}, "learning_rate must be a positive number"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        btil.fit(hmm_model(), DEMOS, "svi", **options)


class Counting(numpyro.infer.SVI):
    """The state is a number that counts up, and the loss its square."""

    def __init__(self):
        pass

    def evaluate(self, state, inputs):
        return (state * inputs) ** 2

    def stable_update(self, state, inputs):
        return state + 1.0, (state * inputs) ** 2


def test_an_update_tells_the_bound_of_the_state_before_it():
    state, trace = svi.update(Counting(), jnp.asarray(1.0), jnp.asarray(2.0), jnp.asarray(3))
    assert float(state) == 4
    np.testing.assert_array_equal(trace[:3], [-4, -16, -36])


class Noted(Checkpoint):
    """A checkpoint that keeps its offers."""

    def __init__(self, saved=None):
        super().__init__()
        self.saved, self.offers = saved, []

    def offer(self, **progress):
        self.offers.append(progress)


def advance(state, count):
    """Bounds that rise up to -10, and meaningless ones past `count`."""
    number = state + np.arange(svi._ITERATIONS_PER_CALL, dtype=np.float32)
    trace = np.where(np.arange(len(number)) < int(count), -10 - 2.0 ** (-number / 20), np.nan)
    return state + float(count), trace


@pytest.mark.parametrize("most", [150, 1000])
def test_updates_go_on_from_where_they_were_cut_until_the_bound_has_settled(most):
    def begin():
        return jnp.zeros((), jnp.float32)

    whole = Noted()
    state, trace, verdict = svi.ascend(begin, advance, 1e-6, most, whole, False)
    assert verdict.converged == (most == 1000)
    assert float(state) == len(trace)
    assert len(trace) == 150 if most == 150 else 400 <= len(trace) <= 600
    np.testing.assert_allclose(trace, -10 - 2.0 ** (-np.arange(len(trace)) / 20), rtol=1e-6)
    offer = whole.offers[0]
    assert len(offer["trace"]) == 100
    saved = Saved({f"{name}:0": np.asarray(value) for name, value in offer.items()})

    def advance_later(state, count):
        assert float(state) >= 100
        return advance(state, count)

    again = svi.ascend(begin, advance_later, 1e-6, most, Noted(saved), False)
    np.testing.assert_array_equal(again[1], trace)
    assert again[2] == verdict


def test_the_guide_has_a_dirichlet_for_every_row_and_deals_out_one_draw(
    monkeypatch, numpyro_as_it_is
):
    """Gamma draws at their means: every row is its concentration's share."""
    seen = []

    def at_their_means(key, concentration):
        seen.append(key)
        return jnp.log(concentration)

    monkeypatch.setattr(svi, "differentiable_log_gammas", at_their_means)
    structure, data = collapsed_data(bind(hmm_model(0.5), DEMOS), np.dtype(np.float32))
    generator = np.random.default_rng(0)
    start = {
        name: jnp.asarray(generator.uniform(0.5, 4, size=data.concentration[name].shape), "float32")
        for name in structure.dirichlet_sites
    }
    guide = numpyro.handlers.seed(svi.dirichlet_guide, 0)
    traced = numpyro.handlers.trace(guide).get_trace(structure, svi.Inputs(data, start))
    assert len(seen) == 1
    assert len({values.shape for values in start.values()}) > 1
    for name, values in start.items():
        np.testing.assert_allclose(traced[f"{name}_log_concentration"]["value"], np.log(values))
        share = values / values.sum(-1, keepdims=True)
        np.testing.assert_allclose(traced[name]["value"], share, rtol=1e-5)
        np.testing.assert_allclose(traced[name]["fn"].base_dist.concentration, values, rtol=1e-5)


def test_what_is_kept_of_the_guide_are_its_concentrations_normals_and_densities(
    numpyro_as_it_is,
):
    from test_emissions import _demos, _model

    from btil.inference.channel_guide import channel_density, parameter_names

    model = _model()
    policy = {"ann": btil.SoftmaxCPT(parents=("state",)), "bob": None}
    bound = bind(
        btil.TeamModel(policy, model.transition, model.initial, emissions=model.emissions), _demos()
    )
    structure, data = collapsed_data(bound, np.dtype(np.float32))
    generator = np.random.default_rng(0)
    params = {
        f"{name}_log_concentration": generator.normal(size=bound.tables[name].shape)
        for name in structure.dirichlet_sites
    }
    for site, prior in structure.priors.items():
        for part in ("location", "log_scale"):
            params[f"{site}_{part}"] = generator.normal(size=prior.shape())
    for site in structure.channels:
        own = data.channels[site.agent].steps.prior
        for name, part in zip(parameter_names(site).values(), own, strict=True):
            params[name] = generator.normal(size=part.shape)
    params = {name: jnp.asarray(values, "float32") for name, values in params.items()}
    collect = svi._table_target(structure, "dirichlet").collect
    concentrations, normals, channels = collect(
        None, params, jax.random.key(0), svi.Inputs(data, {}), 1
    )
    for name, found in concentrations.items():
        np.testing.assert_allclose(found, np.exp(params[f"{name}_log_concentration"]), rtol=1e-5)
    for site, (location, scale) in normals.items():
        np.testing.assert_array_equal(location, params[f"{site}_location"])
        np.testing.assert_allclose(scale, np.exp(params[f"{site}_log_scale"]), rtol=1e-5)
    assert set(channels) == {"ann", "bob"}
    for site in structure.channels:
        for found, part in zip(channels[site.agent], channel_density(site, params), strict=True):
            np.testing.assert_array_equal(found, part)


def test_densities_of_columns_are_reported_in_the_units_of_the_data():
    """What the guide says of standardised columns, told of these as they were recorded."""
    from test_emissions import _demos, _model

    bound = bind(_model(), _demos(lengths=(20, 20), labelled=40))
    settings = svi.Settings("dirichlet", 0.1, 1)
    made = svi._table_problem(bound, settings, 3, np.dtype(np.float32), 10, None)
    start = made.inputs
    concentrations = start.start
    kept = made.keep((concentrations, {}, start.channels))
    assert set(kept.rows) == set(bound.learned)
    for name, rows in kept.rows.items():
        np.testing.assert_array_equal(rows.concentration, concentrations[name])
    assert kept.log_likelihood is None
    assert set(kept.channels) == {"emission_ann", "emission_bob"}
    for agent, channel in bound.channels.items():
        found = kept.channels[channel.name]
        inside = channel.units().inside(
            channel.prior()._replace(**{name: np.asarray(part) for name, part
                                        in found._asdict().items()})
        )  # fmt: skip
        for part, expected in zip(inside, start.channels[agent], strict=True):
            np.testing.assert_allclose(part, expected, rtol=1e-3, atol=1e-4)
        # Columns are near 1000, and their spread some tens.
        assert np.all(np.abs(found.location - 1000) < 200)


def test_the_bound_takes_off_what_tables_and_columns_are_apart_from_their_priors(monkeypatch):
    """Draws without a likelihood: what is left of the bound is the divergence, in closed form."""
    from scipy.special import digamma, gammaln
    from test_emissions import _demos

    from btil.numerics.matrix_normal import Hyper

    model = btil.TeamModel(
        policy={"ann": btil.DirichletCPT(0.7), "bob": None},
        emissions={"bob": btil.NormalEmission(("bob_x",))},
    )
    structure, data = collapsed_data(bind(model, _demos()), np.dtype(np.float32))
    generator = np.random.default_rng(0)
    w = {
        name: generator.uniform(0.5, 4, size=data.concentration[name].shape)
        for name in structure.dirichlet_sites
    }
    (site,) = structure.channels
    prior = data.channels["bob"].steps.prior
    m_0, k_0, b_0, a_0 = (np.asarray(part, float).reshape(1, 3) for part in prior)
    m, k, b, a = generator.uniform(2.5, 5, size=(4, 1, 3))
    density = Hyper(*(jnp.asarray(x.reshape(1, 3, 1, 1), "float32") for x in (m, k, b)),
                    jnp.asarray(a, "float32"))  # fmt: skip
    drawn = {}

    def nothing(structure, data, draws):
        drawn.update(draws)
        return np.zeros((svi._BOUND_PARTICLES, 2))

    monkeypatch.setattr(svi, "drawn_log_likelihood", nothing)
    given = {name: jnp.asarray(values, "float32") for name, values in w.items()}
    found = svi._dirichlet_bounds(structure, data, given, {"bob": density}, generator)
    expected = 0.0
    for name, values in w.items():
        u = np.broadcast_to(np.asarray(data.concentration[name], float), values.shape)
        kl = gammaln(values.sum(-1)) - gammaln(u.sum(-1)) + (gammaln(u) - gammaln(values)).sum(-1)
        kl += ((values - u) * (digamma(values) - digamma(values.sum(-1, keepdims=True)))).sum(-1)
        expected += kl.sum()
    half, half_0, rate, rate_0 = a / 2, a_0 / 2, b / 2, b_0 / 2
    kl = (half - half_0) * digamma(half) - gammaln(half) + gammaln(half_0)
    kl += half_0 * np.log(rate / rate_0) + half * (rate_0 - rate) / rate
    kl += 0.5 * (k_0 / k - 1 - np.log(k_0 / k) + half / rate * k_0 * (m - m_0) ** 2)
    np.testing.assert_allclose(found, -(expected + kl.sum()), rtol=1e-3)
    # Of what the likelihood is taken of: coefficients, and roots of covariances.
    coefficients, roots = drawn[site.standardised], np.asarray(drawn[site.factor], float)
    number = svi._BOUND_PARTICLES
    for values, mean in ((coefficients, m), (roots**-2.0, a / b)):
        values = np.asarray(values, float).reshape(number, 1, 3)
        error = values.std(0) / np.sqrt(number)
        assert np.all(np.abs(values.mean(0) - mean) < 4.5 * error)


def test_the_divergence_of_the_guide_is_that_from_the_prior():
    """KL of Dirichlet rows in closed form; the prior may be one for all rows."""
    from numpyro.distributions import Dirichlet
    from numpyro.distributions.kl import kl_divergence
    from scipy.special import digamma, gammaln

    w, u = np.array([[3.0, 1.5, 0.4], [0.7, 2.0, 5.0]]), np.array([0.5, 1.0, 2.0])
    own = svi.DrawnDirichlet(jnp.asarray(w, "float32"), jnp.full((2, 3), 1 / 3, "float32"))
    found = kl_divergence(own, Dirichlet(jnp.asarray(u, "float32")))
    expected = gammaln(w.sum(-1)) - gammaln(u.sum()) + (gammaln(u) - gammaln(w)).sum(-1)
    expected += ((w - u) * (digamma(w) - digamma(w.sum(-1, keepdims=True)))).sum(-1)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_a_model_of_ones_own_has_no_rows_for_the_dirichlet_guide():
    with pytest.raises(ValueError, match="guide 'dirichlet' is for tables; a NumpyroModel takes"):
        btil.fit(btil.NumpyroModel(_plain), DEMOS, "svi", guide="dirichlet", progress=False)


def _plain(data):
    chance = numpyro.sample("chance", numpyro.distributions.Beta(1.0, 1.0))
    even = jnp.log(jnp.full((2, 2), 0.5))
    acts = jnp.log(jnp.stack([chance, 1 - chance]))
    data.observe("agent_0", even[0], even, jnp.stack([acts, acts]))
