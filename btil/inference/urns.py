r"""Polya urns: counts of what paths use of the tables, with the rows integrated out.

A row of concentration u, whose cells paths have used n times, has the predictive probabilities

.. math:: \frac{u_c + n_c}{\sum_{c'} u_{c'} + n_{c'}}

and many uses one after the other have the product of these, each use counting for those after it,
in whatever order.

References:
    Blackwell, MacQueen (1973), Ferguson distributions via Polya urn schemes.
"""

import itertools
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from btil.messages.layout import LaneIndex
from btil.numerics.rounding import rounded_up
from btil.numerics.special import digamma_and_remainder

# Steps of a window; padding before all lanes, and before and after them together.
WINDOW = 32
BEFORE, AROUND = WINDOW, 3 * WINDOW + 2
# Stretches that are longer than this are moved by swaps alone.
LONGEST_RUN = 48

# Lanes that share no table with those of other blocks.
Blocks = tuple[tuple[int, ...], ...]


class Places(NamedTuple):
    """Where the steps of all agents look, in one vector of all cells and one of all rows.

    The lanes of the agents stand side by side, and padding stands before and after them. A move by
    which an episode begins is one whose row does not depend on the latent before.

    Attributes:
        cell: Cell of the action, of latent 0; latent k looks `cell_stride` k further.
        cell_stride: Actions of each lane's agent.
        row: Row of the action, of latent 0; latent k looks k further.
        move: Cell of the move from latent 0 to latent 0; from k to j looks
            `move_stride` k + j further.
        move_stride: 0 where an episode begins, else the latents of the agent.
        origin: Row of the move from latent 0; from latent k `origin_stride` k further.
        origin_stride: 0 where an episode begins, else 1.
        acts: 1 where the action adds to the counts, 0 where its table is given and in padding.
        moves: Likewise of the move.
        allowed: Latents that the step may have.
        forced: Steps that begin a stretch, whatever the latents are: those that begin an episode,
            at which labels begin or end, or whose moves mostly do not stay; and padding.
        evidence: What else every step says of its latent, as a log likelihood: columns under given
            coefficients, weights of annotations. None: nothing.
    """

    cell: Int[Array, "length lanes"]
    cell_stride: Int[Array, "length lanes"]
    row: Int[Array, "length lanes"]
    move: Int[Array, "length lanes"]
    move_stride: Int[Array, "length lanes"]
    origin: Int[Array, "length lanes"]
    origin_stride: Int[Array, "length lanes"]
    acts: Float[Array, "length lanes"]
    moves: Float[Array, "length lanes"]
    allowed: Bool[Array, "length lanes latents"]
    forced: Bool[Array, "length lanes"]
    evidence: Float[Array, "length lanes latents"] | None = None


class Stretches(NamedTuple):
    """Steps that may belong together, whatever their latents are: stretches between forced steps.

    Attributes:
        number: The stretch of every step.
        feature: Of every stretch, what is known of its first step: the table of its move, its
            agent, its lane, and the contexts of its move and of its action.
        moment: A number of every step that is the same for all agents.
        free: Steps (length, lane) without label, over again until the array is full.
        long: Those in stretches that are longer than `LONGEST_RUN`; `free` where there is none.
    """

    number: Int[Array, "length lanes"]
    moment: Int[Array, "length lanes"]
    feature: Int[Array, "stretches features"]
    free: Int[Array, "some 2"]
    long: Int[Array, "some 2"]


class Urns(NamedTuple):
    """The Polya urns of all rows.

    Attributes:
        prior: Concentration of every cell; of a given table its probabilities.
        prior_rows: Sum of the concentrations of every row.
        counts: How often every cell is used.
        count_rows: How often every row is used.
    """

    prior: Float[Array, " cells"]
    prior_rows: Float[Array, " rows"]
    counts: Float[Array, " cells"]
    count_rows: Float[Array, " rows"]


class Uses(NamedTuple):
    """Which cells and rows steps use, and whether they add to them."""

    cell: Int[Array, "*shape"]
    row: Int[Array, "*shape"]
    adds: Float[Array, "*shape"]


