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
from functools import cached_property, partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.demonstrations.coding import (
    MINUS_ONE,
    NOTHING,
    PLAIN,
    Coded,
    Names,
    Places,
    Reading,
    as_array,
    check_text,
    code_column,
    code_episodes,
    counted,
    distinct_values,
    is_a_label,
    is_a_name,
    items,
    labels_in,
    listed,
    normalised,
    normalised_keys,
    plain_numbers,
    refuse_alike,
    shown,
    texts_for_unknown,
    warn,
)
from btil.demonstrations.naming import agents_in
from btil.demonstrations.quantities import (
    checked_missing,
    checked_rewards,
    checked_weights,
    measures,
    presence,
    weights_of_sets,
    without_sets,
)

Columns = dict[str, Any]
Size = int | np.integer

# What a table on disk calls the column, or the array, that records sizes and names.
METADATA_KEY = "btil_metadata"
# Values of a parent that nobody saw, of one who is away, and of the step before the first: contexts
# of their own.
UNSEEN, AWAY, NONE_BEFORE = -1, -2, -3
VALUES_OF_NONE = {UNSEEN: "unseen", AWAY: "away", NONE_BEFORE: "none before"}
_MAX_INDEX = np.iinfo(np.int64).max
# Names that the tables, or the parents of a CPT, use for something else.
_RESERVED = frozenset(
    ["episode", "step", "actions", "latents", "next_state", "reward", METADATA_KEY]
)
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
        latent_weights: {agent: (steps, latents)}, for labels of somebody unsure: p(annotation |
            latent) up to a factor at every step. Not negative, and not all 0 at a step; all equal
            where nothing is said. Agents left out have none.
        present: whether each agent is there, (steps, agents) or a mapping {agent: (steps,)}: False
            while it is away, when it has no action, no latent, and no state variable with its
            name in theirs: what stands there all the same is left out. None: all always are.
        rewards: a number for each step, (steps,), or one per agent, (steps, agents) or a mapping.
            They are kept, and never learned from.
        continuous: measured quantities, a mapping {column: (steps,)}; NaN: not seen. With these
            `states` and `actions` may be None, or leave agents out: such have no actions.
        missing: "allow": an action or a state that is -1, NaN, None or blank is one that nobody
            saw; "refuse": it is an error.
        unknown_labels: texts (or numbers) that mean an unknown latent too, such as ["NA", "?"].
            None: texts that other tools take for nothing ("None", "NA", "nan", "null", ...) are
            refused, as nobody said what they are; with a sequence, also an empty one, all that it
            does not list are names.

    Texts in the data are turned into indices through the declared names; without declared names
    through the sorted list of the texts that occur in that column, which is then recorded as its
    names. They are numbers only where every text of the column is the plain decimal form of its
    number ("7", "-1", "2.0"): "07" and "1e1" are names. Two spellings of an accent (Unicode's
    composed and decomposed forms) are one text. Booleans count as 0 and 1. The rules are in
    `docs/reference/values.md`.

    Attributes:
        agents: names of the agents.
        actions: int64 (steps, agents), -1 where nobody saw it, or the agent is away or has none.
        latents: int64 (steps, agents), -1 where unknown.
        present: bool (steps, agents).
        rewards: float64 (steps,) or (steps, agents), or None.
        missing: whether an action or a state may be missing.

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
    present: Bool[np.ndarray, "steps agents"]
    rewards: Float[np.ndarray, "steps *agents"] | None
    missing: str
    _tells_presence: bool  # by an argument or column, though all may be there: parts of a file do
    _runs: _Runs
    _variables: dict[str, np.ndarray]
    _weights: dict[str, np.ndarray]
    _continuous: dict[str, np.ndarray]
    _sizes: dict[str, int]
    _names: dict[str, Names]

    def __init__(
        self,
        states: Any,
        actions: Any = None,
        latents: Any = None,
        episodes: Any = None,
        agents: Sequence[str] | None = None,
        num_states: Size | Mapping[str, Size] | None = None,
        num_actions: Size | Sequence[Size] | Mapping[str, Size] | None = None,
        num_latents: Size | Sequence[Size] | Mapping[str, Size] | None = None,
        state_names: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
        action_names: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
        latent_names: Sequence[str] | Mapping[str, Sequence[str] | None] | None = None,
        latent_weights: Mapping[str, Any] | None = None,
        present: Any = None,
        rewards: Any = None,
        continuous: Mapping[str, Any] | None = None,
        missing: str = "refuse",
        unknown_labels: Iterable[str | int] | None = None,
    ) -> None:
        unseen = checked_missing(missing) == "allow"
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
            latent_weights=latent_weights,
            present=present,
            rewards=rewards,
            continuous=continuous,
            reading=Reading(texts_for_unknown(unknown_labels), unseen=unseen),
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
        """Number of actions of each agent, in the order of `agents`; 0: it has none."""
        return tuple(self._sizes.get(f"action_{agent}", 0) for agent in self.agents)

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

    def value_text(self, column: str, value: int) -> str:
        """How a value of a column is called.

        Contexts have -1, -2 and -3 too: "unseen", "away" and "none before".

        Raises:
            ValueError: there is no such column.
        """
        names = self.value_names(column)
        return names[value] if value >= 0 else VALUES_OF_NONE[value]

    def _indices(self) -> dict[str, np.ndarray]:
        """The columns of a table with their indices, `episode` and `step` aside."""
        of_agents = [("action_", self.actions), ("latent_", self.latents)]
        return self._variables | {
            prefix + agent: indices[:, k]
            for prefix, indices in of_agents
            for k, agent in enumerate(self.agents)
            if prefix + agent in self._sizes
        }

    def _numbers(self) -> dict[str, np.ndarray]:
        """What else a table has: who is there, rewards, weights of latents, measured quantities."""
        columns: dict[str, np.ndarray] = {}
        if self._tells_presence:
            columns |= {
                f"present_{agent}": self.present[:, k] for k, agent in enumerate(self.agents)
            }
        for agent, weights in self._weights.items():
            column = f"latent_{agent}"
            names = self.value_names(column)
            columns |= {f"{column}[{n}]": weights[:, k] for k, n in enumerate(names)}
        if self.rewards is not None and self.rewards.ndim == 1:
            columns["reward"] = self.rewards
        elif self.rewards is not None:
            columns |= {
                f"reward_{agent}": self.rewards[:, k] for k, agent in enumerate(self.agents)
            }
        return columns | self._continuous

    # ------------------------------------------------------------------ what nobody saw

    @cached_property
    def away(self) -> bool:
        """Whether any agent is away at any step."""
        return not self.present.all()

    @cached_property
    def unseen(self) -> bool:
        """Whether there is an action or state that nobody saw, of an agent that was there."""
        acting = np.array(self.num_actions) > 0
        return bool(
            (self.present & acting & (self.actions < 0)).any()
            or any(((v < 0) & ~self.is_away(name)).any() for name, v in self._variables.items())
        )

    def is_away(self, variable: str) -> Bool[np.ndarray, " steps"]:
        """Where somebody is away of whom a state variable speaks."""
        spoken_of = agents_in(variable, self.agents) if self.away else ()
        away = np.zeros(self.num_steps, bool)
        for agent in spoken_of:
            away |= ~self.present[:, self.agents.index(agent)]
        return away

    @cached_property
    def stays(self) -> tuple[Int[np.ndarray, " stays"], ...]:
        """Of each agent, the rows at which a stay begins: it is there, and was not a step before.

        Of an agent that is always there, the first rows of the episodes.
        """
        begins = []
        for there in self.present.T:
            before = np.concatenate([[False], there[:-1]])
            before[self.episode_starts] = False
            begins.append(_frozen(np.flatnonzero(there & ~before)))
        return tuple(begins)

    # ------------------------------------------------------------------ columns and episodes

    @property
    def state_variables(self) -> dict[str, Int[np.ndarray, " steps"]]:
        """The state variables in order: {name: (steps,)}."""
        return dict(self._variables)

    @property
    def latent_weights(self) -> dict[str, Float[np.ndarray, "steps latents"]]:
        """p(annotation | latent) up to a factor, of the agents that have such: {agent: weights}."""
        return dict(self._weights)

    @property
    def continuous(self) -> dict[str, Float[np.ndarray, " steps"]]:
        """The measured quantities, NaN where nobody saw them: {column: (steps,)}."""
        return dict(self._continuous)

    @cached_property
    def states(self) -> Int[np.ndarray, " steps"]:
        """One index per step: the state variable, or the joint index of several.

        The joint index is row-major: the first variable is the most significant one.

        Raises:
            ValueError: the joint index would not fit into 64 bits, or nobody saw a state.
        """
        for name, values in self._variables.items():
            if (values < 0).any():
                place = self._runs.place(int(np.argmax(values < 0)))
                raise ValueError(
                    f"states: {name} is not known at {place}, so there is no joint index; use "
                    "state_variables"
                )
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
            episodes: indices of episodes (positions from 0), their ids where these are texts, or a
                boolean mask (episodes,).

        Raises:
            ValueError: an index out of range, an unknown id, an episode given twice (an episode can
                be repeated with `concatenate`), a mask of the wrong length, or nothing selected.

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
            actions=_by_agent(self.actions[rows], self),
            latents=self.latents[rows],
            episodes=self.episodes[rows],
            latent_weights={agent: one[rows] for agent, one in self._weights.items()},
            present=self.present[rows] if self._tells_presence else None,
            rewards=None if self.rewards is None else self.rewards[rows],
            continuous={name: values[rows] for name, values in self._continuous.items()},
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
        return self.replace(
            latents=np.where(dropped[:, None], -1, self.latents),
            latent_weights={
                agent: np.where(dropped[:, None], 1.0, weights)
                for agent, weights in self._weights.items()
            },
        )

    @cached_property
    def _unlabelled(self) -> Demonstrations:
        """One and the same object each time: what was found out of it can be found again."""
        if (self.latents < 0).all() and not self._weights:
            return self
        return self.replace(latents=np.full_like(self.latents, -1), latent_weights=None)

    def replace(self, **changes: Any) -> Demonstrations:
        """These demonstrations with some arguments of the constructor replaced.

        Args:
            **changes: arguments of the constructor, checked as there.

        Raises:
            ValueError: as in the constructor.

        Example:
            >>> demos = Demonstrations([0, 1], [0, 1], num_latents=2)
            >>> demos.replace(states=[1, 0]).states.tolist()
            [1, 0]
        """
        return Demonstrations(**(self.arguments() | changes))

    def arguments(self) -> dict[str, Any]:
        """Arguments of the constructor that make equal demonstrations."""
        return {
            "states": self._variables or None,
            "actions": _by_agent(self.actions, self),
            "latents": self.latents,
            "episodes": self.episodes,
            "agents": self.agents,
            "latent_weights": self._weights or None,
            "present": self.present if self._tells_presence else None,
            "rewards": self.rewards,
            "continuous": self._continuous or None,
            "missing": self.missing,
            **sizes_and_names(self),
        }

    def _episode_indices(self, episodes: Any) -> Int[np.ndarray, " chosen"]:
        allowed = f"indices from 0 to {self.num_episodes - 1}, or a mask ({self.num_episodes},)"
        chosen = np.atleast_1d(np.asarray(episodes))
        if chosen.size == 0:
            return np.zeros(0, np.int64)
        named = np.asarray(self.episode_ids).dtype.kind not in "iu"
        if named and chosen.dtype.kind == "U" and chosen.ndim == 1:
            chosen = np.array([self._episode_of_id(one) for one in chosen.tolist()])
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

    def _episode_of_id(self, name: str) -> int:
        found = np.flatnonzero(np.asarray(self.episode_ids, object) == name)
        if not len(found):
            raise ValueError(
                f"episodes: there is no episode {shown(name)}; the ids are "
                f"{listed(self.episode_ids)}"
            )
        return int(found[0])

    # ------------------------------------------------------------------ what a person sees

    def summary(self) -> Summary:
        """Sizes, lengths, the share of labelled steps, and the visited states; print it."""
        return summary_of([self])

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
            and np.array_equal(self.present, other.present)
            and _same_columns(self._weights, other._weights)
            and _same_columns(self._continuous, other._continuous)
            and _same_columns({"": self.rewards}, {"": other.rewards})
        )


