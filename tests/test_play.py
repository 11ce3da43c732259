"""Learned teams at work: `btil.domains.play`, `btil.analysis.team_performance`, `btil play`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pettingzoo
import pytest
from typer.testing import CliRunner

import btil
from btil.analysis import team_performance
from btil.cli import app
from btil.domains import cleanup, movers, play
from btil.domains.gridworld.task import GridTask
from btil.domains.playing import check_actor
from btil.posterior.acting import Actor
from btil.posterior.posterior import TeamPosterior

TASKS = (movers("tiny"), cleanup("tiny"))
# Latents that move by chance, whatever happens.
ADRIFT = btil.DirichletCPT(1.0, ())


def fitted(model: btil.TeamModel, demos: btil.Demonstrations, **options: Any) -> TeamPosterior:
    posterior = btil.fit(model, demos, progress=False, **options)
    assert isinstance(posterior, TeamPosterior)
    return posterior


@pytest.fixture(scope="module", params=TASKS, ids=lambda task: task.name)
def task(request: pytest.FixtureRequest) -> GridTask:
    chosen: GridTask = request.param
    return chosen


@pytest.fixture(scope="module")
def truth(task: GridTask) -> TeamPosterior:
    """The team that the task is simulated with."""
    return fitted(task.true_model(), task.simulate(1))


@pytest.fixture(scope="module")
def learned(task: GridTask) -> TeamPosterior:
    """A team learned from 40 episodes, ten of them labelled."""
    demos = task.simulate(40, seed=1).without_labels(range(10, 40))
    return fitted(task.recommended_model(), task.add_derived_variables(demos))


# ---------------------------------------------------------------------- the true team


def test_the_true_model_plays_what_simulate_does(task: GridTask, truth: TeamPosterior) -> None:
    simulated = task.simulate(20, seed=7, max_steps=50)
    played = play(task, truth, 20, seed=7, max_steps=50)
    assert played.replace(rewards=None) == simulated
    assert play(task, task.policies(), 20, seed=7, max_steps=50) == played
    mixed = {"alice": truth, "rob": task.policies()["rob"]}
    assert play(task, mixed, 20, seed=7, max_steps=50) == played
    # Nothing is learned of it, so that all draws are the same.
    assert play(task, truth, 20, seed=7, max_steps=50, estimate="draw") == played


def test_an_environment_is_played_alike(task: GridTask, truth: TeamPosterior) -> None:
    lengths = [
        play(where, truth, 16, seed=3, max_steps=40).episode_lengths
        for where in (task, task.to_parallel_env())
    ]
    mean, error = (
        np.array([measure(each) for each in lengths])
        for measure in (np.mean, lambda each: np.std(each) / np.sqrt(len(each)))
    )
    assert abs(mean[0] - mean[1]) < 3 * np.hypot(*error)


def test_another_seed_is_another_play_of_the_same_team(
    task: GridTask, truth: TeamPosterior
) -> None:
    one, other = (play(task, truth, 150, seed=seed).episode_lengths for seed in (0, 1))
    assert (one != other).any()
    assert abs(one.mean() - other.mean()) < 3 * np.hypot(one.std(), other.std()) / np.sqrt(150)


# ---------------------------------------------------------------------- a learned team


def test_a_learned_team_finishes(task: GridTask, learned: TeamPosterior) -> None:
    performance = team_performance(task, play(task, learned, 50, seed=2))
    assert performance.cut.value < 0.1
    true = team_performance(task, task.simulate(50, seed=2))
    assert performance.steps.value < 1.5 * true.steps.value


@pytest.mark.parametrize("estimate", ["mean", "draw"])
def test_first_episodes_of_a_longer_run_are_the_same(
    task: GridTask, learned: TeamPosterior, estimate: str
) -> None:
    short, long = (play(task, learned, n, seed=5, estimate=estimate) for n in (3, 35))
    assert long.select([0, 1, 2]) == short
    env = task.to_parallel_env()
    short_there, long_there = (
        play(env, learned, n, seed=5, max_steps=3, estimate=estimate) for n in (2, 33)
    )
    assert long_there.select([0, 1]) == short_there
    # The draws of the second batch are others than those of the first.
    assert play(task, learned, 3, seed=6, estimate=estimate) != short


def test_actors_act_by_the_posterior(task: GridTask, learned: TeamPosterior) -> None:
    demos = task.add_derived_variables(task.simulate(3, seed=9))
    variables, none = demos.state_variables, np.zeros(demos.num_steps, np.int64)
    states = {"now": {n: v[:-1] for n, v in variables.items()}}
    states["next"] = {n: v[1:] for n, v in variables.items()}
    rows = np.arange(demos.num_steps)
    for estimate in ("mean", "map"):
        for i, agent in enumerate(task.agents):
            actor = learned.actors(estimate)[agent]
            latents = demos.latents[:, i]
            policy = learned.policy(agent, variables, estimate=estimate)
            np.testing.assert_array_equal(
                actor.policy(variables, latents, none), policy[rows, latents]
            )
            initial = learned.initial(agent, variables, estimate=estimate)
            np.testing.assert_array_equal(actor.initial(variables, none), initial)
            acted = demos.actions[:-1]
            transition = learned.transition(
                agent, states["now"], acted, states["next"], estimate=estimate
            )
            np.testing.assert_array_equal(
                actor.transition(states["now"], acted, states["next"], latents[:-1], none[1:]),
                transition[rows[:-1], latents[:-1]],
            )


def test_draws_are_those_of_the_posterior() -> None:
    demos = btil.Demonstrations(
        [0, 0, 0, 1], {"ann": [0, 0, 1, 1]}, {"ann": [0] * 4}, num_states=3, num_latents=1
    )
    model = btil.TeamModel(btil.DirichletCPT(1.0, ("state",)), btil.StaticCPT())
    number = 4000
    actor = fitted(model, demos).actors(num_draws=number, seed=1)["ann"]
    draws, none = np.arange(number), np.zeros(number, np.int64)
    # Beta(3, 2) and Beta(1, 2) where data were seen, Beta(1, 1) elsewhere.
    for state, (a, b) in enumerate([(3, 2), (1, 2), (1, 1)]):
        drawn = actor.policy({"state": none + state}, none, draws)[:, 0]
        sd = np.sqrt(a * b / (a + b + 1)) / (a + b)
        assert abs(drawn.mean() - a / (a + b)) < 4 * sd / np.sqrt(number)
        assert drawn.std() == pytest.approx(sd, rel=0.05)
        # The same draw acts alike whenever it comes to the state again.
        np.testing.assert_array_equal(
            actor.policy({"state": none + state}, none, draws)[:, 0], drawn
        )


def test_in_every_episode_one_draw_acts() -> None:
    """A coin of unknown bias, never seen: in an episode all throws are of one coin."""
    demos = btil.Demonstrations([0], {"ann": [0]}, {"ann": [0]}, num_actions=2, num_latents=1)
    model = btil.TeamModel(btil.DirichletCPT(0.5, ()), btil.StaticCPT())
    posterior = fitted(model, demos)
    variances = {
        estimate: play(Waiting(), posterior, 80, seed=1, max_steps=10, estimate=estimate)
        .actions.reshape(80, 10)
        .sum(axis=1)
        .var()
        for estimate in ("mean", "draw")
    }
    # Binomial, and beta-binomial with a, b = 1.5, 0.5: of one coin an episode has all or nothing.
    of_many = 10 * 0.75 * 0.25
    assert variances["mean"] == pytest.approx(of_many, rel=0.4)
    assert variances["draw"] == pytest.approx(of_many * (2 + 10) / (2 + 1), rel=0.4)


def test_states_may_be_the_task_state_alone(task: GridTask) -> None:
    demos = task.simulate(30, seed=1)
    joint = demos.replace(states=demos.states, num_states=task.num_states, state_names=None)
    posterior = fitted(btil.TeamModel(btil.DirichletCPT(0.1, ("state",)), ADRIFT), joint)
    named = fitted(btil.TeamModel(btil.DirichletCPT(0.1, tuple(task.state_sizes)), ADRIFT), demos)
    one, other = (play(task, team, 4, seed=1, max_steps=30) for team in (posterior, named))
    assert one == other


def test_latents_need_not_be_those_of_the_task(task: GridTask) -> None:
    demos = task.simulate(5, seed=1).without_labels()
    fewer = demos.replace(num_latents=2, latent_names=("work", "rest"), latents=None)
    model = btil.TeamModel(btil.DirichletCPT(1.0, ("lying",)), ADRIFT)
    team = fitted(model, task.add_derived_variables(fewer))
    played = play(task, {"alice": team, "rob": task.policies()["rob"]}, 3, max_steps=10)
    assert played.num_latents == (2, task.num_latents)
    assert played.latent_names == {"alice": ("work", "rest"), "rob": task.latent_names}


def test_teams_of_imitation_play(task: GridTask) -> None:
    demos = task.simulate(20, seed=1)
    for method in ("tabular-cloning", "btil", "random"):
        team = btil.imitation.learn(task, demos, method, progress=False)
        for estimate in ("mean", "map"):
            played = play(task, team, 5, seed=1, max_steps=30, estimate=estimate)
            own = team.policies if method != "btil" else None
            if own is not None or estimate == "map":
                assert played == play(task, team.policies, 5, seed=1, max_steps=30)


# ---------------------------------------------------------------------- other environments


class Waiting(pettingzoo.ParallelEnv[str, Any, Any]):
    """Ann acts, and nothing comes of it but what she is given for action 1."""

    metadata: dict[str, Any] = {"name": "waiting"}  # noqa: RUF012
    possible_agents = ["ann"]  # noqa: RUF012

    def __init__(self) -> None:
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        return gymnasium.spaces.Discrete(1)

    def action_space(self, agent: str) -> gymnasium.spaces.Space[Any]:
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["ann"]
        return {"ann": 0}, {"ann": {}}

    def step(self, actions: Mapping[str, Any]) -> Any:
        reward = 0.25 * int(actions["ann"])
        return {"ann": 0}, {"ann": reward}, {"ann": False}, {"ann": False}, {"ann": {}}


def test_rewards_of_an_environment_are_kept() -> None:
    by_chance = np.full((1, 1, 2), 0.5)
    still = btil.Demonstrations([0], {"ann": [0]}, {"ann": [0]}, num_actions=2, num_latents=1)
    team = fitted(btil.TeamModel(btil.KnownCPT(by_chance[0]), btil.StaticCPT()), still)
    played = play(Waiting(), team, 3, max_steps=8)
    assert played.rewards is not None
    np.testing.assert_array_equal(played.rewards, 0.25 * played.actions)
    assert played.episode_lengths.tolist() == [8, 8, 8]


def test_an_environment_derives_what_its_task_does(task: GridTask, learned: TeamPosterior) -> None:
    played = play(task.to_parallel_env(), learned, 10, seed=1)
    assert team_performance(task, played).cut.value < 0.2
    assert (played.latents >= 0).all()


def test_the_step_before_is_remembered() -> None:
    """Whoever was seen to take turns with itself does so, from the first step on."""
    task = movers("tiny")
    turns = np.arange(12)[:, None] % 2 + np.array([0, 2])
    demos = task.simulate(1, seed=0, max_steps=12)
    shown = btil.Demonstrations(
        np.zeros(12, int),
        dict(zip(task.agents, turns.T, strict=True)),
        np.zeros((12, 2), int),
        num_states=task.num_states,
        num_actions=6,
        num_latents=1,
        action_names=task.action_names,
    )
    assert demos.agents == shown.agents
    model = btil.TeamModel(btil.DirichletCPT(1e-4, ("previous_own_action",)), btil.StaticCPT())
    team = fitted(model, shown)
    for where in (task, task.to_parallel_env()):
        played = play(where, team, 2, max_steps=8)
        np.testing.assert_array_equal(played.actions, np.tile(turns[:8], (2, 1)))


# ---------------------------------------------------------------------- rewards, files


def test_rewards_are_those_of_the_task(task: GridTask, tmp_path: Path) -> None:
    limit = int(np.median(task.simulate(30, seed=1).episode_lengths))
    played = play(task, task.policies(), 30, seed=1, max_steps=limit)
    finished = played.episode_lengths < limit
    assert finished.any()
    assert not finished.all()
    # By hand: every step costs 1, and the step after which every item is on the goal gives 100.
    situation = task.situation(played.states)
    for episode in np.flatnonzero(finished):
        rows = played.episodes == played.episode_ids[episode]
        rewards = played.rewards[rows]
        np.testing.assert_array_equal(rewards[:-1], -1.0)
        assert rewards[-1] == 99.0
        assert (situation.items[rows][-1] == task.on_goal).sum() == task.grid.num_items - 1
    for ending in ("csv", "parquet", "npz"):
        path = tmp_path / f"played.{ending}"
        btil.write_demonstrations(played, path)
        assert btil.read_demonstrations(path) == played


# ---------------------------------------------------------------------- how well


def test_performance_by_hand() -> None:
    task = movers("tiny")
    demos = task.simulate(200, seed=3, max_steps=30)
    found = team_performance(task, demos, num_resamples=4000)
    lengths = demos.episode_lengths
    # Whoever has the last item in hand at the limit may still be cut, or finish in the last step.
    played = play(task, task.policies(), 200, seed=3, max_steps=30)
    finished = played.rewards[demos.episode_starts + lengths - 1] > 0
    apart = (demos.latents[:, 0] != demos.latents[:, 1]).astype(float)
    shares = np.array([apart[demos.episodes == episode].mean() for episode in demos.episode_ids])
    assert 0 < finished.mean() < 1
    for measure, values in {
        "steps": lengths,
        "cut": 1.0 - finished,
        "returns": 100.0 * finished - lengths,
        "suboptimal": shares,
    }.items():
        number = getattr(found, measure)
        assert number.value == pytest.approx(values.mean())
        assert number.error == pytest.approx(values.std() / np.sqrt(200), rel=0.06)
    assert found.steps_to_finish.value == pytest.approx(lengths[finished].mean())
    assert found.misaligned.value == pytest.approx(apart.mean())
    assert found.num_episodes == 200
    assert team_performance(task, played) == team_performance(task, demos)


def test_rewards_in_the_data_are_taken_as_they_are() -> None:
    task = cleanup("tiny")
    demos = task.simulate(4, seed=1)
    paid = demos.replace(rewards=np.tile([1.0, 3.0], (demos.num_steps, 1)))
    assert team_performance(task, paid).returns.value == 2 * demos.episode_lengths.mean()


def test_of_teams_without_labels_nothing_is_said_about_minds() -> None:
    task = cleanup("tiny")
    found = team_performance(task, task.simulate(4, seed=1).without_labels())
    assert np.isnan([found.suboptimal.value, found.misaligned.value]).all()
    assert np.isfinite(found.steps.value)
    assert list(found.table().columns) == ["value", "error"]
    assert "4 episodes" in str(found)


# ---------------------------------------------------------------------- what is refused


def test_what_cannot_play_is_refused(task: GridTask, learned: TeamPosterior) -> None:
    policies = task.policies()
    for team, says in (
        ({"alice": learned}, "nobody plays 'rob'"),
        ({**dict.fromkeys(task.agents, learned), "eve": learned}, "unknown agent 'eve'"),
        ({"alice": policies["alice"], "rob": policies["rob"][:, :2]}, "rob's has shape"),
        (task.true_model(), "TeamModel for 'alice' cannot play.*fitted first"),
        ("team.nc", "str for 'alice' cannot play"),
    ):
        with pytest.raises(ValueError, match=says):
            play(task, team, 2)
    for changes, says in (
        ({"estimate": "mode"}, "estimate must be one of mean, map, draw, got 'mode'"),
        ({"num_episodes": 0}, "num_episodes"),
        ({"max_steps": True}, "max_steps"),
        ({"seed": -1}, "seed"),
    ):
        with pytest.raises(ValueError, match=says):
            play(task, learned, **({"num_episodes": 2} | changes))


def test_an_actor_who_would_misread_the_task_is_refused(task: GridTask) -> None:
    demos = task.add_derived_variables(task.simulate(3, seed=1))
    model = btil.TeamModel(btil.DirichletCPT(1.0, ("lying",)), ADRIFT)
    sizes = demos.num_states
    names = demos.state_names
    other = demos.replace(
        states={**demos.state_variables, "weather": np.zeros(demos.num_steps, np.int64)},
        num_states={**sizes, "weather": 2},
    )
    windy = btil.TeamModel(btil.DirichletCPT(1.0, ("weather",)), ADRIFT)
    for team, says in (
        (fitted(windy, other), "'alice' reads 'weather', which .* does not have; there are"),
        (
            fitted(model, demos.replace(num_states=sizes | {"lying": 99},
                   state_names={n: t for n, t in names.items() if n != "lying"})),
            "'lying' has 99 values where 'alice' was learned",
        ),
        (
            fitted(model, demos.replace(state_names=names | {"lying": names["lying"][::-1]})),
            "the values of 'lying' are",
        ),
        (
            fitted(model, demos.replace(action_names=task.action_names[::-1])),
            "the values of 'action_alice' are hold",
        ),
        (
            fitted(model, demos.replace(num_actions=7, action_names=None)),
            "'alice' has 7 actions where 'alice' was learned, and 6",
        ),
        (
            fitted(
                model,
                demos.replace(
                    agents=("rob", "eve"),
                    actions=dict(zip(("rob", "eve"), demos.actions.T, strict=True)),
                    latents=dict(zip(("rob", "eve"), demos.latents.T, strict=True)),
                    num_actions=6, num_latents=task.num_latents,
                    action_names=task.action_names, latent_names=task.latent_names,
                ),
            ),
            "'alice' is not a member of what is given for it, whose agents are rob, eve",
        ),
    ):  # fmt: skip
        for where in (task, task.to_parallel_env()):
            with pytest.raises(ValueError, match=says):
                play(where, team, 2)


def test_methods_without_modes_say_so(task: GridTask) -> None:
    demos = task.add_derived_variables(task.simulate(2, seed=1))
    model = btil.TeamModel(btil.DirichletCPT(1.0, ("lying",)), ADRIFT)
    posterior = fitted(model, demos, method="gibbs", num_warmup=5, num_samples=5)
    with pytest.raises(ValueError, match="gibbs has estimate 'mean'"):
        play(task, posterior, 2, estimate="map")
    assert play(task, posterior, 2, estimate="draw", max_steps=5).num_episodes == 2


class Borrowed:
    """A team of one's own: the protocol is all that is asked of it."""

    def __init__(self, posterior: TeamPosterior) -> None:
        self.posterior = posterior
        self.asked: list[tuple[str, int | None, int]] = []

    def actors(
        self, estimate: str = "mean", num_draws: int | None = None, seed: int = 0
    ) -> Mapping[str, Actor]:
        self.asked.append((estimate, num_draws, seed))
        return self.posterior.actors(estimate, num_draws, seed)


