"""Parts of `btil.suggest_model`, one by one: by hand and by enumeration, on a few steps."""

import itertools
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln

import btil
from btil import Demonstrations
from btil.suggestion import columns, held_out, preferring, search, suggest
from btil.suggestion.preferring import Option
from btil.suggestion.scores import (
    CELLS,
    STAYS,
    STRENGTHS,
    Prior,
    Reads,
    cpt_of,
    keeping_grid,
    log_marginals,
    policy_grid,
    transition_grid,
)
from btil.suggestion.search import Found, Pool, Scored, Search
from btil.suggestion.told import Suggestion, Table


def team() -> Demonstrations:
    """Two members, episodes of unequal lengths, labels with gaps, an episode without any."""
    return Demonstrations(
        {
            "ann_at": [0, 1, 1, 2, 0, 1, 2, 2, 0, 1],
            "bob_at": [1, 1, 0, 0, 2, 2, 1, 0, 1, 2],
            "phase": [0, 0, 1, 1, 0, 1, 1, 0, 0, 1],
        },
        {"ann": [0, 1, 2, 0, 1, 1, 0, 2, 2, 0], "bob": [1, 0, 0, 1, 2, 1, 0, 0, 1, 1]},
        {"ann": [0, 1, -1, 1, 1, -1, -1, 0, 1, 1], "bob": [1, 1, 0, -1, 0, -1, -1, 1, -1, 0]},
        [0, 0, 0, 0, 0, 1, 1, 2, 2, 2],
        num_actions=3,
        num_latents=2,
    )


def pool_of(role: str, agents: tuple[str, ...] = ("ann", "bob")) -> Pool:
    demos = team()
    seen = columns.views(demos, list(demos.state_variables), {})
    return search.make_pool(demos, seen, role, agents)


# ---------------------------------------------------------------------- reads


def test_reads_of_a_policy_are_the_labelled_steps_of_its_agents() -> None:
    pool, demos = pool_of("policy"), team()
    own, other = [0, 1, 3, 4, 7, 8, 9], [0, 1, 2, 4, 7, 9]
    actions, latents = demos.actions, demos.latents
    assert pool.reads.latent.tolist() == [*latents[own, 0], *latents[other, 1]]
    assert pool.reads.value.tolist() == [*actions[own, 0], *actions[other, 1]]
    assert (pool.reads.num_latents, pool.reads.num_values) == (2, 3)
    assert list(pool.columns) == ["{own}_at", "phase", "{other}_at"]
    ann, bob = (demos.state_variables[f"{agent}_at"] for agent in ("ann", "bob"))
    assert pool.columns["{own}_at"].tolist() == [*ann[own], *bob[other]]
    assert pool.columns["{other}_at"].tolist() == [*bob[own], *ann[other]]
    assert pool.names["{other}_at"] == {"ann": "bob_at", "bob": "ann_at"}
    assert pool.names["phase"] == {"ann": "phase", "bob": "phase"}
    assert pool.changes == {}
    assert pool.keeping is None
    # Shares of actions, of all steps, one more of each.
    shares = (np.bincount(actions.ravel(), minlength=3) + 1) / 23
    np.testing.assert_allclose(pool.plain.priors[-1].base, shares.round(4))


def test_reads_of_a_transition_are_moves_between_labels() -> None:
    pool, demos = pool_of("transition"), team()
    before, other = [0, 3, 7, 8], [0, 1]
    latents = demos.latents
    assert pool.reads.latent.tolist() == [*latents[before, 0], *latents[other, 1]]
    after = [*latents[np.add(before, 1), 0], *latents[np.add(other, 1), 1]]
    assert pool.reads.value.tolist() == after
    assert (pool.reads.num_latents, pool.reads.num_values) == (2, 2)
    assert list(pool.columns) == [
        "{own}_at", "next {own}_at", "phase", "next phase", "{other}_at", "next {other}_at",
        "action of {own}", "action of {other}",
    ]  # fmt: skip
    phase = demos.state_variables["phase"]
    assert pool.columns["next phase"].tolist() == phase[[1, 4, 8, 9, 1, 2]].tolist()
    assert pool.changes["phase"].tolist() == [
        int(phase[t] != phase[t + 1]) for t in (*before, *other)
    ]
    acted = [*demos.actions[before, 1], *demos.actions[other, 0]]
    assert pool.columns["action of {other}"].tolist() == acted
    assert pool.names["action of {other}"] == {"ann": "action_bob", "bob": "action_ann"}
    assert pool.names["next {own}_at"] == {"ann": "next_ann_at", "bob": "next_bob_at"}
    assert pool.keeping is not None


def test_columns_that_never_vary_at_reads_are_no_candidates() -> None:
    pool = pool_of("transition", ("bob",))
    assert "next phase" in pool.columns
    assert "phase" not in pool.columns  # bob's moves begin in phase 0
    assert "phase" in pool.changes


def test_members_share_where_latents_and_actions_are_the_same() -> None:
    demos = team()
    assert search.can_share(demos, demos.agents) is None
    named = demos.replace(latent_names={"ann": ["a", "b"], "bob": ["a", "c"]})
    assert search.can_share(named, demos.agents) == "their mental states are not the same"
    both = demos.replace(latent_names={"ann": ["a", "b"], "bob": ["a", "b"]})
    assert search.can_share(both, demos.agents) is None
    more = demos.replace(num_actions={"ann": 3, "bob": 4})
    assert search.can_share(more, demos.agents) == "their actions are not the same"


def test_columns_whose_values_are_called_otherwise_are_not_read_together() -> None:
    demos = team().replace(
        state_names={"ann_at": ["door", "hall", "attic"], "bob_at": ["hall", "door", "attic"]}
    )
    seen = columns.views(demos, list(demos.state_variables), {})
    assert list(search.make_pool(demos, seen, "policy", ("ann", "bob")).columns) == ["phase"]
    alone = search.make_pool(demos, seen, "policy", ("ann",)).columns
    assert set(alone) == {"{own}_at", "phase", "{other}_at"}


# ---------------------------------------------------------------------- scores


def test_priors_that_are_tried() -> None:
    grid = policy_grid(np.array([0.7, 0.3]))
    flat, rarity = grid.priors[: len(STRENGTHS)], grid.priors[len(STRENGTHS) :]
    assert [(one.kind, one.strength) for one in flat] == [("flat", s) for s in STRENGTHS]
    assert [(one.kind, one.strength) for one in rarity] == [("rarity", s) for s in STRENGTHS]
    np.testing.assert_allclose(grid.cells[2], [0.25, 0.25])
    np.testing.assert_allclose(grid.cells[len(STRENGTHS) + 3], [0.7, 0.3])
    np.testing.assert_allclose(grid.sums[:, 0], 2 * STRENGTHS)
    assert len(policy_grid(np.ones(1)).priors) == len(STRENGTHS)
    sticky = transition_grid(3)
    assert len(sticky.priors) == len(CELLS) * len(STAYS)
    for prior, cells, sums in zip(*sticky, strict=True):
        np.testing.assert_allclose(cells, [prior.strength, prior.strength + prior.stay])
        np.testing.assert_allclose(sums, [3 * prior.strength + prior.stay])
    keeps = keeping_grid(3)
    assert {one.stay for one in keeps.priors} == {1, 3, 10, 30, 100, 1000, 10000}
    for prior, cells, sums in zip(*keeps, strict=True):
        u, more = prior.strength, prior.strength + prior.stay
        np.testing.assert_allclose(cells, [u, more, u, u])
        np.testing.assert_allclose(sums, [2 * u + more, 3 * u])


