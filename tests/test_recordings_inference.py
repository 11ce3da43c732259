"""Unseen actions and states, members who come and go, unsure labels: against enumeration.

The enumeration knows nothing of btil but the data: it looks parents up itself, and draws rows from
Polya urns, or reads them from a table by the values of their parents.
"""

import itertools
from collections import defaultdict

import jax
import numpy as np
import pytest

import btil
from btil.inference.collapsed import collapsed_data
from btil.messages.lanes import pack_lanes
from btil.messages.layout import lay_out
from btil.models.team import bind
from btil.numerics.precision import precision
from btil.numpyro_forms.team_dbn import episode_log_likelihood
from btil.posterior import beliefs

UNSEEN, AWAY = -1, -2
PARENTS = {
    "policy": ("zone", "bob_cell"),
    "transition": ("zone", "action_ann", "action_bob", "next_bob_cell"),
    "initial": ("bob_cell",),
}


def team():
    """Two members; ann leaves for a step, bob comes late; what nobody saw is of every kind."""
    return btil.Demonstrations(
        {"zone": [0, -1, 1, 1, 0, 1], "bob_cell": [0, 1, 1, -1, 5, 1]},
        {"ann": [-1, 1, 7, 0, 1, -1], "bob": [1, -1, 0, 2, 7, 1]},
        latents={"ann": [-1, 1, -1, -1, -1, 0], "bob": [-1, -1, 2, -1, -1, -1]},
        episodes=[0, 0, 0, 0, 1, 1],
        num_actions={"ann": 2, "bob": 3},
        num_latents={"ann": 2, "bob": 3},
        latent_weights={
            "bob": [[1, 1, 1], [0.1, 0.7, 0], [1, 1, 2], [1, 3, 1], [1, 1, 1], [2, 0, 1]]
        },
        present={"ann": [1, 1, 0, 1, 1, 1], "bob": [1, 1, 1, 1, 0, 1]},
        num_states={"bob_cell": 6},
        missing="allow",
    )


CONCENTRATIONS = {
    "ann": {
        "policy": np.array([[0.7, 1.3], [2.0, 0.4]]),
        "transition": np.array([[1.5, 0.3], [0.6, 0.9]]),
        "initial": np.array([0.8, 0.5]),
    },
    "bob": {
        "policy": np.array([[0.7, 1.3, 0.2], [2.0, 0.4, 1.0], [0.5, 0.5, 1.1]]),
        "transition": np.array([[1.5, 0.3, 0.4], [0.6, 0.9, 0.2], [0.1, 0.7, 1.2]]),
        "initial": np.array([0.8, 0.5, 0.6]),
    },
}


def model():
    return btil.TeamModel(**{
        role: {
            agent: btil.DirichletCPT(CONCENTRATIONS[agent][role], parents=parents)
            for agent in ("ann", "bob")
        }
        for role, parents in PARENTS.items()
    })  # fmt: skip


class Chain:
    """One agent's joint choices: latents where it is there, actions where nobody saw them."""

    def __init__(self, demos, agent):
        self.demos, self.agent = demos, agent
        self.position = demos.agents.index(agent)
        self.there = [t for t in range(demos.num_steps) if demos.present[t, self.position]]
        weights = demos.latent_weights.get(agent, np.ones((demos.num_steps, 9)))
        self.options, self.weights = [], weights
        for t in self.there:
            label, action = demos.latents[t, self.position], demos.actions[t, self.position]
            latents = range(demos.num_latents[self.position]) if label < 0 else [label]
            actions = range(demos.num_actions[self.position]) if action < 0 else [action]
            self.options.append(list(itertools.product(latents, actions)))

    def value(self, parent, t, action):
        """What a parent is at a step, for a choice of the own action."""
        demos = self.demos
        after = parent.startswith("next_")
        name, row = (parent[5:], t + 1) if after else (parent, t)
        if name.startswith("action_"):
            other = demos.agents.index(name[7:])
            if name[7:] == self.agent:
                return action
            return AWAY if not demos.present[row, other] else int(demos.actions[row, other])
        of_bob = name.startswith("bob_")
        if of_bob and not demos.present[row, demos.agents.index("bob")]:
            return AWAY
        return int(demos.state_variables[name][row])

    def uses(self, choices):
        """(role, context, cell) of each probability in the product of a joint choice."""
        last = None
        for t, (latent, action) in zip(self.there, choices, strict=True):
            stays = last is not None and last[0] == t - 1
            stays = stays and self.demos.episodes[t] == self.demos.episodes[t - 1]
            if stays:
                context = tuple(self.value(p, t - 1, last[2]) for p in PARENTS["transition"])
                yield "transition", context, (last[1], latent)
            else:
                yield (
                    "initial",
                    tuple(self.value(p, t, action) for p in PARENTS["initial"]),
                    (latent,),
                )
            yield (
                "policy",
                tuple(self.value(p, t, action) for p in PARENTS["policy"]),
                (latent, action),
            )
            last = t, latent, action

    def annotations(self, choices):
        return np.prod([self.weights[t, x] for t, (x, _) in zip(self.there, choices, strict=True)])


