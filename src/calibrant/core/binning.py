"""From predictions to confidence and correctness, from confidence to bins, and the sums that all scores are made from.

Bins are right-closed, ``(lo, hi]``, with 0.0 in the first and 1.0 in the last; edges are ``k / M`` rounded to the dtype of the
probabilities, so that a float32 0.2 lies *on* the edge 3/15 and not above it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache, reduce
from itertools import repeat
from operator import add
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from calibrant.core.checks import SUM_TOLERANCE, ArrayLike
from calibrant.core.records import Bins, Predictions, as_predictions

# Entries of [N, C] held in float64 at once: 64 MiB.
CHUNK_ENTRIES = 8_000_000
# Entries binned at once, so that temporaries stay in the cache.
_BLOCK_ENTRIES = 400_000

# A stream sees its examples once and keeps sums per cell of confidence. 3,000 equal-width cells fold exactly into these numbers
# of bins. Each is cut into eight. The last one, where networks put most examples, is halved towards 1 twenty times, with
# sixteen cells in each half.
EXACT_BINS = (5, 10, 15, 20, 25, 30, 50, 100, 200, 500, 1000)
WIDTH_CELLS = 3000
_PER_CELL, _PER_OCTAVE, _OCTAVES = 8, 16, 20
_PLAIN_CELLS = (WIDTH_CELLS - 1) * _PER_CELL
NUM_CELLS = _PLAIN_CELLS + _OCTAVES * _PER_OCTAVE + 1
# Up to this many examples a sum keeps them (1 MB), so the usual test sets, ImageNet's 50,000 included, are measured exactly.
# With more, it hardly matters where in a cell an equal-mass bin begins: that moves the debiased error by 2e-4 at most.
KEPT_EXAMPLES = 65_536


@dataclass(frozen=True)
class TopLabel:
    """Confidence and correctness of every example: all that a top-label metric needs.

    An entry may also be a cell of a stream, which holds many examples of nearly equal confidence. ``correct`` is then their
    mean and ``weights`` their sum.

    Attributes:
        confidence: Top probability ``[N]``, float64.
        correct: 1.0 where the top class (the first of several that tie) is the label, else 0.0; ``[N]`` float64.
        weights: Sample weights ``[N]`` float64, or None for equal weights.
        dtype: Precision in which the probabilities came; bin edges are rounded to it.
        squares: Sums of squared weights ``[N]``, for cells.
        examples: Number of examples, for cells.
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
        """Number of examples."""
        return len(self) if self.examples is None else self.examples

    @cached_property
    def mass(self) -> Tensor:
        """Weight of every example ``[N]``, 1 where there are none."""
        return torch.ones_like(self.confidence) if self.weights is None else self.weights

    @cached_property
    def rising(self) -> tuple[Tensor, Tensor]:
        """Distinct confidences in order ``[G]``, and running sums over them ``[4, G + 1]``, which begin with 0.

        They sum weight, weight times confidence, weight times correctness and squared weight.
        """
        squares = self.mass.square() if self.squares is None else self.squares
        rows = torch.stack([self.confidence, self.mass, self.mass * self.confidence, self.mass * self.correct, squares])
        order = torch.from_numpy(rows[0].numpy().argsort())
        values, rows = rows[0, order], rows[1:, order]
        last = torch.cat([values[1:] != values[:-1], torch.ones(1, dtype=torch.bool)])
        return values[last], pad(rows.cumsum(1)[:, last], (1, 0))


