r"""Where the truth lies among posterior draws, and whether it lies there as often as it should.

Parameters drawn from the prior, data drawn given them, draws from the posterior given the data:
the parameters and the posterior draws are then exchangeable, so the rank of any quantity of the
truth among the same quantity of the draws is uniform if, and practically only if, the posterior
is right. Here a rank r among L draws is spread out to

.. math:: u = (r + U) / (L + 1), \quad U \sim \mathrm{Uniform}(0, 1),

with ties broken at random, which is uniform on (0, 1) whatever L; simulations may then differ in
the number of draws that their chains are worth.

References:
    Talts, Betancourt, Simpson, Vehtari, Gelman (2018), Validating Bayesian inference algorithms
    with simulation-based calibration. arXiv:1804.06788.
    Modrák, Moon, Kim, Bürkner, Huurre, Faltejsková, Gelman, Vehtari (2023), Simulation-based
    calibration checking for Bayesian computation: the choice of test quantities shapes
    sensitivity. Bayesian Analysis.
    Säilynoja, Bürkner, Vehtari (2022), Graphical test for discrete uniformity and its applications
    in goodness-of-fit evaluation and multiple sample comparison. Statistics and Computing 32.
"""

import functools
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.arguments import check_values

# Below so many simulations a band says nothing.
_FEWEST_SIMULATIONS = 10
_NORMAL_95 = 1.959964
# Central intervals whose coverage is told, by their columns.
INTERVALS = {"coverage_50": 0.5, "coverage_89": 0.89}


class Ranked(NamedTuple):
    """Quantities of one group: the truth, and where it lies in the posterior.

    The first quantity of a simulation is the one that is tested, as those of one simulation are
    not independent. Simulations with fewer quantities are filled up with NaN.

    Attributes:
        place: The truth's rank among the draws, spread out to (0, 1).
        truth: The truth.
        mean: Mean of the draws.
        sd: How far from that mean a right posterior expects the truth: the standard deviation
            of the draws, a little widened as the mean of L draws is not exact.
    """

    place: Float[np.ndarray, "*simulations quantities"]
    truth: Float[np.ndarray, "*simulations quantities"]
    mean: Float[np.ndarray, "*simulations quantities"]
    sd: Float[np.ndarray, "*simulations quantities"]


class Band(NamedTuple):
    """An empirical distribution function and where it lies if the values are uniform.

    Attributes:
        points: Where it is looked at, from 0 to 1.
        ecdf: Share of the values up to each point.
        lower: With the band's probability the whole function lies between this
        upper: and this, at all points at once.
    """

    points: Float[np.ndarray, " points"]
    ecdf: Float[np.ndarray, " points"]
    lower: Float[np.ndarray, " points"]
    upper: Float[np.ndarray, " points"]

    @property
    def left(self) -> bool:
        """Whether the function leaves the band anywhere."""
        return bool(((self.ecdf < self.lower) | (self.ecdf > self.upper)).any())


class Share(NamedTuple):
    """An estimate with its standard error."""

    value: float
    error: float


def place_among(
    truth: Float[np.ndarray, " quantities"],
    draws: Float[np.ndarray, "draws quantities"],
    generator: np.random.Generator,
) -> Float[np.ndarray, " quantities"]:
    """Ranks of the truth among draws, spread out to (0, 1); ties are broken at random.

    Rows with small Dirichlet concentrations have cells that round to the smallest number there
    is, in the truth and in draws alike: the truth's place among equals is then any, at random.

    Example:
        >>> draws = np.arange(99.0)[:, None]
        >>> place = place_among(np.array([49.5]), draws, np.random.default_rng(0))
        >>> bool(0.5 <= place[0] < 0.51)
        True
    """
    below = (draws < truth).sum(0)
    equal = (draws == truth).sum(0)
    return (below + generator.random(len(truth)) * (equal + 1)) / (len(draws) + 1)


