"""Methods against each other: means against means, certainty against certainty."""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.analysis.alignment import align, shared_contexts
from btil.analysis.plots.layout import ROLES, legend_below, make_axes
from btil.analysis.plots.rows import cell_intervals, expected_visits
from btil.arguments import check_values
from btil.figures import figure_style
from btil.posterior.beliefs import Posterior

if TYPE_CHECKING:
    import matplotlib.figure

# Standard deviations below this are rounding: the cell is known.
_NO_SD = 1e-7
_MOST_CELLS = 900


class _Cells(NamedTuple):
    """The cells of a table that two posteriors have in common and the data have reached.

    Attributes:
        role: "policy", "transition" or "initial".
        site: Name of the table.
        own: Flat indices of the cells in the one posterior's table.
        reference: Flat indices in the reference's.
    """

    role: str
    site: str
    own: Int[np.ndarray, " cells"]
    reference: Int[np.ndarray, " cells"]


def plot_method_against_method(
    reference: Posterior,
    others: Mapping[str, Posterior],
    axes: Any = None,
    max_cells: int = _MOST_CELLS,
) -> "matplotlib.figure.Figure":
    """Posterior means of cells against those of a reference method, with 89% intervals.

    Every cell of a probability row that both have learned is a point: a method that agrees with
    the reference has its points on the diagonal, one that is too certain short vertical lines.
    Rows that the data read less than once in expectation (contexts in which an agent hardly ever
    holds that latent) are close to their priors whatever the method, and are left out. Latents
    that nothing tells apart are matched first.

    Args:
        reference: The posterior on the horizontal axis.
        others: {name: posterior}, a panel each.
        axes: As many Matplotlib axes as there are others; None: a new figure.
        max_cells: Points drawn per panel at most; of more, every k-th in the order of the
            reference's means is drawn.

    Returns:
        The figure.

    Raises:
        ValueError: If there is nothing to compare with, or the posteriors have different tables.

    Example:
        >>> plot_method_against_method(nuts, {"mean field": mfvi})  # doctest: +SKIP
    """
    check_values({"max_cells": max_cells})
    _check_others(others)
    visits = expected_visits(reference)
    with figure_style():
        figure, panels = make_axes(axes, len(others), 3, (3.4, 4.1))
        drawn: dict[str, Any] = {}
        for panel, (name, posterior) in zip(panels, others.items(), strict=True):
            own = align(posterior, reference)
            tables = _common_cells(own, reference, visits)
            drawn |= _draw_against(panel, reference, own, tables, max_cells, name)
        for panel in panels:
            panel.set_xlabel(f"posterior mean, {reference.method}")
        handles = [drawn[role] for role in ROLES if role in drawn]
        legend_below(figure, axes is None, panels[-1], handles)
    return figure


def _draw_against(
    axes: Any,
    reference: Posterior,
    posterior: Posterior,
    tables: Sequence[_Cells],
    max_cells: int,
    name: str,
) -> dict[str, Any]:
    means = {
        cells.site: (
            reference.result.rows[cells.site].mean().ravel()[cells.reference],
            posterior.result.rows[cells.site].mean().ravel()[cells.own],
        )
        for cells in tables
    }
    pooled = [np.concatenate([means[c.site][i] for c in tables] or [[]]) for i in (0, 1)]
    num_cells = len(pooled[0])
    every = max(1, math.ceil(num_cells / max_cells))
    kept = np.zeros(num_cells, bool)
    kept[np.argsort(pooled[0], kind="stable")[::every]] = True
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=0.8, zorder=0)
    handles = {}
    begin = 0
    for cells in tables:
        own_kept = np.flatnonzero(kept[begin : begin + len(cells.own)])
        begin += len(cells.own)
        if not len(own_kept):
            continue
        x, y = (values[own_kept] for values in means[cells.site])
        x_low, x_high = cell_intervals(reference, cells.site, cells.reference[own_kept])
        y_low, y_high = cell_intervals(posterior, cells.site, cells.own[own_kept])
        color, marker = ROLES[cells.role]
        axes.hlines(y, x_low, x_high, color=color, linewidth=0.4, alpha=0.18)
        axes.vlines(x, y_low, y_high, color=color, linewidth=0.4, alpha=0.18)
        handles[cells.role] = axes.scatter(
            x, y, s=9, color=color, marker=marker, alpha=0.7, linewidths=0, label=cells.role,
            zorder=3,
        )  # fmt: skip
    difference = np.abs(pooled[0] - pooled[1]).mean() if num_cells else np.nan
    shown = f"{kept.sum():,} of {num_cells:,} cells" if every > 1 else f"{num_cells:,} cells"
    axes.set(
        title=f"{name}\n{shown}, mean difference {difference:.3f}",
        ylabel=f"posterior mean, {name}",
        xlim=(-0.03, 1.03),
        ylim=(-0.03, 1.03),
        aspect="equal",
    )
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1])
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    return handles


