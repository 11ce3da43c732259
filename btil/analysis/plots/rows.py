"""The rows of learned tables: which to look at, what they are called, how much data they saw."""

import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.arguments import check_index, check_values
from btil.demonstrations.naming import without_owner
from btil.inference.chains import rhat
from btil.inference.method import method_of
from btil.inference.result import (
    DirichletRows,
    DrawnParameters,
    DrawnRows,
    MomentRows,
    check_all_kept,
)
from btil.models.contexts import data_column
from btil.models.cpt import ROLES
from btil.models.draws import DrawnTables, dirichlet_draws, prior_parameters
from btil.models.parametric import all_priors, parametric_sites
from btil.models.team import Table, make_contexts
from btil.numpyro_forms.numpyro_model import BoundNumpyroModel
from btil.posterior.beliefs import Posterior, refuse_excerpt
from btil.posterior.posterior import TeamPosterior

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
    posterior: Posterior, num_worst: int = 3, num_visited: int = 3
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
    check_values({"num_worst": num_worst, "num_visited": num_visited})
    # Of each row the largest of its cells that have any.
    rhats = {s: np.fmax.reduce(rhat(d), axis=-1) for s, d in chains_of(posterior).items()}
    if not rhats:  # a model of the modeler's own has parameters alone
        return ()
    flat = [
        (float(value), _choice(site, index))
        for site, values in rhats.items()
        for index, value in np.ndenumerate(values)
        if not np.isnan(value)
    ]
    flat.sort(key=lambda pair: -pair[0])
    chosen = [choice for _, choice in flat[:num_worst]]
    return tuple(dict.fromkeys([*chosen, *most_read(posterior)[:num_visited]]))


def most_read(posterior: Posterior) -> tuple[RowChoice, ...]:
    """Of every learned table the row that the data read most often, the fullest table first."""
    fullest = [
        (values.max(), _choice(site, np.unravel_index(values.argmax(), values.shape)))
        for site, values in expected_visits(posterior).items()
    ]
    fullest.sort(key=lambda pair: -pair[0])
    return tuple(choice for _, choice in fullest)


def most_moved(posterior: Posterior) -> tuple[RowChoice, ...]:
    """Of every learned table the row with the cell whose mean the data have moved furthest."""
    chosen = []
    for site, rows in posterior.result.rows.items():
        moved = np.abs(rows.mean() - posterior.bound.tables[site].prior_mean()).max(-1)
        chosen.append(_choice(site, np.unravel_index(moved.argmax(), moved.shape)))
    return tuple(chosen)


def _choice(site: str, index: Any) -> RowChoice:
    return RowChoice(site, *map(int, index))


def check_row(posterior: Posterior, row: RowChoice, sites: Iterable[str]) -> tuple[Any, ...]:
    """Where a row is in its table.

    Args:
        posterior: The posterior.
        row: The row.
        sites: Tables that it may be of.

    Returns:
        Its indices: context and latent; of an initial table the context alone.

    Raises:
        ValueError: If there is no such table or row.
    """
    if row.site not in sites:
        raise ValueError(f"rows: no learned table {row.site!r}; there are {', '.join(sites)}")
    table = posterior.bound.tables[row.site]
    limits = dict(zip(("context", "latent"), table.shape[:-1], strict=False))
    return tuple(
        check_index(f"rows: {name} of {row}", getattr(row, name), size)
        for name, size in limits.items()
    )


def prior_draws(
    posterior: Posterior, row: RowChoice, num_draws: int, generator: np.random.Generator
) -> Float[np.ndarray, "draws values"]:
    """Draws of a row from its prior."""
    table = posterior.bound.tables[row.site]
    contexts = table.contexts._replace(rows=table.contexts.rows[[row.context]])
    at = (0,) if row.latent is None else (0, row.latent)
    if not table.parametric:
        concentration = table.cpt.concentration(contexts)[at]
        return dirichlet_draws(
            generator, np.broadcast_to(concentration, (num_draws, len(concentration)))
        )
    tables = {row.site: table}
    return np.stack(
        [
            DrawnTables(tables, prior_parameters(tables, generator), generator).rows(
                row.site, contexts
            )[at]
            for _ in range(num_draws)
        ]
    )


def chains_of(posterior: Posterior) -> dict[str, Float[np.ndarray, "chain draw ..."]]:
    """The chains of every learned table.

    Raises:
        ValueError: If the method has none, or the draws of some rows only were kept.
    """
    rows = posterior.result.rows
    check_all_kept(rows, "plots of chains (ArviZ makes them of posterior.to_datatree(), too)")
    chains = {site: one.draws for site, one in rows.items() if isinstance(one, DrawnRows)}
    approximate = method_of(posterior.method).answer == "approximation"
    if approximate or not (chains or parameter_chains(posterior)):
        raise ValueError(f"{posterior.method} has no chains to plot; use method 'nuts' or 'gibbs'")
    return chains


def parameter_chains(posterior: Posterior) -> dict[str, Float[np.ndarray, "chain draw ..."]]:
    """The chains of the parameters of parametric families, by their sites."""
    return {
        site: one.draws
        for site, one in posterior.result.parameters.items()
        if isinstance(one, DrawnParameters)
    }


