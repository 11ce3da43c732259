"""What we make of it: metrics, comparison, plots, reports."""

import importlib.util
from typing import TYPE_CHECKING, Any

from btil.loading import load

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
    from btil.analysis.by_parts import FileScores, decode_file, score_file
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
    from btil.analysis.modes import WeighedMode, weigh_modes
    from btil.analysis.motion import Goal, goals
    from btil.analysis.performance import Estimated, TeamPerformance, team_performance
    from btil.analysis.plots import (
        RowChoice,
        animate_motion,
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
        plot_motion_strip,
        plot_paths,
        plot_policy_rows,
        plot_predictive_check,
        plot_prior_posterior,
        plot_prior_predictive,
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
    from btil.analysis.reproduction.reproducing import Reproduction, reproduce
    from btil.analysis.selection import ModelComparison, rank_models
    from btil.analysis.teamwork import misaligned_stretches, misalignment_probability

# Loaded on first use: plots and tables need libraries that take seconds to import.
_MODULES = {
    "analysis.alignment": (
        "align interchangeable_latents latents_pinned match_latents posterior_means "
        "relabel_rows shared_contexts"
    ),
    "analysis.by_parts": "FileScores decode_file score_file",
    "analysis.calibration": "Calibration calibrate plot_ecdf_pit plot_error_ratios plot_latents",
    "analysis.compare": "Comparison compare_posteriors",
    "analysis.debriefing": "Debrief debrief",
    "analysis.evidence": "Evidence log_evidence",
    "analysis.known_truth": "KnownTruth read_truth simulate_truth",
    "analysis.loaded_comparison": "load_comparison",
    "analysis.metrics": (
        "StepShare confusion_matrix decoding_error hamming_distance majority_class_error "
        "most_probable policy_divergence policy_weights suboptimal_share team_alignment "
        "weighted_js_divergence"
    ),
    "analysis.modes": "WeighedMode weigh_modes",
    "analysis.motion": "Goal goals",
    "analysis.performance": "Estimated TeamPerformance team_performance",
    "analysis.plots": (
        "RowChoice animate_motion choose_rows expected_visits plot_alignment plot_confusion "
        "plot_courses plot_elbo_traces plot_ess plot_forest plot_method_against_method "
        "plot_motion plot_motion_strip plot_paths plot_policy_rows plot_predictive_check "
        "plot_prior_posterior plot_prior_predictive plot_rank plot_reliability plot_restarts "
        "plot_row_diagnostics plot_sd_ratios plot_timeline plot_trace plot_transition_graph "
        "row_diagnostics"
    ),
    "analysis.predictive": "PredictiveCheck posterior_predictive_check",
    "analysis.reproduction.reproducing": "Reproduction reproduce",
    "analysis.selection": "ModelComparison rank_models",
    "analysis.teamwork": "misaligned_stretches misalignment_probability",
    "models.team": "context_visits",
}
_LAZY = {name: f"btil.{module}" for module, names in _MODULES.items() for name in names.split()}

__all__ = [
    "Calibration",
    "Comparison",
    "Debrief",
    "Estimated",
    "Evidence",
    "FileScores",
    "Goal",
    "KnownTruth",
    "ModelComparison",
    "PredictiveCheck",
    "Reproduction",
    "RowChoice",
    "StepShare",
    "TeamPerformance",
    "WeighedMode",
    "align",
    "animate_motion",
    "calibrate",
    "choose_rows",
    "compare_posteriors",
    "confusion_matrix",
    "context_visits",
    "debrief",
    "decode_file",
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
    "policy_divergence",
    "policy_weights",
    "posterior_means",
    "posterior_predictive_check",
    "rank_models",
    "read_truth",
    "relabel_rows",
    "reproduce",
    "row_diagnostics",
    "score_file",
    "shared_contexts",
    "simulate_truth",
    "suboptimal_share",
    "team_alignment",
    "team_performance",
    "weigh_modes",
    "weighted_js_divergence",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        value = getattr(load(_LAZY[name]), name)
        globals()[name] = value
        return value
    if importlib.util.find_spec(f"{__name__}.{name}"):  # a module of this folder
        return load(f"{__name__}.{name}")
    raise AttributeError(f"module 'btil.analysis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
