"""Tables and texts that others wrote: their cells, and where each of them stands."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from jaxtyping import Float, Int

from btil.demonstrations.coding import (
    as_index,
    check_text,
    distinct_values,
    items,
    listed,
    normalised,
    normalised_keys,
    shown,
    untyped_episodes,
)
from btil.files import check_there

Number = float | int | np.number
# Whatever has named columns: a mapping, a data frame, or the path of a file with such.
TableOrPath = Mapping[str, Any] | str | os.PathLike[str] | Any

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_ENDINGS = (*_DELIMITERS, ".parquet")
# In the order in which they are looked for where the header has not the one of the ending.
_OTHER_DELIMITERS = "\t,;"


class Table(NamedTuple):
    """Columns of equal length, and where their rows stand.

    Attributes:
        columns: The cells by column: texts, numbers, None.
        lines: Of a text file, the line of each row; else None.
    """

    columns: dict[str, np.ndarray]
    lines: Int[np.ndarray, " rows"] | None

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(next(iter(self.columns.values())))

    def place(self, row: int) -> str:
        """Where a row stands, for messages: "line 5", or "row 3 (counted from 0)"."""
        if self.lines is None:
            return f"row {row} (counted from 0)"
        return f"line {self.lines[row]}"

    def refuse(self, row: int, column: str, what: str) -> NoReturn:
        """Refuse a cell."""
        raise ValueError(f"{self.place(row)}, column {shown(column)}: {what}")

    def has(self, argument: str, column: str | None, default: str | None) -> bool:
        """Whether a column is there; one that was asked for by another name than usual must be.

        Raises:
            ValueError: It is not.
        """
        if column is None or (column == default and column not in self.columns):
            return False
        if column not in self.columns:
            raise ValueError(
                f"there is no column {shown(column)}; the columns are {listed(self.columns)}; "
                f"{argument}=... names another one"
            )
        return True

    def need(self, argument: str, column: str) -> None:
        """Refuse a table without a column.

        Raises:
            ValueError: It is not there.
        """
        self.has(argument, column, None)

    def texts(self, column: str) -> list[str]:
        """A column of names: texts, or whole numbers as texts.

        Raises:
            ValueError: A blank, or what is no name.
        """
        codes, distinct = distinct_values(column, self.columns[column])
        names = []
        for code, value in enumerate(distinct):
            whole = None if isinstance(value, str | bool | np.bool_) else as_index(value)
            text = normalised(value) if isinstance(value, str) else ""
            text = text if whole is None else str(whole)
            if not text:
                row = int(np.argmax(codes == code))
                self.refuse(row, column, f"{shown(value)} is not allowed; expected a name")
            check_text(column, text)
            names.append(text)
        if (codes < 0).any():
            row = int(np.argmax(codes < 0))
            self.refuse(row, column, "a missing value is not allowed; expected a name")
        return [names[code] for code in codes]

    def episodes(self, column: str | None) -> tuple[Int[np.ndarray, " rows"], np.ndarray]:
        """Which episode each row is in, in order of appearance, and their ids.

        Args:
            column: The column of ids; None: all rows are one episode, 0.

        Raises:
            ValueError: A blank.
        """
        if column is None:
            return np.zeros(self.num_rows, np.int64), np.zeros(1, np.int64)
        cells = self.columns[column]
        if self.lines is not None:
            cells = np.asarray(untyped_episodes(cells))
        codes, distinct = distinct_values(column, cells)
        blank = [isinstance(value, str) and not value.strip() for value in distinct]
        missing = np.append(blank, True).astype(bool)[codes]
        if missing.any():
            row = int(np.argmax(missing))
            self.refuse(row, column, "a missing value is not allowed; expected an episode's id")
        return codes, np.array(distinct)

    def team(
        self, column: str, agents: Sequence[str] | None
    ) -> tuple[Int[np.ndarray, " rows"], tuple[str, ...]]:
        """Which agent each row is about, and the agents.

        Args:
            column: The column of names.
            agents: The agents in their order; None: in order of appearance.

        Raises:
            ValueError: A blank, or none of the agents.
        """
        names = self.texts(column)
        team = (
            list(dict.fromkeys(names))
            if agents is None
            else [str(agent) for agent in items("agents", agents)]
        )
        if len(set(team)) < len(team):
            raise ValueError(f"agents: each may be named once, got {listed(team)}")
        positions = {agent: k for k, agent in enumerate(team)}
        for row, name in enumerate(names):
            if name not in positions:
                what = f"{shown(name)} is not allowed; expected one of {listed(team)}"
                self.refuse(row, column, what)
        return np.array([positions[name] for name in names]), tuple(team)

    def numbers(self, column: str, blank: bool = False) -> Float[np.ndarray, " rows"]:
        """A column of finite numbers; NaN where there is none and there may be none.

        Raises:
            ValueError: What is no number.
        """
        codes, distinct = distinct_values(column, self.columns[column])
        found = np.full(len(distinct) + 1, np.nan)
        for code, value in enumerate(distinct):
            number = np.nan
            if not isinstance(value, str) or value.strip():
                with contextlib.suppress(TypeError, ValueError):
                    number = float(value)
                if not np.isfinite(number):
                    row = int(np.argmax(codes == code))
                    self.refuse(
                        row,
                        column,
                        f"{shown(value)} is not allowed; expected a finite number"
                        + (", or a blank where nobody saw it" if blank else ""),
                    )
            found[code] = number
        values = found[codes]
        if not blank and np.isnan(values).any():
            row = int(np.argmax(np.isnan(values)))
            self.refuse(row, column, "a missing value is not allowed; expected a finite number")
        return values

    def seconds(self, column: str) -> Float[np.ndarray, " rows"]:
        """A column of times: numbers as they are, dates with times as seconds since 1970.

        Raises:
            ValueError: What is neither, or some of each.
        """
        import pandas as pd

        values = self.columns[column]
        codes, distinct = distinct_values(column, values)
        if not distinct or _is_number(distinct[0]):  # the first cell says which of the two
            return self.numbers(column)
        found = np.full(len(distinct) + 1, np.nan)
        zones = set()
        for code, value in enumerate(distinct):
            moment = None
            if not _is_number(value):
                with contextlib.suppress(TypeError, ValueError):
                    moment = pd.Timestamp(value)
            if moment is None or pd.isna(moment):
                row = int(np.argmax(codes == code))
                self.refuse(
                    row,
                    column,
                    f"{shown(value)} is not allowed; expected a number, or, in the whole column, "
                    "dates with times such as 2024-05-01T12:00:00.25",
                )
            zones.add(moment.tzinfo is None)
            if len(zones) > 1:
                row = int(np.argmax(codes == code))
                self.refuse(row, column, f"{shown(value)}: some times have a zone and some none")
            found[code] = moment.as_unit("ns").value / 1e9
        if (codes < 0).any():
            row = int(np.argmax(codes < 0))
            self.refuse(row, column, "a missing value is not allowed; expected a time")
        return found[codes]


def _is_number(value: Any) -> bool:
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            float(value)
            return True
        return not value.strip()
    return isinstance(value, int | float | np.number) and not isinstance(value, np.timedelta64)


def table_of(source: TableOrPath) -> Table:
    """The columns of a mapping, a data frame or a file (`.csv`, `.tsv`, `.txt`, `.parquet`).

    Raises:
        ValueError: Another ending, a damaged file, no rows, columns of different lengths.
    """
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        ending = path.suffix.lower()
        check_there(path)
        if ending not in _ENDINGS:
            raise ValueError(f"the ending must be one of {', '.join(_ENDINGS)}")
        if ending == ".parquet":
            return _parquet(path)
        return table_from_rows(text_rows(path, _DELIMITERS[ending]))
    if isinstance(source, Mapping):
        given = {name: source[name] for name in source}
    elif hasattr(source, "columns") and hasattr(source, "__getitem__"):
        names = list(source.columns)
        if len(set(names)) < len(names):
            raise ValueError(f"a column occurs more than once; the columns are {listed(names)}")
        given = {name: source[name] for name in names}
    else:
        raise ValueError(
            "a path, a data frame or a mapping {column: cells} expected, got "
            f"{type(source).__name__}"
        )
    columns = {name: _cells(name, values) for name, values in given.items()}
    return _checked(normalised_keys("columns", columns), None)


def _parquet(path: Path) -> Table:
    import pyarrow.parquet as pq

    with open(path, "rb") as handle:
        try:
            table = pq.read_table(handle)
            names = table.column_names
            columns = {name: table.column(name).to_pandas() for name in names}
        except Exception as error:  # Arrow raises whatever comes on a damaged file
            told = " ".join(str(error).split())[:300]
            raise ValueError(f"damaged, or not a Parquet file ({told})") from None
    cells = {name: _cells(name, values) for name, values in columns.items()}
    return _checked(normalised_keys("columns", cells), None)


def _cells(name: Any, values: Any) -> np.ndarray:
    check_text("a column", name)
    cells = np.array(values, object) if isinstance(values, list | tuple) else np.asarray(values)
    if cells.ndim != 1:
        raise ValueError(f"column {shown(name)}: cells along one axis expected, got {cells.shape}")
    return cells


def _checked(columns: dict[str, np.ndarray], lines: np.ndarray | None) -> Table:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise ValueError(f"all columns must have the same number of rows; found: {told}")
    if not lengths or not next(iter(lengths.values())):
        raise ValueError("there are no rows; at least one is needed")
    return Table(columns, lines)


# ---------------------------------------------------------------------- text files


class Rows(NamedTuple):
    """The rows of a text file, without blank ones, each with the number of its last line."""

    rows: list[list[str]]
    lines: list[int]


def read_text(path: Path) -> str:
    """The text of a file in UTF-8, or in UTF-16 with its mark.

    Raises:
        ValueError: It is in another encoding.
        OSError: It cannot be read.
    """
    raw = path.read_bytes()
    encoding = "utf-16" if raw.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ValueError(f"line {line} is not in UTF-8; save the file as UTF-8") from None


def text_rows(path: Path, delimiter: str) -> Rows:
    """The cells of a text file, row by row.

    Where the first line does not have the delimiter, a tab, comma or semicolon in it is taken.

    Raises:
        ValueError: Another encoding, or quotes that do not end.
    """
    text = read_text(path)
    first = text.partition("\n")[0]
    if delimiter not in first:
        found = [other for other in _OTHER_DELIMITERS if other in first]
        delimiter = found[0] if found else delimiter
    return rows_of_text(text, delimiter)


def rows_of_text(text: str, delimiter: str, quoted: bool = True) -> Rows:
    """The cells of a text, row by row, blank rows left out.

    Args:
        text: The text.
        delimiter: What stands between cells.
        quoted: Whether cells may stand in quotes; else a quote is a character like any other.

    Raises:
        ValueError: Quotes that do not end.
    """
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=delimiter,
        strict=True,
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
    )
    rows, lines = [], []
    try:
        for row in reader:
            if any(cell.strip() for cell in row):
                rows.append([cell.strip() for cell in row])
                lines.append(reader.line_num)
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from None
    return Rows(rows, lines)


def table_from_rows(found: Rows) -> Table:
    """A table whose first row has the names of the columns.

    Raises:
        ValueError: No rows, a name that is missing or occurs twice, rows of another length.
    """
    if len(found.rows) < 2:
        raise ValueError("there are no rows; a line of names and at least one row are needed")
    header, *rows = found.rows
    for name in header:
        check_text(f"line {found.lines[0]}: the name of a column", name)
    if len(set(header)) < len(header):
        repeated = next(name for k, name in enumerate(header) if name in header[:k])
        raise ValueError(f"line {found.lines[0]}: column {shown(repeated)} occurs more than once")
    for row, line in zip(rows, found.lines[1:], strict=True):
        if len(row) != len(header):
            raise ValueError(
                f"line {line}: {len(row)} cells, but the columns are {len(header)}: "
                f"{listed(header)}"
            )
    cells = zip(*rows, strict=True)
    columns = {name: np.array(values, object) for name, values in zip(header, cells, strict=True)}
    return _checked(normalised_keys("columns", columns), np.array(found.lines[1:]))


@contextlib.contextmanager
def naming(source: Any) -> Iterator[None]:
    """What is refused is refused with the path before it, where there is one."""
    try:
        yield
    except ValueError as error:
        if not isinstance(source, str | os.PathLike):
            raise
        raise ValueError(f"{source}: {error}") from error
