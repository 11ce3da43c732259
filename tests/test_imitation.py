"""The learners that know the task: each against counts, NumPy, a dense network, or the truth."""

import itertools
from unittest.mock import create_autospec

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import btil
from btil.demonstrations import Demonstrations
from btil.domains.gridworld.derived import task_states
from btil.imitation import behavioral_cloning, learn, magail, method_options, players, ppo
from btil.imitation.bayesian import believed, paper_model
from btil.imitation.learning import METHODS, LearnedTeam, task_demonstrations
from btil.imitation.networks import (
    NO_ROW,
    StateRows,
    make_networks,
    outputs,
    probabilities,
    row_indices,
    with_state_rows,
)
from btil.inference.result import FitResult
from btil.posterior.posterior import TeamPosterior

# Networks small enough for a test; MAGAIL starts from policies that are hardly cloned.
QUICK = {
    "random": {},
    "tabular-cloning": {},
    "behavioral-cloning": {"num_iterations": 100, "hidden": (16,), "learning_rate": 1e-2},
    "magail": {
        "num_iterations": 25,
        "batch_size": 64,
        "max_steps": 20,
        "learning_rate": 1e-2,
        "pretraining_iterations": 1,
        "first_iterations": 2,
        "first_discriminator_updates": 10,
        "hidden": (16,),
        "discriminator_hidden": (16,),
    },
    "ppo": {
        "num_iterations": 5,
        "batch_size": 64,
        "num_runs": 8,
        "max_steps": 20,
        "learning_rate": 1e-2,
        "pretraining_iterations": 1,
        "hidden": (16,),
    },
    "btil": {},
}


@pytest.fixture(scope="module")
def task():
    return btil.domains.cleanup(map="tiny")


@pytest.fixture(scope="module")
def truth(task):
    """Policies that a latent all but decides, in another way for each agent."""
    policies = {}
    for i, agent in enumerate(task.agents):
        policy = np.full((task.num_states, task.num_latents, task.num_actions), 0.02)
        for latent in range(task.num_latents):
            policy[:, latent, latent + i] = 0.9
        policies[agent] = policy
    return policies


@pytest.fixture(scope="module")
def demos(task, truth):
    return task.simulate(40, seed=3, max_steps=20, policies=truth)


@pytest.fixture(scope="module")
def teams(task, demos) -> dict[str, LearnedTeam]:
    return {
        method: learn(task, demos, method, progress=False, **options)
        for method, options in QUICK.items()
    }


def divergence(task, demos: Demonstrations, truth, policies) -> float:
    """Weighted JS divergence from the true policies, mean of the agents."""
    values = []
    for i, agent in enumerate(task.agents):
        visits = np.zeros((task.num_states, task.num_latents))
        np.add.at(visits, (task_states(task, demos), demos.latents[:, i]), 1)
        values.append(
            btil.analysis.weighted_js_divergence(
                truth[agent], policies[agent], visits / visits.sum()
            )
        )
    return float(np.mean(values))


# One interface ------------------------------------------------------------------------------------


def test_every_method_has_its_file():
    assert set(METHODS) == set(QUICK)
    assert {"learn", "METHODS", "LearnedTeam"} <= set(dir(btil.imitation))


@pytest.mark.parametrize("method", METHODS)
def test_a_team_has_a_policy_row_for_every_state(task, demos, teams, method):
    team = teams[method]
    assert list(team.policies) == list(task.agents)
    for policy in team.policies.values():
        assert policy.shape == (task.num_states, task.num_latents, task.num_actions)
        assert policy.dtype == np.float64
        assert (policy >= 0).all()
        np.testing.assert_allclose(policy.sum(-1), 1, atol=1e-6)
    assert (team.method, team.seed, team.known_transition) == (method, 0, True)
    assert team.options == QUICK[method]
    assert team.wall_time >= 0
    assert team.reason
    assert all(
        np.isfinite(curve).all() and curve.ndim == 1 for curve in team.learning_curve.values()
    )
    assert team.converged == (method not in ("behavioral-cloning", "magail", "ppo"))


@pytest.mark.parametrize("method", ["tabular-cloning", "behavioral-cloning", "magail", "btil"])
def test_learners_come_closer_to_the_truth_than_chance(task, demos, truth, teams, method):
    chance = divergence(task, demos, truth, teams["random"].policies)
    share = {"magail": 0.7}.get(method, 0.3)
    assert divergence(task, demos, truth, teams[method].policies) < share * chance


@pytest.mark.parametrize("method", METHODS)
def test_decoding_is_viterbi_with_the_policies_and_the_true_transition(task, demos, teams, method):
    team = teams[method]
    few = demos.select(range(3))
    decoded = team.decode(few)
    assert (decoded == team.decode(few.without_labels())).all()
    states = task_states(task, few)
    for i, agent in enumerate(task.agents):
        for start, length in zip(few.episode_starts, few.episode_lengths, strict=True):
            steps = np.arange(start, start + length)
            log_factors = np.log(
                np.maximum(team.policies[agent][states[steps], :, few.actions[steps, i]], 1e-300)
            )
            log_moves = np.log(
                np.maximum(
                    task.latent_transition(agent, states[steps[:-1]], states[steps[1:]]), 1e-300
                )
            )
            score = np.log(
                np.maximum(task.initial_latent_probs(agent, states[steps[:1]])[0], 1e-300)
            )
            score = score + log_factors[0]
            for t in range(1, length):
                score = (score[:, None] + log_moves[t - 1]).max(0) + log_factors[t]
            path = decoded[steps, i]
            total = np.log(task.initial_latent_probs(agent, states[steps[:1]])[0, path[0]])
            total += log_factors[np.arange(length), path].sum()
            total += log_moves[np.arange(length - 1), path[:-1], path[1:]].sum()
            assert total == pytest.approx(score.max(), rel=1e-5, abs=1e-4)


def test_task_state_as_the_only_variable_gives_the_same(task, demos, teams):
    alone = Demonstrations(
        states=task_states(task, demos),
        actions=demos.actions,
        latents=demos.latents,
        episodes=demos.episodes,
        agents=demos.agents,
        num_latents=demos.num_latents,
    )
    assert task_demonstrations(task, demos) == demos
    nameless = demos.replace(state_names=None, action_names=None, latent_names=None)
    assert task_demonstrations(task, nameless) == demos
    same = task_demonstrations(task, alone)
    assert same.num_states == task.state_sizes
    assert (same.states == demos.states).all()
    team = learn(task, alone, "tabular-cloning", progress=False)
    for agent in task.agents:
        assert (team.policies[agent] == teams["tabular-cloning"].policies[agent]).all()
    assert (team.decode(alone) == teams["tabular-cloning"].decode(demos)).all()


@pytest.mark.parametrize("method", ["behavioral-cloning", "magail", "ppo"])
def test_the_same_seed_gives_the_same_bits_and_compiles_nothing_again(task, demos, teams, method):
    programs = [
        behavioral_cloning._advance,
        outputs,
        magail._train_discriminator,
        players._train_players,
        magail._judge,
    ]
    before = [program._cache_size() for program in programs]
    short = QUICK[method] | {"num_iterations": 3}
    first, again, other = (
        learn(task, demos, method, seed=seed, progress=False, **short) for seed in (5, 5, 6)
    )
    assert [program._cache_size() for program in programs] == before
    for agent in task.agents:
        assert (again.policies[agent] == first.policies[agent]).all()
        assert (other.policies[agent] != first.policies[agent]).any()


def test_progress_goes_to_standard_error_only_when_wanted(task, demos, capsys):
    short = QUICK["magail"] | {"num_iterations": 2}
    learn(task, demos, "magail", progress=True, **short)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "magail: cloning" in shown.err
    assert "2/2" in shown.err
    learn(task, demos, "magail", progress=False, **short)
    assert capsys.readouterr() == ("", "")


# Random, counts and BTIL --------------------------------------------------------------------------


