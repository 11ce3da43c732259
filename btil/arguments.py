"""Checks of arguments that several rooms take."""

from collections.abc import Iterable
from typing import Any

import numpy as np


def check_seed(seed: Any, largest: int | None = None) -> int:
    """A seed: a non-negative integer.

    Args:
        seed: What was given.
        largest: The largest one allowed; None: any.

    Raises:
        ValueError: If it is none.
    """
    whole = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
    if not whole or seed < 0 or (largest is not None and seed > largest):
        allowed = "a non-negative integer" if largest is None else f"an integer in 0..{largest}"
        raise ValueError(f"seed must be {allowed}, got {seed!r}")
    return int(seed)


def check_index(name: str, value: Any, size: int) -> int:
    """A position among so many: a whole number from 0.

    Args:
        name: What it is, for the message.
        value: What was given.
        size: How many there are.

    Raises:
        ValueError: If it is none; a truth value or a float is none either.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or not 0 <= value < size:
        raise ValueError(f"{name}: {value!r}; allowed are whole numbers in 0..{size - 1}")
    return int(value)


def check_count(name: str, value: Any, least: int) -> int:
    """A number of something: whole, and not too small.

    Raises:
        ValueError: Naming the argument and what is allowed.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not whole or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
    return int(value)


def check_flag(name: str, value: Any) -> bool:
    """A truth value, and nothing that merely counts as one.

    Raises:
        ValueError: Naming the argument.
    """
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, got {value!r}")
    return bool(value)


def check_options(owner: str, given: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuse options that a method does not have.

    Args:
        owner: The method, for the message.
        given: Names of the options given.
        allowed: Names of those it has, in the order in which they are listed.

    Raises:
        TypeError: Naming the unknown ones and those it has.
    """
    names = list(allowed)
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise TypeError(
            f"{owner} has no option {', '.join(map(repr, unknown))}; it has "
            f"{', '.join(names) or 'none'}"
        )
