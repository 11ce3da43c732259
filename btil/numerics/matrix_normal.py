r"""Bayesian linear regression with the conjugate prior, as pure functions.

A vector y (d) is explained by a vector u (p) of covariates,

.. math:: y \mid u \sim N(B^T u, \Sigma), \qquad
          B \mid \Sigma \sim MN(M, \Lambda^{-1}, \Sigma), \qquad
          \Sigma \sim IW(\Psi, \nu),

with B of shape (p, d): matrix-normal inverse-Wishart. Where u is the number 1 it is the normal
inverse-Wishart of a mean and a covariance. All functions take any leading axes.

Steps enter through a = (u, y) alone: sums of a a^T, of shape (p + d, p + d), are all that is kept
of them. Components of y that nobody saw are summed out by the same sums, a *pattern* of what was
seen at a time: `log_kernel` leaves them out, `completed` puts what is expected of them.

References:
    Minka (2000), Bayesian linear regression; Gelman et al. (2013), Bayesian data analysis, 3.6;
    Bishop (2006), Pattern recognition and machine learning, 2.3 and 10.2.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Float

from btil.numerics.special import digamma_and_remainder, log_gamma


class Hyper(NamedTuple):
    """Parameters of matrix-normal inverse-Wishart densities.

    Attributes:
        location: M, what the coefficients are expected to be.
        precision: Lambda, how many sums of squares of the covariates M stands for.
        scale: Psi; the covariance is expected to be Psi / (nu - d - 1).
        degrees: nu, above d - 1.
    """

    location: Float[Array, "*batch p d"]
    precision: Float[Array, "*batch p p"]
    scale: Float[Array, "*batch d d"]
    degrees: Float[Array, "*batch"]


class Statistics(NamedTuple):
    """Sums over steps.

    Attributes:
        number: How many, or the sum of their weights.
        outer: Sum of a a^T, a = (u, y).
    """

    number: Float[Any, "*batch"]
    outer: Float[Any, "*batch pd pd"]


class Kernel(NamedTuple):
    r"""Log densities that are quadratic in a = (u, y): constant - |a W|^2 / 2.

    Attributes:
        constant: What does not depend on the step.
        weights: W.
    """

    constant: Float[Array, "*batch"]
    weights: Float[Array, "*batch pd columns"]


def transposed(matrix: Float[Array, "*batch n m"]) -> Float[Array, "*batch m n"]:
    """The transpose of each matrix."""
    return jnp.swapaxes(matrix, -1, -2)


def _symmetric(matrix: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    return 0.5 * (matrix + transposed(matrix))


def _log_det(factor: Float[Array, "*batch n n"]) -> Float[Array, "*batch"]:
    """log |C C^T| of triangular factors C."""
    return 2.0 * jnp.sum(jnp.log(jnp.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)


def _inverse_factor(factor: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """C^-1 of lower triangular C."""
    eye = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return solve_triangular(factor, eye, lower=True)


def updated(prior: Hyper, statistics: Statistics) -> Hyper:
    r"""The posterior of the coefficients and the covariance.

    With residuals r = y - M_0^T u from what was expected, and S sums over the steps,

    .. math:: \Lambda = \Lambda_0 + S_{uu}, \quad M = M_0 + \Lambda^{-1} S_{ur}, \quad
              \Psi = \Psi_0 + S_{rr} - S_{ur}^T \Lambda^{-1} S_{ur}, \quad \nu = \nu_0 + n.
    """
    p = prior.location.shape[-2]
    s_uu = statistics.outer[..., :p, :p]
    s_uy = statistics.outer[..., :p, p:]
    s_yy = statistics.outer[..., p:, p:]
    first = prior.location
    s_ur = s_uy - s_uu @ first
    cross = transposed(first) @ s_uy
    s_rr = s_yy - cross - transposed(cross) + transposed(first) @ s_uu @ first
    precision = _symmetric(prior.precision + s_uu)
    inverse = _inverse_factor(jnp.linalg.cholesky(precision))
    half = inverse @ s_ur
    return Hyper(
        location=first + transposed(inverse) @ half,
        precision=precision,
        scale=_symmetric(prior.scale + s_rr - transposed(half) @ half),
        degrees=prior.degrees + statistics.number,
    )


def _log_gamma(x: Float[Array, "..."]) -> Float[Array, "..."]:
    _, log_x, remainder = digamma_and_remainder(x)
    return log_gamma(x, log_x, remainder)


def _psi_less_log(
    h: Float[Array, "..."], psi: Float[Array, "..."], log_h: Float[Array, "..."]
) -> Float[Array, "..."]:
    """psi(h) - log h: of large numbers by its series, as it is multiplied with numbers as large."""
    square = 1.0 / (h * h)
    series = -0.5 / h - square * (1 / 12 - square * (1 / 120 - square / 252))
    return jnp.where(h > 20.0, series, psi - log_h)


def _halves(degrees: Float[Array, "*batch"], d: int) -> Float[Array, "*batch d"]:
    """(nu + 1 - i) / 2 for i = 1..d: arguments of the multivariate gamma function's factors."""
    less = jnp.arange(d, dtype=degrees.dtype).reshape((1,) * degrees.ndim + (d,))
    return 0.5 * (degrees[..., None] - less)