def summary_of(parts: Iterable[Demonstrations]) -> "Summary":
    """What `Demonstrations.summary` counts, of demonstrations that come part by part.

    Args:
        parts: One at least, of the same sizes and names.
    """
    lengths: list[np.ndarray] = []
    visited: list[np.ndarray] = []
    shares: dict[str, Any] = dict.fromkeys(("labelled", "unseen", "away"), 0)
    unseen = False
    for part in parts:
        lengths.append(part.episode_lengths)
        acting = part.present & (np.array(part.num_actions) > 0)
        shares["labelled"] += (part.latents >= 0).sum(axis=0)
        shares["unseen"] += (acting & (part.actions < 0)).sum(axis=0)
        shares["away"] += (~part.present).sum(axis=0)
        unseen |= part.unseen
        states = np.array([*part.state_variables.values()], np.int64).reshape(-1, part.num_steps)
        visited.append(states[:, (states >= 0).all(axis=0)])  # where every variable was seen
        visited = [_distinct_columns(np.concatenate(visited, axis=1))]
    steps = np.concatenate(lengths)
    told = {name: tuple((count / steps.sum()).tolist()) for name, count in shares.items()}
    return Summary(
        num_episodes=len(steps),
        num_steps=int(steps.sum()),
        min_length=int(steps.min()),
        median_length=float(np.median(steps)),
        max_length=int(steps.max()),
        agents=part.agents,
        num_states=part.num_states,
        num_visited_states=visited[0].shape[1],
        num_actions=part.num_actions,
        num_latents=part.num_latents,
        share_labelled=told["labelled"],
        share_unseen=told["unseen"] if unseen else (),
        share_away=told["away"] if any(told["away"]) else (),
        continuous=tuple(part.continuous),
    )


