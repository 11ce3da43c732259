"""Right answers for tiny data, by brute force over every joint latent sequence.

Written for reading, not for speed, and on purpose without the package's own indices: the parents
of each step are looked up here once more, in plain Python.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from btil.demonstrations import Demonstrations
from btil.models.cpt import Shared
from btil.models.team import BoundModel, site_name

ROLES = ("policy", "transition", "initial")


class Factor(NamedTuple):
    """One probability in the joint density: a table's row, and how it is entered."""

    role: str
    site: str
    context: int


class Enumerated(NamedTuple):
    """What is known exactly of tiny data.

    Attributes:
        log_evidence: log p(actions, labels | states), rows integrated out.
        mean: E[row] of every learned site.
        sd: Standard deviation of every cell.
        marginals: P(x_t = j | all data), per agent (steps, latents).
    """

    log_evidence: float
    mean: dict[str, np.ndarray]
    sd: dict[str, np.ndarray]
    marginals: dict[str, np.ndarray]


def episode_rows(demos: Demonstrations, episode: int) -> range:
    """The rows of an episode."""
    start = int(sum(demos.episode_lengths[:episode]))
    return range(start, start + int(demos.episode_lengths[episode]))


def parent_values(
    parents: tuple[str, ...], agent: str, demos: Demonstrations, row: int
) -> tuple[int, ...]:
    """What the parents of a table are at a row, spelt out; next_* look at the row after it."""
    values: list[int] = []
    states = demos.state_variables
    for parent in parents:
        if parent == "state":
            values += [int(column[row]) for column in states.values()]
        elif parent == "next_state":
            values += [int(column[row + 1]) for column in states.values()]
        elif parent == "actions":
            values += [int(a) for a in demos.actions[row]]
        elif parent == "own_action":
            values.append(int(demos.actions[row, demos.agents.index(agent)]))
        elif parent == "other_actions":
            values += [
                int(demos.actions[row, i]) for i, name in enumerate(demos.agents) if name != agent
            ]
        elif parent.startswith("action_"):
            values.append(int(demos.actions[row, demos.agents.index(parent[len("action_") :])]))
        elif parent in states:
            values.append(int(states[parent][row]))
        else:
            values.append(int(states[parent[len("next_") :]][row + 1]))
    return tuple(values)


def find_factor(bound: BoundModel, role: str, agent: str, row: int) -> Factor:
    """The row of an agent's table that is read at a row of the data."""
    site = site_name(bound.model, role, agent)
    family = bound.model.family(role, agent)
    cpt = family.cpt if isinstance(family, Shared) else family
    parents = cpt.parents_of(agent)
    wanted = parent_values(parents, agent, bound.demos, row)
    contexts = [tuple(map(int, context)) for context in bound.tables[site].contexts.rows]
    return Factor(role, site, contexts.index(wanted))


def episode_factors(bound: BoundModel, agent: str, episode: int) -> dict[str, list[Factor]]:
    """All factors of an agent's chain in an episode, by role."""
    rows = episode_rows(bound.demos, episode)
    return {
        "initial": [find_factor(bound, "initial", agent, rows[0])],
        "policy": [find_factor(bound, "policy", agent, row) for row in rows],
        "transition": [find_factor(bound, "transition", agent, row) for row in rows[:-1]],
    }


def latent_paths(demos: Demonstrations, position: int, episode: int) -> Iterator[tuple[int, ...]]:
    """Every latent sequence of an agent in an episode that agrees with its labels."""
    choices = []
    for row in episode_rows(demos, episode):
        label = int(demos.latents[row, position])
        choices.append(range(demos.num_latents[position]) if label < 0 else [label])
    return itertools.product(*choices)


def used_cells(
    factors: Mapping[str, list[Factor]], actions: Any, path: tuple[int, ...]
) -> list[tuple[str, tuple[int, ...]]]:
    """The cells whose product is the probability of a path and the actions."""
    cells: list[tuple[str, tuple[int, ...]]] = []
    (first,) = factors["initial"]
    cells.append((first.site, (first.context, path[0])))
    for t, factor in enumerate(factors["policy"]):
        cells.append((factor.site, (factor.context, path[t], int(actions[t]))))
    for t, factor in enumerate(factors["transition"]):
        cells.append((factor.site, (factor.context, path[t], path[t + 1])))
    return cells


