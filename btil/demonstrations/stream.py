"""Demonstrations too many for memory: Parquet files, read a few row groups at a time."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool

from btil.arguments import check_index, check_values
from btil.demonstrations.coding import (
    PLAIN,
    Names,
    Reading,
    absent,
    code_column,
    counted,
    listed,
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
    labels_and_sets,
    summary_of,
)
from btil.demonstrations.formats.arrow import columns_from_arrow, from_arrow
from btil.demonstrations.formats.parquet import record_of_schema
from btil.demonstrations.formats.record import record_of
from btil.demonstrations.naming import agents_in
from btil.demonstrations.quantities import says_away, weight_columns
from btil.demonstrations.row_groups import (
    EPISODE,
    PRESENT,
    File,
    Source,
    named_columns,
    naming,
    open_source,
    plain_values,
    runs_of,
    together,
    unified,
    whole_episodes,
)
from btil.demonstrations.tables import (
    acting_agents,
    agents_and_variables,
    from_columns,
    latents_of_weights,
    misspelled,
    reading_of,
    with_record,
)

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class DemonstrationsFile:
    """Demonstrations in a Parquet file, or in several; iterating gives them part by part.

    Each part is a `Demonstrations` of whole episodes from consecutive row groups; an episode that
    goes on in the next row group is in the part where it ends. All parts have the sizes and names
    of the whole. What `Demonstrations` refuses is refused when its part is read, with the
    same words.

    Attributes:
        source: The files, and which of their row groups are read.
        first: Their first episode.
        record: Agents, sizes and names, as a table records them.
        reading: What its values are taken for.

    Example:
        >>> file = btil.open_demonstrations("team.parquet")  # doctest: +SKIP
        >>> sum(part.num_steps for part in file) == file.num_steps  # doctest: +SKIP
        True
    """

    source: Source
    first: Demonstrations
    record: Mapping[str, Any]
    reading: Reading = PLAIN

    @property
    def path(self) -> Path:
        """The file or folder; of a list of files the first."""
        return self.source.path

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that are read."""
        return tuple(file.path for file in self.source.files)

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
        tables = runs_of(self.source, [EPISODE], self.reading)
        return sum(len(runs.new_ids) for _, _, runs in tables)

    @cached_property
    def num_steps(self) -> int:
        """Number of rows, over all episodes; of a part of files, or with filters, they are read."""
        if self.reading.drop_last:
            needed = [EPISODE, *(f"action_{agent}" for agent in self.agents)]
            tables = whole_episodes(self.source, needed, self.reading)
            return sum(table.num_rows for _, table in tables)
        if self.source.filters is None and not self.source.is_shard:
            return self.source.num_rows
        return sum(table.num_rows for _, table, _ in runs_of(self.source, [], self.reading))

    def shard(self, num_shards: int, index: int) -> DemonstrationsFile:
        """One of several parts that together have every episode once, in order.

        Parts are made of whole row groups: consecutive ones, of about as many rows each. An
        episode belongs to the part in whose row groups it begins. With fewer row groups than
        parts some are empty.

        Args:
            num_shards: How many parts there are.
            index: Which one, from 0.

        Raises:
            ValueError: If there is no such part, or this is one already.

        Example:
            >>> halves = [file.shard(2, k) for k in range(2)]  # doctest: +SKIP
            >>> sum(half.num_episodes for half in halves) == file.num_episodes  # doctest: +SKIP
            True
        """
        check_values({"num_shards": num_shards})
        check_index("index", index, num_shards)
        if self.source.is_shard:
            raise ValueError("shard: this is a part already; take parts of the whole")
        return replace(self, source=self.source.shard(num_shards, index))

    def __iter__(self) -> Iterator[Demonstrations]:
        told = False
        for tables in together(whole_episodes(self.source, reading=self.reading)):
            part, doubts = _part_of(tables, dict(self.record), self.reading)
            if doubts and not told:  # those of one part: others may have a thousand more
                warn(f"{tables[0][0].path}: {doubt}" for doubt in doubts)
                told = True
            yield part

    def read(self) -> Demonstrations:
        """The whole file as `Demonstrations`, in memory."""
        return concatenate(list(self))

    def summary(self) -> Summary:
        """What `Demonstrations.summary` counts, by one pass over the file.

        Raises:
            ValueError: If it is a part without episodes.
        """
        if not self.num_episodes:
            raise ValueError(f"{self.path}: summary: this part has no episodes")
        return summary_of(self)

    def __repr__(self) -> str:
        files = len(self.source.files)
        several = f"{counted(files, 'file')} from {self.path}" if files > 1 else f"{self.path}"
        return (
            f"DemonstrationsFile({several}: {counted(self.num_episodes, 'episode')}, "
            f"{counted(self.num_steps, 'step')}, "
            f"{counted(len(self.num_states), 'state variable')}, "
            f"agents: {', '.join(self.agents)})"
        )


