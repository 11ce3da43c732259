"""Contexts: parents spelt out, and unique rows however many values the parents have."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from teams import random_demos

import btil
from btil.models.contexts import expand_parents, match_rows, parent_sizes, row_codes, unique_rows
from btil.models.team import bind

ROWS = st.integers(0, 3).flatmap(
    lambda columns: arrays(
        np.int64, st.tuples(st.integers(0, 12), st.just(columns)), elements=st.integers(0, 3)
    )
)


@given(ROWS)
def test_unique_rows_are_numpys(rows: np.ndarray) -> None:
    distinct, codes = unique_rows(rows)
    expected = sorted({tuple(row) for row in rows.tolist()})
    assert [tuple(row) for row in distinct.tolist()] == expected
    assert np.array_equal(distinct[codes], rows)


@given(ROWS)
def test_match_rows_finds_what_is_there(rows: np.ndarray) -> None:
    distinct, _ = unique_rows(rows)
    known = distinct[::2]
    found = match_rows(known, rows)
    for row, index in zip(rows.tolist(), found.tolist(), strict=True):
        assert (known[index].tolist() == row) if index >= 0 else (row not in known.tolist())


def test_no_product_of_sizes_overflows() -> None:
    generator = np.random.default_rng(0)
    rows = generator.integers(0, 2**62, (300, 12))
    rows = np.concatenate([rows, rows[::-1]])
    distinct, codes = unique_rows(rows)
    assert np.array_equal(distinct, np.unique(rows, axis=0))
    assert np.array_equal(distinct[codes], rows)
    assert np.array_equal(row_codes(rows), codes)


def test_parents_of_every_kind_are_spelt_out() -> None:
    demos = random_demos()
    names, groups = expand_parents(("state", "actions", "next_state"), "ann", "transition", demos)
    assert names == ("x", "y", "action_ann", "action_bob", "next_x", "next_y")
    assert groups == ((0, 1), (2, 3), (4, 5))
    assert parent_sizes(names, demos) == (2, 2, 3, 2, 2, 2)
    assert expand_parents(("own_action", "x"), "bob", "transition", demos)[0] == ("action_bob", "x")
    assert expand_parents(("other_actions",), "bob", "transition", demos)[0] == ("action_ann",)


@pytest.mark.parametrize(
    ("parents", "told"),
    [
        (("weather",), "unknown parent 'weather'.*state variables x, y and agents ann, bob"),
        (("state", "x"), "counted twice: x"),
        (("actions", "action_bob"), "counted twice: action_bob"),
    ],
)
def test_wrong_parents_are_named(parents: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        expand_parents(parents, "ann", "transition", random_demos())


def test_only_visited_contexts_and_no_transition_after_an_end() -> None:
    demos = btil.Demonstrations(
        states=[0, 5, 7, 7, 2],
        actions=[0, 1, 0, 1, 1],
        episodes=[0, 0, 0, 1, 1],
        num_states=1000,
        num_latents=2,
    )
    model = btil.TeamModel(transition=btil.DirichletCPT(1.0, ("state", "actions", "next_state")))
    bound = bind(model, demos)
    assert bound.tables["policy_agent_0"].contexts.rows.tolist() == [[0], [2], [5], [7]]
    # 7, action 0 ends the first episode; 2, action 1 the second.
    assert bound.tables["transition_agent_0"].contexts.rows.tolist() == [
        [0, 0, 5],
        [5, 1, 7],
        [7, 1, 2],
    ]
    assert bound.rows["agent_0"].transition.tolist() == [-1, 0, 1, -1, 2]
    assert bound.rows["agent_0"].policy.tolist() == [0, 2, 3, 3, 1]
