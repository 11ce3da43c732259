"""Trials of Overcooked-AI as its web pages record them: JSON, one record per step.

No pickle is read: a data frame of trials is written as JSON by `frame.to_json(path,
orient="records")`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from btil.demonstrations import Demonstrations
from btil.demonstrations.coding import counted, listed, shown
from btil.domains import overcooked
from btil.recordings.sources import naming, read_text

_NEEDED = ("state", "joint_action", "layout_name", "trial_id", "cur_gameloop")
# The headings are the first four actions, then comes staying where one is.
_MOVES = ((0, -1), (0, 1), (1, 0), (-1, 0), (0, 0))
_INTERACT = "interact"
_OBJECTS = (None, "onion", "dish", "soup")
_COOKING_TIME = 20
_FULL = 3
_COUNTERS = {"onion": "counter_onions", "dish": "counter_dishes", "soup": "counter_soups"}


def from_overcooked_trials(
    path: str | os.PathLike[str], layout: str, *, grid: Sequence[str] | None = None
) -> Demonstrations:
    """Read trials of Overcooked-AI with two players.

    The file holds a list of records, `{"trajectory": [records]}`, one record a line, or columns
    `{"state": {"0": ...}, ...}`. A record has

    - `state`, a mapping or its JSON text: `players` with `position` (x, y), `orientation` (dx, dy)
      and `held_object`, and `objects` with `name`, `position` and, of a soup, `_ingredients` and
      `_cooking_tick` (today) or `state`: ingredient, number, time (2019);
    - `joint_action`, two of (dx, dy) and "interact";
    - `layout_name`, `trial_id`, `cur_gameloop` (counts up by one in a trial) and, if there,
      `reward` and `layout`, the map.

    The state variables, actions and intents are those of `btil.domains.overcooked.load`: kitchens
    with one or two pots, onions and dishes, where three onions cook by themselves for 20 steps.
    Other kitchens are refused.

    Args:
        path: The file.
        layout: Whose records are read; those of other layouts are left out.
        grid: The map, row by row. Default: `layout` of the records, else the map that btil carries
            for a layout of this name.

    Returns:
        Demonstrations of `player_0` and `player_1`; the episode ids are the trial ids.

    Raises:
        ValueError: The file is no JSON of such records, lacks a field, has something that these
            kitchens do not know, steps that do not follow each other. The message names file,
            record, trial, step, field and what is allowed.
        OSError: The file cannot be read.

    Example:
        >>> from_overcooked_trials("trials.json", "cramped_room")  # doctest: +SKIP
        Demonstrations(2 episodes, 2400 steps, 61 state variables, agents: player_0, player_1)

    Source:
        The classes `OvercookedState`, `PlayerState`, `ObjectState` and `SoupState` of
        overcooked-ai, and the records of its web page.
    """
    with naming(path):
        numbered = _records(read_text(Path(path)))
        names = sorted({str(record["layout_name"]) for _, record in numbered})
        chosen = [(k, record) for k, record in numbered if record["layout_name"] == layout]
        if not chosen:
            raise ValueError(
                f"there are no records of layout {shown(layout)}; those of the file are "
                f"{listed(names)}"
            )
        kitchen = _kitchen(chosen, layout, grid)
        ids = list(dict.fromkeys(_trial(k, record) for k, record in chosen))
        if len({type(one) for one in ids}) > 1:
            raise ValueError(f"trial_id: texts or numbers in all records expected: {listed(ids)}")
        numbers = {one: number for number, one in enumerate(ids)}
        # Records of a trial come one after another; those of several may be mixed.
        chosen.sort(key=lambda one: numbers[one[1]["trial_id"]])
        steps = _steps(chosen)
        rows = [
            {"trial": numbers[record["trial_id"]], "step": step}
            | _row(f"{_place(k, record)}: ", record, kitchen)
            for (k, record), step in zip(chosen, steps, strict=True)
        ]
        arrays = {name: np.array([row[name] for row in rows], np.int64) for name in rows[0]}
        arrays |= {name: np.zeros(len(rows), np.int64) for name in ("split", "layout")}
        arrays |= {"layout_names": np.array([layout]), f"grid_{layout}": np.array(kitchen.grid)}
        try:
            demos = overcooked.from_arrays(arrays, layout)
        except ValueError as error:
            told = re.sub(r"\btrial (\d+)", lambda m: f"trial {shown(ids[int(m[1])])}", str(error))
            raise ValueError(told) from None
        return demos.replace(
            episodes=np.array(ids)[arrays["trial"]],
            rewards=_rewards(chosen),
        )


class _Kitchen(NamedTuple):
    """The map, and the cells (x, y) of its pots and counters."""

    grid: tuple[str, ...]
    pots: tuple[tuple[int, int], ...]
    counters: frozenset[tuple[int, int]]
    floor: frozenset[tuple[int, int]]


def _records(text: str) -> list[tuple[int, dict[str, Any]]]:
    """The records with their numbers."""
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        lines = [line for line in text.splitlines() if line.strip()]
        try:  # one record a line
            if len(lines) < 2:
                raise error
            found = [json.loads(line) for line in lines]
        except json.JSONDecodeError:
            raise ValueError(f"line {error.lineno}, character {error.colno}: no JSON") from None
    if isinstance(found, dict) and isinstance(found.get("trajectory"), list):
        found = found["trajectory"]
    elif isinstance(found, dict) and all(isinstance(column, dict) for column in found.values()):
        found = _from_columns(found)
    if not isinstance(found, list) or not found:
        raise ValueError(
            "expected a list of records, {'trajectory': records}, one record a line, or columns"
        )
    for k, record in enumerate(found):
        if not isinstance(record, dict):
            raise ValueError(
                f"record {k} (counted from 0): a mapping expected, got {shown(record)}"
            )
        lacking = [name for name in _NEEDED if name not in record]
        if lacking:
            raise ValueError(
                f"record {k} (counted from 0) has no {listed(lacking)}; needed are "
                f"{listed(_NEEDED)}"
            )
    return list(enumerate(found))


def _from_columns(columns: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    keys = list(next(iter(columns.values()), {}))
    for name, column in columns.items():
        if list(column) != keys:
            raise ValueError(f"column {shown(name)} has other rows than the first one")
    return [{name: column[key] for name, column in columns.items()} for key in keys]


def _place(number: int, record: Mapping[str, Any]) -> str:
    return (
        f"record {number} (trial {shown(record['trial_id'])}, step {shown(record['cur_gameloop'])})"
    )


def _trial(number: int, record: Mapping[str, Any]) -> str | int:
    trial = record["trial_id"]
    if isinstance(trial, bool) or not isinstance(trial, str | int):
        raise ValueError(
            f"{_place(number, record)}: trial_id: a text or a whole number expected, got "
            f"{shown(trial)}"
        )
    return trial


def _steps(chosen: Sequence[tuple[int, Mapping[str, Any]]]) -> list[int]:
    """The steps of the records, which count up by one in each trial."""
    before: dict[str | int, int] = {}
    steps = []
    for k, record in chosen:
        step, trial = record["cur_gameloop"], record["trial_id"]
        number = isinstance(step, int | float) and not isinstance(step, bool)
        if not (number and float(step).is_integer()):
            raise ValueError(f"{_place(k, record)}: cur_gameloop: a whole number expected")
        if trial in before and step != before[trial] + 1:
            raise ValueError(
                f"{_place(k, record)}: cur_gameloop {step} comes after {before[trial]}; expected "
                "steps that count up by one in a trial"
            )
        before[trial] = int(step)
        steps.append(int(step))
    return steps


def _rewards(chosen: Sequence[tuple[int, Mapping[str, Any]]]) -> np.ndarray | None:
    given = [record.get("reward") for _, record in chosen]
    if all(reward is None for reward in given):
        return None
    for (k, record), reward in zip(chosen, given, strict=True):
        if isinstance(reward, bool) or not isinstance(reward, int | float):
            raise ValueError(
                f"{_place(k, record)}: reward: a number expected in all records or in none, got "
                f"{shown(reward)}"
            )
    return np.array(given, np.float64)


def _kitchen(
    chosen: Sequence[tuple[int, Mapping[str, Any]]], layout: str, grid: Sequence[str] | None
) -> _Kitchen:
    """The map, and where its pots and counters are."""
    rows = None if grid is None else tuple(str(row) for row in grid)
    if rows is None and chosen[0][1].get("layout") is not None:
        k, record = chosen[0]
        place = f"{_place(k, record)}: "
        found = _parsed(place, "layout", record["layout"])
        if not isinstance(found, list) or not found:
            _refuse(place, "layout", found, "a list of rows of cells")
        rows = tuple("".join(map(str, row)) for row in found)
    elif rows is None:
        if layout not in overcooked.LAYOUTS:
            raise ValueError(
                f"the records have no map (a field 'layout') of {shown(layout)}; grid=[...] gives "
                "its rows"
            )
        rows = overcooked.map_of(layout)
    cells = {(x, y): cell for y, row in enumerate(rows) for x, cell in enumerate(row)}
    return _Kitchen(
        rows,
        tuple(at for at, cell in cells.items() if cell == "P"),
        frozenset(at for at, cell in cells.items() if cell == "X"),
        frozenset(at for at, cell in cells.items() if cell in " 0123456789"),
    )


# ---------------------------------------------------------------------- a record


def _refuse(place: str, field: str, value: Any, expected: str) -> NoReturn:
    raise ValueError(f"{place}{field}: {shown(value)} is not allowed; expected {expected}")


def _parsed(place: str, field: str, value: Any) -> Any:
    """What a JSON text says, or the value itself. Some recordings write 'interact' so."""
    if not isinstance(value, str):
        return value
    for text in (value, value.replace("'", '"')):
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            continue
    _refuse(place, field, value, "JSON")


def _pair(place: str, field: str, value: Any) -> tuple[int, int]:
    if (
        not isinstance(value, list)
        or len(value) != 2
        or not all(isinstance(one, int) and not isinstance(one, bool) for one in value)
    ):
        _refuse(place, field, value, "two whole numbers")
    return value[0], value[1]


def _part(place: str, field: str, mapping: Any, key: str) -> Any:
    if not isinstance(mapping, dict) or key not in mapping:
        _refuse(place, field, mapping, f"a mapping with {key!r}")
    return mapping[key]


def _row(place: str, record: Mapping[str, Any], kitchen: _Kitchen) -> dict[str, int]:
    """The columns of the table of `btil.domains.overcooked`, of one record."""
    state = _parsed(place, "state", record["state"])
    row: dict[str, int] = {}
    players = _part(place, "state", state, "players")
    if not isinstance(players, list) or len(players) != 2:
        number = len(players) if isinstance(players, list) else 0
        raise ValueError(f"{place}state.players: {counted(number, 'player')}; expected 2")
    for i, player in enumerate(players):
        field = f"state.players[{i}]"
        x, y = _pair(place, f"{field}.position", _part(place, field, player, "position"))
        if (x, y) not in kitchen.floor:
            _refuse(place, f"{field}.position", [x, y], f"floor of the map {list(kitchen.grid)}")
        facing = _pair(place, f"{field}.orientation", _part(place, field, player, "orientation"))
        if facing not in _MOVES[:4]:
            _refuse(place, f"{field}.orientation", list(facing), listed(map(list, _MOVES[:4])))
        held = player.get("held_object")
        name = None if held is None else _part(place, f"{field}.held_object", held, "name")
        if name not in _OBJECTS:
            _refuse(place, f"{field}.held_object.name", name, listed(_OBJECTS[1:]))
        row |= {f"p{i}_x": x, f"p{i}_y": y, f"p{i}_dir": _MOVES.index(facing)}
        row[f"p{i}_held"] = _OBJECTS.index(name)
    row |= _lying(place, _part(place, "state", state, "objects"), kitchen)
    actions = _parsed(place, "joint_action", record["joint_action"])
    if not isinstance(actions, list) or len(actions) != 2:
        _refuse(place, "joint_action", actions, "two actions")
    for i, action in enumerate(actions):
        row[f"p{i}_action"] = _action(place, f"joint_action[{i}]", action)
    return row


def _action(place: str, field: str, action: Any) -> int:
    if isinstance(action, str) and action.lower() == _INTERACT:
        return len(_MOVES)
    move = tuple(action) if isinstance(action, list) else action
    if move not in _MOVES:
        _refuse(place, field, action, f"'interact', {listed(map(list, _MOVES))}")
    return _MOVES.index(move)


def _lying(place: str, objects: Any, kitchen: _Kitchen) -> dict[str, int]:
    """What is in the pots and on the counters."""
    found = dict.fromkeys(_COUNTERS.values(), 0)
    found |= {f"pot{k}_{what}": 0 for k in range(2) for what in ("onions", "timer")}
    if isinstance(objects, dict):
        objects = list(objects.values())
    if not isinstance(objects, list):
        _refuse(place, "state.objects", objects, "a list")
    for k, one in enumerate(objects):
        field = f"state.objects[{k}]"
        name = _part(place, field, one, "name")
        at = _pair(place, f"{field}.position", _part(place, field, one, "position"))
        if name not in _COUNTERS:
            _refuse(place, f"{field}.name", name, f"{listed(_COUNTERS)}")
        if at in kitchen.pots and name == "soup":
            pot = kitchen.pots.index(at)
            onions, timer = _soup(place, field, one)
            found |= {f"pot{pot}_onions": onions, f"pot{pot}_timer": timer}
        elif at in kitchen.counters:
            found[_COUNTERS[name]] += 1
        else:
            where = "a counter or pot" if name == "soup" else "a counter"
            _refuse(place, f"{field}.position", list(at), f"{where} of {list(kitchen.grid)}")
    return found


def _soup(place: str, field: str, soup: Mapping[str, Any]) -> tuple[int, int]:
    """Onions in a pot, and the steps since it was full."""
    if "state" in soup:
        told = soup["state"]
        if not isinstance(told, list) or len(told) != 3:
            _refuse(place, f"{field}.state", told, "ingredient, number, time")
        kinds, number, tick = {told[0]}, told[1], told[2]
    else:
        parts = soup.get("_ingredients", soup.get("ingredients"))
        if not isinstance(parts, list):
            _refuse(place, f"{field}._ingredients", parts, "a list")
        kinds = {part.get("name") if isinstance(part, dict) else part for part in parts}
        number, tick = len(parts), soup.get("_cooking_tick", soup.get("cooking_tick"))
        time = soup.get("cook_time", _COOKING_TIME)
        if time not in (-1, None, _COOKING_TIME):
            _refuse(place, f"{field}.cook_time", time, f"{_COOKING_TIME}, as these kitchens cook")
    if kinds - {"onion"}:
        other = next(iter(kinds - {"onion"}))
        _refuse(place, f"{field}: ingredient", other, "'onion': these kitchens have no other")
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in (number, tick))
    if not whole or not 0 <= number <= _FULL or tick < -1:
        _refuse(place, f"{field}: onions and time", [number, tick], f"0 to {_FULL}, and -1, 0, ...")
    if tick < 0 if number == _FULL else tick > 0:
        _refuse(
            place,
            f"{field}: onions and time",
            [number, tick],
            f"a pot that cooks by itself once {_FULL} onions are in it, and not before; kitchens "
            "where a player starts it are not known",
        )
    return number, max(tick, 0)
