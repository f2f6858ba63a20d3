"""The frozen records that cross rooms: what a model predicted, how it was binned, and what was measured of it.

Nothing here computes a metric; `calibrant.metrics` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import (
    ArrayLike,
    check_before_softmax,
    check_choice,
    check_label_values,
    check_prob_values,
    check_shapes,
    check_weights,
    read_labels,
    refuse_masked,
    to_tensor,
)

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

    Give exactly one of ``logits`` and ``probs``; the other is derived on demand (log-probabilities are logits). Tensors,
    numpy arrays and nested lists are taken, from any device; the record keeps them on the CPU. It shares the memory of arrays
    that are there already (a copy of 50,000 x 1,000 float64 would cost 381 MB, and as much time as the checks), so give it
    ``array.copy()`` of a buffer that is written to again.

    Args:
        logits: Scores ``[N, C]`` (or dense ``[N, C, ...]``) whose softmax is the probability; ``-inf`` is probability zero.
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one within their dtype's rounding.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``, whole numbers of any type; or names from ``class_names``.
        split: Part of the data: "train", "val", "meta" or "test".
        weights: Sample weights, shaped as the labels, non-negative.
        columns: Further columns of length N to group by (slices), name → values.
        class_names: C names in the order of the classes, for tables and figures, and for labels that are names.
        ignore_index: Label that marks examples to leave out (as in segmentation).
        where: Where the examples come from (a file), for messages.
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
        table = {name: _as_column(values, name) for name, values in (columns or {}).items()}
        for name, values in table.items():
            if len(values) not in (len(kept), len(target)):
                raise ValueError(f"{where}: column `{name}` must have N = {len(kept)} values, got {len(values)}.")
        # The fields are frozen: they are set behind the back of the class.
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
        """Return a copy with other scores, split, weights, class names or columns and everything else kept."""
        scores = {name: value for name, value in (("logits", logits), ("probs", probs)) if value is not None}
        other = {"split": split, "weights": weights, "class_names": class_names, "columns": columns}
        return self._with(**scores, **{name: value for name, value in other.items() if value is not None})

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

        The other arguments are those of the constructor.

        Args:
            probs: Probability ``[N]`` or ``[N, 1]`` of the positive class (label 1).
            logits: Or its log-odds, the input of a sigmoid.
            labels: 0 or 1, ``[N]`` or as the scores.
            split: Part of the data.
            weights: Sample weights.
            columns: Further columns.
            class_names: Two names.

        Returns:
            A record with C = 2. Its top-label metrics rate max(p, 1 - p); the ``binary_`` metrics rate p itself.
        """
        where = "Predictions.from_binary"
        given, kind = one_of(logits=logits, probs=probs, where=where)
        score = to_tensor(given, where=where, name=kind)
        score = score.squeeze(1) if score.shape[1:] == (1,) else score
        if score.ndim != 1 or not score.is_floating_point():
            got = f"{score.dtype} {list(score.shape)}"
            hint = " Use `Predictions(...)` for the scores of both classes."
            raise ValueError(f"{where}: `{kind}` must be floating [N], got {got}.{hint}")
        target = read_labels(labels, score.shape, where=where, names=class_names)
        both: dict[str, Any] = {kind: both_classes(score, kind)}
        return cls(
            **both,
            labels=target.reshape(-1) if target.shape == (len(score), 1) else target,
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


def as_predictions(
    probs: ArrayLike | Predictions | None,
    labels: ArrayLike | None = None,
    *,
    where: str,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Predictions:
    """Return the arguments of a metric, ``(probs, labels)`` or one `Predictions`, as a checked record.

    Weights, if given, take the place of those of the `Predictions`. ``where`` is the calling function, for messages.
    """
    if isinstance(probs, Predictions):
        if labels is not None or ignore_index is not None:
            name = "labels" if labels is not None else "ignore_index"
            raise ValueError(f"{where}: `{name}` must not be given with a `Predictions`, which has its own.")
        return probs if weights is None else probs.replace(weights=weights)
    if labels is None:
        got = type(probs).__name__
        raise ValueError(f"{where}: `labels` must be given unless the first argument is a `Predictions`, got {got} alone.")
    return Predictions(probs=probs, labels=labels, weights=weights, ignore_index=ignore_index, where=where)


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
    """The one gate for examples: arrays of any kind become checked tensors, dense input plain, ignored examples go.

    The arguments are those of `Predictions`; ``device`` is where the result lies, and ``allow_empty`` whether there may be no
    example, or none that is not ignored.

    Returns:
        Scores ``[n, C]``, labels ``[n]`` int64, weights ``[n]`` float64 or None; and which examples were kept, a mask.
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
        # What rounding would lose beside the largest counts nothing.
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
