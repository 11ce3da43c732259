"""Parquet files as one long table of episodes, read a few row groups at a time.

One file, several, or a folder of them (`pyarrow.dataset` lists it, and knows what stands in the
names of its folders). Files follow each other in order, no episode goes on in another file. A part
of such a table (`Source.shard`) has the episodes that begin in its own row groups, so that several
processes together read all of it once.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from btil.demonstrations.coding import PLAIN, Reading, code_episodes, listed, normalised_keys
from btil.demonstrations.formats.arrow import columns_from_arrow, from_arrow
from btil.demonstrations.formats.parquet import ROW_GROUP_STEPS
from btil.demonstrations.formats.record import check_no_repeats
from btil.demonstrations.tables import steps_to_keep, told
from btil.files import check_there

if TYPE_CHECKING:
    import pyarrow as pa

EPISODE = "episode"
PRESENT = "present_"
# Columns that some of several files may lack.
OPTIONAL = ("latent_", PRESENT)


class File(NamedTuple):
    """A Parquet file, and which of its row groups are meant.

    Attributes:
        path: The file.
        label: What its episode ids begin with, where that is wanted.
        keys: What the names of its folders say (`site=a/`), for filters.
        rows: Rows of each of its row groups.
        first: The first row group that is meant.
        end: The first one that is not any more.
    """

    path: Path
    label: str
    keys: dict[str, Any]
    rows: tuple[int, ...]
    first: int
    end: int


class Source(NamedTuple):
    """Where rows come from.

    Attributes:
        path: The file or folder as it was given; of several files the first.
        files: The files, in order.
        filters: Which episodes are meant, an Arrow expression; None: all.
        filtered: The columns that it looks at.
        ids_by_file: Whether ids of episodes count within their file only.
    """

    path: Path
    files: tuple[File, ...]
    filters: Any = None
    filtered: tuple[str, ...] = ()
    ids_by_file: bool = False

    @property
    def num_rows(self) -> int:
        """Rows of the row groups that are meant, whatever filters say."""
        return sum(sum(file.rows[file.first : file.end]) for file in self.files)

    @property
    def is_shard(self) -> bool:
        """Whether it is a part of its files."""
        return any(file.first > 0 or file.end < len(file.rows) for file in self.files)

    def shard(self, num_shards: int, index: int) -> Source:
        """One of several parts of consecutive row groups, of about as many rows each."""
        groups = [
            (number, group, rows)
            for number, file in enumerate(self.files)
            for group, rows in enumerate(file.rows)
        ]
        rows = np.array([rows for *_, rows in groups])
        # A row group belongs where its middle lies.
        middles = np.cumsum(rows) - rows / 2
        owners = np.minimum((middles * num_shards / rows.sum()).astype(int), num_shards - 1)
        own: dict[int, list[int]] = {}
        for (number, group, _), owner in zip(groups, owners.tolist(), strict=True):
            if owner == index:
                own.setdefault(number, []).append(group)
        return self._replace(
            files=tuple(
                self.files[number]._replace(first=mine[0], end=mine[-1] + 1)
                for number, mine in own.items()
            )
        )


@contextmanager
def naming(path: Path, files: Sequence[File] = ()) -> Iterator[None]:
    """Errors of reading begin with the path; the libraries raise whatever comes on damage.

    Those that begin with one of the files already are left as they are.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        if any(str(error).startswith(f"{file.path}: ") for file in files):
            raise
        raise ValueError(f"{path}: {told(error, path.suffix)}") from error


# ---------------------------------------------------------------------- finding files


