"""Calibration metrics: functions of ``(probs, labels)``, float64 numbers, and their streaming classes.

`METRICS` is the table of all numbers by short name. The streaming classes need torchmetrics and are loaded when first
asked for. Everything at once, with intervals, is `calibrant.measure`.
"""

import importlib
from typing import TYPE_CHECKING

from calibrant.metrics import binned, conventions, kernel, levels, measure, paired, scores, table
from calibrant.metrics.binned import *
from calibrant.metrics.conventions import *
from calibrant.metrics.kernel import *
from calibrant.metrics.levels import *
from calibrant.metrics.measure import *
from calibrant.metrics.paired import *
from calibrant.metrics.scores import *
from calibrant.metrics.table import *

if TYPE_CHECKING:
    from calibrant.metrics.streaming import *

# Loaded when first asked for, since their base is torchmetrics.
_STREAMING = [
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
]
__all__ = [
    *binned.__all__,
    *conventions.__all__,
    *kernel.__all__,
    *levels.__all__,
    *measure.__all__,
    *paired.__all__,
    *scores.__all__,
    *table.__all__,
    *_STREAMING,
]


def __getattr__(name: str) -> object:
    if name in _STREAMING:
        return getattr(importlib.import_module("calibrant.metrics.streaming"), name)
    raise AttributeError(f"module 'calibrant.metrics' has no attribute {name!r}")