def test_random_without_the_transition_has_nothing_to_go_by(task, demos, teams):
    team = learn(task, demos, "random", known_transition=False, progress=False)
    assert (team.policies["rob"] == 1 / 6).all()
    belief = team.posterior.smooth(demos.without_labels())["rob"]
    np.testing.assert_allclose(belief, 1 / task.num_latents, atol=1e-6)


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_tabular_cloning_counts(task, demos, smoothing):
    team = learn(task, demos, "tabular-cloning", progress=False, smoothing=smoothing)
    states = task_states(task, demos)
    for i, agent in enumerate(task.agents):
        counted = np.full((task.num_states, task.num_latents, task.num_actions), smoothing)
        for state, latents, actions in zip(states, demos.latents, demos.actions, strict=True):
            counted[state, latents[i], actions[i]] += 1
        visited = np.zeros(counted.shape[:2], bool)
        visited[states, demos.latents[:, i]] = True
        expected = np.where(
            visited[..., None],
            counted / np.where(visited, counted.sum(-1), 1)[..., None],
            1 / task.num_actions,
        )
        np.testing.assert_allclose(team.policies[agent], expected, atol=1e-12)


def test_btil_on_labels_alone_is_smoothed_counting(task, demos, teams):
    """The mode of a Dirichlet of u + counts is counting with u - 1 added."""
    counted = learn(
        task, demos, "tabular-cloning", progress=False, smoothing=task.policy_concentration - 1
    )
    for agent in task.agents:
        np.testing.assert_allclose(
            teams["btil"].policies[agent], counted.policies[agent], atol=1e-5
        )
    assert (teams["btil"].decode(demos) == counted.decode(demos)).mean() > 0.99


def test_btil_learns_from_some_labels_with_derived_parents_and_no_transition(task, demos, truth):
    wider = task.add_derived_variables(demos)
    own = {agent: (f"{agent}_cell", f"{agent}_held") for agent in task.agents}
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.1, parents=own), transition=btil.DirichletCPT(1.1)
    )
    partly = wider.without_labels(range(10, wider.num_episodes))
    team = learn(task, partly, "btil", model=model, known_transition=False, progress=False)
    assert team.posterior.model is model
    values = task.decode_states(np.arange(task.num_states))
    held = task.held_items(np.arange(task.num_states))
    for i, agent in enumerate(task.agents):
        _, first, group = np.unique(
            np.stack([values[:, i], held[:, i]]), axis=1, return_index=True, return_inverse=True
        )
        assert (team.policies[agent] == team.policies[agent][first][group]).all()
    assert divergence(task, demos, truth, team.policies) < 0.1
    assert (team.decode(wider) == demos.latents).mean() > 0.9
    elbo = team.learning_curve["elbo"]
    assert len(elbo) > 1
    assert elbo[-1] == pytest.approx(team.posterior.elbo)


def test_btil_uses_the_true_transition_where_it_is_known(task, teams):
    model = teams["btil"].posterior.model
    assert model.policy.parents == tuple(task.state_sizes)
    states, next_states = np.array([[0, 5, 9], [1, 5, 40]])
    asked = dict(zip(task.state_sizes, task.decode_states(states).T, strict=True))
    for agent in task.agents:
        found = teams["btil"].posterior.transition(
            agent,
            asked,
            next_states=dict(zip(task.state_sizes, task.decode_states(next_states).T, strict=True)),
        )
        np.testing.assert_array_equal(found, task.latent_transition(agent, states, next_states))
    mine = btil.TeamModel(policy=btil.DirichletCPT(2.0))
    used = believed(task, mine, known_transition=True)
    assert used.policy is mine.policy
    assert set(used.transition) == set(used.initial) == set(task.agents)
    assert believed(task, mine, known_transition=False) is mine
    unknown = believed(task, None, known_transition=False)
    assert unknown.transition.parents == (*task.state_sizes, "actions")
    assert unknown.initial.learned


def test_paper_model_has_the_concentrations_of_appendix_d():
    found = {
        name: paper_model(getattr(btil.domains, name)(map="tiny")) for name in ("movers", "cleanup")
    }
    assert float(found["movers"].policy.concentration_per_cell) == 1.2
    assert float(found["cleanup"].policy.concentration_per_cell) == 1.01
    assert {float(m.transition.concentration_per_cell) for m in found.values()} == {1.01}


# Networks -----------------------------------------------------------------------------------------

SIZES = (3, 2)
STATES = 5


def small_networks(num_state_rows=STATES, number=2, hidden=(4,), activation="tanh"):
    return make_networks(
        np.random.default_rng(4),
        number,
        sizes=SIZES,
        num_state_rows=num_state_rows,
        hidden=hidden,
        num_outputs=2,
        activation=activation,
    )


def filled(networks, seed=0):
    """The same with rows for states that are not zero."""
    rows = jnp.asarray(np.random.default_rng(seed).normal(size=networks.rows.shape), jnp.float32)
    return eqx.tree_at(lambda n: n.rows, networks, rows)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_look_up_equals_a_dense_layer_on_one_hot_codes(activation):
    networks = filled(small_networks(hidden=(4, 3), activation=activation))
    every = np.array(list(itertools.product(*map(range, (*SIZES, STATES)))))
    indices = row_indices(SIZES, every[:, :2], every[:, 2])
    codes = np.concatenate([np.eye(n)[every[:, k]] for k, n in enumerate((*SIZES, STATES))], axis=1)
    function = {"tanh": jnp.tanh, "relu": jax.nn.relu}[activation]
    weights = np.random.default_rng(0).normal(size=(2, len(every), 2))

    def dense(networks):
        hidden = codes @ networks.rows + networks.bias[:, None]
        for layer in networks.layers:
            hidden = function(hidden) @ layer.weight.swapaxes(1, 2) + layer.bias[:, None]
        return (weights * hidden).sum(), hidden

    def looked_up(networks):
        found = outputs(networks, jnp.broadcast_to(indices, (2, *indices.shape)))
        return (weights * found).sum(), found

    mine, theirs = (
        jax.jit(jax.value_and_grad(one, has_aux=True))(networks) for one in (looked_up, dense)
    )
    for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_a_state_without_a_row_reads_zeros_and_gets_no_gradient():
    networks = small_networks(num_state_rows=2)
    without = np.array([[[0, 3, NO_ROW + 5]]] * 2, np.int32)
    zero = np.array([[[0, 3, 5]]] * 2, np.int32)
    assert (networks.rows[:, 5:] == 0).all()
    np.testing.assert_array_equal(outputs(networks, without), outputs(networks, zero))
    gradient = jax.jit(jax.grad(lambda n: outputs(n, without).sum()))(networks)
    assert (gradient.rows[:, 5:] == 0).all()
    assert (gradient.rows[:, 0] != 0).all()


def test_rows_of_the_states_met_and_rows_of_all_states_learn_the_same():
    """Training on 3 of 50 states: with a row for each state, or only for those met."""
    generator = np.random.default_rng(0)
    states = np.array([41, 7, 19])[generator.integers(0, 3, 16)]
    small = np.stack([generator.integers(0, n, 16) for n in SIZES], axis=1)
    actions = generator.integers(0, 2, 16)
    met, every = StateRows(50), StateRows(50)
    met.meet(states)
    every.meet(np.arange(50))
    assert (met.count, every.count) == (3, 50)
    assert sorted(met.of_state[[41, 7, 19]]) == [0, 1, 2]
    assert (np.delete(met.of_state, [41, 7, 19]) == NO_ROW).all()
    found = []
    for rows, num_rows in [(met, 4), (every, 50)]:
        cloned = behavioral_cloning.clone(
            small_networks(num_rows),
            behavioral_cloning.stack_examples(
                [row_indices(SIZES, small, rows.of_state[states])] * 2, [actions, 1 - actions]
            ),
            np.random.default_rng(1),
            num_iterations=60,
            batch_size=8,
            learning_rate=0.01,
            description="",
            progress=False,
        )
        asked = row_indices(SIZES, np.tile(small[:1], (50, 1)), rows.of_state[np.arange(50)])
        found.append((probabilities(cloned.networks, np.stack([asked] * 2)), cloned.losses))
    np.testing.assert_allclose(found[0][0], found[1][0], atol=1e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-5)
    assert np.ptp(found[0][0][0, :, 0]) > 0.01


