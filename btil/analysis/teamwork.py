"""Do the members of a team have the same in mind? Step by step, and for how long not."""

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.analysis.metrics import check_comparable, decoded_latents, smoothed_beliefs
from btil.demonstrations import Demonstrations

if TYPE_CHECKING:
    from btil.domains.gridworld.task import GridTask


class Stretch(NamedTuple):
    """Successive steps of an episode at which minds are misaligned.

    Attributes:
        episode: Position of the episode in the demonstrations.
        first: The first step, counted from 0 in its episode.
        last: The last step, included.
        probability: Mean over its steps of the probability that minds were misaligned.
    """

    episode: int
    first: int
    last: int
    probability: float

    @property
    def num_steps(self) -> int:
        """How long it is."""
        return self.last - self.first + 1


def misaligned(
    demos: Demonstrations, latents: Any, task: "GridTask | None" = None
) -> Bool[np.ndarray, " steps"]:
    """At which steps minds are misaligned.

    Args:
        demos: The demonstrations.
        latents: The latents of every step, (steps, agents), such as `posterior.decode(demos)`; or
            the posterior, which decodes them without a look at the labels.
        task: For a grid world, misaligned is what `task.suboptimal` says (the paper, Appendix C).
            None: the members have different latents.

    Raises:
        ValueError: If latents of different names would have to be compared; with a task, as
            `task.suboptimal`.
    """
    named, path = decoded_latents(demos, latents)
    if task is None:
        check_comparable(named)
        return _of_all(demos, (path != path[:, :1]).any(axis=1))
    return task.suboptimal(_task_states(task, demos), path)


def misalignment_probability(
    demos: Demonstrations, beliefs: Any | Mapping[str, Any], task: "GridTask | None" = None
) -> Float[np.ndarray, " steps"]:
    r"""Probability at each step that minds are misaligned.

    Given states and actions the members' latents are independent, so that without a task

    .. math:: P_t = 1 - \sum_k \prod_i P(x_i^t = k)

    and with one the sum of :math:`\prod_i P(x_i^t)` over the joint latents that are suboptimal.

    Args:
        demos: The demonstrations.
        beliefs: {agent: (steps, latents)}, such as `posterior.smooth(demos)`; or the posterior,
            which smooths them without a look at the labels.
        task: As in `misaligned`.

    Raises:
        ValueError: As `misaligned`.

    Example:
        >>> demos = Demonstrations([0], [[0, 0]], num_latents=2)
        >>> beliefs = {agent: np.array([[0.9, 0.1]]) for agent in demos.agents}
        >>> misalignment_probability(demos, beliefs).round(2).tolist()
        [0.18]
    """
    named, smoothed = smoothed_beliefs(demos, beliefs)
    columns = [smoothed[agent].astype(np.float64) for agent in demos.agents]
    if task is None:
        check_comparable(named)
        agree = np.prod(columns, axis=0).sum(-1)
        return _of_all(demos, np.clip(1.0 - agree, 0.0, 1.0))  # rounding only
    states = _task_states(task, demos)
    total = np.zeros(demos.num_steps)
    for joint in itertools.product(*(range(column.shape[1]) for column in columns)):
        weight = np.prod([c[:, k] for c, k in zip(columns, joint, strict=True)], axis=0)
        total += weight * task.suboptimal(states, np.tile(joint, (demos.num_steps, 1)))
    return _of_all(demos, np.clip(total, 0.0, 1.0))


def _of_all(
    demos: Demonstrations, apart: Float[np.ndarray, " steps"] | Bool[np.ndarray, " steps"]
) -> np.ndarray:
    """What is said of the steps at which all are there; with one who is away nobody is at odds."""
    return np.where(demos.present.all(axis=1), apart, np.zeros((), apart.dtype))


def misaligned_stretches(
    demos: Demonstrations,
    latents: Any,
    beliefs: Any | Mapping[str, Any] = None,
    task: "GridTask | None" = None,
) -> tuple[Stretch, ...]:
    """Where minds are misaligned, and for how long: the longest runs of such steps.

    Args:
        demos: The demonstrations.
        latents: A posterior; or (steps, agents), which say where; such as
            `posterior.decode(demos)`.
        beliefs: {agent: (steps, latents)}, which say how sure that is; None: as the posterior
            says.
        task: As in `misaligned`.

    Returns:
        The stretches in the order of the demonstrations; none goes over the end of an episode.

    Raises:
        ValueError: As `misaligned`; if there are no beliefs.

    Example:
        >>> misaligned_stretches(demos, posterior)  # doctest: +SKIP
    """
    apart = misaligned(demos, latents, task)
    probability = misalignment_probability(demos, latents if beliefs is None else beliefs, task)
    found = []
    for episode, (start, length) in enumerate(
        zip(demos.episode_starts, demos.episode_lengths, strict=True)
    ):
        for first, last in runs(apart[start : start + length]):
            if apart[start + first]:
                mean = float(probability[start + first : start + last + 1].mean())
                found.append(Stretch(episode, first, last, mean))
    return tuple(found)


def runs(values: Int[np.ndarray, " steps"] | Bool[np.ndarray, " steps"]) -> list[tuple[int, int]]:
    """First and last position of every run of equal values.

    Example:
        >>> runs(np.array([4, 4, 7]))
        [(0, 1), (2, 2)]
    """
    begins = np.flatnonzero(np.append(True, values[1:] != values[:-1]))
    ends = np.append(begins[1:], len(values)) - 1
    return list(zip(begins.tolist(), ends.tolist(), strict=True))


def _task_states(task: "GridTask", demos: Demonstrations) -> Int[np.ndarray, " steps"]:
    from btil.domains.gridworld.derived import task_states

    return task_states(task, demos)
