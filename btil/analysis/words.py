"""Words that pages, tables and sentences share."""

from collections.abc import Sequence


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
