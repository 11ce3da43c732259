"""Digamma and log Gamma against SciPy's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from btil.numerics import special as own
from btil.numerics.special import by_cell


def digamma_and_log_gamma(x):
    psi, *rest = own.digamma_and_remainder(x)
    return psi, own.log_gamma(x, *rest)


@pytest.fixture(params=[np.float32, np.float64])
def dtype(request: pytest.FixtureRequest) -> Any:
    with jax.enable_x64(request.param == np.float64):
        yield request.param


def arguments(dtype: Any) -> np.ndarray:
    """From tiny to huge, with the roots, the poles' neighbourhood and the seams of the shift."""
    seams = np.concatenate([[n - 1e-6, n, n + 1e-6] for n in (1, 1.4616321, 2, 4, 8)])
    even = np.random.default_rng(0).uniform(0.01, 30, 20_000)
    return np.concatenate([np.logspace(-6, 8, 20_000), seams, even]).astype(dtype)


def units(found: Any, expected: np.ndarray, dtype: Any) -> float:
    """The greatest error in units in the last place of the value, or of 1 if that is more."""
    size = np.maximum(1, np.abs(expected))
    return (
        float(np.max(np.abs(np.asarray(found, np.float64) - expected) / size)) / np.finfo(dtype).eps
    )


def test_values(dtype: Any) -> None:
    x = arguments(dtype)
    psi, log_gamma = jax.jit(digamma_and_log_gamma)(jnp.asarray(x))
    assert psi.dtype == log_gamma.dtype == dtype
    exact = x.astype(np.float64)
    assert units(psi, special.digamma(exact), dtype) < 12
    assert units(log_gamma, special.gammaln(exact), dtype) < 16


def test_derivatives(dtype: Any) -> None:
    x = jnp.asarray(np.logspace(-3, 4, 200).astype(dtype))

    def total(x: Any) -> Any:
        psi, log_gamma = digamma_and_log_gamma(x)
        return jnp.sum(psi), jnp.sum(log_gamma)

    of_psi, of_log_gamma = jax.jit(jax.jacrev(total))(x)
    exact = np.asarray(x, np.float64)
    tolerance = 100 * np.finfo(dtype).eps
    np.testing.assert_allclose(of_psi, special.polygamma(1, exact), rtol=tolerance)
    np.testing.assert_allclose(of_log_gamma, special.digamma(exact), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3, 4)])
def test_shapes(shape: tuple[int, ...]) -> None:
    psi, log_gamma = digamma_and_log_gamma(jnp.full(shape, 3.0))
    assert psi.shape == log_gamma.shape == shape
    np.testing.assert_allclose(log_gamma, np.full(shape, np.log(2)), rtol=1e-6)
    twice = by_cell(jnp.add, jnp.ones(shape), jnp.ones(shape))
    assert np.array_equal(twice, np.full(shape, 2.0))


@pytest.mark.parametrize("priors", ["small", "large"])
def test_divergences_of_cells(priors: str, dtype: Any) -> None:
    """Against the divergence as it is written, where that keeps enough digits."""
    u = np.concatenate([np.logspace(-2, np.log10(8), 40), [1.0, 1.2, 8.0]])
    if priors == "large":
        u = np.concatenate([u, np.logspace(1, 4, 40)])
    added = np.concatenate([[0, 1e-3, 0.1, 1, 4 - 1e-6, 4], np.logspace(0.7, 4, 60)])
    u = u.astype(dtype)[:, None] + np.zeros(len(added), dtype)
    w = u + added.astype(dtype)
    terms = own.prior_terms(u)
    assert (terms.log_u is None) == (priors == "small")
    given = jax.tree.map(lambda values: jnp.asarray(values, dtype), terms)
    psi, found = jax.jit(own.digamma_and_divergence)(jnp.asarray(w), given)
    assert psi.dtype == found.dtype == dtype
    w, u = w.astype(np.float64), u.astype(np.float64)
    exact = (w - u) * (special.digamma(w) - 1) - special.gammaln(w) + special.gammaln(u)
    assert units(psi, special.digamma(w), dtype) < 12
    size = 1 + np.abs(w - u) + (np.abs(special.gammaln(w)) if dtype == np.float64 else 0)
    assert np.max(np.abs(found - exact) / size) < 12 * np.finfo(dtype).eps


def test_divergence_of_large_equal_rows_keeps_its_digits() -> None:
    """Single precision: a prior of a million a cell and ten uses more."""
    u = np.full((1, 3), 1e6)
    w = u + np.array([[10.0, 0.0, 2.0]])
    cells, sums = (
        jax.tree.map(lambda values: jnp.asarray(values, jnp.float32), own.prior_terms(one))
        for one in (u, u.sum(-1))
    )
    of_cells = own.digamma_and_divergence(jnp.asarray(w, jnp.float32), cells)[1]
    of_sums = own.digamma_and_divergence(jnp.asarray(w.sum(-1), jnp.float32), sums)[1]
    found = float(jnp.sum(of_cells) - of_sums[0])
    assert found == pytest.approx(own.rows_divergence(w, u), abs=2e-6)
