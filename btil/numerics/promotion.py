"""JAX's checks of ranks and types, where they are on, are for our code and not for libraries'."""

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def promotion_allowed() -> Iterator[None]:
    """Let arrays of different ranks and types meet, as NumPyro's code does, for a while.

    `jax_numpy_rank_promotion="raise"` and `jax_numpy_dtype_promotion="strict"` find mistakes in
    what one writes; NumPyro is not written for them. They are looked at when a program is traced,
    so this is wrapped around what calls NumPyro then. Nothing changes where they are off.
    """
    import jax

    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield
