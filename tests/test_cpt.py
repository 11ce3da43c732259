"""Families of tables: what they give for contexts, and what they refuse."""

import re
from typing import Any

import numpy as np
import pytest
from teams import random_demos

import btil
from btil.models.cpt import CPT
from btil.models.team import bind, make_contexts


def contexts_of(cpt: CPT, role: str = "policy", rows: Any = None, agent: str = "ann") -> Any:
    model = btil.TeamModel(**{role: cpt})
    return make_contexts(model, role, agent, random_demos(), rows)


ROWS = np.array([[0, 0], [0, 1], [1, 1]])


def test_scalar_concentration_fills_the_rows() -> None:
    cpt = btil.DirichletCPT(0.3, parents=("state",))
    assert np.array_equal(cpt.concentration(contexts_of(cpt, rows=ROWS)), np.full((3, 2, 3), 0.3))


@pytest.mark.parametrize("shape", [(3,), (2, 1), (2, 3), (1, 2, 3), (1, 1, 2, 3)])
def test_concentration_of_one_block_is_that_of_every_context(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).uniform(0.5, 2, shape)
    cpt = btil.DirichletCPT(values, parents=("state",))
    found = cpt.concentration(contexts_of(cpt, rows=ROWS))
    assert np.array_equal(found, np.broadcast_to(values, (1, 1, 2, 3))[0].repeat(3, 0))


@pytest.mark.parametrize("shape", [(2, 2, 2, 3), (2, 1, 2, 3), (1, 2, 1, 3), (2, 2, 1, 1)])
def test_concentration_per_parent_is_looked_up(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).uniform(0.5, 2, shape)
    cpt = btil.DirichletCPT(values, parents=("state",))
    full = np.broadcast_to(values, (2, 2, 2, 3))
    found = cpt.concentration(contexts_of(cpt, rows=ROWS))
    assert np.array_equal(found, full[ROWS[:, 0], ROWS[:, 1]])


@pytest.mark.parametrize("shape", [(4,), (3, 3), (2, 2, 3), (3, 2, 2, 3)])
def test_concentration_that_does_not_broadcast_is_refused(shape: tuple[int, ...]) -> None:
    cpt = btil.DirichletCPT(np.ones(shape), parents=("state",))
    with pytest.raises(ValueError, match=r"policy of ann: concentration of shape .* \(2, 3\)"):
        cpt.concentration(contexts_of(cpt, rows=ROWS))


@pytest.mark.parametrize("concentration", [0.0, -1.0, np.nan, np.inf, [1.0, 0.0], []])
def test_concentration_must_be_positive_and_finite(concentration: Any) -> None:
    with pytest.raises(ValueError, match="concentration must be positive and finite"):
        btil.DirichletCPT(concentration)


def test_uniform_rows_are_one_over_their_number_of_values() -> None:
    cpt = btil.UniformCPT()
    one = np.zeros((1, 0), np.int64)
    # bob has three latents and two actions.
    for role, shape in (("policy", (1, 3, 2)), ("transition", (1, 3, 3)), ("initial", (1, 3))):
        found = cpt.probabilities(contexts_of(cpt, role, one, "bob"))
        assert np.array_equal(found, np.full(shape, 1 / shape[-1]))


def test_known_table_by_joint_state_or_by_variable() -> None:
    table = np.random.default_rng(0).dirichlet(np.ones(3), size=(2, 2, 2))
    split = btil.KnownCPT(table, parents=("state",))
    joint = btil.KnownCPT(table.reshape(4, 2, 3), parents=("state",))
    expected = table[ROWS[:, 0], ROWS[:, 1]]
    for cpt in (split, joint):
        assert np.array_equal(cpt.probabilities(contexts_of(cpt, rows=ROWS)), expected)


def test_known_transition_by_state_actions_and_next_state() -> None:
    parents = ("state", "actions", "next_state")
    table = np.random.default_rng(0).dirichlet(np.ones(2), size=(4, 6, 4, 2))
    cpt = btil.KnownCPT(table, parents)
    rows = np.array([[0, 1, 2, 1, 1, 1], [1, 0, 0, 1, 0, 1]])
    found = cpt.probabilities(contexts_of(cpt, "transition", rows))
    assert np.array_equal(found, table[[1, 2], [5, 1], [3, 1]])


