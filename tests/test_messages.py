"""Messages against enumeration of every latent path, in float64."""

import itertools
from functools import cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from enumeration import all_rows, random_rows
from teams import ChainTruth, chain_truth, random_demos, rich_model

import btil
from btil.messages import smoother as messages
from btil.messages.filter import Filtered
from btil.messages.lanes import one_episode_per_lane
from btil.messages.layout import LaneIndex, Layout, gather, lay_out, log_rows, pad_rows
from btil.messages.scaled import local_step
from btil.messages.smoother import Counts, Potentials
from btil.models.team import BoundModel, bind

pytestmark = pytest.mark.usefixtures("x64")


class Run(NamedTuple):
    """What the messages say of one agent; lanes are laid back into rows where it says by step."""

    layout: Layout
    index: LaneIndex
    logs: list[np.ndarray]
    filtered: Filtered
    log_normalizer: np.ndarray
    log_filtered: np.ndarray
    log_predicted: np.ndarray
    marginal: np.ndarray
    pair: np.ndarray
    best: np.ndarray
    drawn: np.ndarray
    expected: Counts
    counted: Counts


@jax.jit
def compute(logs: Any, index: LaneIndex) -> Any:
    """All messages in one program: small ones compile slowly one by one."""
    factors = messages.potentials(*logs, index)
    filtered = messages.filter_lanes(factors)
    smoothed = messages.smooth(filtered, index.start)
    drawn = messages.sample_paths(jax.random.key(0), filtered, index.start)
    sizes = tuple(len(table) for table in logs)
    shape = logs[0].shape[1:]
    return (
        filtered,
        smoothed,
        messages.best_paths(factors),
        drawn,
        messages.expected_counts(smoothed, index, *logs),
        messages.path_counts(drawn, index, sizes, shape),
    )


def run_messages(bound: BoundModel, agent: str, rows: dict[str, np.ndarray]) -> Run:
    layout = lay_out(bound, coarse=True)
    logs = [
        pad_rows(log_rows(rows[name]), layout.num_rows[name], 0.0) for name in layout.sites[agent]
    ]
    index = layout.index[agent]
    filtered, smoothed, best, drawn, expected, counted = compute(
        tuple(map(jnp.asarray, logs)), index
    )
    by_step = (
        gather(np.asarray(values), layout.lanes)
        for values in (
            filtered.log_normalizer,
            filtered.log_filtered,
            filtered.log_predicted,
            smoothed.marginal,
            smoothed.pair,
            best,
            drawn,
        )
    )
    return Run(layout, index, logs, filtered, *by_step, expected, counted)


def sparse_model() -> btil.TeamModel:
    """Known tables with zeros: some latents cannot act so, some moves cannot be."""
    return btil.TeamModel(
        policy=btil.KnownCPT([[0.5, 0.5, 0.0], [0.2, 0.0, 0.8], [0.1, 0.3, 0.6]]),
        transition=btil.KnownCPT([[0.6, 0.4, 0.0], [0.0, 0.7, 0.3], [0.5, 0.0, 0.5]]),
        initial=btil.KnownCPT([0.0, 0.3, 0.7]),
    )


def sparse_demos() -> btil.Demonstrations:
    actions = [0, 2, 1, 2, 2, 0, 0, 1, 2, 2, 1]
    labels = [-1, -1, -1, 1, -1, -1, -1, 0, -1, 1, -1]
    return btil.Demonstrations(
        states=np.zeros(11, int),
        actions=np.array(actions)[:, None],
        latents=np.array(labels)[:, None],
        episodes=[0, 0, 0, 0, 0, 0, 1, 1, 2, 3, 3],
        num_latents=3,
    )


CASES = {
    "two agents": (rich_model(), random_demos(0)),
    "no labels": (rich_model(), random_demos(1, labelled=0.0)),
    "all labels": (rich_model(), random_demos(2, labelled=1.0)),
    "sizes collide": (rich_model(), random_demos(3, (4, 4), (2, 2), (2, 2))),
    "three agents": (rich_model(), random_demos(4, (3, 1, 2), (2, 3, 1), (2, 4, 3))),
    "many episodes a lane": (
        rich_model(),
        random_demos(5, (5, *[1] * 5, *[2] * 9, 3, 4, 3), (3,), (2,)),
    ),
    "one step each": (rich_model(), random_demos(6, (1, 1, 1))),
    "zeros": (sparse_model(), sparse_demos()),
}