def test_anything_that_has_actors_can_play() -> None:
    task = movers("tiny")
    truth = fitted(task.true_model(), task.simulate(1))
    team = Borrowed(truth)
    assert play(task, team, 3, seed=1, estimate="map") == play(task, truth, 3, seed=1)
    assert team.asked == [("map", None, 0)]


def test_teams_that_play_together_are_drawn_apart() -> None:
    task = movers("tiny")
    truth = fitted(task.true_model(), task.simulate(1))
    teams = {agent: Borrowed(truth) for agent in task.agents}
    play(task, teams, 33, estimate="draw", max_steps=1)
    # Twice, as draws are made for 32 episodes at a time.
    assert [len(team.asked) for team in teams.values()] == [2, 2]
    assert len({seed for team in teams.values() for _, _, seed in team.asked}) == 4


class Determined:
    """A member who always does the one action that its draw says, and changes its mind for good."""

    num_latents = 2
    variables = frozenset({"item_0"})

    def __init__(self, agent: str, demos: btil.Demonstrations, does: np.ndarray) -> None:
        self.agent, self.demos, self.does = agent, demos, does

    def initial(self, states: Any, draw: Any) -> Any:
        return np.eye(2)[np.zeros(len(draw), int)]

    def policy(self, states: Any, latents: Any, draw: Any, previous: Any = None) -> Any:
        assert (states["item_0"] == 0).all()
        return np.eye(6)[self.does[draw]]

    def transition(
        self, states: Any, actions: Any, next_states: Any, latents: Any, draw: Any
    ) -> Any:
        np.testing.assert_array_equal(
            actions[:, list(self.demos.agents).index(self.agent)], self.does[draw]
        )
        assert (next_states["item_0"] == 0).all()
        return np.eye(2)[np.ones(len(draw), int)]


