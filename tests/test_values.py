"""How values are read, spelling by container by role: `docs/reference/values.md` in numbers."""

import datetime
import re
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

import btil
from btil.demonstrations.coding import (
    Reading,
    absent,
    as_index,
    check_text,
    code_episodes,
    counted,
    items,
    listed,
    refuse_alike,
    shown,
    texts_for_unknown,
    untyped_episodes,
    whole_numbers,
)

# Those that are warned of are in `tests/test_cases_data.py`.
pytestmark = pytest.mark.filterwarnings("ignore::btil.DataWarning")

ROLES = ("state", "action", "latent", "episode")


class Read(NamedTuple):
    """What a column of three or four cells is read as."""

    indices: list[Any]
    names: tuple[str, ...] | None = None


def read(table: dict[str, Any] | pd.DataFrame | Path, how: str, **options: Any) -> Any:
    """A table of one agent through one of the ways in."""
    if how == "parts":
        return btil.open_demonstrations(table, **options).read()
    if isinstance(table, Path):
        return btil.read_demonstrations(table, **options)
    return btil.Demonstrations(
        {"state": table["state"]},
        {"ann": table["action_ann"]},
        {"ann": table["latent_ann"]},
        table["episode"],
        **options,
    )


def contained(cells: list[Any], how: str) -> Any:
    """A column as the container holds it; None where it cannot."""
    texts = all(isinstance(cell, str) for cell in cells)
    if how == "categories":
        return pd.Categorical(cells)
    if how in ("npz", "array"):
        return np.array(cells) if texts or None not in cells else None
    if how == "objects":
        return np.array(cells, object)
    return list(cells)


def through(role: str, cells: list[Any], how: str, folder: Path, **options: Any) -> Read | None:
    """What one column is read as, the others being numbers; None where that container has none."""
    steps = len(cells)
    table: dict[str, Any] = {
        "episode": [0] * steps,
        "state": [0] * steps,
        "action_ann": [0] * steps,
        "latent_ann": [0] * steps,
    }
    column = {"state": "state", "action": "action_ann", "latent": "latent_ann"}.get(role, role)
    held = contained(cells, how)
    if held is None:
        return None
    table[column] = held
    given: Any = table
    if how == "csv":
        given = folder / "table.csv"
        pd.DataFrame(table).to_csv(given, index=False)
    elif how in ("parquet", "parts", "dictionary"):
        given = folder / "table.parquet"
        if how == "dictionary":
            table[column] = pa.array(cells).dictionary_encode()
        parquet.write_table(pa.table(table), given)
    elif how == "npz":
        given = folder / "table.npz"
        np.savez(given, **table)
    elif how == "frame":
        given = pd.DataFrame(table)
    demos = read(given, how, **options)
    if role == "episode":
        return Read(demos.episodes.tolist())
    names = {**demos.state_names, **{f"action_{a}": n for a, n in demos.action_names.items()}}
    names |= {f"latent_{a}": n for a, n in demos.latent_names.items()}
    indices = {
        "state": demos.states,
        "action": demos.actions[:, 0],
        "latent": demos.latents[:, 0],
    }
    return Read(indices[role].tolist(), names.get(column))


HOW = [
    *("csv", "parquet", "parts", "dictionary", "npz"),
    *("list", "objects", "array", "frame", "categories"),
]

