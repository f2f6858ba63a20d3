"""Choosing a calibrator by cross-validation on the fit data; doing nothing is one of the choices."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import CalibrationWarning, FitData, warn_about
from calibrant.calibrators.folds import split_folds
from calibrant.calibrators.identity import Identity
from calibrant.core.checks import FitError, check_count
from calibrant.core.lookup import lookup

Score = Callable[[Tensor, Tensor], Tensor]
# Called with the name of the method just tried, how many are done and how many there are.
Progress = Callable[[str, int, int], None]
# For 95 % intervals of a mean over many examples.
_NORMAL_95 = 1.959964


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
        failure: Why it could not be fitted, or None.
    """

    name: str
    score: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float
    failure: str | None = None


def nll_scores(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood of every example ``[N]``."""
    return -log_probs.gather(1, labels.unsqueeze(1)).squeeze(1)


def brier_scores(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Brier score of every example ``[N]``, summed over classes."""
    probs = log_probs.exp()
    return (probs**2).sum(1) - 2 * probs.gather(1, labels.unsqueeze(1)).squeeze(1) + 1


SCORES: dict[str, Score] = {"nll": nll_scores, "brier": brier_scores}


def mean_interval(values: Tensor, weights: Tensor) -> tuple[float, float, float]:
    """Weighted mean of ``values [N]`` and its 95 % interval, from the weighted variance.

    Example:
        >>> mean_interval(torch.tensor([1.0, 3.0]).double(), torch.ones(2).double())
        (2.0, 0.04003..., 3.95996...)
    """
    total = weights.sum()
    mean = (weights @ values) / total
    n_effective = total**2 / (weights @ weights)
    spread = (weights @ (values - mean) ** 2) / total
    half = _NORMAL_95 * math.sqrt(float(spread / (n_effective - 1).clamp(min=1)))
    return float(mean), float(mean) - half, float(mean) + half


class AutoCalibrator(Calibrator):
    """Tries every calibrator on held-out parts of the fit data, ranks them, and fits the best on all of it.

    Every method predicts each example from a fit that has not seen it. The one of least mean score wins, unless a simpler one
    (an earlier one in the table; doing nothing is the simplest) is worse by no more than one standard error of their difference
    on the same examples: then nothing shows that the complexity pays.

    Args:
        methods: Names from `CALIBRATORS`; all that take logits ``[N, C]`` by default.
        score: Proper score to rank by: "nll" or "brier".
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

    needs_every_class: ClassVar[bool] = False

    ranking_: tuple[Ranked, ...]
    best_: Calibrator
    best_name_: str
    advice_: str
    settled_: Mapping[str, Calibrator]

    def __init__(
        self,
        *,
        methods: Sequence[str] | None = None,
        score: Literal["nll", "brier"] = "nll",
        n_folds: int = 5,
        seed: int = 0,
    ) -> None:
        lookup(SCORES, score, kind="score")
        check_count(n_folds, where="AutoCalibrator", name="n_folds", least=2)
        for name in methods or ():
            lookup(candidates(), name, kind="calibrator")
        self.methods = None if methods is None else tuple(methods)
        self.score: Literal["nll", "brier"] = score
        self.n_folds = n_folds
        self.seed = seed
        self._progress: Progress | None = None

    def on_progress(self, progress: Progress | None) -> AutoCalibrator:
        """Have ``progress(name, done, total)`` called after each method is tried; return this calibrator."""
        self._progress = progress
        return self

    @property
    def n_methods(self) -> int:
        """How many methods a fit tries."""
        return len(candidates() if self.methods is None else set(self.methods))

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return 100

    def _check_enough(self, data: FitData) -> None:
        if len(data) < self.n_folds:
            raise FitError(f"AutoCalibrator.fit: needs at least {self.n_folds} examples for its folds, got {len(data)}.")

    def _learn(self, data: FitData) -> None:
        held, failures = self._try_methods(data)
        self.ranking_ = rank(held, failures, data.weights)
        self.best_name_ = choose(held, data.weights, ["none", *self.settled_])
        self.best_ = Identity() if self.best_name_ == "none" else self.settled_[self.best_name_]
        warn_about(
            data,
            fewest=self.best_.fewest_samples(data.num_classes),
            needs_every_class=self.best_.needs_every_class,
            where=f"{type(self.best_).__name__}.fit",
        )
        self.best_._learn(data)
        self.advice_ = advise(self.ranking_, self.best_name_, self.score)
        self.num_classes_ = data.num_classes

    def _try_methods(self, data: FitData) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Held-out scores ``[N]`` of every method that could be fitted, and why the others could not."""
        table = candidates()
        names = [name for name in table if self.methods is None or name in self.methods]
        folds = split_folds(data, n_folds=self.n_folds, seed=self.seed)
        held = {"none": SCORES[self.score](data.logits.double().log_softmax(1), data.labels)}
        failures: dict[str, str] = {}
        self.settled_ = {}
        for done, name in enumerate(names, 1):
            try:
                with warnings.catch_warnings():
                    # A fold is smaller than the data: the warnings that count are those of the last fit.
                    warnings.simplefilter("ignore", CalibrationWarning)
                    calibrator = table[name]().settle(data)
                    held[name] = self._held_out(calibrator, data, folds)
                    self.settled_[name] = calibrator
            except FitError as error:
                failures[name] = str(error)
            if self._progress is not None:
                self._progress(name, done, len(names))
        return held, failures

    def _held_out(self, calibrator: Calibrator, data: FitData, folds: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Score of every example ``[N]`` under a fit that has not seen it."""
        found = torch.empty(len(data), dtype=torch.float64)
        for kept, held in folds:
            fitted = type(calibrator)(**calibrator.get_params())
            fitted._learn(data.subset(kept))
            found[held] = SCORES[self.score](fitted.log_probs(data.logits[held]), data.labels[held])
        return found

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        self._learn(data)
        return {}

    def log_probs(self, logits: Tensor) -> Tensor:
        """Apply the best calibrator; no guard rails."""
        return self.best_.log_probs(logits)

    def as_layer(self, *, dtype: torch.dtype | None = None) -> nn.Module:
        """Return the best calibrator as a module; ``dtype`` as in `wrap`."""
        self._check_fitted("AutoCalibrator.as_layer")
        return self.best_.as_layer(dtype=dtype)

    def to_dict(self) -> dict[str, object]:
        """Return hyper-parameters, the ranking and the best calibrator as plain data."""
        data = super().to_dict()
        ranking = [{key: _plain(value) for key, value in entry._asdict().items()} for entry in self.ranking_]
        data["learned"] = {"best": self.best_.to_dict(), "name": self.best_name_, "advice": self.advice_, "ranking": ranking}
        return data

    def _restore(self, learned: Mapping[str, object], num_classes: int) -> None:
        best, ranking = learned["best"], learned["ranking"]
        assert isinstance(best, Mapping)
        assert isinstance(ranking, list)
        self.best_ = Calibrator.from_dict(best)
        self.best_name_, self.advice_ = str(learned["name"]), str(learned["advice"])
        self.ranking_ = tuple(_ranked(entry) for entry in ranking)
        self.num_classes_ = num_classes


def _ranked(entry: Mapping[str, object]) -> Ranked:
    score, low, high, gain, gain_low, gain_high = (
        math.nan if entry[key] is None else float(str(entry[key])) for key in Ranked._fields[1:7]
    )
    failure = entry["failure"]
    return Ranked(str(entry["name"]), score, low, high, gain, gain_low, gain_high, None if failure is None else str(failure))


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def candidates() -> dict[str, type[Calibrator]]:
    """Calibrators that take logits ``[N, C]``, simplest first."""
    from calibrant.calibrators import CALIBRATORS

    return {name: kind for name, kind in CALIBRATORS.items() if name != "mc_temperature"}


def rank(held: Mapping[str, Tensor], failures: Mapping[str, str], weights: Tensor) -> tuple[Ranked, ...]:
    """Rank methods by their mean held-out score; those that failed come last."""
    entries = [
        Ranked(name, *mean_interval(scores, weights), *mean_interval(held["none"] - scores, weights))
        for name, scores in held.items()
    ]
    nan = math.nan
    lost = [Ranked(name, nan, nan, nan, nan, nan, nan, why) for name, why in failures.items()]
    return (*sorted(entries, key=lambda entry: entry.score), *lost)


def choose(held: Mapping[str, Tensor], weights: Tensor, order: Sequence[str]) -> str:
    """Return the first name in ``order`` that is worse than the best by at most one standard error of their difference."""
    best = min(held, key=lambda name: float(weights @ held[name]))
    for name in order:
        if name in held:
            worse, low, _ = mean_interval(held[name] - held[best], weights)
            if name == best or worse <= (worse - low) / _NORMAL_95:
                return name
    return best


def advise(ranking: Sequence[Ranked], chosen: str, score: str) -> str:
    """Say in a sentence what the ranking means."""
    entry = next(item for item in ranking if item.name == chosen)
    what = {"nll": "negative log-likelihood", "brier": "Brier score"}[score]
    if chosen == "none":
        rival = next((item for item in ranking if item.name != "none" and item.failure is None), None)
        if rival is None:
            return "Doing nothing is all that is left: no method could be fitted."
        return (
            f"Doing nothing is best: no method improves the held-out {what} clearly (the nearest, {rival.name}, changes it by "
            f"{-rival.gain:+.4f})."
        )
    interval = f"95% interval {entry.gain_low:.4f} to {entry.gain_high:.4f}"
    lead = ranking[0]
    if lead.name == chosen:
        return f"{chosen} is best: it lowers the held-out {what} by {entry.gain:.4f} ({interval})."
    return (
        f"{chosen} is enough: it lowers the held-out {what} by {entry.gain:.4f} ({interval}), and {lead.name}, with the least, "
        "is not clearly better."
    )
