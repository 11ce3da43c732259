"""Grid-world tasks as pictures: the map, episodes as strips and films, policies, occupancy.

`draw` puts one task state onto Matplotlib axes; every picture here, and the rendering of the
PettingZoo environment, is made of it. Functions that return a `matplotlib.figure.Figure` return
one that no global registry knows of: nothing has to be closed, and `figure.savefig(path)` writes
it. Colours are Okabe and Ito's, which people with colour-blindness tell apart; agents and items
also bear a letter or a number.
"""

import math
from collections.abc import Iterable
from functools import lru_cache
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int, UInt8

from btil.arguments import check_index, check_values
from btil.demonstrations import Demonstrations
from btil.domains.gridworld.derived import task_states
from btil.domains.gridworld.grid import DOWN, HOLD, LEFT, ORIGIN, RIGHT, STAY, UP
from btil.figures import BLUE, GREEN, ORANGE, PURPLE, VERMILION, figure_style, gif_of, new_figure
from btil.files import check_writable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from btil.domains.gridworld.task import GridTask

_AGENT_COLORS = (BLUE, VERMILION)
_AGENT_MAPS = ("Blues", "Oranges")
_SIDES = (-1, 1)  # alice left and rob right, where they share a cell
_WALL, _FREE, _LINE = "0.35", "white", "0.85"
_GOAL_TINT = "#CCEBE1"
_BOX, _BOX_TINT = ORANGE, "#FBE7BF"
_PIXELS_PER_CELL = 64
_DPI = 100
_PANELS_IN_A_STRIP = 12
_PANELS_IN_A_ROW = 6
_LONGEST_GAP = 20  # steps between two panels, where there is room for another one
_ARROW = 0.46  # length of an arrow of probability 1, in cells
_MARK = 0.2  # radius of the mark of probability 1 for staying and holding, in cells
_SMALLEST_SHOWN = 0.01  # probability
_SMALLEST_CELL = 0.15  # inches
_STEPS = {UP: (0, -1), DOWN: (0, 1), LEFT: (-1, 0), RIGHT: (1, 0)}


# ---------------------------------------------------------------------- the primitive


def draw(task: "GridTask", state: int | np.integer, axes: "Axes") -> None:
    """Draw a task state onto axes, whose unit is a cell, x to the right and y downwards.

    Walls are dark and the goal is green with a flag. An item is an orange box with its number:
    large where it lies at its origin, small on who holds it and on the goal; a dashed outline
    marks the origin that it has left. Agents are circles with their initials.

    Args:
        task: The task.
        state: The task state.
        axes: Matplotlib axes.

    Raises:
        ValueError: If there is no such state.
    """
    _draw_map(task, axes)
    _draw_items(task, state, axes)
    _draw_agents(task, state, axes)


def _draw_map(task: "GridTask", axes: "Axes") -> None:
    """What never changes."""
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Polygon, Rectangle

    grid = task.grid
    axes.set(xlim=(-0.5, grid.width - 0.5), ylim=(grid.height - 0.5, -0.5), aspect="equal")
    for places, color in ((grid.cells.tolist(), _FREE), (grid.walls, _WALL)):
        squares = [Rectangle((x - 0.5, y - 0.5), 1, 1) for x, y in places]
        axes.add_artist(
            PatchCollection(squares, facecolor=color, edgecolor=_LINE, linewidth=0.6, zorder=0)
        )
    x, y = _centre(task, grid.goal)
    _square(axes, x, y, 0.94, facecolor=_GOAL_TINT, edgecolor=GREEN, linewidth=1, zorder=1)
    flag = [(0.3, -0.08), (0.3, -0.42), (0.46, -0.34), (0.34, -0.26), (0.34, -0.08)]
    axes.add_artist(
        Polygon(np.add(flag, (x, y)), closed=True, facecolor=GREEN, linewidth=0, zorder=3)
    )
    for cell in grid.items:
        x, y = _centre(task, cell)
        _square(
            axes, x, y, 0.8, fill=False, edgecolor=_BOX, linewidth=0.8, linestyle=(0, (3, 2)),
            zorder=1,
        )  # fmt: skip


