"""Episodes of a simulated team, all at once."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float, Int

from btil.arguments import check_seed, check_values
from btil.demonstrations import Demonstrations
from btil.models.cpt import improper_rows

if TYPE_CHECKING:
    from btil.domains.gridworld.task import GridTask


# Random numbers are drawn for so many steps of an episode at a time.
_STEPS_AT_ONCE = 64


def simulate(
    task: "GridTask",
    policies: Mapping[str, Float[np.ndarray, "states latents actions"]],
    num_episodes: int,
    seed: int,
    max_steps: int,
) -> Demonstrations:
    """Run a team; see `GridTask.simulate`."""
    check_values({"num_episodes": num_episodes, "max_steps": max_steps})
    rules = _checked_policies(task, policies)
    num_agents = len(task.agents)

    # Every episode has its own stream, so that the number of episodes changes none of them.
    streams = [np.random.default_rng(child) for child in _seeds(seed, num_episodes)]
    states = np.full(num_episodes, task.start_state)
    latents = first_latents(task, states, np.stack([s.random(num_agents) for s in streams]))
    running = np.arange(num_episodes)

    record: list[tuple[np.ndarray, ...]] = []
    for step in range(max_steps):
        if step % _STEPS_AT_ONCE == 0:
            number = min(_STEPS_AT_ONCE, max_steps - step)
            chance = {m: streams[m].random((number, 2 * num_agents + 1)) for m in running.tolist()}
        u = np.stack([chance[m][step % _STEPS_AT_ONCE] for m in running.tolist()])
        actions = np.stack(
            [draw(rule[states, latents[:, i]], u[:, i]) for i, rule in enumerate(rules)], axis=1
        )
        record.append((running, states, actions, latents))
        next_states, moved = advance(task, states, latents, actions, u[:, num_agents:])
        going = ~task.is_final(next_states)
        running, states = running[going], next_states[going]
        latents = moved[going]
        if not len(running):
            break

    columns = zip(*record, strict=True)
    episodes, states, actions, latents = (np.concatenate(column) for column in columns)
    order = np.argsort(episodes, kind="stable")
    return task_demonstrations(task, states[order], actions[order], latents[order], episodes[order])


def task_demonstrations(
    task: "GridTask",
    states: Int[np.ndarray, " steps"],
    actions: Int[np.ndarray, "steps agents"],
    latents: Int[np.ndarray, "steps agents"],
    episodes: Any,
) -> Demonstrations:
    """Demonstrations of a task, with its names and sizes.

    Args:
        task: The task.
        states: Task state of every step.
        actions: Joint action of every step.
        latents: What each agent had in mind, -1 where unknown.
        episodes: (steps,) the episode id of each step.
    """
    variables = task.decode_states(states)
    return Demonstrations(
        states=dict(zip(task.state_sizes, variables.T, strict=True)),
        actions=actions,
        latents=latents,
        episodes=episodes,
        agents=task.agents,
        num_states=task.state_sizes,
        num_actions=task.num_actions,
        num_latents=task.num_latents,
        state_names=task.state_names,
        action_names=task.action_names,
        latent_names=task.latent_names,
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
    branches, probs = task.transition(states, actions)
    next_states = branches[rows, draw(probs, u[:, 0])]
    moved = []
    for i, agent in enumerate(task.agents):
        table = task.latent_transition(agent, states, next_states)
        moved.append(draw(table[rows, latents[:, i]], u[:, 1 + i]))
    return next_states, np.stack(moved, axis=1)


def draw(probs: Float[np.ndarray, "k n"], u: Float[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
    """Draw an index per row by inversion; one of probability 0 is never drawn."""
    cumulative = np.cumsum(probs, axis=1)
    cumulative /= cumulative[:, -1:]
    return (u[:, None] >= cumulative).sum(axis=1)


def _seeds(seed: int, num_episodes: int) -> list[np.random.SeedSequence]:
    return np.random.SeedSequence(check_seed(seed)).spawn(num_episodes)


def _checked_policies(task: "GridTask", policies: Mapping[str, Any]) -> list[np.ndarray]:
    shape = (task.num_states, task.num_latents, task.num_actions)
    for agent in policies:
        if agent not in task.agents:
            raise ValueError(
                f"policies: unknown agent {agent!r}; the agents are {', '.join(task.agents)}"
            )
    checked = []
    for agent in task.agents:
        if agent not in policies:
            raise ValueError(f"policies: none for agent {agent!r}")
        if np.shape(policies[agent]) != shape:
            raise ValueError(
                f"policies: {agent}'s has shape {np.shape(policies[agent])}, expected (states, "
                f"latents, actions) = {shape}"
            )
        rows = np.asarray(policies[agent], np.float64)
        wrong = improper_rows(rows)
        if wrong.any():
            state, latent = np.argwhere(wrong)[0]
            raise ValueError(
                f"policies: {agent}'s row of state {state}, latent {latent} is no probability "
                f"vector: {rows[state, latent].tolist()} (non-negative entries that sum to 1)"
            )
        checked.append(rows)
    return checked
