"""One call from a target's name to its finished table and figure."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from btil.analysis.output import html_list, html_page, output_console, written_figure
from btil.analysis.report import prepare_directory
from btil.analysis.reproduction.figures import plot_numbers, plot_supervision
from btil.analysis.reproduction.paper_tables import (
    Sheet,
    html_sheet,
    markdown_table,
    sheets,
    summarise,
    terminal_table,
    trials_table,
)
from btil.analysis.reproduction.targets import (
    PAPER,
    QUICK,
    Target,
    target_named,
    target_rows,
)
from btil.analysis.reproduction.trials import Trial, run_trials
from btil.analysis.reproduction.workspace import Protocol, Workspace
from btil.arguments import check_values
from btil.demonstrations.coding import DataWarning
from btil.files import check_writable, replacing

if TYPE_CHECKING:
    import pandas as pd

_TRIALS, _QUICK_TRIALS = 5, 1
_ENDINGS = (".csv", "-trials.csv", ".md", ".html", ".svg", ".png")
# Of the others "converged" says nothing: they run for as long as they are told.
_INFERRING = ("btil", "mfvi")


@dataclass(frozen=True, eq=False)
class Reproduction:
    """A table or figure of the paper, made again.

    Attributes:
        target: Its name.
        trials: Every number of every trial, a line each.
        table: Mean and spread of every number, the paper's beside it.
        sheets: The table, laid out for reading.
        notes: What a reader should know.
        files: What was written: the table as CSV, Markdown and HTML, all trials as CSV, the figure
            as SVG and PNG.
    """

    target: str
    trials: "pd.DataFrame"
    table: "pd.DataFrame"
    sheets: list[Sheet]
    notes: list[str]
    files: tuple[Path, ...]

    def print(self) -> None:
        """Print the table and the notes on standard output."""
        from rich.text import Text

        console = output_console()
        console.print(Text(target_named(self.target).title, style="bold"))
        for sheet in self.sheets:
            console.print(terminal_table(sheet))
        for note in self.notes:
            console.print(Text(f"- {note}"))


def reproduce(
    target: str,
    out: str | PathLike[str],
    trials: int | None = None,
    domains: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    quick: bool = False,
    seed: int = 0,
    progress: bool = True,
    command: str | None = None,
) -> Reproduction:
    """Make a table or figure of the paper again, on data simulated (or recorded) here.

    Per grid world 300 episodes of the true team are simulated once, 200 to learn from and 100 to
    decode. A trial shuffles the 200; the first 20 keep their labels. Decoding is scored by the
    Hamming distance on the 100, policies by the Jensen-Shannon divergence from the true ones,
    weighted by the visits of all 200 episodes.

    Every trial is saved as it ends. A second run in the same folder, of this or another target,
    takes from there what has the same settings.

    Args:
        target: A key of `TARGETS`: "table1", "tableA1", "figure-supervision", "parents",
            "performance", "suboptimality" or "table2-overcooked".
        out: Folder of the results; made if it is not there. It gets `<target>.csv`, `.md`,
            `.html`, `.svg`, `.png` and `<target>-trials.csv`, and the folders `data` and `trials`.
        trials: Trials per row; None: 5, or 1 of the quick form.
        domains: Some of the target's grid worlds or kitchens; None: all, or one of the quick form.
        methods: Some of its learners; None: all.
        quick: A glance: tiny maps, few episodes and iterations. The numbers mean nothing.
        seed: Of the simulated data, the shuffles and the learners.
        progress: Whether to show progress lines on standard error.
        command: The shell command, to be told in the outputs.

    Returns:
        The trials and the table, as pandas tables and as they are read, and the files written.

    Raises:
        ValueError: If an argument is unknown or out of range; or if a trial or data in the folder
            are damaged, not ours, or were made with other settings. Before anything is run.
        OSError: If the folder cannot be written to.

    Example:
        >>> made = btil.analysis.reproduce("table1", "results", quick=True)  # doctest: +SKIP
        >>> made.table.query("differs != ''")  # doctest: +SKIP

    Source: the paper, "Experiments", Tables 1, 2 and A-1, Figure A-1.
    """
    protocol = QUICK if quick else PAPER
    rows = target_rows(target, protocol, domains, methods)
    if trials is None:
        trials = _QUICK_TRIALS if quick else _TRIALS
    check_values({"trials": trials, "seed": seed, "progress": progress})
    workspace = Workspace(prepare_directory(out), protocol, seed)
    for ending in _ENDINGS:
        file = workspace.folder / f"{target}{ending}"
        check_writable(file, (file.suffix,))
    experiments = [row.experiment for row in rows if row.experiment is not None]
    with warnings.catch_warnings():
        # Tables over the whole state are the paper's choice, and what is measured here.
        warnings.simplefilter("ignore", DataWarning)
        done = run_trials(experiments, trials, workspace, progress)
    described = target_named(target)
    numbers = trials_table(rows, done)
    table = summarise(rows, numbers, described.comparable and not quick)
    notes = _notes(described, protocol, done, trials, seed, quick, command)
    laid_out = sheets(table, described.layout)
    files = _write(target, described, workspace.folder, numbers, table, laid_out, notes)
    return Reproduction(target, numbers, table, laid_out, notes, files)


def _notes(
    target: Target,
    protocol: Protocol,
    done: Sequence[Trial],
    trials: int,
    seed: int,
    quick: bool,
    command: str | None,
) -> list[str]:
    from btil import __version__

    notes = []
    if quick:
        notes.append(
            "The quick form: tiny data and few iterations, to see that everything runs. Its "
            "numbers mean nothing, and none is compared with the paper's."
        )
    ours = f"mean ± standard deviation of {trials} trials" if trials > 1 else "a single trial"
    theirs = f" In parentheses the paper's: {target.source}." if target.source else ""
    notes.append(f"Ours: {ours}.{theirs}")
    notes.append(target.about.format(**protocol._asdict()))
    if target.comparable and not quick and trials > 1:
        notes.append(
            "↑ and ↓: higher or lower than the paper's by more than both standard deviations "
            "together (root of the sum of squares) and its rounding. Where the paper tells no "
            "spread, ours is taken for it."
        )
    if not quick:  # which stops early by design
        notes += _not_converged(done)
    total = sum(trial.seconds for trial in done)
    made_by = "" if command is None else f": {command}"
    notes.append(
        f"Made by btil {__version__}, seed {seed}{made_by}; {total:,.0f} s of trials in all."
    )
    return notes


def _not_converged(done: Sequence[Trial]) -> list[str]:
    by_name: dict[str, list[Trial]] = {}
    for trial in done:
        if trial.experiment.method in _INFERRING and not trial.outcome.converged:
            by_name.setdefault(trial.experiment.name, []).append(trial)
    return [
        f"Not converged: {name}, trial {', '.join(str(trial.number) for trial in trials)} "
        f"({trials[0].outcome.reason})."
        for name, trials in by_name.items()
    ]


def _write(
    name: str,
    target: Target,
    folder: Path,
    numbers: "pd.DataFrame",
    table: "pd.DataFrame",
    laid_out: Sequence[Sheet],
    notes: Sequence[str],
) -> tuple[Path, ...]:
    if name == "figure-supervision":
        figure: Any = plot_supervision(numbers, table)
        caption = (
            "Errors by the number of labelled demonstrations, a line per number of demonstrations "
            "d; mean of both agents, bars are standard deviations over trials. Points above one "
            "another have the same labels and more or fewer unlabelled demonstrations."
        )
    else:
        figure = plot_numbers(table, target.layout)
        caption = (
            "Every number of the table: points with bars are ours (mean and standard deviation "
            "over trials), hollow diamonds the paper's."
        )
    drawn = written_figure(figure, folder / name, caption)
    written = {
        f"{name}.csv": table.to_csv(index=False, lineterminator="\n"),
        f"{name}-trials.csv": numbers.to_csv(index=False, lineterminator="\n"),
        f"{name}.md": _markdown(target.title, laid_out, notes),
        f"{name}.html": html_page(
            target.title,
            "Made again by btil reproduce; below each number the paper's.",
            Markup().join(map(html_sheet, laid_out)) + html_list(notes, "notes") + drawn,
        ),
    }
    for file, text in written.items():
        with replacing(folder / file) as temporary:
            temporary.write_text(text, encoding="utf-8", newline="\n")
    return tuple(folder / f"{name}{ending}" for ending in _ENDINGS)


def _markdown(title: str, laid_out: Sequence[Sheet], notes: Sequence[str]) -> str:
    tables = "\n".join(map(markdown_table, laid_out))
    listed = "\n".join(f"- {note}" for note in notes)
    return f"## {title}\n\nOurs (the paper's).\n\n{tables}\n{listed}\n"
