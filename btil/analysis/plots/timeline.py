"""What agents had in mind over an episode, and where their minds were misaligned."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.analysis.metrics import agent_position, with_learned_latents
from btil.analysis.plots.layout import legend_below, look, make_axes
from btil.analysis.teamwork import misaligned, misalignment_probability, runs
from btil.demonstrations import Demonstrations
from btil.figures import BLUE, SKY, VERMILION, figure_style
from btil.posterior.beliefs import Posterior

if TYPE_CHECKING:
    import matplotlib.figure

    from btil.domains.gridworld.task import GridTask

_STEPS_A_LINE = 400
_KINDS = ("heatmap", "bands")
# The lanes of labels and of the decoded path, outside the probabilities from 0 to 1.
_LABEL_LANE, _PATH_LANE = 1.17, -0.17


def plot_timeline(
    posterior: Posterior,
    demos: Demonstrations,
    episode: int | str,
    agent: str | Sequence[str] | None = None,
    ax: Any = None,
    use_labels: bool = False,
    kind: str = "heatmap",
    num_draws: int | None = None,
) -> "matplotlib.figure.Figure":
    """What agents had in mind over an episode, as a method sees it.

    As a heat map: the probability of each latent at each step given the whole episode; the true
    labels, where there are any, as white bars at the top of a latent's lane, the most probable
    path (Viterbi) as blue ones at its bottom, red where it is wrong. As bands: the probabilities
    one above the other, with labels above and the path below them in the same colours. Long
    episodes go over several lines.

    Args:
        posterior: What is believed of the team.
        demos: Demonstrations with the episode.
        episode: Position of the episode in `demos`, or its id where ids are texts.
        agent: Name of the agent, or names, a panel each; None: all agents.
        ax: Matplotlib axes, one for each agent, for the whole episode on one line; None: a new
            figure.
        use_labels: Whether the labels count as observed, to complete a partly labelled episode;
            else they are drawn beside what is believed without them.
        kind: "heatmap" or "bands".
        num_draws: Probabilities are averaged over so many posterior draws of the tables, which
            adds the uncertainty about the tables; None: the tables' posterior means are used.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no such episode, agent or kind, or the episode is impossible under
            the posterior.

    Example:
        >>> plot_timeline(posterior, demos, 0, "ann", kind="bands")  # doctest: +SKIP
    """
    if kind not in _KINDS:
        raise ValueError(f"kind must be one of {', '.join(_KINDS)}, got {kind!r}")
    agents = demos.agents if agent is None else (agent,) if isinstance(agent, str) else tuple(agent)
    if not agents:
        raise ValueError("agent: at least one is needed")
    positions = [agent_position(demos, name) for name in agents]
    chosen = with_learned_latents(demos.select([episode]), posterior)
    beliefs = posterior.smooth(chosen, use_labels, num_draws=num_draws)
    decoded = posterior.decode(chosen, use_labels)
    lines = 1 if ax is not None else max(1, round(chosen.num_steps / _STEPS_A_LINE))
    width = math.ceil(chosen.num_steps / lines)
    heights = [0.24 * chosen.num_latents[i] + 0.45 if kind == "heatmap" else 1.5 for i in positions]
    occurring: dict[str, Any] = {}
    with figure_style():
        number = lines * len(agents)
        figure, panels = make_axes(
            ax, number, 1, (10.0, float(np.mean(heights)) + (1.1 + 0.2 * len(agents)) / number),
            height_ratios=heights * lines,
        )  # fmt: skip
        for k, axes in enumerate(panels):
            name, position = agents[k % len(agents)], positions[k % len(agents)]
            begin = k // len(agents) * width
            part = slice(begin, min(begin + width, chosen.num_steps))
            path, labels = decoded[:, position], chosen.latents[:, position]
            names = chosen.value_names(f"latent_{name}")
            draw = _draw_lanes if kind == "heatmap" else _draw_bands
            occurring |= draw(axes, beliefs[name], path, labels, part, names)
            axes.set_xlim(begin - 0.5, begin + width - 0.5)
            axes.locator_params(axis="x", integer=True)
            axes.spines[:].set_visible(False)
            title = name
            if k < len(agents):
                title = _timeline_title(posterior, chosen, name, path, use_labels)
            if k < len(agents) or len(agents) > 1:
                axes.set_title(title, loc="left")
        panels[-1].set_xlabel("step")
        if kind == "heatmap":
            _belief_scale(figure, occurring.pop(""), panels, 12 * lines)
        legend_below(figure, ax is None, panels[-1], list(occurring.values()), columns=6)
    return figure


def _timeline_title(
    posterior: Posterior,
    chosen: Demonstrations,
    agent: str,
    path: Int[np.ndarray, " steps"],
    use_labels: bool,
) -> str:
    labels = chosen.latents[:, agent_position(chosen, agent)]
    known = labels >= 0
    told = "no labels"
    if known.any():
        # With the answers in, the error would be zero whatever the posterior is worth.
        told = (
            f"labels used at {known.mean():.0%} of steps"
            if use_labels
            else f"{np.mean(path[known] != labels[known]):.1%} of labelled steps decoded wrongly"
        )
    return f"{agent}, episode {chosen.episode_ids[0]}, {posterior.method}: {told}"


def _belief_scale(figure: Any, image: Any, panels: Any, aspect: int) -> None:
    figure.colorbar(
        image, ax=panels, label="probability given\nthe whole episode", pad=0.01, aspect=aspect,
        fraction=0.03,
    )  # fmt: skip


def _draw_lanes(
    axes: Any,
    beliefs: Float[np.ndarray, "steps latents"],
    path: Int[np.ndarray, " steps"],
    labels: Int[np.ndarray, " steps"],
    part: slice,
    names: Sequence[str],
) -> dict[str, Any]:
    """A lane per latent; gives what the legend explains, and the image under ""."""
    from matplotlib.lines import Line2D

    begin, end = part.start, part.stop
    wrong = (labels >= 0) & (path != labels)
    # Beliefs fill the pixels between the edges of a step, so that marks and steps agree.
    image = axes.imshow(
        beliefs[part].T, cmap="cividis", vmin=0, vmax=1, aspect="auto",
        interpolation="nearest", extent=(begin - 0.5, end - 0.5, len(names) - 0.5, -0.5),
    )  # fmt: skip
    marks = (
        ("true label", labels, -0.28, "white"),
        ("most probable path", np.where(wrong, -1, path), 0.28, SKY),
        ("most probable path, wrong", np.where(wrong, path, -1), 0.28, VERMILION),
    )
    occurring: dict[str, Any] = {"": image}
    for label, values, offset, color in marks:
        _draw_runs(axes, values[part], begin, offset, color)
        if (values[part] >= 0).any():
            occurring[label] = Line2D(
                [], [], color=color, linewidth=4, label=label, path_effects=_outline()
            )
    axes.set_yticks(range(len(names)), names)
    axes.set_yticks(np.arange(len(names) - 1) + 0.5, minor=True)
    axes.grid(which="minor", axis="y", color="white", linewidth=0.4, alpha=0.6)
    axes.tick_params(axis="y", which="both", length=0)
    return occurring


def _draw_bands(
    axes: Any,
    beliefs: Float[np.ndarray, "steps latents"],
    path: Int[np.ndarray, " steps"],
    labels: Int[np.ndarray, " steps"],
    part: slice,
    names: Sequence[str],
) -> dict[str, Any]:
    """Probabilities one above the other; gives what the legend explains."""
    begin, end = part.start, part.stop
    # Each step is as wide as it lasts: its value stands at both of its edges.
    edges = np.repeat(np.arange(begin, end + 1), 2)[1:-1] - 0.5
    tops = np.cumsum(np.repeat(beliefs[part], 2, axis=0), axis=1)
    occurring: dict[str, Any] = {}
    for latent, name in enumerate(names):
        low = tops[:, latent - 1] if latent else np.zeros(len(edges))
        area = axes.fill_between(
            edges, low, tops[:, latent], facecolor=look(latent).color, hatch=look(latent).hatch,
            edgecolor="white", linewidth=0.4, label=name,
        )  # fmt: skip
        occurring[f"band {name}"] = area
    lanes = [(path, _PATH_LANE)] + ([(labels, _LABEL_LANE)] if (labels >= 0).any() else [])
    for values, height in lanes:
        draw_path(axes, values[part], begin, height, 0.15)
    axes.set_yticks(
        [_PATH_LANE, 0, 0.5, 1] + [_LABEL_LANE] * (len(lanes) - 1),
        ["decoded", "0", "0.5", "1"] + ["true label"] * (len(lanes) - 1),
    )
    axes.set_ylabel("probability")
    axes.set_ylim(_PATH_LANE - 0.1, 1.02 if len(lanes) == 1 else _LABEL_LANE + 0.1)
    axes.tick_params(axis="y", length=0)
    return occurring


def draw_path(
    axes: Any, path: Int[np.ndarray, " steps"], begin: int, lane: float, height: float
) -> None:
    """A bar for every run of a path, in colour and hatch of its latent; none where it is -1."""
    for first, last in runs(path):
        if path[first] >= 0:
            style = look(int(path[first]))
            axes.barh(
                lane, last - first + 1, left=begin + first - 0.5, height=height,
                color=style.color, hatch=style.hatch, edgecolor="white", linewidth=0.3,
            )  # fmt: skip


def _outline() -> list[Any]:
    """A thin black edge, so that a bar is seen on bright and on dark ground."""
    from matplotlib.patheffects import Normal, Stroke

    return [Stroke(linewidth=5, foreground="black"), Normal()]


def _draw_runs(
    axes: Any, values: Int[np.ndarray, " steps"], begin: int, offset: float, color: str
) -> None:
    """A bar for every run of equal values, in the lane of the value; none where it is -1."""
    known = [(first, last) for first, last in runs(values) if values[first] >= 0]
    axes.barh(
        [values[first] + offset for first, _ in known],
        [last - first + 1 for first, last in known],
        left=[first + begin - 0.5 for first, _ in known],
        height=0.2, color=color, edgecolor="black", linewidth=0.3,
    )  # fmt: skip


# ---------------------------------------------------------------------- do minds agree?


def plot_alignment(
    posterior: Posterior,
    demos: Demonstrations,
    episode: int | str,
    task: "GridTask | None" = None,
    axes: Any = None,
    use_labels: bool = False,
    num_draws: int | None = None,
) -> "matplotlib.figure.Figure":
    """Whether the team's minds are aligned, step by step over an episode.

    Above, the probability that they are; stretches where the decoded minds are misaligned are
    shaded. Below, what was decoded of each agent, under it (thin) the labels where there are any.
    Misaligned means, without a task, that the agents have different latents; in a grid world,
    that what they have in mind does not fit together (`task.suboptimal`; the paper, Appendix C).
    Stretches that are misaligned by the labels are marked by a line at the top. Long episodes go
    over several lines.

    Args:
        posterior: What is believed of the team.
        demos: Demonstrations with the episode.
        episode: Position of the episode in `demos`, or its id where ids are texts.
        task: The grid world, where suboptimal stretches are meant.
        axes: Two Matplotlib axes, for the whole episode on one line; None: a new figure.
        use_labels: Whether the labels count as observed, to complete a partly labelled episode;
            else they are drawn beside what is believed without them.
        num_draws: As in `plot_timeline`.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no such episode, or the agents' latents have different names and
            no task says which go together.

    Example:
        >>> task = btil.domains.movers("tiny")  # doctest: +SKIP
        >>> plot_alignment(posterior, demos, 0, task)  # doctest: +SKIP
    """
    chosen = with_learned_latents(demos.select([episode]), posterior)
    beliefs = posterior.smooth(chosen, use_labels, num_draws=num_draws)
    decoded = posterior.decode(chosen, use_labels)
    aligned = 1.0 - misalignment_probability(chosen, beliefs, task)
    apart, known = misaligned(chosen, decoded, task), _misaligned_by_labels(chosen, task)
    lines = 1 if axes is not None else max(1, round(chosen.num_steps / _STEPS_A_LINE))
    width = math.ceil(chosen.num_steps / lines)
    with figure_style():
        figure, panels = make_axes(
            axes, 2 * lines, 1, (10.0, 1.4 + 0.18 * len(chosen.agents) + 0.3 / lines),
            height_ratios=[1.6, 0.55 * len(chosen.agents)] * lines,
        )  # fmt: skip
        for line, (above, below) in enumerate(zip(panels[::2], panels[1::2], strict=True)):
            part = slice(line * width, min((line + 1) * width, chosen.num_steps))
            for panel in (above, below):
                _shade(panel, apart, part)
                panel.set_xlim(part.start - 0.5, part.start + width - 0.5)
                panel.locator_params(axis="x", integer=True)
            _draw_alignment(above, aligned, known, part)
            _draw_minds(below, chosen, decoded, part)
        used = ", labels used" if use_labels and (chosen.latents >= 0).any() else ""
        panels[0].set_title(
            f"episode {chosen.episode_ids[0]}, {posterior.method}{used}: minds aligned at "
            f"{1 - apart.mean():.0%} of {chosen.num_steps:,} steps",
            loc="left",
        )
        panels[-1].set_xlabel("step")
        handles = _alignment_handles(chosen, decoded, bool(apart.any()), bool(known.any()))
        legend_below(figure, axes is None, panels[-1], handles, columns=6)
    return figure


def _misaligned_by_labels(
    demos: Demonstrations, task: "GridTask | None"
) -> Bool[np.ndarray, " steps"]:
    """Where minds are misaligned as the labels say; nowhere where somebody has none."""
    labelled = (demos.latents >= 0).all(axis=1)
    if not labelled.any():
        return labelled
    # A task knows no unlabelled step.
    filled = np.where(labelled[:, None], demos.latents, 0)
    return labelled & misaligned(demos, filled, task)


def _stretches(holds: Bool[np.ndarray, " steps"], part: slice) -> list[tuple[float, float]]:
    """The edges of the stretches of a part at which something holds."""
    found = [(part.start + first, part.start + last) for first, last in runs(holds[part])]
    return [(first - 0.5, last + 0.5) for first, last in found if holds[first]]


def _shade(axes: Any, apart: Bool[np.ndarray, " steps"], part: slice) -> None:
    for first, last in _stretches(apart, part):
        axes.axvspan(first, last, color="0.88", linewidth=0, zorder=0)


def _draw_alignment(
    axes: Any,
    aligned: Float[np.ndarray, " steps"],
    known: Bool[np.ndarray, " steps"],
    part: slice,
) -> None:
    """The probability that minds are aligned, and a line where labels say that they are not."""
    steps = np.arange(part.start, part.stop)
    axes.step(steps, aligned[part], where="mid", color=BLUE, linewidth=1.2)
    axes.axhline(0.5, color="0.6", linewidth=0.6, linestyle=":")
    for edges in _stretches(known, part):
        axes.plot(edges, [1.06, 1.06], color="black", linewidth=3, solid_capstyle="butt")
    axes.set(ylim=(-0.04, 1.12), ylabel="probability that\nminds are aligned")
    axes.set_yticks([0, 0.5, 1])


def _draw_minds(
    axes: Any, demos: Demonstrations, decoded: Int[np.ndarray, "steps agents"], part: slice
) -> None:
    """A lane per agent: what was decoded, under it the labels."""
    for i in range(demos.num_agents):
        draw_path(axes, decoded[part, i], part.start, float(i), 0.5)
        draw_path(axes, demos.latents[part, i], part.start, i + 0.36, 0.13)
    axes.set_yticks(range(demos.num_agents), demos.agents)
    axes.set_ylim(demos.num_agents - 0.4, -0.4)
    axes.tick_params(axis="y", length=0)
    axes.spines[:].set_visible(False)


def _alignment_handles(
    demos: Demonstrations, decoded: Int[np.ndarray, "steps agents"], apart: bool, known: bool
) -> list[Any]:
    """The latents that occur, and what else is explained."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    occurring = {
        (int(k), demos.value_names(f"latent_{agent}")[k])
        for i, agent in enumerate(demos.agents)
        for values in (decoded[:, i], demos.latents[:, i])
        for k in np.unique(values[values >= 0])
    }
    handles: list[Any] = [
        Patch(facecolor=look(k).color, hatch=look(k).hatch, edgecolor="white", label=name)
        for k, name in sorted(occurring)
    ]
    if apart:
        handles.append(Patch(facecolor="0.88", label="misaligned, as decoded"))
    if known:
        handles.append(Line2D([], [], color="black", linewidth=3, label="by the labels"))
    return handles
