"""Recordings as they are: what nobody saw, who was away, unsure labels, rewards, measures."""

import numpy as np
import pandas as pd
import pytest

import btil
from btil.demonstrations.data import refuse_gaps
from btil.demonstrations.quantities import says_away

FILES = ["team.csv", "team.parquet", "team.npz"]


def recorded(**changes):
    """Three members; one leaves, an action and a state that nobody saw, an unsure coder."""
    arguments = {
        "states": {"zone": [0, 1, -1, 0, 2, 1], "ann_cell": [3, 0, 1, -1, -1, 2]},
        "actions": {"ann": [0, 1, 1, 9, 9, 0], "bob": [1, -1, 0, 1, 0, 1]},
        "latents": {"ann": ["lift", None, "lift|wait", None, None, "carry"]},
        "episodes": ["x", "x", "x", "y", "y", "y"],
        "num_actions": {"ann": 2, "bob": 3},
        "num_latents": {"bob": 2},
        "latent_names": {"ann": ["carry", "lift", "wait"]},
        "latent_weights": {"bob": [[1, 1], [0.2, 0.7], [1, 0], [1, 1], [1, 1], [3, 1]]},
        "present": {"ann": [1, 1, 1, 0, 0, 1]},
        "rewards": [0.0, 1.5, -2.0, 1 / 3, 0.0, 1e-17],
        "continuous": {"ann_x": [0.1, np.nan, 1e300, -3.0, 2.0, 1 / 3]},
        "missing": "allow",
    }
    return btil.Demonstrations(**arguments | changes)


def test_weights_of_one_who_is_away_are_not_looked_at():
    def given(away):
        return btil.Demonstrations(
            [0] * 4, [0] * 4, present=[[step not in away] for step in range(4)], num_latents=2,
            latent_weights={"agent_0": [[0.5, 1], [np.nan, -1], [0, 0], [1, 0]]},
        )  # fmt: skip

    expected = [[0.5, 1], [1, 1], [1, 1], [1, 0]]
    np.testing.assert_array_equal(given({1, 2}).latent_weights["agent_0"], expected)
    with pytest.raises(ValueError, match=r"latent_weights of agent_0: .*step 1: latent 0: nan"):
        given({2})
    with pytest.raises(ValueError, match=r"latent_weights of agent_0: .*step 2: all weights are 0"):
        given({1})


def test_what_the_fields_hold():
    demos = recorded()
    # What the arrays hold where ann is away is not looked at: 9 is no action of hers.
    np.testing.assert_array_equal(demos.actions[:, 0], [0, 1, 1, -1, -1, 0])
    np.testing.assert_array_equal(demos.actions[:, 1], [1, -1, 0, 1, 0, 1])
    np.testing.assert_array_equal(demos.latents[:, 0], [1, -1, -1, -1, -1, 0])
    np.testing.assert_array_equal(demos.latent_weights["ann"][2], [0, 1, 1])
    np.testing.assert_array_equal(demos.latent_weights["ann"][[0, 1, 3, 4, 5]], 1)
    assert demos.unseen
    assert demos.away
    np.testing.assert_array_equal(demos.stays[0], [0, 5])
    np.testing.assert_array_equal(demos.stays[1], [0, 3])
    assert not demos.without_labels().latent_weights
    assert demos.without_labels([1]).latent_weights["bob"][1, 0] == 0.2
    assert demos.without_labels([1]).latent_weights["bob"][5, 0] == 1


@pytest.mark.parametrize("ending", [".csv", ".parquet", ".npz"])
def test_what_is_said_of_one_who_is_away_is_doubted(tmp_path, ending):
    columns = {
        "zone": [0, 1, 0, 1],
        "action_bob": ["walk", "sit", "walk", ""],
        "latent_bob": ["rest", "", "rest|lift", "lift"],
        "present_bob": ["yes", "no", "no", "no"],
    }
    path = tmp_path / f"away{ending}"
    if ending == ".npz":
        np.savez(path, **{name: np.array(values) for name, values in columns.items()})
    elif ending == ".csv":
        pd.DataFrame(columns).to_csv(path, index=False)
    else:
        pd.DataFrame(columns).to_parquet(path)
    with pytest.warns(btil.DataWarning) as doubts:
        demos = btil.read_demonstrations(path, latent_names=["rest", "lift"])
    action, label = sorted(str(doubt.message) for doubt in doubts)
    assert "action_bob: episode 0, step 1: 'sit' is left out (and in 1 other step)" in action
    assert "latent_bob: episode 0, step 2: 'rest|lift' is left out (and in 1 other step)" in label
    np.testing.assert_array_equal(demos.actions[:, 0], [0, -1, -1, -1])
    # In memory too; a number says nothing, here of an action.
    with pytest.warns(btil.DataWarning, match="latent_ann: episode 'y', step 0: 'carry' is left"):
        recorded(latents={"ann": ["lift", None, "lift|wait", "carry", "nan", "carry"]})


