"""A simulated participant: sees what the page shows and decides what to do, to try a study out."""

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from btil.domains.gridworld.grid import DOWN, HOLD, LEFT, RIGHT, STAY, UP

_STEPS = {UP: (0, -1), DOWN: (0, 1), LEFT: (-1, 0), RIGHT: (1, 0)}
_STRAYS = 0.08  # how often it does something else than the shortest way
_AGREES = 0.7  # how often it wants the item that is nearest to the teammate

Place = tuple[int, int]


def decide(seen: Mapping[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """What a simulated participant does on a page.

    It answers surveys at random, chooses destinations (mostly the item nearest to its teammate,
    and nearly always the flag when it holds one), and walks there, mostly by a shortest way.

    Args:
        seen: What the page shows (`btil.study.views.view`, with its `notice`).
        generator: Decides what is left to chance.

    Returns:
        A message without its turn; empty where there is nothing to do but to wait.

    Example:
        >>> decide({"kind": "session", "phase": "intro"}, np.random.default_rng(0))
        {'do': 'start'}
    """
    kind = seen["kind"]
    if kind == "survey":
        answers = {question["name"]: _answer(question, generator) for question in seen["questions"]}
        return {"do": "answer", "answers": answers}
    if kind not in ("tutorial", "session"):
        return {}
    phase = seen["phase"]
    if phase == "intro":
        return {"do": "start"}
    if phase == "over":
        return {"do": "next"}
    if phase == "selecting":
        return {"do": "choose", "value": _wanted(seen, generator)["latent"]}
    if phase != "acting":
        return {}
    legal = [action for action, may in enumerate(seen["legal"]) if may]
    if not legal:
        return {"do": "ask"}
    action = _action(seen, legal, generator)
    return {"do": "press", "value": action}


def _holds(seen: Mapping[str, Any]) -> bool:
    return any(seen["you"] in item["holders"] for item in seen["board"]["items"])


def _answer(question: Mapping[str, Any], generator: np.random.Generator) -> str:
    if question["options"]:
        return str(generator.choice(question["options"]))
    if question["kind"] == "number":
        return str(question["minimum"] or 1)
    return "simulated"


def _wanted(seen: Mapping[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    options: list[dict[str, Any]] = seen["options"]
    if seen["kind"] == "tutorial":
        return options[-1 if seen["notice"] else 0]
    if _holds(seen):
        return options[-1 if generator.random() < 0.95 else 0]
    if generator.random() < _AGREES and seen["thing"] == "box":
        x, y = seen["board"]["agents"][1 - seen["you"]]
        return min(options, key=lambda o: abs(o["at"][0] - x) + abs(o["at"][1] - y))
    return options[generator.integers(len(options))]


def _action(seen: Mapping[str, Any], legal: list[int], generator: np.random.Generator) -> int:
    if len(legal) == 1:
        return legal[0]
    if seen["kind"] == "session" and generator.random() < _STRAYS:
        return int(generator.choice(legal))
    # In practice no destination is asked for: any item will do, and with one in hand the flag.
    anywhere = seen["options"][-1:] if _holds(seen) else seen["options"]
    goals = [option["at"] for option in [seen["destination"]] if option]
    goals = goals or [option["at"] for option in anywhere]
    here = seen["board"]["agents"][seen["you"]]
    action = HOLD if here in goals else _towards(seen, tuple(here), {(x, y) for x, y in goals})
    return action if action in legal else STAY


def _towards(seen: Mapping[str, Any], here: Place, goals: set[Place]) -> int:
    """The first step of a shortest way, around what is in the way."""
    board = seen["board"]
    closed = {tuple(wall) for wall in board["walls"]}
    if _holds(seen):
        closed |= {tuple(item["at"]) for item in board["items"] if item["where"] == "origin"}
    first: dict[Place, int] = {here: STAY}
    queue = deque([here])
    while queue:
        place = queue.popleft()
        if place in goals:
            return first[place]
        for action, (dx, dy) in _STEPS.items():
            to = (place[0] + dx, place[1] + dy)
            inside = 0 <= to[0] < board["width"] and 0 <= to[1] < board["height"]
            if inside and to not in closed and to not in first:
                first[to] = action if place == here else first[place]
                queue.append(to)
    return STAY
