"""Message passing over latent chains: smoothing, sampling, the best path, expected counts.

All functions work on many chains in lock-step, one *lane* each (`btil.messages.lanes`), the lane on
the last axis so that the arithmetic over lanes is contiguous. Given the states and actions the
agents' chains are independent: the paper's joint messages, O(h |X|^{2n}), factorise into one run
per agent, O(h n |X|^2).
"""

import math
from functools import reduce
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int, Key

from btil.messages.filter import Backward, Filtered, forward_filter, label_log_mask
from btil.messages.layout import LaneIndex, UnseenRows
from btil.numerics.special import by_cell


class Counts(NamedTuple):
    """Expected uses of each cell of an agent's tables."""

    policy: Float[Array, "policy_rows latents actions"]
    transition: Float[Array, "transition_rows latents next_latents"]
    initial: Float[Array, "initial_rows latents"]


class Potentials(NamedTuple):
    """Log factors of the chains, in the form that `forward_filter` takes."""

    log_transition: Float[Array, "length latents latents lanes"]
    log_likelihood: Float[Array, "length latents lanes"]
    start: Bool[Array, "length lanes"]


class Smoothed(NamedTuple):
    """Posterior marginals of the chains.

    Attributes:
        marginal: P(x_t = j | whole episode) at [t, j].
        pair: P(x_{t-1} = k, x_t = j | whole episode) at [t, k, j]; at an episode's first step k
            is nothing and the sum over k is the marginal.
    """

    marginal: Float[Array, "length latents lanes"]
    pair: Float[Array, "length latents latents lanes"]


def potentials(
    log_policy: Float[Array, "policy_rows latents actions"],
    log_transition: Float[Array, "transition_rows latents latents"],
    log_initial: Float[Array, "initial_rows latents"],
    index: LaneIndex,
    log_evidence: Float[Array, "length latents lanes"] | None = None,
) -> Potentials:
    """Look up the log factors of every step; padding is an episode of its own that counts 0.

    Args:
        log_policy: Log policies.
        log_transition: Log transitions.
        log_initial: Log initial distributions.
        index: Where the agent's steps look.
        log_evidence: The log likelihood of whatever else was measured at a step, 0 in padding.
    """
    latents = log_policy.shape[1]
    cells, tables = stacked_tables(log_policy, log_transition, log_initial, index.unseen)
    likelihood = jnp.swapaxes(cells[index.policy], 1, 2)
    if log_evidence is not None:
        likelihood = likelihood + log_evidence
    likelihood = likelihood + label_log_mask(index.label, latents, axis=1)
    if index.log_weights is not None:
        log_weights = jnp.asarray(index.log_weights, likelihood.dtype)
        likelihood = likelihood + jnp.swapaxes(log_weights, 1, 2)
    moves = jnp.moveaxis(tables[index.transition], 1, -1)
    return Potentials(moves, likelihood, index.start)


def stacked_tables(
    log_policy: Float[Array, "policy_rows latents actions"],
    log_transition: Float[Array, "transition_rows latents latents"],
    log_initial: Float[Array, "initial_rows latents"],
    unseen: UnseenRows | None = None,
) -> tuple[Float[Array, "cells latents"], Float[Array, "tables latents latents"]]:
    """The tables as `LaneIndex` numbers their cells and rows.

    Returns:
        Of each observed cell of the policy the log likelihood of each latent, and of each way in
        which a step's latent may come about its log moves; the last of each are those of padding,
        but for moves with an unseen action, which stand behind them.
    """
    rows, latents, actions = log_policy.shape
    cells = jnp.swapaxes(log_policy, 1, 2).reshape(rows * actions, latents)
    cells = jnp.concatenate([cells, jnp.zeros((1, latents), cells.dtype)])
    started = jnp.broadcast_to(log_initial[:, None], (len(log_initial), latents, latents))
    padding = jnp.full((1, latents, latents), -math.log(latents), log_transition.dtype)
    tables = [log_transition, started, padding]
    if unseen is not None:
        tables.append(logsumexp(unseen_moves(log_policy, log_transition, unseen), axis=-1))
    return cells, jnp.concatenate(tables)


