"""Movers and Cleanup against an oracle that treats one state at a time, and by hand."""

import functools
import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

import gridworld_oracle as oracle
import numpy as np
import pytest
import scipy.sparse
import scipy.stats
from gridworld_oracle import DOWN, HOLD, JOINT_ACTIONS, LEFT, RIGHT, STAY, UP, State, World

import btil
from btil.domains.gridworld import planning
from btil.domains.gridworld.grid import read_map
from btil.models.team import bind

DOMAINS = ("movers", "cleanup")
DRAWINGS = {
    "paper": """
        0 . . # # . .
        . . . . . . .
        . # # . . # A
        . 1 # . . # G
        . . # . . # R
        . . . . . . .
        2 . . # # . .
        """,
    "lesson": """
        0 . . . .
        . # . . A
        . # . . G
        . # . . R
        1 . 2 . .
        """,
    "tiny": """
        0 . .
        A # #
        GR 1 #
        """,
}
# Three items on nine cells: minds change often, and planning is quick.
CROWDED = """
    0 A 1
    . G R
    . 2 .
    """
# Room to move: what a rule says is not hidden by a wall.
OPEN = """
    A . . . .
    . . 0 . .
    . . . . .
    . 1 . . G
    . . . . R
    """


@pytest.fixture(scope="module", autouse=True)
def plans_of_these_tests_only(tmp_path_factory):
    """A plan that an earlier version left on the disk would hide a mistake of this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BTIL_CACHE_DIR", str(tmp_path_factory.mktemp("plans")))
        yield


@functools.cache
def task_on(domain: str, drawing: str):
    return getattr(btil.domains, domain)(map=drawing)


@functools.cache
def world_on(domain: str, drawing: str) -> World:
    if drawing in oracle.MAPS:
        return oracle.named_world(domain, drawing)
    return oracle.drawn_world(domain, drawing)


@functools.cache
def reachable_on(domain: str, drawing: str) -> frozenset[State]:
    return frozenset(oracle.reachable(world_on(domain, drawing)))


@functools.cache
def problem_on(domain: str, drawing: str) -> oracle.Problem:
    return oracle.problem(world_on(domain, drawing))


@functools.cache
def listed_states(domain: str, drawing: str) -> list[State]:
    return world_on(domain, drawing).states()


def variables_of(world: World, states: Iterable[State]) -> np.ndarray:
    """(states, variables): the values of the package's state variables."""
    number = {cell: i for i, cell in enumerate(world.cells)}
    return np.array([[number[s.alice], number[s.rob], *s.items] for s in states])


def distributions(
    next_states: np.ndarray, probs: np.ndarray, states: list[State]
) -> list[dict[State, float]]:
    """The rows of `task.transition` as the oracle gives them."""
    rows = []
    for row, row_probs in zip(next_states, probs, strict=True):
        found: dict[State, float] = defaultdict(float)
        for index, prob in zip(row, row_probs, strict=True):
            if prob != 0:
                found[states[index]] += float(prob)
        rows.append(dict(found))
    return rows


def assert_same_distribution(found: dict, expected: dict, what: object) -> None:
    expected = {key: prob for key, prob in expected.items() if prob > 0}
    assert found.keys() == expected.keys(), what
    for key, prob in expected.items():
        assert found[key] == pytest.approx(prob, abs=1e-6), what


# --- The task's numbering ------------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("name", oracle.MAPS)
def test_cells_states_and_names_are_numbered_as_described(domain, name):
    task, world = task_on(domain, name), world_on(domain, name)
    cells = {tuple(cell): i for i, cell in enumerate(np.asarray(task.grid.cells).tolist())}
    assert list(cells) == world.cells
    assert (task.grid.width, task.grid.height) == (world.width, world.height)
    assert {tuple(wall) for wall in task.grid.walls} == world.walls
    assert list(task.grid.items) == [cells[item] for item in world.items]
    assert task.grid.goal == cells[world.goal]
    assert list(task.grid.starts) == [cells[start] for start in world.starts]
    states = listed_states(domain, name)
    assert task.num_states == len(states)
    assert task.num_states == np.prod(list(task.state_sizes.values()))
    assert task.num_actions == len(task.action_names) == 6
    assert task.num_latents == len(task.latent_names) == len(world.items) + 2
    assert task.agents == ("alice", "rob")
    assert task.name == domain
    assert task.start_state == world.index(world.start)
    chosen = np.random.default_rng(1).integers(0, len(states), 500)
    rows = variables_of(world, [states[i] for i in chosen])
    np.testing.assert_array_equal(task.decode_states(chosen), rows)
    np.testing.assert_array_equal(task.encode(rows), chosen)
    assert [world.index(states[i]) for i in chosen[:50]] == chosen[:50].tolist()


def test_the_paper_maps_state_counts():
    assert task_on("movers", "paper").num_states == 38_988
    assert task_on("cleanup", "paper").num_states == 92_416


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("name", oracle.MAPS)
def test_a_drawing_gives_the_same_task_as_the_name(domain, name):
    named, drawn = task_on(domain, name), task_on(domain, DRAWINGS[name])
    np.testing.assert_array_equal(named.grid.cells, drawn.grid.cells)
    for field in ("width", "height", "goal"):
        assert getattr(named.grid, field) == getattr(drawn.grid, field)
    for field in ("walls", "items", "starts"):
        assert list(getattr(named.grid, field)) == list(getattr(drawn.grid, field))
    assert named.start_state == drawn.start_state
    assert named.state_sizes == drawn.state_sizes
    generator = np.random.default_rng(3)
    states = generator.integers(0, named.num_states, 300)
    actions = generator.integers(0, 6, (300, 2))
    for mine, theirs in zip(
        named.transition(states, actions), drawn.transition(states, actions), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


BAD_DRAWINGS = {
    "no start of alice": (". . G\nR . 0", r"'A'"),
    "no start of rob": ("A . G\n. . 0", r"'R'"),
    "two starts of alice": ("A A G\nR . 0", r"'A'.*\(x=1, y=0\)"),
    "two starts of rob": ("A R G\nR . 0", r"'R'.*\(x=0, y=1\)"),
    "no goal": ("A . .\nR . 0", r"'G'"),
    "two goals": ("A G G\nR . 0", r"'G'.*\(x=2, y=0\)"),
    "no item": ("A . G\nR . .", r"'0'"),
    "item 1 without item 0": ("A . G\nR . 1", r"'0'"),
    "item 2 without item 1": ("A 0 G\nR . 2", r"0, 2"),
    "item 0 twice": ("A 0 G\nR . 0", r"'0'.*\(x=2, y=1\)"),
    "two items in one cell": ("A . G\nR . 01", r"'01'.*\(x=2, y=1\)"),
    "item on the goal": ("A . .\nR . G0", r"'G0'.*\(x=2, y=1\)"),
    "ragged rows": ("A . G\nR 0", r"row 1"),
    "ragged rows, long one": ("A . G\nR 0 . .", r"row 1"),
    "unreachable item": ("A G # .\nR . # 0", r"'0'.*\(x=3, y=1\)"),
    "unreachable goal": ("A 0 # .\nR . # G", r"'G'.*\(x=3, y=1\)"),
    "agents kept apart": ("A 0 G\n# # #\nR . .", r"'R'.*\(x=0, y=2\)"),
    "unknown token": ("A . G\nR ? 0", r"'\?'.*\(x=1, y=1\)"),
    "unknown letter in a token": ("A . G\nRx . 0", r"'Rx'.*\(x=0, y=1\)"),
    "small letters": ("a . G\nR . 0", r"'a'.*\(x=0, y=0\)"),
    "wall and start": ("A . G\nR# . 0", r"'R#'.*\(x=0, y=1\)"),
    "unknown name": ("papre", r"papre.*paper"),
    "nothing": ("", r"empty|unknown"),
    "blank lines": ("\n  \n", r"empty|unknown"),
}


@pytest.mark.parametrize("case", BAD_DRAWINGS)
@pytest.mark.parametrize("domain", DOMAINS)
def test_bad_drawings_are_refused_with_the_place(domain, case):
    drawing, place = BAD_DRAWINGS[case]
    with pytest.raises(ValueError, match=place):
        getattr(btil.domains, domain)(map=drawing)


STATE, ACTION = np.array([0]), np.array([[0, 0]])
OUT_OF_RANGE = {
    "state too large": lambda task: task.transition(np.array([task.num_states]), ACTION),
    "state below 0": lambda task: task.transition(np.array([-1]), ACTION),
    "action too large": lambda task: task.transition(STATE, np.array([[0, 6]])),
    "action below 0": lambda task: task.transition(STATE, np.array([[-1, 0]])),
    "variable too large": lambda task: task.encode(np.array([[0, 6, 0, 0]])),
    "variable below 0": lambda task: task.encode(np.array([[0, 0, 0, -1]])),
    "index too large": lambda task: task.decode_states(np.array([task.num_states])),
    "no temperature": lambda task: task.policies(temperature=0.0),
    "no episode": lambda task: task.simulate(0),
    "no step": lambda task: task.simulate(1, max_steps=0),
    "no such agent": lambda task: task.initial_latent_probs("bob", STATE),
    "latent too large": lambda task: task.suboptimal(STATE, np.array([[0, task.num_latents]])),
}


@pytest.mark.parametrize("case", OUT_OF_RANGE)
@pytest.mark.parametrize("domain", DOMAINS)
def test_what_is_out_of_range_is_refused(domain, case):
    with pytest.raises(ValueError, match=r"\d|bob"):
        OUT_OF_RANGE[case](task_on(domain, "tiny"))


# --- The dynamics against the oracle -------------------------------------------------------------


def compare_transitions(domain: str, drawing: str, pairs: list[tuple[int, tuple[int, int]]]) -> int:
    """Compares the pairs whose state the rules speak of; how many they are."""
    task, world, states = (f(domain, drawing) for f in (task_on, world_on, listed_states))
    pairs = [(i, actions) for i, actions in pairs if oracle.is_sound(world, states[i])]
    indices, actions = (np.array(column) for column in zip(*pairs, strict=True))
    next_states, probs = task.transition(indices, actions)
    assert next_states.shape == probs.shape
    for (i, joint), found in zip(pairs, distributions(next_states, probs, states), strict=True):
        expected = oracle.step(world, states[i], joint)
        assert_same_distribution(found, expected, (domain, states[i], joint, found, expected))
    return len(pairs)


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_transition_of_the_tiny_map(domain):
    everything = itertools.product(range(task_on(domain, "tiny").num_states), JOINT_ACTIONS)
    compared = compare_transitions(domain, "tiny", list(everything))
    assert compared == {"movers": 168, "cleanup": 492}[domain] * 36


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("drawing", ["paper", "lesson", OPEN], ids=["paper", "lesson", "open"])
def test_random_transitions_of_the_larger_maps(domain, drawing):
    generator = np.random.default_rng(5)
    world, states = world_on(domain, drawing), listed_states(domain, drawing)
    # In most states of Movers an item is held by agents that stand apart: sound ones are drawn,
    # half of them with the agents near each other, where the rules are.
    sound = [i for i, state in enumerate(states) if oracle.is_sound(world, state)]
    near = [i for i in sound if oracle.distance(states[i].alice, states[i].rob) <= 2]
    chosen = np.concatenate([generator.choice(sound, 2000), generator.choice(near, 2000)])
    pairs = [(int(i), JOINT_ACTIONS[generator.integers(36)]) for i in chosen]
    assert compare_transitions(domain, drawing, pairs) == 4000


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("drawing", ["tiny", "paper"])
def test_probabilities_sum_to_one_everywhere(domain, drawing):
    task = task_on(domain, drawing)
    generator = np.random.default_rng(6)
    states = generator.integers(0, task.num_states, 20_000)
    next_states, probs = task.transition(states, generator.integers(0, 6, (len(states), 2)))
    assert probs.min() >= 0
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-12)
    assert next_states.min() >= 0
    assert next_states.max() < task.num_states


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("name", oracle.MAPS)
def test_finished_is_when_all_items_are_on_the_goal(domain, name):
    task, world = task_on(domain, name), world_on(domain, name)
    expected = [oracle.is_final(world, state) for state in listed_states(domain, name)]
    np.testing.assert_array_equal(task.is_final(np.arange(task.num_states)), expected)
    assert sum(expected) == len(world.cells) ** 2


