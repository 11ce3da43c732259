"""Mean field against enumeration, hmmlearn and the collapsed model in NumPyro."""

import logging
from typing import Any

import numpy as np
import pytest
from enumeration import (
    all_rows,
    episode_factors,
    episode_log_likelihoods,
    episode_rows,
    exact_posterior,
    latent_paths,
    used_cells,
)
from scipy.special import digamma, gammaln
from teams import hmm_demos, hmm_model, random_demos, rich_model

import btil
from btil.inference import mfvi
from btil.inference.ascents import judge
from btil.inference.channels import is_doubtful_with
from btil.inference.starting import (
    doubtful_rate,
    is_symmetric,
    labelled_counts,
    num_contexts,
)
from btil.messages.layout import lay_out
from btil.models.team import BoundModel, bind

Rows = dict[str, np.ndarray]


def fit(model: btil.TeamModel, demos: btil.Demonstrations, **options: Any) -> btil.TeamPosterior:
    return btil.fit(model, demos, **{"dtype": "float64", "progress": False, **options})


def priors(bound: BoundModel) -> Rows:
    return {name: t.cpt.concentration(t.contexts) for name, t in bound.learned.items()}


def concentrations(posterior: btil.TeamPosterior) -> Rows:
    return {name: rows.concentration for name, rows in posterior.result.rows.items()}


def divergence(w: Rows, u: Rows) -> float:
    """Sum over rows of KL(Dir(w) || Dir(u))."""
    total = 0.0
    for name in w:
        a, b = w[name], u[name]
        log_mean = digamma(a) - digamma(a.sum(-1, keepdims=True))
        cells = (gammaln(b) - gammaln(a) + (a - b) * log_mean).sum(-1)
        total += float((gammaln(a.sum(-1)) - gammaln(b.sum(-1)) + cells).sum())
    return total


def direct_sweep(bound: BoundModel, w: Rows) -> tuple[float, Rows]:
    """The bound of q(rows) = Dir(w) with its best q(x), and the next w, over all sequences."""
    demos = bound.demos
    log_means = {name: digamma(a) - digamma(a.sum(-1, keepdims=True)) for name, a in w.items()}
    with np.errstate(divide="ignore"):
        logs = {name: np.log(rows) for name, rows in all_rows(bound, w).items()} | log_means
    updated = priors(bound)
    elbo = -divergence(w, updated)
    for episode in range(demos.num_episodes):
        steps = episode_rows(demos, episode)
        for i, agent in enumerate(demos.agents):
            factors = episode_factors(bound, agent, episode)
            uses = [
                used_cells(factors, demos.actions[steps, i], path)
                for path in latent_paths(demos, i, episode)
            ]
            scores = np.array([sum(logs[name][cell] for name, cell in cells) for cells in uses])
            q = np.exp(scores - np.logaddexp.reduce(scores))
            # E_q[log p(actions, x | rows)] - E_q[log q(x)], term by term.
            elbo += float(sum(p * (s - np.log(p)) for p, s in zip(q, scores, strict=True) if p > 0))
            for p, cells in zip(q, uses, strict=True):
                for name, cell in cells:
                    if name in updated:
                        updated[name][cell] += p
    return elbo, updated


CASES = {
    "two agents": (rich_model(), random_demos(0)),
    "no labels": (rich_model(), random_demos(1, labelled=0.0)),
    "shared": (
        btil.TeamModel(
            policy=btil.Shared(btil.DirichletCPT(0.8, {"ann": ("x",), "bob": ("y",)})),
            transition=btil.Shared(btil.DirichletCPT(1.1, ("own_action",))),
        ),
        random_demos(2, (3, 2), (2, 2), (2, 2), (2, 2)),
    ),
    "small concentration": (hmm_model(0.1), hmm_demos([0, 1, 1, 2, 0], [0, -1, -1, 1, -1])),
    "one latent": (hmm_model(), hmm_demos([0, 0, 1], num_latents=1)),
}


@pytest.mark.parametrize("name", CASES)
def test_bound_is_the_sum_over_all_sequences(name: str) -> None:
    posterior = fit(*CASES[name], tolerance=1e-10)
    bound = posterior.bound
    w = concentrations(posterior)
    elbo, updated = direct_sweep(bound, w)
    assert posterior.elbo == pytest.approx(elbo, abs=1e-9)
    # The fixed point: w = u + expected counts.
    for site in w:
        np.testing.assert_allclose(updated[site], w[site], rtol=0, atol=1e-3)
    assert posterior.elbo == posterior.elbo_trace[-1]
    assert np.all(np.diff(posterior.elbo_trace) >= -1e-8 * abs(posterior.elbo))
    assert posterior.converged, posterior.reason