def by_urns(demos, agent):
    """Log evidence, mean of each cell, and marginals of the latents: rows integrated out."""
    chain, concentrations = Chain(demos, agent), CONCENTRATIONS[agent]
    evidence, cells, marginals = 0.0, defaultdict(float), np.zeros((demos.num_steps, 3))
    rows = set()
    for choices in itertools.product(*chain.options):
        rows |= {(role, context) for role, context, _ in chain.uses(choices)}
    for choices in itertools.product(*chain.options):
        counts = defaultdict(float)
        weight = chain.annotations(choices)
        for role, context, cell in chain.uses(choices):
            prior = concentrations[role][cell[:-1]]
            drawn = sum(counts[role, context, (*cell[:-1], j)] for j in range(len(prior)))
            weight *= (prior[cell[-1]] + counts[role, context, cell]) / (prior.sum() + drawn)
            counts[role, context, cell] += 1
        evidence += weight
        for t, (latent, _) in zip(chain.there, choices, strict=True):
            marginals[t, latent] += weight
        for role, context in rows:
            prior = concentrations[role]
            for cell in np.ndindex(prior.shape):
                total = sum(
                    prior[(*cell[:-1], j)] + counts[role, context, (*cell[:-1], j)]
                    for j in range(prior.shape[-1])
                )
                share = (prior[cell] + counts[role, context, cell]) / total
                cells[role, context, cell] += weight * share
    return np.log(evidence), {k: v / evidence for k, v in cells.items()}, marginals / evidence


def by_rows(demos, agent, rows, upto=None):
    """Weights of all joint choices under given rows, {(role, context): block}, choices with them.

    With `upto` those of the steps up to it, in its episode alone.
    """
    chain = Chain(demos, agent)
    for choices in itertools.product(*chain.options):
        weight = chain.annotations(choices)
        for role, context, cell in chain.uses(choices):
            weight *= rows[role, context][cell]
        yield chain.there, choices, weight


def random_rows(bound, seed):
    """Rows of every site at random, and by the values of their parents for each agent."""
    generator = np.random.default_rng(seed)
    rows, looked_up = {}, defaultdict(dict)
    for site, table in bound.tables.items():
        role, _, agent = site.partition("_")
        shape = table.shape
        drawn = generator.dirichlet(np.ones(shape[-1]), shape[:-1])
        rows[site] = drawn
        for context, block in zip(table.contexts.rows.tolist(), drawn, strict=True):
            looked_up[agent][role, tuple(context)] = block
    return rows, looked_up


@pytest.fixture(scope="module")
def exact():
    return btil.fit(model(), team(), method="exact", progress=False)


@pytest.fixture(scope="module")
def urns():
    return {agent: by_urns(team(), agent) for agent in ("ann", "bob")}


@pytest.mark.covers("unseen actions and states", "exact")
@pytest.mark.covers("members who come and go", "exact")
@pytest.mark.covers("unsure labels", "exact")
def test_exact_is_the_sum_over_latents_and_unseen_actions(exact, urns):
    assert exact.elbo == pytest.approx(sum(log for log, _, _ in urns.values()), abs=1e-10)
    for agent, (_, cells, _) in urns.items():
        for role in PARENTS:
            table = exact.bound.table(role, agent)
            mean = exact.result.rows[table.name].mean()
            for k, context in enumerate(table.contexts.rows.tolist()):
                for cell in np.ndindex(mean.shape[1:]):
                    expected = cells[role, tuple(context), cell]
                    assert mean[(k, *cell)] == pytest.approx(expected, abs=1e-10)


def test_every_context_that_is_read_is_visited_and_no_other(urns):
    bound = bind(model(), team())
    for agent, (_, cells, _) in urns.items():
        for role in PARENTS:
            read = {context for of_role, context, _ in cells if of_role == role}
            found = set(map(tuple, bound.table(role, agent).contexts.rows.tolist()))
            assert found == read, (agent, role)


@pytest.mark.covers("unseen actions and states", "svi", "nuts")
@pytest.mark.covers("members who come and go", "svi", "nuts")
@pytest.mark.covers("unsure labels", "svi", "nuts")
def test_the_collapsed_density_is_the_sum_over_joint_choices():
    demos = team()
    bound = bind(model(), demos)
    rows, looked_up = random_rows(bound, 1)
    expected = sum(
        np.log(sum(weight for *_, weight in by_rows(demos, agent, looked_up[agent])))
        for agent in demos.agents
    )
    with precision(np.float64) as dtype:
        structure, data = collapsed_data(bound, dtype)
        rows = {site: jax.numpy.asarray(values) for site, values in rows.items()}

        @jax.jit  # operation by operation hundreds of programs would be compiled
        def likelihood(rows):
            return episode_log_likelihood(structure, data, rows)

        found = np.asarray(likelihood(rows))
    assert found.shape == (2,)
    assert found.sum() == pytest.approx(expected, abs=1e-10)


