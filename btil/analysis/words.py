"""Words that pages, tables and sentences share."""

from collections.abc import Sequence

import numpy as np


def listed(names: Sequence[str]) -> str:
    """Names in a sentence: "a, b and c"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def with_error(value: float, error: float, digits: int) -> str:
    """A number with its standard error, if that is known; a dash where there is none."""
    if np.isnan(value):
        return "–"
    return f"{value:.{digits}f}" + ("" if np.isnan(error) else f" ± {error:.{digits}f}")