def top_label(
    probs: ArrayLike | Predictions | TopLabel,
    labels: ArrayLike | None = None,
    *,
    where: str,
    n_bins: int = 1,
    p: float = 1,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> TopLabel:
    """Check the arguments of a top-label metric (see `as_predictions`) and reduce them to confidence and correctness.

    Examples that are reduced already come back as they are, so a metric can be asked of the examples of a `Summary` as well.
    """
    if isinstance(probs, TopLabel):
        return probs
    given = as_predictions(probs, labels, where=where, n_bins=n_bins, p=p, weights=weights, ignore_index=ignore_index)
    if not given.has_logits:
        return reduce_top_label(given.probs, given.labels, given.weights)
    # Logits know which class is on top even where probabilities saturate at 1. The softmax of all rows would fill memory.
    parts = given.logits.split(max(CHUNK_ENTRIES // given.num_classes, 1))
    confidence = torch.cat([part.double().softmax(1).amax(1) for part in parts])
    return TopLabel(confidence, given.correct.double(), given.weights)


def reduce_top_label(probs: Tensor, labels: Tensor, weights: Tensor | None = None) -> TopLabel:
    """Confidence and correctness of checked ``probs [N, C]``, on their device."""
    confidence = probs.amax(1)
    correct = probs.gather(1, labels.unsqueeze(1)).squeeze(1) == confidence
    # Of classes that tie for the top the first is the prediction. Only a top of at most one half can tie; the arg-max of all
    # rows would take four times as long as their maximum.
    doubtful = (correct & (confidence <= 0.5 + SUM_TOLERANCE.get(probs.dtype, 0.0))).nonzero().squeeze(1)
    rows = probs[doubtful]
    if int((rows == confidence[doubtful].unsqueeze(1)).sum()) > len(rows):
        correct[doubtful] = rows.argmax(1) == labels[doubtful]
    return TopLabel(confidence.double(), correct.double(), weights, probs.dtype)


def one_vs_rest(probs: Tensor, labels: Tensor, weights: Tensor | None = None, *, index: int) -> TopLabel:
    """One class's probability in checked ``probs [N, C]`` as confidence, and whether it is the label as correctness."""
    return TopLabel(probs[:, index].double().contiguous(), (labels == index).double(), weights, probs.dtype)


@lru_cache(maxsize=64)
def equal_width_edges(n_bins: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Edges ``k / M`` for k = 0..M, rounded to ``dtype`` and returned as float64 ``[M + 1]``.

    Edges that half precision rounds up to 1 stay just below it, so that 1 always belongs to the last bin.
    """
    edges = (torch.arange(n_bins + 1, dtype=torch.float64) / n_bins).to(dtype).double()
    edges[1:-1].clamp_(max=1 - torch.finfo(dtype).eps / 2)
    return edges


def equal_width_index(values: Tensor, n_bins: int, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Index of the equal-width bin ``(k/M, (k+1)/M]`` of values in [0, 1], float64; ``dtype`` is the precision they came in."""
    edges = equal_width_edges(n_bins, dtype).to(values.device)
    if n_bins * torch.finfo(dtype).eps > 0.5:
        return torch.bucketize(values.contiguous(), edges[1:-1])
    # The scaled value truncates to its bin k or, near an edge, to the next one, which a look at edge k settles: rounding keeps
    # order, so v > fl(k/M) implies fl(v M) >= k. A plain bucketize takes five times as long.
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

    The examples are sorted by confidence and cut where ``numpy.array_split`` does (the first N mod M bins hold one more). If a
    cut divides examples of equal confidence, both sides get their mean correctness in proportion, so that the order of
    examples does not matter. With weights, the cuts are at the same fractions of the total weight. Fewer examples than bins
    leave the last bins empty.
    """
    values, sums = top.rising
    cuts = mass_cuts(top.size, n_bins, total=float(sums[0, -1]))
    edges = values[torch.searchsorted(sums[0, 1:].contiguous(), cuts).clamp(max=len(values) - 1)]
    return means_of_sums(edges, *between_cuts(sums[:3], cuts))


def mass_cuts(size: int, n_bins: int, *, total: float = 1.0) -> Tensor:
    """Where ``numpy.array_split`` cuts ``size`` examples into M parts, in units of their weight ``total``; ``[M + 1]``."""
    part, more = divmod(size, n_bins)
    k = torch.arange(n_bins + 1, dtype=torch.float64)
    cuts = k * part + k.clamp(max=more)
    # Rounding must not leave anything for the bins after the last example.
    return torch.where(cuts < size, cuts * (total / size), total)


def between_cuts(sums: Tensor, cuts: Tensor) -> Tensor:
    """Part of running ``sums [K, ..., G + 1]`` between ``cuts [..., M + 1]`` of the first sum, the mass; ``[K, ..., M]``."""
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
    """Norm of order ``p`` of the gaps, weighted by each bin's share of ``total`` (default: what all bins hold); ``[]``."""
    gap = bins.gap.abs()
    if math.isinf(p):
        return gap.amax()
    share = bins.count / (bins.count.sum() if total is None else total)
    return share @ gap if p == 1 else (share @ gap**p) ** (1 / p)


def class_bins_of(probs: Tensor, labels: Tensor, weights: Tensor | None = None, *, n_bins: int) -> Tensor:
    """One-vs-rest bins ``[3, C, M]`` of checked ``probs [N, C]``: weight, weighted probability, weight of positives.

    With many classes nearly all entries lie in the first bin. Only the others are looked up, several times faster for 50,000 x
    100 than to bin every entry; the first bin is what they leave of the column's total. Weights do not add up exactly, so with
    weights the first bin is summed by itself: a rounding error would pass for content.
    """
    examples, num_classes = probs.shape
    mass = torch.ones(examples, dtype=torch.float64, device=probs.device) if weights is None else weights
    first = float(equal_width_edges(n_bins, probs.dtype)[1]) if n_bins > 1 else math.inf
    sums, low = mass.new_zeros(3, num_classes * n_bins), mass.new_zeros(2, num_classes)
    step = max(_BLOCK_ENTRIES // num_classes, 1)
    for block, own in zip(probs.split(step), mass.split(step), strict=True):
        entry = (block > first).flatten().nonzero().squeeze(1)
        values, weight = block.flatten()[entry].double(), own[entry // num_classes]
        slot = entry % num_classes * n_bins + equal_width_index(values, n_bins, dtype=probs.dtype)
        # Unlike bincount, this has a deterministic form on CUDA.
        sums[:2].index_add_(1, slot, torch.stack([weight, weight * values]))
        if weights is None:
            low[1] += block.sum(0, dtype=torch.float64)
        else:
            small = (block <= first).double()
            low += torch.stack([own @ small, own @ small.mul_(block)])
    at_label = probs.gather(1, labels.unsqueeze(1)).squeeze(1).double()
    sums[2].index_add_(0, labels * n_bins + equal_width_index(at_label, n_bins, dtype=probs.dtype), mass)
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


def bin_of_cell(cell: Tensor, n_bins: int) -> Tensor:
    """Equal-width bin in which each ``cell`` lies, for ``n_bins`` that divides 3,000."""
    return (cell // _PER_CELL).clamp_max(WIDTH_CELLS - 1) // (WIDTH_CELLS // n_bins)


@dataclass(frozen=True)
class Summary:
    """What all scores are made from: sums over examples of weight w (1 without weights), float64, of constant size.

    Adding two joins their data, so batches, files and processes can be summed in any order.

    Attributes:
        n: Number of examples.
        num_classes: Number of classes C.
        n_bins: Number of equal-width bins M.
        weights: Sums ``[2]`` of w and w².
        nll: Sums ``[3]`` of w v, w v² and w v³ for the negative log-likelihood v.
        brier: The same for the Brier score.
        cells: Sums by cell of confidence; see `cells_of`.
        top: The examples themselves, or None if they are too many.
        class_bins: One-vs-rest bins ``[3, C, M]``; see `class_bins_of`. None if not measured.
        class_counts: For each true class the weight of its examples that are predicted right, and its number of examples
            ``[2, C]``; or None.
        positive_cells: With two classes, ``cells`` as `one_vs_rest` sees the second one; else None.
        positive_top: Likewise ``top``.
    """

    n: int
    num_classes: int
    n_bins: int
    weights: Tensor
    nll: Tensor
    brier: Tensor
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
                sums[name] = join_examples([one, two]) if len(one) + len(two) <= KEPT_EXAMPLES else None
            else:
                sums[name] = one + two
        return replace(self, **sums)

    @cached_property
    def positive(self) -> Summary | None:
        """With two classes, the summary as `one_vs_rest` sees the second one; else None."""
        if self.positive_cells is None:
            return None
        return replace(self, cells=self.positive_cells, top=self.positive_top, positive_cells=None, positive_top=None)

    @property
    def is_weighted(self) -> bool:
        """Whether some weight is not one."""
        return not float(self.weights[0]) == self.n == float(self.weights[1])

    @property
    def weight(self) -> float:
        """Sum of the weights: the number of examples where there are none."""
        return float(self.weights[0])

    @property
    def effective_n(self) -> float:
        """How many equally weighted examples would say as much (Kish); ``n`` without weights."""
        return self.weight**2 / float(self.weights[1])

    @property
    def by_class(self) -> Tensor:
        """``class_bins``; raises ``ValueError`` where they were not kept."""
        if self.class_bins is None:
            raise ValueError("Summary: the classwise sums must have been kept, got none. Construct with `classwise=True`.")
        return self.class_bins

    @cached_property
    def examples(self) -> TopLabel:
        """The examples, or an entry for each cell."""
        if self.top is not None:
            return self.top
        weight, confidence, correct, squares, _ = self.cells[:, self.cells[0] > 0]
        return TopLabel(
            (confidence / weight).clamp(0, 1), (correct / weight).clamp(0, 1), weight, squares=squares, examples=self.n
        )

    @cached_property
    def bins(self) -> Bins:
        """Content of the reliability diagram."""
        return self.bins_of(self.n_bins)

    def bins_of(self, n_bins: int) -> Bins:
        """Equal-width confidence bins; exact if all examples are known, or if the number of bins divides 3,000."""
        if WIDTH_CELLS % n_bins == 0:
            index = bin_of_cell(torch.arange(NUM_CELLS), n_bins)
            *sums, _, rows = self.cells.new_zeros(5, n_bins).index_add_(1, index, self.cells)
            # The cached edges must not be written to.
            bins = means_of_sums(equal_width_edges(n_bins).clone(), *sums)
        else:
            top, bins = self.examples, equal_width_bins(self.examples, n_bins=n_bins)
            index = equal_width_index(top.confidence, n_bins, dtype=top.dtype)
            held = None if self.top is not None else self.cells[4, self.cells[0] > 0]
            rows = torch.bincount(index, weights=held, minlength=n_bins).double()
        return replace(bins, rows=rows) if self.is_weighted else bins


def summarize(predictions: Predictions, *, n_bins: int = 15, keep: int | None = KEPT_EXAMPLES) -> Summary:
    """Reduce predictions to a `Summary`, which keeps the examples if they are at most ``keep`` (None: always).

    Example:
        >>> summary = summarize(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0]), n_bins=5)
        >>> summary.n, summary.effective_n, summary.by_class[2].sum(1).tolist(), round(float(summary.brier[0]), 6)
        (2, 2.0, [2.0, 0.0], 1.3)
    """
    predictions = predictions.counted
    chunks = in_chunks(predictions.scores, predictions.labels, predictions.weights)
    parts = [summarize_rows(*chunk, are_logits=predictions.has_logits, n_bins=n_bins) for chunk in chunks]
    tops: dict[str, Any] = {"top": None, "positive_top": None}
    if keep is None or len(predictions) <= keep:
        tops = {name: join_examples([getattr(part, name) for part in parts]) for name in tops}
    return replace(reduce(add, parts), **tops)


def in_chunks(scores: Tensor, labels: Tensor, weights: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Checked examples, as many at a time as may be held in float64."""
    rows = max(CHUNK_ENTRIES // scores.shape[1], 1)
    return zip(scores.split(rows), labels.split(rows), repeat(None) if weights is None else weights.split(rows), strict=False)


def join_examples(tops: Sequence[TopLabel | None]) -> TopLabel | None:
    """Examples of several parts as one; None if they were not kept."""
    known = [top for top in tops if top is not None]
    if len(known) < len(tops):
        return None
    weights = None if all(top.weights is None for top in known) else torch.cat([top.mass for top in known])
    confidence, correct = (torch.cat([getattr(top, name) for top in known]) for name in ("confidence", "correct"))
    return TopLabel(confidence, correct, weights, known[0].dtype)


def summarize_rows(
    scores: Tensor, labels: Tensor, weights: Tensor | None, *, are_logits: bool, n_bins: int, classwise: bool = True
) -> Summary:
    """Reduce checked ``scores [n, C]`` (logits or probabilities) and ``labels [n]`` to a `Summary`, on their device."""
    probs, top, nll, brier = score_rows(scores, labels, weights, are_logits=are_logits)
    weight, num_classes = top.mass, scores.shape[1]
    values = torch.stack([nll, brier])
    moments = torch.stack([values, values.square(), values**3], 1).flatten(0, 1) @ weight
    second = one_vs_rest(probs, labels, weights, index=1) if num_classes == 2 else None
    counted = torch.stack([weight * top.correct, torch.ones_like(weight)])
    return Summary(
        n=len(labels),
        num_classes=num_classes,
        n_bins=n_bins,
        weights=torch.stack([weight.sum(), weight.square().sum()]),
        nll=moments[:3],
        brier=moments[3:],
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
