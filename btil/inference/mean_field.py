r"""The mean field: one Dirichlet per row, its moments, sweeps and bound.

The posterior is approximated by q(rows) q(latents). A sweep is

- a local step (the paper, Eq. 8): q(x) is the posterior of the chains under the geometric means
  exp E_q[log row] of the rows, by forward-backward;
- a global step (Eq. 7): w = u + expected counts under q(x).

After a local step the bound is exactly

.. math:: \mathcal{L}(q) = \sum_m \log Z_m - \sum_{rows} KL(\mathrm{Dir}(w) \| \mathrm{Dir}(u)),

with Z_m the normalisers of the messages. It never falls.

Continuous channels (`btil.NormalEmission`) add a matrix-normal inverse-Wishart factor per latent
and context, and missing cells of them to the latents: each of their steps adds E_q[log density] to
the chain, its expected sums to the factor's prior; the factor's divergence is taken off the bound.

Parametric families (`btil.ParametricCPT`) add a factor q(parameters) q(rows | parameters), normal
in unconstrained space and Dirichlet; it is set before the local step (`inference/parameters.py`).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int
from scipy import special

from btil.inference.ascents import SWEEPS_PER_CALL, fall_allowance
from btil.inference.devices import split_lanes
from btil.inference.parameters import Families, FamilyData, Normals, fit_normals
from btil.messages.channels import (
    ChannelSteps,
    expected_statistics,
    log_evidence,
    of_groups,
    patterns,
)
from btil.messages.layout import LaneIndex, log_rows, pad_rows
from btil.messages.scaled import local_step, local_step_with_marginals, scaling_suffices
from btil.models.team import BoundModel
from btil.numerics.matrix_normal import (
    Hyper,
    Statistics,
    divergence,
    expected_log_kernel,
    updated,
)
from btil.numerics.special import PriorTerms, digamma_and_divergence, digamma_and_remainder


class StepForm(NamedTuple):
    """How one agent's local step is taken.

    Attributes:
        sites: The names of its policy, transition and initial tables.
        scaled: Whether scaled messages suffice.
        channel: The name of its continuous channel; empty without one.
        whole: Whether no cell of the channel is missing.
    """

    sites: tuple[str, str, str]
    scaled: bool
    channel: str = ""
    whole: bool = True


StepForms = tuple[StepForm, ...]


class State(NamedTuple):
    """What the next sweep needs.

    Attributes:
        concentration: w of every site of Dirichlet rows that no parameter stands behind; rows are
            padded as in `Layout.num_rows`.
        counts: Expected uses n of the cells of every parametric table, padded alike. Rows that are
            Dirichlet given the parameters are Dirichlet(u(parameters) + n).
        normals: From where the normals of the parameters are fitted to these counts. A sweep begins
            with that: q(parameters) of this state are those that the next one begins with.
        channels: Expected sums over the steps of every continuous channel.
    """

    concentration: dict[str, Float[Array, "..."]]
    counts: dict[str, Float[Array, "..."]] = {}  # noqa: RUF012  # never mutated
    normals: Normals | None = None
    channels: dict[str, Statistics] = {}  # noqa: RUF012  # never mutated


class Info(NamedTuple):
    """What a sweep found.

    Attributes:
        elbo: The bound at the state it started from, with q(x) optimal for it.
        log_evidence: Sum of log Z_m.
        divergence: Sum of the rows' KL divergences from their priors.
    """

    elbo: Float[Array, ""]
    log_evidence: Float[Array, ""]
    divergence: Float[Array, ""]


class Problem(NamedTuple):
    """The arrays of a fit.

    Attributes:
        prior: u of every site of Dirichlet rows that no parameter stands behind.
        prior_terms: Of the cells of u, and of the sums of its rows, per such site.
        log_fixed: Log rows of the tables that are not learned.
        steps: Per agent, where its steps look.
        family_data: Arrays of the parametric tables.
        channels: The steps of the continuous channels, and their priors.
    """

    prior: dict[str, Float[Array, "..."]]
    prior_terms: dict[str, tuple[PriorTerms, PriorTerms]]
    log_fixed: dict[str, Float[Array, "..."]]
    steps: tuple[LaneIndex, ...]
    family_data: FamilyData
    channels: dict[str, ChannelSteps] = {}  # noqa: RUF012  # never mutated


def log_means(
    concentration: dict[str, Float[Array, "..."]],
) -> dict[str, Float[Array, "..."]]:
    """E[log row] = psi(w) - psi(sum w) of all sites."""

    def of_rows(w: Float[Array, "*rows values"]) -> Float[Array, "*rows values"]:
        psi, *_ = digamma_and_remainder(w)
        of_sums, *_ = digamma_and_remainder(jnp.sum(w, axis=-1))
        return psi - of_sums[..., None]

    return {name: of_rows(w) for name, w in concentration.items()}


def log_mean_and_divergence(
    concentration: Float[Array, "*rows values"], of_cells: PriorTerms, of_sums: PriorTerms
) -> tuple[Float[Array, "*rows values"], Float[Array, ""]]:
    """E[log row] of Dirichlet rows, and the sum over rows of KL(Dir(w) || Dir(u)).

    Args:
        concentration: w.
        of_cells: Of u.
        of_sums: Of the sums of its rows.
    """
    psi, cells = digamma_and_divergence(concentration, of_cells)
    psi_of_sums, sums = digamma_and_divergence(row_sums(concentration), of_sums)
    # Row by row: sums of like magnitude keep single precision.
    return psi - psi_of_sums[..., None], jnp.sum(row_sums(cells) - sums)


def row_sums(rows: Float[Array, "*rows values"]) -> Float[Array, "*rows"]:
    """Sums over the last axis, by themselves: fused with others they are many times slower."""
    return lax.optimization_barrier(jnp.sum(rows, axis=-1))


def sweep(
    state: State,
    problem: Problem,
    sites: StepForms,
    families: Families = (),
    mesh: Mesh | None = None,
) -> tuple[State, Info]:
    """One local and one global step, and the bound between them.

    Args:
        state: Where to start.
        problem: The fit's arrays.
        sites: Per agent, the names of its tables and the form of its messages.
        families: The parametric tables.
        mesh: The devices over which the lanes of `problem.steps` are split.

    Returns:
        The next state, and the bound of `state`.
    """
    rows = {
        name: log_mean_and_divergence(w, *problem.prior_terms[name])
        for name, w in state.concentration.items()
    }
    tables = problem.log_fixed | {name: log_mean for name, (log_mean, _) in rows.items()}
    normals, taken = state.normals, []
    if families:
        assert normals is not None
        fitted = fit_normals(families, normals, problem.family_data, state.counts)
        normals, tables = fitted.normals, tables | fitted.log_means
        taken.append(fitted.divergence)
    counts = {
        name: jnp.zeros_like(tables[name])
        for name in (*problem.prior, *(family.name for family in families))
    }
    total_evidence = jnp.zeros((), next(iter(tables.values())).dtype)
    statistics = {}
    for chain, index in zip(sites, problem.steps, strict=True):
        policy, transition, initial = (tables[name] for name in chain.sites)
        if chain.channel:
            steps = problem.channels[chain.channel]
            hyper = updated(steps.prior, state.channels[chain.channel])
            taken.append(jnp.sum(divergence(hyper, steps.prior)))
            measured = split_lanes(partial(local_step_with_marginals, scaled=chain.scaled), mesh)
            uses, evidence, marginal = measured(
                policy, transition, initial, index, said(hyper, steps)
            )
            statistics[chain.channel] = expected_statistics(
                marginal, steps.data, hyper, chain.whole
            )
        else:
            local = split_lanes(partial(local_step, scaled=chain.scaled), mesh)
            uses, evidence = local(policy, transition, initial, index)
        # Lane by lane: sums of like magnitude keep single precision.
        total_evidence = total_evidence + jnp.sum(evidence)
        for name, use in zip(chain.sites, uses, strict=True):
            if name in counts:
                counts[name] = counts[name] + use
    total = sum(
        (divergence_of_rows for _, divergence_of_rows in rows.values()),
        start=sum(taken, jnp.zeros((), total_evidence.dtype)),
    )
    following = global_step(normals, problem, families, counts)._replace(channels=statistics)
    return following, Info(total_evidence - total, total_evidence, total)


def said(hyper: Hyper, steps: ChannelSteps) -> Float[Array, "length latents lanes"]:
    """E[log density] of every step of a channel under each latent."""
    own, data = of_groups(hyper, steps.data), steps.data
    kernel = expected_log_kernel(own, patterns(data, hyper.degrees.shape[1]))
    return log_evidence(kernel, data)


def global_step(
    normals: Normals | None,
    problem: Problem,
    families: Families,
    counts: Mapping[str, Float[Array, "..."]],
) -> State:
    """The best q(rows) for given counts of every learned table (Eq. 7).

    With parametric families the best rows given the parameters; the next sweep fits the normals of
    these.
    """
    concentration = {name: u + counts[name] for name, u in problem.prior.items()}
    return State(concentration, {family.name: counts[family.name] for family in families}, normals)


class Progress(NamedTuple):
    """The ascent between two calls: the state to evaluate next, and what was evaluated last."""

    upcoming: State
    evaluated: State
    elbo: Float[Array, ""]
    trace: Float[Array, " sweeps"]
    sweeps: Int[Array, ""]
    running: Any


@partial(jax.jit, static_argnames=("sites", "families", "mesh"))
def ascend(
    state: State,
    elbo: Float[Array, ""],
    problem: Problem,
    tolerance: Float[Array, ""],
    resolution: Float[Array, ""],
    num_sweeps: Int[Array, ""],
    sites: StepForms,
    families: Families = (),
    mesh: Mesh | None = None,
) -> Progress:
    """Up to `num_sweeps` (at most `SWEEPS_PER_CALL`) sweeps, fewer once the bound stops rising.

    Args:
        state: The state to evaluate first.
        elbo: The bound before it; -inf at the start.
        problem: The fit's arrays.
        tolerance: A smaller change of the bound ends the ascent.
        resolution: So does a change below this share of the bound.
        num_sweeps: Sweeps allowed.
        sites: As in `sweep`.
        families: As in `sweep`.
        mesh: As in `sweep`.

    Returns:
        The next state, the last evaluated state with its bound, the bounds of this call.
    """

    def proceed(now: Progress) -> Any:
        return now.running & (now.sweeps < num_sweeps)

    def body(now: Progress) -> Progress:
        following, info = sweep(now.upcoming, problem, sites, families, mesh)
        change = info.elbo - now.elbo
        enough = jnp.maximum(tolerance, resolution * jnp.abs(info.elbo))
        fell = change < -fall_allowance(elbo.dtype) * jnp.abs(now.elbo)
        running = jnp.isfinite(info.elbo) & (jnp.abs(change) >= enough) & ~fell
        return Progress(
            upcoming=following,
            evaluated=now.upcoming,
            elbo=info.elbo,
            trace=now.trace.at[now.sweeps].set(info.elbo),
            sweeps=now.sweeps + 1,
            running=running,
        )

    trace = jnp.zeros((SWEEPS_PER_CALL,), elbo.dtype)
    begin = Progress(state, state, elbo, trace, jnp.zeros((), jnp.int32), jnp.asarray(True))
    return lax.while_loop(proceed, body, begin)


class Extremes(NamedTuple):
    """What of an agent's steps decides the form of its messages, beside its tables.

    Attributes:
        sums: Whether moves are summed over an action that nobody saw.
        log_weight: Log of the least positive weight of an annotation, relative to the most.
    """

    sums: bool = False
    log_weight: float = 0.0


def extremes(bound: BoundModel, agent: str) -> Extremes:
    """Those of an agent's steps."""
    sums = bound.rows[agent].unseen is not None
    weights = bound.demos.latent_weights.get(agent)
    if weights is None:
        return Extremes(sums)
    shares = weights / weights.max(axis=1, keepdims=True)
    return Extremes(sums, float(np.log(np.min(shares, initial=1.0, where=shares > 0))))


