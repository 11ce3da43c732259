"""One simulation: a truth from the prior, its data, a fit, and where the truth lies in it."""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpyro.distributions.transforms import biject_to

from btil.analysis.alignment import agents_pinned, align
from btil.analysis.calibration.ranks import (
    Ranked,
    Reliability,
    rank,
    rank_latents,
    reliability,
)
from btil.analysis.latent_draws import padded_logs
from btil.analysis.monte_carlo import drawn_shape, some_draws
from btil.demonstrations import Demonstrations
from btil.inference.chains import ess
from btil.inference.method import method_of
from btil.inference.result import DrawnChannel, DrawnParameters, DrawnRows, FitResult
from btil.messages.lanes import spread
from btil.messages.layout import LaneIndex, gather, lay_out
from btil.messages.smoother import filter_lanes, potentials, smooth
from btil.models.cpt import ROLES
from btil.models.draws import DrawnTables, prior_draw
from btil.models.emission import channel_log_density, step_log_density
from btil.models.parametric import all_priors, given_concentration, parametric_site
from btil.models.simulate import simulate
from btil.models.team import BoundModel, Table, TeamModel, bind, context_visits
from btil.numerics.precision import precision
from btil.numerics.promotion import promotion_allowed
from btil.numerics.rounding import rounded_up
from btil.numerics.special import log_dirichlet
from btil.posterior.beliefs import Posterior
from btil.posterior.fit import fit

# Random numbers of a simulation, in streams of their own: methods are then given the same data.
_TRUTH, _LABELS, _FIT, _RANKS = range(4)
# Beyond the log of any number but zero.
_FURTHEST = 1000.0


@dataclass(frozen=True)
class Settings:
    """What makes a simulation, besides its number.

    Attributes:
        model: Also the prior that truths are drawn from.
        demos: States, episodes and sizes; and which steps are labelled, unless a share is given.
        method: The inference method.
        options: Its options.
        num_draws: Posterior draws among which truths are ranked, at most.
        num_cells: Cells ranked per role, and steps for the latents, in each simulation.
        share_labelled: Share of the episodes labelled in full; None: the steps that `demos` label.
        seed: Seeds everything.
    """

    model: TeamModel
    demos: Demonstrations
    method: str
    options: Mapping[str, Any]
    num_draws: int
    num_cells: int
    share_labelled: float | None
    seed: int

    @cached_property
    def bound(self) -> BoundModel:
        """The model on `demos`.

        Its `model` has numbers for all that is open of its emissions: one prior for all data.
        """
        return bind(self.model, self.demos)


class Simulation(NamedTuple):
    """What is kept of one simulation.

    Attributes:
        ranked: Per group, its quantities.
        point: Sureness of the smoothed latents under the point estimate.
        averaged: The same, averaged over posterior draws.
        num_draws: Draws that truths were ranked among.
        converged: Whether the method says so.
        aligned: Whether nothing pinned some latents, which were then named as in the truth.
        seconds: Time of the fit.
    """

    ranked: dict[str, Ranked]
    point: Reliability
    averaged: Reliability
    num_draws: int
    converged: bool
    aligned: bool
    seconds: float


