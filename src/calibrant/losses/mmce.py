"""Maximum mean calibration error, plain and weighted, exact in O(B log B)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import check_logits, check_positive
from calibrant.core.closed_form import Array, Result, closed_form
from calibrant.core.kernels import can_factor, laplace_pair_sum, pair_sum_by_numpy
from calibrant.losses.base import Penalty, Shared
from calibrant.losses.confidence import confidence_and_correct_by_torch
from calibrant.losses.logprob import widen
from calibrant.losses.rows import confidence_of_rows, name_classes

Normalization: TypeAlias = Literal["paper", "official"]
# Under the root, as in the authors' code: the slope of the root at zero stays below 5e4.
_ROOT_EPS = 1e-10


def mmce_penalty(logits: Tensor, labels: Tensor, *, scale: float = 0.4, squared: bool = False) -> Tensor:
    r"""Kernel mean of the gap between correctness and confidence; for a calibrated model it falls to 0 as the batch grows.

    With confidence :math:`c_i = \max_k q_{ik}`, :math:`q_i = \mathrm{softmax}(z_i)`, correctness
    :math:`a_i = [\arg\max_k q_{ik} = y_i]` (no gradient) and a batch of B,

    .. math:: \mathrm{MMCE}^2 = \frac{1}{B^2} \sum_{i=1}^{B} \sum_{j=1}^{B} (a_i - c_i)(a_j - c_j)\,
        e^{-|c_i - c_j| / s}

    with :math:`s` the ``scale``; pairs with i = j count. The sum is exact, by a sort and cumulative sums instead of a B x B
    kernel. The root is taken as :math:`\sqrt{x + 10^{-10}}`, so that its slope stays finite at 0.

    The paper trains with the root. The authors' TensorFlow function and its PyTorch port return the square, without it:
    ``squared=True``. At tied confidences the slope of :math:`|c_i - c_j|` is taken as 0.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        scale: Width ``s`` of the Laplace kernel, > 0; 0.4 in the paper and its code (written there as 2 * 0.2).
        squared: Return MMCE² instead of MMCE.

    Returns:
        Scalar ``[]`` in ``[0, 1]``; 0 is best. Raises ``ValueError`` if shapes disagree or the scale is not positive.

    Example:
        >>> mmce_penalty(torch.zeros(1, 2), torch.tensor([1]))  # one example, confidence 1/2, wrong
        tensor(0.5000)

    Reference:
        Kumar, Sarawagi and Jain, "Trainable calibration measures for neural networks from kernel mean embeddings",
        ICML 2018. Others cite eqs. 7 and 8 for it.
    """
    where = "mmce_penalty"
    check_logits(logits, labels, where=where, values=False)
    check_positive(scale, where=where, name="scale")
    return _kernel_mean(widen(logits), labels, groups=0, scale=scale, squared=squared, where=where)


def weighted_mmce_penalty(
    logits: Tensor,
    labels: Tensor,
    *,
    scale: float = 0.4,
    normalization: Normalization = "paper",
    squared: bool = False,
) -> Tensor:
    r"""MMCE with right and wrong predictions weighted equally, however many there are of each.

    With confidence :math:`c`, the set R of m right and the set W of n wrong predictions, and kernel
    :math:`k_{ij} = e^{-|c_i - c_j| / s}`,

    .. math:: \mathrm{MMCE}_w^2 = \sum_{i,j \in R} \frac{(1 - c_i)(1 - c_j)\,k_{ij}}{m^2}
        + \sum_{i,j \in W} \frac{c_i c_j\,k_{ij}}{n^2}
        - 2 \sum_{i \in R, j \in W} \frac{(1 - c_i)\,c_j\,k_{ij}}{m n}

    which is one pair sum :math:`\sum_{ij} v_i v_j k_{ij}` with :math:`v_i = (1 - c_i)/m` on R and :math:`-c_i/n` on W:
    exact in O(B log B). The root is taken as :math:`\sqrt{x + 10^{-10}}`. Where all predictions are right, or all are
    wrong, the penalty and its gradient are 0, as in the authors' code.

    The authors' code, and its PyTorch port, divide every mean once more by m², n² and mn
    (``normalization="official"``). That makes the term several times smaller and gives the rarer group more say; results
    published as "MMCE" with that code behave nearly like cross-entropy. Weight: 4 to 8 on text in the authors' code
    (its default 4), 2 in the port.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        scale: Width ``s`` of the Laplace kernel, > 0; 0.4 in the paper and its code.
        normalization: "paper" or "official" (as the released code).
        squared: Return the square instead of its root.

    Returns:
        Scalar ``[]``, at least 0; 0 is best. Raises ``ValueError`` if shapes disagree or an option is not one of those named.

    Example:
        >>> logits = torch.zeros(2, 2)  # one right and one wrong prediction, both with confidence 1/2
        >>> weighted_mmce_penalty(logits, torch.tensor([0, 1]), squared=True)
        tensor(0.)

    Reference:
        Kumar, Sarawagi and Jain, ICML 2018, the weighted form.
    """
    where = "weighted_mmce_penalty"
    check_logits(logits, labels, where=where, values=False)
    check_positive(scale, where=where, name="scale")
    if normalization not in ("paper", "official"):
        raise ValueError(f"{where}: `normalization` must be one of 'paper', 'official', got {normalization!r}.")
    groups = 1 if normalization == "paper" else 2
    return _kernel_mean(widen(logits), labels, groups=groups, scale=scale, squared=squared, where=where)


def _kernel_mean(scores: Tensor, labels: Tensor, *, groups: int, scale: float, squared: bool, where: str) -> Tensor:
    """Root of the sum over pairs of the gaps, each divided by the size of the batch or, ``groups`` times, of its group."""

    def by_torch(scores: Tensor, labels: Tensor) -> Tensor:
        # The closed form looks at the labels itself, and leaves it to this one to speak of bad ones.
        check_logits(scores, labels, where=where)
        confidence, correct = confidence_and_correct_by_torch(scores, labels)
        right = correct.sum()
        wrong = len(correct) - right
        # An empty group has weight 0; its divisor only has to be something.
        divisor = torch.where(correct > 0, right, wrong).clamp(min=1) ** groups if groups else len(correct)
        value = (correct - confidence) / divisor
        # The kernel is positive definite; rounding can still leave a sum of zero slightly below it.
        square = laplace_pair_sum(confidence, value, value, scale=scale).clamp(min=0)
        root = square if squared else torch.sqrt(square + _ROOT_EPS)
        return root * (right * wrong > 0) if groups else root

    def by_numpy(scores: Array, labels: Array) -> Result | None:
        return _kernel_mean_by_numpy(scores, labels, groups=groups, scale=float(scale), squared=squared)

    return closed_form(by_torch, by_numpy, scores, labels) if can_factor(scale, scores.dtype) else by_torch(scores, labels)


def _kernel_mean_by_numpy(scores: Array, labels: Array, *, groups: int, scale: float, squared: bool) -> Result | None:
    """As above, with the gradient in closed form, from the pairs back to the logits in one step."""
    if not name_classes(labels, scores.shape[1]):
        return None
    index = scores.argmax(1)
    found = confidence_of_rows(scores, index)
    if found is None:
        return None
    confidence, pull_confidence = found
    number = scores.dtype.type
    correct = index == labels
    right = int(np.count_nonzero(correct))
    wrong = len(correct) - right
    share: Any = number(1 / len(correct))
    if groups:
        share = np.where(correct, number(max(right, 1) ** -groups), number(max(wrong, 1) ** -groups))
    total, pull_pairs = pair_sum_by_numpy(confidence, (correct - confidence) * share, scale=scale)
    root = np.maximum(total, 0) if squared else np.sqrt(np.maximum(total, 0) + number(_ROOT_EPS))
    counts = number(right * wrong > 0 or not groups)

    def pull(grad: Array) -> tuple[Array]:
        outer = grad * counts * (total >= 0)
        by_confidence, by_value = pull_pairs(outer if squared else outer / (2 * root))
        return (pull_confidence(by_confidence - by_value * share),)

    return np.asarray(root * counts), pull


class MMCE(Penalty):
    """`mmce_penalty` as a module.

    Args:
        scale: Width of the Laplace kernel.
        squared: Whether to leave out the root.
        shared: ``ignore_index``, as in `Penalty`.
    """

    def __init__(self, *, scale: float = 0.4, squared: bool = False, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.scale = scale
        self.squared = squared

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return mmce_penalty(logits, labels, scale=self.scale, squared=self.squared)


class WeightedMMCE(Penalty):
    """`weighted_mmce_penalty` as a module.

    Args:
        scale: Width of the Laplace kernel.
        normalization: "paper" or "official".
        squared: Whether to leave out the root.
        shared: ``ignore_index``, as in `Penalty`.
    """

    def __init__(
        self, *, scale: float = 0.4, normalization: Normalization = "paper", squared: bool = False, **shared: Unpack[Shared]
    ) -> None:
        super().__init__(**shared)
        self.scale = scale
        self.normalization: Normalization = normalization
        self.squared = squared

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return weighted_mmce_penalty(logits, labels, scale=self.scale, normalization=self.normalization, squared=self.squared)
