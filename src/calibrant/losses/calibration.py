"""Penalties on the calibration error of a batch.

The gap between confidence and accuracy as a whole (DCA), per class (MDCA) and in soft bins (DECE, SB-ECE); or of every sample
and its neighbours by a kernel (MMCE, SECE, SKCE, KDE-ECE).
"""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from calibrant.core.checks import check_choice, check_count
from calibrant.core.kernels import all_pairs_accuracy, gaussian_exponents, gaussian_weights, laplace_pair_sum
from calibrant.losses.base import Penalty, checked, confidence_and_correct, minus_log_p, top_of, true_class_log_odds

__all__ = [
    "DCA",
    "DECE",
    "KDEECE",
    "MDCA",
    "MMCE",
    "SBECE",
    "SECE",
    "SKCE",
    "HuberDCA",
    "LabelBinnedSBECE",
    "WeightedMMCE",
    "dca_penalty",
    "dece_penalty",
    "huber_dca_penalty",
    "kde_ece_penalty",
    "label_binned_sb_ece_penalty",
    "mdca_penalty",
    "mmce_penalty",
    "sb_ece_penalty",
    "sece_penalty",
    "skce_penalty",
    "weighted_mmce_penalty",
]

Order: TypeAlias = Literal[1, 2]
# Added to every membership by the authors' code of DECE, which then divides by 1 + (M + 1) times it.
_MEMBERSHIP_EPS = 1e-6
# Least total membership by which a bin's sums are divided, and share of uniform membership in the label-binned form: both
# as in the authors' code of SB-ECE.
_LEAST_MASS = 1e-5
_UNIFORM_SHARE = 1e-5
# Under the root of SB-ECE; the authors' code has none and its gradient is NaN at exactly 0.
_SB_ECE_EPS = 1e-12
# Under the root of MMCE, as in the authors' code: the slope of the root at zero stays below 5e4.
_MMCE_EPS = 1e-10
# An accuracy is kept so far from 0 and 1 in its own entropy, whose slope is infinite there.
_LEAST = 1e-6
# Where all other logits are -inf, the odds against a class are zero; this stands for their logarithm.
_LEAST_LOG_ODDS = -1e6
# Confidence at which a Beta kernel is evaluated is held this far from 0 and 1, where its logarithm is infinite.
_EDGE = 1e-6


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
    logits: Tensor, labels: Tensor, *, n_bins: int = 15, bin_temperature: float = 0.01, sharpness: float = 100.0
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
    return torch.sqrt((share * gap.square()).sum() + _SB_ECE_EPS)


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


def mmce_penalty(logits: Tensor, labels: Tensor, *, scale: float = 0.4, squared: bool = False) -> Tensor:
    r"""Kernel mean of the gap between correctness and confidence; for a calibrated model it falls to 0 as the batch grows.

    With ``scale`` s,

    .. math:: \mathrm{MMCE}^2 = \frac{1}{B^2} \sum_{i=1}^{B} \sum_{j=1}^{B} (a_i - c_i)(a_j - c_j)\, e^{-|c_i - c_j| / s} .

    Exact in O(B log B). The root is taken as :math:`\sqrt{x + 10^{-10}}`, so that its slope stays finite at 0. The paper trains
    with the root; the authors' function and its PyTorch port return the square (``squared=True``). At tied confidences the
    slope of :math:`|c_i - c_j|` is taken as 0.

    Args:
        scale: Width ``s`` of the Laplace kernel, > 0; 0.4 in the paper and its code (written there as 2 * 0.2).
        squared: Return MMCE² instead of MMCE.

    Example:
        >>> mmce_penalty(torch.zeros(1, 2), torch.tensor([1]))  # one example, confidence 1/2, wrong
        tensor(0.5000)

    Reference:
        Kumar, Sarawagi and Jain, "Trainable calibration measures for neural networks from kernel mean embeddings",
        ICML 2018. Code: aviralkumar2907/MMCE, 20ng_mmce.py.
    """
    scores = checked(logits, labels, where="mmce_penalty", scale=scale)
    return _kernel_mean(scores, labels, groups=0, scale=scale, squared=squared)


class MMCE(Penalty, function=mmce_penalty):
    """`mmce_penalty` as a module."""