@pytest.mark.parametrize("name", ["two agents", "small concentration"])
def test_every_sweep_is_the_direct_one(name: str) -> None:
    model, demos = CASES[name]
    bound = bind(model, demos)
    generator = np.random.default_rng(0)
    w = {site: u + generator.uniform(0, 3, u.shape) for site, u in priors(bound).items()}
    posterior = fit(model, demos, start=w, max_iterations=5, tolerance=1e-300)
    trace = []
    for _ in range(5):
        before = w
        elbo, w = direct_sweep(bound, before)
        trace.append(elbo)
    np.testing.assert_allclose(posterior.elbo_trace, trace, rtol=0, atol=1e-9)
    for site, found in concentrations(posterior).items():
        np.testing.assert_allclose(found, before[site], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "name", ["shared", "small concentration", "one latent", "tiny team", "all labelled"]
)
def test_bound_is_below_the_evidence(name: str) -> None:
    cases = CASES | {
        "tiny team": (rich_model(), random_demos(0, (2, 1), (2, 2), (2, 2), labelled=0.3)),
        "all labelled": (rich_model(), random_demos(2, labelled=1.0)),
    }
    posterior = fit(*cases[name], tolerance=1e-10)
    evidence = exact_posterior(posterior.bound).log_evidence
    if name in ("one latent", "all labelled"):
        assert posterior.elbo == pytest.approx(evidence, abs=1e-9)
        # What labels determine is there from the start.
        assert len(posterior.elbo_trace) <= (2 if name == "all labelled" else 3)
    else:
        assert posterior.elbo < evidence - 1e-6
    single = btil.fit(*cases[name], progress=False, dtype="float32")
    assert single.elbo == pytest.approx(posterior.elbo, abs=2e-3)


def test_collapsed_bound_of_the_same_q_lies_between(x64: None) -> None:
    import jax
    from numpyro.infer import Trace_ELBO

    demos = random_demos(0, (4, 3), (2,), (3,), labelled=0.2)
    posterior = fit(rich_model(), demos, tolerance=1e-10)
    evidence = exact_posterior(posterior.bound).log_evidence
    model = btil.team_dbn(rich_model(), demos)
    guide = btil.mfvi_guide(posterior)
    loss = jax.jit(
        lambda key: jax.vmap(lambda k: Trace_ELBO(1).loss(k, {}, model, guide))(
            jax.random.split(key, 1000)
        )
    )
    values = -np.asarray(loss(jax.random.key(0)))
    mean, error = values.mean(), values.std() / np.sqrt(len(values))
    assert error < 0.1
    assert posterior.elbo - 4 * error < mean < evidence + 4 * error
    # The same number by enumeration, on draws of our own.
    draws = posterior.sample(300, seed=1)
    by_hand = [
        episode_log_likelihoods(posterior.bound, {n: rows[d] for n, rows in draws.items()}).sum()
        for d in range(300)
    ]
    penalty = divergence(concentrations(posterior), priors(posterior.bound))
    by_hand_error = np.std(by_hand) / np.sqrt(300)
    assert abs(np.mean(by_hand) - penalty - mean) < 4 * np.hypot(error, by_hand_error)


def test_guide_draws_the_posterior(x64: None) -> None:
    import jax
    from numpyro.infer import Predictive

    posterior = fit(*CASES["small concentration"])
    predictive = Predictive(btil.mfvi_guide(posterior), num_samples=500, parallel=True)
    draws = predictive(jax.random.key(0))
    for name, rows in posterior.result.rows.items():
        error = rows.sd() / np.sqrt(500)
        assert np.all(np.abs(np.mean(draws[name], 0) - rows.mean()) < 5 * error + 1e-12)


def test_guide_needs_dirichlet_rows() -> None:
    posterior = fit(hmm_model(), hmm_demos([0, 1]), method="exact")
    with pytest.raises(ValueError, match="exact did not give Dirichlet rows"):
        btil.mfvi_guide(posterior)


