"""Inference of a NumPyro model of the modeler's own, and the posterior that comes of it.

Message passing is that of every other model: once the parameters are known, the function says the
rows of every step, and a "table" is then simply those, one row a step.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Float
from numpyro.infer import NUTS, SVI, Trace_ELBO, autoguide

from btil.demonstrations import Demonstrations
from btil.inference.chains import judge_chains
from btil.inference.checkpoint import NOWHERE, Checkpoint
from btil.inference.devices import check_chains, make_mesh
from btil.inference.nuts import Schedule, check_options, kernel_programs, sample_chains
from btil.inference.posterior import TeamPosterior, conform
from btil.inference.precision import precision
from btil.inference.result import DrawnParameters, FitResult
from btil.inference.svi import (
    AUTOGUIDES,
    DIRICHLET,
    ascend,
    guide_class,
    is_point_mass,
    update,
)
from btil.models.numpyro_model import (
    BoundNumpyroModel,
    EpisodeData,
    NumpyroModel,
    PaddedRows,
    bind_numpyro_model,
    padded_rows,
    replay,
)
from btil.models.team import BoundModel, TeamModel, bind

# Draws over which rows are averaged at most; of more, so many evenly spaced ones are taken.
_MOST_DRAWS = 500
# Draws evaluated side by side: bounds the memory.
_DRAWS_AT_ONCE = 50
_BOUND_PARTICLES = 1000

Function = Callable[[EpisodeData], Any]
Draws = Mapping[str, Float[Any, "draws ..."]]


@partial(jax.jit, static_argnames=("function", "num_draws"))
def _mean_rows(
    function: Function, data: EpisodeData, draws: Draws, num_draws: int
) -> dict[str, PaddedRows]:
    """Every agent's rows, averaged over draws of the parameters."""

    def rows(draw: Any) -> dict[str, PaddedRows]:
        chains = replay(function, data, draw).chains
        return {agent: padded_rows(chain) for agent, chain in chains.items()}

    def add(total: Any, draw: Any) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, rows(draw)), None

    first, rest = (jax.tree.map(lambda x, at=at: x[at], draws) for at in (0, slice(1, None)))
    total, _ = jax.lax.scan(add, rows(first), rest, length=num_draws - 1)
    return jax.tree.map(lambda x: x / num_draws, total)


@partial(jax.jit, static_argnames=("function",))
def _evaluate(
    function: Function, data: EpisodeData, draws: Draws
) -> tuple[Float[Array, "draws episodes"], dict[str, Float[Array, "draws ..."]]]:
    """Log likelihood of every episode, and the deterministic sites, under each draw."""

    def one(draw: Any) -> Any:
        found = replay(function, data, draw)
        parts = [chain.log_prob(found.observed[a]) for a, chain in found.chains.items()]
        return jnp.sum(jnp.stack(parts), axis=0), found.deterministic

    return jax.lax.map(one, draws, batch_size=_DRAWS_AT_ONCE)


