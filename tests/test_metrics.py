"""Metrics against values by hand and loops that spell the definitions out."""

import math
import subprocess
import sys

import numpy as np
import pytest

import btil
from btil import Demonstrations
from btil.analysis import (
    confusion_matrix,
    decoding_error,
    hamming_distance,
    majority_class_error,
    most_probable,
    policy_divergence,
    policy_weights,
    suboptimal_share,
    team_alignment,
    weighted_js_divergence,
)


def random_demos(seed=0, lengths=(3, 1, 5, 4), latents=(2, 4), share=0.6):
    rng = np.random.default_rng(seed)
    steps = sum(lengths)
    labels = np.stack([rng.integers(0, k, steps) for k in latents], axis=1)
    labels[rng.random(labels.shape) > share] = -1
    return Demonstrations(
        states=rng.integers(0, 3, steps),
        actions=rng.integers(0, 2, (steps, len(latents))),
        latents=labels,
        episodes=np.repeat(np.arange(len(lengths)), lengths),
        num_latents=latents,
        agents=("ann", "bob", "cyd")[: len(latents)],
    )


def random_path(demos, seed=1):
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(0, k, demos.num_steps) for k in demos.num_latents], axis=1)


def test_public_names_come_from_the_package():
    assert btil.analysis.hamming_distance is hamming_distance
    assert btil.analysis.weighted_js_divergence is weighted_js_divergence
    assert set(btil.analysis.__all__) == set(btil.analysis._LAZY)


# ------------------------------------------------------------------ decoding


def test_hamming_distance_by_hand():
    demos = Demonstrations(
        states=np.zeros(6, int),
        actions=np.zeros((6, 2), int),
        latents=[[0, -1], [1, -1], [-1, -1], [-1, 1], [0, 0], [-1, -1]],
        episodes=[0, 0, 0, 1, 1, 2],
        num_latents=2,
        num_actions=1,
    )
    decoded = [[0, 0], [0, 0], [1, 1], [1, 1], [1, 1], [0, 0]]
    # Agent 0: 1 of 2 wrong, then 1 of 1 wrong; agent 1: 1 of 2 wrong in the only labelled one.
    np.testing.assert_allclose(hamming_distance(demos, decoded), [0.75, 0.5])
    # Over steps: 2 of 3, and 1 of 2.
    np.testing.assert_allclose(decoding_error(demos, decoded), [2 / 3, 0.5])


@pytest.mark.parametrize("seed", range(5))
def test_hamming_distance_is_the_mean_of_the_episodes_shares(seed):
    demos = random_demos(seed)
    decoded = random_path(demos, seed)
    expected, per_step = [], []
    for i in range(demos.num_agents):
        shares, outcomes = [], []
        for episode in np.unique(demos.episodes):
            rows = np.flatnonzero((demos.episodes == episode) & (demos.latents[:, i] >= 0))
            wrong = [decoded[t, i] != demos.latents[t, i] for t in rows]
            outcomes += wrong
            if len(rows):
                shares.append(sum(wrong) / len(wrong))
        expected.append(np.mean(shares))
        per_step.append(np.mean(outcomes))
    np.testing.assert_allclose(hamming_distance(demos, decoded), expected)
    np.testing.assert_allclose(decoding_error(demos, decoded), per_step)


def test_an_agent_without_labels_has_no_error():
    demos = random_demos()
    labels = demos.latents.copy()
    labels[:, 1] = -1
    demos = demos.replace(latents=labels)
    decoded = np.maximum(labels, 0)
    assert hamming_distance(demos, decoded)[0] == 0
    assert np.isnan(hamming_distance(demos, decoded)[1])
    assert np.isnan(decoding_error(demos, decoded)[1])
    assert np.isnan(majority_class_error(demos, demos)[1])


