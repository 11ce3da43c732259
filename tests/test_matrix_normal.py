"""Bayesian regression in closed form against quadrature, SciPy and other routes to the same."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from btil.numerics import matrix_normal as mn

pytestmark = pytest.mark.usefixtures("x64")


def _hyper(p: int, d: int, seed: int) -> mn.Hyper:
    generator = np.random.default_rng(seed)

    def positive(size: int) -> np.ndarray:
        root = generator.normal(size=(size, size + 2))
        return root @ root.T / size + 0.3 * np.eye(size)

    return mn.Hyper(
        jnp.asarray(generator.normal(size=(p, d))),
        jnp.asarray(positive(p)),
        jnp.asarray(positive(d)),
        jnp.asarray(d + 1.7),
    )


def _steps(p: int, d: int, n: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, 1]).normal(size=(n, p + d))


def _statistics(a: np.ndarray) -> mn.Statistics:
    return mn.Statistics(jnp.asarray(float(len(a))), jnp.asarray(a.T @ a))


def _log_density(hyper: mn.Hyper, coefficients: np.ndarray, covariance: np.ndarray) -> float:
    location, precision, scale, degrees = (np.asarray(part) for part in hyper)
    of_rows = stats.matrix_normal(location, np.linalg.inv(precision), covariance)
    return of_rows.logpdf(coefficients) + stats.invwishart(float(degrees), scale).logpdf(covariance)


def _log_normal(a: np.ndarray, coefficients: np.ndarray, covariance: np.ndarray) -> float:
    p = len(coefficients)
    return sum(
        stats.multivariate_normal(row[:p] @ coefficients, covariance).logpdf(row[p:]) for row in a
    )


@pytest.mark.parametrize(("p", "d"), [(1, 1), (1, 3), (3, 2)])
def test_bayes_theorem_at_any_point(p, d):
    """Prior times likelihood is marginal times posterior, wherever it is looked at."""
    prior, a = _hyper(p, d, 0), _steps(p, d, 7, 0)
    statistics = _statistics(a)
    posterior = mn.updated(prior, statistics)
    for seed in range(3):
        other = _hyper(p, d, 10 + seed)
        point = np.asarray(other.location), np.asarray(other.scale)
        joint = _log_density(prior, *point) + _log_normal(a, *point)
        marginal = joint - _log_density(posterior, *point)
        np.testing.assert_allclose(float(mn.log_marginal(prior, statistics)), marginal, rtol=1e-10)


def test_updates_come_in_any_parts():
    prior, a = _hyper(2, 2, 1), _steps(2, 2, 9, 1)
    whole = mn.updated(prior, _statistics(a))
    parts = mn.updated(mn.updated(prior, _statistics(a[:4])), _statistics(a[4:]))
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11)


def test_predictive_is_a_ratio_of_marginals_and_scipys_student():
    prior, a = _hyper(2, 3, 2), _steps(2, 3, 5, 2)
    before = mn.updated(prior, _statistics(a[:-1]))
    ahead = mn.log_marginal(prior, _statistics(a)) - mn.log_marginal(prior, _statistics(a[:-1]))
    seen = jnp.ones(3)
    found = float(mn.log_predictive(before, jnp.asarray(a[-1]), seen))
    np.testing.assert_allclose(found, ahead, rtol=1e-10)
    location, precision, scale, degrees = (np.asarray(part) for part in before)
    u, y = a[-1, :2], a[-1, 2:]
    freedom = float(degrees) - 2
    stretch = (1 + u @ np.linalg.solve(precision, u)) / freedom
    for kept in itertools.chain.from_iterable(itertools.combinations(range(3), n) for n in (1, 2)):
        kept = list(kept)
        student = stats.multivariate_t(
            (u @ location)[kept], stretch * scale[np.ix_(kept, kept)], df=freedom
        )
        mask = np.isin(np.arange(3), kept)
        row = jnp.asarray(np.concatenate([u, np.where(mask, y, 0.0)]))
        found = float(mn.log_predictive(before, row, jnp.asarray(mask.astype(float))))
        np.testing.assert_allclose(found, student.logpdf(y[kept]), rtol=1e-10)


@pytest.mark.parametrize(("p", "d"), [(1, 1), (2, 3)])
def test_expectations_and_divergence_against_draws_of_scipy(p, d):
    """Averages over draws that SciPy makes, within four standard errors."""
    prior, other = _hyper(p, d, 3), _hyper(p, d, 4)
    posterior = mn.updated(other, _statistics(_steps(p, d, 6, 3)))
    location, precision, scale, degrees = (np.asarray(part) for part in posterior)
    generator = np.random.default_rng(0)
    number = 4000
    covariances = stats.invwishart(float(degrees), scale).rvs(number, random_state=generator)
    covariances = covariances.reshape(number, d, d)
    row = _steps(p, d, 1, 5)
    log_det, log_normal, log_ratio = np.empty((3, number))
    for i, covariance in enumerate(covariances):
        noise = generator.normal(size=(p, d))
        coefficients = location + np.linalg.solve(np.linalg.cholesky(precision).T, noise) @ (
            np.linalg.cholesky(covariance).T
        )
        log_det[i] = -np.linalg.slogdet(covariance)[1]
        log_normal[i] = _log_normal(row, coefficients, covariance)
        log_ratio[i] = _log_density(posterior, coefficients, covariance) - _log_density(
            prior, coefficients, covariance
        )
    kernel = mn.expected_log_kernel(posterior, jnp.ones(d))
    expected = kernel.constant - 0.5 * jnp.sum((row[0] @ kernel.weights) ** 2)
    for found, values in (
        (mn.expected_log_det(posterior), log_det),
        (expected, log_normal),
        (mn.divergence(posterior, prior), log_ratio),
    ):
        error = values.std() / np.sqrt(number)
        assert abs(float(found) - values.mean()) < 4 * error


def test_coefficients_are_uncertain_once_for_every_column():
    r"""E log N = (E log|Sigma^-1| - d log 2 pi - nu r^T Psi^-1 r - d u^T Lambda^-1 u) / 2."""
    p, d = 2, 3
    hyper, (row,) = _hyper(p, d, 6), _steps(p, d, 1, 6)
    location, precision, scale, degrees = (np.asarray(part) for part in hyper)
    rest = row[p:] - row[:p] @ location
    expected = 0.5 * (
        float(mn.expected_log_det(hyper))
        - d * np.log(2 * np.pi)
        - degrees * rest @ np.linalg.solve(scale, rest)
        - d * row[:p] @ np.linalg.solve(precision, row[:p])
    )
    kernel = mn.expected_log_kernel(hyper, jnp.ones(d))
    found = kernel.constant - 0.5 * jnp.sum((row @ kernel.weights) ** 2)
    np.testing.assert_allclose(found, expected, rtol=1e-11)


def test_divergence_by_quadrature():
    """One number with one covariate: KL as an integral over the plane."""
    prior, posterior = _hyper(1, 1, 5), mn.updated(_hyper(1, 1, 6), _statistics(_steps(1, 1, 4, 6)))

    def log_density(hyper, b, log_v):
        m, precision, scale, degrees = (np.asarray(part).item() for part in hyper)
        v = np.exp(log_v)
        normal = stats.norm(m, np.sqrt(v / precision)).logpdf(b)
        gamma = stats.invgamma(degrees / 2, scale=scale / 2).logpdf(v)
        return normal + gamma + log_v

    def integrand(b, log_v):
        own = log_density(posterior, b, log_v)
        return np.exp(own) * (own - log_density(prior, b, log_v))

    grid_v = np.linspace(-6, 7, 700)
    centre = float(posterior.location[0, 0])
    grid = np.linspace(-1, 1, 801)
    values = []
    for log_v in grid_v:
        b = centre + 14 * np.exp(log_v / 2) / np.sqrt(float(posterior.precision[0, 0])) * grid
        values.append(integrate.simpson(integrand(b, log_v), x=b))
    by_quadrature = integrate.simpson(values, x=grid_v)
    np.testing.assert_allclose(float(mn.divergence(posterior, prior)), by_quadrature, rtol=1e-5)


@pytest.mark.parametrize("degrees", [3.0, 39.0, 44.0, 60.0, 5e3])
def test_divergence_of_a_number_is_of_a_normal_and_an_inverse_gamma(degrees):
    """In closed form, by SciPy, on both sides of where a series takes the digamma's place."""

    def hyper(location, precision, scale, degrees):
        return mn.Hyper(*(jnp.full(shape, x) for x, shape in (
            (location, (1, 1)), (precision, (1, 1)), (scale, (1, 1)), (degrees, ()))))  # fmt: skip

    m, k, b, m_0, k_0, b_0, a_0 = 0.7, 3.0, 2.5, -0.4, 1.1, 0.9, 1.25
    a = degrees / 2
    gamma = (a - a_0) * special.digamma(a) - special.gammaln(a) + special.gammaln(a_0)
    gamma += a_0 * np.log(b / b_0) + a * (b_0 - b) / b
    normal = 0.5 * (k_0 / k - 1 - np.log(k_0 / k) + a / (b / 2) * k_0 * (m - m_0) ** 2)
    found = mn.divergence(hyper(m, k, b, degrees), hyper(m_0, k_0, b_0, 2 * a_0))
    np.testing.assert_allclose(float(found), gamma + normal, rtol=1e-9)


