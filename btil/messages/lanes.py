"""Episodes of unequal lengths laid side by side, so that chains run in lock-step.

A *lane* is a column of steps that holds whole episodes one after the other. Shapes are rounded
up to a coarse grid: programs compiled for one data set serve others of about its size.
"""

import heapq

import numpy as np
from jaxtyping import Int

from btil.numerics.rounding import SIZES_PER_OCTAVE, SMALLEST_SIZE, rounded_up


def pack_lanes(
    lengths: Int[np.ndarray, " episodes"],
    smallest: int = SMALLEST_SIZE,
    per_octave: int = SIZES_PER_OCTAVE,
    multiple_of: int = 1,
) -> Int[np.ndarray, "length lanes"]:
    """Lay episodes into as few lanes as the longest episode allows.

    The longest episodes are placed first, each into the emptiest lane if it fits there.

    Args:
        lengths: Steps of each episode; the rows of episode m follow those of episode m - 1.
        smallest: Height of the lowest lanes.
        per_octave: Heights between powers of two, as in `rounded_up`.
        multiple_of: By what the number of lanes must be divisible; the last may be empty.

    Returns:
        The row of the demonstrations at each place of each lane, -1 where there is none. Steps of
        an episode are consecutive in one lane.
    """
    lengths = np.asarray(lengths)
    height = rounded_up(int(lengths.max()), smallest, per_octave)
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    lane_of = np.empty(len(lengths), np.int64)
    place_of = np.empty(len(lengths), np.int64)
    filled: list[tuple[int, int]] = []
    for episode in np.argsort(-lengths, kind="stable"):
        length = int(lengths[episode])
        if filled and filled[0][0] + length <= height:
            used, lane = filled[0]
            heapq.heapreplace(filled, (used + length, lane))
        else:
            used, lane = 0, len(filled)
            heapq.heappush(filled, (length, lane))
        lane_of[episode], place_of[episode] = lane, used
    number = -(-rounded_up(len(filled), smallest=1, per_octave=8) // multiple_of) * multiple_of
    lanes = np.full((height, number), -1, np.int64)
    within = np.arange(lengths.sum()) - np.repeat(offsets, lengths)
    lanes[np.repeat(place_of, lengths) + within, np.repeat(lane_of, lengths)] = np.arange(
        lengths.sum()
    )
    return lanes


def one_episode_per_lane(
    lengths: Int[np.ndarray, " episodes"],
) -> Int[np.ndarray, "length episodes"]:
    """The row at each step of each episode, -1 after its end; as tall as the longest episode."""
    lengths = np.asarray(lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths)[:-1]])
    step = np.arange(int(lengths.max()))[:, None]
    return np.where(step < lengths, offsets + step, -1)


def spread(values: np.ndarray, lanes: Int[np.ndarray, "length lanes"], fill: int) -> np.ndarray:
    """Values of the demonstrations' rows laid into lanes, `fill` where there is no row."""
    return np.where(lanes >= 0, values[lanes], np.asarray(fill, values.dtype))
