"""Continuous channels learned from batch by batch, in memory and from files."""

import numpy as np
import pytest
from test_emissions import _demos, _model

import btil
from btil.demonstrations import row_groups
from btil.inference import stochastic
from btil.inference.channel_batches import normals_of, sources_in_memory
from btil.inference.channels import posterior_normals
from btil.models.emission import trend_of
from btil.models.team import bind
from btil.numerics.precision import precision

LENGTHS = (4, 3, 6, 1, 5, 2, 7, 3)
BLANK = (("ann_x", 1), ("ann_y", 3), ("bob_x", 2), ("ann_x", 9), ("ann_y", 9), ("ann_y", 20))


def team(labelled=12, blank=BLANK):
    """Blank cells, a member who leaves, an action that nobody saw, unsure labels."""
    demos = _demos(lengths=LENGTHS, labelled=labelled, blank=blank)
    there = np.ones((demos.num_steps, 2), bool)
    there[[8, 9], 1] = False
    actions = np.where(np.arange(demos.num_steps) == 5, -1, demos.actions[:, 0])
    weights = np.random.default_rng(3).uniform(0.1, 2.0, size=(demos.num_steps, 2))
    weights[:14] = 1.0
    return demos.replace(
        present=there,
        actions={"ann": actions},
        latents=np.where(there, demos.latents, -1),
        missing="allow",
        latent_weights={"ann": weights},
    )


def model():
    return _model(covariates=("bob_x", "previous_ann_x"))


@pytest.mark.covers("normal columns", "batches")
@pytest.mark.covers("regressions on covariates", "batches")
@pytest.mark.covers("blank cells of columns", "batches")
@pytest.mark.covers("members without actions", "batches")
@pytest.mark.covers("gaps beside columns", "batches")
def test_batches_add_up_to_a_sweep_over_everything():
    """Sums, counts and bounds of sweeps batch by batch are those of the full sweep."""
    from btil.inference.mfvi import Run

    bound = bind(model(), team())
    with precision(np.float64) as dtype:
        run = Run(bound, dtype, None, None, None)
        state = run.begin(run.known)
        shift = sum(one.log_jacobian(one.units()).sum() for one in bound.channels.values())
        full = []
        for _ in range(3):
            step = run.sweep(state)
            full.append((float(step.elbo), step.upcoming))
            state = step.upcoming
        for size in (1, 3):
            data = stochastic.in_memory(bound, size)
            assert shift == pytest.approx(sum(s.log_jacobian for s in data.channels.values()))
            problem = stochastic.make_problem(data, size, None, None, 0, dtype)
            own = stochastic.first_state(problem)
            for expected, upcoming in full:
                own, found = stochastic.sweep(own, problem)
                assert found == pytest.approx(expected, abs=1e-9)
                counts = stochastic.concentrations(own, problem)
                for name, rows in run.rows(upcoming).items():
                    np.testing.assert_allclose(counts[name], rows.concentration, rtol=1e-9)
                for agent, source in data.channels.items():
                    name = source.channel.name
                    normals = normals_of(source, own.counts[name])
                    laid = run._channels[name]
                    for mine, theirs in zip(
                        normals, posterior_normals(laid, upcoming.channels[name]), strict=True
                    ):
                        np.testing.assert_allclose(mine, theirs, rtol=1e-7, err_msg=agent)


def test_densities_of_batches_are_of_the_cells_that_were_seen():
    """Of each the log of its column's standard deviation, if the step has its covariates."""
    demos = team()
    bound = bind(model(), demos)
    columns, before = demos.continuous, np.roll(demos.continuous["ann_x"], 1)
    before[demos.episode_starts] = np.nan
    has_covariates = {
        "ann": np.isfinite(columns["bob_x"]) & np.isfinite(before),
        "bob": demos.present[:, 1],
    }
    names = {"ann": ("ann_x", "ann_y"), "bob": ("bob_x",)}
    sources = sources_in_memory(bound, lambda chosen: np.arange(demos.num_steps))
    for agent, source in sources.items():
        seen = [np.isfinite(columns[c]) & has_covariates[agent] for c in names[agent]]
        spread = bound.channels[agent].units().spread
        expected = -sum(one.sum() * np.log(s) for one, s in zip(seen, spread, strict=True))
        assert source.log_jacobian == pytest.approx(expected)
        assert source.whole == np.array_equal(np.any(seen, axis=0), np.all(seen, axis=0))


