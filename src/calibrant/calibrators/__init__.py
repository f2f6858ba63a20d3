"""Post-hoc calibrators: repair the probabilities of a trained classifier from held-out logits and labels.

Train-time objectives are in `calibrant.losses`.
"""

from calibrant.calibrators.attended import AttendedTemperatureScaling
from calibrant.calibrators.auto import AutoCalibrator
from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.bbq import BayesianBinning
from calibrant.calibrators.choice import Ranked
from calibrant.calibrators.ensemble import EnsembleTemperatureScaling
from calibrant.calibrators.fit_data import BoundWarning, CalibrationWarning
from calibrant.calibrators.histogram import HistogramBinning
from calibrant.calibrators.identity import Identity
from calibrant.calibrators.isotonic import IsotonicCalibration, OrderPreservingIsotonic
from calibrant.calibrators.matrix import DirichletCalibration, MatrixScaling
from calibrant.calibrators.monte_carlo import MonteCarloTemperatureScaling
from calibrant.calibrators.platt import BetaCalibration, PlattScaling
from calibrant.calibrators.repair import Repaired
from calibrant.calibrators.spline import SplineCalibration
from calibrant.calibrators.temperature import TemperatureScaling
from calibrant.calibrators.top_label import TopLabelBinning
from calibrant.calibrators.vector import VectorScaling

# From few parameters to many: of equally good ones, the first is to be preferred.
CALIBRATORS: dict[str, type[Calibrator]] = {
    "temperature": TemperatureScaling,
    "attended_temperature": AttendedTemperatureScaling,
    "mc_temperature": MonteCarloTemperatureScaling,
    "ensemble_temperature": EnsembleTemperatureScaling,
    "spline": SplineCalibration,
    "joint_isotonic": OrderPreservingIsotonic,
    "platt": PlattScaling,
    "vector": VectorScaling,
    "beta": BetaCalibration,
    "top_label_binning": TopLabelBinning,
    "histogram": HistogramBinning,
    "bbq": BayesianBinning,
    "isotonic": IsotonicCalibration,
    "dirichlet": DirichletCalibration,
    "matrix": MatrixScaling,
}
# Those, doing nothing, and choosing between them.
ALL_CALIBRATORS: dict[str, type[Calibrator]] = {**CALIBRATORS, "none": Identity, "auto": AutoCalibrator}


def name_of(calibrator: Calibrator) -> str:
    """Return the name under which the class of ``calibrator`` is listed."""
    names = [name for name, kind in ALL_CALIBRATORS.items() if kind is type(calibrator)]
    if not names:
        raise ValueError(f"name_of: the calibrator must be of a listed class, got {type(calibrator).__name__}.")
    return names[0]


__all__ = [
    "ALL_CALIBRATORS",
    "CALIBRATORS",
    "AttendedTemperatureScaling",
    "AutoCalibrator",
    "BayesianBinning",
    "BetaCalibration",
    "BoundWarning",
    "CalibrationWarning",
    "Calibrator",
    "DirichletCalibration",
    "EnsembleTemperatureScaling",
    "HistogramBinning",
    "Identity",
    "IsotonicCalibration",
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
