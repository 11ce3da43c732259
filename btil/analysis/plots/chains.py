"""Chains of draws, drawn by ArviZ under the names in the data."""

import itertools
import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float

from btil.analysis.plots.layout import legend_below
from btil.analysis.plots.rows import (
    RowChoice,
    chains_of,
    check_parameter,
    check_row,
    choose_rows,
    letter,
    most_moved,
    parameter_chains,
    parameter_names,
    prior_draws,
    prior_parameter_draws,
    row_title,
    value_names,
)
from btil.figures import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, figure_style
from btil.inference.chains import rhat
from btil.posterior.beliefs import Posterior

if TYPE_CHECKING:
    import matplotlib.figure
    import xarray


# Parameters of more cells are not shown unless asked for.
_FEW_CELLS = 9
# A row, as `RowChoice` or a plain tuple (site, context, latent), or the name of a parameter.
Wanted = Sequence[tuple[Any, ...] | str]


class _Cells(NamedTuple):
    """Draws of a row's or a parameter's cells.

    Attributes:
        title: What it is.
        names: Of its cells, such as "P(push)"; one empty name where it is a single number.
        draws: Of its cells.
        quantity: What the draws are: "probability" or "value".
    """

    title: str
    names: tuple[str, ...]
    draws: Float[np.ndarray, "chain draw cells"]
    quantity: str

    def label(self, cell: int) -> str:
        """What a cell is."""
        if self.quantity == "probability":
            return f"{self.names[cell]}, {self.title}"
        return f"{self.title} {self.names[cell]}".rstrip()


def plot_trace(posterior: Posterior, rows: Wanted | None = None) -> "matplotlib.figure.Figure":
    """Density and trace of each chain, by ArviZ, for one cell of each row or parameter.

    The cell is the one whose chains agree least.

    Args:
        posterior: A posterior with chains.
        rows: Which rows, as `RowChoice` or plain tuples (site, context, latent), and which
            parameters of parametric families, by their sites (`posterior.result.parameters`);
            None: the rows of `choose_rows`, and all parameters.

    Returns:
        The figure.

    Raises:
        ValueError: If the posterior has no chains, or a row or parameter does not exist.

    Example:
        >>> plot_trace(posterior, [("policy_ann", 0, 1), "transition_ann_strength"])
        ... # doctest: +SKIP
    """
    cells = _chosen_cells(posterior, rows)
    tree = _worst_cells(posterior, cells, width=100)
    number = len(cells)
    figure = _arviz_figure(
        "plot_trace_dist", tree, (9.5, 1.0 + 1.55 * number), chain_legend=True, compact=False,
        kind="kde", aes={"color": ["chain"], "overlay": ["chain"]},
    )  # fmt: skip
    # ArviZ writes the name below one panel and beside the other, where long ones overlap.
    for one, left, right in zip(cells, figure.axes[::2], figure.axes[1::2], strict=True):
        left.set_title(left.get_xlabel(), loc="left", fontsize=9)
        left.set_xlabel(one.quantity)
        right.set_xlabel("draw")
        right.set_ylabel(one.quantity)
        # Probabilities next to 1 are to be read as such, not as what they lack.
        right.ticklabel_format(axis="y", useOffset=False)
    return figure


def plot_rank(posterior: Posterior, rows: Wanted | None = None) -> "matplotlib.figure.Figure":
    """Ranks of each chain's draws among all, by ArviZ; arguments and cells as in `plot_trace`.

    Chains that agree stay around the middle; where one leaves it further than chance allows, it is
    marked black.
    """
    from matplotlib.ticker import MaxNLocator

    tree = _worst_cells(posterior, _chosen_cells(posterior, rows), width=38)
    if tree.posterior.sizes["chain"] < 2:
        raise ValueError(
            f"plot_rank compares chains, and {posterior.method} has one; use num_chains=4"
        )
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
            axes.set_ylabel("ECDF minus uniform")
    return figure


def plot_ess(posterior: Posterior, rows: Wanted | None = None) -> "matplotlib.figure.Figure":
    """Effective sample size of small intervals, by ArviZ; arguments and cells as in `plot_trace`.

    How many independent draws the chains are worth for the probability of each twentieth of a
    cell's range.
    """
    tree = _worst_cells(posterior, _chosen_cells(posterior, rows), width=38)
    return _arviz_figure("plot_ess", tree, _wrapped_size(tree), col_wrap=3)


