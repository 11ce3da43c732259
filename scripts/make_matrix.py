"""Write docs/reference/matrix.md: which features work with which methods, by the tests of it.

A test says what it holds by the markers `covers(feature, *columns)` and
`refuses(feature, *columns, remedy=...)`. Markers are read from the sources: nothing is imported.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "matrix.md"

FEATURES = (
    "unseen actions and states",
    "members who come and go",
    "unsure labels",
    "the step before",
    "normal columns",
    "regressions on covariates",
    "blank cells of columns",
    "members without actions",
    "gaps beside columns",
    "tables with parameters beside columns",
    "several devices",
    "files larger than memory",
)
METHODS = ("exact", "mfvi", "svi", "nuts", "gibbs", "refined", "batches")
QUESTIONS = (
    "smoothing and decoding",
    "tracker",
    "simulation",
    "saved files",
    "devices",
    "evidence",
    "calibration",
    "mfvi_guide",
    "predictive check",
    "own NumPyro models",
    "suggest_model",
    "debrief",
)

_COLUMNS_OF_NUMBERS = (
    "normal columns",
    "regressions on covariates",
    "blank cells of columns",
    "members without actions",
    "gaps beside columns",
    "tables with parameters beside columns",
)
# Cells that nothing could stand in: what they ask for is no part of the question.
NOT_MEANT = {
    "unsure labels": {
        "tracker": "who is asked live says one thing or nothing",
        "simulation": "whoever simulates knows the latents",
    },
    "the step before": {
        "own NumPyro models": "the function looks back as it likes",
        "suggest_model": "what it should look back at is a column of the recording",
    },
    **{
        feature: {"own NumPyro models": "the function says what columns tell: log_likelihood=..."}
        for feature in _COLUMNS_OF_NUMBERS
    },
}
NOT_MEANT["tables with parameters beside columns"]["suggest_model"] = (
    "what is suggested has Dirichlet rows"
)

HEAD = """\
# What works with what

Made from the tests by `python scripts/make_matrix.py`: a tick leads to the file of the test that
holds it (its name shows when the pointer rests on it), a cross to that of the refusal. A blank cell
is one that no test looks at, a dash one in which nothing could stand (the reason shows likewise).

What the rows are: [recordings.md](../how-to/recordings.md) and
[continuous.md](../how-to/continuous.md). "Gaps" are unseen actions, members who come and go and
unsure labels.
"""


class Held(NamedTuple):
    """What a test holds.

    Attributes:
        feature: The row.
        column: The column.
        test: The file and the test.
        remedy: Of a refusal what its message says to do; None where the feature works.
    """

    feature: str
    column: str
    test: tuple[str, str]
    remedy: str | None


def held_by_tests(folder: Path) -> Iterator[Held]:
    """What the markers of all tests say.

    Raises:
        ValueError: If a marker names a row or column that there is not, or a refusal no remedy.
    """
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if not isinstance(node, ast.FunctionDef):
                continue
            for decorator in node.decorator_list:
                called = decorator.func if isinstance(decorator, ast.Call) else None
                if not isinstance(called, ast.Attribute) or called.attr not in (
                    "covers",
                    "refuses",
                ):
                    continue
                assert isinstance(decorator, ast.Call)
                where = f"{path.name}::{node.name}"
                feature, *columns = (ast.literal_eval(one) for one in decorator.args)
                named = {one.arg: ast.literal_eval(one.value) for one in decorator.keywords}
                for name, known in (
                    (feature, FEATURES),
                    *((c, METHODS + QUESTIONS) for c in columns),
                ):
                    if name not in known:
                        raise ValueError(f"{where}: {name!r} is none of {', '.join(known)}")
                if (called.attr == "refuses") != ("remedy" in named):
                    raise ValueError(f"{where}: a refusal has a remedy, and nothing else has")
                test = path.relative_to(folder).as_posix(), node.name
                for column in columns:
                    yield Held(feature, column, test, named.get("remedy"))


def page() -> str:
    """The text of the page."""
    held: dict[tuple[str, str], Held] = {}
    for one in held_by_tests(ROOT / "tests"):
        held.setdefault((one.feature, one.column), one)
    parts = [HEAD]
    for title, columns in (("Learning", METHODS), ("Asking", QUESTIONS)):
        lines = [f"## {title}\n", f"| | {' | '.join(columns)} |", "|---|" + "---|" * len(columns)]
        for feature in FEATURES:
            reasons = NOT_MEANT.get(feature, {})
            cells = [_cell(held.get((feature, one)), reasons.get(one)) for one in columns]
            lines.append(f"| {feature} | {' | '.join(cells)} |")
        parts.append("\n".join(lines) + "\n")
    refusals: dict[tuple[str, str], list[str]] = {}
    for one in held.values():
        if one.remedy is not None:
            refusals.setdefault((one.column, one.remedy), []).append(one.feature)
    lines = ["## Refused, and what to do\n"]
    lines += [
        f"- **{column}** with {', '.join(features)}: {remedy}."
        for (column, remedy), features in sorted(refusals.items())
    ]
    parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _cell(held: Held | None, not_meant: str | None) -> str:
    if held is None:
        return "" if not_meant is None else f'<span title="{not_meant}">–</span>'
    sign = "✓" if held.remedy is None else "✗"
    return f'[{sign}](../../tests/{held.test[0]} "{held.test[1]}")'


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
