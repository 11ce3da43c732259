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
from functools import reduce
from typing import Any, NamedTuple

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


class FisherInformation(NamedTuple):
    r"""v -> V v, for the Fisher information V of Dirichlet rows, a block per row.

    .. math:: V = \mathrm{diag}(\psi'(w)) - \psi'(\textstyle\sum w)\, 1 1^T

    Attributes:
        of_cells: psi' of all cells as one vector, table after table.
        of_sums: psi' of the rows' sums, of each table.
        values: Cells of a row of each table.
    """

    of_cells: Vector
    of_sums: tuple[Vector, ...]
    values: tuple[int, ...]

    def __call__(self, vector: Vector) -> Vector:
        """V v."""
        product = self.of_cells * vector
        begin = 0
        for sums, values in zip(self.of_sums, self.values, strict=True):
            end = begin + len(sums) * values
            v, own = (one[begin:end].reshape(-1, values) for one in (vector, product))
            # Cell by cell of all rows: loops over the few cells of one are slow.
            total = sums * reduce(np.add, v.T)
            for of_cell in own.T:
                of_cell -= total
            begin = end
        return product

    def astype(self, dtype: Any) -> "FisherInformation":
        """The same for vectors of another type."""
        of_sums = tuple(sums.astype(dtype) for sums in self.of_sums)
        return FisherInformation(self.of_cells.astype(dtype), of_sums, self.values)


def fisher_information(rows: list[Float[np.ndarray, "..."]]) -> FisherInformation:
    """The Fisher information of Dirichlet rows.

    Args:
        rows: Concentrations, tables of rows on the last axis.
    """
    return FisherInformation(
        np.concatenate([trigamma(w).ravel() for w in rows]),
        tuple(trigamma(w.sum(-1)).ravel() for w in rows),
        tuple(w.shape[-1] for w in rows),
    )


def spectrum(
    sweeps: Callable[[list[Vector]], list[Vector]],
    point: Vector,
    information: FisherInformation,
    first: Vector,
    dtype: np.dtype,
    swept: Vector | None = None,
    enough: float = np.inf,
) -> Spectrum:
    """The largest eigenvalue of the derivative of a sweep, and where it grows.

    Args:
        sweeps: Several w -> F(w) of each, computed in `dtype`.
        point: The w at which the derivative is taken, positive.
        information: Of the Dirichlet rows.
        first: The first Arnoldi vector; a random one has a share in every eigenvector.
        dtype: The floating-point type of `sweeps`, and of all long vectors here.
        swept: F at the point: differences are to one side then, half the work, and right to a
            hundredth or so. None: to both sides.
        enough: The search ends once the eigenvalue is known to be so large.

    Returns:
        The spectrum; nan where a sweep has no finite answer. Where `growth` is not None the largest
        eigenvalue is above 1 for certain if the derivative is symmetric: a Ritz value never exceeds
        it then.
    """
    step = _DIFFERENCE[np.dtype(dtype)]
    point, first = point.astype(dtype), first.astype(dtype)
    information = information.astype(dtype)
    # Cells that no path uses stay at their prior, and out of all vectors.
    used = (first != 0).astype(dtype)
    norm = np.sqrt(_inner(first, information(first)))
    if not norm > 0:  # nothing is counted: no latent is open, or no cell was ever used
        return Spectrum(0.0, None)

    def derivative_along(vector: Vector) -> Vector:
        length = dtype.type(step / np.max(np.abs(vector / point)))
        moved = length * vector
        if swept is not None:
            (ahead,) = sweeps([point + moved])
            return (ahead - swept) * (used / length)
        ahead, behind = sweeps([point + moved, point - moved])
        return (ahead - behind) * (used / (2 * length))

    basis = [first / norm]
    projected = np.zeros((_MOST + 1, _MOST))
    for products in range(1, _MOST + 1):
        image = derivative_along(basis[-1])
        if not np.all(np.isfinite(image)):
            return Spectrum(np.nan, None)
        for _ in range(2):  # once more: rounding leaves a rest
            dual = information(image)
            shares = np.array([_inner(one, dual) for one in basis])
            projected[:products, products - 1] += shares
            for share, one in zip(shares.astype(dtype), basis, strict=True):
                image -= share * one
        rest = float(np.sqrt(max(_inner(image, information(image)), 0.0)))
        values, vectors = np.linalg.eig(projected[:products, :products])
        largest = int(np.argmax(values.real))
        rate, error = float(values[largest].real), rest * float(np.abs(vectors[-1, largest]))
        accurate = error < _ACCURACY * max(abs(1 - rate), _LEAST_DISTANCE)
        grows = rate > 1 + 10 * _MARGIN
        if rest <= 1e-6 or (products >= _FEWEST and (accurate or grows)) or rate > enough:
            break
        if products < _MOST:
            projected[products, products - 1] = rest
            basis.append(image / rest)
    growing = values.real >= 1 + _MARGIN
    growth = None
    if growing.any():
        shares = np.linalg.solve(vectors, np.eye(products)[0].astype(vectors.dtype))
        weights = (vectors[:, growing] @ shares[growing]).real.astype(dtype)
        parts = [weight * one for weight, one in zip(weights, basis, strict=True)]
        growth = reduce(np.add, parts).astype(np.float64)
    return Spectrum(max(rate, 0.0), growth)


def _inner(one: Vector, other: Vector) -> float:
    # Not by BLAS, whose threads wait for one another while others have work for the cores.
    return float(np.einsum("i,i", one, other))


def step_length(residual: Vector, information: FisherInformation) -> float:
    """r^T V r / 2: to second order at least half of what the sweep that moved by r gained."""
    return 0.5 * float(residual @ information(residual))


def still_to_come(step: float, rate: float) -> float:
    """What the bound may still gain at most: the step's length over 1 - rho."""
    return step / (1 - rate) if rate < 1 else np.inf
