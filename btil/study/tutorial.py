"""The tutorial: a short walk on a small map that teaches each key and the destination selector.

It is played by the rules of a session, except that only what is taught is accepted and that Rob
follows a script. Those who know the keys from another task's tutorial begin where they have chosen
to choose, and learn what is new.
"""

import numpy as np

from btil.study.episode import Episode, Rules, ask, begin, choose, joint_step, start
from btil.study.settings import Stage
from btil.study.texts import Refused, say, texts_in
from btil.study.worlds import (
    AS_ALICE,
    ASK,
    CHOOSE_GOAL,
    CHOOSE_ITEM,
    GO,
    Lesson,
    world_of,
)

_FIRST_ITEM = 0
_LONG = 10_000


def lessons_of(stage: Stage) -> tuple[Lesson, ...]:
    """The lessons of a tutorial: all, or, for those who know the keys, what is left."""
    world = world_of(stage.domain)
    return world.lessons[world.known :] if stage.name == "rest" else world.lessons


def lesson_text(stage: Stage, lesson: int, language: str, with_person: bool = False) -> str:
    """What the participant reads.

    Args:
        stage: The tutorial.
        lesson: Which lesson it is.
        language: Of the text.
        with_person: Whether a person will play the other part.
    """
    lessons = lessons_of(stage)
    if lesson >= len(lessons):
        return say(language, "lesson.done")
    key = lessons[lesson].text
    if with_person and f"{key}_people" in texts_in(language):
        key = f"{key}_people"
    text = say(language, key, item=say(language, f"{stage.domain}.thing"))
    if stage.name == "rest" and lesson == 0:
        text = f"{say(language, f'{stage.domain}.intro')} {text}"
    return text


def tutorial_rules(rules: Rules) -> Rules:
    """The rules of the tutorial: Rob is nobody, and nothing is asked for but by a lesson."""
    return rules._replace(members=(None, None), asks=(False, False), max_steps=_LONG)


def tutorial_stage(stage: Stage) -> Stage:
    """The tutorial as a session, which decides its task and map."""
    return stage._replace(map=world_of(stage.domain).map, select_every=_LONG, max_steps=_LONG)


def begin_tutorial(rules: Rules, stage: Stage) -> Episode:
    """The first lesson."""
    episode = begin(rules, np.zeros(5))._replace(started=(False, True))
    episode = start(episode, 0, 0.0)
    world = world_of(stage.domain)
    for lesson in world.lessons[: world.known] if stage.name == "rest" else ():
        if lesson.wants == ASK:
            episode = ask(episode, 0, 0.0)
        else:
            episode = _step(rules, episode, lesson, lesson.actions[0])
    return episode


def accepted_actions(stage: Stage, lesson: int) -> list[bool]:
    """Which keys a lesson accepts."""
    lessons = lessons_of(stage)
    actions = lessons[lesson].actions if lesson < len(lessons) else ()
    return [action in actions for action in range(6)]


def accepts_ask(stage: Stage, lesson: int) -> bool:
    """Whether a lesson wants the selector opened."""
    lessons = lessons_of(stage)
    return lesson < len(lessons) and lessons[lesson].wants == ASK


def teach(
    rules: Rules, stage: Stage, episode: Episode, lesson: int, do: str, value: int
) -> tuple[Episode, int]:
    """What a participant does in a lesson.

    Args:
        rules: Of the tutorial.
        stage: The tutorial.
        episode: Where it stands.
        lesson: Which lesson it is.
        do: "press", "ask" or "choose".
        value: The action or destination.

    Returns:
        The episode after it, and the lesson that comes now.

    Raises:
        Refused: If it is not what the lesson asks for.
    """
    lessons = lessons_of(stage)
    if lesson >= len(lessons):
        raise Refused("refused.tutorial_over")
    now = lessons[lesson]
    if do == "ask" and now.wants == ASK:
        return ask(episode, 0, 0.0), lesson + 1
    if do == "choose" and now.wants in (CHOOSE_ITEM, CHOOSE_GOAL):
        wanted = _FIRST_ITEM if now.wants == CHOOSE_ITEM else rules.task.take_to_goal
        if value != wanted:
            raise Refused("refused.other_one")
        return choose(rules, episode, 0, value), lesson + 1
    if do != "press" or value not in now.actions:
        raise Refused("refused.not_yet")
    episode = _step(rules, episode, now, value)
    if now.wants == GO and not _arrived(rules, episode):
        return episode, lesson
    lesson += 1
    if lesson < len(lessons) and lessons[lesson].wants == CHOOSE_GOAL:
        episode = episode._replace(selecting=(True, False))
    return episode, lesson


def _step(rules: Rules, episode: Episode, lesson: Lesson, action: int) -> Episode:
    rob = action if lesson.rob == AS_ALICE else lesson.rob
    return joint_step(rules, episode, (action, rob), np.zeros(5), 0.0)[0]


def _arrived(rules: Rules, episode: Episode) -> bool:
    grid = rules.task.grid
    here = rules.task.situation([episode.state]).cells[0, 0]
    item = episode.latents[0] == _FIRST_ITEM
    return bool(here == (grid.items[_FIRST_ITEM] if item else grid.goal))
