"""The paper's two grid worlds once more, one state at a time.

Written for reading, not for speed, and on purpose without anything of the package: a state is two
(x, y) cells and a tuple of item states, a distribution is a dict, a rule is an `if`. The functions
are defined on the states that a play could meet (`is_sound`); what the others do is nobody's
concern.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, cast

import numpy as np

Cell = tuple[int, int]

UP, DOWN, LEFT, RIGHT, STAY, HOLD = range(6)
DIRECTIONS = {UP: (0, -1), DOWN: (0, 1), LEFT: (-1, 0), RIGHT: (1, 0)}
OPPOSITE = {UP: DOWN, DOWN: UP, LEFT: RIGHT, RIGHT: LEFT}
ACTIONS = range(6)
JOINT_ACTIONS = list(product(ACTIONS, ACTIONS))

LYING = 0  # at its origin; Movers then has 1 held by both, 2 on the goal,
HELD = 1
HELD_BY = (1, 2)  # Cleanup 1 held by the first agent, 2 by the second, 3 on the goal
DISCOUNT = 0.95


class State(NamedTuple):
    """Where the agents stand, and what has become of each item."""

    alice: Cell
    rob: Cell
    items: tuple[int, ...]


@dataclass(frozen=True)
class World:
    """A map and one of the two domains played on it."""

    domain: str
    width: int
    height: int
    walls: frozenset[Cell]
    items: tuple[Cell, ...]
    goal: Cell
    starts: tuple[Cell, Cell]

    @property
    def on_goal(self) -> int:
        return {"movers": 2, "cleanup": 3}[self.domain]

    @property
    def cells(self) -> list[Cell]:
        everywhere = [(x, y) for x in range(self.width) for y in range(self.height)]
        return [cell for cell in everywhere if cell not in self.walls]

    @property
    def start(self) -> State:
        return State(*self.starts, (LYING,) * len(self.items))

    @property
    def num_latents(self) -> int:
        return len(self.items) + 2

    @property
    def to_origin(self) -> int:
        return len(self.items)

    @property
    def to_goal(self) -> int:
        return len(self.items) + 1

    def states(self) -> list[State]:
        """All task states, in the order of their index."""
        item_states = product(range(self.on_goal + 1), repeat=len(self.items))
        return [State(*parts) for parts in product(self.cells, self.cells, list(item_states))]

    def index(self, state: State) -> int:
        cells = self.cells
        place = cells.index(state.alice) * len(cells) + cells.index(state.rob)
        for item in state.items:
            place = place * (self.on_goal + 1) + item
        return place


# width, height, walls, items, goal, starts
MAPS = {
    "paper": (
        7,
        7,
        [(3, 0), (4, 0), (1, 2), (2, 2), (2, 3), (2, 4), (3, 6), (4, 6), (5, 2), (5, 3), (5, 4)],
        [(0, 0), (1, 3), (0, 6)],
        (6, 3),
        [(6, 2), (6, 4)],
    ),
    "lesson": (
        5,
        5,
        [(1, 1), (1, 2), (1, 3)],
        [(0, 0), (0, 4), (2, 4)],
        (4, 2),
        [(4, 1), (4, 3)],
    ),
    "tiny": (3, 3, [(1, 1), (2, 1), (2, 2)], [(0, 0), (1, 2)], (0, 2), [(0, 1), (0, 2)]),
}


def named_world(domain: str, name: str) -> World:
    width, height, walls, items, goal, starts = MAPS[name]
    first, second = starts
    return World(domain, width, height, frozenset(walls), tuple(items), goal, (first, second))


def drawn_world(domain: str, drawing: str) -> World:
    """A map from a drawing that is known to be right."""
    tokens = {
        (x, y): token
        for y, line in enumerate(drawing.strip().splitlines())
        for x, token in enumerate(line.split())
    }

    def place(letter: str) -> Cell:
        (cell,) = (cell for cell, token in tokens.items() if letter in token)
        return cell

    digits = sorted({letter for token in tokens.values() for letter in token if letter.isdigit()})
    return World(
        domain,
        width=max(x for x, _ in tokens) + 1,
        height=max(y for _, y in tokens) + 1,
        walls=frozenset(cell for cell, token in tokens.items() if token == "#"),
        items=tuple(place(digit) for digit in digits),
        goal=place("G"),
        starts=(place("A"), place("R")),
    )


# --- What a state says ---------------------------------------------------------------------------


def held_in_movers(state: State) -> int | None:
    """The item that both hold."""
    held = [k for k, item in enumerate(state.items) if item == HELD]
    return held[0] if held else None


def held_in_cleanup(state: State, agent: int) -> int | None:
    """The item that one agent holds."""
    held = [k for k, item in enumerate(state.items) if item == HELD_BY[agent]]
    return held[0] if held else None


def lying_items(state: State) -> list[int]:
    return [k for k, item in enumerate(state.items) if item == LYING]


def item_lying_in(world: World, state: State, cell: Cell) -> int | None:
    here = [k for k in lying_items(state) if world.items[k] == cell]
    return here[0] if here else None


def is_final(world: World, state: State) -> bool:
    return all(item == world.on_goal for item in state.items)


def is_sound(world: World, state: State) -> bool:
    """Whether the rules say what happens here: one item in a hand, one carrier in a cell."""
    if world.domain == "movers":
        held = state.items.count(HELD)
        return held == 0 or (held == 1 and state.alice == state.rob)
    each = [state.items.count(HELD_BY[agent]) for agent in (0, 1)]
    return max(each) <= 1 and not (each == [1, 1] and state.alice == state.rob)


def distance(one: Cell, other: Cell) -> int:
    return abs(one[0] - other[0]) + abs(one[1] - other[1])


def swapped(world: World, state: State) -> State:
    """The same state with the agents' roles exchanged."""
    items = state.items
    if world.domain == "cleanup":
        items = tuple({1: 2, 2: 1}.get(item, item) for item in items)
    return State(state.rob, state.alice, items)


