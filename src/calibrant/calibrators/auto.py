"""Choosing a calibrator by cross-validation, `repair` in one call, and a scikit-learn classifier with its calibrator in one."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Literal, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import BaseCrossValidator, check_cv
from sklearn.preprocessing import LabelEncoder
from sklearn.utils import Tags, _safe_indexing, column_or_1d, get_tags, indexable
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, has_fit_parameter
from torch import Tensor, nn

from calibrant.calibrators.base import (
    BoundWarning,
    CalibrationWarning,
    Calibrator,
    FitData,
    Identity,
    Learned,
    Positions,
    Vector,
    check_same_classes,
    option,
)
from calibrant.core.checks import FitError, check_choice, check_count, lookup
from calibrant.core.records import Estimate, Paired, Predictions, Scores, without_nan
from calibrant.metrics.measure import measure
from calibrant.metrics.paired import paired_test

__all__ = ["AutoCalibrator", "CalibratedModel", "Ranked", "Repaired"]

Folds: TypeAlias = "int | str | BaseCrossValidator | Iterable[tuple[npt.ArrayLike, npt.ArrayLike]]"
# Called before each fit, with the name of the method, the number of the fold and how many folds there are.
Progress = Callable[[str, int, int], None]

# Share of the best method's gain that a simpler one must keep to be taken instead.
_KEPT_GAIN = 0.95
# A method that is worse than the best so far by so many standard errors is dropped.
_DROPPED = 3.0
# Largest p-value of a gain that can be trusted.
_CHANCE = 0.05
_NORMAL = NormalDist()


# Name → what it is called in print, and the score that each class of log-probabilities ``[N, C]`` gives if it is the label.
SCORES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "nll": ("negative log-likelihood", lambda log_probs: -log_probs),
    "brier": ("Brier score", lambda log_probs: (log_probs.exp() ** 2).sum(1, keepdim=True) - 2 * log_probs.exp() + 1),
}


class Ranked(NamedTuple):
    """How one method did in the cross-validation; the numbers are NaN if it was not used.

    Attributes:
        name: Its name; "none" is doing nothing.
        score: Mean held-out score per example; lower is better.
        gain: Mean score of doing nothing minus its own: positive is an improvement. For a method that was dropped, that of the
            best one less what this one lost to it on the same examples.
        gain_low: Lower end of the 95 % interval of the gain.
        gain_high: Upper end.
        p_value: How often any of the methods would seem to gain as much if labels came from the probabilities as they are.
        failure: Why it was not used, or None: its fit failed, or cannot be trusted on these data.
        note: Why it was chosen, or not.
    """

    name: str
    score: float = math.nan
    gain: float = math.nan
    gain_low: float = math.nan
    gain_high: float = math.nan
    p_value: float = math.nan
    failure: str | None = None
    note: str = ""

    @property
    def change(self) -> Estimate:
        """Its own mean score minus that of doing nothing, with the interval."""
        return Estimate(-self.gain, -self.gain_high, -self.gain_low)


def gains_of(log_probs: Tensor, idle: Tensor, labels: Tensor, score: Callable[[Tensor], Tensor]) -> Tensor:
    """What log-probabilities ``[N, C]`` gain over ``idle`` ones, by a score as in `SCORES`; ``[3, N]``.

    The gain for the label; and its mean, which is never above zero, and variance if labels came from the ``idle``
    probabilities.
    """
    probs = idle.exp()
    # A class that has no chance adds nothing.
    gains = torch.where(probs > 0, score(idle) - score(log_probs), 0.0)
    expected = (probs * gains).sum(1)
    variance = (probs * (gains - expected.unsqueeze(1)) ** 2).sum(1)
    return torch.stack([gains.gather(1, labels.unsqueeze(1)).squeeze(1), expected, variance])


def mean_and_error(values: Tensor, weights: Tensor) -> tuple[float, float]:
    """Weighted mean of the ``values [N]`` that are not NaN, and its standard error."""
    known = ~values.isnan()
    values, shares = values[known], weights[known] / weights[known].sum()
    mean = shares @ values
    # The effective number of examples is one over the sum of squared shares.
    error = torch.sqrt(shares @ (values - mean) ** 2 / (1 / (shares @ shares) - 1).clamp(min=1))
    return float(mean), float(error)


def rank(gains: Mapping[str, Tensor], weights: Tensor, best: str, idle: float) -> dict[str, Ranked]:
    """Rank methods by their gains; ``best`` has a gain for every example, and doing nothing the mean score ``idle``."""
    most, _ = mean_and_error(gains[best][0], weights)
    ranked = {}
    for name, (found, expected, variance) in gains.items():
        gain = most - mean_and_error(gains[best][0] - found, weights)[0]
        half = _NORMAL.inv_cdf(0.975) * mean_and_error(found, weights)[1]
        known = ~found.isnan()
        excess = float(weights[known] @ (found - expected)[known])
        spread = math.sqrt(float(weights[known] ** 2 @ variance[known]))
        one = 1 - _NORMAL.cdf(excess / spread) if spread > 0 else 1.0
        p_value = min((len(gains) - 1) * one, 1.0)
        ranked[name] = Ranked(name, idle - gain, gain, gain - half, gain + half, p_value)
    return ranked


def choose(ranked: Mapping[str, Ranked], gains: Mapping[str, Tensor], weights: Tensor) -> str:
    """Return the name of the method to take; names are in order, "none" and then the simplest first.

    Only a method that is clearly better than doing nothing can be chosen: with a p-value of at most 5 %, which allows for the
    number of methods and for the rare mistakes that a sure model has yet to make, and a gain above 1.6 standard errors. Of
    these it is the simplest that keeps 95 % of the best one's gain and is worse by at most one standard error of their
    difference (a method that varies much is never clearly worse), unless a simpler one gains more.
    """
    clear = [name for name, entry in ranked.items() if is_clear(entry)]
    if not clear:
        return "none"
    best = max(clear, key=lambda name: ranked[name].gain)

    def is_enough(name: str) -> bool:
        lost, error = mean_and_error(gains[best][0] - gains[name][0], weights)
        beaten = any(ranked[simpler].gain > ranked[name].gain for simpler in clear[: clear.index(name)])
        return name == best or (not beaten and lost <= min((1 - _KEPT_GAIN) * ranked[best].gain, error))

    return next(filter(is_enough, clear))


def is_clear(entry: Ranked) -> bool:
    """Whether a gain is too large for chance."""
    error = (entry.gain_high - entry.gain) / _NORMAL.inv_cdf(0.975)
    return entry.p_value <= _CHANCE and entry.gain > _NORMAL.inv_cdf(1 - _CHANCE) * error


def advise(ranking: Sequence[Ranked], chosen: str, score: str) -> str:
    """Say in a sentence what the ranking means."""
    what, _ = SCORES[score]
    used = {entry.name: entry for entry in ranking if entry.failure is None and entry.name != "none"}
    if not used:
        return "Doing nothing is all that is left: no method could be used on these examples."
    best = next(iter(used.values()))
    entry = used.get(chosen, best)
    interval = f"by {entry.gain:.4f} (95% interval {entry.gain_low:.4f} to {entry.gain_high:.4f})"
    if chosen == "none":
        chance = f" {best.name} lowers it {interval}, which may be chance." if entry.gain > 0 else ""
        return f"Doing nothing is best: no method lowers the held-out {what} clearly.{chance}"
    rest = "" if best is entry else f" {best.name} is hardly better."
    return f"{chosen} is {'enough' if rest else 'best'}: it lowers the held-out {what} {interval}.{rest}"


def candidates() -> dict[str, type[Calibrator]]:
    """Calibrators to try, simplest first."""
    from calibrant.calibrators import CALIBRATORS

    return {name: kind for name, kind in CALIBRATORS.available().items() if kind.in_auto}


@dataclass(kw_only=True, eq=False, repr=False)
class AutoCalibrator(Calibrator):
    """Tries every calibrator on held-out parts of the fit data, ranks them, and fits the best on all of it.

    Every method predicts each example from a fit that has not seen it. The simplest one is taken that keeps nearly all of the
    best one's gain, if that is clearly better than doing nothing, however many were tried. Methods that are clearly worse than
    the best after some folds are dropped.

    A method that cannot be trusted on the data is not used, and the ranking says why: it would warn of too few examples; it
    learns something for each class, and one has no example or there are fewer than 100 in all; or its temperature ends at a
    bound. None is used if the model makes no mistake, or all labels are the same.

    Args:
        methods: Names from `CALIBRATORS`; all that take logits ``[N, C]`` by default.
        scoring: Proper score to rank by: "nll" or "brier".
        n_folds: Folds of the cross-validation.
        seed: Seed of the folds.

    Attributes:
        ranking_: A `Ranked` for every method and for "none", best first.
        best_: The fitted calibrator; an `Identity` if doing nothing is best.
        best_name_: Its name in the ranking.
        advice_: What was found, in a sentence.
        candidates_: Name → calibrator of every method that was used, with the hyper-parameters chosen for it; only the best is
            fitted. Not kept in files.

    Example:
        >>> from calibrant.data.synthetic import synthetic_predictions
        >>> fit_data, _ = synthetic_predictions(4000, 3, temperature=2.0, split="val")
        >>> auto = AutoCalibrator(methods=("temperature", "vector")).fit(fit_data)
        >>> auto.best_name_, round(auto.best_.temperature_)
        ('temperature', 2)
    """

    methods: Sequence[str] | None = None
    scoring: Literal["nll", "brier"] = option("nll", check_choice, choices=(*SCORES,))
    n_folds: int = option(5, check_count, least=2)
    seed: int = 0

    label = "the best by cross-validation"
    in_auto = False
    few_samples = 100

    _progress: Progress | None = field(default=None, init=False)

    def on_progress(self, progress: Progress) -> AutoCalibrator:
        """Have ``progress(name, fold, n_folds)`` called before each fit; return this calibrator."""
        self._progress = progress
        return self

    def doubts(self, data: FitData) -> list[str]:
        """Why the choice may not be trusted: few examples, classes without any, or nothing to learn from."""
        if len(data) < self.n_folds:
            raise FitError(f"AutoCalibrator.fit: needs at least {self.n_folds} examples for its folds, got {len(data)}.")
        found = (data.too_few(self.few_samples, what="a choice between methods"), _nothing_to_learn(data), data.missing_classes)
        return [doubt for doubt in found if doubt]

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        table = candidates()
        for name in self.methods or ():
            lookup(table, name, kind="calibrator")
        tried = {name: kind() for name, kind in table.items() if self.methods is None or name in self.methods}
        failures = {name: doubt for name, made in tried.items() if (doubt := _doubt(made, data, self.few_samples))}
        self.candidates_ = {name: calibrator for name, calibrator in tried.items() if name not in failures}
        idle = data.logits.double().log_softmax(1)
        gains, dropped = self._race(data, idle, failures)
        alive = [name for name in gains if name not in dropped]
        best = max(alive, key=lambda name: mean_and_error(gains[name][0], data.weights)[0])
        scores = SCORES[self.scoring][1](idle).gather(1, data.labels.unsqueeze(1)).squeeze(1)
        ranked = rank(gains, data.weights, best, mean_and_error(scores, data.weights)[0])
        chosen = choose({name: ranked[name] for name in alive}, gains, data.weights)
        notes = {name: "the gain may be chance" for name, entry in ranked.items() if entry.gain > 0 and not is_clear(entry)}
        notes |= dropped | {chosen: "chosen"}
        used = sorted((entry._replace(note=notes.get(name, "")) for name, entry in ranked.items()), key=lambda e: -e.gain)
        self.ranking_ = (*used, *(Ranked(name, failure=why, note="not used") for name, why in failures.items()))
        self.best_name_, self.advice_ = chosen, advise(self.ranking_, chosen, self.scoring)
        self.best_ = self.candidates_.get(chosen, Identity())
        self.best_.learn(data)
        self.best_.floor_ = self.floor_
        return {}

    def _race(self, data: FitData, idle: Tensor, failures: dict[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Measure gains over ``idle`` log-probabilities, fold by fold, and drop what is clearly worse than the best.

        Returns the gains, and a note for each method dropped; adds to ``failures``.
        """
        _, score = SCORES[self.scoring]
        # NaN where a method was not tried.
        gains = {"none": torch.zeros(3, len(data), dtype=torch.float64)}
        gains |= {name: torch.full_like(gains["none"], torch.nan) for name in self.candidates_}
        dropped: dict[str, str] = {}
        for fold, (kept, rows) in enumerate(data.folds(self.n_folds, seed=self.seed), 1):
            seen, unseen = data.subset(kept), data.subset(rows)
            for name in [name for name in self.candidates_ if name not in dropped]:
                if self._progress:
                    self._progress(name, fold, self.n_folds)
                try:
                    with warnings.catch_warnings():
                        # A fold may well lack a class, but a temperature at its bound must not be used.
                        warnings.simplefilter("ignore", CalibrationWarning)
                        warnings.simplefilter("error", BoundWarning)
                        if fold == 1:
                            self.candidates_[name] = self.candidates_[name].tuned(seen)
                        fitted: Calibrator = clone(self.candidates_[name])
                        fitted.learn(seen)
                    gains[name][:, rows] = gains_of(fitted.log_probs(unseen.logits), idle[rows], unseen.labels, score)
                except (FitError, CalibrationWarning) as failure:
                    failures[name] = str(failure).removeprefix(f"{type(self.candidates_[name]).__name__}.fit: ")
                    del self.candidates_[name], gains[name]
            alive = ["none", *(name for name in self.candidates_ if name not in dropped)]
            best = max(alive, key=lambda name: mean_and_error(gains[name][0], data.weights)[0])
            for name in alive[1:]:
                lost, error = mean_and_error(gains[best][0] - gains[name][0], data.weights)
                if lost > _DROPPED * error and fold < self.n_folds:
                    dropped[name] = f"dropped after {fold} of {self.n_folds} folds"
        return gains, dropped

    def as_layer(self, *, dtype: torch.dtype | None = None) -> nn.Module:
        """Return the best calibrator as a module; ``dtype`` as in `wrap`."""
        check_is_fitted(self)
        return self.best_.as_layer(dtype=dtype)

    def _to_plain(self) -> dict[str, object]:
        ranking = without_nan([entry._asdict() for entry in self.ranking_])
        return {"best": self.best_.to_dict(), "name": self.best_name_, "advice": self.advice_, "ranking": ranking}

    def _from_plain(self, learned: Mapping[str, object]) -> None:
        self.best_ = Calibrator.from_dict(learned["best"])  # type: ignore[arg-type]
        self.best_name_, self.advice_ = str(learned["name"]), str(learned["advice"])
        entries: list[dict[str, object]] = learned["ranking"]  # type: ignore[assignment]
        known = ({key: e[key] for key in Ranked._fields if e.get(key) is not None} for e in entries)
        self.ranking_ = tuple(Ranked(**entry) for entry in known)  # type: ignore[arg-type]


