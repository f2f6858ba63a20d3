"""Scores that are no calibration errors: log-likelihood, Brier score and its parts, error rate, signed gap, ranking.

A `Predictions` of logits keeps what probabilities round away. Ranking (AURC, AUROC) is blind to any increasing transform of
the confidences.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.core.binning import (
    TopLabel,
    equal_width_bins,
    equal_width_index,
    in_chunks,
    score_rows,
    top_label,
)
from calibrant.core.checks import ArrayLike
from calibrant.core.records import Predictions, as_predictions

__all__ = [
    "BrierParts",
    "area_under_risk_coverage",
    "brier_decomposition",
    "brier_score",
    "error_rate",
    "failure_detection_auroc",
    "negative_log_likelihood",
    "signed_calibration_gap",
]

# Confidences that differ by no more than this part of themselves are equal but for rounding in double precision.
_ROUNDING = 1e-15


def negative_log_likelihood(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean negative log-likelihood of the labels, in nats.

    .. math:: \mathrm{NLL} = -\frac1N \sum_{i=1}^{N} \log p_{i y_i}

    A label of probability zero makes it infinite: no value is clipped. float32 probabilities underflow to zero for a label
    104 nats below the top; a `Predictions` of logits does not, since their log-softmax is taken in float64.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``; left out with a `Predictions`.
        weights: Sample weights, shaped as the labels (those of the `Predictions` if not given).
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, inf]``, float64; 0 is best.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
        >>> negative_log_likelihood(probs, torch.tensor([0, 0]))  # -(log 0.9 + log 0.2) / 2
        tensor(0.8574, dtype=torch.float64)

    Reference:
        Good, Journal of the Royal Statistical Society B 1952.
    """
    given = as_predictions(probs, labels, where="negative_log_likelihood", weights=weights, ignore_index=ignore_index)
    return weighted_mean(nll_and_brier(given)[0], given.weights)


