"""What was seen: recorded runs of a team, with the labels that are known.

`Demonstrations` holds the data D of the paper: for every step the task state, the joint
action, and, where somebody wrote it down, the latent of each agent. It is flat over steps;
an episode is a run of rows. Tables on disk are read and written by `read_demonstrations` and
`write_demonstrations`.

Everything is checked once, when an object is made, so that no later code has to.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import operator
import os
import textwrap
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
from jaxtyping import Bool, Int

from btil.coding import (
    MINUS_ONE,
    PLAIN,
    Names,
    Reading,
    absent,
    as_array,
    check_text,
    code_column,
    code_episodes,
    counted,
    items,
    listed,
    normalised,
    normalised_keys,
    refuse_alike,
    shown,
    texts_for_unknown,
    untyped_episodes,
    warn,
)
from btil.files import replacing

if TYPE_CHECKING:
    import pyarrow as pa

Columns = dict[str, Any]
Size = int | np.integer

_MAX_INDEX = np.iinfo(np.int64).max
_METADATA_KEY = "btil_metadata"
_LARGEST_BLOCK = 2**31 - 1
_CSV_RECORD = "# btil:"
_RECORD_VERSION = 1
# Of a message of another library.
_LONGEST_TOLD = 1000
_NUMBERS_BEFORE = (
    "its values were numbers in the demonstrations seen before, and which text stands for which "
    "number is not said; write the numbers"
)
# Steps of a Parquet file's row groups: a unit to read at a time, some 10 MB of columns.
ROW_GROUP_STEPS = 2**17
# Names that the tables, or the parents of a CPT, use for something else.
_RESERVED = frozenset(["episode", "step", "actions", "latents", "next_state", _METADATA_KEY])
# What other tools call the row number when they write it out as a column.
_ROW_NUMBER_PREFIXES = ("Unnamed:", "__index_level_")


class Demonstrations:
    r"""Episodes of a team, step by step: states, joint actions, and the latents that are known.

    Row t of an episode m holds the state s_t, the joint action a_t taken in it, and the latents
    x_t held in it. Rows are flat over all episodes; each episode is one contiguous run of rows.
    The object is immutable: its arrays cannot be written, and inputs are copied.

    Args:
        states: whole numbers (steps,), which make one state variable called "state"; or a mapping
            (or DataFrame) {variable: (steps,)}; or (steps, k) with `state_names`.
        actions: whole numbers (steps, agents), or (steps,) for a team of one; or a mapping (or
            DataFrame) {agent: (steps,)}.
        latents: (steps, agents) or a mapping {agent: (steps,)}; -1, NaN, None, pandas' NA, a
            masked cell and a blank text all mean unknown. An agent left out of the mapping is
            unlabelled; None: nobody is labelled.
        episodes: (steps,) the episode id of each row, whole numbers or texts; the rows of an
            episode must be contiguous. None: all rows are one episode, with id 0.
        agents: names of the agents. Default: the keys of `actions`, else "agent_0", "agent_1", ...
        num_states: number of values of the one state variable, or a mapping {variable: number}.
        num_actions: number of actions, one for all agents or one per agent (a sequence or a
            mapping). Likewise `num_latents`. A size not declared is the number of names, and
            without names the largest value in the data plus one.
        num_latents: see `num_actions`. Must be declared (or named) for an agent with no label.
        state_names: with states (steps, k), a sequence of k texts names the *variables*. In all
            other cases it gives the *texts of the values*: a mapping {variable: texts}, or, for
            a single state variable, just the texts. With states (steps, k) the mapping's keys, in
            order, name the k variables, and a value of None leaves a variable's values unnamed.
        action_names: the text of each action: one sequence for all agents, or {agent: texts}.
        latent_names: the text of each latent: one sequence for all agents, or {agent: texts}.
        unknown_labels: texts (or numbers) that mean an unknown latent too, such as ["NA", "?"].
            None: texts that other tools take for nothing ("None", "NA", "nan", "null", ...) are
            refused, as nobody said what they are; with a sequence, also an empty one, all that it
            does not list are names.

    Texts in the data are turned into indices through the declared names; without declared names
    through the sorted list of the texts that occur in that column, which is then recorded as its
    names. They are numbers only where every text of the column is the plain decimal form of its
    number ("7", "-1", "2.0"): "07" and "1e1" are names. Two spellings of an accent (Unicode's
    composed and decomposed forms) are one text. Booleans count as 0 and 1. `docs/values.md` tells
    the rules.

    Attributes:
        agents: names of the agents.
        actions: int64 (steps, agents).
        latents: int64 (steps, agents), -1 where unknown.

    Raises:
        ValueError: anything out of range, not whole, missing where it may not be, of the wrong
            shape, an episode id that returns after another one, names that look alike in print,
            no steps at all. The message names column, episode, step, value and what is allowed.
            Nothing is clamped.

    Warns:
        DataWarning: a number of actions or latents that was not declared is larger than what
            occurs: 0 is missing where the values count from 1.

    Example:
        >>> demos = Demonstrations(
        ...     states=[0, 1, 1, 0],
        ...     actions={"alice": ["go", "go", "stay", "go"], "bob": [0, 1, 0, 1]},
        ...     latents={"alice": ["help", None, None, "wait"], "bob": [1, -1, -1, 0]},
        ...     episodes=[7, 7, 7, 8],
        ... )
        >>> demos
        Demonstrations(2 episodes, 4 steps, 1 state variable, agents: alice, bob)
        >>> demos.latents.tolist()
        [[0, 1], [-1, -1], [-1, -1], [1, 0]]
        >>> demos.latent_names
        {'alice': ('help', 'wait')}

    Source: the paper's "Problem setting" (demonstrations tau_m, and the labelled subset of them).
    """

    agents: Names
    actions: Int[np.ndarray, "steps agents"]
    latents: Int[np.ndarray, "steps agents"]
    _runs: _Runs
    _variables: dict[str, np.ndarray]
    _sizes: dict[str, int]
    _names: dict[str, Names]

    def __init__(
        self,
        states: Any,
        actions: Any,
        latents: Any = None,
        episodes: Any = None,
        agents: Sequence[str] | None = None,
        num_states: Size | Mapping[str, Size] | None = None,
        num_actions: Size | Sequence[Size] | Mapping[str, Size] | None = None,
        num_latents: Size | Sequence[Size] | Mapping[str, Size] | None = None,
        state_names: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
        action_names: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
        latent_names: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
        unknown_labels: Iterable[str | int] | None = None,
    ) -> None:
        fields, doubts = _coded_fields(
            states=states,
            actions=actions,
            latents=latents,
            episodes=episodes,
            agents=agents,
            num_states=num_states,
            num_actions=num_actions,
            num_latents=num_latents,
            state_names=state_names,
            action_names=action_names,
            latent_names=latent_names,
            reading=Reading(texts_for_unknown(unknown_labels)),
        )
        warn(doubts)
        # Assignment is refused, so the fields go straight into the dictionary.
        self.__dict__.update(fields)

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"Demonstrations are immutable: {name} cannot be set")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"Demonstrations are immutable: {name} cannot be deleted")

    # ------------------------------------------------------------------ sizes and names

    @property
    def num_steps(self) -> int:
        """Number of rows, over all episodes."""
        return len(self.actions)

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self._runs.ids)

    @property
    def num_agents(self) -> int:
        """Number of agents."""
        return len(self.agents)

    @property
    def num_states(self) -> dict[str, int]:
        """Number of values of each state variable."""
        return {name: self._sizes[name] for name in self._variables}

    @property
    def num_actions(self) -> tuple[int, ...]:
        """Number of actions of each agent, in the order of `agents`."""
        return tuple(self._sizes[f"action_{agent}"] for agent in self.agents)

    @property
    def num_latents(self) -> tuple[int, ...]:
        """Number of latents of each agent, in the order of `agents`."""
        return tuple(self._sizes[f"latent_{agent}"] for agent in self.agents)

    @property
    def state_names(self) -> dict[str, Names]:
        """The text of each value, for the state variables whose values have names."""
        return {name: self._names[name] for name in self._variables if name in self._names}

    @property
    def action_names(self) -> dict[str, Names]:
        """The text of each action, for the agents whose actions have names."""
        return self._names_of_agents("action_")

    @property
    def latent_names(self) -> dict[str, Names]:
        """The text of each latent, for the agents whose latents have names."""
        return self._names_of_agents("latent_")

    def _names_of_agents(self, prefix: str) -> dict[str, Names]:
        return {a: self._names[prefix + a] for a in self.agents if prefix + a in self._names}

    def value_names(self, column: str) -> Names:
        """The text of every index of a column: its names, or else "0", "1", ...

        Args:
            column: a state variable, "action_<agent>" or "latent_<agent>".

        Raises:
            ValueError: there is no such column.

        Example:
            >>> Demonstrations([0, 1], [0, 1], num_latents=2).value_names("latent_agent_0")
            ('0', '1')
        """
        if column not in self._sizes:
            raise ValueError(
                f"there is no column {column!r}; the columns are {listed(self._sizes)}"
            )
        return self._names.get(column) or tuple(map(str, range(self._sizes[column])))

    def _indices(self) -> dict[str, np.ndarray]:
        """The columns of a table with their indices, `episode` and `step` aside."""
        of_agents = [("action_", self.actions), ("latent_", self.latents)]
        return self._variables | {
            prefix + agent: indices[:, k]
            for prefix, indices in of_agents
            for k, agent in enumerate(self.agents)
        }

    # ------------------------------------------------------------------ columns and episodes

    @property
    def state_variables(self) -> dict[str, Int[np.ndarray, " steps"]]:
        """The state variables in order: {name: (steps,)}."""
        return dict(self._variables)

    @cached_property
    def states(self) -> Int[np.ndarray, " steps"]:
        """One index per step: the state variable, or the joint index of several.

        The joint index is row-major: the first variable is the most significant one.

        Raises:
            ValueError: the joint index would not fit into 64 bits.
        """
        if math.prod(self.num_states.values()) > _MAX_INDEX + 1:
            raise ValueError(
                "states: the joint index of the state variables would overflow 64 bits "
                f"(numbers of values: {self.num_states}); use state_variables"
            )
        joint = np.zeros(self.num_steps, np.int64)
        for name, values in self._variables.items():
            joint = joint * self._sizes[name] + values
        return _frozen(joint)

    @cached_property
    def episodes(self) -> np.ndarray:
        """The episode id of each row (steps,): int64, or text."""
        return _frozen(np.repeat(self._runs.ids, self._runs.lengths))

    @property
    def episode_ids(self) -> np.ndarray:
        """The ids of the episodes (episodes,), in order."""
        return self._runs.ids

    @property
    def episode_starts(self) -> Int[np.ndarray, " episodes"]:
        """The first row of each episode."""
        return self._runs.starts

    @property
    def episode_lengths(self) -> Int[np.ndarray, " episodes"]:
        """The number of steps of each episode."""
        return self._runs.lengths

    @cached_property
    def step_in_episode(self) -> Int[np.ndarray, " steps"]:
        """The step of each row within its episode: 0, 1, 2, ..."""
        first_rows = np.repeat(self._runs.starts, self._runs.lengths)
        return _frozen(np.arange(self.num_steps) - first_rows)

    # ------------------------------------------------------------------ other demonstrations

    def select(self, episodes: Any) -> Demonstrations:
        """Some of the episodes, in the order asked for; sizes and names stay.

        Args:
            episodes: indices of episodes (positions from 0, not ids), or a boolean mask
                (episodes,).

        Raises:
            ValueError: an index out of range or given twice (an episode can be repeated with
                `concatenate`), a mask of the wrong length, or nothing selected.

        Example:
            >>> demos = Demonstrations([0, 1, 1], [0, 0, 1], episodes=[5, 5, 6], num_latents=2)
            >>> demos.select([1]).episode_ids.tolist()
            [6]
        """
        chosen = self._episode_indices(episodes)
        if len(chosen) == 0:
            raise ValueError("episodes: nothing is selected; at least one episode is needed")
        lengths = self._runs.lengths[chosen]
        offsets = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows = np.repeat(self._runs.starts[chosen], lengths) + offsets
        return self.replace(
            states={name: values[rows] for name, values in self._variables.items()},
            actions=self.actions[rows],
            latents=self.latents[rows],
            episodes=self.episodes[rows],
        )

    def without_labels(self, episodes: Any = None) -> Demonstrations:
        """The same demonstrations with the labels dropped; sizes and names stay.

        Args:
            episodes: indices of episodes or a boolean mask, as in `select`: only their labels
                are dropped. None: all labels are.

        Raises:
            ValueError: as in `select`, but no episode at all is fine.
        """
        chosen = np.ones(self.num_episodes, bool)
        if episodes is not None:
            chosen[:] = False
            chosen[self._episode_indices(episodes)] = True
        dropped = np.repeat(chosen, self._runs.lengths)
        return self.replace(latents=np.where(dropped[:, None], -1, self.latents))

    def replace(self, **changes: Any) -> Demonstrations:
        """These demonstrations with some arguments of the constructor replaced.

        Args:
            **changes: arguments of the constructor, checked as there.

        Raises:
            ValueError: as in the constructor.

        Example:
            >>> demos = Demonstrations([0, 1], [0, 1])
            >>> demos.replace(states=[1, 0]).states.tolist()
            [1, 0]
        """
        same = {
            "states": self._variables,
            "actions": self.actions,
            "latents": self.latents,
            "episodes": self.episodes,
            "agents": self.agents,
            **_sizes_and_names(self),
        }
        return Demonstrations(**(same | changes))

    def _episode_indices(self, episodes: Any) -> Int[np.ndarray, " chosen"]:
        allowed = f"indices from 0 to {self.num_episodes - 1}, or a mask ({self.num_episodes},)"
        chosen = np.atleast_1d(np.asarray(episodes))
        if chosen.size == 0:
            return np.zeros(0, np.int64)
        if chosen.ndim != 1 or chosen.dtype.kind not in "biu":
            raise ValueError(f"episodes: {allowed} expected, got {episodes!r}")
        if chosen.dtype.kind == "b":
            if len(chosen) != self.num_episodes:
                raise ValueError(f"episodes: {allowed} expected, got a mask ({len(chosen)},)")
            return np.flatnonzero(chosen)
        outside = (chosen < 0) | (chosen >= self.num_episodes)
        if outside.any():
            raise ValueError(f"episodes: {allowed} expected, got {chosen[outside][0]}")
        values, counts = np.unique(chosen, return_counts=True)
        if (counts > 1).any():
            raise ValueError(
                f"episodes: {values[counts > 1][0]} is given twice; concatenate repeats episodes"
            )
        return chosen.astype(np.int64)

    # ------------------------------------------------------------------ what a person sees

    def summary(self) -> Summary:
        """Sizes, lengths, the share of labelled steps, and the visited states; print it."""
        visited = np.zeros(self.num_steps, np.int64)
        for values in self._variables.values():
            distinct, codes = np.unique(values, return_inverse=True)
            # Renumbered at every variable: both factors stay below the number of steps.
            visited = np.unique(visited * len(distinct) + codes, return_inverse=True)[1]
        lengths = self._runs.lengths
        return Summary(
            num_episodes=self.num_episodes,
            num_steps=self.num_steps,
            min_length=int(lengths.min()),
            median_length=float(np.median(lengths)),
            max_length=int(lengths.max()),
            agents=self.agents,
            num_states=self.num_states,
            num_visited_states=int(visited.max()) + 1,
            num_actions=self.num_actions,
            num_latents=self.num_latents,
            share_labelled=tuple((self.latents >= 0).mean(axis=0).tolist()),
        )

    def __repr__(self) -> str:
        return (
            f"Demonstrations({counted(self.num_episodes, 'episode')}, "
            f"{counted(self.num_steps, 'step')}, "
            f"{counted(len(self._variables), 'state variable')}, "
            f"agents: {', '.join(self.agents)})"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Demonstrations):
            return NotImplemented
        return (
            self.agents == other.agents
            and list(self._sizes.items()) == list(other._sizes.items())
            and self._names == other._names
            and self._runs.ids.dtype.kind == other._runs.ids.dtype.kind
            and np.array_equal(self._runs.ids, other._runs.ids)
            and np.array_equal(self._runs.lengths, other._runs.lengths)
            and np.array_equal(self.actions, other.actions)
            and np.array_equal(self.latents, other.latents)
            and all(np.array_equal(v, other._variables[k]) for k, v in self._variables.items())
        )


@dataclass(frozen=True)
class Summary:
    """What `Demonstrations.summary` counts; printing it gives a table.

    Attributes:
        num_episodes: number of episodes.
        num_steps: number of steps over all episodes.
        min_length: steps of the shortest episode.
        median_length: median number of steps.
        max_length: steps of the longest episode.
        agents: names of the agents.
        num_states: {state variable: number of values}.
        num_visited_states: how many different joint states occur in the data.
        num_actions: number of actions of each agent.
        num_latents: number of latents of each agent.
        share_labelled: share of the steps with a known latent, of each agent, from 0 to 1.
    """

    num_episodes: int
    num_steps: int
    min_length: int
    median_length: float
    max_length: int
    agents: Names
    num_states: dict[str, int]
    num_visited_states: int
    num_actions: tuple[int, ...]
    num_latents: tuple[int, ...]
    share_labelled: tuple[float, ...]

    def __str__(self) -> str:
        width = max(len("agent"), *map(len, self.agents))
        # A name and its size stay on one line.
        variables = ", ".join(f"{name}\xa0({size:,})" for name, size in self.num_states.items())
        indent = 16 * " "
        wrapped = textwrap.fill(variables, 100, initial_indent=indent, subsequent_indent=indent)
        possible = math.prod(self.num_states.values())
        lines = [
            f"episodes        {self.num_episodes:,}",
            f"steps           {self.num_steps:,}",
            f"episode length  {self.min_length:,} to {self.max_length:,}, "
            f"median {self.median_length:,g}",
            f"states          {wrapped.lstrip().replace(chr(0xA0), ' ')}",
            f"visited states  {self.num_visited_states:,} of "
            + (f"{possible:,}" if possible < 10**15 else f"10^{math.log10(possible):.0f}"),
            "",
            f"{'agent':{width}}  actions  latents  labelled",
        ]
        for agent, *sizes, share in zip(
            self.agents, self.num_actions, self.num_latents, self.share_labelled, strict=True
        ):
            lines.append(f"{agent:{width}}  {sizes[0]:7,}  {sizes[1]:7,}  {share:8.1%}")
        return "\n".join(lines)


def concatenate(parts: Sequence[Demonstrations]) -> Demonstrations:
    """All episodes of several demonstrations, one after the other.

    Sizes become the largest of the parts. Names declared in some parts hold for all. Where an
    episode id occurs in more than one part, or one part has texts as ids and another numbers,
    all episodes are renumbered 0, 1, 2, ... in order, so that all stay distinct.

    Args:
        parts: demonstrations of the same agents and state variables, in the same order.

    Raises:
        ValueError: no parts, other agents or state variables, or names that differ.

    Example:
        >>> day = Demonstrations([0, 1], [0, 1], num_latents=2)
        >>> concatenate([day, day]).episode_ids.tolist()
        [0, 1]
    """
    parts = list(parts)
    if not parts:
        raise ValueError("concatenate: there is nothing to concatenate")
    first = parts[0]
    sizes = dict(first._sizes)
    names = dict(first._names)
    for number, part in enumerate(parts[1:], start=1):
        for what, expected, found in [
            ("agents", first.agents, part.agents),
            ("state variables", tuple(first._variables), tuple(part._variables)),
        ]:
            if expected != found:
                raise ValueError(
                    f"concatenate: part {number} has the {what} {listed(found)}, "
                    f"part 0 has {listed(expected)}"
                )
        for column, texts in part._names.items():
            if names.setdefault(column, texts) != texts:
                raise ValueError(
                    f"concatenate: the names of {column} are {listed(texts)} in part {number}, "
                    f"but {listed(names[column])} before it"
                )
        for column, size in part._sizes.items():
            sizes[column] = max(sizes[column], size)
    ids = [part.episode_ids for part in parts]
    kinds = {values.dtype.kind for values in ids}
    all_ids = np.concatenate(ids) if len(kinds) == 1 else np.zeros(0)
    if len(kinds) > 1 or len(np.unique(all_ids)) < len(all_ids):
        all_ids = np.arange(sum(map(len, ids)))
    return Demonstrations(
        states={v: np.concatenate([p._variables[v] for p in parts]) for v in first._variables},
        actions=np.concatenate([part.actions for part in parts]),
        latents=np.concatenate([part.latents for part in parts]),
        episodes=np.repeat(all_ids, np.concatenate([part.episode_lengths for part in parts])),
        agents=first.agents,
        **_as_arguments(tuple(first._variables), first.agents, sizes, names),
    )


def _coded_fields(
    *,
    states: Any,
    actions: Any,
    latents: Any = None,
    episodes: Any = None,
    agents: Any = None,
    num_states: Any = None,
    num_actions: Any = None,
    num_latents: Any = None,
    state_names: Any = None,
    action_names: Any = None,
    latent_names: Any = None,
    reading: Reading = PLAIN,
) -> tuple[dict[str, Any], list[str]]:
    """The fields of `Demonstrations`, from its arguments; and what is doubtful about them."""
    state_columns, state_names = _state_columns(states, state_names)
    action_columns = _action_columns(actions, agents)
    variables, team = tuple(state_columns), tuple(action_columns)
    columns = {
        **state_columns,
        **{f"action_{agent}": values for agent, values in action_columns.items()},
        **{f"latent_{a}": values for a, values in _latent_columns(latents, team).items()},
    }
    num_steps = _common_length(columns, episodes)
    runs = _episode_runs(episodes, num_steps, reading)
    for agent in team:  # in their order, whatever that of the mapping
        labels = columns.pop(f"latent_{agent}", None)
        columns[f"latent_{agent}"] = np.full(num_steps, -1) if labels is None else labels
    sizes = {
        **_declared_sizes("num_states", num_states, variables, ""),
        **_declared_sizes("num_actions", num_actions, team, "action_"),
        **_declared_sizes("num_latents", num_latents, team, "latent_"),
    }
    names = {
        **_declared_names("state_names", state_names, variables, ""),
        **_declared_names("action_names", action_names, team, "action_"),
        **_declared_names("latent_names", latent_names, team, "latent_"),
    }
    coded = {
        column: code_column(column, values, sizes.get(column), names.get(column), runs, reading)
        for column, values in columns.items()
    }
    fields = {
        "agents": team,
        "_runs": runs,
        "_variables": {name: _frozen(coded[name].indices) for name in variables},
        "actions": _frozen(np.stack([coded[f"action_{a}"].indices for a in team], axis=1)),
        "latents": _frozen(np.stack([coded[f"latent_{a}"].indices for a in team], axis=1)),
        "_sizes": {column: values.size for column, values in coded.items()},
        "_names": {c: values.names for c, values in coded.items() if values.names is not None},
    }
    return fields, [values.doubt for values in coded.values() if values.doubt is not None]


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
) -> Demonstrations:
    """Read a table of demonstrations: `.csv`, `.parquet` or `.npz`, by the ending.

    A table has one row per step and the columns `episode, step, <state variables>,
    action_<agent>..., latent_<agent>...`. Without `episode` all rows are one episode; `step` may
    be left out, and must else count 0, 1, 2, ... in every episode; an agent without its latent
    column is unlabelled. Agents come in the order of their action columns; every column that is
    none of these is a state variable. An empty cell, a null of the file format and -1 are unknown
    latents. `docs/values.md` tells how values are read.

    Files made by `write_demonstrations` carry sizes and names, and come back equal. In other
    files they are found as in `Demonstrations`: so a second file in which one of the texts does
    not occur would get other indices. `like` reads it by the names and sizes of the first.

    Args:
        path: the file.
        like: demonstrations whose agents, state variables, sizes and names the file must follow.
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
    reading = Reading(texts_for_unknown(unknown_labels), like is not None, drop_last=drop_last)
    columns, record = _read_columns(path)
    with _naming(path):
        record = record if like is None else _record(like)
        demos, doubts = _from_columns(columns, record, declared, reading)
    warn(f"{path}: {doubt}" for doubt in doubts)
    return demos


