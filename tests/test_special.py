"""Digamma and log Gamma against SciPy's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from btil.numerics import special as own
from btil.numerics.gammas import differentiable_log_gammas, draw_log_gammas
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
    both = by_cell(lambda x, y: (x - y, x + y), jnp.full(shape, 3.0), jnp.ones(shape))
    assert all(map(np.array_equal, both, (np.full(shape, 2.0), np.full(shape, 4.0))))


def test_two_results_are_the_two_parts_of_no_number_that_is_changed() -> None:
    """Not even where one of them is none, and gradients are those of each."""

    def apart(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return jnp.log(x), jnp.square(x)

    x = jnp.array([0.0, 2.0, jnp.inf, jnp.nan, -1.0])
    for found, known in zip(jax.jit(lambda x: by_cell(apart, x))(x), apart(x), strict=True):
        np.testing.assert_array_equal(found, known)

    def total(x: jax.Array, split: Any) -> jax.Array:
        first, second = split(x)
        return jnp.sum(first + 3 * second)

    x = jnp.array([0.5, 2.0])
    found = jax.grad(total)(x, lambda x: by_cell(apart, x))
    np.testing.assert_allclose(found, 1 / x + 6 * x, rtol=1e-6)


def divergences(w: np.ndarray, u: np.ndarray, dtype: Any) -> tuple[Any, Any, Any, Any]:
    terms = own.prior_terms(u)
    cells, sums = jax.tree.map(lambda values: jnp.asarray(values, dtype), terms)
    found = jax.jit(own.digamma_and_divergence)
    return (
        *found(jnp.asarray(w, dtype), cells),
        found(jnp.asarray(w.sum(-1), dtype), sums)[1],
        terms,
    )


@pytest.mark.parametrize("priors", ["small", "large"])
def test_divergences_of_cells(priors: str, dtype: Any) -> None:
    """Against the divergence as it is written, where that keeps enough digits."""
    u = np.concatenate([np.logspace(-2, np.log10(8), 40), [1.0, 1.2, 8.0]])
    if priors == "large":
        u = np.concatenate([u, np.logspace(1, 4, 40)])
    added = np.concatenate([[0, 1e-3, 0.1, 1, 4 - 1e-6, 4], np.logspace(0.7, 4, 60)])
    u, added = (one.ravel().astype(dtype)[:, None] for one in np.meshgrid(u, added))
    w = u + added
    psi, found, _, terms = divergences(w, u, dtype)
    assert (terms[0].log_u is None) == (priors == "small")
    assert psi.dtype == found.dtype == dtype
    w, u = w.astype(np.float64), u.astype(np.float64)
    exact = (w - u) * special.digamma(w) - special.gammaln(w) + special.gammaln(u)
    exact = exact - (w - u) if priors == "small" else exact
    assert units(psi, special.digamma(w), dtype) < 12
    size = 1 + np.abs(w - u) + (np.abs(special.gammaln(w)) if dtype == np.float64 else 0)
    assert np.max(np.abs(found - exact) / size) < 12 * np.finfo(dtype).eps


@pytest.mark.parametrize("latents", [2, 6])
@pytest.mark.parametrize("prior", [1.2, 1e4, 1e6])
def test_divergence_of_rows_in_single_precision_keeps_its_digits(
    prior: float, latents: int
) -> None:
    """Sticky priors and uses by the hundred: rounded cells do not add up to their rounded sum."""
    u = np.full((100, latents), 0.1)
    u[:, 0] = prior
    added = np.random.default_rng(0).gamma(0.5, 300, u.shape)
    u = u.astype(np.float32)
    w = u + added.astype(np.float32)
    _, cells, sums, _ = divergences(w, u, np.float32)
    exact = own.rows_divergence(w, u)
    assert float(jnp.sum(jnp.sum(cells, -1) - sums)) == pytest.approx(exact, rel=1e-6, abs=2e-3)


def test_divergence_of_rows_and_its_derivatives() -> None:
    """Against finite differences of the divergence as it is written, in double precision."""
    generator = np.random.default_rng(0)
    u = generator.uniform(0.05, 30, (6, 4))
    w = u * np.exp(generator.normal(0, 2, u.shape))

    def written(w: np.ndarray, u: np.ndarray) -> np.ndarray:
        n, sums, prior = w - u, w.sum(-1), u.sum(-1)
        log_mean = special.digamma(w) - special.digamma(sums)[:, None]
        of_cells = n * log_mean - special.gammaln(w) + special.gammaln(u)
        return of_cells.sum(-1) + special.gammaln(sums) - special.gammaln(prior)

    with jax.enable_x64(True):
        given = jnp.asarray(w), jnp.asarray(u)
        value, pull_back = jax.vjp(own.dirichlet_divergence, *given)
        slopes = pull_back(jnp.ones_like(value))
    np.testing.assert_allclose(value, written(w, u), rtol=1e-11)
    for cell in np.ndindex(2, 6, 4):
        move = np.zeros((2, 6, 4))
        move[cell] = 1e-5 * (w, u)[cell[0]][cell[1:]]
        ahead, behind = (written(w + s * move[0], u + s * move[1]).sum() for s in (1, -1))
        difference = (ahead - behind) / (2 * move[cell])
        assert slopes[cell[0]][cell[1:]] == pytest.approx(difference, rel=1e-5, abs=1e-6)


def test_gamma_draws_move_along_their_quantiles(dtype: Any) -> None:
    """The derivative of a draw's logarithm, against the quantile function at other shapes."""
    shapes = np.repeat([0.004, 0.05, 0.4, 1.0, 3.5, 40.0], 20)
    with jax.enable_x64(dtype == np.float64):
        given, ones = jnp.asarray(shapes, dtype), jnp.ones(len(shapes), dtype)
        key = jax.random.key(3)
        log_x, slope = jax.jvp(lambda a: differentiable_log_gammas(key, a), (given,), (ones,))
        assert np.array_equal(log_x, draw_log_gammas(key, given))
    log_x, slope = np.asarray(log_x, np.float64), np.asarray(slope, np.float64)
    tiny = log_x < -300
    assert tiny.any()
    limit = (special.digamma(shapes + 1) - log_x) / shapes
    np.testing.assert_allclose(slope[tiny], limit[tiny], rtol=1e-4)
    level = special.gammainc(shapes, np.exp(log_x))
    usable = ~tiny & (level < 1 - 1e-3)
    step = 1e-4 * shapes
    ahead, behind = (special.gammaincinv(shapes + s * step, level) for s in (1, -1))
    exact = (np.log(ahead[usable]) - np.log(behind[usable])) / (2 * step[usable])
    assert np.count_nonzero(usable) > 80
    np.testing.assert_allclose(slope[usable], exact, rtol=2e-3, atol=1e-4)
