r"""Blocked Gibbs sampling: whole latent paths given the tables, all tables given the paths.

Each iteration of a chain

- draws the latents of every episode from P(x_0..x_h | actions, labels, tables), by a forward
  filter and backward sampling, one agent at a time (given the tables they are independent);
- draws every learned row from its conditional, Dirichlet(u + counts along the paths).

Coefficients and covariances of continuous channels are drawn alike, from their matrix-normal
inverse-Wishart conditionals, and cells of them that nobody saw from the normals that these give.

All are exact draws, so there is nothing to tune and nothing is rejected. Where concentrations are
so small that paths would hardly move (a row's cell that no count holds up is drawn as next to
nothing), paths are moved with the rows integrated out in between (`inference/path_moves.py`).
Parameters of parametric
families are moved in between, given the paths, by a step of Hamiltonian Monte Carlo with the rows
integrated out (`inference/parameters.py`); its step size is tuned during the warmup.

References:
    Scott (2002), Bayesian methods for hidden Markov models, JASA 97, Section 2.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int, Key

from btil.arguments import check_count, check_index
from btil.inference.chains import judge_chains
from btil.inference.channels import (
    LaidChannel,
    dealt_statistics,
    is_doubtful,
    labelled_statistics,
    laid_channels,
    log_jacobian,
    updated_normals,
)
from btil.inference.checkpoint import NOWHERE, Checkpoint, Saved
from btil.inference.devices import (
    SPLIT,
    SPLIT_SECOND,
    check_chains,
    gather,
    make_mesh,
    place,
    split_chains,
)
from btil.inference.moments import Moments, add_draw, merged, no_draws, no_parts, part_lengths
from btil.inference.parameters import (
    Families,
    FamilyData,
    Moving,
    family_data,
    first_moving,
    log_functional_rows,
    move,
    padded_rows,
    row_concentrations,
)
from btil.inference.path_moves import Landmarks, Moved, move_paths
from btil.inference.result import (
    ChannelPoint,
    DrawnChannel,
    DrawnParameters,
    DrawnRows,
    FitResult,
    MomentRows,
    matrix_normal_draws,
)
from btil.inference.starting import labelled_counts, small_concentrations
from btil.inference.urns import (
    AROUND,
    BEFORE,
    Blocks,
    Places,
    Stretches,
    counts_of,
    fill_urns,
    lay_places,
    padded_paths,
    with_actions,
    with_evidence,
)
from btil.messages.channels import (
    ChannelSteps,
    drawn_statistics,
    expected_statistics,
    log_evidence,
    patterns,
)
from btil.messages.lanes import spread
from btil.messages.layout import (
    LaneIndex,
    Layout,
    lay_out,
    log_rows,
    pad_rows,
)
from btil.messages.smoother import (
    filter_and_sample,
    path_counts,
    potentials,
    with_drawn_actions,
)
from btil.models.draws import dirichlet_draws
from btil.models.parametric import (
    all_priors,
    central_concentration,
    constrain,
    parametric_sites,
)
from btil.models.symmetry import interchangeable_classes
from btil.models.team import BoundModel, Table, context_visits
from btil.numerics.gammas import draw_log_gammas
from btil.numerics.matrix_normal import Hyper, Noise, gamma_shapes, log_kernel, updated
from btil.numerics.matrix_normal import drawn as draw_matrix_normal
from btil.numerics.precision import on_device
from btil.numerics.rounding import rounded_up
from btil.progress import progress_line

ITERATIONS_PER_CALL = 25
# At so many times of the warmup it is noted around which path each chain is.
LANDMARKS = 4
# Latents mostly stay where they do so with this probability, a priori.
_STICKY = 0.9
_CHANNEL_PARTS = ("coefficients", "covariance")


class State(NamedTuple):
    """What the next iteration needs.

    Attributes:
        log_tables: Log rows of every site of Dirichlet rows, padded as in `Layout.num_rows`.
        moving: Parameters of parametric families; None without such.
        channels: Coefficients and covariance of every continuous channel, contexts padded.
    """

    log_tables: dict[str, Float[Array, "..."]]
    moving: Moving | None = None
    channels: dict[str, tuple[Float[Array, "..."], Float[Array, "..."]]] = {}  # noqa: RUF012


class Info(NamedTuple):
    """What an iteration found.

    Attributes:
        log_likelihood: Log p(actions, labels | tables) of each episode, summed over agents, under
            the tables that the iteration started from.
        moved: What the collapsed moves did; None without such moves.
        paths: The paths that it ended with, of all agents side by side; None without such moves.
    """

    log_likelihood: Float[Array, "*batch episodes"]
    moved: Moved | None = None
    paths: Int[Array, "*batch length lanes"] | None = None


class Problem(NamedTuple):
    """The arrays of a fit.

    Attributes:
        prior: Concentrations of every site of Dirichlet rows that no parameter stands behind.
        log_fixed: Log rows of the tables that are not learned.
        steps: Per agent, where its steps look.
        episode: Episode of each place of each lane, past the last in padding.
        family_data: Arrays of the parametric tables.
        places: Where all steps look in the urns of the collapsed moves; None without such moves.
        stretches: Which steps these move together; None without such moves.
        landmarks: Paths between which they jump; None: they do not.
        channels: The steps of the continuous channels, and their priors.
    """

    prior: dict[str, Float[Array, "..."]]
    log_fixed: dict[str, Float[Array, "..."]]
    steps: tuple[LaneIndex, ...]
    episode: Int[Array, "length lanes"]
    family_data: FamilyData
    places: Places | None = None
    stretches: Stretches | None = None
    landmarks: Landmarks | None = None
    channels: dict[str, ChannelSteps] = {}  # noqa: RUF012  # never mutated


class Program(NamedTuple):
    """What the program of a fit depends on beside the shapes of its arrays.

    Attributes:
        sites: Per agent, the names of its policy, transition and initial tables.
        num_episodes: Number of episodes, rounded up or not.
        families: The parametric tables.
        blocks: Lanes of agents that share no table; None without collapsed moves.
        channels: Per agent the name of its continuous channel, empty without one.
        whole: The channels of which no cell is missing.
    """

    sites: tuple[tuple[str, str, str], ...]
    num_episodes: int
    families: Families = ()
    blocks: Blocks | None = None
    channels: tuple[str, ...] = ()
    whole: tuple[str, ...] = ()


def draw_log_tables(
    key: Key[Array, ""], concentration: dict[str, Float[Array, "..."]]
) -> dict[str, Float[Array, "..."]]:
    """Logs of independent Dirichlet rows.

    Normalised in logs: at concentrations of 0.001 gamma draws underflow, their logs do not.
    """
    drawn = draw_all_log_gammas(key, concentration)
    return {name: jax.nn.log_softmax(part) for name, part in drawn.items()}


def draw_all_log_gammas(
    key: Key[Array, ""], concentration: dict[str, Float[Array, "..."]]
) -> dict[str, Float[Array, "..."]]:
    """`draw_log_gammas` of several arrays."""
    # All cells in one call: compiling the random generator is most of a short run.
    cells = jnp.concatenate([table.ravel() for table in concentration.values()])
    log_gamma = draw_log_gammas(key, cells)
    ends = np.cumsum([table.size for table in concentration.values()])
    parts = jnp.split(log_gamma, ends[:-1])
    return {
        name: part.reshape(table.shape)
        for (name, table), part in zip(concentration.items(), parts, strict=True)
    }


def step(
    key: Key[Array, ""],
    state: State,
    problem: Problem,
    program: Program,
    adaptation: Any = 0.0,
) -> tuple[State, Info]:
    """One iteration: all latent paths, then all parameters and rows.

    Args:
        key: Random key of this iteration.
        state: The tables.
        problem: The fit's arrays.
        program: What is to be done with them.
        adaptation: By how much the parameters' step size may follow the acceptance; 0 after the
            warmup.

    Returns:
        The next tables, and the log likelihood under the given ones.
    """
    families, sites = program.families, program.sites
    keys = jax.random.split(key, len(sites) + 1)
    tables = problem.log_fixed | state.log_tables | functional_log_rows(state, problem, families)
    log_likelihood = jnp.zeros(program.num_episodes, next(iter(tables.values())).dtype)
    paths: list[Array] = []
    drawn_steps: list[LaneIndex] = []
    said: list[Any] = []
    channels = program.channels or ("",) * len(sites)
    for agent_key, names, index, channel in zip(
        keys[1:], sites, problem.steps, channels, strict=True
    ):
        policy, transition, initial = (tables[name] for name in names)
        evidence = _said(state, problem, channel) if channel else None
        factors = potentials(policy, transition, initial, index, evidence)
        log_normalizer, path = filter_and_sample(agent_key, factors)
        log_likelihood = log_likelihood.at[problem.episode].add(log_normalizer, mode="drop")
        paths.append(path)
        said.append(_all_said(evidence, index))
        drawn_steps.append(
            with_drawn_actions(
                jax.random.fold_in(agent_key, 1), path, index, policy, transition, len(initial)
            )
        )
    counts = _counts(paths, drawn_steps, tables, problem, program)
    concentration = problem.prior | _given(state, problem, families)
    moving, row_key, moved, ended = state.moving, keys[0], None, None
    if program.blocks is not None:
        window_key, row_key = jax.random.split(row_key)
        known = {n: jnp.exp(rows) for n, rows in tables.items() if n not in concentration}
        paths, counts, moved = _collapsed_moves(
            window_key, paths, counts, concentration | known, problem, program, drawn_steps, said
        )
        ended = jnp.concatenate(paths, 1)
    if families:
        assert moving is not None
        move_key, row_key = jax.random.split(row_key)
        moving = move(move_key, moving, families, problem.family_data, counts, adaptation)
        concentration |= _given(State({}, moving), problem, families)
    drawn = {name: u + counts[name] for name, u in concentration.items()}
    if not problem.channels:
        log_tables = draw_log_tables(row_key, drawn) if drawn else {}
        return State(log_tables, moving), Info(log_likelihood, moved, ended)
    row_key, noise_key, cell_key = jax.random.split(row_key, 3)
    conditionals = {
        channel: _conditional(jax.random.fold_in(cell_key, i), path, state, problem, program, i)
        for i, (channel, path) in enumerate(zip(channels, paths, strict=True))
        if channel
    }
    shapes = {name: gamma_shapes(hyper) for name, hyper in conditionals.items()}
    log_gamma = draw_all_log_gammas(row_key, drawn | shapes)
    log_tables = {name: jax.nn.log_softmax(log_gamma[name]) for name in drawn}
    points = {}
    for number, (name, hyper) in enumerate(conditionals.items()):
        p, d = hyper.location.shape[-2:]
        shape = (*hyper.degrees.shape, p + d, d)
        normal = jax.random.normal(jax.random.fold_in(noise_key, number), shape, hyper.scale.dtype)
        noise = Noise(normal[..., :p, :], normal[..., p:, :], log_gamma[name])
        points[name] = draw_matrix_normal(hyper, noise)
    return State(log_tables, moving, points), Info(log_likelihood, moved, ended)


def _said(state: State, problem: Problem, channel: str) -> Float[Array, "length latents lanes"]:
    """The log density of every step of a channel under each latent."""
    data = problem.channels[channel].data
    location, covariance = (part[data.context] for part in state.channels[channel])
    seen = patterns(data, location.shape[1])
    return log_evidence(log_kernel(location, covariance, seen), data)


def _all_said(
    evidence: Float[Array, "length latents lanes"] | None, index: LaneIndex
) -> Float[Array, "length lanes latents"] | None:
    """What columns and weights of annotations say of every step's latent."""
    weights = index.log_weights
    if evidence is None:
        return None if weights is None else jnp.asarray(weights)
    said = jnp.swapaxes(evidence, 1, 2)
    return said if weights is None else said + jnp.asarray(weights, said.dtype)


