"""Running moments of chains: the mean and spread of every cell, without keeping its draws.

On the device the draws of a block of iterations are added up by Welford's recursion; on the host
blocks are merged in double precision. Chains are cut into halves, so that split R-hat can be had of
every cell.

References:
    Welford (1962), Note on a method for calculating corrected sums of squares and products,
    Technometrics 4. Chan, Golub, LeVeque (1983), Algorithms for computing the sample variance, The
    American Statistician 37.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class Moments(NamedTuple):
    """Moments of every cell of a table over some draws.

    On the device both are in units of `_unit`; on the host they are of double precision.

    Attributes:
        mean: Mean.
        squares: Sum of squared deviations from it.
    """

    mean: Float[Array, "..."] | Float[np.ndarray, "..."]
    squares: Float[Array, "..."] | Float[np.ndarray, "..."]


def no_draws(like: Float[Array, "..."]) -> Moments:
    """Where a block begins."""
    return Moments(jnp.zeros_like(like), jnp.zeros_like(like))


def add_draw(moments: Moments, draw: Float[Array, "..."], number: Int[Array, ""]) -> Moments:
    """Moments with one more draw, the `number`-th of its block, counted from one."""
    scaled = draw / _unit(draw.dtype)
    deviation = scaled - moments.mean
    mean = moments.mean + deviation / number.astype(draw.dtype)
    return Moments(mean, moments.squares + deviation * (scaled - mean))


def _unit(dtype: np.dtype) -> float:
    """A power of two. Probabilities may be so small that the squares of plain ones would vanish."""
    return 0.5 ** (jnp.finfo(dtype).maxexp // 2 - 4)


def part_lengths(num_draws: int) -> Int[np.ndarray, " part"]:
    """Draws of each part of a chain: an odd one before the halves, and the halves."""
    odd, half = num_draws % 2, num_draws // 2
    return np.array([1] * odd + [half, half] * (half > 0))


def no_parts(num_chains: int, num_parts: int, shape: tuple[int, ...]) -> Moments:
    """Where a chain begins, on the host: moments (chain, part, *shape)."""
    return Moments(*(np.zeros((num_chains, num_parts, *shape)) for _ in range(2)))


def merged(whole: Moments, part: int, count: int, block: Moments, added: int) -> Moments:
    """Moments of all parts once a block of draws is added to one of them; new arrays.

    Args:
        whole: Moments (chain, part, ...).
        part: The part.
        count: Draws in it so far.
        block: Moments of the block as they come from the device, (chain, ...).
        added: Draws in the block.
    """
    unit = _unit(np.asarray(block.mean).dtype)
    # One after the other: the square of the unit may be no number.
    squares = np.asarray(block.squares, np.float64) * unit * unit
    apart = np.asarray(block.mean, np.float64) * unit - whole.mean[:, part]
    total = count + added
    following = Moments(whole.mean.copy(), whole.squares.copy())
    following.mean[:, part] += apart * (added / total)
    following.squares[:, part] += squares + apart**2 * (count * added / total)
    return following
