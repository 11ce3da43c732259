"""What a participant sees, as data for the page: never what the teammate has in mind."""

from typing import Any

from btil.domains.gridworld.grid import ORIGIN
from btil.domains.gridworld.task import GridTask
from btil.study import episode as play
from btil.study.episode import Episode, Rules
from btil.study.sessions import Standing, best_so_far
from btil.study.settings import Question, Stage
from btil.study.tutorial import LESSONS, accepted_actions, accepts_ask, lesson_text, noun

NAMES = ("Alice", "Rob")
_TASK_TITLES = {"movers": "Movers", "cleanup": "Cleanup"}
_GOALS = {
    "movers": "Move all the boxes to the flag as soon as possible. A box is heavy: you and "
    "{other} must stand at it and both pick it up, go the same way, and both put it down.",
    "cleanup": "Bring all the bags to the flag as soon as possible. You and {other} carry bags "
    "alone, one at a time.",
}
_TEST_RULES = (
    "You are asked again and again where you are heading. Choose what you really want to do next; "
    "it can be the same as before.",
    "Picking up and putting down work only at the place circled in red.",
    "If you change your mind, press Select destination.",
)
_PRACTICE_RULES = ("This session is for practice.",)


def view(standing: Standing) -> dict[str, Any]:
    """The page of a participant now."""
    journey, rules, episode, stage = (
        standing.journey, standing.rules, standing.episode, standing.stage,
    )  # fmt: skip
    seen: dict[str, Any] = {
        "kind": stage.kind,
        "turn": standing.turn,
        "progress": {
            "at": journey.position + 1,
            "of": len(standing.stages),
            "label": _label(stage),
        },
    }
    if stage.kind == "survey":
        survey = standing.surveys[stage.name]
        seen |= {"title": survey.title, "questions": [_question(q) for q in survey.questions]}
    elif stage.kind == "tutorial":
        assert rules is not None
        assert journey.trial is not None
        seen |= _play(rules, stage.domain, journey.trial, 0)
        done = journey.lesson >= len(LESSONS)
        seen |= {
            "lesson": {"at": min(journey.lesson + 1, len(LESSONS)), "of": len(LESSONS)},
            "text": lesson_text(stage.domain, journey.lesson),
            "legal": accepted_actions(journey.lesson),
            "can_ask": accepts_ask(journey.lesson),
            "phase": "over" if done else seen["phase"],
        }
    elif stage.kind == "pairing":
        seen["code"] = journey.code
    elif stage.kind == "session":
        assert rules is not None
        assert episode is not None
        seat = standing.seat
        seen |= _play(rules, stage.domain, episode, seat)
        rest = _PRACTICE_RULES if stage.practice else _TEST_RULES
        seen |= {
            "instructions": [_GOALS[stage.domain].format(other=NAMES[1 - seat]), *rest],
            "practice": stage.practice,
            "can_ask": rules.asks[seat],
            "steps": episode.step,
            "max_steps": rules.max_steps,
            "best": best_so_far(standing).get(stage.domain),
            "finished": play.is_finished(rules, episode),
        }
    return seen


def _label(stage: Stage) -> str:
    if stage.kind == "session":
        what = "practice" if stage.practice else "test"
        return f"{_TASK_TITLES[stage.domain]}, session {stage.number} of {stage.of} ({what})"
    return {
        "survey": "A few questions",
        "tutorial": "Tutorial",
        "pairing": "Finding your partner",
        "thanks": "Done",
    }[stage.kind]


def _question(question: Question) -> dict[str, Any]:
    return question._asdict()


def _play(rules: Rules, domain: str, episode: Episode, seat: int) -> dict[str, Any]:
    """What the map shows and what can be done on it."""
    task = rules.task
    thing = noun(domain)
    chosen = play.destination(rules, episode, seat)
    options = play.options(task, episode.state, seat)
    if not episode.started[seat]:
        phase = "intro"
    elif episode.over:
        phase = "over"
    elif not all(episode.started):
        phase = "waiting"
    elif episode.selecting[seat]:
        phase = "selecting"
    elif episode.pending[seat] != play.UNKNOWN:
        phase = "acted"
    else:
        phase = "acting"
    return {
        "board": board(task, episode.state),
        "thing": thing,
        "you": seat,
        "names": NAMES,
        "phase": phase,
        "options": [_option(task, option, thing) for option in options],
        "destination": None if chosen is None else _option(task, chosen, thing),
        "legal": play.legal_actions(rules, episode, seat)
        if phase == "acting"
        else [False] * task.num_actions,
    }


def _option(task: GridTask, option: play.Option, thing: str) -> dict[str, Any]:
    if option.latent == task.take_to_goal:
        label, key = "the flag", 2
    elif option.latent == task.return_item:
        label, key = f"back to where the {thing} was", 1
    else:
        label, key = f"{thing} {option.latent + 1}", option.latent + 1
    return {
        "latent": option.latent,
        "at": _position(task, option.cell),
        "label": label,
        "key": str(key),
    }


def board(task: GridTask, state: int) -> dict[str, Any]:
    """The map in a state: positions are [x, y]."""
    grid = task.grid
    situation = task.situation([state])
    cells, items = situation.cells[0].tolist(), situation.items[0].tolist()
    held = task.held_items([state])[0].tolist()
    things = []
    for item, status in enumerate(items):
        holders = [agent for agent in play.SEATS if held[agent] == item]
        if status == ORIGIN:
            cell, where = grid.items[item], "origin"
        elif holders:
            cell, where = cells[holders[0]], "held"
        else:
            cell, where = grid.goal, "goal"
        things.append(
            {
                "number": item + 1,
                "at": _position(task, cell),
                "origin": _position(task, grid.items[item]),
                "where": where,
                "holders": holders,
            }
        )
    return {
        "width": grid.width,
        "height": grid.height,
        "walls": [list(wall) for wall in grid.walls],
        "goal": _position(task, grid.goal),
        "agents": [_position(task, cell) for cell in cells],
        "items": things,
    }


def _position(task: GridTask, cell: int) -> list[int]:
    position: list[int] = task.grid.cells[cell].tolist()
    return position
