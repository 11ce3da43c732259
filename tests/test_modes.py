"""Groups of chains: those that overlap are one, however many probabilities there are."""

from dataclasses import replace

import numpy as np
import pytest
from teams import hmm_demos, hmm_model

from btil.analysis import modes as modes_module
from btil.analysis.modes import (
    Mode,
    find_modes,
    only_chains,
    only_draws,
    separation,
    told_modes,
    weigh_modes,
)
from btil.inference.result import (
    DirichletRows,
    DrawnChannel,
    DrawnRows,
    FitResult,
    MomentRows,
)
from btil.models.team import bind
from btil.posterior.posterior import TeamPosterior


def test_chains_of_one_mode_are_not_found_apart_in_many_dimensions():
    generator = np.random.default_rng(0)
    one, other = generator.normal(size=(2, 60, 4000))
    # The distance of the means alone would say so: it is a dozen standard deviations long.
    assert np.linalg.norm(one.mean(0) - other.mean(0)) > 10
    assert abs(separation(one, other)) < 1
    one[:, 7] += 20
    assert separation(one, other) > 3
    assert separation(one, other) == separation(other, one)


def test_distances_are_told_by_the_other_halves():
    """Along means of first halves 80 over 10, along those of second halves 80 over 8."""
    one = np.array([[0.0, 5.0], [2.0, 5.0], [4.0, 5.0], [2.0, 5.0]])
    other = np.array([[10.0, 5.0], [12.0, 5.0], [10.0, 5.0], [12.0, 5.0]])
    assert separation(one, other) == pytest.approx(8)
    # Of five draws the one in the middle is in neither half.
    middle = np.array([[900.0, 5.0]])
    one, other = (np.concatenate([own[:2], middle, own[2:]]) for own in (one, other))
    assert separation(one, other) == pytest.approx(8)


def test_heaps_have_a_valley_in_the_middle_of_the_way():
    generator = np.random.default_rng(0)
    low, high = generator.normal(0, 1, 300), generator.normal(12, 1, 100)
    level = modes_module._valley(generator.permutation([*low, *high]))
    assert level is not None
    assert low.max() < level < high.min()
    assert modes_module._valley(generator.normal(0, 1, 400)) is None
    assert modes_module._valley(generator.uniform(0, 1, 400)) is None
    # A heap has ten draws at least.
    assert modes_module._valley(np.array([*low[:10], *high[:10]])) is not None
    assert modes_module._valley(np.array([*low[:10], *high[:9]])) is None
    assert modes_module._valley(np.zeros(100)) is None


def test_chains_link_the_heaps_that_they_are_in():
    linked = modes_module._linked
    apart = np.repeat([[0], [1]], 100, axis=1)
    assert not linked(apart)
    # A draw or two on the other side link nothing, three do.
    for number, expected in ((2, False), (3, True)):
        some = apart.copy()
        some[0, :number] = 1
        assert linked(some) == expected
    through = np.repeat([[0] * 50 + [1] * 50, [2] * 50 + [3] * 50, [1] * 50 + [2] * 50], 2, axis=1)
    assert linked(through)
    assert not linked(through[:2])


def test_a_chain_that_moves_over_overlaps():
    generator = np.random.default_rng(1)
    one, other = generator.normal(size=(2, 60, 5))
    other[:, 0] += 20
    assert separation(one, other) > 10
    one[30:, 0] += 20
    assert separation(one, other) < 3
    assert separation(one, one) == 0


def test_chains_that_do_not_move_at_all_are_apart_or_the_same():
    still = np.zeros((10, 3))
    assert separation(still, still) == 0
    assert separation(still + 1, still) == np.inf


def chains(places, log_likelihoods, num_draws=40):
    """A posterior with a chain around each of some places, and with such log likelihoods."""
    generator = np.random.default_rng(2)
    bound = bind(hmm_model(), hmm_demos([0, 1, 1, 0, 1, 0]))
    rows = {}
    for site, table in bound.learned.items():
        drawn = DirichletRows(np.full(table.shape, 50.0)).sample(len(places) * num_draws, generator)
        rows[site] = drawn.reshape(len(places), num_draws, *table.shape)
    first = np.array(places)[:, None] + generator.normal(0, 0.01, (len(places), num_draws))
    rows["policy_agent_0"][:, :, 0, 0] = np.stack([first, 1 - first], -1)
    total = np.array(log_likelihoods)[:, None] + generator.normal(size=first.shape)
    result = FitResult(
        {site: DrawnRows(draws) for site, draws in rows.items()},
        converged=False,
        reason="made up",
        log_likelihood=total[..., None],
        sample_stats={"log_likelihood_total": total},
    )
    return TeamPosterior(bound, "gibbs", result, 0, np.dtype(float), 1.0)