def read_as_seen(
    path: str | os.PathLike[str],
    seen: Demonstrations,
    *,
    unknown_labels: Iterable[str | int] | None = None,
    drop_last: bool = False,
) -> Demonstrations:
    """Read another table of a team that was seen before, by the names of values seen then.

    As `read_demonstrations(path, like=seen)`, but the table need not have the same columns: those
    of `seen` must be there, more state variables may be. A state variable whose values are
    numbers may have values that were never seen.

    Args:
        path: the file.
        seen: demonstrations of the team.
        unknown_labels: as in `read_demonstrations`.
        drop_last: as in `read_demonstrations`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: as `read_demonstrations`; a column that `seen` has is missing.
    """
    path = Path(path)
    reading = Reading(texts_for_unknown(unknown_labels), by_names=True, drop_last=drop_last)
    columns, _ = _read_columns(path)
    declared = _sizes_and_names(seen)
    with _naming(path):
        agents, variables = _agents_and_variables(list(columns), None)
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
            name: size for name, size in seen.num_states.items() if name in seen.state_names
        }
        demos, _ = _from_columns(columns, None, declared | {"agents": seen.agents}, reading)
        for kind, keys in (
            ("state", seen.num_states),
            ("action", seen.agents),
            ("latent", seen.agents),
        ):
            theirs, ours = (getattr(one, f"{kind}_names") for one in (demos, seen))
            for key in keys:
                if key in theirs and key not in ours:
                    raise ValueError(f"{kind} of {key}: texts found, but {_NUMBERS_BEFORE}")
    grown = {
        name: max(size, seen.num_states.get(name, 0)) for name, size in demos.num_states.items()
    }
    return demos if grown == demos.num_states else demos.replace(num_states=grown)