def check_parameter(name: str, parameters: Iterable[str]) -> None:
    """Refuse the name of a parameter that there is not.

    Raises:
        ValueError: Naming those there are.
    """
    if name not in parameters:
        raise ValueError(
            f"rows: no parameter {name!r}; there are {', '.join(parameters) or 'none'}"
        )


def parameter_names(posterior: Posterior, site: str) -> tuple[str, ...]:
    """The names of a parameter's cells, such as "[help, push]"; an empty one for a number."""
    # The tree knows the names along the axes; two draws are enough for that.
    variables: Any = posterior.to_datatree(num_draws=2)["posterior"].data_vars.values()
    values = next(one for one in variables if one.attrs["site"] == site)
    axes = [
        values.coords[axis].values.astype(str).tolist()
        if axis in values.coords
        else list(map(str, range(size)))
        for axis, size in zip(values.dims[2:], values.shape[2:], strict=True)
    ]
    return tuple(f"[{', '.join(labels)}]" if labels else "" for labels in itertools.product(*axes))


def prior_parameter_draws(
    posterior: Posterior, site: str, num_draws: int, generator: np.random.Generator
) -> Float[np.ndarray, "draws cells"]:
    """Draws of a parameter from its prior."""
    import jax

    key = jax.random.key(int(generator.integers(2**32)))
    if isinstance(posterior.bound, BoundNumpyroModel):
        from numpyro.infer import Predictive

        own = posterior.bound.own_model.function
        prior = Predictive(own, num_samples=num_draws, return_sites=[site])
        drawn = prior(key, posterior.bound.data)[site]
    else:
        drawn = all_priors(parametric_sites(posterior.bound))[site].sample(key, (num_draws,))
    return np.asarray(drawn, np.float64).reshape(num_draws, -1)


def expected_visits(posterior: Posterior) -> dict[str, Float[np.ndarray, "contexts ..."]]:
    """How often the training data read each row of the learned tables, in expectation.

    A step reads the policy row of its context and latent, unless nobody saw the action and the own
    transition does not read it; the latent counts by its smoothed probability, given what was
    learned from: actions and labels.

    Args:
        posterior: The posterior, whose beliefs about latents are used.

    Returns:
        {site: (contexts, latents)}, for an initial table (contexts,).
    """
    bound = posterior.bound
    if bound.excerpt:
        return {site: _counted_visits(posterior, table) for site, table in bound.learned.items()}
    beliefs = posterior.smooth(posterior.demos, use_labels=True)
    visits = {site: np.zeros(table.shape[:-1]) for site, table in bound.learned.items()}
    for agent in bound.rows:
        for role in ROLES:
            site = bound.table(role, agent).name
            if site in visits:
                visits[site] += _reads(posterior, role, agent, beliefs[agent])
    return visits


def read_counts(posterior: Posterior, role: str, agent: str) -> Float[np.ndarray, "contexts ..."]:
    """How often one agent read each row of its table, in expectation; the table may be given.

    Args:
        posterior: The posterior, whose beliefs about latents are used.
        role: "policy", "transition" or "initial".
        agent: Name of the agent.

    Returns:
        (contexts, latents), for an initial table (contexts,).
    """
    table = posterior.bound.table(role, agent)
    if posterior.bound.excerpt:
        if not table.learned or len(table.agents) > 1:
            refuse_excerpt(posterior, f"how often {agent} reads rows that are given or shared")
        return _counted_visits(posterior, table)
    beliefs = posterior.smooth(posterior.demos, use_labels=True)
    return _reads(posterior, role, agent, beliefs[agent])


def _counted_visits(posterior: Posterior, table: Table) -> Float[np.ndarray, "contexts ..."]:
    """Expected visits by what mean field added to the prior's concentrations."""
    fitted = posterior.result.rows[table.name]
    assert isinstance(fitted, DirichletRows)
    return (fitted.concentration - table.cpt.concentration(table.contexts)).sum(-1)


def _reads(
    posterior: Posterior, role: str, agent: str, beliefs: Float[np.ndarray, "steps latents"]
) -> Float[np.ndarray, "contexts ..."]:
    bound = posterior.bound
    reads, demos = bound.rows[agent], bound.demos
    counts = np.zeros(bound.table(role, agent).shape[:-1])
    if role == "policy":
        said = (reads.policy >= 0) & (demos.actions[:, demos.agents.index(agent)] >= 0)
        if reads.unseen is not None:
            said[reads.unseen.step - 1] = True
        np.add.at(counts, reads.policy[said], beliefs[said])
    elif role == "transition":
        moved = np.flatnonzero(reads.transition >= 0)
        np.add.at(counts, reads.transition[moved], beliefs[moved - 1])
        if reads.unseen is not None:
            # Where nobody saw the action that is read, every row counts as the policy has it.
            unseen, before = reads.unseen, beliefs[reads.unseen.step - 1]
            assert isinstance(posterior, TeamPosterior)
            policy = posterior.visited_rows("policy", agent)[unseen.policy]
            np.add.at(counts, unseen.transition, before[:, None] * np.swapaxes(policy, 1, 2))
    else:
        np.add.at(counts, reads.initial, 1.0)
    return counts


