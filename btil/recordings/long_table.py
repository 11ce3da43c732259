"""Long logs: one row per agent and step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.demonstrations import Demonstrations
from btil.demonstrations.coding import (
    Coded,
    Reading,
    absent,
    as_index,
    code_column,
    items,
    listed,
    normalised,
    shown,
    texts_for_unknown,
)
from btil.demonstrations.quantities import checked_missing, without_sets
from btil.recordings.sources import Table, TableOrPath, naming, table_of

_DEFAULTS = {
    "episode": "episode",
    "step": "step",
    "agent": "agent",
    "action": "action",
    "latent": "latent",
    "reward": "reward",
}


def from_long_table(
    table_or_path: TableOrPath,
    *,
    episode: str | None = "episode",
    step: str = "step",
    time: str | None = None,
    agent: str = "agent",
    action: str | None = "action",
    latent: str | None = "latent",
    reward: str | None = "reward",
    agents: Sequence[str] | None = None,
    own: Sequence[str] = (),
    common: Sequence[str] = (),
    continuous: Sequence[str] = (),
    ignore: Sequence[str] = (),
    action_names: Sequence[str] | None = None,
    latent_names: Sequence[str] | None = None,
    num_actions: int | None = None,
    num_latents: int | None = None,
    state_names: Mapping[str, Sequence[str]] | None = None,
    num_states: Mapping[str, int] | None = None,
    unknown_labels: Iterable[str | int] | None = None,
    missing: str = "refuse",
) -> Demonstrations:
    r"""Read a log that has one row per agent and step.

    The rows may come in any order. Let :math:`v_{t,i}` be the cell of a column in agent *i*'s row
    of step *t*. Where :math:`v_{t,i} = v_{t,j}` for all *t*, *i*, *j* the column speaks of the
    whole team and becomes one state variable of its name. Else it speaks of the agent of its row
    and becomes one state variable `<agent>_<column>` for each agent. A blank is a value of its own
    here. Of two files one may come out otherwise than the other; `own` and `common` say what
    holds.

    An agent without a row in a step is away in it. A step in which nobody has a row is missing,
    and refused. Values of all agents go through one list of names, so that the agents' tables have
    equal sizes.

    Args:
        table_or_path: A data frame, a mapping {column: cells}, or a file: `.csv`, `.tsv`, `.txt`
            (with tabs) or `.parquet`.
        episode: Column of the episode's id. A table without it is one episode. Episodes come in
            the order of their first rows.
        step: Column of the step, which counts up by one in every episode, from any number on.
        time: Column of a time stamp, in place of `step`: the different times of an episode are its
            steps, in order, and a column of steps is left out. Where agents are seen at different
            times use `from_trajectories`.
        agent: Column of the agent's name.
        action: Column of the action. A table without it has no actions, which needs `continuous`.
        latent: Column of the label; blank: unknown, `lift|carry`: one of these.
        reward: Column of the reward. Where all agents have the same one at every step it is the
            team's, else each agent's own, 0 while away.
        agents: The agents in their order. Default: in order of appearance.
        own: Columns that speak of the agent of their row, whatever they hold.
        common: Columns that speak of the team; cells that differ in a step are refused.
        continuous: Columns of measured quantities, kept as numbers; a blank was seen by nobody.
        ignore: Columns that are left out.
        action_names: The text of each action, of all agents. Default: the texts that occur.
        latent_names: The text of each latent, of all agents. Default: the texts that occur.
        num_actions: Number of actions of each agent.
        num_latents: Number of latents of each agent. Default: what the labels say, and 1 where
            nobody is labelled.
        state_names: The text of each value, {column: texts}, by the columns of the log.
        num_states: Number of values, {column: number}, by the columns of the log.
        unknown_labels: Texts that mean an unknown latent too.
        missing: As in `btil.Demonstrations`: "allow" takes a blank for what nobody saw.

    Returns:
        Demonstrations of all agents.

    Raises:
        ValueError: A column that is not there, an agent with two rows in a step, a step left out,
            cells of a common column that differ, and all that `btil.Demonstrations` refuses. The
            message names file, line (or row), column and what is allowed.
        OSError: The file cannot be read.

    Example:
        >>> log = {
        ...     "step": [0, 0, 1, 1, 2],
        ...     "agent": ["ann", "bob", "ann", "bob", "ann"],
        ...     "door": ["shut", "shut", "open", "open", "open"],
        ...     "cell": [0, 3, 1, 3, 2],
        ...     "action": ["go", "wait", "go", "wait", "wait"],
        ... }
        >>> demos = from_long_table(log)
        >>> demos.num_states
        {'door': 2, 'ann_cell': 4, 'bob_cell': 4}
        >>> demos.present[:, 1].tolist()
        [True, True, False]
    """
    named = {
        "episode": episode,
        "step": step,
        "agent": agent,
        "action": action,
        "latent": latent,
        "reward": reward,
    }
    with naming(table_or_path):
        table = table_of(table_or_path)
        table.need("agent", agent)
        table.need("time" if time is not None else "step", step if time is None else time)
        roles = {
            role: column
            for role, column in named.items()
            if role != "step" and table.has(role, column, _DEFAULTS[role])
        }
        order = step if time is None else time
        grid = _grid(table, roles.get("episode"), order, time is not None, agent, agents)
        reading = Reading(
            texts_for_unknown(unknown_labels), unseen=checked_missing(missing) == "allow"
        )
        used = {order, step, *(column for column in roles.values() if column)}
        measured = _listed_columns(table, "continuous", continuous)
        left_out = _listed_columns(table, "ignore", ignore)
        variables = [c for c in table.columns if c not in {*used, *measured, *left_out}]
        chosen = {
            "own": _listed_columns(table, "own", own),
            "common": _listed_columns(table, "common", common),
        }
        both = [column for column in chosen["own"] if column in chosen["common"]]
        if both:
            raise ValueError(f"own, common: {listed(both)} cannot be both")
        states, sizes, names = _states(
            table, grid, variables, chosen, state_names, num_states, reading
        )
        arguments: dict[str, Any] = {
            "states": states or None,
            "num_states": sizes,
            "state_names": names,
            "continuous": _measured(table, grid, measured, chosen, states) or None,
            "actions": None,
            "rewards": _rewards(table, grid, roles.get("reward")),
        }
        if "action" in roles:
            coded = _coded(table, roles["action"] or "", num_actions, action_names, reading)
            arguments["actions"] = grid.by_agent(coded.indices)
            arguments["num_actions"] = coded.size
            arguments["action_names"] = coded.names
        elif not measured:
            raise ValueError(
                f"there is no column {shown(action)} of actions; the columns are "
                f"{listed(table.columns)}; action=... names it, and a log without actions needs "
                "continuous=[...]"
            )
        arguments |= labels_of(
            table,
            grid.agents,
            grid.rows,
            roles.get("latent"),
            num_latents,
            latent_names,
            unknown_labels,
        )
        return Demonstrations(
            episodes=grid.episodes,
            agents=grid.agents,
            present=None if grid.there.all() else grid.there,
            unknown_labels=unknown_labels,
            missing=missing,
            **arguments,
        )


class _Grid(NamedTuple):
    """Which row of the log tells of which step and agent.

    Attributes:
        agents: The agents.
        episodes: The episode's id of each step.
        rows: The row of each step and agent, -1 where there is none.
    """

    agents: tuple[str, ...]
    episodes: np.ndarray
    rows: Int[np.ndarray, "steps agents"]

    @property
    def there(self) -> Bool[np.ndarray, "steps agents"]:
        return self.rows >= 0

    @property
    def first(self) -> Int[np.ndarray, " steps"]:
        """A row of each step."""
        return self.rows[np.arange(len(self.rows)), self.there.argmax(axis=1)]

    def by_agent(self, indices: Int[np.ndarray, " rows"]) -> dict[str, np.ndarray]:
        """Indices of the log's rows as columns of the agents, -1 while they are away."""
        padded = np.append(indices, -1)
        return {agent: padded[self.rows[:, k]] for k, agent in enumerate(self.agents)}


