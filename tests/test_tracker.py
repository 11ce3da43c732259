"""A tracker says at each step what the batch says of the recording, and refuses what is wrong."""

from typing import Any

import numpy as np
import pytest
from teams import random_demos, rich_model

import btil
from btil.inference.tracker import Belief, Tracker


@pytest.fixture(scope="module")
def posterior() -> btil.TeamPosterior:
    """A fit of two agents of different sizes, in double precision."""
    demos = random_demos(0, (5, 1, 5, 4), labelled=0.6)
    return btil.fit(rich_model(), demos, dtype="float64", progress=False)


def follow(tracker: Tracker, demos: btil.Demonstrations) -> list[Belief]:
    """Beliefs at every step of the demonstrations; what is predicted before is checked on the way.

    The next state is given where the episode has one.
    """
    beliefs = []
    last = set((np.cumsum(demos.episode_lengths) - 1).tolist())
    for row in range(demos.num_steps):
        state = {name: values[row] for name, values in demos.state_variables.items()}
        if row in demos.episode_starts:
            tracker.reset()
        predicted = tracker.predict(state)
        following = None
        if row not in last:
            following = {name: values[row + 1] for name, values in demos.state_variables.items()}
        belief = tracker.update(state, demos.actions[row], demos.latents[row], following)
        for agent in demos.agents:
            assert np.array_equal(predicted[agent], belief.expected_actions[agent])
            if row not in demos.episode_starts and beliefs[-1].next_actions is not None:
                assert np.array_equal(predicted[agent], beliefs[-1].next_actions[agent])
        assert belief.step == demos.step_in_episode[row]
        beliefs.append(belief)
    return beliefs


def assert_follows_batch(
    posterior: btil.TeamPosterior, demos: btil.Demonstrations, atol: float, **options: Any
) -> None:
    beliefs = follow(posterior.tracker(**options), demos)
    filtered = posterior.filter(demos, **options)
    predicted = posterior.predict_actions(demos, **options)
    for agent in demos.agents:
        tracked = np.stack([belief.latents[agent] for belief in beliefs])
        expected = np.stack([belief.expected_actions[agent] for belief in beliefs])
        np.testing.assert_allclose(tracked, filtered[agent], rtol=0, atol=atol)
        np.testing.assert_allclose(expected, predicted[agent], rtol=0, atol=atol)


@pytest.mark.parametrize("options", [{}, {"estimate": "map"}], ids=str)
def test_equal_to_the_batch(posterior: btil.TeamPosterior, options: dict[str, Any]) -> None:
    # Labels, one-step episodes, contexts that training never saw.
    assert_follows_batch(posterior, random_demos(9, (4, 1, 3)), 1e-12, **options)


def test_equal_to_the_batch_over_draws(posterior: btil.TeamPosterior) -> None:
    # Where training has been; elsewhere both draw from the prior.
    assert_follows_batch(posterior, posterior.demos, 1e-12, num_draws=3, seed=5)


def test_equal_to_the_batch_in_single_precision() -> None:
    demos = random_demos(0, (5, 1, 5, 4), labelled=0.6)
    single = btil.fit(rich_model(), demos, dtype="float32", progress=False)
    assert_follows_batch(single, random_demos(9, (4, 1, 3)), 2e-6)


FAMILIES = {
    "shared": btil.TeamModel(
        policy=btil.Shared(btil.DirichletCPT(0.8, {"ann": ("x",), "bob": ("y",)})),
        transition=btil.Shared(btil.DirichletCPT(1.1, ("own_action", "other_actions"))),
        initial=btil.DirichletCPT(1.0),
    ),
    "known": btil.TeamModel(
        policy=btil.KnownCPT(
            np.array([[[0.5, 0.5], [0.2, 0.8]], [[1.0, 0.0], [0.3, 0.7]]]), ("x",)
        ),
        transition=btil.KnownCPT([[0.9, 0.1], [0.0, 1.0]]),
        initial=btil.KnownCPT([0.75, 0.25]),
    ),
    "function": btil.TeamModel(
        policy=btil.KnownCPT(
            lambda contexts: np.stack(
                [
                    [[0.9, 0.1], [0.2 + 0.1 * state, 0.8 - 0.1 * state]]
                    for state in contexts["state"]
                ]
            ),
            ("state",),
        ),
        transition=btil.StaticCPT(),
    ),
    "mixed": btil.TeamModel(
        policy={"ann": btil.DirichletCPT(0.5, ("y",)), "bob": btil.UniformCPT()},
        transition={
            "ann": btil.DirichletCPT(0.7, ("next_state",)),
            "bob": btil.DirichletCPT(0.7, ("state", "action_ann")),
        },
        initial={"ann": btil.DirichletCPT(0.7, ("state",)), "bob": btil.UniformCPT()},
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_equal_to_the_batch_for_every_family(name: str) -> None:
    sizes = ((2, 2), (2, 2), (2, 2))
    posterior = btil.fit(
        FAMILIES[name], random_demos(0, (3, 1, 4), *sizes), dtype="float64", progress=False
    )
    assert_follows_batch(posterior, random_demos(4, (4, 1, 2), *sizes), 1e-12)