def test_more_rows_change_nothing():
    networks = filled(small_networks())
    state = optax.adam(0.1).init(networks)
    wider, wider_state = with_state_rows((networks, state), 7)
    assert wider.rows.shape == (2, 17, 4)
    assert [part.rows.shape for part in (wider_state[0].mu, wider_state[0].nu)] == [(2, 17, 4)] * 2
    indices = np.array([[[1, 4, 9]]] * 2, np.int32)
    np.testing.assert_array_equal(outputs(networks, indices), outputs(wider, indices))


def test_rows_spread_over_states():
    rows = StateRows(4)
    rows.meet(np.array([2, 0]))
    listed = rows.every_row(3)
    assert listed[-1] == NO_ROW
    values = np.arange(2 * len(listed)).reshape(2, len(listed), 1).astype(float)
    spread = rows.spread(values)
    last = len(listed) - 1
    np.testing.assert_array_equal(spread[:, 0, 0], [0, last, 1, last])
    np.testing.assert_array_equal(spread[:, 1, 0], spread[:, 0, 0] + len(listed))


def test_networks_without_examples_stay_where_they_are():
    networks = small_networks(4)
    examples = behavioral_cloning.stack_examples(
        [np.zeros((0, 3), np.int32), np.array([[0, 3, 5]], np.int32)],
        [np.zeros(0, np.int64), np.ones(1, np.int64)],
    )
    cloned = behavioral_cloning.clone(
        networks,
        examples,
        np.random.default_rng(0),
        num_iterations=60,
        batch_size=8,
        learning_rate=0.05,
        description="",
        progress=False,
    )
    trained, losses = cloned.networks, cloned.losses
    for before, after in zip(jax.tree.leaves(networks), jax.tree.leaves(trained), strict=True):
        np.testing.assert_array_equal(before[0], after[0])
    assert losses.shape == (60,)
    assert losses[-1] < 0.1 * losses[0]
    assert probabilities(trained, np.array([[[0, 3, 5]]] * 2, np.int32))[1, 0, 1] > 0.9


def test_losses_of_cloning_are_cross_entropies(task, teams):
    loss = teams["behavioral-cloning"].learning_curve["loss"]
    assert loss[0] == pytest.approx(np.log(task.num_actions), abs=0.3)
    assert loss[-10:].mean() < 0.6 * loss[0]


def test_held_out_are_whole_episodes_of_the_share_asked_for():
    lengths = np.array([3, 1, 4, 2, 5, 1, 2, 3, 4, 2])
    nothing = np.zeros(lengths.sum(), int)
    demos = Demonstrations(
        nothing, nothing, episodes=np.repeat(np.arange(10), lengths), num_latents=1
    )

    def out(share, seed=0):
        kept = behavioral_cloning._kept_for_training(demos, share, np.random.default_rng(seed))
        held = [set(part.tolist()) for part in np.split(kept, demos.episode_starts[1:])]
        assert all(len(one) == 1 for one in held)
        return [k for k, one in enumerate(held) if one == {False}]

    assert out(0.0) == []
    # One at least, and else as many as are nearest to the share.
    assert [len(out(share)) for share in (0.01, 0.3, 0.36, 0.9)] == [1, 3, 4, 9]
    assert out(0.3) != out(0.3, seed=1)
    with pytest.raises(ValueError, match=r"held_out is 0\.96: of 10 episodes none would be left"):
        out(0.96)


def test_losses_of_what_is_held_out_are_means_over_examples_and_not_over_padding():
    networks = filled(small_networks())
    indices = [
        np.array([[0, 3, 5], [1, 4, 6], [2, 3, 9]], np.int32),
        np.array([[2, 4, 7]], np.int32),
    ]
    actions = [np.array([0, 1, 1]), np.array([1])]
    examples = behavioral_cloning.stack_examples(indices, actions)
    assert examples.indices.shape[1] > 3
    losses = []
    for k, (own, taken) in enumerate(zip(indices, actions, strict=True)):
        logits = np.asarray(outputs(networks, np.stack([own] * 2)), np.float64)[k]
        chosen = logits[np.arange(len(taken)), taken]
        losses += (np.log(np.exp(logits).sum(-1)) - chosen).tolist()
    assert behavioral_cloning._loss(networks, examples) == pytest.approx(np.mean(losses), rel=1e-5)


@pytest.mark.parametrize("inputs", ["state", "variables"])
def test_networks_are_trained_on_what_is_not_held_out(task, inputs, monkeypatch):
    demos = task.simulate(10, seed=3, max_steps=20)
    given = {}

    def clone(networks, examples, generator, held_out, **training):
        given.update(training, examples=(examples, held_out))
        return behavioral_cloning.Cloned(networks, np.zeros(1), np.zeros(0), False)

    monkeypatch.setattr(behavioral_cloning, "clone", clone)
    training = {
        "num_iterations": 7, "batch_size": 5, "learning_rate": 0.25, "weight_decay": 0.5,
        "patience": 3, "progress": False,
    }  # fmt: skip
    behavioral_cloning.learn(
        task, demos, known_transition=True, seed=4, hidden=(4,), inputs=inputs, held_out=0.3,
        **training,
    )  # fmt: skip
    assert {name: given[name] for name in training} == training
    kept = behavioral_cloning._kept_for_training(demos, 0.3, np.random.default_rng(4))
    assert 0 < (~kept).sum() < kept.sum()
    latents = [None] if inputs == "variables" else range(task.num_latents)
    for examples, steps in zip(given["examples"], (kept, ~kept), strict=True):
        expected = [
            demos.actions[steps & ((latent is None) | (demos.latents[:, i] == latent)), i].tolist()
            for i in range(len(task.agents))
            for latent in latents
        ]
        assert examples.sizes.tolist() == [len(one) for one in expected]
        for actions, one in zip(examples.actions, expected, strict=True):
            assert actions[: len(one)].tolist() == one


@pytest.mark.parametrize(
    ("looks", "stopped", "reason"),
    [
        ([], False, "all 3 iterations done; there is no other criterion"),
        ([1.0, 2.0], True, "held-out actions were no better foretold after 3 iterations"),
        ([2.0], False, "all 3 iterations done; held-out actions might be foretold better yet"),
    ],
)
def test_cloning_tells_how_it_ended(looks, stopped, reason):
    losses = np.array([3.0, 2.0, 1.0])
    cloned = behavioral_cloning.Cloned(small_networks(), losses, np.array(looks), stopped)
    told = behavioral_cloning._told({}, cloned)
    assert (told.converged, told.reason) == (stopped, reason)
    curves = {"loss": losses} | ({"held_out_loss": np.array(looks)} if looks else {})
    assert {name: curve.tolist() for name, curve in told.learning_curve.items()} == {
        name: curve.tolist() for name, curve in curves.items()
    }


def test_btil_is_a_mean_field_of_the_options_asked_for_at_its_modes(task, demos, monkeypatch):
    posterior = create_autospec(TeamPosterior, instance=True)
    posterior.elbo_trace, posterior.converged, posterior.reason = np.array([-2.0, -1.0]), True, "so"
    posterior.policy.side_effect = lambda agent, states, estimate: np.full(
        (task.num_states, task.num_latents, 6), 1 + task.agents.index(agent)
    )
    asked = {}

    def fit(model, given, **options):
        asked.update(options, model=model, demos=given)
        return posterior

    monkeypatch.setattr("btil.imitation.bayesian.fit", fit)
    options = {"num_restarts": 3, "tolerance": 0.5, "max_iterations": 7}
    team = learn(task, demos, "btil", known_transition=False, seed=9, progress=False, **options)
    model = asked.pop("model")
    assert model == paper_model(task)
    assert asked == {
        "demos": demos, "method": "mfvi", "seed": 9, "progress": False, **options
    }  # fmt: skip
    for number, agent in enumerate(task.agents):
        assert (team.policies[agent] == 1 + number).all()
        (_, states), how = posterior.policy.call_args_list[number]
        assert how == {"estimate": "map"}
        np.testing.assert_array_equal(
            task.encode(np.stack([states[n] for n in task.state_sizes], 1)),
            np.arange(task.num_states),
        )
    assert team.posterior is posterior
    assert team.learning_curve["elbo"].tolist() == [-2.0, -1.0]
    assert (team.converged, team.reason, team.seed) == (True, "so", 9)
    assert not team.known_transition
    with pytest.raises(ValueError, match="model must be a TeamModel, got str"):
        # Also where no type checker has looked before.
        getattr(believed, "__wrapped__", believed)(task, "paper", True)


