"""The study on disk: one SQLite file with a write-ahead log.

Whatever a participant does is one transaction, flushed to the disk before anyone sees its result.
What tells who somebody is elsewhere (values of the address, completion codes) is in a file of its
own beside it, so that the data can be given away without it.
"""

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from btil.study.episode import Answer, Episode, Row
from btil.study.sessions import Journey
from btil.study.settings import HUMAN, Stage
from btil.study.texts import ENGLISH

DATABASE_FILE = "study.sqlite"
IDENTITIES_FILE = "identities.sqlite"
CODE = "completion_code"  # its name among the identities
_VERSION = 2
_FILE_MODE = 0o600
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
    journey TEXT NOT NULL,
    about TEXT NOT NULL DEFAULT '{}'   -- condition, order, language, consent
) STRICT;
CREATE TABLE answers (
    participant INTEGER NOT NULL,
    survey TEXT NOT NULL,
    question TEXT NOT NULL,
    answer TEXT NOT NULL,
    kind TEXT NOT NULL DEFAULT '',     -- of the question
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
_SCHEMA_2 = """
CREATE TABLE members (                 -- who has played in a game, also those who have left it
    game INTEGER NOT NULL,
    participant INTEGER NOT NULL,
    seat INTEGER NOT NULL,
    PRIMARY KEY (game, participant)
) STRICT;
CREATE TABLE selector (                -- every answer to the selector
    game INTEGER NOT NULL,
    position INTEGER NOT NULL,
    step INTEGER NOT NULL,             -- before which it was given
    seat INTEGER NOT NULL,
    number INTEGER NOT NULL,
    reason TEXT NOT NULL,              -- why it was open: start, steps, item, asked
    latent INTEGER NOT NULL,
    seconds REAL NOT NULL,             -- for which it was open
    PRIMARY KEY (game, position, step, seat, number)
) STRICT;
CREATE TABLE notes (                   -- what happened when
    participant INTEGER NOT NULL,
    time REAL NOT NULL,                -- seconds since 1970
    what TEXT NOT NULL,
    more TEXT NOT NULL
) STRICT;
"""
# From the first version: what is new, and who has played in a game.
_FROM_1 = f"""
ALTER TABLE participants ADD COLUMN about TEXT NOT NULL DEFAULT '{{}}';
ALTER TABLE answers ADD COLUMN kind TEXT NOT NULL DEFAULT '';
{_SCHEMA_2};
INSERT INTO members SELECT game, participant, seat FROM participants;
"""
_SCHEMA_APART = """
CREATE TABLE IF NOT EXISTS apart.identities (
    participant INTEGER NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (participant, name)
) STRICT;
"""

Statement = tuple[str, tuple[Any, ...]]


class About(NamedTuple):
    """What is settled about a participant at the start.

    Attributes:
        arm: The condition.
        order: Indices of the tasks, in the order of this participant.
        language: Of the texts.
        consent: Version of the text that was agreed to.
        consented: When, in seconds since 1970; 0 in old recordings.
    """

    arm: str = ""
    order: tuple[int, ...] = ()
    language: str = ENGLISH
    consent: str = ""
    consented: float = 0.0

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> "About":
        """Read what `_asdict` gave, after JSON has made a list of its tuple."""
        return cls(**{**given, "order": tuple(given.get("order", ()))})


class Note(NamedTuple):
    """What happened when.

    Attributes:
        participant: To whom.
        time: In seconds since 1970.
        what: "consent", "part", "connected", "gone", "pause", "resume", "attention", "time",
            "partner", "ended", ...
        more: About it.
    """

    participant: int
    time: float
    what: str
    more: str


class Person(NamedTuple):
    """A participant as stored.

    Attributes:
        participant: Key in the tables.
        number: Random number under which the data are exported.
        token: SHA-256 of the session token; None once it is void.
        game: Who plays together has the same.
        seat: 0 for alice, 1 for rob.
        teammate: Of the settings, for stages that name none.
        stages: The way through the study.
        journey: Where on it.
        about: What was settled at the start.
    """

    participant: int
    number: int
    token: bytes | None
    game: int
    seat: int
    teammate: str
    stages: tuple[Stage, ...]
    journey: Journey
    about: About = About()

    @property
    def stage(self) -> Stage:
        """The present stage."""
        return self.stages[self.journey.position]

    @property
    def with_person(self) -> bool:
        """Whether the teammate of this stage is a person."""
        return (self.stage.teammate or self.teammate) == HUMAN


def hashed(token: str) -> bytes:
    """What is kept of a session token: who reads the file cannot pose as a participant."""
    return hashlib.sha256(token.encode("utf-8")).digest()


# ---------------------------------------------------------------------- what is written


def save_person(person: Person) -> Statement:
    """A participant, new or changed."""
    return (
        "INSERT OR REPLACE INTO participants VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            *person[:6],
            _json([list(stage) for stage in person.stages]),
            _json(person.journey.as_json()),
            _json(person.about._asdict()),
        ),
    )


