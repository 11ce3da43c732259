"""How optimisation went: the bound of the log evidence."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from btil.analysis.plots.layout import make_axes
from btil.figures import BLUE, VERMILION, figure_style
from btil.inference.posterior import TeamPosterior

if TYPE_CHECKING:
    import matplotlib.figure


def plot_elbo_traces(
    posteriors: Mapping[str, TeamPosterior], axes: Any = None
) -> "matplotlib.figure.Figure":
    """The bound of the log evidence over iterations, a panel per method that has one.

    Runs from other starting points that were not kept are grey. The steep first tenth may begin
    below the panel.

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


def _draw_trace(axes: Any, posterior: TeamPosterior, name: str) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    kept = np.asarray(posterior.elbo_trace, np.float64)
    for trace in posterior.result.restart_traces:
        if not np.array_equal(trace, kept):
            axes.plot(np.arange(1, len(trace) + 1), trace, color="0.75", linewidth=0.8)
    marker = "o" if len(kept) < 3 else None
    axes.plot(np.arange(1, len(kept) + 1), kept, color=BLUE, linewidth=1.2, marker=marker)
    settled = kept[len(kept) // 10 :]
    settled = settled[np.isfinite(settled)]
    final = posterior.elbo
    told = ""
    if final is not None:
        axes.axhline(final, color=VERMILION, linewidth=0.8, linestyle="--")
        error = f" ± {posterior.elbo_se:,.2f}" if posterior.elbo_se else ""
        told = f"\nfinal {final:,.2f}{error} (dashed)"
        settled = np.append(settled, final)
    if len(settled) and np.ptp(settled) > 0:
        margin = 0.06 * np.ptp(settled)
        axes.set_ylim(settled.min() - margin, settled.max() + margin)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set(title=name + told, xlabel="iteration", ylabel="bound of the log evidence (nats)")
