r"""The no-U-turn sampler (NumPyro) on the collapsed model.

The latents are summed out by `LatentChain`; what is sampled are the rows. NumPyro would break a
Dirichlet row into sticks whose clipping cuts the tails that a small concentration needs. Here the
sticks stand as the logits of their lengths (`StickLogits`), and rows are built in logarithms, so
nothing is cut. Where the latents of a row are known its sticks are independent in the posterior,
and a diagonal metric fits them.

Rows that only steps with known latents read depend on nothing else: they are not sampled but drawn
from their Dirichlet afterwards (`btil.inference.starting.settled_contexts`).

Each chain starts where coordinate ascent leads from labels and from unlabelled steps that are dealt
out at random for it, and has its metric from there (`btil.inference.mfvi.outlines`). A short warmup
then adapts the step size alone. Models with parameters or channels start at random.

Compilation: the programs depend on the structure, the options and the shapes; the data are
arguments. A second fit of equal shapes compiles nothing; the first spends 10 to 15 s on it on two
CPU cores. A function of the modeler's own (`NumpyroModel`) goes the same way, but that its programs
are traced anew in every fit. The kernel is driven directly, because `numpyro.infer.MCMC` compiles
anew in every run with several chains, `jit_model_args` or not (measured on a 4-step model: first
run 44 s, second 29 s; here 23 s and 1.5 s).
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jax.flatten_util import ravel_pytree
from jax.scipy.special import betaln
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.transforms import biject_to
from numpyro.infer import NUTS
from numpyro.infer.hmc import hmc
from numpyro.infer.reparam import Reparam
from numpyro.infer.util import potential_energy
from scipy.special import polygamma

from btil.demonstrations.coding import warn
from btil.inference.chains import judge_chains
from btil.inference.checkpoint import NOWHERE, Checkpoint
from btil.inference.collapsed import (
    collapsed_data,
    drawn_channels,
    drawn_log_likelihood,
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
from btil.inference.mfvi import outlines
from btil.inference.result import DrawnParameters, DrawnRows, FitResult
from btil.inference.starting import (
    SMALL_CONCENTRATION,
    labelled_counts,
    num_contexts,
    settled_contexts,
    small_concentrations,
    starting_concentrations,
)
from btil.models.draws import dirichlet_draws, log_gamma_draws
from btil.models.parametric import central_concentration, constrain
from btil.models.team import BoundModel
from btil.numerics.precision import on_device
from btil.numerics.promotion import promotion_allowed
from btil.numpyro_forms.model_data import ChannelSites, ModelData, Structure
from btil.numpyro_forms.numpyro_model import BoundNumpyroModel, EpisodeData, evaluate
from btil.numpyro_forms.team_dbn import episode_log_likelihood, forward_model
from btil.numpyro_forms.tracing import traced_anew
from btil.progress import progress_line

# Transitions between two looks at the progress line.
_TRANSITIONS_PER_CALL = 10
# Rows that are not sampled are drawn for so many draws at a time.
_DRAWS_AT_ONCE = 50
# From so many transitions of warmup on their own variances are better than the mean field's.
_ENOUGH_TO_ADAPT = 400
_STATISTICS = ("diverging", "potential_energy", "energy", "num_steps", "accept_prob")
# Sampled cells of small concentrations from which on a run takes hours.
_FEWEST_CELLS = 500
# Largest sum of a row's prior concentrations: the potential energy has it as a factor.
_LARGEST_PRIORS = {"float32": 1e5, "float64": 1e13}


class StickLogits(dist.Distribution):
    r"""Logits z of the sticks of a Dirichlet row.

    A stick's length is the share of its cell in what the cells before it leave over, so with
    :math:`b_a = \sum_{c > a} u_c`

    .. math:: row_a = \sigma(z_a) \prod_{c < a} \sigma(-z_c), \qquad
              p(z) = \prod_a \frac{\sigma(z_a)^{u_a} \sigma(-z_a)^{b_a}}{B(u_a, b_a)} :

    the lengths are independent, Beta(u_a, b_a), and what is left goes to the last cell.

    Args:
        concentration: u, (..., values), in the order in which sticks are broken off.

    References:
        Connor, Mosimann (1969), Concepts of Independence for Proportions with a Generalization of
        the Dirichlet Distribution.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  # NumPyro's own convention
    support = constraints.real_vector
    pytree_data_fields = ("concentration",)

    def __init__(
        self, concentration: Float[Array, "*rows values"], *, validate_args: bool | None = None
    ) -> None:
        self.concentration = concentration
        sticks = concentration.shape[-1] - 1
        super().__init__(concentration.shape[:-1], (sticks,), validate_args=validate_args)

    def log_prob(self, value: Float[Array, "*rows sticks"]) -> Float[Array, "*rows"]:
        """Log density of the logits."""
        u = self.concentration
        own, rest = stick_parameters(jnp.broadcast_to(u, (*value.shape[:-1], u.shape[-1])))
        logs = own * jax.nn.log_sigmoid(value) + rest * jax.nn.log_sigmoid(-value)
        return jnp.sum(logs - betaln(own, rest), axis=-1)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Float[Array, "..."]:
        """Draw logits."""
        own_key, rest_key = jax.random.split(key)
        own, rest = stick_parameters(self.concentration)
        shape = (*sample_shape, *own.shape)
        return jax.random.loggamma(own_key, own, shape) - jax.random.loggamma(rest_key, rest, shape)