def _nothing_to_learn(data: FitData) -> str:
    """Says that no example shows how sure to be; empty if some do."""
    if bool((data.logits.argmax(1) != data.labels).any()) and bool((data.labels != data.labels[0]).any()):
        return ""
    return "every example is predicted right, or has the same label, so that they cannot show how sure to be. Use other data."


def _doubt(calibrator: Calibrator, data: FitData, fewest: int) -> str:
    """Why a method is not tried; empty if it is. To learn something for each class takes ``fewest`` examples or more."""
    few = data.too_few(fewest, what="a choice of this method") if not calibrator.few_samples else ""
    return next(filter(None, [_nothing_to_learn(data), *calibrator.doubts(data), few]), "")


@dataclass(frozen=True, repr=False)
class Repaired:
    """A repair, and what it did.

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
        """The calibrator that is applied: that which an `AutoCalibrator` chose."""
        return self.calibrator.best_ if isinstance(self.calibrator, AutoCalibrator) else self.calibrator

    @property
    def advice(self) -> str:
        """What was fitted, in a sentence."""
        auto = isinstance(self.calibrator, AutoCalibrator)
        said = self.calibrator.advice_ if auto else f"Fitted: {self.calibrator.label}."
        return said + (
            f" The temperature is {self.fitted.temperature_:.3f}." if self.fitted.learned == ("temperature",) else ""
        )

    def __str__(self) -> str:
        lines = [self.advice]
        for key in (self.before.main_error[0], "nll", "error"):
            old, new, test = self.before[key], self.after[key], self.paired[key]
            before, after = (f"{entry.value:.4f} [{entry.low:.4f}, {entry.high:.4f}]" for entry in (old, new))
            lines.append(f"  {key:<10} {before} -> {after}, p = {test.p_value:.2g}")
        return "\n".join(lines)

    __repr__ = __str__


def repair(
    fit: Predictions,
    predictions: Predictions,
    *,
    method: str | Calibrator = "auto",
    n_bins: int = 15,
    n_resamples: int = 1000,
    seed: int = 0,
    floor: float | None = None,
) -> Repaired:
    """Fit a calibrator on some predictions, apply it to others, and measure those before and after.

    Args:
        fit: Predictions to fit on, which must not be marked as test data.
        predictions: Predictions to repair, of the same model on other examples.
        method: Name from `calibrant.calibrators.CALIBRATORS` ("auto" tries all by cross-validation), or a calibrator.
        n_bins: Bins of the binned metrics.
        n_resamples: Resamples behind the intervals and the paired test.
        seed: Of those resamples.
        floor: Least probability, as in `Calibrator.fit`.

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
    if not (isinstance(fit, Predictions) and isinstance(predictions, Predictions)):
        raise ValueError(f"repair: `fit` and `predictions` must be `Predictions`, got {type(fit)} and {type(predictions)}.")
    check_same_classes(fit, predictions, what="repair: `fit`", of="`predictions`")
    fitted = calibrator_of(method).fit(fit, floor=floor)
    return measure_repair(fitted, predictions, n_bins=n_bins, n_resamples=n_resamples, seed=seed)