def _distinct_columns(values: Int[np.ndarray, "variables k"]) -> Int[np.ndarray, "variables _"]:
    """The columns that differ; they are numbered anew at every row, so that numbers stay small."""
    codes = np.zeros(values.shape[1], np.int64)
    for row in values:
        distinct, own = np.unique(row, return_inverse=True)
        codes = np.unique(codes * len(distinct) + own, return_inverse=True)[1]
    return values[:, np.unique(codes, return_index=True)[1]]


def refuse_gaps(demos: Demonstrations, what: str, instead: str) -> None:
    """Refuse demonstrations with something that nobody saw, members who go, or weighed latents.

    Args:
        demos: The demonstrations.
        what: What cannot be done with them.
        instead: What to do.

    Raises:
        ValueError: Naming what there is of this, and where to go.
    """
    found = [
        words
        for words, there_is in (
            ("actions or states that nobody saw", demos.unseen),
            ("members who come and go", demos.away),
            ("latent_weights", bool(demos.latent_weights)),
        )
        if there_is
    ]
    if found:
        raise ValueError(f"{what}: the demonstrations have {', '.join(found)}; {instead}")


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
        share_unseen: share of the steps with an action that nobody saw, of each agent; empty where
            all was seen.
        share_away: share of the steps at which each agent is away; empty where nobody ever is.
        continuous: columns of measured quantities.
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
    share_unseen: tuple[float, ...] = ()
    share_away: tuple[float, ...] = ()
    continuous: Names = ()

    def __str__(self) -> str:
        width = max(len("agent"), *map(len, self.agents))
        # A name and its size stay on one line.
        variables = ", ".join(f"{name}\xa0({size:,})" for name, size in self.num_states.items())
        indent = 16 * " "
        wrapped = textwrap.fill(variables, 80, initial_indent=indent, subsequent_indent=indent)
        possible = math.prod(self.num_states.values())
        lines = [
            f"episodes        {self.num_episodes:,}",
            f"steps           {self.num_steps:,}",
            f"episode length  {self.min_length:,} to {self.max_length:,}, "
            f"median {self.median_length:,g}",
            f"states          {wrapped.lstrip().replace(chr(0xA0), ' ')}",
            f"visited states  {self.num_visited_states:,} of "
            + (f"{possible:,}" if possible < 10**15 else f"10^{math.log10(possible):.0f}"),
        ]
        if self.continuous:
            lines.append(f"measured        {', '.join(self.continuous)}")
        shares = {"labelled": self.share_labelled, "unseen": self.share_unseen}
        shares = {name: of for name, of in (shares | {"away": self.share_away}).items() if of}
        heads = "".join(f"  {name:>8}" for name in shares)
        lines += ["", f"{'agent':{width}}  actions  latents{heads}"]
        for agent, *sizes, of in zip(
            self.agents, self.num_actions, self.num_latents, zip(*shares.values(), strict=True),
            strict=True,
        ):  # fmt: skip
            told = "".join(f"  {share:8.1%}" for share in of)
            lines.append(f"{agent:{width}}  {sizes[0]:7,}  {sizes[1]:7,}{told}")
        return "\n".join(lines)