# PPO and MAGAIL -----------------------------------------------------------------------------------


def test_advantages_are_sums_of_discounted_errors():
    generator = np.random.default_rng(1)
    steps, runs, discount, trace_decay = 6, 4, 0.9, 0.7
    rewards, values, next_values = generator.normal(size=(3, steps, runs))
    ended = generator.random((steps, runs)) < 0.3
    final = ended & (generator.random((steps, runs)) < 0.5)
    assert final.any()
    assert (ended & ~final).any()
    found = ppo.generalized_advantages(
        rewards, values, next_values, final, ended, discount, trace_decay
    )
    for run in range(runs):
        for t in range(steps):
            total, weight = 0.0, 1.0
            for later in range(t, steps):
                after = 0.0 if final[later, run] else next_values[later, run]
                total += weight * (rewards[later, run] + discount * after - values[later, run])
                weight *= discount * trace_decay
                if ended[later, run]:
                    break
            assert found[t, run] == pytest.approx(total)


def test_surrogate_entropy_and_log_probs_by_hand():
    generator = np.random.default_rng(2)
    logits = generator.normal(size=(2, 50, 6)).astype(np.float32)
    actions = generator.integers(0, 6, (2, 50))
    probs = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    log_probs = np.asarray(ppo.taken_log_probs(jnp.asarray(logits), jnp.asarray(actions)))
    for i, j in itertools.product(range(2), range(50)):
        assert log_probs[i, j] == pytest.approx(np.log(probs[i, j, actions[i, j]]), abs=1e-5)
    np.testing.assert_allclose(
        ppo.entropy(jnp.asarray(logits)), -(probs * np.log(probs)).sum(-1), atol=1e-5
    )
    ratio = np.exp(generator.normal(size=100, scale=0.5))
    advantages = generator.normal(size=100)
    found = np.asarray(ppo.clipped_surrogate(jnp.log(ratio), jnp.asarray(advantages), 0.2))
    for rho, advantage, value in zip(ratio, advantages, found, strict=True):
        bounded = min(max(rho, 0.8), 1.2)
        assert value == pytest.approx(min(rho * advantage, bounded * advantage), abs=1e-5)


