"""Continuous channels: every method against enumeration, quadrature and SciPy on tiny data."""

import functools
import itertools

import jax
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, logsumexp

import btil
from btil import Demonstrations
from btil.analysis.alignment import rename_latents
from btil.inference.channels import deal_latents, laid_channels
from btil.messages.layout import lay_out
from btil.models.emission import observed, step_log_density
from btil.models.team import bind, likelihood_name

AGENTS = ("ann", "bob")
# Of tests that are content with any covariates, too: what is compiled serves all of them.
BOTH = ("bob_x", "previous_ann_x")
LATENTS = (2, 3)
BLANK = (("ann_x", 1), ("ann_y", 3), ("bob_x", 2), ("ann_x", 4), ("ann_y", 4))


def _demos(seed=0, lengths=(4, 3), labelled=2, scale=40.0, blank=(), num_latents=LATENTS):
    """A team of two; ann has actions and two columns, bob no action and one column."""
    generator = np.random.default_rng(seed)
    steps = sum(lengths)
    latents = np.stack([generator.integers(k, size=steps) for k in num_latents], axis=1)
    given = latents.copy()
    given[labelled:] = -1
    means = generator.normal(size=(2, 3, 2))
    columns = {
        "ann_x": means[0, latents[:, 0], 0] + 0.5 * generator.normal(size=steps),
        "ann_y": means[0, latents[:, 0], 1] + 0.5 * generator.normal(size=steps),
        "bob_x": means[1, latents[:, 1], 0] + 0.5 * generator.normal(size=steps),
    }
    columns = {name: scale * values + 1000.0 for name, values in columns.items()}
    for name, step in blank:
        columns[name][step] = np.nan
    return Demonstrations(
        generator.integers(2, size=steps),
        {"ann": generator.integers(3, size=steps)},
        given,
        episodes=np.repeat(np.arange(len(lengths)), lengths),
        agents=AGENTS,
        num_states=2,
        num_actions={"ann": 3},
        num_latents=num_latents,
        continuous=columns,
    )


def _rescaled(demos, change):
    """The same with other columns."""
    columns = {name: change(name, values) for name, values in demos.continuous.items()}
    return demos.replace(continuous=columns)


def _model(parents=("state",), covariates=()):
    columns = ("ann_x", "ann_y")
    of_ann = (
        btil.LinearNormalEmission(columns, covariates, parents=parents, pseudo_steps=0.3)
        if covariates
        else btil.NormalEmission(columns, parents=parents, pseudo_steps=0.3)
    )
    return btil.TeamModel(
        policy={"ann": btil.DirichletCPT(0.7, parents=("state",)), "bob": None},
        transition=btil.DirichletCPT(0.8, parents=()),
        initial=btil.DirichletCPT(1.3),
        emissions={"ann": of_ann, "bob": btil.NormalEmission(("bob_x",), pseudo_steps=0.3)},
    )


def test_labelled_steps_are_not_dealt_out():
    bound = bind(_model(), _demos(labelled=4))
    labels = bound.demos.latents
    for name, laid in laid_channels(bound, lay_out(bound), np.dtype(np.float64)).items():
        own = labels[:, bound.demos.agents.index(laid.channel.agent)]
        for seed in range(5):
            dealt = deal_latents(bound, laid, np.random.default_rng(seed))
            np.testing.assert_array_equal(dealt[:4], own[:4], err_msg=name)
            assert (dealt >= 0).all()


@pytest.mark.parametrize("seed", range(4))
def test_steps_are_dealt_out_to_those_that_they_are_near(seed):
    """Two clouds far apart, whatever the latents are called; the episodes change in between."""
    cloud = np.repeat([0, 1, 0, 1], 20)
    demos = Demonstrations(
        np.zeros(80, int),
        {"ann": np.zeros(80, int)},
        num_latents=2,
        continuous={"x": 50.0 * cloud + np.random.default_rng(seed).normal(size=80)},
        episodes=np.repeat([0, 1], 40),
    )
    bound = bind(btil.TeamModel(emissions={"ann": btil.NormalEmission(("x",))}), demos)
    (laid,) = laid_channels(bound, lay_out(bound), np.dtype(np.float32)).values()
    dealt = deal_latents(bound, laid, np.random.default_rng(seed))
    assert np.array_equal(dealt, cloud) or np.array_equal(dealt, 1 - cloud)


def test_channels_are_laid_in_the_type_of_the_fit_or_in_double_precision():
    from btil.messages.channels import lay_channel

    bound = bind(_model(), _demos())
    channel, lanes = bound.channels["ann"], lay_out(bound).lanes
    single = lay_channel(channel, channel.units(), lanes, np.dtype(np.float32))
    double = lay_channel(channel, channel.units(), lanes)
    for one, other in zip(jax.tree.leaves(single), jax.tree.leaves(double), strict=True):
        assert isinstance(one, jax.Array)
        assert isinstance(other, np.ndarray)
        assert (one.dtype, other.dtype) in {
            (np.dtype(np.float32), np.dtype(np.float64)),
            (np.dtype(np.int32), np.dtype(np.int32)),
        }
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_nothing_is_before_an_episode_or_a_stay():
    """Whatever is recorded of an agent while it is away."""
    demos = _demos(lengths=(5, 3))
    there = np.ones((8, 2), bool)
    there[2, 0] = False
    labels = np.where(there, demos.latents, -1)
    demos = demos.replace(present=there, latents=labels, missing="allow")
    family = btil.LinearNormalEmission(("ann_y",), ("bob_x", "previous_ann_x"))
    seen = observed(family, demos, "ann")
    x = demos.continuous["ann_x"]
    known = [1, 4, 6, 7]
    assert seen.rows.tolist() == known
    np.testing.assert_array_equal(seen.inputs[known, 2], x[[0, 3, 5, 6]])
    assert np.isnan(seen.inputs[[0, 3, 5], 2]).all()


def _paths(labels, latents):
    options = [range(latents) if label < 0 else [label] for label in labels]
    return np.array(list(itertools.product(*options)))


def _log_urn(uses, concentration):
    """Log probability of draws from a Polya urn, one after the other."""
    counts, total = np.array(concentration, float), 0.0
    for value in uses:
        total += np.log(counts[value] / counts.sum())
        counts[value] += 1
    return total


def _log_students(family, u, y):
    """log p(y's) of one latent and context, step by step by SciPy's Student t."""
    prior = family.prior()
    location, precision, scale, degrees = (np.array(part, float) for part in prior)
    total = 0.0
    for row, value in zip(u, y, strict=True):
        d = len(value)
        freedom = float(degrees) - d + 1
        shape = scale * (1 + row @ np.linalg.solve(precision, row)) / freedom
        total += stats.multivariate_t(row @ location, shape, df=freedom).logpdf(value)
        updated = precision + np.outer(row, row)
        mean = np.linalg.solve(updated, precision @ location + np.outer(row, value))
        scale = scale + np.outer(value, value) + location.T @ precision @ location
        scale = scale - mean.T @ updated @ mean
        location, precision, degrees = mean, updated, degrees + 1
    return total


def _log_joint(model, demos, agent):
    """A function of a path: log p(path, actions, columns) of an agent, rows integrated out."""
    model = model.resolved(demos)
    i = demos.agents.index(agent)
    k, actions = demos.num_latents[i], demos.num_actions[i]
    starts = set(demos.episode_starts.tolist())
    state = demos.states
    family = model.emission(agent)
    contexts = state if family.parents else np.zeros_like(state)
    y = np.stack([demos.continuous[name] for name in family.columns], axis=1)
    u = np.ones((len(y), 1))
    says = np.ones(len(y), bool)
    for name in family.covariates:
        column = demos.continuous[name.removeprefix("previous_")]
        if name.startswith("previous_"):
            column = np.roll(column, 1)
            says[list(starts)] = False
        u = np.concatenate([u, column[:, None]], axis=1)

    @functools.cache  # many paths have the same steps in common
    def said(own):
        return _log_students(family, u[list(own)], y[list(own)])

    def log_joint(path):
        total = _log_urn([path[t] for t in sorted(starts)], np.full(k, 1.3))
        for latent in range(k):
            moves = [path[t] for t in range(len(path)) if t not in starts and path[t - 1] == latent]
            total += _log_urn(moves, np.full(k, 0.8))
            if agent == "ann":
                for s in range(2):
                    taken = demos.actions[(state == s) & (path == latent), i]
                    total += _log_urn(taken, np.full(actions, 0.7))
        for context, latent in itertools.product(range(2), range(k)):
            own = says & (contexts == context) & (path == latent)
            total += said(tuple(np.flatnonzero(own).tolist()))
        return total

    return log_joint


