r"""Parameters of parametric families: their mean field, and how Gibbs sampling moves them.

Both work in unconstrained space, where a parameter's prior density includes the Jacobian. Given
the expected or sampled uses n of every cell, the parameters :math:`\phi` matter through

.. math:: f(\phi) = \log p(\phi) + \sum_{rows} \log \frac{B(u(\phi) + n)}{B(u(\phi))}
          \qquad\text{or}\qquad f(\phi) = \log p(\phi) + \sum_{cells} n \log \theta(\phi)

for rows that are Dirichlet given them (and are integrated out here; B is the multivariate beta
function), or a function of them.

The mean field keeps rows conditional on the parameters, q(parameters) q(rows | parameters): rows
that are Dirichlet given the parameters are Dirichlet(u(phi) + n), which is the best that they can
be, and rows that are a function of the parameters are that function. What is left to choose is
q(phi): a multivariate normal in unconstrained space.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key

from btil.inference.collapsed import rows_given_parameters
from btil.inference.points import normal_points, power_of_two
from btil.inference.result import FitResult, JointNormals
from btil.messages.layout import Layout
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
from btil.numerics.precision import on_device
from btil.numerics.special import digamma_and_remainder

# The points of a fit, and other sets of them for its bound.
OWN_POINTS, FRESH_POINTS = 0, range(1, 9)
# Fewest and most points of an expectation, each as a number and as a multiple of the values that
# are normal together; between them as many as there may be cells of tables at all points.
_FEWEST_POINTS = (64, 4)
_MOST_POINTS = (256, 32)
_CELLS = 2**20
_CELLS_AT_ONCE = 2**18
# Normals are fitted by so many evaluations at most; after a step that gains much by another one,
# after one that does not pay by a shorter one.
_EVALUATIONS = 12
_LARGE_GAIN = 0.1
_SHORTENING = 0.25
_SHORTEST = 1e-3
_FIRST_SCALE = 0.4
_LEAPFROG_STEPS = 8
_TARGET_ACCEPTANCE = 0.8
_FIRST_LOG_STEP = -2.0

Families = tuple[ParametricSite, ...]
Unconstrained = dict[str, Float[Array, "..."]]
Tables = Mapping[str, Float[Array, "..."]]


class Block(NamedTuple):
    """Parameters that are normal together: those of a table, or of tables that have some in common.

    Given the uses of all cells other parameters are independent of them.

    Attributes:
        sites: The parameters.
        shapes: Their shapes in unconstrained space.
    """

    sites: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @property
    def size(self) -> int:
        """Number of unconstrained values."""
        return sum(int(np.prod(shape)) for shape in self.shapes)


class Normals(NamedTuple):
    """Multivariate normals over the unconstrained values of the parameters, one per block.

    Blocks are padded to the size of the largest.

    Attributes:
        location: Means m.
        factor: Lower triangular C; the covariances are C C'.
    """

    location: Float[Array, "blocks values"]
    factor: Float[Array, "blocks values values"]


class FamilyData(NamedTuple):
    """The arrays of the parametric tables of a fit; rows are padded as in `Layout.num_rows`.

    Attributes:
        inputs: What rows depend on besides the parameters, by table.
        real: False in padding, by table.
        points: Points that stand for a standard normal, for any block as many of the values as it
            has; in parts, one evaluated after the other.
        evaluations: How often the bound may be evaluated to fit normals; 1 leaves them as they are.
        least_gain: What a step must gain for another one to be tried in the same sweep.
    """

    inputs: dict[str, dict[str, Float[Array, "..."]]]
    real: dict[str, Bool[Array, " rows"]]
    points: Float[Array, "parts points values"]
    evaluations: Int[Array, ""]
    least_gain: Float[Array, ""]


def family_data(
    bound: BoundModel, layout: Layout, dtype: np.dtype, seed: int | None = None
) -> tuple[Families, FamilyData]:
    """The parametric tables of a bound model, and their arrays.

    Args:
        bound: The model on its data.
        layout: Its layout, for the padding.
        dtype: Floating-point type.
        seed: Picks the points; 0 are those by which normals are fitted. Others are not whitened,
            and normals are only looked at. None: no points are needed.

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
            name: on_device(np.asarray(values)[index], dtype)
            for name, values in family.cpt.inputs(contexts).items()
        }
        real[family.name] = on_device(np.arange(num_rows) < len(contexts.rows), bool)
    evaluations = on_device(1 if seed else _EVALUATIONS, np.int32)
    gain = on_device(_LARGE_GAIN, dtype)
    if seed is None or not families:
        nowhere = on_device(np.zeros((1, 1, 0)), dtype)
        return families, FamilyData(inputs, real, nowhere, evaluations, gain)
    size = _padding(blocks_of(families)).shape[1]
    cells = sum(len(real[family.name]) * int(np.prod(family.shape[1:])) for family in families)
    number = num_points(size, cells)
    at_once = min(number, max(8, power_of_two(_CELLS_AT_ONCE // cells)))
    points = normal_points(size, number, seed, whitened=not seed).reshape(-1, at_once, size)
    return families, FamilyData(inputs, real, on_device(points, dtype), evaluations, gain)


def num_points(size: int, cells: int) -> int:
    """At how many points expectations are taken.

    What a maximum over normals owes to the points' being few goes with the number of values by
    that of points (`benchmarks/families.py`). Where tables are large data are many and normals
    narrow, and fewer will do.

    Args:
        size: Number of values that are normal together.
        cells: Number of cells of all tables.
    """
    least, most = (
        power_of_two(max(number, each * size), up=True)
        for number, each in (_FEWEST_POINTS, _MOST_POINTS)
    )
    return min(max(power_of_two(_CELLS // cells), least), most)


def excess(families: Families, data: FamilyData) -> float:
    r"""By how much :math:`\tfrac12 |z|^2` is larger at the points than for standard normals z.

    Normals that are fitted have the curvature -I in their own coordinates: with this added, the
    bound at some points has no error that is quadratic in z left.
    """
    squares = np.mean(np.asarray(data.points, np.float64) ** 2, axis=(0, 1))
    return 0.5 * sum(float(np.sum(squares[: one.size] - 1)) for one in blocks_of(families))


def blocks_of(families: Families) -> tuple[Block, ...]:
    """The parameters, those of tables that share some together."""
    shapes = unconstrained_shapes(all_priors(families))
    groups: list[list[str]] = []
    for family in families:
        joined = [site for _, site in family.parameters]
        apart = [group for group in groups if not set(group) & set(joined)]
        for group in groups:
            if group not in apart:
                joined = [*group, *(site for site in joined if site not in group)]
        groups = [*apart, joined]
    return tuple(Block(tuple(group), tuple(shapes[site] for site in group)) for group in groups)


def by_site(
    blocks: tuple[Block, ...], values: Float[Any, "blocks values *rest"]
) -> dict[str, Float[Any, "..."]]:
    """What blocks hold of each parameter, in its shape; further axes stay."""
    found = {}
    for number, block in enumerate(blocks):
        begin = 0
        for site, shape in zip(block.sites, block.shapes, strict=True):
            end = begin + int(np.prod(shape))
            found[site] = values[number, begin:end].reshape((*shape, *values.shape[2:]))
            begin = end
    return found


def first_normals(families: Families, dtype: np.dtype) -> Normals:
    """Where the mean field starts: the centre of unconstrained space."""
    padding = _padding(blocks_of(families))
    scale = np.where(padding, 1.0, _FIRST_SCALE)
    return Normals(
        on_device(np.zeros(padding.shape), dtype),
        on_device(scale[..., None] * np.eye(padding.shape[1]), dtype),
    )


def joint_normals(families: Families, normals: Normals) -> dict[str, JointNormals]:
    """The normals by parameter, without padding."""
    blocks = blocks_of(families)
    # On the host: cutting arrays up on a device takes a program for each piece.
    location, factor = (by_site(blocks, np.asarray(values)) for values in normals)
    return {
        site: JointNormals(location[site], factor[site][..., : block.size], block.sites[0])
        for block in blocks
        for site in block.sites
    }


def with_parameters(
    result: FitResult,
    bound: BoundModel,
    families: Families,
    normals: Normals,
    counts: Mapping[str, Float[Array | np.ndarray, "..."]],
    bounds: list[float],
) -> FitResult:
    """The result of a mean field with the parametric families' part.

    Args:
        result: The result without it.
        bound: The model on its data.
        families: The parametric tables.
        normals: The normals where the fit ended.
        counts: Expected uses of the cells of every parametric table there, which may be padded.
        bounds: The bound at sets of points that the normals were not fitted by.
    """
    assert result.elbo is not None
    assert result.elbo_trace is not None
    parameters = joint_normals(families, normals)
    own_counts = {
        family.name: np.asarray(counts[family.name])[: family.shape[0]]
        for family in families
        if family.cpt.dirichlet_rows
    }
    rows = {**result.rows, **rows_given_parameters(bound, parameters, own_counts)}
    elbo = float(np.mean(bounds))
    # Points that normals were fitted by flatter them, in all sweeps by about as much.
    flattery = result.elbo - elbo
    return result._replace(
        rows={name: rows[name] for name in bound.learned},
        parameters=parameters,
        elbo=elbo,
        elbo_standard_error=float(np.std(bounds, ddof=1) / np.sqrt(len(bounds))),
        elbo_trace=result.elbo_trace - flattery,
        restart_traces=tuple(trace - flattery for trace in result.restart_traces),
    )


def _padding(blocks: tuple[Block, ...]) -> Bool[np.ndarray, "blocks values"]:
    # Rows of a single cell have no values that could be normal; arrays are not empty all the same.
    size = max(1, *(block.size for block in blocks))
    return np.arange(size) >= np.array([[block.size] for block in blocks])


# ---------------------------------------------------------------------- Dirichlet rows


class RowMoments(NamedTuple):
    """Of the rows of a table that are Dirichlet(u + n), at each point.

    Attributes:
        log_mean: E[log row] = digamma(u + n) - digamma(sum(u + n)).
        log_mean_before: The same of Dirichlet(u).
        divergence: KL(Dirichlet(u + n) || Dirichlet(u)), summed over the rows.
    """

    log_mean: Float[Array, "points *rows values"]
    log_mean_before: Float[Array, "points *some_rows values"]
    divergence: Float[Array, " points"]


def row_moments(concentrations: Tables, counts: Tables) -> dict[str, RowMoments]:
    r"""The moments of all tables, from one evaluation of the special functions.

    That is most of what there is to compile. The divergence of a row is
    :math:`\sum_j c(n_j, u_j) - c(\sum n, \sum u)`,

    .. math:: c(n, u) = n (\psi(w) - \log w) + n - \big(u - \tfrac12\big) \log(w / u)
              - R(w) + R(u), \qquad w = u + n,

    as in `btil.inference.mean_field.dirichlet_divergence`; rows of no counts have none.

    Args:
        concentrations: u, (points, contexts or 1, ..., values).
        counts: n, (contexts, ..., values).
    """
    parts = []
    for name, u in concentrations.items():
        w = u + counts[name][None]
        parts += [u, jnp.sum(u, -1), w, jnp.sum(w, -1)]
    found = iter(_special_functions(parts))
    moments = {}
    for name, u in concentrations.items():
        cells_before, sums_before, cells, sums = (next(found) for _ in range(4))
        n = counts[name][None]
        of_cells = _divergence_term(n, u, cells_before, cells)
        of_sums = _divergence_term(jnp.sum(n, -1), jnp.sum(u, -1), sums_before, sums)
        moments[name] = RowMoments(
            cells[0] - sums[0][..., None],
            cells_before[0] - sums_before[0][..., None],
            _sum_at_points(of_cells) - _sum_at_points(of_sums),
        )
    return moments


Special = tuple[Float[Array, "..."], Float[Array, "..."], Float[Array, "..."]]


def _special_functions(parts: list[Float[Array, "..."]]) -> list[Special]:
    """`digamma_and_remainder` of several arrays."""
    if not parts:
        return []
    together = digamma_and_remainder(jnp.concatenate([part.ravel() for part in parts]))
    ends = np.cumsum([part.size for part in parts])[:-1].tolist()
    psi, log, remainder = (jnp.split(values, ends) for values in together)
    return [
        (psi[i].reshape(part.shape), log[i].reshape(part.shape), remainder[i].reshape(part.shape))
        for i, part in enumerate(parts)
    ]


def _divergence_term(
    n: Float[Array, "..."], u: Float[Array, "..."], before: Special, after: Special
) -> Float[Array, "..."]:
    _, log_u, remainder_u = before
    psi, log_w, remainder_w = after
    # Where n is small the difference of logs has no digits; where it is large n / u may overflow.
    growth = jnp.where(n > u, log_w - log_u, jnp.log1p(jnp.minimum(n / u, 1.0)))
    return n * (psi - log_w) + (n - (u - 0.5) * growth) + (remainder_u - remainder_w)


def _sum_at_points(values: Float[Array, "points ..."]) -> Float[Array, " points"]:
    return jnp.sum(values, axis=tuple(range(1, values.ndim)))


# ---------------------------------------------------------------------- what parameters say


class Given(NamedTuple):
    """What the parameters say.

    Attributes:
        density: Log prior density of each block in unconstrained space.
        concentrations: u of the tables whose rows are Dirichlet given the parameters; not
            broadcast.
        log_rows: Log rows of the tables whose rows are a function of the parameters; not broadcast.
    """

    density: Float[Array, "*points blocks"]
    concentrations: dict[str, Float[Array, "..."]]
    log_rows: dict[str, Float[Array, "..."]]


def _given(families: Families, data: FamilyData, unconstrained: Unconstrained) -> Given:
    """What the parameters say at one point."""
    priors = all_priors(families)
    parameters = constrain(priors, unconstrained)
    density = [
        unconstrained_log_density({site: priors[site] for site in block.sites}, unconstrained)
        for block in blocks_of(families)
    ]
    return Given(
        jnp.stack(density),
        row_concentrations(families, parameters, data),
        log_functional_rows(families, parameters, data),
    )


def row_concentrations(
    families: Families, parameters: Tables, data: FamilyData
) -> dict[str, Float[Array, "..."]]:
    """u of the tables whose rows are Dirichlet given the parameters, not broadcast."""
    return {
        family.name: _whole_rows(
            family, given_concentration(family, parameters, data.inputs[family.name])
        )
        for family in families
        if family.cpt.dirichlet_rows
    }


def log_functional_rows(
    families: Families, parameters: Tables, data: FamilyData
) -> dict[str, Float[Array, "..."]]:
    """Log rows of the tables whose rows are a function of the parameters, not broadcast."""
    return {
        family.name: _whole_rows(
            family, given_log_rows(family, parameters, data.inputs[family.name])
        )
        for family in families
        if not family.cpt.dirichlet_rows
    }


def _whole_rows(family: ParametricSite, rows: Float[Array, "..."]) -> Float[Array, "..."]:
    """Rows whose last axis is in full, whatever the others are."""
    return jnp.broadcast_to(rows, (*rows.shape[:-1], family.shape[-1]))


def padded_rows(families: Families, rows: Tables, data: FamilyData) -> dict[str, Array]:
    """Rows of tables, not broadcast, for every context and the padding."""
    return {
        family.name: jnp.broadcast_to(
            rows[family.name], (len(data.real[family.name]), *family.shape[1:])
        )
        for family in families
        if family.name in rows
    }


class Uses(NamedTuple):
    """What the uses n of all tables make of what the parameters say, at each point.

    Attributes:
        value: f, of every block.
        slope: Its derivatives by `Given`.
        log_means: E[log row] given the parameters, padded.
        divergence: Of the rows that are Dirichlet from their priors, less the log prior density of
            the parameters; of every block.
    """

    value: Float[Array, "points blocks"]
    slope: Given
    log_means: dict[str, Float[Array, "points ..."]]
    divergence: Float[Array, "points blocks"]


def _uses(families: Families, given: Given, counts: Tables) -> Uses:
    r"""The function f of the parameters at the head of this module, and what comes with it.

    The derivative of :math:`\log B(u + n) - \log B(u)` by u is E[log row] under Dirichlet(u + n)
    less the same under Dirichlet(u).
    """
    owners = _owners(families)
    moments = row_moments(given.concentrations, counts)
    values, divergence = list(given.density.T), list(-given.density.T)
    by_concentration, by_log_row, log_means = {}, {}, {}
    for family in families:
        name = family.name
        n = counts[name][None]
        if name in moments:
            after, before, apart = moments[name]
            gain = _sum_at_points(n * after) - apart
            shared = _shared_axes(before, after)
            repeats = after.size // before.size
            by_concentration[name] = jnp.sum(after, shared, keepdims=True) - repeats * before
            log_means[name] = after
            divergence[owners[name]] = divergence[owners[name]] + apart
        else:
            rows = given.log_rows[name]
            n = jnp.sum(n, _shared_axes(rows, n), keepdims=True)
            gain = _sum_at_points(n * rows)
            by_log_row[name] = jnp.broadcast_to(n, rows.shape)
            log_means[name] = rows
        values[owners[name]] = values[owners[name]] + gain
    slope = Given(jnp.ones_like(given.density), by_concentration, by_log_row)
    return Uses(jnp.stack(values, axis=1), slope, log_means, jnp.stack(divergence, axis=1))


def _owners(families: Families) -> dict[str, int]:
    """The block that each table's parameters are in."""
    owners = {site: k for k, block in enumerate(blocks_of(families)) for site in block.sites}
    return {family.name: owners[family.parameters[0][1]] for family in families}


def _shared_axes(some: Float[Array, "..."], full: Float[Array, "..."]) -> tuple[int, ...]:
    """The axes, points aside, along which one entry stands for many."""
    sizes = zip(some.shape, full.shape, strict=True)
    return tuple(axis for axis, (own, all_of) in enumerate(sizes) if axis and own < all_of)


# ---------------------------------------------------------------------- mean field


def _at(
    normals: Normals, points: Float[Array, "points values"]
) -> Float[Array, "points blocks values"]:
    """Values of the parameters at standard normal points."""
    return normals.location[None] + _product("bij,pj->pbi", normals.factor, points)


def _product(subscripts: str, *arrays: Float[Array, "..."]) -> Float[Array, "..."]:
    return jnp.einsum(subscripts, *arrays, precision=lax.Precision.HIGHEST)


def _entropy(families: Families, normals: Normals) -> Float[Array, " blocks"]:
    sizes = np.array([block.size for block in blocks_of(families)])
    logs = jnp.log(jnp.diagonal(normals.factor, axis1=1, axis2=2))
    constant = jnp.asarray(0.5 * (1 + np.log(2 * np.pi)) * sizes, logs.dtype)
    return jnp.sum(logs, axis=1) + constant


class Look(NamedTuple):
    r"""The bound as a function of the normals, around given ones, in their own coordinates.

    These are :math:`\phi = m + C z`, z standard normal.

    Attributes:
        value: :math:`E_q[f(\phi)]` + entropy, of every block.
        slope: :math:`E_q[\partial f / \partial z]`.
        curvature: :math:`E_q[\partial f / \partial z \; z']`, which is that of the Hessian of f
            along z, by Stein's identity.
        log_means: E[log row] of all parametric tables, not broadcast.
        divergence: What they take from the bound, by block.
    """

    value: Float[Array, " blocks"]
    slope: Float[Array, "blocks values"]
    curvature: Float[Array, "blocks values values"]
    log_means: dict[str, Float[Array, "..."]]
    divergence: Float[Array, " blocks"]


# Under jit it is traced once, though it is called for its shapes and in a loop.
@partial(jax.jit, static_argnames=("families",))
def _look(families: Families, normals: Normals, data: FamilyData, counts: Tables) -> Look:
    blocks = blocks_of(families)

    def given(values: Float[Array, "points blocks values"]) -> Given:
        return jax.vmap(lambda values: _given(families, data, by_site(blocks, values)))(values)

    def part(points: Float[Array, "points values"]) -> Look:
        found, pull_back = jax.vjp(given, _at(normals, points))
        uses = _uses(families, found, counts)
        (gradient,) = pull_back(uses.slope)
        slope = _product("bji,pbj->pbi", normals.factor, gradient)
        curvature = _product("pbi,pj->bij", slope, points)
        value, slope, log_means, divergence = jax.tree.map(
            lambda values: jnp.sum(values, axis=0),
            (uses.value, slope, uses.log_means, uses.divergence),
        )
        return Look(value, slope, curvature, log_means, divergence)

    number = data.points.shape[0] * data.points.shape[1]
    look = jax.tree.map(lambda sums: jnp.sum(sums, axis=0) / number, lax.map(part, data.points))
    entropy = _entropy(families, normals)
    return look._replace(value=look.value + entropy, divergence=look.divergence - entropy)


def _newton_step(
    families: Families, normals: Normals, look: Look, rate: Float[Array, " blocks"]
) -> Normals:
    r"""A step towards the normals that would be best if f were quadratic with these expectations.

    They have precision :math:`-E_q[f'']` and mean :math:`m - E_q[f'']^{-1} E_q[f']`; with a rate
    below 1 only so much of that precision is mixed with the present one: a step along the natural
    gradient, and the shorter, the surer the mixture is positive. Of the curvature only the lower
    triangle is looked at. That is minus the identity where the bound, as it is taken at points, is
    stationary in the lower triangular C.

    References:
        Khan, Nielsen (2018), Fast yet simple natural-gradient descent for variational inference in
        complex models.
    """
    unit = jnp.eye(normals.factor.shape[-1], dtype=normals.factor.dtype)[None]
    padding = _padding(blocks_of(families))
    lower = jnp.where(padding[..., None], -unit, jnp.tril(look.curvature))
    curvature = lower + jnp.swapaxes(jnp.tril(lower, -1), 1, 2)
    share = rate[:, None, None]
    precision = (1 - share) * unit - share * curvature
    # Block by block: of a batch the solutions would not be those of LAPACK, which are quicker.
    inverse = lax.map(_factor_of_inverse, precision)
    step = _product("bij,bkj,bk->bi", inverse, inverse, rate[:, None] * look.slope)
    # What is padding is set anew, so that no sweep hands it on to the next.
    return Normals(
        jnp.where(padding, 0.0, normals.location + _product("bij,bj->bi", normals.factor, step)),
        jnp.where(
            padding[..., None], unit, jnp.tril(_product("bij,bjk->bik", normals.factor, inverse))
        ),
    )


def _factor_of_inverse(precision: Float[Array, "values values"]) -> Float[Array, "values values"]:
    """The lower triangular A with A A' the inverse of a matrix."""
    # With both axes turned round its lower triangular factor is an upper one.
    factor = jnp.flip(jnp.linalg.cholesky(jnp.flip(precision)))
    unit = jnp.eye(len(precision), dtype=precision.dtype)
    return lax.linalg.triangular_solve(factor, unit, left_side=True, lower=False, transpose_a=True)


class _Ascent(NamedTuple):
    """Where `fit_normals` is: the best normals so far with their look, and what it does next.

    Attributes:
        rate: Of the next step; 0 to look around.
        promising: Whether another step may pay, by the last one's gain.
    """

    normals: Normals
    look: Look
    rate: Float[Array, " blocks"]
    promising: Bool[Array, " blocks"]
    tried: Int[Array, ""]


class FittedNormals(NamedTuple):
    """Normals for given counts, and what follows for the rows of all parametric tables.

    Attributes:
        normals: q of the parameters.
        log_means: E[log row] under the mean field, by table, padded.
        divergence: What the tables take from the bound,
            E_q[sum over rows of KL(Dir(u(phi) + n) || Dir(u(phi)))] + KL(q(phi) || p(phi)).
    """

    normals: Normals
    log_means: dict[str, Float[Array, "..."]]
    divergence: Float[Array, ""]


def fit_normals(
    families: Families, normals: Normals, data: FamilyData, counts: Tables
) -> FittedNormals:
    r"""Better normals for given expected counts of all parametric tables.

    With the best rows for each :math:`\phi` put in, the part of the bound that depends on q is
    :math:`E_q[f(\phi)]` plus its entropy, f as at the head of this module. Newton steps raise it:
    one, and others while they gain much. A step that does not pay is tried again shorter.
    Expectations are averages over the same points throughout, so that nothing is random and the
    bound never falls.

    Args:
        families: The parametric tables.
        normals: Where to start.
        data: Their arrays.
        counts: n of every parametric table.
    """

    def proceed(now: _Ascent) -> Bool[Array, ""]:
        return jnp.any(now.promising) & (now.tried < data.evaluations)

    def attempt(now: _Ascent) -> _Ascent:
        trial = _newton_step(families, now.normals, now.look, now.rate)
        look = _look(families, trial, data, counts)
        # Rounding must not keep it from taking the last, short steps. NaN is never better.
        allowed = 16 * jnp.finfo(look.value.dtype).eps * jnp.abs(look.value)
        better = look.value >= now.look.value - allowed
        moved = better & now.promising
        longer = jnp.where(now.rate > 0, jnp.minimum(now.rate / _SHORTENING, 1.0), 1.0)
        rate = jnp.where(better, longer, _SHORTENING * now.rate)
        gain = look.value - now.look.value
        return _Ascent(
            *_chosen(families, moved, (trial, look), (now.normals, now.look)),
            rate,
            now.promising & jnp.where(moved, gain > data.least_gain, rate > _SHORTEST),
            now.tried + 1,
        )

    # The first step, of no length, is there to look around.
    nothing = jnp.zeros_like(normals.location)
    shapes = jax.eval_shape(lambda normals: _look(families, normals, data, counts), normals)
    unseen = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)
    begin = _Ascent(
        normals,
        unseen._replace(value=unseen.value - jnp.inf),
        nothing[:, 0],
        jnp.ones(len(nothing), bool),
        jnp.zeros((), jnp.int32),
    )
    found = lax.while_loop(proceed, attempt, begin)
    return FittedNormals(
        found.normals,
        padded_rows(families, found.look.log_means, data),
        jnp.sum(found.look.divergence),
    )


def _chosen(
    families: Families,
    moved: Bool[Array, " blocks"],
    new: tuple[Normals, Look],
    old: tuple[Normals, Look],
) -> tuple[Normals, Look]:
    """The new normals and their look in the blocks that moved, the old ones in the others."""

    def by_block(new: Array, old: Array) -> Array:
        return jnp.where(moved.reshape(-1, *(1 for _ in new.shape[1:])), new, old)

    (new_normals, new_look), (old_normals, old_look) = new, old
    owners = _owners(families)
    log_means = {
        name: jnp.where(moved[owners[name]], rows, old_look.log_means[name])
        for name, rows in new_look.log_means.items()
    }
    no_rows: dict[str, Array] = {}
    normals, look = jax.tree.map(
        by_block,
        (new_normals, new_look._replace(log_means=no_rows)),
        (old_normals, old_look._replace(log_means=no_rows)),
    )
    return normals, look._replace(log_means=log_means)


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
        {site: on_device(generator.uniform(-1, 1, shape), dtype) for site, shape in shapes.items()},
        on_device(_FIRST_LOG_STEP, dtype),
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
    flat, unravel = ravel_pytree(moving.unconstrained)

    def value_and_gradient(values: Float[Array, " values"]) -> tuple[Array, Array]:
        found, pull_back = jax.vjp(lambda values: _given(families, data, unravel(values)), values)
        one_point = jax.tree.map(lambda values: values[None], found)
        uses = _uses(families, one_point, counts)
        (gradient,) = pull_back(jax.tree.map(lambda values: values[0], uses.slope))
        return jnp.sum(uses.value), gradient

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
