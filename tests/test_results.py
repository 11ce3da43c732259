"""What a fit gives back, number by number: moments, modes and draws of every kind of posterior."""

import numpy as np
import pytest
from scipy import stats

from btil.inference.result import (
    Chance,
    DirichletRows,
    DrawnChannel,
    DrawnParameters,
    DrawnRows,
    JointNormals,
    MatrixNormalChannel,
    MixtureChannel,
    MixtureRows,
    MomentRows,
    NormalParameters,
    at_noise,
)

MANY = 20_000


def chance(seed: int = 0) -> Chance:
    return Chance(np.random.default_rng(seed))


def test_dirichlet_rows_have_their_moments_and_their_mode() -> None:
    w = np.array([[0.4, 3.0, 1.6], [2.0, 5.0, 3.0], [1.0, 1.0, 1.0]])
    rows = DirichletRows(w)
    for own, mean, sd in zip(w, rows.mean(), rows.sd(), strict=True):
        np.testing.assert_allclose(mean, stats.dirichlet(own).mean())
        np.testing.assert_allclose(sd, np.sqrt(stats.dirichlet(own).var()), rtol=1e-12)
    # A row without a mode has its mean.
    np.testing.assert_allclose(rows.mode(), [rows.mean()[0], [1 / 7, 4 / 7, 2 / 7], [1 / 3] * 3])
    drawn = rows.draw(MANY, chance())
    error = rows.sd() / np.sqrt(MANY)
    assert np.all(np.abs(drawn.mean(0) - rows.mean()) < 4.5 * error)
    np.testing.assert_allclose(drawn.std(0), rows.sd(), rtol=0.05)


def test_mixtures_spread_within_and_between_their_components() -> None:
    weights = np.array([0.2, 0.5, 0.3])
    w = np.random.default_rng(1).uniform(0.5, 6, size=(3, 2, 4))
    rows = MixtureRows(weights, w, "team")
    means = np.array([[stats.dirichlet(row).mean() for row in one] for one in w])
    variances = np.array([[stats.dirichlet(row).var() for row in one] for one in w])
    mean = np.einsum("k,krv->rv", weights, means)
    second = np.einsum("k,krv->rv", weights, variances + means**2)
    np.testing.assert_allclose(rows.mean(), mean)
    np.testing.assert_allclose(rows.sd(), np.sqrt(second - mean**2), rtol=1e-10)


def test_tables_and_channels_of_a_group_share_the_component_of_a_draw() -> None:
    """Components so sharp, and so far apart, that every draw tells which it is of."""
    weights = np.array([0.1, 0.6, 0.3])
    centres = np.array([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]])
    one, other = (MixtureRows(weights, 1e8 * c[:, None], "team") for c in (centres, centres[::-1]))
    apart = MixtureRows(weights, 1e8 * centres[:, None], "others")
    columns = MixtureChannel(
        weights,
        np.arange(3.0).reshape(3, 1, 1, 1, 1),
        np.full((3, 1, 1, 1, 1), 1e10),
        1e6 * np.array([1.0, 4.0, 9.0]).reshape(3, 1, 1, 1, 1),
        np.full((3, 1, 1), 1e6),
        "team",
    )
    drawn = chance()
    rows, reversed_rows, independent, points = (
        table.draw(3000, drawn) for table in (one, other, apart, columns)
    )
    found = np.abs(rows - centres[None]).sum(-1).argmin(1)
    np.testing.assert_array_equal(
        found, 2 - np.abs(reversed_rows - centres[None]).sum(-1).argmin(1)
    )
    np.testing.assert_allclose(points.coefficients[:, 0, 0, 0, 0], found, atol=0.01)
    np.testing.assert_allclose(points.covariance[:, 0, 0, 0, 0], (found + 1) ** 2, rtol=0.02)
    shares = np.bincount(found) / 3000
    assert np.all(np.abs(shares - weights) < 4.5 * np.sqrt(weights * (1 - weights) / 3000))
    alone = np.abs(independent - centres[None]).sum(-1).argmin(1)
    assert not np.array_equal(found, alone)
    mean = columns.mean()
    np.testing.assert_allclose(mean.coefficients.item(), weights @ [0, 1, 2])
    expected = weights @ (1e6 * np.array([1.0, 4.0, 9.0]) / (1e6 - 2))
    np.testing.assert_allclose(mean.covariance.item(), expected)


