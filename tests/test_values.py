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
