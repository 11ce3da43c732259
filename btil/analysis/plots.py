"""Pictures: methods against each other, chains, and what an agent had in mind over an episode.

Every function returns a `matplotlib.figure.Figure` that no global registry knows of: nothing has
to be closed, and `figure.savefig(path)` writes it. Colours are those of Okabe and Ito for
categories and cividis for probabilities, which people with colour-blindness tell apart.
"""

import math
from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.analysis.alignment import align, shared_contexts
from btil.analysis.metrics import agent_position, confusion_matrix
from btil.demonstrations import Demonstrations
from btil.figures import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILION,
    figure_style,
    new_figure,
)
from btil.inference.posterior import TeamPosterior
from btil.inference.result import DirichletRows, DrawnRows

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure
    import xarray

_ROLES = {"policy": (BLUE, "o"), "transition": (VERMILION, "s"), "initial": (GREEN, "^")}
_INTERVAL = 0.89
# Standard deviations below this are rounding: the cell is known.
_NO_SD = 1e-7
_MOST_CELLS = 900
_STEPS_A_LINE = 400


def _axes(
    given: Any, number: int, columns: int, size: tuple[float, float]
) -> tuple["matplotlib.figure.Figure", list["matplotlib.axes.Axes"]]:
    """The axes given, or so many new ones in a grid; `size` is that of one of them."""
    if given is None:
        columns = min(columns, number)
        lines = math.ceil(number / columns)
        figure = new_figure(columns * size[0], lines * size[1])
        grid = figure.subplots(lines, columns, squeeze=False).ravel().tolist()
        for unused in grid[number:]:
            unused.remove()
        return figure, grid[:number]
    axes = np.atleast_1d(np.asarray(given, object)).ravel().tolist()
    if len(axes) != number:
        raise ValueError(f"axes: {len(axes)} given, {number} are needed")
    return axes[0].get_figure(root=True), axes


# ---------------------------------------------------------------------- method against method


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
    reference: TeamPosterior,
    others: Mapping[str, TeamPosterior],
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
    _check_others(others)
    visits = expected_visits(reference)
    with figure_style():
        figure, panels = _axes(axes, len(others), 3, (3.4, 4.1))
        drawn: dict[str, Any] = {}
        for panel, (name, posterior) in zip(panels, others.items(), strict=True):
            own = align(posterior, reference)
            tables = _common_cells(own, reference, visits)
            drawn |= _draw_against(panel, reference, own, tables, max_cells, name)
        for panel in panels:
            panel.set_xlabel(f"posterior mean, {reference.method}")
        handles = [drawn[role] for role in _ROLES if role in drawn]
        _legend_below(figure, axes is None, panels[-1], handles)
    return figure


