"""Episodes laid side by side: nothing lost, nothing torn apart, few shapes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from btil.messages.lanes import one_episode_per_lane, pack_lanes, spread
from btil.numerics.rounding import rounded_up

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=30)


@given(LENGTHS)
def test_every_row_is_in_one_place_and_episodes_are_whole(lengths: list[int]) -> None:
    lanes = pack_lanes(np.array(lengths))
    assert sorted(lanes[lanes >= 0].tolist()) == list(range(sum(lengths)))
    starts = np.cumsum([0, *lengths[:-1]])
    for start, length in zip(starts, lengths, strict=True):
        place, lane = (int(found[0]) for found in np.nonzero(lanes == start))
        assert lanes[place : place + length, lane].tolist() == list(range(start, start + length))


@given(LENGTHS)
def test_lanes_are_filled_from_the_top_and_no_taller_than_the_grid(lengths: list[int]) -> None:
    lanes = pack_lanes(np.array(lengths))
    assert lanes.shape[0] == rounded_up(max(lengths))
    used = lanes >= 0
    assert not np.any(~used[:-1] & used[1:])


def test_equal_episodes_share_lanes() -> None:
    lanes = pack_lanes(np.full(8, 4))
    assert lanes.shape == (16, 2)
    assert np.all(lanes >= 0)


@given(LENGTHS, st.integers(1, 8))
def test_lanes_can_be_shared_by_devices(lengths: list[int], devices: int) -> None:
    lanes = pack_lanes(np.array(lengths), multiple_of=devices)
    assert lanes.shape[1] % devices == 0
    alone = pack_lanes(np.array(lengths))
    more = lanes.shape[1] - alone.shape[1]
    assert 0 <= more < devices
    np.testing.assert_array_equal(lanes[:, : alone.shape[1]], alone)
    assert np.all(lanes[:, alone.shape[1] :] == -1)


@pytest.mark.parametrize("per_octave", [1, 2, 4, 8])
def test_grid_is_the_smallest_size_that_fits(per_octave: int) -> None:
    sizes = sorted({rounded_up(n, 1, per_octave) for n in range(1, 2000)})
    for n in range(1, 2000):
        assert rounded_up(n, 1, per_octave) == next(size for size in sizes if size >= n)
    between = [size for size in sizes if 512 < size <= 1024]
    assert len(between) == per_octave
    assert all(rounded_up(size, 1, per_octave) == size for size in sizes)


def test_one_episode_per_lane() -> None:
    expected = [[0, 2, 3], [1, -1, 4], [-1, -1, 5]]
    assert one_episode_per_lane(np.array([2, 1, 3])).tolist() == expected


def test_spread_keeps_type_and_fills_padding() -> None:
    lanes = np.array([[1, 0], [2, -1]])
    laid = spread(np.array([10, 11, 12], np.int32), lanes, 7)
    assert laid.dtype == np.int32
    assert laid.tolist() == [[11, 10], [12, 7]]
