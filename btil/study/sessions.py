"""A participant's way through the study, as a pure state machine: messages in, what changed out.

`respond` takes where a participant stands and a message, and gives journey and episode after it,
with what is to be recorded. What is refused raises `Refused` and changes nothing. Like
`episode.py` it reads no clock and draws no random number.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from btil.domains.gridworld.grid import ACTIONS
from btil.study import episode as play
from btil.study.episode import Answer, Episode, Row, Rules
from btil.study.settings import Stage, Survey, checked_answers, wrong_answers
from btil.study.texts import ENGLISH, Refused
from btil.study.tutorial import begin_tutorial, lessons_of, teach

# How participation ends before its end, or without a partner.
WITHDREW, IDLE, ATTENTION, PAUSED, ALONE, NO_PARTNER = (
    "withdrew", "idle", "attention", "pause", "partner", "wait",
)  # fmt: skip
# Those after whom no completion code is shown.
UNPAID = (WITHDREW, IDLE, ATTENTION, PAUSED)


class Journey(NamedTuple):
    """Where a participant stands.

    Attributes:
        position: Index of the stage.
        lesson: In the tutorial: the lesson.
        trial: In the tutorial: its episode.
        code: In the pairing: the code that this participant gives to the partner.
        guesses: In the pairing: how many codes were tried.
        best: Fewest steps of a finished session, by domain.
        reached: When this stage was reached.
        outcome: How it ended before its end, or that the partner left; "" otherwise.
        wrong: How many attention checks were answered wrongly.
        paused: Since when there is a break; 0 without one.
        skipped: Whether the stage before was left because its time was over.
    """

    position: int = 0
    lesson: int = 0
    trial: Episode | None = None
    code: str = ""
    guesses: int = 0
    best: Mapping[str, int] = {}  # never changed
    reached: float = 0.0
    outcome: str = ""
    wrong: int = 0
    paused: float = 0.0
    skipped: bool = False

    def as_json(self) -> dict[str, Any]:
        """The same as what JSON can hold."""
        trial = None if self.trial is None else self.trial.as_json()
        return {**self._asdict(), "trial": trial}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> "Journey":
        """Read what `as_json` gave.

        A tutorial of the first version had other lessons: it begins anew.
        """
        if "reached" not in given and given["trial"] is not None:
            given = {**given, "trial": None, "lesson": 0}
        trial = given["trial"]
        return cls(**{**given, "trial": None if trial is None else Episode.from_json(trial)})


class Standing(NamedTuple):
    """All that decides what a participant sees and can do.

    Attributes:
        journey: Where the participant stands.
        stages: The way through the study.
        surveys: By name.
        rules: Of the tutorial or session; None elsewhere.
        episode: Of the session; None elsewhere.
        seat: 0 for alice, 1 for rob.
        language: Of the participant.
        with_person: Whether the teammate is a person, now or later.
        partner_paused: Since when the other person has a break; 0 without one.
    """

    journey: Journey
    stages: tuple[Stage, ...]
    surveys: Mapping[str, Survey]
    rules: Rules | None
    episode: Episode | None
    seat: int
    language: str = ENGLISH
    with_person: bool = False
    partner_paused: float = 0.0

    @property
    def stage(self) -> Stage:
        """The present stage."""
        return self.stages[self.journey.position]

    @property
    def two_people(self) -> bool:
        """Whether both who play are people."""
        return self.rules is not None and all(self.rules.people)

    @property
    def turn(self) -> str:
        """Names the moment that a message must answer: old and repeated ones name another."""
        now = self.journey.trial if self.episode is None else self.episode
        words = [self.journey.position, self.journey.lesson]
        if now is not None:
            words += [now.step, now.events[self.seat]]
        return "-".join(map(str, words))


class Response(NamedTuple):
    """What a message has led to.

    Attributes:
        journey: Where the participant stands now.
        episode: Where the session stands now; None outside of one.
        row: A step to be recorded.
        answers: Answers of a survey to be recorded.
        chosen: An answer to the selector to be recorded.
        notes: What is to be noted with its time: (what, more about it).
    """

    journey: Journey
    episode: Episode | None = None
    row: Row | None = None
    answers: dict[str, str] | None = None
    chosen: Answer | None = None
    notes: tuple[tuple[str, str], ...] = ()


class Message(NamedTuple):
    """What a participant asks for.

    Attributes:
        turn: The turn that it answers; see `Standing.turn`.
        do: "start", "press", "choose", "ask", "answer" or "next"; "host", "join" or "alone" in the
            pairing; "pause", "resume", "withdraw" or "erase" anywhere.
        value: The action or destination.
        answers: Answers of a survey.
        code: The partner's code.
    """

    turn: str
    do: str
    value: int = 0
    answers: Any = None
    code: str = ""


_FIELDS = {
    "start": (),
    "press": ("value",),
    "choose": ("value",),
    "ask": (),
    "answer": ("answers",),
    "next": (),
    "host": (),
    "join": ("code",),
    "alone": (),
    "pause": (),
    "resume": (),
    "withdraw": (),
    "erase": (),
}
# What can be done whatever else happens meanwhile.
_ANY_TURN = ("pause", "resume", "withdraw", "erase")
_LONGEST_WORD = 40
_LARGEST_VALUE = 1000


def read_message(given: Any) -> Message:
    """Check a message that came from outside.

    Raises:
        Refused: If it is none, or anything in it is not what it must be.
    """
    if not (isinstance(given, dict) and _is_word(given.get("do")) and given["do"] in _FIELDS):
        raise Refused("refused.not_understood")
    value = given.get("value", 0)
    good = (
        set(given) == {"do", "turn", *_FIELDS[given["do"]]}
        and _is_word(given["turn"])
        and _is_word(given.get("code", ""))
        and type(value) is int
        and 0 <= value <= _LARGEST_VALUE
    )
    if not good:
        raise Refused("refused.not_understood")
    return Message(**given)


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and value.isascii() and len(value) <= _LONGEST_WORD


def enter_stage(journey: Journey, stages: tuple[Stage, ...], rules: Rules | None) -> Journey:
    """Make ready what the stage that was reached needs: the tutorial's first lesson.

    Args:
        journey: At a stage that was just reached.
        stages: The way.
        rules: Of the tutorial.
    """
    if stages[journey.position].kind == "tutorial" and journey.trial is None:
        assert rules is not None
        trial = begin_tutorial(rules, stages[journey.position])
        return journey._replace(trial=trial, lesson=0)
    return journey


def respond(
    standing: Standing, message: Message, chance: Float[np.ndarray, " chances"], now: float
) -> Response:
    """What a message leads to.

    Args:
        standing: What the participant who sent it sees.
        message: What the participant asks for.
        chance: Uniform random numbers of the coming step.
        now: The time, in seconds.

    Raises:
        Refused: If it answers another turn, or cannot be done now.
    """
    journey, stage = standing.journey, standing.stage
    if message.do in _ANY_TURN:
        return _aside(standing, message, now)
    if journey.paused:
        raise Refused("refused.paused")
    if message.turn != standing.turn:
        raise Refused("refused.not_up_to_date")
    if stage.kind == "survey" and message.do == "answer":
        return _in_survey(standing, message)
    if stage.kind == "tutorial":
        return _in_tutorial(standing, message)
    if stage.kind == "session":
        return _in_session(standing, message, chance, now)
    raise Refused("refused.not_possible")


def _aside(standing: Standing, message: Message, now: float) -> Response:
    """A break begins or ends, or participation ends."""
    journey, episode = standing.journey, standing.episode
    if standing.stage.kind == "thanks":
        raise Refused("refused.not_possible")
    if message.do == "pause" and not journey.paused:
        return Response(journey._replace(paused=now), episode, notes=(("pause", ""),))
    if message.do == "resume" and journey.paused:
        seconds = max(now - journey.paused, 0.0)
        if episode is not None:
            # Of two breaks at once the one that ends last tells of the time that both took.
            until = min(now, standing.partner_paused or now)
            episode = play.rest(episode, max(until - journey.paused, 0.0), now)
        back = journey._replace(paused=0.0, reached=journey.reached + seconds)
        return Response(back, episode, notes=(("resume", f"{seconds:.1f}"),))
    if message.do in ("withdraw", "erase"):
        return Response(ended(journey, standing.stages, WITHDREW), notes=(("ended", WITHDREW),))
    raise Refused("refused.not_possible")


def ended(journey: Journey, stages: tuple[Stage, ...], outcome: str) -> Journey:
    """Participation ends here: the last page comes next, and says why.

    Args:
        journey: Where the participant stands.
        stages: The way through the study.
        outcome: Why.
    """
    return _at(journey, len(stages) - 1)._replace(outcome=outcome)


def without_partner(journey: Journey, stages: tuple[Stage, ...], outcome: str) -> Journey:
    """The sessions end here; what comes after all of them is next.

    Args:
        journey: Where the participant stands.
        stages: The way through the study.
        outcome: Why.
    """
    playing = [k for k, stage in enumerate(stages) if stage.kind in ("tutorial", "session")]
    return _at(journey, max(playing) + 1)._replace(outcome=outcome)


def out_of_time(journey: Journey) -> Journey:
    """The time of a survey or a tutorial is over: what comes after it is next."""
    return _next(journey)._replace(skipped=True)


def _in_survey(standing: Standing, message: Message) -> Response:
    survey, stage = standing.surveys[standing.stage.name], standing.stage
    answers = checked_answers(survey, message.answers)
    wrong = wrong_answers(survey.questions, answers)
    journey = standing.journey._replace(wrong=standing.journey.wrong + len(wrong))
    notes = tuple(("attention", f"{stage.name}: {name}") for name in wrong)
    if 0 <= stage.most_wrong < journey.wrong:
        left = ended(journey, standing.stages, ATTENTION)
        return Response(left, answers=answers, notes=(*notes, ("ended", ATTENTION)))
    return Response(_next(journey), answers=answers, notes=notes)


def _in_tutorial(standing: Standing, message: Message) -> Response:
    journey, rules = standing.journey, standing.rules
    assert rules is not None
    assert journey.trial is not None
    if message.do == "next":
        if journey.lesson < len(lessons_of(standing.stage)):
            raise Refused("refused.finish_tutorial")
        return Response(_next(journey))
    if message.do == "press":
        _check_action(message.value)
    trial, lesson = teach(
        rules, standing.stage, journey.trial, journey.lesson, message.do, message.value
    )
    return Response(journey._replace(trial=trial, lesson=lesson))


def _in_session(
    standing: Standing, message: Message, chance: Float[np.ndarray, " chances"], now: float
) -> Response:
    journey, rules, episode, seat = (
        standing.journey, standing.rules, standing.episode, standing.seat,
    )  # fmt: skip
    assert rules is not None
    assert episode is not None
    if message.do == "start":
        return Response(journey, play.start(episode, seat, now))
    if message.do == "press":
        _check_action(message.value)
        return Response(journey, *play.press(rules, episode, seat, message.value, chance, now))
    if message.do == "choose":
        return Response(
            journey,
            play.choose(rules, episode, seat, message.value),
            chosen=play.answer_of(episode, seat, message.value, now),
        )
    if message.do == "ask":
        if not rules.asks[seat]:
            raise Refused("refused.practice_asks")
        return Response(journey, play.ask(episode, seat, now))
    if message.do == "next" and episode.over:
        return Response(_next(journey._replace(best=best_so_far(standing))))
    raise Refused("refused.not_possible")


def best_so_far(standing: Standing) -> dict[str, int]:
    """Fewest steps by domain, with the present session if it was finished."""
    best = dict(standing.journey.best)
    rules, episode, domain = standing.rules, standing.episode, standing.stage.domain
    if rules is not None and episode is not None and play.is_finished(rules, episode):
        best[domain] = min(best.get(domain, episode.step), episode.step)
    return best


def _next(journey: Journey) -> Journey:
    return _at(journey, journey.position + 1)


def _at(journey: Journey, position: int) -> Journey:
    return journey._replace(
        position=position, trial=None, lesson=0, code="", guesses=0, paused=0.0, skipped=False
    )


def _check_action(action: int) -> None:
    if action >= len(ACTIONS):
        raise Refused("refused.no_action")