def test_a_table_is_what_its_prior_says() -> None:
    apart = {"ann": ("ann_at",), "bob": ("bob_at",)}
    alike = {"ann": ("phase",), "bob": ("phase",)}
    base = (0.25, 0.75)
    assert cpt_of(Prior("flat", 3.0, 0.0, (0.5, 0.5)), alike) == btil.DirichletCPT(1.5, ("phase",))
    for kind in ("rarity", "rare"):
        cpt = cpt_of(Prior(kind, 2.0, 0.0, base), apart)
        assert cpt == btil.DirichletCPT([0.5, 1.5], apart)
    assert cpt_of(Prior("sticky", 0.3), apart) == btil.DirichletCPT(0.3, apart)
    sticky = cpt_of(Prior("sticky", 0.3, 10.0), alike)
    assert sticky == btil.StickyDirichletCPT(0.3, 10.0, ("phase",))
    both = {agent: (f"{agent}_at", f"next_{agent}_at") for agent in ("ann", "bob")}
    kept = {"ann": "ann_at", "bob": "bob_at"}
    keeps = cpt_of(Prior("keeps", 0.3, 10.0), both, kept)
    assert keeps == btil.StickyDirichletCPT(0.3, 10.0, both, kept)
    one = cpt_of(Prior("keeps", 1 / 3, 1e4), {"ann": ("x", "next_x")}, {"ann": "x"})
    assert one == btil.StickyDirichletCPT(1 / 3, 1e4, ("x", "next_x"), "x")
    third = cpt_of(Prior("flat", 1.0, 0.0, (1 / 3,) * 3), {"ann": ()})
    assert third == btil.DirichletCPT(0.3333)


def test_priors_in_words() -> None:
    assert str(Prior("flat", 2.0, 0.0, (0.5, 0.5))) == "2 a row"
    assert str(Prior("rarity", 2.5, 0.0, (0.5, 0.5))) == "2.5 a row, as often as actions are taken"
    rare = Prior("rare", 2.01, 0.0, (0.4, 0.01, 0.59))
    assert str(rare) == "2.01 a row, little of it for the action 1"
    assert rare.words(["go", "lift", "stay"]).endswith("for the action lift")
    assert str(Prior("sticky", 0.3)) == "0.3 a cell"
    assert str(Prior("sticky", 0.3, 10.0)) == "0.3 a cell, stay 10"
    assert str(Prior("keeps", 0.3, 10.0)) == "0.3 a cell, stay 10 while it keeps"


def test_contexts_of_many_columns_are_told_apart() -> None:
    """More of them than whole numbers could number one by one."""
    generator = np.random.default_rng(0)
    several = {name: generator.integers(4, size=40) for name in "abcdef"}
    wide = {name: values * 1000 for name, values in several.items()}
    reads = Reads(generator.integers(2, size=40), generator.integers(3, size=40), 2, 3)

    def score(given: dict[str, np.ndarray]) -> Scored:
        pool = Pool("policy", ("ann",), reads, given, {}, {}, policy_grid(np.full(3, 1 / 3)), None)
        return Search(pool).score(list(given))

    found = score(several)
    assert found.contexts == len(set(zip(*several.values(), strict=True)))
    assert score(wide) == found
    assert score(dict(reversed(wide.items()))).parents == tuple("abcdef")


def test_a_latent_keeps_where_that_says_a_nat_more() -> None:
    """And where a variable and its next value are parents both."""
    changed = np.array([0] * 60 + [1] * 60)
    generator = np.random.default_rng(0)
    latent = generator.integers(2, size=120)
    value = np.where(changed == 0, latent, generator.integers(2, size=120))
    pool = Pool(
        "transition", ("ann",), Reads(latent, value, 2, 2),
        {"x": np.zeros(120, int), "next x": changed}, {}, {"x": changed},
        transition_grid(2), keeping_grid(2),
    )  # fmt: skip
    scores = Search(pool)
    both = scores.score(("x", "next x"))
    assert (both.kept, both.prior.kind) == ("x", "keeps")
    for parents in ((), ("x",), ("next x",)):
        assert scores.score(parents).kept is None
    assert both.score > scores.score(("next x",)).score + 1
    without = Search(pool._replace(keeping=None)).score(("x", "next x"))
    assert (without.kept, without.prior.kind) == (None, "sticky")
    assert both.score > without.score + 1
    # By hand: while x keeps, staying has more; elsewhere not.
    prior = both.prior
    expected = 0.0
    for row, seen in itertools.product(range(2), range(2)):
        u = np.full(2, prior.strength) + prior.stay * (seen == 0) * np.eye(2)[row]
        n = np.bincount(value[(changed == seen) & (latent == row)], minlength=2)
        expected += (gammaln(u + n) - gammaln(u)).sum() + gammaln(u.sum())
        expected -= gammaln(u.sum() + n.sum())
    assert both.score == pytest.approx(expected)
    # Of few steps it says less than that.
    found = set()
    for number in range(2, 30, 2):
        few = np.r_[:number, 60 : 60 + number]
        seen, reads = changed[few], Reads(latent[few], value[few], 2, 2)
        small = pool._replace(
            reads=reads, columns={"x": 0 * seen, "next x": seen}, changes={"x": seen}
        )
        plain = Search(small._replace(keeping=None)).score(("x", "next x")).score
        stays = (reads.latent == reads.value).astype(int)
        more = log_marginals(seen, reads, keeping_grid(2), 2 * seen + stays, seen).max() - plain
        kept = Search(small).score(("x", "next x")).kept
        assert (kept == "x") == (more > 1)
        found.add(min(int(more > 0) + int(more > 1), 2))
    assert {1, 2} <= found


def test_latents_keep_with_variables_of_few_values_only() -> None:
    """Sixteen at most, for every member who would share the table."""
    sizes = {"ann_at": 17, "bob_at": 16, "phase": 2}
    demos = team().replace(num_states=sizes)
    seen = columns.views(demos, list(sizes), {})
    kept = {
        agents: set(search.make_pool(demos, seen, "transition", agents).changes)
        for agents in (("ann",), ("bob",), ("ann", "bob"))
    }
    assert kept["ann",] == {"{other}_at", "phase"}
    assert kept["bob",] == {"{own}_at", "phase"}
    assert kept["ann", "bob"] == {"phase"}


def pool_that_depends(actions: np.ndarray, given: dict[str, np.ndarray]) -> Pool:
    reads = Reads(np.zeros(len(actions), int), actions, 1, 2)
    return Pool("policy", ("ann",), reads, given, {}, {}, policy_grid(np.full(2, 0.5)), None)


def test_a_search_ends_where_no_step_brings_what_it_has_to() -> None:
    generator = np.random.default_rng(0)
    x, noise = generator.integers(2, size=(2, 80))
    pool = pool_that_depends(x, {"noise": noise, "x": x, "same": x})
    found = search.search(pool)
    assert found.least == pytest.approx(1 + np.log(3))
    assert found.best.parents == ("x",)  # of columns that say the same the first
    assert [(one.what, one.scored.parents) for one in found.path] == [("none", ()), ("+ x", ("x",))]
    scores = Search(pool)
    gain = scores.score(("x",)).score - scores.score(()).score
    assert found.path[1].gain == pytest.approx(gain)
    assert found.brought == pytest.approx({"x": gain})
    assert found.objective == pytest.approx(scores.score(("x",)).score - found.least)
    objectives = [one.score - found.least * len(one.parents) for one in found.runners_up]
    assert objectives == sorted(objectives, reverse=True)
    assert found.runners_up[0].parents == ("same",)
    assert len(found.runners_up) == 5
    again = search.found_to(scores.score(("noise", "same")), found)
    assert again.best.parents == ("noise", "same")
    without = {name: scores.score([n for n in again.best.parents if n != name]).score
               for name in again.best.parents}  # fmt: skip
    assert again.brought == pytest.approx(
        {name: again.best.score - score for name, score in without.items()}
    )
    # With as little to say as that nothing is read.
    few = pool_that_depends(x[:3], {"x": x[:3]})
    assert search.search(few).best.parents == ()
    nothing = pool_that_depends(x[:0], {})
    ended = search.search(nothing)
    assert (ended.best.parents, ended.least, ended.brought) == ((), 1.0, {})


def test_a_step_has_to_bring_more_than_the_least() -> None:
    """The best of several moves; of two as good the first, and none that gains nothing."""
    one, other = (Scored((name,), 0.0, Prior("flat", 1.0), None, 1) for name in "ab")
    assert search._best_move([(1.0, one, "a"), (1.0 + 1e-9, other, "b")]) == (1.0, one, "a")
    assert search._best_move([(1.0, one, "a"), (1.1, other, "b")]) == (1.1, other, "b")
    assert search._best_move([(0.0, one, "a"), (-1.0, other, "b")]) is None
    assert search._best_move([]) is None
    assert search._first_best(np.array([1.0, 3.0, 3.0 + 1e-9, 2.0])) == 1


