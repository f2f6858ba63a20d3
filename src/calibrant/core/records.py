"""The frozen records that cross rooms: what a model predicted, how it was binned, what was measured of it, and a run.

Nothing here computes a metric; `calibrant.metrics` does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import (
    MOST_BINS,
    ArrayLike,
    check_before_softmax,
    check_choice,
    check_count,
    check_label_values,
    check_prob_values,
    check_shapes,
    check_weights,
    lookup,
    read_labels,
    refuse_masked,
    to_tensor,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

Column = np.ndarray[tuple[int, ...], np.dtype[np.generic]]
Kind = Literal["probs", "logits"]


class Split(StrEnum):
    """Which part of the data predictions were made on. Calibrators refuse to be fitted on ``TEST``."""

    TRAIN = "train"
    VAL = "val"
    META = "meta"
    TEST = "test"


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Predictions:
    """What a classifier predicted for N examples, and the true labels. Checked once, then never changed.

    Give exactly one of ``logits`` and ``probs``; the other is derived on demand (log-probabilities are logits). Tensors on any
    device, numpy arrays and nested lists will do; the record keeps them on the CPU. It shares the memory of arrays that are
    there already, so give it ``array.copy()`` of a buffer that you will write to again.

    Args:
        logits: Scores ``[N, C]`` (or dense ``[N, C, ...]``) whose softmax is the probability; ``-inf`` is probability zero.
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one within their dtype's rounding.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``, of any type; or names from ``class_names``.
        split: Part of the data: "train", "val", "meta" or "test".
        weights: Sample weights, shaped as the labels, non-negative.
        columns: Further columns of N values, to slice by: name → values.
        class_names: C names in the order of the classes.
        ignore_index: Label that marks examples to leave out (as in segmentation).
        where: Where the examples come from, for messages.
        first_row: Number of the first example there, for messages.

    Attributes:
        scores: The logits or probabilities ``[N, C]`` as given.
        has_logits: Whether these are logits.

    Example:
        >>> predictions = Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0], split="test")
        >>> len(predictions), predictions.num_classes, predictions.confidence.tolist(), predictions.correct.tolist()
        (2, 2, [0.9, 0.8], [True, False])
    """

    scores: Tensor
    has_logits: bool
    labels: Tensor
    split: Split | None
    weights: Tensor | None
    columns: Mapping[str, Column]
    class_names: tuple[str, ...] | None

    def __init__(
        self,
        *,
        logits: ArrayLike | None = None,
        probs: ArrayLike | None = None,
        labels: ArrayLike,
        split: Split | str | None = None,
        weights: ArrayLike | None = None,
        columns: Mapping[str, ArrayLike] | None = None,
        class_names: Sequence[str] | None = None,
        ignore_index: int | None = None,
        where: str = "Predictions",
        first_row: int = 0,
    ) -> None:
        given, kind = one_of(logits=logits, probs=probs, where=where)
        scores, target, weight, kept = check_examples(
            given,
            labels,
            weights,
            kind=kind,
            where=where,
            class_names=class_names,
            ignore_index=ignore_index,
            first_row=first_row,
        )
        if split is not None:
            check_choice(split, [part.value for part in Split], where=where, name="split")
        # A data frame, of pandas or polars, has its names in `columns`.
        beside = {} if columns is None else columns
        table = {name: _as_column(beside[name], name) for name in getattr(beside, "columns", beside)}
        for name, values in table.items():
            if len(values) not in (len(kept), len(target)):
                raise ValueError(f"{where}: column `{name}` must have N = {len(kept)} values, got {len(values)}.")
        # The class is frozen, so fields cannot be assigned.
        vars(self).update(
            scores=scores,
            has_logits=kind == "logits",
            labels=target,
            split=None if split is None else Split(split),
            weights=weight,
            columns={k: v if len(v) == len(target) else v[kept.numpy()] for k, v in table.items()},
            class_names=None if class_names is None else tuple(str(n) for n in class_names),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        kind = "logits" if self.has_logits else "probs"
        split = f", split={self.split.value}" if self.split else ""
        return f"Predictions(N={len(self)}, C={self.num_classes}, from {kind}{split})"

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return int(self.scores.shape[1])

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities ``[N, C]``: as given, or the softmax of the logits in float64."""
        return self.scores.double().softmax(1) if self.has_logits else self.scores

    @cached_property
    def logits(self) -> Tensor:
        """Logits ``[N, C]``: as given, or the logarithm of the probabilities in float64 (zero becomes ``-inf``)."""
        return self.scores if self.has_logits else self.scores.double().log()

    @property
    def confidence(self) -> Tensor:
        """Top probability of each example, ``[N]``, float64."""
        return self.probs.amax(1).double()

    @property
    def predicted(self) -> Tensor:
        """Index of the top class of each example (the first one where several tie), ``[N]``."""
        return self.scores.argmax(1)

    @property
    def correct(self) -> Tensor:
        """Whether the top class is the label, ``[N]``, bool."""
        return self.predicted == self.labels

    @property
    def counted(self) -> Predictions:
        """The record without examples of weight zero, which count nothing in any measurement or fit."""
        return self if self.weights is None or bool(self.weights.all()) else self.subset(self.weights > 0)

    def replace(
        self,
        *,
        logits: ArrayLike | None = None,
        probs: ArrayLike | None = None,
        split: Split | str | None = None,
        weights: ArrayLike | None = None,
        class_names: Sequence[str] | None = None,
        columns: Mapping[str, ArrayLike] | None = None,
    ) -> Predictions:
        """Return a copy with other scores, split, weights, class names or columns, and everything else kept."""
        given: dict[str, object] = {"logits": logits, "probs": probs, "split": split, "weights": weights}
        given |= {"class_names": class_names, "columns": columns}
        return self._with(**{name: value for name, value in given.items() if value is not None})

    def subset(self, index: ArrayLike) -> Predictions:
        """Return the examples that ``index`` (a boolean mask or positions) picks, as a new record."""
        picked = to_tensor(index, where="Predictions.subset", name="index").cpu()
        rows = picked.nonzero().squeeze(1) if picked.dtype == torch.bool else picked.long()
        if rows.numel() == 0:
            raise ValueError("Predictions.subset: `index` must pick at least one example, got none.")
        return self._with(
            **{"logits" if self.has_logits else "probs": self.scores[rows]},
            labels=self.labels[rows],
            weights=None if self.weights is None else self.weights[rows],
            columns={name: values[rows.numpy()] for name, values in self.columns.items()},
        )

    def _with(self, **changes: Any) -> Predictions:
        same = {name: getattr(self, name) for name in ("labels", "split", "weights", "columns", "class_names")}
        if not changes.keys() & {"logits", "probs"}:
            same["logits" if self.has_logits else "probs"] = self.scores
        return Predictions(**{**same, **changes})

    @classmethod
    def from_binary(
        cls,
        *,
        probs: ArrayLike | None = None,
        logits: ArrayLike | None = None,
        labels: ArrayLike,
        split: Split | str | None = None,
        weights: ArrayLike | None = None,
        columns: Mapping[str, ArrayLike] | None = None,
        class_names: Sequence[str] | None = None,
    ) -> Predictions:
        """Make the two-class record of a binary problem.

        Args:
            probs: Probability ``[N]`` or ``[N, 1]`` of the positive class (label 1).
            logits: Or its log-odds, the input of a sigmoid.
            labels: 0 or 1, ``[N]`` or as the scores.
            split: As in the constructor, like the following.
            weights: Sample weights.
            columns: Further columns.
            class_names: Two names.

        Returns:
            A record with C = 2. Its top-label metrics rate max(p, 1 - p); the ``binary_`` metrics rate p itself.
        """
        where = "Predictions.from_binary"
        given, kind = one_of(logits=logits, probs=probs, where=where)
        score = to_tensor(given, where=where, name=kind)
        if score.shape[1:] not in ((), (1,)) or not score.is_floating_point():
            got = f"{score.dtype} {list(score.shape)}"
            hint = " Use `Predictions(...)` for the scores of both classes."
            raise ValueError(f"{where}: `{kind}` must be floating [N], got {got}.{hint}")
        target = read_labels(labels, score.shape, where=where, names=class_names)
        both: dict[str, Any] = {kind: both_classes(score.reshape(-1), kind)}
        return cls(
            **both,
            labels=target.reshape(-1) if target.shape[1:] == (1,) else target,
            split=split,
            weights=weights,
            columns=columns,
            class_names=class_names,
            where=where,
        )

    @classmethod
    def from_model(
        cls,
        model: torch.nn.Module,
        loader: Iterable[object],
        *,
        split: Split | str | None = None,
        device: torch.device | str | None = None,
        progress: bool = True,
        class_names: Sequence[str] | None = None,
        ignore_index: int | None = None,
    ) -> Predictions:
        """Run ``model`` over ``loader`` (eval mode, no grad) and keep its logits; see `calibrant.core.collect`."""
        from calibrant.core.collect import collect_logits

        logits, labels = collect_logits(model, loader, device=device, progress=progress)
        return cls(logits=logits, labels=labels, split=split, class_names=class_names, ignore_index=ignore_index)

    @classmethod
    def load(cls, path: str | Path) -> Predictions:
        """Read a ``.npz``, ``.csv``, ``.parquet`` or ``.pt`` file; see `calibrant.io.load_predictions`."""
        from calibrant.io import load_predictions

        return load_predictions(path)

    def save(self, path: str | Path) -> None:
        """Write a ``.npz``, ``.csv``, ``.parquet`` or ``.pt`` file; see `calibrant.io.save_predictions`."""
        from calibrant.io import save_predictions

        save_predictions(self, path)


