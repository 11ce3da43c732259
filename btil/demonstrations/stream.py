"""Demonstrations too many for memory: a Parquet file, read a few row groups at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from btil.demonstrations.coding import (
    PLAIN,
    Names,
    Reading,
    code_column,
    code_episodes,
    counted,
    listed,
    normalised_keys,
    warn,
)
from btil.demonstrations.data import (
    Demonstrations,
    Size,
    Summary,
    as_arguments,
    concatenate,
    declared_names,
    declared_sizes,
    episode_runs,
)
from btil.demonstrations.formats.arrow import columns_from_arrow, from_arrow
from btil.demonstrations.formats.parquet import ROW_GROUP_STEPS, record_of_schema
from btil.demonstrations.formats.record import check_no_repeats, record_of
from btil.demonstrations.tables import (
    acting_agents,
    agents_and_variables,
    from_columns,
    reading_of,
    steps_to_keep,
    told,
    with_record,
)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class DemonstrationsFile:
    """Demonstrations in a Parquet file; iterating gives them part by part.

    Each part is a `Demonstrations` of whole episodes from consecutive row groups; an episode that
    goes on in the next row group is in the part where it ends. All parts have the sizes and names
    of the whole file. What `Demonstrations` refuses is refused when its part is read, with the
    same words.

    Attributes:
        path: The file.
        first: Its first episode.
        num_steps: Number of rows, over all episodes.
        record: Agents, sizes and names, as a table records them.
        reading: What its values are taken for.

    Example:
        >>> file = btil.open_demonstrations("team.parquet")  # doctest: +SKIP
        >>> sum(part.num_steps for part in file) == file.num_steps  # doctest: +SKIP
        True
    """

    path: Path
    first: Demonstrations
    num_steps: int
    record: Mapping[str, Any]
    reading: Reading = PLAIN

    @property
    def agents(self) -> Names:
        """Names of the agents."""
        return self.first.agents

    @property
    def num_agents(self) -> int:
        """Number of agents."""
        return self.first.num_agents

    @property
    def num_states(self) -> dict[str, int]:
        """Number of values of each state variable."""
        return self.first.num_states

    @property
    def num_actions(self) -> tuple[int, ...]:
        """Number of actions of each agent, in the order of `agents`."""
        return self.first.num_actions

    @property
    def num_latents(self) -> tuple[int, ...]:
        """Number of latents of each agent, in the order of `agents`."""
        return self.first.num_latents

    @property
    def state_names(self) -> dict[str, Names]:
        """The text of each value, for the state variables whose values have names."""
        return self.first.state_names

    @property
    def action_names(self) -> dict[str, Names]:
        """The text of each action, for the agents whose actions have names."""
        return self.first.action_names

    @property
    def latent_names(self) -> dict[str, Names]:
        """The text of each latent, for the agents whose latents have names."""
        return self.first.latent_names

    @cached_property
    def num_episodes(self) -> int:
        """Number of episodes; the column of episodes is read once to count them."""
        with _naming(self.path):
            tables = _runs_of(self.path, ["episode"], self.reading)
            return sum(len(runs.new_ids) for _, runs in tables)

    def __iter__(self) -> Iterator[Demonstrations]:
        parts = _whole_episodes(self.path, reading=self.reading)
        while True:
            with _naming(self.path):
                table = next(parts, None)
            if table is None:
                return
            yield _part_of(self.path, table, dict(self.record), self.reading)

    def read(self) -> Demonstrations:
        """The whole file as `Demonstrations`, in memory."""
        return concatenate(list(self))

    def summary(self) -> Summary:
        """What `Demonstrations.summary` counts, by one pass over the file."""
        lengths, labelled = [], np.zeros(self.num_agents)
        visited = np.zeros((0, len(self.num_states)), np.int64)
        for part in self:
            lengths.append(part.episode_lengths)
            labelled += (part.latents >= 0).sum(axis=0)
            states = np.stack(list(part.state_variables.values()), axis=1)
            visited = np.unique(np.concatenate([visited, np.unique(states, axis=0)]), axis=0)
        steps = np.concatenate(lengths)
        return Summary(
            num_episodes=len(steps),
            num_steps=self.num_steps,
            min_length=int(steps.min()),
            median_length=float(np.median(steps)),
            max_length=int(steps.max()),
            agents=self.agents,
            num_states=self.num_states,
            num_visited_states=len(visited),
            num_actions=self.num_actions,
            num_latents=self.num_latents,
            share_labelled=tuple((labelled / self.num_steps).tolist()),
        )

    def __repr__(self) -> str:
        return (
            f"DemonstrationsFile({self.path}: {counted(self.num_episodes, 'episode')}, "
            f"{counted(self.num_steps, 'step')}, "
            f"{counted(len(self.num_states), 'state variable')}, "
            f"agents: {', '.join(self.agents)})"
        )


def open_demonstrations(
    path: str | os.PathLike[str],
    *,
    like: Demonstrations | None = None,
    num_states: Size | Mapping[str, Size] | None = None,
    num_actions: Size | Sequence[Size] | Mapping[str, Size] | None = None,
    num_latents: Size | Sequence[Size] | Mapping[str, Size] | None = None,
    state_names: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
    action_names: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
    latent_names: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
    unknown_labels: Iterable[str | int] | None = None,
    drop_last: bool = False,
    missing: str = "refuse",
    continuous: Sequence[str] = (),
) -> DemonstrationsFile:
    """Open a Parquet file of demonstrations without reading it into memory.

    The table is as in `read_demonstrations`. Sizes and names that neither the file records nor
    the arguments declare are found by a pass over their columns, and are those that
    `read_demonstrations` would find.

    Memory is taken by one row group at a time: `write_demonstrations` makes them of 131,072 steps.
    A file of another tool may have fewer and larger ones.

    Args:
        path: the file.
        like: as in `read_demonstrations`; so are all others.
        num_states: see `like`.
        num_actions: see `like`.
        num_latents: see `like`.
        state_names: see `like`.
        action_names: see `like`.
        latent_names: see `like`.
        unknown_labels: see `like`.
        drop_last: see `like`.
        missing: see `like`.
        continuous: see `like`.

    Returns:
        The file, for `fit` with a batch size, or to iterate over.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another ending, a damaged file, and what `read_demonstrations` refuses in the
            first part of the file; the rest is looked at when it is read.

    Warns:
        DataWarning: as in `Demonstrations`.

    Example:
        >>> file = btil.open_demonstrations("team.parquet")  # doctest: +SKIP
        >>> posterior = btil.fit(model, file, batch_size=500)  # doctest: +SKIP
    """
    from pyarrow import parquet

    path = Path(path)
    if path.suffix.lower() != ".parquet":
        raise ValueError(
            f"{path}: only a .parquet file is read by row groups; read_demonstrations reads others"
        )
    declared = {
        "num_states": num_states,
        "num_actions": num_actions,
        "num_latents": num_latents,
        "state_names": state_names,
        "action_names": action_names,
        "latent_names": latent_names,
    }
    declared = {argument: value for argument, value in declared.items() if value is not None}
    if like is not None and declared:
        raise ValueError(f"like: sets all sizes and names; leave out {listed(declared)}")
    reading = reading_of(like, unknown_labels, drop_last, missing, continuous)
    with open(path, "rb") as handle, _naming(path):
        file = parquet.ParquetFile(handle, page_checksum_verification=True)
        schema, num_steps = file.schema_arrow, file.metadata.num_rows
        check_no_repeats(schema.names)
        if num_steps == 0:
            raise ValueError("there are no steps; at least one is needed")
        record = record_of_schema(schema) if like is None else record_of(like)
        reading = reading._replace(foreign=record is None)
        if record is not None:
            reading = with_record(reading, record)
        record, doubts = _completed(path, schema, record, declared, reading)
        table = next(_whole_episodes(path, reading=reading))
        if drop_last:
            needed = ["episode", *(f"action_{agent}" for agent in record["agents"])]
            num_steps = sum(part.num_rows for part in _whole_episodes(path, needed, reading))
    first = _part_of(path, table, record, reading).select([0])
    warn(f"{path}: {doubt}" for doubt in doubts)
    return DemonstrationsFile(path, first, num_steps, record, reading)


def _part_of(
    path: Path, table: pa.Table, record: dict[str, Any], reading: Reading
) -> Demonstrations:
    """A part of whole episodes; its last rows that are no steps are gone already."""
    try:
        columns = columns_from_arrow(table)
        return from_columns(columns, record, {}, reading._replace(drop_last=False))[0]
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Errors of reading begin with the path; the libraries raise whatever comes on damage."""
    try:
        yield
    except FileNotFoundError:
        raise
    except Exception as error:
        raise ValueError(f"{path}: {told(error, path.suffix)}") from error


