"""A two-member grid-world team task: what Movers and Cleanup have in common.

A domain adds how items are carried (the task dynamics), what each latent is worth (from which
policies are planned), and how a latent moves.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.arguments import check_number
from btil.demonstrations import Demonstrations
from btil.domains.gridworld.grid import ACTIONS, AGENTS, NOBODY, ORIGIN, Grid
from btil.domains.gridworld.planning import Plan, PlanningProblem, softmax_policy, solve
from btil.models.cpt import DirichletCPT, KnownCPT, Shared, StickyDirichletCPT
from btil.models.team import TeamModel

STEP_REWARD = -1.0
FINISH_REWARD = 100.0


class Situation(NamedTuple):
    """Task states taken apart: one row per state.

    Attributes:
        cells: Cell of each agent.
        items: State of each item.
    """

    cells: Int[np.ndarray, "k agents"]
    items: Int[np.ndarray, "k items"]


class Outcome(NamedTuple):
    """What a joint action may lead to, with what probability, built case by case.

    Attributes:
        cells: Cell of each agent, in up to two alternatives.
        items: State of each item.
        probs: Probability of each alternative.
    """

    cells: Int[np.ndarray, "alternatives k agents"]
    items: Int[np.ndarray, "alternatives k items"]
    probs: Float[np.ndarray, "alternatives k"]


class Step(NamedTuple):
    """What a step changed, as far as minds take notice of it.

    Attributes:
        after: The task states after it, taken apart.
        held_before: Item that each agent held before, -1 for none.
        held_after: The same after it.
        any_lying: Equal probabilities of picking up what lies about after it; zeros if nothing.
    """

    after: Situation
    held_before: Int[np.ndarray, "k agents"]
    held_after: Int[np.ndarray, "k agents"]
    any_lying: Float[np.ndarray, "k latents"]

    @property
    def picked_up(self) -> Bool[np.ndarray, "k agents"]:
        """Who has an item now and had none."""
        return (self.held_before < 0) & (self.held_after >= 0)

    @property
    def let_go(self) -> Bool[np.ndarray, "k agents"]:
        """Who had an item and has none now."""
        return (self.held_before >= 0) & (self.held_after < 0)

    @property
    def empty_handed(self) -> Bool[np.ndarray, "k agents"]:
        """Who had no item and has none."""
        return (self.held_before < 0) & (self.held_after < 0)


class GridTask(ABC):
    """Two agents carry items to a goal on a map; each has an intent that nobody else sees.

    A task state is (cell of alice, cell of rob, state of item 0, ...), row-major, the first most
    significant. Actions are up, down, left, right, stay, hold. The latents 0, 1, ... are "pick up
    item 0", "pick up item 1", ...; the last two are "return the held item to its origin" and
    "take it to the goal". An episode ends when every item is on the goal; the state in which it
    ends is no step of it.

    Attributes:
        grid: The map.
        agents: ("alice", "rob").
        action_names: Text of each action.
        latent_names: Text of each latent.
    """

    name: str
    item_states: tuple[str, ...]
    # Dirichlet concentrations per cell, of the paper's Appendix D.
    policy_concentration: float
    transition_concentration: float
    # Of the recommended model: parents seen from one agent, and concentrations. These are small, as
    # teams do few things in a situation; they were chosen by the bound on the evidence and by how
    # teams act that were learned with them, on other draws of the data than any that is reported.
    _recommended_policy_concentration: float
    _recommended_transition_concentration = 0.1
    _stay = 0.2
    _policy_parents: tuple[str, ...]
    _transition_parents: tuple[str, ...]
    agents = AGENTS
    action_names = ACTIONS
    num_actions = len(ACTIONS)

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.origins = np.array(grid.items)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.grid.width} x {self.grid.height} map, "
            f"{self.grid.num_items} items, {self.num_states} states)"
        )

    # Names and sizes ---------------------------------------------------------------------------

    @property
    def state_sizes(self) -> dict[str, int]:
        """Number of values of each state variable, in the order of the task state."""
        return {
            **{f"{agent}_cell": self.grid.num_cells for agent in self.agents},
            **{f"item_{k}": len(self.item_states) for k in range(self.grid.num_items)},
        }

    @property
    def state_names(self) -> dict[str, tuple[str, ...]]:
        """Text of each value of each state variable."""
        cells = tuple(f"({x}, {y})" for x, y in self.grid.cells.tolist())
        return {
            variable: cells if variable.endswith("_cell") else self.item_states
            for variable in self.state_sizes
        }

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Text of each latent."""
        pick_up = (f"pick up item {k}" for k in range(self.grid.num_items))
        return (*pick_up, "return the item", "take it to the goal")

    @property
    def num_states(self) -> int:
        """Number of task states."""
        return int(np.prod([*self.state_sizes.values()], dtype=object))

    @property
    def num_latents(self) -> int:
        """Number of latents: items + 2."""
        return self.grid.num_items + 2

    @property
    def return_item(self) -> int:
        """The latent "return the held item to its origin"."""
        return self.grid.num_items

    @property
    def take_to_goal(self) -> int:
        """The latent "take the held item to the goal"."""
        return self.grid.num_items + 1

    @property
    def on_goal(self) -> int:
        """State of an item on the goal."""
        return len(self.item_states) - 1

    @property
    def start_state(self) -> int:
        """Where episodes start: agents at their starts, every item at its origin."""
        return int(self.encode([[*self.grid.starts, *[ORIGIN] * self.grid.num_items]])[0])

    # Task states -------------------------------------------------------------------------------

    def encode(self, variables: Any) -> Int[np.ndarray, " k"]:
        """Task states from the values of their variables, (k, variables).

        Raises:
            ValueError: If a value is out of range, naming the variable.
        """
        values = np.asarray(variables)
        sizes = self.state_sizes
        if values.ndim != 2 or values.shape[1] != len(sizes) or values.dtype.kind not in "iu":
            raise ValueError(
                f"variables: whole numbers of shape (k, {len(sizes)}) expected, got "
                f"{values.dtype} {values.shape}"
            )
        for column, (variable, size) in zip(values.T, sizes.items(), strict=True):
            check_range(variable, column, size)
        return np.ravel_multi_index(tuple(values.T), tuple(sizes.values())).astype(np.int64)

    def decode_states(self, states: Any) -> Int[np.ndarray, "k variables"]:
        """Values of the state variables of task states.

        Raises:
            ValueError: If a state is out of range.
        """
        index = check_range("states", states, self.num_states)
        return np.stack(np.unravel_index(index, tuple(self.state_sizes.values())), axis=1)

    def is_final(self, states: Any) -> Bool[np.ndarray, " k"]:
        """Whether every item is on the goal."""
        return self._is_final(self.situation(states))

    def rewards(self, next_states: Any) -> Float[np.ndarray, " k"]:
        r"""The team's reward :math:`R(s, a)` for a step that led to a state.

        -1 for every step, and 100 more for the one that finishes the task. What an agent has in
        mind plays no role in it.

        Args:
            next_states: Task states after the steps (k,).
        """
        return STEP_REWARD + FINISH_REWARD * self.is_final(next_states)

    def held_items(self, states: Any) -> Int[np.ndarray, "k agents"]:
        """Number of the item that each agent holds, -1 for none."""
        return self._held(self.situation(states))

    def situation(self, states: Any) -> Situation:
        """Task states taken apart."""
        values = self.decode_states(states)
        return Situation(values[:, :2], values[:, 2:])

    def states(
        self, cells: Int[np.ndarray, "k agents"], items: Int[np.ndarray, "k items"]
    ) -> Int[np.ndarray, " k"]:
        """Task states put together."""
        index = tuple(np.concatenate([cells, items], axis=1).T)
        return np.ravel_multi_index(index, tuple(self.state_sizes.values())).astype(np.int64)

    def _is_final(self, situation: Situation) -> Bool[np.ndarray, " k"]:
        return (situation.items == self.on_goal).all(axis=1)

    def item_at(self, situation: Situation, cells: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
        """Number of the item that lies at its origin in each cell, -1 for none."""
        return first_true((situation.items == ORIGIN) & (self.origins == cells[:, None]))

    def place_named(self, latent: int, held: Int[np.ndarray, " k"]) -> Int[np.ndarray, " k"]:
        """The cell where a held item is to be let go under one of the last two latents."""
        if latent == self.take_to_goal:
            return np.full(len(held), self.grid.goal)
        return self.origins[held]

    @abstractmethod
    def _held(self, situation: Situation) -> Int[np.ndarray, "k agents"]: ...

    # Task dynamics -----------------------------------------------------------------------------

    def transition(
        self, states: Any, actions: Any
    ) -> tuple[Int[np.ndarray, "k branches"], Float[np.ndarray, "k branches"]]:
        """Task dynamics T_s: where a joint action leads, and with what probability.

        A finished state is not left.

        Args:
            states: Task states (k,).
            actions: Joint actions (k, agents).

        Returns:
            Next states and their probabilities, both (k, 2). A slot that is not used has
            probability 0.

        Raises:
            ValueError: If a state or an action is out of range, or the shapes do not fit.

        Example:
            >>> task = btil.domains.movers()  # doctest: +SKIP
            >>> next_states, probs = task.transition([task.start_state], [[4, 4]])  # doctest: +SKIP
        """
        situation = self.situation(states)
        joint = self._per_agent("actions", actions, self.num_actions, len(situation.cells))
        cells, items, probs = self._outcome(situation, joint)
        finished = self._is_final(situation)
        index = np.asarray(states, np.int64)
        next_states = np.stack([self.states(cells[b], items[b]) for b in range(2)], axis=1)
        next_states[finished] = index[finished, None]
        probs = probs.T.copy()
        probs[finished] = (1.0, 0.0)
        same = (next_states[:, 0] == next_states[:, 1]) & (probs[:, 1] > 0)
        probs[same] = (1.0, 0.0)
        return next_states, probs

    def empty_step(
        self, cells: Int[np.ndarray, " k"], actions: Int[np.ndarray, " k"]
    ) -> Int[np.ndarray, " k"]:
        """A step without an item: only walls block it."""
        return self.grid.neighbors[cells, actions]

    def loaded_step(
        self,
        situation: Situation,
        cells: Int[np.ndarray, " k"],
        actions: Int[np.ndarray, " k"],
        carrier: Int[np.ndarray, " k"] | None = None,
    ) -> Int[np.ndarray, " k"]:
        """A step with an item: lying items block it, and so does another carrier's cell."""
        target = self.empty_step(cells, actions)
        blocked = self.item_at(situation, target) >= 0
        if carrier is not None:
            blocked |= carrier == target
        return np.where(blocked, cells, target)

    @abstractmethod
    def _outcome(self, situation: Situation, actions: Int[np.ndarray, "k agents"]) -> Outcome: ...

    # Policies ----------------------------------------------------------------------------------

    @cached_property
    def plan(self) -> Plan:
        """Q and values of the planning problem of every latent."""
        return solve(self._planning_problem())

    def policies(
        self, temperature: float = 1.0
    ) -> dict[str, Float[np.ndarray, "states latents actions"]]:
        """The policies of the paper's experiments: softmax of Q.

        Rows of finished states and of states that cannot occur are placeholders.

        Args:
            temperature: Of the softmax; 1 for the simulated teams, 0.3 for the teammate of the
                human study.

        Returns:
            Policy of each agent, read-only.

        Raises:
            ValueError: If the temperature is not positive and finite.
        """
        return dict(_policies(self, check_number("temperature", temperature, above=0.0)))

    @abstractmethod
    def _planning_problem(self) -> PlanningProblem: ...

    @abstractmethod
    def _policies(
        self, softmax: Float[np.ndarray, "states latents plan_actions"]
    ) -> dict[str, Float[np.ndarray, "states latents actions"]]: ...

    # Latents -----------------------------------------------------------------------------------

    def initial_latent_probs(self, agent: str, states: Any) -> Float[np.ndarray, "k latents"]:
        """Distribution of an agent's latent when an episode starts in a task state.

        Empty-handed: uniform over the lying items; where none lies, the item that the teammate
        holds, else the goal. Holding an item: the goal with 0.9, its origin with 0.1.

        Raises:
            ValueError: If the agent is unknown or a state out of range.
        """
        own = self.agent_position(agent)
        situation = self.situation(states)
        held = self._held(situation)
        probs = self._any_lying(situation)
        holding = held[:, own] >= 0
        probs[holding] = 0
        probs[holding, self.take_to_goal] = 0.9
        probs[holding, self.return_item] = 0.1
        rest = np.flatnonzero(probs.sum(axis=1) == 0)
        teammate = held[rest, 1 - own]
        probs[rest, np.where(teammate >= 0, teammate, self.take_to_goal)] = 1.0
        return probs

    def latent_transition(
        self, agent: str, states: Any, next_states: Any
    ) -> Float[np.ndarray, "k latents next_latents"]:
        """How an agent's latent moves in a step, T_x(x' | x, s, s'): actions matter through s'.

        Args:
            agent: Name of the agent.
            states: Task states before the step (k,).
            next_states: Task states after it (k,).

        Raises:
            ValueError: If the agent is unknown, a state is out of range or lengths differ.
        """
        own = self.agent_position(agent)
        before, after = self.situation(states), self.situation(next_states)
        if len(before.cells) != len(after.cells):
            raise ValueError(
                f"next_states: {len(after.cells)} given for {len(before.cells)} states"
            )
        probs = np.broadcast_to(
            np.eye(self.num_latents), (len(before.cells), self.num_latents, self.num_latents)
        ).copy()
        step = Step(after, self._held(before), self._held(after), self._any_lying(after))
        some = step.any_lying.any(axis=1)
        probs[step.picked_up[:, own]] = np.eye(self.num_latents)[self.take_to_goal]
        let_go = step.let_go[:, own] & some
        probs[let_go] = step.any_lying[let_go, None]
        self._change_minds(probs, own, step)
        return probs

    @abstractmethod
    def _change_minds(
        self, probs: Float[np.ndarray, "k latents next_latents"], own: int, step: Step
    ) -> None:
        """Change rows of `probs`, where something changes that is not common to both tasks."""

    def _any_lying(self, situation: Situation) -> Float[np.ndarray, "k latents"]:
        """Equal probabilities of picking up any of the lying items; zeros where none lies."""
        lying = situation.items == ORIGIN
        probs = np.zeros((len(lying), self.num_latents))
        probs[:, : self.grid.num_items] = lying / np.maximum(lying.sum(axis=1, keepdims=True), 1)
        return probs

    def suboptimal(self, states: Any, latents: Any) -> Bool[np.ndarray, " k"]:
        """Whether the team's minds are misaligned at a step (the paper, Appendix C).

        Args:
            states: Task states (k,).
            latents: Latents of both agents (k, agents).

        Raises:
            ValueError: If a state or a latent is out of range, or the shapes do not fit.
        """
        situation = self.situation(states)
        joint = self._per_agent("latents", latents, self.num_latents, len(situation.cells))
        return self._suboptimal(situation, joint)

    @abstractmethod
    def _suboptimal(
        self, situation: Situation, latents: Int[np.ndarray, "k agents"]
    ) -> Bool[np.ndarray, " k"]: ...

    def _per_agent(
        self, what: str, values: Any, size: int, number: int
    ) -> Int[np.ndarray, "k agents"]:
        expected = (number, len(self.agents))
        if np.shape(values) != expected:
            raise ValueError(f"{what}: shape {np.shape(values)}, expected (k, agents) = {expected}")
        columns = zip(self.agents, np.asarray(values).T, strict=True)
        return np.stack(
            [check_range(f"{what} of {agent}", column, size) for agent, column in columns], axis=1
        )

    def agent_position(self, agent: str) -> int:
        """Column of an agent.

        Raises:
            ValueError: If there is no such agent.
        """
        if agent not in self.agents:
            raise ValueError(f"unknown agent {agent!r}; the agents are {', '.join(self.agents)}")
        return self.agents.index(agent)

    # The team as a model, and its demonstrations -----------------------------------------------

    def true_model(self, temperature: float = 1.0) -> TeamModel:
        """The team that `simulate` runs, as a model in which every table is known.

        It fits all demonstrations whose state is the task state, as one variable or as the
        task's variables, with or without derived ones.
        """
        policies = self.policies(temperature)
        return self.with_true_latents(
            {agent: self._known_policy(policies[agent]) for agent in self.agents}
        )

    def with_true_latents(self, policy: Any) -> TeamModel:
        """A model with these policies, whose latents start and move as the task's truly do.

        Args:
            policy: As in `TeamModel`.
        """
        return TeamModel(
            policy=policy,
            transition={agent: self.known_transition(agent) for agent in self.agents},
            initial={agent: self.known_initial(agent) for agent in self.agents},
        )

    def _known_policy(self, policy: Float[np.ndarray, "states latents actions"]) -> KnownCPT:
        return KnownCPT(lambda contexts: policy[self._context_states(contexts)], ("state",))

    def known_transition(self, agent: str) -> KnownCPT:
        """The true T_x of an agent, for a model whose other tables are learned."""
        return KnownCPT(
            lambda contexts: self.latent_transition(
                agent, self._context_states(contexts), self._context_states(contexts, "next_")
            ),
            ("state", "next_state"),
        )

    def known_initial(self, agent: str) -> KnownCPT:
        """The true initial distribution of an agent's latent."""
        return KnownCPT(
            lambda contexts: self.initial_latent_probs(agent, self._context_states(contexts)),
            ("state",),
        )

    def _context_states(
        self, contexts: Mapping[str, Int[np.ndarray, " k"]], prefix: str = ""
    ) -> Int[np.ndarray, " k"]:
        names = [prefix + variable for variable in self.state_sizes]
        if all(name in contexts for name in names):
            return self.encode(np.stack([contexts[name] for name in names], axis=1))
        return contexts[prefix + "state"]

    def simulate(
        self,
        num_episodes: int,
        seed: int = 0,
        max_steps: int = 200,
        *,
        temperature: float = 1.0,
        policies: Mapping[str, Float[np.ndarray, "states latents actions"]] | None = None,
    ) -> Demonstrations:
        """Episodes of the team, every latent labelled.

        At every step each agent draws its action from its policy, the task its next state, and
        each agent its next latent. Episodes end when all items are on the goal or after
        `max_steps` steps.

        Args:
            num_episodes: Number of episodes.
            seed: A non-negative integer; the same seed gives the same episodes, and the first
                episodes of a longer run.
            max_steps: Steps after which an episode is cut.
            temperature: Of the true policies.
            policies: Policy of each agent, instead of the true ones.

        Returns:
            Demonstrations whose state variables are the task's: `demos.states` is the task state.

        Raises:
            ValueError: If a number is not positive, or a policy is missing or has another shape.

        Example:
            >>> demos = btil.domains.movers("tiny").simulate(10)  # doctest: +SKIP
        """
        from btil.domains.gridworld.simulate import simulate

        chosen = self.policies(temperature) if policies is None else policies
        return simulate(self, chosen, num_episodes, seed, max_steps)

    def add_derived_variables(self, demos: Demonstrations) -> Demonstrations:
        """The demonstrations with further state variables that make good parents.

        For each agent ``<agent>_held`` (the item it holds), ``<agent>_here`` (the item that
        lies in its cell), ``<agent>_phase`` (carrying; fetching: something lies about; waiting),
        ``<agent>_choice`` (what it may go for: the lying items, or where none lies the one that
        its teammate holds, or nothing as its hands are full) and ``<agent>_teammate`` (where the
        teammate is, seen from it: in which of the nine cells around, or in which direction), and
        for the team ``lying`` (which items lie at their origins). Their values after the step are
        the parents ``next_<variable>``.

        Args:
            demos: Demonstrations of this task, with its state variables or its task state.

        Raises:
            ValueError: If the states are not those of this task.
        """
        from btil.domains.gridworld.derived import add_derived_variables

        return add_derived_variables(self, demos)

    def recommended_model(self) -> TeamModel:
        """A model with everything to learn, for demonstrations with derived variables.

        The agents' roles are symmetric: they share all tables, each seen from its own side. The
        tables read what matters instead of the whole task state, so that a row is learned from
        every situation it applies to, and their priors weigh less than a step or two, so that a
        team that was learned can act (`btil.domains.play`); what that is worth is
        in `docs/explanation/reproduction.md`.

        Example:
            >>> task = btil.domains.cleanup()  # doctest: +SKIP
            >>> demos = task.add_derived_variables(task.simulate(200))  # doctest: +SKIP
            >>> posterior = btil.fit(task.recommended_model(), demos)  # doctest: +SKIP
        """
        return TeamModel(
            policy=Shared(
                DirichletCPT(
                    self._recommended_policy_concentration, self._both_sides(self._policy_parents)
                )
            ),
            transition=Shared(
                StickyDirichletCPT(
                    self._recommended_transition_concentration,
                    self._stay,
                    self._both_sides(self._transition_parents),
                )
            ),
            initial=Shared(DirichletCPT(self._recommended_transition_concentration)),
        )

    def _both_sides(self, parents: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
        """Parents of each agent: "own" and "other" stand for the agent and its teammate."""
        return {
            own: tuple(name.replace("own", own).replace("other", other) for name in parents)
            for own, other in (self.agents, self.agents[::-1])
        }

    def to_parallel_env(self, render_mode: str | None = None) -> Any:
        """The task as a PettingZoo ``ParallelEnv``.

        Args:
            render_mode: None, "rgb_array" or "human".

        Raises:
            ValueError: If there is no such render mode.
        """
        from btil.domains.gridworld.parallel_env import GridParallelEnv

        return GridParallelEnv(self, render_mode)


def sparse_dynamics(task: GridTask, actions: Int[np.ndarray, "choices agents"]) -> Any:
    """P(s' | s, choice) for some joint actions: a SciPy CSR matrix, row s * choices + choice."""
    from scipy.sparse import coo_array

    states = np.arange(task.num_states)
    num_choices = len(actions)
    rows, columns, data = [], [], []
    for choice, action in enumerate(actions):
        branches, probs = task.transition(states, np.tile(action, (task.num_states, 1)))
        used = probs > 0
        rows.append(np.broadcast_to((states * num_choices + choice)[:, None], used.shape)[used])
        columns.append(branches[used])
        data.append(probs[used])
    shape = (task.num_states * num_choices, task.num_states)
    index = (np.concatenate(rows), np.concatenate(columns))
    return coo_array((np.concatenate(data), index), shape=shape).tocsr()


@lru_cache(maxsize=4)
def _policies(
    task: GridTask, temperature: float
) -> dict[str, Float[np.ndarray, "states latents actions"]]:
    policies = task._policies(softmax_policy(task.plan.action_values, temperature))
    for policy in policies.values():
        policy.flags.writeable = False
    return policies


def first_true(values: Bool[np.ndarray, "k n"]) -> Int[np.ndarray, " k"]:
    """Index of the first true value of each row, -1 for none."""
    return np.where(values.any(axis=1), values.argmax(axis=1), NOBODY)


def check_range(what: str, values: Any, size: int) -> Int[np.ndarray, " k"]:
    """Whole numbers in 0..size - 1; anything else is refused with the row where it stands."""
    array = np.asarray(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        raise ValueError(
            f"{what}: a list of whole numbers expected, got {array.dtype} of shape {array.shape}"
        )
    outside = (array < 0) | (array >= size)
    if outside.any():
        row = int(outside.argmax())
        raise ValueError(f"{what}: {array[row]} in row {row}; allowed are 0..{size - 1}")
    return array.astype(np.int64)
