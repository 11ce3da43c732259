"""Made-up recordings of a team: latents and actions drawn from the model, states as recorded."""

import numpy as np
from jaxtyping import Float, Int

from btil.demonstrations import Demonstrations
from btil.models.contexts import parent_columns, unique_rows
from btil.models.cpt import ROLES, Contexts
from btil.models.draws import DrawnTables
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
    latents = np.empty_like(demos.latents)
    acted = demos.actions.copy()
    own = {
        (role, agent): make_contexts(model, role, agent, demos)
        for role in ROLES
        for agent in demos.agents
    }
    every = np.arange(demos.num_steps)
    followed = np.delete(every, np.asarray(demos.episode_starts) + demos.episode_lengths - 1)
    read_at = {"policy": every, "transition": followed, "initial": np.asarray(demos.episode_starts)}
    # What depends on no simulated action is looked up for all steps at once.
    simulated = {f"action_{agent}" for agent in demos.agents} if actions == "simulated" else set()
    settled = {}
    for (role, agent), contexts in own.items():
        if not simulated & set(contexts.names):
            steps = read_at[role]
            then = steps + (role == "transition")
            columns = _parents_at(contexts, demos, acted, steps, then)
            rows, position = _look_up(tables, site_name(model, role, agent), contexts, columns)
            at_step = np.full(demos.num_steps, -1)
            at_step[steps] = position
            settled[role, agent] = rows, at_step
    for t in range(int(demos.episode_lengths.max())):
        now = np.asarray(demos.episode_starts)[demos.episode_lengths > t] + t
        for i, agent in enumerate(demos.agents):
            if t == 0:
                role, before = "initial", now
            else:
                role, before = "transition", now - 1
            if (role, agent) in settled:
                rows, at_step = settled[role, agent]
                position = at_step[before]
            else:
                contexts = own[role, agent]
                columns = _parents_at(contexts, demos, acted, before, now)
                rows, position = _look_up(tables, site_name(model, role, agent), contexts, columns)
            held = () if t == 0 else (latents[before, i],)
            latents[now, i] = draw_values(rows[(position, *held)], generator)
        for i, agent in enumerate(demos.agents if actions == "simulated" else ()):
            rows, at_step = settled["policy", agent]
            acted[now, i] = draw_values(rows[at_step[now], latents[now, i]], generator)
    return demos.replace(actions=acted, latents=latents)


def _parents_at(
    contexts: Contexts,
    demos: Demonstrations,
    actions: Int[np.ndarray, "steps agents"],
    now: Int[np.ndarray, " k"],
    then: Int[np.ndarray, " k"],
) -> Int[np.ndarray, "k parents"]:
    """Parent values at steps `now`; those of next_* are taken at steps `then`."""
    return parent_columns(
        contexts.names,
        {name: values[now] for name, values in demos.state_variables.items()},
        {name: actions[now, i] for i, name in enumerate(demos.agents)},
        {name: values[then] for name, values in demos.state_variables.items()},
        len(now),
    )


def _look_up(
    tables: DrawnTables, site: str, contexts: Contexts, columns: Int[np.ndarray, "k parents"]
) -> tuple[Float[np.ndarray, "contexts ..."], Int[np.ndarray, " k"]]:
    """Rows of the distinct contexts among some, and which of them each is."""
    distinct, position = unique_rows(columns)
    return tables.rows(site, contexts._replace(rows=distinct)), position


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
