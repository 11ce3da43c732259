"""A tracker says at each step what the batch says of the recording, and refuses what is wrong."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from teams import hmm_demos, made_by_hand, random_demos, rich_model, team_with_columns

import btil
from btil.inference.result import (
    DirichletRows,
    DrawnParameters,
    DrawnRows,
    MatrixNormalChannel,
)
from btil.models.team import bind
from btil.posterior import tracker as module
from btil.posterior.tracker import Belief, Tracker


@pytest.fixture(scope="module")
def posterior() -> btil.TeamPosterior:
    """A fit of two agents of different sizes, in double precision."""
    demos = random_demos(0, (5, 1, 5, 4), labelled=0.6)
    return btil.fit(rich_model(), demos, dtype="float64", progress=False)


def follow(tracker: Tracker, demos: btil.Demonstrations) -> list[Belief]:
    """Beliefs at every step of the demonstrations; what is predicted before is checked on the way.

    The next state is given where the episode has one.
    """
    beliefs: list[Belief] = []
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
    filtered = posterior.filter(demos, use_labels=True, **options)
    predicted = posterior.predict_actions(demos, use_labels=True, **options)
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


def test_equal_to_the_batch_in_single_precision(posterior: btil.TeamPosterior) -> None:
    single = replace(posterior, dtype=np.dtype(np.float32))
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


@pytest.mark.parametrize("num_draws", [None, 3])
def test_equal_to_the_batch_where_the_step_before_is_read(num_draws: int | None) -> None:
    model = btil.TeamModel(
        policy={
            "ann": btil.DirichletCPT(0.7, ("x", "previous_action_bob", "previous_y")),
            "bob": btil.DirichletCPT(0.7, ("previous_own_action",)),
        },
        transition=btil.DirichletCPT(0.9, ("y", "other_actions", "next_x")),
    )
    demos = random_demos(9, (4, 1, 3))
    generator = np.random.default_rng(0)
    rows = {
        site: DirichletRows(generator.uniform(0.5, 5, table.shape))
        for site, table in bind(model, demos).learned.items()
    }
    posterior = made_by_hand(model, demos, rows=rows)
    assert_follows_batch(posterior, demos, 1e-12, num_draws=num_draws)


def assert_same(one: Any, other: Any) -> None:
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[agent], other[agent]) for agent in one)


def test_rows_drawn_for_contexts_never_seen_do_not_depend_on_when(
    posterior: btil.TeamPosterior, monkeypatch: pytest.MonkeyPatch
) -> None:
    demos = random_demos(9, (4, 1, 3))
    usual = follow(posterior.tracker(num_draws=3), demos)
    monkeypatch.setattr(module, "REMEMBERED_CONTEXTS", 1)
    backwards = follow(posterior.tracker(num_draws=3), demos.select([2, 1, 0]))
    by_episode = [usual[0:4], usual[4:5], usual[5:8]]
    for one, other in zip([b for e in by_episode[::-1] for b in e], backwards, strict=True):
        assert_same(one.latents, other.latents)


def test_rows_drawn_for_contexts_never_seen_follow_the_seed() -> None:
    demos = btil.Demonstrations([0, 1], [0, 1], num_states=3, num_latents=2)
    posterior = made_by_hand(btil.TeamModel(), demos)
    first, again, other = (
        posterior.tracker(num_draws=2, seed=seed).predict(2)["agent_0"] for seed in (3, 3, 4)
    )
    assert np.array_equal(first, again)
    assert not np.isclose(first, other).any()
    # Members whose tables are alike have draws of their own.
    both = btil.Demonstrations([0, 1], [[0, 1], [1, 0]], num_states=3, num_latents=2)
    told = made_by_hand(btil.TeamModel(), both).tracker(num_draws=2, seed=3).predict(2)
    assert not np.isclose(told["agent_0"], told["agent_1"]).any()


def test_estimates_are_those_asked_for_where_training_never_was() -> None:
    """By a tracker, of a recording, and of members who act: mean or mode of the prior's rows."""
    demos = btil.Demonstrations([0, 1], [0, 1], num_states=3, num_latents=2)
    policy = btil.DirichletCPT([3.0, 2.0], ("state",))
    posterior = made_by_hand(btil.TeamModel(policy, btil.StaticCPT(), btil.UniformCPT()), demos)
    new = btil.Demonstrations([2, 2], [0, 1], num_states=3, num_latents=2)
    state, number = {"state": np.array([2])}, np.array([0])
    for estimate, row in (("mean", [3 / 5, 2 / 5]), ("map", [2 / 3, 1 / 3])):
        told = posterior.tracker(estimate).predict(2)["agent_0"]
        np.testing.assert_allclose(told, row)
        predicted = posterior.predict_actions(new, estimate=estimate)["agent_0"]
        np.testing.assert_allclose(predicted, [row, row], rtol=1e-6)
        likelihood = posterior.log_likelihood(new, estimate=estimate)
        np.testing.assert_allclose(likelihood, np.log(row).sum(), rtol=1e-6)
        actor = posterior.actors(estimate)["agent_0"]
        np.testing.assert_allclose(actor.policy(state, number, number), [row])