def find_files(given: Any) -> tuple[Path, list[Path], Path | None]:
    """What was given, as a path to tell of; its files; and the folder that they were found in.

    Raises:
        FileNotFoundError: If there is no such file or folder.
        ValueError: If a folder or a list has no Parquet file, or a file has another ending.
    """
    if not isinstance(given, str | os.PathLike):
        if not isinstance(given, Sequence):
            raise ValueError(
                f"path must be a Parquet file, a folder of them or a list, got {given!r}"
            )
        files = [Path(one) for one in given]
        if not files:
            raise ValueError("path: the list of files is empty")
        for number, file in enumerate(files):
            _check_ending(file)
            if file in files[:number]:
                raise ValueError(f"{file} is twice in the list of files")
        return files[0], files, None
    path = Path(given)
    if not path.is_dir():
        _check_ending(path)
        return path, [path], None
    # What begins so is not meant for readers: Spark, Arrow and btil itself write such.
    files = sorted(
        file
        for file in path.rglob("*.parquet")
        if not any(part.startswith((".", "_")) for part in file.relative_to(path).parts)
    )
    if not files:
        raise ValueError(f"{path}: there is no .parquet file in this folder")
    return path, files, path


def _check_ending(path: Path) -> None:
    check_there(path)
    if path.suffix.lower() != ".parquet":
        raise ValueError(
            f"{path}: only a .parquet file is read by row groups; read_demonstrations reads others"
        )


def open_source(
    given: Any, filters: Sequence[Any] | None, ids_by_file: bool
) -> tuple[Source, dict[Path, pa.Schema]]:
    """The source that was asked for, and the schema of each of its files.

    Raises:
        FileNotFoundError: If a file is not there.
        ValueError: Of what is given, of a damaged file, of filters that leave no file.
    """
    from pyarrow import dataset, parquet

    path, found, folder = find_files(given)
    schemas, groups = {}, {}
    for file in found:
        with open(file, "rb") as handle, naming(file):
            opened = parquet.ParquetFile(handle, page_checksum_verification=True)
            metadata = opened.metadata
            check_no_repeats(opened.schema_arrow.names)
            schemas[file] = opened.schema_arrow
            groups[file] = tuple(
                metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)
            )
    keys: dict[Path, dict[str, Any]] = {file: {} for file in found}
    listing = dataset.dataset(
        [os.fspath(file) for file in found],
        format="parquet",
        partitioning=None if folder is None else "hive",
        partition_base_dir=None if folder is None else os.fspath(folder),
    )
    if folder is not None:
        for file, one in zip(found, listing.get_fragments(), strict=True):
            keys[file] = dataset.get_partition_keys(one.partition_expression)
    expression: Any = None
    filtered: tuple[str, ...] = ()
    if filters is not None:
        expression, filtered = _expression(filters)
        for file in found:
            allowed = [*schemas[file].names, *keys[file]]
            for column in filtered:
                if column not in allowed:
                    raise ValueError(
                        f"filters: {file} has no column {column!r}; allowed are {listed(allowed)}"
                    )
    labels = _labels(found, folder)
    files = tuple(
        File(file, labels[file], keys[file], groups[file], 0, len(groups[file]))
        for file in found
        if expression is None or not filtered or _may_match(expression, filtered, keys[file])
    )
    if not files:
        raise ValueError(f"{path}: filters: no file is left")
    return Source(path, files, expression, filtered, ids_by_file), schemas


def _expression(filters: Any) -> tuple[Any, tuple[str, ...]]:
    """Filters as Arrow has them, and the columns they look at."""
    from pyarrow import parquet

    form = '("column", "==", value)'
    try:
        alternatives = filters if isinstance(filters[0], list) else [filters]
        columns = tuple(dict.fromkeys(one[0] for all_of in alternatives for one in all_of))
        if not all(isinstance(column, str) for column in columns):
            raise TypeError("columns are named by text")
        return parquet.filters_to_expression(filters), columns
    except Exception as error:
        raise ValueError(
            f"filters must be a list of {form}, all of which hold, or a list of such lists, one of "
            f"which does; got {filters!r} ({error})"
        ) from None


def _may_match(expression: Any, filtered: tuple[str, ...], keys: dict[str, Any]) -> bool:
    """Whether a file has to be read, by the names of its folders."""
    import pyarrow as pa
    from pyarrow import dataset

    if not set(filtered) <= set(keys):
        return True
    one = dataset.dataset(pa.table({name: [value] for name, value in keys.items()}))
    return one.count_rows(filter=expression) > 0


