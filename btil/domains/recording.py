"""Episodes of any PettingZoo environment with discrete spaces, as demonstrations."""

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from btil.arguments import check_values
from btil.demonstrations import Demonstrations
from btil.domains.gridworld.simulate import Member
from btil.models.cpt import improper_rows
from btil.progress import progress_line

if TYPE_CHECKING:
    from gymnasium.spaces import Space

_SOURCES = ("state", "shared", "agents")

Shown = Mapping[str, Int[np.ndarray, " k"]]


@runtime_checkable
class Guest(Member, Protocol):
    """A member who brings its own latents, and acts by the state variables that are recorded.

    It is asked for k = 1 situation at a time; `btil.domains.play` makes such of a learned team.

    Attributes:
        latent_names: Texts of its latents, if any.
    """

    latent_names: Any


def record(
    env: Any,
    policies: Mapping[str, Any],
    num_episodes: int,
    seed: int = 0,
    max_steps: int | None = None,
    progress: bool = True,
    *,
    initial_latents: Callable[..., Any] | None = None,
    latent_transition: Callable[..., Any] | None = None,
    num_latents: int | Mapping[str, int] | None = None,
    states_from: str | None = None,
    keep_rewards: bool = False,
) -> Demonstrations:
    r"""Let policies play a PettingZoo ``ParallelEnv`` and write down what happens.

    Row t of an episode is the state in which the team acts, the joint action, and each agent's
    latent if it has any; the state in which an episode ends is no row. Values are counted from 0
    (a ``Discrete(3, start=5)`` gives 0, 1, 2).

    **Policies.** A function ``policy(observation, generator)`` gets what the environment shows the
    agent and a NumPy random generator, and returns an action of the agent's action space. An array
    (states, actions) has a row of probabilities for each value of the agent's observation: the
    joint index of its variables, the first most significant. An array (states, latents, actions)
    is that for each latent; the latent is then drawn from `initial_latents`, moves by
    `latent_transition`, and is written down as a label:

    .. math:: x^0 \sim b_x(s^0), \quad a^t \sim \pi(s^t, x^t), \quad
              x^{t+1} \sim T_x(x^t, s^t, a^t, s^{t+1})

    **States.** The state variables are those of `env.state()` where the environment has a discrete
    ``state_space``; else those of the observation, if in every step all agents observe the same;
    else those of each agent's observation, named after the agent: "<agent>_<variable>". A
    ``Discrete`` space is the variable "state", ``MultiDiscrete`` and ``Tuple`` are "state_0",
    "state_1", ...; a ``Dict`` names its variables.

    **Names.** An environment may have ``metadata["demonstrations"]``, a mapping with any of
    "state_names" {variable: texts}, "action_names" and "latent_names" (texts, for all agents), and
    "num_states" {variable: number}: the variables that a ``Discrete`` state is the joint index of.

    Args:
        env: The environment. It must have ``possible_agents``, all of whom play every step of an
            episode.
        policies: {agent: policy}. A `Guest` is one too; it acts by what is recorded, so that of
            agents with like observations they are what all share, unless `states_from` says else.
        num_episodes: Number of episodes.
        seed: A non-negative integer. Each episode has a stream of its own, with which the
            environment is reset too: the same seed gives the same episodes, and the first ones of
            a longer recording.
        max_steps: Steps after which an episode is cut. None: the environment ends it.
        progress: Whether to show a progress line.
        initial_latents: Function (agent, states) that gives (k, latents), e.g. a posterior's
            `initial`; `states` are k indices of the agent's observation. None: uniform.
        latent_transition: Function (agent, states, actions, next_states) that gives (k, latents,
            next_latents), e.g. a posterior's `transition`; `actions` are (k, agents), counted
            from 0. Needed if a policy has latents.
        num_latents: Number of latents of the agents whose policies have none, who are unlabelled;
            for all or {agent: number}. None: that of the environment's names, else 1.
        states_from: "state", "shared" (the observation that all agents share) or "agents" (each
            agent's own). None: as told above.
        keep_rewards: Whether to keep what the environment gives each agent for each step, as
            `demos.rewards`. An agent for whom it tells none got 0.

    Returns:
        The demonstrations; agents in the order of ``env.possible_agents``, episodes 0, 1, 2, ...

    Raises:
        ValueError: Before anything runs: no ParallelEnv, a space that is not discrete, a policy
            missing, of a shape that does not fit or with a row that is not a probability vector,
            latents without a function that moves them. While it runs, naming agent, episode and
            step: an agent that leaves before the others or is not there at the start (nothing is
            filled in), an observation outside its space, an action that is none, agents that see
            different things where `states_from="shared"`.

    Example:
        >>> task = btil.domains.cleanup("lesson")  # doctest: +SKIP
        >>> demos = record(  # doctest: +SKIP
        ...     task.to_parallel_env(),
        ...     task.policies(),
        ...     num_episodes=20,
        ...     initial_latents=task.initial_latent_probs,
        ...     latent_transition=lambda agent, states, actions, next_states: (
        ...         task.latent_transition(agent, states, next_states)
        ...     ),
        ... )

    References:
        J. K. Terry et al. (2021), PettingZoo: Gym for multi-agent reinforcement learning.
    """
    numbers = {"num_episodes": num_episodes, "max_steps": max_steps, "seed": seed}
    check_values(numbers | {"progress": progress}, optional=["max_steps"])
    members = _members(env, policies, latent_transition)
    source = _source(env, members, states_from)
    sizes = _latent_sizes(env, members, num_latents)
    moves = _Moves(initial_latents, latent_transition)
    # Names that cannot be used are refused now, not when everything has been played.
    for kind in source.kinds:
        _demonstrations(env, members, source, kind, sizes, [_some_row(members, source)], [0])

    rows: list[_Row] = []
    episodes: list[int] = []
    streams = np.random.SeedSequence(seed).spawn(int(num_episodes))
    with progress_line(len(streams), "record", progress) as line:
        for episode, stream in enumerate(streams):
            rng = np.random.default_rng(stream)
            rows += _play(env, members, source, moves, rng, max_steps, episode)
            episodes += [episode] * (len(rows) - len(episodes))
            line.update()
    same = all(_alike(row.observations) for row in rows)
    kind = source.kinds[0] if same else source.kinds[-1]
    demos = _demonstrations(env, members, source, kind, sizes, rows, episodes)
    return demos.replace(rewards=[row.rewards for row in rows]) if keep_rewards else demos