def expected_log_det(hyper: Hyper) -> Float[Array, "*batch"]:
    """E[log |Sigma^-1|]."""
    d = hyper.scale.shape[-1]
    psi, _, _ = digamma_and_remainder(_halves(hyper.degrees, d))
    log_det = _log_det(jnp.linalg.cholesky(hyper.scale))
    return jnp.sum(psi, axis=-1) + d * math.log(2) - log_det


def divergence(posterior: Hyper, prior: Hyper) -> Float[Array, "*batch"]:
    r"""KL(posterior || prior), in a form in which no term is much larger than the sum.

    With h = (nu + 1 - i) / 2, h_0 of the prior, and R what Stirling's formula leaves,

    .. math:: \tfrac12 \big( d\,\mathrm{tr}(\Lambda_0 \Lambda^{-1}) - dp
              + d \log \tfrac{|\Lambda|}{|\Lambda_0|}
              + \nu\,\mathrm{tr}(\Psi^{-1} (M - M_0)^T \Lambda_0 (M - M_0)) \big)
              + \tfrac12 \big( \nu_0 \log \tfrac{|\Psi|}{|\Psi_0|}
              + \nu\,\mathrm{tr}(\Psi_0 \Psi^{-1}) - d \nu_0 \big)
              + \sum_i \big( (h - h_0)(\psi(h) - \log h) - (h_0 - \tfrac12) \log \tfrac{h}{h_0}
              - R(h) + R(h_0) \big).
    """
    p, d = prior.location.shape[-2:]
    of_precision = jnp.linalg.cholesky(posterior.precision)
    of_prior_precision = jnp.linalg.cholesky(prior.precision)
    of_scale = jnp.linalg.cholesky(posterior.scale)
    of_prior_scale = jnp.linalg.cholesky(prior.scale)
    inverse_scale = _inverse_factor(of_scale)

    def norm(matrix: Array) -> Array:
        return jnp.sum(matrix**2, axis=(-2, -1))

    moved = transposed(of_prior_precision) @ (posterior.location - prior.location)
    normal = 0.5 * (
        d * (norm(_inverse_factor(of_precision) @ of_prior_precision) - p)
        + d * (_log_det(of_precision) - _log_det(of_prior_precision))
        + posterior.degrees * norm(moved @ transposed(inverse_scale))
    )
    wishart = 0.5 * (
        prior.degrees * (_log_det(of_scale) - _log_det(of_prior_scale))
        + posterior.degrees * norm(inverse_scale @ of_prior_scale)
        - d * prior.degrees
    )
    h, h_0 = _halves(posterior.degrees, d), _halves(prior.degrees, d)
    psi, log_h, of_h = digamma_and_remainder(h)
    _, _, of_h_0 = digamma_and_remainder(h_0)
    added = h - h_0
    gammas = (
        added * _psi_less_log(h, psi, log_h)
        - (h_0 - 0.5) * jnp.log1p(added / h_0)
        + (of_h_0 - of_h)
    )
    return normal + wishart + jnp.sum(gammas, axis=-1)


def log_marginal(prior: Hyper, statistics: Statistics) -> Float[Array, "*batch"]:
    r"""log p(y's | u's), coefficients and covariance integrated out.

    .. math:: -\tfrac{nd}{2} \log \pi + \log \tfrac{\Gamma_d(\nu/2)}{\Gamma_d(\nu_0/2)}
              + \tfrac{\nu_0}{2} \log |\Psi_0| - \tfrac{\nu}{2} \log |\Psi|
              + \tfrac d2 \log \tfrac{|\Lambda_0|}{|\Lambda|}
    """
    posterior = updated(prior, statistics)
    d = prior.scale.shape[-1]

    def log_det(matrix: Array) -> Array:
        return _log_det(jnp.linalg.cholesky(matrix))

    gammas = _log_gamma(_halves(posterior.degrees, d)) - _log_gamma(_halves(prior.degrees, d))
    return (
        -0.5 * d * math.log(math.pi) * statistics.number
        + jnp.sum(gammas, axis=-1)
        + 0.5 * prior.degrees * log_det(prior.scale)
        - 0.5 * posterior.degrees * log_det(posterior.scale)
        + 0.5 * d * (log_det(prior.precision) - log_det(posterior.precision))
    )


