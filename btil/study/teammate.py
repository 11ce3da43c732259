"""The AI teammate: the softmax of planned values, or a learned member of a team."""

import hashlib
from functools import lru_cache
from pathlib import Path

import numpy as np

from btil import domains
from btil.domains.gridworld.simulate import Member, given_member
from btil.domains.gridworld.task import GridTask
from btil.study.episode import Rules, rules_of
from btil.study.settings import AI, HUMAN, Stage
from btil.study.tutorial import tutorial_rules, tutorial_stage
from btil.study.worlds import world_of


@lru_cache(maxsize=32)
def task_of(domain: str, map: str) -> GridTask:
    """The task on a map."""
    task: GridTask = getattr(domains, world_of(domain).name)(map)
    return task


@lru_cache(maxsize=32)
def planned(domain: str, map: str, temperature: float, seat: int) -> Member:
    """The AI teammate of a temperature.

    The first call plans, which takes some seconds on a large map; plans are kept on disk.
    """
    task = task_of(domain, map)
    agent = task.agents[seat]
    return given_member(task, agent, np.ascontiguousarray(task.policies(temperature)[agent]))


@lru_cache(maxsize=32)
def learned(domain: str, map: str, path: Path, digest: str, seat: int) -> Member:
    """A learned member of a team, who acts by the means of a posterior.

    Args:
        domain: The task.
        map: Its map.
        path: File of the posterior.
        digest: Beginning of the file's SHA-256.
        seat: Whom it plays.

    Raises:
        ValueError: If it is another file than it was, is of another task, or has another number of
            latents, so that what it has in mind would have no name in the export.
    """
    from btil.domains.playing import member_of
    from btil.posterior.loading import load_posterior

    found = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    if found != digest:
        raise ValueError(
            f"{path}: this is not the posterior that participants began with (now {found}, then "
            f"{digest}); keep it under its name, and give a new one another"
        )
    task = task_of(domain, map)
    agent = task.agents[seat]
    try:
        member = member_of(task, agent, load_posterior(path))
    except (TypeError, AttributeError) as error:
        raise ValueError(f"{path}: a posterior of tables is expected") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if member.num_latents != task.num_latents:
        raise ValueError(
            f"{path}: {agent!r} has {member.num_latents} latents; {domain} has {task.num_latents}"
        )
    return member


def rules_for(stage: Stage, teammate: str, folder: Path = Path()) -> Rules:
    """The rules of a session or of the tutorial.

    Args:
        stage: The stage.
        teammate: "ai", "human" or a posterior, where the stage does not say it.
        folder: Of the study, in which posteriors lie.
    """
    if stage.kind == "tutorial":
        stage = tutorial_stage(stage)
        return tutorial_rules(rules_of(stage, task_of(stage.domain, stage.map)))
    with_whom = stage.teammate or teammate
    task = task_of(stage.domain, stage.map)
    if with_whom == HUMAN:
        return rules_of(stage, task)
    if with_whom == AI:
        member = planned(stage.domain, stage.map, stage.temperature, stage.robot)
    else:
        file, _, digest = with_whom.partition("#")
        member = learned(stage.domain, stage.map, folder / file, digest, stage.robot)
    members = (member, None) if stage.robot == 0 else (None, member)
    return rules_of(stage, task, members)
