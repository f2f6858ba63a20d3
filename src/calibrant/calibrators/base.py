"""The contract of every calibrator: fit, apply, wrap, save. Their arithmetic is in their own modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import ClassVar, Self, TypeAlias, TypeVar, overload

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from calibrant.calibrators.fit_data import FitData, chunk_rows, marks_to_keep, refuse_test_split, warn, warn_if_seen
from calibrant.calibrators.maps import keep_top
from calibrant.core.checks import ArrayLike, FitError, check_before_softmax, check_count, to_tensor
from calibrant.core.collect import find_logits
from calibrant.core.records import Predictions

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"
Learned: TypeAlias = "float | Tensor"
Any_C = TypeVar("Any_C", bound="Calibrator")

# Logits of the fit data beyond which a fit takes more than one thread.
_MOST_FOR_ONE_THREAD = 500_000
# What is learned under these names must be so, or it gives no probabilities.
_RULES: dict[str, tuple[str, Callable[[Tensor], bool]]] = {
    "temperature": ("be a number > 0", lambda t: t.ndim == 0 and bool(t > 0)),
    "mixture": ("be shares that sum to one", lambda w: bool((w >= 0).all()) and abs(float(w.sum()) - 1) < 1e-6),
    "knots": ("ascend", lambda x: bool((x.diff(dim=-1) >= 0).all())),
    "edges": ("ascend", lambda x: bool((x.diff(dim=-1) >= 0).all())),
    "values": ("lie in [0, 1]", lambda p: bool(((p >= 0) & (p <= 1)).all())),
}


class Calibrator(ClassifierMixin, BaseEstimator, ABC):  # type: ignore[misc]
    """Repairs the probabilities of a trained classifier, learned from logits and labels it was not trained on.

    To scikit-learn it is a classifier whose features are logits. A subclass names what it learns (``learned``), how it is
    learned (``_fit``) and the pure function that applies it (``formula``). Constructor arguments are hyper-parameters only,
    checked when they are used; what is learned ends in an underscore. A package offers its own subclass under a name of the
    entry-point group ``calibrant.calibrators``.

    Attributes:
        label: What it is called in print.
        learned: Names of what ``formula`` takes besides the logits, without the underscore.
        preserves_accuracy: Whether the top class of an example never changes.
        needs_every_class: Whether classes are treated apart, so that a class without examples is left in the dark.
        in_auto: Whether `AutoCalibrator` tries it.
        few_samples: A fit on fewer examples warns, for a calibrator that does not need every class;
        few_samples_per_class: and for one that does, times the number of classes.
    """

    label: ClassVar[str] = "calibration"
    learned: ClassVar[tuple[str, ...]] = ()
    formula: ClassVar[Callable[..., Tensor]]
    preserves_accuracy: ClassVar[bool] = False
    needs_every_class: ClassVar[bool] = True
    in_auto: ClassVar[bool] = True
    few_samples: ClassVar[int] = 50
    few_samples_per_class: ClassVar[int] = 10
    # Precision of `wrap`. Tables of probabilities need float64, where 1 - 1e-9 is not yet 1: networks are often that sure.
    layer_dtype: ClassVar[torch.dtype] = torch.float32
    # Whether logits may be samples [S, N, C].
    takes_samples: ClassVar[bool] = False
    # What is kept in files besides what was learned.
    also_kept: ClassVar[tuple[str, ...]] = ()

    num_classes_: int
    _seen: Tensor | None = None

    def fit(
        self,
        logits: ArrayLike | Predictions,
        labels: ArrayLike | None = None,
        *,
        weights: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        ignore_index: int | None = None,
    ) -> Self:
        """Learn the repair from held-out data.

        Args:
            logits: Scores ``[N, C]`` (or dense ``[N, C, ...]``) whose softmax is the probability; or a `Predictions`, which
                may be made from probabilities: ``fit(Predictions(probs=probs, labels=labels))``.
            labels: Class indices ``[N]`` in ``[0, C)``, whole numbers of any type; not with a `Predictions`.
            weights: Sample weights ``[N]``, non-negative; those of the `Predictions` by default.
            sample_weight: Scikit-learn's word for ``weights``.
            ignore_index: Label that marks examples to leave out; not with a `Predictions`, which has left them out.

        Returns:
            This calibrator. Raises ``ValueError`` on wrong input or data marked as test, ``FitError`` if the fit fails; warns
            with `CalibrationWarning` where the result is doubtful.
        """
        where = f"{type(self).__name__}.fit"
        if weights is not None and sample_weight is not None:
            raise ValueError(f"{where}: one of `weights` and `sample_weight` must be given, which are the same, got both.")
        self.check_params()
        given = weights if sample_weight is None else sample_weight
        data = self._fit_data(logits, labels, weights=given, ignore_index=ignore_index, where=where)
        for doubt in self.doubts(data):
            warn(f"{where}: {doubt}")
        with one_thread(when=data.logits.numel() <= _MOST_FOR_ONE_THREAD):
            self._learn(data)
        self._seen = marks_to_keep(data.logits if data.logits.ndim == 2 else data.logits[0])
        return self

    def check_params(self) -> None:
        """Raise ``ValueError`` if a hyper-parameter cannot be used."""
        return

    def _fit_data(
        self,
        logits: ArrayLike | Predictions,
        labels: ArrayLike | None,
        *,
        weights: ArrayLike | None,
        ignore_index: int | None,
        where: str,
    ) -> FitData:
        if not isinstance(logits, Predictions):
            if labels is None:
                raise ValueError(
                    f"{where}: `labels` must be given with logits, got none. Pass `fit(logits, labels)` or a `Predictions`."
                )
            scores = _floating(logits, where=where)
            return FitData.of(Predictions(logits=scores, labels=labels, weights=weights, ignore_index=ignore_index))
        if labels is not None or ignore_index is not None:
            what = "labels" if labels is not None else "ignore_index"
            raise ValueError(f"{where}: `{what}` must not be given with a `Predictions`. Give it to `Predictions(...)`.")
        refuse_test_split(logits, where=where)
        if weights is not None:
            logits = Predictions(logits=logits.logits, labels=logits.labels, weights=weights)
        return FitData.of(logits)

    def doubts(self, data: FitData) -> list[str]:
        """Why a fit on ``data`` may not be trusted, whatever it will find: too few examples, a class without any."""
        found = []
        fewest = self.fewest_samples(data.num_classes)
        if len(data) < fewest:
            found.append(few_examples(data, fewest, what="this method"))
        if self.needs_every_class and data.missing_classes:
            found.append(
                f"{data.missing_classes}. Their probabilities cannot be trusted; use more data, or a method that treats "
                "classes alike."
            )
        return found

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return self.few_samples_per_class * num_classes if self.needs_every_class else self.few_samples

    def settle(self, data: FitData) -> Calibrator:
        """Return a calibrator of this kind whose hyper-parameters need not be chosen from data any more: itself, mostly."""
        return self

    def _learn(self, data: FitData) -> None:
        found = self._fit(data)
        if not all(bool(torch.isfinite(torch.as_tensor(value)).all()) for value in found.values()):
            raise FitError(
                f"{type(self).__name__}.fit: the fit must give finite numbers, and did not. Look at the scale of the logits."
            )
        for name, value in found.items():
            setattr(self, f"{name}_", value)
        self.num_classes_ = data.num_classes

    @abstractmethod
    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        """Return what was learned, under the names of ``learned``."""

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "num_classes_")

    @property
    def classes_(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """What labels may be: 0 to C - 1, whichever of them the fit data had."""
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
                Of probabilities, pass the logarithm.

        Returns:
            Probabilities shaped as the logits: a tensor on the same device for a tensor (or a `Predictions`), else a numpy
            array. Computed in float64, returned in the dtype of the logits (float32 for half precision).
        """
        return self._predict(logits, what="predict_proba")

    @overload
    def predict_log_proba(self, logits: Tensor | Predictions) -> Tensor: ...
    @overload
    def predict_log_proba(self, logits: ArrayLike) -> Tensor | Array: ...
    def predict_log_proba(self, logits: ArrayLike | Predictions) -> Tensor | Array:
        """Return calibrated log-probabilities, as `predict_proba` does; these do not underflow."""
        return self._predict(logits, what="predict_log_proba")

    @overload
    def predict(self, logits: Tensor | Predictions) -> Tensor: ...
    @overload
    def predict(self, logits: ArrayLike) -> Tensor | Array: ...
    def predict(self, logits: ArrayLike | Predictions) -> Tensor | Array:
        """Return the class ``[N]`` of most calibrated probability, as tensor or numpy array as `predict_proba` does."""
        return self._predict(logits, what="predict").argmax(1)

    def apply(self, predictions: Predictions) -> Predictions:
        """Return the record with calibrated log-probabilities as logits (float64) and everything else kept."""
        return predictions.replace(logits=self._checked_log_probs(predictions.logits, where=f"{type(self).__name__}.apply"))

    def _predict(self, logits: ArrayLike | Predictions, *, what: str) -> Tensor | Array:
        where = f"{type(self).__name__}.{what}"
        given = logits.logits if isinstance(logits, Predictions) else logits
        scores = _floating(given, where=where)
        found = self._checked_log_probs(scores, where=where)
        found = (found.exp_() if what == "predict_proba" else found).to(torch.promote_types(scores.dtype, torch.float32))
        return found if isinstance(given, Tensor) else np.asarray(found.numpy())

    def _checked_log_probs(self, scores: Tensor, *, where: str) -> Tensor:
        check_is_fitted(self)
        if scores.ndim < 2 or scores.shape[1] != self.num_classes_:
            raise ValueError(
                f"{where}: `logits` must be [N, C] with C = {self.num_classes_} as in the fit, got {list(scores.shape)}."
            )
        flat = scores.movedim(1, -1).reshape(-1, self.num_classes_)
        self._check_rows(flat, where=where)
        return self.log_probs(flat).reshape(len(scores), *scores.shape[2:], self.num_classes_).movedim(-1, 1)

    def _check_rows(self, rows: Tensor, *, where: str) -> None:
        if len(rows):
            check_before_softmax(rows, where=where)
            warn_if_seen(rows, self._seen, where=where)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Apply the repair to checked ``logits [N, C]``, some rows at a time in float64; no guard rails."""
        learned = {name: value.to(logits.device) for name, value in self.learned_values().items()}
        result = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
        rows = chunk_rows(int(logits.shape[-1]))
        for given, place in zip(logits.split(rows), result.split(rows), strict=True):
            wide = given.double()
            found = type(self).formula(wide, **learned)
            place.copy_(keep_top(found, wide) if self._keeps_top else found)
        return result

    @property
    def _keeps_top(self) -> bool:
        return self.preserves_accuracy and bool(self.learned)

    def learned_values(self) -> dict[str, Tensor]:
        """Return what was learned as float64 tensors, by the names of ``learned``."""
        return self._as_tensors(self.learned)

    def _as_tensors(self, names: tuple[str, ...]) -> dict[str, Tensor]:
        return {name: torch.as_tensor(getattr(self, f"{name}_"), dtype=torch.float64) for name in names}

    def wrap(self, model: nn.Module, *, dtype: torch.dtype | None = None) -> nn.Module:
        """Return a module that runs ``model`` and calibrates its logits.

        Its output are calibrated *log*-probabilities: logits again, whose softmax is their exponential, so that code written
        for the bare model keeps working. Of a binary model with one output, the log-odds of class 1, it is calibrated log-odds.
        What was learned is in the ``state_dict`` under ``calibration.``.

        Args:
            model: Network that returns logits ``[B, C]`` or ``[B, C, ...]`` (``[B, 1]`` for two classes), alone, first in a
                tuple, or as the entry or attribute ``logits``, as models of Transformers do.
            dtype: Precision of what was learned and of the result. By default the result has that of the logits (float32 for
                half precision), and what was learned is held in float32, or in float64 where it is a table of probabilities;
                a device without float64 needs ``dtype=torch.float32``.

        Returns:
            The module; it takes the arguments of ``model``, positional and by name, and returns a tensor whatever the model
            returns. Put it into evaluation mode before use, as any network.
        """
        return CalibratedModel(model, self.as_layer(dtype=dtype))

    def as_layer(self, *, dtype: torch.dtype | None = None) -> nn.Module:
        """Return the repair alone as a module from logits to calibrated log-probabilities; ``dtype`` as in `wrap`."""
        check_is_fitted(self)
        return CalibrationLayer(
            type(self).formula,
            self.learned_values(),
            num_classes=self.num_classes_,
            dtype=dtype or self.layer_dtype,
            out_dtype=dtype,
            classes_last=self.takes_samples,
            keeps_top=self._keeps_top,
        )

    def to_dict(self) -> dict[str, object]:
        """Return hyper-parameters and what was learned as plain data."""
        check_is_fitted(self)
        from calibrant.calibrators import name_of

        return {
            "calibrator": name_of(self),
            "num_classes": self.num_classes_,
            "hyperparameters": self.get_params(),
            "learned": self._to_plain(),
        }

    def _to_plain(self) -> dict[str, object]:
        return {name: value.tolist() for name, value in self._as_tensors(self.learned + self.also_kept).items()}

    def _from_plain(self, learned: Mapping[str, object]) -> None:
        """Take over what `_to_plain` gave, and raise ``ValueError`` if it cannot have been learned."""
        for name in self.learned + self.also_kept:
            value = torch.tensor(learned[name], dtype=torch.float64)
            rule, holds = _RULES.get(name, ("be finite", lambda value: True))
            if not bool(torch.isfinite(value).all()) or not holds(value):
                raise ValueError(f"{type(self).__name__}.from_dict: `{name}` must {rule}, got something else.")
            setattr(self, f"{name}_", value if value.ndim else value.item())
        # Wrong shapes fail here.
        found = self.log_probs(5 * torch.eye(10, self.num_classes_))
        if not torch.allclose(found.exp().sum(-1), torch.ones(len(found), dtype=torch.float64)):
            raise ValueError(f"{type(self).__name__}.from_dict: what was learned must give probabilities, and does not.")

    @classmethod
    def from_dict(cls: type[Any_C], data: Mapping[str, object]) -> Any_C:
        """Return the calibrator that `to_dict` described; raise ``ValueError`` if it is another kind than this class."""
        from calibrant.calibrators import CALIBRATORS

        try:
            kind = CALIBRATORS[str(data["calibrator"])]
            given, learned = data["hyperparameters"], data["learned"]
            made = kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})  # type: ignore[attr-defined]
            made.check_params()
            made.num_classes_ = int(str(data["num_classes"]))
            check_count(made.num_classes_, where=f"{cls.__name__}.from_dict", name="num_classes", least=2)
            made._from_plain(learned)  # type: ignore[arg-type]
        except (AttributeError, IndexError, KeyError, RuntimeError, TypeError) as error:
            raise ValueError(
                f"{cls.__name__}.from_dict: the data must describe a calibrator, got a fault at {error}."
            ) from None
        if not isinstance(made, cls):
            raise ValueError(
                f"{cls.__name__}: the data must describe a {cls.__name__}, got a {kind.__name__}. Use `Calibrator.load`."
            )
        return made

    def save(self, path: str | Path) -> None:
        """Write the fitted calibrator to a JSON file."""
        from calibrant.io.files import write_json

        write_json(self.to_dict(), path, kind="calibrator")

    @classmethod
    def load(cls: type[Any_C], path: str | Path) -> Any_C:
        """Read a calibrator from a file that `save` wrote; nothing in it can run code."""
        from calibrant.io.files import read_json

        return cls.from_dict(read_json(path, kind="calibrator"))


def _floating(logits: ArrayLike, *, where: str) -> Tensor:
    scores = to_tensor(logits, where=where, name="logits")
    return scores if scores.is_floating_point() else scores.double()


def few_examples(data: FitData, fewest: int, *, what: str) -> str:
    """Say that the examples are too few for ``what``."""
    count = f"{len(data)} examples are" if len(data) > 1 else "one example is"
    # A method that asks for no more than 100 has few parameters.
    other = ", or a method with fewer parameters such as temperature scaling" if fewest > 100 else ""
    advised = f"({fewest} or more are advised with {data.num_classes} classes)"
    return f"{count} few for {what} {advised}. Use more validation data{other}."


@contextmanager
def one_thread(*, when: bool) -> Iterator[None]:
    """Compute with one thread, if ``when``, and go back to as many as before.

    Hundreds of short steps wait for the slowest thread at each. On two cores that others used too, a matrix for 5,000
    examples of 10 classes took 13 s with two threads and 0.7 s with one.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if when else before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def identity_log_probs(logits: Tensor) -> Tensor:
    """Log-softmax of ``logits [..., C]``."""
    return logits.log_softmax(-1)


