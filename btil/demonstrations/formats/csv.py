"""Tables as text, with commas."""

import contextlib
import csv
import io
import json
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

from btil.demonstrations.coding import shown, untyped_episodes
from btil.demonstrations.data import Columns, Demonstrations
from btil.demonstrations.formats.arrow import arrow_table
from btil.demonstrations.formats.record import check_no_repeats, parsed_record, record_of

_LARGEST_BLOCK = 2**31 - 1
_CSV_RECORD = "# btil:"


def write(demos: Demonstrations, handle: BinaryIO) -> None:
    """Write a table, its record in the first line."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    table = arrow_table(demos)
    header = io.StringIO()
    header.write(f"{_CSV_RECORD} {json.dumps(record_of(demos))}\n")
    csv.writer(header, lineterminator="\n").writerow(table.column_names)
    handle.write(header.getvalue().encode("utf-8"))
    texts = [
        column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    options = arrow_csv.WriteOptions(include_header=False)
    arrow_csv.write_csv(pa.table(texts, names=table.column_names), handle, options)


def read(handle: BinaryIO) -> tuple[Columns, dict[str, Any] | None]:
    """The columns of a table, all texts, and its record."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    record = None
    with _telling_of_encoding(handle):
        line = handle.readline().decode("utf-8-sig")
        if line.startswith(_CSV_RECORD):
            record = parsed_record(line.removeprefix(_CSV_RECORD))
            line = handle.readline().decode("utf-8")
    header = [name.strip() for name in next(csv.reader([line]), [])]
    check_no_repeats(header)
    _check_delimiter(header)
    # Every cell stays a text here: Demonstrations turns texts into numbers, or into names, and
    # no type is guessed from the first rows. Coded, because the same few texts come again.
    text = pa.dictionary(pa.int32(), pa.string())
    rest = handle.read()
    if not rest.strip():
        raise ValueError("there are no steps; at least one is needed")
    convert = arrow_csv.ConvertOptions(column_types=dict.fromkeys(header, text))

    def parse(**options: Any) -> pa.Table:
        reading = arrow_csv.ReadOptions(column_names=header, **options)
        return arrow_csv.read_csv(pa.BufferReader(rest), reading, convert_options=convert)

    with _telling_of_encoding(handle):
        try:
            table = parse()
        except pa.ArrowInvalid:
            # Piece by piece it is not known which row is wrong, nor what a very long row says.
            table = parse(use_threads=False, block_size=min(len(rest) + 1, _LARGEST_BLOCK))
    columns = {name: table.column(name).to_pandas() for name in header}
    if "episode" in columns and (record is None or record["episode_ids"] == "number"):
        columns["episode"] = untyped_episodes(columns["episode"])
    return columns, record


@contextlib.contextmanager
def _telling_of_encoding(handle: BinaryIO) -> Iterator[None]:
    """A text in another encoding is not damaged: what is wrong with it is said."""
    try:
        yield
    except ValueError:
        handle.seek(0)
        problem = _other_encoding(handle.read())
        if problem is None:
            raise
    else:
        return
    raise ValueError(problem)


def _other_encoding(raw: bytes) -> str | None:
    """In which encoding a file seems to be that is no UTF-8, and where; None: it is no text."""
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "the file is in UTF-16, not in UTF-8; save it as CSV UTF-8"
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start
    else:
        return None
    try:
        text = raw.decode("cp1252")
    except UnicodeDecodeError:
        return None
    if any(unicodedata.category(c) == "Cc" and c not in "\t\r\n" for c in text):
        return None
    before = text[:at].split("\n")
    line = text.split("\n")[len(before) - 1].strip("\r")
    column = len(next(csv.reader([f"{before[-1]}{text[at]}"])))
    return (
        f"line {len(before)}, column {column} is not in UTF-8: {shown(line)} is how it reads in "
        "cp1252, the encoding of Windows in western Europe; save the file as CSV UTF-8"
    )


def _check_delimiter(header: Sequence[str]) -> None:
    """Refuse a table with something else than commas between its columns."""
    for delimiter in ";\t|":
        parts = header[0].split(delimiter) if len(header) == 1 else []
        if len(parts) > 1 and any(part.strip(" '\"").startswith("action_") for part in parts):
            raise ValueError(
                f"there is no column action_<agent>: the columns are separated by {delimiter!r}, "
                f"not by commas; save with commas (pandas: read_csv(path, sep={delimiter!r})"
                ".to_csv(path, index=False))"
            )
