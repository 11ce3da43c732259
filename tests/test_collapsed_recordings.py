"""Collapsed moves of the Gibbs sampler on gaps and columns: draws of the exact posterior."""

import pytest
from test_emission_methods import _reading_actions, _with_gaps
from test_emissions import _assert_same_posterior, _chains, _demos

import btil
from btil.inference import path_moves, starting


@pytest.mark.covers("gaps beside columns", "gibbs")
def test_collapsed_moves_leave_the_exact_posterior(monkeypatch):
    """Unseen actions that the own transition reads, weights, a member away, columns, a blank."""
    monkeypatch.setattr(starting, "SMALL_CONCENTRATION", 10.0)
    for name, value in {"WINDOW": 2, "LONGEST_RUN": 4, "RUNS": 2, "SWAPS": 2}.items():
        monkeypatch.setattr(path_moves, name, value)  # all there is to do in tiny teams
    labelled = [[1, 0], [0, 1], [-1, -1], [1, 2], [0, -1]]
    demos = _with_gaps(
        _demos(lengths=(3, 2), blank=[("ann_y", 4)]).replace(latents=labelled), away=3
    )
    model = _reading_actions().resolved(_demos())
    exact = btil.fit(model, demos, "exact", progress=False)
    chains = btil.fit(
        model, demos, "gibbs", progress=False, num_chains=4, num_warmup=50, num_samples=1500
    )
    assert chains.result.sample_stats["moves_runs"].sum() > 0
    _assert_same_posterior(_chains(chains), exact.sample(40_000, seed=1))
