"""The same table through every way in: the same demonstrations and doubts, or the same refusal."""

import csv
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import btil

Table = dict[str, list[Any]]
KINDS = {"states": "", "actions": "action_", "latents": "latent_"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ways")


@pytest.fixture(scope="module", autouse=True)
def small_parts() -> Iterator[None]:
    """Parquet files are read about three steps at a time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("btil.demonstrations.row_groups.ROW_GROUP_STEPS", 3)
        yield


# ---------------------------------------------------------------------- ways in


def by_csv(table: Table, folder: Path, **options: Any) -> btil.Demonstrations:
    path = folder / "table.csv"
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(table)
        writer.writerows(zip(*table.values(), strict=True))
    return btil.read_demonstrations(path, **options)


def to_parquet(table: Table, folder: Path, coded: bool) -> Path:
    columns = {name: pa.array(cells) for name, cells in table.items()}
    if coded:
        columns = {
            name: column.dictionary_encode() if pa.types.is_string(column.type) else column
            for name, column in columns.items()
        }
    path = folder / "table.parquet"
    parquet.write_table(pa.table(columns), path, row_group_size=2)
    return path


def by_parquet(table: Table, folder: Path, **options: Any) -> btil.Demonstrations:
    return btil.read_demonstrations(to_parquet(table, folder, coded=False), **options)


def by_coded_parquet(table: Table, folder: Path, **options: Any) -> btil.Demonstrations:
    return btil.read_demonstrations(to_parquet(table, folder, coded=True), **options)


def by_parts(table: Table, folder: Path, **options: Any) -> btil.Demonstrations:
    return btil.open_demonstrations(to_parquet(table, folder, coded=False), **options).read()


def by_npz(table: Table, folder: Path, **options: Any) -> btil.Demonstrations:
    path = folder / "table.npz"
    arrays = {}
    for name, cells in table.items():
        texts = any(isinstance(cell, str) for cell in cells)
        nothing: Any = "" if texts else np.nan
        arrays[name] = np.array([nothing if cell is None else cell for cell in cells])
    np.savez(path, **arrays)
    return btil.read_demonstrations(path, **options)


def by_arguments(table: Table, make: Callable[[Table], Any], **options: Any) -> btil.Demonstrations:
    def part(prefix: str) -> Any:
        others = ("episode", "action_", "latent_")
        return make(
            {
                name.removeprefix(prefix): cells
                for name, cells in table.items()
                if (name.startswith(prefix) if prefix else not name.startswith(others))
            }
        )

    arguments = {argument: part(prefix) for argument, prefix in KINDS.items()}
    episodes = make({"episode": table["episode"]})["episode"]
    return btil.Demonstrations(**arguments, episodes=episodes, **options)


def by_lists(table: Table, folder: Path, **options: Any) -> btil.Demonstrations:
    return by_arguments(table, dict, **options)


def by_objects(table: Table, folder: Path, **options: Any) -> btil.Demonstrations:
    def make(columns: Table) -> Any:
        return {name: np.array(cells, object) for name, cells in columns.items()}

    return by_arguments(table, make, **options)


def by_frames(table: Table, folder: Path, **options: Any) -> btil.Demonstrations:
    return by_arguments(table, pd.DataFrame, **options)


def by_categories(table: Table, folder: Path, **options: Any) -> btil.Demonstrations:
    """Data frames of categories, of which the first and the last are left over."""

    def categorical(cells: list[Any]) -> Any:
        if not any(isinstance(cell, str) for cell in cells):
            return cells
        found = sorted({cell for cell in cells if cell is not None}, reverse=True)
        return pd.Categorical(cells, categories=["!left", *found, "~over"])

    def make(columns: Table) -> Any:
        return pd.DataFrame({name: categorical(cells) for name, cells in columns.items()})

    return by_arguments(table, make, **options)


def by_arrow(table: Table, folder: Path, **options: Any) -> btil.Demonstrations:
    return by_arguments(table, pa.table, **options)


def by_btil(table: Table, folder: Path, **options: Any) -> btil.Demonstrations:
    """Through a file of btil's own, which keeps what was read."""
    demos = by_lists(table, folder, **options)
    for ending in (".csv", ".parquet", ".npz"):
        btil.write_demonstrations(demos, folder / f"own{ending}")
        read = btil.read_demonstrations(folder / f"own{ending}")
        assert read == demos
        assert btil.read_demonstrations(folder / f"own{ending}", like=demos) == demos
    return read


WAYS: list[Callable[..., btil.Demonstrations]] = [
    by_lists, by_objects, by_frames, by_categories, by_arrow,
    by_csv, by_parquet, by_coded_parquet, by_parts, by_npz, by_btil,
]  # fmt: skip


class Outcome(NamedTuple):
    """What came of a table: demonstrations and doubts, or the column, place and value refused."""

    demos: btil.Demonstrations | None
    doubts: tuple[str, ...]
    refusal: str


def outcome(way: Callable[..., btil.Demonstrations], *given: Any, **options: Any) -> Outcome:
    """In words that are the same for texts and numbers, and for files and arguments."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            demos, refusal = way(*given, **options), ""
        except ValueError as error:
            demos, refusal = None, f"{type(error).__name__}: {error}"
    doubts = sorted(re.sub(r"^\S*/table\.\w+: ", "", str(doubt.message)) for doubt in told)
    refusal = re.sub(r"^ValueError: (\S*/table\.\w+: )?", "", refusal).partition("; ")[0]
    # Numbers come as texts from a CSV, as floats from a column with nulls.
    return Outcome(demos, tuple(doubts), re.sub(r"\.0\b", "", refusal.replace("'", "")))


# ---------------------------------------------------------------------- tables

NAMES = [
    "a", "b", "go", " go", "07", "7", "1e1", "10", "1.50", "+1", "none", "True", "\u00e9",
    "e\u0301", "a,b", '"', "x y", "#", "=1+1", "?",
]  # fmt: skip
# Numbers by type count declared names, texts are looked up in them: none of these is a number.
DECLARED = ["a", "b", "go", "none", "True", "\u00e9", "a,b", '"', "x y", "#", "=1+1", "?"]
NUMERALS = ["0", "1", "2", " 1"]
TROUBLES = [
    *NAMES, *NUMERALS, "1.0", "-1", "1.5", "inf", "", " ", "None", "NA", "nan", "null", "x\u00a0y",
]  # fmt: skip
whole, real = st.sampled_from([0, 1, 2]), st.sampled_from([0.0, 1.0, 2.0])
nothing_of = {"number": st.sampled_from([None, -1]), "text": st.sampled_from([None, "", "-1"])}
troubles = st.sampled_from(
    [
        st.sampled_from([0, 1, -1, -2, 3, None]),
        st.sampled_from([0.0, 1.0, -1.0, 1.5, float("inf"), None]),
        st.lists(st.sampled_from([*TROUBLES, None]), min_size=1, max_size=3).flatmap(
            st.sampled_from
        ),
    ]
)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Tables that are right, and such of which one column is not."""
    steps = draw(st.integers(2, 7))
    columns = [*draw(st.sampled_from([["x"], ["x", "y"]]))]
    agents = draw(st.sampled_from([["ann"], ["ann", "bob"]]))
    columns += [f"{kind}_{agent}" for kind in ("action", "latent") for agent in agents]
    trouble = draw(st.sampled_from([*[None] * len(columns), "episode", *columns]))

    def cells(column: str) -> st.SearchStrategy[Any]:
        if column == trouble:
            return draw(troubles)
        names = st.sampled_from(draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3)))
        kind, some = draw(
            st.sampled_from(
                [
                    ("number", whole),
                    ("number", real),
                    ("text", st.sampled_from(NUMERALS)),
                    ("text", names),
                    ("text", names),
                ]
            )
        )
        return some | nothing_of[kind] if column.startswith("latent") else some

    ids = draw(
        st.sampled_from([st.integers(-3, 9), st.sampled_from(["mon", "tue", " tue", "\u00e9"])])
    )
    episodes = draw(st.lists(ids, min_size=steps, max_size=steps))
    if trouble != "episode":
        episodes = sorted(episodes, key=lambda one: one.strip() if isinstance(one, str) else one)
    table = {"episode": episodes}
    for column in columns:
        table[column] = draw(st.lists(cells(column), min_size=steps, max_size=steps))
    return table