def _conditional(
    key: Key[Array, ""],
    path: Int[Array, "length lanes"],
    state: State,
    problem: Problem,
    program: Program,
    agent: int,
) -> Hyper:
    """What the path says of the coefficients and covariances of an agent's channel."""
    channel = program.channels[agent]
    data, prior = problem.channels[channel]
    latents = prior.degrees.shape[1]
    numbers = jnp.arange(latents, dtype=path.dtype)[None, :, None]
    one_hot = (path[:, None] == numbers).astype(prior.scale.dtype)
    if channel in program.whole:
        statistics = expected_statistics(one_hot, data, prior, True)
    else:
        shape = (*data.real.shape, prior.scale.shape[-1])
        noise = jax.random.normal(key, shape, prior.scale.dtype)
        statistics = drawn_statistics(one_hot, noise, data, *state.channels[channel])
    return updated(prior, statistics)


def _counts(
    paths: Sequence[Int[Array, "length lanes"]],
    steps: Sequence[LaneIndex],
    tables: Mapping[str, Float[Array, "..."]],
    problem: Problem,
    program: Program,
) -> dict[str, Float[Array, "..."]]:
    """How often each cell of every learned table is used by the paths of all agents."""
    counts = {
        name: jnp.zeros_like(tables[name]) for name in learned_sites(problem, program.families)
    }
    for latents, names, index in zip(paths, program.sites, steps, strict=True):
        policy, transition, initial = (tables[name] for name in names)
        rows = (len(policy), len(transition), len(initial))
        _, number, actions = policy.shape
        uses = path_counts(latents, index, rows, (number, actions))
        for name, use in zip(names, uses, strict=True):
            if name in counts:
                counts[name] = counts[name] + use.astype(counts[name].dtype)
    return counts


