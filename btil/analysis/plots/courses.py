"""How methods come near a reference as time goes on."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from btil.analysis.plots.layout import category_handles, legend_below, look, make_axes
from btil.arguments import check_values
from btil.figures import figure_style

if TYPE_CHECKING:
    import matplotlib.figure

    from btil.analysis.efficiency import Course


def plot_courses(
    courses: Mapping[str, "Course"], accuracy: float, ax: Any = None
) -> "matplotlib.figure.Figure":
    """Mean error of the probabilities in use against seconds, both on logarithmic scales.

    A line per method with chains, a mark where one without ends; dashed the accuracy asked for.

    Args:
        courses: {name: course}.
        accuracy: The error that is small enough.
        ax: Matplotlib axes; None: a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no course, or `accuracy` is not between 0 and 1.
    """
    from matplotlib.lines import Line2D
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    check_values({"accuracy": accuracy})
    if not courses:
        raise ValueError("courses: there is no method to draw")
    with figure_style():
        figure, (axes,) = make_axes(ax, 1, 1, (5.6, 3.4))
        axes.axhline(accuracy, color="0.4", lw=0.9, ls="--", zorder=0)
        values = [accuracy]
        for k, one in enumerate(courses.values()):
            shown = look(k)
            # Agreement to rounding has no place on a logarithmic scale.
            error = np.maximum(one.error, accuracy / 1000)
            axes.plot(one.seconds, error, color=shown.color, lw=1.2)
            axes.plot(one.seconds[-1:], error[-1:], color=shown.color, marker=shown.marker, ms=5)
            values += error.tolist()
        axes.set(xscale="log", yscale="log", xlabel="seconds")
        axes.set_ylabel("mean difference, rows in use")
        axes.set_ylim(min(values) / 1.5, max(values) * 1.5)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            axis.set_minor_formatter(NullFormatter())
        handles = category_handles(courses, size=5.0)
        handles.append(Line2D([], [], color="0.4", lw=0.9, ls="--", label=f"{accuracy:g}"))
        legend_below(figure, ax is None, axes, handles)
    return figure
