r"""Continuous channels laid out for message passing: what each step says, and sums over steps.

Steps lie in *blocks* of one context and one pattern of cells that were seen, so that both
directions are products of small matrices, many at once: the log density of a step is quadratic in
a = (u, y) (`btil.numerics.matrix_normal.Kernel`), and all that is kept of the steps are sums of
a a^T.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from btil.models.emission import (
    Channel,
    Groups,
    Normals,
    Observed,
    Units,
    groups_of,
    steps_of_groups,
)
from btil.numerics.matrix_normal import Hyper, Kernel, Statistics, completed, completion
from btil.numerics.precision import on_device
from btil.numerics.rounding import rounded_up

# Steps of a block, at most and at least.
_MOST_STEPS, _FEWEST_STEPS = 128, 8


class ChannelData(NamedTuple):
    """The steps of an agent's channel.

    Attributes:
        values: a = (u, y) of each step, 0 where not seen and in padding.
        real: 0 in padding.
        group: Of each block its context and pattern, as one number.
        context: Context of each group.
        seen: Which columns were seen in each group.
        place: For each place of each lane its step, past the last where it says nothing.
        source: For each step its place, counted lane by lane along the steps.
    """

    values: Float[Any, "blocks size pd"]
    real: Float[Any, "blocks size"]
    group: Int[Any, " blocks"]
    context: Int[Any, " groups"]
    seen: Float[Any, "groups d"]
    place: Int[Any, "length lanes"]
    source: Int[Any, "blocks size"]


class ChannelSteps(NamedTuple):
    """A channel ready for a fit.

    Attributes:
        data: Its steps.
        prior: Of every context and latent, contexts padded.
    """

    data: ChannelData
    prior: Hyper


class Room(NamedTuple):
    """Sizes to which a channel's steps are padded.

    Attributes:
        size: Steps of a block.
        blocks: Number of blocks.
        groups: Number of groups.
    """

    size: int
    blocks: int
    groups: int


def block_size(steps_of_groups: Sequence[int]) -> int:
    """Steps of a block: about as many as groups have, given how many these have."""
    typical = int(np.median(steps_of_groups)) if len(steps_of_groups) else 1
    return int(np.clip(1 << (typical - 1).bit_length(), _FEWEST_STEPS, _MOST_STEPS))


def room_for(steps_of_groups: Sequence[int], size: int) -> Room:
    """The room that groups of so many steps take."""
    blocks = sum(-(-number // size) for number in steps_of_groups)
    return Room(size, blocks, len(steps_of_groups))


def lay_channel(
    channel: Channel,
    units: Units,
    lanes: Int[np.ndarray, "length lanes"],
    dtype: np.dtype | None = None,
) -> ChannelSteps:
    """Lay the steps of a channel into blocks, and its prior beside them.

    Args:
        channel: The channel on its data.
        units: In which the numbers are.
        lanes: Row of the demonstrations at each place of the lanes, -1 in padding.
        dtype: Floating-point type; None: NumPy arrays of double precision.
    """
    groups = groups_of(channel)
    sizes = np.bincount(groups.number[groups.number >= 0]).tolist()
    room = room_for(sizes, block_size(sizes))
    room = room._replace(blocks=rounded_up(room.blocks, 1, 4), groups=rounded_up(room.groups, 1, 4))
    data = lay_steps(channel.observed, groups, units, lanes, room)
    contexts = rounded_up(len(channel.contexts), 1, 4)
    made: Any = [
        np.broadcast_to(part, (contexts, *part.shape[1:])) for part in prior_inside(channel, units)
    ]
    laid = ChannelSteps(data, Hyper(*made))
    if dtype is None:
        return laid
    return jax.tree.map(
        lambda leaf: on_device(leaf, dtype if leaf.dtype.kind == "f" else np.int32), laid
    )


def prior_inside(channel: Channel, units: Units) -> Normals:
    """The prior of a context in the units of a fit, with an axis of one for contexts."""
    return units.inside(Normals(*(part[:1] for part in channel.prior())))


def lay_steps(
    observed: Observed,
    groups: Groups,
    units: Units,
    lanes: Int[np.ndarray, "length lanes"],
    room: Room,
) -> ChannelData:
    """Lay steps into blocks.

    Args:
        observed: What they hold.
        groups: To which context and pattern each belongs.
        units: In which the numbers are.
        lanes: As in `lay_channel`.
        room: How many blocks and groups there are, with padding.
    """
    size = room.size
    number_of_steps = len(groups.number)
    blocks, of_block = [], []
    for number, steps in enumerate(steps_of_groups(groups.number, len(groups.context))):
        for begin in range(0, len(steps), size):
            block = np.full(size, -1, np.int64)
            part = steps[begin : begin + size]
            block[: len(part)] = part
            blocks.append(block)
            of_block.append(number)
    rows = np.full((room.blocks, size), -1, np.int64)
    group = np.zeros(room.blocks, np.int64)
    if blocks:
        rows[: len(blocks)] = blocks
        group[: len(blocks)] = of_block
    real = rows >= 0
    inputs = np.where(np.isfinite(observed.inputs), observed.inputs, 0.0)
    known = np.isfinite(observed.values)
    a = units.steps(inputs, np.where(known, observed.values, 0.0))
    p, d = inputs.shape[1], known.shape[1]
    a[:, p:] = np.where(known, a[:, p:], 0.0)
    context, seen = np.zeros(room.groups, np.int64), np.ones((room.groups, d))
    context[: len(groups.context)], seen[: len(groups.seen)] = groups.context, groups.seen
    step_place = np.full(number_of_steps + 1, rows.size, np.int64)
    step_place[rows[real]] = np.flatnonzero(real)
    lane_place = np.zeros(number_of_steps, np.int64)
    within = lanes >= 0
    lane_place[lanes[within]] = np.flatnonzero(within)
    return ChannelData(
        values=np.where(real[..., None], a[rows], 0.0),
        real=real.astype(np.float64),
        group=group.astype(np.int32),
        context=context.astype(np.int32),
        seen=seen,
        place=step_place[lanes].astype(np.int32),
        source=np.where(real, lane_place[rows], 0).astype(np.int32),
    )


def of_groups(tree: Hyper, data: ChannelData) -> Hyper:
    """What belongs to contexts, for the groups; patterns with an axis for the latents."""
    return jax.tree.map(lambda leaf: leaf[data.context], tree)


def patterns(data: ChannelData, latents: int) -> Float[Array, "groups latents d"]:
    """Which columns were seen in each group, once for every latent."""
    groups, d = data.seen.shape
    return jnp.broadcast_to(data.seen[:, None], (groups, latents, d))


def log_evidence(kernel: Kernel, data: ChannelData) -> Float[Array, "length latents lanes"]:
    """What every step says of its latent, laid into lanes; 0 where it says nothing.

    Args:
        kernel: Of every group and latent.
        data: The steps.
    """
    white = jnp.einsum("bsi,bkij->bksj", data.values, kernel.weights[data.group])
    logs = kernel.constant[data.group][..., None] - 0.5 * jnp.sum(white**2, axis=-1)
    flat = jnp.swapaxes(logs, 1, 2).reshape(-1, logs.shape[1])
    flat = jnp.concatenate([flat, jnp.zeros_like(flat[:1])])
    return jnp.swapaxes(flat[data.place], 1, 2)


def sums_of_groups(marginal: Float[Array, "length latents lanes"], data: ChannelData) -> Statistics:
    """Sums over the steps of each group, weighted by each latent's probability."""
    weights = jnp.swapaxes(marginal, 1, 2).reshape(-1, marginal.shape[1])
    weights = weights[data.source] * data.real[..., None]
    weighted = jnp.swapaxes(weights, 1, 2)[..., None] * data.values[:, None]
    outer = jnp.einsum("bksi,bsj->bkij", weighted, data.values)
    groups = len(data.context)
    count = jax.ops.segment_sum(jnp.sum(weights, axis=1), data.group, num_segments=groups)
    return Statistics(count, jax.ops.segment_sum(outer, data.group, num_segments=groups))


