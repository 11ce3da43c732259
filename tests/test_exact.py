"""Exact inference against closed forms and against an urn that knows nothing of btil."""

import itertools
from collections import defaultdict

import numpy as np
import pytest

from btil.demonstrations import Demonstrations
from btil.inference import exact
from btil.models.cpt import DirichletCPT, KnownCPT, Shared, StaticCPT, UniformCPT
from btil.models.team import TeamModel, bind


def fit(model, demos, **options):
    return exact.fit(
        bind(model, demos), seed=0, progress=False, dtype=np.dtype(np.float32), **options
    )


def hmm(actions, latents=None, episodes=None, num_latents=2):
    return Demonstrations(
        np.zeros(len(actions), int),
        np.array(actions)[:, None],
        latents=None if latents is None else np.array(latents)[:, None],
        episodes=episodes,
        num_latents=num_latents,
    )


def ones():
    return TeamModel(*(DirichletCPT(1.0) for _ in range(3)))


def mean(result, site):
    return result.rows[site].mean()


class Urn:
    """Sums over all joint latent sequences, each weighted draw by draw as from Polya urns.

    `tables[agent] = (policy, transition, initial)`; each is (name, kind, values, parents) with kind
    "learned" (values: concentration of a context's block) or "fixed" (values: function of the
    context giving the block), and parents a function (t) -> context.
    """

    def __init__(self, actions, labels, starts, sizes, tables):
        self.evidence = 0.0
        self.first = defaultdict(float)
        self.second = defaultdict(float)
        steps, agents = actions.shape
        options = [
            [labels[t, i]] if labels[t, i] >= 0 else range(sizes[i])
            for t in range(steps)
            for i in range(agents)
        ]
        blocks = {
            (table[0], table[3](t)): table[2]
            for i in range(agents)
            for role, table in enumerate(tables[i])
            for t in self.used(role, steps, starts)
            if table[1] == "learned"
        }
        for flat in itertools.product(*options):
            latent = np.reshape(flat, (steps, agents))
            urns = {key: np.array(block, float) for key, block in blocks.items()}
            weight = 1.0
            for t in range(steps):
                for i in range(agents):
                    role = 2 if t in starts else 1
                    row = () if t in starts else (latent[t - 1, i],)
                    weight *= self.draw(urns, tables[i][role], t, (*row, latent[t, i]))
                    weight *= self.draw(urns, tables[i][0], t, (latent[t, i], actions[t, i]))
            self.evidence += weight
            for key, urn in urns.items():
                total = urn.sum(-1, keepdims=True)
                self.first[key] += weight * urn / total
                self.second[key] += weight * urn * (urn + 1) / (total * (total + 1))

    @staticmethod
    def used(role, steps, starts):
        return [t for t in range(steps) if role == 0 or (t in starts) == (role == 2)]

    @staticmethod
    def draw(urns, table, t, cell):
        name, kind, values, parents = table
        if kind == "fixed":
            return values(parents(t))[cell]
        urn = urns[name, parents(t)]
        probability = urn[cell] / urn[cell[:-1]].sum()
        urn[cell] += 1
        return probability

    def check(self, result):
        np.testing.assert_allclose(result.elbo, np.log(self.evidence), rtol=1e-11)
        for (name, context), total in self.first.items():
            rows = self.contexts[name]
            place = rows.index(tuple(context))
            expected = total / self.evidence
            np.testing.assert_allclose(result.rows[name].mean()[place], expected, rtol=1e-10)
            variance = self.second[name, context] / self.evidence - expected**2
            np.testing.assert_allclose(
                result.rows[name].sd()[place], np.sqrt(variance), rtol=1e-7, atol=1e-9
            )

    def check_all(self, result, bound):
        self.contexts = {
            name: [tuple(row) for row in table.contexts.rows.tolist()]
            for name, table in bound.learned.items()
        }
        found = {name: sum(key[0] == name for key in self.first) for name in self.contexts}
        assert found == {name: len(rows) for name, rows in self.contexts.items()}
        assert list(result.rows) == list(bound.learned)
        self.check(result)


def test_every_step_labelled_is_closed_form():
    demos = hmm([0, 1, 2, 2, 1, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 1, 1, 1])
    result = fit(ones(), demos)
    assert result.elbo == pytest.approx(-11.2613824391, abs=1e-9)
    np.testing.assert_allclose(mean(result, "transition_agent_0")[0], [[0.6, 0.4], [2 / 3, 1 / 3]])
    np.testing.assert_allclose(
        mean(result, "policy_agent_0")[0], [[3 / 7, 3 / 7, 1 / 7], [0.2, 0.2, 0.6]]
    )
    assert len(result.rows["policy_agent_0"].weights) == 1
    assert result.converged
    assert result.reason == "exact"


