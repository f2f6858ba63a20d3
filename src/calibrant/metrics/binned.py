"""Top-label calibration errors over equal-width bins: expected, maximum and average, and the bins themselves.

Equal-mass bins live in `adaptive`, one number per class in `classwise`, one probability per example in `binary`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import (
    TopLabel,
    check_input,
    equal_mass_bins,
    equal_width_bins,
    equal_width_index,
    norm_of_bins,
    reduce_top_label,
    top_label,
)
from calibrant.core.checks import ArrayLike, check_count
from calibrant.core.records import Bins
from calibrant.metrics.conventions import reproduce


def expected_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
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
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        n_bins: Number of bins ``M``.
        p: Order of the norm, from 1 to ``math.inf``.
        convention: Name of a source whose number to reproduce (see `calibrant.metrics.conventions`), or None for ours.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2]], dtype=torch.float64)
        >>> expected_calibration_error(probs, torch.tensor([0, 1]), n_bins=2)
        tensor(0.3500, dtype=torch.float64)

    Reference:
        Naeini, Cooper and Hauskrecht, AAAI 2015; edges as in Guo et al., ICML 2017.
    """
    where = "expected_calibration_error"
    check_count(n_bins, where=where, name="n_bins")
    check_norm(p, where=where)
    given = check_input(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    if convention is not None:
        return reproduce(given, convention=convention, metric="expected", n_bins=n_bins, p=p, where=where)
    return width_error(reduce_top_label(given.probs, given.labels, given.weights), n_bins=n_bins, p=p)


def maximum_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
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

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        n_bins: Number of bins ``M``.
        min_count: Examples that a bin must hold to be considered.
        convention: Name of a source whose number to reproduce (see `calibrant.metrics.conventions`), or None for ours.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

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
    check_count(n_bins, where=where, name="n_bins")
    given = check_input(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    if convention is not None:
        if min_count != 1:
            raise ValueError(f"{where}: `min_count` must be 1 with a `convention`, got {min_count!r}.")
        return reproduce(given, convention=convention, metric="maximum", n_bins=n_bins, where=where)
    top = reduce_top_label(given.probs, given.labels, given.weights)
    return largest_gap(top, n_bins=n_bins, min_count=min_count, where=where)


def average_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
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

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        n_bins: Number of bins ``M``.
        convention: Name of a source whose number to reproduce (see `calibrant.metrics.conventions`), or None for ours.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.4, 0.6]], dtype=torch.float64)
        >>> average_calibration_error(probs, torch.tensor([0, 0]), n_bins=10)
        tensor(0.3500, dtype=torch.float64)

    Reference:
        Neumann, Zisserman and Vedaldi, NeurIPS MLITS workshop 2018.
    """
    where = "average_calibration_error"
    check_count(n_bins, where=where, name="n_bins")
    given = check_input(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    if convention is not None:
        return reproduce(given, convention=convention, metric="average", n_bins=n_bins, where=where)
    bins = equal_width_bins(reduce_top_label(given.probs, given.labels, given.weights), n_bins=n_bins)
    return bins.gap[bins.count > 0].abs().mean()


def reliability_bins(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    binning: Literal["width", "mass"] = "width",
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Bins:
    r"""Group examples by confidence: the content of a reliability diagram.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        n_bins: Number of bins ``M``.
        binning: "width" for the bins ``(k/M, (k+1)/M]``, "mass" for bins of equal size with tied confidences shared.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Count, mean confidence and accuracy of every bin, and the edges. Raises ``ValueError`` on an unknown ``binning``.

    Example:
        >>> bins = reliability_bins([[0.75, 0.25], [0.5, 0.5], [0.25, 0.75]], [0, 1, 1], n_bins=2)
        >>> bins.count.tolist(), bins.confidence.tolist(), bins.accuracy.tolist()
        ([1.0, 2.0], [0.5, 0.75], [0.0, 1.0])

    Reference:
        DeGroot and Fienberg, The Statistician 1983.
    """
    where = "reliability_bins"
    check_count(n_bins, where=where, name="n_bins")
    if binning not in ("width", "mass"):
        raise ValueError(f"{where}: `binning` must be 'width' or 'mass', got {binning!r}.")
    top = top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    return equal_width_bins(top, n_bins=n_bins) if binning == "width" else equal_mass_bins(top, n_bins=n_bins)


def check_norm(p: float, *, where: str) -> None:
    """Raise unless ``p`` is the order of a norm: a number from 1 to infinity."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not p >= 1:
        raise ValueError(f"{where}: `p` must be a number >= 1 (`math.inf` for the largest gap), got {p!r}.")


def largest_gap(top: TopLabel, *, n_bins: int, min_count: int, where: str) -> Tensor:
    """Largest absolute gap among the equal-width bins that hold at least ``min_count`` examples of positive weight; ``[]``."""
    check_count(min_count, where=where, name="min_count")
    bins = equal_width_bins(top, n_bins=n_bins)
    examples = bins.count
    if top.weights is not None:
        present = replace(top, weights=(top.weights > 0).double())
        examples = equal_width_bins(present, n_bins=n_bins).count
    held = examples >= min_count
    if not bool(held.any()):
        most = int(examples.max())
        raise ValueError(f"{where}: `min_count` must be reached by some bin, got {min_count} where the largest holds {most}.")
    return bins.gap[held].abs().amax()


def width_error(top: TopLabel, *, n_bins: int, p: float = 1) -> Tensor:
    """Norm of order ``p`` of the gaps over equal-width bins of a top-label (or binary) record; ``[]``."""
    if p != 1 or top.weights is not None:
        return norm_of_bins(equal_width_bins(top, n_bins=n_bins), p=p)
    # With p = 1 and no weights the bin counts cancel: only the summed residual of every bin is needed.
    index = equal_width_index(top.confidence, n_bins, dtype=top.dtype)
    sums = torch.zeros(n_bins, dtype=torch.float64).scatter_add_(0, index, top.confidence - top.correct)
    return torch.tensor(float(np.abs(sums.numpy()).sum()) / len(top), dtype=torch.float64)
