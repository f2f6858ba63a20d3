"""Choosing a calibrator by cross-validation, where doing nothing is one of the choices; and `repair`, all in one call."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Literal, NamedTuple

import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from calibrant.calibrators.base import Calibrator, Identity, Learned
from calibrant.calibrators.fit_data import BoundWarning, CalibrationWarning, FitData, check_same_classes
from calibrant.core.checks import FitError, check_choice, check_count
from calibrant.core.records import Predictions
from calibrant.core.registry import lookup
from calibrant.core.scores import Paired, Scores, without_nan
from calibrant.metrics.measure import measure
from calibrant.metrics.paired import paired_test

# Called with the name of the method just tried, how many are done and how many there are.
Progress = Callable[[str, int, int], None]

_NORMAL_95 = NormalDist().inv_cdf(0.975)


def nll_scores(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood of every example ``[N]``."""
    return -log_probs.gather(1, labels.unsqueeze(1)).squeeze(1)


def brier_scores(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Brier score of every example ``[N]``, summed over classes."""
    probs = log_probs.exp()
    return (probs**2).sum(1) - 2 * probs.gather(1, labels.unsqueeze(1)).squeeze(1) + 1


# Name → what it is called in print, and the score of every example.
SCORES: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "nll": ("negative log-likelihood", nll_scores),
    "brier": ("Brier score", brier_scores),
}


class Ranked(NamedTuple):
    """How one method did in the cross-validation; the numbers are NaN if it was not used.

    Attributes:
        name: Its name; "none" is doing nothing.
        score: Mean held-out score per example; lower is better.
        low: Lower end of its 95 % interval.
        high: Upper end.
        gain: Mean score of doing nothing minus its own, on the same examples: positive is an improvement.
        gain_low: Lower end of the 95 % interval of the gain.
        gain_high: Upper end.
        failure: Why it was not used, or None: its fit failed, or cannot be trusted on these data.
    """

    name: str
    score: float = math.nan
    low: float = math.nan
    high: float = math.nan
    gain: float = math.nan
    gain_low: float = math.nan
    gain_high: float = math.nan
    failure: str | None = None


def mean_interval(values: Tensor, weights: Tensor) -> tuple[float, float, float]:
    """Weighted mean of ``values [N]`` and its 95 % interval, from the weighted variance."""
    total = weights.sum()
    mean = (weights @ values) / total
    n_effective = total**2 / (weights @ weights)
    spread = (weights @ (values - mean) ** 2) / total
    half = _NORMAL_95 * math.sqrt(float(spread / (n_effective - 1).clamp(min=1)))
    return float(mean), float(mean) - half, float(mean) + half


def choose(held: Mapping[str, Tensor], weights: Tensor) -> str:
    """Return the simplest name that nothing is clearly better than, from the held-out scores ``[N]`` of each.

    Names are in order, "none" and then the simplest first. Only what is clearly better than doing nothing can be chosen: a gain
    whose 95 % interval includes zero may be chance. Of these it is the first that no simpler one beats and that is worse than
    the best by at most one standard error of their difference. (A method that varies much from example to example is not
    clearly worse than the best either, though a simpler and better one may be.)
    """
    able = ["none"]
    for name, scores in held.items():
        gain, low, _ = mean_interval(held["none"] - scores, weights)
        # An infinite gain has no interval.
        able += [name] if low > 0 or gain == math.inf else []
    score = {name: float(weights @ held[name]) for name in able}
    best = min(able, key=score.__getitem__)

    def as_good(name: str) -> bool:
        worse, low, _ = mean_interval(held[name] - held[best], weights)
        beaten = any(score[simpler] < score[name] for simpler in able[: able.index(name)])
        return name == best or (not beaten and worse <= (worse - low) / _NORMAL_95)

    return next(filter(as_good, able))


def advise(ranking: Sequence[Ranked], chosen: str, score: str) -> str:
    """Say in a sentence what the ranking means."""
    what, _ = SCORES[score]
    used = {entry.name: entry for entry in ranking if entry.failure is None and entry.name != "none"}
    if not used:
        return "Doing nothing is all that is left: no method could be used on these examples."
    best = next(iter(used.values()))
    if chosen == "none":
        return (
            f"Doing nothing is best: no method improves the held-out {what} clearly (the nearest, {best.name}, changes it by "
            f"{-best.gain:+.4f}, 95% interval {-best.gain_high:+.4f} to {-best.gain_low:+.4f})."
        )
    entry = used[chosen]
    lowers = f"it lowers the held-out {what} by {entry.gain:.4f} (95% interval {entry.gain_low:.4f} to {entry.gain_high:.4f})"
    if math.isinf(entry.gain):
        lowers = f"as given, held-out labels have probability zero; with it the {what} is {entry.score:.4f} instead of infinite"
    if best is entry:
        return f"{chosen} is best: {lowers}."
    return f"{chosen} is enough: {lowers}, and {best.name}, with the least, is not clearly better."


def candidates() -> dict[str, type[Calibrator]]:
    """Calibrators to try, simplest first: those of the table that say so."""
    from calibrant.calibrators import CALIBRATORS

    return {name: kind for name, kind in CALIBRATORS.available().items() if kind.in_auto}


class AutoCalibrator(Calibrator):
    """Tries every calibrator on held-out parts of the fit data, ranks them, and fits the best on all of it.

    Every method predicts each example from a fit that has not seen it. The one of least mean score wins, unless a simpler one
    (an earlier one in the table) is worse by no more than one standard error of their difference on the same examples: then
    nothing shows that the complexity pays. Where no gain on doing nothing has a 95 % interval above zero, nothing is done.

    A method that cannot be trusted on the data is not used, and the ranking says why: it would warn of too few examples, it
    learns something of every class and a class has no example (or there are fewer than 100 in all), or its temperature ends at
    a bound. None is used where the model makes no mistake, or all labels are the same.

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
        settled_: Name → calibrator of every method that was used, with the hyper-parameters that were chosen for it; only the
            best is fitted. Not kept in files.

    Example:
        >>> from calibrant.data.synthetic import synthetic_predictions
        >>> fit_data, _ = synthetic_predictions(4000, 3, temperature=2.0, split="val")
        >>> auto = AutoCalibrator(methods=("temperature", "vector")).fit(fit_data)
        >>> auto.best_name_, round(auto.best_.temperature_)
        ('temperature', 2)
    """

    label = "the best by cross-validation"
    rules = {"scoring": partial(check_choice, choices=(*SCORES,)), "n_folds": partial(check_count, least=2)}
    needs_every_class = False
    in_auto = False
    few_samples = 100

    _progress: Progress | None = None

    def __init__(
        self,
        *,
        methods: Sequence[str] | None = None,
        scoring: Literal["nll", "brier"] = "nll",
        n_folds: int = 5,
        seed: int = 0,
    ) -> None:
        self.methods = methods
        self.scoring = scoring
        self.n_folds = n_folds
        self.seed = seed

    def on_progress(self, progress: Progress | None) -> AutoCalibrator:
        """Have ``progress(name, done, total)`` called after each method is tried; return this calibrator."""
        self._progress = progress
        return self

    def methods_to_try(self) -> dict[str, type[Calibrator]]:
        """Name → calibrator of what a fit tries, simplest first."""
        table = candidates()
        for name in self.methods or ():
            lookup(table, name, kind="calibrator")
        return {name: kind for name, kind in table.items() if self.methods is None or name in self.methods}

    def doubts(self, data: FitData) -> list[str]:
        """Why the choice may not be trusted: few examples, classes without any, or nothing to learn from."""
        if len(data) < self.n_folds:
            raise FitError(f"AutoCalibrator.fit: needs at least {self.n_folds} examples for its folds, got {len(data)}.")
        found = [data.too_few(self.few_samples, what="a choice between methods"), _nothing_to_learn(data)]
        if data.missing_classes:
            found.append(f"{data.missing_classes}. Methods that learn something of every class were left out.")
        return [doubt for doubt in found if doubt]

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        table = self.methods_to_try()
        self.settled_: dict[str, Calibrator] = {}
        held = {"none": self._score(Identity(), data, slice(None))}
        failures = []
        for done, (name, kind) in enumerate(table.items(), 1):
            try:
                self.settled_[name], held[name] = self._try(kind(), data)
            except (FitError, CalibrationWarning) as error:
                failures.append(Ranked(name, failure=str(error)))
            if self._progress is not None:
                self._progress(name, done, len(table))
        ranked = [
            Ranked(name, *mean_interval(scores, data.weights), *mean_interval(held["none"] - scores, data.weights))
            for name, scores in held.items()
        ]
        self.ranking_ = (*sorted(ranked, key=lambda entry: entry.score), *failures)
        self.best_name_ = choose(held, data.weights)
        self.best_ = self.settled_.get(self.best_name_, Identity())
        self.best_.learn(data)
        self.advice_ = advise(self.ranking_, self.best_name_, self.scoring)
        return {}

    def _try(self, calibrator: Calibrator, data: FitData) -> tuple[Calibrator, Tensor]:
        """Settle hyper-parameters, and score every example ``[N]`` by a fit that has not seen it; raise if that is no use."""
        doubts = [_nothing_to_learn(data), *calibrator.doubts(data)]
        if calibrator.needs_every_class:
            doubts.append(data.too_few(self.few_samples, what="a choice of this method"))
        if any(doubts):
            raise FitError(f"{type(calibrator).__name__}.fit: {next(filter(None, doubts))}")
        scores = torch.empty(len(data), dtype=torch.float64)
        with warnings.catch_warnings():
            # What was left out in a fold is no news, but a temperature at its bound is not to be used.
            warnings.simplefilter("ignore", CalibrationWarning)
            warnings.simplefilter("error", BoundWarning)
            settled = calibrator.settle(data)
            for kept, rows in data.folds(self.n_folds, seed=self.seed):
                fitted = clone(settled)
                fitted.learn(data.subset(kept))
                scores[rows] = self._score(fitted, data, rows)
        return settled, scores

    def _score(self, calibrator: Calibrator, data: FitData, rows: Tensor | slice) -> Tensor:
        _, score = SCORES[self.scoring]
        return score(calibrator.log_probs(data.logits[rows]), data.labels[rows])

    def log_probs(self, logits: Tensor) -> Tensor:
        """Apply the best calibrator; no guard rails."""
        found: Tensor = self.best_.log_probs(logits)
        return found

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
        known = ({key: value for key, value in entry.items() if value is not None} for entry in entries)
        self.ranking_ = tuple(Ranked(**entry) for entry in known)  # type: ignore[arg-type]


def _nothing_to_learn(data: FitData) -> str:
    """Says that the examples cannot show how sure to be; empty if they can."""
    if bool((data.logits.argmax(1) != data.labels).any()) and bool((data.labels != data.labels[0]).any()):
        return ""
    return "every example is predicted right, or has the same label, so that they cannot show how sure to be. Use other data."


@dataclass(frozen=True, repr=False)
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

    __repr__ = __str__


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
    check_same_classes(fit, predictions, what="repair: `fit`", of="`predictions`")
    return measure_repair(calibrator_of(method).fit(fit), predictions, n_bins=n_bins, n_resamples=n_resamples, seed=seed)


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