def run_simulation(settings: Settings, number: int) -> Simulation:
    """Draw a truth and data, fit, rank.

    Args:
        settings: What all simulations have in common.
        number: Which of them; its randomness depends on this and the seed alone.

    Raises:
        ArithmeticError: If the fit did not give numbers.
    """
    truth, full, observed = draw_data(settings, number)
    begun = time.perf_counter()
    posterior = fit(
        settings.bound.model,
        observed,
        settings.method,
        seed=int(_generator(settings, number, _FIT).integers(2**32)),
        progress=False,
        **settings.options,
    )
    seconds = time.perf_counter() - begun
    unpinned = unpinned_agents(posterior.bound)
    if unpinned:
        posterior = named_as_in(posterior, truth)
    generator = _generator(settings, number, _RANKS)
    cells = choose_cells(posterior.bound, settings.num_cells, generator)
    few = thinned(posterior, settings.num_draws, cells)
    drawn = drawn_shape(few)
    num_draws = settings.num_draws if drawn is None else min(settings.num_draws, math.prod(drawn))
    seed = int(generator.integers(2**32))
    tables = [truth, *few.drawn_tables(num_draws, seed)]
    names, values, beliefs = evaluate(few, tables, cells)
    if not np.isfinite(values[1:]).all():
        raise ArithmeticError(
            f"simulation {number}: the {settings.method} fit failed: {posterior.reason}"
        )
    ranked = {}
    for group in dict.fromkeys(names):
        own = np.flatnonzero(np.array(names) == group)
        # The first is the one that is tested.
        own = generator.permutation(own)[: settings.num_cells]
        ranked[group] = rank(values[0, own], values[1:, own], generator)
    point = _hidden(posterior.smooth(observed, use_labels=True), full, observed)
    averaged = _hidden(beliefs, full, observed)
    latents = _rank_latents(averaged, settings.num_cells, generator)
    if latents is not None:
        ranked["latents"] = latents
    return Simulation(
        ranked=ranked,
        point=_reliability(point),
        averaged=_reliability(averaged),
        num_draws=num_draws,
        converged=posterior.converged,
        aligned=bool(unpinned),
        seconds=seconds,
    )


def _generator(settings: Settings, number: int, stream: int) -> np.random.Generator:
    return np.random.default_rng([settings.seed, number, stream])


def draw_data(
    settings: Settings, number: int
) -> tuple[DrawnTables, Demonstrations, Demonstrations]:
    """The truth, what happened, and what is seen of it: with most labels hidden.

    Which labels are seen does not depend on what happened, so hiding the others is ignorable.
    """
    generator = _generator(settings, number, _TRUTH)
    truth = prior_draw(settings.bound, generator)
    full = simulate(settings.bound.model, settings.demos, truth, generator)
    if settings.share_labelled is None:
        seen = settings.demos.latents >= 0
    else:
        num_episodes = settings.demos.num_episodes
        order = _generator(settings, number, _LABELS).permutation(num_episodes)
        chosen = order < round(settings.share_labelled * num_episodes)
        seen = np.repeat(chosen, settings.demos.episode_lengths)[:, None]
    return truth, full, full.replace(latents=np.where(seen, full.latents, -1))


def unpinned_agents(bound: BoundModel) -> list[str]:
    """Agents some of whose latents nothing tells apart."""
    return [agent for agent, pinned in agents_pinned(bound).items() if not pinned]


# ---------------------------------------------------------------------- what is ranked


class Cell(NamedTuple):
    """Some cells of a table.

    Attributes:
        role: "policy", "transition" or "initial".
        site: The table.
        flat: Their flat indices.
    """

    role: str
    site: str
    flat: Int[np.ndarray, " cells"]


def choose_cells(bound: BoundModel, number: int, generator: np.random.Generator) -> list[Cell]:
    """Cells of learned tables at random, per role so many, likelier the more the data read them.

    A context counts as often as the data visit it; its latents, which are not seen, count alike.
    The choice looks at what was observed and at nothing else: given that, truth and draws are as
    exchangeable as ever, and ranks of cells chosen so are as uniform as those of a fixed cell.
    (Choosing by the true latents would spoil that: the truth would then be special.)
    """
    chosen = []
    for role in ROLES:
        tables = [
            table
            for table in bound.learned.values()
            if table.contexts.role == role and table.shape[-1] > 1
        ]
        if not tables:
            continue
        weights = [
            np.repeat(context_visits(bound, table.name), np.prod(table.shape[1:])).astype(float)
            for table in tables
        ]
        every = np.concatenate(weights)
        size = min(number, int(np.count_nonzero(every)))
        picked = generator.choice(len(every), size, replace=False, p=every / every.sum())
        start = 0
        for table, own in zip(tables, weights, strict=True):
            inside = picked[(picked >= start) & (picked < start + len(own))] - start
            if len(inside):
                chosen.append(Cell(role, table.name, inside))
            start += len(own)
    return chosen


