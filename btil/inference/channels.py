"""What methods share of continuous channels: their steps, where they start, what is reported."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from btil.inference.ascents import SWEEPS_PER_CALL, End
from btil.inference.checkpoint import Checkpoint
from btil.inference.starting import ENOUGH_LABELS
from btil.messages.channels import ChannelSteps, expected_statistics, lay_channel
from btil.messages.lanes import spread
from btil.messages.layout import Layout
from btil.models.emission import Channel, Normals, Units
from btil.models.team import BoundModel
from btil.numerics.matrix_normal import Hyper, Statistics, divergence, updated
from btil.numerics.precision import on_device

# New ascents from dealt-out steps, sweeps after which it shows which are ahead, how many of them
# are followed, and by which share an end is moved towards such a start to see whether it holds.
_DEALS, _TRIAL, _FOLLOWED, _SHAKE = 8, 10, 2, 0.2
# Starts of the regressions that a deal is made of, rounds of each, and what holds them in place.
_TRIES, _ROUNDS, _LITTLE = 10, 15, 0.1
# Losses that differ by less than this share are the same.
_ROUNDING = 1e-9


class LaidChannel(NamedTuple):
    """A channel of a fit.

    Attributes:
        channel: The channel on its data.
        units: In which the numbers of the fit are.
        steps: Its steps, and its prior.
    """

    channel: Channel
    units: Units
    steps: ChannelSteps


def laid_channels(bound: BoundModel, layout: Layout, dtype: np.dtype) -> dict[str, LaidChannel]:
    """The channels of a bound model by their names."""
    found = {}
    for channel in bound.channels.values():
        units = channel.units()
        found[channel.name] = LaidChannel(
            channel, units, lay_channel(channel, units, layout.lanes, dtype)
        )
    return found


def log_jacobian(bound: BoundModel) -> Float[np.ndarray, " steps"]:
    """What turns log densities in the units of a fit into those of the data, step by step."""
    total = np.zeros(bound.demos.num_steps)
    for channel in bound.channels.values():
        total += channel.log_jacobian(channel.units())
    return total


def statistics_of(
    laid: LaidChannel, latents: Int[np.ndarray, " steps"], layout: Layout, dtype: np.dtype
) -> Statistics:
    """Sums over steps of which the latent is given; -1 where it is not."""
    inside = spread(latents, layout.lanes, -1)
    known = np.arange(laid.channel.num_latents)[:, None] == inside[:, None]
    return _expected(on_device(known, dtype), *laid.steps, laid.channel.is_whole)


_expected = jax.jit(expected_statistics, static_argnames="whole")


def labels_of(bound: BoundModel, channel: Channel) -> Int[np.ndarray, " steps"]:
    """The labels of the channel's agent."""
    return bound.demos.latents[:, bound.demos.agents.index(channel.agent)]


def labelled_statistics(
    bound: BoundModel, laid: Mapping[str, LaidChannel], layout: Layout, dtype: np.dtype
) -> dict[str, Statistics]:
    """Sums over the labelled steps."""
    return {
        name: statistics_of(one, labels_of(bound, one.channel), layout, dtype)
        for name, one in laid.items()
    }


def dealt_statistics(
    bound: BoundModel,
    laid: Mapping[str, LaidChannel],
    layout: Layout,
    dtype: np.dtype,
    generator: np.random.Generator,
) -> dict[str, Statistics]:
    """Sums with the unlabelled steps dealt out (`deal_latents`)."""
    return {
        name: statistics_of(one, deal_latents(bound, one, generator), layout, dtype)
        for name, one in laid.items()
    }