# ---------------------------------------------------------------------- labels held out


def test_stretches_are_labels_without_a_gap() -> None:
    demos = team()
    of = held_out.stretches(demos, ("ann", "bob"))
    assert of is not None
    lanes = {}
    policy, transition = pool_of("policy"), pool_of("transition")
    for lane in range(len(of.fold)):
        real = of.step[:, lane] >= 0
        assert real.tolist() == sorted(real.tolist(), reverse=True)
        steps, pairs = of.step[real, lane], of.pair[real, lane]
        labels = of.label[real, lane].tolist()
        assert policy.reads.latent[steps].tolist() == labels
        assert pairs[0] == -1
        assert transition.reads.latent[pairs[1:]].tolist() == labels[:-1]
        assert transition.reads.value[pairs[1:]].tolist() == labels[1:]
        assert (of.fold_of_step[steps] == of.fold[lane]).all()
        assert (of.fold_of_pair[pairs[1:]] == of.fold[lane]).all()
        lanes.setdefault((int(of.episode[lane]), int(of.agent[lane])), []).append(labels)
    assert lanes == {
        (0, 0): [[0, 1], [1, 1]], (2, 0): [[0, 1, 1]],
        (0, 1): [[1, 1, 0], [0]], (2, 1): [[1], [0]],
    }  # fmt: skip
    assert (of.pair[of.step < 0] == -1).all()
    # Both members' labels of an episode are held out together.
    assert of.num_folds == 2
    folds = {int(e): set(of.fold[of.episode == e].tolist()) for e in of.episode}
    assert sorted(next(iter(f)) for f in folds.values()) == [0, 1]
    assert all(len(f) == 1 for f in folds.values())
    assert held_out.stretches(demos.without_labels([2]), ("ann", "bob")) is None
    assert held_out.stretches(demos.without_labels(), ("ann",)) is None


def test_folds_are_at_most_five_and_even() -> None:
    labels = np.arange(24) % 2
    demos = Demonstrations(
        {"x": np.arange(24) % 5}, labels, labels, np.repeat(np.arange(12), 2), num_latents=2
    )
    of = held_out.stretches(demos, ("agent_0",))
    assert of is not None
    assert of.num_folds == 5
    assert sorted(np.bincount(of.fold)) == [2, 2, 2, 3, 3]


def test_the_order_of_episodes_is_their_own() -> None:
    demos = team()
    first = held_out.in_order(demos, np.arange(3))
    turned = demos.select([2, 0, 1])
    assert [[2, 0, 1][k] for k in held_out.in_order(turned, np.arange(3))] == first.tolist()
    # Shorter ones first.
    assert first.tolist() == [1, 2, 0]
    assert held_out.in_order(demos, np.array([0, 2])).tolist() == [2, 0]


@pytest.mark.parametrize("parents", [(), ("{own}_at",), ("phase", "{other}_at")])
def test_counts_of_others_are_those_of_all_other_folds(parents: tuple[str, ...]) -> None:
    pool, of = pool_of("policy"), held_out.stretches(team(), ("ann", "bob"))
    assert of is not None
    found = held_out.counts_of_others(pool, parents, of.fold_of_step, of.num_folds)
    context = list(zip(*(pool.columns[name] for name in parents), strict=True)) or [()] * 13
    for read in range(13):
        expected = np.zeros((2, 3))
        for other in range(13):
            same = context[other] == context[read]
            if same and of.fold_of_step[other] != of.fold_of_step[read]:
                expected[pool.reads.latent[other], pool.reads.value[other]] += 1
        np.testing.assert_array_equal(found[read], expected)
    # Rows of these counts and a prior, at the actions that were taken.
    priors = [Prior("flat", 1.5, 0.0, (1 / 3,) * 3), Prior("rare", 2.0, 0.0, (0.5, 0.4, 0.1))]
    emission = held_out.emissions(pool, parents, priors, of)
    assert emission.shape == (2, *of.step.shape, 2)
    for k, prior in enumerate(priors):
        for at in np.ndindex(of.step.shape):
            read = of.step[at]
            if read < 0:
                np.testing.assert_array_equal(emission[(k, *at)], 1)
                continue
            rows = found[read] + prior.strength * np.array(prior.base)
            rows /= rows.sum(-1, keepdims=True)
            np.testing.assert_allclose(emission[(k, *at)], rows[:, pool.reads.value[read]])


def test_moves_held_out_are_rows_of_the_other_folds() -> None:
    pool, of = pool_of("transition"), held_out.stretches(team(), ("ann", "bob"))
    assert of is not None
    for one in (
        Scored(("phase",), 0.0, Prior("sticky", 0.5, 2.0), None, 2),
        Scored(("next phase", "phase"), 0.0, Prior("keeps", 0.5, 2.0), "phase", 2),
    ):
        counts = held_out.counts_of_others(pool, one.parents, of.fold_of_pair, of.num_folds)
        found = held_out.moves(pool, one, of)
        for at in np.ndindex(of.pair.shape):
            move = of.pair[at]
            expected = np.eye(2)
            if move >= 0:
                stays = one.kept is None or pool.changes["phase"][move] == 0
                expected = counts[move] + 0.5 + 2.0 * stays * np.eye(2)
                expected = expected / expected.sum(-1, keepdims=True)
            np.testing.assert_allclose(found[at], expected)
    nothing = pool._replace(reads=Reads(np.zeros(0, int), np.zeros(0, int), 2, 2))
    np.testing.assert_array_equal(held_out.moves(nothing, one, of), 0.5)


def test_held_out_answers_by_enumeration() -> None:
    """Of random arrays: log p(labels | actions), and the share of steps decoded wrongly."""
    of = held_out.stretches(team(), ("ann", "bob"))
    assert of is not None
    generator = np.random.default_rng(0)
    real = (of.step >= 0)[..., None]
    emission = np.where(real, generator.uniform(0.1, 1, (2, *of.step.shape, 2)), 1.0)
    rows = generator.dirichlet([1, 1], (*of.step.shape, 2))
    move = np.where((of.pair >= 0)[..., None, None], rows, np.eye(2))
    expected, wrong = np.zeros(2), {}
    for lane in range(len(of.fold)):
        steps = int((of.step[:, lane] >= 0).sum())
        marginal = np.zeros((2, steps, 2))
        total, joint = np.zeros(2), np.zeros(2)
        for path in itertools.product(range(2), repeat=steps):
            p = np.full(2, 0.5)
            for t, x in enumerate(path):
                p = p * emission[:, t, lane, x]
                p = p * (move[t, lane, path[t - 1], x] if t else 1.0)
            total += p
            marginal[:, np.arange(steps), path] += p[:, None]
            if path == tuple(of.label[:steps, lane]):
                joint = p
        expected += np.log(joint / total)
        errors = marginal[0].argmax(-1) != of.label[:steps, lane]
        wrong.setdefault((int(of.agent[lane]), int(of.episode[lane])), []).extend(errors.tolist())
    np.testing.assert_allclose(held_out.log_conditionals(emission, move, of), expected)
    means = {
        agent: np.mean([np.mean(wrong[agent, episode]) for episode in (0, 2)]) for agent in (0, 1)
    }
    assert 0 < means[0] != means[1] > 0
    assert held_out.decoding_errors(emission[0], move, of) == pytest.approx(means)


def test_who_says_the_most_frequent_of_elsewhere() -> None:
    pool, of = pool_of("policy", ("ann",)), held_out.stretches(team(), ("ann",))
    assert of is not None
    # Episode 0 has labels 0, 1, 1, 1 and episode 2 has 0, 1, 1: 1 is the most frequent of either.
    assert held_out.majority_errors(pool, of) == pytest.approx({0: (1 / 4 + 1 / 3) / 2})
    demos = team().replace(latents={"ann": [0, 1, -1, 1, 1, -1, -1, 0, 0, 1]})
    seen = columns.views(demos, ["phase"], {})
    pool = search.make_pool(demos, seen, "policy", ("ann",))
    of = held_out.stretches(demos, ("ann",))
    assert of is not None
    # Now 0 is what episode 2 has most of: it is said in episode 0, where it is wrong 3 times of 4.
    assert held_out.majority_errors(pool, of) == pytest.approx({0: (3 / 4 + 2 / 3) / 2})