@pytest.mark.parametrize("kind", [int, float, str, object])
def test_a_numbered_label_of_one_who_is_away_is_doubted(kind):
    labels = np.array([[0, 1], [-1, 0], [1, 1], [0, -1], [2, 0]]).astype(kind)
    given = {
        "states": [0] * 5,
        "actions": [[0, 1]] * 5,
        "agents": ["ann", "bob"],
        "episodes": [3, 3, 3, 8, 8],
        "num_actions": 2,
        "num_latents": 3,
        "present": [[1, 1], [1, 0], [0, 0], [1, 0], [0, 1]],
    }
    with pytest.warns(btil.DataWarning) as doubts:
        demos = btil.Demonstrations(latents=labels, **given)
    told = [str(doubt.message) for doubt in doubts]
    shown = [repr(labels.tolist()[2][0]), repr(labels.tolist()[1][1])]
    assert told == [
        f"latent_ann: episode 3, step 2: {shown[0]} is left out (and in 1 other step), because "
        "present_ann says that ann is away; correct the one or the other",
        f"latent_bob: episode 3, step 1: {shown[1]} is left out (and in 1 other step), because "
        "present_bob says that bob is away; correct the one or the other",
    ]
    np.testing.assert_array_equal(demos.latents, [[0, 1], [-1, -1], [-1, -1], [0, -1], [-1, 0]])
    # What says that nothing is known is no label.
    labels = np.array([[0, 1], [-1, 9], [9, -1], [0, -1], [9, 0]]).astype(kind)
    btil.Demonstrations(latents=labels, unknown_labels=[9], **given)


def test_a_label_of_one_who_is_away_is_doubted_once_a_pass_of_a_large_file(tmp_path, monkeypatch):
    monkeypatch.setattr("btil.demonstrations.row_groups.ROW_GROUP_STEPS", 2)
    path = tmp_path / "team.parquet"
    columns = {"zone": 0, "action_ann": [0, 1] * 3, "latent_ann": [0, 1, 0, 1, 1, 0]}
    frame = pd.DataFrame({"episode": [0, 0, 1, 1, 2, 2]} | columns)
    frame.assign(present_ann=[True] * 3 + [False] * 3).to_parquet(path, row_group_size=2)
    file = btil.open_demonstrations(path)
    told = "team.parquet: latent_ann: episode 1, step 1: 1 is left out, because present_ann"
    with pytest.warns(btil.DataWarning, match=told) as doubts:
        parts = list(file)
    assert (len(parts), len(doubts)) == (3, 1)
    with pytest.warns(btil.DataWarning, match="step 1: 1 is left out .and in 2 other steps"):
        assert btil.read_demonstrations(path).latents.ravel().tolist() == [0, 1, 0, -1, -1, -1]


@pytest.mark.parametrize("file", FILES)
def test_files_lose_nothing(tmp_path, file):
    demos = recorded()
    btil.write_demonstrations(demos, tmp_path / file)
    again = btil.read_demonstrations(tmp_path / file)
    assert again == demos
    assert again.continuous["ann_x"][5] == 1 / 3
    own = demos.replace(rewards=np.arange(12.0).reshape(6, 2))
    btil.write_demonstrations(own, tmp_path / file)
    assert btil.read_demonstrations(tmp_path / file) == own


def test_a_file_read_part_by_part_loses_nothing(tmp_path):
    demos = recorded()
    btil.write_demonstrations((demos.select([k]) for k in range(2)), tmp_path / "team.parquet")
    assert btil.open_demonstrations(tmp_path / "team.parquet").read() == demos


def test_equality_sees_every_field():
    demos = recorded()
    assert demos == recorded() == demos.select([0, 1]) == demos.replace()
    changes = {
        "present": {"ann": [1, 1, 1, 0, 1, 1]},
        "rewards": np.zeros(6),
        "continuous": {"ann_x": np.zeros(6)},
        "latent_weights": None,
    }
    for argument, value in changes.items():
        changed = {"actions": {"ann": [0, 1, 1, 0, 0, 0], "bob": [1, -1, 0, 1, 0, 1]}}
        assert recorded(**changed | {argument: value}) != demos, argument


