"""Choosing a calibrator by cross-validation on the fit data; doing nothing is one of the choices."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from calibrant.calibrators.base import Calibrator, Identity, Learned, check_choice
from calibrant.calibrators.fit_data import BoundWarning, CalibrationWarning, FitData
from calibrant.core.checks import FitError, check_count
from calibrant.core.registry import lookup

# Called with the name of the method just tried, how many are done and how many there are.
Progress = Callable[[str, int, int], None]

_NORMAL_95 = NormalDist().inv_cdf(0.975)
_LEFT_OUT = "Methods that learn something of every class were left out"


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
    """How one method did in the cross-validation.

    Attributes:
        name: Its name; "none" is doing nothing.
        score: Mean held-out score per example; lower is better.
        low: Lower end of its 95 % interval.
        high: Upper end.
        gain: Mean score of doing nothing minus its own, on the same examples: positive is an improvement.
        gain_low: Lower end of the 95 % interval of the gain.
        gain_high: Upper end.
        failure: Why it was not used, or None: it failed, or the fit data lack a class.
    """

    name: str
    score: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float
    failure: str | None = None


def mean_interval(values: Tensor, weights: Tensor) -> tuple[float, float, float]:
    """Weighted mean of ``values [N]`` and its 95 % interval, from the weighted variance."""
    total = weights.sum()
    mean = (weights @ values) / total
    n_effective = total**2 / (weights @ weights)
    spread = (weights @ (values - mean) ** 2) / total
    half = _NORMAL_95 * math.sqrt(float(spread / (n_effective - 1).clamp(min=1)))
    return float(mean), float(mean) - half, float(mean) + half


def rank(held: Mapping[str, Tensor], failures: Mapping[str, str], weights: Tensor) -> tuple[Ranked, ...]:
    """Rank methods by their mean held-out score; those that failed come last."""
    entries = [
        Ranked(name, *mean_interval(scores, weights), *mean_interval(held["none"] - scores, weights))
        for name, scores in held.items()
    ]
    nan = math.nan
    lost = [Ranked(name, nan, nan, nan, nan, nan, nan, failure=why) for name, why in failures.items()]
    return (*sorted(entries, key=lambda entry: entry.score), *lost)


def choose(held: Mapping[str, Tensor], weights: Tensor, order: Sequence[str], *, doubtful: Collection[str] = ()) -> str:
    """Return the simplest name that nothing is clearly better than, from the held-out scores ``[N]`` of each and of "none".

    Only what is clearly better than doing nothing can be chosen: a gain whose 95 % interval includes zero may be chance. Of
    these, but for the ``doubtful`` ones, it is the first in ``order``, simplest first, that is worse than the best by at most
    one standard error of their difference.
    """
    able = ["none"]
    for name in order:
        if name in held and name not in ("none", *doubtful):
            gain, low, _ = mean_interval(held["none"] - held[name], weights)
            # An infinite gain has no interval.
            able += [name] if low > 0 or gain == math.inf else []
    best = min(able, key=lambda name: float(weights @ held[name]))
    for name in able:
        worse, low, _ = mean_interval(held[name] - held[best], weights)
        if name == best or worse <= (worse - low) / _NORMAL_95:
            return name
    return best


def advise(ranking: Sequence[Ranked], chosen: str, score: str, *, doubtful: Collection[str] = ()) -> str:
    """Say in a sentence what the ranking means; ``doubtful`` are those that would warn of the examples."""
    what, _ = SCORES[score]
    tried = [item for item in ranking if item.name != "none" and item.failure is None]
    able = [item for item in tried if item.name not in doubtful]
    of_them = " of the methods that these examples suffice for" if ranking[0].name in doubtful else ""
    if not tried:
        return "Doing nothing is all that is left: no method could be used."
    if not able:
        return "Doing nothing is best: these examples are too few, too easy or too odd for every method."
    best = able[0]
    if chosen == "none":
        return (
            f"Doing nothing is best: {f'none{of_them}' if of_them else 'no method'} improves the held-out {what} clearly (the "
            f"nearest, {best.name}, changes it by {-best.gain:+.4f}, 95% interval {-best.gain_high:+.4f} to "
            f"{-best.gain_low:+.4f})."
        )
    entry = next(item for item in ranking if item.name == chosen)
    lowers = f"it lowers the held-out {what} by {entry.gain:.4f} (95% interval {entry.gain_low:.4f} to {entry.gain_high:.4f})"
    if math.isinf(entry.gain):
        lowers = f"as given, held-out labels have probability zero; with it the {what} is {entry.score:.4f} instead of infinite"
    if best.name == chosen:
        return f"{chosen} is best{of_them}: {lowers}."
    return f"{chosen} is enough: {lowers}, and {best.name}, with the least{of_them}, is not clearly better."


def candidates() -> dict[str, type[Calibrator]]:
    """Calibrators to try, simplest first: those of the table that say so."""
    from calibrant.calibrators import CALIBRATORS

    return {name: kind for name, kind in CALIBRATORS.available().items() if kind.in_auto}


class AutoCalibrator(Calibrator):
    """Tries every calibrator on held-out parts of the fit data, ranks them, and fits the best on all of it.

    Every method predicts each example from a fit that has not seen it. The one of least mean score wins, unless a simpler one
    (an earlier one in the table) is worse by no more than one standard error of their difference on the same examples: then
    nothing shows that the complexity pays. Where no gain on doing nothing has a 95 % interval above zero, nothing is done.

    A method that learns something of every class is left out where a class has no example: the held-out examples cannot show
    what it does to that class. One that would warn of too few examples, or whose temperature ends at its bound, is ranked but
    not chosen, and none is where the model makes no mistake, or where all labels are the same.

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
        settled_: Name → calibrator, with the hyper-parameters that were chosen for it, of every method that could be tried;
            only the best is fitted. Not kept in files.

    Example:
        >>> from calibrant.data.synthetic import synthetic_predictions
        >>> fit_data, _ = synthetic_predictions(4000, 3, temperature=2.0, split="val")
        >>> auto = AutoCalibrator(methods=("temperature", "vector")).fit(fit_data)
        >>> auto.best_name_, round(auto.best_.temperature_)
        ('temperature', 2)
    """

    label = "the best by cross-validation"
    rules = {"scoring": check_choice(*SCORES), "n_folds": partial(check_count, least=2)}
    needs_every_class = False
    in_auto = False
    few_samples = 100

    ranking_: tuple[Ranked, ...]
    best_: Calibrator
    best_name_: str
    advice_: str
    settled_: Mapping[str, Calibrator]
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

    def check_params(self) -> None:
        """Raise ``ValueError`` if a hyper-parameter cannot be used."""
        super().check_params()
        self._candidates()

    def on_progress(self, progress: Progress | None) -> AutoCalibrator:
        """Have ``progress(name, done, total)`` called after each method is tried; return this calibrator."""
        self._progress = progress
        return self

    @property
    def n_methods(self) -> int:
        """How many methods a fit tries."""
        return len(self._candidates())

    def _candidates(self) -> dict[str, type[Calibrator]]:
        table = candidates()
        for name in self.methods or ():
            lookup(table, name, kind="calibrator")
        return {name: kind for name, kind in table.items() if self.methods is None or name in self.methods}

    def _fit_data(self, *args: Any, **given: Any) -> FitData:
        data = super()._fit_data(*args, **given)
        if len(data) < self.n_folds:
            raise FitError(f"AutoCalibrator.fit: needs at least {self.n_folds} examples for its folds, got {len(data)}.")
        return data

    def doubts(self, data: FitData) -> list[str]:
        """Why the choice may not be trusted: few examples, classes without any, or no mistake to learn from."""
        few = data.too_few(self.few_samples, what="a choice between methods")
        lacking = data.missing_classes and f"{data.missing_classes}. {_LEFT_OUT}; use data that has all classes."
        right = "every example of the fit data is predicted right, from which no method can learn how sure to be. "
        right += "Use data on which the model errs too."
        return [doubt for doubt in (few, lacking, "" if _has_mistakes(data) else right) if doubt]

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        held, failures = self._try_methods(data)
        doubtful = [name for name, calibrator in self.settled_.items() if self._is_doubtful(calibrator, data)]
        self.ranking_ = rank(held, failures, data.weights)
        while True:
            self.best_name_ = choose(held, data.weights, [*self.settled_], doubtful=doubtful)
            self.best_ = Identity() if self.best_name_ == "none" else self.settled_[self.best_name_]
            try:
                with warnings.catch_warnings():
                    # A temperature at its bound is doubtful too. Other warnings of the best method are for the user.
                    warnings.simplefilter("error", BoundWarning)
                    self.best_._learn(data)
                break
            except BoundWarning:
                doubtful.append(self.best_name_)
        self.advice_ = advise(self.ranking_, self.best_name_, self.scoring, doubtful=doubtful)
        self.advice_ += f" {_LEFT_OUT}: {data.missing_classes}." if data.missing_classes else ""
        return {}

    def _is_doubtful(self, calibrator: Calibrator, data: FitData) -> bool:
        """Whether a method must not be chosen: its own fit would warn, or the choice of so many parameters would."""
        few = len(data) < self.few_samples and calibrator.needs_every_class
        one_class = bool((data.labels == data.labels[0]).all())
        return few or one_class or not _has_mistakes(data) or bool(calibrator.doubts(data))

    def _try_methods(self, data: FitData) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Held-out scores ``[N]`` of every method that could be fitted, and why the others could not."""
        table = self._candidates()
        folds = data.folds(self.n_folds, seed=self.seed)
        held = {"none": self._score(Identity(), data, slice(None))}
        failures: dict[str, str] = {}
        self.settled_ = {}
        for done, (name, kind) in enumerate(table.items(), 1):
            try:
                if data.missing_classes and kind.needs_every_class:
                    raise FitError(f"{kind.__name__}.fit: needs an example of every class, and {data.missing_classes}.")
                with warnings.catch_warnings():
                    # A fold is smaller than the data: the warnings that count are those of the last fit.
                    warnings.simplefilter("ignore", CalibrationWarning)
                    calibrator = kind().settle(data)
                    scores = torch.empty(len(data), dtype=torch.float64)
                    for kept, rows in folds:
                        fitted = clone(calibrator)
                        fitted._learn(data.subset(kept))
                        scores[rows] = self._score(fitted, data, rows)
                held[name], self.settled_[name] = scores, calibrator
            except FitError as error:
                failures[name] = str(error)
            if self._progress is not None:
                self._progress(name, done, len(table))
        return held, failures

    def _score(self, calibrator: Calibrator, data: FitData, rows: Tensor | slice) -> Tensor:
        _, score = SCORES[self.scoring]
        return score(calibrator.log_probs(data.logits[rows]), data.labels[rows])

    def log_probs(self, logits: Tensor) -> Tensor:
        """Apply the best calibrator; no guard rails."""
        return self.best_.log_probs(logits)

    def as_layer(self, *, dtype: torch.dtype | None = None) -> nn.Module:
        """Return the best calibrator as a module; ``dtype`` as in `wrap`."""
        check_is_fitted(self)
        return self.best_.as_layer(dtype=dtype)

    def _to_plain(self) -> dict[str, object]:
        ranking = [{key: _plain(value) for key, value in entry._asdict().items()} for entry in self.ranking_]
        return {"best": self.best_.to_dict(), "name": self.best_name_, "advice": self.advice_, "ranking": ranking}

    def _from_plain(self, learned: Mapping[str, object]) -> None:
        self.best_ = Calibrator.from_dict(learned["best"])  # type: ignore[arg-type]
        self.best_name_, self.advice_ = str(learned["name"]), str(learned["advice"])
        entries: list[dict[str, object]] = learned["ranking"]  # type: ignore[assignment]
        numbers = Ranked._fields[1:7]
        self.ranking_ = tuple(
            Ranked(**{**entry, **{key: math.nan if entry[key] is None else float(str(entry[key])) for key in numbers}})  # type: ignore[arg-type]
            for entry in entries
        )


def _has_mistakes(data: FitData) -> bool:
    return bool((data.logits.argmax(1) != data.labels).any())


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value
