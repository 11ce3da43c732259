"""Members who move on a plane, step by step: a film strip, and a film."""

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.analysis.plots.layout import look
from btil.analysis.plots.paths import shown_latents
from btil.arguments import check_index, check_values
from btil.demonstrations import Demonstrations
from btil.demonstrations.directions import plane_columns
from btil.figures import CATEGORY_MARKERS, figure_style, gif_of, new_figure

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

# Steps of the way that a member has come, which are drawn behind it.
_TRAIL = 12
_PANELS, _PANELS_IN_A_ROW = 8, 4
_DPI = 90


class _Scene(NamedTuple):
    """An episode on the plane.

    Attributes:
        agents: The members.
        at: Where they are, (steps, agents, 2); NaN where unknown.
        latents: What they have in mind, -1 where unknown.
        names: Names of the latents, of all members in the order in which they come.
        colors: Number of the name of each member's latents.
        places: Names of places, and where they are.
        title: What the episode is called.
    """

    agents: tuple[str, ...]
    at: Float[np.ndarray, "steps agents 2"]
    latents: Int[np.ndarray, "steps agents"]
    names: tuple[str, ...]
    colors: tuple[tuple[int, ...], ...]
    places: dict[str, tuple[float, float]]
    title: str


def plot_motion_strip(
    demos: Demonstrations,
    episode: int,
    columns: Mapping[str, Sequence[str]],
    latents: Any = None,
    steps: Sequence[int] | None = None,
    places: Mapping[str, Any] | None = None,
) -> "matplotlib.figure.Figure":
    """A film strip: where everybody is at some steps of an episode, coloured by what is in mind.

    Args:
        demos: Demonstrations with continuous columns.
        episode: Position of the episode.
        columns: {agent: (first coordinate, second one)}, names of continuous columns.
        latents: Whole numbers (steps, agents), e.g. `posterior.decode(demos)`; None: the labels.
            Who has none is grey.
        steps: The steps to show. None: eight, as far apart as may be.
        places: {name: (x, y)} to mark.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no such episode, step, agent or column, or the latents do not fit.

    Example:
        >>> task = btil.domains.errands()  # doctest: +SKIP
        >>> columns = {a: task.columns(a)[:2] for a in task.agents}  # doctest: +SKIP
        >>> plot_motion_strip(task.simulate(5), 0, columns)  # doctest: +SKIP
    """
    scene = _scene(demos, episode, columns, latents, places)
    number = len(scene.at)
    if steps is None:
        steps = np.unique(np.linspace(0, number - 1, _PANELS).round().astype(int)).tolist()
    shown = [check_index("steps", step, number) for step in steps]
    if not shown:
        raise ValueError("steps: none are given; at least one is needed")
    across = min(len(shown), _PANELS_IN_A_ROW)
    down = math.ceil(len(shown) / across)
    with figure_style():
        figure = new_figure(2.1 * across, 2.1 * down + 0.6)
        panels = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).ravel()
        for axes, step in zip(panels, shown, strict=False):
            _draw_fixed(scene, axes)
            _draw_step(scene, axes, step)
            axes.set_title(f"step {step}", loc="left")
        for axes in panels[len(shown) :]:
            axes.remove()
        handles = _handles(scene)
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=8)
        figure.suptitle(scene.title, x=0.01, ha="left", fontsize=10)
    return figure


def animate_motion(
    demos: Demonstrations,
    episode: int,
    columns: Mapping[str, Sequence[str]],
    path: str | PathLike[str],
    latents: Any = None,
    places: Mapping[str, Any] | None = None,
    frames_per_second: int = 6,
) -> None:
    """Write an episode as an animated GIF, a frame per step; whole or not at all.

    Args:
        demos: As in `plot_motion_strip`.
        episode: Likewise.
        columns: Likewise.
        path: The file, ending in .gif.
        latents: As in `plot_motion_strip`.
        places: Likewise.
        frames_per_second: Steps a second.

    Raises:
        ValueError: As `plot_motion_strip`; if the ending is another one, or `frames_per_second`
            is not positive.
        OSError: If the file cannot be written.

    Example:
        >>> animate_motion(demos, 0, {"ann": ("ann_x", "ann_y")}, "walk.gif")  # doctest: +SKIP
    """
    check_values({"frames_per_second": frames_per_second})
    scene = _scene(demos, episode, columns, latents, places)
    with figure_style():
        figure = new_figure(4.0, 4.4)
        axes = figure.subplots()
        _draw_fixed(scene, axes)
        handles = _handles(scene)
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(len(handles), 5), fontsize=8
        )
        with gif_of(figure, path, frames_per_second, _DPI) as grab:
            for step in range(len(scene.at)):
                drawn = _draw_step(scene, axes, step)
                axes.set_title(f"{scene.title}: step {step} of {len(scene.at)}", loc="left")
                grab()
                for artist in drawn:
                    artist.remove()


