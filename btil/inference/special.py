"""The digamma, trigamma and log Gamma functions, quickly."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float
from scipy.special import bernoulli

# By how much the argument of the trigamma function is shifted.
_SHIFT = 8


def by_cell(function: Callable[..., Any], *arrays: Float[Array, "*shape"]) -> Any:
    """A function of single cells, on arrays of one shape.

    It runs on flat arrays, apart from what comes before and after: on CPUs only long inner loops
    become vector code, and tables end in axes of a few values.
    """
    flat = lax.optimization_barrier(tuple(array.ravel() for array in arrays))
    results = lax.optimization_barrier(function(*flat))
    return jax.tree.map(lambda values: values.reshape(arrays[0].shape), results)


def digamma_and_remainder(
    x: Float[Array, "*shape"],
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"], Float[Array, "*shape"]]:
    r"""psi(x), log x, and what Stirling's formula leaves of log Gamma(x), without branches.

    .. math:: R(x) = \log\Gamma(x) - \big(x - \tfrac12\big) \log x + x - \tfrac12 \log 2\pi

    is small (below 1 / 12x) where log Gamma(x) is large: differences of log Gamma keep their
    digits in single precision if they are taken of it.

    Arguments below n are shifted to z = x + n, where the series in 1/z converge,

    .. math:: \psi(z) = \log z - \frac{1}{2z} - \sum_k \frac{B_{2k}}{2k} z^{-2k}, \qquad
              R(z) = \sum_k \frac{B_{2k}}{2k (2k - 1)} z^{1 - 2k},

    and back by the product p(x) = x (x + 1) ... (x + n - 1), for psi(x) = psi(z) - p'(x) / p(x)
    and Gamma(x) = Gamma(z) / p(x). n powers of z / e are put below the same logarithm as p, so
    that little cancels.

    JAX's own functions are accurate to as many units in the last place; these are about ten times
    as fast, where they are most of a sweep of the mean field.

    Args:
        x: Positive numbers.

    Returns:
        psi(x), log x and R(x); errors of psi and of `log_gamma` are a few units in the last place
        of the larger of the value and 1.

    References:
        Abramowitz and Stegun (1964), Handbook of mathematical functions, 6.1.40 and 6.3.18.

    Example:
        >>> x = jnp.array([1.0, 5.0])
        >>> psi, *rest = digamma_and_remainder(x)
        >>> [round(float(value), 3) for value in (*psi, *jnp.exp(log_gamma(x, *rest)))]
        [-0.577, 1.506, 1.0, 24.0]
    """
    return by_cell(_digamma_and_remainder, x)


def log_gamma(
    x: Float[Array, "*shape"], log_x: Float[Array, "*shape"], remainder: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """log Gamma(x) by Stirling's formula, from what `digamma_and_remainder` gives."""
    return (x - 0.5) * log_x - x + 0.5 * math.log(2 * math.pi) + remainder


def _digamma_and_remainder(
    x: Float[Array, " cells"],
) -> tuple[Float[Array, " cells"], Float[Array, " cells"], Float[Array, " cells"]]:
    n, terms = (8, 8) if x.dtype == jnp.float64 else (4, 3)
    small = x < n
    # Beyond n the product is not used, and must not overflow.
    base = jnp.minimum(x, n)
    product, slope = base, jnp.ones_like(x)
    for k in range(1, n):
        product, slope = product * (base + k), slope * (base + k) + product
    z = jnp.where(small, x + n, x)
    log_x, log_z, inverse = jnp.log(x), jnp.log(z), 1 / z
    square = inverse * inverse
    of_psi = of_log_gamma = jnp.zeros_like(x)
    for k, number in reversed(list(enumerate(bernoulli(2 * terms)[2::2].tolist(), start=1))):
        of_psi = of_psi * square + number / (2 * k)
        of_log_gamma = of_log_gamma * square + number / (2 * k * (2 * k - 1))
    psi = log_z - 0.5 * inverse - of_psi * square - jnp.where(small, slope / product, 0.0)
    ratio = jnp.where(small, lax.integer_pow(z * math.exp(-1), n) / product, 1.0)
    shifted = jnp.where(small, (x - 0.5) * (log_z - log_x), 0.0)
    return psi, log_x, of_log_gamma * inverse + (shifted + jnp.log(ratio))


def trigamma(x: Float[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    r"""psi'(x) on the host, in double precision, many times as fast as SciPy's `polygamma`.

    .. math:: \psi'(x) = \sum_{k < 8} (x + k)^{-2} + \psi'(x + 8), \qquad
              \psi'(z) = \frac{1}{z} + \frac{1}{2 z^2} + \sum_k B_{2k} z^{-2k-1}

    Args:
        x: Positive numbers.

    Returns:
        psi'(x), to a few units in the last place.

    References:
        Abramowitz and Stegun (1964), 6.4.6 and 6.4.12.

    Example:
        >>> round(float(trigamma(np.array(1.0))), 6)
        1.644934
    """
    x = np.asarray(x, np.float64)
    total = np.zeros_like(x)
    for k in range(_SHIFT):
        total += 1 / (x + k) ** 2
    inverse = 1 / (x + _SHIFT)
    square = inverse * inverse
    series = np.zeros_like(x)
    for number in reversed(bernoulli(16)[2::2].tolist()):
        series = (series + number) * square
    return total + inverse * (1 + 0.5 * inverse + series)
