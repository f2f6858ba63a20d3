r"""The 95 % interval of a score, from a summary of constant size.

Means, rates and areas use ordinary statistics. A calibration error needs more: it is a norm of gaps, chance adds to every gap,
and a norm only grows by it. The observed error sits above the true one, all the more the smaller that is, and the usual
bootstrap adds the same chance again. So the question is turned round: *which true errors could have given the observed one?*

A *truth* says how accurate the model really is at each confidence, so its true error is known; data of the observed size drawn
from it show which errors one would observe. The interval holds the true errors of all truths under which the observed error is
not exceptional (hybrid resampling: the family of truths follows the data, Chuang and Lai 2000).

Families are tried, and the interval holds the true errors of all of them. In the first the gap :math:`\hat g_k` of piece k (a
confidence bin) with accuracy :math:`a_k` becomes

.. math:: g_k(\lambda) = \operatorname{sign}(\hat g_k) \, [\, |\hat g_k| + \lambda \, a_k (1 - a_k) \,]_+

which, for each value of :math:`\sum_k w_k |g_k|`, is the most likely set of gaps (for normal noise of variance
:math:`a_k (1 - a_k) / n_k`; a Lagrange multiplier gives it): all of them shrink or grow. In the second only those that stand
out most from chance are there; for SECE, smECE and MMCE there is a third, with the same gap everywhere. Each truth is tried
with 2.5 % at either end; towards the calibrated one, which has no error below it, the 5 % move to the upper end. Accuracies
end at 0 and 1, and so do truths; beyond the last one the observed error is taken to move as the true one does.

Reference: Chuang and Lai, Statistica Sinica 10, 2000.
"""

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import Summary, norm_of_bins
from calibrant.core.records import Predictions
from calibrant.metrics.levels import (
    Gaps,
    Levels,
    OfLevels,
    aurc_of_levels,
    draw_calibrated,
    draw_rows,
    ece_of_levels,
    levels_of,
    mce_of_levels,
)

# 97.5 % point of the normal distribution.
NORMAL_95 = 1.959963984540054
# Beyond this skewness of a mean, its correction is worth less than what it is estimated from.
_MOST_SKEW = 0.1
# Truths of a family. Quantiles are joined linearly between them, and bend little.
_TRUTHS = 12
# Bisection steps: a step of the path, of the order of 1,000, is found to 1e-9.
_HALVINGS = 40
# Data sets drawn from each truth, as a part of the resamples asked for.
_PER_TRUTH = 0.2
# Draws for the classwise error: with many classes its spread is known from few resamples, being a sum of many parts.
_CLASS_DRAWS, _LEAST_DRAWS = 300_000, 40
# A value further off than by this ratio is small, and differs by the coarseness of its own search (smECE).
_FAR = 1.25

# Bins within which a truth has one gap: of equal width or of equal mass.
Pieces: TypeAlias = Literal["width", "mass"]
# From the observed levels and the piece of each, int64 ``[G]``, where the gap is one number per piece, to the true accuracy of
# each level in some truths ``[S, G]``, the calibrated one first.
Family: TypeAlias = Callable[[Levels, Tensor], Tensor]


class Range(NamedTuple):
    """The ends of a 95 % interval."""

    low: float
    high: float


