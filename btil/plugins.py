"""What other packages add to btil: the objects behind their entry points."""

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

    Args:
        group: "btil.methods", "btil.families" or "btil.domains".
    """
    points = metadata.entry_points(group=group)
    return MappingProxyType({point.name: point.load() for point in points})