def _enumerated(model, demos, agent):
    labels = demos.latents[:, demos.agents.index(agent)]
    paths = _paths(labels, demos.num_latents[demos.agents.index(agent)])
    return paths, np.array([*map(_log_joint(model, demos, agent), paths)])


def _log_evidence(model, demos):
    return sum(logsumexp(_enumerated(model, demos, agent)[1]) for agent in demos.agents)


@pytest.mark.covers("normal columns", "exact")
@pytest.mark.covers("regressions on covariates", "exact")
@pytest.mark.covers("members without actions", "exact")
@pytest.mark.parametrize("covariates", [(), BOTH])
def test_exact_is_the_sum_over_all_paths(covariates):
    demos, model = _demos(), _model(covariates=covariates)
    posterior = btil.fit(model, demos, "exact", progress=False)
    np.testing.assert_allclose(posterior.elbo, _log_evidence(model, demos), rtol=1e-9)
    paths, logs = _enumerated(model, demos, "ann")
    weights = np.exp(logs - logsumexp(logs))
    # Posterior means of bob's and ann's channel: averages over paths.
    means = np.zeros(posterior.emission("ann", [0, 1]).coefficients.shape)
    family = model.resolved(demos).emission("ann")
    for path, weight in zip(paths, weights, strict=True):
        for context, latent in itertools.product(range(2), range(2)):
            own = (demos.states == context) & (path == latent)
            u = np.ones((len(path), 1))
            for name in covariates:
                column = demos.continuous[name.removeprefix("previous_")]
                if name.startswith("previous_"):
                    column = np.roll(column, 1)
                    own = own & ~np.isin(np.arange(len(path)), demos.episode_starts)
                u = np.concatenate([u, column[:, None]], axis=1)
            y = np.stack([demos.continuous[name] for name in family.columns], axis=1)
            location, precision, _, _ = family.prior()
            sums = precision + u[own].T @ u[own]
            means[context, latent] += weight * np.linalg.solve(
                sums, precision @ location + u[own].T @ y[own]
            )
    np.testing.assert_allclose(posterior.emission("ann", [0, 1]).coefficients, means, rtol=1e-7)


@pytest.mark.covers("normal columns", "mfvi")
@pytest.mark.covers("regressions on covariates", "mfvi")
@pytest.mark.covers("members without actions", "mfvi")
@pytest.mark.parametrize("covariates", [(), BOTH])
def test_mean_field_is_below_the_evidence_and_never_falls(covariates):
    demos, model = _demos(), _model(covariates=covariates)
    posterior = btil.fit(model, demos, progress=False, dtype="float64", tolerance=1e-9)
    evidence = _log_evidence(model, demos)
    assert posterior.elbo < evidence
    assert posterior.elbo > evidence - 4.0
    trace = posterior.elbo_trace
    assert np.all(np.diff(trace) > -1e-8 * np.abs(trace[:-1]))
    assert posterior.converged


def test_mean_field_with_all_labels_is_exact():
    demos, model = _demos(labelled=7), _model(covariates=BOTH)
    posterior = btil.fit(model, demos, progress=False, dtype="float64")
    np.testing.assert_allclose(posterior.elbo, _log_evidence(model, demos), rtol=1e-9)
    exact = btil.fit(model, demos, "exact", progress=False)
    for mine, own in zip(posterior.emission("ann"), exact.emission("ann"), strict=True):
        np.testing.assert_allclose(mine, own, rtol=1e-6)


def test_weights_of_nought_and_one_are_labels():
    demos, model = _demos(labelled=7), _model(covariates=BOTH)
    weights = {
        agent: np.eye(k)[demos.latents[:, i]]
        for i, (agent, k) in enumerate(zip(AGENTS, LATENTS, strict=True))
    }
    unsure = demos.without_labels().replace(latent_weights=weights)
    for method in ("mfvi", "exact"):
        one, two = (
            btil.fit(model, d, method, progress=False, dtype="float64") for d in (demos, unsure)
        )
        np.testing.assert_allclose(one.elbo, two.elbo, rtol=1e-9)
        for mine, own in zip(one.emission("ann"), two.emission("ann"), strict=True):
            np.testing.assert_allclose(mine, own, rtol=1e-7)


def test_single_precision_is_the_same_fit():
    demos, model = _demos(lengths=(30, 20), labelled=20), _model()
    single, double = (
        btil.fit(model, demos, progress=False, dtype=dtype) for dtype in ("float32", "float64")
    )
    assert abs(single.elbo - double.elbo) < 2e-2
    np.testing.assert_allclose(
        single.emission("ann").coefficients, double.emission("ann").coefficients, rtol=1e-3
    )


def test_other_units_change_the_density_by_their_jacobian_alone():
    demos, model = _demos(), _model()
    factor = {"ann_x": 0.01, "ann_y": 7.0, "bob_x": 1e5}
    other = _rescaled(demos, lambda name, values: factor[name] * values - 3.0)
    shift = 7 * sum(np.log(f) for f in factor.values())
    one, two = (btil.fit(model, d, progress=False, dtype="float64") for d in (demos, other))
    np.testing.assert_allclose(one.elbo - shift, two.elbo, rtol=1e-8)
    np.testing.assert_allclose(one.smooth(demos)["ann"], two.smooth(other)["ann"], atol=1e-7)
    means, scaled = (one.emission("bob").coefficients, two.emission("bob").coefficients)
    np.testing.assert_allclose(1e5 * means - 3.0, scaled, rtol=1e-8)


def test_columns_may_be_far_from_nought():
    """A million away, in single precision: the same fit, and the same densities."""
    model = _model(covariates=BOTH)
    near = _demos(lengths=(30, 20), labelled=20, scale=1.0)
    far = _rescaled(near, lambda name, values: values + 1e6)
    one, two = (btil.fit(model, demos, progress=False) for demos in (near, far))
    assert abs(one.elbo - two.elbo) < 1e-2
    np.testing.assert_array_equal(one.decode(near), two.decode(far))
    likelihood = one.log_likelihood(near)
    np.testing.assert_allclose(likelihood, two.log_likelihood(far), atol=1e-3)


def _point_logs(posterior, demos, agent, paths):
    """log p(path, actions, columns) of episodes at the posterior's point estimates, by SciPy."""
    i = demos.agents.index(agent)
    initial = posterior.initial(agent)[0]
    transition = posterior.transition(agent)[0]
    policy = posterior.policy("ann", demos.states)
    emission = posterior.emission(agent, demos.states)
    family = posterior.model.emission(agent)
    y = np.stack([demos.continuous[name] for name in family.columns], axis=1)
    total = np.zeros((len(paths), demos.num_episodes))
    for t in np.flatnonzero(demos.present[:, i]):
        m = np.searchsorted(demos.episode_starts, t, side="right") - 1
        now = paths[:, t]
        moved = initial[now] if t in demos.stays[i] else transition[paths[:, t - 1], now]
        total[:, m] += np.log(moved)
        if demos.actions[t, i] >= 0:
            total[:, m] += np.log(policy[t, now, demos.actions[t, i]])
        seen = np.isfinite(y[t])
        row = min(t, len(emission.coefficients) - 1)
        if seen.any():
            said = [
                stats.multivariate_normal(mean[seen], covariance[np.ix_(seen, seen)]).logpdf(
                    y[t, seen]
                )
                for mean, covariance in zip(
                    emission.coefficients[row, :, 0], emission.covariance[row], strict=True
                )
            ]
            total[:, m] += np.array(said)[now]
    return total