def _grid(
    table: Table,
    episode: str | None,
    order: str,
    is_time: bool,
    agent: str,
    agents: Sequence[str] | None,
) -> _Grid:
    codes, ids = table.episodes(episode)
    who, team = table.team(agent, agents)
    when = table.seconds(order) if is_time else table.numbers(order)
    if not is_time:
        fractions = when != np.floor(when)
        if fractions.any():
            row = int(np.argmax(fractions))
            table.refuse(
                row,
                order,
                f"{shown(table.columns[order][row])} is not allowed; expected a whole number; "
                "time=... reads time stamps",
            )
    moments = np.unique(np.stack([codes, when]), axis=1)
    between = np.diff(moments, axis=1)
    left_out = (between[0] == 0) & (between[1] != 1)
    if not is_time and left_out.any():
        at = int(np.argmax(left_out)) + 1
        row = int(np.argmax((codes == moments[0, at]) & (when == moments[1, at])))
        table.refuse(
            row,
            order,
            f"step {moments[1, at]:g} comes after step {moments[1, at - 1]:g} of the same episode; "
            "expected steps that count up by one: somebody must have a row in each",
        )
    places = {(code, moment): k for k, (code, moment) in enumerate(moments.T.tolist())}
    rows = np.full((moments.shape[1], len(team)), -1)
    for row, (code, moment, one) in enumerate(
        zip(codes.tolist(), when.tolist(), who.tolist(), strict=True)
    ):
        step = places[code, moment]
        if rows[step, one] >= 0:
            table.refuse(
                row,
                agent,
                f"{shown(team[one])} has a row for this step already, "
                f"{table.place(int(rows[step, one]))}; expected one row for each agent and step",
            )
        rows[step, one] = row
    return _Grid(team, ids[moments[0].astype(np.int64)], rows)


