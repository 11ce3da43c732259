"""Scores of beliefs: by plain loops, and right where beliefs are right."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from btil import Demonstrations
from btil.analysis import plot_reliability
from btil.analysis.belief_scores import reliability_by_episode, score_beliefs, scored_agents
from btil.analysis.calibration.ranks import bins_of


def made_up(num_episodes=40, length=25, labelled=0.7):
    """Beliefs of three latents, and truths drawn from them."""
    generator = np.random.default_rng(0)
    beliefs = generator.dirichlet(np.full(3, 0.6), num_episodes * length)
    truth = (generator.random((len(beliefs), 1)) > beliefs.cumsum(1)).sum(1)
    known = generator.random(len(truth)) < labelled
    known[length : 2 * length] = False
    demos = Demonstrations(
        np.zeros(len(truth), int),
        np.zeros((len(truth), 2), int),
        latents=np.stack([np.where(known, truth, -1), np.full(len(truth), -1)], 1),
        episodes=np.repeat(np.arange(num_episodes), length),
        agents=("ann", "bob"),
        num_latents=(3, 1),
    )
    return demos, {"ann": beliefs.astype(np.float32), "bob": np.ones((len(truth), 1))}


def test_scores_by_plain_loops():
    demos, beliefs = made_up(num_episodes=6)
    found = score_beliefs(demos, beliefs, "ann")
    logs, squares, best, right = [], [], [], []
    for belief, label in zip(beliefs["ann"].astype(float), demos.latents[:, 0], strict=True):
        if label < 0:
            continue
        logs.append(np.log(belief[label]))
        squares.append(sum((belief[k] - (k == label)) ** 2 for k in range(3)))
        best.append(max(belief))
        right.append(float(np.argmax(belief) == label))
    assert found.steps == len(logs)
    for score, values in (
        ("log_score", logs), ("brier", squares), ("sureness", best), ("right", right),
    ):  # fmt: skip
        assert getattr(found, score).value == pytest.approx(np.mean(values))
    assert found.surer_than_right.value == pytest.approx(np.mean(best) - np.mean(right))


def test_right_beliefs_are_called_so_and_sharpened_ones_are_not():
    demos, beliefs = made_up()
    right = score_beliefs(demos, beliefs, "ann").surer_than_right
    assert 0 < right.error < 0.03
    assert abs(right.value) < 3 * right.error
    sharp = beliefs["ann"] ** 3
    sharpened = score_beliefs(demos, {"ann": sharp / sharp.sum(1, keepdims=True)}, "ann")
    assert sharpened.surer_than_right.value > 4 * sharpened.surer_than_right.error
    # Proper scores: no belief beats the one that truths were drawn from.
    own = score_beliefs(demos, beliefs, "ann")
    assert sharpened.log_score.value < own.log_score.value
    assert sharpened.brier.value > own.brier.value
    assert sharpened.sureness.value > own.sureness.value


def test_errors_are_over_episodes():
    demos, beliefs = made_up()
    found = score_beliefs(demos, beliefs, "ann").brier
    by_episode = []
    for episode in range(40):
        own = demos.select([episode])
        if (own.latents[:, 0] >= 0).any():
            part = {"ann": beliefs["ann"][25 * episode : 25 * episode + 25]}
            by_episode.append(score_beliefs(own, part, "ann").brier.value)
    assert len(by_episode) == 39
    expected = np.std(by_episode, ddof=1) / np.sqrt(39)
    assert found.error == pytest.approx(expected, rel=0.15)
    alone = score_beliefs(demos.select([0]), {"ann": beliefs["ann"][:25]}, "ann")
    assert np.isnan(alone.brier.error)
    assert alone.brier.value == pytest.approx(by_episode[0])


class Learned:
    """What knows three latents by name, and is sure of the first step alone."""

    demos = Demonstrations(
        [0, 0, 0], [0, 0, 0], latents=[0, 1, 2], num_latents=3,
        latent_names={"agent_0": ("away", "in", "out")},
    )  # fmt: skip

    def smooth(self, demos):
        assert demos.latent_names == self.demos.latent_names
        return {"agent_0": np.array([[0.0, 0.0, 1.0], [0.2, 0.7, 0.1], [0.5, 0.3, 0.2]])}


def test_labels_are_matched_by_name_to_what_a_posterior_knows():
    named = {"num_latents": 2, "latent_names": {"agent_0": ("out", "in")}}
    demos = Demonstrations([0, 0, 0], [0, 0, 0], latents=[0, -1, 1], **named)
    found = score_beliefs(demos, Learned(), "agent_0")
    assert found.steps == 2
    assert found.right.value == 0.5
    assert found.log_score.value == pytest.approx(np.log(0.3) / 2)
    counted = reliability_by_episode(demos, Learned(), "agent_0")
    assert (counted.right.sum(), counted.said.sum()) == (1, 1.5)


def test_bins_count_every_labelled_step():
    demos, beliefs = made_up()
    counted = reliability_by_episode(demos, beliefs, "ann")
    assert counted.steps.shape == (40, 100)
    assert counted.steps.sum() == (demos.latents[:, 0] >= 0).sum()
    assert counted.steps[1].sum() == 0
    for one in bins_of(counted):
        assert one.lower - 0.02 < one.said < one.upper + 0.02


def test_errors_and_bins_are_those_of_episodes_by_hand():
    demos = Demonstrations(
        [0] * 5, [0] * 5, latents=[0, 1, -1, 1, 0], episodes=[0, 0, 0, 1, 2], num_latents=2
    )
    beliefs = np.array([[0.9, 0.1], [0.6, 0.4], [0.5, 0.5], [0.25, 0.75], [0.3, 0.7]])
    found = score_beliefs(demos, {"agent_0": beliefs}, "agent_0")
    # Episodes have 2, 1 and 1 labelled steps, of which 1, 1 and none is right.
    assert found.right.value == 0.5
    apart = np.array([1 - 2 * 0.5, 1 - 0.5, 0 - 0.5])
    assert found.right.error == pytest.approx(np.sqrt((apart**2).sum() * 3 / 2) / 4)
    assert found.sureness.value == pytest.approx((0.9 + 0.6 + 0.75 + 0.7) / 4)
    assert found.surer_than_right.value == pytest.approx(0.7375 - 0.5)
    assert found.brier.value == pytest.approx((2 * 0.01 + 2 * 0.36 + 2 * 0.0625 + 2 * 0.49) / 4)
    counted = reliability_by_episode(demos, {"agent_0": beliefs}, "agent_0")
    assert np.argwhere(counted.steps).tolist() == [[0, 60], [0, 90], [1, 75], [2, 70]]
    assert np.argwhere(counted.right).tolist() == [[0, 90], [1, 75]]
    np.testing.assert_allclose(counted.said[0, [60, 90]], [0.6, 0.9])


def test_a_belief_that_is_wrong_and_sure_costs_a_finite_amount():
    demos = Demonstrations([0], [0], latents=[1], num_latents=2)
    found = score_beliefs(demos, {"agent_0": np.array([[1.0, 0.0]])}, "agent_0")
    assert -90 < found.log_score.value < -80
    assert found.brier.value == 2


def test_agents_without_labels_or_without_a_choice_are_not_scored():
    demos, _ = made_up()
    assert scored_agents(demos) == ["ann"]
    assert scored_agents(demos.without_labels()) == []
    four = Demonstrations(
        [0, 0], np.zeros((2, 4), int), [[0, 0, -1, -1], [0, -1, -1, 1]], num_actions=1,
        agents=("one", "two", "unseen", "late"), num_latents=(1, 2, 2, 2),
    )  # fmt: skip
    assert scored_agents(four) == ["two", "late"]


def test_reliability_is_drawn_for_every_agent_and_method():
    demos, beliefs = made_up(num_episodes=6)
    counted = reliability_by_episode(demos, beliefs, "ann")
    shown = {"ann": {"one": counted, "other": counted}, "bob": {"one": counted}}
    own = Figure()
    axes = own.subplots(4, 1)
    assert plot_reliability(shown, axes) is own
    assert [len(one.containers) for one in axes[:2]] == [2, 1]
    bars = axes[0].containers[0]
    bins = bins_of(counted)
    np.testing.assert_allclose(bars.lines[0].get_xdata(orig=False), [one.said for one in bins])
    np.testing.assert_allclose(bars.lines[0].get_ydata(orig=False), [one.right for one in bins])
    steps = axes[2].patches[0].get_data().values
    np.testing.assert_allclose(
        steps, counted.steps.sum(0).reshape(10, 10).sum(1) / counted.steps.sum()
    )
    assert [one.get_title() for one in axes] == ["ann", "bob", "", ""]
    with pytest.raises(ValueError, match="no agent with labelled steps"):
        plot_reliability({})
    with pytest.raises(ValueError, match="axes: 3 given, 4 are needed"):
        plot_reliability(shown, axes[:3])
