r"""The no-U-turn sampler (NumPyro) on the collapsed model.

The latents are summed out by `LatentChain`; what is sampled are the rows. NumPyro would sample a
Dirichlet row through stick breaking, whose clipping cuts the tails that a small concentration
needs, and whose later sticks depend on all earlier ones. Here a row is the softmax of unbounded
*log weights* (`LogWeights`): an exact change of variables with one direction to spare, which is
spent so that the cells of a row whose latents are known are independent in the posterior.

Compilation: the programs depend on the structure, the options and the shapes; the data are
arguments. A second fit of equal shapes compiles nothing; the first spends 20 to 40 s on it on two
CPU cores. A function of the modeler's own (`NumpyroModel`) goes the same way, but that its programs
are traced anew in every fit. The kernel is driven directly, because `numpyro.infer.MCMC` compiles
anew in every run with several chains, `jit_model_args` or not (measured on a 4-step model: first
run 44 s, second 29 s; here 23 s and 1.5 s).
"""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.scipy.special import gammaln, logsumexp
from jax.sharding import Mesh
from jaxtyping import Array, Float, Key
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to
from numpyro.infer import NUTS
from numpyro.infer.reparam import Reparam

from btil.inference.chains import judge_chains
from btil.inference.checkpoint import NOWHERE, Checkpoint
from btil.inference.collapsed import (
    collapsed_data,
    drawn_channels,
    given_rows,
    refuse_large_priors,
)
from btil.inference.devices import (
    SPLIT,
    SPLIT_SECOND,
    check_chains,
    gather,
    make_mesh,
    place,
    size_of,
    split_chains,
)
from btil.inference.result import DrawnParameters, DrawnRows, FitResult
from btil.inference.starting import starting_counts
from btil.models.parametric import central_concentration, constrain
from btil.models.team import BoundModel
from btil.numerics.promotion import promotion_allowed
from btil.numpyro_forms.numpyro_model import BoundNumpyroModel, EpisodeData, evaluate
from btil.numpyro_forms.team_dbn import (
    ChannelSites,
    ModelData,
    Structure,
    episode_log_likelihood,
    forward_model,
)
from btil.numpyro_forms.tracing import traced_anew
from btil.progress import progress_line

# Transitions between two looks at the progress line.
_TRANSITIONS_PER_CALL = 10
_STATISTICS = ("diverging", "potential_energy", "energy", "num_steps", "accept_prob")
# Largest sum of a row's prior concentrations: the potential energy has it as a factor.
_LARGEST_PRIORS = {"float32": 1e5, "float64": 1e13}


class LogWeights(dist.Distribution):
    r"""Log weights g whose softmax is a Dirichlet row, and whose sum of weights is Gamma.

    With s = sum exp(g), row = exp(g) / s and a shape k of free choice,

    .. math:: p(g) = \frac{1}{B(u)} \prod_a row_a^{u_a}
              \cdot \frac{k^k}{\Gamma(k)} s^k e^{-k s},

    so row ~ Dirichlet(u) and s ~ Gamma(k, k) are independent: s is a dummy, about 1, and the
    data never see it. If a row has n uses with known latents and k = sum u + n, the posterior of
    g is a product over cells, and a diagonal mass matrix fits it.

    Args:
        concentration: u, (..., values).
        shape: k, (...).
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  # NumPyro's own convention
    support = constraints.real_vector
    pytree_data_fields = ("concentration", "shape_parameter")

    def __init__(
        self,
        concentration: Float[Array, "*rows values"],
        shape: Float[Array, "*rows"],
        *,
        validate_args: bool | None = None,
    ) -> None:
        self.concentration = concentration
        self.shape_parameter = shape
        super().__init__(
            concentration.shape[:-1], concentration.shape[-1:], validate_args=validate_args
        )

    def log_prob(self, value: Float[Array, "*rows values"]) -> Float[Array, "*rows"]:
        """Log density of the log weights."""
        u = jnp.broadcast_to(self.concentration, value.shape)
        k = jnp.broadcast_to(self.shape_parameter, value.shape[:-1])
        log_sum = logsumexp(value, axis=-1)
        row = jnp.sum(u * (value - log_sum[..., None]) - gammaln(u), -1) + gammaln(jnp.sum(u, -1))
        return row + k * (log_sum - jnp.exp(log_sum)) + k * jnp.log(k) - gammaln(k)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Draw log weights."""
        row_key, sum_key = jax.random.split(key)
        shape = (*sample_shape, *self.batch_shape)
        cells = jax.random.loggamma(row_key, self.concentration, (*shape, *self.event_shape))
        log_sum = jax.random.loggamma(sum_key, self.shape_parameter, shape)
        log_sum = log_sum - jnp.log(self.shape_parameter)
        return jax.nn.log_softmax(cells) + log_sum[..., None]


