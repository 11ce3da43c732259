"""The NumPyro model in both forms against sums over every joint latent sequence, and each other."""

from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from enumeration import all_rows, episode_log_likelihoods, log_prior, random_rows
from scipy import stats
from scipy.special import softmax
from teams import hmm_demos, hmm_model, made_by_hand, random_demos, rich_model

import btil
from btil.inference.result import (
    ConditionalRows,
    FunctionalRows,
    JointNormals,
    NormalParameters,
)
from btil.models.team import bind
from btil.numpyro_forms.model_data import model_data
from btil.numpyro_forms.team_dbn import (
    ChannelValues,
    enumerated_model,
    forward_model,
    in_units,
    latent_chain,
    sample_log_tables,
    team_dbn,
)

pytestmark = pytest.mark.usefixtures("x64")

KNOWN_POLICY = np.array([[[0.0, 0.3, 0.7], [0.5, 0.5, 0.0]], [[1.0, 0.0, 0.0], [0.2, 0.3, 0.5]]])
ONE_AGENT = {"num_latents": (3,), "num_actions": (2,), "lengths": (4, 1, 2)}
THREE_AGENTS = {
    "num_latents": (2, 3, 2),
    "num_actions": (3, 2, 4),
    "lengths": (3, 1, 2),
    "num_states": (2, 3),
}
COLLIDING = {"num_latents": (2, 2), "num_actions": (2, 2), "lengths": (4, 4), "num_states": (2, 2)}


def dirichlet(policy=("state",), transition=("state",), initial=()):
    return btil.TeamModel(
        policy=btil.DirichletCPT(0.7, parents=policy),
        transition=btil.DirichletCPT([0.9], parents=transition),
        initial=btil.DirichletCPT(1.3, parents=initial),
    )


def cyclic_transition(contexts):
    """From latent k to k or k + 1, the move likelier where ann's action is large; never back."""
    stay = 1 / (2.0 + contexts["action_ann"])
    latents = np.arange(2)
    rows = np.zeros((len(stay), 2, 2))
    rows[:, latents, latents] = stay[:, None]
    rows[:, latents, (latents + 1) % 2] += 1 - stay[:, None]
    rows[:, 1] = [0.0, 1.0]
    return rows


CASES = {
    "one agent": (rich_model, ONE_AGENT),
    "two agents": (rich_model, {}),
    "three agents": (rich_model, THREE_AGENTS),
    "colliding sizes": (rich_model, COLLIDING),
    "colliding sizes, all labelled": (rich_model, COLLIDING | {"labelled": 1.0}),
    "unlabelled": (rich_model, {"labelled": 0.0}),
    "all labelled": (rich_model, {"labelled": 1.0}),
    "one-step episodes": (rich_model, {"lengths": (1, 1, 1)}),
    "one episode of one step": (rich_model, {"lengths": (1,), "labelled": 0.0}),
    "no parents": (partial(dirichlet, ()), {}),
    "all of state, actions, next_state": (
        partial(dirichlet, ("x", "y"), ("state", "actions", "next_state"), ("state",)),
        {},
    ),
    "single variables": (
        partial(dirichlet, ("y",), ("action_bob", "next_x", "y"), ("x",)),
        {},
    ),
    "own and others' actions": (
        partial(dirichlet, ("x",), ("own_action", "other_actions")),
        THREE_AGENTS,
    ),
    "shared tables": (
        lambda: btil.TeamModel(
            policy=btil.Shared(btil.DirichletCPT(0.7, parents={"ann": ("x",), "bob": ("y",)})),
            transition=btil.Shared(btil.DirichletCPT(1.1, parents=("own_action",))),
            initial=btil.Shared(btil.DirichletCPT(1.0)),
        ),
        COLLIDING,
    ),
    "known tables with zeros": (
        lambda: btil.TeamModel(
            policy={
                "ann": btil.KnownCPT(KNOWN_POLICY, parents=("x",)),
                "bob": btil.DirichletCPT(0.5, parents=("x",)),
            },
            transition={
                "ann": btil.KnownCPT(cyclic_transition, parents=("actions",)),
                "bob": btil.DirichletCPT(0.5),
            },
        ),
        {"labelled": 0.0},
    ),
    "static": (
        lambda: btil.TeamModel(
            policy=btil.DirichletCPT(1.2, parents=("x",)),
            transition=btil.StaticCPT(),
            initial=btil.DirichletCPT(1.0),
        ),
        {"labelled": 0.0},
    ),
}


