"""Intervals of means, rates and areas: what ordinary statistics do well. Calibration errors are in `worlds`.

Means use the closed form of the bias-corrected and accelerated bootstrap, rates the score interval; neither draws anything.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.metrics.batched import batched_aurc
from calibrant.metrics.levels import Levels
from calibrant.metrics.worlds import draw_from

# 97.5 % point of the normal distribution.
NORMAL_95 = 1.959963984540054
# Beyond this skewness of a mean, its correction is worth less than what it is estimated from.
_MOST_SKEW = 0.1


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


def signed_gap_interval(levels: Levels) -> Range:
    """Interval of mean confidence minus accuracy, put together from those of the two.

    The accuracy's is a score interval, so that a model seen without errors is not taken to have none; the squared distances
    to the ends are added, less twice their product times the correlation of confidence with correctness.

    Reference:
        Zou and Donner, Statistics in Medicine 27, 2008 (correlated estimates: Zou, American Journal of Epidemiology 165, 2007).
    """
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


def aurc_interval(levels: Levels, *, n_resamples: int, rng: np.random.Generator) -> tuple[Range, float]:
    """Bias-corrected and accelerated bootstrap interval of the area under the risk-coverage curve, and the area itself.

    Where no prediction is wrong the bootstrap would never draw an error; the interval then ends at the largest error rate
    that such data allow, the area if errors do not follow confidence. (And so where none is right.)

    Reference:
        Efron, Journal of the American Statistical Association 82, 1987.
    """
    observed = float(batched_aurc(levels, levels.share.unsqueeze(0), (levels.share * levels.accuracy).unsqueeze(0)))
    error = 1 - float(levels.share @ levels.accuracy)
    if min(error, 1 - error) < 1e-12:
        return rate_interval(float(round(error)), size=levels.size), observed
    mass, right = draw_from(levels.accuracy.unsqueeze(0), levels, n_resamples=n_resamples, rng=rng)
    return bias_corrected(batched_aurc(levels, mass, right), observed, acceleration=_aurc_acceleration(levels)), observed


def _aurc_acceleration(levels: Levels) -> float:
    """A sixth of the skewness of the area, from its change as more weight is put on one kind of example."""
    size = len(levels)
    right = levels.share * levels.accuracy
    chance = torch.cat([right, levels.share - right])
    hit = torch.cat([torch.eye(size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)])
    place = torch.eye(size, dtype=torch.float64).repeat(2, 1)
    step = 1e-6
    moved = batched_aurc(levels, (1 - step) * levels.share + step * place, (1 - step) * right + step * hit)
    influence = (moved - batched_aurc(levels, levels.share.unsqueeze(0), right.unsqueeze(0))) / step
    second, third = float(chance @ influence**2), float(chance @ influence**3)
    skew = third / max(second, 1e-300) ** 1.5 / (6 * math.sqrt(levels.size))
    return float(min(max(skew, -_MOST_SKEW), _MOST_SKEW))


def bias_corrected(drawn: Tensor, observed: float, *, acceleration: float = 0.0) -> Range:
    """Bias-corrected (and accelerated) percentile interval of a statistic whose value is ``observed``.

    Args:
        drawn: Values on resamples ``[R]``.
        observed: The value on the data.
        acceleration: A sixth of the skewness of the statistic.

    Returns:
        The interval.
    """
    below = (float((drawn < observed).double().mean()) + float((drawn <= observed).double().mean())) / 2
    normal = torch.distributions.Normal(0.0, 1.0)
    least = 0.5 / len(drawn)
    middle = normal.icdf(torch.tensor(min(max(below, least), 1 - least), dtype=torch.float64))
    moved = middle + torch.tensor([-NORMAL_95, NORMAL_95], dtype=torch.float64)
    low, high = torch.quantile(drawn, normal.cdf(middle + moved / (1 - acceleration * moved))).tolist()
    return Range(low, high)