NUMBERS = Read([1, 0, 2])
# Cells of a column, and what they are as a state or action, as a label, as ids: indices with names,
# ids, or what is said where they are refused (the place is the second row).
SPELLINGS: list[tuple[list[Any], Read | str, Read | str, Read | str]] = [
    ([1, 0, 2], NUMBERS, NUMBERS, NUMBERS),
    ([1.0, 0.0, 2.0], NUMBERS, NUMBERS, NUMBERS),
    (["1", "0", "2"], NUMBERS, NUMBERS, Read(["1", "0", "2"])),
    (["1.0", "0.0", "2.0"], NUMBERS, NUMBERS, Read(["1.0", "0.0", "2.0"])),
    ([" 1", "0 ", " 2 "], NUMBERS, NUMBERS, Read(["1", "0", "2"])),
    ([0, -1, 0], "-1 is not", Read([0, -1, 0]), "contiguous"),
    (["0", "-1", "0"], "'?-1'? is not", Read([0, -1, 0]), "contiguous"),
    (["0.0", "-1.0", "1.0"], "'?-1", Read([0, -1, 1]), Read(["0.0", "-1.0", "1.0"])),
    ([0, -2, 1], "-2 is not", "-2 is not", Read([0, -2, 1])),
    ([0.0, 1.5, 1.0], "1.5", "1.5", "1.5"),
    (["0", "1.5", "1"], "1.5", "1.5", Read(["0", "1.5", "1"])),
    ([0.0, np.inf, 1.0], "inf", "inf", "inf"),
    (["0", "9" * 30, "1"], "'9999", "'9999", Read(["0", "9" * 30, "1"])),
    (["a", "b", "c"], *[Read([0, 1, 2], ("a", "b", "c"))] * 2, Read(["a", "b", "c"])),
    ([" a", "b ", "a"], *[Read([0, 1, 0], ("a", "b"))] * 2, "contiguous"),
    (["b", "a", "1"], *[Read([2, 1, 0], ("1", "a", "b"))] * 2, Read(["b", "a", "1"])),
    (["007", "07", "7"], *[Read([0, 1, 2], ("007", "07", "7"))] * 2, Read(["007", "07", "7"])),
    (["1e1", "10", "2"], *[Read([1, 0, 2], ("10", "1e1", "2"))] * 2, Read(["1e1", "10", "2"])),
    (["+1", "1", "0"], *[Read([0, 2, 1], ("+1", "0", "1"))] * 2, Read(["+1", "1", "0"])),
    (["-0", "1", "0"], *["two spellings"] * 2, Read(["-0", "1", "0"])),
    (["1", "1.0", "0"], *["two spellings"] * 2, Read(["1", "1.0", "0"])),
    (["٣", "1", "0"], *[Read([2, 1, 0], ("0", "1", "٣"))] * 2, Read(["٣", "1", "0"])),
    (["True", "a", "b"], *[Read([0, 1, 2], ("True", "a", "b"))] * 2, Read(["True", "a", "b"])),
    (["e\u0301", "\xe9", "a"], *[Read([1, 1, 0], ("a", "\xe9"))] * 2, Read(["\xe9", "\xe9", "a"])),
    (["a b", "a\u00a0b", "a"], *["look alike"] * 3),
    (["a", "", "b"], "missing value", Read([0, -1, 1], ("a", "b")), "row 1"),
    (["1", "", "0"], "missing value", Read([1, -1, 0]), "row 1"),
    (["a", "  ", "b"], "missing value", Read([0, -1, 1], ("a", "b")), "row 1"),
    (
        ["a", "-1", "b"],
        Read([1, 0, 2], ("-1", "a", "b")),
        Read([0, -1, 1], ("a", "b")),
        Read(["a", "-1", "b"]),
    ),
    (["a", None, "b"], "missing value", Read([0, -1, 1], ("a", "b")), "row 1"),
    ([1, None, 0], "missing value", Read([1, -1, 0]), "row 1"),
    ([1.0, np.nan, 0.0], "missing value", Read([1, -1, 0]), "row 1"),
    *(
        (["a", text, "b"], f"a missing value, or a name: '{text}'", "may be a name", "row 1")
        for text in ("None", "NA", "nan", "null", "n/a", "#N/A")
    ),
    (["1", "nan", "0"], "a missing value, or a name", "may be a name", "row 1"),
    (["none", "?", "na"], *[Read([2, 0, 1], ("?", "na", "none"))] * 2, Read(["none", "?", "na"])),
    (["a", "b\nc", "d"], *["control char"] * 3),
]  # fmt: skip
# An id is only a name: a file without types tells numbers from texts by how all are written.
IDS_OF_CSV = {
    ("1", "0", "2"): Read([1, 0, 2]),
    ("1.0", "0.0", "2.0"): Read([1, 0, 2]),
    (" 1", "0 ", " 2 "): Read([1, 0, 2]),
    ("0.0", "-1.0", "1.0"): Read([0, -1, 1]),
    (0.0, 1.5, 1.0): Read(["0.0", "1.5", "1.0"]),
    (0.0, np.inf, 1.0): Read(["0.0", "inf", "1.0"]),
}