def weighted_mmce_penalty(
    logits: Tensor,
    labels: Tensor,
    *,
    scale: float = 0.4,
    normalization: Literal["paper", "official"] = "paper",
    squared: bool = False,
) -> Tensor:
    r"""MMCE with right and wrong predictions weighted equally, however many there are of each.

    With the set R of m right and the set W of n wrong predictions, and kernel :math:`k_{ij} = e^{-|c_i - c_j| / s}`,

    .. math:: \mathrm{MMCE}_w^2 = \sum_{i,j \in R} \frac{(1 - c_i)(1 - c_j)\,k_{ij}}{m^2}
        + \sum_{i,j \in W} \frac{c_i c_j\,k_{ij}}{n^2}
        - 2 \sum_{i \in R, j \in W} \frac{(1 - c_i)\,c_j\,k_{ij}}{m n} ,

    exact in O(B log B), with a root as in `mmce_penalty`. It is 0 where all predictions are right, or all are wrong. The
    authors' code and its PyTorch port divide every mean once more by m², n² and mn (``normalization="official"``): results
    published as "MMCE" with it behave nearly like cross-entropy. The weight is 4 to 8 on text there, 2 in the port.

    Args:
        scale: Width ``s`` of the Laplace kernel, > 0; 0.4 in the paper and its code.
        normalization: "paper" or "official" (as the released code).
        squared: Return the square instead of its root.

    Example:
        >>> logits = torch.zeros(2, 2)  # one right and one wrong prediction, both with confidence 1/2
        >>> weighted_mmce_penalty(logits, torch.tensor([0, 1]), squared=True)
        tensor(0.)

    Reference:
        Kumar, Sarawagi and Jain, ICML 2018. Code: aviralkumar2907/MMCE, 20ng_mmce.py.
    """
    check_choice(normalization, ("paper", "official"), where="weighted_mmce_penalty", name="normalization")
    scores = checked(logits, labels, where="weighted_mmce_penalty", scale=scale)
    return _kernel_mean(scores, labels, groups=1 if normalization == "paper" else 2, scale=scale, squared=squared)


class WeightedMMCE(Penalty, function=weighted_mmce_penalty):
    """`weighted_mmce_penalty` as a module."""


def _kernel_mean(scores: Tensor, labels: Tensor, *, groups: int, scale: float, squared: bool) -> Tensor:
    """Root of the sum over pairs of the gaps, each divided by the size of the batch or, ``groups`` times, of its group."""
    confidence, correct = confidence_and_correct(scores, labels)
    right = correct.sum()
    wrong = len(correct) - right
    # An empty group has weight 0; its divisor only has to be something.
    divisor = torch.where(correct > 0, right, wrong).clamp(min=1) ** groups if groups else len(correct)
    value = (correct - confidence) / divisor
    # The kernel is positive definite; rounding can still leave a sum of zero slightly below it.
    square = laplace_pair_sum(confidence, value, scale=scale).clamp(min=0)
    root = square if squared else torch.sqrt(square + _MMCE_EPS)
    return root * (right * wrong > 0) if groups else root