def test_known_function_sees_only_contexts_that_occur() -> None:
    demos = btil.Demonstrations(
        states={"x": [0, 1, 4, 2, 3], "y": [1, 0, 1, 1, 0]},
        actions={"ann": [0, 1, 1, 0, 1], "bob": [1, 1, 0, 0, 0]},
        episodes=[0, 0, 0, 1, 2],
        num_states={"x": 9, "y": 2},
        num_actions=2,
        num_latents=2,
    )
    asked: dict[str, set[tuple[int, ...]]] = {
        "policy": set(),
        "transition": set(),
        "initial": set(),
    }

    def uniform(role: str, names: tuple[str, ...], shape: tuple[int, ...]) -> Any:
        def rows(contexts: Any) -> np.ndarray:
            assert set(names) <= set(contexts)
            assert all(contexts[name].dtype == np.int64 for name in contexts)
            asked[role] |= set(zip(*(contexts[name].tolist() for name in names), strict=True))
            return np.full((len(contexts[names[0]]), *shape), 1 / 2)

        return rows

    model = btil.TeamModel(
        policy=btil.KnownCPT(uniform("policy", ("state", "x", "y"), (2, 2)), ("state",)),
        transition=btil.KnownCPT(
            uniform("transition", ("state", "action_ann", "action_bob", "next_state"), (2, 2)),
            ("state", "actions", "next_state"),
        ),
        initial=btil.KnownCPT(uniform("initial", ("y",), (2,)), ("y",)),
    )
    posterior = btil.fit(model, demos, progress=False)
    posterior.smooth(demos)
    posterior.decode(demos)
    assert asked["policy"] == {(1, 0, 1), (2, 1, 0), (9, 4, 1), (5, 2, 1), (6, 3, 0)}
    # Episodes end at the third row, the fourth and the fifth: two moves in all.
    assert asked["transition"] == {(1, 0, 1, 2), (2, 1, 1, 9)}
    assert asked["initial"] == {(1,), (0,)}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (np.full((2, 2, 2, 3), 0.5), r"row at .*'x': 0, 'y': 0.*latent 0 is not a probability"),
        (np.full((2, 3), 1 / 3), "has shape .*, expected"),
        (lambda contexts: np.ones((1, 2, 3)), "function returned shape"),
        (lambda contexts: np.full((3, 2, 3), np.nan), "not a probability"),
        (lambda contexts: np.tile([-0.5, 0.5, 1.0], (3, 2, 1)), "not a probability"),
    ],
)
def test_wrong_known_rows_are_refused(table: Any, told: str) -> None:
    cpt = btil.KnownCPT(table, parents=("state",))
    with pytest.raises(ValueError, match=f"policy of ann: .*{told}"):
        cpt.probabilities(contexts_of(cpt, rows=ROWS))


def test_static_and_uniform() -> None:
    static = btil.StaticCPT()
    assert np.array_equal(
        static.probabilities(contexts_of(static, "transition", np.zeros((2, 0), int))),
        np.stack([np.eye(2)] * 2),
    )
    uniform = btil.UniformCPT()
    rows = np.zeros((1, 0), int)
    found = uniform.probabilities(contexts_of(uniform, "initial", rows, "bob"))
    assert np.array_equal(found, [[1 / 3, 1 / 3, 1 / 3]])


