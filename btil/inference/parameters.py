r"""Parameters of parametric families: their mean field, and how Gibbs sampling moves them.

Both work in unconstrained space, where a parameter's prior density includes the Jacobian. Given
the expected or sampled uses n of every cell, the parameters :math:`\phi` matter through

.. math:: \log p(\phi) + \sum_{rows} \log \frac{B(u(\phi) + n)}{B(u(\phi))}
          \qquad\text{or}\qquad \log p(\phi) + \sum_{cells} n \log f(\phi)

for rows that are Dirichlet given them (and are integrated out here; B is the multivariate beta
function), or a function of them.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.scipy.special import gammaln
from jaxtyping import Array, Bool, Float, Int, Key

from btil.inference.messages import Layout
from btil.models.parametric import (
    ParametricSite,
    all_priors,
    constrain,
    given_concentration,
    given_log_rows,
    parametric_sites,
    unconstrained_log_density,
    unconstrained_shapes,
)
from btil.models.team import BoundModel
from btil.promotion import promotion_allowed

# Points at which an expectation over the normals is taken: 16 and their mirror images.
_HALF_OF_POINTS = 16
# Evaluations that a global step spends on the normals at most, and what ends it before.
_EVALUATIONS = 16
_LEAST_GAIN = 1e-5
_LEAST_LENGTH = 1e-3
_SUFFICIENT_DECREASE = 1e-4
_BACKTRACKING = 0.3
_LEAPFROG_STEPS = 8
_TARGET_ACCEPTANCE = 0.8
_FIRST_LOG_SCALE = -1.0
_FIRST_LOG_STEP = -2.0

Families = tuple[ParametricSite, ...]
Unconstrained = dict[str, Float[Array, "..."]]
Tables = Mapping[str, Float[Array, "..."]]


class Normals(NamedTuple):
    """Independent normals over the unconstrained values of all parameters.

    Attributes:
        location: Means, by site.
        log_scale: Logs of the standard deviations.
    """

    location: Unconstrained
    log_scale: Unconstrained


class FamilyData(NamedTuple):
    """The arrays of the parametric tables of a fit; rows are padded as in `Layout.num_rows`.

    Attributes:
        inputs: What rows depend on besides the parameters, by table.
        real: False in padding, by table.
        points: Standard normal points, (points, ...), by parameter site.
    """

    inputs: dict[str, dict[str, Float[Array, "..."]]]
    real: dict[str, Bool[Array, " rows"]]
    points: dict[str, Float[Array, "points ..."]]


def family_data(
    bound: BoundModel, layout: Layout, dtype: np.dtype, seed: int | None = None
) -> tuple[Families, FamilyData]:
    """The parametric tables of a bound model, and their arrays.

    Args:
        bound: The model on its data.
        layout: Its layout, for the padding.
        dtype: Floating-point type.
        seed: Independent points; None: those that a fit uses, evenly spread.

    Returns:
        What programs depend on, and what they are given.
    """
    families = parametric_sites(bound)
    inputs: dict[str, dict[str, Array]] = {}
    real = {}
    for family in families:
        contexts = bound.tables[family.name].contexts
        num_rows = layout.num_rows[family.name]
        index = np.minimum(np.arange(num_rows), len(contexts.rows) - 1)
        inputs[family.name] = {
            name: jnp.asarray(np.asarray(values)[index], dtype)
            for name, values in family.cpt.inputs(contexts).items()
        }
        real[family.name] = jnp.asarray(np.arange(num_rows) < len(contexts.rows))
    shapes = unconstrained_shapes(all_priors(families))
    return families, FamilyData(inputs, real, normal_points(shapes, dtype, seed))


def normal_points(
    shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype, seed: int | None = None
) -> dict[str, Float[Array, "points ..."]]:
    """Points that stand for a standard normal: mirrored, of variance 1 in each coordinate."""
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    if not sum(sizes):
        return {
            site: jnp.zeros((2 * _HALF_OF_POINTS, *shape), dtype) for site, shape in shapes.items()
        }
    if seed is None:
        # Takes long to import, and only fits with parameters need it.
        from scipy import special, stats

        sobol = stats.qmc.Sobol(sum(sizes), rng=np.random.default_rng(0))
        half = special.ndtri(sobol.random(_HALF_OF_POINTS))
        half = half / np.sqrt(np.mean(half**2, axis=0))
    else:
        half = np.random.default_rng(seed).standard_normal((_HALF_OF_POINTS, sum(sizes)))
    points = np.concatenate([half, -half])
    parts = np.split(points, np.cumsum(sizes)[:-1], axis=1)
    return {
        site: jnp.asarray(part.reshape(len(points), *shape), dtype)
        for (site, shape), part in zip(shapes.items(), parts, strict=True)
    }


def first_normals(families: Families, dtype: np.dtype) -> Normals:
    """Where the mean field starts: the centre of unconstrained space."""
    shapes = unconstrained_shapes(all_priors(families))
    return Normals(
        {site: jnp.zeros(shape, dtype) for site, shape in shapes.items()},
        {site: jnp.full(shape, _FIRST_LOG_SCALE, dtype) for site, shape in shapes.items()},
    )


def _over_points(
    function: Callable[[Unconstrained], Any], normals: Normals, data: FamilyData
) -> Any:
    """Average of a function of the unconstrained parameters over the normals' points."""

    def one(noise: Unconstrained) -> Any:
        return function(
            {
                site: normals.location[site] + jnp.exp(normals.log_scale[site]) * noise[site]
                for site in noise
            }
        )

    return jax.tree.map(lambda values: jnp.mean(values, axis=0), jax.vmap(one)(data.points))


