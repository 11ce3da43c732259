"""Debriefs of recordings as they are: no actions, columns of numbers, gaps, members who leave."""

import re
from unittest.mock import create_autospec

import numpy as np
import pytest
from test_emission_methods import _with_gaps
from test_emissions import _demos, _model

import btil
from btil.analysis.debriefing.findings import _expected, find
from btil.analysis.debriefing.sections import Told, summary
from btil.inference.result import ChannelPoint
from btil.models.team import bind
from btil.posterior.posterior import TeamPosterior


@pytest.mark.covers("normal columns", "debrief")
@pytest.mark.covers("members without actions", "debrief")
@pytest.mark.covers("gaps beside columns", "debrief")
@pytest.mark.covers("unseen actions and states", "debrief")
@pytest.mark.covers("members who come and go", "debrief")
@pytest.mark.covers("unsure labels", "debrief")
def test_a_debrief_of_gaps_and_columns(tmp_path):
    demos = _with_gaps(_demos(lengths=(14, 9), labelled=9))
    fitted = btil.fit(_model().resolved(demos), demos, progress=False)
    found = find(fitted, demos)
    beliefs = fitted.smooth(demos)
    for i, agent in enumerate(demos.agents):
        there = demos.present[:, i]
        own = found.habits[found.habits["agent"] == agent]
        # In single precision, and perhaps in another order.
        np.testing.assert_allclose(own["steps"], beliefs[agent][there].sum(0), rtol=1e-6)
        assert own["share_of_steps"].sum() == pytest.approx(1.0)
        sure = found.certainty[found.certainty["agent"] == agent]
        assert sure["steps"].sum() == there.sum()
    # What ann's column is expected to be with latent 1: over its steps, by their states.
    belief = beliefs["ann"][:, 1]
    means = fitted.emission("ann", demos.states).coefficients[:, 1, 0]
    expected = belief @ means / belief.sum()
    (row,) = found.habits[
        (found.habits["agent"] == "ann") & (found.habits["mind"] == "mind 1")
    ].to_dict("records")
    assert row["expected_ann_x"] == pytest.approx(expected[0])
    assert row["low_of_ann_y"] < expected[1] < row["high_of_ann_y"]
    assert "ann_x " in row["does"]
    assert "%" in row["does"]
    page = btil.analysis.debrief(
        fitted, demos, tmp_path / "page", max_episodes=1, relearn=False, progress=False
    )
    text = page.page.read_text(encoding="utf-8")
    assert "bob_x" in text
    words = re.sub(r"base64,[A-Za-z0-9+/=]*", "", text)  # pictures have any letters
    assert "nan" not in words.lower().replace("ann", "")


def test_a_habit_is_a_share_of_the_steps_at_which_the_member_is_there():
    there = np.array([True, True, False, False, True, True, True])
    told = np.array([0, 1, -1, -1, 1, 0, 0])
    demos = btil.Demonstrations(
        np.zeros(7, int),
        {"bob": np.where(there, 0, -1)},
        {"bob": told},
        present={"bob": there},
        num_actions=2,
        num_latents=2,
    )
    model = btil.TeamModel(btil.DirichletCPT(1.0), btil.DirichletCPT(1.0))
    fitted = btil.fit(model, demos, progress=False)
    habits = find(fitted, demos, use_labels=True).habits
    # Two of them are no steps of his: five are.
    np.testing.assert_allclose(habits["steps"], [3, 2], rtol=1e-6)
    np.testing.assert_allclose(habits["share_of_steps"], [3 / 5, 2 / 5], rtol=1e-6)


