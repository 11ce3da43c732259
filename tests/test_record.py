"""Recorded rollouts: against environments whose every step is known, and the task's simulator."""

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from pettingzoo import ParallelEnv
from pettingzoo.utils import aec_to_parallel, parallel_to_aec

import btil
from btil.domains import record


class Scripted(ParallelEnv):
    """Counts steps; observations are made by functions of (agent, step), the end by a length."""

    def __init__(self, observations, spaces, length=3, actions=None, leaves=None, **more):
        self.metadata = {"name": "scripted", **more.pop("metadata", {})}
        self.possible_agents = list(spaces)
        self.agents = []
        self.look, self.spaces, self.length = observations, spaces, length
        self.actions = actions or {agent: Discrete(2) for agent in spaces}
        self.leaves = leaves or {}
        self.seeds, self.taken = [], []
        self.pays = lambda step: {}
        for name, value in more.items():
            setattr(self, name, value)

    def observation_space(self, agent):
        return self.spaces[agent]

    def action_space(self, agent):
        return self.actions[agent]

    def reset(self, seed=None, options=None):
        self.seeds.append(seed)
        self.agents = [a for a in self.possible_agents if self.leaves.get(a) != 0]
        self.count = 0
        return {a: self.look(a, 0) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.taken.append(actions)
        self.count += 1
        before = self.agents
        done = {a: self.count == self.length or self.leaves.get(a) == self.count for a in before}
        self.agents = [a for a in before if not done[a]]
        rewards = self.pays(self.count)
        no = dict.fromkeys(before, False)
        infos = {a: {} for a in before}
        return {a: self.look(a, self.count) for a in before}, rewards, done, no, infos


def scripted(space, look, agents=("ann", "bob"), **more):
    return Scripted(look, dict.fromkeys(agents, space), **more)


def always(action):
    return lambda observation, rng: action


BOTH = {"ann": always(0), "bob": always(1)}


# ------------------------------------------------------------------ what is written down


def test_shared_observation_is_the_state():
    env = scripted(Discrete(4), lambda agent, step: step, length=3)
    demos = record(env, BOTH, 2, progress=False)
    assert demos.agents == ("ann", "bob")
    assert demos.episode_ids.tolist() == [0, 1]
    # Rows are states in which somebody acts: the fourth state is none.
    assert demos.state_variables["state"].tolist() == [0, 1, 2, 0, 1, 2]
    assert demos.num_states == {"state": 4}
    assert demos.actions.tolist() == [[0, 1]] * 6
    assert demos.num_actions == (2, 2)
    assert (demos.latents == -1).all()
    assert demos.num_latents == (1, 1)
    assert env.taken == [{"ann": 0, "bob": 1}] * 6


def test_rewards_are_kept_where_they_are_asked_for():
    """Each agent's own, of the step that it was given for; who is told none got 0."""

    def pays(step):
        return {"bob": 1.5 * step, "ann": -step} if step < 3 else {"bob": 9}

    env = scripted(Discrete(4), lambda agent, step: step, pays=pays)
    found = record(env, BOTH, 2, progress=False, keep_rewards=True)
    assert found.rewards is not None
    assert found.rewards.tolist() == [[-1, 1.5], [-2, 3], [0, 9]] * 2
    assert record(env, BOTH, 2, progress=False) == found.replace(rewards=None)


def test_offsets_are_taken_away_and_given_back():
    env = scripted(
        Discrete(4, start=-2),
        lambda agent, step: np.int64(step - 2),
        actions={"ann": Discrete(3, start=5), "bob": Discrete(2, start=-1)},
    )
    demos = record(env, {"ann": always(7), "bob": np.tile([0.0, 1.0], (4, 1))}, 1, progress=False)
    assert demos.states.tolist() == [0, 1, 2]
    assert demos.actions.tolist() == [[2, 1]] * 3
    assert demos.num_actions == (3, 2)
    assert env.taken == [{"ann": 7, "bob": 0}] * 3


def test_different_views_are_variables_of_each_agent():
    env = scripted(Discrete(5), lambda agent, step: step + (agent == "bob"))
    demos = record(env, BOTH, 1, progress=False)
    assert {k: v.tolist() for k, v in demos.state_variables.items()} == {
        "ann_state": [0, 1, 2],
        "bob_state": [1, 2, 3],
    }
    with pytest.raises(ValueError, match=r"episode 0, step 0: the agents observe different things"):
        record(env, BOTH, 1, progress=False, states_from="shared")


def test_guests_act_by_what_is_recorded_and_never_by_the_view_of_another():
    shown = []

    class Guest:
        num_latents, latent_names = 1, None

        def initial(self, states, episodes):
            return np.ones((1, 1))

        def policy(self, states, latents, episodes, previous=None):
            shown.append({name: values.tolist() for name, values in states.items()})
            return np.full((1, 2), 0.5)

        def transition(self, states, actions, next_states, latents, episodes):
            return np.ones((1, 1))

    env = scripted(Discrete(5), lambda agent, step: step + (agent == "bob"))
    team = {"ann": lambda *_: 0, "bob": Guest()}
    with pytest.raises(ValueError, match=r"observe different things.*states_from='agents'"):
        record(env, team, 1, progress=False)
    assert shown == []
    record(env, team, 1, progress=False, states_from="agents")
    assert shown == [{"ann_state": [k], "bob_state": [k + 1]} for k in range(3)]


def test_same_views_can_be_kept_apart():
    env = scripted(Discrete(4), lambda agent, step: step)
    demos = record(env, BOTH, 1, progress=False, states_from="agents")
    assert list(demos.state_variables) == ["ann_state", "bob_state"]


def test_different_spaces_are_variables_of_each_agent():
    spaces = {"ann": Discrete(4), "bob": MultiDiscrete([3, 4])}
    env = Scripted(lambda a, step: step if a == "ann" else np.array([2, step]), spaces)
    demos = record(env, BOTH, 1, progress=False)
    assert demos.num_states == {"ann_state": 4, "bob_state_0": 3, "bob_state_1": 4}
    with pytest.raises(ValueError, match="observation spaces differ"):
        record(env, BOTH, 1, progress=False, states_from="shared")


def test_spaces_made_of_several_numbers():
    space = Dict(
        {
            "place": Tuple([Discrete(4), Discrete(3, start=1)]),
            "door": Discrete(2),
            "lamps": MultiDiscrete([[2, 2], [4, 2]], start=[[0, 0], [1, 0]]),
        }
    )

    def look(agent, step):
        return {
            "place": (step, 3),
            "door": step % 2,
            "lamps": np.array([[0, 1], [1 + step, 0]]),
        }

    demos = record(scripted(space, look), BOTH, 1, progress=False)
    assert {k: v.tolist() for k, v in demos.state_variables.items()} == {
        "door": [0, 1, 0],
        "lamps_0_0": [0, 0, 0],
        "lamps_0_1": [1, 1, 1],
        "lamps_1_0": [0, 1, 2],
        "lamps_1_1": [0, 0, 0],
        "place_0": [0, 1, 2],
        "place_1": [2, 2, 2],
    }
    assert list(demos.num_states.values()) == [2, 2, 2, 4, 2, 4, 3]


def test_state_of_the_environment_comes_first():
    env = scripted(Discrete(9), lambda agent, step: 2 * step + (agent == "ann"))
    env.state_space = MultiDiscrete([2, 4])
    env.state = lambda: np.array([1, env.count])
    demos = record(env, BOTH, 1, progress=False)
    assert demos.states.tolist() == [4, 5, 6]
    assert list(demos.num_states) == ["state_0", "state_1"]
    own = record(env, BOTH, 1, progress=False, states_from="agents")
    assert own.state_variables["ann_state"].tolist() == [1, 3, 5]
    # A continuous state is no use; the observations are.
    env.state_space = Box(0, 1, (3,))
    demos = record(env, BOTH, 1, progress=False)
    assert list(demos.num_states) == ["ann_state", "bob_state"]
    with pytest.raises(ValueError, match=r"state_space has a Box.* which is not discrete"):
        record(env, BOTH, 1, progress=False, states_from="state")


def test_environment_may_name_things():
    names = {
        "num_states": {"row": 2, "column": 3},
        "state_names": {"column": ["left", "middle", "right"]},
        "action_names": ["go", "stay"],
        "latent_names": ["calm", "hurried", "lost"],
    }
    env = scripted(Discrete(6), lambda agent, step: 2 * step, metadata={"demonstrations": names})
    demos = record(env, BOTH, 1, progress=False)
    assert demos.state_variables["row"].tolist() == [0, 0, 1]
    assert demos.state_variables["column"].tolist() == [0, 2, 1]
    assert demos.states.tolist() == [0, 2, 4]
    assert demos.state_names == {"column": ("left", "middle", "right")}
    assert demos.action_names["bob"] == ("go", "stay")
    assert demos.num_latents == (3, 3)
    assert demos.latent_names["ann"] == ("calm", "hurried", "lost")
    # Names are left out where there are more latents, or fewer.
    demos = record(env, BOTH, 1, progress=False, num_latents={"ann": 5})
    assert demos.num_latents == (5, 3)
    assert list(demos.latent_names) == ["bob"]


def test_policies_see_what_their_agent_sees():
    seen = []

    def watch(observation, rng):
        seen.append(observation)
        return int(rng.integers(2))

    env = scripted(Discrete(9), lambda agent, step: 2 * step + (agent == "bob"))
    record(env, {"ann": watch, "bob": watch}, 1, progress=False)
    assert seen == [0, 1, 2, 3, 4, 5]
    # A table is read at the joint index of the agent's own observation.
    table = np.zeros((6, 3))
    table[np.arange(6), [0, 1, 2, 1, 0, 2]] = 1
    env = scripted(
        MultiDiscrete([3, 2], start=[0, 1]),
        lambda agent, step: np.array([step, 1 + (agent == "bob")]),
        actions={"ann": Discrete(3), "bob": Discrete(3)},
    )
    demos = record(env, {"ann": table, "bob": table}, 1, progress=False)
    assert demos.actions.tolist() == [[0, 1], [2, 1], [0, 2]]


def test_episodes_can_be_cut():
    env = scripted(Discrete(9), lambda agent, step: step, length=5)
    demos = record(env, BOTH, 2, max_steps=2, progress=False)
    assert demos.episode_lengths.tolist() == [2, 2]
    assert record(env, BOTH, 1, max_steps=9, progress=False).episode_lengths.tolist() == [5]


def test_progress_is_shown_or_not(capsys):
    env = scripted(Discrete(4), lambda agent, step: step)
    record(env, BOTH, 2, progress=False)
    assert capsys.readouterr() == ("", "")
    record(env, BOTH, 2)
    assert "record" in capsys.readouterr().err


# ------------------------------------------------------------------ latents


def test_latents_start_and_move_as_told():
    """Certain tables: the latent is the state of the step before plus the action, modulo 3."""
    env = scripted(Discrete(4), lambda agent, step: step, agents=("ann",))
    policy = np.zeros((4, 3, 2))
    policy[:, [0, 2], 0] = 1
    policy[:, 1, 1] = 1
    asked = []

    def start(agent, states):
        assert (agent, states.tolist()) == ("ann", [0])
        return np.array([[0.0, 1.0, 0.0]])

    def move(agent, states, actions, next_states):
        asked.append((states.tolist(), actions.tolist(), next_states.tolist()))
        table = np.zeros((1, 3, 3))
        table[0, :, (states[0] + actions[0, 0]) % 3] = 1
        return table

    demos = record(
        env,
        {"ann": policy},
        1,
        initial_latents=start,
        latent_transition=move,
        progress=False,
    )
    assert demos.latents[:, 0].tolist() == [1, 1, 2]
    assert demos.actions[:, 0].tolist() == [1, 1, 0]
    # Nothing moves after the last step.
    assert asked == [([0], [[1]], [1]), ([1], [[1]], [2])]


def test_first_latents_are_uniform_unless_told():
    env = scripted(Discrete(2), lambda agent, step: 0, length=1)
    tables = dict.fromkeys(("ann", "bob"), np.full((2, 3, 2), 0.5))
    demos = record(env, tables, 600, latent_transition=lambda *_: np.eye(3)[None], progress=False)
    counts = np.apply_along_axis(np.bincount, 0, demos.latents)
    assert (np.abs(counts / 600 - 1 / 3) < 4 * np.sqrt(2 / 9 / 600)).all()


def test_agents_with_and_without_latents_play_together():
    env = scripted(Discrete(4), lambda agent, step: step)
    policies = {"ann": np.full((4, 2, 2), 0.5), "bob": np.full((4, 2), 0.5)}
    demos = record(
        env, policies, 1, latent_transition=lambda *_: np.eye(2)[None], num_latents={"bob": 4},
        progress=False,
    )  # fmt: skip
    assert (demos.latents[:, 0] >= 0).all()
    assert (demos.latents[:, 1] == -1).all()
    assert demos.num_latents == (2, 4)


def record_task(task, num_episodes, seed=0, **options):
    return record(
        task.to_parallel_env(),
        task.policies(),
        num_episodes,
        seed,
        progress=False,
        initial_latents=task.initial_latent_probs,
        latent_transition=lambda agent, states, _, next_states: task.latent_transition(
            agent, states, next_states
        ),
        **options,
    )


def log_probabilities(task, demos):
    """Of each episode: actions, latents and the task's own chance."""
    starts, policies = demos.episode_starts, task.policies()
    last = np.zeros(demos.num_steps, bool)
    last[starts + demos.episode_lengths - 1] = True
    now = np.flatnonzero(~last)
    states, after = demos.states[now], demos.states[now + 1]
    branches, probs = task.transition(states, demos.actions[now])
    chance = np.zeros(demos.num_steps)
    with np.errstate(divide="ignore"):
        chance[now] = np.log((probs * (branches == after[:, None])).sum(1))
        for i, agent in enumerate(task.agents):
            minds = demos.latents[:, i]
            chance += np.log(policies[agent][demos.states, minds, demos.actions[:, i]])
            first = task.initial_latent_probs(agent, demos.states[starts])
            chance[starts] += np.log(first[np.arange(len(starts)), minds[starts]])
            moves = task.latent_transition(agent, states, after)
            chance[now] += np.log(moves[np.arange(len(now)), minds[now], minds[now + 1]])
    return np.add.reduceat(chance, starts)


def test_latents_move_by_what_their_own_agent_observes():
    env = scripted(Discrete(8), lambda agent, step: step + 4 * (agent == "bob"), length=2)
    asked = []

    def move(agent, states, actions, next_states):
        asked.append((agent, states.tolist(), actions.tolist(), next_states.tolist()))
        return np.eye(2)[None]

    policies = {"ann": np.tile([1.0, 0.0], (8, 2, 1)), "bob": np.tile([0.0, 1.0], (8, 2, 1))}
    record(env, policies, 1, latent_transition=move, progress=False)
    assert asked == [("ann", [0], [[0, 1]], [1]), ("bob", [4], [[0, 1]], [5])]


@pytest.mark.parametrize("make", [btil.domains.movers, btil.domains.cleanup])
def test_a_task_is_recorded_as_its_simulator_writes_it(make):
    task = make("tiny")
    demos, simulated = record_task(task, 20, seed=3, max_steps=20), task.simulate(20, 4, 20)
    for field in ("agents", "num_states", "state_names", "action_names", "num_actions"):
        assert getattr(demos, field) == getattr(simulated, field)
    assert demos.latent_names == simulated.latent_names
    assert demos.num_latents == simulated.num_latents
    assert (demos.states[demos.episode_starts] == task.start_state).all()
    # Every step is one that the task and the team allow, and the recordings are as probable as
    # the simulator's.
    ours, theirs = log_probabilities(task, demos), log_probabilities(task, simulated)
    assert np.isfinite(ours).all()
    for values, others in [(demos.episode_lengths, simulated.episode_lengths), (ours, theirs)]:
        error = np.sqrt(np.var(values) / 20 + np.var(others) / 20)
        assert abs(np.mean(values) - np.mean(others)) < 4 * error + 1e-9


def test_the_environment_is_seeded_anew_in_every_episode_by_the_seed():
    env = scripted(Discrete(4), lambda agent, step: step)
    for seed in (5, 5, 6):
        record(env, BOTH, 3, seed, progress=False)
    first, again, other = env.seeds[:3], env.seeds[3:6], env.seeds[6:]
    assert first == again
    assert len({*first, *other}) == 6


def test_same_seed_same_recording_and_a_longer_one_begins_alike():
    task = btil.domains.cleanup("tiny")
    env = task.to_parallel_env()

    def play(num_episodes, seed):
        return record(env, dict.fromkeys(task.agents, uniform), num_episodes, seed, 15, False)

    uniform = np.full((task.num_states, 6), 1 / 6)
    first = play(3, 5)
    again, longer, other = play(3, 5), play(5, 5), play(3, 6)
    for name, values in first.state_variables.items():
        assert values.tolist() == again.state_variables[name].tolist()
    assert (first.actions == again.actions).all()
    assert (first.actions == longer.actions[: first.num_steps]).all()
    assert first.actions.tolist() != other.actions.tolist()


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("space", "named"),
    [
        (Box(0, 1, (3,)), "Box"),
        (Dict({"a": Discrete(2), "b": Box(0, 1, (2,))}), "Box"),
        (Tuple([Discrete(2), Box(0, 255, (2, 2), np.uint8)]), "Box"),
    ],
)
def test_continuous_observations_are_refused_before_anything_runs(space, named):
    env = Scripted(lambda agent, step: step, {"ann": Discrete(4), "bob": space})
    with pytest.raises(ValueError, match=f"the observation space of bob has a {named}"):
        record(env, BOTH, 1, progress=False)
    assert env.seeds == []


