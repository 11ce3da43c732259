"""Maps: walls, items, the goal and where agents start, drawn as text."""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Int

ACTIONS = ("up", "down", "left", "right", "stay", "hold")
UP, DOWN, LEFT, RIGHT, STAY, HOLD = range(len(ACTIONS))
_STEPS = ((0, -1), (0, 1), (-1, 0), (1, 0), (0, 0), (0, 0))  # (x, y) of each action

AGENTS = ("alice", "rob")
_START_LETTERS = ("A", "R")
_WALL, _FREE, _GOAL = "#", ".", "G"

MAPS = {
    # The map of the paper's experiments.
    "paper": """
        0 . . # # . .
        . . . . . . .
        . # # . . # A
        . 1 # . . # G
        . . # . . # R
        . . . . . . .
        2 . . # # . .
    """,
    "lesson": """
        0 . . . .
        . # . . A
        . # . . G
        . # . . R
        1 . 2 . .
    """,
    "tiny": """
        0  . .
        A  # #
        GR 1 #
    """,
    # Two rooms with a door between them, and items on both sides.
    "rooms": """
        0 . # . .
        . . # . A
        . . . . G
        . . # . R
        1 . # . 2
    """,
}


@dataclass(frozen=True, eq=False)
class Grid:
    """A map. Positions are (x, y), x to the right and y downwards, both from 0.

    Attributes:
        width: Number of columns.
        height: Number of rows.
        walls: Positions of the walls.
        cells: Position of every free cell. Cells are numbered column by column, from the top of
            each column down, walls left out.
        neighbors: Where an empty-handed step leads: cell and action to cell. Off the map or
            against a wall leaves an agent where it is; so do "stay" and "hold".
        items: Cell in which each item lies at first, its origin.
        goal: Cell of the goal.
        starts: Cell in which each agent starts.
    """

    width: int
    height: int
    walls: tuple[tuple[int, int], ...]
    cells: Int[np.ndarray, "cells 2"]
    neighbors: Int[np.ndarray, "cells actions"]
    items: tuple[int, ...]
    goal: int
    starts: tuple[int, ...]

    @property
    def num_cells(self) -> int:
        """Number of free cells."""
        return len(self.cells)

    @property
    def num_items(self) -> int:
        """Number of items."""
        return len(self.items)

    def distance(
        self, first: Int[np.ndarray, " k"], second: Int[np.ndarray, " k"] | int
    ) -> Int[np.ndarray, " k"]:
        """Manhattan distance between cells, walls ignored."""
        return np.abs(self.cells[first] - self.cells[second]).sum(-1)


def read_map(map: Any) -> Grid:
    r"""Read a map by its name or from its drawing.

    A drawing has one line per row and one token per cell, separated by blanks: ``#`` is a wall,
    ``.`` a free cell; any other token is made of ``A`` and ``R`` (where alice and rob start),
    ``G`` (the goal) and a digit (the origin of the item of that number), such as ``GR`` where rob
    starts at the goal.

    Args:
        map: "paper", "lesson", "tiny", "rooms", or a drawing.

    Returns:
        The map.

    Raises:
        ValueError: If the name is unknown or the drawing cannot be used, naming the place.

    Example:
        >>> read_map("A 0 .\n R # G").cells.tolist()
        [[0, 0], [0, 1], [1, 0], [2, 0], [2, 1]]
    """
    if not isinstance(map, str):
        raise ValueError(f"map must be a name or a drawing, got {type(map).__name__}")
    if len(map.split()) == 1 and map.strip() not in MAPS:
        raise ValueError(f"unknown map {map!r}; there are {', '.join(MAPS)}, or draw your own")
    drawing = MAPS.get(map.strip(), map)
    return _read_rows(tuple(tuple(line.split()) for line in drawing.splitlines() if line.strip()))


# The same drawing gives the same object.
@lru_cache(maxsize=16)
def _read_rows(rows: tuple[tuple[str, ...], ...]) -> Grid:
    if not rows:
        raise ValueError("map: the drawing is empty")
    width = len(rows[0])
    for y, row in enumerate(rows):
        if len(row) != width:
            raise ValueError(
                f"map: row {y} has {len(row)} cells and row 0 has {width}; they must be equal"
            )
    places = _places(rows)
    walls = tuple((x, y) for x in range(width) for y in range(len(rows)) if rows[y][x] == _WALL)
    cells = np.array(
        [(x, y) for x in range(width) for y in range(len(rows)) if rows[y][x] != _WALL],
        np.int64,
    )
    index = {(x, y): cell for cell, (x, y) in enumerate(cells.tolist())}
    neighbors = np.array(
        [
            [index.get((x + dx, y + dy), cell) for dx, dy in _STEPS]
            for (x, y), cell in index.items()
        ],
        np.int64,
    )
    num_items = sum(token.isdigit() for token in places)
    grid = Grid(
        width=width,
        height=len(rows),
        walls=walls,
        cells=cells,
        neighbors=neighbors,
        items=tuple(index[places[str(k)]] for k in range(num_items)),
        goal=index[places[_GOAL]],
        starts=tuple(index[places[letter]] for letter in _START_LETTERS),
    )
    _check_reachable(grid, places, index)
    return grid


def _places(rows: tuple[tuple[str, ...], ...]) -> dict[str, tuple[int, int]]:
    """Where each letter and digit stands."""
    places: dict[str, tuple[int, int]] = {}
    known = {*_START_LETTERS, _GOAL}
    for y, row in enumerate(rows):
        for x, token in enumerate(row):
            if token in (_WALL, _FREE):
                continue
            for mark in token:
                if mark not in known and mark not in "0123456789":
                    raise ValueError(
                        f"map: unknown token {token!r} at (x={x}, y={y}); allowed are {_WALL!r}, "
                        f"{_FREE!r}, or letters of A, R, G and the number of an item"
                    )
                if mark in places:
                    raise ValueError(
                        f"map: {mark!r} is at {places[mark]} and again at (x={x}, y={y})"
                    )
                places[mark] = (x, y)
            numbers = [mark for mark in token if mark.isdigit()]
            if len(numbers) > 1 or (numbers and _GOAL in token):
                raise ValueError(
                    f"map: {token!r} at (x={x}, y={y}); an item needs a cell of its own, which is "
                    "not the goal"
                )
    for mark in (*_START_LETTERS, _GOAL, "0"):
        if mark not in places:
            raise ValueError(
                f"map: {mark!r} is missing; a drawing needs A, R, G and at least item 0"
            )
    numbers = sorted(mark for mark in places if mark.isdigit())
    if numbers != [str(k) for k in range(len(numbers))]:
        raise ValueError(
            f"map: items are numbered {', '.join(numbers)}; they must be numbered from 0 without "
            "a gap"
        )
    return places


def _check_reachable(
    grid: Grid, places: dict[str, tuple[int, int]], index: dict[tuple[int, int], int]
) -> None:
    reached = {grid.starts[0]}
    queue = deque(reached)
    while queue:
        for cell in grid.neighbors[queue.popleft()].tolist():
            if cell not in reached:
                reached.add(cell)
                queue.append(cell)
    for mark, place in places.items():
        if index[place] not in reached:
            raise ValueError(
                f"map: {mark!r} at (x={place[0]}, y={place[1]}) cannot be reached from alice's "
                f"start at {places['A']}"
            )


ORIGIN = 0  # state of an item that lies where it lay at first
NOBODY = -1  # no item, where an item's number is expected
