"""What can be asked of a posterior, against enumeration and written-out answers."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from enumeration import all_rows, find_factor
from scipy import stats
from scipy.special import softmax
from teams import (
    ChainTruth,
    chain_truth,
    hmm_demos,
    hmm_model,
    made_by_hand,
    random_demos,
    rich_model,
    team_with_columns,
)

import btil
from btil.inference.result import (
    ConditionalRows,
    DirichletRows,
    DrawnParameters,
    DrawnRows,
    FunctionalRows,
    NormalParameters,
    dirichlet_mode,
)
from btil.messages.layout import lay_out
from btil.models.draws import dirichlet_draws
from btil.models.team import bind
from btil.posterior.beliefs import refuse_impossible


@pytest.fixture(scope="module")
def posterior() -> btil.TeamPosterior:
    """A fit of two agents, in double precision."""
    demos = random_demos(0, (5, 1, 5, 4), labelled=0.6)
    return btil.fit(rich_model(), demos, dtype="float64", progress=False)


def rows_for(posterior: btil.TeamPosterior, demos: btil.Demonstrations) -> Any:
    """The point estimate of every table at the contexts of other data, row by row."""
    bound = bind(posterior.model, demos)
    rows = {}
    for name, table in bound.tables.items():
        prior = table.cpt.concentration(table.contexts)
        rows[name] = prior / prior.sum(-1, keepdims=True)
        known = [tuple(c) for c in posterior.bound.tables[name].contexts.rows.tolist()]
        w = posterior.result.rows[name].concentration
        for i, context in enumerate(map(tuple, table.contexts.rows.tolist())):
            if context in known:
                row = w[known.index(context)]
                rows[name][i] = row / row.sum(-1, keepdims=True)
    return bound, rows


@pytest.fixture(scope="module")
def answers(posterior: btil.TeamPosterior) -> Any:
    """Other episodes of the team, some contexts of which were never seen, and the truth."""
    demos = random_demos(9, (4, 1, 3))
    bound, rows = rows_for(posterior, demos)
    truth = {agent: chain_truth(bound, agent, rows) for agent in demos.agents}
    seen = posterior.bound.tables["transition_ann"].contexts.rows.tolist()
    wanted = bound.tables["transition_ann"].contexts.rows.tolist()
    assert any(context in seen for context in wanted)
    assert any(context not in seen for context in wanted)
    return demos, bound, rows, truth


def test_smooth_filter_and_likelihood(posterior: btil.TeamPosterior, answers: Any) -> None:
    demos, _, _, truth = answers
    smoothed = posterior.smooth(demos, use_labels=True)
    filtered = posterior.filter(demos, use_labels=True)
    for agent in demos.agents:
        np.testing.assert_allclose(smoothed[agent], truth[agent].smoothed, rtol=0, atol=1e-12)
        np.testing.assert_allclose(filtered[agent], truth[agent].filtered, rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        posterior.log_likelihood(demos),
        sum(one.log_likelihood for one in truth.values()),
        rtol=0,
        atol=1e-11,
    )


def test_labels_are_conditioned_on_where_asked_for(
    posterior: btil.TeamPosterior, answers: Any
) -> None:
    demos, *_ = answers
    known = demos.latents >= 0
    assert known.any()
    decoded = posterior.decode(demos, use_labels=True)
    assert np.array_equal(decoded[known], demos.latents[known])
    for ask in (posterior.smooth, posterior.filter):
        told, found = ask(demos, use_labels=True), ask(demos)
        for i, agent in enumerate(demos.agents):
            at = known[:, i], demos.latents[known[:, i], i]
            np.testing.assert_allclose(told[agent][at], 1, rtol=0, atol=1e-12)
            assert (found[agent][at] < 0.999).all()


def test_decode_is_the_most_probable_path(posterior: btil.TeamPosterior, answers: Any) -> None:
    demos, _, _, truth = answers
    decoded = posterior.decode(demos, use_labels=True)
    assert decoded.shape == demos.latents.shape
    for i, agent in enumerate(demos.agents):
        for start, length, paths in zip(
            demos.episode_starts, demos.episode_lengths, truth[agent].paths, strict=True
        ):
            path = tuple(decoded[start : start + length, i].tolist())
            assert paths[path] == pytest.approx(max(paths.values()), rel=1e-12)


def expected_actions(bound: Any, rows: Any, agent: str, truth: ChainTruth) -> np.ndarray:
    policies = [find_factor(bound, "policy", agent, t) for t in range(bound.demos.num_steps)]
    return np.stack(
        [
            truth.predicted[t] @ rows[factor.site][factor.context]
            for t, factor in enumerate(policies)
        ]
    )


def test_predicted_actions_are_one_step_ahead(posterior: btil.TeamPosterior, answers: Any) -> None:
    demos, bound, rows, truth = answers
    predicted = posterior.predict_actions(demos, use_labels=True)
    for agent in demos.agents:
        expected = expected_actions(bound, rows, agent, truth[agent])
        np.testing.assert_allclose(predicted[agent], expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(predicted[agent].sum(1), 1, rtol=0, atol=1e-12)


@pytest.mark.parametrize("changed", ["labels", "actions"])
def test_prediction_at_a_step_ignores_that_step_and_later(changed: str) -> None:
    model = btil.TeamModel(
        policy=btil.KnownCPT([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]]),
        transition=btil.KnownCPT([[0.9, 0.1], [0.2, 0.8]]),
    )
    actions, labels = [0, 1, 2, 0, 1, 2], [-1, 0, -1, -1, -1, -1]
    posterior = btil.fit(model, hmm_demos(actions, labels), progress=False)
    before = posterior.predict_actions(hmm_demos(actions, labels), use_labels=True)["agent_0"]
    if changed == "labels":
        labels[3] = 1
    else:
        actions[3] = 2
    after = posterior.predict_actions(hmm_demos(actions, labels), use_labels=True)["agent_0"]
    assert np.array_equal(before[:4], after[:4])
    assert np.all(np.abs(before[4:] - after[4:]).max(1) > 1e-3)


def test_filter_ends_where_smoothing_ends(posterior: btil.TeamPosterior, answers: Any) -> None:
    demos, *_ = answers
    last = np.cumsum(demos.episode_lengths) - 1
    for agent in demos.agents:
        np.testing.assert_allclose(
            posterior.filter(demos)[agent][last], posterior.smooth(demos)[agent][last], atol=1e-12
        )


def test_rows_of_contexts_never_seen_are_the_prior() -> None:
    sparse = btil.fit(
        btil.TeamModel(
            policy=btil.DirichletCPT([[0.3, 1.0, 2.0], [5.0, 1.0, 1.0]], ("state",)),
            transition=btil.DirichletCPT(0.7, ("state", "actions")),
        ),
        random_demos(0, (3,), (2,), (3,), (50, 40)),
        progress=False,
    )
    states = {"x": np.arange(50), "y": np.full(50, 39)}
    visited = {tuple(row) for row in sparse.contexts("ann", "policy").to_numpy().tolist()}
    rows = sparse.policy("ann", states)
    expected = np.array([[0.3, 1.0, 2.0], [5.0, 1.0, 1.0]])
    expected /= expected.sum(1, keepdims=True)
    for x in range(50):
        assert ((x, 39) in visited) or np.array_equal(rows[x], expected)
    # A row without a mode has its mean there too; the other's is where its only excess is.
    modes = sparse.policy("ann", states, estimate="map")
    never = [x for x in range(50) if (x, 39) not in visited]
    np.testing.assert_array_equal(modes[never], [[expected[0], [1.0, 0.0, 0.0]]] * len(never))
    moves = sparse.transition("ann", states, np.zeros((50, 1), int))
    assert np.all(moves == 0.5)


def test_forms_of_states_and_actions_agree(posterior: btil.TeamPosterior) -> None:
    x, y = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    by_name = posterior.policy("ann", {"x": x, "y": y})
    assert by_name.shape == (4, 2, 3)
    assert np.array_equal(by_name, posterior.policy("ann", np.stack([x, y], 1)))
    assert np.array_equal(by_name, posterior.policy("ann", x * 2 + y))
    assert np.array_equal(by_name[2:3], posterior.policy("ann", 2))
    actions = np.stack([np.array([0, 2, 1, 0]), np.array([1, 0, 0, 1])], 1)
    moves = posterior.transition("bob", {"x": x}, actions, {"y": y})
    assert moves.shape == (4, 3, 3)
    split = {"ann": actions[:, 0], "bob": actions[:, 1]}
    assert np.array_equal(moves, posterior.transition("bob", x * 2 + y, split, np.stack([x, y], 1)))
    # One value stands for all.
    one = posterior.transition("bob", {"x": [1]}, {"ann": [0], "bob": [1]}, {"y": y})
    assert np.array_equal(one[3], posterior.transition("bob", {"x": 1}, [0, 1], {"y": 1})[0])
    assert np.array_equal(posterior.initial("ann", {"y": y})[0], posterior.initial("ann", 0)[0])


def test_questions_are_asked_in_the_forms_that_demonstrations_have(
    posterior: btil.TeamPosterior,
) -> None:
    x, y = np.array([0, 0, 1, 1]), np.array([0, 1, 0, 1])
    rows = posterior.policy("ann", {"x": x, "y": y})
    # Columns of a frame go by their names, in whatever order.
    assert np.array_equal(rows, posterior.policy("ann", pd.DataFrame({"y": y, "x": x})))
    assert np.array_equal(rows, posterior.policy("ann", {"x": x.astype(float), "y": y == 1}))
    assert np.array_equal(rows, posterior.policy("ann", {"x": pd.Series(x, dtype="Int64"), "y": y}))
    assert np.array_equal(rows, posterior.policy("ann", (x * 2 + y).astype(float)))
    actions = {"bob": [1, 0, 0, 1], "ann": [0, 2, 1, 0]}
    moves = posterior.transition("bob", {"x": x}, actions, {"y": y})
    frame = pd.DataFrame(actions)
    assert np.array_equal(moves, posterior.transition("bob", {"x": x}, frame, {"y": y}))


def test_questions_may_name_states_and_actions() -> None:
    named = btil.Demonstrations(
        states=["hall", "door", "hall"],
        actions={"ann": ["go", "stay", "go"], "bob": ["pull", "pull", "push"]},
        num_latents=2,
    )
    learned = btil.fit(btil.TeamModel(), named, progress=False)
    rows = learned.transition("ann", [1, 0], [[0, 0], [1, 0]])
    texts = {"ann": ["go", "stay"], "bob": ["pull", "pull"]}
    assert np.array_equal(rows, learned.transition("ann", ["hall", "door"], texts))
    with pytest.raises(ValueError, match="actions: ann must be integers"):
        learned.transition("ann", ["hall", "door"], texts | {"ann": ["go", "run"]})


def test_rows_are_those_of_the_visited_contexts(posterior: btil.TeamPosterior) -> None:
    for agent in posterior.demos.agents:
        for role, site in (("policy", f"policy_{agent}"), ("initial", f"initial_{agent}")):
            contexts = posterior.contexts(agent, role)
            states = {name: contexts[name].to_numpy() for name in contexts}
            w = posterior.result.rows[site].concentration
            found = getattr(posterior, role)(agent, states)
            np.testing.assert_allclose(found, w / w.sum(-1, keepdims=True), rtol=1e-14)


def test_no_states_means_every_state() -> None:
    demos = btil.Demonstrations([0, 3, 3], [0, 1, 1], num_states=5, num_latents=2)
    posterior = btil.fit(btil.TeamModel(), demos, progress=False)
    every = posterior.policy("agent_0")
    assert every.shape == (5, 2, 2)
    assert np.array_equal(every, posterior.policy("agent_0", np.arange(5)))
    assert posterior.initial("agent_0").shape[1] == 2
    # A team of one has its actions in one column, as in Demonstrations.
    moves = posterior.transition("agent_0", [0, 3, 4], [0, 1, 1])
    assert np.array_equal(moves, posterior.transition("agent_0", [0, 3, 4], [[0], [1], [1]]))


def test_questions_about_who_has_no_actions_and_of_no_state() -> None:
    """Actions are given as recordings have them: -1 of one who has none."""
    demos = btil.Demonstrations(
        None,
        {"ann": [0, 1, 1, 0]},
        {"ann": [0, 1, -1, 0]},
        agents=("ann", "bob"),
        num_latents=2,
        continuous={"bob_v": [0.0, 1, 2, 3]},
    )
    model = btil.TeamModel(transition=btil.DirichletCPT(1.0, ("action_ann",)))
    posterior = made_by_hand(model, demos)
    rows = posterior.transition("bob", None, {"ann": [1, 0]})
    assert np.array_equal(rows, posterior.transition("bob", None, [[1, -1], [0, -1]]))
    with pytest.raises(ValueError, match="actions: bob at position 0 is 0"):
        posterior.transition("bob", None, [[1, 0], [0, 0]])
    with pytest.raises(ValueError, match="actions: ann at position 1 is -1"):
        posterior.transition("bob", None, [[1, -1], [-1, -1]])
    # As they happen, likewise.
    by_row, by_name = posterior.tracker(), posterior.tracker()
    for action in (1, 0):
        told, expected = by_row.update([], [action, -1]), by_name.update({}, {"ann": action})
        for agent in demos.agents:
            assert np.array_equal(told.latents[agent], expected.latents[agent])
    with pytest.raises(ValueError, match="actions: bob is 0"):
        by_row.update([], [1, 0])
    with pytest.raises(ValueError, match="bob has no actions, and so no policy"):
        posterior.policy("bob")
    with pytest.raises(ValueError, match="states: there are no state variables"):
        posterior.policy("ann", [0, 1])
    assert posterior.policy("ann").shape == posterior.policy("ann", {}).shape == (1, 2, 2)


def test_weights_of_more_latents_than_were_learned_are_refused() -> None:
    demos = hmm_demos([0, 1, 1], [0, -1, 1])
    other = hmm_demos([0, 1], num_latents=3, latent_weights={"agent_0": np.ones((2, 3))})
    told = "latent_weights: 3 latents of agent_0 are weighed, the posterior knows 2"
    with pytest.raises(ValueError, match=told):
        made_by_hand(hmm_model(), demos).smooth(other)


@pytest.mark.parametrize(
    ("question", "told"),
    [
        (lambda p: p.policy("eve", 0), "unknown agent 'eve'; the agents are ann, bob"),
        (lambda p: p.policy("ann"), "depends on x, y; no value is given for x, y"),
        (lambda p: p.policy("ann", {"x": [0]}), "no value is given for y"),
        (lambda p: p.policy("ann", {"z": [0]}), "unknown state variable z; there are x, y"),
        (lambda p: p.policy("ann", {"x": [0, 2], "y": [0, 0]}), r"x at position 1 is 2.*0\.\.1"),
        (lambda p: p.policy("ann", [4]), r"joint state at position 0 is 4; allowed are 0\.\.3"),
        (lambda p: p.policy("ann", [-1]), "joint state at position 0 is -1"),
        (lambda p: p.policy("ann", np.zeros((2, 3), int)), r"shape \(2, 3\); expected"),
        (lambda p: p.policy("ann", [0.5]), "must be integers"),
        (lambda p: p.policy("ann", 0, estimate="mode"), "estimate must be 'mean' or 'map'"),
        (lambda p: p.transition("ann", 0), "no value is given for action_ann, action_bob, next_y"),
        (lambda p: p.transition("ann", 0, [0, 2], 0), "actions: bob at position 0 is 2"),
        (lambda p: p.transition("ann", 0, [0, 1, 1], 0), r"actions: shape \(3,\)"),
        (lambda p: p.transition("ann", 0, {"eve": [0]}, 0), "actions: unknown agent eve"),
        (lambda p: p.transition("ann", [0, 1, 2], [[0, 0], [1, 1]], 0), "differ in length: 2, 3"),
        (lambda p: p.contexts("ann", "reward"), "which must be policy, transition or initial"),
        (lambda p: p.sample(0), "num_draws must be a whole number of at least 1"),
    ],
)
def test_a_wrong_question_is_refused(
    posterior: btil.TeamPosterior, question: Any, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        question(posterior)


def test_a_state_that_has_another_name_is_refused_with_the_allowed_ones() -> None:
    demos = btil.Demonstrations(
        {"where": ["bed", "desk", "bed"]}, {"ann": [0, 1, 0]}, num_latents=2
    )
    posterior = btil.fit(btil.TeamModel(), demos, progress=False)
    told = r"where must be integers \(k,\), or names among bed, desk; got \['bedd'\]"
    with pytest.raises(ValueError, match=told):
        posterior.policy("ann", states={"where": ["bedd"]})


def test_other_data_must_be_of_the_same_team(posterior: btil.TeamPosterior) -> None:
    for demos, told in (
        (random_demos(0, (3,), (2,), (3,)), "agents are ann, the posterior's are ann, bob"),
        (random_demos(0, (3,), num_states=(2,)), "lack state variables y"),
        (random_demos(0, (30,), num_actions=(4, 2)), "action_ann.*3"),
        (random_demos(0, (30,), num_latents=(3, 3), labelled=1.0), "latent_ann.*2"),
    ):
        with pytest.raises(ValueError, match=told):
            posterior.smooth(demos)


def test_order_and_surplus_of_state_variables_do_not_matter(posterior: btil.TeamPosterior) -> None:
    demos = random_demos(0)
    columns = demos.state_variables
    other = btil.Demonstrations(
        states={"weather": np.zeros(demos.num_steps, int), "y": columns["y"], "x": columns["x"]},
        actions=demos.actions,
        latents=demos.latents,
        episodes=demos.episodes,
        agents=demos.agents,
        num_states={"weather": 1, "y": 2, "x": 2},
        num_actions=demos.num_actions,
        num_latents=demos.num_latents,
    )
    swapped = btil.Demonstrations(
        states={"y": columns["y"], "x": columns["x"]},
        actions=demos.actions,
        latents=demos.latents,
        episodes=demos.episodes,
        agents=demos.agents,
        num_states={"y": 2, "x": 2},
        num_actions=demos.num_actions,
        num_latents=demos.num_latents,
    )
    for same in (other, swapped):
        assert np.array_equal(posterior.log_likelihood(same), posterior.log_likelihood(demos))


def impossible_team() -> tuple[btil.TeamModel, btil.Demonstrations, btil.Demonstrations]:
    """bob never takes action 2; in episode 7 he does at step 1."""
    model = btil.TeamModel(
        policy={
            "ann": btil.DirichletCPT(1.0),
            "bob": btil.KnownCPT([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),
        },
        transition=btil.DirichletCPT(1.0),
    )

    def demos(last: int) -> btil.Demonstrations:
        return btil.Demonstrations(
            states=np.zeros(5, int),
            actions={"ann": [0, 1, 2, 0, 1], "bob": [0, 1, 0, last, 1]},
            episodes=[3, 3, 7, 7, 7],
            num_actions=3,
            num_latents=2,
        )

    return model, demos(0), demos(2)


@pytest.mark.parametrize("verb", ["smooth", "filter", "decode", "predict_actions"])
@pytest.mark.parametrize("num_draws", [None, 2])
def test_impossible_episodes_are_named(verb: str, num_draws: int | None) -> None:
    model, fine, impossible = impossible_team()
    posterior = btil.fit(model, fine, progress=False)
    with pytest.raises(ValueError, match="episode 7, agent bob, step 1: action 2 has prob"):
        getattr(posterior, verb)(impossible, num_draws=num_draws)
    likelihood = posterior.log_likelihood(impossible, num_draws=num_draws)
    assert np.isfinite(likelihood[0])
    assert likelihood[1] == -np.inf
    with pytest.raises(ValueError, match="episode 7, agent bob, step 1: action 2 has prob"):
        btil.fit(model, impossible, progress=False)


def test_an_impossible_label_is_named() -> None:
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.0), transition=btil.StaticCPT(), initial=btil.UniformCPT()
    )
    demos = hmm_demos(
        [0, 1, 0], [0, -1, 1], latent_names=["help", "wait"], action_names=["go", "stay"]
    )
    with pytest.raises(
        ValueError, match="episode 0, agent agent_0, step 2: action go with label wait"
    ):
        btil.fit(model, demos, progress=False)


# ------------------------------------------------------------------ estimates and draws


def test_map_is_the_mode_or_the_mean() -> None:
    w = np.array([[3.0, 2.0, 1.0], [0.5, 4.0, 4.0], [1.0, 1.0, 1.0], [2.0, 1.0, 1.0]])
    expected = [[2 / 3, 1 / 3, 0], [0.5 / 8.5, 4 / 8.5, 4 / 8.5], [1 / 3] * 3, [1, 0, 0]]
    np.testing.assert_allclose(dirichlet_mode(w), expected, rtol=1e-14)
    np.testing.assert_allclose(DirichletRows(w).mode(), expected, rtol=1e-14)


def test_map_estimate_in_beliefs(posterior: btil.TeamPosterior) -> None:
    demos = posterior.demos
    bound = posterior.bound
    rows = {name: dirichlet_mode(r.concentration) for name, r in posterior.result.rows.items()}
    truth = [chain_truth(bound, agent, all_rows(bound, rows)) for agent in demos.agents]
    np.testing.assert_allclose(
        posterior.log_likelihood(demos, estimate="map"),
        sum(one.log_likelihood for one in truth),
        atol=1e-10,
    )
    found = posterior.smooth(demos, use_labels=True, estimate="map")["bob"]
    np.testing.assert_allclose(found, truth[1].smoothed, atol=1e-11)


@pytest.mark.parametrize("method", ["exact", "gibbs"])
def test_map_needs_dirichlet_rows(method: str) -> None:
    options = {} if method == "exact" else {"num_chains": 1, "num_warmup": 2, "num_samples": 4}
    posterior = btil.fit(
        hmm_model(), hmm_demos([0, 1, 1]), method=method, progress=False, **options
    )
    with pytest.raises(
        ValueError, match=f"'map' needs Dirichlet rows.*{method} has estimate 'mean'"
    ):
        posterior.policy("agent_0", estimate="map")


def test_dirichlet_rows_know_their_moments() -> None:
    w = np.array([[0.5, 1.5, 3.0], [2.0, 0.1, 0.4]])
    rows = DirichletRows(w)
    draws = rows.sample(200_000, np.random.default_rng(0))
    error = rows.sd() / np.sqrt(len(draws))
    assert np.all(np.abs(draws.mean(0) - rows.mean()) < 4.5 * error)
    np.testing.assert_allclose(draws.std(0), rows.sd(), rtol=0.02)


@pytest.mark.parametrize("concentration", [0.1, 1e-3, 1e-5])
def test_draws_of_small_concentrations_are_rows_without_zeros(concentration: float) -> None:
    w = np.full((5000, 4), concentration)
    draws = dirichlet_draws(np.random.default_rng(0), w)
    assert np.all(draws > 0)
    np.testing.assert_allclose(draws.sum(-1), 1, rtol=1e-12)
    assert np.all(np.abs(draws.mean(0) - 0.25) < 4.5 * draws.std(0) / np.sqrt(len(draws)))


def test_draws_average_over_the_posterior(posterior: btil.TeamPosterior) -> None:
    demos = posterior.demos
    draws = posterior.sample(5, seed=4)
    bound = posterior.bound
    truths = [
        {
            agent: chain_truth(bound, agent, {name: rows[d] for name, rows in draws.items()})
            for agent in demos.agents
        }
        for d in range(5)
    ]
    smoothed = posterior.smooth(demos, use_labels=True, num_draws=5, seed=4)
    for agent in demos.agents:
        expected = np.mean([truth[agent].smoothed for truth in truths], axis=0)
        np.testing.assert_allclose(smoothed[agent], expected, rtol=0, atol=1e-11)
    each = [sum(one.log_likelihood for one in truth.values()) for truth in truths]
    expected = np.log(np.mean(np.exp(each), axis=0))
    found = posterior.log_likelihood(demos, num_draws=5, seed=4)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)
    decoded = posterior.decode(demos, use_labels=True, num_draws=5, seed=4)
    assert np.array_equal(decoded[:, 1], smoothed["bob"].argmax(1))


def test_what_is_certain_in_every_draw_is_certain() -> None:
    demos = hmm_demos([0, 0, 1, 1], [0, -1, -1, 1])
    learned = btil.fit(hmm_model(), demos, progress=False)
    assert learned.dtype == np.float32
    belief = learned.smooth(demos, use_labels=True, num_draws=300)["agent_0"]
    assert belief.dtype == np.float32
    assert belief[[0, 3]].tolist() == [[1, 0], [0, 1]]


def test_draws_of_a_sparse_posterior_make_nothing_impossible() -> None:
    posterior = btil.fit(
        hmm_model(1e-3), hmm_demos([0, 0, 0, 0], [0, 0, 1, 1], num_actions=3), progress=False
    )
    other = hmm_demos([0, 1, 2, 1], num_actions=3)
    for beliefs in (posterior.smooth(other, num_draws=30), posterior.filter(other, num_draws=30)):
        np.testing.assert_allclose(beliefs["agent_0"].sum(1), 1, atol=1e-5)
    assert np.isfinite(posterior.log_likelihood(other, num_draws=30)).all()


def test_sample_shapes_and_seeds(posterior: btil.TeamPosterior) -> None:
    draws, again, other = posterior.sample(7, 3), posterior.sample(7, 3), posterior.sample(7, 4)
    for name, table in posterior.bound.learned.items():
        assert draws[name].shape == (7, *table.shape)
        assert np.array_equal(draws[name], again[name])
        assert not np.array_equal(draws[name], other[name])


def test_rows_drawn_where_data_never_were_follow_the_seed(posterior: btil.TeamPosterior) -> None:
    training = posterior.bound.tables["transition_ann"].contexts.rows.tolist()
    contexts = bind(posterior.model, random_demos(9, (4, 1, 3))).tables["transition_ann"].contexts
    unseen = [row not in training for row in contexts.rows.tolist()]
    first, again, other = (
        next(iter(posterior.drawn_tables(1, seed))).rows("transition_ann", contexts)[unseen]
        for seed in (3, 3, 4)
    )
    assert len(first)
    assert np.array_equal(first, again)
    assert not np.isin(first, other).any()


@pytest.mark.parametrize("num_draws", [7, 30])
def test_a_draw_of_chains_is_one_of_theirs_at_all_sites(
    posterior: btil.TeamPosterior, num_draws: int
) -> None:
    # Every cell of a draw holds the draw's number.
    numbers = np.arange(20.0).reshape(2, 10)
    rows = {
        name: DrawnRows(
            np.ones((2, 10, *table.shape)) * numbers.reshape(2, 10, *[1] * len(table.shape))
        )
        for name, table in posterior.bound.learned.items()
    }
    chains = replace(posterior, result=posterior.result._replace(rows=rows))
    drawn = [values.reshape(num_draws, -1) for values in chains.sample(num_draws, 1).values()]
    chosen = drawn[0][:, 0]
    assert len(np.unique(chosen)) == num_draws if num_draws <= 20 else len(np.unique(chosen)) > 10
    for values in drawn:
        assert (values == chosen[:, None]).all()


def test_contexts_come_by_name() -> None:
    demos = btil.Demonstrations(
        states={"room": ["hall", "attic", "hall"]},
        actions={"ann": ["go", "go", "stay"]},
        latents={"ann": ["lost", None, "found"]},
    )
    posterior = btil.fit(
        btil.TeamModel(transition=btil.DirichletCPT(1.0, ("state", "actions", "next_state"))),
        demos,
        progress=False,
    )
    assert posterior.contexts("ann", "policy")["room"].tolist() == ["attic", "hall"]
    moves = posterior.contexts("ann", "transition")
    assert moves.columns.tolist() == ["room", "action_ann", "next_room"]
    assert moves.to_numpy().tolist() == [["attic", "go", "hall"], ["hall", "go", "attic"]]
    by_text = posterior.policy("ann", ["attic", "hall"])
    assert np.array_equal(by_text, posterior.policy("ann", [0, 1]))


def test_shared_tables_against_enumeration() -> None:
    demos = random_demos(0, (3, 2), (2, 2), (2, 2), (2, 2))
    model = btil.TeamModel(
        policy=btil.Shared(btil.DirichletCPT(0.8, {"ann": ("x",), "bob": ("y",)})),
        transition=btil.Shared(btil.DirichletCPT(1.1, ("own_action",))),
        initial=btil.DirichletCPT(1.0),
    )
    posterior = btil.fit(model, demos, dtype="float64", progress=False)
    bound = posterior.bound
    assert set(bound.learned) == {"policy", "transition", "initial_ann", "initial_bob"}
    rows = {name: posterior.result.rows[name].mean() for name in bound.learned}
    truth = [chain_truth(bound, agent, rows) for agent in demos.agents]
    np.testing.assert_allclose(
        posterior.log_likelihood(demos), sum(one.log_likelihood for one in truth), atol=1e-11
    )
    smoothed = posterior.smooth(demos, use_labels=True)
    for agent, one in zip(demos.agents, truth, strict=True):
        np.testing.assert_allclose(smoothed[agent], one.smoothed, atol=1e-12)
    assert np.array_equal(
        posterior.policy("ann", {"x": [0, 1]}), posterior.policy("bob", {"y": [0, 1]})
    )


def test_functions_are_asked_anew_about_the_same_episodes() -> None:
    right = 0.9

    def policy(contexts: Any) -> np.ndarray:
        rows = np.array([[right, 1 - right], [0.3, 0.7]])
        return np.broadcast_to(rows, (len(contexts["state"]), 2, 2))

    model = btil.TeamModel(btil.KnownCPT(policy, parents=("state",)), btil.StaticCPT())
    posterior = btil.fit(model, hmm_demos([0, 1, 0], [0, -1, -1]), "mfvi", progress=False)
    other = hmm_demos([0, 1, 0, 0], [1, -1, -1, -1])
    for use_labels in (False, True):
        assert posterior.smooth(other, use_labels)["agent_0"].shape == (4, 2)
    for right in (0.9, 0.4):
        likelihood = np.array([right**3 * (1 - right), 0.3**3 * 0.7])
        belief = posterior.smooth(other)["agent_0"]
        np.testing.assert_allclose(belief[0], likelihood / likelihood.sum(), rtol=1e-5)
        assert posterior.smooth(other, use_labels=True)["agent_0"][0, 1] == pytest.approx(1)
        only = posterior.log_likelihood(other.without_labels())
        np.testing.assert_allclose(only, np.log(likelihood.mean()), rtol=1e-5)


# ------------------------------------------------------------------ continuous columns


def test_columns_are_told_as_learned_and_elsewhere_as_a_priori() -> None:
    posterior = team_with_columns()
    own = posterior.result.channels["emission_bob"]
    states = {"x": [1, 3, 0]}
    mean, mode = (posterior.emission("bob", states, estimate) for estimate in ("mean", "map"))
    for point, of_own, of_prior in ((mean, 7 - 2, 4.0), (mode, 7 + 3, 12 / 8)):
        np.testing.assert_allclose(point.coefficients[[0, 2]], own.location[[1, 0]])
        np.testing.assert_allclose(point.covariance[[0, 2]], own.scale[[1, 0]] / of_own)
        np.testing.assert_allclose(point.coefficients[1], 0.5)
        np.testing.assert_allclose(point.covariance[1], of_prior)
    asked = posterior.channel_mean("bob", np.array([[1], [3], [0]]))
    for one, other in zip(asked, mean, strict=True):
        np.testing.assert_array_equal(one, other)
    every = posterior.emission("bob", {"x": np.arange(4)})
    np.testing.assert_array_equal(every.coefficients[[1, 3, 0]], mean.coefficients)
    one = posterior.emission("bob", {"x": 3, "y": [0, 1]})
    assert one.coefficients.shape == (1, 2, 1, 1)


@pytest.mark.parametrize(
    ("question", "told"),
    [
        (lambda p: p.emission("eve"), "unknown agent 'eve'"),
        (lambda p: p.emission("ann"), "emission of ann depends on x; no value is given for x"),
        (lambda p: p.emission("ann", {"x": [4]}), "x at position 0 is 4"),
        (lambda p: p.emission("ann", {"x": 0}, "mode"), "estimate must be 'mean' or 'map'"),
        (lambda p: p.predict_columns(p.demos, num_draws=0), "num_draws must be"),
    ],
)
def test_a_wrong_question_about_columns_is_refused(question: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        question(team_with_columns())


def test_draws_of_columns_never_seen_follow_seed_context_and_agent_alone() -> None:
    posterior = team_with_columns()
    contexts = np.array([[2], [0], [3]])
    found = posterior.drawn_channel("ann", contexts, 5, 1)
    assert found.coefficients.shape == found.covariance.shape == (5, 3, 2, 1, 1)
    sampled = posterior.sample(5, 1)
    np.testing.assert_array_equal(
        found.coefficients[:, 1, :, 0], sampled["emission_mean_ann"][:, 0]
    )
    np.testing.assert_array_equal(found.covariance[:, 1], sampled["emission_covariance_ann"][:, 0])
    alone = posterior.drawn_channel("ann", contexts[[2]], 5, 1)
    for one, other in zip(found, alone, strict=True):
        np.testing.assert_array_equal(one[:, 2], other[:, 0])
        assert not np.isin(one[:, 0], one[:, 2]).any()
        assert len(np.unique(one[:, 2])) == 10
    for agent, seed in (("ann", 2), ("bob", 1)):
        again = posterior.drawn_channel(agent, contexts, 5, seed)
        assert not np.isin(found.coefficients, again.coefficients).any()
    # So are those of a state that nobody saw, or of who is away.
    unseen = posterior.drawn_channel("ann", np.array([[-1], [-2], [2]]), 5, 1)
    assert len(np.unique(unseen.coefficients)) == 30
    np.testing.assert_array_equal(unseen.coefficients[:, 2], found.coefficients[:, 0])
    # Draws of the tables' channels are those of the same seed.
    for draw, tables in enumerate(posterior.drawn_tables(5, 1)):
        coefficients, covariance = tables.channels["ann"].rows(np.array([[1], [0]]))
        np.testing.assert_array_equal(
            coefficients[:, :, 0], sampled["emission_mean_ann"][draw][[1, 0]]
        )
        np.testing.assert_array_equal(covariance, sampled["emission_covariance_ann"][draw][[1, 0]])


def test_columns_are_expected_by_what_was_seen_before() -> None:
    """By hand, forward; also what a tracker says as it happens, and nothing while away."""
    away = np.ones((4, 2), bool)
    away[1, 1] = False
    posterior = team_with_columns(present=away)
    demos = posterior.demos
    found = posterior.predict_columns(demos)
    tracker = posterior.tracker()
    initial, move = np.array([0.7, 0.3]), np.array([[0.8, 0.2], [0.4, 0.6]])
    act = np.array([[0.9, 0.1], [0.3, 0.7]])
    belief: dict[str, Any] = {}
    for t in range(4):
        if t == 3:
            tracker.reset()
            belief = {}
        gone = [a for k, a in enumerate(demos.agents) if not away[t, k]]
        told = tracker.update(
            {"x": demos.state_variables["x"][t], "y": 0},
            {a: int(demos.actions[t, k]) for k, a in enumerate(demos.agents) if a not in gone},
            continuous={n: v[t] for n, v in demos.continuous.items()},
            away=gone,
        )
        for k, agent in enumerate(demos.agents):
            if agent in gone:
                belief.pop(agent, None)
                assert np.isnan(found[agent][t]).all()
                assert np.isnan(told.latents[agent]).all()
                continue
            ahead = belief[agent] @ move if agent in belief else initial
            own = posterior.result.channels[f"emission_{agent}"]
            x = demos.state_variables["x"][t]
            means = own.location[x, :, 0, 0]
            assert found[agent][t] == pytest.approx(ahead @ means)
            sds = np.sqrt(own.scale[x, :, 0, 0] / 5)
            said = stats.norm(means, sds).pdf(demos.continuous[f"{agent}_v"][t])
            joint = ahead * act[:, demos.actions[t, k]] * said
            belief[agent] = joint / joint.sum()
            np.testing.assert_allclose(told.latents[agent], belief[agent])


# ------------------------------------------------------------------ deviations


def test_deviations_are_those_of_the_rows_and_corrected_where_that_can_be(
    posterior: btil.TeamPosterior, monkeypatch: pytest.MonkeyPatch
) -> None:
    for site, found in posterior.sd().items():
        w = posterior.result.rows[site].concentration
        total = w.sum(-1, keepdims=True)
        np.testing.assert_allclose(found, np.sqrt(w * (total - w) / (total**2 * (total + 1))))
    answer = {"policy_ann": np.ones((4, 2, 3))}
    asked = []
    monkeypatch.setattr(
        "btil.inference.linear_response.corrected_sds",
        lambda *given: asked.append(given) or answer,
    )

    def at_rate(rate: float | None) -> btil.TeamPosterior:
        return replace(posterior, result=posterior.result._replace(contraction_rate=rate))

    for rate in (0.1, 0.9):
        assert at_rate(rate).sd(corrected=True) == answer
        bound, rows = asked.pop()
        assert bound is posterior.bound
        assert rows == posterior.result.rows
    for rate, told in ((None, "not known"), (0.901, "0.901"), (np.nan, "nan")):
        with pytest.raises(ValueError, match=f"of at most 0.9; here it is {told}"):
            at_rate(rate).sd(corrected=True)
    with pytest.raises(ValueError, match="this posterior is of svi"):
        replace(at_rate(0.1), method="svi").sd(corrected=True)
    with pytest.raises(ValueError, match="is of method mfvi on tables without parameters"):
        team_with_columns().sd(corrected=True)


def test_parameters_that_no_data_reached_are_drawn_from_their_prior() -> None:
    """No episode has a second step; of the normal prior's draws neither latent is favoured."""
    model = btil.TeamModel(btil.UniformCPT(), btil.SoftmaxCPT(bias_scale=0.8))
    demos = btil.Demonstrations([0, 0], {"ann": [0, 1], "bob": [1, 0]}, episodes=[0, 1],
                                num_latents=2)  # fmt: skip
    posterior = made_by_hand(model, demos)
    assert not posterior.result.rows
    draws = posterior._parameter_draws
    ann, bob = (draws[f"transition_{agent}_bias"] for agent in ("ann", "bob"))
    assert ann.shape == bob.shape == (2048, 2, 2)
    assert (ann == bob).mean() < 0.01
    np.testing.assert_allclose(ann.std(), 0.8, rtol=0.05)
    rows = posterior.transition("ann")
    np.testing.assert_allclose(rows, softmax(ann, -1).mean(0)[None], rtol=1e-5)
    two = btil.Demonstrations([0, 0], {"ann": [0, 1], "bob": [1, 0]}, num_latents=2)
    contexts = bind(model, two).tables["transition_ann"].contexts

    def drawn(seed: int) -> list[Any]:
        return [one.rows("transition_ann", contexts) for one in posterior.drawn_tables(2, seed)]

    first, second = drawn(3)
    assert not np.isclose(first, second).any()
    np.testing.assert_array_equal(drawn(3), [first, second])
    assert not np.isin(drawn(4), [first, second]).any()


