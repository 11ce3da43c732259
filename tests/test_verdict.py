"""The verdict of a comparison: what it believes, where methods agree, what it advises."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from teams import hmm_demos, hmm_model

import btil
from btil.analysis import report, verdict
from btil.analysis.compare import Comparison
from btil.analysis.modes import WeighedMode
from btil.analysis.reference import Convergence

UNSURE = hmm_demos([0, 1, 1, 2, 0, 1], [0, -1, -1, 1, -1, -1])
KNOWN = hmm_demos([0, 1, 2, 0, 1], [0, 1, 1, 0, 0])


@pytest.fixture(scope="module")
def settled() -> Comparison:
    """Exact inference, draws that agree with it, and a mean field that is too sure."""
    return btil.compare(
        hmm_model(1.0),
        UNSURE,
        ("exact", "refined", "mfvi"),
        KNOWN,
        options={"refined": {"num_draws": 1500}},
        progress=False,
        num_draws=100,
    )


@pytest.fixture(scope="module")
def unsettled() -> Comparison:
    """A mean field, and chains far too short to be measured against."""
    options = {"gibbs": {"num_chains": 2, "num_warmup": 1, "num_samples": 5}}
    return btil.compare(
        hmm_model(0.1), UNSURE, ("mfvi", "gibbs"), options=options, progress=False, seed=1
    )


def test_who_agrees_and_who_is_too_sure(settled: Comparison) -> None:
    found = settled.verdict
    assert found.believed == ("exact", "refined", "mfvi")
    assert found.doubted == {}
    assert found.reference == "exact"
    assert found.agreements["refined"].agrees
    assert not found.agreements["mfvi"].agrees
    assert found.agreements["mfvi"].sd_ratio < 0.9
    # Means in units of the reference's standard deviations, cell by cell.
    exact, field = (settled.compared[name].result.rows for name in ("exact", "mfvi"))
    apart = [np.abs(field[site].mean() - rows.mean()) / rows.sd() for site, rows in exact.items()]
    everything = np.concatenate([one.ravel() for one in apart])
    assert found.agreements["mfvi"].mean_difference == pytest.approx(everything.mean(), rel=1e-4)
    assert found.uses["intervals"] in ("exact", "refined")
    assert set(found.uses) == {"decoding", "intervals", "live coach"}
    text = str(found)
    assert text == "\n".join(found.sentences)
    assert "exact, refined and mfvi converged." in text
    assert "refined agrees with exact" in text
    assert "mfvi differs from exact" in text


def test_widths_of_intervals_are_told_from_the_smallest_to_the_largest(
    settled: Comparison,
) -> None:
    def told(**ratios: float) -> str:
        differences = {
            name: settled.differences[name]._replace(
                mean_difference_in_sds=0.07, sd_ratio_in_use=ratio, sd_ratio_in_use_se=0.0
            )
            for name, ratio in ratios.items()
        }
        return str(dataclasses.replace(settled, differences=differences).verdict)

    both = "refined and mfvi agree with exact: means at most 0.07 sd off on average"
    assert f"{both}, intervals 0.95 to 1.04 as wide." in told(refined=1.04, mfvi=0.95)
    assert f"{both}, intervals 0.97 as wide." in told(refined=0.97, mfvi=0.97)
    assert f"{both}, intervals 0.97 as wide." in told(refined=np.nan, mfvi=0.97)
    assert f"{both}." in told(refined=np.nan, mfvi=np.nan)
    apart = told(refined=1.02, mfvi=0.6)
    assert "refined agrees with exact" in apart
    assert "its means are 0.07 sd off on average, its intervals 0.60 as wide." in apart


def test_what_chance_explains_is_agreement(settled: Comparison) -> None:
    """Chance is in the units of means, and explains a tenth of a standard deviation at most."""
    alike = {
        "mean_difference_in_sds": 0.07,
        "mean_sd_in_use": 0.2,
        "mean_difference_in_use_se": np.nan,
        "sd_ratio_in_use": 1.0,
        "sd_ratio_in_use_se": np.nan,
    }

    def agrees(difference: float = 0.07, chance: float = np.nan, **given: float) -> bool:
        changes = {"mean_difference_in_sds": difference, "mean_difference_in_use_se": chance}
        found = settled.differences["mfvi"]._replace(**(alike | changes | given))
        differences = settled.differences | {"mfvi": found}
        return (
            dataclasses.replace(settled, differences=differences).verdict.agreements["mfvi"].agrees
        )

    assert agrees(0.24)
    assert not agrees(0.26)
    assert agrees(0.26, 0.004)  # of 0.2: a fiftieth
    assert not agrees(0.28, 0.004)
    assert agrees(0.34, 0.5)
    assert not agrees(0.36, 0.5)
    assert agrees(np.nan)
    assert agrees(sd_ratio_in_use=1.09)
    assert agrees(sd_ratio_in_use=np.nan)
    assert not agrees(sd_ratio_in_use=0.89)
    assert agrees(sd_ratio_in_use=0.85, sd_ratio_in_use_se=0.08)
    assert not agrees(sd_ratio_in_use=1.17, sd_ratio_in_use_se=0.08)
    assert not agrees(0.5, sd_ratio_in_use=1.0)


def test_the_fastest_of_those_that_do_is_to_be_used(settled: Comparison) -> None:
    def uses(narrow: float = 0.5, **columns: tuple[float, float, float]) -> dict[str, str]:
        table = settled.table.assign(seconds=[3.0, 2.0, 1.0])
        for column, values in columns.items():
            table[f"{column}_error_agent_0"] = values
        differences = {
            name: settled.differences[name]._replace(
                mean_difference_in_sds=0.0, sd_ratio_in_use=ratio, sd_ratio_in_use_se=0.0
            )
            for name, ratio in (("exact", 1.0), ("refined", 1.0), ("mfvi", narrow))
        }
        return dataclasses.replace(settled, table=table, differences=differences).verdict.uses

    even = {"viterbi": (0.2, 0.2, 0.2), "filtering": (0.2, 0.2, 0.2)}
    assert uses(**even) == {"decoding": "mfvi", "intervals": "refined", "live coach": "mfvi"}
    assert uses(1.0, **even)["intervals"] == "mfvi"
    # Errors that differ by a hundredth are as good as each other.
    one = uses(viterbi=(0.2, 0.209, 0.3), filtering=(0.1, 0.2, 0.2))
    assert (one["decoding"], one["live coach"]) == ("refined", "exact")
    other = uses(viterbi=(0.2, 0.3, 0.211), filtering=(0.3, 0.1, 0.2))
    assert (other["decoding"], other["live coach"]) == ("exact", "refined")
    untested = uses(viterbi=(np.nan,) * 3, filtering=(np.nan, 0.1, np.nan))
    assert (untested["decoding"], untested["live coach"]) == ("mfvi", "refined")


def test_nothing_that_has_not_converged_is_to_be_used(settled: Comparison) -> None:
    convergence = settled.convergence | {"mfvi": Convergence(False, "the cap.")}
    found = dataclasses.replace(settled, convergence=convergence).verdict
    assert found.believed == ("exact", "refined")
    assert found.doubted == {"mfvi": "the cap."}
    assert "mfvi" not in {*found.uses.values(), *found.agreements}
    assert found.sentences[0] == "exact and refined converged. mfvi did not: the cap."


def test_what_was_not_tested_is_said(settled: Comparison) -> None:
    told = " How well they decode was not tested: no held-out labels."
    assert told not in str(settled.verdict)
    table = settled.table.drop(columns=["viterbi_error_agent_0", "filtering_error_agent_0"])
    found = dataclasses.replace(settled, table=table.assign(seconds=[3.0, 2.0, 1.0])).verdict
    assert told in str(found)
    assert found.uses["decoding"] == "mfvi"


def test_nothing_is_measured_against_what_has_not_converged(unsettled: Comparison) -> None:
    found = unsettled.verdict
    assert found.believed == ("mfvi",)
    assert set(found.doubted) == {"gibbs"}
    assert found.reference is None
    assert found.agreements == {}
    assert "intervals" not in found.uses
    assert found.uses["decoding"] == "mfvi"
    assert "Use mfvi for decoding and a live coach." in str(found)
    text = str(found)
    assert "gibbs did not" in text
    assert "Nothing is measured against gibbs, which has not converged." in text
    assert "sd off" not in text
    assert "Nobody's intervals can be believed yet" in text
    assert any("num_samples of 20" in step for step in found.next_steps)
    assert any("method refined" in step for step in found.next_steps)


@pytest.mark.parametrize(
    ("method", "shape", "step"),
    [
        ("mfvi", None, "one with a larger max_iterations (up to 40 s)."),
        ("refined", (1, 200, 3), "one with a larger num_draws or num_sweeps (up to 40 s)."),
        ("gibbs", (1, 500, 3), "one with num_chains of 4: one chain shows nothing."),
        (
            "nuts", (2, 300, 3),
            "one with num_warmup and num_samples of 1,200 (up to 40 s); if its chains then still "
            "differ they are in different modes.",
        ),
    ],
)  # fmt: skip
def test_what_did_not_converge_is_to_run_longer(
    method: str, shape: tuple[int, ...] | None, step: str, settled: Comparison
) -> None:
    one = settled.posteriors["mfvi"]
    likelihood = None if shape is None else np.zeros(shape)
    result = one.result._replace(log_likelihood=likelihood)
    made = dataclasses.replace(one, method=method, wall_time=10.0, result=result)
    comparison = dataclasses.replace(settled, posteriors={"one": made})
    assert verdict._next_steps(comparison, {"one": "why"}, {"intervals": "other"}) == [step]


def test_draws_around_a_mean_field_are_advised_where_it_has_converged(settled: Comparison) -> None:
    step = "draws around mfvi (method refined) for its intervals."
    wait = "mfvi with a larger max_iterations"
    assert verdict._next_steps(settled, {}, {"decoding": "mfvi"}) == [step]
    assert verdict._next_steps(settled, {}, {"intervals": "exact"}) == []
    (only,) = verdict._next_steps(settled, {"mfvi": "the cap"}, {"decoding": "exact"})
    assert only.startswith(wait)


def test_what_can_be_used_is_said() -> None:
    said = verdict._on_uses
    uses = {"decoding": "a", "intervals": "b", "live coach": "a"}
    assert said(uses, True) == "Use a for decoding and a live coach and b for intervals."
    assert said({"decoding": "a", "live coach": "a"}, False) == (
        "Use a for decoding and a live coach. Nobody's intervals can be believed yet. How well "
        "they decode was not tested: no held-out labels."
    )
    assert said({}, True) == "None of them can be used yet."
    assert verdict._on_belief((), {"a": "the cap was reached."}) == (
        "No method converged. a did not: the cap was reached."
    )


def test_predicting_and_decoding_are_two_questions(settled: Comparison) -> None:
    table = settled.table.copy()
    table.loc["exact", ["log_likelihood_per_step", "viterbi_error_agent_0"]] = [-1.0, 0.4]
    table.loc["refined", ["log_likelihood_per_step", "viterbi_error_agent_0"]] = [-1.1, 0.3]
    table.loc["mfvi", ["log_likelihood_per_step", "viterbi_error_agent_0"]] = [-1.2, 0.1]
    other = dataclasses.replace(settled, table=table).verdict
    assert "exact predicts held-out actions best (-1.000 a step, mfvi -1.200)" in str(other)
    assert "mfvi decodes the labels best (0.100 wrong, exact 0.400)" in str(other)
    assert other.uses["decoding"] == "mfvi"
    table["viterbi_error_agent_0"] = 0.2
    assert "predicts held-out" not in str(dataclasses.replace(settled, table=table).verdict)


def test_the_page_and_the_terminal_begin_with_it(
    settled: Comparison,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from btil.analysis.demo import print_table

    monkeypatch.setattr(report, "PICTURES", [])
    text = settled.report(tmp_path / "report").read_text(encoding="utf-8")
    assert text.index(">Verdict</h2>") < text.index(">Data</h2>")
    assert "refined agrees with exact" in text
    again = btil.analysis.load_comparison(tmp_path / "report").verdict
    assert again.sentences[:2] == settled.verdict.sentences[:2]
    print_table(settled)
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.startswith("exact, refined and mfvi converged.")


def test_modes_of_the_reference_are_named_with_their_weights(settled: Comparison) -> None:
    def told(error: float, crossings: int) -> Comparison:
        draws = np.arange(8).reshape(2, 4) < 3
        modes = [
            WeighedMode(draws, weight, error, crossings, -9.0, 1.0) for weight in (0.625, 0.375)
        ]
        return dataclasses.replace(settled, weighed={settled.reference: modes})

    assert settled.verdict.modes == ()
    assert "modes" not in str(settled.verdict)
    known = told(0.015, 40).verdict
    assert known.modes == ((0.625, 0.015), (0.375, 0.015))
    assert (
        "exact: the draws are in 2 modes, of weight 0.62 ± 0.01 and 0.38 ± 0.01." in known.sentences
    )
    assert "a rough error as chains went over 9 times only" in str(told(0.1, 9).verdict)
    assert "rough" not in str(told(0.1, 10).verdict)
    unknown = told(np.nan, 0).verdict
    assert np.isnan([error for _, error in unknown.modes]).all()
    assert "2 modes, whose weights are not known, as no chain goes from one" in str(unknown)
    assert "±" not in str(unknown)
