"""What a perfectly calibrated model would show: the ECE that chance alone gives at this number of examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import MassCurve
from calibrant.core.checks import ArrayLike, check_count
from calibrant.core.grid import grid_of
from calibrant.core.scores import IfCalibrated
from calibrant.core.top_label import TopLabel, top_label
from calibrant.metrics.binned import width_error
from calibrant.metrics.levels import Levels, levels_of
from calibrant.metrics.worlds import draw_hits, draw_right

# Draws held at once: 8 M numbers of 8 bytes.
_CHUNK_DRAWS = 8_000_000


def null_distribution(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    n_resamples: int = 1000,
    seed: int = 0,
    weights: ArrayLike | None = None,
) -> Tensor:
    r"""ECE of a perfectly calibrated model with these confidences, many times.

    Each time every example is right with a chance that equals its confidence :math:`c_i`, and the ECE is computed anew:

    .. math:: \mathrm{ECE}^* = \sum_{m=1}^{M} \Bigl| \frac{1}{N} \sum_{i \in B_m} (a_i^* - c_i) \Bigr|,
        \qquad a_i^* \sim \mathrm{Bernoulli}(c_i)

    with the bins :math:`B_m` of `calibrant.metrics.expected_calibration_error`. Examples within 0.01 of confidence (and of one
    bin) share their mean one. With weights, N is the effective number :math:`(\sum_i w_i)^2 / \sum_i w_i^2`.

    Args:
        probs: Probabilities ``[N, C]``, rows summing to one.
        labels: Class indices ``[N]`` in ``[0, C)``; only checked.
        n_bins: Number of bins ``M``.
        n_resamples: Number of times R.
        seed: Of the random draws; the same seed gives the same numbers.
        weights: Sample weights ``[N]``.

    Returns:
        ECE values ``[R]``, float64. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]] * 100)
        >>> drawn = null_distribution(probs, torch.zeros(300, dtype=torch.long))
        >>> drawn.shape, bool(drawn.mean() > 0.02)
        (torch.Size([1000]), True)

    Reference:
        Bröcker and Smith, Weather and Forecasting 22, 2007 (consistency resampling).
    """
    where = "null_distribution"
    _check_counts(n_bins, n_resamples, seed, where=where)
    top = top_label(probs, labels, where=where, weights=weights)
    return null_of_levels(_levels(top, n_bins), n_resamples=n_resamples, rng=np.random.default_rng(seed))


def if_calibrated(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    n_resamples: int = 1000,
    seed: int = 0,
    weights: ArrayLike | None = None,
) -> IfCalibrated:
    r"""Mean and 95th percentile of `null_distribution`, and the p-value of the observed ECE.

    The p-value :math:`(1 + \#\{r : \mathrm{ECE}^*_r \ge \mathrm{ECE}\}) / (R + 1)` is the chance of an ECE at least as large
    under perfect calibration; it is never zero and never too small on average.

    Args:
        probs: Probabilities ``[N, C]``, rows summing to one.
        labels: Class indices ``[N]`` in ``[0, C)``.
        n_bins: Number of bins ``M``.
        n_resamples: Number of resamples R.
        seed: Of the random draws; the same seed gives the same numbers.
        weights: Sample weights ``[N]``.

    Returns:
        ``IfCalibrated(mean, p95, p_value)``. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1]] * 100)
        >>> if_calibrated(probs, torch.tensor([0] * 60 + [1] * 40)).p_value < 0.01  # right 60 times where 90 were promised
        True

    Reference:
        Bröcker and Smith, Weather and Forecasting 22, 2007; Vaicenavicius et al., AISTATS 2019.
    """
    where = "if_calibrated"
    _check_counts(n_bins, n_resamples, seed, where=where)
    top = top_label(probs, labels, where=where, weights=weights)
    drawn = null_of_levels(_levels(top, n_bins), n_resamples=n_resamples, rng=np.random.default_rng(seed))
    return compare_with_null(float(width_error(top, n_bins=n_bins)), drawn)


def compare_with_null(observed: float, drawn: Tensor) -> IfCalibrated:
    """Where ``observed`` lies among the values ``drawn [R]`` under perfect calibration."""
    # Sums in another order differ by rounding, which must not decide whether equal values count.
    as_large = int((drawn >= observed - 1e-12).sum())
    return IfCalibrated(float(drawn.mean()), float(torch.quantile(drawn, 0.95)), (1 + as_large) / (1 + len(drawn)))


def null_of_levels(levels: Levels, *, n_resamples: int, rng: np.random.Generator) -> Tensor:
    """ECE ``[R]`` of calibrated data with the confidences of ``levels``."""
    rows = max(_CHUNK_DRAWS // len(levels), 1)
    values = []
    for at in range(0, n_resamples, rows):
        count, right = draw_right(levels, levels.confidence, n_resamples=min(rows, n_resamples - at), rng=rng)
        values.append(levels.sum_by_bin(count * levels.confidence - right).abs().sum(1) / levels.size)
    return torch.cat(values)


def null_of_cuts(
    curve: MassCurve, cuts: Sequence[Tensor], *, n_resamples: int, rng: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """ECE and MCE ``[R, K]`` of calibrated data with the confidences of ``curve``, over each of K binnings of the same draws.

    Args:
        curve: The examples, sorted.
        cuts: For each binning, how many of the distinct confidences lie below each edge, int64 ``[M + 1]``, from 0 to all.
            Examples that no binning tells apart share their mean confidence, so that narrow bins should be among these.
        n_resamples: Number of resamples R.
        rng: Source of randomness.

    Returns:
        The two errors; bins without examples count for neither.
    """
    ends = torch.cat(list(cuts)).unique()
    mass, total = curve.mass[ends].diff(), float(curve.mass[-1])
    confidence = (curve.confidence[ends].diff() / mass).clamp(0, 1)
    size = total**2 / float(curve.squares[-1])
    bins = [torch.searchsorted(ends, cut.unique()) for cut in cuts]
    rows = max(_CHUNK_DRAWS // len(mass), 1)
    means, largest = [], []
    for at in range(0, n_resamples, rows):
        drawn = min(rows, n_resamples - at)
        count, right = draw_hits(mass * (size / total), confidence, n_resamples=drawn, rng=rng)
        counted, residual = _rising(count), _rising(count * confidence - right)
        weights = [counted[..., places].diff() for places in bins]
        gaps = [residual[:, places].diff().abs_() for places in bins]
        means.append(torch.stack([gap.sum(1) / size for gap in gaps], dim=1))
        # A bin whose fractions of examples were all rounded down is empty, and its gap zero.
        largest.append(torch.stack([(g / w.clamp_min(1.0)).amax(1) for g, w in zip(gaps, weights, strict=True)], dim=1))
    return torch.cat(means), torch.cat(largest)


def _rising(values: Tensor) -> Tensor:
    """Running sums of ``values [..., G]`` from 0 on; ``[..., G + 1]``."""
    return torch.nn.functional.pad(values.cumsum(-1), (1, 0))


def _levels(top: TopLabel, n_bins: int) -> Levels:
    grid = grid_of(top.confidence, top.correct, top.weights, dtype=top.dtype)
    size = len(top) if top.weights is None else float(top.weights.sum() ** 2 / top.weights.square().sum())
    return levels_of(grid, size=size, n_bins=n_bins, within_bins=True)


def _check_counts(n_bins: int, n_resamples: int, seed: int, *, where: str) -> None:
    check_count(n_bins, where=where, name="n_bins")
    check_count(n_resamples, where=where, name="n_resamples")
    check_count(seed, where=where, name="seed", least=0)