def test_each_draw_has_its_own_parameters_where_training_never_was() -> None:
    demos = btil.Demonstrations([0, 1], [0, 1], num_states=3, num_latents=2)
    model = btil.TeamModel(
        policy=btil.HierarchicalDirichletCPT(1e6, parents=("state",)), transition=btil.StaticCPT()
    )
    # Every second draw nearly always takes action 0, the others action 1; rows are as their base.
    bases = np.array([[[0.9, 0.1]] * 2, [[0.1, 0.9]] * 2] * 20)[None]
    posterior = made_by_hand(
        model,
        demos,
        rows={"policy_agent_0": DrawnRows(np.stack([bases, bases], 2))},
        parameters={"policy_agent_0_base": DrawnParameters(bases)},
    )
    expected = posterior.sample(25, seed=2)["policy_agent_0_base"].mean((0, 1))
    assert 0.3 < expected[0] < 0.7
    tracker = posterior.tracker(num_draws=25, seed=2)
    for state in (0, 2):
        np.testing.assert_allclose(tracker.predict(state)["agent_0"], expected, atol=0.01)


# ------------------------------------------------------------------ what may be given


@pytest.fixture(scope="module")
def named() -> btil.TeamPosterior:
    """A team whose states, actions and latents have names; no table reads the weather."""
    demos = btil.Demonstrations(
        states={
            "room": ["hall", "attic", "hall", "hall"],
            "weather": [0, 1, 2, 0],
            "lamp": [0, 1, 1, 0],
        },
        actions={"ann": ["go", "go", "stay", "go"], "bob": [0, 1, 2, 1]},
        latents={"ann": ["lost", None, "found", None], "bob": [1, 0, -1, -1]},
        state_names={"room": ["hall", "attic"]},
    )
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.0, ("room",)),
        transition={
            "ann": btil.DirichletCPT(1.0, ("action_bob", "next_lamp")),
            "bob": btil.DirichletCPT(1.0, ("own_action",)),
        },
    )
    return btil.fit(model, demos, progress=False)