def test_the_collapsed_density_has_a_gradient():
    bound = bind(model(), team())
    rows, _ = random_rows(bound, 1)
    with precision(np.float64) as dtype:
        structure, data = collapsed_data(bound, dtype)
        rows = {site: jax.numpy.asarray(values) for site, values in rows.items()}

        @jax.jit
        def likelihood(rows):
            return episode_log_likelihood(structure, data, rows).sum()

        gradient = jax.grad(likelihood)(rows)
    assert all(np.isfinite(part).all() for part in gradient.values())


@pytest.mark.covers("unseen actions and states", "smoothing and decoding")
@pytest.mark.covers("members who come and go", "smoothing and decoding")
@pytest.mark.covers("unsure labels", "smoothing and decoding")
def test_beliefs_under_given_rows(exact):
    demos = team()
    rows, looked_up = random_rows(exact.bound, 2)
    layout = lay_out(exact.bound, coarse=True)
    bound = exact.bound
    with precision(np.float64) as dtype:
        smoothed = beliefs._smoothed_beliefs(bound, layout, rows, dtype)
        filtered = beliefs._filtered_beliefs(bound, layout, rows, dtype)
        predicted = beliefs._predicted_actions(bound, layout, rows, dtype)
    for agent in demos.agents:
        expected = np.zeros((demos.num_steps, demos.num_latents[demos.agents.index(agent)]))
        for there, choices, weight in by_rows(demos, agent, looked_up[agent]):
            for t, (latent, _) in zip(there, choices, strict=True):
                expected[t, latent] += weight
        there = demos.present[:, demos.agents.index(agent)]
        expected[there] /= expected[there].sum(1, keepdims=True)
        np.testing.assert_allclose(smoothed[agent][there], expected[there], atol=1e-10)
        # Of the last step of an episode what is filtered is what is smoothed.
        np.testing.assert_allclose(filtered[agent][[3, 5]], expected[[3, 5]], atol=1e-10)
        np.testing.assert_allclose(predicted[agent][there].sum(1), 1, atol=1e-10)


def test_what_is_asked_of_a_posterior(exact):
    demos = team()
    belief, path = exact.smooth(demos, use_labels=True), exact.decode(demos, use_labels=True)
    for k, agent in enumerate(demos.agents):
        there = demos.present[:, k]
        assert np.isnan(belief[agent][~there]).all()
        np.testing.assert_allclose(belief[agent][there].sum(1), 1)
        assert np.isnan(exact.predict_actions(demos)[agent][~there]).all()
    assert (path[~demos.present] == -1).all()
    assert (path[demos.present] >= 0).all()
    labelled = demos.latents >= 0
    np.testing.assert_array_equal(path[labelled], demos.latents[labelled])
    assert belief["bob"][1, 2] == 0  # its weight is 0
    assert np.isfinite(exact.log_likelihood(demos)).all()


@pytest.mark.covers("unseen actions and states", "mfvi")
@pytest.mark.covers("members who come and go", "mfvi")
@pytest.mark.covers("unsure labels", "mfvi")
def test_the_mean_field_rises_and_stays_below(urns):
    evidence = sum(log for log, _, _ in urns.values())
    for scaled_out in (np.float64, np.float32):
        posterior = btil.fit(model(), team(), dtype=scaled_out, progress=False, tolerance=1e-9)
        assert posterior.elbo < evidence
        assert (np.diff(posterior.elbo_trace) > -1e-4).all()


def test_the_mean_field_is_exact_where_one_choice_is_left():
    """With all labelled and one unseen action that nothing reads, q is the posterior."""
    demos = btil.Demonstrations(
        [0, 1, 0, 1], [[0], [-1], [1], [0]], [[0], [1], [1], [0]], num_actions=2, missing="allow"
    )
    plain = btil.TeamModel(transition=btil.DirichletCPT(0.7, parents=("state",)))
    mean_field = btil.fit(plain, demos, dtype="float64", progress=False)
    assert mean_field.elbo == pytest.approx(
        btil.fit(plain, demos, method="exact", progress=False).elbo, abs=1e-9
    )


@pytest.mark.covers("unseen actions and states", "gibbs")
@pytest.mark.covers("members who come and go", "gibbs")
@pytest.mark.covers("unsure labels", "gibbs")
def test_gibbs_agrees_with_exact(exact):
    number = 1500
    posterior = btil.fit(
        model(), team(), "gibbs", num_chains=4, num_warmup=100, num_samples=number, progress=False
    )
    for site in exact.bound.learned:
        expected, sd = (getattr(exact.result.rows[site], what)() for what in ("mean", "sd"))
        draws = posterior.result.rows[site].draws.astype(float)
        # Chains of Gibbs on so little data: an effective draw for each ten at the very least.
        error = 5 * sd / np.sqrt(4 * number / 10)
        assert (np.abs(draws.mean((0, 1)) - expected) < error + 1e-6).all(), site


