"""What was seen: recorded runs of a team, with the labels that are known.

`Demonstrations` holds the data D of the paper: for every step the task state, the joint
action, and, where somebody wrote it down, the latent of each agent. It is flat over steps;
an episode is a run of rows.

Everything is checked once, when an object is made, so that no later code has to.
"""

from __future__ import annotations

import contextlib
import math
import operator
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import numpy as np
from jaxtyping import Int

from btil.demonstrations.coding import (
    MINUS_ONE,
    PLAIN,
    Names,
    Reading,
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
    warn,
)

Columns = dict[str, Any]
Size = int | np.integer

# What a table on disk calls the column, or the array, that records sizes and names.
METADATA_KEY = "btil_metadata"
_MAX_INDEX = np.iinfo(np.int64).max
# Names that the tables, or the parents of a CPT, use for something else.
_RESERVED = frozenset(["episode", "step", "actions", "latents", "next_state", METADATA_KEY])
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
        fields, doubts = coded_fields(
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
        if episodes is None:
            return self._unlabelled
        chosen = np.zeros(self.num_episodes, bool)
        chosen[self._episode_indices(episodes)] = True
        dropped = np.repeat(chosen, self._runs.lengths)
        return self.replace(latents=np.where(dropped[:, None], -1, self.latents))

    @cached_property
    def _unlabelled(self) -> Demonstrations:
        """One and the same object each time: what was found out of it can be found again."""
        if (self.latents < 0).all():
            return self
        return self.replace(latents=np.full_like(self.latents, -1))

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
            **sizes_and_names(self),
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
        **as_arguments(tuple(first._variables), first.agents, sizes, names),
    )


def coded_fields(
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
    num_steps = common_length(columns, episodes)
    runs = episode_runs(episodes, num_steps, reading)
    for agent in team:  # in their order, whatever that of the mapping
        labels = columns.pop(f"latent_{agent}", None)
        columns[f"latent_{agent}"] = np.full(num_steps, -1) if labels is None else labels
    sizes = {
        **declared_sizes("num_states", num_states, variables, ""),
        **declared_sizes("num_actions", num_actions, team, "action_"),
        **declared_sizes("num_latents", num_latents, team, "latent_"),
    }
    names = {
        **declared_names("state_names", state_names, variables, ""),
        **declared_names("action_names", action_names, team, "action_"),
        **declared_names("latent_names", latent_names, team, "latent_"),
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


def sizes_and_names(demos: Demonstrations) -> dict[str, Any]:
    """Sizes and names of demonstrations, as the six arguments of the constructor."""
    return as_arguments(tuple(demos._variables), demos.agents, demos._sizes, demos._names)


def as_arguments(
    variables: Names, agents: Names, sizes: Mapping[str, int], names: Mapping[str, Names]
) -> dict[str, Any]:
    """Sizes and names by column, as the six arguments of the constructor."""
    kinds = [("state", "", variables), ("action", "action_", agents), ("latent", "latent_", agents)]
    arguments: dict[str, Any] = {}
    for kind, prefix, keys in kinds:
        arguments[f"num_{kind}s"] = {k: sizes[prefix + k] for k in keys if prefix + k in sizes}
        arguments[f"{kind}_names"] = {k: names[prefix + k] for k in keys if prefix + k in names}
    return arguments


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


def common_length(columns: Columns, episodes: Any) -> int:
    """The number of rows of all columns; refused where they differ."""
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


def declared_sizes(argument: str, declared: Any, keys: Names, prefix: str) -> dict[str, int]:
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


def declared_names(argument: str, declared: Any, keys: Names, prefix: str) -> dict[str, Names]:
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


class _Runs(NamedTuple):
    """The episodes as runs of rows: ids, first rows and lengths, all (episodes,)."""

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray

    def place(self, row: int) -> str:
        episode = int(np.searchsorted(self.starts, row, side="right")) - 1
        return f"episode {shown(self.ids[episode])}, step {row - self.starts[episode]}"


def episode_runs(episodes: Any, num_steps: int, reading: Reading = PLAIN) -> _Runs:
    """The runs of rows that are episodes."""
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
