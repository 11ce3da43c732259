"""The study page's rules of play, settings, file and export, without a server."""

import csv
import hashlib
import json
import shutil
import sqlite3
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import btil
from btil.domains.gridworld.grid import ACTIONS, HOLD, ORIGIN, STAY
from btil.study import episode as play
from btil.study import store as tables
from btil.study import views
from btil.study.episode import Episode, Refused, Rules
from btil.study.export import export_study
from btil.study.sessions import (
    Journey,
    Message,
    Response,
    Standing,
    best_so_far,
    ended,
    enter_stage,
    out_of_time,
    read_message,
    respond,
    without_partner,
)
from btil.study.settings import (
    Block,
    Limits,
    Question,
    Settings,
    Stage,
    Survey,
    checked_answers,
    read_settings,
    read_survey,
    write_defaults,
)
from btil.study.store import DATABASE_FILE, About, Note, Person, Store, hashed
from btil.study.teammate import rules_for
from btil.study.texts import say, texts_in
from btil.study.tutorial import lesson_text, lessons_of
from btil.study.views import view

SEED = 7
DOMAINS = ("movers", "cleanup")


def session_stage(domain: str, practice: bool = False, max_steps: int = 40, **changes) -> Stage:
    return Stage(
        "session", domain=domain, map="tiny", practice=practice, number=1, of=1, temperature=0.3,
        select_every=5, max_steps=max_steps,
    )._replace(**changes)  # fmt: skip


def rules(domain: str, teammate: str = "ai", **changes) -> Rules:
    return rules_for(session_stage(domain, **changes), teammate)


def chance(generator: np.random.Generator) -> np.ndarray:
    return generator.random(play.NUM_CHANCES)


def begun(rule: Rules, generator: np.random.Generator) -> Episode:
    episode = play.begin(rule, chance(generator))
    for seat, person in enumerate(rule.people):
        if person:
            episode = play.start(episode, seat, 0.0)
    return episode


def play_out(rule: Rules, seed: int) -> tuple[list[Episode], list[play.Row], list[str]]:
    """Random presses of everyone who is a person: episodes after every event, rows, events."""
    generator = np.random.default_rng(seed)
    episodes, rows, events = [begun(rule, generator)], [], ["start"]
    seats = [seat for seat, person in enumerate(rule.people) if person]
    while not episodes[-1].over:
        now = episodes[-1]
        seat = next((s for s in seats if now.selecting[s]), None)
        if seat is not None:
            options = play.options(rule.task, now.state, seat)
            latent = options[generator.integers(len(options))].latent
            episodes.append(play.choose(rule, now, seat, latent))
            events.append("choose")
            continue
        seat = next(s for s in seats if now.pending[s] == play.UNKNOWN)
        if rule.asks[seat] and generator.random() < 0.05:
            episodes.append(play.ask(now, seat, now.last))
            events.append("ask")
            continue
        legal = np.flatnonzero(play.legal_actions(rule, now, seat))
        action = HOLD if HOLD in legal and generator.random() < 0.7 else generator.choice(legal)
        after, row = play.press(rule, now, seat, int(action), chance(generator), now.last + 1.0)
        episodes.append(after)
        events.append("press")
        if row is not None:
            rows.append(row)
    return episodes, rows, events


# ---------------------------------------------------------------------- play


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("teammate", ["ai", "human"])
def test_steps_follow_the_tasks_dynamics_and_minds(domain: str, teammate: str) -> None:
    rule = rules(domain, teammate)
    episodes, rows, _ = play_out(rule, SEED)
    task = rule.task
    assert [row.step for row in rows] == list(range(len(rows)))
    states = [row.state for row in rows] + [episodes[-1].state]
    for row, after in zip(rows, states[1:], strict=True):
        branches, probs = task.transition([row.state], [row.actions])
        assert probs[0][branches[0] == after].sum() > 0
    assert states[0] == task.start_state
    assert not task.is_final(states[:-1]).any()
    assert task.is_final([states[-1]])[0] or len(rows) == rule.max_steps
    if teammate == "ai":
        minds = [row.latents[1] for row in rows]
        for t in range(len(rows) - 1):
            table = task.latent_transition("rob", [states[t]], [states[t + 1]])
            assert table[0, minds[t], minds[t + 1]] > 0
            policy = rule.members[1].policy(np.array([states[t]]), np.array([minds[t]]), None)
            assert policy[0, rows[t].actions[1]] > 0
    assert all(row.seconds == 1.0 for row in rows)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("teammate", ["ai", "human"])
def test_selector_opens_by_the_four_rules_and_no_others(domain: str, teammate: str) -> None:
    rule = rules(domain, teammate)
    for seed in range(2):
        episodes, _, events = play_out(rule, seed)
        for seat in play.SEATS:
            if not rule.asks[seat]:
                assert not any(episode.selecting[seat] for episode in episodes)
                continue
            since = 0  # steps since the last answer, counted anew here
            assert episodes[0].selecting[seat]
            for before, now, event in zip(episodes, episodes[1:], events[1:], strict=False):
                if now.step == before.step:
                    opened = now.selecting[seat] and not before.selecting[seat]
                    assert not opened or event == "ask"
                    if before.selecting[seat] and not now.selecting[seat]:
                        assert event == "choose"
                        since = 0
                    continue
                since += 1
                items = rule.task.situation([before.state, now.state]).items
                expected = (since >= 5 or (items[0] != items[1]).any()) and not now.over
                assert now.selecting[seat] == expected


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("teammate", ["ai", "human"])
def test_every_step_carries_the_destination_last_chosen(domain: str, teammate: str) -> None:
    rule = rules(domain, teammate)
    episodes, rows, events = play_out(rule, SEED)
    latest: list[int] = [-1, -1]
    found, number = [], 0
    for before, now, event in zip(episodes, episodes[1:], events[1:], strict=False):
        if event == "choose":
            seat = next(s for s in play.SEATS if before.selecting[s] and not now.selecting[s])
            latest[seat] = now.latents[seat]
        elif now.step > before.step:
            found.append(tuple(latest))
            number += 1
    for seat in play.SEATS:
        if rule.asks[seat]:
            assert [row.latents[seat] for row in rows] == [pair[seat] for pair in found]
            assert min(row.latents[seat] for row in rows) >= 0
    answers = sum(sum(row.answered) for row in rows)
    assert 0 < answers <= events.count("choose")


@pytest.mark.parametrize("domain", DOMAINS)
def test_destinations_are_what_the_seat_could_want(domain: str) -> None:
    task = rules(domain).task
    for state in range(task.num_states):
        held = task.held_items([state])[0]
        items = task.situation([state]).items[0]
        cells = task.situation([state]).cells[0]
        for seat in play.SEATS:
            found = dict(play.options(task, state, seat))
            if held[seat] >= 0:
                origin = task.grid.items[held[seat]]
                assert found == {task.return_item: origin, task.take_to_goal: task.grid.goal}
            else:
                assert found == {
                    k: task.grid.items[k] if status == ORIGIN else cells[1 - seat]
                    for k, status in enumerate(items) if status != task.on_goal
                }  # fmt: skip


def test_hold_works_at_the_chosen_destination_alone() -> None:
    rule = rules("cleanup")
    generator = np.random.default_rng(SEED)
    episode = begun(rule, generator)
    # alice starts beside item 0; item 1 is elsewhere
    item_0 = rule.task.situation([rule.task.start_state]).cells[0, 0]
    assert item_0 != rule.task.grid.items[0]
    for chosen, expected in ((1, False), (0, True)):
        there = play.choose(rule, episode, 0, chosen)
        state = int(
            rule.task.states(
                np.array([[rule.task.grid.items[0], rule.task.grid.goal]]), np.array([[0, 0]])
            )[0]
        )
        there = there._replace(state=state)
        assert play.legal_actions(rule, there, 0)[HOLD] is expected
        if not expected:
            with pytest.raises(Refused, match="circled in red"):
                play.press(rule, there, 0, HOLD, chance(generator), 1.0)
        else:
            after, _ = play.press(rule, there, 0, HOLD, chance(generator), 1.0)
            assert rule.task.held_items([after.state])[0, 0] == 0
            assert after.selecting == (True, False)


