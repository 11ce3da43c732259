"""From trials to tables: means and spreads beside the paper's numbers."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from btil.analysis.output import HtmlCell, html
from btil.analysis.reproduction.experiments import HAMMING, JS, TEAM, Imitation
from btil.analysis.reproduction.targets import Layout, Reported, Row
from btil.analysis.reproduction.trials import Trial

if TYPE_CHECKING:
    from rich.table import Table

HIGHER, LOWER = "higher", "lower"
MARKS = {HIGHER: "↑", LOWER: "↓", "": ""}
# The paper prints two decimals.
_ROUNDING = 0.005
_METRICS = {
    HAMMING: "Hamming",
    JS: "JS div.",
    "suboptimal": "suboptimal, mean over episodes",
    "suboptimal_steps": "suboptimal, of all steps",
    "steps": "steps per episode",
    "cut": "episodes cut",
    "returns": "return",
    "misaligned": "misaligned, of all steps",
}
_DECIMALS = {"steps": 1, "returns": 1}
_NAMES = {"movers": "Movers", "cleanup": "Cleanup", "alice": "Alice", "rob": "Rob", TEAM: "team"}
_ROW = ("domain", "setting", "algorithm", "num_demos", "num_labelled", "agent", "metric")

# ---------------------------------------------------------------------- numbers


def trials_table(rows: Sequence[Row], trials: Sequence[Trial]) -> pd.DataFrame:
    """Every number of every trial, a line each.

    Args:
        rows: Rows of a target.
        trials: Trials of their experiments.

    Returns:
        A table with columns domain, setting, algorithm, num_demos, num_labelled (0 where there is
        no such thing), agent, metric, trial, seed, value, seconds, converged.
    """
    lines = []
    for row in rows:
        for trial in trials:
            if trial.experiment != row.experiment:
                continue
            for agent, metric, value in trial.outcome.scores:
                lines.append(
                    {
                        **_key(row, agent, metric),
                        "trial": trial.number,
                        "seed": trial.seed,
                        "value": value,
                        "seconds": trial.seconds,
                        "converged": trial.outcome.converged,
                    }
                )
    return pd.DataFrame(lines)


def summarise(rows: Sequence[Row], trials: pd.DataFrame, comparable: bool = True) -> pd.DataFrame:
    r"""Mean and spread over trials of every number, the paper's beside it, differences marked.

    A difference is marked where

    .. math:: |\bar x - \bar x_{paper}| > \sqrt{s^2 + s_{paper}^2} + 0.005

    with s the standard deviations over trials (ddof 1), and the last term what the paper's
    rounding to two decimals hides. With five trials on each side that is a little more than two
    standard errors of the difference of two means. Where the paper tells no spread, ours is taken
    for it. With a single trial nothing is marked.

    Args:
        rows: Rows of a target.
        trials: From `trials_table`.
        comparable: Whether the paper's numbers are about the same data; if not, nothing is marked.

    Returns:
        A line per number: domain, setting, algorithm, num_demos, num_labelled, agent, metric,
        trials, mean, sd, paper, paper_sd, difference, spread, differs ("higher", "lower" or ""),
        seconds (mean per trial).
    """
    lines = []
    groups: dict[Any, Any] = {}
    if not trials.empty:
        groups = dict(list(trials.groupby(list(_ROW), sort=False)))
    for row in rows:
        keys = [(key[-2], key[-1]) for key in groups if key[:-2] == _row_key(row)]
        for agent, metric in dict.fromkeys([*keys, *row.reported]):
            group = groups.get((*_row_key(row), agent, metric))
            reported = row.reported.get((agent, metric))
            lines.append(
                {
                    **_key(row, agent, metric),
                    **_compare([] if group is None else group["value"], reported, comparable),
                    "seconds": math.nan if group is None else float(group["seconds"].mean()),
                }
            )
    return pd.DataFrame(lines)


def _compare(values: Any, reported: Reported | None, comparable: bool) -> dict[str, Any]:
    """Mean and spread of the values of trials, and how the paper's number compares."""
    number = len(values)
    mean = float(np.mean(values)) if number else math.nan
    sd = float(np.std(values, ddof=1)) if number > 1 else math.nan
    paper = math.nan if reported is None else reported.mean
    paper_sd = math.nan if reported is None or reported.sd is None else reported.sd
    difference = mean - paper
    spread = math.hypot(sd, sd if math.isnan(paper_sd) else paper_sd)
    # Comparisons with NaN, where there is nothing to compare with, are false.
    marked = comparable and abs(difference) > spread + _ROUNDING
    return {
        "trials": number,
        "mean": mean,
        "sd": sd,
        "paper": paper,
        "paper_sd": paper_sd,
        "difference": difference,
        "spread": spread,
        "differs": (HIGHER if difference > 0 else LOWER) if marked else "",
    }


def _row_key(row: Row) -> tuple[str, str, str, int, int]:
    learned = row.experiment if isinstance(row.experiment, Imitation) else None
    demos, labelled = (learned.num_demos, learned.num_labelled) if learned else (0, 0)
    return row.domain, row.setting, row.algorithm, demos, labelled


def _key(row: Row, agent: str, metric: str) -> dict[str, Any]:
    return dict(zip(_ROW, (*_row_key(row), agent, metric), strict=True))


# ---------------------------------------------------------------------- sheets


class Cell(NamedTuple):
    """A cell as it is read.

    Attributes:
        ours: Our mean and spread, or nothing.
        paper: The paper's, or nothing.
        differs: "higher" or "lower" than the paper's by more than the spread, or nothing.
    """

    ours: str = ""
    paper: str = ""
    differs: str = ""

    @property
    def marked(self) -> str:
        """Our number with its mark."""
        return f"{self.ours} {MARKS[self.differs]}".strip()


