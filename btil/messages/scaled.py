"""The local step of the mean field: smoothing and expected counts, in probabilities.

`btil.messages.smoother` keeps its messages as logarithms and serves whatever tables there are.
Tables whose entries are not extremely small, as geometric means of Dirichlet rows are, can do
without: scaled forward and backward messages need no exponential per step, hold no kernels, and
are several times as fast.
"""

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from btil.messages.filter import agreement
from btil.messages.layout import LaneIndex
from btil.messages.smoother import (
    Counts,
    expected_counts,
    filter_lanes,
    potentials,
    smooth,
    stacked_tables,
    sum_of_uses,
    uses_of_policy,
)
from btil.numerics.special import by_cell


class Messages(NamedTuple):
    """Scaled messages of many chains; products of them are posterior marginals.

    P(x_t = j | whole lane) is predicted * future at [t, j], and P(x_{t-1} = k, x_t = j | ...) is
    previous at [t, k] times the move from k to j times future at [t, j].

    Attributes:
        normalizer: p(o_t | o_0..o_{t-1}).
        previous: P(x_{t-1} | o_0..o_{t-1}).
        predicted: P(x_t | o_0..o_{t-1}).
        future: p(o_t.. | x_t) / p(o_t.. | o_0..o_{t-1}).
    """

    normalizer: Float[Array, "length lanes"]
    previous: Float[Array, "length latents lanes"]
    predicted: Float[Array, "length latents lanes"]
    future: Float[Array, "length latents lanes"]


def forward_backward(
    moves: Float[Array, "length latents latents lanes"],
    likelihood: Float[Array, "length latents lanes"],
) -> Messages:
    r"""Forward and backward messages of many chains in lock-step, scaled at every step.

    .. math:: F_t(j) = g_t(j) \sum_k F_{t-1}(k)\, T_t(k, j), \quad
              B_{t-1}(k) = \sum_j T_t(k, j)\, g_t(j)\, B_t(j), \quad
              g_t(j) = \ell_t(j) / p(o_t \mid o_{0:t-1})

    An episode begins with a move whose rows are all the initial distribution: such a move forgets
    where it came from, so the episodes of a lane do not touch.

    Args:
        moves: T_t(k, j) of moving from k to j into step t. Rows need not add up to 1.
        likelihood: l_t(j); zeros exclude latents.

    Returns:
        The messages. After an impossible observation they are zero to the lane's end.

    References:
        Rabiner (1989), A tutorial on hidden Markov models, Section V.A.
    """
    latents = range(likelihood.shape[1])

    def arrive(previous: Float[Array, "latents lanes"], move: Array) -> Array:
        # Sums are spelled out: then no step writes its moves down before they are added up.
        return reduce(jnp.add, [previous[k, None] * move[k] for k in latents])

    def leave(gained: Float[Array, "latents lanes"], move: Array) -> Array:
        return reduce(jnp.add, [move[:, j] * gained[j, None] for j in latents])

    return _passed(arrive, leave, moves, likelihood)


def forward_backward_of_one_table(
    table: Float[Array, "latents latents"],
    initial: Float[Array, "length latents lanes"],
    start: Bool[Array, "length lanes"],
    likelihood: Float[Array, "length latents lanes"],
) -> Messages:
    """The same where all moves are of one table, which is not written down for every step.

    Args:
        table: T(k, j) of moving from k to j.
        initial: At an episode's first step the initial distribution.
        start: Whether it is one.
        likelihood: As in `forward_backward`.
    """
    latents = range(len(table))

    def arrive(previous: Float[Array, "latents lanes"], begin: tuple[Array, Array]) -> Array:
        first, starts = begin
        moved = reduce(jnp.add, [previous[k][None] * table[k][:, None] for k in latents])
        return jnp.where(starts[None], first, moved)

    def leave(gained: Float[Array, "latents lanes"], begin: tuple[Array, Array]) -> Array:
        moved = reduce(jnp.add, [table[:, j][:, None] * gained[j][None] for j in latents])
        # Nothing of the episode before depends on this one.
        return jnp.where(begin[1][None], 1.0, moved)

    return _passed(arrive, leave, (initial, start), likelihood)