def plot_forest(posterior: Posterior, rows: Wanted | None = None) -> "matplotlib.figure.Figure":
    """Means and intervals (50% and 89%) of all cells, by ArviZ, a line per chain.

    Rows and parameters have letters, which are explained above the panel.

    Args:
        posterior: A posterior with chains.
        rows: As in `plot_trace`; None: two rows of either kind of `choose_rows`, and parameters of
            a few cells.

    Returns:
        The figure.

    Raises:
        ValueError: As `plot_trace`.
    """
    chains_of(posterior)
    if rows is None:
        few = [s for s, d in parameter_chains(posterior).items() if d[0, 0].size <= _FEW_CELLS]
        rows = (*choose_rows(posterior, 2, 2), *few)
    cells = _chosen_cells(posterior, rows)
    tree = _all_cells(posterior, cells)
    number = len(tree["posterior"].data_vars)
    figure = _arviz_figure(
        "plot_forest", tree, (8.0, 1.2 + 0.2 * len(cells) + 0.24 * number), chain_legend=True,
        aes={"color": ["chain"]}, width_ratios=[1, 4],
    )  # fmt: skip
    labels, intervals = figure.axes
    labels.set_axis_off()
    intervals.set_xlabel(" or ".join(dict.fromkeys(one.quantity for one in cells)))
    key = [f"{letter(i)}: {one.title}" for i, one in enumerate(cells)]
    text = "\n".join(fill(line, 110) for line in key)
    figure.suptitle(text, x=0.01, ha="left", fontsize=8, parse_math=False)
    return figure


def plot_prior_posterior(
    posterior: Posterior,
    rows: Wanted | None = None,
    num_draws: int = 1000,
    seed: int = 0,
) -> "matplotlib.figure.Figure":
    """What the data have taught: prior and posterior densities, by ArviZ.

    For one cell of each row or parameter, the one whose mean has moved furthest. Works for every
    method.

    Args:
        posterior: Any posterior.
        rows: Which rows and parameters, as in `plot_trace`; None: of every learned table the row
            whose mean has moved furthest, and all parameters.
        num_draws: Draws of the prior, and of the posterior.
        seed: Seeds the draws.

    Returns:
        The figure.

    Raises:
        ValueError: If nothing is learned, or a row or parameter does not exist.

    Example:
        >>> plot_prior_posterior(posterior, [("policy_ann", 0, 1)])  # doctest: +SKIP
    """
    import arviz
    from matplotlib.ticker import MaxNLocator

    chosen = (*most_moved(posterior), *posterior.result.parameters) if rows is None else rows
    if not chosen:
        raise ValueError("rows: there is no row to plot")
    after = posterior.sample(num_draws, seed)
    generator = np.random.default_rng([seed, 2])
    groups: dict[str, dict[str, Any]] = {"prior": {}, "posterior": {}}
    quantities = []
    for one in chosen:
        if isinstance(one, str):
            check_parameter(one, posterior.result.parameters)
            before = prior_parameter_draws(posterior, one, num_draws, generator)
            drawn = np.asarray(after[one], np.float64).reshape(num_draws, -1)
            title, names, quantity = one, parameter_names(posterior, one), "value"
            if _spans_decades(before, drawn):
                before, drawn, quantity = np.log10(before), np.log10(drawn), "log10 of the value"
        else:
            row = RowChoice(*one)
            index = check_row(posterior, row, posterior.result.rows)
            drawn = np.asarray(after[row.site][:, *index], np.float64)
            before = prior_draws(posterior, row, num_draws, generator)
            title, names = row_title(posterior, row), _probabilities(posterior, row)
            quantity = "probability"
        cells = _Cells(title, names, drawn[None], quantity)
        cell = int(np.abs(drawn.mean(0) - before.mean(0)).argmax())
        name = _arviz_name(fill(cells.label(cell), 38), groups["prior"])
        groups["prior"][name] = before[None, :, cell]
        groups["posterior"][name] = drawn[None, :, cell]
        quantities.append(quantity)
    tree = arviz.from_dict(groups)
    figure = _arviz_figure(
        "plot_prior_posterior", tree, _wrapped_size(tree), col_wrap=3, kind="hist",
        legend=("prior", "posterior"),
    )  # fmt: skip
    for number, (axes, quantity) in enumerate(zip(figure.axes, quantities, strict=True)):
        axes.set_xlabel(quantity)
        axes.ticklabel_format(axis="x", useOffset=False)
        axes.locator_params(axis="x", nbins=4)
        axes.yaxis.set_major_locator(MaxNLocator(3))
        axes.spines["left"].set_visible(True)
        axes.tick_params(axis="y", left=True, labelleft=True)
        if number % 3 == 0:
            axes.set_ylabel("density")
    return figure