def _read_columns(path: Path) -> tuple[Columns, dict[str, Any] | None]:
    """The columns of a table as they are in the file, and what is recorded of them."""
    read = _file_format(path).read
    with open(path, "rb") as handle:
        try:
            columns, record = read(handle)
            return normalised_keys("columns", columns), record
        # The libraries raise whatever comes on a damaged file; the file itself could be opened.
        except Exception as error:
            raise ValueError(f"{path}: {_told(error, path.suffix)}") from error


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What is refused is refused with the path before it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _told(error: Exception, ending: str) -> str:
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
    write = _file_format(path).write
    if not isinstance(demos, Demonstrations) and path.suffix.lower() != ".parquet":
        raise ValueError(f"{path}: only a .parquet file can be written part by part")
    with replacing(path) as temporary, open(temporary, "xb") as handle:
        write(demos, handle)


def _sizes_and_names(demos: Demonstrations) -> dict[str, Any]:
    return _as_arguments(tuple(demos._variables), demos.agents, demos._sizes, demos._names)


def _as_arguments(
    variables: Names, agents: Names, sizes: Mapping[str, int], names: Mapping[str, Names]
) -> dict[str, Any]:
    """Sizes and names by column, as the six arguments of the constructor."""
    kinds = [("state", "", variables), ("action", "action_", agents), ("latent", "latent_", agents)]
    arguments: dict[str, Any] = {}
    for kind, prefix, keys in kinds:
        arguments[f"num_{kind}s"] = {k: sizes[prefix + k] for k in keys if prefix + k in sizes}
        arguments[f"{kind}_names"] = {k: names[prefix + k] for k in keys if prefix + k in names}
    return arguments


