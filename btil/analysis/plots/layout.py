"""Axes, legends and colours that the plots have in common."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from btil.figures import BLUE, GREEN, VERMILION, new_figure

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

ROLES = {"policy": (BLUE, "o"), "transition": (VERMILION, "s"), "initial": (GREEN, "^")}


def make_axes(
    given: Any, number: int, columns: int, size: tuple[float, float]
) -> tuple["matplotlib.figure.Figure", list["matplotlib.axes.Axes"]]:
    """The axes given, or so many new ones in a grid; `size` is that of one of them."""
    if given is None:
        columns = min(columns, number)
        lines = math.ceil(number / columns)
        figure = new_figure(columns * size[0], lines * size[1])
        grid = figure.subplots(lines, columns, squeeze=False).ravel().tolist()
        for unused in grid[number:]:
            unused.remove()
        return figure, grid[:number]
    axes = np.atleast_1d(np.asarray(given, object)).ravel().tolist()
    if len(axes) != number:
        raise ValueError(f"axes: {len(axes)} given, {number} are needed")
    return axes[0].get_figure(root=True), axes


def legend_below(figure: Any, own: bool, axes: Any, handles: Sequence[Any]) -> None:
    """A legend outside the data; only a figure of our own can make room for it by itself."""
    if handles and own:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    elif handles:
        axes.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(handles)
        )
