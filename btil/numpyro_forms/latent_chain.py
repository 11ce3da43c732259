"""Latent chains, summed out, as a NumPyro distribution."""

import math
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int
from numpyro import distributions as dist
from numpyro.distributions import constraints

from btil.messages.filter import label_log_mask
from btil.messages.smoother import log_evidence


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

    An action of -1 was seen by nobody: its step has no policy factor.

    Example:
        >>> chain = LatentChain(jnp.log(jnp.full((1, 2), 0.5)), jnp.zeros((1, 0, 2, 2)),
        ...                     jnp.log(jnp.full((1, 1, 2, 3), 1 / 3)))
        >>> float(jnp.exp(chain.log_prob(jnp.array([[2]]))[0]))  # doctest: +ELLIPSIS
        0.3333...
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  # NumPyro's own convention
    support = constraints.independent(constraints.integer_greater_than(-1), 1)
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
        seen = real & (value >= 0)
        # Chosen among all actions, not looked up: gradients are then not added up by place.
        action = jnp.where(seen, value, -1)[:, :, None, None]
        numbers = jnp.arange(self.log_policy.shape[-1], dtype=action.dtype)
        taken = action == numbers[None, None, None]
        log_likelihood = jnp.sum(jnp.where(taken, self.log_policy, 0.0), axis=-1)
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
        return log_evidence(
            jnp.transpose(moves, (1, 2, 3, 0)),
            jnp.transpose(log_likelihood, (1, 2, 0)),
            start,
            real.T,
        )

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        """Refused: later states depend on the actions through the task, which is not modelled."""
        raise NotImplementedError(
            "LatentChain cannot be sampled: later states depend on the sampled actions through "
            "the task's dynamics. Simulate the task, or replicate one step ahead at the observed "
            "contexts (TeamPosterior.predict_actions)"
        )
