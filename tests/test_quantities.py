"""What columns of a comparison say: values, errors and what is not there, as texts."""

import numpy as np
import pytest

from btil.analysis.held_out import METRICS
from btil.analysis.quantities import DECIDING, MEASURED, Quantity, quantities
from btil.analysis.words import listed, with_error

BY_COLUMN = {one.column: one for one in quantities(("ann", "bob"), 0.05)}


@pytest.mark.parametrize(
    ("column", "record", "text"),
    [
        ("seconds", {"seconds": 1234.56}, "1,234.6"),
        ("converged", {"converged": False}, "NO"),
        ("converged", {"converged": True}, "yes"),
        ("rows_above", {"rows_above": 12345.0}, "12,345"),
        ("max_rhat", {"max_rhat": 1.00449}, "1.004"),
        ("max_rhat", {"max_rhat": np.nan}, "–"),
        ("elbo", {"elbo": None}, "–"),
        ("seconds_to_accuracy", {"seconds_to_accuracy": np.inf}, "not yet"),
        ("sd_ratio", {"sd_ratio": 0.876, "sd_ratio_se": 0.012}, "0.88 ± 0.01"),
        ("sd_ratio", {"sd_ratio": 0.876, "sd_ratio_se": np.nan}, "0.88"),
        ("sd_ratio", {"sd_ratio": 0.876}, "0.88"),
        ("mean_difference", {"mean_difference": 0.01234, "mean_difference_se": 0.002}, "0.0123 ± "
         "0.0020"),
        ("played_steps", {"played_steps": 33.33, "played_steps_se": 1.25}, "33.3 ± 1.2"),
        ("log_score_bob", {"log_score_bob": -0.12345, "log_score_se_bob": 0.01}, "-0.123 ± 0.010"),
        ("coverage_89", {"coverage_89": 0.9, "coverage_89_se": 0.05}, "0.90 ± 0.05"),
    ],
)  # fmt: skip
def test_values_are_written_with_their_errors(
    column: str, record: dict[str, object], text: str
) -> None:
    assert BY_COLUMN[column].text(record) == text


def test_columns_are_named_by_agent_and_explained_once() -> None:
    ann, bob = BY_COLUMN["viterbi_error_ann"], BY_COLUMN["viterbi_error_bob"]
    assert (ann.label, bob.label) == ("Viterbi error, ann", "Viterbi error, bob")
    assert ann.explanation == METRICS["viterbi_error"].explanation
    assert bob.explanation == "As above."
    assert ann.group == DECIDING != BY_COLUMN["filtering_error_ann"].group
    assert BY_COLUMN["surer_than_right_ann"].columns == (
        "surer_than_right_ann", "surer_than_right_se_ann",
    )  # fmt: skip
    assert BY_COLUMN["surer_than_right_bob"].explanation == "As above."
    assert BY_COLUMN["seconds"].columns == ("seconds",)
    assert BY_COLUMN["seconds_to_accuracy"].label == "seconds to within 0.05"
    assert "It should be 0.89" in BY_COLUMN["coverage_89"].explanation
    assert BY_COLUMN["coverage_50"].label == "truth in 50% intervals"
    assert set(MEASURED) <= BY_COLUMN.keys()
    assert all(isinstance(one, Quantity) for one in BY_COLUMN.values())


def test_names_and_errors_in_sentences() -> None:
    assert [listed(list(names)) for names in ("a", "ab", "abc")] == ["a", "a and b", "a, b and c"]
    assert with_error(0.126, 0.05, 2) == "0.13 ± 0.05"
    assert with_error(0.126, np.nan, 1) == "0.1"
    assert with_error(np.nan, 0.05, 2) == "–"
