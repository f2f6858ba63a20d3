"""KDE-ECE: confidence against accuracy smoothed with a Beta kernel, leaving each sample out of its own estimate."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias, Unpack

import torch
from torch import Tensor

from calibrant.core.checks import check_logits, check_positive
from calibrant.losses.base import Penalty, Shared
from calibrant.losses.confidence import full_precision
from calibrant.losses.logprob import true_class_log_odds, widen

Order: TypeAlias = Literal[1, 2]
# Confidence at which the kernel is evaluated is held this far from 0 and 1, where its logarithm is infinite.
_EDGE = 1e-6


def kde_ece_penalty(logits: Tensor, labels: Tensor, *, bandwidth: float = 0.01, p: Order = 1) -> Tensor:
    r"""Mean gap between each confidence and a Beta-kernel estimate of accuracy there, from the other samples.

    With confidence :math:`c_i = \max_k q_{ik}`, :math:`q_i = \mathrm{softmax}(z_i)`, correctness
    :math:`a_i = [\arg\max_k q_{ik} = y_i]` (no gradient), a batch of B and :math:`\mathrm{Beta}(\cdot; \alpha, \beta)` the
    density,

    .. math:: \mathrm{ECE}^{\mathrm{KDE}}_p = \frac{1}{B} \sum_{i=1}^{B} \Bigl|
        \frac{\sum_{j \ne i} k_{ij}\, a_j}{\sum_{j \ne i} k_{ij}} - c_i \Bigr|^p, \qquad
        k_{ij} = \mathrm{Beta}\Bigl( c_i;\; \tfrac{c_j}{b} + 1,\; \tfrac{1 - c_j}{b} + 1 \Bigr)

    with :math:`b` the ``bandwidth`` and no p-th root. In log space a factor that depends on i alone drops
    out of the ratio, which leaves a softmax over j of :math:`c_j \operatorname{logit}(c_i) / b - \ln \mathrm{B}(\cdot)`: one
    product over pairs, never 0/0. :math:`\operatorname{logit}(c_i)` is read from the logits, where it does not round to
    infinity, and held within that of 1e-6 and 1 - 1e-6; the released code is NaN at a confidence of 1.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        bandwidth: ``b`` > 0; the kernel's standard deviation is about :math:`\sqrt{b\,c\,(1 - c)}`. The authors choose it on
            held-out predictions by leave-one-out likelihood; the default 0.01 is our choice, 0.05 wide at c = 1/2.
        p: Exponent of the gap, 1 or 2.

    Returns:
        Scalar ``[]`` in ``[0, 1]``; 0 is best. A single sample has no others: 0. Raises ``ValueError`` if shapes disagree or
        a number is out of range.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # both with confidence 0.8808, the other one right or wrong
        >>> kde_ece_penalty(logits, torch.tensor([0, 1]))  # (0.8808 + 0.1192) / 2
        tensor(0.5000)

    Reference:
        Popordanoska, Sayer and Blaschko, "A consistent and differentiable Lp canonical calibration error estimator",
        NeurIPS 2022, eq. 9, there for whole probability vectors with a Dirichlet kernel; here the top-label form.
    """
    where = "kde_ece_penalty"
    check_logits(logits, labels, where=where)
    check_positive(bandwidth, where=where, name="bandwidth")
    if p not in (1, 2):
        raise ValueError(f"{where}: `p` must be 1 or 2, got {p!r}.")
    scores = widen(logits)
    top = scores.detach().argmax(1)
    odds = -true_class_log_odds(scores, top)
    confidence = odds.sigmoid()
    if len(confidence) < 2:
        return confidence[:0].sum()
    correct = (top == labels).to(scores.dtype)
    with full_precision(scores):
        smoothed = _beta_weights(confidence, odds, bandwidth=bandwidth) @ correct
    gap = smoothed - confidence
    return gap.abs().mean() if p == 1 else gap.square().mean()


def _beta_weights(confidence: Tensor, odds: Tensor, *, bandwidth: float) -> Tensor:
    """Leave-one-out weights ``[B, B]``, rows summing to one."""
    edge = math.log((1 - _EDGE) / _EDGE)
    # ln B(c/b + 1, (1 - c)/b + 1) without its last term, the same for all j.
    log_beta = torch.lgamma(confidence / bandwidth + 1) + torch.lgamma((1 - confidence) / bandwidth + 1)
    log_kernel = torch.addr(-log_beta.unsqueeze(0), odds.clamp(-edge, edge) / bandwidth, confidence)
    own = torch.eye(len(confidence), dtype=torch.bool, device=confidence.device)
    return log_kernel.masked_fill(own, float("-inf")).softmax(1)


class KDEECE(Penalty):
    """`kde_ece_penalty` as a module.

    Args:
        bandwidth: Bandwidth of the Beta kernel.
        p: Exponent of the gap, 1 or 2.
        shared: ``ignore_index``, as in `Penalty`.
    """

    def __init__(self, *, bandwidth: float = 0.01, p: Order = 1, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.bandwidth = bandwidth
        self.p: Order = p

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return kde_ece_penalty(logits, labels, bandwidth=self.bandwidth, p=self.p)
