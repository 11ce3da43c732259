r"""Behavioural cloning without a network: shares of actions, counted.

.. math:: \hat\pi_i(a \mid s, x) = \frac{n_i(s, x, a) + c}{\sum_{a'} (n_i(s, x, a') + c)}

This is the maximum of the likelihood for :math:`c = 0`, and the mode of BTIL's posterior under a
Dirichlet prior of :math:`c + 1` when every step is labelled.
"""

import numpy as np

from btil.demonstrations import Demonstrations
from btil.domains.gridworld.derived import task_states
from btil.domains.gridworld.task import GridTask
from btil.imitation.learning import Learned, require_labels


def learn(
    task: GridTask,
    demos: Demonstrations,
    *,
    known_transition: bool,
    seed: int,
    progress: bool,
    smoothing: float = 0.01,
) -> Learned:
    """Count.

    Args:
        task: The task.
        demos: Demonstrations, every step labelled.
        known_transition: Must be true.
        seed: Not used.
        progress: Not used.
        smoothing: Added to the count of every action. With 0, an action not seen in a visited
            state and latent is impossible, and an episode that cannot do without it is not
            decoded but refused.

    Raises:
        ValueError: If a label is missing.
    """
    require_labels(demos, known_transition, "tabular-cloning")
    states = task_states(task, demos)
    policies = {}
    for i, agent in enumerate(task.agents):
        counts = np.zeros((task.num_states, task.num_latents, task.num_actions))
        np.add.at(counts, (states, demos.latents[:, i], demos.actions[:, i]), 1.0)
        counts[counts.sum(-1) == 0] = 1.0  # never visited: uniform
        policies[agent] = (counts + smoothing) / (counts + smoothing).sum(-1, keepdims=True)
    return Learned(
        policies=policies,
        learning_curve={},
        converged=True,
        reason="counted",
    )
