"""What was learned: policy rows, and how latents move."""

import itertools
import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from btil.analysis.metrics import agent_position
from btil.analysis.plots.layout import legend_below, look, make_axes
from btil.analysis.plots.rows import cell_intervals, context_words, read_counts
from btil.arguments import check_index, check_values
from btil.figures import BLUE, figure_style
from btil.models.team import Table, refuse_without_actions
from btil.posterior.beliefs import Posterior

if TYPE_CHECKING:
    import matplotlib.figure

_PANELS = ("row", "latent", "context")
# Rows that the data read less often are hardly more than their prior, and drawn grey.
_FEW_VISITS = 1.0


class _Rows(NamedTuple):
    """Some rows of a table, (contexts, latents, values) each, and how often they are read.

    Attributes:
        mean: Posterior means.
        low: Lower ends of the central 89% intervals.
        high: Upper ends.
        prior: Prior means.
        visits: Expected number of reads, (contexts, latents).
    """

    mean: Float[np.ndarray, "contexts latents values"]
    low: Float[np.ndarray, "contexts latents values"]
    high: Float[np.ndarray, "contexts latents values"]
    prior: Float[np.ndarray, "contexts latents values"]
    visits: Float[np.ndarray, "contexts latents"]


def _read_rows(
    posterior: Posterior,
    role: str,
    agent: str,
    contexts: Sequence[int] | None,
    max_contexts: int,
    by_changes: bool = False,
) -> tuple[Table, list[int], _Rows]:
    """A table of an agent, the contexts asked for or that matter most, and their rows.

    Most matter those read most often, or those in which latents change most often.
    """
    check_values({"max_contexts": max_contexts})
    agent_position(posterior.demos, agent)
    table = posterior.bound.table(role, agent)
    number = len(table.contexts.rows)
    visits = read_counts(posterior, role, agent)
    prior = table.prior_mean()
    known = table.name in posterior.result.rows
    mean = posterior.result.rows[table.name].mean() if known else prior
    if contexts is None:
        weights = visits
        if by_changes:
            weights = visits * (1 - np.diagonal(mean, axis1=-2, axis2=-1))
        chosen = np.argsort(-weights.sum(1), kind="stable")[:max_contexts].tolist()
    else:
        name = f"contexts, rows of posterior.contexts({agent!r}, {role!r})"
        chosen = [check_index(name, context, number) for context in contexts]
    if not chosen:
        raise ValueError("contexts: none are given; at least one is needed")
    if known:
        block = math.prod(table.contexts.row_shape)
        cells = (np.array(chosen)[:, None] * block + np.arange(block)).ravel()
        low, high = (
            bound.reshape(len(chosen), *table.contexts.row_shape)
            for bound in cell_intervals(posterior, table.name, cells)
        )
    else:
        low = high = prior[chosen]
    return table, chosen, _Rows(mean[chosen], low, high, prior[chosen], visits[chosen])