# ---------------------------------------------------------------------- row groups


def _tables(path: Path, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The rows of a file, in order, about `ROW_GROUP_STEPS` at a time; columns it lacks left out.

    Smaller row groups are read together, larger ones cut after reading.
    """
    from pyarrow import parquet

    with open(path, "rb") as handle:
        file = parquet.ParquetFile(handle, page_checksum_verification=True)
        named = _named_columns(file.schema_arrow)
        columns = list(named) if columns is None else [c for c in columns if c in named]
        in_file = [named[column] for column in columns]
        by_name = {in_the_file: name for name, in_the_file in named.items()}
        together: list[int] = []
        rows = 0
        for group in range(file.num_row_groups):
            together.append(group)
            rows += file.metadata.row_group(group).num_rows
            if rows >= ROW_GROUP_STEPS or group == file.num_row_groups - 1:
                table = file.read_row_groups(together, in_file)
                # In the order of the file, whatever was asked for.
                table = table.rename_columns([by_name[name] for name in table.column_names])
                for first in range(0, rows, ROW_GROUP_STEPS):
                    yield table.slice(first, ROW_GROUP_STEPS)
                together, rows = [], 0


def _named_columns(schema: pa.Schema) -> dict[str, str]:
    """The columns of a file by their names, accents composed, and as they are called in it."""
    return normalised_keys("columns", {name: name for name in schema.names})


class _TableRuns(NamedTuple):
    """Episodes of a table as runs of its rows.

    Attributes:
        starts: First row of each run.
        continues: Whether the first run goes on from the table before.
        new_ids: Ids of the episodes that begin here.
        first_row: Row of the file at which the table begins.
    """

    starts: np.ndarray
    continues: bool
    new_ids: list[Any]
    first_row: int


def _runs_of(
    path: Path, columns: Sequence[str] | None = None, reading: Reading = PLAIN
) -> Iterator[tuple[pa.Table, _TableRuns]]:
    """Tables with their runs; an episode that returns after another one is refused."""
    seen: set[Any] = set()
    last: Any = None
    first_row = 0
    for table in _tables(path, columns):
        # Without the column all rows are one episode. An empty projection has no length.
        if "episode" in table.column_names:
            ids = code_episodes(from_arrow(table.column("episode")), first_row, reading)
        else:
            ids = np.zeros(max(table.num_rows, 1), np.int64)
        starts = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1])
        named = ids[starts].tolist()
        continues = bool(seen) and named[0] == last
        new = named[int(continues) :]
        for row, one in zip(starts[int(continues) :].tolist(), new, strict=True):
            if one in seen:
                raise ValueError(
                    f"episode: row {first_row + row} (counted from 0): episode {one!r} returns "
                    "after another one; the rows of an episode must be contiguous: sort the "
                    "rows by episode"
                )
            seen.add(one)
        yield table, _TableRuns(starts, continues, new, first_row)
        last = named[-1]
        first_row += table.num_rows


def _whole_episodes(
    path: Path, columns: Sequence[str] | None = None, reading: Reading = PLAIN
) -> Iterator[pa.Table]:
    """Tables of whole episodes, without rows that are no steps."""
    for table in _joined_episodes(path, columns, reading):
        if reading.drop_last:
            agents = [c.removeprefix("action_") for c in table.column_names if _is_action(c)]
            keep = steps_to_keep(columns_from_arrow(table), agents, reading)
            yield table.filter(keep)
        else:
            yield table


def _is_action(column: str) -> bool:
    return column.startswith("action_")


def _joined_episodes(
    path: Path, columns: Sequence[str] | None, reading: Reading
) -> Iterator[pa.Table]:
    """Tables of whole episodes; what a table leaves open is carried to the next."""
    import pyarrow as pa

    carried: list[pa.Table] = []
    for table, runs in _runs_of(path, columns, reading):
        open_from = int(runs.starts[-1])
        if open_from == 0 and runs.continues:
            carried.append(table)
            continue
        closed = [*carried, table.slice(0, open_from)] if open_from else carried
        if closed:
            yield pa.concat_tables(closed)
        carried = [table.slice(open_from)]
    yield pa.concat_tables(carried)


# ---------------------------------------------------------------------- sizes and names


def _completed(
    path: Path,
    schema: pa.Schema,
    record: dict[str, Any] | None,
    declared: Mapping[str, Any],
    reading: Reading,
) -> tuple[dict[str, Any], list[str]]:
    """A record with the sizes and names of all columns, and doubts.

    They are declared, recorded, or else looked for.
    """
    import pyarrow as pa

    named = _named_columns(schema)
    agents, variables = agents_and_variables(list(named), record, reading)
    acting = acting_agents(agents, list(named), record, reading)
    sizes: dict[str, int] = {}
    names: dict[str, Names] = {}
    columns: list[str] = []
    for kind, prefix, keys in (
        ("state", "", variables),
        ("action", "action_", acting),
        ("latent", "latent_", agents),
    ):
        size, texts = f"num_{kind}s", f"{kind}_names"
        given = {size: declared.get(size), texts: declared.get(texts)}
        if record is not None and texts not in declared:
            given = {size: declared.get(size, record[size]), texts: record[texts]}
        sizes |= declared_sizes(size, given[size], tuple(keys), prefix)
        names |= declared_names(texts, given[texts], tuple(keys), prefix)
        columns += [prefix + key for key in keys]

    def known(column: str) -> bool:
        kind = schema.field(named[column]).type if column in named else pa.int64()
        # Texts may have names of their own even where their number is declared. What is no value
        # at all is refused when it is read.
        return (
            column in names
            or (column in sizes and pa.types.is_integer(kind))
            or pa.types.is_nested(kind)
        )

    doubts = []
    sought = [column for column in columns if not known(column)]
    found = _distinct_values(path, sought, agents, reading)
    for column, distinct in [(column, found[column]) for column in sought if column in found]:
        values = from_arrow(pa.chunked_array([distinct]))
        places = _FirstSeen(path, column, distinct, agents, reading)
        coded = code_column(column, values, sizes.get(column), None, places, reading)
        sizes[column] = coded.size
        if coded.names is not None:
            names[column] = coded.names
        if coded.doubt is not None:
            doubts.append(coded.doubt)
    for column in columns:
        if column in names:
            sizes.setdefault(column, len(names[column]))
        elif column.startswith("latent_") and column not in sizes and column not in named:
            # No such column: nobody is labelled, which needs a declared number.
            code_column(column, np.array([-1]), None, None, episode_runs(None, 1))
    of_all = as_arguments(tuple(variables), tuple(agents), sizes, names)
    of_all |= {
        "continuous": list(reading.continuous),
        "missing": "allow" if reading.unseen else "refuse",
    }
    return {"agents": agents} | of_all, doubts


def _seen_tables(
    path: Path, columns: Sequence[str], agents: Sequence[str], reading: Reading
) -> Iterator[pa.Table]:
    """The steps of a file with some columns, and with what it takes to tell which are steps.

    Episodes that are none are refused before any value is looked at, as in memory.
    """
    if not reading.drop_last:
        return (table for table, _ in _runs_of(path, ["episode", *columns], reading))
    needed = ["episode", *(f"action_{agent}" for agent in agents)]
    return _whole_episodes(path, list(dict.fromkeys([*needed, *columns])), reading)


def _distinct_values(
    path: Path, columns: Sequence[str], agents: Sequence[str], reading: Reading
) -> dict[str, pa.Array]:
    """The distinct values of some columns of a file, in order of appearance, one null included."""
    import pyarrow as pa
    from pyarrow import compute

    found: dict[str, pa.Array] = {}
    for table in _seen_tables(path, columns, agents, reading) if columns else ():
        for name in (name for name in table.column_names if name in columns):
            column = _plain_values(table.column(name))
            before = [found[name]] if name in found else []
            found[name] = compute.unique(
                pa.chunked_array([*before, compute.unique(column)], column.type)
            )
    return found


def _plain_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa

    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


class _FirstSeen(NamedTuple):
    """Where the distinct values of a column are seen first, for messages."""

    path: Path
    column: str
    values: pa.Array
    agents: Sequence[str]
    reading: Reading

    def place(self, row: int) -> str:
        """Episode and step of the first row that has the given one of the values."""
        from pyarrow import compute

        wanted = self.values[row]
        columns = ["episode", self.column]
        if self.reading.drop_last:
            columns += [f"action_{agent}" for agent in self.agents]
        for table in _whole_episodes(self.path, list(dict.fromkeys(columns)), self.reading):
            column = _plain_values(table.column(self.column))
            if not wanted.is_valid:
                same = compute.is_null(column)
            elif wanted.as_py() != wanted.as_py():
                same = compute.is_nan(column)
            else:
                same = compute.equal(column, wanted)
            at = compute.index(same, True).as_py()
            if at >= 0:
                named = "episode" in table.column_names
                ids = from_arrow(table.column("episode")) if named else None
                return episode_runs(ids, table.num_rows, self.reading).place(at)
        raise AssertionError("a value that was found is found again")
