"""Confidence compressed to some hundred levels, on which metrics of many resamples are matrix products; and what chance shows.

A resample is a row: ``mass [R, G]`` is the share of its examples at each level, ``right [R, G]`` the share of its examples that
lie there and are rightly predicted. The expected shares of a known truth are such a row too; its metrics are the true ones.
Only the spread of a metric over resamples is computed so; a metric's own value comes from the module named after it.

`null_distribution`, `if_calibrated` and `bin_sweep` say which errors a perfectly calibrated model would show by chance alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from calibrant.core.binning import (
    WIDTH_CELLS,
    TopLabel,
    between_cuts,
    bin_of_cell,
    cells_of,
    equal_width_bins,
    equal_width_index,
    mass_cuts,
    norm_of_bins,
    top_label,
)
from calibrant.core.checks import MOST_BINS, ArrayLike, check_count
from calibrant.core.records import BinSweep, IfCalibrated, Predictions, as_predictions

__all__ = ["bin_sweep", "if_calibrated", "null_distribution"]

# A level is at most this wide (a quarter of SECE's bandwidth), and all examples make about this many levels of equal content
# where a cell does not hold more.
_WIDTH, _PARTS = 0.0125, 64
_SECE_BANDWIDTH, _MMCE_SCALE = 0.05, 0.4
# Bandwidths at which the smoothed residual is computed; smECE is found between two of them.
_LADDER = torch.logspace(-3.5, 0, 29, dtype=torch.float64)
# 10, 20, 50, 100, 200, 500 and 1000 are those of published figures; the others fill the gaps on a logarithmic axis.
BIN_COUNTS = (10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)
# So many bins times resamples take about 5 GB.
_MOST_DRAWS = 5_000_000


@dataclass(frozen=True)
class Levels:
    """Occupied confidence levels, sorted, float64 ``[G]`` each; none straddles two bins unless a cell does.

    Attributes:
        share: Share of all examples, summing to one.
        confidence: Mean confidence.
        accuracy: Share of right predictions.
        bin_index: Equal-width bin, int64.
        last_cell: Last cell of confidence that belongs to the level, int64.
        count: (Effective) number of examples in the level.
        size: (Effective) number of examples.
        n_bins: Number of bins M of the binned metrics.
    """

    share: Tensor
    confidence: Tensor
    accuracy: Tensor
    bin_index: Tensor
    last_cell: Tensor
    count: Tensor
    size: int
    n_bins: int

    def __len__(self) -> int:
        return len(self.share)

    def row(self, accuracy: Tensor) -> tuple[Tensor, Tensor]:
        """Expected shares of a known accuracy ``[..., G]``, as rows ``mass, right [R, G]``."""
        right = torch.atleast_2d(self.share * accuracy)
        return self.share.expand_as(right), right

    @cached_property
    def mass_index(self) -> Tensor:
        """Equal-mass bin in which the middle of each level lies ``[G]``."""
        return torch.bucketize(self.share.cumsum(0) - self.share / 2, self.mass_cuts[1:-1])

    @cached_property
    def mass_cuts(self) -> Tensor:
        """Where equal-mass bins of ``size`` examples begin and end, as a share of all ``[M + 1]``, but for empty ones."""
        return mass_cuts(self.size, min(self.n_bins, self.size))

    @cached_property
    def _in_bin(self) -> Tensor:
        used, index = torch.unique(self.bin_index, return_inverse=True)
        return one_hot(index, len(used)).double()

    def sum_by_bin(self, values: Tensor) -> Tensor:
        """Add up ``values [R, G]`` by equal-width bin; ``[R, M]`` without the bins that hold no level."""
        return values @ self._in_bin

    @cached_property
    def smoothers(self) -> Tensor:
        """Share of a reflected Gaussian at level g that falls into each of T parts of [0, 1], ``[29, G, T]``, float32.

        Parts end half-way between levels, and at multiples of a level's width. Rows sum to one, so that without overlap, at
        a small bandwidth, the smoothed residual is the residual.
        """
        middle = (self.confidence[1:] + self.confidence[:-1]) / 2
        even = torch.linspace(0, 1, round(1 / _WIDTH) + 1, dtype=torch.float64)
        ends = torch.cat([even, middle]).unique().float()
        center = self.confidence.float().unsqueeze(1)
        # Images of the kernel mirrored at 0 and 1; further ones matter only for bandwidths near 1.
        images = torch.stack([ends + 2 * k + sign * center for k in (-1, 0, 1) for sign in (-1, 1)])
        # One bandwidth after the other: of 1,000 levels all images at all of them would fill 800 MB.
        shares = [torch.erf(images / scale).sum(0).diff(dim=1) for scale in (_LADDER * 2**0.5).float()]
        return torch.stack([share / share.sum(-1, keepdim=True) for share in shares])


def levels_of(cells: Tensor, *, size: float, n_bins: int) -> Levels:
    """Merge ``cells [5, NUM_CELLS]`` of confidence to levels that are narrow and hold few of ``size`` (effective) examples."""
    size, used = max(round(size), 1), (cells[0] > 0).nonzero().squeeze(1)
    sums = cells[:, used]
    share, confidence = sums[0] / sums[0].sum(), (sums[1] / sums[0]).clamp(0, 1)
    # A cell knows better than its mean on which side of a rounded edge it lies.
    exact = WIDTH_CELLS % n_bins == 0
    bin_index = bin_of_cell(used, n_bins) if exact else equal_width_index(confidence, n_bins)
    cuts, each = mass_cuts(size, min(n_bins, size)), max(_PARTS // n_bins, 1)
    finer = (cuts[:-1].unsqueeze(1) + cuts.diff().unsqueeze(1) * torch.arange(each) / each).flatten()
    slots = [(confidence / _WIDTH).long(), torch.bucketize(share.cumsum(0) - share / 2, finer), bin_index]
    begins = (torch.stack(slots).diff(dim=1) != 0).any(0).long()
    level = pad(begins.cumsum(0), (1, 0))
    joined = torch.zeros(len(sums), int(level[-1]) + 1, dtype=torch.float64).index_add_(1, level, sums)
    last = pad(begins, (0, 1), value=1).bool()
    return Levels(
        share=joined[0] / joined[0].sum(),
        confidence=(joined[1] / joined[0]).clamp(0, 1),
        accuracy=(joined[2] / joined[0]).clamp(0, 1),
        bin_index=bin_index[last],
        last_cell=used[last],
        count=joined[0].square() / joined[3],
        size=size,
        n_bins=n_bins,
    )


class Gaps:
    """Share of examples, gap, and variance of one example's correctness, for each piece of the levels ``[K]``."""

    def __init__(self, levels: Levels, pieces: Tensor) -> None:
        self.piece = torch.unique(pieces, return_inverse=True)[1]
        self.weight = self.sum(levels.share)
        self.confidence, self.accuracy = (
            self.sum(levels.share * v) / self.weight for v in (levels.confidence, levels.accuracy)
        )
        self.gap = self.confidence - self.accuracy
        self.count = self.weight.square() / self.sum(levels.share.square() / levels.count)
        # Two more of each kind (Agresti and Coull): a bin seen without errors is not thereby free of them.
        guess = (self.count * self.accuracy + 2) / (self.count + 4)
        self.variance = guess * (1 - guess)

    def sum(self, values: Tensor) -> Tensor:
        """Add up ``values [..., G]`` by piece; ``[..., K]``."""
        return values.new_zeros(*values.shape[:-1], int(self.piece.max()) + 1).index_add_(-1, self.piece, values)


