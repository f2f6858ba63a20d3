"""Top-label calibration errors that adapt to the data: equal-mass bins, debiasing, the monotone sweep, Kolmogorov-Smirnov.

Nixon's per-class ACE, another thing often called adaptive, lives in `classwise`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import (
    MassCurve,
    bins_of_curve,
    check_input,
    equal_mass_bins,
    mass_curve,
    norm_of_bins,
    reduce_top_label,
    top_label,
)
from calibrant.core.checks import ArrayLike, check_count
from calibrant.metrics.binned import check_norm
from calibrant.metrics.conventions import reproduce


def adaptive_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
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

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        n_bins: Number of bins ``M``.
        p: Order of the norm, from 1 to ``math.inf``.
        convention: Name of a source whose number to reproduce (see `calibrant.metrics.conventions`), or None for ours.
        weights: Sample weights, shaped as the labels; bins then hold equal weight.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]], dtype=torch.float64)
        >>> adaptive_calibration_error(probs, torch.tensor([0, 0, 0, 1]), n_bins=2)
        tensor(0.1500, dtype=torch.float64)

    Reference:
        Mukhoti et al., NeurIPS 2020; equal-mass bins as in Nguyen and O'Connor, EMNLP 2015.
    """
    where = "adaptive_calibration_error"
    check_count(n_bins, where=where, name="n_bins")
    check_norm(p, where=where)
    given = check_input(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    if convention is not None:
        return reproduce(given, convention=convention, metric="adaptive", n_bins=n_bins, p=p, where=where)
    top = reduce_top_label(given.probs, given.labels, given.weights)
    return norm_of_bins(equal_mass_bins(top, n_bins=n_bins), p=p)


def debiased_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
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

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        n_bins: Number of bins ``M``.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]], dtype=torch.float64)
        >>> debiased_calibration_error(probs, torch.tensor([1, 1, 0, 1]), n_bins=2)
        tensor(0.4975, dtype=torch.float64)

    Reference:
        Kumar, Liang and Ma, NeurIPS 2019, section 5.
    """
    where = "debiased_calibration_error"
    check_count(n_bins, where=where, name="n_bins")
    top = top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    return debiased_error(mass_curve(top), n_bins=n_bins)


def debiased_error(curve: MassCurve, *, n_bins: int) -> Tensor:
    """Debiased L2 calibration error over ``M`` equal-mass bins of a sorted record; ``[]``."""
    cuts = curve.cuts(n_bins)
    bins = bins_of_curve(curve, cuts)
    effective = bins.count**2 / curve.between(cuts, curve.squares).clamp_min(torch.finfo(torch.float64).tiny)
    # The tolerance keeps a bin of two equally weighted examples, whose effective number rounds to just below two.
    held = effective >= 2 - 1e-9
    variance = bins.accuracy * (1 - bins.accuracy) / (effective - 1).where(held, 1.0)
    square = torch.where(held, bins.weight * (bins.gap**2 - variance), 0.0).sum()
    return square.clamp_min(0).sqrt()


def sweep_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    p: float = 1,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Adaptive calibration error with the number of bins chosen by the data.

    The number of equal-mass bins is :math:`M^* = \max\{M \le N : \bar a_1 \le \dots \le \bar a_{M'} \text{ for every }
    M' \le M\}`: bins are added as long as their accuracies rise with confidence. The value is
    `adaptive_calibration_error` with :math:`M^*` bins.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        p: Order of the norm, from 1 to ``math.inf``; the paper's experiments use 2.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.3, 0.7]], dtype=torch.float64)
        >>> sweep_calibration_error(probs, torch.tensor([0, 0, 0, 1]))
        tensor(0.3000, dtype=torch.float64)

    Reference:
        Roelofs et al., AISTATS 2022, equation 8.
    """
    where = "sweep_calibration_error"
    check_norm(p, where=where)
    top = top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    curve = mass_curve(top)
    return norm_of_bins(bins_of_curve(curve, curve.cuts(sweep_bins(curve))), p=p)


def sweep_bins(curve: MassCurve) -> int:
    """Largest number of equal-mass bins up to which bin accuracies rise with confidence."""
    mass, correct = curve.mass.numpy(), curve.correct.numpy()
    hits = np.diff(correct)
    accuracy = hits / np.diff(mass)
    # Means over consecutive ranges of what never falls never fall either, whatever the cuts.
    if bool((np.diff(accuracy) >= 0).all()):
        return curve.size
    # Before the first right prediction and after the last wrong one bins have accuracy 0 and 1: only those between can fall.
    first = mass[np.flatnonzero(accuracy > 0)[0]]
    last = mass[np.flatnonzero(accuracy < 1)[-1] + 1]
    scale = mass[-1] / curve.size
    for n_bins in range(2, curve.size + 1):
        part, more = divmod(curve.size, n_bins)
        low, high = max(int(first / scale) // (part + 1) - 1, 0), min(int(last / scale) // part + 2, n_bins)
        k = np.arange(low, high + 1)
        cuts = (k * part + np.minimum(k, more)) * scale
        rates = np.diff(np.interp(cuts, mass, correct)) / np.diff(cuts)
        if bool((np.diff(rates) < -1e-12).any()):
            return n_bins - 1
    return curve.size


def kolmogorov_smirnov_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Largest cumulated difference between confidence and accuracy over the confidences (KS error), free of bins.

    .. math:: \mathrm{KS} = \max_{t} \Bigl| \frac1N \sum_{i : c_i \le t} (a_i - c_i) \Bigr|

    with confidence :math:`c_i` and correctness :math:`a_i`. Tied confidences enter together.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
        >>> kolmogorov_smirnov_error(probs, torch.tensor([0, 0]))
        tensor(0.3000, dtype=torch.float64)

    Reference:
        Gupta et al., ICLR 2021, section 3.
    """
    where = "kolmogorov_smirnov_error"
    curve = mass_curve(top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index))
    return (curve.correct - curve.confidence).abs().amax() / curve.mass[-1]