class ByLot:
    """A team whose every draw is an action of each member, which it keeps doing."""

    def __init__(self, agents: tuple[str, ...]) -> None:
        self.demos = btil.Demonstrations(
            {"item_0": [0]}, np.zeros((1, 2), int), agents=agents, num_actions=6, num_latents=2,
            num_states={"item_0": movers("tiny").state_sizes["item_0"]},
        )  # fmt: skip
        self.does: list[dict[str, np.ndarray]] = []

    def actors(
        self, estimate: str = "mean", num_draws: int | None = None, seed: int = 0
    ) -> Mapping[str, Any]:
        assert num_draws is not None
        generator = np.random.default_rng(seed)
        self.does.append({a: generator.integers(0, 4, num_draws) for a in self.demos.agents})
        return {a: Determined(a, self.demos, does) for a, does in self.does[-1].items()}


@pytest.mark.parametrize("agents", [("alice", "rob"), ("rob", "alice")])
def test_an_episode_is_played_by_one_draw_and_the_next_by_the_next(
    agents: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("btil.domains.playing._DRAWS_AT_ONCE", 4)
    task = movers("tiny")
    for where, seed in ((task, 1), (task.to_parallel_env(), 2)):
        team = ByLot(agents)
        played = play(where, team, 6, seed=seed, max_steps=3, estimate="draw")
        # A team is asked once for so many episodes, whoever of it plays.
        assert [len(does["rob"]) for does in team.does] == [4, 4]
        assert (team.does[0]["rob"] != team.does[1]["rob"]).any()
        actions = played.actions.reshape(6, 3, 2)
        for episode in range(6):
            block, draw = divmod(episode, 4)
            for i, agent in enumerate(task.agents):
                assert (actions[episode, :, i] == team.does[block][agent][draw]).all()
        assert played.latents.reshape(6, 3, 2)[0].tolist() == [[0, 0], [1, 1], [1, 1]]
        assert played.num_latents == (2, 2)


def test_a_member_is_refused_who_would_misread_where_it_plays() -> None:
    demos = btil.Demonstrations(
        {"sky": [0, 1], "door": [0, 1]}, [[0, 0], [1, 2]], agents=("ann", "bob"), num_latents=1,
        num_actions=(2, 3), num_states={"sky": 2, "door": 2}, state_names={"sky": ("blue", "grey")},
        action_names={"ann": ("push", "pull")},
    )  # fmt: skip
    actor = Determined("ann", demos, np.zeros(1, int))
    actor.variables = frozenset({"sky"})
    sizes, actions = {"sky": 2, "door": 5}, {"ann": 2, "bob": 3, "cid": 9}
    names = {"sky": ("blue", "grey"), "action_ann": ("push", "pull"), "door": ("a", "b")}
    check_actor(actor, "the yard", sizes, actions, names)
    check_actor(actor, "the yard", sizes, actions, {})
    for where, known, texts, says in (
        ({"door": 2}, actions, names, "'ann' reads 'sky', which the yard does not have; there are"),
        ({"sky": 3}, actions, names, "'sky' has 2 values where 'ann' was learned, and 3 in the"),
        (sizes, {"ann": 2}, names, "'ann' was learned together with 'bob', who is not in the yard"),
        (sizes, actions | {"bob": 4}, names, "'bob' has 3 actions where 'ann' was learned, and 4"),
        (sizes, actions, names | {"sky": ("grey", "blue")}, "the values of 'sky' are blue, grey"),
        (sizes, actions, names | {"action_ann": ("pull", "push")}, "'action_ann' are push, pull"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=says):
            check_actor(actor, "the yard", where, known, texts)


# ---------------------------------------------------------------------- from a shell


def test_in_a_shell(tmp_path: Path) -> None:
    task = movers("tiny")
    demos = task.add_derived_variables(task.simulate(20, seed=1))
    posterior = fitted(task.recommended_model(), demos)
    posterior.save(tmp_path / "team.nc")
    begin = ["play", "movers", "--map", "tiny", "--posterior", str(tmp_path / "team.nc")]
    begin += ["--quiet", "--num-episodes", "5", "--seed", "3", "--true", "rob"]
    out, film = tmp_path / "played.parquet", tmp_path / "strip.png"
    said = CliRunner().invoke(app, [*begin, "--out", str(out), "--picture", str(film)])
    assert said.exit_code == 0, said.output
    assert "steps per episode" in said.output
    team = {"alice": posterior, "rob": task.policies()["rob"]}
    assert btil.read_demonstrations(out) == play(task, team, 5, seed=3)
    assert film.stat().st_size > 10_000
    for more, says in (
        (["--true", "eve"], "--true: unknown agent 'eve'"),
        (["--estimate", "best"], "estimate must be one of"),
        (["--picture", str(tmp_path / "x.mp4")], "the ending must be"),
        (["--picture", str(film), "--episode", "5"], "episode"),
    ):
        refused = CliRunner().invoke(app, [*begin, "--out", str(out), *more])
        assert refused.exit_code == 2
        assert says in refused.output
