"""What a run would keep in memory, against what the machine has."""

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from btil.models.team import BoundModel

# Options whose product is a number of draws of all tables that are in memory at one time.
_AT_ONCE = (("num_chains",), ("num_chains", "num_samples"), ("num_draws",), ("num_particles",))


def physical_memory() -> int | None:
    """Bytes of memory of this machine; None where it does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(bound: BoundModel, options: Mapping[str, Any], dtype: np.dtype) -> None:
    """Refuse numbers of draws, chains or particles that no memory of this machine could hold.

    Counted is what there is at the least: of every draw a number for each cell of the tables whose
    rows are learned. What is more is not refused, but may still be too much.

    Args:
        bound: The model on its demonstrations.
        options: Options of a method with their values, or the argument of a question.
        dtype: Of the draws.

    Raises:
        ValueError: Naming the options, what they would need and what there is.
    """
    cells = sum(math.prod(t.shape) for t in bound.learned.values() if not t.parametric)
    # Where few rows of every draw are kept, there are still all of each chain's last one.
    some = options.get("keep_rows") is not None
    there = physical_memory()
    for names in _AT_ONCE:
        given = {name: int(options[name]) for name in names if options.get(name) is not None}
        kept = 1 if some and "num_samples" in given else max(cells, 1)
        needed = dtype.itemsize * kept * math.prod(given.values())
        if there is None or needed <= there:
            continue
        fewer = "ask for fewer"
        if not some and "keep_rows" in options and "num_samples" in given:
            fewer += ", or keep all draws of some rows only (keep_rows)"
        told = " and ".join(f"{name}={value:,}" for name, value in given.items())
        raise ValueError(
            f"{told}: this would need at least {_size(needed)} of memory, but the machine has "
            f"{_size(there)}; {fewer}"
        )


def _size(number: int) -> str:
    return f"{number / 2**30:,.0f} GiB"
