"""Parametric families against answers got without the package: importance sampling in NumPy.

Draws of the parameters from the prior are weighted by the probability of the data, in which rows
are integrated out in closed form and latents summed over every path. On data this small the
weights are even enough for errors of about a percent.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from enumeration import (
    episode_factors,
    episode_log_likelihoods,
    episode_rows,
    latent_paths,
    used_cells,
)
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.contrib.funsor import config_enumerate, enum
from numpyro.contrib.funsor import log_density as enumerated_log_density
from numpyro.infer import Trace_ELBO
from numpyro.infer.util import log_density
from scipy import special, stats
from teams import hmm_demos, random_demos

import btil
from btil.inference import parameters
from btil.inference.chains import ess
from btil.inference.collapsed import collapsed_data, given_rows
from btil.messages.layout import lay_out
from btil.models.draws import prior_tables
from btil.models.parametric import _same_prior, parametric_sites
from btil.models.team import BoundModel, bind

NUM_DRAWS = 40_000
DEMOS = random_demos(3, (3, 1, 3), (2,), (3,), (2, 2), labelled=0.5)
ONE_LATENT = hmm_demos([0, 1], num_latents=1)
VALUES = np.log(np.random.default_rng(1).dirichlet(np.ones(3), size=(2, 2, 2)))

MODELS = {
    "functions": btil.TeamModel(
        policy=btil.SoftmaxCPT(parents=("x",), weight_scale=1.2, bias_scale=0.8),
        transition=btil.HierarchicalDirichletCPT(None, 1.5, stay=1.0, parents=("y",)),
        initial=btil.StickBreakingCPT(0.7, strength=3.0),
    ),
    "rows": btil.TeamModel(
        policy=btil.HierarchicalDirichletCPT(4.0, 2.0, parents=("x", "y")),
        transition=btil.StickBreakingCPT(1.3, strength=2.0, stay=0.5, parents=("x",)),
        initial=btil.DirichletCPT(1.2),
    ),
    "values": btil.TeamModel(
        policy=btil.GoalConditionedCPT(VALUES, parents=("state",)),
        transition=btil.SoftmaxCPT(parents=("x",), weight_scale=0.9),
        initial=btil.SoftmaxCPT(),
    ),
}


# ---------------------------------------------------------------------- the families once more


def draw_parameters(which: str, generator: np.random.Generator, number: int) -> dict[str, Any]:
    """Parameters from their priors, (draws, ...)."""
    normal = generator.normal
    if which == "functions":
        return {
            "policy_ann_bias": normal(0, 0.8, (number, 2, 3)),
            "policy_ann_weights": normal(0, 1.2, (number, 2, 2, 3)),
            "transition_ann_base": generator.dirichlet([1.5, 1.5], (number, 2)),
            "transition_ann_strength": np.exp(normal(2.0, 1.5, number)),
            "initial_ann_sticks": generator.beta(1, 0.7, (number, 1)),
        }
    if which == "rows":
        return {
            "policy_ann_base": generator.dirichlet([2.0] * 3, (number, 2)),
            "transition_ann_sticks": generator.beta(1, 1.3, (number, 1)),
        }
    return {
        "policy_ann_rationality": np.exp(normal(0, 1, number)),
        "policy_ann_bias": normal(0, 1, (number, 3)),
        "policy_ann_lapse": generator.beta(1, 19, number),
        "transition_ann_bias": normal(0, 1.5, (number, 2, 2)),
        "transition_ann_weights": normal(0, 0.9, (number, 2, 2, 2)),
        "initial_ann_bias": normal(0, 1.5, (number, 2)),
    }


def log_prior(which: str, values: dict[str, Any]) -> float:
    """Log density of one draw of the parameters."""

    def normal(site: str, scale: float) -> float:
        return stats.norm(0, scale).logpdf(values[site]).sum()

    if which == "functions":
        base = stats.dirichlet([1.5, 1.5])
        return (
            normal("policy_ann_bias", 0.8)
            + normal("policy_ann_weights", 1.2)
            + sum(base.logpdf(row) for row in values["transition_ann_base"])
            + stats.lognorm(1.5, scale=np.exp(2.0)).logpdf(values["transition_ann_strength"])
            + stats.beta(1, 0.7).logpdf(values["initial_ann_sticks"]).sum()
        )
    if which == "rows":
        base = stats.dirichlet([2.0] * 3)
        return (
            sum(base.logpdf(row) for row in values["policy_ann_base"])
            + stats.beta(1, 1.3).logpdf(values["transition_ann_sticks"]).sum()
        )
    return (
        stats.lognorm(1.0).logpdf(values["policy_ann_rationality"])
        + normal("policy_ann_bias", 1)
        + stats.beta(1, 19).logpdf(values["policy_ann_lapse"])
        + normal("transition_ann_bias", 1.5)
        + normal("transition_ann_weights", 0.9)
        + normal("initial_ann_bias", 1.5)
    )


class Tables(NamedTuple):
    """What the parameters say of the visited rows, with their draws in front."""

    concentration: dict[str, np.ndarray]
    rows: dict[str, np.ndarray]


def tables_of(which: str, bound: BoundModel, parameters: dict[str, Any]) -> Tables:
    """Dirichlet concentrations of rows, and rows that are given by the parameters."""
    contexts = {name: table.contexts.rows for name, table in bound.tables.items()}
    number = len(next(iter(parameters.values())))

    def repeated(site: str, block: np.ndarray) -> np.ndarray:
        return np.repeat(block[:, None], len(contexts[site]), axis=1)

    def regression(site: str) -> np.ndarray:
        scores = repeated(site, parameters[f"{site}_bias"])
        if f"{site}_weights" in parameters:
            (x,) = contexts[site].T
            scores = scores + parameters[f"{site}_weights"][:, :, x].swapaxes(1, 2)
        return special.softmax(scores, axis=-1)

    if which == "functions":
        alpha = parameters["transition_ann_strength"][:, None, None]
        stick = parameters["initial_ann_sticks"]
        weights = np.concatenate([stick, 1 - stick], axis=1)
        moves = alpha * parameters["transition_ann_base"] + np.eye(2)
        return Tables(
            {
                "transition_ann": repeated("transition_ann", moves),
                "initial_ann": repeated("initial_ann", 3.0 * weights),
            },
            {"policy_ann": regression("policy_ann")},
        )
    if which == "rows":
        stick = parameters["transition_ann_sticks"]
        weights = np.concatenate([stick, 1 - stick], axis=1)
        moves = 2.0 * weights[:, None] + 0.5 * np.eye(2)
        return Tables(
            {
                "policy_ann": repeated("policy_ann", 4.0 * parameters["policy_ann_base"]),
                "transition_ann": repeated("transition_ann", moves),
                "initial_ann": np.full((number, 1, 2), 1.2),
            },
            {},
        )
    x, y = contexts["policy_ann"].T
    scores = parameters["policy_ann_rationality"][:, None, None, None] * VALUES[x, y]
    scores = scores + parameters["policy_ann_bias"][:, None, None]
    lapse = parameters["policy_ann_lapse"][:, None, None, None]
    policy = (1 - lapse) * special.softmax(scores, axis=-1) + lapse / 3
    return Tables(
        {},
        {
            "policy_ann": policy,
            "transition_ann": regression("transition_ann"),
            "initial_ann": regression("initial_ann"),
        },
    )


class Truth(NamedTuple):
    """By importance sampling, each value with its standard error.

    Attributes:
        log_evidence: log p(data).
        means: Posterior means of parameters and rows, by site.
        errors: Their standard errors.
    """

    log_evidence: tuple[float, float]
    means: dict[str, np.ndarray]
    errors: dict[str, np.ndarray]


def truth_of(which: str, demos: btil.Demonstrations) -> Truth:
    """The exact posterior but for the draws of the parameters; one agent."""
    bound = bind(MODELS[which], demos)
    parameters = draw_parameters(which, np.random.default_rng(0), NUM_DRAWS)
    given = tables_of(which, bound, parameters)
    before = {name: log_beta(u) for name, u in given.concentration.items()}
    total = np.zeros(NUM_DRAWS)
    row_sums = {
        name: np.zeros_like(rows) for name, rows in (given.concentration | given.rows).items()
    }
    episodes = range(demos.num_episodes)
    paths = [list(latent_paths(demos, 0, episode)) for episode in episodes]
    factors = [episode_factors(bound, "ann", episode) for episode in episodes]
    for joint in itertools.product(*paths):
        weight = np.ones(NUM_DRAWS)
        counts = {name: np.zeros(u.shape[1:]) for name, u in given.concentration.items()}
        for episode, path in enumerate(joint):
            actions = demos.actions[episode_rows(demos, episode), 0]
            for site, cell in used_cells(factors[episode], actions, path):
                if site in counts:
                    counts[site][cell] += 1
                else:
                    weight = weight * given.rows[site][:, *cell]
        for name, u in given.concentration.items():
            weight = weight * np.exp(log_beta(u + counts[name]) - before[name])
        total += weight
        for name in row_sums:
            w = given.concentration[name] + counts[name] if name in counts else None
            rows = given.rows[name] if w is None else w / w.sum(-1, keepdims=True)
            row_sums[name] += per_draw(weight, rows) * rows
    means, errors = {}, {}
    for name, values in (
        parameters | {n: s / per_draw(total, s) for n, s in row_sums.items()}
    ).items():
        shares = per_draw(total / total.sum(), values)
        means[name] = (shares * values).sum(0)
        errors[name] = np.sqrt((shares**2 * (values - means[name]) ** 2).sum(0))
    relative = total.std() / total.mean() / np.sqrt(NUM_DRAWS)
    return Truth((float(np.log(total.mean())), float(relative)), means, errors)


def per_draw(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Weights with axes for those of the values."""
    return weights.reshape(-1, *(1 for _ in values.shape[1:]))


