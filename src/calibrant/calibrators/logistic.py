"""Many small logistic regressions at once, one a class: the fit of Platt and beta calibration."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_MOST_STEPS = 100
_MOST_HALVINGS = 30


def fit_logistic(features: Tensor, answers: Tensor, weights: Tensor, *, ridge: Tensor, centre: Tensor) -> Tensor:
    r"""Coefficients of least penalised cross-entropy, by Newton's method with step halving.

    .. math:: \sum_i w_i \bigl[\log(1 + e^{s_i}) - t_i s_i\bigr] + \tfrac12 \sum_p r_p (\theta_p - c_p)^2, \qquad s = F \theta

    Args:
        features: F ``[K, N, P]``, of order one in each column.
        answers: Targets t in ``[0, 1]``, ``[K, N]``.
        weights: Weights w ``[N]``.
        ridge: Strengths r ``[K, P]``, positive.
        centre: Centre c ``[K, P]``, where the search starts.

    Returns:
        ``[K, P]``.

    Example:
        >>> ones = torch.ones(1, 4, 1, dtype=torch.float64)
        >>> answers = torch.tensor([[1.0, 1.0, 1.0, 0.0]], dtype=torch.float64)
        >>> zero = torch.zeros(1, 1, dtype=torch.float64)
        >>> fit_logistic(ones, answers, torch.ones(4, dtype=torch.float64), ridge=zero + 1e-12, centre=zero).sigmoid()
        tensor([[0.7500]], dtype=torch.float64)
    """

    def loss(theta: Tensor) -> Tensor:
        score = (features @ theta.unsqueeze(2)).squeeze(2)
        fit = ((functional.softplus(score) - answers * score) * weights).sum(1)
        return fit + 0.5 * (ridge * (theta - centre) ** 2).sum(1)

    theta, value = centre.clone(), loss(centre)
    for _ in range(_MOST_STEPS):
        probs = (features @ theta.unsqueeze(2)).squeeze(2).sigmoid()
        slope = (features * ((probs - answers) * weights).unsqueeze(2)).sum(1) + ridge * (theta - centre)
        bend = features.transpose(1, 2) @ (features * (probs * (1 - probs) * weights).unsqueeze(2)) + torch.diag_embed(ridge)
        step = torch.linalg.solve(bend, slope)
        size, slack = torch.ones_like(value), 1e-13 * (1 + value.abs())
        for _ in range(_MOST_HALVINGS):
            worse = loss(theta - size.unsqueeze(1) * step) > value + slack
            if not bool(worse.any()):
                break
            size = torch.where(worse, size / 2, size)
        else:
            # No downhill step is left for these: they stay where they are.
            size = torch.where(worse, torch.zeros_like(size), size)
        theta = theta - size.unsqueeze(1) * step
        last, value = value, loss(theta)
        # A second small gain in a row is not awaited: Newton's error is squared by every step.
        if bool((last - value <= 1e-12 * (1 + value.abs())).all()):
            break
    return theta
