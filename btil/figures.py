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

_FIGURE_STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "figure.dpi": 130,
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