# ------------------------------------------------------------------ members who act


@pytest.fixture(scope="module")
def habitual() -> btil.TeamPosterior:
    """Members of other sizes, who also read what was done before; rows are drawn at random."""
    demos = random_demos(0, (5, 1, 5, 4), labelled=0.6)
    model = btil.TeamModel(
        policy=btil.DirichletCPT(0.7, ("x", "previous_action_bob")),
        transition=btil.DirichletCPT(0.9, ("y", "action_ann", "next_x")),
        initial=btil.DirichletCPT(1.3, ("y",)),
    )
    generator = np.random.default_rng(0)
    rows = {
        site: DirichletRows(generator.uniform(1, 5, table.shape))
        for site, table in bind(model, demos).learned.items()
    }
    return made_by_hand(model, demos, rows=rows)


@pytest.mark.parametrize("estimate", ["mean", "map"])
def test_members_act_by_the_rows_of_what_was_learned(
    habitual: btil.TeamPosterior, estimate: str
) -> None:
    generator = np.random.default_rng(1)
    now, after = ({name: generator.integers(2, size=12) for name in ("x", "y")} for _ in range(2))
    acted = np.stack([generator.integers(3, size=12), generator.integers(2, size=12)], axis=1)
    only, rows = np.zeros(12, int), np.arange(12)
    actors = habitual.actors(estimate)
    assert list(actors) == ["ann", "bob"]
    for k, (agent, actor) in enumerate(actors.items()):
        latents = generator.integers((2, 3)[k], size=12)
        assert (actor.agent, actor.num_latents) == (agent, (2, 3)[k])
        assert actor.variables == {"x", "y"}
        initial = habitual.initial(agent, now, estimate)
        np.testing.assert_array_equal(actor.initial(now, only), initial)
        # At a first step nothing was done before.
        first = np.full(12, -3)
        for before, done in ((None, first), ((now, acted), acted[:, 1])):
            asked = {"x": after["x"], "previous_action_bob": done}
            table = habitual.bound.table("policy", agent)
            columns = np.stack([asked[name] for name in table.contexts.names], axis=1)
            expected = habitual._estimate(
                table.name, table.contexts._replace(rows=columns), estimate
            )
            found = actor.policy(after, latents, only, before)
            np.testing.assert_array_equal(found, expected[rows, latents])
        moves = habitual.transition(agent, now, acted, after, estimate)
        found = actor.transition(now, acted, after, latents, only)
        np.testing.assert_array_equal(found, moves[rows, latents])


