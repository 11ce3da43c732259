"""How figures look: one palette, one style, and figures that nothing has to close."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

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


def new_figure(width: float, height: float) -> "Figure":
    """A figure that no global registry knows of, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")
