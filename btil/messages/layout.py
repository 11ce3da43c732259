"""A bound model laid out for message passing: where each step looks, lane by lane."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float, Int

from btil.demonstrations import Demonstrations
from btil.messages.lanes import pack_lanes, spread
from btil.models.team import BoundModel
from btil.numerics.precision import on_device
from btil.numerics.rounding import rounded_up


class LaneIndex(NamedTuple):
    """Where the steps of one agent look in its tables, laid into lanes.

    Attributes:
        policy: Cell (row * actions + action) of the policy table; past the end where padding.
        transition: Row of the stacked transition, initial and padding tables by which each step's
            latent came about.
        label: Known latent, or -1.
        start: True at the first step of an episode or of a stay, and in padding.
        real: False in padding, and where the agent is away.
        log_weights: Log of p(annotation | latent) up to a factor; None without such.
        unseen: Moves over which an action is summed out; None without any. Their rows, in this
            order, stand behind that of padding.
    """

    policy: Int[Array, "length lanes"]
    transition: Int[Array, "length lanes"]
    label: Int[Array, "length lanes"]
    start: Bool[Array, "length lanes"]
    real: Bool[Array, "length lanes"]
    log_weights: Float[Array | np.ndarray, "length lanes latents"] | None = None
    unseen: "UnseenRows | None" = None


class UnseenRows(NamedTuple):
    """Rows of the tables over which moves with an unseen action are summed.

    Attributes:
        policy: Row of the policy table.
        transition: Row of the transition table for each action.
    """

    policy: Int[Array | np.ndarray, " moves"]
    transition: Int[Array | np.ndarray, "moves actions"]


@dataclass(frozen=True, eq=False)
class Layout:
    """A bound model laid out for message passing.

    Attributes:
        lanes: Row of the demonstrations at each place, -1 in padding.
        index: Per agent.
        sites: Per agent, the names of its policy, transition and initial tables.
        num_rows: Rows of each table, rounded up to a coarse grid so that programs are shared.
    """

    lanes: Int[np.ndarray, "length lanes"]
    index: dict[str, LaneIndex]
    sites: dict[str, tuple[str, str, str]]
    num_rows: dict[str, int]


def lay_out(bound: BoundModel, coarse: bool = False, num_devices: int = 1) -> Layout:
    """Lay the steps of all agents into lanes.

    Args:
        bound: The model on its data.
        coarse: Round shapes up to powers of two, small ones to 64. A fit wants little padding, as
            it runs many times over; questions about ever new episodes want few programs.
        num_devices: Over how many devices the lanes are to be split evenly.

    Returns:
        The layout; each is made once and kept by the bound model.
    """
    if (coarse, num_devices) not in bound.kept:
        bound.kept[coarse, num_devices] = _laid_out(bound, coarse, num_devices)
    return bound.kept[coarse, num_devices]


def _laid_out(bound: BoundModel, coarse: bool, num_devices: int) -> Layout:
    demos = bound.demos
    heights = {"smallest": 64, "per_octave": 1} if coarse else {}
    lanes = pack_lanes(demos.episode_lengths, **heights, multiple_of=num_devices)
    num_rows = {
        name: rounded_up(len(table.contexts.rows), *((64, 1) if coarse else (1, 4)))
        for name, table in bound.tables.items()
    }
    index, sites = {}, {}
    for position, agent in enumerate(demos.agents):
        tables = bound.sites(agent)
        num_policy, num_transition, num_initial = (num_rows[name] for name in tables)
        actions = max(demos.num_actions[position], 1)
        rows = bound.rows[agent]
        arrived = rows.transition.copy()
        begins = demos.stays[position]
        arrived[begins] = num_transition + rows.initial
        padding = num_transition + num_initial
        unseen = None
        if rows.unseen is not None:
            arrived[rows.unseen.step] = padding + 1 + np.arange(len(rows.unseen.step))
            unseen = UnseenRows(
                on_device(rows.unseen.policy, np.int32), on_device(rows.unseen.transition, np.int32)
            )
        there = demos.present[:, position]
        arrived[~there] = padding
        start = ~there
        start[begins] = True
        seen = demos.actions[:, position] >= 0
        cells = rows.policy * actions + demos.actions[:, position]
        index[agent] = LaneIndex(
            policy=_indices(
                np.where(seen, cells, num_policy * actions), lanes, num_policy * actions
            ),
            transition=_indices(arrived, lanes, padding),
            label=_indices(demos.latents[:, position], lanes, -1),
            start=on_device(spread(start, lanes, True), bool),
            real=on_device(spread(there, lanes, False), bool),
            log_weights=_log_weights(demos, agent, lanes),
            unseen=unseen,
        )
        sites[agent] = tables
    return Layout(lanes, index, sites, num_rows)


def _log_weights(
    demos: Demonstrations, agent: str, lanes: Int[np.ndarray, "length lanes"]
) -> Float[np.ndarray, "length lanes latents"] | None:
    # On the host in double precision: of which type they are there is for each program to say.
    weights = demos.latent_weights.get(agent)
    if weights is None:
        return None
    return np.stack([spread(column, lanes, 0) for column in log_rows(weights).T], axis=-1)


def _indices(
    values: Int[np.ndarray, " steps"], lanes: Int[np.ndarray, "length lanes"], fill: int
) -> Int[Array, "length lanes"]:
    return on_device(spread(values, lanes, fill), np.int32)


def pad_rows(
    rows: Float[np.ndarray, "rows ..."], num_rows: int, fill: float
) -> Float[np.ndarray, "padded ..."]:
    """Rows followed by constant rows that nothing looks at."""
    padding = np.full((num_rows - len(rows), *rows.shape[1:]), fill, rows.dtype)
    return np.concatenate([rows, padding])


def gather(in_lanes: np.ndarray, lanes: Int[np.ndarray, "length lanes"]) -> np.ndarray:
    """Back from lanes to the rows of the demonstrations; axes: (length, ..., lanes)."""
    real = lanes >= 0
    values = np.moveaxis(np.asarray(in_lanes), -1, 1)[real]
    flat = np.empty_like(values)
    flat[lanes[real]] = values
    return flat


def log_rows(probabilities: Float[np.ndarray, "rows ..."]) -> Float[np.ndarray, "_ ..."]:
    """Logs of given rows, zeros to -inf; a table of no rows becomes one uniform row.

    The uniform row stands in where nothing is looked up (episodes of one step have no
    transition): padding may point at it.
    """
    if len(probabilities) == 0:
        shape = (1, *probabilities.shape[1:])
        return np.full(shape, -np.log(probabilities.shape[-1]))
    with np.errstate(divide="ignore"):
        return np.log(probabilities)