def action_uses(places: Places, latents: Int[Array, "*shape"]) -> Uses:
    """What steps with given latents use of the policies."""
    cell = places.cell + places.cell_stride * latents
    return Uses(cell, places.row + latents, jnp.broadcast_to(places.acts, cell.shape))


def move_uses(places: Places, before: Int[Array, "*shape"], latents: Int[Array, "*shape"]) -> Uses:
    """What steps use of the transition and initial tables."""
    cell = places.move + places.move_stride * before + latents
    row = jnp.broadcast_to(places.origin + places.origin_stride * before, cell.shape)
    return Uses(cell, row, jnp.broadcast_to(places.moves, cell.shape))


def by_block(path: Uses, num_blocks: int) -> Uses:
    """Uses of (steps, lanes), those of every block in one line: (blocks, uses)."""
    return jax.tree.map(lambda leaf: leaf.T.reshape(num_blocks, -1), path)


def with_uses(urns: Urns, paths: Iterable[Uses], sign: float) -> Urns:
    """The urns with uses added, or taken out."""
    counts, count_rows = urns.counts, urns.count_rows
    for path in paths:
        counts = counts.at[path.cell].add(sign * path.adds)
        count_rows = count_rows.at[path.row].add(sign * path.adds)
    return urns._replace(counts=counts, count_rows=count_rows)