def test_members_act_by_the_draw_that_is_asked_for(habitual: btil.TeamPosterior) -> None:
    sampled = habitual.sample(4, seed=2)
    draw, latents = np.array([3, 0, 1, 1]), np.array([0, 2, 1, 0])
    bob = habitual.actors(num_draws=4, seed=2)["bob"]
    contexts = habitual.contexts("bob", "initial")["y"].tolist()
    states = {"x": np.array([0, 1, 1, 0]), "y": np.array([1, 0, 0, 1])}
    expected = [
        sampled["initial_bob"][d, contexts.index(y)] for d, y in zip(draw, states["y"], strict=True)
    ]
    np.testing.assert_array_equal(bob.initial(states, draw), expected)
    # Where training has been.
    where = habitual.contexts("bob", "policy").astype(str).to_numpy().tolist()
    visited = [[int(x), int(a)] for x, a in where if a != "none before"]
    x, done = np.array([visited[k % len(visited)] for k in range(4)]).T
    assert len(visited) > 1
    states["x"], acted = x, np.stack([[0, 2, 1, 0], done], axis=1)
    expected = [
        sampled["policy_bob"][d, where.index([str(x), str(a)]), k]
        for d, x, a, k in zip(draw, x, done, latents, strict=True)
    ]
    np.testing.assert_array_equal(bob.policy(states, latents, draw, (states, acted)), expected)
    with pytest.raises(ValueError, match="num_draws must be a whole number of at least 1"):
        habitual.actors(num_draws=0)