def concatenate(parts: Sequence[Demonstrations]) -> Demonstrations:
    """All episodes of several demonstrations, one after the other.

    Sizes become the largest of the parts. Names declared in some parts hold for all. Where an
    episode id occurs in more than one part, or one part has texts as ids and another numbers,
    all episodes are renumbered 0, 1, 2, ... in order, so that all stay distinct.

    The parts may have different agents: one that a part does not have is away in it, and may lack
    there the state variables with its name in theirs.

    Args:
        parts: demonstrations of the same state variables, rewards and continuous columns; in the
            same order.

    Raises:
        ValueError: no parts, other columns, or names that differ.

    Example:
        >>> day = Demonstrations([0, 1], [0, 1], num_latents=2)
        >>> concatenate([day, day]).episode_ids.tolist()
        [0, 1]
    """
    parts = list(parts)
    if not parts:
        raise ValueError("concatenate: there is nothing to concatenate")
    first = parts[0]
    agents = tuple(dict.fromkeys(agent for part in parts for agent in part.agents))
    variables = tuple(dict.fromkeys(name for part in parts for name in part._variables))
    sizes = dict(first._sizes)
    names = dict(first._names)
    for number, part in enumerate(parts):
        _check_part(number, part, first)
        for column, texts in part._names.items():
            if names.setdefault(column, texts) != texts:
                raise ValueError(
                    f"concatenate: the names of {column} are {listed(texts)} in part {number}, "
                    f"but {listed(names[column])} before it"
                )
        for column, size in part._sizes.items():
            sizes[column] = max(sizes.get(column, size), size)
    joined = partial(_joined, parts)
    acting = [agent for agent in agents if f"action_{agent}" in sizes]
    weighed = [agent for agent in agents if any(agent in part._weights for part in parts)]
    tells_presence = any(part._tells_presence or part.agents != agents for part in parts)
    return Demonstrations(
        states={name: joined(name) for name in variables} or None,
        actions={agent: joined(f"action_{agent}") for agent in acting} or None,
        latents={agent: joined(f"latent_{agent}") for agent in agents},
        episodes=_joined_episodes(parts),
        agents=agents,
        latent_weights={a: _joined_weights(parts, a, sizes[f"latent_{a}"]) for a in weighed},
        present={a: _joined_presence(parts, a) for a in agents} if tells_presence else None,
        rewards=(
            None
            if first.rewards is None
            else np.concatenate([part.rewards for part in parts if part.rewards is not None])
        ),
        continuous={
            name: np.concatenate([part._continuous[name] for part in parts])
            for name in first._continuous
        },
        missing="allow" if any(part.missing == "allow" for part in parts) else "refuse",
        **as_arguments(variables, agents, sizes, names),
    )


