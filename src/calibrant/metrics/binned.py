"""Calibration errors over bins of confidence, of each class's probability, or of that of the positive class (``binary_``).

Bins are of equal width or of equal mass. Kernels in their stead are in `kernel`.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import (
    TopLabel,
    between_cuts,
    class_bins_of,
    equal_mass_bins,
    equal_width_bins,
    mass_cuts,
    norm_of_bins,
    one_vs_rest,
    top_label,
)
from calibrant.core.checks import ArrayLike, check_count, check_share, to_tensor
from calibrant.core.records import Bins, Predictions, as_predictions, both_classes
from calibrant.metrics.conventions import bin_rule, error_by_convention, mean_over_classes

__all__ = [
    "adaptive_calibration_error",
    "average_calibration_error",
    "binary_adaptive_calibration_error",
    "binary_expected_calibration_error",
    "binary_maximum_calibration_error",
    "binary_signed_calibration_gap",
    "class_calibration_errors",
    "classwise_calibration_error",
    "debiased_calibration_error",
    "expected_calibration_error",
    "kolmogorov_smirnov_error",
    "maximum_calibration_error",
    "nixon_adaptive_calibration_error",
    "reliability_bins",
    "sweep_calibration_error",
    "thresholded_adaptive_calibration_error",
]


def expected_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    p: float = 1,
    convention: str | None = None,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean gap between confidence and accuracy over equal-width confidence bins (ECE).

    With confidence :math:`c_i = \max_k p_{ik}` and correctness :math:`a_i = [\arg\max_k p_{ik} = y_i]`,

    .. math:: \mathrm{ECE}_p = \Bigl( \sum_{m=1}^{M} w_m \, | \bar a_m - \bar c_m |^p \Bigr)^{1/p}

    where bin :math:`m` holds the examples with :math:`(m-1)/M < c_i \le m/M`, :math:`\bar a_m` and :math:`\bar c_m` are
    its mean correctness and confidence, and :math:`w_m` its share of all examples. Empty bins count zero; 0.0 belongs to
    the first bin, 1.0 to the last. ``p=inf`` is the largest gap. Edges are k/M in the precision of the input, so that a
    float32 0.2 lies on the edge 3/15. Libraries disagree about edges and about 1.0: ``convention`` reproduces theirs.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        n_bins: Number of bins ``M``.
        p: Order of the norm, from 1 to ``math.inf``.
        convention: Name of a source whose number to reproduce (see `calibrant.metrics.conventions`), or None for ours.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2]], dtype=torch.float64)
        >>> expected_calibration_error(probs, torch.tensor([0, 1]), n_bins=2)
        tensor(0.3500, dtype=torch.float64)

    Reference:
        Naeini, Cooper and Hauskrecht, AAAI 2015; edges as in Guo et al., ICML 2017.
    """
    where = "expected_calibration_error"
    given = as_predictions(probs, labels, where=where, n_bins=n_bins, p=p, weights=weights, ignore_index=ignore_index)
    if convention is not None:
        return error_by_convention(given, "expected", convention, n_bins=n_bins, p=p)
    return norm_of_bins(equal_width_bins(top_label(given, where=where), n_bins=n_bins), p=p)


