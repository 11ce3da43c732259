"""Demonstrations: what goes in comes out, and nothing wrong gets in."""

import copy
import inspect
import json
import pickle
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from btil.demonstrations import (
    Demonstrations,
    concatenate,
    read_demonstrations,
    write_demonstrations,
)
from btil.demonstrations.formats.record import parsed_record, record_of

ENDINGS = (".csv", ".parquet", ".npz")


def team(**changes: Any) -> Demonstrations:
    """Two agents of different sizes, two state variables, three episodes of unequal lengths."""
    arguments: dict[str, Any] = {
        "states": {"room": [0, 2, 1, 1, 0, 2], "door": list("oscsos")},
        "actions": {"alice": [0, 1, 2, 2, 1, 0], "bob": ["go", "wait", "go", "go", "wait", "go"]},
        "latents": {
            "alice": [0, -1, 1, -1, -1, 2],
            "bob": ["help", None, "rest", "help", "", "rest"],
        },
        "episodes": [4, 4, 4, 9, 2, 2],
        "num_states": {"room": 5},
        "num_actions": {"alice": 4},
        "num_latents": {"alice": 3},
    }
    return Demonstrations(**(arguments | changes))


# ---------------------------------------------------------------------- construction


def test_columns_sizes_and_episodes():
    demos = team()
    assert (demos.num_steps, demos.num_episodes, demos.num_agents) == (6, 3, 2)
    assert demos.agents == ("alice", "bob")
    assert demos.num_states == {"room": 5, "door": 3}
    assert demos.num_actions == (4, 2)
    assert demos.num_latents == (3, 2)
    assert demos.state_names == {"door": ("c", "o", "s")}
    assert demos.action_names == {"bob": ("go", "wait")}
    assert demos.latent_names == {"bob": ("help", "rest")}
    assert demos.value_names("latent_bob") == ("help", "rest")
    assert demos.value_names("action_alice") == ("0", "1", "2", "3")
    np.testing.assert_array_equal(demos.state_variables["door"], [1, 2, 0, 2, 1, 2])
    np.testing.assert_array_equal(demos.actions.T, [[0, 1, 2, 2, 1, 0], [0, 1, 0, 0, 1, 0]])
    np.testing.assert_array_equal(demos.latents.T, [[0, -1, 1, -1, -1, 2], [0, -1, 1, 0, -1, 1]])
    np.testing.assert_array_equal(demos.episodes, [4, 4, 4, 9, 2, 2])
    np.testing.assert_array_equal(demos.episode_ids, [4, 9, 2])
    np.testing.assert_array_equal(demos.episode_lengths, [3, 1, 2])
    np.testing.assert_array_equal(demos.episode_starts, [0, 3, 4])
    np.testing.assert_array_equal(demos.step_in_episode, [0, 1, 2, 0, 0, 1])
    for array in (demos.states, demos.actions, demos.latents, demos.state_variables["room"]):
        assert array.dtype == np.int64


def test_joint_state_is_row_major():
    demos = team()
    room, door = demos.state_variables.values()
    expected = np.ravel_multi_index((room, door), tuple(demos.num_states.values()))
    np.testing.assert_array_equal(demos.states, expected)


def test_joint_state_that_overflows_is_refused_only_when_asked_for():
    sizes = {"a": 2**32, "b": 2**31}
    largest = {name: [size - 1] for name, size in sizes.items()}
    demos = Demonstrations(largest, [0], num_states=sizes, num_latents=1)
    assert demos.states.tolist() == [2**63 - 1]
    larger = Demonstrations(largest, [0], num_states={"a": 2**32, "b": 2**31 + 1}, num_latents=1)
    assert larger.summary().num_visited_states == 1
    assert "visited states  1 of 10^19" in str(larger.summary())
    assert "visited states  1 of 9,223,372,036,854,775,808" not in str(demos.summary())
    below = Demonstrations({"a": [0]}, [0], num_states={"a": 10**15 - 1}, num_latents=1)
    assert "visited states  1 of 999,999,999,999,999" in str(below.summary())
    with pytest.raises(ValueError, match="overflow"):
        _ = larger.states


def test_the_three_forms_of_states_agree():
    columns = np.array([[0, 1], [1, 2], [1, 0]])
    named = Demonstrations(columns, [0, 1, 0], num_latents=2, state_names=["x", "y"])
    mapped = Demonstrations({"x": [0, 1, 1], "y": [1, 2, 0]}, [0, 1, 0], num_latents=2)
    frame = pd.DataFrame(columns, columns=["x", "y"], index=[9, 3, 5])
    assert named == mapped == Demonstrations(frame, [0, 1, 0], num_latents=2)
    texts = {"x": ["low", "high"], "y": None}
    with_texts = Demonstrations(columns, [0, 1, 0], num_latents=2, state_names=texts)
    assert with_texts.state_names == {"x": ("low", "high")}
    assert list(with_texts.num_states) == ["x", "y"]
    single = Demonstrations([0, 1, 1], [0, 1, 0], num_latents=2, state_names=["low", "high"])
    assert single.state_names == {"state": ("low", "high")}


def test_agents_are_named_by_position_by_mapping_or_by_argument():
    actions = [[0, 1], [1, 0]]
    plain = Demonstrations([0, 1], actions, num_latents=[2, 3])
    assert plain.agents == ("agent_0", "agent_1")
    assert plain.num_latents == (2, 3)
    named = Demonstrations([0, 1], actions, agents=["a", "b"], num_latents=2)
    columns = {"b": [1, 0], "a": [0, 1]}
    assert named == Demonstrations([0, 1], columns, agents=["a", "b"], num_latents=2)
    assert Demonstrations([0, 1], columns, num_latents=2).agents == ("b", "a")


def test_declared_sizes_win_and_names_declare_sizes():
    demos = Demonstrations(
        [0, 1], [0, 1], [0, -1], num_states=7, num_actions=(3,), latent_names=["a", "b", "c"]
    )
    assert (demos.num_states, demos.num_actions, demos.num_latents) == ({"state": 7}, (3,), (3,))
    assert Demonstrations([0, 4], [0, 1], [0, 0]).num_states == {"state": 5}
    assert Demonstrations([0], [0], [0]).num_latents == (1,)


def test_texts_go_through_declared_names():
    demos = Demonstrations(
        [0, 0, 0],
        [["stay"], ["go"], ["go"]],
        [["wait"], [None], ["wait"]],
        action_names=["go", "jump", "stay"],
        latent_names={"agent_0": ["help", "wait"]},
    )
    assert demos.actions.ravel().tolist() == [2, 0, 0]
    assert demos.latents.ravel().tolist() == [1, -1, 1]
    assert demos.num_actions == (3,)


