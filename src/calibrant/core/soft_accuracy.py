"""A differentiable stand-in for "the prediction is right", shared by DECE and SECE as losses and as metrics."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.core.checks import check_positive


def all_pairs_accuracy(probs: Tensor, labels: Tensor, *, sharpness: float = 100.0) -> Tensor:
    r"""Soft correctness of every example: one minus the soft number of classes ranked above the true one.

    .. math:: \pi_i = \Bigl[ 1 - \sum_{k \ne y_i} \sigma\bigl( t\,(p_{ik} - p_{iy_i}) \bigr) \Bigr]_+

    with probabilities :math:`p`, labels :math:`y`, the logistic function :math:`\sigma` and :math:`t` the ``sharpness``. The
    soft rank of Qin et al. is taken of the true class alone, which needs O(N C) time and memory where the published code
    compares all pairs of classes in O(N C²).

    It is 1 where the true class wins clearly, 0.5 where two classes tie, 0 where it loses. It underrates right predictions
    of low confidence among many classes: with C = 100 and the rest uniform it is 0.99 at a top probability of 0.10, 0.77 at
    0.07 and 0 (without gradient) at 0.05. Raise the sharpness where that matters.

    Args:
        probs: Probabilities ``[N, C]``, float32 or float64.
        labels: Class indices ``[N]``.
        sharpness: Slope ``t`` of the comparison. 100 is the published default (called a temperature there, but multiplied).

    Returns:
        ``[N]`` in ``[0, 1]``, differentiable in ``probs``. Raises ``ValueError`` on a sharpness that is not positive.

    Example:
        >>> all_pairs_accuracy(torch.tensor([[0.9, 0.1], [0.5, 0.5], [0.2, 0.8]]), torch.tensor([0, 0, 0]))
        tensor([1.0000, 0.5000, 0.0000])

    Reference:
        Qin, Liu and Li, Information Retrieval 2010; used by Bohdal, Yang and Hospedales, TMLR 2023.
    """
    check_positive(sharpness, where="all_pairs_accuracy", name="sharpness")
    true = probs.gather(1, labels.long().unsqueeze(1))
    # The true class compares with itself as 1/2, which the constant takes out.
    beaten_by = torch.sigmoid(sharpness * (probs - true)).sum(1) - 0.5
    return torch.relu(1 - beaten_by)
