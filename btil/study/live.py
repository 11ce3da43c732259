"""The running study: who is here, what they ask for, and the order in which it reaches the disk."""

import asyncio
import contextlib
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Float

from btil.study import episode as play
from btil.study import store as tables
from btil.study.episode import Refused
from btil.study.sessions import Journey, Message, Standing, enter_stage, read_message, respond
from btil.study.settings import SURVEYS, Settings, Stage
from btil.study.store import Person, Statement, Store
from btil.study.teammate import rules_for
from btil.study.views import view

_CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # none that look alike
_CODE_LENGTH = 6
_MOST_GUESSES = 30
_NUMBERS = 10**6


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
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                together = [one for statements, _ in batch for one in statements]
                await loop.run_in_executor(self._thread, self._store.write, together)
                failed: list[Exception | None] = [None] * len(batch)
            except Exception:
                # One of them cannot be written: the others must not suffer.
                failed = [await self._write_one(statements) for statements, _ in batch]
            for (_, done), error in zip(batch, failed, strict=True):
                if done.cancelled():
                    continue
                if error is None:
                    done.set_result(None)
                else:
                    done.set_exception(error)

    async def _write_one(self, statements: list[Statement]) -> Exception | None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, self._store.write, statements)
        except Exception as error:
            return error
        return None

    def close(self) -> None:
        """Finish what has begun."""
        self._thread.shutdown()


class Connection:
    """A participant's open page.

    Attributes:
        changed: Set when there is something new to show.
        notice: A sentence to show once.
        closed: Code with which the page is to be closed, None while it may stay.
    """

    def __init__(self) -> None:
        self.changed = asyncio.Event()
        self.notice = ""
        self.closed: int | None = None

    def wake(self, notice: str = "") -> None:
        """Let the page show what there is now."""
        self.notice = notice or self.notice
        self.changed.set()

    def close(self, code: int) -> None:
        """Close the page."""
        self.closed = code
        self.changed.set()


def _ahead(person: Person) -> tuple[Stage, ...]:
    """What is still before a participant."""
    return person.stages[person.journey.position :]


REPLACED, NOT_A_PARTICIPANT = 4001, 4401  # codes with which pages are closed


