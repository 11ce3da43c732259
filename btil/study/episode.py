"""One session of play, as a pure state machine: presses, destinations, and steps of the team.

Nothing here reads a clock, draws a random number or writes anything: time and chance are
arguments, so that an episode can be played again from its record.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from btil.domains.gridworld.grid import ACTIONS, HOLD, ORIGIN
from btil.domains.gridworld.simulate import Member, draw
from btil.domains.gridworld.task import GridTask
from btil.study.settings import Stage
from btil.study.texts import Refused
from btil.study.worlds import world_of

UNKNOWN = -1  # no destination, no action yet
SEATS = (0, 1)  # alice, rob
NUM_CHANCES = 5  # random numbers for one step: both actions, the task, both minds
_FIRST_MIND = (1, 0)  # which of them decides the first mind of each seat

# Why a selector opens: at the start, after some steps, something was picked up or put down, or it
# was asked for.
START, STEPS, ITEM, ASKED = "start", "steps", "item", "asked"
# Why a session ends: all is done, its steps or its time are over, the partner left.
FINISHED, STEPS_OVER, TIME_OVER, PARTNER_LEFT = "finished", "steps", "time", "partner"
_NO_EPISODES = np.zeros(1, np.int64)

__all__ = ["Episode", "Refused", "Row", "Rules"]


class Rules(NamedTuple):
    """What an episode is played by.

    Attributes:
        task: Movers or Cleanup.
        members: Of each seat: who acts there, where that is an AI; None where it is a person.
        asks: Of each seat: whether its destination is asked for.
        select_every: Steps after which it is asked for again.
        max_steps: Steps after which the episode is cut.
    """

    task: GridTask
    members: tuple[Member | None, Member | None]
    asks: tuple[bool, bool]
    select_every: int
    max_steps: int

    @property
    def people(self) -> tuple[bool, bool]:
        """Which seats are people."""
        return _pair(member is None for member in self.members)


class Episode(NamedTuple):
    """Where a session of play stands; pairs are (alice, rob).

    Attributes:
        step: Steps taken.
        state: The task state.
        latents: What each wants: a person's last chosen destination, an AI's mental state; -1
            where it has not been asked for.
        since: Steps since each last answered the selector.
        selecting: Whose selector is open.
        answered: Who has answered the selector since the last step.
        pending: The action that each has chosen for the coming step, -1 for none.
        started: Who has started to play.
        events: What each has done or was asked since the last step; with `step` it tells a
            message that answers the present state from an old one.
        last: Time of the last step, or of the start; later by the length of breaks since.
        over: Whether it has ended.
        reasons: Why each selector that is open was opened, or the last one was.
        opened: When.
        before: Task state and both actions of the step before; empty at the first one.
        why: Why the step before did nothing for each, as keys of texts; "" where it did something.
        ended: Why it has ended; "" while it goes on, and in old recordings.
        begun: When everyone had started; later by the length of breaks since.
    """

    step: int
    state: int
    latents: tuple[int, int]
    since: tuple[int, int]
    selecting: tuple[bool, bool]
    answered: tuple[bool, bool]
    pending: tuple[int, int]
    started: tuple[bool, bool]
    events: tuple[int, int]
    last: float
    over: bool
    reasons: tuple[str, str] = ("", "")
    opened: tuple[float, float] = (0.0, 0.0)
    before: tuple[int, ...] = ()
    why: tuple[str, str] = ("", "")
    ended: str = ""
    begun: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """The same as what JSON can hold."""
        return self._asdict()

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> "Episode":
        """Read what `as_json` gave, after JSON has made lists of its pairs."""
        fields: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in given.items()
        }
        return cls(**fields)


class Row(NamedTuple):
    """A step as it is recorded: the state, and what was done and wanted in it.

    Attributes:
        step: Its number, from 0.
        state: The task state in which the actions were taken.
        actions: Of alice and rob.
        latents: What they wanted, -1 where it was not asked for.
        answered: Whose selector was answered just before the step.
        seconds: Since the step before, or since the start.
    """

    step: int
    state: int
    actions: tuple[int, int]
    latents: tuple[int, int]
    answered: tuple[bool, bool]
    seconds: float


class Answer(NamedTuple):
    """An answer to the destination selector as it is recorded.

    Attributes:
        step: The step before which it was given.
        seat: Of whom.
        number: Tells answers before the same step apart, in their order.
        reason: Why the selector was open: "start", "steps", "item" or "asked".
        latent: What was chosen.
        seconds: How long it had been open.
    """

    step: int
    seat: int
    number: int
    reason: str
    latent: int
    seconds: float


class Option(NamedTuple):
    """A destination that can be chosen.

    Attributes:
        latent: What choosing it means.
        cell: Where it is.
    """

    latent: int
    cell: int


# ---------------------------------------------------------------------- what can be done


def options(task: GridTask, state: int, seat: int) -> list[Option]:
    """The destinations that make sense for a seat in a state.

    Empty-handed: every item that is not on the goal and that the seat could reach for, where it
    lies or, in the teammate's hands, where the teammate stands. With an item: its origin and the
    goal.
    """
    situation = task.situation([state])
    held = task.held_items([state])[0]
    cells, items = situation.cells[0], situation.items[0]
    if held[seat] >= 0:
        return [
            Option(latent, int(task.place_named(latent, held[[seat]])[0]))
            for latent in (task.return_item, task.take_to_goal)
        ]
    found = []
    for item, status in enumerate(items.tolist()):
        if status == ORIGIN:
            found.append(Option(item, int(task.origins[item])))
        elif status != task.on_goal:
            found.append(Option(item, int(cells[1 - seat])))
    return found


def destination(rules: Rules, episode: Episode, seat: int) -> Option | None:
    """The destination that a seat has chosen, where it is now."""
    for option in options(rules.task, episode.state, seat):
        if option.latent == episode.latents[seat]:
            return option
    return None


def legal_actions(rules: Rules, episode: Episode, seat: int) -> list[bool]:
    """Which actions a person may take now.

    Everyone may always move and stay. Picking up and letting go work at the chosen destination
    alone, and where none is asked for, at any place that could be one.
    """
    if rules.asks[seat]:
        chosen = destination(rules, episode, seat)
        places = [] if chosen is None else [chosen.cell]
    else:
        places = [option.cell for option in options(rules.task, episode.state, seat)]
    here = rules.task.situation([episode.state]).cells[0, seat]
    return [action != HOLD or here in places for action in range(len(ACTIONS))]


# ---------------------------------------------------------------------- what happens


def begin(rules: Rules, chance: Float[np.ndarray, " chances"]) -> Episode:
    """An episode before its first step.

    Args:
        rules: What it is played by.
        chance: `NUM_CHANCES` uniform random numbers.
    """
    state = np.array([rules.task.start_state])
    minds = [
        UNKNOWN
        if member is None
        else int(draw(member.initial(state, _NO_EPISODES), chance[_FIRST_MIND[seat]][None])[0])
        for seat, member in enumerate(rules.members)
    ]
    return Episode(
        step=0,
        state=rules.task.start_state,
        latents=_pair(minds),
        since=(0, 0),
        selecting=rules.asks,
        answered=(False, False),
        pending=(UNKNOWN, UNKNOWN),
        started=_pair(not person for person in rules.people),
        events=(0, 0),
        last=0.0,
        over=False,
        reasons=(START, START),
    )


def start(episode: Episode, seat: int, now: float) -> Episode:
    """A person starts to play; time runs when everyone has."""
    if episode.started[seat]:
        raise Refused("refused.started")
    started = _with(episode.started, seat, True)
    return _event(episode, seat)._replace(started=started, last=now, opened=(now, now), begun=now)


def ask(episode: Episode, seat: int, now: float) -> Episode:
    """A person opens the destination selector."""
    _check_playing(episode, seat)
    if episode.pending[seat] != UNKNOWN:
        raise Refused("refused.wait")
    if episode.selecting[seat]:
        raise Refused("refused.select")
    return _event(episode, seat)._replace(
        selecting=_with(episode.selecting, seat, True),
        reasons=_with(episode.reasons, seat, ASKED),
        opened=_with(episode.opened, seat, now),
    )


def choose(rules: Rules, episode: Episode, seat: int, latent: int) -> Episode:
    """A person answers the destination selector."""
    _check_playing(episode, seat)
    if not episode.selecting[seat]:
        raise Refused("refused.not_asked")
    if latent not in [option.latent for option in options(rules.task, episode.state, seat)]:
        raise Refused("refused.not_circled")
    return _event(episode, seat)._replace(
        selecting=_with(episode.selecting, seat, False),
        latents=_with(episode.latents, seat, latent),
        since=_with(episode.since, seat, 0),
        answered=_with(episode.answered, seat, True),
    )


def answer_of(episode: Episode, seat: int, latent: int, now: float) -> Answer:
    """An answer as it is recorded.

    Args:
        episode: Where it stands before the answer.
        seat: Who answers.
        latent: The destination.
        now: The time, in seconds.
    """
    return Answer(
        episode.step,
        seat,
        episode.events[seat],
        episode.reasons[seat],
        latent,
        max(now - episode.opened[seat], 0.0),
    )


def rest(episode: Episode, seconds: float, now: float) -> Episode:
    """A break of so many seconds is over: they count neither for steps nor for selectors.

    What came about during the break, by the partner's doing, is no later than now.
    """

    def later(at: float) -> float:
        return max(at, min(at + seconds, now))

    return episode._replace(
        last=later(episode.last),
        opened=_pair(map(later, episode.opened)),
        begun=later(episode.begun),
    )


def cut(episode: Episode, reason: str) -> Episode:
    """The session ends here, whatever has been done."""
    return episode._replace(
        over=True,
        ended=reason,
        selecting=(False, False),
        pending=(UNKNOWN, UNKNOWN),
        # A message that was on its way answers another moment.
        events=_pair(number + 1 for number in episode.events),
    )


def press(
    rules: Rules,
    episode: Episode,
    seat: int,
    action: int,
    chance: Float[np.ndarray, " chances"],
    now: float,
) -> tuple[Episode, Row | None]:
    """A person presses a key: the team's step, once everyone has.

    Args:
        rules: What the episode is played by.
        episode: Where it stands.
        seat: 0 for alice, 1 for rob.
        action: Index of the action.
        chance: `NUM_CHANCES` uniform random numbers, of this step.
        now: The time, in seconds.

    Returns:
        The episode after it, and the step as it is to be recorded, None while the team still
        waits for the other person.

    Raises:
        Refused: If it is not possible now.
    """
    _check_playing(episode, seat)
    if episode.selecting[seat]:
        raise Refused("refused.select_first")
    if episode.pending[seat] != UNKNOWN:
        raise Refused("refused.wait")
    if not legal_actions(rules, episode, seat)[action]:
        raise Refused("refused.only_circled" if rules.asks[seat] else "refused.nothing_here")
    pending = list(_with(episode.pending, seat, action))
    state = np.array([episode.state])
    previous = None
    if episode.before:
        previous = np.array(episode.before[:1]), np.array([episode.before[1:]])
    for other, member in enumerate(rules.members):
        if member is not None:
            mind = np.array([episode.latents[other]])
            row = member.policy(state, mind, _NO_EPISODES, previous)
            pending[other] = int(draw(row, chance[[other]])[0])
    if UNKNOWN in pending:
        return _event(episode, seat)._replace(pending=_pair(pending)), None
    return joint_step(rules, episode, pending, chance, now)


def joint_step(
    rules: Rules,
    episode: Episode,
    actions: Sequence[int],
    chance: Float[np.ndarray, " chances"],
    now: float,
) -> tuple[Episode, Row]:
    """One step of the team, whatever is legal; see `press`."""
    task, state = rules.task, episode.state
    row = Row(
        step=episode.step,
        state=state,
        actions=_pair(actions),
        latents=episode.latents,
        answered=episode.answered,
        seconds=max(now - episode.last, 0.0),
    )
    branches, probs = task.transition([state], [list(actions)])
    after = int(branches[0, draw(probs, chance[2:3])[0]])
    latents = list(episode.latents)
    for seat, member in enumerate(rules.members):
        if member is not None:
            moves = member.transition(
                np.array([state]), np.array([actions]), np.array([after]),
                np.array([latents[seat]]), _NO_EPISODES,
            )  # fmt: skip
            latents[seat] = int(draw(moves, chance[[3 + seat]])[0])
    finished = bool(task.is_final([after])[0])
    over = finished or episode.step + 1 >= rules.max_steps
    before = task.situation([state, after]).items
    changed = bool((before[0] != before[1]).any())
    since = _pair(steps + 1 for steps in episode.since)
    return episode._replace(
        step=episode.step + 1,
        state=after,
        latents=_pair(latents),
        since=since,
        selecting=_pair(
            asks and not over and (changed or steps >= rules.select_every)
            for asks, steps in zip(rules.asks, since, strict=True)
        ),
        answered=(False, False),
        pending=(UNKNOWN, UNKNOWN),
        events=(0, 0),
        last=now,
        over=over,
        reasons=(ITEM, ITEM) if changed else (STEPS, STEPS),
        opened=(now, now),
        before=(state, *row.actions),
        why=_pair(world_of(task.name).why(task, state, row.actions, after, seat) for seat in SEATS),
        ended=FINISHED if finished else STEPS_OVER if over else "",
    ), row


def is_finished(rules: Rules, episode: Episode) -> bool:
    """Whether everything is on the goal: the team has done its work."""
    return bool(rules.task.is_final([episode.state])[0])


def rules_of(
    stage: Stage, task: GridTask, members: tuple[Member | None, Member | None] = (None, None)
) -> Rules:
    """The rules of a session.

    Args:
        stage: The session.
        task: Its task.
        members: Who acts in each seat; None where a person does.
    """
    return Rules(
        task=task,
        members=members,
        asks=_pair(not stage.practice and member is None for member in members),
        select_every=stage.select_every,
        max_steps=stage.max_steps,
    )


def _check_playing(episode: Episode, seat: int) -> None:
    if episode.over:
        raise Refused("refused.session_over")
    if not episode.started[seat]:
        raise Refused("refused.start_first")
    if not all(episode.started):
        raise Refused("refused.wait")


def _event(episode: Episode, seat: int) -> Episode:
    return episode._replace(events=_with(episode.events, seat, episode.events[seat] + 1))


def _with(values: tuple[Any, Any], seat: int, value: Any) -> tuple[Any, Any]:
    return (value, values[1]) if seat == 0 else (values[0], value)


def _pair(values: Any) -> tuple[Any, Any]:
    first, second = values
    return first, second
