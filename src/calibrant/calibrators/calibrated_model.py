"""A scikit-learn classifier and its calibrator as one estimator, fitted by cross-validation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import BaseCrossValidator, check_cv
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import Tags, _safe_indexing, column_or_1d, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, has_fit_parameter

from calibrant.calibrators.auto import calibrator_of
from calibrant.calibrators.base import Calibrator

Matrix: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[np.float64]]"
Rows: TypeAlias = "npt.NDArray[np.int_]"
Folds: TypeAlias = "int | str | BaseCrossValidator | Iterable[tuple[npt.ArrayLike, npt.ArrayLike]]"


class CalibratedModel(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier with calibrated probabilities: an estimator of scikit-learn around another one.

    ``fit`` predicts every example with a copy of the classifier that has not seen it, fits one calibrator to all these
    predictions, and fits the classifier itself to all examples.

    Args:
        estimator: Classifier or pipeline with ``predict_proba``, or else with ``decision_function``, whose values are logits.
        method: Name from `CALIBRATORS`, or a calibrator. "auto" leaves the probabilities as they are unless a calibrator is
            clearly better.
        cv: Folds as everywhere in scikit-learn: a number, a splitter, or pairs of rows to fit on and rows to predict. With
            "prefit" the classifier is fitted already, on other data than those given to ``fit``.

    Attributes:
        estimator_: The classifier fitted to all examples.
        calibrator_: The fitted calibrator.
        classes_: Labels in the order of the probabilities.
        n_features_in_: Number of features, if the classifier knows it.
        feature_names_in_: Names of the features, if the classifier knows them.

    Example:
        >>> from sklearn.datasets import make_classification
        >>> from sklearn.naive_bayes import GaussianNB
        >>> X, y = make_classification(2000, n_redundant=15, flip_y=0.3, random_state=0)
        >>> bare = GaussianNB().fit(X[:1000], y[:1000])
        >>> model = CalibratedModel(GaussianNB(), method="temperature").fit(X[:1000], y[:1000])
        >>> [f"{found.predict_proba(X[1000:]).max(1).mean():.2f}" for found in (bare, model)], model.score(X[1000:], y[1000:])
        (['0.99', '0.81'], 0.858)
    """

    def __init__(self, estimator: BaseEstimator, *, method: str | Calibrator = "auto", cv: Folds = 5) -> None:
        self.estimator = estimator
        self.method = method
        self.cv = cv

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None = None) -> Self:
        """Fit the classifier and its calibrator.

        Args:
            X: Features, in any form that the classifier takes.
            y: Labels ``[N]``: numbers or names.
            sample_weight: Weights ``[N]`` for the calibrator, and for the classifier if its ``fit`` takes them.

        Returns:
            This model. Raises ``ValueError`` on wrong input, and warns as the calibrator does.
        """
        check_classification_targets(y)
        X, y, sample_weight = indexable(X, column_or_1d(y, warn=True), sample_weight)
        encoder = LabelEncoder().fit(y)
        held_out = np.arange(np.size(y))
        if isinstance(self.cv, str) and self.cv == "prefit":
            check_is_fitted(self.estimator)
            self.estimator_, encoder.classes_ = self.estimator, self.estimator.classes_
            logits = log_probs_of(self.estimator, X)
        elif len(encoder.classes_) == 1:
            raise ValueError("CalibratedModel.fit: `y` must have at least two classes, got one class.")
        else:
            self.estimator_ = self._fitted(X, y, sample_weight, held_out)
            parts = []
            for kept, rows in check_cv(self.cv, y, classifier=True).split(X, y):
                fitted = self._fitted(X, y, sample_weight, kept)
                # A class may have no example among those the copy was fitted to.
                part = np.full((len(rows), len(encoder.classes_)), -np.inf)
                part[:, encoder.transform(fitted.classes_)] = log_probs_of(fitted, _safe_indexing(X, rows))
                parts.append((rows, part))
            held_out, logits = map(np.concatenate, zip(*parts, strict=True))
        self.classes_ = encoder.classes_
        for name in {"n_features_in_", "feature_names_in_"} & set(dir(self.estimator_)):
            setattr(self, name, getattr(self.estimator_, name))
        weights = None if sample_weight is None else _safe_indexing(sample_weight, held_out)
        labels = encoder.transform(_safe_indexing(y, held_out))
        # Zeros beside nothing nearly as small are counts, as of a forest's votes: such a label may well come.
        zeros, floor = np.isneginf(logits), 1 / logits.size
        counted = zeros.any() and np.exp(logits[~zeros].min()) >= floor
        fresh = clone(calibrator_of(self.method))
        self.calibrator_ = fresh.fit(logits, labels, weights=weights, floor=floor if counted else None)
        return self

    def _fitted(self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None, rows: Rows) -> BaseEstimator:
        known = sample_weight is not None and has_fit_parameter(self.estimator, "sample_weight")
        weights = {"sample_weight": _safe_indexing(sample_weight, rows)} if known else {}
        return clone(self.estimator).fit(_safe_indexing(X, rows), _safe_indexing(y, rows), **weights)

    def predict_proba(self, X: npt.ArrayLike) -> Matrix:
        """Return calibrated probabilities ``[N, C]``, classes in the order of ``classes_``."""
        check_is_fitted(self)
        probs: Matrix = self.calibrator_.predict_proba(log_probs_of(self.estimator_, X))
        return probs

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[np.generic]:
        """Return the label ``[N]`` of most calibrated probability."""
        probs = self.predict_proba(X)
        found: npt.NDArray[np.generic] = self.classes_[probs.argmax(1)]
        return found

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags


def log_probs_of(model: BaseEstimator, X: npt.ArrayLike) -> Matrix:
    """Return log-probabilities ``[N, C]`` of a fitted classifier; of a decision function, its log-softmax."""
    if hasattr(model, "predict_proba"):
        with np.errstate(divide="ignore"):
            scores = np.log(np.asarray(model.predict_proba(X), dtype=np.float64))
    elif hasattr(model, "decision_function"):
        scores = np.asarray(model.decision_function(X), dtype=np.float64)
    else:
        got = type(model).__name__
        raise ValueError(f"CalibratedModel: `estimator` must have `predict_proba` or `decision_function`, got {got}.")
    found: Matrix = log_softmax(scores if scores.ndim == 2 else np.stack([np.zeros_like(scores), scores], 1), axis=1)
    return found