def cases() -> list[Any]:
    found = []
    for cells, value, label, ids in SPELLINGS:
        for role in ROLES:
            expected = {"latent": label, "episode": ids}.get(role, value)
            found.append(pytest.param(role, cells, expected, id=f"{role}-{cells}"))
    return found


@pytest.mark.parametrize(("role", "cells", "expected"), cases())
def test_every_spelling_in_every_container(
    role: str, cells: list[Any], expected: Read | str, tmp_path: Path
) -> None:
    tried = 0
    for how in HOW:
        if how == "csv" and "b\nc" in cells:
            continue  # a cell of two lines is refused by the parser of such files
        wanted = expected
        if how == "csv" and role == "episode":
            wanted = IDS_OF_CSV.get(tuple(cells), expected)
        try:
            found: Read | str | None = through(role, cells, how, tmp_path)
        except ValueError as error:
            found = str(error)
        if found is None:
            continue
        tried += 1
        if isinstance(wanted, Read):
            assert found == wanted, how
        else:
            assert isinstance(found, str), how
            place = r"episode: row \d" if role == "episode" else rf"{role}\w*: episode 0, step [12]"
            unplaced = rf"{role}\w*: .*(look alike|control characters)"
            assert re.search(rf"({place}.*|{unplaced}).*", found), found
            assert re.search(wanted, found), found
    assert tried >= 8


@pytest.mark.parametrize("how", ["parquet", "parts", "npz", "array", "frame"])
def test_true_and_false_are_1_and_0(how: str, tmp_path: Path) -> None:
    cells = [True, False, True]
    for role in ROLES[:3]:
        assert through(role, cells, how, tmp_path) == Read([1, 0, 1])


@pytest.mark.parametrize("how", ["parquet", "parts", "list", "frame"])
@pytest.mark.parametrize("role", ROLES)
def test_dates_times_and_lists_are_refused(how: str, role: str, tmp_path: Path) -> None:
    day = datetime.datetime(2026, 1, 1)
    for cells in ([day] * 3, [day.date()] * 3, [day.time()] * 3, [day - day] * 3, [[0]] * 3):
        with pytest.raises(ValueError, match=role):
            through(role, cells, how, tmp_path)


LARGEST = 2**63 - 1


@pytest.mark.parametrize(
    ("value", "index"),
    [
        (0, 0),
        (True, 1),
        (np.False_, 0),
        (-5, -5),
        (2.0, 2),
        (np.float32(3), 3),
        (np.uint8(7), 7),
        (LARGEST, LARGEST),
        (-LARGEST, -LARGEST),
        (np.uint64(LARGEST), LARGEST),
        (2.0**53 - 1, 2**53 - 1),
        *((value, None) for value in (1.5, np.nan, np.inf, "1", None, 2**63, -(2**63), 2.0**53)),
        *((value, None) for value in (-(2.0**53), np.uint64(2**63), np.timedelta64(3, "s"), 1j)),
    ],
)
def test_what_is_a_whole_number(value: Any, index: int | None) -> None:
    assert as_index(value) == index