def _spans_decades(before: Float[np.ndarray, "..."], drawn: Float[np.ndarray, "..."]) -> bool:
    """Whether a positive parameter, beforehand, may well be a hundred times what else it may be."""
    low, high = np.quantile(before, [0.05, 0.95])
    return bool(min(before.min(), drawn.min()) > 0 and high > max(1.0, 100 * low))


def _wrapped_size(tree: "xarray.DataTree") -> tuple[float, float]:
    number = len(tree["posterior"].data_vars)
    return 3.2 * min(3, number), 0.4 + 2.4 * math.ceil(number / 3)


def _chosen_cells(posterior: Posterior, wanted: Wanted | None) -> list[_Cells]:
    """What is wanted, or else what is worth a look, with its draws."""
    chains, parameters = chains_of(posterior), parameter_chains(posterior)
    if wanted is None:
        wanted = (*choose_rows(posterior), *parameters)
    if not wanted:
        raise ValueError("rows: there is no row to plot")
    cells = []
    for one in wanted:
        if isinstance(one, str):
            check_parameter(one, parameters)
            draws = np.asarray(parameters[one], np.float64)
            flat = draws.reshape(*draws.shape[:2], -1)
            cells.append(_Cells(one, parameter_names(posterior, one), flat, "value"))
        else:
            row = RowChoice(*one)
            index = check_row(posterior, row, chains)
            draws = np.asarray(chains[row.site][:, :, *index], np.float64)
            title = row_title(posterior, row)
            cells.append(_Cells(title, _probabilities(posterior, row), draws, "probability"))
    return cells


def _probabilities(posterior: Posterior, row: RowChoice) -> tuple[str, ...]:
    return tuple(f"P({value})" for value in value_names(posterior, row))


def _worst_cells(posterior: Posterior, cells: Sequence[_Cells], width: int) -> "xarray.DataTree":
    """Of each the cell whose chains agree least, under its full name, broken at that width."""
    variables: dict[str, Any] = {}
    for one in cells:
        hats = rhat(one.draws)
        worst = int(np.where(np.isnan(hats), -np.inf, hats).argmax())
        variables[_arviz_name(fill(one.label(worst), width), variables)] = one.draws[..., worst]
    return _arviz_tree(posterior, variables)


def _all_cells(posterior: Posterior, cells: Sequence[_Cells]) -> "xarray.DataTree":
    """All cells, under the letter of their row or parameter."""
    variables: dict[str, Any] = {}
    for number, one in enumerate(cells):
        for cell, name in enumerate(one.names):
            title = _arviz_name(f"{letter(number)}  {name}".rstrip(), variables)
            variables[title] = one.draws[..., cell]
    return _arviz_tree(posterior, variables)


def _arviz_name(name: str, taken: Mapping[str, Any]) -> str:
    """ArviZ takes a slash for a path; of names that look alike each gets a panel of its own."""
    plain = name.replace("/", "∕")
    numbered = itertools.chain([plain], (f"{plain} ({k})" for k in itertools.count(2)))
    return next(one for one in numbered if one not in taken)


def _arviz_tree(posterior: Posterior, variables: Mapping[str, Any]) -> "xarray.DataTree":
    import arviz

    groups: dict[str, Any] = {"posterior": variables}
    if "diverging" in posterior.result.sample_stats:
        groups["sample_stats"] = {"diverging": posterior.result.sample_stats["diverging"]}
    return arviz.from_dict(groups)


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
            for axes in list(figure.axes):  # a line of panels that is not full has empty ones
                if not axes.has_data() and not axes.texts:
                    axes.remove()
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
