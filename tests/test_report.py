"""Reports: one page that needs nothing else, its files beside it, written whole or not at all."""

import base64
import dataclasses
import html
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from html_pages import Links

import btil
from btil.analysis import report
from btil.analysis.evidence import Evidence
from btil.analysis.report import prepare_directory
from btil.models.cpt import StickyDirichletCPT
from btil.models.draws import prior_tables
from btil.models.hierarchical import HierarchicalDirichletCPT
from btil.models.softmax import SoftmaxCPT
from btil.models.team import bind

HOSTILE = '<script>alert("bob")</script>'


@pytest.fixture(scope="module")
def comparison() -> Any:
    generator = np.random.default_rng(0)
    latents = generator.integers(2, size=(60, 2))
    actions = np.where(generator.random((60, 2)) < 0.9, latents, 1 - latents)

    def part(steps: slice, labelled: int) -> btil.Demonstrations:
        labels = latents[steps].copy()
        labels[labelled:] = -1
        return btil.Demonstrations(
            {"place": generator.integers(2, size=len(labels))},
            actions[steps],
            latents=labels,
            episodes=np.arange(len(labels)) // 10,
            agents=("ann", HOSTILE),
            num_states={"place": 2},
            num_actions=2,
            num_latents=2,
            latent_names={"ann": ("<b>help</b>", "wait & see")},
        )

    model = btil.TeamModel(
        policy=btil.DirichletCPT(1.0, parents=("place",)),
        transition=btil.DirichletCPT(1.0),
        initial=btil.DirichletCPT(1.0),
    )
    return btil.compare(
        model,
        part(slice(0, 40), 20),
        ("mfvi", "gibbs"),
        part(slice(40, 60), 20),
        seed=5,
        progress=False,
        options={"gibbs": {"num_chains": 2, "num_warmup": 50, "num_samples": 800}},
        truth=prior_tables(model, part(slice(0, 40), 20), np.random.default_rng(1)),
        num_draws=100,
        num_played=7,
    )