def _labels(files: Sequence[Path], folder: Path | None) -> dict[Path, str]:
    """What tells files apart: their names without ending, with the folders in which they differ."""
    if folder is None:
        folder = Path(os.path.commonpath([file.absolute().parent for file in files]))
        return {file: _label(file.absolute(), folder) for file in files}
    return {file: _label(file, folder) for file in files}


def _label(file: Path, folder: Path) -> str:
    return file.relative_to(folder).with_suffix("").as_posix()


def unified(schemas: dict[Path, pa.Schema]) -> pa.Schema:
    """One schema for all files: the same columns, of types that go together.

    Columns of labels and of who is there may be missing in some: nobody is labelled then, and all
    are there.

    Raises:
        ValueError: Naming the file, the column and what it is elsewhere.
    """
    import pyarrow as pa

    (first, whole), *others = schemas.items()
    known = {name: _plain(kind) for name, kind in zip(whole.names, whole.types, strict=True)}
    for path, schema in others:
        differ = [name for name in {*schema.names} ^ {*known} if not _is_optional(name)]
        if differ:
            odd = sorted(differ)[0]
            has = odd in schema.names
            raise ValueError(
                f"{path}: column {odd!r} is {'there' if has else 'missing'}, but "
                f"{'not ' if has else ''}in {first}; all files must have the same columns"
            )
        for name, kind in zip(schema.names, schema.types, strict=True):
            try:
                before = known.get(name, _plain(kind))
                both = [pa.schema([(name, one)]) for one in (before, _plain(kind))]
                known[name] = pa.unify_schemas(both, promote_options="permissive").field(0).type
            except pa.ArrowTypeError:
                raise ValueError(
                    f"{path}: column {name!r} is {_plain(kind)}, but {known[name]} in the files "
                    "before it; all files must have the same types"
                ) from None
    return pa.schema(list(known.items()))


def _is_optional(name: str) -> bool:
    # Weights of latents, `latent_ann[help]`, are given for all steps or for none.
    return name.startswith(OPTIONAL) and not name.endswith("]")