class LiveStudy:
    """All participants of a study, while it is served.

    Args:
        store: The study on disk; what is in it goes on.
        settings: For those who come.
        teammate: "ai" or "human", for those who come.
        clock: Gives the time in seconds.
    """

    def __init__(
        self,
        store: Store,
        settings: Settings,
        teammate: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings, self.teammate = settings, teammate
        self._store, self._clock = store, clock
        self._writer = Writer(store)
        self._people = {person.participant: person for person in store.people()}
        self._by_token = {p.token: p.participant for p in self._people.values() if p.token}
        self._episodes = store.episodes()
        self._connections: dict[int, Connection] = {}
        self._locks: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._entrance = asyncio.Lock()

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
            ValueError: If the settings lack a survey that somebody has still to answer.
        """
        for name in SURVEYS:
            left = [p for p in self._people.values() if Stage("survey", name=name) in _ahead(p)]
            if left and name not in self.settings.surveys:
                raise ValueError(
                    f"the settings have no {name} survey, which participants still have to answer: "
                    f"{len(left)}"
                )
        generator = np.random.default_rng(0)
        ways = [(self.settings.stages(self.teammate, generator), self.teammate)]
        ways += [(_ahead(person), person.teammate) for person in self._people.values()]
        for stages, teammate in ways:
            for stage in stages:
                if stage.kind in ("tutorial", "session"):
                    rules_for(stage, teammate)

    # ------------------------------------------------------------------ coming and going

    async def enter(self) -> str:
        """A new participant, who has agreed to take part.

        Returns:
            The session token.

        Raises:
            Refused: If the study is full.
        """
        async with self._entrance:
            if len(self._people) >= self.settings.most_participants:
                raise Refused("This study has all the participants it needs.")
            token = secrets.token_urlsafe(32)
            participant = max(self._people, default=0) + 1
            generator = np.random.default_rng([self._store.seed, participant])
            taken = {person.number for person in self._people.values()}
            number = int(generator.integers(_NUMBERS))
            while number in taken:
                number = int(generator.integers(_NUMBERS))
            stages = self.settings.stages(self.teammate, generator)
            person = Person(
                participant=participant,
                number=number,
                token=tables.hashed(token),
                game=participant,
                seat=0,
                teammate=self.teammate,
                stages=stages,
                journey=self._arrive(Journey(), stages, self.teammate),
            )
            await self._commit([tables.save_person(person)], person)
        return token

    def participant_of(self, token: str | None) -> int | None:
        """Whose token this is; None if nobody's."""
        return None if token is None else self._by_token.get(tables.hashed(token))

    async def leave(self, participant: int) -> None:
        """A participant ends for good: the token is void from now on."""
        game = self._people[participant].game
        async with self._entrance, self._locks[game]:
            person = self._people[participant]
            await self._commit([tables.save_person(person._replace(token=None))])
            self._by_token.pop(person.token or b"", None)
            self._people[participant] = person._replace(token=None)
        if participant in self._connections:
            self._connections[participant].close(NOT_A_PARTICIPANT)

    def connect(self, participant: int) -> Connection:
        """A participant's page; one that was open before is closed."""
        if participant in self._connections:
            self._connections[participant].close(REPLACED)
        connection = self._connections[participant] = Connection()
        self._wake(self._people[participant].game)
        return connection

    def disconnect(self, participant: int, connection: Connection) -> None:
        """A page is gone."""
        if self._connections.get(participant) is connection:
            del self._connections[participant]
            self._wake(self._people[participant].game)

    def is_current(self, participant: int, connection: Connection) -> bool:
        """Whether a page has not been replaced or closed."""
        return self._connections.get(participant) is connection and connection.closed is None

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
        step = self._pair_up if message.do in ("host", "join") else self._advance
        # What has begun to be written must be taken up, even if the page is gone meanwhile.
        await asyncio.shield(asyncio.create_task(step(participant, message)))

    async def _advance(self, participant: int, message: Message) -> None:
        async with self._locks[self._people[participant].game]:
            person = self._people[participant]
            here = self._here(person)
            moment = 0 if here.episode is None else here.episode.step + 1
            response = respond(here, message, self._chance(person, moment), self._clock())
            moved = self._move_on(person, response.journey)
            game, position = person.game, person.journey.position
            statements = []
            if moved.journey is not person.journey:
                statements.append(tables.save_journey(participant, moved.journey))
            if response.answers is not None:
                statements += tables.save_answers(participant, here.stage.name, response.answers)
            if response.row is not None:
                statements.append(tables.save_row(game, position, response.row))
            if response.episode is not None:
                statements.append(tables.save_episode(game, position, response.episode))
            await self._commit(statements, moved)
            if response.episode is not None:
                self._episodes[game, position] = response.episode
        self._wake(person.game)

    async def _pair_up(self, participant: int, message: Message) -> None:
        async with self._entrance:
            person = self._people[participant]
            here = self._here(person)
            if here.stage.kind != "pairing":
                raise Refused("This is not possible now.")
            if message.turn != here.turn:
                raise Refused("The page was not up to date; here is where you are.")
            if message.do == "host":
                await self._give_code(person)
            else:
                await self._join(person, message.code.strip().upper())

    async def _give_code(self, person: Person) -> None:
        if not person.journey.code:
            code = "".join(secrets.choice(_CODE_LETTERS) for _ in range(_CODE_LENGTH))
            journey = person.journey._replace(code=code)
            await self._commit(
                [tables.save_journey(person.participant, journey)], person._replace(journey=journey)
            )
        self._wake(person.game)

    async def _join(self, person: Person, code: str) -> None:
        if person.journey.guesses >= _MOST_GUESSES:
            raise Refused("Too many codes were tried; please ask the researcher.")
        for host in self._people.values():
            waiting = host.stages[host.journey.position].kind == "pairing" and host.token
            if waiting and host.journey.code and secrets.compare_digest(host.journey.code, code):
                break
        else:
            journey = person.journey._replace(guesses=person.journey.guesses + 1)
            await self._commit(
                [tables.save_journey(person.participant, journey)], person._replace(journey=journey)
            )
            raise Refused("There is no partner with this code.")
        if host.participant == person.participant:
            raise Refused("This is your own code: give it to your partner.")
        beyond = host.journey._replace(position=host.journey.position + 1, code="", guesses=0)
        alice = self._move_on(host, beyond)
        rob = person._replace(game=host.game, seat=1, stages=host.stages)
        rob = self._move_on(rob, beyond._replace(best={}))
        await self._commit([tables.save_person(alice), tables.save_person(rob)], alice, rob)
        self._wake(host.game)

    def view(self, participant: int) -> dict[str, Any]:
        """What a participant's page shows now."""
        person = self._people[participant]
        seen = view(self._here(person))
        if seen["kind"] == "session" and person.teammate == "human":
            partners = [p.participant for p in self._members(person.game)]
            seen["partner_here"] = all(p in self._connections for p in partners)
        seen["study"] = self.settings.title
        return seen

    def overview(self) -> list[dict[str, Any]]:
        """For the researcher: where everyone stands."""
        rows = []
        for person in self._people.values():
            here = self._here(person)
            rows.append(
                {
                    "number": person.number,
                    "stage": here.stage.kind,
                    "task": here.stage.domain,
                    "session": here.stage.number,
                    "at": person.journey.position + 1,
                    "of": len(person.stages),
                    "steps": 0 if here.episode is None else here.episode.step,
                    "here": person.participant in self._connections,
                }
            )
        return rows

    # ------------------------------------------------------------------ helpers

    def _here(self, person: Person) -> Standing:
        """Where a participant stands."""
        stage = person.stages[person.journey.position]
        playing = stage.kind in ("tutorial", "session")
        rules = rules_for(stage, person.teammate) if playing else None
        episode = None
        if rules is not None and stage.kind == "session":
            # The same until it is first written: chance is a function of study, game and step.
            stored = self._episodes.get((person.game, person.journey.position))
            episode = stored or play.begin(rules, self._chance(person, 0))
        return Standing(
            person.journey, person.stages, self.settings.surveys, rules, episode, person.seat
        )

    def _chance(self, person: Person, moment: int) -> Float[np.ndarray, " chances"]:
        key = [self._store.seed, person.game, person.journey.position, moment]
        return np.random.default_rng(key).random(play.NUM_CHANCES)

    def _move_on(self, person: Person, journey: Journey) -> Person:
        return person._replace(journey=self._arrive(journey, person.stages, person.teammate))

    def _arrive(self, journey: Journey, stages: tuple[Stage, ...], teammate: str) -> Journey:
        stage = stages[journey.position]
        rules = rules_for(stage, teammate) if stage.kind == "tutorial" else None
        return enter_stage(journey, stages, rules)

    async def _commit(self, statements: list[Statement], *changed: Person) -> None:
        """Write, and only then let everyone know."""
        await self._writer.commit(statements)
        for person in changed:
            self._people[person.participant] = person
            if person.token:
                self._by_token[person.token] = person.participant

    def _members(self, game: int) -> Iterable[Person]:
        return [person for person in self._people.values() if person.game == game]

    def _wake(self, game: int) -> None:
        for person in self._members(game):
            if person.participant in self._connections:
                self._connections[person.participant].wake()


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
