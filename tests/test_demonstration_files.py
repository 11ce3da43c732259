"""Parquet files larger than memory: whole episodes, a few row groups at a time, nothing missed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from teams import random_demos

import btil
from btil.demonstrations import row_groups
from btil.demonstrations.stream import open_as_seen

LENGTHS = (3, 1, 4, 2, 9, 1, 1, 5)
_SIZES = ("agents", "num_states", "num_actions", "num_latents", "state_names", "action_names")


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of three steps are written, about so many steps are read at a time."""
    monkeypatch.setattr("btil.demonstrations.formats.parquet.ROW_GROUP_STEPS", 3)
    monkeypatch.setattr(row_groups, "ROW_GROUP_STEPS", 3)


def named_demos() -> btil.Demonstrations:
    """Texts everywhere that texts can be, ids included; one latent never occurs."""
    demos = random_demos(lengths=LENGTHS)
    ids = np.array([f"day {k}" for k in range(len(LENGTHS))])
    return demos.replace(
        episodes=np.repeat(ids, LENGTHS),
        state_names={"x": ["left", "right"]},
        action_names={"bob": ["wait", "go"]},
        latent_names={"ann": ["help", "rest"], "bob": ["a", "b", "never"]},
        latents=np.where(demos.latents == 2, -1, demos.latents),
    )


def write_foreign(frame: pd.DataFrame, path: Path, rows: int = 2) -> Path:
    """A table as another tool writes it: nothing recorded of sizes and names."""
    table = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    parquet.write_table(table, path, row_group_size=rows)
    return path


def frame_of(demos: btil.Demonstrations, tmp_path: Path) -> pd.DataFrame:
    btil.write_demonstrations(demos, tmp_path / "frame.parquet")
    frame = parquet.read_table(tmp_path / "frame.parquet").to_pandas()
    for column in frame:
        if frame[column].dtype == "category":
            frame[column] = frame[column].astype(object)
    return frame


@pytest.mark.parametrize("make", [lambda: random_demos(lengths=LENGTHS), named_demos])
def test_parts_are_whole_episodes_and_add_up(make, tmp_path) -> None:
    demos = make()
    path = tmp_path / "team.parquet"
    btil.write_demonstrations(demos, path)
    assert parquet.ParquetFile(path).num_row_groups == 9
    file = btil.open_demonstrations(path)
    parts = list(file)
    assert len(parts) > 3
    assert btil.concatenate(parts) == file.read() == demos == btil.read_demonstrations(path)
    for part in parts:
        assert part.num_states == demos.num_states
        assert part.latent_names == demos.latent_names
    for name in (*_SIZES, "latent_names", "num_agents", "num_episodes", "num_steps"):
        assert getattr(file, name) == getattr(demos, name)
    assert file.summary() == demos.summary()
    assert file.first == demos.select([0])
    assert repr(file) == (
        f"DemonstrationsFile({path}: 8 episodes, 26 steps, 2 state variables, agents: ann, bob)"
    )


@pytest.mark.parametrize("states", [{"door": [0, 1, -1, 1, 0, 0, -1, 1, 1, 0]}, {}])
def test_a_summary_counts_what_was_not_seen_and_who_is_away(states, tmp_path) -> None:
    demos = btil.Demonstrations(
        states,
        {"ann": [0, 1, 0, 1, -1, 1, 0, 1, 0, 1]},
        agents=("ann", "bob"),
        episodes=np.repeat([0, 1, 2], [4, 3, 3]),
        num_latents=2,
        present={"bob": [1, 1, 0, 1, 1, 1, 0, 1, 1, 1]},
        continuous={"bob_x": np.arange(10.0)},
        missing="allow",
    )
    summary = demos.summary()
    assert summary.num_visited_states == max(len(set(states.get("door", ())) - {-1}), 1)
    # Of one without actions none is unseen.
    assert summary.share_unseen == (0.1, 0.0)
    assert summary.share_away == (0.0, 0.2)
    btil.write_demonstrations(demos, tmp_path / "team.parquet")
    file = btil.open_demonstrations(tmp_path / "team.parquet")
    assert file.summary() == summary
    shards = [file.shard(20, k) for k in range(20)]
    (empty, *_) = [shard for shard in shards if not shard.num_episodes]
    with pytest.raises(ValueError, match="summary: this part has no episodes"):
        empty.summary()