def with_item(state: State, item: int, value: int) -> State:
    items = list(state.items)
    items[item] = value
    return state._replace(items=tuple(items))


def evenly(*outcomes: State) -> dict[State, float]:
    """Each outcome with the same probability; equal ones add up."""
    probs: dict[State, float] = {}
    for outcome in outcomes:
        probs[outcome] = probs.get(outcome, 0.0) + 1 / len(outcomes)
    return probs


# --- Steps ---------------------------------------------------------------------------------------


def plain_step(world: World, cell: Cell, action: int) -> Cell:
    """Where an empty-handed agent gets to: only walls and the edge stop it."""
    if action not in DIRECTIONS:
        return cell
    target = (cell[0] + DIRECTIONS[action][0], cell[1] + DIRECTIONS[action][1])
    inside = 0 <= target[0] < world.width and 0 <= target[1] < world.height
    return target if inside and target not in world.walls else cell


def loaded_step(world: World, state: State, agent: int, action: int) -> Cell:
    """Where an agent that carries gets to."""
    cell, other_cell = (state.alice, state.rob)[:: 1 if agent == 0 else -1]
    target = plain_step(world, cell, action)
    if item_lying_in(world, state, target) is not None:
        return cell
    other_carries = world.domain == "cleanup" and held_in_cleanup(state, 1 - agent) is not None
    if other_carries and other_cell == target:
        return cell
    return target


