"""A live coach's view of a team under a NumPyro model of the modeler's own.

Such a model says a step's rows when it is shown a whole episode. So the tracker remembers the
episode, shows the function all that has been seen of it at every step, and takes the rows of that
step. A step costs one run of the function over the episode so far for every draw that is averaged.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from btil.messages.layout import log_rows
from btil.numerics.rounding import rounded_up
from btil.numpyro_forms.numpyro_model import EpisodeData, PaddedRows
from btil.numpyro_forms.tracing import Trace
from btil.posterior.tracker import LogBeliefs, StepRows, Tracker, Values

if TYPE_CHECKING:
    from btil.posterior.numpyro_posterior import NumpyroPosterior


_UNKNOWN = -1
# Steps that an episode is padded to at least. Past them the room is doubled, and compiled for anew.
_LEAST_ROOM = 64
# What two probabilities of the same inputs may differ by for rounding.
_ROUNDING = 1e-4


class NumpyroTracker(Tracker):
    """Beliefs about a team's latents during an episode, under a `NumpyroModel`.

    It is used as a `Tracker` of tables, and says at each step what `filter` and `predict_actions`
    say of a recording that ends there; labels, which only the chains look at, the function is not
    shown. All state variables and all actions must be given, as the function may read any. The
    last states and actions of `TrackerState` are those of the whole episode.

    Raises:
        ValueError: Where the function describes only the episodes it was fitted to.
    """

    _least_value = 0

    def _prepare(
        self, posterior: "NumpyroPosterior", estimate: str, num_draws: int | None, seed: int
    ) -> frozenset[str]:
        self._posterior, self._name = posterior, posterior.bound.own_model.name
        self._draws = list(posterior.draws_of_parameters(estimate, num_draws, seed))
        longest = posterior.bound.data.num_steps
        self._least_room = rounded_up(longest, smallest=_LEAST_ROOM, per_octave=1)
        # By the room that an episode has.
        self._traces: dict[int, Trace] = {}
        return frozenset(self._variables)

    def reset(self) -> None:
        """Begin a new episode."""
        super().reset()
        self._last: Values = ()

    def _leading(self, num_steps: int) -> tuple[int, ...]:
        return (num_steps,)

    def _remembered(self, last: Values, states: Values, taken: Values) -> Values:
        return (*last, *states, *taken)

    def _needs_more(self, last: Values) -> bool:
        return True

    def _read_away(self, away: Any) -> frozenset[str]:
        gone = super()._read_away(away)
        if gone:
            raise ValueError(
                f"away: {', '.join(sorted(gone))}, but {self._name} is given every step as it was"
            )
        return gone

    def _read_actions(self, actions: Any, gone: Collection[str]) -> Values:
        taken = super()._read_actions(actions, gone)
        unseen = [a for a, value in zip(self.agents, taken, strict=True) if value == _UNKNOWN]
        if unseen:
            raise ValueError(
                f"actions: none for {', '.join(unseen)}, but {self._name} may read any"
            )
        return taken

    def _rows(
        self,
        step: int,
        log_beliefs: LogBeliefs,
        last: Values,
        states: Values,
        taken: Values | None,
    ) -> dict[str, StepRows]:
        data = self._episode(last, states, taken)
        rows = {}
        for agent, under_draws in self._padded_rows(data).items():
            arrival = [
                one.transition[:, step - 1] if step > 0 else one.initial for one in under_draws
            ]
            policy = [one.policy[:, step] for one in under_draws]
            # The two episodes differ, if at all, in the actions of this step.
            if taken is None and not (_same(arrival) and _same(policy)):
                raise ValueError(
                    f"agent {agent}, step {step}: under {self._name} what it will do depends on "
                    "actions of the same step, which are not known yet"
                )
            measured = [one.log_likelihood for one in under_draws]
            at_step = None
            if measured[0] is not None:
                at_step = _of_first([logs[:, step] for logs in measured])
            rows[agent] = StepRows(
                log_rows(_of_first(arrival)), log_rows(_of_first(policy)), at_step
            )
        return rows

    def _episode(self, last: Values, states: Values, taken: Values | None) -> EpisodeData:
        """The episode so far, twice: with actions of its last step as different as can be."""
        demos, num_variables = self._posterior.demos, len(self._variables)
        before = np.array(last, np.int32).reshape(-1, num_variables + len(self.agents))
        steps = len(before) + 1
        room = rounded_up(steps, smallest=self._least_room, per_octave=1)

        def padded(values: Any, first: int, second: int) -> np.ndarray:
            array = np.zeros((2, room), np.int32)
            array[:, : steps - 1] = values
            array[:, steps - 1] = first, second
            return array

        actions = {}
        for i, (agent, size) in enumerate(zip(self.agents, demos.num_actions, strict=True)):
            now = (0, size - 1) if taken is None else (taken[i], taken[i])
            actions[agent] = padded(before[:, num_variables + i], *now)
        return EpisodeData(
            states={
                name: padded(before[:, i], states[i], states[i])
                for i, name in enumerate(self._variables)
            },
            actions=actions,
            labels={agent: np.full((2, room), _UNKNOWN, np.int32) for agent in self.agents},
            lengths=np.full(2, steps, np.int32),
            num_states=dict(demos.num_states),
            num_actions=dict(zip(demos.agents, demos.num_actions, strict=True)),
            num_latents=dict(zip(demos.agents, demos.num_latents, strict=True)),
        )

    def _padded_rows(self, data: EpisodeData) -> dict[str, list[PaddedRows]]:
        """The agents' rows under each draw, or averaged over those of a point estimate."""
        if data.num_steps not in self._traces:
            self._traces[data.num_steps] = self._posterior.traced_rows(data)
        rows = self._traces[data.num_steps]
        under_draws = [self._posterior.mean_rows(rows, data, one) for one in self._draws]
        return {agent: [rows[agent] for rows in under_draws] for agent in self.agents}


def _same(of_episodes: list[Float[np.ndarray, "episodes ..."]]) -> bool:
    """Whether the two episodes have the same rows, under every draw."""
    return all(np.allclose(one[0], one[1], rtol=0, atol=_ROUNDING) for one in of_episodes)


def _of_first(of_episodes: list[Float[np.ndarray, "episodes ..."]]) -> Float[np.ndarray, "..."]:
    """The first episode's rows under each draw."""
    return np.stack([one[0] for one in of_episodes]).astype(np.float64)
