"""A live coach's view of a team: beliefs that move on as each step of an episode is seen.

What `TeamPosterior.filter` and `predict_actions` say of a whole recording, said while it is made.
Labels count where somebody tells them (`update(..., labels=...)`), as with `use_labels=True` there.
One step is a handful of small arrays: a compiled program costs more to call than they to compute,
so this is NumPy on the host, with the rows of the tables found through a dictionary.
"""

import math
import operator
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from btil.demonstrations.data import AWAY, NONE_BEFORE
from btil.demonstrations.naming import agents_in
from btil.demonstrations.quantities import checked_weights
from btil.inference.result import ChannelPoint
from btil.messages.layout import log_rows
from btil.models.cpt import Contexts
from btil.models.draws import dirichlet_draws
from btil.models.emission import PREVIOUS, Channel
from btil.models.team import Table, make_contexts, site_name

if TYPE_CHECKING:
    from btil.posterior.beliefs import Posterior
    from btil.posterior.posterior import TeamPosterior

# Contexts that training did not visit, remembered per table.
REMEMBERED_CONTEXTS = 4096
_UNKNOWN = -1

Values = tuple[int, ...]
Probabilities = Mapping[str, Float[np.ndarray, " values"]]
LogBeliefs = Mapping[str, Float[np.ndarray, "draws latents"]]
# Rows of some contexts, (contexts, draws, latents, values) or (contexts, draws, latents).
RowsOf = Callable[[Contexts], Float[np.ndarray, "contexts draws ..."]]
# Of contexts (k, parents) the points of a channel, with draws first.
PointsOf = Callable[[Int[np.ndarray, "k parents"]], ChannelPoint]


class Belief(NamedTuple):
    """What is known once a step has been seen.

    Attributes:
        step: The step t of the episode, from 0.
        latents: {agent: P(x_t | states, actions and labels told up to t)}, as `filter`.
        expected_actions: {agent: P(a_t | states up to t, actions and labels told before t)}: what
            was expected of this step before its actions were seen, as `predict_actions`.
        next_actions: {agent: P(a_{t+1} | states up to t + 1, actions and labels told up to t)};
            None where that depends on the next state and it was not given, or on an action that was
            not observed.
    """

    step: int
    latents: Probabilities
    expected_actions: Probabilities
    next_actions: Probabilities | None


class TrackerState(NamedTuple):
    """All that a tracker remembers of an episode, to be put aside and taken up again.

    Attributes:
        num_steps: Steps seen, ().
        states: The last step's state variables, (variables,); -1: not given, as no table reads it.
            Of an own NumPyro model those of all steps, (steps, variables).
        actions: The last step's actions, (agents,); -1: not observed. Of an own NumPyro model
            those of all steps, (steps, agents).
        log_beliefs: {agent: log P(x_t | up to t) under each draw, (draws, latents)}, one draw
            where a point estimate is used; empty before the first step.
        continuous: Continuous columns of the last step that the next one reads.
    """

    num_steps: Int[np.ndarray, ""]
    states: Int[np.ndarray, "*steps variables"]
    actions: Int[np.ndarray, "*steps agents"]
    log_beliefs: LogBeliefs
    continuous: Mapping[str, float] = {}  # never mutated


class Column(NamedTuple):
    """What a value may be: its name in messages, how many there are, and their texts if any."""

    name: str
    size: int
    codes: Mapping[str, int]

    @classmethod
    def of(cls, name: str, size: int, texts: Sequence[str]) -> "Column":
        """A column whose values have these texts, if any."""
        return cls(name, size, {text: index for index, text in enumerate(texts)})

    def code(self, value: Any, title: str) -> int:
        """The index of a value or of its text."""
        if isinstance(value, str):
            if value in self.codes:
                return self.codes[value]
        else:
            try:
                index = operator.index(value)
            except TypeError:
                index = _UNKNOWN
            if 0 <= index < self.size:
                return index
        names = f" ({', '.join(self.codes)})" if self.codes else ""
        raise ValueError(
            f"{title}: {self.name} is {value!r}; allowed are 0..{self.size - 1}{names}"
        )

    def text(self, index: int) -> str:
        """How a value is called."""
        return list(self.codes)[index] if self.codes else str(index)


