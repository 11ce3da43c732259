"""Which model predicts best: against exact leave-one-out, and what is refused."""

import dataclasses

import arviz
import numpy as np
import pytest
from teams import hmm_demos, hmm_model, random_demos

import btil
from btil.analysis.monte_carlo import blocks_of_draws
from btil.analysis.selection import (
    ModelComparison,
    _averaged,
    _chance_of_weighing,
    _leave_out,
    _Scores,
    _summarize,
    rank_models,
)
from btil.inference.result import DirichletRows, DrawnParameters, FitResult
from btil.models.team import bind
from btil.posterior.posterior import TeamPosterior

EPISODES = np.repeat(np.arange(8), 3)
ACTIONS = [0, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 0, 0, 1, 1, 0]
# Half of the steps are labelled: the exact posterior has 4,096 components.
LABELS = [0, 0, 1, -1, 1, -1, 0, -1, -1, 1, 1, -1, -1, -1, 1, 0, 0, -1, -1, 0, -1, 1, -1, -1]


def demos_of(num_latents, labels=LABELS, actions=ACTIONS):
    return hmm_demos(actions, labels, num_latents, episodes=EPISODES, num_actions=2)


@pytest.fixture(scope="module")
def two():
    return btil.fit(hmm_model(), demos_of(2), "exact", progress=False)


def left_out(posterior):
    """log p(episode | all others), by ratios of exact evidences."""
    demos = posterior.demos
    each = np.arange(demos.num_episodes)
    without = [
        btil.fit(posterior.model, demos.select(each != m), "exact", progress=False).elbo
        for m in each
    ]
    return posterior.elbo - np.array(without)


@pytest.fixture(scope="module")
def policies():
    """Two priors for the same data: one that expects sure actions, one that expects even ones."""
    demos = demos_of(2)
    return {
        name: btil.fit(
            dataclasses.replace(hmm_model(), policy=btil.DirichletCPT(concentration)),
            demos,
            "exact",
            progress=False,
        )
        for name, concentration in (("sure", 0.3), ("even", 5.0))
    }


@pytest.fixture(scope="module")
def truth(policies):
    return {name: left_out(posterior) for name, posterior in policies.items()}


def test_exact_leave_one_out_is_met(policies, truth):
    found = rank_models(policies, num_draws=2000, seed=1, progress=False)
    for name, own in truth.items():
        np.testing.assert_allclose(found.episodes[name], own, atol=0.06)
        row = found.table.loc[name]
        assert row["elpd"] == pytest.approx(own.sum(), abs=0.12)
        among_episodes = np.sqrt(8) * found.episodes[name].std(ddof=1)
        assert among_episodes == pytest.approx(np.sqrt(8) * own.std(ddof=1), rel=0.05)
        assert row["se"] == pytest.approx(np.hypot(among_episodes, row["monte_carlo_se"]))
        assert 0 < row["monte_carlo_se"] < 0.1
        assert row["refits"] == 0
        assert 0.5 < row["num_parameters"] < 8
    gaps = truth["sure"] - truth["even"]
    best, other = ("sure", "even") if gaps.sum() > 0 else ("even", "sure")
    assert list(found.table.index) == [best, other]
    assert found.table.loc[other, "difference"] == pytest.approx(-abs(gaps.sum()), abs=0.1)
    expected = np.sqrt(8) * gaps.std(ddof=1)
    assert found.table.loc[other, "difference_se"] == pytest.approx(expected, rel=0.1)
    assert found.table.loc[best, ["difference", "difference_se"]].tolist() == [0, 0]
    assert found.notes[0].endswith("scored: actions and 12 labels.")
    assert repr(found) == f"ModelComparison(loo: {best}, {other}, the best first)"


