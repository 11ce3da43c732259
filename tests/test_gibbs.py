"""The Gibbs sampler against exact inference, and what it promises of seeds, cuts and compiling."""

import itertools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import btil
from btil.demonstrations import Demonstrations
from btil.inference import exact, gibbs
from btil.messages.layout import lay_out
from btil.messages.smoother import filter_lanes, potentials, sample_paths
from btil.models.cpt import DirichletCPT, KnownCPT, Shared, StaticCPT, UniformCPT
from btil.models.team import TeamModel, bind
from btil.numerics.gammas import draw_log_gammas
from btil.numerics.precision import precision

FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def fit(model, demos, seed=0, dtype=FLOAT32, **options):
    with precision(dtype):
        return gibbs.fit(bind(model, demos), seed=seed, progress=False, dtype=dtype, **options)


def fit_exact(model, demos):
    return exact.fit(bind(model, demos), seed=0, progress=False, dtype=FLOAT64)


def ones():
    return TeamModel(*(DirichletCPT(1.0) for _ in range(3)))


def hmm(actions, latents=None, episodes=None, num_latents=2, num_actions=3):
    """Shapes are mostly the same, so that most tests run the same compiled program."""
    return Demonstrations(
        np.zeros(len(actions), int),
        np.array(actions)[:, None],
        latents=None if latents is None else np.array(latents)[:, None],
        episodes=episodes,
        num_latents=num_latents,
        num_actions=num_actions,
    )


def unlike_team():
    """Agents of 2, 3 and 1 latents; episodes of 3, 1 and 2 steps; sparse and known tables."""
    demos = Demonstrations(
        {"light": [0, 1, 1, 0, 1, 0]},
        np.array([[0, 1, 0], [2, 0, 1], [1, 0, 1], [2, 1, 0], [0, 0, 0], [1, 1, 1]]),
        np.array([[-1, 2, -1], [1, -1, 0], [-1, -1, -1], [-1, -1, -1], [0, -1, 0], [-1, 1, -1]]),
        agents=("ann", "bob", "dot"),
        episodes=[0, 0, 0, 1, 2, 2],
        num_latents=(2, 3, 1),
    )
    model = TeamModel(
        policy={
            "ann": DirichletCPT([[0.5, 1.0, 2.0], [3.0, 0.2, 1.0]], parents=("light",)),
            "bob": KnownCPT([[0.8, 0.2], [0.3, 0.7], [0.0, 1.0]]),
            "dot": DirichletCPT(0.1),
        },
        transition={
            "ann": DirichletCPT(0.1, parents=("action_bob",)),
            "bob": DirichletCPT(0.7, parents=("next_light",)),
            "dot": DirichletCPT(1.0),
        },
        initial={
            "ann": UniformCPT(),
            "bob": DirichletCPT([1.0, 2.0, 0.5]),
            "dot": DirichletCPT(1.0),
        },
    )
    return model, demos


def sharing_team():
    demos = Demonstrations(
        {"ann_held": [0, 1, 1, 0, 1, 0], "bob_held": [0, 1, 1, 0, 0, 1]},
        np.array([[0, 1], [2, 0], [1, 0], [2, 1], [0, 2], [1, 1]]),
        np.array([[-1, 1], [-1, -1], [-1, -1], [-1, -1], [0, -1], [-1, 0]]),
        agents=("ann", "bob"),
        episodes=[0, 0, 0, 1, 2, 2],
        num_latents=2,
    )
    model = TeamModel(
        policy=Shared(
            DirichletCPT(
                [[0.5, 1.0, 2.0], [3.0, 0.2, 1.0]],
                parents={"ann": ("ann_held",), "bob": ("bob_held",)},
            )
        ),
        transition={"ann": StaticCPT(), "bob": DirichletCPT(0.7)},
        initial=Shared(DirichletCPT([0.4, 1.1])),
    )
    return model, demos


def one_step_episodes():
    demos = hmm([0, 0, 1, 2, 0, 1], [0, -1, 1, -1, -1, -1], [0, 1, 2, 3, 4, 5])
    return TeamModel(DirichletCPT(0.5), DirichletCPT(1.0), DirichletCPT([0.6, 2.0])), demos


