"""The rows of learned tables: which to look at, what they are called, how much data they saw."""

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.inference.chains import split_rhat
from btil.inference.posterior import TeamPosterior
from btil.inference.result import DirichletRows, DrawnRows

_INTERVAL = 0.89


class RowChoice(NamedTuple):
    """One probability row of a learned table.

    Attributes:
        site: Name of the table, e.g. "policy_alice".
        context: Row of `posterior.contexts`.
        latent: The latent; None for an initial distribution.
    """

    site: str
    context: int
    latent: int | None = None


def choose_rows(
    posterior: TeamPosterior, num_worst: int = 3, num_visited: int = 3
) -> tuple[RowChoice, ...]:
    """Rows worth looking at: those whose chains agree least, and those that matter most.

    Args:
        posterior: A posterior with chains.
        num_worst: Number of rows with the largest R-hat.
        num_visited: Number of tables of which the row is added that the data read most often, by
            the expected number of steps in that context and latent.

    Returns:
        Rows, the worst first; none twice.

    Raises:
        ValueError: If the posterior has no chains.
    """
    rhats = {}
    for site, draws in chains_of(posterior).items():
        cells = split_rhat(draws)
        rhats[site] = np.where(np.isnan(cells), -np.inf, cells).max(-1)
    flat = [
        (float(value), _choice(site, index))
        for site, values in rhats.items()
        for index, value in np.ndenumerate(values)
        if value > -np.inf
    ]
    flat.sort(key=lambda pair: -pair[0])
    chosen = [choice for _, choice in flat[:num_worst]]
    visits = expected_visits(posterior)
    fullest = [
        (values.max(), _choice(site, np.unravel_index(values.argmax(), values.shape)))
        for site, values in visits.items()
    ]
    fullest.sort(key=lambda pair: -pair[0])
    chosen += [choice for _, choice in fullest[:num_visited]]
    return tuple(dict.fromkeys(chosen))


def _choice(site: str, index: Any) -> RowChoice:
    return RowChoice(site, *map(int, index))


def chains_of(posterior: TeamPosterior) -> dict[str, Float[np.ndarray, "chain draw ..."]]:
    """The chains of every learned table.

    Raises:
        ValueError: If the method has none.
    """
    rows = posterior.result.rows
    chains = {site: one.draws for site, one in rows.items() if isinstance(one, DrawnRows)}
    if not chains or posterior.method == "svi":
        raise ValueError(f"{posterior.method} has no chains to plot; use method 'nuts' or 'gibbs'")
    return chains


def expected_visits(posterior: TeamPosterior) -> dict[str, Float[np.ndarray, "contexts ..."]]:
    """How often the training data read each row of the learned tables, in expectation.

    A step reads the policy row of its context and latent; the latent counts by its smoothed
    probability.

    Args:
        posterior: The posterior, whose beliefs about latents are used.

    Returns:
        {site: (contexts, latents)}, for an initial table (contexts,).
    """
    bound = posterior.bound
    beliefs = posterior.smooth(posterior.demos)
    visits = {site: np.zeros(table.shape[:-1]) for site, table in bound.learned.items()}
    for agent, reads in bound.rows.items():
        policy, transition, initial = (
            bound.table(role, agent).name for role in ("policy", "transition", "initial")
        )
        moved = np.flatnonzero(reads.transition >= 0)
        if policy in visits:
            np.add.at(visits[policy], reads.policy, beliefs[agent])
        if transition in visits:
            np.add.at(visits[transition], reads.transition[moved], beliefs[agent][moved - 1])
        if initial in visits:
            np.add.at(visits[initial], reads.initial, 1.0)
    return visits


def letter(number: int) -> str:
    """A, B, ..., Z, A1, B1, ..."""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


def value_names(posterior: TeamPosterior, row: RowChoice) -> tuple[str, ...]:
    """The names of a row's cells: actions, or latents."""
    table = posterior.bound.tables[row.site]
    kind = "action" if table.contexts.role == "policy" else "latent"
    return posterior.demos.value_names(f"{kind}_{table.agents[0]}")


def row_title(posterior: TeamPosterior, row: RowChoice) -> str:
    """What a row is, in the words of the data."""
    table = posterior.bound.tables[row.site]
    agent, role = table.agents[0], table.contexts.role
    who = agent if len(table.agents) == 1 else "all agents"
    given = []
    if row.latent is not None:
        given.append(posterior.demos.value_names(f"latent_{agent}")[row.latent])
    context = posterior.contexts(agent, role).iloc[row.context]
    for name, value in context.items():
        own = str(name).replace(f"{agent}_", "", 1)
        given.append(f"{own}={value}")
    return f"{role} of {who}" + (f" given {', '.join(given)}" if given else "")


def cell_intervals(
    posterior: TeamPosterior, site: str, cells: Int[np.ndarray, " cells"]
) -> Float[np.ndarray, "2 cells"]:
    """Central 89% intervals of cells, by their flat indices."""
    levels = [(1 - _INTERVAL) / 2, (1 + _INTERVAL) / 2]
    rows = posterior.result.rows[site]
    if isinstance(rows, DirichletRows):
        from scipy.stats import beta

        own = rows.concentration.ravel()[cells]
        rest = np.broadcast_to(rows.concentration.sum(-1, keepdims=True), rows.concentration.shape)
        rest = rest.ravel()[cells] - own
        single = rest <= 0  # rows of one cell: it is 1
        bounds = [beta.ppf(level, own, np.where(single, 1.0, rest)) for level in levels]
        return np.where(single, 1.0, bounds)
    if isinstance(rows, DrawnRows):
        draws = rows.draws.reshape(-1, math.prod(rows.draws.shape[2:]))
    else:
        draws = posterior.sample(1000, seed=0)[site].reshape(1000, -1)
    return np.quantile(draws[:, cells].astype(np.float64), levels, axis=0)
