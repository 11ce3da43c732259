"""Recordings as other tools write them, from small files of our own making."""

import json
from importlib.resources import files
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from gymnasium import spaces

import btil
from btil.domains import overcooked
from btil.recordings import (
    Interval,
    from_long_table,
    from_minari,
    from_overcooked_trials,
    label_by_intervals,
    read_intervals,
)

# ---------------------------------------------------------------------- long tables

LOG = """episode,step,agent,door,cell,speed,action,latent,reward
b,0,ann,shut,hall,0.5,go,lift,1
b,0,bob,shut,yard,1.5,wait,lift|carry,1
b,1,bob,open,yard,,wait,?,0
a,7,bob,open,attic,2,go,,0
a,8,ann,shut,hall,3,wait,carry,0
a,8,bob,shut,hall,3.25,go,lift,0
"""


def write(tmp_path, text, name="log.csv"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def read_log(source, **more):
    return from_long_table(source, continuous=["speed"], unknown_labels=["?"], **more)


@pytest.fixture
def log(tmp_path):
    return write(tmp_path, LOG)


def test_a_long_table_step_by_step(log):
    demos = read_log(log)
    assert demos.episode_ids.tolist() == ["b", "a"]
    assert demos.episode_lengths.tolist() == [2, 2]
    assert demos.agents == ("ann", "bob")
    assert demos.present.tolist() == [[True, True], [False, True], [False, True], [True, True]]
    # The door is the same for all who are there; cells differ; names are one list for all.
    assert demos.num_states == {"door": 2, "ann_cell": 3, "bob_cell": 3}
    assert demos.state_names["ann_cell"] == ("attic", "hall", "yard")
    assert demos.state_variables["door"].tolist() == [1, 0, 0, 1]
    assert demos.state_variables["ann_cell"].tolist() == [1, -1, -1, 1]
    assert demos.state_variables["bob_cell"].tolist() == [2, 2, 0, 1]
    assert demos.action_names == {"ann": ("go", "wait"), "bob": ("go", "wait")}
    assert demos.actions.tolist() == [[0, 1], [-1, 1], [-1, 0], [1, 0]]
    assert demos.latent_names["ann"] == ("carry", "lift")
    assert demos.latents.tolist() == [[1, -1], [-1, -1], [-1, -1], [0, 1]]
    # "lift|carry" is one of the two, "?" and the blank say nothing.
    assert demos.latent_weights["bob"].tolist() == [[1, 1]] * 4
    assert demos.rewards.tolist() == [1, 0, 0, 0]
    np.testing.assert_array_equal(demos.continuous["ann_speed"], [0.5, np.nan, np.nan, 3])
    np.testing.assert_array_equal(demos.continuous["bob_speed"], [1.5, np.nan, 2, 3.25])


def test_order_of_rows_and_container_do_not_matter(log, tmp_path):
    demos = read_log(log)
    frame = pd.read_csv(log)
    assert read_log(frame) == demos
    assert read_log({name: frame[name].tolist() for name in frame}) == demos
    frame.to_parquet(tmp_path / "log.parquet")
    assert read_log(tmp_path / "log.parquet") == demos
    tabs = write(tmp_path, LOG.replace(",", "\t"), "log.tsv")
    assert read_log(tabs) == demos
    assert read_log(write(tmp_path, LOG.replace(",", ";"), "other.csv")) == demos
    # In a text file a comma in the first line, and tabs in those of an ending that is of commas.
    assert read_log(write(tmp_path, LOG, "other.txt")) == demos
    assert read_log(write(tmp_path, LOG.replace(",", "\t"), "other.csv")) == demos
    for encoding in ("utf-16", "utf-8-sig"):
        (tmp_path / "coded.csv").write_bytes(LOG.replace("shut", "zu\xe9").encode(encoding))
        names = read_log(tmp_path / "coded.csv").state_names["door"]
        assert names == ("open", "zu\xe9")
    header, *lines = LOG.splitlines()
    turned = "\n".join([header, *(lines[k] for k in [1, 0, 2, 5, 4, 3])])
    shuffled = read_log(write(tmp_path, turned, "turned.csv"), agents=["ann", "bob"])
    assert shuffled == demos


def test_columns_of_a_log_by_other_names(log):
    names = {
        "episode": "day", "step": "nr", "agent": "who", "action": "did", "latent": "mind",
        "reward": "paid",
    }  # fmt: skip
    frame = pd.read_csv(log, keep_default_na=False).rename(columns=names)
    assert set(names.values()) < set(frame)
    assert read_log(frame, **names) == read_log(log)


def test_a_set_that_leaves_some_out(log):
    demos = read_log(write(log.parent, LOG.replace("carry,0", "rest,0"), "three.csv"))
    assert demos.latent_names["bob"] == ("carry", "lift", "rest")
    assert demos.latent_weights["bob"][0].tolist() == [1, 1, 0]


def test_what_was_written_row_by_row_comes_back():
    rng = np.random.default_rng(3)
    steps, agents = 60, ("zoe", "ann", "bob")
    there = rng.random((steps, 3)) < 0.7
    there[np.arange(steps), rng.integers(3, size=steps)] = True
    there[0] = True
    episodes = np.repeat(["x", "y", "z"], 20)
    room, seat = rng.integers(4, size=steps), rng.integers(5, size=(steps, 3))
    actions, latents = rng.integers(3, size=(steps, 3)), rng.integers(-1, 2, size=(steps, 3))
    latents = np.where(there, latents, -1)
    rewards = np.where(there, rng.normal(size=(steps, 3)), 0)
    rows = [
        {
            "episode": episodes[t],
            "step": 5 + t % 20,
            "agent": agents[k],
            "room": room[t],
            "seat": seat[t, k],
            "action": actions[t, k],
            "latent": latents[t, k],
            "reward": rewards[t, k],
        }
        for t in range(steps)
        for k in range(3)
        if there[t, k]
    ]
    demos = from_long_table(pd.DataFrame(rows))
    expected = btil.Demonstrations(
        {"room": room}
        | {f"{a}_seat": np.where(there, seat, -1)[:, k] for k, a in enumerate(agents)},
        actions,
        latents,
        episodes,
        agents,
        num_states={"room": 4} | {f"{agent}_seat": 5 for agent in agents},
        num_actions=3,
        num_latents=2,
        present=there,
        rewards=rewards,
    )
    assert demos == expected


def test_time_stamps_in_place_of_steps():
    demos = from_long_table(
        {
            "t": ["2024-05-01T12:00:01", "2024-05-01T12:00:00.5", "2024-05-01T12:00:00.5"],
            "who": [7, 7, 8],
            "did": [0, 1, 1],
            "place": [2, 0, 1],
        },
        time="t",
        agent="who",
        action="did",
    )
    assert demos.agents == ("7", "8")
    assert demos.actions.tolist() == [[1, 1], [0, -1]]
    assert demos.state_variables["7_place"].tolist() == [0, 2]
    assert demos.num_latents == (1, 1)


def test_what_nobody_saw_is_allowed_where_it_is_asked_for():
    table = {
        "t": [0.5, 0.5, 2.0],
        "step": [9, 9, 9],  # left out where time stamps are read
        "agent": ["a", "b", "a"],
        "action": ["go", None, ""],
        "door": [None, None, "shut"],
        "seat": [1, np.nan, 2],
    }
    demos = from_long_table(table, time="t", missing="allow")
    assert demos.actions.tolist() == [[0, -1], [-1, -1]]
    assert demos.present.tolist() == [[True, True], [True, False]]
    assert demos.state_variables["door"].tolist() == [-1, 0]
    assert demos.state_variables["a_seat"].tolist() == [1, 2]
    assert demos.state_variables["b_seat"].tolist() == [-1, -1]
    with pytest.raises(ValueError, match=r"door: row 0 .* missing value .*missing='allow'"):
        from_long_table(table, time="t")


def test_declared_names_and_sizes_of_a_log_hold_for_all_agents():
    table = {
        "step": [0, 0, 1],
        "agent": ["a", "b", "b"],
        "action": ["go", "wait", "go"],
        "latent": ["up", "", "down"],
        "seat": [1, 0, 0],
        "door": ["shut", "shut", "open"],
    }
    demos = from_long_table(
        table,
        action_names=["wait", "jump", "go"],
        latent_names=["up", "down", "left"],
        state_names={"door": ["shut", "ajar", "open"]},
        num_states={"seat": 5},
    )
    assert demos.actions.tolist() == [[2, 0], [-1, 2]]
    assert demos.latents.tolist() == [[0, -1], [-1, 1]]
    assert demos.state_variables["door"].tolist() == [0, 2]
    assert demos.num_states == {"a_seat": 5, "b_seat": 5, "door": 3}
    assert (demos.num_actions, demos.num_latents) == ((3, 3), (3, 3))
    numbers = table | {"action": [0, 1, 2], "latent": [0, None, 1]}
    sizes = from_long_table(numbers, num_actions=4, num_latents=3)
    assert (sizes.num_actions, sizes.num_latents) == ((4, 4), (3, 3))
    assert from_long_table(numbers, unknown_labels=[1]).latents.tolist() == [[0, -1], [-1, -1]]
    # Columns that are not there by their usual names are none; asked for, they are owed.
    few = {"step": [0], "agent": ["a"], "action": [0], "s": [0]}
    plain = from_long_table(few, episode=None, latent=None, reward=None)
    assert plain == from_long_table(few)
    assert plain.rewards is None
    for role in ("episode", "latent", "reward", "action"):
        with pytest.raises(
            ValueError, match=f"no column 'z'; the columns are .*; {role}=... names"
        ):
            from_long_table(few, **{role: "z"})


def test_own_and_common_columns_hold_whatever_occurs():
    table = {"step": [0, 0], "agent": ["a", "b"], "action": [0, 1], "s": [1, 1], "t": [0, 1]}
    assert set(from_long_table(table, own=["s"]).num_states) == {"a_s", "b_s", "a_t", "b_t"}
    assert set(from_long_table(table, ignore=["t"]).num_states) == {"s"}
    with pytest.raises(ValueError, match=r"row 1 .*'t': 1 differs from 0 .*row 0"):
        from_long_table(table, common=["t"])


def test_measures_of_the_team_and_of_each():
    table = {
        "step": [0, 0, 1, 1],
        "agent": ["a", "b", "b", "a"],
        "action": [0, 1, 1, 0],
        "heat": [0.5, 0.5, None, None],
        "x": [None, 1.5, None, None],
        "reward": [1, 1, 2, 2.5],
    }
    demos = from_long_table(table, continuous=["heat", "x"])
    assert list(demos.continuous) == ["heat", "a_x", "b_x"]
    np.testing.assert_array_equal(demos.continuous["heat"], [0.5, np.nan])
    np.testing.assert_array_equal(demos.continuous["b_x"], [1.5, np.nan])
    assert np.isnan(demos.continuous["a_x"]).all()
    # A reward that differs at one step is each agent's own at all.
    assert demos.rewards.tolist() == [[1, 1], [2.5, 2]]
    assert from_long_table(
        table | {"reward": [1, 1, 2, 2]}, continuous=["heat", "x"]
    ).rewards.tolist() == [1, 2]
    own = from_long_table(table, continuous=["heat", "x"], own=["heat"])
    assert list(own.continuous) == ["a_heat", "b_heat", "a_x", "b_x"]


def test_rewards_of_each_and_numbered_labels():
    table = {
        "step": [0, 0, 1],
        "agent": ["a", "b", "a"],
        "action": [0, 1, 1],
        "s": [1, 0, 1],
        "reward": [1.5, -1, 2],
        "latent": [np.nan, 1.0, 2.0],
    }
    demos = from_long_table(table)
    assert demos.rewards.tolist() == [[1.5, -1], [2, 0]]
    assert demos.latents.tolist() == [[-1, 1], [2, -1]]
    assert demos.num_latents == (3, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("b,1,bob", "b,2,bob"), "line 4, column 'step': step 2 comes after step 0"),
        (("b,0,bob", "b,0,ann"), "line 3, column 'agent': 'ann' has a row .* line 2"),
        (("a,7,bob", "a,7,"), "line 5, column 'agent': '' is not allowed; expected a name"),
        (("a,7,bob", "a,x,bob"), "line 5, column 'step': 'x' is not allowed; expected a finite"),
        (("a,7,bob", "a,7.5,bob"), "line 5, column 'step': '7.5' .* whole number; time="),
        (("a,7,bob", ",7,bob"), "line 5, column 'episode': a missing value"),
        (("1.5,wait", "1.5,"), "action: line 3: a missing value .*missing='allow'"),
        (("yard,1.5", "yard,fast"), "line 3, column 'speed': 'fast' .* a finite number"),
        (("lift,1", "lift,"), "line 2, column 'reward': a missing value"),
        (("lift|carry", "lift|"), "line 3, column latent: 'lift|' is not allowed"),
        (("shut,hall,0.5", "shut,0.5"), "line 2: 8 cells, but the columns are 9"),
        (("door", "cell"), "line 1: column 'cell' occurs more than once"),
        (("step,agent", "step,who"), "there is no column 'agent'; .* agent=..."),
    ],
)
def test_bad_long_tables_are_refused_with_their_place(tmp_path, change, message):
    path = write(tmp_path, LOG.replace(*change, 1))
    with pytest.raises(ValueError, match=f"log.csv: .*{message.replace('|', '.')}"):
        read_log(path)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (
            {"agent": ["a", None]},
            {},
            "row 1 .*, column 'agent': a missing value .* expected a name",
        ),
        (
            {"agent": ["a", 1.5]},
            {},
            "row 1 .*, column 'agent': 1.5 is not allowed; expected a name",
        ),
        ({}, {"agents": ["b"]}, "row 0 .*, column 'agent': 'a' is not allowed; .* one of 'b'"),
        ({}, {"agents": ["a", "b", "a"]}, "agents: each may be named once, got 'a', 'b', 'a'"),
        (
            {},
            {"state_names": {"door": ["x"]}},
            "state_names: there is no state column 'door'; .*'s'",
        ),
        ({}, {"num_states": {"action": 3}}, "num_states: there is no state column 'action'"),
        ({}, {"own": ["s"], "common": ["s"]}, "own, common: 's' cannot be both"),
        ({"b_s": [0, 0], "s": [0, 1]}, {}, "two columns would have the name 'b_s'; rename one"),
        (
            {"b_x": [0, 0], "x": [0, 1]},
            {"continuous": ["x"]},
            "two columns would have the name 'b_x'",
        ),
        (
            {"t": [0, "x"]},
            {"time": "t"},
            "row 1 .*, column 't': 'x' is not allowed; .* finite number",
        ),
        (
            {"t": ["2024-05-01", 7]},
            {"time": "t"},
            "row 1 .*: 7 is not allowed; .* in the whole col",
        ),
        ({"t": ["2024-05-01", "soon"]}, {"time": "t"}, "row 1 .*: 'soon' is not allowed; .* dates"),
        ({"t": ["2024-05-01", "2024-05-01T12Z"]}, {"time": "t"}, "row 1 .* some times have a zone"),
        (
            {"t": ["2024-05-01", None]},
            {"time": "t"},
            "row 1 .*, column 't': a missing value .* a time",
        ),
        ({"reward": [1.0, np.inf]}, {}, "row 1 .*, column 'reward': inf is not allowed"),
        ({"step": [0, 0, 1]}, {}, "same number of rows; found: step 3, agent 2"),
        (
            {"step": np.zeros((2, 1))},
            {},
            r"column 'step': cells along one axis expected, got \(2, 1\)",
        ),
    ],
)
def test_bad_logs_in_memory_are_refused(change, options, message):
    table = {"step": [0, 0], "agent": ["a", "b"], "action": [0, 1], "s": [0, 1]} | change
    with pytest.raises(ValueError, match=message):
        from_long_table(table, **options)