def draw_rows(levels: Levels, accuracy: Tensor, *, n_resamples: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw data sets of the observed confidences: R rows ``mass, right [S·R, G]`` for each true ``accuracy [S, G]``.

    Levels end where bins begin. With newly drawn confidences the cuts of equal-mass bins would fall inside levels, whose
    examples would be shared out evenly instead of by chance: the error would come out 3 % too small.
    """
    # Effective numbers need not be whole: the fraction is rounded up as often as it says. Whole ones are met within rounding.
    expected, shape = levels.count.numpy(), (len(accuracy), n_resamples, len(levels))
    whole = np.maximum(np.floor(expected + 1e-6), 1)
    fraction = expected - whole
    count = whole if fraction.max() < 1e-5 else whole + (rng.random(shape) < fraction)
    # Sums in another order must not change what is drawn.
    chances = accuracy.unsqueeze(1).numpy().round(12)
    rate = torch.from_numpy(rng.binomial(count.astype(np.int64), chances, size=shape) / count)
    right = (levels.share * rate).flatten(0, 1)
    return levels.share.expand_as(right), right


def draw_calibrated(levels: Levels, *, n_resamples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw data sets of a model that is right as often as it says: rows ``mass, right [R, G]``."""
    return draw_rows(levels, levels.confidence[None], n_resamples=n_resamples, rng=np.random.default_rng(seed))


# From levels and rows ``mass, right [R, G]`` to the values of a metric ``[R]``.
OfLevels: TypeAlias = Callable[[Levels, Tensor, Tensor], Tensor]


def ece_of_levels(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Expected calibration error of each row ``[R]``."""
    return levels.sum_by_bin(mass * levels.confidence - right).abs().sum(-1)


def mce_of_levels(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Maximum calibration error of each row ``[R]``."""
    gap, held = levels.sum_by_bin(mass * levels.confidence - right).abs(), levels.sum_by_bin(mass)
    return torch.where(held > 0, gap / held.where(held > 0, 1.0), 0.0).amax(-1)


def ace_of_levels(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Adaptive (equal-mass) calibration error of each row ``[R]``."""
    return _between_cuts(levels, mass, mass * levels.confidence - right)[0].abs().sum(-1)


def debiased_of_levels(levels: Levels, mass: Tensor, right: Tensor, *, noise: float = 1.0) -> Tensor:
    """Debiased L2 calibration error of each row ``[R]``; with ``noise`` 0, what it would be of infinitely many examples."""
    residual, correct = _between_cuts(levels, mass, mass * levels.confidence - right, right)
    weight = levels.mass_cuts.diff()
    accuracy, count = correct / weight, weight * levels.size
    held = count >= 2 - 1e-9
    variance = noise * accuracy * (1 - accuracy) / (count - 1).where(held, 1.0)
    return torch.where(held, weight * ((residual / weight) ** 2 - variance), 0.0).sum(-1).clamp_min(0).sqrt()


def sece_of_levels(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Smooth expected calibration error (SECE, hard accuracy) of each row ``[R]``."""
    gauss = torch.exp(-0.5 * ((levels.confidence.unsqueeze(1) - levels.confidence) / _SECE_BANDWIDTH) ** 2)
    near = mass @ gauss
    accuracy = (right @ gauss) / near.clamp_min(torch.finfo(near.dtype).tiny)
    return (mass * (accuracy - levels.confidence).abs()).sum(-1)


def mmce_of_levels(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Maximum mean calibration error (root of the pair statistic) of each row ``[R]``."""
    residual = mass * levels.confidence - right
    laplace = torch.exp((levels.confidence.unsqueeze(1) - levels.confidence).abs() / -_MMCE_SCALE)
    return ((residual @ laplace) * residual).sum(-1).clamp_min(0).sqrt()


def smece_of_levels(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Smooth calibration error (smECE) of each row ``[R]``: the bandwidth that equals its smoothed residual.

    Smoothed residuals fall as the bandwidth grows, so each row crosses once; the rungs on either side are joined linearly.
    """
    residual = (mass * levels.confidence - right).float()
    error = torch.stack([(residual @ smoother).abs_().sum(-1) for smoother in levels.smoothers]).double()
    above = (error > _LADDER.unsqueeze(1)).sum(0, keepdim=True)
    left, right = (above - 1).clamp_min(0), above.clamp_max(len(_LADDER) - 1)
    (e0,), (e1,), (s0,), (s1,) = error.gather(0, left), error.gather(0, right), _LADDER[left], _LADDER[right]
    between = (left != right)[0]
    share = torch.where(between, (e0 - s0) / ((e0 - s0) - (e1 - s1)).where(between, 1.0), 0.0)
    # Below the first rung the residual hardly depends on the bandwidth.
    return torch.where(above[0] == 0, error[0], s0 + share * (s1 - s0))


def aurc_of_levels(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Area under the risk-coverage curve of each row ``[R]``, the most confident first."""
    mass, wrong = mass.flip(-1), (mass - right).flip(-1)
    covered = mass.cumsum(-1) - mass / 2
    risk = (wrong.cumsum(-1) - wrong / 2) / covered.clamp_min(torch.finfo(mass.dtype).tiny)
    return (mass * risk).sum(-1)


def _between_cuts(levels: Levels, mass: Tensor, *sums: Tensor) -> Tensor:
    """Content ``[K, R, M]`` of equal-mass bins: cumulative sums, read by interpolation where the cumulative mass is cut."""
    rising = pad(torch.stack([mass, *sums]).cumsum(-1), (1, 0))
    return between_cuts(rising, levels.mass_cuts * rising[0, :, -1:])[1:]


def null_distribution(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    n_resamples: int = 1000,
    seed: int = 0,
    weights: ArrayLike | None = None,
) -> Tensor:
    r"""ECE of a perfectly calibrated model with these confidences, many times.

    Each time every example is right with a chance that equals its confidence :math:`c_i`, and the ECE is computed again:

    .. math:: \mathrm{ECE}^* = \sum_{m=1}^{M} \Bigl| \frac{1}{N} \sum_{i \in B_m} (a_i^* - c_i) \Bigr|,
        \qquad a_i^* \sim \mathrm{Bernoulli}(c_i)

    with the bins :math:`B_m` of `calibrant.metrics.expected_calibration_error`. Examples within 0.01 of confidence (and of one
    bin) share their mean one. With weights, N is the effective number :math:`(\sum_i w_i)^2 / \sum_i w_i^2`.

    Args:
        probs: Probabilities ``[N, C]``, rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` in ``[0, C)``; only checked.
        n_bins: Number of bins ``M``.
        n_resamples: Number of times R.
        seed: Of the random draws; the same seed gives the same numbers.
        weights: Sample weights ``[N]``.

    Returns:
        ECE values ``[R]``, float64.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]] * 100)
        >>> drawn = null_distribution(probs, torch.zeros(300, dtype=torch.long))
        >>> drawn.shape, bool(drawn.mean() > 0.02)
        (torch.Size([1000]), True)

    Reference:
        Bröcker and Smith, Weather and Forecasting 22, 2007 (consistency resampling).
    """
    where = "null_distribution"
    check_draws(n_bins, n_resamples, seed, where=where)
    levels = _levels_of_top(top_label(probs, labels, where=where, weights=weights), n_bins)
    return ece_of_levels(levels, *draw_calibrated(levels, n_resamples=n_resamples, seed=seed))


def if_calibrated(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    n_resamples: int = 1000,
    seed: int = 0,
    weights: ArrayLike | None = None,
) -> IfCalibrated:
    r"""Mean and 95th percentile of `null_distribution`, and the p-value of the observed ECE.

    The p-value :math:`(1 + \#\{r : \mathrm{ECE}^*_r \ge \mathrm{ECE}\}) / (R + 1)` is the chance of an ECE at least as large
    under perfect calibration; it is never zero and never too small on average.

    The arguments are those of `null_distribution`.

    Returns:
        ``IfCalibrated(mean, p95, p_value)``.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1]] * 100)
        >>> if_calibrated(probs, torch.tensor([0] * 60 + [1] * 40)).p_value < 0.01  # right 60 times where 90 were promised
        True

    Reference:
        Bröcker and Smith, Weather and Forecasting 22, 2007; Vaicenavicius et al., AISTATS 2019.
    """
    given = as_predictions(probs, labels, where="if_calibrated", n_bins=n_bins, weights=weights)
    drawn = null_distribution(given, n_bins=n_bins, n_resamples=n_resamples, seed=seed)
    bins = equal_width_bins(top_label(given, where="if_calibrated"), n_bins=n_bins)
    return compare_with_null(float(norm_of_bins(bins)), drawn)


def bin_sweep(
    predictions: Predictions, *, n_bins: Sequence[int] = BIN_COUNTS, n_resamples: int = 500, seed: int = 0
) -> BinSweep:
    """Expected and maximum calibration error of one set of predictions for each of several numbers of bins.

    The numbers are those of `calibrant.metrics.expected_calibration_error` and `maximum_calibration_error`.

    More bins hold fewer examples each, so chance alone makes both errors grow. Two more columns say how much: the mean of both
    over data sets in which every example is right with a chance that equals its confidence, as in
    `calibrant.metrics.null_distribution`, but with the same data sets for all numbers of bins. Examples within 1/3000 of
    confidence share their mean.

    Args:
        predictions: N examples of C classes; sample weights are respected.
        n_bins: Numbers of bins, in any order.
        n_resamples: Number of data sets drawn for what a calibrated model would show; 0 leaves that out.
        seed: Of the random draws; the same seed gives the same numbers.

    Returns:
        The errors, by rising number of bins. Raises ``ValueError`` if there is no number, or one that is not whole and >= 1.

    Example:
        >>> from calibrant import Predictions
        >>> predictions = Predictions(probs=[[0.9, 0.1], [0.8, 0.2]], labels=[0, 1])
        >>> sweep = bin_sweep(predictions, n_bins=(10, 2))
        >>> sweep.n_bins, [round(value, 2) for value in sweep.ece], [round(value, 2) for value in sweep.mce]
        ((2, 10), [0.35, 0.45], [0.35, 0.8])
        >>> sweep.ece_if_calibrated[0] < sweep.ece_if_calibrated[1]  # by chance alone
        True

    Reference:
        Minderer et al., NeurIPS 2021 (bias of binned errors against the number of bins); Bröcker and Smith, Weather and
        Forecasting 22, 2007 (what chance alone gives).
    """
    where = "bin_sweep"
    top = top_label(predictions, where=where)
    if len(n_bins) == 0:
        raise ValueError(f"{where}: `n_bins` must hold at least one number of bins, got none.")
    for number in n_bins:
        check_draws(number, n_resamples, seed, where=where, least=0)
    numbers = tuple(sorted({int(number) for number in n_bins}))
    bins = [equal_width_bins(top, n_bins=number) for number in numbers]
    ece, mce = (tuple(float(norm_of_bins(found, p=p)) for found in bins) for p in (1, math.inf))
    if n_resamples == 0:
        return BinSweep(numbers, ece, mce)
    levels = _levels_of_top(top, WIDTH_CELLS)
    drawn = draw_calibrated(levels, n_resamples=n_resamples, seed=seed)
    merged = [replace(levels, bin_index=equal_width_index(levels.confidence, m, dtype=top.dtype)) for m in numbers]
    means = (tuple(float(of(found, *drawn).mean()) for found in merged) for of in (ece_of_levels, mce_of_levels))
    return BinSweep(numbers, ece, mce, *means)


def compare_with_null(observed: float, drawn: Tensor) -> IfCalibrated:
    """Where ``observed`` lies among the values ``drawn [R]`` under perfect calibration."""
    # Sums in another order differ by rounding, which must not decide whether equal values count.
    as_large = int((drawn >= observed - 1e-12).sum())
    return IfCalibrated(float(drawn.mean()), float(torch.quantile(drawn, 0.95)), (1 + as_large) / (1 + len(drawn)))


def check_draws(n_bins: int, n_resamples: int, seed: int, *, where: str, least: int = 100) -> None:
    """Raise unless numbers of bins and resamples and the seed are whole numbers; fewer than 100 resamples say too little."""
    check_count(n_bins, where=where, name="n_bins", most=MOST_BINS)
    check_count(n_resamples, where=where, name="n_resamples", least=least, most=_MOST_DRAWS // n_bins)
    check_count(seed, where=where, name="seed", least=0)


def _levels_of_top(top: TopLabel, n_bins: int) -> Levels:
    return levels_of(cells_of(top), size=float(top.mass.sum() ** 2 / top.mass.square().sum()), n_bins=n_bins)