def log_beta(concentration: np.ndarray) -> np.ndarray:
    """Log of the multivariate beta function, summed over all rows of each draw."""
    by_row = special.gammaln(concentration).sum(-1) - special.gammaln(concentration.sum(-1))
    return by_row.reshape(len(by_row), -1).sum(1)


@pytest.fixture(scope="module")
def truths() -> dict[str, Truth]:
    return {which: truth_of(which, DEMOS) for which in MODELS}


# ---------------------------------------------------------------------- the NumPyro model


@pytest.mark.parametrize("which", MODELS)
def test_log_density_is_prior_times_rows_times_likelihood(which: str, x64: None) -> None:
    bound = bind(MODELS[which], DEMOS)
    generator = np.random.default_rng(7)
    drawn = draw_parameters(which, generator, 1)
    given = tables_of(which, bound, drawn)
    rows = {
        n: generator.dirichlet(np.ones(u.shape[-1]), u.shape[1:-1])
        for n, u in given.concentration.items()
    }
    expected = log_prior(which, {site: values[0] for site, values in drawn.items()})
    for name, u in given.concentration.items():
        flat = zip(u[0].reshape(-1, u.shape[-1]), rows[name].reshape(-1, u.shape[-1]), strict=True)
        expected += sum(stats.dirichlet(a).logpdf(row) for a, row in flat)
    rows |= {name: values[0] for name, values in given.rows.items()}
    expected += episode_log_likelihoods(bound, rows).sum()
    values = {site: jnp.asarray(v[0]) for site, v in drawn.items()}
    values |= {name: jnp.asarray(rows[name]) for name in given.concentration}
    spelt_out = config_enumerate(btil.team_dbn(bound.model, DEMOS, "enumerate"))
    enumerated = enum(spelt_out, first_available_dim=-2)

    @jax.jit  # operation by operation hundreds of programs would be compiled
    def both(values: dict[str, Any]) -> Any:
        density, trace = log_density(btil.team_dbn(bound.model, DEMOS), (), {}, values)
        rows = {name: trace[name]["value"] for name in given.rows}
        return density, rows, enumerated_log_density(enumerated, (), {}, values)[0]

    forward, found, by_enumeration = both(values)
    assert float(forward) == pytest.approx(expected, abs=1e-9)
    for name, table in given.rows.items():
        np.testing.assert_allclose(found[name], table[0], atol=1e-12)
    assert float(by_enumeration) == pytest.approx(expected, abs=1e-9)


