"""Overcooked: the carried trials, the intent rule, the derived variables, and what is refused."""

from collections import deque
from importlib.resources import files

import numpy as np
import pytest

import btil
from btil.analysis import hamming_distance
from btil.domains import overcooked
from btil.models.team import bind

UP, DOWN, RIGHT, LEFT, STAY, INTERACT = range(6)
NOTHING, ONION, DISH, SOUP = range(4)
OFFSETS = ((0, -1), (0, 1), (1, 0), (-1, 0))

TWO_POTS = ("XXPPXX", "O    S", "X    X", "XXDXXX")
ONE_POT = ("XXPX", "O  S", "XDXX")


def _data():
    return files("btil.domains") / "data"


@pytest.fixture(scope="module")
def carried():
    with (_data() / "overcooked_human.npz").open("rb") as file:
        archive = np.load(file, allow_pickle=False)
        return {name: archive[name] for name in archive.files}


def _columns(rows, layout_names=("two", "one"), grids=(TWO_POTS, ONE_POT)):
    """A table from rows of {column: value}; what a row leaves out is a player standing still."""
    default = dict.fromkeys(overcooked._COLUMNS, 0)
    default |= {"p0_x": 1, "p0_y": 1, "p1_x": 2, "p1_y": 1, "p0_action": STAY, "p1_action": STAY}
    columns = {
        name: np.array([(default | row)[name] for row in rows], np.int16) for name in default
    }
    columns["layout_names"] = np.array(layout_names)
    for name, grid in zip(layout_names, grids, strict=True):
        columns[f"grid_{name}"] = np.array(grid)
    return columns


def _walk(held_and_cells, trial=0, player=1, **more):
    """Rows of a trial, of what one player holds, where he stands and where he looks."""
    return [
        {
            "trial": trial,
            "step": t,
            f"p{player}_held": held,
            f"p{player}_x": x,
            f"p{player}_y": y,
            f"p{player}_dir": heading,
        }
        | more
        for t, (held, x, y, heading) in enumerate(held_and_cells)
    ]


def _write(tmp_path, columns):
    path = tmp_path / "kitchen table.npz"
    np.savez(path, **columns)
    return path


# The carried trials ---------------------------------------------------------------------------

TRIALS_AND_STEPS = {
    "asymmetric_advantages": (9, 10768, 4, 4816),
    "coordination_ring": (8, 9619, 4, 4816),
    "cramped_room": (8, 9564, 4, 4815),
    "random0": (6, 7151, 3, 3612),
    "random3": (8, 9627, 4, 4744),
}


@pytest.mark.parametrize("layout", overcooked.LAYOUTS)
def test_carried_trials(layout, carried):
    train, test = (overcooked.load(layout, split=split) for split in ("train", "test"))
    both = overcooked.load(layout, split=None)
    assert (train.num_episodes, train.num_steps) == TRIALS_AND_STEPS[layout][:2]
    assert (test.num_episodes, test.num_steps) == TRIALS_AND_STEPS[layout][2:]
    assert both.num_steps == train.num_steps + test.num_steps
    assert train.agents == ("player_0", "player_1")
    assert train.num_actions == train.num_latents == (6, 6)
    assert train.num_states == test.num_states == both.num_states
    rows = carried["layout"] == list(carried["layout_names"]).index(layout)
    np.testing.assert_array_equal(both.episodes, carried["trial"][rows])
    for i in range(2):
        np.testing.assert_array_equal(both.actions[:, i], carried[f"p{i}_action"][rows])
        np.testing.assert_array_equal(
            both.state_variables[f"player_{i}_held"], carried[f"p{i}_held"][rows]
        )


def test_all_steps_of_the_table_are_loaded():
    assert overcooked.load("random0", split="train").num_steps == 7151
    assert sum(train + test for _, train, _, test in TRIALS_AND_STEPS.values()) == 69_532


