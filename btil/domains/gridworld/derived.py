"""Variables derived from the task state: who holds what, seen from each agent's side."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from btil.demonstrations import Demonstrations
from btil.domains.gridworld.grid import ORIGIN

if TYPE_CHECKING:
    from btil.domains.gridworld.task import GridTask


def add_derived_variables(task: "GridTask", demos: Demonstrations) -> Demonstrations:
    """See `GridTask.add_derived_variables`."""
    variables: dict[str, Int[np.ndarray, " steps"]] = all_variables(task, task_states(task, demos))
    names = all_names(task)
    # What else there is stays: a modeler's own variables.
    others = [name for name in demos.num_states if len(demos.num_states) > 1 and name not in names]
    variables |= {name: demos.state_variables[name] for name in others}
    names |= {name: demos.state_names[name] for name in others if name in demos.state_names}
    return demos.replace(
        states=variables,
        num_states={name: demos.num_states[name] for name in others},
        state_names=names,
    )


def all_variables(
    task: "GridTask", states: Int[np.ndarray, " k"]
) -> dict[str, Int[np.ndarray, " k"]]:
    """The task's state variables and the derived ones, of task states."""
    variables = dict(zip(task.state_sizes, task.decode_states(states).T, strict=True))
    situation = task.situation(states)
    held = task.held_items(states)
    for i, agent in enumerate(task.agents):
        variables[f"{agent}_held"] = held[:, i] + 1
        variables[f"{agent}_here"] = task.item_at(situation, situation.cells[:, i]) + 1
        k = task.grid.num_items
        lying = (situation.items == ORIGIN) @ (1 << np.arange(k))
        other = held[:, 1 - i]
        variables[f"{agent}_open"] = np.where((lying == 0) & (other >= 0), (1 << k) + other, lying)
        variables[f"{agent}_next"] = np.where(held[:, i] >= 0, (1 << k) + k, variables[f"{agent}_open"])
        variables[f"{agent}_phase"] = np.where(held[:, i] >= 0, 0, np.where(lying > 0, 1, 2))
        xy = task.grid.cells[situation.cells[:, i]]
        w3 = (task.grid.width + 2) // 3
        variables[f"{agent}_area"] = xy[:, 0] // 3 + w3 * (xy[:, 1] // 3)
        variables[f"{agent}_area2"] = xy[:, 0] // 2 + ((task.grid.width + 1) // 2) * (xy[:, 1] // 2)
        oxy = task.grid.cells[situation.cells[:, 1 - i]]
        for r in (1, 2, 3):
            delta = np.clip(oxy - xy, -r, r) + r
            variables[f"{agent}_rel{r}"] = delta[:, 0] * (2 * r + 1) + delta[:, 1]
        dist = np.abs(oxy - xy).sum(axis=1)
        variables[f"{agent}_dist"] = np.minimum(dist, 4)
        variables[f"{agent}_loaded"] = (held[:, i] >= 0).astype(np.int64)
    variables["together"] = (situation.cells[:, 0] == situation.cells[:, 1]).astype(np.int64)
    variables["left"] = (situation.items == ORIGIN).any(axis=1).astype(np.int64)
    variables["lying"] = (situation.items == ORIGIN) @ (1 << np.arange(task.grid.num_items))
    return variables


def all_names(task: "GridTask") -> dict[str, tuple[str, ...]]:
    """Text of each value of each of `all_variables`."""
    names, items = task.state_names, range(task.grid.num_items)
    for agent in task.agents:
        names[f"{agent}_held"] = names[f"{agent}_here"] = ("nothing", *(f"item {k}" for k in items))
        names[f"{agent}_open"] = (
            *(" and ".join(str(k) for k in items if sub >> k & 1) or "none" for sub in range(1 << len(items))),
            *(f"teammate's {k}" for k in items),
        )
        names[f"{agent}_next"] = (*names[f"{agent}_open"], "hands full")
        names[f"{agent}_phase"] = ("carrying", "fetching", "waiting")
        names[f"{agent}_area"] = tuple(map(str, range(9)))
        names[f"{agent}_area2"] = tuple(map(str, range(16)))
        for r in (1, 2, 3): names[f"{agent}_rel{r}"] = tuple(map(str, range((2 * r + 1) ** 2)))
        names[f"{agent}_dist"] = tuple(map(str, range(5)))
        names[f"{agent}_loaded"] = ("no", "yes")
    names["together"] = ("no", "yes")
    names["left"] = ("no", "yes")
    names["lying"] = tuple(
        " and ".join(str(k) for k in items if subset >> k & 1) or "none"
        for subset in range(1 << len(items))
    )
    return names


def has_task_variables(task: "GridTask", demos: Demonstrations) -> bool:
    """Whether the demonstrations have the task's state variables, or one for the task state.

    Raises:
        ValueError: If they have neither, or other agents or another order of them: columns of
            actions and latents are read by position.
    """
    sizes, given = task.state_sizes, demos.num_states
    own = all(variable in given for variable in sizes)
    if not own and len(given) != 1:
        raise ValueError(
            f"the demonstrations have the state variables {', '.join(given)}; expected those "
            f"of {task.name}, {', '.join(sizes)}, or the task state as the only one"
        )
    if demos.agents != task.agents:
        raise ValueError(
            f"the demonstrations' agents are {', '.join(demos.agents)}, those of {task.name} are "
            f"{', '.join(task.agents)}"
        )
    return own


def task_states(task: "GridTask", demos: Demonstrations) -> Int[np.ndarray, " steps"]:
    """The task state of every step, whatever other state variables there are.

    Args:
        task: The task.
        demos: Demonstrations with the task's state variables, derived ones or not, or with the
            task state as the only one.

    Raises:
        ValueError: If they have neither, or the variables have other sizes.
    """
    given = demos.state_variables
    own = has_task_variables(task, demos)
    sizes = task.state_sizes if own else dict.fromkeys(given, task.num_states)
    for variable, size in sizes.items():
        if demos.num_states[variable] != size:
            raise ValueError(
                f"{variable} has {demos.num_states[variable]} values in the demonstrations and "
                f"{size} in this task, {task!r}"
            )
    if not own:
        return demos.states
    return task.encode(np.stack([given[variable] for variable in sizes], axis=1))
