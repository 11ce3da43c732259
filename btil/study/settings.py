"""What the researcher writes: a study's settings, its surveys and texts, in TOML and Markdown."""

import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from btil.domains.gridworld import GRID_WORLDS
from btil.domains.gridworld.grid import MAPS, read_map
from btil.files import replacing

SETTINGS_FILE = "study.toml"
SURVEYS = ("opening", "closing")
TEAMMATES = ("ai", "human")
_ORDERS = ("listed", "random")
_KINDS = ("text", "number", "choice", "scale")
_LONGEST_ANSWER = 2000
_MOST_QUESTIONS = 50


class Question(NamedTuple):
    """One question of a survey.

    Attributes:
        name: Its column in the table of answers.
        text: What is asked.
        kind: "text", "number", "choice" or "scale".
        required: Whether it must be answered.
        options: Of a choice: what can be chosen. Of a scale: the texts of its points.
        minimum: Of a number.
        maximum: Of a number.
        longest: Of a text: the most characters.
    """

    name: str
    text: str
    kind: str = "text"
    required: bool = True
    options: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    longest: int = _LONGEST_ANSWER


class Survey(NamedTuple):
    """A page of questions.

    Attributes:
        title: Its heading.
        questions: In order.
    """

    title: str
    questions: tuple[Question, ...]


class Stage(NamedTuple):
    """One station of a participant's way through the study.

    It holds all that its play depends on, so that a change of the settings changes nothing for
    those who are on their way.

    Attributes:
        kind: "survey", "tutorial", "pairing", "session" or "thanks".
        name: Of a survey: "opening" or "closing".
        domain: Of a tutorial or session: "movers" or "cleanup".
        map: Of a session: a map's name or its drawing.
        practice: Of a session: whether it is for practice, where no destination is asked for.
        number: Of a session: its number within its task, from 1.
        of: Of a session: how many its task has.
        temperature: Of a session: of the AI teammate's policy.
        select_every: Of a session: steps after which the destination is asked for again.
        max_steps: Of a session: steps after which it is cut.
    """

    kind: str
    name: str = ""
    domain: str = ""
    map: str = ""
    practice: bool = False
    number: int = 0
    of: int = 0
    temperature: float = 0.0
    select_every: int = 0
    max_steps: int = 0


class Block(NamedTuple):
    """The sessions of one task.

    Attributes:
        domain: "movers" or "cleanup".
        map: A map's name or its drawing.
        sessions: How many.
        practice: How many of them, from the first on, are for practice.
    """

    domain: str
    map: str
    sessions: int
    practice: int


class Settings(NamedTuple):
    """A study, as its researcher describes it.

    Attributes:
        title: Heading of its pages.
        consent: What participants agree to, in Markdown.
        thanks: The last page, in Markdown.
        surveys: By name, those that there are.
        blocks: The tasks, in order.
        order: "listed", or "random" for an order of its own for every participant.
        temperature: Of the AI teammate's softmax policy.
        select_every: Steps after which the destination is asked for again.
        max_steps: Steps after which a session is cut.
        most_participants: How many may take part.
    """

    title: str
    consent: str
    thanks: str
    surveys: Mapping[str, Survey]
    blocks: tuple[Block, ...]
    order: str = "listed"
    temperature: float = 0.3
    select_every: int = 5
    max_steps: int = 200
    most_participants: int = 1000

    def stages(self, teammate: str, generator: np.random.Generator) -> tuple[Stage, ...]:
        """The way of one participant through the study.

        Args:
            teammate: "ai" or "human".
            generator: Decides the order of the tasks where it is random.
        """
        blocks = list(self.blocks)
        if self.order == "random":
            blocks = [blocks[k] for k in generator.permutation(len(blocks))]
        sessions = [
            Stage(
                "session",
                domain=block.domain,
                map=block.map,
                practice=number <= block.practice,
                number=number,
                of=block.sessions,
                temperature=self.temperature,
                select_every=self.select_every,
                max_steps=self.max_steps,
            )
            for block in blocks
            for number in range(1, block.sessions + 1)
        ]
        surveys = {name: [Stage("survey", name=name)] for name in self.surveys}
        return (
            *surveys.get("opening", []),
            Stage("tutorial", domain=blocks[0].domain),
            *([Stage("pairing")] if teammate == "human" else []),
            *sessions,
            *surveys.get("closing", []),
            Stage("thanks"),
        )


# ---------------------------------------------------------------------- reading


