"""Errands on a plane: the simulator does what it says, and few labels are enough to decode it."""

import itertools
from unittest.mock import create_autospec

import numpy as np
import pytest
from gymnasium.error import ResetNeeded

import btil
from btil.analysis.plots.layout import look
from btil.demonstrations.directions import plane_columns
from btil.domains.plane import Errands
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
            np.testing.assert_allclose(observations["bob"][:2], where[1, :, t], atol=1e-12)
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


def test_figures_of_paths_and_of_motion():
    from matplotlib.figure import Figure

    task = btil.domains.errands(num_steps=8)
    demos = task.simulate(4, seed=0)
    posterior = btil.fit(task.recommended_model(), demos, progress=False)
    figure = btil.analysis.plot_paths(demos, "bob", "bob_x", "bob_y", episodes=[1])
    assert isinstance(figure, Figure)
    lines = figure.axes[0].lines
    assert len(lines) == 7 + 1
    begin = demos.episode_starts[1]
    np.testing.assert_allclose(lines[0].get_xdata(), demos.continuous["bob_x"][begin : begin + 2])
    axes = Figure().subplots(1, 3)
    drawn = btil.analysis.plot_motion(posterior, "ann", "ann_x", "ann_y", axes=axes)
    assert drawn is axes[0].figure
    arrows = axes[2].collections[0]
    places = arrows.get_offsets()
    mean = posterior.bound.channels["ann"].observed
    typical = mean.inputs[mean.rows].mean(0)
    row = np.concatenate([[1.0], places[5], typical[3:]])
    expected = row @ posterior.emission("ann").coefficients[0, 2]
    np.testing.assert_allclose([arrows.U[5], arrows.V[5]], expected, rtol=1e-6)
    for draw, message in (
        (lambda: btil.analysis.plot_paths(demos, "cid", "ann_x", "ann_y"), "unknown agent 'cid'"),
        (lambda: btil.analysis.plot_paths(demos, "ann", "x", "ann_y"), "no continuous column 'x'"),
        (
            lambda: btil.analysis.plot_paths(demos, "ann", "ann_x", "ann_y", episodes=[9]),
            "allowed are positions from 0 to 3",
        ),
        (
            lambda: btil.analysis.plot_motion(posterior, "ann", "bob_x", "ann_y"),
            "bob_x is not a covariate of the emission of ann",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            draw()


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
