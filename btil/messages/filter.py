"""The forward pass over latent chains: what is known so far, in logarithms."""

import math
from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


class Backward(NamedTuple):
    """What a backward pass needs, to smooth or to sample.

    p(x_{t-1} = k | x_t = j, o_0..o_{t-1}) is exp(log_before(k) + log_moves(k, j) - log_reached(j)).

    Attributes:
        log_before: log p(x_{t-1} | o_0..o_{t-1}) at [t], up to a constant; 0 at a start.
        log_moves: log T_t(k, j).
        log_reached: The sum over k of what the two say of j; 0, not -inf, where j is unreachable.
    """

    log_before: Float[Array, "length latents lanes"]
    log_moves: Float[Array, "length latents latents lanes"]
    log_reached: Float[Array, "length latents lanes"]


class Filtered(NamedTuple):
    """What the forward pass leaves behind.

    Attributes:
        log_normalizer: log p(o_t | o_0..o_{t-1}) of each step; they add up to the log evidence.
        log_predicted: log p(x_t | o_0..o_{t-1}), before the step's own observation.
        log_filtered: log p(x_t | o_0..o_t).
        backward: What a backward pass needs; None where none is wanted.
    """

    log_normalizer: Float[Array, "length lanes"]
    log_predicted: Float[Array, "length latents lanes"]
    log_filtered: Float[Array, "length latents lanes"]
    backward: Backward | None


def forward_filter(
    log_transition: Float[Array, "length latents latents lanes"],
    log_likelihood: Float[Array, "length latents lanes"],
    start: Bool[Array, "length lanes"],
) -> Filtered:
    r"""Run the forward messages of many chains in lock-step, normalised at every step.

    .. math:: F_t(j) \propto \ell_t(j) \sum_k F_{t-1}(k)\, T_t(k, j)

    This is the paper's message F for one agent; given states and actions the agents' chains are
    independent, so the joint message is the product of these. Probabilities stay logarithms:
    zeros are -inf, and nothing underflows on long chains.

    Args:
        log_transition: log T_t(k, j) of moving from k to j into step t. At the first step of an
            episode every row is the log initial distribution.
        log_likelihood: log of the step's likelihood for each latent; -inf excludes a latent.
        start: True at the first step of an episode, where the past is forgotten.

    Returns:
        Normalisers, predicted and filtered beliefs, and what a backward pass needs. After an
        impossible observation the beliefs are -inf until the lane's next episode starts.

    References:
        Rabiner (1989), A tutorial on hidden Markov models, Section III.
    """
    arrived = _arrivals(log_transition, log_likelihood, start)
    # What follows is done for all steps at once, and on both sides of the barrier by cells.
    log_joint = lax.optimization_barrier(arrived + log_likelihood)
    peak = _finite_peak([log_joint[:, k] for k in range(log_joint.shape[1])])
    log_previous = log_joint - peak[:, None]
    past = _log_sum([log_previous[:, k] for k in range(log_joint.shape[1])])
    past, log_previous, peak = lax.optimization_barrier((past, log_previous, peak))
    # By how much the beliefs that a step begins with exceed 1: at a start they are ones.
    ones = jnp.full_like(past[:1], math.log(log_joint.shape[1]))
    excess = jnp.where(start, ones[0, 0], jnp.concatenate([ones, past[:-1]]))
    possible = past > -jnp.inf
    log_total = jnp.where(possible, past + peak, 0.0)
    begun = jnp.concatenate([jnp.zeros_like(log_joint[:1]), log_previous[:-1]])
    begun = jnp.where(start[:, None], 0.0, begun)
    reached = jnp.where(arrived > -jnp.inf, arrived, 0.0)
    begun, reached = lax.optimization_barrier((begun, reached))
    return Filtered(
        log_normalizer=jnp.where(possible, log_total - excess, -jnp.inf),
        log_predicted=arrived - jnp.where(excess > -jnp.inf, excess, 0.0)[:, None],
        log_filtered=jnp.where(possible[:, None], log_joint - log_total[:, None], -jnp.inf),
        backward=Backward(begun, log_transition, reached),
    )


def _arrivals(
    log_transition: Float[Array, "length latents latents lanes"],
    log_likelihood: Float[Array, "length latents lanes"],
    start: Bool[Array, "length lanes"],
) -> Float[Array, "length latents lanes"]:
    r"""Forward messages before each step's own observation, each relative to the step before.

    .. math:: u_t(j) = \log \sum_k \exp\big(u_{t-1}(k) + \log \ell_{t-1}(k) - p_{t-1}
              + \log T_t(k, j)\big)

    with p the largest of :math:`u + \log \ell`, and 0 in place of what came before a start. On CPUs
    a step costs as much as the loops that it is compiled to: this one is a single loop, whose sums
    are spelled out, and all else is left to be done outside.
    """
    latents = range(log_likelihood.shape[1])

    def step(
        arrived: Float[Array, "latents lanes"], inputs: tuple[Array, Array, Array]
    ) -> tuple[Array, Array]:
        log_moves, said, fresh = inputs
        log_joint = [jnp.where(fresh, 0.0, arrived[k] + said[k]) for k in latents]
        peak = _finite_peak(log_joint)
        arrived = _log_sum([(log_joint[k] - peak)[None] + log_moves[k] for k in latents])
        return arrived, arrived

    said = jnp.concatenate([jnp.zeros_like(log_likelihood[:1]), log_likelihood[:-1]])
    inputs = lax.optimization_barrier((log_transition, said, start))
    return lax.optimization_barrier(lax.scan(step, jnp.zeros_like(said[0]), inputs)[1])


def _finite_peak(logits: Sequence[Float[Array, "..."]]) -> Float[Array, "..."]:
    """The largest of each place, 0 where all are -inf; no gradient."""
    peak = lax.stop_gradient(reduce(jnp.maximum, logits))
    return jnp.where(peak > -jnp.inf, peak, 0.0)


def _log_sum(logits: Sequence[Float[Array, "..."]]) -> Float[Array, "..."]:
    """log sum exp of each place; of nothing but -inf the value is -inf, the gradient 0, not NaN."""
    peak = _finite_peak(logits)
    total = reduce(jnp.add, [jnp.exp(one - peak) for one in logits])
    possible = total > 0
    return jnp.where(possible, jnp.log(jnp.where(possible, total, 1.0)) + peak, -jnp.inf)


def label_log_mask(labels: Int[Array, "..."], latents: int, axis: int = -1) -> Float[Array, "..."]:
    """0 where a latent agrees with the label or there is none, -inf elsewhere."""
    return jnp.where(agreement(labels, latents, axis), 0.0, -jnp.inf)


def agreement(labels: Int[Array, "..."], latents: int, axis: int = -1) -> Bool[Array, "..."]:
    """Whether a latent agrees with the label, or there is none; latents on a new axis."""
    shape = [1] * (labels.ndim + 1)
    shape[axis] = latents
    known = jnp.expand_dims(labels, axis)
    return (known < 0) | (known == jnp.arange(latents, dtype=known.dtype).reshape(shape))