def all_rows(bound: BoundModel, learned: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Rows of every table: the given ones for the learned sites."""
    return {
        name: np.asarray(learned[name], float) if table.learned else table.prior_mean()
        for name, table in bound.tables.items()
    }


def episode_log_likelihoods(bound: BoundModel, learned: Mapping[str, Any]) -> np.ndarray:
    """log p(actions, labels | states, rows) of each episode, over joint latent sequences."""
    demos = bound.demos
    rows = all_rows(bound, learned)
    values = []
    for episode in range(demos.num_episodes):
        steps = episode_rows(demos, episode)
        factors = [episode_factors(bound, agent, episode) for agent in demos.agents]
        total = 0.0
        paths = [list(latent_paths(demos, i, episode)) for i in range(demos.num_agents)]
        for joint in itertools.product(*paths):
            probability = 1.0
            for i, path in enumerate(joint):
                for site, cell in used_cells(factors[i], demos.actions[steps, i], path):
                    probability *= rows[site][cell]
            total += probability
        values.append(math.log(total) if total > 0 else -math.inf)
    return np.array(values)


def log_prior(bound: BoundModel, learned: Mapping[str, Any]) -> float:
    """Log density of the rows under their Dirichlet priors."""
    total = 0.0
    for name, table in bound.learned.items():
        concentration = table.cpt.concentration(table.contexts)
        values = zip(
            concentration.reshape(-1, concentration.shape[-1]),
            np.asarray(learned[name], float).reshape(-1, concentration.shape[-1]),
            strict=True,
        )
        for u, row in values:
            total += math.lgamma(u.sum()) + sum(
                (a - 1) * math.log(p) - math.lgamma(a) for a, p in zip(u, row, strict=True)
            )
    return total


def exact_posterior(bound: BoundModel) -> Enumerated:
    """Integrate the rows out for every latent sequence of all episodes and agents together.

    Given the latents the rows are Dirichlet with the prior plus counts, and the probability of
    the latents and the data is a product of ratios of gamma functions.
    """
    demos = bound.demos
    prior = {name: table.cpt.concentration(table.contexts) for name, table in bound.learned.items()}
    fixed = {n: t.prior_mean() for n, t in bound.tables.items() if not t.learned}
    chains = [(m, i) for m in range(demos.num_episodes) for i in range(demos.num_agents)]
    factors = [episode_factors(bound, demos.agents[i], m) for m, i in chains]
    paths = [list(latent_paths(demos, i, m)) for m, i in chains]
    log_weights, posteriors, sequences = [], [], []
    for joint in itertools.product(*paths):
        counts = {name: np.zeros_like(u) for name, u in prior.items()}
        probability = 1.0
        for (m, i), chain, path in zip(chains, factors, joint, strict=True):
            for site, cell in used_cells(chain, demos.actions[episode_rows(demos, m), i], path):
                if site in counts:
                    counts[site][cell] += 1
                else:
                    probability *= fixed[site][cell]
        if probability == 0:
            continue
        weights = {name: u + counts[name] for name, u in prior.items()}
        log_weights.append(
            math.log(probability)
            + sum(_log_beta(weights[name]) - _log_beta(prior[name]) for name in prior)
        )
        posteriors.append(weights)
        sequences.append(joint)
    log_evidence = float(np.logaddexp.reduce(log_weights))
    shares = np.exp(np.array(log_weights) - log_evidence)
    mean = {name: np.zeros_like(u) for name, u in prior.items()}
    second = {name: np.zeros_like(u) for name, u in prior.items()}
    marginals = {
        agent: np.zeros((demos.num_steps, demos.num_latents[i]))
        for i, agent in enumerate(demos.agents)
    }
    for share, weights, joint in zip(shares, posteriors, sequences, strict=True):
        for name, w in weights.items():
            total = w.sum(-1, keepdims=True)
            mean[name] += share * w / total
            second[name] += share * w * (w + 1) / (total * (total + 1))
        for (m, i), path in zip(chains, joint, strict=True):
            for row, latent in zip(episode_rows(demos, m), path, strict=True):
                marginals[demos.agents[i]][row, latent] += share
    sd = {name: np.sqrt(second[name] - mean[name] ** 2) for name in prior}
    return Enumerated(log_evidence, mean, sd, marginals)


def _log_beta(concentration: np.ndarray) -> float:
    """Sum over rows of the log normaliser of a Dirichlet."""
    flat = concentration.reshape(-1, concentration.shape[-1])
    return sum(sum(map(math.lgamma, row)) - math.lgamma(row.sum()) for row in flat)


def random_rows(bound: BoundModel, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Rows of the learned sites, drawn from flat Dirichlets."""
    return {
        name: generator.dirichlet(np.ones(table.shape[-1]), size=table.shape[:-1])
        for name, table in bound.learned.items()
    }
