"""What every calibrator shares: how it is fitted, applied, wrapped and saved, and maths in log space."""

from __future__ import annotations

import inspect
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeAlias, overload

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from calibrant.core.checks import ArrayLike, FitError, check_before_softmax, check_positive, to_tensor
from calibrant.core.collect import find_logits
from calibrant.core.records import Predictions, as_predictions, both_classes, refuse_test_split

__all__ = ["BoundWarning", "CalibrationWarning", "Calibrator", "FitData", "Identity"]

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"
Learned: TypeAlias = "float | Tensor"

# Logits of the fit data beyond which a fit takes more than one thread.
_MOST_FOR_ONE_THREAD = 500_000
Vector: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
Positions: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"
# A logit of -inf is probability zero. Where a finite number is needed it counts as the logarithm of float32's smallest
# number, 2^-149, below the top class, or as the smallest finite logit of its row if that is lower.
_LOG_SMALLEST = -103.2789
# Log-probabilities this far apart differ in float32 too, whose numbers near ln 1/C lie 1e-6 apart for C = 100,000 classes.
_MARGIN = 2e-6
# Entries of [N, C] widened to float64 at once. They stay in the cache: a pass over 50,000 x 1,000 takes 0.18 s, and 0.43 s with
# four times as many.
_CACHED_ENTRIES = 256_000
# Stands for a logit of -inf where 0 * inf must not come up; at any temperature its exponential is zero.
ABSENT = -1e30
# Columns that identify a row: no two rows agree in so many numbers by chance.
_HASHED_COLUMNS = 16


class CalibrationWarning(UserWarning):
    """The calibrator works, but its data may not support the result."""


class BoundWarning(CalibrationWarning):
    """A temperature ended at its bound: the best one lies beyond, or there is none."""


def warn(message: str, category: type[CalibrationWarning] = CalibrationWarning) -> None:
    """Warn, naming the line that called a method of a calibrator."""
    outside = (k for k, frame in enumerate(inspect.stack(0), 1) if Path(frame.filename).parent != Path(__file__).parent)
    warnings.warn(message, category, stacklevel=next(outside, 1))