def stick_parameters(
    concentration: Float[Any, "*rows values"],
) -> tuple[Float[Any, "*rows sticks"], Float[Any, "*rows sticks"]]:
    """Parameters of the Beta of every stick: u of its cell, and of all that come after it."""
    left = concentration[..., ::-1].cumsum(-1)[..., ::-1]
    return concentration[..., :-1], left[..., 1:]


def rows_of_sticks(logits: Float[Array, "*rows sticks"]) -> Float[Array, "*rows values"]:
    """The rows whose sticks have these logits."""
    nothing = jnp.zeros_like(logits, shape=(*logits.shape[:-1], 1))
    lengths = jnp.concatenate([jax.nn.log_sigmoid(logits), nothing], axis=-1)
    before = jnp.cumsum(jax.nn.log_sigmoid(-logits), axis=-1)
    return jnp.exp(lengths + jnp.concatenate([nothing, before], axis=-1))


class SticksReparam(Reparam):
    """Sample a Dirichlet site by the logits of its sticks, the site `<name>/sticks`.

    Args:
        rows: Which rows are sampled, and how.
    """

    def __init__(self, rows: "OpenRows") -> None:
        self.rows = rows

    def __call__(self, name: str, fn: Any, obs: Any) -> tuple[None, Float[Array, "..."]]:
        """Replace the site, as NumPyro's `reparam` handler asks."""
        assert obs is None
        dirichlet, _, event_dim = self._unwrap(fn)
        contexts, order, back, others = self.rows
        if not len(contexts):
            return None, others
        own = jnp.broadcast_to(dirichlet.concentration, others.shape)[contexts]
        ordered = permuted(own, order, back)
        logits = numpyro.sample(_sticks(name), StickLogits(ordered).to_event(event_dim - 1))
        return None, whole_table(logits, self.rows)


class OpenRows(NamedTuple):
    """The rows of a table that are sampled.

    Attributes:
        contexts: Their contexts.
        order: Cells of each in the order in which sticks are broken off.
        back: Where in that order each cell is.
        others: The whole table with what stands for the rows that are not sampled: what labelled
            steps make of it is the same in every draw.
    """

    contexts: Int[Array, " open"]
    order: Int[Array, "open ..."]
    back: Int[Array, "open ..."]
    others: Float[Array, "contexts ..."]


def whole_table(logits: Float[Array, "open ..."], rows: OpenRows) -> Float[Array, "contexts ..."]:
    """The table whose sampled rows have sticks of these logits."""
    own = permuted(rows_of_sticks(logits), rows.back, rows.order)
    return rows.others.at[rows.contexts].set(own)


@jax.custom_vjp
def permuted(
    values: Float[Array, "*rows cells"], order: Int[Array, "*rows cells"], back: Int[Array, "..."]
) -> Float[Array, "*rows cells"]:
    """Cells in another order; `back` is the way back, by which gradients go without adding up."""
    return jnp.take_along_axis(values, order, axis=-1, mode="promise_in_bounds")