def maximum_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    min_count: int = 1,
    convention: str | None = None,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Largest gap between confidence and accuracy over equal-width confidence bins (MCE).

    .. math:: \mathrm{MCE} = \max_{m : n_m \ge n_{\min}} | \bar a_m - \bar c_m |

    with the bins of `expected_calibration_error` and :math:`n_m` the number of examples in bin m, whatever their weights. A
    bin of a single example often decides it: ``min_count`` leaves small bins out.

    The arguments are those of `expected_calibration_error`, and ``min_count``, the examples that a bin must hold to be
    considered.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if no bin holds ``min_count`` examples.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
        >>> maximum_calibration_error(probs, torch.tensor([0, 0]), n_bins=10)
        tensor(0.6000, dtype=torch.float64)

    Reference:
        Naeini, Cooper and Hauskrecht, AAAI 2015.
    """
    where = "maximum_calibration_error"
    given = as_predictions(probs, labels, where=where, n_bins=n_bins, weights=weights, ignore_index=ignore_index)
    if convention is None:
        return _largest_gap(top_label(given, where=where), n_bins=n_bins, min_count=min_count, where=where)
    if min_count != 1:
        raise ValueError(f"{where}: `min_count` must be 1 with a `convention`, got {min_count!r}.")
    return error_by_convention(given, "maximum", convention, n_bins=n_bins)


def average_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    convention: str | None = None,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Unweighted mean gap over the non-empty equal-width confidence bins.

    .. math:: \frac{1}{|\{m : n_m > 0\}|} \sum_{m : n_m > 0} | \bar a_m - \bar c_m |

    with the bins of `expected_calibration_error`. Every bin counts the same, however few examples it holds. Some libraries
    call this "ACE", a name also used for `adaptive_calibration_error` and for `nixon_adaptive_calibration_error`.

    Arguments and result are those of `expected_calibration_error`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
        >>> average_calibration_error(probs, torch.tensor([0, 0]), n_bins=10)
        tensor(0.3500, dtype=torch.float64)

    Reference:
        Neumann, Zisserman and Vedaldi, NeurIPS MLITS workshop 2018.
    """
    where = "average_calibration_error"
    given = as_predictions(probs, labels, where=where, n_bins=n_bins, weights=weights, ignore_index=ignore_index)
    if convention is not None:
        return error_by_convention(given, "average", convention, n_bins=n_bins)
    bins = equal_width_bins(top_label(given, where=where), n_bins=n_bins)
    return bins.gap[bins.count > 0].abs().mean()


def adaptive_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    p: float = 1,
    convention: str | None = None,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean gap between confidence and accuracy over bins that hold equally many examples (adaptive ECE).

    .. math:: \mathrm{AdaECE}_p = \Bigl( \sum_{m=1}^{M} w_m \, | \bar a_m - \bar c_m |^p \Bigr)^{1/p}

    where bin m holds the m-th of M equal parts of the examples sorted by confidence (the first N mod M parts hold one more),
    :math:`\bar a_m` and :math:`\bar c_m` are its mean correctness and confidence and :math:`w_m` its share of the examples.
    Tied confidences that a cut divides are shared in proportion, so that the value does not depend on the order of the
    samples; sources that cut at interpolated confidences instead are available as ``convention``. This is the top-label
    quantity that papers after Mukhoti et al. report as "ACE" or "AdaECE"; Nixon's is `nixon_adaptive_calibration_error`.

    Arguments and result are those of `expected_calibration_error`; with weights, bins hold equal weight.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]], dtype=torch.float64)
        >>> adaptive_calibration_error(probs, torch.tensor([0, 0, 0, 1]), n_bins=2)
        tensor(0.1500, dtype=torch.float64)

    Reference:
        Mukhoti et al., NeurIPS 2020; equal-mass bins as in Nguyen and O'Connor, EMNLP 2015.
    """
    where = "adaptive_calibration_error"
    given = as_predictions(probs, labels, where=where, n_bins=n_bins, p=p, weights=weights, ignore_index=ignore_index)
    if convention is not None:
        return error_by_convention(given, "adaptive", convention, n_bins=n_bins, p=p)
    return norm_of_bins(equal_mass_bins(top_label(given, where=where), n_bins=n_bins), p=p)


def debiased_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Root-mean-square gap over equal-mass bins, less the part that chance alone would give.

    .. math:: \sqrt{ \Bigl[ \sum_{m : n_m \ge 2} w_m \Bigl( (\bar a_m - \bar c_m)^2
        - \frac{\bar a_m (1 - \bar a_m)}{n_m - 1} \Bigr) \Bigr]_+ }

    with the bins of `adaptive_calibration_error`, :math:`n_m` examples in bin m and :math:`[x]_+ = \max(x, 0)`. The
    subtracted term is the unbiased estimate of the variance of :math:`\bar a_m`, so that the sum under the root is unbiased
    before it is clipped. With weights :math:`v_i`, :math:`n_m` is the effective number
    :math:`(\sum_i v_i)^2 / \sum_i v_i^2` of the bin. A bin of fewer than two examples counts zero.

    Arguments and result are those of `expected_calibration_error`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]], dtype=torch.float64)
        >>> debiased_calibration_error(probs, torch.tensor([1, 1, 0, 1]), n_bins=2)
        tensor(0.4975, dtype=torch.float64)

    Reference:
        Kumar, Liang and Ma, NeurIPS 2019, section 5.
    """
    where = "debiased_calibration_error"
    top = top_label(probs, labels, where=where, n_bins=n_bins, weights=weights, ignore_index=ignore_index)
    bins, sums = equal_mass_bins(top, n_bins=n_bins), top.rising[1]
    squares = between_cuts(sums, mass_cuts(top.size, n_bins, total=float(sums[0, -1])))[3]
    effective = bins.count**2 / squares.clamp_min(torch.finfo(torch.float64).tiny)
    # The tolerance keeps a bin of two equally weighted examples, whose effective number rounds to just below two.
    held = effective >= 2 - 1e-9
    variance = bins.accuracy * (1 - bins.accuracy) / (effective - 1).where(held, 1.0)
    return torch.where(held, bins.weight * (bins.gap**2 - variance), 0.0).sum().clamp_min(0).sqrt()


