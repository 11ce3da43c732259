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

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, Int, Key

from btil.inference.messages import Layout
from btil.inference.points import normal_points, power_of_two
from btil.inference.result import JointNormals
from btil.inference.special import digamma_and_remainder
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

# Fewest and most points of an expectation, each as a number and as a multiple of the values that
# are normal together; between them as many as there may be cells of tables at all points.
_FEWEST_POINTS = (64, 4)
_MOST_POINTS = (1024, 16)
_CELLS = 2**22
_CELLS_AT_ONCE = 2**18
# Evaluations of one update of the normals at most, and what a step that does not pay is cut to.
_EVALUATIONS = 12
_SHORTENING = 0.25
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
    """

    inputs: dict[str, dict[str, Float[Array, "..."]]]
    real: dict[str, Bool[Array, " rows"]]
    points: Float[Array, "parts points values"]


def family_data(
    bound: BoundModel, layout: Layout, dtype: np.dtype, seed: int | None = None
) -> tuple[Families, FamilyData]:
    """The parametric tables of a bound model, and their arrays.

    Args:
        bound: The model on its data.
        layout: Its layout, for the padding.
        dtype: Floating-point type.
        seed: Picks the points; None: none are needed.

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
    size = max((block.size for block in blocks_of(families)), default=0)
    if seed is None or not size:
        return families, FamilyData(inputs, real, jnp.zeros((1, 1, size), dtype))
    cells = sum(len(real[family.name]) * int(np.prod(family.shape[1:])) for family in families)
    number = num_points(size, cells)
    at_once = min(number, max(8, power_of_two(_CELLS_AT_ONCE // cells)))
    points = normal_points(size, number, seed).reshape(-1, at_once, size)
    return families, FamilyData(inputs, real, jnp.asarray(points, dtype))


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
    blocks: tuple[Block, ...], values: Float[Array, "blocks values *rest"]
) -> dict[str, Float[Array, "..."]]:
    """What blocks hold of each parameter, in its shape; further axes stay."""
    found = {}
    for number, block in enumerate(blocks):
        begin = 0
        for site, shape in zip(block.sites, block.shapes, strict=True):
            end = begin + int(np.prod(shape))
            found[site] = values[number, begin:end].reshape(*shape, *values.shape[2:])
            begin = end
    return found


def first_normals(families: Families, dtype: np.dtype) -> Normals:
    """Where the mean field starts: the centre of unconstrained space."""
    padding = _padding(blocks_of(families))
    scale = np.where(padding, 1.0, _FIRST_SCALE)
    return Normals(
        jnp.zeros(padding.shape, dtype),
        jnp.asarray(scale[..., None] * np.eye(padding.shape[1]), dtype),
    )


def joint_normals(families: Families, normals: Normals) -> dict[str, JointNormals]:
    """The normals by parameter, without padding."""
    blocks = blocks_of(families)
    location, factor = by_site(blocks, normals.location), by_site(blocks, normals.factor)
    return {
        site: JointNormals(
            np.asarray(location[site]), np.asarray(factor[site])[..., : block.size], block.sites[0]
        )
        for block in blocks
        for site in block.sites
    }


def _padding(blocks: tuple[Block, ...]) -> Bool[np.ndarray, "blocks values"]:
    size = max(block.size for block in blocks)
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

    as in `btil.inference.mfvi.dirichlet_divergence`; rows of no counts have none.

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


@jax.custom_jvp
def log_beta_gains(concentrations: Tables, counts: Tables) -> dict[str, Float[Array, " points"]]:
    """log B(u + n) - log B(u) at each point, summed over the rows of each table."""
    return _gains(row_moments(concentrations, counts), counts)


def _gains(moments: Mapping[str, RowMoments], counts: Tables) -> dict[str, Float[Array, " points"]]:
    return {
        name: _sum_at_points(counts[name][None] * one.log_mean) - one.divergence
        for name, one in moments.items()
    }


@log_beta_gains.defjvp
def _log_beta_gains_jvp(
    primals: tuple[Tables, Tables], tangents: tuple[Tables, Tables]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The derivative of log B is E[log row], which comes with its value."""
    moments = row_moments(*primals)
    changes = {}
    for name, one in moments.items():
        of_u, of_n = (given[name] for given in tangents)
        after = _sum_at_points(one.log_mean * (of_u + of_n[None]))
        # Rows that u stands for.
        repeats = one.log_mean.size // of_u.size
        changes[name] = after - repeats * _sum_at_points(one.log_mean_before * of_u)
    return _gains(moments, primals[1]), changes


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


def _given(families: Families, data: FamilyData, values: Float[Array, "blocks values"]) -> Given:
    """What the parameters say at a point in unconstrained space."""
    blocks, priors = blocks_of(families), all_priors(families)
    unconstrained = by_site(blocks, values)
    parameters = constrain(priors, unconstrained)
    density = [
        unconstrained_log_density({site: priors[site] for site in block.sites}, unconstrained)
        for block in blocks
    ]
    return Given(
        jnp.stack(density).astype(values.dtype),
        row_concentrations(families, parameters, data),
        log_functional_rows(families, parameters, data),
    )


def row_concentrations(
    families: Families, parameters: Tables, data: FamilyData
) -> dict[str, Float[Array, "..."]]:
    """u of the tables whose rows are Dirichlet given the parameters, not broadcast."""
    return {
        family.name: _with_axes(
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
        family.name: _with_axes(
            family, given_log_rows(family, parameters, data.inputs[family.name])
        )
        for family in families
        if not family.cpt.dirichlet_rows
    }


def _with_axes(family: ParametricSite, rows: Float[Array, "..."]) -> Float[Array, "..."]:
    """Rows with all axes of their table, of which the last is in full."""
    missing = len(family.shape) - rows.ndim
    rows = rows.reshape((1,) * missing + rows.shape)
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


def _gains_by_table(
    concentrations: Tables, log_rows: Tables, counts: Tables
) -> dict[str, Float[Array, " points"]]:
    """What the uses n of each table add to log p(parameters), at each point.

    That is log B(u + n) - log B(u), summed over its rows, or the sum of n log(row).

    Args:
        concentrations: As in `Given`, with the points in front.
        log_rows: Likewise.
        counts: n of all tables.
    """
    own = {name: counts[name] for name in concentrations}
    found = log_beta_gains(concentrations, own) if own else {}
    for name, rows in log_rows.items():
        shared = tuple(
            axis for axis, size in enumerate(rows.shape[1:]) if size < counts[name].shape[axis]
        )
        found[name] = _sum_at_points(jnp.sum(counts[name], shared, keepdims=True)[None] * rows)
    return found


# ---------------------------------------------------------------------- mean field


def _mean_over_points(
    function: Callable[[Float[Array, "points values"]], Any], data: FamilyData
) -> Any:
    """Average over all points of what a function sums up over the points of one part."""
    parts, at_once, _ = data.points.shape

    def add(total: Any, part: Float[Array, "points values"]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, function(part)), None

    shapes = jax.eval_shape(function, data.points[0])
    zeros = jax.tree.map(lambda one: jnp.zeros(one.shape, one.dtype), shapes)
    total, _ = lax.scan(add, zeros, data.points)
    return jax.tree.map(lambda values: values / (parts * at_once), total)


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


def expected_log_rows(
    families: Families, normals: Normals, data: FamilyData, counts: Tables
) -> tuple[dict[str, Array], Float[Array, ""]]:
    r"""E[log row] of all parametric tables under the mean field, and what they take from the bound.

    .. math:: E_q\Big[\sum_{rows} KL\big(\mathrm{Dir}(u(\phi) + n) \,\|\,
              \mathrm{Dir}(u(\phi))\big)\Big] + KL(q(\phi) \| p(\phi))

    Args:
        families: The parametric tables.
        normals: q of the parameters.
        data: Their arrays.
        counts: n of the tables whose rows are Dirichlet given the parameters.

    Returns:
        Expected log rows by table, padded, and the divergence.
    """

    def part(points: Float[Array, "points values"]) -> tuple[dict[str, Array], Array]:
        given = jax.vmap(lambda values: _given(families, data, values))(_at(normals, points))
        moments = row_moments(given.concentrations, counts)
        logs = given.log_rows | {name: one.log_mean for name, one in moments.items()}
        taken = sum((one.divergence for one in moments.values()), -jnp.sum(given.density, 1))
        return {name: jnp.sum(rows, 0) for name, rows in logs.items()}, jnp.sum(taken)

    logs, taken = _mean_over_points(part, data)
    return padded_rows(families, logs, data), taken - jnp.sum(_entropy(families, normals))


class Look(NamedTuple):
    r"""The bound as a function of the normals, around given ones, in their own coordinates.

    These are :math:`\phi = m + C z`, z standard normal.

    Attributes:
        value: :math:`E_q[f(\phi)]` + entropy, of every block.
        slope: :math:`E_q[\partial f / \partial z]`.
        curvature: :math:`E_q[\partial f / \partial z \; z']`, which is that of the Hessian of f
            along z, by Stein's identity.
    """

    value: Float[Array, " blocks"]
    slope: Float[Array, "blocks values"]
    curvature: Float[Array, "blocks values values"]


def _look(families: Families, normals: Normals, data: FamilyData, counts: Tables) -> Look:
    blocks = blocks_of(families)
    owner = {
        family.name: next(
            number for number, block in enumerate(blocks) if family.parameters[0][1] in block.sites
        )
        for family in families
    }

    def by_block(values: Float[Array, "points blocks values"]) -> Float[Array, "points blocks"]:
        given = jax.vmap(lambda values: _given(families, data, values))(values)
        gains = _gains_by_table(given.concentrations, given.log_rows, counts)
        totals = [
            sum((gain for name, gain in gains.items() if owner[name] == number), density)
            for number, density in enumerate(given.density.T)
        ]
        return jnp.stack(totals, axis=1)

    def part(points: Float[Array, "points values"]) -> Look:
        found, pull_back = jax.vjp(by_block, _at(normals, points))
        (gradient,) = pull_back(jnp.ones_like(found))
        slope = _product("bji,pbj->pbi", normals.factor, gradient)
        return Look(jnp.sum(found, 0), jnp.sum(slope, 0), _product("pbi,pj->bij", slope, points))

    look = _mean_over_points(part, data)
    return look._replace(value=look.value + _entropy(families, normals))


def _newton_step(
    families: Families, normals: Normals, look: Look, rate: Float[Array, " blocks"]
) -> Normals:
    r"""A step towards the normals that would be best if f were quadratic, and q as it is in `look`.

    Those have precision :math:`-E_q[f'']` and mean :math:`m - E_q[f'']^{-1} E_q[f']`; a rate below 1
    goes so far from the present precision, which keeps it positive (a step along the natural
    gradient). The lower triangle of the curvature is looked at: it vanishes against the identity
    where the bound that is taken at points is stationary in the lower triangular C.

    References:
        Khan, Nielsen (2018), Fast yet simple natural-gradient descent for variational inference in
        complex models.
    """
    unit = jnp.eye(normals.factor.shape[-1], dtype=normals.factor.dtype)[None]
    padding = jnp.asarray(_padding(blocks_of(families)), unit.dtype)[..., None] * unit
    lower = jnp.tril(look.curvature) - padding
    curvature = lower + jnp.swapaxes(jnp.tril(lower, -1), 1, 2)
    share = rate[:, None, None]
    precision = (1 - share) * unit - share * curvature
    # With both axes turned round, a lower triangular factor of the inverse is one solution away.
    factor = jnp.flip(jnp.linalg.cholesky(jnp.flip(precision, (1, 2))), (1, 2))
    inverse = lax.linalg.triangular_solve(
        factor, jnp.broadcast_to(unit, factor.shape), left_side=True, lower=False, transpose_a=True
    )
    step = _product("bij,bkj,bk->bi", inverse, inverse, rate[:, None] * look.slope)
    return Normals(
        normals.location + _product("bij,bj->bi", normals.factor, step),
        jnp.tril(_product("bij,bjk->bik", normals.factor, inverse)),
    )


class _Ascent(NamedTuple):
    """Where `update` is: the best normals so far with their look, and what it does next."""

    normals: Normals
    look: Look
    rate: Float[Array, " blocks"]
    steps: Int[Array, " blocks"]
    tried: Int[Array, ""]


def update(
    families: Families, normals: Normals, data: FamilyData, counts: Tables, num_steps: int = 1
) -> Normals:
    r"""Better normals for given expected counts of all parametric tables.

    With the best rows for each :math:`\phi` put in, the part of the bound that depends on q is
    :math:`E_q[f(\phi)]` plus its entropy, f as at the head of this module. Newton steps raise it;
    one that does not is tried again shorter. Expectations are averages over the same points
    throughout, so that nothing is random and the bound never falls.

    Args:
        families: The parametric tables.
        normals: q of the parameters.
        data: Their arrays.
        counts: n of every parametric table.
        num_steps: Number of steps.
    """

    def proceed(now: _Ascent) -> Bool[Array, ""]:
        return jnp.any(now.steps < num_steps) & (now.tried < _EVALUATIONS)

    def attempt(now: _Ascent) -> _Ascent:
        trial = _newton_step(families, now.normals, now.look, now.rate)
        look = _look(families, trial, data, counts)
        # Rounding must not keep it from taking the last, short steps. NaN is never better.
        allowed = 16 * jnp.finfo(look.value.dtype).eps * jnp.abs(look.value)
        better = look.value >= now.look.value - allowed
        moved = better & (now.steps < num_steps)

        def chosen(new: Array, old: Array) -> Array:
            return jnp.where(moved.reshape(-1, *(1 for _ in new.shape[1:])), new, old)

        normals, look = jax.tree.map(chosen, (trial, look), (now.normals, now.look))
        longer = jnp.where(now.rate > 0, jnp.minimum(now.rate / _SHORTENING, 1.0), 1.0)
        rate = jnp.where(better, longer, _SHORTENING * now.rate)
        return _Ascent(normals, look, rate, now.steps + moved, now.tried + 1)

    # The first step, of no length, is there to look around.
    nothing = jnp.zeros_like(normals.location)
    begin = _Ascent(
        normals,
        Look(nothing[:, 0] - jnp.inf, nothing, jnp.zeros_like(normals.factor)),
        nothing[:, 0],
        jnp.full(len(nothing), -1, jnp.int32),
        jnp.zeros((), jnp.int32),
    )
    return lax.while_loop(proceed, attempt, begin).normals


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
        given = {
            name: u[None] for name, u in row_concentrations(families, parameters, data).items()
        }
        logs = {
            name: rows[None]
            for name, rows in log_functional_rows(families, parameters, data).items()
        }
        gains = _gains_by_table(given, logs, counts)
        density = unconstrained_log_density(priors, unconstrained)
        return sum((gain[0] for gain in gains.values()), density)

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
