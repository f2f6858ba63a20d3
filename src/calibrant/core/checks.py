"""Every validation helper, and the one form in which a caller's mistake is reported.

A message reads ``where: `argument` must RULE, got WHAT. Remedy if one is likely.`` Shape and dtype checks are free and run
in every public function; value checks read the data and run once, in ``Predictions`` and in the metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack

# What `to_tensor` takes; data frames and arrays of other libraries too, whose types are not installed with this package.
ArrayLike: TypeAlias = "Tensor | np.ndarray[tuple[int, ...], np.dtype[np.generic]] | Sequence[object] | SupportsArray"


class SupportsArray(Protocol):
    """An array of another library that numpy can read."""

    def __array__(self) -> Any:
        """Return the values as a numpy array."""


# How far a row of probabilities may be from summing to one, by the precision in which the row was computed. Rounding a row
# of C entries to half precision moves its sum by up to C * 2^-11 in the worst case; typical errors grow with sqrt(C).
SUM_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}


# Entries outside [0, 1] by less than this look like probabilities that are not quite right, others like logits.
_NEARLY = 0.1
# What to do with several labels for one example, each with a sigmoid of its own.
_SEVERAL = " Several labels at once are measured class by class, each as a binary problem."


class FitError(RuntimeError):
    """A fit could not be done on the given data; nothing was learned."""


def to_tensor(value: object, *, where: str, name: str) -> Tensor:
    """Return any array (torch, numpy, pandas, polars, JAX, nested lists) as a detached, contiguous tensor of numbers.

    Memory is shared where the array is contiguous and writeable, and its type one that torch computes with.
    """
    if isinstance(value, Tensor):
        return value.detach().contiguous()
    refuse_masked(value, where=where, name=name)
    try:
        if not isinstance(value, np.ndarray) and hasattr(value, "__dlpack__"):
            return from_dlpack(value).detach().contiguous()
        array = np.asarray(value)
        if array.dtype.kind not in "fiub":
            raise TypeError(array.dtype)
        # torch cannot compare wide unsigned integers, and has neither long doubles nor another byte order.
        wide = {"u": np.int64, "f": np.float64}.get(array.dtype.kind)
        if wide and array.dtype.itemsize > (1 if array.dtype.kind == "u" else 8):
            array = array.astype(wide)
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{where}: `{name}` must be a tensor, a numpy array or a nested list of numbers, got {type(value).__name__} "
            f"({error})."
        ) from None


def refuse_masked(value: object, *, where: str, name: str) -> None:
    """Raise if entries of a numpy array are masked: what is under a mask is no data."""
    if np.ma.is_masked(value):
        raise ValueError(f"{where}: `{name}` must have no masked entries. Leave those rows out of all arrays, or fill them.")


def check_count(value: int, *, where: str, name: str, least: int = 1) -> None:
    """Raise unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{where}: `{name}` must be a whole number >= {least}, got {value!r}.")


def check_positive(value: float, *, where: str, name: str) -> None:
    """Raise unless ``value`` is a finite number above zero."""
    # Plain comparisons, so that torch.compile can trace a loss through this check; NaN fails both.
    if not (isinstance(value, (int, float, np.number)) and 0 < value < float("inf")):
        raise ValueError(f"{where}: `{name}` must be a finite number > 0, got {value!r}.")