def test_one_hot_weights_are_labels_and_equal_ones_are_none():
    demos = btil.Demonstrations(
        [0, 1, 0, 1, 1], [[0], [1], [1], [0], [1]], [[0], [1], [-1], [0], [-1]]
    )
    hot = np.where(demos.latents == [[0, 1]], 3.0, 0.0)
    hot[demos.latents[:, 0] < 0] = 0.25
    weighed = demos.replace(latents=None, latent_weights={"agent_0": hot}, num_latents=2)
    plain = btil.TeamModel(transition=btil.DirichletCPT(0.7, parents=("state",)))
    one, other = (btil.fit(plain, d, method="exact", progress=False) for d in (demos, weighed))
    # 3 and 1/4 are factors that the evidence has.
    assert one.elbo == pytest.approx(other.elbo - 3 * np.log(3) - 2 * np.log(0.25), abs=1e-10)
    for site in one.bound.learned:
        np.testing.assert_allclose(one.result.rows[site].mean(), other.result.rows[site].mean())


def test_a_given_table_has_no_row_for_what_nobody_saw():
    known = btil.KnownCPT(np.full((2, 6, 2, 2), 0.5), parents=("zone", "bob_cell"))
    with pytest.raises(ValueError, match=r"policy of ann: the parent zone has no value"):
        btil.fit(
            btil.TeamModel(policy={"ann": known, "bob": btil.DirichletCPT(1.0)}),
            team(),
            progress=False,
        )


def test_the_enumerated_form_says_that_it_has_no_site():
    message = r"actions or states that nobody saw.*marginalize='forward'"
    with pytest.raises(ValueError, match=message):
        btil.team_dbn(model(), team(), marginalize="enumerate")


@pytest.mark.covers("unseen actions and states", "tracker")
def test_a_tracker_follows_what_the_filter_says(exact):
    """Step by step as `filter`, actions that nobody saw included; nobody is away here."""
    demos = btil.Demonstrations(
        {"zone": [0, 1, 1, 0], "bob_cell": [0, 1, 1, 5]},
        {"ann": [-1, 1, -1, 0], "bob": [1, -1, 2, 0]},
        num_actions={"ann": 2, "bob": 3},
        num_latents={"ann": 2, "bob": 3},
        num_states={"bob_cell": 6},
        missing="allow",
    )
    filtered, predicted = exact.filter(demos), exact.predict_actions(demos)
    tracker = exact.tracker()
    for t in range(demos.num_steps):
        state = {name: int(values[t]) for name, values in demos.state_variables.items()}
        ahead = tracker.predict(state)
        actions = dict(zip(demos.agents, demos.actions[t].tolist(), strict=True))
        belief = tracker.update(state, {a: None if k < 0 else k for a, k in actions.items()})
        for agent in demos.agents:
            np.testing.assert_allclose(ahead[agent], predicted[agent][t], atol=1e-12)
            np.testing.assert_allclose(belief.latents[agent], filtered[agent][t], atol=1e-12)


def test_a_tracker_says_where_it_would_need_the_step_before_the_last():
    demos = btil.Demonstrations(
        {"s": [0, 1, 0, 1, 1, 0, 1, 0]},
        [0, 1, -1, 1, 0, 1, 1, 0],
        [0, 0, 1, 1, 0, -1, 1, 0],
        num_latents=2,
        missing="allow",
    )
    model = btil.TeamModel(
        btil.DirichletCPT(1.0, ("previous_s",)), btil.DirichletCPT(1.0, ("own_action",))
    )
    posterior = btil.fit(model, demos, progress=False)
    filtered = posterior.filter(demos)["agent_0"]
    tracker = posterior.tracker()
    for t in range(2):
        belief = tracker.update(int(demos.states[t]), [int(demos.actions[t, 0])])
        np.testing.assert_allclose(belief.latents["agent_0"], filtered[t], atol=1e-6)
    with pytest.raises(ValueError, match="policy there read previous_s, which a tracker does not"):
        tracker.update(0, [None])


def test_a_tracker_of_draws_takes_contexts_of_nothing():
    demos = btil.Demonstrations({"s": [0, 1, 1, 0]}, [0, 1, 0, 1], [0, 0, 1, 1], num_states=2)
    model = btil.TeamModel(btil.DirichletCPT(1.0, ("s", "previous_s")), btil.DirichletCPT(1.0))
    posterior = btil.fit(model, demos, progress=False)
    # No episode began with 1, and nothing was before it.
    found = [posterior.tracker(num_draws=5, seed=1).update(1, [1]).latents["agent_0"] for _ in "ab"]
    np.testing.assert_array_equal(*found)
    assert found[0].sum() == pytest.approx(1)


