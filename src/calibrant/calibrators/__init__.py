"""Post-hoc calibrators: repair the probabilities of a trained classifier from held-out logits and labels."""

from calibrant.calibrators.base import Calibrator
from calibrant.calibrators.fit_data import CalibrationWarning
from calibrant.calibrators.temperature import TemperatureScaling

CALIBRATORS: dict[str, type[Calibrator]] = {
    "temperature": TemperatureScaling,
}
# Those, and the ones that choose between them.
ALL_CALIBRATORS: dict[str, type[Calibrator]] = {**CALIBRATORS}


def name_of(calibrator: Calibrator) -> str:
    """Return the name under which the class of ``calibrator`` is listed."""
    names = [name for name, kind in ALL_CALIBRATORS.items() if kind is type(calibrator)]
    if not names:
        raise ValueError(f"name_of: the calibrator must be of a listed class, got {type(calibrator).__name__}.")
    return names[0]


__all__ = [
    "ALL_CALIBRATORS",
    "CALIBRATORS",
    "CalibrationWarning",
    "Calibrator",
    "TemperatureScaling",
    "name_of",
]