@pytest.mark.parametrize(
    "labels",
    [
        [1, -1, 0],
        np.array([1, -1, 0], np.int8),
        np.array([1.0, np.nan, 0.0], np.float16),
        np.array([1.0, -1.0, 0.0]),
        [1, None, 0],
        [1, "", 0],
        ["1", "", "0"],
        ["1.0", "", "0.0"],
        ["1", "-1", "0"],
        np.array([1, pd.NA, 0.0], object),
        np.ma.MaskedArray([1, 99, 0], [False, True, False]),
        np.ma.MaskedArray([1.0, 1e20, 0.0], [False, True, False]),
        np.ma.MaskedArray(["1", "x", "0"], [False, True, False]),
        pd.Series([1, None, 0], dtype="Int64", index=[5, 5, 1]),
        pd.Series([1, None, 0]),
        pd.Series(["1", None, "0"]),
        pd.Categorical(["1", None, "0"]),
        pa.array([1, None, 0]),
        jnp.array([1, -1, 0]),
        [np.True_, None, np.False_],
    ],
    ids=lambda labels: type(labels).__name__,
)
def test_every_spelling_of_a_missing_label(labels: Any):
    demos = Demonstrations([0, 0, 0], [0, 1, 0], {"agent_0": labels})
    assert demos.latents.ravel().tolist() == [1, -1, 0]
    assert demos.num_latents == (2,)
    assert demos.latent_names == {}


@pytest.mark.parametrize("missing", ["", " ", "-1", " -1.0 ", -1, None, np.nan, pd.NA])
def test_every_spelling_of_a_missing_label_among_texts(missing: Any):
    labels = np.array(["wait", missing, "help"], object)
    demos = Demonstrations([0, 0, 0], [0, 1, 0], labels)
    assert demos.latents.ravel().tolist() == [1, -1, 0]
    assert demos.latent_names == {"agent_0": ("help", "wait")}


def test_a_name_may_spell_like_a_missing_text_when_it_is_declared():
    demos = Demonstrations([0, 0], ["None", "go"], num_latents=1, action_names=["go", "None"])
    assert demos.actions.ravel().tolist() == [1, 0]
    with pytest.raises(ValueError, match="action_agent_0: episode 0, step 0: a missing value"):
        Demonstrations([0, 0], ["None", "go"], num_latents=1)


@pytest.mark.parametrize("kind", [np.uint8, np.int32, np.uint64, np.float32, bool, object, str])
def test_kinds_of_numbers(kind: Any):
    states = np.array([0, 1, 1]).astype(kind)
    demos = Demonstrations(
        np.array(["0", "1", "1"]) if kind is str else states, [0, 1, 0], [0, 0, 0]
    )
    assert demos.states.tolist() == [0, 1, 1]


# ---------------------------------------------------------------------- immutability


