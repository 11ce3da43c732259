"""From a start to an optimum: ascents, a look at where they end, and ways on from saddles.

An ascent whose bound hardly rises any more is at an optimum, on a plateau or close to a saddle.
The contraction rate of its last state tells which (`inference/contraction.py`):

- where more is to come than is tolerated it goes on;
- from a saddle two new ascents set out, to both sides along a direction that grows;
- where labels say little of which optimum is meant, others set out from the unlabelled steps dealt
  out at random.

Of several new ascents those ahead after a few sweeps are followed to their ends, and the highest
end is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from btil.inference.checkpoint import Checkpoint
from btil.inference.contraction import (
    FisherInformation,
    Spectrum,
    Vector,
    fisher_information,
    spectrum,
    step_length,
    still_to_come,
)
from btil.numerics.precision import on_device

SWEEPS_PER_CALL = 20
# New ascents from dealt-out steps, and how many of all new ones are followed to their ends then.
_DEALS, _FOLLOWED = 8, 2
# Attempts to leave one saddle, and saddles that a run leaves at most.
_ATTEMPTS, _SADDLES = 2, 20
# What sets out from a saddle: how far a count is moved at most, and how far each at random, as
# shares of it. Where many rows are at saddles of their own, the latter makes all leave at once.
_PUSH, _SHAKE = 0.5, 0.3
# Sweeps after which it shows which of several new ascents is ahead.
_TRIAL = 10
# What is still to come on the way from a saddle, as a share of what was gained: then it is time to
# look for the next one.
_TAIL = 0.02
# Below such a rate it need not be known exactly.
_PLAIN = 0.8
# What the last step counts beside a random vector in the search for the slowest direction.
_SHARE_OF_STEP = 3.0
# A step so much shorter than what is tolerated is rounding, whatever the steps before it were; one
# that is short and no shorter than those a call before is rounding, or on its way from a saddle.
_NEGLIGIBLE, _SHORT = 1e-3, 0.3

State = Any
Bounds = Float[np.ndarray, " sweeps"]


class Reached(NamedTuple):
    """Where an ascent has led.

    Attributes:
        bounds: The bound of each of its sweeps.
        evaluated: The last state whose bound is known.
        upcoming: The state that the next sweep begins from.
        sound: Whether it may go on: the bound is finite, and did not fall.
    """

    bounds: Bounds
    evaluated: State
    upcoming: State
    sound: bool

    @property
    def elbo(self) -> float:
        """The last bound."""
        return float(self.bounds[-1])


class End(NamedTuple):
    """What kind of place an ascent has led to.

    Attributes:
        rate: The contraction rate there, nan where it is not known.
        to_come: What the bound may still gain; infinite at a saddle, nan where it is not known.
        growth: A direction in which the bound grows, or None.
    """

    rate: float = np.nan
    to_come: float = np.nan
    growth: Vector | None = None


class Ascents:
    """Runs of ascents, and the best of their ends; saved as they go.

    A checkpoint holds the ends of all ascents of the run that is going on: they are not run again,
    and what was concluded from them is concluded again.

    Args:
        ascend: (state, bound before it, sweeps allowed, whether a small change of the bound ends
            it) -> the next state, the last evaluated one, the bounds, and whether it would go on.
        sweep: The same for a single sweep, as precise as its derivative asks for.
        prior: u of every learned table, as states have them. Of those whose rows depend on
            parameters any typical one.
        tolerance: What the bound may still gain at an optimum, given the bound.
        max_iterations: Most sweeps of an ascent.
        dtype: Type of the states.
        checkpoint: Where progress is saved.
        line: The progress line.
    """

    def __init__(
        self,
        ascend: Callable[..., Any],
        sweep: Callable[[State], Any],
        prior: Mapping[str, Float[np.ndarray, "..."]],
        tolerance: Callable[[float], float],
        max_iterations: int,
        dtype: np.dtype,
        checkpoint: Checkpoint,
        line: Any,
    ) -> None:
        self._ascend = ascend
        self._sweep = sweep
        # As states have them: a cell that nothing was counted in is at its prior, rounding or not.
        self._prior = {name: u.astype(dtype).astype(np.float64) for name, u in prior.items()}
        self._flat_prior = np.concatenate([u.ravel() for u in self._prior.values()])
        self._tolerance = tolerance
        self._max_iterations = max_iterations
        self._dtype = dtype
        self._checkpoint = checkpoint
        self._line = line
        self._finished: list[tuple[Bounds, Float[np.ndarray, " 2"]]] = []
        self._best: tuple[int, State] | None = None
        self._stages: list[Reached] = []

    @property
    def traces(self) -> tuple[Bounds, ...]:
        """Of every run the bounds of the ascent that was kept."""
        return tuple(bounds for bounds, _ in self._finished)

    @property
    def best(self) -> tuple[State, Bounds, End]:
        """Where the run led that ended highest: state, bounds, and what kind of place it is."""
        assert self._best is not None
        number, state = self._best
        bounds, (rate, to_come) = self._finished[number]
        return state, bounds, End(float(rate), float(to_come))

    def run(
        self,
        start: State,
        deal: Callable[[], State],
        symmetric: bool,
        doubt: float,
        generator: np.random.Generator,
    ) -> None:
        """One run, from a start to an optimum if there is a way.

        Args:
            start: Where it begins.
            deal: Makes a state in which the unlabelled steps are dealt out at random.
            symmetric: Whether the start does not tell some latents apart: it leads nowhere then,
                and dealt-out states take its place.
            doubt: A contraction rate from which on the end that the start led to competes with
                dealt-out ones.
            generator: Draws directions.
        """
        saved, number = self._checkpoint.saved, len(self._finished)
        finished = [] if saved is None else saved.arrays("finished")
        if saved is not None and 2 * number < len(finished):
            self._finished.append((finished[2 * number], finished[2 * number + 1]))
            if number == int(saved.array("best_number")):
                self._best = (number, saved.tree("best", deal()))
            return
        self._stages = []
        reached, end = self._climb(start, deal, symmetric, doubt, generator)
        self._finished.append((reached.bounds, np.array([end.rate, end.to_come])))
        highest = -np.inf if self._best is None else self.best[1][-1]
        if self._best is None or reached.elbo > highest or not np.isfinite(highest):
            self._best = (number, reached.evaluated)
        self._stages = []
        self._offer()

    def _climb(
        self,
        start: State,
        deal: Callable[[], State],
        symmetric: bool,
        doubt: float,
        generator: np.random.Generator,
    ) -> tuple[Reached, End]:
        reached = self._sweeps(start)
        if symmetric:
            reached = self._follow([deal() for _ in range(_DEALS)], _FOLLOWED, least=reached.elbo)
            doubt = np.inf
        end, attempts = self._look(reached, generator), 0
        for _ in range(_SADDLES):
            starts, followed = [], 1
            if end.growth is not None and attempts < _ATTEMPTS:
                shake = _SHAKE if attempts == 0 else 0.0
                starts += self._sides(reached.evaluated, end.growth, shake, generator)
            if end.rate >= doubt:
                starts += [deal() for _ in range(_DEALS)]
                doubt, followed = np.inf, _FOLLOWED
            going = reached.sound and len(reached.bounds) < self._max_iterations
            if starts and going:
                other = self._follow(starts, followed, reached.elbo)
                attempts += 1
                gain, least = other.elbo - reached.elbo, self._tolerance(reached.elbo)
                if not gain > least:
                    # As good as the saddle, and perhaps none itself.
                    seen = self._look(other, generator) if gain > -least else End()
                    if seen.rate < 1:
                        reached, end = other, seen
                    continue
                reached, attempts = other, 0
            elif going and self._tolerance(reached.elbo) <= end.to_come < np.inf:
                reached = self._sweeps(reached.upcoming, reached, patient=True)
            else:
                break
            end = self._look(reached, generator)
        return reached, end

    def _follow(
        self,
        starts: Sequence[State],
        followed: int,
        saddle: float = np.inf,
        least: float = -np.inf,
    ) -> Reached:
        """The highest end of several ascents, of which those ahead are followed.

        Args:
            starts: Where they begin.
            followed: How many are followed.
            saddle: The bound of the saddle that they leave.
            least: A bound that an end is to exceed; others are followed until one does.
        """
        trial = min(_TRIAL, self._max_iterations)
        begun = [self._sweeps(start, patient=True, most=trial) for start in starts]
        ends: list[Reached] = []
        enough = least + 10 * self._tolerance(least) if np.isfinite(least) else least
        for one in sorted(begun, key=_height, reverse=True):
            if len(ends) >= followed and _height(max(ends, key=_height)) > enough:
                break
            ends.append(self._sweeps(one.upcoming, one, patient=True, saddle=saddle))
        return max(ends, key=_height)

    def _look(self, reached: Reached, generator: np.random.Generator) -> End:
        """What kind of place an ascent has led to."""
        if not np.isfinite(reached.elbo):
            return End()
        point = self._flat(reached.evaluated)
        counts = np.maximum(point - self._flat_prior, 0.0)
        information = self._information(point)
        swept = self._flat(reached.upcoming)
        residual = swept - point
        step = step_length(residual, information)
        # Along the last step the ascent is slowest, or leaves; at random whatever it does not see.
        first = np.sqrt(point) * (counts > 0) * generator.standard_normal(len(point))
        moves = step > _NEGLIGIBLE * self._tolerance(reached.elbo)
        scale = np.sqrt(step_length(first, information) / step) if moves else 0.0
        first = first + _SHARE_OF_STEP * scale * residual

        def look(swept: Vector | None, enough: float = np.inf) -> Spectrum:
            sweeps = partial(self._sweep_all, reached.evaluated)
            return spectrum(sweeps, point, information, first, self._dtype, swept, enough)

        # Half the work will do where an optimum is plain, and the step before is a sweep like those
        # here: with parameters it fits normals less far.
        found = None if reached.evaluated.counts else look(swept, enough=_PLAIN)
        if found is None or not found.rate < _PLAIN:
            found = look(None)
        return End(found.rate, still_to_come(step, found.rate), found.growth)

    def _sides(
        self, state: State, growth: Vector, shake: float, generator: np.random.Generator
    ) -> list[State]:
        """Two states to both sides of a saddle."""
        prior = self._flat_prior
        counts = np.maximum(self._flat(state) - prior, 0.0)
        push = _PUSH / np.max(np.abs(growth[counts > 0] / counts[counts > 0])) * growth
        noise = shake * counts * generator.standard_normal(len(counts))
        # A count keeps a tenth at least: what is gone would take long to come back.
        return [
            self._at(state, prior + np.maximum(counts + one, 0.1 * counts))
            for one in (noise + push, noise - push)
        ]

    def _sweep_all(self, state: State, points: list[Vector]) -> list[Vector]:
        """A sweep from each of several concentrations; all are begun before one is waited for."""
        begun = [self._sweep(self._at(state, point)) for point in points]
        return [self._joined(now.upcoming, self._dtype) for now in begun]

    def _information(self, point: Vector) -> FisherInformation:
        return fisher_information(self._parts(point))

    def _flat(self, state: State) -> Vector:
        """Concentrations, prior plus counts, of all learned tables."""
        return self._joined(state, np.float64)

    def _joined(self, state: State, dtype: Any) -> Vector:
        parts = [
            np.asarray(state.concentration[name])
            if name in state.concentration
            else np.asarray(state.counts[name]) + u.astype(dtype)
            for name, u in self._prior.items()
        ]
        return np.concatenate([part.ravel() for part in parts], dtype=dtype)

    def _parts(self, point: Vector) -> list[Float[np.ndarray, "..."]]:
        ends = np.cumsum([u.size for u in self._prior.values()])[:-1]
        parts = np.split(point, ends)
        return [part.reshape(u.shape) for part, u in zip(parts, self._prior.values(), strict=True)]

    def _at(self, state: State, point: Vector) -> State:
        """The state with other concentrations and counts."""
        parts = dict(zip(self._prior, self._parts(point), strict=True))
        return state._replace(
            concentration={
                name: on_device(parts[name], self._dtype) for name in state.concentration
            },
            counts={
                name: on_device(parts[name] - self._prior[name], self._dtype)
                for name in state.counts
            },
        )

    def _before_all(self) -> Any:
        return on_device(-np.inf, self._dtype)

    def _sweeps(
        self,
        state: State,
        before: Reached | None = None,
        patient: bool = False,
        most: int | None = None,
        saddle: float = np.inf,
    ) -> Reached:
        """A stretch of an ascent, to its end: one stage of a run.

        Args:
            state: Where it begins.
            before: What led there.
            patient: Whether it goes on over plateaus, until the lengths of its steps say that less
                is to come than is tolerated.
            most: Sweeps allowed in all; None: `max_iterations`.
            saddle: The bound of the saddle that was left; then a long tail is cut short.
        """
        most = self._max_iterations if most is None else most
        bounds = np.zeros(0, self._dtype) if before is None else before.bounds
        if before is not None and (not before.sound or len(bounds) >= most):
            return before
        restored = self._restored_stage(state)
        if isinstance(restored, Reached):
            self._stages.append(restored)
            return restored
        elbo, previous = self._before_all(), np.inf
        if before is not None:
            elbo = on_device(bounds[-1], self._dtype)
        if restored is not None:
            state, elbo, bounds, previous = restored
            self._line.update(len(bounds))
        while True:
            allowed = np.asarray(min(SWEEPS_PER_CALL, most - len(bounds)), np.int32)
            now = self._ascend(state, elbo, allowed, not patient)
            bounds = np.concatenate([bounds, np.asarray(now.trace)[: int(now.sweeps)]])
            state, elbo = now.upcoming, now.elbo
            self._line.update(int(now.sweeps))
            self._line.set_postfix_str(f"elbo {float(elbo):.4f}")
            if not bool(now.running) or len(bounds) >= most:
                break
            if patient:
                length = self._length(now.evaluated, now.upcoming)
                tolerance = max(self._tolerance(float(elbo)), _TAIL * (float(elbo) - saddle))
                if _nearly_there(length, previous, tolerance):
                    break
                previous = length
            self._offer(state=state, elbo=elbo, bounds=bounds, previous=previous)
        fell = len(bounds) > 1 and bounds[-1] - bounds[-2] < -(
            fall_allowance(self._dtype) * abs(bounds[-2])
        )
        sound = bool(np.isfinite(bounds[-1])) and not fell
        reached = Reached(bounds, now.evaluated, now.upcoming, sound)
        self._stages.append(reached)
        self._offer()
        return reached

    def _length(self, state: State, following: State) -> float:
        """The length of the step from one state to the next."""
        point = self._flat(state)
        return step_length(self._flat(following) - point, self._information(point))

    def _restored_stage(self, like: State) -> Any:
        """What a checkpoint has of the next stage: its end, or how far it has come, or None."""
        saved, number = self._checkpoint.saved, len(self._stages)
        if saved is None or 2 * len(self._finished) != len(saved.arrays("finished")):
            return None
        stages = saved.arrays("stages")
        leaves, structure = jax.tree.flatten((like, like))
        size = len(leaves) + 2
        if number < len(stages) // size:
            bounds, sound, *ends = stages[number * size : (number + 1) * size]
            states = [jnp.asarray(one, own.dtype) for one, own in zip(ends, leaves, strict=True)]
            evaluated, upcoming = jax.tree.unflatten(structure, states)
            return Reached(bounds, evaluated, upcoming, bool(sound))
        if number == len(stages) // size and "state" in saved:
            return (
                saved.tree("state", like),
                jnp.asarray(saved.array("elbo")),
                saved.array("bounds"),
                float(saved.array("previous")),
            )
        return None

    def _offer(self, **current: Any) -> None:
        if self._best is not None:
            current["best_number"], current["best"] = self._best
        stages = [
            (one.bounds, np.asarray(one.sound), (one.evaluated, one.upcoming))
            for one in self._stages
        ]
        self._checkpoint.offer(finished=list(self._finished), stages=stages, **current)


def _height(reached: Reached) -> float:
    return float(np.nan_to_num(reached.elbo, nan=-np.inf))


def _nearly_there(length: float, previous: float, tolerance: float) -> bool:
    """Whether the steps, a call apart, have become so short that little is to come."""
    if length < _NEGLIGIBLE * tolerance:
        return True
    if not length < previous < np.inf:
        return previous <= length < _SHORT * tolerance
    # The length is a square: in the end it falls by the rate's square a sweep.
    rate = (length / previous) ** (0.5 / SWEEPS_PER_CALL)
    return still_to_come(length, rate) < tolerance


def drift(trace: Bounds) -> tuple[float, float]:
    """How far noisy bounds move an iteration by now, and the standard error of that.

    The mean of the last quarter of all iterations is compared with that of the quarter before. With
    n iterations each, the drift is their difference divided by n, known up to an error that the
    scatter within the two quarters gives.
    """
    size = len(trace) // 4
    before, last = trace[-2 * size : -size], trace[-size:]
    moved = (last.mean() - before.mean()) / size
    return moved, np.sqrt((last.var(ddof=1) + before.var(ddof=1)) / size) / size


def fall_allowance(dtype: Any) -> float:
    """The share of the bound by which rounding may make it fall."""
    return 1e-8 if np.dtype(dtype) == np.float64 else float(np.sqrt(np.finfo(np.float32).eps))


class Verdict(NamedTuple):
    """Whether an ascent converged, and a sentence that says why it ended."""

    converged: bool
    reason: str


def judge(
    trace: Float[np.ndarray, " sweeps"],
    tolerance: float,
    max_iterations: int,
    dtype: Any,
    end: End | None = None,
) -> Verdict:
    """Judge an ascent by its bounds and the place it led to.

    Converged means: every bound is finite, none fell by more than rounding explains (1e-8 of the
    bound in double precision, the square root of the machine epsilon in single), and the ascent
    ended at an optimum with less to come than the tolerance. Where the place was not looked at,
    the last change of the bound stands for what is to come.

    Args:
        trace: The bounds, one per sweep.
        tolerance: What the bound may still gain.
        max_iterations: The cap on sweeps.
        dtype: The floating-point type of the computation.
        end: What kind of place it is; None where that is not known.

    Returns:
        The verdict.

    Example:
        >>> judge(np.array([-10.0, -8.0, -9.0]), 1e-4, 100, np.float64).converged
        False
    """
    trace = np.asarray(trace, np.float64)
    if not np.all(np.isfinite(trace)):
        at = int(np.flatnonzero(~np.isfinite(trace))[0])
        return Verdict(False, f"the bound became {trace[at]} at sweep {at + 1}")
    falls = np.flatnonzero(np.diff(trace) < -fall_allowance(dtype) * np.abs(trace[:-1]))
    if len(falls):
        at = int(falls[0]) + 1
        return Verdict(
            False, f"the bound fell from {trace[at - 1]:.6g} to {trace[at]:.6g} at sweep {at + 1}"
        )
    capped = f"the cap of {max_iterations} sweeps was reached"
    if end is not None and np.isfinite(end.rate):
        if end.to_come < tolerance:
            return Verdict(
                True,
                f"an optimum: at most {end.to_come:.2g} < {tolerance:.3g} is still to come, at a "
                f"contraction rate of {end.rate:.3f}",
            )
        if len(trace) < max_iterations:
            capped = (
                f"the ways on from a saddle led less than {tolerance:.2g} higher, or were too many"
            )
        place = (
            "the bound still grows along some direction"
            if end.rate >= 1
            else f"up to {end.to_come:.2g} may still be to come (tolerance {tolerance:.3g})"
        )
        return Verdict(False, f"{capped}, and {place} (contraction rate {end.rate:.3f})")
    if len(trace) < 2:
        return Verdict(False, capped)
    change = abs(trace[-1] - trace[-2])
    if change < tolerance:
        return Verdict(
            True, f"the bound changed by {change:.2g} < {tolerance:.3g} in the last sweep"
        )
    return Verdict(
        False,
        f"{capped} with the bound still changing by {change:.2g} a sweep (tolerance "
        f"{tolerance:.3g})",
    )
