"""Penalties on the distances between logits: MbLS, ACLS and CPC."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from calibrant.losses.base import Penalty
from calibrant.losses.probability import checked

# Pairs of classes computed at once: 16 MB in float32.
_BLOCK = 2**22


def mbls_penalty(logits: Tensor, labels: Tensor, *, margin: float = 10.0) -> Tensor:
    r"""Mean amount by which logits fall behind the largest one by more than a margin.

    With logits :math:`z_{ik}` of a batch of B with C classes and m the ``margin``,

    .. math:: P = \frac{1}{B C} \sum_{i=1}^{B} \sum_{k=1}^{C} \bigl[ \max_j z_{ij} - z_{ik} - m \bigr]_+ .

    The gradient flows into the largest logit as well, shared evenly where several tie. The weight that goes with it is 0.1.
    Labels are not looked at.

    Args:
        logits: Scores ``[B, C]``.
        labels: Class indices ``[B]``; checked and otherwise unused.
        margin: Distance ``m`` >= 0 left unpunished; 10 in the released configuration (6 for CIFAR-10 in the paper).

    Returns:
        Scalar ``[]``, at least 0; 0 where all logits are within the margin.

    Example:
        >>> mbls_penalty(torch.tensor([[9.0, 3.0, 0.0]]), torch.tensor([0]), margin=5)  # (0 + 1 + 4) / 3
        tensor(1.6667)

    Reference:
        Liu et al., "The devil is in the margin: margin-based label smoothing for network calibration", CVPR 2022. Code:
        by-liu/MbLS, calibrate/losses/logit_margin_l1.py.
    """
    scores = checked(logits, labels, where="mbls_penalty")
    _check_not_negative("mbls_penalty", margin=margin)
    return torch.relu(scores.amax(1, keepdim=True) - margin - scores).mean()


class MbLS(Penalty, function=mbls_penalty):
    """`mbls_penalty` as a module."""


def acls_penalty(
    logits: Tensor,
    labels: Tensor,
    *,
    margin: float = 10.0,
    top_weight: float = 1.0,
    rest_weight: float = 0.1,
) -> Tensor:
    r"""Squared hinge on a large top logit, and on the logits that fall far behind it.

    With logits :math:`z_{ik}` of a batch of B with C classes, :math:`\hat z_i = \max_k z_{ik}`, sg a stop of the gradient
    and m the ``margin``,

    .. math:: R = \frac{\lambda_1}{B} \sum_{i=1}^{B} \bigl[ \hat z_i - m \bigr]_+^2
        + \frac{\lambda_2}{B (C - 1)} \sum_{i=1}^{B} \sum_{k:\, z_{ik} < \hat z_i}
        \bigl[ \mathrm{sg}(\hat z_i) - z_{ik} - m \bigr]_+^2 .

    As in the released code, every logit that ties for the largest counts in the first sum. The weight that goes with it is 0.1.
    Labels are not looked at.

    Args:
        logits: Scores ``[B, C]``.
        labels: Class indices ``[B]``; checked and otherwise unused.
        margin: ``m`` >= 0; 10 in the released code (its Tiny-ImageNet setting).
        top_weight: :math:`\lambda_1` >= 0; 1 in the released code.
        rest_weight: :math:`\lambda_2` >= 0; 0.1 in the released code.

    Returns:
        Scalar ``[]``, at least 0.

    Example:
        >>> acls_penalty(torch.tensor([[4.0, 1.0, -2.0]]), torch.tensor([0]), margin=2)  # 2² + 0.1 (1² + 4²) / 2
        tensor(4.8500)

    Reference:
        Park et al., "ACLS: adaptive and conditional label smoothing for network calibration", ICCV 2023. Code:
        cvlab-yonsei/ACLS, calibrate/losses/acls.py.
    """
    scores = checked(logits, labels, where="acls_penalty")
    _check_not_negative("acls_penalty", margin=margin, top_weight=top_weight, rest_weight=rest_weight)
    batch, num_classes = scores.shape
    largest = scores.amax(1, keepdim=True)
    # Ties with the largest are at distance 0 and so drop out of the second sum by themselves; in the first they count.
    ties = (scores.detach() == largest.detach()).sum(1, keepdim=True)
    top = (ties * torch.relu(largest - margin).square()).sum() / batch
    rest = torch.relu(largest.detach() - margin - scores).square().sum() / (batch * (num_classes - 1))
    return top_weight * top + rest_weight * rest


class ACLS(Penalty, function=acls_penalty):
    """`acls_penalty` as a module."""


def cpc_penalty(logits: Tensor, labels: Tensor, *, bdc_weight: float = 0.1, bec_weight: float = 1.0) -> Tensor:
    r"""Binary constraints between classes: the true one above every other, the others level with each other.

    With logits :math:`z`, labels :math:`y`, a batch of B and C classes, :math:`\mathrm{CPC}` is

    .. math:: -\frac{\lambda_d}{B (C - 1)} \sum_{i=1}^{B} \sum_{k \ne y_i} \log \sigma(z_{iy_i} - z_{ik})
        - \frac{\lambda_e}{2 B (C - 1)(C - 2)} \sum_{i=1}^{B} \sum_{j \ne y_i} \sum_{k \ne y_i} \log \sigma(z_{ij} - z_{ik}) .

    The pairs j = k, a constant, are counted as in the port the golden values come from. Two classes have no pair to exclude.
    The second sum has B C² terms and no smaller exact form: with 1,000 classes choose another penalty, or leave it out. Where
    the terms are many they are computed in blocks, twice, so that memory stays O(B C) plus one block.

    Args:
        logits: Scores ``[B, C]``.
        labels: Class indices ``[B]``.
        bdc_weight: :math:`\lambda_d` >= 0 of the discrimination constraints; 0.1 in the port in CALS.
        bec_weight: :math:`\lambda_e` >= 0 of the exclusion constraints; 1.0 there. 0 leaves the sum out, and its cost.

    Returns:
        Scalar ``[]``, at least 0.

    Example:
        >>> cpc_penalty(torch.zeros(1, 4), torch.tensor([0]))  # 0.1 ln 2 + 9 ln 2 / 12
        tensor(0.5892)

    Reference:
        Cheng and Vasconcelos, "Calibrating deep neural networks by pairwise constraints", CVPR 2022. A port is in
        by-liu/CALS, calibrate/losses/cpc_loss.py.
    """
    scores = checked(logits, labels, where="cpc_penalty")
    _check_not_negative("cpc_penalty", bdc_weight=bdc_weight, bec_weight=bec_weight)
    batch, num_classes = scores.shape
    true = scores.gather(1, labels.long().unsqueeze(1))
    # The true class against itself is ln 2, without gradient.
    total = bdc_weight * ((-F.logsigmoid(true - scores).sum() - batch * math.log(2)) / (batch * (num_classes - 1)))
    return total + bec_weight * _exclusion(scores, labels) if bec_weight and num_classes > 2 else total


class CPC(Penalty, function=cpc_penalty):
    """`cpc_penalty` as a module."""


def _check_not_negative(where: str, **values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise ValueError(f"{where}: `{name}` must be a number >= 0, got {value!r}.")


def _exclusion(scores: Tensor, labels: Tensor) -> Tensor:
    batch, num_classes = scores.shape
    column = torch.arange(num_classes - 1, device=labels.device)
    others = scores.gather(1, column + (column >= labels.unsqueeze(1)))
    # Whole samples, as many as make a block.
    blocks = others.split(max(1, _BLOCK // num_classes**2))
    if len(blocks) == 1:
        total = _pair_softplus(others)
    else:
        # Computed again for the gradient: pairs of many classes do not fit in memory.
        parts = [checkpoint(_pair_softplus, block, use_reentrant=False, preserve_rng_state=False) for block in blocks]
        total = torch.stack(parts).sum()
    return total / (2 * batch * (num_classes - 1) * (num_classes - 2))


def _pair_softplus(x: Tensor) -> Tensor:
    """Sum over all ordered pairs j, k of -log sigmoid(x_j - x_k), for ``x [B, M]``."""
    return -F.logsigmoid(x.unsqueeze(2) - x.unsqueeze(1)).sum()