VISITS = {
    "policy_agent_0": np.array([[3.0, 3.0]]),
    "transition_agent_0": np.array([[3.0, 2.0]]),
    "initial_agent_0": np.array([1.0]),
}


def test_groups_are_found_and_the_best_comes_first():
    modes = find_modes(chains([0.2, 0.8, 0.2, 0.8], [-10.0, -9.0, -10.0, -9.0]), VISITS)
    assert [mode.chains for mode in modes] == [(1, 3), (0, 2)]
    assert modes[0].log_likelihood == pytest.approx(-9, abs=0.5)
    assert 0.7 < modes[0].sd < 1.3
    assert isinstance(modes[0], Mode)


def test_overlap_passes_on():
    """The chains in between touch both ends."""
    modes = find_modes(chains([0.20, 0.225, 0.25, 0.275], [0.0] * 4), VISITS)
    assert [mode.chains for mode in modes] == [(0, 1, 2, 3)]


def test_log_likelihood_alone_tells_too():
    modes = find_modes(chains([0.5, 0.5], [0.0, 30.0]), VISITS)
    assert [mode.chains for mode in modes] == [(1,), (0,)]


def test_columns_alone_tell_too():
    """Chains that agree about tables and likelihoods, and not about what a column tells."""
    posterior, generator = chains([0.5, 0.5, 0.5], [0.0, 0.0, 0.0]), np.random.default_rng(3)
    coefficients = generator.normal(0, 0.1, (3, 40, 1, 2, 1, 1))
    variances = np.exp(generator.normal(0, 0.1, (3, 40, 1, 2, 1, 1)))

    def apart(coefficients, variances):
        channels = {"emission_agent_0": DrawnChannel(coefficients, variances)}
        result = posterior.result._replace(channels=channels)
        return [mode.chains for mode in find_modes(replace(posterior, result=result), VISITS)]

    assert apart(coefficients, variances) == [(0, 1, 2)]
    moved = np.array([0.0, 2.0, 0.0])[:, None, None, None, None, None]
    assert sorted(apart(coefficients + moved, variances)) == [(0, 2), (1,)]
    assert sorted(apart(coefficients, variances * np.exp(moved))) == [(0, 2), (1,)]


def test_rows_count_by_how_often_they_are_read_also_where_few_are_kept():
    """Draws of rows of two contexts; of the second latent and context nothing is read."""
    posterior = chains([0.5, 0.5], [0.0, 0.0], num_draws=3)
    draws = np.arange(2 * 3 * 2 * 2 * 2.0).reshape(2, 3, 2, 2, 2)
    visits = {"policy_agent_0": np.array([[9.0, 1.0], [4.0, 0.9]])}
    whole = {"policy_agent_0": DrawnRows(draws)}
    kept = {"policy_agent_0": MomentRows(*[np.zeros(0)] * 3, np.array([1]), draws[:, :, [1]])}

    def told(rows):
        result = posterior.result._replace(rows=rows)
        return modes_module._vectors(replace(posterior, result=result), visits)

    first = [3 * draws[:, :, 0, 0], draws[:, :, 0, 1], 2 * draws[:, :, 1, 0]]
    np.testing.assert_allclose(told(whole), np.concatenate(first, -1))
    np.testing.assert_allclose(told(kept), first[2])


def test_rows_that_nothing_reads_do_not_count():
    unread = VISITS | {"policy_agent_0": np.array([[0.5, 3.0]])}
    modes = find_modes(chains([0.2, 0.8], [0.0, 0.0]), unread)
    assert [mode.chains for mode in modes] == [(0, 1)]


def test_short_chains_are_one_group_and_other_methods_have_none():
    assert len(find_modes(chains([0.2, 0.8], [0.0, 0.0], num_draws=6), VISITS)) == 1
    posterior = chains([0.2], [0.0])
    plain = TeamPosterior(
        posterior.bound,
        "mfvi",
        FitResult({"policy_agent_0": DirichletRows(np.ones((1, 2, 2)))}, True, "made up"),
        0,
        np.dtype(float),
        1.0,
    )
    assert find_modes(plain, VISITS) == []
    assert only_chains(plain, [0]) is plain


def test_only_some_chains_are_left():
    posterior = chains([0.2, 0.8, 0.5], [0.0, 1.0, 2.0])
    found = only_chains(posterior, (2, 0))
    for site, rows in found.result.rows.items():
        np.testing.assert_array_equal(rows.draws, posterior.result.rows[site].draws[[2, 0]])
    assert found.result.log_likelihood.shape == (2, 40, 1)
    assert found.draws_info is not None


