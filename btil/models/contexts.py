"""Which contexts occur: parents expanded to columns, columns folded to unique rows."""

import re
from collections.abc import Container, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Int

from btil.demonstrations import Demonstrations
from btil.demonstrations.data import AWAY, NONE_BEFORE
from btil.demonstrations.naming import form_of, have_forms, spoken

_ACTIONS = re.compile(r"actions|action_.*|own_action|other_actions|other\d*_action")


def expand_parents(
    parents: Sequence[str], agent: str, role: str, demos: Demonstrations
) -> tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]:
    """Spell out `parents` as single variables.

    "state" stands for all state variables, "next_state" for all of the next step, "actions" for
    the actions of all agents, "own_action" and "other_actions" for the agent's and the others', of
    those who have actions. "previous_" before any of these but "next_state" is its value one step
    earlier. A name can be said as the agent sees it: "own_cell" is ann's "ann_cell" and bob's
    "bob_cell", and "other_cell" the other one's ("other1_cell", "other2_cell" in larger teams, in
    the order of their names), so that agents who share a table each read their own.

    Returns:
        The expanded names, e.g. `("x", "y", "action_alice")`, and for each parent the columns
        that it became.

    Raises:
        ValueError: If a parent is no variable of the data; the message lists what there is.
    """
    variables = tuple(demos.state_variables)
    sizes = zip(demos.agents, demos.num_actions, strict=True)
    acting = [name for name, size in sizes if size]
    special = {
        "state": variables,
        "next_state": tuple(f"next_{name}" for name in variables),
        "actions": tuple(f"action_{name}" for name in acting),
        "own_action": tuple(f"action_{name}" for name in acting if name == agent),
        "other_actions": tuple(f"action_{name}" for name in acting if name != agent),
    }
    now = {parent: expansion for parent, expansion in special.items() if parent != "next_state"}
    special |= {
        f"previous_{parent}": tuple(f"previous_{name}" for name in expansion)
        for parent, expansion in now.items()
    }
    single = {
        *variables,
        *special["next_state"],
        *special["actions"],
        *special["previous_state"],
        *special["previous_actions"],
    }
    states = {_as_seen(name, agent, demos): name for name in variables}
    taken = {f"{_as_seen(name, agent, demos)}_action": f"action_{name}" for name in acting}
    seen = states | taken
    seen |= {f"next_{form}": f"next_{name}" for form, name in states.items()}
    seen |= {f"previous_{form}": f"previous_{name}" for form, name in (states | taken).items()}
    if not have_forms(demos.agents):
        seen = {}
    seen = {form: name for form, name in seen.items() if form not in single and form not in special}
    names: list[str] = []
    groups: list[tuple[int, ...]] = []
    for parent in parents:
        if parent in special:
            expansion = special[parent]
        elif parent in single:
            expansion = (parent,)
        elif parent in seen:
            expansion = (seen[parent],)
        else:
            raise ValueError(
                f"{role} of {agent}: unknown parent {parent!r}; the data have state variables "
                f"{', '.join(variables)} and agents {', '.join(demos.agents)}, so a parent may be "
                f"one of {', '.join(_allowed(role, {*special, *single, *seen}, variables))}"
            )
        groups.append(tuple(range(len(names), len(names) + len(expansion))))
        names.extend(expansion)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(f"{role} of {agent}: parent counted twice: {', '.join(repeated)}")
    return tuple(names), tuple(groups)


def _as_seen(name: str, agent: str, demos: Demonstrations) -> str:
    return spoken(form_of(name, agent, demos.agents))


def _allowed(role: str, names: set[str], variables: Sequence[str]) -> list[str]:
    """What a table of that role may read, sorted; transitions read actions as well."""
    if role == "transition":
        return sorted(names)
    return sorted(one for one in names if one in variables or not known_after(one))


def known_after(parent: str) -> bool:
    """Whether a parent is known only once the step was taken: its actions, and the next state."""
    return parent.startswith("next_") or bool(_ACTIONS.fullmatch(parent))


def data_column(parent: str, variables: Container[str]) -> str:
    """The column of the data whose values a parent has: of "next_x" and of "previous_x" it is x."""
    if parent in variables:
        return parent
    return parent.removeprefix("next_").removeprefix("previous_")


