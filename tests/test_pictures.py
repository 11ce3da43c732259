"""Pictures: what stands where on them, in numbers and pixels."""

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle, RegularPolygon
from PIL import Image

import btil
from btil.domains.gridworld.pictures import (
    animate_episode,
    plot_episode,
    plot_map,
    plot_occupancy,
    plot_policy,
    render,
)
from btil.figures import BLUE, VERMILION, narrow, new_figure

MOVERS, CLEANUP = btil.domains.movers("lesson"), btil.domains.cleanup("lesson")
TINY = btil.domains.cleanup("tiny")


@pytest.fixture(scope="module")
def demos():
    return CLEANUP.simulate(4, seed=1)


def cell(task, x, y):
    return task.grid.cells.tolist().index([x, y])


def discs(axes):
    """Agents on a picture: {colour: centre}."""
    return {
        color: circle.center
        for circle in axes.findobj(Circle)
        for color in (BLUE, VERMILION)
        if to_rgb(color) == circle.get_facecolor()[:3]
    }


def texts(figure):
    return [text.get_text() for text in figure.findobj(lambda a: hasattr(a, "get_text"))]


# ------------------------------------------------------------------ the map


def test_map_shows_agents_where_they_are():
    figure = plot_map(MOVERS)
    axes = figure.axes[0]
    centres = {color: np.round(place).astype(int).tolist() for color, place in discs(axes).items()}
    starts = MOVERS.grid.cells[list(MOVERS.grid.starts)].tolist()
    assert [centres[BLUE], centres[VERMILION]] == starts
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("x", "y")
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # y downwards
    assert {"alice (A)", "rob (R)", "goal", "wall"} <= set(texts(figure))
    assert plt.get_fignums() == []


def test_agents_in_one_cell_are_both_seen():
    here = cell(MOVERS, 2, 0)
    places = discs(plot_map(MOVERS, MOVERS.encode([[here, here, 0, 0, 0]])[0]).axes[0])
    assert places[BLUE][0] < 2 < places[VERMILION][0]
    assert places[BLUE][1] == places[VERMILION][1]


def boxes(axes):
    """What is held, and what lies on the goal: {(x, y, side)} of the squares with black edges."""
    return {
        (
            round(one.get_x() + one.get_width() / 2, 2),
            round(one.get_y() + one.get_height() / 2, 2),
            round(one.get_width(), 2),
        )
        for one in axes.findobj(Rectangle)
        if to_rgb("black") == one.get_edgecolor()[:3] and one.get_width() in (0.25, 0.3)
    }


def test_items_are_drawn_with_who_holds_them_or_side_by_side_on_the_goal():
    goal_x, goal_y = CLEANUP.grid.cells[CLEANUP.grid.goal].tolist()
    alice, rob = cell(CLEANUP, 2, 0), CLEANUP.grid.starts[1]
    x, y = CLEANUP.grid.cells[rob].tolist()
    on_goal = CLEANUP.on_goal
    held = CLEANUP.encode([[alice, rob, 2, on_goal, on_goal]])[0]  # the first item by rob
    on_the_goal = {(round(goal_x - 0.28, 2), goal_y + 0.35, 0.25), (goal_x, goal_y + 0.35, 0.25)}
    shown = boxes(plot_map(CLEANUP, held).axes[0])
    assert shown == {(x, round(y - 0.33, 2), 0.3)} | on_the_goal
    # In one cell each holds on its own side.
    both = CLEANUP.encode([[alice, alice, 2, 1, on_goal]])[0]
    shown = boxes(plot_map(CLEANUP, both).axes[0])
    assert {(1.77, -0.33, 0.3), (2.23, -0.33, 0.3)} < shown
    # What both hold is between them.
    together = MOVERS.encode([[alice, alice, 1, 0, 0]])[0]
    assert boxes(plot_map(MOVERS, together).axes[0]) == {(2, -0.33, 0.3)}


def test_map_goes_where_it_is_asked_to():
    figure = Figure()
    axes = figure.add_subplot()
    assert plot_map(TINY, ax=axes) is figure
    assert len(discs(axes)) == 2
    with pytest.raises(ValueError, match="states"):
        plot_map(TINY, TINY.num_states)