def test_divergence_keeps_its_digits_in_single_precision():
    prior, a = _hyper(2, 2, 7), _steps(2, 2, 200, 7)
    statistics = mn.Statistics(jnp.asarray(2e5), jnp.asarray(1e3 * a.T @ a))
    posterior = mn.updated(prior, statistics)
    double = float(mn.divergence(posterior, prior))
    single = [jax.tree.map(lambda x: x.astype(jnp.float32), one) for one in (posterior, prior)]
    assert abs(float(mn.divergence(*single)) - double) < 1e-4 * double
    same = mn.divergence(prior, prior)
    assert abs(float(same)) < 1e-12


@pytest.mark.parametrize("seen", [(1, 1, 1), (0, 1, 1), (1, 0, 0), (0, 0, 0)])
def test_components_not_seen_are_summed_out(seen):
    hyper, a = _hyper(2, 3, 8), _steps(2, 3, 1, 8)[0]
    location, covariance = np.asarray(hyper.location), np.asarray(hyper.scale)
    mask = np.array(seen, bool)
    row = np.where(np.concatenate([[True, True], mask]), a, 0.0)
    kernel = mn.log_kernel(hyper.location, hyper.scale, jnp.asarray(mask.astype(float)))
    found = float(kernel.constant - 0.5 * jnp.sum((row @ kernel.weights) ** 2))
    mean = a[:2] @ location
    expected = 0.0
    if mask.any():
        own = covariance[np.ix_(mask, mask)]
        expected = stats.multivariate_normal(mean[mask], own).logpdf(a[2:][mask])
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)
    given = mn.completion(hyper.location, hyper.scale, jnp.asarray(mask.astype(float)))
    filled = np.asarray(row @ given.fill)
    gain = covariance[np.ix_(~mask, mask)] @ np.linalg.inv(covariance[np.ix_(mask, mask)])
    np.testing.assert_allclose(filled[:2], a[:2], rtol=1e-12)
    np.testing.assert_allclose(filled[2:][mask], a[2:][mask], rtol=1e-12)
    rest = mean[~mask] + gain @ (a[2:] - mean)[mask]
    np.testing.assert_allclose(filled[2:][~mask], rest, rtol=1e-10)
    conditional = covariance[np.ix_(~mask, ~mask)] - gain @ covariance[np.ix_(mask, ~mask)]
    whole = np.zeros((3, 3))
    whole[np.ix_(~mask, ~mask)] = conditional
    np.testing.assert_allclose(given.covariance, whole, atol=1e-12)
    statistics = mn.completed(_statistics(row[None]), given)
    outer = np.outer(filled, filled)
    outer[2:, 2:] += whole
    np.testing.assert_allclose(statistics.outer, outer, atol=1e-11)


