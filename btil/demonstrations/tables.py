"""Demonstrations as tables on disk: reading and writing files, whatever their format."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from btil.demonstrations.coding import (
    PLAIN,
    Reading,
    absent,
    as_array,
    code_column,
    items,
    labels_in,
    listed,
    normalised,
    normalised_keys,
    plain_numbers,
    shown,
    texts_for_unknown,
    warn,
)
from btil.demonstrations.data import (
    Columns,
    Demonstrations,
    Size,
    coded_fields,
    common_length,
    episode_runs,
    sizes_and_names,
)
from btil.demonstrations.formats import format_of
from btil.demonstrations.formats.record import record_of
from btil.demonstrations.naming import nearly
from btil.demonstrations.quantities import (
    checked_missing,
    weight_columns,
    weights_from_columns,
    without_sets,
)
from btil.files import check_there, replacing

# Of a message of another library.
_LONGEST_TOLD = 1000
_NUMBERS_BEFORE = (
    "its values were numbers in the demonstrations seen before, and which text means which "
    "number is not declared; write the numbers"
)


def read_demonstrations(
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
) -> Demonstrations:
    """Read a table of demonstrations: `.csv`, `.parquet` or `.npz`, by the ending.

    A table has one row per step and the columns `episode, step, <state variables>,
    action_<agent>..., latent_<agent>...`. Without `episode` all rows are one episode; `step` may
    be left out, and must else count 0, 1, 2, ... in every episode; an agent without its latent
    column is unlabelled. Agents come in the order of their action columns; every column that is
    none of these is a state variable. An empty cell, a null of the file format and -1 are unknown
    latents. `docs/reference/values.md` tells how values are read.

    Further columns that are no state variables: `present_<agent>` (true or false: whether the
    agent is there), `reward` or `reward_<agent>` for every agent, and weights of latents,
    `latent_<agent>[<latent>]`. A label may name several latents with bars between them
    (`lift|carry`): it is one of these.

    Files made by `write_demonstrations` carry sizes and names, and come back equal. In other
    files they are found as in `Demonstrations`: so a second file in which one of the texts does
    not occur would get other indices. `like` reads it by the names and sizes of the first.

    Args:
        path: the file.
        like: demonstrations whose agents, state variables, sizes and names the file must follow;
            columns that would be further state variables are passed over.
            Texts go through these names; a text that is none of them is an error, and so is a
            number where values have names.
        num_states: declared as in `Demonstrations`, in place of what the file records. Likewise
            `num_actions`, `num_latents`, `state_names`, `action_names` and `latent_names`.
        num_actions: see `num_states`.
        num_latents: see `num_states`; must be given for an agent without any label.
        state_names: see `num_states`.
        action_names: see `num_states`.
        latent_names: see `num_states`.
        unknown_labels: texts that mean an unknown latent too, as in `Demonstrations`.
        drop_last: leave out the last row of an episode where no agent has an action in it: the
            state in which the episode ended is no step.
        missing: "allow": an action or a state that is blank or -1 was seen by nobody; "refuse":
            it is an error.
        continuous: columns that are measured quantities, kept as they are; a blank was seen by
            nobody.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another ending, a damaged file, an unknown or repeated column, steps that do
            not count up, and all that `Demonstrations` refuses. The message begins with the path.

    Warns:
        DataWarning: as in `Demonstrations`.

    Example:
        >>> train = read_demonstrations("train.csv")  # doctest: +SKIP
        >>> test = read_demonstrations("test.csv", like=train)  # doctest: +SKIP
    """
    path = Path(path)
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
    columns, record = _read_columns(path)
    with _naming(path):
        record = record if like is None else record_of(like)
        demos, doubts = from_columns(columns, record, declared, reading)
        doubts += misspelled(list(columns), record, reading)
    warn(f"{path}: {doubt}" for doubt in doubts)
    return demos


def reading_of(
    like: Demonstrations | None,
    unknown_labels: Iterable[str | int] | None,
    drop_last: bool,
    missing: str,
    continuous: Sequence[str],
) -> Reading:
    """What the readers are told of values, checked."""
    return Reading(
        texts_for_unknown(unknown_labels),
        by_names=like is not None,
        drop_last=drop_last,
        unseen=checked_missing(missing) == "allow",
        continuous=tuple(map(str, items("continuous", continuous))),
        known=None if like is None else tuple(like.num_states),
    )


def with_record(reading: Reading, record: Mapping[str, Any]) -> Reading:
    """What values are taken for, with what a file records of that."""
    return reading._replace(
        unseen=reading.unseen or record.get("missing") == "allow",
        continuous=reading.continuous or tuple(record.get("continuous", ())),
    )


def read_as_seen(
    path: str | os.PathLike[str],
    seen: Demonstrations,
    *,
    unknown_labels: Iterable[str | int] | None = None,
    drop_last: bool = False,
    missing: str = "refuse",
) -> Demonstrations:
    """Read another table of a team that was seen before, by the names of values seen then.

    As `read_demonstrations(path, like=seen)`, but the table need not have the same columns: those
    of `seen` must be there; others are passed over. A state variable whose values are
    numbers may have values that were never seen.

    Args:
        path: the file.
        seen: demonstrations of the team.
        unknown_labels: as in `read_demonstrations`.
        drop_last: as in `read_demonstrations`.
        missing: as in `read_demonstrations`; "allow" also where `seen` was read so.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: as `read_demonstrations`; a column that `seen` has is missing.
    """
    path = Path(path)
    reading = reading_of(seen, unknown_labels, drop_last, missing, list(seen.continuous))
    reading = reading._replace(unseen=reading.unseen or seen.missing == "allow")
    columns, _ = _read_columns(path)
    declared = sizes_and_names(seen)
    with _naming(path):
        agents, variables = agents_and_variables(list(columns), None, reading)
        for agent in seen.agents:
            if agent not in agents:
                raise ValueError(
                    f"there is no column 'action_{agent}'; agents with actions are "
                    f"{listed(agents)}, those seen before {listed(seen.agents)}"
                )
        for agent in agents:
            if agent not in seen.agents:
                raise ValueError(
                    f"column 'action_{agent}': there was no such agent; those seen before are "
                    f"{listed(seen.agents)}"
                )
        for variable in seen.num_states:
            if variable not in variables:
                raise ValueError(
                    f"state variable {variable!r} is missing; the columns are {listed(columns)}"
                )
        declared["num_states"] = {
            name: size
            for name, size in seen.num_states.items()
            if name in seen.state_names or absent(name, as_array(name, columns[name])).all()
        }
        demos, doubts = from_columns(columns, None, declared | {"agents": seen.agents}, reading)
        doubts += misspelled(list(columns), None, reading)
        for kind, keys in (
            ("state", seen.num_states),
            ("action", seen.agents),
            ("latent", seen.agents),
        ):
            theirs, ours = (getattr(one, f"{kind}_names") for one in (demos, seen))
            for key in keys:
                if key in theirs and key not in ours:
                    raise ValueError(f"{kind} of {key}: texts found, but {_NUMBERS_BEFORE}")
    warn(f"{path}: {doubt}" for doubt in doubts)
    grown = {
        name: max(size, seen.num_states.get(name, 0)) for name, size in demos.num_states.items()
    }
    return demos if grown == demos.num_states else demos.replace(num_states=grown)


def _read_columns(path: Path) -> tuple[Columns, dict[str, Any] | None]:
    """The columns of a table as they are in the file, and what is recorded of them."""
    check_there(path)
    read = format_of(path).read
    with open(path, "rb") as handle:
        try:
            columns, record = read(handle)
            return normalised_keys("columns", columns), record
        # The libraries raise whatever comes on a damaged file; the file itself could be opened.
        except Exception as error:
            raise ValueError(f"{path}: {told(error, path.suffix)}") from error


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What is refused is refused with the path before it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def told(error: Exception, ending: str) -> str:
    """What is wrong with a file, in a line: our own words, or those of the library that read it."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text if len(text) <= _LONGEST_TOLD else f"{text[:_LONGEST_TOLD]}..."
    return text if type(error) is ValueError else f"damaged, or no {ending} table: {text}"


