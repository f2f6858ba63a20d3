"""A classifier of scikit-learn and its calibrator as one estimator."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, ShuffleSplit, StratifiedKFold, cross_val_predict
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_estimator

from calibrant.calibrators import CalibratedModel, CalibrationWarning, TemperatureScaling

# Repeated features make naive Bayes much too sure.
X, Y = make_classification(1600, 12, n_informative=4, n_redundant=8, n_classes=3, random_state=0)
NAMES = np.array(["cat", "dog", "emu"])
FIT, NEW = slice(800), slice(800, None)


@pytest.mark.filterwarnings("ignore")
def test_checks_of_scikit_learn_are_passed() -> None:
    done = check_estimator(CalibratedModel(LogisticRegression(), method="temperature", cv=3), on_skip=None)
    assert sum(entry["status"] == "passed" for entry in done) > 55


def test_fit_is_that_of_one_calibrator_to_held_out_predictions() -> None:
    folds = StratifiedKFold(4, shuffle=True, random_state=0)
    found = CalibratedModel(GaussianNB(), method="temperature", cv=folds).fit(X[FIT], Y[FIT])
    held_out = cross_val_predict(GaussianNB(), X[FIT], Y[FIT], cv=folds, method="predict_proba")
    alone = TemperatureScaling().fit(np.log(held_out), Y[FIT])
    assert found.calibrator_.temperature_ == pytest.approx(alone.temperature_, rel=1e-9)
    bare = GaussianNB().fit(X[FIT], Y[FIT])
    expected = alone.predict_proba(np.log(bare.predict_proba(X[NEW])))
    np.testing.assert_allclose(found.predict_proba(X[NEW]), expected, rtol=1e-9)
    assert log_loss(Y[NEW], expected) < log_loss(Y[NEW], bare.predict_proba(X[NEW])) - 0.1
    assert CalibratedModel(GaussianNB(), method="temperature", cv=ShuffleSplit(3, random_state=0)).fit(X, Y).classes_.size == 3


def test_auto_leaves_a_calibrated_model_as_it_is() -> None:
    bare = LogisticRegression().fit(X[FIT], Y[FIT])
    found = CalibratedModel(LogisticRegression()).fit(X[FIT], Y[FIT])
    assert log_loss(Y[NEW], found.predict_proba(X[NEW])) < log_loss(Y[NEW], bare.predict_proba(X[NEW])) + 0.002


@pytest.mark.parametrize("model", [GaussianNB(), make_pipeline(StandardScaler(), LinearSVC())])
@pytest.mark.parametrize("count", [2, 3])
def test_names_of_classes_and_data_frames_change_nothing(model: BaseEstimator, count: int) -> None:
    kept = Y < count
    table = pd.DataFrame(X[kept]).add_prefix("x")
    by_index = CalibratedModel(model, method="vector", cv=3).fit(table.to_numpy(), Y[kept])
    by_name = CalibratedModel(model, method="vector", cv=3).fit(table, pd.Series(NAMES[Y[kept]], index=table.index[::-1]))
    np.testing.assert_allclose(by_name.predict_proba(table), by_index.predict_proba(table.to_numpy()), rtol=1e-9)
    assert by_name.predict(table).tolist() == NAMES[by_index.predict(table.to_numpy())].tolist()
    assert by_name.score(table, NAMES[Y[kept]]) > 0.6
    assert by_name.feature_names_in_.tolist() == [f"x{k}" for k in range(12)]
    assert by_name.classes_.tolist() == NAMES[:count].tolist()


def test_weight_of_class_by_name_and_class_in_one_fold_only() -> None:
    labels = NAMES[Y[FIT]]
    labels[:3] = "fox"
    folds = [(np.arange(3, 800), np.arange(3)), (np.arange(500), np.arange(500, 800))]
    model = CalibratedModel(LogisticRegression(class_weight={"emu": 2.0}), method="temperature", cv=folds)
    with pytest.warns(CalibrationWarning, match="3 of 303 examples have a label of probability zero"):
        model.fit(X[FIT], labels)
    np.testing.assert_allclose(model.predict_proba(X[NEW]).sum(1), 1)
    assert model.predict_proba(X[NEW]).shape == (800, 4)


def test_forest_that_gives_a_label_probability_zero_is_given_the_floor() -> None:
    forest = RandomForestClassifier(10, random_state=0)
    rows = np.arange(1600)
    # No label of the fit has probability zero: only the examples to come meet it.
    possible = forest.fit(X[FIT], Y[FIT]).predict_proba(X)[rows, Y] > 0
    kept = rows[NEW][possible[NEW]]
    found = CalibratedModel(forest, method="none", cv="prefit").fit(X[kept], Y[kept])
    assert not possible[NEW].all()
    assert found.predict_proba(X[NEW]).min() == pytest.approx(1 / (3 * len(kept)), rel=0.01)


def test_weights_reach_model_and_calibrator() -> None:
    weights = np.where(Y[FIT] == 0, 0.0, 2.0)
    found = CalibratedModel(GaussianNB(), method="temperature").fit(X[FIT], Y[FIT], sample_weight=weights)
    assert found.estimator_.class_prior_[0] == 0
    pipeline = CalibratedModel(make_pipeline(GaussianNB()), method="temperature").fit(X[FIT], Y[FIT], weights)
    assert pipeline.estimator_[0].class_prior_[0] > 0.2
    unweighted = CalibratedModel(GaussianNB(), method="temperature").fit(X[FIT], Y[FIT])
    assert pipeline.calibrator_.temperature_ != unweighted.calibrator_.temperature_


def test_prefit_fits_the_calibrator_only() -> None:
    bare = GaussianNB().fit(X[:400], NAMES[Y[:400]])
    before = bare.theta_.copy()
    # Only two of the three classes that the model knows.
    rows = 400 + np.flatnonzero(Y[400:800] > 0)
    found = CalibratedModel(bare, method="temperature", cv="prefit").fit(X[rows], NAMES[Y[rows]])
    frozen = CalibratedModel(FrozenEstimator(bare), method="temperature").fit(X[400:800], NAMES[Y[400:800]])
    for model in (found, frozen):
        assert model.classes_.tolist() == NAMES.tolist()
        assert model.calibrator_.temperature_ > 1.2
    assert (bare.theta_ == before).all()
    with pytest.raises(ValueError, match="previously unseen"):
        CalibratedModel(bare, cv="prefit").fit(X[:50], ["fox"] * 50)


def test_search_cross_validation_clone_and_pickle() -> None:
    model = CalibratedModel(GaussianNB(), method="temperature", cv=3)
    grid = {"estimator__var_smoothing": [1e-9, 1e-2], "method": ["temperature", TemperatureScaling()]}
    search = GridSearchCV(model, grid, scoring="neg_log_loss", cv=2).fit(X[FIT], NAMES[Y[FIT]])
    assert search.best_score_ > -1
    probs = cross_val_predict(model, X[FIT], Y[FIT], cv=2, method="predict_proba")
    np.testing.assert_allclose(probs.sum(1), 1)
    again = pickle.loads(pickle.dumps(clone(search.best_estimator_).fit(X[FIT], NAMES[Y[FIT]])))
    np.testing.assert_array_equal(again.predict_proba(X[NEW]), search.predict_proba(X[NEW]))


def test_models_that_cannot_be_used_are_named() -> None:
    with pytest.raises(ValueError, match="`y` must have at least two classes"):
        CalibratedModel(GaussianNB()).fit(X[FIT], [1] * 800)
    with pytest.raises(AttributeError, match="no attribute 'decision_function'"):
        CalibratedModel(StandardScaler()).fit(X, Y)
