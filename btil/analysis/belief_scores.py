"""How good beliefs about mental states are where the truth is known: sharp, and as often right."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.analysis.calibration.ranks import Reliability, Share, ratio_of_sums, reliability
from btil.analysis.metrics import agent_position, smoothed_beliefs
from btil.demonstrations import Demonstrations

# A probability that rounds to zero is not punished without end.
_SMALLEST = float(np.finfo(np.float32).tiny)


class DecodedScores(NamedTuple):
    """Beliefs about one agent's mental states against its labels, a mean over labelled steps each.

    Attributes:
        steps: Number of labelled steps.
        log_score: Mean log probability of the true latent (natural logarithm): 0 at best. A wrong
            belief that is sure costs much.
        brier: Mean squared distance of the beliefs from the truth, summed over latents: 0 at best,
            2 at worst.
        sureness: Mean probability of the most probable latent: how sharp beliefs are.
        right: Share of steps at which it is the true one.
        surer_than_right: `sureness` minus `right`: above 0 is too sure.
    """

    steps: int
    log_score: Share
    brier: Share
    sureness: Share
    right: Share
    surer_than_right: Share


def scored_agents(demos: Demonstrations) -> list[str]:
    """Agents with labels and a choice of latents."""
    labelled = (demos.latents >= 0).any(0)
    return [
        agent
        for agent, size, known in zip(demos.agents, demos.num_latents, labelled, strict=True)
        if known and size > 1
    ]


def score_beliefs(
    demos: Demonstrations, beliefs: Any | Mapping[str, Any], agent: str
) -> DecodedScores:
    """Score an agent's beliefs at its labelled steps; errors are over episodes.

    Args:
        demos: Demonstrations with labels, the truth.
        beliefs: {agent: (steps, latents)}, e.g. `posterior.filter(demos)`; or a posterior, which
            smooths the demonstrations without a look at the labels.
        agent: One of `scored_agents(demos)`.

    Example:
        >>> demos = Demonstrations([0, 0], [0, 0], latents=[0, 1], num_latents=2)
        >>> beliefs = {"agent_0": np.array([[0.5, 0.5], [0.2, 0.8]])}
        >>> round(score_beliefs(demos, beliefs, "agent_0").brier.value, 3)
        0.29
    """
    own, truth, known = _at_labels(demos, beliefs, agent)
    given = own[np.arange(len(own)), truth]
    best = own.max(1)
    right = (own.argmax(1) == truth).astype(np.float64)
    squared = (own**2).sum(1) - 2 * given + 1
    counts = np.add.reduceat(known, demos.episode_starts, dtype=np.int64)

    def mean(values: Float[np.ndarray, " labelled"]) -> Share:
        every = np.zeros(demos.num_steps)
        every[known] = values
        found = ratio_of_sums(np.add.reduceat(every, demos.episode_starts), counts)
        # Of a single episode there is a mean, and no error.
        return found if np.isfinite(found.value) else Share(float(values.mean()), np.nan)

    return DecodedScores(
        steps=len(truth),
        log_score=mean(np.log(np.maximum(given, _SMALLEST))),
        brier=mean(squared),
        sureness=mean(best),
        right=mean(right),
        surer_than_right=mean(best - right),
    )


def reliability_by_episode(
    demos: Demonstrations, beliefs: Any | Mapping[str, Any], agent: str
) -> Reliability:
    """Labelled steps of each episode by how sure the belief is, for `bins_of`; (episodes, bins).

    Arguments as in `score_beliefs`.
    """
    own, truth, known = _at_labels(demos, beliefs, agent)
    ends = np.cumsum(np.add.reduceat(known, demos.episode_starts, dtype=np.int64))[:-1]
    parts = [
        reliability(belief, label)
        for belief, label in zip(np.split(own, ends), np.split(truth, ends), strict=True)
    ]
    return Reliability(*(np.stack(values) for values in zip(*parts, strict=True)))


def _at_labels(
    demos: Demonstrations, beliefs: Any | Mapping[str, Any], agent: str
) -> tuple[Float[np.ndarray, "labelled latents"], Int[np.ndarray, " labelled"], np.ndarray]:
    """Beliefs and labels at the labelled steps, and which these are."""
    position = agent_position(demos, agent)
    named, believed = smoothed_beliefs(demos, beliefs, [agent])
    labels = named.latents[:, position]
    known = labels >= 0
    own = believed[agent].astype(np.float64)
    return own[known], labels[known], known
