r"""The 95 % interval of a score, from a summary of constant size.

Means, rates and areas use ordinary statistics. A calibration error needs more: it is a norm of gaps, chance adds to every gap,
and a norm only grows by it. The observed error sits above the true one, all the more the smaller that is, and the usual
bootstrap adds the same chance again. So the question is turned round: *which true errors could have given the observed one?*

A *truth* says how accurate the model really is at each confidence, so its true error is known; data of the observed size drawn
from it show which errors one would observe. The interval holds the true errors of all truths under which the observed error is
not exceptional (hybrid resampling: the family of truths follows the data, Chuang and Lai 2000).

Truths form a path from the calibrated one through the observed one to worse ones. The gap :math:`\hat g_k` of piece k (a
confidence bin) with accuracy :math:`a_k` becomes

.. math:: g_k(\lambda) = \operatorname{sign}(\hat g_k) \, [\, |\hat g_k| + \lambda \, a_k (1 - a_k) \,]_+

which, for each value of :math:`\sum_k w_k |g_k|`, is the most likely set of gaps (for normal noise of variance
:math:`a_k (1 - a_k) / n_k`; a Lagrange multiplier gives it). Each truth is tried with 2.5 % at either end; towards the
calibrated one, which has no error below it, the 5 % move to the upper end. Accuracies end at 0 and 1, and so do truths;
beyond the last one the observed error is taken to move as the true one does.

Reference: Chuang and Lai, Statistica Sinica 10, 2000.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import norm_of_bins
from calibrant.core.records import Predictions
from calibrant.core.summary import Summary
from calibrant.metrics.chance import draw_right, null_of_levels
from calibrant.metrics.levels import Levels, OfLevels, aurc_of_levels, ece_of_levels, levels_of, mce_of_levels

# 97.5 % point of the normal distribution.
NORMAL_95 = 1.959963984540054
# Beyond this skewness of a mean, its correction is worth less than what it is estimated from.
_MOST_SKEW = 0.1
# Truths along the path. Quantiles are joined linearly between them, and bend little.
_TRUTHS = 12
_TAIL = 0.025
# Bisection steps: a step of the path, of the order of 1,000, is found to 1e-9.
_HALVINGS = 40
# Values of resamples that differ by less than this part of their size are equal.
_ROUNDING = 1e-9
# Data sets drawn from each truth, as a part of the resamples asked for. The calibrated one alone says whether an interval
# begins at zero; it gets three times as many.
_PER_TRUTH, _MORE = 0.2, 3
# Draws for the classwise error: with many classes its spread is known from few resamples, being a sum of many parts.
_CLASS_DRAWS, _LEAST_DRAWS = 300_000, 40
# Kernels see no bins; their truths have one gap in each of so many.
_KERNEL_BINS = 15
# A value further off than by this ratio is small, and differs by the coarseness of its own search (smECE).
_FAR = 1.25


class Range(NamedTuple):
    """The ends of a 95 % interval."""

    low: float
    high: float


def mean_interval(sums: Tensor, *, weight: float, size: float, most: float = math.inf) -> Range:
    r"""Interval of a mean of non-negative values from their first three moments.

    With mean :math:`\bar v`, standard error :math:`s`, acceleration :math:`a = \gamma / (6 \sqrt n)` for skewness
    :math:`\gamma`, and :math:`z = \pm 1.96`, the ends are :math:`\bar v + s\,(a + z) / (1 - a (a + z))^2`: the limit, for
    infinitely many resamples, of the bias-corrected and accelerated bootstrap.

    Args:
        sums: Sums ``[3]`` of weight times value, its square and its cube.
        weight: Sum of weights.
        size: (Effective) number of examples n.
        most: Largest possible value.

    Returns:
        The interval, within ``[0, most]``; infinite where the mean is, everything possible for a single example.

    Reference:
        DiCiccio and Efron, Biometrika 79, 1992.
    """
    first, second, third = (float(s) / weight for s in sums)
    if not math.isfinite(first):
        return Range(math.inf, math.inf)
    if size < 2 or not math.isfinite(second + third):
        return Range(0.0, most)
    spread = max(second - first**2, 0.0)
    # Differences of sums that agree to rounding are no spread.
    if spread <= 1e-14 * second:
        return Range(first, first)
    skewness = (third - 3 * first * second + 2 * first**3) / spread**1.5
    shift = min(max(skewness / (6 * math.sqrt(size)), -_MOST_SKEW), _MOST_SKEW)
    error = math.sqrt(spread / (size - 1))
    ends = [first + error * (shift + z) / (1 - shift * (shift + z)) ** 2 for z in (-NORMAL_95, NORMAL_95)]
    return Range(max(ends[0], 0.0), min(ends[1], most))


def rate_interval(rate: float, *, size: float) -> Range:
    """Score interval of a share of ``size`` examples; not empty even where the share is 0 or 1.

    Reference:
        Wilson, Journal of the American Statistical Association 22, 1927.
    """
    # A ratio of sums may pass 0 or 1 by rounding.
    rate = min(max(rate, 0.0), 1.0)
    square = NORMAL_95**2
    middle = (rate + square / (2 * size)) / (1 + square / size)
    half = NORMAL_95 * math.sqrt(rate * (1 - rate) / size + square / (4 * size**2)) / (1 + square / size)
    return Range(max(middle - half, 0.0) if rate > 0 else 0.0, min(middle + half, 1.0) if rate < 1 else 1.0)


def bias_corrected(drawn: Tensor, observed: float, *, acceleration: float = 0.0) -> Range:
    """Bias-corrected (and accelerated) percentile interval of a statistic.

    Args:
        drawn: Values on resamples ``[R]``.
        observed: The value on the data.
        acceleration: A sixth of the skewness of the statistic.

    Returns:
        The interval.

    Reference:
        Efron, Journal of the American Statistical Association 82, 1987.
    """
    below = (float((drawn < observed).double().mean()) + float((drawn <= observed).double().mean())) / 2
    normal = torch.distributions.Normal(0.0, 1.0)
    least = 0.5 / len(drawn)
    middle = normal.icdf(torch.tensor(min(max(below, least), 1 - least), dtype=torch.float64))
    moved = middle + torch.tensor([-NORMAL_95, NORMAL_95], dtype=torch.float64)
    low, high = torch.quantile(drawn, normal.cdf(middle + moved / (1 - acceleration * moved))).tolist()
    return Range(low, high)


def value_of(function: Callable[..., Tensor], predictions: Predictions) -> Tensor:
    """Value of a metric that knows nothing but its function: probabilities, labels and, where there are any, weights."""
    weights = {} if predictions.weights is None else {"weights": predictions.weights}
    return torch.as_tensor(function(predictions.probs, predictions.labels, **weights), dtype=torch.float64)


def resampled_values(function: Callable[..., Tensor], predictions: Predictions, n_resamples: int, *, seed: int) -> Tensor:
    """Value of such a metric on resamples of the examples ``[R]``; at most 200, since each takes as long as the value itself.

    The same seed draws the same examples, so that two models can be compared.
    """
    rng = np.random.default_rng([seed, 3])
    # Examples of weight zero are none: a resample of nothing else would have no value.
    kept = np.arange(len(predictions)) if predictions.weights is None else predictions.weights.nonzero()[:, 0].cpu().numpy()
    draws = (kept[rng.integers(0, len(kept), len(kept))] for _ in range(min(n_resamples, 200)))
    return torch.stack([value_of(function, predictions.subset(rows)) for rows in draws])


class Evidence:
    """What intervals are made from: a summary of the data, its levels, and data sets drawn from truths, shared by metrics.

    Args:
        summary: What is known of the data.
        n_resamples: Number of resamples.
        rng: Source of randomness.
    """

    def __init__(self, summary: Summary, *, n_resamples: int, rng: np.random.Generator) -> None:
        self.summary, self.n_resamples, self.rng = summary, n_resamples, rng
        self.size = summary.effective_n
        self.per_truth = max(math.ceil(_PER_TRUTH * n_resamples), 2)
        self._drawn: dict[tuple[Family, int], tuple[Tensor, tuple[Tensor, Tensor]]] = {}
        self._ranges: dict[Interval, Range] = {}

    @cached_property
    def levels(self) -> Levels:
        """Confidence levels within bins."""
        return levels_of(self.summary.cells, size=self.size, n_bins=self.summary.n_bins)

    @cached_property
    def null(self) -> Tensor:
        """ECE of calibrated data ``[R]``: its interval begins above zero exactly if its p-value is at most 0.05."""
        return null_of_levels(self.levels, n_resamples=self.n_resamples, rng=self.rng)

    @cached_property
    def kernel_levels(self) -> Levels:
        """Confidence levels of metrics that know no bins."""
        if self.summary.n_bins == _KERNEL_BINS:
            return self.levels
        return levels_of(self.summary.cells, size=self.size, n_bins=_KERNEL_BINS)

    def levels_for(self, pieces: Pieces) -> tuple[Levels, Tensor]:
        """Levels, and the piece of each, where one gap is one piece."""
        levels = self.kernel_levels if pieces == "kernel" else self.levels
        return levels, levels.bin_index if pieces == "width" else levels.mass_index

    def range_of(self, interval: Interval, value: float) -> Range:
        """The interval by one rule, computed once."""
        if interval not in self._ranges:
            self._ranges[interval] = interval(self, value)
        return self._ranges[interval]

    def draw(self, family: Family, pieces: Pieces) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Truths ``[S, G]`` of a family, and data sets drawn from them: rows ``mass, right [S·R, G]``, truth after truth."""
        levels, piece = self.levels_for(pieces)
        key = family, id(piece)
        if key not in self._drawn:
            truths = family(levels, piece)
            self._drawn[key] = truths, draw_labels(truths, levels, n_resamples=self.per_truth, rng=self.rng)
        return self._drawn[key]