def save_member(person: Person) -> Statement:
    """A participant plays in a game, in a seat."""
    return (
        "INSERT OR REPLACE INTO members VALUES (?, ?, ?)",
        (person.game, person.participant, person.seat),
    )


def save_note(note: Note) -> Statement:
    """Something that happened."""
    return "INSERT INTO notes VALUES (?, ?, ?, ?)", tuple(note)


def save_identity(participant: int, name: str, value: str) -> Statement:
    """What tells who somebody is elsewhere, apart from the data."""
    return "INSERT OR REPLACE INTO apart.identities VALUES (?, ?, ?)", (participant, name, value)


def save_fact(name: str, value: str) -> Statement:
    """Something about the study."""
    return "INSERT OR REPLACE INTO study VALUES (?, ?)", (name, value)


def save_answer(game: int, position: int, answer: Answer) -> Statement:
    """An answer to the selector."""
    return (
        "INSERT OR REPLACE INTO selector VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (game, position, *answer),
    )


def erase_all(participant: int, games: Iterable[int]) -> list[Statement]:
    """A participant, and every session of theirs; those played with another person go as well.

    Args:
        participant: Who.
        games: All in which the participant has played.
    """
    who = (participant,)
    statements: list[Statement] = [
        (f"DELETE FROM {table} WHERE participant = ?", who)
        for table in ("participants", "answers", "notes", "apart.identities", "members")
    ]
    for game in games:
        statements += [
            (f"DELETE FROM {table} WHERE game = ?", (game,))
            for table in ("episodes", "steps", "selector")
        ]
    return statements


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


