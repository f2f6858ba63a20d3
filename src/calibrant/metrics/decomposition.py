"""What the Brier score of the top label is made of: reliability, resolution, uncertainty and what happens inside bins."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.core.binning import equal_width_bins, equal_width_index
from calibrant.core.checks import ArrayLike, check_count
from calibrant.core.records import Predictions
from calibrant.metrics.scores import take_scores


@dataclass(frozen=True)
class BrierParts:
    """Brier score of the top label and its parts.

    ``score = reliability - resolution + uncertainty + within_variance - within_covariance``, to rounding.

    Attributes:
        score: Mean of (confidence - correctness)².
        reliability: Mean squared gap of the bins; 0 is best.
        resolution: Variance of accuracy between bins; large is good.
        uncertainty: Variance of correctness; no property of the confidences.
        within_variance: Variance of confidence inside bins.
        within_covariance: Twice the covariance of confidence and correctness inside bins.
    """

    score: float
    reliability: float
    resolution: float
    uncertainty: float
    within_variance: float
    within_covariance: float


def brier_decomposition(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> BrierParts:
    r"""Split the Brier score of the top label into reliability, resolution, uncertainty and two terms inside bins.

    With confidence :math:`c_i`, correctness :math:`a_i` (both of the top label), bins :math:`B_m` of
    `expected_calibration_error`, their shares :math:`w_m` and means :math:`\bar c_m, \bar a_m`, and :math:`\bar a` over all,

    .. math:: \frac1N \sum_i (c_i - a_i)^2 = \underbrace{\sum_m w_m (\bar c_m - \bar a_m)^2}_{\text{reliability}}
        - \underbrace{\sum_m w_m (\bar a_m - \bar a)^2}_{\text{resolution}}
        + \underbrace{\bar a (1 - \bar a)}_{\text{uncertainty}}
        + \underbrace{\frac1N \sum_m \sum_{i \in B_m} (c_i - \bar c_m)^2}_{\text{within variance}}
        - \underbrace{\frac2N \sum_m \sum_{i \in B_m} (a_i - \bar a_m)(c_i - \bar c_m)}_{\text{within covariance}}

    The first three are Murphy's; they are all there is only if confidences are constant inside bins. This is the score of
    one probability per example (whether the prediction is right), not `brier_score`, which sums over classes.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``; left out with a `Predictions`.
        n_bins: Number of equal-width bins.
        weights: Sample weights, shaped as the labels (those of the `Predictions` if not given).
        ignore_index: Label of examples to leave out.

    Returns:
        The parts, as plain numbers. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
        >>> parts = brier_decomposition(probs, torch.tensor([0, 0]))
        >>> round(parts.score, 4), round(parts.reliability, 4), round(parts.resolution, 4), round(parts.uncertainty, 4)
        (0.41, 0.16, 0.0, 0.25)

    Reference:
        Murphy, Journal of Applied Meteorology 1973; terms inside bins: Stephenson, Coelho and Jolliffe, Weather and
        Forecasting 2008.
    """
    where = "brier_decomposition"
    check_count(n_bins, where=where, name="n_bins")
    top = take_scores(probs, labels, where=where, weights=weights, ignore_index=ignore_index).top()
    bins = equal_width_bins(top, n_bins=n_bins)
    index = equal_width_index(top.confidence, n_bins, dtype=top.dtype)
    weight = torch.ones_like(top.confidence) if top.weights is None else top.weights
    weight = weight / weight.sum()
    accuracy = weight @ top.correct
    confidence_inside = top.confidence - bins.confidence[index]
    correct_inside = top.correct - bins.accuracy[index]
    return BrierParts(
        score=_sum(weight, (top.confidence - top.correct).square()),
        reliability=_sum(bins.weight, bins.gap.square()),
        resolution=_sum(bins.weight, (bins.accuracy - accuracy).square()),
        uncertainty=float(accuracy * (1 - accuracy)),
        within_variance=_sum(weight, confidence_inside.square()),
        within_covariance=2 * _sum(weight, correct_inside * confidence_inside),
    )


def _sum(weight: Tensor, values: Tensor) -> float:
    return float(weight @ values)
