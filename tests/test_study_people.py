"""A study of many people: conditions, places, limits, partners who leave, old recordings."""

import asyncio
import csv
import hashlib
import json
import os
import re
import sqlite3
import stat
import string
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from study_player import decide
from study_site import SETTINGS, write_study
from typer.testing import CliRunner

import btil
from btil.cli import app
from btil.domains.gridworld.grid import STAY
from btil.inference.result import DirichletRows, FitResult
from btil.models.team import bind
from btil.study import episode as play
from btil.study import store as tables
from btil.study.episode import Refused
from btil.study.export import export_study
from btil.study.keeping import back_up, erase, key_of, read_key
from btil.study.live import LiveStudy, sole_server
from btil.study.settings import Stage, read_settings
from btil.study.store import DATABASE_FILE, IDENTITIES_FILE, Person, Store
from btil.study.teammate import learned, rules_for
from btil.study.texts import languages, texts_in
from btil.study.tutorial import lessons_of
from btil.study.worlds import WORLDS

TWO_TASKS = """
title = "Two"
consent = "consent.md"
thanks = "thanks.md"
max_steps = 6
{more}
[[tasks]]
domain = "movers"
map = "tiny"
sessions = 1
practice = 0
[[tasks]]
domain = "cleanup"
map = "tiny"
sessions = 1
practice = 0
"""


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Room:
    """A study, and people who do what simulated participants do, without a server."""

    def __init__(self, folder: Path, settings: str | None = None, seed: int = 1) -> None:
        if settings is not None:
            write_study(folder, settings)
        self.folder, self.clock = folder, Clock()
        self.study = LiveStudy(
            Store(folder, seed=seed if settings is not None else None, create=True),
            read_settings(folder / "study.toml"),
            folder,
            self.clock,
        )
        self.connections: dict[int, Any] = {}
        self.notice = ""

    async def come(self, **how: Any) -> int:
        token = await self.study.enter(**how)
        who = self.study.participant_of(token)
        assert who is not None
        self.open(who)
        return who

    def open(self, who: int) -> None:
        self.connections[who] = self.study.connect(who)

    def close(self, who: int) -> None:
        self.study.disconnect(who, self.connections.pop(who))

    def see(self, who: int) -> dict[str, Any]:
        return self.study.view(who) | {"notice": self.notice}

    async def say(self, who: int, do: str, **fields: Any) -> dict[str, Any]:
        await self.study.handle(who, {"turn": self.see(who)["turn"], "do": do, **fields})
        return self.see(who)

    async def act(self, who: int, seed: int = 0) -> dict[str, Any]:
        return await self.say(who, **decide(self.see(who), np.random.default_rng(seed)))

    async def until(self, who: int, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        for step in range(300):
            seen = self.see(who)
            if holds(seen):
                return seen
            try:
                await self.act(who, step)
                self.notice = ""
            except Refused as refusal:
                self.notice = str(refusal)
        raise AssertionError(seen)

    async def pass_time(self, seconds: float) -> None:
        """Pages that are open give signs of themselves meanwhile."""
        self.clock.now += seconds
        for connection in self.connections.values():
            self.study.hear(connection)
        await self.study.tick()


def run(folder: Path, settings: str | None, script: Callable[[Room], Any]) -> None:
    """Let a script play with a study, and close it."""

    async def whole() -> None:
        room = Room(folder, settings)
        try:
            await script(room)
        finally:
            room.study.close()

    asyncio.run(whole())


def rows_of(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def tables_of(folder: Path, out: Path, **how: Any) -> dict[str, list[dict[str, str]]]:
    """All tables of a study, by their names."""
    list(export_study(folder, out / "all.csv", tables=out / "tables", **how))
    return {file.stem: rows_of(file) for file in (out / "tables").iterdir()}


# ---------------------------------------------------------------------- conditions


def test_arms_and_orders_are_balanced_and_exported(tmp_path: Path) -> None:
    arms = """
order = "random"
[[arms]]
name = "cool"
temperature = 0.1
[[arms]]
name = "warm"
share = 2
temperature = 2.0
instructions = "Rob learned from people."
"""

    async def script(room: Room) -> None:
        seen = []
        for _ in range(24):
            who = await room.come()
            person = room.study._people[who]
            stages = [stage for stage in person.stages if stage.kind == "session"]
            seen.append((person.about.arm, tuple(stage.domain for stage in stages)))
            assert {stage.temperature for stage in stages} == {
                {"cool": 0.1, "warm": 2.0}[person.about.arm]
            }
            assert {stage.told for stage in stages} == {
                {"cool": "", "warm": "Rob learned from people."}[person.about.arm]
            }
            # balanced at every moment, not only in the end
            found = Counter(arm for arm, _ in seen)
            assert abs(2 * found["cool"] - found["warm"]) <= 2
        assert Counter(arm for arm, _ in seen) == {"cool": 8, "warm": 16}
        counted = Counter(seen)
        assert {counted["cool", order] for order in dict.fromkeys(o for _, o in seen)} == {4}
        assert {counted["warm", order] for order in dict.fromkeys(o for _, o in seen)} == {8}

    run(tmp_path, TWO_TASKS.format(more=arms), script)
    (tmp_path / "out").mkdir()
    told = tables_of(tmp_path, tmp_path / "out")
    assert Counter(row["arm"] for row in told["participants"]) == {"cool": 8, "warm": 16}
    assert set(Counter(row["order"] for row in told["participants"]).values()) == {12}
    assert all(len(row["participant"]) == 6 for row in told["participants"])
    assert all(row["consent_time"] == "1970-01-01T00:16:40+00:00" for row in told["participants"])


def test_a_place_that_was_left_is_filled_first(tmp_path: Path) -> None:
    arms = "most_participants = 2\n[limits]\nplace = 100\n[[arms]]\nname='a'\n[[arms]]\nname='b'"

    async def script(room: Room) -> None:
        first, second = await room.come(), await room.come()
        with pytest.raises(Refused, match="all the participants"):
            await room.study.enter()
        room.close(first)
        room.clock.now += 90
        with pytest.raises(Refused, match="all the participants"):
            await room.study.enter()
        room.clock.now += 20
        third = await room.come()
        people = room.study._people
        assert people[third].about.arm == people[first].about.arm != people[second].about.arm
        # who withdraws leaves the place at once
        await room.say(third, "withdraw")
        fourth = await room.come()
        assert people[fourth].about.arm == people[third].about.arm

    run(tmp_path, TWO_TASKS.format(more=arms), script)


def test_latin_squares_of_many_tasks_balance_what_follows_what(tmp_path: Path) -> None:
    write_study(tmp_path)
    one = read_settings(tmp_path / "study.toml")
    for number in (2, 3, 4, 5, 6, 7):
        orders = one._replace(blocks=one.blocks * number, order="random").orders()
        for place in range(number):
            assert len(set(Counter(order[place] for order in orders).values())) == 1
        pairs = Counter(pair for order in orders for pair in pairwise(order))
        assert len(pairs) == number * (number - 1)
        assert len(set(pairs.values())) == 1


# ---------------------------------------------------------------------- coming


def test_one_coming_makes_one_participant(tmp_path: Path) -> None:
    async def script(room: Room) -> None:
        # a double click: the same coming twice, at once
        tokens = await asyncio.gather(*(room.study.enter(entry="abc") for _ in range(3)))
        assert len(set(tokens)) == 1
        assert await room.study.enter(entry="other") != tokens[0]
        assert len(room.study.overview()) == 2

    run(tmp_path, SETTINGS, script)


def test_beginnings_from_one_address_are_limited_by_the_minute(tmp_path: Path) -> None:
    async def script(room: Room) -> None:
        for _ in range(3):
            await room.study.enter(address="10.0.0.1")
        with pytest.raises(Refused, match="Too many people"):
            await room.study.enter(address="10.0.0.1")
        await room.study.enter(address="10.0.0.2")
        room.clock.now += 61
        await room.study.enter(address="10.0.0.1")

    run(tmp_path, "sign_ups = 3\n" + SETTINGS, script)


@pytest.mark.parametrize("same", ["refuse", "resume", "allow"])
def test_ids_are_kept_apart_and_come_once(tmp_path: Path, same: str) -> None:
    more = f"ids = ['PID', 'SID']\nid_required = true\nsame_id = '{same}'\n"
    more += "completion = {code = 'individual', link = 'https://e.org/?cc={code}'}\n"

    async def script(room: Room) -> None:
        with pytest.raises(Refused, match="number is missing"):
            await room.study.enter(ids={"SID": "s1"})
        first = await room.come(ids={"PID": "recruited-person-1", "SID": "=1+1", "other": "x"})
        if same == "refuse":
            with pytest.raises(Refused, match="taken part already"):
                await room.study.enter(ids={"PID": "recruited-person-1"})
        else:
            token = await room.study.enter(ids={"PID": "recruited-person-1"})
            assert (room.study.participant_of(token) == first) is (same == "resume")
        await room.come(ids={"PID": "p2"})

    run(tmp_path, more + SETTINGS, script)
    data = (tmp_path / DATABASE_FILE).read_bytes()
    wal = tmp_path / f"{DATABASE_FILE}-wal"
    assert b"recruited-person-1" not in data + (wal.read_bytes() if wal.exists() else b"")
    out = tmp_path / "ids.csv"
    list(export_study(tmp_path, tmp_path / "d.csv", identities=out))
    rows = rows_of(out)
    assert {row["value"] for row in rows if row["name"] == "SID"} == {"'=1+1"}
    assert [row["name"] for row in rows].count("PID") == (3 if same == "allow" else 2)
    codes = [row["value"] for row in rows if row["name"] == "completion_code"]
    assert len(set(codes)) == len(codes) >= 2
    assert not any(row["name"] == "other" for row in rows)


def test_the_code_is_shown_to_those_who_came_to_the_end_alone(tmp_path: Path) -> None:
    more = "completion = {code = 'C1', link = 'https://e.org/?cc={code}'}\n"

    async def script(room: Room) -> None:
        done, gone = await room.come(), await room.come()
        seen = await room.until(done, lambda seen: seen["kind"] == "thanks")
        assert (seen["code"], seen["code_link"]) == ("C1", "https://e.org/?cc=C1")
        seen = await room.say(gone, "withdraw")
        assert (seen["kind"], seen["code"], seen["code_link"]) == ("thanks", "", "")
        assert "stopped taking part" in seen["outcome"]
        with pytest.raises(Refused, match="not possible"):
            await room.say(gone, "withdraw")

    run(tmp_path, more + SETTINGS, script)


# ---------------------------------------------------------------------- checks and limits


def test_attention_checks_act(tmp_path: Path) -> None:
    write_study(tmp_path, "opening_survey = 'o.toml'\nmost_wrong = 1\n" + SETTINGS)
    check = "kind = 'choice'\noptions = ['one', 'two']\ncorrect = 'two'\ntext = 'Choose two'\n"
    (tmp_path / "o.toml").write_text(
        "title = 'O'\n"
        + "".join(f"[[questions]]\nname = 'c{k}'\n{check}" for k in range(2))
        + f"[[questions]]\nname = 'again'\nif_wrong = 'repeat'\n{check}"
    )

    async def script(room: Room) -> None:
        good, bad = await room.come(), await room.come()
        assert all("correct" not in question for question in room.see(good)["questions"])
        with pytest.raises(Refused, match="once more"):
            await room.say(good, "answer", answers={"c0": "one", "c1": "two", "again": "one"})
        seen = await room.say(good, "answer", answers={"c0": "one", "c1": "two", "again": "two"})
        assert seen["kind"] == "tutorial"
        seen = await room.say(bad, "answer", answers={"c0": "one", "c1": "one", "again": "two"})
        assert seen["kind"] == "thanks"
        assert "read" in seen["outcome"]
        assert [row["wrong"] for row in room.study.overview()] == [1, 2]

    run(tmp_path, None, script)
    (tmp_path / "out").mkdir()
    told = tables_of(tmp_path, tmp_path / "out")
    assert sorted(row["wrong_checks"] for row in told["participants"]) == ["1", "2"]
    assert {row["outcome"] for row in told["participants"]} == {"under way", "attention"}
    assert sum(row["what"] == "attention" for row in told["notes"]) == 3


def test_parts_have_limits_and_idleness_ends(tmp_path: Path) -> None:
    limits = "limits = {tutorial = 50, session = 30, idle = 200, pause = 100}\n"

    async def script(room: Room) -> None:
        who = await room.come()
        assert room.see(who)["time_left"] == 50
        await room.pass_time(49)
        assert room.see(who)["kind"] == "tutorial"
        await room.pass_time(1)
        seen = room.see(who)
        assert (seen["kind"], seen["phase"]) == ("session", "intro")
        assert "time for this part" in seen["skipped"]
        await room.pass_time(60)  # reading the rules takes no time of the session
        await room.say(who, "start")
        await room.act(who)
        # a break counts for nothing
        await room.say(who, "pause")
        with pytest.raises(Refused, match="break"):
            await room.say(who, "press", value=4)
        await room.pass_time(90)
        assert room.see(who)["paused"]
        await room.say(who, "resume")
        assert room.see(who)["time_left"] == 30
        await room.pass_time(29)
        assert room.see(who)["phase"] != "over"
        await room.pass_time(1)
        seen = room.see(who)
        assert (seen["phase"], seen["finished"]) == ("over", False)
        assert room.study._episodes[who, 1].ended == play.TIME_OVER
        await room.pass_time(101)
        assert "still there" in room.connections[who].notice
        await room.pass_time(100)
        assert room.see(who)["kind"] == "thanks"
        assert "too long" in room.see(who)["outcome"]
        # a break that is too long
        other = await room.come()
        await room.say(other, "pause")
        await room.pass_time(101)
        assert "break was longer" in room.see(other)["outcome"]

    run(tmp_path, limits + SETTINGS, script)


def test_the_researcher_sees_where_everyone_stands(tmp_path: Path) -> None:
    asked = "title = 'O'\n[[questions]]\nname = 'q'\ntext = 'Q?'\n[[questions]]\nname = 'r'\n"
    settings = (
        "languages = ['en', 'de']\nopening_survey = 'o.toml'\nids = ['PID']\n"
        "limits = {pause = 120, idle = 77, tutorial = 9}\n" + SETTINGS
    )
    write_study(tmp_path, settings)
    (tmp_path / "o.toml").write_text(asked + "text = 'R?'\n")

    async def script(room: Room) -> None:
        one = await room.come(language="de")
        room.clock.now += 3
        two = await room.come(ids={"PID": "x"})
        people = room.study._people

        def row(who: int) -> dict[str, Any]:
            (found,) = (row for row in room.study.overview() if row["number"] == people[who].number)
            return found

        number = len(people[one].stages)
        expected = {
            "number": people[one].number, "stage": "survey", "task": "", "session": 0, "at": 1,
            "of": number, "steps": 0, "here": True, "arm": "", "language": "de", "begun": 1000.0,
            "active": 1000.0, "paused": False, "partner": [], "outcome": "", "wrong": 0,
            "answers": 0, "played": False,
        }  # fmt: skip
        assert row(one) == expected
        assert row(two) == expected | {
            "number": people[two].number, "language": "en", "begun": 1003.0, "active": 1003.0
        }  # fmt: skip
        seen = room.see(one)
        extras = ("study", "break_minutes", "paired", "time_left", "idle_after")
        assert [seen[key] for key in extras] == ["Tiny", 2, False, None, 77.0]
        room.clock.now += 4
        await room.say(one, "answer", answers={"q": "a", "r": "b"})
        assert row(one) == expected | {
            "stage": "tutorial", "task": "cleanup", "at": 2, "answers": 2, "active": 1007.0
        }  # fmt: skip
        assert room.see(one)["time_left"] == 9
        await room.pass_time(9)
        await room.until(one, lambda seen: seen["kind"] == "session" and seen["steps"] == 2)
        seen = row(one)
        assert (seen["stage"], seen["session"], seen["steps"], seen["at"]) == ("session", 1, 2, 3)
        assert seen["played"]
        await room.say(one, "pause")
        assert row(one)["paused"]
        room.close(one)
        assert not row(one)["here"]
        # Who gives no sign is not here either.
        room.clock.now += 1000
        assert not row(two)["here"]
        await room.say(two, "withdraw")
        seen = row(two)
        assert (seen["outcome"], seen["stage"], seen["at"]) == ("withdrew", "thanks", number)

    run(tmp_path, None, script)


def test_a_break_is_no_time_of_a_step(tmp_path: Path) -> None:
    async def script(room: Room) -> None:
        who = await room.come()
        await room.until(who, lambda seen: seen["kind"] == "session")
        await room.say(who, "start")
        room.clock.now += 2
        await room.say(who, "choose", value=0)
        room.clock.now += 1
        await room.say(who, "pause")
        room.clock.now += 500
        await room.say(who, "resume")
        room.clock.now += 3
        await room.say(who, "press", value=4)
        await room.say(who, "ask")
        room.clock.now += 4
        # the selector is open, and a break is no time of it either
        await room.say(who, "pause")
        room.clock.now += 100
        await room.say(who, "resume")
        await room.say(who, "choose", value=1)
        await room.say(who, "ask")
        room.clock.now += 5
        await room.say(who, "choose", value=0)
        room.clock.now += 1
        await room.say(who, "press", value=4)

    run(tmp_path, SETTINGS, script)
    (tmp_path / "out").mkdir()
    told = tables_of(tmp_path, tmp_path / "out")
    first, second = told["steps"]
    assert (first["seconds"], first["alice_seconds_selecting"]) == ("6.000", "2.000")
    assert (first["alice_seconds_else"], first["alice_opened"]) == ("4.000", "start")
    assert (second["seconds"], second["alice_seconds_selecting"]) == ("10.000", "9.000")
    assert (second["alice_opened"], second["alice_answers"]) == ("asked asked", "2")
    # items are counted as participants saw them
    assert second["alice_destination"] == "bag 1"
    answers = [(row["before_step"], row["number"], row["opened"], row["destination"])
               for row in told["selector"]]  # fmt: skip
    assert answers == [
        ("0", "1", "start", "bag 1"), ("1", "1", "asked", "bag 2"), ("1", "2", "asked", "bag 1"),
    ]  # fmt: skip
    (person,) = told["participants"]
    assert (person["breaks"], person["seconds_in_breaks"]) == ("2", "600.0")
    (session,) = told["sessions"]
    assert (session["seconds"], session["alice_seconds_selecting"]) == ("16.000", "11.000")
    assert session["rob_seconds_selecting"] == "0.000"


# ---------------------------------------------------------------------- partners


PAIRS = "teammate = 'human'\npairing = 'arrival'\n{more}\nlimits.partner = 60\nlimits.wait = 300\n"


async def both_playing(room: Room) -> tuple[int, int]:
    alice, rob = await room.come(), await room.come()
    for who in (alice, rob):
        seen = await room.until(who, lambda seen: seen["kind"] == "pairing")
        assert seen["pairing"] == "arrival"
        assert not any(room.see(who)["kind"] == "session" for who in (alice, rob))
    await room.pass_time(1)
    assert [room.see(who)["you"] for who in (alice, rob)] == [0, 1]
    for who, other in ((alice, "Rob"), (rob, "Alice")):
        lines = room.see(who)["instructions"]
        assert any(f"{other} is another participant: a person" in line for line in lines)
        assert not any("robot" in line for line in lines)
        await room.say(who, "start")
    for who in (alice, rob):
        await room.say(who, "choose", value=0)
        await room.say(who, "press", value=4)
    return alice, rob


@pytest.mark.parametrize("left", [0, 1], ids=["alice", "rob"])
@pytest.mark.parametrize("then", ["end", "ai"])
def test_who_is_left_by_the_partner_is_led_on(tmp_path: Path, left: int, then: str) -> None:
    async def script(room: Room) -> None:
        pair = await both_playing(room)
        gone, stays = pair[left], pair[1 - left]
        room.close(gone)
        assert room.see(stays)["partner_here"] is False
        await room.pass_time(59)
        assert room.see(stays)["kind"] == "session"
        await room.pass_time(2)
        seen = room.see(stays)
        if then == "end":
            assert seen["kind"] == "thanks"
            assert "has left" in seen["outcome"]
            return
        assert (seen["phase"], seen["you"]) == ("intro", 1 - left)
        assert seen["robots"] == [left == 0, left == 1]
        assert any("has left" in line for line in seen["instructions"])
        await room.until(stays, lambda seen: seen["kind"] == "thanks")
        # who comes back finds nobody, and goes on in the same way
        room.open(gone)
        assert room.see(gone)["phase"] == "over"
        await room.say(gone, "next")
        await room.pass_time(1)
        assert room.see(gone)["robots"].count(True) == 1

    more = f"without_partner = '{then}'"
    run(
        tmp_path, PAIRS.format(more=more) + SETTINGS.replace("sessions = 2", "sessions = 3"), script
    )
    (tmp_path / "out").mkdir()
    told = tables_of(tmp_path, tmp_path / "out", practice=True, unfinished=True)
    together = [row for row in told["sessions"] if "+" in row["episode"]]
    assert [(row["ended"], row["steps"], row["finished"]) for row in together] == [
        ("partner", "1", "0")
    ]
    alone = [row for row in told["sessions"] if "+" not in row["episode"]]
    assert [row["alice" if left == 0 else "rob"] for row in alone] == ["ai"] * len(alone)
    assert len(alone) == (2 if then == "ai" else 0)
    assert "partner" in {row["outcome"] for row in told["participants"]}


def test_waiting_can_be_left_and_ends_by_itself(tmp_path: Path) -> None:
    async def script(room: Room) -> None:
        first = await room.come()
        await room.until(first, lambda seen: seen["kind"] == "pairing")
        with pytest.raises(Refused, match="not possible"):
            await room.say(first, "alone")
        await room.pass_time(31)
        seen = await room.say(first, "alone")
        assert seen["kind"] == "session"
        assert seen["robots"] == [False, True]
        second = await room.come()
        await room.until(second, lambda seen: seen["kind"] == "pairing")
        await room.pass_time(301)
        assert room.see(second)["kind"] == "session"

    run(tmp_path, PAIRS.format(more="without_partner = 'ai'") + SETTINGS, script)


def test_a_partner_who_takes_a_break_is_waited_for(tmp_path: Path) -> None:
    async def script(room: Room) -> None:
        alice, rob = await both_playing(room)
        await room.say(rob, "pause")
        await room.pass_time(200)
        seen = room.see(alice)
        assert (seen["kind"], seen["partner_rests"]) == ("session", True)
        assert seen["time_left"] is None
        await room.say(rob, "resume")
        seen = room.see(alice)
        assert (seen["partner_rests"], seen["phase"], seen["time_left"]) == (False, "acting", 100)

    run(tmp_path, PAIRS.format(more="limits.session = 100") + SETTINGS, script)


def test_a_silent_page_counts_as_away(tmp_path: Path) -> None:
    async def script(room: Room) -> None:
        alice, rob = await both_playing(room)
        silent = room.connections.pop(rob)
        await room.pass_time(11)
        assert room.see(alice)["partner_here"] is False
        assert silent.closed is None
        await room.pass_time(50)
        assert room.see(alice)["kind"] == "thanks"

    run(tmp_path, PAIRS.format(more="") + SETTINGS, script)


def test_nobody_is_idle_while_the_partner_is_waited_for(tmp_path: Path) -> None:
    async def script(room: Room) -> None:
        alice, rob = await both_playing(room)
        # A partner who takes long, and then it is the other one's turn.
        await room.say(alice, "press", value=4)
        await room.pass_time(90)
        await room.say(rob, "press", value=4)
        await room.pass_time(90)
        assert room.see(alice)["phase"] == "acting"
        # A break of the partner, in which one is told to wait.
        for who in (alice, rob):
            await room.say(who, "press", value=4)
        await room.say(rob, "pause")
        await room.pass_time(150)
        assert room.see(alice)["partner_rests"]
        await room.say(rob, "resume")
        await room.pass_time(90)
        assert room.see(alice)["phase"] == "acting"
        await room.pass_time(20)
        assert "too long" in room.see(alice)["outcome"]

    run(tmp_path, PAIRS.format(more="limits.idle = 100") + SETTINGS, script)


@pytest.mark.parametrize("first", [0, 1])
def test_two_breaks_at_once_are_one_time(tmp_path: Path, first: int) -> None:
    async def script(room: Room) -> None:
        pair = await both_playing(room)
        one, other = pair[first], pair[1 - first]
        room.clock.now += 2
        await room.say(one, "pause")
        room.clock.now += 10
        await room.say(other, "pause")
        room.clock.now += 40
        await room.say(one, "resume")
        room.clock.now += 5
        await room.say(other, "resume")
        room.clock.now += 3
        assert room.see(one)["time_left"] == 95
        for who in pair:
            await room.say(who, "press", value=4)
        # A step during a break: what comes after it counts from there.
        await room.say(one, "press", value=4)
        await room.say(one, "pause")
        room.clock.now += 7
        await room.say(other, "press", value=4)
        room.clock.now += 20
        await room.say(one, "resume")
        room.clock.now += 1
        for who in pair:
            await room.say(who, "press", value=4)

    run(tmp_path, PAIRS.format(more="limits.session = 100") + SETTINGS, script)
    (tmp_path / "out").mkdir()
    steps = tables_of(tmp_path, tmp_path / "out", unfinished=True)["steps"]
    assert [row["seconds"] for row in steps] == ["0.000", "5.000", "7.000", "1.000"]


def test_who_stops_is_not_brought_together_meanwhile(tmp_path: Path) -> None:
    async def script(room: Room) -> None:
        pair = [await room.come(), await room.come()]
        for who in pair:
            await room.until(who, lambda seen: seen["kind"] == "pairing")
        commit, gate = room.study._writer.commit, asyncio.Event()

        async def slowly(statements: Any) -> None:
            room.study._writer.commit = commit
            await gate.wait()
            await commit(statements)

        room.study._writer.commit = slowly
        stops = asyncio.create_task(room.say(pair[0], "withdraw"))
        while room.study._writer.commit is slowly:
            await asyncio.sleep(0)
        time = asyncio.create_task(room.study.tick())
        await asyncio.sleep(0.1)
        gate.set()
        await asyncio.gather(stops, time)
        assert [room.see(who)["kind"] for who in pair] == ["thanks", "pairing"]
        # The other one finds the next one who comes.
        third = await room.come()
        await room.until(third, lambda seen: seen["kind"] == "pairing")
        await room.pass_time(1)
        assert [room.see(who)["kind"] for who in (pair[1], third)] == ["session", "session"]

    run(tmp_path, PAIRS.format(more="") + SETTINGS, script)


def test_those_who_wait_are_brought_together_in_the_order_of_their_waiting(tmp_path: Path) -> None:
    async def script(room: Room) -> None:
        people = [await room.come() for _ in range(3)]
        one, away, two = people
        for who in (away, two, one):
            await room.until(who, lambda seen: seen["kind"] == "pairing")
            room.clock.now += 1
        room.close(away)
        await room.pass_time(0)
        assert [room.see(who)["kind"] == "session" for who in people] == [True, False, True]
        # Who has waited longer is Alice.
        assert (room.see(two)["you"], room.see(one)["you"]) == (0, 1)
        room.open(away)
        await room.pass_time(0)
        assert room.see(away)["kind"] == "pairing"

    run(tmp_path, PAIRS.format(more="") + SETTINGS, script)


async def to_the_end(room: Room, pair: tuple[int, int]) -> None:
    """Two who play together do so until the session is over, and go on."""
    for who in pair:
        await room.say(who, "start")
    while room.see(pair[0])["phase"] != "over":
        for who in pair:
            if room.see(who)["phase"] == "selecting":
                await room.say(who, "choose", value=room.see(who)["options"][0]["latent"])
        for who in pair:
            await room.say(who, "press", value=4)
    for who in pair:
        await room.say(who, "next")


@pytest.mark.parametrize("people", [0, 1])
def test_a_task_with_an_ai_is_each_ones_own_beside_one_of_a_pair(
    tmp_path: Path, people: int
) -> None:
    head, *tasks = TWO_TASKS.format(more="pairing = 'arrival'").split("[[tasks]]")
    tasks[people] += "teammate = 'human'\n"
    numbers: list[str] = []

    async def script(room: Room) -> None:
        pair = await room.come(), await room.come()
        numbers.extend(f"{row['number']:06d}" for row in room.study.overview())
        for who in pair:
            await room.until(who, lambda seen: seen["kind"] == "pairing")
        await room.pass_time(1)
        await to_the_end(room, pair)
        for who in pair:
            seen = await room.until(who, lambda seen: seen["kind"] in ("session", "thanks"))
            if people == 0:  # Rob of the pair is Alice of the sessions with an AI
                assert (seen["you"], seen["robots"], seen["phase"]) == (0, [False, True], "intro")
            await room.until(who, lambda seen: seen["kind"] == "thanks")

    run(tmp_path, "[[tasks]]".join([head, *tasks]), script)
    (tmp_path / "out").mkdir()
    told = tables_of(tmp_path, tmp_path / "out")
    alice, rob = numbers
    of_pair, alone = f"{people + 1:02d}", f"{2 - people:02d}"
    assert {(row["episode"], row["alice"], row["rob"]) for row in told["sessions"]} == {
        (f"{alice}+{rob}-{of_pair}", alice, rob),
        (f"{alice}-{alone}", alice, "ai"),
        (f"{rob}-{alone}", rob, "ai"),
    }
    # Who is erased takes along what both played, and nothing that the other played alone.
    assert erase(tmp_path, rob) == 2
    told = tables_of(tmp_path, tmp_path / "out")
    assert [row["episode"] for row in told["sessions"]] == [f"{alice}-{alone}"]


def test_who_comes_to_a_pair_from_another_order_keeps_what_was_played(tmp_path: Path) -> None:
    more = "order = 'random'\npairing = 'arrival'"
    numbers: dict[int, str] = {}

    async def script(room: Room) -> None:
        pair = await room.come(), await room.come()
        # Whose first task is the one with a person waits first, and is Alice.
        pair = tuple(sorted(pair, key=lambda who: room.study._people[who].stages[1].kind))
        assert [room.study._people[who].stages[1].kind for who in pair] == ["pairing", "session"]
        for who in pair:
            numbers[who] = f"{room.study._people[who].number:06d}"
            await room.until(who, lambda seen: seen["kind"] == "pairing")
            await room.pass_time(1)
        await to_the_end(room, pair)
        for who in pair:
            await room.until(who, lambda seen: seen["kind"] == "thanks")

    run(tmp_path, TWO_TASKS.format(more=more) + "teammate = 'human'\n", script)
    (tmp_path / "out").mkdir()
    told = tables_of(tmp_path, tmp_path / "out")
    alice, rob = numbers.values()
    assert {(row["episode"], row["domain"]) for row in told["sessions"]} == {
        (f"{rob}-01", "movers"),
        (f"{alice}+{rob}-01", "cleanup"),
        (f"{alice}-02", "movers"),
        (f"{rob}-03", "movers"),
    }


def test_who_is_left_plays_the_partners_part_with_an_ai_and_other_tasks_as_planned(
    tmp_path: Path,
) -> None:
    head, first, second = TWO_TASKS.format(
        more="pairing = 'arrival'\nwithout_partner = 'ai'"
    ).split("[[tasks]]")
    first = first.replace("sessions = 1", "sessions = 2") + "teammate = 'human'\n"
    numbers: list[str] = []

    async def script(room: Room) -> None:
        pair = await room.come(), await room.come()
        numbers.extend(f"{row['number']:06d}" for row in room.study.overview())
        for who in pair:
            await room.until(who, lambda seen: seen["kind"] == "pairing")
        await room.pass_time(1)
        await to_the_end(room, pair)
        await room.say(pair[0], "withdraw")
        await room.pass_time(1)
        seen = await room.until(pair[1], lambda seen: seen["kind"] == "session")
        assert (seen["you"], seen["robots"]) == (1, [True, False])
        await room.until(pair[1], lambda seen: seen["kind"] == "thanks")

    run(tmp_path, "[[tasks]]".join([head, first, second]), script)
    (tmp_path / "out").mkdir()
    told = tables_of(tmp_path, tmp_path / "out")
    alice, rob = numbers
    assert {(row["episode"], row["domain"], row["alice"], row["rob"])
            for row in told["sessions"]} == {
        (f"{alice}+{rob}-01", "movers", alice, rob),
        (f"{rob}-02", "movers", "ai", rob),
        (f"{rob}-03", "cleanup", rob, "ai"),
    }  # fmt: skip


def test_a_break_of_who_waits_is_no_break_of_who_joins(tmp_path: Path) -> None:
    async def script(room: Room) -> None:
        alice, rob = await room.come(), await room.come()
        for who in (alice, rob):
            await room.until(who, lambda seen: seen["kind"] == "pairing")
        code = (await room.say(alice, "host"))["code"]
        await room.say(alice, "pause")
        await room.say(rob, "pause")
        with pytest.raises(Refused, match="break"):
            await room.say(rob, "join", code=code)
        await room.say(rob, "resume")
        seen = await room.say(rob, "join", code=code)
        assert (seen["kind"], seen["paused"], seen["partner_rests"]) == ("session", False, True)
        assert room.see(alice)["paused"]

    more = "teammate = 'human'\npairing = 'code'\n"
    run(tmp_path, more + SETTINGS, script)


def test_nothing_is_noted_of_who_is_being_erased(tmp_path: Path) -> None:
    async def script(room: Room) -> None:
        who = await room.come()
        number = room.study._people[who].number
        await asyncio.gather(room.study.erase(number), room.study.note(who, "gone"))
        assert room.study._store.notes() == []
        # Whose page asks for something at that moment is told, and no more.
        await room.study.leave(who)

    run(tmp_path, SETTINGS, script)


def test_who_goes_on_without_a_partner_keeps_the_place_in_the_condition(tmp_path: Path) -> None:
    arms = "[[arms]]\nname = 'a'\n[[arms]]\nname = 'b'\n"

    async def script(room: Room) -> None:
        pair = await both_playing(room)
        about = room.study._people[pair[0]].about
        await room.say(pair[0], "withdraw")
        await room.pass_time(1)
        assert room.see(pair[1])["robots"] == [True, False]
        third = await room.come()
        assert room.study._people[third].about.arm != about.arm

    run(tmp_path, PAIRS.format(more="without_partner = 'ai'") + SETTINGS + arms, script)


# ---------------------------------------------------------------------- the researcher


def test_who_is_erased_leaves_a_whole_study(tmp_path: Path) -> None:
    numbers: list[int] = []

    async def script(room: Room) -> None:
        await both_playing(room)
        single = await room.come(ids={"PID": "person-three"})
        numbers.extend(row["number"] for row in room.study.overview())
        token = await room.study.enter(ids={"PID": "person-four"})
        fourth = room.study.participant_of(token)
        # one erases everything oneself, while the study runs
        room.open(fourth)
        await room.say(fourth, "pause")
        await room.study.handle(fourth, {"turn": "", "do": "erase"})
        assert room.study.participant_of(token) is None
        assert room.connections.pop(fourth).closed == 4410
        assert single == 3
        # nobody gets the number of somebody who was erased
        assert room.study.participant_of(await room.study.enter(ids={"PID": "five"})) == 5

    run(tmp_path, "ids = ['PID']\n" + PAIRS.format(more="") + SETTINGS, script)
    alice, rob, third = (f"{number:06d}" for number in numbers)
    with sole_server(tmp_path), pytest.raises(OSError, match="being served"):
        erase(tmp_path, third)
    with pytest.raises(ValueError, match="six digits"):
        erase(tmp_path, "12")
    assert erase(tmp_path, rob) == 1
    assert erase(tmp_path, third) == 0
    (tmp_path / "out").mkdir()
    told = tables_of(tmp_path, tmp_path / "out")
    assert {row["participant"] for row in told["participants"]} >= {alice}
    assert not {rob, third} & {row["participant"] for row in told["notes"]}
    assert told["sessions"] == []
    for file in tmp_path.glob("*.sqlite*"):
        content = file.read_bytes()
        assert b"person-three" not in content
        assert b"person-four" not in content
    # who is left can go on
    run(tmp_path, None, lambda room: room.pass_time(1))


def test_files_are_their_owners_alone_and_the_key_stays(tmp_path: Path) -> None:
    run(tmp_path, SETTINGS, lambda room: room.come())
    key = read_key(tmp_path)
    assert read_key(tmp_path) == key == key_of(tmp_path)
    for name in (DATABASE_FILE, IDENTITIES_FILE, "researcher.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600, name
    shown = CliRunner().invoke(app, ["collect", "key", str(tmp_path)])
    assert shown.stdout.strip() == key


def test_a_backup_of_a_running_study_is_a_study(tmp_path: Path) -> None:
    folder, copy, bare = tmp_path / "s", tmp_path / "copy", tmp_path / "bare"
    folder.mkdir()

    async def script(room: Room) -> None:
        who = await room.come(ids={"PID": "someone"})
        await room.until(who, lambda seen: seen["kind"] == "thanks")
        back_up(folder, copy)
        back_up(folder, bare, identities=False)

    run(folder, "ids = ['PID']\n" + SETTINGS, script)
    assert not (bare / IDENTITIES_FILE).exists()
    with pytest.raises(ValueError, match="not empty"):
        back_up(folder, copy)
    for one in (copy, bare):
        ((path, _),) = export_study(one, tmp_path / "d.csv")
        assert btil.read_demonstrations(path).num_episodes == 2
        store = Store(one, read_only=True)
        assert len(store.identities()) == (one is copy)
        store.close()
        run(one, None, lambda room: room.come())


def test_both_files_of_a_backup_are_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, copy = tmp_path / "s", tmp_path / "copy"
    folder.mkdir()
    run(folder, "ids = ['PID']\n" + SETTINGS, lambda room: room.come(ids={"PID": "first"}))
    running, make = Store(folder), tables._make_private

    def make_and_go_on(file: Path) -> None:
        running.write([tables.save_fact("x", "y"), tables.save_identity(2, "PID", file.name)])
        make(file)

    monkeypatch.setattr(tables, "_make_private", make_and_go_on)
    back_up(folder, copy)
    monkeypatch.undo()
    assert len(running.identities()) == 2
    running.close()
    store = Store(copy, read_only=True)
    assert [value for *_, value in store.identities()] == ["first"]
    assert store._connection.execute("SELECT * FROM study WHERE name = 'x'").fetchall() == []
    store.close()


def test_a_backup_has_all_that_the_study_is_served_from(tmp_path: Path) -> None:
    folder, copy = tmp_path / "s", tmp_path / "copy"
    texts = SETTINGS.replace('"consent.md"', '"texts/consent.markdown"')
    settings = texts.replace('map = "tiny"', 'map = "kitchen"\nteammate = "rob.nc"')
    folder.mkdir()
    write_study(folder, "languages = ['en', 'de']\n" + settings)
    named = {"texts/consent.markdown": "# Yes?", "texts/consent.de.markdown": "# Ja?"}
    named |= {"kitchen": "A 0 .\n R # G", "rob.nc": "learned", "images/map.png": "a picture"}
    # Whom others have played with, and what the researcher has written beside.
    named |= {"first.nc": "learned before", "notes.md": "of the first day"}
    beside = {"raw.csv": "exported", "images.bak/map.png": "old"}
    for name, text in {**named, **beside, "../outside.md": "another's"}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    read_key(folder)
    Store(folder, seed=1, create=True).close()
    back_up(folder, copy)
    copied = {str(file.relative_to(copy)) for file in copy.rglob("*") if file.is_file()}
    assert named.keys() | {"study.toml", DATABASE_FILE} <= copied
    assert not copied & {"raw.csv", "images.bak/map.png", "researcher.key"}
    for name, text in named.items():
        assert (copy / name).read_text() == text
    assert read_settings(copy / "study.toml") == read_settings(folder / "study.toml")


def test_a_folder_that_cannot_be_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def script(room: Room) -> None:
        who = await room.come()
        await room.until(who, lambda seen: seen["kind"] == "thanks")

    run(tmp_path, SETTINGS, script)
    connect = tables._connect

    def refused(folder: Path, mode: str) -> sqlite3.Connection:
        # What SQLite says of a log in a folder where it cannot make its index.
        if folder == tmp_path:
            raise sqlite3.OperationalError("unable to open database file")
        return connect(folder, mode)

    monkeypatch.setattr(tables, "_connect", refused)
    ((path, _),) = export_study(tmp_path, tmp_path / "d.csv")
    assert btil.read_demonstrations(path).num_episodes == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_reads_a_folder_that_only_its_owner_can_write() -> None:
    # A folder that everyone can reach, which pytest's own are not.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        run(folder, SETTINGS, lambda room: room.come())
        script = (
            "import os, pathlib, sys\n"
            "from btil.study.store import Store\n"
            "os.seteuid(65534)\n"
            "assert not os.access(sys.argv[1], os.W_OK, effective_ids=True)\n"
            "store = Store(pathlib.Path(sys.argv[1]), read_only=True)\n"
            "print(len(list(store.people())), len(store.identities()))\n"
        )
        # With a log beside it, as a server that runs or was killed has one; and without.
        held = Store(folder)
        held.write([tables.save_fact("x", "y"), tables.save_identity(1, "PID", "p")])
        for _ in range(2):
            for file in folder.glob("*.sqlite*"):
                file.chmod(0o644)
            told = subprocess.run(
                [sys.executable, "-c", script, name], capture_output=True, text=True, check=False
            )
            assert told.stdout == "1 1\n", told.stderr
            held.close()
        assert not list(folder.glob("*-wal"))


def test_one_participant_alone_is_exported(tmp_path: Path) -> None:
    async def script(room: Room) -> None:
        for _ in range(2):
            who = await room.come()
            await room.until(who, lambda seen: seen["kind"] == "thanks")

    run(tmp_path, SETTINGS, script)
    store = Store(tmp_path, read_only=True)
    number = f"{[person.number for person in store.people()][1]:06d}"
    store.close()
    (tmp_path / "out").mkdir()
    told = tables_of(tmp_path, tmp_path / "out", participant=number)
    for name in ("participants", "notes"):
        assert {row["participant"] for row in told[name]} == {number}
    assert {row["episode"].split("-")[0] for row in told["steps"]} == {number}
    demos = btil.read_demonstrations(tmp_path / "out" / "all.csv")
    assert {str(one).split("-")[0] for one in demos.episode_ids} == {number}
    with pytest.raises(ValueError, match="six digits"):
        next(export_study(tmp_path, tmp_path / "d.csv", participant="1"))


def test_numbers_and_options_stay_and_free_text_is_guarded(tmp_path: Path) -> None:
    write_study(tmp_path, "opening_survey = 'o.toml'\n" + SETTINGS)
    (tmp_path / "o.toml").write_text(
        """
title = "O"
[[questions]]
name = "cold"
text = "How cold?"
kind = "number"
[[questions]]
name = "mood"
text = "How was it?"
kind = "scale"
options = ["-3", "+3"]
[[questions]]
name = "free"
text = "What?"
"""
    )

    async def script(room: Room) -> None:
        who = await room.come()
        await room.say(who, "answer", answers={"cold": "-3", "mood": "+3", "free": "=1+1"})

    run(tmp_path, None, script)
    (tmp_path / "out").mkdir()
    answers = {row["question"]: row["answer"] for row in
               tables_of(tmp_path, tmp_path / "out")["answers"]}  # fmt: skip
    assert answers == {"cold": "-3", "mood": "+3", "free": "'=1+1"}


# ---------------------------------------------------------------------- texts


def test_all_languages_say_the_same() -> None:
    def marks(text: str) -> set[str]:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name}

    english = texts_in("en")
    for language in languages():
        texts = texts_in(language)
        assert texts.keys() == english.keys(), language
        for key, text in texts.items():
            assert text.strip(), (language, key)
            assert marks(text) == marks(english[key]), (language, key)


def test_every_text_that_is_asked_for_is_there() -> None:
    folder = Path(btil.__file__).parent / "study"
    english = texts_in("en")
    page = "".join(file.read_text() for file in (folder / "static").iterdir())
    for key in re.findall(r'say\("([\w.]+)"', page) + re.findall(
        r'data-(?:text|label)="(\w+)"', page
    ):
        assert f"page.{key}" in english, key
    python = "".join(file.read_text() for file in folder.glob("*.py"))
    sections = {key.split(".")[0] for key in english}
    for key in re.findall(rf'"((?:{"|".join(sections)})\.[a-z_]+)"', python):
        assert key in english or key.endswith(".js"), key
    for world in WORLDS.values():
        for lesson in world.lessons:
            assert lesson.text in english


def test_a_study_in_two_languages_counts_the_same_answers(tmp_path: Path) -> None:
    write_study(
        tmp_path,
        "languages = ['en', 'de']\nopening_survey = 'o.toml'\n"
        + SETTINGS.replace('title = "Tiny"', 'title = {en = "Tiny", de = "Klein"}'),
    )
    question = (
        "title = '{}'\n[[questions]]\nname = 'q'\ntext = '{}'\nkind = 'choice'\noptions = {}\n"
    )
    (tmp_path / "o.toml").write_text(question.format("O", "Well?", ["yes", "no"]))
    (tmp_path / "o.de.toml").write_text(question.format("O", "Gut?", ["ja", "nein"]))
    (tmp_path / "consent.de.md").write_text("# Bevor es losgeht")

    async def script(room: Room) -> None:
        who = await room.come(language="de")
        seen = room.see(who)
        assert (seen["language"], seen["study"]) == ("de", "Klein")
        assert seen["questions"][0]["text"] == "Gut?"
        with pytest.raises(Refused) as caught:
            await room.say(who, "answer", answers={"q": "yes"})
        assert "steht nicht zur Wahl" in caught.value.told("de")
        seen = await room.say(who, "answer", answers={"q": "nein"})
        assert seen["text"].startswith("Hier sind Sie Alice")
        assert room.study._store.answers() == [(1, "opening", "q", "no")]
        person = room.study._people[who]
        assert await room.study.answers_of(person.number) == [("opening", "q", "no")]
        assert await room.study.answers_of(person.number + 1) == []
        assert (room.study.language_of(who), room.study.language_of(who + 1)) == ("de", "en")
        english = room.study.settings.of("", "en").consent_version
        assert person.about.consent != english

    run(tmp_path, None, script)
    (tmp_path / "o.de.toml").write_text(question.format("O", "Gut?", ["ja", "nein", "naja"]))
    with pytest.raises(ValueError, match="numbers of options"):
        read_settings(tmp_path / "study.toml")


# ---------------------------------------------------------------------- rules


@pytest.mark.parametrize("domain", WORLDS)
def test_a_step_that_did_nothing_says_why_and_no_other_does(domain: str) -> None:
    task = rules_for(Stage("session", domain=domain, map="tiny"), "human").task
    world, said = WORLDS[domain], Counter()
    playing = np.flatnonzero(~task.is_final(np.arange(task.num_states)))
    for state in np.random.default_rng(0).choice(playing, 12, replace=False).tolist():
        for pair in np.ndindex(task.num_actions, task.num_actions):
            branches, probs = task.transition([state], [list(pair)])
            for after in {int(one) for one, p in zip(branches[0], probs[0], strict=True) if p > 0}:
                cells = task.situation([state, after]).cells
                held = task.held_items([state, after])
                for seat in play.SEATS:
                    why = world.why(task, state, pair, after, seat)
                    same = cells[0, seat] == cells[1, seat] and held[0, seat] == held[1, seat]
                    if pair[seat] == play.HOLD:
                        assert bool(why) == same
                    elif pair[seat] < 4 and same:
                        assert why
                    elif not same and why:
                        # carried on, but not the way that was pressed
                        assert why == "why.pull"
                    said[why] += 1
    assert said["why.item"] > 0
    assert said["why.wall"] > 0


@pytest.mark.parametrize(
    ("rob", "items", "actions", "after", "said"),
    [
        # Both reach for one bag, and rob has it; or alice.
        ("here", (0, 0), (play.HOLD, play.HOLD), (2, 0), ("why.taken", "")),
        ("here", (0, 0), (play.HOLD, play.HOLD), (1, 0), ("", "why.taken")),
        # What rob carries is not let go, or there is nothing.
        ("here", (2, 0), (play.HOLD, STAY), (2, 0), ("why.taken", "")),
        ("here", (1, 0), (play.HOLD, STAY), (1, 0), ("why.nothing", "")),
        ("here", (3, 0), (play.HOLD, play.HOLD), (3, 0), ("why.nothing", "why.nothing")),
        ("away", (2, 0), (play.HOLD, STAY), (2, 0), ("why.nothing", "")),
        ("away", (3, 0), (play.HOLD, STAY), (3, 0), ("why.nothing", "")),
    ],
)
def test_why_holding_did_nothing_in_cleanup(
    rob: str, items: Any, actions: Any, after: Any, said: tuple[str, str]
) -> None:
    """Alice stands where the first bag lies at first."""
    task = btil.domains.cleanup("tiny")
    here = task.grid.items[0]
    where = here if rob == "here" else task.grid.items[1]
    before, then = task.encode([[here, where, *items], [here, where, *after]]).tolist()
    found = tuple(WORLDS["cleanup"].why(task, before, actions, then, seat) for seat in play.SEATS)
    assert found == said


def test_every_task_has_a_tutorial_with_what_is_its_own(tmp_path: Path) -> None:
    write_study(tmp_path, TWO_TASKS.format(more="order = 'random'"))
    settings = read_settings(tmp_path / "study.toml")
    for order in settings.orders():
        stages = settings.stages("ai", np.random.default_rng(0), order)
        kinds = [(stage.kind, stage.domain) for stage in stages[:-1]]
        domains = [settings.blocks[k].domain for k in order]
        assert kinds == [(kind, d) for d in domains for kind in ("tutorial", "session")]
        taught = {lesson.text for stage in stages if stage.kind == "tutorial"
                  for lesson in lessons_of(stage)}  # fmt: skip
        assert "cleanup.blocked" in taught
        assert "movers.lift" in taught


# ---------------------------------------------------------------------- a learned teammate


@pytest.mark.parametrize("seat", [0, 1])
def test_a_learned_member_acts_by_its_rows_in_the_task_it_was_learned_in(
    tmp_path: Path, seat: int
) -> None:
    task = btil.domains.cleanup("tiny")
    own = ("alice_cell", "rob_cell")[seat]
    demos = task.simulate(2, seed=3, max_steps=6)
    model = btil.TeamModel(btil.DirichletCPT(1.0, (own,)), btil.DirichletCPT(1.0))
    few = demos.replace(latents=np.minimum(demos.latents, 1), num_latents=2, latent_names=None)
    files = {}
    for name, data in (("rob.nc", demos), ("few.nc", few)):
        bound = bind(model, data)
        generator = np.random.default_rng(seat)
        rows = {
            site: DirichletRows(generator.gamma(2.0, 4.0, table.shape) + 0.5)
            for site, table in bound.learned.items()
        }
        result = FitResult(rows, True, "made by hand", elbo=-1.0, elbo_trace=np.array([-1.0]))
        made = btil.TeamPosterior(bound, "mfvi", result, 0, np.dtype(float), 1.0)
        made.save(tmp_path / name)
        files[name] = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()[:12]
    member = learned("cleanup", "tiny", tmp_path / "rob.nc", files["rob.nc"], seat)
    agent = task.agents[seat]
    saved = btil.load_posterior(tmp_path / "rob.nc")
    for state in (task.start_state, 17):
        told = {own: task.decode_states([state])[:, seat]}
        for latent in range(task.num_latents):
            found = member.policy(np.array([state]), np.array([latent]), np.zeros(1, np.int64))
            np.testing.assert_allclose(found, saved.policy(agent, told)[:, latent])
    stage = Stage("session", domain="cleanup", map="tiny", max_steps=9, select_every=5, robot=seat)
    named = f"rob.nc#{files['rob.nc']}"
    rules = rules_for(stage, named, tmp_path)
    assert rules.people == (seat == 1, seat == 0)
    assert rules.members[seat] is member
    assert rules_for(stage._replace(teammate="human"), named, tmp_path).people == (True, True)
    for file, digest, says in (
        ("rob.nc", files["few.nc"], "not the posterior that participants began with"),
        ("few.nc", files["few.nc"], f"'{agent}' has 2 latents; cleanup has 4"),
    ):
        with pytest.raises(ValueError, match=says):
            learned("cleanup", "tiny", tmp_path / file, digest, seat)


def test_a_learned_member_plays(tmp_path: Path) -> None:
    task = btil.domains.cleanup("tiny")
    demos = task.simulate(4, seed=3, max_steps=20)
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.2, parents=("alice_cell", "rob_cell")),
        transition=btil.DirichletCPT(1.0),
    )
    posterior = btil.fit(model, demos, progress=False, max_iterations=3)
    posterior.save(tmp_path / "rob.nc")
    write_study(tmp_path, "teammate = 'rob.nc'\n" + SETTINGS)
    stages: list[Stage] = []

    async def script(room: Room) -> None:
        room.study.prepare()
        who = await room.come()
        await room.until(who, lambda seen: seen["kind"] == "thanks")
        stages.extend(room.study._people[who].stages)

    run(tmp_path, None, script)
    stage = next(stage for stage in stages if stage.kind == "session")
    assert re.fullmatch(r"rob\.nc#[0-9a-f]{12}", stage.teammate)
    member = rules_for(stage, "ai", tmp_path).members[1]
    # What acts is what was learned: its rows, in task states.
    rob = posterior.actors()["rob"]
    for state in (0, task.start_state):
        values = dict(zip(task.state_sizes, task.decode_states([state])[0], strict=True))
        told = {name: np.array([value]) for name, value in values.items()}
        for latent in range(task.num_latents):
            expected = rob.policy(told, np.array([latent]), np.array([0]))
            found = member.policy(np.array([state]), np.array([latent]), np.zeros(1, np.int64))
            np.testing.assert_allclose(found, expected)
    demos = btil.read_demonstrations(next(p for p, _ in export_study(tmp_path, tmp_path / "d.csv")))
    assert (demos.latents >= 0).all()
    # another file under the same name is not who participants began with
    (tmp_path / "rob.nc").write_bytes((tmp_path / "rob.nc").read_bytes() + b" ")
    learned.cache_clear()  # as when the study is served again
    with pytest.raises(ValueError, match="not the posterior"):
        rules_for(stage, "ai", tmp_path)
    for wrong in ("teammate = 'cat'\n", "teammate = 3\n"):
        write_study(tmp_path, wrong + SETTINGS)
        with pytest.raises(ValueError, match="allowed are ai, human"):
            read_settings(tmp_path / "study.toml")