def monte_carlo_errors(draws, center):
    """Means of draws and of squared deviations, each with its Monte Carlo standard error."""
    import arviz

    def error(values):
        return arviz.mcse(values, method="mean", chain_axis=0, draw_axis=1)

    flat = draws.reshape(*draws.shape[:2], -1).astype(np.float64)
    squares = (flat - center.ravel()) ** 2
    return (flat.mean((0, 1)), error(flat)), (squares.mean((0, 1)), error(squares))


@pytest.mark.parametrize("case", [unlike_team, sharing_team, one_step_episodes])
def test_means_and_variances_agree_with_exact(case):
    model, demos = case()
    truth = fit_exact(model, demos)
    sampled = fit(model, demos, num_samples=3000)
    assert sampled.converged, sampled.reason
    assert list(sampled.rows) == list(truth.rows)
    for name, rows in truth.rows.items():
        draws = sampled.rows[name].draws
        assert draws.shape == (4, 3000, *rows.mean().shape)
        assert draws.dtype == np.float32
        (means, mean_errors), (squares, square_errors) = monte_carlo_errors(draws, rows.mean())
        constant = np.ptp(draws, axis=(0, 1)).ravel() == 0
        errors = np.where(constant, 1e-6, mean_errors)
        assert np.all(np.abs(means - rows.mean().ravel()) < 4 * errors)
        errors = np.where(constant, 1e-6, square_errors)
        assert np.all(np.abs(squares - rows.sd().ravel() ** 2) < 4 * errors)


def likelihoods(result, episodes):
    """Those of each draw, from its rows, of some episodes' actions."""
    policy, moves, begin = (
        result.rows[f"{role}_agent_0"].draws[:, :, 0].astype(np.float64)
        for role in ("policy", "transition", "initial")
    )
    found = []
    for first, *others in episodes:
        forward = begin * policy[..., first]
        for action in others:
            forward = np.einsum("cdk,cdkj->cdj", forward, moves) * policy[..., action]
        found.append(forward.sum(-1))
    return np.stack(found, axis=-1)


def test_log_likelihood_belongs_to_the_draw_beside_it():
    demos = hmm([0, 1, 1, 0], episodes=[0, 0, 0, 1])
    result = fit(ones(), demos, dtype=FLOAT64, num_samples=7)
    expected = likelihoods(result, [[0, 1, 1], [0]])
    assert result.log_likelihood.shape == (4, 7, 2)
    np.testing.assert_allclose(result.log_likelihood, np.log(expected), rtol=1e-10)
    np.testing.assert_allclose(
        result.sample_stats["log_likelihood_total"], np.log(expected).sum(-1), rtol=1e-10
    )


def test_every_step_labelled_draws_from_the_closed_form():
    labels = [0, 0, 1, 1, 0, 0]
    demos = hmm([0, 1, 2, 2, 1, 0], labels, [0, 0, 0, 1, 1, 1])
    result = fit(ones(), demos, num_warmup=0, num_samples=500)
    drawn = result.rows["transition_agent_0"].draws[:, :, 0, 1, 0].ravel()
    assert stats.kstest(drawn, stats.beta(2, 1).cdf).pvalue > 1e-3
    drawn = result.rows["policy_agent_0"].draws[:, :, 0, 1, 2].ravel()
    assert stats.kstest(drawn, stats.beta(3, 2).cdf).pvalue > 1e-3


