"""Where minds are misaligned: by enumeration, by the task, and on paths made by hand."""

import itertools

import numpy as np
import pytest

import btil
from btil.analysis import misaligned_stretches, misalignment_probability
from btil.analysis.teamwork import misaligned, runs


def team(num_agents: int = 2, num_latents: int = 2, **names: object) -> btil.Demonstrations:
    """Forty steps in two episodes; what is done in them does not matter."""
    nothing = np.zeros((40, num_agents), int)
    return btil.Demonstrations(
        states=np.zeros(40, int), actions=nothing, num_states=1, num_latents=num_latents,
        episodes=np.repeat([7, 9], 20), agents=("ann", "bob", "cat")[:num_agents], **names,
    )  # fmt: skip


@pytest.mark.parametrize(("num_agents", "num_latents"), [(2, 2), (3, 3)])
def test_misalignment_is_what_enumeration_says(num_agents, num_latents):
    demos = team(num_agents, num_latents)
    rng = np.random.default_rng(0)
    beliefs = {agent: rng.dirichlet(np.ones(num_latents), 40) for agent in demos.agents}
    expected = np.zeros(40)
    for joint in itertools.product(range(num_latents), repeat=num_agents):
        if len(set(joint)) > 1:
            expected += np.prod([b[:, k] for b, k in zip(beliefs.values(), joint, strict=True)], 0)
    np.testing.assert_allclose(misalignment_probability(demos, beliefs), expected, atol=1e-12)
    path = np.zeros((40, num_agents), int)
    path[[1, 2, 19, 20, 21], -1] = 1
    stretches = misaligned_stretches(demos, path, beliefs)
    # A stretch ends with its episode, at step 19.
    assert [one[:3] for one in stretches] == [(0, 1, 2), (0, 19, 19), (1, 0, 1)]
    assert [one.num_steps for one in stretches] == [2, 1, 2]
    assert stretches[0].probability == pytest.approx(np.mean(expected[1:3]))
    assert misaligned_stretches(demos, np.zeros_like(path), beliefs) == ()


def test_sure_and_equal_minds_are_aligned_exactly():
    demos = team(3, 3)
    sure = np.eye(3)[np.arange(40) % 3]
    assert (misalignment_probability(demos, dict.fromkeys(demos.agents, sure)) == 0).all()


def test_nobody_is_at_odds_with_one_who_is_away():
    there = np.ones((40, 2), bool)
    there[5:9, 1] = False
    there[7:12, 0] = False
    demos = team(present=there)
    path = np.where(there, [0, 1], -1)
    both = there.all(1)
    np.testing.assert_array_equal(misaligned(demos, path), both)
    beliefs = {"ann": np.tile([0.9, 0.1], (40, 1)), "bob": np.tile([0.2, 0.8], (40, 1))}
    expected = np.where(both, 1 - (0.9 * 0.2 + 0.1 * 0.8), 0)
    np.testing.assert_allclose(misalignment_probability(demos, beliefs), expected)
    stretches = misaligned_stretches(demos, path, beliefs)
    assert [one[:3] for one in stretches] == [(0, 0, 4), (0, 12, 19), (1, 0, 19)]


def test_alignment_with_a_task_is_what_the_task_says():
    task = btil.domains.movers("tiny")
    demos = task.simulate(2, seed=3)
    rng = np.random.default_rng(0)
    beliefs = {a: rng.dirichlet(np.ones(task.num_latents), demos.num_steps) for a in task.agents}
    found = misalignment_probability(demos, beliefs, task)
    # Many draws of both minds, judged by the task.
    shares = np.zeros(demos.num_steps)
    for _ in range(400):
        drawn = np.stack(
            [(rng.random((len(b), 1)) > b.cumsum(1)[:, :-1]).sum(1) for b in beliefs.values()], 1
        )
        shares += task.suboptimal(demos.states, drawn) / 400
    assert np.abs(shares - found).max() < 5 * 0.5 / np.sqrt(400)
    stretches = misaligned_stretches(demos, demos.latents, beliefs, task)
    first = stretches[0]
    steps = demos.episode_starts[first.episode] + np.arange(first.first, first.last + 1)
    assert first.probability == pytest.approx(found[steps].mean())
    total = sum(one.num_steps for one in stretches)
    assert total == task.suboptimal(demos.states, demos.latents).sum() > 0
    # Derived variables change nothing.
    more = task.add_derived_variables(demos)
    np.testing.assert_array_equal(misalignment_probability(more, beliefs, task), found)


@pytest.mark.parametrize(
    ("values", "expected"),
    [([3], [(0, 0)]), ([1, 1, 0, 1], [(0, 1), (2, 2), (3, 3)]), ([False, True], [(0, 0), (1, 1)])],
)
def test_runs(values, expected):
    assert runs(np.array(values)) == expected


def test_what_cannot_be_compared_is_refused():
    demos = team(latent_names={"ann": ("rest", "lift"), "bob": ("sing", "hum")})
    with pytest.raises(ValueError, match=r"the latents of ann are .* they cannot be compared"):
        misaligned(demos, np.zeros((40, 2), int))
    with pytest.raises(ValueError, match=r"decoded: shape \(3, 2\), expected"):
        misaligned_stretches(team(), np.zeros((3, 2), int), {})