def lesson_of_two_actions(batch=32):
    """One state, one latent; action 1 is 1 better than action 0, which is worth 1."""
    actions = np.tile([0, 1], batch // 2)
    policy_indices = np.tile(np.array([0, 1], np.int32), (2, batch, 1))
    return players.Lesson(
        policy_indices=jnp.asarray(policy_indices),
        value_indices=jnp.asarray(policy_indices[:1]),
        actions=jnp.asarray(np.stack([actions, 1 - actions]), jnp.int32),
        advantages=jnp.asarray(actions * 2.0 - 1, jnp.float32),
        targets=jnp.ones(batch),
    )


def players_of_two_actions():
    arguments = {"sizes": (1,), "num_state_rows": 1, "hidden": (8,), "activation": "tanh"}
    return players.Players(
        make_networks(np.random.default_rng(0), 2, num_outputs=2, **arguments),
        make_networks(np.random.default_rng(1), 1, num_outputs=1, **arguments),
    )


PPO = players.Settings(
    num_steps=1,
    max_steps=1,
    learning_rate=0.001,
    num_epochs=500,
    clip=0.2,
    discount=1.0,
    trace_decay=1.0,
    entropy_weight=0.0,
)


def test_policies_gain_by_their_entropy():
    untrained, lesson = players_of_two_actions(), lesson_of_two_actions()
    idle = lesson._replace(advantages=jnp.zeros_like(lesson.advantages))
    settings = PPO._replace(entropy_weight=1.0)
    *_, before = players._train_players(
        players.with_optimizer(untrained, 0.001), idle, settings._replace(num_epochs=1)
    )
    *_, after = players._train_players(players.with_optimizer(untrained, 0.001), idle, settings)
    assert before < np.log(2) - 0.01
    assert after == pytest.approx(np.log(2), abs=1e-3)


def test_ppo_follows_the_advantages_as_far_as_the_clip():
    untrained, settings = players_of_two_actions(), PPO
    asked = np.array([[[0, 1]]] * 2, np.int32)
    before = probabilities(untrained.policies, asked)[:, 0]
    trained, value_loss, entropy = players._train_players(
        players.with_optimizer(untrained, 0.001), lesson_of_two_actions(), settings
    )
    after = probabilities(trained.networks.policies, asked)[:, 0]
    better = np.array([1, 0])
    ratio = after[[0, 1], better] / before[[0, 1], better]
    # The gradient stops once both ratios are past the clip; momentum carries on a little.
    assert (ratio > 1.15).all()
    assert (ratio < 1.5).all()
    assert outputs(trained.networks.value, asked[:1])[0, 0, 0] == pytest.approx(1, abs=0.1)
    assert value_loss < 0.01
    assert entropy == pytest.approx(-(after * np.log(after)).sum(-1).mean(), abs=0.01)


def test_policies_go_on_imitating_what_is_shown():
    """Where nothing is gained by any action, they end at the shares of the actions shown."""
    lesson = lesson_of_two_actions()
    shown = players.Shown(
        lesson.policy_indices[:, :8], jnp.asarray([[1, 1, 1, 0] * 2, [0, 0, 0, 1] * 2], jnp.int32)
    )
    idle = lesson._replace(advantages=jnp.zeros_like(lesson.advantages), shown=shown)
    trained, *_ = players._train_players(
        players.with_optimizer(players_of_two_actions(), 0.001),
        idle,
        PPO._replace(cloning_weight=2.0),
    )
    asked = np.array([[[0, 1]]] * 2, np.int32)
    found = probabilities(trained.networks.policies, asked)[:, 0]
    np.testing.assert_allclose(found, [[0.25, 0.75], [0.75, 0.25]], atol=0.02)


def test_discriminator_tells_apart_and_rewards_what_looks_shown():
    networks = make_networks(
        np.random.default_rng(0),
        1,
        sizes=(2,),
        num_state_rows=1,
        hidden=(8,),
        num_outputs=1,
        activation="tanh",
    )
    shown = np.array([[[0, 2]] * 5], np.int32)
    own = np.array([[[0, 2]] * 4 + [[1, 2]] * 4], np.int32)
    trained, loss = magail._train_discriminator(
        players.with_optimizer(networks, 0.02), shown, own, np.zeros((400, 8), np.int32), 400, 0.02
    )
    logits = np.asarray(outputs(trained.networks, own))[0, :, 0]
    # The best answer where half of the own steps look like those shown: D = 1 / (1 + 1/2).
    assert logits[0] == pytest.approx(np.log(2), abs=0.05)
    assert logits[-1] < -3
    rewards = magail._judge(trained.networks, own)
    np.testing.assert_allclose(rewards, -np.log(1 - 1 / (1 + np.exp(-logits))), rtol=1e-4)
    assert loss < 2 * np.log(2)


def test_runs_move_as_the_task_does_and_start_anew(task):
    reader = players.Reader(task)
    policies = make_networks(
        np.random.default_rng(0),
        2,
        sizes=reader.policy_sizes,
        num_state_rows=4,
        hidden=(4,),
        num_outputs=task.num_actions,
        activation="tanh",
    )
    settings = players.Settings(
        num_steps=40,
        max_steps=15,
        learning_rate=0.1,
        num_epochs=1,
        clip=0.1,
        discount=1.0,
        trace_decay=1.0,
        entropy_weight=0.0,
    )
    generator = np.random.default_rng(0)
    opening = players.opening_scene(task, 6, generator)
    done, scene = players.roll_out(task, reader, policies, opening, settings, generator)
    assert done.states.shape == (240,)
    assert done.actions.shape == done.latents.shape == (240, 2)
    branches, probs = task.transition(done.states, done.actions)
    assert ((branches == done.next_states[:, None]) & (probs > 0)).any(1).all()
    for i, agent in enumerate(task.agents):
        moves = task.latent_transition(agent, done.states, done.next_states)
        assert (moves[np.arange(240), done.latents[:, i], done.next_latents[:, i]] > 0).all()
    assert (done.final == task.is_final(done.next_states)).all()
    ended = done.ended.reshape(40, 6)
    states, latents = done.states.reshape(40, 6), done.latents.reshape(40, 6, 2)
    np.testing.assert_array_equal(states[0], opening.states)
    goes_on = ~ended[:-1]
    assert (states[1:][goes_on] == done.next_states.reshape(40, 6)[:-1][goes_on]).all()
    assert (latents[1:][goes_on] == done.next_latents.reshape(40, 6, 2)[:-1][goes_on]).all()
    assert (states[1:][~goes_on] == task.start_state).all()
    for run in range(6):
        lengths = np.diff(np.append(-1, np.flatnonzero(ended[:, run])))
        assert (lengths <= 15).all()
        cut = ended[:, run] & ~done.final.reshape(40, 6)[:, run]
        assert (lengths[cut[ended[:, run]]] == 15).all()
        last = np.flatnonzero(ended[:, run])[-1]
        assert scene.steps[run] == 39 - last
    assert reader.rows.count == len(np.unique(np.append(done.states, done.next_states)))


def test_each_chance_of_a_step_decides_one_thing():
    """By policies that favour nothing: both actions, the next state, and both latents."""
    task = btil.domains.movers("tiny")
    demos = task.simulate(20, seed=1, max_steps=30)
    reader = players.Reader(task)
    policies = make_networks(
        np.random.default_rng(0), 2, sizes=reader.policy_sizes, num_state_rows=4, hidden=(4,),
        num_outputs=6, activation="tanh",
    )  # fmt: skip
    policies = jax.tree.map(jnp.zeros_like, policies)
    number = demos.num_steps
    opening = players.opening_scene(task, number, np.random.default_rng(2))
    u = np.random.default_rng(2).random((number, 2))
    for i, agent in enumerate(task.agents):
        first = task.initial_latent_probs(agent, opening.states).cumsum(1)
        np.testing.assert_array_equal(opening.latents[:, i], (first <= u[:, [i]]).sum(1))
    settings = PPO._replace(num_steps=1, max_steps=9)
    scene = players.Scene(demos.states, demos.latents, np.zeros(number, np.int64))
    generator = np.random.default_rng(1)
    done, _ = players.roll_out(task, reader, policies, scene, settings, generator)
    u = np.random.default_rng(1).random((number, 5))
    np.testing.assert_array_equal(done.actions, (6 * u[:, :2]).astype(int))
    rows = np.arange(number)
    branches, probs = task.transition(demos.states, done.actions)
    second = (u[:, 2] >= probs[:, 0]).astype(int)
    assert 0 < second.sum() < number
    np.testing.assert_array_equal(done.next_states, branches[rows, second])
    moved = []
    for i, agent in enumerate(task.agents):
        moves = task.latent_transition(agent, demos.states, done.next_states)
        chances = moves[rows, demos.latents[:, i]].cumsum(1)
        np.testing.assert_array_equal(done.next_latents[:, i], (chances <= u[:, [3 + i]]).sum(1))
        moved.append((done.next_latents[:, i] != demos.latents[:, i]).any())
    assert all(moved)


class Recorded:
    """Takes the place of a function, remembers what it was given, and answers by another."""

    def __init__(self, answer):
        self.calls, self.answer = [], answer

    def __call__(self, *arguments, **options):
        self.calls.append((*arguments, *options.values()))
        return self.answer(*arguments)


SHORT = {
    "num_iterations": 4, "batch_size": 64, "max_steps": 20, "learning_rate": 1e-2,
    "pretraining_iterations": 1, "num_epochs": 2, "clip": 0.3, "discount": 0.9, "trace_decay": 0.8,
    "entropy_weight": 0.05, "hidden": (16,), "num_runs": 16,
}  # fmt: skip


def settings_of(options, **others):
    names = set(players.Settings._fields) & set(options)
    return players.Settings(num_steps=4, **{name: options[name] for name in names}, **others)


def test_magail_trains_by_its_options(task, demos, monkeypatch):
    trained = Recorded(lambda reader, state, *rest: (state, magail.Info(0.5, 1.5, 2.5, 3.5)))
    monkeypatch.setattr(magail, "train", trained)
    options = SHORT | {
        "discriminator_updates": 3, "first_discriminator_updates": 5, "first_iterations": 2,
        "value_iterations": 1, "cloning_weight": 0.7, "reward": "difference",
        "discriminator_learning_rate": 0.03, "discriminator_decay": 0.2,
        "discriminator_hidden": (16,),
    }  # fmt: skip
    team = learn(task, demos, "magail", progress=False, **options)
    states = task_states(task, demos)
    shown = {
        (*latents, *actions)
        for latents, actions in zip(demos.latents.tolist(), demos.actions.tolist(), strict=True)
    }
    place = task.start_state
    for number, (
        reader, state, done, told, chosen, updates, settings, telling, values_only, cloned
    ) in enumerate(trained.calls):  # fmt: skip
        assert updates == (5 if number < 2 else 3)
        assert values_only == (number < 1)
        assert settings == settings_of(options)
        assert telling == magail.Telling((1.0, 1.0), 0.03, 0.2)
        # One that tells, by one number.
        assert len(state.discriminator.networks.rows) == 1
        assert state.discriminator.networks.layers[-1].weight.shape == (1, 1, 16)
        assert state.players.networks.value.layers[-1].weight.shape == (1, 1, 16)
        # As many of the steps shown as were acted, anew for each update.
        assert chosen.shape == (5, 64)
        assert len(np.unique(chosen[:updates], axis=0)) == updates
        assert len(demos.actions) * 0.8 < chosen[:updates].max() < len(demos.actions)
        np.testing.assert_array_equal(
            np.asarray(told)[0, : len(states)],
            reader.discriminator(states, demos.latents, demos.actions)[0],
        )
        # Both agents go on imitating the same steps.
        sizes = [*reader.policy_sizes]
        latents = np.asarray(cloned.indices)[..., 0]
        assert np.asarray(cloned.indices).shape == (2, 512, len(sizes) + 1)
        assert (
            set(zip(*latents.tolist(), *np.asarray(cloned.actions).tolist(), strict=True)) <= shown
        )
        # Episodes go on from one iteration to the next.
        assert len(done.states) == 64
        np.testing.assert_array_equal(done.states[:16], place)
        np.testing.assert_array_equal(done.ended[-16:] | (state.scene.steps > 0), True)
        place = state.scene.states
    curves = team.learning_curve
    assert {name: curves[name].tolist() for name in magail.Info._fields} == {
        "discriminator_loss": [0.5] * 4, "mean_reward": [1.5] * 4, "value_loss": [2.5] * 4,
        "entropy": [3.5] * 4,
    }  # fmt: skip
    # Without a rate of its own the discriminator has that of all; without a weight none is cloned.
    trained.calls.clear()
    plain = options | {"discriminator_learning_rate": None, "cloning_weight": 0.0}
    learn(task, demos, "magail", progress=False, **plain)
    assert trained.calls[0][7].learning_rate == 1e-2
    assert trained.calls[0][9] is None


def test_ppo_follows_the_rewards_of_the_task(task, demos, monkeypatch):
    improved = Recorded(
        lambda reader, trainee, experience, rewards, *rest: players.Improved(trainee, 0.5, 1.5)
    )
    monkeypatch.setattr("btil.imitation.reinforcement.improve", improved)
    options = SHORT | {"value_iterations": 3, "inputs": "state"}
    team = learn(task, demos, "ppo", progress=False, **options)
    curves = team.learning_curve
    assert curves["value_loss"].tolist() == [0.5] * 4
    assert curves["entropy"].tolist() == [1.5] * 4
    for number, (_, _, done, rewards, settings, values_only) in enumerate(improved.calls):
        assert settings == settings_of(options)
        assert values_only == (number < 3)
        final = task.is_final(done.next_states)
        np.testing.assert_allclose(rewards, np.where(final, 0.99, -0.01))
        assert curves["mean_reward"][number] == pytest.approx(100 * np.mean(rewards))
        assert curves["finished"][number] == final.sum()


def test_players_learn_from_the_advantages_of_their_runs(task, monkeypatch):
    """Two runs of three steps; values, and what comes of rewards, are of each run by itself."""
    generator = np.random.default_rng(0)
    reader = players.Reader(task, "variables")

    def network(number, sizes, outputs):
        return make_networks(
            generator, number, sizes=sizes, num_state_rows=0, hidden=(16,), num_outputs=outputs,
            activation="tanh",
        )  # fmt: skip

    trainee = players.with_optimizer(
        players.Players(network(2, reader.policy_sizes, 6), network(1, reader.value_sizes, 1)), 0.1
    )
    states, next_states = generator.integers(0, task.num_states, (2, 6))
    latents, next_latents = generator.integers(0, task.num_latents, (2, 6, 2))
    actions = generator.integers(0, 6, (6, 2))
    final = np.array([False, False, True, False, False, False])  # the first run's second step
    ended = final | np.array([False, True, False, False, False, False])  # the second's first: cut
    done = players.Experience(states, latents, actions, next_states, next_latents, final, ended)
    rewards = generator.normal(size=6)
    taught = Recorded(lambda trainee, lesson, settings: (trainee, 0.5, 1.5))
    monkeypatch.setattr(players, "_train_players", taught)
    settings = PPO._replace(
        num_steps=3, discount=0.9, trace_decay=0.7, entropy_weight=0.1, cloning_weight=0.2
    )
    shown = players.Shown(jnp.zeros((2, 4, 5), jnp.int32), jnp.zeros((2, 4), jnp.int32))
    found = players.improve(reader, trainee, done, rewards, settings, False, shown)
    assert found == players.Improved(trainee, 0.5, 1.5)
    _, lesson, used = taught.calls[0]
    assert used == settings
    assert lesson.shown is shown

    def worth(states, latents):
        inputs = reader.value(states, latents)
        return np.asarray(outputs(trainee.networks.value, inputs), np.float64)[0, :, 0]

    now, later = worth(states, latents), worth(next_states, next_latents)
    expected = np.zeros(6)
    for t in range(6):
        total, weight = 0.0, 1.0
        for step in range(t, 6, 2):  # of the same run
            after = 0.0 if final[step] else later[step]
            total += weight * (rewards[step] + 0.9 * after - now[step])
            weight *= 0.9 * 0.7
            if ended[step]:
                break
        expected[t] = total
    np.testing.assert_allclose(lesson.targets, expected + now, rtol=1e-5)
    scaled = (expected - expected.mean()) / expected.std()
    np.testing.assert_allclose(lesson.advantages, scaled, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(lesson.actions, actions.T)
    np.testing.assert_array_equal(lesson.policy_indices, reader.policies(states, latents))
    np.testing.assert_array_equal(lesson.value_indices, reader.value(states, latents))
    # Where only values learn, policies have no gradient.
    players.improve(reader, trainee, done, rewards, settings, True, shown)
    _, lesson, used = taught.calls[1]
    assert not np.asarray(lesson.advantages).any()
    assert used == settings._replace(entropy_weight=0.0, cloning_weight=0.0)
    np.testing.assert_allclose(lesson.targets, expected + now, rtol=1e-5)


def test_tables_of_networks_of_states_have_the_row_of_each_state(task):
    reader = players.Reader(task)
    reader.meet(np.array([7, 3]))
    networks = make_networks(
        np.random.default_rng(0), 2, sizes=reader.policy_sizes, num_state_rows=4, hidden=(4,),
        num_outputs=task.num_actions, activation="tanh",
    )  # fmt: skip
    networks = filled(networks)
    tables = players.policy_tables(task, reader, networks)
    rows, bias = np.asarray(networks.rows, float), np.asarray(networks.bias, float)
    weight, shift = (np.asarray(part, float) for part in networks.layers[0])
    for i, agent in enumerate(task.agents):
        for latent in range(task.num_latents):
            for state, row in ((3, 0), (7, 1), (8, None), (500, None)):
                known = 0.0 if row is None else rows[i, task.num_latents + row]
                hidden = np.tanh(rows[i, latent] + known + bias[i])
                logits = weight[i] @ hidden + shift[i]
                expected = np.exp(logits - logits.max())
                np.testing.assert_allclose(
                    tables[agent][state, latent], expected / expected.sum(), rtol=1e-4
                )


def test_networks_get_rows_until_all_states_have_one(task):
    reader = players.Reader(task)
    reader.meet(np.arange(9))
    networks = small_networks(num_state_rows=2)
    same, capacity = players.with_room(networks, reader, 9)
    assert (same is networks, capacity) == (True, 9)
    wider, capacity = players.with_room(networks, reader, 2)
    assert capacity == 16
    assert wider.rows.shape[1] == sum(SIZES) + 16
    np.testing.assert_array_equal(wider.rows[:, : sum(SIZES) + 2], networks.rows)


def test_a_team_acts_by_what_was_inferred_and_else_as_it_is(task, demos):
    rows = {"policy_alice": None}
    for known, asked in ((rows, "draw"), ({}, "mean")):
        posterior = create_autospec(TeamPosterior, instance=True)
        posterior.result = FitResult(known, True, "made up")
        team = LearnedTeam(
            task, "btil", {}, {}, True, "made up", posterior, 0.0, 0, True, options={}
        )
        posterior.actors.return_value = {"alice": 1}
        assert team.actors("draw", 7, 3) == {"alice": 1}
        posterior.actors.assert_called_once_with(asked, 7, 3)
        posterior.decode.return_value = demos.latents
        for use_labels in (True, False):
            assert team.decode(demos, use_labels) is demos.latents
            assert posterior.decode.call_args.args == (demos, use_labels)


def test_only_values_learn_in_the_first_iterations(task, demos):
    options = QUICK["ppo"] | {"inputs": "state"}
    cloned, values, further = (
        learn(task, demos, "ppo", progress=False, **options | {"num_iterations": n}).policies
        for n in (1, 5, 6)
    )
    for agent in task.agents:
        assert (values[agent] == cloned[agent]).all()
        assert (further[agent] != cloned[agent]).any()


def test_ppo_learns_the_task_by_its_rewards(task):
    """From clones of two episodes, which finish late, to the steps of the true team."""
    demos = task.simulate(2, seed=3)
    options = {
        "num_iterations": 40,
        "batch_size": 512,
        "num_runs": 32,
        "max_steps": 60,
        "learning_rate": 4e-3,
        "pretraining_iterations": 50,
        "hidden": (32,),
    }
    team = learn(task, demos, "ppo", progress=False, **options)
    curves = team.learning_curve
    assert {name: len(curve) for name, curve in curves.items()} == {
        "cloning_loss": 50,
        **dict.fromkeys(("mean_reward", "finished", "value_loss", "entropy"), 40),
    }
    assert curves["mean_reward"][-5:].mean() > curves["mean_reward"][:5].mean() + 1
    played = btil.domains.play(task, team, 50, seed=1, max_steps=100)
    truth = task.simulate(50, seed=1, max_steps=100)
    assert played.episode_lengths.mean() < 1.1 * truth.episode_lengths.mean()


def test_learning_curves_of_magail(teams):
    curves = teams["magail"].learning_curve
    assert {name: len(curve) for name, curve in curves.items()} == {
        "cloning_loss": 1,
        "discriminator_loss": 25,
        "mean_reward": 25,
        "value_loss": 25,
        "entropy": 25,
    }
    assert curves["entropy"][0] > 0.9 * np.log(6) > curves["entropy"][-1]
    assert (curves["mean_reward"] > 0).all()


# What is refused ----------------------------------------------------------------------------------


def test_unknown_methods_and_options_are_named(task, demos):
    with pytest.raises(ValueError, match="unknown method 'bc'; there are random, behavioral"):
        learn(task, demos, "bc")
    with pytest.raises(TypeError, match=r"tabular-cloning has no option 'clip'; it has smoothing"):
        learn(task, demos, "tabular-cloning", clip=1)
    with pytest.raises(TypeError, match="random has no option 'clip'; it has none"):
        learn(task, demos, "random", clip=1)
    assert method_options("tabular-cloning") == {"smoothing": 0.01}
    assert method_options("magail")["num_iterations"] == 500


def test_variables_that_the_task_does_not_derive_are_refused_before_anything_is_learned(
    task, demos, monkeypatch
):
    moods = {**demos.state_variables, "mood": np.zeros(demos.num_steps, int)}
    monkeypatch.setattr("btil.imitation.bayesian.fit", None)
    with pytest.raises(ValueError, match="does not derive: mood"):
        learn(task, demos.replace(states=moods), "btil", progress=False)


@pytest.mark.parametrize("method", ["behavioral-cloning", "tabular-cloning", "magail", "ppo"])
def test_methods_that_need_labels_and_the_transition_say_so(task, demos, method):
    latents = demos.latents.copy()
    second = demos.episode_starts[1]
    latents[second + 2, 1] = -1
    partly = Demonstrations(
        states=demos.state_variables,
        actions=demos.actions,
        latents=latents,
        episodes=demos.episodes,
        agents=demos.agents,
        num_states=task.state_sizes,
        num_actions=task.num_actions,
        num_latents=task.num_latents,
    )
    with pytest.raises(ValueError, match=f"{method} needs .*: episode 1, step 2 has none for rob"):
        learn(task, partly, method, progress=False)
    # What nobody saw is no action either, and above all not the last one.
    actions = demos.actions.copy()
    actions[second + 2, 1] = -1
    unseen = demos.replace(actions=actions, missing="allow")
    said = f"{method} needs the action of every step: episode 1, step 2 has none for rob"
    with pytest.raises(ValueError, match=said):
        learn(task, unseen, method, progress=False)
    with pytest.raises(ValueError, match=f"{method} .*known_transition must be True"):
        learn(task, demos, method, known_transition=False, progress=False)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            "tabular-cloning",
            {"smoothing": -1.0},
            "smoothing must be a finite number of at least 0, got -1",
        ),
        ("behavioral-cloning", {"num_iterations": 0}, "num_iterations must be a whole number of"),
        ("behavioral-cloning", {"batch_size": True}, "batch_size must be a whole number of at"),
        ("behavioral-cloning", {"learning_rate": 0.0}, "learning_rate must be a positive number"),
        ("behavioral-cloning", {"hidden": ()}, "hidden layers need widths"),
        ("behavioral-cloning", {"hidden": (4, 0)}, "hidden layers need widths"),
        ("behavioral-cloning", {"activation": "sine"}, "unknown activation 'sine'; there are"),
        ("magail", {"num_runs": 7}, "num_runs must divide batch_size, 128; got 7"),
        ("magail", {"clip": -0.1}, "clip must be a positive number"),
        (
            "magail",
            {"discount": 1.5},
            "discount must be a number from 0 to 1, got 1.5",
        ),
        (
            "magail",
            {"entropy_weight": -1.0},
            "entropy_weight must be a finite number of at least 0",
        ),
        ("magail", {"cloning_weight": -1.0}, "cloning_weight must be a finite number of at least"),
        ("ppo", {"value_iterations": -1}, "value_iterations must be a whole number of at least 0"),
        ("ppo", {"num_runs": 7}, "num_runs must divide batch_size, 4096; got 7"),
        ("magail", {"first_iterations": -1}, "first_iterations must be a whole number of at le"),
        ("magail", {"discriminator_hidden": ()}, "hidden layers need widths"),
    ],
)
def test_bad_options_are_refused(task, demos, method, options, message):
    with pytest.raises(ValueError, match=message):
        learn(task, demos, method, progress=False, **options)