# ---------------------------------------------------------------------- the input, as columns


def _state_columns(states: Any, state_names: Any) -> tuple[Columns, Any]:
    """{variable: values}, and the names of the values as a mapping, or as given."""
    if _is_table(states):
        columns = _table_columns("states", states)
    else:
        array = as_array("states", states)
        if array.ndim not in (1, 2):
            raise ValueError(f"states: (steps,) or (steps, variables) expected, got {array.shape}")
        if array.ndim == 1:
            return {"state": array}, state_names
        if state_names is None or isinstance(state_names, str):
            raise ValueError(
                f"states: has {array.shape[1]} columns; state_names must name these variables"
            )
        variables = items(
            "state_names", list(state_names) if isinstance(state_names, Mapping) else state_names
        )
        for name in variables:
            check_text("state_names", name)
        if len(variables) != array.shape[1] or len(set(variables)) != len(variables):
            raise ValueError(
                f"state_names: {array.shape[1]} different names of state variables expected, one "
                f"for each column of states; got {listed(variables)}"
            )
        columns = dict(zip(variables, _columns_of(array), strict=True))
        columns = normalised_keys("state_names", columns)
        state_names = dict(state_names) if isinstance(state_names, Mapping) else None
    if not columns:
        raise ValueError("states: there is no state variable; at least one is needed")
    _check_variables(list(columns))
    return {name: as_array(name, values) for name, values in columns.items()}, state_names


