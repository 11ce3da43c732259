"""Which ascents are begun, followed and kept: on maps of a few numbers, whose optima are known."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from btil.inference.ascents import SWEEPS_PER_CALL, Ascents, judge
from btil.inference.channels import PlainAscents
from btil.inference.checkpoint import Checkpoint, Saved
from btil.inference.mean_field import State

pytestmark = pytest.mark.usefixtures("x64")

FLOAT64 = np.dtype(np.float64)
TOLERANCE, MOST = 1e-6, 500


class Line:
    """A progress line that counts."""

    sweeps = 0

    def update(self, number: int) -> None:
        self.sweeps += number

    def set_postfix_str(self, told: str) -> None:
        pass


class Memory(Checkpoint):
    """A checkpoint that keeps every offer, as it would be written."""

    def __init__(self, saved: Mapping[str, np.ndarray] | None = None) -> None:
        super().__init__()
        self.saved = None if saved is None else Saved(saved)
        self.offers: list[dict[str, np.ndarray]] = []

    def offer(self, **progress: Any) -> None:
        self.offers.append(
            {
                f"{name}:{k}": np.array(leaf)
                for name, tree in progress.items()
                for k, leaf in enumerate(jax.tree.leaves(tree))
            }
        )


def some_of(offers: list[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """The last of them, and some of those before."""
    assert len(offers) > 6
    return [*offers[: -1 : len(offers) // 4], offers[-1]]


class Sweeps(NamedTuple):
    """What some sweeps came to, as a fit tells it."""

    evaluated: Any
    upcoming: Any
    elbo: np.ndarray
    trace: np.ndarray
    sweeps: int
    running: bool


def swept(
    following: Callable[[Any], Any], bound: Callable[[Any], float]
) -> Callable[[Any, Any, Any, bool], Sweeps]:
    """Sweeps of a map, up to a number; a small change ends them where that is asked for."""

    def ascend(state: Any, before: Any, allowed: Any, small_ends: bool) -> Sweeps:
        trace: list[float] = []
        last, running = float(before), True
        evaluated = state
        while running and len(trace) < int(allowed):
            evaluated, state = state, following(state)
            trace.append(bound(evaluated))
            gain, last = trace[-1] - last, trace[-1]
            running = gain >= 0 and not (small_ends and gain < TOLERANCE)
        return Sweeps(evaluated, state, np.array(last), np.array(trace), len(trace), running)

    return ascend


# ---------------------------------------------------------------------- of models with columns

RATE = 0.95
# Where the ways of positive numbers lead, and those of others; the heights of these places.
PLACES, HEIGHTS = (-3.0, 2.0), (-5.0, -1.0)


def side(x: np.ndarray) -> int:
    return int(x[0] > 0)


def nearer(x: np.ndarray) -> np.ndarray:
    place = PLACES[side(x)]
    return place + RATE * (x - place)


def height(x: np.ndarray) -> float:
    return HEIGHTS[side(x)] - 10 * float((x[0] - PLACES[side(x)]) ** 2)


def run_plain(
    memory: Memory, *starts: float, doubtful: bool = False, **options: Any
) -> tuple[PlainAscents, Line]:
    line = Line()
    settings = {"max_iterations": MOST, "dtype": FLOAT64} | options
    proceed = settings.pop("proceed", swept(nearer, height))
    ascents = PlainAscents(
        proceed, lambda bound: TOLERANCE, checkpoint=memory, line=line, **settings
    )
    for number, start in enumerate(starts):
        generator = np.random.default_rng(number)
        ascents.run(np.array([start]), partial(generator.uniform, -8, 5, size=1), doubtful)
    return ascents, line


def test_an_ascent_tells_its_rate_and_ends_where_little_is_to_come() -> None:
    ascents, line = run_plain(Memory(), -9.0)
    state, bounds, end = ascents.best
    assert line.sweeps == len(bounds)
    assert len(bounds) % SWEEPS_PER_CALL == 0
    assert end.rate == pytest.approx(RATE)
    assert 0 < -5.0 - bounds[-1] < 2 * TOLERANCE
    # What is to come by the gains of whole calls, of which the last came to the last gain.
    assert -5.0 - bounds[-1] == pytest.approx(end.to_come, rel=1e-3)
    assert end.to_come < TOLERANCE
    np.testing.assert_allclose(state, -3.0, atol=1e-3)


def test_without_doubt_it_ends_where_it_leads_and_with_doubt_where_it_is_highest() -> None:
    plain, _ = run_plain(Memory(), -9.0)
    assert side(plain.best[0]) == 0
    doubtful, _ = run_plain(Memory(), -9.0, doubtful=True)
    assert side(doubtful.best[0]) == 1
    assert doubtful.best[1][-1] == pytest.approx(-1.0, abs=2 * TOLERANCE)
    # No sweep is told of twice where an ascent that was tried is followed.
    assert (np.diff(doubtful.best[1]) > 0).all()


def test_what_ends_no_higher_than_the_start_does_not_take_its_place() -> None:
    """All deals lead to where the start leads: the start's own ascent is kept."""
    memory = Memory()
    ascents, _ = run_plain(
        memory, 4.0, doubtful=True, proceed=swept(lambda x: 2 + RATE * (x - 2), height)
    )
    bounds = ascents.best[1]
    np.testing.assert_allclose(bounds[0], height(np.array([4.0])))


