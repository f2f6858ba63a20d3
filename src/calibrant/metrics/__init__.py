"""Calibration metrics: functions of ``(probs, labels)``, float64 numbers, and their streaming classes.

`METRICS` is the table of all numbers by short name. The streaming classes need torchmetrics and the tests resample: both are
loaded when first asked for. Everything at once, with intervals, is `calibrant.measure`.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from calibrant.metrics.adaptive import (
    adaptive_calibration_error,
    debiased_calibration_error,
    kolmogorov_smirnov_error,
    sweep_calibration_error,
)
from calibrant.metrics.binary import (
    binary_adaptive_calibration_error,
    binary_expected_calibration_error,
    binary_maximum_calibration_error,
)
from calibrant.metrics.binned import (
    average_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    reliability_bins,
)
from calibrant.metrics.classwise import (
    class_calibration_errors,
    classwise_calibration_error,
    nixon_adaptive_calibration_error,
    thresholded_adaptive_calibration_error,
)
from calibrant.metrics.conventions import CONVENTIONS
from calibrant.metrics.decomposition import BrierParts, brier_decomposition
from calibrant.metrics.explain import Explanation, explain
from calibrant.metrics.kde import kde_calibration_error
from calibrant.metrics.kernel import (
    maximum_mean_calibration_error,
    smooth_expected_calibration_error,
    squared_kernel_calibration_error,
)
from calibrant.metrics.ranking import area_under_risk_coverage, failure_detection_auroc
from calibrant.metrics.scores import brier_score, error_rate, negative_log_likelihood, signed_calibration_gap
from calibrant.metrics.smooth import smooth_calibration_error
from calibrant.metrics.sweep import bin_sweep

if TYPE_CHECKING:
    from calibrant.metrics.null import if_calibrated, null_distribution
    from calibrant.metrics.paired import paired_test
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

METRICS: dict[str, Callable[..., Tensor]] = {
    "error": error_rate,
    "nll": negative_log_likelihood,
    "brier": brier_score,
    "ece": expected_calibration_error,
    "mce": maximum_calibration_error,
    "average_ce": average_calibration_error,
    "ace": adaptive_calibration_error,
    "ece_debiased": debiased_calibration_error,
    "ece_sweep": sweep_calibration_error,
    "ks": kolmogorov_smirnov_error,
    "classwise_ece": classwise_calibration_error,
    "ace_nixon": nixon_adaptive_calibration_error,
    "tace": thresholded_adaptive_calibration_error,
    "sece": smooth_expected_calibration_error,
    "smece": smooth_calibration_error,
    "kde_ece": kde_calibration_error,
    "mmce": maximum_mean_calibration_error,
    "skce": squared_kernel_calibration_error,
    "signed_gap": signed_calibration_gap,
    "aurc": area_under_risk_coverage,
    "auroc": failure_detection_auroc,
}

_LAZY = {
    "calibrant.metrics.null": ("if_calibrated", "null_distribution"),
    "calibrant.metrics.paired": ("paired_test",),
    "calibrant.metrics.streaming": (
        "AdaptiveCalibrationError",
        "AreaUnderRiskCoverage",
        "BrierScore",
        "CalibrationSuite",
        "ClasswiseCalibrationError",
        "DebiasedCalibrationError",
        "ErrorRate",
        "ExpectedCalibrationError",
        "MaximumCalibrationError",
        "MaximumMeanCalibrationError",
        "NegativeLogLikelihood",
        "SignedCalibrationGap",
        "SmoothCalibrationError",
        "SmoothExpectedCalibrationError",
    ),
}
_HOME = {name: module for module, names in _LAZY.items() for name in names}

__all__ = [
    "CONVENTIONS",
    "METRICS",
    "AdaptiveCalibrationError",
    "AreaUnderRiskCoverage",
    "BrierParts",
    "BrierScore",
    "CalibrationSuite",
    "ClasswiseCalibrationError",
    "DebiasedCalibrationError",
    "ErrorRate",
    "ExpectedCalibrationError",
    "Explanation",
    "MaximumCalibrationError",
    "MaximumMeanCalibrationError",
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
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'calibrant.metrics' has no attribute {name!r}")