class _Variable(NamedTuple):
    """A whole number somewhere in the elements of a space.

    Attributes:
        name: Its name.
        size: Number of its values.
        start: The smallest one.
        path: Subscripts that lead to it.
    """

    name: str
    size: int
    start: int
    path: tuple[Any, ...]


class _Member(NamedTuple):
    """An agent of the environment and its policy.

    Attributes:
        agent: What the environment calls it.
        observed: The variables that it observes.
        action: The space of its actions.
        policy: A function, or None where there is a table.
        table: P(action | observation, latent), or None where there is a function.
        has_latents: Whether the table is one of latents.
        guest: Who plays, where it is a guest, who has neither table nor function.
    """

    agent: Any
    observed: tuple[_Variable, ...]
    action: _Variable
    policy: Callable[..., Any] | None
    table: Float[np.ndarray, "states latents actions"] | None
    has_latents: bool
    guest: Guest | None = None


class _Moves(NamedTuple):
    initial: Callable[..., Any] | None
    transition: Callable[..., Any] | None


class _Source(NamedTuple):
    """Where the state variables come from.

    Attributes:
        kinds: "state", "shared" or "agents"; the last two where only playing will tell.
        state: The variables of `env.state()`, where it is used.
    """

    kinds: tuple[str, ...]
    state: tuple[_Variable, ...]


class _Row(NamedTuple):
    """A step; all values counted from 0, a list entry per agent or variable."""

    state: list[int]
    observations: list[list[int]]
    actions: list[int]
    latents: list[int]
    rewards: Sequence[float] = ()


class _Moment(NamedTuple):
    """A step as those see it who act in it.

    Attributes:
        row: Its values; of the present step without actions and latents.
        shown: The state variables, where a guest acts by them.
        episode: The episode.
        place: Words for errors.
    """

    row: _Row
    shown: Shown
    episode: int
    place: str


# ---------------------------------------------------------------------- before anything runs


def variables_shown(env: Any) -> dict[str, dict[str, int]]:
    """The state variables that can be recorded of an environment, {states_from: {name: size}}.

    Raises:
        ValueError: As `record`, of the environment.
    """
    agents = list(getattr(env, "possible_agents", None) or [])
    nobody = {agent: lambda *_: 0 for agent in agents}
    members = _members(env, nobody, None)
    source = _source(env, members, None)
    rows = [_some_row(members, source)]
    return {kind: _columns(env, members, source, kind, rows)[1] for kind in source.kinds}


