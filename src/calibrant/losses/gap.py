"""The gap between confidence and accuracy of a batch: as a whole (DCA), per class (MDCA), or in soft bins (DECE, SB-ECE)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from calibrant.core.checks import check_choice, check_count
from calibrant.core.kernels import all_pairs_accuracy
from calibrant.losses.base import Penalty, checked, confidence_and_correct, top_of

Order: TypeAlias = Literal[1, 2]
# Added to every membership by the authors' code of DECE, which then divides by 1 + (M + 1) times it.
_MEMBERSHIP_EPS = 1e-6
# Least total membership by which a bin's sums are divided, and share of uniform membership in the label-binned form: both
# as in the authors' code of SB-ECE.
_LEAST_MASS = 1e-5
_UNIFORM_SHARE = 1e-5
# Under the root; the authors' code has none and its gradient is NaN at exactly 0.
_ROOT_EPS = 1e-12


def mdca_penalty(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Mean gap, over classes, between the mean probability of a class in the batch and its frequency there.

    .. math:: \mathrm{MDCA} = \frac{1}{C} \sum_{k=1}^{C} \Bigl| \frac{1}{B} \sum_{i=1}^{B} (q_{ik} - [y_i = k]) \Bigr| .

    The authors' scripts add it with weight 1 to focal loss with gamma 1 (their argument parser's defaults are others).

    Example:
        >>> mdca_penalty(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
        tensor(0.2500)

    Reference:
        Hebbalaguppe et al., "A stitch in time saves nine: a train-time regularizing loss for improved neural network
        calibration", CVPR 2022. Code: mdca-loss/MDCA-Calibration, solvers/loss.py.
    """
    probs = checked(logits, labels, where="mdca_penalty").softmax(1)
    share = torch.full_like(labels, 1 / len(labels), dtype=probs.dtype)
    frequency = probs.new_zeros(probs.shape[1]).scatter_add(0, labels.long(), share)
    return (probs.mean(0) - frequency).abs().mean()


class MDCA(Penalty, function=mdca_penalty):
    """`mdca_penalty` as a module."""


