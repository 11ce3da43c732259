"""Whatever comes in: demonstrations that every file keeps, or a ValueError that says where."""

import contextlib
import datetime
import decimal
import inspect
import io
import json
import pickle
import re
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import btil
from btil.analysis.calibration.calibrating import _load
from btil.demonstrations import Demonstrations, read_demonstrations, write_demonstrations
from btil.domains.gridworld.grid import read_map
from btil.domains.overcooked import from_table
from btil.inference.result import DirichletRows, FitResult
from btil.models.description import model_from_description, read_model
from btil.models.team import bind
from btil.posterior import storage
from btil.study.episode import Episode, Row
from btil.study.export import export_study
from btil.study.sessions import Journey
from btil.study.settings import Stage, read_settings, write_defaults
from btil.study.store import (
    DATABASE_FILE,
    Person,
    Store,
    save_answers,
    save_episode,
    save_person,
    save_row,
)

# Made-up values leave some out: `tests/test_cases_data.py` has what is warned of.
pytestmark = pytest.mark.filterwarnings("ignore::btil.DataWarning")

FORMATS = (".csv", ".parquet", ".npz")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module", autouse=True)
def users_have_no_type_checker() -> Iterator[None]:
    """That of the tests would refuse much of this before the constructor sees it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Demonstrations, "__init__", inspect.unwrap(Demonstrations.__init__))
        yield


def refused(make: Callable[[], Any], path: Path | None = None, longest: int = 20_000) -> Any:
    """What is made; None where it was refused as it must be."""
    try:
        return make()
    except ValueError as caught:
        error = caught
    # Neither a library's own error nor pages of text.
    assert type(error) is ValueError
    assert 10 < len(str(error)) < longest
    assert path is None or str(error).startswith(str(path))
    return None


def assert_kept(demos: Demonstrations, folder: Path) -> None:
    """Nothing is lost in any file."""
    for ending in FORMATS:
        path = folder / f"kept{ending}"
        write_demonstrations(demos, path)
        assert read_demonstrations(path) == demos


# ---------------------------------------------------------------------- arguments

VALUES: list[Any] = [
    0, 1, 2, -1, -2, 1.0, 0.5, np.nan, np.inf, -np.inf, 2.0**53, 2**63, -(2**63), 10**400,
    10**5000,
    True, None, pd.NA, pd.NaT, 1j, b"a", "a", "b", "1", "01", "1.0", "", "-1", " a", "a\n",
    "\ud800", "\x00", "1_000", "inf", "٣", "é", "a,b", '"', "=1+1", "<b>", "\u2028x", np.int8(1),
    np.datetime64("2020"), np.timedelta64(1, "s"), datetime.date(2020, 1, 1),
    decimal.Decimal("NaN"), decimal.Decimal(1), (1,), [1], {}, np.array([1]), object(), type,
]  # fmt: skip
NAMES: list[Any] = [
    "x", "y", "ann", "bob", "state", "episode", "next_x", "latent_x", "file", "", " a", "a\nb",
    "\ud800", "\x00", "../x", "x.npy", "a,b", '"', "\u202ex", "\ufeffx", "Unnamed: 0", 1, None,
    ("a",), b"x", np.str_("np"), "x" * 300, "x" * 20_000,
]  # fmt: skip
# Columns of four steps, of every kind there is.
COLUMNS: list[Any] = [
    [0, 1, 2, 0], ["a", "b", "a", "b"], np.array([0, 1, 0, 1], "f2"), np.array(list("abab")),
    np.array([0, 1, 1, 0], ">i4"), np.array([2**63] * 4, np.uint64), np.array([1j] * 4),
    np.zeros(4, "M8[s]"), np.zeros(4, "m8[s]"), np.zeros(4, [("a", int)]), np.zeros(4, "S2"),
    np.ma.masked_array([0, 1, 1, 0], [0, 1, 0, 0]), np.zeros((4, 1), int), np.zeros((4, 2), int),
    np.zeros((2, 2, 1), int), np.array(3), np.zeros(3, int), np.zeros(0), np.zeros(4, bool),
    pd.Series([0, 1, 0, 1], index=[7] * 4), pd.array([0, None, 1, 0], "Int64"),
    pd.array(["a", None, "b", "a"], "string"), pd.array([True, None, False, True], "boolean"),
    pd.Categorical(["a", "b", None, "a"]), pd.Index([0, 1, 0, 1]),
    pd.Series(pd.arrays.SparseArray([0, 0, 1, 0])), pd.date_range("2020", periods=4),
    pd.interval_range(0, 4), pa.array([0, 1, None, 1]), pa.chunked_array([["a", "b", "a", "b"]]),
    memoryview(bytes(4)), bytes(4), "abab", range(4), {0, 1, 2, 3}, {"x": [0, 1, 0, 1]},
    [[0], [1], [0], [1]], [[0], [], [1, 2], [0]], xr.DataArray([0, 1, 0, 1]), jnp.arange(4),
    pd.DataFrame({"x": [0, 1, 0, 1]}), pd.DataFrame([[0, 1]] * 4, columns=["x", "x"]),
    pa.table({"x": [0, 1, 0, 1]}), None, 0, object(),
]  # fmt: skip
SIZES: list[Any] = [
    None, 3, 0, -1, 2.0, True, "3", 10**30, np.int64(3), np.float64(3), np.nan, np.array(3),
    np.array([3]), [3], [3, 3], [3, None], [[3], [3, 4]], {3, 4}, np.ones((2, 2)), {"x": 3},
    {"ann": 3.0}, {None: 3}, pd.Series([3, 3]), b"3", object(),
]  # fmt: skip
TEXTS: list[Any] = [
    None, ["a", "b"], ["a", "b", "c"], [], ["a", "a"], ["a\nb", "c"], ["\ud800"], [1, 2], "ab", 3,
    b"ab", ["1", "2", "0"], ["-1", "0"], ["nan", "b"], [[], []], [None], {"a": 0, "b": 1},
    {"a", "b"}, np.array(["a", "b", "c"]), np.array([["a"], ["b"]]), np.array("a"),
    pd.Index(["a", "b", "c"]), pd.Series(["b", "a"], index=[3, 3]), {"x": ["a", "b"]},
    {"x": None}, {"ann": 3}, {1: ["a"]}, object(), ["x" * 20_000, "a"], ["<b>", "$x", "=1"],
]  # fmt: skip

values = st.sampled_from(VALUES)
columns = (
    st.lists(st.sampled_from([0, 1, 2, "a", "b", None]), min_size=4, max_size=4)
    | st.lists(values, min_size=4, max_size=4)
    | st.sampled_from(COLUMNS)
)
tables = columns | st.dictionaries(
    st.sampled_from(["x", "ann", "bob"]) | st.sampled_from(NAMES), columns, max_size=2
)
sizes, texts = st.sampled_from(SIZES), st.sampled_from(TEXTS)
# One-use things are made anew for every example.
once = st.builds(lambda items: (item for item in items), st.just(("ann", "bob")))
agents = st.sampled_from([None, ["ann"], ["ann", "bob"]]) | texts | once
arguments = st.fixed_dictionaries(
    {"states": st.just([0, 1, 2, 0]) | tables, "actions": st.just({"ann": [0, 1, 0, 1]}) | tables},
    optional={
        "latents": tables,
        "episodes": columns,
        "agents": agents,
        "num_states": sizes,
        "num_actions": sizes,
        "num_latents": st.just(3) | sizes,
        "state_names": texts | once,
        "action_names": texts | once,
        "latent_names": texts | once,
    },
)


@settings(max_examples=400)
@given(arguments)
def test_any_arguments(folder, arguments):
    demos = refused(lambda: Demonstrations(**arguments))
    if demos is not None:
        assert_kept(demos, folder)
        assert repr(demos)
        assert str(demos.summary())


class Sized:
    """Has a length, and nothing to go through."""

    def __len__(self) -> int:
        return 2


# What got through, or came out as another error, before it was mended.
FOUND: dict[str, tuple[dict[str, Any], str]] = {
    "generator of ids": ({"episodes": (k for k in [0, 0])}, r"episodes: one id per step .*\(\)"),
    "number of agents": ({"agents": 3}, "agents: a sequence of texts expected, got 3"),
    "lists as agents": ({"agents": [["a"]]}, r"agent: a text .*\['a'\]"),
    "set of agents": ({"agents": {"a"}}, "agents: a sequence of texts"),
    "sized names": ({"action_names": Sized()}, "action_names: agent_0: a sequence of texts"),
    "number as names": ({"latent_names": 3}, "latent_names: agent_0: a sequence of texts"),
    "mapping as names": ({"action_names": {"agent_0": {"a": 0, "b": 1}}}, "a sequence of texts"),
    "duration": (
        {"actions": [np.timedelta64(1, "s"), "x"]},
        r"action_agent_0: episode 0, step 0: datetime.timedelta\(seconds=1\) is not allowed",
    ),
    "array as size": ({"num_latents": {"agent_0": [3]}}, "num_latents: agent_0: a whole number"),
    "ragged sizes": ({"num_actions": [[3], [3, 4]]}, "num_actions: cannot be read as an array"),
    "nested variables": (
        {"states": np.zeros((2, 2), int), "state_names": [["a"], ["b"]]},
        r"state_names: a text .*\['a'\]",
    ),
    "Arrow's table of a stranger": (
        {"latents": pa.table({"eve": [0, 1]})},
        "latent_'eve': there is no such agent; the agents are 'agent_0'",
    ),
    "column twice": (
        {"states": pd.DataFrame([[0, 1]] * 2, columns=["x", "x"])},
        "states: column 'x' occurs more than once",
    ),
    "endless name": ({"agents": ["x" * 70_000]}, "at most 10,000 characters expected, got 70,000"),
    "number of many digits": ({"states": [10**5000, 0]}, "state: episode 0, step 0: a huge int"),
}


@pytest.mark.parametrize("case", FOUND)
def test_arguments_that_were_found(case):
    given, message = FOUND[case]
    with pytest.raises(ValueError, match=message):
        Demonstrations(**({"states": [0, 1], "actions": [0, 1], "num_latents": 2} | given))


REASONABLE: dict[str, Any] = {
    "floats": [3.0, 3.0, 4.0], "series": pd.Series([3, 3, 4], index=[9, 9, 9]),
    "xarray": xr.DataArray([3, 3, 4]), "jax": jnp.array([3, 3, 4]),
    "read-only": np.broadcast_to(3, 3), "strided": np.arange(9)[::3], "range": range(3),
    "memory": memoryview(np.array([3, 3, 4])), "arrow": pa.array([3, 3, 4]),
    "big-endian": np.array([3, 3, 4], ">i2"), "nullable": pd.array([3, 3, 4], "Int64"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REASONABLE)
def test_whole_numbers_of_every_make(kind):
    given = REASONABLE[kind]
    plain = [int(value) for value in np.asarray(given)]
    demos = Demonstrations(given, given, latents=given, episodes=given, num_latents=9)
    assert demos == Demonstrations(plain, plain, latents=plain, episodes=plain, num_latents=9)


def test_tables_of_every_make():
    plain = {"x": [0, 1, 0], "y": [1, 0, 0]}
    expected = Demonstrations(plain, plain, num_latents=2)
    for make in (
        pd.DataFrame,
        pa.table,
        lambda given: xr.Dataset({k: ("t", v) for k, v in given.items()}),
    ):
        assert Demonstrations(make(plain), make(plain), num_latents=2) == expected


def test_labels_in_another_order_than_the_agents_are_kept(folder):
    states, actions = [0, 1], {"ann": [0, 1], "bob": [1, 0]}
    second = Demonstrations(states, actions, {"bob": [1, 0]}, num_latents=2)
    assert_kept(second, folder)
    both = {"bob": [1, 0], "ann": [0, 1]}
    demos = Demonstrations(states, actions, both)
    assert_kept(demos, folder)
    assert demos == Demonstrations(states, actions, dict(reversed(both.items())))


def test_names_that_are_gone_through_once_are_those_of_all_agents():
    arguments = {
        "states": [0, 1],
        "actions": np.zeros((2, 2), int),
        "agents": iter(["ann", "bob"]),
        "latent_names": iter(["a", "b"]),
    }
    assert Demonstrations(**arguments).latent_names == {"ann": ("a", "b"), "bob": ("a", "b")}


# ---------------------------------------------------------------------- files

RECORDED = Demonstrations(
    states={"x": [0, 1, 2, 0, 1], "y": list("ababa")},
    actions={"ann": ["go", "no", "go", "no", "no"], "bob": [0, 1, 2, 0, 0]},
    latents={"ann": ["p", None, "q", "p", "p"]},
    num_latents={"bob": 3},
    episodes=[3, 3, 4, 4, 5],
)
FOREIGN = b"episode,step,x,action_a,latent_a\n0,0,0,1,2\n0,1,0,1,\n1,0,1,1,1\n"
TOKENS = [
    b"",
    b"0", b"-1", b"1e400", b"9" * 5000, b"nan", b'"', b'""', b",", b"\n", b"\r\n", b"\r", b"\0",
    b"\xff", b"\xef\xbb\xbf", b"\xed\xa0\x80", b"A" * 100_000, b"# btil: {}", b"'", b"\t", b"=1+1",
    b"[" * 5000, b"9223372036854775808",
]  # fmt: skip


@pytest.fixture(scope="module")
def whole(folder: Path) -> dict[str, bytes]:
    """The recordings in every kind of file, by its ending."""
    for ending in FORMATS:
        write_demonstrations(RECORDED, folder / f"whole{ending}")
    return {ending: (folder / f"whole{ending}").read_bytes() for ending in FORMATS}


def damaged(contents: bytes, edits: list[tuple[float, str, Any]]) -> bytes:
    """Bits flipped, bytes put in, the end cut off."""
    for where, what, how in edits:
        at = int(where * len(contents))
        if what == "cut":
            contents = contents[:at]
        elif what == "flip" and contents:
            flipped = bytes([contents[at] ^ 1 << how % 8])
            contents = contents[:at] + flipped + contents[at + 1 :]
        else:
            token = TOKENS[how % len(TOKENS)]
            contents = contents[:at] + token + contents[at + how % 3 :]
    return contents


places = st.floats(0, 1, exclude_max=True)
edits = st.lists(
    st.tuples(places, st.sampled_from(["flip", "flip", "put", "cut"]), st.integers(0, 200)),
    min_size=1,
    max_size=3,
)


@settings(max_examples=200)
@given(st.sampled_from([*FORMATS, "foreign"]), edits)
def test_damaged_files(folder, whole, kind, edits):
    path = folder / f"damaged{'.csv' if kind == 'foreign' else kind}"
    path.write_bytes(damaged(whole.get(kind, FOREIGN), edits))
    demos = refused(lambda: read_demonstrations(path), path)
    if demos is not None:
        assert_kept(demos, folder)


ODD = [
    None, [], {}, "", 1, -1, 1.5, True, [1], ["a", "a"], {"x": None}, {"x": "3"}, {"x": [1]},
    {"x": 10**30}, {"x": {}}, ["bob"], "\ud800", {"x": -3}, {"ann": ["go"]}, {"y": "ab"},
    {"y": ["a", "a"]}, {"ann": [None]}, {"q": 1}, float("nan"),
]  # fmt: skip


def with_record(contents: bytes, ending: str, text: str) -> bytes:
    """A file whose columns are right and whose record says something else."""
    buffer = io.BytesIO()
    if ending == ".csv":
        return b"# btil: " + text.encode() + contents[contents.index(b"\n") :]
    if ending == ".parquet":
        table = parquet.read_table(io.BytesIO(contents))
        parquet.write_table(table.replace_schema_metadata({"btil_metadata": text}), buffer)
    else:
        arrays = dict(np.load(io.BytesIO(contents)))
        np.savez(buffer, **(arrays | {"btil_metadata": np.array(text)}))
    return buffer.getvalue()


@settings(max_examples=150)
@given(
    st.sampled_from(FORMATS),
    st.dictionaries(st.integers(0, 8), st.sampled_from(ODD), min_size=1, max_size=2),
)
def test_records_that_say_something_else(folder, whole, ending, changes):
    line = whole[".csv"].split(b"\n")[0]
    record = json.loads(line.removeprefix(b"# btil: "))
    record |= {list(record)[field]: value for field, value in changes.items()}
    path = folder / f"record{ending}"
    path.write_bytes(with_record(whole[ending], ending, json.dumps(record)))
    demos = refused(lambda: read_demonstrations(path), path)
    if demos is not None:
        assert_kept(demos, folder)


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **({"x": np.zeros(2, int), "action_a": np.zeros(2, int)} | arrays))
    return buffer.getvalue()


def zipped(name: str, contents: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(name, contents)
    return buffer.getvalue()


def nested() -> bytes:
    buffer = io.BytesIO()
    parquet.write_table(pa.table({"x": [[0], [1]], "action_a": [{"b": 1}, {"b": 0}]}), buffer)
    return buffer.getvalue()


HUGE = (
    b"\x93NUMPY\x01\x00v\x00{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999,), }"
)
FILES: dict[str, tuple[str, bytes, str]] = {
    "picture": (".csv", b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "damaged, or no .csv table"),
    "picture as npz": (
        ".npz",
        b"\x89PNG\r\n\x1a\n" + bytes(99),
        "File is not a zip",
    ),
    "old line ends": (".csv", FOREIGN.replace(b"\n", b"\r"), "no .csv table: new-line"),
    "other encoding": (".csv", FOREIGN.decode().encode("utf-16"), "UTF-16, not in UTF-8"),
    "ragged": (".csv", FOREIGN + b"1,1,0\n", "Row #4: Expected 5 columns, got 3"),
    "Windows": (".csv", FOREIGN + b"1,1,0,\xff,0\n", "line 5, column 4 is not in UTF-8: '1,1,0,ÿ"),
    "no text": (".csv", FOREIGN + b"1,1,0,\xff\x00,0\n", "Row #4: .*invalid UTF8"),
    "huge cell": (".csv", FOREIGN + b"1," + b"9" * 99 + b",0,1,0\n", "step: episode 1, step 1: '9"),
    "texts for steps": (
        ".csv",
        FOREIGN.replace(b"\n0,0", b"\n0,a"),
        "step: episode 0, step 0: 'a'",
    ),
    "nested": (".parquet", nested(), "x: "),
    "odd member": (".npz", zipped("../x.npy", b"abc"), "damaged, or no|magic|EOF"),
    "huge array": (
        ".npz",
        zipped("x.npy", HUGE.ljust(127) + b"\n"),
        "Unable to allocate",
    ),
    "objects": (".npz", npz(x=np.array([{}, 1], object)), "Object arrays cannot be loaded"),
    "columns": (".npz", npz(x=np.zeros((2, 2), int)), r"x: one value per step .*\(2, 2\)"),
    "single array": (".npz", npz(x=np.array(1)), "x: one value per step"),
    "wrong number": (".npz", npz(action_a=np.array([0, -1])), "action_a: episode 0, step 1: -1"),
}


@pytest.mark.parametrize("case", FILES)
def test_files_of_other_kinds(case, tmp_path):
    ending, contents, message = FILES[case]
    path = tmp_path / f"table{ending}"
    path.write_bytes(contents)
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}: (.|\n)*({message})"):
        read_demonstrations(path, num_latents=3)


def test_line_ends_marks_and_long_rows_of_other_tools_are_read(tmp_path):
    path = tmp_path / "table.csv"
    path.write_bytes(FOREIGN)
    plain = read_demonstrations(path)
    path.write_bytes(b"\xef\xbb\xbf" + FOREIGN.replace(b"\n", b"\r\n"))
    assert read_demonstrations(path) == plain
    long = [f"{k}{'x' * 9000}" for k in range(160)]  # a row of more than a megabyte
    wide = Demonstrations({f"v{k}": [text, text] for k, text in enumerate(long)}, [0, 0], [0, 0])
    write_demonstrations(wide, path)
    assert read_demonstrations(path) == wide


def test_a_flipped_bit_of_a_parquet_page_is_found(tmp_path):
    demos = Demonstrations(np.arange(2000) % 977, np.arange(2000) % 2, num_latents=2)
    path = tmp_path / "table.parquet"
    write_demonstrations(demos, path)
    contents = bytearray(path.read_bytes())
    for at in range(40, 2000, 97):
        contents[at] ^= 16
        path.write_bytes(contents)
        assert refused(lambda: read_demonstrations(path), path) is None
        contents[at] ^= 16


# ---------------------------------------------------------------------- code in files


class Payload:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_a_pickle_is_never_run(tmp_path):
    ran, path = tmp_path / "ran", tmp_path / "table.npz"
    objects = np.array([Payload(ran), Payload(ran)], object)
    readers: list[Callable[[], Any]] = [
        lambda: read_demonstrations(path),
        lambda: from_table(path, "cramped_room"),
        lambda: btil.load_posterior(path),
    ]
    for contents in (npz(x=objects), npz(btil_metadata=objects), pickle.dumps(Payload(ran))):
        path.write_bytes(contents)
        for read in readers:
            with pytest.raises(ValueError, match=re.escape(str(path))):
                read()
    assert not ran.exists()
    pickle.loads(pickle.dumps(Payload(ran)))
    assert ran.exists()


# ---------------------------------------------------------------------- posteriors


@pytest.fixture(scope="module")
def posterior() -> btil.TeamPosterior:
    bound = bind(btil.TeamModel(btil.DirichletCPT(1.2, ("x",)), btil.DirichletCPT(1.0)), RECORDED)
    generator = np.random.default_rng(0)
    rows = {s: DirichletRows(generator.gamma(2.0, 1.0, t.shape)) for s, t in bound.learned.items()}
    result = FitResult(rows, True, "made by hand", elbo_trace=np.arange(3.0))
    return btil.TeamPosterior(bound, "mfvi", result, 0, np.dtype(np.float64), 1.0)


@pytest.fixture(scope="module")
def saved(posterior: btil.TeamPosterior, folder: Path) -> bytes:
    path = folder / "whole.nc"
    posterior.save(path)
    return path.read_bytes()


@settings(max_examples=80)
@given(places, st.integers(0, 7))
def test_a_flipped_bit_of_a_posterior_is_found(folder, saved, place, bit):
    path = folder / "damaged.nc"
    seal = len(storage.seal_of(b""))
    path.write_bytes(damaged(saved[:-seal], [(place, "flip", bit)]) + saved[-seal:])
    assert refused(lambda: btil.load_posterior(path), path) is None


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.98])
def test_posteriors_that_are_cut_off(saved, share, tmp_path):
    path = tmp_path / "short.nc"
    path.write_bytes(saved[: int(share * len(saved))])
    with pytest.raises(ValueError, match=r"short\.nc is not a posterior"):
        btil.load_posterior(path)


def test_a_posterior_stays_a_netcdf_file(posterior, tmp_path):
    path = tmp_path / "team.nc"
    posterior.save(path)
    with xr.open_dataset(path) as dataset:
        assert "record" in dataset
    # As files were before they ended with a checksum.
    path.write_bytes(path.read_bytes()[: -len(storage.seal_of(b""))])
    assert btil.load_posterior(path).demos == posterior.demos


def odd(value: Any, choose: Callable[[int], int]) -> Any:
    """A record with one thing in it that is something else, or not there."""
    if isinstance(value, dict) and value and choose(8):
        key = list(value)[choose(len(value))]
        if choose(5) == 0:
            return {k: v for k, v in value.items() if k != key}
        return value | {key: odd(value[key], choose)}
    if isinstance(value, list) and value and choose(4):
        at = choose(len(value))
        return [odd(v, choose) if k == at else v for k, v in enumerate(value)]
    wrong = [
        *ODD,
        {"__array__": "array_0", "dtype": "f8"},
        {"__array__": "none", "dtype": "f8"},
        {"__array__": "array_0", "dtype": "none"},
        {"__empty__": [9**9], "dtype": "f8"},
    ]
    return wrong[choose(len(wrong))]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 10**6), min_size=30, max_size=30))
def test_posteriors_with_odd_records(folder, saved, numbers):
    path = folder / "odd.nc"
    path.write_bytes(saved[: -len(storage.seal_of(b""))])
    drawn = iter(numbers)
    with h5py.File(path, "r+") as file:
        record = json.loads(file["record"].asstr()[()])
        file["record"][()] = json.dumps(odd(record, lambda size: next(drawn) % size))
    refused(lambda: btil.load_posterior(path), path)


@pytest.mark.parametrize("contexts", ["?", 3, [0], {"__array__": "array_0", "dtype": "f8"}])
def test_contexts_that_are_no_mapping(folder, saved, contexts):
    path = folder / "odd.nc"
    path.write_bytes(saved[: -len(storage.seal_of(b""))])
    with h5py.File(path, "r+") as file:
        record = json.loads(file["record"].asstr()[()])
        file["record"][()] = json.dumps(record | {"contexts": contexts})
    with pytest.raises(ValueError, match=r"odd\.nc.*is damaged: contexts is"):
        btil.load_posterior(path)


# ---------------------------------------------------------------------- what calibration keeps


@pytest.mark.parametrize("contents", [b"", b"PK", npz(), npz(x=np.array([{}], object))])
def test_simulations_that_are_damaged(contents, tmp_path):
    path = tmp_path / "simulation-00000.npz"
    path.write_bytes(contents)
    with pytest.raises(ValueError, match=r"simulation-00000\.npz: damaged .* delete it"):
        _load(path)


# ---------------------------------------------------------------------- settings and maps

MODEL = b"""
[policy]
concentration = 1.2
parents = ["state"]
shared = true
[transition]
family = "sticky"
parents = {ann = ["x"], bob = ["y"]}
[initial.agents.ann]
family = "uniform"
"""


@settings(max_examples=150)
@given(edits)
def test_damaged_model_files(folder, edits):
    path = folder / "model.toml"
    path.write_bytes(damaged(MODEL, edits))
    refused(lambda: read_model(path), path, longest=10**6)


@settings(max_examples=150)
@given(edits)
def test_damaged_settings_of_a_study(folder, edits):
    study = folder / "study"
    write_defaults(study)
    path = study / "study.toml"
    whole = path.read_bytes()
    path.write_bytes(damaged(whole, edits))
    with contextlib.suppress(OSError):  # another name of a file
        refused(lambda: read_settings(path), path, longest=10**6)
    path.write_bytes(whole)


@pytest.mark.parametrize(
    "given", [None, 3, "policy", [], {"policy": 3}, {1: {}}, {"policy": {"parents": -0.0}}]
)
def test_descriptions_of_other_kinds(given):
    assert refused(lambda: inspect.unwrap(model_from_description)(given)) is None


@settings(max_examples=100)
@given(st.text("#.01ARGB\n x\x00é", max_size=40) | values)
def test_drawings_of_maps(drawing):
    refused(lambda: read_map(drawing))


# ---------------------------------------------------------------------- studies


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A study's file: one person, one session of two steps."""
    folder = tmp_path_factory.mktemp("study")
    stage = Stage("session", domain="movers", map="tiny", number=1, of=1, max_steps=40)
    state = btil.domains.movers("tiny").simulate(1, seed=0).states[0].item()
    no, yes = (False, False), (True, True)
    episode = Episode(2, state, (0, 0), (0, 0), no, no, (-1, -1), yes, (2, 2), 1.0, True)
    store = Store(folder, seed=3, create=True)
    store.write(
        [
            save_person(Person(1, 123_456, None, 1, 0, "ai", (stage,), Journey())),
            save_episode(1, 0, episode),
            *(save_row(1, 0, Row(k, state, (0, 1), (0, -1), yes, 0.5)) for k in range(2)),
            *save_answers(1, "opening", {"age": "=1+1"}),
        ]
    )
    store.close()
    with contextlib.closing(sqlite3.connect(folder / DATABASE_FILE)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return (folder / DATABASE_FILE).read_bytes()


def exported(folder: Path, contents: bytes, change: str | None = None) -> list[Path]:
    path = folder / DATABASE_FILE
    path.write_bytes(contents)
    if change is not None:
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(change)
    try:
        return [file for file, _ in export_study(folder, folder / "demos.csv")]
    except OSError as error:
        raise ValueError(str(error)) from error


def test_a_study_is_exported(study, tmp_path):
    assert exported(tmp_path, study) == [tmp_path / "demos.csv"]
    assert btil.read_demonstrations(tmp_path / "demos.csv").num_steps == 2


@settings(max_examples=80)
@given(edits)
def test_damaged_studies(folder, study, edits):
    refused(lambda: exported(folder, damaged(study, edits)), folder)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE steps SET state = 99999999",
        "UPDATE steps SET alice_action = -1",
        "UPDATE steps SET rob_latent = 99",
        "UPDATE steps SET step = 5 WHERE step = 1",
        "UPDATE episodes SET episode = '{}'",
        "UPDATE episodes SET episode = '['",
        "UPDATE episodes SET position = 7",
        "UPDATE steps SET position = 7",
        "DELETE FROM participants",
        "DELETE FROM study",
        "DROP TABLE steps",
        "UPDATE study SET value = 'x'",
        "UPDATE participants SET stages = '[[\"session\"]]'",
        "UPDATE participants SET stages = replace(stages, 'movers', 'record')",
        "UPDATE participants SET stages = replace(stages, 'tiny', '#')",
        "UPDATE participants SET journey = '3'",
    ],
)
def test_studies_in_which_something_else_stands(study, change, tmp_path):
    refused(lambda: exported(tmp_path, study, change), tmp_path)
