"""Calibration errors of a binary problem stated as one probability per example: that of the positive class.

Binary is not top-label. Of the two columns ``[1 - p, p]`` a top-label metric takes the larger one and asks whether the
prediction was right, so that p = 0.1 with label 0 counts as confidence 0.9 and correct; a binary metric bins p itself, from
0 to 1, and asks how often the positive class occurred. The numbers differ, and neither is wrong: with p = 0.2 and p = 0.8
both positive the binary gap is 0.8 in one bin and 0.2 in another, while the top-label bin of confidence 0.8 is half right.
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.core.binning import TopLabel, equal_mass_bins, norm_of_bins
from calibrant.core.checks import ArrayLike, check_count, check_label_values, check_weights, to_tensor
from calibrant.core.labels import read_labels
from calibrant.metrics.binned import check_norm, largest_gap, width_error


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
    which bins the larger of the two: see the head of this module.

    Args:
        probs: Probability of the positive class ``[N]`` (or any shape), in ``[0, 1]``.
        labels: 0 or 1 (or booleans), shaped as ``probs``.
        n_bins: Number of bins ``M``.
        p: Order q of the norm, from 1 to ``math.inf``.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> binary_expected_calibration_error([0.2, 0.8], [1, 1])
        tensor(0.5000, dtype=torch.float64)

    Reference:
        Naeini, Cooper and Hauskrecht, AAAI 2015.
    """
    where = "binary_expected_calibration_error"
    check_count(n_bins, where=where, name="n_bins")
    check_norm(p, where=where)
    given = positive_class(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    return width_error(given, n_bins=n_bins, p=p)


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

    The bins are those of `binary_expected_calibration_error`.

    Args:
        probs: Probability of the positive class ``[N]`` (or any shape), in ``[0, 1]``.
        labels: 0 or 1 (or booleans), shaped as ``probs``.
        n_bins: Number of bins ``M``.
        min_count: Examples that a bin must hold to be considered.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if no bin holds ``min_count`` examples.

    Example:
        >>> binary_maximum_calibration_error([0.2, 0.8], [1, 1])
        tensor(0.8000, dtype=torch.float64)

    Reference:
        Naeini, Cooper and Hauskrecht, AAAI 2015.
    """
    where = "binary_maximum_calibration_error"
    check_count(n_bins, where=where, name="n_bins")
    given = positive_class(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    return largest_gap(given, n_bins=n_bins, min_count=min_count, where=where)


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

    Args:
        probs: Probability of the positive class ``[N]`` (or any shape), in ``[0, 1]``.
        labels: 0 or 1 (or booleans), shaped as ``probs``.
        n_bins: Number of bins ``M``.
        p: Order of the norm, from 1 to ``math.inf``.
        weights: Sample weights, shaped as the labels; bins then hold equal weight.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> binary_adaptive_calibration_error([0.1, 0.3, 0.8, 1.0], [0, 1, 1, 1], n_bins=2)
        tensor(0.2000, dtype=torch.float64)

    Reference:
        Nguyen and O'Connor, EMNLP 2015.
    """
    where = "binary_adaptive_calibration_error"
    check_count(n_bins, where=where, name="n_bins")
    check_norm(p, where=where)
    given = positive_class(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    return norm_of_bins(equal_mass_bins(given, n_bins=n_bins), p=p)


def positive_class(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    where: str,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> TopLabel:
    """Check the arguments of a binary metric; ``confidence`` is the probability and ``correct`` the label of the record."""
    score = to_tensor(probs, where=where, name="probs")
    # Numbers that are whole are looked for only where the arguments are not swapped.
    shape = score.shape if score.is_floating_point() else ()
    target = read_labels(labels, shape, where=where, ignore_index=ignore_index)
    weight = None if weights is None else to_tensor(weights, where=where, name="weights").cpu().double()
    _check_binary_shapes(score, target, where=where)
    if weight is not None:
        check_weights(weight, target, where=where)
    dtype = score.dtype
    value, target = score.cpu().double().flatten(), target.cpu().long().flatten()
    weight = None if weight is None else weight.flatten()
    if ignore_index is not None:
        kept = target != ignore_index
        value, target, weight = value[kept], target[kept], None if weight is None else weight[kept]
        if weight is not None and len(target):
            check_weights(weight, target, where=where)
    check_label_values(target, 2, where=where)
    low, high = (float(v) for v in torch.aminmax(value))
    if not (low >= 0 and high <= 1):
        if low != low:
            raise ValueError(f"{where}: `probs` must be finite, got NaN in row {int(value.isnan().nonzero()[0])}.")
        raise ValueError(
            f"{where}: `probs` must lie in [0, 1], got values from {low:.4g} to {high:.4g}. "
            "They look like logits: pass `torch.sigmoid(logits)`."
        )
    return TopLabel(value, target.double(), weight, dtype)


def _check_binary_shapes(probs: Tensor, labels: Tensor, *, where: str) -> None:
    if labels.is_floating_point() and not probs.is_floating_point():
        raise ValueError(f"{where}: `probs` must be floating point, got {probs.dtype}. The arguments look swapped.")
    if not probs.is_floating_point():
        raise ValueError(f"{where}: `probs` must be floating point, got {probs.dtype}.")
    if probs.shape != labels.shape:
        columns = probs.ndim == labels.ndim + 1
        hint = " Pass `probs[:, 1]` of two columns, or use the metrics without `binary_`." if columns else ""
        raise ValueError(f"{where}: `labels` must be {list(probs.shape)} as the probs, got {list(labels.shape)}.{hint}")
    if labels.is_complex():
        raise ValueError(f"{where}: `labels` must be 0 or 1 as integers, got {labels.dtype}.")
    if probs.numel() == 0:
        raise ValueError(f"{where}: `probs` must hold at least one example, got {list(probs.shape)}.")
