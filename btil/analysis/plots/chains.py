"""Chains of draws, drawn by ArviZ under the names in the data."""

import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from btil.analysis.plots.layout import legend_below
from btil.analysis.plots.rows import (
    RowChoice,
    chains_of,
    check_row,
    choose_rows,
    letter,
    most_moved,
    prior_draws,
    row_title,
    value_names,
)
from btil.figures import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, figure_style
from btil.inference.chains import split_rhat
from btil.inference.posterior import TeamPosterior

if TYPE_CHECKING:
    import matplotlib.figure
    import xarray


def plot_trace(
    posterior: TeamPosterior, rows: Sequence[tuple[Any, ...]] | None = None
) -> "matplotlib.figure.Figure":
    """Density and trace of each chain, by ArviZ, for one cell of each row.

    The cell is the one whose chains agree least.

    Args:
        posterior: A posterior with chains.
        rows: Which rows, as `RowChoice` or plain tuples (site, context, latent); None: those of
            `choose_rows`.

    Returns:
        The figure.

    Raises:
        ValueError: If the posterior has no chains, or a row does not exist.
    """
    tree = _cells_of_rows(posterior, rows, width=100)
    number = len(tree["posterior"].data_vars)
    figure = _arviz_figure(
        "plot_trace_dist", tree, (9.5, 1.0 + 1.55 * number), chain_legend=True, compact=False,
        kind="kde", aes={"color": ["chain"], "overlay": ["chain"]},
    )  # fmt: skip
    # ArviZ writes the name below one panel and beside the other, where long ones overlap.
    for left, right in zip(figure.axes[::2], figure.axes[1::2], strict=True):
        left.set_title(left.get_xlabel(), loc="left", fontsize=9)
        left.set_xlabel("probability")
        right.set_xlabel("draw")
        right.set_ylabel("probability")
        # Probabilities next to 1 are to be read as such, not as what they lack.
        right.ticklabel_format(axis="y", useOffset=False)
    return figure


def plot_rank(
    posterior: TeamPosterior, rows: Sequence[tuple[Any, ...]] | None = None
) -> "matplotlib.figure.Figure":
    """Ranks of each chain's draws among all, by ArviZ; arguments and cells as in `plot_trace`.

    Chains that agree stay around the middle; where one leaves it further than chance allows, it is
    marked black.
    """
    from matplotlib.ticker import MaxNLocator

    tree = _cells_of_rows(posterior, rows, width=38)
    figure = _arviz_figure("plot_rank", tree, _wrapped_size(tree), chain_legend=True, col_wrap=3)
    for axes in figure.axes:
        for text in list(axes.texts):  # p-values, over the lines where chains disagree most
            text.remove()
    # ArviZ cuts lines at the edge; one range for all, so that panels can be compared.
    furthest = max(
        float(np.abs(line.get_ydata()).max()) for axes in figure.axes for line in axes.lines
    )
    for number, axes in enumerate(figure.axes):
        axes.set_ylim(-1.1 * furthest, 1.1 * furthest)
        axes.set_xlabel("rank among all draws, from 0 to 1")
        axes.yaxis.set_major_locator(MaxNLocator(3, symmetric=True))
        axes.spines["left"].set_visible(True)
        axes.tick_params(axis="y", left=True, labelleft=number % 3 == 0)
        if number % 3 == 0:
            axes.set_ylabel("share of draws up to there,\nless the even one")
    return figure


def plot_ess(
    posterior: TeamPosterior, rows: Sequence[tuple[Any, ...]] | None = None
) -> "matplotlib.figure.Figure":
    """Effective sample size of small intervals, by ArviZ; arguments and cells as in `plot_trace`.

    How many independent draws the chains are worth for the probability of each twentieth of a
    cell's range.
    """
    tree = _cells_of_rows(posterior, rows, width=38)
    return _arviz_figure("plot_ess", tree, _wrapped_size(tree), col_wrap=3)


def plot_forest(
    posterior: TeamPosterior, rows: Sequence[tuple[Any, ...]] | None = None
) -> "matplotlib.figure.Figure":
    """Means and intervals (50% and 89%) of all cells of rows, by ArviZ, a line per chain.

    Rows have letters, which are explained above the panel.

    Args:
        posterior: A posterior with chains.
        rows: As in `plot_trace`; None: two rows of either kind of `choose_rows`.

    Returns:
        The figure.

    Raises:
        ValueError: As `plot_trace`.
    """
    chains_of(posterior)
    chosen = choose_rows(posterior, 2, 2) if rows is None else [RowChoice(*row) for row in rows]
    tree = _cells_of_rows(posterior, chosen, width=0)
    number = len(tree["posterior"].data_vars)
    figure = _arviz_figure(
        "plot_forest", tree, (8.0, 1.2 + 0.2 * len(chosen) + 0.24 * number), chain_legend=True,
        aes={"color": ["chain"]}, width_ratios=[1, 4],
    )  # fmt: skip
    labels, intervals = figure.axes
    labels.set_axis_off()
    intervals.set_xlabel("probability")
    key = [f"{letter(i)}: {row_title(posterior, row)}" for i, row in enumerate(chosen)]
    figure.suptitle("\n".join(fill(line, 110) for line in key), x=0.01, ha="left", fontsize=8)
    return figure


