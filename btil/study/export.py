"""What was collected, as demonstrations: every step with what each had in mind."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from btil.demonstrations import Demonstrations, write_demonstrations
from btil.domains.gridworld.grid import MAPS
from btil.domains.gridworld.simulate import task_demonstrations
from btil.domains.gridworld.task import GridTask
from btil.files import replacing
from btil.study.episode import SEATS, UNKNOWN, Answer, Episode, Row
from btil.study.settings import HUMAN, Stage
from btil.study.store import About, Note, Person, Store
from btil.study.teammate import task_of
from btil.study.texts import ENGLISH
from btil.study.views import destination_label
from btil.study.worlds import WORLDS

_ANSWER_COLUMNS = ("participant", "survey", "question", "answer")
_STEP_COLUMNS = (
    "episode", "step", "domain", "practice", "seconds", "alice_answered", "rob_answered",
    *(f"{agent}_{what}" for agent in ("alice", "rob") for what in (
        "opened", "answers", "seconds_selecting", "seconds_else", "destination",
    )),
)  # fmt: skip
_SELECTOR_COLUMNS = (
    "episode", "before_step", "agent", "number", "opened", "seconds", "latent", "destination",
)  # fmt: skip
_SESSION_COLUMNS = (
    "episode", "alice", "rob", "arm", "order", "domain", "map", "session", "of", "practice",
    "steps", "finished", "ended", "seconds", "alice_seconds_selecting", "rob_seconds_selecting",
)  # fmt: skip
_PARTICIPANT_COLUMNS = (
    "participant", "arm", "order", "language", "role", "partner", "consent_version", "consent_time",
    "last_time", "part", "of", "outcome", "wrong_checks", "breaks", "seconds_in_breaks",
)  # fmt: skip
_NOTE_COLUMNS = ("participant", "time", "what", "more")
_IDENTITY_COLUMNS = ("participant", "name", "value")


class Session(NamedTuple):
    """One session that was played.

    Attributes:
        id: Its name in the data: the random numbers of those who played, and which session of
            theirs it was.
        people: Random number of Alice, and of Rob where Rob is a person.
        stage: What was played.
        episode: Where it stands.
        rows: Its steps.
        chosen: The answers to the selector; none in old recordings.
        about: What is settled about Alice, or of who played without her.
        order: The tasks, in the order of this study's way.
        seats: Of each of `people`.
    """

    id: str
    people: tuple[int, ...]
    stage: Stage
    episode: Episode
    rows: list[Row]
    chosen: list[Answer]
    about: About
    order: str
    seats: tuple[int, ...]


class Group(NamedTuple):
    """Sessions of one task on one map.

    Attributes:
        name: For files: the domain, and the map where there are several.
        task: The task.
        sessions: At least one step each.
    """

    name: str
    task: GridTask
    sessions: list[Session]

    def demonstrations(self) -> Demonstrations:
        """All sessions, with the labels that there are."""
        rows = [row for session in self.sessions for row in session.rows]
        return task_demonstrations(
            self.task,
            np.array([row.state for row in rows]),
            np.array([row.actions for row in rows]),
            np.array([row.latents for row in rows]),
            [session.id for session in self.sessions for _ in session.rows],
        )


def sessions(store: Store) -> list[Session]:
    """All sessions with at least one step, in the order of the participants' random numbers."""
    people = {person.participant: person for person in store.people()}
    players: dict[int, list[tuple[int, Person]]] = defaultdict(list)
    for game, participant, seat in store.members():
        # Who was erased has taken the sessions along.
        if participant in people:
            players[game].append((seat, people[participant]))
    found = []
    for (game, position), episode in store.episodes().items():
        seated = sorted(players[game], key=itemgetter(0))
        rows = store.steps(game, position)
        if not rows or not seated:
            continue
        stages, stage = seated[0][1].stages, seated[0][1].stages[position]
        if (stage.teammate or seated[0][1].teammate) != HUMAN:
            # In old recordings who played with an AI, before or after a pair, had the pair's game.
            seated = [one for one in seated if one[0] != stage.robot] or seated
        numbers = tuple(person.number for _, person in seated)
        which = sum(stage.kind == "session" for stage in stages[: position + 1])
        name = "+".join(f"{number:06d}" for number in numbers)
        found.append(
            Session(
                f"{name}-{which:02d}", numbers, stage, episode, rows,
                store.chosen(game, position), seated[0][1].about, _order_of(stages),
                tuple(seat for seat, _ in seated),
            )
        )  # fmt: skip
    return sorted(found, key=lambda session: session.id)


def grouped(chosen: Iterable[Session]) -> list[Group]:
    """Sessions by task and map."""
    groups: dict[tuple[str, str], list[Session]] = {}
    for session in chosen:
        groups.setdefault((session.stage.domain, session.stage.map), []).append(session)
    named = []
    for (domain, map_), members in sorted(groups.items()):
        maps = sorted(other for same, other in groups if same == domain)
        known = map_ if map_ in MAPS else f"map{maps.index(map_) + 1}"
        name = domain if len(maps) == 1 else f"{domain}-{known}"
        named.append(Group(name, task_of(domain, map_), members))
    return named