def _listed_columns(table: Table, argument: str, given: Sequence[str]) -> list[str]:
    columns = [str(column) for column in items(argument, given)]
    for column in columns:
        table.need(argument, column)
    return columns


def _coded(
    table: Table, column: str, size: int | None, names: Sequence[str] | None, reading: Reading
) -> Coded:
    texts = None if names is None else tuple(normalised(str(n)) for n in items(column, names))
    return code_column(column, table.columns[column], size, texts, table, reading)


def _differs(grid: _Grid, values: np.ndarray) -> Bool[np.ndarray, "steps agents"]:
    """Where a cell differs from that of the first agent who is there."""
    return grid.there & (values[grid.rows] != values[grid.first][:, None])


def _is_own(
    table: Table, grid: _Grid, column: str, values: np.ndarray, chosen: Mapping[str, list[str]]
) -> bool:
    """Whether a column speaks of the agent of its row."""
    if column in chosen["own"]:
        return True
    differs = _differs(grid, values)
    if column in chosen["common"] and differs.any():
        step, agent = np.argwhere(differs)[0]
        row, other = int(grid.rows[step, agent]), int(grid.first[step])
        cells = table.columns[column]
        table.refuse(
            row,
            column,
            f"{shown(cells[row])} differs from {shown(cells[other])} of the same step, "
            f"{table.place(other)}; expected equal cells in a column of common=[...]",
        )
    return bool(differs.any())


def _states(
    table: Table,
    grid: _Grid,
    variables: Sequence[str],
    chosen: Mapping[str, list[str]],
    state_names: Mapping[str, Sequence[str]] | None,
    num_states: Mapping[str, int] | None,
    reading: Reading,
) -> tuple[dict[str, np.ndarray], dict[str, int], dict[str, Any]]:
    """State variables, their sizes and their names."""
    for argument, given in (("state_names", state_names), ("num_states", num_states)):
        for column in given or {}:
            if column not in variables:
                raise ValueError(
                    f"{argument}: there is no state column {shown(column)}; those of the log are "
                    f"{listed(variables)}"
                )
    states: dict[str, np.ndarray] = {}
    sizes: dict[str, int] = {}
    names: dict[str, Any] = {}
    for column in variables:
        coded = _coded(
            table,
            column,
            (num_states or {}).get(column),
            (state_names or {}).get(column),
            reading,
        )
        if _is_own(table, grid, column, coded.indices, chosen):
            found = {
                f"{agent}_{column}": values
                for agent, values in grid.by_agent(coded.indices).items()
            }
        else:
            found = {column: coded.indices[grid.first]}
        for name, values in found.items():
            if name in states:
                raise ValueError(f"two columns would have the name {shown(name)}; rename one")
            states[name], sizes[name] = values, coded.size
            if coded.names is not None:
                names[name] = coded.names
    return states, sizes, names