def test_expected_columns_are_averages_over_the_steps_of_a_mental_state():
    """By the inputs at each step, in its own context; where nothing was measured, nothing is."""
    generator = np.random.default_rng(0)
    place = np.array([0, 1, 1, 0, 1, 0, 0, 1])
    speed, turn, slope = generator.normal(size=(3, 8))
    speed[2] = turn[2] = np.nan
    demos = btil.Demonstrations(
        {"place": place}, np.zeros((8, 1), int), agents=("ann",), num_latents=2, num_actions=1,
        num_states={"place": 2}, missing="allow",
        continuous={"speed": speed, "turn": turn, "slope": slope},
    )  # fmt: skip
    emission = btil.LinearNormalEmission(("speed", "turn"), ("slope",), parents=("place",))
    bound = bind(btil.TeamModel(emissions=emission).resolved(demos), demos)
    contexts = bound.channels["ann"].contexts[:, 0].tolist()
    points = generator.normal(size=(2, 2, 2, 2))
    draws = points + generator.normal(size=(200, 2, 2, 2, 2))
    posterior = create_autospec(TeamPosterior, instance=True)
    nothing = np.zeros((2, 2, 2, 2))
    posterior.channel_mean.return_value = ChannelPoint(points, nothing)
    posterior.drawn_channel.return_value = ChannelPoint(draws, np.zeros((200, 2, 2, 2, 2)))
    belief = generator.dirichlet([1, 1], 8)
    seen = np.flatnonzero(np.arange(8) != 2)
    for latent in (0, 1):
        found = _expected(posterior, bound, "ann", latent, belief)
        assert [one.column for one in found] == ["speed", "turn"]
        share = belief[seen, latent] / belief[seen, latent].sum()
        at = [contexts.index(place[t]) for t in seen]
        given = np.stack([np.ones(7), slope[seen]], 1)
        mean = np.einsum("t,tp,tpd->d", share, given, points[at, latent])
        drawn = np.einsum("t,tp,ntpd->nd", share, given, draws[:, at, latent])
        low, high = np.quantile(drawn, [0.055, 0.945], axis=0)
        np.testing.assert_allclose([one.mean for one in found], mean)
        np.testing.assert_allclose([one.low for one in found], low)
        np.testing.assert_allclose([one.high for one in found], high)
    # Of what was held for less than a step in all nothing is expected, nor without columns.
    seldom = np.where(np.arange(2) == 1, 0.1, 0.9) * np.ones((8, 1))
    assert _expected(posterior, bound, "ann", 1, seldom) == []
    plain = bind(btil.TeamModel(), demos)
    assert _expected(posterior, plain, "ann", 0, belief) == []


def test_labels_of_episodes_that_differ_in_columns_alone_are_told_apart():
    from btil.analysis.debriefing.findings import unseen_labels

    task = btil.domains.errands(num_steps=8)
    demos = task.simulate(4, seed=0)
    same = demos.replace(
        states={name: np.zeros(demos.num_steps, int) for name in demos.state_variables},
        num_states=None,
    )
    unseen = unseen_labels(same.without_labels([2]), same)
    np.testing.assert_array_equal(unseen.any(1), np.arange(demos.num_steps) // 8 == 2)


@pytest.mark.covers("members who come and go", "debrief")
def test_who_is_away_is_at_odds_with_nobody_and_has_given_nothing_up():
    there = np.ones((8, 2), bool)
    there[[2, 3, 6], 1] = False
    minds = np.array([[0, 0], [0, 1], [0, -1], [1, -1], [1, 1], [1, 1], [1, -1], [0, 0]])
    demos = btil.Demonstrations(
        np.zeros(8, int), np.zeros((8, 2), int), minds, agents=("ann", "bob"), present=there,
        num_states=1, num_actions=2, num_latents=2,
    )  # fmt: skip
    fitted = btil.fit(btil.TeamModel(), demos, progress=False)
    found = find(fitted, demos, use_labels=True)
    np.testing.assert_array_equal(found.decoded, minds)
    # Of five steps with both of them: ann has half of her time either mind, bob two and three.
    assert found.by_chance == pytest.approx(5 / 8 * 0.5)
    assert found.episodes["misaligned_steps"].tolist() == [1]
    bob = found.dwells[found.dwells["agent"] == "bob"]
    # He leaves with the second mind twice, and ends with the first.
    assert bob["times"].tolist() == [2, 2]
    assert bob["given_up"].tolist() == [1, 0]
    unused = find(fitted, demos)
    told = summary(Told(fitted, unused, None, False))
    assert any(one.startswith("100% of the steps are labelled") for one in told)


@pytest.mark.covers("unseen actions and states", "debrief")
def test_changes_of_mind_after_an_action_that_nobody_saw_are_counted():
    minds = np.array([0, 0, 1, 1, 0, 0, 0, 1])
    actions = np.array([0, -1, 0, 1, 1, 0, 0, 0])
    demos = btil.Demonstrations(
        np.zeros(8, int), actions[:, None], minds[:, None], agents=("ann",), missing="allow",
        num_states=1, num_actions=2, num_latents=2,
    )  # fmt: skip
    model = btil.TeamModel(transition=btil.DirichletCPT(1.0, parents=("own_action",)))
    found = find(btil.fit(model, demos, progress=False), demos, use_labels=True)
    changes = found.changes.set_index(["from_mind", "to_mind"])["times"].to_dict()
    assert changes == {("mind 0", "mind 1"): 2, ("mind 1", "mind 0"): 1}
    assert found.episodes["changes_of_mind_ann"].sum() == 3