def step_forms(
    bound: BoundModel,
    counts: Mapping[str, np.ndarray],
    most: float,
    dtype: np.dtype,
    of_steps: Mapping[str, Extremes] | None = None,
) -> StepForms:
    """Each agent's tables, and whether scaled messages suffice for them all through a fit.

    Coordinate ascent adds counts to the priors: E[log] of a cell never falls below that of its
    prior (or of what the first state has there, if that is less) in a row with all there are.

    Args:
        bound: The model on its data.
        counts: What the first state has on top of the prior; may be negative.
        most: What a row's counts may add up to.
        dtype: The type of the messages.
        of_steps: Of each agent's steps; None: of those that the model is bound to.

    Returns:
        One form per agent.
    """
    smallest = {}
    for name, table in bound.tables.items():
        if table.parametric:
            smallest[name] = -np.inf
        elif table.learned:
            u = table.cpt.concentration(table.contexts)
            first = u + counts[name][: len(u)]
            largest = max(u.sum(-1).max() + most, first.sum(-1).max())
            least = min(u.min(), first.min())
            smallest[name] = special.digamma(least) - special.digamma(largest)
        else:
            rows = log_rows(table.prior_mean())
            # Actions may be impossible, moves may not.
            counted = np.isfinite(rows) | (table.contexts.role != "policy")
            smallest[name] = np.min(rows, initial=0.0, where=counted)
    found = []
    for agent in bound.demos.agents:
        policy, transition, initial = bound.sites(agent)
        smallest_move = min(smallest[transition], smallest[initial])
        own = extremes(bound, agent) if of_steps is None else of_steps[agent]
        if own.sums:
            smallest_move += smallest[policy]
        channel = bound.channels.get(agent)
        names = (policy, transition, initial)
        if channel is None:
            smallest_likelihood = smallest[policy] + own.log_weight
            enough = scaling_suffices(smallest_move, smallest_likelihood, dtype)
            found.append(StepForm(names, enough))
        else:
            # Densities have no least value: latents less likely than the smallest number are taken
            # as impossible at a step. Moves from all to all bring back no more than exp(2 a).
            enough = scaling_suffices(2 * smallest_move, 0.0, dtype)
            found.append(StepForm(names, enough, channel.name, channel.is_whole))
    return tuple(found)


def counts_of_start(
    start: Mapping[str, Any], bound: BoundModel, prior: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What a start has on top of the prior."""
    if not isinstance(start, Mapping):
        raise ValueError(f"start must be a mapping {{site: concentrations}}, got {start!r}")
    if set(start) != set(prior):
        raise ValueError(
            f"start names the sites {', '.join(sorted(map(str, start)))}, expected "
            f"{', '.join(sorted(prior))}"
        )
    counts = {}
    for name, padded in prior.items():
        shape = bound.tables[name].shape
        try:
            values = np.asarray(start[name], np.float64)
        except (TypeError, ValueError):
            values = np.full(0, np.nan)  # no numbers, whatever the shape
        if values.shape != shape or not np.all(np.isfinite(values) & (values > 0)):
            raise ValueError(
                f"start of {name}: expected positive finite concentrations of shape {shape}, got "
                f"shape {values.shape}"
            )
        counts[name] = pad_rows(values - padded[: len(values)], len(padded), 0.0)
    return counts