def test_rows_are_counted_where_members_are_away_and_actions_unseen():
    from btil.analysis.plots.rows import expected_visits, read_counts

    demos = team()
    posterior = btil.fit(model(), demos, progress=False)
    for role in ("policy", "transition"):
        for agent in demos.agents:
            assert np.isfinite(read_counts(posterior, role, agent)).all()
    moves = {
        agent: int(demos.present[:, k].sum()) - len(demos.stays[k])
        for k, agent in enumerate(demos.agents)
    }
    for k, agent in enumerate(demos.agents):
        # An action that nobody saw says nothing of the policy, unless the next move reads it.
        unseen = posterior.bound.rows[agent].unseen
        summed = 0 if unseen is None else len(unseen.step)
        assert read_counts(posterior, "policy", agent).sum() == pytest.approx(
            (demos.actions[:, k] >= 0).sum() + summed, abs=1e-4
        )
        assert read_counts(posterior, "transition", agent).sum() == pytest.approx(
            moves[agent], abs=1e-4
        )
    assert all(np.isfinite(one).all() for one in expected_visits(posterior).values())


@pytest.mark.covers("unsure labels", "tracker")
def test_a_tracker_weighs_what_somebody_unsure_says(exact):
    weights = np.array([[1, 1, 1], [0.2, 0.7, 0.1], [0, 3, 1], [0, 0, 0.5]])
    demos = btil.Demonstrations(
        {"zone": [0, 1, 1, 0], "bob_cell": [0, 1, 1, 5]},
        {"ann": [1, 1, 0, 0], "bob": [1, 0, 2, 0]},
        num_actions={"ann": 2, "bob": 3},
        num_latents={"ann": 2, "bob": 3},
        num_states={"bob_cell": 6},
        latent_weights={"bob": weights},
    )
    filtered = exact.filter(demos, use_labels=True)
    tracker = exact.tracker()
    for t in range(demos.num_steps):
        state = {name: int(values[t]) for name, values in demos.state_variables.items()}
        actions = dict(zip(demos.agents, demos.actions[t].tolist(), strict=True))
        for wrong, message in (
            ({"bob": [1, 1]}, "latent_weights of bob: .*= \\(1, 3\\) expected, got \\(1, 2\\)"),
            ({"bob": [0, 0, 0]}, f"latent_weights of bob: step {t}: all weights are 0"),
            ({"bob": [1, -1, 0]}, f"bob: step {t}: latent 1: -1.0 is not allowed"),
            ({"eve": [1, 1]}, "eve"),
        ):
            with pytest.raises(ValueError, match=message):
                tracker.update(state, actions, latent_weights=wrong)
        belief = tracker.update(state, actions, latent_weights={"bob": weights[t]})
        for agent in demos.agents:
            np.testing.assert_allclose(belief.latents[agent], filtered[agent][t], atol=1e-12)
    assert not np.allclose(filtered["bob"], exact.filter(demos)["bob"])


@pytest.mark.covers("members who come and go", "tracker")
def test_a_tracker_follows_those_who_come_and_go(exact):
    demos = team()
    filtered, predicted = exact.filter(demos), exact.predict_actions(demos)
    tracker = exact.tracker()
    for t in range(demos.num_steps):
        if demos.step_in_episode[t] == 0:
            tracker.reset()
        away = [a for k, a in enumerate(demos.agents) if not demos.present[t, k]]
        state = {
            name: None if values[t] < 0 else int(values[t])
            for name, values in demos.state_variables.items()
        }
        actions = {
            a: None if k < 0 else int(k)
            for a, k in zip(demos.agents, demos.actions[t], strict=True)
        }
        belief = tracker.update(state, actions, away=away)
        for agent in demos.agents:
            np.testing.assert_allclose(belief.latents[agent], filtered[agent][t], atol=1e-12)
            np.testing.assert_allclose(
                belief.expected_actions[agent], predicted[agent][t], atol=1e-12
            )
    with pytest.raises(ValueError, match="away: unknown agent 'cleo'"):
        tracker.predict({"zone": 0, "bob_cell": 0}, away=["cleo"])


def test_a_tracker_refuses_another_members_unseen_action_that_training_never_had():
    demos = btil.Demonstrations(
        [0, 1, 0, 1], [[0, 1], [1, 1], [1, 0], [0, 0]], np.zeros((4, 2), int), num_latents=2
    )
    tracker = btil.fit(btil.TeamModel(), demos, progress=False).tracker()
    tracker.update(0, [0, None])
    with pytest.raises(ValueError, match="reads the action of agent_1 at step 0"):
        tracker.update(1, [0, 1])


@pytest.mark.covers("unseen actions and states", "simulation")
@pytest.mark.covers("members who come and go", "simulation")
@pytest.mark.parametrize("actions", ["simulated", "observed"])
def test_simulated_recordings_have_the_same_gaps(exact, actions):
    from btil.models.draws import DrawnTables, KnownRows
    from btil.models.simulate import simulate

    demos, generator = team(), np.random.default_rng(3)
    tables = DrawnTables(
        exact.bound.tables, {}, generator, {
            name: KnownRows(table.contexts.rows, np.asarray(exact.result.rows[name].mean()))
            for name, table in exact.bound.tables.items()
        }
    )  # fmt: skip
    again = simulate(model(), demos, tables, generator, actions=actions)
    np.testing.assert_array_equal(again.actions < 0, demos.actions < 0)
    np.testing.assert_array_equal(again.latents >= 0, demos.present)
    if actions == "observed":
        np.testing.assert_array_equal(again.actions, demos.actions)


