"""How optimisation went: the bound of the log evidence."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from btil.analysis.plots.layout import make_axes
from btil.arguments import check_values
from btil.figures import BLUE, VERMILION, figure_style
from btil.posterior.beliefs import Posterior

if TYPE_CHECKING:
    import matplotlib.figure


def plot_elbo_traces(
    posteriors: Mapping[str, Posterior], axes: Any = None
) -> "matplotlib.figure.Figure":
    """The bound of the log evidence over iterations, a panel per method that has one.

    Every sweep is shown, as its distance from the final bound (whose value is in the title): on a
    linear scale next to it, on a logarithmic one further away. Runs from other starting points
    that were not kept are grey.

    Args:
        posteriors: {name: posterior}; those without a trace are passed over.
        axes: A Matplotlib axes for each method with a trace; None: a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If none of the posteriors has a trace.
    """
    traces = {n: p for n, p in posteriors.items() if p.elbo_trace is not None}
    if not traces:
        raise ValueError(
            f"no posterior has a trace of its bound: {', '.join(posteriors) or 'none is given'}"
        )
    with figure_style():
        figure, panels = make_axes(axes, len(traces), 3, (3.6, 2.9))
        for panel, (name, posterior) in zip(panels, traces.items(), strict=True):
            _draw_trace(panel, posterior, name)
    return figure


def _draw_trace(axes: Any, posterior: Posterior, name: str) -> None:
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    kept = np.asarray(posterior.elbo_trace, np.float64)
    final = kept[-1] if posterior.elbo is None else posterior.elbo
    others = [
        np.asarray(trace, np.float64) - final
        for trace in posterior.result.restart_traces
        if not np.array_equal(trace, kept)
    ]
    kept = kept - final
    for k, trace in enumerate(others):
        label = None if k else "other starting points"
        axes.plot(np.arange(1, len(trace) + 1), trace, color="0.7", linewidth=0.8, label=label)
    marker = "o" if len(kept) < 3 else None
    label = "the run that is kept" if others else "bound"
    steps = np.arange(1, len(kept) + 1)
    axes.plot(steps, kept, color=BLUE, linewidth=1.2, marker=marker, label=label)
    axes.axhline(0, color=VERMILION, linewidth=0.8, linestyle="--", label="final value")
    axes.legend(loc="lower right", frameon=False)
    every = np.concatenate([kept, *others])
    every = every[np.isfinite(every)]
    # Linear where the estimates of the last tenth scatter, logarithmic further away.
    settled = kept[-max(1, len(kept) // 10) :]
    linear = 10.0 ** np.ceil(np.log10(max(1.0, np.nanmax(np.abs(settled)))))
    axes.set_yscale("symlog", linthresh=linear, linscale=0.6)
    low, high = every.min(initial=0.0), every.max(initial=0.0)
    axes.set_ylim(min(1.6 * low, -0.3 * linear), max(1.6 * high, 0.3 * linear))
    decades = linear * 10.0 ** np.arange(0, 1 + np.log10(max(-low, high, linear) / linear))
    thinned = decades[:: math.ceil(len(decades) / 4)]
    axes.yaxis.set_major_locator(FixedLocator([*-thinned, 0, *thinned]))
    axes.yaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    error = f" ± {posterior.elbo_se:,.2f}" if posterior.elbo_se else ""
    axes.set(
        title=f"{name}: {final:,.2f}{error}",
        xlabel="iteration",
        ylabel="bound of the log evidence,\nnats from its final value",
    )


def plot_restarts(
    posterior: Posterior, axes: Any = None, within: float = 0.1
) -> "matplotlib.figure.Figure":
    """Runs of mean-field inference from several starting points: which found the best bound?

    Left, how far below the best bound of all each run is after each sweep, on a logarithmic scale;
    right, how far below it each run ended, the best first. Runs that end equally high have found
    the same optimum, or one as good; others are stuck in local ones.

    Args:
        posterior: From `btil.fit(..., "mfvi", num_restarts=k)`.
        axes: Two Matplotlib axes; None: a new figure.
        within: Distance in nats up to which a run counts as having found the best.

    Returns:
        The figure.

    Raises:
        ValueError: If the posterior has no runs, or `within` is not positive.

    Example:
        >>> posterior = btil.fit(model, demos, num_restarts=10)  # doctest: +SKIP
        >>> plot_restarts(posterior)  # doctest: +SKIP
    """
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator

    check_values({"within": within})
    traces = [np.asarray(trace, np.float64) for trace in posterior.result.restart_traces]
    if not traces:
        raise ValueError(f"{posterior.method} has no runs from several starting points; mfvi has")
    best = max(trace[-1] for trace in traces)
    # Equal to rounding is drawn at the foot of the scale.
    floor = min(within / 10, 0.01)
    gaps = [np.maximum(best - trace, floor) for trace in traces]
    final = np.array([gap[-1] for gap in gaps])
    found = final <= within
    order = np.argsort(final, kind="stable")

    def written(value: float, _: Any = None) -> str:
        return f"≤ {floor:g}" if value <= floor * 1.001 else f"{value:,.10g}"

    with figure_style():
        figure, (left, right) = make_axes(axes, 2, 2, (4.2, 3.1))
        for run in order[::-1]:
            style: dict[str, Any] = {"color": "0.65", "linewidth": 0.8, "linestyle": "--"}
            if found[run]:
                style = {"color": BLUE, "linewidth": 1.3, "linestyle": "-"}
            sweeps = np.arange(1, len(gaps[run]) + 1)
            left.plot(sweeps, gaps[run], **style)
            left.plot(sweeps[-1:], gaps[run][-1:], marker="o", markersize=3, color=style["color"])
        left.set(xlabel="sweep", ylabel="nats below the best bound")
        left.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        left.set_title(f"best bound {best:,.2f}")
        for kind, color, marker in ((True, BLUE, "o"), (False, "0.55", "x")):
            places = np.flatnonzero(found[order] == kind)
            right.scatter(places + 1, final[order][places], color=color, marker=marker, s=22)
        right.set(xlabel="run, the best first", ylabel="nats below the best bound, at its end")
        right.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        right.set_xlim(0.4, len(traces) + 0.6)
        right.set_title(f"{found.sum()} of {len(traces)} runs end within {within:g} nats of it")
        top = max(float(gap.max()) for gap in gaps)
        decades = 10.0 ** np.arange(np.ceil(np.log10(floor)) + 1, np.ceil(np.log10(top)) + 1)
        for panel in (left, right):
            panel.set_yscale("log")
            panel.set_ylim(floor / 1.6, max(top, 10 * floor) * 1.6)
            panel.yaxis.set_major_locator(FixedLocator([floor, *decades]))
            panel.yaxis.set_minor_locator(FixedLocator([]))
            panel.yaxis.set_major_formatter(FuncFormatter(written))
            panel.axhline(within, color=VERMILION, linewidth=0.8, linestyle=":")
    return figure