def test_what_a_file_tells_of_its_agents_is_in_their_order(tmp_path) -> None:
    demos = btil.Demonstrations(
        {"door": ["o", "s", "o"], "x": [0, 3, 1]},
        {"bob": ["go", "go", "wait"], "ann": [0, 2, 1]},
        {"ann": [0, -1, 1], "bob": [2, 1, 0]},
        num_actions={"ann": 6},
        num_latents={"bob": 5, "ann": 2},
    )
    path = tmp_path / "team.parquet"
    btil.write_demonstrations(demos, path)
    file = btil.open_demonstrations(path)
    assert (file.agents, file.num_agents) == (("bob", "ann"), 2)
    assert (file.num_states, file.num_actions, file.num_latents) == (
        {"door": 2, "x": 4}, (2, 6), (5, 2)
    )  # fmt: skip
    assert file.state_names == {"door": ("o", "s")}
    assert file.action_names == {"bob": ("go", "wait")}
    assert file.latent_names == {}
    assert (file.path, file.files) == (path, (path,))
    # What is declared goes before what is recorded.
    given: dict[str, Any] = {"num_actions": {"ann": 7}, "latent_names": {"ann": ["zero", "one"]}}
    declared = btil.open_demonstrations(path, **given)
    assert (declared.num_actions, declared.num_latents) == ((2, 7), (3, 2))
    assert declared.latent_names == {"ann": ("zero", "one")}
    assert declared.read() == btil.read_demonstrations(path, **given)


def test_files_of_others_are_opened_by_the_latents_that_were_seen(tmp_path) -> None:
    seen = named_demos()
    frame = frame_of(seen.select([1, 2]), tmp_path).drop(columns=["step"]).assign(note="?")
    path = write_foreign(frame.assign(latent_bob=None), tmp_path / "new.parquet")
    file = open_as_seen(path, seen)
    assert file.num_latents == seen.num_latents
    assert file.latent_names == seen.latent_names
    # Of other columns nothing is read, and their values are their own.
    assert list(file.num_states) == list(seen.num_states)
    np.testing.assert_array_equal(file.read().latents[:, 0], seen.select([1, 2]).latents[:, 0])
    assert (file.read().latents[:, 1] == -1).all()
    path = write_foreign(frame.assign(latent_bob="b"), path)
    assert (open_as_seen(path, seen).read().latents[:, 1] == 1).all()
    with pytest.raises(ValueError, match="latent_ann: episode 'day 1', step 0: 'x' is not allowed"):
        open_as_seen(write_foreign(frame.assign(latent_ann="x"), path), seen)
    # A last row without an action is a step, unless it is asked for; a blank may be said to be one.
    cut = frame.assign(action_ann=frame["action_ann"].where(frame.index != 4, None))
    cut = cut.assign(action_bob=cut["action_bob"].where(frame.index != 4, None), latent_bob="b")
    path = write_foreign(cut, path)
    with pytest.raises(ValueError, match="action_ann: episode 'day 2', step 3: a missing value"):
        open_as_seen(path, seen)
    assert open_as_seen(path, seen, drop_last=True).num_steps == 4
    whole = open_as_seen(path, seen, missing="allow").read()
    assert (whole.num_steps, whole.actions[4].tolist()) == (5, [-1, -1])
    path = write_foreign(frame.assign(latent_bob="?"), path)
    unknown = open_as_seen(path, seen, unknown_labels=["?"]).read()
    assert (unknown.latents[:, 1] == -1).all()


def test_written_part_by_part_as_in_one_piece(tmp_path) -> None:
    demos = named_demos()
    path = tmp_path / "team.parquet"
    btil.write_demonstrations((demos.select([k, k + 1]) for k in range(0, 8, 2)), path)
    assert btil.read_demonstrations(path) == demos
    assert btil.open_demonstrations(path).read() == demos


def test_parts_that_do_not_fit_together_are_refused(tmp_path) -> None:
    path = tmp_path / "team.parquet"
    one = random_demos(lengths=(2, 2))
    cases: list[tuple[list[Any], str]] = [
        ([one, one], "part 1: episode 0 is in an earlier part too; give its"),
        (
            [one, one.replace(episodes=[5, 5, 6, 6]), one.replace(episodes=[7, 7, 6, 6])],
            "part 2: episode 6 is in an earlier part too",
        ),
        (
            [one, one.replace(episodes=[5, 5, 6, 6], missing="allow")],
            "part 1: missing is allow, in part 0 refuse",
        ),
        (
            [one.replace(missing="allow"), one.replace(episodes=[5, 5, 6, 6])],
            "part 1: missing is refuse, in part 0 allow",
        ),
        (
            [one.replace(continuous={"v": [0.5] * 4}), one.replace(episodes=[5, 5, 6, 6])],
            r"part 1: continuous is \[\], in part 0 \['v'\]",
        ),
        ([one, random_demos(lengths=(1,), num_states=(3, 2))], "part 1: num_states is .*'x': 3"),
        ([one, one.replace(episodes=["a", "a", "b", "b"])], "part 1: episode_ids is text"),
        ([one.select([0]), one.select([1]).replace(rewards=[1, 2])], "part 1: 'reward' are in it"),
        ([], "there is no part to write"),
    ]
    for parts, message in cases:
        with pytest.raises(ValueError, match=message):
            btil.write_demonstrations(iter(parts), path)
        with pytest.raises(ValueError, match=r"only a \.parquet file can be written part by part"):
            btil.write_demonstrations(iter(parts), tmp_path / "team.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows", [1, 2, 5, 1000])