# ------------------------------------------------------------------ other episodes of the team


def named_team(**changes: Any) -> btil.Demonstrations:
    """States, actions and latents of ann have names, bob's do not."""
    given: dict[str, Any] = {
        "states": {"room": ["hall", "attic", "hall"], "lamp": [0, 1, 1]},
        "actions": {"ann": ["go", "stay", "go"], "bob": [0, 1, 2]},
        "latents": {"ann": ["lost", None, "found"], "bob": [1, 0, -1]},
        "latent_weights": {"ann": [[0.25, 0.5], [1, 0], [1, 1]], "bob": [[1, 2], [3, 4], [5, 6]]},
    }
    return btil.Demonstrations(**(given | changes))


def test_values_are_matched_by_their_names_and_numbers_stay() -> None:
    posterior = made_by_hand(btil.TeamModel(btil.DirichletCPT(1.0, ("room",))), named_team())
    other = btil.Demonstrations(
        # Another order of columns, fewer values, more values of a number, a column more.
        states={"sky": [0, 0], "lamp": [4, 0], "room": ["hall", "hall"]},
        actions={"ann": ["stay", "stay"], "bob": [1, 0]},
        latents={"ann": ["lost", None], "bob": [-1, 1]},
        num_latents={"ann": 1, "bob": 2},
        latent_weights={"ann": [[0.5], [2.0]], "bob": [[1, 2], [3, 4]]},
    )
    found = posterior.conformed(other)
    assert list(found.num_states.items()) == [("room", 2), ("lamp", 5)]
    assert found.num_actions == (2, 3)
    assert found.num_latents == (2, 2)
    assert found.state_variables["room"].tolist() == [1, 1]
    assert found.state_variables["lamp"].tolist() == [4, 0]
    assert found.actions.tolist() == [[1, 1], [1, 0]]
    assert found.latents.tolist() == [[1, -1], [-1, 1]]
    assert found.latent_names == {"ann": ("found", "lost")}
    # Of latents that are not weighed here the weight is nought.
    assert found.latent_weights["ann"].tolist() == [[0, 0.5], [0, 2]]
    assert found.latent_weights["bob"].tolist() == [[1, 2], [3, 4]]
    same = named_team()
    assert posterior.conformed(same) is same
    assert posterior.conformed(posterior.demos) is posterior.demos
    unlabelled = named_team(latents=None, latent_weights=None, num_latents=2)
    assert posterior.conformed(unlabelled) is unlabelled
    # Latents that had no names may be given some, in order.
    called = named_team(
        latents={"ann": ["lost", None, "found"], "bob": ["b", "a", None]},
        latent_names={"ann": ["found", "lost"], "bob": ["a", "b"]},
    )
    assert posterior.conformed(called) is called


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"agents": ("bob", "ann"), "actions": {"bob": [0, 1, 2], "ann": ["go", "stay", "go"]}},
         "agents are bob, ann, the posterior's are ann, bob"),
        ({"states": {"room": ["hall"] * 3}}, "lack state variables lamp"),
        ({"states": {"room": ["hall", "cave", "hall"], "lamp": [0] * 3}},
         "state_names of room differ: cave here, attic, hall where"),
        ({"states": {"room": [0, 1, 1], "lamp": [0] * 3}},
         "state_names of room: the values here are numbers, .* is not declared: attic, hall"),
        ({"states": {"room": ["hall"] * 3, "lamp": ["on", "off", "on"]}},
         r"state_names of lamp: the values here have names \(off, on\)"),
        ({"actions": {"ann": ["go", "run", "go"], "bob": [0, 1, 2]}},
         "action_names of ann differ: run here, go, stay where"),
        ({"actions": {"ann": ["go", "stay", "go"], "bob": [3, 1, 2]},
          "num_actions": {"ann": 2, "bob": 4}}, "action_bob.* 3"),
        ({"latents": {"ann": ["lost", None, "glad"], "bob": [1, 0, -1]}},
         "latent_names of ann differ: glad here, found, lost where"),
        ({"latents": {"ann": ["lost", None, "found"], "bob": [2, 0, 1]}, "latent_weights": None},
         "latent_bob.* 2"),
    ],
)  # fmt: skip
def test_episodes_that_do_not_fit_are_refused(changes: dict[str, Any], told: str) -> None:
    posterior = made_by_hand(btil.TeamModel(btil.DirichletCPT(1.0, ("room",))), named_team())
    with pytest.raises(ValueError, match=told):
        posterior.conformed(named_team(**changes))
    assert isinstance(posterior.conformed(named_team()), btil.Demonstrations)


