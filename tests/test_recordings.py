"""Recordings as they are: what nobody saw, who was away, unsure labels, rewards, measures."""

import numpy as np
import pandas as pd
import pytest

import btil

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
    labels = [np.array([generator.choice(3, p=matrix[x]) for x in truth]) for matrix in matrices]
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