@dataclass(frozen=True)
class Bins:
    """Examples grouped by confidence: the content of a reliability diagram.

    Attributes:
        edges: ``[M + 1]``, or the confidence where an equal-mass bin begins and ends.
        count: Examples in each bin ``[M]`` (fractional where ties are shared; their weight where they have weights).
        confidence: Mean confidence ``[M]``, 0 in an empty bin.
        accuracy: Share of right predictions ``[M]``, 0 in an empty bin.
        rows: Number of examples in each bin ``[M]``, where they have weights and it was counted; else None.
    """

    edges: Tensor
    count: Tensor
    confidence: Tensor
    accuracy: Tensor
    rows: Tensor | None = None

    @property
    def weight(self) -> Tensor:
        """Share of all examples in each bin ``[M]``, summing to one."""
        return self.count / self.count.sum()

    @property
    def gap(self) -> Tensor:
        """Confidence minus accuracy ``[M]``: positive where the model is over-confident."""
        return self.confidence - self.accuracy


def one_of(*, logits: ArrayLike | None, probs: ArrayLike | None, where: str) -> tuple[ArrayLike, Kind]:
    """Return the scores that were given and what they are; raise unless exactly one of the two is given."""
    if logits is not None and probs is None:
        return logits, "logits"
    if probs is not None and logits is None:
        return probs, "probs"
    raise ValueError(f"{where}: exactly one of `logits` and `probs` must be given.")


