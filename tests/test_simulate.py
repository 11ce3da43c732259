"""Simulated recordings against the probabilities of everything that can happen."""

import itertools

import numpy as np
import pytest
from scipy import stats
from teams import hmm_demos, random_demos, rich_model

import btil
from btil.demonstrations.data import NONE_BEFORE
from btil.models.draws import KnownRows, dirichlet_draws, posterior_tables, prior_tables
from btil.models.simulate import draw_values, simulate
from btil.models.team import bind, make_contexts, site_name

# Every test of a distribution below fails by chance with this probability (the seeds are fixed).
FALSE_ALARM = 1e-4


def row_of(model, tables, role, agent, demos, **parents):
    """One row block of a table, its parents' values by name."""
    names = make_contexts(model, role, agent, demos).names
    values = np.array([[parents[name] for name in names]], np.int64).reshape(1, -1)
    contexts = make_contexts(model, role, agent, demos, values)
    return tables.rows(site_name(model, role, agent), contexts)[0]


def assert_drawn_from(observed, expected):
    """Chi-square test of counts; cells that hardly ever occur are taken together."""
    observed, expected = np.ravel(observed), np.ravel(expected)
    assert not observed[expected == 0].any()
    observed, expected = observed[expected > 0], expected[expected > 0]
    rare = expected < 5
    if rare.any():
        observed = np.append(observed[~rare], observed[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    assert len(expected) > 1
    assert stats.chisquare(observed, expected).pvalue > FALSE_ALARM


def many_pairs(num_episodes=20_000):
    """Episodes of two steps, all with the same states; ann has 2 latents, bob 3."""
    states = {"x": np.tile([0, 1], num_episodes), "y": np.tile([1, 0], num_episodes)}
    return btil.Demonstrations(
        states,
        np.zeros((2 * num_episodes, 2), int),
        episodes=np.repeat(np.arange(num_episodes), 2),
        agents=("ann", "bob"),
        num_states={"x": 2, "y": 2},
        num_actions=(3, 2),
        num_latents=(2, 3),
    )


def test_everything_that_can_happen_happens_as_often_as_it_should():
    """All 6 x 6 x 6 x 6 outcomes of two steps; transitions read both actions and the next state."""
    demos, model = many_pairs(), rich_model()
    generator = np.random.default_rng(3)
    tables = prior_tables(model, demos, generator)
    drawn = simulate(model, demos, tables, generator)
    sizes = {"ann": (2, 3), "bob": (3, 2)}
    first, second = {"x": 0, "y": 1}, {"x": 1, "y": 0}
    expected = np.zeros((2, 3, 3, 2, 2, 3, 3, 2))
    for a0, b0 in itertools.product(range(3), range(2)):
        chains = {}
        for agent, (latents, actions) in sizes.items():
            start = row_of(model, tables, "initial", agent, demos, **first)
            policy = [
                row_of(model, tables, "policy", agent, demos, **now) for now in (first, second)
            ]
            moves = row_of(
                model, tables, "transition", agent, demos,
                **first, action_ann=a0, action_bob=b0, next_x=1, next_y=0,
            )  # fmt: skip
            own = a0 if agent == "ann" else b0
            chain = np.zeros((latents, latents, actions))
            for x0, x1, a1 in itertools.product(range(latents), range(latents), range(actions)):
                chain[x0, x1, a1] = (
                    start[x0] * policy[0][x0, own] * moves[x0, x1] * policy[1][x1, a1]
                )
            chains[agent] = chain
        joint = np.einsum("ijk,lmn->iljmkn", chains["ann"], chains["bob"])
        # Axes: latents of ann and bob at step 0, at step 1, actions of both at step 1.
        expected[:, :, a0, b0] = joint
    assert expected.sum() == pytest.approx(1)
    one, two = np.arange(0, demos.num_steps, 2), np.arange(1, demos.num_steps, 2)
    where = (*drawn.latents[one].T, *drawn.actions[one].T, *drawn.latents[two].T,
             *drawn.actions[two].T)  # fmt: skip
    observed = np.zeros(expected.shape)
    np.add.at(observed, where, 1)
    assert_drawn_from(observed, expected * demos.num_episodes)


def test_a_wrong_table_would_be_noticed():
    """The test above can fail: with the transition of another context its statistic is far off."""
    demos, model = many_pairs(), rich_model()
    generator = np.random.default_rng(3)
    tables = prior_tables(model, demos, generator)
    drawn = simulate(model, demos, tables, generator)
    acted = (drawn.actions[::2] == [1, 0]).all(1)
    parents = {"x": 0, "y": 1, "next_x": 1, "next_y": 0}
    right, wrong = (
        row_of(model, tables, "transition", "bob", demos, **parents, action_ann=a, action_bob=b)
        for a, b in ((1, 0), (0, 1))
    )
    counts = np.zeros((3, 3))
    np.add.at(counts, (drawn.latents[::2, 1][acted], drawn.latents[1::2, 1][acted]), 1)
    assert_drawn_from(counts, right * counts.sum(1, keepdims=True))
    assert stats.chisquare(
        counts.ravel(), (wrong * counts.sum(1, keepdims=True)).ravel()
    ).pvalue < (1e-12)


def test_a_shared_table_serves_agents_that_see_it_from_their_side():
    held = {"ann": ("ann_held",), "bob": ("bob_held",)}
    table = np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.0, 1.0]]])
    model = btil.TeamModel(
        policy=btil.Shared(btil.KnownCPT(table, parents=held)),
        transition=btil.Shared(btil.DirichletCPT(1.0, parents=("own_action",))),
        initial=btil.Shared(btil.DirichletCPT([2.0, 1.0])),
    )
    num_steps = 20_000
    starts = np.arange(0, num_steps, 2)
    generator = np.random.default_rng(5)
    demos = btil.Demonstrations(
        {name: generator.integers(0, 2, num_steps) for name in ("ann_held", "bob_held")},
        np.zeros((num_steps, 2), int),
        episodes=np.arange(num_steps) // 2,
        agents=("ann", "bob"),
        num_actions=2,
        num_latents=2,
    )
    tables = prior_tables(model, demos, generator)
    drawn = simulate(model, demos, tables, generator)
    for i, agent in enumerate(demos.agents):
        held_by = demos.state_variables[f"{agent}_held"]
        for where, latent in itertools.product(range(2), range(2)):
            chosen = (held_by == where) & (drawn.latents[:, i] == latent)
            counts = np.bincount(drawn.actions[chosen, i], minlength=2)
            if table[where, latent].min() > 0:
                assert_drawn_from(counts, table[where, latent] * chosen.sum())
            else:
                assert counts[0] == 0
        for action, latent in itertools.product(range(2), range(2)):
            row = row_of(
                model, tables, "transition", agent, demos, action_ann=action, action_bob=action
            )[latent]
            before = starts[
                (drawn.actions[starts, i] == action) & (drawn.latents[starts, i] == latent)
            ]
            counts = np.bincount(drawn.latents[before + 1, i], minlength=2)
            assert_drawn_from(counts, row * len(before))