def test_seeds_are_whole_numbers(task, demos):
    for seed in (-1, 2**32, True):
        with pytest.raises(ValueError, match="seed must be an integer in 0"):
            learn(task, demos, "random", seed=seed)


@pytest.mark.filterwarnings("ignore::btil.DataWarning")
def test_demonstrations_of_something_else_are_refused(task, demos):
    def remade(**changes):
        arguments = {
            "states": demos.state_variables,
            "actions": demos.actions,
            "latents": demos.latents,
            "episodes": demos.episodes,
            "agents": demos.agents,
        }
        return Demonstrations(**(arguments | changes))

    with pytest.raises(ValueError, match="agents are ann, bob, those of cleanup are alice, rob"):
        learn(task, remade(agents=("ann", "bob")))
    with pytest.raises(ValueError, match="state variables x, y; expected those of cleanup"):
        learn(task, remade(states=dict.fromkeys("xy", demos.states)))
    with pytest.raises(ValueError, match=r"states: .* in row 0"):
        learn(task, remade(states=np.full(demos.num_steps, task.num_states)))
    with pytest.raises(ValueError, match=r"action_alice: .*allowed"):
        learn(task, remade(actions=demos.actions + 3))
    with pytest.raises(ValueError, match="action_names of rob are a, b, c, d, e, f; those of"):
        learn(task, remade(action_names={"rob": tuple("abcdef")}))


