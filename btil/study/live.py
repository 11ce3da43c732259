"""The running study: who is here, what they ask for, and the order in which it reaches the disk."""

import asyncio
import contextlib
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from btil.study import episode as play
from btil.study import store as tables
from btil.study.episode import Refused
from btil.study.sessions import (
    ALONE,
    IDLE,
    NO_PARTNER,
    PAUSED,
    UNPAID,
    Journey,
    Message,
    Standing,
    ended,
    enter_stage,
    out_of_time,
    read_message,
    respond,
    without_partner,
)
from btil.study.settings import (
    AI,
    ALONE_AI,
    HUMAN,
    INDIVIDUAL,
    SURVEYS,
    Settings,
    Stage,
    in_first_language,
)
from btil.study.store import CODE, About, Note, Person, Statement, Store
from btil.study.teammate import rules_for
from btil.study.texts import say
from btil.study.views import view

_CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # none that look alike
_CODE_LENGTH = 6
_COMPLETION_LENGTH = 10
_MOST_GUESSES = 30
_NUMBERS = 10**5, 10**6  # six digits, the first of which is no 0
# The game of somebody whose partner has left, and that of a pair: these and a participant's key.
# In a game of the own key a participant plays with an AI.
_SOLO_GAMES, _PAIR_GAMES = 10**6, 2 * 10**6
_SILENCE = 10.0  # seconds without a sign of a page, after which it counts as gone
_MINUTE = 60.0
_ENTRIES = 1000  # of the last that were asked for it is known which participant they made
_PATIENCE = 30.0  # seconds after which waiting for a partner can be left
LONGEST_ID = 200  # characters