@pytest.mark.parametrize("space", [Box(-1, 1, (2,)), MultiDiscrete([2, 2]), Tuple([Discrete(2)])])
def test_actions_that_are_not_discrete_are_refused_before_anything_runs(space):
    env = scripted(
        Discrete(4), lambda agent, step: step, actions={"ann": space, "bob": Discrete(2)}
    )
    with pytest.raises(ValueError, match="the action space of ann"):
        record(env, BOTH, 1, progress=False)
    assert env.seeds == []


def test_an_agent_that_leaves_early_is_refused():
    env = scripted(Discrete(9), lambda agent, step: step, length=5, leaves={"bob": 3})
    with pytest.raises(ValueError, match="agent bob left in episode 0 after step 2 while ann went"):
        record(env, BOTH, 1, progress=False)
    # It is no trouble where the recording is cut before.
    assert record(env, BOTH, 1, max_steps=3, progress=False).num_steps == 3


def test_an_agent_that_is_not_there_or_comes_late_is_refused():
    env = scripted(Discrete(9), lambda agent, step: step, leaves={"bob": 0})
    with pytest.raises(ValueError, match="agent bob is not there at the start of episode 0"):
        record(env, BOTH, 1, progress=False)

    class Joined(Scripted):
        def step(self, actions):
            result = super().step(actions)
            self.agents = [*self.agents, "eve"]
            return result

    env = Joined(lambda agent, step: step, {"ann": Discrete(9)}, length=5)
    with pytest.raises(ValueError, match="agent eve is there in episode 0, step 1 but not in"):
        record(env, {"ann": always(0)}, 1, progress=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policies": {"ann": always(0)}}, "policies: none for agent bob"),
        ({"policies": {**BOTH, "eve": always(0)}}, "unknown agent 'eve'; the agents are ann, bob"),
        ({"policies": BOTH | {"bob": np.full((3, 2), 0.5)}}, r"bob's has shape \(3, 2\); expected"),
        ({"policies": BOTH | {"bob": np.full((4, 3), 1 / 3)}}, r"bob's has shape \(4, 3\)"),
        ({"policies": BOTH | {"bob": np.full(4, 0.5)}}, r"bob's has shape \(4,\)"),
        ({"policies": BOTH | {"bob": np.full((4, 2), 0.4)}}, r"bob's row at \(0,\) is not a prob"),
        ({"policies": BOTH | {"bob": np.full((4, 2), np.nan)}}, r"bob's row at \(0,\)"),
        ({"policies": BOTH | {"bob": np.full((4, 5, 2), 0.5)}}, "latent_transition is needed"),
        ({"num_episodes": 0}, "num_episodes must be a whole number of at least 1, got 0"),
        ({"max_steps": 0}, "max_steps must be a whole number of at least 1, got 0"),
        ({"seed": -1}, "seed must be a non-negative integer, got -1"),
        ({"states_from": "elsewhere"}, "states_from must be None or one of state, shared, agents"),
        ({"states_from": "state"}, "the environment has no state_space"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_before_anything_runs(changes, message):
    env = scripted(Discrete(4), lambda agent, step: step)
    arguments = {"policies": BOTH, "num_episodes": 1, "progress": False} | changes
    with pytest.raises(ValueError, match=message):
        record(env, **arguments)
    assert env.seeds == []


def test_environments_that_are_not_parallel_are_refused():
    env = scripted(Discrete(4), lambda agent, step: step, render_mode=None)
    with pytest.raises(ValueError, match="a ParallelEnv expected, got an AECEnv"):
        record(parallel_to_aec(env), BOTH, 1, progress=False)
    with pytest.raises(ValueError, match="a ParallelEnv with possible_agents expected"):
        record("env", BOTH, 1, progress=False)
    # One that was made parallel again is fine.
    demos = record(aec_to_parallel(parallel_to_aec(env)), BOTH, 1, progress=False)
    assert demos.states.tolist() == [0, 1, 2]


def test_numbers_of_latents_must_agree():
    env = scripted(Discrete(4), lambda agent, step: step)
    policies = BOTH | {"ann": np.full((4, 3, 2), 0.5)}
    with pytest.raises(ValueError, match="num_latents: 4 for ann, whose policy has 3 latents"):
        record(
            env, policies, 1, latent_transition=lambda *_: np.eye(3)[None], num_latents=4,
            progress=False,
        )  # fmt: skip


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (4, r"ann is 4, which is not in its space: state is 4, allowed are 0\.\.3"),
        (-1, "ann is -1, which is not in its space: state is -1"),
        (1.5, "ann is 1.5, which is not in its space"),
        (None, "ann is None"),
    ],
)
def test_observations_outside_their_space_are_refused(observation, message):
    env = scripted(Discrete(4), lambda agent, step: observation if step == 2 else step)
    with pytest.raises(ValueError, match=f"episode 0, step 2: the observation of {message}"):
        record(env, BOTH, 1, progress=False)