def _joined(parts: Sequence[Demonstrations], column: str) -> Int[np.ndarray, " steps"]:
    """A column of indices, -1 in parts that do not have it."""
    return np.concatenate(
        [part._indices().get(column, np.full(part.num_steps, -1)) for part in parts]
    )


def _joined_episodes(parts: Sequence[Demonstrations]) -> np.ndarray:
    """The episode of each step, by its id, or by numbers where ids would not stay distinct."""
    ids = [part.episode_ids for part in parts]
    lengths = np.concatenate([part.episode_lengths for part in parts])
    if len({values.dtype.kind for values in ids}) == 1:
        every = np.concatenate(ids)
        if len(np.unique(every)) == len(every):
            return np.repeat(every, lengths)
    return np.repeat(np.arange(len(lengths)), lengths)


def _joined_weights(
    parts: Sequence[Demonstrations], agent: str, size: int
) -> Float[np.ndarray, "steps latents"]:
    """Weights of an agent's latents, 1 in parts without any, 0 of latents a part does not know."""
    return np.concatenate(
        [
            np.pad(part._weights[agent], ((0, 0), (0, size - part._weights[agent].shape[1])))
            if agent in part._weights
            else np.ones((part.num_steps, size))
            for part in parts
        ]
    )


def _joined_presence(parts: Sequence[Demonstrations], agent: str) -> Bool[np.ndarray, " steps"]:
    return np.concatenate(
        [
            part.present[:, part.agents.index(agent)]
            if agent in part.agents
            else np.zeros(part.num_steps, bool)
            for part in parts
        ]
    )


def _check_part(number: int, part: Demonstrations, first: Demonstrations) -> None:
    """Refuse a part that does not have what the first has, but of those who are away in one."""
    agents = sorted({*first.agents, *part.agents})
    differing = {
        name
        for one, other in ((first, part), (part, first))
        for name in one._variables.keys() - other._variables.keys()
        if not agents_in(name, agents) - set(other.agents)
    }
    for what, wrong, expected, found in [
        ("state variables", differing, tuple(first._variables), tuple(part._variables)),
        ("continuous columns", None, tuple(first._continuous), tuple(part._continuous)),
        ("rewards of", None, _rewards_of(first), _rewards_of(part)),
    ]:
        if wrong or (wrong is None and expected != found):
            raise ValueError(
                f"concatenate: part {number} has the {what} {listed(found)}, "
                f"part 0 has {listed(expected)}"
            )


