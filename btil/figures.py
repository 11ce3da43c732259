"""How figures look: one palette, one style, and figures that nothing has to close."""

import shutil
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from btil.files import check_writable, replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette; https://jfly.uni-koeln.de/color/
ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = (
    "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip

# Categories in order. Each has a hatch and a marker too, so that they differ in grey as well.
CATEGORY_COLORS = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, "#F0E442", "0.6")
CATEGORY_HATCHES = ("", "///", "...", "xxx", "---", "\\\\\\", "+++", "ooo")
CATEGORY_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

# Inches that a phone shows at a size to read, and letters of a title in them.
_NARROW, _LONGEST_TITLE = 3.8, 46

_FIGURE_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.dpi": 130,
    "hatch.linewidth": 0.5,
    # Names in the data are names, also with a dollar sign in them.
    "text.parse_math": False,
}


@contextmanager
def figure_style() -> Iterator[None]:
    """The look of all figures, while they are drawn."""
    import matplotlib

    with matplotlib.rc_context(_FIGURE_STYLE):
        yield


@contextmanager
def gif_of(
    figure: "Figure", path: str | PathLike[str], frames_per_second: int, dpi: int
) -> Iterator[Callable[[], None]]:
    """Write an animated GIF of a figure that changes; whole or not at all.

    Args:
        figure: The figure.
        path: The file, ending in .gif.
        frames_per_second: Frames a second.
        dpi: Dots per inch.

    Yields:
        A function that takes a frame of the figure as it is.

    Raises:
        ValueError: If the ending is another one.
        OSError: If the file cannot be written.
    """
    from matplotlib.animation import PillowWriter

    check_writable(path, (".gif",))
    with replacing(path) as temporary, TemporaryDirectory() as folder:
        writer = PillowWriter(fps=frames_per_second)
        film = Path(folder) / "film.gif"  # the writer tells the format by the ending
        with writer.saving(figure, film, dpi=dpi):
            yield writer.grab_frame
        shutil.copyfile(film, temporary)


def narrow(figure: "Figure") -> None:
    """Turn a figure into one for a phone: panels below each other, long titles in lines.

    Panels beside which names are written (ArviZ's forests) stay side by side.
    """
    from matplotlib.gridspec import GridSpec

    placed = [(axes, axes.get_subplotspec()) for axes in figure.axes]
    panels = [(axes, place) for axes, place in placed if place is not None]
    grids = {place.get_gridspec() for _, place in panels}
    height = figure.get_figheight()
    if len(grids) == 1 and grids.copy().pop().ncols > 1 and all(a.axison for a, _ in panels):
        ratios = np.asarray(grids.pop().get_height_ratios(), float)
        shares = [ratios[p.rowspan.start : p.rowspan.stop].sum() / ratios.sum() for _, p in panels]
        stack = GridSpec(len(panels), 1, figure=figure, height_ratios=shares)
        for k, (axes, _) in enumerate(panels):
            axes.set_subplotspec(stack[k])
        height *= sum(shares)
    figure.set_size_inches(_NARROW, height)
    with figure_style():
        for axes, _ in panels:
            for loc in ("left", "center", "right"):
                axes.set_title(textwrap.fill(axes.get_title(loc=loc), _LONGEST_TITLE), loc=loc)
        for legend in list(figure.legends):
            names = [text.get_text() for text in legend.get_texts()]
            columns = _LONGEST_TITLE // (max(map(len, names), default=0) + 8)
            legend.remove()
            figure.legend(
                [handle for handle in legend.legend_handles if handle is not None],
                names,
                loc="outside lower center",
                ncols=max(1, min(3, columns)),
            )
    figure.set_layout_engine("constrained")


def new_figure(width: float, height: float) -> "Figure":
    """A figure that no global registry knows of, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