def test_ai_acts_by_its_policy_and_its_first_mind_by_the_initial_distribution() -> None:
    rule = rules("movers")
    generator = np.random.default_rng(SEED)
    number = 400
    first = Counter(play.begin(rule, chance(generator)).latents[1] for _ in range(number))
    expected = rule.task.initial_latent_probs("rob", [rule.task.start_state])[0]
    shares = np.array([first[k] / number for k in range(rule.task.num_latents)])
    error = np.sqrt(expected * (1 - expected) / number) + 1e-12
    assert (np.abs(shares - expected) < 4.5 * error).all()
    episode = play.choose(rule, begun(rule, generator), 0, 0)._replace(latents=(0, 1))
    actions = Counter(
        play.press(rule, episode, 0, STAY, chance(generator), 1.0)[1].actions[1]
        for _ in range(number)
    )
    row = rule.members[1].policy(np.array([episode.state]), np.array([1]), None)[0]
    shares = np.array([actions[k] / number for k in range(len(ACTIONS))])
    error = np.sqrt(row * (1 - row) / number) + 1e-12
    assert (np.abs(shares - row) < 4.5 * error).all()


def test_ai_acts_by_the_policy_of_its_seat_and_of_the_temperature_that_is_set() -> None:
    for robot, temperature in ((1, 0.3), (0, 0.7)):
        rule = rules("movers", robot=robot, temperature=temperature)
        task, member = rule.task, rule.members[robot]
        assert member is not None
        assert rule.people == (robot == 1, robot == 0)
        assert rule.asks == rule.people
        states = np.arange(0, task.num_states, 5)
        latents = states % task.num_latents
        policies, agent = task.policies(temperature), task.agents[robot]
        np.testing.assert_array_equal(
            member.policy(states, latents, None), policies[agent][states, latents]
        )
        other = policies[task.agents[1 - robot]]
        assert (policies[agent][states, latents] != other[states, latents]).any()
        np.testing.assert_array_equal(
            member.initial(states, None), task.initial_latent_probs(agent, states)
        )


def test_what_cannot_be_done_is_refused() -> None:
    rule = rules("movers")
    generator = np.random.default_rng(SEED)
    new = play.begin(rule, chance(generator))
    with pytest.raises(Refused, match="Start"):
        play.press(rule, new, 0, STAY, chance(generator), 0.0)
    episode = play.start(new, 0, 0.0)
    with pytest.raises(Refused, match="already"):
        play.start(episode, 0, 0.0)
    with pytest.raises(Refused, match="destination first"):
        play.press(rule, episode, 0, STAY, chance(generator), 0.0)
    with pytest.raises(Refused, match="circled"):
        play.choose(rule, episode, 0, rule.task.take_to_goal)
    chosen = play.choose(rule, episode, 0, 0)
    with pytest.raises(Refused, match="not asked"):
        play.choose(rule, chosen, 0, 0)
    over = chosen._replace(over=True)
    with pytest.raises(Refused, match="over"):
        play.press(rule, over, 0, STAY, chance(generator), 0.0)
    two = rules("movers", "human")
    waiting = play.start(play.begin(two, chance(generator)), 0, 0.0)
    with pytest.raises(Refused, match="Wait"):
        play.choose(two, waiting, 0, 0)
    both = play.start(waiting, 1, 0.0)
    for seat in play.SEATS:
        both = play.choose(two, both, seat, 0)
    pending, row = play.press(two, both, 0, STAY, chance(generator), 1.0)
    assert row is None
    assert pending.step == 0
    for again in (lambda: play.press(two, pending, 0, STAY, chance(generator), 1.0),
                  lambda: play.ask(pending, 0, 0.0)):  # fmt: skip
        with pytest.raises(Refused, match="Wait"):
            again()
    done, row = play.press(two, pending, 1, STAY, chance(generator), 2.0)
    assert (done.step, row.actions, row.seconds) == (1, (STAY, STAY), 2.0)


@pytest.mark.parametrize("teammate", ["ai", "human"])
def test_every_event_is_told_with_its_reason_and_its_time(teammate: str) -> None:
    rule = rules("cleanup", teammate)
    asked = 0
    for seed in range(2):
        episodes, rows, events = play_out(rule, seed)
        assert episodes[0].reasons == ("start", "start")
        assert (episodes[0].begun, episodes[0].opened) == (0.0, (0.0, 0.0))
        taken = iter(rows)
        for before, now, event in zip(episodes, episodes[1:], events[1:], strict=False):
            if now.step == before.step:  # one person did something: it alone is another
                (seat,) = (s for s in play.SEATS if now.events[s] != before.events[s])
                assert now.events[seat] == before.events[seat] + 1
                same = now._replace(events=before.events)
                if event == "ask":
                    asked += 1
                    assert now.reasons[seat] == "asked"
                    assert now.opened[seat] == before.last
                    assert now.reasons[1 - seat] == before.reasons[1 - seat]
                    same = same._replace(
                        reasons=before.reasons, opened=before.opened, selecting=before.selecting
                    )
                elif event == "choose":
                    assert (now.since[seat], now.answered[seat]) == (0, True)
                    assert now.since[1 - seat] == before.since[1 - seat]
                    same = same._replace(
                        since=before.since, answered=before.answered, latents=before.latents,
                        selecting=before.selecting,
                    )  # fmt: skip
                else:
                    same = same._replace(pending=before.pending)
                assert same == before
                continue
            row = next(taken)
            assert (now.last, now.opened) == (before.last + 1, (before.last + 1,) * 2)
            assert now.before == (before.state, *row.actions)
            assert (now.events, now.answered) == ((0, 0), (False, False))
            assert now.pending == (play.UNKNOWN, play.UNKNOWN)
            assert row.answered == before.answered
            assert row.latents == before.latents
            assert now.since == tuple(steps + 1 for steps in before.since)
            items = rule.task.situation([before.state, now.state]).items
            assert now.reasons == (("item" if (items[0] != items[1]).any() else "steps"),) * 2
            finished = bool(rule.task.is_final([now.state])[0])
            assert now.over == (finished or now.step == rule.max_steps)
            assert now.ended == ("finished" if finished else "steps" if now.over else "")
    assert asked


def test_answers_breaks_and_cuts_of_an_episode() -> None:
    rule, generator = rules("movers", "human"), np.random.default_rng(SEED)
    episode = begun(rule, generator)._replace(
        step=7, last=10.0, opened=(12.0, 18.0), begun=5.0, reasons=("item", "asked"),
        events=(2, 5), pending=(3, play.UNKNOWN), selecting=(False, True),
    )  # fmt: skip
    answer = play.answer_of(episode, 1, 2, 20.5)
    assert answer == play.Answer(7, 1, 5, "asked", 2, 2.5)
    assert play.answer_of(episode, 0, 1, 11.0) == play.Answer(7, 0, 2, "item", 1, 0.0)
    # A break of four seconds: nothing is later than now for it.
    rested = play.rest(episode, 4.0, 20.0)
    assert (rested.last, rested.opened, rested.begun) == (14.0, (16.0, 20.0), 9.0)
    assert rested == episode._replace(last=14.0, opened=(16.0, 20.0), begun=9.0)
    assert play.rest(episode, 4.0, 17.0).opened == (16.0, 18.0)
    assert play.cut(episode, play.PARTNER_LEFT) == episode._replace(
        over=True, ended="partner", selecting=(False, False), events=(3, 6),
        pending=(play.UNKNOWN, play.UNKNOWN),
    )  # fmt: skip


