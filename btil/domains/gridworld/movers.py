"""Movers: boxes too heavy for one; both must hold to lift, carry and let go."""

from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.domains.gridworld.grid import DOWN, HOLD, LEFT, RIGHT, STAY, UP, Grid, read_map
from btil.domains.gridworld.planning import PlanningProblem
from btil.domains.gridworld.task import (
    GridTask,
    Outcome,
    Situation,
    Step,
    first_true,
    sparse_dynamics,
)

_HELD = 1
_OPPOSITE = np.array([DOWN, UP, RIGHT, LEFT, -1, -1])
_CHANGE_OF_MIND = 0.1


def movers(map: str = "paper") -> "Movers":
    """The task Movers of the paper, on one of its maps or your own.

    Args:
        map: "paper" (7 x 7, 38,988 states), "lesson" and "rooms" (5 x 5), "tiny" (3 x 3),
            or a text drawing (see `btil.domains.gridworld.grid.read_map`).

    Returns:
        The task.

    Raises:
        ValueError: If the map is unknown or its drawing cannot be used.

    Example:
        >>> movers().num_states
        38988
    """
    return _task(read_map(map))


class Movers(GridTask):
    """Both agents together lift an item, carry it and let it go.

    Boxes are picked up, carried and let go by both agents at once, in the same cell. Agents who
    pull in different directions go where one of them wants, by chance. Each plans for the team:
    an agent's policy is its share of the joint policy.
    """

    name = "movers"
    item_states = ("origin", "held", "goal")
    policy_concentration = 1.2
    transition_concentration = 1.01
    _recommended_policy_concentration = 0.3
    # The plan is the team's: where the teammate stands matters as well as the own cell.
    _policy_parents = ("own_cell", "own_teammate", "own_phase")
    _transition_parents = ("own_phase", "next_own_choice", "next_other_here")

    def _held(self, situation: Situation) -> Int[np.ndarray, "k agents"]:
        held = first_true(situation.items == _HELD)
        return np.stack([held, held], axis=1)

    def _outcome(self, situation: Situation, actions: Int[np.ndarray, "k agents"]) -> Outcome:
        (c1, c2), (a1, a2) = situation.cells.T, actions.T
        held = self._held(situation)[:, 0]
        loaded, both_hold, together = held >= 0, (actions == HOLD).all(axis=1), c1 == c2

        cells = np.stack([situation.cells, situation.cells])
        items = situation.items.copy()
        probs = np.zeros((2, len(c1)))
        probs[0] = 1.0

        empty = ~loaded
        steps = np.stack([self.empty_step(c1, a1), self.empty_step(c2, a2)], axis=1)
        cells[:, empty] = steps[empty]
        here = self.item_at(situation, c1)
        lift = np.flatnonzero(empty & both_hold & together & (here >= 0))
        items[lift, here[lift]] = _HELD

        let_go = loaded & both_hold & together
        at_goal = np.flatnonzero(let_go & (c1 == self.grid.goal))
        items[at_goal, held[at_goal]] = self.on_goal
        at_origin = np.flatnonzero(let_go & (c1 == self.origins[held]))
        items[at_origin, held[at_origin]] = 0

        carry = loaded & together & (actions != HOLD).all(axis=1) & (a1 != _OPPOSITE[a2])
        for branch, action in enumerate((a1, a2)):
            target = self.loaded_step(situation, c1, action)
            cells[branch, carry] = target[carry, None]
        probs[:, carry] = 0.5
        return Outcome(cells, np.stack([items, items]), probs)

    def _planning_problem(self) -> PlanningProblem:
        every = np.arange(self.num_states)
        situation = self.situation(every)
        held = self._held(situation)[:, 0]
        loaded, together = held >= 0, situation.cells[:, 0] == situation.cells[:, 1]
        both_stay, both_hold = (a * (self.num_actions + 1) for a in (STAY, HOLD))

        shape = (self.num_states, self.num_actions**2, self.num_latents)
        rewards = np.full(shape, -np.inf)
        for item, origin in enumerate(self.grid.items):
            far = np.add(*(self.grid.distance(cells, origin) for cells in situation.cells.T))
            rewards[~loaded, :, item] = (1 / (far + 1) - 1)[~loaded, None]
            rewards[~loaded & (situation.cells == origin).all(axis=1), both_hold, item] = 100
            rewards[loaded & together, both_stay, item] = 0
        for latent in (self.return_item, self.take_to_goal):
            rewards[~loaded, both_stay, latent] = 0
            rewards[loaded & together, :, latent] = -1
            there = situation.cells[:, 0] == self.place_named(latent, held)
            rewards[loaded & together & there, both_hold, latent] = 100
        rewards[self.is_final(every)] = 0

        actions = np.indices((self.num_actions, self.num_actions)).reshape(2, -1).T
        return PlanningProblem(sparse_dynamics(self, actions), rewards)

    def _policies(
        self, softmax: Float[np.ndarray, "states latents plan_actions"]
    ) -> dict[str, Float[np.ndarray, "states latents actions"]]:
        joint = softmax.reshape(*softmax.shape[:2], self.num_actions, self.num_actions)
        return {"alice": joint.sum(axis=3), "rob": joint.sum(axis=2)}

    def _change_minds(
        self, probs: Float[np.ndarray, "k latents next_latents"], own: int, step: Step
    ) -> None:
        under_teammate = self.item_at(step.after, step.after.cells[:, 1 - own])
        seen = step.empty_handed[:, own] & (under_teammate >= 0)
        for item in range(self.grid.num_items):
            rows = np.flatnonzero(seen & (under_teammate != item))
            probs[rows, item, item] = 1 - _CHANGE_OF_MIND
            probs[rows, item, under_teammate[rows]] = _CHANGE_OF_MIND

    def _suboptimal(
        self, situation: Situation, latents: Int[np.ndarray, "k agents"]
    ) -> Bool[np.ndarray, " k"]:
        return latents[:, 0] != latents[:, 1]


# The same map gives the same object, with the plan that it has made.
@lru_cache(maxsize=8)
def _task(grid: Grid) -> Movers:
    return Movers(grid)
