"""R-hat and effective sample size of thousands of rows at a glance."""

from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from btil.analysis.plots.layout import ROLES, make_axes
from btil.analysis.plots.rows import RowChoice, chains_of, expected_visits, letter, row_title
from btil.arguments import check_values
from btil.figures import figure_style
from btil.inference.chains import RHAT_LIMIT, ess, rhat
from btil.posterior.beliefs import Posterior

if TYPE_CHECKING:
    import matplotlib.figure
    import pandas as pd

_ENOUGH_A_CHAIN = 100
_STATISTICS = ("rhat", "ess")
# Rows never read are put at the left edge.
_SELDOM = 0.01


def row_diagnostics(posterior: Posterior, with_ess: bool = True) -> "pd.DataFrame":
    """How well chains agree on each row of the learned tables, and how much data the row saw.

    Args:
        posterior: A posterior with chains.
        with_ess: Whether effective sample sizes are wanted; they take most of the time.

    Returns:
        A line per row: `site`, `context`, `latent` (-1 in an initial table), `visits` (expected
        reads by the training data), `rhat` (largest R-hat of its cells, NaN where none varies or
        there are too few draws) and `ess` (least bulk effective sample size of its cells; NaN
        likewise): those of `posterior.draws_info`, row by row.

    Raises:
        ValueError: If the posterior has no chains.

    Example:
        >>> row_diagnostics(posterior).sort_values("rhat").tail()  # doctest: +SKIP
    """
    import pandas as pd

    parts = []
    chains = chains_of(posterior)
    if not chains:
        raise ValueError(
            "the model has no tables with rows; posterior.draws_info has its parameters"
        )
    visits = expected_visits(posterior)
    for site, draws in chains.items():
        hats = rhat(draws)
        size = ess(draws) if with_ess else np.full(hats.shape, np.nan)
        index = np.indices(hats.shape[:-1]).reshape(hats.ndim - 1, -1)
        parts.append(
            pd.DataFrame(
                {
                    "site": site,
                    "context": index[0],
                    "latent": index[1] if len(index) > 1 else -1,
                    "visits": visits[site].ravel(),
                    # fmax and fmin pass over NaN.
                    "rhat": np.fmax.reduce(hats, axis=-1).ravel(),
                    "ess": np.fmin.reduce(size, axis=-1).ravel(),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def plot_row_diagnostics(
    posterior: Posterior, statistic: str = "rhat", ax: Any = None, num_worst: int = 6
) -> "matplotlib.figure.Figure":
    """Every row of the learned tables as a point: how well chains agree, how much data it saw.

    Across, how often the data read the row, in expectation; upright, the largest R-hat of its
    cells, or the least effective sample size. The worst rows have letters and are named below.
    Rows at the left are little more than their priors: trouble there hurts least.

    Args:
        posterior: A posterior with chains.
        statistic: "rhat" or "ess".
        ax: Matplotlib axes; None: a new figure.
        num_worst: Number of rows that are named.

    Returns:
        The figure.

    Raises:
        ValueError: If the posterior has no chains, or there is no such statistic.

    Example:
        >>> plot_row_diagnostics(posterior, "ess")  # doctest: +SKIP
    """
    if statistic not in _STATISTICS:
        raise ValueError(f"statistic must be one of {', '.join(_STATISTICS)}, got {statistic!r}")
    check_values({"num_worst": num_worst})
    table = row_diagnostics(posterior, with_ess=statistic == "ess")
    known = table[table[statistic].notna()]
    worst = known.sort_values(
        [statistic, "visits"], ascending=[statistic == "ess", False], kind="stable"
    ).head(num_worst)
    names = [
        f"{letter(i)}: {_value(statistic, row[statistic])}, n = {row.visits:,.1f}, "
        + shorten(row_title(posterior, _choice(row)), 150, placeholder=" …")
        for i, (_, row) in enumerate(worst.iterrows())
    ]
    num_chains = next(iter(chains_of(posterior).values())).shape[0]
    # Up and down are good and bad: rows below the line have few independent draws.
    limit = RHAT_LIMIT if statistic == "rhat" else _ENOUGH_A_CHAIN * num_chains
    bad = known[statistic] >= limit if statistic == "rhat" else known[statistic] < limit
    with figure_style():
        figure, (axes,) = make_axes(ax, 1, 1, (8.0, 3.9 + 0.16 * len(names)))
        handles = _draw_rows(axes, known, statistic, limit)
        places = np.maximum(worst["visits"], _SELDOM), worst[statistic]
        _name_points(axes, np.stack(places, axis=1))
        told = (
            f"R-hat of {limit} or more"
            if statistic == "rhat"
            else f"fewer than {limit:,} independent draws"
        )
        left_out = len(table) - len(known)
        axes.set_title(
            f"{posterior.method}: {bad.sum():,} of {len(known):,} rows have {told}"
            + (f"; {left_out:,} that never vary are left out" if left_out else ""),
            loc="left",
        )
        if names and ax is None:
            figure.supxlabel("\n".join(names), x=0.01, ha="left", fontsize=7.5)
        elif names:
            axes.annotate(
                "\n".join(names), (0, -0.32), xycoords="axes fraction", va="top", fontsize=7
            )
        if handles:
            axes.legend(
                handles=handles, loc="lower right", bbox_to_anchor=(1, 1), ncols=3, markerscale=1.6,
                handletextpad=0.1, columnspacing=1,
            )  # fmt: skip
    return figure


def _draw_rows(axes: Any, known: "pd.DataFrame", statistic: str, limit: float | int) -> list[Any]:
    """A point for every row; gives what the legend explains."""
    from matplotlib.ticker import FuncFormatter

    handles = []
    for role, (color, marker) in ROLES.items():
        own = known[known["site"].str.split("_").str[0] == role]
        if len(own):
            handles.append(axes.scatter(
                own["visits"].clip(lower=_SELDOM), own[statistic], s=10, color=color,
                marker=marker, alpha=0.5, linewidths=0, label=role,
                rasterized=len(own) > 2000,
            ))  # fmt: skip
    axes.axhline(limit, color="0.4", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_xlim(left=_SELDOM / 1.5)
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda v, _: f"≤ {_SELDOM:g}" if v <= _SELDOM else f"{v:,.10g}")
    )
    if statistic == "ess":
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    label = {"rhat": "largest R-hat of the row's cells",
             "ess": "least effective sample size\nof the row's cells"}  # fmt: skip
    axes.set(xlabel="expected number of times that the data read the row", ylabel=label[statistic])
    return handles


def _name_points(axes: Any, points: Float[np.ndarray, "points 2"]) -> None:
    """A letter beside each point, further to the right where another one is in the way."""
    taken: list[np.ndarray] = []
    for number, place in enumerate(axes.transData.transform(points)):
        # Points are 1/72 inch; letters are some 8 of them wide and high.
        spot = place * 72 / axes.get_figure(root=True).dpi + np.array([4.0, 2.0])
        while any((np.abs(spot - other) < [9.0, 8.0]).all() for other in taken):
            spot[0] += 9.0
        taken.append(spot.copy())
        offset = spot - place * 72 / axes.get_figure(root=True).dpi
        axes.annotate(letter(number), points[number], offset, textcoords="offset points",
                      fontsize=8, fontweight="bold")  # fmt: skip


def _value(statistic: str, value: float) -> str:
    return f"R-hat {value:.2f}" if statistic == "rhat" else f"{value:,.0f} draws"


def _choice(row: Any) -> RowChoice:
    latent = int(row["latent"])
    return RowChoice(str(row["site"]), int(row["context"]), None if latent < 0 else latent)