def test_few_row_groups_are_in_memory_at_once(rows, tmp_path, monkeypatch) -> None:
    path = write_foreign(frame_of(random_demos(lengths=LENGTHS), tmp_path), tmp_path / "t.parquet")
    table = parquet.read_table(path)
    parquet.write_table(table, path, row_group_size=rows)
    read: list[int] = []
    original = parquet.ParquetFile.read_row_groups

    def counted(self: Any, groups: list[int], *args: Any, **options: Any) -> Any:
        found = original(self, groups, *args, **options)
        read.append(found.num_rows)
        return found

    monkeypatch.setattr(parquet.ParquetFile, "read_row_groups", counted)
    monkeypatch.setattr(parquet.ParquetFile, "read", None)
    assert sum(part.num_steps for part in btil.open_demonstrations(path, num_latents=3)) == 26
    assert max(read) <= min(max(rows, 4), 26)


def test_steps_are_counted_without_reading_rows(tmp_path, monkeypatch) -> None:
    demos = random_demos(lengths=LENGTHS)
    btil.write_demonstrations(demos, tmp_path / "team.parquet")
    file = btil.open_demonstrations(tmp_path / "team.parquet")
    monkeypatch.setattr(parquet.ParquetFile, "read_row_groups", None)
    assert file.num_steps == 26


def spelled(value: Any) -> str:
    if pd.isna(value):
        return "  "
    return value if isinstance(value, str) else f"{value:g}"


def foreign(demos: btil.Demonstrations, tmp_path: Path) -> pd.DataFrame:
    frame = frame_of(demos, tmp_path)
    frame["flag"] = np.arange(len(frame)) % 3 == 0
    frame["number"] = [str(k % 4) for k in range(len(frame))]
    frame["real"] = (np.arange(len(frame)) % 5).astype(float)
    return frame


@pytest.mark.parametrize(
    "change",
    [
        lambda frame: frame,
        lambda frame: frame.drop(columns=["step"]),
        lambda frame: frame.drop(columns=["episode", "step"]),
        lambda frame: frame.astype({"x": "category", "latent_bob": "category"}),
        lambda frame: frame.assign(latent_ann=frame["latent_ann"].map(spelled)),
    ],
)
@pytest.mark.parametrize("make", [lambda: random_demos(lengths=LENGTHS), named_demos])
def test_sizes_and_names_of_foreign_files_are_found(make, change, tmp_path) -> None:
    frame = change(foreign(make(), tmp_path))
    path = write_foreign(frame, tmp_path / "foreign.parquet")
    expected = btil.read_demonstrations(path)
    file = btil.open_demonstrations(path)
    assert file.read() == expected
    for name in (*_SIZES, "latent_names"):
        assert getattr(file, name) == getattr(expected, name)


@pytest.mark.parametrize(
    ("labels", "weights", "names"),
    [
        (["lift", "", "lift|carry", "wait"], (), ("carry", "lift", "wait")),
        (["", "", "lift|carry", ""], (), ("carry", "lift")),
        (["0", "1", "", "0|2"], (), None),
        (["lift", "", "", "lift|wait"], ("lift", "wait", "rest"), ("lift", "rest", "wait")),
        (["", "", "", ""], ("lift", "wait"), ("lift", "wait")),
        (None, ("lift", "wait"), ("lift", "wait")),
        (None, ("0", "2"), None),
        ([0, 1, None, 1], ("0", "1"), None),
        (["2.0", "-1", "", "0.0"], ("0", "2"), None),
        (["lift", "-1", "", "-1.0"], ("wait", "lift"), ("lift", "wait")),
    ],
)
def test_unsure_labels_of_foreign_files_are_found(labels, weights, names, tmp_path) -> None:
    """What is one of several is no mental state of its own, and weights alone name some."""
    frame = pd.DataFrame({"episode": [0, 0, 1, 1], "place": 0, "action_ann": [0, 1, 1, 0]})
    frame = frame.assign(**{f"latent_ann[{one}]": [0.5, 0.2, 0.1, 0.7] for one in weights})
    if labels is not None:
        frame = frame.assign(latent_ann=labels)
    path = write_foreign(frame, tmp_path / "foreign.parquet")
    expected = btil.read_demonstrations(path)
    assert expected.latent_names == ({} if names is None else {"ann": names})
    file = btil.open_demonstrations(path)
    assert file.read() == expected
    assert (file.num_latents, file.latent_names) == (expected.num_latents, expected.latent_names)
    declared = {"latent_names": {"ann": names}} if names else {"num_latents": 3}
    assert btil.open_demonstrations(path, **declared).read() == btil.read_demonstrations(
        path, **declared
    )


