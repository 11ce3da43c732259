"""Groups of chains: those that overlap are one, however many probabilities there are."""

import numpy as np
import pytest
from teams import hmm_demos, hmm_model

from btil.analysis.modes import Mode, find_modes, only_chains, separation
from btil.inference.result import DirichletRows, DrawnRows, FitResult
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