def make(case):
    model, sizes = CASES[case]
    return bind(model(), random_demos(seed=3, **sizes))


@lru_cache
def compiled(form):
    """The form's log density as a program of (structure, data, rows)."""
    import jax

    return jax.jit(form, static_argnums=0)


def forward_form(structure, data, rows):
    from numpyro.infer.util import log_density

    return log_density(partial(forward_model, structure, data), (), {}, rows)[0]


def enumerated_form(structure, data, rows):
    from numpyro.contrib.funsor import config_enumerate, enum, log_density

    model = config_enumerate(partial(enumerated_model, structure, data))
    return log_density(enum(model, first_available_dim=-2), (), {}, rows)[0]


def forward_density(bound, rows):
    return compiled(forward_form)(*model_data(bound), rows)


def enumerated_density(bound, rows):
    return compiled(enumerated_form)(*model_data(bound), rows)


# Compiling the enumerated form takes seconds a case.
@pytest.mark.parametrize("case", CASES)
def test_both_forms_are_the_sum_over_sequences(case):
    bound = make(case)
    rows = random_rows(bound, np.random.default_rng(1))
    likelihoods = episode_log_likelihoods(bound, rows)
    expected = likelihoods.sum() + log_prior(bound, rows)
    forward, enumerated = forward_density(bound, rows), enumerated_density(bound, rows)
    if np.isneginf(expected):
        assert forward == -np.inf
        assert enumerated < -1e29
    else:
        np.testing.assert_allclose(forward, expected, rtol=0, atol=1e-9)
        np.testing.assert_allclose(enumerated, expected, rtol=0, atol=1e-9)
        np.testing.assert_allclose(forward, enumerated, rtol=0, atol=1e-9)


def test_known_tables_can_be_possible():
    """So that the case above compares more than -inf with -inf."""
    bound = make("known tables with zeros")
    demos = bound.demos
    actions = np.array(demos.actions)
    actions[:, 0] = np.where(demos.state_variables["x"] == 0, 1, 0)
    possible = btil.Demonstrations(
        states=demos.state_variables,
        actions=actions,
        episodes=demos.episodes,
        agents=demos.agents,
        num_states=demos.num_states,
        num_actions=demos.num_actions,
        num_latents=demos.num_latents,
    )
    bound = bind(bound.model, possible)
    rows = random_rows(bound, np.random.default_rng(1))
    expected = episode_log_likelihoods(bound, rows).sum() + log_prior(bound, rows)
    assert np.isfinite(expected)
    np.testing.assert_allclose(forward_density(bound, rows), expected, atol=1e-9)
    np.testing.assert_allclose(enumerated_density(bound, rows), expected, atol=1e-9)


@pytest.mark.parametrize("case", ["colliding sizes", "two agents", "shared tables"])
@pytest.mark.usefixtures("numpyro_as_it_is")
def test_gradients_agree_in_unconstrained_space(case):
    import jax
    from numpyro.distributions import biject_to, constraints

    bound = make(case)
    simplex = biject_to(constraints.simplex)
    start = {n: simplex.inv(r) for n, r in random_rows(bound, np.random.default_rng(1)).items()}

    def of(density):
        def function(unconstrained):
            return density(bound, {n: simplex(z) for n, z in unconstrained.items()})

        return jax.jit(jax.value_and_grad(function))(start)

    forward, of_forward = of(forward_density)
    enumerated, of_enumerated = of(enumerated_density)
    np.testing.assert_allclose(forward, enumerated, rtol=0, atol=1e-9)
    for name in start:
        assert np.any(of_forward[name])
        np.testing.assert_allclose(of_forward[name], of_enumerated[name], rtol=0, atol=1e-9)