def test_inputs_are_copied_and_nothing_can_be_written():
    states, latents = np.array([0, 1, 0]), np.array([[0], [-1], [1]])
    demos = Demonstrations(states, np.array([[0], [1], [0]]), latents)
    states[:], latents[:] = 9, 9
    assert demos.states.tolist() == [0, 1, 0]
    assert demos.latents.ravel().tolist() == [0, -1, 1]
    for name in ("states", "actions", "latents", "episodes", "episode_starts", "step_in_episode"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(demos, name)[0] = 1
        with pytest.raises(AttributeError, match="immutable"):
            setattr(demos, name, None)
    with pytest.raises(AttributeError, match="immutable"):
        del demos.actions
    demos.state_variables.clear()
    demos.num_states["state"] = 99
    assert demos.num_states == {"state": 2}


def test_equality_is_of_content_names_and_sizes():
    demos = team()
    assert demos == team() == copy.deepcopy(demos) == pickle.loads(pickle.dumps(demos))
    assert demos != "demos"
    for changes in (
        {"num_states": {"room": 6}},
        {"num_latents": {"alice": 4}},
        {"episodes": ["4", "4", "4", "9", "2", "2"]},
        {"episodes": [4, 4, 4, 9, 9, 9]},
        {"latents": None, "num_latents": [3, 2]},
        {"action_names": {"alice": ["n", "e", "s", "w"]}},
        {"agents": ["bob", "alice"]},
    ):
        assert demos != team(**changes)


def test_short_texts_for_a_person():
    assert repr(team()) == (
        "Demonstrations(3 episodes, 6 steps, 2 state variables, agents: alice, bob)"
    )
    summary = team().summary()
    assert (summary.min_length, summary.median_length, summary.max_length) == (1, 2, 3)
    assert summary.share_labelled == (3 / 6, 4 / 6)
    rows = zip(*(values.tolist() for values in team().state_variables.values()), strict=True)
    assert summary.num_visited_states == len(set(rows))
    text = str(summary)
    for part in ("episodes        3", "room (5), door (3)", "4 of 15", "alice", "50.0%", "66.7%"):
        assert part in text
    # One under the other, however long the names are.
    wide = Demonstrations([0], {"an": [0], "alexandra": [0]}, num_latents=2).summary()
    ends = {line.rindex(" 2 ") for line in str(wide).splitlines()[-2:]}
    assert len(ends) == 1


def test_visited_states_are_those_that_differ():
    generator = np.random.default_rng(1)
    for sizes in ((2, 3, 2), (7, 2), (4, 1, 3, 2)):
        states = {f"v{k}": generator.integers(0, size, 30) for k, size in enumerate(sizes)}
        demos = Demonstrations(states, [0] * 30, num_actions=1, num_latents=1)
        different = set(zip(*(v.tolist() for v in states.values()), strict=True))
        assert 1 < len(different) < 30
        assert demos.summary().num_visited_states == len(different)


def test_a_summary_of_an_even_number_of_episodes():
    demos = Demonstrations(
        [0] * 14, [0] * 14, episodes=np.repeat([3, 1, 2, 0], [5, 2, 6, 1]), num_latents=1
    )
    summary = demos.summary()
    assert (summary.num_episodes, summary.num_steps) == (4, 14)
    assert (summary.min_length, summary.median_length, summary.max_length) == (1, 3.5, 6)
    assert "episode length  1 to 6, median 3.5" in str(summary)


# ---------------------------------------------------------------------- what is refused

THREE: dict[str, Any] = {"states": [0, 1, 2], "actions": [0, 1, 0], "num_latents": 2}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "half action": ({"actions": [0, 1.5, 0]}, "action_agent_0: episode 0, step 1: 1.5"),
    "nan action": ({"actions": [0, np.nan, 0]}, "action_agent_0: episode 0, step 1: a missing"),
    "none action": ({"actions": [0, 1, None]}, "action_agent_0: episode 0, step 2: a missing"),
    "masked action": (
        {"actions": np.ma.MaskedArray([0, 1, 0], [0, 0, 1])},
        "action_agent_0: episode 0, step 2: a missing",
    ),
    "blank action": (
        {"actions": ["a", "", "b"]},
        "action_agent_0: episode 0, step 1: a missing .*; expected a text, such as 'a'; ",
    ),
    "negative action": ({"actions": [0, -1, 0]}, "action_agent_0: episode 0, step 1: -1"),
    "large action": (
        {"actions": [0, 3, 0], "num_actions": 2, "episodes": [8, 9, 9]},
        "action_agent_0: episode 9, step 0: 3 is not allowed; expected a whole number from 0 to 1",
    ),
    "unknown text": (
        {"actions": ["a", "b", "c"], "action_names": ["a", "b"], "episodes": ["p", "q", "q"]},
        "action_agent_0: episode 'q', step 1: 'c' is not allowed; expected .* 'a', 'b'",
    ),
    "nan cast to a whole action": (
        {"actions": np.array([0, 1, -(2**63)])},
        "action_agent_0: episode 0, step 2: -9223372036854775808",
    ),
    "nan cast to a whole action, where some were not seen": (
        {"actions": np.array([0, -1, -(2**63)]), "missing": "allow"},
        "action_agent_0: episode 0, step 2: -9223372036854775808",
    ),
    "nan cast to a whole label": (
        {"latents": np.array([0, -1, -(2**63)])},
        "latent_agent_0: episode 0, step 2: -9223372036854775808",
    ),
    "nan cast to a whole episode": (
        {"episodes": np.array([0, 0, -(2**63)])},
        "episode: row 2 .*: -9223372036854775808",
    ),
    "nan state": ({"states": [0.0, np.nan, 1.0]}, "state: episode 0, step 1: a missing"),
    "infinite state": ({"states": [0.0, np.inf, 1.0]}, "state: episode 0, step 1: inf"),
    "infinite text": ({"states": ["0", "inf", "1"]}, "state: episode 0, step 1: 'inf'"),
    "huge float": ({"states": [0, 1e300, 1]}, "state: episode 0, step 1: 1e\\+300"),
    "inexact float": ({"states": [0, 2.0**53, 1]}, "state: episode 0, step 1: 9007199254740992.0"),
    "huge int": ({"states": [0, 10**30, 1]}, "state: episode 0, step 1: 1000000"),
    "huge uint": ({"states": np.array([0, 2**63, 1], np.uint64)}, "step 1: 9223372036854775808"),
    "huge text": ({"states": ["0", "9" * 40, "1"]}, "state: episode 0, step 1: '999"),
    "complex state": ({"states": [0, 1j, 1]}, "state: episode 0, step 0"),
    "date state": ({"states": np.array(["2020-01-01"] * 3, "M8[D]")}, "state: episode 0, step 0"),
    "list state": ({"states": np.array([[0], [1, 2], "x"], object)}, "state: one number or text"),
    "ragged states": ({"states": [[0], [1, 2], [0]]}, "states: cannot be read as an array"),
    "number among texts": ({"states": np.array(["a", 1, "b"], object)}, "state: episode 0, step 0"),
    "control character": ({"states": ["a", "b\nc", "d"]}, "state: .*control characters"),
    "label out of range": ({"latents": [0, 2, -1]}, "latent_agent_0: episode 0, step 1: 2"),
    "label below -1": ({"latents": [0, -2, -1]}, "latent_agent_0: episode 0, step 1: -2"),
    "half label": ({"latents": [0.5, 0, 1]}, "latent_agent_0: episode 0, step 0: 0.5"),
    "infinite label": ({"latents": [np.inf, 0, 1]}, "latent_agent_0: episode 0, step 0: inf"),
    "unlabelled": ({"num_latents": None}, "latent_agent_0: no step .* num_latents"),
    "too few texts": ({"latents": ["a", "b", ""], "num_latents": 3}, "latent_agent_0: 2 texts"),
    "numeral names": (
        {"actions": ["1", "2", "0"], "action_names": ["1", "2", "3"]},
        "action_agent_0: episode 0, step 2: '0'",
    ),
    "names for another size": (
        {"latent_names": ["a", "b", "c"]},
        "latent_agent_0: 3 names, but the declared size is 2",
    ),
    "no steps": ({"states": [], "actions": []}, "no steps"),
    "no rows": ({"states": [], "actions": np.zeros((0, 1))}, "no steps"),
    "no agent": ({"actions": np.zeros((3, 0))}, "no agent"),
    "no agent mapped": ({"actions": {}}, "no agent"),
    "no state variable": ({"states": {}}, "no state variable"),
    "unnamed variables": ({"states": np.zeros((3, 2))}, "state_names must name"),
    "too few variables": ({"states": np.zeros((3, 2)), "state_names": ["x"]}, "2 different names"),
    "lengths": ({"actions": [0, 1]}, "same number of steps; found: state 3, action_agent_0 2"),
    "number of ids": ({"episodes": [1, 1]}, "same number of steps; .* episode 2"),
    "dimensions": ({"actions": np.zeros((3, 1, 1))}, r"\(steps, agents\) expected"),
    "scalar": ({"states": 3}, "states: "),
    "latents of two": ({"latents": np.zeros((3, 2))}, r"\(steps, agents\) with 1 agent"),
    "latents of a stranger": ({"latents": {"eve": [0, 0, 0]}}, "latent_'eve': .*'agent_0'"),
    "returning episode": ({"episodes": [1, 2, 1]}, r"episode: row 2 .*: episode 1 returns"),
    "returning text": ({"episodes": ["a", "b", "a"]}, r"episode: row 2 .*: episode 'a' returns"),
    "nan episode": ({"episodes": [1, np.nan, 2]}, "episode: row 1"),
    "none episode": ({"episodes": [1, None, 2]}, "episode: row 1"),
    "blank episode": ({"episodes": ["a", "", "b"]}, "episode: row 1"),
    "half episode": ({"episodes": [1, 1.5, 2]}, "episode: row 1.*1.5"),
    "boolean episode": ({"episodes": [True, False, False]}, "episode: row 0"),
    "mixed episodes": ({"episodes": np.array([1, "a", "a"], object)}, "episode: row 1"),
    "agents as a text": ({"agents": "a"}, "agents: a sequence"),
    "too many agents": ({"agents": ["a", "b"]}, "actions: has 1 column"),
    "other agents": ({"actions": {"a": [0, 1, 0]}, "agents": ["b"]}, "agents is 'b'"),
    "blank agent": ({"agents": [" "]}, "agent: a text"),
    "numbered agent": ({"actions": {0: [0, 1, 0]}}, "agent: a text"),
    "size zero": ({"num_actions": 0}, "num_actions: agent_0: a whole number from 1"),
    "size true": ({"num_latents": True}, "num_latents: agent_0: a whole number from 1"),
    "sizes of two": ({"num_actions": [2, 2]}, "num_actions: one number for each"),
    "size of a stranger": ({"num_actions": {"eve": 2}}, "num_actions: there is no 'eve'"),
    "one size for two variables": (
        {"states": {"x": [0, 0, 0], "y": [0, 0, 0]}, "num_states": 3},
        "num_states: a mapping expected",
    ),
    "one list for two variables": (
        {"states": {"x": [0, 0, 0], "y": [0, 0, 0]}, "state_names": ["a", "b"]},
        "state_names: a mapping expected",
    ),
    "names as a text": ({"action_names": "ab"}, "action_names: agent_0: a sequence of texts"),
    "name twice": ({"action_names": ["a", "a"]}, "each name may occur once"),
    "blank name": ({"action_names": ["a", ""]}, "action_names: agent_0: a text"),
    "padded name": ({"action_names": ["a ", "b"]}, "action_names: agent_0: a text"),
    "surrogate name": ({"action_names": ["\ud800", "b"]}, "action_names: agent_0: a text"),
    "label called -1": ({"latent_names": ["-1", "b"]}, "-1 means unknown"),
    "variable called step": ({"states": {"step": [0, 1, 2]}}, "another meaning"),
    "variable called action": ({"states": {"action_x": [0, 1, 2]}}, "another meaning"),
    "variable of the next step": (
        {"states": {"x": [0, 1, 2], "next_x": [1, 2, 2]}},
        "another meaning",
    ),
    "variable of the step before": (
        {"states": {"x": [0, 1, 2], "previous_x": [1, 2, 2]}},
        "another meaning",
    ),
    "variable of the action before": (
        {"states": {"previous_action_agent_0": [0, 1, 2]}},
        "another meaning",
    ),
    "no actions": ({"actions": None}, "actions: None; .* give continuous columns"),
    "weights of another": (
        {"actions": {"a": [0, 1, 0], "a[1]": [0, 1, 0]}, "num_actions": None},
        r"agent 'a\[1\]': .*weights of a latent of 'a'",
    ),
    **{
        f"measured {name}": (
            {"continuous": {name: [0.5, 1.5, 2.5]}},
            "continuous .*another meaning",
        )
        for name in (
            "episode",
            "step",
            "reward",
            "action_agent_0",
            "latent_agent_0[1]",
            "present_agent_0",
            "reward_agent_0",
        )
    },
    "row numbers": ({"states": {"Unnamed: 0": [0, 1, 2]}}, "row numbers"),
    "row numbers of Arrow": ({"states": {"__index_level_0__": [0, 1, 2]}}, "row numbers"),
    "no name": ({"states": {"": [0, 1, 2]}}, "row numbers"),
    "numbered variable": ({"states": {3: [0, 1, 2]}}, "state variable: a text"),
    "all variables among others": (
        {"states": {"state": [0, 1, 2], "y": [0, 0, 0]}},
        "state variable 'state': this name has another meaning",
    ),
    "variable called reward": ({"states": {"reward_agent_0": [0, 1, 2]}}, "another meaning"),
    "cubes of states": ({"states": np.zeros((3, 1, 1))}, r"\(steps, variables\) expected"),
    "variables named by a text": (
        {"states": np.zeros((3, 2)), "state_names": "xy"},
        "state_names must name",
    ),
    "a variable named twice": (
        {"states": np.zeros((3, 2)), "state_names": ["x", "x"]},
        "2 different names",
    ),
    "an agent named twice": (
        {"actions": np.zeros((3, 2)), "agents": ["a", "a"]},
        "actions: has 2 columns, one for each agent; agents is 'a', 'a'",
    ),
    "agents mapped twice": (
        {"actions": {"a": [0, 1, 0]}, "agents": ["a", "a"]},
        "actions: has 'a', but agents is 'a', 'a'",
    ),
    "labels of a matrix": ({"latents": np.zeros((3, 1, 1))}, r"\(steps, agents\) with 1 agent"),
    "matrix of ids": ({"episodes": np.zeros((3, 1))}, "episodes: one id per step expected, got sh"),
    "columns that are matrices": ({"states": {"x": np.zeros((3, 1))}}, "x: one value per step"),
    "no names": ({"action_names": []}, "action_names: agent_0: there is no name"),
    "names of a stranger": ({"latent_names": {"eve": ["a"]}}, "latent_names: there is no 'eve'"),
}


