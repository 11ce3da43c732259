"""What other packages add to btil: the objects behind their entry points."""

import warnings
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from types import MappingProxyType
from typing import Any


def with_installed[Entry](own: Mapping[str, Entry], group: str) -> dict[str, Entry]:
    """What comes with btil, and what other packages add; they cannot replace any of it.

    Args:
        own: What comes with btil, by its names.
        group: As in `installed`.
    """
    others = installed(group)
    return {**own, **{name: one for name, one in others.items() if name not in own}}


@cache
def installed(group: str) -> Mapping[str, Any]:
    """The objects that installed packages name in a group of entry points, by their names.

    One that cannot be loaded is left out with a warning: what comes with btil works all the same.

    Args:
        group: "btil.methods", "btil.families" or "btil.domains".
    """
    found = {}
    for point in metadata.entry_points(group=group):
        try:
            found[point.name] = point.load()
        except Exception as error:  # whatever another package does when it is imported
            warnings.warn(
                f"{point.name!r} of the entry points {group!r}, {point.value}, cannot be loaded "
                f"and is left out ({type(error).__name__}: {error})",
                stacklevel=2,
            )
    return MappingProxyType(found)
