"""Penalties on the entropy of predictions: certain where wrong and uncertain where right (AvUC), or certain at all."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from calibrant.losses.base import Penalty, to_rows
from calibrant.losses.probability import checked, probs_and_entropy, top_of

# In the authors' code of AvUC: added to the ratio and to its denominator.
_RATIO_EPS = 1e-10
# In the authors' code of soft AvUC: share of the uniform distribution mixed in before the entropy, and least denominator.
_UNIFORM_SHARE = 1e-5
_LEAST_COUNT = 1e-5
# Normalised entropy stays this far from 0 and 1, where its log-odds are infinite (a uniform softmax reaches 1).
_ODDS_EPS = 1e-6


def avuc_penalty(logits: Tensor, labels: Tensor, *, threshold: float | Tensor = 1.0, beta: float = 3.0) -> Tensor:
    r"""Penalty for being uncertain where right or certain where wrong, certain meaning an entropy below a threshold.

    With top probability :math:`c_i`, entropy :math:`u_i` of the softmax, threshold :math:`u_{th}` and the soft counts

    .. math::
        n_{AC} &= \sum_{\text{right},\, u_i \le u_{th}} c_i (1 - \tanh u_i), &
        n_{AU} &= \sum_{\text{right},\, u_i > u_{th}} c_i \tanh u_i, \\
        n_{IC} &= \sum_{\text{wrong},\, u_i \le u_{th}} (1 - c_i)(1 - \tanh u_i), &
        n_{IU} &= \sum_{\text{wrong},\, u_i > u_{th}} (1 - c_i) \tanh u_i,

    .. math:: \mathrm{AvUC} = -\beta \log \frac{n_{AC} + n_{IU}}{n_{AC} + n_{AU} + n_{IC} + n_{IU}} .

    As in the released code 1e-10 is added to the denominator and to the ratio. That code lets the threshold start at 1 and
    sets it after each of the first epochs by `avuc_threshold`. Which samples count as certain carries no gradient.

    Args:
        logits: Scores ``[B, C]``.
        labels: Class indices ``[B]``.
        threshold: Entropy in nats above which a prediction is uncertain: a number or a tensor ``[]``.
        beta: Weight inside the penalty; 3 in the released CIFAR and ImageNet scripts.

    Returns:
        Scalar ``[]``, at least 0; 0 is best.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0]])  # two certain predictions, the second is wrong
        >>> avuc_penalty(logits, torch.tensor([0, 1]), threshold=0.5)
        tensor(0.0544)

    Reference:
        Krishnan and Tickoo, "Improving model calibration with accuracy versus uncertainty optimization", NeurIPS 2020. Code:
        IntelLabs/AVUC, src/avuc_loss.py.
    """
    probs, uncertainty = probs_and_entropy(checked(logits, labels, where="avuc_penalty", beta=beta))
    confidence, correct = top_of(probs, labels)
    certain = uncertainty.detach() <= threshold
    squashed = uncertainty.tanh()
    count = torch.where(correct > 0, confidence, 1 - confidence) * torch.where(certain, 1 - squashed, squashed)
    good = torch.where(certain == (correct > 0), count, torch.zeros_like(count)).sum()
    return -beta * torch.log(good / (count.sum() + _RATIO_EPS) + _RATIO_EPS)


def avuc_threshold(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Entropy half-way between the mean entropy of right and that of wrong predictions.

    .. math:: u_{th} = \tfrac12 \bigl( \operatorname{mean}_{\text{right}} u_i + \operatorname{mean}_{\text{wrong}} u_i \bigr)

    with :math:`u_i` the entropy of the softmax; where all are right, or all wrong, the mean entropy of all. Scalar ``[]``
    without gradient, of logits ``[N, C]`` and labels ``[N]`` of a whole epoch rather than a batch.

    Example:
        >>> avuc_threshold(torch.tensor([[0.0, 0.0], [50.0, 0.0]]), torch.tensor([0, 1]))  # ln(2) / 2
        tensor(0.3466)
    """
    probs, uncertainty = probs_and_entropy(checked(logits.detach(), labels, where="avuc_threshold"))
    _, correct = top_of(probs, labels)
    right, wrong = correct.sum(), (1 - correct).sum()
    mean_right = (uncertainty * correct).sum() / right.clamp(min=1)
    mean_wrong = (uncertainty * (1 - correct)).sum() / wrong.clamp(min=1)
    return torch.where((right > 0) & (wrong > 0), (mean_right + mean_wrong) / 2, mean_right + mean_wrong)


class AvUC(Penalty, function=avuc_penalty):
    """`avuc_penalty` as a module whose threshold can follow the training.

    Args:
        threshold: Entropy in nats to start with.
        beta: Weight inside the penalty.
        ignore_index: Label of the samples to leave out, or None.

    Attributes:
        current_threshold: Buffer ``[]``, the threshold in use; saved with the module's state.
    """

    current_threshold: Tensor

    def __init__(self, *, threshold: float = 1.0, beta: float = 3.0, ignore_index: int | None = None) -> None:
        super().__init__(ignore_index=ignore_index)
        self.threshold = threshold
        self.beta = beta
        self.register_buffer("current_threshold", torch.tensor(float(threshold)))

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return avuc_penalty(logits, labels, threshold=self.current_threshold, beta=self.beta)

    @torch.no_grad()
    def update_threshold(self, logits: Tensor, labels: Tensor) -> None:
        """Set the threshold from predictions (of an epoch) by `avuc_threshold`; the released code does so for five epochs."""
        rows = to_rows(logits, labels, {}, ignore_index=self.ignore_index, where="AvUC.update_threshold")
        self.current_threshold.copy_(avuc_threshold(rows.logits, rows.labels))

    def needs_validation(self, epoch: int) -> bool:
        """As the released code: in the first five epochs."""
        return epoch < 5

    def observe_validation(self, logits: Tensor, labels: Tensor) -> None:
        """Set the threshold from validation logits."""
        self.update_threshold(logits, labels.to(logits.device))