def plot_policy_rows(
    posterior: Posterior,
    agent: str,
    contexts: Sequence[int] | None = None,
    latents: Sequence[int] | None = None,
    panels: str = "row",
    axes: Any = None,
    max_contexts: int = 3,
) -> "matplotlib.figure.Figure":
    """What an agent does, as small multiples: P(action | context, latent) with 89% intervals.

    Points are posterior means, lines central 89% intervals, grey strokes prior means. n is the
    expected number of steps at which the agent read a row. Rows read less than once, which are
    hardly more than their prior, are grey, or left out where several rows share a panel.

    Args:
        posterior: What was learned of the team.
        agent: Name of the agent.
        contexts: Rows of `posterior.contexts(agent, "policy")`; None: those that the agent read
            most often.
        latents: Indices of the latents; None: those that the agent held at least once, in
            expectation, in one of the contexts.
        panels: What has a panel of its own: "row" each context and latent, "context" each context
            with all latents in it, "latent" each latent with all contexts in it.
        axes: As many Matplotlib axes as there are panels; None: a new figure.
        max_contexts: How many contexts are chosen where none are given.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no such agent, context, latent or kind of panels.

    Example:
        >>> plot_policy_rows(posterior, "ann", panels="context")  # doctest: +SKIP
    """
    if panels not in _PANELS:
        raise ValueError(f"panels must be one of {', '.join(_PANELS)}, got {panels!r}")
    if agent in posterior.demos.agents:
        refuse_without_actions(posterior.demos, "plot_policy_rows", agent)
    _, chosen, rows = _read_rows(posterior, "policy", agent, contexts, max_contexts)
    demos = posterior.demos
    names = demos.value_names(f"latent_{agent}")
    shown = _shown_latents(rows, latents)
    actions = demos.value_names(f"action_{agent}")
    words = [", ".join(context_words(posterior, "policy", agent, c)) for c in chosen]
    groups = _groups(panels, len(chosen), shown)
    # One colour per thing that shares a panel; in panels of one row, one for all.
    position = {"row": lambda c, k: 0, "context": lambda c, k: k, "latent": lambda c, k: c}[panels]
    width = {"row": 1.75, "context": 3.4, "latent": 3.4}[panels]
    columns = {"row": len(shown), "context": 3, "latent": 3}[panels]
    height = 0.75 + len(actions) * max(0.17, 0.09 * len(groups[0]))
    height += 0.5 / math.ceil(len(groups) / columns)  # the legend
    with figure_style():
        figure, drawn = make_axes(axes, len(groups), columns, (width, height))
        for number, (panel, group) in enumerate(zip(drawn, groups, strict=True)):
            c, k = group[0]
            title = {
                "row": _counted(names[k], rows.visits[c, k]),
                "context": fill(words[c] or "always", 46),
                "latent": names[k],
            }[panels]
            if panels == "row" and words[c]:
                # The first panel of a line tells the context of all.
                title = ("" if number % len(shown) else words[c]) + "\n" + title
            read = [pair for pair in group if rows.visits[pair] >= _FEW_VISITS]
            group = read if panels != "row" and read else group
            for place, (c, k) in enumerate(group):
                offset = (place - (len(group) - 1) / 2) * 0.8 / len(group)
                _draw_row(panel, rows, c, k, offset, position(c, k))
            panel.set_title(title, loc="left", fontsize=8)
            panel.set_yticks(range(len(actions)), actions)
            panel.set_ylim(len(actions) - 0.5, -0.5)
            panel.set_xlim(-0.03, 1.03)
            panel.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
            panel.tick_params(axis="y", length=0)
            if axes is None and number % columns:
                panel.tick_params(axis="y", labelleft=False)
            if number >= len(groups) - columns:
                panel.set_xlabel(f"P(action of {agent})" if number % columns == 0 else "")
        shared = {
            "row": {},
            "context": {k: names[k] for k in shown},
            "latent": {c: fill(w or "always", 40) for c, w in enumerate(words)},
        }[panels]
        seldom = any(rows.visits[pair] < _FEW_VISITS for group in groups for pair in group)
        handles = _row_handles(shared, panels == "row" and seldom)
        legend_below(figure, axes is None, drawn[-1], handles, columns=4)
    return figure


def _shown_latents(rows: _Rows, asked: Sequence[int] | None) -> list[int]:
    """The latents asked for, or those that were held, or else all."""
    number = rows.visits.shape[1]
    if asked is None:
        held = np.flatnonzero((rows.visits >= _FEW_VISITS).any(0)).tolist()
        return held or list(range(number))
    if not len(asked):
        raise ValueError("latents: none are given; at least one is needed")
    return [check_index("latents", latent, number) for latent in asked]