def test_a_foreign_table(tmp_path):
    (tmp_path / "team.csv").write_text(
        "step,zone,action_ann,latent_ann,present_ann,latent_ann[lift],latent_ann[carry],reward,x\n"
        "0,1,go,lift|carry,yes,,,0.5,0.25\n"
        "1,0,,,yes,2,1,0,\n"
        "2,,stay,,no,,,1,3\n"
        "3,1,go,wait,yes,,,1,4.5\n"
    )
    with pytest.raises(ValueError, match=r"zone: episode 0, step 2.*missing='allow'"):
        btil.read_demonstrations(tmp_path / "team.csv", continuous=["x"])
    with pytest.raises(ValueError, match=r"x: episode 0, step 0: .*continuous=\['x'\]"):
        btil.read_demonstrations(tmp_path / "team.csv", missing="allow")
    with pytest.warns(btil.DataWarning, match="step 2: 'stay' is left out, because present_ann"):
        demos = btil.read_demonstrations(tmp_path / "team.csv", missing="allow", continuous=["x"])
    assert demos.latent_names == {"ann": ("carry", "lift", "wait")}
    np.testing.assert_array_equal(demos.latents[:, 0], [-1, -1, -1, 2])
    np.testing.assert_array_equal(
        demos.latent_weights["ann"], [[1, 1, 0], [1, 2, 0], [1, 1, 1], [1, 1, 1]]
    )
    np.testing.assert_array_equal(demos.actions[:, 0], [0, -1, -1, 0])
    np.testing.assert_array_equal(demos.rewards, [0.5, 0, 1, 1])
    np.testing.assert_array_equal(demos.continuous["x"], [0.25, np.nan, 3, 4.5])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"missing": "refuse"}, "zone: episode 'x', step 2.*missing='allow'"),
        ({"missing": "maybe"}, "'refuse' or 'allow' expected"),
        ({"present": {"cleo": [1] * 6}}, "no agent 'cleo'"),
        ({"present": {"ann": [1, 1, 2, 0, 0, 1]}}, "present_ann: episode 'x', step 2: 2"),
        ({"present": np.ones((6, 3), bool)}, "with 2 agents expected"),
        ({"rewards": [0, 1, np.nan, 0, 0, 0]}, "reward: episode 'x', step 2"),
        ({"rewards": {"ann": np.zeros(6)}}, "'bob' left out"),
        ({"rewards": np.zeros((6, 3))}, r"rewards: \(steps, agents\) with 2 agents expected"),
        ({"rewards": np.zeros(5)}, r"reward: one value per step expected \(6\), got shape \(5,"),
        (
            {"rewards": {"ann": np.zeros(6), "bob": [0, 0, "x", 0, 0, 0]}},
            "reward_bob: .*step 2: 'x'",
        ),
        (
            {"present": {"ann": [1, 1, 1, None, 0, 1]}},
            "present_ann: episode 'y', step 0: a missing",
        ),
        ({"present": {"ann": [1] * 5}}, r"present_ann: one value per step expected \(6\)"),
        ({"continuous": {"v ": np.zeros(6)}}, "continuous: a text without"),
        ({"latent_weights": {"bob": [["x", 1]] * 6}}, "latent_weights of bob: numbers expected"),
        ({"latent_weights": {"bob": [[1, np.inf]] * 6}}, "step 0: latent 1: inf is not allowed"),
        ({"continuous": {"zone": np.zeros(6)}}, "a state variable already"),
        ({"continuous": {"v": [0, 1, np.inf, 0, 0, 0]}}, "v: episode 'x', step 2: inf"),
        ({"continuous": {"v": ["a"] * 6}}, "'a' is not a number"),
        ({"latent_weights": {"bob": -np.ones((6, 2))}}, "step 0: latent 0: -1.0"),
        ({"latent_weights": {"bob": np.zeros((6, 2))}}, "all weights are 0"),
        ({"latent_weights": {"bob": np.ones((6, 3))}}, r"\(6, 2\) expected"),
        ({"latent_weights": {"ann": np.tile([1, 0, 1], (6, 1))}}, "but that is the label"),
        ({"latents": {"ann": ["lift", None, "lift|go", None, None, None]}}, "'go' in 'lift|go'"),
        ({"latents": {"ann": ["lift", None, "lift|lift", None, None, None]}}, "different"),
    ],
)
def test_wrong_fields_are_refused_with_their_place(changes, message):
    with pytest.raises(ValueError, match=message.replace("|", r"\|")):
        recorded(**changes)


