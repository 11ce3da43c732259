"""What a second of computing buys: independent draws, and nearness to a reference."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.analysis.alignment import posterior_means, shared_contexts
from btil.analysis.latent_draws import smoothed_under_draws
from btil.demonstrations import Demonstrations
from btil.inference.chains import ess
from btil.inference.result import DrawnRows
from btil.models.contexts import match_rows
from btil.models.team import bind
from btil.posterior.beliefs import Posterior
from btil.posterior.fit import method_options

# Latents are looked at in so many steps of the data at most, at so many places per agent.
_MOST_STEPS = 1500
_MOST_PLACES = 60
# Points of a chain's course.
_POINTS = 30


class Course(NamedTuple):
    """How a method comes near a reference as time goes on.

    Attributes:
        seconds: Since the beginning of the fit, compilation included.
        error: Mean absolute difference of the probabilities in use from the reference.
    """

    seconds: Float[np.ndarray, " points"]
    error: Float[np.ndarray, " points"]

    def reached(self, accuracy: float) -> float:
        """Seconds until the error is at most `accuracy` and stays so; inf if it never is."""
        above = np.flatnonzero(~(self.error <= accuracy))
        after = int(above[-1]) + 1 if len(above) else 0
        return float(self.seconds[after]) if after < len(self.seconds) else np.inf


def _chains(posterior: Posterior) -> dict[str, Float[np.ndarray, "chain draw ..."]]:
    """The chains of the tables all of whose draws are there; empty of methods without chains."""
    if posterior.draws_info is None:
        return {}
    return {s: r.draws for s, r in posterior.result.rows.items() if isinstance(r, DrawnRows)}


def latent_ess(posterior: Posterior) -> float | None:
    """How many independent draws chains are worth for mental states, where that is least.

    The quantity is the probability of each latent at a step given a draw of the tables, at
    unlabelled steps of the training data: at most 60 per agent, evenly spaced over so many of the
    first episodes as have 1,500 steps.

    Args:
        posterior: A posterior whose chains have their latents matched.

    Returns:
        The least effective sample size of all probabilities; None where there are no chains with
        the draws of all rows, or nothing is unlabelled, or there are continuous columns.
    """
    rows = _chains(posterior)
    if not rows or posterior.bound.channels:
        return None
    demos = posterior.demos
    hidden = _hidden(demos)
    some = np.flatnonzero(np.add.reduceat(hidden.any(1), demos.episode_starts, dtype=np.int64))
    if not len(some):
        return None
    fitting = (np.cumsum(demos.episode_lengths[some]) <= _MOST_STEPS).sum()
    chosen = some[: max(1, int(fitting))]
    whole = len(chosen) == demos.num_episodes
    bound = posterior.bound if whole else bind(posterior.model, demos.select(chosen))
    few = bound.demos
    places: dict[str, Int[np.ndarray, " steps"]] = {}
    for agent, own in zip(few.agents, _hidden(few).T, strict=True):
        steps = np.flatnonzero(own)
        if len(steps):
            spaced = np.linspace(0, len(steps) - 1, min(_MOST_PLACES, len(steps)))
            places[agent] = steps[spaced.round().astype(int)]
    num_chains, num_draws = next(iter(rows.values())).shape[:2]
    number = num_chains * num_draws
    draws: dict[str, np.ndarray] = {}
    for site, table in bound.tables.items():
        if site in rows:
            at = match_rows(posterior.bound.tables[site].contexts.rows, table.contexts.rows)
            draws[site] = rows[site].reshape(number, *rows[site].shape[2:])[:, at]
        else:
            given = table.prior_mean()
            draws[site] = np.broadcast_to(given, (number, *given.shape))
    beliefs = smoothed_under_draws(posterior, bound, draws, places)
    sizes = [
        ess(own.reshape(num_chains, num_draws, *own.shape[1:])).ravel() for own in beliefs.values()
    ]
    return float(np.fmin.reduce(np.concatenate(sizes)))  # fmin passes over NaN


def _hidden(demos: Demonstrations) -> Bool[np.ndarray, "steps agents"]:
    """Where an agent is there, has a choice of latents, and no label."""
    return demos.present & (demos.latents < 0) & (np.array(demos.num_latents) > 1)


class Target(NamedTuple):
    """Means to come near to.

    Attributes:
        means: Mean rows by site.
        used: Which rows count: those in use.
    """

    means: dict[str, Float[np.ndarray, "..."]]
    used: dict[str, Bool[np.ndarray, "..."]]


def course(posterior: Posterior, reference: Posterior, target: Target) -> Course:
    """How a method comes near means, as time goes on.

    A chain's draws are taken to have come at a steady pace, its warmup included; the means are
    those of all chains' draws so far. A method without draws has only where it ended.

    Args:
        posterior: The method's posterior.
        reference: The posterior that the target's rows are of.
        target: The means.
    """
    chains = _chains(posterior)
    if not chains:
        error = _error(posterior, reference, target, posterior_means(posterior))
        return Course(np.array([posterior.wall_time]), np.array([error]))
    length = next(iter(chains.values())).shape[1]
    return _course_of_draws(posterior, reference, target, length, length)


def own_course(reference: Posterior, used: dict[str, Bool[np.ndarray, "..."]]) -> Course | None:
    """How a reference with chains comes near itself: its first half of draws, to the second.

    None where it has no chains with the draws of all rows.
    """
    chains = _chains(reference)
    if not chains:
        return None
    length = next(iter(chains.values())).shape[1]
    half = length // 2
    if half < 1:
        return None
    means = {s: draws[:, half:].mean((0, 1), dtype=np.float64) for s, draws in chains.items()}
    return _course_of_draws(reference, reference, Target(means, used), half, length)


def _course_of_draws(
    posterior: Posterior, reference: Posterior, target: Target, last: int, length: int
) -> Course:
    default = method_options(posterior.method).get("num_warmup", 0)
    warmup = int(posterior.options.get("num_warmup", default))
    ends = np.unique(np.geomspace(1, last, min(_POINTS, last)).round().astype(int))
    sums: dict[str, np.ndarray] = {}
    errors = []
    begin = 0
    for end in ends:
        means = {}
        for site, draws in _chains(posterior).items():
            new = draws[:, begin:end].sum(1, dtype=np.float64).mean(0)
            sums[site] = sums[site] + new if site in sums else new
            means[site] = sums[site] / end
        errors.append(_error(posterior, reference, target, means))
        begin = int(end)
    seconds = posterior.wall_time * (warmup + ends) / (warmup + length)
    return Course(seconds, np.array(errors))


def _error(
    posterior: Posterior,
    reference: Posterior,
    target: Target,
    means: dict[str, Float[np.ndarray, "..."]],
) -> float:
    """Mean absolute difference from the target, over the cells of the rows in use."""
    gaps = [np.zeros(0)]
    for site, own in means.items():
        if site not in target.means:
            continue
        ours, theirs = shared_contexts(posterior, reference, site)
        difference = np.abs(own[ours] - target.means[site][theirs])
        gaps.append(difference[target.used[site][theirs]].ravel())
    every = np.concatenate(gaps)
    return float(every.mean()) if len(every) else np.nan