def test_sparse_priors_leave_every_log_finite(few_moves):
    model = TeamModel(*(DirichletCPT(0.001) for _ in range(3)))
    demos = hmm([0, 1, 2, 0, 1, 2, 2, 2], [0, -1, -1, -1, -1, 1, -1, -1])
    result = fit(model, demos, num_warmup=20, num_samples=50)
    for rows in result.rows.values():
        assert np.all(rows.draws >= np.finfo(np.float32).tiny)
        np.testing.assert_allclose(rows.draws.sum(-1), 1.0, rtol=1e-5)
    assert np.all(np.isfinite(result.log_likelihood))


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_same_seed_same_bits(dtype):
    model, demos = ones(), hmm([0, 1, 2, 0, 1])
    first = fit(model, demos, seed=3, dtype=dtype, num_warmup=10, num_samples=10)
    np.random.seed(1)  # noqa: NPY002  # the global generator must not matter
    second = fit(model, demos, seed=3, dtype=dtype, num_warmup=10, num_samples=10)
    other = fit(model, demos, seed=4, dtype=dtype, num_warmup=10, num_samples=10)
    for name, rows in first.rows.items():
        assert rows.draws.dtype == dtype
        np.testing.assert_array_equal(rows.draws, second.rows[name].draws)
        assert not np.array_equal(rows.draws, other.rows[name].draws)
    np.testing.assert_array_equal(first.log_likelihood, second.log_likelihood)


def test_cuts_and_run_length_do_not_change_the_draws():
    model, demos = ones(), hmm([0, 1, 2, 0, 1], episodes=[0, 0, 0, 1, 1])
    whole = fit(model, demos, num_warmup=0, num_samples=60)
    later = fit(model, demos, num_warmup=13, num_samples=40)
    for name, rows in whole.rows.items():
        np.testing.assert_array_equal(rows.draws[:, 13:53], later.rows[name].draws)
    np.testing.assert_array_equal(whole.log_likelihood[:, 13:53], later.log_likelihood)
    # Each beside the draw that it is of.
    expected = np.log(likelihoods(later, [[0, 1, 2], [0, 1]]))
    np.testing.assert_allclose(later.log_likelihood, expected, atol=1e-4)
    np.testing.assert_allclose(
        later.sample_stats["log_likelihood_total"], expected.sum(-1), atol=1e-4
    )


def test_the_step_of_parameters_is_tuned_ever_less_and_not_at_all_after_the_warmup():
    tuned = [float(gibbs._adaptation(jnp.asarray(number), 4)) for number in range(6)]
    np.testing.assert_allclose(tuned, [1, 2**-0.6, 3**-0.6, 4**-0.6, 0, 0], rtol=1e-6)


def test_chains_start_apart():
    demos = hmm([0, 1, 2, 0, 1], [0, -1, -1, 1, -1], episodes=[0, 0, 0, 1, 1])
    result = fit(ones(), demos, num_warmup=0, num_samples=1)
    for rows in result.rows.values():
        assert len(np.unique(rows.draws[:, 0].reshape(4, -1), axis=0)) == 4


def test_second_fit_of_equal_shapes_compiles_nothing():
    model, demos = ones(), hmm([0, 1, 2, 0, 1], episodes=[0, 0, 0, 1, 1])
    fit(model, demos, num_warmup=2, num_samples=3)
    programs = gibbs.advance._cache_size()
    permuted = demos.select([1, 0])
    compiled = []

    def listen(event, duration, **_):
        if "compile" in event:
            compiled.append((event, duration))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        fit(model, permuted, seed=5, num_warmup=30, num_samples=40)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert gibbs.advance._cache_size() == programs
    assert compiled == []


def test_paths_are_drawn_with_their_posterior_probabilities():
    rng = np.random.default_rng(5)
    latents, length = 3, 4
    policy = rng.dirichlet(np.ones(2), (1, latents))
    moves = rng.dirichlet(np.ones(latents), (1, latents))
    moves[0, 0] = [0.0, 0.4, 0.6]
    begin = rng.dirichlet(np.ones(latents), 1)
    actions, labels = [0, 1, 1, 0], [-1, -1, 2, -1]
    model = TeamModel(KnownCPT(policy[0]), KnownCPT(moves[0]), KnownCPT(begin[0]))
    layout = lay_out(bind(model, hmm(actions, labels, num_latents=latents, num_actions=2)))
    index = layout.index["agent_0"]
    with np.errstate(divide="ignore"):
        tables = [jnp.asarray(np.log(table)) for table in (policy, moves, begin)]
    filtered = filter_lanes(potentials(*tables, jax.tree.map(jnp.asarray, index)))
    draws = 20_000
    keys = jax.random.split(jax.random.key(0), draws)
    paths = jax.vmap(sample_paths, (0, None, None))(keys, filtered, jnp.asarray(index.start))
    lane = layout.lanes[0].argmax()
    found = np.asarray(paths)[:, :length, lane]
    assert layout.lanes[:length, lane].tolist() == list(range(length))
    every = np.array(list(itertools.product(range(latents), repeat=length)))
    weights = begin[0, every[:, 0]] * policy[0, every, actions].prod(-1)
    weights *= moves[0, every[:, :-1], every[:, 1:]].prod(-1) * (every[:, 2] == 2)
    expected = weights / weights.sum() * draws
    observed = np.bincount(
        np.ravel_multi_index(found.T, (latents,) * length), minlength=latents**length
    )
    assert observed[expected == 0].sum() == 0
    possible = expected > 0
    assert stats.chisquare(observed[possible], expected[possible]).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT64])
