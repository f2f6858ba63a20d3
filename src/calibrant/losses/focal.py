"""Focal loss with one gamma or one per sample, and the weight it puts on cross-entropy's gradient.

Rules that choose gamma live beside it: `flsd`, `scheduled_focal`, `adafocal`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.checks import check_logits, range_if_free
from calibrant.core.closed_form import Array, Result, closed_form
from calibrant.losses.base import Loss, Reduction, Shared, reduce_loss
from calibrant.losses.logprob import minus_log_p, true_class_log_odds, widen
from calibrant.losses.rows import exponentials, flat_positions, large_enough, name_classes, row_sums, scale_rows

Gamma: TypeAlias = "float | Tensor"


def focal_loss(logits: Tensor, labels: Tensor, *, gamma: Gamma = 3.0) -> Tensor:
    r"""Cross-entropy scaled down where the true class is already probable.

    With :math:`p_i = \mathrm{softmax}(z_i)_{y_i}` the probability of the true class,

    .. math:: L_i = -(1 - p_i)^{\gamma_i} \log p_i .

    Computed from the log-odds :math:`t = \log\frac{1-p}{p}` as :math:`e^{\gamma \log\sigma(t)} \cdot (-\log\sigma(-t))`, which
    is exact and twice differentiable in logits and gamma, at gamma = 0 and at saturation included. The usual ``(1 - p) **
    gamma`` is not: in float32 its gradient is NaN from a logit gap of 17 on for gamma < 1.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        gamma: Focusing strength, at least 0: a number, or a tensor ``[]`` or ``[B]`` (which receives a gradient). 0 is
            cross-entropy. The default 3 is the "FL-3" of Mukhoti et al.; their released code defaults to 1.

    Returns:
        ``[B]``, at least 0. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> focal_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), gamma=2)
        tensor([0.1733])

    Reference:
        Lin et al., ICCV 2017, eq. 4; for calibration Mukhoti et al., NeurIPS 2020.
    """
    return reduced_focal(logits, labels, gamma=gamma, reduction="none", where="focal_loss")


def focal_gradient_weight(logits: Tensor, labels: Tensor, *, gamma: Gamma = 3.0) -> Tensor:
    r"""Factor by which focal loss scales cross-entropy's gradient of each sample.

    With :math:`p_i` the probability of the true class and :math:`q_i` the softmax,
    :math:`\partial L_i / \partial z_i = g(p_i, \gamma_i)\,(q_i - \mathrm{onehot}(y_i))` where

    .. math:: g(p, \gamma) = (1-p)^\gamma - \gamma\, p\, (1-p)^{\gamma-1} \log p
        = (1-p)^\gamma \Bigl(1 + \gamma\,\frac{-p \log p}{1 - p}\Bigr) .

    The second form, whose fraction lies in [0, 1], is the one computed: nothing in it overflows as p goes to 1. It is
    differentiable in logits and gamma.

    Args:
        logits: Scores ``[B, C]``.
        labels: Class indices ``[B]``.
        gamma: As in `focal_loss`.

    Returns:
        ``[B]``, at least 0; 1 everywhere for gamma = 0, above 1 for improbable and below 1 for probable true classes.

    Example:
        >>> focal_gradient_weight(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), gamma=1)
        tensor([0.8466])

    Reference:
        Mukhoti et al., NeurIPS 2020, proposition 1.
    """
    check_logits(logits, labels, where="focal_gradient_weight")
    strength = check_gamma(gamma, logits, where="focal_gradient_weight")
    odds = true_class_log_odds(widen(logits), labels)
    # -p log p / (1 - p) = e^-t softplus(t); below t = -18 the product is 0 * inf, and log1p(x)/x = 1 - x/2 to 1e-16.
    bounded = odds.clamp(min=-18.0)
    direct = torch.exp(-bounded) * minus_log_p(bounded)
    ratio = torch.where(odds < -18.0, 1 - odds.clamp(max=0.0).exp() / 2, direct)
    return torch.exp(strength * F.logsigmoid(odds)) * (1 + strength * ratio)


class FocalLoss(Loss):
    """`focal_loss` as a module.

    Args:
        gamma: Focusing strength, at least 0.
        reduction: "mean", "sum" or "none".
        shared: ``ignore_index`` and ``weight``, as in `Loss`.
    """

    def __init__(self, *, gamma: float = 3.0, reduction: Reduction = "mean", **shared: Unpack[Shared]) -> None:
        super().__init__(reduction=reduction, **shared)
        self.gamma = gamma

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample, ``[B]``."""
        return focal_loss(logits, labels, gamma=self.gamma)

    def _reduced(self, logits: Tensor, labels: Tensor, inputs: Mapping[str, Tensor], reduction: Reduction | None) -> Tensor:
        return reduced_focal(logits, labels, gamma=self.gamma, reduction=reduction or "none", where="focal_loss")


