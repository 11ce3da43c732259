"""A learned team at work: in a grid world, or in a PettingZoo environment with discrete spaces."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from btil.arguments import check_seed, check_values
from btil.demonstrations import Demonstrations
from btil.domains.gridworld.derived import all_names, all_variables
from btil.domains.gridworld.simulate import (
    Member,
    Played,
    given_member,
    roll_out,
    task_demonstrations,
)
from btil.domains.gridworld.task import GridTask

ESTIMATES = ("mean", "map", "draw")
# Posterior draws are made for so many episodes at a time, which bounds memory.
_DRAWS_AT_ONCE = 32

Indices = Int[np.ndarray, " k"]
Rows = Float[np.ndarray, "k values"]


@runtime_checkable
class Actor(Protocol):
    """What `play` asks of a member of a learned team; `btil.posterior.acting.Actor` is one."""

    agent: str
    demos: Demonstrations
    num_latents: int
    variables: frozenset[str]

    def initial(self, states: Any, draw: Any) -> Any:
        """P(x_0 | s_0), (k, latents)."""

    def policy(self, states: Any, latents: Any, draw: Any, previous: Any = None) -> Any:
        """P(a | s, x), (k, actions), also given (states, actions) of the step before, if any."""

    def transition(
        self, states: Any, actions: Any, next_states: Any, latents: Any, draw: Any
    ) -> Any:
        """P(x' | x, s, a, s'), (k, latents)."""


@runtime_checkable
class Team(Protocol):
    """A team that `play` can let act: a `TeamPosterior`, a learned team, or one of your own."""

    def actors(
        self, estimate: str = "mean", num_draws: int | None = None, seed: int = 0
    ) -> Mapping[str, Any]:
        """Its members by their names, acting by an estimate or by each of some draws."""


def play(
    task: Any,
    team: Any,
    num_episodes: int,
    seed: int = 0,
    max_steps: int = 200,
    *,
    estimate: str = "mean",
) -> Demonstrations:
    r"""Let a learned team act, and write down what happens.

    Every member begins with a latent from its learned initial table, acts by its policy, and lets
    the latent move by its transition table:

    .. math:: x_i^0 \sim b_i(\cdot \mid s^0), \quad
              a_i^t \sim \pi_i(\cdot \mid s^t, x_i^t), \quad
              s^{t+1} \sim T_s(\cdot \mid s^t, a^t), \quad
              x_i^{t+1} \sim T_i(\cdot \mid x_i^t, s^t, a^t, s^{t+1}).

    State variables that a model reads are computed by the task: its own ones, and those that
    `task.add_derived_variables` gives.

    Args:
        task: A task of `btil.domains`, or a PettingZoo ``ParallelEnv`` with discrete spaces, whose
            variables have the names that `btil.domains.record` gives them.
        team: Who plays: a `TeamPosterior`, a team of `btil.imitation.learn`, or a mapping with
            for each agent one of these, or a policy (states, latents, actions), whose latent
            starts and moves as the task says. So ``{"alice": posterior, "rob":
            task.policies()["rob"]}`` is a learned Alice beside the true Rob.
        num_episodes: Number of episodes.
        seed: A non-negative integer. Every episode has a stream of its own: the first episodes of
            a longer run are the same. `task.simulate` of the same seed and policies is bit for
            bit the same play.
        max_steps: Steps after which an episode is cut.
        estimate: By what tables a learned member acts: "mean" or "map" (the mode of each row; mfvi
            and the Dirichlet guide), or "draw": in every episode by a fresh draw from the
            posterior (Thompson sampling).

    Returns:
        Demonstrations with the task's state variables, every latent labelled, and the rewards that
        the task gives for each step: of a grid world the team's (`task.rewards`; positive where
        the task is finished), of an environment each agent's.

    Raises:
        ValueError: Before anything is played: an argument is none that is allowed, a member is
            missing, a model reads a variable that the task does not have, or values have other
            names or sizes there.

    Example:
        >>> played = btil.domains.play(task, posterior, 100)  # doctest: +SKIP
        >>> played.episode_lengths.mean()  # doctest: +SKIP

    References:
        W. R. Thompson (1933), On the likelihood that one unknown probability exceeds another.
    """
    check_values({"num_episodes": num_episodes, "max_steps": max_steps})
    seed = check_seed(seed)
    if estimate not in ESTIMATES:
        raise ValueError(f"estimate must be one of {', '.join(ESTIMATES)}, got {estimate!r}")
    if not isinstance(task, GridTask):
        return _play_in(task, team, num_episodes, seed, max_steps, estimate)
    size = _DRAWS_AT_ONCE if estimate == "draw" else int(num_episodes)
    parts: list[Played] = []
    for block, start in enumerate(range(0, int(num_episodes), size)):
        company = _Company(team, task.agents, estimate, [seed, block])
        members = [_grid_member(task, agent, company) for agent in task.agents]
        episodes = range(start, min(start + size, int(num_episodes)))
        parts.append(roll_out(task, members, episodes, seed, int(max_steps)))
    played = Played(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
    minds = {
        agent: (member.num_latents, getattr(member, "latent_names", task.latent_names))
        for agent, member in zip(task.agents, members, strict=True)
    }
    demos = task_demonstrations(task, *played[1:4], played.episodes, minds)
    return demos.replace(rewards=task.rewards(played.next_states))


def member_of(task: GridTask, agent: str, team: Any) -> Member:
    """One member of a learned team, as it acts in a grid world: for play that goes step by step.

    Args:
        task: The task.
        agent: Whom it plays.
        team: A posterior of tables, or a learned team, who acts by its means.

    Returns:
        How its latent starts and moves, and what it does, in task states.

    Raises:
        ValueError: If it cannot play there, naming what differs.

    Example:
        >>> rob = member_of(task, "rob", posterior)  # doctest: +SKIP
    """
    return _grid_member(task, agent, _Company(team, task.agents, "mean", [0]))


class _Company:
    """Who plays which part; a team is asked for its actors once.

    Attributes:
        num_draws: By so many tables its learned members act, episode after episode.
    """

    def __init__(
        self, team: Any, agents: Sequence[str], estimate: str, seeds: Sequence[int]
    ) -> None:
        self.num_draws = _DRAWS_AT_ONCE if estimate == "draw" else 1
        self._estimate, self._seeds = estimate, seeds
        self._asked: dict[int, Mapping[str, Any]] = {}
        self._given = team if isinstance(team, Mapping) else dict.fromkeys(agents, team)
        for agent in self._given:
            if agent not in agents:
                raise ValueError(
                    f"team: unknown agent {agent!r}; the agents are {', '.join(map(str, agents))}"
                )
        for agent in agents:
            if agent not in self._given:
                raise ValueError(f"team: nobody plays {agent!r}")

    def __getitem__(self, agent: str) -> Any:
        """The agent's actor, or the policy that was given for it."""
        given = self._given[agent]
        if not isinstance(given, Team):
            if not callable(given) and np.ndim(given) < 2:
                raise ValueError(
                    f"team: {type(given).__name__} for {agent!r} cannot play; allowed are a "
                    "posterior of tables, a team of btil.imitation, a policy (states, latents, "
                    "actions), or a mapping from agents to such. A TeamModel is fitted first "
                    "(one of known tables fits at once)"
                )
            return given
        if id(given) not in self._asked:
            if self._estimate == "draw":
                # Teams that play together are drawn independently of each other.
                stream = np.random.SeedSequence([*self._seeds, len(self._asked)])
                seed = int(stream.generate_state(1)[0])
                asked = given.actors(num_draws=self.num_draws, seed=seed)
            else:
                asked = given.actors(self._estimate)
            self._asked[id(given)] = asked
        actors = self._asked[id(given)]
        if agent not in actors:
            raise ValueError(
                f"team: {agent!r} is not a member of what is given for it, whose agents are "
                f"{', '.join(actors)}"
            )
        return actors[agent]


