"""Variables derived from the task state: who holds what, seen from each agent's side."""

import numpy as np
from jaxtyping import Int

from btil.demonstrations import Demonstrations
from btil.domains.gridworld.task import GridTask


def add_derived_variables(task: GridTask, demos: Demonstrations) -> Demonstrations:
    """See `GridTask.add_derived_variables`."""
    sizes = task.state_sizes
    states = _task_states(task, demos)
    variables = dict(zip(sizes, task.decode_states(states).T, strict=True))
    names = task.state_names
    nothing_or_item = ("nothing", *(f"item {k}" for k in range(task.grid.num_items)))

    situation = task.situation(states)
    held = task.held_items(states)
    for i, agent in enumerate(task.agents):
        variables[f"{agent}_held"] = held[:, i] + 1
        variables[f"{agent}_here"] = task.item_at(situation, situation.cells[:, i]) + 1
        names[f"{agent}_held"] = names[f"{agent}_here"] = nothing_or_item
    return Demonstrations(
        states=variables,
        actions=dict(zip(demos.agents, demos.actions.T, strict=True)),
        latents=dict(zip(demos.agents, demos.latents.T, strict=True)),
        episodes=demos.episodes,
        agents=demos.agents,
        num_actions=demos.num_actions,
        num_latents=demos.num_latents,
        state_names=names,
        action_names=demos.action_names,
        latent_names=demos.latent_names,
    )


def _task_states(task: GridTask, demos: Demonstrations) -> Int[np.ndarray, " steps"]:
    sizes, given = task.state_sizes, demos.state_variables
    if all(variable in given for variable in sizes):
        return task.encode(np.stack([given[variable] for variable in sizes], axis=1))
    if len(given) == 1:
        (states,) = given.values()
        return states
    raise ValueError(
        f"the demonstrations have the state variables {', '.join(given)}; expected those of "
        f"{task.name}, {', '.join(sizes)}, or the task state as the only one"
    )