def test_teams_of_different_members_are_concatenated():
    one = btil.Demonstrations(
        {"zone": [0, 1]}, {"ann": [0, 1]}, latents={"ann": [0, 1]}, num_latents=2
    )
    two = btil.Demonstrations(
        {"zone": [1, 1, 0], "bob_cell": [0, 3, 2]},
        {"bob": [0, 1, 2], "ann": [0, 0, 1]},
        num_latents={"ann": 3, "bob": 2},
        latent_weights={"ann": [[0.5, 0.25, 0.25], [1, 1, 1], [1, 1, 1]]},
    )
    both = btil.concatenate([one, two])
    assert both.agents == ("ann", "bob")
    np.testing.assert_array_equal(both.present, [[1, 0], [1, 0], [1, 1], [1, 1], [1, 1]])
    np.testing.assert_array_equal(both.actions, [[0, -1], [1, -1], [0, 0], [0, 1], [1, 2]])
    np.testing.assert_array_equal(both.state_variables["bob_cell"], [-1, -1, 0, 3, 2])
    assert both.num_latents == (3, 2)
    assert both.episode_lengths.tolist() == [2, 3]
    np.testing.assert_array_equal(
        both.latent_weights["ann"][:3], [[1] * 3] * 2 + [[0.5, 0.25, 0.25]]
    )
    with pytest.raises(ValueError, match="part 1 has the state variables 'door'"):
        btil.concatenate([two, btil.Demonstrations({"door": [0]}, {"ann": [0]}, num_latents=2)])


def test_a_team_without_actions_or_states():
    demos = btil.Demonstrations(
        None,
        None,
        latents=[[0, 1], [1, 0]],
        continuous={"ann_x": [0.5, np.nan]},
        agents=["ann", "bob"],
    )
    assert demos.num_actions == (0, 0)
    assert demos.num_states == {}
    assert demos.select([0]) == demos == demos.replace()
    with pytest.raises(ValueError, match="states"):
        btil.Demonstrations(None, [0, 1])


def test_agents_without_actions_are_those_that_something_is_told_of():
    def team(**given):
        columns = {"continuous": {"x": [0.5, np.nan]}, "num_latents": 2}
        return btil.Demonstrations(None, **columns | given)

    assert team().agents == ("agent_0",)
    assert team(latents=[[0, 1, 1], [1, 0, 0]]).agents == ("agent_0", "agent_1", "agent_2")
    assert team(latents={"bob": [0, 1], "ann": [1, -1]}).agents == ("bob", "ann")
    weights = {"cleo": np.ones((2, 2)), "bob": [[1, 2], [2, 1]]}
    assert team(latent_weights=weights).agents == ("cleo", "bob")
    assert team(present=[[1, 1], [0, 1]]).agents == ("agent_0", "agent_1")
    assert team(present={"dan": [1, 0]}).agents == ("dan",)
    # Labels go before weights, these before who is there.
    assert team(latents={"ann": [0, 1]}, present={"ann": [1, 1]}).agents == ("ann",)
    # Some act and some do not.
    some = team(actions={"bob": [0, 1]}, agents=["ann", "bob"])
    assert (some.agents, some.num_actions) == (("ann", "bob"), (0, 2))
    np.testing.assert_array_equal(some.actions, [[-1, 0], [-1, 1]])


def test_columns_of_agents_go_by_their_names():
    """In whatever order a mapping has them; in an array by their places."""
    demos = recorded(
        rewards={"bob": [1, 2, 3, 4, 5, 6], "ann": np.arange(6) / 2},
        present={"bob": [1, 1, 1, 1, 1, 0], "ann": ["yes", "TRUE", " 1 ", "No", "0", "true"]},
        latent_weights={"bob": [[1, 1], [0.2, 0.7], *[[1, 1]] * 4], "ann": np.full((6, 3), 2.0)},
        latents={"ann": ["lift", None, "lift|wait", None, None, "carry"]},
    )
    np.testing.assert_array_equal(demos.rewards[:, 1], [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(demos.rewards[:, 0], np.arange(6) / 2)
    np.testing.assert_array_equal(demos.present[:, 0], [1, 1, 1, 0, 0, 1])
    np.testing.assert_array_equal(demos.present[:, 1], [1, 1, 1, 1, 1, 0])
    assert list(demos.latent_weights) == ["ann", "bob"]
    # What a label says of a set and the weights of the step are multiplied.
    np.testing.assert_array_equal(demos.latent_weights["ann"][1:3], [[2, 2, 2], [0, 2, 2]])
    assert not recorded(present=[[1, 1]] * 6, actions={"ann": [0] * 6, "bob": [0] * 6}).away


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([" 1.5", "2e3", "", "-0.25 "], [1.5, 2000, np.nan, -0.25]),
        (np.ma.MaskedArray([1.5, 7, 9, 2], [0, 1, 0, 0]), [1.5, np.nan, 9, 2]),
        ([1, None, True, 2**40], [1, np.nan, 1, 2**40]),
        (np.array([3, 1, 2, 0], np.uint8), [3, 1, 2, 0]),
        (pd.Series([1.5, None, 2, 4], dtype="Float64"), [1.5, np.nan, 2, 4]),
    ],
)
def test_measures_of_any_make(values, expected):
    demos = btil.Demonstrations([0] * 4, [0, 1, 0, 1], [0] * 4, continuous={"v": values})
    np.testing.assert_array_equal(demos.continuous["v"], expected)
    assert demos.continuous["v"].dtype == np.float64