def plot_sd_ratios(
    reference: Posterior, others: Mapping[str, Posterior], ax: Any = None
) -> "matplotlib.figure.Figure":
    """How certain methods are: posterior sds over the reference's, per method and kind of table.

    Left of 1 a method is more certain than the reference. Bars span the middle half of the cells,
    lines 90% of them, points are medians, with their values at the right. Left out are cells that
    one of the two knows exactly, and rows that the data read less than once, as in
    `plot_method_against_method`.

    Args:
        reference: The posterior that the others are divided by.
        others: {name: posterior}.
        ax: Matplotlib axes; None: a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If there is nothing to compare with, or the posteriors have different tables.
    """
    _check_others(others)
    visits = expected_visits(reference)
    groups: list[tuple[str, str, Float[np.ndarray, " cells"]]] = []
    for name, posterior in others.items():
        own = align(posterior, reference)
        by_role: dict[str, list[np.ndarray]] = {}
        for cells in _common_cells(own, reference, visits):
            sd = own.result.rows[cells.site].sd().ravel()[cells.own]
            other = reference.result.rows[cells.site].sd().ravel()[cells.reference]
            uncertain = (sd > _NO_SD) & (other > _NO_SD)
            by_role.setdefault(cells.role, []).append(sd[uncertain] / other[uncertain])
        groups += [(name, r, np.concatenate(by_role[r])) for r in ROLES if r in by_role]
    with figure_style():
        figure, (axes,) = make_axes(ax, 1, 1, (7.0, 1.1 + 0.28 * len(groups) + 0.12 * len(others)))
        handles: dict[str, Any] = {}
        positions: dict[str, list[float]] = {}
        extremes = [1.0]
        y, last = 0.0, None
        for name, role, ratios in groups:
            y += 0.0 if last is None else 1.0 if name == last else 1.7
            last = name
            positions.setdefault(name, []).append(y)
            if not len(ratios):
                continue
            low, left, middle, right, high = np.quantile(ratios, [0.05, 0.25, 0.5, 0.75, 0.95])
            extremes += [low, high]
            color, marker = ROLES[role]
            axes.plot([low, high], [y, y], color=color, linewidth=1)
            axes.plot([left, right], [y, y], color=color, linewidth=5, alpha=0.5,
                      solid_capstyle="butt")  # fmt: skip
            handles[role] = axes.scatter(
                [middle], [y], color=color, marker=marker, s=24, zorder=3,
                label=role,
            )  # fmt: skip
            axes.annotate(
                f"{middle:.2f}  ({len(ratios):,} cells)", (1, y), (6, 0), color=color,
                xycoords=("axes fraction", "data"), textcoords="offset points", va="center",
                annotation_clip=False, fontsize=8,
            )  # fmt: skip
        axes.axvline(1, color="0.4", linewidth=0.8, zorder=0)
        axes.set_yticks([float(np.mean(own)) for own in positions.values()], list(positions))
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(y + 0.7, -0.7)
        axes.set_title("median", loc="right", x=1.02, ha="left", fontsize=8)
        _log_ratio_axis(axes, min(extremes), max(extremes))
        axes.set_xlabel(f"posterior standard deviation / that of {reference.method}")
        legend_below(figure, ax is None, axes, [handles[r] for r in ROLES if r in handles])
    return figure


def _log_ratio_axis(axes: Any, low: float, high: float) -> None:
    """A logarithmic axis around 1 with ticks in plain numbers."""
    from matplotlib.ticker import FuncFormatter, NullLocator

    low, high = min(low, 0.8) / 1.1, max(high, 1.25) * 1.1
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if high / low < 500 else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xticks([tick for tick in ticks if low <= tick <= high])


def _check_others(others: Mapping[str, Posterior]) -> None:
    if not others:
        raise ValueError("others: at least one posterior is needed to compare with the reference")


def _common_cells(
    posterior: Posterior, reference: Posterior, visits: Mapping[str, np.ndarray]
) -> list[_Cells]:
    found = []
    for site in posterior.result.rows:
        if site not in reference.result.rows:
            continue
        contexts = posterior.bound.tables[site].contexts
        block, num_values = math.prod(contexts.row_shape), contexts.num_values
        ours, theirs = shared_contexts(posterior, reference, site)
        read = np.repeat(visits[site].reshape(len(visits[site]), -1)[theirs] >= 1, num_values, 1)
        own, other = ((rows[:, None] * block + np.arange(block))[read] for rows in (ours, theirs))
        found.append(_Cells(contexts.role, site, own, other))
    return found
