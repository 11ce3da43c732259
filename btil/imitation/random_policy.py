"""Every action equally likely: the worst case of the paper's metrics (its Random baseline)."""

import numpy as np

from btil.demonstrations import Demonstrations
from btil.domains.gridworld.task import GridTask
from btil.imitation.learning import Learned


def learn(
    task: GridTask, demos: Demonstrations, *, known_transition: bool, seed: int, progress: bool
) -> Learned:
    """Uniform policies, whatever was demonstrated."""
    shape = (task.num_states, task.num_latents, task.num_actions)
    policy = np.full(shape, 1 / task.num_actions)
    return Learned(
        policies=dict.fromkeys(task.agents, policy),
        learning_curve={},
        converged=True,
        reason="nothing to learn: every action is equally likely",
    )