def cases() -> Any:
    return pytest.mark.parametrize("name", CASES)


def bound_case(name: str) -> tuple[BoundModel, dict[str, np.ndarray]]:
    bound = bind(*CASES[name])
    return bound, all_rows(bound, random_rows(bound, np.random.default_rng(7)))


@cache
def runs(name: str) -> list[tuple[BoundModel, int, Run, ChainTruth]]:
    bound, rows = bound_case(name)
    return [
        (bound, i, run_messages(bound, agent, rows), chain_truth(bound, agent, rows))
        for i, agent in enumerate(bound.demos.agents)
    ]


@cases()
def test_filtering_smoothing_pairs_and_evidence(name: str) -> None:
    for bound, _, run, truth in runs(name):
        starts = bound.demos.episode_starts
        evidence = np.add.reduceat(run.log_normalizer, starts)
        np.testing.assert_allclose(evidence, truth.log_likelihood, rtol=0, atol=1e-11)
        for found, expected in (
            (np.exp(run.log_filtered), truth.filtered),
            (np.exp(run.log_predicted), truth.predicted),
            (run.marginal, truth.smoothed),
        ):
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
        first = np.isin(np.arange(bound.demos.num_steps), starts)
        np.testing.assert_allclose(run.pair[~first], truth.pair[~first], rtol=0, atol=1e-12)
        np.testing.assert_allclose(
            run.pair[first].sum(1), truth.smoothed[first], rtol=0, atol=1e-12
        )


@cases()
def test_best_path_is_the_most_probable_of_all(name: str) -> None:
    for bound, _, run, truth in runs(name):
        for start, length, paths in zip(
            bound.demos.episode_starts, bound.demos.episode_lengths, truth.paths, strict=True
        ):
            found = tuple(run.best[start : start + length].tolist())
            assert paths[found] == pytest.approx(max(paths.values()), rel=1e-12)


def summed(run: Run, bound: BoundModel, position: int, by_step: Any, by_pair: Any) -> Counts:
    """Counts of tables, given what each step and each pair of steps adds."""
    counts = Counts(*(np.zeros(table.shape) for table in run.logs))
    rows = bound.rows[bound.demos.agents[position]]
    for t in range(bound.demos.num_steps):
        counts.policy[rows.policy[t], :, bound.demos.actions[t, position]] += by_step(t)
        if rows.transition[t] >= 0:
            counts.transition[rows.transition[t]] += by_pair(t)
    for episode, start in enumerate(bound.demos.episode_starts):
        counts.initial[rows.initial[episode]] += by_step(start)
    return counts


@cases()
def test_expected_counts_are_sums_over_paths(name: str) -> None:
    for bound, i, run, truth in runs(name):
        expected = summed(run, bound, i, truth.smoothed.__getitem__, truth.pair.__getitem__)
        for found, wanted in zip(run.expected, expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", ["three agents", "many episodes a lane", "zeros"])
def test_a_local_step_counts_the_same_in_logs_and_in_probabilities(name: str, scaled: bool) -> None:
    step = jax.jit(local_step, static_argnames="scaled")
    for bound, i, run, truth in runs(name):
        counts, evidence = step(*map(jnp.asarray, run.logs), run.index, scaled=scaled)
        assert evidence.shape == (run.layout.lanes.shape[1],)
        assert float(evidence.sum()) == pytest.approx(float(truth.log_likelihood.sum()), abs=1e-10)
        expected = summed(run, bound, i, truth.smoothed.__getitem__, truth.pair.__getitem__)
        for found, wanted in zip(counts, expected, strict=True):
            np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12)


@cases()
def test_path_counts_are_those_of_the_path(name: str) -> None:
    for bound, i, run, _ in runs(name):
        one = np.eye(bound.demos.num_latents[i])
        path = run.drawn
        expected = summed(
            run,
            bound,
            i,
            lambda t, one=one, path=path: one[path[t]],
            lambda t, one=one, path=path: np.outer(one[path[t - 1]], one[path[t]]),
        )
        for found, wanted in zip(run.counted, expected, strict=True):
            assert np.array_equal(found, wanted)


