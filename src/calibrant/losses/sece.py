"""SECE: confidence against accuracy smoothed over neighbouring confidences with a Gaussian kernel."""

from __future__ import annotations

from typing import Literal, TypeAlias, Unpack

import torch
from torch import Tensor

from calibrant.core.checks import check_logits, check_positive
from calibrant.core.kernels import gaussian_weights
from calibrant.core.soft_accuracy import all_pairs_accuracy
from calibrant.losses.base import Penalty, Shared
from calibrant.losses.confidence import full_precision, top_of
from calibrant.losses.logprob import minus_log_p, true_class_log_odds, widen

Accuracy: TypeAlias = Literal["hard", "soft"]
Distance: TypeAlias = Literal["absolute", "kl"]

# An accuracy is kept so far from 0 and 1 in its own entropy, whose slope is infinite there.
_LEAST = 1e-6
# Where all other logits are -inf, the odds against a class are zero; this stands for their logarithm.
_LEAST_LOG_ODDS = -1e6


def sece_penalty(
    logits: Tensor,
    labels: Tensor,
    *,
    bandwidth: float = 0.05,
    accuracy: Accuracy = "hard",
    sharpness: float = 100.0,
    leave_one_out: bool = False,
    detach_accuracy: bool = False,
    centred: bool = False,
    distance: Distance = "absolute",
) -> Tensor:
    r"""Mean gap between each confidence and the accuracy of the samples around it.

    With confidence :math:`c_i = \max_k q_{ik}`, :math:`q_i = \mathrm{softmax}(z_i)`, accuracies :math:`\pi_j` and a batch
    of B,

    .. math:: \mathrm{SECE} = \frac{1}{B} \sum_{i=1}^{B} \Bigl| \frac{\sum_j \pi_j K_{ij}}{\sum_j K_{ij}} - c_i \Bigr|,
        \qquad K_{ij} = e^{-(c_i - c_j)^2 / 2h^2}

    with :math:`h` the ``bandwidth``. :math:`\pi_j` is the correctness :math:`[\arg\max_k q_{jk} = y_j]` without gradient
    ("hard") or `all_pairs_accuracy` with one ("soft"). The sample itself is among its neighbours unless left out. The
    weights are a softmax over j, so no bandwidth gives 0/0.

    The paper prints the smoothed accuracy as :math:`\sum_j \pi_i K_{ij}`, without the division and with i for j; only the
    ratio above agrees with its kernel-density derivation and can be compared with a confidence. For h → 0 and hard accuracy
    the value becomes :math:`\frac1B \sum_i |a_i - c_i|`, which rewards sharpness and not calibration; a small bandwidth on a
    small batch inherits that. It is not an unbiased estimate: a perfectly calibrated model shows more than 0.

    Two options make it a better thing to minimise where most confidences are close to 1. The neighbours of such a
    confidence are lower on average, and so is their accuracy: even a perfectly calibrated model looks too confident there
    and not confident enough before it, by :math:`c_i - \sum_j K_{ij} c_j / \sum_j K_{ij}`. ``centred`` takes that off; with
    normalised weights :math:`w_{ij}`,

    .. math:: s_i = c_i + \sum_j w_{ij} (\pi_j - c_j)

    is then compared with :math:`c_i`, that is, residuals are smoothed. And a confidence of 0.999 hardly moves with its logits,
    by :math:`c (1 - c)`, so that the few samples in the middle make the whole gradient. ``distance="kl"`` puts the binary
    Kullback-Leibler divergence

    .. math:: s_i \log\frac{s_i}{c_i} + (1 - s_i) \log\frac{1 - s_i}{1 - c_i}

    in the place of :math:`|s_i - c_i|`. Its slope by the log-odds of :math:`c_i` is :math:`c_i - s_i`, the gap itself, where
    :math:`s_i` carries no gradient. An estimate above 1 (or below 0) stays what it is as a factor of :math:`\log c_i` and
    :math:`\log (1 - c_i)`, so that the slope has no bias; the value may then fall below 0 by noise.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        bandwidth: Standard deviation ``h`` of the kernel, > 0. The paper has 0.01 (on batches of 128, with soft accuracy);
            the default 0.05 with hard accuracy has a smaller bias on such batches.
        accuracy: "hard" or "soft".
        sharpness: Slope of the soft accuracy; 100 as in DECE.
        leave_one_out: Keep a sample out of its own smoothed accuracy. A single sample then has no neighbours: 0.
        detach_accuracy: Let the gradient flow through :math:`c_i` alone and not through the smoothed accuracy, which at
            small bandwidths is most of the gradient and nearly all of its noise.
        centred: Smooth confidences with the same weights, and compare with what the accuracy would be at :math:`c_i` itself.
        distance: "absolute", or "kl" for the divergence of the accuracy from the confidence, in nats.

    Returns:
        Scalar ``[]``; 0 is best. The absolute distance is in ``[0, 1]``, a divergence has no upper bound. Raises ``ValueError``
        if shapes disagree or an option is not one of those named.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])  # both with confidence 0.8808, one of them right
        >>> sece_penalty(logits, torch.tensor([0, 1]))
        tensor(0.3808)

    Reference:
        Wang and Golebiowski, "Towards unbiased calibration using meta-regularization", TMLR 2024, eqs. 6 to 8, with the ratio
        of eq. 13 for the smoothed accuracy.
    """
    where = "sece_penalty"
    check_logits(logits, labels, where=where)
    check_positive(bandwidth, where=where, name="bandwidth")
    if accuracy not in ("hard", "soft"):
        raise ValueError(f"{where}: `accuracy` must be one of 'hard', 'soft', got {accuracy!r}.")
    if distance not in ("absolute", "kl"):
        raise ValueError(f"{where}: `distance` must be one of 'absolute', 'kl', got {distance!r}.")
    scores = widen(logits)
    probs = scores.softmax(1)
    confidence, correct = top_of(probs, labels)
    if leave_one_out and len(confidence) < 2:
        return confidence[:0].sum()
    if accuracy == "soft":
        correct = all_pairs_accuracy(probs, labels, sharpness=sharpness)
    with full_precision(scores):
        weights = gaussian_weights(confidence, bandwidth=bandwidth, leave_one_out=leave_one_out)
        smoothed = confidence + weights @ (correct - confidence) if centred else weights @ correct
    if detach_accuracy:
        smoothed = smoothed.detach()
    if distance == "absolute":
        return (smoothed - confidence).abs().mean()
    return _divergence(smoothed, scores, probs.argmax(1)).mean()


