r"""Do chains agree? R-hat of every cell, and the verdict that follows from it.

There is one R-hat, here and wherever btil shows one: the rank-normalised split R-hat, the larger of
that of the draws and that of the folded draws, as ArviZ has it. It needs the draws themselves. Of
rows of which only moments were kept (gibbs with `keep_rows`) there is but the plain `split_rhat`,
and it is called that.

References:
    Vehtari, Gelman, Simpson, Carpenter, Buerkner (2021), Rank-normalization, folding, and
    localization: an improved R-hat for assessing convergence of MCMC. Bayesian Analysis 16.
"""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Shaped

from btil.inference.result import MomentRows

RHAT_LIMIT = 1.05
_FEWEST_DRAWS = 4
# Cells that are worked on at once: bounds the memory.
_BLOCK = 64
# What tails are: the draws beyond these quantiles.
_TAILS = (0.05, 0.95)

Chains = Float[np.ndarray, "chain draw ..."] | MomentRows
# Of each of some cells the halves of its chains.
Halves = Float[np.ndarray, "cells halves draw"]


class ChainVerdict(NamedTuple):
    """Whether chains agree.

    Attributes:
        converged: More than one chain, and R-hat below 1.05 in every cell that varies and of the
            total log likelihood.
        reason: A sentence with the numbers.
        max_rhat: The largest R-hat of a cell; NaN where there is none.
        num_cells: Cells that vary.
        num_above: Of these, cells with R-hat of 1.05 or more; where only moments of a cell were
            kept, split R-hat.
        num_constant: Cells that are the same in every draw, for which R-hat is not defined.
    """

    converged: bool
    reason: str
    max_rhat: float
    num_cells: int
    num_above: int
    num_constant: int


class ChainSummary(NamedTuple):
    """Convergence of the chains of one table.

    Where the draws of some rows only were kept, R-hat and effective sample sizes are of those, and
    the other rows have a split R-hat.

    Attributes:
        rows: Number of probability rows.
        cells: Number of cells.
        constant_cells: Cells that never vary; they have no R-hat and are left out.
        max_rhat: Largest R-hat; NaN with one chain.
        max_split_rhat: Largest split R-hat of the rows whose draws were not kept; NaN where all
            were.
        rows_above: Rows with a cell whose R-hat (of rows whose draws were not kept: split R-hat) is
            1.05 or more.
        min_ess_bulk: Smallest bulk effective sample size of a cell.
        min_ess_tail: Smallest tail effective sample size of one.
    """

    rows: int
    cells: int
    constant_cells: int
    max_rhat: float
    max_split_rhat: float
    rows_above: int
    min_ess_bulk: float
    min_ess_tail: float


def constant_cells(draws: Shaped[np.ndarray, "chain draw *cells"]) -> Bool[np.ndarray, "*cells"]:
    """Cells with the same value in every draw of every chain."""
    return (draws == draws[:1, :1]).all((0, 1))


# ---------------------------------------------------------------------- R-hat


def rhat(draws: Float[np.ndarray, "chain draw *cells"]) -> Float[np.ndarray, "*cells"]:
    r"""Rank-normalised split R-hat of every cell, as `arviz.rhat`, all cells at once.

    .. math:: \hat R = \max \{\hat R(z(\theta)), \hat R(z(|\theta - \mathrm{median}(\theta)|))\},
              \qquad \hat R(z) = \sqrt{\frac{n - 1}{n} + \frac{B}{n W}}

    over the halves of the chains, n draws each (of an odd number the middle one is left out), with
    z the normal quantiles of the draws' ranks among all, W the mean variance within the halves and
    B/n the variance of their means. ArviZ takes nearly a millisecond a cell, this a tenth of that.

    Args:
        draws: One cell's chains, or any array of them.

    Returns:
        NaN where it is not defined: a constant cell, one chain, fewer than four draws.

    References:
        Vehtari et al. (2021), see the module.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> bool(rhat(generator.normal(size=(4, 200)) + np.arange(4)[:, None]) > 1.5)
        True
    """
    if draws.shape[0] < 2:
        return np.full(draws.shape[2:], np.nan)
    return _of_cells(_rank_rhat, draws)


def _rank_rhat(halves: Halves) -> Float[np.ndarray, " cells"]:
    folded = np.abs(halves - np.median(halves, axis=(1, 2), keepdims=True))
    # Of two values, half of the draws each, the folded draws are all the same: NaN, passed over.
    return np.fmax(_rhat_of(_normal_scores(halves)), _rhat_of(_normal_scores(folded)))


