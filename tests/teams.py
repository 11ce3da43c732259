"""Small teams to test on, and the truth about their chains by enumeration.

The teams are made to expose mistakes: agents of different sizes, asymmetric tables, several state
variables, episodes of unequal lengths, one of a single step, labels on some steps of some agents.
"""

from typing import Any, NamedTuple

import numpy as np
from enumeration import episode_factors, episode_rows, find_factor, latent_paths, used_cells

import btil
from btil.demonstrations import Demonstrations
from btil.inference.result import DirichletRows, FitResult, MatrixNormalChannel
from btil.models.team import BoundModel, bind


def random_demos(
    seed: int = 0,
    lengths: tuple[int, ...] = (3, 1, 4, 2),
    num_latents: tuple[int, ...] = (2, 3),
    num_actions: tuple[int, ...] = (3, 2),
    num_states: tuple[int, ...] = (2, 2),
    labelled: float = 0.3,
) -> Demonstrations:
    """Random states, actions and labels; agents are called ann, bob, cat, states x, y, z."""
    generator = np.random.default_rng(seed)
    steps = sum(lengths)
    agents = ("ann", "bob", "cat")[: len(num_latents)]
    states = dict(zip("xyz", num_states, strict=False))
    latents = np.stack([generator.integers(0, k, steps) for k in num_latents], 1)
    return btil.Demonstrations(
        states={name: generator.integers(0, size, steps) for name, size in states.items()},
        actions=np.stack([generator.integers(0, a, steps) for a in num_actions], 1),
        latents=np.where(generator.random(latents.shape) < labelled, latents, -1),
        episodes=np.repeat(np.arange(len(lengths)), lengths),
        agents=agents,
        num_states=states,
        num_actions=num_actions,
        num_latents=num_latents,
    )


def rich_model() -> btil.TeamModel:
    """All three tables learned, each with parents of its own."""
    return btil.TeamModel(
        policy=btil.DirichletCPT(0.7, parents=("state",)),
        transition=btil.DirichletCPT(0.9, parents=("x", "actions", "next_y")),
        initial=btil.DirichletCPT(1.3, parents=("y",)),
    )


def hmm_model(concentration: float = 1.0) -> btil.TeamModel:
    """No parents anywhere, the same concentration everywhere."""
    return btil.TeamModel(
        policy=btil.DirichletCPT(concentration),
        transition=btil.DirichletCPT(concentration),
        initial=btil.DirichletCPT(concentration),
    )


def hmm_demos(
    actions: list[int], labels: list[int] | None = None, num_latents: int = 2, **options: Any
) -> Demonstrations:
    """One agent, one task state."""
    return btil.Demonstrations(
        states=np.zeros(len(actions), int),
        actions=np.array(actions)[:, None],
        latents=None if labels is None else np.array(labels)[:, None],
        num_states=1,
        num_latents=num_latents,
        **options,
    )


def two_labelled_episodes(**options: Any) -> Demonstrations:
    """Two short episodes of which every step is labelled."""
    return hmm_demos([0, 1, 2, 2, 1, 0], [0, 0, 1, 1, 0, 0], episodes=[0, 0, 0, 1, 1, 1], **options)


def made_by_hand(
    model: btil.TeamModel, demos: Demonstrations, method: str = "mfvi", **found: Any
) -> Any:
    """A posterior that no method has fitted: flat Dirichlet rows, or what is given."""
    bound = bind(model, demos)
    flat = {name: DirichletRows(np.ones(table.shape)) for name, table in bound.learned.items()}
    result = FitResult(**{"rows": flat, "converged": True, "reason": "made by hand", **found})
    return btil.TeamPosterior(bound, method, result, 0, np.dtype(float), 1.0)


