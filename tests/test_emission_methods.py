"""Continuous channels beside everything else that a posterior is asked for."""

import numpy as np
from test_emissions import _assert_same_posterior, _demos, _model

import btil
from btil.messages.layout import lay_out
from btil.models.emission import step_log_density
from btil.models.team import likelihood_name


def test_refined_draws_are_those_of_the_exact_posterior():
    demos, model = _demos(lengths=(3, 2)), _model(parents=())
    coarse = btil.fit(model, demos, progress=False, dtype="float64")
    refined = coarse.refined(2000, num_sweeps=60, seed=1, progress=False)
    exact = btil.fit(model, demos, "exact", progress=False)
    own, other = (one.sample(number, seed=2) for one, number in ((refined, 2000), (exact, 40_000)))
    assert set(own) == set(other)
    _assert_same_posterior(own, other)
    narrow = coarse.sample(2000)["transition_bob"].std(0) / other["transition_bob"].std(0)
    assert narrow.min() < 0.95  # what was to be mended
    # What it says of the likelihood is that of the draw.
    tables = {name: table.prior_mean() for name, table in refined.bound.tables.items()}
    tables |= {name: rows.draws[0, 5] for name, rows in refined.result.rows.items()}
    for agent, channel in refined.bound.channels.items():
        drawn = refined.result.channels[channel.name]
        tables[likelihood_name(agent)] = step_log_density(
            channel, drawn.coefficients[0, 5], drawn.covariance[0, 5]
        )
    again = refined.episode_log_likelihood(refined.bound, lay_out(refined.bound), tables)
    np.testing.assert_allclose(refined.result.log_likelihood[0, 5], again, rtol=1e-9)