def rank(
    truth: Float[np.ndarray, " quantities"],
    draws: Float[np.ndarray, "draws quantities"],
    generator: np.random.Generator,
) -> Ranked:
    r"""The truth among draws of the same quantities.

    The truth being as one more draw, its squared distance from the mean of the others is
    (1 + 1/L) times the variance on average, which is s^2, the draws' with L - 1 below.
    """
    number = len(draws)
    # Of a single draw there is no variance.
    variance = draws.var(0, ddof=1) if number > 1 else np.full(len(truth), np.nan)
    sd = np.sqrt((1 + 1 / number) * variance)
    return Ranked(place_among(truth, draws, generator), truth, draws.mean(0), sd)


def place_of_latents(
    beliefs: Float[np.ndarray, "steps latents"],
    truth: Int[np.ndarray, " steps"],
    generator: np.random.Generator,
) -> Float[np.ndarray, " steps"]:
    """Where true latents lie among all latents in the order of their probabilities, largest first.

    The summed probability of the latents more probable than the true one, plus a random part of
    its own: uniform if beliefs are right. Too many large values (true latents that were thought
    improbable) say that beliefs are too sure.
    """
    shuffled = generator.permuted(np.tile(np.arange(beliefs.shape[1]), (len(beliefs), 1)), axis=1)
    mixed = np.take_along_axis(beliefs, shuffled, 1)
    # Latents of equal probability stay in their shuffled order.
    order = np.take_along_axis(shuffled, np.argsort(-mixed, axis=1, kind="stable"), 1)
    ordered = np.take_along_axis(beliefs, order, 1)
    before = np.argmax(order == truth[:, None], axis=1)
    each = np.arange(len(beliefs))
    summed = np.cumsum(ordered, axis=1)[each, before] - ordered[each, before]
    places = summed + generator.random(len(beliefs)) * ordered[each, before]
    return np.minimum(places, 1.0)  # of rounding alone


def rank_latents(
    beliefs: Float[np.ndarray, "steps latents"],
    truth: Int[np.ndarray, " steps"],
    generator: np.random.Generator,
) -> Ranked:
    """True latents in beliefs; the quantity is whether the most probable latent is wrong."""
    doubt = 1 - beliefs.max(1)
    wrong = (beliefs.argmax(1) != truth).astype(np.float64)
    sd = np.sqrt(np.clip(doubt * (1 - doubt), 0, None))
    return Ranked(place_of_latents(beliefs, truth, generator), wrong, doubt, sd)


@functools.cache
def _uniform_band(
    number: int, probability: float
) -> tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]:
    from arviz_stats.ecdf_utils import ecdf_pit

    _, _, lower, upper = ecdf_pit(np.linspace(0, 1, number), probability, n_simulations=1000)
    return lower, upper


def uniformity_band(values: Float[np.ndarray, " values"], probability: float) -> Band:
    """The distribution function of values in (0, 1), and ArviZ's simultaneous band for it.

    It is the band of `arviz.plot_ecdf_pit(..., method="envelope", envelope_prob=probability)`.

    Args:
        values: Independent if they are uniform.
        probability: With which the function stays inside everywhere if they are.

    Raises:
        ValueError: If there are fewer than two values.

    Source: Säilynoja, Bürkner, Vehtari (2022).
    """
    number = len(values)
    if number < 2:
        raise ValueError(f"a band needs at least 2 values, got {number}")
    lower, upper = _uniform_band(number, probability)
    points = np.arange(number + 1) / number
    ecdf = np.searchsorted(np.sort(values), points, side="right") / number
    ecdf[0], ecdf[-1] = 0.0, 1.0
    return Band(points, ecdf, lower, upper)


def tested(ranked: Ranked) -> Float[np.ndarray, " simulations"]:
    """One place per simulation, of those that have any: what is tested."""
    first = ranked.place[:, 0]
    return first[~np.isnan(first)]


def band_probability(probability: float) -> float:
    """Probability of the band that is part of a verdict: half of what may go wrong is its."""
    check_values({"probability": probability})
    return 1 - (1 - probability) / 2


