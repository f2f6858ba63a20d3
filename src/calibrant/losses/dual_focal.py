"""Dual focal loss, which also looks at the class that ranks right behind the true one."""

from __future__ import annotations

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.checks import check_logits
from calibrant.losses.base import Loss, Reduction, Shared
from calibrant.losses.focal import Gamma, check_gamma
from calibrant.losses.logprob import log_sum_others, minus_log_p, widen


def dual_focal_loss(logits: Tensor, labels: Tensor, *, gamma: Gamma) -> Tensor:
    r"""Focal loss that relents while a rival class lies close behind the true one.

    With :math:`q_i = \mathrm{softmax}(z_i)`, :math:`p_i = q_{iy_i}` the probability of the true class and
    :math:`r_i = \max \{ q_{ik} : q_{ik} < p_i \}` the largest one strictly below it (0 if there is none),

    .. math:: L_i = -(1 - p_i + r_i)^{\gamma_i} \log p_i .

    The gradient flows through :math:`r_i`; where several classes tie for it, the first receives it. Ties with the true class
    are not below it. Computed as :math:`\log(1 - p + r) = \log(1 - p) + \log(1 + r / (1 - p))`, exact at saturation.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        gamma: Strength, at least 0: a number, or a tensor ``[]`` or ``[B]``. It has no default: the authors choose it per
            data set by validation, and their released class defaults to 0, which is plain cross-entropy.

    Returns:
        ``[B]``, at least 0. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> dual_focal_loss(torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0]), gamma=2)
        tensor([0.4436])

    Reference:
        Tao, Dong and Xu, "Dual Focal Loss for Calibration", ICML 2023. The released code squeezes away a batch of one.
    """
    check_logits(logits, labels, where="dual_focal_loss")
    strength = check_gamma(gamma, logits, where="dual_focal_loss")
    scores = widen(logits)
    index = labels.long().unsqueeze(1)
    # The rival, the class least far below the true one, is found on detached logits and read together with that by one gather:
    # a gradient through a masked maximum costs three passes over the batch more. `threshold` masks 15 times as fast as `where`.
    fixed = scores.detach()
    gap, rival = F.threshold(fixed.gather(1, index) - fixed, 0.0, float("inf")).min(1, keepdim=True)
    true, second = scores.gather(1, torch.cat([index, rival], 1)).unbind(1)
    rest = log_sum_others(scores, index).squeeze(1)
    # With nothing below the true class every logit is at least as large, so the exponential is at most 1, and masked.
    share = torch.exp(second - rest) * (gap.squeeze(1) < float("inf"))
    odds = rest - true
    return torch.exp(strength * (F.logsigmoid(odds) + torch.log1p(share))) * minus_log_p(odds)


class DualFocalLoss(Loss):
    """`dual_focal_loss` as a module.

    Args:
        gamma: Strength, at least 0; it must be given.
        reduction: "mean", "sum" or "none".
        shared: ``ignore_index`` and ``weight``, as in `Loss`.
    """

    def __init__(self, *, gamma: float, reduction: Reduction = "mean", **shared: Unpack[Shared]) -> None:
        super().__init__(reduction=reduction, **shared)
        self.gamma = gamma

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample, ``[B]``."""
        return dual_focal_loss(logits, labels, gamma=self.gamma)
