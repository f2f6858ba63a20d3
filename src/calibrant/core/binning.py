"""The only place where a confidence becomes a bin index.

Bins are right-closed, ``(lo, hi]``, with 0.0 in the first and 1.0 in the last; edges are ``k / M`` rounded to the dtype in
which the probabilities came, so that a float32 0.2 lies *on* the edge 3/15 and not above it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from calibrant.core.checks import (
    ArrayLike,
    check_label_values,
    check_prob_values,
    check_shapes,
    check_weights,
    to_tensor,
)
from calibrant.core.records import Bins, flatten_examples


@dataclass(frozen=True)
class TopLabel:
    """Confidence and correctness of every example: all that a top-label metric needs.

    Attributes:
        confidence: Top probability ``[N]``, float64 on the CPU.
        correct: 1.0 where the top class (the first of several that tie) is the label, else 0.0; ``[N]`` float64.
        weights: Sample weights ``[N]`` float64, or None for equal weights.
        dtype: Precision in which the probabilities came; bin edges are rounded to it.
    """

    confidence: Tensor
    correct: Tensor
    weights: Tensor | None = None
    dtype: torch.dtype = torch.float64

    def __len__(self) -> int:
        return len(self.confidence)


@dataclass(frozen=True)
class Checked:
    """Input of a metric after its checks: ``probs [N, C]``, ``labels [N]`` and ``weights [N]`` or None, on the CPU."""

    probs: Tensor
    labels: Tensor
    weights: Tensor | None


def check_input(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    where: str,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Checked:
    """Convert, check and flatten the arguments of a metric (dense input becomes ``[N, C]``, ignored examples go)."""
    scores = to_tensor(probs, where=where, name="probs")
    target = to_tensor(labels, where=where, name="labels")
    check_shapes(scores, target, where=where)
    # Reductions over classes stay on the caller's device in the caller's dtype: both are exact for max and gather.
    weight = None if weights is None else to_tensor(weights, where=where, name="weights").double()
    if weight is not None:
        check_weights(weight, target, where=where)
    if scores.ndim > 2 or ignore_index is not None:
        scores, target, weight, _ = flatten_examples(scores, target, weight, ignore_index=ignore_index)
    check_label_values(target, scores.shape[1], where=where)
    check_prob_values(scores, where=where)
    return Checked(scores, target.long(), weight)


def top_label(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    where: str,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> TopLabel:
    """Check the arguments of a top-label metric and reduce them to confidence and correctness.

    Args:
        probs: Probabilities ``[N, C]`` or ``[N, C, ...]``, on any device.
        labels: Class indices ``[N]`` or ``[N, ...]``.
        where: Name of the calling function, for messages.
        weights: Sample weights shaped as ``labels``.
        ignore_index: Label of examples to leave out.

    Returns:
        The record; raises ``ValueError`` on input that is not probabilities with labels.
    """
    given = check_input(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    return reduce_top_label(given.probs, given.labels, given.weights)


def reduce_top_label(probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> TopLabel:
    """Confidence and correctness of checked ``probs [N, C]``, moved to the CPU."""
    confidence, correct = top_of_rows(probs, labels)
    dtype = probs.dtype
    return TopLabel(confidence.cpu().double(), correct.cpu().double(), None if weights is None else weights.cpu(), dtype)


def top_of_rows(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Largest probability ``[N]`` and whether the label is the (first) class that has it ``[N]``, where the input is.

    ``max`` with indices costs three times ``amax``. The label is the top class exactly if its probability equals the
    maximum and no earlier class ties with it, and a tie needs a maximum of at most one half: only those rows pay for argmax.
    """
    confidence = probs.amax(1)
    correct = probs.gather(1, labels.unsqueeze(1)).squeeze(1) == confidence
    doubtful = (correct & (confidence <= 0.51)).nonzero().squeeze(1)
    if len(doubtful):
        correct[doubtful] = probs[doubtful].argmax(1) == labels[doubtful]
    return confidence, correct