@pytest.fixture(scope="module")
def page(comparison: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reports") / "a report"
    written: Path = comparison.report(folder, command="btil compare 'a b.csv' --out <here>")
    return written


def test_page_needs_nothing_from_outside(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = Links(text)
    assert not found.open
    assert not {"script", "link", "iframe", "object", "b"} & set(found.elements)
    assert all(address.startswith(("data:image/", "#")) for address in found.addresses)
    assert not re.search(r"https?:|url\(|@import", text)
    assert sum(address.startswith("data:") for address in found.addresses) >= 5


def test_names_are_shown_as_they_are(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "<script>" not in text
    shown = Links(text).text
    assert HOSTILE in shown
    assert "<b>help</b>, wait & see" in shown
    assert "btil compare 'a b.csv' --out <here>" in shown


def test_page_holds_every_number_of_the_table(page: Path, comparison: Any) -> None:
    shown = Links(page.read_text(encoding="utf-8")).text
    told = {column for quantity in comparison.quantities() for column in quantity.columns}
    assert set(comparison.table.columns) <= told
    for quantity in comparison.quantities():
        assert quantity.explanation in shown or quantity.column == "reason"
        for name in comparison.posteriors:
            assert comparison.written(quantity, name) in shown
    assert all(note in shown for note in comparison.notes)
    assert "seed=5" in shown
    assert comparison.no_differences is None


def test_what_is_doubtful_stands_out(comparison: Any) -> None:
    for above, doubtful in (([np.nan, 0], ["NO"]), ([0, 3], ["NO", "3"])):
        table = comparison.table.assign(converged=[True, False], rows_above=above)
        written = str(report._results(dataclasses.replace(comparison, table=table)))
        assert re.findall('class="number warn"[^>]*>([^<]*)<', written) == doubtful


def test_sections_tell_what_is_new_to_a_reader(page: Path, comparison: Any) -> None:
    shown = Links(page.read_text(encoding="utf-8")).text
    for heading, sentence in (
        ("Known truth", "50% intervals should cover half of them"),
        ("Time", "A chain's draws are taken to have come at a steady pace"),
        ("Decoded mental states: sure, and right", "what it exceeds it by is too sure"),
    ):
        assert heading in shown
        assert sentence in shown
    for (name, role), row in comparison.coverage.iterrows():
        assert f"{row['coverage_89']:.2f} ± {row['coverage_89_se']:.2f}" in shown
        assert f"{name}, {report._ROLES[role]}" in shown
    for (name, agent, kind), row in comparison.decoded.iterrows():
        assert f"{agent}, {name}, {kind}" in shown
        assert f"{row['brier']:.3f} ± {row['brier_se']:.3f}" in shown
    for course in comparison.courses.values():
        assert f"{course.error[-1]:.4f}" in shown
    for name in ("coverage", "decoded", "chains"):
        table = getattr(comparison, name)
        read = pd.read_csv(page.parent / f"{name}.csv")
        np.testing.assert_allclose(read[table.columns[-1]], table.iloc[:, -1])
    bins = pd.read_csv(page.parent / "reliability.csv")
    assert set(bins["agent"]) == set(comparison.demos.agents)
    own = bins[(bins["agent"] == "ann") & (bins["method"] == "gibbs")]
    assert own["steps"].sum() == comparison.decoded.loc[("gibbs", "ann", "filtered"), "steps"]
    assert (own["said"] * own["steps"]).sum() / own["steps"].sum() == pytest.approx(
        comparison.decoded.loc[("gibbs", "ann", "smoothed, averaged"), "sureness"]
    )
    # Nothing is said of what was not asked for.
    plain = dataclasses.replace(
        comparison, coverage=pd.DataFrame(), decoded=pd.DataFrame(), courses={}
    )
    links = Links(report._page(plain, {}, None))
    assert not {"#known-truth", "#time"} & set(links.addresses)


def test_groups_of_chains_stand_side_by_side(comparison: Any) -> None:
    index = pd.MultiIndex.from_tuples([("gibbs", 1), ("gibbs", 2)], names=["method", "group"])
    modes = pd.DataFrame(
        {"chains": ["0, 2", "1"], "mean_log_likelihood": [-10.5, -14.25], "sd": [1.5, 2.5]}, index
    )
    shown = Links(report._convergence(dataclasses.replace(comparison, modes=modes))).text
    for text in ("Groups of chains", "They are not averaged", "gibbs, group 2", "0, 2", "-14.250"):
        assert text in shown
    assert "Groups of chains" not in Links(report._convergence(comparison)).text


def test_modes_of_the_draws_stand_side_by_side(comparison: Any) -> None:
    index = pd.MultiIndex.from_tuples([("gibbs", 1), ("gibbs", 2)], names=["method", "mode"])
    weights = pd.DataFrame(
        {"weight": [0.75, 0.25], "weight_se": [0.125, 0.125], "crossings": [3, 3]}, index
    )
    shown = Links(report._convergence(dataclasses.replace(comparison, weights=weights))).text
    for text in ("Modes of the draws", "gibbs, mode 2", "0.750", "0.125", "share of the draws"):
        assert text in shown
    assert "Modes of the draws" not in Links(report._convergence(comparison)).text


@pytest.mark.parametrize(
    ("cpt", "words"),
    [
        (btil.DirichletCPT(2.0), "learned, with a Dirichlet prior of concentration 2 per cell"),
        (
            StickyDirichletCPT(1.0, stay=10.0),
            "concentration 1 to 11 per cell, 10 of it for staying",
        ),
        (
            HierarchicalDirichletCPT(base_concentration=2.0, shared_base=True),
            "learned, a HierarchicalDirichletCPT (base_concentration 2, stay 0): rows are "
            "Dirichlet around the parameters base (2 x 2) and strength, which all agents have in "
            "common",
        ),
        (
            SoftmaxCPT(parents=("place",)),
            "rows are a function of the parameters bias (2 x 2) and weights (2 x 2 x 2)",
        ),
        (btil.StaticCPT(), "it never changes, not learned"),
        (btil.UniformCPT(), "uniform, not learned"),
    ],
)
def test_families_are_told_in_words(cpt: Any, words: str, comparison: Any) -> None:
    bound = bind(btil.TeamModel(transition=cpt), comparison.demos)
    assert words in report._describe(bound, bound.tables["transition_ann"])
    assert words in html.unescape(report._model(bound))


def test_figures_lie_beside_the_page_as_they_are_in_it(page: Path) -> None:
    figures = page.parent / "figures"
    names = {file.stem for file in figures.iterdir()}
    expected = {"method_against_method", "sd_ratios", "bounds", "trace_gibbs"}
    assert expected | {"courses", "reliability"} <= names
    assert len({name for name in names if name.startswith("timeline")}) == 2
    assert len({name for name in names if name.startswith("confusion")}) == 2
    text = page.read_text(encoding="utf-8")
    for name in names:
        drawing = (figures / f"{name}.svg").read_bytes()
        dots = (figures / f"{name}.png").read_bytes()
        assert dots.startswith(b"\x89PNG")
        assert b"<svg" in drawing
        shown = [base64.b64encode(content).decode() in text for content in (drawing, dots)]
        assert sum(shown) == 1


def test_table_and_posteriors_can_be_read_back(page: Path, comparison: Any) -> None:
    table = pd.read_csv(page.parent / "table.csv", index_col="method")
    assert list(table.columns) == list(comparison.table.columns)
    np.testing.assert_allclose(
        table["log_likelihood_per_step"], comparison.table["log_likelihood_per_step"]
    )
    assert btil.read_demonstrations(page.parent / "test.npz") == comparison.test
    for name, posterior in comparison.named.items():
        loaded = btil.load_posterior(page.parent / "posteriors" / f"{name}.nc")
        assert loaded.demos == posterior.demos
        for site, rows in posterior.result.rows.items():
            np.testing.assert_array_equal(loaded.result.rows[site].mean(), rows.mean())


def test_the_certainty_of_methods_is_that_of_the_data(comparison: Any) -> None:
    def said(ratio: float, error: float = np.nan) -> str:
        table = comparison.table.copy()
        table.loc["mfvi", ["sd_ratio_in_use", "sd_ratio_in_use_se"]] = ratio, error
        measured = dataclasses.replace(comparison, table=table, no_differences=None)
        return report._certainty(measured)

    assert said(1.01) == "Over the rows in use mfvi is about as certain as it (median 1.01)."
    assert said(0.71) == "Over the rows in use mfvi is more certain (median 0.71)."
    assert said(1.40) == "Over the rows in use mfvi is less certain (median 1.40)."
    assert said(0.71, 0.2) == "Over the rows in use mfvi is about as certain as it (median 0.71)."
    assert said(np.nan) == ""


def test_lines_of_the_page_fit_again(
    page: Path, comparison: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Links(page.read_text(encoding="utf-8")).text
    lines = shown[shown.rindex("import btil\n") : shown.index('comparison.report("again")')]
    monkeypatch.chdir(page.parent)
    again: dict[str, Any] = {}
    exec(lines, again)
    assert "Seed 5; the same seed gives the same numbers" in shown
    assert again["comparison"].num_played == 7
    differ = [n for n in comparison.table.columns if "second" in n]  # times
    assert len(differ) == 4
    pd.testing.assert_frame_equal(
        again["comparison"].table.drop(columns=differ, errors="ignore"),
        comparison.table.drop(columns=differ),
    )


def test_lines_of_the_page_hand_on_all_that_was_given(comparison: Any) -> None:
    """Options, other episodes and the evidence, where there are some."""
    few = dataclasses.replace(
        comparison.posteriors["gibbs"], options={"num_chains": 2, "num_samples": 9}
    )
    others = btil.Demonstrations([0], [[0, 0]], agents=few.demos.agents, num_latents=2)
    moved = dataclasses.replace(few, bound=dataclasses.replace(few.bound, demos=others))
    plain = dataclasses.replace(comparison.posteriors["mfvi"], options={}, seed=8)
    estimate = Evidence(-9.5, 0.1, "smc", True, None, ())
    changed = dataclasses.replace(
        comparison,
        posteriors={"mfvi": plain, "short": moved},
        reference="mfvi",
        evidence=estimate,
        accuracy=0.125,
        test=None,
        truth=None,
    )

    class Asked:
        given: dict[str, Any]

        def load_posterior(self, path: str) -> Any:
            return {"posteriors/mfvi.nc": plain, "posteriors/short.nc": moved}[path]

        def compare(self, model: Any, demos: Any, **given: Any) -> Any:
            self.given = given | {"model": model, "demos": demos}
            return self

        def report(self, folder: str) -> None:
            assert folder == "again"

    asked = Asked()
    lines = report._python(changed).removeprefix("import btil\n")
    exec(lines, {"btil": asked})
    assert asked.given == {
        "model": plain.model,
        "demos": plain.demos,
        "methods": {"mfvi": "mfvi", "short": "gibbs"},
        "seed": 8,
        "accuracy": 0.125,
        "num_draws": 100,
        "num_played": 7,
        "reference": "mfvi",
        "options": {"short": {"num_chains": 2, "num_samples": 9}},
        "evidence": True,
        "demos_by_method": {"short": others},
    }


def test_the_commonest_label_is_guessed_where_there_are_labels(comparison: Any) -> None:
    train, test = comparison.demos, comparison.test
    wrong = [
        (test.latents[:, i] != np.bincount(train.latents[train.latents[:, i] >= 0, i]).argmax())
        for i in range(2)
    ]
    expected = np.reshape(wrong, (2, 2, 10)).mean((1, 2))
    np.testing.assert_allclose(report._majority_errors(train, test), expected)
    assert report._majority_errors(train, None) is None
    assert report._majority_errors(train.without_labels(), test) is None
    labels = test.latents.copy()
    labels[:, 1] = -1
    assert report._majority_errors(train, test.replace(latents=labels)) is None


def test_diagnostics_are_written_as_briefly_as_they_can_be() -> None:
    values = (None, np.nan, 12345.0, 1.0034, 99.5, 100.25, -123.45, 0.0)
    told = ["–", "–", "12,345", "1.003", "99.500", "100.2", "-123.5", "0"]
    assert [report._brief(value) for value in values] == told


def test_second_report_replaces_the_first_and_nothing_else(
    comparison: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Figures take longest; two of them stand for all.
    monkeypatch.setattr(report, "PICTURES", report.PICTURES[:1])
    page = comparison.report(tmp_path)
    first = {f.relative_to(tmp_path): f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    own = tmp_path / "figures" / "mine.txt"
    own.write_text("mine")
    stale = tmp_path / "posteriors" / "old.nc"
    stale.write_text("of an earlier report")
    listed = tmp_path / "files.txt"
    outside = tmp_path.parent / "outside.txt"
    outside.write_text("not of the report")
    listed.write_text(listed.read_text() + "posteriors/old.nc\n../outside.txt\n")
    assert comparison.report(tmp_path) == page
    second = {f.relative_to(tmp_path): f.read_bytes() for f in tmp_path.rglob("*") if f.is_file()}
    assert own.read_text() == "mine"
    assert outside.read_text() == "not of the report"
    assert set(second) == set(first) | {Path("figures/mine.txt")}
    for name, content in first.items():
        if name.suffix in (".svg", ".png", ".html", ".csv", ".txt"):
            assert second[name] == content


def test_report_that_fails_leaves_the_old_one(
    comparison: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.html").write_text("old")

    def fail(*args: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(report, "save_comparison", fail)
    monkeypatch.setattr(report, "PICTURES", [])
    with pytest.raises(OSError, match="disk full"):
        comparison.report(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "old"


def test_folder_is_made_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert prepare_directory(tmp_path / "a" / "b c") == tmp_path / "a" / "b c"
    assert (tmp_path / "a" / "b c").is_dir()
    assert not list((tmp_path / "a" / "b c").iterdir())
    taken = tmp_path / "taken"
    taken.write_text("")
    for wrong in (taken, taken / "below"):
        with pytest.raises(NotADirectoryError, match="not a folder"):
            prepare_directory(wrong)

    def refuse(**options: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    with pytest.raises(PermissionError, match="cannot write there"):
        prepare_directory(tmp_path)


def test_of_rows_in_use_nothing_is_said_where_there_are_none() -> None:
    """A single step between three mental states: no row is read once, and none is compared."""
    demos = btil.Demonstrations([0], [0], num_states=1, num_actions=2, num_latents=3)
    methods = {"one": "mfvi", "other": "mfvi"}
    found = btil.compare(btil.TeamModel(), demos, methods, progress=False)
    assert found.others
    assert "sd_ratio_in_use" not in found.table
    assert report._certainty(found) == ""
