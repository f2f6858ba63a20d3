"""Does a row differ from the first by more than chance? Over seeds where there are several, else over test examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch

from calibrant.core.entry import Entry
from calibrant.grid.rows import Row, mean_and_std
from calibrant.metrics.paired import paired_test

SIGNIFICANT = 0.05
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
    """

    mean: float
    std: float | None
    n: int
    p_value: float | None
    over: Literal["seeds", "examples"] | None


def compare_rows(first: Row, second: Row, metrics: Sequence[str], *, test: bool = True) -> dict[str, Difference]:
    """Difference of two rows in several metrics, tested.

    With three or more seeds that both rows have, the differences per seed are tested against zero by Student's t. Where each
    row is a single run, of the same seed or of an unknown one, the two networks are tested on the same test examples by
    `calibrant.metrics.paired.paired_test`, if both predictions are there. The first says something about the methods, the
    second only about these two networks. What lies between is not tested: two seeds tell too little.

    Args:
        first: The row to compare with.
        second: The other.
        metrics: Keys of `Scores`; those that a run lacks are left out.
        test: Whether to test at all.

    Returns:
        Metric → difference.
    """
    pairs = _pairs(first, second)
    alone = len(first.runs) == len(second.runs) == 1
    over_examples = _examples_test(pairs) if test and alone else {}
    found = {}
    for key in metrics:
        ones, twos = first.values(key), second.values(key)
        if not ones or not twos:
            continue
        drawn = [b.scores[key].value - a.scores[key].value for a, b in pairs]
        mean, std = mean_and_std(drawn) if drawn else (mean_and_std(twos)[0] - mean_and_std(ones)[0], None)
        if test and len(pairs) >= LEAST_SEEDS:
            p_value = paired_t(drawn)
            found[key] = Difference(mean, std, len(pairs), p_value, None if p_value is None else "seeds")
        else:
            p_value = over_examples.get(key)
            found[key] = Difference(mean, std, len(pairs), p_value, None if p_value is None else "examples")
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


def _pairs(first: Row, second: Row) -> list[tuple[Entry, Entry]]:
    if not (first.seeds and second.seeds):
        # Where seeds are unknown, two single runs can still be compared on their examples.
        return [(first.runs[0], second.runs[0])] if len(first.runs) == len(second.runs) == 1 else []
    others = {entry.seed: entry for entry in second.runs if entry.seed is not None}
    return [(entry, others[entry.seed]) for entry in first.runs if entry.seed is not None and entry.seed in others]


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