def test_same_bounds_and_concentrations_as_hmmlearn(caplog: pytest.LogCaptureFixture) -> None:
    from hmmlearn.vhmm import VariationalCategoricalHMM

    generator = np.random.default_rng(0)
    latents, values, sweeps = 3, 4, 30
    lengths = [40, 1, 25]
    actions = generator.integers(0, values, sum(lengths))
    prior = {"policy": 0.6, "transition": 1.3, "initial": 0.9}
    shapes = {
        "policy": (latents, values),
        "transition": (latents, latents),
        "initial": (latents,),
    }
    start = {role: prior[role] + generator.uniform(0, 9, shape) for role, shape in shapes.items()}
    theirs = VariationalCategoricalHMM(
        n_components=latents, n_features=values, n_iter=sweeps, tol=-np.inf, init_params=""
    )
    for role, name in (
        ("initial", "startprob"),
        ("transition", "transmat"),
        ("policy", "emissionprob"),
    ):
        setattr(theirs, f"{name}_prior_", np.full(shapes[role], prior[role]))
        setattr(theirs, f"{name}_posterior_", start[role])
    with caplog.at_level(logging.ERROR, logger="hmmlearn"):
        theirs.fit(actions[:, None], lengths)
    model = btil.TeamModel(
        policy=btil.DirichletCPT(prior["policy"]),
        transition=btil.DirichletCPT(prior["transition"]),
        initial=btil.DirichletCPT(prior["initial"]),
    )
    demos = hmm_demos(
        actions.tolist(),
        num_latents=latents,
        num_actions=values,
        episodes=np.repeat([0, 1, 2], lengths),
    )
    # Their last iteration updates once more after its bound was taken: one sweep of ours.
    ours = fit(
        model,
        demos,
        start={f"{role}_agent_0": w[None] for role, w in start.items()},
        max_iterations=sweeps + 1,
        tolerance=1e-300,
    )
    np.testing.assert_allclose(ours.elbo_trace[:sweeps], theirs.monitor_.history, rtol=1e-10)
    w = concentrations(ours)
    for site, found in (
        ("policy_agent_0", theirs.emissionprob_posterior_),
        ("transition_agent_0", theirs.transmat_posterior_),
        ("initial_agent_0", theirs.startprob_posterior_),
    ):
        np.testing.assert_allclose(w[site][0], found, rtol=1e-9)


# ------------------------------------------------------------------ what changes nothing


def permuted_start(w: Rows, orders: dict[str, np.ndarray]) -> Rows:
    """The same start with every agent's latents relabelled."""
    moved = {}
    for site, values in w.items():
        role, agent = site.split("_", 1)
        order = orders[agent]
        moved[site] = values[:, order]
        if role == "transition":
            moved[site] = moved[site][:, :, order]
    return moved


def test_relabelling_episodes_and_agents_in_any_order() -> None:
    model, demos = CASES["two agents"]
    generator = np.random.default_rng(3)
    bound = bind(model, demos)
    start = {site: u + generator.uniform(0, 3, u.shape) for site, u in priors(bound).items()}
    options = {"max_iterations": 12, "tolerance": 1e-300}
    first = fit(model, demos, start=start, **options)

    reordered = demos.select([2, 0, 3, 1])
    found = fit(model, reordered, start=start, **options)
    np.testing.assert_allclose(found.elbo_trace, first.elbo_trace, rtol=1e-11)
    for site, w in concentrations(found).items():
        np.testing.assert_allclose(w, concentrations(first)[site], rtol=1e-8)

    swapped = btil.Demonstrations(
        states=demos.state_variables,
        episodes=demos.episodes,
        num_states=demos.num_states,
        actions={name: demos.actions[:, demos.agents.index(name)] for name in ("bob", "ann")},
        latents={name: demos.latents[:, demos.agents.index(name)] for name in ("bob", "ann")},
        num_actions={"ann": 3, "bob": 2},
        num_latents={"ann": 2, "bob": 3},
    )
    # Contexts are ordered by the agents' actions, so rows move; they are asked by name.
    other_start = {}
    for site, table in bind(model, swapped).learned.items():
        names = list(bound.tables[site].contexts.names)
        columns = [table.contexts.names.index(name) for name in names]
        rows = [tuple(row) for row in bound.tables[site].contexts.rows.tolist()]
        order = [rows.index(tuple(row)) for row in table.contexts.rows[:, columns].tolist()]
        other_start[site] = start[site][order]
    found = fit(model, swapped, start=other_start, **options)
    np.testing.assert_allclose(found.elbo_trace, first.elbo_trace, rtol=1e-11)
    np.testing.assert_allclose(found.smooth(swapped)["ann"], first.smooth(demos)["ann"], rtol=1e-8)

    orders = {"ann": np.array([1, 0]), "bob": np.array([2, 0, 1])}
    labels = demos.latents.copy()
    for i, agent in enumerate(demos.agents):
        known = labels[:, i] >= 0
        labels[known, i] = np.argsort(orders[agent])[labels[known, i]]
    relabelled = btil.Demonstrations(
        states=demos.state_variables,
        actions=demos.actions,
        latents=labels,
        episodes=demos.episodes,
        agents=demos.agents,
        num_states=demos.num_states,
        num_actions=demos.num_actions,
        num_latents=demos.num_latents,
    )
    found = fit(model, relabelled, start=permuted_start(start, orders), **options)
    np.testing.assert_allclose(found.elbo_trace, first.elbo_trace, rtol=1e-11)
    for site, w in permuted_start(concentrations(first), orders).items():
        np.testing.assert_allclose(concentrations(found)[site], w, rtol=1e-8)


