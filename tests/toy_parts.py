"""One toy of everything that btil has a door for, as another package would write it."""

from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np

import btil
from btil.analysis.report import Picture
from btil.demonstrations.data import Columns
from btil.demonstrations.formats import csv
from btil.figures import new_figure
from btil.inference.result import DirichletRows, FitResult
from btil.inference.starting import labelled_counts

# ---------------------------------------------------------------------- a method


def fit(
    bound: Any, *, seed: int, progress: bool, dtype: Any, checkpoint: Any, tolerance: float = 0.5
) -> FitResult:
    """Labels alone: exact where every step has one."""
    counts = labelled_counts(
        bound, {name: len(t.contexts.rows) for name, t in bound.tables.items()}
    )
    rows = {
        name: DirichletRows(table.cpt.concentration(table.contexts) + counts[name])
        for name, table in bound.learned.items()
    }
    return FitResult(rows=rows, converged=True, reason=f"counted (tolerance {tolerance})")


# ---------------------------------------------------------------------- a family


class TriangularCPT(btil.DirichletCPT):
    """Dirichlet rows whose concentration grows from cell to cell."""

    def concentration(self, contexts: Any) -> np.ndarray:
        rows = super().concentration(contexts)
        return rows * np.arange(1, rows.shape[-1] + 1)


# ---------------------------------------------------------------------- a metric, and a figure


def coin(test: btil.Demonstrations, posterior: btil.TeamPosterior) -> np.ndarray:
    """The error of who tosses coins."""
    return 1 - 1 / np.array(test.num_latents)


def pictures(comparison: Any) -> Iterator[Picture]:
    """A picture of nothing."""
    yield Picture("nothing", "A section of its own", new_figure(2.0, 1.0), "Nothing is to be seen.")


# ---------------------------------------------------------------------- a domain


def toy_task(map: str) -> Any:
    """Movers on the smallest map, whatever map is asked for."""
    return btil.domains.movers("tiny")


# ---------------------------------------------------------------------- a file format


def write(demos: Any, handle: BinaryIO) -> None:
    """A table as text, after a line that says whose it is."""
    handle.write(b"toy\n")
    csv.write(demos, handle)


def read(handle: BinaryIO) -> tuple[Columns, dict[str, Any] | None]:
    """The columns of a table after its first line."""
    assert handle.readline() == b"toy\n"
    return csv.read(handle)
