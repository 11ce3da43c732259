"""Moves that are summed over an action nobody saw: uses of cells by hand, on three steps."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import btil
from btil.inference.mean_field import step_forms
from btil.messages import smoother as messages
from btil.messages.layout import LaneIndex, UnseenRows
from btil.messages.scaled import local_step
from btil.models.team import bind

pytestmark = pytest.mark.usefixtures("x64")

ACTIONS = 3
# The action of step 0 was not seen; the move into step 1 reads it, by these rows of the transition.
ARRIVALS = (2, 0, 3)


def index() -> LaneIndex:
    """Two latents; 2, 4 and 1 rows of policy, transition and initial."""
    real = jnp.ones((3, 1), bool)
    return LaneIndex(
        policy=jnp.asarray([[2 * ACTIONS], [2], [ACTIONS]], jnp.int32),
        transition=jnp.asarray([[4], [4 + 1 + 1], [1]], jnp.int32),
        label=jnp.full((3, 1), -1, jnp.int32),
        start=jnp.asarray([[True], [False], [False]]),
        real=real,
        unseen=UnseenRows(jnp.asarray([1], jnp.int32), jnp.asarray([ARRIVALS], jnp.int32)),
    )


def tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    return tuple(
        generator.dirichlet(np.ones(size), (rows, *latents))
        for rows, latents, size in ((2, (2,), ACTIONS), (4, (2,), 2), (1, (), 2))
    )


@pytest.mark.parametrize("form", ["smoothed", "logs", "scaled"])
def test_uses_are_sums_over_paths_and_actions(form: str) -> None:
    policy, transition, initial = tables()
    used = [np.zeros_like(table) for table in (policy, transition, initial)]
    for x, y, z, action in itertools.product(range(2), range(2), range(2), range(ACTIONS)):
        arrival = ARRIVALS[action]
        weight = initial[0, x] * policy[1, x, action] * transition[arrival, x, y]
        weight *= policy[0, y, 2] * transition[1, y, z] * policy[1, z, 0]
        for cell in ((1, x, action), (0, y, 2), (1, z, 0)):
            used[0][cell] += weight
        used[1][arrival, x, y] += weight
        used[1][1, y, z] += weight
        used[2][0, x] += weight
    total = used[2].sum()
    logs = [jnp.log(table) for table in (policy, transition, initial)]

    @jax.jit
    def counts(logs: list[jax.Array], index: LaneIndex) -> messages.Counts:
        if form != "smoothed":
            return local_step(*logs, index, scaled=form == "scaled")[0]
        filtered = messages.filter_lanes(messages.potentials(*logs, index))
        return messages.expected_counts(messages.smooth(filtered, index.start), index, *logs)

    for found, expected in zip(counts(logs, index()), used, strict=True):
        np.testing.assert_allclose(found, expected / total, rtol=1e-10, atol=1e-13)


def test_a_drawn_action_is_that_of_the_step_before_the_move() -> None:
    # In latent 0 the action is 2, in latent 1 it is 1.
    policy = np.full((2, 2, ACTIONS), -np.inf)
    policy[:, 0, 2] = policy[:, 1, 1] = 0.0
    transition = np.log(tables()[1])
    for before, action in ((0, 2), (1, 1)):
        path = jnp.asarray([[before], [0], [1]], jnp.int32)
        drawn = messages.with_drawn_actions(
            jax.random.key(0), path, index(), jnp.asarray(policy), jnp.asarray(transition), 1
        )
        assert drawn.unseen is None
        assert drawn.policy[:, 0].tolist() == [ACTIONS + action, 2, ACTIONS]
        assert drawn.transition[:, 0].tolist() == [4, ARRIVALS[action], 1]


def test_moves_summed_over_an_action_are_as_small_as_its_probability() -> None:
    """By which it is decided whether scaled messages will do."""
    model = btil.TeamModel(
        policy=btil.DirichletCPT(0.02),  # E[log] of a cell is -50
        transition=btil.DirichletCPT(1.0, parents=("own_action",)),
        initial=btil.DirichletCPT(1.0),
    )
    for action, scaled in ((1, True), (-1, False)):
        demos = btil.Demonstrations(
            [0, 0, 0], {"ann": [0, action, 1]}, num_latents=2, num_actions=2, missing="allow"
        )
        bound = bind(model, demos)
        counts = {name: np.zeros(table.shape) for name, table in bound.learned.items()}
        (chain,) = step_forms(bound, counts, 3.0, np.dtype(np.float32))
        assert chain.scaled == scaled