def export_study(
    folder: Path,
    out: Path,
    domain: str | None = None,
    practice: bool = False,
    unfinished: bool = False,
    derived: bool = False,
    surveys: Path | None = None,
    steps: Path | None = None,
    tables: Path | None = None,
    identities: Path | None = None,
    participant: str | None = None,
) -> Iterator[tuple[Path, Any]]:
    """Write a study's sessions as demonstrations.

    Args:
        folder: The study.
        out: A file; where there are several tasks, each gets one with its name in it.
        domain: "movers" or "cleanup" alone.
        practice: Whether practice sessions are wanted too.
        unfinished: Whether sessions are wanted that have not come to their end.
        derived: Whether the task's derived variables are added.
        surveys: Where the answers to surveys go.
        steps: Where times and answered selectors go.
        tables: A folder for all tables: participants, sessions, steps, selector, answers, notes.
        identities: Where values of the address and completion codes go, which tell who somebody is.
        participant: The six digits of the only one that is wanted.

    Yields:
        Every file written, and a summary of the demonstrations in it.

    Raises:
        ValueError: If there is nothing to write.
    """
    if domain is not None and domain not in WORLDS:
        raise ValueError(f"--domain is {domain!r}; allowed are {' and '.join(WORLDS)}")
    store = Store(folder, read_only=True)
    try:
        with store.reading():
            played = sessions(store)
            people = list(store.people())
            kinds, answered = store.kinds(), store.answers()
            notes, known = store.notes(), store.identities()
            members = store.members()
    finally:
        store.close()
    if participant is not None:
        number = number_of(participant, people)
        played = [session for session in played if number in session.people]
        people = [person for person in people if person.number == number]
    chosen = [
        session
        for session in played
        if (practice or not session.stage.practice)
        and (unfinished or session.episode.over)
        and domain in (None, session.stage.domain)
    ]
    if not chosen and tables is None and identities is None:
        raise ValueError(
            f"{folder}: none of its {len(played)} sessions is to be exported (test sessions that "
            "have come to their end; --practice and --unfinished add others)"
        )
    with store.reading():
        groups = grouped(chosen)
        recorded = [group.demonstrations() for group in groups]
    for group, demos in zip(groups, recorded, strict=True):
        path = out if len(groups) == 1 else out.with_name(f"{out.stem}-{group.name}{out.suffix}")
        if derived:
            demos = group.task.add_derived_variables(demos)
        write_demonstrations(demos, path)
        yield path, demos.summary()
    numbers = {person.participant: f"{person.number:06d}" for person in people}
    answers = [
        (numbers[who], survey, question, _safe(answer, kinds[who, survey, question]))
        for who, survey, question, answer in sorted(
            (one for one in answered if one[0] in numbers), key=lambda one: numbers[one[0]]
        )
    ]
    if surveys is not None:
        yield _write_csv(surveys, _ANSWER_COLUMNS, answers), None
    if steps is not None:
        yield _write_csv(steps, _STEP_COLUMNS, _step_rows(chosen)), None
    if tables is not None:
        tables.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # another one's folder, or no such modes here
            tables.chmod(0o700)
        partners = _partners(members, {person.participant: person for person in people})
        for name, columns, rows in (
            ("participants", _PARTICIPANT_COLUMNS, _participant_rows(people, notes, partners)),
            ("sessions", _SESSION_COLUMNS, map(_session_row, played)),
            ("steps", _STEP_COLUMNS, _step_rows(played)),
            ("selector", _SELECTOR_COLUMNS, _selector_rows(played)),
            ("answers", _ANSWER_COLUMNS, answers),
            ("notes", _NOTE_COLUMNS, _note_rows(notes, numbers)),
        ):
            yield _write_csv(tables / f"{name}.csv", columns, rows), None
    if identities is not None:
        told = [(numbers[who], name, _safe(value)) for who, name, value in known if who in numbers]
        yield _write_csv(identities, _IDENTITY_COLUMNS, sorted(told, key=itemgetter(0))), None


def number_of(participant: str, people: Iterable[Person]) -> int:
    """The random number that six digits stand for.

    Raises:
        ValueError: If nobody has it.
    """
    numbers = {f"{person.number:06d}": person.number for person in people}
    if participant not in numbers:
        raise ValueError(
            f"there is no participant {participant!r}; participants are named by six digits, as in "
            "the export"
        )
    return numbers[participant]


def _partners(
    members: list[tuple[int, int, int]], people: dict[int, Person]
) -> dict[int, list[str]]:
    """With whom each has played."""
    games: dict[int, list[int]] = defaultdict(list)
    for game, participant, _ in members:
        games[game].append(participant)
    found: dict[int, list[str]] = defaultdict(list)
    for together in games.values():
        for one in together:
            found[one] += [
                f"{people[other].number:06d}" if other in people else "another"
                for other in together
                if other != one
            ]
    return found


def _order_of(stages: tuple[Stage, ...]) -> str:
    """The tasks in the order in which they came."""
    first = [stage.domain for stage in stages if stage.kind == "session" and stage.number == 1]
    return " ".join(first)