def test_moments_of_parts_are_those_of_the_draws() -> None:
    """Of an odd number of draws, the first of which is a part of its own."""
    draws = np.random.default_rng(2).normal(size=(3, 7, 4, 2))
    parts = [draws[:, :1], draws[:, 1:4], draws[:, 4:]]
    means = np.stack([part.mean(1) for part in parts], 1)
    squares = np.stack([((part - part.mean(1, keepdims=True)) ** 2).sum(1) for part in parts], 1)
    rows = MomentRows(np.array([1, 3, 3]), means, squares, np.array([1, 3]), draws[:, :, [1, 3]])
    np.testing.assert_allclose(rows.mean(), draws.mean((0, 1)))
    np.testing.assert_allclose(rows.sd(), draws.std((0, 1)))
    mean, sd = rows.chain_moments()
    np.testing.assert_allclose(mean, draws.mean(1))
    np.testing.assert_allclose(sd, draws.std(1))
    assert rows.places("policy", [3, 1, 3]).tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match=r"the draws of 2 of 4 contexts were kept, those of .* 2"):
        rows.places("policy", [1, 2])


def test_normal_parameters_take_their_noise_together_or_each_its_own() -> None:
    asked = []

    def noise(size: int) -> np.ndarray:
        asked.append(size)
        return np.random.default_rng(len(asked)).normal(size=(MANY, size))

    factor = np.array([[1.0, 0.0], [0.6, 0.8]])
    other = np.array([[[0.5, -2.0]]])
    drawn = DrawnParameters(np.zeros((1, 5, 2)))
    parameters = {
        "a": NormalParameters(np.array([1.0, -1.0]), np.array([0.5, 2.0])),
        "b": JointNormals(np.array([3.0, 4.0]), factor, "one"),
        "drawn": drawn,
        "c": NormalParameters(np.array([[7.0]]), np.array([[0.1]])),
        "d": JointNormals(np.array([[-5.0]]), other, "one"),
    }
    found = at_noise(parameters, noise)
    assert asked == [3, 2]
    assert set(found) == {"a", "b", "c", "d"}
    for name, values in found.items():
        one = parameters[name]
        assert values.shape == (MANY, *one.location.shape)
        error = one.scale / np.sqrt(MANY)
        assert np.all(np.abs(values.mean(0) - one.location) < 4.5 * error)
        np.testing.assert_allclose(values.std(0), one.scale, rtol=0.03)
    together = np.cov(np.column_stack([found["b"], found["d"].reshape(MANY, 1)]), rowvar=False)
    whole = np.concatenate([factor, other[0]])
    np.testing.assert_allclose(together, whole @ whole.T, atol=0.15)
    assert abs(np.corrcoef(found["a"][:, 0], found["c"][:, 0, 0])[0, 1]) < 0.03


def test_some_draws_are_of_all_chains_and_the_same_of_all_that_goes_together() -> None:
    number = np.arange(12.0).reshape(2, 6)
    rows, parameters = DrawnRows(number[..., None, None, None]), DrawnParameters(number)
    channel = DrawnChannel(
        number[..., None, None, None, None], -number[..., None, None, None, None]
    )
    drawn = chance(3)
    some = [one.draw(12, drawn) for one in (rows, parameters, channel)]
    np.testing.assert_array_equal(np.sort(some[1]), np.arange(12))
    np.testing.assert_array_equal(some[0].ravel(), some[1])
    np.testing.assert_array_equal(some[2].coefficients.ravel(), some[1])
    np.testing.assert_array_equal(some[2].covariance.ravel(), -some[1])
    assert not np.array_equal(some[1], np.arange(12))
    np.testing.assert_array_equal(rows.mean(), [[[5.5]]])
    np.testing.assert_allclose(rows.sd(), np.arange(12).std())
    assert channel.mean().coefficients.item() == 5.5


def test_draws_of_columns_have_the_moments_of_their_density() -> None:
    """Coefficients are uncertain by the noise of their column, and by the precision of inputs."""
    location = np.array([[1.0, -2.0], [0.5, 3.0]])
    precision = np.array([[4.0, 1.0], [1.0, 2.0]])
    scale = np.array([[6.0, 2.0], [2.0, 5.0]])
    channel = MatrixNormalChannel(
        *(part[None, None] for part in (location, precision, scale)), np.full((1, 1), 12.0)
    )
    coefficients, covariance = (part[:, 0, 0] for part in channel.draw(MANY, chance()))
    expected = scale / (12 - 3)
    np.testing.assert_allclose(channel.mean().covariance[0, 0], expected)
    np.testing.assert_array_equal(channel.mean().coefficients[0, 0], location)
    products = np.einsum("npd,nqe->npqde", coefficients - location, coefficients - location)
    within = np.linalg.inv(precision)
    for found, exact in (
        (coefficients, location),
        (covariance, expected),
        (products, np.einsum("pq,de->pqde", within, expected)),
    ):
        error = found.std(0) / np.sqrt(MANY)
        assert np.all(np.abs(found.mean(0) - exact) < 4.5 * error)