def _entropy(normals: Normals) -> Float[Array, ""]:
    per_value = 0.5 * (1 + np.log(2 * np.pi))
    return sum(
        (jnp.sum(log_scale + per_value) for log_scale in normals.log_scale.values()),
        start=jnp.zeros(()),
    )


def _log_betas(concentrations: Tables) -> dict[str, Float[Array, "*rows"]]:
    """Log multivariate beta functions of the rows of all tables, from one log Gamma.

    It and its derivative are most of what there is to compile.
    """
    if not concentrations:
        return {}
    parts = [
        part.ravel() for rows in concentrations.values() for part in (rows, jnp.sum(rows, axis=-1))
    ]
    ends = np.cumsum([part.size for part in parts])[:-1]
    pieces = iter(jnp.split(gammaln(jnp.concatenate(parts)), ends))
    return {
        name: jnp.sum(next(pieces).reshape(rows.shape), -1) - next(pieces).reshape(rows.shape[:-1])
        for name, rows in concentrations.items()
    }


def row_concentrations(
    families: Families, parameters: Tables, data: FamilyData
) -> dict[str, Float[Array, "..."]]:
    """u of the tables whose rows are Dirichlet given the parameters, not broadcast."""
    return {
        family.name: given_concentration(family, parameters, data.inputs[family.name])
        for family in families
        if family.cpt.dirichlet_rows
    }


def log_functional_rows(
    families: Families, parameters: Tables, data: FamilyData
) -> dict[str, Float[Array, "..."]]:
    """Log rows of the tables whose rows are a function of the parameters, not broadcast."""
    return {
        family.name: given_log_rows(family, parameters, data.inputs[family.name])
        for family in families
        if not family.cpt.dirichlet_rows
    }


def _sum_of_rows(families: Families, data: FamilyData, by_row: Tables) -> Float[Array, ""]:
    """Sum of values of rows, (rows, *latents) or what broadcasts to it, padding left out."""
    total = jnp.zeros(())
    for family in families:
        if family.name in by_row:
            real = data.real[family.name]
            latents = family.shape[1:-1]
            full = jnp.broadcast_to(by_row[family.name], (len(real), *latents))
            mask = real.reshape(-1, *(1 for _ in latents))
            total = total + jnp.sum(jnp.where(mask, full, 0.0))
    return total


def _sum_of_uses(counts: Tables, logs: Tables) -> Float[Array, ""]:
    """Sum of n log f over the cells of rows that are a function of the parameters."""
    return sum((jnp.sum(counts[name] * rows) for name, rows in logs.items()), start=jnp.zeros(()))


def padded_rows(families: Families, rows: Tables, data: FamilyData) -> dict[str, Array]:
    """Rows of tables, not broadcast, for every context and the padding."""
    return {
        family.name: jnp.broadcast_to(
            rows[family.name], (len(data.real[family.name]), *family.shape[1:])
        )
        for family in families
        if family.name in rows
    }


def expected_log_rows(families: Families, normals: Normals, data: FamilyData) -> dict[str, Array]:
    """E[log row] of the tables whose rows are a function of the parameters, padded."""

    def at(unconstrained: Unconstrained) -> dict[str, Array]:
        return log_functional_rows(families, constrain(all_priors(families), unconstrained), data)

    if all(family.cpt.dirichlet_rows for family in families):
        return {}
    return padded_rows(families, _over_points(at, normals, data), data)


