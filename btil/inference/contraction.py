r"""How fast coordinate ascent contracts, and whether its end is an optimum.

Let w be the concentrations of all rows and F(w) = u + n(w) a sweep, with n the expected counts
under the best q(latents). With m(w) = E_q[log row] and V = dm/dw, the Fisher information of the
Dirichlets, the derivative of the sweep is

.. math:: J = \frac{\partial F}{\partial w} = H V, \qquad
          H = \frac{\partial n}{\partial m} = \mathrm{Cov}_q(\text{counts}),

for n is the gradient of log Z(m). Both factors are positive semidefinite, so J has real
eigenvalues of at least 0, and is symmetric in the inner product of V. The gradient of the bound is
V (F(w) - w), and its Hessian at a fixed point V (J - I). The largest eigenvalue rho therefore says
all that matters at the end of an ascent:

- rho >= 1: a saddle. Along an eigenvector the bound grows, however little it moves now.
- rho < 1: an optimum. With r = F(w) - w at most :math:`r^T V r / 2 (1 - \rho)` is still to come.
- rho near 1: the latents say little beyond what q holds already, and the intervals of q, which
  leave that out, are far too narrow: the variance along the eigenvector is 1 / (1 - rho) times q's.

J is never formed. The Arnoldi method (of a symmetric J: Lanczos) finds rho from products with J,
each of which is the difference of two sweeps.

Rows that depend on parameters have counts n in place of w, and their V goes through the parameters.
V of Dirichlet rows with these counts stands for it as a measure of lengths: rho does not depend on
it, and what is still to come is right to a factor.

References:
    Dempster, Laird, Rubin (1977), Maximum likelihood from incomplete data via the EM algorithm,
    Section 3 (the rate of convergence as a ratio of informations); Golub and Van Loan (2013),
    Matrix computations, Sections 10.1 and 10.5; Giordano, Broderick, Jordan (2018), Covariances,
    robustness, and variational Bayes (the variance by linear response).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from btil.numerics.special import trigamma

Vector = Float[np.ndarray, " cells"]

# Products with the derivative, at least and at most.
_FEWEST, _MOST = 3, 25
# The residual that is small enough, as a share of 1 - rho, and the least it is compared with.
_ACCURACY, _LEAST_DISTANCE = 0.02, 0.1
# Beyond 1 by so much that neither rounding nor finite differences explain it.
_MARGIN = 2e-3
# By how much a difference of two sweeps moves a concentration at most, as a share of it.
_DIFFERENCE = {np.dtype(np.float32): 1e-2, np.dtype(np.float64): 1e-4}


class Spectrum(NamedTuple):
    """What some products with the derivative of a sweep tell of its eigenvalues.

    Attributes:
        rate: The largest Ritz value: the largest eigenvalue rho, or a little less.
        growth: Of the first vector what lies along Ritz vectors that grow; None where none
            does.
    """

    rate: float
    growth: Vector | None


def fisher_information(rows: list[Float[np.ndarray, "..."]]) -> Callable[[Vector], Vector]:
    r"""v -> V v, for the Fisher information V of Dirichlet rows, a block per row.

    .. math:: V = \mathrm{diag}(\psi'(w)) - \psi'(\textstyle\sum w)\, 1 1^T

    Args:
        rows: Concentrations, tables of rows on the last axis.

    Returns:
        The function, on all cells as one vector, table after table.
    """
    cells = [trigamma(w) for w in rows]
    sums = [trigamma(w.sum(-1, keepdims=True)) for w in rows]
    ends = np.cumsum([w.size for w in rows])[:-1]

    def apply(vector: Vector) -> Vector:
        products = []
        for of_cells, of_sums, part in zip(cells, sums, np.split(vector, ends), strict=True):
            v = part.reshape(of_cells.shape)
            products.append((of_cells * v - of_sums * v.sum(-1, keepdims=True)).ravel())
        return np.concatenate(products)

    return apply


def spectrum(
    sweeps: Callable[[list[Vector]], list[Vector]],
    point: Vector,
    information: Callable[[Vector], Vector],
    first: Vector,
    dtype: np.dtype,
    swept: Vector | None = None,
) -> Spectrum:
    """The largest eigenvalue of the derivative of a sweep, and where it grows.

    Args:
        sweeps: Several w -> F(w) of each, computed in `dtype`.
        point: The w at which the derivative is taken, positive.
        information: v -> V v (`fisher_information`).
        first: The first Arnoldi vector; a random one has a share in every eigenvector.
        dtype: The floating-point type of `sweeps`.
        swept: F at the point: differences are to one side then, half the work, and right to a
            hundredth or so. None: to both sides.

    Returns:
        The spectrum; nan where a sweep has no finite answer. Where `growth` is not None the largest
        eigenvalue is above 1 for certain if the derivative is symmetric: a Ritz value never exceeds
        it then.
    """
    step = _DIFFERENCE[np.dtype(dtype)]
    norm = np.sqrt(first @ information(first))
    if not norm > 0:  # nothing is counted: no latent is open, or no cell was ever used
        return Spectrum(0.0, None)
    # Cells that no path uses stay at their prior, and out of all vectors.
    used = np.flatnonzero(first)

    def dual_of(vector: Vector) -> Vector:
        whole = np.zeros_like(point)
        whole[used] = vector
        return information(whole)[used]

    def derivative_along(vector: Vector) -> Vector:
        moved = np.zeros_like(point)
        moved[used] = step / np.max(np.abs(vector / point[used])) * vector
        scale = norm_of(vector) / norm_of(moved[used])
        if swept is not None:
            (ahead,) = sweeps([point + moved])
            return (ahead - swept)[used] * scale
        ahead, behind = sweeps([point + moved, point - moved])
        return (ahead - behind)[used] * (scale / 2)

    def norm_of(vector: Vector) -> float:
        return float(np.sqrt(vector @ vector))

    basis = np.empty((_MOST, len(used)), dtype)
    duals = np.empty_like(basis)
    basis[0] = first[used] / norm
    duals[0] = dual_of(basis[0])
    projected = np.zeros((_MOST + 1, _MOST))
    for products in range(1, _MOST + 1):
        image = derivative_along(basis[products - 1].astype(np.float64))
        if not np.all(np.isfinite(image)):
            return Spectrum(np.nan, None)
        for _ in range(2):  # once more: rounding leaves a rest
            # Of one type: products of two are many times slower.
            shares = duals[:products] @ image.astype(dtype)
            projected[:products, products - 1] += shares
            image = image - shares @ basis[:products]
        dual = dual_of(image)
        rest = float(np.sqrt(max(image @ dual, 0.0)))
        values, vectors = np.linalg.eig(projected[:products, :products])
        largest = int(np.argmax(values.real))
        rate, error = float(values[largest].real), rest * float(np.abs(vectors[-1, largest]))
        enough = error < _ACCURACY * max(abs(1 - rate), _LEAST_DISTANCE)
        grows = rate > 1 + 10 * _MARGIN
        if rest <= 1e-6 or (products >= _FEWEST and enough) or (products >= 3 and grows):
            break
        if products < _MOST:
            projected[products, products - 1] = rest
            basis[products] = image / rest
            duals[products] = dual / rest
    growing = values.real >= 1 + _MARGIN
    growth = None
    if growing.any():
        shares = np.linalg.solve(vectors, np.eye(products)[0].astype(vectors.dtype))
        growth = np.zeros_like(point)
        growth[used] = (vectors[:, growing] @ shares[growing]).real @ basis[:products]
    return Spectrum(max(rate, 0.0), growth)


def step_length(residual: Vector, information: Callable[[Vector], Vector]) -> float:
    """r^T V r / 2: to second order at least half of what the sweep that moved by r gained."""
    return 0.5 * float(residual @ information(residual))


def still_to_come(step: float, rate: float) -> float:
    """What the bound may still gain at most: the step's length over 1 - rho."""
    return step / (1 - rate) if rate < 1 else np.inf