def brier_score(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean squared distance between the probabilities and the one-hot label, summed over classes.

    .. math:: \mathrm{Brier} = \frac1N \sum_{i=1}^{N} \sum_{k=1}^{C} \bigl( p_{ik} - [y_i = k] \bigr)^2

    Some libraries halve it, or divide by C.

    The arguments are those of `negative_log_likelihood`.

    Returns:
        Scalar ``[]`` in ``[0, 2]``, float64; 0 is best.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
        >>> brier_score(probs, torch.tensor([0, 0]))  # (0.02 + 1.28) / 2
        tensor(0.6500, dtype=torch.float64)

    Reference:
        Brier, Monthly Weather Review 1950.
    """
    given = as_predictions(probs, labels, where="brier_score", weights=weights, ignore_index=ignore_index)
    return weighted_mean(nll_and_brier(given)[1], given.weights)


def error_rate(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Share of wrong predictions.

    .. math:: \frac1N \sum_{i=1}^{N} \bigl[ \arg\max_k p_{ik} \ne y_i \bigr]

    Where several classes tie for the top, the first one is the prediction.

    The arguments are those of `negative_log_likelihood`; the result is in ``[0, 1]``, and 0 is best.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
        >>> error_rate(probs, torch.tensor([0, 0]))
        tensor(0.5000, dtype=torch.float64)
    """
    top = top_label(probs, labels, where="error_rate", weights=weights, ignore_index=ignore_index)
    return weighted_mean(1 - top.correct, top.weights)


def signed_calibration_gap(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean confidence minus accuracy: which way the model errs.

    .. math:: \frac1N \sum_{i=1}^{N} (c_i - a_i)

    with confidence :math:`c_i = \max_k p_{ik}` and correctness :math:`a_i = [\arg\max_k p_{ik} = y_i]`.

    The arguments are those of `negative_log_likelihood`.

    Returns:
        Scalar ``[]`` in ``[-1, 1]``, float64; positive is over-confident, negative under-confident. Gaps of both signs may
        cancel to 0.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
        >>> signed_calibration_gap(probs, torch.tensor([0, 0]))
        tensor(0.3500, dtype=torch.float64)
    """
    top = top_label(probs, labels, where="signed_calibration_gap", weights=weights, ignore_index=ignore_index)
    return weighted_mean(top.confidence - top.correct, top.weights)


def area_under_risk_coverage(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
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

    The arguments are those of `negative_log_likelihood`.

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
    weight, error = _tied_sums(top)
    scale = top.size / weight.sum()
    weight, error = weight.flip(0) * scale, error.flip(0) * scale
    before, errors_before = weight.cumsum(0) - weight, error.cumsum(0) - error
    total: Tensor = (error + (errors_before - before * error / weight) * _harmonic_difference(before, weight)).sum()
    return total / top.size


def failure_detection_auroc(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Chance that a right prediction is more confident than a wrong one (AUROC of confidence as an error detector).

    .. math:: \mathrm{AUROC} = \frac{1}{R \, (N - R)} \sum_{i : a_i = 1} \; \sum_{j : a_j = 0}
        \bigl( [c_i > c_j] + \tfrac12 [c_i = c_j] \bigr)

    with confidence :math:`c`, correctness :math:`a` and :math:`R = \sum_i a_i`. With weights a pair counts
    :math:`w_i w_j` and the product in front becomes that of the two sums of weights.

    The arguments are those of `negative_log_likelihood`.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 1 is best, 0.5 is chance. nan where all predictions are right or all are wrong,
        since there is nothing to detect.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], dtype=torch.float64)
        >>> failure_detection_auroc(probs, torch.tensor([0, 0, 1]))
        tensor(0.5000, dtype=torch.float64)

    Reference:
        Hendrycks and Gimpel, ICLR 2017.
    """
    top = top_label(probs, labels, where="failure_detection_auroc", weights=weights, ignore_index=ignore_index)
    weight, wrong = _tied_sums(top)
    right = weight - wrong
    lower_wrong = wrong.cumsum(0) - wrong / 2
    return right @ lower_wrong / (right.sum() * wrong.sum())


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

    The arguments are those of `negative_log_likelihood`, and ``n_bins``, the number of equal-width bins.

    Returns:
        The parts, as plain numbers.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=torch.float64)
        >>> parts = brier_decomposition(probs, torch.tensor([0, 0]))
        >>> round(parts.score, 4), round(parts.reliability, 4), round(parts.resolution, 4), round(parts.uncertainty, 4)
        (0.41, 0.16, 0.0, 0.25)

    Reference:
        Murphy, Journal of Applied Meteorology 1973; terms inside bins: Stephenson, Coelho and Jolliffe, Weather and
        Forecasting 2008.
    """
    top = top_label(probs, labels, where="brier_decomposition", n_bins=n_bins, weights=weights, ignore_index=ignore_index)
    bins = equal_width_bins(top, n_bins=n_bins)
    index = equal_width_index(top.confidence, n_bins, dtype=top.dtype)
    weight = top.mass / top.mass.sum()
    accuracy = weight @ top.correct
    confidence_inside = top.confidence - bins.confidence[index]
    correct_inside = top.correct - bins.accuracy[index]
    return BrierParts(
        score=float(weight @ (top.confidence - top.correct).square()),
        reliability=float(bins.weight @ bins.gap.square()),
        resolution=float(bins.weight @ (bins.accuracy - accuracy).square()),
        uncertainty=float(accuracy * (1 - accuracy)),
        within_variance=float(weight @ confidence_inside.square()),
        within_covariance=2 * float(weight @ (correct_inside * confidence_inside)),
    )


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of ``values [N]``."""
    return values.mean() if weights is None else weights @ values / weights.sum()


def nll_and_brier(given: Predictions) -> tuple[Tensor, Tensor]:
    """Negative log-likelihood and Brier score of every example ``[N]``."""
    chunks = in_chunks(given.scores, given.labels)
    parts = [score_rows(*chunk, are_logits=given.has_logits)[2:] for chunk in chunks]
    nll, brier = (torch.cat(values) for values in zip(*parts, strict=True))
    return nll, brier


def _harmonic_difference(start: Tensor, width: Tensor) -> Tensor:
    """H(start + width) - H(start) for harmonic numbers H continued by digamma, to rounding."""
    near = torch.digamma(start + width + 1) - torch.digamma(start + 1)
    # Far out the two are nearly equal, and their difference is multiplied by ``start``: digamma(u + 1/2) is expanded as
    # log u + 1/24u^2 - 7/960u^4 and subtracted term by term; the next term is below 1e-20.
    low, high = start + 0.5, start + width + 0.5
    inverse, squares = 1 / low + 1 / high, 1 / low.square() + 1 / high.square()
    far = torch.log1p(width / low) - width / (low * high) * inverse * (1 / 24 - 7 / 960 * squares)
    return torch.where(start < 1000, near, far)


def _tied_sums(top: TopLabel) -> tuple[Tensor, Tensor]:
    """Weight and weighted errors of each distinct confidence, rising.

    What differs by rounding alone, as votes of a forest do once they are divided by their sum, is one confidence.
    """
    confidence, order = torch.sort(top.confidence)
    group = (confidence.diff(prepend=confidence[:1]) > _ROUNDING * confidence).cumsum(0)
    weights = top.mass[order]
    return torch.bincount(group, weights=weights), torch.bincount(group, weights=weights * (1 - top.correct[order]))
