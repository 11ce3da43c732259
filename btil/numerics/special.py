"""The digamma, trigamma and log Gamma functions, quickly."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float
from scipy.special import bernoulli, digamma, gammaln

# From here on Stirling's series has all digits of double precision.
_LARGE = 10.0

# Priors that need no care of their own in single precision.
_SMALL_CELL, _SMALL_SUM = 8.0, 64.0

# By how much the argument of the trigamma function is shifted.
_SHIFT = 8


def by_cell(function: Callable[..., Any], *arrays: Float[Array, "*shape"]) -> Any:
    """A function of single cells, on arrays of one shape.

    It runs on flat arrays, apart from what comes before and after: on CPUs only long inner loops
    become vector code, and tables end in axes of a few values.

    Two results leave it as the two parts of complex numbers: of a loop with one result XLA makes
    one kernel, of others one for each step on the way, each with a pass over memory and to be
    compiled.
    """
    flat = lax.optimization_barrier(tuple(array.ravel() for array in arrays))
    results = function(*flat)
    if isinstance(results, tuple) and len(results) == 2:
        both = lax.optimization_barrier(lax.complex(*results))
        results = both.real, both.imag
    else:
        results = lax.optimization_barrier(results)
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
    psi, remainder = by_cell(_digamma_and_remainder, x)
    return psi, by_cell(jnp.log, x), remainder


def log_gamma(
    x: Float[Array, "*shape"], log_x: Float[Array, "*shape"], remainder: Float[Array, "*shape"]
) -> Float[Array, "*shape"]:
    """log Gamma(x) by Stirling's formula, from what `digamma_and_remainder` gives."""
    return (x - 0.5) * log_x - x + 0.5 * math.log(2 * math.pi) + remainder


def log_beta_ratio(
    prior: Float[Any, "*rows values"], counts: Float[Any, "*rows values"]
) -> Float[Any, "*rows"]:
    r"""log B(u + n) - log B(u) of every row, B the multivariate beta function.

    It is the log probability of n uses of each cell in some order, rows integrated out. With
    w = u + n it is :math:`\sum_j c(n_j, u_j, w_j) - c(\sum n, \sum u, \sum w)`,

    .. math:: c(n, u, w) = \log\Gamma(w) - \log\Gamma(u)
              = n \log w + \big(u - \tfrac12\big) \log(1 + n / u) - n + R(w) - R(u)

    with R as in `digamma_and_remainder`, so that nothing is larger than n needs. Differences of
    log Gamma lose whole units from concentrations of 1e14 on.

    Of NumPy arrays it is computed on the host, in double precision.

    Args:
        prior: u, positive.
        counts: n, such that u + n is positive. Close to -u digits are lost.

    Returns:
        One number per row; errors are a few units in the last place of :math:`n \log w`.

    Example:
        >>> u, n = jnp.array([1.0, 1.0]), jnp.array([2.0, 1.0])
        >>> round(float(jnp.exp(log_beta_ratio(u, n))) * 12, 3)
        1.0
    """
    xp = prior.__array_namespace__()
    remainder = stirling_remainder if xp is np else _remainder

    def term(n: Any, u: Any) -> Any:
        stirling = n * xp.log(u + n) + ((u - 0.5) * xp.log1p(n / u) - n)
        return stirling + (remainder(u + n) - remainder(u))

    return term(counts, prior).sum(-1) - term(counts.sum(-1), prior.sum(-1))


def _remainder(x: Float[Array, "..."]) -> Float[Array, "..."]:
    return digamma_and_remainder(x)[2]