def test_a_file_is_learned_from_as_what_is_in_memory(tmp_path, monkeypatch):
    demos = team()
    btil.write_demonstrations(demos, tmp_path / "team.parquet")
    monkeypatch.setattr(row_groups, "ROW_GROUP_STEPS", 7)
    monkeypatch.setattr(stochastic, "_SAMPLE_STEPS", 9)
    file = btil.open_demonstrations(tmp_path / "team.parquet", missing="allow")
    options = {"batch_size": 3, "max_iterations": 12, "progress": False, "dtype": "float64"}
    one, other = (btil.fit(model(), given, **options) for given in (demos, file))
    assert one.elbo == other.elbo
    np.testing.assert_array_equal(one.elbo_trace, other.elbo_trace)
    assert one.model == other.model  # what the prior left open is taken from all episodes
    for mine, theirs in zip(one.emission("ann", 1), other.emission("ann", 1), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert other.bound.excerpt
    other.save(tmp_path / "team.nc")
    again = btil.load_posterior(tmp_path / "team.nc")
    for mine in (one, other):
        np.testing.assert_allclose(mine.log_likelihood(demos), again.log_likelihood(demos))
    np.testing.assert_array_equal(other.sample(3)["emission_covariance_bob"],
                                  again.sample(3)["emission_covariance_bob"])  # fmt: skip
    wrong = btil.TeamModel(emissions={"ann": btil.NormalEmission(("ann_z",))})
    with pytest.raises(ValueError, match="no continuous column 'ann_z'"):
        btil.fit(wrong, file, **options)


def test_contexts_that_the_excerpt_lacks_are_learned(tmp_path, monkeypatch):
    """A value of the channel's parent comes in the last episode alone."""
    demos = team(blank=())
    zone = np.where(np.arange(demos.num_steps) < demos.num_steps - 3, demos.states, 2)
    demos = demos.replace(states=zone, num_states=3)
    btil.write_demonstrations(demos, tmp_path / "team.parquet")
    monkeypatch.setattr(row_groups, "ROW_GROUP_STEPS", 7)
    monkeypatch.setattr(stochastic, "_SAMPLE_STEPS", 1)
    file = btil.open_demonstrations(tmp_path / "team.parquet", missing="allow")
    posterior = btil.fit(_model(), file, batch_size=1, max_iterations=10, progress=False)
    posterior.save(tmp_path / "team.nc")
    loaded = btil.load_posterior(tmp_path / "team.nc")
    whole = btil.fit(_model(), demos, batch_size=1, max_iterations=10, progress=False)
    for own in (posterior, loaded):
        found, expected = own.emission("ann", [2]), whole.emission("ann", [2])
        np.testing.assert_allclose(found.coefficients, expected.coefficients, rtol=1e-5)
        draws = own.drawn_channel("ann", np.array([[2]]), 50, 0).coefficients
        assert np.abs(draws.mean(0) - found.coefficients).max() < 60


def test_the_regression_of_all_steps_is_the_same_part_by_part():
    generator = np.random.default_rng(0)
    u = np.concatenate([np.ones((90, 1)), 1e6 + generator.normal(size=(90, 2))], axis=1)
    y = 1e5 + u[:, 1:] @ [[2.0, 0.3], [-1.0, 5.0]] + generator.normal(size=(90, 2))
    y[generator.random(y.shape) < 0.2] = np.nan
    parts = [(u[:10], y[:10]), (u[10:11], y[10:11]), (u[11:], y[11:])]
    one = trend_of(lambda: iter([(u, y)]), (3, 2), True)
    several = trend_of(lambda: iter(parts), (3, 2), True)
    for j in range(2):  # by NumPy, from the means
        known = np.isfinite(y[:, j])
        centred = u - np.append(0, u[:, 1:].mean(0))
        slopes, left = np.linalg.lstsq(centred[known], y[known, j])[:2]
        np.testing.assert_allclose(one.units.trend[1:, j], slopes[1:], rtol=1e-6)
        np.testing.assert_allclose(one.units.spread[j], np.sqrt(left[0] / known.sum()), rtol=1e-8)
    np.testing.assert_allclose(one.units.spread, several.units.spread, rtol=1e-8)
    np.testing.assert_allclose(u @ one.units.trend, u @ several.units.trend, rtol=1e-12)
    assert one.num_steps == several.num_steps == 90


@pytest.mark.parametrize("labelled", [8, 0])
def test_batches_end_where_the_whole_does(labelled):
    """Also without labels: a fit to some episodes tells the intents apart first."""
    task = btil.domains.errands(num_steps=15)
    demos = task.simulate(60, seed=0).without_labels(np.arange(labelled, 60))
    near = {agent: (f"{agent}_near",) for agent in task.agents}
    columns = {agent: task.columns(agent) for agent in task.agents}
    walks = btil.LinearNormalEmission(
        {agent: own[2:] for agent, own in columns.items()},
        {agent: own[:2] for agent, own in columns.items()},
    )
    motion = btil.TeamModel(
        policy=None, transition=btil.DirichletCPT(1.0, parents=near), emissions=walks
    )
    whole = btil.fit(motion, demos, progress=False)
    parts = btil.fit(motion, demos, batch_size=20, tolerance=1e-6, progress=False)
    assert parts.converged
    assert parts.elbo == pytest.approx(whole.elbo, abs=0.5)
    assert parts.model == whole.model


def test_a_run_by_batches_goes_on_from_its_checkpoint(tmp_path):
    demos, options = team(labelled=0), {"batch_size": 2, "progress": False}
    path = tmp_path / "run"
    whole = btil.fit(model(), demos, max_iterations=4, **options)
    btil.fit(model(), demos, max_iterations=4, checkpoint=path, **options)
    again = btil.fit(model(), demos, max_iterations=4, checkpoint=path, resume=True, **options)
    assert whole.elbo == again.elbo
    for mine, theirs in zip(whole.emission("bob", 0), again.emission("bob", 0), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.covers("several devices", "batches")
def test_batches_of_columns_on_several_devices():
    options = {"batch_size": 3, "max_iterations": 4, "progress": False, "dtype": "float64"}
    one, two = (btil.fit(model(), team(), devices=number, **options) for number in (1, 2))
    np.testing.assert_allclose(two.elbo_trace, one.elbo_trace, rtol=1e-9)
    for mine, theirs in zip(two.emission("ann", 1), one.emission("ann", 1), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-7)


@pytest.mark.covers("tables with parameters beside columns", "batches")
def test_tables_with_parameters_are_learned_in_batches_beside_columns():
    """Sweeps by batches are those over everything, and so is the bound of what is learned."""
    from btil.inference.mfvi import Run

    given = btil.TeamModel(
        policy={"ann": btil.SoftmaxCPT(parents=("state",)), "bob": None},
        emissions={"ann": btil.NormalEmission(("ann_x",))},
    )
    bound = bind(given, team())
    with precision(np.float64) as dtype:
        run = Run(bound, dtype, None, None, None)
        state = run.begin(run.known)
        problem = stochastic.make_problem(stochastic.in_memory(bound, 3), 3, None, None, 0, dtype)
        own = stochastic.first_state(problem)
        for _ in range(2):
            step = run.proceed(state, run._nowhere, np.asarray(1, np.int32), False)
            own, found = stochastic.sweep(own, problem)
            assert found == pytest.approx(float(step.elbo), abs=1e-9)
            state = step.upcoming
            counts = np.asarray(state.counts["policy_ann"])[: len(own.counts["policy_ann"])]
            np.testing.assert_allclose(own.counts["policy_ann"], counts, rtol=1e-6)
    demos = team(labelled=sum(LENGTHS), blank=())
    options = {"progress": False, "dtype": "float64", "max_iterations": 60}
    whole = btil.fit(given, demos, tolerance=1e-9, **options)
    parts = btil.fit(given, demos, batch_size=4, tolerance=1e-12, **options)
    assert parts.elbo == pytest.approx(whole.elbo, abs=1e-3)
    for site, normals in whole.result.parameters.items():
        np.testing.assert_allclose(parts.result.parameters[site].location, normals.location,
                                   atol=1e-3)  # fmt: skip