# Where all that can happen is looked at: the paper's own map has 2 million steps in Cleanup.
PLAYED = {"movers": "paper", "cleanup": "lesson"}


class Play(NamedTuple):
    """What the package's dynamics make of the start.

    Attributes:
        reachable: Reachable states, in order.
        before: State before the steps of a sample: one step in fifty, and many of those in which
            an item changes, which are few in Movers.
        after: State after them.
    """

    reachable: np.ndarray
    before: np.ndarray
    after: np.ndarray


@functools.cache
def played(domain: str, drawing: str) -> Play:
    task = task_on(domain, drawing)
    num_spreads = task.num_states // len(task.grid.cells) ** 2
    seen = np.zeros(task.num_states, bool)
    front, before, after = np.array([task.start_state]), [], []
    generator = np.random.default_rng(8)
    while len(front):
        seen[front] = True
        front = front[~task.is_final(front)]
        states, actions = np.repeat(front, 36), np.tile(JOINT_ACTIONS, (len(front), 1))
        next_states, probs = task.transition(states, actions)
        row, slot = np.nonzero(probs > 0)
        states, next_states = states[row], next_states[row, slot]
        changed = states % num_spreads != next_states % num_spreads
        share = np.where(changed, 1.0 if domain == "movers" else 0.1, 0.02)
        kept = generator.random(len(row)) < share
        before.append(states[kept])
        after.append(next_states[kept])
        front = np.unique(next_states[~seen[next_states]])
    return Play(np.flatnonzero(seen), np.concatenate(before), np.concatenate(after))


@pytest.mark.parametrize("domain", DOMAINS)
def test_play_from_the_start_stays_among_the_sound_states_and_can_finish(domain):
    drawing = PLAYED[domain]
    world, states = world_on(domain, drawing), listed_states(domain, drawing)
    found = played(domain, drawing).reachable
    assert all(oracle.is_sound(world, states[i]) for i in found)
    assert any(oracle.is_final(world, states[i]) for i in found)
    # Every way the items can be spread occurs: in Movers at most one is held, in Cleanup at most
    # one by each.
    spread = {states[i].items for i in found}
    assert spread == {s.items for s in states if oracle.is_sound(world, s)}


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_tiny_map_reaches_what_the_oracle_reaches(domain):
    world = world_on(domain, "tiny")
    expected = {world.index(state) for state in reachable_on(domain, "tiny")}
    assert set(played(domain, "tiny").reachable.tolist()) == expected


@pytest.mark.parametrize("domain", DOMAINS)
def test_items_move_only_from_hand_to_hand(domain):
    drawing = PLAYED[domain]
    world, task = world_on(domain, drawing), task_on(domain, drawing)
    play = played(domain, drawing)
    before, after = (task.decode_states(part)[:, 2:] for part in (play.before, play.after))
    goal = world.on_goal
    hands = set(range(1, goal))
    # From the floor into a hand, from a hand to anywhere; what is on the goal stays there.
    allowed = {(0, 0), (goal, goal)} | set(itertools.product(hands, range(goal + 1)))
    allowed |= set(itertools.product({0}, hands))
    assert set(zip(before.ravel().tolist(), after.ravel().tolist(), strict=True)) == allowed
    assert (before != after).sum(1).max() == (1 if domain == "movers" else 2)


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("drawing", ["tiny", "paper"])
def test_swapping_the_agents_swaps_the_outcomes(domain, drawing):
    task, world = task_on(domain, drawing), world_on(domain, drawing)
    states = listed_states(domain, drawing)
    generator = np.random.default_rng(9)
    sound = [i for i, state in enumerate(states) if oracle.is_sound(world, state)]
    chosen = generator.choice(sound, 2000)
    actions = generator.integers(0, 6, (len(chosen), 2))
    mirrored = np.array([world.index(oracle.swapped(world, states[i])) for i in chosen])
    plain = distributions(*task.transition(chosen, actions), states)
    mirror = distributions(*task.transition(mirrored, actions[:, ::-1].copy()), states)
    for i, one, other in zip(chosen, plain, mirror, strict=True):
        expected = {oracle.swapped(world, state): prob for state, prob in one.items()}
        assert_same_distribution(other, expected, states[i])


# --- The dynamics by hand ------------------------------------------------------------------------

Outcome = Callable[..., dict[State, float]]


def package_outcome(domain: str, drawing: str, state: State, actions: tuple[int, int]) -> dict:
    index = np.array([world_on(domain, drawing).index(state)])
    rows = task_on(domain, drawing).transition(index, np.array([actions]))
    return distributions(*rows, listed_states(domain, drawing))[0]


def oracle_outcome(domain: str, drawing: str, state: State, actions: tuple[int, int]) -> dict:
    return oracle.step(world_on(domain, drawing), state, actions)


@pytest.fixture(params=["package", "oracle"])
def outcome(request) -> Callable[..., dict]:
    """What a joint action leads to; both the package and the oracle answer to the hand."""
    return {"package": package_outcome, "oracle": oracle_outcome}[request.param]


@pytest.fixture
def movers(outcome) -> Outcome:
    """Movers on the open map: both at one cell, or (alice, rob); items; actions."""

    def result(cells, items, actions, drawing=OPEN):
        alice, rob = cells if isinstance(cells[0], tuple) else (cells, cells)
        return outcome("movers", drawing, State(alice, rob, items), actions)

    return result