options = st.fixed_dictionaries(
    {},
    optional={
        "unknown_labels": st.sampled_from([[], ["NA"], ["None", "?"], [1], ["1"]]),
        "latent_names": st.sampled_from([["go", "stay"], DECLARED[:3], DECLARED]),
        "action_names": st.sampled_from([["stay", "go", "a"], DECLARED]),
    },
)
options = st.just({}) | st.just({"num_latents": 3}) | options


def of(**columns: list[Any]) -> Table:
    steps = len(next(iter(columns.values())))
    plain: Table = {name: [0] * steps for name in ("episode", "x", "action_ann", "latent_ann")}
    return plain | columns


# A null of the file format is read as such from all but a CSV and an NPZ of texts, and as an empty
# cell from these: the same.
@settings(max_examples=40)
@given(tables(), options)
@example(of(x=["1e1", "10", "1e2"]), {})
@example(of(latent_ann=["None", "lift", "", "None"]), {})
@example(of(latent_ann=["None", "lift", "", "None"]), {"unknown_labels": ["None"]})
@example(of(latent_ann=[1, 2, 1, None]), {})
@example(of(action_ann=["go", "stay", "go"]), {"action_names": ["stay", "go"]})
@example(of(latent_ann=["a", None, "e\u0301", "\u00e9"]), {})
@example(of(x=[0.0, 1.5, 1.0]), {})
def test_every_way_in_gives_the_same(folder: Path, table: Table, options: dict[str, Any]) -> None:
    first, *others = WAYS
    expected = outcome(first, table, folder, **options)
    for way in others:
        found = outcome(way, table, folder, **options)
        if way is by_parts and options and expected.demos is None:
            # Of two things that are wrong, declared columns are looked at when they are read.
            assert found.demos is None
        else:
            assert found == expected, way.__name__