def _some_row(members: Sequence[_Member], source: _Source) -> _Row:
    """A step such as there could be."""
    return _Row(
        state=[0] * len(source.state),
        observations=[[0] * len(member.observed) for member in members],
        actions=[0] * len(members),
        latents=[-1] * len(members),
    )


def num_actions(env: Any) -> dict[str, int]:
    """Number of actions of each agent whose actions are ``Discrete``."""
    sizes = {agent: getattr(env.action_space(agent), "n", 0) for agent in env.possible_agents}
    return {str(agent): int(size) for agent, size in sizes.items()}


def _members(
    env: Any, policies: Mapping[str, Any], latent_transition: Callable[..., Any] | None
) -> list[_Member]:
    from pettingzoo import AECEnv

    if isinstance(env, AECEnv):
        raise ValueError(
            "env: a ParallelEnv expected, got an AECEnv; pettingzoo.utils.aec_to_parallel makes "
            "one of it"
        )
    agents = list(getattr(env, "possible_agents", None) or [])
    if not agents:
        raise ValueError("env: a ParallelEnv with possible_agents expected")
    for agent in policies:
        if agent not in agents:
            raise ValueError(f"policies: unknown agent {agent!r}; the agents are {_listed(agents)}")
    members = []
    for agent in agents:
        if agent not in policies:
            raise ValueError(f"policies: none for agent {agent}")
        observed = _variables(env.observation_space(agent), f"the observation space of {agent}")
        where = f"the action space of {agent}"
        action = _variables(env.action_space(agent), where)
        if len(action) != 1 or action[0].path:
            raise ValueError(f"{where} is {env.action_space(agent)}; it must be Discrete")
        policy = policies[agent]
        if isinstance(policy, Guest):
            members.append(_Member(agent, observed, action[0], None, None, True, policy))
            continue
        if callable(policy):
            members.append(_Member(agent, observed, action[0], policy, None, False))
            continue
        table = _checked_table(agent, policy, observed, action[0])
        has_latents = table.ndim == 3
        if has_latents and latent_transition is None:
            raise ValueError(
                f"latent_transition is needed: the policy of {agent} has latents (its shape is "
                f"{table.shape}), and nothing says how they move"
            )
        table = table if has_latents else table[:, None]
        members.append(_Member(agent, observed, action[0], None, table, has_latents))
    return members


def _variables(space: "Space[Any]", where: str) -> tuple[_Variable, ...]:
    """The whole numbers that an element of a space is made of."""
    from gymnasium import spaces

    def walk(part: "Space[Any]", name: str, path: tuple[Any, ...]) -> Iterator[_Variable]:
        if isinstance(part, spaces.Discrete):
            yield _Variable(name or "state", int(part.n), int(part.start), path)
        elif isinstance(part, spaces.MultiDiscrete):
            for index in np.ndindex(part.nvec.shape):
                numbers = "_".join(map(str, index))
                yield _Variable(
                    f"{name or 'state'}_{numbers}",
                    int(part.nvec[index]),
                    int(part.start[index]),
                    (*path, index),
                )
        elif isinstance(part, spaces.Tuple):
            for k, inner in enumerate(part.spaces):
                yield from walk(inner, f"{name or 'state'}_{k}", (*path, k))
        elif isinstance(part, spaces.Dict):
            for key, inner in part.spaces.items():
                yield from walk(inner, f"{name}_{key}" if name else str(key), (*path, key))
        else:
            raise ValueError(
                f"{where} has a {part}, which is not discrete; allowed are Discrete, and "
                "MultiDiscrete, Tuple and Dict of such"
            )

    return tuple(walk(space, "", ()))


def _checked_table(
    agent: Any, policy: Any, observed: Sequence[_Variable], action: _Variable
) -> Float[np.ndarray, "..."]:
    table = np.asarray(policy, np.float64)
    num_states = math.prod(variable.size for variable in observed)
    if table.ndim not in (2, 3) or (table.shape[0], table.shape[-1]) != (num_states, action.size):
        raise ValueError(
            f"policies: {agent}'s has shape {table.shape}; expected (states, actions) or (states, "
            f"latents, actions) with {num_states} states and {action.size} actions"
        )
    wrong = improper_rows(table)
    if wrong.any():
        where = tuple(np.argwhere(wrong)[0].tolist())
        raise ValueError(
            f"policies: {agent}'s row at {where} is not a probability vector: "
            f"{table[where].tolist()}"
        )
    return table