Pieces: TypeAlias = Literal["width", "mass", "kernel"]
# From the observed levels and the piece of each, int64 ``[G]``, where the gap is one number per piece, to the true accuracy of
# each level in some truths ``[S, G]``, the calibrated one first.
Family: TypeAlias = Callable[[Levels, Tensor], Tensor]
# How a metric's interval is made from the evidence and its value.
Interval: TypeAlias = Callable[[Evidence, float], Range]


def calibrated(levels: Levels, pieces: Tensor) -> Tensor:
    """The calibrated truth alone, several times."""
    return levels.confidence.repeat(_MORE, 1)


def by_mean_gap(levels: Levels, pieces: Tensor) -> Tensor:
    """Truths of increasing weighted mean gap."""
    given = _gaps_of(levels, pieces)
    observed = float(given.weight @ given.gap.abs())
    chance = float((given.weight * given.variance / levels.size).sqrt().sum()) * (2 / math.pi) ** 0.5
    most = observed + 4 * given.noise
    least = max(observed - chance - 5 * given.noise, most / (_TRUTHS - 1))
    steps = torch.linspace(least, most, _TRUTHS - 1, dtype=torch.float64)
    return torch.cat([levels.confidence.unsqueeze(0), _truths_of_error(steps, levels, given)])


def by_largest_gap(levels: Levels, pieces: Tensor) -> Tensor:
    """Truths of increasing largest gap.

    Below the observed largest gap all larger ones are cut to size, which is the most likely way to be smaller; above it, the
    truths are those of `by_mean_gap`. Two more cut the largest by one and two standard deviations of its bin, since a bin seen
    without errors may well have some.
    """
    given = _gaps_of(levels, pieces)
    size, below = given.gap.abs(), _TRUTHS // 2
    largest = int(size.argmax())
    near = (given.variance[largest] / (levels.size * given.weight[largest])).sqrt() * torch.tensor([1.0, 2.0])
    limits = torch.linspace(0, 1, below + 1, dtype=torch.float64)[:-1] * size.max()
    limits = torch.cat([limits, (size.max() - near).clamp_min(0)]).sort().values.unsqueeze(1)
    cut = given.gap.sign() * size.minimum(limits)
    observed = float(given.weight @ size)
    steps = torch.linspace(observed, observed + 4 * given.noise, _TRUTHS - below, dtype=torch.float64)
    return torch.cat([(levels.confidence - cut[:, given.piece]).clamp(0, 1), _truths_of_error(steps, levels, given)])


