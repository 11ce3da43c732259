"""What the others are measured against, and whether it can be: only by what has converged."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from btil.analysis.alignment import agents_pinned, align
from btil.analysis.modes import only_chains
from btil.inference.chains import judge_chains
from btil.inference.method import method_of
from btil.inference.result import DrawnChannel, DrawnParameters, DrawnRows, MomentRows
from btil.posterior.beliefs import Posterior


class Convergence(NamedTuple):
    """Whether an answer can be believed to be that of its method.

    Attributes:
        converged: Whether the method met its criterion.
        reason: Why it stopped, or in what its chains do not agree.
    """

    converged: bool
    reason: str


class Reference(NamedTuple):
    """A posterior that others are measured against.

    Attributes:
        name: Its name.
        posterior: The posterior, its chains named as its first one.
        convergence: Whether it has converged. Where it has not, differences from it, ratios of
            standard deviations and times to its accuracy mean nothing.
    """

    name: str
    posterior: Posterior
    convergence: Convergence

    @property
    def fault(self) -> str | None:
        """Why nothing can be measured against it; None where it can."""
        if self.convergence.converged:
            return None
        return f"{self.name} has not converged: {self.convergence.reason}"


def convergence(posterior: Posterior) -> Convergence:
    """Whether a posterior has converged.

    Chains are judged as they stand here, by the R-hats of `posterior.draws_info`: after `align`
    with their latents matched, which the sampler could not do. Of other methods what they say.
    """
    result = posterior.result
    drawn: dict[str, Any] = {
        site: one if isinstance(one, MomentRows) else one.draws
        for site, one in (*result.rows.items(), *result.parameters.items())
        if isinstance(one, DrawnRows | DrawnParameters | MomentRows)
    }
    for name, channel in result.channels.items():
        if isinstance(channel, DrawnChannel):
            drawn |= {f"{name}/{part}": draws for part, draws in channel._asdict().items()}
    if method_of(posterior.method).answer != "chains" or not drawn:
        return Convergence(posterior.converged, posterior.reason)
    diverging = result.sample_stats.get("diverging")
    found = judge_chains(
        drawn, None if diverging is None else int(diverging.sum()), result.log_likelihood
    )
    return Convergence(found.converged, found.reason)


def choose_reference(posteriors: Mapping[str, Posterior], asked: str | None) -> Reference:
    """Choose what the others are measured against.

    Args:
        posteriors: {name: posterior}.
        asked: The name to take. None: exact inference (where the latents are told apart; else it
            averages over their orders), nuts, gibbs, whichever comes first, has seen as many steps
            as any other method and has converged. If none has, the first of them; without any of
            them the first name.
    """
    if asked is not None:
        return _reference(asked, posteriors[asked])
    most = max(posterior.demos.num_steps for posterior in posteriors.values())
    candidates = [
        name
        for name, posterior in sorted(posteriors.items(), key=_preference)
        if method_of(posterior.method).preferred is not None
        and posterior.demos.num_steps == most
        and (method_of(posterior.method).answer != "exact" or _told_apart(posterior))
    ]
    first: Reference | None = None
    for name in candidates or list(posteriors)[:1]:
        one = _reference(name, posteriors[name])
        if one.convergence.converged:
            return one
        first = one if first is None else first
    assert first is not None
    return first


def _preference(named: tuple[str, Posterior]) -> float:
    preferred = method_of(named[1].method).preferred
    return math.inf if preferred is None else float(preferred)


def _reference(name: str, posterior: Posterior) -> Reference:
    # Chains may differ in names: they are put in the order of the first.
    aligned = align(posterior, only_chains(posterior, [0]))
    return Reference(name, aligned, convergence(aligned))


def _told_apart(posterior: Posterior) -> bool:
    return all(agents_pinned(posterior.bound).values())