def evaluate(
    posterior: Posterior, draws: Sequence[DrawnTables], cells: list[Cell]
) -> tuple[
    list[str],
    Float[np.ndarray, "draws quantities"],
    dict[str, Float[np.ndarray, "steps _"]],
]:
    """What is ranked, of the truth and of posterior draws; and beliefs averaged over the latter.

    Values are rounded to the precision of the fit first, so that cells that are too small for it
    are equal in both. A prior that is flat has no density to rank by.

    Args:
        posterior: The posterior on its data.
        draws: The truth, then the posterior's draws.
        cells: Of learned tables.

    Returns:
        The group of each quantity; the values; P(x_t | episode) of each agent.
    """
    bound, number = posterior.bound, len(draws)
    rows = {
        site: _filled_up([one.rows(site, table.contexts) for one in draws])
        for site, table in bound.tables.items()
    }
    for site in bound.learned:
        rows[site] = _rounded(rows[site], posterior.dtype)
    parameters = {
        site: _filled_up([one.parameters[site] for one in draws]) for site in draws[0].parameters
    }
    channels = {
        agent: tuple(
            _filled_up(parts)
            for parts in zip(
                *(one.channels[agent].rows(channel.contexts) for one in draws), strict=True
            )
        )
        for agent, channel in bound.channels.items()
    }
    log_likelihood, beliefs = run_messages(posterior, rows, number, channels)
    parts = [
        (f"{cell.role} rows", rows[cell.site].reshape(len(rows[cell.site]), -1)[:, cell.flat])
        for cell in cells
    ]
    free = unconstrained_parameters(bound, parameters)
    parts += [("parameters", free[site]) for site in sorted(free)]
    for coefficients, covariance in channels.values():
        log_noise = 0.5 * np.log(np.diagonal(covariance, axis1=-2, axis2=-1))
        parts += [
            ("emission coefficients", coefficients.reshape(len(coefficients), -1)),
            ("emission noise", log_noise.reshape(len(log_noise), -1)),
        ]
    if bound.learns:
        prior = log_prior(bound, rows, parameters)
        for agent, points in channels.items():
            density = channel_log_density(bound.channels[agent].prior(), *points)
            prior = prior + density.reshape(len(density), -1).sum(1)
        parts.append(("log likelihood", log_likelihood[:, None]))
        if np.ptp(prior) > 0:
            parts += [("log prior", prior[:, None])]
            parts += [("log joint", (log_likelihood + prior)[:, None])]
    names = [name for name, values in parts for _ in range(values.shape[1])]
    nothing = np.zeros((number, 0))
    together = np.concatenate([nothing, *(values[:number] for _, values in parts)], axis=1)
    return names, together, beliefs


def _filled_up(draws: Sequence[Any]) -> Float[np.ndarray, "filled ..."]:
    """Draws, with the last one repeated: chains differ in what they are worth, programs do not."""
    number = len(draws)
    kept = np.minimum(np.arange(rounded_up(number, smallest=64, per_octave=1)), number - 1)
    return np.stack(draws)[kept]


@jax.jit
def _sweep(
    log_tables: tuple[Array, Array, Array],
    evidence: Float[Array, "draws length latents lanes"] | None,
    weights: Float[Array, " draws"],
    index: LaneIndex,
) -> tuple[Float[Array, " draws"], Float[Array, "length latents lanes"]]:
    """Log likelihood under each draw of an agent's tables, and the weighted sum of marginals."""

    def one(total: Array, inputs: Any) -> tuple[Array, Array]:
        tables, said, weight = inputs
        policy, transition, initial = tables
        filtered = filter_lanes(potentials(policy, transition, initial, index, said))
        log_likelihood = jnp.sum(jnp.where(index.real, filtered.log_normalizer, 0.0))
        return total + weight * smooth(filtered, index.start).marginal, log_likelihood

    length, lanes = index.real.shape
    nothing = jnp.zeros((length, log_tables[0].shape[2], lanes), weights.dtype)
    total, log_likelihood = jax.lax.scan(one, nothing, (log_tables, evidence, weights))
    return log_likelihood, total