def _measured(
    table: Table,
    grid: _Grid,
    columns: Sequence[str],
    chosen: Mapping[str, list[str]],
    states: Mapping[str, np.ndarray],
) -> dict[str, Float[np.ndarray, " steps"]]:
    found: dict[str, np.ndarray] = {}
    for column in columns:
        values = table.numbers(column, blank=True)
        comparable = np.where(np.isnan(values), np.inf, values)  # NaN is no value of its own
        if _is_own(table, grid, column, comparable, chosen):
            padded = np.append(values, np.nan)
            named = {f"{a}_{column}": padded[grid.rows[:, k]] for k, a in enumerate(grid.agents)}
        else:
            named = {column: values[grid.first]}
        for name, numbers in named.items():
            if name in found or name in states:
                raise ValueError(f"two columns would have the name {shown(name)}; rename one")
            found[name] = numbers
    return found


def _rewards(
    table: Table, grid: _Grid, column: str | None
) -> Float[np.ndarray, "steps *agents"] | None:
    if column is None:
        return None
    values = table.numbers(column)
    if not _differs(grid, values).any():
        return values[grid.first]
    return np.append(values, 0.0)[grid.rows]


def labels_of(
    table: Table,
    agents: Sequence[str],
    rows: Int[np.ndarray, "steps agents"],
    column: str | None,
    size: int | None,
    given: Sequence[str] | None,
    unknown_labels: Iterable[str | int] | None,
) -> dict[str, Any]:
    """What `Demonstrations` is told of latents, by one list of names for all agents.

    Args:
        table: The log.
        agents: The agents.
        rows: The row with the label of each step and agent, -1 where there is none.
        column: The column of labels, where there is one.
        size: The declared number of latents.
        given: Their declared names.
        unknown_labels: Texts that mean an unknown latent too.

    Returns:
        The arguments `latents`, `num_latents` and `latent_names`.

    Raises:
        ValueError: A label that is none, with its line.
    """
    unknown = texts_for_unknown(unknown_labels)
    names = None if given is None else tuple(map(str, items("latent_names", given)))
    if column is None:
        return {"num_latents": 1 if size is None and names is None else size, "latent_names": names}
    cells = np.array(table.columns[column], object)
    cells[[_unknown(cell, unknown) for cell in cells]] = None
    single, sets = _without_sets(table, column, cells, names)
    single = np.array([None if cell in sets else cell for cell in single], object)
    parts = sorted({part for texts in sets.values() for part in texts})
    if names is None and size is None and absent(column, single).all():
        size = 1 if not parts else None
        coded = None
    else:
        # Checked here, so that what is refused is told by its line.
        reading = Reading(unknown, unseen=True)
        coded = code_column(column, single, size, None if sets else names, table, reading)
    if names is None:
        names, size = _names_and_size(column, parts, coded, size)
    padded = np.array([*cells, None], object)
    return {
        "latents": {agent: padded[rows[:, k]] for k, agent in enumerate(agents)},
        "num_latents": size,
        "latent_names": names,
    }


def _without_sets(
    table: Table, column: str, cells: np.ndarray, names: tuple[str, ...] | None
) -> tuple[np.ndarray, dict[str, tuple[str, ...]]]:
    """As `without_sets`; what is wrong with a set is told with its line."""
    for row, cell in enumerate(cells):
        if isinstance(cell, str) and "|" in cell:
            try:
                without_sets(column, cells[row : row + 1], names)
            except ValueError as error:
                raise ValueError(f"{table.place(row)}, column {error}") from None
    return without_sets(column, cells, names)


def _names_and_size(
    column: str, parts: Sequence[str], coded: Coded | None, size: int | None
) -> tuple[tuple[str, ...] | None, int | None]:
    """Names and number of the latents that labels and sets of labels tell of, for all agents."""
    numbers = all(part.isdecimal() for part in parts)
    if coded is None:
        if not parts or not numbers:
            return tuple(parts) or None, size
        return None, max(map(int, parts)) + 1
    if coded.names is None and not numbers:
        raise ValueError(
            f"column {shown(column)}: some rows have numbers, others names "
            f"({listed(parts)}); write names in all"
        )
    if coded.names is not None:
        return tuple(sorted({*coded.names, *parts})), None
    return None, max([coded.size, *(int(part) + 1 for part in parts)])


def _unknown(cell: Any, unknown_labels: frozenset[str] | None) -> bool:
    text = normalised(cell) if isinstance(cell, str) else str(as_index(cell))
    return text in (unknown_labels or ())