def _scene(
    demos: Demonstrations,
    episode: int,
    columns: Mapping[str, Sequence[str]],
    latents: Any,
    places: Mapping[str, Any] | None,
) -> _Scene:
    number = check_index("episode", episode, demos.num_episodes)
    if not isinstance(columns, Mapping) or not columns:
        raise ValueError(f"columns must be {{agent: (x, y)}}, got {columns!r}")
    found = shown_latents(demos, latents)
    first = int(demos.episode_starts[number])
    rows = slice(first, first + int(demos.episode_lengths[number]))
    at, names, colors, positions = [], [], [], []
    for agent, pair in columns.items():
        if agent not in demos.agents:
            raise ValueError(
                f"columns: unknown agent {agent!r}; the agents are {', '.join(demos.agents)}"
            )
        at.append(plane_columns(demos, pair, f"columns of {agent}")[rows])
        own = [str(name) for name in demos.value_names(f"latent_{agent}")]
        names += [name for name in own if name not in names]
        colors.append(tuple(names.index(name) for name in own))
        positions.append(demos.agents.index(agent))
    given = {str(name): tuple(map(float, where)) for name, where in dict(places or {}).items()}
    for name, where in given.items():
        if len(where) != 2:
            raise ValueError(f"places: {name} is {where!r}, expected (x, y)")
    return _Scene(
        tuple(columns),
        np.stack(at, axis=1),
        found[rows][:, positions],
        tuple(names),
        tuple(colors),
        {name: (where[0], where[1]) for name, where in given.items()},
        f"Episode {demos.episode_ids[number]}",
    )


def _draw_fixed(scene: _Scene, axes: "matplotlib.axes.Axes") -> None:
    """Places, and room for everybody."""
    for name, where in scene.places.items():
        axes.plot(*where, "+", color="0.45", ms=9, zorder=1)
        axes.annotate(
            name, where, (4, 4), textcoords="offset points", fontsize=7, color="0.35", zorder=1
        )
    everything = np.concatenate([scene.at.reshape(-1, 2), np.reshape([*scene.places.values()],
                                                                     (-1, 2))])  # fmt: skip
    low, high = np.nanmin(everything, axis=0), np.nanmax(everything, axis=0)
    margin = 0.06 * max(float((high - low).max()), 1e-9)
    axes.set(xlim=(low[0] - margin, high[0] + margin), ylim=(low[1] - margin, high[1] + margin))
    axes.set_aspect("equal")


def _draw_step(scene: _Scene, axes: "matplotlib.axes.Axes", step: int) -> list[Any]:
    """Everybody, and the way that each has come."""
    drawn = []
    for i in range(len(scene.agents)):
        way = range(max(0, step - _TRAIL), step)
        for t in way:
            shade = 0.25 + 0.5 * (t - step + _TRAIL) / _TRAIL
            drawn += axes.plot(
                *scene.at[t : t + 2, i].T, color=_color(scene, t, i), lw=1.4, alpha=shade, zorder=2
            )
        drawn += axes.plot(
            *scene.at[step, i],
            CATEGORY_MARKERS[i % len(CATEGORY_MARKERS)],
            color=_color(scene, step, i),
            mec="0.1",
            mew=0.7,
            ms=7,
            zorder=3,
        )
    return drawn


def _color(scene: _Scene, step: int, position: int) -> str:
    latent = int(scene.latents[step, position])
    return look(scene.colors[position][latent]).color if latent >= 0 else "0.7"


def _handles(scene: _Scene) -> list[Any]:
    """Members by their markers, what they have in mind by its colour."""
    from matplotlib.lines import Line2D

    members = [
        Line2D([], [], ls="", marker=CATEGORY_MARKERS[i % len(CATEGORY_MARKERS)], color="0.85",
               mec="0.1", label=agent)
        for i, agent in enumerate(scene.agents)
    ]  # fmt: skip
    minds = [Line2D([], [], color=look(k).color, lw=3, label=n) for k, n in enumerate(scene.names)]
    return [*members, *minds]
