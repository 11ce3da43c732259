"""Axes, legends and colours that the plots have in common."""

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from btil.figures import (
    BLUE,
    CATEGORY_COLORS,
    CATEGORY_HATCHES,
    CATEGORY_MARKERS,
    GREEN,
    VERMILION,
    new_figure,
)

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

ROLES = {"policy": (BLUE, "o"), "transition": (VERMILION, "s"), "initial": (GREEN, "^")}


class Look(NamedTuple):
    """How the k-th of some categories is drawn.

    Attributes:
        color: A colour-blind safe one.
        hatch: For areas, so that they differ without colour.
        marker: For points, for the same reason.
    """

    color: str
    hatch: str
    marker: str


def look(number: int) -> Look:
    """Colour, hatch and marker of a category; after eight colours come again with other hatches."""
    size = len(CATEGORY_COLORS)
    shifted = (number + number // size) % size
    return Look(
        CATEGORY_COLORS[number % size], CATEGORY_HATCHES[shifted], CATEGORY_MARKERS[shifted]
    )


def make_axes(
    given: Any,
    number: int,
    columns: int,
    size: tuple[float, float],
    height_ratios: Sequence[float] | None = None,
) -> tuple["matplotlib.figure.Figure", list["matplotlib.axes.Axes"]]:
    """The axes given, or so many new ones in a grid; `size` is that of one of them, in inches.

    Raises:
        ValueError: If another number of axes is given.
    """
    if given is None:
        columns = min(columns, number)
        lines = math.ceil(number / columns)
        figure = new_figure(columns * size[0], lines * size[1])
        grid = figure.subplots(lines, columns, squeeze=False, height_ratios=height_ratios).ravel()
        for unused in grid[number:]:
            unused.remove()
        return figure, grid[:number].tolist()
    axes = np.atleast_1d(np.asarray(given, object)).ravel().tolist()
    if len(axes) != number:
        raise ValueError(f"axes: {len(axes)} given, {number} are needed")
    return axes[0].get_figure(root=True), axes


def category_handles(names: Iterable[str], size: float = 4.0) -> list[Any]:
    """What a legend shows of categories: their names, by their colours and marks."""
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], color=look(k).color, marker=look(k).marker, ms=size, label=name)
        for k, name in enumerate(names)
    ]


def legend_below(
    figure: Any, own: bool, axes: Any, handles: Sequence[Any], columns: int = 8
) -> None:
    """A legend outside the data; only a figure of our own can make room for it by itself."""
    columns = min(columns, max(1, len(handles)))
    if handles and own:
        figure.legend(handles=handles, loc="outside lower center", ncols=columns)
    elif handles:
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=columns)
