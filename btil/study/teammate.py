"""The AI teammate: tasks with a policy for Rob, the softmax of planned values."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from btil import domains
from btil.domains.gridworld import GRID_WORLDS
from btil.domains.gridworld.task import GridTask
from btil.study.episode import Rules, rules_of
from btil.study.settings import Stage
from btil.study.tutorial import tutorial_rules, tutorial_stage


class World(NamedTuple):
    """A task, and Rob's policy in it.

    Attributes:
        task: Movers or Cleanup.
        policy: P(action | state, mental state); None where Rob is a person.
    """

    task: GridTask
    policy: Float[np.ndarray, "states latents actions"] | None


@lru_cache(maxsize=32)
def task_of(domain: str, map: str) -> GridTask:
    """The task on a map."""
    if domain not in GRID_WORLDS:  # it may come out of a file
        raise ValueError(f"unknown domain {domain!r}; allowed are {', '.join(GRID_WORLDS)}")
    task: GridTask = getattr(domains, domain)(map)
    return task


@lru_cache(maxsize=32)
def world(domain: str, map: str, temperature: float | None) -> World:
    """A task with the AI teammate of a temperature, or, without one, for two people.

    The first call plans, which takes some seconds on a large map; plans are kept on disk.
    """
    task = task_of(domain, map)
    if temperature is None:
        return World(task, None)
    return World(task, np.ascontiguousarray(task.policies(temperature)["rob"]))


def rules_for(stage: Stage, teammate: str) -> Rules:
    """The rules of a session or of the tutorial.

    Args:
        stage: The stage.
        teammate: "ai" or "human".
    """
    if stage.kind == "tutorial":
        stage = tutorial_stage(stage)
        return tutorial_rules(rules_of(stage, task_of(stage.domain, stage.map), None))
    chosen = world(stage.domain, stage.map, stage.temperature if teammate == "ai" else None)
    return rules_of(stage, *chosen)