def test_arviz_says_the_same_of_chains():
    options = {"num_chains": 2, "num_warmup": 50, "num_samples": 500}
    posteriors = {
        str(concentration): btil.fit(
            hmm_model(concentration), demos_of(2), "gibbs", progress=False, **options
        )
        for concentration in (0.5, 3.0)
    }
    found = rank_models(posteriors, progress=False)
    for name, posterior in posteriors.items():
        worth = btil.inference.chains.ess(
            posterior.result.log_likelihood.sum(-1, keepdims=True).astype(float)
        )
        loo = arviz.loo(
            posterior.to_datatree(),
            var_name="episodes",
            pointwise=True,
            reff=float(np.clip(worth[0] / 1000, 0, 1)),
        )
        np.testing.assert_allclose(found.episodes[name], loo.elpd_i, atol=1e-4)
        row = found.table.loc[name]
        assert row["elpd"] == pytest.approx(loo.elpd, abs=1e-3)
        assert row["num_parameters"] == pytest.approx(loo.p, abs=1e-3)
        assert row["max_khat"] == pytest.approx(float(loo.pareto_k.max()), abs=1e-3)


@pytest.fixture
def heavy(monkeypatch):
    """Importance sampling seems not to do for the episodes 1 and 6."""
    from arviz_stats.base import array_stats

    true = array_stats.psislw

    def heavy(*args, **kwargs):
        log_weights, khat = true(*args, **kwargs)
        khat = np.full_like(khat, 0.1)
        khat[[1, 6]] = 0.9, 0.8
        return log_weights, khat

    monkeypatch.setattr(array_stats, "psislw", heavy)


@pytest.mark.usefixtures("heavy")
def test_a_model_is_fitted_anew_with_its_options(two, monkeypatch):
    asked = []

    def fit(model, demos, method, **options):
        del options["progress"], options["dtype"]
        asked.append((demos.num_episodes, method, options))
        return two

    monkeypatch.setattr("btil.posterior.fit.fit", fit)
    chosen = dataclasses.replace(two, options={"max_sequences": 5000})
    rank_models({"chosen": chosen, "plain": two}, refit=True, num_draws=100, seed=3)
    with_options = (7, "exact", {"seed": 3, "max_sequences": 5000})
    assert asked == [with_options, with_options, *[(7, "exact", {"seed": 3})] * 2]


@pytest.mark.usefixtures("heavy")
def test_episodes_that_cannot_be_left_out_are_named_or_fitted_without(policies, truth):
    with pytest.raises(ValueError, match=r"sure: .* leave out episodes 1 \(0\.90\), 6 \(0\.80\)"):
        rank_models(policies, num_draws=100, progress=False)
    found = rank_models(policies, refit=True, num_draws=400, progress=False)
    assert (found.table["refits"] == 2).all()
    assert (found.table["max_khat"] == 0.1).all()
    # The spread of an average over 400 draws is about 0.04.
    for name, own in truth.items():
        refitted = found.episodes[name].to_numpy()
        np.testing.assert_allclose(refitted[[1, 6]], own[[1, 6]], atol=0.15)


def test_given_tables_need_no_approximation(two):
    model = btil.TeamModel(
        policy=btil.KnownCPT([[0.7, 0.3], [0.2, 0.8]]),
        transition=btil.KnownCPT([[0.6, 0.4], [0.3, 0.7]]),
    )
    given = btil.fit(model, demos_of(2), progress=False)
    found = rank_models({"learned": two, "given": given}, progress=False)
    np.testing.assert_allclose(found.episodes["given"], given.log_likelihood(demos_of(2)))
    assert found.table.loc["given", "num_parameters"] == 0
    assert found.table.loc["given", "refits"] == 0
    assert np.isnan(found.table.loc["given", "max_khat"])


def test_parameters_alone_are_something_learned():
    """As of a NumPyro model of one's own, which has no rows."""
    options = {"num_chains": 2, "num_warmup": 50, "num_samples": 500}
    gibbs = btil.fit(hmm_model(3.0), demos_of(2), "gibbs", progress=False, **options)
    draws = gibbs.result.rows["policy_agent_0"].draws
    result = gibbs.result._replace(rows={}, parameters={"skill": DrawnParameters(draws)})
    own = dataclasses.replace(gibbs, result=result)
    found = rank_models({"tables": gibbs, "own": own}, progress=False)
    np.testing.assert_array_equal(found.episodes["tables"], found.episodes["own"])
    assert found.table.loc["own", "num_parameters"] > 0.5


