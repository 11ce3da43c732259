"""The forward pass over latent chains, and the NumPyro distribution made of it."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int
from numpyro import distributions as dist
from numpyro.distributions import constraints


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


class LatentChain(dist.Distribution):
    r"""Actions of one agent in many episodes, its latent chain summed out.

    .. math:: p(a_{0:h}) = \sum_{x_{0:h}} b(x_0)
              \prod_t \pi_t(a_t \mid x_t)\, \ell_t(x_t) \prod_t T_t(x_t \mid x_{t-1})

    Batch shape (episodes,), event shape (steps,): the log probability is per episode. Known
    latents are conditioned on, jointly with the actions: the density is p(actions, labels). What
    else was measured at a step has a likelihood :math:`\ell_t`, 1 where there is none, and the
    density is then that of the measurements too.

    Args:
        log_initial: log b, (episodes, latents).
        log_transition: log T_t from step t to t + 1, (episodes, steps - 1, latents, latents).
        log_policy: log pi_t, (episodes, steps, latents, actions).
        labels: Known latent of each step, -1 where unknown, (episodes, steps); None: unknown.
        lengths: Steps of each episode, (episodes,); later entries are padding and count nothing,
            whatever they hold. None: all steps.
        log_likelihood: log l_t, (episodes, steps, latents), not normalised; None: 0.

    Example:
        >>> chain = LatentChain(jnp.log(jnp.full((1, 2), 0.5)), jnp.zeros((1, 0, 2, 2)),
        ...                     jnp.log(jnp.full((1, 1, 2, 3), 1 / 3)))
        >>> float(jnp.exp(chain.log_prob(jnp.array([[2]]))[0]))  # doctest: +ELLIPSIS
        0.3333...
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  # NumPyro's own convention
    support = constraints.independent(constraints.nonnegative_integer, 1)
    pytree_data_fields = (
        "log_initial",
        "log_transition",
        "log_policy",
        "labels",
        "lengths",
        "log_likelihood",
    )

    def __init__(
        self,
        log_initial: Float[Array, "episodes latents"],
        log_transition: Float[Array, "episodes moves latents latents"],
        log_policy: Float[Array, "episodes steps latents actions"],
        labels: Int[Array, "episodes steps"] | None = None,
        lengths: Int[Array, " episodes"] | None = None,
        log_likelihood: Float[Array, "episodes steps latents"] | None = None,
        *,
        validate_args: bool | None = None,
    ) -> None:
        episodes, steps, latents, _ = log_policy.shape
        if log_initial.shape != (episodes, latents):
            raise ValueError(
                f"LatentChain: log_initial has shape {log_initial.shape}, expected "
                f"{(episodes, latents)} (episodes, latents)"
            )
        if log_transition.shape != (episodes, steps - 1, latents, latents):
            raise ValueError(
                f"LatentChain: log_transition has shape {log_transition.shape}, expected "
                f"{(episodes, steps - 1, latents, latents)} (episodes, steps - 1, latents, latents)"
            )
        if log_likelihood is not None and log_likelihood.shape != (episodes, steps, latents):
            raise ValueError(
                f"LatentChain: log_likelihood has shape {log_likelihood.shape}, expected "
                f"{(episodes, steps, latents)} (episodes, steps, latents)"
            )
        self.log_initial = log_initial
        self.log_transition = log_transition
        self.log_policy = log_policy
        self.labels = jnp.full((episodes, steps), -1) if labels is None else labels
        self.lengths = jnp.full((episodes,), steps) if lengths is None else lengths
        self.log_likelihood = log_likelihood
        super().__init__((episodes,), (steps,), validate_args=validate_args)

    def log_prob(self, value: Int[Array, "episodes steps"]) -> Float[Array, " episodes"]:
        """log p(actions, labels) of each episode, latents summed out; -inf if impossible."""
        steps = self.event_shape[0]
        latents = self.log_initial.shape[-1]
        lengths = jnp.asarray(self.lengths)
        real = jnp.arange(steps, dtype=lengths.dtype)[None] < lengths[:, None]
        action = jnp.where(real, value, 0)
        log_likelihood = jnp.take_along_axis(
            self.log_policy, action[:, :, None, None], axis=-1
        ).squeeze(-1)
        if self.log_likelihood is not None:
            log_likelihood = log_likelihood + self.log_likelihood
        log_likelihood = log_likelihood + label_log_mask(self.labels, latents)
        log_likelihood = jnp.where(real[..., None], log_likelihood, 0.0)
        first = jnp.broadcast_to(
            self.log_initial[:, None, None], (len(self.log_initial), 1, latents, latents)
        )
        moves = jnp.concatenate([first, self.log_transition], axis=1)
        moves = jnp.where(real[..., None, None], moves, -math.log(latents))
        start = jnp.broadcast_to((jnp.arange(steps) == 0)[:, None], (steps, len(value)))
        filtered = forward_filter(
            jnp.transpose(moves, (1, 2, 3, 0)), jnp.transpose(log_likelihood, (1, 2, 0)), start
        )
        return jnp.sum(jnp.where(real.T, filtered.log_normalizer, 0.0), axis=0)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        """Refused: later states depend on the actions through the task, which is not modelled."""
        raise NotImplementedError(
            "LatentChain cannot be sampled: later states depend on the sampled actions through "
            "the task's dynamics. Simulate the task, or replicate one step ahead at the observed "
            "contexts (TeamPosterior.predict_actions)"
        )


def label_log_mask(labels: Int[Array, "..."], latents: int, axis: int = -1) -> Float[Array, "..."]:
    """0 where a latent agrees with the label or there is none, -inf elsewhere."""
    return jnp.where(agreement(labels, latents, axis), 0.0, -jnp.inf)


def agreement(labels: Int[Array, "..."], latents: int, axis: int = -1) -> Bool[Array, "..."]:
    """Whether a latent agrees with the label, or there is none; latents on a new axis."""
    shape = [1] * (labels.ndim + 1)
    shape[axis] = latents
    known = jnp.expand_dims(labels, axis)
    return (known < 0) | (known == jnp.arange(latents, dtype=known.dtype).reshape(shape))