def movers_step(world: World, state: State, actions: tuple[int, int]) -> dict[State, float]:
    first, second = actions
    held = held_in_movers(state)
    together = state.alice == state.rob

    if held is None:
        if first == second == HOLD and together:
            item = item_lying_in(world, state, state.alice)
            return evenly(state if item is None else with_item(state, item, HELD))
        alice = plain_step(world, state.alice, first)
        rob = plain_step(world, state.rob, second)
        return evenly(state._replace(alice=alice, rob=rob))

    assert together
    if first == second == HOLD:
        if state.alice == world.items[held]:
            return evenly(with_item(state, held, LYING))
        if state.alice == world.goal:
            return evenly(with_item(state, held, world.on_goal))
        return evenly(state)
    if HOLD in actions:
        return evenly(state)
    if first == second == STAY or OPPOSITE.get(first) == second:
        return evenly(state)
    alice_target = loaded_step(world, state, 0, first)
    rob_target = loaded_step(world, state, 1, second)
    return evenly(
        state._replace(alice=alice_target, rob=alice_target),
        state._replace(alice=rob_target, rob=rob_target),
    )


def alone_in_cleanup(world: World, state: State, agent: int, action: int) -> tuple[Cell, dict]:
    """What one agent does for himself: his next cell, and the items that change by his hand."""
    cell = (state.alice, state.rob)[agent]
    held = held_in_cleanup(state, agent)
    if action == HOLD and held is None:
        item = item_lying_in(world, state, cell)
        return cell, {} if item is None else {item: HELD_BY[agent]}
    if action == HOLD:
        assert held is not None
        if cell == world.items[held]:
            return cell, {held: LYING}
        if cell == world.goal:
            return cell, {held: world.on_goal}
        return cell, {}
    if held is None:
        return plain_step(world, cell, action), {}
    return loaded_step(world, state, agent, action), {}


def each_for_himself(world: World, state: State, actions: tuple[int, int]) -> State:
    """Both worked out from the state before the step."""
    alice, by_alice = alone_in_cleanup(world, state, 0, actions[0])
    rob, by_rob = alone_in_cleanup(world, state, 1, actions[1])
    assert not set(by_alice) & set(by_rob)
    changed = by_alice | by_rob
    items = tuple(changed.get(k, item) for k, item in enumerate(state.items))
    return State(alice, rob, items)


def cleanup_step(world: World, state: State, actions: tuple[int, int]) -> dict[State, float]:
    held = [held_in_cleanup(state, agent) for agent in (0, 1)]
    carriers = [agent for agent in (0, 1) if held[agent] is not None]
    together = state.alice == state.rob

    if not carriers:
        item = item_lying_in(world, state, state.alice)
        if together and actions == (HOLD, HOLD) and item is not None:
            return evenly(with_item(state, item, HELD_BY[0]), with_item(state, item, HELD_BY[1]))
        return evenly(each_for_himself(world, state, actions))

    if len(carriers) == 1:
        (carrier,) = carriers
        item = held[carrier]
        assert item is not None
        if together and actions[1 - carrier] == HOLD:
            if actions[carrier] == HOLD:
                return evenly(with_item(state, item, HELD_BY[1 - carrier]))
            if actions[carrier] == STAY:
                return evenly(state)
            target = loaded_step(world, state, carrier, actions[carrier])
            return evenly(_moved(state, carrier, target))
        return evenly(each_for_himself(world, state, actions))

    if HOLD in actions or STAY in actions:
        return evenly(each_for_himself(world, state, actions))
    apart = distance(state.alice, state.rob)
    after = each_for_himself(world, state, actions)
    if apart > 2:
        return evenly(after)
    if apart == 2:
        if after.alice == after.rob:
            return evenly(state._replace(alice=after.alice), state._replace(rob=after.rob))
        return evenly(after)
    can_move = [after.alice != state.alice, after.rob != state.rob]
    if sum(can_move) != 1:
        return evenly(after)
    mover = can_move.index(True)
    left = (state.alice, state.rob)[mover]
    other_cell = (state.alice, state.rob)[1 - mover]
    if plain_step(world, other_cell, actions[1 - mover]) == left:
        return evenly(_moved(after, 1 - mover, left))
    return evenly(after)


def _moved(state: State, agent: int, cell: Cell) -> State:
    return state._replace(alice=cell) if agent == 0 else state._replace(rob=cell)


