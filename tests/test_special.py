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
