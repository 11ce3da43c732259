"""What was collected, as demonstrations: every step with what each had in mind."""

import csv
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from btil.demonstrations import Demonstrations, write_demonstrations
from btil.domains.gridworld import GRID_WORLDS
from btil.domains.gridworld.grid import MAPS
from btil.domains.gridworld.simulate import task_demonstrations
from btil.domains.gridworld.task import GridTask
from btil.files import replacing
from btil.study.episode import Episode, Row
from btil.study.settings import Stage
from btil.study.store import Person, Store
from btil.study.teammate import task_of

_ANSWER_COLUMNS = ("participant", "survey", "question", "answer")
_STEP_COLUMNS = (
    "episode", "step", "domain", "practice", "seconds", "alice_answered", "rob_answered",
)  # fmt: skip


class Session(NamedTuple):
    """One session that was played.

    Attributes:
        id: Its name in the data: the random numbers of those who played, and which session of
            theirs it was.
        people: Random number of Alice, and of Rob where Rob is a person.
        stage: What was played.
        episode: Where it stands.
        rows: Its steps.
    """

    id: str
    people: tuple[int, ...]
    stage: Stage
    episode: Episode
    rows: list[Row]


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
    players: dict[int, list[Person]] = {}
    for person in store.people():
        players.setdefault(person.game, []).append(person)
    found = []
    for (game, position), episode in store.episodes().items():
        people = sorted(players[game], key=lambda person: person.seat)
        stages = people[0].stages
        rows = store.steps(game, position)
        if not rows:
            continue
        numbers = tuple(person.number for person in people)
        which = sum(stage.kind == "session" for stage in stages[: position + 1])
        name = "+".join(f"{number:06d}" for number in numbers)
        found.append(Session(f"{name}-{which:02d}", numbers, stages[position], episode, rows))
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

    Yields:
        Every file written, and a summary of the demonstrations in it.

    Raises:
        ValueError: If there is nothing to write.
    """
    if domain is not None and domain not in GRID_WORLDS:
        raise ValueError(f"--domain is {domain!r}; allowed are {' and '.join(GRID_WORLDS)}")
    store = Store(folder, read_only=True)
    try:
        with store.reading():
            played = sessions(store)
            numbers = {person.participant: person.number for person in store.people()}
            answers = sorted(
                ((numbers[who], *rest) for who, *rest in store.answers()), key=itemgetter(0)
            )
    finally:
        store.close()
    chosen = [
        session
        for session in played
        if (practice or not session.stage.practice)
        and (unfinished or session.episode.over)
        and domain in (None, session.stage.domain)
    ]
    if not chosen:
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
    if surveys is not None:
        yield _write_csv(surveys, _ANSWER_COLUMNS, answers), None
    if steps is not None:
        yield _write_csv(steps, _STEP_COLUMNS, _step_rows(chosen)), None


def _step_rows(chosen: list[Session]) -> Iterator[tuple[Any, ...]]:
    for session in chosen:
        for row in session.rows:
            yield (
                session.id, row.step, session.stage.domain, int(session.stage.practice),
                f"{row.seconds:.3f}", *map(int, row.answered),
            )  # fmt: skip


def _write_csv(path: Path, header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> Path:
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        # Python before 3.13 leaves a carriage return unquoted, and half of the row is another one.
        quoting = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        writer.writerow(header)
        for row in rows:
            # What a spreadsheet would take for a formula is text: answers are other people's words.
            told = [_plain(value) for value in row]
            broken = any(isinstance(value, str) and "\r" in value for value in told)
            (quoting if broken else writer).writerow(told)
    return path


def _plain(value: Any) -> Any:
    formula = isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r")
    return f"'{value}" if formula else value
