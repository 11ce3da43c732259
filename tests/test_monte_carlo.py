"""Monte Carlo errors from blocks of draws: what is in a block, and whether the errors are right."""

import dataclasses

import numpy as np
import pytest
from teams import hmm_demos, hmm_model
from test_emissions import _demos, _model

import btil
from btil.analysis.modes import only_chains, only_draws
from btil.analysis.monte_carlo import (
    average_over,
    blocks_of_draws,
    drawn_shape,
    evenly_spaced,
    jackknife_error,
    log_average_over,
    means_without_each_block,
    moments_without_each_block,
    together,
)
from btil.inference.result import (
    DirichletRows,
    DrawnChannel,
    DrawnParameters,
    DrawnRows,
    FitResult,
)
from btil.models.team import bind
from btil.posterior.posterior import TeamPosterior

BOUND = bind(hmm_model(), hmm_demos([0, 1, 1, 0, 1, 0]))
SITES = {site: table.shape for site, table in BOUND.learned.items()}


def posterior(rows):
    return TeamPosterior(BOUND, "gibbs", FitResult(rows, True, "made up"), 0, np.dtype(float), 1.0)


def numbered(num_chains, length):
    """Chains in which the first cell of every row counts draws, chain after chain."""
    numbers = np.arange(num_chains * length).reshape(num_chains, length)
    rows = {}
    for site, shape in SITES.items():
        draws = np.broadcast_to(
            numbers.reshape(*numbers.shape, *(1,) * len(shape)), (*numbers.shape, *shape)
        )
        rows[site] = DrawnRows(draws.astype(float))
    return posterior(rows)


def first_cells(one):
    return one.result.rows["initial_agent_0"].draws[..., 0, 0]