def calibrator_of(method: str | Calibrator) -> Calibrator:
    """Return a new calibrator of the name ``method``, or ``method`` itself if it is one."""
    from calibrant.calibrators import CALIBRATORS

    return method if isinstance(method, Calibrator) else CALIBRATORS[method]()


def measure_repair(
    calibrator: Calibrator,
    predictions: Predictions,
    *,
    slice_by: str | Sequence[str] | None = None,
    n_bins: int = 15,
    n_resamples: int = 1000,
    seed: int = 0,
) -> Repaired:
    """Apply a fitted calibrator to ``predictions`` and measure what that changes; ``slice_by`` as in `measure`."""
    repaired = calibrator.apply(predictions)
    before, after = (
        measure(given, slice_by=slice_by, n_bins=n_bins, n_resamples=n_resamples, seed=seed)
        for given in (predictions, repaired)
    )
    paired = paired_test(predictions, repaired, n_bins=n_bins, n_resamples=n_resamples, seed=seed)
    return Repaired(calibrator, repaired, before, after, paired)


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
                # The copy may not know every class.
                part = np.full((len(rows), len(encoder.classes_)), -np.inf)
                part[:, encoder.transform(fitted.classes_)] = log_probs_of(fitted, _safe_indexing(X, rows))
                parts.append((rows, part))
            held_out, logits = map(np.concatenate, zip(*parts, strict=True))
        self.classes_ = encoder.classes_
        for name in {"n_features_in_", "feature_names_in_"} & set(dir(self.estimator_)):
            setattr(self, name, getattr(self.estimator_, name))
        weights = None if sample_weight is None else _safe_indexing(sample_weight, held_out)
        labels = encoder.transform(_safe_indexing(y, held_out))
        # Zeros beside nothing nearly as small are counts, such as votes of a forest: these labels may well come up.
        zeros = np.isneginf(logits)
        floor = 1 / logits.size if zeros.any() and np.exp(logits[~zeros].min()) >= 1 / logits.size else None
        self.calibrator_ = clone(calibrator_of(self.method)).fit(logits, labels, weights=weights, floor=floor)
        return self

    def _fitted(
        self, X: npt.ArrayLike, y: npt.ArrayLike, sample_weight: npt.ArrayLike | None, rows: Positions
    ) -> BaseEstimator:
        known = sample_weight is not None and has_fit_parameter(self.estimator, "sample_weight")
        weights = {"sample_weight": _safe_indexing(sample_weight, rows)} if known else {}
        return clone(self.estimator).fit(_safe_indexing(X, rows), _safe_indexing(y, rows), **weights)

    def predict_proba(self, X: npt.ArrayLike) -> Vector:
        """Return calibrated probabilities ``[N, C]``, classes in the order of ``classes_``."""
        check_is_fitted(self)
        return np.asarray(self.calibrator_.predict_proba(log_probs_of(self.estimator_, X)))

    def predict(self, X: npt.ArrayLike) -> npt.NDArray[np.generic]:
        """Return the label ``[N]`` of most calibrated probability."""
        probs = self.predict_proba(X)
        return np.asarray(self.classes_[probs.argmax(1)])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        return tags


def log_probs_of(model: BaseEstimator, X: npt.ArrayLike) -> Vector:
    """Return log-probabilities ``[N, C]`` of a fitted classifier; of a decision function, its log-softmax."""
    if hasattr(model, "predict_proba"):
        with np.errstate(divide="ignore"):
            scores = np.log(np.asarray(model.predict_proba(X), dtype=np.float64))
    else:
        scores = np.asarray(model.decision_function(X), dtype=np.float64)
    scores = scores if scores.ndim == 2 else np.stack([np.zeros_like(scores), scores], 1)
    return np.asarray(log_softmax(scores, axis=1))
