"""Do the runs of two rows differ by more than chance? Over seeds where there are several, else over test examples."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

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

    Returns:
        Metric → difference.
    """
    pairs = _pairs(first, second)
    over_examples = _examples_test(pairs) if test and len(first) == len(second) == 1 else {}
    found = {}
    for key in metrics:
        if not all(key in entry.scores for entry in (*first, *second)):
            continue
        drawn = [b.scores[key].value - a.scores[key].value for a, b in pairs]
        mean, std = mean_and_std(drawn) if drawn else (_mean(second, key) - _mean(first, key), None)
        over: Literal["seeds", "examples"] = "seeds" if len(pairs) >= LEAST_SEEDS else "examples"
        p_value = over_examples.get(key) if over == "examples" else paired_t(drawn) if test else None
        found[key] = Difference(mean, std, len(pairs), p_value, None if p_value is None else over, tuple(drawn))
    return found


def _mean(runs: Sequence[Entry], key: str) -> float:
    return mean_and_std([entry.scores[key].value for entry in runs])[0]


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

    mean, std = mean_and_std(differences)
    if std is None:
        return None
    if std <= _ROUNDING:
        return 1.0 if abs(mean) <= _ROUNDING else None
    n = len(differences)
    return float(2 * stdtr(n - 1, -abs(mean) * math.sqrt(n) / std))


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    r"""Correct p-values for their number: the k-th smallest of m becomes the largest of :math:`(m - j + 1)\, p_{(j)}, j \le k`.

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

    (one, std), (two, other_std) = mean_and_std(first), mean_and_std(second)
    if std is None or other_std is None:
        return None
    parts = (std**2 / len(first), other_std**2 / len(second))
    error = math.sqrt(sum(parts))
    if error <= _ROUNDING:
        return float(abs(one - two) <= _ROUNDING)
    freedom = error**4 / (parts[0] ** 2 / (len(first) - 1) + parts[1] ** 2 / (len(second) - 1))
    return float(2 * stdtr(freedom, -abs(one - two) / error))


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
    for one, two in pairs:
        if one.test is not None and two.test is not None:
            with contextlib.suppress(ValueError):  # Not the same examples.
                return {key: found.p_value for key, found in paired_test(one.test, two.test).items()}
    return {}