def deal_latents(
    bound: BoundModel, laid: LaidChannel, generator: np.random.Generator
) -> Int[np.ndarray, " steps"]:
    """A latent for every step: its label, or that of the regression which fits its stretch best.

    K regressions are begun on short runs of steps chosen at random, then fitted in turn to the
    stretches nearest to them, as in k-means; of several such starts the one that fits best is
    taken. Without covariates it is k-means of the columns.

    References:
        Spaeth (1979), Algorithm 39: clusterwise linear regression, Computing 22.
    """
    channel = laid.channel
    rows = channel.observed.rows
    labels = np.array(labels_of(bound, channel))
    latents = channel.num_latents
    if not len(rows) or latents == 1:
        return np.where(labels < 0, 0, labels)
    p = channel.observed.inputs.shape[1]
    y = channel.observed.values[rows]
    known = np.isfinite(y)
    a = laid.units.steps(channel.observed.inputs[rows], np.where(known, y, 0.0))
    u, y = a[:, :p], np.where(known, a[:, p:], 0.0)
    # Latents stay for a while, and stretches tell them better than steps.
    length = int(generator.choice([1, 4, 10]))
    episode = np.searchsorted(bound.demos.episode_starts, rows, side="right")
    stretch = np.unique(episode * (len(labels) + 1) + rows // length, return_inverse=True)[1]
    best, least = np.zeros(len(rows), np.int64), np.inf
    for _ in range(_TRIES):
        found, loss = _regressions(u, y, stretch, latents, generator)
        # What is equal but for rounding is the same partition, by other names.
        if loss < (1 - _ROUNDING) * least:
            best, least = found, loss
    dealt = np.full(len(labels), -1)
    dealt[rows] = generator.permutation(latents)[best]
    return np.where(labels < 0, dealt, labels)


def _regressions(
    u: Float[np.ndarray, "steps p"],
    y: Float[np.ndarray, "steps d"],
    stretch: Int[np.ndarray, " steps"],
    latents: int,
    generator: np.random.Generator,
) -> tuple[Int[np.ndarray, " steps"], float]:
    """Steps dealt to K regressions that begin at random, and what these leave."""
    p = u.shape[1]
    run = min(len(u), max(2 * p, 5))
    coefficients = []
    for _ in range(latents):
        first = int(generator.integers(len(u) - run + 1))
        coefficients.append(_fitted(u[first : first + run], y[first : first + run]))
    found, loss = np.zeros(len(u), np.int64), np.inf
    for _ in range(_ROUNDS):
        squares = np.stack([((y - u @ b) ** 2).sum(1) for b in coefficients], axis=1)
        of_stretch = np.stack([np.bincount(stretch, column) for column in squares.T], axis=1)
        least = of_stretch.min(1)
        found = (of_stretch <= (1 + _ROUNDING) * least[:, None]).argmax(1)[stretch]
        before, loss = loss, float(least.sum())
        if not loss < (1 - 1e-3) * before:
            break
        coefficients = [_fitted(u[found == k], y[found == k]) for k in range(latents)]
    return found, loss


def _fitted(u: Float[np.ndarray, "steps p"], y: Float[np.ndarray, "steps d"]) -> np.ndarray:
    return np.linalg.solve(u.T @ u + _LITTLE * np.eye(u.shape[1]), u.T @ y)


def is_doubtful(bound: BoundModel) -> bool:
    """Whether labels leave it open which optimum is meant."""
    return is_doubtful_with((bound.demos.latents >= 0).sum(0), bound.demos.num_latents)


def is_doubtful_with(labelled: Int[np.ndarray, " agents"], num_latents: Sequence[int]) -> bool:
    """The same, of so many labelled steps of each agent."""
    return any(
        latents > 1 and number < ENOUGH_LABELS * latents
        for number, latents in zip(labelled.tolist(), num_latents, strict=True)
    )


# A state, the bounds that led there, and what kind of place it is.
_Reached = tuple[Any, np.ndarray, End]


class PlainAscents:
    """Ascents of models with continuous channels, and the best of their ends.

    An ascent goes on until what the last sweeps gained says that less is to come than is
    tolerated. Where labels are few, dealt-out starts compete with the given one, and the end is
    moved a little towards another deal to see whether it holds.

    Args:
        proceed: (state, bound before it, sweeps allowed, whether a small change of the bound ends
            it) -> a `Progress`.
        tolerance: What the bound may still gain at an end, given the bound.
        max_iterations: Most sweeps of an ascent.
        dtype: Type of the states.
        checkpoint: Where progress is saved. A run is a series of climbs of which each begins where
            those before it say: saved ones are taken as they ended, and the next goes on.
        line: The progress line.
    """

    def __init__(
        self,
        proceed: Callable[..., Any],
        tolerance: Callable[[float], float],
        max_iterations: int,
        dtype: np.dtype,
        checkpoint: Checkpoint,
        line: Any,
    ) -> None:
        self._proceed = proceed
        self._tolerance = tolerance
        self._max_iterations = max_iterations
        self._dtype = dtype
        self._checkpoint = checkpoint
        self._line = line
        self._ends: list[_Reached] = []
        self._climbs: list[_Reached] = []
        self._resumes = checkpoint.saved is not None

    @property
    def traces(self) -> tuple[np.ndarray, ...]:
        """Of every run the bounds of the ascent that was kept."""
        return tuple(bounds for _, bounds, _ in self._ends)

    @property
    def best(self) -> tuple[Any, np.ndarray, End]:
        """Where the run led that ended highest: state, bounds, and what kind of place it is."""
        return max(self._ends, key=_height)

    def run(
        self,
        start: Any,
        deal: Callable[[], Any],
        doubtful: bool,
        mixes: Sequence[Callable[[Any, Any], Any]] = (),
    ) -> None:
        """One run.

        Args:
            start: Where it begins.
            deal: Makes a state in which the unlabelled steps are dealt out.
            doubtful: Whether dealt-out states compete with the start.
            mixes: (state, dealt) -> the state with one agent's part as dealt. Agents are
                independent: each may have to try again where the others have arrived.
        """
        finished = self._restored("ends", start)
        if len(finished) > len(self._ends):
            self._ends.append(finished[len(self._ends)])
            return
        self._ends.append(self._highest(start, deal, doubtful, mixes))
        # What climbs were saved were those of this run.
        self._climbs, self._resumes = [], False
        self._offer()

    def _highest(
        self,
        start: Any,
        deal: Callable[[], Any],
        doubtful: bool,
        mixes: Sequence[Callable[[Any, Any], Any]],
    ) -> _Reached:
        if not doubtful:
            return self._climb(start)
        begun = [self._climb(one, most=_TRIAL) for one in (start, *(deal() for _ in range(_DEALS)))]
        ahead = self._ahead(begun[1:])
        best = self._climb(*begun[0][:2])
        for one in ahead:
            best = self._higher(best, self._climb(*one[:2]))
        for mix in mixes if len(mixes) > 1 else ():
            tried = [self._climb(mix(best[0], deal()), most=_TRIAL) for _ in range(_DEALS)]
            for one in self._ahead(tried):
                best = self._higher(best, self._climb(*one[:2]))
        moved = jax.tree.map(
            lambda own, other: ((1 - _SHAKE) * own + _SHAKE * other).astype(own.dtype),
            best[0],
            deal(),
        )
        return self._higher(best, self._climb(moved))

    def _ahead(self, tried: list[_Reached]) -> list[_Reached]:
        """Those to follow; of equal ones, but for rounding, the earlier."""
        tolerance = self._tolerance(max(map(_height, tried)))
        return sorted(tried, key=lambda one: np.floor(_height(one) / tolerance), reverse=True)[
            :_FOLLOWED
        ]

    def _higher(self, best: _Reached, other: _Reached) -> _Reached:
        """The second where it is higher by more than is tolerated."""
        gained = _height(other) > _height(best) + self._tolerance(_height(best))
        return other if gained else best

    def _climb(
        self, state: Any, bounds: np.ndarray | None = None, most: int | None = None
    ) -> _Reached:
        """An ascent: the last evaluated state, all bounds, and what is still to come."""
        limit = self._max_iterations if most is None else min(most, self._max_iterations)
        found = np.zeros(0, self._dtype) if bounds is None else bounds[:-1]
        elbo = jnp.asarray(-jnp.inf, self._dtype)
        gains: list[float] = []
        end = End()
        saved = self._checkpoint.saved
        if self._resumes and saved is not None:
            earlier = self._restored("climbs", state)
            if len(earlier) > len(self._climbs):
                return self._reached(*earlier[len(self._climbs)])
            self._resumes = False
            if "state" in saved:
                state, elbo = saved.tree("state", state), jnp.asarray(saved.array("elbo"))
                found, gains = saved.array("bounds"), saved.array("gains").tolist()
                end = End(*saved.array("end").tolist())
        while True:
            allowed = min(SWEEPS_PER_CALL, limit - len(found))
            now = self._proceed(state, elbo, np.asarray(allowed, np.int32), most is not None)
            part = np.asarray(now.trace)[: int(now.sweeps)]
            before = found[-1] if len(found) else part[0]
            found = np.concatenate([found, part])
            self._line.update(int(now.sweeps))
            self._line.set_postfix_str(f"elbo {float(now.elbo):.4f}")
            elbo = now.elbo
            if not bool(now.running) or len(found) >= limit:
                return self._reached(now.evaluated, found, end)
            state = now.upcoming
            tolerance = self._tolerance(float(elbo))
            gain = float(elbo) - float(before)
            if gain < 0.1 * tolerance:
                # It fell, or hardly gains anything.
                return self._reached(now.evaluated, found, End())
            gains.append(gain)
            if len(gains) > 1 and gains[-1] < gains[-2]:
                # Gains fall by the square of the rate a sweep.
                ratio = gains[-1] / gains[-2]
                to_come = gain * ratio / (1 - ratio)
                end = End(ratio ** (0.5 / SWEEPS_PER_CALL), to_come)
                if to_come < tolerance:
                    return self._reached(now.evaluated, found, end)
            self._offer(
                state=state, elbo=elbo, bounds=found, gains=np.array(gains), end=np.array(end[:2])
            )

    def _reached(self, state: Any, bounds: np.ndarray, end: End) -> _Reached:
        """The end of a climb, noted for the checkpoint."""
        self._climbs.append((state, bounds, end))
        self._offer()
        return self._climbs[-1]

    def _offer(self, **current: Any) -> None:
        ends, climbs = (
            [(bounds, np.array(end[:2]), state) for state, bounds, end in reached]
            for reached in (self._ends, self._climbs)
        )
        self._checkpoint.offer(ends=ends, climbs=climbs, **current)

    def _restored(self, name: str, like: Any) -> list[_Reached]:
        """Ends that a checkpoint holds."""
        if self._checkpoint.saved is None:
            return []
        leaves, structure = jax.tree.flatten(like)
        arrays, size = self._checkpoint.saved.arrays(name), len(leaves) + 2
        found = []
        for k in range(0, len(arrays), size):
            bounds, end, *own = arrays[k : k + size]
            state = [jnp.asarray(one, leaf.dtype) for one, leaf in zip(own, leaves, strict=True)]
            found.append((jax.tree.unflatten(structure, state), bounds, End(*end.tolist())))
        return found


def _height(end: tuple[Any, np.ndarray, End]) -> float:
    return float(np.nan_to_num(end[1][-1], nan=-np.inf))


def posterior_normals(laid: LaidChannel, statistics: Statistics) -> Normals:
    """The posterior of a channel in the units of the data, without padding."""
    return laid.units.outside(updated_normals(laid, statistics))


def updated_normals(laid: LaidChannel, statistics: Statistics) -> Normals:
    """The posterior in the units of the fit, in double precision from its sums."""
    number = len(laid.channel.contexts)
    prior = laid.units.inside(laid.channel.prior())
    count = np.asarray(statistics.number, np.float64)[:number]
    outer = np.asarray(statistics.outer, np.float64)[:number]
    return updated_on_host(prior, Statistics(count, outer))


def updated_on_host(prior: Normals, statistics: Statistics) -> Normals:
    """The posterior, given a prior and sums of double precision."""
    with jax.enable_x64(True):
        return Normals(*(np.asarray(part) for part in updated(*_doubles(prior, statistics))))


def divergence_on_host(prior: Normals, statistics: Statistics) -> float:
    """KL(posterior || prior), all contexts and latents together, in double precision."""
    with jax.enable_x64(True):
        given, sums = _doubles(prior, statistics)
        return float(jnp.sum(divergence(updated(given, sums), given)))


def _doubles(prior: Normals, statistics: Statistics) -> tuple[Hyper, Statistics]:
    return (
        Hyper(*(on_device(part, np.float64) for part in prior)),
        Statistics(*(on_device(part, np.float64) for part in statistics)),
    )