class Writer:
    """Writes what many participants do, as few flushes of the disk as it takes.

    Whatever arrives while one transaction is being flushed makes up the next one.

    Args:
        store: Where it is written; it is used by no one else meanwhile.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="study-writer")
        self._waiting: list[tuple[list[Statement], asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def commit(self, statements: list[Statement]) -> None:
        """Return once the statements are on the disk.

        Raises:
            sqlite3.Error: If they cannot be written; then none of them is.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((statements, done))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write_all())
        await done

    async def _write_all(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            failed: list[Exception | None] = [None] * len(batch)
            if await self._write([one for statements, _ in batch for one in statements]):
                # One of them cannot be written: the others must not suffer.
                failed = [await self._write(statements) for statements, _ in batch]
            for (_, done), error in zip(batch, failed, strict=True):
                if done.cancelled():
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

    async def _write(self, statements: list[Statement]) -> Exception | None:
        try:
            await self.run(lambda: self._store.write(statements))
        except Exception as error:
            return error
        return None

    async def run(self, function: Callable[[], None]) -> None:
        """Call something that uses the store, between two transactions."""
        await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def close(self) -> None:
        """Finish what has begun."""
        self._thread.shutdown()


class Connection:
    """A participant's open page.

    Args:
        heard: When it was opened.
        page: Names the page; "" where that is not known.
        attempt: How often this page has connected.

    Attributes:
        changed: Set when there is something new to show.
        notice: A sentence to show once.
        closed: Code with which the page is to be closed, None while it may stay.
        heard: When there was the last sign of it.
    """

    def __init__(self, heard: float, page: str = "", attempt: int = 0) -> None:
        self.page, self.attempt = page, attempt
        self.changed = asyncio.Event()
        self.notice = ""
        self.closed: int | None = None
        self.heard = heard

    def wake(self, notice: str = "") -> None:
        """Let the page show what there is now."""
        self.notice = notice or self.notice
        self.changed.set()

    def close(self, code: int) -> None:
        """Close the page."""
        self.closed = code
        self.changed.set()


class Recent:
    """How often something came from an address within the last minute."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}

    def number(self, address: str, now: float) -> int:
        """How often; what is older is forgotten, of all addresses."""
        recent = {
            one: [time for time in times if time > now - _MINUTE]
            for one, times in self._times.items()
        }
        self._times = {one: times for one, times in recent.items() if times}
        return len(self._times.get(address, ()))

    def add(self, address: str, now: float) -> None:
        """Once more."""
        self._times.setdefault(address, []).append(now)


def _ahead(person: Person) -> tuple[Stage, ...]:
    """What is still before a participant."""
    return person.stages[person.journey.position :]


def _is_done(person: Person) -> bool:
    return person.stage.kind == "thanks"


REPLACED, NOT_A_PARTICIPANT, ERASED = 4001, 4401, 4410  # codes with which pages are closed


class LiveStudy:
    """All participants of a study, while it is served.

    Args:
        store: The study on disk; what is in it goes on.
        settings: For those who come.
        folder: Of the study, in which posteriors lie.
        clock: Gives the time in seconds.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        folder: Path = Path(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self._store, self._folder, self._clock = store, folder, clock
        self._writer = Writer(store)
        self._people = {one.participant: self._move_on(one, one.journey) for one in store.people()}
        self._by_token = {p.token: p.participant for p in self._people.values() if p.token}
        self._episodes = store.episodes()
        self._played: dict[int, set[int]] = defaultdict(set)
        for game, participant, _ in store.members():
            self._played[participant].add(game)
        self._last = max([store.entered, *self._people, *self._played], default=0)
        self._identities: dict[int, dict[str, str]] = defaultdict(dict)
        for participant, name, value in store.identities():
            self._identities[participant][name] = value
        now = clock()
        self._active = {
            person.participant: person.about.consented for person in self._people.values()
        }
        for note in store.notes():
            self._active[note.participant] = note.time
        self._answers = Counter(who for who, *_ in store.answers())
        self._away = dict.fromkeys(self._people, now)
        self._connections: dict[int, Connection] = {}
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._entrance = asyncio.Lock()
        self._entries: dict[str, tuple[str, int]] = {}
        self._sign_ups = Recent()
        self._warned: set[int] = set()

    @property
    def name(self) -> str:
        """A random name of the study."""
        return self._store.name

    def close(self) -> None:
        """Finish what has begun, and let go of the file."""
        self._writer.close()
        self._store.close()

    def prepare(self) -> None:
        """Plan for every task that may be played, so that nobody waits for it later.

        Raises:
            ValueError: If the settings lack a survey that somebody has still to answer, or a
                posterior that plays cannot.
        """
        for name in SURVEYS:
            left = [
                person
                for person in self._people.values()
                if any((one.kind, one.name) == ("survey", name) for one in _ahead(person))
                and name not in self._settings_of(person).surveys
            ]
            if left:
                raise ValueError(
                    f"the settings have no {name} survey, which participants still have to answer: "
                    f"{len(left)}"
                )
        generator = np.random.default_rng(0)
        for arm in self.settings.arms:
            for stage in arm.stages(arm.teammate, generator):
                if stage.kind in ("tutorial", "session"):
                    rules_for(stage, arm.teammate, self._folder)
                    if arm.without_partner == ALONE_AI and stage.teammate == HUMAN:
                        for seat in play.SEATS:
                            rules_for(stage._replace(teammate=AI, robot=seat), AI, self._folder)
        for person in self._people.values():
            for stage in _ahead(person):
                if stage.kind in ("tutorial", "session"):
                    rules_for(stage, person.teammate, self._folder)

    # ------------------------------------------------------------------ coming and going

    async def enter(
        self,
        language: str = "",
        ids: Mapping[str, str] | None = None,
        entry: str = "",
        address: str = "",
    ) -> str:
        """A new participant, who has agreed to take part.

        Args:
            language: Of the texts; "": the first one.
            ids: Values of the address, by the names in the settings.
            entry: Names this coming: a second message of the same makes nobody new.
            address: Where the participant comes from.

        Returns:
            The session token.

        Raises:
            Refused: If the study is full, or this person cannot take part.
        """
        settings, now = self.settings, self._clock()
        given = {
            name: value[:LONGEST_ID]
            for name in settings.ids
            if (value := (ids or {}).get(name, "").strip())
        }
        async with self._entrance:
            known = self._entries.get(entry) if entry else None
            if known is not None and known[1] in self._people:
                return known[0]
            if self._sign_ups.number(address, now) >= settings.sign_ups:
                raise Refused("refused.too_many")
            self._sign_ups.add(address, now)
            token = secrets.token_urlsafe(32)
            same = self._same_id(given)
            if same is not None:
                return await self._take_up(same, token)
            if sum(map(self._counts, self._people.values())) >= settings.most_participants:
                raise Refused("refused.full")
            self._last += 1
            participant = self._last
            generator = np.random.default_rng([self._store.seed, participant])
            taken = {person.number for person in self._people.values()}
            number = int(generator.integers(*_NUMBERS))
            while number in taken:
                number = int(generator.integers(*_NUMBERS))
            arm, order = self._allotted(generator)
            spoken = language if language in settings.languages else settings.language
            mine = settings.of(arm.arm, spoken)
            stages = mine.stages(mine.teammate, generator, order)
            about = About(
                mine.arm, order, spoken, settings.of(arm.arm, spoken).consent_version, now
            )
            person = Person(
                participant=participant,
                number=number,
                token=tables.hashed(token),
                game=participant,
                seat=0,
                teammate=mine.teammate,
                stages=stages,
                journey=self._arrive(Journey(reached=now), stages, mine.teammate),
                about=about,
            )
            if mine.code == INDIVIDUAL:
                given[CODE] = _code(_COMPLETION_LENGTH)
            await self._commit(
                [
                    tables.save_fact("entered", str(participant)),
                    *(tables.save_identity(participant, *one) for one in given.items()),
                    tables.save_person(person),
                    tables.save_member(person),
                    tables.save_note(Note(participant, now, "consent", about.consent)),
                ],
                person,
            )
            self._identities[participant] = given
            self._played[participant].add(participant)
            self._active[participant] = self._away[participant] = now
            if entry:
                self._entries[entry] = token, participant
                while len(self._entries) > _ENTRIES:
                    del self._entries[next(iter(self._entries))]
        return token

    def _same_id(self, given: Mapping[str, str]) -> Person | None:
        """Who has come with the same first value before, to be taken up."""
        settings = self.settings
        if not settings.ids:
            return None
        first = settings.ids[0]
        if first not in given:
            if settings.id_required:
                raise Refused("refused.need_id")
            return None
        if settings.same_id == "allow":
            return None
        for person in self._people.values():
            if self._identities[person.participant].get(first) == given[first]:
                if settings.same_id == "resume" and person.token is not None:
                    return person
                raise Refused("refused.same_id")
        return None

    async def _take_up(self, person: Person, token: str) -> str:
        """The same participant in another browser: the token before is void."""
        async with self._held(person.participant):
            person = self._people[person.participant]
            changed = person._replace(token=tables.hashed(token))
            await self._commit([tables.save_person(changed)], changed)
            self._by_token.pop(person.token or b"", None)
        if person.participant in self._connections:
            self._connections[person.participant].close(REPLACED)
        return token

    def _counts(self, person: Person) -> bool:
        """Whether somebody takes up a place: all but those who ended, or went away long ago."""
        if person.journey.outcome in UNPAID:
            return False
        if person.token is None and not _is_done(person):  # nobody can come back
            return False
        patience = self.settings.limits.place
        here = person.participant in self._connections
        if _is_done(person) or here or patience == 0:
            return True
        return self._clock() - self._active[person.participant] <= patience

    def _allotted(self, generator: np.random.Generator) -> tuple[Settings, tuple[int, ...]]:
        """Condition and order of tasks: of those that the fewest have so far, one by chance.

        With equal shares this is randomisation in blocks of one participant of each condition, and
        within a condition of one of each order; a place that was left is filled first. Two who
        play together count once.
        """
        counted = {one.game: one.about for one in self._people.values() if self._counts(one)}
        of_arm = Counter(about.arm for about in counted.values())
        filled = [(of_arm[arm.arm] / arm.share, arm) for arm in self.settings.arms]
        least = min(share for share, _ in filled)
        arms = [arm for share, arm in filled if share == least]
        arm = arms[int(generator.integers(len(arms)))]
        of_order = Counter(about.order for about in counted.values() if about.arm == arm.arm)
        orders = arm.orders()
        fewest = min(of_order[order] for order in orders)
        left = [order for order in orders if of_order[order] == fewest]
        return arm, left[int(generator.integers(len(left)))]

    def participant_of(self, token: str | None) -> int | None:
        """Whose token this is; None if nobody's."""
        return None if token is None else self._by_token.get(tables.hashed(token))

    @property
    def now(self) -> float:
        """The time, in seconds since 1970."""
        return self._clock()

    def language_of(self, participant: int) -> str:
        """The language that a participant chose."""
        person = self._people.get(participant)
        return self.settings.language if person is None else person.about.language

    async def answers_of(self, number: int) -> list[tuple[str, str, str]]:
        """What a participant answered: survey, question, answer."""
        who = {one.participant for one in self._people.values() if one.number == number}
        found: list[tuple[int, str, str, str]] = []
        await self._writer.run(lambda: found.extend(self._store.answers()))
        return [
            (survey, question, answer)
            for participant, survey, question, answer in found
            if participant in who
        ]

    async def leave(self, participant: int) -> None:
        """A participant ends for good: the token is void from now on."""
        async with self._entrance, self._held(participant):
            person = self._people.get(participant)
            if person is None:  # erased while this waited
                return
            note = self._note(participant, "left")
            await self._commit([tables.save_person(person._replace(token=None)), note])
            self._by_token.pop(person.token or b"", None)
            self._people[participant] = person._replace(token=None)
        if participant in self._connections:
            self._connections[participant].close(NOT_A_PARTICIPANT)

    async def erase(self, number: int) -> None:
        """Delete all that there is of a participant.

        Args:
            number: The participant's random number.

        Raises:
            ValueError: If nobody has it.
        """
        async with self._entrance:
            found = [one for one in self._people.values() if one.number == number]
            if not found:
                raise ValueError(f"there is no participant {number:06d}")
            person = found[0]
            games = self._played[person.participant]
            async with contextlib.AsyncExitStack() as stack:
                for game in sorted(games):
                    await stack.enter_async_context(self._locks[game])
                await self._writer.commit(tables.erase_all(person.participant, games))
                self._forget(person, games)
            if person.participant in self._connections:
                self._connections[person.participant].close(ERASED)
            self._wake(person.game)
            await self._writer.run(self._store.tidy)

    def _forget(self, person: Person, games: set[int]) -> None:
        participant = person.participant
        self._by_token.pop(person.token or b"", None)
        for known in (self._people, self._played, self._identities, self._active, self._away):
            known.pop(participant, None)
        self._answers.pop(participant, None)
        self._episodes = {key: one for key, one in self._episodes.items() if key[0] not in games}

    def connect(self, participant: int, page: str = "", attempt: int = 0) -> Connection:
        """A participant's page; one that was open before is closed.

        After a line has stalled, the attempts of one page may arrive in any order: the last one
        that it made stays.

        Args:
            participant: Who.
            page: Names the page; "" where that is not known.
            attempt: How often this page has connected.
        """
        connection = Connection(self._clock(), page, attempt)
        before = self._connections.get(participant)
        if before is not None and page and before.page == page and before.attempt > attempt:
            connection.close(REPLACED)
            return connection
        if before is not None:
            before.close(REPLACED)
        self._connections[participant] = connection
        self._wake(self._people[participant].game)
        return connection

    def disconnect(self, participant: int, connection: Connection) -> None:
        """A page is gone."""
        if self._connections.get(participant) is connection:
            del self._connections[participant]
            self._away[participant] = self._clock()
            if participant in self._people:
                self._wake(self._people[participant].game)

    def is_current(self, participant: int, connection: Connection) -> bool:
        """Whether a page has not been replaced or closed."""
        return self._connections.get(participant) is connection and connection.closed is None

    def hear(self, connection: Connection) -> None:
        """A sign of a page."""
        connection.heard = self._clock()

    async def note(self, participant: int, what: str) -> None:
        """Note what happened to a participant."""
        # Held, so that nothing is noted of somebody who is just being erased.
        async with self._held(participant):
            if participant in self._people:
                with contextlib.suppress(Exception):  # of a study that is being closed
                    await self._writer.commit([self._note(participant, what)])

    def _note(self, participant: int, what: str, more: str = "") -> Statement:
        return tables.save_note(Note(participant, self._clock(), what, more))

    def _is_here(self, participant: int) -> bool:
        connection = self._connections.get(participant)
        return connection is not None and self._clock() - connection.heard < _SILENCE

    # ------------------------------------------------------------------ playing

    async def handle(self, participant: int, given: Any) -> None:
        """Do what a participant's page asks for.

        Args:
            participant: Who.
            given: What arrived, as JSON gives it.

        Raises:
            Refused: If it cannot be done; nothing has changed then.
        """
        message = read_message(given)
        # What has begun to be written must be taken up, even if the page is gone meanwhile.
        await asyncio.shield(asyncio.create_task(self._do(participant, message)))

    async def _do(self, participant: int, message: Message) -> None:
        person = self._people.get(participant)
        if person is None:
            raise Refused("refused.not_possible")
        self._active[participant] = self._clock()
        self._warned.discard(participant)
        if message.do == "erase":
            if _is_done(person):
                raise Refused("refused.not_possible")
            await self.erase(person.number)
        elif message.do in ("host", "join", "alone"):
            await self._pair_up(participant, message)
        else:
            await self._advance(participant, message)

    async def _advance(self, participant: int, message: Message) -> None:
        async with self._held(participant):
            person = self._people.get(participant)
            if person is None:  # erased while this waited
                raise Refused("refused.not_possible")
            here = self._here(person)
            moment = 0 if here.episode is None else here.episode.step + 1
            response = respond(here, message, self._chance(person, moment), self._clock())
            moved = self._move_on(person, response.journey)
            game, position = self._game(person), person.journey.position
            statements = [self._note(participant, *note) for note in response.notes]
            if moved.journey is not person.journey:
                statements.append(tables.save_journey(participant, moved.journey))
            if moved.journey.position != position:
                statements.append(self._part(moved))
            if response.answers is not None:
                statements += self._save_answers(person, here, response.answers)
            if response.chosen is not None:
                statements.append(tables.save_answer(game, position, response.chosen))
            if response.row is not None:
                statements.append(tables.save_row(game, position, response.row))
            if response.episode is not None:
                statements.append(tables.save_episode(game, position, response.episode))
            await self._commit(statements, moved)
            if response.episode is not None:
                self._episodes[game, position] = response.episode
            if response.answers is not None:
                self._answers[participant] += len(response.answers)
        self._wake(person.game)

    def _save_answers(
        self, person: Person, here: Standing, answers: Mapping[str, str]
    ) -> list[Statement]:
        """Answers as those in the first language would have given them."""
        name = here.stage.name
        first = self.settings.of(person.about.arm, self.settings.language).surveys
        found = in_first_language(here.surveys[name], first.get(name, here.surveys[name]), answers)
        return tables.save_answers(
            person.participant,
            name,
            {question: answer for question, (answer, _) in found.items()},
            {question: kind for question, (_, kind) in found.items()},
        )

    def _part(self, person: Person) -> Statement:
        """A part of the study was reached."""
        stage = person.stage
        words = [stage.kind, stage.name, stage.domain, str(stage.number or "")]
        return self._note(person.participant, "part", " ".join(word for word in words if word))

    async def _pair_up(self, participant: int, message: Message) -> None:
        code = message.code.strip().upper()
        async with self._entrance:
            found = self._host_of(code) if message.do == "join" else None
            host = participant if found is None else found.participant
            async with self._held(participant, host):
                person = self._people.get(participant)
                if person is None:  # erased while this waited
                    raise Refused("refused.not_possible")
                here = self._here(person)
                if here.stage.kind != "pairing":
                    raise Refused("refused.not_possible")
                if person.journey.paused:
                    raise Refused("refused.paused")
                if message.turn != here.turn:
                    raise Refused("refused.not_up_to_date")
                if message.do == "host":
                    await self._give_code(person)
                elif message.do == "alone":
                    if self._clock() - person.journey.reached < _PATIENCE:
                        raise Refused("refused.not_possible")
                    await self._go_on_alone(person, NO_PARTNER)
                else:
                    await self._join(person, code)

    async def _give_code(self, person: Person) -> None:
        if not person.journey.code:
            journey = person.journey._replace(code=_code(_CODE_LENGTH))
            await self._commit(
                [tables.save_journey(person.participant, journey)], person._replace(journey=journey)
            )
        self._wake(person.game)

    async def _join(self, person: Person, code: str) -> None:
        if person.journey.guesses >= _MOST_GUESSES:
            raise Refused("refused.too_many_codes")
        host = self._host_of(code)
        if host is None:
            journey = person.journey._replace(guesses=person.journey.guesses + 1)
            await self._commit(
                [tables.save_journey(person.participant, journey)], person._replace(journey=journey)
            )
            raise Refused("refused.no_partner")
        if host.participant == person.participant:
            raise Refused("refused.own_code")
        await self._bring_together(host, person)

    def _host_of(self, code: str) -> Person | None:
        """Who waits for the one that has this code."""
        codes = ((one, one.journey.code) for one in self._people.values() if self._waits(one))
        found = (one for one, own in codes if own and secrets.compare_digest(own, code))
        return next(found, None)

    def _waits(self, person: Person) -> bool:
        """Whether somebody waits for a partner."""
        return bool(person.stage.kind == "pairing" and person.token)

    async def _bring_together(self, host: Person, person: Person) -> None:
        """Two who have found each other: the first is Alice, the other Rob on Alice's way.

        What each has played before stays each one's own; both are held.
        """
        position = 1 + max(host.journey.position, person.journey.position)
        beyond = host.stages[host.journey.position + 1 :]

        def way(one: Person) -> tuple[Stage, ...]:
            past = one.stages[: one.journey.position + 1]
            return past + past[-1:] * (position - len(past)) + beyond

        own, game = person.journey, _PAIR_GAMES + host.participant
        journey = host.journey._replace(position=position, code="", guesses=0)
        alice = self._move_on(host._replace(game=game, stages=way(host)), journey)
        rob = self._move_on(
            person._replace(
                game=game,
                seat=1,
                stages=way(person),
                about=person.about._replace(arm=host.about.arm, order=host.about.order),
            ),
            journey._replace(best={}, wrong=own.wrong, outcome=own.outcome, paused=own.paused),
        )
        told = [
            self._note(one.participant, "partner", f"{other.number:06d}")
            for one, other in ((alice, rob), (rob, alice))
        ]
        await self._commit(
            [
                *map(tables.save_person, (alice, rob)),
                *map(tables.save_member, (alice, rob)),
                *map(self._part, (alice, rob)),
                *told,
            ],
            alice,
            rob,
        )
        for one in (alice, rob):
            self._played[one.participant].add(game)
        self._wake(game)

    def view(self, participant: int) -> dict[str, Any]:
        """What a participant's page shows now."""
        person, now = self._people[participant], self._clock()
        here, settings = self._here(person), self._settings_of(person)
        journey, stage = person.journey, here.stage
        seen = view(here)
        seen["study"] = settings.title
        seen["break_minutes"] = round(settings.limits.pause / _MINUTE)
        seen["paired"] = self._partner(person) is not None
        seen["time_left"] = self._time_left(here, now)
        if journey.skipped:
            seen["skipped"] = say(here.language, "ended.time")
        if settings.limits.idle and self._must_act(here):
            seen["idle_after"] = settings.limits.idle
        if stage.kind == "pairing":
            waited = now - journey.reached
            seen |= {"pairing": settings.pairing, "waited": round(waited), "patience": _PATIENCE}
        if stage.kind == "session" and here.two_people:
            partner = self._partner(person)
            seen["partner_here"] = partner is not None and self._is_here(partner.participant)
            seen["partner_rests"] = bool(here.partner_paused)
        if stage.kind == "thanks":
            seen |= self._farewell(person, settings)
        return seen

    def _farewell(self, person: Person, settings: Settings) -> dict[str, Any]:
        """The last page: why it has come, and the completion code of those who get one."""
        outcome = person.journey.outcome
        code = settings.code
        if code == INDIVIDUAL:
            code = self._identities[person.participant].get(CODE, "")
        if outcome in UNPAID:
            code = ""
        paid = outcome not in UNPAID
        return {
            "outcome": say(person.about.language, f"ended.{outcome}") if outcome else "",
            "thanks": settings.thanks if paid else "",
            "code": code,
            "code_link": settings.code_link.replace("{code}", code) if paid else "",
            "shared": self.settings.shared_computer,
        }

    def _time_left(self, here: Standing, now: float) -> float | None:
        """Seconds until this part ends in any case."""
        limit, episode = here.stage.seconds, here.episode
        # The break of one is the break of both.
        rests = here.journey.paused or here.partner_paused
        if not limit or here.stage.kind == "pairing" or rests:
            return None
        since = here.journey.reached
        if episode is not None:
            if not all(episode.started) or episode.over:
                return None
            since = episode.begun
        return max(limit - (now - since), 0.0)

    def overview(self) -> list[dict[str, Any]]:
        """For the researcher: where everyone stands."""
        rows = []
        played = {game for (game, _), episode in self._episodes.items() if episode.step}
        for person in self._people.values():
            here, partner = self._here(person), self._partner(person)
            rows.append(
                {
                    "number": person.number,
                    "stage": here.stage.kind,
                    "task": here.stage.domain,
                    "session": here.stage.number,
                    "at": person.journey.position + 1,
                    "of": len(person.stages),
                    "steps": 0 if here.episode is None else here.episode.step,
                    "here": self._is_here(person.participant),
                    "arm": person.about.arm,
                    "language": person.about.language,
                    "begun": person.about.consented,
                    "active": self._active[person.participant],
                    "paused": bool(person.journey.paused),
                    "partner": [] if partner is None else [partner.number],
                    "outcome": person.journey.outcome,
                    "wrong": person.journey.wrong,
                    "answers": self._answers[person.participant],
                    "played": not played.isdisjoint(self._played[person.participant]),
                }
            )
        return rows

    # ------------------------------------------------------------------ as time passes

    async def tick(self) -> None:
        """What time alone brings about; called every second or so.

        Limits of parts, of breaks, of idleness; partners who are gone; those who wait for one.
        """
        for participant in list(self._people):
            person = self._people.get(participant)
            if person is None or person.token is None or _is_done(person):
                continue
            if participant in self._connections and not self._is_here(participant):
                # It may come back over the same connection; until then it counts as gone.
                self._away[participant] = self._connections[participant].heard
            await self._pass_time(person)
        if self.settings.pairing == "arrival":
            await self._match()

    async def _pass_time(self, person: Person) -> None:
        now, participant = self._clock(), person.participant
        limits = self._settings_of(person).limits
        here = self._here(person)
        journey, stage = person.journey, here.stage
        if journey.paused:
            if limits.pause and now - journey.paused > limits.pause:
                await self._end(person, PAUSED)
            return
        if self._time_left(here, now) == 0.0:
            await self._end_part(person)
            return
        if stage.kind == "pairing":
            if stage.seconds and now - journey.reached > stage.seconds:
                await self._give_up(person, NO_PARTNER)
            return
        # It is somebody's turn when a partner has acted, or has come back from a break.
        turn = 0.0 if here.episode is None else here.episode.last
        idle = now - max(self._active[participant], journey.reached, turn)
        if limits.idle and self._is_here(participant) and self._must_act(here):
            if idle > limits.idle:
                await self._end(person, IDLE)
                return
            if idle > limits.idle / 2 and participant not in self._warned:
                self._warned.add(participant)
                self._connections[participant].wake(
                    say(here.language, "page.still_there", seconds=round(limits.idle - idle))
                )
        if stage.kind == "session" and self._partner_is_gone(person, here, limits.partner):
            await self._give_up(person, ALONE)

    async def _give_up(self, person: Person, outcome: str) -> None:
        """Nobody waits for a partner any longer."""
        async with self._entrance, self._held(person.participant):
            if self._people.get(person.participant) is person:
                await self._go_on_alone(person, outcome)

    def _must_act(self, here: Standing) -> bool:
        """Whether it is this participant on whom everything waits."""
        episode = here.episode
        if episode is None or not here.two_people:
            return here.stage.kind != "pairing"
        if here.partner_paused:
            return False
        waiting = episode.started[here.seat] and not all(episode.started)
        return not waiting and (episode.pending[here.seat] == play.UNKNOWN)

    def _partner_is_gone(self, person: Person, here: Standing, patience: float) -> bool:
        if here.episode is None or not here.two_people or here.episode.over:
            return False
        partner = self._partner(person)
        if partner is None or partner.journey.outcome or partner.token is None:
            return True
        other = partner.participant
        away = not self._is_here(other) and not partner.journey.paused
        # Who is away oneself does not wait.
        present = self._is_here(person.participant)
        return present and away and patience > 0 and self._clock() - self._away[other] > patience

    async def _end(self, person: Person, outcome: str) -> None:
        async with self._held(person.participant):
            if self._people.get(person.participant) is not person:
                return
            moved = self._move_on(person, ended(person.journey, person.stages, outcome))
            await self._commit(
                [
                    tables.save_journey(person.participant, moved.journey),
                    self._note(person.participant, "ended", outcome),
                ],
                moved,
            )
        self._wake(person.game)

    async def _end_part(self, person: Person) -> None:
        """The time of a survey, a tutorial or a session is over."""
        async with self._held(person.participant):
            if self._people.get(person.participant) is not person:
                return
            here = self._here(person)
            if self._time_left(here, self._clock()) != 0.0:
                return
            key = self._game(person), person.journey.position
            statements = [self._note(person.participant, "time", here.stage.kind)]
            moved = person
            if here.episode is None:
                moved = self._move_on(person, out_of_time(person.journey))
                statements += [
                    tables.save_journey(person.participant, moved.journey), self._part(moved),
                ]  # fmt: skip
            else:
                cut = play.cut(here.episode, play.TIME_OVER)
                statements.append(tables.save_episode(*key, cut))
            await self._commit(statements, moved)
            if here.episode is not None:
                self._episodes[key] = cut
        self._wake(person.game)

    async def _go_on_alone(self, person: Person, outcome: str) -> None:
        """There is no partner, or none any more: what is left is played with an AI, or left out.

        A session that has begun ends where it is. Who goes on is held.
        """
        settings, position = self._settings_of(person), person.journey.position
        key = person.game, position
        here = self._here(person)
        statements = [self._note(person.participant, "alone", outcome)]
        cut = None
        if here.episode is not None and here.episode.step and not here.episode.over:
            cut = play.cut(here.episode, play.PARTNER_LEFT)
            statements.append(tables.save_episode(*key, cut))
        if settings.without_partner == ALONE_AI:
            begun = here.stage.kind == "pairing" or cut is not None
            first = position + 1 if begun else position
            robot = 1 - person.seat
            stages = person.stages[:first] + tuple(
                stage._replace(teammate=AI, robot=robot)
                if stage.teammate == HUMAN or (not stage.teammate and person.teammate == HUMAN)
                else stage
                for stage in person.stages[first:]
            )
            game = _SOLO_GAMES + person.participant
            person = person._replace(game=game, stages=stages)
            journey = person.journey._replace(
                position=first, outcome=outcome, code="", guesses=0, reached=self._clock()
            )
            statements.append(tables.save_member(person))
        else:
            journey = without_partner(person.journey, person.stages, outcome)
        moved = self._move_on(person, journey)
        statements += [tables.save_person(moved), self._part(moved)]
        await self._commit(statements, moved)
        self._played[moved.participant].add(moved.game)
        if cut is not None:
            self._episodes[key] = cut
        self._wake(key[0])
        self._wake(moved.game)

    async def _match(self) -> None:
        """Bring those together who wait for a partner, in the order in which they came."""
        async with self._entrance:
            ready = [person for person in self._people.values() if self._is_ready(person)]
            ready.sort(key=lambda person: person.journey.reached)
            for pair in zip(ready[::2], ready[1::2], strict=False):
                async with self._held(*(person.participant for person in pair)):
                    # Either may have stopped or paused while others were brought together.
                    host, other = (self._people[person.participant] for person in pair)
                    if self._is_ready(host) and self._is_ready(other):
                        await self._bring_together(host, other)

    def _is_ready(self, person: Person) -> bool:
        """Whether somebody who waits for a partner can begin at once."""
        resting = person.journey.paused
        return self._waits(person) and not resting and self._is_here(person.participant)

    # ------------------------------------------------------------------ helpers

    @contextlib.asynccontextmanager
    async def _held(self, *participants: int) -> AsyncIterator[None]:
        """Nobody else changes these participants, or what they play, meanwhile.

        Who needs the entrance too takes it first. While this waits they may have been erased.
        """

        def games() -> list[int]:
            here = {self._people[one].game for one in participants if one in self._people}
            return sorted(here)

        while True:
            async with contextlib.AsyncExitStack() as stack:
                held = games()
                for game in held:
                    await stack.enter_async_context(self._locks[game])
                if games() == held:  # and not in another game by now
                    yield
                    return

    def _settings_of(self, person: Person) -> Settings:
        """The study in the condition and the language of a participant."""
        return self.settings.of(person.about.arm, person.about.language)

    def _here(self, person: Person) -> Standing:
        """Where a participant stands."""
        stage = person.stage
        playing = stage.kind in ("tutorial", "session")
        rules = rules_for(stage, person.teammate, self._folder) if playing else None
        episode = None
        both = person.with_person and stage.kind == "session"
        partner = self._partner(person) if both else None
        if rules is not None and stage.kind == "session":
            # The same until it is first written: chance is a function of study, game and step.
            stored = self._episodes.get((self._game(person), person.journey.position))
            episode = stored or play.begin(rules, self._chance(person, 0))
        return Standing(
            person.journey,
            person.stages,
            self._settings_of(person).surveys,
            rules,
            episode,
            person.seat if person.with_person else 1 - stage.robot,
            person.about.language,
            person.with_person,
            0.0 if partner is None else partner.journey.paused,
        )

    def _game(self, person: Person) -> int:
        """The game of what a participant plays now: a pair's own is for what both play."""
        # An AI in the partner's place, which it took over; else it is one that was to be there.
        alone = _SOLO_GAMES <= person.game < _PAIR_GAMES
        replaces = alone and person.stage.robot == 1 - person.seat
        return person.game if person.with_person or replaces else person.participant

    def _chance(self, person: Person, moment: int) -> Float[np.ndarray, " chances"]:
        key = [self._store.seed, self._game(person), person.journey.position, moment]
        return np.random.default_rng(key).random(play.NUM_CHANCES)

    def _move_on(self, person: Person, journey: Journey) -> Person:
        if journey.position != person.journey.position:
            journey = journey._replace(reached=self._clock())
        return person._replace(journey=self._arrive(journey, person.stages, person.teammate))

    def _arrive(self, journey: Journey, stages: tuple[Stage, ...], teammate: str) -> Journey:
        stage = stages[journey.position]
        rules = rules_for(stage, teammate, self._folder) if stage.kind == "tutorial" else None
        return enter_stage(journey, stages, rules)

    async def _commit(self, statements: list[Statement], *changed: Person) -> None:
        """Write, and only then let everyone know."""
        await self._writer.commit(statements)
        for person in changed:
            self._people[person.participant] = person
            if person.token:
                self._by_token[person.token] = person.participant

    def _members(self, game: int) -> list[Person]:
        return [person for person in self._people.values() if person.game == game]

    def _partner(self, person: Person) -> Person | None:
        """With whom a participant plays, now or in other parts."""
        members = self._members(person.game)
        return next((one for one in members if one.participant != person.participant), None)

    def _wake(self, game: int) -> None:
        for person in self._members(game):
            if person.participant in self._connections:
                self._connections[person.participant].wake()


def _code(length: int) -> str:
    """A code that people can read and type."""
    return "".join(secrets.choice(_CODE_LETTERS) for _ in range(length))


@contextlib.contextmanager
def sole_server(folder: Any) -> Any:
    """Holds a study for this process: two servers of one study would not know of each other.

    Raises:
        OSError: If another process holds it.
    """
    try:
        import fcntl
    except ImportError:  # no such lock on this system
        yield
        return
    with open(folder / ".serving", "w", encoding="utf-8") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OSError(f"{folder} is being served already, by another process") from None
        yield
