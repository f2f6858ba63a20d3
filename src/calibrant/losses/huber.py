"""The Huber form of the gap between confidence and accuracy, and the pruning of training data that goes with it.

Re-implemented from the description in the paper: its code was not released.
"""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from calibrant.core.checks import check_count, check_logits, check_positive
from calibrant.losses.base import Penalty, Shared
from calibrant.losses.confidence import confidence_and_correct


def huber_dca_penalty(logits: Tensor, labels: Tensor, *, alpha: float = 0.005) -> Tensor:
    r"""Huber loss of the gap between mean confidence and accuracy of the batch (re-implemented from the description).

    With confidence :math:`c_i = \max_k q_{ik}`, :math:`q_i = \mathrm{softmax}(z_i)`, correctness
    :math:`a_i = [\arg\max_k q_{ik} = y_i]` (no gradient) and :math:`d = \frac1B \sum_i (c_i - a_i)` over a batch of B,

    .. math:: P = \begin{cases} \frac12 d^2 & |d| \le \alpha \\ \alpha\,(|d| - \frac12 \alpha) & \text{otherwise} .
        \end{cases}

    The authors add it to focal loss, with a weight to be tuned: of the order of :math:`1/\alpha`, since its slope never
    exceeds :math:`\alpha`. No code of theirs is public; where this differs from what they ran cannot be told.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        alpha: Gap > 0 from which the penalty grows linearly. 0.005 is our choice: well below the sampling noise of a batch's
            gap, so that in practice only tiny gaps are on the quadratic part.

    Returns:
        Scalar ``[]``, at least 0; 0 is best. Raises ``ValueError`` if shapes disagree or alpha is not positive.

    Example:
        >>> huber_dca_penalty(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]), alpha=0.1)  # 0.1 (0.25 - 0.05)
        tensor(0.0200)

    Reference:
        Patra et al., "Calibrating deep neural networks using explicit regularisation and dynamic data pruning", WACV 2023.
    """
    where = "huber_dca_penalty"
    check_logits(logits, labels, where=where)
    check_positive(alpha, where=where, name="alpha")
    confidence, correct = confidence_and_correct(logits, labels)
    gap = (confidence - correct).mean()
    return torch.where(gap.abs() <= alpha, 0.5 * gap.square(), alpha * (gap.abs() - 0.5 * alpha))


class HuberDCA(Penalty):
    """`huber_dca_penalty` as a module.

    Args:
        alpha: Gap from which the penalty grows linearly.
        shared: ``ignore_index``, as in `Penalty`.
    """

    def __init__(self, *, alpha: float = 0.005, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.alpha = alpha

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return huber_dca_penalty(logits, labels, alpha=self.alpha)


class ConfidencePruner(nn.Module):
    r"""Drops, every few epochs, the training samples of lowest confidence (re-implemented from the description).

    The confidence of sample n is remembered as a moving average, so that one odd epoch does not decide,

    .. math:: m_n \leftarrow \rho\, m_n + (1 - \rho) \max_k q_{nk}

    with :math:`\rho` the ``ema`` and the first confidence seen taken as it is. After every ``every`` epochs the ``fraction``
    of the kept samples whose :math:`m_n` is lowest leaves for good. Samples never seen stay.

    The paper prunes low-confidence samples "every few epochs" by a moving average; its numbers are not given in public
    code, so the defaults here are ours.

    Args:
        num_samples: Size of the training set.
        ema: Share in [0, 1) of the old average kept at an update.
        fraction: Share in [0, 1) of the kept samples dropped at each pruning.
        every: Epochs between prunings.

    Attributes:
        confidence: Buffer ``[num_samples]``, the moving averages; NaN where never seen.
        kept: Buffer ``[num_samples]``, True for samples still in training.
        epoch: Buffer ``[]``, epochs ended so far.

    Example:
        >>> pruner = ConfidencePruner(num_samples=4, fraction=0.25, every=1)
        >>> logits = torch.tensor([[3.0, 0.0], [1.0, 0.0], [2.0, 0.0], [4.0, 0.0]])
        >>> pruner.update(logits, indices=torch.arange(4))
        >>> pruner.end_epoch()
        >>> pruner.kept_indices()
        tensor([0, 2, 3])

    Reference:
        Patra et al., WACV 2023.
    """

    confidence: Tensor
    kept: Tensor
    epoch: Tensor

    def __init__(self, *, num_samples: int, ema: float = 0.7, fraction: float = 0.1, every: int = 20) -> None:
        super().__init__()
        where = type(self).__name__
        check_count(num_samples, where=where, name="num_samples")
        check_count(every, where=where, name="every")
        for name, value in (("ema", ema), ("fraction", fraction)):
            if not 0 <= value < 1:
                raise ValueError(f"{where}: `{name}` must lie in [0, 1), got {value!r}.")
        self.num_samples = num_samples
        self.ema = ema
        self.fraction = fraction
        self.every = every
        self.register_buffer("confidence", torch.full((num_samples,), float("nan")))
        self.register_buffer("kept", torch.ones(num_samples, dtype=torch.bool))
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self, logits: Tensor, *, indices: Tensor) -> None:
        """Take in the confidences of a batch: ``logits [B, C]`` of the samples ``indices [B]``. No device synchronisation."""
        new = logits.detach().to(self.confidence.dtype).softmax(1).amax(1)
        old = self.confidence[indices]
        self.confidence[indices] = torch.where(old.isnan(), new, self.ema * old + (1 - self.ema) * new)

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Count an epoch and, if it is one of those, prune."""
        self.epoch += 1
        if int(self.epoch) % self.every:
            return
        drop = int(self.fraction * int(self.kept.sum()))
        rank = torch.where(self.kept & ~self.confidence.isnan(), self.confidence, float("inf"))
        drop = min(drop, int(rank.isfinite().sum()))
        self.kept[torch.argsort(rank, stable=True)[:drop]] = False

    def kept_indices(self) -> Tensor:
        """Return the positions ``[K]`` of the samples still in training, ascending: what a sampler draws from."""
        return self.kept.nonzero().squeeze(1)

    def __repr__(self) -> str:
        return f"ConfidencePruner(num_samples={self.num_samples}, ema={self.ema}, fraction={self.fraction}, every={self.every})"
