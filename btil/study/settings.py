"""What the researcher writes: a study's settings, its surveys and texts, in TOML and Markdown."""

import hashlib
import itertools
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np

from btil.arguments import check_choice, check_count, check_number
from btil.domains.gridworld.grid import MAPS, read_map
from btil.files import replacing
from btil.study.texts import ENGLISH, Refused, languages
from btil.study.worlds import WORLDS

SETTINGS_FILE = "study.toml"
SURVEYS = ("opening", "closing")
AI, HUMAN = "ai", "human"
TEAMMATES = (AI, HUMAN)
INDIVIDUAL = "individual"
ALONE_ENDS, ALONE_AI = "end", "ai"
_ORDERS = ("listed", "random")
_KINDS = ("text", "number", "choice", "scale")
_WRONG = ("mark", "repeat")
_LONGEST_ANSWER = 2000
_MOST_QUESTIONS = 50
_ALL_ORDERS_OF = 4  # tasks; of more than these, some orders that are balanced


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
        correct: Of an attention check: the only right answer. The page never learns it.
        if_wrong: Then: "mark" it and go on, or "repeat" until it is right.
    """

    name: str
    text: str
    kind: str = "text"
    required: bool = True
    options: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    longest: int = _LONGEST_ANSWER
    correct: str = ""
    if_wrong: str = "mark"


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
        name: Of a survey: "opening" or "closing". Of a tutorial: "rest" if the keys are known.
        domain: Of a tutorial or session: "movers" or "cleanup".
        map: Of a session: a map's name or its drawing.
        practice: Of a session: whether it is for practice, where no destination is asked for.
        number: Of a session: its number within its task, from 1.
        of: Of a session: how many its task has.
        temperature: Of a session: of the AI teammate's policy.
        select_every: Of a session: steps after which the destination is asked for again.
        max_steps: Of a session: steps after which it is cut.
        teammate: "ai", "human", or a file with a posterior and the beginning of its hash, as
            "rob.nc#0123456789ab"; "" in old recordings, where the participant's holds.
        told: The researcher's own lines, read before a session.
        seconds: After which it ends in any case; 0: never.
        most_wrong: Of a survey: so many attention checks may be answered wrongly in all; -1: any.
        robot: Which seat an AI has: 1, or 0 where the one who was Alice has left.
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
    teammate: str = ""
    told: str = ""
    seconds: float = 0.0
    most_wrong: int = -1
    robot: int = 1


class Block(NamedTuple):
    """The sessions of one task.

    Attributes:
        domain: "movers" or "cleanup".
        map: A map's name or its drawing.
        sessions: How many.
        practice: How many of them, from the first on, are for practice.
        teammate: Of this task alone: as of the settings; "" for the settings' own.
    """

    domain: str
    map: str
    sessions: int
    practice: int
    teammate: str = ""


class Limits(NamedTuple):
    """Times, in seconds; 0: no limit.

    Attributes:
        survey: After which a survey is left without answers.
        tutorial: After which a tutorial is left.
        session: After which a session is cut.
        idle: Without anything done, after which participation ends; told after half of it.
        pause: The longest break.
        partner: After which a partner who is away counts as gone.
        wait: After which somebody for whom no partner comes is led on.
        place: After which somebody who went away leaves the place to another.
    """

    survey: float = 0.0
    tutorial: float = 0.0
    session: float = 0.0
    idle: float = 0.0
    pause: float = 900.0
    partner: float = 60.0
    wait: float = 600.0
    place: float = 3600.0


class Settings(NamedTuple):
    """A study, as its researcher describes it, in one language and one condition.

    Attributes:
        title: Heading of its pages.
        consent: What participants agree to, in Markdown.
        thanks: The last page, in Markdown.
        surveys: By name, those that there are.
        blocks: The tasks, in order.
        order: "listed", or "random" for orders that equally many participants have.
        temperature: Of the AI teammate's softmax policy.
        select_every: Steps after which the destination is asked for again.
        max_steps: Steps after which a session is cut.
        most_participants: How many may take part.
        teammate: "ai", "human", or a file with a posterior, beside the settings.
        told: The researcher's own lines, read before a session.
        limits: Times.
        most_wrong: So many attention checks may be answered wrongly; -1: any number.
        pairing: Of two people: "code", or "arrival": who waits longest plays with who comes.
        without_partner: What comes when a partner is gone: "end", or an "ai" in that place.
        ids: Names of the values in the address that are kept, apart from the data.
        id_required: Whether nobody may enter without the first of them.
        same_id: Who comes with a first value that is there: "refuse", "resume" or "allow".
        code: The completion code: "individual", or the same for all; "" for none.
        code_link: Where participants go back to; {code} stands for the code.
        sign_ups: How many may begin from one address in a minute.
        shared_computer: Whether the next person at a browser is asked for.
        arm: Name of the condition.
        share: How many participants it gets for each one of a condition with share 1.
        language: Of these texts.
        others: By (condition, language): the same study there; empty in these themselves.
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
    teammate: str = AI
    told: str = ""
    limits: Limits = Limits()
    most_wrong: int = -1
    pairing: str = "code"
    without_partner: str = ALONE_ENDS
    ids: tuple[str, ...] = ()
    id_required: bool = False
    same_id: str = "refuse"
    code: str = ""
    code_link: str = ""
    sign_ups: int = 60
    shared_computer: bool = False
    arm: str = ""
    share: int = 1
    language: str = ENGLISH
    others: Mapping[tuple[str, str], "Settings"] = {}  # never changed

    def of(self, arm: str, language: str) -> "Settings":
        """The study in a condition and a language; the first ones where there are none such."""
        found = self.others.get((arm, language)) or self.others.get((arm, self.language))
        return found or self.others.get((self.arm, language)) or self

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages to choose from, the first one first."""
        return tuple(dict.fromkeys([self.language, *(language for _, language in self.others)]))

    @property
    def arms(self) -> tuple["Settings", ...]:
        """The conditions, in the first language."""
        found = [one for (_, language), one in self.others.items() if language == self.language]
        return tuple(found) or (self,)

    @property
    def consent_version(self) -> str:
        """Names the text that was agreed to: the beginning of its SHA-256."""
        return hashlib.sha256(self.consent.encode("utf-8")).hexdigest()[:12]

    def orders(self) -> tuple[tuple[int, ...], ...]:
        """Orders of the tasks, of which equally many participants get each.

        All there are of up to four tasks. Of more, a Latin square in which, for an even number,
        each follows each other one equally often.

        References:
            E. J. Williams (1949), Experimental designs balanced for the estimation of residual
            effects of treatments.
        """
        number = len(self.blocks)
        if self.order == "listed":
            return (tuple(range(number)),)
        if number <= _ALL_ORDERS_OF:
            return tuple(itertools.permutations(range(number)))
        first = [k // 2 if k % 2 == 0 else number - 1 - k // 2 for k in range(number)]
        rows = [tuple((place + shift) % number for place in first) for shift in range(number)]
        return tuple(rows if number % 2 == 0 else rows + [row[::-1] for row in rows])

    def stages(
        self,
        teammate: str,
        generator: np.random.Generator,
        order: tuple[int, ...] | None = None,
    ) -> tuple[Stage, ...]:
        """The way of one participant through the study.

        Args:
            teammate: "ai", "human" or a posterior, for tasks that say nothing of it.
            generator: Decides the order of the tasks where it is random and none is given.
            order: One of `orders`.
        """
        if order is None:
            orders = self.orders()
            order = orders[int(generator.integers(len(orders)))]
        blocks = [self.blocks[k] for k in order]
        limits = self.limits
        play: list[Stage] = []
        paired = HUMAN not in [block.teammate or teammate for block in blocks]
        for place, block in enumerate(blocks):
            with_whom = block.teammate or teammate
            if block.domain not in [earlier.domain for earlier in blocks[:place]]:
                play.append(
                    Stage(
                        "tutorial", name="rest" if place else "", domain=block.domain,
                        teammate=with_whom, seconds=limits.tutorial,
                    )
                )  # fmt: skip
            if not paired and with_whom == HUMAN:
                play.append(Stage("pairing", teammate=HUMAN, seconds=limits.wait))
                paired = True
            play += [
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
                    teammate=with_whom,
                    told=self.told,
                    seconds=limits.session,
                )
                for number in range(1, block.sessions + 1)
            ]
        surveys = {
            name: [Stage("survey", name=name, seconds=limits.survey, most_wrong=self.most_wrong)]
            for name in self.surveys
        }
        return (
            *surveys.get("opening", []),
            *play,
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


_OF_STUDY = (
    "title", "consent", "most_participants", "language", "languages", "ids", "id_required",
    "same_id", "sign_ups", "shared_computer", "pairing", "arms",
)  # fmt: skip
_OF_ARM = (
    "thanks", "opening_survey", "closing_survey", "order", "temperature", "select_every",
    "max_steps", "teammate", "instructions", "limits", "most_wrong", "without_partner",
    "completion", "tasks",
)  # fmt: skip


def read_settings(path: Path, teammate: str | None = None) -> Settings:
    """Read a study's settings, and the files that they name, which lie beside them.

    Args:
        path: `study.toml`.
        teammate: "ai", "human" or a file, instead of what the settings say; conditions and tasks
            that have one of their own keep it.

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
    _refuse_unknown(where, given, *_OF_STUDY, *_OF_ARM)
    if teammate is not None:
        given["teammate"] = teammate
    first = check_choice(f"{where}: language", given.get("language", ENGLISH), languages())
    spoken = given.get("languages", [first])
    if not isinstance(spoken, list) or first not in spoken:
        raise ValueError(f"{where}: languages must be a list with {first!r} in it, got {spoken!r}")
    spoken = [first, *(one for one in spoken if one != first)]
    for language in spoken:
        check_choice(f"{where}: languages", language, languages())
    arms = given.get("arms", [{}])
    if not isinstance(arms, list) or not arms or not all(isinstance(arm, dict) for arm in arms):
        raise ValueError(f"{where}: arms: [[arms]] sections are expected, got {arms!r}")
    names = [_arm_name(f"{where}: arms[{k}]", arm, "arms" in given) for k, arm in enumerate(arms)]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{where}: two arms have the name {name!r}")
    found = {
        (name, language): _in_one(where, path.parent, given, name, arm, language, first)
        for name, arm in zip(names, arms, strict=True)
        for language in spoken
    }
    for (name, language), one in found.items():
        _check_alike(where, found[name, first], one, language)
    return found[names[0], first]._replace(others=found)


