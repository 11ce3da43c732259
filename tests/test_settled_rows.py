"""Rows that only steps with known latents read: nuts draws them from their Dirichlet."""

import numpy as np
import pytest

import btil
from btil.inference.starting import labelled_counts, num_contexts, open_uses, settled_contexts
from btil.models.team import bind

pytestmark = pytest.mark.filterwarnings("ignore:the model cannot learn")
MODEL = btil.TeamModel(
    policy=btil.DirichletCPT(0.8, parents=("place",)),
    transition=btil.DirichletCPT(1.3, parents=("place",)),
    initial=btil.DirichletCPT(1.0, parents=("place",)),
)


def recordings(labels, **more):
    """Two episodes of four and three steps of one agent, over four places."""
    return btil.Demonstrations(
        {"place": [0, 1, 1, 2, 3, 3, 0]},
        [0, 1, 1, 0, 1, 0, 1],
        labels,
        episodes=[0, 0, 0, 0, 1, 1, 1],
        agents=("ann",),
        num_states={"place": 4},
        num_actions=2,
        num_latents=2,
        **more,
    )


def settled_places(demos):
    bound = bind(MODEL, demos)
    found = settled_contexts(bound)
    return {
        name: [int(row[0]) for row in table.contexts.rows[found[name]]]
        for name, table in bound.learned.items()
    }


@pytest.mark.parametrize(
    ("labels", "policy", "transition", "initial"),
    [
        ([0, 1, 1, 0, 1, 1, 0], [0, 1, 2, 3], [0, 1, 3], [0, 3]),
        ([-1] * 7, [], [], []),
        # A move, whose context is the place that it leaves, is open where either of its ends is.
        ([0, 1, 1, -1, 1, 1, 0], [0, 1, 3], [0, 3], [0, 3]),
        ([0, 1, 1, 0, -1, 1, 0], [0, 1, 2], [0, 1], [0]),
    ],
)
def test_what_labels_settle(labels, policy, transition, initial):
    expected = {"policy_ann": policy, "transition_ann": transition, "initial_ann": initial}
    assert settled_places(recordings(labels)) == expected


def test_what_labels_count():
    """By hand: a cell counts where all that it is of has a label."""
    demos = recordings([0, 1, -1, 0, 1, 1, 0]).replace(
        actions=[0, 1, 1, 0, 1, 0, -1], missing="allow"
    )
    bound = bind(MODEL, demos)
    expected = {
        "policy_ann": np.zeros((4, 2, 2)),
        "transition_ann": np.zeros((3, 2, 2)),  # nobody leaves place 2
        "initial_ann": np.zeros((2, 2)),
    }
    for cell in ((0, 0, 0), (1, 1, 1), (2, 0, 0), (3, 1, 1), (3, 1, 0)):
        expected["policy_ann"][cell] = 1
    for cell in ((0, 0, 1), (2, 1, 1), (2, 1, 0)):
        expected["transition_ann"][cell] = 1
    for cell in ((0, 0), (1, 1)):
        expected["initial_ann"][cell] = 1
    found = labelled_counts(bound, num_contexts(bound))
    assert set(found) == set(expected)
    for name, counts in expected.items():
        np.testing.assert_array_equal(found[name], counts, err_msg=name)
    policy, transition, initial = open_uses(bound, num_contexts(bound))["ann"]
    np.testing.assert_array_equal(policy, [[0, 0], [0, 1], [0, 0], [0, 0]])
    np.testing.assert_array_equal(transition, [0, 2, 0])
    np.testing.assert_array_equal(initial, [0, 0])


def test_an_action_that_nobody_saw_leaves_rows_open():
    model = btil.TeamModel(
        btil.DirichletCPT(0.8, parents=("place",)),
        btil.DirichletCPT(1.3, parents=("own_action",)),
        btil.DirichletCPT(1.0),
    )
    demos = recordings([0, 1, 1, 0, 1, 1, 0]).replace(
        actions=[0, -1, 1, 0, 1, 0, 1], missing="allow"
    )
    bound = bind(model, demos)
    found = settled_contexts(bound)
    assert not found["policy_ann"][bound.rows["ann"].unseen.policy].any()
    assert not found["transition_ann"][bound.rows["ann"].unseen.transition].any()
    assert found["policy_ann"].sum() == 3


def concentrations(posterior):
    bound = posterior.bound
    known = labelled_counts(bound, num_contexts(bound))
    return {
        name: table.cpt.concentration(table.contexts) + known[name]
        for name, table in bound.learned.items()
    }