@pytest.mark.parametrize("layout", overcooked.LAYOUTS)
def test_intents_agree_with_the_rule_step_by_step(layout, carried):
    demos = overcooked.load(layout, split=None)
    rows = np.flatnonzero(carried["layout"] == list(carried["layout_names"]).index(layout))
    grid = carried[f"grid_{layout}"]
    for i in range(2):
        x, y, heading, held = (carried[f"p{i}_{name}"][rows] for name in ("x", "y", "dir", "held"))
        trial = carried["trial"][rows]
        expected = np.full(len(rows), -1)
        upcoming = -1
        for t in range(len(rows) - 1, -1, -1):
            if t == len(rows) - 1 or trial[t + 1] != trial[t]:
                upcoming = -1
            elif held[t] != held[t + 1]:
                dx, dy = OFFSETS[heading[t]]
                cell = grid[y[t] + dy][x[t] + dx]
                if cell == "X":
                    upcoming = 5
                else:
                    cell_and_held = (cell, int(held[t]))
                    upcoming = {
                        ("O", NOTHING): 0,
                        ("P", ONION): 1,
                        ("D", NOTHING): 2,
                        ("P", DISH): 3,
                        ("S", SOUP): 4,
                    }[cell_and_held]
            expected[t] = upcoming
        np.testing.assert_array_equal(demos.latents[:, i], expected)


@pytest.mark.parametrize("layout", overcooked.LAYOUTS)
def test_guessing_the_most_frequent_intent_is_a_poor_baseline(layout):
    train, test = (overcooked.load(layout, split=split) for split in ("train", "test"))
    errors = []
    for i in range(2):
        known, truth = train.latents[:, i], test.latents[:, i]
        most_frequent = np.bincount(known[known >= 0]).argmax()
        errors.append((truth[truth >= 0] != most_frequent).mean())
    assert 0.4 < np.mean(errors) < 0.72


def test_carried_data_has_its_licence_and_no_pickle(carried):
    licence = (_data() / "OVERCOOKED_LICENSE").read_text()
    assert "MIT License" in licence
    assert "Copyright (c) 2019 Center for Human-Compatible AI" in licence
    readme = (_data() / "README.md").read_text()
    assert "overcooked-ai` 1.1.0" in readme
    assert "NeurIPS 2019" in readme
    assert set(overcooked._COLUMNS) <= set(carried)
    assert all(array.dtype.kind in "iU" for array in carried.values())


# The intent rule on small tables --------------------------------------------------------------

EVERY_KIND = [
    # held before the event, x, y, heading -> the event at this step
    (NOTHING, 1, 1, LEFT),  # take onion
    (ONION, 2, 1, UP),  # fill pot
    (NOTHING, 2, 2, RIGHT),  # no event
    (NOTHING, 2, 2, DOWN),  # take dish
    (DISH, 2, 1, UP),  # take soup
    (SOUP, 1, 2, LEFT),  # use counter: put
    (NOTHING, 1, 2, LEFT),  # use counter: take
    (SOUP, 4, 1, RIGHT),  # serve
    (NOTHING, 4, 1, RIGHT),  # nothing comes any more
    (NOTHING, 4, 1, RIGHT),
]
INTENTS_OF_EVERY_KIND = [0, 1, 2, 2, 3, 5, 5, 4, -1, -1]


@pytest.mark.parametrize("player", [0, 1])
def test_every_kind_of_event(tmp_path, player):
    away = {f"p{1 - player}_x": 3, f"p{1 - player}_y": 2}
    path = _write(tmp_path, _columns(_walk(EVERY_KIND, player=player, **away)))
    demos = overcooked.from_table(path, "two")
    assert demos.latents[:, player].tolist() == INTENTS_OF_EVERY_KIND
    assert (demos.latents[:, 1 - player] == -1).all()
    name = f"player_{player}"
    assert demos.latent_names[name] == overcooked.INTENTS


def test_events_do_not_cross_trials(tmp_path):
    """Glued, the onion in hand at the start of the second trial would be an event of the first."""
    first = _walk([(NOTHING, 1, 2, LEFT)] * 3, trial=4)
    second = _walk([(ONION, 1, 2, LEFT), (NOTHING, 1, 2, LEFT)], trial=2)
    demos = overcooked.from_table(_write(tmp_path, _columns(first + second)), "two")
    assert demos.latents[:, 1].tolist() == [-1, -1, -1, 5, -1]
    assert demos.episodes.tolist() == [4, 4, 4, 2, 2]
    last = demos.state_variables["player_1_last_action"]
    assert last.tolist() == [6, STAY, STAY, 6, STAY]