class RowsByContext:
    """Rows of one table, (draws, latents, values) or (draws, latents), by context.

    Those of the contexts that training visited are there from the start, others are computed when
    they come up.

    Args:
        table: The table.
        visited: Gives the rows of its contexts.
        others: Gives those of other contexts.
        form: What is made of rows, such as their logs.
    """

    def __init__(
        self,
        table: Table,
        visited: RowsOf,
        others: RowsOf,
        form: Callable[[np.ndarray], np.ndarray],
    ) -> None:
        self._contexts = table.contexts
        self._visited = form(visited(table.contexts))
        self._position = {row: i for i, row in enumerate(map(tuple, table.contexts.rows.tolist()))}
        self._rows_of, self._form = others, form
        self._others: dict[Values, Float[np.ndarray, "draws ..."]] = {}

    def __getitem__(self, context: Values) -> Float[np.ndarray, "draws ..."]:
        position = self._position.get(context)
        return self.of([context])[0] if position is None else self._visited[position]

    def of(self, contexts: Sequence[Values]) -> list[Float[np.ndarray, "draws ..."]]:
        """The rows of several contexts; those that are new are computed together."""
        new = {c for c in contexts if c not in self._position and c not in self._others}
        found = {c: self._others[c] for c in contexts if c in self._others}
        if new:
            asked = np.array(sorted(new), np.int64).reshape(len(new), -1)
            rows = self._form(self._rows_of(self._contexts._replace(rows=asked)))
            found |= dict(zip(sorted(new), rows, strict=True))
            self._others |= {context: found[context] for context in new}
            for context in list(self._others)[: max(0, len(self._others) - REMEMBERED_CONTEXTS)]:
                del self._others[context]
        return [found[c] if c in found else self._visited[self._position[c]] for c in contexts]