def step(world: World, state: State, actions: tuple[int, int]) -> dict[State, float]:
    """P(next state | state, joint action); a finished state stays as it is."""
    if is_final(world, state):
        return evenly(state)
    rules: dict[str, Callable] = {"movers": movers_step, "cleanup": cleanup_step}
    return rules[world.domain](world, state, actions)


def reachable(world: World) -> set[State]:
    """Every state that some play can reach."""
    found, waiting = {world.start}, [world.start]
    while waiting:
        state = waiting.pop()
        for actions in JOINT_ACTIONS:
            for after in step(world, state, actions):
                if after not in found:
                    found.add(after)
                    waiting.append(after)
    return found


# --- Rewards, planning, policies -----------------------------------------------------------------


def movers_reward(world: World, state: State, latent: int, actions: tuple[int, int]) -> float:
    if is_final(world, state):
        return 0.0
    held = held_in_movers(state)
    only_stay = 0.0 if actions == (STAY, STAY) else -math.inf
    both_hold_in = state.alice if actions == (HOLD, HOLD) and state.alice == state.rob else None
    if latent < len(world.items):
        if held is not None:
            return only_stay
        target = world.items[latent]
        if both_hold_in == target:
            return 100.0
        return -1 + 1 / (distance(state.alice, target) + distance(state.rob, target) + 1)
    if held is None:
        return only_stay
    place = world.items[held] if latent == world.to_origin else world.goal
    return 100.0 if both_hold_in == place else -1.0


def cleanup_reward(world: World, state: State, latent: int, action: int) -> float:
    """The first agent's reward; it depends on its own action alone."""
    if is_final(world, state):
        return 0.0
    held = held_in_cleanup(state, 0)
    only_stay = 0.0 if action == STAY else -math.inf
    if latent < len(world.items):
        if held is not None:
            return only_stay
        there = state.alice == world.items[latent] and state.items[latent] == LYING
        return 100.0 if action == HOLD and there else -1.0
    if held is None:
        return only_stay
    place = world.items[held] if latent == world.to_origin else world.goal
    return 100.0 if action == HOLD and state.alice == place else -1.0


class Problem(NamedTuple):
    """What is planned on a small map: by the team (Movers) or by the first agent (Cleanup).

    Attributes:
        states: The sound states; no play leads out of them.
        moves: P(next state | state, choice), dense; a choice is a joint action in Movers and an
            own action in Cleanup.
        rewards: (latents, states, choices).
    """

    states: list[State]
    moves: np.ndarray
    rewards: np.ndarray


def problem(world: World) -> Problem:
    states = [state for state in world.states() if is_sound(world, state)]
    number = {state: i for i, state in enumerate(states)}
    choices: list[Any] = list(JOINT_ACTIONS)
    share, reward = 1.0, cast(Any, movers_reward)
    if world.domain == "cleanup":
        # The teammate is taken to act uniformly at random.
        choices, share, reward = list(ACTIONS), 1 / 6, cleanup_reward
    moves = np.zeros((len(states), len(choices), len(states)))
    for i, state in enumerate(states):
        for j, actions in enumerate(JOINT_ACTIONS):
            choice = j if world.domain == "movers" else actions[0]
            for after, prob in step(world, state, actions).items():
                moves[i, choice, number[after]] += share * prob
    rewards = [
        [[reward(world, state, latent, choice) for choice in choices] for state in states]
        for latent in range(world.num_latents)
    ]
    return Problem(states, moves, np.array(rewards))


def finite(values: np.ndarray) -> np.ndarray:
    """Minus infinity counts as the most negative finite number."""
    return np.maximum(values, -np.finfo(np.float64).max)