def _weights(urns: Urns, path: Uses) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Weights of the cells and of the rows that are used."""
    cells = urns.prior[path.cell] + urns.counts[path.cell]
    return cells, urns.prior_rows[path.row] + urns.count_rows[path.row]


def use_probabilities(urns: Urns, path: Uses) -> Float[Array, "*shape"]:
    """Probability of each use, none counting for others."""
    cells, rows = _weights(urns, path)
    return cells / rows


def log_polya(urns: Urns, path: Uses) -> tuple[Float[Array, "*batch"], Float[Array, "*batch"]]:
    r"""Log probability of uses (along the last axis), one after the other.

    Returns:
        The log probability if none counted for those after it, and what is gained because they
        do: :math:`\sum_t \log(1 + r_t / w_c) - \log(1 + R_t / w_s)`, r and R the earlier uses of
        the same cell and row. Small terms apart from large ones: differences keep their digits.
    """
    cells, rows = _weights(urns, path)
    uses = path.cell.shape[-1]
    pairs = (*path.cell.shape, uses)
    before = lax.broadcasted_iota(jnp.int32, pairs, len(pairs) - 1)
    earlier = before < lax.broadcasted_iota(jnp.int32, pairs, len(pairs) - 2)

    def rank(used: Int[Array, "*batch uses"]) -> Float[Array, "*batch uses"]:
        same = earlier & (used[..., :, None] == used[..., None, :])
        return jnp.sum(jnp.where(same, path.adds[..., None, :], 0.0), -1)

    fixed = jnp.log(cells) - jnp.log(rows)
    gained = jnp.log1p(rank(path.cell) / cells) - jnp.log1p(rank(path.row) / rows)
    return jnp.sum(fixed, -1), jnp.sum(jnp.where(path.adds > 0, gained, 0.0), -1)


def log_probability_change(before: Urns, after: Urns) -> Float[Array, ""]:
    r"""By how much the log probability of all uses changes with their counts.

    It is :math:`\sum_c \log\Gamma(u_c + n_c)` over all cells less the same over all rows; changes
    are summed cell by cell, from what is small where :math:`\log\Gamma` is large.
    """
    cells = _log_gamma_change(before.prior, before.counts, after.counts)
    return cells - _log_gamma_change(before.prior_rows, before.count_rows, after.count_rows)


def log_ratio_of_given(
    urns: Urns, before: Sequence[Uses], after: Sequence[Uses]
) -> Float[Array, ""]:
    """Log ratio of the probabilities of uses after and before, in tables that are given."""
    return sum(
        (
            jnp.sum(
                jnp.where(new.adds > 0, 0.0, jnp.log(urns.prior[new.cell] / urns.prior[old.cell]))
            )
            for old, new in zip(before, after, strict=True)
        ),
        jnp.zeros((), urns.prior.dtype),
    )


def _log_gamma_change(
    prior: Float[Array, " cells"], before: Float[Array, " cells"], after: Float[Array, " cells"]
) -> Float[Array, ""]:
    changed = before != after
    old, new = (jnp.where(changed, prior + counts, 1.0) for counts in (before, after))
    by = after - before
    (_, _, old_rest), (_, log_new, new_rest) = map(digamma_and_remainder, (old, new))
    change = (old - 0.5) * jnp.log1p(by / old) + by * (log_new - 1) + new_rest - old_rest
    return jnp.sum(jnp.where(changed, change, 0.0))


def _offsets(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, int]]:
    """Where the cells and the rows of each table begin, and at "" the numbers of all."""
    found, cells, rows = {}, 0, 0
    for name, shape in sorted(shapes.items()):
        found[name] = cells, rows
        cells, rows = cells + math.prod(shape), rows + math.prod(shape[:-1])
    return found | {"": (cells, rows)}


def fill_urns(
    weights: Mapping[str, Float[Array, "..."]],
    counts: Mapping[str, Float[Array, "..."]],
    places: Places,
) -> Urns:
    """The urns of all tables.

    Args:
        weights: Concentrations of every table; of a given one its probabilities.
        counts: Of those tables that paths add to.
        places: Where steps look in them.
    """
    names = sorted(weights)
    tables = [weights[name] for name in names]
    used = [counts.get(name, jnp.zeros_like(weights[name])) for name in names]
    # Where padding looks: whatever latent it has, its probability is 1.
    spare = jnp.ones(places.allowed.shape[-1], tables[0].dtype)
    return Urns(
        jnp.concatenate([*(table.ravel() for table in tables), spare]),
        jnp.concatenate([*(table.sum(-1).ravel() for table in tables), spare]),
        jnp.concatenate([*(table.ravel() for table in used), 0 * spare]),
        jnp.concatenate([*(table.sum(-1).ravel() for table in used), 0 * spare]),
    )


def counts_of(urns: Urns, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Float[Array, "..."]]:
    """Counts of every table."""
    return {
        name: urns.counts[first : first + math.prod(shapes[name])].reshape(shapes[name])
        for name, (first, _) in _offsets(shapes).items()
        if name
    }


def padded_paths(paths: Sequence[Int[Array, "length lanes"]]) -> Int[Array, "padded all_lanes"]:
    """Paths of all agents as `Places` lays their steps."""
    joined = jnp.concatenate(paths, 1)
    return jnp.pad(joined, ((BEFORE, AROUND - BEFORE), (0, 1)))


def with_evidence(
    places: Places, evidence: Sequence[Float[Array, "length lanes _"] | None]
) -> Places:
    """The places with what else the steps of each agent say of its latent."""
    if all(one is None for one in evidence):
        return places
    *_, latents = places.allowed.shape
    length = len(places.allowed) - AROUND
    width = (places.allowed.shape[1] - 1) // len(evidence)
    parts = [
        jnp.zeros((length, width, latents), places.acts.dtype)
        if one is None
        else jnp.pad(one.astype(places.acts.dtype), ((0, 0), (0, 0), (0, latents - one.shape[2])))
        for one in evidence
    ]
    around = ((BEFORE, AROUND - BEFORE), (0, 1), (0, 0))
    return places._replace(evidence=jnp.pad(jnp.concatenate(parts, 1), around))


def with_actions(
    places: Places,
    shapes: Mapping[str, tuple[int, ...]],
    learned: Collection[str],
    sites: Sequence[tuple[str, str, str]],
    steps: Sequence[LaneIndex],
    drawn: Sequence[LaneIndex],
) -> Places:
    """The places with actions that nobody saw as they were drawn, where an own transition reads it.

    Args:
        places: Where the steps look.
        shapes: As in `lay_places`.
        learned: As in `lay_places`.
        sites: As in `lay_places`.
        steps: As in `lay_places`.
        drawn: The same with such actions drawn (`smoother.with_drawn_actions`).
    """
    length, width = steps[0].label.shape
    for number, (names, before, after) in enumerate(zip(sites, steps, drawn, strict=True)):
        if before.unseen is None:
            continue
        found = _looked_up(jnp, shapes, learned, names, after.policy, after.transition, after.real)
        lanes = slice(number * width, (number + 1) * width)
        places = places._replace(
            **{
                name: getattr(places, name)
                .at[BEFORE : BEFORE + length, lanes]
                .set(jnp.asarray(values).astype(getattr(places, name).dtype))
                for name, values in found.items()
            }
        )
    return places


def _looked_up(
    space: Any,
    shapes: Mapping[str, tuple[int, ...]],
    learned: Collection[str],
    names: tuple[str, str, str],
    action: Any,
    arrived: Any,
    real: Any,
) -> dict[str, Any]:
    """Cells and rows of steps, by NumPy or JAX.

    An action that nobody saw, and that no transition reads, looks where padding looks.
    """
    policy, transition, initial = names
    offset = _offsets(shapes)
    spare_cell, spare_row = offset[""]
    rows, latents, actions = shapes[policy]
    number = shapes[transition][0]
    acts, begins = real & (action < rows * actions), arrived >= number
    row, first = action // actions, arrived - number
    move = space.where(
        begins,
        offset[initial][0] + first * latents,
        offset[transition][0] + arrived * latents**2,
    )
    origin = space.where(
        begins, offset[initial][1] + first, offset[transition][1] + arrived * latents
    )
    cell = offset[policy][0] + row * latents * actions + action % actions
    return {
        "cell": space.where(acts, cell, spare_cell),
        "cell_stride": space.where(acts, actions, 0),
        "row": space.where(acts, offset[policy][1] + row * latents, spare_row),
        "move": space.where(real, move, spare_cell),
        "origin": space.where(real, origin, spare_row),
        "acts": space.where(acts, float(policy in learned), 0.0),
    }


def lay_places(
    shapes: Mapping[str, tuple[int, ...]],
    learned: Collection[str],
    sites: Sequence[tuple[str, str, str]],
    steps: Sequence[LaneIndex],
    contexts: Mapping[str, Int[np.ndarray, "_ _"]],
    sticky: Mapping[str, Bool[np.ndarray, " _"]],
    dtype: np.dtype,
) -> tuple[Places, Stretches, Blocks]:
    """Lay the steps of all agents side by side.

    Args:
        shapes: Shapes of all tables, as they are padded.
        learned: Tables that paths add to.
        sites: Per agent, its policy, transition and initial table.
        steps: Per agent, where its steps look.
        contexts: Of every table the contexts of its rows.
        sticky: Of every transition table, the rows under which latents mostly stay.
        dtype: Of the counts.

    Returns:
        The places, the stretches, and the blocks.
    """
    spare_cell, spare_row = _offsets(shapes)[""]
    every = np.arange(max(shapes[policy][1] for policy, *_ in sites))
    order = sorted(contexts)
    columns = max(rows.shape[1] for rows in contexts.values())
    parts: list[dict[str, np.ndarray]] = []
    features: list[np.ndarray] = []
    for (policy, transition, initial), index in zip(sites, steps, strict=True):
        action, arrived, label, start, real = (np.asarray(leaf) for leaf in index[:5])
        _, latents, actions = shapes[policy]
        number = shapes[transition][0]
        if index.unseen is not None:
            # Of moves whose action is drawn anew in every iteration the first one, for features.
            last = number + shapes[initial][0]
            summed = np.maximum(arrived - last - 1, 0)
            rows = np.asarray(index.unseen.transition)[summed, 0]
            arrived = np.where(arrived > last, rows, arrived)
        begins = arrived >= number
        row, acted = action // actions, real & (action < shapes[policy][0] * actions)
        first = arrived - number
        labelled = label >= 0
        allowed = np.where(labelled[..., None], label[..., None] == every, every < latents)
        switched = np.concatenate([labelled[:1], labelled[1:] != labelled[:-1]])
        loose = ~sticky[transition][np.where(begins, 0, arrived)]
        moves = np.where(begins, initial in learned, transition in learned)
        names = (policy, transition, initial)
        parts.append({
            **_looked_up(np, shapes, learned, names, action, arrived, real),
            "move_stride": np.where(begins, 0, latents),
            "origin_stride": np.where(begins, 0, 1),
            "moves": real * moves.astype(float),
            "allowed": np.where(real[..., None], allowed, every == 0),
            "forced": start | ~real | switched | (~begins & loose),
        })  # fmt: skip
        about = np.zeros((*label.shape, 2 + 2 * columns), np.int64)
        about[..., 1] = len(features)
        for name, rows, here, column in (
            (initial, first, begins & real, 2),
            (transition, arrived, ~begins, 2),
            (policy, row, acted, 2 + columns),
        ):
            if column == 2:
                about[here, 0] = order.index(name)
            about[here, column : column + contexts[name].shape[1]] = contexts[name][rows[here]]
        features.append(about)
    outside = {"cell": spare_cell, "row": spare_row, "move": spare_cell, "origin": spare_row}
    outside |= {"allowed": every == 0, "forced": True}
    kinds = {"f": dtype, "i": np.dtype(np.int32), "b": np.dtype(bool)}

    def padded(inner: np.ndarray, fill: Any) -> np.ndarray:
        shape = (inner.shape[0] + AROUND, inner.shape[1] + 1, *inner.shape[2:])
        filled = np.broadcast_to(fill, shape).astype(kinds[inner.dtype.kind])
        filled[BEFORE : BEFORE + len(inner), :-1] = inner
        return filled

    whole = {
        name: padded(np.concatenate([part[name] for part in parts], 1), outside.get(name, 0))
        for name in parts[0]
    }
    places = Places(**{name: jnp.asarray(values) for name, values in whole.items()})
    width = steps[0].label.shape[1]
    stretches = _find_stretches(
        whole["forced"], whole["allowed"], padded(np.concatenate(features, 1), 0), width
    )
    lanes = [tuple(range(k * width, (k + 1) * width)) for k in range(len(steps))]
    tables = [name for names in sites for name in set(names) if name in learned]
    shared = len(set(tables)) < len(tables)
    blocks = (tuple(itertools.chain(*lanes)),) if shared else tuple(lanes)
    return places, stretches, blocks


def _find_stretches(
    forced: Bool[np.ndarray, "length lanes"],
    allowed: Bool[np.ndarray, "length lanes latents"],
    about: Int[np.ndarray, "length lanes features"],
    width: int,
) -> Stretches:
    """Number the stretches, and tell of their steps what is known of the first."""
    number = np.cumsum(forced.T).reshape(forced.T.shape).T - 1
    lane, step = np.nonzero(forced.T)  # in the order of the numbers
    known = about[step, lane]
    feature = np.concatenate([known[:, :2], lane[:, None], known[:, 2:]], 1)
    # What is the same everywhere tells nothing; the table stays, whatever it is.
    feature = feature[:, np.concatenate([[True], (feature != feature[0]).any(0)[1:]])]
    size = rounded_up(len(feature))
    step_of, lane_of = np.nonzero(allowed.sum(-1) > 1)
    free = np.stack([step_of, lane_of], 1)
    long = free[np.bincount(number.ravel())[number[step_of, lane_of]] > LONGEST_RUN]
    moment = np.arange(len(number))[:, None] * width + np.arange(forced.shape[1]) % width
    return Stretches(
        jnp.asarray(number, np.int32),
        jnp.asarray(moment, np.int32),
        jnp.asarray(np.pad(feature, ((0, size - len(feature)), (0, 0))), np.int32),
        _filled(free),
        _filled(long if len(long) else free),
    )


def _filled(steps: Int[np.ndarray, "some 2"]) -> Int[Array, "more 2"]:
    """Steps over again until there is a round number of them; of none, one of padding."""
    steps = steps if len(steps) else np.zeros((1, 2), np.int64)
    return jnp.asarray(np.resize(steps, (rounded_up(len(steps)), 2)), np.int32)
