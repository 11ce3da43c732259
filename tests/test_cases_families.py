"""Cases 25 and 26: the mean field of tables that depend on parameters.

Right answers are quadrature over the parameters (`benchmarks/families.py`, NumPy), or averages over
many draws of what the fit says its q is, in formulas written here once more.
"""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from families import by_quadrature, few_steps
from numpyro.infer import Trace_ELBO
from scipy import integrate, optimize, special, stats
from teams import hmm_demos

import btil
from btil.inference.parameters import family_data, first_normals, fit_normals
from btil.inference.points import normal_points
from btil.inference.result import DirichletRows, DrawnRows, NormalParameters
from btil.messages.layout import lay_out
from btil.models.team import bind

HIERARCHICAL = btil.TeamModel(
    btil.HierarchicalDirichletCPT(parents=("state",)), btil.DirichletCPT(1.0)
)


def fit(model: btil.TeamModel, demos: btil.Demonstrations, **options: Any) -> btil.TeamPosterior:
    return btil.fit(model, demos, **{"dtype": "float64", "progress": False, **options})


# 26. Hierarchical rows without data


def few(num_actions: int) -> btil.Demonstrations:
    return btil.Demonstrations(
        states=[0, 0, 0, 0, 1],
        actions={"ann": [0, 0, 1, 0, 1]},
        latents={"ann": [0] * 5},
        num_latents=2,
        num_actions=num_actions,
        num_states=3,
    )


@pytest.fixture(scope="module")
def case_26() -> btil.TeamPosterior:
    return fit(HIERARCHICAL, few(2))


def test_rows_without_data_are_those_given_the_parameters(case_26: btil.TeamPosterior) -> None:
    policy = case_26.policy("ann")
    assert policy[0, 0, 0] == pytest.approx(0.612777, abs=0.005)
    assert policy[1, 0, 0] == pytest.approx(0.444063, abs=0.005)
    np.testing.assert_allclose(policy[:, 1], 0.5, atol=1e-6)
    truth = by_quadrature(few(2).select([0]))
    assert truth.log_evidence - 0.05 < case_26.elbo < truth.log_evidence


def test_a_latent_never_seen_keeps_the_mean_of_its_prior() -> None:
    policy = fit(HIERARCHICAL, few(3)).policy("ann")
    np.testing.assert_allclose(policy[:, 1], 1 / 3, atol=1e-3)
    # Visited or not, it is the same to a latent that was never there.
    np.testing.assert_allclose(policy[2, 1], policy[0, 1], atol=1e-9)


def test_draws_of_rows_go_with_draws_of_their_parameters(case_26: btil.TeamPosterior) -> None:
    """Given the parameters rows are Dirichlet(u + n): mean and variance of what is left."""
    draws = case_26.sample(20_000, 1)
    strength = draws["policy_ann_strength"][:, None, None, None]
    w = strength * draws["policy_ann_base"][:, None] + [[[3, 1], [0, 0]], [[0, 1], [0, 0]]]
    mean = w / w.sum(-1, keepdims=True)
    rest = draws["policy_ann"] - mean
    expected = mean * (1 - mean) / (w.sum(-1, keepdims=True) + 1)
    for found, right in ((rest, 0.0), (rest * (mean - mean.mean(0)), 0.0), (rest**2, expected)):
        error = (found - right).std(0) / np.sqrt(len(found))
        assert np.all(np.abs((found - right).mean(0)) < 4.5 * error)
    rows = case_26.result.rows["policy_ann"]
    np.testing.assert_allclose(draws["policy_ann"].mean(0), rows.mean(), atol=0.01)
    np.testing.assert_allclose(draws["policy_ann"].std(0), rows.sd(), atol=0.01)