def stirling_remainder(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """R(x) of `digamma_and_remainder`, on the host and in double precision."""
    x = np.asarray(x, np.float64)
    inverse = 1 / np.maximum(x, _LARGE)
    series = np.zeros_like(x)
    for k, number in reversed(list(enumerate(bernoulli(16)[2::2].tolist(), start=1))):
        series = series * inverse**2 + number / (2 * k * (2 * k - 1))
    # Of small numbers nothing is lost: neither part is large.
    small = np.minimum(x, _LARGE)
    plain = gammaln(small) - ((small - 0.5) * np.log(small) - small + 0.5 * np.log(2 * np.pi))
    return np.where(x < _LARGE, plain, series * inverse)


def log_dirichlet(
    concentration: Float[np.ndarray, "... values"], rows: Float[np.ndarray, "*rows values"]
) -> Float[np.ndarray, "*rows"]:
    r"""Log Dirichlet density of positive rows, on the host and in double precision.

    With the mean m = u / U, U the sum of u, and t = log(row / m) it is

    .. math:: \sum_j \Big[ \tfrac12 \log \frac{u_j}{2\pi} - R(u_j) - \log row_j
              - u_j (e^{t_j} - 1 - t_j) \Big] - \tfrac12 \log \frac{U}{2\pi} + R(U)

    (R as in `digamma_and_remainder`), which keeps its digits where u is large and rows are close
    to their mean. That the row adds up to 1 only to rounding does not matter.

    Args:
        concentration: u, what broadcasts to the rows.
        rows: The rows.
    """
    u = np.broadcast_to(np.asarray(concentration, np.float64), rows.shape)
    total = u.sum(-1, keepdims=True)
    log_row = np.log(np.asarray(rows, np.float64))
    t = log_row - np.log(u / total)

    def spread(x: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
        return 0.5 * np.log(x / (2 * np.pi)) - stirling_remainder(x)

    density = (spread(u) - log_row - u * (np.expm1(t) - t)).sum(-1) - spread(total)[..., 0]
    return np.asarray(density)


def rows_divergence(
    concentration: Float[np.ndarray, "*rows values"], prior: Float[np.ndarray, "*rows values"]
) -> float:
    """Sum over rows of KL(Dir(w) || Dir(u)), on the host and in double precision."""
    w, u = np.asarray(concentration, np.float64), np.asarray(prior, np.float64)
    added = w - u
    log_mean = digamma(w) - digamma(w.sum(-1, keepdims=True))
    return float(((added * log_mean).sum(-1) - log_beta_ratio(u, added)).sum())


@jax.custom_jvp
def dirichlet_divergence(
    w: Float[Array, "*rows values"], u: Float[Array, "*rows values"]
) -> Float[Array, "*rows"]:
    r"""KL(Dir(w) || Dir(u)) of every row, with derivatives that are quick to compile.

    .. math:: \frac{\partial KL}{\partial w_j} = (w_j - u_j)\, \psi'(w_j)
              - \textstyle\sum (w - u)\, \psi'(\sum w), \qquad
              \frac{\partial KL}{\partial u_j} = E_u[\log row_j] - E_w[\log row_j]

    Its value is as in `digamma_and_divergence`.

    Example:
        >>> w, u = jnp.array([3.0, 1.0]), jnp.array([1.0, 1.0])
        >>> round(float(dirichlet_divergence(w, u)), 4)  # log 3 - 2/3
        0.4319
    """
    return _divergence_and_log_means(w, u)[0]


def _divergence_and_log_means(
    w: Float[Array, "*rows values"], u: Float[Array, "*rows values"]
) -> tuple[Float[Array, "*rows"], Float[Array, "*rows values"], Float[Array, "*rows values"]]:
    parts = (w, jnp.sum(w, -1), u, jnp.sum(u, -1))
    # All in one call: that is most of what there is to compile.
    together = digamma_and_remainder(jnp.concatenate([part.ravel() for part in parts]))
    ends = np.cumsum([part.size for part in parts])[:-1].tolist()
    cells_w, sums_w, cells_u, sums_u = (
        tuple(one.reshape(part.shape) for one in found)
        for part, *found in zip(
            parts, *(jnp.split(values, ends) for values in together), strict=True
        )
    )

    def term(n: Any, u: Any, of_w: Any, of_u: Any) -> Any:
        psi, log_w, rest = of_w
        return n * (psi - log_w) - (u - 0.5) * jnp.log1p(n / u) - (rest - of_u[2])

    of_cells = term(w - u, u, cells_w, cells_u)
    of_sums = term(jnp.sum(w - u, -1), parts[3], sums_w, sums_u)
    divergence = jnp.sum(of_cells, -1) - of_sums
    return divergence, cells_w[0] - sums_w[0][..., None], cells_u[0] - sums_u[0][..., None]


@dirichlet_divergence.defjvp
def _divergence_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    w, u = primals
    divergence, log_mean_w, log_mean_u = _divergence_and_log_means(w, u)
    n, sums = w - u, jnp.sum(w, -1, keepdims=True)
    curvature = trigamma(jnp.concatenate([w, sums], axis=-1))
    of_w = n * curvature[..., :-1] - jnp.sum(n, -1, keepdims=True) * curvature[..., -1:]
    change = of_w * tangents[0] + (log_mean_u - log_mean_w) * tangents[1]
    return divergence, jnp.sum(change, -1)


class _Stirling(NamedTuple):
    """What psi and log Gamma at x are made of, by Stirling's formula at z = x or x + n.

    Attributes:
        shift: n, by which arguments below it are shifted.
        small: Whether they are.
        z: Where the series are taken.
        inverse: 1 / z.
        product: p(x) = x (x + 1) ... (x + n - 1) where small.
        below: log z - psi(x).
        remainder: R(z).
    """

    shift: int
    small: Bool[Array, " cells"]
    z: Float[Array, " cells"]
    inverse: Float[Array, " cells"]
    product: Float[Array, " cells"]
    below: Float[Array, " cells"]
    remainder: Float[Array, " cells"]


def _stirling(x: Float[Array, " cells"]) -> _Stirling:
    n, terms = (8, 8) if x.dtype == jnp.float64 else (4, 3)
    small = x < n
    # Beyond n the product is not used, and must not overflow.
    base = jnp.minimum(x, n)
    product, slope = base, jnp.ones_like(x)
    for k in range(1, n):
        product, slope = product * (base + k), slope * (base + k) + product
    z = jnp.where(small, x + n, x)
    inverse = 1 / z
    square = inverse * inverse
    of_psi = of_log_gamma = jnp.zeros_like(x)
    for k, number in reversed(list(enumerate(bernoulli(2 * terms)[2::2].tolist(), start=1))):
        of_psi = of_psi * square + number / (2 * k)
        of_log_gamma = of_log_gamma * square + number / (2 * k * (2 * k - 1))
    below = 0.5 * inverse + of_psi * square + jnp.where(small, slope / product, 0.0)
    return _Stirling(n, small, z, inverse, product, below, of_log_gamma * inverse)


def _digamma_and_remainder(
    x: Float[Array, " cells"],
) -> tuple[Float[Array, " cells"], Float[Array, " cells"]]:
    n, small, z, _, product, below, remainder = _stirling(x)
    log_x, log_z = jnp.log(x), jnp.log(z)
    ratio = jnp.where(small, lax.integer_pow(z * math.exp(-1), n) / product, 1.0)
    shifted = jnp.where(small, (x - 0.5) * (log_z - log_x), 0.0)
    return log_z - below, remainder + (shifted + jnp.log(ratio))


class PriorTerms(NamedTuple):
    """Concentrations u of a prior, and what `digamma_and_divergence` needs of them.

    Attributes:
        u: The concentrations.
        rest: R(u) as in `digamma_and_remainder`; with small priors (u - 1/2) log u more.
        log_u: Their logarithms; None with small priors.
    """

    u: Float[Any, "*shape"]
    rest: Float[Any, "*shape"]
    log_u: Float[Any, "*shape"] | None


def prior_terms(u: Float[np.ndarray, "*rows values"]) -> tuple[PriorTerms, PriorTerms]:
    """Those of the cells of a prior and of the sums of its rows, on the host.

    Small priors need no care: what sums lose in single precision is u times its epsilon.
    """
    u = np.asarray(u, np.float64)
    sums = u.sum(-1)
    small = np.max(u, initial=0) <= _SMALL_CELL and np.max(sums, initial=0) <= _SMALL_SUM

    def terms(u: Float[np.ndarray, "..."]) -> PriorTerms:
        rest, log_u = stirling_remainder(u), np.log(u)
        return PriorTerms(u, rest + (u - 0.5) * log_u if small else rest, None if small else log_u)

    return terms(u), terms(sums)


def digamma_and_divergence(
    w: Float[Array, "*shape"], prior: PriorTerms
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    r"""psi(w), and what w adds to divergences of Dirichlet rows from their priors, in one pass.

    The divergence of a row is :math:`\sum_j c(u_j, w_j) - c(\sum u, \sum w)` with

    .. math:: c(u, w) = (w - u) (\psi(w) - 1) - \log\Gamma(w) + \log\Gamma(u),

    where taking off w - u changes nothing. With z and p as in `digamma_and_remainder`, z = w and
    p = 1 where w is not shifted,

    .. math:: c(u, w) = \log\frac{p(w)}{(z / e)^{z - w}} - \big(u - \tfrac12\big) \log\frac{z}{u}
              - (w - u) (\log z - \psi(w)) - R(z) + R(u).

    Nothing in it is larger than w - u and u log u: in single precision differences of log Gamma
    lose whole units where concentrations are a million. With priors that are not small w - u is
    put back: where u is much larger, it is most of the second term, and the sum of a row's rounded
    cells is not their rounded sum.

    Args:
        w: Positive numbers.
        prior: Of `prior_terms`, of the same shape and type.

    Returns:
        psi(w) and c(u, w), plus w - u if the priors of the table are not small.

    Example:
        >>> w = jnp.array([[3.0, 1.0]])
        >>> cells, sums = jax.tree.map(jnp.float32, prior_terms(np.ones((1, 2))))
        >>> of_cells = digamma_and_divergence(w, cells)[1]
        >>> of_sum = digamma_and_divergence(w.sum(1), sums)[1]
        >>> round(float(of_cells.sum() - of_sum[0]), 4)  # log 3 - 2/3
        0.4319
    """
    return by_cell(_digamma_and_divergence, w, *(part for part in prior if part is not None))


def _digamma_and_divergence(
    w: Float[Array, " cells"],
    u: Float[Array, " cells"],
    rest: Float[Array, " cells"],
    log_u: Float[Array, " cells"] | None = None,
) -> tuple[Float[Array, " cells"], Float[Array, " cells"]]:
    n, small, z, inverse, product, below, remainder = _stirling(w)
    added = w - u
    if log_u is None:
        log_z = jnp.log(z)
        second = (0.5 - u) * log_z
    else:
        log_ratio = jnp.log1p((z - u) / u)
        log_z = log_ratio + log_u
        second = added - (u - 0.5) * log_ratio
    ratio = jnp.where(small, product * lax.integer_pow(inverse, n), 1.0)
    shifted = jnp.where(small, float(n), 0.0) + jnp.log(ratio)
    return log_z - below, second + shifted - added * below - (remainder - rest)


def trigamma(x: Float[Any, "*shape"]) -> Float[Any, "*shape"]:
    r"""psi'(x), many times as fast as SciPy's `polygamma`.

    Of NumPy arrays it is computed on the host, in double precision.

    .. math:: \psi'(x) = \sum_{k < 8} (x + k)^{-2} + \psi'(x + 8), \qquad
              \psi'(z) = \frac{1}{z} + \frac{1}{2 z^2} + \sum_k B_{2k} z^{-2k-1}

    Args:
        x: Positive numbers.

    Returns:
        psi'(x), to a few units in the last place.

    References:
        Abramowitz and Stegun (1964), 6.4.6 and 6.4.12.

    Example:
        >>> round(float(trigamma(np.array([1.0]))[0]), 6)
        1.644934
    """
    if not isinstance(x, jax.Array):
        x = np.asarray(x, np.float64)
    total = 0 * x
    for k in range(_SHIFT):
        total += 1 / (x + k) ** 2
    inverse = 1 / (x + _SHIFT)
    square = inverse * inverse
    series = 0 * x
    for number in reversed(bernoulli(16)[2::2].tolist()):
        series = (series + number) * square
    return total + inverse * (1 + 0.5 * inverse + series)
