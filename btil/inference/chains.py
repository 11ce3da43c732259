"""Do chains agree? R-hat of every cell, and the verdict that follows from it."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

_AGREE = 1.05
# Cells are ranked in batches of about this many numbers, so that memory stays small.
_BATCH = 4_000_000


class ChainVerdict(NamedTuple):
    """Whether chains agree.

    Attributes:
        converged: More than one chain, and R-hat below 1.05 in every cell that varies.
        reason: A sentence with the numbers.
        max_rhat: The largest R-hat; NaN where nothing varies.
        num_cells: Cells that vary.
        num_above: Of these, cells with R-hat of 1.05 or more.
        num_constant: Cells that are the same in every draw, for which R-hat is not defined.
    """

    converged: bool
    reason: str
    max_rhat: float
    num_cells: int
    num_above: int
    num_constant: int


def rank_normalized_rhat(
    draws: Float[np.ndarray, "chain draw *cells"],
) -> Float[np.ndarray, "*cells"]:
    r"""Split R-hat of rank-normalised draws, the larger of bulk and tails, for many cells at once.

    Every chain is cut in half; draws are replaced by normal scores of their ranks among all
    (and, for the tails, of the ranks of their distance from the median); then

    .. math:: \hat R = \sqrt{\frac{n-1}{n} + \frac{B}{n W}}

    with n draws per half chain, B the variance between and W that within half chains.

    Args:
        draws: At least four draws per chain.

    Returns:
        R-hat; NaN where a cell never changes.

    References:
        Vehtari, Gelman, Simpson, Carpenter, Buerkner (2021), Rank-normalization, folding, and
        localization: an improved R-hat for assessing convergence of MCMC.
    """
    num_chains, num_draws, *cells = draws.shape
    flat = draws.reshape(num_chains, num_draws, -1)
    width = max(1, _BATCH // max(1, num_chains * num_draws))
    parts = [
        _rhat_of_columns(flat[:, :, begin : begin + width])
        for begin in range(0, flat.shape[-1], width)
    ]
    values = np.concatenate(parts) if parts else np.zeros(0)
    return values.reshape(cells)


def _rhat_of_columns(draws: Float[np.ndarray, "chain draw cells"]) -> Float[np.ndarray, " cells"]:
    half = draws.shape[1] // 2
    split = np.concatenate([draws[:, :half], draws[:, -half:]]).astype(np.float64)
    folded = np.abs(split - np.median(split, axis=(0, 1)))
    return np.fmax(_rhat_of_scores(_normal_scores(split)), _rhat_of_scores(_normal_scores(folded)))


def _normal_scores(values: Float[np.ndarray, "chain draw cells"]) -> Float[np.ndarray, "..."]:
    from scipy.special import ndtri
    from scipy.stats import rankdata

    ranks = rankdata(values.reshape(-1, values.shape[-1]), axis=0)
    return ndtri((ranks - 0.375) / (len(ranks) + 0.25)).reshape(values.shape)


def _rhat_of_scores(scores: Float[np.ndarray, "chain draw cells"]) -> Float[np.ndarray, " cells"]:
    num_draws = scores.shape[1]
    between = scores.mean(1).var(0, ddof=1)
    within = scores.var(1, ddof=1).mean(0)
    varies = within > 0
    ratio = between / np.where(varies, within, 1.0)
    stuck = np.where(between > 0, np.inf, np.nan)
    return np.where(varies, np.sqrt((num_draws - 1) / num_draws + ratio), stuck)


def judge_chains(
    rows: Mapping[str, Float[np.ndarray, "chain draw ..."]], num_divergences: int | None = None
) -> ChainVerdict:
    """Say whether chains agree: R-hat < 1.05 in every cell that varies, and several chains.

    Args:
        rows: Draws of every site.
        num_divergences: Divergent transitions, where the sampler has such; they are told in the
            reason but decide nothing.

    Returns:
        The verdict. Fewer than four draws per chain, or a single chain, cannot converge.
    """
    flat = [np.asarray(draws).reshape(*draws.shape[:2], -1) for draws in rows.values()]
    num_chains, num_draws = flat[0].shape[:2]
    constant = [(draws == draws[:1, :1]).all((0, 1)) for draws in flat]
    num_constant = int(sum(cells.sum() for cells in constant))
    num_cells = sum(len(cells) for cells in constant) - num_constant
    told = "" if num_divergences is None else f"; {num_divergences} divergent transitions"
    if num_draws < 4:
        reason = f"{num_draws} draws per chain are too few to judge (4 are needed){told}"
        return ChainVerdict(False, reason, np.nan, num_cells, 0, num_constant)
    rhat = np.concatenate(
        [
            rank_normalized_rhat(draws[:, :, ~cells])
            for draws, cells in zip(flat, constant, strict=True)
        ]
    )
    largest = float(rhat.max(initial=-np.inf)) if len(rhat) else np.nan
    num_above = int((rhat >= _AGREE).sum())
    if not num_cells:
        numbers = "no cell varies"
    else:
        numbers = (
            f"largest R-hat {largest:.3f}, {num_above} of {num_cells} cells at {_AGREE} or above"
        )
    if num_chains == 1:
        return ChainVerdict(
            False,
            f"one chain cannot show convergence ({numbers} between its halves{told})",
            largest,
            num_cells,
            num_above,
            num_constant,
        )
    return ChainVerdict(
        num_above == 0,
        f"{num_chains} chains: {numbers}{told}",
        largest,
        num_cells,
        num_above,
        num_constant,
    )
