r"""The log evidence by a route of its own: log p(actions, labels | states), rows integrated out.

Two estimators that have nothing in common with a variational bound:

- `smc`: particles are carried from a mean field q to the posterior through
  :math:`p_\beta(\theta, x) \propto [q(\theta) q(x)]^{1-\beta} p(\theta, x, a)^\beta`. Both
  conditionals of the Gibbs sampler are still drawn exactly there, and the ratio of two neighbours'
  normalisers is an average over particles with the latents summed out. At :math:`\beta = 0` the
  normaliser is known. Several runs side by side tell the error.
- `chib`: from a Gibbs run and one point :math:`\theta^*`,
  :math:`\log p(a) = \log p(a \mid \theta^*) + \log p(\theta^*) - \log p(\theta^* \mid a)`, the last
  term the average of the rows' Dirichlet conditionals at :math:`\theta^*` over drawn latents. Only
  ratios of Dirichlet densities are taken, which keep their digits at large concentrations.
  Continuous channels have matrix-normal inverse-Wishart conditionals, given cells of them that
  nobody saw, which are drawn with the latents.

Where nothing tells latents apart, both average over every renaming of them, which is exact; there
is no correction by log K! to be right or wrong about. Neither can count a mode that its particles
or chains have not found.

References:
    Chib (1995), Marginal likelihood from the Gibbs output, JASA 90; Berkhof, van Mechelen, Gelman
    (2003), A Bayesian approach to the selection and testing of mixture models, on renaming;
    Del Moral, Doucet, Jasra (2006), Sequential Monte Carlo samplers, JRSS B 68; Vehtari, Simpson,
    Gelman, Yao, Gabry (2024), Pareto smoothed importance sampling, JMLR 25, on k-hat.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

from btil.analysis.alignment import relabel_rows, symmetries
from btil.analysis.latent_draws import by_batches, padded_logs
from btil.arguments import check_count, check_options, check_seed, check_values
from btil.demonstrations import Demonstrations
from btil.inference.chains import RHAT_LIMIT, ess, rhat
from btil.inference.channels import laid_channels, log_jacobian
from btil.inference.exact import count_sequences
from btil.inference.gibbs import draw_log_tables
from btil.inference.result import DirichletRows, DrawnChannel, DrawnRows, check_all_kept
from btil.inference.starting import coupled_agents, num_contexts, open_uses
from btil.messages.channels import (
    ChannelSteps,
    drawn_statistics,
    expected_statistics,
    patterns,
)
from btil.messages.channels import log_evidence as said_by_channel
from btil.messages.filter import Filtered
from btil.messages.layout import LaneIndex, lay_out, log_rows, pad_rows
from btil.messages.smoother import (
    expected_counts,
    filter_lanes,
    path_counts,
    potentials,
    sample_paths,
    smooth,
    with_drawn_actions,
)
from btil.models.cpt import ROLES
from btil.models.parametric import check_prior
from btil.models.team import BoundModel, TeamModel, bind, refuse_emissions
from btil.numerics.matrix_normal import Hyper, Statistics, log_kernel, log_marginal, updated
from btil.numerics.precision import precision
from btil.numerics.special import log_beta_ratio
from btil.numpyro_forms.numpyro_model import NumpyroModel
from btil.posterior.beliefs import Posterior, refuse_excerpt
from btil.posterior.fit import fit_bound
from btil.progress import progress_line

# Renamings of the latents that an estimate averages over.
_MOST_RENAMINGS = 5040
# Beyond it an average is ruled by a few draws.
KHAT_LIMIT = 0.7
# Runs of `smc` whose log estimates differ by more (sd) say little but that they are too low.
_LARGEST_SPREAD = 1.0
_ON_RENAMINGS = "Averaged over the {:,} namings of latents that nothing distinguishes."
# Steps towards the point at which chib takes the posterior's density.
_CLIMB = 50
_INSTEAD = "Compare such models by held-out likelihood (btil.analysis.rank_models)"
# Rows with smaller cells keep drawn latents where they are: a cell that is not used is never drawn.
_LEAST_CONCENTRATION = 1e-3
# With smaller ones particles of a mean field stay near it. Of 40 models of six steps each `smc` was
# wrong by more than 0.05 and five errors, saying nothing, in 15 with cells from 0.01, in 5 from
# 0.03, in 1 (by 0.07) from 0.1; `chib` in none.
_LEAST_FOR_PARTICLES = 0.1

Tables = dict[str, Any]
# Per agent policy, transition, initial, and the continuous channel, empty without one.
Sites = tuple[tuple[str, str, str, str], ...]


class Evidence(NamedTuple):
    """An estimate of the log evidence.

    Attributes:
        value: log p(actions, labels | states), rows and latents summed out.
        se: Of `value`; 0 where it is no estimate.
        method: The estimator.
        reliable: Whether nothing speaks against value and error.
        khat: chib: Pareto k-hat of the averaged densities; above 0.7 few draws rule.
        notes: Sentences: how it came about, and what speaks against it.
    """

    value: float
    se: float
    method: str
    reliable: bool
    khat: float | None
    notes: tuple[str, ...]


def log_evidence(
    model: TeamModel,
    demos: Demonstrations,
    method: str = "smc",
    *,
    seed: int = 0,
    progress: bool = True,
    **options: Any,
) -> Evidence:
    """Estimate the log evidence of demonstrations under a model, with its error.

    Args:
        model: The model; its learned tables are Dirichlet.
        demos: The demonstrations. Their labels are data too.
        method: "smc" or "chib"; of a model with emissions "chib".
        seed: The same seed gives the same bits.
        progress: Whether to show a progress line.
        **options: smc: `num_replicates` (10) independent runs, from whose spread the error is
            taken, of `num_particles` (64), through `num_temperatures` (50), from a mean field that
            is fitted, or from `posterior`, an mfvi posterior of the same data. chib: `num_chains`
            (4), `num_warmup` (500), `num_samples` (1000) of its Gibbs run, or `posterior`, a Gibbs
            or NUTS posterior of the same data.

    Returns:
        The estimate. Where a standard error cannot be trusted `reliable` is false and a note says
        why.

    Raises:
        ValueError: If the method or an option's value is unknown, a learned table is not
            Dirichlet, a posterior is of other data, or the data are impossible; if unlabelled
            steps read cells with a concentration below 0.001.
        TypeError: If the method has no such option.

    Example:
        >>> btil.analysis.log_evidence(model, demos, seed=1)  # doctest: +SKIP
    """
    if method not in ESTIMATORS:
        raise ValueError(f"unknown method {method!r}; there are {', '.join(ESTIMATORS)}")
    estimator = ESTIMATORS[method]
    allowed = list(inspect.signature(estimator).parameters)[3:]
    check_options(method, options, allowed)
    check_values(options | {"progress": progress})
    if "num_samples" in options:  # of fewer draws no tail can be told
        check_count("num_samples", options["num_samples"], 25)
    seed = check_seed(seed, 2**32 - 1)
    _refuse_own(model)
    return estimate_bound(bind(model, demos), method, seed, progress, **options)


def estimate_bound(
    bound: BoundModel, method: str, seed: int, progress: bool, **options: Any
) -> Evidence:
    """`log_evidence` of a model that is on its demonstrations already."""
    check_estimable(bound, method)
    if not bound.learns:
        known = fit_bound(bound, "exact", seed=seed, progress=False)
        assert known.elbo is not None
        return Evidence(known.elbo, 0.0, method, True, None, ("Every table is given: exact.",))
    _check_posterior(options.get("posterior"), method, bound)
    return ESTIMATORS[method](bound, seed, progress, **options)


def _refuse_own(model: TeamModel) -> None:
    if isinstance(model, NumpyroModel):
        raise ValueError(
            f"{model.name}: the evidence is estimated for tables with Dirichlet rows, and not for "
            f"a NumpyroModel. {_INSTEAD}"
        )


def check_estimable(bound: BoundModel, method: str = "smc") -> None:
    """Refuse a model whose evidence cannot be estimated, before any fit.

    Args:
        bound: The model on its data.
        method: The estimator.

    Raises:
        ValueError: Naming the model or table, or how many namings of the latents there are; if a
            prior is none, or unlabelled steps read cells with a concentration below 0.001.
    """
    _refuse_own(bound.model)
    if method == "smc":
        refuse_emissions(bound.model, "smc", 'log_evidence(..., method="chib") does')
    for name, table in bound.learned.items():
        if table.parametric:
            raise ValueError(
                f"{name}: the evidence is estimated for Dirichlet rows only; this family, "
                f"{type(table.cpt).__name__}, has parameters of its own. {_INSTEAD}"
            )
        check_prior(table)
    least, site = _smallest_cell(bound)
    if least < _LEAST_CONCENTRATION:
        raise ValueError(
            f"{site}: unlabelled steps read cells with a concentration of {least:g}; below "
            f"{_LEAST_CONCENTRATION:g} draws of the latents stay with the cells that they use "
            "already, and the estimate would be of a part of the posterior. Use larger "
            "concentrations, label the steps, or, of tiny data, take the elbo of btil.fit(..., "
            '"exact")'
        )
    _renamings(bound)


def _smallest_cell(bound: BoundModel) -> tuple[float, str]:
    """The smallest concentration of a cell that an unlabelled step may use, and its table.

    Of such a cell no draw of the latents makes use unless one did already: below about 1 over the
    number of draws a chain stays where it is, and particles do long before.
    """
    smallest, site = np.inf, ""
    for agent, uses in open_uses(bound, num_contexts(bound)).items():
        by_role = (uses.policy, uses.transition, uses.initial)
        for role, read in zip(ROLES, by_role, strict=True):
            table = bound.table(role, agent)
            if read is None or table.contexts.num_latents < 2 or not read.any():
                continue
            concentration = table.cpt.concentration(table.contexts)
            if role == "policy":  # (contexts, actions), whichever the latent
                concentration = np.swapaxes(concentration, 1, 2)
            least = float(concentration[read > 0].min())
            if least < smallest:
                smallest, site = least, table.name
    return smallest, site


def _check_posterior(posterior: Any, method: str, bound: BoundModel) -> None:
    """Refuse a posterior of other data, or of another kind than the estimator needs."""
    if posterior is None:
        return
    refuse_excerpt(posterior, "the evidence")
    if posterior.demos != bound.demos:
        raise ValueError("posterior: it was learned from other demonstrations")
    if method == "chib":
        fits = posterior.draws_info is not None
    else:
        fits = all(isinstance(one, DirichletRows) for one in posterior.result.rows.values())
    if method == "chib":
        check_all_kept(posterior.result.rows, "posterior")
    if not fits:
        wanted = "chains (gibbs or nuts)" if method == "chib" else "Dirichlet rows (mfvi)"
        raise ValueError(f"posterior: {method} needs {wanted}, this one is of {posterior.method}")


# ---------------------------------------------------------------------- messages


class _Setting(NamedTuple):
    """The arrays of a model on its data.

    Attributes:
        prior: Dirichlet concentrations of every learned site, padded.
        log_fixed: Log rows of every other table, padded.
        steps: Per agent, where its steps look.
        channels: The continuous channels, in the units of a fit.
    """

    prior: dict[str, Float[Array, "..."]]
    log_fixed: dict[str, Float[Array, "..."]]
    steps: tuple[LaneIndex, ...]
    channels: dict[str, ChannelSteps]


def _prepare(bound: BoundModel) -> tuple[_Setting, Sites, dict[str, int]]:
    layout = lay_out(bound)
    prior, log_fixed = {}, {}
    for name, table in bound.tables.items():
        if table.learned:
            concentration = table.cpt.concentration(table.contexts)
            prior[name] = jnp.asarray(pad_rows(concentration, layout.num_rows[name], 1.0))
        else:
            rows = pad_rows(log_rows(table.prior_mean()), layout.num_rows[name], 0.0)
            log_fixed[name] = jnp.asarray(rows)
    agents, channels = bound.demos.agents, bound.channels
    laid = laid_channels(bound, layout, np.dtype(np.float64))
    setting = _Setting(
        prior,
        log_fixed,
        tuple(layout.index[agent] for agent in agents),
        {name: one.steps for name, one in laid.items()},
    )
    sites = tuple(
        (*layout.sites[agent], channels[agent].name if agent in channels else "")
        for agent in agents
    )
    return setting, sites, layout.num_rows


def _filtered(log_tables: Tables, setting: _Setting, sites: Sites) -> list[Filtered]:
    """Forward passes of all agents; the rows need not sum to 1."""
    tables = setting.log_fixed | log_tables
    found = []
    for (policy, transition, initial, channel), index in zip(sites, setting.steps, strict=True):
        evidence = None
        if channel:
            data = setting.channels[channel].data
            location, covariance = (part[data.context] for part in tables[channel])
            kernel = log_kernel(location, covariance, patterns(data, location.shape[1]))
            evidence = said_by_channel(kernel, data)
        rows = (tables[policy], tables[transition], tables[initial])
        found.append(filter_lanes(potentials(*rows, index, evidence)))
    return found


def _log_mass(filtered: list[Filtered], setting: _Setting) -> Float[Array, ""]:
    """log of the sum over paths of the product of the rows that they read."""
    masses = [
        jnp.sum(jnp.where(index.real, one.log_normalizer, 0.0))
        for one, index in zip(filtered, setting.steps, strict=True)
    ]
    return jnp.sum(jnp.stack(masses))


def _drawn_counts(
    key: Key[Array, ""], filtered: list[Filtered], log_tables: Tables, setting: _Setting, sites: Any
) -> Tables:
    """Uses of each cell of the learned tables along drawn paths, and sums of channels."""
    tables = setting.log_fixed | log_tables
    counts: Tables = {name: jnp.zeros_like(prior) for name, prior in setting.prior.items()}
    keys = jax.random.split(key, len(sites))
    for agent_key, (*names, channel), index, one in zip(
        keys, sites, setting.steps, filtered, strict=True
    ):
        policy, transition, initial = (tables[name] for name in names)
        paths = sample_paths(agent_key, one, index.start)
        rows = (len(policy), len(transition), len(initial))
        drawn = with_drawn_actions(
            jax.random.fold_in(agent_key, 1), paths, index, policy, transition, len(initial)
        )
        found = path_counts(paths, drawn, rows, (policy.shape[1], policy.shape[2]))
        for name, count in zip(names, found, strict=True):
            if name in counts:
                counts[name] = counts[name] + count
        if channel:
            data, points = setting.channels[channel].data, tables[channel]
            numbers = jnp.arange(policy.shape[1], dtype=paths.dtype)[None, :, None]
            one_hot = (paths[:, None] == numbers).astype(policy.dtype)
            shape = (*data.real.shape, points[1].shape[-1])
            noise = jax.random.normal(jax.random.fold_in(agent_key, 2), shape, policy.dtype)
            counts[channel] = drawn_statistics(one_hot, noise, data, *points)
    return counts


@partial(jax.jit, static_argnames=("sites",))
def _log_masses(log_tables: Tables, setting: _Setting, sites: Sites) -> Float[Array, " draws"]:
    """log p(actions, labels | rows) under each of a batch of draws of the rows."""
    return jax.vmap(lambda rows: _log_mass(_filtered(rows, setting, sites), setting))(log_tables)


# ---------------------------------------------------------------------- smc


class _Reference(NamedTuple):
    """Where particles come from: independent rows and paths.

    Attributes:
        concentration: Dirichlet rows, padded.
        log_tables: Log factors of the paths, in the place of log rows.
    """

    concentration: Tables
    log_tables: Tables


class _Particles(NamedTuple):
    """Particles of all runs.

    Attributes:
        log_tables: Log rows of every learned site, (runs, particles, ...).
        log_weights: (runs, particles), normalised within a run.
        log_evidence: Log of the normaliser over the reference's so far, (runs,).
    """

    log_tables: Tables
    log_weights: Float[Array, "runs particles"]
    log_evidence: Float[Array, " runs"]


@partial(jax.jit, static_argnames=("sites",))
def _heat(
    key: Key[Array, ""],
    particles: _Particles,
    temperature: Float[Array, ""],
    following: Float[Array, ""],
    reference: _Reference,
    setting: _Setting,
    sites: Sites,
) -> _Particles:
    """From one temperature to the next: weigh, move by a Gibbs iteration, resample where needed.

    The weights do not depend on the move, so it may come first; one forward pass serves both.
    """
    runs, number = particles.log_weights.shape

    def between(tables: Tables, temperature: Array) -> Tables:
        return {
            name: (1 - temperature) * reference.log_tables[name] + temperature * rows
            for name, rows in tables.items()
        }

    def one(inputs: tuple[Array, Tables]) -> tuple[Array, Tables]:
        own_key, tables = inputs
        before = _log_mass(_filtered(between(tables, temperature), setting, sites), setting)
        there = between(tables, following)
        filtered = _filtered(there, setting, sites)
        increment = _log_mass(filtered, setting) - before
        for name, prior in setting.prior.items():
            # log of the prior density over the reference's
            added = reference.concentration[name] - prior
            ratio = jnp.sum(log_beta_ratio(prior, added)) - jnp.sum(added * tables[name])
            increment = increment + (following - temperature) * ratio
        # Actions that nobody saw are drawn at the temperature of the paths.
        counts = _drawn_counts(own_key, filtered, there, setting, sites)
        concentration = {
            name: (1 - following) * reference.concentration[name] + following * (u + counts[name])
            for name, u in setting.prior.items()
        }
        return increment, concentration

    path_key, row_key, pick_key = jax.random.split(key, 3)
    keys = jax.random.split(path_key, (runs, number))
    # Run by run: bounds the memory.
    increment, concentration = lax.map(jax.vmap(one), (keys, particles.log_tables))
    moved = draw_log_tables(row_key, concentration)
    weights = particles.log_weights + increment
    gain = jax.nn.logsumexp(weights, axis=1)
    weights = weights - gain[:, None]
    offsets = jax.random.uniform(pick_key, (runs, 1), weights.dtype)
    picked, weights = _resampled(weights, offsets)
    rows = jnp.arange(runs)[:, None]
    tables = {name: values[rows, picked] for name, values in moved.items()}
    return _Particles(tables, weights, particles.log_evidence + gain)


def _resampled(
    log_weights: Float[Array, "runs particles"], offsets: Float[Array, "runs 1"]
) -> tuple[Int[Array, "runs particles"], Float[Array, "runs particles"]]:
    """Systematic resampling, in the runs whose effective number has fallen below a half.

    Args:
        log_weights: Normalised within a run.
        offsets: In [0, 1): particle k is the one at (k + offset) / particles of the summed weights.

    Returns:
        Which particle each one becomes, itself elsewhere; log weights, equal where it was picked.
    """
    number = log_weights.shape[1]
    few = jnp.exp(-jax.nn.logsumexp(2 * log_weights, axis=1)) < number / 2
    edges = jnp.cumsum(jnp.exp(log_weights), axis=1)
    ranks = jnp.arange(number, dtype=edges.dtype)[None]
    picked = jax.vmap(jnp.searchsorted)(edges / edges[:, -1:], (ranks + offsets) / number)
    every = jnp.arange(number, dtype=picked.dtype)[None]
    picked = jnp.where(few[:, None], jnp.minimum(picked, number - 1), every)
    return picked, jnp.where(few[:, None], -math.log(number), log_weights)


def _smc(
    bound: BoundModel,
    seed: int,
    progress: bool,
    num_replicates: int = 10,
    num_particles: int = 64,
    num_temperatures: int = 50,
    posterior: Posterior | None = None,
) -> Evidence:
    renamings = _renamings(bound)
    if posterior is None:
        posterior = fit_bound(bound, "mfvi", seed=seed, progress=progress)
    fitted = {n: one for n, one in posterior.result.rows.items() if isinstance(one, DirichletRows)}
    shape = (num_replicates, num_particles)
    with precision(np.float64):
        estimates = _by_particles(bound, fitted, renamings, shape, num_temperatures, seed, progress)
    value, error = _log_mean(estimates)
    spread = float(estimates.std(ddof=1))
    notes = [
        f"{num_replicates} runs of {num_particles} particles through {num_temperatures} "
        f"temperatures; their log estimates have a standard deviation of {spread:.2f}."
    ]
    if len(renamings) > 1:
        notes.append(_ON_RENAMINGS.format(len(renamings)))
    if spread > _LARGEST_SPREAD:
        notes.append(
            "The runs differ by much: the value is rather a lower bound, and its error is not to "
            "be relied on. More temperatures and particles bring them together."
        )
    least, site = _smallest_cell(bound)
    if least < _LEAST_FOR_PARTICLES:
        notes.append(
            f"{site}: unlabelled steps read cells with a concentration of {least:g}; below "
            f"{_LEAST_FOR_PARTICLES:g} particles stay in the mean field's mode, and what lies in "
            "others is not counted. Method 'chib' fares better."
        )
    reliable = spread <= _LARGEST_SPREAD and least >= _LEAST_FOR_PARTICLES
    return Evidence(value, error, "smc", reliable, None, tuple(notes))


def _by_particles(
    bound: BoundModel,
    fitted: Mapping[str, DirichletRows],
    renamings: list[dict[str, Any]],
    shape: tuple[int, int],
    num_temperatures: int,
    seed: int,
    progress: bool,
) -> Float[np.ndarray, " runs"]:
    """The log evidence by each run of particles; `shape`: the runs, and the particles of each."""
    setting, sites, num_rows = _prepare(bound)
    reference = _reference(bound, fitted, num_rows)
    key = jax.random.key(seed)
    begin = {n: jnp.broadcast_to(w, shape + w.shape) for n, w in reference.concentration.items()}
    particles = _Particles(
        draw_log_tables(jax.random.fold_in(key, 0), begin),
        jnp.full(shape, -math.log(shape[1])),
        jnp.zeros(shape[0]),
    )
    start = {name: rows[None] for name, rows in reference.log_tables.items()}
    estimates = by_batches(partial(_log_masses, setting=setting, sites=sites), start)
    ladder = jnp.linspace(0.0, 1.0, num_temperatures + 1)
    with progress_line(num_temperatures, "evidence", progress) as line:
        for number in range(num_temperatures):
            own_key = jax.random.fold_in(key, number + 1)
            temperatures = ladder[number], ladder[number + 1]
            particles = _heat(own_key, particles, *temperatures, reference, setting, sites)
            jax.block_until_ready(particles)
            line.update(1)
    estimates = estimates + np.asarray(particles.log_evidence)
    if len(renamings) > 1:
        estimates = estimates + _for_renamings(bound, fitted, renamings, particles)
    return estimates


def _reference(
    bound: BoundModel, fitted: Mapping[str, DirichletRows], num_rows: Mapping[str, int]
) -> _Reference:
    """A mean field that is half as sure: its rows, and the paths that are best with them.

    Rows from half the counts, for a mean field is narrower than the posterior, and an average over
    particles that start within too narrow bounds has a heavy tail. Paths have exp E[log row].
    """
    from scipy.special import digamma

    concentration, log_tables = {}, {}
    for name, rows in fitted.items():
        table = bound.tables[name]
        prior, w = table.cpt.concentration(table.contexts), np.asarray(rows.concentration)
        # In the precision of the fit: its rounding of a large prior is no count.
        counts = w - prior.astype(w.dtype)
        w = pad_rows(prior + np.maximum(counts / 2, -prior / 2), num_rows[name], 1.0)
        concentration[name] = jnp.asarray(w)
        log_tables[name] = jnp.asarray(digamma(w) - digamma(w.sum(-1, keepdims=True)))
    return _Reference(concentration, log_tables)


def _for_renamings(
    bound: BoundModel,
    fitted: Mapping[str, DirichletRows],
    renamings: list[dict[str, Any]],
    particles: _Particles,
) -> Float[np.ndarray, " runs"]:
    r"""log of |G| times the mean, over the particles of a run, of the share of the first name.

    Started from a mean field q of one name, particles may or may not have spread to the others'
    modes. With q_g that of name g, the share :math:`r = q_1(\theta) / \sum_g q_g(\theta)` has mean
    1 / |G| under the posterior, which is the same for all names. So weighing by |G| r leaves the
    estimate unbiased, and makes it a good one where no particle has left the first mode.
    """
    log_tables = {
        name: np.asarray(rows)[:, :, : len(bound.tables[name].contexts.rows)]
        for name, rows in particles.log_tables.items()
    }
    runs, number = particles.log_weights.shape
    # Densities over that of the first name; all have the same normaliser.
    densities = np.zeros((len(renamings), runs, number))
    concentrations = {name: np.asarray(one.concentration) for name, one in fitted.items()}
    for position, permutations in enumerate(renamings):
        for name, w in relabel_rows(bound, concentrations, permutations).items():
            apart = (w - concentrations[name]) * log_tables[name]
            densities[position] += apart.reshape(runs, number, -1).sum(-1)
    log_share = -np.logaddexp.reduce(densities, axis=0)
    weighted = np.logaddexp.reduce(np.asarray(particles.log_weights) + log_share, axis=1)
    return math.log(len(renamings)) + weighted


def _log_mean(logs: Float[np.ndarray, " values"], size: float | None = None) -> tuple[float, float]:
    """log of a mean, and its standard error by the delta method.

    Args:
        logs: Logs of what is averaged.
        size: Effective number of values; None: they are independent.
    """
    peak = float(logs.max())
    values = np.exp(logs - peak)
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / mean / math.sqrt(len(logs) if size is None else size)
    return peak + math.log(mean), error


# ---------------------------------------------------------------------- chib


@partial(jax.jit, static_argnames=("sites",))
def _climb(log_tables: Tables, setting: _Setting, sites: Sites) -> Tables:
    r"""Log rows at a mode of the posterior, taken in softmax coordinates.

    Expectation-maximisation: rows proportional to prior plus expected counts. This mode is never on
    the boundary of the simplex, where small concentrations have infinite density.
    """

    def ascend(_: Any, tables: Tables) -> Tables:
        concentration = dict(setting.prior)
        every, points = setting.log_fixed | tables, {}
        filtered = _filtered(tables, setting, sites)
        for (*names, channel), index, one in zip(sites, setting.steps, filtered, strict=True):
            read, smoothed = (every[name] for name in names), smooth(one, index.start)
            counts = expected_counts(smoothed, index, *read)
            for name, count in zip(names, counts, strict=True):
                if name in concentration:
                    concentration[name] = concentration[name] + count
            if channel:
                data, prior = setting.channels[channel]
                location, covariance = every[channel]
                at_point = prior._replace(
                    location=location, scale=covariance * prior.degrees[..., None, None]
                )
                sums = expected_statistics(smoothed.marginal, data, at_point, False)
                hyper = updated(prior, sums)
                points[channel] = hyper.location, hyper.scale / hyper.degrees[..., None, None]
        rows = {n: jnp.log(w) - jnp.log(w.sum(-1, keepdims=True)) for n, w in concentration.items()}
        return rows | points

    return lax.fori_loop(0, _CLIMB, ascend, log_tables)


@partial(jax.jit, static_argnames=("sites",))
def _log_ordinates(
    inputs: tuple[Key[Array, " draws"], Tables],
    log_points: Tables,
    setting: _Setting,
    sites: Sites,
) -> Float[Array, "draws columns"]:
    """log density of the rows' and channels' conditionals over their prior's, for drawn latents.

    A column for each point, and one whose numbers tell different latents' counts apart.

    Args:
        inputs: Keys for the latents, and draws of the log rows, (draws, ...).
        log_points: Log rows of the points, (points, ...), at which they are taken.
        setting: The model.
        sites: Names of the agents' tables.
    """

    def one(inputs: tuple[Array, Tables]) -> Array:
        own_key, tables = inputs
        filtered = _filtered(tables, setting, sites)
        counts = _drawn_counts(own_key, filtered, tables, setting, sites)
        total = mark = jnp.zeros(())
        for name, prior in setting.prior.items():
            numbers = jnp.sin(1.0 + jnp.arange(prior.size, dtype=prior.dtype))
            mark = mark + jnp.vdot(counts[name], numbers)
            axes = tuple(range(1, log_points[name].ndim))
            total = total + jnp.sum(counts[name][None] * log_points[name], axes)
            total = total - jnp.sum(log_beta_ratio(prior, counts[name]))
        for name, (_, hyper) in setting.channels.items():
            statistics = counts[name]
            numbers = jnp.sin(1.0 + jnp.arange(statistics.number.size, dtype=total.dtype))
            mark = mark + jnp.vdot(statistics.number, numbers)
            total = total + _log_ratio(log_points[name], statistics, hyper)
        return jnp.append(total, mark)

    return jax.vmap(one)(inputs)


def _log_ratio(
    points: tuple[Float[Array, "points ..."], Float[Array, "points ..."]],
    statistics: Statistics,
    prior: Hyper,
) -> Float[Array, " points"]:
    """log of the density of a channel's points given sums of steps, over that of the prior.

    By Bayes' rule it is what the steps are likely by at the points, over what they are on average.
    """
    location, covariance = points
    kernel = log_kernel(location, covariance, jnp.ones_like(location[..., 0, :]))
    squares = jnp.sum((statistics.outer[None] @ kernel.weights) * kernel.weights, (-2, -1))
    likely = statistics.number[None] * kernel.constant - 0.5 * squares
    return jnp.sum(likely - log_marginal(prior, statistics)[None], (1, 2))


def _chib(
    bound: BoundModel,
    seed: int,
    progress: bool,
    num_chains: int = 4,
    num_warmup: int = 500,
    num_samples: int = 1000,
    posterior: Posterior | None = None,
) -> Evidence:
    renamings = _renamings(bound)
    if posterior is None:
        posterior = fit_bound(
            bound,
            "gibbs",
            seed=seed,
            progress=progress,
            dtype=np.float64,
            num_chains=num_chains,
            num_warmup=num_warmup,
            num_samples=num_samples,
        )
    assert posterior.result.log_likelihood is not None
    chains, number = posterior.result.log_likelihood.shape[:2]
    with precision(np.float64):
        found = _around_best(bound, posterior, renamings, seed)
    logs = np.logaddexp.reduce(found.ordinates, axis=0) - math.log(len(renamings))
    in_chains = np.exp(logs - logs.max()).reshape(chains, number, 1)
    # Equal ones have none, and are worth what they are.
    size = float(np.nan_to_num(ess(in_chains, "bulk")[0], nan=logs.size))
    log_ordinate, error = _log_mean(logs, max(1.0, size))
    value = found.log_mass - log_ordinate + float(log_jacobian(bound).sum())
    khat = pareto_khat(logs, size / logs.size)
    notes = [
        f"{chains} chains of {number} draws, worth {size:,.0f} independent ones for the density at "
        "the chosen point.",
    ]
    if len(renamings) > 1:
        notes.append(_ON_RENAMINGS.format(len(renamings)))
    if np.ptp(found.marks) == 0 and _has_choice(bound):
        error = max(error, 1 / logs.size)
        notes.append(
            f"The latents' counts are the same in all {logs.size:,} draws: others of less "
            "than one part in that many would not be seen, which is what the error says."
        )
    reliable = khat <= KHAT_LIMIT
    if not reliable:
        notes.append(
            f"Pareto k-hat is {khat:.2f}, above {KHAT_LIMIT}: few draws rule the average, the "
            "evidence is rather too large, and its error is not to be relied on."
        )
    by_chain = found.log_likelihood.reshape(chains, number, 1)
    disagreement = float(rhat(by_chain)[0]) if chains > 1 else 1.0
    if disagreement >= RHAT_LIMIT:
        reliable = False
        notes.append(
            f"The chains disagree about the log likelihood (R-hat {disagreement:.2f}): they sit in "
            "different modes, which are not weighted as they should be."
        )
    return Evidence(value, error, "chib", reliable, khat, tuple(notes))


class _Ordinates(NamedTuple):
    """The posterior density at a point over the prior's, as each draw of the latents tells it.

    Attributes:
        ordinates: Its logs, for the point with its latents renamed in each way.
        marks: A number that tells different latents' counts apart.
        log_likelihood: log p(actions, labels | rows) of the draws.
        log_mass: The same of the point.
    """

    ordinates: list[Float[np.ndarray, " draws"]]
    marks: Float[np.ndarray, " draws"]
    log_likelihood: Float[np.ndarray, " draws"]
    log_mass: float


def _around_best(
    bound: BoundModel,
    posterior: Posterior,
    renamings: list[dict[str, Int[np.ndarray, " latents"]]],
    seed: int,
) -> _Ordinates:
    """Climb from the best draw, and look from all draws at where that ends."""
    draws = {
        name: one.draws.reshape(-1, *one.draws.shape[2:])
        for name, one in posterior.result.rows.items()
        if isinstance(one, DrawnRows)
    }
    setting, sites, num_rows = _prepare(bound)
    log_tables = _padded_logs(draws, num_rows) | _channel_draws(bound, posterior, setting)
    masses = partial(_log_masses, setting=setting, sites=sites)
    log_likelihood = by_batches(masses, log_tables)
    best = int(np.argmax(log_likelihood))
    begin = jax.tree.map(lambda values: values[best], log_tables)
    climbed = _climb(begin, setting, sites)
    point = {
        name: np.exp(np.asarray(climbed[name])[: len(table.contexts.rows)])
        for name, table in bound.learned.items()
    }
    renamed = [relabel_rows(bound, point, permutations) for permutations in renamings]
    stacked = {name: np.stack([one[name] for one in renamed]) for name in point}
    log_points = _padded_logs(stacked, num_rows)
    for agent, channel in bound.channels.items():
        orders = np.stack([permutations[agent] for permutations in renamings])
        log_points[channel.name] = jax.tree.map(
            lambda values, orders=orders: jnp.moveaxis(values[:, orders], 1, 0),
            climbed[channel.name],
        )
    keys = jax.random.split(jax.random.key(seed), len(log_likelihood))
    densities = partial(_log_ordinates, log_points=log_points, setting=setting, sites=sites)
    *ordinates, marks = by_batches(densities, (keys, log_tables)).T
    at_point = by_batches(masses, jax.tree.map(lambda values: values[:1], log_points))
    return _Ordinates(ordinates, marks, log_likelihood, float(at_point[0]))


def _channel_draws(bound: BoundModel, posterior: Posterior, setting: _Setting) -> Tables:
    """Draws of coefficients and covariances in the units of a fit, contexts padded."""
    found = {}
    for channel in bound.channels.values():
        units, padded = channel.units(), len(setting.channels[channel.name].prior.degrees)
        drawn = posterior.result.channels[channel.name]
        assert isinstance(drawn, DrawnChannel)
        inverse = np.linalg.inv(units.whitening)
        parts = (
            inverse @ (drawn.coefficients - units.trend) / units.spread,
            drawn.covariance / np.outer(units.spread, units.spread),
        )
        index = np.minimum(np.arange(padded), len(channel.contexts) - 1)
        found[channel.name] = tuple(
            jnp.asarray(part.reshape(-1, *part.shape[2:])[:, index]) for part in parts
        )
    return found


def _has_choice(bound: BoundModel) -> bool:
    """Whether the labels leave open which cells the data use."""
    return any(count_sequences(bound, group) > 1 for group in coupled_agents(bound))


def _padded_logs(rows: Mapping[str, np.ndarray], num_rows: Mapping[str, int]) -> Tables:
    """Logs of many draws of rows, (draws, ...), in float64; of zeros that of the least number."""
    double, tiny = np.dtype(np.float64), np.finfo(np.float64).tiny
    return {
        name: jnp.asarray(
            padded_logs(np.maximum(values.astype(double), tiny), num_rows[name], double)
        )
        for name, values in rows.items()
    }


def _renamings(bound: BoundModel) -> list[dict[str, Int[np.ndarray, " latents"]]]:
    found = symmetries(bound, _MOST_RENAMINGS)
    if found is None:
        raise ValueError(
            "the latents can be named in more than "
            f"{_MOST_RENAMINGS:,} ways, over which an estimate has to average; label some steps"
        )
    return found


def pareto_khat(log_weights: Float[np.ndarray, " draws"], relative_size: float = 1.0) -> float:
    """Pareto k-hat of the largest weights; -inf where few different ones recur, which is no tail.

    Args:
        log_weights: Logs of the weights, at least 25 of them.
        relative_size: Effective over actual number of draws.
    """
    from arviz_stats.base import array_stats

    number = len(log_weights)
    tail = math.ceil(min(0.2 * number, 3 * math.sqrt(number / relative_size)))
    if len(np.unique(np.sort(log_weights)[-tail:].round(10))) < tail / 2:
        return -math.inf
    # ArviZ takes log likelihoods, whose inverses are the weights.
    return float(array_stats.psislw(-log_weights, r_eff=relative_size)[1])


# An estimator takes the bound model, a seed, whether to show progress, and its options.
ESTIMATORS: dict[str, Callable[..., Evidence]] = {
    "smc": _smc,
    "chib": _chib,
}
