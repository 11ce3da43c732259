"""What a participant sees, as data for the page: never what the teammate has in mind."""

from typing import Any

from btil.domains.gridworld.grid import ORIGIN
from btil.domains.gridworld.task import GridTask
from btil.study import episode as play
from btil.study.episode import Episode, Rules
from btil.study.sessions import Standing, best_so_far
from btil.study.settings import Question, Stage
from btil.study.texts import say
from btil.study.tutorial import accepted_actions, accepts_ask, lesson_text, lessons_of
from btil.study.worlds import world_of

NAMES = ("Alice", "Rob")


def view(standing: Standing) -> dict[str, Any]:
    """The page of a participant now."""
    journey, rules, episode, stage, language = (
        standing.journey, standing.rules, standing.episode, standing.stage, standing.language,
    )  # fmt: skip
    seen: dict[str, Any] = {
        "kind": stage.kind,
        "turn": standing.turn,
        "language": language,
        "paused": bool(journey.paused),
        "progress": {
            "at": journey.position + 1,
            "of": len(standing.stages),
            "label": _label(stage, language),
        },
    }
    if stage.kind == "survey":
        survey = standing.surveys[stage.name]
        seen |= {"title": survey.title, "questions": [_question(q) for q in survey.questions]}
    elif stage.kind == "tutorial":
        assert rules is not None
        assert journey.trial is not None
        lessons = lessons_of(stage)
        seen |= _play(rules, stage.domain, journey.trial, 0, language)
        seen |= {
            "lesson": {"at": min(journey.lesson + 1, len(lessons)), "of": len(lessons)},
            "text": lesson_text(stage, journey.lesson, language, standing.with_person),
            "legal": accepted_actions(stage, journey.lesson),
            "can_ask": accepts_ask(stage, journey.lesson),
            "phase": "over" if journey.lesson >= len(lessons) else seen["phase"],
            "robots": [False, not standing.with_person],
            "why": "",
        }
    elif stage.kind == "pairing":
        seen["code"] = journey.code
    elif stage.kind == "session":
        assert rules is not None
        assert episode is not None
        seat = standing.seat
        seen |= _play(rules, stage.domain, episode, seat, language)
        seen |= {
            "instructions": _instructions(standing, rules),
            "practice": stage.practice,
            "can_ask": rules.asks[seat],
            "steps": episode.step,
            "max_steps": rules.max_steps,
            "best": best_so_far(standing).get(stage.domain),
            "finished": play.is_finished(rules, episode),
        }
    return seen


def _instructions(standing: Standing, rules: Rules) -> list[str]:
    """What is read before a session: the task, its rules, who the teammate is, what is asked."""
    stage, language = standing.stage, standing.language
    other = NAMES[1 - standing.seat]
    robot = not rules.people[1 - standing.seat]
    lines = [
        say(language, f"{stage.domain}.goal", other=other),
        say(language, f"{stage.domain}.blocks"),
        say(language, "rules.robot" if robot else "rules.person", other=other),
    ]
    if robot and standing.journey.outcome:
        lines[2] = say(language, "rules.left", other=other)
    lines += [line.strip() for line in stage.told.splitlines() if line.strip()]
    rules_of_session = (
        ("practice",) if stage.practice else ("test_asked", "test_hold", "test_change")
    )
    return lines + [say(language, f"rules.{one}") for one in rules_of_session]


def _label(stage: Stage, language: str) -> str:
    if stage.kind == "session":
        return say(
            language,
            "stage.practice" if stage.practice else "stage.test",
            task=say(language, f"{stage.domain}.title"),
            number=stage.number,
            of=stage.of,
        )
    return say(language, f"stage.{stage.kind}")


def _question(question: Question) -> dict[str, Any]:
    shown = question._asdict()
    # What is right is nothing for the page.
    del shown["correct"], shown["if_wrong"]
    return shown


def _play(rules: Rules, domain: str, episode: Episode, seat: int, language: str) -> dict[str, Any]:
    """What the map shows and what can be done on it."""
    task = rules.task
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
    why = episode.why[seat]
    return {
        "board": board(task, episode.state),
        "thing": world_of(domain).picture,
        "world": domain,
        "you": seat,
        "names": NAMES,
        "robots": [not person for person in rules.people],
        "phase": phase,
        "options": [_option(task, option, domain, language) for option in options],
        "destination": None if chosen is None else _option(task, chosen, domain, language),
        "why": say(language, why) if why else "",
        "legal": play.legal_actions(rules, episode, seat)
        if phase == "acting"
        else [False] * task.num_actions,
    }


def _option(task: GridTask, option: play.Option, domain: str, language: str) -> dict[str, Any]:
    key = {task.take_to_goal: 2, task.return_item: 1}.get(option.latent, option.latent + 1)
    return {
        "latent": option.latent,
        "at": _position(task, option.cell),
        "label": destination_label(task, domain, option.latent, language),
        "key": str(key),
    }


def destination_label(task: GridTask, domain: str, latent: int, language: str) -> str:
    """A destination as participants read it: items are counted from 1."""
    if latent == task.take_to_goal:
        return say(language, "rules.flag")
    if latent == task.return_item:
        return say(language, f"{domain}.back")
    return say(language, f"{domain}.numbered", number=latent + 1)


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