@pytest.mark.parametrize("starts", [(-9.0, 1.0, -4.0), (1.0, -9.0), (-9.0, -4.0, 1.0)])
def test_of_several_runs_the_highest_is_the_best(starts: tuple[float, ...]) -> None:
    ascents, _ = run_plain(Memory(), *starts)
    assert [round(float(bounds[-1])) for bounds in ascents.traces] == [
        -1 if start > 0 else -5 for start in starts
    ]
    state, bounds, _ = ascents.best
    assert bounds[-1] == pytest.approx(-1.0, abs=2 * TOLERANCE)
    assert height(state) == bounds[-1]


def test_the_cap_on_sweeps_is_that_of_an_ascent() -> None:
    ascents, _ = run_plain(Memory(), -9.0, max_iterations=25)
    assert len(ascents.best[1]) == 25
    assert not judge(ascents.best[1], TOLERANCE, 25, FLOAT64, ascents.best[2]).converged


def test_an_ascent_ends_where_its_bound_falls() -> None:
    falling = swept(nearer, lambda x: height(x) if abs(x[0] + 3) > 0.5 else -100.0)
    ascents, _ = run_plain(Memory(), -9.0, proceed=falling)
    assert ascents.best[1][-1] == -100.0
    verdict = judge(ascents.best[1], TOLERANCE, MOST, FLOAT64, ascents.best[2])
    assert "the bound fell" in verdict.reason


@pytest.mark.parametrize("doubtful", [False, True])
def test_an_ascent_that_was_cut_anywhere_goes_on(doubtful: bool) -> None:
    whole = Memory()
    expected, all_of = run_plain(whole, -9.0, 4.0, doubtful=doubtful)
    for offer in some_of(whole.offers):
        resumed, line = run_plain(Memory(offer), -9.0, 4.0, doubtful=doubtful)
        for one, other in zip(expected.traces, resumed.traces, strict=True):
            np.testing.assert_array_equal(one, other)
        assert line.sweeps < all_of.sweeps
        state, _, end = resumed.best
        np.testing.assert_array_equal(state, expected.best[0])
        assert end[:2] == expected.best[2][:2]
    assert line.sweeps == 0  # the last one was of the end


# ---------------------------------------------------------------------- of tables

SUM, SPLIT = 12.0, 3.0


def apart(difference: float) -> float:
    """What becomes of a difference: 0 is a saddle, and it ends at one of two places."""
    return 1.5 * difference / (1 + 0.5 * (difference / SPLIT) ** 2)


def steady(state: State) -> State:
    a, b = np.asarray(state.concentration["row"], np.float64)[0, 0]
    total, difference = SUM + 0.6 * (a + b - SUM), apart(a - b)
    row = np.array([[[total + difference, total - difference]]]) / 2
    return State({"row": row})


