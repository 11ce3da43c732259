"""Recordings as other tools write them, from small files of our own making."""

import numpy as np
import pandas as pd
import pytest

import btil
from btil.recordings import from_long_table

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
    header, *lines = LOG.splitlines()
    turned = "\n".join([header, *(lines[k] for k in [1, 0, 2, 5, 4, 3])])
    shuffled = read_log(write(tmp_path, turned, "turned.csv"), agents=["ann", "bob"])
    assert shuffled == demos


def test_a_set_that_leaves_some_out(log):
    demos = read_log(write(log.parent, LOG.replace("carry,0", "rest,0"), "three.csv"))
    assert demos.latent_names["bob"] == ("carry", "lift", "rest")
    assert demos.latent_weights["bob"][0].tolist() == [1, 1, 0]


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


def test_own_and_common_columns_hold_whatever_occurs():
    table = {"step": [0, 0], "agent": ["a", "b"], "action": [0, 1], "s": [1, 1], "t": [0, 1]}
    assert set(from_long_table(table, own=["s"]).num_states) == {"a_s", "b_s", "a_t", "b_t"}
    assert set(from_long_table(table, ignore=["t"]).num_states) == {"s"}
    with pytest.raises(ValueError, match=r"row 1 .*'t': 1 differs from 0 .*row 0"):
        from_long_table(table, common=["t"])


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


def test_a_log_needs_actions_or_measures(tmp_path):
    table = {"step": [0], "agent": ["a"], "s": [1]}
    with pytest.raises(ValueError, match=r"no column 'action' .* continuous=\[...\]"):
        from_long_table(table)
    demos = from_long_table(table | {"s": [0.5]}, continuous=["s"], own=["s"])
    assert demos.num_actions == (0,)
    assert demos.continuous["a_s"].tolist() == [0.5]
    with pytest.raises(ValueError, match=r"s: row 0 .*: 0.5 is not allowed.*continuous="):
        from_long_table(table | {"s": [0.5]})
    with pytest.raises(ValueError, match=r"the ending must be one of \.csv"):
        from_long_table(tmp_path / "log.xlsx")


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
        ({"step": 0}, "step: a positive number expected, got 0"),
        ({"step": 1, "gap": -1}, "gap: a positive number"),
        ({"step": 1, "resample": "mean"}, "resample: 'last', 'linear' expected, got 'mean'"),
        ({"step": 1, "columns": ["z"]}, "no column 'z'"),
        ({"step": 1, "columns": "x"}, "columns: a sequence of texts expected"),
    ],
)
def test_bad_options_of_trajectories_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        btil.recordings.from_trajectories({"time": [0], "agent": ["a"], "x": [0]}, **options)