def _given(state: State, problem: Problem, families: Families) -> dict[str, Float[Array, "..."]]:
    """Concentrations of the tables whose rows are Dirichlet given parameters."""
    if not families:
        return {}
    assert state.moving is not None
    parameters = constrain(all_priors(families), state.moving.unconstrained)
    return dict(row_concentrations(families, parameters, problem.family_data))


def _collapsed_moves(
    key: Key[Array, ""],
    paths: Sequence[Int[Array, "length lanes"]],
    counts: dict[str, Float[Array, "..."]],
    weights: Mapping[str, Float[Array, "..."]],
    problem: Problem,
    program: Program,
    drawn_steps: Sequence[LaneIndex],
    said: Sequence[Float[Array, "length lanes _"] | None],
) -> tuple[list[Int[Array, "length lanes"]], dict[str, Float[Array, "..."]], Moved]:
    """Paths and counts after `move_paths`.

    Args:
        key: Random key.
        paths: The paths of all agents.
        counts: What they use.
        weights: Concentrations, of given tables probabilities.
        problem: The fit's arrays.
        program: What is to be done with them.
        drawn_steps: Where steps look, actions that nobody saw as they were drawn: they are held.
        said: What else steps say of their latents: coefficients of columns are held.
    """
    assert problem.places is not None
    assert problem.stretches is not None
    assert program.blocks is not None
    shapes = {name: table.shape for name, table in weights.items()}
    places = with_actions(problem.places, shapes, counts, program.sites, problem.steps, drawn_steps)
    places = with_evidence(places, said)
    urns = fill_urns(weights, counts, places)
    laid, urns, moved = move_paths(
        key,
        padded_paths(paths),
        urns,
        places,
        problem.stretches,
        program.blocks,
        problem.landmarks,
    )
    length, width = paths[0].shape
    inside = laid[BEFORE : BEFORE + length]
    after = [inside[:, k * width : (k + 1) * width] for k in range(len(paths))]
    return after, {n: c for n, c in counts_of(urns, shapes).items() if n in counts}, moved