@pytest.mark.covers("unseen actions and states", "saved files")
@pytest.mark.covers("members who come and go", "saved files")
@pytest.mark.covers("unsure labels", "saved files")
def test_a_saved_posterior_knows_its_recording(exact, tmp_path):
    exact.save(tmp_path / "team.nc")
    again = btil.load_posterior(tmp_path / "team.nc")
    assert again.demos == exact.demos
    np.testing.assert_array_equal(again.decode(team()), exact.decode(team()))
    assert again.to_datatree()["observed_data"]["actions"].shape == (6, 2)


def test_latents_are_weighed_by_their_names(exact):
    demos = team().replace(latent_names={"bob": ["x", "y", "z"]})
    posterior = btil.fit(model(), demos, method="exact", progress=False)
    permuted = team().replace(
        latents=None, num_latents=None, latent_names={"bob": ["z", "x"], "ann": ["0", "1"]},
        latent_weights={"bob": [[0.2, 0.7]] * 6},
    )  # fmt: skip
    weights = posterior.conformed(
        permuted.replace(latent_names={"bob": ["z", "x"]}, num_latents={"ann": 2})
    )
    np.testing.assert_array_equal(weights.latent_weights["bob"][0], [0.7, 0, 0.2])


def many():
    """The team three times over; its second episode has nobody's unseen action, no weight of 1."""
    return btil.concatenate([team(), team(), team()])


@pytest.mark.covers("unseen actions and states", "batches")
@pytest.mark.covers("members who come and go", "batches")
@pytest.mark.covers("unsure labels", "batches")
def test_batches_add_up_to_all_that_is_recorded():
    """Counts and bound of a sweep batch by batch are those of a sweep over everything."""
    from btil.inference import stochastic

    demos = many()
    start = {
        site: table.cpt.concentration(table.contexts) + 1.0 + np.arange(table.shape[-1])
        for site, table in bind(model(), demos).learned.items()
    }
    options = {"dtype": "float64", "start": start, "max_iterations": 2, "progress": False}
    whole = btil.fit(model(), demos, **options)
    for size in (2, 5):
        with precision(np.float64):
            data = stochastic.in_memory(bind(model(), demos))
            problem = stochastic.make_problem(
                data, size, None, None, 0, np.dtype(np.float64), start
            )
            state = stochastic.first_state(problem)
            following, bound = stochastic.sweep(state, problem)
            assert bound == pytest.approx(whole.elbo_trace[0], abs=1e-10)
            _, second = stochastic.sweep(following, problem)
        assert second == pytest.approx(whole.elbo_trace[1], abs=1e-10)
        counts = stochastic.concentrations(following, problem)
        for site, rows in whole.result.rows.items():
            np.testing.assert_allclose(counts[site], rows.concentration, atol=1e-9)


def test_moves_with_unseen_actions_read_their_own_rows_in_every_batch():
    """Those of the policy at the step before, and of the transition for every action."""
    from btil.inference import stochastic

    bound = bind(model(), many())
    problem = stochastic.make_problem(
        stochastic.in_memory(bound), 2, None, None, 0, np.dtype(np.float32)
    )
    starts, lengths = bound.demos.episode_starts, bound.demos.episode_lengths
    looked_at = 0
    for chosen in ([0, 1], [1, 4], [2, 5]):
        batch = stochastic.batch_of(problem, np.array(chosen))
        rows = np.concatenate([np.arange(starts[e], starts[e] + lengths[e]) for e in chosen])
        lanes = pack_lanes(lengths[chosen], batch.shape.length)
        for agent, index in zip(bound.demos.agents, batch.steps, strict=True):
            unseen = bound.rows[agent].unseen
            if unseen is None or index.unseen is None:
                continue
            policy, transition, initial = bound.sites(agent)
            padding = batch.shape.rows[transition] + batch.shape.rows[initial]
            found = np.asarray(index.transition)[:, : lanes.shape[1]]
            summed = (found > padding) & (lanes >= 0)
            steps = rows[lanes[summed]]
            assert sorted(steps) == sorted(set(unseen.step) & set(rows))
            number = found[summed] - padding - 1
            for step, k in zip(steps, number, strict=True):
                own = np.flatnonzero(unseen.step == step)[0]
                read = np.asarray(index.unseen.policy)[k], np.asarray(index.unseen.transition)[k]
                assert batch.rows[policy][read[0]] == bound.rows[agent].policy[step - 1]
                np.testing.assert_array_equal(
                    batch.rows[transition][read[1]], unseen.transition[own]
                )
                looked_at += 1
    assert looked_at > 3