def check_shapes(scores: Tensor, labels: Tensor, *, where: str, kind: str = "probs", allow_empty: bool = False) -> None:
    """Raise unless ``scores`` is floating ``[N, C, ...]``, ``labels`` integer ``[N, ...]``, N >= 1 (or 0) and C >= 2."""
    if _looks_swapped(scores, labels):
        raise ValueError(
            f"{where}: `{kind}` must be floating [N, C], got {_say(scores)} with labels {_say(labels)}. "
            f"The arguments look swapped: pass `{kind}` first, `labels` second."
        )
    if scores.ndim < 2:
        hint = " For one probability per example use the `binary_` metrics or `Predictions.from_binary`."
        raise ValueError(f"{where}: `{kind}` must be [N, C], got {list(scores.shape)}.{hint if scores.ndim == 1 else ''}")
    if not scores.is_floating_point():
        raise ValueError(f"{where}: `{kind}` must be floating point, got {scores.dtype}.")
    if scores.shape[1] < 2:
        hint = " Use `Predictions.from_binary` or the `binary_` metrics for one probability per example."
        raise ValueError(f"{where}: `{kind}` must have C >= 2 columns, got {list(scores.shape)}.{hint}")
    expected = [scores.shape[0], *scores.shape[2:]]
    if list(labels.shape) != expected:
        one_hot = labels.shape == scores.shape
        # Logits come from losses and calibrators too, which do not measure.
        several = _SEVERAL if kind == "probs" and scores.ndim == 2 else ""
        hint = f" Pass `labels.argmax(1)` if they are one-hot.{several}" if one_hot else ""
        form = "[N]" if scores.ndim == 2 else "[N, ...]"
        raise ValueError(f"{where}: `labels` must be {form} = {expected}, got {list(labels.shape)}.{hint}")
    if labels.is_floating_point() or labels.is_complex():
        raise ValueError(
            f"{where}: `labels` must be integer class indices, got {labels.dtype}. Leave out rows without a label, then pass "
            "`labels.long()` of a tensor or `labels.astype(int)` of an array."
        )
    if scores.numel() == 0 and not allow_empty:
        raise ValueError(f"{where}: `{kind}` must hold at least one example, got {list(scores.shape)}.")