def test_of_labelled_recordings_all_rows_are_drawn():
    demos = recordings([0, 1, 1, 0, 1, 1, 0])
    posterior = btil.fit(MODEL, demos, "nuts", progress=False, seed=3, num_samples=2000)
    assert posterior.converged
    assert posterior.result.notes["contexts_drawn_exactly"] == 4 + 3 + 2
    for name, w in concentrations(posterior).items():
        drawn = posterior.result.rows[name].draws
        total = w.sum(-1, keepdims=True)
        mean = w / total
        variance = mean * (1 - mean) / (total + 1)
        error = np.sqrt(variance / drawn[..., 0].size * drawn[0, 0, ..., 0].size)
        flat = drawn.reshape(-1, *w.shape)
        assert (np.abs(flat.mean(0) - mean) < 5 * error).all()
        np.testing.assert_allclose(flat.var(0), variance, rtol=0.15)
    # Every draw of every chain is another one.
    of_all = posterior.result.rows["policy_ann"].draws[..., 0, 0, 0].ravel()
    assert len(np.unique(of_all)) > 0.999 * of_all.size
    # The likelihood of a draw is that of its rows.
    rows = {name: one.draws[1, 7] for name, one in posterior.result.rows.items()}
    bound, expected = posterior.bound, np.zeros(2)
    agent = bound.rows["ann"]
    for t in range(7):
        episode, first = int(t >= 4), t in (0, 4)
        latent, action = demos.latents[t, 0], demos.actions[t, 0]
        expected[episode] += np.log(rows["policy_ann"][agent.policy[t], latent, action])
        if first:
            expected[episode] += np.log(rows["initial_ann"][agent.initial[episode], latent])
        else:
            before = demos.latents[t - 1, 0]
            expected[episode] += np.log(rows["transition_ann"][agent.transition[t], before, latent])
    np.testing.assert_allclose(posterior.result.log_likelihood[1, 7], expected, rtol=1e-4)


def test_settled_rows_beside_sampled_ones():
    demos = recordings([0, 1, 1, 0, -1, 1, 0])
    posterior = btil.fit(
        MODEL, demos, "nuts", progress=False, dtype=np.float64, num_warmup=300, num_samples=1500
    )
    exact = btil.fit(MODEL, demos, "exact", progress=False, dtype=np.float64)
    assert 0 < posterior.result.notes["contexts_drawn_exactly"] < 10
    for name, rows in posterior.result.rows.items():
        # Batches of 50 draws are nearly independent.
        batches = rows.draws.reshape(-1, 50, *rows.draws.shape[2:]).mean(1)
        error = batches.std(0, ddof=1) / np.sqrt(len(batches))
        off = np.abs(batches.mean(0) - exact.result.rows[name].mean())
        assert (off < 4.5 * error + 1e-6).all(), name
        assert error.max() < 0.01
    # The labelled episode is as likely as its rows, which vary from draw to draw.
    assert posterior.result.log_likelihood.std(1).min() > 0.01


def test_an_only_mental_state_needs_no_label():
    demos = recordings([-1] * 7).replace(num_latents=1)
    bound = bind(MODEL, demos)
    assert all(own.all() for own in settled_contexts(bound).values())
    assert sum(counts.sum() for counts in labelled_counts(bound, num_contexts(bound)).values()) == (
        7 + 5 + 2
    )
    posterior = btil.fit(
        MODEL, demos, "nuts", progress=False, num_warmup=10, num_samples=200, num_chains=2
    )
    exact = btil.fit(MODEL, demos, "exact", progress=False)
    for name, rows in posterior.result.rows.items():
        error = rows.draws.std((0, 1)) / np.sqrt(400)
        off = np.abs(rows.draws.mean((0, 1)) - exact.result.rows[name].mean())
        assert (off < 4.5 * error + 1e-6).all(), name


def test_an_only_mental_state_of_one_of_two():
    """Ann's rows are settled, Bob's are not."""
    demos = btil.Demonstrations(
        [0, 0, 1, 1], np.array([[0, 1], [1, 0], [0, 0], [1, 1]]), agents=("ann", "bob"),
        num_actions=2, num_latents=(1, 2),
    )  # fmt: skip
    for name, own in settled_contexts(bind(btil.TeamModel(), demos)).items():
        assert own.all() == name.endswith("ann"), name
        assert own.any() == name.endswith("ann"), name


def test_where_no_row_is_settled_nothing_is_drawn_anew():
    from btil.inference import nuts
    from btil.inference.collapsed import collapsed_data

    bound = bind(MODEL, recordings([-1] * 7))
    settled = settled_contexts(bound)
    assert not any(own.any() for own in settled.values())
    structure, data = collapsed_data(bound, np.dtype(np.float32))
    chains = nuts.Chains({}, np.zeros((2, 3, 2)), {})
    found, number = nuts._with_settled_rows(
        chains, bound, settled, structure, nuts.Inputs(data, {}), 0
    )
    assert found is chains
    assert number == 0