def test_answers_in_another_numbering_are_refused() -> None:
    posterior = made_by_hand(btil.TeamModel(btil.DirichletCPT(1.0, ("room",))), named_team())
    few = named_team(
        actions={"ann": ["stay"] * 3, "bob": [0, 1, 2]},
        latents={"ann": ["lost", None, "lost"], "bob": [1, 0, -1]},
        latent_weights=None, num_latents=None,
    )  # fmt: skip
    for ask in (posterior.smooth, posterior.filter, posterior.decode):
        with pytest.raises(ValueError, match="latent_names of ann differ: lost here, found, lost"):
            ask(few)
    with pytest.raises(ValueError, match="action_names of ann differ: stay here, go, stay"):
        posterior.predict_actions(few)
    # What returns neither takes them.
    assert posterior.log_likelihood(few).shape == (1,)
    # The first names alone are numbered as those learned with.
    first = named_team(latents={"ann": ["found", None, "found"], "bob": [1, 0, -1]},
                       latent_weights=None, num_latents=None)  # fmt: skip
    assert posterior.decode(first).shape == (3, 2)


# ------------------------------------------------------------------ what is said of the impossible


def test_the_impossible_is_told_by_what_was_seen_there() -> None:
    demos = btil.Demonstrations(
        {"x": [0] * 5},
        {"ann": ["go", "stay", "go", None, "go"]},
        {"ann": ["a", "b", None, "b", None], "bob": ["c", None, None, "d", "d"]},
        ["mon", "mon", "tue", "tue", "tue"],
        agents=("ann", "bob"),
        latent_names={"ann": ["a", "b"], "bob": ["c", "d"]},
        missing="allow",
        continuous={"bob_v": [0.0, 1, 2, 3, 4]},
    )
    bound = bind(btil.TeamModel(btil.UniformCPT(), btil.StaticCPT()), demos)
    layout = lay_out(bound, coarse=True)

    def told(agent: str, *steps: int) -> str:
        logs = np.zeros(layout.lanes.shape)
        logs[np.isin(layout.lanes, steps)] = -np.inf
        with pytest.raises(ValueError, match="impossible") as refused:
            refuse_impossible(demos, agent, logs, layout)
        return str(refused.value)

    begin, end = "impossible under the model: episode ", " has probability 0 given the episode"
    for agent, steps, said in (
        ("ann", (1,), "mon, agent ann, step 1: action stay with label b"),
        ("ann", (3, 4), "tue, agent ann, step 1: an action that nobody saw with label b"),
        ("ann", (4, 2), "tue, agent ann, step 0: action go"),
        ("ann", (0, 1), "mon, agent ann, step 0: action go with label a"),
        ("bob", (4,), "tue, agent bob, step 2: label d"),
        ("bob", (0,), "mon, agent bob, step 0: label c"),
        ("bob", (2,), "tue, agent bob, step 0: what was seen"),
    ):
        assert told(agent, *steps).startswith(f"{begin}{said}{end}")
    refuse_impossible(demos, "ann", np.full(layout.lanes.shape, -700.0), layout)


