"""The PettingZoo environments: PettingZoo's own checks, the task's dynamics, pictures."""

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Discrete
from matplotlib import pyplot as plt
from pettingzoo.test import parallel_api_test, parallel_seed_test, state_test
from pettingzoo.utils import parallel_to_aec

import btil
from btil.domains.gridworld.parallel_env import GridParallelEnv

TASKS = [btil.domains.movers("tiny"), btil.domains.cleanup("tiny")]
by_task = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)


def random_actions(env, rng):
    return {agent: int(rng.integers(6)) for agent in env.agents}


def seeded(task):
    """An environment whose spaces give the same samples in every run."""
    env = task.to_parallel_env()
    for number, agent in enumerate(env.possible_agents):
        env.action_space(agent).seed(number)
    return env


# In these tests a warning is an error, those of PettingZoo's checks included.
@by_task
def test_pettingzoo_finds_nothing_amiss(task, capsys):
    parallel_api_test(seeded(task), num_cycles=500)
    assert "Passed" in capsys.readouterr().out
    parallel_seed_test(task.to_parallel_env, num_cycles=100)
    state_test(parallel_to_aec(seeded(task)), seeded(task), 20)


def test_paper_maps_pass_too():
    parallel_api_test(seeded(btil.domains.movers()), num_cycles=250)
    parallel_api_test(seeded(btil.domains.cleanup()), num_cycles=250)


@by_task
def test_what_is_observed_is_the_task_state(task):
    env = task.to_parallel_env()
    assert env.possible_agents == ["alice", "rob"]
    observations, infos = env.reset(seed=3)
    assert observations == {"alice": task.start_state, "rob": task.start_state}
    rng = np.random.default_rng(0)
    for _ in range(50):
        for agent in env.agents:
            assert env.observation_space(agent) == Discrete(task.num_states)
            assert env.observation_space(agent).contains(observations[agent])
            variables = task.encode([list(infos[agent].values())])
            assert variables[0] == observations[agent] == env.state()
            assert list(infos[agent]) == list(task.state_sizes)
        observations, _, _, _, infos = env.step(random_actions(env, rng))


def carrying(task):
    """A state of Movers in which both carry item 1 and may go up or right."""
    cell = task.grid.cells.tolist().index([0, 3])
    return int(task.encode([[cell, cell, 0, 1, 0]])[0])


def test_steps_follow_the_task_dynamics_and_their_probabilities():
    # They pull in different directions: where to is a coin toss.
    task = btil.domains.movers()
    state = carrying(task)
    next_states, probs = task.transition([state], [[0, 3]])
    assert (probs == 0.5).all()
    env = task.to_parallel_env()
    env.reset(seed=1)
    seen = []
    for _ in range(400):
        env.reset()
        env._state = state
        observations, *_ = env.step({"alice": 0, "rob": 3})
        seen.append(int(observations["alice"]))
    assert set(seen) == set(next_states[0].tolist())
    share = np.mean(np.array(seen) == next_states[0, 0])
    assert abs(share - 0.5) < 4 * 0.5 / np.sqrt(len(seen))


def test_team_is_rewarded_for_finishing_and_pays_for_every_step():
    task = btil.domains.cleanup("lesson")
    env = task.to_parallel_env()
    policies, rng = task.policies(0.3), np.random.default_rng(5)
    observations, _ = env.reset(seed=5)
    latents = [
        rng.choice(5, p=task.initial_latent_probs(agent, [task.start_state])[0])
        for agent in task.agents
    ]
    state, rewards_seen, done = task.start_state, [], False
    while env.agents:
        actions = {
            agent: int(rng.choice(6, p=policies[agent][state, latents[i]]))
            for i, agent in enumerate(task.agents)
        }
        observations, rewards, terminations, truncations, infos = env.step(actions)
        after = int(observations["rob"])
        assert rewards["alice"] == rewards["rob"]
        rewards_seen.append(rewards["alice"])
        done = terminations["alice"]
        assert terminations == dict.fromkeys(task.agents, bool(task.is_final([after])[0]))
        assert truncations == dict.fromkeys(task.agents, False)
        for i, agent in enumerate(task.agents):
            row = task.latent_transition(agent, [state], [after])[0, latents[i]]
            latents[i] = rng.choice(5, p=row)
        state = after
    assert done
    assert rewards_seen[-1] == 99
    assert set(rewards_seen[:-1]) == {-1}
    assert infos["alice"]["item_0"] == task.on_goal


