"""Do the runs of two rows differ by more than chance? Over seeds where there are several, else over test examples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from calibrant.core.entry import Entry
from calibrant.metrics.paired import paired_test

# Two seeds leave one degree of freedom, with which a t-test hardly ever finds anything.
LEAST_SEEDS = 3
# Differences of sums of 10,000 numbers in float64 are uncertain by about this.
_ROUNDING = 1e-12


class Difference(NamedTuple):
    """How one row differs from another in one metric.

    Attributes:
        mean: Second minus first: over the seeds that both have, else the difference of their means.
        std: Standard deviation over those seeds, of two or more.
        n: Seeds that both have.
        p_value: Two-sided p-value, or None where nothing could be tested.
        over: What was sampled: "seeds" (paired t-test) or "examples" (paired bootstrap of one network each).
        values: The difference of every seed that both have, by rising seed.
    """

    mean: float
    std: float | None
    n: int
    p_value: float | None
    over: Literal["seeds", "examples"] | None
    values: tuple[float, ...] = ()


def compare_runs(
    first: Sequence[Entry], second: Sequence[Entry], metrics: Sequence[str], *, test: bool = True
) -> dict[str, Difference]:
    """Difference of the runs of two rows in several metrics, tested.

    With three or more seeds that both rows have, the differences per seed are tested against zero by Student's t. Where each
    row is a single run, of the same seed or of an unknown one, the two networks are tested on the same test examples by
    `calibrant.metrics.paired.paired_test`, if both predictions are there. The first says something about the methods, the
    second only about these two networks. What lies between is not tested: two seeds tell too little.

    Args:
        first: Runs of the row to compare with.
        second: Those of the other.
        metrics: Keys of `Scores`; those that a run lacks are left out.
        test: Whether to test at all.

    Returns:
        Metric → difference.
    """
    pairs = _pairs(first, second)
    alone = len(first) == len(second) == 1
    over_examples = _examples_test(pairs) if test and alone else {}
    found = {}
    for key in metrics:
        if not all(key in entry.scores for entry in (*first, *second)):
            continue
        ones, twos = ([entry.scores[key].value for entry in runs] for runs in (first, second))
        drawn = [b.scores[key].value - a.scores[key].value for a, b in pairs]
        mean, std = mean_and_std(drawn) if drawn else (mean_and_std(twos)[0] - mean_and_std(ones)[0], None)
        if test and len(pairs) >= LEAST_SEEDS:
            p_value = paired_t(drawn)
            found[key] = Difference(mean, std, len(pairs), p_value, None if p_value is None else "seeds", tuple(drawn))
        else:
            p_value = over_examples.get(key)
            found[key] = Difference(mean, std, len(pairs), p_value, None if p_value is None else "examples", tuple(drawn))
    return found


def paired_t(differences: Sequence[float]) -> float | None:
    r"""Two-sided p-value of Student's t for differences :math:`d_1 … d_n` with mean zero, :math:`t = \bar d \sqrt n / s`.

    Returns:
        The p-value; 1 where all are zero, None where they are equal but not zero, or not finite, so that s says nothing.

    Example:
        >>> round(paired_t([1.0, 2.0, 3.0]), 4)
        0.0742

    Reference:
        Student, Biometrika 1908.
    """
    from scipy.special import stdtr

    if not all(math.isfinite(value) for value in differences):
        return None
    mean, std = mean_and_std(differences)
    n = len(differences)
    if std is None or std <= _ROUNDING:
        return 1.0 if n > 1 and abs(mean) <= _ROUNDING else None
    return float(2 * stdtr(n - 1, -abs(mean) * math.sqrt(n) / std))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    r"""Correct p-values for their number: the k-th smallest of m becomes the largest of :math:`(m - j + 1)\, p_{(j)}, j \le k`.

    Args:
        p_values: One family of tests; None where there was none, which does not count.

    Returns:
        The corrected values, at most 1, in the given order.

    Example:
        >>> holm([0.01, 0.04, None, 0.03])
        [0.03, 0.06, None, 0.06]

    Reference:
        Holm, Scandinavian Journal of Statistics 1979.
    """
    known = sorted((value, place) for place, value in enumerate(p_values) if value is not None)
    found: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (value, place) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * value))
        found[place] = largest
    return found


def welch_t(first: Sequence[float], second: Sequence[float]) -> float | None:
    r"""Two-sided p-value of Welch's t for two samples of equal mean whose variances may differ.

    With means :math:`\bar x_k`, variances :math:`s_k^2` and sizes :math:`n_k`, and :math:`v_k = s_k^2 / n_k`,

    .. math:: t = \frac{\bar x_1 - \bar x_2}{\sqrt{v_1 + v_2}}, \qquad
        \nu = \frac{(v_1 + v_2)^2}{v_1^2 / (n_1 - 1) + v_2^2 / (n_2 - 1)}

    Returns:
        The p-value; without any spread 1 where the means are equal and 0 where not; None where a sample has fewer than two
        values, or one is not finite.

    Example:
        >>> round(welch_t([1.0, 2.0, 3.0], [4.0, 6.0, 8.0]), 4)
        0.0548

    Reference:
        Welch, Biometrika 1947.
    """
    from scipy.special import stdtr

    samples = (first, second)
    if min(map(len, samples)) < 2 or not all(math.isfinite(value) for values in samples for value in values):
        return None
    apart = statistics.fmean(first) - statistics.fmean(second)
    parts = [(statistics.variance(values) / len(values), len(values) - 1) for values in samples]
    error = math.sqrt(math.fsum(part for part, _ in parts))
    if error <= _ROUNDING:
        return float(abs(apart) <= _ROUNDING)
    freedom = error**4 / math.fsum(part**2 / degrees for part, degrees in parts)
    return float(2 * stdtr(freedom, -abs(apart) / error))


def mean_and_std(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and, of two values or more, standard deviation (divided by n - 1).

    Example:
        >>> mean_and_std([1.0, 3.0]), mean_and_std([2.0])
        ((2.0, 1.4142135623730951), (2.0, None))
    """
    finite = all(value - value == 0 for value in values)
    # Of infinities of both signs `fmean` would raise.
    mean = statistics.fmean(values) if finite else sum(values) / len(values)
    return mean, statistics.stdev(values) if len(values) > 1 and finite else None


def _pairs(first: Sequence[Entry], second: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    ones, twos = ({entry.seed: entry for entry in runs if entry.seed is not None} for runs in (first, second))
    if not (ones and twos):
        # Where seeds are unknown, two single runs can still be compared on their examples.
        return [(first[0], second[0])] if len(first) == len(second) == 1 else []
    return [(entry, twos[seed]) for seed, entry in ones.items() if seed in twos]


def _examples_test(pairs: Sequence[tuple[Entry, Entry]]) -> dict[str, float]:
    if not pairs:
        return {}
    one, two = pairs[0][0].test, pairs[0][1].test
    if one is None or two is None or one.num_classes != two.num_classes or not torch.equal(one.labels, two.labels):
        return {}
    if (one.weights is None) != (two.weights is None):
        return {}
    if one.weights is not None and two.weights is not None and not torch.equal(one.weights, two.weights):
        return {}
    return {key: found.p_value for key, found in paired_test(one, two).items()}
