r"""How far averages over posterior draws are off, because draws are few.

Draws are taken in blocks: chains in stretches of consecutive draws, everything else in independent
lots. What is computed of all draws is computed again with each of the G blocks left out, and the
spread of these values says how far chance has moved it (the jackknife, Tukey 1958):

.. math:: \mathrm{se}^2 = \frac{G - 1}{G} \sum_g (s_{-g} - \bar s)^2

It asks nothing of the statistic but that it moves smoothly with the draws, and, as blocks are
stretches of chains, it allows for draws that depend on those before them.

References:
    Efron, Stein (1981), The jackknife estimate of variance. Annals of Statistics 9. Künsch (1989),
    The jackknife and the bootstrap for general stationary observations. Annals of Statistics 17.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.inference.result import DrawnChannel, DrawnParameters, DrawnRows, FitResult
from btil.posterior.beliefs import Posterior

# Arrays of draws, (chain, draw, ...), by the kind of answer that has them.
OF_DRAWS: dict[type, tuple[str, ...]] = {
    DrawnRows: ("draws",),
    DrawnParameters: ("draws",),
    DrawnChannel: DrawnChannel._fields,
}
# The error has a relative standard error of 1 / sqrt(2 (blocks - 1)), a sixth.
_NUM_BLOCKS = 20


class Block(NamedTuple):
    """A lot of posterior draws: `posterior.smooth(..., num_draws=num_draws, seed=seed)`.

    Attributes:
        posterior: The posterior; of chains a stretch of one, all of whose draws are meant.
        num_draws: Number of draws.
        seed: Seeds them.
    """

    posterior: Posterior
    num_draws: int
    seed: int


def drawn_shape(posterior: Posterior) -> tuple[int, int] | None:
    """Chains, and draws in each; None where the posterior is no set of draws."""
    for one in answers_of(posterior.result):
        if type(one) in OF_DRAWS:
            num_chains, length = getattr(one, OF_DRAWS[type(one)][0]).shape[:2]
            return num_chains, length
    return None


def answers_of(result: FitResult) -> list[Any]:
    """What a method says of every table, parameter and continuous channel."""
    return [*result.rows.values(), *result.parameters.values(), *result.channels.values()]


def some_draws[P: Posterior](posterior: P, chosen: Any) -> P:
    """A posterior by some of its draws.

    Args:
        posterior: A posterior of draws.
        chosen: What of the draws (chain, draw, ...) is kept, an index of these two axes that leaves
            both there.
    """
    return indexed(posterior, chosen, OF_DRAWS)


def indexed[P: Posterior](posterior: P, chosen: Any, arrays: Mapping[type, tuple[str, ...]]) -> P:
    """A posterior with an index applied to some arrays, and to what is kept of every draw.

    Args:
        posterior: A posterior of draws.
        chosen: The index, of the leading axes.
        arrays: Names of the arrays, by the kind of answer that has them; others stay.
    """
    result = posterior.result

    def kept(answers: Mapping[str, Any]) -> dict[str, Any]:
        return {
            name: one._replace(
                **{field: getattr(one, field)[chosen] for field in arrays.get(type(one), ())}
            )
            for name, one in answers.items()
        }

    log_likelihood = result.log_likelihood
    return dataclasses.replace(
        posterior,
        result=result._replace(
            rows=kept(result.rows),
            parameters=kept(result.parameters),
            channels=kept(result.channels),
            log_likelihood=None if log_likelihood is None else log_likelihood[chosen],
            sample_stats={n: np.asarray(v)[chosen] for n, v in result.sample_stats.items()},
        ),
    )


def evenly_spaced(posterior: Posterior, num_draws: int) -> tuple[Posterior, int]:
    """A posterior of about so many draws, the same number of each chain, and their exact number.

    Chains with fewer draws keep all; what is no set of draws stays as it is.
    """
    shape = drawn_shape(posterior)
    if shape is None:
        return posterior, num_draws
    num_chains, length = shape
    wanted = min(length, -(-num_draws // num_chains))
    chosen = np.linspace(0, length - 1, wanted).round().astype(int)
    return some_draws(posterior, np.s_[:, chosen]), num_chains * wanted


def blocks_of_draws(posterior: Posterior, num_draws: int, seed: int) -> list[Block]:
    """About `num_draws` draws in blocks, chain by chain in the order in which they were drawn.

    Args:
        posterior: The posterior.
        num_draws: Of chains no more than they have, evenly spaced.
        seed: Seeds what is drawn.
    """
    few, number = evenly_spaced(posterior, num_draws)
    shape = drawn_shape(few)
    if shape is None:
        lots = [(few, len(lot)) for lot in _stretches(number, _NUM_BLOCKS)]
    else:
        lots = [
            (some_draws(few, np.s_[chain : chain + 1, stretch]), len(stretch))
            for chain, stretch in stretches_of_chains(*shape)
        ]
    seeds = np.random.SeedSequence(seed).generate_state(len(lots)).tolist()
    return [Block(*lot, own) for lot, own in zip(lots, seeds, strict=True)]


def stretches_of_chains(
    num_chains: int, length: int
) -> Iterator[tuple[int, Int[np.ndarray, " draws"]]]:
    """Blocks of chains: each with its chain and its draws, chain by chain."""
    parts = max(1, round(_NUM_BLOCKS / num_chains))
    for chain in range(num_chains):
        for stretch in _stretches(length, parts):
            yield chain, stretch


def _stretches(length: int, parts: int) -> list[Int[np.ndarray, " draws"]]:
    return np.array_split(np.arange(length), min(length, parts))


def means_without_each_block(posterior: Posterior) -> Iterator[Posterior]:
    """The posterior with each block of its draws left out, as far as its means go.

    For the errors of what is asked of mean rows. Of rows and of continuous channels each has one
    draw, their mean.

    Yields:
        Posteriors; nothing where the posterior is no set of draws, or one block is all.
    """
    shape = drawn_shape(posterior)
    if shape is None:
        return
    result = posterior.result
    drawn = {
        name: one
        for name, one in (*result.rows.items(), *result.channels.items())
        if isinstance(one, DrawnRows | DrawnChannel)
    }
    means = {n: [moments_without_each_block(part)[0] for part in one] for n, one in drawn.items()}
    for number, (chain, stretch) in enumerate(stretches_of_chains(*shape)):
        kept = np.ones(shape, bool)
        kept[chain, stretch] = False
        if not kept.any():
            return
        own: dict[str, Any] = {
            name: type(one)(*(part[number][None, None] for part in means[name]))
            for name, one in drawn.items()
        }
        # One chain of all that is left.
        left = tuple(axis[None] for axis in np.nonzero(kept))
        parameters = {
            site: DrawnParameters(one.draws[left]) if isinstance(one, DrawnParameters) else one
            for site, one in result.parameters.items()
        }
        yield dataclasses.replace(
            posterior,
            result=result._replace(
                rows={name: own.get(name, one) for name, one in result.rows.items()},
                channels={name: own.get(name, one) for name, one in result.channels.items()},
                parameters=parameters,
                log_likelihood=None,
                sample_stats={},
            ),
        )


def moments_without_each_block(
    draws: Float[np.ndarray, "chain draw *cells"],
) -> tuple[Float[np.ndarray, "blocks *cells"], Float[np.ndarray, "blocks *cells"]]:
    """Mean and standard deviation of every cell with each block of draws left out."""
    center = draws.mean((0, 1), dtype=np.float64)
    numbers, sums, squares = [], [], []
    for chain, stretch in stretches_of_chains(*draws.shape[:2]):
        apart = draws[chain, stretch] - center
        numbers.append(len(stretch))
        sums.append(apart.sum(0))
        squares.append((apart**2).sum(0))
    left = np.reshape(sum(numbers) - np.array(numbers), (-1, *(1,) * center.ndim))
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = (np.sum(sums, axis=0) - np.stack(sums)) / left
        second = (np.sum(squares, axis=0) - np.stack(squares)) / left
    return center + shift, np.sqrt(np.maximum(second - shift**2, 0.0))


class Average(NamedTuple):
    """An average over all draws, and with each block left out.

    Attributes:
        whole: Over all draws.
        without: Over all but those of one block.
    """

    whole: Any
    without: list[Any]


def average_over(
    blocks: list[Block], function: Callable[[Block], Float[np.ndarray, "..."]]
) -> Average:
    """Average over all draws of what `function` averages over the draws of a block."""
    return _averaged(blocks, np.stack([function(block) for block in blocks]))


def log_average_over(
    blocks: list[Block], function: Callable[[Block], Float[np.ndarray, "..."]]
) -> Average:
    """Log of the average, of which `function` gives the log for the draws of a block."""
    logs = np.stack([function(block) for block in blocks])
    largest = logs.max(0)
    largest = np.where(np.isfinite(largest), largest, 0.0)
    average = _averaged(blocks, np.exp(logs - largest))
    with np.errstate(divide="ignore"):
        return Average(
            np.log(average.whole) + largest, [np.log(one) + largest for one in average.without]
        )


def _averaged(blocks: list[Block], values: Float[np.ndarray, "blocks ..."]) -> Average:
    sizes = np.array([block.num_draws for block in blocks], float)
    weighted = values * np.reshape(sizes, (-1, *(1,) * (values.ndim - 1)))
    total, left = weighted.sum(0), sizes.sum() - sizes
    without = [(total - own) / rest for own, rest in zip(weighted, left, strict=True) if rest > 0]
    return Average(total / sizes.sum(), without)


def jackknife_error(without: Any) -> Float[np.ndarray, "..."]:
    """Monte Carlo standard error of a statistic from its values with each block left out.

    Args:
        without: (blocks, ...).

    Returns:
        NaN of fewer than two blocks.

    Example:
        >>> values = np.random.default_rng(0).normal(size=20)
        >>> without = (values.sum() - values) / 19
        >>> float(jackknife_error(without) / (values.std(ddof=1) / np.sqrt(20))).__round__(6)
        1.0
    """
    values = np.asarray(without, np.float64)
    number = len(values)
    if number < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(np.sqrt((number - 1) * values.var(0)))


def together(*errors: Any) -> Any:
    """The error of independent errors; those that are not there (NaN) count for nothing.

    The first must be there: where it is NaN, so is the whole.
    """
    first, *others = (np.asarray(error, np.float64) for error in errors)
    squares = first**2 + sum((np.nan_to_num(error) ** 2 for error in others), np.zeros(()))
    return np.sqrt(squares)
