r"""Mean-field variational inference: the paper's Algorithm 1.

The posterior is approximated by q(rows) q(latents) with one Dirichlet per row. Coordinate ascent
alternates

- local step (the paper, Eq. 8): q(x) is the posterior of the chains under the geometric means
  exp E_q[log row] of the rows, by forward-backward;
- global step (Eq. 7): w = u + expected counts under q(x).

After a local step the bound is exactly

.. math:: \mathcal{L}(q) = \sum_m \log Z_m - \sum_{rows} KL(\mathrm{Dir}(w) \| \mathrm{Dir}(u)),

with Z_m the normalisers of the messages. It never falls.

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

from btil.inference.ascents import SWEEPS_PER_CALL, Ascents, fall_allowance, judge
from btil.inference.checkpoint import NOWHERE, Checkpoint
from btil.inference.collapsed import rows_given_parameters
from btil.inference.devices import SPLIT_SECOND, make_mesh, place, size_of, split_lanes
from btil.inference.forward_backward import local_step, scaling_suffices
from btil.inference.messages import (
    LaneIndex,
    lay_out,
    pad_rows,
)
from btil.inference.parameters import (
    Families,
    FamilyData,
    Normals,
    excess,
    family_data,
    first_normals,
    fit_normals,
    joint_normals,
)
from btil.inference.precision import on_device
from btil.inference.progress import progress_line
from btil.inference.result import DirichletRows, FitResult, RowsPosterior
from btil.inference.special import by_cell, digamma_and_remainder, stirling_remainder
from btil.inference.starting import (
    agent_sites,
    doubtful_rate,
    is_symmetric,
    labelled_counts,
    random_counts,
)
from btil.models.team import BoundModel
from btil.models.team_dbn import log_rows

# With parametric families: the points of a fit, and other sets of them for its bound.
_OWN_POINTS = 0
_FRESH_POINTS = 8


class Chain(NamedTuple):
    """How one agent's local step is taken.

    Attributes:
        sites: The names of its policy, transition and initial tables.
        scaled: Whether scaled messages suffice.
    """

    sites: tuple[str, str, str]
    scaled: bool


Sites = tuple[Chain, ...]


class State(NamedTuple):
    """What the next sweep needs.

    Attributes:
        concentration: w of every site of Dirichlet rows that no parameter stands behind; rows are
            padded as in `Layout.num_rows`.
        counts: Expected uses n of the cells of every parametric table, padded alike. Rows that are
            Dirichlet given the parameters are Dirichlet(u(parameters) + n).
        normals: From where the normals of the parameters are fitted to these counts. A sweep begins
            with that: q(parameters) of this state are those that the next one begins with.
    """

    concentration: dict[str, Float[Array, "..."]]
    counts: dict[str, Float[Array, "..."]] = {}  # noqa: RUF012  # never mutated
    normals: Normals | None = None


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
        prior_remainder: What Stirling's formula leaves of log Gamma of the cells of u, and of its
            rows' sums, per such site (`digamma_and_remainder`).
        log_fixed: Log rows of the tables that are not learned.
        steps: Per agent, where its steps look.
        family_data: Arrays of the parametric tables.
    """

    prior: dict[str, Float[Array, "..."]]
    prior_remainder: dict[str, tuple[Float[Array, "..."], Float[Array, "..."]]]
    log_fixed: dict[str, Float[Array, "..."]]
    steps: tuple[LaneIndex, ...]
    family_data: FamilyData


class Moments(NamedTuple):
    """Functions of the concentrations w of one site.

    Attributes:
        log_mean: E[log row] = digamma(w) - digamma(sum w).
        cells: digamma, log and remainder (`digamma_and_remainder`) of every w.
        sums: The same of every row's sum.
    """

    log_mean: Float[Array, "*rows values"]
    cells: tuple[
        Float[Array, "*rows values"], Float[Array, "*rows values"], Float[Array, "*rows values"]
    ]
    sums: tuple[Float[Array, "*rows"], Float[Array, "*rows"], Float[Array, "*rows"]]


def dirichlet_moments(concentration: dict[str, Float[Array, "..."]]) -> dict[str, Moments]:
    """The moments of all sites."""
    moments = {}
    for name, w in concentration.items():
        cells, sums = digamma_and_remainder(w), digamma_and_remainder(jnp.sum(w, axis=-1))
        moments[name] = Moments(cells[0] - sums[0][..., None], cells, sums)
    return moments