def write_defaults(folder: Path) -> list[Path]:
    """Put the files of a study that can be run as it is into a folder, where they are missing.

    Args:
        folder: Made where it is not there.

    Returns:
        The files that were written. A folder that has a `study.toml` is left as it is.
    """
    if (folder / SETTINGS_FILE).exists():
        return []
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for source in sorted(_defaults().iterdir(), key=lambda file: file.name):
        if source.is_file() and not (folder / source.name).exists():
            with replacing(folder / source.name) as temporary:
                temporary.write_bytes(source.read_bytes())
            written.append(folder / source.name)
    return written


def _defaults() -> Any:
    return resources.files("btil.study") / "defaults"


def read_settings(path: Path) -> Settings:
    """Read a study's settings, and the files that they name, which lie beside them.

    Args:
        path: `study.toml`.

    Returns:
        The settings.

    Raises:
        OSError: If a file cannot be read.
        ValueError: If one is not as it must be, naming file, key, value and what is allowed.

    Example:
        >>> settings = read_settings(Path("study/study.toml"))  # doctest: +SKIP
    """
    given = _read_toml(path)
    where = str(path)
    _refuse_unknown(
        where,
        given,
        "title", "consent", "thanks", "opening_survey", "closing_survey", "order", "temperature",
        "select_every", "max_steps", "most_participants", "tasks",
    )  # fmt: skip
    folder = path.parent
    surveys = {
        name: read_survey(folder / _text(where, given, f"{name}_survey"))
        for name in SURVEYS
        if given.get(f"{name}_survey")
    }
    tasks = given.get("tasks")
    if not isinstance(tasks, list) or not tasks:
        raise ValueError(f"{where}: tasks: at least one [[tasks]] section is needed")
    return Settings(
        title=_text(where, given, "title"),
        consent=_read_text(where, "consent", folder / _text(where, given, "consent")),
        thanks=_read_text(where, "thanks", folder / _text(where, given, "thanks")),
        surveys=surveys,
        blocks=tuple(_block(where, folder, k, task) for k, task in enumerate(tasks)),
        order=_one_of(where, "order", given.get("order", "listed"), _ORDERS),
        temperature=_number(where, "temperature", given.get("temperature", 0.3), 1e-6),
        select_every=_whole(where, "select_every", given.get("select_every", 5), 1),
        max_steps=_whole(where, "max_steps", given.get("max_steps", 200), 1),
        most_participants=_whole(
            where, "most_participants", given.get("most_participants", 1000), 1
        ),
    )


def _block(where: str, folder: Path, index: int, task: Any) -> Block:
    where = f"{where}: tasks[{index}]"
    if not isinstance(task, dict):
        raise ValueError(f"{where}: a section is expected, got {task!r}")
    _refuse_unknown(where, task, "domain", "map", "sessions", "practice")
    domain = _one_of(where, "domain", task.get("domain"), GRID_WORLDS)
    map_ = task.get("map", "paper")
    if not isinstance(map_, str):
        raise ValueError(f"{where}: map must be a text, got {map_!r}")
    # Names come first; any other single word is a file with a drawing.
    if map_ not in MAPS and len(map_.split()) == 1:
        map_ = _read_text(where, "map", folder / map_)
    try:
        read_map(map_)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    sessions = _whole(where, "sessions", task.get("sessions", 4), 1)
    practice = _whole(where, "practice", task.get("practice", 2), 0)
    if practice > sessions:
        raise ValueError(f"{where}: practice is {practice}; allowed are 0..{sessions} (sessions)")
    return Block(domain, map_, sessions, practice)


def read_survey(path: Path) -> Survey:
    """Read the questions of a survey from a TOML file.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it is not as it must be.
    """
    given = _read_toml(path)
    where = str(path)
    _refuse_unknown(where, given, "title", "questions")
    questions = given.get("questions", [])
    if not isinstance(questions, list) or not 1 <= len(questions) <= _MOST_QUESTIONS:
        raise ValueError(f"{where}: 1 to {_MOST_QUESTIONS} [[questions]] sections are expected")
    read = tuple(_question(f"{where}: questions[{k}]", one) for k, one in enumerate(questions))
    names = [question.name for question in read]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{where}: two questions have the name {name!r}")
    return Survey(_text(where, given, "title"), read)


