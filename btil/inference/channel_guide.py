r"""The conjugate family as a NumPyro guide of continuous channels.

Per context and latent of a channel q is matrix-normal inverse-Wishart, as the prior is. Its
parameters are optimised in unconstrained space: the expected coefficients, the roots of precision
and scale (logs of their diagonals), and the log of the degrees of freedom beyond d - 1. Draws are
differentiable (Bartlett's factors, with implicit gradients of their Gamma draws), and the
divergence from the prior is taken in closed form, as by the mean field.

References:
    Figurnov, Mohamed, Mnih (2018), Implicit reparameterization gradients.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from jaxtyping import Array, Float
from numpyro import distributions as dist
from numpyro.distributions.kl import kl_divergence

from btil.inference.channels import (
    is_doubtful,
    labelled_statistics,
    laid_channels,
    updated_normals,
)
from btil.inference.mfvi import channel_outline
from btil.messages.layout import lay_out
from btil.models.emission import Normals
from btil.models.team import BoundModel
from btil.numerics.matrix_normal import (
    Hyper,
    Noise,
    Statistics,
    divergence,
    drawn,
    gamma_shapes,
    transposed,
)
from btil.numpyro_forms.model_data import ChannelSites

# Of the guide of a channel.
_PARAMETERS = ("location", "precision_root", "scale_root", "log_freedom")


class DrawnFactor(dist.InverseWishartCholesky):
    """The factor of a covariance, with the draw to give, and what its divergence is.

    Args:
        posterior: The density of coefficients and covariances.
        prior: The prior of these.
        draw: The draw.
    """

    def __init__(self, posterior: Hyper, prior: Hyper, draw: Float[Array, "*batch d d"]) -> None:
        self.posterior, self.prior, self.draw = posterior, prior, draw
        super().__init__(posterior.degrees, scale_matrix=posterior.scale)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Float[Array, "*batch d d"]:
        """The draw it came with."""
        assert not sample_shape
        return self.draw


class DrawnCoefficients(dist.MatrixNormal):
    """Coefficients given the factor, with the draw to give."""

    def __init__(
        self, posterior: Hyper, factor: Float[Array, "*batch d d"], draw: Float[Array, "*batch p d"]
    ) -> None:
        self.draw = draw
        rows = jnp.linalg.cholesky(jnp.linalg.inv(posterior.precision))
        super().__init__(posterior.location, rows, factor)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Float[Array, "*batch p d"]:
        """The draw it came with."""
        assert not sample_shape
        return self.draw


def _of_both(own: DrawnFactor, other: dist.InverseWishartCholesky) -> Float[Array, "*batch"]:
    """The divergence of coefficients and covariance together."""
    return divergence(own.posterior, own.prior)


def _counted_already(own: DrawnCoefficients, other: dist.MatrixNormal) -> Float[Array, "*batch"]:
    return jnp.zeros(own.batch_shape, own.draw.dtype)


kl_divergence.add((DrawnFactor, dist.InverseWishartCholesky), _of_both)
kl_divergence.add((DrawnCoefficients, dist.MatrixNormal), _counted_already)


def channel_start(
    bound: BoundModel, dtype: np.dtype, generator: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, Hyper]]:
    """Where the guide begins: at the labelled steps, or where few of them tell at a mean field.

    Returns:
        Counts of tables that go with it, where the mean field gives them, and a density for the
        channel of each agent, in the units of the fit.
    """
    layout = lay_out(bound)
    laid = laid_channels(bound, layout, dtype)
    counts: dict[str, np.ndarray] = {}
    if is_doubtful(bound):
        counts, sums = channel_outline(bound, dtype, generator, True)
    else:
        sums = labelled_statistics(bound, laid, layout, dtype)
    found = {}
    for agent, channel in bound.channels.items():
        normals = updated_normals(laid[channel.name], Statistics(*sums[channel.name]))
        found[agent] = Hyper(*(jnp.asarray(part, dtype) for part in normals))
    return counts, found


def channel_density(site: ChannelSites, params: Mapping[str, Array]) -> Hyper:
    """q of a channel, given the parameters of the guide."""
    names = parameter_names(site)
    location, precision, scale, freedom = (params[names[name]] for name in _PARAMETERS)
    d = scale.shape[-1]
    of_precision, of_scale = _root(precision), _root(scale)
    return Hyper(
        location,
        of_precision @ transposed(of_precision),
        of_scale @ transposed(of_scale),
        d - 1 + jnp.exp(freedom),
    )


def parameter_names(site: ChannelSites) -> dict[str, str]:
    """Names of the parameters of a channel's guide."""
    return {name: f"emission_{name}_{site.agent}" for name in _PARAMETERS}


def _root(free: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """A lower triangular root from logs of its diagonal and what is below."""
    diagonal = jnp.exp(jnp.diagonal(free, axis1=-2, axis2=-1))
    return jnp.tril(free, -1) + diagonal[..., None] * jnp.eye(free.shape[-1], dtype=free.dtype)


def _free(matrix: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    """The inverse of `_root`, of positive definite matrices."""
    root = jnp.linalg.cholesky(matrix)
    logs = jnp.log(jnp.diagonal(root, axis1=-2, axis2=-1))
    return jnp.tril(root, -1) + logs[..., None] * jnp.eye(root.shape[-1], dtype=root.dtype)


def sample_guide(site: ChannelSites, start: Hyper, prior: Hyper) -> None:
    """Sample a channel's sites from q."""
    names = parameter_names(site)
    d = start.scale.shape[-1]
    first = {
        "location": start.location,
        "precision_root": _free(start.precision),
        "scale_root": _free(start.scale),
        "log_freedom": jnp.log(start.degrees - (d - 1)),
    }
    params = {names[name]: jnp.asarray(numpyro.param(names[name], first[name])) for name in names}
    density = channel_density(site, params)
    normal = jax.random.normal(
        numpyro.prng_key(), (*density.degrees.shape, density.location.shape[-2] + d, d)
    ).astype(density.scale.dtype)
    log_gamma = jax.random.loggamma(numpyro.prng_key(), gamma_shapes(density))
    p = density.location.shape[-2]
    noise = Noise(normal[..., :p, :], normal[..., p:, :], log_gamma)
    coefficients, covariance = drawn(density, noise)
    factor = jnp.linalg.cholesky(covariance)
    prior = jax.tree.map(lambda leaf: jnp.asarray(leaf), prior)
    numpyro.sample(site.factor, DrawnFactor(density, prior, factor).to_event(2))
    numpyro.sample(site.standardised, DrawnCoefficients(density, factor, coefficients).to_event(2))


def outside(bound: BoundModel, agent: str, density: Hyper) -> Normals:
    """q in the units of the data."""
    parts: Any = [np.asarray(part, np.float64) for part in density]
    return bound.channels[agent].units().outside(Normals(*parts))