@lru_cache(maxsize=64)
def equal_width_edges(n_bins: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Edges ``k / M`` for k = 0..M, rounded to ``dtype`` and returned as float64 ``[M + 1]``."""
    return (torch.arange(n_bins + 1, dtype=torch.float64) / n_bins).to(dtype).double()


def equal_width_index(values: Tensor, n_bins: int, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Index of the equal-width bin ``(k/M, (k+1)/M]`` of every value.

    Args:
        values: Numbers in ``[0, 1]``, any shape, float64.
        n_bins: Number of bins ``M``.
        dtype: Precision the values came in; edges are rounded to it.

    Returns:
        int64 of the same shape, in ``[0, M)``.
    """
    if dtype not in (torch.float32, torch.float64):
        return torch.bucketize(values, equal_width_edges(n_bins, dtype)[1:-1].to(values.device))
    scaled = values * n_bins
    index = scaled.ceil().to(torch.int64).sub_(1).clamp_(0, n_bins - 1)
    # Rounding can push a value across the edge it lies on; only values this close to one are looked up exactly
    # (torch.bucketize on everything costs ten times as much).
    nearest = scaled.round()
    doubtful = ((scaled - nearest).abs_() < n_bins * 1e-6) & (nearest < n_bins)
    if bool(doubtful.any()):
        where = doubtful.nonzero(as_tuple=True)
        index[where] = torch.bucketize(values[where], equal_width_edges(n_bins, dtype)[1:-1].to(values.device))
    return index


def equal_width_bins(top: TopLabel, *, n_bins: int) -> Bins:
    """Group examples into ``M`` equal-width confidence bins."""
    index = equal_width_index(top.confidence, n_bins, dtype=top.dtype)
    edges = equal_width_edges(n_bins)
    if top.weights is None:
        count = torch.bincount(index, minlength=n_bins).double()
        confidence = torch.bincount(index, weights=top.confidence, minlength=n_bins)
        accuracy = torch.bincount(index, weights=top.correct, minlength=n_bins)
    else:
        count = torch.bincount(index, weights=top.weights, minlength=n_bins)
        confidence = torch.bincount(index, weights=top.weights * top.confidence, minlength=n_bins)
        accuracy = torch.bincount(index, weights=top.weights * top.correct, minlength=n_bins)
    return means_of_sums(edges, count, confidence, accuracy)


@dataclass(frozen=True)
class MassCurve:
    """Examples sorted by confidence and added up: from it the content of any range of the sorted examples is read.

    Tied examples form one group. Between the ends of a group every sum grows linearly, which is how a cut through a group
    shares it between both sides, so that nothing depends on the order of samples.

    Attributes:
        size: Number of examples N (those of weight zero are left out).
        values: Distinct confidences ``[G]``, increasing.
        mass: Weight of all examples up to and including each group ``[G + 1]``, from 0.
        confidence: The same of weight times confidence.
        correct: The same of weight times correctness.
        squares: The same of squared weights.
    """

    size: int
    values: Tensor
    mass: Tensor
    confidence: Tensor
    correct: Tensor
    squares: Tensor

    def cuts(self, n_bins: int) -> Tensor:
        """Where ``numpy.array_split`` would cut N examples into M parts, as mass ``[M + 1]``."""
        part, more = divmod(self.size, n_bins)
        k = torch.arange(n_bins + 1, dtype=torch.float64)
        cuts = (k * part + k.clamp(max=more)) * (float(self.mass[-1]) / self.size)
        cuts[-1] = self.mass[-1]
        return cuts

    def between(self, cuts: Tensor, sums: Tensor) -> Tensor:
        """Share of ``sums`` (one of the curves) between consecutive ``cuts [M + 1]``; ``[M]``."""
        return _interpolate(cuts, self.mass, sums).diff()


def mass_curve(top: TopLabel) -> MassCurve:
    """Sort the examples of ``top`` by confidence and add them up."""
    confidence, correct, weights = top.confidence, top.correct, top.weights
    if weights is not None:
        kept = weights > 0
        confidence, correct, weights = confidence[kept], correct[kept], weights[kept]
    confidence, order = torch.sort(confidence)
    correct = correct[order]
    last = torch.ones_like(confidence, dtype=torch.bool)
    torch.ne(confidence[1:], confidence[:-1], out=last[:-1])
    ends = last.nonzero().squeeze(1)
    zero = torch.zeros(1, dtype=torch.float64)
    if weights is None:
        mass = torch.cat([zero, (ends + 1).double()])
        sums = [confidence, correct]
    else:
        weights = weights[order]
        sums = [weights * confidence, weights * correct, weights, weights * weights]
    rising = [torch.cat([zero, s.cumsum(0)[ends]]) for s in sums]
    if weights is not None:
        mass = rising[2]
    return MassCurve(len(confidence), confidence[ends], mass, rising[0], rising[1], rising[3] if len(rising) > 2 else mass)


def equal_mass_bins(top: TopLabel, *, n_bins: int) -> Bins:
    """Group examples into ``M`` bins of equal size, sharing tied confidences.

    Sorted by confidence, bin b takes the examples between the cuts of ``numpy.array_split`` (the first N mod M bins hold one
    more). Examples of the same confidence are interchangeable: a group of ties that a cut divides contributes to both
    sides its mean correctness in proportion, so that no result depends on the order of samples. With weights the same cuts
    are taken at the same fractions of the total weight. Fewer examples than bins leave the last bins empty.
    """
    curve = mass_curve(top)
    return bins_of_curve(curve, curve.cuts(n_bins))


def bins_of_curve(curve: MassCurve, cuts: Tensor) -> Bins:
    """Bins between consecutive ``cuts [M + 1]`` of the mass; their edges are the confidences found there."""
    count, confidence, correct = (curve.between(cuts, s) for s in (curve.mass, curve.confidence, curve.correct))
    edges = curve.values[torch.searchsorted(curve.mass[1:], cuts).clamp(max=len(curve.values) - 1)]
    return means_of_sums(edges, count, confidence, correct)


def means_of_sums(edges: Tensor, count: Tensor, confidence: Tensor, accuracy: Tensor) -> Bins:
    """Make `Bins` from per-bin sums of weight, weight·confidence and weight·correct; empty bins get zeros."""
    safe = torch.where(count > 0, count, 1.0)
    zero = torch.zeros((), dtype=count.dtype)
    return Bins(edges, count, torch.where(count > 0, confidence / safe, zero), torch.where(count > 0, accuracy / safe, zero))


def norm_of_bins(bins: Bins, *, p: float = 1, total: float | None = None) -> Tensor:
    """Norm of order ``p`` of the gaps, each weighted by its bin's share of ``total`` (of all bins' content if None); ``[]``."""
    gap = bins.gap.abs()
    if math.isinf(p):
        return gap.amax()
    share = bins.count / (bins.count.sum() if total is None else total)
    return share @ gap if p == 1 else (share @ gap**p) ** (1 / p)


def _interpolate(points: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Piecewise-linear interpolation of increasing ``x`` → ``y`` at ``points`` (all within the range of x)."""
    right = torch.searchsorted(x, points).clamp(1, len(x) - 1)
    left = right - 1
    width = x[right] - x[left]
    share = torch.where(width > 0, (points - x[left]) / torch.where(width > 0, width, 1.0), 0.0)
    return y[left] + share * (y[right] - y[left])