def test_observed_actions_are_kept_and_steer_the_latents():
    demos = hmm_demos([0, 1, 0] * 4_000, episodes=np.arange(12_000) // 3, num_latents=3)
    rows = np.array([[[0.7, 0.2, 0.1]] * 3, [[0.0, 0.5, 0.5]] * 3])
    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.0),
        transition=btil.KnownCPT(rows, parents=("actions",)),
    )
    generator = np.random.default_rng(0)
    drawn = simulate(
        model, demos, prior_tables(model, demos, generator), generator, actions="observed"
    )
    assert np.array_equal(drawn.actions, demos.actions)
    for action in (0, 1):
        # Steps 1 and 2 of each episode follow upon actions 0 and 1.
        after = drawn.latents[1 + action :: 3]
        expected = rows[action, 0] * len(after)
        assert_drawn_from(np.bincount(after.ravel(), minlength=3), expected)


@pytest.mark.parametrize("actions", ["simulated", "observed"])
def test_an_action_that_nobody_saw_is_made_up_for_what_reads_it_and_hidden_again(actions):
    recorded = np.tile([-1, 0, 1], 4_000)
    demos = hmm_demos(np.maximum(recorded, 0), episodes=np.arange(12_000) // 3)
    demos = demos.replace(actions=recorded, missing="allow")
    follows = np.array([[[1.0, 0.0]] * 2, [[0.0, 1.0]] * 2])
    model = btil.TeamModel(
        policy=btil.KnownCPT(np.array([[0.3, 0.7]] * 2), parents=()),
        transition=btil.KnownCPT(follows, parents=("own_action",)),
    )
    generator = np.random.default_rng(0)
    tables = prior_tables(model, demos, generator)
    drawn = simulate(model, demos, tables, generator, actions=actions)
    assert np.array_equal(drawn.actions < 0, demos.actions < 0)
    _, second, third = drawn.latents.reshape(-1, 3).T
    assert_drawn_from(np.bincount(second, minlength=2), np.array([0.3, 0.7]) * 4_000)
    assert np.array_equal(third, drawn.actions[1::3, 0])
    assert np.array_equal(drawn.actions, demos.actions) == (actions == "observed")


def test_simulated_actions_of_the_step_before_are_read_within_their_episode():
    """Each is one more than that before, and the first of an episode is 1."""
    demos = hmm_demos([0] * 7, episodes=[0, 0, 0, 1, 1, 1, 1], num_actions=3)

    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.0, parents=("previous_actions",)), transition=btil.StaticCPT()
    )
    before = np.array([NONE_BEFORE, 0, 1, 2])
    rows = np.eye(3)[np.where(before < 0, 1, (before + 1) % 3)][:, None].repeat(2, axis=1)
    generator = np.random.default_rng(0)
    tables = prior_tables(model, demos, generator)
    tables.known["policy_agent_0"] = KnownRows(before[:, None], rows)
    drawn = simulate(model, demos, tables, generator)
    assert drawn.actions[:, 0].tolist() == [1, 2, 0, 1, 2, 0, 1]


