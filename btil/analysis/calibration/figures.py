"""Pictures of calibrations, one or several side by side."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from btil.analysis.calibration.ranks import (
    PROBABILITY,
    band_probability,
    bins_of,
    error_ratio,
    tested,
    uniformity_band,
)
from btil.analysis.plots.layout import category_handles, legend_below, look, make_axes
from btil.arguments import check_values
from btil.figures import figure_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from btil.analysis.calibration.calibrating import Calibration

_GREY = "#8a94a0"
_COLUMNS = 4
_FEWEST_STEPS = 20
# Where ratios have ticks, on a logarithmic axis.
_FINE = (0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2)
_COARSE = (0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)


def plot_ecdf_pit(
    calibrations: Mapping[str, "Calibration"],
    groups: Sequence[str] | None = None,
    axes: Any = None,
    probability: float = PROBABILITY,
) -> "Figure":
    """Are ranks uniform? Distribution functions of the truths' places, less what they should be.

    A panel per group of quantities. The solid line is of one quantity per simulation: it stays
    in the grey band everywhere, with the probability that verdicts have, if the posterior is right.
    The dotted line is of all quantities, smoother, and without a band as they depend on each other.
    A posterior that is too narrow goes up on the left and down on the right; one that is too low is
    below zero throughout. Of latents the places are by probability: below zero is too sure.

    Args:
        calibrations: {name: calibration}.
        groups: Which groups; None: all there are.
        axes: As many Matplotlib axes as there are groups; None: a new figure.
        probability: As in `Calibration.verdicts`.

    Raises:
        ValueError: If there is no calibration, no such group, or too few simulations for a band.

    Example:
        >>> plot_ecdf_pit({"mean field": mfvi, "Gibbs": gibbs})  # doctest: +SKIP

    Source: Säilynoja, Bürkner, Vehtari (2022); as `arviz.plot_ecdf_pit` with `method="envelope"`.
    """
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    check_values({"probability": probability})
    present = _groups(calibrations)
    chosen = present if groups is None else list(groups)
    unknown = [group for group in chosen if group not in present]
    if unknown:
        raise ValueError(f"no group {', '.join(unknown)}; there are {', '.join(present)}")
    with figure_style():
        figure, panels = make_axes(axes, len(chosen), _COLUMNS, (2.7, 2.4))
        for panel, group in zip(panels, chosen, strict=True):
            widest = 0.0
            for k, calibration in enumerate(calibrations.values()):
                if group not in calibration.ranked:
                    continue
                ranked = calibration.ranked[group]
                band = uniformity_band(tested(ranked), band_probability(probability))
                inside = (band.lower - band.points, band.upper - band.points)
                # Equal numbers of simulations have equal bands.
                if widest != inside[1].max():
                    panel.fill_between(band.points, *inside, color=_GREY, alpha=0.25, lw=0)
                    widest = inside[1].max()
                color = look(k).color
                panel.plot(band.points, band.ecdf - band.points, color=color, lw=1.3)
                every = np.sort(ranked.place[~np.isnan(ranked.place)])
                grid = np.linspace(0, 1, 201)
                share = np.searchsorted(every, grid, side="right") / len(every)
                panel.plot(grid, share - grid, color=color, lw=1.1, ls=":")
            panel.axhline(0, color="black", lw=0.6)
            panel.set(title=group, xlim=(0, 1), xlabel="rank of the truth, from 0 to 1")
        for panel in panels[::_COLUMNS] if axes is None else panels[:1]:
            panel.set_ylabel("ECDF minus uniform")
        handles: list[Any] = [
            Line2D([], [], color=look(k).color, label=name) for k, name in enumerate(calibrations)
        ]
        handles += [
            Line2D([], [], color=_GREY, lw=1.3, label="one per simulation"),
            Line2D([], [], color=_GREY, lw=1.1, ls=":", label="all"),
            Patch(color=_GREY, alpha=0.25, lw=0, label="where a right posterior stays"),
        ]
        legend_below(figure, axes is None, panels[0], handles)
        return figure


def plot_latents(calibrations: Mapping[str, "Calibration"], axes: Any = None) -> "Figure":
    """Are steps said to be 80% sure right 80% of the time?

    Above, the share of steps whose most probable latent is the true one, against how probable it
    was said to be, over all unlabelled steps, averaged over posterior draws; bars are 95% intervals
    that allow for steps of one simulation being right or wrong together. Below the diagonal is too
    sure. Hollow marks: under the point estimate. Underneath, how many steps are how sure.

    Args:
        calibrations: {name: calibration}.
        axes: Two Matplotlib axes; None: a new figure.

    Raises:
        ValueError: If there is no calibration, or no step without a label.
    """
    from matplotlib.lines import Line2D

    # The plots count in the bins of this package.
    from btil.analysis.plots.decoded import draw_reliability

    _groups(calibrations)
    if not any(one.averaged.steps.sum() for one in calibrations.values()):
        raise ValueError("every step is labelled: there are no latents to be sure of")
    with figure_style():
        figure, (above, below) = make_axes(axes, 2, 1, (4.4, 2.4), height_ratios=(3.0, 1.0))
        averaged = {name: one.averaged for name, one in calibrations.items()}
        draw_reliability(above, below, averaged, list(calibrations))
        for k, calibration in enumerate(calibrations.values()):
            # These have no interval that would say how little a few steps tell.
            points = [one for one in bins_of(calibration.point) if one.steps >= _FEWEST_STEPS]
            above.plot(
                [one.said for one in points],
                [one.right for one in points],
                color=look(k).color,
                marker=look(k).marker,
                ms=6,
                mfc="none",
                lw=0,
            )
        lowest = min(1 / max(one.demos.num_latents) for one in calibrations.values())
        bottom = min(one.lower for counted in averaged.values() for one in bins_of(counted))
        above.set(xlim=(lowest - 0.02, 1.02), ylim=(max(bottom - 0.03, 0), 1.02))
        above.set_ylabel("share right")
        below.set(
            xlim=(lowest - 0.02, 1.02),
            xlabel="probability of the most probable latent",
            ylabel="share of steps",
        )
        handles = category_handles(calibrations)
        handles.append(
            Line2D([], [], color=_GREY, marker="o", mfc="none", lw=0, label="point estimate")
        )
        legend_below(figure, axes is None, above, handles, columns=4)
        return figure


def plot_error_ratios(calibrations: Mapping[str, "Calibration"], axes: Any = None) -> "Figure":
    """How overconfident, by group of quantities: errors over what the posterior says they are.

    A line of marks per group and method, a place per calibration (amounts of data, shares of
    labels, methods), with standard errors over simulations. At 1 the posterior is as sure as it may
    be; at 2 its errors are twice as large as it says.

    Args:
        calibrations: {name: calibration}, in the order in which they stand.
        axes: Matplotlib axes; None: a new figure.

    Raises:
        ValueError: If there is no calibration.
    """
    from matplotlib.ticker import ScalarFormatter

    present = [g for g in _groups(calibrations) if not g.startswith("log ")]
    with figure_style():
        width = max(3.6, 1.0 + 0.9 * len(calibrations))
        figure, (panel,) = make_axes(axes, 1, 1, (width, 3.2))
        panel.axhline(1, color="black", lw=0.6)
        for k, group in enumerate(present):
            shown = look(k)
            # A line for each method: between methods there is nothing.
            for method in dict.fromkeys(one.method for one in calibrations.values()):
                own = {
                    position: error_ratio(one.ranked[group])
                    for position, one in enumerate(calibrations.values())
                    if one.method == method and group in one.ranked
                }
                panel.errorbar(
                    [position + 0.06 * (k - (len(present) - 1) / 2) for position in own],
                    [ratio.value for ratio in own.values()],
                    [ratio.error for ratio in own.values()],
                    color=shown.color,
                    marker=shown.marker,
                    ms=4,
                    lw=1,
                )
        panel.set_yscale("log")
        low, high = panel.get_ylim()
        low, high = min(low, 0.8), max(high, 1.25)
        panel.set_ylim(low, high)
        panel.set_yticks(
            [tick for tick in (_FINE if high / low < 3 else _COARSE) if low <= tick <= high]
        )
        panel.yaxis.set_major_formatter(ScalarFormatter())
        panel.minorticks_off()
        panel.set_xticks(range(len(calibrations)), list(calibrations))
        panel.set(ylabel="error / what the posterior says")
        legend_below(figure, axes is None, panel, category_handles(present), columns=2)
        return figure


def _groups(calibrations: Mapping[str, "Calibration"]) -> list[str]:
    """The groups that any of them has, in order."""
    if not calibrations:
        raise ValueError("there is no calibration to draw")
    return list(dict.fromkeys(group for one in calibrations.values() for group in one.ranked))
