"""NUTS against enumeration, judged by Monte Carlo error."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from enumeration import episode_log_likelihoods, exact_posterior
from teams import hmm_demos, hmm_model, two_labelled_episodes

import btil
from btil.inference import nuts
from btil.inference.chains import judge_chains
from btil.inference.checkpoint import Checkpoint, Saved
from btil.models.team import bind
from btil.numerics.precision import precision

# One set of options for most tests: what is compiled for one serves all of equal shapes.
SHORT = {"num_warmup": 300, "num_samples": 300}
DEMOS = hmm_demos([0, 0, 1, 1], [0, -1, -1, 1], num_actions=2)


def fit(bound, seed=0, progress=False, dtype=np.float64, **options):
    with precision(dtype) as chosen:
        return nuts.fit(bound, seed=seed, progress=progress, dtype=chosen, **(SHORT | options))


def effective_size(draws):
    """Effective sample size of every cell; all draws count the same where a cell is constant."""
    from numpyro.diagnostics import effective_sample_size

    with np.errstate(invalid="ignore"):
        size = effective_sample_size(draws)
    return np.where(np.isfinite(size), size, draws.shape[0] * draws.shape[1])


def assert_within_monte_carlo_error(result, truth, errors=4.0):
    """Means and standard deviations of all cells within `errors` Monte Carlo standard errors."""
    for name, mean in truth.mean.items():
        draws = result.rows[name].draws
        mean_error = truth.sd[name] / np.sqrt(effective_size(draws))
        assert np.all(np.abs(draws.mean((0, 1)) - mean) <= errors * mean_error + 1e-9), name
        squares = (draws - mean) ** 2
        square_error = squares.std((0, 1)) / np.sqrt(effective_size(squares))
        assert np.all(
            np.abs(squares.mean((0, 1)) - truth.sd[name] ** 2) <= errors * square_error + 1e-9
        ), name


@pytest.mark.parametrize("concentration", [1.0, 0.1])
@pytest.mark.parametrize("labels", [None, [0, -1, -1, 1]])
def test_agrees_with_enumeration(concentration, labels):
    bound = bind(hmm_model(concentration), hmm_demos([0, 0, 1, 1], labels, num_actions=2))
    result = fit(bound, num_samples=1000)
    assert_within_monte_carlo_error(result, exact_posterior(bound))


def test_agrees_with_enumeration_on_a_team():
    """Two agents of different sizes, unequal episodes, parents, partial labels."""
    demos = btil.Demonstrations(
        states=[0, 1, 1, 0, 1],
        actions={"ann": [0, 1, 2, 0, 0], "bob": [1, 1, 0, 0, 1]},
        latents={"ann": [0, -1, 1, -1, 1], "bob": [2, -1, 0, 1, -1]},
        episodes=[0, 0, 0, 1, 1],
        num_actions=(3, 2),
        num_latents=(2, 3),
    )
    model = btil.TeamModel(
        policy=btil.DirichletCPT(0.5, parents=("state",)),
        transition=btil.DirichletCPT(0.8, parents=("own_action",)),
        initial=btil.DirichletCPT(1.3),
    )
    bound = bind(model, demos)
    result = fit(bound, num_samples=1000)
    assert_within_monte_carlo_error(result, exact_posterior(bound))
    assert result.log_likelihood.shape == (4, 1000, 2)


def test_agrees_with_closed_form_where_all_is_labelled():
    bound = bind(hmm_model(), two_labelled_episodes())
    result = fit(bound, num_samples=1000)
    assert_within_monte_carlo_error(result, exact_posterior(bound))
    assert result.converged


def test_result_has_what_it_promises():
    bound = bind(hmm_model(), DEMOS)
    result = fit(bound)
    names = {"diverging", "potential_energy", "energy", "num_steps", "accept_prob"}
    assert set(result.sample_stats) == names
    assert all(values.shape == (4, 300) for values in result.sample_stats.values())
    assert {name: rows.draws.shape for name, rows in result.rows.items()} == {
        "policy_agent_0": (4, 300, 1, 2, 2),
        "transition_agent_0": (4, 300, 1, 2, 2),
        "initial_agent_0": (4, 300, 1, 2),
    }
    for rows in result.rows.values():
        assert rows.draws.dtype == np.float64
        np.testing.assert_allclose(rows.draws.sum(-1), 1, atol=1e-12)
    for chain, draw in ((0, 0), (2, 7), (3, 299)):
        rows = {name: rows.draws[chain, draw] for name, rows in result.rows.items()}
        np.testing.assert_allclose(
            result.log_likelihood[chain, draw], episode_log_likelihoods(bound, rows), atol=1e-10
        )
    assert result.elbo is None
    assert result.notes["divergences"] == result.sample_stats["diverging"].sum()


def test_divergences_and_trees_of_the_largest_depth_are_told(monkeypatch):
    """As sampling may leave it: made up."""
    bound = bind(hmm_model(), DEMOS)
    generator = np.random.default_rng(0)
    shape = (2, 6)
    draws = {
        n: generator.dirichlet([1, 1], (*shape, *t.shape[:-1])) for n, t in bound.learned.items()
    }
    statistics = {
        "diverging": np.arange(12).reshape(shape) % 4 == 0,
        "num_steps": np.array([[1, 3, 6, 7, 7, 7], [7, 6, 7, 5, 1, 2]]),
    }
    found = nuts.Chains(draws, generator.normal(-3, 1, (*shape, 1)), statistics)
    monkeypatch.setattr(nuts, "sample_chains", lambda *arguments: found)
    result = fit(bound, max_tree_depth=3)
    assert result.reason.endswith("; 3 divergent transitions")
    assert result.notes["divergences"] == 3
    assert result.notes["draws_at_max_tree_depth"] == 5


def test_equal_seeds_give_equal_bits_and_progress_changes_none(capfd):
    bound = bind(hmm_model(), DEMOS)
    first = fit(bound, seed=3)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
    fit(bound, seed=4)
    second = fit(bound, seed=3, progress=True)
    assert "nuts" in capfd.readouterr().err
    other = fit(bound, seed=5)
    for name, rows in first.rows.items():
        np.testing.assert_array_equal(rows.draws, second.rows[name].draws)
        assert np.any(rows.draws != other.rows[name].draws)


def test_data_are_arguments_and_a_second_fit_compiles_nothing():
    import jax

    bound = bind(hmm_model(), DEMOS)
    first = fit(bound)
    count = []

    def listen(event, duration, **_):
        if "backend_compile" in event:
            count.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        other = bind(hmm_model(2.0), hmm_demos([1, 0, 1, 1], [1, -1, -1, 1], num_actions=2))
        second = fit(other, seed=1)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert count == []
    assert np.any(first.rows["policy_agent_0"].draws != second.rows["policy_agent_0"].draws)


def test_sequential_chains_and_one_latent():
    bound = bind(hmm_model(), hmm_demos([0, 0, 1], num_latents=1, num_actions=2))
    truth = exact_posterior(bound)
    for method in ("vectorized", "sequential"):
        result = fit(bound, chain_method=method)
        assert_within_monte_carlo_error(result, truth)
        assert result.rows["policy_agent_0"].draws.shape == (4, 300, 1, 1, 2)
        assert result.notes["cells_constant"] == 2
        np.testing.assert_array_equal(result.rows["transition_agent_0"].draws, 1.0)


def test_single_precision_whatever_the_switch():
    import jax

    bound = bind(hmm_model(), DEMOS)
    plain = fit(bound, dtype=np.float32)
    with jax.enable_x64(True):
        switched = fit(bound, dtype=np.float32)
    for name, rows in plain.rows.items():
        assert rows.draws.dtype == np.float32
        np.testing.assert_array_equal(rows.draws, switched.rows[name].draws)
    assert_within_monte_carlo_error(plain, exact_posterior(bound))


def test_stick_logits_are_a_density_and_give_dirichlet_rows():
    import jax
    import jax.numpy as jnp

    with jax.enable_x64(True):
        u = jnp.array([0.4, 1.7, 0.9])
        sticks = nuts.StickLogits(u)
        # Integrates to one, and to the Dirichlet's means, over a grid of the plane.
        axis = np.linspace(-60, 40, 1001)
        grid = jnp.asarray(np.stack(np.meshgrid(axis, axis, indexing="ij"), -1))
        mass = np.exp(sticks.log_prob(grid)) * (axis[1] - axis[0]) ** 2
        np.testing.assert_allclose(mass.sum(), 1, atol=1e-6)
        rows = np.asarray(nuts.rows_of_sticks(grid))
        np.testing.assert_allclose(rows.sum(-1), 1, atol=1e-12)
        truth = np.asarray(u / u.sum())
        np.testing.assert_allclose(np.tensordot(mass, rows, 2), truth, atol=1e-6)
        drawn = np.asarray(nuts.rows_of_sticks(sticks.sample(jax.random.key(0), (20_000,))))
    error = drawn.std(0) / np.sqrt(20_000)
    np.testing.assert_array_less(np.abs(drawn.mean(0) - truth), 4 * error)


def test_tails_of_tiny_concentrations_are_not_cut():
    """Of the draws of Beta(.01, .01) half the share 1e-58^.01 lies below 1e-58."""
    import jax

    with jax.enable_x64(True):
        sticks = nuts.StickLogits(jax.numpy.full(2, 0.01))
        rows = np.asarray(nuts.rows_of_sticks(sticks.sample(jax.random.key(0), (4000,))))
    assert abs(np.mean(rows[:, 0] < 1e-58) - 0.5 * 1e-58**0.01) < 4 * np.sqrt(0.13 * 0.87 / 4000)


class Counted(NamedTuple):
    """A chain that counts up from where it begins."""

    x: Any
    num_steps: Any
    mean_accept_prob: Any


def counting():
    """Programs of such chains."""

    def start(begin, inputs):
        x = jax.random.key_data(begin.keys)[:, 1].astype(jnp.int32) * inputs
        return Counted(x, jnp.ones_like(x), jnp.full(x.shape, 0.8))

    def advance(states, inputs, count):
        numbers = 1 + jnp.arange(nuts._TRANSITIONS_PER_CALL, dtype=jnp.int32)
        x = jnp.where((numbers <= count)[:, None], states.x[None] + numbers[:, None], -1)
        kept = nuts.Chains({"x": x}, 2 * x[..., None], {"diverging": x % 7 == 0})
        return states._replace(x=states.x + count), kept

    return nuts.Programs(start, advance)


class Noted(Checkpoint):
    """A checkpoint that keeps its offers, as they are written."""

    def __init__(self, saved=None):
        super().__init__()
        self.saved, self.offers = saved, []

    def offer(self, **progress):
        self.offers.append({
            f"{name}:{k}": np.array(leaf)
            for name, tree in progress.items() for k, leaf in enumerate(jax.tree.leaves(tree))
        })  # fmt: skip


@pytest.mark.parametrize("method", ["sequential", "vectorized"])
def test_draws_are_the_transitions_after_the_warmup_wherever_a_run_was_cut(method):
    """Neither warmup nor draws are a multiple of what is done in a call."""
    begin = nuts.Begin(jax.random.wrap_key_data(jnp.array([[0, 1], [0, 5], [0, 9]], jnp.uint32)))
    schedule = nuts.Schedule(13, 24, method)
    whole = Noted()
    inputs = jnp.int32(100)

    def run(checkpoint):
        return nuts.sample_chains(counting(), begin, inputs, schedule, checkpoint, False)

    found = run(whole)
    expected = 100 * np.array([[1], [5], [9]]) + 13 + 1 + np.arange(24)
    np.testing.assert_array_equal(found.draws["x"], expected)
    np.testing.assert_array_equal(found.log_likelihood[..., 0], 2 * expected)
    np.testing.assert_array_equal(found.statistics["diverging"], expected % 7 == 0)
    for offer in whole.offers[::2]:
        again = run(Noted(Saved(offer)))
        np.testing.assert_array_equal(again.draws["x"], expected)
        np.testing.assert_array_equal(again.log_likelihood, found.log_likelihood)


def test_chains_set_out_from_draws_of_their_rows_with_the_variances_of_these():
    """Logits of sticks are differences of logs of gamma draws, in the order of the sticks."""
    from scipy.special import digamma, polygamma

    chains = 4000
    w = np.array([[[0.8, 3.0, 1.5]], [[9.0, 9.0, 9.0]], [[2.0, 0.4, 5.0]]])
    order = np.array([[[1, 2, 0]], [[2, 0, 1]]])
    rows = nuts.OpenRows(
        jnp.array([0, 2]), jnp.asarray(order), jnp.argsort(order, -1), jnp.zeros((3, 1, 3))
    )
    nothing = rows._replace(contexts=jnp.array([], int))
    given = {"policy": np.broadcast_to(w, (chains, *w.shape)), "settled": w[None]}
    begin = nuts.Begin(jax.random.split(jax.random.key(0), chains))
    found = nuts._begin(begin, given, {"policy": rows, "settled": nothing}, np.dtype(np.float32), 0)
    assert found.positions is not None
    assert found.variances is not None
    assert set(found.positions) == set(found.variances) == {"policy/sticks"}
    ordered = np.take_along_axis(w[[0, 2]], order, -1)
    own, rest = ordered[..., :-1], np.stack([ordered[..., 1:].sum(-1), ordered[..., 2]], -1)
    positions, variances = found.positions["policy/sticks"], found.variances["policy/sticks"]
    expected = polygamma(1, own) + polygamma(1, rest)
    np.testing.assert_allclose(variances, np.broadcast_to(expected, variances.shape), rtol=1e-5)
    error = np.sqrt(expected / chains)
    assert np.all(np.abs(positions.mean(0) - (digamma(own) - digamma(rest))) < 4.5 * error)
    np.testing.assert_allclose(positions.var(0), expected, rtol=0.2)


def test_sticks_of_rows_that_are_open_are_broken_off_by_their_mean_sizes():
    """Of all chains together; cells of equal sizes stay in their order."""
    starts = np.array([
        [[[1.0, 9.0, 2.0]], [[1.0, 2.0, 3.0]], [[4.0, 4.0, 1.0]], [[3.0, 1.0, 2.0]]],
        [[[5.0, 1.0, 1.0]], [[9.0, 2.0, 3.0]], [[4.0, 4.0, 9.0]], [[1.0, 6.0, 2.0]]],
    ])  # fmt: skip
    settled = {"policy": np.array([False, True, False, False])}
    (found,) = nuts._open_rows({"policy": starts}, settled, np.dtype(np.float32)).values()
    np.testing.assert_array_equal(found.contexts, [0, 2, 3])
    np.testing.assert_array_equal(found.order, [[[1, 0, 2]], [[2, 0, 1]], [[1, 0, 2]]])
    np.testing.assert_array_equal(found.back, [[[1, 0, 2]], [[1, 2, 0]], [[1, 0, 2]]])
    np.testing.assert_allclose(found.others, np.full((4, 1, 3), 1 / 3))


def test_a_table_of_which_no_row_is_open_is_what_labels_make_of_it():
    from numpyro.distributions import Dirichlet

    others = jnp.array([[0.2, 0.8], [0.5, 0.5]])
    nothing = jnp.zeros((0, 2), int)
    rows = nuts.OpenRows(jnp.zeros(0, int), nothing, nothing, others)
    site, value = nuts.SticksReparam(rows)("policy", Dirichlet(jnp.ones((2, 2))).to_event(1), None)
    assert site is None
    assert value is others


class Adapted(NamedTuple):
    """What a kernel adapts."""

    inverse_mass_matrix: Any
    mass_matrix_sqrt: Any
    mass_matrix_sqrt_inv: Any


class Kernel(NamedTuple):
    """Its state."""

    adapt_state: Adapted


def test_the_metric_has_the_variances_of_all_sites_one_after_the_other():
    nothing = {("a", "b"): jnp.ones(3)}
    state = Kernel(Adapted(nothing, nothing, nothing))
    variances = {"b": jnp.array([[4.0]]), "a": jnp.array([9.0, 0.25])}
    found = nuts._with_metric(state, variances).adapt_state
    for part, expected in zip(found, ([9, 0.25, 4], [1 / 3, 2, 1 / 2], [3, 0.5, 2]), strict=True):
        np.testing.assert_allclose(part["a", "b"], expected, rtol=1e-6)


def test_hours_of_short_steps_are_told_before_they_are_taken(monkeypatch):
    class Sampled(Exception):
        pass

    def sampled(*_):
        raise Sampled

    monkeypatch.setattr(nuts, "sample_chains", sampled)
    generator = np.random.default_rng(0)
    states, actions = np.repeat(np.arange(25), 8), generator.integers(5, size=200)
    labels = np.where(np.arange(200) < 8, 0, -1)
    sizes = {"num_latents": 4, "num_actions": 5}
    demos = btil.Demonstrations(states, actions, labels, [0] * 8 + [1] * 192, **sizes)
    model = btil.TeamModel(
        policy=btil.DirichletCPT(0.01, parents=("state",)),
        transition=btil.DirichletCPT(1.0, parents=()),
    )
    # One state alone has labelled steps and no others: 24 rows of 4 latents and 5 actions are left.
    with pytest.raises(Sampled):
        btil.fit(model, demos, "nuts", progress=False)
    more = btil.concatenate([demos.without_labels([0]), demos])
    with (
        pytest.raises(Sampled),
        pytest.warns(btil.DataWarning, match=r"below 0.1: policy_\w+ \(500 cells\).*'gibbs'"),
    ):
        btil.fit(model, more, "nuts", progress=False)


def test_sampled_rows_go_back_to_their_places():
    import jax.numpy as jnp

    others = jnp.full((3, 3), 1 / 3)
    order = jnp.array([[2, 0, 1], [1, 2, 0]])
    sampled = nuts.OpenRows(jnp.array([2, 0]), order, jnp.argsort(order, axis=-1), others)
    # Sticks of 6/10 and 3/4, of 5/10 and 3/5.
    logits = jnp.log(jnp.array([[6 / 4, 3 / 1], [5 / 5, 3 / 2]]))
    found = nuts.whole_table(logits, sampled)
    expected = [[0.2, 0.5, 0.3], [1 / 3, 1 / 3, 1 / 3], [0.3, 0.1, 0.6]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_gradients_go_back_to_their_sticks():
    import jax

    jnp, generator = jax.numpy, np.random.default_rng(0)
    order = generator.permuted(np.tile(np.arange(4), (3, 1)), axis=1)
    weights = generator.normal(size=(3, 4))
    with precision(np.float64):
        order, back = jnp.asarray(order), jnp.asarray(np.argsort(order, axis=1))
        values = jnp.asarray(generator.normal(size=(3, 4)))

        def total(values, permute):
            return jnp.sum(weights * permute(values) ** 2)

        own = jax.grad(total)(values, lambda x: nuts.permuted(x, order, back))
        known = jax.grad(total)(values, lambda x: jnp.take_along_axis(x, order, axis=-1))
    np.testing.assert_array_equal(own, known)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_chains": 0}, "num_chains must be a whole number of at least 1, got 0"),
        ({"num_samples": 0}, "num_samples must be a whole number of at least 1, got 0"),
        ({"num_warmup": -1}, "num_warmup must be a whole number of at least 0, got -1"),
        ({"max_tree_depth": 0}, "max_tree_depth must be a whole number of at least 1"),
        (
            {"target_accept_prob": 1.0},
            "target_accept_prob must be a number strictly between 0 and 1",
        ),
        ({"chain_method": "parallel"}, "chain_method must be one of vectorized, sequential"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        btil.fit(hmm_model(), DEMOS, "nuts", **options)


def test_one_chain_never_converges():
    draws = np.random.default_rng(0).random((1, 100, 2, 3))
    verdict = judge_chains({"policy": draws}, 0)
    assert not verdict.converged
    assert "one chain" in verdict.reason


def test_chains_apart_are_told_and_constant_cells_left_out():
    generator = np.random.default_rng(0)
    agreeing = generator.random((4, 200, 3))
    apart = generator.random((4, 200, 2)) + np.arange(4)[:, None, None]
    constant = np.ones((4, 200, 5))
    verdict = judge_chains({"a": agreeing, "b": constant}, 2)
    assert verdict.converged
    assert (verdict.num_cells, verdict.num_above, verdict.num_constant) == (3, 0, 5)
    assert "2 divergent transitions" in verdict.reason
    verdict = judge_chains({"a": agreeing, "b": apart, "c": constant})
    assert not verdict.converged
    assert (verdict.num_cells, verdict.num_above) == (5, 2)