@pytest.mark.filterwarnings("ignore::btil.DataWarning")
def test_what_is_said_of_those_who_are_away_counts_for_nothing(tmp_path) -> None:
    """Neither for sizes and names, nor is it owed; of states only blanks are not."""
    frame = pd.DataFrame(
        {
            "episode": [0, 0, 1, 1, 1],
            "zone": [0, 1, 1, 0, 1],
            "ann_cell": ["u", None, "v", "u", "u"],
            "ann_to_bob": [0, -1, 1, -1, 0],
            "action_ann": ["go", "no", "wait", "go", "go"],
            "latent_ann": ["a", "zz", "b", "a", ""],
            "present_ann": ["yes", "no", "yes", "yes", "yes"],
            "action_bob": ["x", "y", "x", None, "y"],
            "latent_bob": [0, 1, 1, 7, 0],
            "present_bob": [True, True, True, False, True],
        }
    )
    path = write_foreign(frame, tmp_path / "away.parquet")
    told = "present_(ann|bob) says that (ann|bob) is away"
    with pytest.warns(btil.DataWarning, match=told):
        expected = btil.read_demonstrations(path)
    file = btil.open_demonstrations(path)
    with pytest.warns(btil.DataWarning, match=told):
        assert file.read() == expected
    assert (file.num_actions, file.num_latents) == ((2, 2), (2, 2))
    assert file.latent_names == {"ann": ("a", "b")}
    assert file.num_states == {"zone": 2, "ann_cell": 2, "ann_to_bob": 2}
    # What is owed is told where it is, and who is never there has to be declared.
    for changes, message in (
        ({"action_bob": ["x", "y", None, None, "y"]}, "action_bob: episode 1, step 0: a missing"),
        ({"ann_to_bob": [0, -1, 1, -1, -1]}, "ann_to_bob: episode 1, step 2: "),
        ({"ann_to_bob": [0, -1, 1, -3, 0]}, "ann_to_bob: episode 1, step 1: -3 is not allowed"),
        ({"ann_cell": ["u", None, "v", "u", None]}, "ann_cell: episode 1, step 2: a missing"),
        ({"present_ann": ["yes", "no", "?", "yes", "no"]}, "present_ann: episode 1, step 0: '.'"),
        ({"present_bob": [False] * 5}, "action_bob: no step has a value, so the number of its"),
        ({"present_ann": ["no"] * 5}, "ann_cell: no step has a value, so the number of its"),
    ):
        if "present_ann" in changes and len(set(changes["present_ann"])) == 1:
            changes |= {"ann_cell": [None] * 5, "ann_to_bob": -1}
        changed = write_foreign(frame.assign(**changes), tmp_path / "changed.parquet")
        with pytest.raises(ValueError, match=message):
            btil.read_demonstrations(changed)
        with pytest.raises(ValueError, match=message):
            list(btil.open_demonstrations(changed))


@pytest.mark.parametrize("weights", [(), ("wait", "lift")])
def test_labels_that_mean_unknown_are_no_mental_states(weights, tmp_path) -> None:
    labels = ["lift|wait", "?", "99", "-1"]
    frame = pd.DataFrame({"episode": [0, 0, 1, 1], "place": 0, "action_ann": [0, 1, 1, 0]})
    frame = frame.assign(**{f"latent_ann[{one}]": [0.5, 0.2, 0.1, 0.7] for one in weights})
    path = write_foreign(frame.assign(latent_ann=labels), tmp_path / "foreign.parquet")
    for read in (btil.read_demonstrations, btil.open_demonstrations):
        found = read(path, unknown_labels=["?", 99])
        assert found.latent_names == {"ann": ("lift", "wait")}
        demos = found if isinstance(found, btil.Demonstrations) else found.read()
        assert (demos.latents == -1).all()