def learned_sites(problem: Problem, families: Families) -> tuple[str, ...]:
    """Sites of all learned tables."""
    return (*problem.prior, *(family.name for family in families))


def functional_log_rows(
    state: State, problem: Problem, families: Families
) -> dict[str, Float[Array, "..."]]:
    """Log rows of the tables that are a function of the parameters, padded."""
    if all(family.cpt.dirichlet_rows for family in families):
        return {}
    assert state.moving is not None
    parameters = constrain(all_priors(families), state.moving.unconstrained)
    logs = log_functional_rows(families, parameters, problem.family_data)
    return padded_rows(families, logs, problem.family_data)


# In how many iterations of a call each step of each chain had each latent; None: not counted.
Votes = Int[Array, "chains length lanes latents"] | None


@partial(jax.jit, static_argnames=("program", "mesh"))
def advance(
    chain_keys: Key[Array, " chains"],
    states: State,
    problem: Problem,
    first: Int[Array, ""],
    stop: Int[Array, ""],
    num_warmup: Int[Array, ""],
    program: Program,
    kept: dict[str, Int[Array, " kept"]] | None = None,
    mesh: Mesh | None = None,
) -> tuple[State, Votes, dict[str, Moments], tuple[dict[str, Array], Info]]:
    """Run iterations `first` to `stop` - 1 of all chains, at most `ITERATIONS_PER_CALL`.

    An iteration's randomness depends on its number alone, so a run may be cut anywhere. One
    program serves every cut: iterations from `stop` on are passed over.

    Args:
        chain_keys: One key per chain.
        states: Tables of all chains.
        problem: The fit's arrays.
        first: Number of the first iteration.
        stop: Number of the first iteration not to run.
        num_warmup: Iterations in which the parameters' step size is tuned, and of which no moments
            are taken.
        program: As in `step`.
        kept: Per learned table the rows that are wanted of each iteration; None: all.
        mesh: The devices over which the chains are spread.

    Returns:
        The next tables; in the warmup of a run with collapsed moves, in how many iterations each
        step of each chain had each latent; where not all rows are wanted, the moments of all over
        the iterations; rows, parameters and log likelihood of each iteration before its update, of
        which the first `stop - first` mean something.
    """

    def own_chains(chains: tuple[Any, State], *common: Any) -> Any:
        return _advance(*chains, *common, program=program)

    spread_out = split_chains(own_chains, mesh, (SPLIT, SPLIT, SPLIT, SPLIT_SECOND))
    return spread_out((chain_keys, states), problem, first, stop, num_warmup, kept)


def _advance(
    chain_keys: Key[Array, " chains"],
    states: State,
    problem: Problem,
    first: Int[Array, ""],
    stop: Int[Array, ""],
    num_warmup: Int[Array, ""],
    kept: dict[str, Int[Array, " kept"]] | None,
    *,
    program: Program,
) -> tuple[State, Votes, dict[str, Moments], tuple[dict[str, Array], Info]]:
    """`advance` on one device."""
    families = program.families

    def run(
        number: Array, states: State, votes: Votes, moments: dict[str, Moments]
    ) -> tuple[Any, Any]:
        keys = jax.vmap(jax.random.fold_in, (0, None))(chain_keys, number)
        adaptation = _adaptation(number, num_warmup) if families else 0.0
        following, info = jax.vmap(
            lambda key, state: step(key, state, problem, program, adaptation)
        )(keys, states)
        if votes is not None:
            assert info.paths is not None
            paths = info.paths
            votes = lax.cond(
                number < num_warmup,
                lambda votes: votes + jax.nn.one_hot(paths, votes.shape[-1], dtype=votes.dtype),
                lambda votes: votes,
                votes,
            )
        # Paths of every iteration would be many times what is kept of it.
        info = info._replace(paths=None)
        logs = log_rows_of(states, problem, families)
        if kept is None:
            drawn = exponentials(logs)
        else:
            moments = lax.cond(
                number < num_warmup,
                lambda: moments,
                lambda: {
                    name: add_draw(moments[name], rows, number - first + 1)
                    for name, rows in exponentials(logs).items()
                },
            )
            drawn = exponentials({name: logs[name][:, rows] for name, rows in kept.items()})
        if states.moving is not None:
            drawn |= jax.vmap(partial(constrain, all_priors(families)))(states.moving.unconstrained)
        for name, (location, covariance) in states.channels.items():
            parts = (location, covariance)
            drawn |= {f"{name}/{k}": v for k, v in zip(_CHANNEL_PARTS, parts, strict=True)}
        return (following, votes, moments), (drawn, info)

    def pass_over(number: Array, *carry: Any) -> tuple[Any, Any]:
        nothing = jax.eval_shape(run, number, *carry)[1]
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), nothing)
        return carry, zeros

    def iteration(carry: tuple[State, Any, Any], number: Array) -> tuple[Any, Any]:
        return lax.cond(number < stop, run, pass_over, number, *carry)

    begin = {}
    if kept is not None:
        logs = log_rows_of(states, problem, families)
        begin = {name: no_draws(rows) for name, rows in logs.items()}
    votes = None
    if problem.landmarks is not None:
        assert problem.places is not None
        *_, length, lanes = problem.landmarks.paths.shape
        shape = (len(chain_keys), length - AROUND, lanes - 1, problem.places.allowed.shape[-1])
        votes = jnp.zeros(shape, jnp.int8)
    numbers = first + jnp.arange(ITERATIONS_PER_CALL)
    (states, votes, moments), found = lax.scan(iteration, (states, votes, begin), numbers)
    return states, votes, moments, found