def test_rendered_pixels_show_walls_goal_and_carried_items():
    start = render(CLEANUP, CLEANUP.start_state, pixels_per_cell=40)
    assert start.shape == (200, 200, 3)
    assert start.dtype == np.uint8

    def at(image, x, y):
        return image[40 * y + 20, 40 * x + 20] / 255

    for x, y in CLEANUP.grid.walls:
        np.testing.assert_allclose(at(start, x, y), 0.35, atol=0.01)
    assert (at(start, 2, 1) == 1).all()
    red, green, _ = at(start, *CLEANUP.grid.cells[CLEANUP.grid.goal])
    assert green > red
    # The item that alice takes is gone from its cell, and on her.
    alice, rob = CLEANUP.grid.starts
    taken = render(CLEANUP, CLEANUP.encode([[alice, rob, 1, 0, 0]])[0], pixels_per_cell=40)
    changed = {tuple(c) for c in (np.argwhere((taken != start).any(-1)) // 40).tolist()}
    places = [CLEANUP.grid.cells[c].tolist() for c in (CLEANUP.grid.items[0], alice)]
    assert changed == {(y, x) for x, y in places}


def test_same_state_same_picture_whatever_the_user_set():
    first = render(MOVERS, MOVERS.start_state)
    with plt.rc_context({"font.size": 30, "text.color": "red", "lines.linewidth": 9}):
        assert (render(MOVERS, MOVERS.start_state) == first).all()
    assert plt.get_fignums() == []


# ------------------------------------------------------------------ an episode


def test_strip_shows_the_steps_asked_for(demos):
    figure = plot_episode(CLEANUP, demos, 2, steps=[0, 3, 7])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["step 0", "step 3", "step 7"]
    rows = demos.episode_starts[2] + np.array([0, 3, 7])
    for axes, row in zip(figure.axes, rows, strict=True):
        places = discs(axes)
        for i, (agent, color) in enumerate(zip(demos.agents, (BLUE, VERMILION), strict=True)):
            place = CLEANUP.grid.cells[demos.state_variables[f"{agent}_cell"][row]]
            assert np.abs(np.array(places[color]) - place).max() < 0.5
            action = CLEANUP.action_names[demos.actions[row, i]]
            intent = CLEANUP.latent_names[demos.latents[row, i]]
            assert f"{agent[0].upper()} {action}: {intent}" in texts(axes)
    # The ways since the panel before: none on the first one.
    ways = [[line.get_xydata() for line in axes.lines] for axes in figure.axes]
    assert ways[0] == []
    assert [len(way) for way in ways[1]] == [4, 4]
    assert [len(way) for way in ways[2]] == [5, 5]
    walked = CLEANUP.grid.cells[demos.state_variables["rob_cell"][rows[1] : rows[2] + 1]]
    np.testing.assert_allclose(ways[2][1], walked, atol=0.1)


def test_strip_knows_no_action_that_nobody_saw(demos):
    actions = demos.actions.copy()
    actions[1, 0] = -1
    figure = plot_episode(CLEANUP, demos.replace(actions=actions, missing="allow"), 0, steps=[1])
    said = next(text for text in texts(figure) if text.startswith("A "))
    assert said.startswith("A ?: pick up")


def test_strip_says_nothing_of_minds_without_labels(demos):
    figure = plot_episode(CLEANUP, demos.without_labels(), 0, steps=[1])
    shown = [text for text in texts(figure) if text.startswith(("A ", "R "))]
    actions = demos.actions[demos.episode_starts[0] + 1]
    assert shown == [f"{a} {CLEANUP.action_names[k]}" for a, k in zip("AR", actions, strict=True)]


def steps_of(figure):
    return [int(axes.get_title(loc="left").split()[1]) for axes in figure.axes]


@pytest.mark.parametrize("labelled", [True, False])
def test_strip_chooses_the_steps_with_news(demos, labelled):
    """Minds mostly change with the items: without labels these are all the news there is."""
    shown = steps_of(plot_episode(CLEANUP, demos if labelled else demos.without_labels(), 1))
    begin, length = demos.episode_starts[1], demos.episode_lengths[1]
    items = np.stack([demos.state_variables[f"item_{k}"] for k in range(3)], axis=1)
    news = 1 + np.flatnonzero(np.diff(items[begin : begin + length], axis=0).any(axis=1))
    assert {0, length - 1, *news.tolist()} <= set(shown)
    assert shown == sorted(shown)
    assert len(shown) <= 12


def test_strip_shows_where_somebody_changes_its_mind():
    latents = np.zeros((20, 2), int)
    latents[7:, 1] = 1
    still = btil.Demonstrations(
        [TINY.start_state] * 20, np.full((20, 2), 4), latents, agents=TINY.agents,
        num_states=TINY.num_states, num_actions=6, num_latents=TINY.num_latents,
    )  # fmt: skip
    assert steps_of(plot_episode(TINY, still, 0)) == [0, 7, 19]


def test_strip_of_a_long_episode_has_no_long_gaps_where_there_is_room():
    task = MOVERS
    still = btil.Demonstrations(
        [task.start_state] * 200, np.full((200, 2), 4), agents=task.agents,
        num_states=task.num_states, num_actions=6, num_latents=5,
    )  # fmt: skip
    figure = plot_episode(task, still, 0)
    shown = steps_of(figure)
    assert (len(shown), shown[0], shown[-1]) == (12, 0, 199)
    assert np.diff(shown).max() <= 25
    assert len(plot_episode(task, still.select([0]), 0, steps=[199]).axes) == 1


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([0, 400], r"steps: 400; allowed are whole numbers in 0\.\.\d+"),
        ([True], "steps: True; allowed are whole"),
        ([-1], "steps: -1"),
        ([], "none are given"),
    ],
)
def test_steps_that_are_not_there_are_refused(demos, steps, message):
    with pytest.raises(ValueError, match=message):
        plot_episode(CLEANUP, demos, 0, steps)