def divergence(
    families: Families,
    normals: Normals,
    data: FamilyData,
    concentration: Tables,
    log_means: Tables,
    log_betas: Tables,
) -> Float[Array, ""]:
    r"""What the parametric tables take from the bound.

    .. math:: E_q\Big[\sum_{rows} KL\big(\mathrm{Dir}(w) \,\|\, \mathrm{Dir}(u(\phi))\big)\Big]
              + KL(q(\phi) \| p(\phi))

    Args:
        families: The parametric tables.
        normals: q of the parameters.
        data: Their arrays.
        concentration: w of the Dirichlet rows among them.
        log_means: E[log row] under w.
        log_betas: log B(w) of every row.
    """
    priors = all_priors(families)

    def at(unconstrained: Unconstrained) -> Array:
        concentrations = row_concentrations(families, constrain(priors, unconstrained), data)
        of_prior = _log_betas(concentrations)
        by_row = {
            name: of_prior[name]
            - log_betas[name]
            + jnp.sum((concentration[name] - u) * log_means[name], -1)
            for name, u in concentrations.items()
        }
        density = unconstrained_log_density(priors, unconstrained)
        return _sum_of_rows(families, data, by_row) - density

    return _over_points(at, normals, data) - _entropy(normals)


def update(
    families: Families, normals: Normals, data: FamilyData, counts: Tables
) -> tuple[Normals, dict[str, Float[Array, "..."]]]:
    r"""The best normals and Dirichlet rows for given expected counts.

    For rows that are Dirichlet given the parameters the best w is :math:`E_q[u] + n`; put in, the
    part of the bound that depends on q is

    .. math:: \sum_{rows} \big( \log B(E_q[u] + n) - E_q[\log B(u)] \big)
              - KL(q(\phi) \| p(\phi)),

    and :math:`\sum n E_q[\log f]` in place of the sum for rows that are a function of them. A few
    steps of L-BFGS raise it; where they do not, the normals stay as they are.

    Expectations are averages over the same points throughout, so that nothing is random and the
    bound never falls; with fresh points it is estimated without the optimism of having been
    maximised over them.

    References:
        Giordano, Ingram, Broderick (2024), Black box variational inference with a deterministic
        objective, JMLR 25.
    """
    priors = all_priors(families)

    def at(unconstrained: Unconstrained) -> tuple[Array, dict[str, Array]]:
        parameters = constrain(priors, unconstrained)
        concentrations = row_concentrations(families, parameters, data)
        logs = log_functional_rows(families, parameters, data)
        density = unconstrained_log_density(priors, unconstrained)
        rows = _sum_of_rows(families, data, _log_betas(concentrations))
        return density + _sum_of_uses(counts, logs) - rows, concentrations

    def gain(normals: Normals) -> tuple[Array, dict[str, Array]]:
        total, expected = _over_points(at, normals, data)
        rows = {name: u + counts[name] for name, u in expected.items()}
        return total + _entropy(normals) + _sum_of_rows(families, data, _log_betas(rows)), rows

    best = _maximise(lambda normals: gain(normals)[0], normals)
    return best, gain(best)[1]


class _Ascent(NamedTuple):
    """Where `_maximise` is: the best point so far, and what it tries from there."""

    point: Float[Array, " values"]
    value: Float[Array, ""]
    gradient: Float[Array, " values"]
    direction: Float[Array, " values"]
    length: Float[Array, ""]
    gain: Float[Array, ""]
    tried: Int[Array, ""]
    memory: Any


def _maximise(function: Callable[[Normals], Array], start: Normals) -> Normals:
    """A few steps of L-BFGS uphill; never to a lower place.

    A step that does not pay is tried again shorter. The function is compiled once: the first
    evaluation is that of a step of no length.
    """
    # Loaded where it is needed: most fits have no parameters.
    import optax

    first, unravel = ravel_pytree(start)
    loss = jax.value_and_grad(lambda values: -function(unravel(values)))
    quasi_newton = optax.scale_by_lbfgs()
    zeros = jnp.zeros_like(first)

    def proceed(now: _Ascent) -> Bool[Array, ""]:
        promising = (now.gain > _LEAST_GAIN) & (now.length > _LEAST_LENGTH)
        return promising & (now.tried < _EVALUATIONS)

    def attempt(now: _Ascent) -> _Ascent:
        point = now.point + now.length * now.direction
        value, gradient = loss(point)
        slope = now.length * jnp.vdot(now.gradient, now.direction)
        # A comparison with NaN is false as well.
        better = value <= now.value + _SUFFICIENT_DECREASE * slope
        curved = jnp.vdot(point - now.memory.params, gradient - now.memory.updates) > 0
        memory = jax.tree.map(
            lambda old, fresh: jnp.where(curved, old, fresh), now.memory, quasi_newton.init(first)
        )
        with promotion_allowed():
            uphill, memory = quasi_newton.update(gradient, memory, point)
        gain, one, tried = now.value - value, jnp.ones_like(value), now.tried + 1
        moved = _Ascent(point, value, gradient, -uphill, one, gain, tried, memory)
        shorter = now._replace(length=_BACKTRACKING * now.length, tried=tried)
        return jax.tree.map(lambda yes, no: jnp.where(better, yes, no), moved, shorter)

    begin = _Ascent(
        point=first,
        value=jnp.asarray(jnp.inf, first.dtype),
        gradient=zeros,
        direction=zeros,
        length=jnp.ones((), first.dtype),
        gain=jnp.asarray(jnp.inf, first.dtype),
        tried=jnp.zeros((), jnp.int32),
        memory=quasi_newton.init(first),
    )
    return unravel(jax.lax.while_loop(proceed, attempt, begin).point)