@pytest.mark.covers("normal columns", "smoothing and decoding")
@pytest.mark.covers("blank cells of columns", "smoothing and decoding")
@pytest.mark.covers("members without actions", "smoothing and decoding")
@pytest.mark.covers("gaps beside columns", "smoothing and decoding")
@pytest.mark.parametrize("leaves", [False, True])
def test_beliefs_are_sums_over_paths_blank_cells_summed_out(leaves):
    demos, model = _demos(blank=BLANK), _model()
    if leaves:  # bob for two steps, and nobody saw an action of ann's
        there = np.ones((7, 2), bool)
        there[[1, 2], 1] = False
        actions = np.where(np.arange(7) == 5, -1, demos.actions[:, 0])
        weights = np.random.default_rng(3).uniform(0.1, 2.0, size=(7, 2))
        demos = demos.replace(
            present=there,
            actions={"ann": actions},
            latents=np.where(there, demos.latents, -1),
            missing="allow",
            latent_weights={"ann": weights},
        )
    posterior = btil.fit(model, demos, progress=False, dtype="float64")
    likelihood = np.zeros(2)
    for agent, latents in zip(AGENTS, LATENTS, strict=True):
        i = AGENTS.index(agent)
        paths = _paths(np.full(7, -1), latents)
        there = demos.present[:, i]
        paths = np.unique(np.where(there, paths, 0), axis=0)
        logs = _point_logs(posterior, demos, agent, paths)
        weights = np.exp(logs.sum(1) - logsumexp(logs.sum(1)))
        marginal = np.stack([weights @ (paths == k) for k in range(latents)], axis=1)
        found = posterior.smooth(demos)[agent][there]
        np.testing.assert_allclose(found, marginal[there], rtol=1e-8, atol=1e-12)
        best = paths[logs.sum(1).argmax()][there]
        np.testing.assert_array_equal(posterior.decode(demos)[there, i], best)
        for m, steps in enumerate((slice(0, 4), slice(4, 7))):
            label = np.where(there, demos.latents[:, i], -1)[steps]
            agree = np.all((label < 0) | (paths[:, steps] == label), axis=1)
            _, first = np.unique(paths[:, steps], axis=0, return_index=True)
            said = logs[:, m].copy()
            if agent in demos.latent_weights:
                own = np.log(demos.latent_weights[agent])[np.arange(7), paths]
                said += own[:, steps].sum(1)
            likelihood[m] += logsumexp(said[first][agree[first]])
    np.testing.assert_allclose(posterior.log_likelihood(demos), likelihood, rtol=1e-10)


def _bounded(draws):
    """Numbers between 0 and 1 that tell of every site: rows, and where means and noise are."""
    found = []
    for site, values in sorted(draws.items()):
        flat = values.reshape(len(values), -1)
        if site.startswith("emission_mean"):
            flat = expit((flat - 1000.0) / 30.0)
        elif site.startswith("emission_coefficients"):
            flat = expit(flat)
        elif site.startswith("emission_covariance"):
            d = values.shape[-1]
            flat = values[..., np.arange(d), np.arange(d)].reshape(len(values), -1)
            flat = 1 / (1 + 400.0 / flat)
        found.append(flat)
    return np.concatenate(found, axis=1)


def _assert_same_posterior(chains, independent):
    """Means of bounded functions of draws agree within 4.5 standard errors, ESS by batch means."""
    own, other = _bounded(independent), _bounded(chains)
    batches = other.reshape(40, -1, other.shape[1]).mean(1)
    error = np.sqrt(own.var(0) / len(own) + batches.var(0) / 39)
    apart = np.abs(own.mean(0) - other.mean(0))
    varies = own.std(0) > 1e-9
    assert np.all(apart[varies] < 4.5 * error[varies])
    assert np.all(error < 0.02)


def _chains(posterior):
    """All draws of all chains, chain after chain."""
    found = {}
    for site, rows in posterior.result.rows.items():
        found[site] = rows.draws.reshape(-1, *rows.draws.shape[2:])
    for agent, channel in posterior.bound.channels.items():
        drawn = posterior.result.channels[channel.name]
        kind = "mean" if channel.family.intercept and not channel.family.covariates else ""
        of_mean, of_covariance = (
            f"emission_{kind or 'coefficients'}_{agent}",
            (f"emission_covariance_{agent}"),
        )
        coefficients = drawn.coefficients.reshape(-1, *drawn.coefficients.shape[2:])
        found[of_mean] = coefficients[..., 0, :] if kind else coefficients
        found[of_covariance] = drawn.covariance.reshape(-1, *drawn.covariance.shape[2:])
    return found


@pytest.mark.covers("normal columns", "gibbs")
@pytest.mark.covers("regressions on covariates", "gibbs")
@pytest.mark.covers("members without actions", "gibbs")
@pytest.mark.parametrize("covariates", [(), BOTH])
def test_gibbs_draws_from_the_exact_posterior(covariates):
    demos, model = _demos(), _model(covariates=covariates)
    exact = btil.fit(model, demos, "exact", progress=False)
    gibbs = btil.fit(
        model, demos, "gibbs", progress=False, num_chains=8, num_warmup=200, num_samples=2000
    )
    _assert_same_posterior(_chains(gibbs), exact.sample(40_000, seed=1))


@pytest.mark.covers("blank cells of columns", "gibbs", "mfvi")
def test_gibbs_with_a_blank_cell_is_a_mixture_over_what_may_stand_there():
    """Exact posteriors with the cell filled in, weighted by their evidence along a grid."""
    blank = [("ann_y", 4)]
    demos = _demos(blank=blank)
    model = _model().resolved(demos)
    gibbs = btil.fit(
        model, demos, "gibbs", progress=False, num_chains=8, num_warmup=200, num_samples=2000
    )
    centre, width = 1000.0, 2500.0
    grid = centre + width * np.tan(np.linspace(-1.55, 1.55, 161)) / np.tan(1.55)
    filled = [
        btil.fit(
            model,
            _rescaled(demos, lambda name, v, value=value: np.where(np.isnan(v), value, v)),
            "exact",
            progress=False,
        )
        for value in grid
    ]
    logs = np.array([one.elbo for one in filled])
    weights = np.exp(logs - logs.max()) * np.gradient(grid)
    evidence = np.log(weights.sum()) + logs.max()
    numbers = np.random.default_rng(0).multinomial(40_000, weights / weights.sum())
    parts = [
        one.sample(int(number), seed=seed)
        for seed, (one, number) in enumerate(zip(filled, numbers, strict=True))
        if number
    ]
    mixture = {site: np.concatenate([one[site] for one in parts]) for site in parts[0]}
    _assert_same_posterior(_chains(gibbs), mixture)
    mean_field = btil.fit(model, demos, progress=False, dtype="float64", tolerance=1e-9)
    assert evidence - 4.0 < mean_field.elbo < evidence
    trace = mean_field.elbo_trace
    assert np.all(np.diff(trace) > -1e-8 * np.abs(trace[:-1]))


@pytest.mark.covers("normal columns", "tracker")
@pytest.mark.covers("regressions on covariates", "tracker", "smoothing and decoding")
@pytest.mark.covers("blank cells of columns", "tracker")
@pytest.mark.covers("members without actions", "tracker")
@pytest.mark.parametrize(("method", "num_draws"), [("mfvi", None), ("mfvi", 3), ("exact", 4)])
def test_tracker_says_what_filter_says(method, num_draws):
    blank = BLANK if method == "mfvi" else ()
    lengths = (8, 7) if method == "mfvi" else (4, 3)
    demos = _demos(lengths=lengths, blank=blank)
    model = _model(covariates=BOTH)
    posterior = btil.fit(model, demos, method, progress=False, dtype="float64")
    filtered = posterior.filter(demos, num_draws=num_draws, seed=3)
    expected = posterior.predict_actions(demos, num_draws=num_draws, seed=3)
    assert list(expected) == ["ann"]
    tracker = posterior.tracker(num_draws=num_draws, seed=3)
    for t in range(demos.num_steps):
        if t in demos.episode_starts:
            tracker.reset()
        else:  # put aside, and taken up by another one
            other = posterior.tracker(num_draws=num_draws, seed=3)
            other.state = tracker.state
            tracker = other
        columns = {name: values[t] for name, values in demos.continuous.items()}
        belief = tracker.update(
            int(demos.states[t]), {"ann": int(demos.actions[t, 0])}, continuous=columns
        )
        for agent in AGENTS:
            np.testing.assert_allclose(belief.latents[agent], filtered[agent][t], atol=1e-10)
        np.testing.assert_allclose(belief.expected_actions["ann"], expected["ann"][t], atol=1e-10)
    with pytest.raises(ValueError, match="no value for ann_x, ann_y, bob_x; give None"):
        tracker.update(0, {"ann": 1})
    with pytest.raises(ValueError, match="ann_x is inf; allowed are finite numbers"):
        tracker.update(0, {"ann": 1}, continuous={"ann_x": np.inf, "ann_y": 0, "bob_x": 0})


