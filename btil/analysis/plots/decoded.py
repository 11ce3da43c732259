"""Beliefs about mental states: how sure, and how often right."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from btil.analysis.calibration.ranks import Reliability, bins_of
from btil.analysis.plots.layout import category_handles, legend_below, look, make_axes
from btil.figures import figure_style

if TYPE_CHECKING:
    import matplotlib.figure


def plot_reliability(
    reliabilities: Mapping[str, Mapping[str, Reliability]], axes: Any = None
) -> "matplotlib.figure.Figure":
    """Are steps said to be 80% sure right 80% of the time? A column of two panels per agent.

    Above, the share of labelled steps whose most probable latent is the true one, against how
    probable it was said to be; bars are 95% intervals that allow for steps of one episode being
    right or wrong together. Below the diagonal a method is too sure. Underneath, how many of the
    steps are how sure: the further to the right, the sharper.

    Args:
        reliabilities: {agent: {name: counts}}, as from `reliability_by_episode`.
        axes: Twice as many Matplotlib axes as agents, the upper ones first; None: a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If there is nothing to draw, or another number of axes is given.
    """
    if not any(reliabilities.values()):
        raise ValueError("reliabilities: there is no agent with labelled steps")
    names = list(dict.fromkeys(name for own in reliabilities.values() for name in own))
    number = len(reliabilities)
    with figure_style():
        figure, panels = make_axes(axes, 2 * number, number, (3.4, 2.3), height_ratios=(3.0, 1.0))
        for column, (agent, own) in enumerate(reliabilities.items()):
            above, below = panels[column], panels[number + column]
            draw_reliability(above, below, own, names)
            above.set(xlim=(0, 1.02), ylim=(0, 1.02), title=agent)
            below.set(xlim=(0, 1.02), ylim=(0, None), xlabel="probability of the likeliest state")
        panels[0].set_ylabel("share right")
        panels[number].set_ylabel("share of steps")
        legend_below(figure, axes is None, panels[0], category_handles(names))
    return figure


def draw_reliability(
    above: Any, below: Any, counts: Mapping[str, Reliability], names: Sequence[str]
) -> None:
    """How often right by how sure, and below it how many steps are how sure.

    Args:
        above: Matplotlib axes.
        below: Further ones.
        counts: {name: counts}; those without any step are passed over.
        names: All names in their order, which their colours and marks follow.
    """
    above.plot([0, 1], [0, 1], color="0.6", lw=0.8, zorder=0)
    for name, counted in counts.items():
        steps = counted.steps.sum(0)
        if not steps.sum():
            continue
        shown = look(names.index(name))
        bins = bins_of(counted)
        ends = np.array([(one.right - one.lower, one.upper - one.right) for one in bins])
        above.errorbar(
            [one.said for one in bins],
            [one.right for one in bins],
            np.maximum(ends.T, 0.0),  # of rounding alone
            color=shown.color,
            marker=shown.marker,
            ms=4,
            lw=1,
        )
        tenths = steps.reshape(10, -1).sum(1)
        below.stairs(tenths / steps.sum(), np.arange(11) / 10, color=shown.color, lw=1.2)