@pytest.mark.parametrize(
    "declared",
    [
        {"num_states": {"x": 5}},
        {"num_latents": 4},
        {"num_actions": [4, 2], "latent_names": {"ann": ["zero", "one"]}},
        {"state_names": {"y": ["low", "high", "higher"]}},
    ],
)
@pytest.mark.parametrize("is_foreign", [False, True])
def test_sizes_and_names_can_be_declared(declared, is_foreign, tmp_path) -> None:
    demos = random_demos(lengths=LENGTHS)
    path = tmp_path / "team.parquet"
    btil.write_demonstrations(demos, path)
    if is_foreign:
        path = write_foreign(frame_of(demos, tmp_path), path)
    assert btil.open_demonstrations(path, **declared).read() == btil.read_demonstrations(
        path, **declared
    )


def test_read_by_the_names_of_others(tmp_path) -> None:
    demos = named_demos()
    path = write_foreign(frame_of(demos.select([1, 2]), tmp_path), tmp_path / "two.parquet")
    file = btil.open_demonstrations(path, like=demos)
    assert file.read() == demos.select([1, 2])
    with pytest.raises(ValueError, match="like: sets all sizes and names; leave out 'num_latents'"):
        btil.open_demonstrations(path, like=demos, num_latents=2)


BROKEN: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "negative state": lambda f: f.assign(y=f["y"].where(f.index != 18, -3)),
    "missing state": lambda f: f.assign(x=f["x"].where(f.index != 6, None)),
    "broken action": lambda f: f.assign(action_ann=f["action_ann"].where(f.index != 9, 2.5)),
    "broken label": lambda f: f.assign(latent_ann=f["latent_ann"].where(f.index != 8, -2)),
    "two spellings": lambda f: f.assign(y=["1.0" if k == 20 else "1" for k in f.index]),
    "text for nothing": lambda f: f.assign(y=["NA" if k == 20 else "1" for k in f.index]),
    "step": lambda f: f.assign(step=f["step"].where(f.index != 13, 7)),
    "returning id": lambda f: f.assign(episode=f["episode"].where(f.index != 20, 0)),
    "missing id": lambda f: f.assign(episode=f["episode"].where(f.index != 20, None)),
    "unknown column": lambda f: f.assign(latent_cat=0),
    "no agent": lambda f: f.rename(columns={"action_ann": "a", "action_bob": "b"}),
    "no label": lambda f: f.drop(columns=["latent_bob"]),
    "row numbers": lambda f: f.assign(**{"Unnamed: 0": f.index}),
    "no steps": lambda f: f.iloc[:0],
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_broken_is_refused_as_in_memory(what, tmp_path) -> None:
    """The same words: column, episode, step, value, what is allowed."""
    frame = BROKEN[what](frame_of(random_demos(lengths=LENGTHS), tmp_path))
    path = write_foreign(frame, tmp_path / "broken.parquet")
    with pytest.raises(ValueError, match=r"broken\.parquet: ") as in_memory:
        btil.read_demonstrations(path)
    with pytest.raises(ValueError, match=r"broken\.parquet: ") as by_parts:
        list(btil.open_demonstrations(path))
    assert str(by_parts.value) == str(in_memory.value)


def test_a_label_out_of_range_is_named_where_it_is(tmp_path) -> None:
    path = tmp_path / "team.parquet"
    demos = random_demos(lengths=LENGTHS).replace(num_latents=(2, 7), latents=None)
    labels = np.full((26, 2), -1)
    labels[17, 1] = 6
    btil.write_demonstrations(demos.replace(latents=labels), path)
    file = btil.open_demonstrations(path, num_latents=3)
    assert file.num_episodes == 8
    with pytest.raises(ValueError, match="latent_bob: episode 4, step 7: 6 is not allowed"):
        list(file)


def test_damaged_and_other_files_are_refused(tmp_path) -> None:
    path = tmp_path / "team.parquet"
    btil.write_demonstrations(random_demos(lengths=LENGTHS), path)
    raw = path.read_bytes()
    path.write_bytes(raw[: len(raw) // 2])
    with pytest.raises(ValueError, match=r"team\.parquet: "):
        btil.open_demonstrations(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"team\.parquet: "):
        btil.open_demonstrations(path)
    # Damage amid the rows shows when they are read.
    path.write_bytes(raw[:600] + bytes(200) + raw[800:])
    with pytest.raises(ValueError, match=r"team\.parquet: "):
        list(btil.open_demonstrations(path))
    (tmp_path / "team.csv").touch()
    with pytest.raises(ValueError, match=r"team\.csv: only a \.parquet file is read by row groups"):
        btil.open_demonstrations(tmp_path / "team.csv")
    with pytest.raises(FileNotFoundError):
        btil.open_demonstrations(tmp_path / "none.parquet")
