"""What other packages add to btil: the objects behind their entry points."""

from collections.abc import Mapping
from functools import cache
from importlib import metadata
from types import MappingProxyType
from typing import Any


@cache
def installed(group: str) -> Mapping[str, Any]:
    """The objects that installed packages name in a group of entry points, by their names.

    Args:
        group: "btil.methods", "btil.families" or "btil.domains".
    """
    points = metadata.entry_points(group=group)
    return MappingProxyType({point.name: point.load() for point in points})