def held_out(num_episodes=3, first=20):
    generator = np.random.default_rng(5)
    actions = generator.integers(2, size=4 * num_episodes).tolist()
    episodes = np.repeat(first + np.arange(num_episodes), 4)
    return hmm_demos(actions, [0] * len(actions), 2, episodes=episodes, num_actions=2)


def test_held_out_episodes_are_averaged_over_draws(two):
    mean_field = btil.fit(hmm_model(), demos_of(2), progress=False)
    demos = held_out()
    found = rank_models(
        {"exact": two, "mfvi": mean_field}, demos, "held_out", num_draws=200, seed=3
    )
    for name, posterior in (("exact", two), ("mfvi", mean_field)):
        own = posterior.log_likelihood(demos.without_labels(), num_draws=2000, seed=4)
        error = found.table.loc[name, "monte_carlo_se"]
        assert abs(found.episodes[name].sum() - own.sum()) < 4 * error
        assert 0 < error < 0.1
    assert found.episodes.index.tolist() == [20, 21, 22]
    columns = ["elpd", "se", "difference", "difference_se", "monte_carlo_se"]
    assert list(found.table.columns) == columns
    assert any("labels are dropped" in note for note in found.notes)
    assert any("rather too small" in note for note in found.notes)


def learned(rows, log_likelihood=None):
    """A posterior of which only is asked whether something was learned, and by which chains."""
    demos = demos_of(2)
    bound = bind(hmm_model(), demos)
    made = {"policy_agent_0": DirichletRows(np.ones((1, 2, 2)))} if rows else {}
    result = FitResult(made, True, "made by hand", log_likelihood=log_likelihood)
    return TeamPosterior(bound, "exact", result, seed=0, dtype=np.dtype(float), wall_time=0.0)


def test_models_are_summed_up_by_hand():
    demos = demos_of(2).select(range(4))
    worse, better = np.array([-1.0, -2.0, -3.0, -6.0]), np.array([-2.0, -1.0, -1.0, -2.0])
    nothing, gained = np.full(4, np.nan), np.array([1, 2, 0, 0.5])
    scores = {
        "worse": _Scores(worse, 0.3, np.array([0.1, np.nan, 0.4, 0.2]), worse + gained),
        "better": _Scores(better, 0.4, nothing, better),
    }
    generator = np.random.default_rng(0)
    chains = generator.normal(size=(2, 100, 4)) + np.array([0.0, 3.0])[:, None, None]
    posteriors = {"worse": learned(True, chains), "better": learned(False)}
    found = _summarize(scores, posteriors, demos, "loo")
    table = found.table
    assert table.index.tolist() == ["better", "worse"]
    assert table["elpd"].tolist() == [-6, -12]
    assert table["difference"].tolist() == [0, -6]
    error = 2 * np.std([1, -1, -2, -4], ddof=1)
    np.testing.assert_allclose(table["difference_se"], [0, np.sqrt(error**2 + 0.3**2 + 0.4**2)])
    errors = [np.hypot(2 * np.std(own, ddof=1), c) for own, c in ((better, 0.4), (worse, 0.3))]
    np.testing.assert_allclose(table["se"], errors)
    assert table["monte_carlo_se"].tolist() == [0.4, 0.3]
    assert table["num_parameters"].tolist() == [0, 3.5]
    np.testing.assert_array_equal(table["max_khat"], [np.nan, 0.4])
    # Given tables were fitted to nothing, and are not fitted anew.
    assert table["refits"].tolist() == [0, 1]
    assert found.episodes["worse"].tolist() == worse.tolist()
    assert found.episodes.index.tolist() == [0, 1, 2, 3]
    first, rough, disagree = found.notes
    assert first == "Each of 4 training episodes left out in turn; scored: actions and 7 labels."
    assert rough.startswith("With so few episodes the standard errors are rough")
    assert disagree.startswith("worse: the chains disagree about the log likelihood (R-hat ")
    shown = found.summary_table()
    cells = [[cell.plain for cell in column.cells] for column in shown.columns]
    assert cells[0] == ["better", "worse"]
    assert cells[1] == ["-6.00", "-12.00"]
    assert cells[5:] == [["0.0", "3.5"], ["–", "0.40"], ["0", "1"]]


