"""Errands on a plane: the simulator does what it says, and few labels are enough to decode it."""

import itertools
from unittest.mock import create_autospec

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from matplotlib.figure import Figure

import btil
from btil.analysis.plots import prior
from btil.analysis.plots.layout import look
from btil.demonstrations.directions import plane_columns
from btil.domains.plane import Errands
from btil.figures import CATEGORY_MARKERS
from btil.inference.result import ChannelPoint
from btil.models.team import bind
from btil.posterior.posterior import TeamPosterior


def test_few_labels_decode_nearly_as_well_as_the_true_model():
    task = btil.domains.errands(num_members=2)
    recorded, test = task.simulate(100, seed=0), task.simulate(100, seed=1)
    few = recorded.without_labels(np.arange(10, 100))
    true = btil.fit(task.true_model(), few, progress=False)
    learned = btil.fit(task.recommended_model(), few, progress=False)
    errors = [(fit.decode(test) != test.latents).mean() for fit in (true, learned)]
    assert 0.005 < errors[0] < 0.06
    assert errors[1] < 1.2 * errors[0]
    assert learned.converged
    # What is learned of the motion is what made it: within four posterior standard deviations.
    points = learned.sample(200, seed=0)["emission_coefficients_bob"]
    truth = true.emission("bob").coefficients
    apart = np.abs(points.mean(0) - truth) / points.std(0)
    assert apart.max() < 4.5


def test_recordings_are_those_of_the_environment():
    task = btil.domains.errands(num_members=3, num_steps=6)
    demos = task.simulate(2, seed=3)
    env = task.to_parallel_env(render_mode="rgb_array")
    columns = demos.continuous
    where, speed = (
        np.stack([[columns[c] for c in task.columns(a)[part]] for a in task.agents])
        for part in (slice(0, 2), slice(2, 4))
    )
    for begin in demos.episode_starts.tolist():
        observations, _ = env.reset(options={"positions": where[:, :, begin]})
        for t in range(begin, begin + 6):
            # One's own position and velocity, then those of the others; at rest to begin with.
            before = speed[:, :, t - 1] if t > begin else np.zeros((3, 2))
            for agent, order in (("ann", [0, 1, 2]), ("bob", [1, 0, 2]), ("cid", [2, 0, 1])):
                seen = np.concatenate([where[order, :, t], before[order]], axis=1).ravel()
                np.testing.assert_allclose(observations[agent], seen, atol=1e-12)
            actions = dict(zip(task.agents, speed[:, :, t], strict=True))
            observations, rewards, ended, cut, _ = env.step(actions)
            near, after = (task.near(p) for p in (where[..., t], where[..., t] + speed[..., t]))
            expected = (after > 0) & (after != near)
            assert [rewards[a] for a in task.agents] == expected.astype(float).tolist()
            assert not any(ended.values())
            assert all(cut.values()) == (t == begin + 5)
        assert env.agents == []
    assert env.render().shape[2] == 3
    with pytest.raises(ResetNeeded):
        env.step(actions)


def test_an_episode_begins_between_the_goals_by_its_seed():
    task = btil.domains.errands(goals={"desk": (10.0, -3.0), "door": (12.0, -1.0)}, num_steps=5)
    env = task.to_parallel_env()

    def begun(seed):
        return env.reset(seed=seed)[0]["ann"].reshape(2, 4)[:, :2]

    first = begun(0)
    assert (first >= [10, -3]).all()
    assert (first <= [12, -1]).all()
    on = begun(None)
    assert (on != first).all()
    np.testing.assert_array_equal(begun(0), first)
    np.testing.assert_array_equal(begun(None), on)
    assert (begun(1) != first).all()
    # As in the recordings.
    demos = task.simulate(30, seed=1)
    for column, low, high in (("ann_x", 10, 12), ("bob_y", -3, -1)):
        at = demos.continuous[column][demos.episode_starts]
        assert low <= at.min() < low + 0.5
        assert high - 0.5 < at.max() <= high