def _draw_against(
    axes: Any,
    reference: TeamPosterior,
    posterior: TeamPosterior,
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
        x_low, x_high = _intervals(reference, cells.site, cells.reference[own_kept])
        y_low, y_high = _intervals(posterior, cells.site, cells.own[own_kept])
        color, marker = _ROLES[cells.role]
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
    reference: TeamPosterior, others: Mapping[str, TeamPosterior], ax: Any = None
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
        groups += [(name, r, np.concatenate(by_role[r])) for r in _ROLES if r in by_role]
    with figure_style():
        figure, (axes,) = _axes(ax, 1, 1, (7.0, 1.1 + 0.28 * len(groups) + 0.12 * len(others)))
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
            color, marker = _ROLES[role]
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
        _legend_below(figure, ax is None, axes, [handles[r] for r in _ROLES if r in handles])
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


def _check_others(others: Mapping[str, TeamPosterior]) -> None:
    if not others:
        raise ValueError("others: at least one posterior is needed to compare with the reference")


def _common_cells(
    posterior: TeamPosterior, reference: TeamPosterior, visits: Mapping[str, np.ndarray]
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


def _intervals(
    posterior: TeamPosterior, site: str, cells: Int[np.ndarray, " cells"]
) -> Float[np.ndarray, "2 cells"]:
    """Central 89% intervals of cells, by their flat indices."""
    levels = [(1 - _INTERVAL) / 2, (1 + _INTERVAL) / 2]
    rows = posterior.result.rows[site]
    if isinstance(rows, DirichletRows):
        from scipy.stats import beta

        own = rows.concentration.ravel()[cells]
        rest = np.broadcast_to(rows.concentration.sum(-1, keepdims=True), rows.concentration.shape)
        rest = rest.ravel()[cells] - own
        single = rest <= 0  # rows of one cell: it is 1
        bounds = [beta.ppf(level, own, np.where(single, 1.0, rest)) for level in levels]
        return np.where(single, 1.0, bounds)
    if isinstance(rows, DrawnRows):
        draws = rows.draws.reshape(-1, math.prod(rows.draws.shape[2:]))
    else:
        draws = posterior.sample(1000, seed=0)[site].reshape(1000, -1)
    return np.quantile(draws[:, cells].astype(np.float64), levels, axis=0)


# ---------------------------------------------------------------------- the bound


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
        figure, panels = _axes(axes, len(traces), 3, (3.6, 2.9))
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


# ---------------------------------------------------------------------- one episode, one agent


def plot_timeline(
    posterior: TeamPosterior,
    demos: Demonstrations,
    episode: int,
    agent: str,
    ax: Any = None,
    condition_on_labels: bool = False,
) -> "matplotlib.figure.Figure":
    """What an agent had in mind over an episode, as a method sees it.

    A heat map of the probability of each latent at each step given the whole episode; the true
    labels, where there are any, as white bars at the top of a latent's lane, the most probable
    path (Viterbi) as blue ones at its bottom, red where it is wrong. Long episodes go over
    several lines.

    Args:
        posterior: What is believed of the team.
        demos: Demonstrations with the episode.
        episode: Position of the episode in `demos`.
        agent: Name of the agent.
        ax: Matplotlib axes for the whole episode on one line; None: a new figure.
        condition_on_labels: Whether the method may see the labels.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no such episode or agent, or the episode is impossible under the
            posterior.
    """
    from matplotlib.lines import Line2D

    position = agent_position(demos, agent)
    chosen = demos.select([episode])
    seen = chosen if condition_on_labels else chosen.without_labels()
    beliefs = posterior.smooth(seen)[agent]
    path = posterior.decode(seen)[:, position]
    labels = chosen.latents[:, position]
    wrong = (labels >= 0) & (path != labels)
    names = chosen.value_names(f"latent_{agent}")
    with figure_style():
        lines = 1 if ax is not None else max(1, round(len(path) / _STEPS_A_LINE))
        height = 0.24 * len(names) + 0.45
        figure, panels = _axes(ax, lines, 1, (10.0, height + 1.1 / lines))
        width = math.ceil(len(path) / lines)
        image: Any = None
        for line, axes in enumerate(panels):
            begin, end = line * width, min((line + 1) * width, len(path))
            # Beliefs fill the pixels between the edges of a step, so that marks and steps agree.
            image = axes.imshow(
                beliefs[begin:end].T, cmap="cividis", vmin=0, vmax=1, aspect="auto",
                interpolation="nearest", extent=(begin - 0.5, end - 0.5, len(names) - 0.5, -0.5),
            )  # fmt: skip
            _draw_runs(axes, labels[begin:end], begin, -0.28, "white")
            _draw_runs(axes, np.where(wrong, -1, path)[begin:end], begin, 0.28, SKY)
            _draw_runs(axes, np.where(wrong, path, -1)[begin:end], begin, 0.28, VERMILION)
            axes.set_yticks(range(len(names)), names)
            axes.set_yticks(np.arange(len(names) - 1) + 0.5, minor=True)
            axes.grid(which="minor", axis="y", color="white", linewidth=0.4, alpha=0.6)
            axes.tick_params(axis="y", which="both", length=0)
            axes.set_xlim(begin - 0.5, begin + width - 0.5)
            axes.spines[:].set_visible(False)
        panels[-1].set_xlabel("step")
        error = "no labels"
        if (labels >= 0).any():
            error = f"{wrong.sum() / (labels >= 0).sum():.1%} of labelled steps decoded wrongly"
        panels[0].set_title(
            f"{agent}, episode {chosen.episode_ids[0]}, {posterior.method}: {error}", loc="left"
        )
        figure.colorbar(
            image, ax=panels, label="probability given\nthe whole episode", pad=0.01,
            aspect=12 * lines, fraction=0.03,
        )  # fmt: skip
        marks = [
            ("true label", "white"),
            ("most probable path", SKY),
            ("most probable path, wrong", VERMILION),
        ]
        handles = [
            Line2D([], [], color=color, linewidth=4, label=label, path_effects=_outline())
            for label, color in marks
        ]
        _legend_below(figure, ax is None, panels[-1], handles)
    return figure


def _outline() -> list[Any]:
    """A thin black edge, so that a bar is seen on bright and on dark ground."""
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=5, foreground="black"), Normal()]


