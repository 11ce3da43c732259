"""What samplers and guides of the collapsed NumPyro model share."""

from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from btil.inference.points import normal_points, power_of_two
from btil.inference.result import (
    ConditionalRows,
    DrawnChannel,
    FunctionalRows,
    JointNormals,
    NormalParameters,
    ParameterPosterior,
    at_noise,
)
from btil.models.parametric import (
    ParametricSite,
    all_priors,
    central_concentration,
    constrain,
    given_concentration,
    given_log_rows,
    mean_over_draws,
    parametric_sites,
)
from btil.models.team import BoundModel
from btil.numerics.precision import on_device, precision
from btil.numpyro_forms.model_data import ChannelSites, ModelData, Structure, model_data

# Draws evaluated side by side: bounds the memory.
_DRAWS_AT_ONCE = 50
# Points over which normal parameters are averaged in what is reported: as many as there may be
# cells of tables at all points.
_FEWEST_POINTS, _MOST_POINTS = 256, 4096
_REPORTED_CELLS = 2**25


def collapsed_data(bound: BoundModel, dtype: np.dtype) -> tuple[Structure, ModelData]:
    """The bound model's structure and its arrays, floating-point ones in `dtype`."""
    structure, data = model_data(bound)
    return structure, jax.tree.map(partial(_cast, dtype=dtype), data)


def drawn_channels(
    bound: BoundModel, draws: Mapping[str, Float[Any, "chain draw ..."]]
) -> dict[str, DrawnChannel]:
    """Draws of the channels' sites in the units of the data, by the channels' names."""
    found = {}
    for channel in bound.channels.values():
        sites, units = ChannelSites.of(channel), channel.units()
        factor = units.spread[:, None] * np.asarray(draws[sites.factor], np.float64)
        found[channel.name] = DrawnChannel(
            units.coefficients(np.asarray(draws[sites.standardised], np.float64)),
            factor @ np.swapaxes(factor, -1, -2),
        )
    return found


def refuse_large_priors(
    bound: BoundModel, dtype: np.dtype, limits: Mapping[str, float], method: str
) -> None:
    """Refuse priors whose log density would be noise, or its gradient take for ever.

    Args:
        bound: The model on its data.
        dtype: Floating-point type of the fit.
        limits: The largest sum of a row's concentrations, by type.
        method: For the message.

    Raises:
        ValueError: Naming the table, its largest sum and what does instead.
    """
    name = np.dtype(dtype).name
    for site, table in bound.learned.items():
        if not table.cpt.dirichlet_rows:
            continue
        largest = float(central_concentration(table).sum(-1).max())
        if largest > limits[name]:
            more = "dtype='float64', " * (largest <= limits["float64"])
            raise ValueError(
                f"{site}: the prior concentrations of a row add up to {largest:g}; {method} in "
                f"{name} keeps its digits up to {limits[name]:g}. Use {more}method 'mfvi' or "
                "'gibbs', or give the rows by a KnownCPT: they are as good as known"
            )


def _cast(values: Any, dtype: np.dtype) -> Array:
    values = np.asarray(values)
    # Indices of 32 bits are half as much to move; no table comes near 2^31 rows.
    return on_device(values, dtype if values.dtype.kind == "f" else np.int32)


@partial(jax.jit, static_argnames=("structure",))
def drawn_log_likelihood(
    structure: Structure, data: ModelData, rows: dict[str, Float[Array, "draw ..."]]
) -> Float[Array, "draw episodes"]:
    """`episode_log_likelihood` under each of a batch of draws."""
    # Loads NumPyro, which users of the rest do without.
    from btil.numpyro_forms.team_dbn import episode_log_likelihood

    one = partial(episode_log_likelihood, structure, data)
    return jax.lax.map(one, rows, batch_size=_DRAWS_AT_ONCE)


@partial(jax.jit, static_argnames=("tables",))
def given_rows(
    tables: tuple[ParametricSite, ...],
    data: ModelData,
    parameters: dict[str, Float[Array, "draw ..."]],
) -> dict[str, Float[Array, "draw ..."]]:
    """What the parameters say of rows, under each of a batch of draws.

    Args:
        tables: The parametric tables.
        data: The model's arrays.
        parameters: Draws of the parameters, where their priors live.

    Returns:
        Of each table the concentrations of its rows, or its rows where these are a function of the
        parameters.
    """
    return jax.lax.map(partial(_given_rows, tables, data), parameters, batch_size=_DRAWS_AT_ONCE)