def test_map_is_the_mode_at_the_centre_of_the_parameters(case_26: btil.TeamPosterior) -> None:
    parameters = case_26.result.parameters
    strength = np.exp(parameters["policy_ann_strength"].location)
    base = special.expit(parameters["policy_ann_base"].location[0, 0])
    w = strength * np.array([base, 1 - base]) + [3, 1]
    found = case_26.policy("ann", [0], estimate="map")[0, 0]
    np.testing.assert_allclose(found, (w - 1) / (w - 1).sum(), atol=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_bound_on_eight_observations_is_close_to_the_evidence(seed: int) -> None:
    demos = few_steps(8, 2, 1.0, seed)
    truth, posterior = by_quadrature(demos), fit(HIERARCHICAL, demos)
    assert truth.log_evidence - 0.1 < posterior.elbo < truth.log_evidence
    strength = posterior.result.parameters["policy_agent_0_strength"]
    assert float(strength.location) == pytest.approx(truth.mean, abs=0.1)
    assert float(strength.scale) == pytest.approx(truth.sd, rel=0.05)


def test_the_strength_is_learned_from_half_labelled_steps() -> None:
    demos = few_steps(14, 3, 0.5, 0)
    truth, posterior = by_quadrature(demos), fit(HIERARCHICAL, demos)
    strength = posterior.result.parameters["policy_agent_0_strength"]
    assert float(strength.location) == pytest.approx(truth.mean, abs=0.6)
    assert float(strength.scale) == pytest.approx(truth.sd, rel=0.2)
    assert posterior.elbo < truth.log_evidence


def test_the_guide_has_the_bound_of_the_fit(x64: None, numpyro_as_it_is: None) -> None:
    """Where every latent is labelled, so that there are none to sum out."""
    demos = hmm_demos([0, 1, 0, 0, 1, 0], [0, 1, 0, 0, 1, 1])
    model = btil.TeamModel(
        btil.SoftmaxCPT(), btil.HierarchicalDirichletCPT(), btil.StickBreakingCPT(strength=3.0)
    )
    posterior = fit(model, demos)
    guide, network = btil.mfvi_guide(posterior), btil.team_dbn(model, demos)
    keys = jax.random.split(jax.random.key(0), 4000)
    losses = jax.jit(jax.vmap(lambda key: Trace_ELBO().loss(key, {}, network, guide)))(keys)
    error = np.std(losses) / np.sqrt(len(losses))
    assert error < 0.03
    assert -np.mean(losses) == pytest.approx(posterior.elbo, abs=4 * float(error))


def test_the_best_joint_normal_is_found() -> None:
    """Stick-breaking, two parameters, everything labelled: the bound is an integral over two."""
    labels = [0, 0, 1, 0, 0, 0, 1, 1, 0, 0]
    model = btil.TeamModel(transition=btil.StickBreakingCPT(2.0))
    posterior = fit(model, hmm_demos([0] * 10, labels))
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    points = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), -1).reshape(-1, 2)
    weights = np.outer(weights, weights).ravel() / weights.sum() ** 2
    counts = np.array([[4.0, 2.0], [2.0, 1.0]])

    def log_beta(u: np.ndarray) -> Any:
        return special.gammaln(u).sum(-1) - special.gammaln(u.sum(-1))

    def loss(free: np.ndarray) -> float:
        location, log_scale, below = free[:2], free[2:4], free[4]
        values = location + points * np.exp(log_scale) + points[:, :1] * [0, below]
        stick, log_strength = special.expit(values[:, 0]), values[:, 1]
        u = np.exp(log_strength)[:, None] * np.stack([stick, 1 - stick], -1)
        log_prior = stats.beta(1, 2.0).logpdf(stick) + np.log(stick * (1 - stick))
        log_prior = log_prior + stats.norm(2, 1.5).logpdf(log_strength)
        gain = (log_beta(u[:, None] + counts) - log_beta(u)[:, None]).sum(-1)
        return -(weights @ (log_prior + gain) + log_scale.sum())

    best = optimize.minimize(loss, np.zeros(5), method="BFGS", options={"gtol": 1e-6}).x
    sticks, strength = (
        posterior.result.parameters[f"transition_agent_0_{name}"] for name in ("sticks", "strength")
    )
    factor = np.stack([sticks.factor[0], strength.factor])
    lower = np.array([[np.exp(best[2]), 0.0], [best[4], np.exp(best[3])]])
    np.testing.assert_allclose([sticks.location[0], strength.location], best[:2], atol=0.02)
    np.testing.assert_allclose(factor @ factor.T, lower @ lower.T, rtol=0.03, atol=0.02)


# 25. Rows that are functions of parameters


def regression_data() -> btil.Demonstrations:
    """60 labelled steps of two latents, three states and three actions."""
    generator = np.random.default_rng(3)
    states, latents = generator.integers(3, size=60), generator.integers(2, size=60)
    scores = generator.normal(0, 2, (3, 2, 3))[states, latents]
    actions = [generator.choice(3, p=row) for row in special.softmax(scores, -1)]
    return btil.Demonstrations(
        states, np.reshape(actions, (-1, 1)), latents.reshape(-1, 1), num_actions=3
    )


REGRESSION = btil.TeamModel(
    btil.SoftmaxCPT(("state",)), btil.KnownCPT(np.full((2, 2), 0.5), parents=())
)


@pytest.fixture(scope="module")
def regression() -> btil.TeamPosterior:
    return fit(REGRESSION, regression_data())