def test_splits_of_a_table(tmp_path):
    rows = _walk([(NOTHING, 2, 2, UP)] * 2, trial=0) + _walk(
        [(NOTHING, 2, 2, UP)] * 3, trial=1, split=1
    )
    path = _write(tmp_path, _columns(rows))
    assert overcooked.from_table(path, "two", split="train").episodes.tolist() == [0, 0]
    assert overcooked.from_table(path, "two", split="test").episodes.tolist() == [1, 1, 1]
    assert overcooked.from_table(path, "two").num_episodes == 2


def test_kitchen_with_one_pot(tmp_path):
    status = [(0, 0), (1, 0), (3, 1), (3, 19), (3, 20), (3, 300)]
    rows = [
        {"layout": 1, "step": t, "p0_dir": UP, "p0_x": 2, "p1_x": 1, "pot0_onions": onions}
        | {"pot0_timer": timer}
        for t, (onions, timer) in enumerate(status)
    ]
    demos = overcooked.from_table(_write(tmp_path, _columns(rows)), "one")
    values = demos.state_variables
    names = demos.state_names
    assert [names["pot0_status"][k] for k in values["pot0_status"]] == [
        *("empty", "filling", "cooking", "cooking", "ready", "ready")
    ]
    assert {names["pot1_status"][k] for k in values["pot1_status"]} == {"none"}
    assert [names["pots"][k] for k in values["pots"]][::3] == ["none, empty", "none, cooking"]
    assert [names["player_0_facing"][k] for k in values["player_0_facing"]] == [
        *("empty pot", "filling pot", "cooking pot", "cooking pot", "ready pot", "ready pot")
    ]


def test_counters_remember_what_was_put_on_them(tmp_path):
    rows = _walk(
        [
            (DISH, 1, 2, LEFT),
            (NOTHING, 1, 2, LEFT),
            (NOTHING, 1, 2, DOWN),
            (NOTHING, 1, 2, LEFT),
            (DISH, 1, 2, LEFT),
        ],
        p0_x=4,
    ) + _walk([(NOTHING, 1, 2, LEFT)], trial=1, p0_x=4)
    demos = overcooked.from_table(_write(tmp_path, _columns(rows)), "two")
    facing = demos.state_variables["player_1_facing"]
    names = demos.state_names["player_1_facing"]
    assert [names[k] for k in facing] == [
        *("counter", "counter with dish", "counter", "counter with dish", "counter", "counter")
    ]
    step = demos.state_variables["player_1_step_to_counter_object"]
    names = demos.state_names["player_1_step_to_counter_object"]
    assert [names[k] for k in step] == [
        *("unreachable", "interact", "left", "interact", "unreachable", "unreachable")
    ]


# Derived variables against a slow, independent reading of the map -------------------------------


def _press(grid, state, heading):
    """Cell and heading after a press of a direction: a move, or a turn where it is blocked."""
    (x, y), _ = state
    dx, dy = OFFSETS[heading]
    free = grid[y + dy][x + dx] not in "XPODS"
    return ((x + dx, y + dy) if free else (x, y)), heading


def _presses_to_face(grid, state):
    """The least number of presses until each cell is faced, by breadth-first search."""
    found, queue, best = {state: 0}, deque([state]), {}
    while queue:
        state = queue.popleft()
        (x, y), heading = state
        best.setdefault((x + OFFSETS[heading][0], y + OFFSETS[heading][1]), found[state])
        for move in range(4):
            following = _press(grid, state, move)
            if following not in found:
                found[following] = found[state] + 1
                queue.append(following)
    return best


