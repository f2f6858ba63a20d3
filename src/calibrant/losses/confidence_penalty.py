"""The explicit confidence penalty: reward for entropy."""

from __future__ import annotations

from torch import Tensor

from calibrant.core.checks import check_logits
from calibrant.losses.base import Penalty
from calibrant.losses.confidence import probs_and_entropy
from calibrant.losses.logprob import widen


def confidence_penalty(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Negative mean entropy of the predictions.

    With :math:`q_i = \mathrm{softmax}(z_i)` over C classes and a batch of B,

    .. math:: P = -\frac{1}{B} \sum_{i=1}^{B} H(q_i), \qquad H(q) = -\sum_{k=1}^{C} q_k \log q_k .

    Entropy is summed over classes, as in the paper, whose weight is 0.1 for most tasks. The code of MbLS and CALS
    averages it over classes: their weight is C times this one's. Labels are not looked at.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``; checked and otherwise unused.

    Returns:
        Scalar ``[]`` in ``[-ln C, 0]``; small values are less confident. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> import torch
        >>> confidence_penalty(torch.zeros(3, 4), torch.tensor([0, 1, 2]))  # -ln 4
        tensor(-1.3863)

    Reference:
        Pereyra et al., "Regularizing neural networks by penalizing confident output distributions", ICLR workshop 2017,
        section 3, where no formula has a number.
    """
    check_logits(logits, labels, where="confidence_penalty")
    return -probs_and_entropy(widen(logits))[1].mean()


class ConfidencePenalty(Penalty):
    """`confidence_penalty` as a module."""

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return confidence_penalty(logits, labels)