class Sheet(NamedTuple):
    """A table as it is read.

    Attributes:
        title: What it is about; nothing if it is the only one.
        labels: Headings of the columns that name a row.
        columns: Headings of the columns of numbers.
        rows: Labels and cells of every row.
    """

    title: str
    labels: tuple[str, ...]
    columns: tuple[str, ...]
    rows: list[tuple[tuple[str, ...], list[Cell]]]


def sheets(table: pd.DataFrame, layout: Layout) -> list[Sheet]:
    """A table of all numbers, laid out for reading.

    Args:
        table: From `summarise`.
        layout: What a table, a row and a column is.
    """
    if layout.agents is not None:
        table = table[table["agent"].isin(layout.agents)]
    if layout.tables is None:
        return [_sheet("", table, layout)]
    parts = table.groupby(layout.tables, sort=False)
    return [_sheet(written(str(name)), part, layout) for name, part in parts]


def _sheet(title: str, table: pd.DataFrame, layout: Layout) -> Sheet:
    cells: dict[tuple[str, ...], dict[str, Cell]] = {}
    seconds: dict[tuple[str, ...], list[float]] = {}
    columns: dict[str, None] = {}
    for line in table.to_dict("records"):
        row = tuple(written(str(line[name])) for name in layout.rows)
        column = " ".join(written(str(line[name])) for name in layout.columns)
        columns[column] = None
        cells.setdefault(row, {})[column] = _cell(line)
        seconds.setdefault(row, []).append(line["seconds"])
    timed = "seconds"
    rows = [
        (row, [*(found.get(c, Cell()) for c in columns), Cell(_seconds(seconds[row]))])
        for row, found in cells.items()
    ]
    return Sheet(title, layout.rows, (*columns, timed), rows)


def _cell(line: Mapping[Any, Any]) -> Cell:
    decimals = _DECIMALS.get(line["metric"], 3)
    return Cell(
        _number(line["mean"], line["sd"], decimals),
        _number(line["paper"], line["paper_sd"], 2),
        line["differs"],
    )


def _number(mean: float, sd: float, decimals: int) -> str:
    if math.isnan(mean):
        return ""
    return f"{mean:.{decimals}f}" + ("" if math.isnan(sd) else f" ± {sd:.{decimals}f}")


def _seconds(values: Sequence[float]) -> str:
    known = [value for value in values if not math.isnan(value)]
    return f"{sum(known) / len(known):.1f}" if known else ""


def written(name: str) -> str:
    """A domain, an agent or a metric as it is written for people."""
    return _NAMES.get(name) or _METRICS.get(name) or name


# ---------------------------------------------------------------------- renderings


def terminal_table(sheet: Sheet) -> "Table":
    """A sheet for the terminal: in parentheses the paper's number, differences in colour."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(sheet.title) if sheet.title else None, title_justify="left")
    for i, label in enumerate(sheet.labels):
        # The group may be broken into lines, the row's own name not.
        table.add_column(Text(label), no_wrap=i == len(sheet.labels) - 1, overflow="fold")
    for column in sheet.columns:
        table.add_column(Text(column), justify="right", overflow="fold")
    for labels, cells, new_group in _grouped(sheet):
        if new_group:
            table.add_section()
        texts = []
        for cell in cells:
            text = Text(cell.marked, style="bold yellow" if cell.differs else "")
            if cell.paper:
                text.append(f"\n({cell.paper})" if cell.ours else f"({cell.paper})", "dim")
            texts.append(text)
        table.add_row(*map(Text, labels), *texts)
    return table


def markdown_table(sheet: Sheet) -> str:
    """A sheet in Markdown: the paper's number in parentheses."""
    header = [*sheet.labels, *sheet.columns]
    lines = [f"### {sheet.title}", ""] if sheet.title else []
    lines += [
        "| " + " | ".join(_markdown(text) for text in header) + " |",
        "|" + "---|" * len(sheet.labels) + "---:|" * len(sheet.columns),
    ]
    for labels, cells in sheet.rows:
        texts = []
        for cell in cells:
            paper = f"({cell.paper})" if cell.paper else ""
            texts.append(" ".join(filter(None, (cell.ours, paper, MARKS[cell.differs]))))
        lines.append("| " + " | ".join(_markdown(text) for text in (*labels, *texts)) + " |")
    return "\n".join(lines) + "\n"


def html_sheet(sheet: Sheet) -> Markup:
    """A sheet in HTML: below our number the paper's, differences emphasised."""
    head = [*map(HtmlCell, sheet.labels), *(HtmlCell(column, "number") for column in sheet.columns)]
    rows = [
        [
            *(HtmlCell(label, labels=True) for label in labels),
            *(
                HtmlCell(
                    cell.marked,
                    "number warn" if cell.differs else "number",
                    below=f"paper {cell.paper}" if cell.paper else "",
                )
                for cell in cells
            ),
        ]
        for labels, cells, _ in _grouped(sheet)
    ]
    return html("sheet", sheet.title, html("table", head, rows, ""))


def _grouped(sheet: Sheet) -> Iterator[tuple[tuple[str, ...], list[Cell], bool]]:
    """Rows whose first label is told once per group, and whether a group begins with it."""
    before = None
    for labels, cells in sheet.rows:
        grouped = len(labels) > 1
        repeated = grouped and labels[0] == before
        shown = ("", *labels[1:]) if repeated else labels
        yield shown, cells, grouped and before is not None and not repeated
        before = labels[0]


def _markdown(text: str) -> str:
    for character in "\\|*<>`":
        text = text.replace(character, "\\" + character)
    return text