def test_damaged_tables_are_named(tmp_path):
    (tmp_path / "log.parquet").write_bytes(b"damaged")
    (tmp_path / "log.csv").write_bytes("step,agent\n0,ann\n1,Zo\xeb\n".encode("cp1252"))
    (tmp_path / "log.tsv").write_text('step\tagent\n0\t"ann\n')
    for ending, message in (
        ("parquet", "damaged, or not a Parquet file"),
        ("csv", "line 3 is not in UTF-8; save the file as UTF-8"),
        ("tsv", "line 2: unexpected end of data"),
    ):
        with pytest.raises(ValueError, match=rf"log.{ending}: {message}"):
            from_long_table(tmp_path / f"log.{ending}")


@pytest.mark.parametrize(
    ("labels", "names", "sizes", "latents", "weights"),
    [
        # Nothing but sets: what they name, in order; numbers count from 0.
        (["lift|carry", None], ("carry", "lift"), 2, [-1, -1], [1, 1]),
        (["1|3", ""], None, 4, [-1, -1], [0, 1, 0, 1]),
        # The largest number may be in a set, or not.
        (["0|2", "1"], None, 3, [-1, 1], [1, 0, 1]),
        (["0|1", "3"], None, 4, [-1, 3], [1, 1, 0, 0]),
        (["lift|rest", "carry"], ("carry", "lift", "rest"), 3, [-1, 0], [0, 1, 1]),
        ([None, None], None, 1, [-1, -1], None),
        ([-1, 2], None, 3, [-1, 2], None),
    ],
)
def test_latents_of_a_log_are_what_labels_and_sets_tell(labels, names, sizes, latents, weights):
    table = {"step": [0, 0], "agent": ["a", "b"], "action": [0, 1], "s": [0, 1], "latent": labels}
    demos = from_long_table(table)
    assert demos.num_latents == (sizes, sizes)
    assert demos.latent_names == ({} if names is None else {"a": names, "b": names})
    assert demos.latents[0].tolist() == latents
    given = {} if weights is None else {"a": [weights]}
    assert {agent: w.tolist() for agent, w in demos.latent_weights.items()} == given
    # Of no label at all a declared number or names hold for all agents.
    bare = {name: cells for name, cells in table.items() if name != "latent"}
    assert from_long_table(bare).num_latents == (1, 1)
    assert from_long_table(bare, num_latents=3).num_latents == (3, 3)
    assert from_long_table(bare, latent_names=["x", "y"]).latent_names["b"] == ("x", "y")


def test_names_in_sets_of_a_log_do_not_go_with_numbers():
    table = {"step": [0, 0], "agent": ["a", "b"], "action": [0, 1], "s": [0, 1]}
    with pytest.raises(
        ValueError, match=r"'latent': some rows have numbers, others names .*'lift'"
    ):
        from_long_table(table | {"latent": ["lift|carry", "1"]})


def test_a_log_needs_actions_or_measures(tmp_path):
    table = {"step": [0], "agent": ["a"], "s": [1]}
    with pytest.raises(ValueError, match=r"no column 'action' .* continuous=\[...\]"):
        from_long_table(table)
    demos = from_long_table(table | {"s": [0.5]}, continuous=["s"], own=["s"])
    assert demos.num_actions == (0,)
    assert demos.continuous["a_s"].tolist() == [0.5]
    with pytest.raises(ValueError, match=r"s: row 0 .*: 0.5 is not allowed.*continuous="):
        from_long_table(table | {"s": [0.5]})
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        from_long_table(tmp_path / "log.xlsx")
    (tmp_path / "log.xlsx").touch()
    with pytest.raises(ValueError, match=r"the ending must be one of \.csv"):
        from_long_table(tmp_path / "log.xlsx")


def test_all_of_it_can_be_written_and_read_again(log, tmp_path):
    moved = btil.recordings.from_trajectories(write(tmp_path, PATHS, "p.csv"), 0.5, keep_time=True)
    pushes = np.array([[0.5, 1], [2, 3]])
    for k, demos in enumerate(
        [
            read_log(log),
            moved,
            label_by_intervals(pair(), [*CODED, Interval(1.5, 2.5, "rest", "ann")], step=0.5),
            from_minari(episode(7, np.array([2, 0, 1]), pushes)),
            from_overcooked_trials(write_records(tmp_path, kitchen_records()), "own"),
        ]
    ):
        path = tmp_path / f"{k}.csv"
        btil.write_demonstrations(demos, path)
        assert btil.read_demonstrations(path) == demos


def test_public_as_a_room():
    assert btil.recordings.from_long_table is from_long_table
    assert set(dir(btil.recordings)) == set(btil.recordings.__all__)


# ---------------------------------------------------------------------- trajectories

PATHS = """time,agent,episode,x,y,latent
10.0,ann,1,0,0,shelf
10.4,bob,1,5,1,
10.5,ann,1,1,,shelf
11.5,ann,1,3,4,door
11.6,bob,1,7,2,door
14.2,ann,1,9,9,
2.0,bob,2,1,1,
3.0,bob,2,2,3,
"""


def test_trajectories_hold_the_last_value_within_the_gap(tmp_path):
    path = write(tmp_path, PATHS, "paths.csv")
    demos = btil.recordings.from_trajectories(path, 0.5, gap=1.0)
    assert demos.episode_lengths.tolist() == [9, 3]
    assert demos.episode_ids.tolist() == [1, 2]
    assert list(demos.continuous) == ["ann_x", "bob_x", "ann_y", "bob_y"]
    nan = np.nan
    # Steps at 10.0, 10.5, ... 14.0; then at 2.0, 2.5, 3.0.
    ann = [0, 1, 1, 3, 3, 3, nan, nan, nan, nan, nan, nan]
    bob = [nan, 5, 5, nan, 7, 7, nan, nan, nan, 1, 1, 2]
    np.testing.assert_array_equal(demos.continuous["ann_x"], ann)
    np.testing.assert_array_equal(demos.continuous["bob_x"], bob)
    # A blank is no observation: y of ann is seen at 10.0 and 11.5.
    ann_y = [0, 0, 0, 4, 4, 4, nan, nan, nan, nan, nan, nan]
    np.testing.assert_array_equal(demos.continuous["ann_y"], ann_y)
    assert demos.present[:, 0].tolist() == [True] * 9 + [False] * 3
    assert demos.present[:, 1].all()
    assert demos.num_actions == (0, 0)
    assert demos.latent_names["bob"] == ("door", "shelf")
    assert demos.latents[:, 0].tolist() == [1, 1, 1, 0, 0, 0, -1, -1, -1, -1, -1, -1]


def test_trajectories_on_the_line_between_observations(tmp_path):
    path = write(tmp_path, PATHS, "paths.csv")
    demos = btil.recordings.from_trajectories(path, 0.5, resample="linear", gap=1.2, keep_time=True)
    nan = np.nan
    times = demos.continuous["time"]
    np.testing.assert_allclose(times, [*np.arange(10, 14.1, 0.5), 2, 2.5, 3])
    ann = [0, 1, 2, 3, nan, nan, nan, nan, nan]  # from 11.5 to 14.2 is longer than the gap
    np.testing.assert_allclose(demos.continuous["ann_x"][:9], ann)
    bob = np.interp(times, [10.4, 11.6], [5, 7], left=nan, right=nan)
    np.testing.assert_allclose(demos.continuous["bob_x"][:9], bob[:9])
    np.testing.assert_allclose(demos.continuous["bob_y"][9:], [1, 2, 3])