def _source(env: Any, members: Sequence[_Member], states_from: str | None) -> _Source:
    if states_from is not None and states_from not in _SOURCES:
        raise ValueError(f"states_from must be None or one of {_listed(_SOURCES)}")
    space = getattr(env, "state_space", None)
    if states_from == "state" and space is None:
        raise ValueError("states_from='state': the environment has no state_space")
    if space is not None and states_from in (None, "state"):
        try:
            return _Source(("state",), _variables(space, "state_space"))
        except ValueError:
            if states_from == "state":
                raise
    equal = all(member.observed == members[0].observed for member in members)
    if states_from == "shared" and not equal:
        raise ValueError("states_from='shared': the agents' observation spaces differ")
    if states_from is not None:
        return _Source((states_from,), ())
    # A guest acts by them from the first step on: then it cannot be left to the play.
    guests = any(member.guest is not None for member in members)
    kinds = ("shared",) if guests else ("shared", "agents")
    return _Source(kinds if equal else ("agents",), ())


def _latent_sizes(
    env: Any, members: Sequence[_Member], num_latents: int | Mapping[str, int] | None
) -> dict[str, int]:
    sizes = {}
    agents = [str(member.agent) for member in members]
    for name in num_latents if isinstance(num_latents, Mapping) else ():
        if name not in agents:
            raise ValueError(
                f"num_latents: unknown agent {name!r}; the agents are {_listed(agents)}"
            )
    for member in members:
        name = str(member.agent)
        given = num_latents.get(name) if isinstance(num_latents, Mapping) else num_latents
        if member.has_latents:
            sizes[name] = _num_latents(member)
            if given is not None and given != sizes[name]:
                raise ValueError(
                    f"num_latents: {given} for {name}, whose policy has {sizes[name]} latents"
                )
        else:
            named = len(_names(env).get("latent_names", ())) or 1
            sizes[name] = named if given is None else given
    return sizes


def _num_latents(member: _Member) -> int:
    """Number of latents of a member who has some."""
    if member.guest is not None:
        return int(member.guest.num_latents)
    assert member.table is not None
    return int(member.table.shape[1])


def _names(env: Any) -> Mapping[str, Any]:
    return (getattr(env, "metadata", None) or {}).get("demonstrations", {})


# ---------------------------------------------------------------------- an episode


def _play(
    env: Any,
    members: Sequence[_Member],
    source: _Source,
    moves: _Moves,
    rng: np.random.Generator,
    max_steps: int | None,
    episode: int,
) -> list[_Row]:
    agents = [member.agent for member in members]
    observations = _first_observations(env.reset(seed=int(rng.integers(2**31))), agents, episode)
    _check_all_there(env, agents, f"at the start of episode {episode}")
    rows: list[_Row] = []
    before: _Moment | None = None
    while True:
        place = f"episode {episode}, step {len(rows)}"
        state = _read(source.state, env.state(), f"{place}: state()") if source.state else []
        seen = [
            _read(m.observed, observations.get(m.agent), f"{place}: the observation of {m.agent}")
            for m in members
        ]
        if source.kinds == ("shared",) and not _alike(seen):
            raise ValueError(
                f"{place}: the agents observe different things, "
                + ", ".join(f"{m.agent} {values}" for m, values in zip(members, seen, strict=True))
                + "; states_from='agents' records what each one sees"
            )
        row = _Row(state, seen, [], [])
        now = _Moment(row, _shown(env, members, source, row), episode, place)
        latents = [_latent(member, i, moves, before, now, rng) for i, member in enumerate(members)]
        actions = [
            _action(member, i, observations[member.agent], latents[i], before, now, rng)
            for i, member in enumerate(members)
        ]
        row = row._replace(actions=actions, latents=latents)
        before = now._replace(row=row)
        answer = env.step(
            {m.agent: m.action.start + a for m, a in zip(members, actions, strict=True)}
        )
        if not isinstance(answer, Sequence) or len(answer) != 5:
            raise ValueError(
                f"{place}: step() of the environment must give observations, rewards, "
                "terminations, truncations and infos, as PettingZoo's ParallelEnv does; it gave "
                + (f"{len(answer)} things" if isinstance(answer, Sequence) else repr(answer))
            )
        observations, rewards, terminations, truncations, _ = answer
        rows.append(row._replace(rewards=[float(rewards.get(agent, 0)) for agent in agents]))
        over = [bool(terminations.get(a)) or bool(truncations.get(a)) for a in agents]
        if all(over) or not env.agents or len(rows) == max_steps:
            return rows
        for agent, gone in zip(agents, over, strict=True):
            if gone or agent not in env.agents:
                stay = _listed([other for other in env.agents if other != agent])
                raise ValueError(
                    f"agent {agent} left in episode {episode} after step {len(rows) - 1} while "
                    f"{stay} went on; a demonstration needs every agent at every step"
                )
        _check_all_there(env, agents, f"in episode {episode}, step {len(rows)}")


