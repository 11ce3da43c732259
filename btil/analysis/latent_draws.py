"""Latents under many draws of the tables: how probable each is, and paths drawn from them."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from btil.messages.layout import (
    LaneIndex,
    Layout,
    gather,
    lay_out,
    log_rows,
)
from btil.messages.smoother import (
    filter_lanes,
    potentials,
    sample_paths,
    smooth,
)
from btil.models.draws import DrawnTables
from btil.models.emission import step_log_density
from btil.models.team import BoundModel, likelihood_name
from btil.numerics.precision import precision
from btil.posterior.beliefs import Posterior, per_agent
from btil.posterior.posterior import TeamPosterior

# Draws whose messages are held at once: bounds the memory.
_AT_ONCE = 64

LogTables = tuple[Any, Any, Any]


def by_batches(function: Callable[[Any], Array], inputs: Any) -> Float[np.ndarray, "draws ..."]:
    """A batched program on many draws, 64 at a time: one program, whatever their number."""
    number = len(jax.tree.leaves(inputs)[0])
    results = []
    for first in range(0, number, _AT_ONCE):
        chosen = np.minimum(np.arange(first, first + _AT_ONCE), number - 1)
        results.append(np.asarray(function(jax.tree.map(lambda leaf, at=chosen: leaf[at], inputs))))
    return np.concatenate(results)[:number]


@jax.jit
def _marginals_at(
    log_tables: LogTables, index: LaneIndex, place: Int[Array, "steps 2"]
) -> Float[Array, "draws steps latents"]:
    def one(tables: LogTables) -> Array:
        filtered = filter_lanes(potentials(*tables, index))
        return smooth(filtered, index.start).marginal[place[:, 0], :, place[:, 1]]

    return jax.vmap(one)(log_tables)


def smoothed_under_draws(
    posterior: Posterior,
    bound: BoundModel,
    rows: Mapping[str, Float[np.ndarray, "draws ..."]],
    steps: Mapping[str, Int[np.ndarray, " steps"]],
) -> dict[str, Float[np.ndarray, "draws steps latents"]]:
    """P(x_t | episode, tables) of chosen steps under each of many draws of the tables.

    Args:
        posterior: Tells the precision.
        bound: The model on the episodes; their labels are conditioned on.
        rows: Draws of all tables, {site: (draws, contexts, ...)}.
        steps: {agent: steps}; agents that are left out are not looked at.
    """
    layout = lay_out(bound, coarse=True)
    placed = np.zeros((bound.demos.num_steps, 2), np.int32)
    real = layout.lanes >= 0
    placed[layout.lanes[real]] = np.argwhere(real)
    found = {}
    with precision(posterior.dtype) as dtype:
        for agent, chosen in steps.items():
            logs = [padded_logs(rows[s], layout.num_rows[s], dtype) for s in layout.sites[agent]]
            program = partial(
                _marginals_at, index=layout.index[agent], place=jnp.asarray(placed[chosen])
            )
            found[agent] = by_batches(program, tuple(logs))
    return found


def padded_logs(
    rows: Float[np.ndarray, "draws rows ..."], num_rows: int, dtype: np.dtype
) -> Float[np.ndarray, "draws padded ..."]:
    """Logs of many draws of rows, with rows behind that nothing looks at."""
    logs = log_rows(rows).astype(dtype)
    padding = np.zeros((len(logs), num_rows - logs.shape[1], *logs.shape[2:]), dtype)
    return np.concatenate([logs, padding], axis=1)


@jax.jit
def _path(key: Key[Array, ""], tables: Any, index: LaneIndex) -> Int[Array, "length lanes"]:
    return sample_paths(key, filter_lanes(tables.potentials(index)), index.start)


def draw_latents(
    posterior: Posterior,
    bound: BoundModel,
    layout: Layout,
    rows: Mapping[str, Float[np.ndarray, "..."]],
    key: Key[Array, ""],
) -> Int[np.ndarray, "steps agents"]:
    """One draw of all latents given actions, columns, labels and the tables; -1 while away.

    Labels stay as they are.

    Args:
        posterior: Tells the precision.
        bound: The model on the episodes.
        layout: `lay_out(bound, coarse=True)`.
        rows: One draw of all tables, {site: (contexts, ...)}, and of what else was measured.
        key: Random key.
    """
    latents, there = np.array(bound.demos.latents), bound.demos.present
    if (latents[there] >= 0).all():
        return np.where(there, latents, -1)
    keys = (jax.random.fold_in(key, position) for position in range(len(layout.sites)))
    with precision(posterior.dtype) as dtype:
        paths = per_agent(
            lambda tables, index: _path(next(keys), tables, index), layout, rows, dtype
        )
    for position, agent in enumerate(bound.demos.agents):
        latents[:, position] = gather(np.asarray(paths[agent]), layout.lanes)
    return np.where(there, latents, -1)


def drawn_rows(
    posterior: Posterior, bound: BoundModel, num_draws: int, seed: int
) -> Iterator[tuple[DrawnTables, dict[str, Any]]]:
    """Posterior draws of all tables, each with its rows in the contexts of other episodes.

    Beside the rows stands what continuous columns say under the draw (`likelihood_name`).
    """
    assert isinstance(posterior, TeamPosterior), "those without tables are refused before"
    for tables in posterior.drawn_tables(num_draws, seed):
        rows = {n: tables.rows(n, table.contexts) for n, table in bound.tables.items()}
        for agent, channel in bound.channels.items():
            drawn = tables.channels[agent].rows(channel.contexts)
            rows[likelihood_name(agent)] = step_log_density(channel, *drawn)
        yield tables, rows