def write_demonstrations(
    demos: Demonstrations | Iterable[Demonstrations], path: str | os.PathLike[str]
) -> None:
    """Write demonstrations as a table: `.csv`, `.parquet` or `.npz`, by the ending.

    Nothing is lost: `read_demonstrations` gives back equal demonstrations. Named values are
    written as their texts (in `.npz` as indices), unknown latents as blanks (in `.npz` as -1).
    Sizes and names are recorded as JSON: in the first line of a CSV, which starts with `# btil:`
    (for pandas: `read_csv(path, skiprows=1)`), in the schema metadata of a Parquet file, and
    in the array `btil_metadata` of an NPZ file.

    A Parquet file can be written part by part, so that it may be larger than memory: of an
    iterable of demonstrations one part at a time is held (`open_demonstrations` reads it so).

    The file appears whole or not at all; an old one is replaced.

    Args:
        demos: what to write; for Parquet also an iterable of parts with the same agents, state
            variables, sizes and names, and no episode id in two of them.
        path: the file.

    Raises:
        ValueError: another ending, parts that are no Parquet, or that do not fit together.
        OSError: the file cannot be written.

    Example:
        >>> write_demonstrations(demos, "team.parquet")  # doctest: +SKIP
    """
    path = Path(path)
    write = format_of(path).write
    if not isinstance(demos, Demonstrations) and path.suffix.lower() != ".parquet":
        raise ValueError(f"{path}: only a .parquet file can be written part by part")
    with replacing(path) as temporary, open(temporary, "xb") as handle:
        write(demos, handle)