def test_arguments_come_in_the_order_that_is_documented():
    order = list(inspect.signature(Demonstrations).parameters)
    sizes_and_names = ["num_states", "num_actions", "num_latents", "state_names", "action_names"]
    assert order[:5] == ["states", "actions", "latents", "episodes", "agents"]
    assert order[5:11] == [*sizes_and_names, "latent_names"]
    assert order[11:16] == ["latent_weights", "present", "rewards", "continuous", "missing"]
    assert order[16:] == ["unknown_labels"]


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str):
    changes, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        Demonstrations(**(THREE | changes))


def test_the_place_of_an_error_is_the_step_within_the_episode():
    actions = np.zeros(100, int)
    actions[57] = -3
    episodes = np.repeat([3, 1, 2], [50, 5, 45])
    with pytest.raises(ValueError, match="action_agent_0: episode 2, step 2: -3 is not allowed"):
        Demonstrations(np.zeros(100), actions, np.zeros(100), episodes)


def test_names_are_taken_only_where_they_mean_something_else():
    names = ["next_x", "previous_y", "stepper", "episodes", "rewards", "latent", "action", "x2"]
    demos = Demonstrations({name: [0, 1] for name in names}, [0, 1], num_latents=1)
    assert list(demos.num_states) == names
    assert list(Demonstrations({"state": [0]}, [0], num_latents=1).num_states) == ["state"]


def test_texts_of_values_and_of_what_is_none():
    demos = team()
    assert [demos.value_text("action_bob", k) for k in (0, 1)] == ["go", "wait"]
    assert demos.value_text("room", 4) == "4"
    found = [demos.value_text("door", k) for k in (-1, -2, -3)]
    assert found == ["unseen", "away", "none before"]
    with pytest.raises(ValueError, match=r"no column 'gate'; the columns are 'room', 'door', 'act"):
        demos.value_text("gate", 0)


def test_value_names_of_an_unknown_column():
    with pytest.raises(ValueError, match=r"no column 'latent_eve'.*'latent_bob'"):
        team().value_names("latent_eve")


# ---------------------------------------------------------------------- parts of demonstrations


def test_a_selection_has_no_more_columns_than_the_whole(tmp_path: Path):
    path = tmp_path / "team.csv"
    for demos in (team(), team(present={"alice": np.ones(6)})):
        columns = []
        for one in (demos, demos.select([1])):
            write_demonstrations(one, path)
            columns.append(list(pd.read_csv(path, skiprows=1)))
        assert columns[0] == columns[1]


def test_select_takes_episodes_in_the_order_asked_for():
    demos = team()
    chosen = demos.select([2, 0])
    assert chosen.episode_ids.tolist() == [2, 4]
    assert chosen.episode_lengths.tolist() == [2, 3]
    rows = [4, 5, 0, 1, 2]
    np.testing.assert_array_equal(chosen.actions, demos.actions[rows])
    np.testing.assert_array_equal(chosen.latents, demos.latents[rows])
    np.testing.assert_array_equal(chosen.states, demos.states[rows])
    assert chosen.num_states == demos.num_states
    assert chosen.latent_names == demos.latent_names
    assert demos.select([True, False, True]) == demos.select(np.array([0, 2]))
    assert demos.select(1).num_steps == 1
    assert demos.select(range(3)) == demos


@pytest.mark.parametrize(
    ("episodes", "message"),
    [
        ([], "nothing is selected"),
        ([False, False, False], "nothing is selected"),
        ([True, False], "mask"),
        ([3], "0 to 2.*got 3"),
        ([-1], "0 to 2.*got -1"),
        ([1, 1], "given twice"),
        ([0.0], "indices"),
        ([[0]], "indices"),
        (["4"], "indices"),
        (None, "indices"),
    ],
)
def test_selections_that_are_refused(episodes: Any, message: str):
    with pytest.raises(ValueError, match=f"episodes: .*{message}"):
        team().select(episodes)


def test_episodes_are_selected_by_ids_that_are_texts():
    demos = team().replace(episodes=["b", "b", "b", "c", "a", "a"])
    assert demos.select(["a", "b"]) == demos.select([2, 0])
    assert demos.select("c") == demos.select([1])
    assert demos.without_labels(["c"]) == demos.without_labels([1])
    with pytest.raises(ValueError, match="there is no episode 'd'; the ids are 'b', 'c', 'a'"):
        demos.select(["a", "d"])
    with pytest.raises(ValueError, match="0 is given twice"):
        demos.select(["b", "b"])


