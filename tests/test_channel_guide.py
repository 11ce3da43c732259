"""The conjugate guide of continuous columns: bounds and densities where these are known."""

import numpy as np
import pytest
from test_emissions import _demos, _log_evidence, _model

import btil


@pytest.mark.parametrize("labelled", [7, 2])
def test_the_bound_is_at_most_the_evidence(labelled):
    """With all labels the posterior is in the family: the fit begins there, and stays."""
    demos, model = _demos(labelled=labelled), _model(covariates=("bob_x",))
    options = {"progress": False, "dtype": "float64"}
    fitted = btil.fit(
        model,
        demos,
        "svi",
        guide="dirichlet",
        max_iterations=10 if labelled == 7 else 800,
        **options,
    )
    evidence = _log_evidence(model, demos)
    error = fitted.result.elbo_standard_error
    if labelled == 7:
        exact = btil.fit(model, demos, "exact", progress=False)
        assert abs(fitted.elbo - evidence) < 0.5 + 4 * error
        (mean, covariance), (other, expected) = fitted.emission("ann"), exact.emission("ann")
        np.testing.assert_allclose(mean, other, rtol=0.3)
        diagonal = {"axis1": -2, "axis2": -1}
        np.testing.assert_allclose(
            np.diagonal(covariance, **diagonal), np.diagonal(expected, **diagonal), rtol=0.3
        )
    else:
        mean_field = btil.fit(model, demos, tolerance=1e-8, **options)
        assert mean_field.elbo - 0.3 - 4 * error < fitted.elbo < evidence + 4 * error
    draws = fitted.sample(5, seed=1)
    assert draws["emission_covariance_ann"].shape == (5, 2, 2, 2, 2)
    again = fitted.log_likelihood(demos, num_draws=3)
    assert np.isfinite(again).all()