def sece_penalty(
    logits: Tensor,
    labels: Tensor,
    *,
    bandwidth: float = 0.05,
    accuracy: Literal["hard", "soft"] = "hard",
    sharpness: float = 100.0,
    leave_one_out: bool = False,
    detach_accuracy: bool = False,
    centred: bool = False,
    distance: Literal["absolute", "kl"] = "absolute",
) -> Tensor:
    r"""Mean gap between each confidence and the accuracy of the samples around it.

    With accuracies :math:`\pi_j` and ``bandwidth`` h,

    .. math:: \mathrm{SECE} = \frac{1}{B} \sum_{i=1}^{B} \Bigl| \frac{\sum_j \pi_j K_{ij}}{\sum_j K_{ij}} - c_i \Bigr|,
        \qquad K_{ij} = e^{-(c_i - c_j)^2 / 2h^2}

    where :math:`\pi_j` is the correctness of the top class without gradient ("hard") or `all_pairs_accuracy` with one ("soft").
    The paper prints the smoothed accuracy without the division; only the ratio agrees with its derivation. For h → 0 and hard
    accuracy the value becomes the mean of :math:`|a_i - c_i|`, which rewards sharpness and not calibration.

    Two options help where most confidences are close to 1. There the neighbours are lower on average, so that even a calibrated
    model looks too confident: ``centred`` compares :math:`c_i` with :math:`s_i = c_i + \sum_j w_{ij} (\pi_j - c_j)`, with
    normalised weights w. And a confidence of 0.999 hardly moves with its logits: ``distance="kl"`` replaces :math:`|s_i - c_i|`
    by the binary Kullback-Leibler divergence of :math:`c_i` from :math:`s_i`, whose slope by the log-odds of :math:`c_i` is the
    gap :math:`c_i - s_i` itself. An estimate outside [0, 1] is not clipped: the value may fall below 0 by noise.

    Args:
        bandwidth: Standard deviation ``h`` of the kernel, > 0. The paper has 0.01 (on batches of 128, with soft accuracy);
            the default 0.05 with hard accuracy has a smaller bias on such batches.
        accuracy: "hard" or "soft".
        sharpness: Slope of the soft accuracy; 100 as in DECE.
        leave_one_out: Keep a sample out of its own smoothed accuracy. A single sample then has no neighbours: 0.
        detach_accuracy: Let the gradient flow through :math:`c_i` alone and not through the smoothed accuracy, which at
            small bandwidths is most of the gradient and nearly all of its noise.
        centred: Smooth residuals, not accuracies.
        distance: "absolute", or "kl" for the divergence of the accuracy from the confidence, in nats.

    Returns:
        Scalar ``[]``; 0 is best. The absolute distance is in ``[0, 1]``, a divergence has no upper bound.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # both with confidence 0.8808, one of them right
        >>> sece_penalty(logits, torch.tensor([0, 1]))
        tensor(0.3808)

    Reference:
        Wang and Golebiowski, "Towards unbiased calibration using meta-regularization", TMLR 2024.
    """
    check_choice(accuracy, ("hard", "soft"), where="sece_penalty", name="accuracy")
    check_choice(distance, ("absolute", "kl"), where="sece_penalty", name="distance")
    scores = checked(logits, labels, where="sece_penalty", bandwidth=bandwidth)
    probs = scores.softmax(1)
    confidence, correct = top_of(probs, labels)
    if leave_one_out and len(confidence) < 2:
        return confidence[:0].sum()
    if accuracy == "soft":
        correct = all_pairs_accuracy(probs, labels, sharpness=sharpness)
    # Kernel weights rounded to bfloat16 are off by 0.4 %, more than the calibration errors to be measured.
    with torch.autocast(scores.device.type, enabled=False):
        weights = gaussian_weights(confidence, bandwidth=bandwidth, leave_one_out=leave_one_out)
        smoothed = confidence + weights @ (correct - confidence) if centred else weights @ correct
    if detach_accuracy:
        smoothed = smoothed.detach()
    if distance == "absolute":
        return (smoothed - confidence).abs().mean()
    # From log-odds, however close to 1 the confidence is.
    against = true_class_log_odds(scores, probs.argmax(1)).clamp(min=_LEAST_LOG_ODDS)
    possible = smoothed.clamp(_LEAST, 1 - _LEAST)
    entropy: Tensor = torch.special.entr(possible) + torch.special.entr(1 - possible)
    return (smoothed * minus_log_p(against) + (1 - smoothed) * minus_log_p(-against) - entropy).mean()


class SECE(Penalty, function=sece_penalty):
    """`sece_penalty` as a module."""