@pytest.mark.parametrize("layout", overcooked.LAYOUTS)
def test_derived_variables_agree_with_a_slow_search(layout, carried):
    demos = overcooked.load(layout, split=None)
    rows = np.flatnonzero(carried["layout"] == list(carried["layout_names"]).index(layout))
    grid = [str(row) for row in carried[f"grid_{layout}"]]
    floor = [(x, y) for y, row in enumerate(grid) for x, c in enumerate(row) if c not in "XPODS"]
    pots = [(x, y) for y, row in enumerate(grid) for x, c in enumerate(row) if c == "P"]
    bins = [(0, 0), (1, 1), (2, 2), (3, 4), (5, 7), (8, 10**6)]
    kinds = {"O": "onion dispenser", "D": "dish dispenser", "S": "serving window"}
    kinds_of_things = {
        "onion_dispenser": "O", "dish_dispenser": "D", "pot": "P", "serving_window": "S",
    }  # fmt: skip
    nearest_names = ("onion dispenser", "dish dispenser", "pot", "serving window")

    def text(name, t):
        return demos.state_names[name][demos.state_variables[name][t]]

    def status(k, t):
        onions, timer = (int(carried[f"pot{k}_{name}"][rows[t]]) for name in ("onions", "timer"))
        if onions < 3:
            return "filling" if onions else "empty"
        return "ready" if timer >= 20 else "cooking"

    for t in np.random.default_rng(0).choice(len(rows), size=60, replace=False):
        statuses = [status(k, t) for k in range(len(pots))]
        for i in range(2):
            me = f"player_{i}"
            x, y, heading = (int(carried[f"p{i}_{name}"][rows[t]]) for name in ("x", "y", "dir"))
            other = tuple(int(carried[f"p{1 - i}_{name}"][rows[t]]) for name in "xy")
            assert demos.state_variables[f"{me}_position"][t] == floor.index((x, y))

            ahead = (x + OFFSETS[heading][0], y + OFFSETS[heading][1])
            cell = grid[ahead[1]][ahead[0]]
            if cell == "P":
                assert text(f"{me}_facing", t) == f"{statuses[pots.index(ahead)]} pot"
            elif cell == "X":
                assert text(f"{me}_facing", t).startswith("counter")
            elif ahead == other:
                assert text(f"{me}_facing", t) == "teammate"
            else:
                assert text(f"{me}_facing", t) == kinds.get(cell, "floor")

            state = ((x, y), heading)
            here = _presses_to_face(grid, state)
            after = [_presses_to_face(grid, _press(grid, state, move)) for move in range(4)]
            presses = {}
            for thing in overcooked.THINGS[:6]:
                if thing in kinds_of_things:
                    cells = [c for c in here if grid[c[1]][c[0]] == kinds_of_things[thing]]
                else:
                    reached = {c: statuses[pots.index(c)] for c in here if c in pots}
                    if thing == "pot_to_fill":
                        useful = {k for k, s in enumerate(statuses) if s in ("empty", "filling")}
                    else:
                        cooked = [s for s in ("ready", "cooking") if s in statuses][:1]
                        useful = {k for k, s in enumerate(statuses) if s in cooked}
                    useful = useful or set(range(len(pots)))
                    cells = [c for c in reached if pots.index(c) in useful]
                distance, step = (
                    text(f"{me}_distance_to_{thing}", t),
                    text(f"{me}_step_to_{thing}", t),
                )
                if not cells:
                    assert (distance, step) == ("unreachable", "unreachable")
                    continue
                best = min(here[c] for c in cells)
                presses[thing] = best
                bin_of_best = next(k for k, (low, high) in enumerate(bins) if low <= best <= high)
                assert demos.state_variables[f"{me}_distance_to_{thing}"][t] == bin_of_best
                if best == 0:
                    assert step == "interact"
                else:
                    move = overcooked.ACTIONS.index(step)
                    assert min(after[move][c] for c in cells) == best - 1
            near = [
                (presses[thing], name)
                for thing, name in zip(overcooked.THINGS[:4], nearest_names, strict=True)
                if thing in presses
            ]
            assert text(f"{me}_nearest", t) == min(near, key=lambda pair: pair[0])[1]


@pytest.mark.parametrize("layout", overcooked.LAYOUTS)
def test_counters_rebuilt_from_events_agree_with_the_recorded_counts(layout, carried):
    """An object in front of a player is one of those that the table counts."""
    demos = overcooked.load(layout, split=None)
    values, names = demos.state_variables, demos.state_names
    for thing, column in (("onion", "onions"), ("dish", "dishes"), ("soup", "soups")):
        for me in overcooked.PLAYERS:
            seen = values[f"{me}_facing"] == names[f"{me}_facing"].index(f"counter with {thing}")
            assert (values[f"counter_{column}"][seen] > 0).all()
    none = sum(values[f"counter_{column}"] for column in ("onions", "dishes", "soups")) == 0
    unreachable = names["player_0_step_to_counter_object"].index("unreachable")
    assert (values["player_0_step_to_counter_object"][none] == unreachable).all()