def dca_penalty(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Gap between mean confidence and accuracy of the batch.

    .. math:: \mathrm{DCA} = \Bigl| \frac{1}{B} \sum_{i=1}^{B} (c_i - a_i) \Bigr| .

    The authors' function adds it to cross-entropy with weight 10 by default; the comparison by Hebbalaguppe et al. has 1.

    Example:
        >>> dca_penalty(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]))
        tensor(0.2500)

    Reference:
        Liang et al., "Improved trainable calibration method for neural networks on medical imaging classification",
        BMVC 2020. Code: FOURM-LAB/DCA, loss_fn.py.
    """
    confidence, correct = confidence_and_correct(checked(logits, labels, where="dca_penalty"), labels)
    return (confidence - correct).mean().abs()


class DCA(Penalty, function=dca_penalty):
    """`dca_penalty` as a module."""


def huber_dca_penalty(logits: Tensor, labels: Tensor, *, alpha: float = 0.005) -> Tensor:
    r"""Huber loss of the gap between mean confidence and accuracy of the batch (re-implemented from the description).

    With the gap :math:`d` of `dca_penalty` before its absolute value is taken,

    .. math:: P = \begin{cases} \frac12 d^2 & |d| \le \alpha \\ \alpha\,(|d| - \frac12 \alpha) & \text{otherwise} .
        \end{cases}

    The authors add it to focal loss, with a weight to be tuned (of the order of :math:`1/\alpha`, as its slope never exceeds
    :math:`\alpha`), and prune training data along with it: `ConfidencePruner`. No code of theirs is public.

    Args:
        alpha: Gap > 0 from which the penalty grows linearly. 0.005 is our choice: well below the sampling noise of a batch.

    Example:
        >>> huber_dca_penalty(torch.zeros(4, 2), torch.tensor([0, 0, 0, 1]), alpha=0.1)  # 0.1 (0.25 - 0.05)
        tensor(0.0200)

    Reference:
        Patra et al., "Calibrating deep neural networks using explicit regularisation and dynamic data pruning", WACV 2023.
    """
    scores = checked(logits, labels, where="huber_dca_penalty", alpha=alpha)
    confidence, correct = confidence_and_correct(scores, labels)
    gap = (confidence - correct).mean()
    return torch.where(gap.abs() <= alpha, 0.5 * gap.square(), alpha * (gap.abs() - 0.5 * alpha))


class HuberDCA(Penalty, function=huber_dca_penalty):
    """`huber_dca_penalty` as a module."""


def dece_penalty(
    logits: Tensor,
    labels: Tensor,
    *,
    n_bins: int = 15,
    bin_temperature: float = 0.01,
    sharpness: float = 100.0,
) -> Tensor:
    r"""Expected calibration error made differentiable: soft bin membership and soft accuracy.

    With soft accuracy :math:`\pi_i` (`all_pairs_accuracy`), M bins and memberships

    .. math:: u_{im} = \mathrm{softmax}_m \frac{m\,c_i - \sum_{l=0}^{m-1} l/M}{t}, \quad m = 1 \dots M, \qquad
        \mathrm{DECE} = \frac{1}{B} \sum_{m=1}^{M} \Bigl| \sum_{i=1}^{B} u_{im} (\pi_i - c_i) \Bigr|

    where :math:`t` is the ``bin_temperature``. Neighbouring memberships are equal exactly at the edges m/M, so for t → 0 and an
    infinite sharpness this is ECE over M equal-width bins. As in the authors' code, u becomes
    :math:`(u + 10^{-6}) / (1 + (M + 1) 10^{-6})`. The gradient flows through u, c and :math:`\pi`. That code can be
    differentiated once only and takes O(B C²); here it is twice differentiable in O(B C + B M).

    Args:
        n_bins: Number of bins ``M``; 15 in the released code.
        bin_temperature: Softness ``t`` of the bins, > 0; 0.01 in the released code.
        sharpness: Slope of the soft accuracy, > 0; 100 in the released code.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # both with confidence 0.8808, one of them right
        >>> dece_penalty(logits, torch.tensor([0, 1]))
        tensor(0.3808)

    Reference:
        Bohdal, Yang and Hospedales, "Meta-calibration: learning of model calibration using differentiable expected
        calibration error", TMLR 2023. Code: ondrejbohdal/meta-calibration, Losses/dece.py.
    """
    scores = checked(logits, labels, where="dece_penalty", bin_temperature=bin_temperature)
    check_count(n_bins, where="dece_penalty", name="n_bins")
    probs = scores.softmax(1)
    confidence, _ = top_of(probs, labels)
    accuracy = all_pairs_accuracy(probs, labels, sharpness=sharpness)
    m = torch.arange(1, n_bins + 1, dtype=confidence.dtype, device=confidence.device)
    member = ((confidence.unsqueeze(1) * m - m * (m - 1) / (2 * n_bins)) / bin_temperature).softmax(1)
    member = (member + _MEMBERSHIP_EPS) / (1 + (n_bins + 1) * _MEMBERSHIP_EPS)
    return (member * (accuracy - confidence).unsqueeze(1)).mean(0).abs().sum()


class DECE(Penalty, function=dece_penalty):
    """`dece_penalty` as a module."""


def sb_ece_penalty(logits: Tensor, labels: Tensor, *, n_bins: int = 15, bin_temperature: float = 0.01, p: Order = 2) -> Tensor:
    r"""Expected calibration error with a soft membership of every sample in every bin.

    With bin centres :math:`\xi_m = (m - 1/2)/M` and memberships

    .. math:: u_{im} = \mathrm{softmax}_m \bigl( -(c_i - \xi_m)^2 / T \bigr), \qquad
        \mathrm{SB\text{-}ECE}_p = \Bigl( \sum_{m=1}^{M} \frac{S_m}{B} \bigl| A_m - C_m \bigr|^p \Bigr)^{1/p}

    where :math:`S_m = \sum_i u_{im}`, :math:`A_m` and :math:`C_m` are the u-weighted means of correctness and confidence
    (sums divided by at least 1e-5), and :math:`T` is the ``bin_temperature``. The root of p = 2 is taken as
    :math:`\sqrt{x + 10^{-12}}`; the released code has the bare root, whose gradient is NaN at 0.

    Args:
        n_bins: Number of bins ``M``; 15, as usual for ECE.
        bin_temperature: Softness ``T`` of the bins, > 0. The paper tunes it; 0.01 lets about two bins share a sample.
        p: Order of the norm: 1, or 2 as in the paper and the released code.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # both with confidence 0.8808, one of them right
        >>> sb_ece_penalty(logits, torch.tensor([0, 1]))
        tensor(0.3808)

    Reference:
        Karandikar et al., "Soft calibration objectives for neural networks", NeurIPS 2021. Code:
        google/uncertainty-baselines, experimental/caltrain/secondary_losses.py.
    """
    where = "sb_ece_penalty"
    check_choice(p, (1, 2), where=where, name="p")
    scores = checked(logits, labels, where=where, bin_temperature=bin_temperature)
    confidence, correct = confidence_and_correct(scores, labels)
    member = _member(confidence, n_bins=n_bins, bin_temperature=bin_temperature, lowest=0.0, where=where)
    mass = member.sum(0)
    gap = (member * (correct - confidence).unsqueeze(1)).sum(0) / mass.clamp(min=_LEAST_MASS)
    share = mass / len(confidence)
    if p == 1:
        return (share * gap.abs()).sum()
    return torch.sqrt((share * gap.square()).sum() + _ROOT_EPS)


class SBECE(Penalty, function=sb_ece_penalty):
    """`sb_ece_penalty` as a module."""


def label_binned_sb_ece_penalty(logits: Tensor, labels: Tensor, *, n_bins: int = 15, bin_temperature: float = 0.01) -> Tensor:
    r"""Squared soft-binned ECE in which each confidence is compared with the accuracy of its bins.

    In the notation of `sb_ece_penalty`, but with bins dividing [1/C, 1] and memberships
    :math:`\tilde u = (1 - 10^{-5})\,u + 10^{-5} / M`,

    .. math:: L = \frac{1}{B} \sum_{i=1}^{B} \sum_{m=1}^{M} \tilde u_{im} (\tilde A_m - c_i)^2

    where :math:`\tilde A_m` is the :math:`\tilde u`-weighted mean of correctness in bin m, without a root. The authors use this
    form to recalibrate after training.

    Args:
        n_bins: Number of bins ``M``.
        bin_temperature: Softness ``T`` of the bins, > 0; as in `sb_ece_penalty`.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # both with confidence 0.8808, one of them right
        >>> label_binned_sb_ece_penalty(logits, torch.tensor([0, 1]))  # 0.3808 squared
        tensor(0.1450)

    Reference:
        Karandikar et al., NeurIPS 2021. Code: google/uncertainty-baselines, experimental/caltrain/secondary_losses.py.
    """
    where = "label_binned_sb_ece_penalty"
    scores = checked(logits, labels, where=where, bin_temperature=bin_temperature)
    confidence, correct = confidence_and_correct(scores, labels)
    lowest = 1 / scores.shape[1]
    member = _member(confidence, n_bins=n_bins, bin_temperature=bin_temperature, lowest=lowest, where=where)
    member = (1 - _UNIFORM_SHARE) * member + _UNIFORM_SHARE / n_bins
    accuracy = (member * correct.unsqueeze(1)).sum(0) / member.sum(0)
    return (member * (accuracy - confidence.unsqueeze(1)).square()).sum() / len(confidence)


class LabelBinnedSBECE(Penalty, function=label_binned_sb_ece_penalty):
    """`label_binned_sb_ece_penalty` as a module."""


def _member(confidence: Tensor, *, n_bins: int, bin_temperature: float, lowest: float, where: str) -> Tensor:
    """Membership ``[B, M]`` in bins that divide ``[lowest, 1]``."""
    check_count(n_bins, where=where, name="n_bins")
    step = torch.arange(n_bins, dtype=confidence.dtype, device=confidence.device)
    centre = lowest + (step + 0.5) * ((1 - lowest) / n_bins)
    return ((confidence.unsqueeze(1) - centre).square() / -bin_temperature).softmax(1)