def test_episodes_are_truncated_for_both():
    task = TASKS[0]
    env = task.to_parallel_env()
    env.reset(seed=0)
    for step in range(1, 201):
        _, rewards, terminations, truncations, _ = env.step({"alice": 4, "rob": 4})
        assert truncations == dict.fromkeys(task.agents, step == 200)
        assert not any(terminations.values())
        assert rewards == {"alice": -1, "rob": -1}
    assert env.agents == []
    with pytest.raises(ResetNeeded, match="call reset"):
        env.step({})
    env.reset()
    assert env.agents == ["alice", "rob"]
    short = GridParallelEnv(task, max_steps=1)
    short.reset()
    assert short.step({"alice": 4, "rob": 4})[3] == {"alice": True, "rob": True}


def test_seed_starts_the_stream_anew_and_none_goes_on():
    task = btil.domains.movers()

    def tosses(env, **options):
        env.reset(**options)
        results = []
        for _ in range(40):
            env._state = carrying(task)
            results.append(int(env.step({"alice": 0, "rob": 3})[0]["alice"]))
        return results

    env = task.to_parallel_env()
    first, second, again = tosses(env, seed=4), tosses(env), tosses(env, seed=4)
    assert first == again == tosses(task.to_parallel_env(), seed=4)
    assert first != second


@pytest.mark.parametrize(
    ("actions", "message"),
    [
        ({"alice": 1}, "none for agent rob"),
        ({"alice": 1, "rob": 6}, r"6 for agent rob; allowed are 0\.\.5"),
        ({"alice": -1, "rob": 0}, "-1 for agent alice"),
        ({"alice": 1.5, "rob": 0}, "1.5 for agent alice"),
        ({"alice": 1, "rob": 2, "eve": 3}, "unknown agent 'eve'"),
    ],
)
def test_wrong_actions_are_refused(actions, message):
    env = TASKS[0].to_parallel_env()
    with pytest.raises(ResetNeeded):
        env.step(actions)
    env.reset()
    with pytest.raises(ValueError, match=message):
        env.step(actions)


def test_unknown_modes_are_refused():
    with pytest.raises(ValueError, match="render_mode must be None, 'human' or 'rgb_array'"):
        TASKS[0].to_parallel_env(render_mode="ansi")
    with pytest.raises(ValueError, match="max_steps must be a whole number of at least 1, got 0"):
        GridParallelEnv(TASKS[0], max_steps=0)


def test_pictures_without_pyplot():
    env = btil.domains.cleanup().to_parallel_env(render_mode="rgb_array")
    env.reset(seed=0)
    before = env.render()
    assert before.dtype == np.uint8
    assert before.shape == (448, 448, 3)
    env.step({"alice": 0, "rob": 4})  # alice goes from (6, 2) to (6, 1)
    changed = np.argwhere((env.render() != before).any(-1)) // 64
    assert {tuple(cell) for cell in changed.tolist()} == {(1, 6), (2, 6)}
    assert plt.get_fignums() == []


def test_window_follows_the_episode():
    env = TASKS[0].to_parallel_env(render_mode="human")
    env._window._seconds = 0.001
    env.reset(seed=0)
    (number,) = plt.get_fignums()
    shown = plt.figure(number).axes[0].images[0]
    first = np.array(shown.get_array())
    env.step({"alice": 0, "rob": 4})
    assert env.render() is None
    assert plt.get_fignums() == [number]
    assert (np.array(shown.get_array()) != first).any()
    env.close()
    assert plt.get_fignums() == []
    env.close()


def test_rendering_without_a_mode_says_so():
    env = TASKS[0].to_parallel_env()
    env.reset()
    with pytest.warns(UserWarning, match="without a render_mode"):
        assert env.render() is None