def reduced_focal(logits: Tensor, labels: Tensor, *, gamma: Gamma, reduction: Reduction, where: str) -> Tensor:
    """Focal loss of a batch, reduced in the same step: that alone is a fifth of the time of a small batch."""
    # The closed form looks at the labels itself, and leaves it to the other to speak of bad ones.
    check_logits(logits, labels, where=where, values=False)
    strength = check_gamma(gamma, logits, where=where)
    scores = widen(logits)

    def by_torch(scores: Tensor, labels: Tensor, strength: Gamma = strength) -> Tensor:
        check_logits(scores, labels, where=where)
        return reduce_loss(focal_from_log_odds(true_class_log_odds(scores, labels), strength), reduction)

    def by_numpy(scores: Array, labels: Array, strength: Any = strength) -> Result | None:
        return focal_by_numpy(scores, labels, strength, reduction=reduction)

    if isinstance(strength, Tensor):
        return closed_form(
            lambda scores, strength, labels: by_torch(scores, labels, strength),
            lambda scores, strength, labels: by_numpy(scores, labels, strength),
            scores,
            strength,
            labels,
        )
    return closed_form(by_torch, by_numpy, scores, labels)


def focal_from_log_odds(odds: Tensor, gamma: Gamma) -> Tensor:
    """Focal loss ``[B]`` of samples whose log-odds against the true class are ``odds [B]``."""
    return torch.exp(gamma * F.logsigmoid(odds)) * minus_log_p(odds)


def check_gamma(gamma: Gamma, logits: Tensor, *, where: str) -> Gamma:
    """Return ``gamma`` as a number or as a tensor of the precision computed in; raise if it cannot be one per sample."""
    if type(gamma) is float and 0 <= gamma < math.inf:
        return gamma
    if isinstance(gamma, Tensor):
        if gamma.ndim and gamma.shape != logits.shape[:1]:
            raise ValueError(f"{where}: `gamma` must be a number, [] or [B] = [{len(logits)}], got {list(gamma.shape)}.")
        low, high = range_if_free(gamma, 0.0, 0.0)
        # Finite differences at gamma = 0, and steps of an optimiser, may go just below it.
        if not (low >= -1e-3 and high < math.inf):
            raise ValueError(f"{where}: `gamma` must be finite and >= 0, got {high if low >= -1e-3 else low:.4g}.")
        return gamma.to(widen(logits).dtype)
    if not isinstance(gamma, (int, float, np.number)) or not 0 <= gamma < math.inf:
        raise ValueError(f"{where}: `gamma` must be a finite number >= 0, got {gamma!r}.")
    # A float64 of numpy would lift everything it meets to its precision.
    return float(gamma)


def focal_by_numpy(
    scores: Array, labels: Array, gamma: Array | float | Callable[[Array], Array], *, reduction: Reduction
) -> Result | None:
    r"""Focal loss, and its gradients by ``scores [B, C]`` and gamma, in closed form; None where it cannot be used.

    With :math:`r = (1 - p) / p` from one sum over the other classes nothing cancels: :math:`p = 1 / (1 + r)`,
    :math:`1 - p = r p` and :math:`-\log p = \log(1 + r)`. A gamma that is a function is one of p ``[B]``, without gradient.
    """
    if not name_classes(labels, scores.shape[1]):
        return None
    weights = exponentials(scores)
    if weights is None:
        return None
    at, flat = flat_positions(labels, scores.shape[1]), weights.reshape(-1)
    own = flat[at]
    flat[at] = 0
    others = row_sums(weights)
    if not (large_enough(own) and large_enough(others)):
        return None
    ratio = others / own
    p = 1 / (1 + ratio)
    rest = ratio * p
    strength = gamma(p) if callable(gamma) else gamma
    surprise, power = np.log1p(ratio), rest**strength
    if reduction == "mean":
        power *= 1 / len(p)
    value = power * surprise
    # Here and not in `pull`: numpy's operations are slow to start again after autograd's, which have filled the caches.
    slope = power * (strength * p * surprise + rest)
    slope /= others
    flat[at] = -others

    def pull(grad: Array) -> tuple[Array, ...]:
        scale_rows(weights, slope * grad)
        if not isinstance(gamma, np.ndarray):
            return (weights,)
        # Not from `value`: the caller may have written into it. log(1 - p) not from `rest`, which rounds to 1 where p is small.
        by_gamma = grad * power * surprise * -np.log1p(own / others)
        return weights, by_gamma if gamma.ndim else np.asarray(np.add.reduce(by_gamma))

    return value if reduction == "none" else np.asarray(np.add.reduce(value)), pull