# ---------------------------------------------------------------------- Gibbs sampling


class Moving(NamedTuple):
    """Where a chain's parameters are, and how far it dares to move them.

    Attributes:
        unconstrained: Their values, by site.
        log_step: Log of the step size of the leapfrog integrator.
    """

    unconstrained: Unconstrained
    log_step: Float[Array, ""]


def first_moving(families: Families, generator: np.random.Generator, dtype: np.dtype) -> Moving:
    """A start near the centre of unconstrained space."""
    shapes = unconstrained_shapes(all_priors(families))
    return Moving(
        {
            site: jnp.asarray(generator.uniform(-1, 1, shape), dtype)
            for site, shape in shapes.items()
        },
        jnp.asarray(_FIRST_LOG_STEP, dtype),
    )


def move(
    key: Key[Array, ""],
    moving: Moving,
    families: Families,
    data: FamilyData,
    counts: Tables,
    adaptation: Float[Array, ""],
) -> Moving:
    """One step of Hamiltonian Monte Carlo for the parameters given the counts, rows integrated out.

    It leaves p(parameters | latents) as it is, whatever the step size; that one is adapted towards
    an acceptance of 0.8 while `adaptation` is positive, and must be left alone afterwards.

    Args:
        key: Random key.
        moving: The chain's parameters.
        families: The parametric tables.
        data: Their arrays.
        counts: Uses of each cell along the latent paths, by table.
        adaptation: By how much the log step size may follow the acceptance.

    References:
        Neal (2011), MCMC using Hamiltonian dynamics; Robbins, Monro (1951).
    """
    priors = all_priors(families)

    def log_density(unconstrained: Unconstrained) -> Array:
        parameters = constrain(priors, unconstrained)
        concentrations = row_concentrations(families, parameters, data)
        before = _log_betas(concentrations)
        after = _log_betas({name: u + counts[name] for name, u in concentrations.items()})
        logs = log_functional_rows(families, parameters, data)
        by_row = {name: after[name] - before[name] for name in concentrations}
        density = unconstrained_log_density(priors, unconstrained)
        return density + _sum_of_uses(counts, logs) + _sum_of_rows(families, data, by_row)

    flat, unravel = ravel_pytree(moving.unconstrained)
    value_and_gradient = jax.value_and_grad(lambda values: log_density(unravel(values)))
    momentum_key, accept_key, step_key = jax.random.split(key, 3)
    momentum = jax.random.normal(momentum_key, flat.shape, flat.dtype)
    # Steps of varying length keep the trajectory from running in circles.
    step = jnp.exp(moving.log_step) * jax.random.uniform(step_key, (), flat.dtype, 0.7, 1.3)
    before, gradient = value_and_gradient(flat)

    def leapfrog(_: Any, carry: tuple[Array, Array, Array, Array]) -> Any:
        position, momentum, gradient, _ = carry
        momentum = momentum + step / 2 * gradient
        position = position + step * momentum
        value, gradient = value_and_gradient(position)
        return position, momentum + step / 2 * gradient, gradient, value

    begin = (flat, momentum, gradient, before)
    position, turned, _, after = jax.lax.fori_loop(0, _LEAPFROG_STEPS, leapfrog, begin)
    change = after - before - (jnp.sum(turned**2) - jnp.sum(momentum**2)) / 2
    acceptance = jnp.where(jnp.isnan(change), 0.0, jnp.exp(jnp.minimum(change, 0.0)))
    accepted = jax.random.uniform(accept_key, (), flat.dtype) < acceptance
    return Moving(
        unravel(jnp.where(accepted, position, flat)),
        moving.log_step + adaptation * (acceptance - _TARGET_ACCEPTANCE),
    )