def test_whole_numbers_of_every_kind() -> None:
    for values, whole, bad in (
        (np.array([1.0, 2.5, np.nan, -np.inf, -3]), [1, 0, 0, 0, -3], [0, 1, 1, 1, 0]),
        (np.array([0, 2**63 - 1, 2**63], np.uint64), [0, LARGEST, 0], [0, 0, 1]),
        (np.array([3, -(2**63)]), [3, -(2**63)], [0, 1]),
        (np.array([True, False]), [1, 0], [0, 0]),
    ):
        found = whole_numbers(values)
        np.testing.assert_array_equal(found[0], whole)
        np.testing.assert_array_equal(found[1], bad)
        assert found[0].dtype == np.int64


@pytest.mark.parametrize("largest", [str(LARGEST - 1), f"{2**53 - 1}.0"])
def test_the_largest_plain_decimals_are_numbers(largest: str) -> None:
    demos = btil.Demonstrations({"x": ["0", largest], "y": ["1", "0"]}, [0, 0], num_latents=1)
    assert demos.state_variables["x"].tolist() == [0, int(largest.removesuffix(".0"))]
    for larger in (str(2**63), f"{2**53}.0"):
        with pytest.raises(ValueError, match=rf"x: episode 0, step 1: '{larger}' is not allowed"):
            btil.Demonstrations({"x": ["0", larger], "y": ["1", "0"]}, [0, 0], num_latents=1)


@pytest.mark.parametrize(
    "text", ["a\x1fb", "a\x7f", "\x80a", "a\x9f", "\ud800", " a", "a\n", "", 3]
)
def test_names_that_no_file_holds_are_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="place: a text without control characters or spaces"):
        check_text("place", text)


def test_names_of_any_visible_text_are_fine() -> None:
    for text in ("a b", "a\u00a0b", "\xa1", "~", "\ue000", "\U0001f600", "a" * 10_000):
        check_text("place", text)
    with pytest.raises(ValueError, match=r"at most 10,000 characters expected, got 10,001: 'aaa"):
        check_text("place", "a" * 10_001)


def test_what_leaves_no_ink_makes_no_name() -> None:
    # A joiner changes how its neighbours look, and so do letters.
    refuse_alike("it", ["a", "a\u200db", "ab", "a\u200cb", "A"])
    for one, other in (
        ("ab", "a\u00adb"),
        ("ab", "a\ufe0fb"),
        ("a b", "a\u2003b"),
        ("\xe9", "e\u0301"),
        ("ab", "\u200bab"),
    ):
        with pytest.raises(
            ValueError, match=r"it: .* look alike in print; write the name in one way"
        ):
            refuse_alike("it", ["c", one, other])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (
            [1, 2],
            "3 latents from 0 on are assumed, but 0 never occurs; if the column counts from 1",
        ),
        ([0, 2], "3 latents from 0 on are assumed, but 1 never occurs; num_latents=3 (--num"),
        ([0, 3], "4 latents from 0 on are assumed, but 1 never occurs (nor does 1 other); num"),
        ([0, 4], "5 latents from 0 on are assumed, but 1 never occurs (nor do 2 others); num"),
        ([1, 0, 3], "4 latents from 0 on are assumed, but 2 never occurs; num_latents=4"),
        ([2000, -1], "2,001 latents from 0 on are assumed, but 0 never occurs (nor do 1,999"),
    ],
)
def test_numbers_that_are_not_used_up_are_told(labels: list[int], says: str) -> None:
    steps = len(labels)
    with pytest.warns(btil.DataWarning) as doubts:
        btil.Demonstrations([0] * steps, [0] * steps, labels)
    (doubt,) = map(str, [one.message for one in doubts])
    assert doubt.startswith(f"latent_agent_0: the largest value is {max(labels)}, so {says}")
    # States need not be used up, and what is declared is meant.
    btil.Demonstrations(labels if min(labels) >= 0 else [0, 5], [0] * steps, num_latents=1)
    btil.Demonstrations([0] * steps, [0] * steps, labels, num_latents=max(labels) + 1)