def unseen_moves(
    log_policy: Float[Array, "policy_rows latents actions"],
    log_transition: Float[Array, "transition_rows latents latents"],
    unseen: UnseenRows,
) -> Float[Array, "moves latents next_latents actions"]:
    """log pi(a | k) + log T_a(j | k) of moves whose action a nobody saw, at [k, j, a]."""
    policy = log_policy[jnp.asarray(unseen.policy)][:, :, None]
    return policy + jnp.moveaxis(log_transition[jnp.asarray(unseen.transition)], 1, -1)


def smooth(filtered: Filtered, start: Bool[Array, "length lanes"]) -> Smoothed:
    r"""Marginals and pair marginals given whole episodes, by one backward pass.

    .. math:: P(x_{t-1} = k, x_t = j \mid o) =
              P(x_{t-1} = k \mid x_t = j, o_{0:t-1})\, P(x_t = j \mid o)

    Equal to the paper's F times B (Section 5), without a second set of logarithms.
    """
    latents = range(filtered.log_filtered.shape[1])
    ended = jnp.concatenate([start[1:], jnp.ones_like(start[:1])])

    def step(
        from_next: Float[Array, "latents lanes"], inputs: tuple[Array, Array, Array]
    ) -> tuple[Array, Array]:
        belief, kernel, last = inputs
        # Rounding would otherwise build up over 100,000 steps.
        total = reduce(jnp.add, [from_next[j] for j in latents])
        scale = 1 / jnp.where(total > 0, total, 1.0)
        marginal = [jnp.where(last, belief[j], from_next[j] * scale) for j in latents]
        before = reduce(jnp.add, [kernel[:, j] * marginal[j][None] for j in latents])
        return before, from_next

    belief = by_cell(jnp.exp, filtered.log_filtered)
    kernel = _kernel(filtered)
    inputs = lax.optimization_barrier((belief, kernel, ended))
    found = lax.scan(step, jnp.zeros_like(belief[0]), inputs, reverse=True)[1]
    found = lax.optimization_barrier(found)
    total = jnp.sum(found, axis=1, keepdims=True)
    marginal = jnp.where(ended[:, None], belief, found / jnp.where(total > 0, total, 1.0))
    return Smoothed(marginal, kernel * marginal[:, None])


def _kernel(filtered: Filtered) -> Float[Array, "length latents latents lanes"]:
    """p(x_{t-1} = k | x_t = j, o_0..o_{t-1}) at [t, k, j]; zero where j is unreachable."""
    assert filtered.backward is not None
    log_before, log_moves, log_reached = filtered.backward
    log_kernel = log_before[:, :, None] + log_moves - log_reached[:, None]
    # Sums that broadcast are slow in the flat loop that takes exponentials.
    return by_cell(jnp.exp, lax.optimization_barrier(log_kernel))


@jax.custom_jvp
def log_evidence(
    log_transition: Float[Array, "length latents latents lanes"],
    log_likelihood: Float[Array, "length latents lanes"],
    start: Bool[Array, "length lanes"],
    real: Bool[Array, "length lanes"],
) -> Float[Array, " lanes"]:
    r"""The log evidence of each lane; its gradients are the marginals, by one backward pass.

    .. math:: \frac{\partial \log Z}{\partial \log T_t(k, j)} = P(x_{t-1} = k, x_t = j \mid o),
              \quad \frac{\partial \log Z}{\partial \log \ell_t(j)} = P(x_t = j \mid o)

    Args:
        log_transition: As in `forward_filter`.
        log_likelihood: As in `forward_filter`.
        start: As in `forward_filter`.
        real: False in padding, whose steps say nothing and move anyhow: they count 0 exactly.

    Returns:
        Its sums over each lane's episodes; -inf where one of them is impossible, with gradients
        that are finite.
    """
    filtered = forward_filter(log_transition, log_likelihood, start)
    return jnp.sum(jnp.where(real, filtered.log_normalizer, 0.0), axis=0)


