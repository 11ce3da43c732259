"""The tutorial: a short walk on a small map that teaches each key and the destination selector.

It is played by the rules of a session, except that only what is taught is accepted and that Rob
follows a script.
"""

from typing import NamedTuple

import numpy as np

from btil.domains.gridworld.grid import DOWN, HOLD, LEFT, RIGHT, STAY, UP
from btil.study.episode import Episode, Refused, Rules, ask, begin, choose, joint_step, start
from btil.study.settings import Stage

MAP = """
    0 . . G
    . R A .
    . . 1 .
"""
_FIRST_ITEM = 0
_AS_ALICE = -2  # Rob does what Alice does
_WALK = (UP, DOWN, LEFT, RIGHT, STAY)
_ASK, _CHOOSE_ITEM, _CHOOSE_GOAL, _GO = "ask", "choose item", "choose goal", "go"


class Lesson(NamedTuple):
    """One thing to do.

    Attributes:
        text: What the participant reads; {item} is what is carried, {rob} the teammate's part.
        actions: The keys that are accepted.
        wants: Instead of one of these keys: "ask" (open the selector), "choose item", "choose
            goal", or "go": walk until the destination is reached.
        rob: What Rob does meanwhile.
    """

    text: str
    actions: tuple[int, ...] = ()
    wants: str = ""
    rob: int = STAY


LESSONS = (
    Lesson(
        "Here you are Alice, the person, and Rob is a robot. Each press of a key is one step for "
        "both. Press the right arrow key, or the button with the arrow to the right.",
        (RIGHT,),
        rob=UP,
    ),
    Lesson("Now press up.", (UP,), rob=LEFT),
    Lesson("Down again.", (DOWN,)),
    Lesson("Left. Walls and the edge of the map stop you; a step against them is lost.", (LEFT,)),
    Lesson("Sometimes it is best to wait. Press the space bar, or Stay.", (STAY,)),
    Lesson(
        "In some sessions you tell where you are heading. Press D, or the button Select "
        "destination.",
        wants=_ASK,
    ),
    Lesson(
        "All keys wait until you have chosen. Rob is waiting at {item} 1: choose it, by its "
        "number key or by pressing it.",
        wants=_CHOOSE_ITEM,
    ),
    Lesson("It is circled in red now. Walk there.", _WALK, wants=_GO),
    Lesson("{lift} Press Enter, or the button Pick up / put down.", (HOLD,), rob=HOLD),
    Lesson(
        "The page asks again whenever something was picked up or put down, and after every few "
        "steps. Choose the flag.",
        wants=_CHOOSE_GOAL,
    ),
    Lesson("{carry} Walk to the flag.", _WALK, wants=_GO, rob=_AS_ALICE),
    Lesson("Put it down: Enter again.", (HOLD,), rob=HOLD),
)

_WORDS = {
    "movers": {
        "item": "box",
        "lift": "Boxes are heavy: both of you must pick one up together. Rob is ready.",
        "carry": "You carry it together and must go the same way. Rob follows you here; in the "
        "sessions he has a mind of his own.",
    },
    "cleanup": {
        "item": "bag",
        "lift": "Everyone carries bags alone, one at a time.",
        "carry": "With a bag you cannot walk over other bags or a teammate who carries one.",
    },
}


def noun(domain: str) -> str:
    """What is carried."""
    return _WORDS[domain]["item"]


def lesson_text(domain: str, lesson: int) -> str:
    """What the participant reads."""
    if lesson >= len(LESSONS):
        return "Well done. That is all there is to know."
    return LESSONS[lesson].text.format(**_WORDS[domain])


def tutorial_rules(rules: Rules) -> Rules:
    """The rules of the tutorial: Rob is nobody, and nothing is asked for but by a lesson."""
    return rules._replace(policy=None, asks=(False, False), max_steps=10_000)


def tutorial_stage(stage: Stage) -> Stage:
    """The tutorial as a session, which decides its task and map."""
    return stage._replace(map=MAP, select_every=10_000, max_steps=10_000)


def begin_tutorial(rules: Rules) -> Episode:
    """The first lesson."""
    episode = begin(rules, np.zeros(5))._replace(started=(False, True))
    return start(episode, 0, 0.0)


def accepted_actions(lesson: int) -> list[bool]:
    """Which keys a lesson accepts."""
    actions = LESSONS[lesson].actions if lesson < len(LESSONS) else ()
    return [action in actions for action in range(6)]


def accepts_ask(lesson: int) -> bool:
    """Whether a lesson wants the selector opened."""
    return lesson < len(LESSONS) and LESSONS[lesson].wants == _ASK


def teach(
    rules: Rules, domain: str, episode: Episode, lesson: int, do: str, value: int
) -> tuple[Episode, int]:
    """What a participant does in a lesson.

    Args:
        rules: Of the tutorial.
        domain: "movers" or "cleanup".
        episode: Where it stands.
        lesson: Which lesson it is.
        do: "press", "ask" or "choose".
        value: The action or destination.

    Returns:
        The episode after it, and the lesson that comes now.

    Raises:
        Refused: If it is not what the lesson asks for.
    """
    if lesson >= len(LESSONS):
        raise Refused("The tutorial is over.")
    now = LESSONS[lesson]
    if do == "ask" and now.wants == _ASK:
        return ask(episode, 0), lesson + 1
    if do == "choose" and now.wants in (_CHOOSE_ITEM, _CHOOSE_GOAL):
        wanted = _FIRST_ITEM if now.wants == _CHOOSE_ITEM else rules.task.take_to_goal
        if value != wanted:
            raise Refused("In the sessions you are free to choose; for now, choose the other one.")
        return choose(rules, episode, 0, value), lesson + 1
    if do != "press" or value not in now.actions:
        raise Refused("Not yet: please do what is written above.")
    rob = value if now.rob == _AS_ALICE else now.rob
    if domain == "cleanup" and now.rob in (HOLD, _AS_ALICE):
        rob = STAY
    episode, _ = joint_step(rules, episode, (value, rob), np.zeros(5), 0.0)
    if now.wants == _GO and not _arrived(rules, episode):
        return episode, lesson
    lesson += 1
    if lesson < len(LESSONS) and LESSONS[lesson].wants == _CHOOSE_GOAL:
        episode = episode._replace(selecting=(True, False))
    return episode, lesson


def _arrived(rules: Rules, episode: Episode) -> bool:
    grid = rules.task.grid
    here = rules.task.situation([episode.state]).cells[0, 0]
    item = episode.latents[0] == _FIRST_ITEM
    return bool(here == (grid.items[_FIRST_ITEM] if item else grid.goal))
