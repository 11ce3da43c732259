r"""Blocked Gibbs sampling: whole latent paths given the tables, all tables given the paths.

Each iteration of a chain

- draws the latents of every episode from P(x_0..x_h | actions, labels, tables), by a forward
  filter and backward sampling, one agent at a time (given the tables they are independent);
- draws every learned row from its conditional, Dirichlet(u + counts along the paths).

Both are exact draws, so there is nothing to tune and nothing is rejected.

References:
    Scott (2002), Bayesian methods for hidden Markov models, JASA 97, Section 2.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Key

from btil.inference.convergence import split_rhat
from btil.inference.messages import (
    LaneIndex,
    Layout,
    filter_lanes,
    lay_out,
    pad_rows,
    path_counts,
    potentials,
    sample_paths,
)
from btil.inference.mfvi import labelled_counts
from btil.inference.progress import progress_line
from btil.inference.result import DrawnRows, FitResult
from btil.models.lanes import rounded_up, spread
from btil.models.team import BoundModel
from btil.models.team_dbn import log_rows

_ITERATIONS_PER_CALL = 25
_LARGEST_RHAT = 1.05

Sites = tuple[tuple[str, str, str], ...]


class State(NamedTuple):
    """What the next iteration needs.

    Attributes:
        log_tables: Log rows of every learned site, padded as in `Layout.num_rows`.
    """

    log_tables: dict[str, Float[Array, "..."]]


class Info(NamedTuple):
    """What an iteration found.

    Attributes:
        log_likelihood: Log p(actions, labels | tables) of each episode, summed over agents, under
            the tables that the iteration started from.
    """

    log_likelihood: Float[Array, "*batch episodes"]


class Problem(NamedTuple):
    """The arrays of a fit.

    Attributes:
        prior: Dirichlet concentrations of every learned site.
        log_fixed: Log rows of the other tables.
        index: Per agent, where its steps look.
        episode: Episode of each place of each lane, past the last in padding.
    """

    prior: dict[str, Float[Array, "..."]]
    log_fixed: dict[str, Float[Array, "..."]]
    index: tuple[LaneIndex, ...]
    episode: Int[Array, "length lanes"]


def draw_log_rows(key: Key[Array, ""], concentration: Float[Array, "..."]) -> Float[Array, "..."]:
    """Logs of Dirichlet rows, floored at the log of the smallest normal number.

    Normalised in logs: at concentrations of 0.001 gamma draws underflow, their logs do not.
    """
    log_gamma = jax.random.loggamma(key, concentration)
    log_row = log_gamma - jax.nn.logsumexp(log_gamma, axis=-1, keepdims=True)
    return jnp.maximum(log_row, jnp.log(jnp.finfo(log_row.dtype).tiny))


def step(
    key: Key[Array, ""], state: State, problem: Problem, sites: Sites, num_episodes: int
) -> tuple[State, Info]:
    """One iteration: all latent paths, then all rows.

    Args:
        key: Random key of this iteration.
        state: The tables.
        problem: The fit's arrays.
        sites: Per agent, the names of its policy, transition and initial tables.
        num_episodes: Number of episodes, rounded up or not.

    Returns:
        The next tables, and the log likelihood under the given ones.
    """
    path_key, row_key = jax.random.split(key)
    tables = problem.log_fixed | state.log_tables
    concentration = dict(problem.prior)
    log_likelihood = jnp.zeros(num_episodes, next(iter(tables.values())).dtype)
    for position, (names, index) in enumerate(zip(sites, problem.index, strict=True)):
        log_policy, log_transition, log_initial = (tables[name] for name in names)
        filtered = filter_lanes(potentials(log_policy, log_transition, log_initial, index))
        log_likelihood = log_likelihood.at[problem.episode].add(
            filtered.log_normalizer, mode="drop"
        )
        paths = sample_paths(jax.random.fold_in(path_key, position), filtered, index.start)
        rows = (len(log_policy), len(log_transition), len(log_initial))
        counts = path_counts(paths, index, rows, log_policy.shape[1:])
        for name, count in zip(names, counts, strict=True):
            if name in concentration:
                prior = concentration[name]
                concentration[name] = prior + count.astype(prior.dtype)
    log_tables = {
        name: draw_log_rows(jax.random.fold_in(row_key, number), concentration[name])
        for number, name in enumerate(sorted(concentration))
    }
    return State(log_tables), Info(log_likelihood)


@jax.jit
def start(
    chain_keys: Key[Array, " chains"], concentration: dict[str, Float[Array, "..."]]
) -> State:
    """The first tables of each chain: independent draws of Dirichlet rows."""

    def one(chain_key: Key[Array, ""]) -> State:
        key = jax.random.fold_in(chain_key, 0)
        return State(
            {
                name: draw_log_rows(jax.random.fold_in(key, number), concentration[name])
                for number, name in enumerate(sorted(concentration))
            }
        )

    return jax.vmap(one)(chain_keys)


@partial(jax.jit, static_argnames=("sites", "num_episodes"))
def advance(
    chain_keys: Key[Array, " chains"],
    states: State,
    problem: Problem,
    first: Int[Array, ""],
    stop: Int[Array, ""],
    sites: Sites,
    num_episodes: int,
) -> tuple[State, tuple[dict[str, Float[Array, "iteration chains ..."]], Info]]:
    """Run iterations `first` to `stop` - 1 of all chains, at most `_ITERATIONS_PER_CALL`.

    An iteration's randomness depends on its number alone, so a run may be cut anywhere. One
    program serves every cut: iterations from `stop` on are passed over.

    Args:
        chain_keys: One key per chain.
        states: Tables of all chains.
        problem: The fit's arrays.
        first: Number of the first iteration.
        stop: Number of the first iteration not to run.
        sites: As in `step`.
        num_episodes: As in `step`.

    Returns:
        The next tables; rows and log likelihood of each iteration before its update, of which the
        first `stop - first` mean something.
    """

    def run(number: Array, states: State) -> tuple[State, Any]:
        keys = jax.vmap(jax.random.fold_in, (0, None))(chain_keys, number + 1)
        following, info = jax.vmap(
            lambda key, state: step(key, state, problem, sites, num_episodes)
        )(keys, states)
        # Some machines flush exp(log tiny) to zero.
        rows = {
            name: jnp.maximum(jnp.exp(log_table), jnp.finfo(log_table.dtype).tiny)
            for name, log_table in states.log_tables.items()
        }
        return following, (rows, info)

    def pass_over(number: Array, states: State) -> tuple[State, Any]:
        nothing = jax.eval_shape(run, number, states)[1]
        return states, jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), nothing)

    def iteration(states: State, number: Array) -> tuple[State, Any]:
        return lax.cond(number < stop, run, pass_over, number, states)

    return lax.scan(iteration, states, first + jnp.arange(_ITERATIONS_PER_CALL))


def fit(
    bound: BoundModel,
    *,
    seed: int,
    progress: bool,
    dtype: np.dtype,
    num_chains: int = 4,
    num_warmup: int = 500,
    num_samples: int = 500,
) -> FitResult:
    """Sample chains side by side, each from a draw of the prior plus the labelled counts.

    Args:
        bound: The model on its data.
        seed: Seeds everything.
        progress: Whether to show a progress line.
        dtype: float32 or float64.
        num_chains: Number of chains.
        num_warmup: Iterations of each chain that are thrown away.
        num_samples: Iterations of each chain that are kept.

    Returns:
        Draws of all learned rows and each episode's log likelihood under each draw. `converged`
        says that no split R-hat, of a row's cell or of the total log likelihood, exceeds 1.05.

    Raises:
        ValueError: If an option is out of range.
    """
    if num_chains < 1 or num_samples < 1 or num_warmup < 0:
        raise ValueError(
            "num_chains and num_samples must be at least 1 and num_warmup at least 0, got "
            f"{num_chains}, {num_samples} and {num_warmup}"
        )
    num_episodes = bound.demos.num_episodes
    layout = lay_out(bound)
    problem, concentration = _prepare(bound, layout, dtype)
    sites = tuple(layout.sites[agent] for agent in bound.demos.agents)
    chain_keys = jax.vmap(jax.random.fold_in, (None, 0))(
        jax.random.key(seed), jnp.arange(num_chains)
    )
    states = start(chain_keys, concentration)
    drawn = {
        name: np.empty((num_chains, num_samples, *table.shape), dtype)
        for name, table in bound.learned.items()
    }
    log_likelihood = np.empty((num_chains, num_samples, num_episodes), dtype)
    num_iterations = num_warmup + num_samples
    with progress_line(num_iterations, "gibbs", progress) as line:
        first = 0
        while first < num_iterations:
            # Cut at the end of the warmup, so that a call is all warmup or all draws.
            end = num_warmup if first < num_warmup else num_iterations
            stop = min(first + _ITERATIONS_PER_CALL, end)
            states, (rows, info) = advance(
                chain_keys,
                states,
                problem,
                jnp.asarray(first),
                jnp.asarray(stop),
                sites,
                rounded_up(num_episodes),
            )
            if first >= num_warmup:
                kept = slice(first - num_warmup, stop - num_warmup)
                for name, into in drawn.items():
                    part = np.asarray(rows[name])[: stop - first, :, : into.shape[2]]
                    into[:, kept] = np.swapaxes(part, 0, 1)
                part = np.asarray(info.log_likelihood)[: stop - first, :, :num_episodes]
                log_likelihood[:, kept] = np.swapaxes(part, 0, 1)
            else:
                jax.block_until_ready(states)
            line.update(stop - first)
            first = stop
    total = log_likelihood.sum(-1, dtype=np.float64)
    converged, reason = judge(drawn, total)
    return FitResult(
        rows={name: DrawnRows(draws) for name, draws in drawn.items()},
        converged=converged,
        reason=reason,
        sample_stats={"log_likelihood_total": total},
        log_likelihood=log_likelihood,
    )


def judge(
    drawn: dict[str, Float[np.ndarray, "chain draw ..."]], total: Float[np.ndarray, "chain draw"]
) -> tuple[bool, str]:
    """Whether the chains agree, and a sentence that says how well.

    Args:
        drawn: Draws of every site.
        total: Log likelihood of all episodes under each draw.

    Returns:
        True if every split R-hat is at most 1.05 (constant cells have none), and the reason.
    """
    if len(total) < 2:
        return False, "one chain: R-hat compares chains, run at least two"
    if total.shape[1] < 4:
        return False, f"{total.shape[1]} draws a chain are too few for R-hat"
    largest = {"the total log likelihood": split_rhat(total)}
    largest |= {f"the rows of {name}": split_rhat(draws) for name, draws in drawn.items()}
    largest = {name: np.fmax.reduce(values, axis=None) for name, values in largest.items()}
    largest = {name: value for name, value in largest.items() if not np.isnan(value)}
    if not largest:
        return True, "every draw is the same"
    worst = max(largest, key=lambda name: largest[name])
    found = f"the largest split R-hat is {largest[worst]:.3f}, of {worst}"
    if largest[worst] <= _LARGEST_RHAT:
        return True, found
    return False, (
        f"{found}; above {_LARGEST_RHAT} the chains do not agree: run longer, or label some steps "
        "if the chains name the latents differently"
    )


def _prepare(
    bound: BoundModel, layout: Layout, dtype: np.dtype
) -> tuple[Problem, dict[str, Float[Array, "..."]]]:
    """The arrays of a fit, and the concentrations from which the chains start."""
    demos = bound.demos
    prior = {
        name: pad_rows(table.cpt.concentration(table.contexts), layout.num_rows[name], 1.0)
        for name, table in bound.learned.items()
    }
    log_fixed = {
        name: pad_rows(log_rows(table.prior_mean()), layout.num_rows[name], 0.0)
        for name, table in bound.tables.items()
        if not table.learned
    }
    episode = np.repeat(np.arange(demos.num_episodes, dtype=np.int32), demos.episode_lengths)
    problem = Problem(
        prior={name: jnp.asarray(u, dtype) for name, u in prior.items()},
        log_fixed={name: jnp.asarray(rows, dtype) for name, rows in log_fixed.items()},
        index=tuple(jax.tree.map(jnp.asarray, layout.index[agent]) for agent in demos.agents),
        episode=jnp.asarray(spread(episode, layout.lanes, rounded_up(demos.num_episodes))),
    )
    known = labelled_counts(bound, layout)
    return problem, {name: jnp.asarray(u + known[name], dtype) for name, u in prior.items()}
