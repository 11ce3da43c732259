"""Which way places lie: covariates of motion at a speed of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from btil.arguments import check_number
from btil.demonstrations.data import Demonstrations


def directions(
    demos: Demonstrations, x: str, y: str, places: Mapping[str, Any], near: float
) -> Demonstrations:
    r"""Add columns that tell the direction from a position to places.

    Who walks to a place at its own speed, however far it is, has a velocity that is no linear
    function of where it is, but one of the direction to the place,

    .. math:: u = \frac{c - p}{\sqrt{|c - p|^2 + r^2}},

    as long as 1 far away, and shorter than that within about r of the place c.

    Args:
        demos: The demonstrations.
        x: The continuous column of the first coordinate.
        y: That of the second one.
        places: {name: (x, y)}, known, or from `btil.analysis.goals`.
        near: r, about the length of a step; the same for all recordings that are to be compared.

    Returns:
        The demonstrations with two columns more per place, `<x>_to_<name>` and `<y>_to_<name>`.

    Raises:
        ValueError: If a column is not there, or would be there twice, or a place is no pair of
            numbers.

    Example:
        >>> demos = Demonstrations(
        ...     {}, [0, 0], num_latents=2, continuous={"x": [0.0, 3.0], "y": [0.0, 4.0]}
        ... )
        >>> found = directions(demos, "x", "y", {"home": (0.0, 0.0)}, near=12.0)
        >>> found.continuous["y_to_home"].round(3).tolist()
        [0.0, -0.308]
    """
    near = check_number("directions: near", near, above=0.0)
    columns = dict(demos.continuous)
    position = plane_columns(demos, (x, y), "directions")
    if not isinstance(places, Mapping) or not places:
        raise ValueError(f"directions: places must be {{name: (x, y)}}, got {places!r}")
    for place, where in places.items():
        try:
            there = np.asarray(where, np.float64)
        except (TypeError, ValueError):
            there = np.full(0, np.nan)
        if there.shape != (2,) or not np.isfinite(there).all():
            raise ValueError(f"directions: the place {place!r} is {where!r}, expected (x, y)")
        apart = there - position
        length = np.sqrt((apart**2).sum(1) + near**2)
        for name, values in zip((x, y), (apart / length[:, None]).T, strict=True):
            added = f"{name}_to_{place}"
            if added in columns or added in demos.state_variables:
                raise ValueError(f"directions: there is a column {added!r} already")
            columns[added] = values
    return demos.replace(continuous=columns)


def plane_columns(
    demos: Demonstrations, names: Sequence[str], what: str
) -> Float[np.ndarray, "steps 2"]:
    """Two continuous columns that tell a place, or how it changes.

    Args:
        demos: The demonstrations.
        names: The columns of the first and of the second coordinate.
        what: What they are for, for messages.

    Raises:
        ValueError: If these are not two names, or a column is not there.
    """
    if isinstance(names, str) or len(names) != 2:
        raise ValueError(f"{what}: expected the names of two continuous columns, got {names!r}")
    for name in names:
        if name not in demos.continuous:
            raise ValueError(
                f"{what}: there is no continuous column {name!r}; there are "
                f"{', '.join(demos.continuous) or 'none'}"
            )
    return np.stack([np.asarray(demos.continuous[name], np.float64) for name in names], axis=1)
