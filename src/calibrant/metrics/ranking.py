"""How well confidence ranks right predictions above wrong ones: risk-coverage area and AUROC of failure detection.

Ranking is not calibration: any increasing transform of the confidences leaves these numbers as they are.
"""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.core.checks import ArrayLike
from calibrant.core.top_label import TopLabel, top_label

# Confidences that differ by no more than this part of themselves are equal but for rounding in double precision.
_ROUNDING = 1e-15


def area_under_risk_coverage(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean error rate of the k most confident predictions, over all k (AURC).

    With the examples sorted by falling confidence :math:`c_{(1)} \ge c_{(2)} \ge \dots` and errors
    :math:`e_{(i)} = 1 - a_{(i)}`,

    .. math:: \mathrm{AURC} = \frac{1}{N} \sum_{k=1}^{N} \frac{1}{k} \sum_{i=1}^{k} e_{(i)}

    Examples of equal confidence have no order: the value is the mean over all their orders, so that it does not depend on
    the order of the samples. A group of W ties with error rate :math:`\rho`, after S examples with E errors, then adds
    :math:`\rho W + (E - S\rho)(H_{S+W} - H_S)` with harmonic numbers H. Weights are scaled to a mean of one and taken as
    fractional numbers of tied examples, H being continued by the digamma function.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; lower is better. Its least value depends on the error rate. Raises
        ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], dtype=torch.float64)
        >>> area_under_risk_coverage(probs, torch.tensor([0, 0, 1]))  # (0 + 1/2 + 1/3) / 3
        tensor(0.2778, dtype=torch.float64)

    Reference:
        Geifman, Uziel and El-Yaniv, ICLR 2019.
    """
    top = top_label(probs, labels, where="area_under_risk_coverage", weights=weights, ignore_index=ignore_index)
    return risk_coverage_area(top)


def failure_detection_auroc(
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Chance that a right prediction is more confident than a wrong one (AUROC of confidence as an error detector).

    .. math:: \mathrm{AUROC} = \frac{1}{R \, (N - R)} \sum_{i : a_i = 1} \; \sum_{j : a_j = 0}
        \bigl( [c_i > c_j] + \tfrac12 [c_i = c_j] \bigr)

    with confidence :math:`c`, correctness :math:`a` and :math:`R = \sum_i a_i`. With weights a pair counts
    :math:`w_i w_j` and the product in front becomes that of the two sums of weights.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        weights: Sample weights, shaped as the labels.
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 1 is best, 0.5 is chance. nan where all predictions are right or all are wrong,
        since there is nothing to detect. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], dtype=torch.float64)
        >>> failure_detection_auroc(probs, torch.tensor([0, 0, 1]))
        tensor(0.5000, dtype=torch.float64)

    Reference:
        Hendrycks and Gimpel, ICLR 2017.
    """
    top = top_label(probs, labels, where="failure_detection_auroc", weights=weights, ignore_index=ignore_index)
    return separation_area(top)


def risk_coverage_area(top: TopLabel, *, size: float | None = None) -> Tensor:
    """AURC of checked examples, whose correctness may be a mean of several (cells of a histogram).

    Args:
        top: Confidence, correctness and weights.
        size: Number of examples that the weights stand for; those of positive weight if not given.

    Returns:
        Scalar ``[]``, float64.
    """
    weight, error = _tied_sums(top)
    number = float(len(top) if top.weights is None else (top.weights > 0).sum()) if size is None else size
    scale = number / weight.sum()
    weight, error = weight.flip(0) * scale, error.flip(0) * scale
    after = weight.cumsum(0)
    before, errors_before = after - weight, error.cumsum(0) - error
    rate = error / weight
    total: Tensor = (error + (errors_before - before * rate) * _harmonic_difference(before, weight)).sum()
    return total / number


def _harmonic_difference(start: Tensor, width: Tensor) -> Tensor:
    """H(start + width) - H(start) for harmonic numbers H continued by digamma, to rounding."""
    near = torch.digamma(start + width + 1) - torch.digamma(start + 1)
    # Far out the two are nearly equal, and their difference is multiplied by ``start``: digamma(u + 1/2) is expanded as
    # log u + 1/24u^2 - 7/960u^4 and subtracted term by term; the next term is below 1e-20.
    low, high = start + 0.5, start + width + 0.5
    inverse, squares = 1 / low + 1 / high, 1 / low.square() + 1 / high.square()
    far = torch.log1p(width / low) - width / (low * high) * inverse * (1 / 24 - 7 / 960 * squares)
    return torch.where(start < 1000, near, far)


def separation_area(top: TopLabel) -> Tensor:
    """AUROC of confidence for correctness of checked examples; nan if all are right or all wrong."""
    weight, wrong = _tied_sums(top)
    right = weight - wrong
    lower_wrong = wrong.cumsum(0) - wrong / 2
    return right @ lower_wrong / (right.sum() * wrong.sum())


def _tied_sums(top: TopLabel) -> tuple[Tensor, Tensor]:
    """Weight and weighted errors of each distinct confidence, rising; confidences without weight are left out.

    What differs by rounding alone, as votes of a forest do once they are divided by their sum, is one confidence.
    """
    confidence, order = torch.sort(top.confidence)
    group = (confidence.diff(prepend=confidence[:1]) > _ROUNDING * confidence).cumsum(0)
    weights = torch.ones_like(confidence) if top.weights is None else top.weights[order]
    weight = torch.bincount(group, weights=weights)
    error = torch.bincount(group, weights=weights * (1 - top.correct[order]))
    return weight[weight > 0], error[weight > 0]
