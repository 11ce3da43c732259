"""The study on disk: one SQLite file with a write-ahead log.

Whatever a participant does is one transaction, flushed to the disk before anyone sees its result.
"""

import contextlib
import hashlib
import json
import secrets
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from btil.study.episode import Episode, Row
from btil.study.sessions import Journey
from btil.study.settings import Stage

DATABASE_FILE = "study.sqlite"
_VERSION = 1
_SCHEMA = """
CREATE TABLE study (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE participants (
    participant INTEGER PRIMARY KEY,
    number INTEGER NOT NULL UNIQUE,    -- random; the one that exports show
    token BLOB UNIQUE,                 -- SHA-256 of the session token; NULL: never again
    game INTEGER NOT NULL,             -- those who play together have one game
    seat INTEGER NOT NULL,             -- 0 alice, 1 rob
    teammate TEXT NOT NULL,
    stages TEXT NOT NULL,
    journey TEXT NOT NULL
) STRICT;
CREATE TABLE answers (
    participant INTEGER NOT NULL,
    survey TEXT NOT NULL,
    question TEXT NOT NULL,
    answer TEXT NOT NULL,
    PRIMARY KEY (participant, survey, question)
) STRICT;
CREATE TABLE episodes (
    game INTEGER NOT NULL,
    position INTEGER NOT NULL,         -- index of the session among the stages
    episode TEXT NOT NULL,
    PRIMARY KEY (game, position)
) STRICT;
CREATE TABLE steps (
    game INTEGER NOT NULL,
    position INTEGER NOT NULL,
    step INTEGER NOT NULL,
    state INTEGER NOT NULL,
    alice_action INTEGER NOT NULL,
    rob_action INTEGER NOT NULL,
    alice_latent INTEGER NOT NULL,     -- chosen destination or AI's mental state; -1 not asked
    rob_latent INTEGER NOT NULL,
    alice_answered INTEGER NOT NULL,   -- whether the selector was answered just before
    rob_answered INTEGER NOT NULL,
    seconds REAL NOT NULL,             -- since the step before
    PRIMARY KEY (game, position, step)
) STRICT;
"""

Statement = tuple[str, tuple[Any, ...]]


class Person(NamedTuple):
    """A participant as stored.

    Attributes:
        participant: Key in the tables.
        number: Random number under which the data are exported.
        token: SHA-256 of the session token; None once it is void.
        game: Who plays together has the same.
        seat: 0 for alice, 1 for rob.
        teammate: "ai" or "human".
        stages: The way through the study.
        journey: Where on it.
    """

    participant: int
    number: int
    token: bytes | None
    game: int
    seat: int
    teammate: str
    stages: tuple[Stage, ...]
    journey: Journey


def hashed(token: str) -> bytes:
    """What is kept of a session token: who reads the file cannot pose as a participant."""
    return hashlib.sha256(token.encode("utf-8")).digest()


# ---------------------------------------------------------------------- what is written


def save_person(person: Person) -> Statement:
    """A participant, new or changed."""
    return (
        "INSERT OR REPLACE INTO participants VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *person[:6],
            _json([list(stage) for stage in person.stages]),
            _json(person.journey.as_json()),
        ),
    )


def save_journey(participant: int, journey: Journey) -> Statement:
    """Where a participant stands."""
    return (
        "UPDATE participants SET journey = ? WHERE participant = ?",
        (_json(journey.as_json()), participant),
    )


def save_episode(game: int, position: int, episode: Episode) -> Statement:
    """Where a session stands."""
    return (
        "INSERT OR REPLACE INTO episodes VALUES (?, ?, ?)",
        (game, position, _json(episode.as_json())),
    )


def save_row(game: int, position: int, row: Row) -> Statement:
    """A step. The same step cannot be written twice."""
    return (
        "INSERT INTO steps VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            game, position, row.step, row.state, *row.actions, *row.latents,
            *map(int, row.answered), row.seconds,
        ),
    )  # fmt: skip


def save_answers(participant: int, survey: str, answers: dict[str, str]) -> list[Statement]:
    """Answers to a survey."""
    return [
        (
            "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)",
            (participant, survey, question, answer),
        )
        for question, answer in answers.items()
    ]


# ---------------------------------------------------------------------- the file