# ------------------------------------------------------------------ starts and saddles


def symmetric_bound(bound: BoundModel) -> float:
    """The bound of the answer that tells no latents apart: sweeps from the prior stay there."""
    w = priors(bound)
    for _ in range(3):
        elbo, w = direct_sweep(bound, w)
    return elbo


RUNS = [0] * 4 + [1] * 4 + [0] * 3


@pytest.mark.parametrize("seed", range(6))
def test_unlabelled_data_never_end_at_the_saddle(seed: int) -> None:
    posterior = fit(hmm_model(), hmm_demos(RUNS), seed=seed)
    assert posterior.elbo > symmetric_bound(posterior.bound) + 0.05
    policy = posterior.policy("agent_0")[0]
    assert np.abs(policy[0] - policy[1]).max() > 0.3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_given_symmetric_start_is_left(dtype: str) -> None:
    bound = bind(hmm_model(), hmm_demos(RUNS))
    posterior = fit(hmm_model(), hmm_demos(RUNS), start=priors(bound), dtype=dtype)
    assert posterior.elbo > symmetric_bound(bound) + 0.05


def test_latents_that_no_label_tells_apart() -> None:
    actions = [0, 0, 0, *[1] * 5, *[2] * 5, *[1] * 5, *[2] * 5]
    labels = [0, 0, 0, *[-1] * 20]
    posterior = fit(hmm_model(), hmm_demos(actions, labels, num_latents=3))
    policy = posterior.policy("agent_0")[0]
    assert np.abs(policy[1] - policy[2]).max() > 0.1


def hidden_symmetry(kind: str) -> tuple[btil.TeamModel, btil.Demonstrations]:
    """Labels after which no two latents can be swapped alone, yet they cannot be told apart."""
    moves = {"cycle": [(0, 1), (1, 2), (2, 0)], "two pairs": [(0, 2), (1, 3)]}[kind]
    tail = [*[0] * 9, *[1] * 9, *[2] * 9] * 2
    labels = [x for move in moves for x in move] + [-1] * len(tail)
    actions = [0] * (2 * len(moves)) + tail
    episodes = [e for e in range(len(moves)) for _ in range(2)] + [9] * len(tail)
    model = btil.TeamModel(policy=btil.DirichletCPT(1.0), transition=btil.DirichletCPT(1.0))
    number = max(max(move) for move in moves) + 1
    return model, hmm_demos(actions, labels, num_latents=number, episodes=episodes)


@pytest.mark.parametrize("kind", ["cycle", "two pairs"])
def test_symmetries_of_more_than_two_latents_are_found(kind: str) -> None:
    posterior = fit(*hidden_symmetry(kind))
    policy = posterior.policy("agent_0")[0]
    assert np.abs(policy[0] - policy[1]).max() > 0.3
    assert posterior.contraction_rate < 1


def test_asymmetric_starts_are_not_called_symmetric() -> None:
    model, demos = hidden_symmetry("cycle")
    bound = bind(model, demos)
    layout = lay_out(bound)
    generator = np.random.default_rng(0)
    start = {
        name: generator.uniform(1, 2, (layout.num_rows[name], *table.shape[1:]))
        for name, table in bound.learned.items()
    }
    assert not is_symmetric(bound, start)
    start["policy_agent_0"][:] = 1.0
    assert not is_symmetric(bound, start)
    start["transition_agent_0"][:] = start["transition_agent_0"][:, :1, :1]
    assert is_symmetric(bound, start)