def _plain(kind: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    return kind.value_type if pa.types.is_dictionary(kind) else kind


def named_columns(schema: pa.Schema) -> dict[str, str]:
    """The columns of a file by their names, accents composed, and as they are called in it."""
    return normalised_keys("columns", {name: name for name in schema.names})


# ---------------------------------------------------------------------- reading them


def _tables(
    file: File, columns: Sequence[str] | None, groups: range
) -> Iterator[tuple[int, pa.Table]]:
    """The rows of some row groups, in order, about `ROW_GROUP_STEPS` at a time.

    Smaller row groups are read together, larger ones cut after reading. Columns that the file
    lacks are left out.

    Yields:
        The number of the first row, and the rows.
    """
    from pyarrow import parquet

    with open(file.path, "rb") as handle:
        opened = parquet.ParquetFile(handle, page_checksum_verification=True)
        named = named_columns(opened.schema_arrow)
        columns = list(named) if columns is None else [c for c in columns if c in named]
        # An empty projection has no length.
        columns = columns or list(named)[:1]
        in_file = [named[column] for column in columns]
        by_name = {in_the_file: name for name, in_the_file in named.items()}
        together: list[int] = []
        row, rows = sum(file.rows[: groups.start]), 0
        for group in groups:
            together.append(group)
            rows += file.rows[group]
            if rows >= ROW_GROUP_STEPS or group == groups.stop - 1:
                table = opened.read_row_groups(together, in_file)
                # In the order of the file, whatever was asked for.
                table = table.rename_columns([by_name[name] for name in table.column_names])
                for first in range(0, rows, ROW_GROUP_STEPS):
                    yield row + first, table.slice(first, ROW_GROUP_STEPS)
                row += rows
                together, rows = [], 0


class Runs(NamedTuple):
    """Episodes of a table as runs of its rows.

    Attributes:
        starts: First row of each run.
        continues: Whether the first run goes on from the table before.
        new_ids: Ids of the episodes that begin here.
    """

    starts: np.ndarray
    continues: bool
    new_ids: list[Any]


def runs_of(
    source: Source, columns: Sequence[str] | None = None, reading: Reading = PLAIN
) -> Iterator[tuple[File, pa.Table, Runs]]:
    """Tables of at least a row with their runs; no two of one episode are of different files.

    Raises:
        ValueError: If an episode returns after another one, or is in two files, or filters cut one.
    """
    seen: dict[Any, Path] = {}
    for file in source.files:
        with naming(file.path):
            for table, runs in _runs_of_file(source, file, columns, reading, seen):
                yield file, table, runs


def _runs_of_file(
    source: Source,
    file: File,
    columns: Sequence[str] | None,
    reading: Reading,
    seen: dict[Any, Path],
) -> Iterator[tuple[pa.Table, Runs]]:
    wanted = columns
    if columns is not None:
        wanted = list(dict.fromkeys([*columns, EPISODE, *source.filtered]))
    last, last_kept = None, True
    for row, table, ids in _own_rows(file, wanted, reading):
        named = EPISODE in table.column_names
        if source.ids_by_file:
            ids = np.array([f"{file.label}/{one}" if named else file.label for one in ids.tolist()])
        elif not named and len(source.files) > 1:
            raise ValueError(
                "there is no column 'episode'; ids_by_file=True takes each file for an episode"
            )
        keep = _kept(table, file, source)
        starts = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1])
        continues = ids[0] == last
        if keep is not None:
            of_run = keep[starts]
            if continues:
                of_run[0] = last_kept
            lengths = np.diff(np.append(starts, len(ids)))
            cut = np.flatnonzero(keep != np.repeat(of_run, lengths))
            if len(cut):
                raise ValueError(
                    f"filters: row {row + int(cut[0])} (counted from 0): episode "
                    f"{ids[cut[0]].item()!r} is kept in part; filter by what is the same in all "
                    "rows of an episode"
                )
            last_kept = bool(of_run[-1])
        new = starts[int(continues) :]
        for place, one in zip(new.tolist(), ids[new].tolist(), strict=True):
            if one in seen:
                where = f"episode: row {row + place} (counted from 0): episode {one!r} "
                raise ValueError(
                    f"{where}returns after another one; the rows of an episode must be contiguous: "
                    "sort the rows by episode"
                    if seen[one] == file.path
                    else f"{where}is in {seen[one]} too; ids_by_file=True takes ids to count "
                    "within their file only"
                )
            seen[one] = file.path
        last = ids[-1]
        table = _with_ids(table, ids, starts) if source.ids_by_file else table
        if keep is not None:
            table, ids = table.filter(keep), ids[keep]
            if not len(ids):
                continue
            starts = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1])
            continues = continues and bool(keep[0])
        if columns is not None:
            kept = {*columns, EPISODE}
            table = table.select([name for name in table.column_names if name in kept])
        yield table, Runs(starts, bool(continues), ids[starts[int(continues) :]].tolist())


def _with_ids(table: pa.Table, ids: np.ndarray, starts: np.ndarray) -> pa.Table:
    """The table with other ids of its episodes, as coded texts."""
    import pyarrow as pa

    lengths = np.diff(np.append(starts, len(ids)))
    codes = np.repeat(np.arange(len(starts), dtype=np.int32), lengths)
    column = pa.DictionaryArray.from_arrays(pa.array(codes), pa.array(ids[starts].tolist()))
    if EPISODE in table.column_names:
        return table.set_column(table.column_names.index(EPISODE), EPISODE, column)
    return table.append_column(EPISODE, column)


