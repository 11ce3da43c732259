r"""Chains that sit in different modes: which do not overlap, and what each group of them says.

Two chains are taken for one mode unless they lie apart: along the direction between the means of
their first halves, the means of their second halves differ by more than three standard deviations
within a chain, and likewise with the halves exchanged. The direction and the distance come from
different draws, so that chains of the same mode are not found apart by chance, however many
probabilities there are. Chains whose log likelihoods lie as far apart are in different modes, too.
A group is made of chains that overlap, directly or through others.

Latents must have been matched first: chains that differ in names alone are in one mode.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from btil.analysis.plots.rows import expected_visits
from btil.inference.result import DrawnParameters, DrawnRows, MomentRows
from btil.posterior.beliefs import Posterior

# In standard deviations within a chain.
APART = 3.0
# What chains have an axis of.
_OF_CHAINS: dict[type, tuple[str, ...]] = {
    DrawnRows: ("draws",),
    MomentRows: ("means", "squares", "draws"),
}
# Halves of chains shorter than this tell nothing.
_FEWEST_DRAWS = 8


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
            not count.

    Returns:
        One mode where all chains overlap; none where there are no chains.
    """
    log_likelihood = posterior.result.log_likelihood
    if posterior.draws_info is None or log_likelihood is None:
        return []
    total = log_likelihood.sum(-1, dtype=np.float64)
    number, length = total.shape
    group = list(range(number))
    if length >= _FEWEST_DRAWS and number > 1:
        vectors = _vectors(posterior, expected_visits(posterior) if visits is None else visits)
        spread = float(np.median(total.std(1)))
        for one, other in itertools.combinations(range(number), 2):
            far = abs(total[one].mean() - total[other].mean()) > APART * spread
            if not far and separation(vectors[one], vectors[other]) <= APART:
                group = [group[one] if g == group[other] else g for g in group]
    else:
        group = [0] * number
    modes = []
    for first in dict.fromkeys(group):
        chains = tuple(chain for chain, own in enumerate(group) if own == first)
        own = total[list(chains)]
        modes.append(Mode(chains, float(own.mean()), float(own.std())))
    return sorted(modes, key=lambda mode: -mode.log_likelihood)


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
    posterior: Posterior, visits: Mapping[str, Float[np.ndarray, "contexts ..."]]
) -> Float[np.ndarray, "chain draw cells"]:
    parts = []
    for site, rows in posterior.result.rows.items():
        if isinstance(rows, DrawnRows | MomentRows):
            read = visits[site][rows.kept] if isinstance(rows, MomentRows) else visits[site]
            used = read >= 1
            weighted = rows.draws[:, :, used] * np.sqrt(read[used])[:, None]
            parts.append(weighted.reshape(*weighted.shape[:2], -1))
    if not parts:  # of an own model its parameters, each in its standard deviations
        for one in posterior.result.parameters.values():
            assert isinstance(one, DrawnParameters)
            sd = one.draws.std(1).mean(0)
            scaled = one.draws / np.where(sd > 0, sd, 1.0)
            parts.append(scaled.reshape(*scaled.shape[:2], -1))
    return np.concatenate(parts, axis=-1).astype(np.float64)


def only_chains(posterior: Posterior, chains: Sequence[int]) -> Posterior:
    """The posterior by some of its chains alone; itself where it has none."""
    result = posterior.result
    chosen = list(chains)
    rows = {
        name: one._replace(
            **{field: getattr(one, field)[chosen] for field in _OF_CHAINS[type(one)]}
        )
        if type(one) in _OF_CHAINS
        else one
        for name, one in result.rows.items()
    }
    drawn = (DrawnRows, MomentRows, DrawnParameters)
    if not any(isinstance(one, drawn) for one in (*rows.values(), *result.parameters.values())):
        return posterior
    parameters = {
        name: DrawnParameters(one.draws[chosen]) if isinstance(one, DrawnParameters) else one
        for name, one in result.parameters.items()
    }
    log_likelihood = result.log_likelihood
    return dataclasses.replace(
        posterior,
        result=result._replace(
            rows=rows,
            parameters=parameters,
            log_likelihood=None if log_likelihood is None else log_likelihood[chosen],
            sample_stats={n: np.asarray(v)[chosen] for n, v in result.sample_stats.items()},
        ),
    )