def test_episodes_in_any_order_and_not_glued():
    swapped = hmm([2, 1, 0, 0, 1, 2], [1, 0, 0, 0, 0, 1], [1, 1, 1, 0, 0, 0])
    result = fit(ones(), swapped)
    assert result.elbo == pytest.approx(-11.2613824391, abs=1e-9)
    np.testing.assert_allclose(mean(result, "transition_agent_0")[0, 1], [2 / 3, 1 / 3])
    glued = fit(ones(), hmm([0, 1, 2, 2, 1, 0], [0, 0, 1, 1, 0, 0]))
    np.testing.assert_allclose(mean(glued, "transition_agent_0")[0, 1], [0.5, 0.5])


def test_no_step_labelled():
    result = fit(ones(), hmm([0, 0, 1, 1]))
    assert result.elbo == pytest.approx(-3.1725136500, abs=1e-9)
    np.testing.assert_allclose(
        mean(result, "transition_agent_0")[0],
        [[0.517864, 0.482136], [0.482136, 0.517864]],
        atol=1e-6,
    )


def test_two_steps_labelled():
    result = fit(ones(), hmm([0, 0, 1, 1], [0, -1, -1, 1]))
    assert result.elbo == pytest.approx(-4.4101975116, abs=1e-9)


def test_one_latent():
    result = fit(ones(), hmm([0, 0, 1], num_latents=1))
    assert result.elbo == pytest.approx(np.log(2 / 24), abs=1e-12)
    np.testing.assert_array_equal(mean(result, "transition_agent_0"), 1.0)


STATES = np.array([0, 1, 1, 0, 1, 0])
STARTS = {0, 3, 4}
EPISODES = [0, 0, 0, 1, 2, 2]


def test_two_unlike_agents():
    actions = np.array([[0, 1], [2, 0], [1, 0], [2, 1], [0, 0], [1, 1]])
    labels = np.array([[-1, 2], [1, -1], [-1, -1], [-1, -1], [0, -1], [-1, 1]])
    demos = Demonstrations(
        {"light": STATES},
        {"ann": actions[:, 0], "bob": actions[:, 1]},
        {"ann": labels[:, 0], "bob": labels[:, 1]},
        episodes=EPISODES,
        num_actions=(3, 2),
        num_latents=(2, 3),
    )
    ann_policy = np.array([[0.5, 1.0, 2.0], [3.0, 0.2, 1.0]])
    ann_moves = np.array([[2.0, 0.3], [0.1, 1.5]])
    bob_policy = np.array(
        [[[1.0, 0.0], [0.3, 0.7], [0.5, 0.5]], [[0.9, 0.1], [0.0, 1.0], [0.6, 0.4]]]
    )
    bob_start = np.array([1.0, 2.0, 0.5])
    model = TeamModel(
        policy={
            "ann": DirichletCPT(ann_policy, parents=("light",)),
            "bob": KnownCPT(bob_policy, parents=("state",)),
        },
        transition={
            "ann": DirichletCPT(ann_moves, parents=("light", "action_bob")),
            "bob": DirichletCPT(0.1, parents=("next_light",)),
        },
        initial={"ann": KnownCPT([0.3, 0.7]), "bob": DirichletCPT(bob_start)},
    )
    urn = Urn(
        actions,
        labels,
        STARTS,
        (2, 3),
        [
            (
                ("policy_ann", "learned", ann_policy, lambda t: (STATES[t],)),
                (
                    "transition_ann",
                    "learned",
                    ann_moves,
                    lambda t: (STATES[t - 1], actions[t - 1, 1]),
                ),
                ("initial_ann", "fixed", lambda _: np.array([0.3, 0.7]), lambda _: ()),
            ),
            (
                ("policy_bob", "fixed", lambda context: bob_policy[context], lambda t: STATES[t]),
                ("transition_bob", "learned", np.full((3, 3), 0.1), lambda t: (STATES[t],)),
                ("initial_bob", "learned", bob_start, lambda _: ()),
            ),
        ],
    )
    result = fit(model, demos)
    urn.check_all(result, bind(model, demos))
    assert {rows.group for rows in result.rows.values()} == {"ann", "bob"}
    assert result.notes["num_sequences"] == 2**4 + 3**4


def test_agents_that_share_a_table():
    actions = np.array([[0, 1], [2, 0], [1, 0], [2, 1], [0, 2], [1, 1]])
    labels = np.array([[-1, 1], [-1, -1], [-1, -1], [-1, -1], [0, -1], [-1, 0]])
    held = {"ann_held": STATES, "bob_held": 1 - np.roll(STATES, 2)}
    demos = Demonstrations(
        held,
        {"ann": actions[:, 0], "bob": actions[:, 1]},
        {"ann": labels[:, 0], "bob": labels[:, 1]},
        episodes=EPISODES,
        num_actions=3,
        num_latents=2,
    )
    policy = np.array([[0.5, 1.0, 2.0], [3.0, 0.2, 1.0]])
    start = np.array([0.4, 1.1])
    model = TeamModel(
        policy=Shared(DirichletCPT(policy, parents={"ann": ("ann_held",), "bob": ("bob_held",)})),
        transition={"ann": StaticCPT(), "bob": DirichletCPT(0.7)},
        initial=Shared(DirichletCPT(start)),
    )
    shared_start = ("initial", "learned", start, lambda _: ())
    urn = Urn(
        actions,
        labels,
        STARTS,
        (2, 2),
        [
            (
                ("policy", "learned", policy, lambda t: (held["ann_held"][t],)),
                ("static", "fixed", lambda _: np.eye(2), lambda _: ()),
                shared_start,
            ),
            (
                ("policy", "learned", policy, lambda t: (held["bob_held"][t],)),
                ("transition_bob", "learned", np.full((2, 2), 0.7), lambda _: ()),
                shared_start,
            ),
        ],
    )
    result = fit(model, demos)
    urn.check_all(result, bind(model, demos))
    assert {rows.group for rows in result.rows.values()} == {"ann+bob"}
    assert len({rows.weights.tobytes() for rows in result.rows.values()}) == 1