def _draw_runs(
    axes: Any, values: Int[np.ndarray, " steps"], begin: int, offset: float, color: str
) -> None:
    """A bar for every run of equal values, in the lane of the value; none where it is -1."""
    starts = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    ends = np.append(starts[1:], len(values))
    known = values[starts] >= 0
    starts, ends = starts[known], ends[known]
    axes.barh(
        values[starts] + offset, ends - starts, left=starts + begin - 0.5, height=0.2,
        color=color, edgecolor="black", linewidth=0.3,
    )  # fmt: skip


def plot_confusion(
    demos: Demonstrations, decoded: Any, agent: str, ax: Any = None
) -> "matplotlib.figure.Figure":
    """Which latents are taken for which: the confusion matrix of decoded against true latents.

    Colours are shares of a row, i.e. of the steps with that label; the numbers are counts.

    Args:
        demos: Demonstrations with labels, the truth.
        decoded: Whole numbers (steps, agents), e.g. `posterior.decode(demos.without_labels())`.
        agent: Name of the agent.
        ax: Matplotlib axes; None: a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: As `confusion_matrix`.
    """
    counts = confusion_matrix(demos, decoded, agent)
    names = demos.value_names(f"latent_{agent}")
    totals = counts.sum(1, keepdims=True)
    shares = np.where(totals > 0, counts / np.maximum(totals, 1), np.nan)
    with figure_style():
        side = max(2.4, 0.62 * len(names))
        figure, (axes,) = _axes(ax, 1, 1, (side + 2.4, side + 1.1))
        image = axes.imshow(shares, cmap="cividis", vmin=0, vmax=1)
        for row, column in np.ndindex(*counts.shape):
            bright = shares[row, column] > 0.55
            axes.text(
                column, row, f"{counts[row, column]:,}", ha="center", va="center", fontsize=8,
                color="black" if bright or not totals[row] else "white",
            )  # fmt: skip
        longest = max(map(len, names))
        axes.set_xticks(range(len(names)), names, rotation=40 if longest > 3 else 0,
                        ha="right" if longest > 3 else "center",
                        rotation_mode="anchor")  # fmt: skip
        axes.set_yticks(range(len(names)), names)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        correct = f"{np.trace(counts) / counts.sum():.1%} correct" if counts.any() else "no labels"
        axes.set(
            xlabel="decoded",
            ylabel="true label",
            title=f"{agent}: {counts.sum():,} labelled steps, {correct}",
        )
        figure.colorbar(image, ax=axes, label="share of the true label's steps", shrink=0.8)
    return figure