@pytest.mark.parametrize("resample", ["last", "linear"])
def test_steps_that_meet_the_observations_give_them_back(resample):
    """Tenths of a second since 1970 are no exact numbers."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(200, 2))
    for start in (0.0, 1_714_564_800.0):
        frame = pd.DataFrame(
            {
                "time": np.tile(start + np.arange(100) / 10, 2),
                "agent": np.repeat(["b", "a"], 100),
                "x": values[:, 0],
                "y": values[:, 1],
            }
        )
        mixed = frame.sample(frac=1, random_state=1)
        demos = btil.recordings.from_trajectories(
            mixed, 0.1, resample=resample, gap=0.1, agents=["a", "b"], num_latents=2
        )
        assert demos.num_steps == 100
        np.testing.assert_array_equal(demos.continuous["b_x"], values[:100, 0])
        np.testing.assert_array_equal(demos.continuous["a_y"], values[100:, 1])


@pytest.mark.parametrize("resample", ["last", "linear"])
def test_resampling_agrees_with_a_slow_search(resample):
    rng = np.random.default_rng(5)
    number = 120
    frame = pd.DataFrame(
        {
            "time": rng.choice(4000, number, replace=False) / 100,
            "agent": rng.choice(["ann", "bob"], number),
            "episode": rng.choice([4, 2, 9], number),
            "x": np.where(rng.random(number) < 0.2, np.nan, rng.normal(size=number)),
        }
    )
    step, gap = 0.25, 1.5
    demos = btil.recordings.from_trajectories(
        frame, step, ["x"], gap=gap, resample=resample, agents=["ann", "bob"]
    )
    expected = []
    for one in frame["episode"].unique():
        rows = frame[frame["episode"] == one]
        now, last = rows["time"].min(), rows["time"].max()
        for k in range(int((last - now) / step + 1e-9) + 1):
            values = []
            for agent in ("ann", "bob"):
                seen = rows[(rows["agent"] == agent) & rows["x"].notna()].sort_values("time")
                before = seen[seen["time"] <= now + k * step + 1e-9]
                after = seen[seen["time"] > now + k * step + 1e-9]
                values.append(np.nan)
                if not len(before):
                    continue
                (t_a, v_a) = before.iloc[-1][["time", "x"]]
                since = now + k * step - t_a
                if resample == "last":
                    values[-1] = v_a if since <= gap + 1e-9 else np.nan
                elif since < 1e-9:
                    values[-1] = v_a
                elif len(after) and after.iloc[0]["time"] - t_a <= gap + 1e-9:
                    (t_b, v_b) = after.iloc[0][["time", "x"]]
                    values[-1] = v_a + (v_b - v_a) * since / (t_b - t_a)
            expected.append(values)
    found = np.stack([demos.continuous["ann_x"], demos.continuous["bob_x"]], axis=1)
    assert 0.1 < np.isnan(found).mean() < 0.9
    np.testing.assert_allclose(found, expected)


def test_the_gap_is_two_steps_where_none_is_given():
    table = {"time": [0.0, 0.25, 4], "agent": ["a", "b", "a"], "x": [1.0, 2, 3]}
    found = btil.recordings.from_trajectories(table, 0.5, ["x"])
    assert found.num_steps == 9
    np.testing.assert_array_equal(found.continuous["a_x"], [1] * 3 + [np.nan] * 5 + [3])
    np.testing.assert_array_equal(found.continuous["b_x"], [np.nan, 2, 2] + [np.nan] * 6)
    assert list(found.continuous) == ["a_x", "b_x"]
    # Labels of the last observation within the gap, whose they are; a blank one is unknown.
    labelled = table | {"latent": ["up|down", "down", "up"]}
    found = btil.recordings.from_trajectories(labelled, 0.5, ["x"], gap=0.5)
    assert found.latents.T.tolist() == [[-1] * 8 + [1], [-1, 0] + [-1] * 7]
    np.testing.assert_array_equal(found.latent_weights["a"], np.ones((9, 2)))
    with pytest.raises(ValueError, match="keep_time: there is a column 'a_x' already"):
        btil.recordings.from_trajectories(
            {"a_x" if name == "time" else name: cells for name, cells in table.items()},
            0.5, ["x"], time="a_x", keep_time=True,
        )  # fmt: skip
    with pytest.raises(ValueError, match="columns: different names expected, got 'x', 'x'"):
        btil.recordings.from_trajectories(table, 0.5, ["x", "x"])
    with pytest.raises(ValueError, match="columns: different names expected, got nothing"):
        btil.recordings.from_trajectories(table, 0.5, [])


def test_columns_of_trajectories_by_other_names_and_what_is_declared_of_labels():
    table = {
        "when": [0, 0, 1, 1, 5, 6],
        "who": ["bob", "ann", "bob", "ann", "ann", "ann"],
        "day": ["d2", "d2", "d2", "d2", "d1", "d1"],
        "doing": ["rest", "?", "lift", "lift|rest", "", "lift"],
        "east": [1.0, 2, 3, 4, 5, 6],
        "time": ["never read"] * 6,
    }
    found = btil.recordings.from_trajectories(
        table, 1, ["east"], time="when", agent="who", episode="day", latent="doing",
        agents=["ann", "bob"], latent_names=["rest", "walk", "lift"], unknown_labels=["?"],
    )  # fmt: skip
    assert found.episode_ids.tolist() == ["d2", "d1"]
    assert found.agents == ("ann", "bob")
    nan = np.nan
    np.testing.assert_array_equal(found.continuous["ann_east"], [2, 4, 5, 6])
    np.testing.assert_array_equal(found.continuous["bob_east"], [1, 3, nan, nan])
    assert found.present.tolist() == [[True, True]] * 2 + [[True, False]] * 2
    assert found.latent_names == dict.fromkeys(("ann", "bob"), ("rest", "walk", "lift"))
    assert found.latents.T.tolist() == [[-1, -1, -1, 2], [0, 2, -1, -1]]
    assert found.latent_weights["ann"].tolist() == [[1] * 3, [1, 0, 1], [1] * 3, [1] * 3]
    one = btil.recordings.from_trajectories(
        table, 1, ["east"], time="when", agent="who", episode=None, latent=None, num_latents=4
    )
    assert (one.num_episodes, one.num_steps, one.num_latents) == (1, 7, (4, 4))
    assert (one.latents == -1).all()


def test_a_gap_is_as_long_as_it_is():
    table = {"time": [0.0, 1.0, 2.5], "agent": ["a"] * 3, "x": [0.0, 4.0, 7.0]}

    def read(resample, gap):
        found = btil.recordings.from_trajectories(table, 0.25, ["x"], resample=resample, gap=gap)
        return found.continuous["a_x"].tolist()

    seen = [0, 0, 0, np.nan, 4, 4, 4, np.nan, np.nan, np.nan, 7]
    np.testing.assert_array_equal(read("last", 0.5), seen)
    np.testing.assert_array_equal(read("last", 0.49), [*[0, 0, np.nan] * 1, np.nan, *seen[4:6],
                                                       *[np.nan] * 4, 7])  # fmt: skip
    line = [0, 1, 2, 3, 4, *[np.nan] * 5, 7]
    np.testing.assert_allclose(read("linear", 1.0), line)
    np.testing.assert_allclose(read("linear", 1.5), [0, 1, 2, 3, 4, 4.5, 5, 5.5, 6, 6.5, 7])
    np.testing.assert_array_equal(read("linear", 0.99), [0, *[np.nan] * 3, 4, *[np.nan] * 5, 7])


def test_times_with_a_zone_are_seconds_since_1970():
    stamps = ["1970-01-01T01:00:00.25+01:00", "1970-01-01T00:00:03Z"]
    table = {"time": stamps, "agent": ["a", "a"], "x": [1.0, 3.0]}
    found = btil.recordings.from_trajectories(table, 1, ["x"], keep_time=True)
    assert found.continuous["time"].tolist() == [0.25, 1.25, 2.25]


def test_dates_are_times():
    stamps = pd.to_datetime(["2024-05-01 12:00:00", "2024-05-01 12:00:02"])
    for time in (stamps, [str(stamp) for stamp in stamps]):
        frame = pd.DataFrame({"time": time, "agent": "a", "x": [1.0, 3.0]})
        demos = btil.recordings.from_trajectories(frame, 1, ["x"], resample="linear")
        assert demos.continuous["a_x"].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("10.5,ann", "10.0,ann"), "line 4, column 'time': '10.0': 'ann' has a row .* line 2"),
        (
            ("10.5,ann", "soon,ann"),
            "line 4, column 'time': 'soon' is not allowed; expected a finite",
        ),
        (("11.5,ann,1,3", "11.5,ann,1,far"), "line 5, column 'x': 'far' .* or a blank"),
        (("11.5,ann", "11.5,"), "line 5, column 'agent': '' is not allowed"),
        (("agent,episode", "who,episode"), "there is no column 'agent'"),
        (("14.2,ann", "1e12,ann"), "more than 10,000,000 steps of 0.5"),
    ],
)
def test_bad_trajectories_are_refused_with_their_place(tmp_path, change, message):
    path = write(tmp_path, PATHS.replace(*change), "paths.csv")
    with pytest.raises(ValueError, match=f"paths.csv: .*({message})"):
        btil.recordings.from_trajectories(path, 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 0}, "step must be a positive number, got 0"),
        ({"step": 1, "gap": -1}, "gap must be a positive number, got -1"),
        ({"step": 1, "resample": "mean"}, "resample must be one of last, linear, got 'mean'"),
        ({"step": 1, "columns": ["z"]}, "no column 'z'"),
        ({"step": 1, "columns": "x"}, "columns: a sequence of texts expected"),
    ],
)
def test_bad_options_of_trajectories_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        btil.recordings.from_trajectories({"time": [0], "agent": ["a"], "x": [0]}, **options)


# ---------------------------------------------------------------------- intervals

EAF = """<?xml version="1.0" encoding="UTF-8"?>
<ANNOTATION_DOCUMENT AUTHOR="" DATE="2024-05-01T12:00:00+01:00" FORMAT="3.0" VERSION="3.0">
  <HEADER MEDIA_FILE="" TIME_UNITS="milliseconds"/>
  <TIME_ORDER>
    <TIME_SLOT TIME_SLOT_ID="ts1" TIME_VALUE="500"/>
    <TIME_SLOT TIME_SLOT_ID="ts2" TIME_VALUE="2000"/>
    <TIME_SLOT TIME_SLOT_ID="ts3" TIME_VALUE="1000"/>
    <TIME_SLOT TIME_SLOT_ID="ts4"/>
    <TIME_SLOT TIME_SLOT_ID="ts5" TIME_VALUE="3000"/>
  </TIME_ORDER>
  <TIER TIER_ID="intent" PARTICIPANT="ann" LINGUISTIC_TYPE_REF="t">
    <ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="a1" TIME_SLOT_REF1="ts1"
      TIME_SLOT_REF2="ts2"><ANNOTATION_VALUE>lift</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>
    </ANNOTATION>
    <ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="a9" TIME_SLOT_REF1="ts2"
      TIME_SLOT_REF2="ts5"><ANNOTATION_VALUE/></ALIGNABLE_ANNOTATION></ANNOTATION>
  </TIER>
  <TIER TIER_ID="bob" LINGUISTIC_TYPE_REF="t">
    <ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="a2" TIME_SLOT_REF1="ts3"
      TIME_SLOT_REF2="ts4"><ANNOTATION_VALUE>carry</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>
    </ANNOTATION>
    <ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="a3" TIME_SLOT_REF1="ts4"
      TIME_SLOT_REF2="ts5"><ANNOTATION_VALUE>rest</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION>
    </ANNOTATION>
  </TIER>
  <TIER TIER_ID="words" PARENT_REF="intent" PARTICIPANT="ann" LINGUISTIC_TYPE_REF="t">
    <ANNOTATION><REF_ANNOTATION ANNOTATION_ID="a4" ANNOTATION_REF="a1">
      <ANNOTATION_VALUE>up</ANNOTATION_VALUE></REF_ANNOTATION></ANNOTATION>
    <ANNOTATION><REF_ANNOTATION ANNOTATION_ID="a5" ANNOTATION_REF="a1"
      PREVIOUS_ANNOTATION="a4"><ANNOTATION_VALUE>now</ANNOTATION_VALUE></REF_ANNOTATION>
    </ANNOTATION>
  </TIER>