def mean_interval(sums: Tensor, *, weight: float, size: float, most: float = math.inf) -> Range:
    r"""Interval of a mean of values in [0, ``most``] from ``sums [3]`` of weight times value, its square and its cube.

    With mean :math:`\bar v`, standard error :math:`s`, acceleration :math:`a = \gamma / (6 \sqrt n)` for skewness
    :math:`\gamma`, and :math:`z = \pm 1.96`, the ends are :math:`\bar v + s\,(a + z) / (1 - a (a + z))^2`: the limit, for
    infinitely many resamples, of the bias-corrected and accelerated bootstrap.

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


def bias_corrected(drawn: Tensor, observed: float) -> Range:
    """Bias-corrected percentile interval of a statistic from its values on resamples, ``drawn [R]``.

    Reference:
        Efron, Journal of the American Statistical Association 82, 1987.
    """
    below = ((drawn < observed).double().mean() + (drawn <= observed).double().mean()) / 2
    middle = torch.special.ndtri(below.clamp(0.5 / len(drawn), 1 - 0.5 / len(drawn)))
    ends = 2 * middle + torch.tensor([-NORMAL_95, NORMAL_95], dtype=torch.float64)
    low, high = torch.quantile(drawn, torch.special.ndtr(ends)).tolist()
    return Range(low, high)


def value_of(function: Callable[..., Tensor], predictions: Predictions, *, n_bins: int) -> Tensor:
    """Value of a metric that is only a function of probabilities, labels, weights and, if it takes them, bins."""
    options: dict[str, object] = {} if predictions.weights is None else {"weights": predictions.weights}
    if "n_bins" in inspect.signature(getattr(function, "function", function)).parameters:
        options["n_bins"] = n_bins
    return torch.as_tensor(function(predictions.probs, predictions.labels, **options), dtype=torch.float64)


def resampled_values(
    function: Callable[..., Tensor], predictions: Predictions, n_resamples: int, *, seed: int, n_bins: int
) -> Tensor:
    """Value of such a metric on resamples of the examples ``[R]``; at most 200, since each takes as long as the value itself.

    The same seed draws the same examples, so that two models can be compared.
    """
    rng = np.random.default_rng([seed, 3])
    draws = (rng.integers(0, len(predictions), len(predictions)) for _ in range(min(n_resamples, 200)))
    return torch.stack([value_of(function, predictions.subset(rows), n_bins=n_bins) for rows in draws])


class Evidence:
    """What intervals are made from: a summary of the data, its confidence levels, and data sets drawn from truths."""

    def __init__(self, summary: Summary, *, n_resamples: int, seed: int) -> None:
        self.summary, self.n_resamples, self.seed = summary, n_resamples, seed
        self.size = summary.effective_n
        self.per_truth = max(math.ceil(_PER_TRUTH * n_resamples), 2)
        self._drawn: dict[str, tuple[Tensor, tuple[Tensor, Tensor]]] = {}

    @cached_property
    def levels(self) -> Levels:
        """Confidence levels within bins."""
        return levels_of(self.summary.cells, size=self.size, n_bins=self.summary.n_bins)

    def stream(self, name: str) -> np.random.Generator:
        """Random numbers for one purpose, which do not depend on what else is drawn."""
        return np.random.default_rng([self.seed, *name.encode()])

    @cached_property
    def calibrated(self) -> tuple[Tensor, Tensor]:
        """Calibrated data sets: rows ``mass, right [R, G]``."""
        return draw_calibrated(self.levels, n_resamples=self.n_resamples, seed=self.seed)

    @property
    def most_unseen(self) -> float:
        """Largest share of errors where none was seen; else 0."""
        seen = 1 - float(self.levels.share @ self.levels.accuracy)
        return rate_interval(0.0, size=self.size).high if seen < 1e-12 else 0.0

    def draw(self, family: Family, pieces: Pieces) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Truths ``[S, G]`` of a family, and data sets drawn from them: rows ``mass, right [S·R, G]``, truth after truth."""
        name = f"{family.__name__} {pieces}"
        if name not in self._drawn:
            truths = family(self.levels, self.levels.bin_index if pieces == "width" else self.levels.mass_index)
            drawn = draw_rows(self.levels, truths, n_resamples=self.per_truth, rng=self.stream(name))
            self._drawn[name] = truths, drawn
        return self._drawn[name]


# How a metric's interval is made from the evidence and its value.
Interval: TypeAlias = Callable[[Evidence, float], Range]


