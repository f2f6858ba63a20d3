"""Calibration metrics: functions of ``(probs, labels)``, float64 numbers, and their streaming classes.

`METRICS` is the table of all numbers by short name. The streaming classes need torchmetrics and are loaded when first
asked for. Everything at once, with intervals, is `calibrant.measure`.
"""

import importlib
from typing import TYPE_CHECKING

from calibrant.metrics.binned import (
    adaptive_calibration_error,
    average_calibration_error,
    binary_adaptive_calibration_error,
    binary_expected_calibration_error,
    binary_maximum_calibration_error,
    binary_signed_calibration_gap,
    class_calibration_errors,
    classwise_calibration_error,
    debiased_calibration_error,
    expected_calibration_error,
    kolmogorov_smirnov_error,
    maximum_calibration_error,
    nixon_adaptive_calibration_error,
    reliability_bins,
    sweep_calibration_error,
    thresholded_adaptive_calibration_error,
)
from calibrant.metrics.conventions import CONVENTIONS, Explanation, explain
from calibrant.metrics.kernel import (
    kde_calibration_error,
    maximum_mean_calibration_error,
    smooth_calibration_error,
    smooth_expected_calibration_error,
    squared_kernel_calibration_error,
)
from calibrant.metrics.levels import bin_sweep, if_calibrated, null_distribution
from calibrant.metrics.measure import CalibrationMonitor
from calibrant.metrics.paired import paired_test
from calibrant.metrics.scores import (
    BrierParts,
    area_under_risk_coverage,
    brier_decomposition,
    brier_score,
    error_rate,
    failure_detection_auroc,
    negative_log_likelihood,
    signed_calibration_gap,
)
from calibrant.metrics.table import METRICS, Metric

if TYPE_CHECKING:
    from calibrant.metrics.streaming import (
        AdaptiveCalibrationError,
        AreaUnderRiskCoverage,
        BrierScore,
        CalibrationSuite,
        ClasswiseCalibrationError,
        DebiasedCalibrationError,
        ErrorRate,
        ExpectedCalibrationError,
        MaximumCalibrationError,
        MaximumMeanCalibrationError,
        NegativeLogLikelihood,
        SignedCalibrationGap,
        SmoothCalibrationError,
        SmoothExpectedCalibrationError,
    )

__all__ = [
    "CONVENTIONS",
    "METRICS",
    "AdaptiveCalibrationError",
    "AreaUnderRiskCoverage",
    "BrierParts",
    "BrierScore",
    "CalibrationMonitor",
    "CalibrationSuite",
    "ClasswiseCalibrationError",
    "DebiasedCalibrationError",
    "ErrorRate",
    "ExpectedCalibrationError",
    "Explanation",
    "MaximumCalibrationError",
    "MaximumMeanCalibrationError",
    "Metric",
    "NegativeLogLikelihood",
    "SignedCalibrationGap",
    "SmoothCalibrationError",
    "SmoothExpectedCalibrationError",
    "adaptive_calibration_error",
    "area_under_risk_coverage",
    "average_calibration_error",
    "bin_sweep",
    "binary_adaptive_calibration_error",
    "binary_expected_calibration_error",
    "binary_maximum_calibration_error",
    "binary_signed_calibration_gap",
    "brier_decomposition",
    "brier_score",
    "class_calibration_errors",
    "classwise_calibration_error",
    "debiased_calibration_error",
    "error_rate",
    "expected_calibration_error",
    "explain",
    "failure_detection_auroc",
    "if_calibrated",
    "kde_calibration_error",
    "kolmogorov_smirnov_error",
    "maximum_calibration_error",
    "maximum_mean_calibration_error",
    "negative_log_likelihood",
    "nixon_adaptive_calibration_error",
    "null_distribution",
    "paired_test",
    "reliability_bins",
    "signed_calibration_gap",
    "smooth_calibration_error",
    "smooth_expected_calibration_error",
    "squared_kernel_calibration_error",
    "sweep_calibration_error",
    "thresholded_adaptive_calibration_error",
]


def __getattr__(name: str) -> object:
    # The streaming classes, whose base is torchmetrics.
    if name in __all__:
        return getattr(importlib.import_module("calibrant.metrics.streaming"), name)
    raise AttributeError(f"module 'calibrant.metrics' has no attribute {name!r}")