</ANNOTATION_DOCUMENT>
"""
CODED = [
    Interval(0.5, 2.0, "lift", "ann", "intent"),
    Interval(1.0, 2.0, "carry", "bob", "bob"),
    Interval(2.0, 3.0, "rest", "bob", "bob"),
]


def test_elans_own_file(tmp_path):
    found = read_intervals(write(tmp_path, EAF, "coded.eaf"))
    assert found[:3] == CODED
    # Two annotations without times share those of the one that they refer to.
    assert found[3:] == [
        Interval(0.5, 1.25, "up", "ann", "words"),
        Interval(1.25, 2.0, "now", "ann", "words"),
    ]


# All forms of time, as ELAN writes them by default.
ELAN_ROWS = (
    '"#file:///C:/video.mp4 -- offset: 0"\n'
    "intent\tann\t00:00:00.500\t0.500\t500\t00:00:02.000\t2.000\t2000\t00:00:01.500\t1.500\t1500"
    "\tlift\n"
    "bob\t\t00:00:01.000\t1.000\t1000\t00:00:02.000\t2.000\t2000\t00:00:01.000\t1.000\t1000\tcarry\n"
    "bob\t\t00:00:02.000\t2.000\t2000\t00:00:03.000\t3.000\t3000\t00:00:01.000\t1.000\t1000\trest\n"
)
ELAN_TIERS = (
    "Tier\tParticipant\tBegin Time - hh:mm:ss.ms\tEnd Time - hh:mm:ss.ms\tDefault\n"
    "intent\tann\t00:00:00.500\t00:00:02.000\tlift\n"
    "bob\t\t00:00:01.000\t00:00:02.000\tcarry\n"
    "bob\t\t00:00:02.000\t00:00:03.000\trest\n"
)
ELAN_WIDE = (
    "Begin Time - ss.msec\tDuration - ss.msec\tann\tbob\n"
    "0.500\t1.500\tlift\n"
    "1.000\t1.000\t\tcarry\n"
    "2.000\t1.000\t\trest\n"
)


@pytest.mark.parametrize("text", [ELAN_ROWS, ELAN_TIERS, ELAN_WIDE])
def test_elans_tables(tmp_path, text):
    found = read_intervals(write(tmp_path, text, "coded.txt"))
    assert [one[:4] for one in found] == [one[:4] for one in CODED]
    if text != ELAN_WIDE:  # which has no participants: a tier's name says who it is
        assert found == CODED


def test_a_quote_in_elans_text_is_a_character(tmp_path):
    text = ELAN_TIERS.replace("lift", '"lift')
    assert read_intervals(write(tmp_path, text, "coded.txt"))[0].label == '"lift'


def test_clock_times_have_hours_and_minutes(tmp_path):
    text = ELAN_TIERS.replace("00:00:01.000", "01:02:03.25").replace(
        "00:00:02.000\tcar", "02:00:00\tcar"
    )
    assert read_intervals(write(tmp_path, text, "coded.txt"))[1] == (
        Interval(3723.25, 7200.0, "carry", "bob", "bob")
    )
    # Of several forms milliseconds are the exact one; else the first.
    rows = "t\tann\t00:00:01.5\t1.501\t1502\t00:00:02\t2.001\t2002\tx\n"
    assert read_intervals(write(tmp_path, rows, "a.txt"))[0][:2] == (1.502, 2.002)
    rows = "t\tann\t00:00:01.5\t1.501\t00:00:02\t2.001\tx\n"
    assert read_intervals(write(tmp_path, rows, "a.txt"))[0][:2] == (1.5, 2.0)
    # Of a table with names the last form that is known.
    head = "Tier\tBegin Time - msec\tBegin Time - ss.msec\tEnd Time - ss.msec\tDefault\n"
    found = read_intervals(write(tmp_path, f"{head}ann\t1500\t1.4\t2.5\tx\n", "a.txt"))
    assert found == [Interval(1.5, 2.5, "x", "ann", "ann")]
    # The end goes before a duration.
    head = "Begin Time\tEnd Time\tDuration\tParticipant\tann\n"
    row = "00:00:01.0\t00:00:03.5\t00:00:09.0\tzoe\tx\n"
    found = read_intervals(write(tmp_path, head + row, "a.txt"))
    assert found == [Interval(1.0, 3.5, "x", "zoe", "ann")]


def test_cells_without_an_annotation_are_none(tmp_path):
    wide = ELAN_WIDE + "9.000\t1.000\tup\tdown\n10.000\t1.000\n"
    found = read_intervals(write(tmp_path, wide, "wide.txt"))
    assert [one[:4] for one in found[3:]] == [(9, 10, "up", "ann"), (9, 10, "down", "bob")]
    assert len(read_intervals(write(tmp_path, ELAN_ROWS.replace("carry", ""), "a.txt"))) == 2


def test_times_that_elan_left_open_and_annotations_of_annotations(tmp_path):
    slots = {"a": 1000, "b": None, "c": None, "d": 4000, "e": 6000}
    order = "".join(
        f'<TIME_SLOT TIME_SLOT_ID="{name}"' + (f' TIME_VALUE="{at}"/>' if at else "/>")
        for name, at in slots.items()
    )

    def alignable(name, begin, end):
        return (
            f'<ANNOTATION><ALIGNABLE_ANNOTATION ANNOTATION_ID="{name}" TIME_SLOT_REF1="{begin}" '
            f'TIME_SLOT_REF2="{end}"><ANNOTATION_VALUE>{name}</ANNOTATION_VALUE>'
            "</ALIGNABLE_ANNOTATION></ANNOTATION>"
        )

    def referring(name, to):
        return (
            f'<ANNOTATION><REF_ANNOTATION ANNOTATION_ID="{name}" ANNOTATION_REF="{to}">'
            f"<ANNOTATION_VALUE>{name}</ANNOTATION_VALUE></REF_ANNOTATION></ANNOTATION>"
        )

    def document(*tiers):
        inner = "".join(
            f'<TIER TIER_ID="t{k}">{"".join(one)}</TIER>' for k, one in enumerate(tiers)
        )
        text = f"<ANNOTATION_DOCUMENT><TIME_ORDER>{order}</TIME_ORDER>{inner}</ANNOTATION_DOCUMENT>"
        return write(tmp_path, text, "coded.eaf")

    aligned = [alignable("p", "a", "b"), alignable("q", "b", "c"), alignable("r", "c", "d")]
    words = [referring(name, "r") for name in ("x", "y", "z")]
    # A tier may refer to one below; its own annotations may be referred to.
    found = read_intervals(document([referring("l", "y"), referring("m", "y")], aligned, words))
    times = {one.label: (one.begin, one.end) for one in found}
    assert times["p"] == (1, 2)
    assert times["q"] == (2, 3)
    assert times["r"] == (3, 4)
    np.testing.assert_allclose([times["x"], times["z"]], [(3, 3 + 1 / 3), (3 + 2 / 3, 4)])
    np.testing.assert_allclose([times["l"], times["m"]], [(3 + 1 / 3, 3.5), (3.5, 3 + 2 / 3)])
    assert {one.tier: one.member for one in found} == {"t0": "t0", "t1": "t1", "t2": "t2"}
    for tiers, message in (
        (
            [[alignable("p", "d", "e"), alignable("p", "d", "e")]],
            "'t0', annotation 'p': there is an",
        ),
        (
            [[alignable("p", "d", "e")], [referring("p", "p")]],
            "'t1', annotation 'p': there is anoth",
        ),
        ([[alignable("p", "b", "d")]], "tier 't0': time slot 'b' has no time, nor a neighbour's"),
        ([[alignable("p", "a", "b")]], "tier 't0': time slot 'b' has no time, nor a neighbour's"),
        ([[referring("l", "m"), referring("m", "l")]], "there is no annotation '.' with times"),
        ([[referring("l", "m")]], "annotation 'l': there is no annotation 'm' with times to refer"),
    ):
        with pytest.raises(ValueError, match=message):
            read_intervals(document(*tiers))


BORIS_EVENTS = """Observation id,Subject,Behavior,Behavioral category,Modifier #1,Behavior type,Time
day 1,ann,lift,work,,START,0.500
day 1,bob,carry,work,left,START,1.000
day 1,bob,call,talk,,POINT,1.250
day 1,ann,lift,work,,STOP,2.000
day 1,bob,carry,work,left,STOP,2.000
day 2,bob,rest,"none, so far",,START,2.000
day 2,bob,rest,"none, so far",,STOP,3.000
"""
BORIS_AGGREGATED = """Observation id,Subject,Behavior,Behavior type,Start (s),Stop (s),Duration (s)
day 1,ann,lift,STATE,0.500,2.000,1.500
day 1,bob,carry,STATE,1.000,2.000,1.000
day 1,bob,call,POINT,1.250,1.250,NA
day 2,bob,rest,STATE,2.000,3.000,1.000
"""
BORIS_CODED = [
    Interval(0.5, 2.0, "lift", "ann", "ann", "day 1"),
    Interval(1.0, 2.0, "carry", "bob", "bob", "day 1"),
    Interval(1.25, 1.25, "call", "bob", "bob", "day 1"),
    Interval(2.0, 3.0, "rest", "bob", "bob", "day 2"),
]


def test_boris_tables(tmp_path):
    for text in (BORIS_EVENTS, BORIS_AGGREGATED):
        assert read_intervals(write(tmp_path, text, "coded.csv")) == BORIS_CODED
    tabs = BORIS_AGGREGATED.replace(",", "\t").replace("day 1", '"day 1"')
    assert read_intervals(write(tmp_path, tabs, "coded.tsv")) == BORIS_CODED


def test_rows_whose_first_cell_is_blank_are_rows(tmp_path):
    lines = [
        f"{'a note' if k < 3 else ''},{line}" for k, line in enumerate(BORIS_AGGREGATED.split("\n"))
    ]
    path = write(tmp_path, "# of today\n\n" + "\n".join(lines[:-1]), "coded.csv")
    with pytest.raises(ValueError, match="columns of BORIS"):
        read_intervals(write(tmp_path, path.read_text().replace("Subject", "Who"), "who.csv"))
    assert read_intervals(path) == BORIS_CODED
    tabs = write(tmp_path, "\n# of today\n" + "\n".join(lines[:-1]).replace(",", "\t"), "coded.tsv")
    assert read_intervals(tabs) == BORIS_CODED


def test_what_begins_ends_by_its_modifiers_and_observation(tmp_path):
    head = "Observation id,Subject,Behavior,Modifier #1,Behavior type,Time\n"
    rows = [
        "1,ann,lift,left,START,1", "1,ann,lift,right,START,2", "1,bob,lift,left,START,3",
        ",ann,lift,left,START,4", ",ann,lift,left,STOP,5", "1,ann,lift,right,stop,6",
        "1,bob,lift,left,STOP,7", "1,ann,lift,left,STOP,8", "1,ann,lift,left,START,8",
        "1,ann,lift,left,STOP,9",
    ]  # fmt: skip
    found = read_intervals(write(tmp_path, head + "\n".join(rows), "coded.csv"))
    assert found == [
        Interval(1, 8, "lift", "ann", "ann", "1"),
        Interval(2, 6, "lift", "ann", "ann", "1"),
        Interval(3, 7, "lift", "bob", "bob", "1"),
        Interval(4, 5, "lift", "ann", "ann", None),
        Interval(8, 9, "lift", "ann", "ann", "1"),
    ]


def test_older_boris_tables_have_lines_above(tmp_path):
    above = "Observation id\tday 1\t\n\t\t\nPlayer #1\tvideo.mp4\t\n"
    events = "Time\tSubject\tBehavior\tStatus\n0.5\tann\tlift\tSTART\n2\tann\tlift\tSTOP\n"
    found = read_intervals(write(tmp_path, above + events, "old.tsv"))
    assert found == BORIS_CODED[:1]


@pytest.mark.parametrize(
    ("name", "text", "change", "message"),
    [
        ("c.eaf", EAF, ('"2000"', '"two"'), "time slot 'ts2': 'two' .* milliseconds"),
        ("c.eaf", EAF, ('"2000"', '"200"'), "tier 'intent', annotation 'a1': ends at 0.2, before"),
        (
            "c.eaf",
            EAF,
            ('REF1="ts3"', 'REF1="ts8"'),
            "annotation 'a2': there is no time slot 'ts8'",
        ),
        ("c.eaf", EAF, ('ID="ts5" TIME_VALUE="3000"', 'ID="ts5"'), "time slot .* has no time"),
        ("c.eaf", EAF, ('REF="a1">', 'REF="a4">'), "there is no annotation 'a4' with times"),
        ("c.eaf", EAF, ("</TIER>", ""), "line .*: no XML"),
        ("c.eaf", EAF, ('TIER_ID="bob"', ""), "a tier: TIER has no TIER_ID; expected one"),
        ("c.eaf", EAF, ('ANNOTATION_ID="a2"', ""), "tier 'bob': ALIGNABLE_ANNOTATION has no ANN"),
        ("c.eaf", EAF, ('TIME_SLOT_ID="ts2"', ""), "TIME_ORDER: TIME_SLOT has no TIME_SLOT_ID"),
        (
            "c.eaf",
            EAF,
            ('UNITS="milli', 'UNITS="'),
            "HEADER: TIME_UNITS 'seconds'; expected 'milli",
        ),
        ("c.eaf", "<A/>", ("", ""), "expected an ANNOTATION_DOCUMENT of ELAN, found 'A'"),
        ("c.eaf", EAF, ("<ANNOTATION_DOC", "<!ENTITY x><ANNOTATION_DOC"), "a document type or ent"),
        (
            "c.txt",
            ELAN_TIERS,
            ("Default", "a\tb"),
            "line 1: expected a column 'Tier' and one of an",
        ),
        ("c.txt", ELAN_TIERS, ("\tlift", "\tlift\tx"), "line 2: 6 cells, but the columns are 5"),
        ("c.txt", ELAN_WIDE, ("\tann\tbob", ""), "line 1: expected a column 'Tier' and one"),
        (
            "c.txt",
            ELAN_WIDE,
            ("0.500\t1.500", "0.500\t-1.5"),
            "line 2, column 'Dur.*: '-1.5' is not",
        ),
        ("c.txt", "#a\n\n", ("", ""), "there are no rows"),
        ("c.txt", "a\tb\tc\n", ("", ""), "line 1: neither"),
        ("c.csv", "Subject,Time\nann,1\n", ("", ""), "line 1: neither"),
        (
            "c.csv",
            BORIS_EVENTS,
            ("STOP,2.000", "START,2.000"),
            "line 5: 'lift' of 'ann' begins, but what began in line 2 has not ended",
        ),
        (
            "c.csv",
            BORIS_EVENTS,
            ('day 2,bob,rest,"none, so far",,STOP,3.000\n', ""),
            "line 7: 'rest' of 'bob' begins and never ends",
        ),
        (
            "c.csv",
            BORIS_EVENTS,
            ("STOP,2.000", "STOP,0.25"),
            "line 5: ends at 0.25, before it begins at 0.5",
        ),
        ("c.csv", BORIS_AGGREGATED, ("1.000,2.000,1.000", "1.000,2.000"), "line 3: 6 cells, but"),
        ("c.csv", BORIS_AGGREGATED, ("ann,lift", "ann,"), "line 2: there is no label"),
        ("c.eaf", EAF, ("<ANNOTATION_DOC", "<!DOCTYPE x><ANNOTATION_DOC"), "a document type"),
        ("c.txt", ELAN_ROWS, ("0.500\t500", "0.5.0\t500"), "line 2: neither an export of ELAN"),
        ("c.txt", ELAN_ROWS, ("1.000\t1000\tcarry", "carry"), "line 3: .* in the same forms"),
        ("c.txt", ELAN_TIERS, ("00:00:01.000", "00:01"), "line 3, column 'Begin .*: '00:01' .* hh"),
        (
            "c.txt",
            ELAN_TIERS,
            ("Begin Time -", "Temps -"),
            "neither an export of ELAN nor of BORIS",
        ),
        ("c.txt", ELAN_WIDE, ("Duration -", "Length -"), "'End Time - ...'"),
        ("c.csv", BORIS_EVENTS, ("STOP,2.000", "STOP,x"), "line 5, column 'Time': 'x' .* seconds"),
        (
            "c.csv",
            BORIS_EVENTS,
            ("left,STOP", ",STOP"),
            "line 6: 'carry' of 'bob' ends, but has not",
        ),
        ("c.csv", BORIS_EVENTS, ("START,1.000", "GO,1.000"), "line 3, .*: 'GO' .* START, STOP or"),
        ("c.csv", BORIS_EVENTS, ("bob,rest", "ann,rest"), "line 8: 'rest' of 'bob' ends"),
        ("c.csv", BORIS_AGGREGATED, ("1.000,2.000", "1.000,NA"), "line 3, column 'Stop .*: 'NA'"),
        ("c.csv", BORIS_AGGREGATED, ("Subject", "Who"), "line 1: .* are needed: 'subject'"),
        ("c.csv", BORIS_AGGREGATED, ("day 1,ann", "day 1,"), "line 2: there is no member"),
        ("c.csv", "a,b\n1,2\n", ("", ""), "line 1: neither"),
        ("c.doc", "a,b\n1,2\n", ("", ""), "the ending must be one of .eaf, .txt"),
    ],
)
def test_bad_annotations_are_refused_with_their_place(tmp_path, name, text, change, message):
    path = write(tmp_path, text.replace(*change, 1), name)
    with pytest.raises(ValueError, match=f"{name}: .*{message}"):
        read_intervals(path)


def pair(lengths=(6,), **more):
    steps = sum(lengths)
    return btil.Demonstrations(
        np.zeros(steps, int),
        {"ann": np.zeros(steps, int), "bob": np.zeros(steps, int)},
        episodes=np.repeat(np.arange(len(lengths)), lengths),
        num_states=1,
        **({"num_actions": 1, "num_latents": 1} | more),
    )


def test_labels_by_time():
    both = [*CODED, Interval(1.5, 2.5, "rest", "ann")]
    demos = label_by_intervals(pair(), both, step=0.5)
    assert demos.latent_names["ann"] == demos.latent_names["bob"] == ("carry", "lift", "rest")
    # Steps at 0, .5, ... 2.5; in the step at 1.5 ann may have either.
    assert demos.latents[:, 0].tolist() == [-1, 1, 1, -1, 2, -1]
    assert demos.latents[:, 1].tolist() == [-1, -1, 0, 0, 2, 2]
    weights = demos.latent_weights["ann"]
    assert weights[3].tolist() == [0, 1, 1]
    assert (np.delete(weights, 3, axis=0) == 1).all()
    assert "bob" not in demos.latent_weights
    again = label_by_intervals(demos, CODED, step=0.5)  # of the labels before nothing is left
    assert again.latents[:, 0].tolist() == [-1, 1, 1, 1, -1, -1]
    assert again.latent_weights == {}
    later = label_by_intervals(pair(), CODED, times=np.arange(6) / 2 + 0.25, start=0)
    assert later.latents[:, 1].tolist() == [-1, -1, 0, 0, 2, 2]
    shifted = label_by_intervals(pair(), CODED, step=0.5, start=0.5)
    assert shifted.latents[:, 1].tolist() == [-1, 0, 0, 2, 2, -1]


def test_joining_agrees_with_a_slow_search():
    rng = np.random.default_rng(8)
    demos = pair((40, 30), num_latents=3, latent_names=["a", "b", "c"])
    begins = rng.integers(3, 31, 25) / 10
    coded = [
        Interval(begin, begin + rng.integers(5, 20) / 10, label, member, "", observation)
        for begin, label, member, observation in zip(
            begins,
            rng.choice(["a", "b", "c"], 25),
            rng.choice(["ann", "bob"], 25),
            rng.choice(["0", "1"], 25),
            strict=True,
        )
    ]
    found = label_by_intervals(demos, coded, step=0.1, start={0: 0.3, 1: 0.7})
    sets = 0
    for row in range(70):
        episode, step = (0, row) if row < 40 else (1, row - 40)
        tenth = step + (3 if episode == 0 else 7)
        for k, agent in enumerate(demos.agents):
            labels = {
                one.label
                for one in coded
                if one.member == agent
                and one.episode == str(episode)
                and round(one.begin * 10) <= tenth < round(one.end * 10)
            }
            only = "abc".index(labels.copy().pop()) if len(labels) == 1 else -1
            assert found.latents[row, k] == only
            weights = [1.0] * 3 if len(labels) < 2 else [float(x in labels) for x in "abc"]
            assert found.latent_weights[agent][row].tolist() == weights
            sets += len(labels) > 1
    assert sets > 10


def test_only_the_tiers_asked_for_and_other_labels_stay():
    before = pair(latents={"bob": [0, 0, 1, 1, -1, -1]}, num_latents=2)
    words = [Interval(0, 9, "hello", "ann", "words"), *CODED[:1]]
    demos = label_by_intervals(
        before, words, step=0.5, tiers={"intent": "ann"}, latent_names=["lift", "rest"]
    )
    assert demos.latents[:, 0].tolist() == [-1, 0, 0, 0, -1, -1]
    assert demos.latents[:, 1].tolist() == before.latents[:, 1].tolist()
    again = label_by_intervals(demos, [Interval(0, 0.6, "rest", "ann")], step=0.5)
    assert again.latents[:, 0].tolist() == [1, 1, -1, -1, -1, -1]


def test_labels_of_all_who_are_spoken_of_are_replaced():
    before = pair(latents=[[0, 1]] * 6, num_latents=2, latent_names=["lift", "rest"])
    coded = [Interval(0, 0.6, "rest", "x", "a tier"), Interval(1, 2, "lift", "y", "")]
    tiers = {"a tier": "ann", "z": "bob"}
    found = label_by_intervals(before, coded, step=0.5, tiers=tiers)
    assert found.latents.T.tolist() == [[1, 1, -1, -1, -1, -1], [-1] * 6]
    # The tier goes before the member.
    tiers = {"a tier": "bob", "x": "ann", "y": "ann"}
    found = label_by_intervals(before, coded, step=0.5, tiers=tiers)
    assert found.latents.T.tolist() == [[-1, -1, 0, 0, -1, -1], [1, 1, -1, -1, -1, -1]]
    assert found.num_latents == (2, 2)
    # Names of others stay, those of whom is spoken of are declared anew.
    given = label_by_intervals(
        before, [Interval(0, 0.6, "up", "ann")], step=0.5, latent_names=["up", "down", "lift"]
    )
    assert given.latent_names == {"ann": ("up", "down", "lift"), "bob": ("lift", "rest")}
    assert given.num_latents == (3, 2)
    assert given.latents.T.tolist() == [[0, 0, -1, -1, -1, -1], [1] * 6]


def test_an_observation_is_an_episode_by_its_name_or_the_only_one():
    demos = pair((3, 4)).replace(episodes=[7, 7, 7, 8, 8, 8, 8])
    day = [Interval(0.5, 1.5, "lift", "ann", "", "8")]
    assert label_by_intervals(demos, day, step=0.5).latents[:, 0].tolist() == [*[-1] * 4, 0, 0, -1]
    other = [Interval(0.5, 1.5, "lift", "ann", "", "day 1")]
    only = label_by_intervals(demos.select([1]), other, step=0.5)
    assert only.latents[:, 0].tolist() == [-1, 0, 0, -1]
    both = [*other, Interval(0.5, 1.5, "lift", "ann", "", "day 2")]
    with pytest.raises(ValueError, match=r"there is no episode 'day [12]'; .* are 8; episodes="):
        label_by_intervals(demos.select([1]), both, step=0.5)
    with pytest.raises(
        ValueError, match="episodes: observation 'day 1' is left out; found 'day 2'"
    ):
        label_by_intervals(demos, other, step=0.5, episodes={"day 2": 7})
    with pytest.raises(ValueError, match=r"episodes: there is no episode 9; .* are 7, 8"):
        label_by_intervals(demos, other, step=0.5, episodes={"day 1": 9})


@pytest.mark.parametrize("offset", [0.0, 1.7e9])
def test_an_interval_begins_with_its_step_and_ends_before_one(offset):
    """Sums of tenths are no tenths, however large the clock's numbers are."""
    demos = pair((10,))
    for first in range(8):
        coded = [Interval(offset + first / 10, offset + (first + 2) / 10, "lift", "ann")]
        found = label_by_intervals(demos, coded, step=0.1, start=offset)
        assert np.flatnonzero(found.latents[:, 0] == 0).tolist() == [first, first + 1]
    exact = label_by_intervals(demos, [Interval(2, 4, "lift", "ann")], times=np.arange(10))
    assert np.flatnonzero(exact.latents[:, 0] == 0).tolist() == [2, 3]


