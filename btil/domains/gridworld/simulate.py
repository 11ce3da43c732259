"""Episodes of a team at work, all at once."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from btil.arguments import check_seed, check_values
from btil.demonstrations import Demonstrations
from btil.models.cpt import improper_rows

if TYPE_CHECKING:
    from btil.domains.gridworld.task import GridTask


# Random numbers are drawn for so many steps of an episode at a time.
_STEPS_AT_ONCE = 64

States = Int[np.ndarray, " k"]
Rows = Float[np.ndarray, "k values"]


@runtime_checkable
class Member(Protocol):
    """Who plays: how its latent starts and moves, and what it does, in k situations at once.

    `episodes` says of which episode each situation is. States are task states (k,), or in an
    environment what is recorded of them, {variable: (k,)}.
    """

    @property
    def num_latents(self) -> int:
        """Number of its latents."""

    def initial(self, states: Any, episodes: Any) -> Rows:
        """P(x_0 | s_0), (k, latents)."""

    def policy(self, states: Any, latents: Any, episodes: Any, previous: Any = None) -> Rows:
        """P(a | s, x), (k, actions), given (states, actions) of the step before, if any."""

    def transition(
        self, states: Any, actions: Any, next_states: Any, latents: Any, episodes: Any
    ) -> Rows:
        """P(x' | x, s, a, s'), (k, latents)."""


class TaskMember:
    """A member whose latent starts and moves as the task says, with a policy given.

    Args:
        task: The task.
        agent: Its name.
        rule: Its policy.
    """

    def __init__(
        self, task: "GridTask", agent: str, rule: Float[np.ndarray, "states latents actions"]
    ) -> None:
        self._task, self._agent, self._rule = task, agent, rule
        self.num_latents = task.num_latents

    def initial(self, states: States, episodes: Any) -> Rows:
        """As the task says."""
        return self._task.initial_latent_probs(self._agent, states)

    def policy(self, states: States, latents: Any, episodes: Any, previous: Any = None) -> Rows:
        """As given."""
        return self._rule[states, latents]

    def transition(
        self, states: States, actions: Any, next_states: States, latents: Any, episodes: Any
    ) -> Rows:
        """As the task says."""
        table = self._task.latent_transition(self._agent, states, next_states)
        return table[np.arange(len(states)), latents]


class Played(NamedTuple):
    """What happened, a row per step, episode after episode.

    Attributes:
        episodes: Number of the episode.
        states: Task state before the step.
        actions: Joint action.
        latents: Latents with which it was taken.
        next_states: Task state after it.
    """

    episodes: Int[np.ndarray, " steps"]
    states: Int[np.ndarray, " steps"]
    actions: Int[np.ndarray, "steps agents"]
    latents: Int[np.ndarray, "steps agents"]
    next_states: Int[np.ndarray, " steps"]


def simulate(
    task: "GridTask",
    policies: Mapping[str, Float[np.ndarray, "states latents actions"]],
    num_episodes: int,
    seed: int,
    max_steps: int,
) -> Demonstrations:
    """Run a team; see `GridTask.simulate`."""
    check_values({"num_episodes": num_episodes, "max_steps": max_steps})
    check_seed(seed)
    for agent in policies:
        if agent not in task.agents:
            raise ValueError(
                f"policies: unknown agent {agent!r}; the agents are {', '.join(task.agents)}"
            )
    for agent in task.agents:
        if agent not in policies:
            raise ValueError(f"policies: none for agent {agent!r}")
    members = [given_member(task, agent, policies[agent]) for agent in task.agents]
    played = roll_out(task, members, range(num_episodes), seed, max_steps)
    return task_demonstrations(task, *played[1:4], played.episodes)


def roll_out(
    task: "GridTask", members: Sequence[Member], episodes: range, seed: int, max_steps: int
) -> Played:
    """Let a team play some episodes, all at once.

    Args:
        task: The task.
        members: Who plays, in the order of `task.agents`.
        episodes: Numbers of the episodes.
        seed: Every episode has a stream of its own, made of this and its number: which others are
            played changes none.
        max_steps: Steps after which an episode is cut.
    """
    num_agents = len(task.agents)
    numbers = np.array(episodes)
    children = np.random.SeedSequence(seed).spawn(episodes.stop)
    streams = [np.random.default_rng(children[number]) for number in episodes]
    states = np.full(len(numbers), task.start_state)
    chance = np.stack([stream.random(num_agents) for stream in streams])
    starts = [member.initial(states, numbers) for member in members]
    latents = np.stack([draw(rows, chance[:, i]) for i, rows in enumerate(starts)], axis=1)
    running = np.arange(len(numbers))
    previous = None

    record: list[tuple[np.ndarray, ...]] = []
    for step in range(max_steps):
        if step % _STEPS_AT_ONCE == 0:
            at_once = min(_STEPS_AT_ONCE, max_steps - step)
            ahead = {m: streams[m].random((at_once, 2 * num_agents + 1)) for m in running.tolist()}
        u = np.stack([ahead[m][step % _STEPS_AT_ONCE] for m in running.tolist()])
        now = numbers[running]
        actions = np.stack(
            [
                draw(member.policy(states, latents[:, i], now, previous), u[:, i])
                for i, member in enumerate(members)
            ],
            axis=1,
        )
        next_states = next_task_states(task, states, actions, u[:, num_agents])
        record.append((now, states, actions, latents, next_states))
        going = ~task.is_final(next_states)
        if not going.any():
            break
        moved = [
            draw(
                member.transition(
                    states[going], actions[going], next_states[going], latents[going, i], now[going]
                ),
                u[going, num_agents + 1 + i],
            )
            for i, member in enumerate(members)
        ]
        previous = states[going], actions[going]
        running, states, latents = running[going], next_states[going], np.stack(moved, axis=1)

    columns = Played(*(np.concatenate(column) for column in zip(*record, strict=True)))
    order = np.argsort(columns.episodes, kind="stable")
    return Played(*(column[order] for column in columns))


def task_demonstrations(
    task: "GridTask",
    states: Int[np.ndarray, " steps"],
    actions: Int[np.ndarray, "steps agents"],
    latents: Int[np.ndarray, "steps agents"],
    episodes: Any,
    minds: Mapping[str, tuple[int, Any]] | None = None,
) -> Demonstrations:
    """Demonstrations of a task, with its names and sizes.

    Args:
        task: The task.
        states: Task state of every step.
        actions: Joint action of every step.
        latents: What each agent had in mind, -1 where unknown.
        episodes: (steps,) the episode id of each step.
        minds: {agent: number of its latents, and their names if they have any}; None: as in the
            task.
    """
    known = dict.fromkeys(task.agents, (task.num_latents, task.latent_names))
    minds = known if minds is None else minds
    variables = task.decode_states(states)
    return Demonstrations(
        states=dict(zip(task.state_sizes, variables.T, strict=True)),
        actions=actions,
        latents=latents,
        episodes=episodes,
        agents=task.agents,
        num_states=task.state_sizes,
        num_actions=task.num_actions,
        num_latents={agent: number for agent, (number, _) in minds.items()},
        state_names=task.state_names,
        action_names=task.action_names,
        latent_names={agent: names for agent, (_, names) in minds.items() if names},
    )


def first_latents(
    task: "GridTask", states: Int[np.ndarray, " k"], u: Float[np.ndarray, "k agents"]
) -> Int[np.ndarray, "k agents"]:
    """Latents with which episodes start, from uniform random numbers `u`."""
    starts = [task.initial_latent_probs(agent, states) for agent in task.agents]
    return np.stack([draw(probs, u[:, i]) for i, probs in enumerate(starts)], axis=1)


def advance(
    task: "GridTask",
    states: Int[np.ndarray, " k"],
    latents: Int[np.ndarray, "k agents"],
    actions: Int[np.ndarray, "k agents"],
    u: Float[np.ndarray, "k draws"],
) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, "k agents"]]:
    """One step: next task states, then next latents, from 1 + agents random numbers each."""
    rows = np.arange(len(states))
    next_states = next_task_states(task, states, actions, u[:, 0])
    moved = []
    for i, agent in enumerate(task.agents):
        table = task.latent_transition(agent, states, next_states)
        moved.append(draw(table[rows, latents[:, i]], u[:, 1 + i]))
    return next_states, np.stack(moved, axis=1)


def next_task_states(
    task: "GridTask",
    states: Int[np.ndarray, " k"],
    actions: Int[np.ndarray, "k agents"],
    u: Float[np.ndarray, " k"],
) -> Int[np.ndarray, " k"]:
    """Where joint actions lead, from a uniform random number each."""
    branches, probs = task.transition(states, actions)
    return branches[np.arange(len(states)), draw(probs, u)]


def draw(probs: Float[np.ndarray, "k n"], u: Float[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
    """Draw an index per row by inversion; one of probability 0 is never drawn."""
    cumulative = np.cumsum(probs, axis=1)
    cumulative /= cumulative[:, -1:]
    return (u[:, None] >= cumulative).sum(axis=1)


def given_member(task: "GridTask", agent: str, policy: Any) -> TaskMember:
    """A member with a policy given, checked.

    Raises:
        ValueError: If the policy has another shape, or a row that is not a probability vector.
    """
    shape = (task.num_states, task.num_latents, task.num_actions)
    if np.shape(policy) != shape:
        raise ValueError(
            f"policies: {agent}'s has shape {np.shape(policy)}, expected (states, "
            f"latents, actions) = {shape}"
        )
    rows = np.asarray(policy, np.float64)
    wrong = improper_rows(rows)
    if wrong.any():
        state, latent = np.argwhere(wrong)[0]
        raise ValueError(
            f"policies: {agent}'s row of state {state}, latent {latent} is not a probability "
            f"vector: {rows[state, latent].tolist()} (non-negative entries that sum to 1)"
        )
    return TaskMember(task, agent, rows)