def _action_columns(actions: Any, agents: Any) -> Columns:
    """{agent: values} in the order of the agents."""
    order: list[Any] = []
    if agents is not None:
        order = [_agent(agent) for agent in items("agents", agents)]
    if _is_table(actions):
        columns = _table_columns("actions", actions)
        columns = {_agent(a): as_array(f"action_{a}", values) for a, values in columns.items()}
        order = list(columns) if agents is None else order
        if set(order) != set(columns) or len(order) != len(columns):
            raise ValueError(f"actions: has {listed(columns)}, but agents is {listed(order)}")
    else:
        array = as_array("actions", actions)
        if array.ndim not in (1, 2):
            raise ValueError(f"actions: (steps, agents) expected, got {array.shape}")
        parts = _columns_of(array)
        order = [f"agent_{k}" for k in range(len(parts))] if agents is None else order
        if len(order) != len(parts) or len(set(order)) != len(order):
            raise ValueError(
                f"actions: has {counted(len(parts), 'column')}, one for each agent; "
                f"agents is {listed(order)}"
            )
        columns = dict(zip(order, parts, strict=True))
    if not columns:
        raise ValueError("actions: there is no agent; at least one is needed")
    refuse_alike("agents", order)
    return {str(agent): columns[agent] for agent in order}


def _agent(name: Any) -> Any:
    """The name of an agent, its accents composed."""
    check_text("agent", name)
    return normalised(name)


def _latent_columns(latents: Any, agents: Names) -> Columns:
    """{agent: values}; the agents with no labels at all are left out."""
    if latents is None:
        return {}
    if _is_table(latents):
        columns = _table_columns("latents", latents)
        for agent in columns:
            if agent not in agents:
                raise ValueError(
                    f"latent_{shown(agent)}: there is no such agent; the agents are "
                    f"{listed(agents)}"
                )
        return {agent: as_array(f"latent_{agent}", v) for agent, v in columns.items()}
    array = as_array("latents", latents)
    if array.ndim not in (1, 2) or len(_columns_of(array)) != len(agents):
        raise ValueError(
            f"latents: (steps, agents) with {counted(len(agents), 'agent')} expected, "
            f"got {array.shape}"
        )
    return dict(zip(agents, _columns_of(array), strict=True))