def even_gaps(levels: Levels, pieces: Tensor) -> Tensor:
    """Truths with the same gap everywhere.

    Of few examples, most at confidences near 1, a gap there is hardly seen, but makes errors likelier and chance larger than
    in a calibrated model. Gaps go to the side of over-confidence if the data do on the whole.
    """
    given = _gaps_of(levels, pieces)
    side = 1.0 if float(given.weight @ given.gap) >= 0 else -1.0
    most = float(given.weight @ given.gap.abs()) + 4 * given.noise
    gaps = side * most * torch.linspace(0, 1, _TRUTHS, dtype=torch.float64).unsqueeze(1)
    return (levels.confidence - gaps).clamp(0, 1)


def few_gaps(levels: Levels, pieces: Tensor) -> Tensor:
    """Truths with ever more of the observed gaps, those that stand out most from chance first; the others are zero.

    Where pieces are many, chance alone gives most of their gaps, and most of the error. The last truth has all of them.
    """
    given = _gaps_of(levels, pieces)
    order = torch.argsort(given.gap.square() * given.weight / given.variance, descending=True)
    reached = (given.weight * given.gap.abs())[order].cumsum(0)
    steps = torch.linspace(0, 1, _TRUTHS, dtype=torch.float64) * reached[-1]
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    kept = torch.where(rank <= torch.searchsorted(reached, steps).unsqueeze(1), given.gap, 0.0)
    kept[0] = 0
    return (levels.confidence - kept[:, given.piece]).clamp(0, 1)


