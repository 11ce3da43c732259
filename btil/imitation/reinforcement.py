r"""Proximal policy optimisation by the task's own rewards: no imitation, but what a learner can do.

The policies are cloned from the demonstrations for some iterations, as those of
`btil.imitation.magail` are; then they act, and PPO follows what the task gives,

.. math:: R(s, a) = -1 + 100 \cdot [\text{the task is finished}],

the same for both agents, who keep minds that move by the true T_x. It is the check of the learner
that MAGAIL uses: where this reaches the team's own number of steps and MAGAIL does not, the rewards
that the discriminator gives are to blame.

References:
    Schulman et al. (2017), Proximal policy optimization algorithms.
"""

import numpy as np

from btil.demonstrations import Demonstrations
from btil.domains.gridworld.task import FINISH_REWARD, GridTask
from btil.imitation.learning import Learned, require_labels
from btil.imitation.networks import check_layers
from btil.imitation.players import (
    Reader,
    Settings,
    check_runs,
    cloned_players,
    improve,
    learned_by_acting,
    opening_scene,
    roll_out,
    with_room,
)
from btil.progress import progress_line

# Examples per update by cloning, at most.
_CLONED_AT_ONCE = 128


def learn(
    task: GridTask,
    demos: Demonstrations,
    *,
    known_transition: bool,
    seed: int,
    progress: bool,
    num_iterations: int = 100,
    batch_size: int = 4096,
    num_runs: int = 128,
    max_steps: int = 200,
    learning_rate: float = 7e-4,
    pretraining_iterations: int = 500,
    value_iterations: int = 5,
    num_epochs: int = 8,
    clip: float = 0.2,
    discount: float = 0.99,
    trace_decay: float = 0.95,
    entropy_weight: float = 0.01,
    hidden: tuple[int, ...] = (64, 128, 128),
    activation: str = "tanh",
    inputs: str = "variables",
) -> Learned:
    """Pretrain the policies, then let them learn from the rewards of what they do.

    Args:
        task: The task.
        demos: Demonstrations, every step labelled. They only give the policies their start.
        known_transition: Must be true.
        seed: Seeds networks, batches and episodes.
        progress: Whether to show progress lines.
        num_iterations: Rollouts, each followed by updates of all networks.
        batch_size: Steps in the task per iteration.
        num_runs: Episodes that run side by side; divides `batch_size`.
        max_steps: Steps after which an episode is cut.
        learning_rate: Adam's.
        pretraining_iterations: Updates by cloning beforehand.
        value_iterations: Iterations, the first ones, in which only the values learn: rewards seen
            by values that know nothing would undo what was cloned.
        num_epochs: Updates of policies and values per iteration, each on the whole batch.
        clip: Of the ratio of probabilities in PPO.
        discount: Of rewards, gamma.
        trace_decay: Lambda of the advantages.
        entropy_weight: Of the policies' entropy in PPO's objective.
        hidden: Width of each hidden layer.
        activation: "tanh", "relu" or "gelu".
        inputs: "state": networks read the task state. "variables": every state variable.

    Returns:
        The policies. Learning curves, over iterations: "mean_reward" per step, "finished", the
        number of episodes that were, "value_loss" and "entropy".

    Raises:
        ValueError: If a label is missing or an option has no such value.
    """
    require_labels(demos, known_transition, "ppo")
    check_layers(hidden, activation)
    check_runs(batch_size, num_runs)
    settings = Settings(
        num_steps=batch_size // num_runs,
        max_steps=max_steps,
        learning_rate=learning_rate,
        num_epochs=num_epochs,
        clip=clip,
        discount=discount,
        trace_decay=trace_decay,
        entropy_weight=entropy_weight,
    )
    reader = Reader(task, inputs)
    generator = np.random.default_rng(seed)
    start = cloned_players(
        task,
        reader,
        demos,
        generator,
        hidden=hidden,
        activation=activation,
        learning_rate=learning_rate,
        num_iterations=pretraining_iterations,
        batch_size=min(batch_size, _CLONED_AT_ONCE),
        description="ppo: cloning",
        progress=progress,
    )
    players, capacity = start.players, start.capacity
    scene = opening_scene(task, num_runs, generator)
    history = []
    with progress_line(num_iterations, "ppo", progress) as line:
        for iteration in range(num_iterations):
            experience, scene = roll_out(
                task, reader, players.networks.policies, scene, settings, generator
            )
            players, capacity = with_room(players, reader, capacity)
            rewards = task.rewards(experience.next_states)
            players, value_loss, spread = improve(
                reader,
                players,
                experience,
                # Values near 1 are learned sooner than values near 100; advantages are scaled.
                rewards / FINISH_REWARD,
                settings,
                values_only=iteration < value_iterations,
            )
            finished = int(experience.final.sum())
            history.append((rewards.mean(), finished, value_loss, spread))
            line.update(1)
            line.set_postfix_str(f"reward {rewards.mean():.3f}, {finished} episodes finished")
    names = ("mean_reward", "finished", "value_loss", "entropy")
    curves = dict(zip(names, np.array(history, np.float64).T, strict=True))
    return learned_by_acting(task, reader, players, start, curves, num_iterations)