@pytest.fixture
def cleanup(outcome) -> Outcome:
    """Cleanup on the open map, or on another drawing."""

    def result(alice, rob, items, actions, drawing=OPEN):
        return outcome("cleanup", drawing, State(alice, rob, items), actions)

    return result


def both(cell, items) -> dict[State, float]:
    return {State(cell, cell, items): 1.0}


def surely(alice, rob, items) -> dict[State, float]:
    return {State(alice, rob, items): 1.0}


def either(first: tuple, second: tuple) -> dict[State, float]:
    return {State(*first): 0.5, State(*second): 0.5}


class TestMoversEmptyHanded:
    def test_both_hold_where_an_item_lies_and_have_it(self, movers):
        assert movers((2, 1), (0, 0), (HOLD, HOLD)) == both((2, 1), (1, 0))
        assert movers((1, 3), (2, 0), (HOLD, HOLD)) == both((1, 3), (2, 1))

    def test_both_hold_in_one_cell_without_an_item(self, movers):
        assert movers((3, 2), (0, 0), (HOLD, HOLD)) == both((3, 2), (0, 0))
        assert movers((2, 1), (2, 0), (HOLD, HOLD)) == both((2, 1), (2, 0))
        assert movers((4, 3), (2, 0), (HOLD, HOLD)) == both((4, 3), (2, 0))

    def test_both_hold_in_different_cells(self, movers):
        cells = ((2, 1), (1, 3))
        assert movers(cells, (0, 0), (HOLD, HOLD)) == surely(*cells, (0, 0))

    def test_one_alone_lifts_nothing(self, movers):
        assert movers((2, 1), (0, 0), (HOLD, STAY)) == both((2, 1), (0, 0))
        assert movers((2, 1), (0, 0), (HOLD, UP)) == surely((2, 1), (2, 0), (0, 0))
        assert movers((2, 1), (0, 0), (LEFT, HOLD)) == surely((1, 1), (2, 1), (0, 0))

    def test_each_takes_its_own_step(self, movers):
        assert movers(((1, 1), (3, 3)), (0, 0), (UP, DOWN)) == surely((1, 0), (3, 4), (0, 0))
        assert movers(((1, 1), (3, 3)), (0, 0), (LEFT, RIGHT)) == surely((0, 1), (4, 3), (0, 0))
        assert movers(((1, 1), (3, 3)), (0, 0), (STAY, HOLD)) == surely((1, 1), (3, 3), (0, 0))

    def test_agents_and_items_do_not_block(self, movers):
        assert movers(((1, 1), (2, 1)), (0, 0), (RIGHT, LEFT)) == surely((2, 1), (1, 1), (0, 0))
        assert movers(((1, 1), (3, 1)), (0, 0), (RIGHT, LEFT)) == both((2, 1), (0, 0))

    def test_the_edge_and_walls_block(self, movers):
        assert movers(((0, 0), (4, 4)), (0, 0), (UP, DOWN)) == surely((0, 0), (4, 4), (0, 0))
        assert movers(((0, 0), (4, 4)), (0, 0), (LEFT, RIGHT)) == surely((0, 0), (4, 4), (0, 0))
        tiny = DRAWINGS["tiny"]
        cells = ((0, 1), (1, 2))
        assert movers(cells, (0, 0), (RIGHT, UP), tiny) == surely(*cells, (0, 0))
        assert movers(cells, (0, 0), (LEFT, RIGHT), tiny) == surely(*cells, (0, 0))


class TestMoversCarrying:
    def test_let_go_on_the_goal(self, movers):
        assert movers((4, 3), (1, 0), (HOLD, HOLD)) == both((4, 3), (2, 0))

    def test_let_go_at_its_own_origin(self, movers):
        assert movers((2, 1), (1, 0), (HOLD, HOLD)) == both((2, 1), (0, 0))

    def test_not_elsewhere_nor_at_the_origin_of_another(self, movers):
        assert movers((3, 3), (1, 0), (HOLD, HOLD)) == both((3, 3), (1, 0))
        assert movers((1, 3), (1, 2), (HOLD, HOLD)) == both((1, 3), (1, 2))

    @pytest.mark.parametrize("other", [UP, DOWN, LEFT, RIGHT, STAY])
    def test_exactly_one_hold_does_nothing(self, movers, other):
        for cell in ((3, 2), (4, 3), (2, 1)):
            assert movers(cell, (1, 0), (HOLD, other)) == both(cell, (1, 0))
            assert movers(cell, (1, 0), (other, HOLD)) == both(cell, (1, 0))

    def test_opposite_directions_or_both_stay_do_nothing(self, movers):
        for actions in ((UP, DOWN), (DOWN, UP), (LEFT, RIGHT), (RIGHT, LEFT), (STAY, STAY)):
            assert movers((3, 2), (1, 0), actions) == both((3, 2), (1, 0))

    def test_opposite_directions_do_nothing_even_where_one_is_blocked(self, movers):
        assert movers((1, 2), (1, 0), (DOWN, UP)) == both((1, 2), (1, 0))

    def test_equal_directions_move_both(self, movers):
        assert movers((3, 2), (1, 0), (UP, UP)) == both((3, 1), (1, 0))
        assert movers((3, 2), (1, 0), (LEFT, LEFT)) == both((2, 2), (1, 0))

    def test_loaded_step_is_blocked_by_an_item_lying_there(self, movers):
        assert movers((1, 2), (1, 0), (DOWN, DOWN)) == both((1, 2), (1, 0))

    def test_loaded_step_is_blocked_by_the_edge(self, movers):
        assert movers((4, 2), (1, 0), (RIGHT, RIGHT)) == both((4, 2), (1, 0))

    def test_an_item_on_the_goal_blocks_nothing(self, movers):
        assert movers((1, 2), (1, 2), (DOWN, DOWN)) == both((1, 3), (1, 2))
        assert movers((4, 2), (1, 2), (DOWN, DOWN)) == both((4, 3), (1, 2))

    def test_the_origin_of_the_item_in_hand_blocks_nothing(self, movers):
        assert movers((1, 1), (1, 0), (RIGHT, RIGHT)) == both((2, 1), (1, 0))

    def test_conflict_is_settled_by_a_fair_coin(self, movers):
        up, right = ((3, 1), (3, 1), (1, 0)), ((4, 2), (4, 2), (1, 0))
        assert movers((3, 2), (1, 0), (UP, RIGHT)) == either(up, right)
        assert movers((3, 2), (1, 0), (RIGHT, UP)) == either(right, up)

    def test_conflict_with_one_who_stays(self, movers):
        moved, stayed = ((3, 1), (3, 1), (1, 0)), ((3, 2), (3, 2), (1, 0))
        assert movers((3, 2), (1, 0), (UP, STAY)) == either(moved, stayed)
        assert movers((3, 2), (1, 0), (STAY, UP)) == either(stayed, moved)

    def test_conflict_with_one_who_is_blocked(self, movers):
        stayed, moved = ((1, 2), (1, 2), (1, 0)), ((2, 2), (2, 2), (1, 0))
        assert movers((1, 2), (1, 0), (DOWN, RIGHT)) == either(stayed, moved)

    def test_equal_targets_are_no_conflict(self, movers):
        assert movers((0, 0), (1, 0), (UP, LEFT)) == both((0, 0), (1, 0))
        assert movers((0, 0), (1, 0), (STAY, LEFT)) == both((0, 0), (1, 0))
        assert movers((1, 2), (1, 0), (DOWN, STAY)) == both((1, 2), (1, 0))


class TestCleanupNobodyHolds:
    def test_one_item_for_two_hands_goes_to_either(self, cleanup):
        assert cleanup((2, 1), (2, 1), (0, 0), (HOLD, HOLD)) == either(
            ((2, 1), (2, 1), (1, 0)), ((2, 1), (2, 1), (2, 0))
        )

    def test_both_hold_where_nothing_lies(self, cleanup):
        for cell, items in (((3, 2), (0, 0)), ((2, 1), (3, 0)), ((4, 3), (3, 0))):
            assert cleanup(cell, cell, items, (HOLD, HOLD)) == surely(cell, cell, items)

    def test_each_picks_up_his_own(self, cleanup):
        assert cleanup((2, 1), (1, 3), (0, 0), (HOLD, HOLD)) == surely((2, 1), (1, 3), (1, 2))
        assert cleanup((1, 3), (2, 1), (0, 0), (HOLD, HOLD)) == surely((1, 3), (2, 1), (2, 1))

    def test_one_picks_up_while_the_other_walks(self, cleanup):
        assert cleanup((2, 1), (3, 3), (0, 0), (HOLD, UP)) == surely((2, 1), (3, 2), (1, 0))
        assert cleanup((3, 3), (2, 1), (0, 0), (LEFT, HOLD)) == surely((2, 3), (2, 1), (2, 0))

    def test_one_picks_up_under_the_eyes_of_the_other(self, cleanup):
        assert cleanup((2, 1), (2, 1), (0, 0), (STAY, HOLD)) == surely((2, 1), (2, 1), (2, 0))
        assert cleanup((2, 1), (2, 1), (0, 0), (HOLD, UP)) == surely((2, 1), (2, 0), (1, 0))

    def test_steps_over_items_and_through_each_other(self, cleanup):
        assert cleanup((1, 1), (2, 1), (0, 0), (RIGHT, LEFT)) == surely((2, 1), (1, 1), (0, 0))
        assert cleanup((0, 0), (4, 4), (0, 0), (UP, RIGHT)) == surely((0, 0), (4, 4), (0, 0))