def _permuted_forward(values: Array, order: Array, back: Array) -> tuple[Array, Array]:
    return permuted(values, order, back), back


def _permuted_backward(back: Array, gradient: Array) -> tuple[Array, None, None]:
    found = jnp.take_along_axis(gradient, back, axis=-1, mode="promise_in_bounds")
    return found, None, None


permuted.defvjp(_permuted_forward, _permuted_backward)


def _sticks(site: str) -> str:
    # No parameter of a family can be called so.
    return f"{site}/sticks"


class Settings(NamedTuple):
    """What the compiled programs depend on besides structure and shapes."""

    num_warmup: int
    target_accept_prob: float
    max_tree_depth: int


class Inputs(NamedTuple):
    """The arrays of a fit of tables.

    Attributes:
        data: The model's.
        rows: Of every site of Dirichlet rows, those that are sampled.
    """

    data: ModelData
    rows: dict[str, OpenRows]


class Begin(NamedTuple):
    """Where chains begin, (chain, ...).

    Attributes:
        keys: What their draws are made from.
        positions: Values of all sites in unconstrained space; None: at random.
        variances: The metric, alike; None: to be adapted.
    """

    keys: Key[Array, " chains"]
    positions: dict[str, Float[Array | np.ndarray, "chains ..."]] | None = None
    variances: dict[str, Float[Array | np.ndarray, "chains ..."]] | None = None


class Programs(NamedTuple):
    """Compiled by JAX at the first call.

    Attributes:
        start: (`Begin`, inputs) -> states of as many chains.
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


class PlacedNUTS:
    """NumPyro's NUTS of chains whose first positions are given.

    It is `NUTS` without the search for valid positions, which is traced and compiled there even
    where they are given.

    Args:
        model: A model whose sites are all real.
        settings: What the programs depend on.
        adapt_mass_matrix: Whether the metric is adapted.
    """

    def __init__(
        self, model: Callable[..., None], settings: "Settings", adapt_mass_matrix: bool
    ) -> None:
        def energy_given(*arguments: Any) -> Callable[..., Any]:
            return partial(potential_energy, model, arguments, {})

        self._begin, self._sample = hmc(potential_fn_gen=energy_given, algo="NUTS")
        self._options = {
            "target_accept_prob": settings.target_accept_prob,
            "max_tree_depth": settings.max_tree_depth,
            "adapt_mass_matrix": adapt_mass_matrix,
        }

    def init(
        self,
        key: Key[Array, ""],
        num_warmup: int,
        position: dict[str, Float[Array | np.ndarray, "..."]] | None,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
    ) -> Any:
        """The state at a position."""
        assert position is not None
        own_key, _ = jax.random.split(key)
        return self._begin(
            position,
            num_warmup,
            **self._options,
            dense_mass=[],
            model_args=arguments,
            model_kwargs=keywords,
            rng_key=own_key,
        )

    def sample(self, state: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The state after a transition."""
        return self._sample(state, arguments, keywords)


def reparametrized_model(structure: Structure, inputs: Inputs) -> None:
    """`forward_model` with every row broken into sticks."""
    config = {name: SticksReparam(inputs.rows[name]) for name in structure.dirichlet_sites}
    with handlers.reparam(config=config):
        forward_model(structure, inputs.data)