def all_gaps(levels: Levels, pieces: Tensor) -> Tensor:
    """Truths of increasing weighted mean gap, in which all gaps shrink or grow."""
    given = Gaps(levels, pieces)
    size, sign = given.gap.abs(), torch.where(given.gap < 0, -1.0, 1.0).double()
    observed = float(given.weight @ size)
    # Standard deviation of the weighted sum of all gaps, and mean of that of their sizes, that chance gives.
    noise = float((given.weight @ given.variance / levels.size).sqrt())
    chance = float(given.weight @ (given.variance / given.count).sqrt()) * (2 / math.pi) ** 0.5
    most = observed + 4 * noise
    errors = torch.linspace(max(observed - chance - 5 * noise, most / (_TRUTHS - 1)), most, _TRUTHS - 1, dtype=torch.float64)
    # Where confidence is so near 0 or 1 that a gap within chance cannot grow on its side, it must on the other.
    room = torch.where(given.gap < 0, 1 - given.confidence, given.confidence)
    direction = torch.where(room < 2 * (given.variance / given.count).sqrt(), -sign, sign)

    def truth(push: Tensor) -> Tensor:
        step = push.unsqueeze(1) * given.variance
        moved = torch.where(step > 0, given.gap + direction * step, sign * (size + step).clamp_min(0))
        return (levels.confidence - moved[:, given.piece]).clamp(0, 1)

    low = torch.full_like(errors, -float((size / given.variance).max()))
    high = torch.full_like(errors, 1 / float(given.variance.min()))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        short = given.sum(levels.share * (levels.confidence - truth(middle))).abs().sum(1) < errors
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return torch.cat([levels.confidence.unsqueeze(0), truth(high)])


def few_gaps(levels: Levels, pieces: Tensor) -> Tensor:
    """Truths with ever more of the observed gaps, those that stand out most from chance first; the others are zero.

    Where pieces are many, chance alone gives most of their gaps, and most of the error. The last truth has all of them.
    """
    given = Gaps(levels, pieces)
    order = torch.argsort(given.gap.square() * given.weight / given.variance, descending=True)
    reached = (given.weight * given.gap.abs())[order].cumsum(0)
    steps = torch.linspace(0, 1, _TRUTHS, dtype=torch.float64) * reached[-1]
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    kept = torch.where(rank <= torch.searchsorted(reached, steps).unsqueeze(1), given.gap, 0.0)
    kept[0] = 0
    return (levels.confidence - kept[:, given.piece]).clamp(0, 1)


def one_gap(levels: Levels, pieces: Tensor) -> Tensor:
    """Truths with the same gap at all levels, of the sign of the mean one.

    Kernels average gaps of unlike sign away, which chance always adds: the first family has too small an error for its size.
    """
    gap, noise = (
        float(levels.share @ v) for v in (levels.confidence - levels.accuracy, levels.accuracy * (1 - levels.accuracy))
    )
    most = abs(gap) + 4 * math.sqrt(noise / levels.size)
    sizes = torch.linspace(0, most if gap >= 0 else -most, _TRUTHS, dtype=torch.float64)
    return (levels.confidence - sizes.unsqueeze(1)).clamp(0, 1)


