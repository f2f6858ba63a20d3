"""Is one model better than another on the same examples? A paired bootstrap test of every score."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import check_count
from calibrant.core.records import Predictions
from calibrant.core.scores import Paired
from calibrant.metrics.blocks import Blocks
from calibrant.metrics.bootstrap import Sample, draw_counts, join_parts
from calibrant.metrics.ordinary import NORMAL_95
from calibrant.metrics.shared_noise import SharedNoise
from calibrant.metrics.values import score_values

# Two models whose scores differ by less than a millionth differ by the rounding of float32, however consistently.
_ROUNDING = 1e-6
# What is left of nothing after sums in another order, in double precision.
_NOTHING = 1e-12
# Below so many examples resamples vary clearly less than new examples would.
_FEW = 100
# Fewer prove nothing.
_LEAST = 10
# The largest difference that two values of a score can have; all others lie between 0 and 1.
_LARGEST = {"nll": math.inf, "brier": 2.0, "signed_gap": 2.0}


def paired_test(
    first: Predictions, second: Predictions, *, n_bins: int = 15, n_resamples: int = 1000, seed: int = 0
) -> dict[str, Paired]:
    r"""Difference of every score between two models on the same examples, with interval and p-value.

    Both models are scored on the same resamples, so what makes an example hard for both cancels. With differences
    :math:`d` on the data (second minus first) and :math:`d^*_r` on the resamples, whose mean is :math:`\bar d^*`,

    .. math:: p = \frac{1 + \#\{r : |d^*_r - \bar d^*| \ge |d|\}}{R + 1}

    and the 95 % interval is :math:`d` plus and minus the 95 % quantile of :math:`|d^*_r - \bar d^*|`, so that it holds zero
    where p > 0.05; it ends at the largest difference that is possible, 1 for a score between 0 and 1. The gaps of bins hold
    chance already; before resampling adds it again they are shrunk by its expected part, without which the test would be too
    timid near perfect calibration. Resamples of few examples vary too little: below N = 100 the :math:`|d^*_r - \bar d^*|` are
    multiplied by :math:`\sqrt{N / (N - 1)}\, t_{N - 1} / z`, the quotient of the 97.5 % points of Student's and the normal
    distribution; fewer than ten prove nothing. With weights, N here is :math:`(\sum w)^2 / \sum w^2`, how many they are worth.

    Args:
        first: Predictions of one model.
        second: Those of the other, for the same examples in the same order.
        n_bins: Number of bins of the binned metrics.
        n_resamples: Number of resamples R.
        seed: Of the random draws; the same seed gives the same numbers.

    Returns:
        Key → ``Paired(difference, low, high, p_value)``; a negative difference says that the second is better, for every key
        but ``signed_gap``. Raises ``ValueError`` if the two are not about the same examples.

    Example:
        >>> labels = [0, 1] * 100
        >>> good = Predictions(probs=[[0.8, 0.2], [0.2, 0.8]] * 100, labels=labels)
        >>> bad = Predictions(probs=[[0.6, 0.4], [0.6, 0.4]] * 100, labels=labels)
        >>> test = paired_test(bad, good)["error"]
        >>> test.difference, test.p_value < 0.01
        (-0.5, True)

    Reference:
        Efron and Tibshirani, An Introduction to the Bootstrap, 1993, section 16.4; James and Stein,
        Fourth Berkeley Symposium, 1961; Hesterberg, The American Statistician, 2015, section 3.2 (few examples).
    """
    where = "paired_test"
    check_count(n_bins, where=where, name="n_bins")
    check_count(n_resamples, where=where, name="n_resamples")
    check_count(seed, where=where, name="seed", least=0)
    _check_same_examples(first, second, where=where)
    blocks = Blocks(len(first), seed=seed)
    one, two = (Sample(given, n_bins=n_bins, blocks=blocks) for given in (first, second))
    rng = np.random.default_rng([seed, 1])
    noise = SharedNoise(one, two, first.predicted == second.predicted)
    parts = []
    for counts in draw_counts(len(blocks), n_resamples=n_resamples, seed=seed):
        drawn_noise = noise.draw(rng, counts.shape[1])
        before, after = (sample.scores(counts, noise=part) for sample, part in zip((one, two), drawn_noise, strict=True))
        parts.append({key: after[key] - before[key] for key in before})
    drawn = join_parts(parts)
    values, others = score_values(first, n_bins=n_bins), score_values(second, n_bins=n_bins)
    # Rounded, so that ten equal weights are worth ten and not a little less.
    wider = _widening(round(one.levels.size, 6))
    return {key: _compare(others[key] - values[key], drawn[key], most=_LARGEST.get(key, 1.0), wider=wider) for key in drawn}


def _widening(n: float) -> float:
    """How many times as far as resamples of ``n`` examples new ones may lie apart."""
    from scipy.special import stdtrit

    if n >= _FEW:
        return 1.0
    return math.inf if n < _LEAST else math.sqrt(n / (n - 1)) * float(stdtrit(n - 1, 0.975)) / NORMAL_95


def _compare(difference: float, drawn: Tensor, *, most: float, wider: float) -> Paired:
    if not math.isfinite(difference) or not bool(drawn.isfinite().all()):
        # A score that is infinite for one model is worse than any finite one; two infinite ones cannot be told apart.
        p_value = 1.0 if math.isnan(difference) else 1 / (1 + len(drawn))
        return Paired(difference, difference, difference, p_value)
    spread = (drawn - drawn.mean()).abs()
    half, difference = (v if abs(v) >= _NOTHING else 0.0 for v in (float(torch.quantile(spread, 0.95)), difference))
    if math.isinf(wider):
        return Paired(difference, -most, most, 1.0) if half or difference else Paired(0.0, 0.0, 0.0, 1.0)
    as_large = int((spread * wider >= abs(difference) - _ROUNDING).sum())
    half *= wider
    low, high = max(difference - half, -most), min(difference + half, most)
    return Paired(difference, low, high, (1 + as_large) / (1 + len(drawn)))


def _check_same_examples(first: Predictions, second: Predictions, *, where: str) -> None:
    if len(first) != len(second):
        raise ValueError(f"{where}: `second` must hold the N = {len(first)} examples of `first`, got {len(second)}.")
    if first.num_classes != second.num_classes:
        raise ValueError(f"{where}: `second` must have C = {first.num_classes} classes as `first`, got {second.num_classes}.")
    differ = (first.labels != second.labels).nonzero()
    if len(differ):
        row = int(differ[0])
        raise ValueError(
            f"{where}: `second` must have the labels of `first`, got {int(second.labels[row])} for {int(first.labels[row])} "
            f"in row {row}. Put both in the same order."
        )
    ones = torch.ones(len(first), dtype=torch.float64)
    one, two = (ones if p.weights is None else p.weights for p in (first, second))
    if not torch.equal(one, two):
        raise ValueError(f"{where}: `second` must have the weights of `first`, got others.")