@pytest.mark.usefixtures("numpyro_as_it_is")
def test_gradients_next_to_given_zeros():
    """The enumerated form has none there; the forward form's are those of differences."""
    import jax
    from numpyro.distributions import biject_to, constraints

    bound = make("static")
    simplex = biject_to(constraints.simplex)
    rows = random_rows(bound, np.random.default_rng(1))
    start = {n: np.asarray(simplex.inv(r)) for n, r in rows.items()}

    @jax.jit
    def density(unconstrained):
        return forward_form(*model_data(bound), {n: simplex(z) for n, z in unconstrained.items()})

    gradient = jax.grad(density)(start)
    for name, values in start.items():
        for cell in list(np.ndindex(values.shape))[:4]:
            step = np.zeros_like(values)
            step[cell] = 1e-5
            above = density(start | {name: values + step})
            below = density(start | {name: values - step})
            np.testing.assert_allclose(gradient[name][cell], (above - below) / 2e-5, atol=1e-7)


def test_log_likelihood_is_per_episode():
    from numpyro.infer import log_likelihood

    bound = make("two agents")
    generator = np.random.default_rng(0)
    draws = [random_rows(bound, generator) for _ in range(3)]
    model = partial(forward_model, *model_data(bound))
    stacked = {name: np.stack([draw[name] for draw in draws]) for name in draws[0]}
    found = log_likelihood(model, stacked)
    assert set(found) == {"action_ann", "action_bob"}
    assert all(values.shape == (3, bound.demos.num_episodes) for values in found.values())
    expected = [episode_log_likelihoods(bound, draw) for draw in draws]
    np.testing.assert_allclose(sum(found.values()), expected, atol=1e-10)


@pytest.mark.parametrize("density", [forward_density, enumerated_density])
def test_order_of_episodes_does_not_matter(density):
    bound = make("two agents")
    rows = random_rows(bound, np.random.default_rng(1))
    turned = bind(bound.model, bound.demos.select(np.array([2, 0, 3, 1])))
    np.testing.assert_allclose(density(turned, rows), density(bound, rows), atol=1e-10)


@pytest.mark.parametrize("density", [forward_density, enumerated_density])
def test_order_of_agents_does_not_matter(density):
    bound = bind(dirichlet(("state",), ("y",), ("x",)), random_demos(seed=3, **THREE_AGENTS))
    demos, order = bound.demos, [2, 0, 1]
    turned = btil.Demonstrations(
        states=demos.state_variables,
        actions=demos.actions[:, order],
        latents=demos.latents[:, order],
        episodes=demos.episodes,
        agents=[demos.agents[i] for i in order],
        num_states=demos.num_states,
        num_actions=[demos.num_actions[i] for i in order],
        num_latents=[demos.num_latents[i] for i in order],
    )
    rows = random_rows(bound, np.random.default_rng(1))
    np.testing.assert_allclose(
        density(bind(bound.model, turned), rows), density(bound, rows), atol=1e-10
    )


