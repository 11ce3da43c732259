"""How well a team does its task: by its demonstrations, of people, of a simulation or of `play`."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from btil.analysis.metrics import suboptimal_steps
from btil.arguments import check_seed, check_values
from btil.demonstrations import Demonstrations

if TYPE_CHECKING:
    import pandas as pd

    from btil.domains.gridworld.task import GridTask


class Estimated(NamedTuple):
    """A number, and how far chance moves it.

    Attributes:
        value: The number.
        error: Its bootstrap standard error.
    """

    value: float
    error: float

    def __str__(self) -> str:
        return f"{self.value:.3g} ± {self.error:.2g}"


@dataclass(frozen=True)
class TeamPerformance:
    """How well a team does its task.

    Attributes:
        steps: Mean number of steps of an episode; one that was cut counts with the steps it had.
        steps_to_finish: The same of the episodes that were finished; NaN where none was.
        cut: Share of episodes that were cut before the task was done.
        returns: Mean sum of an episode's rewards: those of the demonstrations (the mean over
            agents where each has its own), or, where they have none, the task's.
        suboptimal: Mean over episodes of the share of their steps at which minds are misaligned, as
            `task.suboptimal` says (the paper, Appendix C); NaN without labels.
        misaligned: Share of the time, of all steps together, at which they are.
        num_episodes: Number of episodes.
    """

    steps: Estimated
    steps_to_finish: Estimated
    cut: Estimated
    returns: Estimated
    suboptimal: Estimated
    misaligned: Estimated
    num_episodes: int

    def table(self) -> "pd.DataFrame":
        """A row per number, columns `value` and `error`."""
        import pandas as pd

        numbers = {name: getattr(self, name)._asdict() for name in measures()}
        return pd.DataFrame.from_dict(numbers, orient="index").rename_axis("measure")

    def __str__(self) -> str:
        return (
            "\n".join(f"{_WORDS[name]:36} {getattr(self, name)}" for name in measures())
            + f"\n({self.num_episodes} episodes; ± bootstrap standard errors)"
        )


_WORDS = {
    "steps": "steps per episode",
    "steps_to_finish": "of those that were finished",
    "cut": "share of episodes cut",
    "returns": "return",
    "suboptimal": "misaligned, mean over episodes",
    "misaligned": "misaligned, of all steps",
}


def measures() -> tuple[str, ...]:
    """The names of the numbers."""
    return tuple(field.name for field in fields(TeamPerformance) if field.name in _WORDS)


def team_performance(
    task: "GridTask", demos: Demonstrations, num_resamples: int = 1000, seed: int = 0
) -> TeamPerformance:
    r"""How well a team of a grid world does its task, with bootstrap standard errors.

    An episode is finished if its last joint action, in the state in which it was taken, put the
    last item on the goal. Errors are the standard deviations of each number over resamples of whole
    episodes with replacement.

    Args:
        task: The task.
        demos: Demonstrations of it, such as `btil.domains.play(task, posterior, 100)`. Latents
            are their labels; for a team whose minds were decoded put `latents=` in by `replace`.
        num_resamples: Number of resamples.
        seed: Seeds them.

    Raises:
        ValueError: If states or latents are not those of the task.

    Example:
        >>> task = btil.domains.cleanup()  # doctest: +SKIP
        >>> print(btil.analysis.team_performance(task, task.simulate(200)))  # doctest: +SKIP

    References:
        Efron (1979), Bootstrap methods: another look at the jackknife.
    """
    check_values({"num_resamples": num_resamples})
    finished = finished_episodes(task, demos)
    starts, lengths = demos.episode_starts, demos.episode_lengths
    misaligned, labelled = suboptimal_steps(task, demos)

    generator = np.random.default_rng(check_seed(seed))
    number = demos.num_episodes
    # How often each episode is in each resample; the first is the data as they are.
    drawn = generator.multinomial(number, np.full(number, 1 / number), size=int(num_resamples))
    weights = np.concatenate([np.ones((1, number)), drawn])

    def ratio(above: Float[np.ndarray, " m"], below: Float[np.ndarray, " m"]) -> Estimated:
        with np.errstate(invalid="ignore", divide="ignore"):
            values = (weights @ above) / (weights @ below)
        resampled = values[1:][np.isfinite(values[1:])]
        error = float(resampled.std()) if len(resampled) else float("nan")
        return Estimated(float(values[0]), error)

    one = np.ones(number)
    bad = np.add.reduceat(misaligned.astype(float), starts)
    known = np.add.reduceat(labelled.astype(float), starts)
    share = np.divide(bad, known, out=np.zeros(number), where=known > 0)
    return TeamPerformance(
        steps=ratio(lengths.astype(float), one),
        steps_to_finish=ratio(lengths * finished.astype(float), finished.astype(float)),
        cut=ratio((~finished).astype(float), one),
        returns=ratio(_returns(task, demos, finished), one),
        suboptimal=ratio(share, (known > 0).astype(float)),
        misaligned=ratio(bad, known),
        num_episodes=number,
    )


def finished_episodes(task: "GridTask", demos: Demonstrations) -> Bool[np.ndarray, " episodes"]:
    """Whether the last joint action of each episode put the last item on the goal.

    Raises:
        ValueError: If states are not those of the task.
    """
    from btil.domains.gridworld.derived import task_states

    last = demos.episode_starts + demos.episode_lengths - 1
    states = task_states(task, demos)
    branches, probs = task.transition(states[last], demos.actions[last])
    final = task.is_final(branches.ravel()).reshape(branches.shape)
    return (probs * final).sum(axis=1) > 0.5


def _returns(
    task: "GridTask", demos: Demonstrations, finished: Bool[np.ndarray, " episodes"]
) -> Float[np.ndarray, " episodes"]:
    """Sum of the rewards of each episode."""
    from btil.domains.gridworld.task import FINISH_REWARD, STEP_REWARD

    rewards = demos.rewards
    if rewards is None:
        return STEP_REWARD * demos.episode_lengths + FINISH_REWARD * finished
    team = rewards if rewards.ndim == 1 else rewards.mean(axis=1)
    return np.add.reduceat(team, demos.episode_starts)