class TestCleanupOneHolds:
    @pytest.mark.parametrize("cell", [(3, 2), (4, 3), (2, 1), (1, 3)])
    def test_hand_over_also_at_the_goal_and_at_the_origin(self, cleanup, cell):
        # Item 1 is on the goal, so that nothing lies at (1, 3).
        assert cleanup(cell, cell, (1, 3), (HOLD, HOLD)) == surely(cell, cell, (2, 3))
        assert cleanup(cell, cell, (2, 3), (HOLD, HOLD)) == surely(cell, cell, (1, 3))

    def test_a_carrier_who_stays_keeps_it_from_a_grasping_hand(self, cleanup):
        assert cleanup((3, 2), (3, 2), (1, 0), (STAY, HOLD)) == surely((3, 2), (3, 2), (1, 0))
        assert cleanup((3, 2), (3, 2), (2, 0), (HOLD, STAY)) == surely((3, 2), (3, 2), (2, 0))

    def test_a_carrier_who_walks_takes_it_from_a_grasping_hand(self, cleanup):
        assert cleanup((3, 2), (3, 2), (1, 0), (UP, HOLD)) == surely((3, 1), (3, 2), (1, 0))
        assert cleanup((3, 2), (3, 2), (2, 0), (HOLD, UP)) == surely((3, 2), (3, 1), (2, 0))
        assert cleanup((1, 2), (1, 2), (1, 0), (DOWN, HOLD)) == surely((1, 2), (1, 2), (1, 0))

    @pytest.mark.parametrize("mate", [UP, STAY])
    def test_lets_go_at_its_origin_and_on_the_goal_beside_another(self, cleanup, mate):
        for cell, after in (((2, 1), 0), ((4, 3), 3)):
            mate_cell = (cell[0], cell[1] - 1) if mate == UP else cell
            assert cleanup(cell, cell, (1, 0), (HOLD, mate)) == surely(cell, mate_cell, (after, 0))
            assert cleanup(cell, cell, (2, 0), (mate, HOLD)) == surely(mate_cell, cell, (after, 0))

    def test_lets_go_with_the_other_elsewhere(self, cleanup):
        assert cleanup((4, 3), (0, 0), (1, 0), (HOLD, RIGHT)) == surely((4, 3), (1, 0), (3, 0))
        assert cleanup((0, 0), (2, 1), (2, 0), (HOLD, HOLD)) == surely((0, 0), (2, 1), (0, 0))

    def test_keeps_it_elsewhere_and_at_the_origin_of_another(self, cleanup):
        assert cleanup((3, 2), (0, 0), (1, 0), (HOLD, STAY)) == surely((3, 2), (0, 0), (1, 0))
        assert cleanup((1, 3), (0, 0), (1, 3), (HOLD, STAY)) == surely((1, 3), (0, 0), (1, 3))

    def test_loaded_step_is_blocked_by_an_item_lying_there(self, cleanup):
        assert cleanup((1, 2), (4, 4), (1, 0), (DOWN, STAY)) == surely((1, 2), (4, 4), (1, 0))

    def test_an_item_picked_up_in_the_same_step_still_blocks(self, cleanup):
        assert cleanup((1, 2), (1, 3), (1, 0), (DOWN, HOLD)) == surely((1, 2), (1, 3), (1, 2))

    def test_lets_go_while_the_other_walks_in(self, cleanup):
        assert cleanup((2, 1), (1, 1), (1, 0), (HOLD, RIGHT)) == surely((2, 1), (2, 1), (0, 0))

    def test_an_item_on_the_goal_blocks_nothing(self, cleanup):
        assert cleanup((4, 2), (0, 0), (1, 3), (DOWN, STAY)) == surely((4, 3), (0, 0), (1, 3))
        assert cleanup((1, 2), (0, 0), (1, 3), (DOWN, STAY)) == surely((1, 3), (0, 0), (1, 3))

    def test_empty_hands_neither_block_nor_are_blocked(self, cleanup):
        assert cleanup((1, 1), (2, 2), (1, 0), (STAY, UP)) == surely((1, 1), (2, 1), (1, 0))
        assert cleanup((3, 2), (3, 3), (1, 0), (DOWN, UP)) == surely((3, 3), (3, 2), (1, 0))
        assert cleanup((3, 2), (3, 3), (1, 0), (STAY, UP)) == surely((3, 2), (3, 2), (1, 0))
        assert cleanup((0, 3), (3, 3), (1, 0), (STAY, STAY)) == surely((0, 3), (3, 3), (1, 0))

    def test_walks_onto_the_origin_of_its_own_item(self, cleanup):
        assert cleanup((1, 1), (0, 0), (1, 0), (RIGHT, STAY)) == surely((2, 1), (0, 0), (1, 0))


class TestCleanupBothHold:
    def test_far_apart_each_walks_alone(self, cleanup):
        assert cleanup((0, 0), (3, 0), (1, 2), (RIGHT, LEFT)) == surely((1, 0), (2, 0), (1, 2))

    def test_a_holder_blocks_while_he_stays_or_holds(self, cleanup):
        assert cleanup((0, 0), (1, 0), (1, 2), (RIGHT, STAY)) == surely((0, 0), (1, 0), (1, 2))
        assert cleanup((0, 0), (1, 0), (1, 2), (HOLD, LEFT)) == surely((0, 0), (1, 0), (1, 2))

    def test_a_holder_blocks_even_as_he_lets_go(self, cleanup):
        assert cleanup((4, 3), (4, 2), (1, 2), (HOLD, DOWN)) == surely((4, 3), (4, 2), (3, 2))
        assert cleanup((1, 1), (2, 1), (2, 1), (RIGHT, HOLD)) == surely((1, 1), (2, 1), (0, 1))

    def test_both_let_go_where_they_may(self, cleanup):
        assert cleanup((2, 1), (4, 3), (1, 2), (HOLD, HOLD)) == surely((2, 1), (4, 3), (0, 3))
        assert cleanup((1, 3), (2, 1), (1, 2), (HOLD, HOLD)) == surely((1, 3), (2, 1), (1, 2))

    def test_distance_two_into_the_same_cell_one_enters(self, cleanup):
        assert cleanup((0, 0), (2, 0), (1, 2), (RIGHT, LEFT)) == either(
            ((1, 0), (2, 0), (1, 2)), ((0, 0), (1, 0), (1, 2))
        )
        assert cleanup((2, 2), (3, 3), (1, 2), (RIGHT, UP)) == either(
            ((3, 2), (3, 3), (1, 2)), ((2, 2), (3, 2), (1, 2))
        )

    def test_distance_two_into_different_cells_both_go(self, cleanup):
        assert cleanup((2, 2), (3, 3), (1, 2), (DOWN, RIGHT)) == surely((2, 3), (4, 3), (1, 2))
        assert cleanup((0, 0), (2, 0), (1, 2), (RIGHT, RIGHT)) == surely((1, 0), (3, 0), (1, 2))

    def test_distance_two_with_one_blocked_the_other_goes(self, cleanup):
        assert cleanup((0, 0), (2, 0), (1, 2), (UP, LEFT)) == surely((0, 0), (1, 0), (1, 2))

    def test_neighbours_do_not_exchange_places(self, cleanup):
        assert cleanup((0, 0), (1, 0), (1, 2), (RIGHT, LEFT)) == surely((0, 0), (1, 0), (1, 2))

    def test_the_follower_enters_the_cell_that_is_left(self, cleanup):
        assert cleanup((0, 0), (1, 0), (1, 2), (RIGHT, RIGHT)) == surely((1, 0), (2, 0), (1, 2))
        assert cleanup((1, 0), (0, 0), (1, 2), (DOWN, RIGHT)) == surely((1, 1), (1, 0), (1, 2))

    def test_nobody_follows_one_who_is_blocked(self, cleanup):
        assert cleanup((1, 0), (0, 0), (1, 2), (UP, RIGHT)) == surely((1, 0), (0, 0), (1, 2))

    def test_neighbours_who_both_can_move_both_do(self, cleanup):
        assert cleanup((0, 0), (1, 0), (1, 2), (DOWN, RIGHT)) == surely((0, 1), (2, 0), (1, 2))
        assert cleanup((0, 0), (1, 0), (1, 2), (DOWN, DOWN)) == surely((0, 1), (1, 1), (1, 2))

    def test_a_neighbour_who_heads_elsewhere_and_is_blocked_stays(self, cleanup):
        assert cleanup((0, 0), (1, 0), (1, 2), (UP, RIGHT)) == surely((0, 0), (2, 0), (1, 2))

    def test_an_item_lying_ahead_stops_leader_and_follower(self, cleanup):
        three = "A . . .\n0 1 2 .\nG . . R"
        before, items = ((1, 1), (1, 0)), (1, 2, 0)
        assert cleanup(*before, items, (RIGHT, DOWN), three) == surely(*before, items)
        # Item 1 is in a hand, so its origin is free.
        before = ((0, 1), (0, 0))
        assert cleanup(*before, items, (RIGHT, DOWN), three) == surely((1, 1), (0, 1), items)


