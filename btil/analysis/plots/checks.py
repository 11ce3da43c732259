"""Posterior predictive checks: what was seen among what the model predicts."""

from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from btil.analysis.plots.layout import legend_below
from btil.figures import BLUE, VERMILION, figure_style, new_figure

if TYPE_CHECKING:
    import matplotlib.figure

    from btil.analysis.predictive import PredictiveCheck

# Inches of a line, letters of a title.
_ROW = 0.19
_TITLE = 46


class _Panel(NamedTuple):
    group: str
    agent: str
    given: str
    table: Any


def plot_predictive_check(check: "PredictiveCheck", axes: Any = None) -> "matplotlib.figure.Figure":
    """What was seen against what the model predicts, a line per statistic.

    A panel for each kind of statistic, agent and context of its policy. Grey bars are central 89%
    intervals of the replicates, ticks their means; dots what was seen, with the spread over
    posterior draws where mental states are inferred. Red squares are surprising: less than 1% of
    the replicates lie beyond them.

    Args:
        check: From `posterior_predictive_check`.
        axes: As many Matplotlib axes as there are panels; None: a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If another number of axes is given.
    """
    from matplotlib.lines import Line2D

    table = check.table.dropna(subset=["observed", "predicted"])
    panels = [
        _Panel(group, str(agent), str(given), own)
        for group in check.units
        for (agent, given), own in table[table["group"] == group].groupby(
            ["agent", "given"], sort=False
        )
    ]
    with figure_style():
        figure, where = _panels(axes, panels)
        for panel, (group, agent, given, own) in zip(where, panels, strict=True):
            place = np.arange(len(own))
            panel.barh(
                place, own["high"] - own["low"], left=own["low"], height=0.66, color="0.84", lw=0
            )
            panel.scatter(own["predicted"], place, marker="|", s=50, color="0.4", lw=1.2)
            for surprising, color, marker in ((False, BLUE, "o"), (True, VERMILION, "s")):
                chosen = (own["surprising"] == surprising).to_numpy()
                panel.errorbar(
                    own["observed"][chosen],
                    place[chosen],
                    xerr=own["sd"][chosen],
                    fmt=marker,
                    ms=4,
                    lw=1,
                    color=color,
                )
            panel.set_yticks(place, own["statistic"])
            panel.set_ylim(len(own) - 0.4, -0.6)
            panel.tick_params(axis="y", length=0)
            seen, sd = own["observed"].to_numpy(), own["sd"].to_numpy()
            ends = np.concatenate([own["low"], own["high"], seen - sd, seen + sd])
            margin = 0.05 * max(np.ptp(ends), 1e-3)
            panel.set_xlim(ends.min() - margin, ends.max() + margin)
            panel.set(xlabel=check.units[group])
            of = group if group != "columns" else given
            context = f", given {given}" if given and group != "columns" else ""
            title = fill(f"{agent}: {of}{context}", _TITLE)
            panel.set_title(title, loc="left")
        handles = [
            Line2D([], [], color=BLUE, marker="o", ms=4, lw=0, label="seen"),
            Line2D([], [], color=VERMILION, marker="s", ms=4, lw=0, label="seen, surprising"),
            Line2D([], [], color="0.84", lw=6, label="89% of the replicates"),
            Line2D([], [], color="0.4", marker="|", ms=8, lw=0, label="their mean"),
        ]
        columns = 4 if len({one.agent for one in panels} - {"team"}) > 1 else 2
        legend_below(figure, axes is None, where[0], handles, columns)
    return figure


def _panels(given: Any, panels: list[_Panel]) -> tuple[Any, list[Any]]:
    """Axes given, or a column of panels per agent, each as high as it has lines."""
    if given is not None:
        axes = np.atleast_1d(np.asarray(given, object)).ravel().tolist()
        if len(axes) != len(panels):
            raise ValueError(f"axes: {len(axes)} given, {len(panels)} are needed")
        return axes[0].get_figure(root=True), axes
    agents = list(dict.fromkeys(one.agent for one in panels if one.agent != "team"))
    # The k-th context of one agent stands beside the k-th of another.
    numbers = [
        sum((one.group, one.agent) == (other.group, other.agent) for other in panels[:place])
        for place, one in enumerate(panels)
    ]
    lines = [(one.group, number) for one, number in zip(panels, numbers, strict=True)]
    rows = list(dict.fromkeys(lines))
    heights = [
        0.5 + max(len(one.table) for one, line in zip(panels, lines, strict=True) if line == row)
        for row in rows
    ]
    figure = new_figure(max(5.0, 4.4 * len(agents)), _ROW * sum(heights) + 0.75 * len(rows) + 0.5)
    grid = figure.subplots(len(rows), len(agents), squeeze=False, height_ratios=heights)
    chosen = [
        grid[rows.index(line), agents.index(one.agent) if one.agent in agents else 0]
        for one, line in zip(panels, lines, strict=True)
    ]
    for unused in grid.ravel():
        if unused not in chosen:
            unused.remove()
    return figure, chosen
