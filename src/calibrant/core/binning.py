"""The only place where a confidence becomes a bin index; and what is binned: confidence and correctness.

Bins are right-closed, ``(lo, hi]``, with 0.0 in the first and 1.0 in the last; edges are ``k / M`` rounded to the dtype of the
probabilities, so that a float32 0.2 lies *on* the edge 3/15 and not above it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
from torch import Tensor
from torch.nn.functional import pad

from calibrant.core.checks import SUM_TOLERANCE, ArrayLike, check_bins
from calibrant.core.records import Bins, Predictions, as_predictions

# Entries of [N, C] held in float64 at once: 64 MiB.
CHUNK_ENTRIES = 8_000_000
# Entries looked at in one go, so that temporaries stay in the cache.
_BLOCK_ENTRIES = 400_000

# A stream has no second look at its examples and keeps sums per cell of confidence. 3,000 equal-width cells fold exactly into
# these numbers of bins; each is cut into eight, and the last one, where networks put most of their examples, into sixteen cells
# to every halving of the distance to one, twenty times.
EXACT_BINS = (5, 10, 15, 20, 25, 30, 50, 100, 200, 500, 1000)
WIDTH_CELLS = 3000
_PER_CELL, _PER_OCTAVE, _OCTAVES = 8, 16, 20
_PLAIN_CELLS = (WIDTH_CELLS - 1) * _PER_CELL
NUM_CELLS = _PLAIN_CELLS + _OCTAVES * _PER_OCTAVE + 1


@dataclass(frozen=True)
class TopLabel:
    """Confidence and correctness of every example: all that a top-label metric needs.

    An entry may stand for many examples of nearly equal confidence (a cell of a stream): ``correct`` is then their mean, and
    ``squares`` and ``examples`` say what their sum of weights no longer does.

    Attributes:
        confidence: Top probability ``[N]``, float64.
        correct: 1.0 where the top class (the first of several that tie) is the label, else 0.0; ``[N]`` float64.
        weights: Sample weights ``[N]`` float64, or None for equal weights.
        dtype: Precision in which the probabilities came; bin edges are rounded to it.
        squares: Sums of squared weights ``[N]``, where an entry stands for many examples.
        examples: Number of examples of positive weight, where it is not the number of entries of positive weight.
    """

    confidence: Tensor
    correct: Tensor
    weights: Tensor | None = None
    dtype: torch.dtype = torch.float64
    squares: Tensor | None = None
    examples: int | None = None

    def __len__(self) -> int:
        return len(self.confidence)

    @property
    def size(self) -> int:
        """Number of examples of positive weight."""
        if self.examples is not None:
            return self.examples
        return len(self) if self.weights is None else int((self.weights > 0).sum())

    @cached_property
    def mass(self) -> Tensor:
        """Weight of every example ``[N]``, 1 where there are none."""
        return torch.ones_like(self.confidence) if self.weights is None else self.weights

    @cached_property
    def rising(self) -> tuple[Tensor, Tensor]:
        """Distinct confidences in order ``[G]``, and sums ``[4, G + 1]`` over all examples up to each, from 0 on.

        The sums are of weight, weight times confidence, weight times correctness and squared weight.
        """
        squares = self.mass.square() if self.squares is None else self.squares
        rows = torch.stack([self.confidence, self.mass, self.mass * self.confidence, self.mass * self.correct, squares])
        rows = rows[:, self.mass > 0] if self.weights is not None else rows
        order = torch.from_numpy(rows[0].numpy().argsort())
        values, rows = rows[0, order], rows[1:, order]
        last = torch.cat([values[1:] != values[:-1], torch.ones(1, dtype=torch.bool)])
        return values[last], pad(rows.cumsum(1)[:, last], (1, 0))


def examples_of(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    where: str,
    n_bins: int = 1,
    p: float = 1,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Predictions:
    """Check the arguments that metrics share, and return the examples: the one gate of all metrics."""
    check_bins(n_bins, where=where)
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not p >= 1:
        raise ValueError(f"{where}: `p` must be a number >= 1 (`math.inf` for the largest gap), got {p!r}.")
    return as_predictions(probs, labels, where=where, weights=weights, ignore_index=ignore_index)


def top_label(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    where: str,
    n_bins: int = 1,
    p: float = 1,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> TopLabel:
    """Check the arguments of a top-label metric (`examples_of`) and reduce them to confidence and correctness."""
    given = examples_of(probs, labels, where=where, n_bins=n_bins, p=p, weights=weights, ignore_index=ignore_index)
    if not given.has_logits:
        return reduce_top_label(given.probs, given.labels, given.weights)
    # Probabilities that saturate at 1 hide which class was on top, logits do not; the softmax of all rows would fill memory.
    parts = given.logits.split(max(CHUNK_ENTRIES // given.num_classes, 1))
    confidence = torch.cat([part.double().softmax(1).amax(1) for part in parts])
    return TopLabel(confidence, given.correct.double(), given.weights)


def reduce_top_label(probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> TopLabel:
    """Confidence and correctness of checked ``probs [N, C]``, on their device."""
    confidence = probs.amax(1)
    correct = probs.gather(1, labels.unsqueeze(1)).squeeze(1) == confidence
    # Of classes that tie for the top the first one is the prediction. Only a top of at most one half can tie, and looking up
    # the arg-max of all rows would take four times as long as their maximum.
    doubtful = (correct & (confidence <= 0.5 + SUM_TOLERANCE.get(probs.dtype, 0.0))).nonzero().squeeze(1)
    rows = probs[doubtful]
    if int((rows == confidence[doubtful].unsqueeze(1)).sum()) > len(rows):
        correct[doubtful] = rows.argmax(1) == labels[doubtful]
    return TopLabel(confidence.double(), correct.double(), weights, probs.dtype)


@lru_cache(maxsize=64)
def equal_width_edges(n_bins: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Edges ``k / M`` for k = 0..M, rounded to ``dtype`` and returned as float64 ``[M + 1]``.

    Edges that half precision rounds up to 1 stay just below it, so that 1 belongs to the last bin however many there are.
    """
    edges = (torch.arange(n_bins + 1, dtype=torch.float64) / n_bins).to(dtype).double()
    edges[1:-1].clamp_(max=1 - torch.finfo(dtype).eps / 2)
    return edges