def from_columns(
    columns: Columns,
    record: dict[str, Any] | None,
    declared: Mapping[str, Any],
    reading: Reading = PLAIN,
) -> tuple[Demonstrations, list[str]]:
    """Demonstrations from the columns of a table, and doubts; `declared` goes before `record`."""
    if record is not None:
        reading = with_record(reading, record)
    agents, variables = agents_and_variables(list(columns), record, reading)
    acting = acting_agents(agents, list(columns), record, reading)
    if not agents:
        raise ValueError(
            f"there is no column action_<agent>; the columns are {listed(columns)}. Name what a "
            "member does action_<its name>, and what a coder says that it had in mind "
            "latent_<its name>"
        )
    labels = [f"latent_{agent}" for agent in agents]
    needed = [*variables, *(f"action_{agent}" for agent in acting), *reading.continuous]
    weights = weight_columns(list(columns), agents)
    beside = [f"{kind}_{agent}" for kind in ("present", "reward") for agent in agents]
    beside += ["reward", *itertools.chain.from_iterable(one.values() for one in weights.values())]
    expected = ["episode", "step", *needed, *labels, *beside]
    if record is None:
        _refuse_lookalikes(list(columns))
    for column in columns:
        if column not in expected and not _passed_over(column, reading):
            raise ValueError(f"unknown column {column!r}; allowed are {listed(expected)}")
    if not variables and not reading.continuous:
        raise ValueError(f"there is no state variable; the columns are {listed(columns)}")
    for column in needed:
        if column not in columns:
            raise ValueError(f"column {column!r} is missing; the columns are {listed(columns)}")

    if reading.drop_last:
        columns = _without_last(columns, acting, reading)
    # A file that is read part by part has a record by now, though it was foreign.
    reading = reading._replace(foreign=reading.foreign or (record is None and not reading.by_names))
    arguments = {"agents": agents, **declared}
    for kind in ("state", "action", "latent"):
        size, names = f"num_{kind}s", f"{kind}_names"
        if record is not None and names not in declared:
            arguments[names] = record[names]
            arguments.setdefault(size, record[size])
    names_of_latents = latents_of_weights(weights, columns, arguments, reading)
    fields, doubts = coded_fields(
        states={variable: columns[variable] for variable in variables} or None,
        actions={agent: columns[f"action_{agent}"] for agent in acting} or None,
        latents={a: columns[f"latent_{a}"] for a in agents if f"latent_{a}" in columns},
        episodes=columns.get("episode"),
        **arguments | names_of_latents,
        present=_of_agents("present", agents, columns),
        rewards=columns.get("reward", _of_agents("reward", agents, columns)),
        continuous={name: columns[name] for name in reading.continuous},
        reading=reading,
    )
    if weights:
        fields = _with_weights(fields, weights, columns)
    demos = Demonstrations.__new__(Demonstrations)
    demos.__dict__.update(fields)
    for kind in ("state", "action", "latent"):
        names = f"{kind}_names"
        if record is not None and names not in declared:
            # Texts where indices were recorded would be coded anew, in another order.
            for key in getattr(demos, names).keys() - record[names].keys():
                raise ValueError(
                    f"{kind} of {key}: texts found, but "
                    + (_NUMBERS_BEFORE if reading.by_names else "no names are recorded for it")
                )
    if "step" in columns:
        _check_steps(columns["step"], demos, "episode" in columns)
    return demos, doubts