class LogWeightsReparam(Reparam):
    """Sample a Dirichlet site as the softmax of the site `<name>_log_weights`.

    Args:
        shape: Shape parameter of each row's sum of weights.
    """

    def __init__(self, shape: Float[Array, "..."]) -> None:
        self.shape = shape

    def __call__(self, name: str, fn: Any, obs: Any) -> tuple[None, Float[Array, "..."]]:
        """Replace the site, as NumPyro's `reparam` handler asks."""
        assert obs is None
        dirichlet, _, event_dim = self._unwrap(fn)
        weights = LogWeights(dirichlet.concentration, self.shape).to_event(event_dim - 1)
        return None, jax.nn.softmax(numpyro.sample(_log_weights(name), weights))


def _log_weights(site: str) -> str:
    return f"{site}_log_weights"


class Settings(NamedTuple):
    """What the compiled programs depend on besides structure and shapes."""

    num_warmup: int
    target_accept_prob: float
    max_tree_depth: int


class Inputs(NamedTuple):
    """The arrays of a fit of tables.

    Attributes:
        data: The model's.
        shapes: Shape parameter of `LogWeights`, per learned site.
    """

    data: ModelData
    shapes: dict[str, Float[Array, "..."]]


class Programs(NamedTuple):
    """Compiled by JAX at the first call.

    Attributes:
        start: (keys, inputs) -> states of as many chains.
        advance: (states, inputs, count) -> states after count transitions, and what is kept of
            each (`Chains`), (transition, chain, ...), meaningless past `count`.
    """

    start: Callable[..., Any]
    advance: Callable[..., Any]


class Chains(NamedTuple):
    """What chains left behind, (chain, draw, ...).

    Attributes:
        draws: By site.
        log_likelihood: Of every episode.
        statistics: By name.
    """

    draws: dict[str, Any]
    log_likelihood: Any
    statistics: dict[str, Any]


def reparametrized_model(structure: Structure, inputs: Inputs) -> None:
    """`forward_model` with every row as a softmax of log weights."""
    config = {name: LogWeightsReparam(inputs.shapes[name]) for name in structure.dirichlet_sites}
    with handlers.reparam(config=config):
        forward_model(structure, inputs.data)