@pytest.mark.parametrize(
    ("state", "actions", "labels"),
    [
        ({"room": "attic", "lamp": 1}, {"bob": 2, "ann": "stay"}, {"bob": 1}),
        ({"weather": 2, "room": 1, "lamp": 1}, [1, 2], [-1, 1]),
        (("attic", 2, np.int64(1)), ("stay", 2), (None, np.int8(1))),
        (np.array([1, 2, 1]), np.array([1, 2]), np.array([-1, 1])),
        (1 * 6 + 2 * 2 + 1, np.array([1, 2]), {"ann": None, "bob": 1}),
        (np.array(11), {"ann": 1, "bob": np.array(2)}, {"bob": 1, "ann": -1}),
    ],
    ids=range(6),
)
def test_states_and_actions_in_any_form(
    named: btil.TeamPosterior, state: Any, actions: Any, labels: Any
) -> None:
    tracker, plain = named.tracker(), named.tracker()
    for other in (tracker, plain):
        other.update([0, 0, 0], [0, 0])
    expected = plain.update({"room": 1, "lamp": 1}, [1, 2], [-1, 1], {"room": 0, "lamp": 1})
    belief = tracker.update(state, actions, labels, next_state=("hall", 0, 1))
    assert_same(belief.latents, expected.latents)
    assert_same(belief.next_actions, expected.next_actions)
    assert belief.latents["bob"].tolist() == [0, 1]
    assert_same(tracker.predict(state), plain.predict([1, 0, 1]))


def test_an_own_action_that_nobody_saw_leaves_the_next_ones_told() -> None:
    demos = hmm_demos([0, 1, 1, 0], [0, 1, 0, 1])
    model = btil.TeamModel(btil.DirichletCPT(1.0), btil.DirichletCPT(1.0, ("own_action",)))
    belief = btil.fit(model, demos, "exact", progress=False).tracker().update(0, [None])
    assert belief.next_actions is not None


GOOD = ({"room": 0, "lamp": 0}, {"ann": 0, "bob": 0}, None, None)


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, {"room": 0}, "state: no value for lamp"),
        (0, {"room": 0, "lamp": 0, "sky": 1}, "state: unknown state variable sky; there are room"),
        (0, {"room": 2, "lamp": 0}, r"state: room is 2; allowed are 0..1 \(hall, attic\)"),
        (0, {"room": "cave", "lamp": 0}, "state: room is 'cave'"),
        (0, {"room": 0, "lamp": -1}, "state: lamp is -1; allowed are 0..1"),
        (0, {"room": 0, "lamp": 0.0}, "state: lamp is 0.0"),
        (0, {"room": 0, "lamp": None}, "state: lamp is None"),
        (0, {"room": 0, "lamp": 0, "weather": 3}, "state: weather is 3; allowed are 0..2"),
        (0, [0, 0], r"state: 2 values for 3 state variables \(room, weather, lamp\)"),
        (0, 12, "state: the joint state is 12; allowed are 0..11"),
        (1, {"ann": 0}, "actions: none for bob; give None where it was not observed"),
        (1, {"ann": 0, "bob": 3}, "actions: bob is 3; allowed are 0..2"),
        (1, {"ann": 0, "bob": -1}, "actions: bob is -1"),
        (1, {"ann": 0, "bob": 0, "cat": 0}, "actions: unknown agent cat; the agents are ann, bob"),
        (1, [0], r"actions: 1 values for 2 agents \(ann, bob\)"),
        (1, 0, "actions: 1 values for 2 agents"),
        (2, {"ann": "sad"}, r"labels: ann is 'sad'; allowed are 0..1 \(found, lost\)"),
        (2, {"bob": 2}, "labels: bob is 2; allowed are 0..1"),
        (2, {"cat": 0}, "labels: unknown agent cat"),
        (3, {"room": 0}, "next_state: no value for lamp"),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(
    named: btil.TeamPosterior, place: int, value: Any, message: str
) -> None:
    tracker = named.tracker()
    tracker.update(*GOOD)
    before = tracker.state
    given = list(GOOD)
    given[place] = value
    with pytest.raises(ValueError, match=message):
        tracker.update(*given)
    after = tracker.state
    assert after.num_steps == 1
    assert_same(before.log_beliefs, after.log_beliefs)
    assert (after.states.tolist(), after.actions.tolist()) == ([0, -1, 0], [0, 0])