def both_classes(score: Tensor, kind: str) -> Tensor:
    """Scores ``[N, 2]`` of a binary problem from the probability or log-odds ``[N]`` of its positive class."""
    return torch.stack([1 - score if kind == "probs" else torch.zeros_like(score), score], 1)


def refuse_test_split(predictions: Predictions, *, where: str) -> None:
    """Raise if the record is marked as test data."""
    if predictions.split is Split.TEST:
        raise ValueError(f"{where}: the data must not be marked as test data, got split 'test'. Fit on validation data.")


def as_predictions(
    probs: ArrayLike | Predictions | None,
    labels: ArrayLike | None = None,
    *,
    where: str,
    n_bins: int = 1,
    p: float = 1,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Predictions:
    """Check the arguments that metrics share, and return ``(probs, labels)``, or a `Predictions`, as a checked record.

    Weights, if given, replace those of the `Predictions`; examples of weight zero are left out. ``where`` is the calling
    function, for messages.
    """
    check_count(n_bins, where=where, name="n_bins", most=MOST_BINS)
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not p >= 1:
        raise ValueError(f"{where}: `p` must be a number >= 1 (`math.inf` for the largest gap), got {p!r}.")
    if isinstance(probs, Predictions):
        if labels is not None or ignore_index is not None:
            name = "labels" if labels is not None else "ignore_index"
            raise ValueError(f"{where}: `{name}` must not be given with a `Predictions`, which has its own.")
        return (probs if weights is None else probs.replace(weights=weights)).counted
    if labels is None:
        got = type(probs).__name__
        raise ValueError(f"{where}: `labels` must be given unless the first argument is a `Predictions`, got {got} alone.")
    return Predictions(probs=probs, labels=labels, weights=weights, ignore_index=ignore_index, where=where).counted


def as_record(
    probs: ArrayLike | Predictions | None, labels: ArrayLike | None = None, *, logits: ArrayLike | None = None, where: str
) -> Predictions:
    """`as_predictions`, but scores ``[N]`` or ``[N, 1]`` are those of the positive class of a binary problem."""
    if labels is None or isinstance(probs, Predictions):
        return as_predictions(probs, labels, where=where)
    scores, kind = one_of(probs=probs, logits=logits, where=where)
    given: dict[str, Any] = {kind: scores, "labels": labels}
    is_binary = np.ndim(scores) == 1 or np.shape(scores)[1:] == (1,)
    return Predictions.from_binary(**given) if is_binary else Predictions(**given, where=where)


def check_examples(
    given: ArrayLike | None,
    labels: ArrayLike,
    weights: ArrayLike | None,
    *,
    kind: Kind,
    where: str,
    class_names: Sequence[str] | None = None,
    ignore_index: int | None = None,
    first_row: int = 0,
    device: torch.device | str = "cpu",
    allow_empty: bool = False,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    """Make checked tensors of arrays of any kind, flatten dense input, and leave out the examples to ignore.

    The arguments are those of `Predictions`, the ``device`` for the result, and ``allow_empty``, whether there may be no
    example left.

    Returns:
        Scores ``[n, C]``, labels ``[n]`` int64, weights ``[n]`` float64 or None; and a mask of the examples that were kept.
    """
    scores = to_tensor(given, where=where, name=kind).to(device)
    if class_names is not None and scores.ndim > 1 and len(class_names) != scores.shape[1]:
        raise ValueError(f"{where}: `class_names` must hold C = {scores.shape[1]} names, got {len(class_names)}.")
    target = read_labels(
        labels,
        [*scores.shape[:1], *scores.shape[2:]],
        where=where,
        names=class_names,
        first_row=first_row,
        ignore_index=ignore_index,
    ).to(device)
    check_shapes(scores, target, where=where, kind=kind, allow_empty=allow_empty)
    weight = None if weights is None else to_tensor(weights, where=where, name="weights").to(device).double()
    if weight is not None and target.numel():
        check_weights(weight, target, where=where)
        # What rounding would lose beside the largest weight counts nothing.
        weight = weight * (weight >= 1e-16 * weight.max())
    if scores.ndim > 2:
        scores, target = scores.movedim(1, -1).reshape(-1, scores.shape[1]), target.reshape(-1)
        weight = None if weight is None else weight.reshape(-1)
    kept = torch.ones_like(target, dtype=torch.bool) if ignore_index is None else target != ignore_index
    if not bool(kept.all()):
        scores, target, weight = scores[kept], target[kept], None if weight is None else weight[kept]
    if len(target) == 0:
        if allow_empty:
            return scores, target.long(), weight, kept
        raise ValueError(f"{where}: `labels` must hold at least one example that is not ignored, got none.")
    if weight is not None and ignore_index is not None:
        check_weights(weight, target, where=where)
    check_label_values(target, scores.shape[1], where=where)
    (check_prob_values if kind == "probs" else check_before_softmax)(scores, where=where, first_row=first_row)
    return scores, target.long(), weight, kept


def _as_column(values: ArrayLike, name: str) -> Column:
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy()
    refuse_masked(values, where="Predictions", name=name)
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"Predictions: column `{name}` must be [N], got {list(array.shape)}.")
    if array.dtype.kind == "O":
        array = array.astype(str)
    return array


class Estimate(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    def __float__(self) -> float:
        return self.value


class IfCalibrated(NamedTuple):
    """The ECE of a perfectly calibrated model with these confidences: mean, 95th percentile, and how often it exceeds ours."""

    mean: float
    p95: float
    p_value: float


class Paired(NamedTuple):
    """Difference of two models on the same examples (second minus first), its interval and two-sided p-value."""

    difference: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class Promise:
    """A guaranteed error: the threshold learned on one set of examples, and what it does on another.

    Attributes:
        max_error: The largest share of wrong answers.
        threshold: The confidence above which to answer; None where nothing can be guaranteed.
        coverage: Share of the other examples that are answered.
        error: Share of these answers that are wrong; nan where there is none.
        answered: Number of these answers.
        reason: Why nothing can be guaranteed.
    """

    max_error: float
    threshold: float | None = None
    coverage: float = 0.0
    error: float = math.nan
    answered: int = 0
    reason: str = ""


@dataclass(frozen=True)
class ClassScore:
    """How one class is calibrated.

    Attributes:
        index: Class index.
        name: Its name, or the index as text.
        count: Examples that carry this label.
        ece: Its term of the classwise ECE (15 equal-width bins over this class's probability).
        signed_gap: Mean probability given to the class minus its frequency; positive is over-prediction.
        error: Share of its examples that are misclassified (nan where it has none).
        weight: Sum of the weights of its examples; None without weights.
        chance: What ``signed_gap`` would stay below in 95 of 100 cases if the class were calibrated; None where unknown.
    """

    index: int
    name: str
    count: float
    ece: float
    signed_gap: float
    error: float
    weight: float | None = None
    chance: float | None = None


@dataclass(frozen=True)
class PositiveClass:
    """How the probability of the positive class of a binary problem, the second one, is calibrated.

    Attributes:
        name: Name of the class, or None.
        predicted: Mean of its probability.
        observed: Share of examples that carry its label.
        if_calibrated: The calibration error to expect of a perfectly calibrated model.
        bins: Content of its reliability diagram; confidence is the probability, accuracy the share of positives.
    """

    name: str | None
    predicted: float
    observed: float
    if_calibrated: IfCalibrated
    bins: Bins = field(compare=False)

    @property
    def probability(self) -> str:
        """Name of its probability, ``P(name)``."""
        return f"P({self.name or 'positive'})"

    def to_dict(self) -> dict[str, object]:
        """Return plain data in the schema of ``calibrant measure --json``, which leaves the bins out."""
        plain = {name: getattr(self, name) for name in ("name", "predicted", "observed")}
        return {**plain, "if_calibrated": self.if_calibrated._asdict()}


@dataclass(frozen=True, repr=False)
class Scores:
    """Everything measured of one set of predictions. Notebooks show it as a table with a reliability diagram.

    Attributes:
        n: Number of examples.
        num_classes: Number of classes.
        n_bins: Bins of the binned metrics.
        metrics: Key → estimate.
        ece_if_calibrated: The ECE to expect of a perfectly calibrated model.
        bins: Content of the reliability diagram.
        classes: Per class, worst calibrated first; on request.
        slices: Group → its own scores; on request.
        file: Where the predictions came from, if from a file.
        weight: Sum of the weights of the examples; None without weights.
        positive: How the probability of the positive class is calibrated; None with more than two classes.
    """

    n: int
    num_classes: int
    n_bins: int
    metrics: Mapping[str, Estimate]
    ece_if_calibrated: IfCalibrated
    # Tensors have no single truth value; the same numbers in `metrics` come from the same bins.
    bins: Bins = field(compare=False)
    classes: tuple[ClassScore, ...] = ()
    slices: Mapping[str, Scores] = field(default_factory=dict)
    file: str | None = None
    weight: float | None = None
    positive: PositiveClass | None = None

    def __getitem__(self, key: str) -> Estimate:
        return lookup(self.metrics, key, kind="metric")

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __contains__(self, key: object) -> bool:
        return key in self.metrics

    def to_dict(self) -> dict[str, object]:
        """Return plain data in the schema of ``calibrant measure --json``."""
        data = {
            "n": self.n,
            "weight": self.weight,
            "num_classes": self.num_classes,
            "n_bins": self.n_bins,
            "metrics": {key: estimate._asdict() for key, estimate in self.metrics.items()},
            "ece_if_calibrated": self.ece_if_calibrated._asdict(),
            "positive": self.positive and self.positive.to_dict(),
            "classes": [{key: value for key, value in vars(entry).items() if value is not None} for entry in self.classes],
            "slices": {name: scores.to_dict() for name, scores in self.slices.items()},
        }
        return {"file": self.file, **{key: value for key, value in data.items() if value}}

    def to_json(self, *, indent: int | None = None) -> str:
        """Return `to_dict` as strict JSON text: a value that is not a number is written as null."""
        return json.dumps(without_nan(self.to_dict()), indent=indent)

    @staticmethod
    def from_dict(data: Mapping[str, Any], *, bins: Bins | None = None, n_bins: int = 15) -> Scores:
        """Return the scores that `to_dict` wrote; raise ``ValueError`` naming the key that is missing or malformed.

        Args:
            data: What ``calibrant measure --json`` wrote of one file; a null is read as nan.
            bins: Content of the reliability diagram, which that schema leaves out.
            n_bins: Number of bins, where neither ``bins`` nor ``data`` says.
        """
        none = torch.empty(0, dtype=torch.float64)
        no_bins, positive = Bins(none, none, none, none), data.get("positive")
        try:
            count = int(data.get("n_bins", n_bins)) if bins is None else len(bins.count)
            if positive is not None:
                positive = positive | {"if_calibrated": IfCalibrated(**_with_nan(positive["if_calibrated"])), "bins": no_bins}
            return Scores(
                n=int(data["n"]),
                num_classes=int(data["num_classes"]),
                n_bins=count,
                metrics={key: Estimate(**_with_nan(found)) for key, found in data["metrics"].items()},
                ece_if_calibrated=IfCalibrated(**_with_nan(data["ece_if_calibrated"])),
                bins=no_bins if bins is None else bins,
                classes=tuple(ClassScore(**_with_nan(found)) for found in data.get("classes", ())),
                slices={name: Scores.from_dict(part, n_bins=count) for name, part in data.get("slices", {}).items()},
                file=data.get("file"),
                weight=data.get("weight"),
                positive=positive and PositiveClass(**positive),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"Scores.from_dict: `data` must be what `calibrant measure --json` writes, but {error}.") from None

    @property
    def main_error(self) -> tuple[str, IfCalibrated]:
        """Key of the error that decides, and what to expect of it: the ECE, with two classes that of the positive one."""
        return ("binary_ece", self.positive.if_calibrated) if self.positive else ("ece", self.ece_if_calibrated)

    def parts(self) -> dict[str, tuple[float, float, float]]:
        """Return the number of examples, error rate and `main_error` of every class and slice that was measured."""
        key, _ = self.main_error
        classes = {f"class {entry.name}": (entry.count, entry.error, entry.ece) for entry in self.classes}
        return classes | {f"slice {name}": (part.n, part["error"].value, part[key].value) for name, part in self.slices.items()}

    def __str__(self) -> str:
        key, null = self.main_error
        said = f"{key} {null.mean:.4f} (95th percentile {null.p95:.4f}); p = {null.p_value:.3g}"
        parts = self.parts()
        wide = max(map(len, (*self.metrics, *parts)))
        return "\n".join(
            [
                f"{self.n} examples, {self.num_classes} classes, {self.n_bins} bins",
                *(f"  {key:<{wide}}  {e.value:8.4f}  [{e.low:.4f}, {e.high:.4f}]" for key, e in self.metrics.items()),
                f"  a calibrated model would show {said}",
                *(
                    f"  {name:<{wide}}  {count:g} examples, error {error:.4f}, {key} {ece:.4f}"
                    for name, (count, error, ece) in parts.items()
                ),
            ]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from calibrant.plot import scores_html

        return scores_html(self)

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the reliability diagram into ``ax`` or a new figure; see `calibrant.plot.reliability`."""
        from calibrant.plot import reliability

        return reliability(self, ax=ax)

    def to_frame(self) -> DataFrame:
        """Return the metrics as a pandas data frame with the columns value, low and high."""
        import pandas as pd

        return pd.DataFrame.from_dict(self.metrics, orient="index", columns=Estimate._fields)


@dataclass(frozen=True)
class BinSweep:
    """The binned errors of one set of predictions against the number of bins.

    Attributes:
        n_bins: Numbers of bins, rising.
        ece: ECE for each.
        mce: MCE for each.
        ece_if_calibrated: Mean ECE of a calibrated model with these confidences for each; empty if unknown.
        mce_if_calibrated: Mean MCE of such a model.
    """

    n_bins: tuple[int, ...]
    ece: tuple[float, ...]
    mce: tuple[float, ...]
    ece_if_calibrated: tuple[float, ...] = ()
    mce_if_calibrated: tuple[float, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One run of a comparison; runs that differ in their seed alone are one row of a table.

    Attributes:
        data: Name of the data set.
        method: Name of the method, or of somebody's predictions.
        scores: What `calibrant.measure` says of the test predictions.
        preset: Settings of the method, ``"default"`` or ``"paper"``, or None.
        model: Name of the network, or None if unknown.
        epochs: Length of training, or None if unknown.
        seed: Seed of the run, or None if unknown.
        test: The test predictions, if they were kept. Methods with a gamma have it in the column ``gamma``.
        history: One mapping an epoch, with the keys of ``history.jsonl``; a value is None where the epoch was not evaluated.
        best_epoch: Epoch that the predictions come from.
        sweep: Binned errors against the number of bins, if they were computed.
        temperature: What ``+ts`` divided the logits by.
        recipe: Settings of the run, dotted recipe key → value; others are as the method has them.
        facts: ``command``, ``machine``, ``versions``, ``seconds``, ``examples``, ``data`` and ``note``, where known.
        folder: Where it was read from.
        is_top_label: Whether ``test`` comes from a record, which keeps only the confidence, whether it was right, and the
            probability of the true class of each example; the rest is spread evenly over the other classes.
    """

    data: str
    method: str
    scores: Scores
    preset: str | None = None
    model: str | None = None
    epochs: int | None = None
    seed: int | None = None
    test: Predictions | None = field(default=None, repr=False, compare=False)
    history: tuple[Mapping[str, float | int | None], ...] = field(default=(), repr=False)
    best_epoch: int | None = None
    sweep: BinSweep | None = field(default=None, repr=False)
    temperature: float | None = None
    recipe: Mapping[str, object] = field(default_factory=dict, repr=False)
    facts: Mapping[str, object] = field(default_factory=dict, repr=False)
    folder: str | None = None
    is_top_label: bool = False

    @property
    def is_foreign(self) -> bool:
        """Whether it is somebody's predictions: nothing is known of network and training."""
        return self.model is None and self.epochs is None

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        """Epochs, from 1, at which ``key`` was evaluated, and its values there."""
        values = ((epoch, line.get(key)) for epoch, line in enumerate(self.history, 1))
        known = [(epoch, float(value)) for epoch, value in values if value is not None]
        return [epoch for epoch, _ in known], [value for _, value in known]


def without_nan(data: object) -> Any:
    """Return plain data for strict JSON: a number that is not finite becomes None."""
    return json.loads(json.dumps(data), parse_constant=lambda _: None)


def _with_nan(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: float("nan") if value is None else value for key, value in found.items()}