@pytest.mark.parametrize(("num_chains", "length"), [(1, 60), (4, 25), (3, 7), (50, 2), (1, 1)])
def test_every_draw_is_in_one_block_with_its_neighbours(num_chains, length):
    blocks = blocks_of_draws(numbered(num_chains, length), 10**6, 0)
    cells = [first_cells(block.posterior).ravel() for block in blocks]
    assert np.concatenate(cells).tolist() == list(range(num_chains * length))
    assert [len(own) for own in cells] == [block.num_draws for block in blocks]
    assert all(np.ptp(own) == len(own) - 1 for own in cells)
    chains = [np.unique(own // length) for own in cells]
    assert all(len(own) == 1 for own in chains)  # none reaches over two chains
    assert len(blocks) == {1: min(20, length), 4: 20, 3: 21, 50: 50}[num_chains]
    assert len({block.seed for block in blocks}) == len(blocks)
    # What a block says of itself is what its posterior draws: each of its draws once.
    drawn = blocks[-1].posterior.sample(blocks[-1].num_draws, blocks[-1].seed)
    assert sorted(drawn["initial_agent_0"][:, 0, 0]) == cells[-1].tolist()


def test_fewer_draws_are_evenly_spaced_and_the_same_number_of_each_chain():
    few, number = evenly_spaced(numbered(2, 101), 22)
    assert number == 22
    assert first_cells(few).tolist() == [list(range(0, 101, 10)), list(range(101, 202, 10))]
    # No fewer than were asked for.
    assert evenly_spaced(numbered(2, 101), 21)[1] == 22
    assert evenly_spaced(numbered(2, 101), 1)[1] == 2
    rows = {site: DirichletRows(np.ones(shape)) for site, shape in SITES.items()}
    plain = posterior(rows)
    assert evenly_spaced(plain, 22) == (plain, 22)
    assert drawn_shape(plain) is None
    assert list(means_without_each_block(plain)) == []
    blocks = blocks_of_draws(plain, 50, 3)
    assert [block.num_draws for block in blocks] == [3] * 10 + [2] * 10
    assert [b.seed for b in blocks] == [b.seed for b in blocks_of_draws(plain, 50, 3)]
    assert blocks[0].seed != blocks_of_draws(plain, 50, 4)[0].seed


def test_draws_left_out_are_those_of_a_block():
    whole = numbered(4, 10)
    parameters = {"skill": DrawnParameters(np.arange(40.0).reshape(4, 10))}
    whole = dataclasses.replace(whole, result=whole.result._replace(parameters=parameters))
    blocks = blocks_of_draws(whole, 40, 0)
    for one, block in zip(means_without_each_block(whole), blocks, strict=True):
        left = sorted(set(range(40)) - set(first_cells(block.posterior).ravel()))
        assert one.result.parameters["skill"].draws.tolist() == [left]
        np.testing.assert_allclose(first_cells(one), [[np.mean(left)]])


def test_moments_are_those_of_the_draws_that_are_left():
    draws = np.random.default_rng(0).gamma(2.0, size=(3, 11, 2, 2)).astype(np.float32)
    means, sds = moments_without_each_block(draws)
    assert len(means) == 21
    parts = [part for chain in draws for part in np.array_split(np.arange(len(chain)), 7)]
    for number, (mean, sd, part) in enumerate(zip(means, sds, parts, strict=True)):
        kept = np.ones((3, 11), bool)
        kept[number // 7, part] = False
        left = draws[kept].astype(float)
        np.testing.assert_allclose(mean, left.mean(0), rtol=1e-12)
        np.testing.assert_allclose(sd, left.std(0), rtol=1e-9)


def test_averages_weigh_blocks_by_their_draws():
    blocks = blocks_of_draws(numbered(1, 47), 100, 0)
    found = average_over(blocks, lambda block: first_cells(block.posterior).mean(1))
    np.testing.assert_allclose(found.whole, [23.0])
    np.testing.assert_allclose(found.without[0], [np.arange(3, 47).mean()])
    logs = log_average_over(
        blocks, lambda block: np.log(first_cells(block.posterior).mean(1)) - 900
    )
    np.testing.assert_allclose(logs.whole, np.log(23.0) - 900)
    np.testing.assert_allclose(logs.without, np.log(found.without) - 900)
    nothing = log_average_over(blocks, lambda block: np.array([-np.inf, 0.0]))
    assert nothing.whole.tolist() == [-np.inf, 0.0]


def test_the_jackknife_knows_the_error_of_chains():
    """Of a smooth function of the means of dependent draws, over 300 runs of four chains."""
    generator = np.random.default_rng(1)
    draws = generator.normal(size=(300, 4, 500))
    for draw in range(1, 500):
        draws[:, :, draw] = 0.6 * draws[:, :, draw - 1] + 0.8 * draws[:, :, draw]
    values = np.exp(draws.mean((1, 2)))
    blocks = draws.reshape(300, 20, 100).mean(2)  # five blocks a chain
    without = np.exp((blocks.sum(1, keepdims=True) - blocks) / 19)
    errors = np.array([jackknife_error(own) for own in without])
    assert 0.85 < values.std() / np.sqrt((errors**2).mean()) < 1.15
    as_if_independent = draws[0].std() / np.sqrt(2000)
    assert np.median(errors) > 1.6 * as_if_independent


def test_few_blocks_have_no_error_and_errors_add_up():
    assert np.isnan(jackknife_error([1.0]))
    assert np.isnan(jackknife_error([]))
    assert together(3.0, 4.0) == 5.0
    assert together(3.0, np.nan) == 3.0
    assert np.isnan(together(np.nan, 4.0))


@pytest.fixture(scope="module")
def mean_field():
    """Few data and small concentrations: rows of which a few draws decide an average."""
    generator = np.random.default_rng(4)
    actions = generator.integers(3, size=16).tolist()
    model = hmm_model(0.15)
    episodes = np.repeat(range(4), 4)
    demos = hmm_demos(actions, [0, 1] * 4 + [-1] * 8, 2, episodes=episodes, num_actions=3)
    return btil.fit(model, demos, progress=False)


def test_beliefs_differ_from_seed_to_seed_by_the_error_that_is_told(mean_field):
    """The log score of averaged beliefs, case 33."""
    demos = hmm_demos([2, 0, 1, 1, 2, 2, 0, 0], None, 2, num_actions=3)
    truth = np.array([0, 1, 1, 0, 0, 1, 0, 0])

    def score(beliefs):
        return float(np.log(beliefs[np.arange(8), truth]).mean())

    values, errors = [], []
    for seed in range(16):
        found = average_over(
            blocks_of_draws(mean_field, 60, seed),
            lambda b: b.posterior.smooth(demos, num_draws=b.num_draws, seed=b.seed)["agent_0"],
        )
        values.append(score(found.whole))
        errors.append(float(jackknife_error([score(one) for one in found.without])))
    assert 0.7 < np.std(values, ddof=1) / np.sqrt(np.mean(np.square(errors))) < 1.4


def test_chains_of_a_guide_are_draws_too(mean_field):
    rows = {site: DrawnRows(np.full((1, 40, *shape), 0.5)) for site, shape in SITES.items()}
    guide = dataclasses.replace(posterior(rows), method="svi")
    assert [block.num_draws for block in blocks_of_draws(guide, 40, 0)] == [2] * 20
    assert len(list(means_without_each_block(guide))) == 20


def measured(num_chains, length, only_columns=False):
    """Chains of rows and of continuous columns in which every cell counts draws."""
    bound = bind(_model(), _demos())
    numbers = np.arange(1.0, 1 + num_chains * length).reshape(num_chains, length)

    def draws(*shape):
        return np.broadcast_to(
            numbers.reshape(*numbers.shape, *(1,) * len(shape)), (*numbers.shape, *shape)
        )

    rows = {site: DrawnRows(draws(*table.shape)) for site, table in bound.learned.items()}
    channels = {}
    for one in bound.channels.values():
        contexts, latents, p, d = one.shape
        covariance = draws(contexts, latents, 1, 1) * np.eye(d)
        channels[one.name] = DrawnChannel(draws(contexts, latents, p, d), covariance)
    result = FitResult({} if only_columns else rows, True, "made up", channels=channels)
    return TeamPosterior(bound, "gibbs", result, 0, np.dtype(float), 1.0)


def of_columns(one, part="coefficients"):
    return getattr(one.result.channels["emission_ann"], part)[..., 0, 0, 0, 0]


def test_continuous_columns_go_with_the_draws_of_the_tables():
    """What is left of a posterior by some of its draws are these draws of everything."""
    every = measured(3, 10)
    for found in (
        evenly_spaced(every, 6)[0],
        only_chains(every, [2, 0]),
        only_draws(every, np.arange(30).reshape(3, 10) % 4 == 1),
        *(block.posterior for block in blocks_of_draws(every, 30, 0)),
    ):
        left = found.result.rows["policy_ann"].draws[..., 0, 0, 0]
        for part in ("coefficients", "covariance"):
            np.testing.assert_array_equal(of_columns(found, part), left)
        sampled = found.sample(left.size, 1)
        np.testing.assert_array_equal(
            sampled["policy_ann"][:, 0, 0, 0], sampled["emission_mean_ann"][:, 0, 0, 0]
        )
    assert drawn_shape(measured(3, 10, only_columns=True)) == (3, 10)


def test_errors_of_mean_columns_are_those_of_their_draws():
    every = measured(2, 40)
    found = [of_columns(one).item() for one in means_without_each_block(every)]
    # 20 blocks of four consecutive draws each.
    sums = np.arange(1, 81).reshape(20, 4).sum(1)
    np.testing.assert_allclose(found, (sums.sum() - sums) / 76)
    means = [
        one.result.rows["policy_ann"].mean()[0, 0, 0] for one in means_without_each_block(every)
    ]
    np.testing.assert_allclose(found, means)