def test_labels_go_to_their_episodes():
    demos = pair((3, 4))
    with pytest.warns(btil.DataWarning, match="1 interval of 4 label no step.*'call' of 'bob'"):
        found = label_by_intervals(
            demos, BORIS_CODED, step=0.5, start={0: 0.5, 1: 1.5}, episodes={"day 1": 0, "day 2": 1}
        )
    names = found.latent_names["ann"]
    assert names == ("call", "carry", "lift", "rest")
    assert found.latents[:, 0].tolist() == [2, 2, 2, -1, -1, -1, -1]
    assert found.latents[:, 1].tolist() == [-1, 1, 1, -1, 3, 3, -1]
    named = demos.replace(episodes=np.repeat(["day 1", "day 2"], [3, 4]))
    with pytest.warns(btil.DataWarning, match="label no step"):
        same = label_by_intervals(named, BORIS_CODED, step=0.5, start={"day 1": 0.5, "day 2": 1.5})
    assert same.latents.tolist() == found.latents.tolist()
    # One film of all episodes: by time alone.
    film = label_by_intervals(demos, CODED, times=np.arange(7) / 2)
    assert film.latents[:, 1].tolist() == [-1, -1, 0, 0, 2, 2, -1]
    one = label_by_intervals(demos, CODED[:2], step=0.5, episodes=1)
    assert one.latents[:, 1].tolist() == [-1, -1, -1, -1, -1, 0, 0]