def test_who_arrives_at_a_goal_is_rewarded_once():
    task = btil.domains.errands(num_members=2, num_steps=6)
    x, y = task.goals[0]
    env = task.to_parallel_env()
    env.reset(options={"positions": [[x, y + 1.0], [x, y]]})
    ann, bob = task.agents
    # Ann arrives, stays, leaves, comes back; bob is there from the start, and goes to another goal.
    moves = [
        ([0, -1], [0, 0]),
        ([0, 0], task.goals[1] - task.goals[0]),
        ([0, 1], [0, 0]),
        ([0, -1], [0, 0]),
    ]
    rewards = [env.step({ann: np.array(a, float), bob: np.array(b, float)})[1] for a, b in moves]
    assert [one[ann] for one in rewards] == [1, 0, 0, 1]
    assert [one[bob] for one in rewards] == [0, 1, 0, 0]


def test_environment_keeps_the_contract_of_pettingzoo():
    from pettingzoo.test import parallel_api_test

    parallel_api_test(btil.domains.errands(num_steps=5).to_parallel_env(), num_cycles=20)


def test_intents_turn_as_often_as_said():
    task = btil.domains.errands(num_steps=40)
    demos = task.simulate(300, seed=2)
    follows = np.ones(demos.num_steps, bool)
    follows[demos.episode_starts] = False
    after = np.flatnonzero(follows)
    for i, agent in enumerate(task.agents):
        near = demos.state_variables[f"{agent}_near"][after - 1]
        before, now = demos.latents[after - 1, i], demos.latents[after, i]
        for place in range(4):
            for goal in range(3):
                own = (near == place) & (before == goal)
                expected = task.turns()[place, goal]
                found = np.bincount(now[own], minlength=3) / own.sum()
                error = np.sqrt(expected * (1 - expected) / own.sum())
                assert np.all(np.abs(found - expected) < 4.5 * error)


def test_what_is_wrong_is_refused():
    for given, message in (
        ({"num_members": 1}, "num_members"),
        ({"num_members": 5}, "num_members must be 2 to 4, got 5"),
        ({"goals": {"desk": (0, 0)}}, "two places"),
        ({"goals": {"desk": (0, 0), "door": (1,)}}, "two places"),
        ({"goals": {"desk": (0, 0), "door": (1, "far")}}, "two places"),
        ({"goals": 3}, "two places"),
        ({"noise": 0.0}, "noise must be a positive number"),
        ({"num_steps": 1}, "num_steps"),
    ):
        with pytest.raises(ValueError, match=message):
            btil.domains.errands(**given)
    task = btil.domains.errands()
    assert isinstance(task, Errands)
    env = task.to_parallel_env()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action of bob is None; allowed are velocities"):
        env.step({"ann": np.zeros(2)})
    with pytest.raises(ValueError, match="action of ann is 'up'; allowed are velocities"):
        env.step({"ann": "up", "bob": np.zeros(2)})
    with pytest.raises(ValueError, match="unknown agent 'cid'; the agents are ann, bob"):
        env.step(dict.fromkeys(("ann", "bob", "cid"), np.zeros(2)))
    for positions in ([[1, 2], [3, np.nan]], [[1, 2]], [1, 2, 3, 4], 5, "here"):
        with pytest.raises(ValueError, match=r"positions must be finite numbers .* of 2 members"):
            env.reset(options={"positions": positions})
    with pytest.raises(ValueError, match="render_mode must be None or 'rgb_array'"):
        task.to_parallel_env("human")