def _rewards_of(demos: Demonstrations) -> Names:
    if demos.rewards is None:
        return ()
    return ("the team",) if demos.rewards.ndim == 1 else demos.agents


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
    latent_weights: Any = None,
    present: Any = None,
    rewards: Any = None,
    continuous: Any = None,
    reading: Reading = PLAIN,
) -> tuple[dict[str, Any], list[str]]:
    """The fields of `Demonstrations`, from its arguments; and what is doubtful about them."""
    given = {} if continuous is None else continuous
    if given and actions is None and agents is None:
        agents = _agents_of(latents, latent_weights, present)
    state_columns, state_names = _state_columns(states, state_names, optional=bool(given))
    action_columns, team = _action_columns(actions, agents, optional=bool(given))
    variables, acting = tuple(state_columns), tuple(action_columns)
    _refuse_like_weights(team)
    measured = normalised_keys("continuous", given) if isinstance(given, Mapping) else {}
    of_agents = {f"{kind}_{agent}" for kind in ("present", "reward") for agent in team}
    for what, names_given in (("state variable", variables), ("continuous", measured)):
        for name in names_given:
            if name in of_agents or (name in measured and _is_taken(name)):
                raise ValueError(f"{what} {name!r}: this name has another meaning here")
    columns = {
        **state_columns,
        **{f"action_{agent}": values for agent, values in action_columns.items()},
        **{f"latent_{a}": values for a, values in _latent_columns(latents, team).items()},
    }
    measured = {name: as_array(str(name), values) for name, values in measured.items()}
    num_steps = common_length(measured | columns, episodes)
    runs = episode_runs(episodes, num_steps, reading)
    there = presence(present, team, num_steps, runs)
    everybody = np.ones((num_steps, len(team)), bool) if there is None else there
    for agent in team:  # in their order, whatever that of the mapping
        labels = columns.pop(f"latent_{agent}", None)
        columns[f"latent_{agent}"] = np.full(num_steps, -1) if labels is None else labels
    away = {} if there is None else _away(variables, team, there)
    doubts: list[str | None] = []
    for column, gone in away.items():
        if column in columns and column not in variables:
            doubts.append(_said_while_away(column, columns[column], gone, runs, reading))
            columns[column] = _blanked(columns[column], gone)
    names = {
        **declared_names("state_names", state_names, variables, ""),
        **declared_names("action_names", action_names, acting, "action_"),
        **declared_names("latent_names", latent_names, team, "latent_"),
    }
    sizes = {
        **declared_sizes("num_states", num_states, variables, ""),
        **declared_sizes("num_actions", num_actions, acting, "action_"),
        **declared_sizes("num_latents", num_latents, team, "latent_"),
    }
    sizes |= _sizes_of_weights(latent_weights, team, sizes | names)
    sets: dict[str, _Sets] = {}
    for agent in team:
        column = f"latent_{agent}"
        columns[column], found, size, texts = labels_and_sets(
            agent, columns[column], sizes, names, reading
        )
        sizes, names = sizes | size, names | texts
        if found.latents:
            sets[agent] = found
    coded = {
        column: code_column(
            column, values, sizes.get(column), names.get(column), runs, reading, away.get(column)
        )
        for column, values in columns.items()
    }
    none = np.full(num_steps, -1)
    of_latents = {agent: coded[f"latent_{agent}"] for agent in team}
    fields = {
        "agents": team,
        "_runs": runs,
        "_variables": {name: _frozen(coded[name].indices) for name in variables},
        "actions": _frozen(
            np.stack([coded[f"action_{a}"].indices if a in acting else none for a in team], axis=1)
        ),
        "latents": _frozen(np.stack([values.indices for values in of_latents.values()], axis=1)),
        "present": _frozen(everybody),
        "_tells_presence": present is not None,
        "missing": "allow" if reading.unseen else "refuse",
        "rewards": _frozen_or_none(checked_rewards(rewards, team, num_steps, runs)),
        "_continuous": _all_frozen(measures(continuous, variables, num_steps, runs)),
        "_sizes": {column: values.size for column, values in coded.items()},
        "_names": {c: values.names for c, values in coded.items() if values.names is not None},
    }
    latent_sizes = {agent: values.size for agent, values in of_latents.items()}
    weights = checked_weights(latent_weights, team, latent_sizes, everybody, runs)
    for agent, found in sets.items():
        weights[agent] = _within_sets(agent, found, weights.get(agent), of_latents[agent], runs)
    for agent, rows in weights.items():
        _refuse_weightless_labels(agent, rows, of_latents[agent].indices, runs)
    fields["_weights"] = {agent: _frozen(weights[agent]) for agent in team if agent in weights}
    doubts += [values.doubt for values in coded.values()]
    return fields, [doubt for doubt in doubts if doubt is not None]


class _Sets(NamedTuple):
    """Labels of an agent that say "one of these".

    Attributes:
        cells: The whole column, as it was given.
        latents: The latents of each such text.
    """

    cells: Any
    latents: dict[str, tuple[str, ...]]


def _away(
    variables: Sequence[str], team: Names, there: Bool[np.ndarray, "steps agents"]
) -> dict[str, Bool[np.ndarray, " steps"]]:
    """Where a column speaks of somebody who is away."""
    of_agents = {
        f"{kind}_{agent}": ~there[:, k]
        for k, agent in enumerate(team)
        for kind in ("action", "latent")
    }
    spoken_of = {name: [team.index(a) for a in agents_in(name, team)] for name in variables}
    return of_agents | {name: (~there[:, ks]).any(axis=1) for name, ks in spoken_of.items()}


