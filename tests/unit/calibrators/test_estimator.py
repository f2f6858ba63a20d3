"""Calibrators as classifiers of scikit-learn: its pipelines, searches and checks take them."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from calibrant.calibrators import (
    ALL_CALIBRATORS,
    AutoCalibrator,
    Calibrator,
    HistogramBinning,
    MatrixScaling,
    MonteCarloTemperatureScaling,
    TemperatureScaling,
)
from calibrant.data.synthetic import synthetic_predictions

VAL, _ = synthetic_predictions(300, 3, temperature=2.0, hardness=0.5, split="val")
LOGITS, LABELS = VAL.logits.double().numpy(), VAL.labels.numpy()


@pytest.mark.parametrize("kind", ALL_CALIBRATORS.values())
def test_every_calibrator_is_a_classifier_that_can_be_cloned(kind: type[Calibrator]) -> None:
    assert is_classifier(kind())
    assert repr(clone(kind())) == repr(kind())
    assert has_fit_parameter(kind(), "sample_weight")
    # A hyper-parameter called like a method would hide it.
    assert callable(kind().score)


def test_cross_val_score_is_that_of_fits_by_hand() -> None:
    folds = [(np.arange(150), np.arange(150, 300)), (np.arange(150, 300), np.arange(150))]
    found = cross_val_score(TemperatureScaling(), LOGITS, LABELS, cv=folds, scoring="neg_log_loss")
    by_hand = []
    for kept, held in folds:
        log_probs = TemperatureScaling().fit(LOGITS[kept], LABELS[kept]).predict_log_proba(LOGITS[held])
        by_hand.append(float(log_probs[np.arange(150), LABELS[held]].mean()))
    assert found.tolist() == pytest.approx(by_hand, rel=1e-9)
    # The top class stays, so that accuracy, the score by default, is the model's own.
    right = LOGITS.argmax(1) == LABELS
    accuracy = cross_val_score(TemperatureScaling(), LOGITS, LABELS, cv=folds)
    assert accuracy.tolist() == pytest.approx([right[held].mean() for _, held in folds])
    assert cross_val_predict(TemperatureScaling(), LOGITS, LABELS, method="predict_proba").shape == (300, 3)


def test_two_classes_are_scored_by_the_second() -> None:
    logits, labels = LOGITS[LABELS < 2][:, :2], LABELS[LABELS < 2]
    assert (cross_val_score(TemperatureScaling(), logits, labels, cv=2, scoring="roc_auc") > 0.5).all()


def test_grid_search_finds_and_refits_a_hyper_parameter() -> None:
    search = GridSearchCV(HistogramBinning(), {"n_bins": [2, 4]}, scoring="neg_log_loss", cv=2).fit(LOGITS, LABELS)
    assert search.best_params_["n_bins"] == search.best_estimator_.n_bins
    assert search.classes_.tolist() == [0, 1, 2]


def test_pipeline_after_a_model_that_gives_scores() -> None:
    model = LogisticRegression().fit(LOGITS, LABELS)
    pipeline = make_pipeline(FunctionTransformer(model.decision_function), TemperatureScaling()).fit(LOGITS[:200], LABELS[:200])
    alone = TemperatureScaling().fit(model.decision_function(LOGITS[:200]), LABELS[:200])
    scores = model.decision_function(LOGITS[200:])
    np.testing.assert_allclose(pipeline.predict_proba(LOGITS[200:]), alone.predict_proba(scores))
    assert pipeline.predict(LOGITS[200:]).tolist() == scores.argmax(1).tolist()
    assert pipeline.score(LOGITS[200:], LABELS[200:]) == pytest.approx((scores.argmax(1) == LABELS[200:]).mean())
    assert pipeline.set_params(temperaturescaling__n_bins=7)[-1].n_bins == 7
    assert "TemperatureScaling" in repr(pipeline)
    assert "TemperatureScaling" in pipeline._repr_html_()


def test_predict_gives_the_top_class_as_it_was_given_the_logits() -> None:
    found = TemperatureScaling().fit(VAL)
    other, _ = synthetic_predictions(50, 3, temperature=2.0, seed=1)
    assert torch.equal(found.predict(other.logits), other.predicted)
    assert torch.equal(found.predict(other), other.predicted)
    as_array = found.predict(other.logits.numpy())
    assert isinstance(as_array, np.ndarray)
    assert as_array.tolist() == other.predicted.tolist()
    assert found.predict(other.logits.reshape(1, 50, 3).movedim(-1, 1)).tolist() == [other.predicted.tolist()]
    samples = other.logits.expand(2, 50, 3)
    assert torch.equal(MonteCarloTemperatureScaling().fit(VAL).predict(samples), other.predicted)


def test_classes_are_those_of_the_logits_and_unknown_before_the_fit() -> None:
    found = TemperatureScaling()
    assert not hasattr(found, "classes_")
    with pytest.raises(NotFittedError):
        check_is_fitted(found)
    found.fit(np.c_[LOGITS, np.full(300, -3.0)], LABELS)
    check_is_fitted(found)
    assert found.classes_.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", [TemperatureScaling, MonteCarloTemperatureScaling])
def test_sample_weight_is_weights(kind: type[TemperatureScaling | MonteCarloTemperatureScaling]) -> None:
    weights = np.arange(300) % 3
    by_weights = kind().fit(LOGITS, LABELS, weights=weights)
    by_sample_weight = kind().fit(LOGITS, LABELS, sample_weight=weights)
    assert by_weights.temperature_ == by_sample_weight.temperature_ != kind().fit(LOGITS, LABELS).temperature_
    with pytest.raises(ValueError, match="one of `weights` and `sample_weight` must be given, which are the same, got both"):
        kind().fit(LOGITS, LABELS, weights=weights, sample_weight=weights)


def test_score_is_the_weighted_accuracy() -> None:
    logits = np.array([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0]])
    found = TemperatureScaling().fit(LOGITS[:, :2], LABELS.clip(max=1))
    assert found.score(logits, [0, 1, 1]) == pytest.approx(2 / 3)
    assert found.score(logits, [0, 1, 1], sample_weight=[1, 1, 2]) == pytest.approx(1 / 2)


def test_set_params_keeps_the_rules_of_the_constructor() -> None:
    assert HistogramBinning().set_params(n_bins=5).n_bins == 5
    assert MatrixScaling().set_params(spreads=[0.1, 1.0]).get_params()["spreads"] == (0.1, 1.0)
    assert AutoCalibrator().set_params(scoring="brier").scoring == "brier"
    with pytest.raises(ValueError, match="unknown parameter of HistogramBinning 'n_bin'. Did you mean 'n_bins'"):
        HistogramBinning().set_params(n_bin=5)
    found = HistogramBinning(n_bins=4)
    with pytest.raises(ValueError, match="`n_bins` must be a whole number >= 1, got 0"):
        found.set_params(n_bins=0)
    assert found.n_bins == 4


def test_importing_calibrators_does_not_load_scikit_learn() -> None:
    code = "import sys, calibrant.calibrators; print('sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"