def _question(where: str, given: Any) -> Question:
    if not isinstance(given, dict):
        raise ValueError(f"{where}: a section is expected, got {given!r}")
    _refuse_unknown(where, given, *Question._fields)
    kind = _one_of(where, "kind", given.get("kind", "text"), _KINDS)
    options = given.get("options", [])
    if not isinstance(options, list) or not all(isinstance(o, str) and o.strip() for o in options):
        raise ValueError(f"{where}: options must be a list of texts, got {options!r}")
    if (kind in ("choice", "scale")) != (len(options) >= 2):
        raise ValueError(
            f"{where}: a {kind} has {len(options)} options; a choice or a scale needs two or "
            "more, the others none"
        )
    if len(set(options)) < len(options):
        raise ValueError(f"{where}: an option is there twice: {options!r}")
    required = given.get("required", True)
    if not isinstance(required, bool):
        raise ValueError(f"{where}: required must be true or false, got {required!r}")
    limits = {}
    for limit in ("minimum", "maximum"):
        if limit in given:
            if kind != "number":
                raise ValueError(f"{where}: {limit} is for numbers, and this is a {kind}")
            limits[limit] = _number(where, limit, given[limit])
    return Question(
        name=_text(where, given, "name"),
        text=_text(where, given, "text"),
        kind=kind,
        required=required,
        options=tuple(options),
        longest=min(_whole(where, "longest", given.get("longest", 500), 1), _LONGEST_ANSWER),
        **limits,
    )


def _read_toml(path: Path) -> dict[str, Any]:
    with open(path, "rb") as handle:
        try:
            return tomllib.load(handle)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        except RecursionError:
            raise ValueError(f"{path}: nested too deeply") from None


def _read_text(where: str, key: str, path: Path) -> str:
    """A file that the settings name."""
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:  # no UTF-8, or a name that no file can have
        raise ValueError(f"{where}: {key}: {str(path)!r} cannot be read: {error}") from error


def _refuse_unknown(where: str, given: Mapping[str, Any], *allowed: str) -> None:
    for key in given:
        if key not in allowed:
            raise ValueError(f"{where}: unknown key {key!r}; allowed are {', '.join(allowed)}")


def _text(where: str, given: Mapping[str, Any], key: str) -> str:
    value = given.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{where}: {key} must be a text, got {value!r}")
    return value


def _one_of(where: str, key: str, value: Any, allowed: tuple[str, ...]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{where}: {key} is {value!r}; allowed are {', '.join(allowed)}")
    return value


def _whole(where: str, key: str, value: Any, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{where}: {key} must be a whole number from {least} on, got {value!r}")
    return value


def _number(where: str, key: str, value: Any, least: float = -np.inf) -> float:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    # A whole number may be larger than any float.
    if not good or not abs(value) <= np.finfo(np.float64).max or value < least:
        allowed = "a number" if least == -np.inf else f"a number from {least:g} on"
        raise ValueError(f"{where}: {key} must be {allowed}, got {value!r}")
    return float(value)


# ---------------------------------------------------------------------- answers


def checked_answers(survey: Survey, given: Any) -> dict[str, str]:
    """The answers to a survey as texts, checked.

    Args:
        survey: The survey.
        given: {name of the question: answer}.

    Returns:
        Answers that were given, in the order of the questions.

    Raises:
        ValueError: Naming the question whose answer will not do.
    """
    if not isinstance(given, dict) or not set(given) <= {q.name for q in survey.questions}:
        raise ValueError("These are not answers to this survey.")
    answers = {}
    for question in survey.questions:
        text = given.get(question.name, "")
        if not isinstance(text, str):
            raise ValueError(f"“{question.text}”: a text is expected.")
        text = text.strip()
        if not text:
            if question.required:
                raise ValueError(f"“{question.text}” must be answered.")
            continue
        _check_answer(question, text)
        answers[question.name] = text
    return answers


def _check_answer(question: Question, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"“{question.text}”: this is not a text.") from None
    if question.options and text not in question.options:
        raise ValueError(f"“{question.text}”: this is none of the options.")
    if len(text) > question.longest:
        raise ValueError(f"“{question.text}”: at most {question.longest} characters, please.")
    if question.kind == "number":
        try:
            number = float(text)
        except ValueError:
            number = np.nan
        low = -np.inf if question.minimum is None else question.minimum
        high = np.inf if question.maximum is None else question.maximum
        if not (np.isfinite(number) and low <= number <= high):
            limits = f" from {low:g} to {high:g}" if np.isfinite([low, high]).all() else ""
            raise ValueError(f"“{question.text}”: a number{limits} is expected.")