class _ChannelReader:
    """What an agent's continuous columns say of its latent at a step."""

    def __init__(
        self, channel: Channel, context: Callable[[Values], Values], points: PointsOf
    ) -> None:
        family, agent = channel.family, channel.agent
        self.columns = family.columns_of(agent)
        self.inputs = family.covariates_of(agent)
        self._intercept = family.intercept
        self._context, self._points = context, points
        self._kept: dict[tuple[Values, tuple[bool, ...]], Any] = {}

    @property
    def names(self) -> set[str]:
        """All columns that it reads, at whichever step."""
        return {*self.columns, *(name.removeprefix(PREVIOUS) for name in self.inputs)}

    def __call__(
        self, seen: Values, now: Mapping[str, float], before: Mapping[str, float]
    ) -> Float[np.ndarray, "draws latents"] | None:
        """The log density of the step; None where it says nothing.

        Args:
            seen: What the discrete parents are picked from.
            now: The columns of this step.
            before: Those of the step before.
        """
        inputs = [1.0] if self._intercept else []
        for name in self.inputs:
            previous = name not in now and name.startswith(PREVIOUS)
            inputs.append(
                before.get(name.removeprefix(PREVIOUS), np.nan) if previous else now[name]
            )
        u, y = np.array(inputs), np.array([now[name] for name in self.columns])
        known = np.isfinite(y)
        if not known.any() or not np.isfinite(u).all():
            return None
        coefficients, whitening, constant = self._at(self._context(seen), known)
        residual = y[known] - u @ coefficients
        white = np.einsum("...ij,...j->...i", whitening, residual)
        return constant - 0.5 * (white**2).sum(-1)

    def _at(self, context: Values, known: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        key = (context, tuple(known.tolist()))
        if key not in self._kept:
            if len(self._kept) >= REMEMBERED_CONTEXTS:
                del self._kept[next(iter(self._kept))]
            point = self._points(np.array(context, np.int64).reshape(1, -1))
            coefficients, covariance = (part[:, 0] for part in point)
            factor = np.linalg.cholesky(covariance[..., known, :][..., known])
            log_det = 2 * np.log(np.diagonal(factor, axis1=-2, axis2=-1)).sum(-1)
            constant = -0.5 * (log_det + known.sum() * np.log(2 * np.pi))
            self._kept[key] = coefficients[..., known], np.linalg.inv(factor), constant
        return self._kept[key]


class Reader(NamedTuple):
    """A table as one agent reads it.

    Attributes:
        rows: The table.
        context: Picks the parents' values out of (previous states, previous actions, states).
        variables: The state variables that it reads, at whichever step.
        reads_state: Whether it reads one at the current step.
        actions: The agents whose previous actions it reads.
    """

    rows: RowsByContext
    context: Callable[[Values], Values]
    variables: frozenset[str]
    reads_state: bool
    actions: tuple[str, ...]

    def __call__(self, seen: Values) -> Float[np.ndarray, "draws ..."]:
        """The rows of what was seen."""
        return self.rows[self.context(seen)]


class _Readers(NamedTuple):
    """One agent's tables."""

    policy: Reader
    transition: Reader
    initial: Reader

    @property
    def reads_state(self) -> bool:
        """Whether its next action depends on the state it will be taken in."""
        return self.policy.reads_state or self.transition.reads_state


class Member(NamedTuple):
    """What one agent's actions and latents may be."""

    action: Column
    latent: Column


class StepRows(NamedTuple):
    """What a model says of one agent at a step, under each draw.

    Attributes:
        log_arrival: log P(x_t | x_{t-1}, before t); at an episode's first step log P(x_0).
        log_policy: log P(a_t | s_t, x_t).
        log_measured: The log likelihood of what else was measured; None where nothing is.
    """

    log_arrival: Float[np.ndarray, "draws *latents latents"]
    log_policy: Float[np.ndarray, "draws latents actions"]
    log_measured: Float[np.ndarray, "draws latents"] | None = None


class _Outlook(NamedTuple):
    """One agent before its step is seen.

    Attributes:
        log_predicted: log P(x_t | before t) under each draw.
        log_policy: log P(a_t | s_t, x_t) under each draw.
        log_measured: As in `StepRows`.
    """

    log_predicted: Float[np.ndarray, "draws latents"]
    log_policy: Float[np.ndarray, "draws latents actions"]
    log_measured: Float[np.ndarray, "draws latents"] | None

    def actions(self) -> Float[np.ndarray, " actions"]:
        """P(a_t | before t), averaged over draws."""
        joint = np.exp(self.log_predicted)[:, None] @ np.exp(self.log_policy)
        return joint.mean((0, 1))


class Tracker:
    r"""Beliefs about a team's latents during an episode, a step at a time.

    At step t the team is in state s_t and takes the joint action a_t; `update(s_t, a_t)` moves
    the belief about each agent on,

    .. math:: F_t(j) \propto \pi(a_t \mid s_t, j)
              \sum_k F_{t-1}(k)\, T(j \mid k, s_{t-1}, a_{t-1}, s_t),

    which is `posterior.filter` at step t to rounding, for every t. What the team will do next
    depends on the state it comes to: `predict(s_{t+1})` tells once that is known. Made by
    `posterior.tracker()`. Computed in float64, whatever the posterior's type, on logarithms: an
    episode may be as long as it likes.

    With `num_draws=k` each draw of the tables has a belief of its own and the answers are their
    average, as in `filter`. Rows of contexts that training did not visit are drawn from the prior,
    for a tracker in another way than for `filter`: there the two agree in distribution only.

    Attributes:
        agents: Names of the agents.

    Example:
        >>> import btil
        >>> demos = btil.Demonstrations(
        ...     states=[0, 0, 1, 1],
        ...     actions={"ann": ["go", "stay", "stay", "go"]},
        ...     latents={"ann": ["lift", "rest", "rest", "lift"]},
        ... )
        >>> tracker = btil.fit(btil.TeamModel(), demos, progress=False).tracker()
        >>> belief = tracker.update(1, {"ann": "stay"})
        >>> belief.latents["ann"].round(2)  # lift, rest
        array([0.35, 0.65])
        >>> tracker.predict(0)["ann"].round(2)  # go, stay
        array([0.53, 0.47])

    Source: Rabiner (1989), A tutorial on hidden Markov models, Section III (forward variables).
    """

    # The least of a state or an action that is remembered.
    _least_value = AWAY

    def __init__(
        self,
        posterior: "Posterior",
        estimate: str = "mean",
        num_draws: int | None = None,
        seed: int = 0,
    ) -> None:
        demos = posterior.demos
        self.agents = demos.agents
        self._num_draws = num_draws or 1
        self._variables = {
            name: Column.of(name, size, demos.state_names.get(name, ()))
            for name, size in demos.num_states.items()
        }
        sizes = zip(demos.agents, demos.num_actions, demos.num_latents, strict=True)
        self._members = {
            agent: Member(
                action=Column.of(agent, num_actions, demos.action_names.get(agent, ())),
                latent=Column.of(agent, num_latents, demos.latent_names.get(agent, ())),
            )
            for agent, num_actions, num_latents in sizes
        }
        self._knows_unseen = demos.missing == "allow"
        self._needed = self._prepare(posterior, estimate, num_draws, seed)
        self.reset()

    def _prepare(
        self, posterior: Any, estimate: str, num_draws: int | None, seed: int
    ) -> frozenset[str]:
        """Find the model's rows; the state variables that are needed."""
        rows = rows_of_tables(posterior, estimate, num_draws, seed, form=log_rows)
        self._readers = {
            agent: _Readers(
                policy=reader_of(posterior, "policy", agent, rows),
                transition=reader_of(posterior, "transition", agent, rows),
                initial=reader_of(posterior, "initial", agent, rows),
            )
            for agent in self.agents
        }
        demos, own_model = posterior.demos, posterior.model
        self._earlier = {
            agent: [
                name for name in names if name.startswith(PREVIOUS) and name not in demos.num_states
            ]
            for agent in self.agents
            for names in [make_contexts(own_model, "policy", agent, demos).names]
        }
        self._channels = {
            agent: _channel_reader(posterior, channel, estimate, num_draws, seed)
            for agent, channel in posterior.bound.channels.items()
        }
        every = (reader for readers in self._readers.values() for reader in readers)
        needed = frozenset[str]().union(*(reader.variables for reader in every))
        return needed.union(*(channel.names for channel in posterior.bound.channels.values()))

    # Of a model of tables with continuous columns: what these say.
    _channels: Mapping[str, _ChannelReader] = {}  # never mutated

    def reset(self) -> None:
        """Begin a new episode."""
        self._num_steps = 0
        self._last_columns: Mapping[str, float] = {}
        # States, then actions, of the last step.
        self._last: Values = (_UNKNOWN,) * (len(self._variables) + len(self.agents))
        self._log_beliefs: LogBeliefs = {}

    @property
    def num_steps(self) -> int:
        """Steps of the episode seen so far."""
        return self._num_steps

    def predict(
        self, state: Any, away: Collection[str] = ()
    ) -> dict[str, Float[np.ndarray, " actions"]]:
        """What each agent will do in the state that the team has come to.

        Args:
            state: The state of the step that `update` has not seen yet, given as there.
            away: The agents that are away at it.

        Returns:
            {agent: P(a_t | states up to t, actions and labels told before t)}, as
            `predict_actions`.

        Raises:
            ValueError: As `update`.
        """
        gone = self._read_away(away)
        states = self._read_state(state, "state", gone)
        outlook = self._look_ahead(self._num_steps, self._log_beliefs, self._last, states, gone)
        return self._actions_of(outlook)

    def update(
        self,
        state: Any,
        actions: Any = None,
        labels: Any = None,
        next_state: Any = None,
        continuous: Mapping[str, Any] | None = None,
        away: Collection[str] = (),
        latent_weights: Mapping[str, Any] | None = None,
    ) -> Belief:
        """Take in one step of the team.

        Args:
            state: The state s_t: a mapping {state variable: value}, in which variables that no
                table reads may be left out; or a value per state variable; or one value, of the
                one state variable or the joint index of several. Values are indices or, where
                they have names, texts; None in a mapping: not seen, if recordings like that were
                learned from (`missing="allow"`).
            actions: The actions taken in it: a mapping {agent: action}, or an action per agent.
                None: not observed, which tells nothing of the agent's latent.
            labels: Latents that somebody tells, likewise; agents may be left out. None or -1:
                unknown.
            next_state: The state s_{t+1} if it is known already, to predict the next actions.
            continuous: The continuous columns that the model's emissions read, {column: number};
                None or NaN: not seen, and summed out.
            away: The agents that are away at this step. They have no action and no latent (NaN in
                what is returned); their values of state variables and columns may be left out.
                Who comes back begins anew.
            latent_weights: p(what somebody tells | latent) up to a factor, {agent: (latents,)}, of
                one who is unsure; a label is 1 at one latent and 0 at the others.

        Returns:
            The beliefs at this step, and what was and is to be expected of the team.

        Raises:
            ValueError: If a value is out of range or missing; if the step has probability zero
                given those before it; if a transition reads an action that was not observed. The
                tracker is then as it was.
        """
        gone = self._read_away(away)
        states = self._read_state(state, "state", gone)
        following = None if next_state is None else self._read_state(next_state, "next_state", gone)
        taken, known = self._read_actions(actions, gone), self._read_labels(labels)
        weights = self._read_weights(latent_weights, gone)
        columns = self._read_columns(continuous, gone)
        outlook = self._look_ahead(
            self._num_steps, self._log_beliefs, self._last, states, gone, taken
        )
        for agent, channel in self._channels.items():
            if agent in gone:
                continue
            said = channel((*self._last, *states), columns, self._last_columns)
            outlook[agent] = outlook[agent]._replace(log_measured=said)
        log_beliefs = {}
        for agent, action, label in zip(self.agents, taken, known, strict=True):
            if agent in outlook:
                log_beliefs[agent] = self._take_in(
                    agent, outlook[agent], action, label, weights.get(agent)
                )
            elif label != _UNKNOWN:
                raise ValueError(f"labels: {agent} is away, so it has no latent")
        last = self._remembered(self._last, states, taken)
        belief = Belief(
            step=self._num_steps,
            latents={
                agent: np.exp(log_beliefs[agent]).mean(0)
                if agent in log_beliefs
                else np.full(member.latent.size, np.nan)
                for agent, member in self._members.items()
            },
            expected_actions=self._actions_of(outlook),
            next_actions=self._next_actions(log_beliefs, last, following, gone),
        )
        self._num_steps, self._last, self._log_beliefs = self._num_steps + 1, last, log_beliefs
        self._last_columns = columns
        return belief

    @property
    def state(self) -> TrackerState:
        """What the tracker remembers of the episode; assign it to go on from there.

        Raises:
            ValueError: On assignment, if it is no state of a tracker of this team with as many
                draws.
        """
        split = len(self._variables)
        width = split + len(self.agents)
        seen = np.array(self._last, np.int64).reshape(*self._leading(self._num_steps), width)
        return TrackerState(
            num_steps=np.array(self._num_steps),
            states=seen[..., :split],
            actions=seen[..., split:],
            log_beliefs={agent: log.copy() for agent, log in self._log_beliefs.items()},
            continuous=dict(self._last_columns),
        )

    @state.setter
    def state(self, state: TrackerState) -> None:
        num_steps = int(state.num_steps)
        states, actions = np.asarray(state.states), np.asarray(state.actions)
        sizes = [column.size for column in self._variables.values()]
        sizes += [member.action.size for member in self._members.values()]
        leading = self._leading(max(num_steps, 0))
        expected = ((*leading, len(self._variables)), (*leading, len(self.agents)))
        shapes = {agent: np.shape(log) for agent, log in state.log_beliefs.items()}
        there = np.ones(len(self.agents), bool)
        if actions.shape == (len(self.agents),):
            there = actions != AWAY
        wanted = {
            agent: (self._num_draws, member.latent.size)
            for (agent, member), is_there in zip(self._members.items(), there, strict=True)
            if is_there
        }
        if (
            num_steps < 0
            or shapes != (wanted if num_steps else {})
            or (states.shape, actions.shape) != expected
        ):
            raise ValueError(
                f"state: beliefs of shapes {shapes}, states and actions of shapes {states.shape} "
                f"and {actions.shape} after {num_steps} steps; this tracker has {wanted}, "
                f"{expected[0]} and {expected[1]}"
            )
        seen = np.concatenate([states, actions], axis=-1)
        if not ((seen >= self._least_value) & (seen < np.array(sizes))).all():
            raise ValueError(
                f"state: states and actions {seen.tolist()} are out of range; sizes: {sizes}"
            )
        columns = self._read_columns(state.continuous, ()) if num_steps else {}
        self._num_steps, self._last = num_steps, tuple(seen.ravel().tolist())
        self._last_columns = columns
        self._log_beliefs = {
            agent: np.array(state.log_beliefs[agent], np.float64) for agent in shapes
        }

    def __repr__(self) -> str:
        if not self._num_steps:
            return "Tracker(no step seen)"
        likely = []
        for agent, log in self._log_beliefs.items():
            probs = np.exp(log).mean(0)
            best = int(probs.argmax())
            likely.append(f"{agent} {self._members[agent].latent.text(best)} ({probs[best]:.2f})")
        return f"Tracker(step {self._num_steps - 1}: {', '.join(likely)})"

    # ------------------------------------------------------------------ one step

    def _look_ahead(
        self,
        step: int,
        log_beliefs: LogBeliefs,
        last: Values,
        states: Values,
        gone: Collection[str],
        taken: Values | None = None,
    ) -> dict[str, _Outlook]:
        """The agents at the beginning of a step, given beliefs, states and actions of the last.

        The actions taken in the step itself are given where they are known. Those who are away are
        left out; one of whom there is no belief begins.
        """
        outlook = {}
        for agent, rows in self._rows(step, log_beliefs, last, states, taken).items():
            if agent in gone:
                continue
            log_predicted = rows.log_arrival
            if agent in log_beliefs:
                moves = log_beliefs[agent][:, :, None] + rows.log_arrival
                log_predicted = np.logaddexp.reduce(moves, axis=1)
            outlook[agent] = _Outlook(log_predicted, rows.log_policy, rows.log_measured)
        return outlook

    def _rows(
        self,
        step: int,
        log_beliefs: LogBeliefs,
        last: Values,
        states: Values,
        taken: Values | None,
    ) -> dict[str, StepRows]:
        """What the tables say of a step."""
        unobserved = self._unobserved(last) if step > 0 else set[str]()
        seen = (*(last if step > 0 else (NONE_BEFORE,) * len(last)), *states)
        rows = {}
        for agent, readers in self._readers.items():
            goes_on = agent in log_beliefs
            unread = unobserved & set(readers.transition.actions) if goes_on else set()
            for other in unread - {agent}:
                if not self._knows_unseen:
                    raise ValueError(
                        f"agent {agent}, step {step}: its transition reads the action of "
                        f"{other} at step {step - 1}, which was not observed; a posterior learned "
                        "from recordings with such steps (missing='allow') has a row for that"
                    )
            if agent in unread:
                arrival = self._summed_over_actions(agent, last, seen)
            else:
                arrival = (readers.transition if goes_on else readers.initial)(seen)
            rows[agent] = StepRows(arrival, readers.policy(seen))
        return rows

    def _summed_over_actions(
        self, agent: str, last: Values, seen: Values
    ) -> Float[np.ndarray, "draws latents next_latents"]:
        """log sum_a pi(a | k) T_a(j | k): the moves where nobody saw the own last action."""
        readers, place = self._readers[agent], len(self._variables) + self.agents.index(agent)
        earlier = self._earlier[agent]
        if earlier:
            raise ValueError(
                f"agent {agent}: its transition reads an action that nobody saw, and its policy "
                f"there read {earlier[0]}, which a tracker does not remember; posterior.filter "
                "takes the whole recording"
            )
        # The policy of the last step read its states, which stand where those of now would.
        before = (*last, *last[: len(self._variables)])
        log_policy = readers.policy(before)
        moves = [
            log_policy[:, :, [action]]
            + readers.transition((*seen[:place], action, *seen[place + 1 :]))
            for action in range(log_policy.shape[2])
        ]
        return np.logaddexp.reduce(moves, axis=0)

    def _leading(self, num_steps: int) -> tuple[int, ...]:
        """Axes of the states and actions that are remembered, before those of their names."""
        return ()

    def _remembered(self, last: Values, states: Values, taken: Values) -> Values:
        """What is remembered of the episode once a step has been seen."""
        return (*states, *taken)

    def _take_in(
        self,
        agent: str,
        ahead: _Outlook,
        action: int,
        label: int,
        weights: Float[np.ndarray, " latents"] | None,
    ) -> Float[np.ndarray, "draws latents"]:
        """log P(x_t | up to t) under each draw."""
        log_joint = ahead.log_predicted
        if action != _UNKNOWN:
            log_joint = log_joint + ahead.log_policy[:, :, action]
        if ahead.log_measured is not None:
            log_joint = log_joint + ahead.log_measured
        if label != _UNKNOWN:
            log_joint = np.where(np.arange(log_joint.shape[1]) == label, log_joint, -np.inf)
        if weights is not None:
            log_joint = log_joint + log_rows(weights)
        log_normalizer = np.logaddexp.reduce(log_joint, axis=1, keepdims=True)
        if not np.isfinite(log_normalizer).all():
            member = self._members[agent]
            observed = [f"action {member.action.text(action)}"] if action != _UNKNOWN else []
            observed += ["what else was measured"] if ahead.log_measured is not None else []
            observed += [f"label {member.latent.text(label)}"] if label != _UNKNOWN else []
            observed += ["the weights of latents"] if weights is not None else []
            raise ValueError(
                f"impossible under the model: agent {agent}, step {self._num_steps}: "
                f"{' with '.join(observed)} has probability 0 given the episode before it"
            )
        return log_joint - log_normalizer

    def _next_actions(
        self, log_beliefs: LogBeliefs, last: Values, states: Values | None, gone: Collection[str]
    ) -> dict[str, Float[np.ndarray, " actions"]] | None:
        if states is None:
            if self._needs_more(last):
                return None
            states = (_UNKNOWN,) * len(self._variables)
        # Who is away is taken to stay away: when somebody comes back, nobody knows yet.
        outlook = self._look_ahead(self._num_steps + 1, log_beliefs, last, states, gone)
        return self._actions_of(outlook)

    def _actions_of(self, outlook: Mapping[str, _Outlook]) -> dict[str, np.ndarray]:
        """What is expected of all who act; NaN of those who are away."""
        return {
            agent: outlook[agent].actions()
            if agent in outlook
            else np.full(member.action.size, np.nan)
            for agent, member in self._members.items()
            if member.action.size
        }

    def _needs_more(self, last: Values) -> bool:
        """Whether the next actions depend on the next state, or on actions not observed."""
        unobserved = self._unobserved(last)
        return any(
            readers.reads_state
            or not (
                self._knows_unseen or (unobserved - {agent}).isdisjoint(readers.transition.actions)
            )
            for agent, readers in self._readers.items()
        )

    def _unobserved(self, last: Values) -> set[str]:
        """The agents whose action at the last step was not observed."""
        taken = zip(self.agents, last[len(self._variables) :], strict=True)
        return {agent for agent, action in taken if action == _UNKNOWN}

    # ------------------------------------------------------------------ what was given

    def _read_away(self, away: Any) -> frozenset[str]:
        given = [away] if isinstance(away, str) else list(away)
        for agent in given:
            if agent not in self._members:
                raise ValueError(
                    f"away: unknown agent {agent!r}; the agents are {', '.join(self.agents)}"
                )
        return frozenset(given)

    def _read_state(self, state: Any, argument: str, gone: Collection[str]) -> Values:
        columns = self._variables
        without = {name for name in columns if gone and agents_in(name, self.agents) & set(gone)}
        if without:
            if not isinstance(state, Mapping):
                raise ValueError(
                    f"{argument}: where somebody is away, a mapping {{state variable: value}} "
                    "expected"
                )
            there = {name: value for name, value in state.items() if name not in without}
            given = self._read_state(there | dict.fromkeys(without, 0), argument, frozenset())
            return tuple(
                AWAY if name in without else value
                for name, value in zip(columns, given, strict=True)
            )
        if isinstance(state, Mapping):
            unknown = [str(name) for name in state if name not in columns]
            if unknown:
                raise ValueError(
                    f"{argument}: unknown state variable {', '.join(unknown)}; there are "
                    f"{', '.join(columns)}"
                )
            missing = self._needed - state.keys()
            if missing:
                raise ValueError(f"{argument}: no value for {', '.join(sorted(missing))}")
            return tuple(
                _UNKNOWN
                if name not in state or (state[name] is None and self._knows_unseen)
                else column.code(state[name], argument)
                for name, column in columns.items()
            )
        values = _as_sequence(state)
        if values is None:
            values = _split_joint(state, columns, argument) if len(columns) > 1 else [state]
        if len(values) != len(columns):
            raise ValueError(
                f"{argument}: {len(values)} values for {len(columns)} state variables "
                f"({', '.join(columns)})"
            )
        pairs = zip(columns.values(), values, strict=True)
        return tuple(column.code(value, argument) for column, value in pairs)

    def _read_columns(self, given: Any, gone: Collection[str]) -> dict[str, float]:
        every = {agent: channel.names for agent, channel in self._channels.items()}
        wanted = sorted(set().union(*every.values()))
        needed = set().union(*(names for agent, names in every.items() if agent not in gone))
        given = {} if given is None else given
        if not isinstance(given, Mapping):
            raise ValueError(f"continuous: a mapping {{column: number}} expected, got {given!r}")
        missing = [name for name in wanted if name in needed and name not in given]
        if missing:
            raise ValueError(
                f"continuous: no value for {', '.join(missing)}; give None where it was not seen"
            )
        return {name: _number(name, given.get(name)) for name in wanted}

    def _read_actions(self, actions: Any, gone: Collection[str]) -> Values:
        acting = [agent for agent, member in self._members.items() if member.action.size]
        given = {} if actions is None and not acting else self._by_agent(actions, "actions")
        given = {a: None for a in self.agents if a not in acting or a in gone} | dict(given)
        # In recordings those who have no actions have -1.
        nobodys = (a for a in self.agents if a not in acting and given[a] == _UNKNOWN)
        given |= dict.fromkeys((*gone, *nobodys))
        missing = [agent for agent in self.agents if agent not in given]
        if missing:
            raise ValueError(
                f"actions: none for {', '.join(missing)}; give None where it was not observed"
            )
        nothing = {agent: AWAY if agent in gone else _UNKNOWN for agent in self.agents}
        return tuple(
            nothing[agent] if given[agent] is None else member.action.code(given[agent], "actions")
            for agent, member in self._members.items()
        )

    def _read_labels(self, labels: Any) -> Values:
        given = {} if labels is None else self._by_agent(labels, "labels")
        told = ((member.latent, given.get(agent)) for agent, member in self._members.items())
        return tuple(
            _UNKNOWN if value is None or value == _UNKNOWN else latent.code(value, "labels")
            for latent, value in told
        )

    def _read_weights(
        self, given: Mapping[str, Any] | None, gone: Collection[str]
    ) -> dict[str, Float[np.ndarray, " latents"]]:
        """Weights of latents by those who are unsure, checked."""
        if not isinstance(given, Mapping):
            return checked_weights(given, self.agents, {}, np.ones((1, 1), bool), self)
        sizes = {agent: member.latent.size for agent, member in self._members.items()}
        there = np.array([[agent not in gone for agent in self.agents]])
        for agent in given:
            if agent in gone:
                raise ValueError(f"latent_weights: {agent} is away, so it has no latent")
        rows = {agent: [values] for agent, values in given.items()}
        found = checked_weights(rows, self.agents, sizes, there, self)
        return {agent: one[0] for agent, one in found.items()}

    def place(self, row: int) -> str:
        """The step that is taken in, for messages."""
        return f"step {self._num_steps}"

    def _by_agent(self, given: Any, argument: str) -> Mapping[str, Any]:
        if isinstance(given, Mapping):
            unknown = [str(agent) for agent in given if agent not in self._members]
            if unknown:
                raise ValueError(
                    f"{argument}: unknown agent {', '.join(unknown)}; the agents are "
                    f"{', '.join(self.agents)}"
                )
            return given
        values = _as_sequence(given)
        values = [given] if values is None else values
        if len(values) != len(self.agents):
            raise ValueError(
                f"{argument}: {len(values)} values for {len(self.agents)} agents "
                f"({', '.join(self.agents)})"
            )
        return dict(zip(self.agents, values, strict=True))


def _number(name: str, value: Any) -> float:
    """A finite number, or NaN."""
    if value is None:
        return np.nan
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        raise ValueError(f"continuous: {name} is {value!r}; allowed are numbers, and None")
    if math.isinf(value):
        raise ValueError(f"continuous: {name} is {value!r}; allowed are finite numbers, and None")
    return float(value)


def _as_sequence(values: Any) -> Sequence[Any] | None:
    """The values of a sequence or a one-dimensional array; None for a single value."""
    if isinstance(values, np.ndarray):
        return values.tolist() if values.ndim else None
    return values if isinstance(values, Sequence) and not isinstance(values, str) else None


def _split_joint(state: Any, columns: Mapping[str, Column], argument: str) -> list[int]:
    """The state variables of a joint index, the first one most significant."""
    sizes = [column.size for column in columns.values()]
    joint = Column("the joint state", math.prod(sizes), {}).code(state, argument)
    values = []
    for size in reversed(sizes):
        joint, value = divmod(joint, size)
        values.append(value)
    return values[::-1]


def reader_of(
    posterior: "Posterior", role: str, agent: str, rows: Mapping[str, RowsByContext]
) -> Reader:
    """An agent's table, and where its parents stand in (previous states, actions, states)."""
    demos = posterior.demos
    variables = list(demos.num_states)
    offset = len(variables) + len(demos.agents)
    places = {f"action_{name}": len(variables) + i for i, name in enumerate(demos.agents)}
    own = {name: i for i, name in enumerate(variables)}
    # To a policy the last step is the previous one; to a transition it is the one that is left.
    places |= (
        {}
        if role == "transition"
        else {f"previous_{name}": i for name, i in (places | own).items()}
    )
    places |= {f"next_{name}": offset + i for i, name in enumerate(variables)}
    places |= {name: i if role == "transition" else offset + i for i, name in enumerate(variables)}
    # A shared table is asked by the parents of the agent that reads it.
    names = make_contexts(posterior.model, role, agent, demos).names
    beyond = [name for name in names if name not in places]
    if beyond:
        raise ValueError(
            f"{role} of {agent} reads {', '.join(beyond)}, two steps before the one that it leads "
            "to; a tracker remembers one step: use posterior.filter on the episode so far"
        )
    columns = [places[name] for name in names]
    return Reader(
        rows=rows[site_name(posterior.model, role, agent)],
        context=_picker(columns),
        variables=frozenset(variables[i % offset] for i in columns if i % offset < len(variables)),
        reads_state=any(i >= offset for i in columns),
        actions=tuple(
            demos.agents[i - len(variables)] for i in columns if len(variables) <= i < offset
        ),
    )


def _channel_reader(
    posterior: "TeamPosterior",
    channel: Channel,
    estimate: str,
    num_draws: int | None,
    seed: int,
) -> _ChannelReader:
    """An agent's continuous columns at a point estimate, or under draws."""
    demos = posterior.demos
    variables = list(demos.num_states)
    offset = len(variables) + len(demos.agents)
    context = _picker([offset + variables.index(name) for name in channel.names])

    def points(contexts: Int[np.ndarray, "k parents"]) -> ChannelPoint:
        if num_draws is None:
            one = posterior._channel_point(channel.agent, contexts, estimate)
            return ChannelPoint(one.coefficients[None], one.covariance[None])
        return posterior.drawn_channel(channel.agent, contexts, num_draws, seed)

    return _ChannelReader(channel, context, points)


def _picker(columns: Sequence[int]) -> Callable[[Values], Values]:
    """A function that picks some values, as a tuple."""
    if len(columns) > 1:
        return operator.itemgetter(*columns)
    if columns:
        column = columns[0]
        return lambda values: (values[column],)
    return lambda values: ()


def rows_of_tables(
    posterior: "TeamPosterior",
    estimate: str,
    num_draws: int | None,
    seed: int,
    form: Callable[[np.ndarray], np.ndarray],
) -> dict[str, RowsByContext]:
    """The tables of a posterior by their sites: the point estimate, or draws."""
    tables = posterior.bound.tables
    if num_draws is None:

        def of_visited(site: str, contexts: Contexts) -> Float[np.ndarray, "..."]:
            return posterior._estimate(site, contexts, estimate)[:, None]

        def of_others(site: str, contexts: Contexts) -> Float[np.ndarray, "..."]:
            return posterior._unvisited(site, contexts, estimate)[:, None]

        return {
            site: RowsByContext(table, partial(of_visited, site), partial(of_others, site), form)
            for site, table in tables.items()
        }
    drawn = list(posterior.drawn_tables(num_draws, seed))

    def drawn_visited(site: str, contexts: Contexts) -> Float[np.ndarray, "..."]:
        return np.stack([draw.rows(site, contexts) for draw in drawn], axis=1)

    def drawn_others(site: str, contexts: Contexts) -> Float[np.ndarray, "..."]:
        cpt = tables[site].cpt
        if not (cpt.learned and cpt.dirichlet_rows):
            return drawn_visited(site, contexts)
        # Only parameters, where there are any, tell the draws apart.
        different = drawn if tables[site].parametric else drawn[:1]
        prior = np.stack([draw.concentration(site, contexts) for draw in different], axis=1)
        # Seeded by the context: a row that was forgotten is drawn again as it was.
        site_number = zlib.crc32(site.encode())
        # Values of none are negative, which no seed may be.
        rows = (contexts.rows % 2**32).tolist()
        seeds = [[seed, 2, site_number, *row] for row in rows]
        shape = (len(drawn), *prior.shape[2:])
        return np.stack(
            [
                dirichlet_draws(np.random.default_rng(own), np.broadcast_to(one, shape))
                for own, one in zip(seeds, prior, strict=True)
            ]
        )

    return {
        site: RowsByContext(table, partial(drawn_visited, site), partial(drawn_others, site), form)
        for site, table in tables.items()
    }
