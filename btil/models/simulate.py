"""Made-up recordings of a team: latents and actions drawn from the model, states as recorded."""

import numpy as np
from jaxtyping import Float, Int

from btil.demonstrations import Demonstrations
from btil.models.contexts import parent_columns, parent_values, previous_values, unique_rows
from btil.models.cpt import ROLES, Contexts
from btil.models.draws import DrawnTables
from btil.models.emission import PREVIOUS, bind_channel
from btil.models.team import TeamModel, make_contexts, site_name

_ACTIONS = ("simulated", "observed")


def simulate(
    model: TeamModel,
    demos: Demonstrations,
    tables: DrawnTables,
    generator: np.random.Generator,
    actions: str = "simulated",
) -> Demonstrations:
    r"""Draw the latents and actions of all agents, on the states of given demonstrations.

    The model says how latents and actions come about given the states and nothing of how states
    do, so these are held fixed, as they are when the model is fitted:

    .. math:: x_i^0 \sim b_i(\cdot \mid s^0), \quad
              a_i^t \sim \pi_i(\cdot \mid s^t, x_i^t), \quad
              x_i^{t+1} \sim T_i(\cdot \mid x_i^t, s^t, a^t, s^{t+1}).

    Continuous columns that the model explains are drawn too, step by step, blank where they are
    blank in `demos`; other columns stay as recorded, and so do steps of which a covariate is
    unknown (an episode's first, where one is of the step before).

    The recorded states answer the recorded actions, not the simulated ones. For checks of
    inference that is as it should be; it is no rollout of a task.

    Step t of all episodes is drawn at once, so the work in Python grows with the longest episode,
    not with their number.

    Args:
        model: The model.
        demos: Where states, episodes, sizes and names come from; labels are not looked at.
        tables: One row for every context that is asked for, e.g. a draw from the prior
            (`btil.models.draws.prior_tables`) or from a posterior (`posterior.drawn_tables`).
        generator: Makes the random numbers.
        actions: "simulated", or "observed": the recorded actions are kept and only latents are
            drawn, each from its transition. Actions then matter as parents of transitions alone:
            these are not draws of the latents given the actions (`posterior.smooth` has those).

    Returns:
        Demonstrations of the same states in which every step of every agent is labelled.

    Raises:
        ValueError: If `actions` is something else, or the model does not fit the demonstrations.

    Example:
        >>> tables = prior_tables(model, demos, generator)  # doctest: +SKIP
        >>> simulate(model, demos, tables, generator).latents.min()  # doctest: +SKIP
        0

    Source: the generative model of the paper, Section 3.2.
    """
    if actions not in _ACTIONS:
        raise ValueError(f"actions must be {' or '.join(map(repr, _ACTIONS))}, got {actions!r}")
    model = model.resolved(demos)
    emitted = _Emitted(demos, tables)
    latents = np.full_like(demos.latents, -1)
    acted = demos.actions.copy()
    # What nobody saw is simulated too, as the own transition may read it, and hidden again.
    every = actions == "simulated"
    drawn = {
        a: demos.present[:, i] & (every | (acted[:, i] < 0)) for i, a in enumerate(demos.agents)
    }
    tables_at = _TablesAt(model, demos, tables, acted, [a for a in drawn if drawn[a].any()])
    for t in range(int(demos.episode_lengths.max())):
        now = np.asarray(demos.episode_starts)[demos.episode_lengths > t] + t
        for i, agent in enumerate(demos.agents):
            begins = np.isin(now, demos.stays[i])
            for role, then in (
                ("initial", now[begins]),
                ("transition", now[demos.present[now, i] & ~begins]),
            ):
                before = then if role == "initial" else then - 1
                if not len(then):
                    continue
                rows, position = tables_at.steps(role, agent, before, then)
                held = () if role == "initial" else (latents[before, i],)
                latents[then, i] = draw_values(rows[(position, *held)], generator)
        for i, agent in enumerate(demos.agents):
            acting = now[drawn[agent][now]]
            if len(acting):
                rows, position = tables_at.steps("policy", agent, acting, acting)
                acted[acting, i] = draw_values(rows[position, latents[acting, i]], generator)
        emitted.draw(now, latents, generator)
    acted[demos.actions < 0] = -1
    return demos.replace(
        actions={a: acted[:, i] for i, a in enumerate(demos.agents) if demos.num_actions[i]}
        or None,
        latents=latents,
        latent_weights=None,
        continuous=emitted.columns(),
    )