def test_who_has_no_actions_is_not_predicted_to_act() -> None:
    demos = btil.Demonstrations(
        {"x": [0, 1, 1]}, {"ann": [0, 1, 0]}, {"bob": [0, -1, 1]}, agents=("ann", "bob"),
        num_latents=2, continuous={"bob_v": [0.0, 1, 2]},
    )  # fmt: skip
    posterior = made_by_hand(btil.TeamModel(), demos)
    for num_draws in (None, 3):
        assert set(posterior.predict_actions(demos, num_draws=num_draws)) == {"ann"}
        assert set(posterior.smooth(demos, num_draws=num_draws)) == {"ann", "bob"}
    told = posterior.smooth(demos, use_labels=True)["bob"]
    np.testing.assert_allclose(told[[0, 2]], [[1, 0], [0, 1]])


def test_of_who_is_away_throughout_nothing_is_said() -> None:
    demos = random_demos(0, (3, 1), num_latents=(2, 3), num_actions=(3, 2))
    posterior = made_by_hand(rich_model(), demos)
    gone = demos.without_labels().replace(present={"bob": np.zeros(4, bool)})
    for num_draws in (None, 2):
        for name, size in (("smooth", 3), ("filter", 3), ("predict_actions", 2)):
            found = getattr(posterior, name)(gone, num_draws=num_draws)
            assert found["bob"].shape == (4, size)
            assert np.isnan(found["bob"]).all()
            assert not np.isnan(found["ann"]).any()
        assert (posterior.decode(gone, num_draws=num_draws)[:, 1] == -1).all()