def _arm_name(where: str, arm: Mapping[str, Any], needed: bool) -> str:
    if not needed:
        return ""
    _refuse_unknown(where, arm, "name", "share", *_OF_ARM)
    return _text(where, arm, "name")


def _in_one(
    where: str,
    folder: Path,
    study: Mapping[str, Any],
    name: str,
    arm: Mapping[str, Any],
    language: str,
    first: str,
) -> Settings:
    """The study in one condition and one language."""
    given = {**study, **{key: value for key, value in arm.items() if key in _OF_ARM}}

    def told(key: str) -> str:
        return _in_language(where, given, key, language, first)

    def choice(key: str, allowed: tuple[str, ...]) -> str:
        """The first one is the default."""
        return check_choice(f"{where}: {key}", given.get(key, allowed[0]), allowed)

    def count(key: str, default: int, least: int = 1) -> int:
        return check_count(f"{where}: {key}", given.get(key, default), least)

    def file(key: str) -> Path:
        plain = Path(_text(where, given, key))
        own = plain.with_name(f"{plain.stem}.{language}{plain.suffix}")
        return folder / (own if (folder / own).is_file() else plain)

    surveys = {
        survey: read_survey(file(f"{survey}_survey"))
        for survey in SURVEYS
        if given.get(f"{survey}_survey")
    }
    tasks = given.get("tasks")
    if not isinstance(tasks, list) or not tasks:
        raise ValueError(f"{where}: tasks: at least one [[tasks]] section is needed")
    code, link = _completion(where, given.get("completion", {}))
    return Settings(
        title=told("title"),
        consent=_read_text(where, "consent", file("consent")),
        thanks=_read_text(where, "thanks", file("thanks")),
        surveys=surveys,
        blocks=tuple(_block(where, folder, k, task) for k, task in enumerate(tasks)),
        order=choice("order", _ORDERS),
        temperature=check_number(
            f"{where}: temperature", given.get("temperature", 0.3), least=1e-6
        ),
        select_every=count("select_every", 5),
        max_steps=count("max_steps", 200),
        most_participants=count("most_participants", 1000),
        teammate=_teammate(where, folder, given.get("teammate", AI)),
        told=told("instructions") if "instructions" in given else "",
        limits=_limits(where, given.get("limits", {})),
        most_wrong=count("most_wrong", 0, least=0) if "most_wrong" in given else -1,
        pairing=choice("pairing", ("code", "arrival")),
        without_partner=choice("without_partner", (ALONE_ENDS, ALONE_AI)),
        ids=_names(where, "ids", given.get("ids", [])),
        id_required=_truth(where, "id_required", given.get("id_required", False)),
        same_id=choice("same_id", ("refuse", "resume", "allow")),
        code=code,
        code_link=link,
        sign_ups=count("sign_ups", 60),
        shared_computer=_truth(where, "shared_computer", given.get("shared_computer", False)),
        arm=name,
        share=check_count(f"{where}: share", arm.get("share", 1), 1),
        language=language,
    )