def _passed(
    arrive: Callable[[Array, Any], Array],
    leave: Callable[[Array, Any], Array],
    moves: Any,
    likelihood: Float[Array, "length latents lanes"],
) -> Messages:
    """The messages, given how beliefs move into a step and what comes back through its moves."""

    def forward(
        previous: Float[Array, "latents lanes"], inputs: tuple[Any, Array]
    ) -> tuple[Array, tuple[Array, Array, Array, Array]]:
        move, weight = inputs
        predicted = arrive(previous, move)
        normalizer = jnp.sum(predicted * weight, axis=0)
        gain = weight / jnp.where(normalizer > 0, normalizer, 1.0)[None]
        return predicted * gain, (normalizer, previous, predicted, gain)

    def backward(
        future: Float[Array, "latents lanes"], inputs: tuple[Any, Array]
    ) -> tuple[Array, Array]:
        move, gain = inputs
        gained = gain * future
        return leave(gained, move), gained

    uniform = jnp.full(likelihood.shape[1:], 1 / likelihood.shape[1], likelihood.dtype)
    _, (normalizer, previous, predicted, gain) = lax.scan(forward, uniform, (moves, likelihood))
    ones = jnp.ones_like(uniform)
    _, future = lax.scan(backward, ones, (moves, gain), reverse=True)
    # One but for rounding, which would build up over 100,000 steps.
    total = jnp.sum(predicted * future, axis=1, keepdims=True)
    return Messages(normalizer, previous, predicted, future / jnp.where(total > 0, total, 1.0))


def local_step(
    log_policy: Float[Array, "policy_rows latents actions"],
    log_transition: Float[Array, "transition_rows latents latents"],
    log_initial: Float[Array, "initial_rows latents"],
    index: LaneIndex,
    scaled: bool,
) -> tuple[Counts, Float[Array, " lanes"]]:
    """`local_step_with_marginals` without these."""
    tables = (log_policy, log_transition, log_initial)
    return local_step_with_marginals(*tables, index, None, scaled)[:2]


def local_step_with_marginals(
    log_policy: Float[Array, "policy_rows latents actions"],
    log_transition: Float[Array, "transition_rows latents latents"],
    log_initial: Float[Array, "initial_rows latents"],
    index: LaneIndex,
    log_evidence: Float[Array, "length latents lanes"] | None,
    scaled: bool,
) -> tuple[Counts, Float[Array, " lanes"], Float[Array, "length latents lanes"]]:
    """One agent's expected counts and log evidence under given tables (the paper, Eqs. 7, 8).

    Lanes do not touch: counts add up over them.

    Args:
        log_policy: Log policies, or E[log policies].
        log_transition: The same of the transitions.
        log_initial: The same of the initial distributions.
        index: Where the agent's steps look.
        log_evidence: What else each step says of its latent, as a log likelihood; 0 in padding.
            None: nothing.
        scaled: Use scaled messages, where `scaling_suffices`.

    Returns:
        How often each cell is used, in expectation, the log evidence of each lane, and the
        posterior marginals of all steps.
    """
    log_tables = (log_policy, log_transition, log_initial)
    latents = log_policy.shape[1]
    if not scaled:
        filtered = filter_lanes(potentials(*log_tables, index, log_evidence))
        smoothed = smooth(filtered, index.start)
        counts = expected_counts(smoothed, index, *log_tables)
        log_normalizer, marginal = filtered.log_normalizer, smoothed.marginal
    else:
        logs = stacked_tables(*log_tables, index.unseen)
        cells, tables = (by_cell(jnp.exp, table) for table in logs)
        possible = agreement(index.label, latents, axis=1)
        peak = jnp.zeros((), cells.dtype)
        log_weights = index.log_weights
        if log_weights is not None:
            log_weights = jnp.asarray(log_weights, cells.dtype)
        if log_evidence is None:
            likelihood = jnp.swapaxes(_look_up(cells, index.policy), 1, 2)
            if log_weights is not None:
                peak = jnp.max(log_weights, axis=-1)
                likelihood = likelihood * jnp.swapaxes(jnp.exp(log_weights - peak[..., None]), 1, 2)
        else:
            said = jnp.swapaxes(_look_up(logs[0], index.policy), 1, 2) + log_evidence
            if log_weights is not None:
                said = said + jnp.swapaxes(log_weights, 1, 2)
            # Densities have no bounds: the most likely latent of a step counts 1.
            peak = jnp.max(jnp.where(possible, said, -jnp.inf), axis=1)
            peak = jnp.where(jnp.isfinite(peak), peak, 0.0)
            likelihood = by_cell(jnp.exp, jnp.minimum(said - peak[:, None], 0.0))
        likelihood = jnp.where(possible, likelihood, 0.0)
        # Barriers keep the looking up and the adding up out of the loops over steps.
        if len(log_transition) == 1 and index.unseen is None:
            rows = _initial_rows(index, len(log_initial))
            initial = jnp.swapaxes(_look_up(tables[1:-1, 0], rows), 1, 2)
            inputs = lax.optimization_barrier((initial, index.start, likelihood))
            messages = lax.optimization_barrier(forward_backward_of_one_table(tables[0], *inputs))
            marginal = messages.predicted * messages.future
            counts = _counts_of_one_table(
                messages, marginal, index, tables[0], log_policy, rows, len(log_initial)
            )
        else:
            moves = jnp.moveaxis(_look_up(tables, index.transition), 1, -1)
            messages = forward_backward(*lax.optimization_barrier((moves, likelihood)))
            messages = lax.optimization_barrier(messages)
            marginal = messages.predicted * messages.future
            # A table's entries are common to all its uses, and multiplied with their sums.
            outer = messages.previous[:, :, None] * messages.future[:, None]
            counts = sum_of_uses(marginal, outer, index, *log_tables, factor=tables)
        log_normalizer = jnp.log(messages.normalizer) + peak
    log_evidence_of_lanes = jnp.sum(jnp.where(index.real, log_normalizer, 0.0), axis=0)
    return counts, log_evidence_of_lanes, marginal