@pytest.mark.parametrize(
    ("intervals", "options", "message"),
    [
        (CODED, {}, "times, step: expected one of the two"),
        (CODED, {"times": np.arange(3)}, r"times: numbers \(7,\) expected"),
        (CODED, {"times": [0, 1, 2, np.nan, 4, np.inf, 6]}, "times: step 3 of all: nan is not all"),
        (CODED, {"step": 0.5}, "which of 2 episodes .* episodes=<id>"),
        (CODED, {"step": 0.5, "episodes": 9}, "no episode 9; .* 0, 1"),
        (CODED, {"step": 0.5, "episodes": 0, "tiers": {"bob": "cleo"}}, "no agent 'cleo'"),
        (CODED, {"step": 0.5, "episodes": 0, "tiers": {"x": "bob"}}, "have 'bob', 'intent'"),
        (CODED, {"step": 0.5, "episodes": 0, "start": {1: 0}}, "start: episode 0 is left out"),
        (CODED, {"step": 0.5, "episodes": 0, "latent_names": ["lift"]}, "'carry' is not allowed"),
        (BORIS_CODED, {"step": 0.5}, "no episode 'day [12]'; .* episodes="),
        ([Interval(0, 1, "lift", "cleo")], {"step": 1}, "'lift' of 'cleo' .* tiers="),
        ([Interval(2, 1, "lift", "ann")], {"step": 1}, "ends before it begins"),
        ([("lift", 0, 1)], {"step": 1}, "number 0 .*: expected begin, end, label and member"),
        ([], {"step": 1}, "there are none"),
    ],
)
def test_bad_joins_are_refused(intervals, options, message):
    with pytest.raises(ValueError, match=message):
        label_by_intervals(pair((3, 4)), intervals, **options)


def test_intervals_label_nobody_who_is_away():
    demos = pair(present={"bob": [1, 1, 0, 0, 1, 1]})
    found = label_by_intervals(demos, [Interval(0.5, 2.5, "rest", "bob"), *CODED[:1]], step=0.5)
    assert found.latents.T.tolist() == [[-1, 0, 0, 0, -1, -1], [-1, 1, -1, -1, 1, -1]]
    with pytest.warns(btil.DataWarning, match="1 interval of 3 label no step.* is away then.*carr"):
        found = label_by_intervals(demos, CODED, step=0.5)
    assert found.latents[:, 1].tolist() == [-1, -1, -1, -1, 2, 2]


def test_declared_latents_without_names_are_not_lost():
    with pytest.raises(ValueError, match=r"'bob' has 3 latents without names.*latent_names="):
        label_by_intervals(pair(num_latents=3), CODED[1:], step=0.5)


# ---------------------------------------------------------------------- Minari


def episode(number, observations, actions, rewards=None, **more):
    """An episode with the fields of Minari's EpisodeData."""
    first = next(iter(actions.values())) if isinstance(actions, dict) else actions
    length = len(first)
    over = np.arange(length) == length - 1
    fields = {
        "id": number,
        "observations": observations,
        "actions": actions,
        "rewards": np.arange(length) / 2 if rewards is None else rewards,
        "terminations": over,
        "truncations": np.zeros(length, bool),
        "infos": {},
    }
    return SimpleNamespace(**(fields | more))


SPACE = spaces.Dict(
    {
        "seat": spaces.Discrete(5, start=1),
        "hand": spaces.Box(-1, 1, (2,)),
        "lamps": spaces.MultiBinary(2),
        "card": spaces.Box(0, 9, (1,), np.int64),
    }
)


def sampled(space, length, seed):
    space.seed(seed)
    drawn = [space.sample() for _ in range(length)]
    return {key: np.stack([one[key] for one in drawn]) for key in space.spaces}


def test_minari_episodes_with_their_spaces():
    seen = [sampled(SPACE, length + 1, length) for length in (3, 5)]
    actions = [np.array([[0, 2], [1, 0], [1, 1]]), np.array([[0, 0]] * 5)]
    dataset = SimpleNamespace(
        iterate_episodes=lambda: iter(
            [episode(k, *one) for k, one in enumerate(zip(seen, actions, strict=True))]
        ),
        observation_space=SPACE,
        action_space=spaces.MultiDiscrete([2, 3]),
    )
    demos = from_minari(dataset, agents=["ann"], latent_names=["left", "right"])
    assert demos.episode_lengths.tolist() == [3, 5]
    assert demos.num_states == {"lamps_0": 2, "lamps_1": 2, "seat": 5}
    # The last observation is no step; Discrete counts from its start.
    expected = np.concatenate([one["seat"][:-1] for one in seen]) - 1
    assert demos.state_variables["seat"].tolist() == expected.tolist()
    assert set(demos.continuous) == {"card_0", "hand_0", "hand_1"}
    hand = np.concatenate([one["hand"][:-1, 1] for one in seen])
    np.testing.assert_array_equal(demos.continuous["hand_1"], hand)
    assert demos.num_actions == (6,)
    assert demos.actions[:, 0].tolist() == [2, 3, 4, 0, 0, 0, 0, 0]
    assert demos.rewards.tolist() == [0, 0.5, 1, 0, 0.5, 1, 1.5, 2]
    assert demos.num_latents == (2,)
    assert (demos.latents == -1).all()


def test_minari_without_spaces_and_with_moves_that_are_no_whole_numbers():
    pushes = np.array([[0.5, 1], [2, 3]], np.float32)
    demos = from_minari(episode(7, np.array([2, 0, 1]), pushes))
    assert demos.episode_ids.tolist() == [7]
    assert demos.num_states == {"observation": 3}
    assert demos.num_actions == (0,)
    assert list(demos.continuous) == ["agent_0_action_0", "agent_0_action_1"]
    assert demos.continuous["agent_0_action_1"].tolist() == [1, 3]
    column = episode(7, np.array([2, 0, 1]), pushes, np.array([[0], [0.5]]))
    assert from_minari(column) == demos
    named = from_minari(
        [episode("a", np.array([[0, 0.5]] * 3), np.array([1, 0]))], observation_names=["x", "y"]
    )
    assert named.continuous["y"].tolist() == [0.5, 0.5]
    assert named.num_latents == (1,)


def test_minari_of_a_team():
    observations = {"ann": np.array([[0.0, 1]] * 3), "bob": {"cell": np.array([1, 0, 1])}}
    actions = {"ann": np.array([0, 1]), "bob": np.array([2, 1])}
    rewards = {"ann": np.array([2, 3]), "bob": np.array([0, 1])}
    over = {"ann": np.array([True, True]), "bob": np.array([False, True])}
    one = episode(0, observations, actions, rewards, terminations=over)
    space = spaces.Dict({"ann": spaces.Discrete(2), "bob": spaces.Discrete(4)})
    demos = from_minari([one], action_space=space, agents=["bob", "ann"])
    assert demos.agents == ("bob", "ann")
    assert demos.num_actions == (4, 2)
    assert demos.actions.tolist() == [[2, 0], [1, 1]]
    assert demos.rewards.tolist() == [[0, 2], [1, 3]]
    assert demos.num_states == {"bob_cell": 2}
    assert list(demos.continuous) == ["ann_0", "ann_1"]