@dataclass(frozen=True)
class Inversion:
    """Interval of a calibration error by test inversion; see the head of this module.

    Attributes:
        metric: The error of resamples.
        pieces: Which parts of the levels have a gap of their own.
        truly: The error of infinitely many examples, where it is not ``metric``.
        families: Which truths are tried, `few_gaps` last.
        tail: Share of data sets that are too extreme, at either end.
    """

    metric: OfLevels
    pieces: Pieces = "mass"
    truly: OfLevels | None = None
    families: tuple[Family, ...] = (all_gaps, few_gaps)
    tail: float = 0.025

    def __call__(self, evidence: Evidence, value: float) -> Range:
        """Return the interval, stretched from the value of the levels to the exact one if that is near."""
        levels, truly = evidence.levels, self.truly or self.metric
        observed = float(self.metric(levels, *levels.row(levels.accuracy)))
        null = self.metric(levels, *evidence.calibrated)
        found, rng = [], evidence.stream(f"{self.metric.__name__} {self.pieces}")
        for family in self.families:
            truths, data = evidence.draw(family, self.pieces)
            drawn = self.metric(levels, *data).view(len(truths), -1)
            spread = spread_of_confidences(truths, levels, truly, n_resamples=drawn.shape[1] // 2 + 1, rng=rng)
            drawn = drawn + spread.unsqueeze(1) * torch.from_numpy(rng.standard_normal(drawn.shape))
            found.append(accepted_range(truly(levels, *levels.row(truths)), drawn, observed, null=null, tail=self.tail))
        ratio = value / observed if observed > 0 else 1.0
        ratio = ratio if 1 / _FAR < ratio < _FAR else 1.0
        # The last family ends at what was observed.
        high = max(part.high for part in found[:-1]) * ratio
        return Range(min(part.low for part in found) * ratio, min(max(high, evidence.most_unseen), 1.0))


def spread_of_confidences(
    truths: Tensor, levels: Levels, metric: OfLevels, *, n_resamples: int, rng: np.random.Generator
) -> Tensor:
    """Standard deviation of the true value under each truth ``[S]`` that comes from which confidences happen to be drawn.

    `draw_rows` leaves confidences as they are. Where gaps differ from one confidence to another, other examples have other
    gaps: this is all the chance there is in a model that is always right.
    """
    drawn = torch.from_numpy(rng.multinomial(levels.size, levels.share.numpy(), size=n_resamples)).double() / levels.size
    mass = drawn.repeat(len(truths), 1)
    return metric(levels, mass, mass * truths.repeat_interleave(n_resamples, 0)).view(len(truths), -1).std(1)


def accepted_range(truth: Tensor, drawn: Tensor, observed: float, *, null: Tensor | None = None, tail: float = 0.025) -> Range:
    """Smallest and largest true value among the truths that could have given the observed value.

    Args:
        truth: True value in each truth ``[S]``, the calibrated truth first.
        drawn: Values that data from each truth show ``[S, R]``.
        observed: The value seen.
        null: More values that data from the calibrated truth show, to be used for that one.
        tail: Share of the values that are too extreme, at either end.

    Returns:
        The two values; the first is 0 if the calibrated truth is among them.
    """
    chance = float(drawn[0].mean() - truth[0])
    low_tail = tail * (((truth - truth[0]) / chance).clamp(0, 1) if chance > 0 else torch.ones_like(truth))
    lower, upper = _quantiles(drawn, low_tail), _quantiles(drawn, 1 - (2 * tail - low_tail))
    if null is not None:
        # As a p-value (1 + number as large) / (1 + R) would have it: so few cannot reject where R is below 19.
        rank = int(2 * tail * (len(null) + 1) + 1e-9)
        upper[0] = null.sort(descending=True).values[rank - 1] if rank else torch.inf
    # So that each end belongs to the outermost truth that is accepted, even if one further in is not.
    curves = (truth.cummax(0).values, lower.flip(0).cummin(0).values.flip(0), upper.cummax(0).values)
    # Accuracies end at 0 and 1, and truths with them. Beyond the worst one values are taken to move as the truth does.
    truths, lowers, uppers = (torch.cat([curve, curve[-1:] + 1]).numpy() for curve in curves)
    low = 0.0 if observed <= uppers[0] else float(np.interp(observed, uppers, truths))
    return Range(low, max(low, float(np.interp(observed, lowers, truths))))


def _quantiles(values: Tensor, chance: Tensor) -> Tensor:
    """Quantile of each row of ``values [S, R]`` at its own ``chance [S]``, from mean, spread and skewness (Cornish, Fisher)."""
    mean, spread = values.mean(1), values.std(1)
    skewness = (values - mean.unsqueeze(1)).pow(3).mean(1) / spread.clamp_min(1e-9).pow(3)
    z: Tensor = torch.special.ndtri(chance.clamp(1e-4, 1 - 1e-4))
    return mean + spread * (z + skewness.clamp(-1, 1) * (z.square() - 1) / 6)


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
    """Interval of the area under the risk-coverage curve: that of a mean of the value plus each example's influence on it.

    Where no prediction is wrong there is no error whose influence could be seen; the interval then ends at the largest error
    rate that such data allow, the area if errors do not follow confidence. (And so where none is right.)

    Reference:
        DiCiccio and Efron, Biometrika 79, 1992.
    """
    levels = evidence.levels
    error = 1 - float(levels.share @ levels.accuracy)
    if min(error, 1 - error) < 1e-12:
        return rate_interval(float(round(error)), size=levels.size)
    (mass,), (right,) = levels.row(levels.accuracy)
    # The change of the area as a little more weight is put on the right, and on the wrong, examples of one level.
    step, place = 1e-6, torch.eye(len(levels), dtype=torch.float64)
    more = torch.cat([place, torch.zeros_like(place)])
    moved = aurc_of_levels(levels, (1 - step) * mass + step * place.repeat(2, 1), (1 - step) * right + step * more)
    values = value + (moved - aurc_of_levels(levels, mass[None], right[None])) / step
    chances = torch.cat([right, mass - right])
    sums = torch.stack([chances @ values**k for k in (1, 2, 3)])
    return mean_interval(sums, weight=1.0, size=levels.size, most=1.0)


def brier_interval(evidence: Evidence, value: float) -> Range:
    """Interval of the Brier score: that of a mean; where no error was seen, it reaches to what those unseen would cost."""
    low, high = mean_interval(evidence.summary.brier, weight=evidence.summary.weight, size=evidence.size, most=2.0)
    # Another label moves the Brier score of an example by at most twice its confidence.
    return Range(low, max(high, min(value + 2 * evidence.most_unseen, 2.0)))


def classwise_interval(evidence: Evidence, value: float) -> Range:
    """Interval of the classwise ECE: every bin of every class is a piece of its own, and few of them have a gap."""
    summary, rng = evidence.summary, evidence.stream("classwise")
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
        count=weight / weight.sum() * max(round(evidence.size), 1) * summary.num_classes,
        size=max(round(evidence.size), 1) * summary.num_classes,
        n_bins=summary.n_bins,
    )
    draws = min(evidence.per_truth, max(_CLASS_DRAWS // (_TRUTHS * len(levels)), _LEAST_DRAWS))
    truths = few_gaps(levels, place)
    truth, observed = ((levels.share * (levels.confidence - v)).abs().sum(-1) for v in (truths, levels.accuracy))
    drawn = _draw_classwise(truths, truth, levels, of_class, n_resamples=draws, rng=rng)
    low, high = accepted_range(truth, drawn, float(observed))
    # An error not seen takes its share from one class and gives it to another.
    return Range(low, min(max(high, 2 * evidence.most_unseen / summary.num_classes), 2 / summary.num_classes))


def _draw_classwise(
    truths: Tensor, truth: Tensor, levels: Levels, of_class: Tensor, *, n_resamples: int, rng: np.random.Generator
) -> Tensor:
    """Classwise ECE of data sets drawn from each truth ``[S, R]``."""
    num_classes = int(of_class.max()) + 1
    mass, right = draw_rows(levels, truths, n_resamples=n_resamples, rng=rng)
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
    """Interval of the MCE: the largest of gaps is at least their mean, so what rules out an ECE rules out that MCE.

    At the lower end both have half of the usual tail, since two tests find false errors more often than one.
    """
    usual, mean_gap = Inversion(mce_of_levels, "width"), float(norm_of_bins(evidence.summary.bins))
    lows = (replace(test, tail=test.tail / 2)(evidence, at).low for test, at in ((usual, value), (ECE_INVERSION, mean_gap)))
    low = min(max(lows), value)
    return Range(low, max(usual(evidence, value).high, low))


ECE_INVERSION = Inversion(ece_of_levels, "width")
# Of errors that average gaps of unlike sign.
KERNEL_FAMILIES = (all_gaps, one_gap, few_gaps)