def test_beliefs_are_decoded_by_their_largest_probability():
    demos = random_demos()
    path = random_path(demos)
    beliefs = {}
    for agent, size, own in zip(demos.agents, demos.num_latents, path.T, strict=True):
        beliefs[agent] = np.full((demos.num_steps, size), 0.1)
        beliefs[agent][np.arange(demos.num_steps), own] = 0.7
    np.testing.assert_array_equal(most_probable(demos, beliefs), path)
    np.testing.assert_array_equal(decoding_error(demos, beliefs), decoding_error(demos, path))
    with pytest.raises(ValueError, match="agent bob is missing"):
        decoding_error(demos, {"ann": beliefs["ann"]})
    with pytest.raises(ValueError, match=r"agent ann has shape \(13, 4\)"):
        decoding_error(demos, {"ann": beliefs["bob"], "bob": beliefs["bob"]})


def test_a_posterior_before_the_demonstrations_is_refused():
    # In a process whose types nothing checks.
    code = """
import btil
demos = btil.Demonstrations([0, 1, 0], [0, 1, 0], [0, 1, 1], num_latents=2)
posterior = btil.fit(btil.TeamModel(), demos, progress=False)
for function in (btil.analysis.hamming_distance, btil.analysis.decoding_error):
    try:
        function(posterior, demos)
    except ValueError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told = "demos must be Demonstrations, got TeamPosterior; the demonstrations come first"
    assert [line.startswith(told) for line in done.stdout.splitlines()] == [True, True]


@pytest.mark.parametrize(
    ("decoded", "message"),
    [
        (np.zeros((13, 1), int), r"shape \(13, 1\), expected \(steps, agents\) = \(13, 2\)"),
        (np.zeros(13, int), r"shape \(13,\)"),
        (np.zeros((13, 2)), "whole numbers"),
        (np.full((13, 2), 2), r"2 for agent ann in row 0; allowed are 0\.\.1"),
        (np.full((13, 2), -1), "-1 for agent ann in row 0"),
    ],
)
def test_wrong_paths_are_refused(decoded, message):
    demos = random_demos()
    for function in (hamming_distance, decoding_error):
        with pytest.raises(ValueError, match=message):
            function(demos, decoded)
    with pytest.raises(ValueError, match=message):
        confusion_matrix(demos, decoded, "ann")


def test_majority_class_error_by_hand():
    train = Demonstrations([0] * 5, [0] * 5, latents=[2, 2, 0, -1, 1], num_latents=3)
    test = Demonstrations(
        [0] * 5, [0] * 5, latents=[2, 1, 1, 2, -1], episodes=[0, 0, 0, 1, 1], num_latents=3
    )
    np.testing.assert_allclose(majority_class_error(train, test), [(2 / 3 + 0) / 2])
    assert np.isnan(majority_class_error(train.without_labels(), test)).all()
    with pytest.raises(ValueError, match="the agents of train are agent_0"):
        majority_class_error(train, random_demos())


def test_the_most_frequent_label_is_guessed_by_its_name():
    steps = np.zeros(3, int)
    train = Demonstrations(
        steps,
        np.zeros((3, 2), int),
        [[1, 0], [1, 0], [0, 1]],
        num_latents=(2, 2),
        latent_names={"agent_0": ("in", "out")},
    )
    names = {"agent_0": ("out", "in", "far")}
    test = train.replace(latents=[[0, 0], [1, 1], [2, 1]], num_latents=(3, 2), latent_names=names)
    # "out" is 0 in test; of the other agent numbers are compared.
    np.testing.assert_allclose(majority_class_error(train, test), [2 / 3, 2 / 3])
    other = train.replace(latent_names={"agent_0": ("in", "far")})
    with pytest.raises(ValueError, match="most frequent label of agent_0 in train is out, in test"):
        majority_class_error(train, other)


def test_confusion_matrix_counts_every_labelled_step():
    demos = random_demos(3)
    decoded = random_path(demos)
    for i, agent in enumerate(demos.agents):
        expected = np.zeros((demos.num_latents[i],) * 2, int)
        for label, guess in zip(demos.latents[:, i], decoded[:, i], strict=True):
            if label >= 0:
                expected[label, guess] += 1
        matrix = confusion_matrix(demos, decoded, agent)
        np.testing.assert_array_equal(matrix, expected)
        error = 1 - np.trace(matrix) / matrix.sum()
        assert error == pytest.approx(decoding_error(demos, decoded)[i])
    with pytest.raises(ValueError, match="unknown agent 'eve'; the agents are ann, bob"):
        confusion_matrix(demos, decoded, "eve")


# ------------------------------------------------------------------ policies


def js_by_loop(p, q):
    total = 0.0
    for a, b in zip(p, q, strict=True):
        m = (a + b) / 2
        total += 0.5 * a * math.log(a / m) if a > 0 else 0.0
        total += 0.5 * b * math.log(b / m) if b > 0 else 0.0
    return total


def random_rows(rng, shape):
    rows = rng.dirichlet(np.ones(shape[-1]), size=shape[:-1])
    rows[..., 0] = np.where(rng.random(shape[:-1]) < 0.3, 0.0, rows[..., 0])
    return rows / rows.sum(-1, keepdims=True)


def test_js_divergence_by_hand():
    assert weighted_js_divergence([1.0, 0.0], [0.0, 1.0], 1.0) == pytest.approx(math.log(2))
    assert weighted_js_divergence([0.3, 0.7], [0.3, 0.7], 1.0) == 0
    # m = (3/4, 1/4): KL((1,0)|m) = log 4/3, KL((1/2,1/2)|m) = log(2/3)/2 + log(2)/2.
    value = 0.5 * math.log(4 / 3) + 0.25 * (math.log(2 / 3) + math.log(2))
    assert weighted_js_divergence([[1, 0]], [[0.5, 0.5]], [1]) == pytest.approx(value)


@pytest.mark.parametrize("shape", [(4, 3), (3, 2, 5), (2, 2, 2), (2, 3, 2, 3)])
def test_js_divergence_is_the_weighted_sum_over_rows(shape):
    rng = np.random.default_rng(len(shape))
    p, q = random_rows(rng, shape), random_rows(rng, shape)
    weights = rng.dirichlet(np.ones(int(np.prod(shape[:-1])))).reshape(shape[:-1])
    expected = sum(
        weights[index] * js_by_loop(p[index], q[index]) for index in np.ndindex(*shape[:-1])
    )
    assert weighted_js_divergence(p, q, weights) == pytest.approx(expected, rel=1e-12)
    assert weighted_js_divergence(q, p, weights) == pytest.approx(expected, rel=1e-12)


def test_js_divergence_agrees_with_scipy():
    from scipy.spatial.distance import jensenshannon

    rng = np.random.default_rng(7)
    p, q = random_rows(rng, (6, 4)), random_rows(rng, (6, 4))
    expected = np.mean(jensenshannon(p, q, axis=1) ** 2)
    assert weighted_js_divergence(p, q, 1 / 6) == pytest.approx(expected)


def test_weights_broadcast_and_must_sum_to_one_over_all_rows():
    rng = np.random.default_rng(2)
    p, q = random_rows(rng, (3, 2, 4)), random_rows(rng, (3, 2, 4))
    by_state = np.array([0.1, 0.15, 0.25])
    full = np.repeat(by_state[:, None], 2, axis=1)
    expected = weighted_js_divergence(p, q, full)
    assert weighted_js_divergence(p, q, by_state[:, None]) == pytest.approx(expected)
    with pytest.raises(ValueError, match="the sum over the rows is 2; it must be 1"):
        weighted_js_divergence(p, q, by_state[:, None] * 2)


@pytest.mark.parametrize("junk", [np.nan, np.inf, -1.0, 7.0])
def test_rows_of_weight_zero_may_hold_anything(junk):
    p = np.array([[1.0, 0.0], [0.5, 0.5]])
    q = np.array([[0.0, 1.0], [0.2, 0.8]])
    p[1], q[1] = junk, junk
    assert weighted_js_divergence(p, q, [1.0, 0.0]) == pytest.approx(math.log(2))
    with pytest.raises(ValueError, match=r"true_policy: the row at \(1,\) has a positive weight"):
        weighted_js_divergence(p, q, [0.5, 0.5])


@pytest.mark.parametrize(
    ("policy", "weights", "message"),
    [
        (np.full((2, 3), 1 / 3), [0.5, 0.5], r"true_policy has shape \(2, 2\) and policy \(2, 3\)"),
        (np.full((2, 2), 0.5), [0.5, 0.3, 0.2], r"weights: shape \(3,\) does not broadcast"),
        (np.full((2, 2), 0.5), [1.5, -0.5], r"weights: -0.5 at \(1,\)"),
        (np.full((2, 2), 0.5), [np.nan, 1.0], r"weights: nan at \(0,\)"),
        (np.full((2, 2), 0.5), [0.2, 0.2], "the sum over the rows is 0.4"),
        (np.full((2, 2), 0.4), [0.5, 0.5], r"policy: the row at \(0,\)"),
    ],
)
def test_wrong_policies_and_weights_are_refused(policy, weights, message):
    with pytest.raises(ValueError, match=message):
        weighted_js_divergence(np.full((2, 2), 0.5), policy, weights)


@pytest.mark.parametrize("seed", range(3))
def test_policy_weights_count_labelled_steps(seed):
    demos = random_demos(seed)
    for i, agent in enumerate(demos.agents):
        expected = np.zeros((3, demos.num_latents[i]))
        for state, label in zip(demos.states, demos.latents[:, i], strict=True):
            if label >= 0:
                expected[state, label] += 1
        weights = policy_weights(demos, agent)
        np.testing.assert_allclose(weights, expected / expected.sum())
    with pytest.raises(ValueError, match="agent ann has no label"):
        policy_weights(demos.without_labels(), "ann")
    with pytest.raises(ValueError, match="unknown agent 'eve'"):
        policy_weights(demos, "eve")


def random_policies(demos, seed, dtype=np.float64):
    rng = np.random.default_rng(seed)
    num_states = math.prod(demos.num_states.values())
    sizes = zip(demos.agents, demos.num_latents, demos.num_actions, strict=True)
    return {a: random_rows(rng, (num_states, k, n)).astype(dtype) for a, k, n in sizes}


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_policy_divergence_is_the_weighted_divergence(dtype):
    demos = random_demos(4)
    true, learned = random_policies(demos, 0), random_policies(demos, 1, dtype)
    values = policy_divergence(demos, true, learned)
    for value, agent in zip(values, demos.agents, strict=True):
        weights = policy_weights(demos, agent)
        expected = weighted_js_divergence(true[agent], learned[agent], weights)
        assert value == pytest.approx(expected, rel=1e-12)
    # Rows of states and latents that do not occur may hold anything.
    for agent in demos.agents:
        learned[agent][policy_weights(demos, agent) == 0] = np.nan
    np.testing.assert_array_equal(policy_divergence(demos, true, learned), values)
    assert np.isnan(policy_divergence(demos.without_labels(), true, learned)).all()


def test_policy_divergence_over_several_state_variables():
    rng = np.random.default_rng(3)
    demos = Demonstrations(
        {"x": rng.integers(0, 2, 30), "y": rng.integers(0, 3, 30)},
        rng.integers(0, 2, (30, 1)),
        latents=rng.integers(0, 2, (30, 1)),
        num_states={"x": 2, "y": 3},
    )
    true, learned = random_policies(demos, 0), random_policies(demos, 1)
    rows = zip(demos.states, demos.latents[:, 0], strict=True)
    expected = np.mean(
        [js_by_loop(true["agent_0"][s, x], learned["agent_0"][s, x]) for s, x in rows]
    )
    np.testing.assert_allclose(policy_divergence(demos, true, learned), [expected])


def test_policies_that_do_not_fit_are_refused():
    demos = random_demos()
    good = random_policies(demos, 0)
    with pytest.raises(ValueError, match="true_policies: none for agent bob"):
        policy_divergence(demos, {"ann": good["ann"]}, good)
    with pytest.raises(ValueError, match=r"policies: ann's has shape \(2, 2, 2\), expected"):
        policy_divergence(demos, good, good | {"ann": good["ann"][:2]})
    with pytest.raises(ValueError, match="agent bob, rows that are read: policy: the row at"):
        policy_divergence(demos, good, good | {"bob": good["bob"] * 2})


# ------------------------------------------------------------------ teams


def test_alignment_by_hand():
    latents = [[0, 0], [1, 0], [1, -1], [2, 2], [-1, -1], [1, 1], [0, 1], [-1, 0]]
    episodes = ["a", "a", "a", "b", "b", "b", "b", "c"]
    # Episode a: 1 of 2; b: 2 of 3; c has no step at which both are labelled.
    expected = ((1 / 2 + 2 / 3) / 2, 3 / 5)
    assert team_alignment(latents, episodes=episodes) == pytest.approx(expected)
    demos = Demonstrations(
        np.zeros(8, int), np.zeros((8, 2), int), latents, episodes=episodes, num_latents=3
    )
    share = team_alignment(demos)
    assert share == pytest.approx(expected)
    assert (share.over_episodes, share.over_steps) == tuple(share)
    assert team_alignment(latents) == pytest.approx((3 / 5, 3 / 5))


@pytest.mark.parametrize("agents", [1, 2, 3])
def test_alignment_is_over_all_agents(agents):
    demos = random_demos(8, latents=(2,) * agents, share=0.9)
    rows = [row for row in demos.latents.tolist() if min(row) >= 0]
    expected = np.mean([len(set(row)) == 1 for row in rows])
    assert team_alignment(demos).over_steps == pytest.approx(expected)
    assert team_alignment(demos.latents, episodes=demos.episodes) == team_alignment(demos)


def test_nobody_labelled_nothing_known():
    demos = random_demos(latents=(3, 3)).without_labels()
    assert np.isnan(team_alignment(demos)).all()


def random_demos_of_two(**more):
    arguments = {"num_latents": 2, "latents": [[0, 1]]} | more
    return Demonstrations([0], [[0, 0]], agents=("ann", "bob"), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((random_demos(),), "the latents of ann are 0, 1, those of bob 0, 1, 2, 3"),
        (
            (random_demos_of_two(latent_names={"bob": ["in", "out"]}),),
            "the latents of ann are 0, 1, those of bob in, out",
        ),
        ((random_demos_of_two(), None, [0]), "demonstrations know theirs"),
        (([0, 1],), r"got int64 of shape \(2,\)"),
        (([[0.5, 1.0]],), "got float64"),
        (([[0, 1]], [[0, 1]]), "decoded: goes with demonstrations"),
        (([[0, 1]], None, [0, 1]), r"episodes: shape \(2,\), expected \(steps,\) = \(1,\)"),
        (([[0, 1]] * 3, None, [0, 1, 0]), "contiguous"),
    ],
)
def test_alignment_of_what_cannot_be_compared_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        team_alignment(*arguments)


@pytest.mark.parametrize("make", [btil.domains.movers, btil.domains.cleanup])
def test_suboptimal_share_is_the_mean_of_the_episodes_shares(make):
    task = make("tiny")
    demos = task.simulate(12, seed=2, max_steps=30)
    shares, all_steps = [], []
    for episode in np.unique(demos.episodes):
        rows = demos.episodes == episode
        wrong = task.suboptimal(demos.states[rows], demos.latents[rows])
        shares.append(wrong.mean())
        all_steps += wrong.tolist()
    expected = pytest.approx((np.mean(shares), np.mean(all_steps)))
    assert suboptimal_share(task, demos) == expected
    assert suboptimal_share(task, task.add_derived_variables(demos)) == expected
    assert 0 < suboptimal_share(task, demos).over_steps < 1


def test_suboptimal_steps_are_counted_where_both_are_labelled():
    task = btil.domains.movers("tiny")
    demos = task.simulate(6, seed=2, max_steps=30)
    labels = demos.latents.copy()
    labels[demos.episodes == 3] = -1
    labels[::3, 1] = -1
    partly = demos.replace(latents=labels)
    # In Movers the team works well together where all have the same in mind.
    aligned = team_alignment(partly)
    assert suboptimal_share(task, partly) == pytest.approx([1 - share for share in aligned])
    assert np.isnan(suboptimal_share(task, demos.without_labels())).all()
    with pytest.raises(ValueError, match="expected those of movers"):
        suboptimal_share(btil.domains.movers("lesson"), demos)
