"""Continuous channels of episodes that are learned from in batches."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from btil.inference.channels import divergence_on_host, updated_on_host
from btil.messages.channels import (
    ChannelSteps,
    Room,
    block_size,
    expected_statistics,
    lay_steps,
    prior_inside,
    room_for,
)
from btil.models.emission import Channel, Groups, Normals, Observed, Units, groups_of
from btil.models.team import BoundModel
from btil.numerics.matrix_normal import Hyper, Statistics
from btil.numerics.precision import on_device

Chosen = Int[np.ndarray, " chosen"]


class ChannelRows(NamedTuple):
    """What some steps hold for a channel.

    Attributes:
        group: To which of its groups each belongs; -1 where it says nothing.
        inputs: Covariates, NaN where unknown.
        values: Columns, NaN where unknown.
    """

    group: Int[np.ndarray, " steps"]
    inputs: Float[np.ndarray, "steps p"]
    values: Float[np.ndarray, "steps d"]


class ChannelSource(NamedTuple):
    """A channel of episodes to draw batches from.

    Attributes:
        channel: The channel with the contexts of all episodes; its steps may be an excerpt.
        units: In which the numbers of the fit are.
        context: Context of each group of steps.
        seen: Which columns were seen in each group.
        cells: How many cells of each column were seen, in all episodes.
        read: The steps of some episodes, one episode after the other.
    """

    channel: Channel
    units: Units
    context: Int[np.ndarray, " groups"]
    seen: Float[np.ndarray, "groups d"]
    cells: Int[np.ndarray, " d"]
    read: Callable[[Chosen], ChannelRows]

    @property
    def whole(self) -> bool:
        """Whether every step that says something was seen in all columns."""
        return bool(self.seen.all())

    @property
    def prior(self) -> Normals:
        """The prior of a context in the units of the fit, with an axis of one for contexts."""
        return prior_inside(self.channel, self.units)

    @property
    def log_jacobian(self) -> float:
        """What turns the log density of all steps in the units of the fit into that of the data."""
        return -float(self.cells @ np.log(self.units.spread))


def sources_in_memory(
    bound: BoundModel, rows_of: Callable[[Chosen], Int[np.ndarray, " steps"]]
) -> dict[str, ChannelSource]:
    """The channels of a model on its demonstrations.

    Args:
        bound: The model.
        rows_of: The steps of some episodes.
    """
    return {agent: _source(channel, rows_of) for agent, channel in bound.channels.items()}


def _source(
    channel: Channel, rows_of: Callable[[Chosen], Int[np.ndarray, " steps"]]
) -> ChannelSource:
    groups, observed = groups_of(channel), channel.observed

    def read(chosen: Chosen) -> ChannelRows:
        rows = rows_of(chosen)
        return ChannelRows(groups.number[rows], observed.inputs[rows], observed.values[rows])

    cells = channel.seen.sum(0)
    seen = groups.seen.astype(np.float64)
    return ChannelSource(channel, channel.units(), groups.context, seen, cells, read)


# ---------------------------------------------------------------------- batches


def contexts_read(source: ChannelSource, rows: ChannelRows) -> Int[np.ndarray, " read"]:
    """The contexts in which some steps say something, in order."""
    return np.unique(source.context[_groups_read(source, rows)])


def _groups_read(source: ChannelSource, rows: ChannelRows) -> Int[np.ndarray, " read"]:
    seen = np.zeros(len(source.context), bool)
    seen[rows.group[rows.group >= 0]] = True
    return np.flatnonzero(seen)


def _steps_of_groups(rows: ChannelRows, groups: int) -> Int[np.ndarray, " read"]:
    counts = np.bincount(rows.group[rows.group >= 0], minlength=groups)
    return counts[counts > 0]


def size_of_blocks(source: ChannelSource, trials: list[ChannelRows]) -> int:
    """Steps of a block, as some trial batches tell."""
    sizes = [_steps_of_groups(rows, len(source.context)) for rows in trials]
    return block_size(np.concatenate(sizes).tolist())


def needed_room(source: ChannelSource, rows: ChannelRows, size: int) -> Room:
    """The room that some steps take."""
    return room_for(_steps_of_groups(rows, len(source.context)).tolist(), size)


def lay_batch(
    source: ChannelSource,
    rows: ChannelRows,
    contexts: Int[np.ndarray, " read"],
    lanes: Int[np.ndarray, "length lanes"],
    room: Room,
    dtype: np.dtype,
) -> ChannelSteps:
    """Lay the steps of a batch into blocks.

    Args:
        source: The channel.
        rows: The steps.
        contexts: The contexts that they read, which are numbered anew in this order.
        lanes: The step at each place of the lanes, -1 in padding.
        room: How much there is.
        dtype: float32 or float64.
    """
    read = _groups_read(source, rows)
    number = np.append(np.full(len(source.context), -1), -1)
    number[read] = np.arange(len(read))
    group = number[rows.group]
    own = np.searchsorted(contexts, source.context[read])
    groups = Groups(group, own, source.seen[read].astype(bool))
    observed = Observed(rows.inputs, rows.values, np.flatnonzero(group >= 0))
    data = lay_steps(observed, groups, source.units, lanes, room)
    prior: Any = source.prior
    return jax.tree.map(
        lambda leaf: on_device(leaf, dtype if leaf.dtype.kind == "f" else np.int32),
        ChannelSteps(data, Hyper(*prior)),
    )


# ---------------------------------------------------------------------- sums as rows of numbers


def packed(statistics: Statistics) -> Any:
    """The sums of every context and latent as one row of numbers, on host or device."""
    number, outer = statistics
    space = np if isinstance(number, np.ndarray) else jnp
    rows = outer.reshape(*number.shape, outer.shape[-1] ** 2)
    return space.concatenate([number[..., None], rows], axis=-1)


def unpacked(rows: Any) -> Statistics:
    """The sums that `packed` has put into rows."""
    size = round((rows.shape[-1] - 1) ** 0.5)
    return Statistics(rows[..., 0], rows[..., 1:].reshape(*rows.shape[:-1], size, size))


def nothing(
    source: ChannelSource, contexts: int | None = None
) -> Float[np.ndarray, "contexts latents numbers"]:
    """Sums over no steps, in double precision; of so many contexts, None: of all."""
    of_all, latents, p, d = source.channel.shape
    return np.zeros((of_all if contexts is None else contexts, latents, 1 + (p + d) ** 2))


def divergence_of(source: ChannelSource, rows: Float[np.ndarray, "contexts latents _"]) -> float:
    """KL divergence of the posterior with such sums from the prior."""
    return divergence_on_host(source.prior, unpacked(np.asarray(rows, np.float64)))


def normals_of(source: ChannelSource, rows: Float[np.ndarray, "contexts latents _"]) -> Normals:
    """The posterior with such sums, in the units of the data."""
    sums = unpacked(np.asarray(rows, np.float64))
    prior = source.units.inside(source.channel.prior())
    return source.units.outside(updated_on_host(prior, sums))


@partial(jax.jit, static_argnames=("contexts", "whole"))
def labelled_rows(
    label: Int[Array, "length lanes"], steps: ChannelSteps, contexts: int, whole: bool
) -> Float[Array, "contexts latents numbers"]:
    """Sums over the labelled steps of a batch; missing cells are as the prior expects them.

    Args:
        label: Label at each place, -1 where there is none.
        steps: The steps.
        contexts: How many are read, with padding.
        whole: Whether no cell of the channel is missing.
    """
    prior = jax.tree.map(
        lambda leaf: jnp.broadcast_to(leaf, (contexts, *leaf.shape[1:])), steps.prior
    )
    latents = prior.degrees.shape[1]
    known = jnp.arange(latents, dtype=label.dtype)[None, :, None] == label[:, None]
    sums = expected_statistics(known.astype(prior.degrees.dtype), steps.data, prior, whole)
    return packed(sums)