# ---------------------------------------------------------------------- samplers


def check_chains(posterior: btil.TeamPosterior, truth: Truth) -> None:
    """Means of all sites within the errors of both, and none of the sites forgotten."""
    assert posterior.converged, posterior.reason
    kept = {**posterior.result.rows, **posterior.result.parameters}
    assert set(kept) == set(truth.means)
    for site, drawn in kept.items():
        draws = np.atleast_3d(np.asarray(drawn.draws, float))
        error = draws.std((0, 1)) / np.sqrt(ess(draws, "bulk"))
        z = (draws.mean((0, 1)) - truth.means[site]) / np.hypot(error, truth.errors[site])
        # About a hundred cells are looked at.
        assert np.nanmax(np.abs(z)) < 4.5, (site, z)
    likely = posterior.result.log_likelihood
    assert likely.shape[:2] == draws.shape[:2]


@pytest.mark.parametrize("which", ["functions", "rows"])
def test_gibbs_agrees(which: str, truths: dict[str, Truth]) -> None:
    posterior = btil.fit(
        MODELS[which],
        DEMOS,
        "gibbs",
        progress=False,
        num_chains=4,
        num_warmup=500,
        num_samples=2500,
    )
    check_chains(posterior, truths[which])


# The learned strength of "functions" has a tail that takes many draws to show in a mean, and in
# which chains stick: by one seed of three R-hat says so. The others agree by any.
@pytest.mark.parametrize(("which", "seed"), [("functions", 3), ("rows", 0), ("values", 0)])
def test_nuts_agrees(which: str, seed: int, truths: dict[str, Truth]) -> None:
    posterior = btil.fit(
        MODELS[which],
        DEMOS,
        "nuts",
        progress=False,
        seed=seed,
        num_chains=4,
        num_warmup=1000,
        num_samples=3000,
    )
    check_chains(posterior, truths[which])


# ---------------------------------------------------------------------- variational bounds


@pytest.fixture(scope="module")
def mean_fields() -> dict[str, btil.TeamPosterior]:
    return {
        which: btil.fit(MODELS[which], DEMOS, progress=False, dtype="float64") for which in MODELS
    }


@pytest.mark.parametrize("which", MODELS)
def test_mfvi_bounds_the_evidence_from_below(
    which: str, mean_fields: dict[str, btil.TeamPosterior], truths: dict[str, Truth]
) -> None:
    posterior = mean_fields[which]
    assert posterior.converged, posterior.reason
    assert np.all(np.diff(posterior.elbo_trace) > -1e-8 * abs(posterior.elbo_trace[-1]))
    evidence, error = truths[which].log_evidence
    allowed = 4 * np.hypot(posterior.elbo_se, error)
    # Below the evidence, by what it takes to hold latents independent of parameters and rows.
    assert evidence - 1.6 < posterior.elbo < evidence + allowed