def seen_factor(
    covariance: Float[Array, "*batch d d"], seen: Float[Array, "*batch d"]
) -> Float[Array, "*batch d d"]:
    """Cholesky factor of the covariance of the components seen (1), the identity for others (0)."""
    both = seen[..., None] * seen[..., None, :]
    eye = jnp.eye(covariance.shape[-1], dtype=covariance.dtype)
    eye = eye.reshape((1,) * (covariance.ndim - 2) + eye.shape)
    return jnp.linalg.cholesky(both * covariance + (1.0 - seen)[..., None] * eye)


def log_kernel(
    location: Float[Array, "*batch p d"],
    covariance: Float[Array, "*batch d d"],
    seen: Float[Array, "*batch d"],
) -> Kernel:
    """log N(y; B^T u, Sigma) of the components that were seen; the others are summed out.

    Args:
        location: B.
        covariance: Sigma.
        seen: 1 for components that were seen, 0 for others; these are 0 in y.
    """
    factor = seen_factor(covariance, seen)
    whitening = transposed(_inverse_factor(factor)) * seen[..., None]
    constant = -0.5 * _log_det(factor) - 0.5 * math.log(2 * math.pi) * jnp.sum(seen, axis=-1)
    return Kernel(constant, jnp.concatenate([-location @ whitening, whitening], axis=-2))


def expected_log_kernel(hyper: Hyper, seen: Float[Array, "*batch d"]) -> Kernel:
    r"""What a step says of its latent in the mean field.

    Of a step that was seen as a whole, E[log N(y; B^T u, Sigma)]. Components that were not seen
    are latent too, and summed out of exp of it: with P = nu Psi^-1 and S = P^-1,

    .. math:: \tfrac12 (E \log|\Sigma^{-1}| + \log |S| - \log |S_{oo}| - |o| \log 2\pi
              - r_o^T S_{oo}^{-1} r_o - d\, u^T \Lambda^{-1} u).
    """
    p, d = hyper.location.shape[-2:]
    spread = hyper.scale / hyper.degrees[..., None, None]
    kernel = log_kernel(hyper.location, spread, seen)
    log_det = _log_det(jnp.linalg.cholesky(spread))
    constant = kernel.constant + 0.5 * (expected_log_det(hyper) + log_det)
    of_u = math.sqrt(d) * transposed(_inverse_factor(jnp.linalg.cholesky(hyper.precision)))
    below = jnp.zeros((*of_u.shape[:-2], d, p), of_u.dtype)
    uncertain = jnp.concatenate([of_u, below], axis=-2)
    return Kernel(constant, jnp.concatenate([kernel.weights, uncertain], axis=-1))


class Completion(NamedTuple):
    """Components that were not seen, given those that were.

    Attributes:
        fill: a F is (u, y) with the missing components of y as they are expected.
        covariance: Of the missing components, 0 for the others.
    """

    fill: Float[Array, "*batch pd pd"]
    covariance: Float[Array, "*batch d d"]


def completion(
    location: Float[Array, "*batch p d"],
    covariance: Float[Array, "*batch d d"],
    seen: Float[Array, "*batch d"],
) -> Completion:
    r"""Missing components given u and those seen: their normal distribution.

    .. math:: E[y_m] = B_m^T u + \Sigma_{mo} \Sigma_{oo}^{-1} r_o, \qquad
              \Sigma_{mm} - \Sigma_{mo} \Sigma_{oo}^{-1} \Sigma_{om}.
    """
    p, d = location.shape[-2:]
    inverse = _inverse_factor(seen_factor(covariance, seen)) * seen[..., None, :]
    missing = (1.0 - seen)[..., None, :]
    # r_o -> E[r_m]: whatever is seen times this.
    onto = transposed(inverse) @ (inverse @ (covariance * missing))
    eye_u = jnp.broadcast_to(jnp.eye(p, dtype=location.dtype), (*location.shape[:-2], p, p))
    eye_y = jnp.broadcast_to(jnp.eye(d, dtype=location.dtype), covariance.shape)
    above = jnp.concatenate([eye_u, location * missing - location @ onto], axis=-1)
    nothing = jnp.zeros((*location.shape[:-2], d, p), location.dtype)
    below = jnp.concatenate([nothing, eye_y * seen[..., None] + onto], axis=-1)
    rest = covariance * missing * transposed(missing) - transposed(
        inverse @ (covariance * missing)
    ) @ (inverse @ (covariance * missing))
    return Completion(jnp.concatenate([above, below], axis=-2), _symmetric(rest))