def weighted(generator: np.random.Generator) -> tuple[btil.TeamModel, btil.Demonstrations]:
    """Four latents that annotators doubt at every step, none of them labelled."""
    stays = generator.random(300) < 0.8
    latents = generator.integers(4, size=300)
    for t in range(1, 300):
        if t % 15 and stays[t]:
            latents[t] = latents[t - 1]
    states, rows = generator.integers(8, size=300), generator.dirichlet(np.full(4, 0.3), (8, 4))
    weights = np.full((300, 4), 0.2)
    weights[np.arange(300), latents] = 0.45
    demos = btil.Demonstrations(
        states,
        [generator.choice(4, p=rows[s, x]) for s, x in zip(states, latents, strict=True)],
        episodes=np.arange(300) // 15,
        num_latents=4,
        num_actions=4,
        latent_weights={"agent_0": weights},
    )
    policy = btil.DirichletCPT(0.2, ("state",))
    return btil.TeamModel(policy, btil.DirichletCPT(1.01)), demos


@pytest.mark.parametrize("seed", range(3))
def test_what_annotations_lead_to_is_not_thrown_away(seed: int) -> None:
    """They tell latents apart: sweeps from the prior do not stay at a saddle."""
    model, demos = weighted(np.random.default_rng(seed))
    bound = bind(model, demos)
    counts = labelled_counts(bound, num_contexts(bound))
    assert not is_symmetric(bound, counts)
    assert is_symmetric(bind(model, demos.replace(latent_weights=None)), counts)
    alone = fit(model, demos, start=priors(bound))
    assert alone.converged
    assert fit(model, demos).elbo > alone.elbo - 1e-3


def test_who_shares_tables_shares_annotations_and_labels() -> None:
    generator = np.random.default_rng(0)
    demos = btil.Demonstrations(
        generator.integers(2, size=40),
        generator.integers(3, size=(40, 2)),
        np.stack([generator.integers(2, size=40), np.full(40, -1)], 1),
        num_latents=2,
        agents=("ann", "bob"),
    )
    weights = {"ann": generator.dirichlet((1, 1), 40)}
    unsure = demos.without_labels().replace(latent_weights=weights)
    policy, transition = btil.DirichletCPT(1.2, ("state",)), btil.DirichletCPT(1.0)
    alone = btil.TeamModel(policy, transition)
    together = btil.TeamModel(btil.Shared(policy), btil.Shared(transition))
    for model, symmetric in ((alone, True), (together, False)):
        bound = bind(model, unsure)
        assert is_symmetric(bound, labelled_counts(bound, num_contexts(bound))) is symmetric
    assert doubtful_rate(bind(alone, demos)) == 0
    assert doubtful_rate(bind(together, demos)) == np.inf


@pytest.mark.parametrize(("labelled", "rate"), [(0, 0.0), (1, 0.97), (19, 0.97), (20, np.inf)])
def test_ten_labels_for_each_latent_leave_no_doubt(labelled: int, rate: float) -> None:
    labels = np.where(np.arange(30) < labelled, np.arange(30) % 2, -1)
    demos = btil.Demonstrations(np.zeros(30, int), np.arange(30) % 3, labels, num_latents=2)
    model = btil.TeamModel(btil.DirichletCPT(1.0), btil.DirichletCPT(1.0))
    assert doubtful_rate(bind(model, demos)) == rate
    # Of columns likewise; whoever has one latent needs no label.
    others = np.array([labelled, 0])
    assert is_doubtful_with(others, (2, 1)) == (labelled < 20)
    # Labels of one say nothing of another.
    assert is_doubtful_with(np.array([100, labelled]), (2, 2)) == (labelled < 20)