def test_what_is_impossible_or_left_to_chance_is_told():
    demos = demos_of(2, None)
    demos = btil.concatenate([demos, demos, demos.select(range(4))])
    scores = {
        "good": _Scores(np.full(20, -1.0), 0.0),
        "never": _Scores(np.array([-np.inf, *[-1.0] * 19]), 0.0),
        "luck": _Scores(-1 - np.arange(20) / 100, 0.2),
    }
    found = _summarize(scores, dict.fromkeys(scores, learned(True)), demos, "held_out")
    assert found.table.index.tolist() == ["good", "luck", "never"]
    assert list(found.table.columns) == [
        "elpd", "se", "difference", "difference_se", "monte_carlo_se",
    ]  # fmt: skip
    assert found.table.loc["never", ["elpd", "difference"]].tolist() == [-np.inf, -np.inf]
    assert np.isnan(found.table.loc["never", ["se", "difference_se"]].astype(float)).all()
    among = np.sqrt(20) * np.std(np.arange(20) / 100, ddof=1)
    assert found.notes == (
        "20 held-out episodes; scored: actions, labels are dropped.",
        f"luck: 0.20 of the error {np.hypot(among, 0.2):.2f} is Monte Carlo error; more draws "
        "would take it away.",
        "Impossible under never: at least one episode.",
    )
    lucky = scores | {"luck": scores["luck"]._replace(chance=0.14)}
    told = _summarize(lucky, dict.fromkeys(scores, learned(True)), demos, "held_out").notes
    assert len(told) == 2  # 0.14 of 0.30 is less than a half


def test_every_block_of_draws_has_a_seed_of_its_own(two, monkeypatch):
    asked = []

    def log_likelihood(self, demos, num_draws, seed):
        asked.append((num_draws, seed))
        return np.full(demos.num_episodes, -1.0 - 0.1 * (seed % 7))

    monkeypatch.setattr(TeamPosterior, "log_likelihood", log_likelihood)
    found = _averaged(two, held_out(), 130, 4)
    blocks = blocks_of_draws(two, 130, 4)
    assert asked == [(block.num_draws, block.seed) for block in blocks]
    assert len({seed for _, seed in asked}) == 20
    each = np.exp([-1.0 - 0.1 * (seed % 7) for _, seed in asked])
    sizes = [number for number, _ in asked]
    np.testing.assert_allclose(found.elpd, np.log(np.average(each, weights=sizes)))
    without = [
        3 * np.log(np.average(np.delete(each, k), weights=np.delete(sizes, k))) for k in range(20)
    ]
    assert found.chance == pytest.approx(np.sqrt(19 * np.var(without)))


def test_the_error_of_weighing_is_that_of_blocks_of_draws():
    """What a draw moves: its share of an episode's density, less its weight."""
    generator = np.random.default_rng(0)
    weights, shares = (generator.dirichlet(np.ones(60), size=3) for _ in range(2))
    logs = (np.log(one).reshape(3, 2, 30) for one in (weights, shares))
    moved = (shares - weights).sum(0).reshape(20, 3).sum(1)
    assert _chance_of_weighing(*logs) == pytest.approx(np.sqrt(20 * moved.var(ddof=1)))


def test_fewer_draws_are_relied_on_less(two, monkeypatch):
    """Of a hundred draws a k-hat of 0.6 is too large, of ten thousand it is not."""
    from arviz_stats.base import array_stats

    def psislw(values, **options):
        logs = np.full((8, *values.shape[:2]), -np.log(values[..., 0].size))
        return logs, np.array([0.1, 0.6, *[0.2] * 6])

    monkeypatch.setattr(array_stats, "psislw", psislw)

    def left_out(number):
        drawn = np.random.default_rng(0).normal(-2, 0.1, (1, number, 8))
        result = two.result._replace(log_likelihood=drawn)
        return _leave_out("one", dataclasses.replace(two, result=result), 100, False, 0, False)

    with pytest.raises(ValueError, match=r"episodes 1 \(0\.60\), Pareto k-hat above 0\.50"):
        left_out(100)
    found = left_out(10_000)
    assert found.khat.tolist() == [0.1, 0.6, *[0.2] * 6]
    drawn = np.random.default_rng(0).normal(-2, 0.1, (10_000, 8))
    np.testing.assert_allclose(found.elpd, np.log(np.exp(drawn).mean(0)))
    np.testing.assert_allclose(found.in_sample, found.elpd)