def test_a_state_that_the_first_latent_alone_depends_on_is_needed() -> None:
    demos = btil.Demonstrations(
        {"room": [0, 1], "lamp": [0, 1]}, {"ann": [0, 1]}, {"ann": [0, 1]}, episodes=[0, 1]
    )
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.0),
        transition=btil.DirichletCPT(1.0),
        initial=btil.DirichletCPT(1.0, ("room",)),
    )
    tracker = made_by_hand(model, demos).tracker()
    with pytest.raises(ValueError, match="state: no value for room"):
        tracker.update({"lamp": 0}, {"ann": 0})
    assert tracker.update({"room": 1}, {"ann": 0}).step == 0


def test_wrong_questions_are_refused(named: btil.TeamPosterior) -> None:
    with pytest.raises(ValueError, match="estimate must be 'mean' or 'map', got 'mode'"):
        named.tracker(estimate="mode")
    with pytest.raises(ValueError, match="num_draws must be a whole number of at least 1, got 0"):
        named.tracker(num_draws=0)
    with pytest.raises(ValueError, match="state: the joint state is 99"):
        named.tracker().predict(99)


def two_roles() -> btil.TeamModel:
    """bob never takes action 2, and who once had latent 0 keeps it."""
    return btil.TeamModel(
        policy={
            "ann": btil.UniformCPT(),
            "bob": btil.KnownCPT([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]),
        },
        transition=btil.KnownCPT([[1.0, 0.0], [0.5, 0.5]]),
    )


def test_the_impossible_is_named_and_changes_nothing() -> None:
    demos = btil.Demonstrations(
        np.zeros(3, int), {"ann": [0, 1, 2], "bob": [0, 1, 0]}, num_actions=3, num_latents=2
    )
    tracker = btil.fit(two_roles(), demos, progress=False).tracker()
    tracker.update(0, [1, 0], {"bob": 0})
    with pytest.raises(ValueError, match="agent bob, step 1: action 2 has probability 0 given"):
        tracker.update(0, [0, 2])
    with pytest.raises(ValueError, match="agent bob, step 1: action 1 has probability 0 given"):
        tracker.update(0, [0, 1])
    with pytest.raises(ValueError, match="bob, step 1: action 0 with label 1 has probability 0"):
        tracker.update(0, [0, 0], [None, 1])
    with pytest.raises(ValueError, match="agent bob, step 1: label 1 has probability 0"):
        tracker.update(0, [0, None], [None, 1])
    belief = tracker.update(0, [0, 0])
    assert belief.step == 1
    assert belief.latents["bob"].tolist() == [1, 0]


# ------------------------------------------------------------------ what may be missing


def test_an_action_not_seen_tells_nothing() -> None:
    """By hand: the belief moves on by the transition alone."""
    model = btil.TeamModel(
        policy=btil.KnownCPT([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]]),
        transition=btil.KnownCPT([[0.9, 0.1], [0.2, 0.8]]),
        initial=btil.KnownCPT([0.6, 0.4]),
    )
    tracker = btil.fit(model, hmm_demos([0, 1, 2]), progress=False).tracker()
    first = tracker.update(0, None)
    np.testing.assert_allclose(first.latents["agent_0"], [0.6, 0.4], atol=1e-15)
    np.testing.assert_allclose(first.expected_actions["agent_0"], [0.54, 0.24, 0.22], atol=1e-15)
    second = tracker.update(0, [None])
    np.testing.assert_allclose(second.latents["agent_0"], [0.62, 0.38], atol=1e-15)
    # No table reads the state, so what comes next is known at once.
    later = np.array([0.62 * 0.9 + 0.38 * 0.2, 0.62 * 0.1 + 0.38 * 0.8])
    expected = later @ np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    np.testing.assert_allclose(second.next_actions["agent_0"], expected, atol=1e-15)
    np.testing.assert_allclose(tracker.predict(0)["agent_0"], expected, atol=1e-15)


