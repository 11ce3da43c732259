"""The tasks of the page: of each its texts, its picture, its lessons, and why a step did nothing.

A new task of the page is one `World` here, a section of texts in every file of `languages/`, and,
if it carries something else than boxes and bags, a drawing in `thing` of `static/board.js`. Its
play needs nothing more than the task of `btil.domains` does.
"""

from collections.abc import Callable
from typing import NamedTuple

from btil.domains.gridworld.grid import DOWN, HOLD, LEFT, NOBODY, RIGHT, STAY, UP
from btil.domains.gridworld.task import GridTask

AS_ALICE = -2  # Rob does what Alice does
ASK, CHOOSE_ITEM, CHOOSE_GOAL, GO = "ask", "choose item", "choose goal", "go"
_WALK = (UP, DOWN, LEFT, RIGHT, STAY)

# The task, state, both actions, state after, and seat: key of the text that says why, or "".
Why = Callable[[GridTask, int, tuple[int, int], int, int], str]


class Lesson(NamedTuple):
    """One thing to do in a tutorial.

    Attributes:
        text: Key of what the participant reads. Where there is a text with "_people" at its end,
            those who play with a person read that.
        actions: The keys that are accepted.
        wants: Instead of one of these keys: "ask" (open the selector), "choose item", "choose
            goal", or "go": walk until the destination is reached.
        rob: What Rob does meanwhile.
    """

    text: str
    actions: tuple[int, ...] = ()
    wants: str = ""
    rob: int = STAY


class World(NamedTuple):
    """A task as the page shows it.

    Attributes:
        name: Section of its texts.
        picture: How what is carried is drawn: "box" or "bag".
        map: Of its tutorial.
        lessons: Of its tutorial.
        why: Says why a step did nothing for a seat.
    """

    name: str
    picture: str
    map: str
    lessons: tuple[Lesson, ...]
    why: Why

    @property
    def known(self) -> int:
        """How many of the lessons those know already who did the tutorial of another task."""
        return next(k for k, lesson in enumerate(self.lessons) if lesson.wants == CHOOSE_ITEM)


_KEYS = (
    Lesson("lesson.right", (RIGHT,), rob=UP),
    Lesson("lesson.up", (UP,), rob=LEFT),
    Lesson("lesson.down", (DOWN,)),
    Lesson("lesson.left", (LEFT,)),
    Lesson("lesson.stay", (STAY,)),
    Lesson("lesson.ask", wants=ASK),
    Lesson("lesson.choose_item", wants=CHOOSE_ITEM),
    Lesson("lesson.go", _WALK, wants=GO),
)


def _why_not_moved(task: GridTask, state: int, actions: tuple[int, int], seat: int) -> str:
    """What a wall, or full hands, say to a step."""
    situation = task.situation([state])
    cell = situation.cells[:, seat]
    target = task.grid.neighbors[cell, actions[seat]]
    if target[0] == cell[0]:
        return "why.wall"
    held = task.held_items([state])[0]
    if held[seat] != NOBODY and task.item_at(situation, target)[0] != NOBODY:
        return "why.item"
    return ""


def _why_in_movers(
    task: GridTask, state: int, actions: tuple[int, int], after: int, seat: int
) -> str:
    before, then = task.situation([state, after]).cells[:, seat]
    held = task.held_items([state, after])
    carries = held[0, seat] != NOBODY
    if actions[seat] == HOLD:
        if held[0, seat] != held[1, seat]:
            return ""
        if carries:
            return "why.let_go"
        here = task.item_at(task.situation([state]), before[None])[0]
        return "why.nothing" if here == NOBODY else "why.lift"
    if actions[seat] == STAY:
        return ""
    if then != before:
        wanted = task.grid.neighbors[before, actions[seat]]
        return "" if then == wanted else "why.pull"
    return _why_not_moved(task, state, actions, seat) or "why.pull"


def _why_in_cleanup(
    task: GridTask, state: int, actions: tuple[int, int], after: int, seat: int
) -> str:
    cells = task.situation([state, after]).cells
    held = task.held_items([state, after])
    if actions[seat] == HOLD:
        if held[0, seat] != held[1, seat]:
            return ""
        with_other = cells[0, 0] == cells[0, 1]
        here = task.item_at(task.situation([state]), cells[0, [seat]])[0]
        if with_other and (here != NOBODY or held[0, 1 - seat] != NOBODY):
            return "why.taken"
        return "why.nothing"
    if actions[seat] == STAY or cells[0, seat] != cells[1, seat]:
        return ""
    blocked = _why_not_moved(task, state, actions, seat)
    if blocked:
        return blocked
    wanted = task.grid.neighbors[cells[0, seat], actions[seat]]
    return "why.carrier" if wanted == cells[0, 1 - seat] else "why.blocked"


WORLDS = {
    "movers": World(
        "movers",
        "box",
        """
        0 . . G
        . R A .
        . . 1 .
        """,
        (
            *_KEYS,
            Lesson("movers.lift", (HOLD,), rob=HOLD),
            Lesson("lesson.choose_goal", wants=CHOOSE_GOAL),
            Lesson("movers.carry", _WALK, wants=GO, rob=AS_ALICE),
            Lesson("lesson.put_down", (HOLD,), rob=HOLD),
        ),
        _why_in_movers,
    ),
    "cleanup": World(
        "cleanup",
        "bag",
        """
        0 1 . G
        . R A .
        . . . .
        """,
        (
            *_KEYS,
            Lesson("cleanup.lift", (HOLD,)),
            Lesson("lesson.choose_goal", wants=CHOOSE_GOAL),
            Lesson("cleanup.blocked", (RIGHT,)),
            Lesson("cleanup.carry", _WALK, wants=GO),
            Lesson("lesson.put_down", (HOLD,)),
        ),
        _why_in_cleanup,
    ),
}


def world_of(domain: str) -> World:
    """The task as the page shows it.

    Raises:
        ValueError: If the page does not have it.
    """
    if domain not in WORLDS:  # it may come out of a file
        raise ValueError(f"unknown domain {domain!r}; allowed are {', '.join(WORLDS)}")
    return WORLDS[domain]
