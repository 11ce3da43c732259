"""Motion on a plane: paths by what was in mind, and what is expected of each latent."""

from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from btil.analysis.metrics import agent_position
from btil.analysis.plots.layout import look, make_axes
from btil.demonstrations import Demonstrations
from btil.demonstrations.directions import plane_columns
from btil.figures import figure_style
from btil.models.emission import PREVIOUS
from btil.posterior.posterior import TeamPosterior

if TYPE_CHECKING:
    import matplotlib.figure

# Arrows along each side.
_ARROWS = 11
_MOST_EPISODES = 12


def plot_paths(
    demos: Demonstrations,
    agent: str,
    x: str,
    y: str,
    latents: Any = None,
    episodes: Any = None,
    ax: Any = None,
) -> "matplotlib.figure.Figure":
    """Paths on a plane, coloured by latent.

    Args:
        demos: Demonstrations with continuous columns.
        agent: Name of the agent.
        x: The column of its first coordinate.
        y: The column of its second one.
        latents: Whole numbers (steps, agents), e.g. `posterior.decode(demos)`; None: the labels.
            Steps without one are grey.
        episodes: Which to draw, by their positions; None: the first twelve.
        ax: Matplotlib axes; None: a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no such agent, column or episode, or the latents do not fit.

    Example:
        >>> task = btil.domains.errands()  # doctest: +SKIP
        >>> plot_paths(task.simulate(5), "ann", "ann_x", "ann_y")  # doctest: +SKIP
    """
    from matplotlib.lines import Line2D

    position = agent_position(demos, agent)
    at = plane_columns(demos, (x, y), f"plot_paths of {agent}")
    found = shown_latents(demos, latents)[:, position]
    chosen = np.arange(min(demos.num_episodes, _MOST_EPISODES)) if episodes is None else episodes
    chosen = np.atleast_1d(np.asarray(chosen))
    if chosen.dtype.kind not in "iu" or not np.isin(chosen, np.arange(demos.num_episodes)).all():
        raise ValueError(
            f"episodes: {episodes!r}; allowed are positions from 0 to {demos.num_episodes - 1}"
        )
    names = demos.value_names(f"latent_{agent}")
    with figure_style():
        figure, (axes,) = make_axes(ax, 1, 1, (5.2, 4.4))
        for episode in chosen.tolist():
            first = int(demos.episode_starts[episode])
            end = first + int(demos.episode_lengths[episode])
            for t in range(first, end - 1):
                color = look(int(found[t])).color if found[t] >= 0 else "0.75"
                axes.plot(*at[t : t + 2].T, color=color, lw=1.1, solid_capstyle="round")
            axes.plot(*at[first], "o", color="0.2", ms=3)
        handles = [
            Line2D([], [], color=look(k).color, label=name)
            for k, name in enumerate(names)
            if np.any(found == k)
        ]
        axes.legend(handles=handles, loc="best", fontsize=8)
        axes.set(
            xlabel=x, ylabel=y, title=f"{agent}: {len(chosen)} episodes, a dot where they begin"
        )
        axes.set_aspect("equal", "datalim")
    return figure


def plot_motion(
    posterior: TeamPosterior,
    agent: str,
    x: str,
    y: str,
    state: Any = None,
    axes: Any = None,
) -> "matplotlib.figure.Figure":
    """Where each latent leads: the expected motion over the plane.

    The emission's first two columns are drawn as arrows, at places on a grid; where they are the
    coordinates themselves (with their previous values as covariates), how far they move. Other
    covariates are held at their means.

    Args:
        posterior: A posterior whose model has a `LinearNormalEmission` of the agent.
        agent: Name of the agent.
        x: The covariate that is the first coordinate, or the column of which it is the previous
            value.
        y: The same of the second one.
        state: Values of the emission's parents, {variable: value}, if it has any.
        axes: Matplotlib axes, one per latent; None: a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If the agent has no such emission, or the covariates are not there.

    Example:
        >>> plot_motion(posterior, "ann", "ann_x", "ann_y")  # doctest: +SKIP
    """
    demos = posterior.demos
    given = None if state is None else {name: [value] for name, value in dict(state).items()}
    coefficients, covariance = (part[0] for part in posterior.emission(agent, given))
    channel = posterior.bound.channels[agent]
    names, columns = channel.family.input_names(agent), channel.family.columns_of(agent)
    places = []
    for name in (x, y):
        matching = [one for one in (name, PREVIOUS + name) if one in names]
        if not matching:
            raise ValueError(
                f"{name} is not a covariate of the emission of {agent}; there are "
                f"{', '.join(names)}"
            )
        places.append(names.index(matching[0]))
    if len(columns) < 2:
        raise ValueError(f"the emission of {agent} has one column, {columns[0]}; arrows need two")
    moves = columns[:2] == (x, y)
    rows = channel.observed.rows
    typical = channel.observed.inputs[rows].mean(0)
    seen = channel.observed.inputs[rows][:, places]
    sides = [
        np.linspace(low, high, _ARROWS) for low, high in zip(seen.min(0), seen.max(0), strict=True)
    ]
    grid = np.stack([side.ravel() for side in np.meshgrid(*sides)], axis=1)
    inputs = np.repeat(typical[None], len(grid), axis=0)
    inputs[:, places] = grid
    latents = demos.value_names(f"latent_{agent}")
    with figure_style():
        figure, panels = make_axes(axes, len(latents), 3, (3.2, 3.0))
        for k, (panel, name) in enumerate(zip(panels, latents, strict=True)):
            arrows = inputs @ coefficients[k][:, :2] - (grid if moves else 0.0)
            panel.quiver(*grid.T, *arrows.T, color=look(k).color, angles="xy", width=0.006)
            noise = np.sqrt(np.diagonal(covariance[k]))[:2]
            panel.set(
                xlabel=x, ylabel=y, title=f"{agent}: {name}, sd {noise[0]:.2g}, {noise[1]:.2g}"
            )
            panel.set_aspect("equal", "datalim")
    return figure


def shown_latents(demos: Demonstrations, latents: Any) -> Int[np.ndarray, "steps agents"]:
    """The latents that a path is coloured by: those that are given, or else the labels.

    Raises:
        ValueError: If they are no whole numbers for every step and agent.
    """
    found = np.asarray(demos.latents if latents is None else latents)
    if found.shape != demos.latents.shape or found.dtype.kind not in "iu":
        raise ValueError(
            f"latents must be whole numbers of shape {demos.latents.shape}, got {found.dtype} of "
            f"shape {found.shape}"
        )
    return found
