"""Exact inference with blank cells: against quadrature over them, and against the whole form."""

import numpy as np
import pytest
from test_emissions import _assert_same_posterior, _chains, _demos, _model, _rescaled

import btil
from btil.inference.exact import _integrated, _ordered_terms, _whole_terms
from btil.models.monotone import column_order, composed, regressions_of
from btil.models.team import bind


def test_regressions_one_after_the_other_are_the_whole_density():
    """Without a blank cell they say the same: densities, means, in any order of the columns."""
    demos = _demos(lengths=(7, 5))
    channel = bind(_model(covariates=("bob_x",)), demos).channels["ann"]
    units = channel.units()
    paths = np.random.default_rng(0).integers(2, size=(3, 12))
    whole, logs = _integrated(_whole_terms(channel, units), paths)
    for order in ([0, 1], [1, 0]):
        orders = np.tile(order, (len(channel.contexts), 1))
        _, again = _integrated(_ordered_terms(channel, units, orders), paths)
        np.testing.assert_allclose(again, logs, rtol=1e-10)
        regressions = regressions_of(whole, np.array(order))
        coefficients, covariance = composed(
            regressions.location,
            regressions.scale / (regressions.degrees - 2),
            np.array(order),
            np.linalg.inv(regressions.precision),
        )
        np.testing.assert_allclose(coefficients, whole.location, rtol=1e-8, atol=1e-10)
        expected = whole.scale / (whole.degrees - 3)[..., None, None]
        np.testing.assert_allclose(covariance, expected, rtol=1e-8)


def test_an_order_is_found_where_there_is_one():
    seen = np.array([[1, 1, 1], [0, 1, 1], [0, 0, 1], [0, 1, 1]], bool)
    np.testing.assert_array_equal(column_order(seen), [2, 1, 0])
    assert column_order(np.array([[1, 1, 0], [0, 1, 1]], bool)) is None
    assert column_order(np.zeros((0, 2), bool)) is not None


@pytest.mark.covers("blank cells of columns", "exact")
def test_exact_with_a_blank_cell_is_a_quadrature_over_it():
    """Evidence and means: fits with the cell filled in, along a grid."""
    demos = _demos(lengths=(2,), labelled=1, blank=[("ann_y", 1)])
    model = _model(parents=(), covariates=("bob_x",)).resolved(_demos())
    alone = btil.fit(model, demos, "exact", progress=False)
    centre, width = 1000.0, 2500.0
    angles = np.linspace(-1.55, 1.55, 61)
    grid = centre + width * np.tan(angles) / np.tan(1.55)
    stretch = width / np.cos(angles) ** 2 / np.tan(1.55) * (angles[1] - angles[0])
    logs, means = [], []
    for value in grid:
        filled = _rescaled(demos, lambda name, v, value=value: np.where(np.isnan(v), value, v))
        fitted = btil.fit(model, filled, "exact", progress=False)
        logs.append(fitted.elbo)
        means.append(fitted.emission("ann", 0).coefficients)
    weights = np.exp(np.array(logs) - max(logs)) * stretch
    evidence = np.log(weights.sum()) + max(logs)
    assert alone.elbo == pytest.approx(evidence, abs=1e-3)
    mean = np.tensordot(weights / weights.sum(), np.array(means), 1)
    np.testing.assert_allclose(alone.emission("ann", 0).coefficients, mean, rtol=1e-2)


@pytest.mark.covers("blank cells of columns", "exact")
def test_draws_with_blank_cells_are_those_of_gibbs():
    labelled = [[1, 0], [0, 1], [-1, -1], [1, 2], [0, -1]]
    blank = [("ann_y", 2), ("ann_y", 4)]
    demos = _demos(lengths=(3, 2), blank=blank).replace(latents=labelled)
    model = _model(parents=())
    gibbs = btil.fit(
        model, demos, "gibbs", progress=False, num_chains=4, num_warmup=100, num_samples=3000
    )
    exact = btil.fit(model, demos, "exact", progress=False)
    draws = exact.sample(40_000, seed=1)
    _assert_same_posterior(_chains(gibbs), draws)
    means, point = draws["emission_mean_ann"][:, 0], exact.emission("ann", 0).coefficients
    assert np.all(np.abs(means.mean(0) - point[0, :, 0]) < 4.5 * means.std(0) / 200)


def test_posteriors_with_blank_cells_are_saved_and_their_latents_renamed(tmp_path):
    from btil.analysis.alignment import rename_latents

    demos = _demos(lengths=(3, 2), blank=[("ann_y", 2), ("ann_x", 4)])  # in different contexts
    demos = demos.replace(states=[0, 1, 0, 0, 1])
    posterior = btil.fit(_model(), demos, "exact", progress=False)
    posterior.save(tmp_path / "one.nc")
    loaded = btil.load_posterior(tmp_path / "one.nc")
    for mine, theirs in zip(posterior.emission("ann"), loaded.emission("ann"), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    renamed = rename_latents(posterior, {"ann": np.array([1, 0]), "bob": np.arange(3)})
    for mine, theirs in zip(posterior.emission("ann"), renamed.emission("ann"), strict=True):
        np.testing.assert_allclose(mine[:, ::-1], theirs)


def test_blank_cells_without_an_order_are_refused():
    blank = [("ann_y", 2), ("ann_x", 4)]
    demos = _demos(lengths=(3, 2), blank=blank)
    with pytest.raises(ValueError, match=r"steps with ann_x but not ann_y stand beside.*use gibbs"):
        btil.fit(_model(parents=()), demos, "exact", progress=False)