# --- Planning and policies -----------------------------------------------------------------------


@functools.cache
def dense_solutions(domain: str) -> list[tuple[np.ndarray, int]]:
    """(Q, sweeps) of every latent on the tiny map, by the oracle, over the sound states."""
    problem = problem_on(domain, "tiny")
    return [oracle.value_iteration(problem.moves, rewards) for rewards in problem.rewards]


@functools.cache
def expected_q_values(domain: str) -> np.ndarray:
    """Q on the tiny map by the dense solver, (latents, states of the problem, choices).

    After as many sweeps as the package did: its stopping rule looks at all states, the ones that
    cannot occur too, and is tested by itself.
    """
    problem, sweeps = problem_on(domain, "tiny"), task_on(domain, "tiny").plan.num_sweeps
    q_values = []
    for rewards, most, (solved, enough) in zip(
        problem.rewards, sweeps.tolist(), dense_solutions(domain), strict=True
    ):
        if most != enough:
            solved, _ = oracle.value_iteration(problem.moves, rewards, 0.0, most)
        q_values.append(solved)
    return np.array(q_values)


def solved_by_package(problem: oracle.Problem) -> tuple[np.ndarray, np.ndarray]:
    """(Q, sweeps) of a dense problem by the package's sparse solver."""
    size = problem.moves.shape[-1]
    sparse = planning.PlanningProblem(
        scipy.sparse.csr_array(problem.moves.reshape(-1, size)),
        np.moveaxis(problem.rewards, 0, -1),
    )
    values, sweeps = planning.value_iteration(sparse)
    return np.moveaxis(planning.action_values(sparse, values), -1, 0), sweeps


def assert_same_solution(
    problem: oracle.Problem, expected: list[tuple[np.ndarray, int]] | None = None
) -> np.ndarray:
    if expected is None:
        expected = [oracle.value_iteration(problem.moves, rewards) for rewards in problem.rewards]
    found, sweeps = solved_by_package(problem)
    assert sweeps.tolist() == [count for _, count in expected]
    for mine, (theirs, _) in zip(found, expected, strict=True):
        np.testing.assert_allclose(oracle.finite(mine), theirs, rtol=1e-9, atol=1e-9)
    return sweeps


@pytest.mark.parametrize("domain", DOMAINS)
def test_value_iteration_of_the_tiny_map_stops_where_a_dense_solver_stops(domain):
    assert_same_solution(problem_on(domain, "tiny"), dense_solutions(domain))


def random_problem(seed: int, scale: float) -> oracle.Problem:
    """Forbidden actions, an absorbing state, and a state that nothing leads to and nothing leaves.

    The last state has no legal action.
    """
    generator = np.random.default_rng(seed)
    moves = generator.dirichlet(np.full(11, 0.3), size=(12, 4))
    moves = np.concatenate([moves, np.zeros((12, 4, 1))], axis=-1)
    moves[3] = np.eye(12)[3]
    rewards = scale * generator.normal(size=(3, 12, 4))
    rewards[generator.random(rewards.shape) < 0.3] = -np.inf
    rewards[:, :, 1] = scale
    rewards[:, 3] = 0
    rewards[:, 11] = -np.inf
    return oracle.Problem([], moves, rewards)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_value_iteration_of_random_problems(scale):
    sweeps = assert_same_solution(random_problem(1, scale))
    assert (sweeps < 500).all()


def test_value_iteration_gives_up_after_500_sweeps():
    # The change of the n-th sweep is 1e13 * 0.95^(n - 1), still 76 at the 500th.
    stay = np.eye(2)[:, None]
    sweeps = assert_same_solution(oracle.Problem([], stay, np.array([[[1e13], [0.0]]])))
    assert sweeps.tolist() == [500]


def test_a_problem_that_is_worth_nothing_is_swept_once():
    problem = random_problem(3, 1.0)
    sweeps = assert_same_solution(problem._replace(rewards=np.zeros((1, 12, 4))))
    assert sweeps.tolist() == [1]


def test_plans_are_remembered_and_a_damaged_file_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setenv("BTIL_CACHE_DIR", str(tmp_path / "plans"))
    dense = random_problem(4, 1.0)
    sparse = planning.PlanningProblem(
        scipy.sparse.csr_array(dense.moves.reshape(-1, 12)), np.moveaxis(dense.rewards, 0, -1)
    )
    first = planning.solve(sparse)
    (path,) = (tmp_path / "plans").iterdir()
    with monkeypatch.context() as patch:
        patch.setattr(planning, "value_iteration", lambda problem: pytest.fail("solved again"))
        again = planning.solve(sparse)
    whole = path.read_bytes()
    middle = len(whole) // 2
    turned = whole[:middle] + bytes(255 - byte for byte in whole[middle:][:8]) + whole[middle + 8 :]
    for damage in (b"", b"not an archive", whole[:-40], turned):
        path.write_bytes(damage)
        repaired = planning.solve(sparse)
        for mine, theirs, latest in zip(first, again, repaired, strict=True):
            np.testing.assert_array_equal(mine, theirs)
            np.testing.assert_array_equal(mine, latest)
    # Where nothing can be kept, that is said, and the plan is the same.
    (tmp_path / "file").touch()
    with monkeypatch.context() as patch:
        patch.setenv("BTIL_CACHE_DIR", str(tmp_path / "file" / "plans"))
        with pytest.warns(UserWarning, match="the plan could not be kept in .*plans"):
            unkept = planning.solve(sparse)
    np.testing.assert_array_equal(unkept.action_values, first.action_values)
    other = planning.solve(sparse._replace(rewards=sparse.rewards + 1))
    assert len(list((tmp_path / "plans").iterdir())) == 2
    assert (other.action_values[3] != first.action_values[3]).all()


@pytest.mark.parametrize("domain", DOMAINS)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_policies_of_the_tiny_map_are_those_of_a_dense_solver(domain, temperature):
    task, world, problem = (f(domain, "tiny") for f in (task_on, world_on, problem_on))
    expected = oracle.policies(world, problem.states, expected_q_values(domain), temperature)
    found = task.policies(temperature)
    rows = [i for i, s in enumerate(problem.states) if not oracle.is_final(world, s)]
    indices = [world.index(problem.states[i]) for i in rows]
    for agent, name in enumerate(task.agents):
        assert found[name].shape == (task.num_states, task.num_latents, 6)
        np.testing.assert_allclose(found[name][indices], expected[agent][rows], atol=1e-9)


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_states_that_cannot_occur_hardly_matter(domain):
    """The oracle's stopping rule looks at the sound states alone."""
    task, world, problem = (f(domain, "tiny") for f in (task_on, world_on, problem_on))
    q_values = np.array([solved for solved, _ in dense_solutions(domain)])
    expected = oracle.policies(world, problem.states, q_values)
    rows = [i for i, s in enumerate(problem.states) if not oracle.is_final(world, s)]
    indices = [world.index(problem.states[i]) for i in rows]
    for agent, name in enumerate(task.agents):
        np.testing.assert_allclose(task.policies()[name][indices], expected[agent][rows], atol=3e-4)


@pytest.mark.parametrize("domain", DOMAINS)
def test_policies_sum_to_one_everywhere_and_are_the_same_when_asked_again(domain):
    task = task_on(domain, "tiny")
    for name in task.agents:
        table = task.policies()[name]
        assert table.min() >= 0
        np.testing.assert_allclose(table.sum(-1), 1, atol=1e-6)
        np.testing.assert_array_equal(table, task.policies(temperature=1.0)[name])