class Identity(Calibrator):
    """Leaves probabilities as they are: what is chosen where no repair helps."""

    label: ClassVar[str] = "doing nothing"
    preserves_accuracy: ClassVar[bool] = True
    needs_every_class: ClassVar[bool] = False
    in_auto: ClassVar[bool] = False
    few_samples: ClassVar[int] = 1
    formula = staticmethod(identity_log_probs)

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        return {}


class CalibrationLayer(nn.Module):
    """Maps logits ``[B, C]`` (or dense ``[B, C, ...]``) to calibrated log-probabilities of the same shape.

    What was learned is held in buffers, so it is part of the ``state_dict`` and follows ``.to(device)``, but no optimiser
    changes it, and ``.half()`` leaves its precision. Computed in the precision of the buffers, or that of the logits if it is
    higher. With two classes, one column is the log-odds of class 1, and so is the result.

    Args:
        formula: Pure function ``(logits [..., C], **learned) -> log-probabilities [..., C]``.
        learned: Arguments of ``formula`` besides the logits.
        num_classes: Number of classes C.
        dtype: Precision of the buffers.
        out_dtype: Precision of the result; that of the logits, float32 for half precision, if None.
        classes_last: Whether classes are the last axis of the logits instead of the second.
        keeps_top: Whether the top class must stay whatever the rounding.
    """

    def __init__(
        self,
        formula: Callable[..., Tensor],
        learned: Mapping[str, Tensor],
        *,
        num_classes: int,
        dtype: torch.dtype = torch.float32,
        out_dtype: torch.dtype | None = None,
        classes_last: bool = False,
        keeps_top: bool = False,
    ) -> None:
        super().__init__()
        self._formula = formula
        self._names = tuple(learned)
        self._num_classes = num_classes
        self._out_dtype = out_dtype
        self._axis = -1 if classes_last else 1
        self._keeps_top = keeps_top
        for name, value in learned.items():
            self.register_buffer(name, value.detach().clone().to(dtype))

    def forward(self, logits: Tensor) -> Tensor:
        """Return calibrated log-probabilities, shaped as the logits."""
        columns = logits.shape[self._axis]
        if columns == 1 and self._num_classes == 2:
            both = self.forward(torch.cat([torch.zeros_like(logits), logits], self._axis))
            return both.narrow(self._axis, 1, 1) - both.narrow(self._axis, 0, 1)
        if columns != self._num_classes:
            raise ValueError(
                f"CalibrationLayer: `logits` must have C = {self._num_classes} classes as in the fit, got {list(logits.shape)}."
            )
        learned = {name: self.get_buffer(name) for name in self._names}
        held = next(iter(learned.values())).dtype if learned else torch.float32
        wide = logits.to(torch.promote_types(held, logits.dtype)).movedim(self._axis, -1)
        learned = {name: value.to(wide.dtype) for name, value in learned.items()}
        device = logits.device.type
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            found = self._formula(wide, **learned)
        found = keep_top(found, wide) if self._keeps_top else found
        return found.movedim(-1, self._axis).to(self._out_dtype or torch.promote_types(logits.dtype, torch.float32))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the buffers but keep their precision: in half of it a table of probabilities is no repair any more."""

        def move(value: Tensor) -> Tensor:
            moved = fn(value)
            return moved if moved.dtype == value.dtype else value.to(moved.device)

        super()._apply(move, recurse)
        return self


class CalibratedModel(nn.Module):
    """A model whose output is calibrated: ``model`` gives logits, ``calibration`` turns them into log-probabilities.

    Args:
        model: The network.
        calibration: Its repair.
    """

    def __init__(self, model: nn.Module, calibration: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.calibration = calibration

    def forward(self, inputs: object = None, /, *args: object, **kwargs: object) -> Tensor:
        """Return calibrated log-probabilities ``[B, C]`` (or ``[B, C, ...]``), for whatever the model is given.

        Of a model that returns more than logits, as those of Transformers do, only the logits are kept.
        """
        # The first argument has a name of its own, or `torch.export` would ask for other dynamic shapes than the model's.
        given = args if inputs is None and not args else (inputs, *args)
        calibrated: Tensor = self.calibration(find_logits(self.model(*given, **kwargs), where="CalibratedModel"))
        return calibrated