@pytest.mark.covers("normal columns", "saved files")
@pytest.mark.covers("regressions on covariates", "saved files")
@pytest.mark.covers("blank cells of columns", "saved files")
@pytest.mark.covers("members without actions", "saved files")
@pytest.mark.parametrize("method", ["mfvi", "gibbs", "exact"])
def test_saved_posteriors_are_the_same(method, tmp_path):
    demos, model = _demos(labelled=4), _model(covariates=BOTH)
    options = {"num_warmup": 2, "num_samples": 5} if method == "gibbs" else {}
    posterior = btil.fit(model, demos, method, progress=False, dtype="float64", **options)
    posterior.save(tmp_path / "one.nc")
    for loaded in (
        btil.load_posterior(tmp_path / "one.nc"),
        btil.load_posterior(tmp_path / "one.nc", model),
    ):
        assert loaded.model == posterior.model
        for one, other in zip(posterior.emission("ann", 1), loaded.emission("ann", 1), strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(loaded.log_likelihood(demos), posterior.log_likelihood(demos))
        draws, again = posterior.sample(4, seed=1), loaded.sample(4, seed=1)
        assert draws.keys() == again.keys()
        for site, values in draws.items():
            np.testing.assert_array_equal(values, again[site])


def test_contexts_never_visited_are_as_a_priori():
    demos, model = _demos(), _model()
    posterior = btil.fit(model, demos, progress=False, dtype="float64")
    unseen = demos.replace(num_states=3)
    other = btil.fit(model, unseen, progress=False, dtype="float64")
    point = other.emission("ann", [0, 1, 2])
    np.testing.assert_allclose(point.coefficients[:2], posterior.emission("ann").coefficients)
    prior = other.model.emission("ann").prior()
    np.testing.assert_allclose(point.coefficients[2, 0], prior.location)
    np.testing.assert_allclose(point.covariance[2, 1], prior.scale)  # degrees are d + 2


def test_what_is_wrong_is_refused():
    demos = _demos()
    normal = btil.NormalEmission

    def model(**given):
        return btil.TeamModel(transition=btil.DirichletCPT(1.0, parents=()), **given)

    for emissions, message in (
        ({"ann": normal(("ann_z",))}, "no continuous column 'ann_z'.*ann_x, ann_y, bob_x"),
        ({"ann": normal(("state",))}, "state is a state variable: declare it continuous"),
        ({"cid": normal(("ann_x",))}, "names cid, but the agents are ann, bob"),
        (normal(("ann_x",)), "'ann_x' is explained by ann and by bob"),
        (normal({"ann": ("ann_x",)}), "columns are given for ann, but not for agent 'bob'"),
        ({"ann": normal(("ann_x",), location=(1.0, 2.0))}, r"location has shape \(2,\)"),
        ({"ann": normal(("ann_x",), degrees_of_freedom=2)}, "allowed with 1 columns.*above 2"),
        ({"ann": normal(("ann_x",), parents=("role",))}, "unknown parent 'role'"),
        ({"ann": normal(("ann_x",), parents=("previous_state",))}, "allowed are state variables"),
    ):
        with pytest.raises(ValueError, match=message):
            btil.fit(model(emissions=emissions), demos, progress=False)
    for make, message in (
        (lambda: normal("ann_x"), r"such as \('ann_x',\)"),
        (lambda: normal(()), "name a continuous column at least"),
        (lambda: normal(("a", "a")), "'a' is named more than once"),
        (lambda: normal(("a",), noise=-1), "noise is -1; allowed are positive finite numbers"),
        (lambda: normal(("a",), pseudo_steps=0), "pseudo_steps must be a positive number"),
        (lambda: btil.LinearNormalEmission(("a",), (), intercept=False), "give a covariate"),
        (lambda: model(emissions={"ann": normal(("a",), ("actions",))}), "'actions' cannot be a"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
    constant = demos.replace(continuous={"ann_x": np.ones(demos.num_steps)})
    with pytest.raises(ValueError, match=r"ann_x leaves no residual.*say how large the noise is"):
        btil.fit(model(emissions={"ann": normal(("ann_x",))}), constant, progress=False)
    huge = demos.replace(continuous={"ann_x": np.resize([1e300, -1e300], demos.num_steps)})
    with pytest.raises(ValueError, match=r"values of ann_x are too large .* in larger units"):
        btil.fit(model(emissions={"ann": normal(("ann_x",))}), huge, progress=False)
    with pytest.raises(ValueError, match="policy: None for ann, whose actions are in the data"):
        btil.fit(model(policy=None), demos, progress=False)
    blank = _demos(blank=BLANK)
    with pytest.raises(ValueError, match=r"emission_ann: steps with ann_x .*use gibbs or mfvi"):
        btil.fit(_model(parents=()), blank, "exact", progress=False)


def test_what_does_not_take_them_says_so():
    demos, model = _demos(labelled=7), _model()
    mean_field = btil.fit(model, demos, progress=False, dtype="float64")
    for ask, message in (
        (lambda: mean_field.policy("bob"), "bob has no actions, and so no policy"),
        (lambda: mean_field.emission("cid"), "unknown agent 'cid'"),
        (
            lambda: btil.compare(model, demos.without_labels(), ("mfvi", "gibbs"), progress=False),
            "names those of ann, bob; label a step of every latent but one",
        ),
        (
            lambda: btil.suggest_model(demos.replace(continuous={"ann_x": np.arange(7.0)})),
            r"suggest_model looks at .* no actions of bob and no continuous columns",
        ),
        (lambda: btil.analysis.plot_policy_rows(mean_field, "bob"), "no actions of bob"),
    ):
        with pytest.raises(ValueError, match=message):
            ask()


def test_model_files_hold_emissions():
    import tomllib

    from btil.models.description import describe, model_from_description

    for model in (
        _model(),
        _model(covariates=("bob_x",)).resolved(_demos()),
        btil.TeamModel(
            policy=None, emissions=btil.NormalEmission({"ann": ("a",)}, noise=(0.5,), location=2)
        ),
    ):
        assert model_from_description(tomllib.loads(describe(model))) == model
    for section, message in (
        ({"family": "normal"}, "emissions: 'columns' is missing"),
        ({"family": "student", "columns": ["a"]}, "unknown family 'student'; allowed are 'normal'"),
        ({"columns": ["a"], "scale": 1}, "unknown key of a normal channel: 'scale'"),
        ({"columns": "a"}, "emissions: columns must be a tuple of names"),
        ({"columns": ["a"], "noise": -1}, "emissions: noise is -1; allowed are positive"),
    ):
        with pytest.raises(ValueError, match=message):
            model_from_description({"emissions": section})


def test_where_no_step_says_anything_no_context_is_visited():
    demos = _demos(lengths=(4, 3))
    silent = demos.replace(continuous={**demos.continuous, "bob_x": np.full(7, np.nan)})
    of_bob = btil.NormalEmission(("bob_x",), location=0.0, noise=1.0)
    model = _model()
    given = {**model.emissions, "bob": of_bob}
    channels = bind(
        btil.TeamModel(model.policy, model.transition, model.initial, emissions=given), silent
    ).channels
    assert channels["bob"].visited.shape == (0, 0)
    assert len(channels["bob"].contexts) == 1  # whose density is the prior
    assert (channels["bob"].row == -1).all()
    np.testing.assert_array_equal(channels["ann"].visited, channels["ann"].contexts)
    assert len(channels["ann"].visited) == 2


@pytest.mark.parametrize(
    ("given", "alike"),
    [
        ({}, {(0, 1), (0, 2), (1, 2)}),
        ({"location": np.array([[[0.0]], [[1.0]], [[0.0]]])}, {(0, 2)}),
        ({"noise": np.array([[2.0], [2.0], [3.0]])}, {(0, 1)}),
        ({"location": np.array([[[0.0]], [[1.0]], [[0.0]]]),
          "noise": np.array([[2.0], [2.0], [3.0]])}, set()),
    ],
)  # fmt: skip
def test_latents_are_exchangeable_where_their_priors_are_the_same(given, alike):
    model = btil.TeamModel(
        policy={"ann": btil.UniformCPT(), "bob": None},
        emissions={"bob": btil.LinearNormalEmission(("bob_x",), (), **given)},
    )
    demos = _demos(num_latents=(2, 3))
    family = bind(model.resolved(demos), demos).channels["bob"].family
    found = {pair for pair in itertools.combinations(range(3), 2)
             if family.exchangeable_latents(*pair)}  # fmt: skip
    assert found == alike
    assert all(family.exchangeable_latents(*pair[::-1]) for pair in alike)


def test_what_priors_leave_open_is_made_of_the_data():
    """Of means and residuals; the noise less by the d-th root of the number of latents."""
    demos = _demos(lengths=(16, 14), num_latents=(3, 2))
    columns = np.column_stack([demos.continuous[name] for name in ("ann_x", "ann_y")])
    plain = btil.NormalEmission(("ann_x", "ann_y")).resolved(demos, "ann")
    np.testing.assert_allclose(plain.location, columns.mean(0))
    np.testing.assert_allclose(plain.noise, columns.std(0) * 3 ** (-1 / 2))
    assert plain.degrees_of_freedom == 4
    assert plain.pseudo_steps == pytest.approx(0.01)
    location, precision, scale, degrees = plain.prior()
    np.testing.assert_allclose(location, columns.mean(0)[None])
    np.testing.assert_allclose(precision, [[0.01]])
    np.testing.assert_allclose(scale, np.diag(columns.var(0) / 3))  # 4 - 2 - 1 is 1
    assert degrees == 4
    linear = btil.LinearNormalEmission(
        ("ann_x", "ann_y"), ("bob_x",), pseudo_steps=0.5, degrees_of_freedom=6.0
    ).resolved(demos, "ann")
    inputs = np.column_stack([np.ones(30), demos.continuous["bob_x"]])
    slopes, *_ = np.linalg.lstsq(inputs, columns)
    left = (columns - inputs @ slopes).std(0)
    np.testing.assert_allclose(linear.location, slopes, rtol=1e-7)
    np.testing.assert_allclose(linear.noise, left * 3 ** (-1 / 2))
    np.testing.assert_allclose(linear.precision, 0.5 * inputs.T @ inputs / 30, rtol=1e-7)
    np.testing.assert_allclose(linear.prior().scale, 3 * np.diag(left**2 / 3))
    bob = btil.NormalEmission(("bob_x",)).resolved(demos, "bob")
    np.testing.assert_allclose(bob.noise, demos.continuous["bob_x"].std() / 2)
    assert bob.degrees_of_freedom == 3


def test_priors_may_differ_between_latents():
    """A strong prior of each latent is as good as knowing it: fits and density say so."""
    demos = _demos(labelled=0)
    generator = np.random.default_rng(7)
    location = np.ones((2, 2, 2))
    location[:, 0] = generator.normal(0.0, 20.0, size=(2, 2))
    noise = np.array([[15.0, 30.0], [40.0, 20.0]])
    model = btil.TeamModel(
        policy={"ann": btil.UniformCPT(), "bob": None},
        transition=btil.KnownCPT(np.array([[0.8, 0.2], [0.3, 0.7]]), parents=()),
        emissions={
            "ann": btil.LinearNormalEmission(
                ("ann_x", "ann_y"), ("previous_bob_x",), location=location, noise=noise,
                precision=1e12, degrees_of_freedom=1e10,
            )
        },
    )  # fmt: skip
    demos = demos.replace(num_latents=(2, 2))
    posterior = btil.fit(model, demos, progress=False, dtype="float64")
    assert posterior.model.emission("ann").exchangeable_latents(0, 0)
    assert not posterior.model.emission("ann").exchangeable_latents(0, 1)
    y = np.stack([demos.continuous["ann_x"], demos.continuous["ann_y"]], axis=1)
    logs = []
    for path in _paths(np.full(7, -1), 2):
        total = 0.0
        for t, latent in enumerate(path):
            first = t in demos.episode_starts
            total += np.log(0.5 if first else [[0.8, 0.2], [0.3, 0.7]][path[t - 1]][latent])
            if not first:
                mean = np.array([1.0, demos.continuous["bob_x"][t - 1]]) @ location[latent]
                total += stats.norm(mean, noise[latent]).logpdf(y[t]).sum()
        logs.append(total)
    expected = logsumexp(logs) - 7 * np.log(3)
    np.testing.assert_allclose(posterior.elbo, expected, rtol=1e-6)
    np.testing.assert_allclose(posterior.log_likelihood(demos).sum(), expected, rtol=1e-6)


@pytest.mark.covers("normal columns", "svi", "nuts")
@pytest.mark.covers("regressions on covariates", "svi", "nuts")
@pytest.mark.covers("blank cells of columns", "svi", "nuts")
@pytest.mark.covers("members without actions", "svi", "nuts")
@pytest.mark.parametrize("covariates", [(), BOTH])
def test_both_numpyro_forms_are_the_density_spelled_out(covariates, numpyro_as_it_is, x64):
    """log p(parameters, data) at a point: SciPy's priors, and all paths enumerated."""
    from numpyro.contrib.funsor import config_enumerate, enum
    from numpyro.contrib.funsor import log_density as funsor_log_density
    from numpyro.infer.util import log_density

    demos, model = _demos(blank=BLANK if not covariates else ()), _model(covariates=covariates)
    drawn = btil.fit(
        model, demos, "gibbs", progress=False, num_chains=1, num_warmup=3, num_samples=1,
        dtype="float64",
    )  # fmt: skip
    point = {site: rows.draws[0, 0] for site, rows in drawn.result.rows.items()}
    units = {agent: one.units() for agent, one in drawn.bound.channels.items()}
    expected = 0.0
    for agent, channel in drawn.bound.channels.items():
        own = drawn.result.channels[channel.name]
        spread = units[agent].spread
        covariance = own.covariance[0, 0] / np.outer(spread, spread)
        inverse = np.linalg.inv(units[agent].whitening)
        inside = inverse @ (own.coefficients[0, 0] - units[agent].trend) / spread
        factor = np.linalg.cholesky(covariance)
        point |= {f"emission_factor_{agent}": factor, f"emission_standardised_{agent}": inside}
        prior = units[agent].inside(channel.prior())
        d = factor.shape[-1]
        for at in np.ndindex(*covariance.shape[:2]):
            own_prior = [np.asarray(part[at]) for part in prior]
            expected += stats.invwishart(float(own_prior[3]), own_prior[2]).logpdf(covariance[at])
            # From the covariance to its factor: 2^d prod_i L_ii^(d + 1 - i).
            diagonal = np.diag(factor[at])
            expected += d * np.log(2) + np.sum(np.arange(d, 0, -1) * np.log(diagonal))
            expected += stats.matrix_normal(
                own_prior[0], np.linalg.inv(own_prior[1]), covariance[at]
            ).logpdf(inside[at])
    for site, rows in point.items():
        if not site.startswith("emission"):
            table = drawn.bound.tables[site]
            u = table.cpt.concentration(table.contexts)
            for at in np.ndindex(*rows.shape[:-1]):
                expected += stats.dirichlet(u[at]).logpdf(rows[at] / rows[at].sum())
    expected += drawn.log_likelihood(demos).sum()  # held against enumeration above
    spelled = enum(
        config_enumerate(btil.team_dbn(model, demos, "enumerate")), first_available_dim=-2
    )
    # Operation by operation a thousand programs would be compiled.
    forward, enumerated = jax.jit(
        lambda values: (
            log_density(btil.team_dbn(model, demos), (), {}, values)[0],
            funsor_log_density(spelled, (), {}, values)[0],
        )
    )(point)
    np.testing.assert_allclose(forward, expected, rtol=1e-9)
    np.testing.assert_allclose(enumerated, expected, rtol=1e-9)


def test_nuts_draws_from_the_exact_posterior():
    demos, model = _demos(lengths=(3, 2)), _model(parents=())
    exact = btil.fit(model, demos, "exact", progress=False)
    nuts = btil.fit(
        model, demos, "nuts", progress=False, num_chains=8, num_warmup=300, num_samples=400,
        chain_method="vectorized", target_accept_prob=0.95,
    )  # fmt: skip
    _assert_same_posterior(_chains(nuts), exact.sample(40_000, seed=1))
    tables = {name: table.prior_mean() for name, table in nuts.bound.tables.items()}
    tables |= {name: rows.draws[0, 5] for name, rows in nuts.result.rows.items()}
    for agent, channel in nuts.bound.channels.items():
        drawn = nuts.result.channels[channel.name]
        tables[likelihood_name(agent)] = step_log_density(
            channel, drawn.coefficients[0, 5], drawn.covariance[0, 5]
        )
    again = nuts.episode_log_likelihood(nuts.bound, lay_out(nuts.bound), tables)
    np.testing.assert_allclose(nuts.result.log_likelihood[0, 5], again, rtol=1e-9)


def test_svi_is_below_the_evidence():
    demos, model = _demos(lengths=(30, 20), labelled=30), _model()
    posterior = btil.fit(model, demos, "svi", progress=False, max_iterations=1500)
    mean_field = btil.fit(model, demos, progress=False, dtype="float64")
    # Latents are summed out, so it may be above mean field's bound; a normal guide costs some.
    assert abs(posterior.elbo - mean_field.elbo) < 5.0
    assert (posterior.decode(demos) == mean_field.decode(demos)).mean() > 0.95


@pytest.mark.parametrize("method", ["gibbs", "exact"])
def test_checkpoints_tell_other_columns_apart(method, tmp_path):
    demos, model = _demos(), _model()
    options = {"num_warmup": 2, "num_samples": 6, "num_chains": 2} if method == "gibbs" else {}
    if method == "exact":
        with pytest.raises(ValueError, match="checkpoint: exact does not take it"):
            btil.fit(model, demos, method, progress=False, checkpoint=tmp_path / "run", **options)
        return
    whole = btil.fit(model, demos, method, progress=False, **options)
    path = tmp_path / "run"
    btil.fit(model, demos, method, progress=False, checkpoint=path, **options)
    again = btil.fit(model, demos, method, progress=False, checkpoint=path, resume=True, **options)
    for one, other in zip(whole.emission("ann", 0), again.emission("ann", 0), strict=True):
        np.testing.assert_array_equal(one, other)
    moved = _rescaled(demos, lambda name, values: values + 1e-3)
    with pytest.raises(ValueError, match="model"):
        btil.fit(model, moved, method, progress=False, checkpoint=path, resume=True, **options)


@pytest.mark.covers("normal columns", "simulation")
@pytest.mark.covers("regressions on covariates", "simulation")
@pytest.mark.covers("blank cells of columns", "simulation")
@pytest.mark.covers("members without actions", "simulation")
@pytest.mark.runs_long
@pytest.mark.parametrize("covariates", [(), BOTH])
def test_posteriors_are_calibrated(covariates):
    """Simulation-based calibration: drawn from the prior, the truth's rank is uniform."""
    from btil.models.draws import prior_tables
    from btil.models.simulate import simulate

    generator = np.random.default_rng(0)
    blank = [("ann_x", 5), ("ann_y", 9), ("ann_x", 14), ("ann_y", 14)]
    recorded = _demos(seed=1, lengths=(12, 8), labelled=20, scale=1.0, blank=blank)
    recorded = _rescaled(recorded, lambda name, values: (values - 1000.0) / 2)
    weak = {"noise": 0.7, "degrees_of_freedom": 6, "location": 0.0}
    columns = ("ann_x", "ann_y")
    of_ann = (
        btil.LinearNormalEmission(columns, covariates, precision=2.0, **weak)
        if covariates
        else btil.NormalEmission(columns, parents=("state",), pseudo_steps=0.5, **weak)
    )
    model = btil.TeamModel(
        policy={"ann": btil.DirichletCPT(0.7, parents=("state",)), "bob": None},
        transition=btil.DirichletCPT(0.8, parents=()),
        emissions={"ann": of_ann, "bob": btil.NormalEmission(("bob_x",), pseudo_steps=1.0, **weak)},
    ).resolved(recorded)
    ranks = []
    for number in range(120):
        tables = prior_tables(model, recorded, generator)
        played = simulate(model, recorded, tables, generator)
        assert played.latents.min() >= 0
        np.testing.assert_array_equal(
            np.isnan(played.continuous["ann_x"]), np.isnan(recorded.continuous["ann_x"])
        )
        few = played.replace(latents=np.where(np.arange(20)[:, None] < 10, played.latents, -1))
        fitted = btil.fit(
            model, few, "gibbs", progress=False, num_chains=1, num_warmup=100, num_samples=380,
            seed=number,
        )  # fmt: skip
        own = []
        for agent, drawn in tables.channels.items():
            channel = fitted.bound.channels[agent]
            truth = drawn.rows(channel.contexts)
            posterior = fitted.result.channels[channel.name]
            for part, draws in zip(truth, posterior, strict=True):
                thinned = draws[0, ::20].reshape(19, -1)
                own.append((thinned < part.ravel()).sum(0))
        if num_wrong := [len(one) for one in own if one.max() > 19]:
            raise AssertionError(num_wrong)
        ranks.append(np.concatenate(own))
    counted = np.array(ranks) // 4  # five bins of four ranks
    expected = len(ranks) / 5
    squares = [
        ((np.bincount(column, minlength=5) - expected) ** 2 / expected).sum()
        for column in counted.T
    ]
    # The least p value of so many cells, none of them below one in ten thousand a cell.
    assert stats.chi2(4).sf(max(squares)) > 1e-3 / len(squares)
    together = np.bincount(counted.ravel(), minlength=5) / counted.size
    assert np.abs(together - 0.2).max() < 0.03


def test_columns_that_need_each_other_are_not_simulated():
    from btil.models.draws import prior_tables
    from btil.models.simulate import simulate

    demos = _demos(labelled=4)
    linear = btil.LinearNormalEmission
    model = btil.TeamModel(
        transition=btil.DirichletCPT(1.0, parents=()),
        emissions={"ann": linear(("ann_x",), ("bob_x",)), "bob": linear(("bob_x",), ("ann_x",))},
    )
    generator = np.random.default_rng(0)
    tables = prior_tables(model, demos, generator)
    with pytest.raises(ValueError, match=r"columns of ann, bob are covariates of each other"):
        simulate(model, demos, tables, generator)
    with pytest.raises(ValueError, match=r"'a' cannot be a covariate of itself; .*'previous_a'"):
        linear(("a", "b"), ("c", "a"))


def test_simulated_columns_follow_their_covariates_of_now_and_of_before():
    """Hardly any noise: every value is what coefficients say, with blanks where they were."""
    from btil.models.draws import prior_tables
    from btil.models.simulate import simulate

    demos = _demos(lengths=(5, 4), blank=[("ann_y", 2)])
    linear = btil.LinearNormalEmission
    model = btil.TeamModel(
        policy={"ann": btil.DirichletCPT(1.0), "bob": None},
        emissions={
            "ann": linear(("ann_x", "ann_y"), ("bob_x",)),
            "bob": linear(("bob_x",), ("previous_bob_x",), intercept=False),
        },
    ).resolved(demos)
    generator = np.random.default_rng(0)
    tables = prior_tables(model, demos, generator)
    coefficients = {
        "ann": np.array([[[[3.0, -1.0], [0.5, 0.25]], [[-4.0, 2.0], [1.0, 2.0]]]]),
        "bob": np.array([[[[0.9]], [[1.1]], [[0.5]]]]),
    }
    for agent, drawn in tables.channels.items():
        drawn.contexts = np.zeros((1, 0), np.int64)
        drawn.coefficients = coefficients[agent]
        _, latents, _, d = coefficients[agent].shape
        drawn.covariance = np.broadcast_to(1e-16 * np.eye(d), (1, latents, d, d)).copy()
    found = simulate(model, demos, tables, generator)
    x = found.continuous["bob_x"]
    first = found.episode_starts
    # Nothing is before the first step of an episode: what was recorded stays.
    np.testing.assert_array_equal(x[first], demos.continuous["bob_x"][first])
    later = np.setdiff1d(np.arange(9), first)
    of_bob = coefficients["bob"][0, found.latents[later, 1], 0, 0]
    np.testing.assert_allclose(x[later], of_bob * x[later - 1], rtol=1e-9)
    of_ann = coefficients["ann"][0, found.latents[:, 0]]
    expected = of_ann[:, 0] + of_ann[:, 1] * x[:, None]
    np.testing.assert_allclose(found.continuous["ann_x"], expected[:, 0], rtol=1e-9)
    seen = np.arange(9) != 2
    np.testing.assert_allclose(found.continuous["ann_y"][seen], expected[seen, 1], rtol=1e-9)
    assert np.isnan(found.continuous["ann_y"][2])


def test_the_mode_of_a_channel_is_where_its_density_is_highest():
    from btil.inference.result import MatrixNormalChannel
    from btil.models.emission import channel_log_density

    family = bind(_model(covariates=("bob_x",)), _demos()).channels["ann"].prior()
    own = MatrixNormalChannel(*(part[:1, :1] for part in family))
    coefficients, covariance = own.mode()
    highest = channel_log_density(family._replace(**own._asdict()), coefficients, covariance)
    for factor in (0.9, 1.1):
        other = channel_log_density(
            family._replace(**own._asdict()), coefficients, factor * covariance
        )
        assert other.item() < highest.item()
    assert own.mean().covariance.shape == covariance.shape
    # E[Sigma] = Psi / (nu - d - 1), and the mode Psi / (nu + d + p + 1); two of each here.
    ratio = (own.degrees - 3) / (own.degrees + 5)
    np.testing.assert_allclose(covariance, ratio[..., None, None] * own.mean().covariance)


def test_draws_and_means_of_regressions_put_columns_in_their_places():
    """One after the other in an order that differs from context to context."""
    from btil.inference.result import Chance, MixtureOfRegressions

    generator = np.random.default_rng(0)
    contexts, latents, p, d = 2, 1, 1, 2
    q = p + d - 1
    shape = (2, contexts, latents, d)
    precision = np.broadcast_to(1e14 * np.eye(q), (*shape, q, q)).copy()
    location = generator.normal(size=(*shape, q))
    location[..., 0, 1] = 0.0  # the first column has none before it
    degrees = np.full(shape, 1e9)
    noise = generator.uniform(0.5, 2.0, size=shape)
    one = MixtureOfRegressions(
        np.array([0.25, 0.75]), np.array([[0, 1], [1, 0]]), location, precision,
        noise * degrees, degrees, "team",
    )  # fmt: skip
    drawn = one.draw(4000, Chance(np.random.default_rng(1)))
    for found, mean in zip(drawn, one.mean(), strict=True):
        np.testing.assert_allclose(found.mean(0), mean, atol=0.1)
    for context, order in ((0, [0, 1]), (1, [1, 0])):
        first, second = order
        for k in (0, 1):
            b, v = location[k, context, 0], noise[k, context, 0]
            near = np.isclose(drawn.coefficients[:, context, 0, 0, first], b[0, 0], atol=1e-3)
            assert near.mean() == pytest.approx([0.25, 0.75][k], abs=0.03)
            coefficients = drawn.coefficients[near, context, 0, 0]
            # What the first column says of the second is added to it.
            np.testing.assert_allclose(
                coefficients[:, second], b[1, 0] + b[1, 1] * b[0, 0], atol=1e-3
            )
            covariance = drawn.covariance[near, context, 0]
            np.testing.assert_allclose(covariance[:, first, first], v[0], rtol=1e-3)
            np.testing.assert_allclose(covariance[:, first, second], b[1, 1] * v[0], atol=1e-2)
            np.testing.assert_allclose(
                covariance[:, second, second], v[1] + b[1, 1] ** 2 * v[0], rtol=1e-2
            )


def test_means_of_regressions_of_few_degrees_are_those_of_their_densities():
    """E[noise] is scale / (degrees - 2); the slope is uncertain by the noise over its precision."""
    from btil.inference.result import MixtureOfRegressions

    weights, scale = np.array([0.25, 0.75]), np.array([[3.0, 8.0], [6.0, 5.0]])
    degrees, slope = np.array([[5.0, 7.0], [6.0, 4.0]]), np.array([0.5, -2.0])
    location = np.zeros((2, 1, 1, 2, 2))
    location[:, 0, 0, 1, 1] = slope
    precision = np.broadcast_to(np.diag([2.0, 4.0]), (2, 1, 1, 2, 2, 2))
    found = MixtureOfRegressions(
        weights, np.array([[0, 1]]), location, precision,
        scale[:, None, None], degrees[:, None, None], "team",
    ).mean()  # fmt: skip
    first, second = (scale / (degrees - 2)).T
    expected = [
        [weights @ first, weights @ (slope * first)],
        [weights @ (slope * first), weights @ (second * (1 + first / 4) + slope**2 * first)],
    ]
    np.testing.assert_allclose(found.covariance[0, 0], expected)
    np.testing.assert_allclose(found.coefficients, 0)


def _prepared(demos, model, dtype=np.float64):
    """A team as Gibbs sampling has it."""
    from btil.inference import gibbs

    bound, dtype = bind(model, demos), np.dtype(dtype)
    layout = lay_out(bound)
    laid = laid_channels(bound, layout, dtype)
    return bound, layout, laid, *gibbs.prepare(bound, layout, dtype, channels=laid)


def test_gibbs_weighs_steps_and_draws_columns_by_their_densities(x64):
    """Under one draw: the log density of every step, and what the path says of the next draw."""
    from btil.inference import gibbs

    demos = _demos(lengths=(4, 3), blank=[("ann_x", 1), ("ann_y", 3)])
    bound, layout, laid, problem, program = _prepared(demos, _model(covariates=("bob_x",)))
    generator, points = np.random.default_rng(0), {}
    for name, own in laid.items():
        contexts, latents, p, d = own.channel.shape
        root = np.tril(generator.uniform(0.5, 1.5, size=(1, contexts, latents, d, d)))
        parts = generator.normal(size=(1, contexts, latents, p, d)), root @ root.swapaxes(-1, -2)
        points[name] = tuple(gibbs.with_padding(part, own, np.dtype(np.float64))[0]
                             for part in parts)  # fmt: skip
    path = generator.integers(3, size=demos.num_steps)
    in_lanes = np.where(layout.lanes >= 0, path[layout.lanes], 0)

    @jax.jit
    def looked_at(points, lanes):
        state = gibbs.State({}, channels=points)
        said = {name: gibbs._said(state, problem, name) for name in points}
        return said, gibbs._conditional(jax.random.key(0), lanes, state, problem, program, 1)

    said, conditional = looked_at(points, jax.numpy.asarray(in_lanes))
    for agent, channel in bound.channels.items():
        name, unit = channel.name, channel.units()
        coefficients, covariance = (np.asarray(part) for part in points[name])
        values, inputs = channel.observed.values, channel.observed.inputs
        known = np.isfinite(values)
        a = unit.steps(inputs, np.where(known, values, 0.0))
        p = inputs.shape[1]
        found = np.asarray(said[name])
        for t in range(demos.num_steps):
            (row,), (lane,) = np.nonzero(layout.lanes == t)
            for k in range(channel.num_latents):
                at, seen = channel.row[t], known[t]
                mean = a[t, :p] @ coefficients[at, k]
                expected = stats.multivariate_normal(
                    mean[seen], covariance[at, k][np.ix_(seen, seen)]
                ).logpdf(a[t, p:][seen])
                assert found[row, k, lane] == pytest.approx(expected), (agent, t, k)
    # Bob's column was seen throughout: a normal and an inverse gamma of the steps of each latent.
    bob = bound.channels["bob"]
    y = bob.units().steps(np.ones((7, 1)), bob.observed.values)[:, 1]
    location, precision, scale, degrees = (
        np.asarray(part)[0].squeeze() for part in problem.channels["emission_bob"].prior
    )
    for k in range(3):
        own = y[path == k]
        n, mean = len(own), own.mean() if len(own) else 0.0
        ratio = precision[k] * n / (precision[k] + n)
        squares = ((own - mean) ** 2).sum() + ratio * (mean - location[k]) ** 2
        expected = (
            (precision[k] * location[k] + own.sum()) / (precision[k] + n),
            precision[k] + n,
            scale[k] + squares,
            degrees[k] + n,
        )
        for part, one in zip(conditional, expected, strict=True):
            assert np.asarray(part)[0, k].item() == pytest.approx(one)


def test_columns_and_weights_of_annotations_say_together_what_a_latent_is():
    from btil.inference import gibbs

    demos = _demos(lengths=(4, 3))
    weights = np.random.default_rng(1).uniform(0.2, 2.0, size=(7, 2))
    weights[:2] = 1.0
    bound = bind(_model(), demos.replace(latent_weights={"ann": weights}))
    index = lay_out(bound).index
    logs = np.asarray(index["ann"].log_weights)
    assert np.abs(logs).max() > 0.1
    evidence = np.random.default_rng(2).normal(size=(logs.shape[0], 2, logs.shape[1]))
    evidence = jax.numpy.asarray(evidence, "float32")
    both = gibbs._all_said(evidence, index["ann"])
    np.testing.assert_allclose(both, np.swapaxes(evidence, 1, 2) + logs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gibbs._all_said(None, index["ann"]), logs)
    np.testing.assert_allclose(gibbs._all_said(evidence, index["bob"]), np.swapaxes(evidence, 1, 2))
    assert gibbs._all_said(None, index["bob"]) is None


@pytest.mark.parametrize("labelled", [24, 0])
def test_chains_of_columns_begin_at_draws_given_the_labels_or_a_deal_of_all_steps(labelled):
    from btil.inference import gibbs

    demos = _demos(lengths=(16, 14), labelled=labelled, num_latents=(2, 1))
    # Far away where there are labels for other steps: these are left out then.
    far = {"bob_x": demos.continuous["bob_x"] + 900.0 * (np.arange(30) >= 24)}
    demos = demos.replace(continuous={**demos.continuous, **far})
    bound, layout, laid, problem, program = _prepared(demos, _model(), np.float32)
    start = functools.partial(gibbs._start, bound, layout, (), laid, 3)
    dtype, name = np.dtype(np.float32), "emission_bob"
    number = 30 if labelled else 4
    coefficients, covariance = (np.asarray(part) for part in start(number, dtype).channels[name])
    # Bob has one latent: whatever is dealt out, its mean is that of all steps.
    counted = labelled or 30
    channel = bound.channels["bob"]
    y, (mean, strength) = channel.observed.values[:, 0], (
        part[0, 0].item() for part in channel.prior()[:2]
    )  # fmt: skip
    inside = gibbs.in_units(laid[name], coefficients[None], covariance[None])
    drawn = inside.coefficients[0, :, 0, 0, 0, 0]
    expected = (strength * mean + y[:counted].sum()) / (strength + counted)
    error = drawn.std() / np.sqrt(number)
    assert abs(drawn.mean() - expected) < 4.5 * error
    assert len(set(drawn)) == number
    # Further contexts are padding, like the last one.
    for part in (coefficients, covariance):
        np.testing.assert_array_equal(part, np.broadcast_to(part[:, :1], part.shape))
    if labelled:
        record = gibbs._nothing_kept(bound, problem, program, laid, None, 1, (2, 5), dtype)
        shapes = {name: values.shape for name, values in record.drawn.items()}
        assert shapes["emission_ann/coefficients"] == (2, 5, 2, 2, 1, 2)
        assert shapes["emission_ann/covariance"] == (2, 5, 2, 2, 2, 2)
        assert shapes["policy_ann"] == (2, 5, *bound.tables["policy_ann"].shape)


@pytest.mark.parametrize("num_draws", [None, 3])
def test_columns_are_predicted_one_step_ahead(num_draws):
    demos, model = _demos(lengths=(8, 7), blank=BLANK), _model(covariates=("previous_bob_x",))
    posterior = btil.fit(model, demos, progress=False, dtype="float64")
    found = posterior.predict_columns(demos, num_draws=num_draws, seed=4)
    if num_draws is None:
        draws = [posterior]
    else:  # one posterior a draw, by the strong priors that know it
        draws = list(posterior.drawn_rows(posterior.bound, num_draws, 4))
        points = posterior.drawn_channel("ann", np.array([[0], [1]]), num_draws, 4)
    expected = np.zeros((15, 2))
    for number, one in enumerate(draws):
        if num_draws is None:
            initial, transition = posterior.initial("ann")[0], posterior.transition("ann")[0]
            coefficients = posterior.emission("ann", [0, 1]).coefficients
            policy, said = (
                posterior.policy("ann"),
                step_log_density(
                    posterior.bound.channels["ann"], *posterior.emission("ann", [0, 1])
                ),
            )
        else:
            initial, transition = one["initial_ann"][0], one["transition_ann"][0]
            policy, said = one["policy_ann"], one[likelihood_name("ann")]
            coefficients = points.coefficients[number]
        for t in range(15):
            if t in demos.episode_starts:
                ahead = initial
                expected[t] = np.nan
            else:
                ahead = belief @ transition  # of the step before
                u = np.array([1.0, demos.continuous["bob_x"][t - 1]])
                expected[t] += ahead @ (u @ coefficients[demos.states[t]]) / len(draws)
            belief = ahead * policy[demos.states[t], :, demos.actions[t, 0]] * np.exp(said[t])
            belief = belief / belief.sum()
    np.testing.assert_allclose(found["ann"], expected, rtol=1e-9)
    assert found["bob"].shape == (15, 1)
    hidden = posterior.predict_columns(demos.without_labels(), num_draws=num_draws, seed=4)
    np.testing.assert_array_equal(found["ann"], hidden["ann"])
    told = posterior.predict_columns(demos, use_labels=True, num_draws=num_draws, seed=4)
    assert not np.allclose(told["ann"][2], found["ann"][2])


@pytest.mark.parametrize("method", ["mfvi", "gibbs", "exact"])
def test_latents_are_renamed_with_their_columns(method):
    demos, model = _demos(), _model()
    options = {"num_chains": 2, "num_warmup": 3, "num_samples": 4} if method == "gibbs" else {}
    posterior = btil.fit(model, demos, method, progress=False, dtype="float64", **options)
    names = {"ann": [1, 0], "bob": [2, 0, 1]}
    renamed = rename_latents(posterior, {agent: np.array(own) for agent, own in names.items()})
    unlabelled = demos.without_labels()
    np.testing.assert_allclose(
        renamed.log_likelihood(unlabelled), posterior.log_likelihood(unlabelled), rtol=1e-12
    )
    for agent, own in names.items():
        for one, other in zip(
            renamed.emission(agent, [0, 1]), posterior.emission(agent, [0, 1]), strict=True
        ):
            np.testing.assert_allclose(one, other[:, own], rtol=1e-14)  # sums in another order