def _is_table(values: Any) -> bool:
    """Whether columns can be taken out by name: a mapping, or a DataFrame."""
    return isinstance(values, Mapping) or (
        hasattr(values, "columns") and hasattr(values, "__getitem__")
    )


def _table_columns(argument: str, table: Any) -> dict[Any, Any]:
    """{name: values} of what `_is_table` is true of."""
    named = table if isinstance(table, Mapping) else table.columns
    names = list(getattr(table, "column_names", named))  # Arrow's columns are the values
    if len(set(names)) < len(names):
        repeated = next(name for k, name in enumerate(names) if name in names[:k])
        raise ValueError(f"{argument}: column {shown(repeated)} occurs more than once")
    return normalised_keys(argument, {name: table[name] for name in names})


def _columns_of(array: Any) -> list[Any]:
    return [array] if array.ndim == 1 else [array[:, k] for k in range(array.shape[1])]


def _common_length(columns: Columns, episodes: Any) -> int:
    lengths = {}
    for column, values in columns.items():
        if values.ndim != 1:
            raise ValueError(f"{column}: one value per step expected, got shape {values.shape}")
        lengths[column] = len(values)
    if episodes is not None:
        ids = as_array("episode", episodes)
        if ids.ndim != 1:
            raise ValueError(f"episodes: one id per step expected, got shape {ids.shape}")
        lengths["episode"] = len(ids)
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{column} {length}" for column, length in lengths.items())
        raise ValueError(f"all columns must have the same number of steps; found: {counts}")
    num_steps = next(iter(lengths.values()))
    if num_steps == 0:
        raise ValueError("there are no steps; at least one is needed")
    return num_steps


# ---------------------------------------------------------------------- sizes and names


def _declared_sizes(argument: str, declared: Any, keys: Names, prefix: str) -> dict[str, int]:
    """The declared sizes by column."""
    if declared is None:
        return {}
    if isinstance(declared, Mapping):
        sizes = dict(declared)
    elif as_array(argument, declared).ndim == 0:
        if not prefix and len(keys) > 1:
            raise ValueError(
                f"{argument}: a mapping expected, one number for each of {listed(keys)}"
            )
        sizes = dict.fromkeys(keys, declared)
    else:
        if not prefix or len(declared) != len(keys):
            expected = f"one number for each of {listed(keys)}"
            raise ValueError(f"{argument}: {expected} expected, got {shown(declared)}")
        sizes = dict(zip(keys, declared, strict=True))
    sizes = normalised_keys(argument, sizes)
    _check_keys(argument, sizes, keys)
    checked = {}
    for key, size in sizes.items():
        whole = None
        if not isinstance(size, bool | np.bool_):
            with contextlib.suppress(TypeError):
                whole = operator.index(size)
        if whole is None or whole < 1:
            raise ValueError(
                f"{argument}: {key}: a whole number from 1 on expected, got {shown(size)}"
            )
        checked[prefix + key] = whole
    return checked


def _declared_names(argument: str, declared: Any, keys: Names, prefix: str) -> dict[str, Names]:
    """The declared names by column."""
    if declared is None:
        return {}
    if isinstance(declared, Mapping):
        declared = normalised_keys(argument, declared)
        _check_keys(argument, declared, keys)
        names = {key: texts for key, texts in declared.items() if texts is not None}
    else:
        if not prefix and len(keys) > 1:
            raise ValueError(
                f"{argument}: a mapping expected, from a state variable to the texts of its values"
            )
        # Gone through here: a generator has no second time.
        names = dict.fromkeys(keys, items(f"{argument}: {keys[0]}", declared))
    checked = {}
    for key, given in names.items():
        texts = tuple(items(f"{argument}: {key}", given))
        if not texts:
            raise ValueError(f"{argument}: {key}: there is no name; at least one is needed")
        for text in texts:
            check_text(f"{argument}: {key}", text)
        texts = tuple(normalised(str(text)) for text in texts)  # plain ones, not NumPy's
        if len(set(texts)) < len(texts):
            raise ValueError(f"{argument}: {key}: each name may occur once, got {listed(texts)}")
        refuse_alike(f"{argument}: {key}", texts)
        if prefix == "latent_" and not MINUS_ONE.isdisjoint(texts):
            raise ValueError(f"{argument}: {key}: -1 means unknown, it cannot be a name")
        checked[prefix + key] = texts
    return checked


def _check_keys(argument: str, given: Mapping[Any, Any], keys: Names) -> None:
    for key in given:
        if key not in keys:
            raise ValueError(f"{argument}: there is no {shown(key)}; allowed are {listed(keys)}")


def _check_variables(variables: Sequence[Any]) -> None:
    for name in variables:
        if isinstance(name, str) and (not name or name.startswith(_ROW_NUMBER_PREFIXES)):
            raise ValueError(
                f"state variable {name!r}: looks like the row numbers that another tool wrote; "
                "drop the column, or give it a name"
            )
        check_text("state variable", name)
    refuse_alike("state variables", variables)
    for name in variables:
        if (
            name in _RESERVED
            or name.startswith(("action_", "latent_"))
            or (name == "state" and len(variables) > 1)
            or (name.startswith("next_") and name.removeprefix("next_") in variables)
        ):
            raise ValueError(f"state variable {name!r}: this name has another meaning here")


# ---------------------------------------------------------------------- episodes


class _Runs(NamedTuple):
    """The episodes as runs of rows: ids, first rows and lengths, all (episodes,)."""

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    def place(self, row: int) -> str:
        episode = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"episode {shown(self.ids[episode])}, step {row - self.starts[episode]}"