# ---------------------------------------------------------------------- old recordings


def make_old(folder: Path) -> None:
    """Turn a study's file into one of the first version."""
    (folder / IDENTITIES_FILE).unlink()
    file = sqlite3.connect(folder / DATABASE_FILE, isolation_level=None)
    for table in ("members", "selector", "notes"):
        file.execute(f"DROP TABLE {table}")
    file.execute("ALTER TABLE participants DROP COLUMN about")
    file.execute("ALTER TABLE answers DROP COLUMN kind")
    for who, stages, journey in file.execute(
        "SELECT participant, stages, journey FROM participants"
    ).fetchall():
        old = [stage[:10] for stage in json.loads(stages)]
        kept = ("position", "lesson", "trial", "code", "guesses", "best")
        was = {key: json.loads(journey)[key] for key in kept}
        file.execute(
            "UPDATE participants SET stages = ?, journey = ? WHERE participant = ?",
            (json.dumps(old), json.dumps(was), who),
        )
    fields = play.Episode._fields[:11]
    for game, position, episode in file.execute("SELECT * FROM episodes").fetchall():
        was = {key: json.loads(episode)[key] for key in fields}
        file.execute(
            "UPDATE episodes SET episode = ? WHERE game = ? AND position = ?",
            (json.dumps(was), game, position),
        )
    file.execute("PRAGMA user_version = 1")
    file.close()


