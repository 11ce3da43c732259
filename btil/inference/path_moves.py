r"""Moves of latent paths with the rows of the tables integrated out.

Where concentrations are small, blocked Gibbs sampling hardly moves: a cell that no count holds up
is drawn with a probability of nearly nothing, and no path can take it before the row is drawn anew.
With the rows integrated out the same cell has the predictive probability

.. math:: \frac{u_c + n_c}{\sum_{c'} u_{c'} + n_{c'}}

of a Polya urn, which is small but not nothing. Four moves, all exact:

- *Windows*: the counts of the steps in a window are taken out of the urns; a new path through the
  window is proposed by a forward filter and backward sampling under the predictive means of the
  rest, given the latents before and after it and the labels; and accepted by the ratio of the exact
  Polya probabilities, in which steps of the window count for those after them.
- *Runs*: the latent of a run of steps, in which it stays the same, is drawn from the exact Polya
  weights of all latents that leave the ends of the run where they are.
- *Swaps* of two latents in stretches that have something in common.
- *Jumps*: two landmarks, paths around which chains were during the warmup, differ at some steps;
  there the latent of the one becomes that of the other, and the other way round. A chain that the
  warmup left in a mode that weighs nearly nothing leaves it so.

What else steps say of their latents (columns under given coefficients, weights of annotations)
multiplies the probabilities in all of them.

References:
    Scott (2002), Bayesian methods for hidden Markov models, JASA 97 (the filter); Liu (1994), The
    collapsed Gibbs sampler in Bayesian computations, JASA 89; Blackwell, MacQueen (1973), Ferguson
    distributions via Polya urn schemes; Tjelmeland, Hegstad (2001), Mode jumping proposals in MCMC,
    Scandinavian Journal of Statistics 28 (jumps).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Key

from btil.inference.urns import (
    AROUND,
    BEFORE,
    LONGEST_RUN,
    WINDOW,
    Blocks,
    Places,
    Stretches,
    Urns,
    Uses,
    action_uses,
    by_block,
    log_polya,
    log_probability_change,
    log_ratio_of_given,
    move_uses,
    use_probabilities,
    with_uses,
)

# At most so many windows of a block are looked at in an iteration, of so many lanes at a time.
WINDOWS, LANES_TOGETHER = 128, 2
# At most so many runs of a block are looked at in an iteration.
RUNS = 192
# So many swaps are tried in an iteration.
SWAPS = 6
# So many jumps are tried in an iteration.
JUMPS = 2
# What the stretches of a swap have in common.
_ALONE, _BEGIN, _MOMENT, _ROW, _CELL = range(5)
# Proposals take what a step says of a latent for no less than this below the others, as a log.
_LEAST_EVIDENCE = -30.0
# Swaps and jumps that change more steps are refused.
MOST_CHANGED = 4096


class Landmarks(NamedTuple):
    """Paths between which chains may jump.

    Two latents of an agent that nothing distinguishes may stand for each other in two chains. They
    are never exchanged: a chain that changed names on its way would have averages that mean
    nothing.

    Attributes:
        paths: The paths.
        kind: Of every lane's agent, a number of each latent, the same for those that nothing
            distinguishes.
    """

    paths: Int[Array, "landmarks length lanes"]
    kind: Int[Array, "lanes latents"]


class Moved(NamedTuple):
    """What the moves did in an iteration.

    Attributes:
        windows: Windows with another path than before.
        refused: Windows whose other path was refused.
        runs: Runs with another latent than before.
        swaps: Swaps that were made.
        jumps: Jumps that were made.
    """

    windows: Float[Array, "*batch"]
    refused: Float[Array, "*batch"]
    runs: Float[Array, "*batch"]
    swaps: Float[Array, "*batch"]
    jumps: Float[Array, "*batch"]


def move_paths(
    key: Key[Array, ""],
    latents: Int[Array, "length lanes"],
    urns: Urns,
    places: Places,
    stretches: Stretches,
    blocks: Blocks,
    landmarks: Landmarks | None = None,
) -> tuple[Int[Array, "length lanes"], Urns, Moved]:
    """Look at windows of the paths, at runs, at swaps of two latents, and at jumps.

    Args:
        key: Random key of this iteration and chain.
        latents: The paths, counted in the urns.
        urns: The urns of all rows.
        places: Where the steps look.
        stretches: Which steps belong together.
        blocks: Lanes that share no table with those of other blocks.
        landmarks: Paths between which chains may jump; None: no jumps.

    Returns:
        The new paths, the urns that count them, and what was done.
    """
    window_key, run_key, swap_key, jump_key = jax.random.split(key, 4)
    latents, urns, windows, refused = _move_windows(window_key, latents, urns, places, blocks)
    latents, urns, runs = _move_runs(run_key, latents, urns, places, blocks)
    latents, urns, swaps = _swap(swap_key, latents, urns, places, stretches)
    jumps = jnp.zeros_like(swaps)
    if landmarks is not None:
        latents, urns, jumps = _jump(jump_key, latents, urns, places, stretches, landmarks)
    return latents, urns, Moved(windows, refused, runs, swaps, jumps)


# ---------------------------------------------------------------------- windows


def _move_windows(
    key: Key[Array, ""],
    latents: Int[Array, "length lanes"],
    urns: Urns,
    places: Places,
    blocks: Blocks,
) -> tuple[Int[Array, "length lanes"], Urns, Float[Array, ""], Float[Array, ""]]:
    """Windows that begin anywhere, some lanes of every block at a time."""
    length, width = WINDOW, LANES_TOGETHER
    steps, dtype = len(latents), urns.prior.dtype
    lane_key, offset_key, path_key, accept_key = jax.random.split(key, 4)
    groups = max(-(-len(block) // width) for block in blocks)
    nothing = latents.shape[1] - 1
    chosen = jnp.stack(
        [
            jnp.full(groups * width, nothing)
            .at[: len(block)]
            .set(jax.random.permutation(one, jnp.asarray(block)))
            .reshape(groups, width)
            for one, block in zip(jax.random.split(lane_key, len(blocks)), blocks, strict=True)
        ],
        axis=1,
    ).reshape(groups, -1)
    along = -(-(steps - AROUND) // length) + 1
    # All windows of some groups, or some of one: an iteration takes no longer on more data.
    now = min(along, WINDOWS) * min(groups, max(1, WINDOWS // along))
    draw = jax.random.randint(offset_key, (2,), 0, jnp.asarray([length, along]), jnp.int32)
    first, turn = BEFORE - draw[0], draw[1]
    uniforms = jax.random.uniform(path_key, (now, length, len(blocks) * width), dtype)
    uniforms = uniforms * (1 - 4 * jnp.finfo(dtype).eps)
    levels = jnp.log1p(-jax.random.uniform(accept_key, (now, len(blocks)), dtype))

    def window(
        carry: tuple[Array, Urns, Array, Array], inputs: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Urns, Array, Array], None]:
        latents, urns, moved, refused = carry
        k, uniform, level = inputs
        begin = first + (turn + k) % along * length
        lanes = chosen[k // along]
        old = lax.dynamic_slice_in_dim(latents, begin - 1, length + 2)[:, lanes]
        own = jax.tree.map(
            lambda leaf: lax.dynamic_slice_in_dim(leaf, begin, length + 1)[:, lanes], places
        )

        def uses(path: Int[Array, "window lanes"]) -> tuple[Uses, Uses]:
            acts = action_uses(jax.tree.map(lambda leaf: leaf[:-1], own), path[1:-1])
            moves = move_uses(own, path[:-1], path[1:])
            return by_block(acts, len(blocks)), by_block(moves, len(blocks))

        old_uses = uses(old)
        rest = with_uses(urns, old_uses, -1.0)
        proposed = _propose(rest, own, old, uniform)
        new_uses = uses(proposed)
        both = jax.tree.map(lambda *pair: jnp.stack(pair), old_uses, new_uses)
        gained = log_polya(rest, both[0])[1] + log_polya(rest, both[1])[1]
        if own.evidence is not None:
            # The proposal looks at what steps say no closer than filters can take.
            untold = jnp.stack([_untold(own.evidence[:-1], p[1:-1]) for p in (old, proposed)])
            gained = gained + untold.sum(1).reshape(2, len(blocks), width).sum(-1)
        accepted = level < gained[1] - gained[0]
        new = jnp.where(jnp.repeat(accepted, width), proposed, old)
        kept = jax.tree.map(
            lambda new, old: jnp.where(accepted[:, None], new, old), new_uses, old_uses
        )
        other = (proposed != old).reshape(length + 2, len(blocks), width).any((0, 2))
        latents = lax.dynamic_update_slice_in_dim(
            latents,
            lax.dynamic_slice_in_dim(latents, begin, length).at[:, lanes].set(new[1:-1]),
            begin,
            0,
        )
        moved = moved + jnp.sum(other & accepted, dtype=dtype)
        refused = refused + jnp.sum(other & ~accepted, dtype=dtype)
        return (latents, with_uses(rest, kept, 1.0), moved, refused), None

    zero = jnp.zeros((), dtype)
    inputs = (jnp.arange(now, dtype=jnp.int32), uniforms, levels)
    return lax.scan(window, (latents, urns, zero, zero), inputs)[0]


def _propose(
    urns: Urns,
    places: Places,
    path: Int[Array, "two_more lanes"],
    uniforms: Float[Array, "window lanes"],
) -> Int[Array, "two_more lanes"]:
    """New paths through a window under the predictive means, given the steps around it."""
    shape = places.allowed.shape
    own = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf.reshape(*shape[:2], -1), shape), places)
    inside = jax.tree.map(lambda leaf: leaf[:-1], own)
    every = lax.broadcasted_iota(jnp.int32, shape, 2)
    acting = use_probabilities(urns, action_uses(inside, every[:-1]))
    if inside.evidence is not None:
        acting = acting * jnp.exp(_proposal_evidence(inside.evidence))
    likelihood = jnp.where(inside.allowed, acting, 0.0)
    pairs = (*shape, shape[-1])
    own = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[..., None], pairs), own)
    before, after = (lax.broadcasted_iota(jnp.int32, pairs, axis) for axis in (2, 3))
    moves = use_probabilities(urns, move_uses(own, before, after))

    def forward(
        message: Float[Array, "lanes latents"], inputs: tuple[Array, Array]
    ) -> tuple[Array, Array]:
        move, given = inputs
        message = jnp.sum(message[..., None] * move, -2) * given
        message = message / jnp.sum(message, -1, keepdims=True)
        return message, message

    given = (path[0][:, None] == every[0]).astype(likelihood.dtype)
    _, filtered = lax.scan(forward, given, (moves[:-1], likelihood))

    def backward(
        following: Int[Array, " lanes"], inputs: tuple[Array, Array, Array]
    ) -> tuple[Array, Array]:
        message, move, uniform = inputs
        weights = message * jnp.take_along_axis(move, following[:, None, None], -1)[..., 0]
        cumulative = jnp.cumsum(weights, -1)
        below = cumulative <= (uniform * cumulative[:, -1])[:, None]
        latent = jnp.sum(below, -1, dtype=following.dtype)
        return latent, latent

    _, drawn = lax.scan(backward, path[-1], (filtered, moves[1:], uniforms), reverse=True)
    return jnp.concatenate([path[:1], drawn, path[-1:]])


def _proposal_evidence(
    evidence: Float[Array, "window lanes latents"],
) -> Float[Array, "window lanes latents"]:
    """Log likelihoods relative to the largest, the finite ones no smaller than filters can take."""
    relative = evidence - jnp.max(evidence, -1, keepdims=True)
    return jnp.where(jnp.isneginf(evidence), relative, jnp.maximum(relative, _LEAST_EVIDENCE))


def _untold(
    evidence: Float[Array, "window lanes latents"], path: Int[Array, "window lanes"]
) -> Float[Array, "window lanes"]:
    """What the steps of a path say beyond what proposals look at."""
    excluded = jnp.isneginf(evidence)
    whole, looked_at = (
        jnp.where(excluded, 0.0, one) for one in (evidence, _proposal_evidence(evidence))
    )
    return jnp.take_along_axis(whole - looked_at, path[..., None], -1)[..., 0]


# ---------------------------------------------------------------------- runs


def _move_runs(
    key: Key[Array, ""],
    latents: Int[Array, "length lanes"],
    urns: Urns,
    places: Places,
    blocks: Blocks,
) -> tuple[Int[Array, "length lanes"], Urns, Float[Array, ""]]:
    """Draw the latents of some runs of every block anew."""
    steps, dtype = len(latents), urns.prior.dtype
    before = jnp.concatenate([jnp.zeros_like(latents[:1]), latents[:-1]])
    begins = places.forced | (latents != before)
    at = jnp.where(begins, jnp.arange(steps, dtype=jnp.int32)[:, None], steps)
    ends = lax.cummin(at[1:], axis=0, reverse=True)
    ends = jnp.concatenate([ends, jnp.full_like(ends[:1], steps)])
    free = begins & (ends - jnp.arange(steps, dtype=jnp.int32)[:, None] <= LONGEST_RUN)
    free &= jnp.sum(places.allowed, -1) > 1
    order_key, label_key = jax.random.split(key)
    turns = jax.random.uniform(order_key, (len(blocks),), dtype)
    chosen = []
    for block, turn in zip(blocks, turns, strict=True):
        own = free[:, jnp.asarray(block)].ravel()
        number = jnp.sum(own, dtype=jnp.int32)
        wanted = (
            jnp.floor(turn * number.astype(dtype)).astype(jnp.int32)
            + jnp.arange(RUNS, dtype=jnp.int32)
        ) % jnp.maximum(number, 1)
        # The place of the n-th run: where as many begin as n, for the first time.
        place = jnp.searchsorted(jnp.cumsum(own, dtype=jnp.int32), wanted + 1).astype(jnp.int32)
        exists = jnp.arange(RUNS, dtype=jnp.int32) < number
        lane = jnp.asarray(block, jnp.int32)[place % len(block)]
        chosen.append((
            jnp.where(exists, place // len(block), 0),
            jnp.where(exists, lane, latents.shape[1] - 1),
        ))  # fmt: skip
    rows, lanes = (jnp.stack(parts, 1) for parts in zip(*chosen, strict=True))
    latent_axis = jnp.arange(places.allowed.shape[-1], dtype=latents.dtype)[None]
    noise = jax.random.gumbel(label_key, (RUNS, len(blocks), latent_axis.shape[1]), dtype)

    def run(
        carry: tuple[Array, Urns, Array], inputs: tuple[Array, Array, Array]
    ) -> tuple[tuple[Array, Urns, Array], None]:
        latents, urns, changed = carry
        begin, lane, gumbel = inputs
        end = ends[begin, lane]
        span = begin[:, None] + jnp.arange(LONGEST_RUN + 1, dtype=jnp.int32)[None]
        # What lies past the run looks where padding looks.
        inside = _at(places, jnp.where(span < end[:, None], span, 0)[:, :-1], lane)
        arriving = _at(places, jnp.where(span <= end[:, None], span, 0), lane)
        before, after = latents[begin - 1, lane], latents[end, lane]

        def uses(latent: Int[Array, " blocks"]) -> tuple[Uses, Uses]:
            path = jnp.broadcast_to(latent[:, None], span.shape)
            origin = path.at[:, 0].set(before)
            arrived = jnp.where(span == end[:, None], after[:, None], path)
            return action_uses(inside, path[:, :-1]), move_uses(arriving, origin, arrived)

        old = latents[begin, lane]
        rest = with_uses(urns, uses(old), -1.0)
        every = jnp.broadcast_to(latent_axis, (len(old), latent_axis.shape[1]))
        candidates = jax.vmap(uses)(every.T)
        score = jnp.stack([*log_polya(rest, candidates[0]), *log_polya(rest, candidates[1])])
        said = jnp.zeros((), dtype)
        if inside.evidence is not None:
            said = jnp.sum(inside.evidence, 1)
        possible = places.allowed[begin, lane]
        possible &= places.forced[begin, lane][:, None] | (latent_axis != before[:, None])
        possible &= places.forced[end, lane][:, None] | (latent_axis != after[:, None])
        levels = score.sum(0).T + gumbel + said
        new = jnp.argmax(jnp.where(possible, levels, -jnp.inf), -1).astype(old.dtype)
        inner = jnp.where(span < end[:, None], span, steps)[:, :-1]
        latents = latents.at[inner, lane[:, None]].set(new[:, None], mode="drop")
        changed = changed + jnp.sum(new != old, dtype=dtype)
        return (latents, with_uses(rest, uses(new), 1.0), changed), None

    carry = (latents, urns, jnp.zeros((), dtype))
    return lax.scan(run, carry, (rows, lanes, noise))[0]


def _at(places: Places, steps: Int[Array, "blocks span"], lanes: Int[Array, " blocks"]) -> Places:
    """Some steps of one lane of every block."""
    return jax.tree.map(lambda leaf: leaf[steps, lanes[:, None]], places)


# ---------------------------------------------------------------------- swaps


def _swap(
    key: Key[Array, ""],
    latents: Int[Array, "length lanes"],
    urns: Urns,
    places: Places,
    stretches: Stretches,
) -> tuple[Int[Array, "length lanes"], Urns, Float[Array, ""]]:
    """Swap two latents in one stretch, or in all that have something in common with it.

    Stretches have in common what they begin with, in part, or a moment (what members do at a time
    may be explained together), or that a row or a cell of the policy is used in both. None of this
    depends on the latents, so that swaps undo themselves.
    """
    dtype = urns.prior.dtype
    keys = jax.random.split(key, 5)
    turns, others, shares = jax.random.uniform(keys[0], (3, SWAPS), dtype)
    kinds = jax.random.randint(keys[1], (SWAPS,), 0, 5, jnp.int32)
    long, free = (
        steps[jnp.floor(turns * len(steps)).astype(jnp.int32)]
        for steps in (stretches.long, stretches.free)
    )
    steps = jnp.where(((kinds == _ALONE) | (kinds == _MOMENT))[:, None], long, free)
    number = stretches.feature.shape[1]
    wanted = jax.random.bernoulli(keys[2], shares[:, None] / 2, (SWAPS, number)).at[:, 0].set(True)
    levels = jnp.log1p(-jax.random.uniform(keys[3], (SWAPS,), dtype))

    def members(step: tuple[Array, Array], kind: Array, wanted: Array) -> Bool[Array, "stretches"]:
        own = stretches.number[step]
        known = stretches.feature == stretches.feature[own][None]
        shared = (stretches.moment, places.row, places.cell)
        used = jnp.stack([of_step == of_step[step] for of_step in shared])[kind - _MOMENT]
        sharing = jnp.zeros(len(known), bool).at[stretches.number].max(used) & known[:, 0]
        alike = (known | ~wanted[None]).all(-1)
        alone = jnp.arange(len(known), dtype=jnp.int32) == own
        return jnp.where(kind >= _MOMENT, sharing, jnp.where(kind == _BEGIN, alike, alone))

    def propose(
        latents: Array, step: Array, kind: Array, other: Array, wanted: Array
    ) -> tuple[Array, Array, Array]:
        here = step[0], step[1]
        one = latents[here]
        number = jnp.sum(places.allowed[here], dtype=latents.dtype)
        # Any other latent of the agent; with none other, itself.
        further = 1 + jnp.floor(other * (number - 1).astype(other.dtype)).astype(one.dtype)
        two = (one + further) % number.astype(one.dtype)
        member = members(here, kind, wanted)[stretches.number] & (jnp.sum(places.allowed, -1) > 1)
        return member, one, two

    inputs = (steps, kinds, others, wanted)
    return _exchange_in_turn(latents, urns, places, propose, inputs, levels)


def _exchange_in_turn(
    latents: Int[Array, "length lanes"],
    urns: Urns,
    places: Places,
    propose: Callable[..., tuple[Array, Array, Array]],
    inputs: tuple[Array, ...],
    levels: Float[Array, " turns"],
) -> tuple[Int[Array, "length lanes"], Urns, Float[Array, ""]]:
    """Exchanges of two latents one after the other, each of which may be refused.

    Args:
        latents: The paths.
        urns: The urns that count them.
        places: Where the steps look.
        propose: (paths, inputs of a turn) -> steps at which latents are exchanged, the one latent
            and the other, as in `_exchange`. Given the paths after the exchange it is the same.
        inputs: The inputs of all turns.
        levels: Logs of uniform numbers.

    Returns:
        The paths, the urns, and how many exchanges were made.
    """

    def exchange(
        carry: tuple[Array, Urns, Array], inputs: tuple[tuple[Array, ...], Array]
    ) -> tuple[tuple[Array, Urns, Array], None]:
        latents, urns, made = carry
        own, level = inputs
        exchanged = propose(latents, *own)
        latents, urns, changed = _exchange(latents, urns, places, *exchanged, level)
        return (latents, urns, made + changed.astype(made.dtype)), None

    carry = (latents, urns, jnp.zeros((), levels.dtype))
    return lax.scan(exchange, carry, (inputs, levels))[0]


def _exchange(
    latents: Int[Array, "length lanes"],
    urns: Urns,
    places: Places,
    member: Bool[Array, "length lanes"],
    one: Int[Array, "..."],
    other: Int[Array, "..."],
    level: Float[Array, ""],
) -> tuple[Int[Array, "length lanes"], Urns, Bool[Array, ""]]:
    """Make of each of two latents the other at some steps, if the paths' probability allows it.

    Args:
        latents: The paths.
        urns: The urns that count them.
        places: Where the steps look.
        member: The steps at which the latents are exchanged.
        one: One latent, or that of every step.
        other: The other.
        level: Log of a uniform number.

    Returns:
        The paths, the urns, and whether something was changed.
    """
    exchanged = jnp.where(latents == one, other, jnp.where(latents == other, one, latents))
    new = jnp.where(member, exchanged, latents)
    before, after, said, possible = _changed_uses(latents, new, places)
    drawn = with_uses(with_uses(urns, before, -1.0), after, 1.0)
    gained = log_probability_change(urns, drawn) + log_ratio_of_given(urns, before, after) + said
    accepted = possible & (level < gained)
    changed = accepted & jnp.any(new != latents)
    latents = jnp.where(accepted, new, latents)
    return latents, jax.tree.map(lambda *pair: jnp.where(accepted, *pair), drawn, urns), changed


# ---------------------------------------------------------------------- jumps


def _jump(
    key: Key[Array, ""],
    latents: Int[Array, "length lanes"],
    urns: Urns,
    places: Places,
    stretches: Stretches,
    landmarks: Landmarks,
) -> tuple[Int[Array, "length lanes"], Urns, Float[Array, ""]]:
    """Exchange the latents of two landmarks where they differ.

    At all such steps, or at those where the same two latents differ as at one of them, in all
    stretches, or in those that begin like its own. None of this depends on the latents, so that
    jumps undo themselves.
    """
    dtype, number = urns.prior.dtype, len(landmarks.paths)
    lane = jnp.arange(latents.shape[1], dtype=jnp.int32)[None]
    pair_key, turn_key, kind_key, wanted_key, level_key = jax.random.split(key, 5)
    pairs = jax.random.randint(
        pair_key, (2, JUMPS), 0, jnp.asarray([[number], [max(number - 1, 1)]]), jnp.int32
    )
    turns, shares = jax.random.uniform(turn_key, (2, JUMPS), dtype)
    kinds = jax.random.bernoulli(kind_key, 0.5, (JUMPS, 2))
    features = stretches.feature.shape[1]
    wanted = jax.random.bernoulli(wanted_key, shares[:, None], (JUMPS, features))
    levels = jnp.log1p(-jax.random.uniform(level_key, (JUMPS,), dtype))
    free = jnp.sum(places.allowed, -1) > 1

    def propose(
        latents: Array, pair: Array, turn: Array, kinds: Array, wanted: Array
    ) -> tuple[Array, Array, Array]:
        alike, near = kinds
        one = landmarks.paths[pair[0]].astype(latents.dtype)
        other = landmarks.paths[(pair[0] + 1 + pair[1]) % number].astype(latents.dtype)
        differs = (landmarks.kind[lane, one] != landmarks.kind[lane, other]) & free
        # The n-th of the steps where they differ: where as many are counted, for the first time.
        counted = jnp.cumsum(differs.ravel(), dtype=jnp.int32)
        nth = jnp.floor(turn * counted[-1].astype(dtype)).astype(jnp.int32) + 1
        place = jnp.minimum(jnp.searchsorted(counted, nth), differs.size - 1)
        step = place // differs.shape[1], place % differs.shape[1]
        low, high = jnp.minimum(one, other), jnp.maximum(one, other)
        same = (low == low[step]) & (high == high[step])
        known = stretches.feature == stretches.feature[stretches.number[step]][None]
        begin = (known | ~wanted[None]).all(-1)[stretches.number]
        return differs & (same | ~alike) & (begin | ~near), one, other

    inputs = (pairs.T, turns, kinds, wanted)
    return _exchange_in_turn(latents, urns, places, propose, inputs, levels)


def _changed_uses(
    old: Int[Array, "length lanes"], new: Int[Array, "length lanes"], places: Places
) -> tuple[list[Uses], list[Uses], Float[Array, ""], Bool[Array, ""]]:
    """What the steps use whose own latent changes or the one before.

    Returns:
        Uses before and after, what else the steps say of the change, and whether these are not
        too many.
    """
    lanes = old.shape[1]
    acted = old != new
    moved = acted | jnp.concatenate([jnp.zeros_like(acted[:1]), acted[:-1]])
    # Past the last of them the first place, which is padding.
    flat = jnp.nonzero(moved.ravel(), size=min(MOST_CHANGED, moved.size), fill_value=0)[0]
    here = flat // lanes, flat % lanes
    own = jax.tree.map(lambda leaf: leaf[here], places)
    before = jnp.maximum(here[0] - 1, 0), here[1]
    uses = [
        [action_uses(own, path[here]), move_uses(own, path[before], path[here])]
        for path in (old, new)
    ]
    said = jnp.zeros((), places.acts.dtype)
    if own.evidence is not None:
        of_old, of_new = (
            jnp.take_along_axis(own.evidence, path[here][:, None], -1)[:, 0] for path in (old, new)
        )
        said = jnp.sum(jnp.where(acted[here], of_new - of_old, 0.0))
    return uses[0], uses[1], said, jnp.sum(moved) <= len(flat)