class Store:
    """A study's file.

    Args:
        folder: The study's folder.
        seed: Of a new study: decides what chance does in it; None: drawn.
        create: Whether to make the file where there is none.
        read_only: Whether nothing is to be written.

    Attributes:
        seed: The study's seed.
        name: A random name of the study.

    Raises:
        FileNotFoundError: If there is no file and none is to be made.
        ValueError: If the file is of another kind, or damaged.
    """

    def __init__(
        self,
        folder: Path,
        seed: int | None = None,
        create: bool = False,
        read_only: bool = False,
    ) -> None:
        self._path = path = folder / DATABASE_FILE
        if not create and not path.is_file():
            raise FileNotFoundError(f"{folder} holds no study: there is no {DATABASE_FILE} in it")
        # All use of the connection is serialised by its owner, from whatever thread.
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            with self.reading():
                self._prepare(path, seed, read_only)
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self, path: Path, seed: int | None, read_only: bool) -> None:
        execute = self._connection.execute
        try:
            execute("PRAGMA busy_timeout = 5000")
            if read_only:
                execute("PRAGMA query_only = ON")
            else:
                execute("PRAGMA journal_mode = WAL")
                # Flushed at every commit: a step that was shown survives a power cut too.
                execute("PRAGMA synchronous = FULL")
            version = execute("PRAGMA user_version").fetchone()[0]
            tables = execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path}: not a study ({error})") from error
        if version == 0 and tables == 0 and not read_only:
            chosen = secrets.randbits(62) if seed is None else seed
            execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";\n"):
                execute(statement)
            execute(
                "INSERT INTO study VALUES ('seed', ?), ('name', ?)",
                (str(chosen), secrets.token_hex(4)),
            )
            execute(f"PRAGMA user_version = {_VERSION}")
            execute("COMMIT")
        elif version != _VERSION:
            raise ValueError(
                f"{path}: version {version} of a study's file; this btil reads {_VERSION}"
            )
        facts = dict(execute("SELECT name, value FROM study").fetchall())
        self.seed, self.name = int(facts["seed"]), str(facts["name"])
        if seed is not None and seed != self.seed:
            raise ValueError(
                f"{path}: this study has the seed {self.seed}; a seed is given only when it begins"
            )

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """What is in the file and could not have been written by us is told as its damage.

        Raises:
            ValueError: Naming the file.
            OSError: If it cannot be read, naming it too.
        """
        try:
            yield
        except sqlite3.OperationalError as error:  # locked, or the disk
            raise OSError(f"{self._path}: {error}") from error
        except (
            sqlite3.DatabaseError,
            LookupError,
            TypeError,
            AttributeError,
            ValueError,
            RecursionError,
        ) as error:
            if str(error).startswith(str(self._path)):
                raise
            raise ValueError(f"{self._path}: damaged ({error!r})") from error

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def write(self, statements: Iterable[Statement]) -> None:
        """Do all of the statements or none; what was done is on the disk afterwards."""
        execute = self._connection.execute
        execute("BEGIN IMMEDIATE")
        try:
            for sql, values in statements:
                execute(sql, values)
            execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                execute("ROLLBACK")
            raise

    def people(self) -> Iterator[Person]:
        """All participants, in the order in which they came."""
        with self.reading():
            rows = self._connection.execute("SELECT * FROM participants ORDER BY participant")
            people = [
                Person._make(
                    [
                        *plain,
                        tuple(Stage(*stage) for stage in json.loads(stages)),
                        Journey.from_json(json.loads(journey)),
                    ]
                )
                for *plain, stages, journey in rows.fetchall()
            ]
        yield from people

    def episodes(self) -> dict[tuple[int, int], Episode]:
        """All sessions, by (game, position)."""
        with self.reading():
            rows = self._connection.execute("SELECT * FROM episodes ORDER BY game, position")
            return {
                (game, position): Episode.from_json(json.loads(episode))
                for game, position, episode in rows.fetchall()
            }

    def steps(self, game: int, position: int) -> list[Row]:
        """The steps of a session."""
        rows = self._connection.execute(
            "SELECT step, state, alice_action, rob_action, alice_latent, rob_latent, "
            "alice_answered, rob_answered, seconds FROM steps "
            "WHERE game = ? AND position = ? ORDER BY step",
            (game, position),
        )
        return [
            Row(step, state, (a, b), (x, y), (bool(p), bool(q)), seconds)
            for step, state, a, b, x, y, p, q, seconds in rows.fetchall()
        ]

    def answers(self) -> list[tuple[int, str, str, str]]:
        """All answers: participant, survey, question, answer."""
        return self._connection.execute(
            "SELECT participant, survey, question, answer FROM answers "
            "ORDER BY participant, survey DESC, rowid"
        ).fetchall()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))
