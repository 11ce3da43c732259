"""The members of a learned team as they act: how their latents start and move, what they do."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int

from btil.demonstrations import Demonstrations
from btil.demonstrations.data import NONE_BEFORE
from btil.models.cpt import ROLES
from btil.posterior.tracker import Reader, reader_of, rows_of_tables

if TYPE_CHECKING:
    from btil.posterior.posterior import TeamPosterior

States = Mapping[str, Int[np.ndarray, " k"]]
# State variables, and the joint actions taken in them.
Step = tuple[States, Int[np.ndarray, "k agents"]]
Rows = Float[np.ndarray, "k values"]
Indices = Int[np.ndarray, " k"]


class Actor:
    """One member of a learned team.

    Its rows are asked for k situations at once, which may be of different episodes. Where there
    are several draws of the tables, `draw` says for each situation by which one the member acts;
    of a point estimate there is one, number 0.

    Attributes:
        agent: Its name.
        demos: Demonstrations that tell names and sizes of values, as they were learned with.
        num_latents: Number of its latents.
        variables: The state variables that it reads.
    """

    def __init__(self, agent: str, demos: Demonstrations, readers: Mapping[str, Reader]) -> None:
        self.agent = agent
        self.demos = demos
        self.num_latents = demos.num_latents[demos.agents.index(agent)]
        self.variables = frozenset[str]().union(*(r.variables for r in readers.values()))
        self._readers = readers

    def initial(self, states: States, draw: Indices) -> Rows:
        """P(x_0 | s_0)."""
        return self._rows("initial", None, states, (draw,))

    def policy(
        self, states: States, latents: Indices, draw: Indices, previous: Step | None = None
    ) -> Rows:
        """P(a_t | s_t, x_t), also given the previous states and actions, None at a first step."""
        return self._rows("policy", previous, states, (draw, latents))

    def transition(
        self,
        states: States,
        actions: Int[np.ndarray, "k agents"],
        next_states: States,
        latents: Indices,
        draw: Indices,
    ) -> Rows:
        """P(x_{t+1} | x_t, s_t, a_t, s_{t+1})."""
        return self._rows("transition", (states, actions), next_states, (draw, latents))

    def _rows(
        self, role: str, before: Step | None, now: States, chosen: tuple[Indices, ...]
    ) -> Rows:
        reader, number = self._readers[role], len(chosen[0])
        # What is not given is not read.
        nothing = np.full(number, NONE_BEFORE)
        if before is None:
            before = {}, np.stack([nothing] * len(self.demos.agents), axis=1)
        seen = np.stack(
            [before[0].get(name, nothing) for name in self.demos.num_states]
            + [*before[1].T]
            + [now.get(name, nothing) for name in self.demos.num_states],
            axis=1,
        )
        rows = reader.rows.of([reader.context(tuple(values)) for values in seen.tolist()])
        places = zip(*(one.tolist() for one in chosen), strict=True)
        return np.stack([row[place] for row, place in zip(rows, places, strict=True)])


def actors_of(
    posterior: "TeamPosterior", estimate: str, num_draws: int | None, seed: int
) -> dict[str, Actor]:
    """See `TeamPosterior.actors`."""
    rows = rows_of_tables(posterior, estimate, num_draws, seed, form=_as_they_are)
    return {
        agent: Actor(
            agent,
            posterior.demos,
            {role: reader_of(posterior, role, agent, rows) for role in ROLES},
        )
        for agent in posterior.demos.agents
    }


def _as_they_are(rows: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    return np.asarray(rows, np.float64)
