"""What agents had in mind over an episode."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Int

from btil.analysis.metrics import agent_position
from btil.analysis.plots.layout import legend_below, make_axes
from btil.demonstrations import Demonstrations
from btil.figures import SKY, VERMILION, figure_style
from btil.inference.posterior import TeamPosterior

if TYPE_CHECKING:
    import matplotlib.figure

_STEPS_A_LINE = 400


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
        figure, panels = make_axes(ax, lines, 1, (10.0, height + 1.1 / lines))
        width = math.ceil(len(path) / lines)
        image: Any = None
        for line, axes in enumerate(panels):
            begin, end = line * width, min((line + 1) * width, len(path))
            # Beliefs fill the pixels between the edges of a step, so that marks and steps agree.
            image = axes.imshow(
                beliefs[begin:end].T, cmap="cividis", vmin=0, vmax=1, aspect="auto",
                interpolation="nearest", extent=(begin - 0.5, end - 0.5, len(names) - 0.5, -0.5),
            )  # fmt: skip
            draw_runs(axes, labels[begin:end], begin, -0.28, "white")
            draw_runs(axes, np.where(wrong, -1, path)[begin:end], begin, 0.28, SKY)
            draw_runs(axes, np.where(wrong, path, -1)[begin:end], begin, 0.28, VERMILION)
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
            Line2D([], [], color=color, linewidth=4, label=label, path_effects=outline())
            for label, color in marks
        ]
        legend_below(figure, ax is None, panels[-1], handles)
    return figure


def outline() -> list[Any]:
    """A thin black edge, so that a bar is seen on bright and on dark ground."""
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=5, foreground="black"), Normal()]


def draw_runs(
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