def _said_while_away(
    column: str,
    values: Any,
    gone: Bool[np.ndarray, " steps"],
    places: Places,
    reading: Reading,
) -> str | None:
    """Doubt of a label, or an action's name, where the member is away: it is left out.

    The number of an action is no doubt: arrays have to hold some in that place. Labels need not,
    -1 is none.
    """
    codes, distinct = distinct_values(column, values)
    unknown = NOTHING | (reading.unknown_labels or frozenset())
    says = is_a_label if column.startswith("latent_") else is_a_name
    said = gone & np.array([*(says(value, unknown) for value in distinct), False])[codes]
    if not said.any():
        return None
    row = int(np.argmax(said))
    agent, others = column.partition("_")[2], int(said.sum()) - 1
    also = f" (and in {counted(others, 'other step')})" if others else ""
    return (
        f"{column}: {places.place(row)}: {shown(distinct[codes[row]])} is left out{also}, because "
        f"present_{agent} says that {agent} is away; correct the one or the other"
    )


def _sizes_of_weights(given: Any, team: Names, declared: Mapping[str, Any]) -> dict[str, int]:
    """Numbers of latents that nothing else tells: the weights of all latents do."""
    return {
        f"latent_{agent}": np.shape(weights)[1]
        for agent, weights in (given.items() if isinstance(given, Mapping) else ())
        if np.ndim(weights) == 2 and agent in team and f"latent_{agent}" not in declared
    }


def labels_and_sets(
    agent: str,
    labels: Any,
    sizes: Mapping[str, int],
    names: Mapping[str, Names],
    reading: Reading,
) -> tuple[Any, _Sets, dict[str, int], dict[str, Names]]:
    """Labels of an agent with nothing where they say "one of these", and where they do.

    Args:
        agent: The agent.
        labels: Its labels, as `as_array` gives them.
        sizes: Sizes that are declared, by column.
        names: Names that are declared, by column.
        reading: What the labels are taken for.

    Returns:
        The labels, the sets, and the size or names that only both together tell.
    """
    column = f"latent_{agent}"
    found = _Sets(*without_sets(column, labels, names.get(column)))
    if not found.latents:
        return labels, found, {}, {}
    left = _blanked(found.cells, np.isin(found.cells, list(found.latents)))
    return left, found, *_declared_by_sets(agent, found.latents, left, sizes, names, reading)


def _declared_by_sets(
    agent: str,
    sets: Mapping[str, tuple[str, ...]],
    labels: Any,
    sizes: Mapping[str, int],
    names: Mapping[str, Names],
    reading: Reading,
) -> tuple[dict[str, int], dict[str, Names]]:
    """Size or names of an agent's latents, where only the sets and the other labels tell them."""
    column = f"latent_{agent}"
    if column in names:
        return {}, {}
    parts = sorted(set().union(*sets.values(), labels_in(column, labels, reading)))
    plain, whole, _ = plain_numbers(parts)
    if not plain.all():
        unknown = reading.unknown_labels or NOTHING
        said = (one for one in distinct_values(column, labels)[1] if is_a_label(one, unknown))
        numbers = [one for one in said if not isinstance(one, str)]
        if numbers:
            raise ValueError(
                f"{column}: some steps have numbers ({listed(numbers)}), others names; write names "
                "in all"
            )
        return {}, declared_names("latent_names", parts, (agent,), "latent_")
    return ({} if column in sizes else {column: int(whole.max()) + 1}), {}


def _within_sets(
    agent: str,
    sets: _Sets,
    weights: Float[np.ndarray, "steps latents"] | None,
    latents: Coded,
    places: Places,
) -> Float[np.ndarray, "steps latents"]:
    """Weights of an agent's latents that are 0 outside the sets."""
    within = weights_of_sets(
        f"latent_{agent}", sets.cells, sets.latents, latents.size, latents.names, places
    )
    if weights is not None:
        within = weights * within
    empty = ~(within > 0).any(axis=1)
    if empty.any():
        row = int(np.argmax(empty))
        raise ValueError(
            f"latent_weights of {agent}: {places.place(row)}: the weights of all of "
            f"{shown(sets.cells[row])} are 0, but that is the label"
        )
    return within


def _refuse_weightless_labels(
    agent: str,
    weights: Float[np.ndarray, "steps latents"],
    labels: Int[np.ndarray, " steps"],
    places: Places,
) -> None:
    known = np.flatnonzero(labels >= 0)
    against = known[weights[known, labels[known]] == 0]
    if len(against):
        raise ValueError(
            f"latent_weights of {agent}: {places.place(int(against[0]))}: the weight of latent "
            f"{labels[against[0]]} is 0, but that is the label"
        )


def _agents_of(*by_agent: Any) -> list[Any] | None:
    """Names of agents that have no actions: the keys of a mapping, or one for each column."""
    for given in by_agent:
        if isinstance(given, Mapping):
            return list(given)
        if given is not None and np.ndim(given) == 2:
            return [f"agent_{k}" for k in range(np.shape(given)[1])]
    return ["agent_0"]