# ---------------------------------------------------------------------- cloning at its best


def test_cloning_by_variables_reads_states_it_never_met(task):
    # What Alice does depends on her own cell, whatever else there is.
    cells = task.decode_states(np.arange(task.num_states))[:, 0]
    shown = np.full((task.num_states, task.num_latents, task.num_actions), 0.02)
    shown[np.arange(task.num_states), :, cells % task.num_actions] = 0.9
    demos = task.simulate(20, seed=3, max_steps=20, policies=dict.fromkeys(task.agents, shown))
    options = {"hidden": (16,), "num_iterations": 150, "learning_rate": 0.02}
    unmet = np.setdiff1d(np.flatnonzero(np.isin(cells, cells[demos.states])), demos.states)
    right = {}
    for inputs in ("state", "variables"):
        team = learn(task, demos, "behavioral-cloning", inputs=inputs, progress=False, **options)
        rows = team.policies["alice"][unmet]
        assert rows.shape == (len(unmet), task.num_latents, task.num_actions)
        right[inputs] = rows[np.arange(len(unmet)), :, cells[unmet] % task.num_actions].mean()
    assert right["variables"] > 0.5
    assert right["state"] < 0.3


def test_cloning_ends_where_held_out_actions_are_no_better_foretold(task):
    demos = task.simulate(10, seed=3)
    options = {"hidden": (16,), "learning_rate": 0.02, "held_out": 0.3, "patience": 2}
    team = learn(task, demos, "behavioral-cloning", num_iterations=3000, progress=False, **options)
    losses = team.learning_curve["held_out_loss"]
    assert team.converged
    assert "no better foretold" in team.reason
    assert len(team.learning_curve["loss"]) == 50 * len(losses) < 3000
    assert losses.argmin() == len(losses) - 3
    # The networks kept are those that did best: one that ends there is the same.
    best = learn(
        task,
        demos,
        "behavioral-cloning",
        num_iterations=50 * (int(losses.argmin()) + 1),
        progress=False,
        **options,
    )
    for agent in task.agents:
        np.testing.assert_array_equal(best.policies[agent], team.policies[agent])
    assert not best.converged


def test_decay_makes_weights_small(task):
    demos = task.simulate(3, seed=3)
    options = {"hidden": (8,), "num_iterations": 100, "learning_rate": 0.02}
    free, decayed = (
        learn(task, demos, "behavioral-cloning", weight_decay=w, progress=False, **options)
        for w in (0.0, 5.0)
    )
    # Smaller weights, flatter rows.
    assert decayed.policies["alice"].max(-1).mean() < free.policies["alice"].max(-1).mean() - 0.05


