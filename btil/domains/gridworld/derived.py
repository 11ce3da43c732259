"""Variables derived from the task state: who holds what, seen from each agent's side."""

from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int

from btil.demonstrations import Demonstrations
from btil.domains.gridworld.grid import NOBODY, ORIGIN

if TYPE_CHECKING:
    from btil.domains.gridworld.task import GridTask

_PHASES = ("carrying", "fetching", "waiting")
_SQUARE = tuple(
    f"{column} {row}".strip() or "here"
    for column in ("left", "", "right")
    for row in ("above", "", "below")
)


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
    subsets = 1 << task.grid.num_items
    lying = (situation.items == ORIGIN) @ (1 << np.arange(task.grid.num_items))
    places = task.grid.cells[situation.cells]
    for i, agent in enumerate(task.agents):
        own, other = held[:, i], held[:, 1 - i]
        carrying = own != NOBODY
        variables[f"{agent}_held"] = own + 1
        variables[f"{agent}_here"] = task.item_at(situation, situation.cells[:, i]) + 1
        variables[f"{agent}_phase"] = np.where(carrying, 0, np.where(lying > 0, 1, 2))
        choice = np.where((lying == 0) & (other != NOBODY), subsets + other, lying)
        variables[f"{agent}_choice"] = np.where(carrying, subsets + task.grid.num_items, choice)
        variables[f"{agent}_teammate"] = _bearing(places[:, 1 - i] - places[:, i])
    variables["lying"] = lying
    return variables


def _bearing(offset: Int[np.ndarray, "k axes"]) -> Int[np.ndarray, " k"]:
    """Where something lies, seen from a cell: one of the nine cells around, or a direction."""
    near = (np.abs(offset) <= 1).all(axis=1)
    column, row = (np.sign(offset) + 1).T
    square = 3 * column + row
    # The middle of the nine is no direction.
    return np.where(near, square, 9 + square - (square > 4))


def all_names(task: "GridTask") -> dict[str, tuple[str, ...]]:
    """Text of each value of each of `all_variables`."""
    names, items = task.state_names, range(task.grid.num_items)
    subsets = tuple(
        " and ".join(str(k) for k in items if subset >> k & 1) or "none"
        for subset in range(1 << len(items))
    )
    for agent in task.agents:
        names[f"{agent}_held"] = names[f"{agent}_here"] = ("nothing", *(f"item {k}" for k in items))
        names[f"{agent}_phase"] = _PHASES
        names[f"{agent}_choice"] = (
            *subsets,
            *(f"the teammate's {k}" for k in items),
            "hands are full",
        )
        names[f"{agent}_teammate"] = (*_SQUARE, *(f"far {x}" for x in _SQUARE if x != "here"))
    names["lying"] = subsets
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
        ValueError: If they have neither, the variables have other sizes, or nobody saw a value.
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
        unseen = np.flatnonzero(given[variable] < 0)
        if len(unseen):
            row = unseen[0]
            raise ValueError(
                f"{variable} was seen by nobody in episode {demos.episodes[row]}, step "
                f"{demos.step_in_episode[row]}: a state of {task.name} has all its variables; "
                "select episodes in which all were seen"
            )
    if not own:
        return demos.states
    return task.encode(np.stack([given[variable] for variable in sizes], axis=1))
