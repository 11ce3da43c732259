"""Recordings as other tools write them: one function per format, all give `Demonstrations`.

`docs/how-to/formats.md` has a worked example of each.
"""

from typing import TYPE_CHECKING, Any

from btil.loading import load

if TYPE_CHECKING:
    from btil.recordings.intervals import Interval, read_intervals
    from btil.recordings.labelling import label_by_intervals
    from btil.recordings.long_table import from_long_table
    from btil.recordings.minari import from_minari
    from btil.recordings.overcooked_trials import from_overcooked_trials
    from btil.recordings.trajectories import from_trajectories

# Loaded on first use.
_LAZY = {
    "Interval": "btil.recordings.intervals",
    "from_long_table": "btil.recordings.long_table",
    "from_minari": "btil.recordings.minari",
    "from_overcooked_trials": "btil.recordings.overcooked_trials",
    "from_trajectories": "btil.recordings.trajectories",
    "label_by_intervals": "btil.recordings.labelling",
    "read_intervals": "btil.recordings.intervals",
}

__all__ = [
    "Interval",
    "from_long_table",
    "from_minari",
    "from_overcooked_trials",
    "from_trajectories",
    "label_by_intervals",
    "read_intervals",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(load(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'btil.recordings' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