def sweep_calibration_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    p: float = 1,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Adaptive calibration error with the number of bins chosen by the data.

    The number of equal-mass bins is :math:`M^* = \max\{M \le N : \bar a_1 \le \dots \le \bar a_{M'} \text{ for every }
    M' \le M\}`: bins are added as long as their accuracies rise with confidence. The value is
    `adaptive_calibration_error` with :math:`M^*` bins.

    Arguments and result are those of `expected_calibration_error`; the paper's experiments use ``p=2``.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]], dtype=torch.float64)
        >>> sweep_calibration_error(probs, torch.tensor([0, 0, 0, 1]))
        tensor(0.3000, dtype=torch.float64)

    Reference:
        Roelofs et al., AISTATS 2022, equation 8.
    """
    top = top_label(probs, labels, where="sweep_calibration_error", p=p, weights=weights, ignore_index=ignore_index)
    return norm_of_bins(equal_mass_bins(top, n_bins=_monotone_bins(top)), p=p)


def kolmogorov_smirnov_error(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Largest cumulated difference between confidence and accuracy over the confidences (KS error), free of bins.

    .. math:: \mathrm{KS} = \max_{t} \Bigl| \frac1N \sum_{i : c_i \le t} (a_i - c_i) \Bigr|

    with confidence :math:`c_i` and correctness :math:`a_i`. Tied confidences enter together.

    Arguments and result are those of `expected_calibration_error`.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
        >>> kolmogorov_smirnov_error(probs, torch.tensor([0, 0]))
        tensor(0.3000, dtype=torch.float64)

    Reference:
        Gupta et al., ICLR 2021, section 3.
    """
    top = top_label(probs, labels, where="kolmogorov_smirnov_error", weights=weights, ignore_index=ignore_index)
    mass, confidence, correct, _ = top.rising[1].unbind()
    return (correct - confidence).abs().amax() / mass[-1]


