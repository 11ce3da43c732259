"""What a prior expects of continuous columns, before it is used."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from btil.analysis.plots.layout import make_axes
from btil.arguments import check_count, check_seed
from btil.demonstrations import Demonstrations
from btil.figures import BLUE, figure_style
from btil.models.draws import prior_tables
from btil.models.simulate import simulate
from btil.models.team import TeamModel

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

_BINS = 40
# Beyond so many breadths of what was recorded the prior is not drawn, but counted.
_WIDEST = 4.0


def plot_prior_predictive(
    model: TeamModel,
    demos: Demonstrations,
    columns: Sequence[str] | None = None,
    num_draws: int = 50,
    seed: int = 0,
    axes: Any = None,
) -> "matplotlib.figure.Figure":
    """Columns as the prior expects them, beside those that were recorded.

    Of each of some draws from the prior of a model with emissions the whole recording is made up
    anew, latents and columns. A thin line is the distribution of a column in one of them, the
    thick one that of all; grey is what was recorded. Values are in the units of the data.

    Args:
        model: A model with emissions.
        demos: The demonstrations. What the model leaves open of its prior is taken from them.
        columns: Which columns to draw; None: all that the model explains.
        num_draws: How many draws.
        seed: Seeds them.
        axes: Matplotlib axes, one per column; None: a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If the model has no emissions, a column is none of theirs, or the columns of
            members are covariates of each other at the same step.

    Example:
        >>> task = btil.domains.errands()  # doctest: +SKIP
        >>> plot_prior_predictive(task.recommended_model(), task.simulate(20))  # doctest: +SKIP
    """
    number = check_count("num_draws", num_draws, 1)
    generator = np.random.default_rng([check_seed(seed), 5])
    if model.emissions is None:
        raise ValueError(
            "plot_prior_predictive: the model has no emissions, which are what it draws"
        )
    resolved = model.resolved(demos)
    explained = [
        column
        for agent in demos.agents
        if (family := resolved.emission(agent)) is not None
        for column in family.columns_of(agent)
    ]
    shown = explained if columns is None else list(columns)
    for column in shown:
        if column not in explained:
            raise ValueError(
                f"plot_prior_predictive: {column!r} is not a column of an emission; there are "
                f"{', '.join(explained)}"
            )
    drawn: dict[str, list[np.ndarray]] = {column: [] for column in shown}
    for _ in range(number):
        made = simulate(resolved, demos, prior_tables(resolved, demos, generator), generator)
        for column, values in drawn.items():
            values.append(_known(made.continuous[column]))
    with figure_style():
        figure, panels = make_axes(axes, len(shown), 2, (3.6, 2.5))
        for column, panel in zip(shown, panels, strict=True):
            _draw(panel, column, _known(demos.continuous[column]), drawn[column])
        panels[0].legend(loc="upper right", fontsize=7)
    return figure


def _known(values: Float[np.ndarray, " steps"]) -> Float[np.ndarray, " known"]:
    return values[np.isfinite(values)]


def _draw(
    axes: "matplotlib.axes.Axes",
    column: str,
    recorded: Float[np.ndarray, " _"],
    drawn: list[Float[np.ndarray, " _"]],
) -> None:
    pooled = np.concatenate(drawn)
    low, high = np.quantile(pooled, [0.01, 0.99])
    if len(recorded):
        least, most = recorded.min(), recorded.max()
        room = _WIDEST * max(most - least, 1e-9)
        low, high = max(min(low, least), least - room), min(max(high, most), most + room)
    edges = np.linspace(low, high, _BINS + 1)
    width = edges[1] - edges[0]

    def density(values: np.ndarray) -> np.ndarray:
        return np.histogram(values, edges)[0] / (max(len(values), 1) * width)

    if len(recorded):
        axes.stairs(density(recorded), edges, fill=True, color="0.8", label="recorded")
    for values in drawn:
        axes.stairs(density(values), edges, color=BLUE, alpha=0.25, lw=0.6)
    axes.stairs(density(pooled), edges, color=BLUE, lw=1.8, label=f"prior, {len(drawn)} draws")
    beyond = np.mean((pooled < low) | (pooled > high))
    outside = f"; {beyond:.0%} farther off" if beyond > 0.02 else ""
    middle = np.quantile(pooled, [0.05, 0.95])
    axes.set_title(f"{column}: 90% from {middle[0]:.3g} to {middle[1]:.3g}{outside}")
    # One draw with next to no noise would hide all others.
    top = 1.15 * max([density(pooled).max(), density(recorded).max() if len(recorded) else 0.0])
    axes.set(xlabel=column, ylabel="density", xlim=(low, high), ylim=(0, 1.6 * top))