def test_paths_are_coloured_by_what_was_in_mind():
    task = btil.domains.errands(num_steps=8)
    demos = task.simulate(14, seed=0)
    own = Figure()
    axes = own.subplots()
    shown = demos.latents.copy()
    shown[16:20] = -1
    assert btil.analysis.plot_paths(demos, "bob", "bob_x", "bob_y", shown, [2, 1], axes) is own
    pieces = [line for line in axes.lines if line.get_marker() == "None"]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    # Seven pieces of the third episode, then of the second; each as its first step has it.
    steps = [*range(16, 23), *range(8, 15)]
    at = np.stack([demos.continuous["bob_x"], demos.continuous["bob_y"]], 1)
    for line, t in zip(pieces, steps, strict=True):
        np.testing.assert_array_equal(line.get_xydata(), at[t : t + 2])
        latent = shown[t, 1]
        assert line.get_color() == ("0.75" if latent < 0 else look(int(latent)).color)
    np.testing.assert_array_equal([dot.get_xydata()[0] for dot in dots], at[[16, 8]])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("bob_x", "bob_y")
    assert axes.get_title() == "bob: 2 episodes, a dot where they begin"
    # Without a choice the labels of the first twelve; in the legend what occurs.
    axes = btil.analysis.plot_paths(demos, "ann", "ann_x", "ann_y").axes[0]
    assert len(axes.lines) == 12 * (7 + 1)
    assert axes.lines[0].get_color() == look(int(demos.latents[0, 0])).color
    legend = [text.get_text() for text in axes.get_legend().texts]
    assert legend == [task.goal_names[k] for k in np.unique(demos.latents[:, 0])]
    for arguments, message in (
        (("cid", "ann_x", "ann_y"), "unknown agent 'cid'"),
        (("ann", "x", "ann_y"), "no continuous column 'x'"),
        (("ann", "ann_x", "ann_y", None, [14]), "allowed are positions from 0 to 13"),
        (("ann", "ann_x", "ann_y", None, [-1]), "allowed are positions from 0 to 13"),
        (("ann", "ann_x", "ann_y", None, 0.0), "allowed are positions from 0 to 13"),
    ):
        with pytest.raises(ValueError, match=message):
            btil.analysis.plot_paths(demos, *arguments)


@pytest.mark.parametrize("moves", [False, True])
def test_arrows_are_what_is_expected_of_each_latent(moves):
    """The velocity where that is the column; else how far the coordinates move."""
    task = btil.domains.errands(num_steps=8)
    demos = task.simulate(4, seed=0)
    columns = ("ann_x", "ann_y") if moves else ("ann_vx", "ann_vy")
    inputs = ("previous_ann_x", "previous_ann_y") if moves else ("ann_vx", "ann_x", "ann_y")
    columns, inputs = (columns, inputs) if moves else (columns, ("bob_x", "ann_x", "ann_y"))
    model = btil.TeamModel(
        policy=None, emissions={"ann": btil.LinearNormalEmission(columns, inputs)}
    ).resolved(demos)
    generator = np.random.default_rng(1)
    size = 1 + len(inputs)
    coefficients = generator.normal(size=(1, 3, size, 2))
    covariance = np.array([[[[0.25, 0.0], [0.0, 4.0]]] * 3])
    posterior = create_autospec(TeamPosterior, instance=True)
    posterior.demos, posterior.bound = demos, bind(model, demos)
    posterior.emission.return_value = ChannelPoint(coefficients, covariance)
    axes = Figure().subplots(1, 3)
    btil.analysis.plot_motion(posterior, "ann", "ann_x", "ann_y", state={"here": 1}, axes=axes)
    posterior.emission.assert_called_once_with("ann", {"here": [1]})
    at = np.stack([demos.continuous["ann_x"], demos.continuous["ann_y"]], 1)
    told = np.ones(demos.num_steps, bool)
    told[demos.episode_starts] = not moves
    seen = at[np.flatnonzero(told) - moves]
    for k, panel in enumerate(axes):
        (arrows,) = panel.collections
        places = np.asarray(arrows.get_offsets())
        assert len(places) == 11 * 11
        np.testing.assert_allclose(places.min(0), seen.min(0))
        np.testing.assert_allclose(places.max(0), seen.max(0))
        np.testing.assert_allclose(places[1] - places[0], [np.ptp(seen[:, 0]) / 10, 0], atol=1e-12)
        # What is neither coordinate is at its mean.
        other = [] if moves else [demos.continuous["bob_x"].mean()]
        for place, *arrow in zip(places, arrows.U, arrows.V, strict=True):
            expected = np.array([1.0, *other, *place]) @ coefficients[0, k] - moves * place
            np.testing.assert_allclose(arrow, expected, rtol=1e-6)
        assert panel.get_title() == f"ann: {task.goal_names[k]}, sd 0.5, 2"
        assert (panel.get_xlabel(), panel.get_ylabel()) == ("ann_x", "ann_y")
    with pytest.raises(ValueError, match="bob_y is not a covariate of the emission of ann"):
        btil.analysis.plot_motion(posterior, "ann", "ann_x", "bob_y")