def test_without_labels():
    demos = team()
    bare = demos.without_labels()
    assert (bare.latents == -1).all()
    assert (bare.num_latents, bare.latent_names) == (demos.num_latents, demos.latent_names)
    for chosen in ([0, 2], [True, False, True]):
        part = demos.without_labels(chosen)
        np.testing.assert_array_equal(part.latents[3], demos.latents[3])
        assert (np.delete(part.latents, 3, axis=0) == -1).all()
    assert demos.without_labels([]) == demos
    with pytest.raises(ValueError, match="got 7"):
        demos.without_labels([7])


def test_concatenate_undoes_select():
    demos = team()
    assert concatenate([demos.select([0]), demos.select([1, 2])]) == demos
    assert concatenate([demos]) == demos


def test_concatenate_keeps_clashing_episodes_apart():
    demos = team()
    twice = concatenate([demos, demos])
    assert twice.episode_ids.tolist() == [0, 1, 2, 3, 4, 5]
    assert twice.episode_lengths.tolist() == [3, 1, 2] * 2
    mixed = concatenate([demos, team(episodes=list("aaabcc"))])
    assert mixed.episode_ids.tolist() == [0, 1, 2, 3, 4, 5]
    texts = concatenate([team(episodes=list("xxxyzz")), team(episodes=list("aaabcc"))])
    assert texts.episode_ids.tolist() == list("xyzabc")


def test_concatenate_takes_the_largest_sizes_wherever_they_are():
    large = Demonstrations([0], [0], num_states=5, num_actions=4, num_latents=3)
    small = Demonstrations([0], [0], num_states=2, num_actions=2, num_latents=2)
    for parts in ([large, small], [small, large]):
        joined = concatenate(parts)
        assert joined.num_states == {"state": 5}
        assert (joined.num_actions, joined.num_latents) == ((4,), (3,))


def test_concatenate_wants_the_same_rewards_and_measures():
    plain = Demonstrations([0, 1], [0, 1], num_latents=2)
    rewarded = plain.replace(rewards=[1.5, 2])
    own = plain.replace(rewards=[[1.5], [2]])
    measured = plain.replace(continuous={"v": [0.5, np.nan]})
    for parts, message in (
        ([rewarded, plain], "part 1 has the rewards of nothing, part 0 has 'the team'"),
        ([rewarded, rewarded, own], "part 2 has the rewards of 'agent_0', part 0 has 'the team'"),
        ([plain, own], "part 1 has the rewards of 'agent_0', part 0 has nothing"),
        ([measured, plain], "part 1 has the continuous columns nothing, part 0 has 'v'"),
    ):
        with pytest.raises(ValueError, match=message):
            concatenate(parts)
    both = concatenate([rewarded, plain.replace(rewards=[3, 4])])
    assert both.rewards is not None
    assert both.rewards.tolist() == [1.5, 2, 3, 4]
    twice = concatenate([own, own]).rewards
    assert twice is not None
    assert twice.tolist() == [[1.5], [2], [1.5], [2]]
    values = concatenate([measured, plain.replace(continuous={"v": [3, 4]})]).continuous["v"]
    np.testing.assert_array_equal(values, [0.5, np.nan, 3, 4])


def test_concatenate_keeps_what_one_part_tells():
    plain = Demonstrations([0, 1], [0, 1], num_latents=2)
    open_ = plain.replace(missing="allow")
    away = plain.replace(present=[[1], [0]])
    weighed = Demonstrations([0], [0], latent_weights={"agent_0": [[3, 2, 1]]})
    assert weighed.num_latents == (3,)
    for parts in ([plain, open_], [open_, plain]):
        assert concatenate(parts).missing == "allow"
    assert concatenate([plain, plain]).missing == "refuse"
    assert concatenate([plain, away]).present.ravel().tolist() == [True, True, True, False]
    assert concatenate([away, plain]).present.ravel().tolist() == [True, False, True, True]
    two = plain.replace(latent_weights={"agent_0": [[5, 4], [1, 1]]})
    # A latent that a part does not know is none there.
    np.testing.assert_array_equal(
        concatenate([two, plain, weighed]).latent_weights["agent_0"],
        [[5, 4, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1], [3, 2, 1]],
    )


def test_concatenate_sizes_and_names():
    small = Demonstrations([0], [0], [0], num_states=2)
    large = Demonstrations([4], [1], [2], num_actions=2, latent_names=["a", "b", "c"])
    both = concatenate([small, large])
    assert (both.num_states, both.num_actions, both.num_latents) == ({"state": 5}, (2,), (3,))
    assert both.latent_names == {"agent_0": ("a", "b", "c")}
    with pytest.raises(ValueError, match="nothing to concatenate"):
        concatenate([])
    with pytest.raises(ValueError, match=r"part 1 has the state variables 'x'.*'state'"):
        concatenate([small, Demonstrations({"x": [0]}, [0], [0])])
    other = Demonstrations([4], [1], [2], num_actions=2, latent_names=["b", "a", "c"])
    with pytest.raises(ValueError, match=r"names of latent_agent_0 are 'b', .* in part 1"):
        concatenate([large, other])


# ---------------------------------------------------------------------- tables


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize(
    "demos",
    [
        team(),
        team(episodes=["07", "07", "07", "7", "a b", "a b"]),
        team(episodes=["7", "7", "7", "8", "9", "9"]),
        team().without_labels(),
        team(episodes=None),
        Demonstrations({"file": [2**62]}, [0], num_latents=1, episodes=[-3]),
        Demonstrations(
            ["10", "20"],
            [["None", 'say "a, b"'], ["go", "#"]],
            [[0, 1], [-1, -1]],
            state_names=["20", "10"],
            agents=["A, B", "ünï 🤖"],
            action_names={"A, B": ["None", "go"], "ünï 🤖": ["#", 'say "a, b"', "NaN"]},
            latent_names=["true", "1e3"],
        ),
    ],
    ids=[
        "numbers",
        "text ids",
        "texts of numbers",
        "unlabelled",
        "one episode",
        "one step",
        "odd names",
    ],
)
def test_round_trip(demos: Demonstrations, ending: str, tmp_path: Path):
    path = tmp_path / f"with a space{ending}"
    write_demonstrations(demos, path)
    assert read_demonstrations(path) == demos
    assert read_demonstrations(str(path), like=demos) == demos
    part = demos.select([0])
    write_demonstrations(part, path)
    assert read_demonstrations(path) == part
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


names = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=6).filter(
    lambda text: text == text.strip() and text not in ("-1", "-1.0")
)


