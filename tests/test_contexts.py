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


def test_parents_seen_from_a_member() -> None:
    names = ("ann_at", "bob at", "time", "own_time")
    demos = btil.Demonstrations(
        states={name: [0, 1] for name in names},
        actions={"ann": [0, 1], "bob": [1, 0]},
        num_latents=2,
        num_actions=2,
    )

    def of(agent: str, *parents: str) -> tuple[str, ...]:
        return expand_parents(parents, agent, "transition", demos)[0]

    assert of("ann", "own_at", "other at") == ("ann_at", "bob at")
    assert of("bob", "other_at", "next_own at", "own_time") == ("ann_at", "next_bob at", "own_time")
    assert of("bob", "previous_other_at", "other_action", "previous_own_action") == (
        "previous_ann_at",
        "action_ann",
        "previous_action_bob",
    )
    with pytest.raises(ValueError, match="unknown parent 'own_at'"):
        of("bob", "own_at")
    with pytest.raises(ValueError, match="counted twice: ann_at"):
        of("ann", "own_at", "ann_at")


def test_a_member_called_other_leaves_names_as_they_are() -> None:
    demos = btil.Demonstrations(
        states={"ann_at": [0, 1], "other_at": [0, 1]},
        actions={"ann": [0, 1], "other": [1, 0]},
        num_latents=2,
        num_actions=2,
    )
    found = expand_parents(("other_at",), "other", "transition", demos)
    assert found[0] == ("other_at",)
    with pytest.raises(ValueError, match="unknown parent 'own_at'"):
        expand_parents(("own_at",), "ann", "transition", demos)


def test_functions_are_given_parents_by_the_names_they_were_asked_by() -> None:
    rows = np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.3, 0.7], [0.6, 0.4]]])
    asked = []

    def policy(contexts: dict[str, np.ndarray]) -> np.ndarray:
        asked.append(sorted(contexts))
        return rows[contexts["own_at"]]

    demos = btil.Demonstrations(
        states={"ann_at": [0, 1], "bob_at": [1, 0]},
        actions={"ann": [0, 1], "bob": [1, 0]},
        num_latents=2,
        num_actions=2,
    )
    model = btil.TeamModel(btil.KnownCPT(policy, ("own_at",)), btil.DirichletCPT(1.0))
    posterior = btil.fit(model, demos, progress=False)
    assert ["ann_at", "own_at"] in asked
    assert np.array_equal(posterior.policy("bob", states={"bob_at": [0, 1]}), rows)


@pytest.mark.parametrize("what", ["cell", "action", "latent"])
def test_shared_tables_refuse_values_in_another_order(what: str) -> None:
    names = {"cell": ["a", "b"], "action": ["go", "stay"], "latent": ["lift", "rest"]}
    other = {**names, what: ["0 first", names[what][0]]}

    def demos(of_bob: dict[str, list[str]]) -> btil.Demonstrations:
        return btil.Demonstrations(
            {"ann_cell": names["cell"], "bob_cell": of_bob["cell"]},
            {"ann": names["action"], "bob": of_bob["action"]},
            {"ann": names["latent"], "bob": of_bob["latent"]},
        )

    model = btil.TeamModel(
        btil.Shared(btil.DirichletCPT(1.0, ("own_cell",))), btil.DirichletCPT(1.0)
    )
    bind(model, demos(names))
    kind = "state" if what == "cell" else what
    with pytest.raises(ValueError, match=f"policy: a Shared table .*{kind}_names={{'"):
        bind(model, demos(other))
    # Their own tables may have names of their own.
    bind(
        btil.TeamModel(btil.DirichletCPT(1.0, ("own_cell",)), btil.DirichletCPT(1.0)), demos(other)
    )


def test_of_larger_teams_others_have_numbers() -> None:
    agents = ("cy", "ann", "bob")
    demos = btil.Demonstrations(
        states={f"{agent}_at": [0, 1] for agent in agents},
        actions={agent: [0, 1] for agent in agents},
        num_latents=2,
    )
    found = expand_parents(("other1_at", "other2_at", "other2_action"), "bob", "transition", demos)
    assert found[0] == ("ann_at", "cy_at", "action_cy")


def test_what_a_policy_may_read_leaves_out_what_comes_after() -> None:
    with pytest.raises(ValueError, match="unknown parent 'weather'") as error:
        expand_parents(("weather",), "ann", "policy", random_demos())
    assert str(error.value).split("one of ")[1] == (
        "previous_action_ann, previous_action_bob, previous_actions, previous_other_action, "
        "previous_other_actions, previous_own_action, previous_state, previous_x, previous_y, "
        "state, x, y"
    )
    for name in ("other_action", "other2_action", "own_action", "next_x", "action_ann"):
        with pytest.raises(ValueError, match=f"policy: '{name}' cannot be a parent"):
            btil.TeamModel(policy=btil.DirichletCPT(1.0, (name,)))


def test_a_shared_table_reads_what_is_each_ones_own() -> None:
    demos = btil.Demonstrations(
        states={"ann_at": [0, 1, 1, 0], "bob_at": [1, 1, 0, 2]},
        actions={"ann": [0, 1, 1, 0], "bob": [1, 1, 0, 0]},
        latents={"ann": [0, 0, 1, 1], "bob": [1, 1, 0, 0]},
        num_states={"ann_at": 3, "bob_at": 3},
    )
    by_form, by_name = (
        btil.TeamModel(btil.Shared(btil.DirichletCPT(1.2, parents)), btil.DirichletCPT(1.01))
        for parents in (("own_at",), {"ann": ("ann_at",), "bob": ("bob_at",)})
    )
    one, other = (btil.fit(model, demos, progress=False) for model in (by_form, by_name))
    assert one.elbo == other.elbo
    rows = one.policy("ann", states={"ann_at": [0, 1, 2]})
    assert np.array_equal(rows, other.policy("bob", states={"bob_at": [0, 1, 2]}))


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