def test_motion_of_one_column_has_no_arrows():
    demos = btil.domains.errands(num_steps=4).simulate(2, seed=0)
    emission = btil.LinearNormalEmission(("ann_vx",), ("ann_x", "ann_y"))
    model = btil.TeamModel(policy=None, emissions={"ann": emission}).resolved(demos)
    posterior = create_autospec(TeamPosterior, instance=True)
    posterior.demos, posterior.bound = demos, bind(model, demos)
    posterior.emission.return_value = ChannelPoint(np.zeros((1, 3, 3, 1)), np.ones((1, 3, 1, 1)))
    with pytest.raises(ValueError, match="the emission of ann has one column, ann_vx; arrows need"):
        btil.analysis.plot_motion(posterior, "ann", "ann_x", "ann_y")


@pytest.mark.parametrize("speed", [None, 0.8])
def test_members_walk_as_the_equations_say(speed):
    task = btil.domains.errands(num_members=3, noise=0.2, num_steps=30, speed=speed)
    demos = task.simulate(80, seed=4)
    starts = demos.episode_starts
    everywhere = []
    for i, agent in enumerate(task.agents):
        x, y, vx, vy = (demos.continuous[name] for name in task.columns(agent))
        at, moved = np.stack([x, y], 1), np.stack([vx, vy], 1)
        before = np.zeros_like(moved)
        before[1:] = moved[:-1]
        before[starts] = 0.0  # at rest
        apart = task.goals[demos.latents[:, i]] - at
        if speed is None:
            expected = 0.5 * before + 0.08 * apart
        else:
            expected = speed * apart / np.sqrt((apart**2).sum(1, keepdims=True) + speed**2)
        told = task.expected_velocity(demos.latents[:, i], at, before)
        np.testing.assert_allclose(told, expected, atol=1e-12)
        noise = (moved - expected) / 0.2
        assert np.abs(noise.mean(0)).max() < 4.5 / np.sqrt(len(noise))
        assert noise.std() == pytest.approx(1.0, abs=4.5 / np.sqrt(4 * len(noise)))
        within = np.setdiff1d(np.arange(demos.num_steps), starts)
        np.testing.assert_allclose(at[within], (at + moved)[within - 1])
        distance = np.linalg.norm(at[:, None] - task.goals, axis=-1)
        near = np.where(distance.min(1) < 1.0, distance.argmin(1) + 1, 0)
        np.testing.assert_array_equal(demos.state_variables[f"{agent}_near"], near)
        assert demos.value_names(f"{agent}_near") == ("nowhere", *task.goal_names)
        everywhere.append(at[starts])
        # The true model says the same of every step.
        family = task.true_model().resolved(demos).emission(agent)
        columns, given = demos.continuous, family.input_names(agent)
        values = np.stack(
            [
                np.ones(demos.num_steps) if name not in columns and "previous" not in name
                else before[:, int(name.endswith("vy"))] if "previous" in name
                else columns[name]
                for name in given
            ],
            axis=1,
        )  # fmt: skip
        of_goal = np.asarray(family.location)[demos.latents[:, i]]
        np.testing.assert_allclose(np.einsum("tp,tpd->td", values, of_goal), expected, atol=1e-12)
        assert family.noise == (0.2, 0.2)
        assert family.columns_of(agent) == task.columns(agent)[2:]
        recommended = task.recommended_model().emission(agent)
        assert recommended.input_names(agent) == given
        assert recommended.columns_of(agent) == family.columns_of(agent)
    # They begin anywhere between the goals.
    begun = np.concatenate(everywhere)
    low, high = task.goals.min(0), task.goals.max(0)
    assert (begun >= low).all()
    assert (begun <= high).all()
    assert np.abs((begun - low) / (high - low) - 0.5).mean() == pytest.approx(0.25, abs=0.03)
    assert demos.episode_ids.tolist() == list(range(80))
    assert task.simulate(80, seed=4) == demos
    assert task.simulate(80, seed=5) != demos