def test_what_cloning_cannot_hold_out_is_refused(task):
    demos = task.simulate(2, seed=3)
    for options, says in (
        ({"held_out": 0.9}, "of 2 episodes none would be left"),
        ({"held_out": 1.0}, "held_out must be"),
        ({"weight_decay": -1}, "weight_decay must be"),
        ({"patience": 0}, "patience"),
        ({"inputs": "pixels"}, "inputs must be one of state, variables"),
        ({"initialization": "zero"}, "initialization must be one of uniform, orthogonal"),
    ):
        with pytest.raises(ValueError, match=says):
            learn(task, demos, "behavioral-cloning", progress=False, **options)


# ---------------------------------------------------------------------- MAGAIL at its best


def test_rewards_of_magail_by_their_definitions():
    networks = small_networks(4)
    indices = np.array([[[0, 3, 5], [1, 4, 6], [0, 4, 7]]] * 2, np.int32)
    one = jax.tree.map(lambda values: values[:1], networks)
    logits = np.asarray(outputs(one, indices[:1]), np.float64)[0, :, 0]
    told = 1 / (1 + np.exp(-logits))
    for reward, expected in {
        "positive": -np.log(1 - told),
        "difference": np.log(told) - np.log(1 - told),
        "negative": np.log(told),
    }.items():
        weights = magail._REWARDS[reward]
        found = magail._judge(one, indices[:1], weights)
        np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_networks_of_states_are_told_its_row(task):
    generator = np.random.default_rng(0)
    states = generator.integers(0, task.num_states, 9)
    latents, actions = (generator.integers(0, size, (9, 2)) for size in (task.num_latents, 6))
    reader = players.Reader(task)
    reader.meet(states[::-1])
    number, rows = task.num_latents, reader.rows.of_state[states]
    np.testing.assert_array_equal(
        reader.policies(states, latents), [np.stack([own, number + rows], 1) for own in latents.T]
    )
    both = [latents[:, 0], number + latents[:, 1]]
    (found,) = reader.value(states, latents)
    np.testing.assert_array_equal(found, np.stack([*both, 2 * number + rows], 1))
    (found,) = reader.discriminator(states, latents, actions)
    acts = [2 * number + actions[:, 0], 2 * number + 6 + actions[:, 1]]
    np.testing.assert_array_equal(found, np.stack([*both, *acts, 2 * number + 12 + rows], 1))


def test_networks_of_variables_are_told_every_variable(task):
    generator = np.random.default_rng(0)
    states = generator.integers(0, task.num_states, 9)
    latents, actions = (generator.integers(0, size, (9, 2)) for size in (task.num_latents, 6))
    reader = players.Reader(task, "variables")
    reader.meet(states)
    assert reader.rows.count == 0
    variables = task.decode_states(states)
    for found, sizes, others in (
        (reader.policies(states, latents)[1], reader.policy_sizes, [latents[:, 1:]]),
        (reader.value(states, latents)[0], reader.value_sizes, [latents]),
        (
            reader.discriminator(states, latents, actions)[0],
            reader.discriminator_sizes,
            [latents, actions],
        ),
    ):
        offsets = np.cumsum([0, *sizes])
        np.testing.assert_array_equal(
            found[:, :-1] - offsets[:-1], np.concatenate([variables, *others], axis=1)
        )
        assert (found[:, -1] >= NO_ROW).all()


def test_uniform_starts_are_as_wide_as_the_fan_in_says():
    """Of two small inputs and the state; rows of states, which nobody has met yet, are zeros."""
    networks = make_networks(
        np.random.default_rng(0), 2, sizes=(3, 4), num_state_rows=2, hidden=(60, 25),
        num_outputs=90, activation="tanh",
    )  # fmt: skip
    rows = np.asarray(networks.rows)
    assert rows.shape == (2, 9, 60)
    assert (rows[:, 7:] == 0).all()
    (first, first_bias), (second, second_bias) = networks.layers
    assert (first.shape, second.shape) == ((2, 25, 60), (2, 90, 25))
    for drawn, fan_in in (
        (rows[:, :7], 3), (networks.bias, 3), (first, 60), (first_bias, 60), (second, 25),
        (second_bias, 25),
    ):  # fmt: skip
        for one in np.asarray(drawn) * np.sqrt(fan_in):
            assert -1 < one.min() < -0.8
            assert 0.8 < one.max() < 1
        assert (drawn[0] != drawn[1]).any()


def test_orthogonal_starts():
    networks = make_networks(
        np.random.default_rng(0), 2, sizes=(3, 4), num_state_rows=2, hidden=(5, 9), num_outputs=6,
        activation="tanh", initialization="orthogonal",
    )  # fmt: skip
    first = np.asarray(networks.rows)[:, :7]
    assert (np.asarray(networks.rows)[:, 7:] == 0).all()
    for own, gain in ((first, 2.0), *((np.asarray(w), g) for (w, _), g in zip(
        networks.layers, (2.0, 1e-4), strict=True
    ))):  # fmt: skip
        for one in own:
            narrow = one.T @ one if one.shape[0] > one.shape[1] else one @ one.T
            np.testing.assert_allclose(narrow, gain * np.eye(len(narrow)), atol=1e-5)
    assert (first[0] != first[1]).any()


@pytest.mark.parametrize("inputs", ["state", "variables"])
def test_orthogonal_networks_start_without_a_preference(task, demos, inputs):
    for start, preference in (("orthogonal", False), ("uniform", True)):
        team = learn(
            task,
            demos,
            "behavioral-cloning",
            progress=False,
            inputs=inputs,
            initialization=start,
            num_iterations=1,
            learning_rate=1e-6,
            hidden=(16,),
        )
        far = max(np.abs(policy - 1 / 6).max() for policy in team.policies.values())
        assert (far > 0.01) == preference


def test_tables_of_networks_of_variables(task):
    sizes = (*task.state_sizes.values(), task.num_latents)
    networks = make_networks(
        np.random.default_rng(0),
        2,
        sizes=sizes,
        num_state_rows=0,
        hidden=(8,),
        num_outputs=6,
        activation="tanh",
    )
    tables = behavioral_cloning.tables_by_variables(task, networks)
    for state, latent in ((0, 0), (7, 2), (task.num_states - 1, task.num_latents - 1)):
        small = np.append(task.decode_states([state])[0], latent) + np.cumsum([0, *sizes[:-1]])
        for i, agent in enumerate(task.agents):
            hidden = np.asarray(networks.rows[i])[small].sum(0) + np.asarray(networks.bias[i])
            weight, bias = (np.asarray(part[i], np.float64) for part in networks.layers[0])
            logits = weight @ np.tanh(hidden) + bias
            expected = np.exp(logits - logits.max())
            np.testing.assert_allclose(
                tables[agent][state, latent], expected / expected.sum(), rtol=1e-4
            )


def test_magail_by_variables_learns_to_finish(task):
    demos = task.simulate(10, seed=3)
    options = {
        "inputs": "variables",
        "reward": "negative",
        "pretraining_iterations": 50,
        "num_iterations": 60,
        "batch_size": 256,
        "num_runs": 16,
        "max_steps": 30,
        "learning_rate": 2e-3,
        "discriminator_learning_rate": 5e-4,
        "first_iterations": 0,
        "discriminator_updates": 1,
        "first_discriminator_updates": 1,
        "discriminator_decay": 1.0,
        "hidden": (32,),
        "discriminator_hidden": (32,),
    }
    team = learn(task, demos, "magail", progress=False, **options)
    rewards = team.learning_curve["mean_reward"]
    assert rewards[-10:].mean() > rewards[:10].mean() + 0.05
    played = btil.domains.play(task, team, 50, seed=1, max_steps=100)
    performance = btil.analysis.team_performance(task, played)
    cloned = learn(task, demos, "magail", progress=False, **options | {"num_iterations": 1})
    before = btil.domains.play(task, cloned, 50, seed=1, max_steps=100)
    assert performance.cut.value <= 0.1
    assert performance.steps.value < 0.5 * before.episode_lengths.mean()
