"""Episodes of Minari datasets. Nothing of Minari is imported: its objects have all that is asked.

Spaces are asked for what those of Gymnasium have: `n` and `start` (Discrete), `nvec`
(MultiDiscrete), `spaces` (Dict, Tuple), `low` (Box).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.demonstrations import Demonstrations
from btil.demonstrations.coding import check_text, items, listed, shown

_FIELDS = ("id", "observations", "actions", "rewards", "terminations", "truncations")


def from_minari(
    episodes: Any,
    *,
    agents: Sequence[str] | None = None,
    observation_space: Any = None,
    action_space: Any = None,
    observation_names: Sequence[str] | None = None,
    action_names: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    latents: Any = None,
    num_latents: int | Mapping[str, int] | None = None,
    latent_names: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
) -> Demonstrations:
    r"""Read episodes of a Minari dataset.

    An episode of *h* actions has *h* + 1 observations. Row *t* holds observation *t*, the action
    taken in it and its reward; the last observation, after the last action, is no step and is left
    out.

    Observations of whole numbers become state variables, those of other numbers continuous
    columns; where the space is known, that of a Box is continuous whatever its numbers are. A
    vector becomes one column for each component. The names are those of the space's keys, joined
    by underscores and numbered: a Dict {"hand": Box(2), "held": Discrete(3)} gives `hand_0`,
    `hand_1` and `held`; an array alone gives `observation`, or `observation_0`, ...

    Actions of one agent are whole numbers; those of several come in a mapping {agent: actions}.
    Several discrete actions at once (MultiDiscrete) become their joint index, the first most
    significant. Actions that are no whole numbers become continuous columns `<agent>_action_0`,
    ..., and the agent has no action then.

    Args:
        episodes: Minari's EpisodeData objects, or whatever has `id`, `observations`, `actions`,
            `rewards`, `terminations` and `truncations`; or a MinariDataset, which has its spaces
            with it.
        agents: The agents: one name for actions that are no mapping (default "agent_0"), else
            keys of the mapping in their order.
        observation_space: Gymnasium's space of the observations, for sizes and kinds. Default:
            that of the dataset, else sizes are what occurs.
        action_space: Gymnasium's space of the actions; likewise.
        observation_names: The names of all columns of observations, in order.
        action_names: The text of each action, of all agents or {agent: texts}.
        latents: Labels of all steps of all episodes, as in `btil.Demonstrations`. Minari has none.
        num_latents: Number of latents, of all agents or {agent: number}. Default: 1, or what
            `latents` and `latent_names` say.
        latent_names: The text of each latent, of all agents or {agent: texts}.

    Returns:
        Demonstrations; the episode ids are those of Minari.

    Raises:
        ValueError: An episode that lacks a field, observations that are not one more than actions,
            an end before the last step, something outside its space, pictures. The message names
            episode, field, step and what is allowed.

    Example:
        >>> from types import SimpleNamespace
        >>> episode = SimpleNamespace(
        ...     id=0,
        ...     observations={"seat": np.array([0, 1, 2]), "hand": np.zeros((3, 2))},
        ...     actions=np.array([1, 0]),
        ...     rewards=np.array([0.0, 1.0]),
        ...     terminations=np.array([False, True]),
        ...     truncations=np.array([False, False]),
        ... )
        >>> demos = from_minari([episode])
        >>> demos.state_variables["seat"].tolist(), list(demos.continuous)
        ([0, 1], ['hand_0', 'hand_1'])

    Source:
        Minari's documentation, "EpisodeData" and "Dataset standards".
    """
    observation_space = _space_of(episodes, "observation_space", observation_space)
    action_space = _space_of(episodes, "action_space", action_space)
    found = [_checked(one, number) for number, one in enumerate(_episodes(episodes))]
    if not found:
        raise ValueError("episodes: there are none; at least one is needed")
    ids = [one.id for one in found]
    for number, one in enumerate(ids):
        if one in ids[:number]:
            raise ValueError(f"episodes: id {shown(one)} occurs twice; give each episode its own")

    seen = _joined(
        [
            _columns(
                one.observations,
                observation_space,
                "",
                f"episode {shown(one.id)}, observations",
                one.length + 1,
            )
            for one in found
        ],
        found,
    )
    seen = _renamed(seen, observation_names)
    team = _team(found[0].actions, agents)
    actions: dict[str, Int[np.ndarray, " steps"]] = {}
    sizes: dict[str, int] = {}
    continuous = {column.name: column.values for column in seen if not column.is_index}
    for agent in team:
        taken = _joined([_actions_of(one, agent, team, action_space) for one in found], found)
        if all(column.is_index for column in taken):
            shape = tuple(column.size for column in taken)
            indices = [column.values.astype(np.int64) for column in taken]
            actions[agent] = np.ravel_multi_index(tuple(indices), shape).astype(np.int64)
            sizes[agent] = int(np.prod(shape))
            continue
        for column in taken:
            if column.name in continuous:
                raise ValueError(f"two columns would have the name {shown(column.name)}")
            continuous[column.name] = column.values
    # Nothing about latents is recorded: one of which nothing can be told apart.
    if latents is None and latent_names is None and num_latents is None:
        num_latents = 1
    return Demonstrations(
        states={column.name: column.values for column in seen if column.is_index} or None,
        num_states={column.name: column.size for column in seen if column.is_index},
        actions=actions or None,
        num_actions=sizes,
        action_names=action_names,
        latents=latents,
        num_latents=num_latents,
        latent_names=latent_names,
        episodes=np.repeat(np.array(ids), [one.length for one in found]),
        agents=team,
        rewards=_rewards(found, team),
        continuous=continuous or None,
    )


class _Episode(NamedTuple):
    """What is read of an episode; its length is the number of actions."""

    id: Any
    observations: Any
    actions: Any
    rewards: Any
    length: int


class _Column(NamedTuple):
    """A component of observations or actions.

    Attributes:
        name: Its name.
        values: One value per step.
        is_index: Whether they are indices.
        size: How many values there may be.
    """

    name: str
    values: np.ndarray
    is_index: bool
    size: int


def _space_of(episodes: Any, name: str, given: Any) -> Any:
    return getattr(episodes, name, None) if given is None else given


def _episodes(episodes: Any) -> Iterable[Any]:
    if hasattr(episodes, "iterate_episodes"):
        return episodes.iterate_episodes()
    if hasattr(episodes, "observations"):
        return [episodes]
    if not isinstance(episodes, Iterable):
        raise ValueError(f"episodes: EpisodeData objects expected, got {shown(episodes)}")
    return episodes


def _checked(episode: Any, number: int) -> _Episode:
    lacking = [name for name in _FIELDS if not hasattr(episode, name)]
    if lacking:
        raise ValueError(
            f"episodes: number {number} (counted from 0) has no {listed(lacking)}; expected "
            f"{listed(_FIELDS)}"
        )
    place = f"episode {shown(episode.id)}"
    length = _length(episode.actions, f"{place}, actions")
    if length == 0:
        raise ValueError(f"{place}: there are no actions; at least one is needed")
    over = {}
    for name in ("terminations", "truncations"):
        over[name] = _ends(getattr(episode, name), f"{place}, {name}", length)
        early = np.flatnonzero(over[name][:-1])
        if len(early):
            raise ValueError(
                f"{place}, {name}: step {early[0]} of {length} is the last one by them; expected "
                "an episode to end there"
            )
    return _Episode(episode.id, episode.observations, episode.actions, episode.rewards, length)


def _leaves(values: Any, place: str) -> Iterator[tuple[str, np.ndarray]]:
    if isinstance(values, Mapping):
        if not values:
            raise ValueError(f"{place}: an empty mapping; expected arrays")
        for key in values:
            yield from _leaves(values[key], f"{place}[{key!r}]")
    elif isinstance(values, tuple):
        for key, part in enumerate(values):
            yield from _leaves(part, f"{place}[{key}]")
    else:
        array = np.asarray(values)
        if array.ndim == 0 or array.dtype.kind not in "biuf":
            raise ValueError(
                f"{place}: numbers (steps, ...) expected, got {array.dtype} of shape {array.shape}"
            )
        yield place, array


def _length(values: Any, place: str) -> int:
    lengths = {where: len(array) for where, array in _leaves(values, place)}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{where} {length}" for where, length in lengths.items())
        raise ValueError(f"{place}: equal numbers of steps expected, found {told}")
    return next(iter(lengths.values()), 0)


def _ends(values: Any, place: str, length: int) -> np.ndarray:
    """Whether the episode is over after each step: of several agents, when all are."""
    ends = [_flat(array.astype(bool)) for _, array in _leaves(values, place)]
    for array in ends:
        if array.shape != (length,):
            raise ValueError(f"{place}: shape ({length},) expected, got {array.shape}")
    return np.logical_and.reduce(ends)


def _flat(values: np.ndarray) -> np.ndarray:
    """One value per step, which some datasets have as a column."""
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def _columns(values: Any, space: Any, name: str, place: str, length: int) -> list[_Column]:
    """The components of observations or actions, the parts of Dict and Tuple one after another."""
    parts = getattr(space, "spaces", None)
    if isinstance(values, Mapping | tuple):
        keys = list(values) if isinstance(values, Mapping) else list(range(len(values)))
        if parts is not None and isinstance(parts, Mapping):
            if set(parts) != set(keys):
                raise ValueError(f"{place}: has {listed(keys)}, its space {listed(parts)}")
            keys = list(parts)
        return [
            column
            for key in keys
            for column in _columns(
                values[key],
                None if parts is None else parts[key],
                f"{name}_{key}" if name else str(key),
                f"{place}[{key!r}]",
                length,
            )
        ]
    ((_, array),) = _leaves(values, place)
    if len(array) != length:
        raise ValueError(
            f"{place}: {length} expected (an episode has one more observation than actions), got "
            f"{len(array)}"
        )
    if array.ndim > 2:
        raise ValueError(
            f"{place}: shape {array.shape}; expected numbers or vectors: pictures and matrices "
            "have no columns"
        )
    low = getattr(space, "low", None)  # of a Box
    is_index = array.dtype.kind != "f" and low is None
    several = array.ndim == 2
    components = array.T if several else array[None]
    sizes = _sizes(space, len(components), place)
    starts = np.broadcast_to(np.ravel(getattr(space, "start", 0)), len(components))
    found = []
    for k, component in enumerate(components):
        own = f"{name or 'observation'}_{k}" if several else name or "observation"
        check_text(place, own)
        if not is_index:
            bad = ~np.isfinite(component.astype(np.float64))
            if bad.any():
                step = int(np.argmax(bad))
                raise ValueError(
                    f"{place}, step {step}: {component[step]} is not allowed; expected a finite "
                    "number"
                )
            found.append(_Column(own, component.astype(np.float64), False, 0))
            continue
        indices = component.astype(np.int64) - int(starts[k])
        size = sizes[k] if sizes is not None else int(indices.max()) + 1
        outside = (indices < 0) | (indices >= size)
        if outside.any():
            step = int(np.argmax(outside))
            allowed = f"{starts[k]} to {starts[k] + size - 1}" if sizes is not None else "0, 1, ..."
            raise ValueError(
                f"{place}, step {step}: {component[step]} is not allowed; expected {allowed}"
            )
        found.append(_Column(own, indices, True, size))
    return found


def _sizes(space: Any, components: int, place: str) -> list[int] | None:
    """How many values each component has, by its space."""
    if space is None:
        return None
    number, numbers = getattr(space, "n", None), getattr(space, "nvec", None)
    if numbers is not None:
        sizes = [int(one) for one in np.ravel(numbers)]
    elif isinstance(number, int | np.integer):
        binary = type(space).__name__ == "MultiBinary"
        sizes = [2] * int(number) if binary else [int(number)]
    else:
        return None
    if len(sizes) != components:
        raise ValueError(f"{place}: {components} components, but its space has {len(sizes)}")
    return sizes


def _joined(by_episode: Sequence[list[_Column]], found: Sequence[_Episode]) -> list[_Column]:
    """The columns of all episodes one after the other, without the last observation."""
    first = by_episode[0]
    for one, columns in zip(found, by_episode, strict=True):
        theirs = [(column.name, column.is_index) for column in columns]
        ours = [(column.name, column.is_index) for column in first]
        if theirs != ours:
            raise ValueError(
                f"episode {shown(one.id)}: has {listed(name for name, _ in theirs)}, the first one "
                f"{listed(name for name, _ in ours)}, whole numbers in both or in none"
            )
    return [
        _Column(
            column.name,
            np.concatenate(
                [c[k].values[: one.length] for c, one in zip(by_episode, found, strict=True)]
            ),
            column.is_index,
            max(c[k].size for c in by_episode),
        )
        for k, column in enumerate(first)
    ]


def _renamed(columns: list[_Column], names: Sequence[str] | None) -> list[_Column]:
    given = None if names is None else [str(one) for one in items("observation_names", names)]
    if given is not None and len(given) != len(columns):
        raise ValueError(
            f"observation_names: {len(columns)} expected, in place of "
            f"{listed(column.name for column in columns)}; got {listed(given)}"
        )
    chosen = [column.name for column in columns] if given is None else given
    if len(set(chosen)) < len(chosen):
        raise ValueError(f"observation_names: different names expected, got {listed(chosen)}")
    return [column._replace(name=name) for column, name in zip(columns, chosen, strict=True)]


def _team(actions: Any, agents: Sequence[str] | None) -> list[str]:
    given = None if agents is None else [str(one) for one in items("agents", agents)]
    if not isinstance(actions, Mapping):
        if given is not None and len(given) != 1:
            raise ValueError(
                f"agents: one name expected, as actions are not a mapping {{agent: actions}}; got "
                f"{listed(given)}"
            )
        return ["agent_0"] if given is None else given
    keys = [str(key) for key in actions]
    if given is not None and sorted(given) != sorted(keys):
        raise ValueError(
            f"agents: the keys of actions expected, {listed(keys)}; got {listed(given)}"
        )
    return keys if given is None else given


def _actions_of(episode: _Episode, agent: str, team: Sequence[str], space: Any) -> list[_Column]:
    place = f"episode {shown(episode.id)}, actions"
    actions, parts = episode.actions, space
    if isinstance(actions, Mapping):
        if sorted(map(str, actions)) != sorted(team):
            raise ValueError(f"{place}: of {listed(actions)}; expected those of {listed(team)}")
        key = next(key for key in actions if str(key) == agent)
        place = f"{place}[{key!r}]"
        actions = actions[key]
        spaces = getattr(space, "spaces", None)
        parts = spaces[key] if isinstance(spaces, Mapping) and key in spaces else None
    elif len(team) > 1:
        raise ValueError(f"{place}: a mapping {{agent: actions}} expected, as in the first episode")
    return _columns(actions, parts, f"{agent}_action", place, episode.length)


def _rewards(found: Sequence[_Episode], team: Sequence[str]) -> Float[np.ndarray, "steps *agents"]:
    """The rewards of all episodes: of the team, or of each agent."""
    rewards = []
    for one in found:
        place = f"episode {shown(one.id)}, rewards"
        given = one.rewards
        if isinstance(given, Mapping):
            if sorted(map(str, given)) != sorted(team):
                raise ValueError(f"{place}: of {listed(given)}; expected those of {listed(team)}")
            by_name = {str(key): value for key, value in given.items()}
            parts = [_flat(np.asarray(by_name[agent], np.float64)) for agent in team]
        else:
            parts = [_flat(np.asarray(given, np.float64))]
        for part in parts:
            if part.shape != (one.length,):
                raise ValueError(f"{place}: shape ({one.length},) expected, got {part.shape}")
        rewards.append(np.stack(parts, axis=1) if isinstance(given, Mapping) else parts[0])
    if len({part.ndim for part in rewards}) > 1:
        raise ValueError("rewards: those of the team, or of each agent, expected in all episodes")
    return np.concatenate(rewards)
