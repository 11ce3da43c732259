"""Points that stand for normals: expectations are averages over them, and nothing is random."""

import numpy as np
from jaxtyping import Float

# Values that have Sobol points together.
_TOGETHER = 6


def normal_points(
    size: int, number: int, seed: int = 0, whitened: bool = True
) -> Float[np.ndarray, "number size"]:
    """Points that stand for a standard normal of so many values.

    Sobol points through the normal's quantiles, for every six values others and in another order
    (the coordinates of large sets of Sobol points are not independent in pairs), and their mirror
    images. Whitened they are then transformed linearly to covariance I, where there are points
    enough: averages of polynomials of degree three are exact. Without that a maximum over normals
    makes the most of chance correlations of the points. The first k of the values are such points
    of size k.

    Args:
        size: Number of values.
        number: Number of points, a power of two.
        seed: Picks them.
        whitened: Whether to whiten them. Averages over points that are not, of different seeds,
            are right on average; whitening takes a share of 4 / number from fourth powers.

    References:
        Giordano, Ingram, Broderick (2024), Black box variational inference with a deterministic
        objective, JMLR 25 (fixed points); Owen (1998), Latin supercube sampling for very
        high-dimensional simulations (Sobol points six by six).

    Example:
        >>> points = normal_points(2, 64)
        >>> abs(points.T @ points / 64).round(12).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    if not size:
        return np.zeros((number, 0))
    # Takes long to import, and only fits with parameters need it.
    from scipy import special, stats

    generator = np.random.default_rng(seed)
    parts = []
    for begin in range(0, size, _TOGETHER):
        sobol = stats.qmc.Sobol(min(_TOGETHER, size - begin), rng=generator)
        parts.append(generator.permutation(sobol.random(number // 2)))
    # Multiples of 2^-30, zero among them: moved to the middle of their intervals.
    half = special.ndtri(np.concatenate(parts, axis=1) + 2.0**-31)
    if whitened and number // 2 >= size:
        factor = np.linalg.cholesky(half.T @ half / len(half))
        half = np.linalg.solve(factor, half.T).T
    return np.concatenate([half, -half])


def power_of_two(number: int, up: bool = False) -> int:
    """The nearest power of two that is not larger (1 at least), or not smaller."""
    return 2 ** ((number - 1).bit_length() if up else max(number, 1).bit_length() - 1)