def completed(statistics: Statistics, given: Completion) -> Statistics:
    """Sums of a a^T in which missing components are as they are expected, with their spread."""
    outer = transposed(given.fill) @ statistics.outer @ given.fill
    p = outer.shape[-1] - given.covariance.shape[-1]
    added = outer[..., p:, p:] + statistics.number[..., None, None] * given.covariance
    return Statistics(statistics.number, outer.at[..., p:, p:].set(added))


class Noise(NamedTuple):
    """Randomness of a draw.

    Attributes:
        normal: Standard normal, for the coefficients.
        below: Standard normal; the part below the diagonal is used.
        log_gamma: Logs of Gamma((nu + 1 - i) / 2, 1) draws, i = 1..d.
    """

    normal: Float[Array, "*batch p d"]
    below: Float[Array, "*batch d d"]
    log_gamma: Float[Array, "*batch d"]


def gamma_shapes(hyper: Hyper) -> Float[Array, "*batch d"]:
    """Of which gamma distributions a draw needs draws."""
    return _halves(hyper.degrees, hyper.scale.shape[-1])


def drawn(
    hyper: Hyper, noise: Noise
) -> tuple[Float[Array, "*batch p d"], Float[Array, "*batch d d"]]:
    r"""Coefficients and covariance from a matrix-normal inverse-Wishart density.

    With Psi = L L^T and Bartlett's lower triangular A, :math:`\Sigma = F F^T`, F = L A^-T;
    with Lambda = K K^T, :math:`B = M + K^{-T} Z F^T`.

    References:
        Bartlett (1933), On the theory of statistical regression.
    """
    diagonal = jnp.exp(0.5 * (noise.log_gamma + math.log(2)))
    eye = jnp.eye(hyper.scale.shape[-1], dtype=diagonal.dtype)
    eye = eye.reshape((1,) * (noise.below.ndim - 2) + eye.shape)
    bartlett = jnp.tril(noise.below, -1) + diagonal[..., None] * eye
    factor = jnp.linalg.cholesky(hyper.scale) @ transposed(_inverse_factor(bartlett))
    inverse = _inverse_factor(jnp.linalg.cholesky(hyper.precision))
    coefficients = hyper.location + transposed(inverse) @ noise.normal @ transposed(factor)
    return coefficients, _symmetric(factor @ transposed(factor))


def log_predictive(
    hyper: Hyper, a: Float[Array, "*batch pd"], seen: Float[Array, "*batch d"]
) -> Float[Array, "*batch"]:
    r"""log p(y_o | u), coefficients and covariance integrated out: a multivariate Student t.

    .. math:: y \sim t_{\nu - d + 1}\big(M^T u,\ \tfrac{1 + u^T \Lambda^{-1} u}{\nu - d + 1}
              \Psi \big)
    """
    p, d = hyper.location.shape[-2:]
    freedom = hyper.degrees - (d - 1)
    inverse = _inverse_factor(jnp.linalg.cholesky(hyper.precision))
    stretch = 1.0 + jnp.sum((inverse @ a[..., :p, None]) ** 2, axis=(-2, -1))
    shape = hyper.scale * (stretch / freedom)[..., None, None]
    factor = seen_factor(shape, seen)
    residual = (a[..., p:] - (a[..., None, :p] @ hyper.location)[..., 0, :]) * seen
    white = solve_triangular(factor, residual[..., None], lower=True)
    quadratic = jnp.sum(white**2, axis=(-2, -1))
    number = jnp.sum(seen, axis=-1)
    half = 0.5 * (freedom + number)
    return (
        _log_gamma(half)
        - _log_gamma(0.5 * freedom)
        - 0.5 * number * jnp.log(math.pi * freedom)
        - 0.5 * _log_det(factor)
        - half * jnp.log1p(quadratic / freedom)
    )


def mode(hyper: Hyper) -> tuple[Float[Array, "*batch p d"], Float[Array, "*batch d d"]]:
    """Coefficients and covariance of highest joint density: M, Psi / (nu + d + p + 1)."""
    p, d = hyper.location.shape[-2:]
    return hyper.location, hyper.scale / (hyper.degrees + (d + p + 1))[..., None, None]


def mean(hyper: Hyper) -> tuple[Float[Array, "*batch p d"], Float[Array, "*batch d d"]]:
    """E[B] = M and E[Sigma] = Psi / (nu - d - 1)."""
    d = hyper.scale.shape[-1]
    return hyper.location, hyper.scale / (hyper.degrees - (d + 1))[..., None, None]