def run_messages(
    posterior: Posterior,
    rows: Mapping[str, Float[np.ndarray, "filled ..."]],
    number: int,
    channels: Mapping[str, tuple[np.ndarray, ...]],
) -> tuple[Float[np.ndarray, " filled"], dict[str, Float[np.ndarray, "steps _"]]]:
    """Log likelihood of the data under each draw; smoothed latents averaged over draws.

    The same as `posterior.episode_log_likelihood` and `posterior.smooth(..., use_labels=True)`, of
    many draws at once.
    The average is over draws 1 to `number` - 1: the first is the truth, those beyond fill up.
    """
    layout = lay_out(posterior.bound, coarse=True)
    position = np.arange(len(next(iter(rows.values()))))
    total = np.zeros(len(position))
    beliefs = {}
    with precision(posterior.dtype) as dtype:
        averaged = (position > 0) & (position < number)
        weights = jnp.asarray(averaged / averaged.sum(), dtype)
        logs = {
            site: jnp.asarray(padded_logs(values, layout.num_rows[site], dtype))
            for site, values in rows.items()
        }
        for agent, (policy, transition, initial) in layout.sites.items():
            evidence = None
            if agent in channels:
                channel = posterior.bound.channels[agent]
                said = (
                    step_log_density(channel, *one) for one in zip(*channels[agent], strict=True)
                )
                lanes = [
                    np.stack([spread(column, layout.lanes, 0) for column in one.T], axis=1)
                    for one in said
                ]
                evidence = jnp.asarray(np.stack(lanes), dtype)
            log_likelihood, marginal = _sweep(
                (logs[policy], logs[transition], logs[initial]),
                evidence,
                weights,
                layout.index[agent],
            )
            total += np.asarray(log_likelihood, np.float64)
            beliefs[agent] = gather(np.asarray(marginal), layout.lanes)
    return total, beliefs


def _rounded(rows: Float[np.ndarray, "..."], dtype: np.dtype) -> Float[np.ndarray, "..."]:
    return np.maximum(rows.astype(dtype), np.finfo(dtype).tiny).astype(np.float64)


def unconstrained_parameters(
    bound: BoundModel, parameters: Mapping[str, Float[np.ndarray, "draws ..."]]
) -> dict[str, Float[np.ndarray, "draws values"]]:
    """Parameters of each draw in unconstrained space: logs of scales, logits of shares.

    There a few draws tell mean and standard deviation. A value that rounded to the edge of its
    support is infinite there; it is made finite.
    """
    described = tuple(parametric_site(t) for t in bound.learned.values() if t.parametric)
    found = {}
    with precision(np.float64), promotion_allowed():
        for site, prior in all_priors(described).items():
            values = jnp.asarray(parameters[site], np.float64)
            free = np.asarray(biject_to(prior.support).inv(values))
            found[site] = np.clip(free.reshape(len(values), -1), -_FURTHEST, _FURTHEST)
    return found


def log_prior(
    bound: BoundModel,
    rows: Mapping[str, Float[np.ndarray, "draws ..."]],
    parameters: Mapping[str, Float[np.ndarray, "draws ..."]],
) -> Float[np.ndarray, " draws"]:
    """Log prior density of the learned rows given the parameters, and of the parameters."""
    total = np.zeros(len(next(iter(rows.values()))))
    described = []
    for site, table in bound.learned.items():
        if table.parametric:
            described.append(parametric_site(table))
        if not table.cpt.dirichlet_rows:
            continue
        if table.parametric:
            concentration = _given_concentrations(table, parameters)
        else:
            concentration = table.cpt.concentration(table.contexts)[None]
        density = log_dirichlet(concentration, rows[site])
        total += density.reshape(len(total), -1).sum(1)
    with precision(np.float64), promotion_allowed():
        for site, prior in all_priors(tuple(described)).items():
            total += np.asarray(prior.log_prob(jnp.asarray(parameters[site], np.float64)))
    return total


def _given_concentrations(
    table: Table, parameters: Mapping[str, Float[np.ndarray, "draws ..."]]
) -> Float[np.ndarray, "draws ..."]:
    """Concentrations of a table's rows given each draw of its parameters."""
    site = parametric_site(table)
    inputs = site.cpt.inputs(table.contexts)

    def one(own: Mapping[str, Array]) -> Float[Array, "..."]:
        return jnp.broadcast_to(given_concentration(site, own, inputs), table.shape)

    with precision(np.float64):
        own = {name: jnp.asarray(parameters[name], np.float64) for _, name in site.parameters}
        return np.asarray(jax.vmap(one)(own))