def _of_agents(kind: str, agents: Sequence[str], columns: Columns) -> Columns | None:
    """The columns <kind>_<agent>, those that there are; None without any."""
    return {a: columns[f"{kind}_{a}"] for a in agents if f"{kind}_{a}" in columns} or None


def latents_of_weights(
    weights: Mapping[str, Mapping[str, str]],
    columns: Columns,
    arguments: Mapping[str, Any],
    reading: Reading,
) -> dict[str, Any]:
    """Names or numbers of the latents that only the columns of weights name."""
    names, sizes = (arguments.get(key) or {} for key in ("latent_names", "num_latents"))
    if not weights or not isinstance(names, Mapping) or not isinstance(sizes, Mapping):
        return {}
    names, sizes = dict(names), dict(sizes)
    for agent, latents in weights.items():
        if agent in names or agent in sizes:
            continue
        column = f"latent_{agent}"
        labels = as_array(column, columns.get(column, np.zeros(0, object)))
        sets = without_sets(column, labels, None)[1]
        singles = labels_in(column, labels, reading) - {normalised(text) for text in sets}
        found = sorted(singles.union(latents, *sets.values()))
        plain, whole, _ = plain_numbers(found)
        if plain.all():
            sizes[agent] = int(whole.max()) + 1
        else:
            names[agent] = found
    return {"latent_names": names, "num_latents": sizes}


def _with_weights(
    fields: dict[str, Any], weights: Mapping[str, Mapping[str, str]], columns: Columns
) -> dict[str, Any]:
    """The fields of demonstrations, with the weights that a table has in columns."""
    demos = Demonstrations.__new__(Demonstrations)
    demos.__dict__.update(fields)
    given = dict(demos.latent_weights)
    for agent, latents in weights.items():
        names = demos.value_names(f"latent_{agent}")
        own = weights_from_columns(columns, latents, names, demos._runs)
        given[agent] = given.get(agent, 1.0) * own
    return dict(demos.replace(latent_weights=given).__dict__)


def _without_last(columns: Columns, agents: Sequence[str], reading: Reading) -> Columns:
    """A table without the last row of each episode where that row has no action of anybody."""
    keep = steps_to_keep(columns, agents, reading)
    return {column: values[keep] for column, values in columns.items()}


def steps_to_keep(
    columns: Columns, agents: Sequence[str], reading: Reading
) -> Bool[np.ndarray, " rows"]:
    """Which rows of a table are steps: all but an episode's last where nobody acts in it.

    Raises:
        ValueError: An episode would have no step left.
    """
    arrays = {column: as_array(column, values) for column, values in columns.items()}
    ids = arrays.pop("episode", None)
    runs = episode_runs(ids, common_length(arrays, ids), reading)
    last = runs.starts + runs.lengths - 1
    dropped = np.ones(len(last), bool)
    for agent in agents:
        column = f"action_{agent}"
        dropped &= absent(column, arrays[column])[last]
    alone = dropped & (runs.lengths == 1)
    if alone.any():
        raise ValueError(
            f"drop_last: episode {shown(runs.ids[int(np.argmax(alone))])} has one row, and that "
            "has no action; an episode needs a step"
        )
    keep = np.ones(int(runs.lengths.sum()), bool)
    keep[last[dropped]] = False
    return keep


def agents_and_variables(
    columns: Sequence[str], record: dict[str, Any] | None, reading: Reading = PLAIN
) -> tuple[list[str], list[str]]:
    """Agents and state variables of a table, as recorded or told by the names of its columns."""
    if record is not None:
        return record["agents"], list(record["num_states"])
    agents = [c.removeprefix("action_") for c in columns if c.startswith("action_")]
    if reading.continuous:  # an agent may do nothing but move
        labelled = [c.removeprefix("latent_") for c in columns if c.startswith("latent_")]
        agents = list(dict.fromkeys([*agents, *(c for c in labelled if not c.endswith("]"))]))
    known = {"episode", "step", "reward", *reading.continuous}
    known |= {f"{kind}_{a}" for kind in ("action", "present", "reward") for a in agents}
    variables = [c for c in columns if c not in known and not c.startswith("latent_")]
    return agents, [c for c in variables if reading.known is None or c in reading.known]


def _passed_over(column: str, reading: Reading) -> bool:
    """Whether nothing is read from a column: not seen before, and not about a member."""
    return reading.known is not None and not column.startswith(("action_", "latent_", "present_"))


def _refuse_lookalikes(columns: Sequence[str]) -> None:
    """Refuse labels of a member without actions who is called like one that has some."""

    def plain(name: str) -> str:
        return "".join(name.split()).replace("_", "").casefold()

    acting = {c.removeprefix("action_") for c in columns if c.startswith("action_")}
    called = {plain(agent): agent for agent in acting}
    for column in columns:
        agent = column.removeprefix("latent_")
        alike = called.get(plain(agent))
        if column.startswith("latent_") and agent not in acting and alike is not None:
            raise ValueError(
                f"column {column!r}: there is no 'action_{agent}', but there is 'action_{alike}'; "
                "write the member's name alike in both"
            )


def misspelled(
    columns: Sequence[str], record: dict[str, Any] | None, reading: Reading
) -> list[str]:
    """Doubts of columns that are nearly called like one with a meaning that is not there.

    Args:
        columns: The columns of a table.
        record: What it records of itself, or what is known of one seen before.
        reading: What its values are taken for.
    """
    if record is not None and not reading.by_names:  # btil wrote it
        return []
    agents, variables = agents_and_variables(columns, record, reading)
    kinds = ("action", "latent", "present", "reward")
    meaning = ["episode", "reward", *(f"{kind}_{a}" for kind in kinds for a in agents)]
    there = {"step", *meaning, *reading.continuous, *(reading.known or ())}
    lacking = [name for name in meaning if name not in columns]
    found = []
    for column in columns:
        alike = next((name for name in lacking if nearly(column, name)), None)
        if alike is not None and column not in there:
            taken = "is taken for a state variable" if column in variables else "is passed over"
            found.append(
                f"column {column!r} {taken}; if it is {alike!r}, which is not there, correct its "
                "name"
            )
    return found


def acting_agents(
    agents: Sequence[str], columns: Sequence[str], record: dict[str, Any] | None, reading: Reading
) -> list[str]:
    """The agents that have actions: all, but for those who are told by continuous columns."""
    if record is not None:
        return [agent for agent in agents if agent in record["num_actions"]]
    return [agent for agent in agents if f"action_{agent}" in columns]


def _check_steps(values: Any, demos: Demonstrations, has_episodes: bool) -> None:
    array = as_array("step", values)
    common_length({"step": array, "episode": demos.episodes}, None)
    steps, _, names, _ = code_column("step", array, None, None, demos._runs)
    if names is not None:
        raise ValueError(
            f"step: {demos._runs.place(0)}: {shown(names[steps[0]])} is not allowed; expected a "
            "whole number, counting 0, 1, 2, ... in every episode; leave the column step out if "
            "it is no count of steps"
        )
    wrong = steps != demos.step_in_episode
    if wrong.any():
        row = int(np.argmax(wrong))
        episode = demos.episodes == demos.episodes[row]
        remedy = (
            "they count from 1 here: subtract 1, or leave the column step out"
            if np.array_equal(steps[episode], demos.step_in_episode[episode] + 1)
            else "leave the column step out if the rows are all there and in order; where steps "
            "are missing, what is before and what is after are two episodes"
        )
        if not has_episodes:
            remedy += (
                ". Without a column 'episode' all rows are one episode: call the column that tells "
                "recordings apart 'episode'"
            )
        raise ValueError(
            f"step: {demos._runs.place(row)}: found {steps[row]}; the steps of an episode must "
            f"count 0, 1, 2, ... in this order; {remedy}"
        )