def test_batches_of_a_file_are_those_in_memory(tmp_path, monkeypatch):
    from btil.demonstrations import row_groups

    demos = many()
    btil.write_demonstrations(demos, tmp_path / "team.parquet")
    monkeypatch.setattr(row_groups, "ROW_GROUP_STEPS", 7)
    file = btil.open_demonstrations(tmp_path / "team.parquet", missing="allow")
    options = {"batch_size": 2, "max_iterations": 12, "progress": False, "dtype": "float64"}
    one, other = (btil.fit(model(), given, **options) for given in (demos, file))
    assert one.elbo == other.elbo
    for site, rows in one.result.rows.items():
        np.testing.assert_array_equal(rows.concentration, other.result.rows[site].concentration)
    whole = btil.fit(model(), demos, dtype="float64", progress=False)
    assert one.elbo == pytest.approx(whole.elbo, abs=0.5)


def test_a_batch_of_steps_that_are_all_summed_has_room():
    """More moves with unseen actions than any trial batch had: the roomy shape takes them."""
    demos = btil.Demonstrations(
        np.zeros(60, int),
        np.where(np.arange(60) < 54, 1, -1)[:, None],
        np.where(np.arange(60) % 7 == 0, 0, -1),
        episodes=np.repeat(np.arange(10), 6),
        num_actions=2,
        num_latents=2,
        missing="allow",
    )
    plain = btil.TeamModel(transition=btil.DirichletCPT(0.7, parents=("own_action",)))
    options = {"dtype": "float64", "tolerance": 1e-9, "progress": False}
    whole = btil.fit(plain, demos, **options)
    parts = btil.fit(plain, demos, batch_size=1, max_iterations=300, **options)
    assert parts.elbo == pytest.approx(whole.elbo, abs=1e-4)


@pytest.mark.covers("unseen actions and states", "refined")
@pytest.mark.covers("members who come and go", "refined")
@pytest.mark.covers("unsure labels", "refined")
def test_refined_draws_agree_with_exact(exact):
    coarse = btil.fit(model(), team(), dtype="float64", progress=False)
    number = 1000
    refined = coarse.refined(number, num_sweeps=30, progress=False)
    for site in exact.bound.learned:
        expected, sd = (getattr(exact.result.rows[site], what)() for what in ("mean", "sd"))
        found = refined.result.rows[site].mean()
        assert (np.abs(found - expected) < 4.5 * sd / np.sqrt(number) + 1e-6).all(), site


@pytest.mark.refuses(
    "unseen actions and states",
    "own NumPyro models",
    remedy="fit a TeamModel, which sums over what nobody saw",
)
@pytest.mark.refuses(
    "members who come and go",
    "own NumPyro models",
    remedy="fit a TeamModel, or drop these episodes",
)
@pytest.mark.refuses(
    "unsure labels", "own NumPyro models", remedy="fit a TeamModel, or drop these episodes"
)
def test_what_needs_every_step_as_it_was_says_so():
    own = btil.NumpyroModel(lambda data: None)
    for demos, what in (
        (team().replace(present=None, latents=None), "actions or states that nobody saw"),
        (team(), "members who come and go"),
        (team(), "latent_weights"),
    ):
        with pytest.raises(ValueError, match=f"{what}.*fit a TeamModel, which sums over what"):
            btil.fit(own, demos, "nuts", progress=False)


def test_contexts_of_what_nobody_saw_are_named(exact):
    contexts = exact.contexts("bob", "transition")
    assert set(contexts["action_ann"]) == {"1", "unseen", "away"}
    assert set(exact.contexts("ann", "policy")["bob_cell"]) >= {"away"}
    tree = exact.to_datatree()
    assert any(
        "zone=unseen" in str(text) for text in tree["posterior"]["policy_context_ann"].values
    )


# ---------------------------------------------------------------------- the step before


def with_previous_columns(demos):
    """The same with the values of the step before as state variables of their own."""
    first = demos.step_in_episode == 0
    before = np.arange(demos.num_steps) - 1
    columns = {
        "was_zone": np.where(first, 2, demos.state_variables["zone"][before]),
        "was_ann": np.where(first, 2, demos.actions[before, 0]),
        "was_bob": np.where(first, 3, demos.actions[before, 1]),
    }
    return demos.replace(states={**demos.state_variables, **columns}, num_states=None)


def habits():
    rng = np.random.default_rng(4)
    return btil.Demonstrations(
        {"zone": rng.integers(2, size=300)},
        {"ann": rng.integers(2, size=300), "bob": rng.integers(3, size=300)},
        latents={
            a: np.where(rng.random(300) < 0.7, rng.integers(2, size=300), -1)
            for a in ("ann", "bob")
        },
        episodes=np.repeat([0, 1, 2], [12, 287, 1]),
        num_latents=2,
    )