def _by_agent(actions: Int[np.ndarray, "steps agents"], demos: Demonstrations) -> Columns | None:
    """Actions of those that have any, as an argument of the constructor."""
    columns = {
        agent: actions[:, k]
        for k, (agent, size) in enumerate(zip(demos.agents, demos.num_actions, strict=True))
        if size
    }
    return columns or None


def _blanked(values: Any, away: Bool[np.ndarray, " steps"]) -> Any:
    """A column with nothing in it where somebody is away."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        mask = np.ma.getmaskarray(values) | away
        return np.ma.MaskedArray(np.ma.getdata(values), mask)
    cells = np.array(values, object)
    cells[away] = None
    return cells


def _all_frozen(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: _frozen(values) for name, values in columns.items()}


def _frozen_or_none(array: np.ndarray | None) -> np.ndarray | None:
    return None if array is None else _frozen(array)


def _same_columns(some: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether columns of numbers are the same, NaN being equal to NaN."""
    return list(some) == list(others) and all(
        other is not None and np.array_equal(values, other, equal_nan=True)
        if values is not None
        else other is None
        for values, other in zip(some.values(), others.values(), strict=True)
    )


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


def _state_columns(states: Any, state_names: Any, optional: bool) -> tuple[Columns, Any]:
    """{variable: values}, and the names of the values as a mapping, or as given."""
    if states is None and optional:
        return {}, state_names
    if is_table(states):
        columns = table_columns("states", states)
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
    if not columns and not optional:
        raise ValueError("states: there is no state variable; at least one is needed")
    _check_variables(list(columns))
    return {name: as_array(name, values) for name, values in columns.items()}, state_names


def _action_columns(actions: Any, agents: Any, optional: bool) -> tuple[Columns, Names]:
    """{agent: values} in the order of the agents, and all agents: `optional`, some have none."""
    order: list[Any] = []
    if agents is not None:
        order = [_agent(agent) for agent in items("agents", agents)]
    if actions is None and optional:
        actions = {}
    if is_table(actions):
        columns = table_columns("actions", actions)
        columns = {_agent(a): as_array(f"action_{a}", values) for a, values in columns.items()}
        order = list(columns) if agents is None else order
        if optional and set(columns) < set(order) and len(set(order)) == len(order):
            refuse_alike("agents", order)
            return {str(a): columns[a] for a in order if a in columns}, tuple(map(str, order))
        if set(order) != set(columns) or len(order) != len(columns):
            raise ValueError(f"actions: has {listed(columns)}, but agents is {listed(order)}")
    else:
        if actions is None:
            raise ValueError(
                "actions: None; without actions give continuous columns, which latents explain"
            )
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
    return {str(agent): columns[agent] for agent in order}, tuple(map(str, order))


def _agent(name: Any) -> Any:
    """The name of an agent, its accents composed."""
    check_text("agent", name)
    return normalised(name)


def _latent_columns(latents: Any, agents: Names) -> Columns:
    """{agent: values}; the agents with no labels at all are left out."""
    if latents is None:
        return {}
    if is_table(latents):
        columns = table_columns("latents", latents)
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


def is_table(values: Any) -> bool:
    """Whether columns can be taken out by name: a mapping, or a DataFrame."""
    return isinstance(values, Mapping) or (
        hasattr(values, "columns") and hasattr(values, "__getitem__")
    )


def table_columns(argument: str, table: Any) -> dict[Any, Any]:
    """{name: values} of what `is_table` is true of."""
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


def _is_taken(name: Any) -> bool:
    """Whether tables, or the parents of a CPT, use a name of a column for something else."""
    return name in _RESERVED or (isinstance(name, str) and name.startswith(("action_", "latent_")))


def _has_previous(name: str, variables: Sequence[Any]) -> bool:
    """Whether a name is that of a variable, or of an action, one step earlier."""
    earlier = name.removeprefix("previous_")
    return earlier in variables or earlier.startswith("action_")


def _refuse_like_weights(agents: Names) -> None:
    """Refuse agents whose labels a table would have in a column of another one's weights."""
    for agent in agents:
        for other in agents:
            if other.startswith(f"{agent}[") and other.endswith("]"):
                raise ValueError(
                    f"agent {other!r}: in a table latent_{other} holds weights of a latent of "
                    f"{agent!r}; give one of them another name"
                )


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
            _is_taken(name)
            or (name == "state" and len(variables) > 1)
            or (name.startswith("next_") and name.removeprefix("next_") in variables)
            or (name.startswith("previous_") and _has_previous(name, variables))
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
            "another one; the rows of an episode must be contiguous: sort the rows by episode"
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
