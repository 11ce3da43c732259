"""Posteriors made by hand, and what is in a drawn figure."""

import io
import math

import matplotlib
import numpy as np

from btil import TeamPosterior
from btil.inference.result import FitResult

MOODS = ("wait $5", "help", "go/home")
ACTS = ("push", "pull")


def make(bound, rows, method="mfvi", **result):
    return TeamPosterior(
        bound=bound,
        method=method,
        result=FitResult(rows=rows, converged=True, reason="made by hand", **result),
        seed=0,
        dtype=np.dtype(np.float64),
        wall_time=1.0,
    )


def concentrations(bound, seed=0):
    rng = np.random.default_rng(seed)
    return {site: rng.gamma(2.0, 4.0, table.shape) + 0.5 for site, table in bound.learned.items()}


def texts(figure):
    """Every visible text, from a figure that has really been drawn."""
    figure.savefig(io.BytesIO(), format="png")
    found = [t.get_text() for t in figure.findobj(matplotlib.text.Text) if t.get_visible()]
    return [text for text in found if text]


def overlapping(labels, figure):
    """Pairs of tick labels that lie over each other."""
    figure.draw_without_rendering()
    boxes = [(t.get_text(), t.get_window_extent()) for t in labels if t.get_text()]
    return [(a, b) for k, (a, one) in enumerate(boxes) for b, two in boxes[:k] if one.overlaps(two)]


def panels(figure):
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def lane_steps(axes, color):
    """(lane, step) pairs that the bars of one colour cover."""
    wanted = matplotlib.colors.to_rgba(color)
    return {
        (round(bar.get_y() + bar.get_height() / 2), step)
        for bar in axes.patches
        if bar.get_facecolor() == wanted
        for step in range(math.ceil(bar.get_x()), math.floor(bar.get_x() + bar.get_width()) + 1)
    }