def test_values_in_messages() -> None:
    assert listed([]) == "nothing"
    assert listed(range(12)) == ", ".join(map(str, range(12)))
    assert listed(range(1013)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... (1013 in all)"
    assert listed(np.array(["a", "b"])) == "'a', 'b'"
    assert shown("a" * 198) == f"'{'a' * 198}'"
    assert shown("a" * 199) == f"'{'a' * 199}..."
    assert shown(np.float64(1.5)) == "1.5"
    assert shown(10**5000) == "a huge int"
    assert [counted(n, "step") for n in (0, 1, 2, 1000)] == [
        "0 steps", "1 step", "2 steps", "1,000 steps"
    ]  # fmt: skip


def test_names_in_a_sequence() -> None:
    assert items("it", (name for name in "ab")) == ["a", "b"]
    assert items("it", np.array(["a"])) == ["a"]
    for given in ("ab", b"ab", {"a", "b"}, {"a": 1}, None, 3, frozenset("a")):
        with pytest.raises(ValueError, match="it: a sequence of texts expected, got"):
            items("it", given)


def test_texts_that_mean_unknown_are_texts_or_whole_numbers() -> None:
    assert texts_for_unknown(None) is None
    assert texts_for_unknown([]) == frozenset()
    assert texts_for_unknown([" NA ", 99, np.int8(-7), "e\u0301"]) == {"NA", "99", "-7", "\xe9"}
    for given in ([True], [np.True_], [None], [2.0]):
        with pytest.raises(ValueError, match="unknown_labels: texts or whole numbers expected"):
            texts_for_unknown(given)


@pytest.mark.parametrize("text", ["NA", "None"])
def test_texts_for_nothing_are_missing_where_they_are_said_to_be(text: str) -> None:
    """Of actions and states those that other tools take for nothing; all others are names."""
    given = {"num_latents": 1, "unknown_labels": [text, "?"]}
    message = "episode 0, step 1: a missing value is not allowed"
    for table in ({"states": ["a", text, "?"]}, {"actions": ["a", text, "?"]}):
        columns = {"states": [0] * 3, "actions": [0] * 3} | table
        with pytest.raises(ValueError, match=message):
            btil.Demonstrations(**columns, **given)
        demos = btil.Demonstrations(**columns, **given, missing="allow")
        ((column, _),) = table.items()
        found = demos.actions[:, 0] if column == "actions" else demos.state_variables["state"]
        assert found.tolist() == [1, -1, 0]
        # A name that is declared is one.
        names = {f"{column[:-1]}_names": ["?", text, "a"]}
        named = btil.Demonstrations(**columns, **given, **names)
        assert (named.actions[:, 0] if column == "actions" else named.states).tolist() == [2, 1, 0]


def test_plain_decimals_count_names_only_where_no_name_is_like_a_number() -> None:
    """And where all texts of the column are such: else they are names, and none of the declared."""

    def read(cells: list[Any], names: list[str]) -> list[int]:
        given = np.array(cells, object)
        demos = btil.Demonstrations([0] * len(cells), given, action_names=names, num_latents=1)
        return demos.actions[:, 0].tolist()

    assert read(["0", "1"], ["x", "y"]) == [0, 1]
    assert read(["7", "x"], ["7", "x"]) == [0, 1]
    assert read([0, 1, "x"], ["x", "y"]) == [0, 1, 0]
    for cells, names in (
        (["0", "1"], ["7", "x"]),
        (["0", "1"], ["x", "1e3"]),
        (["0", "x"], ["x", "y"]),
        (["0", 1], ["x", "y"]),
        (["0", "2"], ["x", "y"]),
    ):
        with pytest.raises(
            ValueError, match=r"action_agent_0: episode 0, step [01]: '?[02]'? is not"
        ):
            read(cells, names)


ALLOWED: dict[str, tuple[dict[str, Any], str]] = {
    "an index": ({"states": [0, -2]}, "an index (a whole number 0, 1, 2, ... within 64 bits)"),
    "a size": ({"states": [0, 3], "num_states": 3}, "a whole number from 0 to 2"),
    "names": (
        {"states": ["a", "c"], "state_names": ["a", "b"]},
        "a whole number from 0 to 1, or one of 'a', 'b'",
    ),
    "unseen": (
        {"actions": [0, 2], "num_actions": 2, "missing": "allow"},
        "a whole number from 0 to 1, or -1, NaN, None or a blank where nobody saw it",
    ),
    "a label": (
        {"latents": [0, 2], "num_latents": 2},
        "a whole number from 0 to 1, or -1, NaN, None or a blank where it is unknown",
    ),
    "numbers alone": (
        {"states": np.array([1, "a"], object)},
        "numbers only or names only, as other steps have numbers",
    ),
}


@pytest.mark.parametrize("what", ALLOWED)
def test_what_is_allowed_is_told(what: str) -> None:
    given, allowed = ALLOWED[what]
    with pytest.raises(ValueError, match=rf"step 1: .* expected {re.escape(allowed)}(;.*)?$"):
        btil.Demonstrations(**{"states": [0, 0], "actions": [0, 0], "num_latents": 2} | given)


BLANK, LEAVE = "missing='allow'", "leave it out"
REMEDIES: dict[str, tuple[str, list[str], list[str]]] = {
    "a missing action": ("x,action_a\n0,0\n1,\n", ["present_<agent>", "drop_last"], [LEAVE]),
    "another action": ("x,action_a\n0,0\n1,0.5\n", [], ["present_<agent>", BLANK]),
    "a missing state": ("x,action_a\n0,0\n,1\n", [BLANK, LEAVE], ["continuous="]),
    "a state of -1": ("x,action_a\n0,0\n-1,1\n", [BLANK, LEAVE], ["continuous="]),
    "a fraction": ("x,action_a\n0,0\n1.5,1\n", ["continuous=['x']", LEAVE], ["missing="]),
    "a negative state": ("x,action_a\n0,0\n-2,1\n", [LEAVE], ["missing=", "continuous="]),
    "infinity": ("x,action_a\n0,0\ninf,1\n", [LEAVE], ["missing=", "continuous="]),
    "a step": ("step,x,action_a\n0,0,0\n,0,1\n", ["leave the column step out"], ["missing="]),
}


@pytest.mark.parametrize("what", REMEDIES)
def test_what_to_do_is_told_where_it_helps(what: str, tmp_path: Path) -> None:
    table, helps, others = REMEDIES[what]
    (tmp_path / "t.csv").write_text(table)
    with pytest.raises(ValueError, match="episode 0, step 1: ") as refused:
        btil.read_demonstrations(tmp_path / "t.csv", num_latents=1)
    assert all(text in str(refused.value) for text in helps), refused.value
    assert not any(text in str(refused.value) for text in others), refused.value


def test_in_memory_a_state_is_not_told_to_be_left_out() -> None:
    with pytest.raises(ValueError, match=r"continuous=\{...\} of Demonstrations") as refused:
        btil.Demonstrations({"x": [0.5]}, [0], num_latents=1)
    assert "leave it out" not in str(refused.value)


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (np.array([3, 3, -1]), [3, 3, -1]),
        (np.array([3.0, -2.0]), [3, -2]),
        (np.array([3, 4], np.uint8), [3, 4]),
        (np.array([3, 2.0], object), [3, 2]),
        (np.array([" a ", "b", "e\u0301"]), ["a", "b", "\xe9"]),
        (pd.Categorical(["b", "a"], categories=["a", "b", "c"]), ["b", "a"]),
        (np.array(["7", "08"]), ["7", "08"]),
    ],
)
def test_ids_are_what_they_are(values: Any, found: list[Any]) -> None:
    ids = code_episodes(values)
    assert ids.tolist() == found