def test_states_of_another_task_are_refused(demos):
    for task, message in [
        (TINY, "alice_cell has 22 values"),
        (btil.domains.cleanup(), "alice_cell has 22 values"),
    ]:
        with pytest.raises(ValueError, match=message):
            plot_episode(task, demos, 0)
        with pytest.raises(ValueError, match=message):
            plot_occupancy(task, demos, "rob")


def test_derived_variables_do_not_disturb(demos):
    more = CLEANUP.add_derived_variables(demos)
    first, second = (plot_episode(CLEANUP, d, 0, [4]).axes[0] for d in (demos, more))
    assert discs(first) == discs(second)


def test_film_has_a_frame_per_step(tmp_path, demos):
    path = tmp_path / "episode.gif"
    animate_episode(CLEANUP, demos, 3, path, frames_per_second=5)
    with Image.open(path) as film:
        assert film.format == "GIF"
        assert film.n_frames == demos.episode_lengths[3]
        assert film.info["duration"] == 200
        film.seek(0)
        first = np.asarray(film.convert("RGB"))
        film.seek(film.n_frames - 1)
        last = np.asarray(film.convert("RGB"))
    assert first.shape == last.shape
    assert (first != last).any()
    assert [p.name for p in tmp_path.iterdir()] == ["episode.gif"]
    assert plt.get_fignums() == []


def test_film_is_written_whole_or_not_at_all(tmp_path, demos, monkeypatch):
    from matplotlib.animation import PillowWriter

    path = tmp_path / "episode.gif"
    path.write_bytes(b"old")

    def fail(self):
        raise OSError("disk full")

    monkeypatch.setattr(PillowWriter, "finish", fail)
    short = btil.Demonstrations(
        {name: values[:2] for name, values in demos.state_variables.items()},
        demos.actions[:2], agents=demos.agents, num_states=demos.num_states, num_actions=6,
        num_latents=5,
    )  # fmt: skip
    with pytest.raises(OSError, match="disk full"):
        animate_episode(CLEANUP, short, 0, path)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["episode.gif"]


