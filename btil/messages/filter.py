"""The forward pass over latent chains: what is known so far, in logarithms."""

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int


class Filtered(NamedTuple):
    """What the forward pass leaves behind.

    Attributes:
        log_normalizer: log p(o_t | o_0..o_{t-1}) of each step; they add up to the log evidence.
        log_predicted: log p(x_t | o_0..o_{t-1}), before the step's own observation.
        log_filtered: log p(x_t | o_0..o_t).
        backward_kernel: p(x_{t-1} = k | x_t = j, o_0..o_{t-1}) at [t, k, j]: what a backward pass
            multiplies with, to smooth or to sample. Columns of unreachable x_t are zero.
    """

    log_normalizer: Float[Array, "length lanes"]
    log_predicted: Float[Array, "length latents lanes"]
    log_filtered: Float[Array, "length latents lanes"]
    backward_kernel: Float[Array, "length latents latents lanes"]


def _log_sum_exp(
    logits: Float[Array, "..."],
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """log sum exp over the first axis and the weights exp(logits) / sum; -inf and zeros are safe.

    Both selections guard the value and the gradient: a column of nothing but -inf has value -inf
    and gradient zero, not NaN.
    """
    peak = lax.stop_gradient(jnp.max(logits, axis=0))
    peak = jnp.where(jnp.isfinite(peak), peak, 0.0)
    weights = jnp.exp(logits - peak[None])
    total = jnp.sum(weights, axis=0)
    possible = total > 0
    safe_total = jnp.where(possible, total, 1.0)
    value = jnp.where(possible, jnp.log(safe_total) + peak, -jnp.inf)
    return value, weights / safe_total[None]


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
        Normalisers, predicted and filtered beliefs, backward kernels. After an impossible
        observation the beliefs are -inf until the lane's next episode starts.

    References:
        Rabiner (1989), A tutorial on hidden Markov models, Section III.
    """
    latents = log_likelihood.shape[1]
    uniform = jnp.full(log_likelihood.shape[1:], -math.log(latents), log_likelihood.dtype)

    def step(
        log_previous: Float[Array, "latents lanes"], inputs: tuple[Array, Array, Array]
    ) -> tuple[Array, Filtered]:
        log_moves, log_evidence, fresh = inputs
        log_previous = jnp.where(fresh[None], uniform, log_previous)
        log_predicted, backward_kernel = _log_sum_exp(log_previous[:, None] + log_moves)
        log_joint = log_predicted + log_evidence
        log_normalizer, _ = _log_sum_exp(log_joint)
        possible = jnp.isfinite(log_normalizer)
        log_filtered = jnp.where(
            possible[None], log_joint - jnp.where(possible, log_normalizer, 0.0)[None], -jnp.inf
        )
        return log_filtered, Filtered(log_normalizer, log_predicted, log_filtered, backward_kernel)

    _, filtered = lax.scan(step, uniform, (log_transition, log_likelihood, start))
    return filtered


def label_log_mask(labels: Int[Array, "..."], latents: int, axis: int = -1) -> Float[Array, "..."]:
    """0 where a latent agrees with the label or there is none, -inf elsewhere."""
    return jnp.where(agreement(labels, latents, axis), 0.0, -jnp.inf)


def agreement(labels: Int[Array, "..."], latents: int, axis: int = -1) -> Bool[Array, "..."]:
    """Whether a latent agrees with the label, or there is none; latents on a new axis."""
    shape = [1] * (labels.ndim + 1)
    shape[axis] = latents
    known = jnp.expand_dims(labels, axis)
    return (known < 0) | (known == jnp.arange(latents, dtype=known.dtype).reshape(shape))