def _play_in(
    env: Any, team: Any, num_episodes: int, seed: int, max_steps: int, estimate: str
) -> Demonstrations:
    """Play in a PettingZoo environment."""
    from btil.domains.recording import num_actions, record, variables_shown

    shown = variables_shown(env)
    agents = [str(agent) for agent in env.possible_agents]
    task = getattr(getattr(env, "unwrapped", env), "task", None)
    task = task if isinstance(task, GridTask) else None
    num_blocks = -(-int(num_episodes) // _DRAWS_AT_ONCE) if estimate == "draw" else 1
    companies = [_Company(team, agents, estimate, [seed, block]) for block in range(num_blocks)]
    given = {agent: companies[0][agent] for agent in agents}
    actors = [actor for actor in given.values() if hasattr(actor, "policy")]
    fitting = [
        kind
        for kind, sizes in shown.items()
        if all(actor.variables <= {*sizes, *(all_names(task) if task else ())} for actor in actors)
    ]
    kind = (fitting or list(shown))[0]
    texts = (getattr(env, "metadata", None) or {}).get("demonstrations", {})
    acted = {f"action_{agent}": texts.get("action_names") for agent in agents}
    names = {**texts.get("state_names", {}), **acted}
    sizes, variables = shown[kind], _as_shown
    if task is not None and set(sizes) == set(task.state_sizes):
        names, variables = names | all_names(task), partial(_derived, task)
        sizes = {name: len(values) for name, values in all_names(task).items()}
    parts = {}
    for original in env.possible_agents:
        actor = given[str(original)]
        if hasattr(actor, "policy"):
            known = {name: values for name, values in names.items() if values is not None}
            check_actor(actor, "the environment", sizes, num_actions(env), known)
            actors = [company[str(original)] for company in companies]
            actor = _Part(actors, agents, variables, companies[0].num_draws)
        parts[original] = actor
    minds: dict[str, Any] = {}
    if task is not None:
        minds = {
            "initial_latents": task.initial_latent_probs,
            "latent_transition": lambda agent, states, actions, next_states: task.latent_transition(
                agent, states, next_states
            ),
        }
    return record(
        env,
        parts,
        num_episodes,
        seed=seed,
        max_steps=max_steps,
        progress=False,
        states_from=kind,
        keep_rewards=True,
        **minds,
    )


def _as_shown(states: Mapping[str, Indices]) -> Mapping[str, Indices]:
    return states


def _derived(task: GridTask, states: Mapping[str, Indices]) -> Mapping[str, Indices]:
    """All variables of a task, from those that a state is made of."""
    values = np.stack([states[name] for name in task.state_sizes], axis=1)
    return all_variables(task, task.encode(values))


class _Part:
    """An actor where it plays: by the variables that it knows, and its episode's draw.

    Args:
        actors: The actor, by the draws of each block of episodes; if there are several, situations
            are of one episode at a time.
        agents: All who play, in the order of the columns of actions.
        variables: {variable: (k,)} of k states as they are given where it plays.
        num_draws: Number of draws of its tables in each block.
    """

    def __init__(
        self,
        actors: Sequence[Actor],
        agents: Sequence[str],
        variables: Callable[[Any], Mapping[str, Indices]],
        num_draws: int,
    ) -> None:
        self._actors, self._variables, self._num_draws = actors, variables, num_draws
        actor = actors[0]
        self._columns = [agents.index(agent) for agent in actor.demos.agents]
        self.num_latents = actor.num_latents
        self.variables = actor.variables
        self.latent_names = actor.demos.latent_names.get(actor.agent)

    def initial(self, states: Any, episodes: Indices) -> Rows:
        """P(x_0 | s_0)."""
        return self._actor(episodes).initial(self._variables(states), self._draws(episodes))

    def policy(
        self, states: Any, latents: Indices, episodes: Indices, previous: Any = None
    ) -> Rows:
        """P(a | s, x), given states and actions of the step before; None: there is none."""
        if previous is not None:
            previous = self._variables(previous[0]), previous[1][:, self._columns]
        shown = self._variables(states)
        return self._actor(episodes).policy(shown, latents, self._draws(episodes), previous)

    def transition(
        self,
        states: Any,
        actions: Int[np.ndarray, "k agents"],
        next_states: Any,
        latents: Indices,
        episodes: Indices,
    ) -> Rows:
        """P(x' | x, s, a, s')."""
        return self._actor(episodes).transition(
            self._variables(states),
            actions[:, self._columns],
            self._variables(next_states),
            latents,
            self._draws(episodes),
        )

    def _actor(self, episodes: Indices) -> Actor:
        return self._actors[int(episodes[0]) // self._num_draws % len(self._actors)]

    def _draws(self, episodes: Indices) -> Indices:
        return episodes % self._num_draws


def _grid_member(task: GridTask, agent: str, company: _Company) -> Member:
    given = company[agent]
    if not hasattr(given, "policy"):
        return given_member(task, agent, given)
    if set(given.demos.num_states) == {"state"}:
        variables: Callable[[Any], Mapping[str, Indices]] = _joint
        sizes, names = {"state": task.num_states}, {}
    else:
        variables, names = partial(all_variables, task), all_names(task)
        sizes = {name: len(texts) for name, texts in names.items()}
    check_actor(
        given,
        where=task.name,
        sizes=sizes,
        num_actions=dict.fromkeys(task.agents, task.num_actions),
        names=names | {f"action_{agent}": task.action_names for agent in task.agents},
    )
    return _Part([given], task.agents, variables, company.num_draws)


def _joint(states: Indices) -> dict[str, Indices]:
    return {"state": states}


def check_actor(
    actor: Actor,
    where: str,
    sizes: Mapping[str, int],
    num_actions: Mapping[str, int],
    names: Mapping[str, Sequence[str]],
) -> None:
    """Refuse an actor who would misread what it is told, or whose actions would be misread.

    Args:
        actor: The actor.
        where: Where it is to play.
        sizes: Number of values of the variables that there are.
        num_actions: Number of actions of each agent.
        names: The values' texts, of variables and of "action_<agent>".

    Raises:
        ValueError: Naming what differs.
    """
    learned = actor.demos
    for agent, size in zip(learned.agents, learned.num_actions, strict=True):
        if agent not in num_actions:
            raise ValueError(
                f"team: {actor.agent!r} was learned together with {agent!r}, who is not in "
                f"{where}; its "
                f"agents are {', '.join(num_actions)}"
            )
        if size != num_actions[agent]:
            raise ValueError(
                f"team: {agent!r} has {size} actions where {actor.agent!r} was learned, and "
                f"{num_actions[agent]} in {where}"
            )
    texts = dict(learned.state_names)
    texts |= {f"action_{agent}": given for agent, given in learned.action_names.items()}
    for variable in sorted(actor.variables):
        if variable not in sizes:
            raise ValueError(
                f"team: {actor.agent!r} reads {variable!r}, which {where} does not have; there "
                f"are {', '.join(sizes)}"
            )
        if learned.num_states[variable] != sizes[variable]:
            raise ValueError(
                f"team: {variable!r} has {learned.num_states[variable]} values where "
                f"{actor.agent!r} was learned, and {sizes[variable]} in {where}"
            )
    for column in (*sorted(actor.variables), *(f"action_{agent}" for agent in learned.agents)):
        if column in texts and column in names and tuple(texts[column]) != tuple(names[column]):
            raise ValueError(
                f"team: the values of {column!r} are {', '.join(texts[column])} where "
                f"{actor.agent!r} was learned; in {where} they are {', '.join(names[column])}"
            )
