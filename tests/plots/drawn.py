"""Posteriors made by hand, and what is in a drawn figure."""

import io
import math
from collections.abc import Iterable, Mapping
from typing import Any

import matplotlib.colors
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from btil import TeamPosterior
from btil.inference.result import FitResult
from btil.models.team import BoundModel

MOODS = ("wait $5", "help", "go/home")
ACTS = ("push", "pull")


def make(
    bound: BoundModel, rows: Mapping[str, Any], method: str = "mfvi", **result: Any
) -> TeamPosterior:
    return TeamPosterior(
        bound=bound,
        method=method,
        result=FitResult(rows=rows, converged=True, reason="made by hand", **result),
        seed=0,
        dtype=np.dtype(np.float64),
        wall_time=1.0,
    )


def concentrations(bound: BoundModel, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {site: rng.gamma(2.0, 4.0, table.shape) + 0.5 for site, table in bound.learned.items()}


def texts(figure: Figure) -> list[str]:
    """Every visible text, from a figure that has really been drawn."""
    figure.savefig(io.BytesIO(), format="png")
    found = [t.get_text() for t in figure.findobj(Text) if t.get_visible()]
    return [text for text in found if text]


def overlapping(labels: Iterable[Text], figure: Figure) -> list[tuple[str, str]]:
    """Pairs of tick labels that lie over each other."""
    figure.draw_without_rendering()
    boxes = [(t.get_text(), t.get_window_extent()) for t in labels if t.get_text()]
    return [(a, b) for k, (a, one) in enumerate(boxes) for b, two in boxes[:k] if one.overlaps(two)]


def panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def lane_steps(axes: Axes, color: Any) -> set[tuple[int, int]]:
    """(lane, step) pairs that the bars of one colour cover."""
    wanted = matplotlib.colors.to_rgba(color)
    return {
        (round(bar.get_y() + bar.get_height() / 2), step)
        for bar in axes.patches
        if isinstance(bar, Rectangle) and bar.get_facecolor() == wanted
        for step in range(math.ceil(bar.get_x()), math.floor(bar.get_x() + bar.get_width()) + 1)
    }