def dirichlet_divergence(
    concentration: Float[Array, "*rows values"],
    moments: Moments,
    prior: Float[Array, "*rows values"],
    prior_remainder: tuple[Float[Array, "*rows values"], Float[Array, "*rows"]],
) -> Float[Array, ""]:
    r"""Sum over rows of KL(Dir(w) || Dir(u)).

    With n = w - u it is :math:`\sum_j c(n_j, u_j, w_j) - c(\sum n, \sum u, \sum w)`,

    .. math:: c(n, u, w) = n \psi(w) - \log\Gamma(w) + \log\Gamma(u)
              = n (\psi(w) - \log w) + n - \big(u - \tfrac12\big) \log(1 + n / u) - R(w) + R(u),

    in which nothing is larger than n needs: in single precision differences of log Gamma lose
    whole units where concentrations are a million.
    """

    def term(n: Array, u: Array, psi: Array, log_w: Array, of_w: Array, of_u: Array) -> Array:
        return n * (psi - log_w) + (n - (u - 0.5) * jnp.log1p(n / u)) + (of_u - of_w)

    of_cells, of_sums = prior_remainder
    added = concentration - prior
    cells = by_cell(term, added, prior, *moments.cells, of_cells)
    sums = term(jnp.sum(added, -1), jnp.sum(prior, -1), *moments.sums, of_sums)
    return jnp.sum(jnp.sum(cells, -1) - sums)