@pytest.mark.parametrize("domain", DOMAINS)
def test_an_intent_that_does_not_fit_the_hands_waits(domain):
    task, world = task_on(domain, "tiny"), world_on(domain, "tiny")
    held = [oracle.held_in_movers, lambda s: oracle.held_in_cleanup(s, 0)][domain == "cleanup"]
    waiting = np.eye(6)[STAY]
    for state in reachable_on(domain, "tiny"):
        if oracle.is_final(world, state):
            continue
        policy = task.policies()["alice"][world.index(state)]
        misfits = range(2) if held(state) is not None else (world.to_origin, world.to_goal)
        for latent in misfits:
            np.testing.assert_allclose(policy[latent], waiting, atol=1e-12)


def test_cleanup_agents_have_one_policy_seen_from_two_sides():
    task, world = task_on("cleanup", "tiny"), world_on("cleanup", "tiny")
    states = list(reachable_on("cleanup", "tiny"))
    here = [world.index(state) for state in states]
    there = [world.index(oracle.swapped(world, state)) for state in states]
    policies = task.policies()
    np.testing.assert_array_equal(policies["alice"][here], policies["rob"][there])


# --- Mental states -------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS)
def test_every_latent_transition_that_occurs_on_the_tiny_map(domain):
    task, world = task_on(domain, "tiny"), world_on(domain, "tiny")
    pairs = sorted(
        {
            (before, after)
            for before in reachable_on(domain, "tiny")
            if not oracle.is_final(world, before)
            for actions in JOINT_ACTIONS
            for after in oracle.step(world, before, actions)
        }
    )
    before, after = (np.array([world.index(s) for s in part]) for part in zip(*pairs, strict=True))
    for agent, name in enumerate(task.agents):
        found = task.latent_transition(name, before, after)
        expected = np.zeros((len(pairs), task.num_latents, task.num_latents))
        for row, (one, other) in enumerate(pairs):
            for latent in range(task.num_latents):
                for value, prob in oracle.next_latent(world, agent, one, other, latent).items():
                    expected[row, latent, value] = prob
        np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("domain", DOMAINS)
def test_latent_transitions_of_a_larger_map(domain):
    drawing = PLAYED[domain]
    task, world, states = (f(domain, drawing) for f in (task_on, world_on, listed_states))
    _, before, after = played(domain, drawing)
    # Steps in which an item changes are rare and the interesting ones.
    changed = (task.decode_states(before)[:, 2:] != task.decode_states(after)[:, 2:]).any(1)
    generator = np.random.default_rng(10)
    rows = np.concatenate(
        [generator.permutation(np.flatnonzero(some))[:800] for some in (changed, ~changed)]
    )
    for agent, name in enumerate(task.agents):
        found = task.latent_transition(name, before[rows], after[rows])
        for row, table in zip(rows, found, strict=True):
            step = states[before[row]], states[after[row]]
            for latent in range(task.num_latents):
                assert_same_distribution(
                    {value: prob for value, prob in enumerate(table[latent]) if prob > 0},
                    oracle.next_latent(world, agent, *step, latent),
                    (name, step, latent),
                )


@pytest.mark.parametrize("domain", DOMAINS)
def test_initial_latents_from_every_reachable_state(domain):
    task, world = task_on(domain, "tiny"), world_on(domain, "tiny")
    states = [s for s in reachable_on(domain, "tiny") if not oracle.is_final(world, s)]
    indices = np.array([world.index(state) for state in states])
    for agent, name in enumerate(task.agents):
        expected = np.zeros((len(states), task.num_latents))
        for row, state in enumerate(states):
            for latent, prob in oracle.initial_latent(world, agent, state).items():
                expected[row, latent] = prob
        np.testing.assert_allclose(task.initial_latent_probs(name, indices), expected, atol=1e-6)


@pytest.fixture(params=["package", "oracle"])
def latent_after(request) -> Callable[..., dict[int, float]]:
    """P(next latent) of one agent on the paper's map, by the package and by the oracle."""

    def by_package(domain, agent, before, after, latent):
        world = world_on(domain, "paper")
        before, after = (np.array([world.index(state)]) for state in (before, after))
        task = task_on(domain, "paper")
        row = task.latent_transition(task.agents[agent], before, after)[0, latent]
        return {i: pytest.approx(float(p), abs=1e-6) for i, p in enumerate(row) if p > 0}

    def by_oracle(domain, agent, before, after, latent):
        return oracle.next_latent(world_on(domain, "paper"), agent, before, after, latent)

    return {"package": by_package, "oracle": by_oracle}[request.param]


# On the paper's map: items 0, 1, 2 lie at (0, 0), (1, 3), (0, 6); 3 is the origin, 4 the goal.
ORIGIN, GOAL = 3, 4
THIRD = 1 / 3


class TestMoversMentalStates:
    def test_having_picked_up_they_want_the_goal(self, latent_after):
        before, after = (State((0, 0), (0, 0), items) for items in ((0, 0, 0), (1, 0, 0)))
        for agent, latent in itertools.product((0, 1), range(5)):
            assert latent_after("movers", agent, before, after, latent) == {GOAL: 1}

    def test_having_let_go_they_choose_among_the_lying_items(self, latent_after):
        before, after = (State((6, 3), (6, 3), items) for items in ((1, 0, 0), (2, 0, 0)))
        assert latent_after("movers", 0, before, after, GOAL) == {1: 0.5, 2: 0.5}
        before, after = (State((0, 0), (0, 0), items) for items in ((1, 0, 0), (0, 0, 0)))
        assert latent_after("movers", 1, before, after, ORIGIN) == {0: THIRD, 1: THIRD, 2: THIRD}

    def test_having_let_go_the_last_item_nothing_changes(self, latent_after):
        before, after = (State((6, 3), (6, 3), items) for items in ((2, 2, 1), (2, 2, 2)))
        assert latent_after("movers", 0, before, after, GOAL) == {GOAL: 1}

    def test_teammate_at_another_item_may_win_one_over(self, latent_after):
        before = State((5, 0), (0, 5), (0, 0, 0))
        after = State((5, 1), (0, 6), (0, 0, 0))
        assert latent_after("movers", 0, before, after, 0) == {2: 0.1, 0: 0.9}
        assert latent_after("movers", 0, before, after, 2) == {2: 1}
        assert latent_after("movers", 1, before, after, 0) == {0: 1}

    def test_each_may_be_won_over_by_the_other(self, latent_after):
        both_wait = State((0, 0), (0, 6), (0, 0, 0))
        assert latent_after("movers", 0, both_wait, both_wait, 0) == {2: 0.1, 0: 0.9}
        assert latent_after("movers", 1, both_wait, both_wait, 2) == {0: 0.1, 2: 0.9}

    def test_only_a_lying_item_under_the_teammate_counts(self, latent_after):
        before = after = State((5, 0), (0, 6), (0, 0, 2))
        assert latent_after("movers", 0, before, after, 0) == {0: 1}

    def test_only_where_the_teammate_stands_after_the_step(self, latent_after):
        before = State((5, 0), (0, 6), (0, 0, 0))
        after = State((5, 0), (0, 5), (0, 0, 0))
        assert latent_after("movers", 0, before, after, 0) == {0: 1}

    def test_a_carrier_is_not_won_over(self, latent_after):
        before = State((1, 0), (1, 0), (1, 0, 0))
        after = State((1, 1), (1, 1), (1, 0, 0))
        for latent in range(5):
            assert latent_after("movers", 0, before, after, latent) == {latent: 1}

    def test_only_a_pick_up_intent_is_won_over(self, latent_after):
        state = State((5, 0), (0, 6), (0, 0, 0))
        assert latent_after("movers", 0, state, state, GOAL) == {GOAL: 1}
        assert latent_after("movers", 0, state, state, ORIGIN) == {ORIGIN: 1}