@st.composite
def any_arguments(draw: st.DrawFn) -> dict[str, Any]:
    num_steps = draw(st.integers(1, 6))
    agents = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    variables = draw(st.lists(names.map("v".__add__), min_size=1, max_size=3, unique=True))
    sizes = st.integers(1, 4)
    arguments: dict[str, Any] = {}

    def column(lowest: int, kind: str, key: str) -> list[int]:
        size = draw(sizes)
        arguments.setdefault(f"num_{kind}s", {})[key] = size
        texts = draw(st.none() | st.lists(names, min_size=size, max_size=size, unique=True))
        arguments.setdefault(f"{kind}_names", {})[key] = texts
        return draw(st.lists(st.integers(lowest, size - 1), min_size=num_steps, max_size=num_steps))

    states = {name: column(0, "state", name) for name in variables}
    actions = {agent: column(0, "action", agent) for agent in agents}
    latents = {agent: column(-1, "latent", agent) for agent in agents}
    num_episodes = draw(st.integers(1, num_steps))
    ids = draw(
        st.lists(st.integers(-(2**53), 2**53), min_size=num_episodes, unique=True)
        | st.lists(names.map("e".__add__), min_size=num_episodes, unique=True)
    )
    episodes = [ids[step * num_episodes // num_steps] for step in range(num_steps)]
    columns = {"states": states, "actions": actions, "latents": latents, "episodes": episodes}
    return columns | arguments


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(arguments=any_arguments())
def test_any_round_trip(arguments: dict[str, Any], tmp_path: Path):
    demos = Demonstrations(**arguments)
    for ending in ENDINGS:
        path = tmp_path / f"any{ending}"
        write_demonstrations(demos, path)
        assert read_demonstrations(path) == demos
    parts = [demos.select([k]) for k in range(demos.num_episodes)]
    assert concatenate(parts) == demos


def csv_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "table.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_foreign_table_with_floats_and_texts(tmp_path: Path):
    path = csv_file(
        tmp_path,
        "episode,step,room,action_a,latent_a\n"
        "1.0,0,2.0,go,help\n1.0,1, 1.0, stay,\n2.0,0,0.0,go,wait\n",
    )
    demos = read_demonstrations(path)
    assert demos.state_variables["room"].tolist() == [2, 1, 0]
    assert demos.episode_ids.tolist() == [1, 2]
    assert demos.action_names == {"a": ("go", "stay")}
    assert demos.latent_names == {"a": ("help", "wait")}
    assert demos.latents.ravel().tolist() == [0, -1, 1]
    with pytest.raises(ValueError, match=r"room: episode 1, step 1: '1\.5'"):
        read_demonstrations(csv_file(tmp_path, path.read_text().replace(" 1.0", "1.5")))


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_second_file_that_lacks_a_name(ending: str, tmp_path: Path):
    first = Demonstrations([0, 2], ["go", "stay"], ["help", "wait"])
    columns: dict[str, Any] = {"state": [1], "action_agent_0": ["stay"], "latent_agent_0": ["wait"]}
    path = tmp_path / f"second{ending}"
    if ending == ".csv":
        pd.DataFrame(columns).to_csv(path, index=False)
    elif ending == ".parquet":
        pd.DataFrame(columns).to_parquet(path)
    else:
        np.savez(path, **columns)
    second = read_demonstrations(path, like=first)
    assert (second.actions.item(), second.latents.item()) == (1, 1)
    assert concatenate([first, second]).num_states == {"state": 3}
    assert read_demonstrations(path).action_names == {"agent_0": ("stay",)}
    # Coded by itself and written: the recorded texts still lead to the indices of the first.
    write_demonstrations(read_demonstrations(path), path)
    assert read_demonstrations(path, like=first) == second
    with pytest.raises(ValueError, match=r"action_agent_0: episode 0, step 0: 'stay' is not allo"):
        read_demonstrations(path, action_names=["go"])
    reordered = read_demonstrations(path, action_names=["stay", "go"])
    assert (reordered.actions.item(), reordered.num_actions) == (0, (2,))
    bare = Demonstrations([0, 2], [0, 1], [0, 1])
    with pytest.raises(ValueError, match="texts"):
        read_demonstrations(path, like=bare)
    with pytest.raises(ValueError, match="leave out 'num_latents'"):
        read_demonstrations(path, like=first, num_latents=2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("episode,state,action_a,latent_b\n0,0,0,0\n", "unknown column 'latent_b'"),
        ("episode,state,action_a,action_a\n0,0,0,0\n", "column 'action_a' occurs more than once"),
        ("episode,state,action_\n0,0,0\n", "agent: a text"),
        ("episode,step,state\n0,0,0\n", "no column action_<agent>"),
        ("episode,state,latent_a\n0,0,0\n", "no column action_<agent>"),
        ("episode;state;action_a\n0;0;0\n", "separated by ';', not by commas"),
        ("action_a\tstate\n0\t0\n", r"separated by '\\t', not by commas"),
        ("episode,step,action_a\n0,0,0\n", "no state variable"),
        (",episode,state,action_a\n0,0,0,0\n", "row numbers"),
        ("episode,step,state,action_a\n0,0,0,0\n0,2,0,0\n", "step: episode 0, step 1: found 2"),
        ("episode,step,state,action_a\n0,1,0,0\n0,0,0,0\n", "step: episode 0, step 0: found 1"),
        ("episode,step,state,action_a\n0,0,0,0\n0,0,0,0\n", "step: episode 0, step 1: found 0"),
        ("episode,step,state,action_a\n0,,0,0\n", "step: episode 0, step 0: a missing"),
        ("episode,state,action_a\n0,0,0\n1,0,0\n0,0,0\n", "episode: row 2"),
        ("episode,state,action_a\n0,0,0\n,0,0\n", "episode: row 1"),
        ("episode,state,action_a\n0,0,\n", "action_a: episode 0, step 0: a missing"),
        ("episode,state,action_a\n0,0,0\n0,0\n", "3 columns, got 2"),
        ("episode,state,action_a\n", "no steps"),
        ("", "no column|no steps"),
        ("# btil: {}\nepisode,state,action_a\n0,0,0\n", "recorded sizes and names are damaged"),
        ("# btil: {\nepisode,state,action_a\n0,0,0\n", "recorded sizes and names are damaged"),
    ],
)
def test_tables_that_are_refused(table: str, message: str, tmp_path: Path):
    with pytest.raises(ValueError, match=rf"table\.csv: (.|\n)*({message})"):
        read_demonstrations(csv_file(tmp_path, table), num_latents=2)


def test_columns_are_held_against_the_record(tmp_path: Path):
    path = tmp_path / "table.csv"
    write_demonstrations(team(), path)
    written = path.read_text()
    first, header, *rest = written.splitlines()
    more = [f"{line},0" for line in rest]
    path.write_text("\n".join([first, f"{header},bonus", *more]))
    with pytest.raises(ValueError, match=r"unknown column 'bonus'; allowed are 'episode', 'step'"):
        read_demonstrations(path)
    path.write_text("\n".join([first, header.replace("door", "gate"), *rest]))
    with pytest.raises(ValueError, match="unknown column 'gate'"):
        read_demonstrations(path)
    path.write_text(
        "\n".join(
            [first, header.removesuffix(",latent_bob"), *(line.rpartition(",")[0] for line in rest)]
        )
    )
    assert (read_demonstrations(path).latents[:, 1] == -1).all()
    assert read_demonstrations(path).latent_names == team().latent_names
    record = json.loads(first.removeprefix("# btil:"))
    newer = json.dumps(record | {"version": 2})
    path.write_text("\n".join([f"# btil: {newer}", header, *rest]))
    with pytest.raises(ValueError, match="version 2 of the table format"):
        read_demonstrations(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("agents", "alice", "damaged; fields: 'version', 'agents'"),
        ("agents", None, "damaged; fields: 'version', 'agents'"),
        ("episode_ids", 3, "damaged; fields"),
        ("num_states", [5, 3], "damaged; fields"),
        ("action_names", {"bob": "go"}, "damaged; fields"),
        ("latent_names", {"bob": ["help", 3]}, "damaged; fields"),
        ("continuous", "v", "damaged: continuous, missing"),
        ("missing", "maybe", "damaged: continuous, missing"),
        ("version", 3, "version 3 of the table format; this version of btil reads 1"),
    ],
)
def test_records_that_are_damaged_are_refused(field: str, value: Any, message: str):
    record = json.loads(json.dumps(record_of(team(agents=["alice", "bob"]))))
    with pytest.raises(ValueError, match=message):
        parsed_record(json.dumps(record | {field: value}))
    # What is not there of these is as it was before there were such.
    assert parsed_record(json.dumps(record)) == record | {"continuous": [], "missing": "refuse"}


