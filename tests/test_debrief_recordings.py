"""Debriefs of recordings as they are: no actions, columns of numbers, gaps, members who leave."""

import re

import numpy as np
import pytest
from test_emission_methods import _with_gaps
from test_emissions import _demos, _model

import btil
from btil.analysis.debriefing.findings import find


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