def equal_width_index(values: Tensor, n_bins: int, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Index of the equal-width bin ``(k/M, (k+1)/M]`` of values in [0, 1], float64; ``dtype`` is the precision they came in."""
    edges = equal_width_edges(n_bins, dtype).to(values.device)
    if n_bins * torch.finfo(dtype).eps > 0.5:
        return torch.bucketize(values.contiguous(), edges[1:-1])
    # The scaled value truncates to its bin k or, on an edge, to a neighbour; comparing with edge k settles it, since rounding
    # keeps order: v > fl(k/M) implies fl(v M) >= k. A plain bucketize takes five times as long.
    index = (values * n_bins).long().clamp_(0, n_bins)
    return (index - (values <= edges.index_select(0, index.flatten()).view_as(values)).long()).clamp_(0, n_bins - 1)


def equal_width_bins(top: TopLabel, *, n_bins: int) -> Bins:
    """Group examples into ``M`` equal-width confidence bins."""
    index = equal_width_index(top.confidence, n_bins, dtype=top.dtype)
    weights, parts = top.weights, (top.confidence, top.correct)
    count = torch.bincount(index, weights=weights, minlength=n_bins).double()
    sums = (torch.bincount(index, weights=v if weights is None else weights * v, minlength=n_bins) for v in parts)
    # The cached edges must not be written to.
    return means_of_sums(equal_width_edges(n_bins).clone(), count, *sums)


def equal_mass_bins(top: TopLabel, *, n_bins: int) -> Bins:
    """Group examples into ``M`` bins of equal size, sharing tied confidences.

    Sorted by confidence, bin b takes the examples between the cuts of ``numpy.array_split`` (the first N mod M bins hold one
    more). Examples of the same confidence are interchangeable: a group of ties that a cut divides contributes to both
    sides its mean correctness in proportion, so that no result depends on the order of samples. With weights the same cuts
    are taken at the same fractions of the total weight. Fewer examples than bins leave the last bins empty.
    """
    values, sums = top.rising
    cuts = mass_cuts(top.size, n_bins, total=float(sums[0, -1]))
    edges = values[torch.searchsorted(sums[0, 1:].contiguous(), cuts).clamp(max=len(values) - 1)]
    return means_of_sums(edges, *between_cuts(sums[:3], cuts))


def mass_cuts(size: int, n_bins: int, *, total: float = 1.0) -> Tensor:
    """Where ``numpy.array_split`` cuts ``size`` examples, of weight ``total`` together, into M parts, as weight ``[M + 1]``."""
    part, more = divmod(size, n_bins)
    k = torch.arange(n_bins + 1, dtype=torch.float64)
    cuts = k * part + k.clamp(max=more)
    # Rounding must not leave anything for the bins after the last example.
    return torch.where(cuts < size, cuts * (total / size), total)


def between_cuts(sums: Tensor, cuts: Tensor) -> Tensor:
    """Share of running ``sums [K, ..., G + 1]``, the first the mass, between ``cuts [..., M + 1]``; ``[K, ..., M]``."""
    mass, cuts = sums[0].contiguous(), cuts.contiguous()
    right = torch.searchsorted(mass, cuts).clamp(1, mass.shape[-1] - 1)
    start, width = mass.gather(-1, right - 1), mass.gather(-1, right) - mass.gather(-1, right - 1)
    share = torch.where(width > 0, (cuts - start) / width.where(width > 0, 1.0), 0.0).clamp(0, 1)
    at = right.expand(len(sums), *right.shape)
    return torch.lerp(sums.gather(-1, at - 1), sums.gather(-1, at), share).diff(dim=-1)


def means_of_sums(edges: Tensor, count: Tensor, confidence: Tensor, accuracy: Tensor) -> Bins:
    """Make `Bins` from per-bin sums of weight, weight·confidence and weight·correct; empty bins get zeros."""
    safe = count.where(count > 0, 1.0)
    sure, right = (torch.where(count > 0, total / safe, 0.0) for total in (confidence, accuracy))
    return Bins(edges, count, sure, right)


def norm_of_bins(bins: Bins, *, p: float = 1, total: float | None = None) -> Tensor:
    """Norm of order ``p`` of the gaps, each weighted by its bin's share of ``total`` (of all bins' content if None); ``[]``."""
    gap = bins.gap.abs()
    if math.isinf(p):
        return gap.amax()
    share = bins.count / (bins.count.sum() if total is None else total)
    return share @ gap if p == 1 else (share @ gap**p) ** (1 / p)


def class_bins_of(probs: Tensor, labels: Tensor, weights: Tensor | None = None, *, n_bins: int) -> Tensor:
    """One-vs-rest bins ``[3, C, M]`` of checked ``probs [N, C]``: weight, weighted probability, weight of positives.

    With many classes nearly all entries lie in the first bin. Only the others are looked up, which is ten times faster for
    50,000 x 100 than binning every entry; the first bin is what they leave of the column's total. Weights do not add up
    exactly, and what rounding leaves of them would pass for a bin: with weights the first bin is summed for itself.
    """
    examples, num_classes = probs.shape
    first = float(equal_width_edges(n_bins, probs.dtype)[1]) if n_bins > 1 else math.inf
    sums = torch.zeros(3, num_classes * n_bins, dtype=torch.float64, device=probs.device)
    low = sums.new_zeros(2, num_classes)
    step = max(_BLOCK_ENTRIES // num_classes, 1)
    for start in range(0, examples, step):
        block = probs[start : start + step]
        entry = (block > first).flatten().nonzero().squeeze(1)
        values = block.flatten()[entry].double()
        slot = entry % num_classes * n_bins + equal_width_index(values, n_bins, dtype=probs.dtype)
        weight = torch.ones_like(values)
        if weights is None:
            low[1] += block.sum(0, dtype=torch.float64)
        else:
            own = weights[start : start + step]
            weight = own[entry // num_classes]
            small = (block <= first).double()
            low += torch.stack([own @ small, own @ small.mul_(block)])
        # Unlike bincount, this has a deterministic form on CUDA.
        sums[0].index_add_(0, slot, weight)
        sums[1].index_add_(0, slot, weight * values)
    at_label = probs.gather(1, labels.unsqueeze(1)).squeeze(1).double()
    slot = labels * n_bins + equal_width_index(at_label, n_bins, dtype=probs.dtype)
    sums[2].index_add_(0, slot, torch.ones_like(at_label) if weights is None else weights)
    found: Tensor = sums.unflatten(1, (num_classes, n_bins))
    if weights is None:
        low[0] = examples
        low -= found[:2].sum(2)
    found[:2, :, 0] = low.clamp_min(0)
    return found


def cell_index(confidence: Tensor, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Cell of every confidence (float64 ``[N]``), increasing with it; ``dtype`` is the precision it came in."""
    width = equal_width_index(confidence, WIDTH_CELLS, dtype=dtype)
    part = ((confidence * WIDTH_CELLS - width) * _PER_CELL).ceil_().sub_(1).clamp_(0, _PER_CELL - 1)
    index = width * _PER_CELL + part.long()
    top = (width == WIDTH_CELLS - 1).nonzero().squeeze(1)
    octaves = -((1 - confidence[top]).clamp_min_(0) * WIDTH_CELLS).log2()  # Rounding may put a probability above one.
    index[top] = _PLAIN_CELLS + (octaves * _PER_OCTAVE).ceil_().sub_(1).clamp_(0, NUM_CELLS - 1 - _PLAIN_CELLS).long()
    return index