def _check_alike(where: str, first: Settings, other: Settings, language: str) -> None:
    """What is counted must not depend on the language."""
    for name, survey in first.surveys.items():
        asked = other.surveys[name].questions
        same = [(one.name, one.kind, len(one.options), one.required) for one in survey.questions]
        if same != [(one.name, one.kind, len(one.options), one.required) for one in asked]:
            raise ValueError(
                f"{where}: the {name} survey in {language!r} must have the questions of the one in "
                f"{first.language!r}: the same names, kinds and numbers of options, in their order"
            )


def _teammate(where: str, folder: Path, value: Any) -> str:
    """Who plays Rob: "ai", "human", or a file with a posterior and the beginning of its hash."""
    if value in TEAMMATES:
        return str(value)
    if not isinstance(value, str) or not value.endswith(".nc"):
        raise ValueError(
            f"{where}: teammate is {value!r}; allowed are ai, human, or a posterior that was saved "
            "beside study.toml, such as rob.nc"
        )
    if "#" in value:
        raise ValueError(f"{where}: teammate: {value!r}: a file's name must have no #")
    content = (folder / value).read_bytes()
    return f"{value}#{hashlib.sha256(content).hexdigest()[:12]}"


def _limits(where: str, given: Any) -> Limits:
    if not isinstance(given, dict):
        raise ValueError(f"{where}: limits: a section is expected, got {given!r}")
    _refuse_unknown(f"{where}: limits", given, *Limits._fields)
    return Limits(
        **{
            key: check_number(f"{where}: limits.{key}", value, least=0.0)
            for key, value in given.items()
        }
    )