def test_priors_that_are_usual() -> None:
    flat, flatter, *rare = held_out.usual_priors(pool_of("policy"))
    np.testing.assert_allclose([flat.strength, flatter.strength], [0.6, 3.6])
    assert flat.base == flatter.base == (1 / 3,) * 3
    for action, prior in enumerate(rare):
        cells = np.where(np.arange(3) == action, 0.01, 1.0)
        np.testing.assert_allclose(prior.strength * np.array(prior.base), cells)
    assert len(rare) == 3


def test_the_prior_that_tells_held_out_labels_best_is_kept() -> None:
    pool, of = pool_of("policy"), held_out.stretches(team(), ("ann", "bob"))
    assert of is not None
    transition = Scored((), 0.0, Prior("sticky", 0.5, 1.0), None, 1)
    move = held_out.moves(pool_of("transition"), transition, of)
    scores = held_out.HeldOut(pool, move, of)
    sets = [(), ("phase",), ("{own}_at",), ("phase", "{other}_at")]
    scores.look([*sets, ()])
    assert set(scores.known) == set(sets)
    for one in sets:
        priors = [Search(pool).score(one).prior, *held_out.usual_priors(pool)]
        emission = held_out.emissions(pool, one, priors, of)
        values = held_out.log_conditionals(emission, move, of)
        value, prior = scores.known[one]
        assert value == pytest.approx(values.max())
        assert prior == priors[int(values.argmax())]
        scored = scores.scored(one)
        assert (scored.score, scored.prior, scored.parents) == (value, prior, one)
        assert scored.contexts == Search(pool).score(one).contexts


# ---------------------------------------------------------------------- columns


def refused_of(values: Any, latents: Any = None, episodes: Any = None, **roles: str) -> str | None:
    """Why a column is refused, if it is, beside labels of one member."""
    steps = len(values)
    given = np.zeros(steps, int) if latents is None else latents
    demos = Demonstrations(
        {"x": values}, {"ann": np.zeros(steps, int)}, {"ann": given}, episodes, num_latents=2,
        num_actions=2,
    )  # fmt: skip
    return columns.refused(demos, roles).get("x")


def test_columns_that_hardly_repeat_are_refused() -> None:
    assert refused_of([3] * 12) == "it has one value throughout"
    assert refused_of([*range(4)] * 3) is None  # a third of the steps
    told = "it has 5 values in 12 steps and hardly repeats one"
    assert refused_of([*range(5), *range(5), 0, 1]) == told
    assert refused_of(range(10)) == "it has 10 values in 10 steps and hardly repeats one"
    assert refused_of(range(9)) is None  # so few steps say nothing
    assert refused_of([3] * 12, x="ignore") == "it is to be ignored"
    assert refused_of([*range(3)] * 4, x="ignore") == "it is to be ignored"
    assert refused_of([3] * 12, x="common") is None


def test_columns_that_show_which_steps_are_labelled_are_refused() -> None:
    labels = np.repeat([-1, 1], 20)
    told = "it shows which steps are labelled: it has one value where there is no label"
    marks = np.where(labels < 0, 0, np.arange(40) % 2 + 1)
    assert str(refused_of(marks, labels)).startswith(told)
    # Nearly all is enough: one of twenty on either side.
    nearly = marks.copy()
    nearly[0], nearly[20] = 1, 0
    assert str(refused_of(nearly, labels)).startswith(told)
    for at, value in ((1, 1), (21, 0)):
        other = nearly.copy()
        other[at] = value
        assert refused_of(other, labels) is None
    # Where one value marks labels it is the episode that is looked at.
    assert refused_of(np.where(labels < 0, np.arange(40) % 2, 2), labels) is None
    # Nothing can be shown where all, or none, are labelled, or of fewer than ten.
    assert refused_of(marks, np.ones(40, int)) is None
    assert refused_of(marks, np.full(40, -1)) is None
    assert str(refused_of(marks[10:30], labels[10:30])).startswith(told)
    assert refused_of(marks[11:31], labels[11:31]) is None


def test_columns_that_are_others_in_labelled_episodes_are_refused() -> None:
    """Of 8 episodes 2 are labelled; of the 27 other pairs of episodes none differs so much."""
    episodes = np.repeat(np.arange(8), 10)
    labels = np.where(np.isin(episodes, [2, 5]), np.arange(80) % 2, -1)
    note = np.where(np.isin(episodes, [2, 5]) & (np.arange(80) % 10 < 5), 1, 0)
    told = "it is distributed otherwise in labelled episodes (by 50% of the steps), as a coder's"
    assert str(refused_of(note, labels, episodes)).startswith(told)
    assert refused_of(note, np.where(episodes == 0, 1, -1), episodes) is None
    assert refused_of(np.arange(80) % 3, labels, episodes) is None
    # Of two episodes there is no other grouping to hold it against.
    assert refused_of(note[:30:3], labels[:30:3], episodes[:30:3]) is None


def test_distance_of_groups_by_hand() -> None:
    counts = np.array([[4.0, 0], [4, 0], [0, 4], [4, 0], [4, 0], [4, 0], [4, 0], [4, 0]])
    labelled = np.zeros(8, bool)
    labelled[2] = True
    # One of eight: groups of one are all alike but for the labelled one.
    assert columns._apart(counts, labelled) == pytest.approx(1.0)
    assert columns._apart(counts[:3], labelled[:3]) is None  # two others are too few
    assert columns._apart(counts[:4], labelled[:4]) == pytest.approx(1.0)
    labelled[[2, 0]] = False, True
    assert columns._apart(counts, labelled) is None
    # A share of a tenth is nothing among many groupings, of a quarter among few.
    for share, number, found in ((0.09, 30, None), (0.12, 30, 0.12), (0.2, 8, None), (0.3, 8, 0.3)):
        counts = np.array([[100.0, 0]] * number)
        counts[0] = 100 * (1 - share), 100 * share
        labelled = np.arange(number) == 0
        assert columns._apart(counts, labelled) == (found and pytest.approx(found))


def test_groupings_are_all_or_a_fixed_sample() -> None:
    every = columns._groupings(6, 2)
    assert len({tuple(one) for one in every.tolist()}) == len(every) == 15
    assert (every.sum(1) == 2).all()
    some = columns._groupings(30, 10)
    assert some.shape == (2000, 30)
    assert (some.sum(1) == 10).all()
    assert len({tuple(one) for one in some.tolist()}) > 1990
    np.testing.assert_array_equal(some, columns._groupings(30, 10))


def test_views_are_forms_of_names_and_roles() -> None:
    demos = team()
    assert columns.acting_agents(demos) == ("ann", "bob")
    seen = columns.views(demos, ["bob_at", "phase"], {"phase": "bob_phase"})
    assert seen.states == {
        "ann": {"{other}_at": "bob_at", "{other}_phase": "phase"},
        "bob": {"{own}_at": "bob_at", "{own}_phase": "phase"},
    }
    assert seen.actions["bob"] == {
        "action of {other}": "action_ann", "action of {own}": "action_bob",
    }  # fmt: skip
    common = columns.views(demos, ["bob_at"], {"bob_at": "common"})
    assert common.states == {"ann": {"bob_at": "bob_at"}, "bob": {"bob_at": "bob_at"}}
    # A member's name alone is put before the column's.
    named = columns.views(demos, ["phase"], {"phase": "ann"})
    assert named.states["ann"] == {"{own}_phase": "phase"}
    assert [search.rank(form) for form in ("{own}_at", "phase", "{other}_at", "{own}_{other}")] == [
        0, 1, 2, 0,
    ]  # fmt: skip


# ---------------------------------------------------------------------- what is fitted


def scored(parents: str, score: float = 0.0, contexts: int = 1) -> Scored:
    return Scored(tuple(parents), score, Prior("flat", 1.0), None, contexts)


def test_clearly_less_is_four_hundredths_and_a_standard_error() -> None:
    first = Option(scored("a"), np.array([0.5, 0.5]))
    for less, taken in ((0.04, 0), (0.041, 1)):
        other = Option(scored("b"), np.array([0.5, 0.5]) - less)
        assert preferring.preferred([first, other], 4.0) == taken
    # Differences 0 and 0.2: mean 0.1, standard error 0.1.
    for errors, taken in (([0.5, 0.3], 0), ([0.49, 0.3], 1)):
        assert preferring.preferred([first, Option(scored("b"), np.array(errors))], 4.0) == taken
    # One unit has no standard error.
    alone = [Option(scored(name), np.array([error])) for name, error in (("a", 0.9), ("b", 0.1))]
    assert preferring.preferred(alone, 4.0) == 0