@log_evidence.defjvp
def _log_evidence_jvp(primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    log_transition, log_likelihood, start, real = primals
    filtered = forward_filter(log_transition, log_likelihood, start)
    smoothed = smooth(filtered, start)
    of_moves = jnp.sum(smoothed.pair * tangents[0], axis=(0, 1, 2))
    of_steps = jnp.sum(smoothed.marginal * tangents[1], axis=(0, 1))
    value = jnp.sum(jnp.where(real, filtered.log_normalizer, 0.0), axis=0)
    return value, of_moves + of_steps


def sample_paths(
    key: Key[Array, ""] | Array, filtered: Filtered, start: Bool[Array, "length lanes"]
) -> Int[Array, "length lanes"]:
    """Draw latent paths from P(x_0..x_h | whole episode): forward filter, backward sample.

    References:
        Fruehwirth-Schnatter (1994), Data augmentation and dynamic linear models; Scott (2002),
        Bayesian methods for hidden Markov models.
    """
    return _paths_at(_uniforms(key, start.shape, filtered.log_filtered.dtype), filtered, start)


def filter_and_sample(
    key: Key[Array, ""] | Array, factors: Potentials
) -> tuple[Float[Array, "length lanes"], Int[Array, "length lanes"]]:
    """Log normalisers of `filter_lanes`, and a draw of `sample_paths`.

    Under `jax.vmap` it runs many as one, side by side as lanes: loops over steps are few and long
    then, and nothing in them is moved about.
    """
    uniforms = _uniforms(key, factors.start.shape, factors.log_likelihood.dtype)
    return _filter_and_sample(uniforms, *factors)


@custom_vmap
def _filter_and_sample(
    uniforms: Float[Array, "length lanes"],
    log_transition: Float[Array, "length latents latents lanes"],
    log_likelihood: Float[Array, "length latents lanes"],
    start: Bool[Array, "length lanes"],
) -> tuple[Float[Array, "length lanes"], Int[Array, "length lanes"]]:
    filtered = forward_filter(log_transition, log_likelihood, start)
    return filtered.log_normalizer, _paths_at(uniforms, filtered, start)


@_filter_and_sample.def_vmap
def _filter_and_sample_of_many(
    number: int, batched: list[bool], *inputs: Array
) -> tuple[tuple[Array, Array], tuple[bool, bool]]:
    lanes = inputs[-1].shape[-1]
    side_by_side = [
        jnp.moveaxis(values, 0, -1).reshape(*values.shape[1:-1], lanes * number)
        if several
        else jnp.repeat(values, number, axis=-1)
        for values, several in zip(inputs, batched, strict=True)
    ]
    found = _filter_and_sample(*side_by_side)
    apart = [jnp.moveaxis(one.reshape(len(one), lanes, number), -1, 0) for one in found]
    return (apart[0], apart[1]), (True, True)


def _uniforms(
    key: Key[Array, ""] | Array, shape: tuple[int, ...], dtype: Any
) -> Float[Array, "length lanes"]:
    # Scaled below one so that rounding never picks a latent past the last possible one.
    return jax.random.uniform(key, shape, dtype) * (1 - 4 * jnp.finfo(dtype).eps)


def _paths_at(
    uniforms: Float[Array, "length lanes"],
    filtered: Filtered,
    start: Bool[Array, "length lanes"],
) -> Int[Array, "length lanes"]:
    """The paths that given uniform numbers pick."""
    latents = range(filtered.log_filtered.shape[1])
    ended = jnp.concatenate([start[1:], jnp.ones_like(start[:1])])

    def step(
        from_next: Float[Array, "latents lanes"], inputs: tuple[Array, Backward, Array, Array]
    ) -> tuple[Array, Array]:
        belief, (log_before, log_moves, log_reached), last, uniform = inputs
        cumulative = list(accumulate(jnp.where(last, belief[k], from_next[k]) for k in latents))
        below = [(one <= uniform * cumulative[-1]).astype(jnp.int32) for one in cumulative]
        latent = lax.optimization_barrier(reduce(jnp.add, below))
        log_kernel = [log_before + (log_moves[:, j] - log_reached[j][None]) for j in latents]
        chosen = [jnp.where((latent == j)[None], log_kernel[j], 0.0) for j in latents]
        return jnp.exp(reduce(jnp.add, chosen)), latent

    belief = by_cell(jnp.exp, filtered.log_filtered)
    inputs = lax.optimization_barrier((belief, filtered.backward, ended, uniforms))
    return lax.scan(step, jnp.zeros_like(belief[0]), inputs, reverse=True)[1]


def best_paths(factors: Potentials) -> Int[Array, "length lanes"]:
    r"""The most probable latent path of every episode (Viterbi; the paper, Appendix B).

    .. math:: V_t(j) = \ell_t(j) \max_k T_t(k, j) V_{t-1}(k)

    Values are rescaled at each step: differences, not magnitudes, decide, even after 100,000
    steps in single precision.

    Of paths that are equally probable the one that stays most often: where rows that no data have
    reached make every next latent as probable as any other, a latent is taken to last, whatever its
    number is. What is still equal then goes by number.
    """
    num_latents = factors.log_likelihood.shape[1]
    stays = jnp.eye(num_latents, dtype=jnp.int32)[..., None]

    def forward(
        carry: tuple[Float[Array, "latents lanes"], Int[Array, "latents lanes"]], inputs: Potentials
    ) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        previous, stayed = carry
        previous = jnp.where(inputs.start[None], 0.0, previous)
        scores = previous[:, None] + inputs.log_transition
        highest = jnp.max(scores, axis=0)
        so_far = jnp.where(inputs.start[None, None], 0, stayed[:, None] + stays)
        preferred = jnp.where(scores == highest[None], so_far, -1)
        value = highest + inputs.log_likelihood
        peak = jnp.max(value, axis=0)
        value = value - jnp.where(jnp.isfinite(peak), peak, 0.0)[None]
        stayed = jnp.max(preferred, axis=0)
        return (value, stayed), (value, stayed, jnp.argmax(preferred, axis=0))

    zeros = jnp.zeros_like(factors.log_likelihood[0])
    nothing = jnp.zeros(zeros.shape, jnp.int32)
    _, (values, stayed, pointers) = lax.scan(forward, (zeros, nothing), factors)

    def backward(
        carry: tuple[Array, Array], inputs: tuple[Array, Array, Array, Array]
    ) -> tuple[tuple[Array, Array], Array]:
        from_next, last = carry
        value, so_far, pointer, fresh = inputs
        preferred = jnp.where(value == jnp.max(value, axis=0)[None], so_far, -1)
        latent = jnp.where(last, jnp.argmax(preferred, axis=0), from_next)
        return (jnp.take_along_axis(pointer, latent[None], axis=0)[0], fresh), latent

    lanes = factors.start.shape[1]
    carry = (jnp.zeros(lanes, pointers.dtype), jnp.ones(lanes, bool))
    looked_at = (values, stayed, pointers, factors.start)
    return lax.scan(backward, carry, looked_at, reverse=True)[1]


def expected_counts(
    smoothed: Smoothed,
    index: LaneIndex,
    log_policy: Float[Array, "policy_rows latents actions"],
    log_transition: Float[Array, "transition_rows latents latents"],
    log_initial: Float[Array, "initial_rows latents"],
) -> Counts:
    """How often each cell of an agent's tables is used, in expectation (the paper, Eq. 7)."""
    logs = (log_policy, log_transition, log_initial)
    return sum_of_uses(smoothed.marginal, smoothed.pair, index, *logs)


def sum_of_uses(
    marginal: Float[Array, "length latents lanes"],
    pair: Float[Array, "length latents latents lanes"],
    index: LaneIndex,
    log_policy: Float[Array, "policy_rows latents actions"],
    log_transition: Float[Array, "transition_rows latents latents"],
    log_initial: Float[Array, "initial_rows latents"],
    factor: Float[Array, "tables latents latents"] | float = 1.0,
) -> Counts:
    """Add up by the cells of an agent's tables what its steps and pairs of steps say.

    Args:
        marginal: What each step adds to the cell of its action, by latent.
        pair: What each step adds to its move, by the latents before and after.
        index: Where the steps look.
        log_policy: Log policies; among the actions that nobody saw uses are shared out by them.
        log_transition: The same of the transitions.
        log_initial: The same of the initial distributions.
        factor: Of each of the `stacked_tables`, by what its sums are multiplied.

    Returns:
        The sums.
    """
    latents = log_policy.shape[1]
    num_transition, num_initial = len(log_transition), len(log_initial)
    num_unseen = 0 if index.unseen is None else len(index.unseen.policy)
    policy = uses_of_policy(marginal, index, log_policy)
    by_pair = jnp.moveaxis(pair, -1, 1).reshape(-1, latents * latents)
    last = num_transition + num_initial
    total = last + 1 + num_unseen
    sums = jax.ops.segment_sum(by_pair, index.transition.reshape(-1), num_segments=total)
    stacked = factor * sums.reshape(total, latents, latents)
    transition = stacked[:num_transition]
    if index.unseen is not None:
        logs = unseen_moves(log_policy, log_transition, index.unseen)
        uses = stacked[last + 1 :, :, :, None] * jax.nn.softmax(logs, axis=-1)
        # All of them -inf: a move that is impossible, and not used.
        uses = jnp.where(jnp.isnan(uses), 0.0, uses)
        policy = policy.at[index.unseen.policy].add(jnp.sum(uses, axis=2))
        transition = transition.at[index.unseen.transition].add(jnp.moveaxis(uses, -1, 1))
    return Counts(
        policy=policy,
        transition=transition,
        initial=jnp.sum(stacked[num_transition:last], axis=1),
    )


def uses_of_policy(
    marginal: Float[Array, "length latents lanes"],
    index: LaneIndex,
    log_policy: Float[Array, "policy_rows latents actions"],
) -> Float[Array, "policy_rows latents actions"]:
    """Add up by the cells of an agent's policy what its steps say of the latents."""
    num_policy, latents, actions = log_policy.shape
    by_step = jnp.swapaxes(marginal, 1, 2).reshape(-1, latents)
    cells = jax.ops.segment_sum(
        by_step, index.policy.reshape(-1), num_segments=num_policy * actions + 1
    )
    return jnp.swapaxes(cells[:-1].reshape(num_policy, actions, latents), 1, 2)


def with_drawn_actions(
    key: Key[Array, ""] | Array,
    latent: Int[Array, "length lanes"],
    index: LaneIndex,
    log_policy: Float[Array, "policy_rows latents actions"],
    log_transition: Float[Array, "transition_rows latents latents"],
    num_initial: int,
) -> LaneIndex:
    """The same steps with actions that nobody saw drawn given latent paths and the tables.

    Only those that the own transition reads: others are summed out by leaving them out.
    """
    if index.unseen is None:
        return index
    num_policy, _, actions = log_policy.shape
    last = len(log_transition) + num_initial
    before = jnp.concatenate([jnp.zeros_like(latent[:1]), latent[:-1]])
    summed = index.transition > last
    move = jnp.where(summed, index.transition - last - 1, 0)
    policy, rows = index.unseen.policy[move], index.unseen.transition[move]
    logs = log_policy[policy, before] + log_transition[rows, before[..., None], latent[..., None]]
    action = jax.random.categorical(key, logs).astype(policy.dtype)
    arrived = jnp.take_along_axis(rows, action[..., None], axis=-1)[..., 0]
    # The step before takes the drawn action; at its own it is that of padding.
    cell = policy * actions + action
    taken = jnp.concatenate([summed[1:], jnp.zeros_like(summed[:1])])
    cells = jnp.concatenate([cell[1:], jnp.full_like(cell[:1], num_policy * actions)])
    return index._replace(
        policy=jnp.where(taken, cells, index.policy).astype(index.policy.dtype),
        transition=jnp.where(summed, arrived, index.transition).astype(index.transition.dtype),
        unseen=None,
    )


def path_counts(
    latent: Int[Array, "length lanes"],
    index: LaneIndex,
    rows: tuple[int, int, int],
    shape: tuple[int, int],
) -> Counts:
    """How often each cell is used by given latent paths; `shape` is (latents, actions)."""
    num_policy, num_transition, num_initial = rows
    latents, actions = shape
    cell = (index.policy * latents + latent).reshape(-1)
    ones = jnp.ones(cell.shape, jnp.zeros(()).dtype)
    cells = jax.ops.segment_sum(ones, cell, num_segments=(num_policy * actions + 1) * latents)
    before = jnp.concatenate([jnp.zeros_like(latent[:1]), latent[:-1]])
    before = jnp.where(index.start, 0, before)
    move = ((index.transition * latents + before) * latents + latent).reshape(-1)
    total = num_transition + num_initial + 1
    stacked = jax.ops.segment_sum(ones, move, num_segments=total * latents * latents)
    stacked = stacked.reshape(total, latents, latents)
    policy = cells.reshape(num_policy * actions + 1, latents)[:-1]
    return Counts(
        policy=jnp.swapaxes(policy.reshape(num_policy, actions, latents), 1, 2),
        transition=stacked[:num_transition],
        initial=jnp.sum(stacked[num_transition:-1], axis=1),
    )


def filter_lanes(factors: Potentials) -> Filtered:
    """`forward_filter` on looked-up factors."""
    return forward_filter(factors.log_transition, factors.log_likelihood, factors.start)
