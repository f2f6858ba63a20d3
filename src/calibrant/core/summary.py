"""Everything that a measurement needs to know of its data, in a record of constant size.

A `Summary` is what is kept of predictions that are too many to keep: `calibrant.metrics.measure_summary` turns it into scores
with intervals. Adding two summaries joins their data, so batches, files and processes can be summed in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.core.binning import equal_width_edges, equal_width_index
from calibrant.core.grid import Grid, grid_of
from calibrant.core.records import Predictions
from calibrant.core.top_label import TopLabel, reduce_top_label

# Rows whose softmax is held at once: bounds the float64 copy to 64 MiB at 1,000 classes.
_CHUNK_ENTRIES = 8_000_000
# Batches up to this size bin every entry, which takes fewer steps: 0.1 against 0.27 ms for 512 x 10.
_FEW_CLASSES, _FEW_ENTRIES = 32, 200_000


@dataclass(frozen=True)
class Summary:
    """Sums over examples i with weight w_i (1 where there are none), all float64 on the CPU.

    Attributes:
        n: Number of examples.
        num_classes: Number of classes C.
        n_bins: Number of equal-width bins M of ``class_bins``.
        weight: Sum of w_i (``n`` without weights).
        weight_squares: Sum of w_i²; ``weight ** 2 / weight_squares`` is the effective number of examples.
        grid: Top-label cells ``[NUM_CELLS]``: weight, weighted confidence and weighted correctness.
        nll: Sums ``[3]`` of w_i v_i, w_i v_i² and w_i v_i³ for the negative log-likelihood v_i of the label.
        brier: The same ``[3]`` for the Brier score v_i, summed over classes.
        class_bins: One-vs-rest bins ``[C, M]``: weight, weighted probability of the class and weight of examples labelled
            with it, by the bin ``(m/M, (m+1)/M]`` in which the class's probability lies (zero in the first).
        class_correct: Weight of the correctly predicted examples of each true class ``[C]``.
        class_rows: Number of examples of each true class ``[C]``, where they have weights; else None.
    """

    n: int
    num_classes: int
    n_bins: int
    weight: float
    weight_squares: float
    grid: Grid
    nll: Tensor
    brier: Tensor
    class_bins: Grid
    class_correct: Tensor
    class_rows: Tensor | None = None

    def __add__(self, other: Summary) -> Summary:
        if (self.num_classes, self.n_bins) != (other.num_classes, other.n_bins):
            raise ValueError(
                f"Summary: summaries must agree on (C, M) to be added, got {(self.num_classes, self.n_bins)} "
                f"and {(other.num_classes, other.n_bins)}."
            )
        return Summary(
            n=self.n + other.n,
            num_classes=self.num_classes,
            n_bins=self.n_bins,
            weight=self.weight + other.weight,
            weight_squares=self.weight_squares + other.weight_squares,
            grid=_add_grids(self.grid, other.grid),
            nll=self.nll + other.nll,
            brier=self.brier + other.brier,
            class_bins=_add_grids(self.class_bins, other.class_bins),
            class_correct=self.class_correct + other.class_correct,
            class_rows=_add_rows(self.class_rows, self.class_count, other.class_rows, other.class_count),
        )

    @property
    def effective_n(self) -> float:
        """Number of equally weighted examples that carry as much information (Kish): ``n`` without weights."""
        return self.weight**2 / self.weight_squares

    @property
    def class_count(self) -> Tensor:
        """Weight of the examples that carry each label ``[C]``."""
        return self.class_bins.correct.sum(1)


def summarize(predictions: Predictions, *, n_bins: int = 15) -> Summary:
    """Reduce predictions to a `Summary`.

    Args:
        predictions: N examples, C classes.
        n_bins: Number of equal-width bins of the classwise table.

    Returns:
        The record; its size depends on C and ``n_bins`` only.

    Example:
        >>> summary = summarize(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0]), n_bins=5)
        >>> summary.n, summary.effective_n, summary.class_count.tolist(), round(float(summary.brier[0]), 6)
        (2, 2.0, [2.0, 0.0], 1.3)
    """
    return summarize_with_top(predictions, n_bins=n_bins)[0]


def summarize_with_top(predictions: Predictions, *, n_bins: int) -> tuple[Summary, TopLabel]:
    """Reduce predictions to a `Summary` and to the confidence and correctness of every example, in one pass."""
    size = max(_CHUNK_ENTRIES // predictions.num_classes, 1)
    total: Summary | None = None
    tops = []
    for at in range(0, len(predictions), size):
        rows = score_rows(predictions, slice(at, at + size))
        part = _summarize_rows(rows, n_bins)
        total = part if total is None else total + part
        tops.append(rows.top)
    assert total is not None
    return total, _joined(tops, predictions.weights)


def top_labels(predictions: Predictions) -> TopLabel:
    """Reduce predictions to the confidence and correctness of every example.

    Some rows are taken at a time: the softmax of all, `Predictions.probs`, is twice as large as logits in single precision, and
    stays in memory for as long as these.

    Example:
        >>> top = top_labels(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0]))
        >>> top.confidence.tolist(), top.correct.tolist()
        ([0.9, 0.8], [1.0, 0.0])
    """
    size = max(_CHUNK_ENTRIES // predictions.num_classes, 1)
    tops = [score_rows(predictions, slice(at, at + size)).top for at in range(0, len(predictions), size)]
    return _joined(tops, predictions.weights)


def _joined(tops: Sequence[TopLabel], weights: Tensor | None) -> TopLabel:
    confidence, correct = (torch.cat([getattr(top, name) for top in tops]) for name in ("confidence", "correct"))
    return TopLabel(confidence, correct, weights, tops[0].dtype)


class Rows(NamedTuple):
    """Some examples and what each scores: negative log-likelihood and Brier score (summed over classes), ``[n]`` float64."""

    probs: Tensor
    labels: Tensor
    top: TopLabel
    nll: Tensor
    brier: Tensor


def score_rows(predictions: Predictions, rows: slice = slice(None)) -> Rows:
    """Score the examples in ``rows`` one by one."""
    labels = predictions.labels[rows]
    weights = None if predictions.weights is None else predictions.weights[rows]
    column = labels.unsqueeze(1)
    if predictions.has_logits:
        logits = predictions.logits[rows].double()
        probs = logits.softmax(1)
        nll = logits.logsumexp(1) - logits.gather(1, column).squeeze(1)
        # Probabilities that saturate at 1 hide which class was on top.
        top = TopLabel(probs.amax(1), (logits.argmax(1) == labels).double(), weights)
    else:
        probs = predictions.probs[rows]
        nll = 0 - probs.gather(1, column).squeeze(1).double().log()
        top = reduce_top_label(probs, labels, weights)
    at_label = probs.gather(1, column).squeeze(1).double()
    squares = torch.linalg.vector_norm(probs, dim=1, dtype=torch.float64).square()
    return Rows(probs, labels, top, nll, (squares - 2 * at_label + 1).clamp_min(0))


def _summarize_rows(rows: Rows, n_bins: int) -> Summary:
    weights, num_classes = rows.top.weights, rows.probs.shape[1]
    weight = torch.ones(len(rows.labels), dtype=torch.float64) if weights is None else weights
    return Summary(
        n=len(rows.labels),
        num_classes=num_classes,
        n_bins=n_bins,
        weight=float(weight.sum()),
        weight_squares=float(weight.square().sum()),
        grid=grid_of(rows.top.confidence, rows.top.correct, weights, dtype=rows.top.dtype),
        nll=_moments(rows.nll, weight),
        brier=_moments(rows.brier, weight),
        class_bins=class_bins_of(rows.probs, rows.labels, weights, n_bins=n_bins),
        class_correct=torch.bincount(rows.labels, weights=weight * rows.top.correct, minlength=num_classes),
        class_rows=None if weights is None else torch.bincount(rows.labels, minlength=num_classes).double(),
    )


def class_bins_of(probs: Tensor, labels: Tensor, weights: Tensor | None = None, *, n_bins: int) -> Grid:
    """One-vs-rest bins ``[C, M]`` of checked ``probs [N, C]``: weight, weighted probability, weight of positives."""
    n, num_classes = probs.shape
    weight = torch.ones(n, dtype=torch.float64, device=probs.device) if weights is None else weights
    few = num_classes <= _FEW_CLASSES and n * num_classes <= _FEW_ENTRIES
    return (_class_bins_directly if few else _class_bins_above_first)(probs, labels, weight, n_bins)


def _class_bins_directly(probs: Tensor, labels: Tensor, weight: Tensor, n_bins: int) -> Grid:
    num_classes = probs.shape[1]
    values = probs.double()
    slot = equal_width_index(values, n_bins, dtype=probs.dtype)
    slot += torch.arange(0, num_classes * n_bins, n_bins, device=probs.device)
    column = weight.unsqueeze(1)
    sums = (
        (slot, column.expand_as(values).reshape(-1)),
        (slot, (column * values).view(-1)),
        (slot.gather(1, labels.unsqueeze(1)), weight),
    )
    size = num_classes * n_bins
    return Grid(*(_add_up(s.view(-1), w, size).view(num_classes, n_bins) for s, w in sums))


def _class_bins_above_first(probs: Tensor, labels: Tensor, weight: Tensor, n_bins: int) -> Grid:
    """Look up only what lies above the first bin, which holds most of the N·C entries: it is what the others leave.

    The column totals that this needs are cheap: 3 against 23 ms for 10,000 x 100.
    """
    num_classes = probs.shape[1]
    above = probs > equal_width_edges(n_bins, probs.dtype)[1].to(probs.dtype)
    row, column = above.nonzero(as_tuple=True)
    values = probs[row, column].double()
    slot = column * n_bins + equal_width_index(values, n_bins, dtype=probs.dtype)
    size = num_classes * n_bins
    count = _add_up(slot, weight[row], size).view(num_classes, n_bins)
    total = _add_up(slot, weight[row] * values, size).view(num_classes, n_bins)
    count[:, 0] = (weight.sum() - count[:, 1:].sum(1)).clamp(min=0)
    total[:, 0] = ((weight @ probs.double()) - total[:, 1:].sum(1)).clamp(min=0)
    at_label = probs.gather(1, labels.unsqueeze(1)).squeeze(1).double()
    hit = labels * n_bins + equal_width_index(at_label, n_bins, dtype=probs.dtype)
    hits = _add_up(hit, weight, size).view(num_classes, n_bins)
    return Grid(count, total, hits)


def _add_up(slot: Tensor, values: Tensor, size: int) -> Tensor:
    """Sums of ``values`` by slot ``[size]``; unlike bincount it has a deterministic form on CUDA."""
    return torch.zeros(size, dtype=torch.float64, device=values.device).index_add_(0, slot, values)


def _moments(values: Tensor, weight: Tensor) -> Tensor:
    # An infinite value of weight zero counts nothing.
    kept = weight > 0
    return torch.stack([weight[kept] @ values[kept] ** power for power in (1, 2, 3)])


def _add_grids(a: Grid, b: Grid) -> Grid:
    rows = _add_rows(a.rows, a.weight, b.rows, b.weight)
    return Grid(a.weight + b.weight, a.confidence + b.confidence, a.correct + b.correct, rows)


def _add_rows(a: Tensor | None, a_weight: Tensor, b: Tensor | None, b_weight: Tensor) -> Tensor | None:
    """Add numbers of examples, which are their weights where they have none."""
    if a is None and b is None:
        return None
    return (a_weight if a is None else a) + (b_weight if b is None else b)
