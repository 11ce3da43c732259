"""Is the posterior right? Simulation-based calibration of a method."""

from btil.analysis.calibration.calibrating import Calibration, calibrate
from btil.analysis.calibration.figures import plot_ecdf_pit, plot_error_ratios, plot_latents

__all__ = ["Calibration", "calibrate", "plot_ecdf_pit", "plot_error_ratios", "plot_latents"]
