"""Do chains agree? R-hat of every cell, and the verdict that follows from it."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.inference.result import MomentRows

RHAT_LIMIT = 1.05
_FEWEST_DRAWS = 4
# ArviZ takes milliseconds a cell. It looks at this many of a table's cells, those that vectorised
# split R-hat finds worst.
_WORST_CELLS = 200

Chains = Float[np.ndarray, "chain draw ..."] | MomentRows


class ChainVerdict(NamedTuple):
    """Whether chains agree.

    Attributes:
        converged: More than one chain, and R-hat below 1.05 in every cell that varies.
        reason: A sentence with the numbers.
        max_rhat: The largest R-hat, split or (of the cells where that is worst) rank-normalised;
            NaN where nothing varies.
        num_cells: Cells that vary.
        num_above: Of these, cells with R-hat of 1.05 or more, split or (where known) ranked.
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

    R-hat and effective sample sizes are ArviZ's rank-normalised ones, over the 200 cells whose
    split R-hat is worst (all cells of a small table), among the rows whose draws were kept.

    Attributes:
        rows: Number of probability rows.
        cells: Number of cells.
        constant_cells: Cells that never vary; they have no R-hat and are left out.
        max_rhat: Largest R-hat; NaN with one chain. Where not every row's draws were kept, the
            larger of that of the rows that were and of the largest split R-hat of all.
        rows_above: Rows, of all, with a cell whose split R-hat is 1.05 or more.
        min_ess_bulk: Smallest bulk effective sample size.
        min_ess_tail: Smallest tail effective sample size.
    """

    rows: int
    cells: int
    constant_cells: int
    max_rhat: float
    rows_above: int
    min_ess_bulk: float
    min_ess_tail: float


def constant_cells(draws: Float[np.ndarray, "chain draw *cells"]) -> Bool[np.ndarray, "*cells"]:
    """Cells with the same value in every draw of every chain."""
    return (draws == draws[:1, :1]).all((0, 1))


def rhat(draws: Float[np.ndarray, "chain draw *cells"]) -> Float[np.ndarray, "*cells"]:
    """ArviZ's rank-normalised split R-hat of every cell; NaN for constant cells.

    References:
        Vehtari, Gelman, Simpson, Carpenter, Buerkner (2021), Rank-normalization, folding, and
        localization: an improved R-hat for assessing convergence of MCMC.
    """
    return _statistic("rhat", draws)


def split_rhat(draws: Float[np.ndarray, "chain draw ..."]) -> Float[np.ndarray, "..."]:
    r"""Split R-hat of every cell at once: chains are halved, then compared.

    .. math:: \hat R = \sqrt{\frac{n - 1}{n} + \frac{B}{n W}}

    with n draws in each half, W the mean variance within the halves and B/n the variance of their
    means. Where `rhat` takes a millisecond a cell this takes microseconds: for tables of many rows.

    Args:
        draws: One cell's chains, or any array of them.

    Returns:
        R-hat of each cell; NaN where it is not defined: a constant cell, or fewer than four draws.

    References:
        Gelman et al. (2013), Bayesian Data Analysis, Section 11.4.

    Example:
        >>> bool(np.isnan(split_rhat(np.zeros((4, 100)))))
        True
    """
    half = draws.shape[1] // 2
    if half < 2:
        return np.full(draws.shape[2:], np.nan)
    halves = draws[:, -2 * half :].reshape(-1, half, *draws.shape[2:])
    variances = halves.var(1, ddof=1, dtype=np.float64)
    return _rhat_of_halves(
        half, halves.mean(1, dtype=np.float64), variances, np.ptp(draws, axis=(0, 1)) == 0
    )


def moments_rhat(rows: MomentRows) -> Float[np.ndarray, "..."]:
    """`split_rhat` of every cell, from the moments of the halves."""
    half = int(rows.counts[-1])
    if half < 2:
        return np.full(rows.means.shape[2:], np.nan)
    means, squares = (
        values[:, -2:].reshape(-1, *values.shape[2:]) for values in (rows.means, rows.squares)
    )
    return _rhat_of_halves(half, means, squares / (half - 1), constant_moments(rows))


def _rhat_of_halves(
    half: int,
    means: Float[np.ndarray, "halves ..."],
    variances: Float[np.ndarray, "halves ..."],
    constant: Bool[np.ndarray, "..."],
) -> Float[np.ndarray, "..."]:
    between = means.var(0, ddof=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        rhat = np.sqrt((half - 1) / half + between / variances.mean(0))
    return np.where(constant, np.nan, rhat)


def constant_moments(rows: MomentRows) -> Bool[np.ndarray, "..."]:
    """`constant_cells`, from moments."""
    same = (rows.means == rows.means[:1, :1]).all((0, 1))
    return same & (rows.squares == 0).all((0, 1))


class _Cells(NamedTuple):
    """All cells of a table, flat, and the draws of those that have them.

    Attributes:
        shape: (chain, draw, ...).
        rhat: Split R-hat of each cell.
        constant: Whether it is the same in every draw.
        drawn: The cells whose draws are at hand.
        draws: Their draws.
    """

    shape: tuple[int, ...]
    rhat: Float[np.ndarray, " cells"]
    constant: Bool[np.ndarray, " cells"]
    drawn: Int[np.ndarray, " drawn"]
    draws: Float[np.ndarray, "chain draw drawn"]

    def worst_drawn(self) -> tuple[Int[np.ndarray, " worst"], Float[np.ndarray, "..."]]:
        """Of the cells whose draws are at hand those of largest split R-hat, and the draws."""
        worst = np.argsort(-np.nan_to_num(self.rhat[self.drawn], nan=-1.0))[:_WORST_CELLS]
        return self.drawn[worst], self.draws[:, :, worst]


def _cells_of(chains: Chains) -> _Cells:
    if isinstance(chains, MomentRows):
        num_chains, num_draws = chains.draws.shape[:2]
        shape = (num_chains, num_draws, *chains.means.shape[2:])
        cells = np.arange(math.prod(shape[2:])).reshape(shape[2:])
        return _Cells(
            shape,
            moments_rhat(chains).ravel(),
            constant_moments(chains).ravel(),
            cells[chains.kept].ravel(),
            chains.draws.reshape(num_chains, num_draws, cells[chains.kept].size),
        )
    draws = np.asarray(chains)
    flat = draws.reshape(*draws.shape[:2], math.prod(draws.shape[2:]))
    return _Cells(
        draws.shape, split_rhat(flat), constant_cells(flat), np.arange(flat.shape[-1]), flat
    )


def ess(
    draws: Float[np.ndarray, "chain draw *cells"], method: str = "bulk"
) -> Float[np.ndarray, "*cells"]:
    """ArviZ's effective sample size, "bulk" or "tail" (5% and 95% quantiles), of every cell.

    NaN for constant cells.
    """
    quantiles = {"prob": (0.05, 0.95)} if method == "tail" else {}
    return _statistic("ess", draws, method=method, **quantiles)


def _statistic(
    name: str, draws: Float[np.ndarray, "chain draw *cells"], **options: Any
) -> Float[np.ndarray, "*cells"]:
    from arviz_stats.base import array_stats

    values = np.full(draws.shape[2:], np.nan)
    varying = ~constant_cells(draws)
    if varying.any() and draws.shape[1] >= _FEWEST_DRAWS:
        chosen = np.asarray(draws[:, :, varying], np.float64)
        values[varying] = getattr(array_stats, name)(chosen, chain_axis=0, draw_axis=1, **options)
    return values


def summarize_chains(chains: Chains) -> ChainSummary:
    """Convergence of the chains of one table, shape (chain, draw, ..., values)."""
    cells = _cells_of(chains)
    _, worst = cells.worst_drawn()
    num_chains, _, *shape = cells.shape

    def extreme(values: Float[np.ndarray, " cells"], largest: bool) -> float:
        known = values[~np.isnan(values)]
        if not known.size:
            return float("nan")
        return float(known.max() if largest else known.min())

    several = num_chains > 1
    max_rhat = extreme(rhat(worst), True) if several else float("nan")
    if several and len(cells.drawn) < len(cells.rhat):
        max_rhat = float(np.fmax(max_rhat, extreme(cells.rhat, True)))
    return ChainSummary(
        rows=math.prod(shape[:-1]),
        cells=len(cells.rhat),
        constant_cells=int(cells.constant.sum()),
        max_rhat=max_rhat,
        rows_above=int((cells.rhat >= RHAT_LIMIT).reshape(shape).any(-1).sum()) if several else 0,
        min_ess_bulk=extreme(ess(worst, "bulk"), False),
        min_ess_tail=extreme(ess(worst, "tail"), False),
    )


def judge_chains(rows: Mapping[str, Chains], num_divergences: int | None = None) -> ChainVerdict:
    """Say whether chains agree: R-hat < 1.05 in every cell that varies, and several chains.

    Split R-hat is looked at in every cell, the rank-normalised one in the worst of them too.

    Args:
        rows: Draws of every site, or their moments.
        num_divergences: Divergent transitions, where the sampler has such; they are told in the
            reason but decide nothing.

    Returns:
        The verdict. Fewer than four draws per chain, or a single chain, cannot converge.
    """
    tables = [cells for cells in map(_cells_of, rows.values()) if len(cells.rhat)]
    num_chains, num_draws = tables[0].shape[:2]
    num_constant = int(sum(cells.constant.sum() for cells in tables))
    num_cells = sum(len(cells.constant) for cells in tables) - num_constant
    told = "" if num_divergences is None else f"; {num_divergences} divergent transitions"
    if num_draws < _FEWEST_DRAWS:
        reason = (
            f"{num_draws} draws per chain are too few to judge ({_FEWEST_DRAWS} are needed){told}"
        )
        return ChainVerdict(False, reason, np.nan, num_cells, 0, num_constant)
    hats = []
    for cells in tables:
        hat = cells.rhat.copy()
        worst, draws = cells.worst_drawn()
        # The larger of the two, so that maximum and count agree; ArviZ has none for one chain.
        hat[worst] = np.fmax(hat[worst], rhat(draws))
        hats.append(hat)
    every = np.concatenate(hats)
    largest = float(np.nanmax(every)) if num_cells else np.nan
    num_above = int((every >= RHAT_LIMIT).sum())
    if not num_cells:
        numbers = "no cell varies"
    else:
        above = f"{num_above} of {num_cells} cells at {RHAT_LIMIT} or above"
        numbers = f"largest R-hat {largest:.3f}, {above}"
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