def _groups(panels: str, num_contexts: int, latents: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The rows of each panel: contexts, by their places, and latents."""
    grid = list(itertools.product(range(num_contexts), latents))
    if panels == "row":
        return [[pair] for pair in grid]
    axis = 0 if panels == "context" else 1
    shared = dict.fromkeys(pair[axis] for pair in grid)
    return [[pair for pair in grid if pair[axis] == one] for one in shared]


def _counted(name: str, visits: float) -> str:
    return f"{name}, n = {visits:,.0f}" if visits >= 10 else f"{name}, n = {visits:,.1f}"


def _row_handles(shared: Mapping[int, str], seldom: bool) -> list[Any]:
    """What the legend explains: things that share a panel, by their numbers, and marks."""
    from matplotlib.lines import Line2D

    handles: list[Any] = [
        Line2D([], [], color=look(i).color, marker=look(i).marker, markersize=4, linewidth=1,
               label=text)
        for i, text in shared.items()
    ]  # fmt: skip
    handles.append(
        Line2D([], [], linestyle="none", marker="|", color="0.5", markersize=8, label="prior")
    )
    if seldom:
        handles.append(Line2D([], [], color="0.6", marker="o", markersize=3, linewidth=1,
                              label="read less than once"))  # fmt: skip
    return handles


def _draw_row(axes: Any, rows: _Rows, context: int, latent: int, offset: float, kind: int) -> None:
    y = np.arange(rows.mean.shape[-1]) + offset
    seldom = rows.visits[context, latent] < _FEW_VISITS
    color = "0.6" if seldom else look(kind).color
    at = (context, latent)
    axes.plot(rows.prior[at], y, linestyle="none", marker="|", color="0.5", markersize=6,
              markeredgewidth=0.8, zorder=1)  # fmt: skip
    axes.hlines(y, rows.low[at], rows.high[at], color=color, linewidth=1.3, zorder=2)
    axes.plot(rows.mean[at], y, linestyle="none", marker=look(kind).marker, color=color,
              markersize=3.4, zorder=3)  # fmt: skip


# ---------------------------------------------------------------------- how latents move

_RADIUS = 0.17
# Probabilities whose intervals are wider are not worth a number.
_WIDEST_WRITTEN = 0.3


def plot_transition_graph(
    posterior: Posterior,
    agent: str,
    contexts: Sequence[int] | None = None,
    axes: Any = None,
    max_contexts: int = 3,
    smallest: float = 0.03,
) -> "matplotlib.figure.Figure":
    """How what an agent has in mind changes: a graph of its latents for each context.

    A ring around a latent fills up with the probability of keeping it, which stands inside. Arrows
    are as wide as a change is probable and as pale as it is uncertain (invisible would be a 89%
    interval from 0 to 1); probabilities of 0.1 or more stand beside them, unless their interval is
    wider than 0.3. Latents that the data held less than once in a context are grey and without
    arrows: there only the prior speaks.

    Args:
        posterior: What was learned of the team.
        agent: Name of the agent.
        contexts: Rows of `posterior.contexts(agent, "transition")`, a panel each; None: those
            in which the agent's latents change most often, in expectation.
        axes: A Matplotlib axes for each context; None: a new figure.
        max_contexts: How many contexts are chosen where none are given.
        smallest: Changes less probable than this are not drawn.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no such agent or context.

    Example:
        >>> plot_transition_graph(posterior, "ann")  # doctest: +SKIP
    """
    from matplotlib.lines import Line2D

    check_values({"smallest": smallest})
    _, chosen, rows = _read_rows(posterior, "transition", agent, contexts, max_contexts, True)
    titles = [
        fill(", ".join(context_words(posterior, "transition", agent, c)) or f"{agent}, always", 44)
        + f"\nn = {rows.visits[number].sum():,.0f} steps"
        for number, c in enumerate(chosen)
    ]
    tallest = max(title.count("\n") for title in titles) + 1
    names = posterior.demos.value_names(f"latent_{agent}")
    with figure_style():
        figure, panels = make_axes(axes, len(chosen), 3, (3.7, 3.2 + 0.15 * tallest))
        for number, (panel, title) in enumerate(zip(panels, titles, strict=True)):
            _draw_graph(panel, rows, number, names, smallest, title)
        handles = [
            Line2D([], [], color=BLUE, linewidth=width, label=f"changes with probability {p:g}")
            for p, width in ((0.1, _width(0.1)), (0.5, _width(0.5)))
        ]
        handles.append(Line2D([], [], color=BLUE, alpha=0.25, linewidth=2, label="pale: uncertain"))
        legend_below(figure, axes is None, panels[-1], handles)
    return figure


def _width(probability: float) -> float:
    return 0.4 + 5.0 * probability


def _draw_graph(
    axes: Any, rows: _Rows, context: int, names: Sequence[str], smallest: float, title: str
) -> None:
    from matplotlib.patches import Circle, FancyArrowPatch, Wedge

    number = len(names)
    angles = np.pi / 2 - 2 * np.pi * np.arange(number) / number
    places = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    mean = rows.mean[context]
    for latent, place in enumerate(places):
        seldom = rows.visits[context, latent] < _FEW_VISITS
        axes.add_patch(Circle(place, _RADIUS, facecolor="white", edgecolor="0.8", zorder=3))
        stays = mean[latent, latent]
        color = "0.75" if seldom else BLUE
        axes.add_patch(
            Wedge(place, _RADIUS, 90 - 360 * stays, 90, width=0.05, color=color, zorder=4)
        )
        axes.text(*place, f"{stays:.2f}", ha="center", va="center", fontsize=7, zorder=5,
                  color="0.6" if seldom else "black")  # fmt: skip
        x, y = place * (1 + _RADIUS + 0.06)
        side = "center" if abs(place[0]) < 0.3 else "left" if place[0] > 0 else "right"
        upright = "center" if abs(place[1]) < 0.3 else "bottom" if place[1] > 0 else "top"
        axes.text(x, y, fill(names[latent], 14), ha=side, va=upright, fontsize=8,
                  color="0.6" if seldom else "black")  # fmt: skip
        if seldom:
            continue
        for target in range(number):
            probability = float(mean[latent, target])
            if target == latent or probability < smallest:
                continue
            spread = float(rows.high[context, latent, target] - rows.low[context, latent, target])
            way = places[target] - place
            unit = way / np.linalg.norm(way)
            normal = np.array([unit[1], -unit[0]])
            begin = place + (_RADIUS + 0.01) * unit + 0.05 * normal
            end = places[target] - (_RADIUS + 0.02) * unit + 0.05 * normal
            axes.add_patch(
                FancyArrowPatch(
                    begin, end, arrowstyle="-|>", mutation_scale=7 + 6 * probability,
                    connectionstyle="arc3,rad=0.12", linewidth=_width(probability), color=BLUE,
                    alpha=max(0.12, (1 - spread) ** 2), shrinkA=0, shrinkB=0, zorder=2,
                )
            )  # fmt: skip
            if probability >= 0.1 and spread <= _WIDEST_WRITTEN:
                # Beside the arrow, nearer to where it comes from, so that two directions part.
                label = begin + 0.36 * (end - begin) + 0.1 * normal
                axes.text(*label, f"{probability:.2f}", fontsize=7, ha="center", va="center",
                          zorder=6, bbox={"facecolor": "white", "alpha": 0.7, "pad": 0.4,
                                          "linewidth": 0})  # fmt: skip
    # A title of the axes would be cut: their box changes its shape after room was made for it.
    axes.text(0, 1.5, title, ha="center", va="bottom", fontsize=8)
    top = 1.5 + 0.15 * (title.count("\n") + 1)
    axes.set(xlim=(-1.75, 1.75), ylim=(-1.45, top), aspect="equal")
    axes.set_axis_off()
