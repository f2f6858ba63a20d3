"""Repairing predictions in one call: fit a calibrator on some, apply it to others, and measure what that changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from calibrant.calibrators.auto import AutoCalibrator
from calibrant.calibrators.base import Calibrator, Identity
from calibrant.calibrators.fit_data import refuse_other_names
from calibrant.core.records import Predictions
from calibrant.core.scores import Paired, Scores
from calibrant.metrics.measure import measure
from calibrant.metrics.paired import paired_test


@dataclass(frozen=True)
class Repaired:
    """What a repair was and did.

    Attributes:
        calibrator: The fitted calibrator; ``wrap(model)`` makes it part of the network, ``save(path)`` keeps it.
        predictions: The repaired predictions.
        before: Scores of the predictions as they were given.
        after: Scores of the repaired ones.
        paired: Key → difference (after minus before) on the same examples, with interval and p-value.
    """

    calibrator: Calibrator
    predictions: Predictions
    before: Scores
    after: Scores
    paired: Mapping[str, Paired]

    @property
    def fitted(self) -> Calibrator:
        """The calibrator that is applied: of an `AutoCalibrator` the one it chose."""
        return self.calibrator.best_ if isinstance(self.calibrator, AutoCalibrator) else self.calibrator

    @property
    def advice(self) -> str:
        """What was fitted, in a sentence."""
        return describe(self.calibrator)

    def __str__(self) -> str:
        lines = [self.advice]
        for key in ("ece", "nll", "error"):
            old, new, test = self.before[key], self.after[key], self.paired[key]
            change = f"p = {test.p_value:.2g}" if test.difference else "unchanged"
            before, after = (f"{entry.value:.4f} [{entry.low:.4f}, {entry.high:.4f}]" for entry in (old, new))
            lines.append(f"  {key:<6} {before} -> {after}, {change}")
        return "\n".join(lines)


def repair(
    fit: Predictions,
    predictions: Predictions,
    *,
    method: str | Calibrator = "auto",
    n_bins: int = 15,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Repaired:
    """Fit a calibrator on some predictions, apply it to others, and measure those before and after.

    Args:
        fit: Predictions to fit on, which must not be marked as test data.
        predictions: Predictions to repair, of the same model on other examples.
        method: Name from `calibrant.calibrators.CALIBRATORS` ("auto" tries all by cross-validation), or a calibrator.
        n_bins: Bins of the binned metrics.
        n_resamples: Resamples behind the intervals and the paired test.
        seed: Of those resamples.

    Returns:
        The repaired predictions, the fitted calibrator, and the scores before and after. Raises ``ValueError`` on wrong input,
        `calibrant.core.checks.FitError` if the fit fails; warns with `CalibrationWarning` where the result is doubtful.

    Example:
        >>> from calibrant.data.synthetic import synthetic_predictions
        >>> val, _ = synthetic_predictions(2000, 5, temperature=2.0, split="val")
        >>> test, _ = synthetic_predictions(2000, 5, temperature=2.0, seed=1, split="test")
        >>> done = repair(val, test, method="temperature", n_resamples=100)
        >>> done.after["ece"].value < done.before["ece"].value, done.after["error"].value == done.before["error"].value
        (True, True)
    """
    if not all(isinstance(given, Predictions) for given in (fit, predictions)):
        got = f"{type(fit).__name__} and {type(predictions).__name__}"
        raise ValueError(
            f"repair: `fit` and `predictions` must be `Predictions`, got {got}. Make them of `logits` and `labels`."
        )
    if fit.num_classes != predictions.num_classes:
        got = f"{fit.num_classes} and {predictions.num_classes}"
        raise ValueError(f"repair: `fit` and `predictions` must have the same classes, got {got}.")
    refuse_other_names(predictions, fit, what="repair: `predictions`", of="`fit`")
    return measure_repair(calibrator_of(method).fit(fit), predictions, n_bins=n_bins, n_resamples=n_resamples, seed=seed)


def calibrator_of(method: str | Calibrator) -> Calibrator:
    """Return a new calibrator of the name ``method``, or ``method`` itself if it is one."""
    from calibrant.calibrators import CALIBRATORS

    return method if isinstance(method, Calibrator) else CALIBRATORS[method]()


def measure_repair(
    calibrator: Calibrator, predictions: Predictions, *, n_bins: int = 15, n_resamples: int = 1000, seed: int = 0
) -> Repaired:
    """Apply a fitted calibrator to ``predictions`` and measure what that changes; arguments as those of `repair`."""
    repaired = calibrator.apply(predictions)
    before, after = (measure(given, n_bins=n_bins, n_resamples=n_resamples, seed=seed) for given in (predictions, repaired))
    paired = paired_test(predictions, repaired, n_bins=n_bins, n_resamples=n_resamples, seed=seed)
    return Repaired(calibrator, repaired, before, after, paired)


def describe(calibrator: Calibrator) -> str:
    """Say in a sentence what was fitted."""
    if isinstance(calibrator, AutoCalibrator):
        scaled = calibrator.best_.learned == ("temperature",)
        return calibrator.advice_ + (f" Its temperature is {calibrator.best_.temperature_:.3f}." if scaled else "")
    if isinstance(calibrator, Identity):
        return "Nothing was fitted: the probabilities stay as they are."
    if calibrator.learned != ("temperature",):
        kept = "the predicted classes stay" if calibrator.preserves_accuracy else "some predicted classes may change too"
        return f"{calibrator.label[0].upper()}{calibrator.label[1:]} was fitted: the probabilities change, {kept}."
    temperature = f"{calibrator.temperature_:.3f}"
    what = "calibrated" if temperature == "1.000" else "over-confident" if calibrator.temperature_ > 1 else "under-confident"
    return f"The logits are divided by a temperature of {temperature}: by its own measure the model was {what}."
