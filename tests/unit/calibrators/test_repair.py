"""Repairing in one call, and the guard rails that it runs into."""

from __future__ import annotations

import re
import warnings

import pytest
import torch

from calibrant import Predictions
from calibrant.calibrators import (
    CALIBRATORS,
    AutoCalibrator,
    BetaCalibration,
    BoundWarning,
    CalibrationWarning,
    Repaired,
    TemperatureScaling,
)
from calibrant.calibrators.auto import repair
from calibrant.core.checks import FitError
from calibrant.data.synthetic import synthetic_predictions
from calibrant.metrics.measure import measure
from calibrant.metrics.paired import paired_test

FEW = {"n_resamples": 100}


def predictions(seed: int, split: str, *, n: int = 1000, num_classes: int = 4) -> Predictions:
    return synthetic_predictions(n, num_classes, temperature=2.4, hardness=0.5, seed=seed, split=split)[0]


VAL, TEST = predictions(0, "val"), predictions(1, "test")


def test_repair_by_name_is_fit_apply_and_measure() -> None:
    done = repair(VAL, TEST, method="temperature", n_bins=10, n_resamples=100, seed=3)
    expected = TemperatureScaling().fit(VAL)
    assert isinstance(done, Repaired)
    assert isinstance(done.calibrator, TemperatureScaling)
    assert done.fitted is done.calibrator
    assert done.calibrator.temperature_ == expected.temperature_
    assert torch.equal(done.predictions.logits, expected.apply(TEST).logits)
    assert done.predictions.split is TEST.split
    assert done.before == measure(TEST, n_bins=10, n_resamples=100, seed=3)
    assert done.after == measure(expected.apply(TEST), n_bins=10, n_resamples=100, seed=3)
    assert done.paired == paired_test(TEST, expected.apply(TEST), n_bins=10, n_resamples=100, seed=3)
    assert done.after["ece"].value < done.before["ece"].value / 2
    assert f"{expected.temperature_:.3f}" in done.advice
    assert str(done).splitlines()[0] == done.advice


def test_repair_refuses_classes_of_another_order() -> None:
    val, test = (
        Predictions(logits=given.logits, labels=given.labels, class_names=names, split=given.split)
        for given, names in ((VAL, ["cat", "dog", "eel", "fox"]), (TEST, ["cat", "eel", "dog", "fox"]))
    )
    with pytest.raises(
        ValueError, match="same classes in the same order as `predictions`, got .*'cat', 'dog', .* not .*'cat', 'eel'"
    ):
        repair(val, test, method="vector")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert repair(VAL, test, method="temperature", **FEW).paired["error"].difference == 0


def test_fit_that_reaches_its_bound_warns_in_every_temperature_method() -> None:
    given, _ = synthetic_predictions(1000, 10, temperature=2.4, split="val")
    for name in ("temperature", "attended_temperature", "mc_temperature", "ensemble_temperature"):
        # Its best temperature is 2.4.
        with pytest.warns(CalibrationWarning, match=r"the temperature ended at its bound 1\.5:"):
            CALIBRATORS[name](bounds=(0.1, 1.5)).fit(given)


def test_auto_leaves_out_what_needs_every_class_where_one_is_missing() -> None:
    kept = (VAL.labels != 2).nonzero().flatten()
    given = Predictions(logits=3 * torch.tensor([0.2, 1.0, 1.0, 0.4]) * VAL.logits, labels=VAL.labels, split="val").subset(kept)
    missing = r"the fit data have no example of 1 of 4 classes \(2\)"
    with pytest.warns(CalibrationWarning, match=rf"AutoCalibrator\.fit: {missing}"):
        auto = AutoCalibrator(methods=("vector", "temperature", "top_label_binning")).fit(given)
    # Of the others' labels a vector learns most; of the missing class it can only learn that it never comes.
    assert auto.best_name_ == "temperature"
    assert [entry.name for entry in auto.ranking_ if entry.failure] == ["vector", "top_label_binning"]
    assert re.search(missing, str(auto.ranking_[-1].failure))


def test_fit_that_gives_no_finite_numbers_fails() -> None:
    signs = torch.randn(60, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sign()
    labels = torch.arange(60) % 4
    with pytest.warns(BoundWarning, match="ended at its bound"):
        TemperatureScaling().fit(1e308 * signs, labels)
    with pytest.raises(FitError, match="BetaCalibration: .*must be finite"):
        BetaCalibration().fit(1e308 * signs, labels)
    with pytest.warns(CalibrationWarning, match="60 examples are few"):
        auto = AutoCalibrator(methods=("temperature", "beta")).fit(1e308 * signs, labels)
    assert auto.advice_.startswith("Doing nothing is all that is left")
    assert all(entry.failure for entry in auto.ranking_ if entry.name != "none")