def _draw_items(task: "GridTask", state: int | np.integer, axes: "Axes") -> None:
    """The items that nobody holds."""
    grid = task.grid
    items = task.situation(np.array([state])).items[0]
    for item in np.flatnonzero(items == ORIGIN):
        x, y = _centre(task, grid.items[item])
        _square(axes, x, y, 0.8, facecolor=_BOX_TINT, edgecolor=_BOX, linewidth=1.2, zorder=2)
        _letters(axes, str(item), x - 0.26, y - 0.25, 0.22)
    x, y = _centre(task, grid.goal)
    for k, item in enumerate(np.flatnonzero(items == task.on_goal)):
        _box(axes, item, x + 0.28 * (k % 3 - 1), y + 0.35 - 0.28 * (k // 3), 0.25)


def _draw_agents(task: "GridTask", state: int | np.integer, axes: "Axes") -> None:
    """The agents, and what they hold."""
    one = np.array([state])
    cells, held = task.situation(one).cells[0], task.held_items(one)[0]
    together = bool(cells[0] == cells[1])
    apart = 0.23 if together else 0.0
    for i in range(len(task.agents)):
        x, y = _centre(task, cells[i])
        _disc(axes, task, i, x + apart * _SIDES[i], y + 0.04, 0.2 if together else 0.23)
    for item in {*held[held >= 0].tolist()}:
        holders = np.flatnonzero(held == item)
        x, y = _centre(task, cells[holders[0]])
        _box(axes, item, x + apart * sum(_SIDES[i] for i in holders), y - 0.33, 0.3)


def _centre(task: "GridTask", cell: int | np.integer) -> tuple[float, float]:
    x, y = task.grid.cells[cell]
    return float(x), float(y)


def _disc(axes: "Axes", task: "GridTask", agent: int, x: float, y: float, radius: float) -> None:
    from matplotlib.patches import Circle

    axes.add_artist(
        Circle(
            (x, y), radius, facecolor=_AGENT_COLORS[agent], edgecolor="white", linewidth=0.6,
            zorder=4,
        )
    )  # fmt: skip
    _letters(axes, task.agents[agent][0].upper(), x, y, 1.1 * radius, "white")


def _box(axes: "Axes", item: int | np.integer, x: float, y: float, side: float) -> None:
    _square(axes, x, y, side, facecolor=_BOX, edgecolor="black", linewidth=0.5, zorder=5)
    _letters(axes, str(item), x, y, 0.75 * side)


def _square(axes: "Axes", x: float, y: float, side: float, **style: Any) -> None:
    from matplotlib.patches import Rectangle

    axes.add_artist(Rectangle((x - side / 2, y - side / 2), side, side, **style))


def _letters(
    axes: "Axes", text: str, x: float, y: float, height: float, color: str = "black"
) -> None:
    """Text as a shape, so that it keeps its place and size in the cell at any size of the axes."""
    from matplotlib.patches import PathPatch
    from matplotlib.transforms import Affine2D

    place = Affine2D().scale(height, -height).translate(x, y)
    shape = _outline(text).transformed(place)
    axes.add_artist(PathPatch(shape, facecolor=color, linewidth=0, zorder=6))


@lru_cache
def _outline(text: str) -> Any:
    """The shape of a text around the origin, its capitals of height 1."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath
    from matplotlib.transforms import Affine2D

    path = TextPath((0, 0), text, size=1, prop=FontProperties(family="DejaVu Sans", weight="bold"))
    box = path.get_extents()
    capitals = 0.73
    centred = Affine2D().translate(-(box.x0 + box.x1) / 2, -(box.y0 + box.y1) / 2)
    return path.transformed(centred.scale(1 / capitals))


def render(
    task: "GridTask", state: int | np.integer, pixels_per_cell: int = _PIXELS_PER_CELL
) -> UInt8[np.ndarray, "height width 3"]:
    """A task state as an RGB picture.

    Args:
        task: The task.
        state: The task state.
        pixels_per_cell: Side of a cell.

    Returns:
        Bytes (rows, columns, red-green-blue).

    Raises:
        ValueError: If there is no such state.

    Example:
        >>> render(btil.domains.movers(), 0).shape  # doctest: +SKIP
        (448, 448, 3)
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    grid = task.grid
    with figure_style():
        # A cell is an inch, so that no rounding takes a pixel away.
        figure = Figure(figsize=(grid.width, grid.height), dpi=pixels_per_cell)
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        draw(task, state, axes)
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


# ---------------------------------------------------------------------- the map


def plot_map(
    task: "GridTask", state: int | np.integer | None = None, ax: "Axes | None" = None
) -> "Figure":
    """The map, with agents and items where they are in a task state.

    Args:
        task: The task.
        state: The task state. None: the one in which episodes start.
        ax: Matplotlib axes; None: a new figure, with a legend.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no such state.

    Example:
        >>> plot_map(btil.domains.cleanup()).savefig("map.png")  # doctest: +SKIP
    """
    with figure_style():
        figure, axes = _map_axes(task, ax, 0.9, 1.3)
        draw(task, task.start_state if state is None else state, axes)
        _name_axes(task, axes)
        if ax is None:
            axes.set_title(f"{task.name}: {task.num_states:,} states", loc="left")
            figure.legend(
                handles=_map_handles(task), loc="outside lower center", ncols=2, fontsize=8,
                handletextpad=0.6, columnspacing=1.5,
            )  # fmt: skip
    return figure


def _map_handles(task: "GridTask") -> list[Any]:
    from matplotlib.lines import Line2D

    def mark(label: str, marker: str, face: str, edge: str) -> Any:
        return Line2D([], [], linestyle="none", marker=marker, markersize=9, label=label,
                      markerfacecolor=face, markeredgecolor=edge)  # fmt: skip

    agents = zip(task.agents, _AGENT_COLORS, strict=True)
    return [
        *(mark(f"{agent} ({agent[0].upper()})", "o", color, color) for agent, color in agents),
        mark("item at its origin", "s", _BOX_TINT, _BOX),
        mark("item held, or on the goal", "s", _BOX, "black"),
        mark("goal", "s", _GOAL_TINT, GREEN),
        mark("wall", "s", _WALL, _WALL),
    ]


def _map_axes(
    task: "GridTask", ax: "Axes | None", beside: float, below: float
) -> tuple["Figure", "Axes"]:
    """The axes given, or new ones with so many inches around the map for what else is there."""
    if ax is not None:
        return _figure_of(ax), ax
    # Wide enough that the height decides on the size of the map: then the layout has it right.
    width, height = _map_inches(task, 3.2)
    figure = new_figure(width + beside, height + below)
    return figure, figure.add_subplot()


def _map_inches(task: "GridTask", longest: float) -> tuple[float, float]:
    """Width and height of a map; its longer side is as asked for, unless cells get too small."""
    grid = task.grid
    cell = max(longest / max(grid.width, grid.height), _SMALLEST_CELL)
    return cell * grid.width, cell * grid.height


def _figure_of(axes: "Axes") -> "Figure":
    from matplotlib.figure import Figure

    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    return figure


def _name_axes(task: "GridTask", axes: "Axes") -> None:
    axes.set_xlabel("x")
    axes.set_ylabel("y", rotation=0, labelpad=8)
    axes.set_xticks(range(task.grid.width))
    axes.set_yticks(range(task.grid.height))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _bare(axes: "Axes") -> None:
    """No ticks: a picture of a place, not a plot."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


# ---------------------------------------------------------------------- an episode


def plot_episode(
    task: "GridTask",
    demos: Demonstrations,
    episode: int | str,
    steps: Iterable[int] | None = None,
) -> "Figure":
    """An episode as a film strip: the map at some steps, who did what, and what they had in mind.

    Lines show the way of each agent since the panel before.

    Args:
        task: The task.
        demos: Demonstrations of this task.
        episode: Position of the episode in `demos`, or its id where ids are texts.
        steps: The steps to show. None: the first and the last one, and up to ten of those at which
            an item has changed hands or place or an agent has changed its mind.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no such episode or step, or the states are not those of the task.

    Example:
        >>> task = btil.domains.movers()  # doctest: +SKIP
        >>> plot_episode(task, task.simulate(1), 0).savefig("strip.png")  # doctest: +SKIP
    """
    played = demos.select([episode])
    states = task_states(task, played)
    shown = _key_steps(task, states, played.latents) if steps is None else [*steps]
    for step in shown:
        check_index("steps", step, len(states))
    if not shown:
        raise ValueError("steps: none are given; at least one is needed")
    columns = min(len(shown), _PANELS_IN_A_ROW)
    rows = math.ceil(len(shown) / columns)
    width, height = _map_inches(task, 1.9)
    with figure_style():
        figure = new_figure(columns * max(width, 1.9), rows * (height + 0.75) + 0.3)
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        before = shown[0]
        for axes, step in zip(panels, shown, strict=False):
            draw(task, states[step], axes)
            if before < step:
                _draw_ways(task, states[before : step + 1], axes)
            before = step
            _bare(axes)
            axes.set_title(f"step {step}", loc="left")
            _caption(axes, task, played, step)
        for axes in panels[len(shown) :]:
            axes.remove()
        figure.suptitle(
            f"{task.name}, episode {played.episode_ids[0]}: {len(states)} steps",
            x=0.01, ha="left", fontsize=10,
        )  # fmt: skip
    return figure


def _key_steps(
    task: "GridTask", states: Int[np.ndarray, " steps"], latents: Int[np.ndarray, "steps agents"]
) -> list[int]:
    """The first, the last, and between them those with something new: items before minds.

    The longest gaps are halved while there is room.
    """
    items = task.situation(states).items
    moved = 1 + np.flatnonzero((items[1:] != items[:-1]).any(axis=1))
    minds = 1 + np.flatnonzero((latents[1:] != latents[:-1]).any(axis=1))
    chosen = {0, len(states) - 1}
    for news in (moved, minds):
        fresh = np.setdiff1d(news, [*chosen])
        room = _PANELS_IN_A_STRIP - len(chosen)
        if len(fresh) > room:
            fresh = fresh[np.linspace(0, len(fresh) - 1, room).round().astype(int)]
        chosen |= set(fresh.tolist())
    shown = sorted(chosen)
    while len(shown) < _PANELS_IN_A_STRIP and max(np.diff(shown), default=0) > _LONGEST_GAP:
        longest = int(np.argmax(np.diff(shown)))
        shown.insert(longest + 1, (shown[longest] + shown[longest + 1]) // 2)
    return shown


def _draw_ways(task: "GridTask", states: Int[np.ndarray, " steps"], axes: "Axes") -> None:
    cells = task.situation(states).cells
    for i, color in enumerate(_AGENT_COLORS):
        # A little apart, so that ways along the same cells are both seen.
        x, y = task.grid.cells[cells[:, i]].T + 0.07 * (2 * i - 1)
        axes.plot(x, y, color=color, linewidth=1.3, alpha=0.55, zorder=3, solid_capstyle="round")


def _caption(axes: "Axes", task: "GridTask", played: Demonstrations, step: int) -> None:
    """Under the map, a line per agent: its action, if seen, and its latent if labelled."""
    for i, agent in enumerate(task.agents):
        taken, latent = played.actions[step, i], played.latents[step, i]
        action = played.value_names(f"action_{agent}")[taken] if taken >= 0 else "?"
        mind = f": {played.value_names(f'latent_{agent}')[latent]}" if latent >= 0 else ""
        axes.annotate(
            f"{agent[0].upper()} {action}{mind}", (0, 0), (0, -9 - 10 * i),
            xycoords="axes fraction", textcoords="offset points", fontsize=7, va="center",
            color=_AGENT_COLORS[i], annotation_clip=False,
        )  # fmt: skip


def animate_episode(
    task: "GridTask",
    demos: Demonstrations,
    episode: int | str,
    path: str | PathLike[str],
    frames_per_second: int = 4,
) -> None:
    """Write an episode as an animated GIF, a frame per step; whole or not at all.

    Args:
        task: The task.
        demos: Demonstrations of this task.
        episode: Position of the episode in `demos`, or its id where ids are texts.
        path: The file, ending in .gif.
        frames_per_second: Steps a second.

    Raises:
        ValueError: If there is no such episode, the states are not those of the task, the ending
            is another one, or `frames_per_second` is not positive.
        OSError: If the file cannot be written.
    """
    check_values({"frames_per_second": frames_per_second})
    check_writable(path, (".gif",))
    played = demos.select([episode])
    states = task_states(task, played)
    with figure_style():
        figure, axes = _screen(task)
        _draw_map(task, axes)
        fixed = len(axes.patches)
        with gif_of(figure, path, frames_per_second, _DPI) as grab:
            for step, state in enumerate(states):
                for artist in [*axes.patches[fixed:], *axes.texts]:
                    artist.remove()
                _draw_items(task, state, axes)
                _draw_agents(task, state, axes)
                axes.set_title(f"step {step} of {len(states)}", loc="left")
                _caption(axes, task, played, step)
                grab()


def _screen(task: "GridTask") -> tuple["Figure", "Axes"]:
    """A figure with room for the map, a title and the captions, laid out by hand for speed."""
    from matplotlib.figure import Figure

    width, height = _map_inches(task, 3.2)
    above, below, beside = 0.3, 0.4, 0.1
    total = (max(width, 3.0) + 2 * beside, above + height + below)
    figure = Figure(figsize=total)
    axes = figure.add_axes(
        (beside / total[0], below / total[1], width / total[0], height / total[1])
    )
    _bare(axes)
    return figure, axes


# ---------------------------------------------------------------------- policies


def plot_policy(
    task: "GridTask",
    policy: Float[np.ndarray, "states latents actions"],
    agent: str,
    latent: int | str | None = None,
    state: int | np.integer | None = None,
    ax: "Axes | None" = None,
) -> "Figure":
    """What an agent would do in each cell, everything else being where it is in a task state.

    In every cell an arrow for each direction, as long as the direction is probable (an arrow of
    probability 1 reaches the edge of the cell), a disc for "stay" and a diamond for "hold", with
    radii in proportion to their probabilities. Who carries an item together with the agent moves
    along with it.

    Args:
        task: The task.
        policy: The agent's policy, e.g. from `task.policies()` or a learned team's.
        agent: Name of the agent.
        latent: Index or name of the latent. None: all, a panel each.
        state: The task state that says where the teammate and the items are. None: the one in
            which episodes start.
        ax: Matplotlib axes for one latent; None: a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no such agent, latent or state, or the policy has another shape.

    Example:
        >>> task = btil.domains.cleanup()  # doctest: +SKIP
        >>> plot_policy(task, task.policies()["alice"], "alice", "pick up item 0")
        ... # doctest: +SKIP
    """
    own = task.agent_position(agent)
    expected = (task.num_states, task.num_latents, task.num_actions)
    if np.shape(policy) != expected:
        raise ValueError(
            f"policy: shape {np.shape(policy)}, expected (states, latents, actions) = {expected}"
        )
    chosen = range(task.num_latents) if latent is None else [_latent_index(task, latent)]
    state = task.start_state if state is None else check_index("state", state, task.num_states)
    states, others = _states_by_own_cell(task, state, own)
    cells = task.situation(np.array([state])).cells[0]
    with figure_style():
        if ax is not None:
            if len(chosen) != 1:
                raise ValueError("ax: axes hold one latent; choose it with latent=")
            figure, panels = _figure_of(ax), [ax]
        else:
            columns = min(len(chosen), 3)
            rows = math.ceil(len(chosen) / columns)
            width, height = _map_inches(task, 2.7)
            figure = new_figure(columns * (width + 0.7), rows * (height + 0.6) + 0.4)
            grid = figure.subplots(rows, columns, squeeze=False).ravel()
            panels = [*grid[: len(chosen)]]
            for unused in grid[len(chosen) :]:
                unused.remove()
        for axes, index in zip(panels, chosen, strict=True):
            _draw_map(task, axes)
            _draw_items(task, state, axes)
            for i in others:  # in a corner, beside the arrows
                x, y = _centre(task, cells[i])
                _disc(axes, task, i, x + 0.31, y + 0.31, 0.16)
            _draw_choices(task, np.asarray(policy)[states, index], axes, _AGENT_COLORS[own])
            _name_axes(task, axes)
            axes.set_title(f"{agent}: {task.latent_names[index]}", loc="left")
        if ax is None:
            figure.legend(
                handles=_choice_handles(agent, _AGENT_COLORS[own]), loc="outside lower center",
                ncols=3, fontsize=8, handletextpad=0.2, columnspacing=1.2,
            )  # fmt: skip
    return figure


def _states_by_own_cell(
    task: "GridTask", state: int, own: int
) -> tuple[Int[np.ndarray, " cells"], list[int]]:
    """The task state with the agent in each cell, and who stays where it is meanwhile."""
    one = np.array([state])
    situation, held = task.situation(one), task.held_items(one)[0]
    cells = np.repeat(situation.cells, task.grid.num_cells, axis=0)
    every = np.arange(task.grid.num_cells)
    along = [i == own or held[i] == held[own] >= 0 for i in range(len(task.agents))]
    cells[:, along] = every[:, None]
    states = task.states(cells, np.repeat(situation.items, task.grid.num_cells, axis=0))
    return states, [i for i, goes in enumerate(along) if not goes]


def _draw_choices(
    task: "GridTask", probs: Float[np.ndarray, "cells actions"], axes: "Axes", color: str
) -> None:
    from matplotlib.patches import Circle, RegularPolygon

    centres = task.grid.cells
    for action, step in _STEPS.items():
        shown = np.flatnonzero(probs[:, action] >= _SMALLEST_SHOWN)
        (x, y), (u, v) = centres[shown].T, np.outer(step, probs[shown, action] * _ARROW)
        axes.quiver(
            x, y, u, v, angles="xy", scale_units="xy", scale=1, units="x", width=0.05,
            headwidth=3.6, headlength=3, headaxislength=2.8, minshaft=1.2, minlength=0,
            color=color, zorder=7,
        )  # fmt: skip
    for (x, y), row in zip(centres, probs, strict=True):
        if row[STAY] >= _SMALLEST_SHOWN:
            axes.add_patch(
                Circle((x, y), _MARK * row[STAY], facecolor="0.45", linewidth=0, zorder=8)
            )
        if row[HOLD] >= _SMALLEST_SHOWN:
            axes.add_patch(
                RegularPolygon(
                    (x, y), 4, radius=1.4 * _MARK * row[HOLD], facecolor=PURPLE,
                    edgecolor="white", linewidth=0.5, zorder=9,
                )
            )  # fmt: skip


def _choice_handles(agent: str, color: str) -> list[Any]:
    from matplotlib.lines import Line2D

    marks = [("step", ">", color), ("stay", "o", "0.45"), ("hold", "D", PURPLE)]
    return [
        Line2D(
            [], [], linestyle="none", marker=marker, color=face, markersize=8,
            label=f"{agent}: {label}",
        )
        for label, marker, face in marks
    ]  # fmt: skip


# ---------------------------------------------------------------------- occupancy


def plot_occupancy(
    task: "GridTask",
    demos: Demonstrations,
    agent: str,
    latent: int | str | None = None,
    ax: "Axes | None" = None,
) -> "Figure":
    """Where an agent spends its time: the share of its steps in each cell.

    Args:
        task: The task.
        demos: Demonstrations of this task.
        agent: Name of the agent.
        latent: Only the steps labelled with this latent, by index or name. None: all steps.
        ax: Matplotlib axes; None: a new figure.

    Returns:
        The figure.

    Raises:
        ValueError: If there is no such agent or latent, no step has that label, or the states are
            not those of the task.
    """
    own = task.agent_position(agent)
    cells = task.situation(task_states(task, demos)).cells[:, own]
    title = f"{agent}, all {len(cells):,} steps"
    if latent is not None:
        index = _latent_index(task, latent)
        cells = cells[demos.latents[:, own] == index]
        title = f"{agent}: {task.latent_names[index]}, {len(cells):,} steps"
        if not len(cells):
            raise ValueError(f"no step of {agent} is labelled {task.latent_names[index]!r}")
    shares = np.bincount(cells, minlength=task.grid.num_cells) / len(cells)
    image = np.full((task.grid.height, task.grid.width), np.nan)
    image[task.grid.cells[:, 1], task.grid.cells[:, 0]] = shares
    with figure_style():
        figure, axes = _map_axes(task, ax, 1.8, 0.7)
        _draw_map(task, axes)
        shown = axes.imshow(image, cmap=_AGENT_MAPS[own], vmin=0, zorder=1)
        for k, cell in enumerate(task.grid.items):
            x, y = _centre(task, cell)
            _square(axes, x - 0.29, y - 0.29, 0.34, facecolor="white", linewidth=0, zorder=3)
            _letters(axes, str(k), x - 0.29, y - 0.29, 0.22)
        _name_axes(task, axes)
        axes.set_title(title, loc="left")
        figure.colorbar(shown, ax=axes, label="share of steps")
    return figure


def _latent_index(task: "GridTask", latent: int | str) -> int:
    names = task.latent_names
    if latent in names:
        return names.index(str(latent))
    whole = isinstance(latent, int | np.integer) and not isinstance(latent, bool)
    if not whole or not 0 <= int(latent) < len(names):
        raise ValueError(
            f"unknown latent {latent!r}; allowed are 0..{len(names) - 1}, or one of "
            f"{', '.join(names)}"
        )
    return int(latent)