def _legend_below(figure: Any, own: bool, axes: Any, handles: Sequence[Any]) -> None:
    """A legend outside the data; only a figure of our own can make room for it by itself."""
    if handles and own:
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    elif handles:
        axes.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=len(handles)
        )


# ---------------------------------------------------------------------- chains


class RowChoice(NamedTuple):
    """One probability row of a learned table.

    Attributes:
        site: Name of the table, e.g. "policy_alice".
        context: Row of `posterior.contexts`.
        latent: The latent; None for an initial distribution.
    """

    site: str
    context: int
    latent: int | None = None


def choose_rows(
    posterior: TeamPosterior, num_worst: int = 3, num_visited: int = 3
) -> tuple[RowChoice, ...]:
    """Rows worth looking at: those whose chains agree least, and those that matter most.

    Args:
        posterior: A posterior with chains.
        num_worst: Number of rows with the largest R-hat.
        num_visited: Number of tables of which the row is added that the data read most often, by
            the expected number of steps in that context and latent.

    Returns:
        Rows, the worst first; none twice.

    Raises:
        ValueError: If the posterior has no chains.
    """
    rhats = {}
    for site, draws in _chains(posterior).items():
        cells = _split_rhat(draws)
        rhats[site] = np.where(np.isnan(cells), -np.inf, cells).max(-1)
    flat = [
        (float(value), _choice(site, index))
        for site, values in rhats.items()
        for index, value in np.ndenumerate(values)
        if value > -np.inf
    ]
    flat.sort(key=lambda pair: -pair[0])
    chosen = [choice for _, choice in flat[:num_worst]]
    visits = expected_visits(posterior)
    fullest = [
        (values.max(), _choice(site, np.unravel_index(values.argmax(), values.shape)))
        for site, values in visits.items()
    ]
    fullest.sort(key=lambda pair: -pair[0])
    chosen += [choice for _, choice in fullest[:num_visited]]
    return tuple(dict.fromkeys(chosen))


def _choice(site: str, index: Any) -> RowChoice:
    return RowChoice(site, *map(int, index))


def _chains(posterior: TeamPosterior) -> dict[str, Float[np.ndarray, "chain draw ..."]]:
    rows = posterior.result.rows
    chains = {site: one.draws for site, one in rows.items() if isinstance(one, DrawnRows)}
    if not chains or posterior.method == "svi":
        raise ValueError(f"{posterior.method} has no chains to plot; use method 'nuts' or 'gibbs'")
    return chains


def _split_rhat(draws: Float[np.ndarray, "chain draw ..."]) -> Float[np.ndarray, "..."]:
    from btil.inference.chains import split_rhat

    return split_rhat(draws)


def expected_visits(posterior: TeamPosterior) -> dict[str, Float[np.ndarray, "contexts ..."]]:
    """How often the training data read each row of the learned tables, in expectation.

    A step reads the policy row of its context and latent; the latent counts by its smoothed
    probability.

    Args:
        posterior: The posterior, whose beliefs about latents are used.

    Returns:
        {site: (contexts, latents)}, for an initial table (contexts,).
    """
    bound = posterior.bound
    beliefs = posterior.smooth(posterior.demos)
    visits = {site: np.zeros(table.shape[:-1]) for site, table in bound.learned.items()}
    for agent, reads in bound.rows.items():
        policy, transition, initial = (
            bound.table(role, agent).name for role in ("policy", "transition", "initial")
        )
        moved = np.flatnonzero(reads.transition >= 0)
        if policy in visits:
            np.add.at(visits[policy], reads.policy, beliefs[agent])
        if transition in visits:
            np.add.at(visits[transition], reads.transition[moved], beliefs[agent][moved - 1])
        if initial in visits:
            np.add.at(visits[initial], reads.initial, 1.0)
    return visits


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
    tree = _cells_of_rows(posterior, rows, width=38)
    figure = _arviz_figure("plot_rank", tree, _wrapped_size(tree), chain_legend=True, col_wrap=3)
    for axes in figure.axes:
        for text in list(axes.texts):  # p-values, over the lines where chains disagree most
            text.remove()
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
    _chains(posterior)
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
    key = [f"{_letter(i)}: {_row_title(posterior, row)}" for i, row in enumerate(chosen)]
    figure.suptitle("\n".join(fill(line, 110) for line in key), x=0.01, ha="left", fontsize=8)
    return figure