def test_a_state_of_two_members_is_none_while_either_is_away():
    given = {
        "states": {"ann_to_bob": [0, -1, -1, 1], "zone": [0, 1, 0, 1]},
        "actions": [[0, 1], [1, -1], [-1, 0], [0, 1]],
        "agents": ["ann", "bob"],
        "num_latents": 2,
        "present": [[1, 1], [1, 0], [0, 1], [1, 1]],
    }
    demos = btil.Demonstrations(**given)
    np.testing.assert_array_equal(demos.is_away("ann_to_bob"), [0, 1, 1, 0])
    np.testing.assert_array_equal(demos.is_away("zone"), np.zeros(4))
    # What is away was not overlooked by anybody.
    assert not demos.unseen
    for changes, message in (
        ({"present": [[1, 1], [1, 0], [1, 1], [1, 1]]}, "ann_to_bob: episode 0, step 2: "),
        ({"states": {"zone": [0, 1, -1, 1]}}, "zone: episode 0, step 2: "),
        ({"actions": [[-1, 1], [1, -1], [-1, 0], [0, 1]]}, "action_ann: episode 0, step 0: "),
    ):
        with pytest.raises(ValueError, match=message):
            btil.Demonstrations(**given | changes)
        assert btil.Demonstrations(**given | changes, missing="allow").unseen