@dataclass(frozen=True, eq=False)
class NumpyroPosterior(TeamPosterior):
    """What is believed of a team under a `NumpyroModel`.

    Beliefs about latents use the posterior mean of the rows of each step, averaged over draws of
    the parameters (500 at most), or are themselves averaged over draws (`num_draws`). There are no
    tables by context, and so no `policy`, `transition`, `initial`, `contexts` or `tracker`; draws
    of the parameters are in `sample` and `to_datatree`.
    """

    bound: BoundNumpyroModel

    def __repr__(self) -> str:
        sites = ", ".join(
            f"{n} {'x'.join(map(str, s)) or 'scalar'}" for n, s in self.bound.parameters.items()
        )
        state = "converged" if self.converged else "not converged"
        name = self.bound.own_model.name
        return f"NumpyroPosterior({name}, {self.method}: {sites}; {state}: {self.reason})"

    def _bind(self, demos: Demonstrations) -> BoundNumpyroModel:
        if demos is self.demos:
            return self.bound
        return self.bound.rebind(conform(demos, self.demos))

    def _tables(self, bound: BoundModel, estimate: str) -> dict[str, Any]:
        if estimate != "mean":
            raise ValueError(f"a NumpyroModel has estimate 'mean' or num_draws, got {estimate!r}")
        draws = {}
        for site in self.bound.parameters:
            given = self.result.parameters[site]
            assert isinstance(given, DrawnParameters)
            flat = given.draws.reshape(-1, *given.draws.shape[2:])
            chosen = np.linspace(0, len(flat) - 1, min(len(flat), _MOST_DRAWS)).round().astype(int)
            draws[site] = flat[chosen]
        return self._rows_under(bound, draws)

    def _drawn_rows(self, bound: BoundModel, num_draws: int, seed: int) -> Iterator[dict[str, Any]]:
        draws = self.sample(num_draws, seed)
        for k in range(num_draws):
            yield self._rows_under(
                bound, {site: draws[site][k : k + 1] for site in self.bound.parameters}
            )

    def _rows_under(self, bound: BoundModel, draws: Draws) -> dict[str, Any]:
        assert isinstance(bound, BoundNumpyroModel)
        number = len(next(iter(draws.values()))) if draws else 1
        with precision(self.dtype) as dtype:
            cast = {site: jnp.asarray(values, dtype) for site, values in draws.items()}
            rows = _mean_rows(bound.own_model.function, bound.data, cast, number)
            return bound.step_rows(rows)

    def _refuse(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            f"{self.bound.own_model.name}: a NumpyroModel has no tables by context; ask its "
            "posterior to smooth, filter, predict_actions or decode episodes, or for draws of its "
            "parameters (sample, to_datatree)"
        )

    policy = transition = initial = contexts = drawn_tables = tracker = _refuse


def fit_nuts(
    bound: BoundNumpyroModel,
    *,
    seed: int,
    progress: bool,
    dtype: np.dtype,
    checkpoint: Checkpoint = NOWHERE,
    num_chains: int = 4,
    num_warmup: int = 500,
    num_samples: int = 500,
    target_accept_prob: float = 0.8,
    max_tree_depth: int = 10,
    chain_method: str = "vectorized",
    devices: int | None = None,
) -> FitResult:
    """Sample an own model's parameters with NUTS; options and result as in `btil.inference.nuts`.

    Chains run side by side unless asked otherwise: of what a function computes nothing is known,
    and one program for all of them is compiled sooner.

    References:
        Hoffman, Gelman (2014), The No-U-Turn Sampler.
    """
    check_options(
        num_chains, num_warmup, num_samples, target_accept_prob, max_tree_depth, chain_method
    )
    mesh = make_mesh(devices)
    check_chains(num_chains, mesh)
    kernel = NUTS(
        bound.own_model.function,
        target_accept_prob=float(target_accept_prob),
        max_tree_depth=int(max_tree_depth),
    )

    def collect(states: Any, data: EpisodeData) -> dict[str, Any]:
        constrained = jax.vmap(kernel.postprocess_fn((data,), {}))(states.z)
        return {site: constrained[site] for site in bound.parameters}

    found = sample_chains(
        kernel_programs(kernel, int(num_warmup), collect, mesh),
        jax.random.split(jax.random.key(seed), num_chains),
        bound.data,
        schedule=Schedule(int(num_warmup), int(num_samples), chain_method),
        checkpoint=checkpoint,
        progress=progress,
        mesh=mesh,
    )
    draws, stats = found.draws, found.statistics
    kept, log_likelihood = _with_deterministic(bound, draws)
    num_divergences = int(stats["diverging"].sum())
    drawn = {n: np.atleast_3d(v) for n, v in kept.items()}
    verdict = judge_chains(drawn, num_divergences, log_likelihood)
    return FitResult(
        rows={},
        converged=verdict.converged,
        reason=verdict.reason,
        sample_stats=stats,
        log_likelihood=log_likelihood,
        notes={"max_rhat": verdict.max_rhat, "divergences": num_divergences},
        parameters={site: DrawnParameters(values) for site, values in kept.items()},
    )