def rising(state: State) -> float:
    """A bound that every sweep makes rise, higher on one side of the saddle."""
    a, b = np.asarray(state.concentration["row"], np.float64)[0, 0]
    level = -50.0 if a > b else -55.0
    return level - 0.2 * (a + b - SUM) ** 2 - 0.1 * (abs(a - b) - SPLIT) ** 2


def run_tables(
    memory: Memory, starts: list[list[float]], symmetric: bool = False, doubt: float = np.inf
) -> tuple[Ascents, Line]:
    line, ascend = Line(), swept(steady, rising)
    ascents = Ascents(
        ascend,
        lambda state: ascend(state, -np.inf, 1, False),
        {"row": np.full((1, 1, 2), 0.5)},
        lambda bound: TOLERANCE,
        MOST,
        FLOAT64,
        memory,
        line,
    )

    def dealt(generator: np.random.Generator) -> State:
        return State({"row": 0.5 + generator.uniform(1, 8, size=(1, 1, 2))})

    for number, start in enumerate(starts):
        generator = np.random.default_rng(number)
        begun = State({"row": np.array([[start]])})
        ascents.run(begun, partial(dealt, generator), symmetric, doubt, generator)
    return ascents, line


@pytest.mark.parametrize("symmetric", [False, True])
def test_saddles_are_left_for_an_optimum_that_is_told_as_one(symmetric: bool) -> None:
    ascents, _ = run_tables(Memory(), [[4.0, 4.0]], symmetric)
    state, bounds, end = ascents.best
    a, b = np.asarray(state.concentration["row"])[0, 0]
    assert a + b == pytest.approx(SUM, abs=1e-2)
    assert a - b == pytest.approx(SPLIT, abs=1e-2)
    assert bounds[-1] == pytest.approx(-50.0, abs=TOLERANCE)
    assert end.rate < 1
    verdict = judge(bounds, TOLERANCE, MOST, FLOAT64, end)
    assert verdict.converged, verdict.reason


@pytest.mark.parametrize("starts", [[[2.0, 9.0], [9.0, 2.0]], [[9.0, 2.0], [2.0, 9.0], [3.0, 7.0]]])
def test_the_highest_of_several_runs_is_kept_with_its_place(starts: list[list[float]]) -> None:
    ascents, _ = run_tables(Memory(), starts)
    assert [round(float(bounds[-1])) for bounds in ascents.traces] == [
        -50 if one > other else -55 for one, other in starts
    ]
    state, bounds, end = ascents.best
    assert bounds[-1] == pytest.approx(-50.0, abs=TOLERANCE)
    assert rising(state) == bounds[-1]
    assert 0.5 < end.rate < 0.7


def test_of_dealt_starts_no_more_are_followed_to_their_ends_than_it_takes() -> None:
    """The start's own ascent, eight that are tried, and the two that are ahead."""
    memory = Memory()
    run_tables(memory, [[4.0, 4.0]], symmetric=True)
    # Of each the bounds, whether it may go on, and two states of one table.
    stages = [sum(name.startswith("stages:") for name in offer) / 4 for offer in memory.offers]
    assert max(stages) == 1 + 8 + 2


def test_doubt_lets_dealt_starts_compete_and_a_low_rate_leaves_none() -> None:
    """The contraction rate where it ends is 0.6."""
    for doubt, level in ((0.5, -50.0), (0.7, -55.0)):
        ascents, _ = run_tables(Memory(), [[2.0, 9.0]], doubt=doubt)
        assert ascents.best[1][-1] == pytest.approx(level, abs=TOLERANCE)


@pytest.mark.parametrize(("symmetric", "doubt"), [(False, np.inf), (True, np.inf), (False, 0.1)])
def test_a_run_that_was_cut_anywhere_concludes_the_same(symmetric: bool, doubt: float) -> None:
    whole = Memory()
    starts = [[4.0, 4.0], [9.0, 2.0]]
    expected, all_of = run_tables(whole, starts, symmetric, doubt)
    for offer in some_of(whole.offers):
        resumed, line = run_tables(Memory(offer), starts, symmetric, doubt)
        for one, other in zip(expected.traces, resumed.traces, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(
            resumed.best[0].concentration["row"], expected.best[0].concentration["row"]
        )
        assert line.sweeps <= all_of.sweeps