def test_what_minari_does_not_know_can_be_told():
    actions = {"ann": np.array([0, 1]), "bob": np.array([2, 1])}
    ones = [episode(k, np.array([0, 1, 1]), actions) for k in range(2)]
    told = from_minari(
        ones,
        latents={"bob": ["up", None, "down", "up"], "ann": [1, 0, -1, 1]},
        num_latents={"ann": 3},
        latent_names={"bob": ["up", "down"]},
        action_names={"ann": ["go", "stay"], "bob": ["a", "b", "c"]},
    )
    assert told.latents.tolist() == [[1, 0], [0, -1], [-1, 1], [1, 0]]
    assert told.num_latents == (3, 2)
    assert told.latent_names == {"bob": ("up", "down")}
    assert told.action_names == {"ann": ("go", "stay"), "bob": ("a", "b", "c")}
    assert told.actions.tolist() == [[0, 2], [1, 1]] * 2
    assert from_minari(ones, num_latents=4).num_latents == (4, 4)


def test_parts_of_tuples_are_numbered():
    seen = (np.array([2, 0, 1]), {"a": np.array([[0.5, 1], [2, 3], [4, 5]]), "b": (np.arange(3),)})
    one = from_minari([episode("x", seen, np.array([1, 0]))])
    assert one.num_states == {"0": 3, "1_b_0": 3}
    assert {name: v.tolist() for name, v in one.continuous.items()} == {
        "1_a_0": [0.5, 2],
        "1_a_1": [1, 3],
    }
    space = spaces.Tuple(
        [
            spaces.Discrete(4),
            spaces.Dict({"b": spaces.Tuple([spaces.Discrete(7)]), "a": spaces.Box(0, 9, (2,))}),
        ]
    )
    known = from_minari([episode("x", seen, np.array([1, 0]))], observation_space=space)
    assert known.num_states == {"0": 4, "1_b_0": 7}
    assert known.continuous.keys() == one.continuous.keys()


def test_each_component_has_its_own_size_and_start():
    seen = np.array([[1, 4, 7], [2, 0, 9], [2, 3, 8]])
    space = spaces.MultiDiscrete([2, 5, 3], start=[1, 0, 7])
    demos = from_minari([episode(3, seen, np.array([1, 0]))], observation_space=space)
    assert demos.num_states == {"observation_0": 2, "observation_1": 5, "observation_2": 3}
    found = {name: values.tolist() for name, values in demos.state_variables.items()}
    assert found == {"observation_0": [0, 1], "observation_1": [4, 0], "observation_2": [0, 2]}
    with pytest.raises(ValueError, match="observations, step 1: 0 is not allowed; expected 7 to 9"):
        from_minari([episode(3, seen - [[0] * 3, [0, 0, 9], [0] * 3], np.array([1, 0]))],
                    observation_space=space)  # fmt: skip
    # Joint actions count from their starts, too; the first is the most significant.
    acts = spaces.MultiDiscrete([2, 3], start=[0, 5])
    one = episode(3, seen[:, 1], np.array([[1, 6], [0, 7]]))
    joint = from_minari([one], action_space=acts, agents=["ann"])
    assert (joint.num_actions, joint.actions.ravel().tolist()) == ((6,), [4, 2])


def test_an_episode_is_over_where_all_are():
    both = {"ann": np.array([0, 1, 1]), "bob": np.array([1, 0, 0])}
    over = {"ann": np.array([False, True, True]), "bob": np.array([False, False, True])}
    fields = {"observations": np.arange(4), "actions": both, "rewards": np.zeros(3)}
    good = episode(0, **fields, terminations=over)
    assert from_minari([good]).num_steps == 3
    column = episode(0, **fields, truncations=np.array([[False], [False], [True]]))
    assert from_minari([column]).num_actions == (2, 2)
    over = {"ann": np.array([False, True, True]), "bob": np.array([False, True, True])}
    for name in ("terminations", "truncations"):
        with pytest.raises(ValueError, match=f"episode 0, {name}: step 1 of 3 is the last one"):
            from_minari([episode(0, **fields, **{name: over})])


def test_sizes_of_minari_are_what_occurs_in_any_episode():
    ones = [
        episode(k, np.array(seen), np.array(acts), ids)
        for k, (seen, acts, ids) in enumerate(
            [([0, 1, 4], [0, 1], [0.5, 1]), ([2, 0, 1, 9], [2, 0, 1], [0, 0, 2])]
        )
    ]
    demos = from_minari(ones)
    # The last observations are no states, but values that there may be.
    assert demos.num_states == {"observation": 10}
    assert demos.num_actions == (3,)
    assert demos.states.tolist() == [0, 1, 2, 0, 1]
    assert demos.episodes.tolist() == [0, 0, 1, 1, 1]
    assert demos.rewards.tolist() == [0.5, 1, 0, 0, 2]
    mixed = [ones[0], episode(1, np.arange(3), np.array([0, 1]), {"agent_0": np.zeros(2)})]
    with pytest.raises(ValueError, match="rewards: those of the team, or of each agent, expected"):
        from_minari(mixed)


GOOD = {"observations": np.arange(4), "actions": np.array([0, 1, 1])}


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"observations": np.arange(3)}, {}, "episode 5, observations: 4 expected .* got 3"),
        ({"terminations": np.ones(3, bool)}, {}, "episode 5, terminations: step 0 of 3"),
        ({"truncations": np.ones(2, bool)}, {}, r"episode 5, truncations: shape \(3,\)"),
        ({"rewards": np.ones(4)}, {}, r"episode 5, rewards: shape \(3,\) expected, got \(4,\)"),
        ({"rewards": {"ann": np.ones(3)}}, {}, "episode 5, rewards: of 'ann'; .* 'agent_0'"),
        ({"observations": np.ones((4, 2, 2))}, {}, "pictures and matrices have no columns"),
        ({"observations": np.array(list("abcd"))}, {}, "observations: numbers"),
        ({"observations": np.array([0, 1, np.inf, 2])}, {}, "observations, step 2: inf"),
        ({"actions": np.array([0, -1, 1])}, {}, "episode 5, actions, step 1: -1 .* 0, 1, ..."),
        ({}, {"action_space": spaces.Discrete(1)}, "actions, step 1: 1 .* expected 0 to 0"),
        ({}, {"action_space": spaces.MultiDiscrete([2, 2])}, "1 components, but .* has 2"),
        ({}, {"agents": ["ann", "bob"]}, "agents: one name expected"),
        ({}, {"observation_names": ["x", "y"]}, "observation_names: 1 expected, .*'observation'"),
        ({"id": 4}, {}, "id 4 occurs twice"),
        ({"actions": {"ann": np.array([0, 1, 1])}}, {}, "actions: of 'ann'; expected .*'agent_0'"),
        ({"observations": np.arange(4) / 2}, {}, "episode 5: .* whole numbers in both"),
        ({"actions": ()}, {}, "episode 5: there are no actions; at least one is needed"),
        ({"actions": {}}, {}, "episode 5, actions: an empty mapping; expected arrays"),
        (
            {"observations": (np.arange(4), np.arange(3))},
            {},
            r"observations\[1\]: 4 expected .*got 3",
        ),
        ({"actions": (np.zeros(3, int), np.zeros(2, int))}, {}, r"equal numbers .*actions\[1\] 2"),
        (
            {"observations": np.array([0, 2, -3, 1])},
            {},
            "observations, step 2: -3 .* expected 0, 1",
        ),
        (
            {},
            {"observation_space": spaces.Discrete(3)},
            "step 3: 3 is not allowed; expected 0 to 2",
        ),
        ({}, {"observation_space": spaces.Discrete(4, start=1)}, "step 0: 0 .* expected 1 to 4"),
        ({"observations": 3}, {}, "observations: numbers .steps, .* of shape"),
    ],
)
def test_bad_minari_episodes_are_refused_with_their_place(change, options, message):
    good, bad = episode(4, **GOOD), episode(5, **GOOD)
    bad.__dict__.update(change)
    with pytest.raises(ValueError, match=message):
        from_minari([good, bad], **options)


def test_what_is_no_episode_is_refused():
    with pytest.raises(ValueError, match=r"number 0 .* has no 'id'"):
        from_minari([SimpleNamespace()])
    with pytest.raises(ValueError, match="there are none"):
        from_minari([])


# ---------------------------------------------------------------------- Overcooked-AI

MOVES = [[0, -1], [0, 1], [1, 0], [-1, 0], [0, 0], "interact"]
THINGS = [None, "onion", "dish", "soup"]


def records_of(rows, layout, grid, legacy):
    """Rows of the carried table as the records of a web page."""
    counters = [[x, y] for y, row in enumerate(grid) for x, cell in enumerate(row) if cell == "X"]
    pots = [[x, y] for y, row in enumerate(grid) for x, cell in enumerate(row) if cell == "P"]
    records = []
    for row in rows:
        players = []
        for i in range(2):
            at = [row[f"p{i}_x"], row[f"p{i}_y"]]
            thing = THINGS[row[f"p{i}_held"]]
            held = None if thing is None else {"name": thing, "position": at}
            players.append(
                {"position": at, "orientation": MOVES[row[f"p{i}_dir"]], "held_object": held}
            )
        names = ["onion"] * row["counter_onions"] + ["dish"] * row["counter_dishes"]
        names += ["soup"] * row["counter_soups"]
        objects = [
            {"name": name, "position": at} for name, at in zip(names, counters, strict=False)
        ]
        for k, at in enumerate(pots):
            onions, timer = row[f"pot{k}_onions"], row[f"pot{k}_timer"]
            soup = {"name": "soup", "position": at}
            if legacy:
                soup["state"] = ["onion", onions, timer]
            else:
                soup["_ingredients"] = [{"name": "onion", "position": at}] * onions
                soup["_cooking_tick"] = timer if timer else -1
                soup["cook_time"] = 20 if timer else -1
            if onions:
                objects.append(soup)
        action = [MOVES[row[f"p{i}_action"]] for i in range(2)]
        records.append(
            {
                "state": json.dumps({"players": players, "objects": objects}),
                # The pages of 2019 wrote the second way.
                "joint_action": str(action).replace("interact", "INTERACT")
                if legacy
                else json.dumps(action),
                "layout_name": layout,
                "trial_id": f"trial {row['trial']}",
                "cur_gameloop": row["step"],
                "reward": row["reward"],
            }
        )
    return records


@pytest.mark.parametrize(("layout", "legacy"), [("cramped_room", True), ("random3", False)])
def test_records_of_carried_trials_come_back(layout, legacy, tmp_path):
    with (files("btil.domains") / "data" / "overcooked_human.npz").open("rb") as file:
        carried = dict(np.load(file, allow_pickle=False))
    names = carried["layout_names"].tolist()
    chosen = (carried["layout"] == names.index(layout)) & (carried["split"] == 1)
    two = np.unique(carried["trial"][chosen])[:2]
    chosen &= np.isin(carried["trial"], two) & (carried["step"] < 400)
    columns = {
        name: values[chosen].tolist() for name, values in carried.items() if values.size > 1000
    }
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    grid = carried[f"grid_{layout}"].tolist()
    records = records_of(rows, layout, grid, legacy)
    path = tmp_path / "trials.json"
    path.write_text(json.dumps(records))
    demos = from_overcooked_trials(path, layout)
    assert demos.episode_ids.tolist() == [f"trial {one}" for one in two]
    assert demos.rewards.tolist() == columns["reward"]
    table = {name: np.array(values) for name, values in columns.items()}
    table |= {"layout_names": carried["layout_names"], f"grid_{layout}": np.array(grid)}
    expected = overcooked.from_arrays(table, layout)
    loaded = overcooked.load(layout, split="test")
    assert demos.num_states == loaded.num_states
    assert demos.replace(episodes=expected.episodes, rewards=None) == expected
    # The states of the first trial are those that the package carries.
    first = loaded.select([loaded.episode_ids.tolist().index(two[0])])
    for name, values in first.state_variables.items():
        np.testing.assert_array_equal(demos.state_variables[name][:400], values[:400])


