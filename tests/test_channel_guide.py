"""The conjugate guide of continuous columns: bounds and densities where these are known."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from scipy.special import gammaln
from test_emissions import _demos, _log_evidence, _model

import btil
from btil.inference import channel_guide
from btil.inference.collapsed import collapsed_data
from btil.models.emission import Normals, channel_log_density
from btil.models.team import bind
from btil.numerics.matrix_normal import Hyper


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


def positive(generator, *shape):
    root = generator.normal(size=shape)
    return root @ np.swapaxes(root, -1, -2) + 0.5 * np.eye(shape[-1])


def test_draws_have_the_densities_that_their_parameters_say(monkeypatch, numpyro_as_it_is, x64):
    """The guide where it begins: its parameters, draws, log densities, and what is reported."""
    bound = bind(_model(covariates=("bob_x",)), _demos())
    structure, data = collapsed_data(bound, np.dtype(np.float64))
    generator = np.random.default_rng(0)
    monkeypatch.setattr(jax.random, "loggamma", lambda key, shape: jnp.log(shape) + 0.1)
    site = structure.channels[0]
    prior = data.channels[site.agent].steps.prior
    contexts, latents, p, d = prior.location.shape
    start = Hyper(
        jnp.asarray(generator.normal(size=(contexts, latents, p, d))),
        jnp.asarray(positive(generator, contexts, latents, p, p)),
        jnp.asarray(positive(generator, contexts, latents, d, d)),
        jnp.asarray(d + generator.uniform(0.5, 9, size=(contexts, latents))),
    )

    @jax.jit
    def sampled(start):
        guide = numpyro.handlers.seed(channel_guide.sample_guide, 0)
        traced = numpyro.handlers.trace(guide).get_trace(site, start, prior)
        params = {name: one["value"] for name, one in traced.items() if one["type"] == "param"}
        factor, coefficients = (traced[name] for name in (site.factor, site.standardised))
        logs = [one["fn"].log_prob(one["value"]) for one in (factor, coefficients)]
        density = channel_guide.channel_density(site, params)
        return density, factor["value"], coefficients["value"], sum(map(jnp.sum, logs))

    density, root, drawn, logs = jax.tree.map(np.asarray, sampled(start))
    for found, expected in zip(density, start, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    covariance = root @ np.swapaxes(root, -1, -2)
    # Of the factor the density is that of the covariance, with the Jacobian of the root.
    powers = d - np.arange(d)
    jacobian = d * np.log(2) + np.log(np.diagonal(root, axis1=-2, axis2=-1)) @ powers
    expected = channel_log_density(Normals(*density), drawn, covariance) + jacobian
    np.testing.assert_allclose(logs, expected.sum(), rtol=1e-8)
    outside = channel_guide.outside(bound, site.agent, density)
    inside = bound.channels[site.agent].units().inside(outside)
    for found, one in zip(inside, density, strict=True):
        np.testing.assert_allclose(found, one, rtol=1e-8)


def test_the_divergence_counts_coefficients_and_noise_once(x64):
    """One covariate and one column: of a normal given the noise, and of an inverse gamma."""

    def hyper(location, precision, scale, degrees):
        return Hyper(*(jnp.asarray(part)[None] for part in (
            [[location]], [[precision]], [[scale]], degrees)))  # fmt: skip

    own, prior = hyper(1.3, 4.0, 2.5, 9.0), hyper(0.2, 0.7, 1.1, 3.0)
    root, draw = jnp.full((1, 1, 1), 0.8), jnp.full((1, 1, 1), 0.4)
    factor = channel_guide.DrawnFactor(own, prior, root)
    coefficients = channel_guide.DrawnCoefficients(own, root, draw)
    np.testing.assert_array_equal(factor.sample(None), root)
    np.testing.assert_array_equal(coefficients.sample(None), draw)
    kl = numpyro.distributions.kl.kl_divergence
    of_prior = numpyro.distributions.InverseWishartCholesky(prior.degrees, scale_matrix=prior.scale)
    a, b, a_0, b_0 = 4.5, 1.25, 1.5, 0.55
    psi = float(jax.scipy.special.digamma(a))
    expected = (a - a_0) * psi - gammaln(a) + gammaln(a_0) + a_0 * np.log(b / b_0)
    expected += a * (b_0 - b) / b
    ratio = 0.7 / 4.0
    expected += 0.5 * (ratio - 1 - np.log(ratio) + a / b * 0.7 * 1.1**2)
    np.testing.assert_allclose(jax.jit(lambda: kl(factor, of_prior))(), [expected], rtol=1e-8)
    others = numpyro.distributions.MatrixNormal(prior.location, jnp.ones((1, 1, 1)), root)
    np.testing.assert_array_equal(kl(coefficients, others), [0.0])