def test_a_transition_that_reads_an_action_not_seen_is_refused(named: btil.TeamPosterior) -> None:
    tracker = named.tracker()
    belief = tracker.update({"room": 0, "lamp": 0}, {"ann": 0, "bob": None})
    assert belief.next_actions is None
    message = "agent ann, step 1: its transition reads the action of bob at step 0, which was not"
    with pytest.raises(ValueError, match=message):
        tracker.predict(GOOD[0])
    with pytest.raises(ValueError, match=message):
        tracker.update(*GOOD)
    assert tracker.num_steps == 1
    tracker.reset()
    tracker.update({"room": 0, "lamp": 0}, {"ann": 0, "bob": None})
    tracker.reset()
    assert tracker.update(*GOOD).step == 0


def test_next_actions_need_the_next_state_only_where_it_is_read(
    posterior: btil.TeamPosterior,
) -> None:
    assert posterior.tracker().update([0, 0], [0, 0]).next_actions is None
    assert posterior.tracker().update([0, 0], [0, 0], None, [1, 0]).next_actions is not None


# ------------------------------------------------------------------ state


@pytest.mark.parametrize("num_draws", [None, 3])
def test_put_aside_and_taken_up_again(posterior: btil.TeamPosterior, num_draws: int | None) -> None:
    demos = posterior.demos
    tracker, other = posterior.tracker(num_draws=num_draws), posterior.tracker(num_draws=num_draws)
    states = np.stack(list(demos.state_variables.values()), 1)
    for row in range(3):
        tracker.update(states[row], demos.actions[row])
    kept = tracker.state
    assert kept.log_beliefs["bob"].shape == (num_draws or 1, 3)
    expected = tracker.update(states[3], demos.actions[3])
    other.state = kept
    assert other.num_steps == 3
    assert_same(other.update(states[3], demos.actions[3]).latents, expected.latents)
    assert repr(other) == repr(tracker)
    fresh = posterior.tracker(num_draws=num_draws).state
    other.state = fresh
    assert repr(other) == "Tracker(no step seen)"


def test_a_state_of_another_kind_is_refused(
    posterior: btil.TeamPosterior, named: btil.TeamPosterior
) -> None:
    tracker = posterior.tracker()
    tracker.update([0, 1], [1, 1])
    state = tracker.state
    wrong = [
        state._replace(log_beliefs={"ann": state.log_beliefs["ann"]}),
        state._replace(num_steps=np.array(0)),
        state._replace(actions=state.actions[:1]),
        state._replace(states=np.array([0, 2])),
        named.tracker().state,
    ]
    for one in wrong:
        with pytest.raises(ValueError, match="state: "):
            tracker.state = one
    with pytest.raises(ValueError, match="state: "):
        posterior.tracker(num_draws=2).state = state
    assert_same(tracker.state.log_beliefs, state.log_beliefs)


def test_a_belief_outlives_thousands_of_steps() -> None:
    """What 1,000 steps speak against is unlikely, not impossible."""
    model = btil.TeamModel(
        policy=btil.KnownCPT([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1]]), transition=btil.StaticCPT()
    )
    tracker = btil.fit(model, hmm_demos([0, 1, 2]), progress=False).tracker()
    for _ in range(1000):
        belief = tracker.update(0, 0)
    assert belief.latents["agent_0"].tolist() == [1, 0]
    assert tracker.update(0, 2).latents["agent_0"].tolist() == [0, 1]


# ------------------------------------------------------------------ columns, and who is away


COLUMNS = {"ann_v": 0.25, "bob_v": -0.5}


