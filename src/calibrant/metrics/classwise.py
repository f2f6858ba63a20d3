"""Calibration errors of every class's probability, not only the top one: classwise ECE, Nixon's ACE and TACE."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from calibrant.core.binning import TopLabel, class_bins_of, equal_mass_bins, examples_of
from calibrant.core.checks import ArrayLike
from calibrant.core.records import Predictions
from calibrant.metrics.conventions import binned_error


def classwise_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    p: float = 1,
    convention: str | None = None,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Calibration error of each class's probability over equal-width bins, averaged over classes.

    .. math:: \Bigl( \frac1C \sum_{k=1}^{C} \sum_{m=1}^{M} w_{km} \, | \bar y_{km} - \bar p_{km} |^p \Bigr)^{1/p}

    where bin :math:`(k, m)` holds the examples with :math:`(m-1)/M < p_{ik} \le m/M` (0.0 in the first bin),
    :math:`\bar p_{km}` is the mean of their :math:`p_{ik}`, :math:`\bar y_{km}` the share of them labelled k and
    :math:`w_{km}` their share of all examples. C is the number of columns of ``probs``, whether or not every class occurs.
    ``p=inf`` is the largest gap of all. Also called static calibration error (SCE) and cw-ECE.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        n_bins: Number of bins ``M`` per class.
        p: Order of the norm, from 1 to ``math.inf``.
        convention: Name of a source whose number to reproduce (see `calibrant.metrics.conventions`), or None for ours.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2]], dtype=torch.float64)
        >>> classwise_calibration_error(probs, torch.tensor([0, 1]), n_bins=2)
        tensor(0.3500, dtype=torch.float64)

    Reference:
        Kull et al., NeurIPS 2019; Nixon et al., CVPR workshops 2019 (SCE); p-norm as in Kumar, Liang and Ma, NeurIPS 2019.
    """
    where = "classwise_calibration_error"
    given = examples_of(probs, labels, where=where, n_bins=n_bins, p=p, weights=weights, ignore_index=ignore_index)
    if convention is not None:
        return binned_error(given, None, "classwise", n_bins=n_bins, p=p, convention=convention)
    errors = class_calibration_errors(given, n_bins=n_bins, p=p)
    if math.isinf(p):
        return errors.amax()
    return errors.mean() if p == 1 else (errors**p).mean() ** (1 / p)


def class_calibration_errors(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    p: float = 1,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Calibration error of each class's probability: the terms that `classwise_calibration_error` averages.

    The arguments are those of `classwise_calibration_error`.

    Returns:
        ``[C]`` in ``[0, 1]``, float64; 0 is best.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2]], dtype=torch.float64)
        >>> class_calibration_errors(probs, torch.tensor([0, 1]), n_bins=2)
        tensor([0.3500, 0.3500], dtype=torch.float64)

    Reference:
        Kull et al., NeurIPS 2019, equation 2.
    """
    where = "class_calibration_errors"
    given = examples_of(probs, labels, where=where, n_bins=n_bins, p=p, weights=weights, ignore_index=ignore_index)
    count, confidence, hits = class_bins_of(given.probs, given.labels, given.weights, n_bins=n_bins).unbind()
    residual, total = (confidence - hits).abs(), count[0].sum()
    if p == 1:
        return residual.sum(1) / total
    gap: Tensor = residual / count.where(count > 0, 1.0)
    return gap.amax(1) if math.isinf(p) else ((count * gap**p).sum(1) / total) ** (1 / p)


def nixon_adaptive_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean gap over equal-mass ranges of each class's probability (ACE of Nixon et al.).

    .. math:: \mathrm{ACE} = \frac{1}{C R} \sum_{k=1}^{C} \sum_{r=1}^{R} | \bar y_{kr} - \bar p_{kr} |

    where range :math:`(k, r)` is the r-th of R equal parts of the examples sorted by :math:`p_{ik}`, :math:`\bar p_{kr}` the
    mean of their :math:`p_{ik}` and :math:`\bar y_{kr}` the share of them labelled k. Every range counts the same; ranges
    left empty (N < R) are not averaged over. Tied probabilities are shared as in `adaptive_calibration_error`.

    The arguments are those of `classwise_calibration_error`; ``n_bins`` is the number of ranges R per class.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2]], dtype=torch.float64)
        >>> nixon_adaptive_calibration_error(probs, torch.tensor([0, 1]), n_bins=2)
        tensor(0.4500, dtype=torch.float64)

    Reference:
        Nixon et al., CVPR workshops 2019, section 3.2.
    """
    where = "nixon_adaptive_calibration_error"
    given = examples_of(probs, labels, where=where, n_bins=n_bins, weights=weights, ignore_index=ignore_index)
    return _mean_range_gap(given, n_bins=n_bins, threshold=-1.0)


def thresholded_adaptive_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    threshold: float = 0.01,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""`nixon_adaptive_calibration_error` over the probabilities above a threshold only (TACE).

    With many classes most probabilities are tiny and would fill most ranges. Here the entries :math:`p_{ik} \le \epsilon`
    are dropped before each class is divided into R ranges. Every non-empty range counts the same.

    The other arguments are those of `nixon_adaptive_calibration_error`; ``threshold`` is :math:`\epsilon`, in ``[0, 1)``.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best, and the value where nothing exceeds the threshold.

    Example:
        >>> probs = torch.tensor([[0.995, 0.005], [0.8, 0.2]], dtype=torch.float64)
        >>> thresholded_adaptive_calibration_error(probs, torch.tensor([0, 1]), n_bins=2)
        tensor(0.5350, dtype=torch.float64)

    Reference:
        Nixon et al., CVPR workshops 2019, section 3.3.
    """
    where = "thresholded_adaptive_calibration_error"
    if not 0 <= threshold < 1:
        raise ValueError(f"{where}: `threshold` must lie in [0, 1), got {threshold!r}.")
    given = examples_of(probs, labels, where=where, n_bins=n_bins, weights=weights, ignore_index=ignore_index)
    return _mean_range_gap(given, n_bins=n_bins, threshold=threshold)


def _mean_range_gap(given: Predictions, *, n_bins: int, threshold: float) -> Tensor:
    """Mean gap over the ranges of every class that hold something above the threshold."""
    total, ranges = torch.zeros((), dtype=torch.float64), 0
    weights = torch.ones(len(given), dtype=torch.float64) if given.weights is None else given.weights
    for k, column in enumerate(given.probs.double().unbind(1)):
        kept = (column > threshold) & (weights > 0)
        if not bool(kept.any()):
            continue
        hit = (given.labels[kept] == k).double()
        bins = equal_mass_bins(TopLabel(column[kept], hit, weights[kept]), n_bins=n_bins)
        total += bins.gap.abs().sum()
        ranges += int((bins.count > 0).sum())
    return total / max(ranges, 1)