def reliability_bins(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    binning: Literal["width", "mass"] = "width",
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Bins:
    r"""Group examples by confidence: the content of a reliability diagram.

    The arguments are those of `expected_calibration_error`, and ``binning``: "width" for the bins ``(k/M, (k+1)/M]``, "mass"
    for bins of equal size with tied confidences shared.

    Returns:
        Count, mean confidence and accuracy of every bin, and the edges. Raises ``ValueError`` on an unknown ``binning``.

    Example:
        >>> bins = reliability_bins([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]], [0, 1, 1], n_bins=2)
        >>> bins.count.tolist(), bins.confidence.tolist(), bins.accuracy.tolist()
        ([1.0, 2.0], [0.5, 0.75], [0.0, 1.0])

    Reference:
        DeGroot and Fienberg, The Statistician 1983.
    """
    group = bin_rule(binning, where="reliability_bins")
    top = top_label(probs, labels, where="reliability_bins", n_bins=n_bins, weights=weights, ignore_index=ignore_index)
    return group(top, n_bins=n_bins)


def binary_expected_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    p: float = 1,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean gap between the probability of the positive class and its frequency over equal-width bins.

    .. math:: \Bigl( \sum_{m=1}^{M} w_m \, | \bar y_m - \bar p_m |^q \Bigr)^{1/q}

    where bin :math:`m` holds the examples with :math:`(m-1)/M < p_i \le m/M` (0.0 in the first bin, 1.0 in the last),
    :math:`\bar p_m` is their mean probability, :math:`\bar y_m` the share of positives, :math:`w_m` their share of all
    examples and q the order of the norm. Not the same as `expected_calibration_error` of the two columns ``[1 - p, p]``,
    which bins the larger of the two and asks whether that
    class was right: p = 0.1 with label 0 counts there as confidence 0.9 and correct. Neither is wrong.

    Args:
        probs: Probability of the positive class ``[N]`` (or any shape), in ``[0, 1]``.
        labels: 0 or 1 (or booleans), shaped as ``probs``.
        n_bins: Number of bins ``M``.
        p: Order q of the norm, from 1 to ``math.inf``.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best.

    Example:
        >>> binary_expected_calibration_error([0.2, 0.8], [1, 1])
        tensor(0.5000, dtype=torch.float64)

    Reference:
        Naeini, Cooper and Hauskrecht, AAAI 2015.
    """
    where = "binary_expected_calibration_error"
    given = _positive_class(probs, labels, where=where, n_bins=n_bins, p=p, weights=weights, ignore_index=ignore_index)
    return norm_of_bins(equal_width_bins(given, n_bins=n_bins), p=p)


def binary_maximum_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    min_count: int = 1,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Largest gap between the probability of the positive class and its frequency over equal-width bins.

    Bins and arguments are those of `binary_expected_calibration_error`; ``min_count`` are the examples that a bin must hold to
    be considered.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if no bin holds ``min_count`` examples.

    Example:
        >>> binary_maximum_calibration_error([0.2, 0.8], [1, 1])
        tensor(0.8000, dtype=torch.float64)

    Reference:
        Naeini, Cooper and Hauskrecht, AAAI 2015.
    """
    where = "binary_maximum_calibration_error"
    given = _positive_class(probs, labels, where=where, n_bins=n_bins, weights=weights, ignore_index=ignore_index)
    return _largest_gap(given, n_bins=n_bins, min_count=min_count, where=where)


def binary_adaptive_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    p: float = 1,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean gap between the probability of the positive class and its frequency over bins of equally many examples.

    Examples are sorted by the probability of the positive class and divided as in `adaptive_calibration_error`, ties shared.

    Arguments and result are those of `binary_expected_calibration_error`; with weights, bins hold equal weight.

    Example:
        >>> binary_adaptive_calibration_error([0.1, 0.3, 0.8, 1.0], [0, 1, 1, 1], n_bins=2)
        tensor(0.2000, dtype=torch.float64)

    Reference:
        Nguyen and O'Connor, EMNLP 2015.
    """
    where = "binary_adaptive_calibration_error"
    given = _positive_class(probs, labels, where=where, n_bins=n_bins, p=p, weights=weights, ignore_index=ignore_index)
    return norm_of_bins(equal_mass_bins(given, n_bins=n_bins), p=p)


def binary_signed_calibration_gap(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean probability of the positive class minus the share of positives, :math:`\bar p - \bar y`.

    The arguments are those of `binary_expected_calibration_error`.

    Returns:
        Scalar ``[]`` in ``[-1, 1]``, float64; 0 is best, above zero the model predicts too many positives.

    Example:
        >>> binary_signed_calibration_gap([0.2, 0.6], [0, 0])
        tensor(0.4000, dtype=torch.float64)

    Reference:
        Murphy, Monthly Weather Review 1973 (reliability in the large).
    """
    where = "binary_signed_calibration_gap"
    given = _positive_class(probs, labels, where=where, n_bins=1, weights=weights, ignore_index=ignore_index)
    share = given.mass / given.mass.sum()
    return share @ (given.confidence - given.correct)


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

    Arguments and result are those of `expected_calibration_error`, with M bins for every class.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2]], dtype=torch.float64)
        >>> classwise_calibration_error(probs, torch.tensor([0, 1]), n_bins=2)
        tensor(0.3500, dtype=torch.float64)

    Reference:
        Kull et al., NeurIPS 2019; Nixon et al., CVPR workshops 2019 (SCE); p-norm as in Kumar, Liang and Ma, NeurIPS 2019.
    """
    where = "classwise_calibration_error"
    given = as_predictions(probs, labels, where=where, n_bins=n_bins, p=p, weights=weights, ignore_index=ignore_index)
    if convention is not None:
        return error_by_convention(given, "classwise", convention, n_bins=n_bins, p=p)
    return mean_over_classes(class_calibration_errors(given, n_bins=n_bins, p=p), p)


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
    given = as_predictions(probs, labels, where=where, n_bins=n_bins, p=p, weights=weights, ignore_index=ignore_index)
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

    Arguments and result are those of `classwise_calibration_error`; ``n_bins`` is the number of ranges R per class.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2]], dtype=torch.float64)
        >>> nixon_adaptive_calibration_error(probs, torch.tensor([0, 1]), n_bins=2)
        tensor(0.4500, dtype=torch.float64)

    Reference:
        Nixon et al., CVPR workshops 2019, section 3.2.
    """
    where = "nixon_adaptive_calibration_error"
    given = as_predictions(probs, labels, where=where, n_bins=n_bins, weights=weights, ignore_index=ignore_index)
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
    check_share(threshold, where=where, name="threshold")
    given = as_predictions(probs, labels, where=where, n_bins=n_bins, weights=weights, ignore_index=ignore_index)
    return _mean_range_gap(given, n_bins=n_bins, threshold=threshold)