def log_rows_of(
    states: State, problem: Problem, families: Families
) -> dict[str, Float[Array, "chains ..."]]:
    """Log rows of every learned table of all chains, padded."""
    given = jax.vmap(lambda state: functional_log_rows(state, problem, families))(states)
    return states.log_tables | given


@jax.jit
def exponentials(logs: dict[str, Float[Array, "..."]]) -> dict[str, Float[Array, "..."]]:
    """Rows from their logs; none is zero, or data would become impossible."""
    return {
        name: jnp.maximum(jnp.exp(rows), jnp.finfo(rows.dtype).tiny) for name, rows in logs.items()
    }


def _adaptation(number: Array, num_warmup: Any) -> Float[Array, ""]:
    """Ever smaller steps of the tuning, and none after the warmup."""
    step = number.astype(jnp.zeros(()).dtype) + 1.0
    return jnp.where(number < num_warmup, step**-0.6, 0.0)


def fit(
    bound: BoundModel,
    *,
    seed: int,
    progress: bool,
    dtype: np.dtype,
    checkpoint: Checkpoint = NOWHERE,
    num_chains: int = 4,
    num_warmup: int = 500,
    num_samples: int = 500,
    keep_rows: int | Mapping[str, Any] | None = None,
    devices: int | None = None,
) -> FitResult:
    """Sample chains side by side, each from a draw of the prior plus the labelled counts.

    Args:
        bound: The model on its data.
        seed: Seeds everything.
        progress: Whether to show a progress line.
        dtype: float32 or float64.
        checkpoint: Where progress is saved.
        num_chains: Number of chains.
        num_warmup: Iterations of each chain that are thrown away.
        num_samples: Iterations of each chain that are kept.
        keep_rows: Of which rows every draw is kept: of all (None), of those of so many contexts of
            each table, the ones that the data read most often, or of the contexts listed per
            table, {"policy_ann": [0, 3]} (rows of `posterior.contexts`; a table not named keeps
            none). Unless all are kept, running moments of every row are: means, standard
            deviations and split R-hat are those of all draws, and so is what is asked of the
            posterior at its mean; what needs the draws of all rows (`sample`, `num_draws`,
            comparison) is refused. The chains are the same either way.
        devices: Number of devices over which the chains are spread; None: one.

    Returns:
        Draws of the learned rows and each episode's log likelihood under each draw. `converged`
        says that no R-hat, of a row's cell or of the total log likelihood, reaches 1.05; of rows
        whose draws are not kept, no split R-hat.

    Raises:
        ValueError: If devices or chains do not fit, or `keep_rows` names a table or context that
            there is not.
    """
    mesh = make_mesh(devices)
    check_chains(num_chains, mesh)
    kept = _kept_rows(bound, keep_rows)
    layout = lay_out(bound)
    channels = laid_channels(bound, layout, dtype)
    problem, program = prepare(bound, layout, dtype, channels=channels)
    problem = place(problem, mesh)
    chain_keys = jax.vmap(jax.random.fold_in, (None, 0))(
        jax.random.key(seed), jnp.arange(num_chains)
    )
    chain_keys = place(chain_keys, mesh, SPLIT)
    states = _start(bound, layout, program.families, channels, seed, num_chains, dtype)
    kept_rows = None
    parts = np.array([num_samples])
    if kept is not None:
        kept_rows = place({name: jnp.asarray(rows) for name, rows in kept.items()}, mesh)
        parts = part_lengths(num_samples)
    sizes = (num_chains, num_samples)
    record = _nothing_kept(bound, problem, program, channels, kept, len(parts), sizes, dtype)
    first = 0
    if checkpoint.saved is not None:
        first = int(checkpoint.saved.array("iterations"))
        states = checkpoint.saved.tree("states", states)
        record = _restored(record, checkpoint.saved)
    problem = problem._replace(landmarks=_laid_landmarks(record.landmarks, bound, mesh))
    states = place(states, mesh, SPLIT)
    # A call is all warmup or all draws; with moments, all draws of one part.
    ends = [num_warmup, *(num_warmup + np.cumsum(parts)).tolist()]
    with progress_line(ends[-1], "gibbs", progress, first) as line:
        while first < ends[-1]:
            stop = min(first + ITERATIONS_PER_CALL, next(end for end in ends if end > first))
            states, *found = advance(
                chain_keys,
                states,
                problem,
                *place((np.asarray(first), np.asarray(stop), np.asarray(num_warmup)), mesh),
                program,
                kept_rows,
                mesh,
            )
            everywhere, votes, moments, draws = gather((states, *found), mesh)
            if first >= num_warmup:
                now = slice(first - num_warmup, stop - num_warmup)
                _keep(record, moments, draws, now, parts)
            else:
                reached = LANDMARKS * stop // num_warmup
                if record.landmarks and reached > LANDMARKS * first // num_warmup:
                    record.landmarks[reached - 1] = np.asarray(jnp.argmax(votes, -1), np.int16)
                    laid = _laid_landmarks(record.landmarks, bound, mesh)
                    problem = problem._replace(landmarks=laid)
                jax.block_until_ready(states)
            line.update(stop - first)
            first = stop
            done = max(0, first - num_warmup)
            checkpoint.offer(
                iterations=first,
                states=everywhere,
                draws=[values[:, :done] for values in record.draws],
                moments=dict(record.moments),
                landmarks=list(record.landmarks),
            )
    return _result(bound, record, channels, kept, parts)