def test_true_and_recommended_models_turn_by_where_a_member_is():
    task = btil.domains.errands(num_steps=4)
    demos = task.simulate(2, seed=0)
    for model in (task.true_model(), task.recommended_model()):
        for agent in task.agents:
            assert model.transition.parents_of(agent) == (f"{agent}_near",)
    bound = bind(task.true_model().resolved(demos), demos)
    table = bound.table("transition", "bob")
    near = table.contexts.rows[:, 0]
    expected = np.full((4, 3, 3), 0.01 / 2)
    expected[:, range(3), range(3)] = 0.99
    for goal in range(3):
        expected[goal + 1, goal] = 0.4 / 2
        expected[goal + 1, goal, goal] = 0.6
    np.testing.assert_allclose(table.prior_mean(), expected[near])


def test_a_film_strip_and_a_film(tmp_path):
    from PIL import Image

    task = btil.domains.errands(num_steps=7)
    demos = task.simulate(2, seed=3)
    where = {agent: task.columns(agent)[:2] for agent in task.agents}
    goals = dict(zip(task.goal_names, task.goals, strict=True))
    figure = btil.analysis.plot_motion_strip(demos, 1, where, steps=[0, 3, 6], places=goals)
    assert [axes.get_title("left") for axes in figure.axes] == ["step 0", "step 3", "step 6"]
    last = figure.axes[2].lines[-1]  # bob, where he ends, in the colour of what he has in mind
    assert last.get_xydata()[0].tolist() == [demos.continuous[c][13] for c in where["bob"]]
    assert last.get_color() == look(int(demos.latents[13, 1])).color
    assert [text.get_text() for text in figure.legends[0].texts] == [*task.agents, *goals]
    path = tmp_path / "walk.gif"
    unknown = np.full_like(demos.latents, -1)
    btil.analysis.animate_motion(demos, 0, {"ann": where["ann"]}, path, unknown)
    with Image.open(path) as film:
        assert film.n_frames == 7
    for arguments, message in (
        ((demos, 2, where), "episode"),
        ((demos, 0, {"cid": ("ann_x", "ann_y")}), "columns: unknown agent 'cid'"),
        ((demos, 0, {"ann": ("ann_x", "z")}), "no continuous column 'z'"),
        ((demos, 0, {"ann": "ann_x"}), "expected the names of two continuous columns"),
        ((demos, 0, where, np.zeros(3, int)), "latents must be whole numbers of shape"),
        ((demos, 0, where, None, [7]), "steps"),
        ((demos, 0, where, None, []), "steps: none are given"),
        ((demos, 0, where, None, None, {"desk": (1.0,)}), "places: desk is"),
    ):
        with pytest.raises(ValueError, match=message):
            btil.analysis.plot_motion_strip(*arguments)
    with pytest.raises(ValueError, match=r"must be \.gif"):
        btil.analysis.animate_motion(demos, 0, where, tmp_path / "walk.mp4")
    assert [p.name for p in tmp_path.iterdir()] == ["walk.gif"]


def test_a_film_strip_shows_the_way_that_each_has_come():
    task = btil.domains.errands(num_members=3, num_steps=20)
    demos = task.simulate(2, seed=3)
    where = {agent: task.columns(agent)[:2] for agent in ("cid", "ann")}
    latents = demos.latents.copy()
    latents[20 + 4, 2] = -1
    figure = btil.analysis.plot_motion_strip(
        demos, 1, where, latents, places={"home": (50.0, 4.0), "shop": (1.0, -60.0)}
    )
    shown = [0, 3, 5, 8, 11, 14, 16, 19]  # as far apart as may be
    assert [axes.get_title("left") for axes in figure.axes] == [f"step {t}" for t in shown]
    # The k-th member has the k-th mark, whoever it is in the data.
    at = {agent: np.stack([demos.continuous[c][20:] for c in where[agent]], 1) for agent in where}

    def color(agent, t):
        latent = latents[20 + t, demos.agents.index(agent)]
        return "0.7" if latent < 0 else look(int(latent)).color

    for axes, step in zip(figure.axes, shown, strict=True):
        marks = [line for line in axes.lines if line.get_marker() in CATEGORY_MARKERS]
        crosses = [line for line in axes.lines if line.get_marker() == "+"]
        ways = [line for line in axes.lines if line.get_marker() == "None"]
        assert [tuple(line.get_xydata()[0]) for line in crosses] == [(50.0, 4.0), (1.0, -60.0)]
        assert [text.get_text() for text in axes.texts] == ["home", "shop"]
        for mark, marker, agent in zip(marks, CATEGORY_MARKERS, where, strict=False):
            assert (mark.get_marker(), mark.get_color()) == (marker, color(agent, step))
            np.testing.assert_array_equal(mark.get_xydata(), at[agent][[step]])
        # Twelve steps of each are drawn, the last one darkest.
        steps = range(max(0, step - 12), step)
        expected = [(agent, t) for agent in where for t in steps]
        for line, (agent, t) in zip(ways, expected, strict=True):
            np.testing.assert_array_equal(line.get_xydata(), at[agent][t : t + 2])
            assert line.get_color() == color(agent, t)
            assert line.get_alpha() == pytest.approx(0.75 - (step - t) / 24)
        # One scale for all, with room for everybody and every place.
        everything = np.concatenate([*at.values(), [(50.0, 4.0), (1.0, -60.0)]])
        low, high = everything.min(0), everything.max(0)
        margin = 0.06 * (high - low).max()
        np.testing.assert_allclose(axes.get_xlim(), [low[0] - margin, high[0] + margin])
        np.testing.assert_allclose(axes.get_ylim(), [low[1] - margin, high[1] + margin])
    labels = [text.get_text() for text in figure.legends[0].texts]
    assert labels == ["cid", "ann", *task.goal_names]
    assert figure.get_suptitle() == "Episode 1"