def _episode_runs(episodes: Any, num_steps: int, reading: Reading = PLAIN) -> _Runs:
    if episodes is None:
        ids = np.zeros(num_steps, np.int64)
    else:
        ids = code_episodes(as_array("episode", episodes), reading=reading)
    starts = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1])
    first_seen = np.unique(ids[starts], return_index=True)[1]
    if len(first_seen) < len(starts):
        returns = np.setdiff1d(np.arange(len(starts)), first_seen)[0]
        row = starts[returns]
        raise ValueError(
            f"episode: row {row} (counted from 0): episode {shown(ids[row])} returns after "
            "another one; the rows of an episode must be contiguous"
        )
    return _Runs(
        ids=_frozen(ids[starts]),
        starts=_frozen(starts),
        lengths=_frozen(np.diff(starts, append=num_steps)),
    )


def _frozen(array: np.ndarray) -> np.ndarray:
    array = np.array(array)
    array.flags.writeable = False
    return array


# ---------------------------------------------------------------------- tables on disk


def _record(demos: Demonstrations) -> dict[str, Any]:
    """All that the columns of a table do not say."""
    return {
        "version": _RECORD_VERSION,
        "agents": list(demos.agents),
        "episode_ids": "number" if demos.episode_ids.dtype.kind == "i" else "text",
        **_sizes_and_names(demos),
    }


def _parsed_record(text: str) -> dict[str, Any]:
    kinds = {"version": int, "agents": list, "episode_ids": str}
    kinds |= {f"num_{kind}s": dict for kind in ("state", "action", "latent")}
    kinds |= {f"{kind}_names": dict for kind in ("state", "action", "latent")}
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"the recorded sizes and names are damaged: {error}") from None
    if not isinstance(record, dict) or not all(
        isinstance(record.get(field), kind)
        # `_from_columns` checks what is in them; names are also what codes are turned into.
        and (not field.endswith("_names") or all(map(_are_texts, record[field].values())))
        for field, kind in kinds.items()
    ):
        raise ValueError(f"the recorded sizes and names are damaged; fields: {listed(kinds)}")
    record = {
        field: _normalised(value) if isinstance(value, dict | list) else value
        for field, value in record.items()
    }
    if record["version"] != _RECORD_VERSION:
        raise ValueError(
            f"written in version {record['version']} of the table format; this version of btil "
            f"reads {_RECORD_VERSION}"
        )
    return record


def _normalised(recorded: Any) -> Any:
    """Recorded names, or what is recorded by names, with accents composed."""
    if isinstance(recorded, dict):
        return {
            key: _normalised(value) for key, value in normalised_keys("record", recorded).items()
        }
    if isinstance(recorded, list):
        return [unicodedata.normalize("NFC", x) if isinstance(x, str) else x for x in recorded]
    return recorded