def test_expected_kernel_of_a_blank_is_an_integral_over_it():
    """exp E[log N(y; ...)] of a pair, integrated over the component that nobody saw."""
    hyper, a = _hyper(2, 2, 9), _steps(2, 2, 1, 9)[0]
    whole = mn.expected_log_kernel(hyper, jnp.ones(2))

    def density(missing):
        row = np.array([a[0], a[1], a[2], missing])
        return float(jnp.exp(whole.constant - 0.5 * jnp.sum((row @ whole.weights) ** 2)))

    integral, _ = integrate.quad(density, -60, 60, limit=200)
    kernel = mn.expected_log_kernel(hyper, jnp.asarray([1.0, 0.0]))
    row = np.array([a[0], a[1], a[2], 0.0])
    found = float(kernel.constant - 0.5 * jnp.sum((row @ kernel.weights) ** 2))
    np.testing.assert_allclose(found, np.log(integral), rtol=1e-6)


@pytest.mark.parametrize(("p", "d"), [(1, 1), (2, 3)])
def test_the_joint_density_falls_away_from_its_mode(p, d):
    hyper = _hyper(p, d, 4)
    coefficients, covariance = (np.asarray(part) for part in mn.mode(hyper))
    highest = _log_density(hyper, coefficients, covariance)
    generator = np.random.default_rng(0)
    for _ in range(20):
        turned = np.eye(d) + generator.normal(size=(d, d)) / 1000
        near = coefficients + generator.normal(size=(p, d)) / 1000, turned @ covariance @ turned.T
        assert _log_density(hyper, *near) < highest


def test_draws_have_the_moments_of_the_density():
    hyper = _hyper(2, 2, 10)._replace(degrees=jnp.asarray(9.3))
    number = 20000
    generator = np.random.default_rng(1)
    shapes = np.asarray(mn.gamma_shapes(hyper))
    noise = mn.Noise(
        jnp.asarray(generator.normal(size=(number, 2, 2))),
        jnp.asarray(generator.normal(size=(number, 2, 2))),
        jnp.asarray(np.log(generator.gamma(shapes, size=(number, 2)))),
    )
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (number, *x.shape)), hyper)
    coefficients, covariance = (np.asarray(part) for part in mn.drawn(many, noise))
    location, precision, scale, degrees = (np.asarray(part) for part in hyper)
    expected = scale / (degrees - 3)
    within = np.linalg.inv(precision)
    # Covariance of vec(B): Lambda^-1 (x) E[Sigma], rows of B first.
    products = np.einsum("npd,nqe->npqde", coefficients - location, coefficients - location)
    log_det = np.linalg.slogdet(covariance)[1]
    exact_log_det = np.linalg.slogdet(scale)[1] - 2 * np.log(2) - special.digamma(
        (degrees - np.arange(2)) / 2
    ).sum()  # fmt: skip
    for found, exact in (
        (coefficients, location),
        (covariance, expected),
        (products, np.einsum("pq,de->pqde", within, expected)),
        (log_det, exact_log_det),
    ):
        error = found.std(0) / np.sqrt(number)
        assert np.all(np.abs(found.mean(0) - exact) < 4.5 * error)