def check_logits(logits: Tensor, labels: Tensor, *, where: str, soft_targets: bool = False, values: bool = True) -> None:
    """Check the arguments of a loss: ``logits [B, C]`` with ``labels [B]``, or with ``[B, C]`` if ``soft_targets``.

    Shape and dtype are always checked. The range of labels is looked at only where that is free of a device sync and can be
    read at all: eager tensors on the CPU, not while compiling and not under ``vmap``; and not if ``values`` is False.
    """
    for name, value in (("logits", logits), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise ValueError(f"{where}: `{name}` must be a tensor, got {type(value).__name__}. Pass `torch.as_tensor({name})`.")
    if logits.ndim != 2 and not _looks_swapped(logits, labels):
        hint = " Flatten dense logits to [B, C] first." if logits.ndim > 2 else ""
        raise ValueError(f"{where}: `logits` must be [B, C], got {list(logits.shape)}.{hint}")
    if labels.ndim == 2 and labels.is_floating_point() and logits.is_floating_point():
        if not soft_targets:
            raise ValueError(
                f"{where}: `labels` must be class indices [B], got {_say(labels)}. Soft targets have no meaning here; "
                "pass `labels.argmax(1)` if they are one-hot."
            )
        if labels.shape != logits.shape or logits.numel() == 0:
            raise ValueError(f"{where}: soft `labels` must be [B, C] as the logits {_say(logits)}, got {_say(labels)}.")
        low, high = range_if_free(labels, 0.0, 1.0)
        # Mixtures of one-hot rows may round to just outside.
        if not (low >= -1e-3 and high <= 1 + 1e-3):
            raise ValueError(f"{where}: soft `labels` must be probabilities in [0, 1], got {low:.4g} to {high:.4g}.")
        return
    check_shapes(logits, labels, where=where, kind="logits")
    if labels.dtype == torch.bool:
        raise ValueError(f"{where}: `labels` must be integer class indices, got {labels.dtype}. Pass `labels.long()`.")
    low, high = range_if_free(labels, 0, 0) if values else (0, 0)
    if low < 0 or high >= logits.shape[1]:
        hint = " They look one-based: pass `labels - 1`." if low >= 1 and high == logits.shape[1] else ""
        if low < 0:
            hint = f" If it marks examples to leave out, give the loss's module or the MetaLearner `ignore_index={low}`."
        wrong = low if low < 0 else high
        raise ValueError(f"{where}: `labels` must lie in [0, {logits.shape[1] - 1}], got {wrong}.{hint}")


def range_if_free(values: Tensor, low: float, high: float) -> tuple[float, float]:
    """Least and largest of ``values``; ``low`` and ``high`` where they cannot be read, or not without a device sync."""
    if torch.compiler.is_compiling() or values.device.type != "cpu":
        return low, high
    try:
        least, most = torch.aminmax(values.detach())
        return least.item(), most.item()
    except RuntimeError:
        # Fake tensors and tensors batched by vmap hold no values that could be read.
        return low, high


def check_prob_values(probs: Tensor, *, where: str, first_row: int = 0) -> None:
    """Raise unless every row of ``probs [N, C]`` is a probability distribution, within its dtype's rounding.

    ``first_row`` is the number of the first row in messages.
    """
    tolerance = SUM_TOLERANCE.get(probs.dtype, 1e-6)
    work = probs if probs.dtype in (torch.float32, torch.float64) else probs.float()
    # A matrix-vector product is the cheapest row sum (0.1 ms for 50,000 x 10), and a NaN or inf anywhere shows in it.
    sums = work @ torch.ones(work.shape[1], dtype=work.dtype, device=work.device)
    least, most = (float(v) for v in torch.aminmax(sums))
    off = max(1 - least, most - 1)
    low = float(work.amin())
    if off <= tolerance and low >= 0:
        return
    if not bool(torch.isfinite(work).all()):
        what = "NaN" if bool(torch.isnan(work).any()) else "inf"
        row = int((~torch.isfinite(work)).any(1).nonzero()[0])
        raise ValueError(f"{where}: `probs` must be finite, got {what} in row {first_row + row}.")
    high = float(work.amax())
    if low < -tolerance or high > 1 + tolerance:
        if low > -_NEARLY and high < 1 + _NEARLY:
            far, row = (high, int(work.amax(1).argmax())) if high - 1 > -low else (low, int(work.amin(1).argmin()))
            raise ValueError(
                f"{where}: `probs` must lie in [0, 1], got {far:.4g} in row {first_row + row}. "
                "Set what is below zero to zero and divide every row by its sum, if they are probabilities."
            )
        if low >= 0 and abs(least - 100) < 1 and abs(most - 100) < 1:
            raise ValueError(f"{where}: `probs` must lie in [0, 1], got rows that sum to 100. Divide percentages by 100.")
        raise ValueError(
            f"{where}: `probs` must lie in [0, 1], got values from {low:.4g} to {high:.4g}. "
            "They look like logits: give them as `logits`, or take their softmax."
        )
    if off > tolerance:
        row = int((sums - 1).abs().argmax())
        raise ValueError(
            f"{where}: rows of `probs` must sum to 1 (within {tolerance:g}), got {float(sums[row]):.6g} in row "
            f"{first_row + row}. Normalise them, or give them as `logits` if they are scores.{_SEVERAL}"
        )
    row = int((work.amin(1)).argmin())
    raise ValueError(
        f"{where}: `probs` must be >= 0, got {low:.4g} in row {first_row + row}. Set rounding errors below zero to zero."
    )


def check_binary_scores(scores: Tensor, *, kind: str, where: str) -> None:
    """Raise unless ``scores`` of the positive class are floating ``[N]`` and, as probabilities, do not look like log-odds."""
    if scores.ndim != 1 or not scores.is_floating_point():
        two = scores.ndim == 2 and scores.shape[1] == 2
        hint = f" Pass `Predictions({kind}=...)` for the scores of both classes." if two else ""
        raise ValueError(f"{where}: scores must be floating [N], got {scores.dtype} {list(scores.shape)}.{hint}")
    if kind == "probs" and scores.numel():
        low, high = (float(v) for v in torch.aminmax(scores))
        if low <= -_NEARLY or high >= 1 + _NEARLY:
            positive = 0 <= low and high <= 100
            hint = "Divide percentages by 100, give log-odds" if positive else "They look like log-odds: give them"
            raise ValueError(
                f"{where}: `probs` must lie in [0, 1], got values from {low:.4g} to {high:.4g}. {hint} as `logits`."
            )


def check_logit_values(logits: Tensor, *, where: str, first_row: int = 0) -> None:
    """Raise if ``logits [N, C]`` hold NaN or +inf, or a row is -inf throughout (a -inf entry is probability zero)."""
    top = logits.amax(1)
    bad = ~torch.isfinite(top)
    if bool(bad.any()):
        row = first_row + int(bad.nonzero()[0])
        value = float(top[row - first_row])
        if value == float("-inf"):
            raise ValueError(f"{where}: `logits` must have a finite entry in every row, got only -inf in row {row}.")
        raise ValueError(f"{where}: `logits` must not hold NaN or +inf, got {value} in row {row}.")


def check_before_softmax(logits: Tensor, *, where: str, first_row: int = 0) -> None:
    """Raise if ``logits [N, C]`` are not what `check_logit_values` allows, or what a softmax leaves: probabilities."""
    check_logit_values(logits, where=where, first_row=first_row)
    # A few rows may be an example made by hand; ten that all do what softmax does are not.
    if len(logits) >= 10 and _are_probs(logits[:10]) and _are_probs(logits):
        raise ValueError(
            f"{where}: `logits` must be scores before softmax, got rows in [0, 1] that sum to 1. "
            "They look like probabilities: give them as `probs`, or take their logarithm."
        )


def _are_probs(rows: Tensor) -> bool:
    tolerance = max(1e-3, SUM_TOLERANCE.get(rows.dtype, 1e-3))
    return bool((rows >= 0).all()) and bool(((rows.double().sum(1) - 1).abs() <= tolerance).all())


def check_label_values(labels: Tensor, num_classes: int, *, where: str, ignore_index: int | None = None) -> None:
    """Raise unless every label is in ``[0, num_classes)`` (those equal to ``ignore_index`` are not looked at)."""
    kept = labels if ignore_index is None else labels[labels != ignore_index]
    if kept.numel() == 0:
        raise ValueError(f"{where}: `labels` must hold at least one example that is not ignored, got none.")
    low, high = (int(v) for v in torch.aminmax(kept))
    if low < 0 or high >= num_classes:
        wrong = low if low < 0 else high
        hint = ""
        if low >= 1 and high == num_classes:
            hint = " They look one-based: pass `labels - 1`."
        elif num_classes == 2 and low == -1 and not bool((kept == 0).any()):
            hint = " They look like -1 and 1: take `(labels + 1) // 2`."
        elif low < 0 and ignore_index is None:
            hint = f" Pass `ignore_index={low}` if it marks examples to leave out (`--ignore-index {low}`)."
        raise ValueError(f"{where}: `labels` must lie in [0, {num_classes - 1}], got {wrong}.{hint}")


def check_weights(weights: Tensor, labels: Tensor, *, where: str) -> None:
    """Raise unless ``weights`` has the shape of ``labels``, is finite and >= 0, and has a positive sum."""
    if weights.shape != labels.shape:
        raise ValueError(f"{where}: `weights` must be {list(labels.shape)} as the labels, got {list(weights.shape)}.")
    work = weights.double() if weights.dtype != torch.float64 else weights
    if not bool(torch.isfinite(work).all()) or bool((work < 0).any()):
        raise ValueError(f"{where}: `weights` must be finite and >= 0, got {float(work.min()):.4g}.")
    total = float(work.sum())
    if total <= 0:
        raise ValueError(f"{where}: `weights` must have a positive sum, got 0.")
    # Squares and products of weights must not overflow.
    if not 1e-100 < total < 1e100:
        raise ValueError(f"{where}: the sum of `weights` must lie between 1e-100 and 1e100, got {total:.4g}. Rescale them.")


def _looks_swapped(scores: Tensor, labels: Tensor) -> bool:
    return labels.is_floating_point() and labels.ndim == scores.ndim + 1 and not scores.is_floating_point()


def _say(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