def _initial_rows(index: LaneIndex, number: int) -> Int[Array, "length lanes"]:
    """Row of the initial table at the first steps, any elsewhere, behind a single transition."""
    return jnp.clip(index.transition - 1, 0, number - 1)


def _counts_of_one_table(
    messages: Messages,
    marginal: Float[Array, "length latents lanes"],
    index: LaneIndex,
    table: Float[Array, "latents latents"],
    log_policy: Float[Array, "policy_rows latents actions"],
    rows: Int[Array, "length lanes"],
    num_initial: int,
) -> Counts:
    """`sum_of_uses` where all moves are of one table: their sum is a product of two matrices."""
    latents = len(table)
    before, after = (
        jnp.swapaxes(one, 0, 1).reshape(latents, -1)
        for one in (jnp.where(index.start[:, None], 0.0, messages.previous), messages.future)
    )
    first = jnp.where((index.start & index.real)[:, None], marginal, 0.0)
    by_start = jnp.swapaxes(first, 1, 2).reshape(-1, latents)
    return Counts(
        policy=uses_of_policy(marginal, index, log_policy),
        transition=(table * (before @ after.T))[None],
        initial=jax.ops.segment_sum(by_start, rows.reshape(-1), num_segments=num_initial)
        if num_initial > 1
        else jnp.sum(by_start, axis=0, keepdims=True),
    )


def _look_up(
    table: Float[Array, "rows ..."], index: Int[Array, "length lanes"]
) -> Float[Array, "length lanes ..."]:
    # `lay_out` made the index: that it is within bounds need not be checked at each step.
    return table.at[index].get(mode="promise_in_bounds")


def scaling_suffices(smallest_move: float, smallest_likelihood: float, dtype: np.dtype) -> bool:
    r"""Whether scaled messages cannot underflow, however long the episodes.

    Let all moves be at least exp(-a), and the positive likelihoods between exp(-l) and 1. As
    filtered beliefs add up to 1, every predicted belief is at least exp(-a), and every positive
    filtered one at least exp(-a - l): nothing that the evidence may yet call back is lost. Nor
    does what comes from the future, a marginal over a predicted belief, exceed exp(a). Moves of
    probability 0 leave room for beliefs that fade step by step, and need logarithms.

    Args:
        smallest_move: The least log probability, or E[log probability], of a move or of a latent
            at an episode's first step; -inf where some are 0.
        smallest_likelihood: The least finite one of an action.
        dtype: The type of the messages.

    Returns:
        Whether the scaled messages will do.
    """
    # A third of the range is left for sums over steps.
    return bool(-smallest_move - smallest_likelihood < 2 / 3 * math.log(np.finfo(dtype).max))
