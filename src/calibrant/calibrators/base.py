"""The contract of every calibrator: fit, apply, wrap, save. Their arithmetic is in their own modules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import ClassVar, Self, TypeAlias, TypeVar, overload

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.calibrators.estimator import Estimator
from calibrant.calibrators.fit_data import (
    FitData,
    at_least_single,
    check_fit_input,
    chunk_rows,
    doubt_classes,
    few_examples,
    marks_to_keep,
    warn_if_seen,
    warn_of,
)
from calibrant.calibrators.layer import CalibratedModel, CalibrationLayer
from calibrant.calibrators.log_space import keep_top
from calibrant.calibrators.threads import one_thread
from calibrant.core.checks import ArrayLike, FitError, check_before_softmax, to_tensor
from calibrant.core.records import Predictions
from calibrant.core.registry import lookup
from calibrant.metrics.scores import error_rate

Array: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.generic]]"
Learned: TypeAlias = "float | Tensor"
Any_C = TypeVar("Any_C", bound="Calibrator")


class Calibrator(Estimator, ABC):
    """Repairs the probabilities of a trained classifier, learned from logits and labels it was not trained on.

    A subclass names what it learns (``learned``), how it is learned (``_fit``) and the pure function that applies it
    (``transform``). Constructor arguments are hyper-parameters only; what is learned ends in an underscore.

    Attributes:
        preserves_accuracy: Whether the top class of an example never changes.
        learned: Names of what ``transform`` takes besides the logits, without the underscore.
    """

    preserves_accuracy: ClassVar[bool] = False
    learned: ClassVar[tuple[str, ...]] = ()
    transform: ClassVar[Callable[..., Tensor]]
    # Whether classes are treated apart, so that a class without examples is left in the dark.
    needs_every_class: ClassVar[bool] = True
    # Precision of `wrap`. Tables of probabilities need float64, where 1 - 1e-9 is not yet 1: networks are often that sure.
    layer_dtype: ClassVar[torch.dtype] = torch.float32
    # Logits of the fit data beyond which a fit takes more than one thread.
    most_for_one_thread: ClassVar[int] = 2_000_000

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
        given = weights if sample_weight is None else sample_weight
        data = self._check_input(logits, labels, given, ignore_index=ignore_index, where=where)
        self._check_enough(data)
        warn_of(self.doubts(data))
        self._learn(data)
        self._seen = marks_to_keep(data.logits if data.logits.ndim == 2 else data.logits[0])
        return self

    def _check_input(
        self,
        logits: ArrayLike | Predictions,
        labels: ArrayLike | None,
        weights: ArrayLike | None,
        *,
        ignore_index: int | None,
        where: str,
    ) -> FitData:
        return check_fit_input(logits, labels, weights, ignore_index=ignore_index, where=where)

    def _check_enough(self, data: FitData) -> None:
        """Raise ``FitError`` if nothing can be learned from so few examples; most methods learn from one."""
        return

    def doubts(self, data: FitData) -> list[str]:
        """Why a fit on ``data`` may not be trusted, whatever it will find: too few examples, a class without any."""
        where = f"{type(self).__name__}.fit"
        few = few_examples(data, fewest=self.fewest_samples(data.num_classes), where=where)
        return [doubt for doubt in (few, doubt_classes(data, where=where) if self.needs_every_class else None) if doubt]

    def _learn(self, data: FitData) -> None:
        with one_thread(when=data.logits.numel() <= self.most_for_one_thread):
            found = self._fit(data)
        if not all(bool(torch.isfinite(torch.as_tensor(value)).all()) for value in found.values()):
            raise FitError(
                f"{type(self).__name__}.fit: the fit must give finite numbers, and did not. Look at the scale of the logits."
            )
        for name, value in found.items():
            setattr(self, f"{name}_", value)
        self.num_classes_ = data.num_classes

    def settle(self, data: FitData) -> Calibrator:
        """Return a calibrator of this kind whose hyper-parameters need not be chosen from data any more: itself, mostly."""
        return self

    @abstractmethod
    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        """Return what was learned, under the names of ``learned``."""

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return 10 * num_classes

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
        return self._give_back(logits, what="predict_proba")

    @overload
    def predict_log_proba(self, logits: Tensor | Predictions) -> Tensor: ...
    @overload
    def predict_log_proba(self, logits: ArrayLike) -> Tensor | Array: ...
    def predict_log_proba(self, logits: ArrayLike | Predictions) -> Tensor | Array:
        """Return calibrated log-probabilities, as `predict_proba` does; these do not underflow."""
        return self._give_back(logits, what="predict_log_proba")

    @overload
    def predict(self, logits: Tensor | Predictions) -> Tensor: ...
    @overload
    def predict(self, logits: ArrayLike) -> Tensor | Array: ...
    def predict(self, logits: ArrayLike | Predictions) -> Tensor | Array:
        """Return the class ``[N]`` of most calibrated probability, as tensor or numpy array as `predict_proba` does."""
        return self._give_back(logits, what="predict").argmax(1)

    def score(self, logits: ArrayLike, labels: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return the accuracy, as scikit-learn's classifiers do; a calibrator is better told by ``"neg_log_loss"``."""
        return 1 - float(error_rate(self.predict_proba(logits), labels, weights=sample_weight))

    def apply(self, predictions: Predictions) -> Predictions:
        """Return the record with calibrated log-probabilities as logits (float64) and everything else kept."""
        return predictions.replace(logits=self._checked_log_probs(predictions.logits, where=f"{type(self).__name__}.apply"))

    def _give_back(self, logits: ArrayLike | Predictions, *, what: str) -> Tensor | Array:
        where = f"{type(self).__name__}.{what}"
        given = logits.logits if isinstance(logits, Predictions) else logits
        scores = to_tensor(given, where=where, name="logits")
        found = self._checked_log_probs(scores, where=where)
        found = (found.exp_() if what == "predict_proba" else found).to(at_least_single(scores[:0]).dtype)
        return found if isinstance(given, Tensor) else np.asarray(found.numpy())

    def _checked_log_probs(self, scores: Tensor, *, where: str) -> Tensor:
        self._check_fitted(where)
        self._check_scores(scores, where=where)
        flat = scores if scores.ndim == 2 else scores.movedim(1, -1).reshape(-1, scores.shape[1])
        if len(flat):
            check_before_softmax(flat, where=where)
        warn_if_seen(flat, self._seen, where=where)
        found = self.log_probs(flat)
        if scores.ndim == 2:
            return found
        return found.reshape(scores.shape[0], *scores.shape[2:], scores.shape[1]).movedim(-1, 1)

    def _check_fitted(self, where: str) -> None:
        if not self.is_fitted:
            raise RuntimeError(f"{where}: the calibrator must be fitted before it is used. Call `fit(logits, labels)` first.")

    def _check_scores(self, scores: Tensor, *, where: str) -> None:
        if scores.ndim < 2 or not scores.is_floating_point():
            raise ValueError(f"{where}: `logits` must be floating [N, C], got {scores.dtype} {list(scores.shape)}.")
        if scores.shape[1] != self.num_classes_:
            raise ValueError(
                f"{where}: `logits` must have the C = {self.num_classes_} classes of the fit, got {list(scores.shape)}."
            )

    def log_probs(self, logits: Tensor) -> Tensor:
        """Apply the repair to checked ``logits [N, C]``, some rows at a time in float64; no guard rails."""
        learned = {name: value.to(logits.device) for name, value in self.learned_values().items()}
        rows = chunk_rows(int(logits.shape[-1]))
        result = torch.empty(logits.shape, dtype=torch.float64, device=logits.device)
        for at in range(0, len(logits), rows):
            part = logits[at : at + rows].double()
            found = type(self).transform(part, **learned)
            result[at : at + rows] = keep_top(found, part) if self._keeps_top else found
        return result

    @property
    def _keeps_top(self) -> bool:
        return self.preserves_accuracy and bool(self.learned)

    def learned_values(self) -> dict[str, Tensor]:
        """Return what was learned as float64 tensors, by the names of ``learned``."""
        return {name: torch.as_tensor(getattr(self, f"{name}_"), dtype=torch.float64) for name in self.learned}

    def wrap(self, model: nn.Module, *, dtype: torch.dtype | None = None) -> nn.Module:
        """Return a module that runs ``model`` and calibrates its logits.

        Its output are calibrated *log*-probabilities: logits again, whose softmax is their exponential, so that code written
        for the bare model keeps working. What was learned is in its ``state_dict`` under ``calibration.``.

        Args:
            model: Network that returns logits ``[B, C]`` or ``[B, C, ...]``, alone, first in a tuple, or as the entry or
                attribute ``logits``, as models of Transformers do.
            dtype: Precision of what was learned and of the result. By default the result has that of the logits (float32 for
                half precision), and what was learned is held in float32, or in float64 where it is a table of probabilities;
                a device without float64 needs ``dtype=torch.float32``.

        Returns:
            The module; it takes the arguments of ``model``, positional and by name, and returns a tensor whatever the model
            returns. Put it into evaluation mode before use, as any network.
        """
        self._check_fitted(f"{type(self).__name__}.wrap")
        return CalibratedModel(model, self.as_layer(dtype=dtype))

    def as_layer(self, *, dtype: torch.dtype | None = None) -> nn.Module:
        """Return the repair alone as a module from logits to calibrated log-probabilities; ``dtype`` as in `wrap`."""
        self._check_fitted(f"{type(self).__name__}.as_layer")
        return CalibrationLayer(
            type(self).transform,
            self.learned_values(),
            dtype=dtype or self.layer_dtype,
            out_dtype=dtype,
            keeps_top=self._keeps_top,
        )

    def to_dict(self) -> dict[str, object]:
        """Return hyper-parameters and what was learned as plain data."""
        self._check_fitted(f"{type(self).__name__}.to_dict")
        from calibrant.calibrators import name_of

        return {
            "calibrator": name_of(self),
            "num_classes": self.num_classes_,
            "hyperparameters": self.get_params(),
            "learned": {name: value.tolist() for name, value in self.learned_values().items()},
        }

    def _restore(self, learned: Mapping[str, object], num_classes: int) -> None:
        for name in self.learned:
            value = learned[name]
            setattr(
                self, f"{name}_", torch.tensor(value, dtype=torch.float64) if isinstance(value, list) else float(str(value))
            )
        self.num_classes_ = num_classes

    @classmethod
    def from_dict(cls: type[Any_C], data: Mapping[str, object]) -> Any_C:
        """Return the calibrator that `to_dict` described; raise ``ValueError`` if it is another kind than this class."""
        from calibrant.calibrators import ALL_CALIBRATORS

        try:
            kind = lookup(ALL_CALIBRATORS, str(data["calibrator"]), kind="calibrator")
            given, learned, num_classes = data["hyperparameters"], data["learned"], data["num_classes"]
            assert isinstance(given, Mapping)
            assert isinstance(learned, Mapping)
            made = kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in given.items()})
            made._restore(learned, int(str(num_classes)))
        except (KeyError, TypeError, AssertionError, RuntimeError) as error:
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
        from calibrant.io.json_file import write_json

        write_json(self.to_dict(), path, kind="calibrator")

    @classmethod
    def load(cls: type[Any_C], path: str | Path) -> Any_C:
        """Read a calibrator from a file that `save` wrote; nothing in it can run code."""
        from calibrant.io.json_file import read_json

        return cls.from_dict(read_json(path, kind="calibrator"))