def _completion(where: str, given: Any) -> tuple[str, str]:
    where = f"{where}: completion"
    if not isinstance(given, dict):
        raise ValueError(f"{where}: a section is expected, got {given!r}")
    _refuse_unknown(where, given, "code", "link")
    code = _text(where, given, "code") if "code" in given else ""
    link = _text(where, given, "link") if "link" in given else ""
    if link and urlsplit(link).scheme not in ("http", "https"):
        raise ValueError(f"{where}: link must begin with https://, got {link!r}")
    if "{" in link.replace("{code}", "") or ("{code}" in link and not code):
        raise ValueError(f"{where}: link may hold {{code}}, where there is a code; got {link!r}")
    return code, link


def _names(where: str, key: str, value: Any) -> tuple[str, ...]:
    good = isinstance(value, list) and all(isinstance(one, str) and one for one in value)
    if not good or len(set(value)) < len(value) or len(value) > 10 or "language" in value:
        raise ValueError(
            f"{where}: {key} must be a list of up to 10 different names, none of them 'language', "
            f"got {value!r}"
        )
    return tuple(value)


def _truth(where: str, key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{where}: {key} must be true or false, got {value!r}")
    return value


def _in_language(where: str, given: Mapping[str, Any], key: str, language: str, first: str) -> str:
    """A text, or the one of a language in a section of texts by language."""
    value = given.get(key)
    if isinstance(value, dict):
        _refuse_unknown(f"{where}: {key}", value, *languages())
        return _text(f"{where}: {key}", value, language if language in value else first)
    return _text(where, given, key)


def _block(where: str, folder: Path, index: int, task: Any) -> Block:
    where = f"{where}: tasks[{index}]"
    if not isinstance(task, dict):
        raise ValueError(f"{where}: a section is expected, got {task!r}")
    _refuse_unknown(where, task, "domain", "map", "sessions", "practice", "teammate")
    domain = check_choice(f"{where}: domain", task.get("domain"), tuple(WORLDS))
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
    sessions = check_count(f"{where}: sessions", task.get("sessions", 4), 1)
    practice = check_count(f"{where}: practice", task.get("practice", 2), 0)
    if practice > sessions:
        raise ValueError(f"{where}: practice is {practice}; allowed are 0..{sessions} (sessions)")
    teammate = _teammate(where, folder, task["teammate"]) if "teammate" in task else ""
    return Block(domain, map_, sessions, practice, teammate)


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
    kind = check_choice(f"{where}: kind", given.get("kind", "text"), _KINDS)
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
    required = _truth(where, "required", given.get("required", True))
    correct = given.get("correct", "")
    if "correct" in given and (not isinstance(correct, str) or correct not in options):
        raise ValueError(f"{where}: correct must be one of the options, got {correct!r}")
    if "if_wrong" in given and not correct:
        raise ValueError(f"{where}: if_wrong is for questions that have a correct answer")
    limits = {}
    for limit in ("minimum", "maximum"):
        if limit in given:
            if kind != "number":
                raise ValueError(f"{where}: {limit} is for numbers, and this is a {kind}")
            limits[limit] = check_number(f"{where}: {limit}", given[limit])
    if limits.get("minimum", -np.inf) > limits.get("maximum", np.inf):
        raise ValueError(
            f"{where}: minimum is {limits['minimum']:g} and maximum {limits['maximum']:g}: no "
            "number could be answered"
        )
    return Question(
        name=_text(where, given, "name"),
        text=_text(where, given, "text"),
        kind=kind,
        required=required,
        options=tuple(options),
        correct=correct,
        if_wrong=check_choice(f"{where}: if_wrong", given.get("if_wrong", "mark"), _WRONG),
        longest=min(
            check_count(f"{where}: longest", given.get("longest", 500), 1), _LONGEST_ANSWER
        ),
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


# ---------------------------------------------------------------------- answers


def checked_answers(survey: Survey, given: Any) -> dict[str, str]:
    """The answers to a survey as texts, checked.

    Args:
        survey: The survey.
        given: {name of the question: answer}.

    Returns:
        Answers that were given, in the order of the questions.

    Raises:
        Refused: Naming the question whose answer will not do.
    """
    if not isinstance(given, dict) or not set(given) <= {q.name for q in survey.questions}:
        raise Refused("refused.not_answers")
    answers = {}
    for question in survey.questions:
        text = given.get(question.name, "")
        if not isinstance(text, str):
            raise Refused("refused.answer_text", question=question.text)
        text = text.strip()
        if not text:
            if question.required:
                raise Refused("refused.answer_required", question=question.text)
            continue
        _check_answer(question, text)
        answers[question.name] = text
    for question in survey.questions:
        if question.if_wrong == "repeat" and wrong_answers((question,), answers):
            raise Refused("refused.answer_again", question=question.text)
    return answers


def wrong_answers(questions: tuple[Question, ...], answers: Mapping[str, str]) -> list[str]:
    """Names of the attention checks that were answered wrongly, or not at all."""
    return [q.name for q in questions if q.correct and answers.get(q.name) != q.correct]


def in_first_language(
    survey: Survey, first: Survey, answers: Mapping[str, str]
) -> dict[str, tuple[str, str]]:
    """{question: (answer, kind)}; options are those of the first language, at the same place.

    Args:
        survey: As it was answered.
        first: The same in the first language.
        answers: The answers.
    """
    found = {}
    for question, same in zip(survey.questions, first.questions, strict=True):
        if question.name in answers:
            answer = answers[question.name]
            if question.options:
                answer = same.options[question.options.index(answer)]
            found[question.name] = answer, question.kind
    return found


def _check_answer(question: Question, text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise Refused("refused.answer_no_text", question=question.text) from None
    if question.options and text not in question.options:
        raise Refused("refused.answer_option", question=question.text)
    if len(text) > question.longest:
        raise Refused("refused.answer_long", question=question.text, longest=question.longest)
    if question.kind == "number":
        try:
            number = float(text)
        except ValueError:
            number = np.nan
        low = -np.inf if question.minimum is None else question.minimum
        high = np.inf if question.maximum is None else question.maximum
        if not (np.isfinite(number) and low <= number <= high):
            if np.isfinite([low, high]).all():
                raise Refused(
                    "refused.answer_between",
                    question=question.text, low=f"{low:g}", high=f"{high:g}",
                )  # fmt: skip
            raise Refused("refused.answer_number", question=question.text)