@pytest.mark.parametrize("density", [forward_density, enumerated_density])
def test_names_of_latents_do_not_matter(density):
    bound = make("two agents")
    demos, order = bound.demos, np.array([2, 0, 1])
    rows = random_rows(bound, np.random.default_rng(1))
    latents = np.array(demos.latents)
    known = latents[:, 1] >= 0
    latents[known, 1] = np.argsort(order)[latents[known, 1]]
    relabelled = btil.Demonstrations(
        states=demos.state_variables,
        actions=demos.actions,
        latents=latents,
        episodes=demos.episodes,
        agents=demos.agents,
        num_states=demos.num_states,
        num_actions=demos.num_actions,
        num_latents=demos.num_latents,
    )
    turned = rows | {
        "policy_bob": rows["policy_bob"][:, order],
        "transition_bob": rows["transition_bob"][:, order][:, :, order],
        "initial_bob": rows["initial_bob"][:, order],
    }
    np.testing.assert_allclose(
        density(bind(bound.model, relabelled), turned), density(bound, rows), atol=1e-10
    )


def test_an_episode_of_padding_changes_nothing():
    import jax

    bound = make("colliding sizes")
    rows = random_rows(bound, np.random.default_rng(1))
    structure, data = model_data(bound)
    steps = jax.tree.map(lambda x: np.concatenate([x, np.zeros_like(x[:1])]), data.steps)
    padded = data._replace(steps=steps, lengths=np.append(data.lengths, 0))
    expected = forward_density(bound, rows)
    for form in (forward_form, enumerated_form):
        got = compiled(form)(structure, padded, rows)
        np.testing.assert_allclose(got, expected, atol=1e-10)


def test_sites_and_shapes():
    from numpyro import handlers

    bound = make("two agents")
    rows = random_rows(bound, np.random.default_rng(1))
    demos = bound.demos
    model = team_dbn(bound.model, demos)
    trace = handlers.trace(handlers.substitute(model, data=rows)).get_trace()
    shapes = {name: site["value"].shape for name, site in trace.items() if site["type"] == "sample"}
    tables = {
        f"{role}_{agent}": bound.tables[f"{role}_{agent}"].shape
        for role in ("policy", "transition", "initial")
        for agent in demos.agents
    }
    assert shapes == tables | {"action_ann": (4, 4), "action_bob": (4, 4)}
    assert trace["policy_bob"]["fn"].event_shape == tables["policy_bob"]
    assert [name for name, site in trace.items() if site.get("is_observed")] == [
        "action_ann",
        "action_bob",
    ]


def test_sites_of_the_enumerated_form():
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor.enum_messenger import trace as packed_trace
    from numpyro.handlers import seed, substitute

    bound = make("two agents")
    rows = random_rows(bound, np.random.default_rng(1))
    model = config_enumerate(team_dbn(bound.model, bound.demos, marginalize="enumerate"))
    with enum(first_available_dim=-2), seed(rng_seed=0), substitute(data=rows):
        trace = packed_trace(model).get_trace()
    found = {name.split("/")[-1].removeprefix("_PREV_") for name in trace}
    for agent in bound.demos.agents:
        assert {f"latent_{agent}", f"label_{agent}", f"action_{agent}"} <= found
        assert {f"policy_{agent}", f"transition_{agent}", f"initial_{agent}"} <= found


def test_tables_of_no_rows_have_no_site():
    bound = make("one-step episodes")
    assert model_data(bound)[0].learned == (
        "policy_ann",
        "policy_bob",
        "initial_ann",
        "initial_bob",
    )


def test_structure_is_hashable_and_data_are_not_in_it():
    first = model_data(bind(hmm_model(), hmm_demos([0, 1, 1], num_actions=2)))
    second = model_data(bind(hmm_model(), hmm_demos([1, 1, 0], num_actions=2)))
    assert first[0] == second[0]
    assert hash(first[0]) == hash(second[0])