def fit_svi(
    bound: BoundNumpyroModel,
    *,
    seed: int,
    progress: bool,
    dtype: np.dtype,
    checkpoint: Checkpoint = NOWHERE,
    guide: Any = "AutoNormal",
    max_iterations: int = 5000,
    tolerance: float = 1e-3,
    learning_rate: float = 0.02,
    num_particles: int = 4,
    num_samples: int = 1000,
) -> FitResult:
    """Fit an AutoGuide to an own model's posterior; options and result as in `btil.inference.svi`.

    Point masses and the Laplace approximation, whose loss is no bound, have no `elbo`:
    `notes["log_joint"]` then holds the log joint density at the point.
    """
    if guide == DIRICHLET:
        raise ValueError(
            f"guide {DIRICHLET!r} is for tables; a NumpyroModel takes {', '.join(AUTOGUIDES)}, or "
            "a subclass of numpyro.infer.autoguide.AutoGuide"
        )
    kind = guide_class(guide)
    start_key, bound_key, draw_key = jax.random.split(jax.random.key(seed), 3)

    def build(particles: int = 1) -> tuple[SVI, Any]:
        # A guide remembers what it was first shown, which under jit are tracers: each program
        # makes its own. The state that comes along is not used again, and XLA leaves it out.
        function = bound.own_model.function
        loss = Trace_ELBO(num_particles=particles)
        svi = SVI(function, kind(function), numpyro.optim.Adam(learning_rate), loss)
        return svi, svi.init(start_key, bound.data)

    @jax.jit
    def advance(state: Any, count: Any) -> Any:
        return update(build(num_particles)[0], state, bound.data, count)

    @partial(jax.jit, static_argnames=("number",))
    def draw(state: Any, number: int) -> Any:
        svi, _ = build()
        params = svi.get_params(state)
        return svi.guide.sample_posterior(draw_key, params, bound.data, sample_shape=(number,))

    @jax.jit
    def bounds(state: Any) -> Float[Array, " particles"]:
        svi, _ = build()
        params = svi.get_params(state)

        def one(key: Array) -> Array:
            return -svi.loss.loss(key, params, svi.model, svi.guide, bound.data)

        keys = jax.random.split(bound_key, _BOUND_PARTICLES)
        return jax.lax.map(one, keys, batch_size=_DRAWS_AT_ONCE)

    begin = jax.jit(lambda: build()[1])
    state, trace, verdict = ascend(begin, advance, tolerance, max_iterations, checkpoint, progress)
    drawn = draw(state, 1 if is_point_mass(guide) else int(num_samples))
    kept, log_likelihood = _with_deterministic(
        bound, {site: np.asarray(drawn[site])[None] for site in bound.parameters}
    )
    bounded = not issubclass(kind, autoguide.AutoDelta | autoguide.AutoLaplaceApproximation)
    elbo = error = None
    if bounded:
        estimates = np.asarray(bounds(state), np.float64)
        elbo = float(estimates.mean())
        error = float(estimates.std(ddof=1) / np.sqrt(_BOUND_PARTICLES))
    return FitResult(
        rows={},
        converged=verdict.converged,
        reason=verdict.reason,
        elbo=elbo,
        elbo_standard_error=error,
        elbo_trace=trace if bounded else None,
        restart_traces=(trace,) if bounded else (),
        log_likelihood=log_likelihood,
        notes={"iterations": len(trace)} | ({} if bounded else {"log_joint": float(trace[-1])}),
        parameters={site: DrawnParameters(values) for site, values in kept.items()},
    )


METHODS = {"nuts": fit_nuts, "svi": fit_svi}


def bind_model(model: TeamModel, demos: Demonstrations) -> tuple[type[TeamPosterior], BoundModel]:
    """The kind of posterior that a model of either sort has, and the model on demonstrations."""
    if isinstance(model, NumpyroModel):
        return NumpyroPosterior, bind_numpyro_model(model, demos)
    return TeamPosterior, bind(model, demos)


def _with_deterministic(
    bound: BoundNumpyroModel, draws: Mapping[str, Float[np.ndarray, "chain draw ..."]]
) -> tuple[dict[str, Float[np.ndarray, "chain draw ..."]], Float[np.ndarray, "chain draw episode"]]:
    """Draws with those of the deterministic sites, and the log likelihood of every episode."""
    shape = next(iter(draws.values())).shape[:2]
    flat = {site: jnp.asarray(v.reshape(-1, *v.shape[2:])) for site, v in draws.items()}
    log_likelihood, deterministic = _evaluate(bound.own_model.function, bound.data, flat)
    found = {site: np.asarray(v) for site, v in deterministic.items()}
    kept = dict(draws) | {site: v.reshape(*shape, *v.shape[1:]) for site, v in found.items()}
    return kept, np.asarray(log_likelihood).reshape(*shape, -1)