def _own_rows(
    file: File, columns: Sequence[str] | None, reading: Reading
) -> Iterator[tuple[int, pa.Table, np.ndarray]]:
    """The rows of the episodes that begin in a file's own row groups, and the ids of these.

    The first of these row groups may begin with the end of an earlier episode, which is left out;
    the last may end in the middle of one, which is read to its end.
    """
    number, before = len(file.rows), None
    earlier = [group for group in range(file.first) if file.rows[group] > 0]
    begun = not earlier
    for group in earlier[-1:]:
        for row, table in _tables(file, [EPISODE], range(group, group + 1)):
            before = _ids(table, row, reading)[-1]
    last = None
    for row, table in _tables(file, columns, range(file.first, file.end)):
        ids = _ids(table, row, reading)
        if not begun:
            lead = int(np.argmax(ids != before)) if np.any(ids != before) else len(ids)
            row, table, ids = row + lead, table.slice(lead), ids[lead:]
            begun = len(ids) > 0
        if len(ids):
            last = ids[-1]
            yield row, table, ids
    if not begun or last is None:
        return
    for group in range(file.end, number):
        for row, table in _tables(file, columns, range(group, group + 1)):
            ids = _ids(table, row, reading)
            same = int(np.argmin(ids == last)) if np.any(ids != last) else len(ids)
            if same:
                yield row, table.slice(0, same), ids[:same]
            if same < len(ids):
                return


def _ids(table: pa.Table, row: int, reading: Reading) -> np.ndarray:
    # Without the column all rows are one episode.
    if EPISODE not in table.column_names:
        return np.zeros(table.num_rows, np.int64)
    return code_episodes(from_arrow(table.column(EPISODE)), row, reading)


def _kept(table: pa.Table, file: File, source: Source) -> np.ndarray | None:
    """Which rows the filters keep; None: there are none."""
    import pyarrow as pa
    from pyarrow import compute, dataset

    if source.filters is None:
        return None
    columns = {name: plain_values(table.column(name)) for name in source.filtered
               if name in table.column_names}  # fmt: skip
    for name, value in file.keys.items():
        columns[name] = pa.chunked_array([pa.repeat(value, table.num_rows)])
    found = dataset.dataset(pa.table(columns)).to_table(columns={"keep": source.filters})
    return compute.fill_null(found.column("keep"), False).to_numpy()


def plain_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column that is not coded."""
    return column.cast(_plain(column.type))


def whole_episodes(
    source: Source, columns: Sequence[str] | None = None, reading: Reading = PLAIN
) -> Iterator[tuple[File, pa.Table]]:
    """Tables of whole episodes, each of one file, without rows that are no steps."""
    for file, table in _joined_episodes(source, columns, reading):
        if reading.drop_last:
            with naming(file.path):
                agents = [c.removeprefix("action_") for c in table.column_names if _is_action(c)]
                keep = steps_to_keep(columns_from_arrow(table), agents, reading)
            yield file, table.filter(keep)
        else:
            yield file, table


def _is_action(column: str) -> bool:
    return column.startswith("action_")


def _joined_episodes(
    source: Source, columns: Sequence[str] | None, reading: Reading
) -> Iterator[tuple[File, pa.Table]]:
    """Tables of whole episodes; what a table leaves open is carried to the next."""
    import pyarrow as pa

    carried: list[pa.Table] = []
    of_file: File | None = None
    for file, table, runs in runs_of(source, columns, reading):
        if of_file is not None and file is not of_file:
            yield of_file, pa.concat_tables(carried)
            carried = []
        of_file = file
        open_from = int(runs.starts[-1])
        if open_from == 0 and runs.continues:
            carried.append(table)
            continue
        closed = [*carried, table.slice(0, open_from)] if open_from else carried
        if closed:
            yield file, pa.concat_tables(closed)
        carried = [table.slice(open_from)]
    if of_file is not None:
        yield of_file, pa.concat_tables(carried)


def together(tables: Iterator[tuple[File, pa.Table]]) -> Iterator[list[tuple[File, pa.Table]]]:
    """Tables of about `ROW_GROUP_STEPS` rows: those of small files are put together."""
    gathered: list[tuple[File, pa.Table]] = []
    rows = 0
    for file, table in tables:
        full = rows + table.num_rows > ROW_GROUP_STEPS
        if gathered and (full or gathered[-1][0] is file):
            yield gathered
            gathered, rows = [], 0
        gathered.append((file, table))
        rows += table.num_rows
    if gathered:
        yield gathered
