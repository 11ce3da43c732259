"""Cases 32 to 34 and 37: what a comparison says is one thing, is no noise, and comes back."""

import itertools
import json
import re

import arviz
import numpy as np
import pandas as pd
import pytest
from html_pages import Links
from teams import hmm_demos, hmm_model
from typer.testing import CliRunner

import btil
from btil.analysis import report
from btil.analysis.compare import compare_posteriors
from btil.analysis.evidence import Evidence
from btil.cli import app
from btil.inference.result import DrawnRows

PLAIN = btil.TeamModel(
    policy=btil.DirichletCPT(1.0, parents=("place",)),
    transition=btil.DirichletCPT(1.0),
    initial=btil.DirichletCPT(1.0),
)


def recordings(num_episodes, num_labelled, seed):
    """A member that mostly does what it has in mind, in episodes of five steps."""
    generator = np.random.default_rng(seed)
    latents = np.repeat(generator.integers(2, size=num_episodes * 5 // 2 + 1), 2)
    latents = latents[: 5 * num_episodes]
    actions = np.where(generator.random(len(latents)) < 0.8, latents, 1 - latents)
    labels = latents.copy()
    labels[5 * num_labelled :] = -1
    return btil.Demonstrations(
        {"place": generator.integers(2, size=len(latents))},
        actions,
        latents=labels,
        episodes=np.repeat(np.arange(num_episodes), 5),
        agents=("ann",),
        num_states={"place": 2},
        num_actions=2,
        num_latents=2,
    )


# ---------------------------------------------------------------------- 32: one R-hat


@pytest.fixture(scope="module")
def short():
    """Two chains that are too short to agree."""
    options = {"num_chains": 2, "num_warmup": 0, "num_samples": 14}
    return btil.fit(PLAIN, recordings(4, 1, 0), "gibbs", progress=False, **options)


def test_case_32_one_rhat_and_one_count_everywhere(short):
    tree = short.to_datatree(num_draws=28)
    hats = {site: arviz.rhat(tree)[site].to_numpy() for site in short.result.rows}
    every = np.concatenate([one.ravel() for one in hats.values()])
    largest, above = every.max(), int((every >= 1.05).sum())
    assert above > 1
    numbers = f"largest R-hat {largest:.3f}, {above} of {len(every)} cells at 1.05 or above"
    assert numbers in short.reason
    info = short.draws_info
    assert info["max_rhat"].max() == pytest.approx(largest)
    assert (info["cells"] - info["constant_cells"]).sum() == len(every)
    rows_above = sum((one >= 1.05).any(-1).sum() for one in hats.values())
    assert info["rows_above"].sum() == rows_above
    by_row = btil.analysis.row_diagnostics(short)
    assert by_row["rhat"].max() == pytest.approx(largest)
    assert (by_row["rhat"] >= 1.05).sum() == rows_above
    found = compare_posteriors({"gibbs": short})
    row = found.table.loc["gibbs"]
    assert row["max_rhat"] == pytest.approx(largest)
    assert row["rows_above"] == rows_above
    assert numbers in row["reason"]
    # On the page no other R-hat of the tables is told, nor another number of cells.
    shown = Links(report._results(found) + report._convergence(found)).text
    told = set(re.findall(r"largest R-hat (\d+\.\d+)", shown))
    assert told == {f"{largest:.3f}"}
    assert set(re.findall(r"of ([\d,]+) cells", shown)) == {str(len(every))}


# ---------------------------------------------------------------------- 33: log scores


@pytest.fixture(scope="module")
def vague():
    """A mean field of little data and small concentrations: few draws decide an average."""
    demos = hmm_demos(
        [0, 1, 2, 0, 1, 2, 2, 1], [0, 1] * 2 + [-1] * 4, episodes=[0] * 4 + [1] * 4, num_actions=3
    )
    return btil.fit(hmm_model(0.1), demos, progress=False)


def test_case_33_seeds_agree_within_the_error_that_is_told(vague):
    truth = [0, 1, 1, 0, 0, 1, 0, 1]
    test = hmm_demos([2, 0, 1, 1, 2, 2, 0, 0], truth, episodes=[0, 0, 1, 1, 2, 2, 3, 3],
                     num_actions=3)  # fmt: skip
    rows = [
        compare_posteriors({"mfvi": vague}, test, seed=seed, num_draws=40).decoded.loc[
            ("mfvi", "agent_0", "smoothed, averaged")
        ]
        for seed in range(10)
    ]
    for score in ("log_score", "brier", "sureness"):
        values = np.array([row[score] for row in rows])
        chance = np.array([row[f"{score}_monte_carlo"] for row in rows])
        errors = np.array([row[f"{score}_se"] for row in rows])
        assert 0.6 < values.std(ddof=1) / np.sqrt((chance**2).mean()) < 1.6
        # What is printed behind ± holds it, and the error over episodes.
        assert (errors > chance).all()
        for one, other in itertools.combinations(range(10), 2):
            error = np.hypot(errors[one], errors[other])
            assert abs(values[one] - values[other]) < 4 * error
    shown = compare_posteriors({"mfvi": vague}, test, num_draws=40)
    error = shown.decoded.loc[("mfvi", "agent_0", "smoothed, averaged"), "log_score_se"]
    assert shown.table.loc["mfvi", "log_score_se_agent_0"] == error


# ---------------------------------------------------------------------- 34: no reference


def test_case_34_nothing_is_measured_against_what_has_not_converged(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "PICTURES", [])
    options = {"gibbs": {"num_chains": 2, "num_warmup": 5, "num_samples": 10}}
    found = btil.compare(
        PLAIN, recordings(4, 1, 0), ("mfvi", "gibbs"), options=options, progress=False
    )
    assert found.reference == "gibbs"
    page = found.report(tmp_path).read_text(encoding="utf-8")
    measured = ["mean_difference", "mean_difference_in_use", "sd_ratio", "sd_ratio_in_use",
                "seconds_to_accuracy", "shared_rows"]  # fmt: skip
    table = pd.read_csv(tmp_path / "table.csv", index_col="method")
    assert table[measured].isna().all().all()
    for quantity in found.quantities():
        if quantity.column in measured:
            assert {found.written(quantity, name) for name in found.posteriors} == {"–"}
    record = json.loads((tmp_path / "comparison.json").read_text(encoding="utf-8"))
    assert record["no_differences"].startswith("gibbs has not converged: 2 chains: largest R-hat")
    shown = Links(page).text
    assert "no differences are reported, as gibbs has not converged" in shown
    assert shown.count(record["no_differences"]) == 2  # in a note, and where times would stand
    assert "mean difference at the end" not in shown


# ---------------------------------------------------------------------- 37: a page from its files


def two_groups(posterior):
    """The same chains, of which one is moved where the others never are."""
    rows = {}
    for site, one in posterior.result.rows.items():
        draws = one.draws.copy()
        draws[1] = 0.9 * draws[1, ..., ::-1] + 0.1 * draws[1]
        rows[site] = DrawnRows(draws)
    log_likelihood = posterior.result.log_likelihood.copy()
    log_likelihood[1] -= 50
    result = posterior.result._replace(rows=rows, log_likelihood=log_likelihood)
    return btil.TeamPosterior(
        posterior.bound, "gibbs", result, posterior.seed, posterior.dtype, 2.0, posterior.options
    )


@pytest.fixture(scope="module", params=["one group", "two groups", "no labels"])
def reported(request, tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setattr(report, "PICTURES", [])
    demos, test = recordings(6, 2, 1), recordings(4, 4, 2)
    truth = btil.analysis.simulate_truth(PLAIN, demos, test, seed=3).tables
    if request.param == "no labels":
        demos = demos.without_labels()
    fitted = {
        "mfvi": btil.fit(PLAIN, demos, progress=False),
        "gibbs": btil.fit(PLAIN, demos, "gibbs", progress=False, num_chains=3, num_samples=200),
    }
    if request.param == "two groups":
        fitted["gibbs"] = two_groups(fitted["gibbs"])
    found = compare_posteriors(fitted, test, "mfvi", truth=truth, num_draws=40, seed=7)
    folder = tmp_path_factory.mktemp("reports")
    found.report(folder)
    patch.undo()
    assert (folder / "all_chains").exists() == (request.param == "two groups")
    return folder, found


def test_case_37_every_number_comes_back_from_the_files(reported):
    folder, found = reported
    again = btil.analysis.load_comparison(folder)
    for name in ("table", "chains", "modes", "weights", "decoded", "coverage"):
        table, expected = getattr(again, name), getattr(found, name)
        pd.testing.assert_frame_equal(table, expected, rtol=1e-9)
        if len(expected):
            stored = pd.read_csv(
                folder / f"{name}.csv", index_col=list(range(expected.index.nlevels))
            )
            pd.testing.assert_frame_equal(stored, expected, check_dtype=False, rtol=1e-9)
    assert again.notes == found.notes
    assert again.convergence == found.convergence
    for name, course in found.courses.items():
        np.testing.assert_allclose(again.courses[name], course, rtol=1e-9)
    pd.testing.assert_frame_equal(again.reliability_table(), found.reliability_table())
    assert report._results(again) == report._results(found)
    assert report._convergence(again) == report._convergence(found)
    assert report._decoded(again) == report._decoded(found)
    assert report._known_truth(again) == report._known_truth(found)
    assert report._time(again) == report._time(found)


def test_case_37_a_posterior_that_is_loaded_is_that_of_the_table(reported):
    folder, _ = reported
    test = btil.read_demonstrations(folder / "test.npz")
    unlabelled = test.without_labels()
    table = pd.read_csv(folder / "table.csv", index_col="method")
    loaded = {n: btil.load_posterior(folder / "posteriors" / f"{n}.nc") for n in table.index}
    for name, posterior in loaded.items():
        row = table.loc[name]
        errors = btil.analysis.hamming_distance(test, posterior.decode(unlabelled))
        assert errors[0] == row["viterbi_error_ann"]
        per_step = posterior.log_likelihood(unlabelled).sum() / test.num_steps
        assert per_step == pytest.approx(row["log_likelihood_per_step"])
        assert posterior.wall_time == row["seconds"]
        assert posterior.converged == row["converged"]
    assert loaded["mfvi"].elbo == table.loc["mfvi", "elbo"]
    rows = btil.analysis.compare.compare_rows(loaded["gibbs"], loaded["mfvi"])
    assert rows.mean_difference == pytest.approx(table.loc["gibbs", "mean_difference"])
    assert rows.sd_ratio == pytest.approx(table.loc["gibbs", "sd_ratio"])
    if (folder / "all_chains").exists():
        alone = loaded["gibbs"]
        assert alone.result.rows["initial_ann"].draws.shape[0] == 2
        assert alone.reason.startswith("chains 0 and 2 alone, as the chains do not overlap; of all")
        whole = btil.load_posterior(folder / "all_chains" / "gibbs.nc")
        assert whole.draws_info["max_rhat"].max() == table.loc["gibbs", "max_rhat"]
    else:
        info = loaded["gibbs"].draws_info
        assert info["max_rhat"].max() == pytest.approx(table.loc["gibbs", "max_rhat"])


def test_case_37_from_the_shell(tmp_path, monkeypatch):
    monkeypatch.setattr(report, "PICTURES", [])
    monkeypatch.chdir(tmp_path)
    btil.write_demonstrations(recordings(4, 2, 1), "team.csv")
    btil.write_demonstrations(recordings(3, 3, 2), "new.csv")
    arguments = "compare team.csv --test new.csv --methods mfvi,gibbs --num-samples 60 --out page"
    arguments += " --policy-parents place --transition-parents= --num-draws 20"
    arguments += " --num-chains 2 --num-warmup 20 --quiet"
    done = CliRunner().invoke(app, arguments.split())
    assert done.exit_code == 0, done.output
    again = btil.analysis.load_comparison("page")
    stored = pd.read_csv("page/table.csv", index_col="method")
    pd.testing.assert_frame_equal(stored, again.table, check_dtype=False, rtol=1e-9)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda record: record | {"version": 1}, "not a comparison written by this btil"),
        (lambda record: record | {"names": "mfvi"}, "not a comparison written by this btil"),
        (lambda record: record | {"reference": "nuts"}, "not a comparison written by this btil"),
        (lambda record: [], "not a comparison written by this btil"),
    ],
)
def test_a_damaged_record_is_refused(reported, damage, message, tmp_path):
    record = json.loads((reported[0] / "comparison.json").read_text(encoding="utf-8"))
    (tmp_path / "comparison.json").write_text(json.dumps(damage(record)), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"comparison\.json: this is {message}"):
        btil.analysis.load_comparison(tmp_path)
    with pytest.raises(FileNotFoundError, match="no comparison there"):
        btil.analysis.load_comparison(tmp_path / "nowhere")