def parent_sizes(names: Sequence[str], demos: Demonstrations) -> tuple[int, ...]:
    """Number of values of each expanded parent."""
    actions = dict(zip(demos.agents, demos.num_actions, strict=True))
    sizes = {f"action_{agent}": size for agent, size in actions.items()}
    sizes |= {f"previous_{name}": size for name, size in (sizes | demos.num_states).items()}
    sizes |= {f"next_{name}": size for name, size in demos.num_states.items()}
    sizes |= dict(demos.num_states)
    return tuple(sizes[name] for name in names)


def parent_columns(
    names: Sequence[str],
    states: Mapping[str, Int[np.ndarray, " k"]],
    actions: Mapping[str, Int[np.ndarray, " k"]],
    next_states: Mapping[str, Int[np.ndarray, " k"]],
    num_rows: int,
    previous: Mapping[str, Int[np.ndarray, " k"]] | None = None,
) -> Int[np.ndarray, "k parents"]:
    """Values of the expanded parents, one row per step (or pair of steps).

    `previous` has the states and actions one step earlier, by the names that they have as parents.
    """
    available: dict[str, Int[np.ndarray, " k"]] = dict(previous or {})
    available |= {f"action_{agent}": values for agent, values in actions.items()}
    available |= {f"next_{name}": values for name, values in next_states.items()}
    available |= dict(states)
    columns = [np.asarray(available[name], np.int64) for name in names]
    return np.stack(columns, 1) if columns else np.zeros((num_rows, 0), np.int64)


def parent_values(
    demos: Demonstrations,
) -> tuple[dict[str, Int[np.ndarray, " steps"]], dict[str, Int[np.ndarray, " steps"]]]:
    """What tables read of states and of actions: indices, -1 (unseen) or -2 (away).

    A state variable with the name of one who is away in its name is away with that one, whatever
    is recorded of it.
    """
    states, actions = demos.state_variables, dict(zip(demos.agents, demos.actions.T, strict=True))
    if demos.away:
        states = {
            name: np.where(demos.is_away(name), AWAY, values) for name, values in states.items()
        }
        actions = {
            agent: np.where(there, values, AWAY)
            for (agent, values), there in zip(actions.items(), demos.present.T, strict=True)
        }
    return states, actions


def previous_values(
    names: Sequence[str],
    states: Mapping[str, Int[np.ndarray, " k"]],
    actions: Mapping[str, Int[np.ndarray, " k"]],
    first: Bool[np.ndarray, " k"],
) -> dict[str, Int[np.ndarray, " k"]]:
    """States and actions of one step earlier, by the names that they have as parents.

    Args:
        names: The expanded parents.
        states: The states of one step earlier.
        actions: The actions of one step earlier.
        first: Where there is no earlier step.
    """
    columns = {f"action_{agent}": values for agent, values in actions.items()} | dict(states)
    return {
        f"previous_{column}": np.where(first, NONE_BEFORE, values)
        for column, values in columns.items()
        if f"previous_{column}" in names
    }


def row_codes(rows: Int[np.ndarray, "k parents"]) -> Int[np.ndarray, " k"]:
    """A dense code per distinct row, in lexicographic order of the rows.

    Columns are folded one by one and re-coded densely, so that no product of sizes overflows.
    """
    codes = np.zeros(len(rows), np.int64)
    width = 1
    for column in rows.T:
        values, value_codes = np.unique(column, return_inverse=True)
        if width * len(values) >= np.iinfo(np.int64).max // 2:
            present, codes = np.unique(codes, return_inverse=True)
            width = len(present)
        codes = codes * len(values) + value_codes
        width *= len(values)
    return np.unique(codes, return_inverse=True)[1] if len(rows) else codes


def unique_rows(
    rows: Int[np.ndarray, "k parents"],
) -> tuple[Int[np.ndarray, "contexts parents"], Int[np.ndarray, " k"]]:
    """Distinct rows in lexicographic order, and the index of each given row among them."""
    codes = row_codes(rows)
    _, first = np.unique(codes, return_index=True)
    return rows[first], codes


def match_rows(
    rows: Int[np.ndarray, "contexts parents"], queries: Int[np.ndarray, "k parents"]
) -> Int[np.ndarray, " k"]:
    """Index in `rows` (distinct) of each query row, -1 where it is not there."""
    codes = row_codes(np.concatenate([rows, queries]))
    index = np.full(codes.max(initial=-1) + 1, -1, np.int64)
    index[codes[: len(rows)]] = np.arange(len(rows))
    return index[codes[len(rows) :]]
