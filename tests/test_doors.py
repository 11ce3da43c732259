"""What is added from outside, one file and one line each, works everywhere."""

import html
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import toy_parts
from teams import hmm_demos, hmm_model
from typer.testing import CliRunner

import btil
from btil.analysis import held_out, report
from btil.cli import app
from btil.demonstrations.formats import FORMATS
from btil.domains.registry import DOMAINS, Domain
from btil.inference.method import METHODS, Method, method_names, method_of
from btil.models.description import describe, model_from_description
from btil.models.families import FAMILIES, FamilyEntry
from btil.plugins import installed

LABELLED = hmm_demos([0, 1, 1, 2, 0, 1], [0, 1, 1, 0, 0, 1])
COUNTING = Method("toy_parts", "counts of the labelled steps", "approximation")


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "counting", COUNTING)


@pytest.mark.usefixtures("counting")
def test_a_method_is_fitted_compared_and_reported(tmp_path: Path) -> None:
    counted = btil.fit(hmm_model(), LABELLED, "counting", tolerance=0.1, progress=False)
    assert counted.reason == "counted (tolerance 0.1)"
    exact = btil.fit(hmm_model(), LABELLED, "exact", progress=False)
    np.testing.assert_allclose(counted.policy("agent_0"), exact.policy("agent_0"), rtol=1e-12)
    with pytest.raises(TypeError, match="tolerance"):
        btil.fit(hmm_model(), LABELLED, "counting", steps=3)
    comparison = btil.compare(hmm_model(), LABELLED, ("exact", "counting"), progress=False)
    assert comparison.reference == "exact"
    assert comparison.table.loc["counting", "mean_difference"] < 1e-6
    page = comparison.report(tmp_path / "report")
    assert "counting" in page.read_text(encoding="utf-8")
    again = btil.analysis.load_comparison(tmp_path / "report")
    assert list(again.posteriors) == ["exact", "counting"]


@pytest.mark.usefixtures("counting")
def test_a_method_is_calibrated() -> None:
    found = btil.analysis.calibrate(
        hmm_model(), LABELLED, "counting", 10, share_labelled=1.0, progress=False
    )
    assert found.method == "counting"
    assert len(found.fits) == 10


def test_methods_and_domains_stand_in_the_help_of_the_shell() -> None:
    code = (
        "from btil.inference.method import METHODS, Method\n"
        "from btil.domains.registry import DOMAINS, Domain\n"
        "METHODS['counting'] = Method('toy_parts', 'counts of labels', 'approximation')\n"
        "DOMAINS['toy_task'] = Domain('toy_parts', 'task', 'a toy')\n"
        "import sys; from btil.cli import main; sys.argv = ['btil', *sys.argv[1:]]; main()"
    )
    for command, word in (("fit", "counting: counts of labels"), ("simulate", "toy_task")):
        done = subprocess.run(
            [sys.executable, "-c", code, command, "--help"],
            capture_output=True,
            text=True,
            check=False,
            env={"COLUMNS": "300", "PATH": "", "PYTHONPATH": ":".join(sys.path)},
        )
        assert word in " ".join(done.stdout.split()), done.stderr


def test_a_family_is_saved_and_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FAMILIES, "TriangularCPT", FamilyEntry("toy_parts", "triangular"))
    model = model_from_description({"policy": {"family": "triangular", "parents": []}})
    posterior = btil.fit(model, LABELLED, progress=False)
    prior = btil.DirichletCPT(np.array([1.0, 2.0, 3.0]), parents=())
    same = btil.fit(btil.TeamModel(policy=prior), LABELLED, progress=False)
    np.testing.assert_allclose(posterior.policy("agent_0"), same.policy("agent_0"), rtol=1e-6)
    assert 'family = "triangular"' in describe(model)
    posterior.save(tmp_path / "posterior.nc")
    assert isinstance(
        btil.load_posterior(tmp_path / "posterior.nc").model.policy, toy_parts.TriangularCPT
    )


def test_a_metric_has_a_column_and_a_figure_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metric = held_out.Metric("coin's error", "The error of who tosses coins.", toy_parts.coin)
    monkeypatch.setitem(held_out.METRICS, "coin", metric)
    monkeypatch.setattr(report, "PICTURES", [toy_parts.pictures])
    posterior = btil.fit(hmm_model(), LABELLED, progress=False)
    comparison = btil.analysis.compare_posteriors({"one": posterior}, LABELLED, progress=False)
    assert comparison.table.loc["one", "coin_agent_0"] == 0.5
    page = comparison.report(tmp_path / "report")
    text = html.unescape(page.read_text(encoding="utf-8"))
    for told in ("coin's error, agent_0", "tosses coins", "A section of its own", "to be seen"):
        assert told in text
    assert (tmp_path / "report" / "figures" / "nothing.png").is_file()


def test_a_domain_is_simulated_from_the_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DOMAINS, "toy_task", Domain("toy_parts", "task", "a toy"))
    assert btil.domains.toy_task is toy_parts.toy_task
    assert "toy_task" in dir(btil.domains)
    out = str(tmp_path / "toy.csv")
    done = CliRunner().invoke(app, ["simulate", "toy_task", "--num-episodes", "2", "--out", out])
    assert done.exit_code == 0, done.output
    assert btil.read_demonstrations(out).agents == ("alice", "rob")
    done = CliRunner().invoke(app, ["simulate", "toys", "--out", out])
    assert "there are movers, cleanup, toy_task" in done.output


def test_a_file_format_is_read_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(FORMATS, ".toy", "toy_parts")
    btil.write_demonstrations(LABELLED, tmp_path / "team.toy")
    assert (tmp_path / "team.toy").read_text(encoding="utf-8").startswith("toy\n")
    assert btil.read_demonstrations(tmp_path / "team.toy") == LABELLED
    done = CliRunner().invoke(app, ["info", str(tmp_path / "team.toy")])
    assert done.exit_code == 0, done.output


def test_an_entry_point_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "other-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[btil.methods]\nfound = test_doors:COUNTING\nmfvi = test_doors:COUNTING\n"
        "[btil.domains]\nbroken = no_such_module:DOMAIN\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    installed.cache_clear()
    try:
        assert method_names()[-1] == "found"
        assert method_of("found") is COUNTING
        assert method_of("mfvi") is METHODS["mfvi"]  # what comes with btil is not replaced
        posterior = btil.fit(hmm_model(), LABELLED, "found", progress=False)
        assert posterior.reason.startswith("counted")
        with pytest.warns(UserWarning, match=r"'broken' .*no_such_module:DOMAIN, cannot be loaded"):
            assert btil.domains.cleanup("tiny").num_states == 576
    finally:
        installed.cache_clear()