def test_a_truth_is_read_as_it_was_written(reported, tmp_path):
    folder, found = reported
    truth = btil.analysis.read_truth(folder / "truth.npz", PLAIN, found.demos)
    for site, known in found.truth.known.items():
        np.testing.assert_array_equal(truth.known[site].rows, known.rows)
    with pytest.raises(FileNotFoundError, match="no such file"):
        btil.analysis.read_truth(folder / "nothing.npz", PLAIN, found.demos)
    other = hmm_model()
    with pytest.raises(
        ValueError, match=r"truth\.npz: .* is not a table of the model|another shape"
    ):
        btil.analysis.read_truth(folder / "truth.npz", other, hmm_demos([0, 1], None, 3))
    (tmp_path / "truth.npz").write_bytes((folder / "truth.npz").read_bytes()[:200])
    with pytest.raises(ValueError, match=r"truth\.npz: this is not a truth written by btil"):
        btil.analysis.read_truth(tmp_path / "truth.npz", PLAIN, found.demos)


@pytest.mark.parametrize("error", [0.25, np.nan])
def test_an_estimate_of_the_evidence_comes_back_as_it_was(vague, error, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "PICTURES", [])
    estimate = Evidence(-9.5, error, "smc", False, None, ("Runs differ.",))
    numbers = {"seed": 3, "num_played": 2, "accuracy": 0.25, "num_draws": 23}
    found = compare_posteriors({"mfvi": vague}, evidence=estimate, **numbers)
    found.report(tmp_path)
    again = btil.analysis.load_comparison(tmp_path)
    assert (again.seed, again.num_played, again.accuracy, again.num_draws) == (3, 2, 0.25, 23)
    np.testing.assert_equal(again.evidence, estimate)
    pd.testing.assert_frame_equal(again.table, found.table)
    assert found.table.loc["mfvi", "evidence_gap"] == pytest.approx(-9.5 - vague.elbo)
