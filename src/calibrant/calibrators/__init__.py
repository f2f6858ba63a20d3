"""Post-hoc calibrators: repair the probabilities of a trained classifier from held-out logits and labels.

Train-time objectives are in `calibrant.losses`.
"""

from calibrant.calibrators.auto import AutoCalibrator, CalibratedModel, Ranked, Repaired
from calibrant.calibrators.base import BoundWarning, CalibrationWarning, Calibrator, FitData, Identity
from calibrant.calibrators.scaling import (
    AttendedTemperatureScaling,
    BetaCalibration,
    DirichletCalibration,
    EnsembleTemperatureScaling,
    MatrixScaling,
    MonteCarloTemperatureScaling,
    PlattScaling,
    TemperatureScaling,
    VectorScaling,
)
from calibrant.calibrators.tables import (
    BayesianBinning,
    HistogramBinning,
    IsotonicCalibration,
    JointIsotonicCalibration,
    SplineCalibration,
    TopLabelBinning,
)
from calibrant.core.checks import Registry

# From few parameters to many: of equally good ones, the first is to be preferred. Everything else about a calibrator is in
# its class.
CALIBRATORS: Registry[type[Calibrator]] = Registry(
    "calibrator",
    "calibrant.calibrators",
    {
        "temperature": TemperatureScaling,
        "attended_temperature": AttendedTemperatureScaling,
        "mc_temperature": MonteCarloTemperatureScaling,
        "ensemble_temperature": EnsembleTemperatureScaling,
        "spline": SplineCalibration,
        "joint_isotonic": JointIsotonicCalibration,
        "platt": PlattScaling,
        "vector": VectorScaling,
        "beta": BetaCalibration,
        "top_label_binning": TopLabelBinning,
        "histogram": HistogramBinning,
        "bbq": BayesianBinning,
        "isotonic": IsotonicCalibration,
        "dirichlet": DirichletCalibration,
        "matrix": MatrixScaling,
        "none": Identity,
        "auto": AutoCalibrator,
    },
    of=type,
)
# Former names, for one release.
ALL_CALIBRATORS = CALIBRATORS
OrderPreservingIsotonic = JointIsotonicCalibration


def name_of(calibrator: Calibrator) -> str:
    """Return the name under which the class of ``calibrator`` is listed."""
    for name, kind in CALIBRATORS.available().items():
        if kind is type(calibrator):
            return name
    raise ValueError(f"name_of: the calibrator must be of a listed class, got {type(calibrator).__name__}.")


__all__ = [
    "ALL_CALIBRATORS",
    "CALIBRATORS",
    "AttendedTemperatureScaling",
    "AutoCalibrator",
    "BayesianBinning",
    "BetaCalibration",
    "BoundWarning",
    "CalibratedModel",
    "CalibrationWarning",
    "Calibrator",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "FitData",
    "HistogramBinning",
    "Identity",
    "IsotonicCalibration",
    "JointIsotonicCalibration",
    "MatrixScaling",
    "MonteCarloTemperatureScaling",
    "OrderPreservingIsotonic",
    "PlattScaling",
    "Ranked",
    "Repaired",
    "SplineCalibration",
    "TemperatureScaling",
    "TopLabelBinning",
    "VectorScaling",
    "name_of",
]