@pytest.mark.parametrize(("units", "most"), [(9, 4.0), (10, 1.5)])
def test_what_a_parent_may_bring_that_is_dropped(units: int, most: float) -> None:
    """Two parents may bring twice as much as one."""
    errors = np.full(units, 0.3)
    for dropped, fewer in ((1, "ab"), (2, "a")):
        for more, taken in ((0.0, 1), (0.01, 0)):
            score = -(3.0 * most * dropped + more)
            options = [Option(scored("abc"), errors), Option(scored(fewer, score), errors)]
            assert preferring.preferred(options, 3.0) == taken


def found_of(pool: Pool, best: str | tuple[str, ...]) -> Found:
    scores = Search(pool)
    path = [search.Tried(scores.score(()), "none", 0.0)]
    beside = [scores.score(one) for one in (("phase",), ("{other}_at",))]
    return Found(pool, scores.score(tuple(best)), {}, tuple(path), tuple(beside), 1.5)


def test_policies_to_fit_are_near_in_held_out_labels_or_explain_actions() -> None:
    pool, of = pool_of("policy"), held_out.stretches(team(), ("ann", "bob"))
    assert of is not None
    transition = Scored((), 0.0, Prior("sticky", 0.5, 1.0), None, 1)
    move = held_out.moves(pool_of("transition"), transition, of)
    found = found_of(pool, ("phase", "{other}_at"))
    refined = held_out.refine(found, move, of)
    others = preferring.other_policies(found, refined, 1)
    known, now = refined.scores.known, refined.best.parents
    parents = [one.parents for one in others]
    assert now not in parents
    assert len(set(parents)) == len(parents)
    assert all(one.score == known[one.parents][0] for one in others)

    def objective(one: tuple[str, ...]) -> float:
        return known[one][0] - 1.5 * len(one)

    near = parents[: len(parents) - 3]
    assert [objective(one) for one in near] == sorted(map(objective, near), reverse=True)
    assert len(preferring.other_policies(found, refined, 4)) < len(others)
    # What the search ended with is as good as its neighbours, less what each parent has to bring.
    for name in pool.columns:
        neighbour = (
            tuple(other for other in now if other != name)
            if name in now
            else tuple(sorted((*now, name)))
        )
        assert objective(neighbour) <= objective(now) + 1e-6
    assert refined.objective == pytest.approx(objective(now))
    for name, nats in refined.brought.items():
        without = tuple(other for other in now if other != name)
        assert nats == pytest.approx(known[now][0] - known[without][0])
    assert set(refined.brought) == set(now)
    assert len(refined.others) == 5
    ranked = [objective(names) for _, names, _ in refined.others]
    assert ranked == sorted(ranked, reverse=True)
    for value, names, prior in refined.others:
        assert (value, prior) == known[names]
    given = held_out.refined_to(("phase",), found, refined.scores)
    assert (given.best.parents, set(given.brought)) == (("phase",), {"phase"})
    assert given.best.prior == known["phase",][1]
    assert given.log_conditional == known["phase",][0]


def test_transitions_to_fit_are_neighbours_and_those_on_the_way() -> None:
    pool = pool_of("transition")
    scores = Search(pool)
    path = [
        search.Tried(scores.score(names), what, 0.0)
        for names, what in (
            ((), "none"), (("{own}_at",), "+"), (("phase", "{own}_at"), "+"), (("phase",), "-"),
        )
    ]  # fmt: skip
    beside = scores.score(("action of {other}",))
    found = Found(pool, scores.score(("phase",)), {}, tuple(path), (beside,), 1.5)
    others = [one.parents for one in preferring.other_transitions(found, 1)]
    assert others[0] == ("action of {other}",)
    assert set(others) == {("action of {other}",), ("phase", "{own}_at"), ("{own}_at",), ()}
    few = [one.parents for one in preferring.other_transitions(found, 2)]
    assert few[0] == ("action of {other}",)
    assert preferring._fewer(("a", "b", "c")) == [("b", "c"), ("a", "c"), ("a", "b")]


# ---------------------------------------------------------------------- the first latents


def initial_of(first: list[list[int]], transitions: dict[str, Any]) -> Any:
    """The initial tables where these latents are labelled at the beginnings of episodes."""
    labels = np.array(first)
    demos = Demonstrations(
        {"x": np.zeros(len(labels), int)}, np.zeros((len(labels), 2), int), labels,
        np.arange(len(labels)), agents=("ann", "bob"), num_actions=2, num_latents=[3, 3],
    )  # fmt: skip
    return suggest._initial(demos, transitions, {})


def test_first_latents_are_learned_where_labels_speak_for_it() -> None:
    own = {agent: btil.DirichletCPT(1.0) for agent in ("ann", "bob")}
    shared = dict.fromkeys(("ann", "bob"), btil.Shared(btil.DirichletCPT(1.0)))
    often, evenly = [0, 0, 0, 0, 0, 1], [0, 1, 2, 0, 1, 2]
    model = initial_of([[a, b] for a, b in zip(often, evenly, strict=True)], own)
    assert model["bob"] == btil.UniformCPT()

    def evidence(u: float, counts: list[int]) -> float:
        each = stats.dirichlet_multinomial([u] * 3, sum(counts)).logpmf(counts)
        ways = gammaln(sum(counts) + 1) - gammaln(np.add(counts, 1)).sum()
        return float(each - ways)

    best = max((0.3, 1.0, 3.0), key=lambda u: evidence(u, [5, 1, 0]))
    assert evidence(best, [5, 1, 0]) > -6 * np.log(3) + 1
    assert evidence(best, [2, 2, 2]) < -6 * np.log(3) + 1
    assert model["ann"] == btil.DirichletCPT(best)
    # Of members who share a table all labels are counted; those that are not known are not.
    together = initial_of([[0, -1]] * 2 + [[-1, 0]] * 2 + [[-1, -1]], shared)
    best = max((0.3, 1.0, 3.0), key=lambda u: evidence(u, [4, 0, 0]))
    assert evidence(best, [4, 0, 0]) > -4 * np.log(3) + 1
    assert evidence(best, [2, 0, 0]) < -2 * np.log(3) + 1
    assert together == btil.Shared(btil.DirichletCPT(best))
    apart = initial_of([[0, -1]] * 2 + [[-1, 0]] * 2, own)
    assert apart == {agent: btil.UniformCPT() for agent in ("ann", "bob")}


# ---------------------------------------------------------------------- what is told


def table_of(agents: tuple[str, ...] = ("ann", "bob"), refined: bool = True, **more: Any) -> Table:
    """A policy of some agents, chosen by hand: they read where each is, and the phase."""
    pool = pool_of("policy", agents)
    scores = Search(pool)
    best = scores.score(("phase", "{own}_at"))
    beside = [scores.score(one) for one in (("phase",), ("{other}_at",), (), ("{own}_at",))]
    path = (
        search.Tried(scores.score(()), "none", 0.0),
        search.Tried(best, "+ phase + {own}_at", best.score - scores.score(()).score),
    )
    found = Found(pool, best, {"phase": 1.25, "{own}_at": 3.5}, path, tuple(beside), 1.5)
    told = None
    if refined:
        prior = Prior("flat", 6.0, 0.0, (1 / 3,) * 3)
        others = ((-4.0, ("phase",), prior), (-7.5, ("{other}_at",), prior))
        told = held_out.Refined(
            best._replace(prior=prior), -5.0, -8.0, others, {"phase": 0.5, "{own}_at": 0.25}, None
        )  # type: ignore[arg-type]
    return Table("policy", agents, found, told, contexts=9, steps=20, **more)


