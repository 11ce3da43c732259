"""Pictures: what a team had in mind, what was learned of it, and how sure that is.

Every function returns a `matplotlib.figure.Figure` that no global registry knows of: nothing has
to be closed, and `figure.savefig(path)` writes it. Colours are those of Okabe and Ito for
categories and cividis for probabilities, which people with colour-blindness tell apart.
`docs/reference/gallery.md` shows them all.
"""

from btil.analysis.plots.bounds import plot_elbo_traces, plot_restarts
from btil.analysis.plots.chains import (
    plot_ess,
    plot_forest,
    plot_prior_posterior,
    plot_rank,
    plot_trace,
)
from btil.analysis.plots.checks import plot_predictive_check
from btil.analysis.plots.confusion import plot_confusion
from btil.analysis.plots.courses import plot_courses
from btil.analysis.plots.decoded import plot_reliability
from btil.analysis.plots.diagnostics import plot_row_diagnostics, row_diagnostics
from btil.analysis.plots.films import animate_motion, plot_motion_strip
from btil.analysis.plots.learned_tables import plot_policy_rows, plot_transition_graph
from btil.analysis.plots.methods import plot_method_against_method, plot_sd_ratios
from btil.analysis.plots.paths import plot_motion, plot_paths
from btil.analysis.plots.prior import plot_prior_predictive
from btil.analysis.plots.rows import RowChoice, choose_rows, expected_visits
from btil.analysis.plots.timeline import plot_alignment, plot_timeline

__all__ = [
    "RowChoice",
    "animate_motion",
    "choose_rows",
    "expected_visits",
    "plot_alignment",
    "plot_confusion",
    "plot_courses",
    "plot_elbo_traces",
    "plot_ess",
    "plot_forest",
    "plot_method_against_method",
    "plot_motion",
    "plot_motion_strip",
    "plot_paths",
    "plot_policy_rows",
    "plot_predictive_check",
    "plot_prior_posterior",
    "plot_prior_predictive",
    "plot_rank",
    "plot_reliability",
    "plot_restarts",
    "plot_row_diagnostics",
    "plot_sd_ratios",
    "plot_timeline",
    "plot_trace",
    "plot_transition_graph",
    "row_diagnostics",
]