def test_density_on_labelled_data_needs_no_sequences():
    """Closed form: the product of the cells that were used."""
    bound = make("all labelled")
    rows = random_rows(bound, np.random.default_rng(1))
    tables = all_rows(bound, rows)
    demos = bound.demos
    expected = log_prior(bound, rows)
    first = demos.episode_starts
    for i, agent in enumerate(demos.agents):
        label, used = demos.latents[:, i], bound.rows[agent]
        moved = np.flatnonzero(used.transition >= 0)
        expected += np.log(tables[f"policy_{agent}"][used.policy, label, demos.actions[:, i]]).sum()
        expected += np.log(tables[f"initial_{agent}"][used.initial, label[first]]).sum()
        cells = (used.transition[moved], label[moved - 1], label[moved])
        expected += np.log(tables[f"transition_{agent}"][cells]).sum()
    np.testing.assert_allclose(forward_density(bound, rows), expected, atol=1e-9)


def test_unknown_form_is_refused():
    with pytest.raises(ValueError, match="marginalize must be one of forward, enumerate"):
        team_dbn(hmm_model(), hmm_demos([0, 1]), marginalize="sum")


def parametric_team():
    """A policy that is a regression, and a transition whose rows scatter around base rows."""
    demos = btil.Demonstrations(
        {"x": [0, 1, 0, 1]}, {"ann": [0, 1, 2, 0]}, {"ann": [0, -1, 1, -1]}, num_latents=2
    )
    model = btil.TeamModel(
        policy=btil.SoftmaxCPT(("x",), weight_scale=0.7, bias_scale=1.2),
        transition=btil.HierarchicalDirichletCPT(5.0, 1.5, stay=2.0, parents=("action_ann",)),
        initial=btil.KnownCPT([0.25, 0.75]),
    )
    return model, demos


@pytest.mark.usefixtures("numpyro_as_it_is")
def test_tables_with_parameters_and_their_guide_have_the_densities_that_are_told():
    """SciPy's priors; of the guide normals that depend on each other, and rows given base rows."""
    import jax
    from numpyro import handlers

    model, demos = parametric_team()
    bound = bind(model, demos)
    structure, data = model_data(bound)
    generator = np.random.default_rng(0)
    base = np.array([[0.3, 0.7], [0.6, 0.4]])
    values = {
        "policy_ann_bias": generator.normal(size=(2, 3)),
        "policy_ann_weights": generator.normal(size=(2, 2, 3)),
        "transition_ann_base": base,
        "transition_ann": generator.dirichlet([1, 1], (3, 2)),
    }
    counts = generator.uniform(0, 3, (3, 2, 2))
    factor = generator.normal(size=(18, 18))
    group = "policy_ann"
    parameters = {
        "policy_ann_bias": JointNormals(np.full((2, 3), 0.5), factor[:6].reshape(2, 3, 18), group),
        "policy_ann_weights": JointNormals(
            np.full((2, 2, 3), -0.5), factor[6:].reshape(2, 2, 3, 18), group
        ),
        "transition_ann_base": NormalParameters(np.array([[0.4], [-0.3]]), np.full((2, 1), 0.8)),
    }
    rows = {
        "policy_ann": FunctionalRows(*(np.full((2, 2, 3), 1 / 3) for _ in range(2))),
        "transition_ann": ConditionalRows(counts, *(np.ones((3, 2, 2)) for _ in range(3))),
    }
    guide = btil.mfvi_guide(made_by_hand(model, demos, rows=rows, parameters=parameters))

    def sites(function):
        trace = handlers.trace(function).get_trace()
        sampled = {n: one for n, one in trace.items() if one["type"] == "sample"}
        return (
            {n: one["value"] for n, one in trace.items()},
            {n: one["fn"].log_prob(one["value"]).sum() for n, one in sampled.items()},
        )

    @jax.jit
    def both(key):
        tables = {}

        def prior():
            tables.update(sample_log_tables(structure, data))

        told = sites(handlers.substitute(prior, data=values))
        return tables, told, sites(handlers.seed(guide, key))

    tables, (told, logs), (drawn, of_guide) = jax.device_get(both(jax.random.key(0)))
    # The prior.
    scores = values["policy_ann_bias"][None] + values["policy_ann_weights"].swapaxes(0, 1)
    np.testing.assert_allclose(np.exp(tables["policy_ann"]), softmax(scores, -1), rtol=1e-10)
    np.testing.assert_allclose(told["policy_ann"], softmax(scores, -1), rtol=1e-10)
    np.testing.assert_allclose(np.exp(tables["transition_ann"]), values["transition_ann"])
    np.testing.assert_allclose(np.exp(tables["initial_ann"]), [[0.25, 0.75]])
    concentration = 5 * base + 2 * np.eye(2)
    expected = {
        "policy_ann_bias": stats.norm(0, 1.2).logpdf(values["policy_ann_bias"]).sum(),
        "policy_ann_weights": stats.norm(0, 0.7).logpdf(values["policy_ann_weights"]).sum(),
        "transition_ann_base": sum(stats.dirichlet([1.5, 1.5]).logpdf(row) for row in base),
        "transition_ann": sum(
            stats.dirichlet(concentration[at[1]]).logpdf(values["transition_ann"][at])
            for at in np.ndindex(3, 2)
        ),
    }
    assert logs == pytest.approx(expected)
    # The guide.
    own = [drawn[f"policy_ann_{name}"].ravel() for name in ("bias", "weights")]
    location = np.repeat([0.5, -0.5], [6, 12])
    joint = stats.multivariate_normal(location, factor @ factor.T).logpdf(np.concatenate(own))
    found = sum(log for name, log in of_guide.items() if name.startswith("policy"))
    assert found == pytest.approx(joint)
    np.testing.assert_allclose(
        np.concatenate(own), location + factor @ drawn["policy_ann_noise"], rtol=1e-8
    )
    first = drawn["transition_ann_base"][:, 0]
    normal = stats.norm([0.4, -0.3], 0.8).logpdf(np.log(first / (1 - first)))
    expected = (normal - np.log(first * (1 - first))).sum()
    assert of_guide["transition_ann_base"] == pytest.approx(expected)
    concentration = 5 * drawn["transition_ann_base"] + 2 * np.eye(2) + counts
    expected = sum(
        stats.dirichlet(concentration[at]).logpdf(drawn["transition_ann"][at])
        for at in np.ndindex(3, 2)
    )
    assert of_guide["transition_ann"] == pytest.approx(expected)
    assert set(of_guide) == {*values, "policy_ann_noise"}


