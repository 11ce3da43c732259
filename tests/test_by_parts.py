"""Files that are decoded and scored part by part: what memory gives, in tables that grow."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet
from teams import hmm_model, random_demos
from together import LENGTHS, run_together
from typer.testing import CliRunner

import btil
from btil.analysis import by_parts, posterior_predictive_check
from btil.analysis.by_parts import decode_file, score_file
from btil.analysis.decoding import decoded_table
from btil.analysis.held_out import held_out
from btil.cli import app
from btil.demonstrations import row_groups
from btil.inference.result import DrawnRows, FitResult
from btil.models.team import bind


def team() -> btil.Demonstrations:
    """Episodes of which some have no labels."""
    demos = random_demos(lengths=LENGTHS, labelled=0.4, seed=2)
    ids = np.array([f"day {one}" for one in demos.episodes])
    return demos.without_labels([2, 5, 9]).replace(episodes=ids)


@pytest.fixture(scope="module")
def posterior() -> btil.TeamPosterior:
    return btil.fit(hmm_model(), team(), progress=False, max_iterations=5)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("btil.demonstrations.formats.parquet.ROW_GROUP_STEPS", 6)
    monkeypatch.setattr(row_groups, "ROW_GROUP_STEPS", 40)
    (tmp_path / "days").mkdir()
    for name, chosen in (("a", range(3)), ("b", range(3, 12))):
        part = team().select(list(chosen))
        btil.write_demonstrations(part, tmp_path / "days" / f"{name}.parquet")
    return tmp_path / "days"


@pytest.mark.covers("files larger than memory", "smoothing and decoding")
@pytest.mark.parametrize("options", [{}, {"smooth": True}, {"use_labels": True}])
def test_decoded_as_in_memory(options, posterior, folder, tmp_path) -> None:
    file = btil.open_demonstrations(folder)
    assert len(list(file)) > 2
    scores = decode_file(posterior, file, tmp_path / "out.parquet", progress=False, **options)
    labelled = bool(options.get("use_labels"))
    decoded = posterior.decode(team(), labelled)
    smoothed = posterior.smooth(team()) if options.get("smooth") else None
    expected = decoded_table(team(), decoded, smoothed)
    found = pd.read_parquet(tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, rtol=1e-5, atol=1e-6)
    assert (scores.num_episodes, scores.num_steps) == (len(LENGTHS), sum(LENGTHS))
    np.testing.assert_allclose(scores.share_labelled, (team().latents >= 0).mean(0))
    errors = btil.analysis.hamming_distance(team(), posterior)
    expected_errors = np.full(2, np.nan) if labelled else errors
    np.testing.assert_allclose(scores.metrics["viterbi_error"], expected_errors, rtol=1e-12)


def test_scored_as_in_memory(posterior, folder, tmp_path) -> None:
    file = btil.open_demonstrations(folder)
    scores = score_file(posterior, file, tmp_path / "out.parquet", progress=False)
    logs = posterior.log_likelihood(team())
    assert scores.log_likelihood == pytest.approx(logs.sum(), rel=1e-6)
    found = pd.read_parquet(tmp_path / "out.parquet")
    np.testing.assert_allclose(found["log_likelihood"], logs, rtol=1e-5)
    assert found["episode"].tolist() == team().episode_ids.tolist()
    assert found["steps"].tolist() == list(LENGTHS)
    expected = held_out(team(), posterior)
    for name, values in scores.metrics.items():
        for agent, value in zip(scores.agents, values, strict=True):
            assert value == pytest.approx(expected[f"{name}_{agent}"], rel=1e-12)
    assert score_file(posterior, file, progress=False).metrics.keys() == scores.metrics.keys()


def test_a_table_appears_whole_or_not_at_all(posterior, folder, tmp_path) -> None:
    late = random_demos(lengths=(2,), num_latents=(2, 3)).replace(episodes=["late", "late"])
    btil.write_demonstrations(late, folder / "c.parquet")
    rows = parquet.read_table(folder / "c.parquet")
    place = rows.column_names.index("action_ann")
    rows = rows.set_column(place, "action_ann", pa.array([0, 99]))
    parquet.write_table(rows, folder / "c.parquet")
    out = tmp_path / "out.parquet"
    out.write_text("old")
    file = btil.open_demonstrations(folder)
    with pytest.raises(ValueError, match=r"c\.parquet: action_ann: episode 'late', step 1: 99"):
        decode_file(posterior, file, out, progress=False)
    assert out.read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["days", "out.parquet"]
    with pytest.raises(ValueError, match=r"ending must be \.parquet"):
        decode_file(posterior, file, tmp_path / "out.csv", progress=False)


def test_from_a_shell(posterior, folder, tmp_path) -> None:
    saved, out = tmp_path / "p.nc", tmp_path / "out.parquet"
    posterior.save(saved)
    done = CliRunner().invoke(app, ["decode", str(saved), str(folder), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert f"saved {out} ({sum(LENGTHS)} steps)" in done.output
    errors = btil.analysis.hamming_distance(team(), posterior)
    assert f"error of ann: {errors[0]:.4f}" in done.output
    whole = CliRunner().invoke(app, ["decode", str(saved), str(folder)])
    assert whole.exit_code == 0, whole.output
    assert len(whole.stdout.splitlines()) == sum(LENGTHS) + 1
    assert len(pd.read_parquet(out)) == sum(LENGTHS)


def test_a_check_of_labelled_files_is_that_of_memory(folder, monkeypatch) -> None:
    """With labels and rows that leave no choice nothing is left to chance."""
    demos = team().replace(latents=np.stack([np.arange(sum(LENGTHS)) % 2] * 2, axis=1))
    for path in folder.iterdir():
        path.unlink()
    btil.write_demonstrations(demos, folder / "a.parquet")
    bound = bind(hmm_model(), demos)
    rows = {}
    for site, table in bound.learned.items():
        sure = np.zeros((1, 6, *table.shape))
        sure[..., 0] = 1
        rows[site] = DrawnRows(sure)
    result = FitResult(rows, True, "made by hand")
    posterior = btil.TeamPosterior(bound, "gibbs", result, 0, np.dtype(float), 1.0)
    file = btil.open_demonstrations(folder)
    assert len(list(file)) > 1
    whole, parts = (
        posterior_predictive_check(posterior, data, num_draws=6) for data in (demos, file)
    )
    assert parts.statistics == whole.statistics
    np.testing.assert_allclose(parts.observed, whole.observed, rtol=1e-12)
    np.testing.assert_allclose(parts.replicated, whole.replicated, rtol=1e-12)
    assert (parts.share_labelled, parts.replicate) == (1.0, "steps")
    np.testing.assert_array_equal(parts.blocks, whole.blocks)
    with pytest.raises(ValueError, match='replicate="episodes" takes demonstrations in memory'):
        posterior_predictive_check(posterior, file, replicate="episodes")
    with pytest.raises(ValueError, match="distributed: processes share files"):
        posterior_predictive_check(posterior, demos, distributed=True)


def test_parts_count_by_their_episodes_with_labels() -> None:
    """Of three parts, in one of which bob has no labels at all."""
    labels = [
        [[0, 1], [1, -1], [-1, -1], [0, 0]],
        [[-1, 1], [0, 1], [0, -1], [1, 0]],
        [[0, -1], [1, -1], [-1, -1], [0, -1]],
    ]
    episodes = ([0, 0, 1, 2], [0, 1, 2, 3], [0, 0, 0, 0])
    found = ([0.5, 0.1], [0.25, 1.0], [1.0, np.nan])
    sums = {name: np.zeros(()) for name in ("episodes", "steps", "log_likelihood")}
    sums["labelled"] = np.zeros(2)
    for latents, ids, errors, logs in zip(labels, episodes, found, (-1.0, -2.0, -4.0), strict=True):
        part = btil.Demonstrations(
            [0] * 4, [[0, 0]] * 4, latents=latents, episodes=ids, num_actions=1, num_latents=2
        )
        by_parts._add_part(sums, part, {"error": np.array(errors)}, logs)
    scores = by_parts._scores(sums, ("ann", "bob"))
    assert (scores.num_episodes, scores.num_steps, scores.log_likelihood) == (8, 12, -7)
    np.testing.assert_allclose(scores.share_labelled, [9 / 12, 5 / 12])
    # ann: 2, 3 and 1 episodes with labels; bob: 2, 3 and none.
    expected = [(2 * 0.5 + 3 * 0.25 + 1) / 6, (2 * 0.1 + 3 * 1.0) / 5]
    np.testing.assert_allclose(scores.metrics["error"], expected)


def test_two_processes_write_a_folder(posterior, folder, tmp_path) -> None:
    posterior.save(tmp_path / "p.nc")
    for status, told in run_together(3, "parts", tmp_path):
        assert status == 0, told
    parts = sorted((tmp_path / "decoded").iterdir())
    assert [path.name for path in parts] == [f"part-0000{k}-of-00003.parquet" for k in range(3)]
    found = pd.concat([pd.read_parquet(path) for path in parts], ignore_index=True)
    expected = decoded_table(team(), posterior)
    pd.testing.assert_frame_equal(found, expected, check_dtype=False)
    one = score_file(posterior, btil.open_demonstrations(folder), progress=False)
    for k in range(3):
        told = np.load(tmp_path / f"scores-{k}.npz")
        assert told["log_likelihood"] == pytest.approx(one.log_likelihood, rel=1e-6)
        np.testing.assert_allclose(told["viterbi_error"], one.metrics["viterbi_error"], rtol=1e-12)
        names, seen = told["names"].tolist(), told["observed"]
        check = btil.analysis.posterior_predictive_check(posterior, team(), num_draws=4)
        assert names == [one.words for one in check.statistics]
        given = [one.group == "actions" for one in check.statistics]
        np.testing.assert_allclose(seen[:, given], check.observed[:, given], rtol=1e-12)


def test_a_predictive_check_of_files_counts_what_memory_has(posterior, folder) -> None:
    file = btil.open_demonstrations(folder)
    richer = btil.fit(
        btil.TeamModel(btil.DirichletCPT(1.2, ("x",)), btil.DirichletCPT(1.1)),
        team(),
        progress=False,
        max_iterations=3,
    )
    for fitted in (posterior, richer):
        options = {"num_draws": 40, "num_contexts": 2}
        whole = posterior_predictive_check(fitted, team(), **options)
        parts = posterior_predictive_check(fitted, file, **options)
        assert parts.statistics == whole.statistics
        assert parts.share_labelled == pytest.approx(whole.share_labelled)
        np.testing.assert_array_equal(parts.blocks, whole.blocks)
        given = [one.group == "actions" for one in whole.statistics]
        np.testing.assert_allclose(parts.observed[:, given], whole.observed[:, given], rtol=1e-12)
        # Latents and replicates are drawn: means over draws agree within their errors.
        for name in ("observed", "replicated"):
            found, expected = getattr(parts, name), getattr(whole, name)
            known = ~(np.isnan(found).any(0) | np.isnan(expected).any(0))
            found, expected = found[:, known], expected[:, known]
            error = np.sqrt((found.var(0) + expected.var(0)) / 40) + 1e-9
            assert np.all(np.abs(found.mean(0) - expected.mean(0)) < 5 * error)
    with pytest.raises(ValueError, match="takes demonstrations in memory"):
        posterior_predictive_check(posterior, file, replicate="episodes")
    with pytest.raises(ValueError, match="distributed: processes share files"):
        posterior_predictive_check(posterior, team(), distributed=True)
