r"""Stochastic variational inference (NumPyro) on the collapsed model.

The latents are summed out by `LatentChain`, so the bound

.. math:: \mathcal{L}(q) = E_{q(rows)}[\log p(actions, labels \mid rows)] - KL(q \| prior)

is higher than mean field's at the same q(rows): q(latents) is exact given the rows.

The programs depend on the structure, the options and the shapes; the data are arguments, and a
second fit of equal shapes compiles nothing.
"""

from collections.abc import Callable, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Float
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions.transforms import biject_to
from numpyro.infer import SVI, Trace_ELBO, TraceMeanField_ELBO, autoguide
from numpyro.infer.util import potential_energy

from btil.inference.checkpoint import NOWHERE, Checkpoint
from btil.inference.collapsed import (
    collapsed_data,
    drawn_log_likelihood,
    given_rows,
    rows_given_parameters,
)
from btil.inference.mfvi import dirichlet_divergence, dirichlet_moments
from btil.inference.progress import progress_line
from btil.inference.result import (
    DirichletRows,
    DrawnParameters,
    DrawnRows,
    FitResult,
    NormalParameters,
    ParameterPosterior,
    RowsPosterior,
)
from btil.inference.starting import starting_concentrations
from btil.models.parametric import normal_of_unconstrained
from btil.models.team import BoundModel
from btil.models.team_dbn import ModelData, Structure, forward_model

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

Guide = str | type[autoguide.AutoGuide]


class Settings(NamedTuple):
    """What the compiled programs depend on besides structure and shapes."""

    guide: Guide
    learning_rate: float
    num_particles: int


class Inputs(NamedTuple):
    """The arrays of a fit.

    Attributes:
        data: The model's.
        start: Concentrations from which the Dirichlet guide starts, per learned site.
    """

    data: ModelData
    start: dict[str, Float[Array, "..."]]


class Programs(NamedTuple):
    """Compiled by JAX at the first call.

    Attributes:
        start: (key, inputs) -> state.
        advance: (state, inputs, count) -> state after count updates, and the bound's estimate
            in each, meaningless past `count`.
        bounds: (state, key, inputs) -> independent estimates of an AutoGuide's bound.
        rows: (state, key, inputs, number) -> the guide's draws of rows and of parameters; of the
            Dirichlet guide its concentrations, and means and scales of its normals.
    """

    start: Callable[..., Any]
    advance: Callable[..., Any]
    bounds: Callable[..., Any]
    rows: Callable[..., Any]


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


def dirichlet_guide(structure: Structure, inputs: Inputs) -> None:
    """One Dirichlet per row, one normal per unconstrained value of the families' parameters.

    What is optimised are the logs of the concentrations, and means and log scales of the normals.
    """
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
    log_gammas = jax.random.loggamma(numpyro.prng_key(), flat)
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


@lru_cache(maxsize=32)
def make_programs(structure: Structure, settings: Settings) -> Programs:
    """Programs for one structure and guide.

    A NumPyro guide remembers the data and the start of its first use. So each program builds its
    own while JAX traces it: nothing is carried from one fit to the next but compiled code.
    """

    def build(key: Array, inputs: Inputs, num_particles: int = 1) -> tuple[SVI, Any]:
        if settings.guide == DIRICHLET:
            model = partial(_plain_model, structure)
            guide: Any = partial(dirichlet_guide, structure)
            loss: Any = TraceMeanField_ELBO(num_particles=num_particles)
        else:
            model = partial(_certain_rows_given, structure)
            guide = guide_class(settings.guide)(model)
            loss = Trace_ELBO(num_particles=num_particles)
        svi = SVI(model, guide, numpyro.optim.Adam(settings.learning_rate), loss)
        return svi, svi.init(key, inputs)

    def rebuild(inputs: Inputs, num_particles: int = 1) -> SVI:
        # The state made along the way is not used, and XLA leaves it out.
        return build(jax.random.key(0), inputs, num_particles)[0]

    @jax.jit
    def start(key: Array, inputs: Inputs) -> Any:
        return build(key, inputs)[1]

    @jax.jit
    def advance(state: Any, inputs: Inputs, count: Array) -> Any:
        svi = rebuild(inputs, settings.num_particles)

        return update(svi, state, inputs, count)

    @jax.jit
    def bounds(state: Any, key: Array, inputs: Inputs) -> Any:
        svi = rebuild(inputs)
        params = svi.get_params(state)

        def one(key: Array) -> Array:
            if isinstance(svi.guide, autoguide.AutoLaplaceApproximation):
                return _laplace_bound(key, svi, params, inputs)
            return -svi.loss.loss(key, params, svi.model, svi.guide, inputs)

        return jax.lax.map(one, jax.random.split(key, _BOUND_PARTICLES), batch_size=_BATCH)

    @partial(jax.jit, static_argnames=("number",))
    def rows(state: Any, key: Array, inputs: Inputs, number: int) -> Any:
        svi = rebuild(inputs)
        params = svi.get_params(state)
        if settings.guide == DIRICHLET:
            concentrations = {
                name: jnp.exp(params[f"{name}_log_concentration"])
                for name in structure.dirichlet_sites
            }
            normals = {
                site: (params[f"{site}_location"], jnp.exp(params[f"{site}_log_scale"]))
                for site in structure.priors
            }
            return concentrations, normals
        draws = svi.guide.sample_posterior(key, params, inputs, sample_shape=(number,))
        ones = {
            name: jnp.ones((number, *values.shape), values.dtype)
            for name, values in inputs.start.items()
        }
        drawn = {name: draws.get(name, ones[name]) for name in structure.dirichlet_sites}
        return drawn, {site: draws[site] for site in structure.priors}

    return Programs(start, advance, bounds, rows)