def test_what_a_prior_expects_is_drawn():
    from matplotlib.figure import Figure

    task = btil.domains.errands(num_steps=6)
    demos = task.simulate(4, seed=0)
    said = btil.TeamModel(
        policy=None,
        emissions={
            "bob": btil.NormalEmission(
                ("bob_vx", "bob_vy"), location=(5.0, -3.0), pseudo_steps=1e6, noise=0.5,
                degrees_of_freedom=1e6,
            )
        },
    )  # fmt: skip
    axes = Figure().subplots(1, 2)
    btil.analysis.plot_prior_predictive(said, demos, num_draws=40, axes=axes)
    for panel, column, centre in zip(axes, ("bob_vx", "bob_vy"), (5.0, -3.0), strict=True):
        name, _, middle = panel.get_title().partition(": 90% from ")
        low, high = map(float, middle.split(" to "))
        assert name == column
        # 90% of a normal distribution of 0.5 is 1.645 of that to each side.
        assert low == pytest.approx(centre - 0.822, abs=0.15)
        assert high == pytest.approx(centre + 0.822, abs=0.15)
    figure = btil.analysis.plot_prior_predictive(said, demos, ["bob_vy"], num_draws=2)
    assert len(figure.axes) == 1
    with pytest.raises(
        ValueError, match="'ann_vx' is not a column of an emission; there are bob_vx"
    ):
        btil.analysis.plot_prior_predictive(said, demos, ["ann_vx"])
    with pytest.raises(ValueError, match="the model has no emissions"):
        btil.analysis.plot_prior_predictive(btil.TeamModel(), demos)


def test_a_wide_prior_is_drawn_around_what_was_recorded_and_the_rest_is_counted():
    recorded = np.linspace(2.0, 3.0, 11)
    drawn = [np.linspace(-50.0, 55.0, 1001), np.linspace(2.4, 2.6, 401)]
    axes = Figure().subplots()
    prior._draw(axes, "speed", recorded, drawn)
    # Four breadths of what was recorded to each side.
    assert axes.get_xlim() == (-2.0, 7.0)
    shown, *each, pooled = (patch.get_data() for patch in axes.patches)
    width = 9 / 40
    for found, values in (
        (shown, recorded),
        (pooled, np.concatenate(drawn)),
        *zip(each, drawn, strict=True),
    ):
        np.testing.assert_allclose(found.edges, np.linspace(-2.0, 7.0, 41))
        counts = np.histogram(values, np.linspace(-2.0, 7.0, 41))[0]
        np.testing.assert_allclose(found.values, counts / (len(values) * width))
    values = np.concatenate(drawn)
    low, high = np.quantile(values, [0.05, 0.95])
    beyond = np.mean((values < -2) | (values > 7))
    assert axes.get_title() == (
        f"speed: 90% from {low:.3g} to {high:.3g}; {beyond:.0%} farther off"
    )
    assert [text.get_label() for text in axes.patches[::3]] == ["recorded", "prior, 2 draws"]
    # A narrow prior leaves out nothing that was recorded, and without records it stands alone.
    axes = Figure().subplots()
    prior._draw(axes, "speed", recorded, [drawn[1]])
    assert axes.get_xlim() == (2.0, 3.0)
    assert "farther off" not in axes.get_title()
    axes = Figure().subplots()
    prior._draw(axes, "speed", recorded[:0], drawn[1:])
    np.testing.assert_allclose(axes.get_xlim(), np.quantile(drawn[1], [0.01, 0.99]))
    assert len(axes.patches) == 2


