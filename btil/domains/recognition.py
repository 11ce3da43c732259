"""Which task demonstrations are of, by what they hold."""

from itertools import product

import numpy as np

from btil.demonstrations import Demonstrations
from btil.domains.gridworld.derived import task_states
from btil.domains.gridworld.grid import MAPS
from btil.domains.gridworld.task import GridTask
from btil.domains.registry import domain_names, load_domain


def task_of(demos: Demonstrations) -> GridTask | None:
    """The grid world, on one of its named maps, that demonstrations are of.

    They know their task where their agents, state variables and actions have its names and sizes,
    every episode begins where the task does, and every step leads where it may lead there.

    Args:
        demos: Demonstrations.

    Returns:
        The task; None where they are of none, or of one on a map of one's own.

    Example:
        >>> task_of(btil.domains.cleanup("tiny").simulate(2))
        Cleanup(3 x 3 map, 2 items, 576 states)
        >>> task_of(Demonstrations([0, 1], [[0, 0], [1, 1]], num_latents=1)) is None
        True
    """
    for name, map in product(domain_names("task"), MAPS):
        try:
            task = load_domain(name)(map)
        except ValueError:  # a domain of another package may have other maps
            continue
        if isinstance(task, GridTask) and _is_of(task, demos):
            return task
    return None


def _is_of(task: GridTask, demos: Demonstrations) -> bool:
    sizes = dict.fromkeys(task.agents, task.num_actions)
    if dict(zip(demos.agents, demos.num_actions or (), strict=False)) != sizes:
        return False
    texts = [(demos.state_names, task.state_names)]
    texts += [(demos.action_names, dict.fromkeys(task.agents, task.action_names))]
    for given, own in texts:
        if any(tuple(given[key]) != tuple(own[key]) for key in given.keys() & own.keys()):
            return False
    try:
        states = task_states(task, demos)
    except ValueError:
        return False
    actions = demos.actions
    if (actions < 0).any():
        return False
    if (states[demos.episode_starts] != task.start_state).any():
        return False
    inside = np.ones(len(states), bool)
    inside[demos.episode_starts + demos.episode_lengths - 1] = False
    steps = np.flatnonzero(inside)
    branches, probs = task.transition(states[steps], actions[steps])
    return bool((((branches == states[steps + 1, None]) & (probs > 0)).any(axis=1)).all())