class TestCleanupMentalStates:
    def test_having_picked_up_he_wants_the_goal(self, latent_after):
        before, after = (State((0, 0), (6, 4), items) for items in ((0, 0, 0), (1, 0, 0)))
        assert latent_after("cleanup", 0, before, after, 0) == {GOAL: 1}

    def test_who_wanted_that_very_item_chooses_again(self, latent_after):
        before, after = (State((0, 0), (6, 4), items) for items in ((0, 0, 0), (1, 0, 0)))
        assert latent_after("cleanup", 1, before, after, 0) == {1: 0.5, 2: 0.5}
        assert latent_after("cleanup", 1, before, after, 1) == {1: 1}

    def test_who_wanted_the_last_lying_item_keeps_the_wish(self, latent_after):
        before, after = (State((0, 0), (6, 4), items) for items in ((0, 3, 3), (1, 3, 3)))
        assert latent_after("cleanup", 1, before, after, 0) == {0: 1}

    def test_no_one_is_won_over_by_where_the_teammate_stands(self, latent_after):
        state = State((5, 0), (0, 6), (0, 0, 0))
        assert latent_after("cleanup", 0, state, state, 0) == {0: 1}

    def test_having_let_go_he_chooses_among_the_lying_items(self, latent_after):
        before, after = (State((6, 3), (6, 4), items) for items in ((1, 0, 0), (3, 0, 0)))
        assert latent_after("cleanup", 0, before, after, GOAL) == {1: 0.5, 2: 0.5}
        before, after = (State((0, 0), (6, 4), items) for items in ((1, 2, 0), (0, 2, 0)))
        assert latent_after("cleanup", 0, before, after, ORIGIN) == {0: 0.5, 2: 0.5}

    def test_having_let_go_with_none_lying_he_wants_what_the_teammate_holds(self, latent_after):
        before, after = (State((6, 3), (1, 1), items) for items in ((1, 2, 3), (3, 2, 3)))
        assert latent_after("cleanup", 0, before, after, GOAL) == {1: 1}
        assert latent_after("cleanup", 1, before, after, GOAL) == {GOAL: 1}

    def test_having_let_go_the_last_item_nothing_changes(self, latent_after):
        before, after = (State((6, 3), (1, 1), items) for items in ((1, 3, 3), (3, 3, 3)))
        assert latent_after("cleanup", 0, before, after, GOAL) == {GOAL: 1}

    def test_a_hand_over_is_a_pick_up_for_one_and_a_letting_go_for_the_other(self, latent_after):
        before, after = (State((3, 3), (3, 3), items) for items in ((1, 0, 3), (2, 0, 3)))
        assert latent_after("cleanup", 0, before, after, GOAL) == {1: 1}
        assert latent_after("cleanup", 1, before, after, 1) == {GOAL: 1}
        before, after = (State((3, 3), (3, 3), items) for items in ((1, 3, 3), (2, 3, 3)))
        assert latent_after("cleanup", 0, before, after, GOAL) == {0: 1}
        assert latent_after("cleanup", 1, before, after, 0) == {GOAL: 1}

    def test_picking_up_at_the_same_time_both_want_the_goal(self, latent_after):
        before, after = (State((0, 0), (0, 6), items) for items in ((0, 0, 0), (1, 0, 2)))
        for agent, latent in itertools.product((0, 1), range(5)):
            assert latent_after("cleanup", agent, before, after, latent) == {GOAL: 1}

    def test_letting_go_comes_before_what_the_teammate_picks_up(self, latent_after):
        before, after = (State((6, 3), (0, 0), items) for items in ((3, 1, 0), (3, 3, 0)))
        assert latent_after("cleanup", 0, before, after, GOAL) == {2: 1}
        before, after = (State((6, 3), (0, 6), items) for items in ((0, 1, 0), (0, 3, 2)))
        assert latent_after("cleanup", 0, before, after, GOAL) == {0: 1}


@pytest.mark.parametrize("domain", DOMAINS)
def test_initial_latents_by_hand(domain):
    task, world = task_on(domain, "paper"), world_on(domain, "paper")

    def probs(agent, items):
        state = State((3, 3), (3, 3), items)
        row = task.initial_latent_probs(task.agents[agent], np.array([world.index(state)]))[0]
        return [round(float(prob), 6) for prob in row]

    assert probs(0, (0, 0, 0)) == [0.333333] * 3 + [0, 0]
    goal = world.on_goal
    assert probs(1, (goal, 0, 0)) == [0, 0.5, 0.5, 0, 0]
    assert probs(0, (1, 0, 0)) == [0, 0, 0, 0.1, 0.9]
    if domain == "cleanup":
        assert probs(1, (1, 0, 0)) == [0, 0.5, 0.5, 0, 0]
        assert probs(1, (3, 1, 3)) == [0, 1, 0, 0, 0]
    start = task.initial_latent_probs("rob", np.array([task.start_state]))[0]
    np.testing.assert_allclose(start, [1 / 3] * 3 + [0, 0], atol=1e-6)


@pytest.mark.parametrize("domain", DOMAINS)
def test_suboptimal_steps_as_appendix_c(domain):
    task, world = task_on(domain, "tiny"), world_on(domain, "tiny")
    cases = list(
        itertools.product(
            sorted(reachable_on(domain, "tiny")),
            itertools.product(range(task.num_latents), repeat=2),
        )
    )
    found = task.suboptimal(
        np.array([world.index(state) for state, _ in cases]),
        np.array([latents for _, latents in cases]),
    )
    expected = [oracle.is_suboptimal(world, state, latents) for state, latents in cases]
    np.testing.assert_array_equal(found, expected)


def test_suboptimal_cleanup_by_hand():
    task, world = task_on("cleanup", "paper"), world_on("cleanup", "paper")

    def suboptimal(items, latents):
        state = np.array([world.index(State((3, 3), (2, 1), items))])
        return bool(task.suboptimal(state, np.array([latents]))[0])

    assert suboptimal((0, 0, 0), (1, 1))
    assert not suboptimal((0, 0, 0), (1, 2))
    assert not suboptimal((0, 3, 3), (0, 0))  # the only one that lies: no other to choose
    assert suboptimal((1, 0, 3), (GOAL, 0))
    assert not suboptimal((1, 0, 3), (GOAL, 1))
    assert not suboptimal((1, 3, 3), (GOAL, 0))  # the last item on its way to the goal
    assert suboptimal((1, 0, 0), (ORIGIN, 1))
    assert suboptimal((1, 3, 3), (ORIGIN, 0))
    assert suboptimal((0, 2, 0), (1, GOAL))


# --- Simulation ----------------------------------------------------------------------------------


@functools.cache
def simulated(domain: str, drawing: str = "tiny") -> btil.Demonstrations:
    return task_on(domain, drawing).simulate(1500, seed=4, max_steps=40)


@functools.cache
def tabulated_policies(domain: str) -> dict[State, np.ndarray]:
    """The oracle's policies by state: (agents, latents, actions)."""
    world, problem = world_on(domain, "tiny"), problem_on(domain, "tiny")
    table = oracle.policies(world, problem.states, expected_q_values(domain))
    return {state: table[:, i] for i, state in enumerate(problem.states)}


def chi_square_p_value(observed: dict, expected_probs: Callable) -> float:
    """One test over many rows: {row: Counter of outcomes}, probabilities by row.

    Outcomes that are expected less than five times are put together, row by row; rows in which
    fewer than two cells remain say nothing.
    """
    statistic, freedom = 0.0, 0
    for row, counts in observed.items():
        total, probs = sum(counts.values()), expected_probs(row)
        impossible = [value for value in counts if probs.get(value, 0) < 1e-7]
        assert not impossible, (row, impossible)
        cells = [(counts.get(value, 0), total * prob) for value, prob in probs.items()]
        large = [cell for cell in cells if cell[1] >= 5]
        rest = [cell for cell in cells if cell[1] < 5]
        if rest and sum(e for _, e in rest) >= 5:
            large.append((sum(o for o, _ in rest), sum(e for _, e in rest)))
        elif rest:
            # Too rare even together: left out, and the others judged given that it was not them.
            kept = sum(o for o, _ in large)
            mass = sum(e for _, e in large)
            large = [(o, e * kept / mass) for o, e in large] if kept else []
        if len(large) >= 2:
            statistic += sum((o - e) ** 2 / e for o, e in large)
            freedom += len(large) - 1
    assert freedom > 0
    return float(scipy.stats.chi2.sf(statistic, freedom))


def product_probs(tables: list[dict]) -> dict:
    """Independent choices: {(one, other): probability}."""
    first, second = tables
    return {(a, b): p * q for (a, p), (b, q) in itertools.product(first.items(), second.items())}


@pytest.mark.parametrize("domain", DOMAINS)
def test_simulated_episodes_are_whole(domain):
    task, demos = task_on(domain, "tiny"), simulated(domain)
    assert demos.num_episodes == 1500
    assert demos.agents == task.agents
    assert demos.num_states == task.state_sizes
    assert (demos.latents >= 0).all()
    assert demos.episode_lengths.max() <= 40
    starts = demos.episode_starts
    assert (demos.states[starts] == task.start_state).all()
    assert not task.is_final(demos.states).any()
    np.testing.assert_array_equal(
        task.encode(np.stack(list(demos.state_variables.values()), 1)), demos.states
    )
    assert demos.action_names["alice"] == tuple(task.action_names)
    assert demos.latent_names["rob"] == tuple(task.latent_names)


@pytest.mark.parametrize("domain", DOMAINS)
def test_simulated_actions_follow_the_policies_independently(domain):
    demos, table = simulated(domain), tabulated_policies(domain)
    states = listed_states(domain, "tiny")
    observed: dict = defaultdict(Counter)
    for s, x, a in zip(demos.states, demos.latents.tolist(), demos.actions.tolist(), strict=True):
        observed[states[s], tuple(x)][tuple(a)] += 1

    def expected(row):
        state, latents = row
        return product_probs([dict(enumerate(table[state][i, latents[i]])) for i in (0, 1)])

    assert chi_square_p_value(observed, expected) > 1e-3


