"""What samplers and guides of the collapsed NumPyro model share."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from btil.inference.result import DrawnRows, NormalParameters
from btil.models.parametric import central_concentration, constrain, given_log_rows
from btil.models.team import BoundModel
from btil.models.team_dbn import ModelData, Structure, episode_log_likelihood, model_data

# Draws evaluated side by side: bounds the memory.
_DRAWS_AT_ONCE = 50


def collapsed_data(bound: BoundModel, dtype: np.dtype) -> tuple[Structure, ModelData]:
    """The bound model's structure and its arrays, floating-point ones in `dtype`."""
    structure, data = model_data(bound)
    return structure, jax.tree.map(partial(_cast, dtype=dtype), data)


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
    return jnp.asarray(values, dtype if values.dtype.kind == "f" else np.int32)


@partial(jax.jit, static_argnames=("structure",))
def drawn_log_likelihood(
    structure: Structure, data: ModelData, rows: dict[str, Float[Array, "draw ..."]]
) -> Float[Array, "draw episodes"]:
    """`episode_log_likelihood` under each of a batch of draws."""
    one = partial(episode_log_likelihood, structure, data)
    return jax.lax.map(one, rows, batch_size=_DRAWS_AT_ONCE)


@partial(jax.jit, static_argnames=("structure",))
def functional_rows(
    structure: Structure, data: ModelData, parameters: dict[str, Float[Array, "draw ..."]]
) -> dict[str, Float[Array, "draw ..."]]:
    """Rows that are a function of the parameters, under each of a batch of draws."""

    def one(values: dict[str, Array]) -> dict[str, Array]:
        return {
            table.name: jnp.broadcast_to(
                jnp.exp(given_log_rows(table, values, data.inputs[table.name])), table.shape
            )
            for table in structure.functional
        }

    return jax.lax.map(one, parameters, batch_size=_DRAWS_AT_ONCE)


def drawn_parameters(
    parameters: Mapping[str, NormalParameters], structure: Structure, num_draws: int, seed: int
) -> dict[str, Float[Array, "draw ..."]]:
    """Draws of normal parameters where their priors live."""
    generator = np.random.default_rng([seed, 3])
    normals = {site: one.sample(num_draws, generator) for site, one in parameters.items()}
    dtypes = {site: one.location.dtype for site, one in parameters.items()}
    unconstrained = {site: jnp.asarray(v, dtypes[site]) for site, v in normals.items()}
    return jax.vmap(partial(constrain, structure.priors))(unconstrained)


def rows_as_draws(
    structure: Structure, data: ModelData, parameters: dict[str, Float[Array, "draw ..."]]
) -> dict[str, DrawnRows]:
    """Rows that are a function of the parameters, as one chain of draws."""
    rows = functional_rows(structure, data, parameters)
    return {name: DrawnRows(np.asarray(values)[None]) for name, values in rows.items()}