def test_stays_begin_where_somebody_comes():
    demos = btil.Demonstrations(
        [0] * 7,
        np.zeros((7, 3), int),
        episodes=[0, 0, 0, 1, 1, 1, 1],
        num_actions=1,
        num_latents=2,
        present=[[1, 1, 0], [0, 1, 0], [1, 1, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [1, 0, 0]],
    )
    assert [one.tolist() for one in demos.stays] == [[0, 2, 3, 5], [0, 4], []]


def test_what_cannot_be_done_with_gaps_is_refused_by_what_there_is():
    demos = btil.Demonstrations([0, 1], [0, 1], num_latents=2, missing="allow")
    refuse_gaps(demos, "this", "do that")
    for changes, found in (
        ({"states": [0, -1]}, "actions or states that nobody saw"),
        ({"actions": [0, -1]}, "actions or states that nobody saw"),
        ({"present": [[1], [0]]}, "members who come and go"),
        ({"latent_weights": {"agent_0": [[1, 2], [1, 1]]}}, "latent_weights"),
    ):
        with pytest.raises(ValueError, match=f"this: the demonstrations have {found}; do that"):
            refuse_gaps(demos.replace(**changes), "this", "do that")
    with pytest.raises(ValueError, match="nobody saw, members who come and go, latent_weights; do"):
        refuse_gaps(recorded(), "this", "do that")


def test_weights_alone_are_labels_to_drop():
    weighed = btil.Demonstrations(
        [0, 1], [0, 1], latent_weights={"agent_0": [[1, 2, 3], [1, 1, 1]]}
    )
    assert weighed.num_latents == (3,)
    assert not weighed.without_labels().latent_weights
    bare = weighed.without_labels()
    assert bare.without_labels() is bare


@pytest.mark.parametrize("chosen", [[1], ["y", "x"]])
def test_a_selection_has_its_own_rows_of_everything(chosen):
    demos = recorded(rewards=np.arange(12.0).reshape(6, 2))
    rows = [3, 4, 5] if chosen == [1] else [3, 4, 5, 0, 1, 2]
    part = demos.select(chosen)
    for name in ("rewards", "present", "actions", "latents"):
        np.testing.assert_array_equal(getattr(part, name), getattr(demos, name)[rows])
    for name in ("state_variables", "continuous", "latent_weights"):
        whole = getattr(demos, name)
        assert list(whole) == list(getattr(part, name))
        for column, values in getattr(part, name).items():
            np.testing.assert_array_equal(values, whole[column][rows])
    assert (part.missing, part.num_latents) == ("allow", demos.num_latents)
    without = demos.without_labels(chosen)
    np.testing.assert_array_equal(without.latents[rows], -1)
    kept = [row for row in range(6) if row not in rows]
    np.testing.assert_array_equal(without.latents[kept], demos.latents[kept])
    for agent, weights in without.latent_weights.items():
        np.testing.assert_array_equal(weights[rows], 1)
        np.testing.assert_array_equal(weights[kept], demos.latent_weights[agent][kept])
    np.testing.assert_array_equal(without.rewards, demos.rewards)


def test_nobody_is_away_by_what_is_no_presence():
    cells = np.array(["no", "?", "", None, " FALSE ", "yes", 0, 2, 0.0], object)
    np.testing.assert_array_equal(says_away("present_ann", cells), [1, 0, 0, 0, 1, 0, 1, 0, 1])


def test_presence_in_numbers_of_any_type():
    expected = [[True], [False], [True]]
    for values in (
        [1.0, 0.0, 1.0],
        [True, False, True],
        np.array([1, 0, 1], np.uint8),
        list("101"),
    ):
        demos = btil.Demonstrations([0] * 3, [0] * 3, present={"agent_0": values}, num_latents=1)
        assert demos.present.tolist() == expected
    for values in ([1, 0, 2], [1, 0, "da"], [1, 0, -1], [1, 0, 0.5]):
        with pytest.raises(ValueError, match=r"present_agent_0: episode 0, step 2: .* not all"):
            btil.Demonstrations([0] * 3, [0] * 3, present={"agent_0": values}, num_latents=1)


def test_states_that_nobody_saw_have_no_joint_index():
    demos = recorded()
    with pytest.raises(ValueError, match="states: zone is not known at episode 'x', step 2, so"):
        _ = demos.states
    seen = demos.replace(states=demos.state_variables | {"zone": [0, 1, 1, 0, 2, 1]})
    with pytest.raises(ValueError, match="states: ann_cell is not known at episode 'y', step 0"):
        _ = seen.states


def test_a_summary_for_a_person_tells_of_what_was_not_seen():
    lines = str(recorded().summary()).splitlines()
    assert "measured        ann_x" in lines
    assert [line.split() for line in lines[-3:]] == [
        ["agent", "actions", "latents", "labelled", "unseen", "away"],
        ["ann", "2", "3", "33.3%", "0.0%", "33.3%"],
        ["bob", "3", "2", "0.0%", "16.7%", "0.0%"],
    ]
    # Nothing of it where all was seen and all were there.
    plain = str(btil.Demonstrations([0, 1], [0, 1], [0, -1]).summary())
    assert "measured" not in plain
    assert plain.splitlines()[-2].split() == ["agent", "actions", "latents", "labelled"]
    assert plain.splitlines()[-1].split() == ["agent_0", "2", "1", "50.0%"]


def test_weights_that_rule_out_what_the_label_says_are_refused():
    weights = [[1, 1, 1], [1, 1, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1], [1, 0, 0]]
    good = recorded(latent_weights={"ann": weights}).latent_weights["ann"]
    np.testing.assert_array_equal(good[2], [0, 1, 1])
    weights[2] = [1, 0, 0]
    with pytest.raises(
        ValueError, match=r"ann: episode 'x', step 2: the weights of all of 'lift\|wait' are 0, but"
    ):
        recorded(latent_weights={"ann": weights})


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("2,1\n,\n1,\n", r"latent_ann\[carry\]: episode 0, step 2: a missing value .* next to"),
        ("2,1\n,\n,0.5\n", r"latent_ann\[lift\]: episode 0, step 2: a missing value .* leave all"),
        ("2,1\nx,1\n,\n", r"latent_ann\[lift\]: episode 0, step 1: 'x' is not a number"),
        ("0,0\n1,1\n,\n", "latent_weights of ann: episode 0, step 0: all weights are 0"),
    ],
)
def test_weights_in_columns_are_whole_or_not_there(rows, message, tmp_path):
    path = tmp_path / "team.csv"
    cells = [f"0,0,{row}" for row in rows.splitlines()]
    header = "zone,action_ann,latent_ann[lift],latent_ann[carry]"
    path.write_text("\n".join([header, *cells]))
    with pytest.raises(ValueError, match=message):
        btil.read_demonstrations(path)


def test_weights_in_columns_are_of_their_latents(tmp_path):
    """In whatever order they stand; one without a column weighs nothing where others have any."""
    path = tmp_path / "team.csv"
    path.write_text(
        "zone,action_ann,latent_ann[lift],latent_ann[carry],latent_ann\n"
        "0,0,2,1,\n0,1,,,wait\n0,0,0.25,0,\n"
    )
    demos = btil.read_demonstrations(path)
    assert demos.latent_names["ann"] == ("carry", "lift", "wait")
    np.testing.assert_array_equal(demos.latent_weights["ann"], [[1, 2, 0], [1, 1, 1], [0, 0.25, 0]])
    with pytest.raises(ValueError, match=r"latent_ann\[lift\]: there is no latent 'lift'"):
        btil.read_demonstrations(path, latent_names=["wait", "carry"])


@pytest.mark.parametrize("file", FILES)
def test_a_file_without_actions(tmp_path, file):
    demos = btil.Demonstrations(
        None, None, latents=[[0], [1]], continuous={"ann_x": [0.5, np.nan]}, agents=["ann"]
    )
    btil.write_demonstrations(demos, tmp_path / file)
    assert btil.read_demonstrations(tmp_path / file) == demos