def test_films_that_cannot_be_are_refused(tmp_path, demos):
    with pytest.raises(ValueError, match=r"the ending must be \.gif"):
        animate_episode(CLEANUP, demos, 0, tmp_path / "episode.mp4")
    with pytest.raises(ValueError, match="frames_per_second must be a whole number of"):
        animate_episode(CLEANUP, demos, 0, tmp_path / "episode.gif", frames_per_second=0)
    with pytest.raises(ValueError, match="episodes"):
        animate_episode(CLEANUP, demos, 9, tmp_path / "episode.gif")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ policies and occupancy


def arrows(axes):
    """{(x, y): (sum of the arrows to the right, downwards)} and all lengths."""
    from matplotlib.quiver import Quiver

    found = {}
    for quiver in axes.findobj(Quiver):
        for x, y, u, v in zip(quiver.X, quiver.Y, quiver.U, quiver.V, strict=True):
            found.setdefault((int(x), int(y)), []).append((float(u), float(v)))
    return found


def made_up_policy(task, seed=0):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(6, 0.7), (task.num_states, task.num_latents))


def test_arrows_have_the_lengths_of_the_probabilities():
    policy = made_up_policy(TINY)
    axes = plot_policy(TINY, policy, "alice", "pick up item 1").axes[0]
    assert axes.get_title(loc="left") == "alice: pick up item 1"
    found = arrows(axes)
    _, rob, *items = TINY.decode_states([TINY.start_state])[0]
    circles = {c.center: c.radius for c in axes.findobj(Circle) if c.get_facecolor()[0] == 0.45}
    diamonds = {p.xy: p.radius for p in axes.findobj(RegularPolygon)}
    for own, (x, y) in enumerate(TINY.grid.cells.tolist()):
        row = policy[TINY.encode([[own, rob, *items]])[0], 1]
        up, down, left, right, stay, hold = np.where(row < 0.01, 0, row)
        expected = [(0, -up), (0, down), (-left, 0), (right, 0)]
        expected = sorted((u * 0.46, v * 0.46) for u, v in expected if (u, v) != (0, 0))
        np.testing.assert_allclose(sorted(found.get((x, y), [])), expected, atol=1e-12)
        assert circles.get((x, y), 0) == pytest.approx(0.2 * stay)
        assert diamonds.get((x, y), 0) == pytest.approx(0.28 * hold)


def test_all_latents_get_a_panel_each():
    figure = plot_policy(TINY, made_up_policy(TINY), "rob")
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == [f"rob: {name}" for name in TINY.latent_names]
    # The teammate is there, the agent itself is everywhere.
    assert all(set(discs(axes)) == {BLUE} for axes in figure.axes)


def test_who_carries_with_the_agent_moves_along():
    task = btil.domains.movers("tiny")
    policy = made_up_policy(task)
    here = task.grid.items[0]
    state = task.encode([[here, here, 1, 0]])[0]
    axes = plot_policy(task, policy, "rob", task.take_to_goal, state).axes[0]
    found = arrows(axes)
    for own, (x, y) in enumerate(task.grid.cells.tolist()):
        row = policy[task.encode([[own, own, 1, 0]])[0], task.take_to_goal]
        total = sum(np.abs(arrow).sum() for arrow in found.get((x, y), []))
        assert total == pytest.approx(0.46 * row[:4][row[:4] >= 0.01].sum())
    assert discs(axes) == {}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("eve", 0), "unknown agent 'eve'; the agents are alice, rob"),
        (("rob", 4), r"unknown latent 4; allowed are 0\.\.3, or one of pick up item 0"),
        (("rob", "lunch"), "unknown latent 'lunch'"),
        (("rob", -1), "unknown latent -1"),
        (("rob", 0, TINY.num_states), "state: "),
        (("rob", 0, True), r"state: True; allowed are whole numbers in 0\.\."),
    ],
)
def test_policies_of_what_is_not_there_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot_policy(TINY, made_up_policy(TINY), *arguments)


def test_policies_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"policy: shape \(\d+, 4, 5\), expected"):
        plot_policy(TINY, made_up_policy(TINY)[..., :5], "rob")
    with pytest.raises(ValueError, match="axes hold one latent"):
        plot_policy(TINY, made_up_policy(TINY), "rob", ax=Figure().add_subplot())