def plot_prior_posterior(
    posterior: TeamPosterior,
    rows: Sequence[tuple[Any, ...]] | None = None,
    num_draws: int = 1000,
    seed: int = 0,
) -> "matplotlib.figure.Figure":
    """What the data have taught: prior and posterior densities, by ArviZ, for one cell of each row.

    The cell is the one whose mean has moved furthest. Works for every method.

    Args:
        posterior: Any posterior.
        rows: Which rows, as in `plot_trace`; None: of every learned table the row whose mean
            has moved furthest.
        num_draws: Draws of the prior, and of the posterior.
        seed: Seeds the draws.

    Returns:
        The figure.

    Raises:
        ValueError: If nothing is learned, or a row does not exist.

    Example:
        >>> plot_prior_posterior(posterior, [("policy_ann", 0, 1)])  # doctest: +SKIP
    """
    import arviz

    chosen = most_moved(posterior) if rows is None else tuple(RowChoice(*row) for row in rows)
    if not chosen:
        raise ValueError("rows: there is no row to plot")
    after = posterior.sample(num_draws, seed)
    generator = np.random.default_rng([seed, 2])
    groups: dict[str, dict[str, Any]] = {"prior": {}, "posterior": {}}
    for row in chosen:
        index = check_row(posterior, row, posterior.result.rows)
        drawn = np.asarray(after[row.site][:, *index], np.float64)
        before = prior_draws(posterior, row, num_draws, generator)
        cell = int(np.abs(drawn.mean(0) - before.mean(0)).argmax())
        name = f"P({value_names(posterior, row)[cell]}), {row_title(posterior, row)}"
        # ArviZ takes a slash for a path.
        title = fill(name, 38).replace("/", "∕")
        groups["prior"][title] = before[None, :, cell]
        groups["posterior"][title] = drawn[None, :, cell]
    tree = arviz.from_dict(groups)
    figure = _arviz_figure(
        "plot_prior_posterior", tree, _wrapped_size(tree), col_wrap=3, kind="hist",
        legend=("prior", "posterior"),
    )  # fmt: skip
    for axes in figure.axes:
        axes.set_xlabel("probability")
        axes.ticklabel_format(axis="x", useOffset=False)
        axes.locator_params(axis="x", nbins=4)
    return figure


def _wrapped_size(tree: "xarray.DataTree") -> tuple[float, float]:
    number = len(tree["posterior"].data_vars)
    return 3.2 * min(3, number), 0.4 + 2.4 * math.ceil(number / 3)


def _cells_of_rows(
    posterior: TeamPosterior,
    rows: Sequence[tuple[Any, ...]] | None,
    width: int,
) -> "xarray.DataTree":
    """Cells of rows under names that say what they are, as ArviZ wants them.

    With a width, one cell of each row under its full name, broken at that width; with 0, all cells
    under the letter of the row.
    """
    import arviz

    chains = chains_of(posterior)
    chosen = choose_rows(posterior) if rows is None else tuple(RowChoice(*row) for row in rows)
    if not chosen:
        raise ValueError("rows: there is no row to plot")
    variables = {}
    for number, row in enumerate(chosen):
        draws = _row_draws(posterior, chains, row)
        values = value_names(posterior, row)
        rhat = split_rhat(draws)
        cells = range(len(values))
        if width:
            worst = np.where(np.isnan(rhat), -np.inf, rhat).argmax()
            cells = range(worst, worst + 1)
        for cell in cells:
            title = f"{letter(number)}  P({values[cell]})"
            if width:
                title = fill(f"P({values[cell]}), {row_title(posterior, row)}", width)
            # ArviZ takes a slash for a path.
            variables[title.replace("/", "∕")] = draws[..., cell]
    groups = {"posterior": variables}
    if "diverging" in posterior.result.sample_stats:
        groups["sample_stats"] = {"diverging": posterior.result.sample_stats["diverging"]}
    return arviz.from_dict(groups)


def _row_draws(
    posterior: TeamPosterior, chains: Mapping[str, np.ndarray], row: RowChoice
) -> Float[np.ndarray, "chain draw values"]:
    index = check_row(posterior, row, chains)
    return np.asarray(chains[row.site][:, :, *index], np.float64)


def _arviz_figure(
    name: str,
    tree: "xarray.DataTree",
    size: tuple[float, float],
    chain_legend: bool = False,
    legend: Sequence[str] = (),
    width_ratios: Sequence[int] | None = None,
    **options: Any,
) -> "matplotlib.figure.Figure":
    """Have ArviZ draw, and take the figure out of pyplot's registry."""
    import arviz
    import matplotlib
    from cycler import cycler
    from matplotlib import pyplot
    from matplotlib.lines import Line2D

    colors = [BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY]
    layout: dict[str, Any] = {"figsize": size, "layout": "constrained"}
    if width_ratios is not None:
        layout["width_ratios"] = width_ratios
    before = set(pyplot.get_fignums())
    try:
        with figure_style(), matplotlib.rc_context({"axes.prop_cycle": cycler(color=colors)}):
            collection = getattr(arviz, name)(
                tree,
                backend="matplotlib",
                figure_kwargs=layout,
                **options,
            )
            figure = collection.get_viz("figure")
            for own in list(figure.legends):  # where ArviZ puts one, it takes a panel's room
                own.remove()
            num_chains = tree["posterior"].sizes["chain"]
            if chain_legend and 1 < num_chains <= len(colors):
                legend = [f"chain {chain}" for chain in range(num_chains)]
            handles = [
                Line2D([], [], color=color, label=label)
                for color, label in zip(colors, legend, strict=False)
            ]
            legend_below(figure, True, None, handles)
            return figure
    finally:
        for number in set(pyplot.get_fignums()) - before:
            pyplot.close(number)