@pytest.mark.parametrize(
    ("role", "parent"),
    [
        ("policy", "next_state"),
        ("policy", "next_x"),
        ("policy", "actions"),
        ("policy", "action_bob"),
        ("policy", "own_action"),
        ("initial", "next_state"),
        ("initial", "actions"),
        ("initial", "other_actions"),
    ],
)
def test_parents_known_only_later_are_refused(role: str, parent: str) -> None:
    for parents in ((parent,), {"ann": (parent,)}):
        with pytest.raises(ValueError, match=f"{role}: '{parent}' cannot be a parent"):
            btil.TeamModel(**{role: btil.DirichletCPT(1.0, parents)})


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: btil.DirichletCPT(1.0, "state"), "tuple of names"),
        (lambda: btil.DirichletCPT(1.0, ("x", "x")), "more than once: x"),
        (lambda: btil.DirichletCPT(1.0, (3,)), "must be a name"),
        (lambda: btil.TeamModel(policy=btil.StaticCPT()), "cannot be a policy"),
        (
            lambda: btil.TeamModel(
                policy={
                    "ann": btil.Shared(btil.DirichletCPT(1.0)),
                    "bob": btil.Shared(btil.DirichletCPT(2.0)),
                }
            ),
            "one Shared table per role",
        ),
    ],
)
def test_a_model_that_makes_no_sense_is_refused(make: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make()


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ({"policy": {"ann": btil.DirichletCPT(1.0)}}, "no CPT for agent 'bob'"),
        (
            {"policy": {a: btil.UniformCPT() for a in ("ann", "bob", "eve")}},
            "the model names eve, but the agents are ann, bob",
        ),
        ({"policy": btil.DirichletCPT(1.0, {"ann": ("x",)})}, "not for agent 'bob'"),
        ({"policy": btil.Shared(btil.DirichletCPT(1.0))}, "ann has 2 latents, .* bob has 3"),
    ],
)
def test_a_model_that_does_not_fit_the_team_is_refused(model: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        bind(btil.TeamModel(**model), random_demos())


def test_agents_of_unequal_actions_share_no_policy() -> None:
    demos = random_demos(num_latents=(2, 2))
    shared = btil.Shared(btil.DirichletCPT(1.0))
    told = "ann has 2 latents, 3 values a row, .* bob has 2 latents, 2 values a row"
    with pytest.raises(ValueError, match=told):
        bind(btil.TeamModel(policy=shared), demos)
    bind(btil.TeamModel(transition=shared, initial=shared), demos)


def test_each_agent_has_its_own_parents() -> None:
    cpt = btil.DirichletCPT(1.0, parents={"ann": ("x",), "bob": ("x", "y")})
    bound = bind(btil.TeamModel(policy=cpt), random_demos())
    assert bound.tables["policy_ann"].contexts.names == ("x",)
    assert bound.tables["policy_bob"].contexts.names == ("x", "y")


def test_a_shared_table_pools_the_kth_parents() -> None:
    demos = random_demos(0, (4, 3), (2, 2), (3, 3), (2, 4))
    shared = btil.Shared(btil.DirichletCPT(1.0, parents={"ann": ("x",), "bob": ("y",)}))
    bound = bind(btil.TeamModel(policy=shared), demos)
    table = bound.tables["policy"]
    assert table.agents == ("ann", "bob")
    seen = {*demos.state_variables["x"].tolist(), *demos.state_variables["y"].tolist()}
    assert table.contexts.rows[:, 0].tolist() == sorted(seen)
    assert table.contexts.sizes == (4,)
    rows = table.contexts.rows[:, 0]
    assert np.array_equal(rows[bound.rows["ann"].policy], demos.state_variables["x"])
    assert np.array_equal(rows[bound.rows["bob"].policy], demos.state_variables["y"])


def test_a_mapping_without_an_agent_says_whom_it_has() -> None:
    policy = {"ann": btil.DirichletCPT(1.0), "bob": None}
    model = btil.TeamModel(policy=policy)
    assert model.family("policy", "ann") == btil.DirichletCPT(1.0)
    assert isinstance(model.family("policy", "bob"), btil.UniformCPT)
    with pytest.raises(ValueError, match="policy: no CPT for agent 'eve'; the model has one for"):
        model.family("policy", "eve")


def test_a_table_of_a_wrong_shape_is_told_every_shape_that_it_may_have() -> None:
    """A parent of several variables may have an axis of its own for each; each shape once."""
    demos = random_demos(0, (3, 2), (2, 2), (3, 2), (2, 3))
    for parents, shapes in (
        (("state",), "(6, 2, 2) or (2, 3, 2, 2) for"),
        (("x",), "(2, 2, 2) for"),
    ):
        model = btil.TeamModel(transition=btil.KnownCPT(np.full((5, 2, 2), 0.5), parents=parents))
        with pytest.raises(ValueError, match=re.escape(f"has shape (5, 2, 2), expected {shapes}")):
            bind(model, demos).tables["transition_ann"].prior_mean()
