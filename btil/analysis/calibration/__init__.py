"""Is the posterior right? Simulation-based calibration, and Geweke's test of a sampler."""

from btil.analysis.calibration.run import Calibration, calibrate

__all__ = ["Calibration", "calibrate"]