def _divergence(accuracy: Tensor, scores: Tensor, top: Tensor) -> Tensor:
    """Binary KL divergence ``[B]`` of accuracies from the confidences in the classes ``top``, however close to 1 these are."""
    against = true_class_log_odds(scores, top).clamp(min=_LEAST_LOG_ODDS)
    possible = accuracy.clamp(_LEAST, 1 - _LEAST)
    entropy: Tensor = torch.special.entr(possible) + torch.special.entr(1 - possible)
    return accuracy * minus_log_p(against) + (1 - accuracy) * minus_log_p(-against) - entropy


class SECE(Penalty):
    """`sece_penalty` as a module.

    Args:
        bandwidth: Standard deviation of the Gaussian kernel; 0.01 in the paper.
        accuracy: "hard" or "soft" (the paper's).
        sharpness: Slope of the soft accuracy.
        leave_one_out: Whether to keep a sample out of its own smoothed accuracy.
        detach_accuracy: Whether the smoothed accuracy carries no gradient.
        centred: Whether confidences are smoothed too.
        distance: "absolute" or "kl".
        shared: ``ignore_index``, as in `Penalty`.
    """

    def __init__(
        self,
        *,
        bandwidth: float = 0.05,
        accuracy: Accuracy = "hard",
        sharpness: float = 100.0,
        leave_one_out: bool = False,
        detach_accuracy: bool = False,
        centred: bool = False,
        distance: Distance = "absolute",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(**shared)
        self.bandwidth = bandwidth
        self.accuracy: Accuracy = accuracy
        self.sharpness = sharpness
        self.leave_one_out = leave_one_out
        self.detach_accuracy = detach_accuracy
        self.centred = centred
        self.distance: Distance = distance

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return sece_penalty(
            logits,
            labels,
            bandwidth=self.bandwidth,
            accuracy=self.accuracy,
            sharpness=self.sharpness,
            leave_one_out=self.leave_one_out,
            detach_accuracy=self.detach_accuracy,
            centred=self.centred,
            distance=self.distance,
        )
