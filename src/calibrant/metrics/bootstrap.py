"""The spread of every score over resamples of the examples, all resamples at once."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import equal_width_edges, equal_width_index
from calibrant.core.checks import check_count
from calibrant.core.closed_form import quiet_products
from calibrant.core.grid import grid_index, grid_of
from calibrant.core.records import Predictions
from calibrant.core.summary import Rows, class_bins_of, score_rows
from calibrant.metrics.batched import BATCHED, batched_ace, batched_aurc, batched_debiased, batched_ece, batched_mce
from calibrant.metrics.blocks import Array, Blocks, Matrix
from calibrant.metrics.levels import Levels, levels_of, merge_bins

# Counts held at once, one per block and resample: 40 MB.
_CHUNK_COUNTS = 10_000_000
# Chances that a Poisson number of mean one is at most 0, 1, 2, ..., in units of 2^-16.
_POISSON = np.cumsum([1 / float(np.prod(np.arange(1, k + 1))) for k in range(9)]) * np.exp(-1) * 65536
_HOW_OFTEN = np.searchsorted(_POISSON, np.arange(65536), side="right").astype(np.float32)


def bootstrap_scores(
    predictions: Predictions, *, n_bins: int = 15, n_resamples: int = 1000, seed: int = 0
) -> dict[str, Tensor]:
    """Every score of `calibrant.measure` on many resamples of the examples.

    An example is drawn a Poisson number of times with mean one, which for sums over examples is as good as drawing N of
    them with replacement, and independent from example to example; more than 20,000 are drawn some at a time (`Blocks`).
    Confidences are compressed to levels at most 0.01 wide. These are the scores of resamples, in which calibration errors
    are larger than in the data, as they are larger in the data than in truth: their quantiles are not intervals.
    `calibrant.measure` gives those.

    Args:
        predictions: N examples.
        n_bins: Number of bins of the binned metrics.
        n_resamples: Number of resamples R.
        seed: Of the random draws; the same seed gives the same numbers.

    Returns:
        Key → values ``[R]``, float64.

    Example:
        >>> drawn = bootstrap_scores(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]] * 50, labels=[0, 0] * 50), n_resamples=200)
        >>> drawn["error"].shape, round(float(drawn["error"].std()), 2)  # sqrt(0.5 * 0.5 / 100)
        (torch.Size([200]), 0.05)

    Reference:
        Efron, Annals of Statistics 7, 1979; Hanley and MacGibbon, Computer Methods and Programs in Biomedicine 83, 2006.
    """
    check_count(n_bins, where="bootstrap_scores", name="n_bins")
    check_count(n_resamples, where="bootstrap_scores", name="n_resamples")
    check_count(seed, where="bootstrap_scores", name="seed", least=0)
    blocks = Blocks(len(predictions), seed=seed)
    sample = Sample(predictions, n_bins=n_bins, blocks=blocks)
    return join_parts([sample.scores(counts) for counts in draw_counts(len(blocks), n_resamples=n_resamples, seed=seed)])


def join_parts(parts: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Put the scores of several groups of resamples one after the other."""
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def draw_counts(n: int, *, n_resamples: int, seed: int) -> Iterator[Array]:
    """How often each of ``n`` examples or blocks is drawn, ``[n, r]`` float32, some resamples at a time."""
    rng = np.random.default_rng(seed)
    at_once = max(_CHUNK_COUNTS // n, 1)
    for at in range(0, n_resamples, at_once):
        size = (n, min(at_once, n_resamples - at))
        counts = _HOW_OFTEN[rng.integers(0, 65536, size=size, dtype=np.uint16)]
        # A resample of no example at all says nothing; it may come up where there are few.
        counts[:, counts.sum(0) == 0] = 1
        yield counts


class Sample:
    """The examples of one model, prepared so that scores of resamples are matrix products.

    Args:
        predictions: The examples.
        n_bins: Number of bins of the binned metrics.
        blocks: Which examples are drawn together; each alone unless given.
    """

    def __init__(self, predictions: Predictions, *, n_bins: int, blocks: Blocks | None = None) -> None:
        blocks = blocks or Blocks(len(predictions))
        rows = score_rows(predictions)
        top = rows.top
        # Only their proportions count, and single precision ends at 3e38. A power of two moves no digit.
        given = None if top.weights is None else top.weights / 2.0 ** math.floor(math.log2(float(top.weights.max())))
        weights = torch.ones(len(predictions), dtype=torch.float64) if given is None else given
        size = float(weights.sum() ** 2 / weights.square().sum())
        self.weights = weights
        self.levels = levels_of(
            grid_of(top.confidence, top.correct, given, dtype=top.dtype), size=size, n_bins=n_bins, within_bins=True
        )
        level = torch.searchsorted(self.levels.last_cell, grid_index(top.confidence, dtype=top.dtype))
        # Examples of weight zero may lie beyond the last level in use; they count nothing wherever they are put.
        level = level.clamp_max(len(self.levels) - 1)
        self.places = blocks.columns(weights, level * 2 + top.correct.long(), rows=2 * len(self.levels))
        infinite = rows.nll.isinf() & (weights > 0)
        sums = torch.stack([rows.nll.where(rows.nll.isfinite(), 0.0), rows.brier, infinite.double()], dim=1)
        self.sums = blocks.sum(sums * weights[:, None])
        self.num_classes = predictions.num_classes
        self.classes, self.totals = _class_residuals(rows, weights, n_bins, blocks)
        self.lacking, self.bin_of_level = _lacking_spread(self.levels, weights, level)
        self.bin_of_example = self.bin_of_level[level]
        self.shifts = [_level_shift(self.levels, pieces) for pieces in (self.levels.bin_index, self.levels.mass_index)]
        cells = class_bins_of(rows.probs, rows.labels, given, n_bins=n_bins)
        share, mean = cells.weight / weights.sum(), cells.confidence / cells.weight.where(cells.weight > 0, 1.0)
        gap = (cells.confidence - cells.correct) / weights.sum()
        self.class_shift = _shrinkage(gap, share * mean * (1 - mean) / size)

    @quiet_products()
    def scores(self, counts: Array, *, noise: Array | None = None) -> dict[str, Tensor]:
        """Score resamples in which blocks of examples are drawn ``counts [B, r]`` times; key → ``[r]``.

        With ``noise [M, r]`` for the accuracies of bins they are made to differ from each other as data sets do. The gaps of
        the data hold chance already, and a resample adds it once more: so the gaps of bins are first reduced by what chance is
        expected to have added (James and Stein). Kernels average over many gaps, and squares have their chance subtracted;
        metrics made of those need it not. The MCE, on the other hand, often is the gap of a bin with few examples, of which
        resamples show too little variety (none, if there is one): the variance that is missing is what `SharedNoise` draws.
        """
        held = torch.from_numpy(self.places @ counts).double()
        total = held.sum(0)
        # With weights, only examples without any may have been drawn.
        total = total.where(total > 0, 1.0)
        wrong, right = (held / total).T.unflatten(1, (-1, 2)).unbind(2)
        mass, levels = wrong + right, self.levels
        nll, brier, infinite = torch.from_numpy(self.sums @ counts).double() / total
        by_width, by_mass = (right if noise is None else right + mass * shift for shift in self.shifts)
        noisy = by_width
        if noise is not None:
            noisy = by_width + mass * torch.from_numpy(noise).T[:, self.bin_of_level].double()
        return {
            "error": wrong.sum(1),
            "nll": nll.where(infinite == 0, torch.inf),
            "brier": brier,
            "ece": batched_ece(levels, mass, by_width),
            "mce": batched_mce(levels, mass, noisy),
            "ace": batched_ace(levels, mass, by_mass),
            "classwise_ece": self._classwise(counts, total, shrunk=noise is not None),
            **{key: BATCHED[key](levels, mass, right) for key in ("sece", "smece", "mmce")},
            "ece_debiased": batched_debiased(levels, mass, right, size=levels.size),
            "signed_gap": mass @ levels.confidence - right.sum(1),
            "aurc": batched_aurc(levels, mass, right),
        }

    def _classwise(self, counts: Array, total: Tensor, *, shrunk: bool) -> Tensor:
        """Classwise ECE ``[r]``."""
        above = torch.from_numpy(self.classes @ counts).unflatten(0, (self.num_classes, -1))
        first = (torch.from_numpy(self.totals @ counts) - above.sum(1)).unsqueeze(1)
        residual = torch.cat([first, above], dim=1) / total
        if shrunk:
            residual -= self.class_shift.unsqueeze(2)
        return residual.abs().sum((0, 1)) / self.num_classes


def _lacking_spread(levels: Levels, weights: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """What a unit of noise and weight at one example adds to the accuracy of its bin ``[M]``, and the bin of each level.

    Summed over its examples, the variance is what resamples lack of that of the bin's accuracy.
    """
    bins = merge_bins(levels)
    index = torch.searchsorted(bins.bin_index, levels.bin_index)
    count = bins.share * bins.size
    guess = (count * bins.accuracy + 2) / (count + 4)
    lacking = (guess * (1 - guess) - bins.accuracy * (1 - bins.accuracy)).clamp_min(0)
    squares = torch.bincount(index[level], weights=weights.square(), minlength=len(bins))
    return (lacking / (count * squares)).sqrt(), index


def _shrinkage(gap: Tensor, variance: Tensor) -> Tensor:
    """Part of each gap to take away: all of those that are no larger than chance makes them."""
    # The variance of a mean confidence that passes 1 by rounding is below 0: nothing is to be taken away then.
    return gap * (variance / gap.square().clamp_min(torch.finfo(gap.dtype).tiny)).clamp(0, 1)


def _level_shift(levels: Levels, pieces: Tensor) -> Tensor:
    """What to add to the accuracy of each level ``[G]`` so that the gaps of the pieces shrink."""
    _, piece = torch.unique(pieces, return_inverse=True)
    sums = torch.stack([levels.share, levels.share * levels.confidence, levels.share * levels.accuracy])
    weight, confidence, accuracy = sums.new_zeros(3, int(piece.max()) + 1).index_add_(1, piece, sums)
    confidence, accuracy = confidence / weight, accuracy / weight
    return _shrinkage(confidence - accuracy, confidence * (1 - confidence) / (weight * levels.size))[piece]


def _class_residuals(rows: Rows, weights: Tensor, n_bins: int, blocks: Blocks) -> tuple[Matrix, Array]:
    """Probability minus one-hot label, by block: ``[C·(M - 1), B]`` of those not in the first bin, and of all ``[C, B]``.

    Most probabilities are in the first bin, whose residual is what the others leave of the total.
    """
    inner = max(n_bins - 1, 1)
    edge = equal_width_edges(n_bins, rows.probs.dtype)[1].to(rows.probs.dtype)
    number, column = (rows.probs > edge).nonzero(as_tuple=True)
    values = rows.probs[number, column].double()
    slot = column * inner + equal_width_index(values, n_bins, dtype=rows.probs.dtype) - 1
    residual = (values - (rows.labels[number] == column).double()) * weights[number]
    above = blocks.columns(residual, slot, rows=rows.probs.shape[1] * inner, number=number)
    totals = rows.probs.float() * weights.float()[:, None]
    totals[torch.arange(len(totals)), rows.labels] -= weights.float()
    return above, blocks.sum(totals)