@pytest.mark.parametrize("which", MODELS)
def test_mfvi_is_nearly_exact_where_every_step_is_labelled(
    which: str, mean_fields: dict[str, btil.TeamPosterior]
) -> None:
    """Then only q(parameters) is no more than a normal; the programs are those of other labels."""
    labelled = random_demos(3, (3, 1, 3), (2,), (3,), (2, 2), labelled=1.0)
    truth = truth_of(which, labelled)
    posterior = btil.fit(MODELS[which], labelled, progress=False, dtype="float64")
    evidence, error = truth.log_evidence
    assert evidence - 0.2 < posterior.elbo < evidence + 4 * np.hypot(posterior.elbo_se, error)
    for site, rows in posterior.result.rows.items():
        np.testing.assert_allclose(rows.mean(), truth.means[site], atol=0.02)


def test_the_bound_of_svi_is_one(truths: dict[str, Truth]) -> None:
    """Its rows are independent of the parameters, and these of each other: it may be lower."""
    posterior = btil.fit(MODELS["functions"], DEMOS, "svi", progress=False, max_iterations=4000)
    evidence, error = truths["functions"].log_evidence
    allowed = 4 * np.hypot(posterior.elbo_se, error)
    assert evidence - 5.0 < posterior.elbo < evidence + allowed


@pytest.mark.usefixtures("numpyro_as_it_is")
def test_the_mean_field_as_a_guide_has_a_bound_in_between(
    mean_fields: dict[str, btil.TeamPosterior], truths: dict[str, Truth], x64: None
) -> None:
    """With the latents summed out the same q has a higher bound, by NumPyro's own estimate."""
    posterior = mean_fields["functions"]
    guide, model = btil.mfvi_guide(posterior), btil.team_dbn(posterior.model, DEMOS)
    keys = jax.random.split(jax.random.key(0), 2000)
    losses = jax.jit(jax.vmap(lambda key: Trace_ELBO(1).loss(key, {}, model, guide)))(keys)
    bound, error = -np.mean(losses), np.std(losses) / np.sqrt(len(losses))
    evidence, evidence_error = truths["functions"].log_evidence
    assert error < 0.2
    assert posterior.elbo - 4 * np.hypot(error, posterior.elbo_se) < bound
    assert bound < evidence + 4 * np.hypot(error, evidence_error)


# ---------------------------------------------------------------------- what posteriors answer


@pytest.mark.parametrize("which", MODELS)
def test_rows_never_visited_follow_the_parameters(
    which: str, mean_fields: dict[str, btil.TeamPosterior]
) -> None:
    posterior, everywhere = mean_fields[which], all_states()
    visited = set(zip(*DEMOS.state_variables.values(), strict=True))
    assert len(visited) < 4
    policy = posterior.policy("ann", dict(everywhere.state_variables))
    np.testing.assert_allclose(policy.sum(-1), 1.0, atol=1e-6)
    bound = bind(MODELS[which], everywhere)
    contexts = bound.tables["policy_ann"].contexts
    drawn = [tables.rows("policy_ann", contexts) for tables in posterior.drawn_tables(600, 1)]
    np.testing.assert_allclose(policy, np.mean(drawn, 0)[bound.rows["ann"].policy], atol=0.05)


def all_states() -> btil.Demonstrations:
    """Every state once."""
    return btil.Demonstrations(
        states={"x": [0, 0, 1, 1], "y": [0, 1, 0, 1]},
        actions={"ann": [0, 0, 0, 0]},
        num_actions=3,
        num_latents=2,
    )


@pytest.mark.parametrize("which", MODELS)
def test_a_saved_posterior_answers_the_same(
    which: str, mean_fields: dict[str, btil.TeamPosterior], tmp_path: Any
) -> None:
    posterior = mean_fields[which]
    posterior.save(tmp_path / "fit.nc")
    again = btil.load_posterior(tmp_path / "fit.nc")
    assert type(again.model.policy) is type(posterior.model.policy)
    for site, draws in posterior.sample(5, 3).items():
        np.testing.assert_array_equal(again.sample(5, 3)[site], draws)
    np.testing.assert_array_equal(again.smooth(DEMOS)["ann"], posterior.smooth(DEMOS)["ann"])


def test_a_saved_posterior_wants_the_model_it_was_fitted_with(
    mean_fields: dict[str, btil.TeamPosterior], tmp_path: Any
) -> None:
    mean_fields["values"].save(tmp_path / "fit.nc")
    plain = btil.TeamModel(btil.DirichletCPT(1.0, ("state",)), MODELS["values"].transition)
    with pytest.raises(ValueError, match=r"holds the tables .*, the model learns"):
        btil.load_posterior(tmp_path / "fit.nc", model=plain)
    other = btil.TeamModel(
        MODELS["values"].policy, btil.SoftmaxCPT(("x", "y")), MODELS["values"].initial
    )
    told = r"transition_ann_weights has shape \(2, 2, 2\), in the model it has \(2, 4, 2\)"
    with pytest.raises(ValueError, match=told):
        btil.load_posterior(tmp_path / "fit.nc", model=other)