@pytest.mark.parametrize("domain", DOMAINS)
def test_simulated_states_follow_the_dynamics(domain):
    demos, states, world = (
        simulated(domain),
        listed_states(domain, "tiny"),
        world_on(domain, "tiny"),
    )
    observed: dict = defaultdict(Counter)
    ends = demos.episode_starts + demos.episode_lengths
    actions = [tuple(row) for row in demos.actions.tolist()]
    for start, end in zip(demos.episode_starts, ends, strict=True):
        for t in range(start, end - 1):
            observed[states[demos.states[t]], actions[t]][states[demos.states[t + 1]]] += 1
        # An episode that stops before the limit stops because it is finished.
        last = states[demos.states[end - 1]], actions[end - 1]
        outcomes = oracle.step(world, *last)
        if end - start < 40:
            (finished,) = [state for state in outcomes if oracle.is_final(world, state)]
            observed[last][finished] += 1

    assert chi_square_p_value(observed, lambda row: oracle.step(world, *row)) > 1e-3


@pytest.mark.parametrize("domain", DOMAINS)
def test_simulated_latents_follow_their_tables_independently(domain):
    demos, states, world = (
        simulated(domain, CROWDED),
        listed_states(domain, CROWDED),
        world_on(domain, CROWDED),
    )
    moved: dict = defaultdict(Counter)
    first: dict = defaultdict(Counter)
    latents = [tuple(row) for row in demos.latents.tolist()]
    for start, length in zip(demos.episode_starts, demos.episode_lengths, strict=True):
        first[states[demos.states[start]]][latents[start]] += 1
        for t in range(start, start + length - 1):
            row = states[demos.states[t]], states[demos.states[t + 1]], latents[t]
            moved[row][latents[t + 1]] += 1

    def expected_moves(row):
        before, after, both = row
        return product_probs([oracle.next_latent(world, i, before, after, both[i]) for i in (0, 1)])

    def expected_first(state):
        return product_probs([oracle.initial_latent(world, i, state) for i in (0, 1)])

    assert chi_square_p_value(moved, expected_moves) > 1e-3
    assert chi_square_p_value(first, expected_first) > 1e-3


@pytest.mark.parametrize("domain", DOMAINS)
def test_same_seed_same_bits(domain):
    task = task_on(domain, "tiny")
    first = task.simulate(5, seed=11, max_steps=30)
    np.random.default_rng(0).random(10)
    task.simulate(3, seed=12, max_steps=10)
    assert task.simulate(5, seed=11, max_steps=30) == first
    another = task_on(domain, DRAWINGS["tiny"])
    assert another.simulate(5, seed=11, max_steps=30) == first
    assert task.simulate(5, seed=12, max_steps=30) != first
    longer = task.simulate(8, seed=11, max_steps=30)
    assert longer.select(np.arange(5)) == first


@pytest.mark.parametrize("domain", DOMAINS)
def test_simulation_with_other_policies(domain):
    task = task_on(domain, "tiny")
    always = {
        agent: np.broadcast_to(np.eye(6)[action], (task.num_states, task.num_latents, 6)).copy()
        for agent, action in zip(task.agents, (STAY, UP), strict=True)
    }
    demos = task.simulate(3, seed=0, max_steps=7, policies=always)
    np.testing.assert_array_equal(demos.actions, np.tile([STAY, UP], (21, 1)))
    np.testing.assert_array_equal(demos.episode_lengths, [7, 7, 7])


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_team_of_another_temperature_acts_by_its_own_policies(domain):
    task = task_on(domain, "tiny")
    policies = task.policies(0.3)
    demos = task.simulate(4, seed=3, max_steps=30, temperature=0.3)
    assert demos == task.simulate(4, seed=3, max_steps=30, policies=policies)
    assert demos != task.simulate(4, seed=3, max_steps=30)
    model = bind(task.true_model(0.3), demos)
    for agent in task.agents:
        table = model.table("policy", agent)
        states = task.encode(table.contexts.rows)
        np.testing.assert_allclose(table.prior_mean(), policies[agent][states])


# --- The true model ------------------------------------------------------------------------------


def path_log_probability(domain: str, demos, episode: int, agent: int, path: list[int]) -> float:
    """log p(latent path, the agent's actions | states) of one episode, factor by factor."""
    task, world, states = (f(domain, "tiny") for f in (task_on, world_on, listed_states))
    policy = task.policies()[task.agents[agent]]
    start = demos.episode_starts[episode]
    probs = []
    for t, latent in enumerate(path):
        row = start + t
        now = demos.states[row]
        if t == 0:
            allowed = oracle.initial_latent(world, agent, states[now])
        else:
            before = states[demos.states[row - 1]]
            allowed = oracle.next_latent(world, agent, before, states[now], path[t - 1])
        probs += [allowed.get(latent, 0.0), float(policy[now, latent, demos.actions[row, agent]])]
    with np.errstate(divide="ignore"):
        return float(np.log(probs).sum())


@pytest.mark.parametrize("domain", DOMAINS)
def test_the_true_model_scores_explains_and_decodes(domain):
    task = task_on(domain, "tiny")
    demos = task.simulate(4, seed=2, max_steps=5)
    posterior = btil.fit(task.true_model(), demos, progress=False)
    by_path = np.zeros(4)
    for episode, agent in itertools.product(range(4), (0, 1)):
        rows = demos.episodes == demos.episode_ids[episode]
        path = demos.latents[rows, agent].tolist()
        by_path[episode] += path_log_probability(domain, demos, episode, agent, path)
    np.testing.assert_allclose(posterior.log_likelihood(demos), by_path, rtol=1e-5, atol=1e-4)
    assert posterior.elbo == pytest.approx(by_path.sum(), rel=1e-5)
    np.testing.assert_array_equal(posterior.decode(demos, use_labels=True), demos.latents)

    # The same with no labels, by enumeration of all paths.
    unlabelled = demos.without_labels()
    decoded = posterior.decode(demos)
    evidence = np.zeros(4)
    for episode, agent in itertools.product(range(4), (0, 1)):
        rows = demos.episodes == demos.episode_ids[episode]
        paths = itertools.product(range(task.num_latents), repeat=int(rows.sum()))
        scores = {
            path: path_log_probability(domain, demos, episode, agent, list(path)) for path in paths
        }
        evidence[episode] += np.logaddexp.reduce(list(scores.values()))
        best = scores[tuple(decoded[rows, agent].tolist())]
        assert best == pytest.approx(max(scores.values()), abs=1e-4)
    np.testing.assert_allclose(posterior.log_likelihood(unlabelled), evidence, rtol=1e-5, atol=1e-4)


# Bad arguments --------------------------------------------------------------------------------


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_policy_whose_row_is_no_probability_vector_is_refused(domain):
    task = task_on(domain, "tiny")
    for bad in ([np.nan] * 6, [0.0] * 6, [-0.5, 1.5, 0, 0, 0, 0], [0.5] * 6):
        policies = {agent: policy.copy() for agent, policy in task.policies().items()}
        policies["rob"][7, 2] = bad
        with pytest.raises(ValueError, match="rob's row of state 7, latent 2 is not a probability"):
            task.simulate(2, policies=policies)


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_value_out_of_range_is_named_by_agent_and_row(domain):
    task = task_on(domain, "tiny")
    states = [task.start_state] * 3
    with pytest.raises(ValueError, match=r"actions of rob: 6 in row 2; allowed are 0..5"):
        task.transition(states, [[0, 0], [1, 1], [2, 6]])
    with pytest.raises(ValueError, match=r"latents of alice: -1 in row 1; allowed are 0..3"):
        task.suboptimal(states, [[0, 0], [-1, 1], [2, 2]])
    with pytest.raises(ValueError, match=r"states: .* in row 0"):
        task.decode_states([task.num_states])


@pytest.mark.parametrize("make", [btil.domains.movers, btil.domains.cleanup])
def test_what_is_no_text_is_no_map_and_the_same_map_is_the_same_task(make):
    with pytest.raises(ValueError, match="a name or a drawing, got list"):
        read_map(["A 0", "R G"])
    assert make("A 0\nR G") is make("  A  0\n  R  G\n")


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_long_limit_on_steps_costs_nothing_and_changes_nothing(domain):
    task = task_on(domain, "tiny")
    # All chance drawn beforehand would take 400 GB.
    long = task.simulate(5, seed=2, max_steps=2 * 10**9)
    assert long == task.simulate(5, seed=2, max_steps=int(long.episode_lengths.max()))


@pytest.mark.parametrize("domain", DOMAINS)
def test_a_policy_of_nobody_is_refused(domain):
    task = task_on(domain, "tiny")
    with pytest.raises(ValueError, match="unknown agent 'bob'; the agents are alice, rob"):
        task.simulate(1, policies={**task.policies(), "bob": task.policies()["rob"]})