def soft_avuc_penalty(logits: Tensor, labels: Tensor, *, temperature: float = 0.1, threshold: float = 0.5) -> Tensor:
    r"""AvUC whose threshold is soft, so that moving across it carries a gradient.

    With :math:`\tilde q = (1 - 10^{-5})\,\mathrm{softmax}(z) + 10^{-5} / C`, its entropy :math:`H_i`, the normalised entropy
    :math:`e_i = H_i / \ln C` and the soft uncertainty

    .. math:: t_i = \sigma \Bigl( \frac1T \log \frac{e_i (1 - \kappa)}{(1 - e_i)\,\kappa} \Bigr), \qquad
        \mathrm{S\text{-}AvUC} = \log \Bigl( 1 + \frac{n_{AU} + n_{IC}}{n_{AC} + n_{IU}} \Bigr)

    where :math:`n_{AU}` and :math:`n_{IU}` sum :math:`t_i \tanh H_i` over right and over wrong predictions, :math:`n_{AC}` and
    :math:`n_{IC}` sum :math:`(1 - t_i)(1 - \tanh H_i)`, :math:`T` is the ``temperature`` and :math:`\kappa` the ``threshold``.
    The denominator is at least 1e-5, and e is held within 1e-6 of 0 and 1 (the released code divides by zero at e = 1).

    Args:
        logits: Scores ``[B, C]``.
        labels: Class indices ``[B]``.
        temperature: Softness ``T`` of the threshold, > 0. The paper tunes it; 0.1 is our choice.
        threshold: Normalised entropy :math:`\kappa` in (0, 1) of a prediction half certain. The paper tunes it; 0.5 is the
            released code's helper's default.

    Returns:
        Scalar ``[]``, at least 0; 0 is best.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0]])  # two certain predictions, the second is wrong
        >>> soft_avuc_penalty(logits, torch.tensor([0, 1]))  # ln 2: as much wrong as right
        tensor(0.6931)

    Reference:
        Karandikar et al., "Soft calibration objectives for neural networks", NeurIPS 2021. Code:
        google/uncertainty-baselines, experimental/caltrain/secondary_losses.py.
    """
    scores = checked(logits, labels, where="soft_avuc_penalty", temperature=temperature)
    if not 0 < threshold < 1:
        raise ValueError(f"soft_avuc_penalty: `threshold` must lie in (0, 1), got {threshold!r}.")
    num_classes = scores.shape[1]
    correct = (scores.detach().argmax(1) == labels).to(scores.dtype)
    probs = (1 - _UNIFORM_SHARE) * scores.softmax(1) + _UNIFORM_SHARE / num_classes
    uncertainty = -(probs * probs.log()).sum(1)
    share = (uncertainty / math.log(num_classes)).clamp(_ODDS_EPS, 1 - _ODDS_EPS)
    uncertain = torch.sigmoid((torch.logit(share) - math.log(threshold / (1 - threshold))) / temperature)
    squashed = uncertainty.tanh()
    as_uncertain, as_certain = uncertain * squashed, (1 - uncertain) * (1 - squashed)
    bad = (correct * as_uncertain + (1 - correct) * as_certain).sum()
    good = (correct * as_certain + (1 - correct) * as_uncertain).sum()
    return torch.log1p(bad / good.clamp(min=_LEAST_COUNT))


class SoftAvUC(Penalty, function=soft_avuc_penalty):
    """`soft_avuc_penalty` as a module."""


def confidence_penalty(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Negative mean entropy of the predictions.

    With :math:`q_i = \mathrm{softmax}(z_i)` over C classes and batch size B,

    .. math:: P = -\frac{1}{B} \sum_{i=1}^{B} H(q_i), \qquad H(q) = -\sum_{k=1}^{C} q_k \log q_k .

    The paper's weight is 0.1 for most tasks. The code of MbLS and CALS averages entropy over classes: their weight is C times
    this one's. Labels are not looked at.

    Args:
        logits: Scores ``[B, C]``.
        labels: Class indices ``[B]``; checked and otherwise unused.

    Returns:
        Scalar ``[]`` in ``[-ln C, 0]``; small values are less confident.

    Example:
        >>> confidence_penalty(torch.zeros(3, 4), torch.tensor([0, 1, 2]))  # -ln 4
        tensor(-1.3863)

    Reference:
        Pereyra et al., "Regularizing neural networks by penalizing confident output distributions", ICLR workshop 2017.
    """
    return -probs_and_entropy(checked(logits, labels, where="confidence_penalty"))[1].mean()


class ConfidencePenalty(Penalty, function=confidence_penalty):
    """`confidence_penalty` as a module."""
