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
from btil.study.episode import Episode, Refused, Row, Rules
from btil.study.settings import Stage, Survey, checked_answers
from btil.study.tutorial import LESSONS, begin_tutorial, teach


class Journey(NamedTuple):
    """Where a participant stands.

    Attributes:
        position: Index of the stage.
        lesson: In the tutorial: the lesson.
        trial: In the tutorial: its episode.
        code: In the pairing: the code that this participant gives to the partner.
        guesses: In the pairing: how many codes were tried.
        best: Fewest steps of a finished session, by domain.
    """

    position: int = 0
    lesson: int = 0
    trial: Episode | None = None
    code: str = ""
    guesses: int = 0
    best: Mapping[str, int] = {}  # never changed

    def as_json(self) -> dict[str, Any]:
        """The same as what JSON can hold."""
        trial = None if self.trial is None else self.trial.as_json()
        return {**self._asdict(), "trial": trial}

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> "Journey":
        """Read what `as_json` gave."""
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
    """

    journey: Journey
    stages: tuple[Stage, ...]
    surveys: Mapping[str, Survey]
    rules: Rules | None
    episode: Episode | None
    seat: int

    @property
    def stage(self) -> Stage:
        """The present stage."""
        return self.stages[self.journey.position]

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
    """

    journey: Journey
    episode: Episode | None = None
    row: Row | None = None
    answers: dict[str, str] | None = None


class Message(NamedTuple):
    """What a participant asks for.

    Attributes:
        turn: The turn that it answers; see `Standing.turn`.
        do: "start", "press", "choose", "ask", "answer" or "next"; "host" or "join" in the pairing.
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
}
_NOT_UNDERSTOOD = "This message was not understood."
_LONGEST_WORD = 40
_LARGEST_VALUE = 1000


def read_message(given: Any) -> Message:
    """Check a message that came from outside.

    Raises:
        Refused: If it is none, or anything in it is not what it must be.
    """
    if not (isinstance(given, dict) and _is_word(given.get("do")) and given["do"] in _FIELDS):
        raise Refused(_NOT_UNDERSTOOD)
    value = given.get("value", 0)
    good = (
        set(given) == {"do", "turn", *_FIELDS[given["do"]]}
        and _is_word(given["turn"])
        and _is_word(given.get("code", ""))
        and type(value) is int
        and 0 <= value <= _LARGEST_VALUE
    )
    if not good:
        raise Refused(_NOT_UNDERSTOOD)
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
        return journey._replace(trial=begin_tutorial(rules), lesson=0)
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
    if message.turn != standing.turn:
        raise Refused("The page was not up to date; here is where you are.")
    stage = standing.stage
    if stage.kind == "survey" and message.do == "answer":
        try:
            answers = checked_answers(standing.surveys[stage.name], message.answers)
        except ValueError as error:
            raise Refused(str(error)) from error
        return Response(_next(standing.journey), answers=answers)
    if stage.kind == "tutorial":
        return _in_tutorial(standing, message)
    if stage.kind == "session":
        return _in_session(standing, message, chance, now)
    raise Refused("This is not possible now.")


def _in_tutorial(standing: Standing, message: Message) -> Response:
    journey, rules = standing.journey, standing.rules
    assert rules is not None
    assert journey.trial is not None
    if message.do == "next":
        if journey.lesson < len(LESSONS):
            raise Refused("Finish the tutorial first.")
        return Response(_next(journey))
    if message.do == "press":
        _check_action(message.value)
    trial, lesson = teach(
        rules, standing.stage.domain, journey.trial, journey.lesson, message.do, message.value
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
        return Response(journey, play.choose(rules, episode, seat, message.value))
    if message.do == "ask":
        if not rules.asks[seat]:
            raise Refused("In practice sessions no destination is asked for.")
        return Response(journey, play.ask(episode, seat))
    if message.do == "next" and episode.over:
        return Response(_next(journey._replace(best=best_so_far(standing))))
    raise Refused("This is not possible now.")


def best_so_far(standing: Standing) -> dict[str, int]:
    """Fewest steps by domain, with the present session if it was finished."""
    best = dict(standing.journey.best)
    rules, episode, domain = standing.rules, standing.episode, standing.stage.domain
    if rules is not None and episode is not None and play.is_finished(rules, episode):
        best[domain] = min(best.get(domain, episode.step), episode.step)
    return best


def _next(journey: Journey) -> Journey:
    return journey._replace(position=journey.position + 1, trial=None, lesson=0)


def _check_action(action: int) -> None:
    if action >= len(ACTIONS):
        raise Refused("There is no such action.")