def kernel_programs(
    kernel: NUTS,
    num_warmup: int,
    collect: Callable[[Any, Any], tuple[dict[str, Any], Any]],
    mesh: Mesh | None = None,
    compiled: Callable[..., Any] = jax.jit,
) -> Programs:
    """Programs of a kernel.

    Args:
        kernel: NUTS on a model of one argument, the inputs.
        num_warmup: Transitions that adapt.
        collect: (states of the chains, inputs) -> draws by site and the log likelihood of every
            episode, (chain, ...).
        mesh: The devices over which chains are spread.
        compiled: `jax.jit`, or what stands for it.
    """

    def start(keys: Array, inputs: Any) -> Any:
        with promotion_allowed():
            return jax.vmap(lambda key: kernel.init(key, num_warmup, None, (inputs,), {}))(keys)

    def advance(states: Any, inputs: Any, count: Array) -> Any:
        def keep(states: Any) -> Chains:
            statistics = {name: getattr(states, name) for name in _STATISTICS}
            return Chains(*collect(states, inputs), statistics)

        def body(i: Array, carry: Any) -> Any:
            states, kept = carry
            with promotion_allowed():
                states = jax.vmap(lambda state: kernel.sample(state, (inputs,), {}))(states)
            new = keep(states)
            return states, jax.tree.map(lambda all_, one: all_.at[i].set(one), kept, new)

        kept = jax.tree.map(
            lambda x: jnp.zeros((_TRANSITIONS_PER_CALL, *x.shape), x.dtype), keep(states)
        )
        return jax.lax.fori_loop(0, count, body, (states, kept))

    return Programs(
        compiled(split_chains(start, mesh, SPLIT)),
        compiled(split_chains(advance, mesh, (SPLIT, SPLIT_SECOND))),
    )


@lru_cache(maxsize=16)
def make_programs(
    structure: Structure, settings: Settings, dtype: np.dtype, mesh: Mesh | None = None
) -> Programs:
    """Programs for tables of one structure; `dtype` keeps apart what must not share a kernel."""
    kernel = NUTS(
        partial(reparametrized_model, structure),
        target_accept_prob=settings.target_accept_prob,
        max_tree_depth=settings.max_tree_depth,
    )

    def collect(states: Any, inputs: Inputs) -> tuple[dict[str, Any], Any]:
        rows = {
            name: jax.nn.softmax(states.z[_log_weights(name)]) for name in structure.dirichlet_sites
        }
        parameters = {}
        if structure.priors:
            free = {site: states.z[site] for site in structure.priors}
            parameters = jax.vmap(partial(constrain, structure.priors))(free)
            rows |= given_rows(structure.functional, inputs.data, parameters)
        for sites in structure.channels:
            lower = biject_to(constraints.lower_cholesky)
            rows[sites.factor] = lower(states.z[sites.factor])
            rows[sites.standardised] = states.z[sites.standardised]
        by_episode = partial(episode_log_likelihood, structure, inputs.data)
        return rows | parameters, jax.vmap(by_episode)(rows)

    return kernel_programs(kernel, settings.num_warmup, collect, mesh)


def own_programs(
    bound: BoundNumpyroModel, settings: Settings, mesh: Mesh | None = None
) -> Programs:
    """Programs for a function of the modeler's own, which are traced in this fit."""
    function = bound.own_model.function
    kernel = NUTS(
        function,
        target_accept_prob=settings.target_accept_prob,
        max_tree_depth=settings.max_tree_depth,
    )

    def collect(states: Any, data: EpisodeData) -> tuple[dict[str, Any], Any]:
        constrained = jax.vmap(kernel.postprocess_fn((data,), {}))(states.z)
        draws = {site: constrained[site] for site in bound.parameters}
        evaluated = jax.vmap(partial(evaluate, function, data))(draws)
        return draws | evaluated.deterministic, evaluated.log_likelihood

    compiled = partial(traced_anew, written=function)
    return kernel_programs(kernel, settings.num_warmup, collect, mesh, compiled)


class Schedule(NamedTuple):
    """How many transitions, and which chains run together (`fit`)."""

    num_warmup: int
    num_samples: int
    chain_method: str