@settings(max_examples=15)
@given(tables(), st.data())
def test_a_second_table_is_read_alike_by_every_reader(
    folder: Path, table: Table, data: st.DataObject
) -> None:
    """Some rows of a table, by the names and sizes of the whole; or another table."""
    whole = outcome(by_lists, table, folder)
    if whole.demos is None:
        return
    steps = whole.demos.num_steps
    rows = sorted(data.draw(st.sets(st.integers(0, steps - 1), min_size=1)))
    second = {name: [cells[row] for row in rows] for name, cells in table.items()}
    expected = outcome(by_csv, second, folder, like=whole.demos)
    assert expected.demos is not None, expected.refusal
    for way in (by_parquet, by_coded_parquet, by_parts, by_npz):
        assert outcome(way, second, folder, like=whole.demos) == expected, way.__name__
    np.testing.assert_array_equal(expected.demos.actions, whole.demos.actions[rows])
    np.testing.assert_array_equal(expected.demos.latents, whole.demos.latents[rows])


def gapped(seed: int) -> tuple[Table, dict[str, Any]]:
    """A table of two members who come and go, with unsure labels and blanks that are allowed."""
    generator = np.random.default_rng(seed)
    steps = int(generator.integers(5, 10))

    def some(values: list[Any], missing: float = 0.0) -> list[Any]:
        drawn = [values[k] for k in generator.integers(0, len(values), steps)]
        return [None if generator.random() < missing else one for one in drawn]

    labels = [["a", "b", "a|b", "?", "b|c"], ["0", "1", "1|2", "-1", "99"]][seed % 2]
    table: Table = {
        "episode": sorted(some(["mon", "tue", "wed"])),
        "zone": some(["in", "out"], 0.2),
        "ann_cell": some(["3", "1", "0"], 0.2),
        "action_ann": ["go", *some(["go", "stay"], 0.3)[1:]],
        "latent_ann": [labels[0], *some(labels, 0.3)[1:]],
        "present_ann": ["yes", *some(["yes", "no"])[1:]],
        "action_bob": some(["0", "1", "2"], 0.3),
        "latent_bob": some(["up", "down"], 0.5),
    }
    if seed % 3 == 0:
        table["latent_bob[up]"] = some(["0.5", "2"])
        table["latent_bob[left]"] = some(["1", "0.25"])
        table["latent_bob"] = some(["up", "?"], 0.5)
    if seed % 3 == 1:
        table["present_bob"] = some(["1", "0", "1"])
        table["reward"] = some(["0.5", "-1"])
        table["speed"] = some(["0.5", "1e3"], 0.3)
    told = (
        {"unknown_labels": ["?", "99"], "latent_names": {"bob": ["up", "down"]}} if seed % 3 else {}
    )
    told |= {"unknown_labels": ["?", "99"], "missing": "allow", "drop_last": seed % 4 == 0}
    return table, told | ({"continuous": ["speed"]} if seed % 3 == 1 else {})


@pytest.mark.parametrize("seed", range(6))
def test_recordings_with_gaps_are_read_alike_by_every_reader(folder: Path, seed: int) -> None:
    table, options = gapped(seed)
    expected = outcome(by_csv, table, folder, **options)
    assert expected.demos is not None, expected.refusal
    assert expected.demos.away
    for way in (by_parquet, by_coded_parquet, by_parts):
        found = outcome(way, table, folder, **options)
        assert found.demos == expected.demos, way.__name__
        if way is not by_parts:  # which tells of one part
            assert found.doubts == expected.doubts
    for ending in (".csv", ".parquet", ".npz"):
        btil.write_demonstrations(expected.demos, folder / f"own{ending}")
        assert btil.read_demonstrations(folder / f"own{ending}") == expected.demos


def test_the_ways_tell_tables_apart(folder: Path) -> None:
    """The comparison above can fail: a table that is another is told from the first."""
    one, other = of(x=["a", "b"]), of(x=["b", "a"])
    assert outcome(by_csv, one, folder) != outcome(by_lists, other, folder)
    bad = of(action_ann=["a", ""])
    assert outcome(by_csv, bad, folder) != outcome(by_lists, of(action_ann=["", "a"]), folder)
    doubtful = outcome(by_csv, of(action_ann=[1, 1]), folder)
    assert len(doubtful.doubts) == 1
