"""Pictures of the tables: our numbers with their spread, the paper's beside them."""

import math
from typing import TYPE_CHECKING, Any

from btil.analysis.reproduction.experiments import HAMMING, JS
from btil.analysis.reproduction.paper_tables import written
from btil.analysis.reproduction.targets import Layout
from btil.figures import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, figure_style, new_figure

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_COLORS = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY)
_MARKERS = ("o", "s", "^", "v", "P", "X")
_COLUMNS = 2
_PANEL_WIDTH, _LABEL_WIDTH = 4.2, 2.6
_LINE_HEIGHT = 0.34


def plot_numbers(table: "pd.DataFrame", layout: Layout) -> "Figure":
    """Every number of a table as a point with its spread; the paper's as a hollow diamond.

    Args:
        table: From `summarise`.
        layout: What a panel, a line and a colour is.

    Returns:
        A figure.
    """
    from matplotlib.lines import Line2D

    if layout.agents is not None:
        table = table[table["agent"].isin(layout.agents)]
    panels = list(table.groupby(list(layout.panel), sort=False))
    colors = list(dict.fromkeys(table[layout.color]))
    with figure_style():
        columns = min(_COLUMNS, len(panels))
        lines = math.ceil(len(panels) / columns)
        # Panels share their lines, also those of which one has no number.
        every = list(dict.fromkeys(table[list(layout.line)].itertuples(index=False, name=None)))
        most = len(every)
        width = _PANEL_WIDTH * columns + (_LABEL_WIDTH if columns == 1 else 0)
        figure = new_figure(width, (0.9 + _LINE_HEIGHT * most) * lines + 0.5)
        axes = figure.subplots(lines, columns, squeeze=False, sharey=True).ravel().tolist()
        for unused in axes[len(panels) :]:
            unused.remove()
        for panel, (names, part) in zip(axes, panels, strict=False):
            _draw_panel(panel, part, layout, colors, every)
            *domain, metric = map(written, map(str, names))
            panel.set_title(", ".join(domain), loc="left")
            panel.set_xlabel(metric)
        handles: list[Any] = [
            Line2D([], [], color=_COLORS[i], marker=_MARKERS[i], linestyle="", label=written(name))
            for i, name in enumerate(colors)
        ]
        handles.append(Line2D([], [], color="0.4", label="± standard deviation over trials"))
        if table["paper"].notna().any():
            handles.append(_diamond("the paper", "0.4", Line2D))
        figure.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)))
    return figure


def _draw_panel(
    axes: Any,
    part: "pd.DataFrame",
    layout: Layout,
    colors: list[str],
    names: list[tuple[str, ...]],
) -> None:
    for line in part.to_dict("records"):
        position = names.index(tuple(line[name] for name in layout.line))
        i = colors.index(line[layout.color])
        height = position + (i - (len(colors) - 1) / 2) * 0.6 / len(colors)
        _draw_number(axes, line["mean"], line["sd"], height, _COLORS[i], _MARKERS[i], True)
        _draw_number(axes, line["paper"], line["paper_sd"], height, _COLORS[i], "D", False)
    labels = [", ".join(written(text) for text in name if text) for name in names]
    axes.set_yticks(range(len(names)), labels)
    axes.set_ylim(len(names) - 0.5, -0.5)
    if (part["mean"] - part["sd"].fillna(0)).min() >= 0:
        axes.set_xlim(left=0)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)


def _draw_number(
    axes: Any, mean: float, sd: float, height: float, color: str, marker: str, filled: bool
) -> None:
    if math.isnan(mean):
        return
    axes.errorbar(
        mean, height, xerr=None if math.isnan(sd) else sd, color=color, marker=marker,
        markersize=4.5 if filled else 6, markerfacecolor=color if filled else "none",
        linewidth=1.2 if filled else 0.7, linestyle="", clip_on=False,
    )  # fmt: skip