def test_seeds_and_numbers_of_draws_are_looked_at_by_every_question(
    posterior: btil.TeamPosterior,
) -> None:
    demos = posterior.demos
    for name in ("smooth", "filter", "decode", "predict_actions", "log_likelihood"):
        ask = getattr(posterior, name)
        with pytest.raises(ValueError, match="num_draws must be a whole number of at least 1"):
            ask(demos, num_draws=0)
        with pytest.raises(ValueError, match="seed must be a non-negative integer"):
            ask(demos, seed=-1)
        one, same, other = (ask(demos, num_draws=2, seed=seed) for seed in (3, 3, 4))
        if name == "log_likelihood":
            assert np.array_equal(one, same)
            assert not np.isclose(one, other).any()
        elif name != "decode":
            assert np.array_equal(one["ann"], same["ann"])
            assert not np.array_equal(one["ann"], other["ann"])


def test_draws_of_one_seed_are_the_same_for_every_question(posterior: btil.TeamPosterior) -> None:
    """Rows, tables, the tracker's and the tree's."""
    sampled = posterior.sample(3, seed=5)
    rows = list(posterior.drawn_rows(posterior.bound, 3, 5))
    tables = list(posterior.drawn_tables(3, 5))
    contexts = posterior.bound.tables["policy_bob"].contexts
    for draw in range(3):
        np.testing.assert_array_equal(rows[draw]["policy_bob"], sampled["policy_bob"][draw])
        np.testing.assert_array_equal(
            tables[draw].rows("policy_bob", contexts), sampled["policy_bob"][draw]
        )