def scores_of(bias: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(draws, states, latents, actions) from (draws, latents, [states,] actions)."""
    return bias[:, None] + np.swapaxes(weights, 1, 2)


def log_joint(scores: np.ndarray, *parameters: np.ndarray) -> np.ndarray:
    """Log probability of actions, latents and parameters."""
    demos = regression_data()
    logs = special.log_softmax(scores, -1)
    own = logs[:, demos.states, demos.latents[:, 0], demos.actions[:, 0]].sum(-1)
    flat = np.concatenate([one.reshape(len(one), -1) for one in parameters], 1)
    return own + stats.norm(0, 1.5).logpdf(flat).sum(-1) + demos.num_steps * np.log(0.5)


def test_the_bound_is_that_of_its_q(regression: btil.TeamPosterior) -> None:
    """By draws of q as it is written down; the trace ends no higher."""
    bias, weights = (
        regression.result.parameters[f"policy_agent_0_{name}"] for name in ("bias", "weights")
    )
    noise = np.random.default_rng(0).standard_normal((40_000, bias.factor.shape[-1]))
    noise = np.concatenate([noise, -noise])
    draws = [one.location + np.tensordot(noise, one.factor, (1, -1)) for one in (bias, weights)]
    factor = np.concatenate([one.factor.reshape(-1, noise.shape[1]) for one in (bias, weights)])
    log_q = stats.norm.logpdf(noise).sum(-1) - np.linalg.slogdet(factor)[1]
    values = log_joint(scores_of(*draws), *draws) - log_q
    error = np.hypot(values.std() / np.sqrt(len(values)), regression.elbo_se)
    assert error < 0.03
    assert regression.elbo == pytest.approx(values.mean(), abs=4 * error)
    assert regression.elbo_trace[-1] <= values.mean() + 4 * error
    assert np.all(np.diff(regression.elbo_trace) > -1e-8)


def test_no_independent_normals_have_a_higher_bound(regression: btil.TeamPosterior) -> None:
    """By another optimiser, with other and more points than the fit's."""
    demos, size = regression_data(), 2 * 4 * 3
    points = normal_points(size, 2048, seed=5)
    uses = np.zeros((3, 2, 3))
    np.add.at(uses, (demos.states, demos.latents[:, 0], demos.actions[:, 0]), 1)

    def loss(free: np.ndarray) -> tuple[float, np.ndarray]:
        location, scale = free[:size], np.exp(free[size:])
        values = location + scale * points
        parts = values[:, :6].reshape(-1, 2, 3), values[:, 6:].reshape(-1, 2, 3, 3)
        scores = scores_of(*parts)
        residual = uses - uses.sum(-1, keepdims=True) * special.softmax(scores, -1)
        slope = np.concatenate(
            [residual.sum(1).reshape(-1, 6), np.swapaxes(residual, 1, 2).reshape(-1, 18)], 1
        )
        slope = slope - values / 1.5**2
        bound = log_joint(scores, *parts).mean() + np.log(scale).sum()
        by_scale = (slope * points).mean(0) * scale + 1
        return -bound - size * 0.5 * np.log(2 * np.pi * np.e), -np.r_[slope.mean(0), by_scale]

    best = optimize.minimize(loss, np.zeros(2 * size), jac=True, method="L-BFGS-B")
    assert regression.elbo > -best.fun - 0.2


def test_nothing_reported_depends_on_the_seed(regression: btil.TeamPosterior) -> None:
    other = fit(REGRESSION, regression_data(), seed=1)
    unlabelled = regression_data().without_labels()
    np.testing.assert_array_equal(other.policy("agent_0"), regression.policy("agent_0"))
    np.testing.assert_array_equal(
        other.smooth(unlabelled)["agent_0"], regression.smooth(unlabelled)["agent_0"]
    )
    draws = regression.sample(100_000, 0)["policy_agent_0"]
    right, rows = draws.mean(0), regression.result.rows["policy_agent_0"]
    np.testing.assert_allclose(regression.policy("agent_0"), right, atol=0.004)
    np.testing.assert_allclose(rows.mean(), right, atol=0.004)
    np.testing.assert_allclose(rows.sd(), draws.std(0), atol=0.004)


def test_the_posterior_of_two_weights_is_that_of_quadrature() -> None:
    """No parents, one latent, two actions: the difference of two biases is all that matters."""
    actions = [0, 0, 1, 0, 0, 0, 1, 0]
    demos = hmm_demos(actions, num_latents=1)
    posterior = fit(btil.TeamModel(btil.SoftmaxCPT(bias_scale=2.0)), demos)

    def joint(difference: float, power: int = 0) -> float:
        share = special.expit(difference)
        weight = stats.norm(0, 2 * np.sqrt(2)).pdf(difference)
        return share ** (6 + power) * (1 - share) ** 2 * weight

    evidence = integrate.quad(joint, -20, 20)[0]
    mean = integrate.quad(joint, -20, 20, args=(1,))[0] / evidence
    assert np.log(evidence) - 0.03 < posterior.elbo < np.log(evidence)
    assert posterior.policy("agent_0", [0])[0, 0, 0] == pytest.approx(mean, abs=0.005)


def test_svi_rows_that_are_functions_do_not_depend_on_stored_draws() -> None:
    posterior = btil.fit(
        REGRESSION, regression_data(), "svi", max_iterations=100, progress=False, seed=2
    )
    draws = posterior.sample(50_000, 3)["policy_agent_0"]
    np.testing.assert_allclose(posterior.policy("agent_0"), draws.mean(0), atol=0.004)


# What both kinds have in common


def test_files_with_rows_apart_from_their_parameters_are_read(
    case_26: btil.TeamPosterior, regression: btil.TeamPosterior, tmp_path: Any
) -> None:
    """As earlier versions wrote them."""
    for posterior in (case_26, regression):
        result = posterior.result
        (site,) = (name for name in result.rows if name.startswith("policy"))
        rows: Any = DirichletRows(np.ones_like(result.rows[site].mean()))
        if posterior is regression:
            rows = DrawnRows(posterior.sample(20, 0)[site][None])
        normals = {
            n: NormalParameters(one.location, one.scale) for n, one in result.parameters.items()
        }
        old = result._replace(rows={**result.rows, site: rows}, parameters=normals)
        dataclasses.replace(posterior, result=old).save(tmp_path / "old.nc")
        again = btil.load_posterior(tmp_path / "old.nc")
        np.testing.assert_allclose(again.result.rows[site].mean(), rows.mean())
        drawn = again.sample(3, 0)
        if posterior is regression:
            scores = scores_of(drawn[f"{site}_bias"], drawn[f"{site}_weights"])
            np.testing.assert_allclose(drawn[site], special.softmax(scores, -1), atol=1e-9)


def test_damaged_normals_are_refused(regression: btil.TeamPosterior, tmp_path: Any) -> None:
    result = regression.result
    site = "policy_agent_0_bias"
    damaged = result.parameters[site]._replace(factor=np.zeros((2, 3, 5)))
    torn = result._replace(parameters={**result.parameters, site: damaged})
    dataclasses.replace(regression, result=torn).save(tmp_path / "torn.nc")
    with pytest.raises(ValueError, match=f"damaged: the normals of {site} do not fit"):
        btil.load_posterior(tmp_path / "torn.nc")


def test_points_have_the_moments_of_normals() -> None:
    points = normal_points(5, 64, seed=1)
    np.testing.assert_allclose(points.mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(points.T @ points / 64, np.eye(5), atol=1e-12)
    np.testing.assert_array_equal(points[:32], -points[32:])
    plain = [normal_points(5, 64, seed, whitened=False) for seed in range(200)]
    squares = np.array([(one**2).mean() for one in plain])
    assert squares.mean() == pytest.approx(1.0, abs=4 * squares.std() / np.sqrt(200))


def test_normals_are_fitted_under_all_of_jaxs_checks() -> None:
    """Blocks of different size, of which one is padded."""
    model = btil.TeamModel(
        btil.HierarchicalDirichletCPT(parents=("state",)),
        btil.StickBreakingCPT(stay=1.0),
        btil.SoftmaxCPT(),
    )
    bound = bind(model, few_steps(8, 2, 1.0, 0))
    layout, dtype = lay_out(bound), np.dtype(np.float32)
    families, data = family_data(bound, layout, dtype, 0)
    counts = {
        family.name: np.ones((layout.num_rows[family.name], *family.shape[1:]), dtype)
        for family in families
    }
    program = jax.jit(fit_normals, static_argnums=0)
    with (
        jax.numpy_rank_promotion("raise"),
        jax.numpy_dtype_promotion("strict"),
        jax.debug_nans(True),
    ):
        found = program(families, first_normals(families, dtype), data, counts)
    assert float(found.divergence) > 0
    assert all(np.isfinite(values).all() for values in jax.tree.leaves(found))


def test_rows_of_a_single_cell_leave_no_value_to_be_normal(tmp_path: Any) -> None:
    demos = hmm_demos([0, 0, 0], [0, 1, 0], num_actions=1)
    model = btil.TeamModel(btil.HierarchicalDirichletCPT(3.0), btil.DirichletCPT(1.0))
    posterior = fit(model, demos)
    assert posterior.elbo == pytest.approx(np.log(0.5 * 0.5 * 0.5), abs=1e-9)
    posterior.save(tmp_path / "one.nc")
    again = btil.load_posterior(tmp_path / "one.nc")
    np.testing.assert_array_equal(again.sample(2)["policy_agent_0"], 1.0)