def test_what_cannot_be_weighed_is_predicted_by_a_fit_to_the_others(monkeypatch):
    """Of episodes 1 and 6 nothing stays of the draws but what flattered the model."""
    from arviz_stats.base import array_stats

    drawn = np.random.default_rng(0).normal(-2, 0.1, (1, 500, 8))
    log_weights = np.full((8, 1, 500), -np.log(500))
    khat = np.array([0.1, 0.9, 0.2, 0.1, 0.1, 0.1, 0.8, 0.3])
    monkeypatch.setattr(array_stats, "psislw", lambda *_, **__: (log_weights, khat.copy()))
    asked, predicted = [], []

    def fit(model, demos, method, *, seed, progress, **options):
        asked.append((demos.episode_ids.tolist(), method, seed, progress))
        return learned(True)

    def log_likelihood(self, demos, num_draws, seed):
        predicted.append((demos.episode_ids.tolist(), num_draws))
        # Apart by a little from block to block of draws.
        return np.array([-3.0 - one - 0.1 * (seed % 5) for one in demos.episode_ids])

    monkeypatch.setattr("btil.posterior.fit.fit", fit)
    monkeypatch.setattr(TeamPosterior, "log_likelihood", log_likelihood)
    posterior = learned(True, drawn)
    found = _leave_out("one", posterior, 120, True, 3, False)
    others = [[0, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 7]]
    assert asked == [(own, "exact", 3, False) for own in others]
    assert [ids for ids, _ in predicted] == [[1]] * 20 + [[6]] * 20
    assert sum(number for _, number in predicted) == 2 * 120
    weighed = [0, 2, 3, 4, 5, 7]
    means = np.log(np.exp(drawn[0]).mean(0))
    np.testing.assert_allclose(found.elpd[weighed], means[weighed])
    alone = [_averaged(posterior, demos_of(2).select([m]), 120, 3) for m in (1, 6)]
    np.testing.assert_allclose(found.elpd[[1, 6]], [one.elpd[0] for one in alone])
    np.testing.assert_allclose(found.in_sample, means)
    np.testing.assert_array_equal(found.khat, [0.1, np.nan, 0.2, 0.1, 0.1, 0.1, np.nan, 0.3])
    # Errors are independent: of what is weighed, and of each fit.
    shares = (drawn - means).transpose(2, 0, 1)[weighed] - np.log(500)
    errors = [_chance_of_weighing(log_weights[weighed], shares), *(one.chance for one in alone)]
    assert min(errors) > 0
    assert found.chance == pytest.approx(np.sqrt(np.square(errors).sum()))


def test_of_given_tables_densities_are_what_they_are(monkeypatch):
    """Held out without labels; left out with those that the model was given."""

    def log_likelihood(self, demos):
        return -1.0 - (demos.latents >= 0).sum() - np.arange(demos.num_episodes)

    monkeypatch.setattr(TeamPosterior, "log_likelihood", log_likelihood)
    given = learned(False)
    found = _leave_out("given", given, 100, False, 0, False)
    assert found.elpd.tolist() == found.in_sample.tolist() == [-13.0 - k for k in range(8)]
    assert found.chance == 0
    assert np.isnan(found.khat).all()
    found = rank_models({"one": given, "same": given}, held_out(), "held_out")
    assert found.episodes["one"].tolist() == [-1, -2, -3]
    assert found.episodes.index.tolist() == [20, 21, 22]
    assert found.table["monte_carlo_se"].tolist() == [0, 0]