@pytest.mark.parametrize("layout", overcooked.LAYOUTS)
def test_affordance_is_the_event_that_an_interaction_brings_about(layout):
    demos = overcooked.load(layout, split=None)
    values, names = demos.state_variables, demos.state_names
    same_trial = demos.episodes[1:] == demos.episodes[:-1]
    for i, me in enumerate(overcooked.PLAYERS):
        held, affordance = values[f"{me}_held"], values[f"{me}_affordance"]
        event = (held[1:] != held[:-1]) & same_trial
        said = np.array(names[f"{me}_affordance"])[affordance[:-1]]
        happened = np.array(overcooked.INTENTS)[demos.latents[:-1, i]]
        tried = (demos.actions[:-1, i] == INTERACT) & same_trial & (said != "none")
        # The teammate may be quicker, in the same step; that is rare.
        assert (said != happened)[event].sum() <= 2
        assert (tried & ~event).sum() <= 4


@pytest.mark.parametrize("layout", overcooked.LAYOUTS)
def test_situation_is_the_affordance_or_else_the_place(layout):
    demos = overcooked.load(layout, split="test")
    values, names = demos.state_variables, demos.state_names
    for me in overcooked.PLAYERS:
        for t in range(0, demos.num_steps, 37):

            def text(name, t=t, me=me):
                return names[f"{me}_{name}"][values[f"{me}_{name}"][t]]

            where = text("affordance")
            if where == "none":
                x, y = values[f"{me}_x"][t], values[f"{me}_y"][t]
                where = f"at ({x}, {y}) facing {text('heading')}"
            assert text("situation") == f"{where}, holding {text('held')}"


# What is refused ------------------------------------------------------------------------------


def _changed(column, row, value):
    def change(columns):
        columns[column][row] = value

    return change


def _dropped(column):
    def change(columns):
        del columns[column]

    return change


def _replaced(column, make):
    def change(columns):
        columns[column] = make(columns[column])

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_dropped("p1_held"), "lacks p1_held"),
        (_dropped("layout_names"), "lacks layout_names"),
        (_dropped("grid_two"), "lacks grid_two"),
        (_replaced("p0_x", lambda a: a[:-1]), "p0_x has 9 rows where trial has 10"),
        (_replaced("p0_x", lambda a: a + 0.5), "p0_x must hold integers"),
        (_replaced("p0_x", lambda a: a[:, None]), "p0_x must hold integers along one axis"),
        (_changed("split", 2, 2), "split, trial 7, step 2: 2 is out of range; allowed are 0 to 1"),
        (_changed("layout", 3, -1), "layout, trial 7, step 3: -1"),
        (
            _changed("p0_dir", 4, 4),
            "p0_dir, trial 7, step 4: 4 is out of range; allowed are 0 to 3",
        ),
        (_changed("p1_held", 5, 9), "p1_held, trial 7, step 5: 9"),
        (_changed("p1_action", 6, -1), "p1_action, trial 7, step 6: -1"),
        (_changed("pot1_onions", 1, 4), "pot1_onions, trial 7, step 1: 4"),
        (_changed("pot0_timer", 1, -3), "pot0_timer, trial 7, step 1: -3"),
        (_changed("counter_soups", 1, 99), "counter_soups, trial 7, step 1: 99"),
        (_changed("p0_x", 1, 6), "p0_x, trial 7, step 1: 6 is out of range; allowed are 0 to 5"),
        (_changed("p0_y", 1, 0), r"p0_x, p0_y, trial 7, step 1: \(3, 0\) is not floor"),
        (_changed("step", 5, 6), "trial 7: step 6 comes after step 4"),
        (_changed("trial", slice(4, 6), 8), "step 6: trial 7 goes on after another one"),
        (_changed("p1_dir", 0, DOWN), "trial 7, step 0: what player_1 holds changes from nothing"),
        (_replaced("grid_two", lambda a: a[1:]), "none at its border"),
        (_replaced("grid_two", lambda a: np.char.replace(a, "O", "Q")), "unknown cell 'Q'"),
        (_replaced("grid_two", lambda a: np.char.replace(a, "D", "P")), "more than 2 pots"),
        (_replaced("grid_two", lambda a: np.r_[a, ["XX"]]), "of one length"),
    ],
)
def test_bad_tables_are_refused(tmp_path, change, message):
    columns = _columns(_walk(EVERY_KIND, trial=7, p0_x=3, p0_y=2))
    change(columns)
    path = _write(tmp_path, columns)
    with pytest.raises(ValueError, match=message):
        overcooked.from_table(path, "two")