def _rhat_of(values: Halves) -> Float[np.ndarray, " cells"]:
    means, variances = values.mean(-1), values.var(-1, ddof=1)
    return _rhat_of_halves(values.shape[-1], means.T, variances.T)


def _normal_scores(values: Halves) -> Halves:
    """Normal quantiles of the ranks of each cell's draws; equal draws share their mean rank."""
    from scipy.special import ndtri

    flat = values.reshape(len(values), -1)
    number = flat.shape[1]
    # The quantiles of ranks 1, 1.5, 2, ...: ranks of equal draws may be half ones.
    quantiles = ndtri((np.arange(2, 2 * number + 1) / 2 - 0.375) / (number + 0.25))
    order = np.argsort(flat, axis=1)
    ordered = np.take_along_axis(flat, order, 1)
    scores = np.empty(flat.shape)
    np.put_along_axis(scores, order, quantiles[None, ::2], 1)
    new = ordered[:, 1:] != ordered[:, :-1]
    tied = np.flatnonzero(~new.all(1))
    if len(tied):
        edge = np.ones((len(tied), 1), bool)
        places = np.arange(number)
        first = np.where(np.concatenate([edge, new[tied]], 1), places, 0)
        last = np.where(np.concatenate([new[tied], edge], 1), places, number)
        first = np.maximum.accumulate(first, axis=1)
        last = np.minimum.accumulate(last[:, ::-1], axis=1)[:, ::-1]
        shared = np.empty((len(tied), number))
        np.put_along_axis(shared, order[tied], quantiles[first + last], 1)
        scores[tied] = shared
    return scores.reshape(values.shape)


def moments_split_rhat(rows: MomentRows) -> Float[np.ndarray, "..."]:
    r"""Plain split R-hat of every cell, from the moments of its chains' halves.

    That of `rhat` for the draws as they are, not for their ranks: all that moments can tell. It
    does not see chains that differ in spread alone, nor heavy tails.

    Returns:
        NaN where it is not defined: a constant cell, or fewer than four draws.

    References:
        Gelman et al. (2013), Bayesian Data Analysis, Section 11.4.
    """
    half = int(rows.counts[-1])
    if half < 2:
        return np.full(rows.means.shape[2:], np.nan)
    means, squares = (
        values[:, -2:].reshape(-1, *values.shape[2:]) for values in (rows.means, rows.squares)
    )
    found = _rhat_of_halves(half, means, squares / (half - 1))
    return np.where(constant_moments(rows), np.nan, found)


def _rhat_of_halves(
    half: int, means: Float[np.ndarray, "halves ..."], variances: Float[np.ndarray, "halves ..."]
) -> Float[np.ndarray, "..."]:
    between = means.var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt((half - 1) / half + between / variances.mean(0))


def constant_moments(rows: MomentRows) -> Bool[np.ndarray, "..."]:
    """`constant_cells`, from moments."""
    same = (rows.means == rows.means[:1, :1]).all((0, 1))
    return same & (rows.squares == 0).all((0, 1))


# ---------------------------------------------------------------------- effective sample size


def ess(
    draws: Float[np.ndarray, "chain draw *cells"], method: str = "bulk"
) -> Float[np.ndarray, "*cells"]:
    r"""Effective sample size of every cell, as `arviz.ess`, all cells at once.

    .. math:: n_\mathrm{eff} = \frac{m n}{-1 + 2 \sum_k \hat P_k}

    over the m half-chains of n draws, with :math:`\hat P_k` Geyer's sums of autocorrelations at
    lags 2k and 2k + 1, up to the first that is not positive and none larger than the one before.

    Args:
        draws: One cell's chains, or any array of them.
        method: "bulk", of the normal quantiles of the draws' ranks; "tail", the smaller one of
            whether draws are below the 5% and the 95% quantile.

    Returns:
        NaN for a constant cell, or fewer than four draws a chain.

    References:
        Geyer (1992), Practical Markov chain Monte Carlo; Vehtari et al. (2021), see the module.

    Example:
        >>> generator = np.random.default_rng(0)
        >>> 1500 < float(ess(generator.normal(size=(4, 500)))) < 2800
        True
    """
    if method == "bulk":
        return _of_cells(lambda halves: _effective_size(_normal_scores(halves)), draws)
    sizes = [
        _of_cells(_effective_size, draws <= np.quantile(draws, level, axis=(0, 1)))
        for level in _TAILS
    ]
    # Draws that are equal may all lie on one side: that tail is known as well as draws are many.
    many = draws.shape[0] * (draws.shape[1] // 2 * 2)
    found = np.minimum(*(np.where(np.isnan(size), many, size) for size in sizes))
    undefined = constant_cells(draws) | (draws.shape[1] < _FEWEST_DRAWS)
    return np.where(undefined | np.isnan(draws).any((0, 1)), np.nan, found)


def _effective_size(halves: Halves) -> Float[np.ndarray, " cells"]:
    from scipy.fft import irfft, next_fast_len, rfft

    _, number, length = halves.shape
    means = halves.mean(-1)
    padded = next_fast_len(2 * length, real=True)
    spectrum = rfft(halves - means[..., None], padded)
    power = (spectrum.real**2 + spectrum.imag**2).mean(1)
    covariance = irfft(power, padded)[:, :length] / length
    within = covariance[:, :1] * length / (length - 1)
    total = covariance[:, :1]
    if number > 1:
        total = total + means.var(-1, ddof=1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = 1 - (within - covariance) / total
    correlation[:, 0] = 1.0
    pairs = max((length - 1) // 2, 1)
    even = correlation[:, 0 : 2 * pairs : 2]
    sums = even + correlation[:, 1 : 2 * pairs : 2]
    # The first pair that is not positive ends the sum; of it the even lag may still count.
    ended = np.cumsum(sums <= 0, axis=1) > 0
    last = np.where(ended.any(1), ended.argmax(1), pairs - 1)
    kept = np.where(np.arange(pairs) >= last[:, None], 0.0, sums)
    rest = even[np.arange(len(last)), last]
    rest = np.where(ended.any(1), np.maximum(rest, 0.0), rest)
    time = -1 + 2 * np.minimum.accumulate(kept, axis=1).sum(1) + rest
    size = number * length
    found = size / np.maximum(time, 1 / np.log10(size))
    return np.where(np.ptp(halves, axis=(1, 2)) == 0, np.nan, found)


def _of_cells(
    statistic: Callable[[Halves], Float[np.ndarray, " cells"]],
    draws: Shaped[np.ndarray, "chain draw *cells"],
) -> Float[np.ndarray, "*cells"]:
    """A statistic of the halves of the chains of every cell that varies, block by block."""
    half = draws.shape[1] // 2
    values = np.full(math.prod(draws.shape[2:]), np.nan)
    if draws.shape[1] >= _FEWEST_DRAWS:
        flat = draws.reshape(*draws.shape[:2], len(values))
        varying = np.flatnonzero(~constant_cells(flat))
        for first in range(0, len(varying), _BLOCK):
            cells = varying[first : first + _BLOCK]
            block = np.moveaxis(flat[:, :, cells], -1, 0)
            # As ArviZ does: a middle draw, if there is one, is left out.
            halves = np.concatenate([block[:, :, :half], block[:, :, -half:]], axis=1)
            known = ~np.isnan(halves).any((1, 2))
            values[cells] = np.where(known, statistic(halves.astype(np.float64)), np.nan)
    return values.reshape(draws.shape[2:])


# ---------------------------------------------------------------------- tables and verdicts


class _Judged(NamedTuple):
    """All cells of a table, each judged by what is known of it.

    Attributes:
        shape: (chain, draw, ...).
        constant: Whether a cell is the same in every draw.
        drawn: Whether its draws are at hand.
        rhat: R-hat of each; split R-hat where its draws are not at hand.
        above: Whether that is 1.05 or more, or a draw is no number.
        draws: The draws that are at hand.
    """

    shape: tuple[int, ...]
    constant: Bool[np.ndarray, " cells"]
    drawn: Bool[np.ndarray, " cells"]
    rhat: Float[np.ndarray, " cells"]
    above: Bool[np.ndarray, " cells"]
    draws: Float[np.ndarray, "chain draw drawn"]


def _judge_cells(chains: Chains) -> _Judged:
    if isinstance(chains, MomentRows):
        num_chains, num_draws, *_ = chains.draws.shape
        shape = (num_chains, num_draws, *chains.means.shape[2:])
        kept = np.zeros(shape[2:], bool)
        kept[chains.kept] = True
        drawn, constant = kept.ravel(), constant_moments(chains).ravel()
        draws = chains.draws.reshape(num_chains, num_draws, drawn.sum())
        broken = np.isnan(chains.means).any((0, 1)).ravel()
        hats = moments_split_rhat(chains).ravel()
        hats[drawn] = rhat(draws)
    else:
        shape = np.shape(chains)
        draws = np.asarray(chains).reshape(*shape[:2], math.prod(shape[2:]))
        constant, hats = constant_cells(draws), rhat(draws)
        drawn, broken = np.ones(len(hats), bool), np.isnan(draws).any((0, 1))
    if shape[0] < 2:  # halves of one chain are no chains
        hats = np.full_like(hats, np.nan)
    return _Judged(shape, constant, drawn, hats, (hats >= RHAT_LIMIT) | broken, draws)


def _extreme(function: Callable[..., float], values: Float[np.ndarray, " cells"]) -> float:
    """Largest or smallest of what is known; NaN where nothing is."""
    known = values[~np.isnan(values)]
    return float(function(known)) if known.size else float("nan")


def summarize_chains(chains: Chains) -> ChainSummary:
    """Convergence of the chains of one table, shape (chain, draw, ..., values)."""
    cells = _judge_cells(chains)
    shape = cells.shape[2:]
    return ChainSummary(
        rows=math.prod(shape[:-1]),
        cells=len(cells.rhat),
        constant_cells=int(cells.constant.sum()),
        max_rhat=_extreme(np.max, cells.rhat[cells.drawn]),
        max_split_rhat=_extreme(np.max, cells.rhat[~cells.drawn]),
        rows_above=int(cells.above.reshape(shape).any(-1).sum()),
        min_ess_bulk=_extreme(np.min, ess(cells.draws, "bulk")),
        min_ess_tail=_extreme(np.min, ess(cells.draws, "tail")),
    )


def judge_chains(
    rows: Mapping[str, Chains],
    num_divergences: int | None = None,
    log_likelihood: Float[np.ndarray, "chain draw episode"] | None = None,
) -> ChainVerdict:
    """Say whether chains agree: several chains, and R-hat < 1.05 in every cell that varies.

    The total log likelihood must agree as well; it is no cell, and told apart.

    Args:
        rows: Draws of every table and parameter, or their moments: what `draws_info` tells of,
            cell for cell.
        num_divergences: Divergent transitions, where the sampler has such; they are told in the
            reason but decide nothing.
        log_likelihood: That of each episode under each draw.

    Returns:
        The verdict. Fewer than four draws per chain, or a single chain, cannot converge.
    """
    tables = [cells for cells in map(_judge_cells, rows.values()) if len(cells.rhat)]
    num_chains, num_draws = tables[0].shape[:2]
    constant, drawn, hats, above = (
        np.concatenate([getattr(cells, field) for cells in tables])
        for field in ("constant", "drawn", "rhat", "above")
    )
    num_constant, num_above = int(constant.sum()), int(above.sum())
    num_cells = len(constant) - num_constant
    largest, largest_split = _extreme(np.max, hats[drawn]), _extreme(np.max, hats[~drawn])
    totals = []
    if log_likelihood is not None:
        totals.append(_judge_cells(log_likelihood.sum(-1, dtype=np.float64)[..., None]))
    if num_draws < _FEWEST_DRAWS:
        agree = False
        reason = f"{num_draws} draws per chain are too few to judge ({_FEWEST_DRAWS} are needed)"
    elif num_chains == 1:
        agree = False
        reason = "one chain cannot show convergence: R-hat compares chains"
    else:
        agree = num_above == 0 and not any(total.above.any() for total in totals)
        told = []
        if not np.isnan(largest):
            told.append(f"largest R-hat {largest:.3f}")
        if not np.isnan(largest_split):
            told.append(f"largest split R-hat of rows without draws {largest_split:.3f}")
        if num_cells:
            told.append(f"{num_above:,} of {num_cells:,} cells at {RHAT_LIMIT} or above")
        else:
            told.append("no cell varies")
        reason = f"{num_chains} chains: {', '.join(told)}"
        reason += "".join(
            f"; R-hat of the log likelihood {float(total.rhat[0]):.3f}"
            for total in totals
            if not total.constant.any()
        )
    if num_divergences is not None:
        reason += f"; {num_divergences} divergent transitions"
    return ChainVerdict(agree, reason, largest, num_cells, num_above, num_constant)