def test_who_has_nothing_to_learn_leaves_no_doubt() -> None:
    """Latents of bob are alike under given tables, for ever; those of ann have labels."""
    generator = np.random.default_rng(0)
    demos = btil.Demonstrations(
        np.zeros(40, int),
        generator.integers(3, size=(40, 2)),
        np.stack([np.where(np.arange(40) < 25, np.arange(40) // 3 % 2, -1), np.full(40, -1)], 1),
        num_latents=2,
        agents=("ann", "bob"),
    )
    of_ann, of_bob = btil.DirichletCPT(1.2), btil.UniformCPT()
    model = btil.TeamModel({"ann": of_ann, "bob": of_bob}, {"ann": of_ann, "bob": of_bob})
    bound = bind(model, demos)
    assert not is_symmetric(bound, labelled_counts(bound, num_contexts(bound)))
    assert doubtful_rate(bound) == np.inf
    alone = btil.Demonstrations(
        demos.states, demos.actions[:, :1], demos.latents[:, :1], num_latents=2, agents=("ann",)
    )
    found, expected = fit(model, demos), fit(btil.TeamModel(of_ann, of_ann), alone)
    assert len(found.elbo_trace) == len(expected.elbo_trace)
    np.testing.assert_allclose(found.policy("ann"), expected.policy("ann"), rtol=1e-9)


def test_restarts_keep_the_best_and_store_all() -> None:
    generator = np.random.default_rng(0)
    actions = generator.integers(0, 4, 60).tolist()
    demos = hmm_demos(actions, num_latents=3)
    posterior = fit(hmm_model(0.3), demos, num_restarts=6, seed=2)
    ends = [trace[-1] for trace in posterior.result.restart_traces]
    assert len(ends) == 6
    assert len(np.unique(np.round(ends, 3))) > 1
    assert posterior.elbo == max(ends)
    kept = posterior.result.restart_traces[int(np.argmax(ends))]
    assert np.array_equal(posterior.elbo_trace, kept)
    assert posterior.elbo == pytest.approx(direct_sweep_of_long_chain(posterior), abs=1e-8)


def test_a_given_start_is_that_of_the_first_run_alone() -> None:
    demos = hmm_demos([0, 1, 1, 2, 0], [0, -1, -1, 1, -1])
    start = {
        name: np.random.default_rng(1).uniform(2, 9, table.shape)
        for name, table in bind(hmm_model(), demos).learned.items()
    }
    given = fit(hmm_model(), demos, num_restarts=2, start=start).result.restart_traces
    usual = fit(hmm_model(), demos, num_restarts=2).result.restart_traces
    assert len(given) == len(usual) == 2
    assert given[0][0] != usual[0][0]
    assert np.array_equal(given[1], usual[1])


def direct_sweep_of_long_chain(posterior: btil.TeamPosterior) -> float:
    """The bound by a forward pass in NumPy, for chains too long to enumerate."""
    w = {site: a[0] for site, a in concentrations(posterior).items()}
    tilde = {site: np.exp(digamma(a) - digamma(a.sum(-1, keepdims=True))) for site, a in w.items()}
    log_z, belief = 0.0, tilde["initial_agent_0"]
    for action in posterior.demos.actions[:, 0]:
        belief = belief * tilde["policy_agent_0"][:, action]
        log_z += np.log(belief.sum())
        belief = belief / belief.sum() @ tilde["transition_agent_0"]
    return log_z - divergence(concentrations(posterior), priors(posterior.bound))


# ------------------------------------------------------------------ convergence and options


@pytest.mark.parametrize(
    ("trace", "tolerance", "cap", "converged", "told"),
    [
        ([-10, -8, -9], 1e-4, 100, False, "fell from -8 to -9 at sweep 3"),
        ([-10, np.nan], 1e-4, 100, False, "became nan at sweep 2"),
        ([-10, -np.inf], 1e-4, 100, False, "became -inf at sweep 2"),
        ([-10, -9, -8.5], 1e-4, 3, False, "cap of 3 sweeps"),
        ([-10], 1e-4, 1, False, "cap of 1 sweeps"),
        ([-10, -9, -8.99999], 1e-4, 100, True, "changed by 1e-05 < 0.0001"),
        ([-10, -8, -9, -9], 1e-4, 100, False, "fell from -8 to -9"),
        ([-10.0, -10.0 - 1e-9], 1e-4, 100, True, "changed by 1e-09"),
    ],
)
def test_judge(trace: list[float], tolerance: float, cap: int, converged: bool, told: str) -> None:
    verdict = judge(np.array(trace, float), tolerance, cap, np.float64)
    assert verdict.converged is converged
    assert told in verdict.reason


def test_a_fall_that_rounding_explains_is_none() -> None:
    trace = np.array([-1000.0, -1000.2])
    assert judge(trace, 1.0, 100, np.float32).converged
    assert not judge(trace, 1.0, 100, np.float64).converged


def test_the_cap_is_told() -> None:
    posterior = fit(hmm_model(), hmm_demos(RUNS), max_iterations=3)
    assert len(posterior.elbo_trace) == 3
    assert not posterior.converged
    assert "cap of 3 sweeps" in posterior.reason


@pytest.mark.parametrize(
    ("concentration", "contexts", "steps"), [(1e3, 2000, 8000), (1e5, 1, 200), (1e6, 50, 2000)]
)
def test_large_concentrations_in_single_precision(
    concentration: float, contexts: int, steps: int
) -> None:
    generator = np.random.default_rng(0)
    latents = generator.integers(0, 2, steps)
    demos = btil.Demonstrations(
        states=generator.integers(0, contexts, steps),
        actions=np.where(generator.random(steps) < 0.8, latents, 1 - latents)[:, None],
        latents=np.where(generator.random(steps) < 0.3, latents, -1)[:, None],
        episodes=np.repeat(np.arange(steps // 100), 100),
        num_states=contexts,
        num_latents=2,
        num_actions=2,
    )
    prior = btil.DirichletCPT(concentration)
    model = btil.TeamModel(btil.DirichletCPT(concentration, parents=("state",)), prior, prior)
    single, double = (
        btil.fit(model, demos, progress=False, dtype=dtype) for dtype in (np.float32, np.float64)
    )
    assert single.converged
    assert single.elbo == pytest.approx(double.elbo, rel=3e-6)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"num_restarts": 0}, "at least 1"),
        ({"max_iterations": 0}, "at least 1"),
        ({"tolerance": 0.0}, "tolerance must be a positive number"),
        ({"tolerance": float("nan")}, "tolerance must be a positive number"),
        ({"start": {}}, "start names the sites .*, expected initial_agent_0, policy_agent_0"),
        (
            {
                "start": {
                    s: np.ones((2, 2))
                    for s in ("policy_agent_0", "transition_agent_0", "initial_agent_0")
                }
            },
            "start of .*: expected positive finite concentrations of shape",
        ),
    ],
)
def test_options_out_of_range_are_refused(options: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        fit(hmm_model(), hmm_demos(RUNS), **options)


# ------------------------------------------------------------------ numbers


@pytest.mark.parametrize("concentration", [0.1, 1e-3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_small_concentrations(concentration: float, dtype: str) -> None:
    demos = random_demos(3, (6, 5, 4), labelled=0.5)
    model = btil.TeamModel(
        policy=btil.DirichletCPT(concentration, ("state",)),
        transition=btil.DirichletCPT(concentration, ("x",)),
        initial=btil.DirichletCPT(concentration),
    )
    posterior = fit(model, demos, dtype=dtype)
    falls = np.diff(posterior.elbo_trace)
    assert np.all(falls >= -3.5e-4 * abs(posterior.elbo))
    assert posterior.converged, posterior.reason
    for beliefs in posterior.smooth(demos).values():
        np.testing.assert_allclose(beliefs.sum(1), 1, atol=1e-5)
    elbo, _ = direct_sweep(posterior.bound, concentrations(posterior))
    assert posterior.elbo == pytest.approx(elbo, rel=3e-5 if dtype == "float32" else 1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_probabilities_next_to_one(dtype: str) -> None:
    sharp = 1e-12
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.0),
        transition=btil.KnownCPT([[1 - sharp, sharp], [sharp, 1 - sharp]]),
        initial=btil.KnownCPT([1.0, 0.0]),
    )
    demos = hmm_demos([0, 0, 1, 1, 0], [-1, -1, -1, 1, -1])
    posterior = fit(model, demos, dtype=dtype)
    assert np.isfinite(posterior.elbo_trace).all()
    elbo, _ = direct_sweep(posterior.bound, concentrations(posterior))
    assert posterior.elbo == pytest.approx(elbo, rel=1e-5)
    smoothed = posterior.smooth(demos, use_labels=True)["agent_0"]
    assert smoothed[0, 0] == 1
    assert smoothed[3, 1] == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_episode_of_100_000_steps(dtype: str) -> None:
    generator = np.random.default_rng(0)
    length = 100_000
    stays = generator.random(length) < 0.9
    fresh = generator.integers(0, 3, length)
    latent = np.empty(length, int)
    latent[0] = 0
    for t in range(1, length):
        latent[t] = latent[t - 1] if stays[t] else fresh[t]
    seen = generator.random(length) < 0.7
    actions = np.where(seen, latent, generator.integers(0, 4, length))
    labels = np.where(generator.random(length) < 0.1, latent, -1)
    model = btil.TeamModel(policy=btil.DirichletCPT(1.0), transition=btil.DirichletCPT(1.0))
    demos = hmm_demos(actions.tolist(), labels.tolist(), num_latents=3, num_actions=4)
    posterior = fit(model, demos, dtype=dtype)
    assert posterior.converged, posterior.reason
    assert np.all(np.isfinite(posterior.elbo_trace))
    smoothed = posterior.smooth(demos, use_labels=True)["agent_0"]
    np.testing.assert_allclose(smoothed.sum(1), 1, atol=1e-5)
    decoded = posterior.decode(demos, use_labels=True)[:, 0]
    assert np.mean(decoded == latent) > 0.9
    policy = posterior.policy("agent_0")[0]
    expected = 0.7 * np.eye(3, 4) + 0.3 / 4
    np.testing.assert_allclose(policy, expected, atol=0.02)
    assert posterior.wall_time < 120


def test_restarts_come_by_larger_concentrations() -> None:
    """Small concentrations hold an ascent where it began; from larger ones it ends higher."""
    trials = btil.domains.overcooked.load("cramped_room").select(range(3))
    partly = trials.without_labels(range(1, 3))
    model = btil.domains.overcooked.recommended_model("cramped_room")
    found = btil.fit(model, partly, num_restarts=2, progress=False)
    labels, raised = (trace[-1] for trace in found.result.restart_traces)
    assert raised > labels + 50
    assert found.elbo == raised
    alone = btil.fit(model, partly, progress=False)
    assert alone.elbo == labels
    assert "num_restarts=4 looks for it" in alone.reason


def test_how_many_restarts_are_enough() -> None:
    demos = btil.domains.cleanup("tiny").simulate(6, seed=0).without_labels([5])

    def enough(concentration: float, demos: btil.Demonstrations) -> int:
        model = btil.TeamModel(btil.DirichletCPT(concentration))
        return mfvi.enough_restarts(bind(model, demos))

    assert enough(0.05, demos) == 4
    assert enough(0.1, demos) == 1
    assert enough(0.05, demos.select([0])) == 1  # all is labelled


def test_restarts_that_would_begin_at_random_are_not_asked_for() -> None:
    """Nothing labelled, columns, parameters: there is no way by larger concentrations."""
    demos = btil.domains.cleanup("tiny").simulate(6, seed=0).without_labels([5])
    small = btil.DirichletCPT(0.05)
    assert mfvi.enough_restarts(bind(btil.TeamModel(small), demos)) == 4
    assert mfvi.enough_restarts(bind(btil.TeamModel(small), demos.without_labels())) == 1
    learned = btil.TeamModel(small, transition=btil.HierarchicalDirichletCPT())
    assert mfvi.enough_restarts(bind(learned, demos)) == 1
    columns = {"pulse": np.arange(float(demos.num_steps))}
    measured = btil.NormalEmission(("pulse",))
    agents = demos.agents
    beside = btil.TeamModel(small, emissions={agents[0]: measured})
    assert mfvi.enough_restarts(bind(beside, demos.replace(continuous=columns))) == 1


def test_the_tolerance_is_no_finer_than_rounding_unless_it_is_asked_for() -> None:
    bound = bind(hmm_model(), hmm_demos([0, 1, 1], [0, -1, -1]))
    for dtype, eps in ((np.float32, 2.0**-23), (np.float64, 2.0**-52)):
        plain, asked = (mfvi.Run(bound, np.dtype(dtype), t, None, None) for t in (None, 1e-9))
        assert plain.tolerance(-10.0) == 1e-4
        assert plain.tolerance(-1e14) == pytest.approx(4 * eps * 1e14)
        assert asked.tolerance(-10.0) == asked.tolerance(-1e14) == 1e-9


def test_a_small_tolerance_is_kept_to() -> None:
    """A rise that is small beside the bound is no fall."""
    posterior = fit(rich_model(), random_demos(), dtype="float64", tolerance=1e-8)
    assert posterior.converged, posterior.reason
    assert np.diff(posterior.elbo_trace)[-1] < 1e-9
