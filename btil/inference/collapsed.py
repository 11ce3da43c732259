"""What samplers and guides of the collapsed NumPyro model share."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro import handlers

from btil.inference.messages import lay_out
from btil.inference.mfvi import is_symmetric, labelled_counts, random_counts
from btil.models.team import BoundModel
from btil.models.team_dbn import ModelData, Structure, forward_model, model_data

# Draws evaluated side by side: bounds the memory.
_DRAWS_AT_ONCE = 50


def collapsed_data(bound: BoundModel, dtype: np.dtype) -> tuple[Structure, ModelData]:
    """The bound model's structure and its arrays, floating-point ones in `dtype`."""
    structure, data = model_data(bound)
    return structure, jax.tree.map(partial(_cast, dtype=dtype), data)


def _cast(values: Any, dtype: np.dtype) -> Array:
    values = np.asarray(values)
    # Indices of 32 bits are half as much to move; no table comes near 2^31 rows.
    return jnp.asarray(values, dtype if values.dtype.kind == "f" else np.int32)


def episode_log_likelihood(
    structure: Structure, data: ModelData, rows: dict[str, Float[Array, "..."]]
) -> Float[Array, " episodes"]:
    """log p(actions, labels | states, rows) of each episode, summed over agents."""
    model = handlers.substitute(partial(forward_model, structure), data=rows)
    trace = handlers.trace(model).get_trace(data)
    parts = [
        site["fn"].log_prob(site["value"])
        for site in trace.values()
        if site["type"] == "sample" and site["is_observed"]
    ]
    return jnp.sum(jnp.stack(parts), axis=0)


@partial(jax.jit, static_argnames=("structure",))
def drawn_log_likelihood(
    structure: Structure, data: ModelData, rows: dict[str, Float[Array, "draw ..."]]
) -> Float[Array, "draw episodes"]:
    """`episode_log_likelihood` under each of a batch of draws."""
    one = partial(episode_log_likelihood, structure, data)
    return jax.lax.map(one, rows, batch_size=_DRAWS_AT_ONCE)


def starting_counts(
    bound: BoundModel, generator: np.random.Generator
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Counts of the labelled steps, and the other steps' counts dealt to the latents at random.

    Both without the padding that the message passing wants.
    """
    layout = lay_out(bound)
    known = labelled_counts(bound, layout)
    dealt = random_counts(bound, layout, generator)
    sizes = {name: len(table.contexts.rows) for name, table in bound.learned.items()}
    return (
        {name: counts[: sizes[name]] for name, counts in known.items()},
        {name: counts[: sizes[name]] for name, counts in dealt.items()},
    )


def starting_concentrations(
    bound: BoundModel, generator: np.random.Generator
) -> dict[str, Float[np.ndarray, "..."]]:
    """Prior plus the counts of the labelled steps.

    Where that is symmetric in two latents, a saddle of the bound, the other steps are dealt to
    the latents at random and counted too.
    """
    known, dealt = starting_counts(bound, generator)
    start = {
        name: table.cpt.concentration(table.contexts) + known[name]
        for name, table in bound.learned.items()
    }
    if is_symmetric(bound, lay_out(bound), start):
        start = {name: values + dealt[name] for name, values in start.items()}
    return start
