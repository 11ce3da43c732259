"""In which floating-point type a fit runs, without touching JAX's global switch."""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import Array


def default_dtype() -> np.dtype:
    """float64 where 64-bit mode is on, else float32."""
    return np.dtype(np.float64 if jax.config.read("jax_enable_x64") else np.float32)


def as_dtype(dtype: Any) -> np.dtype:
    """The float type meant by `dtype`; None is the default of the moment.

    Raises:
        ValueError: If it is not float32 or float64.
    """
    try:
        chosen = default_dtype() if dtype is None else np.dtype(dtype)
    except TypeError:
        chosen = np.dtype(object)  # whatever it was meant to be
    if chosen not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise ValueError(f"dtype must be float32 or float64 (or None), got {dtype!r}")
    return chosen


@contextlib.contextmanager
def precision(dtype: Any) -> Iterator[np.dtype]:
    """Compute in `dtype`, in a local context where JAX's switch stands otherwise."""
    chosen = as_dtype(dtype)
    with jax.enable_x64(bool(chosen == np.float64)):
        yield chosen


def on_device(values: Any, dtype: Any) -> Array:
    """An array of `dtype`, converted on the host: on the device, each shape is one more program."""
    return jax.device_put(np.asarray(values, dtype))