def test_occupancy_counts_every_step(demos):
    axes = plot_occupancy(CLEANUP, demos, "rob").axes[0]
    (image,) = (np.ma.getdata(i.get_array()) for i in axes.images)
    cells = demos.state_variables["rob_cell"]
    for own, (x, y) in enumerate(CLEANUP.grid.cells.tolist()):
        assert image[y, x] == pytest.approx(np.mean(cells == own))
    assert np.nansum(image) == pytest.approx(1)
    assert all(np.isnan(image[y, x]) for x, y in CLEANUP.grid.walls)


def test_occupancy_of_one_latent(demos):
    figure = plot_occupancy(CLEANUP, demos, "alice", "take it to the goal")
    (image,) = (np.ma.getdata(i.get_array()) for i in figure.axes[0].images)
    chosen = demos.latents[:, 0] == CLEANUP.take_to_goal
    cells = demos.state_variables["alice_cell"][chosen]
    x, y = CLEANUP.grid.cells[np.bincount(cells).argmax()]
    assert np.nanmax(image) == image[y, x] == pytest.approx(np.bincount(cells).max() / len(cells))
    assert figure.axes[1].get_ylabel() == "share of steps"
    title = figure.axes[0].get_title(loc="left")
    assert title == f"alice: take it to the goal, {len(cells)} steps"
    whole = plot_occupancy(CLEANUP, demos, "alice").axes[0].get_title(loc="left")
    assert whole == f"alice, all {demos.num_steps} steps"
    with pytest.raises(ValueError, match="no step of alice is labelled 'pick up item 0'"):
        plot_occupancy(CLEANUP, demos.without_labels(), "alice", 0)


# ---------------------------------------------------------------------- for a phone


def test_panels_of_a_narrow_figure_stand_below_each_other():
    figure = new_figure(8.0, 3.0)
    axes = figure.subplots(2, 2, height_ratios=[2, 1])
    long = "a title that is longer than what a phone shows in one line"
    axes[0, 1].set_title(long)
    axes[1, 0].set_title("short", loc="left")
    names = ["a method of a long name", "another"]
    handles = [axes[0, 0].plot([0, 1], color=color)[0] for color in ("red", "green")]
    figure.legend(handles, names, loc="upper right")
    narrow(figure)
    # Each panel is as high as it was.
    np.testing.assert_allclose(figure.get_size_inches(), [3.8, 6.0])
    places = [one.get_subplotspec() for one in axes.flat]
    assert [(one.rowspan.start, one.colspan.stop) for one in places] == [
        (0, 1), (1, 1), (2, 1), (3, 1),
    ]  # fmt: skip
    np.testing.assert_allclose(
        places[0].get_gridspec().get_height_ratios(), np.array([2, 2, 1, 1]) / 3
    )
    title = axes[0, 1].get_title()
    assert title.split("\n") == ["a title that is longer than what a phone shows", "in one line"]
    assert axes[1, 0].get_title(loc="left") == "short"
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == names
    assert [line.get_color() for line in legend.get_lines()] == ["red", "green"]
    assert legend._ncols == 1  # 23 letters and a line: one fits


@pytest.mark.parametrize(("letters", "columns"), [(38, 1), (15, 2), (7, 3), (1, 3)])
def test_short_names_stand_beside_each_other_in_a_narrow_legend(letters, columns):
    figure = new_figure(8.0, 3.0)
    axes = figure.subplots()
    figure.legend([axes.plot([0, 1])[0]] * 4, ["a" * letters] * 4)
    narrow(figure)
    assert figure.legends[0]._ncols == columns
    assert figure.get_size_inches().tolist() == [3.8, 3.0]


def test_names_beside_panels_stay_beside_them():
    figure = new_figure(8.0, 3.0)
    axes = figure.subplots(1, 2)
    axes[0].set_axis_off()  # only names stand there
    narrow(figure)
    assert figure.get_size_inches().tolist() == [3.8, 3.0]
    assert axes[1].get_subplotspec().get_gridspec().ncols == 2