class Record(NamedTuple):
    """What a run keeps, on the host. It is filled in place as the run goes on.

    Attributes:
        log_likelihood: Of every draw and episode, (chain, draw, episode).
        drawn: Draws of the rows that are kept, of parameters and of channels, (chain, draw, ...).
        moved: What the collapsed moves did, by their kind, (chain, draw); empty without such moves.
        moments: Those of all rows, in parts; empty where all draws are kept.
        landmarks: Around which paths chains have been in the warmup; empty without such moves.
    """

    log_likelihood: Float[np.ndarray, "chain draw episode"]
    drawn: dict[str, Float[np.ndarray, "chain draw ..."]]
    moved: dict[str, Float[np.ndarray, "chain draw"]]
    moments: dict[str, Moments]
    landmarks: list[Int[np.ndarray, "chains ..."]]

    @property
    def draws(self) -> list[np.ndarray]:
        """All that has a value in every draw."""
        return [self.log_likelihood, *self.drawn.values(), *self.moved.values()]


def _nothing_kept(
    bound: BoundModel,
    problem: Problem,
    program: Program,
    channels: Mapping[str, LaidChannel],
    kept: Mapping[str, Int[np.ndarray, " kept"]] | None,
    num_parts: int,
    sizes: tuple[int, int],
    dtype: np.dtype,
) -> Record:
    """The record of (chains, draws) before the first iteration."""
    num_chains, _ = sizes
    shapes = {name: table.shape for name, table in bound.learned.items()}
    moments: dict[str, Moments] = {}
    if kept is not None:
        moments = {name: no_parts(num_chains, num_parts, s) for name, s in shapes.items()}
        shapes = {name: (len(kept[name]), *shape[1:]) for name, shape in shapes.items()}
    shapes |= {site: prior.shape() for site, prior in all_priors(program.families).items()}
    for name, one in channels.items():
        *rows, p, d = one.channel.shape
        shapes |= {
            f"{name}/{k}": (*rows, of, d) for k, of in zip(_CHANNEL_PARTS, (p, d), strict=True)
        }
    kinds = () if program.blocks is None else Moved._fields
    return Record(
        np.empty((*sizes, bound.demos.num_episodes), dtype),
        {name: np.empty((*sizes, *shape), dtype) for name, shape in shapes.items()},
        {f"moves_{kind}": np.empty(sizes, dtype) for kind in kinds},
        moments,
        _no_landmarks(problem, num_chains),
    )


def _restored(record: Record, saved: Saved) -> Record:
    """The record of a run that goes on from a checkpoint."""
    for into, part in zip(record.draws, saved.arrays("draws"), strict=True):
        into[:, : part.shape[1]] = part
    moments = jax.tree.unflatten(jax.tree.structure(record.moments), saved.arrays("moments"))
    return record._replace(moments=dict(moments), landmarks=[*saved.arrays("landmarks")])


def _keep(
    record: Record,
    moments: Mapping[str, Moments],
    draws: tuple[Mapping[str, Array], Info],
    now: slice,
    parts: Int[np.ndarray, " part"],
) -> None:
    """Put what a call of `advance` found where it belongs.

    Args:
        record: Where to.
        moments: Of all rows over the call's draws; only where the record has any.
        draws: Rows, parameters and channels of each draw, and its information, draws first; padded
            at the ends of their axes.
        now: Which draws they are.
        parts: How many draws each part of the moments has.
    """
    rows, info = draws
    found = [info.log_likelihood, *(rows[name] for name in record.drawn), *(info.moved or ())]
    for into, padded in zip(record.draws, found, strict=True):
        part = np.swapaxes(np.asarray(padded)[: now.stop - now.start], 0, 1)
        inside = tuple(map(slice, into.shape[2:]))
        into[:, now] = part[:, :, *inside]
    begins = np.cumsum(parts) - parts
    number = int(np.searchsorted(begins, now.start, "right")) - 1
    before, new = now.start - int(begins[number]), now.stop - now.start
    for name, whole in record.moments.items():
        own = Moments(*(part[:, : whole.mean.shape[2]] for part in moments[name]))
        record.moments[name] = merged(whole, number, before, own, new)