def test_a_table_is_told_by_what_it_was_chosen_by() -> None:
    by_evidence, by_labels = table_of(refined=False), table_of()
    assert by_evidence.title == "policy of ann and bob"
    assert by_evidence.labelled == 13
    assert by_evidence.gains() == [("own_at", 3.5), ("phase", 1.25)]
    assert by_labels.gains() == [("phase", 0.5), ("own_at", 0.25)]
    assert (by_evidence.of_what, by_labels.of_what) == ("", " of held-out labels")
    best, others = by_evidence.best, by_evidence.found.runners_up
    assert best.prior != by_labels.best.prior
    nats = [best.score - one.score for one in others]
    words = [f"{abs(n):.1f} nats {'more, too few for its size' if n < 0 else 'less'}" for n in nats]
    assert by_evidence.next_best() == [
        ("phase", words[0]), ("other_at", words[1]), ("nothing", words[2]),
    ]  # fmt: skip
    assert by_labels.next_best() == [
        ("phase", "1.0 nats more, too few for its size"), ("other_at", "2.5 nats less"),
    ]  # fmt: skip
    sizes, prior = by_labels.about_parts()
    contexts = best.contexts
    assert sizes == (
        f"9 contexts in 20 steps; labels visit {contexts} of them, {13 / contexts:.1f} labelled "
        "steps each"
    )
    assert prior == "concentration 6 a row"
    fitted = (Option(best, np.array([0.25, 0.3])), Option(others[0], np.array([0.5, 0.5])))
    told = table_of(fitted=fitted)
    assert told.about_parts()[2] == (
        "compared with 1 other by fits that learn from unlabelled steps too: mean decoding error "
        "0.275 where labels are held out"
    )
    assert told.next_best()[0] == ("phase", "1.0 nats more, decoding error 0.500")
    assert len(table_of(fitted=fitted[:1]).about_parts()) == 2
    assert told.about().startswith("Depends on phase, own_at. 9 contexts in 20 steps;")
    assert told.about().endswith("where labels are held out.")


def test_parents_are_called_by_columns_of_one_and_by_forms_of_several() -> None:
    alone, both = table_of(("bob",)), table_of()
    assert alone.parents_text(("phase", "{own}_at", "{other}_at")) == "phase, bob_at, ann_at"
    assert both.parents_text(("phase", "{own}_at", "{other}_at")) == "phase, own_at, other_at"
    assert both.parents_text(()) == "nothing"
    assert both.explanations() == []  # columns are called so
    pool = pool_of("transition")
    moving = both._replace(role="transition", found=both.found._replace(pool=pool), refined=None)
    names = pool.names
    for form, told in (
        ("next {own}_at", "next_own_at"), ("action of {other}", "other_action"),
        ("action of {own}", "own_action"), ("next phase", "next_phase"),
    ):  # fmt: skip
        assert moving.name(form, names) == told
    alone = moving._replace(agents=("bob",))
    assert alone.name("next {own}_at", names) == "next_bob_at"
    assert alone.name("action of {other}", names) == "action_ann"
    renamed = {form: dict(by) for form, by in both.found.pool.names.items()}
    renamed["{own}_at"] = {"ann": "x1", "bob": "x2"}
    pool = both.found.pool._replace(names=renamed)
    told = both._replace(found=both.found._replace(pool=pool))
    assert told.explanations() == ["own_at is x1 of ann and x2 of bob"]


def suggestion(*tables: Table, **changes: Any) -> Suggestion:
    errors = {"found": 0.125, "default": 0.25, "majority": 0.5}
    given: dict[str, Any] = {
        "model": btil.TeamModel(),
        "tables": tables,
        "errors": {"ann": errors},
        "refused": {"note": "it is to be ignored"},
        "unread": ("heat",),
        "sharing": {"policy": "there is one agent"},
        "labelled": {"ann": 7, "bob": 6},
        "warnings": ("labels are few",),
    }
    return Suggestion(**(given | changes))


def test_a_suggestion_tells_all_of_it_in_words() -> None:
    emissions = {
        "ann": btil.LinearNormalEmission(("ann_v", "ann_w"), ("heat",)),
        "bob": btil.NormalEmission(("bob_v",)),
    }
    table = table_of(refined=False)
    found = suggestion(table, model=btil.TeamModel(emissions=emissions))
    lines = found.words().splitlines()
    assert lines[:3] == [
        "policy of ann and bob: phase, own_at",
        "    own_at brings 3.5 nats",
        "    phase brings 1.2 nats",
    ]
    assert lines[3:5] == [f"    {part}" for part in table.about_parts()]
    assert lines[5:8] == [f"    next best: {n} ({text})" for n, text in table.next_best()]
    assert lines[8:] == [
        "decoding error of ann on labelled episodes held out: 0.125 (default model 0.250, majority "
        "0.500)",
        "columns of ann: ann_v and ann_w, by heat",
        "columns of bob: bob_v, by its intent alone",
        "measured columns that nothing reads: heat; those of a member have its name in theirs; "
        "`btil.bin` makes one a state variable",
        "sharing of the policy: there is one agent",
        "refused note: it is to be ignored",
    ]
    assert str(found) == f"{found.words()}\nwarning: labels are few"
    assert found.brief() == "found      policy of ann and bob: phase, own_at"
    scope: dict[str, Any] = {}
    exec(found.python, scope)
    assert scope["model"] == found.model
    page = str(found.html())
    for part in ("0.125", "0.250", "0.500", "3.5", "1.2", "labels are few"):
        assert part in page
    assert "found by the labels" in page
    assert "There were no labels" in str(suggestion().html())


def test_what_was_tried_is_a_table() -> None:
    option = Option(Search(pool_of("policy")).score(("{other}_at", "phase")), np.array([0.5]))
    chosen = Option(table_of().best, np.array([0.25]))
    table = suggestion(table_of(fitted=(chosen, option))).table
    assert (table.role == "policy").all()
    assert (table.agents == "ann, bob").all()
    by_evidence, by_labels = table[table.by == "evidence"], table[table.by == "held-out labels"]
    assert by_evidence.step.tolist() == ["none", "+ phase + {own}_at", *["beside"] * 4]
    assert by_evidence.parents.tolist() == [
        "nothing", "phase, own_at", "phase", "other_at", "nothing", "own_at",
    ]  # fmt: skip
    assert by_labels.step.tolist() == ["end", "beside", "beside", "fitted"]
    assert by_labels.parents.tolist() == ["phase, own_at", "phase", "other_at", "phase, other_at"]
    assert by_labels.nats.tolist()[:3] == [-5.0, -4.0, -7.5]
    np.testing.assert_array_equal(by_labels.error, [0.25, np.nan, np.nan, 0.5])
    assert by_evidence.error.isna().all()
    assert by_labels.chosen.tolist() == [True, False, False, False]
    assert not by_evidence.chosen.any()
    alone = suggestion(table_of(refined=False, fitted=(chosen,))).table
    assert alone.chosen.tolist() == [False, True, False, False, False, False]
    np.testing.assert_array_equal(alone.error[:2], [np.nan, 0.25])


# ---------------------------------------------------------------------- the whole from its parts


def choice_of(role: str, together: bool) -> suggest.Choice:
    """Both members' tables, which read the phase or the next one."""
    groups = [("ann", "bob")] if together else [("ann",), ("bob",)]
    parents = ("phase",) if role == "policy" else ("next phase",)
    found = {
        agents: Found(
            pool_of(role, agents),
            Scored(parents, 0.0, Prior("sticky", 0.5, 1.0 + len(agents)), None, 2),
            {}, (), (), 1.5,
        )
        for agents in groups
    }  # fmt: skip
    family: dict[str, Any] = {}
    for one in found.values():
        family |= suggest._families(one.pool, one.best)
    return suggest.Choice(found, family, "", {})


@pytest.mark.parametrize("together", [True, False])
def test_moves_of_a_team_are_those_of_whoever_has_the_table(together: bool) -> None:
    choice, of = choice_of("transition", together), held_out.stretches(team(), ("ann", "bob"))
    assert of is not None
    found = suggest.team_moves(team(), choice.found, of, ("ann", "bob"))
    for agents, one in choice.found.items():
        own = held_out.stretches(team(), agents)
        assert own is not None
        expected = held_out.moves(one.pool, one.best, own)
        for position, agent in enumerate(("ann", "bob")):
            if agent in agents:
                mine = expected[:, own.agent == position]
                np.testing.assert_array_equal(found[: len(mine), of.agent == position], mine)
    alone = held_out.stretches(team(), ("bob",))
    assert alone is not None
    own = suggest.team_moves(team(), choice.found, alone, ("bob",))
    np.testing.assert_array_equal(own, found[: len(own), of.agent == 1])