def kitchen_records(steps=4):
    """A player who takes an onion and walks off, with a map of their own."""
    grid = ["XPX", "O S", "X X", "XDX"]
    records = []
    for t in range(steps):
        held = {"name": "onion", "position": [1, 1]} if t > 1 else None
        ann = {"position": [1, 1], "orientation": [-1, 0], "held_object": held}
        bob = {"position": [1, 2], "orientation": [0, 1], "held_object": None}
        lying = [{"name": "dish", "position": [0, 2]}]
        records.append(
            {
                "state": {"players": [ann, bob], "objects": lying},
                "joint_action": ["interact" if t == 1 else [0, 0], [0, 1]],
                "layout_name": "own",
                "layout": [list(row) for row in grid],
                "trial_id": 7,
                "cur_gameloop": t,
            }
        )
    return records


def write_records(tmp_path, records):
    path = tmp_path / "trials.json"
    path.write_text(json.dumps(records))
    return path


def test_shapes_of_a_file_of_trials(tmp_path):
    records = kitchen_records()
    demos = from_overcooked_trials(write_records(tmp_path, records), "own")
    assert demos.episode_ids.tolist() == [7]
    assert demos.rewards is None
    assert demos.latents[:, 0].tolist() == [0, 0, -1, -1]  # take onion
    assert demos.state_variables["counter_dishes"].tolist() == [1] * 4
    frame = pd.DataFrame(records)
    paths = []
    for orient, lines in (("records", False), ("records", True), ("columns", False)):
        paths.append(tmp_path / f"{orient}{lines}.json")
        frame.to_json(paths[-1], orient=orient, lines=lines)
    paths.append(write_records(tmp_path, {"uid": 1, "trajectory": records}))
    for path in paths:
        assert from_overcooked_trials(path, "own") == demos
    # Records of two trials may be mixed, and others' layouts are left out.
    other = [record | {"trial_id": 3, "layout": None} for record in records]
    foreign = [records[0] | {"layout_name": "theirs"}]
    mixed = [one for pair in zip(records, other, strict=True) for one in pair] + foreign
    both = from_overcooked_trials(write_records(tmp_path, mixed), "own")
    assert both.episode_ids.tolist() == [7, 3]
    assert both.select([1]).replace(episodes=[7] * 4) == demos


def test_soups_of_either_form_are_what_is_in_the_pots(tmp_path):
    """Of two pots each its own; on a counter a soup is one of those that lie about."""
    grid = ["XPX", "P S", "X X", "XDO"]

    def read(*objects):
        records = kitchen_records(1)
        records[0] |= {"layout": grid, "reward": 3}
        records[0]["state"]["objects"] = [{"name": "dish", "position": [0, 2]}, *objects]
        demos = from_overcooked_trials(write_records(tmp_path, records), "own")
        assert demos.rewards.tolist() == [3]
        return {
            name: demos.value_text(name, int(v[0])) for name, v in demos.state_variables.items()
        }

    first, second = {"name": "soup", "position": [1, 0]}, {"name": "soup", "position": [0, 1]}
    full = {"state": ["onion", 3, 7]}
    found = read(first | {"state": ["onion", 2, 0]}, second | full)
    pots = [(found[f"pot{k}_onions"], found[f"pot{k}_timer"]) for k in (0, 1)]
    assert pots == [("2", "0"), ("3", "7")]  # the pot of the upper row is the first
    new = {"_ingredients": [{"name": "onion"}] * 3, "_cooking_tick": 7, "cook_time": 20}
    old = {"ingredients": ["onion"] * 2, "cooking_tick": -1, "cook_time": -1}
    assert read(second | new, first | old) == found
    assert read(first | full, second | old) != found
    # Objects may come by their places; one that lies on a counter is in no pot.
    lying = {"name": "soup", "position": [2, 2], "state": ["onion", 3, 20]}
    bare, more = read(), read(lying)
    assert {name for name in bare if bare[name] != more[name]} >= {"counter_soups"}
    assert (bare["counter_soups"], more["counter_soups"]) == ("0", "1")
    assert bare["counter_dishes"] == more["counter_dishes"] == "1"


def changed(step, path, value):
    def change(records):
        place = records[step]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


SOUP = {"name": "soup", "position": [1, 0]}
OBJECTS = ("state", "objects")
FIRST = ("state", "players", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed(2, ["state"], "{"), "record 2 .trial 7, step 2.: state: '{' .* JSON"),
        (changed(2, ["state"], {}), "record 2 .*state: {} is not allowed; expected .*'players'"),
        (changed(2, ["state", "players"], []), "record 2 .*state.players: 0 players; expected 2"),
        (changed(2, [*FIRST, "position"], [0, 0]), r"players\[0\].position: \[0, 0\] .* floor"),
        (changed(2, [*FIRST, "position"], [1.5, 0]), "two whole numbers"),
        (changed(2, [*FIRST, "orientation"], [1, 1]), r"orientation: \[1, 1\] .*\[0, -1\]"),
        (changed(2, [*FIRST, "held_object"], {"name": "tomato"}), "held_object.name: 'tomato'"),
        (changed(3, [*FIRST, "held_object"], {"name": "dish"}), "trial 7, step 2: what player_0 "),
        (changed(2, ["joint_action"], [[0, 0]]), "joint_action: .* two actions"),
        (changed(2, ["joint_action", 1], "jump"), r"joint_action\[1\]: 'jump' .*'interact'"),
        (changed(2, ["cur_gameloop"], 5), "record 2 .*: cur_gameloop 5 comes after 1"),
        (changed(2, ["cur_gameloop"], None), "cur_gameloop: a whole number"),
        (
            changed(0, ["trial_id"], True),
            "record 0 .*: trial_id: a text or a whole number expected",
        ),
        (changed(2, ["cur_gameloop"], 2.5), "cur_gameloop: a whole number"),
        (changed(2, ["cur_gameloop"], True), "cur_gameloop: a whole number"),
        (changed(2, ["cur_gameloop"], 1), "record 2 .*: cur_gameloop 1 comes after 1"),
        (changed(1, [*FIRST, "position"], [True, 1]), "position: .* two whole numbers"),
        (changed(1, [*FIRST, "position"], [1, 1, 1]), "position: .* two whole numbers"),
        (changed(1, ["state", "players"], [{}]), "state.players: 1 player; expected 2"),
        (changed(1, ["state", "players"], {}), "state.players: 0 players; expected 2"),
        (changed(1, [*FIRST, "held_object"], {}), r"held_object: {} is not .* mapping with 'name'"),
        (changed(1, ["joint_action"], {}), "joint_action: {} is not allowed; expected two actions"),
        (changed(1, ["joint_action", 0], [0, 2]), r"joint_action\[0\]: \[0, 2\] .*'interact'"),
        (changed(2, ["trial_id"], [7]), "record 2 .*: trial_id: a text or a whole number"),
        (changed(2, ["trial_id"], "7"), "trial_id: texts or numbers in all"),
        (changed(2, ["reward"], 20), "record 0 .*: reward: a number expected in all records"),
        (changed(2, OBJECTS, 3), "state.objects: 3 .* a list"),
        (
            changed(2, OBJECTS, [{"name": "dish", "position": [1, 1]}]),
            r"position: \[1, 1\] .* a cou",
        ),
        (changed(2, OBJECTS, [{"name": "dish", "position": [1, 0]}]), "a counter of"),
        (changed(2, OBJECTS, [{"name": "tomato", "position": [0, 0]}]), "name: 'tomato'"),
        (changed(2, OBJECTS, [SOUP]), "_ingredients: None is not allowed; expected a list"),
        (changed(2, OBJECTS, [SOUP | {"state": ["tomato", 1, 0]}]), "'tomato' .*'onion'"),
        (changed(2, OBJECTS, [SOUP | {"state": ["onion", 4]}]), "ingredient, number, time"),
        (changed(2, OBJECTS, [SOUP | {"state": ["onion", 4, 0]}]), r"\[4, 0\] .* 0 to 3"),
        (changed(2, OBJECTS, [SOUP | {"state": ["onion", 3, -1]}]), "cooks by itself once 3"),
        (changed(2, OBJECTS, [SOUP | {"state": ["onion", 2, -2]}]), r"\[2, -2\] .* 0 to 3, and -1"),
        (changed(2, OBJECTS, [SOUP | {"state": ["onion", -1, 0]}]), r"\[-1, 0\] .* 0 to 3"),
        (changed(2, OBJECTS, [SOUP | {"state": ["onion", True, 0]}]), r"\[True, 0\] .* 0 to 3"),
        (changed(2, OBJECTS, [SOUP | {"state": ["onion", 2, 1.5]}]), r"\[2, 1.5\] .* 0 to 3"),
        (
            changed(
                2, OBJECTS, [SOUP | {"_ingredients": ["tomato", "onion"], "_cooking_tick": -1}]
            ),
            "ingredient: 'tomato' .* 'onion': these kitchens have no other",
        ),
        (changed(2, OBJECTS, [SOUP | {"position": [0, 1]}]), r"\[0, 1\] .* a counter or pot of"),
        (changed(2, OBJECTS, [SOUP | {"state": ["onion", 2, 4]}]), "cooks by itself once 3"),
        (changed(0, ["layout"], []), "layout: .* a list of rows"),
        (changed(0, ["layout"], ["XPX", "Q S", "X X", "XDX"]), "unknown cell 'Q' in the map"),
        (lambda records: records.insert(0, 1), "record 0 .*: a mapping expected, got 1"),
        (lambda records: records[1].pop("state"), "record 1 .* has no 'state'; needed are"),
    ],
)
def test_bad_trials_are_refused_with_their_place(tmp_path, change, message):
    records = kitchen_records()
    change(records)
    with pytest.raises(ValueError, match=f"trials.json: .*({message})"):
        from_overcooked_trials(write_records(tmp_path, records), "own")


def test_files_and_layouts_that_are_not_there(tmp_path):
    path = write_records(tmp_path, kitchen_records())
    with pytest.raises(ValueError, match=r"no records of layout 'mine'; .* 'own'"):
        from_overcooked_trials(path, "mine")
    bare = [{k: v for k, v in one.items() if k != "layout"} for one in kitchen_records()]
    with pytest.raises(ValueError, match=r"no map .* of 'own'; grid="):
        from_overcooked_trials(write_records(tmp_path, bare), "own")
    grid = ["XPX", "O S", "X X", "XDX"]
    assert from_overcooked_trials(path, "own", grid=grid).num_steps == 4
    for text, message in (
        ("[{", "line 1, character 3: no JSON"),
        ('{"a": 1}\n{"a"\n', "line 2, character 1: no JSON"),
        ("[]", "expected a list"),
        ("3", "expected a list"),
        ('{"a": {"0": 1}, "b": {"1": 1}}', "column 'b' has other rows than the first one"),
        ('{"trajectory": []}', "expected a list"),
    ):
        with pytest.raises(ValueError, match=message):
            from_overcooked_trials(write(tmp_path, text, "bad.json"), "own")
    slow = kitchen_records()
    slow[0]["state"]["objects"] = [SOUP | {"_ingredients": [], "_cooking_tick": 3, "cook_time": 9}]
    with pytest.raises(ValueError, match="cook_time: 9 is not allowed; expected 20"):
        from_overcooked_trials(write_records(tmp_path, slow), "own")