def sums_of_contexts(by_group: Statistics, data: ChannelData, contexts: int) -> Statistics:
    """Sums over groups, by context."""
    return jax.tree.map(
        lambda leaf: jax.ops.segment_sum(leaf, data.context, num_segments=contexts), by_group
    )


def expected_statistics(
    marginal: Float[Array, "length latents lanes"],
    data: ChannelData,
    hyper: Hyper,
    whole: bool,
) -> Statistics:
    """Expected sums by context under q(latents, missing cells).

    Args:
        marginal: q(x_t = k) of every step.
        data: The steps.
        hyper: The q of coefficients and covariances under which `marginal` is optimal.
        whole: Whether no cell is missing.
    """
    sums = sums_of_groups(marginal, data)
    if not whole:
        own = of_groups(hyper, data)
        spread = own.scale / own.degrees[..., None, None]
        given = completion(own.location, spread, patterns(data, marginal.shape[1]))
        sums = completed(sums, given)
    return sums_of_contexts(sums, data, len(hyper.degrees))


def drawn_statistics(
    one_hot: Float[Array, "length latents lanes"],
    noise: Float[Array, "blocks size d"],
    data: ChannelData,
    location: Float[Array, "contexts latents p d"],
    covariance: Float[Array, "contexts latents d d"],
) -> Statistics:
    """Sums by context along paths, missing cells drawn given all else.

    Args:
        one_hot: The path, 1 at its latents.
        noise: Standard normal draws.
        data: The steps.
        location: The coefficients.
        covariance: The covariances.
    """
    latents = one_hot.shape[1]
    given = completion(location[data.context], covariance[data.context], patterns(data, latents))
    d = noise.shape[-1]
    # Zero rows and columns stay zero: a root by eigenvalues takes what Cholesky's would not.
    values, vectors = jnp.linalg.eigh(given.covariance)
    root = vectors * jnp.sqrt(jnp.maximum(values, 0.0))[..., None, :]
    missing = (1.0 - patterns(data, latents))[..., None]
    root = root * missing
    filled = jnp.einsum("bsi,bkij->bksj", data.values, given.fill[data.group])
    added = jnp.einsum("bsi,bkji->bksj", noise, root[data.group])
    filled = filled.at[..., -d:].add(added)
    weights = jnp.swapaxes(one_hot, 1, 2).reshape(-1, latents)[data.source] * data.real[..., None]
    weights = jnp.swapaxes(weights, 1, 2)
    outer = jnp.einsum("bksi,bksj->bkij", filled * weights[..., None], filled)
    groups = len(data.context)
    by_group = Statistics(
        jax.ops.segment_sum(jnp.sum(weights, axis=2), data.group, num_segments=groups),
        jax.ops.segment_sum(outer, data.group, num_segments=groups),
    )
    return sums_of_contexts(by_group, data, len(location))