def kernel_programs(
    kernel: NUTS | PlacedNUTS,
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

    def start(begin: Begin, inputs: Any) -> Any:
        def one(begin: Begin) -> Any:
            state = kernel.init(begin.keys, num_warmup, begin.positions, (inputs,), {})
            return state if begin.variances is None else _with_metric(state, begin.variances)

        with promotion_allowed():
            return of_chains(one)(begin)

    def advance(states: Any, inputs: Any, count: Array) -> Any:
        # Under jit it is traced once, though it is called for its shapes and in a loop.
        @jax.jit
        def keep(states: Any) -> Chains:
            statistics = {name: getattr(states, name) for name in _STATISTICS}
            return Chains(*collect(states, inputs), statistics)

        def body(i: Array, carry: Any) -> Any:
            states, kept = carry
            with promotion_allowed():
                states = of_chains(lambda state: kernel.sample(state, (inputs,), {}))(states)
            new = keep(states)
            return states, jax.tree.map(lambda all_, one: all_.at[i].set(one), kept, new)

        kept = jax.tree.map(
            lambda x: jnp.zeros((_TRANSITIONS_PER_CALL, *x.shape), x.dtype),
            jax.eval_shape(keep, states),
        )
        return jax.lax.fori_loop(0, count, body, (states, kept))

    return Programs(
        compiled(split_chains(start, mesh, SPLIT)),
        compiled(split_chains(advance, mesh, (SPLIT, SPLIT_SECOND))),
    )


def of_chains(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function of one chain, on trees with chains on their first axis.

    A single chain is not mapped over: its loops and branches stay what they are. Batches of them
    are traced again and again, level by level, and take both sides of every branch.
    """

    def mapped(chains: Any) -> Any:
        if len(jax.tree.leaves(chains)[0]) > 1:
            return jax.vmap(function)(chains)
        only = jax.tree.map(lambda values: values[0], chains)
        return jax.tree.map(lambda values: jnp.asarray(values)[None], function(only))

    return mapped


@lru_cache(maxsize=16)
def make_programs(
    structure: Structure, settings: Settings, dtype: np.dtype, mesh: Mesh | None = None
) -> Programs:
    """Programs for tables of one structure; `dtype` keeps apart what must not share a kernel."""
    model = partial(reparametrized_model, structure)
    kernel: NUTS | PlacedNUTS
    if _has_outline(structure):
        kernel = PlacedNUTS(model, settings, settings.num_warmup >= _ENOUGH_TO_ADAPT)
    else:
        kernel = NUTS(
            model,
            target_accept_prob=settings.target_accept_prob,
            max_tree_depth=settings.max_tree_depth,
        )

    def collect(states: Any, inputs: Inputs) -> tuple[dict[str, Any], Any]:
        number = len(states.i)
        rows = {
            name: jax.vmap(whole_table, (0, None))(states.z[_sticks(name)], own)
            if len(own.contexts)
            else jnp.broadcast_to(own.others[None], (number, *own.others.shape))
            for name, own in inputs.rows.items()
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
        return rows | parameters, of_chains(by_episode)(rows)

    return kernel_programs(kernel, settings.num_warmup, collect, mesh)


def _has_outline(structure: Structure) -> bool:
    """Whether the mean field says where all sites are: they are all rows of plain tables."""
    return not structure.priors and not structure.channels


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


def _with_metric(state: Any, variances: dict[str, Float[Array | np.ndarray, "..."]]) -> Any:
    """A chain's state with the metric that belongs to these variances."""
    flat, _ = ravel_pytree(variances)
    adapted = state.adapt_state
    (sites,) = adapted.inverse_mass_matrix
    return state._replace(
        adapt_state=adapted._replace(
            inverse_mass_matrix={sites: flat},
            mass_matrix_sqrt={sites: 1 / jnp.sqrt(flat)},
            mass_matrix_sqrt_inv={sites: jnp.sqrt(flat)},
        )
    )


class Schedule(NamedTuple):
    """How many transitions, and which chains run together (`fit`)."""

    num_warmup: int
    num_samples: int
    chain_method: str


def sample_chains(
    programs: Programs,
    begin: Begin,
    inputs: Any,
    schedule: Schedule,
    checkpoint: Checkpoint,
    progress: bool,
    mesh: Mesh | None = None,
) -> Chains:
    """Run chains, group by group of those that run together, and save them as they go.

    Args:
        programs: The kernel's.
        begin: Where they begin.
        inputs: The model's argument.
        schedule: How long, and which together.
        checkpoint: Where progress is saved.
        progress: Whether to show a progress line.
        mesh: The devices over which the chains of a group are spread.
    """
    inputs = place(inputs, mesh)
    num_chains = len(begin.keys)
    together = num_chains if schedule.chain_method == "vectorized" else size_of(mesh)
    groups = [
        place(_some_of(begin, slice(first, first + together)), mesh, SPLIT)
        for first in range(0, num_chains, together)
    ]
    per_group = schedule.num_warmup + schedule.num_samples
    like = jax.eval_shape(programs.start, groups[0], inputs)
    of_draws = jax.eval_shape(programs.advance, like, inputs, jax.ShapeDtypeStruct((), jnp.int32))
    draws = jax.tree.map(
        lambda x: np.zeros((num_chains, schedule.num_samples, *x.shape[2:]), x.dtype),
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
                    f"{np.asarray(everywhere.num_steps).max()} steps, "
                    f"acceptance {np.asarray(everywhere.mean_accept_prob).mean():.2f}"
                )
                line.update(count)
                checkpoint.offer(
                    group=group, transitions=done, states=everywhere, draws=jax.tree.leaves(draws)
                )
            group, done, states = group + 1, 0, None
    return draws


def _some_of(begin: Begin, chains: slice) -> Begin:
    return jax.tree.map(lambda values: values[chains], begin)


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
        num_chains: Number of chains. They start apart: each at a draw from the mean field to which
            coordinate ascent leads when the unlabelled steps are dealt out to the latents at random
            for it; with parameters or channels uniform in (-2, 2) in unconstrained space.
        num_warmup: Transitions per chain that adapt step size and metric, not kept. With fewer than
            400 the metric stays the mean field's, unless there are parameters or channels.
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
    begin = Begin(jax.random.split(jax.random.key(seed), num_chains))
    if isinstance(bound, BoundNumpyroModel):
        programs, inputs = own_programs(bound, settings, mesh), bound.data
    else:
        settled = _settled_rows(bound)
        refuse_large_priors(bound, dtype, _LARGEST_PRIORS, "nuts")
        structure, data = collapsed_data(bound, dtype)
        programs = make_programs(structure, settings, np.dtype(dtype), mesh)
        # Elsewhere they tell the order of sticks alone, for which one start will do.
        outlined = _has_outline(structure)
        starts = _outlines(bound, dtype, seed, num_chains if outlined else 1)
        inputs = Inputs(data, _open_rows(starts, settled, dtype))
        warn(_short_steps(bound, settled))
        if outlined:
            begin = _begin(begin, starts, inputs.rows, dtype, seed)
    if isinstance(bound, BoundNumpyroModel) or _any_open(structure, inputs):
        schedule = Schedule(int(num_warmup), int(num_samples), chain_method)
        found = sample_chains(programs, begin, inputs, schedule, checkpoint, progress, mesh)
    else:
        found = _nothing_sampled(inputs, int(num_chains), int(num_samples), dtype)
    num_settled = 0
    if not isinstance(bound, BoundNumpyroModel):
        found, num_settled = _with_settled_rows(found, bound, settled, structure, inputs, seed)
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
            "contexts_drawn_exactly": num_settled,
        },
        parameters={site: DrawnParameters(values) for site, values in parameters.items()},
        channels=channels,
    )