def test_learned_tables_are_averaged_without_labels_of_what_is_held_out(monkeypatch):
    asked = []

    def log_likelihood(self, demos, num_draws, seed):
        asked.append((bool((demos.latents >= 0).any()), num_draws, seed))
        return np.full(demos.num_episodes, -1.0)

    monkeypatch.setattr(TeamPosterior, "log_likelihood", log_likelihood)
    one = learned(True)
    rank_models({"one": one, "same": one}, held_out(), "held_out", num_draws=130, seed=4)
    blocks = blocks_of_draws(one, 130, 4)
    assert asked == 2 * [(False, block.num_draws, block.seed) for block in blocks]


def calibrated(scores):
    """Whether sums over many seeds of one posterior spread as their Monte Carlo errors say."""
    spread = np.std([one.elpd.sum() for one in scores], ddof=1)
    return 0.7 < spread / np.sqrt(np.mean([one.chance**2 for one in scores])) < 1.4


def test_seeds_differ_by_the_error_that_is_told(policies):
    demos = held_out().without_labels()
    assert calibrated([_averaged(policies["sure"], demos, 40, seed) for seed in range(16)])


def test_chains_differ_by_the_error_that_is_told(two):
    """Log likelihoods that go up and down together over some draws, in both chains."""
    runs = []
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(0, 0.3, (2, 600, 8))
        for draw in range(1, 600):
            noise[:, draw] = 0.7 * noise[:, draw - 1] + np.sqrt(1 - 0.7**2) * noise[:, draw]
        chains = two.result._replace(log_likelihood=noise - 3)
        one = dataclasses.replace(two, method="gibbs", result=chains)
        runs.append(_leave_out("one", one, 1200, False, 0, False))
    assert calibrated(runs)


def test_much_chance_is_told(two):
    """Episodes that are all alike: what is left is chance."""
    episodes = np.repeat(range(30, 34), 4)
    same = hmm_demos([0, 1, 1, 0] * 4, None, 2, episodes=episodes, num_actions=2)
    found = rank_models({"two": two, "same": two}, same, "held_out", num_draws=100)
    told = [note for note in found.notes if note.startswith("two: ")]
    row = found.table.loc["two"]
    assert row["se"] == pytest.approx(row["monte_carlo_se"])
    assert told == [
        f"two: {row['monte_carlo_se']:.2f} of the error {row['se']:.2f} is Monte Carlo error; more "
        "draws would take it away."
    ]


def test_numbers_of_latents_may_differ(two):
    unlabelled = demos_of(2, None)
    three = btil.fit(hmm_model(), demos_of(3, None), progress=False)
    same = btil.fit(hmm_model(), unlabelled, progress=False)
    found = rank_models({"two": same, "three": three}, held_out(), "held_out", num_draws=100)
    assert np.isfinite(found.table["elpd"]).all()


def test_table_fits_a_terminal(policies):
    from rich.console import Console

    found = rank_models(policies, progress=False)
    assert isinstance(found, ModelComparison)
    console = Console(width=100)
    with console.capture() as captured:
        console.print(found.summary_table())
    assert max(map(len, captured.get().splitlines())) <= 100
    assert "worst k-hat" in captured.get()


# ---------------------------------------------------------------------- what is refused


def mean_field(demos, model=None):
    return btil.fit(model or hmm_model(), demos, progress=False, max_iterations=2)


def test_different_data_are_refused(two):
    def refuse(other, message):
        with pytest.raises(ValueError, match=message):
            rank_models({"two": two, "other": other}, held_out(), "held_out")

    refuse(mean_field(demos_of(2).select(range(7))), "different episodes: 7 with 21 steps, 8")
    changed = list(ACTIONS)
    changed[7] = 1 - changed[7]
    refuse(
        mean_field(demos_of(2, LABELS, changed)), "different actions, first in episode 2, step 1"
    )
    refuse(mean_field(demos_of(2, None)), "other learned from 0 labels and two from 12")
    refuse(
        mean_field(demos_of(2, [0, 1, 1, *LABELS[3:]])), "different labels, .* episode 0, step 1"
    )
    other = random_demos(lengths=(3,) * 8, num_latents=(2, 2), num_actions=(2, 2))
    refuse(mean_field(other, btil.TeamModel(transition=btil.DirichletCPT(1.0))), "different teams")
    states = demos_of(2).replace(states=np.arange(24) % 2, num_states=2)
    refuse(mean_field(states), "different states state, first in episode 0, step 1")


