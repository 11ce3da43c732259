r"""Chains that sit in different modes: which do not overlap, and what each group of them says.

Two chains are taken for one mode unless they lie apart: along the direction between the means of
their first halves, the means of their second halves differ by more than three standard deviations
within a chain, and likewise with the halves exchanged. The direction and the distance come from
different draws, so that chains of the same mode are not found apart by chance, however many
probabilities there are. Chains whose log likelihoods lie as far apart are in different modes, too.
A group is made of chains that overlap, directly or through others.

Chains that overlap may still go back and forth between modes. The draws of all chains are then in
two heaps along some direction, with a valley between them, and the share of the draws in a heap is
the weight of its mode in the posterior. Directions are those in which draws most resemble the next
ones; they come from some stretches of the chains, and the valley must be there in all others as
well.

Latents must have been matched first: chains that differ in names alone are in one mode.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.analysis.monte_carlo import OF_DRAWS, answers_of, indexed, some_draws
from btil.analysis.plots.rows import expected_visits
from btil.analysis.words import listed
from btil.inference.chains import ess
from btil.inference.method import method_of
from btil.inference.result import DrawnChannel, DrawnParameters, DrawnRows, MomentRows
from btil.posterior.beliefs import Posterior

# In standard deviations within a chain.
APART = 3.0
# What chains have an axis of.
_OF_CHAINS = OF_DRAWS | {MomentRows: ("means", "squares", "draws")}
# Halves of chains shorter than this tell nothing.
_FEWEST_DRAWS = 8
# Draws are looked at one by one, then averaged over so many consecutive ones: what moves fast in
# them may hide a valley.
_SCALES = (1, 5)
# Heaps have a valley between them if fewer draws lie in the middle third of the way between their
# means than this share of the smaller heap. Of a normal distribution it is two fifths, of a uniform
# one a third, of a sine's values a quarter.
_VALLEY = 0.05
# The smaller heap has so many draws at least, and such a share of all.
_FEWEST_IN_HEAP, _LEAST_HEAP = 10, 0.02
# An error from fewer crossings is a rough one.
_FEW_CROSSINGS = 10
# Directions that are tried, turns until they are found, and cells that are looked at, those that
# vary most.
_DIRECTIONS, _TURNS, _MOST_CELLS = 3, 30, 2000
# Chains are cut into so many stretches: directions come from every other one.
_STRETCHES = 20


class Mode(NamedTuple):
    """Chains that overlap.

    Attributes:
        chains: Their numbers.
        log_likelihood: Mean log likelihood of the training data over their draws.
        sd: Its standard deviation over draws.
    """

    chains: tuple[int, ...]
    log_likelihood: float
    sd: float


def find_modes(
    posterior: Posterior,
    visits: Mapping[str, Float[np.ndarray, "contexts ..."]] | None = None,
) -> list[Mode]:
    """Groups of chains that overlap, that of the largest mean log likelihood first.

    Args:
        posterior: A posterior whose chains have their latents matched.
        visits: How often the data read each row; None: as `expected_visits` says. Rows count by
            the square root of it, and those read less than once, or whose draws were not kept, do
            not count. Coefficients and variances of columns do.

    Returns:
        One mode where all chains overlap; none where there are no chains.
    """
    total = total_log_likelihood(posterior)
    if total is None:
        return []
    several = len(total) > 1 and total.shape[1] >= _FEWEST_DRAWS
    return _overlapping(total, _vectors(posterior, visits) if several else None)


def _overlapping(
    total: Float[np.ndarray, "chain draw"], vectors: Float[np.ndarray, "chain draw cells"] | None
) -> list[Mode]:
    """`find_modes` by what the draws say; None: chains too short to tell apart."""
    group = [0] * len(total) if vectors is None else _group_of_each_chain(total, vectors)
    modes = []
    for first in dict.fromkeys(group):
        chains = tuple(chain for chain, own in enumerate(group) if own == first)
        own = total[list(chains)]
        modes.append(Mode(chains, float(own.mean()), float(own.std())))
    return sorted(modes, key=lambda mode: -mode.log_likelihood)


def total_log_likelihood(posterior: Posterior) -> Float[np.ndarray, "chain draw"] | None:
    """The log likelihood of all training data under each draw; None where there are no chains."""
    log_likelihood = posterior.result.log_likelihood
    if posterior.draws_info is None or log_likelihood is None:
        return None
    return log_likelihood.sum(-1, dtype=np.float64)


def _group_of_each_chain(
    total: Float[np.ndarray, "chain draw"], vectors: Float[np.ndarray, "chain draw cells"]
) -> list[int]:
    """The same number for chains that overlap, directly or through others."""
    group = list(range(len(total)))
    spread = float(np.median(total.std(1)))
    for one, other in itertools.combinations(range(len(total)), 2):
        far = abs(total[one].mean() - total[other].mean()) > APART * spread
        if not far and separation(vectors[one], vectors[other]) <= APART:
            group = [group[one] if g == group[other] else g for g in group]
    return group


class WeighedMode(NamedTuple):
    """Draws of one mode, and how much of the posterior it is.

    Attributes:
        draws: Which draws are in it.
        weight: Their share.
        weight_se: Its Monte Carlo standard error. NaN: the weight is not known, as modes are of
            chains that do not overlap. The share tells where chains began then.
        crossings: How often chains have come into it or left it. Of few crossings the error is
            a rough one itself.
        log_likelihood: Mean log likelihood of the training data over its draws.
        sd: Its standard deviation over draws.
    """

    draws: Bool[np.ndarray, "chain draw"]
    weight: float
    weight_se: float
    crossings: int
    log_likelihood: float
    sd: float


def weigh_modes(
    posterior: Posterior,
    visits: Mapping[str, Float[np.ndarray, "contexts ..."]] | None = None,
    groups: Sequence[Mode] | None = None,
) -> list[WeighedMode]:
    r"""The modes between which draws go back and forth, and their weights, the largest first.

    With :math:`z` the indicator of a mode over the draws and :math:`\bar z` its mean,

    .. math:: w = \bar z, \qquad \mathrm{se}^2 = w (1 - w) / n_\mathrm{eff}(z) .

    Chains that do not overlap (`find_modes`) are in modes whose weights are not known: how many
    chains are in each tells where they began.

    Args:
        posterior: A posterior; of other methods than gibbs and nuts there are no modes to tell of.
            Latents that nothing distinguishes must have been matched (`btil.analysis.align`).
        visits: As in `find_modes`.
        groups: `find_modes(posterior, visits)`, if they are there already.

    Returns:
        One mode where draws make one heap; none where there are no chains.

    Example:
        >>> btil.analysis.weigh_modes(btil.fit(model, demos, "gibbs"))  # doctest: +SKIP
    """
    total = total_log_likelihood(posterior)
    if total is None or method_of(posterior.method).answer != "chains":
        return []
    vectors = _vectors(posterior, visits) if total.shape[1] >= _FEWEST_DRAWS else None
    groups = _overlapping(total, vectors) if groups is None else groups
    known = len(groups) == 1
    numbers = np.zeros(total.shape, int)
    if not known:
        for group in groups:
            numbers[list(group.chains)] = min(group.chains)
    elif vectors is not None:
        numbers = _heap_of_each_draw(vectors)
    modes = []
    for number in np.unique(numbers):
        draws = numbers == number
        weight = float(draws.mean())
        crossings = int((draws[:, 1:] != draws[:, :-1]).sum())
        error = np.nan
        if weight == 1:
            error = 0.0
        elif known:
            size = float(ess(draws[..., None].astype(np.float64))[0])
            error = float(np.sqrt(weight * (1 - weight) / size))
        own = total[draws]
        modes.append(
            WeighedMode(draws, weight, error, crossings, float(own.mean()), float(own.std()))
        )
    return sorted(modes, key=lambda mode: -mode.weight)


def told_modes(modes: Sequence[WeighedMode]) -> str:
    """How many modes there are, and what they weigh, in words."""
    if any(np.isnan(mode.weight_se) for mode in modes):
        return (
            f"the chains are in {len(modes)} modes, whose weights are not known, as no chain goes "
            "from one to another"
        )
    weights = listed([f"{mode.weight:.2f} ± {mode.weight_se:.2f}" for mode in modes])
    least = min(mode.crossings for mode in modes)
    times = "once" if least == 1 else f"{least:,} times"
    rough = f", a rough error as chains went over {times} only" if least < _FEW_CROSSINGS else ""
    return f"the draws are in {len(modes)} modes, of weight {weights}{rough}"


def _linked(numbers: Int[np.ndarray, "chain draw"]) -> bool:
    """Whether chains lead from every heap to every other.

    A draw or two on the other side of a valley is the tail of a heap.
    """
    least = _LEAST_HEAP * numbers.shape[1]
    sets = [set(np.flatnonzero(np.bincount(chain) > least).tolist()) for chain in numbers]
    linked = sets.pop()
    while overlapping := [one for one in sets if one & linked]:
        linked = linked.union(*overlapping)
        sets = [one for one in sets if one not in overlapping]
    return not sets


def _heap_of_each_draw(
    vectors: Float[np.ndarray, "chain draw cells"],
) -> Int[np.ndarray, "chain draw"]:
    """Numbers of the heaps that draws lie in, by the finest scale at which there are several.

    Heaps that no chain links are none: chains that overlap have moved slowly then.
    """
    chains, length, _ = vectors.shape
    variances = vectors.var((0, 1))
    varying = np.argsort(-variances, kind="stable")[:_MOST_CELLS]
    kept = vectors[:, :, np.sort(varying)]
    for scale in _SCALES:
        blocks = length // scale
        averages = kept[:, : blocks * scale].reshape(chains, blocks, scale, kept.shape[-1]).mean(2)
        numbers = _heaps(averages)
        if numbers.any() and _linked(numbers):
            of_draws = np.repeat(numbers, scale, axis=1)
            return np.pad(of_draws, ((0, 0), (0, length - blocks * scale)), mode="edge")
    return np.zeros((chains, length), int)


def _heaps(vectors: Float[np.ndarray, "chain draw cells"]) -> Int[np.ndarray, "chain draw"]:
    """Heaps, cut in two as long as there is a valley in one."""
    numbers = np.zeros(vectors.shape[:2], int)
    uncut = [0]
    while uncut:
        heap = numbers == uncut[-1]
        far = _far_side(vectors, heap)
        if far.any():
            uncut.append(int(numbers.max()) + 1)
            numbers[far] = uncut[-1]
        else:
            uncut.pop()
    return numbers


def _far_side(
    vectors: Float[np.ndarray, "chain draw cells"], among: Bool[np.ndarray, "chain draw"]
) -> Bool[np.ndarray, "chain draw"]:
    """Of some draws those on the far side of a valley; none where there is no valley.

    Each half of the stretches is cut along a direction that comes from the other half.
    """
    length = among.shape[1]
    even = np.arange(length) * _STRETCHES // length % 2 == 0
    halves = among & even, among & ~even
    for direction in _slow_directions(vectors, halves[0]):
        far = np.zeros_like(among)
        along = direction
        for half in (halves[1], halves[0], halves[1]):
            values = vectors[half] @ along
            level = _valley(values)
            if level is None:
                break
            far[half] = values > level
            along = vectors[half & far].mean(0) - vectors[half & ~far].mean(0)
        else:
            return far
    return np.zeros_like(among)


def _slow_directions(
    vectors: Float[np.ndarray, "chain draw cells"], among: Bool[np.ndarray, "chain draw"]
) -> Float[np.ndarray, "directions cells"]:
    """Directions of the largest covariance of draws with the next ones, by turns of a power method.

    What is independent from draw to draw has none, however much it varies.
    """
    both = among[:, :-1] & among[:, 1:]
    if not both.any() or not vectors.shape[-1]:
        return np.zeros((0, vectors.shape[-1]))
    center = vectors[among].mean(0)
    now, following = vectors[:, :-1][both] - center, vectors[:, 1:][both] - center
    number = min(_DIRECTIONS, vectors.shape[-1])
    found = np.random.default_rng(0).normal(size=(vectors.shape[-1], number))
    for _ in range(_TURNS):
        found = now.T @ (following @ found) + following.T @ (now @ found)
        found = np.linalg.qr(found)[0]
    return found.T


def _valley(values: Float[np.ndarray, " draws"]) -> float | None:
    """Where the deepest valley between two heaps is; None without one."""
    number = len(values)
    least = max(_FEWEST_IN_HEAP, int(np.ceil(_LEAST_HEAP * number)))
    if number < 2 * least:
        return None
    ordered = np.sort(values)
    below = np.arange(least, number - least + 1)
    sums = np.cumsum(ordered)
    low = sums[below - 1] / below
    high = (sums[-1] - sums[below - 1]) / (number - below)
    ends = [np.searchsorted(ordered, low + (high - low) * part) for part in (1 / 3, 2 / 3)]
    shares = (ends[1] - ends[0]) / np.minimum(below, number - below)
    best = int(shares.argmin())
    if shares[best] >= _VALLEY or high[best] <= low[best]:
        return None
    return float((low[best] + high[best]) / 2)


def separation(
    one: Float[np.ndarray, "draws cells"], other: Float[np.ndarray, "draws cells"]
) -> float:
    """How far two chains lie apart, in standard deviations within a chain; see the module."""
    half = len(one) // 2
    halves = [(chain[:half], chain[-half:]) for chain in (one, other)]
    found = []
    for k in (0, 1):
        direction = halves[0][k].mean(0) - halves[1][k].mean(0)
        if not direction.any():
            return 0.0
        along = [parts[1 - k] @ direction for parts in halves]
        within = float(np.sqrt(np.mean([values.var() for values in along])))
        distance = float(along[0].mean() - along[1].mean())
        found.append(distance / within if within > 0 else np.inf * np.sign(distance))
    return min(found)


def _vectors(
    posterior: Posterior, visits: Mapping[str, Float[np.ndarray, "contexts ..."]] | None
) -> Float[np.ndarray, "chain draw cells"]:
    """What each draw says of the rows that are read, each counted as `find_modes` says.

    Beside them coefficients and log variances of columns, and parameters of an own model, each in
    its standard deviations within chains.
    """
    visits = expected_visits(posterior) if visits is None else visits
    assert posterior.result.log_likelihood is not None
    parts = [np.zeros((*posterior.result.log_likelihood.shape[:2], 0))]
    for site, rows in posterior.result.rows.items():
        if isinstance(rows, DrawnRows | MomentRows):
            read = visits[site][rows.kept] if isinstance(rows, MomentRows) else visits[site]
            used = read >= 1
            weighted = rows.draws[:, :, used] * np.sqrt(read[used])[:, None]
            parts.append(weighted.reshape(*weighted.shape[:2], -1))
    others: list[np.ndarray] = []
    if not posterior.result.rows:  # of an own model its parameters
        for one in posterior.result.parameters.values():
            assert isinstance(one, DrawnParameters)
            others.append(one.draws)
    for channel in posterior.result.channels.values():
        if isinstance(channel, DrawnChannel):
            variances = np.diagonal(channel.covariance, axis1=-2, axis2=-1)
            others += [channel.coefficients, np.log(variances)]
    for draws in others:
        sd = draws.std(1).mean(0)
        scaled = draws / np.where(sd > 0, sd, 1.0)
        parts.append(scaled.reshape(*scaled.shape[:2], -1))
    return np.concatenate(parts, axis=-1).astype(np.float64)


def only_draws(posterior: Posterior, draws: Bool[np.ndarray, "chain draw"]) -> Posterior:
    """The posterior by some of its draws alone, as one chain."""
    chosen = tuple(axis[None] for axis in np.nonzero(draws))
    return some_draws(posterior, chosen)


def only_chains(posterior: Posterior, chains: Sequence[int]) -> Posterior:
    """The posterior by some of its chains alone; itself where it has none."""
    if not any(type(one) in _OF_CHAINS for one in answers_of(posterior.result)):
        return posterior
    return indexed(posterior, list(chains), _OF_CHAINS)