def test_arrays_of_a_model_are_those_of_its_episodes_padded():
    """Members without actions take the only one; gaps stand where they were, later than nothing."""
    there = np.ones((7, 2), bool)
    there[[1, 5], 1] = False
    weights = np.random.default_rng(0).uniform(0.1, 1, (7, 2))
    demos = btil.Demonstrations(
        {"x": [0, 1, 1, 0, 1, 0, 1]},
        {"ann": [0, 1, -1, 2, 0, -1, 1]},
        {"ann": [0, -1, -1, 1, -1, -1, -1], "bob": [1, -1, -1, 0, -1, -1, 1]},
        [0, 0, 0, 0, 1, 1, 1],
        agents=("ann", "bob"), num_actions={"ann": 3}, num_latents=2, missing="allow",
        present=there, latent_weights={"ann": weights}, continuous={"bob_v": np.arange(7.0)},
    )  # fmt: skip
    model = btil.TeamModel(
        btil.DirichletCPT(0.7, ("x",)), btil.DirichletCPT(0.9, ("own_action",)),
        btil.KnownCPT([0.25, 0.75]),
    )  # fmt: skip
    model = btil.TeamModel(
        model.policy, {"ann": model.transition, "bob": btil.StaticCPT()}, model.initial
    )
    bound = bind(model, demos)
    structure, data = model_data(bound)
    assert data.lengths.tolist() == [4, 3]
    assert structure.learned == tuple(n for n, t in bound.tables.items() if t.learned)
    np.testing.assert_allclose(np.exp(data.log_fixed["initial_ann"]), [[0.25, 0.75]])
    ann, bob = data.steps["ann"], data.steps["bob"]
    assert ann.actions.tolist() == [[0, 1, -1, 2], [0, -1, 1, 0]]
    assert ann.labels.tolist() == [[0, -1, -1, 1], [-1, -1, -1, -1]]
    assert bob.labels.tolist() == [[1, -1, -1, 0], [-1, -1, 1, -1]]
    assert (bob.actions == 0).all()
    rows = bound.rows["ann"]
    episodes = ([0, 1, 2, 3], [4, 5, 6])
    for m, steps in enumerate(episodes):
        seen = rows.policy[steps]
        assert ann.policy[m, : len(steps)].tolist() == seen.tolist()
        moved = np.maximum(rows.transition[steps[1:]], 0)
        assert ann.transition[m, : len(steps) - 1].tolist() == moved.tolist()
        np.testing.assert_allclose(np.exp(ann.log_weights[m, : len(steps)]), weights[steps])
    assert ann.initial.tolist() == rows.initial.tolist() == [0, 0]
    # The moves that follow actions which nobody saw.
    assert ann.unseen.move.tolist() == [[-1, -1, 0], [-1, 1, -1]]
    assert (ann.stays, ann.away) == (None, None)
    assert bob.stays.tolist() == [[0, -1, 0, -1], [0, -1, 0, -1]]
    assert bob.away.tolist() == [[False, True, False, False], [False, True, False, False]]
    assert (bob.log_weights, bob.unseen) == (None, None)


