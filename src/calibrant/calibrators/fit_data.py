"""What calibrators share: checked data to fit on, warnings about results that may not hold, and maths in log space."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from calibrant.core.records import Predictions, Split

Vector: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
# A logit of -inf is probability zero. Where a finite number is needed it counts as the logarithm of float32's smallest
# probability, 2^-149, below the top class, or as the smallest finite logit of its row if that is lower still.
_LOG_SMALLEST = -103.2789
# Two log-probabilities this far apart differ in float32 too: its numbers near ln 1/C lie 1e-6 apart for C = 100,000 classes.
_MARGIN = 2e-6
# Entries of [N, C] that are widened to float64 at once. 256 rows of 1,000 classes stay in the cache: a pass over 50,000 x
# 1,000 takes 0.18 s of processor time, and 0.43 s with four times as many.
CHUNK_ENTRIES = 256_000
# Stands for a logit of -inf where 0 * inf must not be met: at any temperature its exponential is zero.
ABSENT = -1e30
# Columns that identify a row, at most: two rows never agree in that many numbers by chance.
_HASHED_COLUMNS = 16


class CalibrationWarning(UserWarning):
    """The calibrator works, but its data are such that the result may not hold."""


class BoundWarning(CalibrationWarning):
    """A temperature ended at its bound: the best one lies beyond it, or there is none."""


def warn(message: str, category: type[CalibrationWarning] = CalibrationWarning) -> None:
    """Warn, naming the line that called a method of a calibrator."""
    outside = (k for k, frame in enumerate(inspect.stack(0), 1) if Path(frame.filename).parent != Path(__file__).parent)
    warnings.warn(message, category, stacklevel=next(outside, 1))


@dataclass(frozen=True)
class FitData:
    """Checked input of a fit, on the CPU.

    Attributes:
        logits: Scores ``[N, C]`` in the precision in which they came (half precision widened to float32), or samples of them
            ``[S, N, C]``.
        labels: Class indices ``[N]``.
        weights: Weights ``[N]``, float64, positive, with mean one.
    """

    logits: Tensor
    labels: Tensor
    weights: Tensor

    @classmethod
    def of(cls, *records: Predictions) -> FitData:
        """Take over a record, or several with samples of the same examples; examples of weight zero are left out."""
        labels, weights = records[0].labels, records[0].weights
        scores = records[0].logits if len(records) == 1 else torch.stack([record.logits for record in records])
        scores = scores if scores.dtype in (torch.float32, torch.float64) else scores.float()
        if weights is None:
            return cls(scores, labels, torch.ones(len(labels), dtype=torch.float64))
        return cls(scores, labels, weights).subset(weights.nonzero().flatten())

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes C."""
        return int(self.logits.shape[-1])

    @property
    def missing_classes(self) -> str:
        """Says which classes have no example; empty if all have one."""
        missing = (torch.bincount(self.labels, minlength=self.num_classes) == 0).nonzero().flatten().tolist()
        some = ", ".join(map(str, missing[:5]))
        return f"the fit data have no example of {len(missing)} of {self.num_classes} classes ({some})" if missing else ""

    def too_few(self, fewest: int, *, what: str) -> str:
        """Says that the examples are fewer than advised for ``what``; empty if they are not."""
        few = f"{len(self)} examples are few for {what}: {fewest} or more are advised with {self.num_classes} classes."
        return few if len(self) < fewest else ""

    def subset(self, rows: Tensor) -> FitData:
        """Return the examples at the positions ``rows``, their weights scaled to mean one again."""
        weights = self.weights[rows]
        return FitData(self.logits[..., rows, :], self.labels[rows], weights / weights.mean())

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Logits in float64, labels and weights, as many rows at a time as stay in the cache."""
        rows = chunk_rows(self.logits.numel() // len(self))
        parts = (self.logits.split(rows, -2), self.labels.split(rows), self.weights.split(rows))
        for logits, labels, weights in zip(*parts, strict=True):
            yield logits.double(), labels, weights

    def impossible(self) -> int:
        """How many labels have probability zero, in every sample."""
        index = self.labels.unsqueeze(1).expand(*self.logits.shape[:-1], 1)
        return int(torch.isneginf(self.logits.gather(-1, index)).reshape(-1, len(self)).all(0).sum())

    def folds(self, n_folds: int, *, seed: int) -> list[tuple[Tensor, Tensor]]:
        """Return, for each fold, the positions to fit on and those held out; every class of two examples or more is fitted on.

        Folds are random. Sharing out every class evenly would give the held-out part the class frequencies of the fitted part,
        so that learning their chance fluctuation is rewarded, as it never is on new data.
        """
        n, n_folds = len(self), min(n_folds, len(self))
        fold = torch.empty(n, dtype=torch.long)
        fold[torch.randperm(n, generator=torch.Generator().manual_seed(seed))] = torch.arange(n) % n_folds
        count = torch.zeros(self.num_classes, n_folds, dtype=torch.long)
        count.index_put_((self.labels, fold), torch.ones_like(fold), accumulate=True)
        # A class whose examples are all in one fold would be unknown to the fit that is rated on them: one of them moves on.
        for label in ((count.amax(1) == count.sum(1)) & (count.sum(1) > 1)).nonzero().flatten():
            first = (self.labels == label).nonzero()[0]
            fold[first] = (fold[first] + 1) % n_folds
        return [((fold != k).nonzero().flatten(), (fold == k).nonzero().flatten()) for k in range(n_folds)]


def chunk_rows(num_classes: int) -> int:
    """How many rows to widen to float64 at once."""
    return max(CHUNK_ENTRIES // num_classes, 1)


def refuse_test_split(predictions: Predictions, *, where: str) -> None:
    """Raise if the record is marked as test data."""
    if predictions.split is Split.TEST:
        raise ValueError(
            f"{where}: the data must not be marked as test data, got split 'test'. Fit on validation data: "
            "measured on the data it was fitted on, any repair looks better than it is."
        )


def check_same_classes(fit: Predictions, given: Predictions, *, what: str, of: str) -> None:
    """Raise unless both records have as many classes and, where both name them, the same names in the same order."""
    named = None not in (fit.class_names, given.class_names)
    first, second = (record.class_names if named else record.num_classes for record in (fit, given))
    if first != second:
        raise ValueError(f"{what} must have the same classes in the same order as {of}, got {first}, not {second}.")


def fingerprint(logits: Tensor) -> tuple[int, int]:
    """Number of rows of ``logits [..., C]`` and a checksum: the same in any order, and in any dtype that holds them exactly."""
    columns = torch.linspace(0, logits.shape[-1] - 1, min(logits.shape[-1], _HASHED_COLUMNS)).round().long()
    # Adding zero makes -0.0 and 0.0 one number.
    bits = (logits.reshape(-1, logits.shape[-1])[:, columns.to(logits.device)].cpu().double() + 0.0).view(torch.int64)
    odd = torch.randint(2**62, (len(columns),), generator=torch.Generator().manual_seed(5), dtype=torch.int64) * 2 + 1
    return len(bits), int(((bits ^ (bits >> 31)) * odd).sum())


def raise_probs(logits: Tensor, floor: float) -> Tensor:
    """Log-probabilities of ``logits [..., C]`` with none below that of ``floor``; rows are not scaled to sum to one again."""
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

    Where a repair brings classes so near to one another that rounding could swap them, the top one is raised above its rival
    by `_MARGIN` and the row scaled to sum to one again. Classes that tie in the logits may tie.
    """
    top = logits.argmax(-1, keepdim=True)
    leads = logits.gather(-1, top) > logits.scatter(-1, top, -torch.inf).amax(-1, keepdim=True)
    own = log_probs.gather(-1, top)
    rival = log_probs.scatter(-1, top, -torch.inf).amax(-1, keepdim=True)
    raised = torch.where(leads, torch.maximum(own, rival + _MARGIN), own)
    return log_probs.scatter(-1, top, raised) - torch.log1p((raised.exp() - own.exp()).clamp(min=0))


def asked(values: Tensor, rows: int) -> Tensor:
    """The columns of ``values [..., C]`` that have a question: all, or the second of two if there is one row."""
    return values[..., 1:] if rows == 1 else values