def test_a_map_is_told_cell_by_cell() -> None:
    for domain, held in (("movers", 1), ("cleanup", 2)):  # of cleanup: held by rob
        task = rules(domain).task
        grid = task.grid
        alice, rob = (0, 0) if domain == "movers" else (0, 3)
        state = int(task.states(np.array([[alice, rob]]), np.array([[held, task.on_goal]]))[0])
        told = views.board(task, state)
        places = grid.cells.tolist()
        assert (told["width"], told["height"]) == (grid.width, grid.height)
        assert told["walls"] == [list(wall) for wall in grid.walls]
        assert told["goal"] == places[grid.goal]
        assert told["agents"] == [places[alice], places[rob]]
        first, second = told["items"]
        assert first == {
            "number": 1, "at": places[rob], "origin": places[grid.items[0]], "where": "held",
            "holders": [0, 1] if domain == "movers" else [1],
        }  # fmt: skip
        assert (second["number"], second["where"], second["holders"]) == (2, "goal", [])
        assert second["at"] == places[grid.goal]
        lying = views.board(task, task.start_state)["items"][1]
        assert (lying["where"], lying["at"]) == ("origin", lying["origin"])
        assert lying["origin"] == places[grid.items[1]]


def test_a_clock_that_is_set_back_gives_no_negative_seconds() -> None:
    rule, generator = rules("movers"), np.random.default_rng(SEED)
    chosen = play.choose(rule, begun(rule, generator)._replace(last=9.0), 0, 0)
    for now, seconds in ((8.0, 0.0), (9.5, 0.5)):
        after, row = play.press(rule, chosen, 0, STAY, chance(generator), now)
        assert (row.seconds, after.last) == (seconds, now)


def test_practice_asks_for_nothing_and_labels_nothing() -> None:
    rule = rules("movers", practice=True)
    _, rows, events = play_out(rule, SEED)
    assert set(events) == {"start", "press"}
    assert {row.latents[0] for row in rows} == {-1}
    assert min(row.latents[1] for row in rows) >= 0


def test_episode_survives_json() -> None:
    episodes, _, _ = play_out(rules("cleanup"), SEED)
    for episode in episodes:
        assert Episode.from_json(json.loads(json.dumps(episode.as_json()))) == episode


# ---------------------------------------------------------------------- the way through


class Walker:
    """One participant and a file-less study."""

    def __init__(self, settings: Settings, teammate: str = "ai") -> None:
        self.settings, self.teammate = settings, teammate
        self.generator = np.random.default_rng(SEED)
        self.stages = settings.stages(teammate, self.generator)
        self.journey, self.episodes, self.rows, self.answers = Journey(), {}, [], []
        self.clock = 0.0

    @property
    def stage(self) -> Stage:
        return self.stages[self.journey.position]

    @property
    def rules(self) -> Rules | None:
        playing = self.stage.kind in ("tutorial", "session")
        return rules_for(self.stage, self.teammate) if playing else None

    @property
    def episode(self) -> Episode | None:
        if self.stage.kind != "session":
            return None
        new = play.begin(self.rules, chance(np.random.default_rng(self.journey.position)))
        return self.episodes.setdefault(self.journey.position, new)

    @property
    def standing(self) -> Standing:
        surveys = self.settings.surveys
        return Standing(self.journey, self.stages, surveys, self.rules, self.episode, 0)

    def view(self) -> dict:
        return view(self.standing)

    def say(self, do: str, at: str | None = None, **fields) -> None:
        now = self.standing.turn if at is None else at
        message = read_message({"turn": now, "do": do, **fields})
        self.clock += 1.0
        stage, position = self.stage, self.journey.position
        response = respond(self.standing, message, chance(self.generator), self.clock)
        if response.row is not None:
            self.rows.append((position, response.row))
        if response.answers is not None:
            self.answers.append((stage.name, response.answers))
        if response.episode is not None:
            self.episodes[position] = response.episode
        self.journey = response.journey
        self.journey = enter_stage(self.journey, self.stages, self.rules)

    def through_tutorial(self) -> None:
        lessons = lessons_of(self.stage)
        for number, lesson in enumerate(lessons, 1):
            while self.journey.lesson < number:
                assert self.view()["lesson"] == {"at": number, "of": len(lessons)}
                self.do_lesson(lesson)
        over = self.view()
        assert (over["phase"], over["lesson"]["at"]) == ("over", len(lessons))
        self.say("next")

    def do_lesson(self, lesson) -> None:
        now = self.view()
        if lesson.wants == "ask":
            self.say("ask")
        elif lesson.wants == "choose item":
            self.say("choose", value=0)
        elif lesson.wants == "choose goal":
            self.say("choose", value=self.rules.task.take_to_goal)
        elif lesson.wants == "go":
            (x, y), (at_x, at_y) = now["destination"]["at"], now["board"]["agents"][0]
            # Around the bag that lies in the way of the flag.
            around = now["world"] == "cleanup" and (at_x, at_y) in [(0, 0), (0, 1), (1, 1)]
            if around and (x, y) == (3, 0):
                self.say("press", value=1 if at_y == 0 else 3)
            else:
                self.say("press", value=2 if at_x > x else 3 if at_x < x else 0 if at_y > y else 1)
        else:
            self.say("press", value=lesson.actions[0])

    def through_session(self) -> None:
        self.say("start")
        while (now := self.view())["phase"] != "over":
            if now["phase"] == "selecting":
                options = now["options"]
                self.say("choose", value=options[self.generator.integers(len(options))]["latent"])
            else:
                legal = np.flatnonzero(now["legal"])
                self.say("press", value=int(self.generator.choice(legal)))
        self.say("next")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A study on the tiny map: one practice and one test session of each task."""
    folder = tmp_path_factory.mktemp("small")
    write_defaults(folder)
    (folder / "study.toml").write_text(
        """