def _first_observations(answer: Any, agents: Sequence[Any], episode: int) -> Mapping[Any, Any]:
    """The observations in what `reset` gave: with infos, or, as in older environments, alone."""
    observations = answer
    if isinstance(answer, Sequence) and len(answer) == 2:
        observations = answer[0]
    if not isinstance(observations, Mapping) or not any(agent in observations for agent in agents):
        raise ValueError(
            f"episode {episode}: reset() of the environment must give observations by agent, and "
            f"infos, as PettingZoo's ParallelEnv does; it gave {answer!r:.200}"
        )
    return observations


def _check_all_there(env: Any, agents: Sequence[Any], when: str) -> None:
    for agent in agents:
        if agent not in env.agents:
            raise ValueError(
                f"agent {agent} is not there {when}; a demonstration needs every agent at every "
                "step"
            )
    for agent in env.agents:
        if agent not in agents:
            raise ValueError(f"agent {agent} is there {when} but not in possible_agents")


def _latent(
    member: _Member,
    position: int,
    moves: _Moves,
    before: _Moment | None,
    now: _Moment,
    rng: np.random.Generator,
) -> int:
    """The latent of a step: the first one, or where that of the step before has moved; -1: none."""
    if not member.has_latents:
        return -1
    name, size, guest = str(member.agent), _num_latents(member), member.guest
    episode = np.array([now.episode])
    states = np.array([_joint(member, now.row.observations[position])])
    if before is None:
        if guest is None and moves.initial is None:
            return int(rng.integers(size))
        if guest is not None:
            told, probs = "the latent", guest.initial(now.shown, episode)
        else:
            assert moves.initial is not None
            told, probs = "initial_latents", moves.initial(name, states)
        return _draw(probs, (size,), 0, rng, f"{now.place}: {told} of {name}")
    latent, actions = before.row.latents[position], np.array([before.row.actions])
    if guest is not None:
        probs = guest.transition(before.shown, actions, now.shown, np.array([latent]), episode)
        return _draw(probs, (size,), 0, rng, f"{now.place}: the latent of {name}")
    assert moves.transition is not None
    previous = np.array([_joint(member, before.row.observations[position])])
    table = moves.transition(name, previous, actions, states)
    where = f"{now.place}: latent_transition of {name}"
    return _draw(table, (size, size), latent, rng, where)


def _shown(env: Any, members: Sequence[_Member], source: _Source, row: _Row) -> Shown:
    """The state variables of a step, where somebody acts by them."""
    if all(member.guest is None for member in members):
        return {}
    return _columns(env, members, source, source.kinds[0], [row])[0]


def _action(
    member: _Member,
    position: int,
    observation: Any,
    latent: int,
    before: _Moment | None,
    now: _Moment,
    rng: np.random.Generator,
) -> int:
    if member.guest is not None:
        previous = None if before is None else (before.shown, np.array([before.row.actions]))
        episode = np.array([now.episode])
        probs = member.guest.policy(now.shown, np.array([latent]), episode, previous)
        where = f"{now.place}: the policy of {member.agent}"
        return _draw(probs, (member.action.size,), 0, rng, where)
    if member.table is not None:
        row = member.table[_joint(member, now.row.observations[position]), max(latent, 0)]
        return int(rng.choice(len(row), p=row / row.sum()))
    assert member.policy is not None
    action = member.policy(observation, rng)
    return _read([member.action], action, f"{now.place}: the action of {member.agent}")[0]


def _draw(
    table: Any, shape: tuple[int, ...], row: int, rng: np.random.Generator, place: str
) -> int:
    """Draw from a row of what a modeler's function gave for one state, (1, *shape)."""
    values = np.asarray(table, np.float64)
    if values.shape != (1, *shape):
        raise ValueError(f"{place}: shape {values.shape}, expected {(1, *shape)}")
    probs = values.reshape(-1, shape[-1])[row]
    if improper_rows(probs[None]).any():
        raise ValueError(f"{place}: {probs.tolist()} is not a probability vector")
    return int(rng.choice(len(probs), p=probs / probs.sum()))