@dataclass(frozen=True)
class FitData:
    """Checked input of a fit, on the CPU.

    Attributes:
        logits: Scores ``[N, C]``, or samples of them ``[S, N, C]``, in the precision in which they came, but at least float32.
        labels: Class indices ``[N]``.
        weights: Weights ``[N]``, float64, positive, with mean one.
    """

    logits: Tensor
    labels: Tensor
    weights: Tensor

    @classmethod
    def of(cls, *records: Predictions) -> FitData:
        """Take over a record, or several that sample the same examples."""
        records = tuple(record.counted for record in records)
        labels, weights = records[0].labels, records[0].weights
        scores = records[0].logits if len(records) == 1 else torch.stack([record.logits for record in records])
        scores = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
        return cls(
            scores, labels, torch.ones(len(labels), dtype=torch.float64) if weights is None else weights / weights.mean()
        )

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return int(self.logits.shape[-1])

    @property
    def missing_classes(self) -> str:
        """Says which classes have no example; empty if all have some."""
        missing = (torch.bincount(self.labels, minlength=self.num_classes) == 0).nonzero().flatten().tolist()
        some = ", ".join(map(str, missing[:5]))
        return f"the fit data have no example of {len(missing)} of {self.num_classes} classes ({some})" if missing else ""

    def too_few(self, fewest: int, *, what: str) -> str:
        """Says that ``what`` needs more examples; empty if there are enough."""
        few = f"{len(self)} examples are few for {what}: {fewest} or more are advised with {self.num_classes} classes."
        return few if len(self) < fewest else ""

    def subset(self, rows: Tensor) -> FitData:
        """Return the examples at the positions ``rows``, their weights scaled to mean one again."""
        weights = self.weights[rows]
        return FitData(self.logits[..., rows, :], self.labels[rows], weights / weights.mean())

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Logits in float64, labels and weights, so many rows at a time that they stay in the cache."""
        rows = max(_CACHED_ENTRIES * len(self) // self.logits.numel(), 1)
        parts = (self.logits.split(rows, -2), self.labels.split(rows), self.weights.split(rows))
        for logits, labels, weights in zip(*parts, strict=True):
            yield logits.double(), labels, weights

    def total(self, term: Callable[[Tensor, Tensor], Tensor]) -> float:
        """Weighted sum over the examples of ``term(logits, labels)``, a value for each row, in float64."""
        return sum(float(weights @ term(logits, labels)) for logits, labels, weights in self.chunks())

    def impossible(self) -> int:
        """How many labels have probability zero, in every sample."""
        index = self.labels.unsqueeze(1).expand(*self.logits.shape[:-1], 1)
        return int(torch.isneginf(self.logits.gather(-1, index)).reshape(-1, len(self)).all(0).sum())

    def folds(self, n_folds: int, *, seed: int) -> list[tuple[Tensor, Tensor]]:
        """Return, for each fold, the positions to fit on and those held out; classes of two examples or more are in each fit.

        Folds are random. To share out every class evenly would give the held-out part the class frequencies of the fitted part
        and so reward learning their chance fluctuation, which does not help on new data.
        """
        n, n_folds = len(self), min(n_folds, len(self))
        fold = torch.empty(n, dtype=torch.long)
        fold[torch.randperm(n, generator=torch.Generator().manual_seed(seed))] = torch.arange(n) % n_folds
        count = torch.zeros(self.num_classes, n_folds, dtype=torch.long)
        count.index_put_((self.labels, fold), torch.ones_like(fold), accumulate=True)
        # If all examples of a class are in one fold, the fit that is rated on them does not know it: one of them moves on.
        for label in ((count.amax(1) == count.sum(1)) & (count.sum(1) > 1)).nonzero().flatten():
            first = (self.labels == label).nonzero()[0]
            fold[first] = (fold[first] + 1) % n_folds
        return [((fold != k).nonzero().flatten(), (fold == k).nonzero().flatten()) for k in range(n_folds)]


def option(default: Any, rule: Callable[..., None], **limits: object) -> Any:
    """A hyper-parameter with its default and its rule ``(value, *, where, name, **limits)``, which raises ``ValueError``."""
    return field(default=default, metadata={"rule": partial(rule, **limits)})


class Calibrator(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Repairs the probabilities of a trained classifier; learns from logits and labels the classifier was not trained on.

    To scikit-learn it is a classifier whose features are logits. A subclass names the pure function that applies it, ``class
    PlattScaling(Calibrator, formula=platt_log_probs)``, and says how its arguments are learned (``_fit``). The constructor
    takes hyper-parameters only, which are checked when they are used; what is learned ends in an underscore.

    Attributes:
        label: Name in tables and reports.
        formula: Function ``(logits [..., C], **learned) -> log-probabilities [..., C]``.
        learned: Names of what ``formula`` takes besides the logits, without the underscore.
        also_kept: Names of further attributes saved in files.
        layer_dtype: Precision of `wrap`. Tables of probabilities need float64, in which 1 - 1e-9 is not yet 1.
        preserves_accuracy: Whether the top class of an example never changes.
        takes_samples: Whether logits may be samples ``[S, N, C]``.
        in_auto: Whether `AutoCalibrator` tries it.
        few_samples_per_class: A fit warns if a class has no example, or if there are fewer than this for each class.
        few_samples: Of a method that learns nothing for each class: a fit on fewer examples in all warns. Else 0.
    """

    label: ClassVar[str] = "calibration"
    formula: ClassVar[Callable[..., Tensor]]
    learned: ClassVar[tuple[str, ...]] = ()
    also_kept: ClassVar[tuple[str, ...]] = ()
    layer_dtype: ClassVar[torch.dtype] = torch.float32
    preserves_accuracy: ClassVar[bool] = False
    takes_samples: ClassVar[bool] = False
    in_auto: ClassVar[bool] = True
    few_samples_per_class: ClassVar[int] = 10
    few_samples: ClassVar[int] = 0

    num_classes_: int
    floor_: float = 0.0
    _seen: tuple[int, int] | None = None

    def __init_subclass__(cls, formula: Callable[..., Tensor] | None = None) -> None:
        super().__init_subclass__()
        if formula is not None:
            cls.formula = staticmethod(formula)
            cls.learned = tuple(inspect.signature(formula).parameters)[1:]

    def fit(
        self,
        logits: ArrayLike | Predictions | None = None,
        labels: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
        ignore_index: int | None = None,
        floor: float | None = None,
        X: ArrayLike | None = None,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Learn the repair from held-out data.

        Args:
            logits: Scores ``[N, C]`` (or dense ``[N, C, ...]``) whose softmax is the probability; or a `Predictions`, which
                may be made from probabilities: ``fit(Predictions(probs=probs, labels=labels))``. Of two classes also the
                log-odds ``[N]`` or ``[N, 1]`` of class 1.
            labels: Class indices ``[N]`` in ``[0, C)``, whole numbers of any type; not with a `Predictions`.
            weights: Sample weights ``[N]``, non-negative; those of the `Predictions` by default.
            ignore_index: Label that marks examples to leave out; not with a `Predictions`, which has left them out.
            floor: Probability, below 1 / C, to which smaller ones are raised, in the fit and in use. By default there is none,
                unless a label has probability zero, which no temperature makes possible: then it is 1 / (N C), with a warning.
            X: Scikit-learn's name for ``logits``.
            y: Its name for ``labels``.
            sample_weight: Its name for ``weights``.

        Returns:
            This calibrator. Raises ``ValueError`` on wrong input or data marked as test, ``FitError`` if the fit fails; warns
            with `CalibrationWarning` if the result may not hold.
        """
        where = f"{type(self).__name__}.fit"
        self.check_params()
        logits, labels = X if logits is None else logits, y if labels is None else labels
        weights = weights if sample_weight is None else sample_weight
        if logits is None or labels is None or isinstance(logits, Predictions):
            records = [as_predictions(logits, labels, where=where, weights=weights, ignore_index=ignore_index)]
            refuse_test_split(records[0], where=where)
        else:
            scores = _read_logits(logits, where=where)
            given = {"labels": labels, "weights": weights, "ignore_index": ignore_index}
            samples = scores if self.takes_samples and scores.ndim == 3 else [scores]
            records = [Predictions(logits=sample, **given) for sample in samples]  # type: ignore[arg-type]
        data = FitData.of(*records)
        for doubt in self.doubts(data):
            warn(f"{where}: {doubt}")
        wrong = data.impossible()
        if floor is None and wrong and not isinstance(self, Identity):
            floor = 1 / (len(data) * data.num_classes)
            told = f"{wrong} of {len(data)} examples have a label of probability zero"
            warn(f"{where}: {told}. Probabilities below {floor:.3g} are raised to it; `floor` sets another value.")
        self.floor_ = check_floor(floor or 0.0, data.num_classes, where=where)
        # Each of hundreds of short steps waits for the slowest thread: on two busy cores, a matrix for 5,000 examples of 10
        # classes took 13 s with two threads and 0.7 s with one.
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if data.logits.numel() <= _MOST_FOR_ONE_THREAD else threads)
        try:
            self.learn(replace(data, logits=raise_probs(data.logits, self.floor_)))
        finally:
            torch.set_num_threads(threads)
        self._seen = fingerprint(data.logits)
        return self

    def check_params(self) -> None:
        """Raise ``ValueError`` if a hyper-parameter cannot be used."""
        for known in getattr(self, "__dataclass_fields__", {}).values():
            if "rule" in known.metadata:
                known.metadata["rule"](getattr(self, known.name), where=type(self).__name__, name=known.name)

    def doubts(self, data: FitData) -> list[str]:
        """Why a fit on ``data`` may not be trusted: too few examples, a class without any."""
        fewest = self.few_samples or self.few_samples_per_class * data.num_classes
        found = (data.too_few(fewest, what="this method"), "" if self.few_samples else data.missing_classes)
        return [doubt for doubt in found if doubt]

    def tuned(self, data: FitData) -> Calibrator:
        """Return a calibrator whose hyper-parameters ``data`` have chosen: itself if there are none to choose."""
        return self

    def learn(self, data: FitData) -> None:
        """Fit to checked data, without further checks of them."""
        for name, value in self._fit(data).items():
            setattr(self, f"{name}_", value)
        self.num_classes_ = data.num_classes
        try:
            self._check_learned()
        except ValueError as error:
            del self.num_classes_
            raise FitError(f"{error} Look at the scale of the logits.") from None

    def _check_learned(self) -> None:
        """Raise ``ValueError`` unless options are as they must be, and what was learned makes probabilities of logits."""
        self.check_params()
        given = torch.eye(10, self.num_classes_, dtype=torch.float64).kron(torch.tensor([[1.0], [1e4], [-1e4]]).double())
        found = self.log_probs(given)
        finite = all(bool(torch.isfinite(value).all()) for value in self.learned_values().values())
        if not finite or found.shape != given.shape or not bool((found.logsumexp(1).abs() < 1e-6).all()):
            raise ValueError(f"{type(self).__name__}: learned values must be finite and give probabilities, got others.")

    @abstractmethod
    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        """Return what was learned, under the names of ``learned``."""

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "num_classes_")

    @property
    def classes_(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The possible labels: 0 to C - 1, whether or not the fit data had them all."""
        return np.arange(self.num_classes_)

    @property
    def n_features_in_(self) -> int:
        """Scikit-learn's word for the number of classes."""
        return self.num_classes_

    @overload
    def predict_proba(self, logits: Tensor | Predictions) -> Tensor: ...
    @overload
    def predict_proba(self, logits: ArrayLike) -> Tensor | Array: ...
    def predict_proba(self, logits: ArrayLike | Predictions) -> Tensor | Array:
        """Return calibrated probabilities.

        Args:
            logits: Scores ``[N, C]`` (or dense ``[N, C, ...]``), as tensor, numpy array or nested list; or a `Predictions`.
                Of probabilities, pass the logarithm. Of two classes also log-odds, as in `fit`.

        Returns:
            Probabilities shaped as the logits (``[N, 2]`` for log-odds): a tensor on the same device for a tensor (or a
            `Predictions`), else a numpy array. Computed in float64, returned in the dtype of the logits (float32 for half
            precision).
        """
        return self._predict(logits, as_probs=True)

    def predict_log_proba(self, logits: ArrayLike | Predictions) -> Tensor | Array:
        """Return calibrated log-probabilities, as `predict_proba` does; these do not underflow."""
        return self._predict(logits)

    def predict(self, logits: ArrayLike | Predictions) -> Tensor | Array:
        """Return the class ``[N]`` of most calibrated probability, as tensor or numpy array as `predict_proba` does."""
        return self._predict(logits).argmax(1)

    def apply(self, predictions: Predictions) -> Predictions:
        """Return the record with calibrated log-probabilities as logits and everything else kept, its precision too."""
        found = self._checked_log_probs(predictions.logits)
        return predictions.replace(logits=found.to(torch.promote_types(predictions.scores.dtype, torch.float32)))

    def _predict(self, logits: ArrayLike | Predictions, *, as_probs: bool = False) -> Tensor | Array:
        given = logits.logits if isinstance(logits, Predictions) else logits
        scores = _read_logits(given, where=type(self).__name__, num_classes=getattr(self, "num_classes_", 2))
        found = self._checked_log_probs(scores)
        found = (found.exp_() if as_probs else found).to(torch.promote_types(scores.dtype, torch.float32))
        return found if isinstance(given, Tensor) else np.asarray(found.numpy())

    def _checked_log_probs(self, scores: Tensor) -> Tensor:
        check_is_fitted(self)
        where, axis = type(self).__name__, -1 if self.takes_samples else 1
        if scores.ndim < 2 or scores.shape[axis] != self.num_classes_:
            form = f"{'[S, N, C] or ' if self.takes_samples else ''}[N, C] with C = {self.num_classes_} as in the fit"
            raise ValueError(f"{where}: `logits` must be {form}, got {list(scores.shape)}.")
        flat = scores.movedim(axis, -1).reshape(-1, self.num_classes_)
        if len(flat):
            check_before_softmax(flat, where=where)
            if fingerprint(flat) == self._seen:
                warn(f"{where}: the calibrator was fitted on these examples, so the repair looks better than it is.")
        return self.log_probs(scores)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Apply the repair to checked logits ``[N, C]`` or ``[N, C, ...]``, some rows at a time, in float64."""
        layer, axis = self.as_layer(dtype=torch.float64).to(logits.device), -2 if self.takes_samples else 0
        rows = max(_CACHED_ENTRIES * logits.shape[axis] // max(logits.numel(), 1), 1)
        return torch.cat([layer(part) for part in logits.split(rows, axis)])

    def learned_values(self) -> dict[str, Tensor]:
        """Return what was learned as float64 tensors, by the names of ``learned``."""
        return {name: torch.as_tensor(getattr(self, f"{name}_"), dtype=torch.float64) for name in self.learned}

    def wrap(self, model: nn.Module, *, dtype: torch.dtype | None = None) -> nn.Module:
        """Return a module that runs ``model`` and calibrates its logits.

        It returns calibrated *log*-probabilities, which are logits too, so code written for the bare model keeps working. For
        a binary model with one output, the log-odds of class 1, it returns log-odds. What was learned is in the ``state_dict``
        under ``calibration.``.

        Args:
            model: Network that returns logits ``[B, C]`` or ``[B, C, ...]`` (``[B, 1]`` for two classes), alone, first in a
                tuple, or as the entry or attribute ``logits``, as models of Transformers do.
            dtype: Precision of what was learned and of the result. By default the result has that of the logits (at least
                float32), and what was learned float32, or float64 for tables of probabilities; a device without float64 needs
                ``dtype=torch.float32``.

        Returns:
            The module; it takes the arguments of ``model`` and returns a tensor whatever the model returns. Put it into
            evaluation mode before use, as any network.
        """
        return WrappedModel(model, self.as_layer(dtype=dtype))

    def as_layer(self, *, dtype: torch.dtype | None = None) -> nn.Module:
        """Return the repair alone as a module from logits to calibrated log-probabilities; ``dtype`` as in `wrap`."""
        check_is_fitted(self)
        return CalibrationLayer(self, dtype=dtype)

    def to_dict(self) -> dict[str, object]:
        """Return hyper-parameters and what was learned as plain data."""
        from calibrant.calibrators import name_of

        check_is_fitted(self)
        return {
            "calibrator": name_of(self),
            "num_classes": self.num_classes_,
            "floor": self.floor_,
            "hyperparameters": self.get_params(),
            "learned": self._to_plain(),
        }

    def _to_plain(self) -> dict[str, object]:
        learned = {name: value.tolist() for name, value in self.learned_values().items()}
        return learned | {name: getattr(self, f"{name}_") for name in self.also_kept}

    def _from_plain(self, learned: Mapping[str, object]) -> None:
        """Take over what `_to_plain` gave."""
        for name in self.learned + self.also_kept:
            value = torch.tensor(learned[name], dtype=torch.float64)
            setattr(self, f"{name}_", value if value.ndim else value.item())

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Self:
        """Return the calibrator that `to_dict` described; raise ``ValueError`` unless it is of this class."""
        from calibrant.calibrators import CALIBRATORS

        where = f"{cls.__name__}.from_dict"
        try:
            given: Mapping[str, object] = data["hyperparameters"]  # type: ignore[assignment]
            plain = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
            made = CALIBRATORS[str(data["calibrator"])](**plain)
            made.num_classes_ = int(data["num_classes"])  # type: ignore[call-overload]
            made.floor_ = check_floor(float(data.get("floor", 0.0)), made.num_classes_, where=where)  # type: ignore[arg-type]
            made._from_plain(data["learned"])  # type: ignore[arg-type]
            made._check_learned()
        except (ArithmeticError, AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
            raise ValueError(f"{where}: the data must describe a calibrator, got a fault at {error}.") from None
        if not isinstance(made, cls):
            raise ValueError(f"{where}: the data must describe a {cls.__name__}, got a {type(made).__name__}.")
        return made

    def save(self, path: str | Path) -> None:
        """Write the fitted calibrator to a JSON file."""
        from calibrant.io.files import write_json

        write_json(self.to_dict(), path, kind="calibrator")

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a calibrator from a file that `save` wrote; nothing in it can run code."""
        from calibrant.io.files import read_json

        return cls.from_dict(read_json(path, kind="calibrator"))


def check_ascending(values: Sequence[float], *, where: str, name: str, count: int | None = None) -> None:
    """Raise unless ``values`` are positive numbers in ascending order, ``count`` of them, or at least one."""
    for value in values:
        check_positive(value, where=where, name=name)
    if not len(values) or list(values) != sorted(set(values)) or (count and len(values) != count):
        raise ValueError(f"{where}: `{name}` must be {count or 'one or more'} ascending numbers, got {values}.")


def check_floor(floor: float, num_classes: int, *, where: str) -> float:
    """Return the least probability; raise unless it is small enough for all classes to have it."""
    if not 0 <= floor < 1 / num_classes:
        raise ValueError(f"{where}: `floor` must be at least 0 and below 1 / C = {1 / num_classes:g}, got {floor:g}.")
    return floor


def _read_logits(logits: ArrayLike, *, where: str, num_classes: int = 2) -> Tensor:
    scores = to_tensor(logits, where=where, name="logits")
    scores = scores if scores.is_floating_point() else scores.double()
    return both_classes(scores.reshape(-1), "logits") if num_classes == 2 and scores.shape[1:] in ((), (1,)) else scores


class Identity(Calibrator, formula=lambda logits: logits.log_softmax(-1)):
    """Leaves probabilities as they are, where no repair helps."""

    label = "doing nothing"
    preserves_accuracy = True
    in_auto = False
    few_samples = 1

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        return {}


class CalibrationLayer(nn.Module):
    """Maps logits ``[B, C]`` (or dense ``[B, C, ...]``) to calibrated log-probabilities of the same shape.

    What was learned is in buffers, so it is part of the ``state_dict`` and follows ``.to(device)``; no optimiser changes it,
    and ``.half()`` leaves its precision. Computed in the precision of the buffers or that of the logits, whichever is higher.
    With two classes, a single column is the log-odds of class 1, in and out.
    """

    def __init__(self, calibrator: Calibrator, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._formula, self._names, self._num_classes = calibrator.formula, calibrator.learned, calibrator.num_classes_
        self._axis, self._floor = -1 if calibrator.takes_samples else 1, calibrator.floor_
        # The identity cannot lose the top class by rounding.
        self._keeps_top = calibrator.preserves_accuracy and len(calibrator.learned) > 0
        self._out_dtype = dtype
        for name, value in calibrator.learned_values().items():
            self.register_buffer(name, value.detach().clone().to(dtype or calibrator.layer_dtype))

    def forward(self, logits: Tensor) -> Tensor:
        """Return calibrated log-probabilities, shaped as the logits."""
        columns = logits.shape[self._axis]
        if columns == 1 and self._num_classes == 2:
            both = self.forward(torch.cat([torch.zeros_like(logits), logits], self._axis))
            return both.narrow(self._axis, 1, 1) - both.narrow(self._axis, 0, 1)
        if columns != self._num_classes:
            form = f"C = {self._num_classes} classes as in the fit"
            raise ValueError(f"CalibrationLayer: `logits` must have {form}, got {list(logits.shape)}.")
        held = {name: self.get_buffer(name) for name in self._names}
        own = next(iter(held.values())).dtype if held else self._out_dtype or torch.float32
        dtype = torch.promote_types(own, logits.dtype)
        wide, device = raise_probs(logits.to(dtype).movedim(self._axis, -1), self._floor), logits.device.type
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            found = self._formula(wide, **{name: value.to(dtype) for name, value in held.items()})
            found = keep_top(found, wide) if self._keeps_top else found
        return found.movedim(-1, self._axis).to(self._out_dtype or torch.promote_types(logits.dtype, torch.float32))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the buffers but keep their precision: in half of it a table of probabilities would repair nothing."""
        super()._apply(lambda value: value.to(fn(value).device), recurse)
        return self


class WrappedModel(nn.Module):
    """A model whose output is calibrated: ``model`` gives logits, ``calibration`` turns them into log-probabilities."""

    def __init__(self, model: nn.Module, calibration: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.calibration = calibration

    def forward(self, inputs: object = None, /, *args: object, **kwargs: object) -> Tensor:
        """Return calibrated log-probabilities ``[B, C]`` (or ``[B, C, ...]``); of other outputs of the model none is kept."""
        # The first argument has a name, or `torch.export` would ask for other dynamic shapes than the model's.
        given = args if inputs is None and not args else (inputs, *args)
        calibrated: Tensor = self.calibration(find_logits(self.model(*given, **kwargs), where="WrappedModel"))
        return calibrated


# What fits and formulas share.


def check_same_classes(fit: Predictions, given: Predictions, *, what: str, of: str) -> None:
    """Raise unless both records have as many classes and, where both name them, the same names in the same order."""
    named = None not in (fit.class_names, given.class_names)
    first, second = (record.class_names if named else record.num_classes for record in (fit, given))
    if first != second:
        raise ValueError(f"{what} must have the same classes in the same order as {of}, got {first}, not {second}.")


def fingerprint(logits: Tensor) -> tuple[int, int]:
    """Number of rows of ``logits [..., C]`` and a checksum, which their order and an exact dtype do not change."""
    # Adding zero makes -0.0 and 0.0 one number.
    bits = (logits.reshape(-1, logits.shape[-1])[:, :_HASHED_COLUMNS].cpu().double() + 0.0).view(torch.int64)
    odd = torch.randint(2**62, bits.shape[1:], generator=torch.Generator().manual_seed(5), dtype=torch.int64) * 2 + 1
    return len(bits), int(((bits ^ (bits >> 31)) * odd).sum())


def raise_probs(logits: Tensor, floor: float) -> Tensor:
    """Log-probabilities of ``logits [..., C]`` with none below that of ``floor``; rows need not sum to one afterwards."""
    return logits.log_softmax(-1).clamp(min=math.log(floor)) if floor else logits


def floor_logits(logits: Tensor) -> Tensor:
    """Replace ``-inf`` in ``logits [..., C]`` by a finite number at most as large as the rest of its row."""
    absent = torch.isneginf(logits)
    lowest = torch.where(absent, torch.inf, logits).amin(-1, keepdim=True)
    floor = torch.minimum(lowest, logits.amax(-1, keepdim=True) + _LOG_SMALLEST)
    return torch.where(absent, floor, logits)


def log_complements(log_probs: Tensor) -> Tensor:
    r"""Return :math:`\log(1 - p_k)` for every class of ``log_probs [..., C]``.

    For the top class it is the log-sum of all others, since 1 - p cancels where p is near one.
    """
    top = log_probs.argmax(-1, keepdim=True)
    rest = log_probs.scatter(-1, top, -torch.inf).logsumexp(-1, keepdim=True)
    # A class that is not on top has at most probability one half, where log1p is exact.
    return torch.log1p(-log_probs.exp().clamp(max=0.75)).scatter(-1, top, rest)


def keep_top(log_probs: Tensor, logits: Tensor) -> Tensor:
    """Make sure that the top class of ``logits [..., C]`` is that of ``log_probs [..., C]`` even after rounding to float32.

    Where classes come so near to one another that rounding could swap them, the top one is raised above its rival by `_MARGIN`
    and the row scaled to sum to one. Classes that tie in the logits may tie.
    """
    top = logits.argmax(-1, keepdim=True)
    leads = logits.gather(-1, top) > logits.scatter(-1, top, -torch.inf).amax(-1, keepdim=True)
    own = log_probs.gather(-1, top)
    rival = log_probs.scatter(-1, top, -torch.inf).amax(-1, keepdim=True)
    raised = torch.where(leads, torch.maximum(own, rival + _MARGIN), own)
    return log_probs.scatter(-1, top, raised) - torch.log1p((raised.exp() - own.exp()).clamp(min=0))