@pytest.mark.parametrize("action", [2, -1, 0.5, None, "stay"])
def test_actions_that_are_none_are_refused(action):
    env = scripted(Discrete(4), lambda agent, step: step)
    with pytest.raises(ValueError, match="episode 0, step 0: the action of bob is"):
        record(env, BOTH | {"bob": always(action)}, 1, progress=False)


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ({"initial_latents": lambda *_: np.ones((1, 2))}, "step 0: initial_latents of ann"),
        ({"initial_latents": lambda *_: np.ones(2) / 2}, r"shape \(2,\), expected \(1, 2\)"),
        ({"latent_transition": lambda *_: np.eye(2)}, r"step 1: latent_transition of ann: shape"),
        ({"latent_transition": lambda *_: -np.eye(2)[None]}, "is not a probability vector"),
    ],
)
def test_functions_that_give_no_distributions_are_refused(functions, message):
    env = scripted(Discrete(4), lambda agent, step: step)
    functions = {"latent_transition": lambda *_: np.eye(2)[None]} | functions
    with pytest.raises(ValueError, match=message):
        record(env, BOTH | {"ann": np.full((4, 2, 2), 0.5)}, 1, progress=False, **functions)


def test_names_that_cannot_be_used_are_refused_before_anything_runs():
    env = scripted(Dict({"step": Discrete(2), "x": Discrete(2)}), lambda agent, step: {})
    with pytest.raises(ValueError, match="step"):
        record(env, BOTH, 1, progress=False)
    twice = Dict({"a_0": Discrete(2), "a": Tuple([Discrete(2)])})
    other = scripted(twice, lambda agent, step: {})
    with pytest.raises(ValueError, match="two variables of the spaces would have the name 'a_0'"):
        record(other, BOTH, 1, progress=False)
    assert env.seeds == other.seeds == []


def test_numbers_of_latents_are_not_ignored():
    env = scripted(Discrete(4), lambda agent, step: step)
    with pytest.raises(ValueError, match="num_latents: unknown agent 'eve'"):
        record(env, BOTH, 1, progress=False, num_latents={"eve": 3})
    with pytest.raises(ValueError, match="num_latents"):
        record(env, BOTH, 1, progress=False, num_latents=0)