def test_softmax_refuses_states_it_has_no_weights_for(
    mean_fields: dict[str, btil.TeamPosterior],
) -> None:
    more = random_demos(3, (3, 1, 3), (2,), (3,), (4, 2))
    with pytest.raises(ValueError, match="contexts with 4 features, but weights of 2"):
        mean_fields["functions"].smooth(more)


def test_a_draw_of_rows_goes_with_its_parameters(
    mean_fields: dict[str, btil.TeamPosterior],
) -> None:
    drawn = mean_fields["values"].sample(7, 0)
    bound = mean_fields["values"].bound
    rows = tables_of("values", bound, drawn).rows
    for site, values in rows.items():
        np.testing.assert_allclose(drawn[site], values, atol=1e-9)


def test_exact_says_which_methods_take_such_tables() -> None:
    with pytest.raises(ValueError, match=r"policy_ann.*SoftmaxCPT; use mfvi, svi, nuts or gibbs"):
        btil.fit(MODELS["functions"], DEMOS, "exact", progress=False)


# ---------------------------------------------------------------------- particular families


@pytest.mark.parametrize("which", MODELS)
def test_priors_and_rows_given_parameters_are_those_written_once_more(
    which: str, x64: None, numpyro_as_it_is: None
) -> None:
    bound = bind(MODELS[which], DEMOS)
    structure, data = collapsed_data(bound, np.dtype(np.float64))
    values = draw_parameters(which, np.random.default_rng(0), 3)

    @jax.jit
    def looked_at(values: Any) -> Any:
        logs = {
            site: prior.log_prob(values[site]).reshape(3, -1).sum(1)
            for site, prior in structure.priors.items()
        }
        return given_rows(structure.parametric, data, values), sum(logs.values())

    found, logs = looked_at({site: jnp.asarray(one) for site, one in values.items()})
    assert set(values) == set(structure.priors)
    expected = tables_of(which, bound, values)
    families = {table.name for table in structure.parametric}
    for name, rows in (expected.concentration | expected.rows).items():
        if name in families:
            np.testing.assert_allclose(found[name], rows, rtol=1e-9, err_msg=name)
    one_by_one = [
        log_prior(which, {site: one[k] for site, one in values.items()}) for k in range(3)
    ]
    np.testing.assert_allclose(logs, one_by_one, rtol=1e-9)


@pytest.mark.parametrize(
    ("which", "of_all"), [("functions", True), ("rows", True), ("rows", False)]
)
def test_what_counts_say_of_parameters_is_by_gamma_functions(
    which: str, of_all: bool, x64: None
) -> None:
    """Rows of every context, and rows that stand for all contexts together."""
    families = parametric_sites(bind(MODELS[which], DEMOS))
    blocks = parameters.blocks_of(families)
    generator, points = np.random.default_rng(0), 3
    density = generator.normal(size=(points, len(blocks)))
    counts, rows = {}, {}
    for family in families:
        counts[family.name] = generator.gamma(1.0, size=family.shape)
        shape = (1, *family.shape[1:]) if of_all else family.shape
        rows[family.name] = generator.gamma(2.0, size=(points, *shape))
    own = {family.name: family.cpt.dirichlet_rows for family in families}
    given = parameters.Given(
        jnp.asarray(density),
        {name: jnp.asarray(u) for name, u in rows.items() if own[name]},
        {name: jnp.asarray(-u) for name, u in rows.items() if not own[name]},
    )
    found = jax.jit(lambda given, counts: parameters._uses(families, given, counts))(
        given, {name: jnp.asarray(n) for name, n in counts.items()}
    )
    value, divergence = density.copy(), -density
    for block_number, block in enumerate(blocks):
        for family in families:
            if family.parameters[0][1] not in block.sites:
                continue
            name = family.name
            u, n = np.broadcast_arrays(rows[name], counts[name][None])
            axes = (1,) if of_all else ()
            if not own[name]:
                value[:, block_number] -= (n * u).sum(tuple(range(1, n.ndim)))
                np.testing.assert_allclose(
                    found.slope.log_rows[name][0], counts[name].sum(0, keepdims=of_all)
                    if of_all else counts[name],
                )  # fmt: skip
                continue
            w = u + n
            beta = [special.gammaln(a).sum(-1) - special.gammaln(a.sum(-1)) for a in (w, u)]
            logs = [special.digamma(a) - special.digamma(a.sum(-1, keepdims=True)) for a in (w, u)]
            rest = tuple(range(1, n.ndim - 1))
            value[:, block_number] += (beta[0] - beta[1]).sum(rest)
            kl = (n * logs[0]).sum(-1) - beta[0] + beta[1]
            divergence[:, block_number] += kl.sum(rest)
            slope = (logs[0] - logs[1]).sum(axes, keepdims=True) if of_all else logs[0] - logs[1]
            np.testing.assert_allclose(found.slope.concentrations[name], slope, rtol=1e-8)
            np.testing.assert_allclose(found.log_means[name], logs[0], rtol=1e-8)
    np.testing.assert_allclose(found.value, value, rtol=1e-8)
    np.testing.assert_allclose(found.divergence, divergence, rtol=1e-8)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (dist.Normal(0.0, 2.0), True),
        (dist.Normal(0.0, 1.0), False),  # one of two numbers is another
        (dist.Normal(1.0, 2.0), False),
        (dist.Normal(jnp.zeros(2), 2.0), False),
        (dist.Laplace(0.0, 2.0), False),
    ],
)
def test_priors_are_the_same_if_all_their_numbers_are(other: Any, same: bool) -> None:
    assert _same_prior(dist.Normal(0.0, 2.0), other) is same