def coders(seed=0, steps=20_000):
    """Three coders of one agent with known confusions; the third leaves a quarter out."""
    generator = np.random.default_rng(seed)
    matrices = [
        np.array([[0.9, 0.1, 0.0], [0.2, 0.7, 0.1], [0.05, 0.05, 0.9]]),
        np.array([[0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]]),
        np.array([[0.8, 0.1, 0.1], [0.3, 0.6, 0.1], [0.0, 0.2, 0.8]]),
    ]
    truth = generator.choice(3, steps, p=[0.5, 0.3, 0.2])
    labels = [
        (matrix[truth].cumsum(1) < generator.random((steps, 1))).sum(1) for matrix in matrices
    ]
    labels[2][generator.random(steps) < 1 / 4] = -1
    demos = btil.Demonstrations(np.arange(steps) % 2, np.arange(steps) % 2, num_latents=3)
    return truth, matrices, {k: demos.replace(latents=one) for k, one in enumerate(labels)}


def test_confusions_of_coders_are_learned():
    truth, matrices, codings = coders()
    found = btil.label_confusion(codings)["agent_0"]
    for coder, matrix in enumerate(matrices):
        np.testing.assert_allclose(found.matrices[coder], matrix, atol=0.06)
    combined = btil.combine_labels(codings, "confusion")
    weights = combined.latent_weights["agent_0"]
    # What the true matrices say of a step, up to a factor.
    step = 7
    said = [one.latents[step, 0] for one in codings.values()]
    expected = np.prod(
        [m[:, label] for m, label in zip(matrices, said, strict=True) if label >= 0], 0
    )
    np.testing.assert_allclose(
        weights[step] / weights[step].sum(), expected / expected.sum(), atol=0.05
    )
    best = (weights * found.prior).argmax(1)
    one = codings[0].latents[:, 0]
    assert (best != truth).mean() < 0.9 * (one != truth).mean()
    assert (combined.latents == -1).all()


def few_codings():
    """Two agents of three and two latents; nobody labelled the fourth step, one alone the fifth."""
    demos = btil.Demonstrations(
        [0] * 9, np.zeros((9, 2), int), num_states=1, num_actions=1, num_latents=(3, 2)
    )
    ann = [
        [0, 0, 1, -1, 2, 1, 0, 2, 1],
        [0, 1, 1, -1, -1, 1, 0, 2, 2],
        [0, 0, -1, -1, -1, 2, 0, 2, 1],
    ]
    bob = [[-1] * 9, [1, 0, 0, 1, -1, -1, 1, 1, 0], [1, 1, 0, 1, -1, -1, 1, -1, 0]]
    labels = np.stack([ann, bob], axis=-1)
    return {coder: demos.replace(latents=one) for coder, one in zip("xyz", labels, strict=True)}


@pytest.mark.parametrize(("agent", "k", "size"), [("agent_0", 0, 3), ("agent_1", 1, 2)])
def test_confusions_are_the_mode(agent, k, size):
    """No small step from it, on the simplex of any row, makes what is maximised larger."""
    codings = few_codings()
    found = btil.label_confusion(codings)[agent]
    assert list(found.matrices) == ["x", "y", "z"]
    pseudo = np.full((size, size), 0.5) + 1.5 * np.eye(size)

    def objective(prior, matrices):
        total = np.log(prior).sum() + sum((pseudo * np.log(m)).sum() for m in matrices)
        for step in range(9):
            said = [one.latents[step, k] for one in codings.values()]
            if max(said) >= 0:  # steps that nobody labelled say nothing
                total += np.log(
                    sum(
                        prior[x]
                        * np.prod([m[x, i] for m, i in zip(matrices, said, strict=True) if i >= 0])
                        for x in range(size)
                    )
                )
        return total

    def moved(row, by):
        return row * np.exp(by) / (row * np.exp(by)).sum()

    matrices = list(found.matrices.values())
    best = objective(found.prior, matrices)
    generator = np.random.default_rng(2)
    for _ in range(100):
        by = 0.01 * generator.normal(size=(4, size, size))
        other = [np.array([*map(moved, m, b)]) for m, b in zip(matrices, by, strict=False)]
        assert objective(moved(found.prior, by[3, 0]), other) < best
        assert objective(moved(found.prior, by[3, 0]), matrices) < best
        for coder in range(3):
            one = [*matrices[:coder], other[coder], *matrices[coder + 1 :]]
            assert objective(found.prior, one) < best
    # What is said of a step is the product of what each coder says, the largest weight being 1.
    weights = btil.combine_labels(codings, "confusion").latent_weights[agent]
    for step in range(9):
        said = [one.latents[step, k] for one in codings.values()]
        expected = np.prod(
            [np.ones(size), *(m[:, i] for m, i in zip(matrices, said, strict=True) if i >= 0)], 0
        )
        np.testing.assert_allclose(weights[step], expected / expected.max())