def _result(
    bound: BoundModel,
    record: Record,
    channels: Mapping[str, LaidChannel],
    kept: Mapping[str, Int[np.ndarray, " kept"]] | None,
    parts: Int[np.ndarray, " part"],
) -> FitResult:
    """What the record says, and whether chains agree."""
    drawn = dict(record.drawn)
    of_channels = {
        name: in_units(one, *(drawn.pop(f"{name}/{part}") for part in _CHANNEL_PARTS))
        for name, one in channels.items()
    }
    of_tables = {name: drawn.pop(name) for name in bound.learned}
    rows: dict[str, DrawnRows | MomentRows] = {}
    for name, draws in of_tables.items():
        if kept is None:
            rows[name] = DrawnRows(draws)
        else:
            mean, squares = map(np.asarray, record.moments[name])
            rows[name] = MomentRows(parts, mean, squares, kept[name], draws)
    log_likelihood = record.log_likelihood
    if channels:
        shift = np.add.reduceat(log_jacobian(bound), bound.demos.episode_starts)
        log_likelihood = log_likelihood.astype(np.float64) + shift
    total = log_likelihood.sum(-1, dtype=np.float64)
    chains = {n: one.draws if isinstance(one, DrawnRows) else one for n, one in rows.items()}
    chains |= drawn
    for name, of_channel in of_channels.items():
        chains |= {f"{name}/{k}": v for k, v in of_channel._asdict().items()}
    verdict = judge_chains(chains, log_likelihood=log_likelihood)
    return FitResult(
        rows=dict(rows),
        converged=verdict.converged,
        reason=verdict.reason,
        sample_stats={"log_likelihood_total": total} | record.moved,
        log_likelihood=log_likelihood,
        parameters={name: DrawnParameters(draws) for name, draws in drawn.items()},
        channels=of_channels,
    )


def _no_landmarks(problem: Problem, num_chains: int) -> list[Int[np.ndarray, "chains ..."]]:
    """Landmarks before there are any; no list of them without collapsed moves."""
    if problem.places is None:
        return []
    length, lanes = problem.places.cell.shape
    return [np.zeros((num_chains, length - AROUND, lanes - 1), np.int16)] * LANDMARKS


def _laid_landmarks(
    paths: Sequence[Int[np.ndarray, "chains length lanes"]], bound: BoundModel, mesh: Mesh | None
) -> Landmarks | None:
    """Landmarks as the moves lay paths."""
    if not paths:
        return None
    kinds = np.zeros((bound.demos.num_agents, max(bound.demos.num_latents)), np.int32)
    for own, classes in zip(kinds, interchangeable_classes(bound).values(), strict=True):
        for number, members in enumerate(classes):
            own[list(members)] = number
    width = paths[0].shape[2] // len(kinds)
    around = ((0, 0), (BEFORE, AROUND - BEFORE), (0, 1))
    landmarks = Landmarks(
        jnp.asarray(np.pad(np.concatenate(paths), around)),
        jnp.asarray(np.pad(np.repeat(kinds, width, 0), ((0, 1), (0, 0)))),
    )
    return place(landmarks, mesh)


def in_units(
    laid: LaidChannel,
    coefficients: Float[np.ndarray, "chain draw ..."],
    covariance: Float[np.ndarray, "chain draw ..."],
) -> DrawnChannel:
    """Draws of a channel in the units of the data."""
    return DrawnChannel(
        laid.units.coefficients(coefficients.astype(np.float64)),
        laid.units.covariance(covariance.astype(np.float64)),
    )


def _kept_rows(bound: BoundModel, keep_rows: Any) -> dict[str, Int[np.ndarray, " kept"]] | None:
    """Which contexts of each learned table have their draws kept; None: all.

    Raises:
        ValueError: If it names a table or context that there is not, or is nothing of the kind.
    """
    if keep_rows is None:
        return None
    if isinstance(keep_rows, Mapping):
        unknown = sorted(map(str, set(keep_rows) - set(bound.learned)))
        if unknown:
            raise ValueError(
                f"keep_rows: no learned table {', '.join(unknown)}; there are "
                f"{', '.join(bound.learned)}"
            )
        return {
            name: np.unique([
                check_index(f"keep_rows: context of {name}", context, len(table.contexts.rows))
                for context in np.atleast_1d(keep_rows.get(name, ())).tolist()
            ]).astype(np.int64)
            for name, table in bound.learned.items()
        }  # fmt: skip
    number = check_count("keep_rows", keep_rows, 0)
    return {
        name: np.sort(np.argsort(-context_visits(bound, name), kind="stable")[:number])
        for name in bound.learned
    }