def test_gamma_draws_have_their_distribution(dtype):
    shapes = np.repeat([0.1, 0.7, 1.0, 3.2, 50.0, 1e6], 4000)
    with precision(dtype):
        cells = jnp.asarray(shapes, dtype)
        log_draws = np.asarray(draw_log_gammas(jax.random.key(1), cells), np.float64)
    assert np.isfinite(log_draws).all()
    for concentration in np.unique(shapes):
        draws = np.exp(log_draws[shapes == concentration])
        assert stats.kstest(draws, stats.gamma(concentration).cdf).pvalue > 1e-3


def test_gamma_draws_of_many_cells_are_independent():
    """They are proposed in parts: cells at equal places of two parts have nothing in common."""
    draws = np.asarray(draw_log_gammas(jax.random.key(2), jnp.full(3 * 16384, 1.3)))
    correlation = np.corrcoef(draws.reshape(3, 16384))
    assert np.abs(correlation[np.triu_indices(3, 1)]).max() < 5 / np.sqrt(16384)


@pytest.mark.parametrize("options", [{"num_chains": 0}, {"num_samples": 0}, {"num_warmup": -1}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="must be a whole number of at least"):
        btil.fit(ones(), hmm([0, 1]), "gibbs", **options)


def test_semi_supervised_hmm_of_the_stan_examples():
    data = json.loads((Path(__file__).parent / "data" / "stan_hmm_semisup.json").read_text())
    labelled, unlabelled = len(data["w"]), len(data["u"])
    demos = hmm(
        np.array(data["w"] + data["u"]) - 1,
        np.array(data["z"] + [0] * unlabelled) - 1,
        np.repeat([0, 1], [labelled, unlabelled]),
        num_latents=3,
        num_actions=10,
    )
    model = TeamModel(DirichletCPT(0.1), DirichletCPT(1.0), UniformCPT())
    result = fit(model, demos, num_warmup=500, num_samples=4000)
    assert result.converged, result.reason
    transition = [[0.1458, 0.6562, 0.1980], [0.3327, 0.3548, 0.3126], [0.1817, 0.0608, 0.7576]]
    sds = [[0.0513, 0.0696, 0.0628], [0.0536, 0.0436, 0.0494], [0.0340, 0.0200, 0.0344]]
    policy = [0.0547, 0.0049, 0.0020, 0.1532, 0.1616, 0.0203, 0.0033, 0.5349, 0.0008, 0.0645]
    rounding = 5e-5
    draws = result.rows["transition_agent_0"].draws[:, :, 0]
    (means, errors), (squares, square_errors) = monte_carlo_errors(draws, np.array(transition))
    assert np.all(np.abs(means - np.ravel(transition)) < 4 * errors + rounding)
    variances = np.ravel(sds) ** 2
    slack = 4 * square_errors + 2 * rounding * np.ravel(sds)
    assert np.all(np.abs(squares - variances) < slack)
    draws = result.rows["policy_agent_0"].draws[:, :, 0, 0]
    (means, errors), _ = monte_carlo_errors(draws, np.array(policy))
    assert np.all(np.abs(means - policy) < 4 * errors + rounding)
