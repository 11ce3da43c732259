r"""Columns of which some have blank cells, one regression after the other.

Order the columns so that wherever one is blank the later ones are too: the pattern is *monotone*.
Then the density of a step is a product of regressions of each column on the covariates and the
columns before it,

.. math:: p(y \mid u) = \prod_j N(y_j;\ c_j^T (u, y_{<j}),\ \sigma_j^2),

and the matrix-normal inverse-Wishart prior of coefficients and covariance is a product of
normal-inverse-gamma densities of the :math:`(c_j, \sigma_j^2)`. Column j learns from the steps that
have it, and all is conjugate. Where blanks are not monotone no such order is there.

References:
    Little, Rubin (2019), Statistical analysis with missing data, 7.4; Dawid, Lauritzen (1993),
    Hyper Markov laws in the statistical analysis of decomposable graphical models.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.models.emission import Normals, Units


def column_order(seen: Bool[np.ndarray, "groups d"]) -> Int[np.ndarray, " d"] | None:
    """An order of columns in which a blank is followed by blanks alone; None if there is none.

    Args:
        seen: Which columns were seen, of each group of steps.
    """
    order = np.argsort(-seen.sum(0), kind="stable")
    ordered = seen[:, order]
    return order if np.all(ordered[:, :-1] >= ordered[:, 1:]) else None


class Regressions(NamedTuple):
    """Normal-inverse-gamma densities of the regressions, one of each column, in order.

    Coefficients are of the covariates, then of the columns before; those of others are 0.

    Attributes:
        location: Expected coefficients, (..., d, p + d - 1).
        precision: Their precision in units of the noise, the identity where they are 0.
        scale: Psi of the noise, (..., d).
        degrees: nu of the noise, (..., d).
    """

    location: Float[np.ndarray, "*batch d q"]
    precision: Float[np.ndarray, "*batch d q q"]
    scale: Float[np.ndarray, "*batch d"]
    degrees: Float[np.ndarray, "*batch d"]


def regressions_of(normals: Normals, order: Int[np.ndarray, " d"]) -> Regressions:
    r"""The densities of the regressions that matrix-normal inverse-Wishart densities are.

    With a the columns before j, and :math:`\Psi_{aa}` etc. parts of the scale,

    .. math:: \hat g = \Psi_{aa}^{-1} \Psi_{aj}, \quad
              \hat c_j = (M_j - M_a \hat g,\ \hat g), \quad
              P_j = \begin{pmatrix} \Lambda & \Lambda M_a \\
              M_a^T \Lambda & \Psi_{aa} + M_a^T \Lambda M_a \end{pmatrix}, \quad
              \Psi_{j.a} = \Psi_{jj} - \Psi_{ja} \hat g, \quad \nu_j = \nu - (d - j).
    """
    location, precision, scale, degrees = normals
    batch, (p, d) = location.shape[:-2], location.shape[-2:]
    location, scale = location[..., order], scale[..., order, :][..., order]
    q = p + d - 1
    found = Regressions(
        np.zeros((*batch, d, q)),
        np.broadcast_to(np.eye(q), (*batch, d, q, q)).copy(),
        np.zeros((*batch, d)),
        degrees[..., None] - (d - 1 - np.arange(d)),
    )
    for j in range(d):
        before, own = location[..., :j], location[..., j]
        slopes = np.linalg.solve(scale[..., :j, :j], scale[..., :j, j : j + 1])[..., 0]
        found.location[..., j, :p] = own - np.einsum("...pi,...i->...p", before, slopes)
        found.location[..., j, p : p + j] = slopes
        across = precision @ before
        found.precision[..., j, :p, :p] = precision
        found.precision[..., j, :p, p : p + j] = across
        found.precision[..., j, p : p + j, :p] = np.swapaxes(across, -1, -2)
        found.precision[..., j, p : p + j, p : p + j] = (
            scale[..., :j, :j] + np.swapaxes(before, -1, -2) @ across
        )
        left = np.einsum("...i,...i->...", scale[..., j, :j], slopes)
        found.scale[..., j] = scale[..., j, j] - left
    return found


def inputs_of(
    a: Float[np.ndarray, "steps pd"], order: Int[np.ndarray, " d"], column: int
) -> Float[np.ndarray, "steps pd"]:
    """(u, the columns before, 0..., the column itself) of steps that have it.

    Args:
        a: (u, y) of the steps.
        order: The order of the columns.
        column: Place of the column in it.
    """
    d = len(order)
    p = a.shape[1] - d
    y = a[:, p:][:, order]
    before = np.where(np.arange(d - 1) < column, y[:, : d - 1], 0.0)
    return np.concatenate([a[:, :p], before, y[:, column : column + 1]], axis=1)


def units_of(units: Units, order: Int[np.ndarray, " d"], column: int) -> Units:
    """Units of a column's regression, given those of the covariates and columns."""
    p, d = units.trend.shape
    trend, spread = units.trend[:, order], units.spread[order]
    whitening = np.eye(p + d - 1)
    whitening[:p, :p] = units.whitening
    whitening[:p, p : p + column] = -trend[:, :column] / spread[:column]
    whitening[np.arange(p, p + column), np.arange(p, p + column)] = 1 / spread[:column]
    own = np.append(trend[:, column], np.zeros(d - 1))
    return Units(whitening, own[:, None], spread[column : column + 1])


def composed(
    coefficients: Float[np.ndarray, "*batch d q"],
    noise: Float[np.ndarray, "*batch d"],
    order: Int[np.ndarray, " d"],
    uncertain: Float[np.ndarray, "*batch d q q"] | None = None,
) -> tuple[Float[np.ndarray, "*batch p d"], Float[np.ndarray, "*batch d d"]]:
    """Coefficients of the covariates alone, and the covariance, from the regressions.

    Args:
        coefficients: Of each regression, or what they are expected to be.
        noise: Variance that each leaves, or what it is expected to be.
        order: The order of the columns.
        uncertain: Inverse precisions: the result is then what is expected of it.
    """
    *batch, d, q = coefficients.shape
    p = q - d + 1
    onto, covariance = np.zeros((*batch, p, d)), np.zeros((*batch, d, d))
    for j in range(d):
        slopes = coefficients[..., j, p : p + j]
        own = np.einsum("...pi,...i->...p", onto[..., :j], slopes)
        onto[..., j] = coefficients[..., j, :p] + own
        of_before = covariance[..., :j, :j]
        across = np.einsum("...ik,...k->...i", of_before, slopes)
        covariance[..., :j, j] = covariance[..., j, :j] = across
        left = noise[..., j].copy()
        if uncertain is not None:
            spread = uncertain[..., j, p : p + j, p : p + j]
            left *= 1 + np.einsum("...ik,...ki->...", of_before, spread)
        covariance[..., j, j] = left + np.einsum("...i,...i->...", slopes, across)
    back = np.argsort(order)
    return onto[..., back], covariance[..., back, :][..., back]