def test_unknown_names_are_refused_with_the_allowed_ones(tmp_path):
    path = _write(tmp_path, _columns(_walk(EVERY_KIND, p0_x=3, p0_y=2)))
    with pytest.raises(ValueError, match="unknown layout 'three'; allowed are two, one"):
        overcooked.from_table(path, "three")
    with pytest.raises(ValueError, match="no rows of layout one"):
        overcooked.from_table(path, "one")
    with pytest.raises(ValueError, match="no rows of layout two, split test"):
        overcooked.from_table(path, "two", split="test")
    with pytest.raises(ValueError, match="split is 'dev'; allowed are 'train', 'test' and None"):
        overcooked.from_table(path, "two", split="dev")
    with pytest.raises(ValueError, match=r"^unknown layout 'cramped'; allowed are .*cramped_room"):
        overcooked.load("cramped")
    with pytest.raises(ValueError, match="cramped_room"):
        overcooked.recommended_model("cramped")


def test_a_second_pot_needs_a_place_on_the_map(tmp_path):
    rows = [{"layout": 1, "step": 0}, {"layout": 1, "step": 1, "pot1_onions": 1}]
    path = _write(tmp_path, _columns(rows))
    with pytest.raises(ValueError, match="pot1_onions, trial 0, step 1: 1 is out of range"):
        overcooked.from_table(path, "one")


def test_files_that_are_no_archive_or_hold_objects_are_refused(tmp_path):
    np.save(tmp_path / "one.npy", np.arange(3))
    with pytest.raises(ValueError, match="not an NPZ archive"):
        overcooked.from_table(tmp_path / "one.npy", "two")
    columns = _columns(_walk(EVERY_KIND, p0_x=3, p0_y=2))
    columns["p0_x"] = columns["p0_x"].astype(object)
    with pytest.raises(ValueError, match="allow_pickle"):
        overcooked.from_table(_write(tmp_path, columns), "two")


# The model ------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", overcooked.LAYOUTS)
def test_recommended_model_fits_the_demonstrations(layout):
    demos = overcooked.load(layout, split="test")
    bound = bind(overcooked.recommended_model(layout), demos)
    assert set(bound.learned) == {"policy", "transition", "initial"}
    for table in bound.tables.values():
        assert table.shape[1:] == ((6,) if table.name == "initial" else (6, 6))
        assert (table.cpt.concentration(table.contexts) > 0).all()


def test_recommended_prior_keeps_an_intent_while_the_holding_stays_the_same():
    demos = overcooked.load("cramped_room", split="test")
    table = bind(overcooked.recommended_model("cramped_room"), demos).tables["transition"]
    before, after = table.contexts.rows[:, 0], table.contexts.rows[:, 1]
    keeps = np.diagonal(table.prior_mean(), axis1=1, axis2=2)
    assert (keeps[before == after] > 0.999).all()
    assert np.allclose(keeps[before != after], 1 / 6)


def test_recommended_model_decodes_held_out_trials_with_a_quarter_of_the_labels():
    train, test = (overcooked.load("cramped_room", split) for split in ("train", "test"))
    some = train.without_labels(np.arange(2, 8))
    posterior = btil.fit(
        overcooked.recommended_model("cramped_room"), some, progress=False, tolerance=1.0
    )
    error = hamming_distance(test, posterior).mean()
    assert error < 0.085


@pytest.mark.parametrize("content", [b"", b"hello", b"PK\x03\x04 and no more"])
def test_a_file_that_is_no_archive_is_refused_by_name(tmp_path, content):
    path = tmp_path / "trials.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"trials\.npz is damaged, or no NPZ archive"):
        overcooked.from_table(path, "cramped_room")