def _outlines(
    bound: BoundModel, dtype: np.dtype, seed: int, num_chains: int
) -> dict[str, Float[np.ndarray, "chains ..."]]:
    """Concentrations of every site of Dirichlet rows from which each chain sets out."""
    generators = [np.random.default_rng([seed, chain]) for chain in range(num_chains)]
    if any(table.parametric for table in bound.learned.values()) or bound.channels:
        found = [starting_concentrations(bound, generator) for generator in generators]
    else:
        found = outlines(bound, dtype, generators)
    return {site: np.stack([one[site] for one in found]) for site in found[0]}


def _open_rows(
    starts: dict[str, Float[np.ndarray, "chains ..."]],
    settled: dict[str, Bool[np.ndarray, " contexts"]],
    dtype: np.dtype,
) -> dict[str, OpenRows]:
    """The rows that are sampled.

    Likely cells first: their sticks do not hang on those of cells that were never used.
    """
    found = {}
    for site, values in starts.items():
        table, among = values.mean(0), np.flatnonzero(~settled[site])
        order = np.argsort(-table[among], axis=-1, kind="stable")
        found[site] = OpenRows(
            on_device(among, np.int32),
            on_device(order, np.int32),
            on_device(np.argsort(order, axis=-1), np.int32),
            on_device(np.full(table.shape, 1 / table.shape[-1]), dtype),
        )
    return found


def _settled_rows(bound: BoundModel) -> dict[str, Bool[np.ndarray, " contexts"]]:
    """Of every learned table the contexts whose rows are drawn after all others."""
    return {
        site: contexts & (not bound.learned[site].parametric)
        for site, contexts in settled_contexts(bound).items()
    }