def _positive_class(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None,
    *,
    where: str,
    n_bins: int,
    p: float = 1,
    weights: ArrayLike | None,
    ignore_index: int | None,
) -> TopLabel:
    """Check the arguments of a binary metric; ``confidence`` is the probability and ``correct`` the label of the record."""
    shape, dims = np.shape(probs), np.ndim(labels)  # type: ignore[arg-type]
    if not isinstance(probs, Predictions) and shape[dims:] in ((), (1,)):
        probs = both_classes(to_tensor(probs, where=where, name="probs").cpu().reshape(shape[:dims]), "probs")
    given = as_predictions(probs, labels, where=where, n_bins=n_bins, p=p, weights=weights, ignore_index=ignore_index)
    if given.num_classes != 2:
        raise ValueError(f"{where}: `probs` must be of two classes, got {given.num_classes}.")
    return one_vs_rest(given.probs, given.labels, given.weights, index=1)


def _largest_gap(top: TopLabel, *, n_bins: int, min_count: int, where: str) -> Tensor:
    """Largest absolute gap among the equal-width bins that hold at least ``min_count`` examples; ``[]``."""
    check_count(min_count, where=where, name="min_count")
    examples = equal_width_bins(replace(top, weights=None), n_bins=n_bins).count
    held = examples >= min_count
    if not bool(held.any()):
        most = int(examples.max())
        raise ValueError(f"{where}: `min_count` must be reached by some bin, got {min_count} where the largest holds {most}.")
    return equal_width_bins(top, n_bins=n_bins).gap[held].abs().amax()


def _monotone_bins(top: TopLabel) -> int:
    """Largest number of equal-mass bins up to which bin accuracies rise with confidence."""
    (mass, _, correct, _), size = top.rising[1].numpy(), top.size
    hits = np.diff(correct)
    accuracy = hits / np.diff(mass)
    # Means over consecutive ranges of what never falls never fall either, whatever the cuts.
    if bool((np.diff(accuracy) >= 0).all()):
        return size
    for n_bins in range(2, size + 1):
        cuts = mass_cuts(size, n_bins, total=float(mass[-1])).numpy()
        rates = np.diff(np.interp(cuts, mass, correct)) / np.diff(cuts)
        if bool((np.diff(rates) < -1e-12).any()):
            return n_bins - 1
    return size


def _mean_range_gap(given: Predictions, *, n_bins: int, threshold: float) -> Tensor:
    """Mean gap over the ranges of every class that hold something above the threshold."""
    total, ranges = torch.zeros((), dtype=torch.float64), 0
    weights = torch.ones(len(given), dtype=torch.float64) if given.weights is None else given.weights
    for k, column in enumerate(given.probs.double().unbind(1)):
        kept = column > threshold
        if not bool(kept.any()):
            continue
        hit = (given.labels[kept] == k).double()
        bins = equal_mass_bins(TopLabel(column[kept], hit, weights[kept]), n_bins=n_bins)
        total += bins.gap.abs().sum()
        ranges += int((bins.count > 0).sum())
    return total / max(ranges, 1)
