"""Checks of arguments that several rooms take, and what the numbers among them may be.

An argument of one name means one thing everywhere, so what it may be is written here by its name.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float

# Whole numbers, and the least that each may be.
_WHOLE = {
    "batch_size": 1,
    "devices": 1,
    "discriminator_updates": 1,
    "first_discriminator_updates": 1,
    "first_iterations": 0,
    "frames_per_second": 1,
    "max_cells": 1,
    "max_contexts": 1,
    "max_episodes": 0,
    "max_iterations": 1,
    "max_sequences": 1,
    "max_steps": 1,
    "max_tree_depth": 1,
    "num_cells": 1,
    "num_chains": 1,
    "num_contexts": 0,
    "num_draws": 1,
    "num_episodes": 1,
    "num_epochs": 1,
    "num_iterations": 1,
    "num_particles": 1,
    "num_played": 0,
    "num_replicates": 2,
    "num_resamples": 1,
    "num_restarts": 1,
    "num_runs": 1,
    "num_samples": 1,
    "num_shards": 1,
    "num_simulations": 1,
    "num_sweeps": 2,
    "num_temperatures": 1,
    "num_visited": 0,
    "num_warmup": 0,
    "num_worst": 0,
    "patience": 1,
    "pretraining_batch_size": 1,
    "pretraining_iterations": 1,
    "trials": 1,
    "value_iterations": 0,
}
# Other numbers, and their bounds, as `check_number` takes them.
_REAL: dict[str, dict[str, float]] = {
    "accuracy": {"above": 0.0, "below": 1.0},
    "clip": {"above": 0.0},
    "cloning_weight": {"least": 0.0},
    "delay": {"least": 1.0},
    "discount": {"least": 0.0, "most": 1.0},
    "discriminator_decay": {"least": 0.0},
    "discriminator_learning_rate": {"above": 0.0},
    "entropy_weight": {"least": 0.0},
    "forgetting_rate": {"above": 0.5, "most": 1.0},
    "held_out": {"least": 0.0, "below": 1.0},
    "learning_rate": {"above": 0.0},
    "probability": {"above": 0.0, "below": 1.0},
    "share": {"above": 0.0, "most": 1.0},
    "share_labelled": {"least": 0.0, "most": 1.0},
    "smallest": {"least": 0.0, "most": 1.0},
    "smoothing": {"least": 0.0},
    "target_accept_prob": {"above": 0.0, "below": 1.0},
    "temperature": {"above": 0.0},
    "tolerance": {"above": 0.0},
    "trace_decay": {"least": 0.0, "most": 1.0},
    "weight_decay": {"least": 0.0},
    "within": {"above": 0.0},
}
_CHOICES = {
    "chain_method": ("vectorized", "sequential"),
    "initialization": ("uniform", "orthogonal"),
    "inputs": ("state", "variables"),
    "reward": ("positive", "difference", "negative"),
}
# True or False.
_FLAGS = ("progress", "resume")


def check_values(values: Mapping[str, Any], optional: Collection[str] = ()) -> None:
    """Check arguments by their names; those of other names are left to whoever takes them.

    Args:
        values: The arguments.
        optional: Of these, those that may be None.

    Raises:
        ValueError: Naming the argument, what it may be and what was given.

    Example:
        >>> check_values({"num_chains": 4, "tolerance": None}, optional=["tolerance"])
    """
    for name, value in values.items():
        if value is None and name in optional:
            continue
        if name == "seed":
            check_seed(value)
        elif name in _WHOLE:
            check_count(name, value, _WHOLE[name])
        elif name in _REAL:
            check_number(name, value, **_REAL[name])
        elif name in _CHOICES:
            check_choice(name, value, _CHOICES[name])
        elif name in _FLAGS:
            check_flag(name, value)


def is_known(name: str) -> bool:
    """Whether `check_values` checks an argument of this name."""
    return name == "seed" or any(name in known for known in (_WHOLE, _REAL, _CHOICES, _FLAGS))


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """One of some texts.

    Raises:
        ValueError: Naming the argument and what is allowed.
    """
    allowed = tuple(choices)
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
    return value


def check_number(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> float:
    """A finite number within bounds; truth values and texts are none.

    Args:
        name: The argument, for the message.
        value: What was given.
        above: It must be greater.
        least: It must not be less.
        below: It must be less.
        most: It must not be greater.

    Raises:
        ValueError: Naming the argument and what is allowed.

    Example:
        >>> check_number("tolerance", 1e-3, above=0.0)
        0.001
    """
    number = isinstance(value, int | float | np.integer | np.floating)
    fits = number and not isinstance(value, bool) and _is_finite(value)
    fits = fits and (above is None or value > above) and (least is None or value >= least)
    if not fits or (below is not None and value >= below) or (most is not None and value > most):
        told = _told(above, least, below, most)
        raise ValueError(f"{name} must be a {told}, got {value!r}")
    return float(value)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number larger than any float
        return False


def _told(above: float | None, least: float | None, below: float | None, most: float | None) -> str:
    """Bounds in words."""
    if least is not None and most is not None:
        return f"number from {least:g} to {most:g}"
    if above is not None and below is not None:
        return f"number strictly between {above:g} and {below:g}"
    if above == 0 and most is None:
        return "positive number"
    words = (("above", above), ("of at least", least), ("below", below), ("at most", most))
    told = " and ".join(f"{word} {bound:g}" for word, bound in words if bound is not None)
    return f"finite number {told}".rstrip()


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


def pairs_of(values: Any) -> Float[np.ndarray, "places 2"] | None:
    """Finite numbers, two for each place; None: something else."""
    try:
        found = np.array(values, np.float64)
    except (TypeError, ValueError):
        return None
    return found if found.shape[1:] == (2,) and np.isfinite(found).all() else None


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