def test_moves_of_parameters_leave_normals_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of what counts say of parameters: a normal of unequal spreads."""
    spread = jnp.asarray([1.0, 0.4], "float32")

    def density(families: Any, point: Any, counts: Any) -> Any:
        value = -0.5 * jnp.sum((point / spread[None]) ** 2, axis=1, keepdims=True)
        return parameters.Uses(value, -point / spread[None] ** 2, {}, 0 * value)

    monkeypatch.setattr(parameters, "_given", lambda families, data, values: values["x"])
    monkeypatch.setattr(parameters, "_uses", density)
    bound = bind(MODELS["rows"], DEMOS)
    families, data = parameters.family_data(bound, lay_out(bound), np.dtype(np.float32))
    number, log_step = 4000, np.log(0.45).astype(np.float32)
    begin = spread[None] * jax.random.normal(jax.random.key(1), (number, 2))

    def moved(key: Any, x: Any, adaptation: Any) -> parameters.Moving:
        moving = parameters.Moving({"x": x}, jnp.asarray(log_step))
        return parameters.move(key, moving, families, data, {}, adaptation)

    step = jax.jit(jax.vmap(moved, (0, 0, None)))
    keys = jax.random.split(jax.random.key(0), number)
    after = step(keys, begin, jnp.float32(0.5))
    x = np.asarray(after.unconstrained["x"])
    taken = np.any(x != np.asarray(begin), axis=1)
    assert 0.4 < taken.mean() < 0.97  # some are refused
    assert np.abs(np.corrcoef(x[:, 0], begin[:, 0])[0, 1]) < 0.9  # and others go far
    for values, sd in zip(x.T, (1.0, 0.4), strict=True):
        assert stats.kstest(values, stats.norm(scale=sd).cdf).pvalue > 1e-3
    # The step follows the acceptance, which is aimed at 0.8; after the warmup it stays.
    acceptance = 0.8 + (np.asarray(after.log_step) - log_step) / 0.5
    assert abs(acceptance.mean() - taken.mean()) < 4.5 * 0.5 / np.sqrt(number)
    assert np.all((acceptance > -1e-5) & (acceptance < 1 + 1e-5))
    np.testing.assert_array_equal(step(keys, begin, jnp.float32(0.0)).log_step, log_step)


def test_sticky_rows_have_their_weight_on_the_diagonal() -> None:
    demos = hmm_demos([0, 0, 0, 0], [0, 0, 1, 1])
    model = btil.TeamModel(transition=btil.StickyDirichletCPT([1.0, 2.0], stay=3.0))
    found = btil.fit(model, demos, progress=False).result.rows["transition_agent_0"]
    # Prior [[4, 2], [1, 5]], and 0 -> 0, 0 -> 1, 1 -> 1 were seen.
    np.testing.assert_allclose(found.concentration, [[[5.0, 3.0], [1.0, 6.0]]])


def test_parameters_of_equal_priors_are_drawn_independently() -> None:
    demos = random_demos(0, (3,), (2, 2), (3, 3))
    model = btil.TeamModel(btil.HierarchicalDirichletCPT(4.0), btil.DirichletCPT(1.0))
    drawn = prior_tables(model, demos, np.random.default_rng(0)).parameters
    assert drawn.keys() == {"policy_ann_base", "policy_bob_base"}
    assert not np.isin(drawn["policy_ann_base"], drawn["policy_bob_base"]).any()


def test_agents_learn_their_common_base_together() -> None:
    """What ann does is expected of bob where he has not been, against the little he did."""
    steps = 30
    demos = btil.Demonstrations(
        states=np.r_[np.zeros(steps - 1, int), 1],
        actions={"ann": np.zeros(steps, int), "bob": np.r_[np.zeros(steps - 1, int), 1]},
        latents={"ann": np.zeros(steps, int), "bob": np.r_[np.ones(steps - 1, int), 0]},
        num_actions=2,
        num_latents=2,
        num_states=3,
    )
    policy = btil.HierarchicalDirichletCPT(5.0, parents=("state",), shared_base=True)
    posterior = btil.fit(btil.TeamModel(policy=policy), demos, progress=False)
    assert set(posterior.result.parameters) == {"policy_base"}
    # With a base of his own, and one observation against it, it would be below a half.
    assert posterior.policy("bob", [2])[0, 0, 0] > 0.55


def test_stick_breaking_empties_the_latents_that_are_not_needed() -> None:
    generator = np.random.default_rng(0)
    num_episodes, length = 30, 30
    policy = np.array([[0.9, 0.05, 0.05], [0.05, 0.05, 0.9]])
    states = np.zeros((num_episodes, length), int)
    latents, actions = np.zeros_like(states), np.zeros_like(states)
    for m in range(num_episodes):
        latent = generator.integers(2)
        for t in range(length):
            latent = latent if generator.random() < 0.9 else 1 - latent
            latents[m, t] = latent
            actions[m, t] = generator.choice(3, p=policy[latent])
    demos = btil.Demonstrations(
        states.ravel(),
        actions.reshape(-1, 1),
        episodes=np.repeat(np.arange(num_episodes), length),
        num_latents=6,
    )
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.0),
        transition=btil.StickBreakingCPT(1.0, strength=5.0, stay=5.0),
        initial=btil.StickBreakingCPT(1.0, strength=5.0),
    )
    posterior = btil.fit(model, demos, num_restarts=4, progress=False)
    shares = np.sort(posterior.smooth(demos)["agent_0"].mean(0))[::-1]
    assert shares[:2].sum() > 0.97
    found = posterior.decode(demos)[:, 0]
    confusion = np.zeros((6, 2))
    np.add.at(confusion, (found, latents.ravel()), 1)
    assert confusion.max(1).sum() > 0.93 * demos.num_steps


class NoisyTable(btil.ParametricCPT):
    """The same row everywhere, mixed with uniform noise of unknown weight."""

    def priors(self, contexts: Any) -> dict[str, Any]:
        rows = dist.Dirichlet(jnp.ones(contexts.row_shape))
        return {"noise": dist.Beta(1.0, 9.0), "table": rows}

    def log_rows(self, parameters: Any, inputs: Any) -> Any:
        noise, table = parameters["noise"], parameters["table"]
        return jnp.log((1 - noise) * table + noise / table.shape[-1])[None]


def test_a_family_of_ones_own_is_one_small_class() -> None:
    demos = random_demos(0, (20,) * 10, (2,), (3,), (2,), labelled=1.0)
    model = btil.TeamModel(policy=NoisyTable(), transition=btil.DirichletCPT(1.0))
    posterior = btil.fit(model, demos, progress=False)
    assert set(posterior.result.parameters) == {"policy_ann_noise", "policy_ann_table"}
    seen = np.zeros((2, 3))
    np.add.at(seen, (demos.latents[:, 0], demos.actions[:, 0]), 1)
    seen /= seen.sum(1, keepdims=True)
    np.testing.assert_allclose(posterior.policy("ann")[0], seen, atol=0.05)
    tree = posterior.to_datatree(num_draws=3)["posterior"]
    assert tree["policy_ann_table"].dims[2:] == ("policy_ann_table_dim_0", "policy_ann_table_dim_1")


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (np.zeros((3, 2)), r"log_rows of .* has shape \(3, 2\), expected \(1, 2, 3\)"),
        (
            np.zeros((1, 2, 3)),
            r"log_rows of .* at \(0, 0\) is .*; allowed are logs of rows that sum",
        ),
    ],
)
def test_rows_of_ones_own_are_looked_at(rows: Any, told: str) -> None:
    class Wrong(NoisyTable):
        def log_rows(self, parameters: Any, inputs: Any) -> Any:
            return jnp.asarray(rows)

    with pytest.raises(ValueError, match="policy_ann: " + told):
        btil.fit(btil.TeamModel(policy=Wrong()), DEMOS)


@pytest.mark.parametrize(
    ("concentration", "told"),
    [
        (np.ones((2, 3)), r"concentration of Wrong has shape \(2, 3\), expected \(1, 2, 3\)"),
        (
            np.full((1, 2, 3), -1.0),
            r"concentration of Wrong at \(0, 0, 0\) is -1.0; allowed are pos",
        ),
    ],
)
def test_concentrations_of_ones_own_are_looked_at(concentration: Any, told: str) -> None:
    class Wrong(btil.CPT):
        learned = True

        def concentration(self, contexts: Any) -> Any:
            return concentration

    with pytest.raises(ValueError, match="policy_ann: " + told):
        btil.fit(btil.TeamModel(policy=Wrong()), DEMOS)


# ---------------------------------------------------------------------- claims and refusals

FAMILIES = [
    btil.StickyDirichletCPT(1.2, 3.0, ("x",)),
    btil.HierarchicalDirichletCPT(2.0, 1.5, 1.0, {"ann": ("x",)}, True),
    btil.HierarchicalDirichletCPT(),
    btil.StickBreakingCPT(2.0, None, 1.0, ("x",)),
    btil.SoftmaxCPT(("x", "y"), None, 0.5, 0.7),
    btil.GoalConditionedCPT(VALUES, ("state",), 0.5),
]


@pytest.mark.parametrize("cpt", FAMILIES, ids=lambda cpt: type(cpt).__name__)
def test_arguments_make_the_family_again(cpt: Any) -> None:
    again = type(cpt)(**cpt.arguments())
    for name, value in cpt.arguments().items():
        np.testing.assert_equal(again.arguments()[name], value)


@pytest.mark.parametrize(
    ("cpt", "claimed"),
    [
        (btil.HierarchicalDirichletCPT(None, stay=2.0), True),
        (btil.SoftmaxCPT(("x",)), True),
        (btil.StickBreakingCPT(stay=1.0), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_family_knows_whether_latents_can_change_places(cpt: Any, claimed: bool) -> None:
    """The prior density of parameters with two latents swapped, and the rows they make."""
    contexts = bind(btil.TeamModel(transition=cpt), DEMOS).tables["transition_ann"].contexts
    assert cpt.exchangeable_latents(contexts, 0, 1) is claimed
    if not claimed:
        return
    priors, inputs = cpt.priors(contexts), cpt.inputs(contexts)
    with handlers.seed(rng_seed=0):
        from numpyro import sample

        values = {name: np.asarray(sample(name, prior)) for name, prior in priors.items()}
    swapped = {
        name: np.flip(
            value,
            [k for k, axis in enumerate(cpt.parameter_axes.get(name, ())) if axis != "feature"],
        )
        for name, value in values.items()
    }

    def density(given: dict[str, Any]) -> float:
        return sum(float(jnp.sum(prior.log_prob(given[name]))) for name, prior in priors.items())

    def rows(given: dict[str, Any]) -> np.ndarray:
        make = cpt.row_concentration if cpt.dirichlet_rows else cpt.log_rows
        return np.asarray(make(given, inputs))

    assert density(swapped) == pytest.approx(density(values), rel=1e-5)
    np.testing.assert_allclose(rows(swapped), rows(values)[:, ::-1, ::-1], rtol=1e-5)


class Given(btil.ParametricCPT):
    """A family whose priors are what it was given."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def priors(self, contexts: Any) -> Any:
        return self.given

    def log_rows(self, parameters: Any, inputs: Any) -> Any:
        raise AssertionError("priors are looked at first")


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: btil.HierarchicalDirichletCPT(-1.0), "strength must be a positive number"),
        (lambda: btil.StickBreakingCPT(0.0), "concentration must be a positive number, got 0.0"),
        (lambda: btil.StickyDirichletCPT(1.0, -2.0), "stay must be a finite number of at least 0"),
        (lambda: btil.SoftmaxCPT(weight_scale=np.inf), "weight_scale must be a positive number"),
        (
            lambda: btil.TeamModel(policy=btil.StickyDirichletCPT()),
            "describes a transition, it cannot be a policy",
        ),
        (lambda: btil.TeamModel(policy=btil.StickBreakingCPT()), "cannot be a policy"),
        (
            lambda: btil.TeamModel(initial=btil.HierarchicalDirichletCPT(stay=1.0)),
            "stay is for a transition",
        ),
        (
            lambda: btil.TeamModel(transition=btil.GoalConditionedCPT(VALUES)),
            "describes a policy, it cannot be a transition",
        ),
        (
            lambda: btil.fit(btil.TeamModel(policy=btil.GoalConditionedCPT(VALUES[:1])), DEMOS),
            r"GoalConditionedCPT table has shape \(1, 2, 2, 3\), expected",
        ),
        (
            lambda: btil.fit(
                btil.TeamModel(policy=btil.GoalConditionedCPT(np.full((2, 2, 2, 3), np.nan))), DEMOS
            ),
            "values at .* are .nan, nan, nan.",
        ),
        (
            lambda: btil.fit(btil.TeamModel(transition=btil.StickBreakingCPT()), ONE_LATENT),
            "needs two latents or more",
        ),
        (
            lambda: btil.fit(
                btil.TeamModel(
                    transition={
                        "ann": btil.HierarchicalDirichletCPT(5.0, 1.0, shared_base=True),
                        "bob": btil.HierarchicalDirichletCPT(5.0, 9.0, shared_base=True),
                    }
                ),
                random_demos(0, (3, 2), (2, 2), (3, 3)),
            ),
            "transition_ann and transition_bob share this parameter, but differ in its prior",
        ),
        (
            lambda: btil.fit(
                btil.TeamModel(
                    transition={
                        "ann": btil.Shared(btil.HierarchicalDirichletCPT(5.0)),
                        "bob": btil.HierarchicalDirichletCPT(5.0, shared_base=True),
                    }
                ),
                random_demos(0, (3, 2), (2, 2), (3, 3)),
            ),
            "transition_base names a parameter of transition as well as one of transition_bob",
        ),
        (
            lambda: btil.fit(
                btil.TeamModel(
                    policy=btil.SoftmaxCPT(("x",), lambda c: (c["x"] - c["x"].mean())[:, None])
                ),
                DEMOS,
            ),
            "features of a context must depend on it alone",
        ),
        (
            lambda: btil.fit(
                btil.TeamModel(policy=btil.SoftmaxCPT(("x",), lambda contexts: np.ones(3))), DEMOS
            ),
            r"features of shape \(3,\) for .* contexts",
        ),
        (lambda: btil.fit(btil.TeamModel(policy=Given([])), DEMOS), "priors of Given: a mapping"),
        (
            lambda: btil.fit(btil.TeamModel(policy=Given({"w": 0.5})), DEMOS),
            "policy_ann: priors of Given: a NumPyro distribution of w expected, got float",
        ),
        (
            lambda: btil.fit(btil.TeamModel(policy=Given({"w": dist.Poisson(2.0)})), DEMOS),
            r"policy_ann: priors of Given: w is discrete \(Poisson\)",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(make: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()