def _truths_of_error(errors: Tensor, levels: Levels, given: _Gaps) -> Tensor:
    """Truths ``[S, G]`` whose weighted mean gap is as given ``[S]``, or as near as accuracies in [0, 1] allow."""
    size, sign = given.gap.abs(), torch.where(given.gap < 0, -1.0, 1.0).double()
    direction = torch.where(given.stuck, 1.0, sign)

    def truth(push: Tensor) -> Tensor:
        step = push.unsqueeze(1) * given.variance
        moved = torch.where(step > 0, given.gap + direction * step, sign * (size + step).clamp_min(0))
        return (levels.confidence - moved[:, given.piece]).clamp(0, 1)

    low = torch.full_like(errors, -float((size / given.variance).max()))
    high = torch.full_like(errors, 1 / float(given.variance.min()))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        gaps = _sum_by(given.piece, levels.share * (levels.confidence - truth(middle)))
        short = gaps.abs().sum(1) < errors
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return truth(high)


@dataclass(frozen=True)
class _Gaps:
    """One gap for each of K pieces of the levels, float64.

    Attributes:
        piece: Piece of each level ``[G]``.
        weight: Share of all examples ``[K]``.
        gap: Confidence minus accuracy ``[K]``.
        variance: Of one example's correctness ``[K]``.
        noise: Standard deviation of the sum of all gaps, weighted, that chance gives.
        stuck: Where confidence is so near 1 that a gap within chance cannot grow on its side, and must on the other ``[K]``.
    """

    piece: Tensor
    weight: Tensor
    gap: Tensor
    variance: Tensor
    noise: float
    stuck: Tensor