def _are_texts(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _from_columns(
    columns: Columns,
    record: dict[str, Any] | None,
    declared: Mapping[str, Any],
    reading: Reading = PLAIN,
) -> tuple[Demonstrations, list[str]]:
    """Demonstrations from the columns of a table, and doubts; `declared` goes before `record`."""
    agents, variables = _agents_and_variables(list(columns), record)
    of_agents = [f"{kind}_{agent}" for kind in ("action", "latent") for agent in agents]
    expected = ["episode", "step", *variables, *of_agents]
    for column in columns:
        if column not in expected:
            raise ValueError(f"unknown column {column!r}; allowed are {listed(expected)}")
    if not agents:
        raise ValueError(f"there is no column action_<agent>; the columns are {listed(columns)}")
    if not variables:
        raise ValueError(f"there is no state variable; the columns are {listed(columns)}")
    for column in [*variables, *of_agents[: len(agents)]]:
        if column not in columns:
            raise ValueError(f"column {column!r} is missing; the columns are {listed(columns)}")

    if reading.drop_last:
        columns = _without_last(columns, agents, reading)
    # A file that is read part by part has a record by now, though it was foreign.
    reading = reading._replace(foreign=reading.foreign or (record is None and not reading.by_names))
    arguments = {"agents": agents, **declared}
    for kind in ("state", "action", "latent"):
        size, names = f"num_{kind}s", f"{kind}_names"
        if record is not None and names not in declared:
            arguments[names] = record[names]
            arguments.setdefault(size, record[size])
    fields, doubts = _coded_fields(
        states={variable: columns[variable] for variable in variables},
        actions={agent: columns[f"action_{agent}"] for agent in agents},
        latents={a: columns[f"latent_{a}"] for a in agents if f"latent_{a}" in columns},
        episodes=columns.get("episode"),
        **arguments,
        reading=reading,
    )
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
        _check_steps(columns["step"], demos)
    return demos, doubts


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
    runs = _episode_runs(ids, _common_length(arrays, ids), reading)
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


def _agents_and_variables(
    columns: Sequence[str], record: dict[str, Any] | None
) -> tuple[list[str], list[str]]:
    """Agents and state variables of a table, as recorded or told by the names of its columns."""
    if record is not None:
        return record["agents"], list(record["num_states"])
    agents = [c.removeprefix("action_") for c in columns if c.startswith("action_")]
    known = {"episode", "step", *(f"action_{agent}" for agent in agents)}
    return agents, [c for c in columns if c not in known and not c.startswith("latent_")]


def _check_steps(values: Any, demos: Demonstrations) -> None:
    array = as_array("step", values)
    _common_length({"step": array, "episode": demos.episodes}, None)
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
        raise ValueError(
            f"step: {demos._runs.place(row)}: found {steps[row]}; the steps of an episode must "
            f"count 0, 1, 2, ... in this order; {remedy}"
        )


def _arrow_table(demos: Demonstrations) -> pa.Table:
    """The demonstrations as a table; named values are coded texts, unknown latents null."""
    import pyarrow as pa

    def coded(indices: np.ndarray, texts: Sequence[str]) -> pa.Array:
        known = pa.array(indices.astype(np.int32), mask=indices < 0)
        return pa.DictionaryArray.from_arrays(known, pa.array(texts, pa.string()))

    ids = demos.episode_ids
    if ids.dtype.kind == "i":
        columns = {"episode": pa.array(demos.episodes)}
    else:
        of_rows = np.repeat(np.arange(demos.num_episodes), demos.episode_lengths)
        columns = {"episode": coded(of_rows, ids.tolist())}
    columns["step"] = pa.array(demos.step_in_episode)
    for column, indices in demos._indices().items():
        names = demos._names.get(column)
        columns[column] = (
            pa.array(indices, mask=indices < 0) if names is None else coded(indices, names)
        )
    return pa.table(columns)


def _write_csv(demos: Demonstrations, handle: BinaryIO) -> None:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    table = _arrow_table(demos)
    header = io.StringIO()
    header.write(f"{_CSV_RECORD} {json.dumps(_record(demos))}\n")
    csv.writer(header, lineterminator="\n").writerow(table.column_names)
    handle.write(header.getvalue().encode("utf-8"))
    texts = [
        column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
        for column in table.columns
    ]
    options = arrow_csv.WriteOptions(include_header=False)
    arrow_csv.write_csv(pa.table(texts, names=table.column_names), handle, options)


def _read_csv(handle: BinaryIO) -> tuple[Columns, dict[str, Any] | None]:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    record = None
    with _telling_of_encoding(handle):
        line = handle.readline().decode("utf-8-sig")
        if line.startswith(_CSV_RECORD):
            record = _parsed_record(line.removeprefix(_CSV_RECORD))
            line = handle.readline().decode("utf-8")
    header = [name.strip() for name in next(csv.reader([line]), [])]
    _check_no_repeats(header)
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


def _write_parquet(demos: Demonstrations | Iterable[Demonstrations], handle: BinaryIO) -> None:
    from pyarrow import parquet

    parts = iter([demos] if isinstance(demos, Demonstrations) else demos)
    first = next(parts, None)
    if first is None:
        raise ValueError("there is no part to write; at least one is needed")
    record = _record(first)
    metadata = {_METADATA_KEY: json.dumps(record)}
    table = _arrow_table(first).replace_schema_metadata(metadata)
    seen = set(first.episode_ids.tolist())
    with parquet.ParquetWriter(handle, table.schema, write_page_checksum=True) as writer:
        writer.write_table(table, ROW_GROUP_STEPS)
        for number, part in enumerate(parts, start=1):
            other = _record(part)
            for field, expected in record.items():
                if other[field] != expected:
                    raise ValueError(
                        f"part {number}: {field} is {other[field]}, in part 0 {expected}; declare "
                        "the same sizes and names for all parts"
                    )
            ids = part.episode_ids.tolist()
            if not seen.isdisjoint(ids):
                again = next(one for one in ids if one in seen)
                raise ValueError(
                    f"part {number}: episode {again!r} is in an earlier part too; give its "
                    "episodes other ids: part.replace(episodes=...)"
                )
            seen.update(ids)
            table = _arrow_table(part).replace_schema_metadata(metadata)
            writer.write_table(table, ROW_GROUP_STEPS)


def _read_parquet(handle: BinaryIO) -> tuple[Columns, dict[str, Any] | None]:
    from pyarrow import parquet

    table = parquet.ParquetFile(handle, page_checksum_verification=True).read()
    _check_no_repeats(table.column_names)
    return _columns_from_arrow(table), _record_of_schema(table.schema)


def _record_of_schema(schema: pa.Schema) -> dict[str, Any] | None:
    """What `write_demonstrations` recorded in a Parquet file, None where another tool wrote it."""
    text = (schema.metadata or {}).get(_METADATA_KEY.encode())
    return None if text is None else _parsed_record(text.decode("utf-8"))


def _columns_from_arrow(table: pa.Table) -> Columns:
    return {name: _from_arrow(table.column(name)) for name in table.column_names}


def _from_arrow(column: pa.ChunkedArray) -> Any:
    """A column as NumPy or pandas holds it, without turning whole numbers into floats."""
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return column.dictionary_encode().to_pandas()
    if pa.types.is_dictionary(kind):
        return column.to_pandas()
    if pa.types.is_integer(kind) and column.null_count:
        missing = column.is_null().to_numpy()
        return np.ma.MaskedArray(column.fill_null(0).to_numpy(), missing)
    return column.to_numpy()


def _write_npz(demos: Demonstrations, handle: BinaryIO) -> None:
    arrays = {
        "episode": demos.episodes,
        "step": demos.step_in_episode,
        **demos._indices(),
        _METADATA_KEY: np.array(json.dumps(_record(demos))),
    }
    # As numpy.savez_compressed does, which cannot write a column called "file".
    with zipfile.ZipFile(handle, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _read_npz(handle: BinaryIO) -> tuple[Columns, dict[str, Any] | None]:
    import pandas as pd

    with zipfile.ZipFile(handle) as archive:
        _check_no_repeats([name.removesuffix(".npy") for name in archive.namelist()])
        columns: Columns = {}
        for name in archive.namelist():
            with archive.open(name) as member:
                array = np.lib.format.read_array(member, allow_pickle=False)
            columns[name.removesuffix(".npy")] = array
    if _METADATA_KEY not in columns:
        return columns, None
    record = _parsed_record(str(columns.pop(_METADATA_KEY)))
    # As texts, so that they can be read by the names of other demonstrations too.
    for kind, prefix in [("state", ""), ("action", "action_"), ("latent", "latent_")]:
        for key, names in record[f"{kind}_names"].items():
            indices = columns.get(prefix + key)
            if indices is None or indices.dtype.kind not in "iu" or indices.ndim != 1:
                continue
            outside = (indices < -1) | (indices >= len(names))
            if outside.any():
                row = int(np.argmax(outside))
                raise ValueError(
                    f"{prefix}{key}: row {row} (counted from 0): {indices[row]} is not allowed; "
                    f"it has {counted(len(names), 'name')}"
                )
            _declared_names(f"{kind}_names", {key: names}, (key,), "")
            columns[prefix + key] = pd.Categorical.from_codes(indices, names)
    return columns, record


def _check_no_repeats(columns: Sequence[str]) -> None:
    repeated = [name for k, name in enumerate(columns) if name in columns[:k]]
    if repeated:
        raise ValueError(f"column {repeated[0]!r} occurs more than once")


class _FileFormat(NamedTuple):
    read: Callable[[BinaryIO], tuple[Columns, dict[str, Any] | None]]
    write: Callable[[Any, BinaryIO], None]


_FORMATS = {
    ".csv": _FileFormat(_read_csv, _write_csv),
    ".parquet": _FileFormat(_read_parquet, _write_parquet),
    ".npz": _FileFormat(_read_npz, _write_npz),
}


def _file_format(path: Path) -> _FileFormat:
    if path.suffix.lower() not in _FORMATS:
        raise ValueError(f"{path}: the ending must be one of {', '.join(_FORMATS)}")
    return _FORMATS[path.suffix.lower()]