def sample_chains(
    programs: Programs,
    keys: Key[Array, " chains"],
    inputs: Any,
    schedule: Schedule,
    checkpoint: Checkpoint,
    progress: bool,
    mesh: Mesh | None = None,
) -> Chains:
    """Run chains, group by group of those that run together, and save them as they go.

    Args:
        programs: The kernel's.
        keys: One per chain.
        inputs: The model's argument.
        schedule: How long, and which together.
        checkpoint: Where progress is saved.
        progress: Whether to show a progress line.
        mesh: The devices over which the chains of a group are spread.
    """
    inputs = place(inputs, mesh)
    together = len(keys) if schedule.chain_method == "vectorized" else size_of(mesh)
    groups = [
        place(keys[first : first + together], mesh, SPLIT)
        for first in range(0, len(keys), together)
    ]
    per_group = schedule.num_warmup + schedule.num_samples
    like = jax.eval_shape(programs.start, groups[0], inputs)
    of_draws = jax.eval_shape(programs.advance, like, inputs, jax.ShapeDtypeStruct((), jnp.int32))
    draws = jax.tree.map(
        lambda x: np.zeros((len(keys), schedule.num_samples, *x.shape[2:]), x.dtype),
        of_draws[1],
    )
    group, done, states = 0, 0, None
    if checkpoint.saved is not None:
        saved = checkpoint.saved
        group, done = int(saved.array("group")), int(saved.array("transitions"))
        states = place(saved.tree("states", like), mesh, SPLIT)
        for into, part in zip(jax.tree.leaves(draws), saved.arrays("draws"), strict=True):
            into[...] = part
    with progress_line(len(groups) * per_group, "nuts", progress, group * per_group + done) as line:
        while group < len(groups):
            if states is None:
                states = programs.start(groups[group], inputs)
            chains = slice(group * together, (group + 1) * together)
            while done < per_group:
                # Cut at the end of the warmup, so that a call is all warmup or all draws.
                end = schedule.num_warmup if done < schedule.num_warmup else per_group
                count = min(_TRANSITIONS_PER_CALL, end - done)
                states, kept = programs.advance(states, inputs, place(np.int32(count), mesh))
                everywhere = gather(states, mesh)
                if done >= schedule.num_warmup:
                    drawn = slice(done - schedule.num_warmup, done - schedule.num_warmup + count)
                    for into, part in zip(
                        jax.tree.leaves(draws), jax.tree.leaves(gather(kept, mesh)), strict=True
                    ):
                        into[chains, drawn] = np.swapaxes(np.asarray(part)[:count], 0, 1)
                done += count
                line.set_postfix_str(
                    f"{'warmup' if end < per_group else 'draws'}, "
                    f"{int(np.max(everywhere.num_steps))} steps, "
                    f"acceptance {float(np.mean(everywhere.mean_accept_prob)):.2f}"
                )
                line.update(count)
                checkpoint.offer(
                    group=group, transitions=done, states=everywhere, draws=jax.tree.leaves(draws)
                )
            group, done, states = group + 1, 0, None
    return draws