def sweep(
    state: State,
    problem: Problem,
    sites: Sites,
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
    moments = dirichlet_moments(state.concentration) if state.concentration else {}
    log_means = {name: one.log_mean for name, one in moments.items()}
    tables = problem.log_fixed | log_means
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
    log_evidence = jnp.zeros((), next(iter(tables.values())).dtype)
    for chain, index in zip(sites, problem.steps, strict=True):
        local = split_lanes(partial(local_step, scaled=chain.scaled), mesh)
        uses, evidence = local(*(tables[name] for name in chain.sites), index)
        # Lane by lane: sums of like magnitude keep single precision.
        log_evidence = log_evidence + jnp.sum(evidence)
        for name, use in zip(chain.sites, uses, strict=True):
            if name in counts:
                counts[name] = counts[name] + use
    total = sum(
        (
            dirichlet_divergence(
                state.concentration[name], moments[name], u, problem.prior_remainder[name]
            )
            for name, u in problem.prior.items()
        ),
        start=sum(taken, jnp.zeros((), log_evidence.dtype)),
    )
    updated = global_step(normals, problem, families, counts)
    return updated, Info(log_evidence - total, log_evidence, total)


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
    sites: Sites,
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


def fit(
    bound: BoundModel,
    *,
    seed: int,
    progress: bool,
    dtype: np.dtype,
    checkpoint: Checkpoint = NOWHERE,
    num_restarts: int = 1,
    tolerance: float | None = None,
    max_iterations: int = 1000,
    start: Mapping[str, Any] | None = None,
    devices: int | None = None,
    batch_size: int | None = None,
    delay: float | None = None,
    forgetting_rate: float | None = None,
) -> FitResult:
    """Coordinate ascent from the labelled steps' counts to an optimum, and from elsewhere if asked.

    The first run starts from the prior plus the counts of the labelled steps. Where the ascent
    ends is looked at (`btil.inference.contraction`): from a saddle, where the bound stands still
    for a while, it goes on along the direction that grows, and where more than the tolerance is
    still to come it goes on as it is. Without labels, and with few of them where the bound is flat,
    ascents from unlabelled steps that are dealt out at random compete with it; they take its place
    where it is symmetric in some latents. Further restarts always are random. The run with the
    highest bound is kept.

    Args:
        bound: The model on its data.
        seed: Seeds random starts and directions.
        progress: Whether to show a progress line.
        dtype: float32 or float64.
        checkpoint: Where progress is saved.
        num_restarts: Number of runs.
        tolerance: What the ELBO may still gain, in nats, and the least change per sweep after
            which the end is looked at. None: 1e-4, or four machine epsilons of the bound where
            single precision resolves no less.
        max_iterations: Most sweeps of an ascent.
        start: Dirichlet concentrations {site: (contexts, latents, values)} to start the first
            run from, instead of the labelled counts; a symmetric one is treated alike. Parametric
            tables start from the labelled counts all the same.
        devices: Number of devices over which the episodes are spread; None: one. The answer is
            the same up to rounding.
        batch_size: Learn from so many episodes at a time, drawn at random
            (`btil.inference.stochastic`); None, or no fewer than there are: from all at once.
            Its trace has an estimate of the bound per epoch, then the exact bound of each of the
            sweeps over everything that follow. `max_iterations` counts both, `tolerance` is what
            the exact bound may still gain as a share of it (None: 1e-4).
        delay: With a batch size, tau of the steps (t + tau)^-kappa (None: 10).
        forgetting_rate: kappa, above 0.5 and at most 1 (None: 0.6).

    Returns:
        Dirichlet rows, the bound and its trace, the contraction rate. With parametric families also
        normals of the parameters, and rows given them; `elbo` is then an estimate with a standard
        error, at points that the fit has not seen, and the traces are moved to end there.

    Raises:
        ValueError: If an option is out of range, or a start has a wrong site, shape or value.
    """
    if batch_size is not None:
        from btil.inference import stochastic

        stochastic.check_tables(bound)
        if batch_size < bound.demos.num_episodes:
            return stochastic.fit(
                stochastic.in_memory(bound),
                seed=seed,
                progress=progress,
                dtype=dtype,
                checkpoint=checkpoint,
                batch_size=batch_size,
                num_restarts=num_restarts,
                tolerance=tolerance,
                max_iterations=max_iterations,
                start=start,
                devices=devices,
                delay=delay,
                forgetting_rate=forgetting_rate,
            )
    elif delay is not None or forgetting_rate is not None:
        raise ValueError("delay and forgetting_rate are of steps by batches: give batch_size too")
    resolution = 4 * float(np.finfo(dtype).eps) if tolerance is None else 0.0
    absolute = 1e-4 if tolerance is None else float(tolerance)

    def enough(elbo: float) -> float:
        return max(absolute, resolution * abs(elbo))

    mesh = make_mesh(devices)
    layout = lay_out(bound, num_devices=size_of(mesh))
    families, data = family_data(bound, layout, dtype, _OWN_POINTS)
    prior = {
        name: pad_rows(table.cpt.concentration(table.contexts), layout.num_rows[name], 1.0)
        for name, table in bound.learned.items()
        if not table.parametric
    }
    problem = Problem(
        prior={name: on_device(u, dtype) for name, u in prior.items()},
        prior_remainder={
            name: (
                on_device(stirling_remainder(u), dtype),
                on_device(stirling_remainder(u.sum(-1)), dtype),
            )
            for name, u in prior.items()
        },
        log_fixed={
            name: on_device(
                pad_rows(log_rows(table.prior_mean()), max(layout.num_rows[name], 1), 0.0), dtype
            )
            for name, table in bound.tables.items()
            if not table.learned
        },
        steps=(),
        family_data=data,
    )
    steps = tuple(layout.index[agent] for agent in bound.demos.agents)
    problem = place(problem, mesh)._replace(steps=place(steps, mesh, SPLIT_SECOND))
    known = labelled_counts(bound, layout.num_rows)
    if start is not None:
        known |= counts_of_start(start, bound, prior)
    typical = _typical_prior(bound, prior, layout.num_rows)
    most = float(bound.demos.num_steps * bound.demos.num_agents)
    sites = chains(bound, known, most, dtype)
    stopping = place((np.asarray(absolute, dtype), np.asarray(resolution, dtype)), mesh)
    never = place((np.zeros((), dtype), np.zeros((), dtype)), mesh)

    nowhere = jnp.asarray(-jnp.inf, dtype)
    # The derivative of a sweep is that of one which fits normals to the end.
    to_the_end = problem.family_data._replace(least_gain=place(np.zeros((), dtype), mesh))
    exact = problem._replace(family_data=to_the_end)

    def begin(counts: Mapping[str, np.ndarray]) -> State:
        return _begin(counts, prior, families, dtype)

    def proceed(
        state: State,
        elbo: Float[Array, ""],
        allowed: np.ndarray,
        stops: bool,
        problem: Problem = problem,
    ) -> Progress:
        return ascend(
            *place((state, elbo), mesh),
            problem,
            *(stopping if stops else never),
            place(allowed, mesh),
            sites,
            families,
            mesh,
        )

    with progress_line(num_restarts * max_iterations, "mfvi", progress) as line:
        ascents = Ascents(
            ascend=proceed,
            sweep=lambda state: proceed(state, nowhere, np.asarray(1, np.int32), False, exact),
            prior=typical,
            tolerance=enough,
            max_iterations=max_iterations,
            dtype=dtype,
            checkpoint=checkpoint,
            line=line,
        )
        for restart in range(num_restarts):
            generator = np.random.default_rng([seed, restart])
            if restart == 1 and start is not None:
                known = labelled_counts(bound, layout.num_rows)

            def deal(
                known: Mapping[str, np.ndarray] = known,
                generator: np.random.Generator = generator,
            ) -> State:
                return begin(_added(known, random_counts(bound, layout.num_rows, generator)))

            first = begin(known) if restart == 0 else deal()
            symmetric = restart == 0 and is_symmetric(bound, _added(typical, known))
            doubt = doubtful_rate(bound) if restart == 0 and start is None else np.inf
            ascents.run(first, deal, symmetric, doubt, generator)
            line.total = line.n + (num_restarts - restart - 1) * max_iterations
            line.refresh()
    state, trace, end = ascents.best
    elbo = float(trace[-1])
    verdict = judge(trace, enough(elbo), max_iterations, dtype, end)
    rows: dict[str, RowsPosterior] = {
        name: DirichletRows(np.asarray(w)[: len(bound.tables[name].contexts.rows)])
        for name, w in state.concentration.items()
    }
    result = FitResult(
        rows=rows,
        converged=verdict.converged,
        reason=verdict.reason,
        elbo=elbo,
        elbo_trace=trace,
        restart_traces=ascents.traces,
        contraction_rate=None if np.isnan(end.rate) else end.rate,
    )
    if not families:
        return result

    def once(state: State, data: FamilyData) -> Progress:
        """One sweep, with other points."""
        other = problem._replace(family_data=place(data, mesh))
        return proceed(state, nowhere, np.asarray(1, np.int32), True, other)

    fitted = state._replace(normals=once(state, data).upcoming.normals)
    numbers = range(_OWN_POINTS + 1, _OWN_POINTS + 1 + _FRESH_POINTS)
    points = [family_data(bound, layout, dtype, number)[1] for number in numbers]
    bounds = [float(once(fitted, fresh).elbo) + excess(families, fresh) for fresh in points]
    return _with_parameters(result, bound, fitted, families, bounds)


def chains(
    bound: BoundModel, counts: Mapping[str, np.ndarray], most: float, dtype: np.dtype
) -> Sites:
    """Each agent's tables, and whether scaled messages suffice for them all through a fit.

    Coordinate ascent adds counts to the priors: E[log] of a cell never falls below that of its
    prior (or of what the first state has there, if that is less) in a row with all there are.

    Args:
        bound: The model on its data.
        counts: What the first state has on top of the prior; may be negative.
        most: What a row's counts may add up to.
        dtype: The type of the messages.

    Returns:
        One chain per agent.
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
    return tuple(
        Chain(
            (policy, transition, initial),
            scaling_suffices(min(smallest[transition], smallest[initial]), smallest[policy], dtype),
        )
        for policy, transition, initial in (
            agent_sites(bound, agent) for agent in bound.demos.agents
        )
    )


def _begin(
    counts: Mapping[str, np.ndarray],
    prior: Mapping[str, np.ndarray],
    families: Families,
    dtype: np.dtype,
) -> State:
    """The state that belongs to given counts of every learned table."""
    concentration = {name: on_device(u + counts[name], dtype) for name, u in prior.items()}
    if not families:
        return State(concentration)
    given = {family.name: on_device(counts[family.name], dtype) for family in families}
    return State(concentration, given, first_normals(families, dtype))


def _added(
    counts: Mapping[str, np.ndarray], others: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    return {name: values + others[name] for name, values in counts.items()}


def _typical_prior(
    bound: BoundModel, prior: Mapping[str, np.ndarray], num_rows: Mapping[str, int]
) -> dict[str, np.ndarray]:
    """Concentrations of every learned table, under parameters the rows that are expected."""
    return {
        name: prior[name]
        if name in prior
        else pad_rows(table.prior_mean(), num_rows[name], 1 / table.shape[-1])
        for name, table in bound.learned.items()
    }


def _with_parameters(
    result: FitResult, bound: BoundModel, state: State, families: Families, bounds: list[float]
) -> FitResult:
    """The result with the parametric families' part.

    Args:
        result: The result without it.
        bound: The model on its data.
        state: Where the fit ended, its normals fitted.
        families: The parametric tables.
        bounds: The bound of that state at sets of points that it was not fitted by.
    """
    assert state.normals is not None
    assert result.elbo is not None
    assert result.elbo_trace is not None
    parameters = joint_normals(families, state.normals)
    counts = {
        family.name: np.asarray(state.counts[family.name])[: family.shape[0]]
        for family in families
        if family.cpt.dirichlet_rows
    }
    rows = {**result.rows, **rows_given_parameters(bound, parameters, counts)}
    elbo = float(np.mean(bounds))
    # Points that normals were fitted by flatter them, in all sweeps by about as much.
    flattery = result.elbo - elbo
    return result._replace(
        rows={name: rows[name] for name in bound.learned},
        parameters=parameters,
        elbo=elbo,
        elbo_standard_error=float(np.std(bounds, ddof=1) / np.sqrt(len(bounds))),
        elbo_trace=result.elbo_trace - flattery,
        restart_traces=tuple(trace - flattery for trace in result.restart_traces),
    )


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