def test_errors_are_beside_those_of_the_default_and_of_the_majority() -> None:
    demos = team()
    seen = columns.views(demos, list(demos.state_variables), {})
    transition = choice_of("transition", True)
    policy = choice_of("policy", True)
    of = held_out.stretches(demos, ("ann", "bob"))
    assert of is not None
    move = suggest.team_moves(demos, transition.found, of, ("ann", "bob"))
    found = found_of(pool_of("policy"), ("phase",))
    refined = held_out.refined_to(("phase",), found, held_out.HeldOut(found.pool, move, of))
    policy = policy._replace(found={("ann", "bob"): found}, refined={("ann", "bob"): refined})
    choices = {"policy": policy, "transition": transition}
    errors = suggest._errors(demos, seen, choices, {})
    emission = held_out.emissions(found.pool, ("phase",), [refined.best.prior], of)[0]
    expected = held_out.decoding_errors(emission, move, of)
    for position, agent in enumerate(("ann", "bob")):
        assert errors[agent]["found"] == expected[position]
        own = held_out.stretches(demos, (agent,))
        assert own is not None
        policy_pool, moves_pool = (pool_of(role, (agent,)) for role in ("policy", "transition"))
        # The default: policies read the state, transitions state and actions; as `TeamModel()`.
        counts = held_out.counts_of_others(
            policy_pool, list(policy_pool.columns), own.fold_of_step, own.num_folds
        )
        rows = (counts + 1.2) / (counts + 1.2).sum(-1, keepdims=True)
        acted = np.take_along_axis(rows, policy_pool.reads.value[:, None, None], 2)[..., 0]
        emission = np.where((own.step >= 0)[..., None], acted[own.step], 1.0)
        now = [name for name in moves_pool.columns if not name.startswith("next ")]
        counts = held_out.counts_of_others(moves_pool, now, own.fold_of_pair, own.num_folds) + 1.01
        moved = (counts / counts.sum(-1, keepdims=True))[own.pair]
        moved = np.where((own.pair >= 0)[..., None, None], moved, np.eye(2))
        (default,) = held_out.decoding_errors(emission, moved, own).values()
        assert errors[agent]["default"] == default
        (majority,) = held_out.majority_errors(policy_pool, own).values()
        assert errors[agent]["majority"] == majority
    nothing = {"policy": policy._replace(found={}), "transition": transition}
    assert suggest._errors(demos, seen, nothing, {}) == {}


def test_of_who_has_labels_in_one_episode_no_errors_are_told() -> None:
    """Though a table shared with another can be tested on them."""
    generator = np.random.default_rng(0)
    x = generator.integers(3, size=(60, 2))
    latents = np.repeat(generator.integers(2, size=(6, 2)), 10, axis=0)
    labels = latents.copy()
    labels[10:, 1] = -1
    demos = Demonstrations(
        {"ann_x": x[:, 0], "bob_x": x[:, 1]}, (x + latents) % 3, labels,
        np.repeat(np.arange(6), 10), agents=("ann", "bob"), num_latents=2,
    )  # fmt: skip
    found = btil.suggest_model(demos, refit=False, progress=False)
    assert isinstance(found.model.policy, btil.Shared)
    assert set(found.errors) == {"ann"}
    assert set(found.errors["ann"]) == {"found", "default", "majority"}
    assert "decoding error of ann on labelled episodes held out" in str(found)
    assert found.html()
    # Here each has a transition: bob's is held out as a whole, so that its prior alone speaks.
    transitions = {one.agents: one.found for one in found.tables if one.role == "transition"}
    of = held_out.stretches(demos, ("ann", "bob"))
    assert of is not None
    move = suggest.team_moves(demos, transitions, of, ("ann", "bob"))
    prior = transitions["bob",].best.prior
    rows = prior.strength + prior.stay * np.eye(2)
    rows /= rows.sum(-1, keepdims=True)
    (bob,) = np.flatnonzero(of.agent == 1)
    assert transitions["bob",].best.kept is None
    np.testing.assert_allclose(move[1:10, bob], np.broadcast_to(rows, (9, 2, 2)))


def test_what_speaks_against_a_suggestion() -> None:
    def told(demos: Demonstrations, usable: list[str] | None = None) -> list[str]:
        labelled = {a: int((demos.latents[:, k] >= 0).sum()) for k, a in enumerate(demos.agents)}
        usable = ["phase"] if usable is None else usable
        return suggest._warnings(demos, {}, usable, {}, labelled, btil.TeamModel())

    demos = team()
    assert told(demos) == []
    assert told(demos, []) == ["no column can be used: tables depend on nothing of the state"]
    assert told(demos.without_labels())[0].startswith("no labels: parents were chosen by actions")
    (one,) = told(demos.without_labels([2]))
    assert one.startswith("labels in one episode only: nothing is left to test the model on")
    latents = np.array(demos.latents)
    latents[3:, 1] = -1
    assert told(demos.replace(latents=latents)) == []  # three labels are enough
    latents[2, 1] = -1
    few, missing = told(demos.replace(latents=latents))
    assert few == "bob: too few labels to choose tables by"
    assert missing == "bob: no step is labelled 0"
    latents[:, 1] = -1
    assert told(demos.replace(latents=latents)) == [few]