def test_intents_are_told_apart_without_labels():
    task = btil.domains.errands()
    demos = task.simulate(40, seed=3)
    bounds = []
    for seed in range(2):
        fitted = btil.fit(
            task.recommended_model(), demos.without_labels(), progress=False, seed=seed
        )
        decoded = fitted.decode(demos)
        bounds.append(fitted.elbo)
        for i in range(2):
            errors = [
                np.mean(np.array(names)[decoded[:, i]] != demos.latents[:, i])
                for names in itertools.permutations(range(3))
            ]
            assert min(errors) < 0.06
    assert abs(bounds[0] - bounds[1]) < 0.1


# ---------------------------------------------------------------------- at a speed of its own


def decoding_errors(task, model, test, recorded):
    few = recorded.without_labels(np.arange(10, 100))
    fits = [btil.fit(m, few, progress=False) for m in (task.true_model(), model)]
    return [(fit.decode(test) != test.latents).mean() for fit in fits], fits[1]


def test_steady_walkers_are_decoded_by_directions():
    """Places known, and found: first by a regression on positions, then by directions to these."""
    task = btil.domains.errands(speed=0.8, noise=0.4)
    recorded, test = task.simulate(100, seed=0), task.simulate(100, seed=1)
    errors, _ = decoding_errors(task, task.recommended_model(), test, recorded)
    assert 0.005 < errors[0] < 0.06
    assert errors[1] < 1.2 * errors[0]
    linear = btil.domains.errands().recommended_model()
    few = recorded.without_labels(np.arange(10, 100))
    first = btil.fit(linear, few, progress=False)
    plain = (first.decode(test) != test.latents).mean()
    assert plain > 1.3 * errors[0]
    for agent in task.agents:
        x, y, vx, vy = task.columns(agent)
        goals = btil.analysis.goals(first, agent, (x, y), (vx, vy))
        assert list(goals) == ["desk", "door", "shelf"]
        for goal, place in zip(goals.values(), task.goals, strict=True):
            np.testing.assert_allclose([goal.x, goal.y], place, atol=0.2)
            assert goal.speed == pytest.approx(0.8, abs=0.1)
            assert goal.inertia == pytest.approx(0.0, abs=0.05)
        near = np.median([goal.near for goal in goals.values()])
        found = {f"found_{name}": goal[:2] for name, goal in goals.items()}
        few, test = (btil.directions(demos, x, y, found, near) for demos in (few, test))
    model = btil.TeamModel(
        policy=None,
        transition=linear.transition,
        emissions=btil.LinearNormalEmission(
            {agent: task.columns(agent)[2:] for agent in task.agents},
            {
                agent: [c for c in few.continuous if f"{agent}_" in c and "_to_found" in c]
                for agent in task.agents
            },
        ),
    )
    second = btil.fit(model, few, progress=False)
    assert (second.decode(test) != test.latents).mean() < 1.2 * errors[0]


def test_goals_are_found_however_members_walk():
    """Slower and slower, too: there they are, and all is said of how."""
    task = btil.domains.errands(num_steps=30, noise=0.1)
    posterior = btil.fit(task.true_model(), task.simulate(40, seed=0), progress=False)
    found = btil.analysis.goals(posterior, "bob", ("bob_x", "bob_y"), ("bob_vx", "bob_vy"))
    assert list(found) == ["desk", "door", "shelf"]
    for goal, place in zip(found.values(), task.goals, strict=True):
        np.testing.assert_allclose([goal.x, goal.y], place, atol=0.2)
        assert goal.near > 10
        assert goal.speed / goal.near == pytest.approx(0.08, abs=0.01)
        assert goal.inertia == pytest.approx(0.5, abs=0.05)
    speed = ("bob_vx", "bob_vy")
    for agent, position, message in (
        ("cid", ("bob_x", "bob_y"), "unknown agent 'cid'"),
        ("bob", ("bob_x", "z"), "no continuous column 'z'"),
        ("bob", ("bob_x",), "position: expected the names of two continuous columns"),
    ):
        with pytest.raises(ValueError, match=message):
            btil.analysis.goals(posterior, agent, position, speed)