def letter(number: int) -> str:
    """A, B, ..., Z, A1, B1, ..."""
    return chr(ord("A") + number % 26) + (str(number // 26) if number >= 26 else "")


def value_names(posterior: Posterior, row: RowChoice) -> tuple[str, ...]:
    """The names of a row's cells: actions, or latents."""
    table = posterior.bound.tables[row.site]
    kind = "action" if table.contexts.role == "policy" else "latent"
    return posterior.demos.value_names(f"{kind}_{table.agents[0]}")


def row_title(posterior: Posterior, row: RowChoice) -> str:
    """What a row is, in the words of the data."""
    table = posterior.bound.tables[row.site]
    agent, role = table.agents[0], table.contexts.role
    who = agent if len(table.agents) == 1 else "all agents"
    given = []
    if row.latent is not None:
        given.append(posterior.demos.value_names(f"latent_{agent}")[row.latent])
    given += context_words(posterior, role, agent, row.context)
    return f"{role} of {who}" + (f" given {', '.join(given)}" if given else "")


def context_words(posterior: Posterior, role: str, agent: str, context: int) -> list[str]:
    """What a context is to an agent, "parent=value" each; arguments as `context_values`."""
    return [f"{n}={value}" for n, value in context_values(posterior, role, agent, context)]


def context_values(
    posterior: Posterior, role: str, agent: str, context: int
) -> list[tuple[str, str]]:
    """What a context is to an agent: parents and their values; its own without its name.

    Args:
        posterior: The posterior.
        role: "policy", "transition" or "initial".
        agent: Name of the agent.
        context: Row of `posterior.contexts(agent, role)`.
    """
    demos = posterior.demos
    # Of a shared table the k-th parent is one variable, seen from each agent's side.
    names = make_contexts(posterior.model, role, agent, demos).names
    values = posterior.bound.table(role, agent).contexts.rows[context]
    given = []
    for name, value in zip(names, values, strict=True):
        column = data_column(name, demos.num_states)
        given.append((without_owner(name, agent), demos.value_text(column, int(value))))
    return given


def interval(draws: Float[np.ndarray, "draws ..."]) -> Float[np.ndarray, "2 ..."]:
    """Ends of the central 89% interval of draws."""
    return np.quantile(draws.astype(np.float64), [(1 - _INTERVAL) / 2, (1 + _INTERVAL) / 2], axis=0)


def row_draws(
    posterior: Posterior, site: str, index: tuple[Any, ...], num_draws: int, seed: int = 0
) -> Float[np.ndarray, "draws ..."]:
    """Posterior draws of some rows of a table, without drawing all the others.

    Args:
        posterior: The posterior.
        site: A learned table.
        index: The rows, as an index of its leading axes (contexts, latents).
        num_draws: Number of draws; of chains, no more than they have.
        seed: Seeds the draws.

    Raises:
        ValueError: If the draws of some rows only were kept, and not of one of these.
    """
    rows = posterior.result.rows[site]
    generator = np.random.default_rng([seed, 3])
    if isinstance(rows, DirichletRows):
        return DirichletRows(rows.concentration[index]).sample(num_draws, generator)
    if isinstance(rows, MomentRows):
        index = (rows.places(site, index[0]), *index[1:])
    if isinstance(rows, DrawnRows | MomentRows):
        own = rows.draws[:, :, *index]
        flat = own.reshape(-1, *own.shape[2:])
        return flat[generator.permutation(len(flat))[:num_draws]]
    return posterior.sample(num_draws, seed)[site][:, *index]


def cell_intervals(
    posterior: Posterior, site: str, cells: Int[np.ndarray, " cells"]
) -> Float[np.ndarray, "2 cells"]:
    """Central 89% intervals of cells, by their flat indices.

    Raises:
        ValueError: If the draws of some rows only were kept, and not of one of these.
    """
    rows = posterior.result.rows[site]
    if isinstance(rows, DirichletRows):
        from scipy.stats import beta

        own = rows.concentration.ravel()[cells]
        rest = np.broadcast_to(rows.concentration.sum(-1, keepdims=True), rows.concentration.shape)
        rest = rest.ravel()[cells] - own
        single = rest <= 0  # rows of one cell: it is 1
        bounds = beta.interval(_INTERVAL, own, np.where(single, 1.0, rest))
        return np.where(single, 1.0, bounds)
    if isinstance(rows, MomentRows):
        contexts, within = np.divmod(cells, math.prod(rows.draws.shape[3:]))
        cells = rows.places(site, contexts) * math.prod(rows.draws.shape[3:]) + within
    if isinstance(rows, DrawnRows | MomentRows):
        draws = rows.draws.reshape(-1, math.prod(rows.draws.shape[2:]))
    else:
        draws = posterior.sample(1000, seed=0)[site].reshape(1000, -1)
    return interval(draws[:, cells])
