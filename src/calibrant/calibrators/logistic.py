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
    # Examples last, where memory is read in one stride.
    across = features.transpose(1, 2).contiguous()

    def loss(theta: Tensor) -> tuple[Tensor, Tensor]:
        score = (theta.unsqueeze(1) @ across).squeeze(1)
        fit = (functional.softplus(score) - answers * score) @ weights
        return fit + 0.5 * (ridge * (theta - centre) ** 2).sum(1), score

    theta = centre.clone()
    value, score = loss(theta)
    for _ in range(_MOST_STEPS):
        probs = score.sigmoid()
        slope = (across @ ((probs - answers) * weights).unsqueeze(2)).squeeze(2) + ridge * (theta - centre)
        bend = (across * (probs * (1 - probs) * weights).unsqueeze(1)) @ across.transpose(1, 2) + torch.diag_embed(ridge)
        step = torch.linalg.solve(bend, slope)
        size, slack = torch.ones_like(value), 1e-13 * (1 + value.abs())
        for _ in range(_MOST_HALVINGS):
            found, score = loss(theta - size.unsqueeze(1) * step)
            worse = found > value + slack
            if not bool(worse.any()):
                break
            size = torch.where(worse, size / 2, size)
        else:
            # No downhill step is left for these: they stay where they are.
            size = torch.where(worse, torch.zeros_like(size), size)
            found, score = loss(theta - size.unsqueeze(1) * step)
        theta = theta - size.unsqueeze(1) * step
        last, value = value, found
        # A second small gain in a row is not awaited: Newton's error is squared by every step.
        if bool((last - value <= 1e-12 * (1 + value.abs())).all()):
            break
    return theta