def verdict(ranked: Ranked, probability: float, by_probability: bool = False) -> str:
    """In a word whether places are uniform, and if not, how they are not.

    Three tests share the probability of a false alarm: the band, which half of it goes to, looks
    at one quantity of each simulation; the mean and the spread of the places look at all, with
    errors over simulations (Student's t), as quantities of one simulation depend on each other.

    Args:
        ranked: The quantities of a group.
        probability: That of "uniform" if the posterior is right.
        by_probability: Whether the places are those of `place_of_latents`, large where beliefs
            were too sure; their mean alone is looked at then.

    Returns:
        "uniform"; "overconfident" (truths lie further out than the posterior thinks),
        "underconfident"; "too low", "too high" (the posterior's values, compared with the truths);
        or "too few simulations".
    """
    from scipy.stats import t

    places = tested(ranked)
    if len(places) < _FEWEST_SIMULATIONS:
        return "too few simulations"
    some = ~np.isnan(ranked.place)
    shift = _in_errors(_ratio(ranked.place, some), 0.5)
    wide = 0.0 if by_probability else _in_errors(spread(ranked), 1.0)
    tail = (1 - probability) / (4 if by_probability else 8)
    largest = max(abs(shift), abs(wide))
    inside = not uniformity_band(places, band_probability(probability)).left
    if inside and largest < t.isf(tail, len(places) - 1):
        return "uniform"
    if by_probability:
        return "overconfident" if shift > 0 else "underconfident"
    if abs(shift) > abs(wide):
        return "too low" if shift > 0 else "too high"
    return "overconfident" if wide > 0 else "underconfident"


def _in_errors(share: Share, expected: float) -> float:
    """How many standard errors an estimate is off."""
    return (share.value - expected) / share.error if share.error > 0 else 0.0


def spread(ranked: Ranked) -> Share:
    """12 E[(u - 1/2)^2] over all quantities: 1 if uniform, 3 if every truth lies outside all draws.

    Above 1 the posterior is too narrow (or in the wrong place), below 1 too wide. The standard
    error is over simulations.
    """
    return _ratio(12 * (ranked.place - 0.5) ** 2, ~np.isnan(ranked.place))


def coverage(ranked: Ranked, probability: float) -> Share:
    """Share of truths inside the central posterior interval of this probability."""
    inside = np.abs(ranked.place - 0.5) < probability / 2
    return _ratio(inside, ~np.isnan(ranked.place))


def coverages(ranked: Ranked) -> dict[str, Share]:
    """The same of the intervals that are told, by their columns."""
    return {column: coverage(ranked, probability) for column, probability in INTERVALS.items()}


def error_ratio(ranked: Ranked) -> Share:
    r"""How large errors are, over how large the posterior says they are.

    .. math:: \sqrt{\sum (\theta - E\theta)^2 / \sum \mathrm{Var}(\theta)}

    over all quantities, with the posterior's mean and variance: 1 if it is right, 2 if it believes
    itself twice as accurate as it is. For latents the quantity is whether the most probable one
    is wrong. The standard error is over simulations.
    """
    squared = _ratio((ranked.truth - ranked.mean) ** 2, ranked.sd**2)
    root = np.sqrt(squared.value)
    return Share(root, squared.error / (2 * root) if root > 0 else np.nan)


def _ratio(
    above: Float[np.ndarray, "simulations quantities"] | Bool[np.ndarray, "simulations quantities"],
    below: Float[np.ndarray, "simulations quantities"] | Bool[np.ndarray, "simulations quantities"],
) -> Share:
    """A ratio of sums over what is known of both, with its standard error over simulations."""
    known = ~(np.isnan(above) | np.isnan(below))
    return ratio_of_sums(*(np.where(known, one, 0).sum(1) for one in (above, below)))


def ratio_of_sums(
    above: Float[np.ndarray, " simulations"] | Int[np.ndarray, " simulations"],
    below: Float[np.ndarray, " simulations"] | Int[np.ndarray, " simulations"],
) -> Share:
    """A ratio of sums over simulations, with the standard error of what each contributes.

    What happens inside a simulation may be as dependent as it likes.
    """
    number, total = int((below > 0).sum()), below.sum()
    if number < 2:
        return Share(np.nan, np.nan)
    value = above.sum() / total
    residual = above - value * below
    return Share(float(value), float(np.sqrt((residual**2).sum() * number / (number - 1)) / total))


# ---------------------------------------------------------------------- sure and right


