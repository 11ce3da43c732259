"""Comparisons: every number against its own calculation, names, notes, what is refused."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

import btil
from btil.analysis.compare import compare_posteriors, compare_rows
from btil.inference.posterior import TeamPosterior
from btil.inference.result import DirichletRows, DrawnRows, FitResult
from btil.models.team import bind

AGENTS = ("ann", "bob")
MODEL = btil.TeamModel(
    policy=btil.DirichletCPT(1.0, parents=("place",)),
    transition=btil.DirichletCPT(1.0),
    initial=btil.DirichletCPT(1.0),
)


def demonstrations(
    num_episodes: int, num_labelled: int, seed: int, num_places: int = 3
) -> btil.Demonstrations:
    generator = np.random.default_rng(seed)
    num_steps = 5 * num_episodes
    latents = generator.integers(2, size=(num_steps, 2))
    actions = np.where(generator.random((num_steps, 2)) < 0.85, latents, 1 - latents)
    latents[5 * num_labelled :] = -1
    return btil.Demonstrations(
        {"place": generator.integers(num_places, size=num_steps)},
        actions,
        latents=latents,
        episodes=np.repeat(np.arange(num_episodes), 5),
        agents=AGENTS,
        num_states={"place": 3},
        num_actions=2,
        num_latents=2,
    )


def posterior(
    demos: btil.Demonstrations, seed: int, model: btil.TeamModel = MODEL, num_chains: int = 0
) -> TeamPosterior:
    """A posterior that no method has fitted: random rows, which is all that is compared."""
    generator = np.random.default_rng(seed)
    bound = bind(model, demos)
    rows: dict[str, Any] = {}
    for name, table in bound.learned.items():
        concentration = generator.gamma(2.0, size=table.shape) + 0.1
        rows[name] = DirichletRows(concentration)
        if num_chains:
            draws = rows[name].sample(8 * num_chains, generator)
            rows[name] = DrawnRows(draws.reshape(num_chains, 8, *table.shape))
    log_likelihood = generator.normal(-10, 1, (num_chains, 8, demos.num_episodes))
    result = FitResult(rows, True, "made up", log_likelihood=log_likelihood if num_chains else None)
    method = "gibbs" if num_chains else "mfvi"
    return TeamPosterior(bound, method, result, seed=0, dtype=np.dtype(float), wall_time=2.0)


def swapped(one: TeamPosterior) -> TeamPosterior:
    """Both agents' two latents under each other's name."""
    rows = {}
    for name, given in one.result.rows.items():
        values = given.concentration
        if not name.startswith("policy"):
            values = values[..., ::-1]
        if not name.startswith("initial"):
            values = values[..., ::-1, :]
        rows[name] = DirichletRows(values.copy())
    return dataclasses.replace(one, result=one.result._replace(rows=rows))


@pytest.fixture(scope="module")
def train() -> btil.Demonstrations:
    return demonstrations(3, num_labelled=2, seed=1)


@pytest.fixture(scope="module")
def test_data() -> btil.Demonstrations:
    return demonstrations(2, num_labelled=2, seed=2)


@pytest.fixture(scope="module")
def comparison(train: btil.Demonstrations, test_data: btil.Demonstrations) -> Any:
    return btil.compare(
        MODEL,
        train,
        ("mfvi", "exact", "gibbs"),
        test_data,
        seed=3,
        progress=False,
        options={"gibbs": {"num_chains": 2, "num_warmup": 20, "num_samples": 30}},
    )


def test_numbers_of_the_table_are_those_of_the_posteriors(
    comparison: Any, test_data: btil.Demonstrations
) -> None:
    assert list(comparison.table.index) == ["mfvi", "exact", "gibbs"]
    assert comparison.reference == "exact"
    unlabelled = test_data.without_labels()
    for name, fitted in comparison.posteriors.items():
        row = comparison.table.loc[name]
        assert fitted.method == name
        assert fitted.seed == 3
        assert row["seconds"] == fitted.wall_time
        assert row["converged"] == fitted.converged
        assert row["reason"] == fitted.reason
        assert row["episodes"] == 3
        expected = fitted.log_likelihood(unlabelled).sum() / test_data.num_steps
        assert row["log_likelihood_per_step"] == pytest.approx(expected, rel=1e-12)
        decoded = fitted.decode(unlabelled)
        filtered = fitted.filter(unlabelled)
        for i, agent in enumerate(AGENTS):
            truth = test_data.latents[:, i].reshape(2, 5)
            wrong = (decoded[:, i].reshape(2, 5) != truth).mean(1).mean()
            assert row[f"viterbi_error_{agent}"] == pytest.approx(wrong)
            online = filtered[agent].argmax(1).reshape(2, 5)
            assert row[f"filtering_error_{agent}"] == pytest.approx((online != truth).mean())
    assert comparison.table.loc["mfvi", "elbo"] == comparison.posteriors["mfvi"].elbo
    assert np.isnan(comparison.table.loc["gibbs", "elbo"])
    assert comparison.table.loc["mfvi", "elbo"] < comparison.table.loc["exact", "elbo"]


def test_differences_are_pooled_over_cells(comparison: Any, train: btil.Demonstrations) -> None:
    exact = comparison.posteriors["exact"].result.rows
    for name, fitted in comparison.posteriors.items():
        rows = fitted.result.rows
        differences = [np.abs(rows[s].mean() - exact[s].mean()).ravel() for s in exact]
        ratios = [(rows[s].sd() / exact[s].sd()).ravel() for s in exact]
        row = comparison.table.loc[name]
        assert row["mean_difference"] == pytest.approx(np.concatenate(differences).mean())
        assert row["sd_ratio"] == pytest.approx(np.median(np.concatenate(ratios)))
        assert row["shared_rows"] == sum(np.prod(exact[s].mean().shape[:-1]) for s in exact)
    # Rows in use: read at least once by the exact posterior's beliefs of latents.
    beliefs = comparison.posteriors["exact"].smooth(train)
    mfvi = comparison.posteriors["mfvi"].result.rows
    differences, ratios = [], []
    for agent in AGENTS:
        contexts = comparison.posteriors["exact"].contexts(agent, "policy")["place"]
        last = np.arange(15) % 5 == 4
        in_use = {
            f"policy_{agent}": np.array(
                [beliefs[agent][train.state_variables["place"] == p].sum(0) for p in contexts]
            ),
            f"transition_{agent}": beliefs[agent][~last].sum(0)[None],
            f"initial_{agent}": np.array([3.0]),
        }
        for site, reads in in_use.items():
            used = reads >= 1
            differences.append(np.abs(mfvi[site].mean() - exact[site].mean())[used].ravel())
            ratios.append((mfvi[site].sd() / exact[site].sd())[used].ravel())
    row = comparison.table.loc["mfvi"]
    expected = np.concatenate(differences).mean()
    assert row["mean_difference_in_use"] == pytest.approx(expected)
    expected = np.median(np.concatenate(ratios))
    assert row["sd_ratio_in_use"] == pytest.approx(expected)
    assert len(np.concatenate(ratios)) < sum(exact[s].mean().size for s in exact)
    assert comparison.table.loc["exact", "mean_difference"] == 0
    assert 0 < comparison.table.loc["gibbs", "mean_difference"] < 0.1


def test_chains_are_told_one_by_one(comparison: Any, test_data: btil.Demonstrations) -> None:
    gibbs = comparison.posteriors["gibbs"]
    info = gibbs.draws_info
    row = comparison.table.loc["gibbs"]
    assert row["max_rhat"] == info["max_rhat"].max()
    assert row["rows_above"] == info["rows_above"].sum()
    assert row["min_ess_per_second"] == pytest.approx(info["min_ess_bulk"].min() / gibbs.wall_time)
    assert list(comparison.chains.index) == [("gibbs", 0), ("gibbs", 1)]
    total = gibbs.result.log_likelihood.sum(2)
    rows = {n: DrawnRows(r.draws[1:]) for n, r in gibbs.result.rows.items()}
    alone = dataclasses.replace(gibbs, result=gibbs.result._replace(rows=rows))
    errors = btil.analysis.hamming_distance(test_data, alone.decode(test_data.without_labels()))
    second = comparison.chains.loc[("gibbs", 1)]
    assert second["mean_log_likelihood"] == pytest.approx(total[1].mean(), rel=1e-6)
    assert second["viterbi_error_bob"] == errors[1]
    disagree = [note for note in comparison.notes if "the chains disagree" in note]
    assert len(disagree) == (row["rows_above"] > 0)


def test_chains_in_different_modes_are_told(train: btil.Demonstrations) -> None:
    together = posterior(train, 1, num_chains=3)
    log_likelihood = together.result.log_likelihood + np.array([0.0, 0.0, 50.0])[:, None, None]
    apart = dataclasses.replace(
        together, result=together.result._replace(log_likelihood=log_likelihood)
    )
    found = compare_posteriors({"together": together, "apart": apart})
    modes = [note for note in found.notes if "different modes. " in note]
    assert len(modes) == 1
    assert modes[0].startswith("apart:")


def test_rows_are_matched_by_context() -> None:
    whole = posterior(demonstrations(6, num_labelled=6, seed=3), 1)
    few = posterior(demonstrations(1, num_labelled=1, seed=4, num_places=2), 2)
    found = compare_rows(few, whole)
    differences, ratios = [], []
    for agent in AGENTS:
        own = few.contexts(agent, "policy")["place"].tolist()
        other = whole.contexts(agent, "policy")["place"].tolist()
        assert own != other
        for role in ("policy", "transition", "initial"):
            a, b = few.result.rows[f"{role}_{agent}"], whole.result.rows[f"{role}_{agent}"]
            pairs = [(0, 0)]
            if role == "policy":
                pairs = [(own.index(p), other.index(p)) for p in own if p in other]
            for i, j in pairs:
                differences.append(np.abs(a.mean()[i] - b.mean()[j]).ravel())
                ratios.append((a.sd()[i] / b.sd()[j]).ravel())
    assert found.mean_difference == pytest.approx(np.concatenate(differences).mean())
    assert found.sd_ratio == pytest.approx(np.median(np.concatenate(ratios)))
    notes = compare_posteriors({"whole": whole, "few": few}).notes
    assert any(
        note.startswith("few learned from 1 episode, whole from 6 episodes") for note in notes
    )


def test_renamed_latents_are_no_difference(
    train: btil.Demonstrations, test_data: btil.Demonstrations
) -> None:
    one = posterior(train.without_labels(), 5)
    found = compare_posteriors({"one": one, "other": swapped(one)}, test_data)
    assert found.table.loc["other", "mean_difference"] < 1e-12
    assert compare_rows(swapped(one), one).mean_difference > 0.05
    # The errors are those of the best of all namings, of each agent.
    decoded = one.decode(test_data.without_labels())
    for i, agent in enumerate(AGENTS):
        best = min(
            btil.analysis.hamming_distance(test_data, np.array(names)[decoded])[i]
            for names in itertools.permutations(range(2))
        )
        for name in ("one", "other"):
            assert found.table.loc[name, f"viterbi_error_{agent}"] == best
    assert sum("nothing tells at least two" in note for note in found.notes) == 2


def test_chains_that_differ_in_names_agree(train: btil.Demonstrations) -> None:
    one = posterior(train.without_labels(), 5)
    rows: dict[str, Any] = {}
    for site in one.result.rows:
        chains = []
        for chain, named in enumerate((one, swapped(one))):
            # Tight draws, so that names and nothing else keep the chains apart.
            tight = DirichletRows(1000 * named.result.rows[site].concentration)
            chains.append(tight.sample(100, np.random.default_rng(chain)))
        rows[site] = DrawnRows(np.stack(chains))
    chains = dataclasses.replace(one, method="gibbs", result=one.result._replace(rows=rows))
    found = compare_posteriors({"chains": chains, "one": one})
    assert chains.draws_info["max_rhat"].max() > 1.5
    assert found.table.loc["chains", "max_rhat"] < 1.05
    assert found.table.loc["one", "mean_difference"] < 0.01


def test_names_pinned_by_labels_stay(
    train: btil.Demonstrations, test_data: btil.Demonstrations
) -> None:
    one = posterior(train, 5)
    found = compare_posteriors({"one": one, "other": swapped(one)}, test_data)
    assert found.table.loc["other", "mean_difference"] > 0.05
    assert found.named["other"].result.rows == found.posteriors["other"].result.rows
    assert any(note.startswith("Mental states of ann and bob: labels") for note in found.notes)


def test_agents_that_share_a_table_are_renamed_together(test_data: btil.Demonstrations) -> None:
    model = dataclasses.replace(MODEL, transition=btil.Shared(btil.DirichletCPT(1.0)))
    one = posterior(test_data.without_labels(), 6, model)
    named = compare_posteriors({"one": one}, test_data).named["one"]
    wrong = {}
    for candidate, found in (("as it is", one), ("named", named), ("swapped", swapped(one))):
        decoded = found.decode(test_data.without_labels())
        wrong[candidate] = int((decoded != test_data.latents).sum())
    assert wrong["named"] == min(wrong.values())
    assert wrong["as it is"] != wrong["swapped"]


def test_summary_fits_a_terminal(comparison: Any) -> None:
    from rich.console import Console

    console = Console(width=100)
    with console.capture() as captured:
        console.print(comparison.summary_table())
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= 100
    assert all(any(text in line for line in lines) for text in ("mfvi", "Viterbi error, ann"))
    error = comparison.table.loc["exact", "viterbi_error_bob"]
    assert any(line.count(f"{error:.3f}") for line in lines if "Viterbi error, bob" in line)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"methods": ()}, ValueError, "name at least one"),
        ({"methods": "mfvi"}, ValueError, "several names"),
        ({"methods": ("mfvi", "mfvi")}, ValueError, "named twice"),
        ({"methods": ("mcmc",)}, ValueError, "unknown method 'mcmc'"),
        ({"methods": {"../out": "mfvi"}}, ValueError, "no name for files"),
        ({"reference": "nuts"}, ValueError, "'nuts' is not among mfvi"),
        ({"options": {"gibbs": {}}}, ValueError, "options: no method gibbs"),
        ({"options": {"mfvi": {"num_chains": 2}}}, TypeError, "no option 'num_chains'"),
    ],
)
def test_what_cannot_be_done_is_refused_before_any_fit(
    arguments: dict[str, Any],
    error: type[Exception],
    message: str,
    train: btil.Demonstrations,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_fit(*args: Any, **options: Any) -> None:
        raise AssertionError("a fit began")

    monkeypatch.setattr("btil.analysis.compare.fit", no_fit)
    with pytest.raises(error, match=message):
        btil.compare(MODEL, train, **({"methods": ("mfvi",)} | arguments))


def test_other_data_are_refused_before_any_fit(
    train: btil.Demonstrations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_fit(*args: Any, **options: Any) -> None:
        raise AssertionError("a fit began")

    monkeypatch.setattr("btil.analysis.compare.fit", no_fit)
    with pytest.raises(ValueError, match="demos_by_method: no method nuts"):
        btil.compare(MODEL, train, ("mfvi",), demos_by_method={"nuts": train})
    other = btil.Demonstrations([0], [[0, 0]], agents=("ann", "eve"), num_latents=2)
    with pytest.raises(ValueError, match="agents"):
        btil.compare(MODEL, train, ("mfvi",), test=other)
    with pytest.raises(ValueError, match="agents"):
        btil.compare(MODEL, train, ("mfvi",), demos_by_method={"mfvi": other})


def test_reference_is_one_that_saw_everything(
    train: btil.Demonstrations, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = []

    def made_up(
        model: Any, demos: btil.Demonstrations, method: str, **options: Any
    ) -> TeamPosterior:
        fitted.append((method, demos.num_episodes))
        return posterior(demos, len(fitted))

    monkeypatch.setattr("btil.analysis.compare.fit", made_up)
    few = train.select([0])
    methods = ("mfvi", "gibbs", "nuts")
    assert btil.compare(MODEL, train, methods).reference == "nuts"
    found = btil.compare(MODEL, train, methods, demos_by_method={"nuts": few})
    assert found.reference == "gibbs"
    assert fitted[-3:] == [("mfvi", 3), ("gibbs", 3), ("nuts", 1)]
    # Where nothing tells latents apart the exact answer is the same for all of them.
    unlabelled = train.without_labels()
    assert btil.compare(MODEL, unlabelled, ("exact", "mfvi", "gibbs")).reference == "gibbs"