def test_records_compose_accents():
    record = record_of(team(agents=["alice", "bob"], action_names={"bob": ["go", "wait"]}))
    text = json.dumps(
        record | {"agents": ["Zoe\u0308"], "action_names": {"e\u0301": ["o\u0308", "u"]}}
    )
    parsed = parsed_record(text)
    assert parsed["agents"] == ["Zo\xeb"]
    assert parsed["action_names"] == {"\xe9": ["\xf6", "u"]}


def test_spaces_around_names_of_columns_are_none(tmp_path: Path):
    path = csv_file(tmp_path, " episode, x ,action_a , latent_a\n3,0,1,0\n3,1,0,0\n")
    demos = read_demonstrations(path)
    assert (demos.agents, list(demos.num_states)) == (("a",), ["x"])
    assert demos.episode_ids.tolist() == [3]


@pytest.mark.parametrize(
    ("labels", "names", "latents"),
    [
        (["0|1", "-1", "2"], None, [-1, -1, 2]),
        (["0|1", "5.0", " 2 "], None, [-1, 5, 2]),
        ([5, "0|2", 1], None, [5, -1, 1]),
        (["0|7", 1.0, np.nan], None, [-1, 1, -1]),
        (["lift|carry", "-1", "lift"], ("carry", "lift"), [-1, -1, 1]),
        (["lift|carry", "?", "99"], ("carry", "lift"), [-1, -1, -1]),
        (["0|2", "99", "?"], None, [-1, -1, -1]),
        (["0|2", 99, "1"], None, [-1, -1, 1]),
        (["0|2", "007", "2"], ("0", "007", "2"), [-1, 1, 2]),
        (["rest|lift", "NA", "lift"], ("NA", "lift", "rest"), [-1, 0, 1]),
    ],
)
def test_labels_beside_sets_are_read_as_without(
    labels: list[Any], names: tuple[str, ...] | None, latents: list[int]
):
    """-1 and what is said to mean unknown are no latents; a number is one, whatever its type."""
    given = np.array(labels, object)
    demos = Demonstrations([0] * 3, [0] * 3, given, unknown_labels=["?", 99])
    assert demos.latent_names == ({} if names is None else {"agent_0": names})
    assert demos.latents.ravel().tolist() == latents
    (row,) = [k for k, label in enumerate(labels) if "|" in str(label)]
    allowed = [demos.value_names("latent_agent_0").index(part) for part in labels[row].split("|")]
    assert np.flatnonzero(demos.latent_weights["agent_0"][row]).tolist() == sorted(allowed)
    with pytest.raises(ValueError, match="latent_agent_0: episode 0, step 1: 'NA' may be a name"):
        Demonstrations([0] * 2, [0] * 2, ["lift|carry", "NA"])
    mixed = np.array(["lift|carry", 1], object)
    with pytest.raises(ValueError, match=r"agent_0: some steps have numbers \(1\), others na"):
        Demonstrations([0] * 2, [0] * 2, mixed)
    Demonstrations([0] * 2, [0] * 2, mixed, unknown_labels=[1])