class Reliability(NamedTuple):
    """Unlabelled steps by how sure the most probable latent is, and how often it is the true one.

    Attributes:
        steps: Number of steps in each bin of sureness.
        said: Their summed probabilities of the most probable latent.
        right: How many of these latents are true.
    """

    steps: Float[np.ndarray, "*simulations bins"]
    said: Float[np.ndarray, "*simulations bins"]
    right: Float[np.ndarray, "*simulations bins"]


NUM_BINS = 100
# What is shown are about so many bins of equal numbers of steps.
_POINTS = 10


def reliability(
    beliefs: Float[np.ndarray, "steps latents"], truth: Int[np.ndarray, " steps"]
) -> Reliability:
    """Sort steps into hundredths by the probability of their most probable latent."""
    said = beliefs.max(1).astype(np.float64)
    right = beliefs.argmax(1) == truth
    bins = np.minimum((said * NUM_BINS).astype(int), NUM_BINS - 1)
    return Reliability(
        *(np.bincount(bins, weights, NUM_BINS).astype(float) for weights in (None, said, right))
    )


def in_hundredths(counted: Reliability) -> Reliability:
    """Counts as they are kept now; those of wider bins stand in the first of the bins within."""

    def spread(values: Float[np.ndarray, "*simulations bins"]) -> np.ndarray:
        found = np.zeros((*values.shape[:-1], NUM_BINS))
        found[..., :: NUM_BINS // values.shape[-1]] = values
        return found

    return Reliability(*map(spread, counted))


class Bin(NamedTuple):
    """Steps about equally sure.

    Attributes:
        low: They are at least so sure
        high: and less than so (the last bin: up to 1).
        steps: Their number.
        said: The mean probability that was given to their most probable latents.
        right: The share of these that are true.
        lower: 95% interval of that share,
        upper: widened for steps of one simulation that are right or wrong together.
    """

    low: float
    high: float
    steps: int
    said: float
    right: float
    lower: float
    upper: float


def bins_of(counted: Reliability) -> list[Bin]:
    """Neighbouring bins joined to about ten of equal numbers of steps, over all simulations.

    Steps that are equally sure stay together. Bins of equal widths would show chance where few
    steps are unsure.
    """
    found = []
    num_bins = counted.steps.shape[-1]
    for low, high in _equal_counts(counted.steps.sum(0)):
        steps, right = (values[:, low:high].sum(1) for values in (counted.steps, counted.right))
        total, share = steps.sum(), right.sum() / steps.sum()
        # So many independent steps would tell as much: by the spread between simulations, or,
        # where there is but one, or all are right or all wrong, as if those of one were one.
        worth = float((steps > 0).sum())
        if 0 < share < 1 and worth > 1:
            variance = ratio_of_sums(right, steps).error ** 2
            worth = total if variance == 0 else min(total, share * (1 - share) / variance)
        said = counted.said[:, low:high].sum() / total
        edges, interval = (low / num_bins, high / num_bins), wilson_interval(share, worth)
        found.append(Bin(*edges, int(total), float(said), float(share), *interval))
    return found


def _equal_counts(steps: Float[np.ndarray, " bins"]) -> list[tuple[int, int]]:
    """From and up to which bin to join, so that none has less than a tenth of the steps."""
    enough = steps.sum() / _POINTS
    found: list[tuple[int, int]] = []
    first, count = 0, 0.0
    occupied = np.flatnonzero(steps)
    for number in occupied:
        first = first if count else int(number)
        count += steps[number]
        if count >= enough:
            found.append((first, int(number) + 1))
            count = 0.0
    if count:  # few are left: with those before them
        first = found.pop()[0] if found else first
        found.append((first, int(occupied[-1]) + 1))
    return found


def wilson_interval(share: float, number: float) -> tuple[float, float]:
    """95% interval of a probability of which `share` of `number` trials came out.

    Source: Wilson (1927), Probable inference, the law of succession, and statistical inference.
    """
    square = _NORMAL_95**2
    center = (share + square / (2 * number)) / (1 + square / number)
    variance = share * (1 - share) / number + square / (4 * number**2)
    half = _NORMAL_95 * np.sqrt(variance) / (1 + square / number)
    return float(max(center - half, 0.0)), float(min(center + half, 1.0))


# With which a right posterior is called so, per group of quantities.
PROBABILITY = 0.99