# ---------------------------------------------------------------------- draws


def named_as_in[P: Posterior](posterior: P, truth: DrawnTables) -> P:
    """The posterior with latents that nothing pins named as in the truth, each chain by itself.

    Exact mixtures hold all names at once and stay as they are.
    """
    bound = posterior.bound
    rows = {
        site: DrawnRows(truth.rows(site, table.contexts)[None, None])
        for site, table in bound.learned.items()
    }
    if bound.channels:  # every latent is named by labels
        return posterior
    reference = dataclasses.replace(
        posterior, result=FitResult(rows=rows, converged=True, reason="the truth")
    )
    exact = method_of(posterior.method).answer == "exact"
    return posterior if exact else align(posterior, reference)


def thinned[P: Posterior](posterior: P, num_draws: int, cells: list[Cell]) -> P:
    """Chains with so few draws, evenly spaced, that these are about independent.

    As many as the least effective sample size of what is ranked (cells, parameters, log
    likelihood), at most `num_draws`. Other posteriors stay as they are.

    Source: Talts et al. (2018), Section 4.1 and Algorithm 2.
    """
    result = posterior.result
    # Only chains have statistics of every draw.
    if not result.sample_stats:
        return posterior
    chains = []
    for cell in cells:
        rows = result.rows[cell.site]
        if isinstance(rows, DrawnRows):
            chains.append(rows.draws.reshape(*rows.draws.shape[:2], -1)[:, :, cell.flat])
    for one in (*result.parameters.values(), *result.channels.values()):
        if isinstance(one, DrawnParameters | DrawnChannel):
            chains += [part.reshape(*part.shape[:2], -1) for part in one]
    if result.log_likelihood is not None:
        chains.append(result.log_likelihood.sum(-1, keepdims=True, dtype=np.float64))
    num_chains, length = chains[0].shape[:2]
    worth = np.concatenate([np.ravel(ess(one.astype(np.float64))) for one in chains])
    worth = worth[~np.isnan(worth)]
    wanted = min(num_draws, num_chains * length, *(int(w) for w in worth))
    kept = np.linspace(0, length - 1, max(1, wanted // num_chains)).round().astype(int)
    return some_draws(posterior, np.s_[:, kept])


# ---------------------------------------------------------------------- latents


def _hidden(
    beliefs: Mapping[str, Float[np.ndarray, "steps _"]],
    full: Demonstrations,
    observed: Demonstrations,
) -> list[tuple[Float[np.ndarray, "_ _"], Int[np.ndarray, " _"]]]:
    """Per agent with a choice, beliefs at the steps whose label is hidden, and the truth there."""
    found = []
    for i, agent in enumerate(observed.agents):
        hidden = (observed.latents[:, i] < 0) & observed.present[:, i]
        if observed.num_latents[i] > 1 and hidden.any():
            found.append((beliefs[agent][hidden].astype(np.float64), full.latents[hidden, i]))
    return found


def _reliability(
    hidden: list[tuple[Float[np.ndarray, "_ _"], Int[np.ndarray, " _"]]],
) -> Reliability:
    nothing = reliability(np.zeros((0, 2)), np.zeros(0, np.int64))
    counted = [reliability(*one) for one in hidden]
    return Reliability(*(np.sum(parts, 0) for parts in zip(nothing, *counted, strict=True)))


def _rank_latents(
    hidden: list[tuple[Float[np.ndarray, "_ _"], Int[np.ndarray, " _"]]],
    number: int,
    generator: np.random.Generator,
) -> Ranked | None:
    """Some hidden steps at random; None if there are none."""
    if not hidden:
        return None
    owner = np.repeat(np.arange(len(hidden)), [len(truth) for _, truth in hidden])
    step = np.concatenate([np.arange(len(truth)) for _, truth in hidden])
    picked = generator.permutation(len(step))[:number]
    places = [
        rank_latents(hidden[k][0][[t]], hidden[k][1][[t]], generator)
        for k, t in zip(owner[picked], step[picked], strict=True)
    ]
    return Ranked(*(np.concatenate(parts) for parts in zip(*places, strict=True)))
