"""What we make of it: metrics, comparison, plots, reports."""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from btil.analysis.alignment import (
        align,
        interchangeable_latents,
        latents_pinned,
        match_latents,
        posterior_means,
        relabel_rows,
        shared_contexts,
    )
    from btil.analysis.calibration import (
        Calibration,
        calibrate,
        plot_ecdf_pit,
        plot_error_ratios,
        plot_latents,
    )
    from btil.analysis.compare import Comparison, compare_posteriors
    from btil.analysis.debriefing import Debrief, debrief
    from btil.analysis.evidence import Evidence, log_evidence
    from btil.analysis.known_truth import KnownTruth, read_truth, simulate_truth
    from btil.analysis.loaded_comparison import load_comparison
    from btil.analysis.metrics import (
        StepShare,
        confusion_matrix,
        decoding_error,
        hamming_distance,
        majority_class_error,
        most_probable,
        policy_divergence,
        policy_weights,
        suboptimal_share,
        team_alignment,
        weighted_js_divergence,
    )
    from btil.analysis.motion import Goal, goals
    from btil.analysis.performance import Estimated, TeamPerformance, team_performance
    from btil.analysis.plots import (
        RowChoice,
        choose_rows,
        expected_visits,
        plot_alignment,
        plot_confusion,
        plot_courses,
        plot_elbo_traces,
        plot_ess,
        plot_forest,
        plot_method_against_method,
        plot_motion,
        plot_paths,
        plot_policy_rows,
        plot_predictive_check,
        plot_prior_posterior,
        plot_rank,
        plot_reliability,
        plot_restarts,
        plot_row_diagnostics,
        plot_sd_ratios,
        plot_timeline,
        plot_trace,
        plot_transition_graph,
        row_diagnostics,
    )
    from btil.analysis.predictive import PredictiveCheck, posterior_predictive_check
    from btil.analysis.reproduction.run import Reproduction, reproduce
    from btil.analysis.selection import ModelComparison, compare_models
    from btil.analysis.teamwork import misaligned_stretches, misalignment_probability

