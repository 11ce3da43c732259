"""Modules that are loaded on first use."""

import importlib
from types import ModuleType

import numpy as np


def load(module: str) -> ModuleType:
    """A module by its full name; NumPy's global generator is left as it was.

    Importing JAX draws from it (waiting times of a cluster that nobody is on): the first fit of a
    process would change what a script draws after it.

    Args:
        module: Such as "btil.posterior.fit".
    """
    before = np.random.get_state()  # noqa: NPY002  # the generator to leave alone
    try:
        return importlib.import_module(module)
    finally:
        np.random.set_state(before)  # noqa: NPY002