@pytest.mark.parametrize("name", ["two agents", "zeros"])
def test_sampled_paths_have_the_right_frequencies(name: str) -> None:
    num_draws = 20_000

    @jax.jit
    def draw(keys: Any, filtered: Filtered, start: Any) -> Any:
        return jax.vmap(lambda key: messages.sample_paths(key, filtered, start))(keys)

    for bound, position, run, truth in runs(name):
        keys = jax.random.split(jax.random.key(position), num_draws)
        draws = np.asarray(draw(keys, run.filtered, run.index.start))
        draws = gather(np.moveaxis(draws, 0, 1), run.layout.lanes)
        for start, length, paths in zip(
            bound.demos.episode_starts, bound.demos.episode_lengths, truth.paths, strict=True
        ):
            frequency = dict.fromkeys(paths, 0.0)
            drawn, times = np.unique(draws[start : start + length], axis=1, return_counts=True)
            for path, count in zip(drawn.T.tolist(), times, strict=True):
                frequency[tuple(path)] += count / num_draws  # one against a label is a KeyError
            for path, probability in paths.items():
                error = np.sqrt(probability * (1 - probability) / num_draws)
                # Five standard errors, over about 400 paths in all; rare ones may come by chance.
                assert abs(frequency[path] - probability) <= 5 * error + 3 / num_draws


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("many episodes a lane", np.float64), ("zeros", np.float64), ("zeros", np.float32)],
)
def test_gradients_of_the_evidence_are_the_marginals(name: str, dtype: type) -> None:
    def evidence(moves: Any, said: Any, start: Any) -> jax.Array:
        everywhere = jnp.ones(start.shape, bool)
        return jnp.sum(messages.log_evidence(moves, said, start, everywhere))

    @jax.jit
    def compute_gradients(moves: Any, said: Any, start: Any, direction: Any) -> Any:
        def gradient(said: Any) -> Any:
            return jax.grad(evidence, 1)(moves, said, start)

        value, (of_moves, of_said) = jax.value_and_grad(evidence, (0, 1))(moves, said, start)
        zeros = (jnp.zeros_like(moves), direction, np.zeros(start.shape, jax.dtypes.float0))
        forward = jax.jvp(evidence, (moves, said, start), zeros)[1]
        # Guides of second order ask for the derivative of the gradient.
        curvature = jax.jvp(gradient, (said,), (direction,))[1]
        small = 1e-5 * direction
        return value, of_moves, of_said, forward, curvature, gradient(said + small)

    exact = dtype == np.float64
    for _, _, run, truth in runs(name):
        logs = tuple(jnp.asarray(table, dtype) for table in run.logs)
        moves, said, start = messages.potentials(*logs, run.index)
        direction = jnp.asarray(np.random.default_rng(0).normal(size=said.shape), dtype)
        value, of_moves, of_said, forward, curvature, beside = map(
            np.asarray, compute_gradients(moves, said, start, direction)
        )
        atol = 1e-12 if exact else 2e-6
        assert value == pytest.approx(truth.log_likelihood.sum(), rel=1e-12 if exact else 1e-6)
        for found, expected in ((of_moves, run.pair), (of_said, truth.smoothed)):
            found = gather(found, run.layout.lanes)
            np.testing.assert_allclose(found, expected, rtol=0, atol=atol)
        assert forward == pytest.approx(np.sum(of_said * np.asarray(direction)), rel=1e-5)
        assert np.isfinite(curvature).all()
        if exact:
            np.testing.assert_allclose(curvature, (beside - of_said) / 1e-5, rtol=0, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_of_what_is_impossible_are_no_nans(dtype: type) -> None:
    """No latent fits, no move leads there, nothing to begin with; and what a label calls back."""
    length, low = 60, -40.0
    stay = np.log(np.where(np.eye(2, dtype=bool), 1.0, 0.0), where=np.eye(2, dtype=bool),
                   out=np.full((2, 2), -np.inf))  # fmt: skip
    moves = np.tile(stay[..., None], (length, 1, 1, 4))
    moves[0] = np.log(0.5)
    said = np.zeros((length, 2, 4))
    said[5, :, 0] = -np.inf  # lane 0: no latent fits
    moves[7, :, :, 1] = -np.inf  # lane 1: no move
    moves[0, :, :, 2] = -np.inf  # lane 2: nothing to begin with
    said[1:-1, 1, 3] = low  # lane 3: latent 1 fades to exp(-2320), and is known at the end
    said[-1, 0, 3] = -np.inf
    start = np.zeros((length, 4), bool)
    start[0] = True

    @jax.jit
    def compute_all(moves: Any, said: Any) -> Any:
        def evidence(moves: Any, said: Any) -> tuple[jax.Array, jax.Array]:
            found = messages.log_evidence(
                moves, said, jnp.asarray(start), jnp.ones(start.shape, bool)
            )
            return jnp.sum(found), found

        return jax.value_and_grad(evidence, (0, 1), has_aux=True)(moves, said)

    (_, found), (of_moves, of_said) = compute_all(
        jnp.asarray(moves, dtype), jnp.asarray(said, dtype)
    )
    assert np.isneginf(found[:3]).all()
    assert float(found[3]) == pytest.approx(np.log(0.5) + (length - 2) * low, rel=1e-6)
    assert np.isfinite(of_moves).all()
    assert np.isfinite(of_said).all()
    assert np.asarray(of_said)[:, :, 3].tolist() == [[0.0, 1.0]] * length


def test_packing_changes_nothing() -> None:
    ((_, _, packed, _),) = runs("many episodes a lane")
    bound = bind(*CASES["many episodes a lane"])
    lanes = one_episode_per_lane(bound.demos.episode_lengths)
    # Another layout of the same rows, with padding below and beside.
    lanes = np.pad(lanes, ((0, 3), (0, 2)), constant_values=-1)

    def relaid(values: Any, fill: Any) -> jax.Array:
        flat = gather(np.asarray(values), packed.layout.lanes)
        return jnp.asarray(np.where(lanes >= 0, flat[lanes], fill))

    actions = bound.demos.num_actions[0]
    index = LaneIndex(
        policy=relaid(packed.index.policy, len(packed.logs[0]) * actions),
        transition=relaid(packed.index.transition, len(packed.logs[1]) + len(packed.logs[2])),
        label=relaid(packed.index.label, -1),
        start=relaid(packed.index.start, True),
        real=jnp.asarray(lanes >= 0),
    )
    filtered, smoothed, *_ = compute(tuple(map(jnp.asarray, packed.logs)), index)
    marginal = gather(np.asarray(smoothed.marginal), lanes)
    np.testing.assert_allclose(marginal, packed.marginal, rtol=0, atol=1e-14)
    padding = np.asarray(filtered.log_normalizer)[lanes < 0]
    np.testing.assert_allclose(padding, 0.0, rtol=0, atol=1e-12)


def test_an_impossible_episode_leaves_the_next_in_its_lane_alone() -> None:
    model = btil.TeamModel(
        policy=btil.KnownCPT([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),
        transition=btil.KnownCPT([[0.5, 0.5], [0.5, 0.5]]),
    )
    demos = btil.Demonstrations(
        states=np.zeros(6, int),
        actions=np.array([0, 2, 1, 0, 1, 0])[:, None],
        episodes=[0, 0, 0, 1, 1, 1],
        num_latents=2,
    )
    bound = bind(model, demos)
    run = run_messages(bound, "agent_0", all_rows(bound, {}))
    assert np.all(run.layout.lanes[:6, 0] >= 0)  # both in one lane
    half = np.log(0.5)
    expected = [half, -np.inf, -np.inf, half, half, half]
    np.testing.assert_allclose(run.log_normalizer, expected, rtol=0, atol=1e-14)
    assert not np.isnan(run.marginal).any()
    assert run.marginal[3:].tolist() == [[1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_chains_neither_underflow_nor_drift(dtype: type) -> None:
    length = 100_000
    generator = np.random.default_rng(0)
    sharp = 1e-12
    move = np.log([[1 - sharp, sharp / 2, sharp / 2], [0.3, 0.6, 0.1], [0.2, 0.2, 0.6]])
    moves = np.tile(move[..., None], (length, 1, 1, 1))
    moves[0] = -np.log(3)
    likelihood = np.log(generator.dirichlet(np.ones(3), length))[..., None]
    start = np.arange(length)[:, None] == 0
    factors = Potentials(jnp.asarray(moves, dtype), jnp.asarray(likelihood, dtype), start)

    @jax.jit
    def compute_long(factors: Potentials) -> Any:
        filtered = messages.filter_lanes(factors)
        smoothed = messages.smooth(filtered, factors.start)
        return filtered.log_normalizer, smoothed, messages.best_paths(factors)

    log_normalizer, smoothed, path = jax.tree.map(np.asarray, compute_long(factors))
    assert np.isfinite(log_normalizer).all()
    # Single precision, too, keeps rows that sum to one, a hundred thousand steps back.
    np.testing.assert_allclose(smoothed.marginal.sum(1), 1, rtol=0, atol=2e-6)
    np.testing.assert_allclose(smoothed.pair.sum((1, 2))[1:], 1, rtol=0, atol=2e-6)
    differs = path[:, 0] != slow_viterbi(move, likelihood[..., 0])
    assert np.mean(differs) <= (0 if dtype == np.float64 else 1e-3)


def test_small_differences_decide_the_best_path_of_improbable_steps() -> None:
    """Densities of about exp(-1000) a step and latents that hardly stick, in single precision."""
    length = 300
    generator = np.random.default_rng(0)
    move = np.log([[0.52, 0.48], [0.47, 0.53]])
    likelihood = (generator.normal(0, 0.1, (length, 2)) - 1000).astype(np.float32)
    moves = np.tile(move[..., None], (length, 1, 1, 1))
    moves[0] = -np.log(2)
    start = np.arange(length)[:, None] == 0
    factors = Potentials(
        jnp.asarray(moves, np.float32), jnp.asarray(likelihood[..., None]), jnp.asarray(start)
    )
    path = np.asarray(jax.jit(messages.best_paths)(factors))[:, 0]
    assert np.array_equal(path, slow_viterbi(move, likelihood.astype(np.float64)))


def test_of_equally_probable_paths_the_one_that_stays() -> None:
    """Against all paths; numbers of latents play no role where one of the best stays most."""
    length, latents = 5, 3
    generator = np.random.default_rng(0)
    paths = np.array(list(itertools.product(range(latents), repeat=length)))
    stays = (paths[:, 1:] == paths[:, :-1]).sum(1)
    best, tied = jax.jit(messages.best_paths), 0
    for _ in range(40):
        # Powers of two, so that what is equal is equal to the bit; many rows say nothing.
        move = -generator.integers(0, 2, (length, latents, latents)) * 1.0
        move[generator.random(length) < 0.5] = -1.0
        move[0] = 0.0
        likelihood = -generator.integers(0, 2, (length, latents)) * 1.0
        likelihood[generator.random(length) < 0.5] = 0.0
        score = likelihood[np.arange(length), paths].sum(1)
        score += move[np.arange(1, length), paths[:, :-1], paths[:, 1:]].sum(1)
        top = score == score.max()
        start = np.arange(length)[:, None] == 0

        def decoded(order: list[int], move=move, likelihood=likelihood, start=start) -> np.ndarray:
            moves = move[:, order][:, :, order][..., None]
            factors = Potentials(
                jnp.asarray(moves, np.float32),
                jnp.asarray(likelihood[:, order][..., None], np.float32),
                jnp.asarray(start),
            )
            return np.array(order)[np.asarray(best(factors))[:, 0]]

        path = decoded([0, 1, 2])
        found = (paths == path).all(1)
        assert top[found].all()
        assert stays[found] == stays[top].max()
        if (top & (stays == stays[top].max())).sum() == 1:
            np.testing.assert_array_equal(decoded([2, 0, 1]), path)
            tied += top.sum() > 1
    assert tied > 5


def slow_viterbi(move: np.ndarray, likelihood: np.ndarray) -> np.ndarray:
    """The recursion of V from a uniform start, without any rescaling."""
    value = likelihood[0]
    pointers = []
    for log_action in likelihood[1:]:
        scores = value[:, None] + move
        pointers.append(scores.argmax(0))
        value = scores.max(0) + log_action
    path = [int(value.argmax())]
    for pointer in reversed(pointers):
        path.append(int(pointer[path[-1]]))
    return np.array(path[::-1])
