"""Cleanup: bags that everyone carries alone."""

import functools
import operator

import numpy as np
from jaxtyping import Bool, Float, Int

from btil.domains.gridworld.grid import HOLD, STAY, Grid, read_map
from btil.domains.gridworld.planning import PlanningProblem
from btil.domains.gridworld.task import (
    GridTask,
    Outcome,
    Situation,
    Step,
    first_true,
    sparse_dynamics,
)


def cleanup(map: str = "paper") -> "Cleanup":
    """The task Cleanup of the paper, on one of its maps or your own.

    Args:
        map: "paper" (7 x 7, 92,416 states), "lesson" and "rooms" (5 x 5), "tiny" (3 x 3),
            or a text drawing (see `btil.domains.gridworld.grid.read_map`).

    Returns:
        The task.

    Raises:
        ValueError: If the map is unknown or its drawing cannot be used.

    Example:
        >>> cleanup().num_states
        92416
    """
    return _task(read_map(map))


class Cleanup(GridTask):
    """Each agent alone picks up, carries and lets go one item at a time.

    Agents who carry get in each other's way; an item changes hands when the carrier and an
    empty-handed agent hold in the same cell. Each plans for itself, taking the teammate to act at
    random.
    """

    name = "cleanup"
    item_states = ("origin", "held by alice", "held by rob", "goal")
    policy_concentration = 1.01
    transition_concentration = 1.01
    _recommended_policy_concentration = 0.2
    # Each plans for itself and takes no notice of where the teammate goes.
    _policy_parents = ("own_cell", "own_phase")
    _transition_parents = ("own_phase", "next_own_choice")

    def _held(self, situation: Situation) -> Int[np.ndarray, "k agents"]:
        return np.stack([first_true(situation.items == 1 + i) for i in range(2)], axis=1)

    def _outcome(self, situation: Situation, actions: Int[np.ndarray, "k agents"]) -> Outcome:
        held = self._held(situation)
        num_held = (held >= 0).sum(axis=1)
        together = situation.cells[:, 0] == situation.cells[:, 1]

        # Each for himself, whatever the other does, is what happens unless something else does.
        cells, items = situation.cells.copy(), situation.items.copy()
        for own in range(2):
            self._alone(own, situation, held, actions, cells, items)
        cells, items = np.stack([cells, cells]), np.stack([items, items])
        probs = np.zeros((2, len(actions)))
        probs[0] = 1.0

        # Both reach for the same item: one of them gets it.
        here = self.item_at(situation, situation.cells[:, 0])
        both_hold = (actions == HOLD).all(axis=1)
        rows = np.flatnonzero((num_held == 0) & both_hold & together & (here >= 0))
        for own in range(2):
            items[own, rows, here[rows]] = 1 + own
        probs[:, rows] = 0.5

        # The empty-handed one reaches for what the other carries.
        for carrier in range(2):
            asked = (
                (num_held == 1)
                & (held[:, carrier] >= 0)
                & together
                & (actions[:, 1 - carrier] == HOLD)
            )
            items[:, asked] = situation.items[asked]
            rows = np.flatnonzero(asked & (actions[:, carrier] == HOLD))
            items[:, rows, held[rows, carrier]] = 2 - carrier

        walking = (num_held == 2) & (actions < STAY).all(axis=1)
        gap = self.grid.distance(situation.cells[:, 0], situation.cells[:, 1])
        rows = np.flatnonzero(walking & (gap == 2) & (cells[0, :, 0] == cells[0, :, 1]))
        for own in range(2):
            cells[own, rows, 1 - own] = situation.cells[rows, 1 - own]
        probs[:, rows] = 0.5

        # Side by side: who is blocked by a teammate that moves away follows it.
        moved = cells[0] != situation.cells
        for own in range(2):
            plain = self.empty_step(situation.cells[:, own], actions[:, own])
            follows = (
                walking
                & (gap <= 1)
                & ~moved[:, own]
                & moved[:, 1 - own]
                & (plain == situation.cells[:, 1 - own])
            )
            cells[:, follows, own] = plain[follows]
        return Outcome(cells, items, probs)

    def _alone(
        self,
        own: int,
        situation: Situation,
        held: Int[np.ndarray, "k agents"],
        actions: Int[np.ndarray, "k agents"],
        cells: Int[np.ndarray, "k agents"],
        items: Int[np.ndarray, "k items"],
    ) -> None:
        """What an agent does for himself, written into `cells` and `items`."""
        cell, action, carried = situation.cells[:, own], actions[:, own], held[:, own]
        loaded = carried >= 0
        others_load = np.where(held[:, 1 - own] >= 0, situation.cells[:, 1 - own], -1)
        cells[:, own] = np.where(
            loaded,
            self.loaded_step(situation, cell, action, others_load),
            self.empty_step(cell, action),
        )
        holds = action == HOLD
        here = self.item_at(situation, cell)
        pick_up = np.flatnonzero(holds & ~loaded & (here >= 0))
        items[pick_up, here[pick_up]] = 1 + own
        at_goal = np.flatnonzero(holds & loaded & (cell == self.grid.goal))
        items[at_goal, carried[at_goal]] = self.on_goal
        at_origin = np.flatnonzero(holds & loaded & (cell == self.origins[carried]))
        items[at_origin, carried[at_origin]] = 0

    def _planning_problem(self) -> PlanningProblem:
        every = np.arange(self.num_states)
        situation = self.situation(every)
        cell, held = situation.cells[:, 0], self._held(situation)[:, 0]
        loaded = held >= 0

        shape = (self.num_states, self.num_actions, self.num_latents)
        rewards = np.full(shape, -np.inf)
        for item, origin in enumerate(self.grid.items):
            rewards[~loaded, :, item] = -1
            there = (cell == origin) & (situation.items[:, item] == 0)
            rewards[~loaded & there, HOLD, item] = 100
            rewards[loaded, STAY, item] = 0
        for latent in (self.return_item, self.take_to_goal):
            rewards[~loaded, STAY, latent] = 0
            rewards[loaded, :, latent] = -1
            rewards[loaded & (cell == self.place_named(latent, held)), HOLD, latent] = 100
        rewards[self.is_final(every)] = 0

        own = np.arange(self.num_actions)
        given_teammate = [
            sparse_dynamics(self, np.stack([own, np.full_like(own, action)], axis=1))
            for action in range(self.num_actions)
        ]
        dynamics = functools.reduce(operator.add, given_teammate) / self.num_actions
        return PlanningProblem(dynamics, rewards)

    def _policies(
        self, softmax: Float[np.ndarray, "states latents plan_actions"]
    ) -> dict[str, Float[np.ndarray, "states latents actions"]]:
        situation = self.situation(np.arange(self.num_states))
        swapped = self.states(situation.cells[:, ::-1], np.array([0, 2, 1, 3])[situation.items])
        return {"alice": softmax, "rob": softmax[swapped]}

    def _change_minds(
        self, probs: Float[np.ndarray, "k latents next_latents"], own: int, step: Step
    ) -> None:
        some = step.any_lying.any(axis=1)
        others_item = step.held_after[:, 1 - own]
        left = np.flatnonzero(step.let_go[:, own] & ~some & (others_item >= 0))
        probs[left] = np.eye(self.num_latents)[others_item[left]][:, None]
        taken = np.flatnonzero(step.empty_handed[:, own] & step.picked_up[:, 1 - own] & some)
        probs[taken, others_item[taken]] = step.any_lying[taken]

    def _suboptimal(
        self, situation: Situation, latents: Int[np.ndarray, "k agents"]
    ) -> Bool[np.ndarray, " k"]:
        held = self._held(situation)
        num_lying = (situation.items == 0).sum(axis=1)
        same = (latents[:, 0] == latents[:, 1]) & (latents[:, 0] < self.grid.num_items)
        wants_others = ((latents == held[:, ::-1]) & (held[:, ::-1] >= 0)).any(axis=1)
        takes_back = ((held >= 0) & (latents == self.return_item)).any(axis=1)
        return ((num_lying > 1) & same) | ((num_lying >= 1) & wants_others) | takes_back


# The same map gives the same object, with the plan that it has made.
@functools.lru_cache(maxsize=8)
def _task(grid: Grid) -> Cleanup:
    return Cleanup(grid)