@pytest.mark.parametrize(
    ("values", "place"),
    [
        (np.array([1.0, 0.5]), "row 11 (counted from 0): 0.5"),
        (np.ma.MaskedArray([1, 2], [True, False]), "row 10 (counted from 0): "),
        (np.array([1, "a"], object), "row 11 (counted from 0): 'a'"),
        (np.array(["a", "a", 1], object), "row 12 (counted from 0): 1 "),
        (np.array([2, True], object), "row 11 (counted from 0): True"),
        (np.array(["a", None], object), "row 11 (counted from 0): None"),
        (np.array(["a", " "]), "row 11 (counted from 0): ' '"),
        (np.array(["a", "NA"]), "row 11 (counted from 0): 'NA'"),
        (np.array([0, 2**63], np.uint64), "row 11 (counted from 0): 9223372036854775808"),
    ],
)
def test_ids_that_are_none_are_refused_by_their_row(values: Any, place: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"episode: {place}")):
        code_episodes(values, first_row=10)


def test_ids_may_be_called_like_nothing_where_that_is_said() -> None:
    called = np.array(["a", "NA"])
    assert code_episodes(called, reading=Reading(frozenset())).tolist() == ["a", "NA"]
    assert code_episodes(called, reading=Reading(frozenset({"a"}))).tolist() == ["a", "NA"]
    with pytest.raises(ValueError, match=r"row 1 .*'NA'"):
        code_episodes(called, reading=Reading(frozenset({"NA"})))