@pytest.mark.usefixtures("numpyro_as_it_is")
def test_steps_tell_by_columns_and_annotations_together():
    """The normals' densities in the data's units, and the weights where there are some."""
    generator = np.random.default_rng(2)
    columns = {"ann_v": generator.normal(5, 3, 7), "bob_v": generator.normal(-1, 0.1, 7)}
    weights = {"ann": generator.uniform(0.1, 1, (7, 2))}
    demos = btil.Demonstrations(
        {"x": [0, 1, 1, 0, 1, 0, 1]}, [[0, 1]] * 7, None, [0, 0, 0, 0, 1, 1, 1],
        agents=("ann", "bob"), num_actions=2, num_latents=2, continuous=columns,
    )  # fmt: skip
    model = btil.TeamModel(
        btil.UniformCPT(), btil.StaticCPT(), btil.KnownCPT([0.25, 0.75]),
        emissions={agent: btil.NormalEmission((f"{agent}_v",)) for agent in demos.agents},
    )  # fmt: skip
    evidence = jax.jit(lambda *of: latent_chain(*of).log_likelihood, static_argnums=0)
    said = {}
    for annotated in (False, True):
        bound = bind(model, demos.replace(latent_weights=weights) if annotated else demos)
        structure, data = model_data(bound)
        tables = {name: jnp.asarray(rows) for name, rows in data.log_fixed.items()}
        values = {
            one.agent: ChannelValues(
                jnp.array([[[[-0.3]], [[0.6]]]]) * (1.0 + at), jnp.array([[[[0.5]], [[1.5]]]])
            )
            for at, one in enumerate(structure.channels)
        }
        for sites in structure.agents:
            told = evidence(sites, data, tables, values)
            said[annotated, sites.agent] = np.concatenate([told[0], told[1, :3]])
    for agent, channel in bound.channels.items():
        mean, covariance = in_units(channel.units(), values[agent])
        scale = np.sqrt(np.asarray(covariance)[0, :, 0, 0])
        of_normals = stats.norm(np.asarray(mean)[0, :, 0, 0], scale).logpdf(
            columns[f"{agent}_v"][:, None]
        )
        np.testing.assert_allclose(said[False, agent], of_normals, rtol=1e-10)
        logs = np.log(weights[agent]) if agent in weights else 0.0
        np.testing.assert_allclose(said[True, agent], of_normals + logs, rtol=1e-10)
