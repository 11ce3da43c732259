"""docs/reference/matrix.md is what the markers of the tests say, and every method has its cells."""

import make_matrix
import pytest
from make_matrix import FEATURES, METHODS, PAGE, ROOT, held_by_tests, page


def test_page_is_what_the_tests_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python scripts/make_matrix.py`"


def test_every_method_works_or_refuses():
    held = {(one.feature, one.column) for one in held_by_tests(ROOT / "tests")}
    missing = [(f, m) for f in FEATURES for m in METHODS if (f, m) not in held]
    assert not missing


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ('covers("gaps", "mfvi")', "'gaps' is none of"),
        ('covers("the step before", "magic")', "'magic' is none of"),
        ('refuses("the step before", "mfvi")', "a refusal has a remedy"),
        ('covers("the step before", "mfvi", remedy="none")', "a refusal has a remedy"),
    ],
)
def test_slips_in_markers_are_told(marker, message, tmp_path):
    (tmp_path / "test_x.py").write_text(f"@pytest.mark.{marker}\ndef test_y():\n    pass\n")
    with pytest.raises(ValueError, match=f"test_x.py::test_y: {message}"):
        list(make_matrix.held_by_tests(tmp_path))