@pytest.mark.parametrize(
    ("errors", "taken"),
    [
        # The policy that was found is taken where another errs not a tenth less.
        ([0.30, 0.271, 0.5, 0.9], (0, 0)),
        ([0.30, 0.269, 0.5, 0.9], (1, 0)),
        ([0.30, 0.5, 0.269, 0.9], (0, 1)),
        ([0.30, 0.271, 0.5, 0.30], (0, 0)),
        ([0.30, 0.271, 0.5, 0.29], (0, None)),
        ([0.30, 0.2, 0.5, 0.2], (1, 0)),
    ],
)
def test_emissions_and_policies_are_taken_by_their_errors(
    errors: list[float], taken: tuple[int, int | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(0).normal(size=10)
    demos = team().replace(continuous={"ann_v": values})
    emitted: list[Any] = [
        {"ann": btil.NormalEmission(("ann_v",))},
        {"ann": btil.LinearNormalEmission(("ann_v",), ("previous_ann_v",))},
    ]
    asked = []

    def by_mean_field(*given: Any) -> np.ndarray:
        asked.append(given)
        # Of bob, who has no labels, nothing is known.
        return np.stack([np.array(errors), np.full(4, np.nan)], axis=1)

    monkeypatch.setattr(suggest, "by_mean_field", by_mean_field)
    monkeypatch.setattr(suggest, "_fuller", lambda policy: [fuller])
    policy, transition = choice_of("policy", True), choice_of("transition", True)
    fuller = policy._replace(sharing="fuller")

    def model_of(policy: Any, transition: Any, emissions: Any = None) -> Any:
        return policy.sharing, emissions

    chosen, explained = suggest._explained(demos, policy, transition, emitted, model_of, 3, False)
    assert chosen is (policy, fuller)[taken[0]]
    assert explained.emission == ({} if taken[1] is None else emitted[taken[1]])
    ((data, models, seed, progress),) = asked
    assert (data, seed, progress) == (demos, 3, False)
    assert models == [("", emitted[0]), ("fuller", emitted[0]), ("", emitted[1]), ("", {})]
    best = min(errors[3], 1) if taken[1] is None else errors[taken[0] + 2 * taken[1]]
    assert explained.errors["ann"] == best
    reason = "fits err less in labels held out without it, 0.290, than with it, 0.300"
    assert explained.left_out == ({"ann_v": reason} if taken[1] is None else {})
    assert explained.untested() == []
    untested = suggest._Explained(emitted[0]).untested()
    assert untested[0].startswith("whether ann_v help to tell mental states was not tested")
    assert suggest._Explained({}).untested() == []


def test_columns_that_nothing_explains_or_reads() -> None:
    demos = team().replace(continuous=dict.fromkeys(("a", "b", "c", "d"), np.arange(10.0)))
    emissions = {
        "ann": btil.LinearNormalEmission(("a",), ("b", "previous_c")),
        "bob": btil.NormalEmission(("a",)),
    }
    assert suggest._unread(demos, btil.TeamModel(emissions=emissions)) == ("d",)
    assert suggest._unread(demos, btil.TeamModel()) == ("a", "b", "c", "d")


# ---------------------------------------------------------------------- roles, and the action


def test_roles_are_common_ignored_an_agents_or_a_name_with_one_in_it() -> None:
    demos = team()
    assert columns.check_roles(None, demos) == {}
    roles = {"phase": "common", "ann_at": "ignore", "bob_at": "bob"}
    assert columns.check_roles(roles, demos) == roles
    assert columns.check_roles({"phase": "phase_of_ann"}, demos) == {"phase": "phase_of_ann"}
    for wrong, told in (
        ({"phase": "phase"}, r"phase is 'phase'; allowed are 'common', 'ignore', an agent \(ann, "),
        ({"phase": ""}, "phase is ''"),
        ({"sky": "common"}, "no state variable 'sky'; they are ann_at, bob_at, phase"),
        ({"phase": "ann_at", "ann_at": "common"}, "more than one column would be called ann_at"),
        (["phase"], "roles must be a mapping"),
    ):
        with pytest.raises(ValueError, match=told):
            columns.check_roles(wrong, demos)


@pytest.mark.parametrize(
    ("values", "actions", "tells"),
    [
        ([0, 1] * 10, [1, 0] * 10, True),  # two values are enough
        ([0, 1] * 10, [0] * 19 + [1], False),  # who hardly acts is told by anything
        ([0, 1] * 10, [0] * 10 + [1] * 10, False),
        ([*range(9), 9, 9, 10, 10], [0, 1] * 4 + [0] + [0, 0, 1, 1], False),  # most occur once
        ([*range(4), 9, 9, 10, 10], [0, 1] * 2 + [0, 0, 1, 1], True),  # half of them does not
        ([0] * 20, [0, 1] * 10, False),
        # But for a step of a thousand; of four hundred that leaves more than a fiftieth.
        ([0, 1] * 500, [0, 1] * 499 + [0, 0], True),
        ([0, 1] * 200, [0, 1] * 199 + [0, 0], False),
    ],
)
def test_what_is_the_action_by_another_name(
    values: list[int], actions: list[int], tells: bool
) -> None:
    demos = Demonstrations({"x": values}, {"ann": actions}, num_latents=2, num_actions=2)
    assert columns.tells_action(demos, "x", "ann") == tells


# ---------------------------------------------------------------------- what is looked at


def test_labels_beside_actions_that_nobody_saw_count_nothing() -> None:
    """Those of a member without actions count all."""
    demos = team()
    actions = demos.actions[:, 0].copy()
    actions[[0, 2, 9]] = -1  # labels at two of them
    of_bob = Demonstrations(
        demos.state_variables, {"ann": actions}, demos.latents,
        demos.episodes, agents=("ann", "bob"), num_actions={"ann": 3}, num_latents=2,
        missing="allow", continuous={"bob_v": np.random.default_rng(0).normal(size=10)},
    )  # fmt: skip
    found = btil.suggest_model(of_bob, refit=False, progress=False)
    assert found.labelled == {"ann": 5, "bob": 6}
    (policy,) = [one for one in found.tables if one.role == "policy"]
    assert (policy.agents, policy.labelled) == (("ann",), 5)
    assert found.model.policy["bob"] is None
    assert set(found.model.emissions) == {"bob"}
    for agents, columns_of in ((("ann", "bob"), {}), (("bob", "eve"), {"bob_v": [0.0] * 10})):
        silent = Demonstrations(
            demos.state_variables, {agents[0]: actions}, None, demos.episodes, agents=agents,
            num_actions=3, num_latents=2, missing="allow",
            continuous=columns_of or {"heat": np.arange(10.0)},
        )  # fmt: skip
        told = f"there are no actions of {agents[1]} and no continuous columns with its name"
        with pytest.raises(ValueError, match=told):
            btil.suggest_model(silent, refit=False, progress=False)
    with pytest.raises(ValueError, match="seed must be an integer in"):
        btil.suggest_model(demos, seed=2**32, progress=False)


def test_members_share_a_table_where_that_explains_more() -> None:
    """By the objectives of one search for both and of one for each."""
    demos = team()
    seen = columns.views(demos, list(demos.state_variables), {})
    labelled = {"ann": 7, "bob": 6}
    alike = demos.replace(latents=np.stack([np.arange(10) % 2] * 2, axis=1))
    chosen = suggest._choose(alike, seen, "transition", dict.fromkeys(labelled, 10), alike.agents)
    assert list(chosen.found) == [("ann", "bob")]
    pools = [search.make_pool(alike, seen, "transition", agents)
             for agents in (("ann", "bob"), ("ann",), ("bob",))]  # fmt: skip
    one, *each = [search.search(pool).objective for pool in pools]
    assert chosen.sharing == f"one table explains {one - sum(each):.1f} nats more"
    assert one > sum(each)
    assert chosen.other is None
    # Here each has a table, and it is known by how much the one for both is worse.
    apart = suggest._choose(demos, seen, "transition", labelled, demos.agents)
    assert list(apart.found) == [("ann",), ("bob",)]
    assert apart.other is not None
    assert list(apart.other.found) == [("ann", "bob")]
    objectives = [one.objective for one in apart.found.values()]
    together = apart.other.found["ann", "bob"].objective
    assert apart.margin == pytest.approx(sum(objectives) - together)
    assert apart.margin > 0
    assert apart.sharing == f"own tables explain {apart.margin:.1f} nats more"
    # With two labels nobody has a table of his own: the other's labels serve both.
    few = suggest._choose(demos, seen, "transition", {"ann": 7, "bob": 2}, demos.agents)
    assert list(few.found) == [("ann", "bob")]
    assert few.sharing == "bob has no labels to choose by"
    three = suggest._choose(demos, seen, "transition", {"ann": 7, "bob": 3}, demos.agents)
    assert three.sharing != few.sharing
    alone = suggest._choose(demos, seen, "transition", labelled, ("ann",))
    assert (list(alone.found), alone.sharing) == ([("ann",)], "there is one agent")
    none = suggest._choose(demos, seen, "transition", {"ann": 2, "bob": 2}, demos.agents)
    assert not none.found
    sticky = btil.StickyDirichletCPT(0.3, stay=10.0)
    assert none.family == {"ann": sticky, "bob": sticky}


def test_fuller_policies_read_what_explains_the_actions_too() -> None:
    pool, of = pool_of("policy"), held_out.stretches(team(), ("ann", "bob"))
    assert of is not None
    move = suggest.team_moves(team(), choice_of("transition", True).found, of, ("ann", "bob"))
    scores = held_out.HeldOut(pool, move, of)
    agents = ("ann", "bob")

    def fuller(explains: tuple[str, ...], tells: tuple[str, ...]) -> list[Any]:
        found = found_of(pool, explains)
        one = held_out.refined_to(tells, found, scores)
        family = suggest._families(pool, one.best)
        policy = suggest.Choice({agents: found}, family, "", {agents: one})
        for choice in suggest._fuller(policy):
            assert choice.family["ann"] == suggest._families(
                pool, choice.refined[agents].best
            )["ann"]  # fmt: skip
            assert choice.found == policy.found
        return [choice.refined[agents].best.parents for choice in suggest._fuller(policy)]

    both = ("phase", "{other}_at", "{own}_at")
    assert fuller(("phase", "{other}_at"), ("{own}_at",)) == [both, ("phase", "{other}_at")]
    assert fuller(("phase",), ("phase", "{own}_at")) == [("phase",)]
    assert fuller(("phase", "{own}_at"), ("phase",)) == [("phase", "{own}_at")] * 2
    assert fuller(("phase",), ("phase",)) == []


def test_another_table_of_some_agents_leaves_the_others_as_they_are() -> None:
    choice = choice_of("transition", False)
    table = Search(pool_of("transition", ("bob",))).score(("action of {other}",))
    other = suggest._with_table(choice, ("bob",), table)
    assert other.found["ann",] is choice.found["ann",]
    assert other.family["ann"] == choice.family["ann"]
    assert other.found["bob",].best == table
    assert other.family["bob"].parents == ("action_ann",)
    assert choice.found["bob",].best != table
    assert other.best(("bob",)) == table