def save_answers(
    participant: int,
    survey: str,
    answers: Mapping[str, str],
    kinds: Mapping[str, str] | None = None,
) -> list[Statement]:
    """Answers to a survey, and the kinds of its questions."""
    kinds = kinds or {}
    return [
        (
            "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)",
            (participant, survey, question, answer, kinds.get(question, "")),
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
        self._copy: tempfile.TemporaryDirectory[str] | None = None
        if not create and not path.is_file():
            raise FileNotFoundError(f"{folder} holds no study: there is no {DATABASE_FILE} in it")
        with self.reading():
            if read_only:
                self._open_to_read(folder)
            else:
                for file in (path, folder / IDENTITIES_FILE):
                    _make_private(file)
                try:
                    self._connection = _connect(folder, "rw")
                except sqlite3.DatabaseError as error:
                    raise ValueError(f"{path}: not a study ({error})") from error
            try:
                self._prepare(path, seed, read_only)
            except BaseException:
                self.close()
                raise

    def _open_to_read(self, folder: Path) -> None:
        """Read it where it is, or, where SQLite would have to write beside it, a copy."""
        try:
            self._connection = _connect(folder, "ro")
            self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError:
            # The folder can be read and not written: what is in its log is read from a copy.
            self._copy = tempfile.TemporaryDirectory(prefix="btil-study-")
            for name in (DATABASE_FILE, IDENTITIES_FILE):
                for file in (folder / name, folder / f"{name}-wal"):
                    if file.is_file():
                        shutil.copyfile(file, Path(self._copy.name) / file.name)
            self._connection = _connect(Path(self._copy.name), "rw")
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{self._path}: not a study ({error})") from error

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
                # What is erased is overwritten.
                execute("PRAGMA secure_delete = ON")
            version = execute("PRAGMA main.user_version").fetchone()[0]
            tables = execute("SELECT count(*) FROM main.sqlite_master").fetchone()[0]
        except sqlite3.DatabaseError as error:
            raise ValueError(f"{path}: not a study ({error})") from error
        if version == 0 and tables == 0 and not read_only:
            chosen = secrets.randbits(62) if seed is None else seed
            facts: Statement = (
                "INSERT INTO study VALUES ('seed', ?), ('name', ?)",
                (str(chosen), secrets.token_hex(4)),
            )
            self.write([*_statements(_SCHEMA), *_statements(_SCHEMA_2), facts, _version()])
        elif version == 1 and not read_only:
            self.write([*_statements(_FROM_1), _version()])
        elif version not in (1, _VERSION):
            raise ValueError(
                f"{path}: version {version} of a study's file; this btil reads {_VERSION}"
            )
        self._old = version == 1 and read_only
        if not read_only:
            self.write(_statements(_SCHEMA_APART))
        facts_found = dict(execute("SELECT name, value FROM study").fetchall())
        self.seed, self.name = int(facts_found["seed"]), str(facts_found["name"])
        # Of those who were erased the number is not given again.
        self.entered = int(facts_found.get("entered", 0))
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
        if self._copy is not None:
            self._copy.cleanup()

    def tidy(self) -> None:
        """After something was erased: let nothing of it stay in the files."""
        with contextlib.suppress(sqlite3.OperationalError):  # somebody is reading just now
            self._connection.execute("VACUUM main")
            self._connection.execute("VACUUM apart")
        for file in ("main", "apart"):
            self._connection.execute(f"PRAGMA {file}.wal_checkpoint(TRUNCATE)")

    def back_up(self, folder: Path) -> None:
        """Copy both files into a folder, as they are at one moment, while the study goes on."""
        files = {"main": DATABASE_FILE}
        if self._has_identities():
            files["apart"] = IDENTITIES_FILE
        # Reading begins here, in all: what is written from now on is in none of them.
        self._connection.execute("BEGIN")
        try:
            for name in files:
                self._connection.execute(f"SELECT count(*) FROM {name}.sqlite_master").fetchone()
            for name, file in files.items():
                _make_private(folder / file)
                copy = sqlite3.connect(folder / file)
                try:
                    self._connection.backup(copy, name=name)
                    # One file, that can be read where nothing can be written.
                    copy.execute("PRAGMA journal_mode = DELETE")
                finally:
                    copy.close()
        finally:
            self._connection.execute("ROLLBACK")

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
            about = "'{}'" if self._old else "about"
            rows = self._connection.execute(
                "SELECT participant, number, token, game, seat, teammate, stages, journey, "
                f"{about} FROM participants ORDER BY participant"
            )
            people = [
                Person._make(
                    [
                        *plain,
                        tuple(Stage(*stage) for stage in json.loads(stages)),
                        Journey.from_json(json.loads(journey)),
                        About.from_json(json.loads(settled)),
                    ]
                )
                for *plain, stages, journey, settled in rows.fetchall()
            ]
        yield from people

    def members(self) -> list[tuple[int, int, int]]:
        """Who has played where: (game, participant, seat), also in games that were left since."""
        left = "" if self._old else "UNION SELECT game, participant, seat FROM members "
        return self._connection.execute(
            f"SELECT game, participant, seat FROM participants {left}ORDER BY game, seat"
        ).fetchall()

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

    def chosen(self, game: int, position: int) -> list[Answer]:
        """The answers to the selector in a session, in their order; none in old recordings."""
        if self._old:
            return []
        rows = self._connection.execute(
            "SELECT step, seat, number, reason, latent, seconds FROM selector "
            "WHERE game = ? AND position = ? ORDER BY step, number, seat",
            (game, position),
        )
        return [Answer(*row) for row in rows.fetchall()]

    def notes(self) -> list[Note]:
        """What happened, in its order; nothing in old recordings."""
        if self._old:
            return []
        rows = self._connection.execute("SELECT * FROM notes ORDER BY time, rowid")
        return [Note(*row) for row in rows.fetchall()]

    def identities(self) -> list[tuple[int, str, str]]:
        """What tells who participants are elsewhere: participant, name, value."""
        if not self._has_identities():
            return []
        return self._connection.execute(
            "SELECT participant, name, value FROM apart.identities ORDER BY participant, rowid"
        ).fetchall()

    def _has_identities(self) -> bool:
        attached = [row[1] for row in self._connection.execute("PRAGMA database_list")]
        return "apart" in attached and bool(
            self._connection.execute("SELECT count(*) FROM apart.sqlite_master").fetchone()[0]
        )

    def kinds(self) -> dict[tuple[int, str, str], str]:
        """Kind of the question of every answer; "" where that was not recorded."""
        kind = "''" if self._old else "kind"
        rows = self._connection.execute(
            f"SELECT participant, survey, question, {kind} FROM answers"
        )
        return {(who, survey, question): kind for who, survey, question, kind in rows.fetchall()}

    def answers(self) -> list[tuple[int, str, str, str]]:
        """All answers: participant, survey, question, answer."""
        return self._connection.execute(
            "SELECT participant, survey, question, answer FROM answers "
            "ORDER BY participant, survey DESC, rowid"
        ).fetchall()


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _connect(folder: Path, mode: str) -> sqlite3.Connection:
    """Both files of a folder, as `main` and `apart`."""
    # All use of the connection is serialised by its owner, from whatever thread.
    connection = sqlite3.connect(
        _address(folder / DATABASE_FILE, mode),
        uri=True,
        isolation_level=None,
        check_same_thread=False,
    )
    if (folder / IDENTITIES_FILE).is_file():
        connection.execute("ATTACH ? AS apart", (_address(folder / IDENTITIES_FILE, mode),))
    return connection


def _address(file: Path, mode: str) -> str:
    return f"{file.resolve().as_uri()}?mode={mode}"


def _make_private(file: Path) -> None:
    """A file that its owner alone can read, made where it is not there."""
    descriptor = os.open(file, os.O_CREAT | os.O_RDWR, _FILE_MODE)
    os.close(descriptor)
    with contextlib.suppress(OSError):  # another one's file, or no such modes here
        file.chmod(_FILE_MODE)


def _statements(script: str) -> list[Statement]:
    return [(statement, ()) for statement in script.split(";\n") if statement.strip()]


def _version() -> Statement:
    return f"PRAGMA user_version = {_VERSION}", ()