@pytest.mark.covers("the step before", "mfvi", "smoothing and decoding")
def test_the_step_before_is_a_parent_without_a_column_of_its_own():
    demos = habits()
    one = btil.TeamModel(
        btil.DirichletCPT(0.7, parents=("zone", "previous_own_action")),
        btil.DirichletCPT(0.9, parents=("previous_other_actions", "previous_zone", "own_action")),
    )
    other = btil.TeamModel(
        btil.DirichletCPT(0.7, parents={"ann": ("zone", "was_ann"), "bob": ("zone", "was_bob")}),
        btil.DirichletCPT(
            0.9,
            parents={
                "ann": ("was_bob", "was_zone", "action_ann"),
                "bob": ("was_ann", "was_zone", "action_bob"),
            },
        ),
    )
    columns = with_previous_columns(demos)
    fits = [
        btil.fit(m, d, dtype="float64", tolerance=1e-9, progress=False)
        for m, d in ((one, demos), (other, columns))
    ]
    assert fits[0].elbo == pytest.approx(fits[1].elbo, abs=1e-6)
    np.testing.assert_allclose(
        fits[0].smooth(demos)["bob"], fits[1].smooth(columns)["bob"], atol=1e-4
    )
    asked = fits[0].policy("ann", {"zone": [1], "previous_action_ann": [0]})
    np.testing.assert_allclose(
        asked, fits[1].policy("ann", {"zone": [1], "was_ann": [0]}), atol=1e-4
    )
    assert "none before" in set(fits[0].contexts("ann", "policy")["previous_action_ann"])


@pytest.mark.covers(
    "the step before",
    "exact",
    "svi",
    "nuts",
    "gibbs",
    "refined",
    "batches",
    "saved files",
    "devices",
    "evidence",
    "mfvi_guide",
)
def test_methods_are_given_the_same_contexts_and_rows():
    """Whatever method is asked then sees the same as with a column of its own."""
    demos = habits()
    one = btil.TeamModel(btil.DirichletCPT(0.7, parents=("zone", "previous_own_action")))
    other = btil.TeamModel(
        btil.DirichletCPT(0.7, parents={"ann": ("zone", "was_ann"), "bob": ("zone", "was_bob")})
    )
    first, second = bind(one, demos), bind(other, with_previous_columns(demos))
    for agent in demos.agents:
        assert len(first.table("policy", agent).contexts.rows) >= 5
        # "None before" is numbered otherwise: the same steps read the same contexts.
        pairs = np.stack([first.rows[agent].policy, second.rows[agent].policy], axis=1)
        number = len(np.unique(pairs, axis=0))
        assert number == len(np.unique(pairs[:, 0])) == len(np.unique(pairs[:, 1]))


@pytest.mark.covers("the step before", "tracker")
def test_a_tracker_remembers_the_step_before():
    demos = habits()
    model = btil.TeamModel(
        btil.DirichletCPT(0.7, parents=("zone", "previous_own_action", "previous_zone")),
        btil.DirichletCPT(0.9, parents=("own_action",)),
    )
    posterior = btil.fit(model, demos, progress=False)
    filtered = posterior.filter(demos)
    tracker = posterior.tracker()
    for t in range(12):
        belief = tracker.update(
            {"zone": int(demos.states[t])},
            dict(zip(demos.agents, demos.actions[t].tolist(), strict=True)),
        )
        np.testing.assert_allclose(belief.latents["bob"], filtered["bob"][t], atol=1e-6)
    late = btil.fit(
        btil.TeamModel(transition=btil.DirichletCPT(0.9, parents=("previous_zone",))),
        demos,
        progress=False,
    )
    with pytest.raises(ValueError, match="a tracker remembers one step"):
        late.tracker()


@pytest.mark.covers("the step before", "simulation")
def test_simulated_habits_are_those_of_the_table():
    from btil.models.draws import DrawnTables, KnownRows
    from btil.models.simulate import simulate

    demos = habits()
    model = btil.TeamModel(
        btil.DirichletCPT(1.0, parents=("previous_own_action",)), btil.StaticCPT()
    )
    bound, generator = bind(model, demos), np.random.default_rng(0)
    # Never the same action twice: the next one, over and over.
    rows = {}
    for agent, size in (("ann", 2), ("bob", 3)):
        table = bound.table("policy", agent)
        following = [0 if k < 0 else (k + 1) % size for (k,) in table.contexts.rows.tolist()]
        rows[table.name] = KnownRows(
            table.contexts.rows, np.repeat(np.eye(size)[following][:, None], 2, axis=1)
        )
    again = simulate(model, demos, DrawnTables(bound.tables, {}, generator, rows), generator)
    for k, size in ((0, 2), (1, 3)):
        np.testing.assert_array_equal(again.actions[:, k], demos.step_in_episode % size)


@pytest.mark.covers("unseen actions and states", "devices")
@pytest.mark.covers("members who come and go", "devices")
@pytest.mark.covers("unsure labels", "devices")
def test_two_devices_say_the_same():
    one, two = (
        btil.fit(model(), team(), dtype="float64", devices=number, progress=False)
        for number in (None, 2)
    )
    assert two.elbo == pytest.approx(one.elbo, abs=1e-9)