def skce_penalty(logits: Tensor, labels: Tensor, *, bandwidth: float = 0.1) -> Tensor:
    r"""Mean product of the gaps of two different samples, weighted by how close their confidences are.

    With ``bandwidth`` h,

    .. math:: \mathrm{SKCE} = \frac{1}{B (B - 1)} \sum_{i \ne j} (a_i - c_i)(a_j - c_j)\, e^{-(c_i - c_j)^2 / 2h^2} .

    Without the pairs i = j its expectation is 0 for a calibrated model at any batch size (so single values may be negative),
    where MMCE, SECE and the binned errors are positive. Widmann et al. define it for whole probability vectors; this is the
    top-label form.

    Args:
        bandwidth: Standard deviation ``h`` of the Gaussian kernel, > 0. 0.1 is our choice, about 1.5 bins of a 15-bin ECE.

    Returns:
        Scalar ``[]`` in ``[-1, 1]``; 0 in expectation is best. One sample makes no pair: 0.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # gaps 0.1192 and -0.8808 at the same confidence
        >>> skce_penalty(logits, torch.tensor([0, 1]))
        tensor(-0.1050)

    Reference:
        Widmann, Lindsten and Zachariah, "Calibration tests in multi-class classification", NeurIPS 2019. Code:
        devmotion/CalibrationErrors.jl, src/skce/unbiased.jl.
    """
    scores = checked(logits, labels, where="skce_penalty", bandwidth=bandwidth)
    confidence, correct = confidence_and_correct(scores, labels)
    gap = correct - confidence
    kernel = gaussian_exponents(confidence, bandwidth=bandwidth).exp()
    pairs = max(len(gap) * (len(gap) - 1), 1)
    with torch.autocast(gap.device.type, enabled=False):
        return (gap @ (kernel @ gap) - gap @ gap) / pairs


class SKCE(Penalty, function=skce_penalty):
    """`skce_penalty` as a module."""


def kde_ece_penalty(logits: Tensor, labels: Tensor, *, bandwidth: float = 0.01, p: Order = 1) -> Tensor:
    r"""Mean gap between each confidence and a Beta-kernel estimate of accuracy there, from the other samples.

    With ``bandwidth`` b,

    .. math:: \mathrm{ECE}^{\mathrm{KDE}}_p = \frac{1}{B} \sum_{i=1}^{B} \Bigl|
        \frac{\sum_{j \ne i} k_{ij}\, a_j}{\sum_{j \ne i} k_{ij}} - c_i \Bigr|^p, \qquad
        k_{ij} = \mathrm{Beta}\Bigl( c_i;\; \tfrac{c_j}{b} + 1,\; \tfrac{1 - c_j}{b} + 1 \Bigr) ,

    without a p-th root. In log space this is a softmax over j, never 0/0. The log-odds of :math:`c_i` are read from the logits
    and held within those of 1e-6 and 1 - 1e-6; the released code is NaN at a confidence of 1.

    Args:
        bandwidth: ``b`` > 0; the kernel's standard deviation is about :math:`\sqrt{b\,c\,(1 - c)}`. The authors choose it on
            held-out predictions by leave-one-out likelihood; the default 0.01 is our choice, 0.05 wide at c = 1/2.
        p: Exponent of the gap, 1 or 2.

    Returns:
        Scalar ``[]`` in ``[0, 1]``; 0 is best. A single sample has no others: 0.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # both with confidence 0.8808, the other one right or wrong
        >>> kde_ece_penalty(logits, torch.tensor([0, 1]))  # (0.8808 + 0.1192) / 2
        tensor(0.5000)

    Reference:
        Popordanoska, Sayer and Blaschko, "A consistent and differentiable Lp canonical calibration error estimator",
        NeurIPS 2022, there for whole probability vectors; here the top-label form. Code: tpopordanoska/ece-kde, ece_kde.py.
    """
    check_choice(p, (1, 2), where="kde_ece_penalty", name="p")
    scores = checked(logits, labels, where="kde_ece_penalty", bandwidth=bandwidth)
    top = scores.detach().argmax(1)
    odds = -true_class_log_odds(scores, top)
    confidence = odds.sigmoid()
    if len(confidence) < 2:
        return confidence[:0].sum()
    correct = (top == labels).to(scores.dtype)
    edge = math.log((1 - _EDGE) / _EDGE)
    # ln B(c/b + 1, (1 - c)/b + 1) without its last term, the same for all j.
    log_beta = torch.lgamma(confidence / bandwidth + 1) + torch.lgamma((1 - confidence) / bandwidth + 1)
    own = torch.eye(len(confidence), dtype=torch.bool, device=confidence.device)
    with torch.autocast(scores.device.type, enabled=False):
        log_kernel = torch.addr(-log_beta.unsqueeze(0), odds.clamp(-edge, edge) / bandwidth, confidence)
        smoothed = log_kernel.masked_fill(own, float("-inf")).softmax(1) @ correct
    gap = smoothed - confidence
    return gap.abs().mean() if p == 1 else gap.square().mean()


class KDEECE(Penalty, function=kde_ece_penalty):
    """`kde_ece_penalty` as a module."""