def update(svi: SVI, state: Any, inputs: Any, count: Array) -> tuple[Any, Float[Array, " updates"]]:
    """`count` updates (at most 100) and the bound's estimate in each, meaningless past them."""

    def body(i: Array, carry: Any) -> Any:
        state, trace = carry
        # An update that is not finite is not made, but its loss is told.
        state, loss = svi.stable_update(state, inputs)
        return state, trace.at[i].set(-loss)

    dtype = jax.eval_shape(svi.evaluate, state, inputs).dtype
    trace = jnp.full((_ITERATIONS_PER_CALL,), jnp.nan, dtype)
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

    The mean of the last quarter of all iterations is compared with that of the quarter before.
    With n iterations each, the drift per iteration is their difference divided by n, known up to
    a standard error s that the scatter within the two quarters gives (successive estimates use
    independent noise). Converged means |drift| + 2 s < tolerance: the bound has stopped moving,
    and there is enough of a trace to say so. A smaller tolerance needs longer traces or more
    particles.

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
    size = len(trace) // 4
    before, last = trace[-2 * size : -size], trace[-size:]
    drift = (last.mean() - before.mean()) / size
    error = np.sqrt((last.var(ddof=1) + before.var(ddof=1)) / size) / size
    numbers = f"the bound drifts by {drift:.2g} +- {error:.2g} an iteration"
    if abs(drift) + 2 * error < tolerance:
        return Verdict(True, True, f"{numbers}, less than {tolerance:g} with two standard errors")
    return Verdict(capped, False, f"{cap}; {numbers} (tolerance {tolerance:g})")


