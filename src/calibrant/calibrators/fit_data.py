"""What a fit is given, checked once: logits, labels and weights; and how rows seen in a fit are recognised later."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.calibrators.log_space import floor_logits
from calibrant.core.checks import (
    ArrayLike,
    check_before_softmax,
    check_label_values,
    check_shapes,
    check_weights,
    to_tensor,
)
from calibrant.core.labels import label_shape, read_labels
from calibrant.core.records import Predictions, Split, flatten_examples

# Entries of [N, C] that are widened to float64 at once. 256 rows of 1,000 classes stay in the cache: a pass over 50,000 x
# 1,000 takes 0.18 s of processor time, and 0.43 s with four times as many.
CHUNK_ENTRIES = 256_000
# Columns that identify a row, at most: that two rows agree in so many numbers by chance is out of the question.
_HASHED_COLUMNS = 16
# Rows of a fit must be this distinct before equal rows can mean that data was used twice: rounded scores repeat themselves.
_LEAST_DISTINCT = 0.9
# Share of the rows to be repaired that must have been seen in the fit before it is worth a warning.
_LEAST_SHARED = 0.05
# A method that asks for no more examples than this has few parameters.
_FEW_FOR_ALL = 100


class CalibrationWarning(UserWarning):
    """A calibrator works, but what it was given makes its result doubtful."""


class BoundWarning(CalibrationWarning):
    """A temperature ended at its bound: the best one lies beyond it, or there is none."""


@dataclass(frozen=True)
class FitData:
    """Checked input of a fit, on the CPU.

    Attributes:
        logits: Scores ``[N, C]`` in the precision in which they came (half precision widened to float32).
        labels: Class indices ``[N]``.
        weights: Weights ``[N]``, float64, positive, with mean one.
    """

    logits: Tensor
    labels: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return int(self.logits.shape[-1])

    def class_weight(self) -> Tensor:
        """Total weight of the examples of each class ``[C]``, float64."""
        return torch.zeros(self.num_classes, dtype=torch.float64).index_add_(0, self.labels, self.weights)

    def subset(self, rows: Tensor) -> FitData:
        """Return the examples at the positions ``rows``, their weights scaled to mean one again."""
        weights = self.weights[rows]
        return FitData(self.logits[rows], self.labels[rows], weights / weights.mean())


# Stands for a logit of -inf where 0 * inf must not be met: at any temperature its exponential is zero.
_ABSENT = -1e30


def possible_labels(data: FitData, *, warn_as: str | None = None) -> FitData:
    """Leave out examples whose label has probability zero, whatever the temperature, and make all logits finite.

    Such an example has the same infinite NLL at every temperature and says nothing about it. Where all are such, the logits
    are floored instead.

    Args:
        data: Checked logits ``[N, C]`` or samples of them ``[S, N, C]``, labels and weights.
        warn_as: Name of the fit that warns of what was left out; None: none does.

    Returns:
        The other examples, or ``data`` itself where every logit is finite.
    """
    absent = torch.isneginf(data.logits)
    if not bool(absent.any()):
        return data
    index = data.labels.unsqueeze(1).expand(*absent.shape[:-1], 1)
    impossible = absent.gather(-1, index).reshape(-1, len(data)).all(0)
    left_out = int(impossible.sum())
    if left_out == len(data):
        return FitData(floor_logits(data.logits), data.labels, data.weights)
    if left_out and warn_as is not None:
        warn(
            f"{warn_as}: {left_out} of {len(data)} examples have a label of probability zero, which no temperature changes; "
            "they were left out. Use ensemble temperature scaling, which leaves no class without a chance."
        )
    kept, weights = ~impossible, data.weights[~impossible]
    logits = data.logits.masked_fill(absent, _ABSENT)
    return FitData(logits[..., kept, :], data.labels[kept], weights / weights.mean())


def check_fit_input(
    logits: ArrayLike | Predictions,
    labels: ArrayLike | None,
    weights: ArrayLike | None,
    *,
    where: str,
    ignore_index: int | None = None,
) -> FitData:
    """Convert and check the arguments of ``fit``; dense ``[N, C, ...]`` input becomes ``[N, C]``."""
    if isinstance(logits, Predictions):
        if ignore_index is not None:
            raise ValueError(f"{where}: `ignore_index` must not be given with a `Predictions`. Give it to `Predictions(...)`.")
        return _from_predictions(logits, labels, weights, where=where)
    if labels is None:
        raise ValueError(
            f"{where}: `labels` must be given with logits, got none. Pass `fit(logits, labels)` or a `Predictions`."
        )
    scores = to_tensor(logits, where=where, name="logits").cpu()
    target = read_labels(labels, label_shape(scores), where=where, ignore_index=ignore_index).cpu()
    check_shapes(scores, target, where=where, kind="logits")
    weight = None if weights is None else to_tensor(weights, where=where, name="weights").cpu().double()
    if weight is not None:
        check_weights(weight, target, where=where)
    scores, target, weight, _ = flatten_examples(scores, target, weight, ignore_index=ignore_index, where=where)
    if weight is not None and ignore_index is not None:
        check_weights(weight, target, where=where)
    check_label_values(target, scores.shape[1], where=where)
    check_before_softmax(scores, where=where)
    return weighted_data(at_least_single(scores), target.long(), weight)


def _from_predictions(predictions: Predictions, labels: ArrayLike | None, weights: ArrayLike | None, *, where: str) -> FitData:
    if labels is not None:
        raise ValueError(f"{where}: `labels` must not be given with a `Predictions`, which holds its own.")
    refuse_test_split(predictions, where=where)
    weight = predictions.weights if weights is None else to_tensor(weights, where=where, name="weights").cpu().double()
    if weight is not None:
        check_weights(weight, predictions.labels, where=where)
    return weighted_data(at_least_single(predictions.logits), predictions.labels, weight)


def refuse_test_split(predictions: Predictions, *, where: str) -> None:
    """Raise if the record is marked as test data."""
    if predictions.split is Split.TEST:
        raise ValueError(
            f"{where}: the data must not be marked as test data, got split 'test'. Fit on validation data: "
            "measured on the data it was fitted on, any repair looks better than it is."
        )


def refuse_other_names(given: Predictions, other: Predictions, *, what: str, of: str) -> None:
    """Raise if both records name their classes and the names differ: a map for every class would go to the wrong ones."""
    if given.class_names is None or other.class_names is None:
        return
    same = sorted(given.class_names) == sorted(other.class_names)
    hint = "Bring names, scores and labels of both into one order" if same else "Spell them alike if they are the same classes"
    for k, (got, expected) in enumerate(zip(given.class_names, other.class_names, strict=True)):
        if got != expected:
            raise ValueError(
                f"{what} must have the classes of {of} in their order, got {got!r} for {expected!r} as class {k}. {hint}."
            )


def at_least_single(values: Tensor) -> Tensor:
    """Widen half precision to float32; leave other dtypes."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def weighted_data(logits: Tensor, labels: Tensor, weights: Tensor | None) -> FitData:
    """Scale weights to mean one and leave out examples of weight zero, of which nothing may depend."""
    if weights is None:
        return FitData(logits, labels, torch.ones(len(labels), dtype=torch.float64))
    if bool((weights == 0).any()):
        kept = weights > 0
        logits, labels, weights = logits[..., kept, :], labels[kept], weights[kept]
    return FitData(logits, labels, weights / weights.mean())