def _joint(member: _Member, observed: Sequence[int]) -> int:
    """Row-major index of the variables that an agent observes."""
    index = 0
    for variable, value in zip(member.observed, observed, strict=True):
        index = index * variable.size + value
    return index


def _read(variables: Sequence[_Variable], element: Any, place: str) -> list[int]:
    """The variables' values in an element of their space, counted from 0."""
    values = []
    for name, size, start, path in variables:
        value = element
        try:
            for key in path:
                value = value[key]
            number = operator.index(value) - start
        except (TypeError, LookupError):
            raise ValueError(f"{place} is {element!r}, which is not in its space") from None
        if not 0 <= number < size:
            raise ValueError(
                f"{place} is {element!r}, which is not in its space: {name} is {value}, allowed "
                f"are {start}..{start + size - 1}"
            )
        values.append(number)
    return values


# ---------------------------------------------------------------------- what comes of it


def _demonstrations(
    env: Any,
    members: Sequence[_Member],
    source: _Source,
    kind: str,
    latent_sizes: Mapping[str, int],
    rows: Sequence[_Row],
    episodes: Sequence[int],
) -> Demonstrations:
    agents = [str(member.agent) for member in members]
    columns, sizes = _columns(env, members, source, kind, rows)
    names: Mapping[str, Any] = _names(env)
    action_sizes = {str(m.agent): m.action.size for m in members}
    return Demonstrations(
        states=columns,
        actions=dict(zip(agents, np.array([row.actions for row in rows]).T, strict=True)),
        latents=dict(zip(agents, np.array([row.latents for row in rows]).T, strict=True)),
        episodes=np.array(episodes),
        agents=agents,
        num_states=sizes,
        num_actions=action_sizes,
        num_latents=dict(latent_sizes),
        state_names=_fitting(dict(names.get("state_names", {})), sizes),
        action_names=_fitting(dict.fromkeys(agents, names.get("action_names")), action_sizes),
        latent_names=_fitting(
            {
                str(m.agent): names.get("latent_names") if m.guest is None else m.guest.latent_names
                for m in members
            },
            latent_sizes,
        ),
    )


def _columns(
    env: Any, members: Sequence[_Member], source: _Source, kind: str, rows: Sequence[_Row]
) -> tuple[dict[str, Int[np.ndarray, " steps"]], dict[str, int]]:
    """The state variables of some steps, and their sizes."""
    columns: dict[str, Int[np.ndarray, " steps"]] = {}
    sizes: dict[str, int] = {}

    def add(variables: Sequence[_Variable], values: Sequence[Sequence[int]], prefix: str) -> None:
        for variable, column in zip(variables, np.array(values).T, strict=True):
            name = prefix + variable.name
            if name in columns:
                raise ValueError(f"two variables of the spaces would have the name {name!r}")
            columns[name], sizes[name] = column, variable.size

    if kind == "agents":
        for i, member in enumerate(members):
            add(member.observed, [row.observations[i] for row in rows], f"{member.agent}_")
        return columns, sizes
    if kind == "state":
        add(source.state, [row.state for row in rows], "")
    else:
        add(members[0].observed, [row.observations[0] for row in rows], "")
    return _taken_apart(columns, sizes, _names(env).get("num_states", {}))


def _taken_apart(
    columns: dict[str, Int[np.ndarray, " steps"]],
    sizes: dict[str, int],
    declared: Mapping[str, int],
) -> tuple[dict[str, Int[np.ndarray, " steps"]], dict[str, int]]:
    """The variables that a single state is the joint index of, where they are declared."""
    if not declared or list(sizes.values()) != [math.prod(declared.values())]:
        return columns, sizes
    (joint,) = columns.values()
    parts = np.unravel_index(joint, tuple(declared.values()))
    return dict(zip(declared, parts, strict=True)), dict(declared)


def _fitting(names: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    """The names of what has as many values as there are names."""
    return {
        key: names[key]
        for key, size in sizes.items()
        if names.get(key) is not None and len(names[key]) == size
    }


def _alike(observations: Sequence[Sequence[int]]) -> bool:
    return all(values == observations[0] for values in observations)


def _listed(items: Sequence[Any]) -> str:
    return ", ".join(map(str, items)) or "nobody"