Columns = dict[str, Int[np.ndarray, " steps"]]
# Rows, and which of them each step reads.
_Found = tuple[Float[np.ndarray, "contexts ..."], Int[np.ndarray, " k"]]


class _TablesAt:
    """The rows of tables that steps read, while actions are drawn.

    What depends on no simulated action is looked up for all steps at once.

    Args:
        model: The model.
        demos: Where contexts come from.
        tables: The drawn tables.
        acted: Actions; those that are drawn are put in.
        simulated: Agents of whom actions are drawn.
    """

    def __init__(
        self,
        model: TeamModel,
        demos: Demonstrations,
        tables: DrawnTables,
        acted: Int[np.ndarray, "steps agents"],
        simulated: list[str],
    ) -> None:
        self._model, self._demos, self._tables, self._acted = model, demos, tables, acted
        self._values = parent_values(demos)
        self._contexts = {
            (role, agent): make_contexts(model, role, agent, demos)
            for role in ROLES
            for agent in demos.agents
        }
        changing = {f"{when}action_{agent}" for agent in simulated for when in ("", "previous_")}
        self._settled: dict[tuple[str, str], _Found] = {}
        for (role, agent), contexts in self._contexts.items():
            if not changing & set(contexts.names):
                steps = self._read_at(role, agent)
                rows, position = self._look_up(role, agent, steps, steps + (role == "transition"))
                at_step = np.full(demos.num_steps, -1)
                at_step[steps] = position
                self._settled[role, agent] = rows, at_step

    def steps(
        self, role: str, agent: str, before: Int[np.ndarray, " k"], then: Int[np.ndarray, " k"]
    ) -> _Found:
        """What some steps read; the next state is that of the steps `then`."""
        if (role, agent) in self._settled:
            rows, at_step = self._settled[role, agent]
            return rows, at_step[before]
        return self._look_up(role, agent, before, then)

    def _read_at(self, role: str, agent: str) -> Int[np.ndarray, " k"]:
        """The steps at which an agent's table of a role is read."""
        i = self._demos.agents.index(agent)
        there, begins = self._demos.present[:, i].copy(), self._demos.stays[i]
        if role == "initial":
            return begins
        if role == "transition":
            there[begins] = False
            return np.flatnonzero(there) - 1
        return np.flatnonzero(there)

    def _look_up(
        self, role: str, agent: str, before: Int[np.ndarray, " k"], then: Int[np.ndarray, " k"]
    ) -> _Found:
        contexts = self._contexts[role, agent]
        distinct, position = unique_rows(self._parents(contexts, agent, before, then))
        site = site_name(self._model, role, agent)
        return self._tables.rows(site, contexts._replace(rows=distinct)), position

    def _parents(
        self,
        contexts: Contexts,
        agent: str,
        now: Int[np.ndarray, " k"],
        then: Int[np.ndarray, " k"],
    ) -> Int[np.ndarray, "k parents"]:
        """Parent values at steps `now`; those of next_* are taken at steps `then`."""
        states = self._values[0]
        previous = {}
        if any(name.startswith("previous_") for name in contexts.names):
            earlier = {name: column[now - 1] for name, column in states.items()}
            first = np.isin(now, self._demos.episode_starts)
            taken = self._taken(agent, now - 1)
            previous = previous_values(contexts.names, earlier, taken, first)
        return parent_columns(
            contexts.names,
            {name: column[now] for name, column in states.items()},
            self._taken(agent, now),
            {name: column[then] for name, column in states.items()},
            len(now),
            previous,
        )

    def _taken(self, agent: str, steps: Int[np.ndarray, " k"]) -> Columns:
        """Actions as an agent knows them: what nobody saw it knows of itself alone."""
        taken = {}
        for i, (name, known) in enumerate(self._values[1].items()):
            hidden = (known[steps] < 0) & (name != agent)
            taken[name] = np.where(hidden, known[steps], self._acted[steps, i])
        return taken