def test_goals_are_told_by_steps_of_the_same_episode():
    """Motion without noise comes out as it was made; the first velocities are anything."""
    generator = np.random.default_rng(0)
    place, speed, near, inertia = np.array([1.0, -2.0]), 0.6, 1.5, 0.4
    steps = []
    for _ in range(30):
        where, pace = generator.uniform(-3, 3, 2), generator.uniform(-2, 2, 2)
        for _ in range(3):
            steps.append([*where, *pace])
            where = where + pace
            apart = place - where
            pace = inertia * pace + speed * apart / np.sqrt(apart @ apart + near**2)
    columns = ("ann_x", "ann_y", "ann_vx", "ann_vy")
    demos = btil.Demonstrations(
        None, agents=("ann",), num_latents=1, episodes=np.repeat(np.arange(30), 3),
        continuous=dict(zip(columns, np.transpose(steps), strict=True)),
    )  # fmt: skip
    posterior = create_autospec(TeamPosterior, instance=True)  # one thing in mind
    posterior.demos, posterior.smooth.return_value = demos, {"ann": np.ones((90, 1))}
    (found,) = btil.analysis.goals(posterior, "ann", columns[:2], columns[2:]).values()
    np.testing.assert_allclose(found, [*place, speed, near, inertia], rtol=1e-3)


def test_directions():
    demos = btil.Demonstrations(
        {}, [0, 0], num_latents=2, continuous={"x": [0.0, 3.0], "y": [0.0, np.nan]}
    )
    found = btil.directions(demos, "x", "y", {"home": (0.0, 4.0)}, near=3.0).continuous
    np.testing.assert_allclose(found["x_to_home"], [0.0, np.nan])
    np.testing.assert_allclose(found["y_to_home"], [0.8, np.nan])
    for arguments, message in (
        (("z", "y", {"home": (0, 0)}, 1.0), "no continuous column 'z'; there are x, y"),
        (("x", "y", {"home": (0, 0, 1)}, 1.0), r"the place 'home' is \(0, 0, 1\), expected"),
        (("x", "y", {"home": (0, np.nan)}, 1.0), r"the place 'home' is \(0, nan\), expected"),
        (("x", "y", {"home": "here"}, 1.0), r"the place 'home' is 'here', expected \(x, y\)"),
        (("x", "y", {}, 1.0), "places must be"),
        (("x", "y", {"home": (0, 0)}, 0.0), "near must be a positive number"),
    ):
        with pytest.raises(ValueError, match=message):
            btil.directions(demos, *arguments)
    twice = demos.replace(continuous={**demos.continuous, "x_to_home": np.zeros(2)})
    with pytest.raises(ValueError, match="a column 'x_to_home' already"):
        btil.directions(twice, "x", "y", {"home": (0, 0)}, 1.0)
    named = demos.replace(states={"y_to_home": [0, 1]})
    with pytest.raises(ValueError, match="a column 'y_to_home' already"):
        btil.directions(named, "x", "y", {"home": (0, 0)}, 1.0)
    several = btil.directions(demos, "y", "x", {"a": (0.0, 0.0), "b": (4.0, 3.0)}, near=12.0)
    assert list(several.continuous) == ["x", "y", "y_to_a", "x_to_a", "y_to_b", "x_to_b"]
    np.testing.assert_allclose(several.continuous["y_to_b"][0], 4 / 13)
    np.testing.assert_allclose(several.continuous["x_to_b"][0], 3 / 13)
    for columns in ("xy", ("x",), ("x", "y", "x")):
        with pytest.raises(ValueError, match="walk: expected the names of two continuous columns"):
            plane_columns(demos, columns, "walk")