def _participant_rows(
    people: list[Person], notes: list[Note], partners: dict[int, list[str]]
) -> Iterator[tuple[Any, ...]]:
    of: dict[int, list[Note]] = defaultdict(list)
    for note in notes:
        of[note.participant].append(note)
    for person in sorted(people, key=attrgetter("number")):
        about, journey, mine = person.about, person.journey, of[person.participant]
        stage = person.stage
        done = "done" if stage.kind == "thanks" else "under way"
        rests = [float(note.more) for note in mine if note.what == "resume"]
        with_person = any((one.teammate or person.teammate) == HUMAN for one in person.stages)
        yield (
            f"{person.number:06d}", about.arm, _order_of(person.stages), about.language,
            ("rob" if person.seat else "alice") if not with_person or partners[person.participant]
            else "",
            " ".join(partners[person.participant]), about.consent, _time(about.consented),
            _time(mine[-1].time) if mine else "",
            journey.position + 1, len(person.stages), journey.outcome or done, journey.wrong,
            sum(note.what == "pause" for note in mine), f"{sum(rests):.1f}",
        )  # fmt: skip


def _session_row(session: Session) -> tuple[Any, ...]:
    stage, episode = session.stage, session.episode
    numbers = dict(zip(session.seats, session.people, strict=True))
    who = [f"{numbers[seat]:06d}" if seat in numbers else "ai" for seat in SEATS]
    task = task_of(stage.domain, stage.map)
    finished = bool(task.is_final([episode.state])[0])
    selecting = [
        sum(answer.seconds for answer in session.chosen if answer.seat == seat) for seat in SEATS
    ]
    return (
        session.id, *who, session.about.arm, session.order, stage.domain,
        stage.map if stage.map in MAPS else "drawn", stage.number, stage.of, int(stage.practice),
        len(session.rows), int(finished), episode.ended or ("" if not episode.over else "over"),
        f"{sum(row.seconds for row in session.rows):.3f}",
        *(f"{one:.3f}" if _is_timed(session) else "" for one in selecting),
    )  # fmt: skip


def _is_timed(session: Session) -> bool:
    """Whether it is known how long selectors were open: of old recordings it is not."""
    return bool(session.about.consented or session.chosen)


def _step_rows(chosen: Iterable[Session]) -> Iterator[tuple[Any, ...]]:
    for session in chosen:
        domain = session.stage.domain
        task = task_of(domain, session.stage.map)
        given: dict[tuple[int, int], list[Answer]] = defaultdict(list)
        for answer in session.chosen:
            given[answer.step, answer.seat].append(answer)
        for row in session.rows:
            told: list[Any] = []
            for seat in SEATS:
                mine = given[row.step, seat]
                seconds = sum(answer.seconds for answer in mine)
                known = _is_timed(session)
                told += [
                    " ".join(answer.reason for answer in mine),
                    len(mine) if known else "",
                    f"{seconds:.3f}" if known else "",
                    f"{max(row.seconds - seconds, 0.0):.3f}" if known else "",
                    _destination(task, domain, row.latents[seat]),
                ]
            yield (
                session.id, row.step, domain, int(session.stage.practice),
                f"{row.seconds:.3f}", *map(int, row.answered), *told,
            )  # fmt: skip


def _selector_rows(chosen: Iterable[Session]) -> Iterator[tuple[Any, ...]]:
    for session in chosen:
        task = task_of(session.stage.domain, session.stage.map)
        counted: dict[tuple[int, int], int] = defaultdict(int)
        for answer in session.chosen:
            counted[answer.step, answer.seat] += 1
            yield (
                session.id, answer.step, task.agents[answer.seat],
                counted[answer.step, answer.seat], answer.reason, f"{answer.seconds:.3f}",
                answer.latent, _destination(task, session.stage.domain, answer.latent),
            )  # fmt: skip


def _note_rows(notes: list[Note], numbers: dict[int, str]) -> Iterator[tuple[Any, ...]]:
    for note in notes:
        if note.participant in numbers:
            yield numbers[note.participant], _time(note.time), note.what, note.more


def _destination(task: GridTask, domain: str, latent: int) -> str:
    """As participants saw it: items are counted from 1."""
    return "" if latent == UNKNOWN else destination_label(task, domain, latent, ENGLISH)


def _time(seconds: float) -> str:
    return "" if not seconds else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _write_csv(path: Path, header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Path:
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        # Python before 3.13 leaves a carriage return unquoted, and half of the row is another one.
        quoting = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(header)
        for row in rows:
            broken = any(isinstance(value, str) and "\r" in value for value in row)
            (quoting if broken else writer).writerow(row)
    return path


def _safe(text: str, kind: str = "text") -> str:
    """What people wrote freely, so that no spreadsheet takes it for a formula.

    Numbers, and options that the researcher wrote, stay as they are. Of old recordings the kind of
    a question is not known: what is a number is taken for one.

    Args:
        text: The answer.
        kind: Of the question; "" where it is not known.
    """
    if kind not in ("text", ""):
        return text
    if kind == "":
        with suppress(ValueError):
            float(text)
            return text
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