class _Emitted:
    """Continuous columns drawn step by step.

    Args:
        demos: Where contexts, covariates and blanks come from.
        tables: The drawn coefficients and covariances.

    Raises:
        ValueError: If columns of the same step are covariates of each other.
    """

    def __init__(self, demos: Demonstrations, tables: DrawnTables) -> None:
        self._demos, self._tables = demos, tables
        self._columns = {name: values.copy() for name, values in demos.continuous.items()}
        self._channels = {
            agent: bind_channel(drawn.channel.family, demos, agent)
            for agent, drawn in tables.channels.items()
        }
        self._rows = {
            agent: tables.channels[agent].rows(channel.contexts)
            for agent, channel in self._channels.items()
        }
        owner = {
            column: agent
            for agent, channel in self._channels.items()
            for column in channel.family.columns_of(agent)
        }
        self._order: list[str] = []
        while len(self._order) < len(self._channels):
            ready = [
                agent
                for agent, channel in self._channels.items()
                if agent not in self._order
                and all(
                    owner.get(name, agent) in (agent, *self._order)
                    for name in channel.family.covariates_of(agent)
                )
            ]
            if not ready:
                left = [agent for agent in self._channels if agent not in self._order]
                raise ValueError(
                    f"simulate: columns of {', '.join(left)} are covariates of each other at the "
                    "same step, so none can be drawn first; use previous_<column>"
                )
            self._order += ready

    def draw(
        self,
        now: Int[np.ndarray, " k"],
        latents: Int[np.ndarray, "steps agents"],
        generator: np.random.Generator,
    ) -> None:
        """Draw the columns of some steps, given the latents."""
        for agent in self._order:
            channel, (coefficients, covariance) = self._channels[agent], self._rows[agent]
            steps = now[channel.row[now] >= 0]
            if not len(steps):
                continue
            columns = channel.family.columns_of(agent)
            inputs = [np.ones(len(steps))] if channel.family.intercept else []
            for name in channel.family.covariates_of(agent):
                now_or_before = steps
                if name not in self._columns:
                    name, now_or_before = name.removeprefix(PREVIOUS), steps - 1
                inputs.append(self._columns[name][now_or_before])
            at = channel.row[steps], latents[steps, self._demos.agents.index(agent)]
            mean = np.einsum("np,npd->nd", np.stack(inputs, axis=1), coefficients[at])
            noise = generator.standard_normal(mean.shape)
            values = mean + np.einsum("nij,nj->ni", np.linalg.cholesky(covariance[at]), noise)
            for column, drawn in zip(columns, values.T, strict=True):
                self._columns[column][steps] = drawn

    def columns(self) -> dict[str, Float[np.ndarray, " steps"]] | None:
        """All columns, blank where they were."""
        recorded = self._demos.continuous
        blanked = {
            name: np.where(np.isnan(recorded[name]), np.nan, values)
            for name, values in self._columns.items()
        }
        return blanked or None


def draw_values(
    rows: Float[np.ndarray, "k values"], generator: np.random.Generator
) -> Int[np.ndarray, " k"]:
    """One value of each row, by inversion; a value of probability 0 never comes out.

    Example:
        >>> draw_values(np.array([[0.0, 1.0], [1.0, 0.0]]), np.random.default_rng(0)).tolist()
        [1, 0]
    """
    cumulative = np.cumsum(rows, axis=-1)
    # The last one is 1 to the bit: uniform numbers are below it.
    cumulative /= cumulative[:, -1:]
    return (cumulative <= generator.random((len(rows), 1))).sum(-1)
