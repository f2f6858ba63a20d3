"""What a perfectly calibrated model would show: the errors that chance alone gives at this number of examples.

`bin_sweep` gives ECE and MCE against the number of bins, with that chance beside them. `sweep_calibration_error`, in `binned`,
is something else: one number, for which the data choose the number of bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from calibrant.core.binning import (
    WIDTH_CELLS,
    TopLabel,
    cells_of,
    equal_width_bins,
    equal_width_index,
    examples_of,
    norm_of_bins,
    top_label,
)
from calibrant.core.checks import ArrayLike, check_bins, check_count
from calibrant.core.records import Predictions
from calibrant.core.scores import BinSweep, IfCalibrated
from calibrant.metrics.conventions import binned_error
from calibrant.metrics.levels import Levels, draw_calibrated, ece_of_levels, levels_of, mce_of_levels

# 10, 20, 50, 100, 200, 500 and 1000 are those of published figures; the others fill the gaps on a logarithmic axis.
BIN_COUNTS = (10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)

# So many take about 5 GB.
_MOST_DRAWS = 5_000_000


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
    given = examples_of(probs, labels, where="if_calibrated", n_bins=n_bins, weights=weights)
    drawn = null_distribution(given, n_bins=n_bins, n_resamples=n_resamples, seed=seed)
    return compare_with_null(float(binned_error(given, None, "expected", n_bins=n_bins)), drawn)


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
    check_bins(n_bins, where=where)
    check_count(n_resamples, where=where, name="n_resamples", least=least)
    check_count(seed, where=where, name="seed", least=0)
    if n_bins * n_resamples > _MOST_DRAWS:
        rule = f"`n_bins` times `n_resamples` must be at most {_MOST_DRAWS:,}, since they are kept in memory"
        raise ValueError(f"{where}: {rule}, got {n_bins:,} times {n_resamples:,}.")


def _levels_of_top(top: TopLabel, n_bins: int) -> Levels:
    return levels_of(cells_of(top), size=float(top.mass.sum() ** 2 / top.mass.square().sum()), n_bins=n_bins)
