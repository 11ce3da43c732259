"""R-hat and effective sample sizes are ArviZ's, of every cell; the verdict follows from them."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from btil.inference.chains import ess, judge_chains, rhat, summarize_chains
from btil.inference.result import MomentRows


def awkward(num_chains, num_draws, seed=0):
    """Cells of every kind: plain, tied, of two values, apart, trending, of different spread."""
    generator = np.random.default_rng(seed)
    draws = generator.normal(size=(num_chains, num_draws, 2, 4))
    draws[..., 0, 1] = draws[..., 0, 1].round()
    draws[..., 0, 2] = draws[..., 0, 2] > 0.3
    draws[..., 0, 3] = np.maximum(draws[..., 0, 3], 0)
    draws[..., 1, 0] += np.arange(num_chains)[:, None]
    draws[..., 1, 1] = draws[..., 1, 1].cumsum(1)
    draws[..., 1, 2] *= 1.0 + np.arange(num_chains)[:, None]
    draws[..., 1, 3] = 0.25
    return draws


@pytest.mark.filterwarnings("ignore:invalid value encountered in scalar divide:RuntimeWarning")
@pytest.mark.parametrize("num_draws", [4, 5, 7, 10, 11, 12, 50, 101])
@pytest.mark.parametrize("num_chains", [1, 2, 4])
def test_statistics_are_those_of_arviz(num_chains, num_draws):
    draws = awkward(num_chains, num_draws)
    varying = ~(draws == draws[:1, :1]).all((0, 1))
    assert not varying[1, 3]
    chosen = draws[:, :, varying]
    axes = {"chain_axis": 0, "draw_axis": 1}
    for found, expected in (
        (rhat(draws), array_stats.rhat(chosen, **axes)),
        (ess(draws), array_stats.ess(chosen, method="bulk", **axes)),
        (ess(draws, "tail"), array_stats.ess(chosen, method="tail", prob=(0.05, 0.95), **axes)),
    ):
        np.testing.assert_allclose(found[varying], expected, rtol=1e-9)
        assert np.isnan(found[~varying]).all()
    np.testing.assert_array_equal(rhat(draws.astype(np.float32)).shape, (2, 4))
    for found in (rhat(draws[:, :3]), ess(draws[:, :3]), ess(draws[:, :3], "tail")):
        assert np.isnan(found).all()


def test_chains_of_different_spread_are_found():
    """Plain split R-hat sees nothing in them."""
    draws = np.random.default_rng(1).normal(size=(4, 500)) * np.array([1, 1, 1, 3])[:, None]
    plain = array_stats.rhat(draws, chain_axis=0, draw_axis=1, method="split")
    assert plain < 1.01 < 1.05 < rhat(draws)
    assert not judge_chains({"policy": draws[..., None]}).converged


def test_more_cells_than_a_block_are_all_looked_at():
    draws = np.random.default_rng(2).normal(size=(2, 20, 300))
    draws[0, :, 299] += 9
    assert int(np.argmax(rhat(draws))) == 299
    assert rhat(draws)[17] == rhat(draws[:, :, 17])
    assert summarize_chains(draws[..., None]).rows_above == (rhat(draws) >= 1.05).sum()


def test_a_row_with_several_cells_above_is_one_row():
    draws = np.random.default_rng(4).normal(size=(4, 200, 2, 3, 2))
    draws[:, :, 0, 1] += np.arange(4)[:, None, None]
    draws[:, :, 1, 2, 1] += np.arange(4)[:, None]
    found = summarize_chains(draws)
    assert (found.rows, found.cells, found.rows_above) == (6, 12, 2)
    assert judge_chains({"transition": draws}).num_above == 3


def test_disagreeing_or_too_few_chains_have_not_converged():
    agree = np.random.default_rng(0).normal(size=(4, 200, 1))
    apart = agree + np.arange(4)[:, None, None]
    verdict = judge_chains({"policy": apart, "transition": agree})
    assert not verdict.converged
    assert verdict.max_rhat == rhat(apart)[0]
    assert f"largest R-hat {rhat(apart)[0]:.3f}, 1 of 2 cells at 1.05" in verdict.reason
    assert judge_chains({"policy": agree, "transition": agree}).converged
    one = judge_chains({"policy": agree[:1]})
    assert not one.converged
    assert np.isnan(one.max_rhat)
    assert one.reason == "one chain cannot show convergence: R-hat compares chains"
    assert not judge_chains({"policy": agree[:, :3]}).converged


def test_the_log_likelihood_counts_but_is_no_cell():
    agree = np.random.default_rng(0).normal(size=(4, 200, 3))
    apart = agree + np.arange(4)[:, None, None]
    fine = judge_chains({"policy": agree}, 2, agree)
    assert fine.converged
    assert (fine.num_cells, fine.num_above) == (3, 0)
    total = rhat(agree.sum(-1))
    assert fine.reason.endswith(
        f"; R-hat of the log likelihood {total:.3f}; 2 divergent transitions"
    )
    found = judge_chains({"policy": agree}, log_likelihood=apart)
    assert not found.converged
    assert (found.num_cells, found.num_above) == (3, 0)
    assert f"R-hat of the log likelihood {rhat(apart.sum(-1)):.3f}" in found.reason


def test_draws_that_are_no_numbers_agree_with_nothing():
    draws = np.random.default_rng(3).normal(size=(2, 40, 2, 2))
    draws[1, 7, 0, 1] = np.nan
    verdict = judge_chains({"policy": draws})
    assert (verdict.converged, verdict.num_above) == (False, 1)
    assert summarize_chains(draws).rows_above == 1
    means = draws.mean(1, keepdims=True).repeat(2, 1)
    moments = MomentRows(np.array([20, 20]), means, means**2, np.arange(0), draws[:, :, :0])
    assert not judge_chains({"policy": moments}).converged
