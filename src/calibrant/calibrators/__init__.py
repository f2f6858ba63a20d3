"""Post-hoc calibrators: repair the probabilities of a trained classifier from held-out logits and labels.

Train-time objectives are in `calibrant.losses`.
"""

from calibrant.calibrators import auto, base, scaling, tables
from calibrant.calibrators.auto import *
from calibrant.calibrators.base import *
from calibrant.calibrators.scaling import *
from calibrant.calibrators.tables import *
from calibrant.core.checks import Registry

__all__ = ["ALL_CALIBRATORS", "CALIBRATORS", "OrderPreservingIsotonic", "name_of"]
__all__ += [*auto.__all__, *base.__all__, *scaling.__all__, *tables.__all__]

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
