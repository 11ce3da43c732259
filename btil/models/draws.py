"""One draw of all tables of a model: a row for any context, whether data have reached it or not.

Of a table with a Dirichlet prior infinitely many rows are drawn at once in principle; here a row
is drawn when it is first asked for, and is the same ever after.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from btil.demonstrations import Demonstrations
from btil.models.contexts import match_rows, unique_rows
from btil.models.cpt import Contexts
from btil.models.emission import DrawnChannelRows
from btil.models.parametric import (
    all_priors,
    expected_concentration,
    expected_rows,
    parametric_site,
)
from btil.models.team import BoundModel, Table, TeamModel, bind


class KnownRows:
    """Rows of some contexts of a table.

    Attributes:
        contexts: Distinct parent values, (contexts, parents).
        rows: Their rows.
    """

    def __init__(
        self, contexts: Int[np.ndarray, "contexts parents"], rows: Float[np.ndarray, "contexts ..."]
    ) -> None:
        self.contexts = contexts
        self.rows = rows

    def add(
        self, contexts: Int[np.ndarray, "more parents"], rows: Float[np.ndarray, "more ..."]
    ) -> None:
        """Rows of further contexts."""
        self.contexts = np.concatenate([self.contexts, contexts])
        self.rows = np.concatenate([self.rows, rows])


@dataclass(eq=False)
class DrawnTables:
    """One draw of all tables of a model.

    Attributes:
        tables: The tables by their sites; which contexts they are bound to does not matter.
        parameters: Drawn values of the parameters of parametric families, by their sites.
        generator: Draws the rows that nobody has asked for yet.
        known: Rows that are known already, by site; others are drawn from the prior (given the
            parameters) when they are asked for, and added.
        channels: Of agents with continuous columns, likewise.
    """

    tables: Mapping[str, Table]
    parameters: Mapping[str, np.ndarray]
    generator: np.random.Generator
    known: dict[str, KnownRows] = field(default_factory=dict)
    channels: dict[str, DrawnChannelRows] = field(default_factory=dict)

    def rows(self, site: str, contexts: Contexts) -> Float[np.ndarray, "..."]:
        """Rows of any contexts of a table.

        Args:
            site: The table, e.g. "policy_ann".
            contexts: As from `make_contexts(model, role, agent, demos, rows)`.

        Returns:
            (contexts, latents, values), or (contexts, latents) for an initial table.
        """
        table = self.tables[site]
        if not table.cpt.learned:
            return table.cpt.probabilities(contexts)
        if not table.cpt.dirichlet_rows:
            return expected_rows(parametric_site(table), self._as_one_draw(), contexts)
        if site not in self.known:
            nothing = contexts._replace(rows=contexts.rows[:0])
            self.known[site] = KnownRows(nothing.rows, np.zeros(nothing.shape))
        known = self.known[site]
        if known.contexts is contexts.rows:
            return known.rows
        found = match_rows(known.contexts, contexts.rows)
        if (found < 0).any():
            new, _ = unique_rows(contexts.rows[found < 0])
            concentration = self.concentration(site, contexts._replace(rows=new))
            known.add(new, dirichlet_draws(self.generator, concentration))
            found = match_rows(known.contexts, contexts.rows)
        return known.rows[found]

    def concentration(self, site: str, contexts: Contexts) -> Float[np.ndarray, "..."]:
        """Dirichlet concentration of the rows of a table before data, given the parameters.

        Args:
            site: A table whose rows are Dirichlet given the parameters.
            contexts: As in `rows`.
        """
        table = self.tables[site]
        if not table.parametric:
            return table.cpt.concentration(contexts)
        return expected_concentration(parametric_site(table), self._as_one_draw(), contexts)

    def _as_one_draw(self) -> dict[str, np.ndarray]:
        return {site: np.asarray(value)[None] for site, value in self.parameters.items()}


def prior_tables(
    model: TeamModel, demos: Demonstrations, generator: np.random.Generator
) -> DrawnTables:
    """Draw all tables, and the parameters they depend on, from the prior.

    Args:
        model: The model.
        demos: Demonstrations that tell agents, state variables and sizes; what happens in them
            does not matter.
        generator: Makes the draw.

    Example:
        >>> tables = prior_tables(model, demos, np.random.default_rng(0))  # doctest: +SKIP
    """
    return prior_draw(bind(model, demos), generator)


def prior_draw(bound: BoundModel, generator: np.random.Generator) -> DrawnTables:
    """`prior_tables` of a model that is on its demonstrations."""
    drawn = DrawnTables(bound.tables, prior_parameters(bound.tables, generator), generator)
    for agent, channel in bound.channels.items():
        drawn.channels[agent] = DrawnChannelRows.of_prior(channel, generator)
    return drawn


def prior_parameters(
    tables: Mapping[str, Table], generator: np.random.Generator
) -> dict[str, np.ndarray]:
    """Draw the parameters of the parametric tables from their priors, {site: value}."""
    described = tuple(parametric_site(table) for table in tables.values() if table.parametric)
    if not described:
        return {}
    import jax

    key = jax.random.key(int(generator.integers(2**32)))
    drawn = {}
    for site, prior in all_priors(described).items():
        key, own = jax.random.split(key)
        drawn[site] = np.asarray(prior.sample(own))
    return drawn


def log_gamma_draws(
    generator: np.random.Generator, shape: Float[np.ndarray, "*cells"]
) -> Float[np.ndarray, "*cells"]:
    """Logs of Gamma draws of these shape parameters, however small: G(a) = G(a + 1) U^(1/a)."""
    log_gamma = np.log(generator.standard_gamma(shape + 1))
    return log_gamma - generator.standard_exponential(shape.shape) / shape


def dirichlet_draws(
    generator: np.random.Generator, concentration: Float[np.ndarray, "..."]
) -> Float[np.ndarray, "..."]:
    """Draw rows, through log-gammas so that small concentrations do not underflow to 0/0."""
    concentration = np.asarray(concentration, np.float64)
    log_gamma = log_gamma_draws(generator, concentration)
    rows = np.exp(log_gamma - log_gamma.max(-1, keepdims=True))
    # No draw is zero: where one rounds to it, data would become impossible.
    return np.maximum(rows / rows.sum(-1, keepdims=True), np.finfo(np.float64).tiny)


def posterior_tables(
    tables: Mapping[str, Table],
    draws: Mapping[str, Any],
    draw: int,
    generator: np.random.Generator,
) -> DrawnTables:
    """One of several draws from a posterior, {site: (draws, ...)}, rows and parameters."""
    parameters = {site: values[draw] for site, values in draws.items() if site not in tables}
    known = {
        site: KnownRows(table.contexts.rows, np.asarray(draws[site][draw], np.float64))
        for site, table in tables.items()
        if site in draws
    }
    return DrawnTables(tables, parameters, generator, known)