def test_columns_are_numbers_or_not_seen() -> None:
    tracker, plain = team_with_columns().tracker(), team_with_columns().tracker()
    expected = plain.update({"x": 1}, [0, 1], continuous=COLUMNS).latents
    given = {"ann_v": np.float32(0.25), "bob_v": np.float64(-0.5), "heat": 3.0}
    assert_same(tracker.update({"x": 1}, [0, 1], continuous=given).latents, expected)
    unseen = [
        fresh.update({"x": 1}, [0, 1], continuous=COLUMNS | {"ann_v": nothing}).latents
        for nothing in (None, np.nan)
        for fresh in [team_with_columns().tracker()]
    ]
    assert_same(*unseen)
    assert np.array_equal(unseen[0]["bob"], expected["bob"])
    # By the action alone: 0.7 times 0.9 to 0.3 times 0.3.
    np.testing.assert_allclose(unseen[0]["ann"], np.array([0.63, 0.09]) / 0.72)
    before = tracker.state
    for wrong, told in (
        (None, "continuous: no value for ann_v, bob_v; give None where it was not seen"),
        ({"ann_v": 1.0}, "continuous: no value for bob_v; give None"),
        (COLUMNS | {"ann_v": "1"}, "continuous: ann_v is '1'; allowed are numbers, and None"),
        (COLUMNS | {"ann_v": True}, "continuous: ann_v is True; allowed are numbers"),
        (COLUMNS | {"bob_v": np.inf}, "continuous: bob_v is inf; allowed are finite numbers"),
    ):
        with pytest.raises(ValueError, match=told):
            tracker.update({"x": 1}, [0, 1], continuous=wrong)
    after = tracker.state
    assert_same(before.log_beliefs, after.log_beliefs)
    assert after.continuous == before.continuous == COLUMNS


def test_what_columns_say_of_the_impossible_is_told() -> None:
    tracker = team_with_columns().tracker()
    told = "agent ann, step 0: action 0 with what else was measured with the weights of latents"
    far = {"ann_v": 1e200, "bob_v": 0.0}
    with pytest.raises(ValueError, match=told), np.errstate(over="ignore"):
        tracker.update({"x": 1}, [0, 1], continuous=far, latent_weights={"ann": [1, 2]})


def test_columns_of_the_step_before_are_remembered_until_the_episode_ends() -> None:
    """A column that follows its own value before; of the first step nothing is known."""
    demos = btil.Demonstrations(
        {"x": [0, 0, 0]}, {"ann": [0, 1, 0]}, num_latents=2, continuous={"v": [0.0, 1.0, 3.0]}
    )
    emission = btil.LinearNormalEmission(("v",), ("previous_v",), noise=1.0, location=0.0)
    model = btil.TeamModel(
        btil.UniformCPT(), btil.KnownCPT([[0.5, 0.5]] * 2), emissions={"ann": emission}
    )
    # Latent 0 goes up by one, latent 1 goes down, with a deviation of one.
    normals = MatrixNormalChannel(
        np.array([[[[1.0], [1.0]], [[-1.0], [1.0]]]]), np.broadcast_to(np.eye(2), (1, 2, 2, 2)),
        np.full((1, 2, 1, 1), 5.0), np.full((1, 2), 7.0),
    )  # fmt: skip
    posterior = made_by_hand(model, demos, rows={}, channels={"emission_ann": normals})

    def odds(belief: Belief) -> float:
        return float(np.log(belief.latents["ann"][0] / belief.latents["ann"][1]))

    tracker = posterior.tracker()
    assert odds(tracker.update(0, 0, continuous={"v": 5.0})) == pytest.approx(0)
    # Of normals at 6 and 4 with deviation 1 the log odds of y are 2 (y - 5).
    assert odds(tracker.update(0, 0, continuous={"v": 5.5})) == pytest.approx(1)
    kept, other = tracker.state, posterior.tracker()
    assert kept.continuous == {"v": 5.5}
    other.state = kept
    for one in (tracker, other):
        assert odds(one.update(0, 0, continuous={"v": 5.0})) == pytest.approx(-1)
    assert odds(tracker.update(0, 0, continuous={"v": None})) == pytest.approx(0)
    assert odds(tracker.update(0, 0, continuous={"v": 9.0})) == pytest.approx(0)
    tracker.reset()
    assert odds(tracker.update(0, 0, continuous={"v": 7.0})) == pytest.approx(0)