def test_who_has_no_label_has_no_confusion():
    codings = {coder: one.replace(latents=[[0, -1]] * 9) for coder, one in few_codings().items()}
    assert list(btil.label_confusion(codings)) == ["agent_0"]
    assert list(btil.combine_labels(codings, "confusion").latent_weights) == ["agent_0"]


def test_coders_agree_agent_by_agent():
    both = btil.combine_labels(few_codings())
    np.testing.assert_array_equal(both.latents[:, 0], [0, -1, 1, -1, 2, -1, 0, 2, -1])
    np.testing.assert_array_equal(both.latents[:, 1], [1, -1, 0, 1, -1, -1, 1, 1, 0])
    weights = both.latent_weights
    rows = {1: [1, 1, 0], 5: [0, 1, 1], 8: [0, 1, 1]}
    np.testing.assert_array_equal(
        weights["agent_0"], [rows.get(step, [1, 1, 1]) for step in range(9)]
    )
    np.testing.assert_array_equal(weights["agent_1"], np.ones((9, 2)))


def test_coders_who_agree_label():
    demos = btil.Demonstrations([0, 1, 0, 1], [0, 1, 1, 0], [0, 1, 2, -1])
    other = demos.replace(latents=[0, 2, -1, -1])
    both = btil.combine_labels({"a": demos, "b": other})
    np.testing.assert_array_equal(both.latents[:, 0], [0, -1, 2, -1])
    np.testing.assert_array_equal(
        both.latent_weights["agent_0"], [[1, 1, 1], [0, 1, 1], [1, 1, 1], [1, 1, 1]]
    )
    assert btil.combine_labels([demos, demos]) == demos


@pytest.mark.parametrize(
    ("codings", "message"),
    [
        ([], "there is none"),
        ({"a": [0, 1], "b": [0, 1], "c": "other"}, "coder 'c': states, actions"),
        ({"a": [0, -1], "b": [-1, 1]}, "labels of agent_0: no step was labelled by two coders"),
    ],
)
def test_wrong_codings_are_refused(codings, message):
    demos = btil.Demonstrations([0, 1], [0, 1], num_latents=2)
    if isinstance(codings, dict):
        codings = {
            coder: demos.replace(states=[1, 1])
            if labels == "other"
            else demos.replace(latents=labels)
            for coder, labels in codings.items()
        }
    with pytest.raises(ValueError, match=message):
        btil.combine_labels(codings, "confusion")


def test_what_is_no_coding_of_the_same_recording_is_refused():
    demos = btil.Demonstrations([0, 1], [0, 1], [0, 1])
    named = demos.replace(latent_names=["a", "b"])
    weighed = demos.replace(latent_weights={"agent_0": [[1, 2], [1, 1]]})
    for codings, message in (
        ([demos, demos.replace(num_latents=3)], r"coder 1: names or numbers .*coder 0: \(3,\) and"),
        ({"a": named, "b": demos}, "coder 'b': names or numbers of latents differ from those of"),
        ({"a": demos, "b": 3}, "coder 'b': Demonstrations expected, got int"),
        ({"a": demos, "b": weighed}, "coder 'b': has latent_weights"),
        ([demos, demos.replace(episodes=[0, 1])], "coder 1: states, actions or episodes differ"),
        ([demos, demos.replace(actions=[1, 1], num_actions=2)], "coder 1: states, actions or"),
    ):
        for combine in (btil.combine_labels, btil.label_confusion):
            with pytest.raises(ValueError, match=message):
                combine(codings)
    with pytest.raises(ValueError, match="method must be one of 'agreement', 'confusion', got 'vo"):
        btil.combine_labels([demos], "vote")
    assert btil.combine_labels({"a": demos}) == demos


def test_only_names_of_agents_make_columns_special(tmp_path):
    (tmp_path / "t.csv").write_text(
        "reward_left,present_level,action_ann,latent_ann\n0,1,0,0\n1,0,1,1\n"
    )
    demos = btil.read_demonstrations(tmp_path / "t.csv")
    assert list(demos.num_states) == ["reward_left", "present_level"]
    btil.write_demonstrations(demos, tmp_path / "t.npz")
    assert btil.read_demonstrations(tmp_path / "t.npz") == demos
    with pytest.raises(ValueError, match="'reward_ann': this name has another meaning"):
        btil.Demonstrations({"reward_ann": [0, 1]}, {"ann": [0, 1]}, num_latents=1)
