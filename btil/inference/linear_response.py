r"""Standard deviations that a mean field leaves out, by its linear response.

A mean field takes rows and latents to be independent, so its rows are too sure. How its optimum
moves when the log joint density is moved a little along a function g of the rows tells more: where
the mean field's means are right, the derivative of E_q[f] is the posterior covariance of f and g.
With V the covariance of the log rows under q, H the derivative of the expected counts with respect
to E_q[log row], and c_f = Cov_q(log row, f),

.. math:: \mathrm{Cov}(f, g) = \mathrm{Cov}_q(f, g) + c_f^T H (I - V H)^{-1} c_g .

The derivative of a sweep is J = H V (`btil.inference.contraction`), so that the matrix in the
middle is ((I - J)^{-1} - I) V^{-1}. J is made column by column, by forward differentiation of a
sweep. Its largest eigenvalue is the contraction rate: near 1 the correction is no longer small, and
what is left out of it is not either.

References:
    Giordano, Broderick, Jordan (2018), Covariances, robustness, and variational Bayes.
"""

from collections.abc import Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Int

from btil.inference.mean_field import Problem, State, StepForms, sweep
from btil.inference.mfvi import Run
from btil.inference.result import DirichletRows
from btil.messages.layout import pad_rows
from btil.models.team import BoundModel
from btil.numerics.precision import on_device, precision
from btil.numerics.special import trigamma

LARGEST_RATE = 0.9
"""With a contraction rate above this the correction is refused."""
MOST_CELLS = 5000
"""Of cells that latents are open about: a matrix of their number squared is solved."""

# A count that is less leaves its cell at its prior.
_UNUSED = 1e-9
# Columns that are made side by side.
_COLUMNS_AT_ONCE = 16


def corrected_sds(
    bound: BoundModel, rows: Mapping[str, DirichletRows]
) -> dict[str, Float[np.ndarray, "..."]]:
    """Standard deviations of all cells by linear response.

    Args:
        bound: The model on its data, of tables without parameters alone.
        rows: The mean field at its optimum.

    Returns:
        Of every learned table, (contexts, latents, values).

    Raises:
        ValueError: If there are more than 5,000 cells that data are counted in.
    """
    with precision(np.float64) as dtype:
        run = Run(bound, dtype, None, None, None)
        point = {
            site: on_device(pad_rows(w.concentration, run.num_rows[site], 1.0), dtype)
            for site, w in rows.items()
        }
        # Less the prior as it was rounded: a cell that nothing was counted in has no count.
        counted = {
            site: w - on_device(run.prior[site].astype(rows[site].concentration.dtype), dtype)
            for site, w in point.items()
        }
        counts, unravel = ravel_pytree(counted)
        used = np.flatnonzero(np.asarray(counts) > _UNUSED)
        if len(used) > MOST_CELLS:
            raise ValueError(
                f"sd: corrected=True solves a system of all cells in use, {len(used):,} here; "
                f"at most {MOST_CELLS:,}. Take the sd of posterior.refined()"
            )
        derivative = np.asarray(_derivative(point, jnp.asarray(used), run.problem, run.sites)).T
        middle = np.linalg.inv(np.eye(len(used)) - derivative) - np.eye(len(used))
        numbers = unravel(jnp.asarray(_numbered(used, counts.size)))
        found = {}
        for site, one in rows.items():
            own = np.asarray(numbers[site])[: len(one.concentration)]
            added = _added(one.concentration, own, middle)
            found[site] = np.sqrt(np.maximum(one.sd() ** 2 + added, 0.0))
        return found


def _numbered(used: Int[np.ndarray, " used"], size: int) -> Float[np.ndarray, " cells"]:
    """The number of each used cell among these; -1 of others."""
    numbers = np.full(size, -1.0)
    numbers[used] = np.arange(len(used))
    return numbers


@partial(jax.jit, static_argnames=("sites",))
def _derivative(
    point: dict[str, Float[Array, "..."]],
    used: Int[Array, " used"],
    problem: Problem,
    sites: StepForms,
) -> Float[Array, "used used"]:
    """Columns of the derivative of a sweep, of the used cells by the used cells."""
    flat, unravel = ravel_pytree(point)

    def swept(flat: Float[Array, " cells"]) -> Float[Array, " used"]:
        following, _ = sweep(State(unravel(flat)), problem, sites)
        return ravel_pytree(following.concentration)[0][used]

    def column(cell: Int[Array, ""]) -> Float[Array, " used"]:
        unit = jnp.zeros_like(flat).at[cell].set(1.0)
        return jax.jvp(swept, (flat,), (unit,))[1]

    return jax.lax.map(column, used, batch_size=_COLUMNS_AT_ONCE)


def _added(
    concentration: Float[np.ndarray, "*rows values"],
    numbers: Float[np.ndarray, "*rows values"],
    middle: Float[np.ndarray, "used used"],
) -> Float[np.ndarray, "*rows values"]:
    """What the response adds to the variance of every cell, row by row."""
    added = np.zeros_like(concentration, np.float64)
    for place in np.ndindex(concentration.shape[:-1]):
        own = np.flatnonzero(numbers[place] >= 0)
        if not len(own):
            continue
        w = concentration[place].astype(np.float64)
        mean = w / w.sum()
        # Cov(log row_j, row_k), for used j and all k.
        covariance = (np.eye(len(w))[own] - mean) / w.sum()
        of_row = np.ix_(numbers[place][own].astype(int), numbers[place][own].astype(int))
        information = np.diag(trigamma(w[own])) - trigamma(w.sum(keepdims=True))
        solved = np.linalg.solve(information, covariance)
        added[place] = np.einsum("jk,jl,lk->k", covariance, middle[of_row], solved)
    return added