def _given_rows(
    tables: tuple[ParametricSite, ...], data: ModelData, parameters: Mapping[str, Array]
) -> dict[str, Array]:
    found = {}
    for table in tables:
        inputs = data.inputs[table.name]
        if table.cpt.dirichlet_rows:
            rows = given_concentration(table, parameters, inputs)
        else:
            rows = jnp.exp(given_log_rows(table, parameters, inputs))
        found[table.name] = jnp.broadcast_to(rows, table.shape)
    return found


@partial(jax.jit, static_argnames=("tables",))
def _row_moments(
    tables: tuple[ParametricSite, ...],
    data: ModelData,
    parameters: dict[str, Float[Array, "draw ..."]],
    counts: dict[str, Float[Array, "..."]],
) -> tuple[dict[str, tuple[Float[Array, "..."], Float[Array, "..."]]], dict[str, Array]]:
    """Averages over draws of E[row | parameters] and E[row^2 | parameters].

    Of all but the last one; what that says of the rows comes with them.
    """

    def one(parameters: dict[str, Array]) -> dict[str, tuple[Array, Array]]:
        moments = {}
        for name, rows in _given_rows(tables, data, parameters).items():
            if name in counts:
                w = rows + counts[name]
                size = jnp.sum(w, -1, keepdims=True)
                moments[name] = w / size, w * (w + 1) / (size * (size + 1))
            else:
                moments[name] = rows, rows**2
        return moments

    last = {name: values[-1] for name, values in parameters.items()}
    draws = {name: values[:-1] for name, values in parameters.items()}
    return mean_over_draws(one, draws), _given_rows(tables, data, last)


def parameters_at_points(
    bound: BoundModel, parameters: Mapping[str, ParameterPosterior]
) -> dict[str, Float[np.ndarray, "point ..."]]:
    """Normal parameters where their priors live, at points that stand for their normals.

    What is reported of them are averages over these, whatever the seed.
    """
    return constrained(parametric_sites(bound), _points(bound, parameters))


def _points(
    bound: BoundModel, parameters: Mapping[str, ParameterPosterior]
) -> dict[str, Float[np.ndarray, "point ..."]]:
    """The same in unconstrained space."""
    size = sum(prod(table.shape) for table in parametric_sites(bound))
    number = min(max(power_of_two(_REPORTED_CELLS // max(size, 1)), _FEWEST_POINTS), _MOST_POINTS)
    return at_noise(parameters, partial(normal_points, number=number))


def constrained(
    tables: tuple[ParametricSite, ...], unconstrained: Mapping[str, Float[np.ndarray, "draw ..."]]
) -> dict[str, Float[np.ndarray, "draw ..."]]:
    """Draws of parameters where their priors live, in double precision."""
    if not unconstrained:
        return {}
    with precision(np.float64) as dtype:
        given = {name: on_device(values, dtype) for name, values in unconstrained.items()}
        return {name: np.asarray(values) for name, values in _constrained(tables, given).items()}


@partial(jax.jit, static_argnames=("tables",))
def _constrained(
    tables: tuple[ParametricSite, ...], unconstrained: dict[str, Float[Array, "draw ..."]]
) -> dict[str, Float[Array, "draw ..."]]:
    priors = {name: prior for name, prior in all_priors(tables).items() if name in unconstrained}
    return jax.vmap(partial(constrain, priors))(unconstrained)


def rows_given_parameters(
    bound: BoundModel,
    parameters: Mapping[str, NormalParameters | JointNormals],
    counts: Mapping[str, Float[np.ndarray, "..."]],
) -> dict[str, ConditionalRows | FunctionalRows]:
    """Rows of parametric tables whose parameters are normal.

    Args:
        bound: The model on its data.
        parameters: All parameters.
        counts: n of the tables whose rows are Dirichlet(u(parameters) + n).

    Returns:
        The rows of these tables, and of those whose rows are a function of the parameters.
    """
    found: dict[str, ConditionalRows | FunctionalRows] = {}
    with precision(np.float64) as dtype:
        structure, data = collapsed_data(bound, dtype)
        tables = tuple(
            table
            for table in structure.parametric
            if table.name in counts or not table.cpt.dirichlet_rows
        )
        if not tables:
            return {}
        own = {name: on_device(n, dtype) for name, n in counts.items()}
        # Behind the points, their middle.
        points = {
            name: np.concatenate([values, parameters[name].location[None]])
            for name, values in _points(bound, parameters).items()
        }
        moments, centre = _row_moments(tables, data, constrained(structure.parametric, points), own)
    for name, (mean, square) in moments.items():
        average = np.asarray(mean)
        deviation = np.sqrt(np.maximum(np.asarray(square) - average**2, 0.0))
        if name in counts:
            n = np.asarray(counts[name], np.float64)
            found[name] = ConditionalRows(n, np.asarray(centre[name]) + n, average, deviation)
        else:
            found[name] = FunctionalRows(average, deviation)
    return found
