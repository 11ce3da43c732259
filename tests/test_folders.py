"""Several Parquet files as one: lists, folders, filters, and parts for several processes."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from teams import random_demos

import btil
from btil.cli.reading import Reading, read
from btil.demonstrations import row_groups

LENGTHS = (3, 1, 4, 2, 9, 1, 1, 5)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of three steps are written, about four steps are read at a time."""
    monkeypatch.setattr("btil.demonstrations.formats.parquet.ROW_GROUP_STEPS", 3)
    monkeypatch.setattr(row_groups, "ROW_GROUP_STEPS", 4)


def demos() -> btil.Demonstrations:
    return random_demos(lengths=LENGTHS)


def folder_of(path: Path, *episodes: list[int], names: str = "abcdefgh") -> Path:
    """A folder with a file for each of some lists of episodes."""
    path.mkdir(parents=True)
    for name, chosen in zip(names, episodes, strict=False):
        btil.write_demonstrations(demos().select(chosen), path / f"{name}.parquet")
    return path


def plain(path: Path, **columns: Any) -> Path:
    """A file of another tool."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    return path


def test_a_folder_is_its_files_one_after_the_other(tmp_path) -> None:
    folder = folder_of(tmp_path / "days", [0, 1], [2], [3, 4, 5], [6, 7])
    (folder / "_SUCCESS").touch()
    (folder / ".hidden.parquet").write_text("no table")
    (folder / "readme.md").write_text("no table either")
    file = btil.open_demonstrations(folder)
    assert file.read() == demos() == btil.concatenate(list(file))
    assert (file.path, len(file.files)) == (folder, 4)
    assert file.num_steps == 26
    assert file.num_episodes == 8
    assert file.summary() == demos().summary()
    assert repr(file).startswith(f"DemonstrationsFile(4 files from {folder}: 8 episodes, 26 steps")
    listed = btil.open_demonstrations([folder / "c.parquet", str(folder / "a.parquet")])
    assert listed.read() == demos().select([3, 4, 5, 0, 1])


def test_small_files_are_read_together(tmp_path) -> None:
    file = btil.open_demonstrations(folder_of(tmp_path / "days", *[[k] for k in range(8)]))
    assert [part.num_steps for part in file] == [4, 4, 2, 9, 2, 5]


@pytest.mark.parametrize("num_shards", [1, 2, 3, 7, 40])
@pytest.mark.parametrize("named", [False, True])
def test_parts_have_every_episode_once(num_shards, named, tmp_path, monkeypatch) -> None:
    whole = demos()
    if named:
        whole = whole.replace(episodes=[f"day {one}" for one in whole.episodes])
    folder = tmp_path / "days"
    folder.mkdir()
    for name, chosen in (("a", [0, 1, 2, 3]), ("b", [4]), ("c", [5, 6, 7])):
        btil.write_demonstrations(whole.select(chosen), folder / f"{name}.parquet")
    read: dict[Any, int] = {}
    original = parquet.ParquetFile.read_row_groups

    def counted(self: Any, groups: list[int], columns: list[str], **options: Any) -> Any:
        for group in groups if "action_ann" in columns else ():
            key = (self.metadata.num_rows, group)
            read[key] = read.get(key, 0) + 1
        return original(self, groups, columns, **options)

    file = btil.open_demonstrations(folder)
    monkeypatch.setattr(parquet.ParquetFile, "read_row_groups", counted)
    shards = [file.shard(num_shards, k) for k in range(num_shards)]
    parts = [part for shard in shards for part in shard]
    assert btil.concatenate(parts) == whole
    assert sum(shard.num_episodes for shard in shards) == 8
    assert sum(shard.num_steps for shard in shards) == 26
    # Nothing is read twice but row groups in which a part ends within an episode.
    assert sum(read.values()) - len(read) <= 2 * (num_shards - 1)
    if num_shards == 40:
        assert any(not list(shard) for shard in shards)
    elif num_shards > 1:
        with pytest.raises(ValueError, match="this is a part already"):
            shards[0].shard(2, 0)


def test_row_groups_belong_where_their_middle_lies() -> None:
    """Of twelve rows in groups of 4, 1, 1 and 2, 4 the middles are at 2, 4.5, 5.5 and 7, 10."""
    files = (
        row_groups.File(Path("a"), "a", {}, (4, 1, 1), 0, 3),
        row_groups.File(Path("b"), "b", {}, (2, 4), 0, 2),
    )
    source = row_groups.Source(Path("a"), files)
    assert (source.num_rows, source.is_shard) == (12, False)

    def groups(number: int) -> list[list[tuple[str, int, int]]]:
        parts = [source.shard(number, k) for k in range(number)]
        return [[(file.label, file.first, file.end) for file in part.files] for part in parts]

    assert groups(1) == [[("a", 0, 3), ("b", 0, 2)]]
    assert groups(2) == [[("a", 0, 3)], [("b", 0, 2)]]
    assert groups(3) == [[("a", 0, 1)], [("a", 1, 3), ("b", 0, 1)], [("b", 1, 2)]]
    assert [part.num_rows for part in (source.shard(3, k) for k in range(3))] == [4, 4, 4]
    assert source.shard(3, 2).is_shard
    assert source.shard(3, 0).is_shard


def test_files_of_a_folder_are_found_in_order(tmp_path) -> None:
    for name in ("b/a", "a", "c", "_temporary/x", "d/.hidden", "b/_x"):
        path = tmp_path / f"{name}.parquet"
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "b" / "x.csv").touch()
    found = [tmp_path / f"{name}.parquet" for name in ("a", "b/a", "c")]
    assert row_groups.find_files(tmp_path) == (tmp_path, found, tmp_path)
    assert row_groups.find_files(str(found[1])) == (found[1], [found[1]], None)
    # A folder that is hidden itself may be asked for.
    hidden = tmp_path / "_temporary"
    assert row_groups.find_files(hidden)[1] == [hidden / "x.parquet"]
    assert row_groups.find_files([found[2], str(found[0])]) == (
        found[2], [found[2], found[0]], None
    )  # fmt: skip


def test_ids_of_a_list_of_files_tell_the_folders_in_which_they_differ(tmp_path) -> None:
    days = [
        folder_of(tmp_path / "x" / day, [k], names="run") / "r.parquet"
        for k, day in enumerate("mt")
    ]
    file = btil.open_demonstrations(days, ids_by_file=True)
    assert file.read().episode_ids.tolist() == ["m/r/0", "t/r/1"]
    assert file.read().replace(episodes=demos().select([0, 1]).episodes) == demos().select([0, 1])


@pytest.mark.parametrize("index", [-1, 2, True])
def test_parts_that_are_none(index, tmp_path) -> None:
    file = btil.open_demonstrations(folder_of(tmp_path / "days", [0], [1]))
    with pytest.raises(ValueError, match=r"index: .* allowed are whole numbers in 0\.\.1"):
        file.shard(2, index)
    with pytest.raises(ValueError, match="num_shards must be a whole number of at least 1"):
        file.shard(0, 0)


def test_an_episode_longer_than_a_part(tmp_path) -> None:
    path = tmp_path / "long.parquet"
    long = random_demos(lengths=(20, 2))
    btil.write_demonstrations(long, path)
    file = btil.open_demonstrations(path)
    lengths = [[p.num_steps for p in file.shard(4, k)] for k in range(4)]
    assert lengths == [[20], [], [], [2]]


def test_without_a_column_of_episodes(tmp_path) -> None:
    columns: dict[str, Any] = {"x": [0, 1, 0], "action_a": [1, 0, 1], "latent_a": [0, 1, 1]}
    plain(tmp_path / "f" / "one.parquet", **columns)
    plain(tmp_path / "f" / "sub" / "two.parquet", **columns)
    with pytest.raises(ValueError, match=r"one\.parquet: there is no column 'episode'; ids_by_"):
        list(btil.open_demonstrations(tmp_path / "f"))
    file = btil.open_demonstrations(tmp_path / "f", ids_by_file=True)
    assert file.read().episode_ids.tolist() == ["one", "sub/two"]
    assert [file.shard(2, k).read().episode_ids.tolist() for k in (0, 1)] == [["one"], ["sub/two"]]


def test_ids_of_one_file_that_are_in_another(tmp_path) -> None:
    folder = folder_of(tmp_path / "days", [0, 1], [1, 2])
    message = r"b\.parquet: episode: row 0 \(counted from 0\): episode 1 is in .*a\.parquet too"
    with pytest.raises(ValueError, match=message):
        list(btil.open_demonstrations(folder))
    file = btil.open_demonstrations(folder, ids_by_file=True)
    assert file.read().episode_ids.tolist() == ["a/0", "a/1", "b/1", "b/2"]
    np.testing.assert_array_equal(file.read().actions, demos().actions[[0, 1, 2, 3, 3, 4, 5, 6, 7]])


def test_sizes_and_names_are_put_together(tmp_path) -> None:
    def write(name: str, size: int, names: list[str]) -> None:
        one = random_demos(lengths=(2, 2), num_states=(size, 2)).replace(
            state_names={"y": names}, episodes=[name, name, f"{name}2", f"{name}2"]
        )
        btil.write_demonstrations(one, tmp_path / f"{name}.parquet")

    write("a", 2, ["up", "down"])
    write("b", 5, ["down", "left"])
    file = btil.open_demonstrations(tmp_path)
    assert file.num_states == {"x": 5, "y": 3}
    assert file.state_names == {"y": ("up", "down", "left")}
    read = file.read()
    for name, part in (("a", [0, 1]), ("b", [2, 3])):
        own = btil.read_demonstrations(tmp_path / f"{name}.parquet", like=read)
        assert read.select(part) == own


def test_files_of_other_tools_are_one_table(tmp_path) -> None:
    common = {"episode": [1, 1], "action_a": [0, 1], "latent_a": [0, None]}
    plain(tmp_path / "a.parquet", x=pa.array([0, 1], pa.int8()), word=["hi", "ho"], **common)
    common["episode"] = [2, 2]
    words = pa.array(["ho", "ha"]).dictionary_encode()
    plain(tmp_path / "b.parquet", x=pa.array([300, 1], pa.int64()), word=words, **common)
    file = btil.open_demonstrations(tmp_path, num_latents=2)
    assert file.num_states == {"x": 301, "word": 3}
    frames = [parquet.read_table(tmp_path / f"{n}.parquet").to_pandas() for n in "ab"]
    pd.concat(frames, ignore_index=True).to_parquet(tmp_path / "whole.parquet")
    whole = btil.read_demonstrations(tmp_path / "whole.parquet", num_latents=2)
    assert file.read() == whole


def test_files_that_do_not_go_together(tmp_path) -> None:
    common = {"action_a": [0, 1], "latent_a": [0, 1]}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"x": [0, 1], "z": [0, 1]}, r"b\.parquet: column 'z' is there, but not in .*a\.parquet"),
        ({"y": [0, 1]}, r"b\.parquet: column '.' is .*all files must have the same columns"),
        ({"x": ["u", "v"]}, r"b\.parquet: column 'x' is string, but int64 in the files before it"),
        ({"x": [0, -3]}, r"b\.parquet, episode 2, step 1: -3 is not allowed"),
        (
            {"x": [0, 1], "latent_a[0]": [1, 1], "latent_a[1]": [1, 1]},
            r"b\.parquet: column 'latent_a\[0\]' is there, but not in",
        ),
    ]
    for number, (columns, message) in enumerate(cases):
        folder = tmp_path / str(number)
        plain(folder / "a.parquet", episode=[1, 1], x=[0, 1], **common)
        plain(folder / "b.parquet", episode=[2, 2], **columns, **common)
        with pytest.raises(ValueError, match=message):
            list(btil.open_demonstrations(folder))
    # Found when it is read: the file, the episode and the step are told.
    folder = tmp_path / "late"
    plain(folder / "a.parquet", episode=[1, 1], x=[0, 1], **common)
    plain(folder / "b.parquet", episode=[2, 2], x=[0, 7], **common)
    file = btil.open_demonstrations(folder, num_states=2, num_latents=2, num_actions=2)
    with pytest.raises(ValueError, match=r"b\.parquet: x: episode 2, step 1: 7 is not allowed"):
        list(file)
    folder = folder_of(tmp_path / "mixed", [0])
    bare = parquet.read_table(folder / "a.parquet").replace_schema_metadata(None)
    parquet.write_table(bare, folder / "b.parquet")
    told = (
        r"b\.parquet: sizes and names are recorded in .*a\.parquet, but not in .*b\.parquet; give"
    )
    with pytest.raises(ValueError, match=told):
        btil.open_demonstrations(folder)
    (folder / "b.parquet").rename(folder / "0.parquet")
    told = (
        r"a\.parquet: sizes and names are recorded in .*a\.parquet, but not in .*0\.parquet; give"
    )
    with pytest.raises(ValueError, match=told):
        btil.open_demonstrations(folder)


def test_what_is_no_folder_and_no_list(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.csv").touch()
    path = folder_of(tmp_path / "days", [0]) / "a.parquet"
    for given, message in (
        (tmp_path / "empty", r"there is no \.parquet file in this folder"),
        ([], "the list of files is empty"),
        ([path, path], "is twice in the list"),
        ([tmp_path / "a.csv"], r"only a \.parquet file"),
    ):
        with pytest.raises(ValueError, match=message):
            btil.open_demonstrations(given)
    with pytest.raises(FileNotFoundError):
        btil.open_demonstrations([path, tmp_path / "none.parquet"])
    with pytest.raises(FileNotFoundError, match="No such file or directory"):
        btil.open_demonstrations(tmp_path / "other days")
    path.write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"a\.parquet: damaged"):
        btil.open_demonstrations(tmp_path / "days")


def test_filters_choose_episodes(tmp_path) -> None:
    path = tmp_path / "team.parquet"
    btil.write_demonstrations(demos(), path)
    file = btil.open_demonstrations(path, filters=[("episode", "in", [1, 4, 5])])
    assert file.read() == demos().select([1, 4, 5])
    assert (file.num_steps, file.num_episodes) == (11, 3)
    shards = [file.shard(3, k) for k in range(3)]
    assert [s.num_steps for s in shards] == [1, 9, 1]
    either = [[("episode", "<", 1)], [("episode", ">", 5), ("episode", "!=", 7)]]
    assert btil.open_demonstrations(path, filters=either).read() == demos().select([0, 6])


def test_filters_leave_out_what_they_cannot_tell(tmp_path) -> None:
    columns: dict[str, Any] = {"x": [0, 1, 0, 1, 1], "action_a": [1, 0, 1, 1, 0]}
    path = plain(
        tmp_path / "t.parquet", episode=[1, 1, 2, 2, 3], site=[0, 0, None, None, 5], **columns
    )
    for filters, episodes in (
        ([("site", "==", 0)], [1]),
        ([("site", "!=", 0)], [3]),
        ([[("site", "==", 5)], [("site", "<", 1)]], [1, 3]),
        ([("site", "not in", [5, 9])], [1, 2]),
    ):
        file = btil.open_demonstrations(
            path, filters=filters, num_latents=1, num_actions=2, num_states={"site": 6, "x": 2},
            missing="allow",
        )  # fmt: skip
        assert file.read().episode_ids.tolist() == episodes, filters
    with pytest.raises(ValueError, match=r"row 1 .*: episode 1 is kept in part"):
        btil.open_demonstrations(path, filters=[("site", ">=", 0), ("x", "in", [1])], num_latents=1)


def test_keys_of_folders(tmp_path) -> None:
    folder_of(tmp_path / "all" / "site=a" / "year=2024", [0, 1], names="x")
    folder_of(tmp_path / "all" / "site=b" / "year=2025", [2, 3], names="x")
    folder = tmp_path / "all"
    assert btil.open_demonstrations(folder).read() == demos().select([0, 1, 2, 3])
    file = btil.open_demonstrations(folder, filters=[("site", "==", "b")])
    assert file.read() == demos().select([2, 3])
    assert len(file.files) == 1
    both = [("year", ">", 2023), ("episode", ">", 0), ("site", "in", ["a"])]
    assert btil.open_demonstrations(folder, filters=both).read() == demos().select([1])


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ([("x", "==", 0)], r"team\.parquet: filters: row \d+ \(counted from 0\): episode 0 is kep"),
        ([("nobody", "==", 0)], "has no column 'nobody'; allowed are 'episode'"),
        ([("x", "~", 0)], "filters must be a list of .* is not a valid operator"),
        ([], "filters must be a list of"),
        ("x == 0", "filters must be a list of"),
        ([("episode", ">", 99)], "filters: no episode is left"),
    ],
)
def test_wrong_filters(filters, message, tmp_path) -> None:
    path = tmp_path / "team.parquet"
    btil.write_demonstrations(demos(), path)
    with pytest.raises(ValueError, match=message):
        list(btil.open_demonstrations(path, filters=filters))


def test_a_fit_to_a_folder_is_that_to_one_file(tmp_path) -> None:
    model = btil.TeamModel(btil.DirichletCPT(1.2, ("x",)), btil.DirichletCPT(1.1, ("y",)))
    folder = folder_of(tmp_path / "days", [0, 1], [2], [3, 4, 5], [6, 7])
    btil.write_demonstrations(demos(), tmp_path / "one.parquet")
    several, one = (
        btil.fit(model, btil.open_demonstrations(given), batch_size=3, progress=False)
        for given in (folder, tmp_path / "one.parquet")
    )
    for name, rows in one.result.rows.items():
        np.testing.assert_array_equal(several.result.rows[name].concentration, rows.concentration)


@pytest.mark.parametrize("at_once", [4, 1000])
def test_columns_that_some_files_lack(at_once, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(row_groups, "ROW_GROUP_STEPS", at_once)
    present = np.ones((26, 2), bool)
    present[1, 0] = False
    away = demos().replace(present=present, latents=np.where(present, demos().latents, -1))
    for name, chosen in (("a", [2, 3]), ("b", [0, 1]), ("c", [4])):
        part = (away if name == "b" else demos()).select(chosen)
        if name == "c":
            part = part.without_labels()
        btil.write_demonstrations(part, tmp_path / f"{name}.parquet")
    table = parquet.read_table(tmp_path / "c.parquet")
    names = [name for name in table.column_names if not name.startswith(("latent_", "present_"))]
    parquet.write_table(table.select(names), tmp_path / "c.parquet")
    read = btil.open_demonstrations(tmp_path).read()
    assert read.present.sum() == 2 * read.num_steps - 1
    rows = [*range(4, 10), *range(4), *range(10, 19)]
    np.testing.assert_array_equal(read.latents[:10], away.latents[rows[:10]])
    assert (read.latents[10:] == -1).all()
    np.testing.assert_array_equal(read.actions[:6], demos().actions[4:10])


def test_a_folder_is_read_in_a_shell_by_what_was_seen_before(tmp_path: Path) -> None:
    """Measured columns and numbers of mental states are those of the data learned from."""
    frame = pd.DataFrame({"episode": [0, 0, 1, 1], "step": [0, 1, 0, 1], "zone": [0, 1, 1, 0]})
    frame = frame.assign(action_ann=[0, 1, 1, 0], latent_ann=[0, 2, 1, 0])
    frame = frame.assign(ann_x=[0.5, -1.25, 3.0, 2.75])
    for name, part in (("seen", frame), ("new", frame[:2].assign(latent_ann=[0, 1]))):
        (tmp_path / name).mkdir()
        part.to_parquet(tmp_path / name / "a.parquet", index=False)
    seen = read(str(tmp_path / "seen"), Reading(continuous="ann_x"))
    assert seen.continuous["ann_x"].tolist() == frame["ann_x"].tolist()
    for given in (Reading(), Reading(num_latents="9")):
        new = read(str(tmp_path / "new"), given, seen)
        assert (list(new.num_states), list(new.continuous)) == (["zone"], ["ann_x"])
        assert new.num_latents == (3,)