def _diamond(label: str, color: str, line: Any) -> Any:
    return line([], [], color=color, marker="D", markerfacecolor="none", linestyle="", label=label)


def plot_supervision(trials: "pd.DataFrame", table: "pd.DataFrame") -> "Figure":
    """Errors against the number of labelled demonstrations, a line per training set size d.

    A line begins with few labelled and ends, at the black dashed line, where all d are: points of
    different lines above one another have the same labels and more or fewer unlabelled
    demonstrations. The mean of both agents; bars are standard deviations over trials; hollow
    diamonds what the paper's tables tell.

    Args:
        trials: From `trials_table`.
        table: From `summarise`.

    Returns:
        A figure: JS divergence above, Hamming distance below; a column per domain and setting.
    """
    from matplotlib.lines import Line2D

    keys = ["domain", "setting"]
    point = ["metric", "num_demos", "num_labelled"]
    groups = list(trials.groupby(keys, sort=False))
    sizes = sorted(trials["num_demos"].unique().tolist())
    with figure_style():
        figure = new_figure(2.9 * len(groups) + 0.4, 5.4)
        axes = figure.subplots(2, len(groups), squeeze=False, sharex=True, sharey="row")
        for column, (names, part) in enumerate(groups):
            means = part.groupby([*point, "trial"])["value"].mean().groupby(point)
            ours = means.agg(["mean", "std"]).reset_index()
            here = (table["domain"] == names[0]) & (table["setting"] == names[1])
            theirs = (
                table[here & table["paper"].notna()].groupby(point)["paper"].mean().reset_index()
            )
            for axis, metric in zip(axes[:, column], (JS, HAMMING), strict=True):
                _draw_supervision(axis, ours[ours["metric"] == metric], sizes)
                known = theirs[theirs["metric"] == metric]
                for demos, labelled, value in known[[*point[1:], "paper"]].itertuples(index=False):
                    color = _COLORS[sizes.index(demos) % len(_COLORS)]
                    axis.plot(labelled, value, "D", color=color, markerfacecolor="none")
            axes[0, column].set_title(", ".join(map(written, map(str, names))), loc="left")
            axes[1, column].set_xlabel("labelled demonstrations l")
        for row in axes:
            # After everything is drawn, so that nothing is cut off above.
            row[0].set_ylim(bottom=0)
        axes[0, 0].set_ylabel("JS divergence of the policies")
        axes[1, 0].set_ylabel("Hamming distance, decoding")
        handles: list[Any] = [
            Line2D([], [], color=_COLORS[i % len(_COLORS)], marker=_MARKERS[i], label=f"d = {size}")
            for i, size in enumerate(sizes)
        ]
        handles += [
            Line2D([], [], color="black", linestyle="--", linewidth=0.9, label="all labelled"),
            _diamond("the paper", "0.4", Line2D),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _draw_supervision(axes: Any, ours: "pd.DataFrame", sizes: list[int]) -> None:
    for i, size in enumerate(sizes):
        line = ours[ours["num_demos"] == size]
        # With one trial there is no standard deviation, and no bar.
        axes.errorbar(
            line["num_labelled"], line["mean"], yerr=line["std"].fillna(0), capsize=2,
            color=_COLORS[i % len(_COLORS)], marker=_MARKERS[i], markersize=4, linewidth=1.2,
        )  # fmt: skip
    full = ours[ours["num_demos"] == ours["num_labelled"]]
    axes.plot(full["num_labelled"], full["mean"], color="black", linestyle="--", linewidth=0.9)
    axes.set_xscale("log")
    ticks = sorted(ours["num_labelled"].unique().tolist())
    # More would run into each other.
    shown = [tick for tick in ticks if str(tick).rstrip("0") in ("1", "2", "5")] or ticks
    axes.set_xticks(shown, [str(tick) for tick in shown])
    axes.minorticks_off()
    axes.grid(axis="y", color="0.9")
    axes.set_axisbelow(True)