def explaining(columns, **continuous):
    """A posterior of a model that explains columns, without a fit."""
    demos = demos_of(2).replace(continuous=continuous)
    emissions = {"agent_0": btil.NormalEmission(columns)}
    bound = bind(dataclasses.replace(hmm_model(), emissions=emissions), demos)
    result = FitResult({}, True, "made by hand")
    return TeamPosterior(bound, "mfvi", result, seed=0, dtype=np.dtype(float), wall_time=0.0)


def test_other_columns_or_units_are_refused():
    meters, pulse = np.linspace(0, 1, 24), np.linspace(60, 80, 24)
    meters[3] = np.nan
    one = explaining(("way",), way=meters, pulse=pulse)
    feet = explaining(("way",), way=3.28 * meters + 1, pulse=pulse)
    both = explaining(("way", "pulse"), way=meters, pulse=pulse)
    with pytest.raises(
        ValueError, match=r"feet and one learned from different way, first in epi.* 0"
    ):
        rank_models({"one": one, "feet": feet}, held_out(), "held_out")
    with pytest.raises(ValueError, match="both explains columns pulse, way, one way: log like"):
        rank_models({"one": one, "both": both}, held_out(), "held_out")
    # What is not explained may differ.
    other = explaining(("way",), way=meters, pulse=pulse + 1)
    with pytest.raises(ValueError, match="needs episodes that no model has seen"):
        rank_models({"one": one, "other": other}, None, "held_out")


def test_draws_that_are_not_the_posteriors_are_refused(two):
    with pytest.raises(ValueError, match="vague: draws from mfvi are not the posterior's"):
        rank_models({"two": two, "vague": mean_field(demos_of(2))})


def test_episodes_that_were_learned_from_are_refused(two):
    other = mean_field(demos_of(2))
    both = {"two": two, "other": other}
    with pytest.raises(ValueError, match="fitted to episodes 3, 4, which"):
        rank_models(both, demos_of(2).select([3, 4]), "held_out")
    mixed = btil.concatenate([held_out(), demos_of(2).select([5])])
    with pytest.raises(ValueError, match="fitted to episode 5, which"):
        rank_models(both, mixed, "held_out")
    # Under other names they are still the same.
    renamed = demos_of(2).select([3, 4])
    renamed = renamed.replace(episodes=np.repeat(["a", "b"], 3))
    with pytest.raises(ValueError, match="fitted to episodes a, b, which"):
        rank_models(both, renamed, "held_out")
    # Nor does it matter how their actions are numbered.
    named = demos_of(2).replace(action_names={"agent_0": ("up", "down")})
    turned = named.select([3, 4])
    turned = turned.replace(actions=1 - turned.actions, action_names={"agent_0": ("down", "up")})
    with pytest.raises(ValueError, match="fitted to episodes 3, 4, which"):
        rank_models(dict.fromkeys(("one", "same"), mean_field(named)), turned, "held_out")
    # One that happens to be like another is not.
    alike = btil.concatenate(
        [held_out(), demos_of(2).select([5]).replace(episodes=np.repeat([40], 3))]
    )
    rank_models(both, alike, "held_out", num_draws=100)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "waic"}, "'loo' or 'held_out', got 'waic'"),
        ({"num_draws": 10}, "num_draws must be a whole number of at least 100"),
        ({"demos": held_out()}, "'loo' leaves out training episodes"),
        ({"method": "held_out"}, "needs episodes that no model has seen"),
        ({"method": "held_out", "demos": held_out(1)}, "1 episodes are too few"),
    ],
)
def test_what_cannot_be_done_is_refused(arguments, message, two):
    with pytest.raises(ValueError, match=message):
        rank_models({"one": two, "same": two}, **arguments)
    with pytest.raises(ValueError, match="at least two models, got 1"):
        rank_models({"one": two})


def test_few_episodes_are_refused():
    few = demos_of(2).select(range(4))
    posterior = btil.fit(hmm_model(), few, "exact", progress=False)
    with pytest.raises(ValueError, match="4 episodes are too few: an error over fewer than 5"):
        rank_models({"one": posterior, "same": posterior})