title = "Small"
consent = "consent.md"
thanks = "thanks.md"
opening_survey = "opening_survey.toml"
closing_survey = "closing_survey.toml"
max_steps = 25
[[tasks]]
domain = "movers"
map = "tiny"
sessions = 2
practice = 1
[[tasks]]
domain = "cleanup"
map = "tiny"
sessions = 2
practice = 1
"""
    )
    return read_settings(folder / "study.toml")


def test_the_fewest_steps_of_a_finished_session_are_the_best(small: Settings) -> None:
    walker = Walker(small)
    walker.journey = walker.journey._replace(position=3, best={"movers": 12, "cleanup": 5})
    done = int(
        np.flatnonzero(walker.rules.task.is_final(np.arange(walker.rules.task.num_states)))[0]
    )
    for state, step, best in ((done, 13, 12), (done, 9, 9), (walker.rules.task.start_state, 9, 12)):
        walker.episodes[3] = begun(walker.rules, np.random.default_rng(0))._replace(
            state=state, step=step
        )
        assert best_so_far(walker.standing) == {"movers": best, "cleanup": 5}


@pytest.mark.parametrize("first", DOMAINS)
def test_a_whole_way_through_the_study(small: Settings, first: str) -> None:
    blocks = sorted(small.blocks, key=lambda block: block.domain != first)
    walker = Walker(small._replace(blocks=tuple(blocks)))
    assert [stage.kind for stage in walker.stages] == [
        "survey", *["tutorial", "session", "session"] * 2, "survey", "thanks",
    ]  # fmt: skip
    with pytest.raises(Refused, match="video games"):
        walker.say("answer", answers={})
    walker.say("answer", answers={"games": "never", "age": " 33 ", "gender": ""})
    assert walker.answers == [("opening", {"age": "33", "games": "never"})]
    with pytest.raises(Refused, match="Finish"):
        walker.say("next")
    walker.through_tutorial()
    for task in range(2):
        if task == 1:
            assert walker.stage.name == "rest"
            walker.through_tutorial()
        for _ in range(2):
            assert walker.view()["phase"] == "intro"
            walker.through_session()
    walker.say(
        "answer", answers={"fluent": "agree", "understood": "disagree", "comments": "<b>hm</b>"}
    )
    assert walker.view()["kind"] == "thanks"
    for position, stage in enumerate(walker.stages):
        steps = [row for at, row in walker.rows if at == position]
        assert [row.step for row in steps] == list(range(len(steps)))
        assert bool(steps) == (stage.kind == "session")
        assert {row.latents[0] >= 0 for row in steps} <= {not stage.practice}
    finished = [
        (walker.stages[k].domain, episode.step)
        for k, episode in walker.episodes.items()
        if play.is_finished(rules_for(walker.stages[k], "ai"), episode)
    ]
    best = {domain: min(n for d, n in finished if d == domain) for domain, _ in finished}
    assert dict(walker.journey.best) == best


def test_whatever_is_asked_for_is_done_by_the_rules_or_refused(small: Settings) -> None:
    generator = np.random.default_rng(SEED)
    walker = Walker(small)
    done, refused = Counter(), Counter()
    for _ in range(700):
        do = str(generator.choice(["start", "press", "choose", "ask", "answer", "next"]))
        fields = {"value": int(generator.integers(8))} if do in ("press", "choose") else {}
        if do == "answer":
            fields["answers"] = {"games": "never"} if generator.random() < 0.5 else {"x": 1}
        before = (walker.journey, dict(walker.episodes), len(walker.rows))
        try:
            walker.say(do, **fields)
            done[do] += 1
        except Refused:
            refused[do] += 1
            assert (walker.journey, len(walker.rows)) == (before[0], before[2])
            assert all(walker.episodes[k] == episode for k, episode in before[1].items())
        if walker.stage.kind == "tutorial":
            walker.through_tutorial()
        if walker.stage.kind == "thanks":
            break
    assert min(done[do] for do in ("start", "press", "choose", "ask", "answer", "next")) > 0
    assert len(refused) == 6
    for position in {position for position, _ in walker.rows}:
        steps = [row.step for at, row in walker.rows if at == position]
        assert steps == list(range(walker.episodes[position].step))


def test_who_ends_early_or_is_left_or_out_of_time_goes_on_where_that_leads() -> None:
    kinds = ("survey", "tutorial", "pairing", "session", "session", "survey", "thanks")
    stages = tuple(Stage(kind, domain="movers") for kind in kinds)
    trial = play.begin(rules("movers"), np.zeros(5))
    journey = Journey(
        position=3, lesson=2, trial=trial, code="ABC", guesses=4, best={"movers": 9}, reached=7.0,
        wrong=2, paused=5.0, skipped=True,
    )  # fmt: skip
    left = journey._replace(trial=None, lesson=0, code="", guesses=0, paused=0.0, skipped=False)
    assert ended(journey, stages, "idle") == left._replace(position=6, outcome="idle")
    assert without_partner(journey, stages, "wait") == left._replace(position=5, outcome="wait")
    assert out_of_time(journey) == left._replace(position=4, skipped=True)


def test_breaks_and_attention_checks_of_a_participant() -> None:
    checks = (
        Question("a", "A?", "choice", options=("x", "y"), correct="x"),
        Question("b", "B?", "choice", False, ("x", "y"), correct="y"),
        Question("c", "C?", required=False),
    )  # fmt: skip
    stages = (
        Stage("survey", "opening", most_wrong=2), Stage("survey", "closing", most_wrong=2),
        Stage("thanks"),
    )  # fmt: skip
    surveys = dict.fromkeys(("opening", "closing"), Survey("S", checks))

    def said(journey: Journey, do: str, now: float = 100.0, **more: object) -> Response:
        standing = Standing(journey, stages, surveys, None, None, 0)
        return respond(standing, Message(standing.turn, do, **more), np.zeros(5), now)

    right = said(Journey(), "answer", answers={"a": "x", "b": "y"})
    assert (right.journey, right.notes) == (Journey(position=1), ())
    assert right.answers == {"a": "x", "b": "y"}
    # An answer left out is wrong, too; two in all are allowed, a third ends it.
    wrong = said(Journey(), "answer", answers={"a": "y"})
    notes = (("attention", "opening: a"), ("attention", "opening: b"))
    assert (wrong.journey, wrong.notes) == (Journey(position=1, wrong=2), notes)
    third = said(wrong.journey, "answer", answers={"a": "x"})
    assert third.journey == Journey(position=2, wrong=3, outcome="attention")
    assert third.notes == (("attention", "closing: b"), ("ended", "attention"))
    assert third.answers == {"a": "x"}
    pause = said(Journey(reached=50.0), "pause", 90.0)
    assert pause.journey == Journey(reached=50.0, paused=90.0)
    back = said(pause.journey, "resume", 97.25)
    assert back.journey == Journey(reached=57.25)
    assert (pause.notes, back.notes) == ((("pause", ""),), (("resume", "7.2"),))
    with pytest.raises(Refused):
        said(pause.journey, "answer", answers={"a": "x"})
    for journey, do in ((pause.journey, "pause"), (Journey(), "resume"),
                        (Journey(position=2), "withdraw")):  # fmt: skip
        with pytest.raises(Refused):
            said(journey, do)
    for do in ("withdraw", "erase"):
        gone = said(Journey(position=1, paused=3.0), do)
        assert (gone.journey, gone.notes) == (
            Journey(position=2, outcome="withdrew"), (("ended", "withdrew"),)
        )  # fmt: skip


def test_a_session_rests_as_long_as_nobody_can_play() -> None:
    """Of two breaks at once the time that both took is told by the one that ends last."""
    rule = rules("movers", "human")
    episode = begun(rule, np.random.default_rng(0))._replace(last=10.0, begun=5.0)
    stages = (session_stage("movers", teammate="human"), Stage("thanks"))
    for partner, until in ((0.0, 60.0), (50.0, 50.0), (70.0, 60.0)):
        standing = Standing(
            Journey(paused=40.0, reached=1.0), stages, {}, rule, episode, 0,
            partner_paused=partner,
        )  # fmt: skip
        done = respond(standing, Message("", "resume"), np.zeros(5), 60.0)
        assert done.journey == Journey(reached=21.0)
        assert done.episode == play.rest(episode, until - 40.0, 60.0)


def test_lessons_are_said_to_those_who_play_with_a_person_as_to_them() -> None:
    first = Stage("tutorial", domain="cleanup")
    rest = Stage("tutorial", "rest", domain="cleanup")
    texts = texts_in("en")
    assert lesson_text(first, 0, "en") == texts["lesson.right"]
    assert lesson_text(first, 0, "en", with_person=True) == texts["lesson.right_people"]
    # Where nothing is said to them in particular, it is the same.
    assert lesson_text(first, 1, "en", True) == lesson_text(first, 1, "en")
    number = len(lessons_of(first))
    assert lesson_text(first, number, "en") == texts["lesson.done"] != lesson_text(first, 1, "en")
    # Who has learned the keys in another task is told first that this is another one.
    known = number - len(lessons_of(rest))
    assert (
        lesson_text(rest, 0, "en") == f"{texts['cleanup.intro']} {lesson_text(first, known, 'en')}"
    )
    assert lesson_text(rest, 1, "en") == lesson_text(first, known + 1, "en")


def test_what_is_read_before_a_session_is_about_who_plays_and_what_is_asked() -> None:
    def read(teammate: str, seat: int, outcome: str = "", **changes: object) -> dict[str, Any]:
        stage = session_stage("cleanup", teammate=teammate, number=2, of=3, **changes)
        rule = rules_for(stage, "")
        episode = play.begin(rule, np.zeros(5))
        journey = Journey(outcome=outcome)
        return view(Standing(journey, (stage, Stage("thanks")), {}, rule, episode, seat))

    def lines(who: str, other: str, *more: str) -> list[str]:
        return [
            say("en", "cleanup.goal", other=other), say("en", "cleanup.blocks"),
            say("en", f"rules.{who}", other=other), *more,
        ]  # fmt: skip

    asked = [say("en", f"rules.{one}") for one in ("test_asked", "test_hold", "test_change")]
    seen = read("ai", 0, told=" One. \n\nTwo.")
    assert seen["instructions"] == lines("robot", "Rob", "One.", "Two.", *asked)
    assert seen["progress"] == {
        "at": 1, "of": 2, "label": "Cleanup, session 2 of 3 (test)"
    }  # fmt: skip
    assert (seen["robots"], seen["you"], seen["can_ask"]) == ([False, True], 0, True)
    seen = read("human", 1)
    assert seen["instructions"] == lines("person", "Alice", *asked)
    assert (seen["robots"], seen["you"]) == ([False, False], 1)
    # An AI that takes the place of a partner who has left, here of Alice.
    seen = read("ai", 1, "partner", robot=0)
    assert seen["instructions"] == lines("left", "Alice", *asked)
    assert seen["robots"] == [True, False]
    seen = read("ai", 0, practice=True)
    assert seen["instructions"] == lines("robot", "Rob", say("en", "rules.practice"))
    assert seen["progress"]["label"] == "Cleanup, session 2 of 3 (practice)"
    assert (seen["practice"], seen["can_ask"]) == (True, False)


def test_a_page_is_in_the_phase_that_waits_for_its_participant() -> None:
    stage = session_stage("cleanup", teammate="human")
    rule = rules_for(stage, "")
    task = rule.task

    def seen(episode: Episode) -> dict[str, Any]:
        journey = Journey(best={"cleanup": 12})
        return view(Standing(journey, (stage, Stage("thanks")), {}, rule, episode, 0))

    new = play.begin(rule, np.zeros(5))
    waiting = play.start(new, 0, 0.0)
    selecting = play.start(waiting, 1, 0.0)
    acting = play.choose(rule, selecting, 0, 1)
    other = play.choose(rule, acting, 1, 0)
    acted, _ = play.press(rule, other, 0, STAY, np.zeros(5), 1.0)
    over = play.cut(acting, play.TIME_OVER)
    for episode, phase in (
        (new, "intro"), (waiting, "waiting"), (selecting, "selecting"), (acting, "acting"),
        (acted, "acted"), (over, "over"),
    ):  # fmt: skip
        page = seen(episode)
        assert page["phase"] == phase
        # Keys are taken while one acts, and then those that may be.
        legal = play.legal_actions(rule, acting, 0)
        assert page["legal"] == (legal if phase == "acting" else [False] * 6)
    assert legal == [True] * 5 + [False]
    page = seen(acting)
    names = task.grid.cells[list(task.grid.items)].tolist()
    assert page["options"] == [
        {"latent": k, "at": names[k], "label": say("en", "cleanup.numbered", number=k + 1),
         "key": str(k + 1)} for k in (0, 1)
    ]  # fmt: skip
    assert page["destination"] == page["options"][1]
    assert seen(selecting)["destination"] is None
    assert (page["steps"], page["max_steps"], page["best"], page["finished"]) == (0, 40, 12, False)
    held = task.states(np.array([[3, 0]]), np.array([[1, 0]]))[0]  # by alice
    back, goal = seen(acting._replace(state=int(held)))["options"]
    assert (back["latent"], back["key"], back["at"]) == (task.return_item, "1", names[0])
    assert (goal["latent"], goal["key"]) == (task.take_to_goal, "2")
    assert goal["at"] == task.grid.cells[task.grid.goal].tolist()
    assert (back["label"], goal["label"]) == (say("en", "cleanup.back"), say("en", "rules.flag"))


def test_practice_has_no_selector(small: Settings) -> None:
    walker = Walker(small)
    walker.say("answer", answers={"games": "never"})
    walker.through_tutorial()
    walker.say("start")
    assert walker.view()["phase"] == "acting"
    for do, fields in (("ask", {}), ("choose", {"value": 0})):
        with pytest.raises(Refused, match="asked for"):
            walker.say(do, **fields)


def test_messages_of_another_turn_change_nothing(small: Settings) -> None:
    walker = Walker(small)
    walker.say("answer", answers={"games": "never"})
    old = walker.standing.turn
    walker.say("press", value=3)
    for stale in (old, "0-0", "99-0-0-0", ""):
        before = walker.journey
        with pytest.raises(Refused, match="not up to date"):
            walker.say("press", at=stale, value=0)
        assert walker.journey is before


def test_a_view_never_tells_what_the_ai_wants(small: Settings) -> None:
    walker = Walker(small)
    walker.say("answer", answers={"games": "never"})
    walker.through_tutorial()
    shown = []
    for mind in range(4):
        walker.episodes[walker.journey.position] = walker.episode._replace(latents=(-1, mind))
        shown.append(walker.view())
    assert all(one == shown[0] for one in shown)


@pytest.mark.parametrize(
    "given",
    [
        None, 3, [], "press", {}, {"do": "press"}, {"do": "press", "turn": "0"},
        {"do": "press", "turn": "0", "value": "1"}, {"do": "press", "turn": "0", "value": True},
        {"do": "press", "turn": "0", "value": 1.0}, {"do": "press", "turn": "0", "value": -1},
        {"do": "press", "turn": "0", "value": 10**9}, {"do": "press", "turn": 0, "value": 1},
        {"do": "press", "turn": "0" * 100, "value": 1},
        {"do": "press", "turn": "0", "value": 1, "state": 5}, {"do": "win", "turn": "0"},
        {"do": ["press"], "turn": "0"}, {"do": "join", "turn": "0", "code": 5},
    ],
    ids=repr,
)  # fmt: skip
def test_messages_of_another_form_are_refused(given) -> None:
    with pytest.raises(Refused, match="not understood"):
        read_message(given)


# ---------------------------------------------------------------------- settings


def test_defaults_are_the_papers_study(tmp_path: Path) -> None:
    (tmp_path / "consent.md").write_text("mine")
    written = [file.name for file in write_defaults(tmp_path)]
    assert written == ["closing_survey.toml", "opening_survey.toml", "study.toml", "thanks.md"]
    assert (tmp_path / "consent.md").read_text() == "mine"
    (tmp_path / "thanks.md").unlink()
    assert write_defaults(tmp_path) == []
    assert len(write_defaults(tmp_path / "new")) == 5
    tmp_path = tmp_path / "new"
    settings = read_settings(tmp_path / "study.toml")
    stages = settings.stages("ai", np.random.default_rng(0))
    sessions = [(s.domain, s.practice, s.map, s.temperature, s.select_every) for s in stages
                if s.kind == "session"]  # fmt: skip
    one = {
        domain: [(domain, k < 2, "paper", 0.3, 5) for k in range(number)]
        for domain, number in (("movers", 4), ("cleanup", 5))
    }
    assert sessions == one["movers"] + one["cleanup"]
    human = settings.stages("human", np.random.default_rng(0))
    assert [stage.kind for stage in human[:4]] == ["survey", "tutorial", "pairing", "session"]


def in_folder(folder: Path, **files: str) -> Path:
    """Settings and the files that they name."""
    for name, text in {"consent.md": "I agree.", "thanks.md": "Thanks.", **files}.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder / "study.toml"


MINIMAL = """
title = "A study"
consent = "consent.md"
thanks = "thanks.md"
[[tasks]]
domain = "cleanup"
"""


def test_what_settings_leave_out_has_its_default(tmp_path: Path) -> None:
    questions = 'title = "You"\n[[questions]]\nname = "age"\ntext = "Age?"'
    survey = in_folder(tmp_path, **{"study.toml": MINIMAL, "s.toml": questions}).parent / "s.toml"
    found = read_settings(tmp_path / "study.toml")
    assert found._replace(others={}) == Settings(
        title="A study", consent="I agree.", thanks="Thanks.", surveys={},
        blocks=(Block("cleanup", "paper", 4, 2),), order="listed", temperature=0.3, select_every=5,
        max_steps=200, most_participants=1000, teammate="ai", told="",
        limits=Limits(survey=0, tutorial=0, session=0, idle=0, pause=900, partner=60, wait=600,
                      place=3600),
        most_wrong=-1, pairing="code", without_partner="end", ids=(), id_required=False,
        same_id="refuse", code="", code_link="", sign_ups=60, shared_computer=False, arm="",
        share=1, language="en",
    )  # fmt: skip
    assert found.languages == ("en",)
    assert found.arms == (found._replace(others={}),)
    assert read_survey(survey).questions == (
        Question("age", "Age?", "text", True, (), None, None, 500, "", "mark"),
    )


def test_every_key_of_the_settings_is_read(tmp_path: Path) -> None:
    text = """