def _short_steps(
    bound: BoundModel, settled: Mapping[str, Bool[np.ndarray, " contexts"]]
) -> Iterator[str]:
    """Say of which tables transitions take hundreds of gradients, before they do."""
    cells = {
        name: int((~settled[name]).sum()) * math.prod(bound.tables[name].shape[1:])
        for name in sorted(small_concentrations(bound))
    }
    if sum(cells.values()) < _FEWEST_CELLS:
        return
    told = ", ".join(f"{name} ({number:,} cells)" for name, number in cells.items() if number)
    yield (
        f"nuts takes very short steps where concentrations are below {SMALL_CONCENTRATION:g}: "
        f"{told}; hundreds of gradients a draw, hours for a team's recordings. method='gibbs' "
        "sums such rows out and takes minutes"
    )


def _any_open(structure: Structure, inputs: Inputs) -> bool:
    """Whether there is anything to sample."""
    return not _has_outline(structure) or any(len(own.contexts) for own in inputs.rows.values())


def _nothing_sampled(inputs: Inputs, num_chains: int, num_samples: int, dtype: np.dtype) -> Chains:
    """Chains of a fit in which every row is drawn afterwards."""
    draws = {
        name: np.zeros((num_chains, num_samples, *own.others.shape), dtype)
        for name, own in inputs.rows.items()
    }
    size = (num_chains, num_samples)
    statistics = {name: np.zeros(size, dtype) for name in _STATISTICS}
    statistics |= {"diverging": np.zeros(size, bool), "num_steps": np.zeros(size, np.int32)}
    return Chains(draws, None, statistics | {"accept_prob": np.ones(size, dtype)})


def _with_settled_rows(
    found: Chains,
    bound: BoundModel,
    settled: dict[str, Bool[np.ndarray, " contexts"]],
    structure: Structure,
    inputs: Inputs,
    seed: int,
) -> tuple[Chains, int]:
    """Chains with the rows that were not sampled drawn from their Dirichlet, and how many.

    Likelihoods are those of the whole tables then.
    """
    number = sum(int(own.sum()) for own in settled.values())
    if not number:
        return found, 0
    known = labelled_counts(bound, num_contexts(bound))
    log_likelihood = []
    for chain, drawn in enumerate(zip(*found.draws.values(), strict=True)):
        rows = dict(zip(found.draws, drawn, strict=True))
        generator = np.random.default_rng([seed, chain, number])
        for site, own in settled.items():
            if own.any():
                concentration = central_concentration(bound.learned[site])[own] + known[site][own]
                # In place and part by part: draws of large tables are not copied.
                for first in range(0, len(rows[site]), _DRAWS_AT_ONCE):
                    part = rows[site][first : first + _DRAWS_AT_ONCE]
                    shape = (len(part), *concentration.shape)
                    part[:, own] = dirichlet_draws(generator, np.broadcast_to(concentration, shape))
        log_likelihood.append(np.asarray(drawn_log_likelihood(structure, inputs.data, rows)))
    return found._replace(log_likelihood=np.stack(log_likelihood)), number


def _begin(
    begin: Begin,
    concentrations: dict[str, Float[np.ndarray, "chains ..."]],
    rows: dict[str, OpenRows],
    dtype: np.dtype,
    seed: int,
) -> Begin:
    """A draw from each chain's mean field, and the variances of that.

    Drawn on the host: no gamma sampler to compile.
    """
    generator = np.random.default_rng([seed, len(begin.keys)])
    positions, variances = {}, {}
    for site, values in concentrations.items():
        if not len(rows[site].contexts):
            continue
        among = values[:, np.asarray(rows[site].contexts)]
        order = np.broadcast_to(rows[site].order, among.shape)
        own, rest = stick_parameters(np.take_along_axis(among, order, axis=-1).astype(np.float64))
        drawn = log_gamma_draws(generator, own) - log_gamma_draws(generator, rest)
        positions[_sticks(site)] = drawn.astype(dtype)
        variances[_sticks(site)] = (polygamma(1, own) + polygamma(1, rest)).astype(dtype)
    return begin._replace(positions=positions, variances=variances)
