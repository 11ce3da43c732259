"""Whether chains agree."""

import numpy as np
from jaxtyping import Float


def split_rhat(draws: Float[np.ndarray, "chain draw ..."]) -> Float[np.ndarray, "..."]:
    r"""Split R-hat of every cell at once: chains are halved, then compared.

    .. math:: \hat R = \sqrt{\frac{n - 1}{n} + \frac{B}{n W}}

    with n draws in each half, W the mean variance within the halves and B/n the variance of their
    means. Thousands of cells take milliseconds, where ranking every one takes seconds.

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
    within = halves.var(1, ddof=1, dtype=np.float64).mean(0)
    between = halves.mean(1, dtype=np.float64).var(0, ddof=1)
    constant = np.ptp(draws, axis=(0, 1)) == 0
    with np.errstate(divide="ignore", invalid="ignore"):
        rhat = np.sqrt((half - 1) / half + between / within)
    return np.where(constant, np.nan, rhat)