def chunk_rows(num_classes: int) -> int:
    """How many rows to widen to float64 at once."""
    return max(CHUNK_ENTRIES // num_classes, 1)


def warn(message: str, category: type[CalibrationWarning] = CalibrationWarning) -> None:
    """Warn, naming the line that called a method of a calibrator."""
    warnings.warn(message, category, stacklevel=4)


def warn_of(doubts: Iterable[str]) -> None:
    """Warn of each of ``doubts``, naming the line that called the fit."""
    for doubt in doubts:
        warn(doubt)


def few_examples(data: FitData, *, fewest: int, where: str, what: str = "this method") -> str | None:
    """Say that the examples are fewer than ``fewest``, too few for ``what``; None if they are not."""
    if len(data) >= fewest:
        return None
    count = f"{len(data)} examples are" if len(data) > 1 else "one example is"
    other = ", or a method with fewer parameters such as temperature scaling" if fewest > _FEW_FOR_ALL else ""
    return (
        f"{where}: {count} few for {what} ({fewest} or more are advised with {data.num_classes} classes). "
        f"Use more validation data{other}."
    )


def missing_classes(data: FitData) -> str | None:
    """Say which classes have no example; None if all have one."""
    missing = (data.class_weight() == 0).nonzero().flatten().tolist()
    if not missing:
        return None
    have = "has" if len(missing) == 1 else "have"
    return f"{len(missing)} of {data.num_classes} classes {have} no example in the fit data ({_some(missing)})"


def doubt_classes(data: FitData, *, where: str) -> str | None:
    """Say that a method which learns something of every class has none of some; None if it has."""
    missing = missing_classes(data)
    return missing and (
        f"{where}: {missing}. Their probabilities cannot be trusted; use more data, or a method that treats classes alike."
    )


def _some(values: Sequence[int], most: int = 5) -> str:
    return ", ".join(map(str, values[:most])) + (", ..." if len(values) > most else "")


def row_marks(logits: Tensor) -> Tensor:
    """A number for each row ``[N]`` (int64): equal rows have equal ones in any floating dtype that holds them exactly."""
    columns = torch.linspace(0, logits.shape[-1] - 1, min(logits.shape[-1], _HASHED_COLUMNS)).round().long()
    # Adding zero makes -0.0 and 0.0 one number.
    bits = (logits.reshape(-1, logits.shape[-1])[:, columns.to(logits.device)].cpu().double() + 0.0).view(torch.int64)
    odd = torch.randint(2**62, (len(columns),), generator=torch.Generator().manual_seed(5), dtype=torch.int64) * 2 + 1
    return ((bits ^ (bits >> 31)) * odd).sum(1)


def marks_to_keep(logits: Tensor) -> Tensor | None:
    """Marks of the rows that a fit has once, or None if many rows are equal: meeting one of those again says nothing."""
    marks = row_marks(logits)
    distinct, times = marks.unique(return_counts=True)
    return distinct[times == 1] if len(distinct) >= _LEAST_DISTINCT * len(marks) else None


def warn_if_seen(logits: Tensor, seen: Tensor | None, *, where: str) -> None:
    """Warn if many rows of ``logits`` were part of the fit data."""
    if seen is None:
        return
    shared = float(torch.isin(row_marks(logits), seen).double().mean())
    if shared >= _LEAST_SHARED:
        warn(
            f"{where}: {100 * shared:.0f} % of these examples were used to fit the calibrator. What is measured on them is "
            "too good; use data that the fit has not seen."
        )


def warn_if_same(fit: Predictions, given: Predictions, *, where: str) -> None:
    """Warn if both are one set of examples, where `warn_if_seen` cannot tell since many rows are equal (a forest's, say)."""
    same = fit.logits.shape == given.logits.shape and fit.logits.equal(given.logits) and fit.labels.equal(given.labels)
    if same and marks_to_keep(fit.logits) is None:
        warn(
            f"{where}: these are the examples that the calibrator is fitted on. What is measured on them is too good; use data "
            "that the fit has not seen."
        )