def test_who_is_away_has_no_latent_and_begins_anew():
    """At each return by the initial table, which never says what the transition does."""
    present = np.ones((8, 2), bool)
    present[[1, 2, 7], 0] = False
    present[4, 1] = False
    demos = btil.Demonstrations(
        np.zeros(8, int),
        np.where(present, 0, -1),
        episodes=[0] * 4 + [1] * 4,
        agents=("ann", "bob"),
        num_states=1,
        num_actions=2,
        num_latents=2,
        present=present,
    )
    model = btil.TeamModel(
        policy=btil.UniformCPT(),
        transition=btil.KnownCPT(np.array([[0.0, 1.0], [0.0, 1.0]]), parents=()),
        initial=btil.KnownCPT(np.array([1.0, 0.0]), parents=()),
    )
    generator = np.random.default_rng(0)
    drawn = simulate(model, demos, prior_tables(model, demos, generator), generator)
    expected = [[0, 0], [-1, 1], [-1, 1], [0, 1], [0, -1], [1, 0], [1, 1], [-1, 1]]
    np.testing.assert_array_equal(drawn.latents, expected)
    np.testing.assert_array_equal(drawn.actions >= 0, present)
    np.testing.assert_array_equal(drawn.present, present)


def test_episodes_sizes_and_names_stay_and_every_step_is_labelled():
    demos = random_demos()
    generator = np.random.default_rng(1)
    drawn = simulate(rich_model(), demos, prior_tables(rich_model(), demos, generator), generator)
    assert drawn.latents.min() >= 0
    assert np.array_equal(drawn.episodes, demos.episodes)
    assert drawn.num_latents == demos.num_latents
    assert drawn.num_actions == demos.num_actions
    for name, values in demos.state_variables.items():
        assert np.array_equal(drawn.state_variables[name], values)