# Loaded on first use: plots and tables need libraries that take seconds to import.
_LAZY = {
    "Calibration": "btil.analysis.calibration",
    "Comparison": "btil.analysis.compare",
    "Debrief": "btil.analysis.debriefing",
    "Estimated": "btil.analysis.performance",
    "Evidence": "btil.analysis.evidence",
    "Goal": "btil.analysis.motion",
    "KnownTruth": "btil.analysis.known_truth",
    "ModelComparison": "btil.analysis.selection",
    "PredictiveCheck": "btil.analysis.predictive",
    "Reproduction": "btil.analysis.reproduction.run",
    "RowChoice": "btil.analysis.plots",
    "StepShare": "btil.analysis.metrics",
    "TeamPerformance": "btil.analysis.performance",
    "align": "btil.analysis.alignment",
    "calibrate": "btil.analysis.calibration",
    "choose_rows": "btil.analysis.plots",
    "compare_models": "btil.analysis.selection",
    "compare_posteriors": "btil.analysis.compare",
    "confusion_matrix": "btil.analysis.metrics",
    "context_visits": "btil.models.team",
    "debrief": "btil.analysis.debriefing",
    "decoding_error": "btil.analysis.metrics",
    "expected_visits": "btil.analysis.plots",
    "goals": "btil.analysis.motion",
    "hamming_distance": "btil.analysis.metrics",
    "interchangeable_latents": "btil.analysis.alignment",
    "latents_pinned": "btil.analysis.alignment",
    "load_comparison": "btil.analysis.loaded_comparison",
    "log_evidence": "btil.analysis.evidence",
    "majority_class_error": "btil.analysis.metrics",
    "match_latents": "btil.analysis.alignment",
    "misaligned_stretches": "btil.analysis.teamwork",
    "misalignment_probability": "btil.analysis.teamwork",
    "most_probable": "btil.analysis.metrics",
    "plot_alignment": "btil.analysis.plots",
    "plot_confusion": "btil.analysis.plots",
    "plot_courses": "btil.analysis.plots",
    "plot_ecdf_pit": "btil.analysis.calibration",
    "plot_elbo_traces": "btil.analysis.plots",
    "plot_error_ratios": "btil.analysis.calibration",
    "plot_ess": "btil.analysis.plots",
    "plot_forest": "btil.analysis.plots",
    "plot_latents": "btil.analysis.calibration",
    "plot_method_against_method": "btil.analysis.plots",
    "plot_motion": "btil.analysis.plots",
    "plot_paths": "btil.analysis.plots",
    "plot_policy_rows": "btil.analysis.plots",
    "plot_predictive_check": "btil.analysis.plots",
    "plot_prior_posterior": "btil.analysis.plots",
    "plot_rank": "btil.analysis.plots",
    "plot_reliability": "btil.analysis.plots",
    "plot_restarts": "btil.analysis.plots",
    "plot_row_diagnostics": "btil.analysis.plots",
    "plot_sd_ratios": "btil.analysis.plots",
    "plot_timeline": "btil.analysis.plots",
    "plot_trace": "btil.analysis.plots",
    "plot_transition_graph": "btil.analysis.plots",
    "policy_divergence": "btil.analysis.metrics",
    "policy_weights": "btil.analysis.metrics",
    "posterior_means": "btil.analysis.alignment",
    "posterior_predictive_check": "btil.analysis.predictive",
    "read_truth": "btil.analysis.known_truth",
    "relabel_rows": "btil.analysis.alignment",
    "reproduce": "btil.analysis.reproduction.run",
    "row_diagnostics": "btil.analysis.plots",
    "shared_contexts": "btil.analysis.alignment",
    "simulate_truth": "btil.analysis.known_truth",
    "suboptimal_share": "btil.analysis.metrics",
    "team_alignment": "btil.analysis.metrics",
    "team_performance": "btil.analysis.performance",
    "weighted_js_divergence": "btil.analysis.metrics",
}

__all__ = [
    "Calibration",
    "Comparison",
    "Debrief",
    "Estimated",
    "Evidence",
    "Goal",
    "KnownTruth",
    "ModelComparison",
    "PredictiveCheck",
    "Reproduction",
    "RowChoice",
    "StepShare",
    "TeamPerformance",
    "align",
    "calibrate",
    "choose_rows",
    "compare_models",
    "compare_posteriors",
    "confusion_matrix",
    "context_visits",
    "debrief",
    "decoding_error",
    "expected_visits",
    "goals",
    "hamming_distance",
    "interchangeable_latents",
    "latents_pinned",
    "load_comparison",
    "log_evidence",
    "majority_class_error",
    "match_latents",
    "misaligned_stretches",
    "misalignment_probability",
    "most_probable",
    "plot_alignment",
    "plot_confusion",
    "plot_courses",
    "plot_ecdf_pit",
    "plot_elbo_traces",
    "plot_error_ratios",
    "plot_ess",
    "plot_forest",
    "plot_latents",
    "plot_method_against_method",
    "plot_motion",
    "plot_paths",
    "plot_policy_rows",
    "plot_predictive_check",
    "plot_prior_posterior",
    "plot_rank",
    "plot_reliability",
    "plot_restarts",
    "plot_row_diagnostics",
    "plot_sd_ratios",
    "plot_timeline",
    "plot_trace",
    "plot_transition_graph",
    "policy_divergence",
    "policy_weights",
    "posterior_means",
    "posterior_predictive_check",
    "read_truth",
    "relabel_rows",
    "reproduce",
    "row_diagnostics",
    "shared_contexts",
    "simulate_truth",
    "suboptimal_share",
    "team_alignment",
    "team_performance",
    "weighted_js_divergence",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(importlib.import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    if importlib.util.find_spec(f"{__name__}.{name}"):  # a module of this folder
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module 'btil.analysis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