def value_iteration(
    moves: np.ndarray, rewards: np.ndarray, tolerance: float = 0.01, max_sweeps: int = 500
) -> tuple[np.ndarray, int]:
    """Q of the last sweep, and the number of sweeps, for the rewards of one latent.

    From zero until the Euclidean norm of the change of the values is at most the tolerance.
    """
    values, sweeps, norm = np.zeros(len(rewards)), 0, math.inf
    while norm > tolerance and sweeps < max_sweeps:
        q_values = finite(rewards + DISCOUNT * moves @ values)
        change = q_values.max(1) - values
        norm = float(np.linalg.norm(np.where(np.abs(change) > 1e300, 0.0, change)))
        values, sweeps = q_values.max(1), sweeps + 1
    return q_values, sweeps


def softmax(values: np.ndarray, temperature: float = 1.0) -> np.ndarray:
    """Over the last axis."""
    with np.errstate(over="ignore"):
        weights = np.exp((values - values.max(-1, keepdims=True)) / temperature)
    return weights / weights.sum(-1, keepdims=True)


def policies(
    world: World, states: list[State], q_values: np.ndarray, temperature: float = 1.0
) -> np.ndarray:
    """(agents, states, latents, actions) from Q of (latents, states, choices)."""
    probs = softmax(np.moveaxis(q_values, 0, 1), temperature)
    if world.domain == "movers":
        joint = probs.reshape(*probs.shape[:2], 6, 6)
        return np.stack([joint.sum(3), joint.sum(2)])
    number = {state: i for i, state in enumerate(states)}
    exchanged = [number[swapped(world, state)] for state in states]
    return np.stack([probs, probs[exchanged]])


# --- Mental states -------------------------------------------------------------------------------


def uniform(latents: Iterable[int]) -> dict[int, float]:
    listed = list(latents)
    return {latent: 1 / len(listed) for latent in listed}


def _held_by(world: World, state: State, agent: int) -> int | None:
    if world.domain == "movers":
        return held_in_movers(state)
    return held_in_cleanup(state, agent)


def initial_latent(world: World, agent: int, state: State) -> dict[int, float]:
    if _held_by(world, state, agent) is not None:
        return {world.to_goal: 0.9, world.to_origin: 0.1}
    if lying_items(state):
        return uniform(lying_items(state))
    mates = _held_by(world, state, 1 - agent)
    return {world.to_goal if mates is None else mates: 1.0}


def next_latent(
    world: World, agent: int, before: State, after: State, latent: int
) -> dict[int, float]:
    """P(next latent | latent, the task states before and after the step)."""
    mine = _held_by(world, before, agent), _held_by(world, after, agent)
    mates = _held_by(world, before, 1 - agent), _held_by(world, after, 1 - agent)
    lying = lying_items(after)
    same = {latent: 1.0}

    if mine[0] is None and mine[1] is not None:
        return {world.to_goal: 1.0}
    if world.domain == "movers":
        if mine[0] is not None and mine[1] is None:
            return uniform(lying) if lying else same
        if mine[1] is None and latent < len(world.items):
            mate_cell = (after.alice, after.rob)[1 - agent]
            under_mate = item_lying_in(world, after, mate_cell)
            if under_mate is not None and under_mate != latent:
                return {under_mate: 0.1, latent: 0.9}
        return same
    if mine[0] is not None and mine[1] is None:
        if lying:
            return uniform(lying)
        return same if mates[1] is None else {mates[1]: 1.0}
    if mine[1] is None and mates[0] is None and mates[1] == latent and lying:
        return uniform(lying)
    return same


def is_suboptimal(world: World, state: State, latents: tuple[int, int]) -> bool:
    """The paper's Appendix C."""
    if world.domain == "movers":
        return latents[0] != latents[1]
    lying = lying_items(state)
    held = [held_in_cleanup(state, agent) for agent in (0, 1)]
    if len(lying) > 1 and latents[0] == latents[1] and latents[0] < len(world.items):
        return True
    if lying and any(
        held[1 - agent] is not None and latents[agent] == held[1 - agent] for agent in (0, 1)
    ):
        return True
    return any(held[agent] is not None and latents[agent] == world.to_origin for agent in (0, 1))
