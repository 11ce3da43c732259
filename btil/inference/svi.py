r"""Stochastic variational inference (NumPyro) on the collapsed model.

The latents are summed out by `LatentChain`, so the bound

.. math:: \mathcal{L}(q) = E_{q(rows)}[\log p(actions, labels \mid rows)] - KL(q \| prior)

is higher than mean field's at the same q(rows): q(latents) is exact given the rows.

The programs depend on the structure, the options and the shapes; the data are arguments, and a
second fit of equal shapes compiles nothing. A function of the modeler's own (`NumpyroModel`) goes
the same way, but that its programs are traced anew in every fit.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.sharding import Mesh
from jaxtyping import Array, Float
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions.kl import kl_divergence
from numpyro.distributions.transforms import biject_to
from numpyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO, autoguide
from numpyro.infer.util import potential_energy

from btil.inference.ascents import drift
from btil.inference.channel_guide import (
    channel_density,
    channel_start,
    outside,
    sample_guide,
)
from btil.inference.checkpoint import NOWHERE, Checkpoint
from btil.inference.collapsed import (
    collapsed_data,
    drawn_channels,
    drawn_log_likelihood,
    given_rows,
    refuse_large_priors,
    rows_given_parameters,
)
from btil.inference.devices import make_mesh, place, place_episodes
from btil.inference.result import (
    ChannelPosterior,
    DirichletRows,
    DrawnParameters,
    DrawnRows,
    FitResult,
    MatrixNormalChannel,
    NormalParameters,
    ParameterPosterior,
    RowsPosterior,
)
from btil.inference.starting import starting_concentrations
from btil.models.emission import Normals, channel_draws
from btil.models.parametric import normal_of_unconstrained
from btil.models.team import BoundModel
from btil.numerics.gammas import differentiable_log_gammas
from btil.numerics.matrix_normal import Hyper
from btil.numerics.matrix_normal import divergence as kl_of_normals
from btil.numerics.precision import on_device
from btil.numerics.promotion import promotion_allowed
from btil.numerics.special import dirichlet_divergence, rows_divergence
from btil.numpyro_forms.model_data import ModelData, Structure
from btil.numpyro_forms.numpyro_model import BoundNumpyroModel, EpisodeData, Evaluated, evaluate
from btil.numpyro_forms.team_dbn import forward_model
from btil.numpyro_forms.tracing import traced_anew
from btil.progress import progress_line

DIRICHLET = "dirichlet"
AUTOGUIDES = (
    "AutoNormal",
    "AutoDelta",
    "AutoDiagonalNormal",
    "AutoMultivariateNormal",
    "AutoLowRankMultivariateNormal",
    "AutoLaplaceApproximation",
    "AutoBNAFNormal",
    "AutoIAFNormal",
    "AutoDAIS",
)
_ITERATIONS_PER_CALL = 100
_BOUND_PARTICLES = 1000
# Particles evaluated side by side: bounds the memory.
_BATCH = 50
_FEWEST_ITERATIONS = 400
_FIRST_LOG_SCALE = -1.0
# Largest sum of a row's prior concentrations. Beyond, log densities are differences of log Gammas
# that agree in all digits, and JAX's gradient of a Gamma draw is wrong or takes seconds.
_LARGEST_PRIORS = {"float32": 1e5, "float64": 1e8}

Guide = str | type[autoguide.AutoGuide]


class Settings(NamedTuple):
    """What the compiled programs depend on besides model and shapes."""

    guide: Guide
    learning_rate: float
    num_particles: int


class Target(NamedTuple):
    """What is inferred, and with what, as functions of a fit's arrays.

    Attributes:
        model: (inputs) -> nothing; a NumPyro model.
        make_guide: () -> a guide of it; a new one each time.
        loss: The class of the loss.
        collect: (guide, its parameters, key, inputs, number) -> what is kept of the fit.
    """

    model: Callable[[Any], Any]
    make_guide: Callable[[], Any]
    loss: type
    collect: Callable[..., Any]


class Inputs(NamedTuple):
    """The arrays of a fit of tables.

    Attributes:
        data: The model's.
        start: Concentrations from which the Dirichlet guide starts, per learned site.
        channels: Densities from which it starts, per agent with continuous columns.
    """

    data: ModelData
    start: dict[str, Float[Array, "..."]]
    channels: dict[str, Hyper] = {}  # noqa: RUF012  # never mutated


class Programs(NamedTuple):
    """Compiled by JAX at the first call.

    Attributes:
        start: (key, inputs) -> state.
        advance: (state, inputs, count) -> state after count updates, and the bound's estimate
            in each, meaningless past `count`.
        bounds: (state, key, inputs) -> independent estimates of the bound.
        collect: (state, key, inputs, number=number) -> what is kept of the fit.
    """

    start: Callable[..., Any]
    advance: Callable[..., Any]
    bounds: Callable[..., Any]
    collect: Callable[..., Any]


class Kept(NamedTuple):
    """What a guide says of the posterior, as a `FitResult` has it."""

    rows: dict[str, RowsPosterior]
    parameters: Mapping[str, ParameterPosterior]
    log_likelihood: Float[np.ndarray, "chain draw episodes"] | None
    channels: Mapping[str, ChannelPosterior] = {}  # never mutated


class Problem(NamedTuple):
    """A bound model made ready.

    Attributes:
        guide: The guide that it is fitted with.
        programs: The programs.
        inputs: Their arrays.
        keep: (what `programs.collect` gave) -> what is kept of it.
        bounds: (what `programs.collect` gave) -> independent estimates of the bound, where there
            is a better way than `programs.bounds`.
    """

    guide: Guide
    programs: Programs
    inputs: Any
    keep: Callable[[Any], Kept]
    bounds: Callable[[Any], Float[np.ndarray, " particles"]] | None = None


class Verdict(NamedTuple):
    """Whether to stop, whether that is convergence, and a sentence that says why."""

    stop: bool
    converged: bool
    reason: str


class DrawnDirichlet(dist.Dirichlet):
    """A Dirichlet that comes with the draw to give.

    Compiling a gamma sampler takes seconds; so one makes the draws of all sites together.
    """

    def __init__(
        self, concentration: Float[Array, "*rows values"], draw: Float[Array, "*rows values"]
    ) -> None:
        self.draw = draw
        super().__init__(concentration)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """The draw it came with."""
        assert not sample_shape
        return self.draw


@kl_divergence.register(DrawnDirichlet, dist.Dirichlet)
def _divergence(own: DrawnDirichlet, prior: dist.Dirichlet) -> Float[Array, "*rows"]:
    u = jnp.broadcast_to(prior.concentration, own.concentration.shape)
    return dirichlet_divergence(own.concentration, u)


def dirichlet_guide(structure: Structure, inputs: Inputs) -> None:
    """One Dirichlet per row, one normal per unconstrained value of the families' parameters.

    What is optimised are the logs of the concentrations, and means and log scales of the normals.
    Continuous columns have a density of the conjugate family (`channel_guide`).
    """
    _sample_rows(structure, inputs)
    for site in structure.channels:
        sample_guide(
            site, inputs.channels[site.agent], inputs.data.channels[site.agent].steps.prior
        )


def _sample_rows(structure: Structure, inputs: Inputs) -> None:
    for site, prior in structure.priors.items():
        shape = biject_to(prior.support).inverse_shape(prior.shape())
        numpyro.sample(site, normal_of_unconstrained(prior, *_normal(site, shape)))
    if not structure.dirichlet_sites:
        return
    concentrations = [
        jnp.exp(numpyro.param(f"{name}_log_concentration", jnp.log(inputs.start[name])))
        for name in structure.dirichlet_sites
    ]
    flat = jnp.concatenate([values.reshape(-1) for values in concentrations])
    log_gammas = differentiable_log_gammas(numpyro.prng_key(), flat)
    ends = np.cumsum([values.size for values in concentrations])
    parts = jnp.split(log_gammas, ends[:-1])
    for name, values, part in zip(structure.dirichlet_sites, concentrations, parts, strict=True):
        drawn = DrawnDirichlet(values, jax.nn.softmax(part.reshape(values.shape)))
        numpyro.sample(name, drawn.to_event(values.ndim - 1))


def _normal(site: str, shape: tuple[int, ...]) -> tuple[Array, Array]:
    location = numpyro.param(f"{site}_location", jnp.zeros(shape))
    log_scale = numpyro.param(f"{site}_log_scale", jnp.full(shape, _FIRST_LOG_SCALE))
    return location, jnp.exp(log_scale)


def _plain_model(structure: Structure, inputs: Inputs) -> None:
    forward_model(structure, inputs.data)


def _certain_rows_given(structure: Structure, inputs: Inputs) -> None:
    """The collapsed model; rows of a single cell are given as what they are, which is 1.

    No AutoGuide can have parameters for them.
    """
    certain = {
        name: jnp.ones_like(values)
        for name, values in inputs.start.items()
        if values.shape[-1] == 1
    }
    with handlers.condition(data=certain):
        forward_model(structure, inputs.data)


def _table_target(structure: Structure, guide: Guide) -> Target:
    """The collapsed model of tables."""

    def dirichlet(
        guide: Any, params: Any, key: Array, inputs: Inputs, number: int
    ) -> tuple[dict[str, Array], dict[str, tuple[Array, Array]], dict[str, Hyper]]:
        """Concentrations of the rows, means and scales of the parameters' normals, densities."""
        concentrations = {
            name: jnp.exp(params[f"{name}_log_concentration"]) for name in structure.dirichlet_sites
        }
        normals = {
            site: (params[f"{site}_location"], jnp.exp(params[f"{site}_log_scale"]))
            for site in structure.priors
        }
        channels = {site.agent: channel_density(site, params) for site in structure.channels}
        return concentrations, normals, channels

    def drawn(
        guide: Any, params: Any, key: Array, inputs: Inputs, number: int
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Draws of the rows and of the parameters."""
        draws = guide.sample_posterior(key, params, inputs, sample_shape=(number,))
        ones = {
            name: jnp.ones((number, *values.shape), values.dtype)
            for name, values in inputs.start.items()
        }
        rows = {name: draws.get(name, ones[name]) for name in structure.dirichlet_sites}
        given = {site: draws[site] for site in (*structure.priors, *structure.channel_sites)}
        return rows, given

    if guide == DIRICHLET:
        model, own_guide = partial(_plain_model, structure), partial(dirichlet_guide, structure)
        return Target(model, lambda: own_guide, TraceMeanField_ELBO, dirichlet)
    model = partial(_certain_rows_given, structure)
    kind: Any = guide_class(guide)
    return Target(model, partial(kind, model), Trace_ELBO, drawn)


def _own_target(bound: BoundNumpyroModel, guide: Guide) -> Target:
    """A function of the modeler's own."""
    function = bound.own_model.function

    def drawn(
        guide: Any, params: Any, key: Array, inputs: EpisodeData, number: int
    ) -> tuple[dict[str, Array], Evaluated]:
        """Draws of the parameters, and what follows from each."""
        sampled = guide.sample_posterior(key, params, inputs, sample_shape=(number,))
        draws = {site: sampled[site] for site in bound.parameters}
        return draws, jax.lax.map(partial(evaluate, function, inputs), draws, batch_size=_BATCH)

    kind: Any = guide_class(guide)
    return Target(function, partial(kind, function), Trace_ELBO, drawn)


def target_programs(
    target: Target, settings: Settings, compiled: Callable[..., Any] = jax.jit
) -> Programs:
    """Programs for one target.

    A NumPyro guide remembers the data and the start of its first use. So each program builds its
    own while JAX traces it: nothing is carried from one fit to the next but compiled code.

    Args:
        target: What is inferred.
        settings: Options that the programs depend on.
        compiled: `jax.jit`, or what stands for it.
    """

    def build(key: Array, inputs: Any, num_particles: int = 1) -> tuple[SVI, Any]:
        loss = target.loss(num_particles=num_particles)
        optimizer = numpyro.optim.Adam(settings.learning_rate)
        svi = SVI(target.model, target.make_guide(), optimizer, loss)
        return svi, svi.init(key, inputs)

    def rebuild(inputs: Any, num_particles: int = 1) -> SVI:
        # The state made along the way is not used, and XLA leaves it out.
        return build(jax.random.key(0), inputs, num_particles)[0]

    @promotion_allowed()
    def start(key: Array, inputs: Any) -> Any:
        return build(key, inputs)[1]

    @promotion_allowed()
    def advance(state: Any, inputs: Any, count: Array) -> Any:
        svi = rebuild(inputs, settings.num_particles)

        return update(svi, state, inputs, count)

    @promotion_allowed()
    def bounds(state: Any, key: Array, inputs: Any) -> Any:
        svi = rebuild(inputs)
        params = svi.get_params(state)

        def one(key: Array) -> Array:
            if isinstance(svi.guide, autoguide.AutoLaplaceApproximation):
                return _laplace_bound(key, svi, params, inputs)
            return -svi.loss.loss(key, params, svi.model, svi.guide, inputs)

        return jax.lax.map(one, jax.random.split(key, _BOUND_PARTICLES), batch_size=_BATCH)

    @promotion_allowed()
    def collect(state: Any, key: Array, inputs: Any, number: int) -> Any:
        svi = rebuild(inputs)
        return target.collect(svi.guide, svi.get_params(state), key, inputs, number)

    return Programs(
        compiled(start),
        compiled(advance),
        compiled(bounds),
        compiled(collect, static_argnames=("number",)),
    )


@lru_cache(maxsize=32)
def make_programs(structure: Structure, settings: Settings) -> Programs:
    """Programs for tables of one structure."""
    return target_programs(_table_target(structure, settings.guide), settings)


def update(svi: SVI, state: Any, inputs: Any, count: Array) -> tuple[Any, Float[Array, " updates"]]:
    """`count` updates (at most 100) and the bound's estimate in each, meaningless past them."""

    def body(i: Array, carry: Any) -> Any:
        state, trace = carry
        # An update that is not finite is not made, but its loss is told.
        state, loss = svi.stable_update(state, inputs)
        return state, trace.at[i].set(-loss)

    dtype = jax.eval_shape(svi.evaluate, state, inputs).dtype
    trace = jnp.zeros((_ITERATIONS_PER_CALL,), dtype)
    return jax.lax.fori_loop(0, count, body, (state, trace))


def _laplace_bound(key: Array, svi: SVI, params: Any, inputs: Inputs) -> Float[Array, ""]:
    """One estimate of the bound of the normal approximation, in unconstrained space.

    While it is fitted this guide is a point at the mode, and its loss no bound.
    """
    posterior = svi.guide.get_posterior(params)
    latent = posterior.sample(key)
    unpacked = svi.guide._unpack_latent(latent)
    return -potential_energy(svi.model, (inputs,), {}, unpacked) - posterior.log_prob(latent)


def guide_class(guide: Any) -> type[autoguide.AutoGuide]:
    """The AutoGuide that is meant.

    Raises:
        ValueError: If there is no such guide.
    """
    if isinstance(guide, str) and guide in AUTOGUIDES:
        return getattr(autoguide, guide)
    if isinstance(guide, type) and issubclass(guide, autoguide.AutoGuide):
        return guide
    raise ValueError(
        f"unknown guide {guide!r}; there are {DIRICHLET}, {', '.join(AUTOGUIDES)}, or a subclass "
        "of numpyro.infer.autoguide.AutoGuide"
    )


def is_point_mass(guide: Guide) -> bool:
    """Whether the guide is a single point, which has no bound."""
    return guide != DIRICHLET and issubclass(guide_class(guide), autoguide.AutoDelta)


def judge(
    trace: Float[np.ndarray, " iterations"], tolerance: float, max_iterations: int
) -> Verdict:
    """Judge a noisy trace of bound estimates.

    Converged means that the drift and two standard errors (`btil.inference.ascents.drift`;
    successive estimates use independent noise) are less than the tolerance: the bound has stopped
    moving, and there is enough of a trace to say so. A smaller tolerance needs longer traces or
    more particles.

    Args:
        trace: Estimates of the bound, one per iteration.
        tolerance: Change of the bound per iteration.
        max_iterations: The cap.

    Returns:
        The verdict.
    """
    trace = np.asarray(trace, np.float64)
    if not np.all(np.isfinite(trace)):
        at = int(np.flatnonzero(~np.isfinite(trace))[0])
        return Verdict(True, False, f"the bound became {trace[at]} at iteration {at + 1}")
    capped = len(trace) >= max_iterations
    cap = f"the cap of {max_iterations} iterations was reached"
    if len(trace) < _FEWEST_ITERATIONS:
        return Verdict(capped, False, f"{cap}; at least {_FEWEST_ITERATIONS} are needed to judge")
    moved, error = drift(trace)
    numbers = f"the bound drifts by {moved:.2g} +- {error:.2g} an iteration"
    if abs(moved) + 2 * error < tolerance:
        return Verdict(True, True, f"{numbers}, less than {tolerance:g} with two standard errors")
    return Verdict(capped, False, f"{cap}; {numbers} (tolerance {tolerance:g})")


def fit(
    bound: BoundModel,
    *,
    seed: int,
    progress: bool,
    dtype: np.dtype,
    checkpoint: Checkpoint = NOWHERE,
    guide: Any = None,
    max_iterations: Any = 5000,
    tolerance: Any = 1e-3,
    learning_rate: Any = 0.02,
    num_particles: Any = 4,
    num_samples: Any = 1000,
    devices: int | None = None,
) -> FitResult:
    """Fit a guide to the posterior of rows and parameters by stochastic gradients (Adam).

    Args:
        bound: The model on its data.
        seed: Determines start, noise and draws.
        progress: Whether to show a progress line.
        dtype: float32 or float64.
        checkpoint: Where progress is saved.
        guide: "dirichlet" (one Dirichlet per row, started from the prior plus the counts of the
            labelled steps; where that is symmetric in two latents the unlabelled steps are dealt
            out at random first; for continuous columns matrix-normal inverse-Wishart densities),
            the name of a NumPyro AutoGuide, or an AutoGuide class. None: "dirichlet" for tables,
            "AutoNormal" for a `NumpyroModel`, which has no rows.
        max_iterations: Most updates.
        tolerance: Change of the bound per iteration that counts as none; see `judge`.
        learning_rate: Adam's.
        num_particles: Draws per estimate of the bound.
        num_samples: Draws kept of an AutoGuide, as one chain (one draw of a point mass).
        devices: Number of devices over which the episodes are spread; None: one. The answer is the
            same up to rounding. For tables without emissions.

    Returns:
        Dirichlet rows or draws. `elbo` is a fresh Monte Carlo estimate (1000 particles, the
        Dirichlet guide's KL term in closed form) with its standard error; a point mass has none,
        and no trace of it: `notes["log_joint"]` then holds the log joint density at the point.

    Raises:
        ValueError: If the guide is unknown, or a prior larger than it can be computed with.

    References:
        Ranganath, Gerrish, Blei (2014), Black box variational inference; Figurnov, Mohamed, Mnih
        (2018), Implicit reparameterization gradients (the Dirichlet guide's gradient).
    """
    own = isinstance(bound, BoundNumpyroModel)
    if guide is None:
        guide = "AutoNormal" if own else DIRICHLET
    if own and guide == DIRICHLET:
        raise ValueError(
            f"guide {DIRICHLET!r} is for tables; a NumpyroModel takes {', '.join(AUTOGUIDES)}, or "
            "a subclass of numpyro.infer.autoguide.AutoGuide"
        )
    if guide != DIRICHLET:
        guide_class(guide)
    settings = Settings(guide, float(learning_rate), int(num_particles))
    mesh = make_mesh(devices)
    if mesh is not None and (own or bound.channels):
        kind = "a NumpyroModel" if own else "a model with emissions"
        raise ValueError(f"devices: svi fits {kind} on one device, got {devices!r}")
    if isinstance(bound, BoundNumpyroModel):
        problem = _own_problem(bound, settings)
    else:
        problem = _table_problem(bound, settings, seed, dtype, int(num_samples), mesh)
    programs, inputs = problem.programs, problem.inputs
    point = is_point_mass(problem.guide)
    keys = jax.random.split(jax.random.key(seed), 3)
    start_key, bound_key, draw_key = place(list(keys), mesh)
    state, trace, verdict = ascend(
        partial(programs.start, start_key, inputs),
        lambda state, count: programs.advance(state, inputs, count),
        float(tolerance),
        int(max_iterations),
        checkpoint,
        progress,
    )
    number = 1 if point else int(num_samples)
    collected = programs.collect(state, draw_key, inputs, number=number)
    kept = problem.keep(collected)
    notes: dict[str, Any] = {"iterations": len(trace)}
    elbo = error = None
    if point:
        notes["log_joint"] = float(trace[-1])
    else:
        if problem.bounds is not None:
            estimates = problem.bounds(collected)
        else:
            estimates = np.asarray(programs.bounds(state, bound_key, inputs), np.float64)
        elbo = float(estimates.mean())
        error = float(estimates.std(ddof=1) / np.sqrt(len(estimates)))
    traced = not point and not _is_laplace(problem.guide)
    return FitResult(
        rows=kept.rows,
        converged=verdict.converged,
        reason=verdict.reason,
        elbo=elbo,
        elbo_standard_error=error,
        elbo_trace=trace if traced else None,
        restart_traces=(trace,) if traced else (),
        log_likelihood=kept.log_likelihood,
        notes=notes,
        parameters=kept.parameters,
        channels=kept.channels,
    )


def _own_problem(bound: BoundNumpyroModel, settings: Settings) -> Problem:
    """A function of the modeler's own: its programs are traced in this fit."""
    compiled = partial(traced_anew, written=bound.own_model.function)

    def keep(collected: tuple[dict[str, Array], Evaluated]) -> Kept:
        draws, evaluated = collected
        values = draws | evaluated.deterministic
        return Kept(
            rows={},
            parameters={site: DrawnParameters(np.asarray(v)[None]) for site, v in values.items()},
            log_likelihood=np.asarray(evaluated.log_likelihood)[None],
        )

    target = _own_target(bound, settings.guide)
    return Problem(settings.guide, target_programs(target, settings, compiled), bound.data, keep)


def _table_problem(
    bound: BoundModel,
    settings: Settings,
    seed: int,
    dtype: np.dtype,
    num_samples: int,
    mesh: Mesh | None,
) -> Problem:
    """Tables: their programs are kept by their structure."""
    refuse_large_priors(bound, dtype, _LARGEST_PRIORS, "svi")
    structure, data = collapsed_data(bound, dtype)
    start = {
        name: on_device(values, dtype)
        for name, values in starting_concentrations(bound, np.random.default_rng(seed)).items()
    }
    channels: dict[str, Hyper] = {}
    if settings.guide == DIRICHLET and structure.channels:
        counts, channels = channel_start(bound, dtype, np.random.default_rng(seed))
        start |= {
            name: on_device(
                bound.tables[name].cpt.concentration(bound.tables[name].contexts) + found, dtype
            )
            for name, found in counts.items()
        }
    nothing_else = not structure.parametric and not structure.channels
    if nothing_else and all(values.shape[-1] == 1 for values in start.values()):
        # Nothing is uncertain, which this guide alone can say.
        settings = settings._replace(guide=DIRICHLET)
    programs = make_programs(structure, settings)
    inputs = Inputs(_spread(data, mesh), place(start, mesh), channels)

    def keep_dirichlet(collected: Any) -> Kept:
        concentrations, given, densities = collected
        rows: dict[str, RowsPosterior] = {
            name: DirichletRows(np.asarray(values)) for name, values in concentrations.items()
        }
        normals = {site: NormalParameters(*map(np.asarray, one)) for site, one in given.items()}
        if structure.functional:
            rows |= rows_given_parameters(bound, normals, {})
        columns = {
            bound.channels[agent].name: MatrixNormalChannel(*outside(bound, agent, density))
            for agent, density in densities.items()
        }
        return Kept(rows, normals, None, columns)

    def keep_draws(collected: Any) -> Kept:
        draws, given = dict(collected[0]), dict(collected[1])
        if structure.functional:
            draws |= given_rows(structure.functional, data, given)
        inside = {site: given.pop(site) for site in structure.channel_sites}
        one_chain = {site: np.asarray(values)[None] for site, values in inside.items()}
        evaluated = drawn_log_likelihood(structure, data, draws | inside)
        return Kept(
            rows={name: DrawnRows(np.asarray(values)[None]) for name, values in draws.items()},
            parameters={site: DrawnParameters(np.asarray(v)[None]) for site, v in given.items()},
            log_likelihood=np.asarray(evaluated)[None],
            channels=drawn_channels(bound, one_chain),
        )

    def closed_form(collected: Any) -> Float[np.ndarray, " particles"]:
        generator = np.random.default_rng([seed, 1])
        return _dirichlet_bounds(structure, data, collected[0], collected[2], generator)

    if settings.guide != DIRICHLET:
        return Problem(settings.guide, programs, inputs, keep_draws)
    bounds = None if structure.parametric else closed_form
    return Problem(settings.guide, programs, inputs, keep_dirichlet, bounds)


def _spread(data: ModelData, mesh: Mesh | None) -> ModelData:
    """The arrays of a model laid over devices: episodes are split, all else is everywhere.

    JAX's partitioner does the rest: it adds up what devices find. An episode without steps counts
    nothing.
    """
    steps = {}
    for agent, own in data.steps.items():
        unseen = own.unseen
        if unseen is not None:
            unseen = unseen._replace(
                move=place_episodes(unseen.move, mesh), rows=place(unseen.rows, mesh)
            )
        split = place_episodes(own._replace(unseen=None), mesh)
        steps[agent] = split._replace(unseen=unseen)
    return place(data._replace(steps={}, lengths=None), mesh)._replace(
        steps=steps, lengths=place_episodes(data.lengths, mesh)
    )


def _dirichlet_bounds(
    structure: Structure,
    data: ModelData,
    concentrations: dict[str, Float[Array, "..."]],
    channels: dict[str, Hyper],
    generator: np.random.Generator,
) -> Float[np.ndarray, " particles"]:
    """Independent estimates of the Dirichlet guide's bound; only the likelihood is random.

    Drawn on the host: no second gamma sampler to compile.
    """
    draws = {
        name: jnp.asarray(
            DirichletRows(np.asarray(values)).sample(_BOUND_PARTICLES, generator), values.dtype
        )
        for name, values in concentrations.items()
    }
    for site in structure.channels:
        density = channels[site.agent]
        parts: Any = [
            np.broadcast_to(part, (_BOUND_PARTICLES, *part.shape)).astype(np.float64)
            for part in map(np.asarray, density)
        ]
        coefficients, covariance = channel_draws(generator, Normals(*parts))
        dtype = density.location.dtype
        draws[site.standardised] = jnp.asarray(coefficients, dtype)
        draws[site.factor] = jnp.asarray(np.linalg.cholesky(covariance), dtype)
    log_likelihood = np.asarray(drawn_log_likelihood(structure, data, draws), np.float64).sum(-1)
    of_channels = sum(
        float(jnp.sum(kl_of_normals(channels[site.agent], data.channels[site.agent].steps.prior)))
        for site in structure.channels
    )
    divergence = of_channels + sum(
        rows_divergence(np.asarray(values), np.asarray(data.concentration[name]))
        for name, values in concentrations.items()
    )
    return log_likelihood - divergence


def _is_laplace(guide: Guide) -> bool:
    return guide != DIRICHLET and issubclass(guide_class(guide), autoguide.AutoLaplaceApproximation)


def ascend(
    begin: Callable[[], Any],
    advance: Callable[..., Any],
    tolerance: float,
    max_iterations: int,
    checkpoint: Checkpoint,
    progress: bool,
) -> tuple[Any, Float[np.ndarray, " iterations"], Verdict]:
    """Update until the trace is judged to have settled, or the cap is reached.

    Args:
        begin: Makes the first state; under JAX's tracing too.
        advance: (state, count=count) -> state after count updates, and the bound's estimate in
            each, meaningless past `count`.
        tolerance: As in `judge`.
        max_iterations: The cap.
        checkpoint: Where progress is saved.
        progress: Whether to show a progress line.

    Returns:
        The last state, the trace and the verdict on it.
    """
    saved = checkpoint.saved
    if saved is None:
        state, trace = begin(), np.zeros(0)
    else:
        state, trace = saved.tree("state", jax.eval_shape(begin)), saved.array("trace")
    with progress_line(max_iterations, "svi", progress, len(trace), at_most=True) as line:
        while not (verdict := judge(trace, tolerance, max_iterations)).stop:
            count = min(_ITERATIONS_PER_CALL, max_iterations - len(trace))
            state, part = advance(state, count=jnp.asarray(count, jnp.int32))
            trace = np.concatenate([trace, np.asarray(part, np.float64)[:count]])
            line.set_postfix_str(f"bound {trace[-count:].mean():.4f}")
            line.update(count)
            checkpoint.offer(state=state, trace=trace)
    return state, trace, verdict