def going_over(inside, apart=0.6):
    """Chains that are at one place at some draws, at another, so far from it, at the others."""
    generator = np.random.default_rng(3)
    posterior = chains([0.5] * len(inside), [0.0] * len(inside), inside.shape[1])
    first = generator.normal(0.5 - apart / 2, 0.05, inside.shape) + apart * inside
    rows = posterior.result.rows["policy_agent_0"].draws
    rows[:, :, 0, 0] = np.stack([first, 1 - first], -1)
    return posterior


def memory(stay, share, shape, seed):
    """Two states of a Markov chain: how long the second lasts on average, and its share."""
    generator = np.random.default_rng(seed)
    inside = np.zeros(shape, bool)
    leave, enter = 1 / stay, share / (1 - share) / stay
    inside[:, 0] = generator.random(shape[0]) < share
    for t in range(1, shape[1]):
        flip = generator.random(shape[0]) < np.where(inside[:, t - 1], leave, enter)
        inside[:, t] = inside[:, t - 1] ^ flip
    return inside


@pytest.mark.parametrize("stay", [3, 40])
def test_weights_of_modes_have_the_errors_that_they_say(stay):
    scores = []
    for seed in range(20):
        inside = memory(stay, 0.2, (4, 600), seed)
        large, small = weigh_modes(going_over(inside), VISITS)
        assert large.weight + small.weight == pytest.approx(1)
        assert (large.draws == ~small.draws).all()
        assert (small.draws == inside).mean() > 0.9
        assert small.weight_se == pytest.approx(large.weight_se)
        scores.append((small.weight - 0.2) / small.weight_se)
    assert 0.6 < np.sqrt(np.mean(np.square(scores))) < 1.4
    assert np.abs(scores).max() < 4


def test_how_often_chains_went_over_is_told():
    inside = np.zeros((4, 200), bool)
    inside[1, 100:] = True
    modes = weigh_modes(going_over(inside), VISITS)
    assert [mode.crossings for mode in modes] == [1, 1]
    assert modes[1].weight == pytest.approx(0.125)
    assert 0.05 < modes[1].weight_se < 0.3
    assert told_modes(modes).endswith("a rough error as chains went over once only")


def test_chains_that_never_go_over_tell_no_weights():
    modes = weigh_modes(chains([0.2, 0.8, 0.2, 0.8, 0.2], [-10.0, -9.0, -10.0, -9.0, -8.0]), VISITS)
    assert [mode.weight for mode in modes] == pytest.approx([0.6, 0.4])
    assert np.isnan([mode.weight_se for mode in modes]).all()
    assert [mode.crossings for mode in modes] == [0, 0]
    assert modes[1].log_likelihood == pytest.approx(-9, abs=0.5)
    assert "not known" in told_modes(modes)


def test_three_modes():
    place = np.repeat([[0, 1, 2, 1, 0, 2, 1, 0, 2, 0]], 4, 0).repeat(60, 1)
    posterior = going_over(place / 2, apart=0.8)
    modes = weigh_modes(posterior, VISITS)
    assert [mode.weight for mode in modes] == pytest.approx([0.4, 0.3, 0.3], abs=0.01)
    for mode in modes:
        assert len(set(place[mode.draws].tolist())) <= 2
        assert (place[mode.draws] == np.bincount(place[mode.draws]).argmax()).mean() > 0.97


@pytest.mark.parametrize("resembling", [0.0, 0.9])
def test_draws_of_one_heap_are_one_mode(resembling):
    """Also where there are more probabilities than draws, and draws resemble those before them."""
    generator = np.random.default_rng(5)
    draws = generator.normal(size=(4, 200, 1000))
    for t in range(1, 200):
        draws[:, t] = resembling * draws[:, t - 1] + np.sqrt(1 - resembling**2) * draws[:, t]
    assert not modes_module._heap_of_each_draw(draws).any()
    # Rows that jump from draw to draw are no modes: nothing stays.
    rows = generator.dirichlet(np.full(4, 0.05), (4, 200, 30)).reshape(4, 200, -1)
    assert not modes_module._heap_of_each_draw(rows).any()


def test_only_some_draws_are_left():
    posterior = chains([0.2, 0.8], [0.0, 1.0])
    chosen = np.zeros((2, 40), bool)
    chosen[1, 3:7] = True
    found = only_draws(posterior, chosen)
    for site, rows in found.result.rows.items():
        np.testing.assert_array_equal(rows.draws, posterior.result.rows[site].draws[1:, 3:7])
    assert found.result.log_likelihood.shape == (1, 4, 1)