def _gaps_of(levels: Levels, pieces: Tensor) -> _Gaps:
    _, piece = torch.unique(pieces, return_inverse=True)
    weight = _sum_by(piece, levels.share)
    confidence, accuracy = (_sum_by(piece, levels.share * v) / weight for v in (levels.confidence, levels.accuracy))
    # Two more of each kind (Agresti and Coull): a bin seen without errors is not thereby free of them.
    guess = (levels.size * weight * accuracy + 2) / (levels.size * weight + 4)
    variance, gap = guess * (1 - guess), confidence - accuracy
    stuck = (gap < 0) & (1 - confidence < 2 * (variance / (levels.size * weight)).sqrt())
    return _Gaps(piece, weight, gap, variance, float((weight @ variance / levels.size).sqrt()), stuck)


@dataclass(frozen=True)
class Inversion:
    """Interval of a calibration error by test inversion; see the head of this module.

    Attributes:
        metric: The error of resamples.
        pieces: Which parts of the levels have a gap of their own.
        families: Truths to try. Those after the first are there for smaller errors that it overlooks.
        truly: The error of infinitely many examples, where it is not ``metric``.
        is_ece: Whether the null distribution of the evidence is that of this error.
    """

    metric: OfLevels
    pieces: Pieces
    families: tuple[Family, ...] = (by_mean_gap,)
    truly: OfLevels | None = None
    is_ece: bool = False

    def __call__(self, evidence: Evidence, value: float) -> Range:
        """Return the interval, stretched from the value of the levels to the exact one."""
        levels, truly = evidence.levels_for(self.pieces)[0], self.truly or self.metric
        observed = float(self.metric(levels, *levels.row(levels.accuracy)))
        null = evidence.null if self.is_ece else self.metric(levels, *evidence.draw(calibrated, self.pieces)[1])
        found = []
        for family in self.families:
            truths, data = evidence.draw(family, self.pieces)
            drawn = self.metric(levels, *data).view(len(truths), -1)
            spread = spread_of_confidences(truths, levels, truly, n_resamples=drawn.shape[1] // 2 + 1, rng=evidence.rng)
            drawn = drawn + spread.unsqueeze(1) * torch.from_numpy(evidence.rng.standard_normal(drawn.shape))
            found.append(accepted_range(truly(levels, *levels.row(truths)), drawn, observed, null=null))
        return _stretch(Range(min(part.low for part in found), min(found[0].high, 1.0)), value, observed)


def _stretch(given: Range, value: float, observed: float) -> Range:
    """Stretch an interval from the ``observed`` value of the levels to the exact ``value``, if that is near."""
    ratio = value / observed if observed > 0 else 1.0
    return Range(given.low * ratio, min(given.high * ratio, 1.0)) if 1 / _FAR < ratio < _FAR else given


def draw_labels(truths: Tensor, levels: Levels, *, n_resamples: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw whether examples at the observed confidences are right, under each truth.

    Levels end where bins begin. With confidences drawn anew the cuts of equal-mass bins would fall inside levels, whose
    examples would be shared out evenly instead of by chance: the error would come out 3 % too small.

    Args:
        truths: True accuracy per level ``[S, G]``.
        levels: Where confidences lie, and how many examples there are.
        n_resamples: Number R of data sets per truth.
        rng: Source of randomness.

    Returns:
        Shares ``mass [S·R, G]`` and ``right [S·R, G]``, truth after truth.
    """
    mass, hits = [], []
    for truth in truths:
        count, right = draw_right(levels.share * levels.size, truth, n_resamples=n_resamples, rng=rng)
        mass.append(count.expand_as(right) / levels.size)
        hits.append(right / levels.size)
    return torch.cat(mass), torch.cat(hits)


def draw_examples(levels: Levels, *, n_resamples: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw data sets of the observed size from the observed data: rows ``mass, right [R, G]``."""
    right = levels.share * levels.accuracy
    chances = torch.cat([right, (levels.share - right).clamp_min(0)])
    counts = torch.from_numpy(rng.multinomial(levels.size, (chances / chances.sum()).numpy(), size=n_resamples)).double()
    hits, misses = (counts / levels.size).split(len(levels), 1)
    return hits + misses, hits


def spread_of_confidences(
    truths: Tensor, levels: Levels, metric: OfLevels, *, n_resamples: int, rng: np.random.Generator
) -> Tensor:
    """Standard deviation of the true value under each truth ``[S]`` that comes from which confidences happen to be drawn.

    `draw_labels` leaves confidences as they are. Where gaps differ from one confidence to another, other examples have other
    gaps: this is all the chance there is in a model that is always right.
    """
    drawn = torch.from_numpy(rng.multinomial(levels.size, levels.share.numpy(), size=n_resamples)).double() / levels.size
    mass = drawn.repeat(len(truths), 1)
    return metric(levels, mass, mass * truths.repeat_interleave(n_resamples, 0)).view(len(truths), -1).std(1)


def accepted_range(truth: Tensor, drawn: Tensor, observed: float, *, null: Tensor | None = None) -> Range:
    """Smallest and largest true value among the truths that could have given the observed value.

    Args:
        truth: True value in each truth ``[S]``, the calibrated truth first.
        drawn: Values that data from each truth show ``[S, R]``.
        observed: The value seen.
        null: More values that data from the calibrated truth show, to be used for that one.

    Returns:
        The two values; the first is 0 if the calibrated truth is among them.
    """
    floor = float(drawn[0].mean() - truth[0])
    reach = ((truth - truth[0]) / floor).clamp(0, 1) if floor > 0 else torch.ones_like(truth)
    low_tail = _TAIL * reach
    lower, upper = _quantiles(drawn, low_tail), _quantiles(drawn, 1 - (2 * _TAIL - low_tail))
    lower[0] = lower[0].clamp_max(observed)
    if null is not None:
        # As a p-value (1 + number as large) / (1 + R) would have it: so few cannot reject where R is below 19.
        rank = int(2 * _TAIL * (len(null) + 1) + 1e-9)
        upper[0] = null.sort(descending=True).values[rank - 1] if rank else torch.inf
    lower, upper = lower.cummax(0).values, upper.cummax(0).values
    first = _position(upper, observed, int((upper < observed).sum()))
    last = max(first, _position(lower, observed, int((lower <= observed).sum())))
    places = [first, *range(math.ceil(first), math.floor(last) + 1), last]
    values = np.interp(places, np.arange(len(truth)), truth.numpy())
    low, high = float(values.min()), float(values.max())
    # Accuracies end at 0 and 1, and truths with them. Beyond the worst one values are taken to move as the truth does.
    worst = int(truth.argmax())
    if upper[-1] < observed:
        low = float(truth[worst] - upper[worst]) + observed
    if lower[-1] <= observed:
        high = max(high, float(truth[worst] - lower[worst]) + observed)
    return Range(0.0 if first == 0 else low, high)


def _position(curve: Tensor, level: float, below: int) -> float:
    """Position at which an increasing ``curve [S]``, ``below`` of whose values are below, reaches ``level``."""
    if below == 0 or below == len(curve):
        return float(max(below - 1, 0))
    start, end = float(curve[below - 1]), float(curve[below])
    return below - 1 + (level - start) / (end - start)


def _quantiles(values: Tensor, chance: Tensor) -> Tensor:
    """Quantile of each row of ``values [S, R]`` at its own ``chance [S]``.

    A row's mean and spread are its own; the shape of its distribution is taken from its two neighbours as well, which
    makes one resample do the work of three. Rows whose values are equal but for rounding have no shape to give.
    """
    middle, spread = values.mean(1, keepdim=True), values.std(1, keepdim=True)
    varies = spread > _ROUNDING * values.abs().amax(1, keepdim=True)
    shape = torch.where(varies, (values - middle) / spread.where(varies, 1.0), 0.0)
    around, known = (torch.cat([part[:1], part, part[-1:]]) for part in (shape, varies))
    sides = [torch.where(known[at], around[at], shape) for at in (slice(None, -2), slice(2, None))]
    near = torch.cat([sides[0], shape, sides[1]], dim=1).sort(dim=1).values
    size = near.shape[1]
    place = (chance * (size + 1) - 1).clamp(0, size - 1).unsqueeze(1)
    left = place.floor().long()
    start, end = near.gather(1, left), near.gather(1, (left + 1).clamp_max(size - 1))
    return (middle + spread * torch.lerp(start, end, place - left)).squeeze(1)


def _sum_by(piece: Tensor, values: Tensor) -> Tensor:
    """Add up ``values [..., G]`` by piece ``[G]``; ``[..., K]``."""
    return values.new_zeros(*values.shape[:-1], int(piece.max()) + 1).index_add_(-1, piece, values)


def signed_gap_interval(evidence: Evidence, value: float) -> Range:
    """Interval of mean confidence minus accuracy, put together from those of the two.

    The accuracy's is a score interval, so that a model seen without errors is not taken to have none; the squared distances
    to the ends are added, less twice their product times the correlation of confidence with correctness.

    Reference:
        Zou and Donner, Statistics in Medicine 27, 2008 (correlated estimates: Zou, American Journal of Epidemiology 165, 2007).
    """
    levels = evidence.levels
    share, confidence = levels.share, levels.confidence
    # Shares add up to 1 within rounding, and so may the rate of a model seen without errors pass it.
    mean, rate = float(share @ confidence), min(float(share @ levels.accuracy), 1.0)
    spread = max(float(share @ confidence**2) - mean**2, 0.0)
    half = NORMAL_95 * math.sqrt(spread / max(levels.size - 1, 1))
    joint = float(share @ (confidence * levels.accuracy)) - mean * rate
    product = math.sqrt(spread * rate * (1 - rate))
    correlation = min(max(joint / product, -1.0), 1.0) if product > 0 else 0.0
    accuracy = rate_interval(rate, size=levels.size)

    def distance(other: float) -> float:
        return math.sqrt(max(half**2 + other**2 - 2 * correlation * half * other, 0.0))

    gap = mean - rate
    return Range(max(gap - distance(accuracy.high - rate), -1.0), min(gap + distance(rate - accuracy.low), 1.0))


def aurc_interval(evidence: Evidence, value: float) -> Range:
    """Bias-corrected and accelerated bootstrap interval of the area under the risk-coverage curve.

    Where no prediction is wrong the bootstrap would never draw an error; the interval then ends at the largest error rate
    that such data allow, the area if errors do not follow confidence. (And so where none is right.)

    Reference:
        Efron, Journal of the American Statistical Association 82, 1987.
    """
    levels = evidence.kernel_levels
    error = 1 - float(levels.share @ levels.accuracy)
    if min(error, 1 - error) < 1e-12:
        return rate_interval(float(round(error)), size=levels.size)
    mass, right = levels.row(levels.accuracy)
    observed = float(aurc_of_levels(levels, mass, right))
    drawn = aurc_of_levels(levels, *draw_examples(levels, n_resamples=evidence.n_resamples, rng=evidence.rng))
    # A sixth of the skewness, from the change of the area as more weight is put on one kind of example.
    place, step = torch.eye(len(levels), dtype=torch.float64).repeat(2, 1), 1e-6
    hit = torch.cat([place[: len(levels)], torch.zeros_like(place[: len(levels)])])
    moved = aurc_of_levels(levels, (1 - step) * mass + step * place, (1 - step) * right + step * hit)
    chance, influence = torch.cat([right[0], mass[0] - right[0]]), (moved - observed) / step
    second, third = float(chance @ influence**2), float(chance @ influence**3)
    skew = third / max(second, 1e-300) ** 1.5 / (6 * math.sqrt(levels.size))
    return _stretch(bias_corrected(drawn, observed, acceleration=min(max(skew, -_MOST_SKEW), _MOST_SKEW)), value, observed)


def classwise_interval(evidence: Evidence, value: float) -> Range:
    """Interval of the classwise ECE: every bin of every class is a piece of its own.

    With so many pieces it matters whether the true error is spread over all or sits in few of them: both families of truths
    are tried, and the interval holds the true errors of either that fit the data.
    """
    summary, rng = evidence.summary, evidence.rng
    weight, confidence, correct = summary.by_class.flatten(1)
    held = weight > 0
    weight, of_class = weight[held], held.view(summary.num_classes, -1).nonzero()[:, 0]
    place = torch.arange(len(weight))
    levels = Levels(
        share=weight / weight.sum(),
        confidence=(confidence[held] / weight).clamp(0, 1),
        accuracy=(correct[held] / weight).clamp(0, 1),
        bin_index=place,
        last_cell=place,
        size=max(round(evidence.size), 1) * summary.num_classes,
        n_bins=summary.n_bins,
    )
    draws = min(evidence.per_truth, max(_CLASS_DRAWS // (_TRUTHS * len(levels)), _LEAST_DRAWS))
    observed = float((levels.share * (levels.confidence - levels.accuracy)).abs().sum())
    found = []
    for family in (by_mean_gap, few_gaps):
        truths = family(levels, place)
        truth = (levels.share * (levels.confidence - truths)).abs().sum(1)
        drawn = _draw_classwise(truths, truth, levels, of_class, n_resamples=draws, rng=rng)
        found.append(accepted_range(truth, drawn, observed))
    return Range(min(part.low for part in found), min(max(part.high for part in found), 2 / summary.num_classes))


def _draw_classwise(
    truths: Tensor, truth: Tensor, levels: Levels, of_class: Tensor, *, n_resamples: int, rng: np.random.Generator
) -> Tensor:
    """Classwise ECE of data sets drawn from each truth ``[S, R]``."""
    num_classes = int(of_class.max()) + 1
    mass, right = draw_labels(truths, levels, n_resamples=n_resamples, rng=rng)
    values = (mass * levels.confidence - right).abs().sum(1).view(len(truths), -1)
    # Which probabilities a class has varies as well, and with them its mean gap, independent of how many examples are right.
    gap, share = (levels.confidence - truths).abs(), levels.share * num_classes
    mean, square = (truth.new_zeros(len(truths), num_classes).index_add_(1, of_class, share * g) for g in (gap, gap**2))
    spread = ((square - mean**2).clamp_min(0).sum(1, keepdim=True) / (num_classes * levels.size)).sqrt()
    values = values + spread * torch.from_numpy(rng.standard_normal(values.shape))
    # Bins are drawn independently. In truth what one class gains another loses: residuals of two of C classes are correlated
    # by -1 / (C - 1) on average. Their sizes are by about its square while chance decides the signs, and fully, in pairs,
    # once true gaps do; so the variance is up to twice that of independent bins (exactly twice for two classes).
    middle = values.mean(1, keepdim=True)
    alike = (truth.unsqueeze(1) / middle.clamp_min(1e-300)).square().clamp(1 / (num_classes - 1), 1)
    return middle + (values - middle) * (1 + alike).sqrt()


def mce_interval(evidence: Evidence, value: float) -> Range:
    """Interval of the MCE: the largest of gaps is at least their mean, so what rules out an ECE rules out that MCE."""
    found, levels = evidence.range_of(_MCE, value), evidence.levels
    low = max(found.low, min(evidence.range_of(ECE_INVERSION, float(norm_of_bins(evidence.summary.bins))).low, value))
    # The largest gap that confidence and accuracy can have in the bins in use.
    widest = float(torch.maximum(levels.bin_index + 1, levels.n_bins - levels.bin_index).max()) / levels.n_bins
    return Range(low, max(min(found.high, widest), low))


ECE_INVERSION = Inversion(ece_of_levels, "width", families=(by_mean_gap, even_gaps), is_ece=True)
_MCE = Inversion(mce_of_levels, "width", families=(by_largest_gap,))