def team_with_columns(**changes: Any) -> Any:
    """Both have a column, normal by latent and by a state of which two of four values occur."""
    generator = np.random.default_rng(0)
    agents = ("ann", "bob")
    demos = btil.Demonstrations(
        {"x": [0, 1, 1, 0], "y": [0, 0, 1, 1]},
        {agent: [0, 1, 1, 0] for agent in agents},
        episodes=[0, 0, 0, 1],
        num_states={"x": 4, "y": 2},
        num_latents=2,
        continuous={f"{agent}_v": generator.normal(size=4) for agent in agents},
    ).replace(**changes)
    prior = {"location": 0.5, "noise": 2.0, "pseudo_steps": 3.0, "degrees_of_freedom": 5.0}
    emissions = {a: btil.NormalEmission((f"{a}_v",), parents=("x",), **prior) for a in agents}
    model = btil.TeamModel(
        policy=btil.KnownCPT([[0.9, 0.1], [0.3, 0.7]]),
        transition=btil.KnownCPT([[0.8, 0.2], [0.4, 0.6]]),
        initial=btil.KnownCPT([0.7, 0.3]),
        emissions=emissions,
    )
    found = {
        f"emission_{agent}": MatrixNormalChannel(
            location=generator.normal(size=(2, 2, 1, 1)),
            precision=np.full((2, 2, 1, 1), 4.0),
            scale=generator.uniform(1, 2, (2, 2, 1, 1)),
            degrees=np.full((2, 2), 7.0),
        )
        for agent in agents
    }
    return made_by_hand(model, demos, rows={}, channels=found)


class ChainTruth(NamedTuple):
    """One agent's chains under given rows, by enumeration of its latent paths.

    Attributes:
        log_likelihood: log p(actions, labels) of each episode.
        smoothed: P(x_t | episode), (steps, latents).
        filtered: P(x_t | episode up to t), (steps, latents).
        predicted: P(x_t | episode before t), (steps, latents).
        pair: P(x_{t-1}, x_t | episode) at t, zeros at an episode's first step.
        paths: Per episode, every path that agrees with the labels, and its probability.
    """

    log_likelihood: np.ndarray
    smoothed: np.ndarray
    filtered: np.ndarray
    predicted: np.ndarray
    pair: np.ndarray
    paths: list[dict[tuple[int, ...], float]]


def chain_truth(bound: BoundModel, agent: str, rows: dict[str, np.ndarray]) -> ChainTruth:
    """Enumerate an agent's latent paths in every episode; `rows` has all tables by site."""
    demos = bound.demos
    position = demos.agents.index(agent)
    latents = demos.num_latents[position]
    smoothed = np.zeros((demos.num_steps, latents))
    filtered, predicted = np.zeros_like(smoothed), np.zeros_like(smoothed)
    pair = np.zeros((demos.num_steps, latents, latents))
    log_likelihood, all_paths = [], []
    for episode in range(demos.num_episodes):
        steps = episode_rows(demos, episode)
        factors = episode_factors(bound, agent, episode)
        weights = {}
        for path in latent_paths(demos, position, episode):
            cells = used_cells(factors, demos.actions[steps, position], path)
            weights[path] = float(np.prod([rows[site][cell] for site, cell in cells]))
        total = sum(weights.values())
        for path, weight in weights.items():
            for t, row in enumerate(steps):
                smoothed[row, path[t]] += weight / total
                if t > 0:
                    pair[row, path[t - 1], path[t]] += weight / total
        # The past alone, step by step: a label or action at t counts once t has been seen.
        belief = None
        for row in steps:
            if belief is None:
                factor = find_factor(bound, "initial", agent, row)
                belief = rows[factor.site][factor.context]
            else:
                factor = find_factor(bound, "transition", agent, row - 1)
                belief = belief @ rows[factor.site][factor.context]
            predicted[row] = belief
            factor = find_factor(bound, "policy", agent, row)
            action = demos.actions[row, position]
            belief = belief * rows[factor.site][factor.context][:, action]
            label = demos.latents[row, position]
            if label >= 0:
                belief = belief * (np.arange(latents) == label)
            belief = belief / belief.sum()
            filtered[row] = belief
        log_likelihood.append(np.log(total))
        all_paths.append({path: weight / total for path, weight in weights.items()})
    return ChainTruth(np.array(log_likelihood), smoothed, filtered, predicted, pair, all_paths)
