"""Top-label calibration errors that weigh pairs of examples with a kernel of their confidences: SECE, MMCE, SKCE.

The smooth calibration error of Blasiok and Nakkiran, another thing than SECE, lives in `smooth`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from calibrant.core.checks import ArrayLike, check_positive
from calibrant.core.gauss_transform import gaussian_means, gaussian_sums
from calibrant.core.kernels import laplace_pair_sum
from calibrant.core.soft_accuracy import all_pairs_accuracy
from calibrant.core.top_label import TopLabel, check_input, reduce_top_label, top_label


def smooth_expected_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bandwidth: float = 0.05,
    accuracy: Literal["hard", "soft"] = "hard",
    leave_one_out: bool = False,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean gap between confidence and the kernel-smoothed accuracy around it (SECE).

    With confidence :math:`c_i = \max_k p_{ik}` and correctness :math:`a_i = [\arg\max_k p_{ik} = y_i]`,

    .. math:: \mathrm{SECE} = \frac{1}{N} \sum_{i=1}^{N} \Bigl| \frac{\sum_j a_j K_{ij}}{\sum_j K_{ij}} - c_i \Bigr|,
        \qquad K_{ij} = e^{-(c_i - c_j)^2 / 2h^2}

    with :math:`h` the ``bandwidth``. The sums include j = i, as the paper's limit needs: for h → 0 and distinct confidences
    SECE is the mean of :math:`|a_i - c_i|`. It is not unbiased: small h inflates it, and for large h it is positive even
    for a calibrated model, since accuracy is smoothed and confidence is not. The paper trains with h = 0.01 and
    ``accuracy="soft"`` (see `calibrant.core.soft_accuracy.all_pairs_accuracy`). Computed to rounding by a fast Gauss
    transform: a million examples take about a second.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        bandwidth: Standard deviation h of the kernel.
        accuracy: "hard" for a_i as above, "soft" for its differentiable stand-in with sharpness 100.
        leave_one_out: Leave each example out of its own smoothed accuracy (needs N >= 2).
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
        >>> smooth_expected_calibration_error(probs, torch.tensor([0, 0]), bandwidth=0.1)
        tensor(0.3500, dtype=torch.float64)

    Reference:
        Wang and Golebiowski, TMLR 2024.
    """
    where = "smooth_expected_calibration_error"
    check_positive(bandwidth, where=where, name="bandwidth")
    if accuracy not in ("hard", "soft"):
        raise ValueError(f"{where}: `accuracy` must be 'hard' or 'soft', got {accuracy!r}.")
    given = check_input(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    top = reduce_top_label(given.probs, given.labels, given.weights)
    if accuracy == "soft":
        work = given.probs.cpu().double()
        top = replace(top, correct=all_pairs_accuracy(work, given.labels.cpu()))
    if leave_one_out and len(positive(top)) < 2:
        raise ValueError(f"{where}: `leave_one_out` must have N >= 2 examples of positive weight, got 1.")
    return smoothed_accuracy_gap(top, bandwidth=bandwidth, leave_one_out=leave_one_out)


def maximum_mean_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    scale: float = 0.4,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Largest mean residual over smooth functions of confidence: the norm of a kernel mean embedding (MMCE).

    .. math:: \mathrm{MMCE} = \sqrt{ \frac{1}{N^2} \sum_{i,j} (a_i - c_i)(a_j - c_j) \, e^{-|c_i - c_j| / s} }

    with confidence :math:`c` and correctness :math:`a` as in `smooth_expected_calibration_error` and :math:`s` the
    ``scale``. Pairs with i = j count (the V-statistic), so it is positive even for a calibrated model and falls as
    :math:`1/\sqrt N`. Some published code returns the square, without the root. With weights :math:`w` a pair counts
    :math:`w_i w_j / (\sum_k w_k)^2` instead of :math:`1/N^2`. The kernel factorises after a sort: O(N log N) time.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        scale: Width s of the Laplace kernel.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
        >>> maximum_mean_calibration_error(probs, torch.tensor([0, 0]))
        tensor(0.4000, dtype=torch.float64)

    Reference:
        Kumar, Sarawagi and Jain, ICML 2018.
    """
    where = "maximum_mean_calibration_error"
    check_positive(scale, where=where, name="scale")
    top = top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    return mean_embedding_norm(top, scale=scale)


def squared_kernel_calibration_error(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    bandwidth: float = 0.1,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean product of the residuals of two different examples of similar confidence (SKCE, unbiased).

    .. math:: \mathrm{SKCE} = \frac{1}{N(N-1)} \sum_{i \ne j} (a_i - c_i)(a_j - c_j) \, e^{-(c_i - c_j)^2 / 2h^2}

    with confidence :math:`c` and correctness :math:`a` as in `smooth_expected_calibration_error` and :math:`h` the
    ``bandwidth``. Its expectation is the squared kernel calibration error, zero for a calibrated model: so it scatters
    around zero there and can be negative. With weights :math:`w` a pair counts
    :math:`w_i w_j / \sum_{k \ne l} w_k w_l` instead of :math:`1 / N(N-1)`.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        bandwidth: Standard deviation h of the kernel.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[-1, 1]``, float64; nearest 0 is best. Raises ``ValueError`` if fewer than two examples count.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
        >>> squared_kernel_calibration_error(probs, torch.tensor([0, 0]))  # 0.1 * -0.9
        tensor(-0.0900, dtype=torch.float64)

    Reference:
        Widmann, Lindsten and Zachariah, NeurIPS 2019 (SKCE, quadratic unbiased estimator), of the top label.
    """
    where = "squared_kernel_calibration_error"
    check_positive(bandwidth, where=where, name="bandwidth")
    top = top_label(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    if len(positive(top)) < 2:
        raise ValueError(f"{where}: `probs` must hold N >= 2 examples of positive weight, got 1.")
    return pair_residual_mean(top, bandwidth=bandwidth)


def positive(top: TopLabel) -> TopLabel:
    """Return the examples of positive weight; the others count for nothing, but could be 0/0."""
    if top.weights is None or bool((top.weights > 0).all()):
        return top
    kept = top.weights > 0
    return TopLabel(top.confidence[kept], top.correct[kept], top.weights[kept], top.dtype)


def smoothed_accuracy_gap(top: TopLabel, *, bandwidth: float, leave_one_out: bool = False) -> Tensor:
    """SECE of checked examples; their correctness may be a mean of several (cells of a histogram)."""
    top = positive(top)
    smooth = gaussian_means(
        top.confidence, top.correct.unsqueeze(0), bandwidth=bandwidth, weights=top.weights, leave_one_out=leave_one_out
    )
    gap = (smooth[0] - top.confidence).abs_()
    return gap.mean() if top.weights is None else top.weights @ gap / top.weights.sum()


def mean_embedding_norm(top: TopLabel, *, scale: float = 0.4) -> Tensor:
    """MMCE of checked examples."""
    residual = top.correct - top.confidence
    residual = residual / len(top) if top.weights is None else residual * (top.weights / top.weights.sum())
    # The kernel is positive definite: only rounding can bring the sum below zero.
    return laplace_pair_sum(top.confidence, residual, residual, scale=scale).clamp(min=0).sqrt()


def pair_residual_mean(top: TopLabel, *, bandwidth: float = 0.1) -> Tensor:
    """SKCE of checked examples, at least two of positive weight."""
    weights = torch.ones_like(top.confidence) if top.weights is None else top.weights
    weights = weights / weights.mean()
    residual = weights * (top.correct - top.confidence)
    smooth = gaussian_sums(top.confidence, residual.unsqueeze(0), bandwidth=bandwidth)[0]
    return residual @ (smooth - residual) / (weights.sum().square() - weights.square().sum())
