"""MDCA and DCA: the gap between mean confidence and mean accuracy of a batch, per class or for the top label."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.core.checks import check_logits
from calibrant.losses.base import Penalty
from calibrant.losses.confidence import confidence_and_correct
from calibrant.losses.logprob import widen


def mdca_penalty(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Mean gap, over classes, between the mean probability of a class in the batch and its frequency there.

    With :math:`q_i = \mathrm{softmax}(z_i)` over C classes, labels :math:`y_i` and batch size B,

    .. math:: \mathrm{MDCA} = \frac{1}{C} \sum_{k=1}^{C} \Bigl| \frac{1}{B} \sum_{i=1}^{B} q_{ik}
        - \frac{1}{B} \sum_{i=1}^{B} [y_i = k] \Bigr| .

    The weight that goes with it is 1 on focal loss with gamma 1 in the authors' scripts (their argument parser's defaults of
    10 and 5 are not what the paper used).

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.

    Returns:
        Scalar ``[]`` in ``[0, 2/C]``; 0 is best. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> mdca_penalty(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
        tensor(0.2500)

    Reference:
        Hebbalaguppe et al., "A stitch in time saves nine: a train-time regularizing loss for improved neural network
        calibration", CVPR 2022.
    """
    check_logits(logits, labels, where="mdca_penalty")
    probs = widen(logits).softmax(1)
    share = torch.full_like(labels, 1 / len(labels), dtype=probs.dtype)
    frequency = probs.new_zeros(probs.shape[1]).scatter_add(0, labels.long(), share)
    return (probs.mean(0) - frequency).abs().mean()


def dca_penalty(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Gap between mean confidence and accuracy of the batch.

    With confidence :math:`c_i = \max_k q_{ik}`, :math:`q_i = \mathrm{softmax}(z_i)`, and correctness
    :math:`a_i = [\arg\max_k q_{ik} = y_i]` over a batch of B,

    .. math:: \mathrm{DCA} = \Bigl| \frac{1}{B} \sum_{i=1}^{B} c_i - \frac{1}{B} \sum_{i=1}^{B} a_i \Bigr| .

    Correctness carries no gradient. The authors' released function adds it to cross-entropy with a weight of 10 by default;
    the comparison by Hebbalaguppe et al. has 1.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.

    Returns:
        Scalar ``[]`` in ``[0, 1]``; 0 is best. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> dca_penalty(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
        tensor(0.2500)

    Reference:
        Liang et al., "Improved trainable calibration method for neural networks on medical imaging classification",
        BMVC 2020.
    """
    check_logits(logits, labels, where="dca_penalty")
    confidence, correct = confidence_and_correct(logits, labels)
    return (confidence - correct).mean().abs()


class MDCA(Penalty):
    """`mdca_penalty` as a module."""

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return mdca_penalty(logits, labels)


class DCA(Penalty):
    """`dca_penalty` as a module."""

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return dca_penalty(logits, labels)