def test_the_same_generator_gives_the_same_recording():
    demos = random_demos()

    def drawn():
        generator = np.random.default_rng(11)
        tables = prior_tables(rich_model(), demos, generator)
        return simulate(rich_model(), demos, tables, generator)

    assert np.array_equal(drawn().latents, drawn().latents)
    assert np.array_equal(drawn().actions, drawn().actions)


def test_values_of_probability_zero_never_come_out():
    rows = np.tile([0.0, 0.3, 0.0, 0.7, 0.0], (5_000, 1))
    values = draw_values(rows, np.random.default_rng(2))
    assert set(values.tolist()) == {1, 3}
    assert_drawn_from(np.bincount(values, minlength=5)[[1, 3]], np.array([0.3, 0.7]) * 5_000)


def test_other_words_for_actions_are_refused():
    demos = random_demos()
    tables = prior_tables(rich_model(), demos, np.random.default_rng(0))
    with pytest.raises(ValueError, match="'simulated' or 'observed', got 'none'"):
        simulate(rich_model(), demos, tables, np.random.default_rng(0), actions="none")


def test_a_row_that_was_drawn_once_stays_and_others_are_drawn_when_asked_for():
    demos, model = random_demos(), rich_model()
    tables = prior_tables(model, demos, np.random.default_rng(6))
    bound = bind(model, demos)
    for site in bound.learned:
        contexts = bound.tables[site].contexts
        few, whole = contexts._replace(rows=contexts.rows[1:2]), tables.rows(site, contexts)
        np.testing.assert_allclose(whole.sum(-1), 1)
        np.testing.assert_array_equal(tables.rows(site, few), whole[1:2])
        # In any order, one of them twice.
        again = contexts._replace(rows=np.concatenate([contexts.rows[::-1], contexts.rows[:1]]))
        np.testing.assert_array_equal(tables.rows(site, again), np.r_[whole[::-1], whole[:1]])
        apart = [tuple(row.ravel()) for row in whole]
        assert len(set(apart)) == len(apart)
    # Another draw of as many other contexts is not taken for the first.
    other = prior_tables(model, demos, np.random.default_rng(6))
    site = next(iter(bound.learned))
    contexts = bound.tables[site].contexts
    first = other.rows(site, contexts._replace(rows=contexts.rows[:1]))
    second = other.rows(site, contexts._replace(rows=contexts.rows[1:2]))
    assert not np.any(first == second)


def test_tables_of_a_draw_are_those_of_that_draw():
    demos, model = random_demos(), rich_model()
    bound = bind(model, demos)
    generator = np.random.default_rng(0)
    draws = {
        site: generator.dirichlet(
            np.ones(table.shape[-1]), (3, len(table.contexts.rows), *table.shape[1:-1])
        )
        for site, table in bound.learned.items()
    }
    for number in range(3):
        tables = posterior_tables(
            bound.tables, draws | {"strength": np.arange(6.0).reshape(3, 2)}, number, generator
        )
        for site, values in draws.items():
            found = tables.rows(site, bound.tables[site].contexts)
            np.testing.assert_array_equal(found, values[number])
        assert tables.parameters.keys() == {"strength"}
        np.testing.assert_array_equal(tables.parameters["strength"], [2 * number, 2 * number + 1])


@pytest.mark.parametrize("concentration", [(0.3, 2.0, 5.0), (0.01, 0.02, 0.01)])
def test_drawn_rows_have_the_moments_of_dirichlet_rows(concentration):
    u = np.array(concentration)
    drawn = dirichlet_draws(np.random.default_rng(0), np.broadcast_to(u, (20_000, 3)))
    known = stats.dirichlet(u)
    assert np.all(np.abs(drawn.mean(0) - known.mean()) < 4 * np.sqrt(known.var() / 20_000))
    np.testing.assert_allclose(drawn.var(0), known.var(), rtol=0.05)
    assert drawn.min() > 0
