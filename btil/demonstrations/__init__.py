"""The data: recorded runs of a team, how they are written down, files of them."""

from btil.demonstrations.data import Demonstrations, Summary, concatenate
from btil.demonstrations.tables import read_as_seen, read_demonstrations, write_demonstrations

__all__ = [
    "Demonstrations",
    "Summary",
    "concatenate",
    "read_as_seen",
    "read_demonstrations",
    "write_demonstrations",
]