def test_a_name_with_a_bar_in_it_is_a_name_where_it_is_declared():
    names = ["a|b", "c", "a"]
    demos = Demonstrations([0] * 4, [0] * 4, ["a|b", "c", "a|c", " a|b "], latent_names=names)
    assert demos.latents.ravel().tolist() == [0, 1, -1, 0]
    np.testing.assert_array_equal(demos.latent_weights["agent_0"][2], [0, 1, 1])
    sets = Demonstrations([0] * 2, [0] * 2, ["0|2", "1|0"], num_latents=4)
    np.testing.assert_array_equal(sets.latent_weights["agent_0"], [[1, 0, 1, 0], [1, 1, 0, 0]])
    for labels, message in (
        (["0|4", "1"], "step 0: '4' in '0|4' is not allowed; expected one of '0', '1', '2', '3'"),
        (["1", "0|"], "'0|' is not allowed; expected a latent, or different ones with bars"),
        (["1", "|0"], "'|0' is not allowed"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            Demonstrations([0] * 2, [0] * 2, labels, num_latents=4)


def test_columns_may_be_left_out_and_stand_in_any_order(tmp_path: Path):
    path = csv_file(tmp_path, "action_b,x,action_a,latent_a,y\n0,0,1,,3\n1,1,0,1,2\n")
    demos = read_demonstrations(path, num_latents={"a": 2, "b": 3})
    assert demos.agents == ("b", "a")
    assert list(demos.state_variables) == ["x", "y"]
    assert demos.episode_ids.tolist() == [0]
    assert demos.latents.tolist() == [[-1, -1], [-1, 1]]
    assert demos.num_latents == (3, 2)
    with pytest.raises(ValueError, match=r"latent_b: no step is labelled.*num_latents"):
        read_demonstrations(path, num_latents={"a": 2})


@pytest.mark.parametrize(
    ("written", "ids"),
    [
        (["07", "7"], ["07", "7"]),
        (["07", "8"], ["07", "8"]),
        (["1e1", "10"], ["1e1", "10"]),
        (["7", "8"], [7, 8]),
        (["7.0", "8.0"], [7, 8]),
        (["7.0", "7"], ["7.0", "7"]),
    ],
)
def test_ids_are_numbers_where_each_is_written_as_its_number(
    written: list[str], ids: list[Any], tmp_path: Path
):
    rows = "".join(f"{one},0,0\n" for one in written)
    path = csv_file(tmp_path, f"episode,state,action_a\n{rows}")
    assert read_demonstrations(path, num_latents=1).episode_ids.tolist() == ids


def test_csv_from_a_spreadsheet(tmp_path: Path):
    path = tmp_path / "table.csv"
    text = "episode,state,action_a,latent_a\r\n0,0,1,\r\n0,1,0,1\r\n"
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    demos = read_demonstrations(path, num_latents=2)
    assert (demos.num_steps, demos.num_actions, demos.num_latents) == (2, (2,), (2,))


def test_nullable_and_coded_parquet_columns(tmp_path: Path):
    path = tmp_path / "table.parquet"
    columns = {
        "episode": pa.array(["a", "a", "b"]).dictionary_encode(),
        "x": pa.array([0, 2**60, 1], pa.int64()),
        "flag": pa.array([True, False, True]),
        "action_a": pa.array(["go", "stay", "go"], pa.large_string()),
        "action_b": pa.array([1.0, 0.0, 1.0]),
        "latent_a": pa.array([1, None, 0], pa.int8()),
        "latent_b": pa.array([None, None, None]),
    }
    parquet.write_table(pa.table(columns), path)
    demos = read_demonstrations(path, num_latents={"b": 2})
    assert demos.episode_ids.tolist() == ["a", "b"]
    assert demos.state_variables["x"].tolist() == [0, 2**60, 1]
    assert demos.state_variables["flag"].tolist() == [1, 0, 1]
    assert demos.actions.tolist() == [[0, 1], [1, 0], [0, 1]]
    assert demos.latents.tolist() == [[1, -1], [-1, -1], [0, -1]]
    columns["x"] = pa.array([0, None, 1], pa.int64())
    parquet.write_table(pa.table(columns), path)
    with pytest.raises(ValueError, match="x: episode 'a', step 1: a missing value"):
        read_demonstrations(path, num_latents={"b": 2})
    frame = pd.DataFrame({"state": [0, 1], "action_a": [0, 1]}, index=[7, 3])
    frame.to_parquet(path)
    with pytest.raises(ValueError, match="row numbers"):
        read_demonstrations(path, num_latents=2)


def test_written_tables_open_in_other_tools(tmp_path: Path):
    demos = team()
    for ending in ENDINGS:
        write_demonstrations(demos, tmp_path / f"table{ending}")
    for frame in (
        pd.read_csv(tmp_path / "table.csv", skiprows=1),
        pd.read_parquet(tmp_path / "table.parquet"),
    ):
        assert frame["action_bob"].tolist() == ["go", "wait", "go", "go", "wait", "go"]
        assert frame["latent_alice"].isna().tolist() == [False, True, False, True, True, False]
    with np.load(tmp_path / "table.npz", allow_pickle=False) as arrays:
        np.testing.assert_array_equal(arrays["latent_bob"], demos.latents[:, 1])
        np.testing.assert_array_equal(arrays["step"], [0, 1, 2, 0, 0, 1])


def test_endings_and_missing_files(tmp_path: Path):
    other = tmp_path / "table.xlsx"
    other.touch()
    for use in (read_demonstrations, lambda path: write_demonstrations(team(), path)):
        with pytest.raises(ValueError, match=r"ending must be one of \.csv, \.parquet, \.npz"):
            use(other)
    for absent in ("folder", "table.xlsx.old"):
        with pytest.raises(FileNotFoundError, match="No such file or directory"):
            read_demonstrations(tmp_path / absent)
    for ending in ENDINGS:
        with pytest.raises(FileNotFoundError):
            read_demonstrations(tmp_path / f"absent{ending}")
        with pytest.raises(FileNotFoundError):
            write_demonstrations(team(), tmp_path / "absent" / f"table{ending}")


@pytest.mark.parametrize("ending", ENDINGS)
def test_damaged_files_are_named(ending: str, tmp_path: Path):
    path = tmp_path / f"table{ending}"
    write_demonstrations(team(), path)
    whole = path.read_bytes()
    random = np.random.default_rng(0).bytes(500)
    # A CSV cut between two rows is a smaller table: nothing can tell.
    cuts = [] if ending == ".csv" else np.linspace(1, len(whole) - 1, 40).astype(int)
    for damaged in [b"", b"\xff\xfe\x00junk", random, *(whole[:cut] for cut in cuts)]:
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=re.escape(str(path))):
            read_demonstrations(path)


def test_npz_with_objects_is_not_unpickled(tmp_path: Path):
    path = tmp_path / "table.npz"
    np.savez(path, state=np.array([0, 1]), action_a=np.array(["go", None], object))
    with pytest.raises(ValueError, match=r"table\.npz: .*[Oo]bject"):
        read_demonstrations(path)


def test_arrays_that_are_twice_or_of_other_lengths_in_an_archive_are_refused(tmp_path: Path):
    path = tmp_path / "table.npz"
    columns = {"state": np.array([0, 1]), "action_a": np.array([0, 1])}
    np.savez(path, **columns, step=np.array([0]))
    with pytest.raises(ValueError, match=r"same number of steps; found: step 1, episode 2"):
        read_demonstrations(path, num_latents=2)
    np.savez(path, **columns, step=np.array([[0], [1]]))
    with pytest.raises(ValueError, match="step: one value per step expected"):
        read_demonstrations(path, num_latents=2)
    np.savez(path, **columns)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("state.npy", archive.read("state.npy"))
    with pytest.raises(ValueError, match=r"table\.npz: column 'state' occurs more than once"):
        read_demonstrations(path, num_latents=2)


def test_what_a_csv_holds_to_the_letter(tmp_path: Path):
    demos = team(rewards=[0.5, 1, -2, 3, 1e-9, 0], continuous={"v, w": [0.25, np.nan, 1, 2, 3, 4]})
    write_demonstrations(demos.select([2, 1]), tmp_path / "table.csv")
    first, *rows = (tmp_path / "table.csv").read_bytes().split(b"\n")
    assert json.loads(first.removeprefix(b"# btil: ")) == {
        "version": 1,
        "agents": ["alice", "bob"],
        "episode_ids": "number",
        "continuous": ["v, w"],
        "num_states": {"room": 5, "door": 3},
        "state_names": {"door": ["c", "o", "s"]},
        "num_actions": {"alice": 4, "bob": 2},
        "action_names": {"bob": ["go", "wait"]},
        "num_latents": {"alice": 3, "bob": 2},
        "latent_names": {"bob": ["help", "rest"]},
    }
    assert rows == [
        b'episode,step,room,door,action_alice,action_bob,latent_alice,latent_bob,reward,"v, w"',
        b'2,0,0,"o",1,"wait",,,1e-9,3',
        b'2,1,2,"s",0,"go",2,"rest",0,4',
        b'9,0,1,"s",2,"go",,"help",3,2',
        b"",
    ]
    write_demonstrations(team(missing="allow"), tmp_path / "table.csv")
    assert b'"missing": "allow"' in (tmp_path / "table.csv").read_bytes()


def test_npz_indices_outside_the_recorded_names(tmp_path: Path):
    path = tmp_path / "table.npz"
    write_demonstrations(team(), path)
    with np.load(path) as arrays:
        columns = dict(arrays)
    columns["action_bob"] = columns["action_bob"] + 1
    np.savez(path, **columns)
    with pytest.raises(ValueError, match=r"table\.npz: action_bob: row 1 .*: 2 is not"):
        read_demonstrations(path)
    columns["action_bob"] = np.array([0, 1, 0, 0, -2, 0])
    np.savez(path, **columns)
    with pytest.raises(ValueError, match=r"action_bob: row 4 .*: -2 is not allowed; it has 2"):
        read_demonstrations(path)


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_failing_write_leaves_the_old_file(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / f"table{ending}"
    write_demonstrations(team(), path)
    before = path.read_bytes()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is full")

    targets: dict[str, Callable[[], Any]] = {
        ".csv": lambda: monkeypatch.setattr("pyarrow.csv.write_csv", fail),
        ".parquet": lambda: monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", fail),
        ".npz": lambda: monkeypatch.setattr(zipfile.ZipFile, "open", fail),
    }
    targets[ending]()
    with pytest.raises(OSError, match="disk is full"):
        write_demonstrations(team().without_labels(), path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", ENDINGS)
def test_long_tables(ending: str, tmp_path: Path):
    random = np.random.default_rng(0)
    num_steps = 100_000
    demos = Demonstrations(
        {"x": random.integers(0, 50_000, num_steps), "y": random.integers(0, 9, num_steps)},
        random.integers(0, 6, (num_steps, 2)),
        random.integers(-1, 3, (num_steps, 2)),
        np.repeat(np.arange(100)[::-1], 1000),
        action_names=[*"abcdef"],
    )
    path = tmp_path / f"long{ending}"
    write_demonstrations(demos, path)
    assert read_demonstrations(path) == demos
