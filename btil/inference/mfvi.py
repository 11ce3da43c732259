"""Mean-field variational inference, the paper's Algorithm 1: from data to an optimum.

Coordinate ascent by the sweeps of `mean_field.py`; where it may stop, `ascents.py` decides.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from btil.inference.ascents import SWEEPS_PER_CALL, Ascents, judge
from btil.inference.channels import (
    PlainAscents,
    dealt_statistics,
    is_doubtful,
    labelled_statistics,
    laid_channels,
    log_jacobian,
    posterior_normals,
)
from btil.inference.checkpoint import NOWHERE, Checkpoint
from btil.inference.devices import make_mesh, place, place_lanes, size_of
from btil.inference.mean_field import (
    Problem,
    Progress,
    State,
    ascend,
    counts_of_start,
    step_forms,
)
from btil.inference.parameters import (
    FRESH_POINTS,
    OWN_POINTS,
    FamilyData,
    excess,
    family_data,
    first_normals,
    with_parameters,
)
from btil.inference.processes import processes_of
from btil.inference.result import (
    DirichletRows,
    FitResult,
    MatrixNormalChannel,
)
from btil.inference.starting import (
    doubtful_rate,
    is_symmetric,
    known_latents,
    labelled_counts,
    labels_tell_apart,
    random_counts,
    small_concentrations,
)
from btil.messages.layout import Layout, lay_out, log_rows, pad_rows
from btil.models.parametric import parametric_sites
from btil.models.team import BoundModel
from btil.numerics.matrix_normal import Statistics
from btil.numerics.precision import on_device
from btil.numerics.special import prior_terms
from btil.progress import progress_line

# Sweeps of an outline, and how often so many.
_OUTLINE_SWEEPS, _OUTLINE_CALLS = np.asarray(SWEEPS_PER_CALL, np.int32), 3
# Concentrations of policies by way of which restarts come, and most calls of sweeps under them.
_RAISED, _CALLS_RAISED = (1.0, 0.3, 0.1), 5
# Most sweeps over the episodes that a fit by batches is begun on.
_SAMPLE_SWEEPS = 200


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
    where it is symmetric in some latents. The run with the highest bound is kept.

    Where a policy's concentrations are small, an ascent keeps to what it has seen first: a cell
    that no count holds up is next to impossible. So restarts come by larger ones: policies'
    concentrations are raised to 1, in the next restart to 0.3, then to 0.1, and where the ascent
    under these leads the one of the model sets out. All other restarts deal out the unlabelled
    steps at random.

    Args:
        bound: The model on its data.
        seed: Seeds random starts and directions.
        progress: Whether to show a progress line.
        dtype: float32 or float64.
        checkpoint: Where progress is saved.
        num_restarts: Number of runs. In kitchens of Overcooked with two labelled trials four runs
            end 30 to 370 nats higher than one.
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

        if batch_size < bound.demos.num_episodes:
            return stochastic.fit(
                stochastic.in_memory(bound, batch_size, processes_of(devices)),
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
                outline=channel_outline,
            )
    elif delay is not None or forgetting_rate is not None:
        raise ValueError("delay and forgetting_rate are of steps by batches: give batch_size too")
    run = Run(bound, dtype, tolerance, make_mesh(devices), start)
    if bound.channels:
        return _fit_channels(run, bound, seed, progress, checkpoint, num_restarts, max_iterations)
    with progress_line(num_restarts * max_iterations, "mfvi", progress, at_most=True) as line:
        ascents = Ascents(
            ascend=run.proceed,
            sweep=run.sweep,
            prior=run.typical,
            tolerance=run.tolerance,
            max_iterations=max_iterations,
            dtype=dtype,
            checkpoint=checkpoint,
            line=line,
        )
        for restart in range(num_restarts):
            generator = np.random.default_rng([seed, restart])
            if restart == 0:
                doubt = doubtful_rate(bound) if start is None else np.inf
                first, symmetric = run.begin(run.known), run.is_symmetric
                deal = partial(run.deal, run.known, generator)
            else:
                known = run.known if start is None else labelled_counts(bound, run.num_rows)
                deal = partial(run.deal, known, generator)
                first, symmetric, doubt = deal(), False, np.inf
                raised = run.raised_concentrations
                if restart <= len(raised):
                    first = run.begin(run.counts_under(raised[restart - 1], known))
            ascents.run(first, deal, symmetric, doubt, generator)
            line.total = line.n + (num_restarts - restart - 1) * max_iterations
            line.refresh()
    result = run.result(ascents, max_iterations)
    enough = enough_restarts(bound)
    if start is None and num_restarts < enough and result.converged:
        hint = f"; small concentrations may hide a higher one: num_restarts={enough} looks for it"
        result = result._replace(reason=result.reason + hint)
    return result


def outlines(
    bound: BoundModel, dtype: np.dtype, generators: Sequence[np.random.Generator]
) -> list[dict[str, Float[np.ndarray, "..."]]]:
    """Where coordinate ascent leads in a few sweeps from steps dealt out at random.

    Samplers of the rows set out from there. Nothing is said of optima.

    Args:
        bound: The model on its data, of tables without parameters alone.
        dtype: float32 or float64.
        generators: One for each ascent wanted, which deals out the unlabelled steps.

    Returns:
        Concentrations of every learned table, for each ascent.
    """
    run = Run(bound, dtype, None, None, None)
    found = []
    for generator in generators:
        state = run.deal(run.known, generator)
        for _ in range(_OUTLINE_CALLS):
            state = run.proceed(state, run._nowhere, _OUTLINE_SWEEPS, False).upcoming
        rows = run.rows(state)
        found.append({name: one.concentration for name, one in rows.items()})
    return found


def channel_outline(
    bound: BoundModel, dtype: np.dtype, generator: np.random.Generator, from_labels: bool
) -> tuple[dict[str, np.ndarray], dict[str, Statistics]]:
    """Where coordinate ascent leads on some episodes, from the best of several starts.

    Args:
        bound: The model on them.
        dtype: float32 or float64.
        generator: Deals out the unlabelled steps.
        from_labels: Whether the labelled steps are one of the starts.

    Returns:
        Counts of every learned table, and sums of every channel, without padding.
    """
    run = Run(bound, dtype, None, None, None)
    with progress_line(_SAMPLE_SWEEPS, "", False) as line:
        ascents = PlainAscents(run.proceed, run.tolerance, _SAMPLE_SWEEPS, run.dtype, NOWHERE, line)
        deal = partial(run.deal, run.known, generator)
        ascents.run(run.begin(run.known) if from_labels else deal(), deal, True, run.mixes)
    state = ascents.best[0]
    counts = {
        name: rows.concentration - run.prior[name][: len(rows.concentration)]
        for name, rows in run.rows(state).items()
    }
    for name, found in state.counts.items():
        counts[name] = np.asarray(found)[: bound.tables[name].shape[0]]
    sums = {}
    for channel in bound.channels.values():
        number = len(channel.contexts)
        own = state.channels[channel.name]
        sums[channel.name] = Statistics(*(np.asarray(part)[:number] for part in own))
    return counts, sums


def _fit_channels(
    run: "Run",
    bound: BoundModel,
    seed: int,
    progress: bool,
    checkpoint: Checkpoint,
    num_restarts: int,
    max_iterations: int,
) -> FitResult:
    """The fit of a model with continuous channels."""
    doubtful = is_doubtful(bound)
    with progress_line(num_restarts * max_iterations, "mfvi", progress, at_most=True) as line:
        ascents = PlainAscents(
            run.proceed, run.tolerance, max_iterations, run.dtype, checkpoint, line
        )
        for restart in range(num_restarts):
            generator = np.random.default_rng([seed, restart])
            deal = partial(run.deal, run.known, generator)
            begin = run.begin(run.known) if restart == 0 else deal()
            ascents.run(begin, deal, doubtful, run.mixes)
    return run.result(ascents, max_iterations)


def enough_restarts(bound: BoundModel) -> int:
    """How many runs it takes to be far from what small concentrations make of a first guess.

    As many as there are ways by larger ones, and one, where policies have small concentrations and
    latents are not known. Where there are no such ways (columns, parameters, nothing that tells
    latents apart) one: others would begin at random, as those do that the first run looks at.
    """
    if bound.channels or parametric_sites(bound):
        return 1
    policies = {bound.sites(agent)[0] for agent in bound.demos.agents}
    small = bool(policies & small_concentrations(bound))
    unknown = bool(((known_latents(bound) < 0) & bound.demos.present).any())
    return 1 + len(_RAISED) if small and unknown and labels_tell_apart(bound) else 1


class Run:
    """A model on its data, ready for sweeps.

    Attributes:
        num_rows: Rows of each table, with padding.
        prior: Concentrations of the tables with Dirichlet priors, padded.
        typical: Those of every learned table, under parameters the rows that are expected.
        known: Counts that the first ascent starts from.
        problem: What a sweep reads.
        sites: Each agent's tables.
    """

    def __init__(
        self,
        bound: BoundModel,
        dtype: np.dtype,
        tolerance: float | None,
        mesh: Mesh | None,
        start: Mapping[str, Any] | None,
    ) -> None:
        self._bound, self._dtype, self._mesh = bound, dtype, mesh
        self._resolution = 4 * float(np.finfo(dtype).eps) if tolerance is None else 0.0
        self._absolute = 1e-4 if tolerance is None else float(tolerance)
        self._layout = layout = lay_out(bound, num_devices=size_of(mesh))
        self.num_rows = layout.num_rows
        self._families, self._data = family_data(bound, layout, dtype, OWN_POINTS)
        self.prior = {
            name: pad_rows(table.cpt.concentration(table.contexts), layout.num_rows[name], 1.0)
            for name, table in bound.learned.items()
            if not table.parametric
        }
        self.typical = _typical_prior(bound, self.prior, layout.num_rows)
        problem = place(_problem(bound, layout, dtype, self.prior, self._data), mesh)
        steps = tuple(layout.index[agent] for agent in bound.demos.agents)
        self._channels = laid_channels(bound, layout, dtype)
        self.problem = problem._replace(
            steps=place_lanes(steps, mesh),
            channels=place({name: one.steps for name, one in self._channels.items()}, mesh),
        )
        # The derivative of a sweep is that of one which fits normals to the end.
        to_the_end = problem.family_data._replace(least_gain=place(np.zeros((), dtype), mesh))
        self._exact = self.problem._replace(family_data=to_the_end)
        self.known = labelled_counts(bound, layout.num_rows)
        if start is not None:
            self.known |= counts_of_start(start, bound, self.prior)
        most = float(bound.demos.num_steps * bound.demos.num_agents)
        self.sites = step_forms(bound, self.known, most, dtype)
        stopping = (np.asarray(self._absolute, dtype), np.asarray(self._resolution, dtype))
        self._stopping = place(stopping, mesh)
        self._never = place((np.zeros((), dtype), np.zeros((), dtype)), mesh)

    @property
    def dtype(self) -> np.dtype:
        """Type of the states."""
        return self._dtype

    @property
    def is_symmetric(self) -> bool:
        """Whether the first ascent cannot tell some latents apart."""
        return is_symmetric(self._bound, _added(self.typical, self.known))

    def tolerance(self, elbo: float) -> float:
        """What a bound of this size may still gain at an end."""
        return max(self._absolute, self._resolution * abs(elbo))

    def begin(self, counts: Mapping[str, np.ndarray]) -> State:
        """The state that belongs to given counts of every learned table."""
        dtype, families = self._dtype, self._families
        concentration = {name: on_device(u + counts[name], dtype) for name, u in self.prior.items()}
        channels = labelled_statistics(self._bound, self._channels, self._layout, dtype)
        if not families:
            return State(concentration, channels=channels)
        given = {family.name: on_device(counts[family.name], dtype) for family in families}
        return State(concentration, given, first_normals(families, dtype), channels)

    def deal(self, known: Mapping[str, np.ndarray], generator: np.random.Generator) -> State:
        """A state from known counts, with the unlabelled steps dealt out at random."""
        dealt = self.begin(_added(known, random_counts(self._bound, self.num_rows, generator)))
        if not self._channels:
            return dealt
        statistics = dealt_statistics(
            self._bound, self._channels, self._layout, self._dtype, generator
        )
        return dealt._replace(channels=statistics)

    @cached_property
    def raised_concentrations(self) -> list[float]:
        """Larger concentrations of the policies, from where an ascent may set out.

        None where that is symmetric, or where something else than rows is learned.
        """
        if self.is_symmetric or self._families or self._channels:
            return []
        own = [self.prior[site].min() for site in self._policies]
        return [value for value in _RAISED if own and min(own) < value]

    @property
    def _policies(self) -> list[str]:
        """Learned policies."""
        found = {self._bound.sites(agent)[0] for agent in self._bound.demos.agents}
        return sorted(found & set(self.prior))

    def counts_under(
        self, concentration: float, known: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Expected counts to which ascent leads where policies have no smaller concentrations.

        Args:
            concentration: What those of policies are raised to.
            known: Counts that the ascent begins with.
        """
        raised = self.prior | {
            site: np.maximum(self.prior[site], concentration) for site in self._policies
        }
        problem = self.problem._replace(**place(_priors(raised, self._dtype), self._mesh))
        counts = {name: u + known[name] for name, u in raised.items()}
        state = self.begin(known)._replace(
            concentration={name: on_device(w, self._dtype) for name, w in counts.items()}
        )
        elbo = self._nowhere
        for _ in range(_CALLS_RAISED):
            now = self.proceed(state, elbo, np.asarray(SWEEPS_PER_CALL, np.int32), True, problem)
            state, elbo = now.upcoming, now.elbo
            if not bool(now.running):
                break
        return {
            name: np.maximum(np.asarray(state.concentration[name], np.float64) - u, 0.0)
            for name, u in raised.items()
        }

    @property
    def mixes(self) -> list[Callable[[State, State], State]]:
        """For each agent with a channel, what puts its own part of one state into another."""
        return [partial(self._mixed, agent) for agent in self._bound.channels]

    def _mixed(self, agent: str, state: State, dealt: State) -> State:
        own = {site for site in self._bound.sites(agent)
               if len(self._bound.tables[site].agents) == 1}  # fmt: skip
        channel = self._bound.channels[agent].name

        def mixed(kept: dict[str, Array], given: dict[str, Array]) -> dict[str, Array]:
            return {name: given[name] if name in own else one for name, one in kept.items()}

        return state._replace(
            concentration=mixed(state.concentration, dealt.concentration),
            counts=mixed(state.counts, dealt.counts),
            channels=state.channels | {channel: dealt.channels[channel]},
        )

    def proceed(
        self,
        state: State,
        elbo: Float[Array, ""],
        allowed: np.ndarray,
        stops: bool,
        problem: Problem | None = None,
    ) -> Progress:
        """So many sweeps, or fewer where they stop by themselves."""
        return ascend(
            *place((state, elbo), self._mesh),
            self.problem if problem is None else problem,
            *(self._stopping if stops else self._never),
            place(allowed, self._mesh),
            self.sites,
            self._families,
            self._mesh,
        )

    def sweep(self, state: State) -> Progress:
        """One sweep, by normals that are fitted to the end."""
        return self.proceed(state, self._nowhere, np.asarray(1, np.int32), False, self._exact)

    @cached_property
    def _nowhere(self) -> Float[Array, ""]:
        return on_device(-np.inf, self._dtype)

    def rows(self, state: State) -> dict[str, DirichletRows]:
        """Rows of the tables without parameters, without padding."""
        return {
            name: DirichletRows(np.asarray(w)[: len(self._bound.tables[name].contexts.rows)])
            for name, w in state.concentration.items()
        }

    def result(self, ascents: Ascents | PlainAscents, max_iterations: int) -> FitResult:
        """The best of the ascents, and how it ended."""
        state, trace, end = ascents.best
        elbo = float(trace[-1])
        verdict = judge(trace, self.tolerance(elbo), max_iterations, self._dtype, end)
        result = FitResult(
            rows=dict(self.rows(state)),
            converged=verdict.converged,
            reason=verdict.reason,
            elbo=elbo,
            elbo_trace=trace,
            restart_traces=ascents.traces,
            contraction_rate=None if np.isnan(end.rate) else end.rate,
        )
        if self._families:
            result = self._with_families(result, state)
        return self._with_channels(result, state) if self._channels else result

    def _with_channels(self, result: FitResult, state: State) -> FitResult:
        """The result with channels, and bounds of densities in the units of the data."""
        assert result.elbo is not None
        assert result.elbo_trace is not None
        shift = float(log_jacobian(self._bound).sum())
        return result._replace(
            elbo=result.elbo + shift,
            elbo_trace=result.elbo_trace.astype(np.float64) + shift,
            restart_traces=tuple(t.astype(np.float64) + shift for t in result.restart_traces),
            channels={
                name: MatrixNormalChannel(*posterior_normals(one, state.channels[name]))
                for name, one in self._channels.items()
            },
        )

    def _with_families(self, result: FitResult, state: State) -> FitResult:
        """The result with parameters, and with the bound at points that the fit has not seen."""
        fitted = state._replace(normals=self._once(state, self._data).upcoming.normals)
        points = [family_data(self._bound, self._layout, self._dtype, n)[1] for n in FRESH_POINTS]
        bounds = [
            float(self._once(fitted, fresh).elbo) + excess(self._families, fresh)
            for fresh in points
        ]
        assert fitted.normals is not None
        return with_parameters(
            result, self._bound, self._families, fitted.normals, fitted.counts, bounds
        )

    def _once(self, state: State, data: FamilyData) -> Progress:
        """One sweep, with other points."""
        other = self.problem._replace(family_data=place(data, self._mesh))
        return self.proceed(state, self._nowhere, np.asarray(1, np.int32), True, other)


def _problem(
    bound: BoundModel,
    layout: Layout,
    dtype: np.dtype,
    prior: Mapping[str, np.ndarray],
    data: FamilyData,
) -> Problem:
    """What a sweep reads, but for the steps."""
    return Problem(
        **_priors(prior, dtype),
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


def _priors(prior: Mapping[str, np.ndarray], dtype: np.dtype) -> dict[str, Any]:
    """What a sweep reads of the concentrations before data."""
    to_device = partial(on_device, dtype=dtype)
    return {
        "prior": {name: to_device(u) for name, u in prior.items()},
        "prior_terms": {name: jax.tree.map(to_device, prior_terms(u)) for name, u in prior.items()},
    }


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