def fit(
    bound: BoundModel,
    *,
    seed: int,
    progress: bool,
    dtype: np.dtype,
    checkpoint: Checkpoint = NOWHERE,
    guide: Any = DIRICHLET,
    max_iterations: int = 5000,
    tolerance: float = 1e-3,
    learning_rate: float = 0.02,
    num_particles: int = 4,
    num_samples: int = 1000,
) -> FitResult:
    """Fit a guide to the rows' posterior by stochastic gradients (Adam).

    Args:
        bound: The model on its data.
        seed: Determines start, noise and draws.
        progress: Whether to show a progress line.
        dtype: float32 or float64.
        checkpoint: Where progress is saved.
        guide: "dirichlet" (one Dirichlet per row, started from the prior plus the counts of the
            labelled steps; where that is symmetric in two latents the unlabelled steps are dealt
            out at random first), the name of a NumPyro AutoGuide, or an AutoGuide class.
        max_iterations: Most updates.
        tolerance: Change of the bound per iteration that counts as none; see `judge`.
        learning_rate: Adam's.
        num_particles: Draws per estimate of the bound.
        num_samples: Draws kept of an AutoGuide, as one chain (one draw of a point mass).

    Returns:
        Dirichlet rows or draws. `elbo` is a fresh Monte Carlo estimate (1000 particles, the
        Dirichlet guide's KL term in closed form) with its standard error; a point mass has none,
        and no trace of it: `notes["log_joint"]` then holds the log joint density at the point.

    Raises:
        ValueError: If the guide is unknown or an option is out of range.

    References:
        Ranganath, Gerrish, Blei (2014), Black box variational inference; Figurnov, Mohamed, Mnih
        (2018), Implicit reparameterization gradients (the Dirichlet guide's gradient).
    """
    if guide != DIRICHLET:
        guide_class(guide)
    for name, count in (
        ("max_iterations", max_iterations),
        ("num_particles", num_particles),
        ("num_samples", num_samples),
    ):
        if not isinstance(count, int | np.integer) or count < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {count!r}")
    for name, value in (("tolerance", tolerance), ("learning_rate", learning_rate)):
        if not (np.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive, got {value!r}")
    structure, data = collapsed_data(bound, dtype)
    start = {
        name: jnp.asarray(values, dtype)
        for name, values in starting_concentrations(bound, np.random.default_rng(seed)).items()
    }
    if not structure.parametric and all(values.shape[-1] == 1 for values in start.values()):
        guide = DIRICHLET  # Nothing is uncertain, which this guide alone can say.
    inputs = Inputs(data, start)
    programs = make_programs(structure, Settings(guide, float(learning_rate), int(num_particles)))
    start_key, bound_key, draw_key = jax.random.split(jax.random.key(seed), 3)
    begin = partial(programs.start, start_key, inputs)
    advance = partial(programs.advance, inputs=inputs)
    state, trace, verdict = ascend(begin, advance, tolerance, max_iterations, checkpoint, progress)
    notes: dict[str, Any] = {"iterations": len(trace)}
    point = is_point_mass(guide)
    number = 1 if point else int(num_samples)
    found, given = programs.rows(state, draw_key, inputs, number=number)
    elbo = error = None
    if point:
        notes["log_joint"] = float(trace[-1])
    else:
        if guide == DIRICHLET and not structure.parametric:
            estimates = _dirichlet_bounds(structure, data, found, np.random.default_rng([seed, 1]))
        else:
            estimates = np.asarray(programs.bounds(state, bound_key, inputs), np.float64)
        elbo = float(estimates.mean())
        error = float(estimates.std(ddof=1) / np.sqrt(len(estimates)))
    rows: dict[str, RowsPosterior]
    parameters: Mapping[str, ParameterPosterior]
    log_likelihood = None
    if guide == DIRICHLET:
        rows = {name: DirichletRows(np.asarray(values)) for name, values in found.items()}
        parameters = normals = {
            site: NormalParameters(*map(np.asarray, normal)) for site, normal in given.items()
        }
        rows |= rows_given_parameters(bound, normals, {})
    else:
        draws = dict(found)
        if structure.functional:
            draws |= given_rows(structure.functional, data, given)
        rows = {name: DrawnRows(np.asarray(values)[None]) for name, values in draws.items()}
        parameters = {site: DrawnParameters(np.asarray(v)[None]) for site, v in given.items()}
        log_likelihood = np.asarray(drawn_log_likelihood(structure, data, draws))[None]
    traced = not point and not _is_laplace(guide)
    return FitResult(
        rows=rows,
        converged=verdict.converged,
        reason=verdict.reason,
        elbo=elbo,
        elbo_standard_error=error,
        elbo_trace=trace if traced else None,
        restart_traces=(trace,) if traced else (),
        log_likelihood=log_likelihood,
        notes=notes,
        parameters=parameters,
    )


def _dirichlet_bounds(
    structure: Structure,
    data: ModelData,
    concentrations: dict[str, Float[Array, "..."]],
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
    log_likelihood = np.asarray(drawn_log_likelihood(structure, data, draws), np.float64).sum(-1)
    fitted, prior = dirichlet_moments(concentrations), dirichlet_moments(data.concentration)
    divergence = sum(
        float(
            dirichlet_divergence(
                values,
                fitted[name],
                data.concentration[name],
                (prior[name].cells[-1], prior[name].sums[-1]),
            )
        )
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
    with progress_line(max_iterations, "svi", progress, len(trace)) as line:
        while not (verdict := judge(trace, tolerance, max_iterations)).stop:
            count = min(_ITERATIONS_PER_CALL, max_iterations - len(trace))
            state, part = advance(state, count=jnp.asarray(count, jnp.int32))
            trace = np.concatenate([trace, np.asarray(part, np.float64)[:count]])
            line.set_postfix_str(f"bound {trace[-count:].mean():.4f}")
            line.update(count)
            checkpoint.offer(state=state, trace=trace)
    return state, trace, verdict