def _start(
    bound: BoundModel,
    layout: Layout,
    families: Families,
    channels: Mapping[str, LaidChannel],
    seed: int,
    num_chains: int,
    dtype: np.dtype,
) -> State:
    """Tables of each chain drawn from the prior plus the labelled steps' counts.

    Channels are drawn alike; where labels are few, after the other steps are dealt out at random:
    their weak priors say nearly nothing of where columns are.
    """
    known = labelled_counts(bound, layout.num_rows)
    tables: dict[str, list[np.ndarray]] = {
        name: [] for name, table in bound.learned.items() if table.cpt.dirichlet_rows
    }
    moving = []
    points: dict[str, list[ChannelPoint]] = {name: [] for name in channels}
    sums = labelled_statistics(bound, channels, layout, dtype)
    doubtful = is_doubtful(bound)
    for chain in range(num_chains):
        generator = np.random.default_rng([seed, chain])
        for name, drawn in tables.items():
            drawn.append(dirichlet_draws(generator, _prior(bound, layout, name) + known[name]))
        if families:
            moving.append(first_moving(families, generator, dtype))
        if doubtful and channels:
            sums = dealt_statistics(bound, channels, layout, dtype, generator)
        for name, own in channels.items():
            points[name].append(matrix_normal_draws(generator, *updated_normals(own, sums[name])))
    tiny = np.finfo(dtype).tiny
    return State(
        {
            name: on_device(np.log(np.maximum(np.stack(drawn), tiny)), dtype)
            for name, drawn in tables.items()
        },
        jax.tree.map(lambda *chains: jnp.stack(chains), *moving) if moving else None,
        {
            name: (
                with_padding(np.stack([one.coefficients for one in drawn]), channels[name], dtype),
                with_padding(np.stack([one.covariance for one in drawn]), channels[name], dtype),
            )
            for name, drawn in points.items()
        },
    )


def with_padding(
    values: Float[np.ndarray, "chains contexts ..."], laid: LaidChannel, dtype: np.dtype
) -> Array:
    """Values of all chains, the last context again and again in padding."""
    index = np.minimum(np.arange(len(laid.steps.prior.degrees)), values.shape[1] - 1)
    return jnp.asarray(values[:, index], dtype)


def _prior(bound: BoundModel, layout: Layout, name: str) -> Float[np.ndarray, "padded ..."]:
    table = bound.tables[name]
    return pad_rows(central_concentration(table), layout.num_rows[name], 1.0)


def prepare(
    bound: BoundModel,
    layout: Layout,
    dtype: np.dtype,
    collapsed: bool | None = None,
    channels: Mapping[str, LaidChannel] | None = None,
) -> tuple[Problem, Program]:
    """The arrays of a fit, and what is to be done with them.

    Args:
        bound: The model on its data.
        layout: How its steps are laid.
        dtype: float32 or float64.
        collapsed: Whether paths are moved with the rows integrated out as well; None: where a
            concentration is so small that paths would hardly move otherwise.
        channels: The continuous channels as they are laid; None: without any.
    """
    demos = bound.demos
    log_fixed = {
        name: pad_rows(log_rows(table.prior_mean()), layout.num_rows[name], 0.0)
        for name, table in bound.tables.items()
        if not table.learned
    }
    episode = np.repeat(np.arange(demos.num_episodes, dtype=np.int32), demos.episode_lengths)
    problem = Problem(
        prior={
            name: on_device(_prior(bound, layout, name), dtype)
            for name, table in bound.learned.items()
            if not table.parametric
        },
        log_fixed={name: on_device(rows, dtype) for name, rows in log_fixed.items()},
        steps=tuple(jax.tree.map(jnp.asarray, layout.index[agent]) for agent in demos.agents),
        episode=on_device(spread(episode, layout.lanes, rounded_up(demos.num_episodes)), np.int32),
        family_data=family_data(bound, layout, dtype)[1],
        channels={name: one.steps for name, one in (channels or {}).items()},
    )
    sites = tuple(layout.sites[agent] for agent in demos.agents)
    program = Program(sites, rounded_up(demos.num_episodes), parametric_sites(bound))
    if bound.channels:
        names = tuple(
            bound.channels[agent].name if agent in bound.channels else "" for agent in demos.agents
        )
        whole = tuple(one.name for one in bound.channels.values() if one.is_whole)
        program = program._replace(channels=names, whole=whole)
    if not bound.learned or not (small_concentrations(bound) if collapsed is None else collapsed):
        return problem, program
    shapes = {
        name: (layout.num_rows[name], *table.shape[1:]) for name, table in bound.tables.items()
    }
    shapes |= {name: rows.shape for name, rows in log_fixed.items()}
    sticky = {
        name: _sticky(table)
        for name, table in bound.tables.items()
        if table.contexts.role == "transition"
    }
    functions = {f.name for f in program.families if not f.cpt.dirichlet_rows}
    learned = set(bound.learned) - functions
    contexts = {name: table.contexts.rows for name, table in bound.tables.items()}
    places, stretches, blocks = lay_places(
        shapes, learned, sites, problem.steps, contexts, sticky, dtype
    )
    problem = problem._replace(places=places, stretches=stretches)
    return problem, program._replace(blocks=blocks)


def _sticky(table: Table) -> Bool[np.ndarray, " rows"]:
    """Under which rows of a transition table latents mostly stay what they are, a priori."""
    mean = table.prior_mean()
    if len(mean) == 0:  # nothing moves: any row may be asked for
        return np.ones(1, bool)
    return np.asarray((np.diagonal(mean, axis1=1, axis2=2) > _STICKY).all(1))