# ------------------------------------------------------------------ rows that have parameters


def scattered() -> btil.TeamPosterior:
    """Rows scatter around base rows whose log odds are normal; state 2 was never seen."""
    demos = btil.Demonstrations(
        {"x": [0, 1, 1]}, {"ann": [0, 1, 0]}, num_states={"x": 3}, num_latents=2
    )
    policy = btil.HierarchicalDirichletCPT(5.0, parents=("x",))
    model = btil.TeamModel(policy, btil.SoftmaxCPT())
    shape = (2, 2, 2)
    generator = np.random.default_rng(0)
    centre = np.broadcast_to([[3.0, 2.0], [1.0, 1.0]], shape)
    average = generator.dirichlet([1, 1], (2, 2))
    moved = generator.dirichlet([1, 1], (1, 2))
    rows = {
        "policy_ann": ConditionalRows(np.zeros(shape), centre, average, np.ones(shape)),
        "transition_ann": FunctionalRows(moved, np.ones((1, 2, 2))),
    }
    parameters = {
        # Nearly certain, so that the base rows are their logistic.
        "policy_ann_base": NormalParameters(np.array([[1.0], [-0.5]]), np.full((2, 1), 1e-4)),
        "transition_ann_bias": NormalParameters(np.zeros((2, 2)), np.ones((2, 2))),
    }
    return made_by_hand(model, demos, rows=rows, parameters=parameters)


def test_modes_of_rows_with_parameters_are_those_at_the_middle_of_these() -> None:
    posterior = scattered()
    given = posterior.result.rows["policy_ann"]
    share = 1 / (1 + np.exp(-np.array([1.0, -0.5])))
    base = np.stack([share, 1 - share], axis=-1)
    mean, mode = (posterior.policy("ann", estimate=kind) for kind in ("mean", "map"))
    np.testing.assert_allclose(mean[:2], given.average)
    np.testing.assert_allclose(mean[2], base, atol=1e-3)
    # Where it was learned: (3 - 1, 2 - 1) / 3; a row without a mode has its mean.
    np.testing.assert_allclose(mode[:2, 0], [[2 / 3, 1 / 3]] * 2)
    np.testing.assert_allclose(mode[:2, 1], given.average[:, 1])
    excess = 5 * base - 1
    np.testing.assert_allclose(mode[2], excess / excess.sum(-1, keepdims=True), atol=1e-3)
    with pytest.raises(ValueError, match="those of transition_ann are a function of parameters"):
        posterior.transition("ann", estimate="map")
    moved = posterior.result.rows["transition_ann"].average
    np.testing.assert_allclose(posterior.transition("ann"), np.repeat(moved, 3, axis=0))


def test_of_very_many_draws_of_parameters_some_are_averaged_evenly() -> None:
    posterior = scattered()
    numbers = np.arange(6000.0)
    draws = {
        "policy_ann_base": numbers.reshape(2, 3000, 1, 1) * np.ones((2, 2)),
        "transition_ann_bias": (numbers[:8] ** 2).reshape(2, 4, 1, 1) * np.ones((2, 2)),
    }
    many = {site: DrawnParameters(values) for site, values in draws.items()}
    found = replace(posterior, result=posterior.result._replace(parameters=many))
    taken = found._parameter_draws["policy_ann_base"][:, 0, 1]
    assert (len(taken), taken[0], taken[-1]) == (2048, 0, 5999)
    assert set(np.diff(taken)) == {2, 3}
    few = found._parameter_draws["transition_ann_bias"][:, 0, 1]
    np.testing.assert_array_equal(few, numbers[:8] ** 2)
    # The middle is the median, between 9 and 16.
    middle = found._central_parameters
    np.testing.assert_array_equal(middle["transition_ann_bias"], np.full((1, 2, 2), 12.5))


def test_visited_rows_are_in_the_order_of_their_contexts(habitual: btil.TeamPosterior) -> None:
    for role in ("policy", "transition", "initial"):
        w = habitual.result.rows[f"{role}_bob"].concentration
        found = habitual.visited_rows(role, "bob")
        np.testing.assert_allclose(found, w / w.sum(-1, keepdims=True))
        modes = habitual.visited_rows(role, "bob", "map")
        np.testing.assert_allclose(modes, dirichlet_mode(w))


def test_contexts_are_told_by_names_where_there_are_some() -> None:
    demos = btil.Demonstrations(
        {"room": ["hall", "attic", "hall"], "lamp": [1, 0, 1]},
        {"ann": ["go", "stay", "go"], "bob": [1, 0, 1]},
        num_latents=2,
    )
    parents = ("room", "lamp", "previous_lamp", "previous_action_ann")
    model = btil.TeamModel(
        btil.DirichletCPT(1.0, parents), btil.DirichletCPT(1.0, ("next_room", "action_bob"))
    )
    posterior = made_by_hand(model, demos)
    policy = posterior.contexts("bob", "policy")
    assert policy.columns.tolist() == list(parents)
    assert policy.index.name == "context"
    # With no step before there is a name for that, for numbers too.
    assert sorted(policy.to_numpy().tolist()) == [
        ["attic", 0, "1", "go"],
        ["hall", 1, "0", "stay"],
        ["hall", 1, "none before", "none before"],
    ]  # fmt: skip
    moves = posterior.contexts("bob", "transition")
    assert sorted(moves.to_numpy().tolist()) == [["attic", 1], ["hall", 0]]
    with pytest.raises(ValueError, match="unknown agent 'eve'"):
        posterior.contexts("eve", "policy")
    alone = made_by_hand(model, demos.select([0]).replace(missing="allow"))
    assert len(alone.contexts("ann", "initial")) == 1


def test_a_posterior_says_what_it_is_of(posterior: btil.TeamPosterior) -> None:
    told = repr(made_by_hand(rich_model(), posterior.demos, "svi", converged=False))
    assert told == (
        "TeamPosterior(svi: policy_ann 4x2x3, policy_bob 4x3x2, transition_ann 8x2x2, "
        "transition_bob 8x3x3, initial_ann 2x2, initial_bob 2x3; not converged: made by hand)"
    )
    assert repr(team_with_columns()) == (
        "TeamPosterior(mfvi: emission_ann 2x2x1x1, emission_bob 2x2x1x1; converged: made by hand)"
    )
    nothing = btil.TeamModel(btil.UniformCPT(), btil.StaticCPT())
    told = repr(made_by_hand(nothing, posterior.demos))
    assert told == "TeamPosterior(mfvi: nothing learned; converged: made by hand)"


def test_what_a_posterior_is_asked_of_itself_is_of_its_result() -> None:
    found = made_by_hand(
        hmm_model(), hmm_demos([0, 1]), elbo=-2.5, elbo_standard_error=0.25, contraction_rate=0.75,
        elbo_trace=np.array([-3.0, -2.5]), converged=False,
    )  # fmt: skip
    assert (found.elbo, found.elbo_se, found.contraction_rate) == (-2.5, 0.25, 0.75)
    assert found.elbo_trace.tolist() == [-3.0, -2.5]
    assert (found.converged, found.reason) == (False, "made by hand")
    assert found.model is found.bound.model
    assert found.demos is found.bound.demos
    assert found.draws_info is None