def test_recordings_of_the_first_version_are_read_and_go_on(tmp_path: Path) -> None:
    async def first(room: Room) -> None:
        done = await room.come()
        await room.until(done, lambda seen: seen["kind"] == "thanks")
        going_on = await room.come()
        await room.until(going_on, lambda seen: seen.get("steps", 0) >= 2)

    run(tmp_path, SETTINGS, first)
    ((new, _),) = export_study(tmp_path, tmp_path / "new.csv")
    make_old(tmp_path)
    ((old, _),) = export_study(tmp_path, tmp_path / "old.csv")
    assert old.read_text() == new.read_text()
    (tmp_path / "out").mkdir()
    told = tables_of(tmp_path, tmp_path / "out")
    assert len(told["participants"]) == 2
    assert {row["alice_answers"] for row in told["steps"]} == {""}
    version = sqlite3.connect(tmp_path / DATABASE_FILE).execute("PRAGMA user_version").fetchone()
    assert version == (1,)  # reading changes nothing

    async def second(room: Room) -> None:
        room.study.prepare()
        room.open(2)
        await room.until(2, lambda seen: seen["kind"] == "thanks")
        third = await room.come()
        assert third == 3

    run(tmp_path, None, second)
    told = tables_of(tmp_path, tmp_path / "out")
    assert len(told["participants"]) == 3
    assert len({row["episode"] for row in told["sessions"]}) == 4


def test_a_person_of_the_first_version_has_no_condition() -> None:
    person = Person(1, 2, None, 1, 0, "ai", (), tables.Journey())
    assert person.about == tables.About()


def test_a_tutorial_of_the_first_version_begins_anew(tmp_path: Path) -> None:
    async def first(room: Room) -> None:
        who = await room.come()
        for _ in range(4):
            await room.act(who)
        assert room.see(who)["lesson"]["at"] == 5

    run(tmp_path, SETTINGS, first)
    make_old(tmp_path)

    async def second(room: Room) -> None:
        assert room.see(1)["lesson"]["at"] == 1
        room.open(1)
        await room.until(1, lambda seen: seen["kind"] == "thanks")

    run(tmp_path, None, second)