def _letter(number: int) -> str:
    """A, B, ..., Z, A1, B1, ..."""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


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

    chains = _chains(posterior)
    chosen = choose_rows(posterior) if rows is None else tuple(RowChoice(*row) for row in rows)
    if not chosen:
        raise ValueError("rows: there is no row to plot")
    variables = {}
    for number, row in enumerate(chosen):
        draws = _row_draws(posterior, chains, row)
        values = _value_names(posterior, row)
        rhat = _split_rhat(draws)
        cells = range(len(values))
        if width:
            worst = np.where(np.isnan(rhat), -np.inf, rhat).argmax()
            cells = range(worst, worst + 1)
        for cell in cells:
            title = f"{_letter(number)}  P({values[cell]})"
            if width:
                title = fill(f"P({values[cell]}), {_row_title(posterior, row)}", width)
            # ArviZ takes a slash for a path.
            variables[title.replace("/", "∕")] = draws[..., cell]
    groups = {"posterior": variables}
    if "diverging" in posterior.result.sample_stats:
        groups["sample_stats"] = {"diverging": posterior.result.sample_stats["diverging"]}
    return arviz.from_dict(groups)


def _row_draws(
    posterior: TeamPosterior, chains: Mapping[str, np.ndarray], row: RowChoice
) -> Float[np.ndarray, "chain draw values"]:
    if row.site not in chains:
        raise ValueError(f"rows: no learned table {row.site!r}; there are {', '.join(chains)}")
    table = posterior.bound.tables[row.site]
    limits = dict(zip(("context", "latent"), table.shape[:-1], strict=False))
    for name, size in limits.items():
        index = getattr(row, name)
        if index is None or not 0 <= index < size:
            raise ValueError(f"rows: {row} has {name} {index}; allowed are 0..{size - 1}")
    index = [getattr(row, name) for name in limits]
    return np.asarray(chains[row.site][(slice(None), slice(None), *index)], np.float64)


def _value_names(posterior: TeamPosterior, row: RowChoice) -> tuple[str, ...]:
    table = posterior.bound.tables[row.site]
    kind = "action" if table.contexts.role == "policy" else "latent"
    return posterior.demos.value_names(f"{kind}_{table.agents[0]}")


def _row_title(posterior: TeamPosterior, row: RowChoice) -> str:
    """What a row is, in the words of the data."""
    table = posterior.bound.tables[row.site]
    agent, role = table.agents[0], table.contexts.role
    who = agent if len(table.agents) == 1 else "all agents"
    given = []
    if row.latent is not None:
        given.append(posterior.demos.value_names(f"latent_{agent}")[row.latent])
    context = posterior.contexts(agent, role).iloc[row.context]
    for name, value in context.items():
        own = str(name).replace(f"{agent}_", "", 1)
        given.append(f"{own}={value}")
    return f"{role} of {who}" + (f" given {', '.join(given)}" if given else "")


def _arviz_figure(
    name: str,
    tree: "xarray.DataTree",
    size: tuple[float, float],
    chain_legend: bool = False,
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
            num_chains = tree["posterior"].sizes["chain"]
            if chain_legend and 1 < num_chains <= len(colors):
                handles = [
                    Line2D([], [], color=color, label=f"chain {chain}")
                    for chain, color in enumerate(colors[:num_chains])
                ]
                _legend_below(figure, True, None, handles)
            return figure
    finally:
        for number in set(pyplot.get_fignums()) - before:
            pyplot.close(number)