def test_who_is_away_has_nothing_and_begins_anew() -> None:
    tracker, plain = team_with_columns().tracker(), team_with_columns().tracker()
    tracker.update({"x": 1}, [0, 1], continuous=COLUMNS)
    plain.update({"x": 1}, [0, 1], continuous=COLUMNS)
    gone = tracker.update({"x": 0}, {"ann": 1}, continuous={"ann_v": 0.5}, away="bob")
    there = plain.update({"x": 0}, [1, 0], continuous={"ann_v": 0.5, "bob_v": 0.0})
    assert np.array_equal(gone.latents["ann"], there.latents["ann"])
    for told in (gone.latents, gone.expected_actions, gone.next_actions):
        assert np.isnan(told["bob"]).all()
        assert told["bob"].shape == (2,)
    assert np.isnan(tracker.predict({"x": 0}, away=["bob"])["bob"]).all()
    assert tracker.state.actions.tolist() == [1, -2]
    assert set(tracker.state.log_beliefs) == {"ann"}
    assert repr(tracker).count("(") == 2  # of ann alone
    kept, other = tracker.state, team_with_columns().tracker()
    other.state = kept
    fresh = team_with_columns().tracker()
    first = fresh.update({"x": 1}, [0, 1], continuous=COLUMNS)
    for one in (tracker, other):
        back = one.update({"x": 1}, [0, 1], continuous=COLUMNS)
        assert np.array_equal(back.latents["bob"], first.latents["bob"])
        assert not np.allclose(back.latents["ann"], first.latents["ann"])
    for changes, told in (
        ({"away": ["eve"]}, "away: unknown agent 'eve'; the agents are ann, bob"),
        ({"labels": {"bob": 1}}, "labels: bob is away, so it has no latent"),
        ({"latent_weights": {"bob": [1, 2]}}, "latent_weights: bob is away, so it has no latent"),
    ):
        asked = {"continuous": {"ann_v": 0.5}, "away": ["bob"]} | changes
        with pytest.raises(ValueError, match=told):
            fresh.update({"x": 0}, {"ann": 1}, **asked)
    assert fresh.num_steps == 1


def test_states_that_speak_of_who_is_away_may_be_left_out() -> None:
    demos = btil.Demonstrations(
        {"bob_at": [0, 1, 0], "x": [0, 1, 1]}, {"ann": [0, 1, 0], "bob": [1, 0, -1]},
        num_latents=2, num_actions=2, present={"bob": [True, True, False]},
    )  # fmt: skip
    posterior = made_by_hand(btil.TeamModel(), demos)
    tracker = posterior.tracker()
    tracker.update({"bob_at": 0, "x": 0}, [0, 1])
    tracker.update({"x": 1}, {"ann": 1}, away=["bob"])
    assert tracker.state.states.tolist() == [-2, 1]
    with pytest.raises(ValueError, match="state: where somebody is away, a mapping"):
        tracker.update([0, 1], {"ann": 1}, away=["bob"])
    with pytest.raises(ValueError, match="state: no value for x"):
        tracker.update({"bob_at": 0}, {"ann": 1}, away=["bob"])
    # What stands there all the same is left out.
    tracker.update({"bob_at": 1, "x": 0}, {"ann": 1, "bob": 1}, away=["bob"])
    assert (tracker.state.states.tolist(), tracker.state.actions.tolist()) == ([-2, 0], [1, -2])


def test_what_columns_say_does_not_depend_on_what_is_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [(x, column) for x in (0, 1, 3, 0) for column in (0.5, None)]

    def told() -> list[Any]:
        tracker = team_with_columns().tracker(num_draws=2, seed=1)
        return [
            tracker.update({"x": x}, [0, 1], continuous={"ann_v": v, "bob_v": 0.25}).latents
            for x, v in steps
        ]

    usual = told()
    monkeypatch.setattr(module, "REMEMBERED_CONTEXTS", 1)
    for one, other in zip(usual, told(), strict=True):
        assert_same(one, other)