@pytest.mark.parametrize(
    ("written", "ids"),
    [
        (["1", " 2 "], [1, 2]),
        (["-3", "2.0"], [-3, 2]),
        (["1", "1.0"], None),
        (["1", "01"], None),
        (["1", "1.5"], None),
        (["1", ""], None),
        (["1", None], None),
        (["1", "a"], None),
        (["1", str(2**63)], None),
    ],
)
def test_ids_of_a_file_without_types(written: list[Any], ids: list[int] | None) -> None:
    cells = np.array(written, object)
    found = untyped_episodes(cells)
    assert found is cells if ids is None else found.tolist() == ids


def test_where_an_action_is_not_there() -> None:
    for values, nothing in (
        (np.array([0, -1, 1, -2]), [0, 1, 0, 0]),
        (np.array([0, np.nan, -1.0]), [0, 1, 1]),
        (np.ma.MaskedArray([0, 1], [False, True]), [0, 1]),
        (np.array(["a", "", " ", "-1", "-1.0", "nan", "0"]), [0, 1, 1, 1, 1, 0, 0]),
        (np.array(["a", None, -1, 0, "-1"], object), [0, 1, 1, 0, 1]),
        (pd.Categorical(["a", None, "-1"]), [0, 1, 1]),
    ):
        np.testing.assert_array_equal(absent("action_a", values), nothing)


def test_the_page_lists_what_is_tested() -> None:
    """Its table of texts and numbers says what the readers do."""
    page = (Path(__file__).parents[1] / "docs" / "reference" / "values.md").read_text(
        encoding="utf-8"
    )
    lines = page.partition("| column | read as |")[2].partition("\n\n")[0].splitlines()[2:]
    said = {"numbers": None, "three names": 3, "two names": 2}
    for line in lines:
        columns, verdict = (part.strip() for part in line.strip("|").split("|"))
        for column in columns.split(" and "):
            cells = [cell.strip(" `") for cell in column.split(",")]
            steps = len(cells)
            make = lambda cells=cells, steps=steps: btil.Demonstrations(  # noqa: E731
                cells, [0] * steps, num_latents=1
            )
            if "refused" in verdict:
                with pytest.raises(ValueError, match=r"1\.5|two spellings"):
                    make()
            else:
                names = make().state_names.get("state")
                assert (None if names is None else len(names)) == said[verdict.partition(",")[0]]
