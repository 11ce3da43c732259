r"""Proximal policy optimisation, the parts of it that are formulas.

References:
    Schulman et al. (2016), High-dimensional continuous control using generalized advantage
    estimation. Schulman et al. (2017), Proximal policy optimization algorithms.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


def generalized_advantages(
    rewards: Float[np.ndarray, "steps runs"],
    values: Float[np.ndarray, "steps runs"],
    next_values: Float[np.ndarray, "steps runs"],
    final: Bool[np.ndarray, "steps runs"],
    ended: Bool[np.ndarray, "steps runs"],
    discount: float,
    trace_decay: float,
) -> Float[np.ndarray, "steps runs"]:
    r"""Advantages of the actions taken, of several runs side by side.

    .. math:: \hat A_t = \sum_{l \ge 0} (\gamma\lambda)^l \delta_{t+l}, \qquad
              \delta_t = r_t + \gamma V(s_{t+1}) - V(s_t)

    The sum goes to the end of the episode or of the run. :math:`V(s_{t+1})` is 0 after a final
    step, and not where an episode is merely cut.

    Args:
        rewards: Rewards r.
        values: V of the state in which each action was taken.
        next_values: V of the state to which it led.
        final: Whether that state is one in which the task is done.
        ended: Whether the episode ended there, done or cut.
        discount: The discount, gamma.
        trace_decay: Lambda: 0 trusts the values, 1 the rewards.

    Example:
        >>> no, yes = np.array([[False]]), np.array([[True]])
        >>> generalized_advantages(np.ones((1, 1)), no * 1., yes * 1., no, no, 0.5, 0.9)
        array([[1.5]])
    """
    errors = rewards + discount * np.where(final, 0.0, next_values) - values
    advantages = np.zeros_like(errors)
    following = np.zeros_like(errors[0])
    for t in reversed(range(len(errors))):
        following = errors[t] + discount * trace_decay * np.where(ended[t], 0.0, following)
        advantages[t] = following
    return advantages


def clipped_surrogate(
    log_ratio: Float[Array, "*batch"], advantages: Float[Array, "*batch"], clip: float | Array
) -> Float[Array, "*batch"]:
    r"""The objective :math:`\min(\rho A,\ \mathrm{clip}(\rho, 1 - \epsilon, 1 + \epsilon) A)`.

    Args:
        log_ratio: Log of rho, the new probability of the action taken over the old one.
        advantages: A.
        clip: Epsilon.
    """
    ratio = jnp.exp(log_ratio)
    return jnp.minimum(ratio * advantages, jnp.clip(ratio, 1 - clip, 1 + clip) * advantages)


def taken_log_probs(
    logits: Float[Array, "*batch actions"], actions: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Log probability of the actions taken."""
    log_probs = jax.nn.log_softmax(logits)
    return jnp.take_along_axis(log_probs, actions[..., None], axis=-1)[..., 0]


def entropy(logits: Float[Array, "*batch actions"]) -> Float[Array, "*batch"]:
    """Entropy of the distribution over actions, in nats."""
    log_probs = jax.nn.log_softmax(logits)
    return -(jnp.exp(log_probs) * log_probs).sum(-1)