def cells_of(top: TopLabel) -> Tensor:
    """Sums by cell ``[5, NUM_CELLS]``: weight, weight times confidence and correctness, squared weight; number of examples."""
    index, mass = cell_index(top.confidence, dtype=top.dtype), top.mass
    rows = torch.stack([mass, mass * top.confidence, mass * top.correct, mass.square(), torch.ones_like(mass)])
    return rows.new_zeros(5, NUM_CELLS).index_add_(1, index, rows)


def fold_cells(sums: Tensor, n_bins: int) -> Tensor:
    """Add up cell sums ``[..., NUM_CELLS]`` to ``[..., n_bins]``; exact, for ``n_bins`` that divides 3,000."""
    plain = sums[..., :_PLAIN_CELLS].unflatten(-1, (-1, _PER_CELL)).sum(-1)
    last = sums[..., _PLAIN_CELLS:].sum(-1, keepdim=True)
    folded: Tensor = torch.cat([plain, last], dim=-1).unflatten(-1, (n_bins, -1)).sum(-1)
    return folded


def bin_of_cell(cell: Tensor, n_bins: int) -> Tensor:
    """Equal-width bin in which each ``cell`` lies, for ``n_bins`` that divides 3,000."""
    return (cell // _PER_CELL).clamp_max(WIDTH_CELLS - 1) // (WIDTH_CELLS // n_bins)