title = {en = "A study", de = "Eine Studie"}
consent = "consent.md"
thanks = "thanks.md"
closing_survey = "you.toml"
language = "de"
languages = ["en", "de"]
order = "random"
temperature = 0.7
select_every = 3
max_steps = 90
most_participants = 20
teammate = "human"
instructions = "Be quick."
pairing = "arrival"
without_partner = "ai"
ids = ["PID", "SESSION"]
id_required = true
same_id = "resume"
sign_ups = 7
shared_computer = true
most_wrong = 2
[completion]
code = "individual"
link = "https://example.org/?cc={code}"
[limits]
survey = 1
tutorial = 2
session = 3
idle = 4
pause = 5
partner = 6
wait = 7
place = 8
[[tasks]]
domain = "movers"
map = "mine.txt"
sessions = 3
practice = 0
teammate = "ai"
[[tasks]]
domain = "cleanup"
map = "tiny"
sessions = 1
practice = 1
[[arms]]
name = "cold"
[[arms]]
name = "warm"
share = 2
temperature = 1.5
most_wrong = 0
[[arms.tasks]]
domain = "cleanup"
"""
    survey = """
title = "You"
[[questions]]
name = "age"
text = "Age?"
kind = "number"
required = false
minimum = 18
maximum = 99
[[questions]]
name = "mood"
text = "Mood?"
kind = "scale"
options = ["bad", "good"]
correct = "good"
if_wrong = "repeat"
[[questions]]
name = "more"
text = "More?"
longest = 5000
"""
    drawing = "A 0 .\nR # G\n"
    german = survey.replace("You", "Sie").replace('"bad", "good"', '"schlecht", "gut"')
    german = german.replace('correct = "good"', 'correct = "gut"')
    path = in_folder(
        tmp_path,
        **{"study.toml": text, "mine.txt": drawing, "consent.de.md": "Ja.", "you.toml": survey},
        **{"you.de.toml": german},
    )
    found = read_settings(path)
    assert found.languages == ("de", "en")
    asked = (
        Question("age", "Age?", "number", False, (), 18, 99, 500),
        Question("mood", "Mood?", "scale", True, ("bad", "good"), longest=500, correct="good",
                 if_wrong="repeat"),
        Question("more", "More?", longest=2000),
    )  # fmt: skip
    english = found.of("cold", "en")
    assert english == Settings(
        title="A study", consent="I agree.", thanks="Thanks.",
        surveys={"closing": Survey("You", asked)},
        blocks=(Block("movers", drawing, 3, 0, "ai"), Block("cleanup", "tiny", 1, 1)),
        order="random", temperature=0.7, select_every=3, max_steps=90, most_participants=20,
        teammate="human", told="Be quick.", limits=Limits(1, 2, 3, 4, 5, 6, 7, 8), most_wrong=2,
        pairing="arrival", without_partner="ai", ids=("PID", "SESSION"), id_required=True,
        same_id="resume", code="individual", code_link="https://example.org/?cc={code}",
        sign_ups=7, shared_computer=True, arm="cold", share=1, language="en",
    )  # fmt: skip
    # The first condition and language are what it is without a choice.
    own = found.of("cold", "de")
    assert found._replace(others={}) == own
    assert (own.title, own.consent, own.surveys["closing"].title) == ("Eine Studie", "Ja.", "Sie")
    assert found.of("hot", "en") == english
    assert found.of("cold", "fr") == own
    assert found.of("hot", "fr") is found
    assert english.consent_version != own.consent_version
    assert own.consent_version == hashlib.sha256(b"Ja.").hexdigest()[:12]
    cold, warm = found.arms
    assert (cold, warm.language) == (own, "de")
    assert warm == own._replace(
        arm="warm", share=2, temperature=1.5, most_wrong=0,
        blocks=(Block("cleanup", "paper", 4, 2),),
    )  # fmt: skip
    assert read_settings(path, teammate="ai").teammate == "ai"
    assert read_settings(path, teammate="human").blocks[0].teammate == "ai"


def test_a_way_through_the_study_is_what_the_settings_say() -> None:
    surveys = {name: Survey(name, (Question("q", "Q?"),)) for name in ("closing", "opening")}
    blocks = (
        Block("movers", "tiny", 2, 1), Block("cleanup", "tiny", 1, 0, "human"),
        Block("movers", "lesson", 1, 1, "human"),
    )  # fmt: skip
    settings = Settings(
        "T", "C", "T", surveys, blocks, temperature=0.6, select_every=4, max_steps=70, told="Go.",
        limits=Limits(survey=1, tutorial=2, session=3, wait=7), most_wrong=2,
    )  # fmt: skip
    session = Stage("session", temperature=0.6, select_every=4, max_steps=70, told="Go.", seconds=3)
    opening, closing = (
        Stage("survey", name, seconds=1, most_wrong=2) for name in ("opening", "closing")
    )
    pairing = Stage("pairing", teammate="human", seconds=7)
    alone = [
        session._replace(domain="movers", map="tiny", practice=k == 1, number=k, of=2,
                         teammate="ai") for k in (1, 2)
    ]  # fmt: skip
    with_person = [
        session._replace(domain="cleanup", map="tiny", number=1, of=1, teammate="human"),
        session._replace(domain="movers", map="lesson", practice=True, number=1, of=1,
                         teammate="human"),
    ]  # fmt: skip

    def tutorial(domain: str, name: str, teammate: str) -> Stage:
        return Stage("tutorial", name, domain, teammate=teammate, seconds=2)

    generator = np.random.default_rng(0)
    # A tutorial of each task where it first comes; a pairing before what needs a person.
    assert settings.stages("ai", generator) == (
        opening, tutorial("movers", "", "ai"), *alone, tutorial("cleanup", "rest", "human"),
        pairing, *with_person, closing, Stage("thanks"),
    )  # fmt: skip
    assert settings.stages("ai", generator, (1, 2, 0)) == (
        opening, tutorial("cleanup", "", "human"), pairing, with_person[0],
        tutorial("movers", "rest", "human"), with_person[1], *alone, closing, Stage("thanks"),
    )  # fmt: skip
    # Who plays where nothing is said is what is given; nobody is paired for an AI.
    only = settings._replace(blocks=blocks[:1], surveys={})
    assert [stage.kind for stage in only.stages("ai", generator)] == [
        "tutorial", "session", "session", "thanks"
    ]  # fmt: skip
    with_human = only._replace(blocks=(blocks[0]._replace(teammate=""),))
    stages = with_human.stages("human", generator)
    assert [stage.kind for stage in stages] == [
        "tutorial", "pairing", "session", "session", "thanks"
    ]  # fmt: skip
    assert {stage.teammate for stage in stages[:-1]} == {"human"}
    assert "pairing" not in [stage.kind for stage in with_human.stages("ai", generator)]


def test_random_order_moves_whole_tasks(small: Settings) -> None:
    mixed = small._replace(order="random")
    orders = Counter(
        tuple(s.domain for s in mixed.stages("ai", np.random.default_rng(k)) if s.kind == "session")
        for k in range(40)
    )
    a, b = ("movers",) * 2 + ("cleanup",) * 2, ("cleanup",) * 2 + ("movers",) * 2
    assert set(orders) == {a, b}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("colour = 1", "unknown key 'colour'"),
        ("temperature = 0", "temperature"),
        ("temperature = 1" + 400 * "0", "temperature must be"),
        ("select_every = 2.5", "select_every"),
        ('order = "odd"', "listed, random"),
        ("title = 3", "title must be a text"),
        ("tasks = []", "at least one"),
        ("tasks = 3", "at least one"),
        ('tasks = [{domain = "chess"}]', "movers, cleanup"),
        ('tasks = [{domain = "movers", sessions = 2, practice = 3}]', "0..2"),
        ('tasks = [{domain = "movers", map = "A 0"}]', "'R' is missing"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, change: str, says: str) -> None:
    write_defaults(tmp_path)
    path = tmp_path / "study.toml"
    lines = path.read_text().splitlines()
    key = change.split(" =")[0]
    if key == "tasks":
        lines = lines[: lines.index("[[tasks]]")]
    kept = [line for line in lines if line.split(" =")[0] != key]
    path.write_text("\n".join([change, *kept]))
    tomllib.loads(path.read_text())
    with pytest.raises(ValueError, match=says) as caught:
        read_settings(path)
    assert str(path) in str(caught.value)


def test_bounds_that_no_number_keeps_are_refused(tmp_path: Path) -> None:
    survey = tmp_path / "survey.toml"
    survey.write_text(
        "title = 'A'\n[[questions]]\nname = 'age'\ntext = 'Age?'\nkind = 'number'\n"
        "minimum = 90\nmaximum = 18\n"
    )
    with pytest.raises(ValueError, match=r"questions\[0\]: minimum is 90 and maximum 18"):
        read_survey(survey)


def test_answers_are_checked() -> None:
    survey = Survey(
        "S",
        (
            Question("age", "Age?", "number", minimum=18, maximum=120),
            Question("mood", "Mood?", "choice", False, ("good", "bad")),
            Question("word", "Word?", "text", False, longest=5),
        ),
    )
    assert checked_answers(survey, {"age": "20", "word": " hi "}) == {"age": "20", "word": "hi"}
    for wrong in (
        {}, {"age": "17"}, {"age": "nan"}, {"age": "old"}, {"age": 20}, {"age": "20", "mood": "so"},
        {"age": "20", "word": "longer"}, {"age": "20", "other": "x"}, [], None,
        {"age": "20", "word": "\ud800"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r".+"):
            checked_answers(survey, wrong)


# ---------------------------------------------------------------------- the file and the export


def store_walk(folder: Path, settings: Settings, number: int = 1) -> None:
    """Put participants with a whole way through the study into a file."""
    store = Store(folder, seed=SEED, create=True)
    for who in range(1, number + 1):
        walker = Walker(settings)
        walker.generator = np.random.default_rng(who)
        walker.say("answer", answers={"games": "never", "age": "30"})
        for _ in range(2):
            walker.through_tutorial()
            walker.through_session()
            walker.through_session()
        person = Person(
            who, 500_000 - who, hashed(f"token {who}"), who, 0, "ai", walker.stages, walker.journey
        )
        statements = [tables.save_person(person)]
        for position, episode in walker.episodes.items():
            statements.append(tables.save_episode(who, position, episode))
        statements += [tables.save_row(who, position, row) for position, row in walker.rows]
        for survey, answers in walker.answers:
            statements += tables.save_answers(who, survey, answers)
        store.write(statements)
    store.close()


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory, small: Settings) -> Path:
    """A folder with the study of two participants who went through it."""
    folder = tmp_path_factory.mktemp("walked")
    store_walk(folder, small, number=2)
    return folder


@pytest.fixture
def copied(walked: Path, tmp_path: Path) -> Path:
    """The same, to change."""
    return Path(shutil.copytree(walked, tmp_path / "copied"))


def test_store_gives_back_what_it_was_given(copied: Path, small: Settings) -> None:
    store = Store(copied)
    person, _ = store.people()
    assert person.stages == small.stages("ai", np.random.default_rng(0))
    assert person.journey.position == 7
    episodes = store.episodes()
    assert sorted(episodes) == [(who, k) for who in (1, 2) for k in (2, 3, 5, 6)]
    assert all(len(store.steps(*key)) == episode.step for key, episode in episodes.items())
    row = store.steps(1, 3)[0]
    with pytest.raises(sqlite3.IntegrityError):
        store.write([tables.save_answers(1, "opening", {"x": "y"})[0], tables.save_row(1, 3, row)])
    assert all(question != "x" for _, _, question, _ in store.answers())
    assert store._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    store.close()
    with pytest.raises(ValueError, match=f"seed {SEED}"):
        Store(copied, seed=SEED + 1)
    with pytest.raises(FileNotFoundError, match="no study"):
        Store(copied / "consent")
    text = (copied / DATABASE_FILE).read_bytes()
    assert b"token 1" not in text


def test_another_file_is_no_study(tmp_path: Path) -> None:
    (tmp_path / DATABASE_FILE).write_text("not a database, but long enough to look at" * 40)
    with pytest.raises(ValueError, match="not a study"):
        Store(tmp_path)


def test_export_has_all_test_sessions_labelled(walked: Path, tmp_path: Path) -> None:
    out = tmp_path / "demos.parquet"
    surveys, steps = tmp_path / "answers.csv", tmp_path / "steps.csv"
    written = [p for p, _ in export_study(walked, out, surveys=surveys, steps=steps)]
    assert [path.name for path in written] == [
        "demos-cleanup.parquet", "demos-movers.parquet", "answers.csv", "steps.csv",
    ]  # fmt: skip
    store = Store(walked, read_only=True)
    for domain, position in (("movers", 3), ("cleanup", 6)):
        task = getattr(btil.domains, domain)("tiny")
        demos = btil.read_demonstrations(tmp_path / f"demos-{domain}.parquet")
        assert demos.num_episodes == 2
        assert (demos.latents >= 0).all()
        rows = [row for who in (2, 1) for row in store.steps(who, position)]
        assert demos.states.tolist() == [row.state for row in rows]
        assert demos.actions.tolist() == [list(row.actions) for row in rows]
        assert demos.latents.tolist() == [list(row.latents) for row in rows]
        assert demos.latent_names["alice"] == task.latent_names
        assert demos.num_states == task.state_sizes
        # Sessions are counted from 1; the first and the third of these are for practice.
        which = {3: "02", 6: "04"}[position]
        assert demos.episode_ids.tolist() == [f"499998-{which}", f"499999-{which}"]
        task.add_derived_variables(demos)
    store.close()
    assert surveys.read_text().splitlines()[:3] == [
        "participant,survey,question,answer", "499998,opening,age,30", "499998,opening,games,never",
    ]  # fmt: skip
    head, first, *_ = steps.read_text().splitlines()
    assert head.startswith("episode,step,domain,practice,seconds,alice_answered,rob_answered,")
    assert first.split(",")[5:7] == ["1", "0"]

    (only,) = [p for p, _ in export_study(walked, out, "movers", practice=True, derived=True)]
    demos = btil.read_demonstrations(only)
    assert (only, demos.num_episodes) == (out, 4)
    assert "alice_held" in demos.num_states
    with pytest.raises(ValueError, match="movers and cleanup"):
        next(export_study(walked, out, "chess"))


def test_sessions_that_go_on_are_exported_when_asked_for(copied: Path, tmp_path: Path) -> None:
    store = Store(copied)
    going_on = store.episodes()[1, 3]._replace(over=False)
    store.write([tables.save_episode(1, 3, going_on)])
    store.close()
    for unfinished, number in ((False, 1), (True, 2)):
        ((path, _),) = export_study(copied, tmp_path / "d.csv", "movers", unfinished=unfinished)
        assert btil.read_demonstrations(path).num_episodes == number


@pytest.mark.parametrize(
    # Old recordings have sessions with an AI under the game of a pair: the other did not play.
    ("teammate", "name"), [("human", "000222+000111-02"), ("ai", "000222-02")],
)  # fmt: skip
def test_a_session_is_named_by_the_people_who_played(
    copied: Path, tmp_path: Path, teammate: str, name: str
) -> None:
    store = Store(copied)
    alone, played, rows = next(store.people()), store.episodes()[1, 3], store.steps(1, 3)
    # Rob came first, and his number is the smaller one.
    for participant, number, seat in ((11, 111, 1), (12, 222, 0)):
        person = alone._replace(
            participant=participant, number=number, token=None, game=11, seat=seat,
            stages=tuple(stage._replace(teammate=teammate) for stage in alone.stages),
        )  # fmt: skip
        store.write([tables.save_person(person)])
    store.write([tables.save_episode(11, 3, played), *(tables.save_row(11, 3, r) for r in rows)])
    store.close()
    ((path, _),) = export_study(copied, tmp_path / "d.csv", "movers")
    ids = btil.read_demonstrations(path).episode_ids.tolist()
    assert ids == [name, "499998-02", "499999-02"]


def test_tables_tell_what_happened_to_whom(tmp_path: Path) -> None:
    """Two who play together, and one who has left before a partner came."""
    one = session_stage("movers", teammate="human", number=2, of=3)
    stages = (
        session_stage("cleanup", practice=True, number=1, of=1, teammate="ai"), one,
        Stage("thanks"),
    )  # fmt: skip
    task = rules("movers").task
    german, english = (
        About("warm", (0, 1), language, "0a1b", when)
        for language, when in (("de", 1000.0), ("en", 1500.0))
    )
    cleanup = btil.domains.cleanup("tiny")
    swept = int(np.argmax(cleanup.is_final(np.arange(cleanup.num_states))))
    people = [
        Person(1, 111, b"a", 9, 0, "human", stages, Journey(position=2), german),
        Person(2, 22, b"b", 9, 1, "human", stages, Journey(position=1, wrong=2), english),
        Person(3, 3, None, 3, 0, "human", stages, Journey(outcome="withdrew"), About("cold")),
    ]  # fmt: skip
    over = begun(rules("movers", "human"), np.random.default_rng(0))._replace(
        step=2, over=True, ended="time"
    )
    rows = [
        play.Row(0, task.start_state, (4, 5), (0, 1), (True, True), 3.0),
        play.Row(1, task.start_state, (1, 2), (0, task.take_to_goal), (False, True), 4.5),
    ]
    chosen = [
        play.Answer(0, 0, 0, "start", 0, 1.0), play.Answer(0, 1, 0, "start", 1, 0.5),
        play.Answer(1, 1, 1, "item", 0, 1.25),
        play.Answer(1, 1, 2, "asked", task.take_to_goal, 0.25),
    ]  # fmt: skip
    notes = [
        Note(1, 1000.0, "consent", "0a1b"), Note(1, 1100.0, "pause", ""),
        Note(1, 1107.5, "resume", "7.5"), Note(2, 1600.0, "partner", "000111"),
        Note(2, 1610.0, "pause", ""), Note(1, 1700.0, "part", "thanks"),
    ]  # fmt: skip
    store = Store(tmp_path, seed=SEED, create=True)
    store.write(
        [
            *map(tables.save_person, people), *map(tables.save_member, people),
            tables.save_episode(9, 1, over),
            *(tables.save_row(9, 1, row) for row in rows),
            *(tables.save_answer(9, 1, answer) for answer in chosen),
            tables.save_episode(9, 0, over._replace(state=swept, ended="")),
            tables.save_row(9, 0, play.Row(0, 0, (3, 2), (-1, -1), (False, False), 0.25)),
            *map(tables.save_note, notes),
        ]
    )  # fmt: skip
    store.close()
    list(export_study(tmp_path, tmp_path / "d.csv", tables=tmp_path / "t"))

    def table(name: str) -> list[dict[str, str]]:
        with open(tmp_path / "t" / f"{name}.csv", encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    lone, rob_, alice = table("participants")
    assert lone == {
        "participant": "000003", "arm": "cold", "order": "cleanup", "language": "en", "role": "",
        "partner": "", "consent_version": "", "consent_time": "", "last_time": "", "part": "1",
        "of": "3", "outcome": "withdrew", "wrong_checks": "0", "breaks": "0",
        "seconds_in_breaks": "0.0",
    }  # fmt: skip
    assert alice == {
        "participant": "000111", "arm": "warm", "order": "cleanup", "language": "de",
        "role": "alice", "partner": "000022", "consent_version": "0a1b",
        "consent_time": "1970-01-01T00:16:40+00:00", "last_time": "1970-01-01T00:28:20+00:00",
        "part": "3", "of": "3", "outcome": "done", "wrong_checks": "0", "breaks": "1",
        "seconds_in_breaks": "7.5",
    }  # fmt: skip
    changed = ("role", "partner", "outcome", "wrong_checks", "breaks", "seconds_in_breaks", "part")
    assert [rob_[key] for key in changed] == ["rob", "000111", "under way", "2", "1", "0.0", "2"]
    name = "000111+000022-02"
    session, practice = table("sessions")
    assert session == {
        "episode": name, "alice": "000111", "rob": "000022", "arm": "warm", "order": "cleanup",
        "domain": "movers", "map": "tiny", "session": "2", "of": "3", "practice": "0",
        "steps": "2", "finished": "0", "ended": "time", "seconds": "7.500",
        "alice_seconds_selecting": "1.000", "rob_seconds_selecting": "2.000",
    }  # fmt: skip
    # What was for practice is told of, too, though it is no demonstration.
    assert practice == session | {
        "episode": "000111-01", "rob": "ai", "domain": "cleanup", "session": "1", "of": "1",
        "practice": "1", "steps": "1", "finished": "1", "ended": "over", "seconds": "0.250",
        "alice_seconds_selecting": "0.000", "rob_seconds_selecting": "0.000",
    }  # fmt: skip
    first, second, third = table("steps")
    assert list(third.values()) == [
        "000111-01", "0", "cleanup", "1", "0.250", "0", "0", *("", "0", "0.000", "0.250", "") * 2,
    ]  # fmt: skip
    assert list(first.values()) == [
        name, "0", "movers", "0", "3.000", "1", "1", "start", "1", "1.000", "2.000", "box 1",
        "start", "1", "0.500", "2.500", "box 2",
    ]  # fmt: skip
    assert list(second.values()) == [
        name, "1", "movers", "0", "4.500", "0", "1", "", "0", "0.000", "4.500", "box 1",
        "item asked", "2", "1.500", "3.000", "the flag",
    ]  # fmt: skip
    assert [tuple(line.values()) for line in table("selector")] == [
        (name, "0", "alice", "1", "start", "1.000", "0", "box 1"),
        (name, "0", "rob", "1", "start", "0.500", "1", "box 2"),
        (name, "1", "rob", "1", "item", "1.250", "0", "box 1"),
        (name, "1", "rob", "2", "asked", "0.250", str(task.take_to_goal), "the flag"),
    ]  # fmt: skip
    told = [tuple(line.values()) for line in table("notes")]
    assert told[0] == ("000111", "1970-01-01T00:16:40+00:00", "consent", "0a1b")
    assert {line[0] for line in told} == {"000111", "000022"}
    demos = btil.read_demonstrations(tmp_path / "d.csv")
    assert demos.episode_ids.tolist() == [name]
    assert demos.actions.tolist() == [[4, 5], [1, 2]]
    assert demos.latents.tolist() == [[0, 1], [0, task.take_to_goal]]


def test_export_of_nothing_is_refused(tmp_path: Path) -> None:
    Store(tmp_path, create=True).close()
    with pytest.raises(ValueError, match="none of its 0 sessions"):
        next(export_study(tmp_path, tmp_path / "demos.csv"))


def test_answers_that_look_like_formulas_stay_text(copied: Path, tmp_path: Path) -> None:
    given = {f"comment {k}": f"{sign}1+1" for k, sign in enumerate("=+-@\t\r")}
    store = Store(copied)
    store.write(tables.save_answers(1, "closing", {**given, "plain": "1=1", "lines": "a\r2"}))
    store.close()
    answers = tmp_path / "answers.csv"
    list(export_study(copied, tmp_path / "d.csv", surveys=answers))
    with open(answers, encoding="utf-8", newline="") as file:
        read = {tuple(row[:3]): row[3] for row in csv.reader(file)}
    for question, answer in given.items():
        assert read["499999", "closing", question] == f"'{answer}"
    assert read["499999", "closing", "plain"] == "1=1"
    assert read["499999", "closing", "lines"] == "a\r2"


def test_message_fields() -> None:
    assert read_message({"turn": "1-0", "do": "press", "value": 5}) == Message("1-0", "press", 5)
