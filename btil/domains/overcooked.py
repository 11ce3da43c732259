r"""Human-human play of the Overcooked kitchen, with each player's intent as the mental state.

Two people cook onion soup in a small kitchen: three onions fill a pot, the pot cooks by itself,
a dish takes the soup out, and the serving window pays for it. Both see everything, and they
cannot talk. The trials are those of Carroll et al. (2019); see ``data/README.md`` for origin,
licence and columns.

**Intents.** Nobody wrote down what the players had in mind, but what they went on to do shows it.
Let :math:`k_{i,t}` be what player *i* holds at step *t*. An *event* of the player is a step with
:math:`k_{i,t+1} \ne k_{i,t}` in the same trial, and the cell in front of him at *t* says which of
the six kinds in :data:`INTENTS` it is. His intent at step *t* is the kind of his first event at
or after *t*; after his last event it is unknown (-1).

**State variables.** Beside the columns of the table there are derived ones, which a modeler wants
as parents. For each player ``<p>`` (``player_0``, ``player_1``):

===============================  ==================================================================
``<p>_x``, ``<p>_y``             cell, from the top left corner
``<p>_position``                 the same as one variable: index of the floor cell, reading order
``<p>_heading``                  up, down, right, left
``<p>_held``                     nothing, onion, dish, soup. Its value one step later is the parent
                                 ``next_<p>_held``
``<p>_facing``                   the cell in front: its kind, the status of a pot, what lies on a
                                 counter, or the teammate
``<p>_affordance``               the event that an interaction would bring about now, or none; it
                                 follows from what he holds and faces
``<p>_situation``                the affordance and what he holds; where there is no affordance
                                 instead his cell, his heading and what he holds
``<p>_last_action``              his action one step before (``none`` at the first step)
``<p>_distance_to_<thing>``      moves and turns until he faces the nearest one, in bins
``<p>_step_to_<thing>``          the first of those moves, ``interact`` when he faces it already
``<p>_nearest``                  the nearest of the two dispensers, the pots and the serving window
===============================  ==================================================================

and for the kitchen: ``pot0_onions``, ``pot0_timer``, ``pot0_status`` and the same for ``pot1``,
``pots`` (the statuses of both, in no order), ``counter_onions``, ``counter_dishes`` and
``counter_soups``.

A ``<thing>`` is one of :data:`THINGS`. Paths go over the floor and ignore the teammate. What lies
where on the counters is not in the table; it follows from the players' events since the start of
the trial, when the counters are empty.

Declared sizes depend on the map alone, never on the rows that happen to be read.

References:
    M. Carroll, R. Shah, M. K. Ho, T. L. Griffiths, S. A. Seshia, P. Abbeel and A. Dragan. "On the
    Utility of Learning about Humans for Human-AI Coordination". NeurIPS 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import as_file, files
from os import PathLike
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from btil.demonstrations import Demonstrations

if TYPE_CHECKING:
    from btil.models.team import TeamModel

__all__ = [
    "ACTIONS",
    "INTENTS",
    "LAYOUTS",
    "PLAYERS",
    "THINGS",
    "from_arrays",
    "from_table",
    "load",
    "map_of",
    "recommended_model",
]

LAYOUTS = ("asymmetric_advantages", "coordination_ring", "cramped_room", "random0", "random3")
PLAYERS = ("player_0", "player_1")
INTENTS = ("take onion", "fill pot", "take dish", "take soup", "serve", "use counter")
ACTIONS = ("up", "down", "right", "left", "stay", "interact")
THINGS = (
    "onion_dispenser",
    "dish_dispenser",
    "pot",
    "serving_window",
    "pot_to_fill",
    "pot_with_soup",
    "free_counter",
    "counter_object",
)
"""What a player may walk to. ``pot_to_fill`` is a pot with fewer than three onions and
``pot_with_soup`` the pot that is furthest on (ready, else cooking); where there is none, any pot.
``counter_object`` is a counter on which something lies, ``free_counter`` one with nothing."""

_SPLITS = ("train", "test")
_HEADINGS = ACTIONS[:4]
_OBJECTS = ("nothing", "onion", "dish", "soup")
_NOTHING, _ONION, _DISH, _SOUP = range(4)
_POT_STATUSES = ("none", "empty", "filling", "cooking", "ready")
_NO_POT, _EMPTY, _FILLING, _COOKING, _READY = range(5)
_KITCHEN = ("onion dispenser", "dish dispenser", "serving window")
_FACING = (
    "floor",
    "teammate",
    *_KITCHEN,
    "counter",
    *(f"counter with {thing}" for thing in _OBJECTS[1:]),
    *(f"{status} pot" for status in _POT_STATUSES[1:]),
)
_AFFORDANCES = ("none", *INTENTS)
_NEAREST = ("onion dispenser", "dish dispenser", "pot", "serving window", "none")
_STEPS = (*_HEADINGS, "unreachable", "interact")
_UNREACHABLE = 4
_INTERACT = 5
_LAST_ACTIONS = (*ACTIONS, "none")
_DISTANCES = ("0", "1", "2", "3-4", "5-7", "8 or more", "unreachable")
_DISTANCE_BINS = (1, 2, 3, 5, 8)

_FULL = 3
_COOKING_TIME = 20
_NUM_POTS = 2
# The table keeps timers as 16-bit integers, so this bound holds for every table of this kind.
_NUM_TIMERS = 2**15
# Cell offsets (dx, dy) of the headings up, down, right, left.
_DX = np.array([0, 0, 1, -1])
_DY = np.array([-1, 1, 0, 0])

_PER_PLAYER = ("x", "y", "dir", "held", "action")
_COUNTERS = ("counter_onions", "counter_dishes", "counter_soups")
_COLUMNS = (
    *("split", "trial", "layout", "step"),
    *(f"p{i}_{name}" for i in range(2) for name in _PER_PLAYER),
    *(f"pot{k}_{name}" for k in range(_NUM_POTS) for name in ("onions", "timer")),
    *_COUNTERS,
)

_Table = Mapping[str, Int[np.ndarray, " steps"]]


# Reading --------------------------------------------------------------------------------------


def load(layout: str, split: str | None = "train") -> Demonstrations:
    """Loads the carried human-human trials of one kitchen.

    Args:
        layout: one of :data:`LAYOUTS`.
        split: ``"train"`` or ``"test"``, the split of the original authors; ``None``: both.

    Returns:
        Demonstrations of the agents ``player_0`` and ``player_1``; the episode ids are the trial
        numbers, the latents are the intents (see the module's text).

    Raises:
        ValueError: if the layout or the split is not one of those allowed.

    Example:
        >>> demos = load("cramped_room", split="test")
        >>> demos.num_episodes, demos.agents
        (4, ('player_0', 'player_1'))
    """
    _check_layout(layout)
    with as_file(files("btil.domains") / "data" / "overcooked_human.npz") as path:
        return from_table(path, layout, split)


def from_table(path: str | PathLike[str], layout: str, split: str | None = None) -> Demonstrations:
    """Reads the trials of one kitchen from an NPZ file with the columns of ``data/README.md``.

    The maps come from the file (``layout_names`` and ``grid_<layout>``), so it may hold kitchens
    of your own, with one or two pots. The column ``reward`` is not needed.

    Args:
        path: the file; read without pickle.
        layout: a name in the file's ``layout_names``.
        split: ``"train"``, ``"test"``, or ``None`` for both.

    Returns:
        Demonstrations as :func:`load` returns them.

    Raises:
        ValueError: if a column or the map is missing or malformed, the columns differ in length,
            the layout or split is unknown or has no rows, the rows of a trial are apart or out of
            order, a value is out of range, or what a player holds changes in front of something
            where it cannot. The message names the file, the column, trial, step, value and what
            is allowed.
        OSError: if the file cannot be read.
    """
    _check_split(split)
    arrays = _read_arrays(path)
    try:
        return from_arrays(arrays, layout, split)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _check_layout(layout: str) -> None:
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}; allowed are {', '.join(LAYOUTS)}")


def map_of(layout: str) -> tuple[str, ...]:
    """The map of a carried kitchen, row by row.

    Args:
        layout: one of :data:`LAYOUTS`.

    Raises:
        ValueError: if the layout is not one of those allowed.

    Example:
        >>> map_of("cramped_room")
        ('XXPXX', 'O  2O', 'X1  X', 'XDXSX')
    """
    _check_layout(layout)
    with as_file(files("btil.domains") / "data" / "overcooked_human.npz") as path:
        return _grid_of(_read_arrays(path), layout)


def _check_split(split: str | None) -> None:
    if split is not None and split not in _SPLITS:
        raise ValueError(f"split is {split!r}; allowed are 'train', 'test' and None")


def from_arrays(
    arrays: Mapping[str, np.ndarray], layout: str, split: str | None = None
) -> Demonstrations:
    """The trials of one kitchen from arrays, by the names that the NPZ file has for them.

    Args:
        arrays: the columns of ``data/README.md``, ``layout_names`` and the maps.
        layout: a name in ``layout_names``.
        split: ``"train"``, ``"test"``, or ``None`` for both.

    Raises:
        ValueError: as :func:`from_table`.
    """
    _check_split(split)
    kitchen = _kitchen(_grid_of(arrays, layout))
    table = _rows_of(arrays, layout, split)
    _check_ranges(table, kitchen)
    _check_order(table)

    node = np.stack(
        [kitchen.position[table[f"p{i}_y"], table[f"p{i}_x"]] * 4 + table[f"p{i}_dir"]
         for i in range(2)],
        axis=1,
    )  # fmt: skip
    front = kitchen.front[node]
    events = _events(table, kitchen, front)
    variables = _kitchen_variables(table, kitchen)
    pot_statuses = np.stack([variables[f"pot{k}_status"].values for k in range(_NUM_POTS)], axis=1)
    counters = _counter_contents(table, kitchen, events, front)
    for i in range(2):
        variables |= _player_variables(table, kitchen, i, node, pot_statuses, counters)

    return Demonstrations(
        states={name: variable.values for name, variable in variables.items()},
        actions={player: table[f"p{i}_action"] for i, player in enumerate(PLAYERS)},
        latents={
            player: _next_event(events[:, i], table["trial"]) for i, player in enumerate(PLAYERS)
        },
        episodes=table["trial"],
        num_states={name: variable.size for name, variable in variables.items()},
        num_actions=len(ACTIONS),
        num_latents=len(INTENTS),
        state_names={
            name: variable.names for name, variable in variables.items() if variable.names
        },
        action_names=ACTIONS,
        latent_names=INTENTS,
    )


def _read_arrays(path: str | PathLike[str]) -> dict[str, np.ndarray]:
    with open(path, "rb") as file:  # of a damaged archive NumPy leaves it open
        try:
            archive = np.load(file, allow_pickle=False)
            if isinstance(archive, np.lib.npyio.NpzFile):
                return {name: archive[name] for name in archive.files}
        # NumPy and zipfile raise whatever comes on a damaged file; the file itself could be opened.
        except Exception as error:
            raise ValueError(f"{path} is damaged, or no NPZ archive of columns ({error})") from None
    raise ValueError(f"{path} is a single array, not an NPZ archive of columns")


def _grid_of(arrays: Mapping[str, np.ndarray], layout: str) -> tuple[str, ...]:
    """The map's rows, once the file is known to have them and every column, of equal lengths."""
    missing = [name for name in ("layout_names", *_COLUMNS) if name not in arrays]
    if missing:
        raise ValueError(f"the table lacks {', '.join(missing)}; needed are {', '.join(_COLUMNS)}")
    names = _texts(arrays, "layout_names")
    if layout not in names:
        raise ValueError(f"unknown layout {layout!r}; allowed are {', '.join(names)}")
    if f"grid_{layout}" not in arrays:
        raise ValueError(f"the table lacks grid_{layout}, the map of {layout}")
    grid = _texts(arrays, f"grid_{layout}")
    for name in _COLUMNS:
        if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "iu":
            raise ValueError(
                f"column {name} must hold integers along one axis, not {arrays[name].dtype} "
                f"of shape {arrays[name].shape}"
            )
    lengths = {name: len(arrays[name]) for name in _COLUMNS}
    uneven = [name for name in _COLUMNS if lengths[name] != lengths["trial"]]
    if uneven:
        raise ValueError(
            f"column {uneven[0]} has {lengths[uneven[0]]} rows where trial has {lengths['trial']}"
        )
    return grid


def _texts(arrays: Mapping[str, np.ndarray], name: str) -> tuple[str, ...]:
    values = arrays[name]
    if values.ndim != 1 or values.dtype.kind != "U":
        raise ValueError(
            f"{name} must hold texts along one axis, not {values.dtype} of shape {values.shape}"
        )
    return tuple(values.tolist())


def _rows_of(arrays: Mapping[str, np.ndarray], layout: str, split: str | None) -> _Table:
    """The rows of one layout and split, as 64-bit integers."""
    names = [str(name) for name in arrays["layout_names"]]
    _check_range(arrays, "split", len(_SPLITS))
    _check_range(arrays, "layout", len(names))
    rows = arrays["layout"] == names.index(layout)
    if split is not None:
        rows &= arrays["split"] == _SPLITS.index(split)
    if not rows.any():
        wanted = f"layout {layout}" + ("" if split is None else f", split {split}")
        raise ValueError(f"the table has no rows of {wanted}")
    return {name: arrays[name][rows].astype(np.int64) for name in _COLUMNS}


def _check_range(table: Mapping[str, np.ndarray], column: str, size: int) -> None:
    values = table[column]
    wrong = (values < 0) | (values >= size)
    if wrong.any():
        row = int(wrong.argmax())
        raise ValueError(
            f"column {column}, trial {table['trial'][row]}, step {table['step'][row]}: "
            f"{values[row]} is out of range; allowed are 0 to {size - 1}"
        )


def _check_ranges(table: _Table, kitchen: _Kitchen) -> None:
    height, width = kitchen.cells.shape
    sizes = {"x": width, "y": height, "dir": 4, "held": len(_OBJECTS), "action": len(ACTIONS)}
    for i in range(2):
        for name, size in sizes.items():
            _check_range(table, f"p{i}_{name}", size)
        wall = kitchen.position[table[f"p{i}_y"], table[f"p{i}_x"]] < 0
        if wall.any():
            row = int(wall.argmax())
            raise ValueError(
                f"columns p{i}_x, p{i}_y, trial {table['trial'][row]}, step {table['step'][row]}: "
                f"({table[f'p{i}_x'][row]}, {table[f'p{i}_y'][row]}) is not floor on the map"
            )
    for k in range(_NUM_POTS):
        # A pot that the map does not have holds nothing.
        there = k < kitchen.num_pots
        _check_range(table, f"pot{k}_onions", _FULL + 1 if there else 1)
        _check_range(table, f"pot{k}_timer", _NUM_TIMERS if there else 1)
    for name in _COUNTERS:
        _check_range(table, name, kitchen.num_counters + 1)


def _check_order(table: _Table) -> None:
    trial, step = table["trial"], table["step"]
    starts = np.flatnonzero(np.r_[True, trial[1:] != trial[:-1]])
    numbers, first = np.unique(trial[starts], return_index=True)
    if len(numbers) < len(starts):
        again = np.setdiff1d(np.arange(len(starts)), first)[0]
        row = starts[again]
        raise ValueError(
            f"column trial, step {step[row]}: trial {trial[row]} goes on after another one; the "
            "rows of a trial must follow each other"
        )
    jump = (trial[1:] == trial[:-1]) & (step[1:] != step[:-1] + 1)
    if jump.any():
        row = int(jump.argmax()) + 1
        raise ValueError(
            f"column step, trial {trial[row]}: step {step[row]} comes after step {step[row - 1]}; "
            "the steps of a trial must follow each other without a gap"
        )


# The map --------------------------------------------------------------------------------------


class _Kitchen(NamedTuple):
    """A map, and the ways over it.

    A *node* is a floor cell and a heading, ``position * 4 + heading``. A *target* is a cell that
    is no floor, in reading order.
    """

    cells: np.ndarray  # (height, width) characters
    position: Int[np.ndarray, "height width"]  # index of the floor cell, -1: no floor
    front: Int[np.ndarray, " nodes"]  # target in front, -1: floor in front
    kind: np.ndarray  # (targets,) characters
    pot: Int[np.ndarray, " targets"]  # index of the pot, -1: no pot
    distance: Int[np.ndarray, "targets nodes"]  # moves and turns until it is faced
    first_step: Int[np.ndarray, "targets nodes"]  # index into _STEPS

    @property
    def num_positions(self) -> int:
        return len(self.front) // 4

    @property
    def num_counters(self) -> int:
        return int((self.kind == "X").sum())

    @property
    def num_pots(self) -> int:
        return int((self.kind == "P").sum())

    @property
    def far(self) -> int:
        """A distance longer than every path: the target cannot be reached."""
        return len(self.front)


@lru_cache(maxsize=32)
def _kitchen(grid: tuple[str, ...]) -> _Kitchen:
    if not grid or len({len(row) for row in grid}) != 1:
        raise ValueError(f"the rows of the map must be of one length: {list(grid)}")
    cells = np.array([list(row) for row in grid])
    is_floor = np.isin(cells, list(" 0123456789"))
    unknown = cells[~is_floor & ~np.isin(cells, list("XPODS"))]
    if unknown.size:
        raise ValueError(
            f"unknown cell {str(unknown[0])!r} in the map; allowed are X P O D S and floor"
        )
    if not is_floor.any() or is_floor[[0, -1]].any() or is_floor[:, [0, -1]].any():
        raise ValueError(f"the map must have floor, and none at its border: {list(grid)}")
    if (cells == "P").sum() > _NUM_POTS:
        raise ValueError(f"the map has more than {_NUM_POTS} pots, the columns only so many")

    position = np.where(is_floor, np.cumsum(is_floor).reshape(cells.shape) - 1, -1)
    target = np.where(is_floor, -1, np.cumsum(~is_floor).reshape(cells.shape) - 1)
    y, x = np.nonzero(is_floor)
    ahead = (y[:, None] + _DY, x[:, None] + _DX)  # each (positions, 4)
    front = target[ahead].reshape(-1)
    kind = cells[~is_floor]
    pot = np.where(kind == "P", np.cumsum(kind == "P") - 1, -1)

    # A move into the floor goes there, a move against anything else only turns.
    here = np.arange(len(y))[:, None]
    after = np.where(is_floor[ahead], position[ahead], here) * 4 + np.arange(4)
    after = np.repeat(after, 4, axis=0)  # (nodes, moves): the heading before does not matter

    far = len(front)
    distance = np.where(front == np.arange(len(kind))[:, None], 0, far)
    while True:
        shorter = np.minimum(distance, 1 + distance[:, after].min(axis=-1))
        if (shorter == distance).all():
            break
        distance = shorter
    first_step = distance[:, after].argmin(axis=-1)
    first_step[distance == 0] = _INTERACT
    first_step[distance == far] = _UNREACHABLE
    return _Kitchen(cells, position, front, kind, pot, distance, first_step)


# Events and intents ---------------------------------------------------------------------------

# (held before, held after, kind of the cell in front) -> event. Counters take and give anything.
_EVENT_RULES = (
    *((_NOTHING, thing, "O", "take onion") for thing in (_ONION, _DISH, _SOUP)),
    *((_NOTHING, thing, "D", "take dish") for thing in (_ONION, _DISH, _SOUP)),
    (_ONION, _NOTHING, "P", "fill pot"),
    (_DISH, _SOUP, "P", "take soup"),
    (_SOUP, _NOTHING, "S", "serve"),
)


def _events(
    table: _Table, kitchen: _Kitchen, front: Int[np.ndarray, "steps 2"]
) -> Int[np.ndarray, "steps 2"]:
    """The event of each player at each step, an index into ``INTENTS``; -1: none."""
    trial = table["trial"]
    held = np.stack([table["p0_held"], table["p1_held"]], axis=1)
    before, after = held[:-1], held[1:]
    changes = (before != after) & (trial[1:] == trial[:-1])[:, None]
    kind = np.where(front >= 0, kitchen.kind[front], " ")[:-1]

    events = np.full(held.shape, -1)
    found = events[:-1]
    for held_before, held_after, cell, intent in _EVENT_RULES:
        rule = (before == held_before) & (after == held_after) & (kind == cell)
        found[changes & rule] = INTENTS.index(intent)
    found[changes & (kind == "X")] = INTENTS.index("use counter")

    unknown = changes & (found < 0)
    if unknown.any():
        row, player = np.argwhere(unknown)[0]
        raise ValueError(
            f"trial {trial[row]}, step {table['step'][row]}: what {PLAYERS[player]} holds changes "
            f"from {_OBJECTS[before[row, player]]} to {_OBJECTS[after[row, player]]} in front of "
            f"{str(kind[row, player])!r}, which is none of: {', '.join(INTENTS)}"
        )
    return events


def _next_event(
    events: Int[np.ndarray, " steps"], trial: Int[np.ndarray, " steps"]
) -> Int[np.ndarray, " steps"]:
    """The first event at or after each step of the same trial; -1: none comes."""
    rows = np.arange(len(events))
    none = len(events) - 1
    upcoming = np.minimum.accumulate(np.where(events >= 0, rows, none)[::-1])[::-1]
    return np.where(trial[upcoming] == trial, events[upcoming], -1)


def _counter_contents(
    table: _Table,
    kitchen: _Kitchen,
    events: Int[np.ndarray, "steps 2"],
    front: Int[np.ndarray, "steps 2"],
) -> Int[np.ndarray, "steps targets"]:
    """What lies on each target at each step, by the events since the start of the trial.

    A player who uses a counter leaves there what he held before: an object, or nothing.
    """
    trial = table["trial"]
    num_steps = len(trial)
    put = np.full((num_steps, len(kitchen.kind)), -1)
    starts = np.r_[True, trial[1:] != trial[:-1]]
    put[starts] = _NOTHING
    for i in range(2):  # of two who use one counter at once, the second player comes later
        rows = np.flatnonzero(events[:, i] == INTENTS.index("use counter"))
        put[rows + 1, front[rows, i]] = table[f"p{i}_held"][rows]
    last = np.maximum.accumulate(np.where(put >= 0, np.arange(num_steps)[:, None], 0), axis=0)
    return np.take_along_axis(put, last, axis=0)


# What a player holds and faces, and the event that an interaction then brings about.
_AFFORDANCE_RULES = (
    (_NOTHING, "onion dispenser", "take onion"),
    (_NOTHING, "dish dispenser", "take dish"),
    (_ONION, "empty pot", "fill pot"),
    (_ONION, "filling pot", "fill pot"),
    (_DISH, "ready pot", "take soup"),
    (_SOUP, "serving window", "serve"),
    *((_NOTHING, f"counter with {thing}", "use counter") for thing in _OBJECTS[1:]),
    *((held, "counter", "use counter") for held in (_ONION, _DISH, _SOUP)),
)


def _affordances() -> Int[np.ndarray, "held facing"]:
    table = np.zeros((len(_OBJECTS), len(_FACING)), dtype=np.int64)
    for held, facing, intent in _AFFORDANCE_RULES:
        table[held, _FACING.index(facing)] = _AFFORDANCES.index(intent)
    return table


# State variables ------------------------------------------------------------------------------


class _Variable(NamedTuple):
    values: Int[np.ndarray, " steps"]
    size: int
    names: tuple[str, ...] | None = None


def _named(values: Int[np.ndarray, " steps"], names: tuple[str, ...]) -> _Variable:
    return _Variable(values, len(names), names)


def _kitchen_variables(table: _Table, kitchen: _Kitchen) -> dict[str, _Variable]:
    variables = {}
    for k in range(_NUM_POTS):
        onions, timer = table[f"pot{k}_onions"], table[f"pot{k}_timer"]
        full = np.where(timer >= _COOKING_TIME, _READY, _COOKING)
        status = np.where(onions == _FULL, full, np.where(onions > 0, _FILLING, _EMPTY))
        if k >= kitchen.num_pots:
            status = np.full_like(status, _NO_POT)
        variables[f"pot{k}_onions"] = _Variable(onions, _FULL + 1)
        variables[f"pot{k}_timer"] = _Variable(timer, _NUM_TIMERS)
        variables[f"pot{k}_status"] = _named(status, _POT_STATUSES)
    variables["pots"] = _unordered_pair(
        variables["pot0_status"].values, variables["pot1_status"].values, _POT_STATUSES
    )
    for name in _COUNTERS:
        variables[name] = _Variable(table[name], kitchen.num_counters + 1)
    return variables


def _unordered_pair(
    first: Int[np.ndarray, " steps"], second: Int[np.ndarray, " steps"], names: tuple[str, ...]
) -> _Variable:
    low, high = np.triu_indices(len(names))
    index = np.empty((len(names), len(names)), dtype=np.int64)
    index[low, high] = index[high, low] = np.arange(len(low))
    pairs = tuple(f"{names[a]}, {names[b]}" for a, b in zip(low, high, strict=True))
    return _named(index[first, second], pairs)


def _player_variables(
    table: _Table,
    kitchen: _Kitchen,
    i: int,
    node: Int[np.ndarray, "steps 2"],
    pot_statuses: Int[np.ndarray, "steps pots"],
    counters: Int[np.ndarray, "steps targets"],
) -> dict[str, _Variable]:
    height, width = kitchen.cells.shape
    x, y, heading, held = (table[f"p{i}_{name}"] for name in ("x", "y", "dir", "held"))
    teammate_ahead = (x + _DX[heading] == table[f"p{1 - i}_x"]) & (
        y + _DY[heading] == table[f"p{1 - i}_y"]
    )
    action, trial = table[f"p{i}_action"], table["trial"]
    last_action = np.r_[_LAST_ACTIONS.index("none"), action[:-1]]
    last_action[1:][trial[1:] != trial[:-1]] = _LAST_ACTIONS.index("none")
    targets = _things(kitchen, pot_statuses, counters)
    facing = _facing(kitchen, node[:, i], teammate_ahead, pot_statuses, counters)
    affordance = _affordances()[held, facing]

    variables = {
        "x": _Variable(x, width),
        "y": _Variable(y, height),
        "position": _Variable(node[:, i] // 4, kitchen.num_positions),
        "heading": _named(heading, _HEADINGS),
        "held": _named(held, _OBJECTS),
        "facing": _named(facing, _FACING),
        "affordance": _named(affordance, _AFFORDANCES),
        "situation": _situation(kitchen, node[:, i], held, affordance),
        "last_action": _named(last_action, _LAST_ACTIONS),
    }
    distances = {}
    for thing in THINGS:
        distance, step = _way(kitchen, node[:, i], targets[thing])
        distances[thing] = distance
        bins = np.where(
            distance == kitchen.far, len(_DISTANCE_BINS) + 1, np.digitize(distance, _DISTANCE_BINS)
        )
        variables[f"distance_to_{thing}"] = _named(bins, _DISTANCES)
        variables[f"step_to_{thing}"] = _named(step, _STEPS)
    four = np.stack([distances[thing] for thing in THINGS[:4]], axis=1)
    nearest = np.where(four.min(axis=1) == kitchen.far, len(THINGS[:4]), four.argmin(axis=1))
    variables["nearest"] = _named(nearest, _NEAREST)
    return {f"{PLAYERS[i]}_{name}": variable for name, variable in variables.items()}


def _situation(
    kitchen: _Kitchen,
    node: Int[np.ndarray, " steps"],
    held: Int[np.ndarray, " steps"],
    affordance: Int[np.ndarray, " steps"],
) -> _Variable:
    places = [
        f"at ({x}, {y}) facing {heading}"
        for y, x in np.argwhere(kitchen.position >= 0)
        for heading in _HEADINGS
    ]
    where = np.where(affordance > 0, affordance - 1, len(INTENTS) + node)
    names = (f"{place}, holding {thing}" for place in (*INTENTS, *places) for thing in _OBJECTS)
    return _named(where * len(_OBJECTS) + held, tuple(names))


def _facing(
    kitchen: _Kitchen,
    node: Int[np.ndarray, " steps"],
    teammate_ahead: Bool[np.ndarray, " steps"],
    pot_statuses: Int[np.ndarray, "steps pots"],
    counters: Int[np.ndarray, "steps targets"],
) -> Int[np.ndarray, " steps"]:
    front = kitchen.front[node]
    # -1 (floor) picks some target here; the last line puts floor and teammate right.
    kind, pot, rows = kitchen.kind[front], kitchen.pot[front], np.arange(len(node))
    facing = np.select(
        [kind == "O", kind == "D", kind == "S", kind == "X"],
        [
            *(_FACING.index(name) for name in _KITCHEN),
            _FACING.index("counter") + counters[rows, front],
        ],
        _FACING.index("empty pot") + pot_statuses[rows, pot] - _EMPTY,
    )
    return np.where(front >= 0, facing, np.where(teammate_ahead, _FACING.index("teammate"), 0))


def _things(
    kitchen: _Kitchen,
    pot_statuses: Int[np.ndarray, "steps pots"],
    counters: Int[np.ndarray, "steps targets"],
) -> dict[str, Bool[np.ndarray, "steps targets"]]:
    """Which targets each of ``THINGS`` names, at each step."""
    of_kind = {cell: np.broadcast_to(kitchen.kind == cell, counters.shape) for cell in "OPDSX"}
    status = pot_statuses[:, kitchen.pot]  # read at pots only
    open_pots = of_kind["P"] & (status < _COOKING)
    furthest = np.max(pot_statuses, axis=1, keepdims=True)
    soup_pots = of_kind["P"] & (status == furthest) & (furthest >= _COOKING)
    empty = counters == _NOTHING
    return {
        "onion_dispenser": of_kind["O"],
        "dish_dispenser": of_kind["D"],
        "pot": of_kind["P"],
        "serving_window": of_kind["S"],
        "pot_to_fill": np.where(open_pots.any(axis=1, keepdims=True), open_pots, of_kind["P"]),
        "pot_with_soup": np.where(soup_pots.any(axis=1, keepdims=True), soup_pots, of_kind["P"]),
        "free_counter": of_kind["X"] & empty,
        "counter_object": of_kind["X"] & ~empty,
    }


def _way(
    kitchen: _Kitchen, node: Int[np.ndarray, " steps"], targets: Bool[np.ndarray, "steps targets"]
) -> tuple[Int[np.ndarray, " steps"], Int[np.ndarray, " steps"]]:
    """Distance to the nearest of the targets, and the first step on the way there.

    Ties go to the first target in reading order, then to the first of up, down, right, left.
    """
    distances = np.where(targets, kitchen.distance[:, node].T, kitchen.far)
    nearest = distances.argmin(axis=1)
    distance = distances.min(axis=1)
    step = np.where(distance < kitchen.far, kitchen.first_step[nearest, node], _UNREACHABLE)
    return distance, step


# The model ------------------------------------------------------------------------------------


def recommended_model(layout: str) -> TeamModel:
    """A team model that decodes intents well with a few labelled trials.

    The players share all tables.

    - Policy: reads the player's ``situation``. All places where an interaction brings about the
      same event are one context, so that a few labelled events teach what each intent ends in;
      elsewhere the cell, heading and holding say which way he goes. Before any data an
      interaction is taken to be much rarer than any other action: who has another intent walks
      past.
    - Transition: reads the own holding, the own next holding, the teammate's holding and the
      pots. While the holding stays the same the prior all but rules out a change of intent; after
      a change of it, any intent may come.
    - Initial: no parents.

    How these were chosen, and what they achieve, is in ``docs/explanation/overcooked.md``.

    Args:
        layout: one of :data:`LAYOUTS`.

    Returns:
        A team model for ``load(layout)``.

    Raises:
        ValueError: if the layout is unknown.

    Example:
        >>> recommended_model("cramped_room").policy.cpt.parents["player_0"]
        ('player_0_situation',)
    """
    from btil.models.cpt import DirichletCPT, Shared
    from btil.models.team import TeamModel

    _check_layout(layout)
    policy = np.where(np.array(ACTIONS) == "interact", 0.01, 1.0)
    same_holding = np.eye(len(_OBJECTS), dtype=bool)[:, :, None, None]
    same_intent = np.eye(len(INTENTS), dtype=bool)
    transition = np.where(same_holding, np.where(same_intent, 1e4, 0.1), 1.0)
    return TeamModel(
        policy=Shared(DirichletCPT(policy, parents={p: (f"{p}_situation",) for p in PLAYERS})),
        transition=Shared(
            DirichletCPT(
                transition[:, :, None, None],  # one axis per parent, then the block
                parents={
                    p: (f"{p}_held", f"next_{p}_held", f"{other}_held", "pots")
                    for p, other in (PLAYERS, PLAYERS[::-1])
                },
            )
        ),
        initial=Shared(DirichletCPT(1.0)),
    )