def fit(
    bound: BoundModel,
    *,
    seed: int,
    progress: bool,
    dtype: np.dtype,
    checkpoint: Checkpoint = NOWHERE,
    num_chains: Any = 4,
    num_warmup: Any = 500,
    num_samples: Any = 500,
    target_accept_prob: Any = 0.8,
    max_tree_depth: Any = 10,
    chain_method: Any = None,
    devices: Any = None,
) -> FitResult:
    """Sample rows and parameters with NUTS, latents summed out.

    Args:
        bound: The model on its data.
        seed: Determines every draw.
        progress: Whether to show a progress line.
        dtype: float32 or float64.
        checkpoint: Where progress is saved.
        num_chains: Number of chains. They start apart, uniform in (-2, 2) in log weights.
        num_warmup: Transitions per chain that adapt step size and mass matrix, not kept.
        num_samples: Draws kept per chain.
        target_accept_prob: Higher values take smaller steps, and diverge less.
        max_tree_depth: At most 2^depth - 1 leapfrog steps per transition.
        chain_method: "sequential" (one chain after the other) or "vectorized" (all chains in one
            program; every transition waits for the longest tree, which suits a GPU or a tiny
            data set). Measured on two CPU cores, four chains, compiled: 480 steps of two agents,
            9.7 s against 16.3 s; 4 steps of one, 1.7 s against 0.7 s. None: "sequential" for
            tables, "vectorized" for a `NumpyroModel`, of which nothing is known.
        devices: Number of devices over which chains are spread: "sequential" runs one on each at
            a time, "vectorized" all of its share. None: one device.

    Returns:
        Chains of every learned site; per draw `diverging`, `potential_energy`, `energy`,
        `num_steps` and `accept_prob`; the log likelihood of every episode. Converged where
        R-hat < 1.05 in every cell that varies and of the log likelihood, and there is more than
        one chain.

    Raises:
        ValueError: If devices or chains do not fit, or a prior is larger than it can be computed
            with.

    References:
        Hoffman, Gelman (2014), The No-U-Turn Sampler; Phan, Pradhan, Jankowiak (2019),
        Composable effects for flexible and accelerated probabilistic programming in NumPyro.
    """
    if chain_method is None:
        chain_method = "vectorized" if isinstance(bound, BoundNumpyroModel) else "sequential"
    mesh = make_mesh(devices)
    check_chains(num_chains, mesh)
    settings = Settings(int(num_warmup), float(target_accept_prob), int(max_tree_depth))
    inputs: Any
    if isinstance(bound, BoundNumpyroModel):
        programs, inputs = own_programs(bound, settings, mesh), bound.data
    else:
        refuse_large_priors(bound, dtype, _LARGEST_PRIORS, "nuts")
        structure, data = collapsed_data(bound, dtype)
        programs = make_programs(structure, settings, np.dtype(dtype), mesh)
        inputs = Inputs(data, _weight_shapes(bound, dtype))
    found = sample_chains(
        programs,
        jax.random.split(jax.random.key(seed), num_chains),
        inputs,
        Schedule(int(num_warmup), int(num_samples), chain_method),
        checkpoint,
        progress,
        mesh,
    )
    statistics = found.statistics
    rows = {name: values for name, values in found.draws.items() if name in bound.learned}
    drawn = {name: values for name, values in found.draws.items() if name not in rows}
    channels = drawn_channels(bound, drawn)
    inside = {site for one in map(ChannelSites.of, bound.channels.values()) for site in one[1:3]}
    parameters = {name: values for name, values in drawn.items() if name not in inside}
    of_channels = {
        f"{name}/{part}": values
        for name, one in channels.items()
        for part, values in one._asdict().items()
    }
    num_divergences = int(statistics["diverging"].sum())
    judged = rows | parameters | of_channels
    verdict = judge_chains(judged, num_divergences, found.log_likelihood)
    deepest = int((statistics["num_steps"] >= 2**max_tree_depth - 1).sum())
    return FitResult(
        rows={name: DrawnRows(values) for name, values in rows.items()},
        converged=verdict.converged,
        reason=verdict.reason,
        sample_stats=statistics,
        log_likelihood=found.log_likelihood,
        notes={
            "max_rhat": verdict.max_rhat,
            "cells_above_rhat_1.05": verdict.num_above,
            "cells_varying": verdict.num_cells,
            "cells_constant": verdict.num_constant,
            "divergences": num_divergences,
            "draws_at_max_tree_depth": deepest,
        },
        parameters={site: DrawnParameters(values) for site, values in parameters.items()},
        channels=channels,
    )


def _weight_shapes(bound: BoundModel, dtype: np.dtype) -> dict[str, Float[Array, "..."]]:
    """Sum of prior and expected uses of every row.

    Uses with known latents count where they are; a context's other uses are shared by its
    latents. Any positive number is right, this one is quick.
    """
    # The shares are drawn at random, from a fixed seed: they are no part of what is sampled.
    known, dealt = starting_counts(bound, np.random.default_rng(0))
    shapes = {}
    for name, table in bound.learned.items():
        if table.cpt.dirichlet_rows:
            total = central_concentration(table) + known[name] + dealt[name]
            shapes[name] = jnp.asarray(total.sum(-1), dtype)
    return shapes
