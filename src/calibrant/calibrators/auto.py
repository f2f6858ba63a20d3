"""Choosing a calibrator by cross-validation on the fit data; doing nothing is one of the choices."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.choice import Ranked, advise, choose, rank
from calibrant.calibrators.fit_data import BoundWarning, CalibrationWarning, FitData, few_examples, missing_classes
from calibrant.calibrators.folds import split_folds
from calibrant.calibrators.identity import Identity
from calibrant.core.checks import FitError, check_count
from calibrant.core.registry import lookup

Score = Callable[[Tensor, Tensor], Tensor]
# Called with the name of the method just tried, how many are done and how many there are.
Progress = Callable[[str, int, int], None]


def nll_scores(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Negative log-likelihood of every example ``[N]``."""
    return -log_probs.gather(1, labels.unsqueeze(1)).squeeze(1)


def brier_scores(log_probs: Tensor, labels: Tensor) -> Tensor:
    """Brier score of every example ``[N]``, summed over classes."""
    probs = log_probs.exp()
    return (probs**2).sum(1) - 2 * probs.gather(1, labels.unsqueeze(1)).squeeze(1) + 1


SCORES: dict[str, Score] = {"nll": nll_scores, "brier": brier_scores}

_LEFT_OUT = "Methods that learn something of every class were left out"


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
        scoring: Literal["nll", "brier"] = "nll",
        n_folds: int = 5,
        seed: int = 0,
    ) -> None:
        lookup(SCORES, scoring, kind="score")
        check_count(n_folds, where="AutoCalibrator", name="n_folds", least=2)
        for name in methods or ():
            lookup(candidates(), name, kind="calibrator")
        self.methods = None if methods is None else tuple(methods)
        self.scoring: Literal["nll", "brier"] = scoring
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

    def doubts(self, data: FitData) -> list[str]:
        """Why the choice may not be trusted: few examples, or classes without any, which leave methods out."""
        where = "AutoCalibrator.fit"
        fewest = self.fewest_samples(data.num_classes)
        few = few_examples(data, fewest=fewest, where=where, what="a choice between methods")
        missing = missing_classes(data)
        left_out = missing and f"{where}: {missing}. {_LEFT_OUT}; use data that has all classes."
        right = (
            f"{where}: every example of the fit data is predicted right, from which no method can learn how sure to be. Use "
            "data on which the model errs too."
        )
        return [doubt for doubt in (few, left_out, None if _has_mistakes(data) else right) if doubt]

    def _doubtful(self, data: FitData) -> list[str]:
        """Names that must not be chosen: their own fit would warn, or the choice of so many parameters would."""
        few = len(data) < self.fewest_samples(data.num_classes)
        return [
            name
            for name, calibrator in self.settled_.items()
            if not _has_mistakes(data)
            or _has_one_class(data)
            or calibrator.doubts(data)
            or (few and calibrator.needs_every_class)
        ]

    def _learn(self, data: FitData) -> None:
        held, failures = self._try_methods(data)
        doubtful = self._doubtful(data)
        self.ranking_ = rank(held, failures, data.weights)
        self._fit_best(held, data, doubtful)
        missing = missing_classes(data)
        self.advice_ = advise(self.ranking_, self.best_name_, self.scoring, doubtful=doubtful)
        self.advice_ += f" {_LEFT_OUT}: {missing}." if missing else ""
        self.num_classes_ = data.num_classes

    def _fit_best(self, held: Mapping[str, Tensor], data: FitData, doubtful: list[str]) -> None:
        """Fit the best method; one whose temperature ends at its bound is doubtful too. Other warnings are for the user."""
        while True:
            self.best_name_ = choose(held, data.weights, ["none", *self.settled_], doubtful=doubtful)
            self.best_ = Identity() if self.best_name_ == "none" else self.settled_[self.best_name_]
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("error", BoundWarning)
                    self.best_._learn(data)
            except BoundWarning:
                doubtful.append(self.best_name_)
            else:
                return

    def _try_methods(self, data: FitData) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Held-out scores ``[N]`` of every method that could be fitted, and why the others could not."""
        table = candidates()
        names = [name for name in table if self.methods is None or name in self.methods]
        folds = split_folds(data, n_folds=self.n_folds, seed=self.seed)
        held = {"none": SCORES[self.scoring](data.logits.double().log_softmax(1), data.labels)}
        failures: dict[str, str] = {}
        self.settled_ = {}
        missing = missing_classes(data)
        for done, name in enumerate(names, 1):
            try:
                if missing and table[name].needs_every_class:
                    raise FitError(f"{table[name].__name__}.fit: needs an example of every class, and {missing}.")
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
            found[held] = SCORES[self.scoring](fitted.log_probs(data.logits[held]), data.labels[held])
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


def _has_mistakes(data: FitData) -> bool:
    return bool((data.logits.argmax(1) != data.labels).any())


def _has_one_class(data: FitData) -> bool:
    return bool((data.labels == data.labels[0]).all())


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
