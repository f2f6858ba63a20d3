"""Everything that a measurement needs to know of its data, in a record of constant size.

A `Summary` is what is kept of predictions that are too many to keep: `calibrant.metrics.measure_summary` turns it into scores
with intervals. Adding two summaries joins their data, so batches, files and processes can be summed in any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from calibrant.core.binning import (
    CHUNK_ENTRIES,
    WIDTH_CELLS,
    TopLabel,
    cells_of,
    class_bins_of,
    equal_width_bins,
    equal_width_edges,
    equal_width_index,
    fold_cells,
    means_of_sums,
    reduce_top_label,
)
from calibrant.core.records import Bins, Predictions

# Examples of a sum that are kept as they are (1 MB): the usual test sets, ImageNet's 50,000 included, are measured exactly. Of
# more, it hardly matters where in a cell an equal-mass bin begins: it moves the debiased error by 2e-4 at most.
KEPT_EXAMPLES = 65_536


@dataclass(frozen=True)
class Summary:
    """Sums over examples i with weight w_i (1 where there are none), all float64.

    Attributes:
        n: Number of examples.
        size: Number of examples of positive weight.
        num_classes: Number of classes C.
        n_bins: Number of equal-width bins M.
        totals: Sums ``[8]`` of w, w², and of w v, w v², w v³ for the negative log-likelihood v, then for the Brier score v.
        cells: Sums by cell of confidence, as `calibrant.core.binning.cells_of` gives them.
        top: The examples themselves, if they are few enough, else None.
        class_bins: One-vs-rest bins ``[3, C, M]``: weight, weighted probability of the class and weight of examples labelled
            with it, by the bin in which the class's probability lies; None where that is not measured.
        class_counts: Of each true class, the weight of its correctly predicted examples, and how many examples it has
            ``[2, C]``; or None.
        positive_cells: Of two classes, ``cells`` with the probability of the second one as confidence, and whether it is the
            label as correctness; None of more classes.
        positive_top: And the examples seen so.
    """

    n: int
    size: int
    num_classes: int
    n_bins: int
    totals: Tensor
    cells: Tensor
    top: TopLabel | None = None
    class_bins: Tensor | None = None
    class_counts: Tensor | None = None
    positive_cells: Tensor | None = None
    positive_top: TopLabel | None = None

    def __add__(self, other: Summary) -> Summary:
        mine, others = (self.num_classes, self.n_bins), (other.num_classes, other.n_bins)
        if mine != others:
            raise ValueError(f"Summary: summaries must agree on (C, M) to be added, got {mine} and {others}.")
        sums: dict[str, Any] = {}
        for name in (field.name for field in fields(self) if field.name not in ("num_classes", "n_bins")):
            one, two = getattr(self, name), getattr(other, name)
            if one is None or two is None:
                sums[name] = None
            elif isinstance(one, TopLabel):
                sums[name] = _join([one, two]) if len(one) + len(two) <= KEPT_EXAMPLES else None
            else:
                sums[name] = one + two
        return replace(self, **sums)

    @cached_property
    def positive(self) -> Summary | None:
        """Of two classes, the same with the probability of the second one as confidence; else None."""
        if self.positive_cells is None:
            return None
        return Summary(self.n, self.size, self.num_classes, self.n_bins, self.totals, self.positive_cells, self.positive_top)

    @property
    def is_weighted(self) -> bool:
        """Whether some weight is not one."""
        return not float(self.totals[0]) == self.n == float(self.totals[1])

    @property
    def weight(self) -> float:
        """Sum of the weights: the number of examples where there are none."""
        return float(self.totals[0])

    @property
    def effective_n(self) -> float:
        """Number of equally weighted examples that carry as much information (Kish): ``n`` without weights."""
        return self.weight**2 / float(self.totals[1])

    @property
    def nll(self) -> Tensor:
        """Sums ``[3]`` of w v, w v², w v³ for the negative log-likelihood v."""
        return self.totals[2:5]

    @property
    def brier(self) -> Tensor:
        """Sums ``[3]`` of w v, w v², w v³ for the Brier score v."""
        return self.totals[5:8]

    @property
    def by_class(self) -> Tensor:
        """``class_bins``; raises ``ValueError`` where they were not kept."""
        if self.class_bins is None:
            raise ValueError("Summary: the classwise sums must have been kept, got none. Construct with `classwise=True`.")
        return self.class_bins

    @property
    def class_count(self) -> Tensor:
        """Weight of the examples that carry each label ``[C]``."""
        return self.by_class[2].sum(1)

    @cached_property
    def examples(self) -> TopLabel:
        """The examples, or one entry per cell with its mean confidence, mean correctness, weight and squared weight."""
        if self.top is not None:
            return self.top
        weight, confidence, correct, squares, _ = self.cells[:, self.cells[0] > 0]
        return TopLabel(
            (confidence / weight).clamp(0, 1), (correct / weight).clamp(0, 1), weight, squares=squares, examples=self.size
        )

    @cached_property
    def bins(self) -> Bins:
        """Content of the reliability diagram."""
        return self.bins_of(self.n_bins)

    def bins_of(self, n_bins: int) -> Bins:
        """Equal-width confidence bins; exact if all examples are known, or if the number of bins divides 3,000."""
        if WIDTH_CELLS % n_bins == 0:
            *sums, _, rows = fold_cells(self.cells, n_bins)
            # The cached edges must not be written to.
            bins = means_of_sums(equal_width_edges(n_bins).clone(), *sums)
        else:
            top, bins = self.examples, equal_width_bins(self.examples, n_bins=n_bins)
            index = equal_width_index(top.confidence, n_bins, dtype=top.dtype)
            held = None if self.top is not None else self.cells[4, self.cells[0] > 0]
            rows = torch.bincount(index, weights=held, minlength=n_bins).double()
        return replace(bins, rows=rows) if self.is_weighted else bins


def summarize(predictions: Predictions, *, n_bins: int = 15, keep: int | None = KEPT_EXAMPLES) -> Summary:
    """Reduce predictions to a `Summary`; up to ``keep`` examples (None for all) confidence and correctness of each are kept.

    Example:
        >>> summary = summarize(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0]), n_bins=5)
        >>> summary.n, summary.effective_n, summary.class_count.tolist(), round(float(summary.brier[0]), 6)
        (2, 2.0, [2.0, 0.0], 1.3)
    """
    size = max(CHUNK_ENTRIES // predictions.num_classes, 1)
    parts = []
    for at in range(0, len(predictions), size):
        rows = slice(at, at + size)
        weights = None if predictions.weights is None else predictions.weights[rows]
        scores, are_logits = predictions.scores[rows], predictions.has_logits
        parts.append(summarize_rows(scores, predictions.labels[rows], weights, are_logits=are_logits, n_bins=n_bins))
    tops: dict[str, Any] = {}
    is_kept = keep is None or len(predictions) <= keep
    for name in ("top", "positive_top"):
        seen = [getattr(part, name) for part in parts]
        tops[name] = _join(seen) if is_kept and seen[0] is not None else None
    return replace(reduce(add, parts), **tops)


def summarize_rows(
    scores: Tensor, labels: Tensor, weights: Tensor | None, *, are_logits: bool, n_bins: int, classwise: bool = True
) -> Summary:
    """Reduce checked ``scores [n, C]`` (logits or probabilities) and ``labels [n]`` to a `Summary`, on their device."""
    probs, top, nll, brier = score_rows(scores, labels, weights, are_logits=are_logits)
    weight, num_classes = top.mass, scores.shape[1]
    if weights is not None:
        # An infinite value of weight zero counts nothing.
        nll = nll.masked_fill(weights == 0, 0.0)
    values = torch.stack([nll, brier])
    powers = torch.stack([values, values.square(), values**3], 1).flatten(0, 1)
    second = TopLabel(probs[:, 1].double(), labels.double(), weights, top.dtype) if num_classes == 2 else None
    counted = torch.stack([weight * top.correct, torch.ones_like(weight)])
    return Summary(
        n=len(labels),
        size=top.size,
        num_classes=num_classes,
        n_bins=n_bins,
        totals=torch.cat([torch.stack([weight.sum(), weight.square().sum()]), powers @ weight]),
        cells=cells_of(top),
        top=top,
        class_bins=class_bins_of(probs, labels, weights, n_bins=n_bins) if classwise else None,
        class_counts=weight.new_zeros(2, num_classes).index_add_(1, labels, counted) if classwise else None,
        positive_cells=None if second is None else cells_of(second),
        positive_top=second,
    )


def score_rows(
    scores: Tensor, labels: Tensor, weights: Tensor | None = None, *, are_logits: bool
) -> tuple[Tensor, TopLabel, Tensor, Tensor]:
    """Score checked examples one by one, on their device.

    Returns:
        Probabilities ``[n, C]``, confidence and correctness, and the negative log-likelihood and Brier score (summed over
        classes) of each, ``[n]`` float64.
    """
    column = labels.unsqueeze(1)
    if are_logits:
        logits = scores.double()
        probs = logits.softmax(1)
        nll = logits.logsumexp(1) - logits.gather(1, column).squeeze(1)
        # Probabilities that saturate at 1 hide which class was on top.
        top = TopLabel(probs.amax(1), (scores.argmax(1) == labels).double(), weights)
    else:
        probs = scores
        nll = 0 - probs.gather(1, column).squeeze(1).double().log()
        top = reduce_top_label(probs, labels, weights)
    squares = torch.linalg.vector_norm(probs, dim=1, dtype=torch.float64).square()
    at_label = probs.gather(1, column).squeeze(1).double()
    return probs, top, nll, (squares - 2 * at_label + 1).clamp_min(0)


def _join(tops: Sequence[TopLabel]) -> TopLabel:
    weights = None if all(top.weights is None for top in tops) else torch.cat([top.mass for top in tops])
    confidence, correct = (torch.cat([getattr(top, name) for top in tops]) for name in ("confidence", "correct"))
    return TopLabel(confidence, correct, weights, tops[0].dtype)