def test_agents_with_nothing_to_learn_count_in_the_evidence():
    actions = np.array([[0, 1], [1, 1], [0, 0]])
    demos = Demonstrations([0, 0, 0], actions, num_latents=(2, 2))
    bob = np.array([[0.2, 0.8], [0.7, 0.3]])
    model = TeamModel(
        policy={"agent_0": DirichletCPT(1.0), "agent_1": KnownCPT(bob)},
        transition={"agent_0": DirichletCPT(1.0), "agent_1": StaticCPT()},
        initial={"agent_0": DirichletCPT(1.0), "agent_1": UniformCPT()},
    )
    alone = Demonstrations([0, 0, 0], actions[:, :1], num_latents=2)
    bob_evidence = 0.5 * (bob[0, actions[:, 1]].prod() + bob[1, actions[:, 1]].prod())
    expected = fit(ones(), alone).elbo + np.log(bob_evidence)
    assert fit(model, demos).elbo == pytest.approx(expected, abs=1e-12)


def test_a_model_that_is_all_known():
    demos = hmm([0, 1, 1], [-1, -1, 0])
    model = TeamModel(
        KnownCPT([[0.9, 0.1], [0.2, 0.8]]), KnownCPT([[0.5, 0.5], [0.4, 0.6]]), UniformCPT()
    )
    result = fit(model, demos)
    forward = np.array([0.5, 0.5]) * [0.9, 0.2]
    forward = forward @ [[0.5, 0.5], [0.4, 0.6]] * [0.1, 0.8]
    forward = forward @ [[0.5, 0.5], [0.4, 0.6]] * [0.1, 0.8]
    assert result.rows == {}
    assert result.elbo == pytest.approx(np.log(forward[0]), abs=1e-12)


def test_equal_counts_are_one_component():
    result = fit(ones(), hmm([0] * 12))
    # The transition counts and the latent of step 0 determine everything.
    assert len(result.rows["policy_agent_0"].weights) < 2**12 / 10
    assert result.rows["policy_agent_0"].weights.sum() == pytest.approx(1.0)
    repeated = np.unique(
        np.concatenate(
            [rows.concentration.reshape(len(rows.weights), -1) for rows in result.rows.values()],
            1,
        ),
        axis=0,
    )
    assert len(repeated) == len(result.rows["policy_agent_0"].weights)


def test_too_many_sequences_are_refused():
    with pytest.raises(ValueError, match=r"1,048,576 latent sequences.*max_sequences=1,000,000"):
        fit(ones(), hmm([0] * 20))
    with pytest.raises(ValueError, match=r"about 10\^6020 latent sequences"):
        fit(ones(), hmm([0] * 20_000))
    with pytest.raises(ValueError, match=r"16 latent sequences.*max_sequences=15"):
        fit(ones(), hmm([0, 1, 0, 1]), max_sequences=15)


def test_sequences_are_counted_of_those_who_are_there_with_the_actions_nobody_saw():
    def refused(demos, model, number):
        with pytest.raises(ValueError, match=rf" {number} latent sequences"):
            fit(model, demos, max_sequences=number - 1)
        assert fit(model, demos, max_sequences=number).notes["num_sequences"] == number

    # Away at one of four steps.
    refused(hmm([0, 1, 0, 1]).replace(present=[[1], [1], [0], [1]]), ones(), 2**3)
    # An action of three, which a transition reads; without it nothing is summed over it.
    unseen = hmm([0, 0, 2, 1]).replace(actions=[[0], [-1], [2], [1]], missing="allow")
    reads = TeamModel(DirichletCPT(1.0), DirichletCPT(1.0, parents=("actions",)), DirichletCPT(1.0))
    refused(unseen, reads, 2**4 * 3)
    refused(unseen, ones(), 2**4)
    two = hmm([0, 0, 0, 1]).replace(actions=[[1], [-1], [-1], [1]], missing="allow")
    refused(two, reads, 2**4 * 2**2)


def test_impossible_data_are_named():
    never = KnownCPT([[1.0, 0.0], [0.0, 1.0]])
    model = TeamModel(never, StaticCPT(), DirichletCPT(1.0))
    with pytest.raises(ValueError, match="episode 7, agent agent_0, step 1: impossible"):
        fit(model, hmm([0, 0, 0, 1], episodes=[3, 3, 7, 7]))