def open_demonstrations(
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    filters: Sequence[Any] | None = None,
    ids_by_file: bool = False,
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
    """Open Parquet files of demonstrations without reading them into memory.

    The table is as in `read_demonstrations`. Sizes and names that neither the files record nor
    the arguments declare are found by a pass over their columns, and are those that
    `read_demonstrations` would find.

    Several files are one table, in the order of the list, or of a folder's sorted names. They have
    the same columns, and no episode is in two of them. Sizes that they record are put together:
    the largest, and all names in the order in which they come.

    Memory is taken by one row group at a time: `write_demonstrations` makes them of 131,072 steps.
    A file of another tool may have fewer and larger ones.

    Args:
        path: a file; a folder, of which all `.parquet` files are read, in folders inside it too,
            but for those whose names begin with a dot or an underscore; or a list of files.
        filters: which episodes are wanted, as pandas and pyarrow take it: a list of
            `(column, operation, value)`, all of which hold, or a list of such lists, one of which
            does; operations are ==, !=, <, <=, >, >=, in, "not in". A column may also be the key
            of folders that are named `key=value`; these keys serve for nothing else. What filters
            look at must be the same in all rows of an episode.
        ids_by_file: ids of episodes count within their file only, and become `<file>/<id>`, the
            file without its ending; a file without a column of episodes is one, `<file>`.
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
        The files, for `fit` with a batch size, or to iterate over.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another ending, a damaged file, files that do not go together, and what
            `read_demonstrations` refuses in the first part; the rest is looked at when it is read.
            The message names the file, and in it the row, or episode and step.

    Warns:
        DataWarning: as in `Demonstrations`.

    Example:
        >>> file = btil.open_demonstrations("team.parquet")  # doctest: +SKIP
        >>> posterior = btil.fit(model, file, batch_size=500)  # doctest: +SKIP
        >>> of_a = [("site", "==", "a")]
        >>> files = btil.open_demonstrations("days", filters=of_a)  # doctest: +SKIP
    """
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
    return _opened(open_source(path, filters, ids_by_file), like, declared, reading)


def open_as_seen(
    path: str | os.PathLike[str],
    seen: Demonstrations,
    *,
    unknown_labels: Iterable[str | int] | None = None,
    drop_last: bool = False,
    missing: str = "refuse",
) -> DemonstrationsFile:
    """Open other files of a team that was seen before, as `read_as_seen` reads a table.

    Latents are those of `seen`; other values keep the sizes and names of the files, and are
    matched when a posterior conforms the parts.

    Args:
        path: a file, or a folder.
        seen: demonstrations of the team.
        unknown_labels: as in `read_demonstrations`.
        drop_last: as in `read_demonstrations`.
        missing: as in `read_demonstrations`.

    Raises:
        ValueError: as `open_demonstrations`.
    """
    reading = reading_of(None, unknown_labels, drop_last, missing, list(seen.continuous))
    latents = dict(zip(seen.agents, seen.num_latents, strict=True))
    declared: dict[str, Any] = {"num_latents": latents}
    if seen.latent_names:
        declared["latent_names"] = seen.latent_names
    reading = reading._replace(known=tuple(seen.num_states))
    return _opened(open_source(path, None, False), None, declared, reading)


def _opened(
    found: tuple[Source, dict[Path, pa.Schema]],
    like: Demonstrations | None,
    declared: Mapping[str, Any],
    reading: Reading,
) -> DemonstrationsFile:
    source, schemas = found
    with naming(source.path, source.files):
        schema = unified(schemas)
        if sum(sum(file.rows) for file in source.files) == 0:
            raise ValueError("there are no steps; at least one is needed")
    record = _merged(schemas) if like is None else record_of(like)
    with naming(source.path, source.files):
        reading = reading._replace(foreign=record is None)
        if record is not None:
            reading = with_record(reading, record)
        suspect = misspelled(list(named_columns(schema)), record, reading)
        record, doubts = _completed(source, schema, record, declared, reading)
    tables = next(whole_episodes(source, reading=reading), None)
    if tables is None:
        raise ValueError(f"{source.path}: filters: no episode is left")
    first = _part_of([tables], record, reading)[0].select([0])
    warn(f"{source.path}: {doubt}" for doubt in [*doubts, *suspect])
    return DemonstrationsFile(source, first, record, reading)


def _merged(schemas: Mapping[Path, pa.Schema]) -> dict[str, Any] | None:
    """What files record, put together: the largest sizes, all names. None: they record nothing."""
    merged: dict[str, Any] | None = None
    first: Path | None = None
    for path, schema in schemas.items():
        with naming(path):
            record = record_of_schema(schema)
            if first is None:
                first, merged = path, record
                continue
            if (record is None) != (merged is None):
                has, lacks = (path, first) if merged is None else (first, path)
                raise ValueError(
                    f"sizes and names are recorded in {has}, but not in {lacks}; give like=..., "
                    "demonstrations that have them"
                )
            if merged is None or record is None or record == merged:
                continue
            for field, value in record.items():
                merged[field] = _put_together(field, merged.get(field), value, first)
            for kind in ("state", "action", "latent"):
                sizes = merged[f"num_{kind}s"]
                for key, names in merged[f"{kind}_names"].items():
                    sizes[key] = max(sizes[key], len(names))
    return merged


def _put_together(field: str, known: Any, value: Any, first: Path) -> Any:
    """A field of a record, of the files before and of one more."""
    if field.startswith("num_") and set(known) == set(value):
        return {key: max(size, value[key]) for key, size in known.items()}
    if field.endswith("_names") and set(known) == set(value):
        return {key: [*dict.fromkeys([*names, *value[key]])] for key, names in known.items()}
    if known != value:
        raise ValueError(f"{field} is {value}, but {known} in {first}")
    return known


def _put_side_by_side(tables: list[pa.Table]) -> pa.Table:
    """Rows of several tables; who is there in all rows has no column in some of them."""
    import pyarrow as pa
    from pyarrow import compute

    if len(tables) == 1:
        return tables[0]
    plain = [
        pa.table({name: plain_values(table.column(name)) for name in table.column_names})
        for table in tables
    ]
    whole = pa.concat_tables(plain, promote_options="permissive")
    for place, name in enumerate(whole.column_names):
        if name.startswith(PRESENT):
            there = compute.fill_null(whole.column(name), True)
            whole = whole.set_column(place, name, there)
    return whole


def _part_of(
    tables: list[tuple[File, pa.Table]], record: dict[str, Any], reading: Reading
) -> tuple[Demonstrations, list[str]]:
    """A part of whole episodes, and doubts; its last rows that are no steps are gone already."""
    try:
        columns = columns_from_arrow(_put_side_by_side([table for _, table in tables]))
        return from_columns(columns, record, {}, reading._replace(drop_last=False))
    except ValueError as error:
        if len(tables) > 1:
            for one in tables:  # which of the files is it?
                _part_of([one], record, reading)
        raise ValueError(f"{tables[0][0].path}: {error}") from error


# ---------------------------------------------------------------------- sizes and names


def _completed(
    source: Source,
    schema: pa.Schema,
    record: dict[str, Any] | None,
    declared: Mapping[str, Any],
    reading: Reading,
) -> tuple[dict[str, Any], list[str]]:
    """A record with the sizes and names of all columns, and doubts.

    They are declared, recorded, or else looked for.
    """
    import pyarrow as pa

    named = named_columns(schema)
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
    of_labels = {f"latent_{agent}": agent for agent in agents}
    sought = [column for column in columns if not known(column)]
    found = _distinct_values(source, sought, agents, reading)
    columns_found = {name: from_arrow(pa.chunked_array([one])) for name, one in found.items()}
    size_told, names_told = _by_weights(named, agents, columns_found, sizes, names, reading)
    sizes, names = sizes | size_told, names | names_told
    for column, distinct in [(column, found[column]) for column in sought if column in found]:
        values = columns_found[column]
        places = _FirstSeen(source, column, distinct, agents, reading)
        if column in of_labels:
            values, _, size_told, names_told = labels_and_sets(
                of_labels[column], values, sizes, names, reading
            )
            sizes, names = sizes | size_told, names | names_told
        away = None
        if not len(values):  # nobody of whom it speaks is ever there
            values, away = np.array([-1]), np.ones(1, bool)
        coded = code_column(
            column, values, sizes.get(column), names.get(column), places, reading, away
        )
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


def _by_weights(
    columns: Iterable[str],
    agents: Sequence[str],
    labels: Mapping[str, Any],
    sizes: Mapping[str, int],
    names: Mapping[str, Names],
    reading: Reading,
) -> tuple[dict[str, int], dict[str, Names]]:
    """Sizes and names of latents that only the columns of their weights tell, by column."""
    weights = weight_columns(list(columns), agents)
    known = {
        argument: {
            agent: given[f"latent_{agent}"] for agent in agents if f"latent_{agent}" in given
        }
        for argument, given in (("num_latents", sizes), ("latent_names", names))
    }
    told = latents_of_weights(weights, dict(labels), known, reading)
    team = tuple(agents)
    return (
        declared_sizes("num_latents", told.get("num_latents"), team, "latent_"),
        declared_names("latent_names", told.get("latent_names"), team, "latent_"),
    )


def _seen_tables(
    source: Source, columns: Sequence[str], agents: Sequence[str], reading: Reading
) -> Iterator[pa.Table]:
    """The steps of a file with some columns, and with what it takes to tell which are steps.

    Episodes that are none are refused before any value is looked at, as in memory.
    """
    if not reading.drop_last:
        return (table for _, table, _ in runs_of(source, columns, reading))
    needed = list(dict.fromkeys([*(f"action_{agent}" for agent in agents), *columns]))
    return (table for _, table in whole_episodes(source, needed, reading))


def _distinct_values(
    source: Source, columns: Sequence[str], agents: Sequence[str], reading: Reading
) -> dict[str, pa.Array]:
    """The distinct values of some columns, in order of appearance, one null included."""
    import pyarrow as pa
    from pyarrow import compute

    found: dict[str, pa.Array] = {}
    needed = [*columns, *(f"{PRESENT}{agent}" for agent in agents)]
    for table in _seen_tables(source, needed, agents, reading) if columns else ():
        for name in (name for name in table.column_names if name in columns):
            distinct = pa.table({name: compute.unique(_told_of(name, table, agents))})
            if name in found:  # files may differ in the width of their numbers
                both = [pa.table({name: found[name]}), distinct]
                distinct = pa.concat_tables(both, promote_options="permissive")
            found[name] = compute.unique(distinct.column(name))
    return found


def _told_of(column: str, table: pa.Table, agents: Sequence[str]) -> pa.ChunkedArray:
    """A column without the cells of those who are away that count for nothing, as in memory."""
    cells = plain_values(table.column(column))
    counts = _counts(column, table, agents)
    return cells if counts.all() else cells.filter(counts)


def _counts(column: str, table: pa.Table, agents: Sequence[str]) -> Bool[np.ndarray, " rows"]:
    """Where a cell speaks of one who is there, or is a state that is there all the same."""
    of_one = column.startswith(("action_", "latent_"))
    spoken_of = [column.partition("_")[2]] if of_one else agents_in(column, agents)
    away = np.zeros(table.num_rows, bool)
    for agent in spoken_of:
        name = f"{PRESENT}{agent}"
        if name in table.column_names:
            away |= says_away(name, from_arrow(table.column(name)))
    if of_one or not away.any():
        return ~away
    return ~(away & absent(column, from_arrow(table.column(column))))


class _FirstSeen(NamedTuple):
    """Where the distinct values of a column are seen first, for messages."""

    source: Source
    column: str
    values: pa.Array
    agents: Sequence[str]
    reading: Reading

    def place(self, row: int) -> str:
        """File, episode and step of the first row that has the given one of the values."""
        import pyarrow as pa
        from pyarrow import compute

        wanted = self.values[row]
        columns = [self.column, *(f"{PRESENT}{agent}" for agent in self.agents)]
        if self.reading.drop_last:
            columns += [f"action_{agent}" for agent in self.agents]
        tables = whole_episodes(self.source, list(dict.fromkeys(columns)), self.reading)
        for file, table in tables:
            column = plain_values(table.column(self.column))
            wanted = wanted.cast(column.type)
            if not wanted.is_valid:
                same = compute.is_null(column)
            elif wanted.as_py() != wanted.as_py():
                same = compute.is_nan(column)
            else:
                same = compute.equal(column, wanted)
            same = compute.and_(same, pa.array(_counts(self.column, table, self.agents)))
            at = compute.index(same, True).as_py()
            if at >= 0:
                named = "episode" in table.column_names
                ids = from_arrow(table.column("episode")) if named else None
                place = episode_runs(ids, table.num_rows, self.reading).place(at)
                return place if len(self.source.files) == 1 else f"{file.path}, {place}"
        raise AssertionError("a value that was found is found again")
