"""Accuracy versus uncertainty calibration: AvUC with a hard threshold on entropy, and its soft successor."""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import check_logits, check_positive
from calibrant.core.closed_form import Array, Result, closed_form
from calibrant.losses.base import Penalty, Shared
from calibrant.losses.confidence import probs_and_entropy, top_of
from calibrant.losses.labelled import to_rows
from calibrant.losses.logprob import widen
from calibrant.losses.rows import entropy_of_rows, name_classes

# In the authors' code of AvUC: added to the ratio and to its denominator.
_RATIO_EPS = 1e-10
# In the authors' code of soft AvUC: share of the uniform distribution mixed in before the entropy, and least denominator.
_UNIFORM_SHARE = 1e-5
_LEAST_COUNT = 1e-5
# Normalised entropy stays this far from 0 and 1, where its log-odds are infinite (a uniform softmax reaches 1).
_ODDS_EPS = 1e-6


def avuc_penalty(logits: Tensor, labels: Tensor, *, threshold: float | Tensor = 1.0, beta: float = 3.0) -> Tensor:
    r"""Penalty for being uncertain where right or certain where wrong, certain meaning an entropy below a threshold.

    With entropy :math:`u_i = -\sum_k q_{ik} \log q_{ik}`, :math:`q_i = \mathrm{softmax}(z_i)`, confidence
    :math:`c_i = \max_k q_{ik}`, threshold :math:`u_{th}` and the soft counts

    .. math::
        n_{AC} &= \sum_{\text{right},\, u_i \le u_{th}} c_i (1 - \tanh u_i), &
        n_{AU} &= \sum_{\text{right},\, u_i > u_{th}} c_i \tanh u_i, \\
        n_{IC} &= \sum_{\text{wrong},\, u_i \le u_{th}} (1 - c_i)(1 - \tanh u_i), &
        n_{IU} &= \sum_{\text{wrong},\, u_i > u_{th}} (1 - c_i) \tanh u_i,

    .. math:: \mathrm{AvUC} = -\beta \log \frac{n_{AC} + n_{IU}}{n_{AC} + n_{AU} + n_{IC} + n_{IU}} .

    As in the released code 1e-10 is added to the denominator and to the ratio. That code loops over samples, reading each
    from the device; here it is a few vector operations. It also lets the threshold start at 1 and sets it after each of the
    first epochs from that epoch's predictions: `avuc_threshold`. Which samples count as certain carries no gradient.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        threshold: Entropy in nats above which a prediction is uncertain: a number or a tensor ``[]``. 1.0 is the released
            code's start.
        beta: Weight inside the penalty; 3 in the released CIFAR and ImageNet scripts.

    Returns:
        Scalar ``[]``, at least 0; 0 is best. Raises ``ValueError`` if shapes disagree or beta is not positive.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0]])  # two certain predictions, the second is wrong
        >>> avuc_penalty(logits, torch.tensor([0, 1]), threshold=0.5)
        tensor(0.0544)

    Reference:
        Krishnan and Tickoo, "Improving model calibration with accuracy versus uncertainty optimization", NeurIPS 2020, eq. 3.
    """
    where = "avuc_penalty"
    # The closed form looks at the labels itself, and leaves it to the other to speak of bad ones.
    check_logits(logits, labels, where=where, values=False)
    check_positive(beta, where=where, name="beta")
    scores = widen(logits)
    # In the precision of what it is compared with; numpy has no bfloat16, which the module may have been moved to.
    limits = (threshold.to(scores.dtype),) if isinstance(threshold, Tensor) else ()

    def by_torch(scores: Tensor, labels: Tensor, threshold: float | Tensor = threshold) -> Tensor:
        check_logits(scores, labels, where=where)
        probs, uncertainty = probs_and_entropy(scores)
        confidence, correct = top_of(probs, labels)
        certain = uncertainty.detach() <= threshold
        squashed = uncertainty.tanh()
        count = torch.where(correct > 0, confidence, 1 - confidence) * torch.where(certain, 1 - squashed, squashed)
        good = torch.where(certain == (correct > 0), count, torch.zeros_like(count)).sum()
        return -beta * torch.log(good / (count.sum() + _RATIO_EPS) + _RATIO_EPS)

    def by_numpy(scores: Array, labels: Array, threshold: Any = threshold) -> Result | None:
        return _avuc_by_numpy(scores, labels, threshold, beta=float(beta))

    return closed_form(by_torch, by_numpy, scores, labels, *limits)


def _avuc_by_numpy(scores: Array, labels: Array, threshold: float | Array, *, beta: float) -> Result | None:
    """The penalty, and its gradient in closed form; None for logits that are not finite."""
    if not name_classes(labels, scores.shape[1]):
        return None
    index = scores.argmax(1)
    found = entropy_of_rows(scores, index)
    if found is None:
        return None
    confidence, uncertainty, pull_rows = found
    right, certain = index == labels, uncertainty <= threshold
    squashed = np.tanh(uncertainty)
    trust, doubt = np.where(right, confidence, 1 - confidence), np.where(certain, 1 - squashed, squashed)
    count, good = trust * doubt, right == certain
    total = count.sum() + _RATIO_EPS
    ratio = (count * good).sum() / total

    def pull(grad: Array) -> tuple[Array, ...]:
        by_count = (-beta * grad / ((ratio + _RATIO_EPS) * total)) * (good - ratio)
        by_confidence = by_count * np.where(right, doubt, -doubt)
        slope = 1 - squashed * squashed
        by_uncertainty = by_count * trust * np.where(certain, -slope, slope)
        return (pull_rows(by_confidence, by_uncertainty),)

    return np.asarray(-beta * np.log(ratio + _RATIO_EPS), scores.dtype), pull


def avuc_threshold(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Entropy half-way between the mean entropy of right and that of wrong predictions.

    .. math:: u_{th} = \tfrac12 \bigl( \operatorname{mean}_{\text{right}} u_i + \operatorname{mean}_{\text{wrong}} u_i \bigr)

    with :math:`u_i` the entropy of :math:`\mathrm{softmax}(z_i)`. The released code of AvUC computes it over a whole epoch,
    after each of the first five.

    Args:
        logits: Scores ``[N, C]``, of an epoch rather than a batch.
        labels: Class indices ``[N]``.

    Returns:
        Scalar ``[]`` without gradient; where all are right, or all wrong, the mean entropy of all.

    Example:
        >>> avuc_threshold(torch.tensor([[0.0, 0.0], [50.0, 0.0]]), torch.tensor([0, 1]))  # ln(2) / 2
        tensor(0.3466)

    Reference:
        Krishnan and Tickoo, NeurIPS 2020.
    """
    check_logits(logits, labels, where="avuc_threshold")
    scores = widen(logits.detach())
    probs, uncertainty = probs_and_entropy(scores)
    _, correct = top_of(probs, labels)
    right, wrong = correct.sum(), (1 - correct).sum()
    mean_right = (uncertainty * correct).sum() / right.clamp(min=1)
    mean_wrong = (uncertainty * (1 - correct)).sum() / wrong.clamp(min=1)
    return torch.where((right > 0) & (wrong > 0), (mean_right + mean_wrong) / 2, mean_right + mean_wrong)


def soft_avuc_penalty(logits: Tensor, labels: Tensor, *, temperature: float = 0.1, threshold: float = 0.5) -> Tensor:
    r"""AvUC whose threshold is soft, so that moving across it carries a gradient.

    With :math:`\tilde q = (1 - 10^{-5})\,\mathrm{softmax}(z) + 10^{-5} / C`, its entropy :math:`H_i`, the normalised entropy
    :math:`e_i = H_i / \ln C` and the soft uncertainty

    .. math:: t_i = \sigma \Bigl( \frac1T \log \frac{e_i (1 - \kappa)}{(1 - e_i)\,\kappa} \Bigr), \qquad
        \mathrm{S\text{-}AvUC} = \log \Bigl( 1 + \frac{n_{AU} + n_{IC}}{n_{AC} + n_{IU}} \Bigr)

    where :math:`n_{AU} = \sum_{\text{right}} t_i \tanh H_i`, :math:`n_{IC} = \sum_{\text{wrong}} (1 - t_i)(1 - \tanh H_i)`,
    :math:`n_{AC} = \sum_{\text{right}} (1 - t_i)(1 - \tanh H_i)`, :math:`n_{IU} = \sum_{\text{wrong}} t_i \tanh H_i`,
    :math:`T` is the ``temperature`` and :math:`\kappa` the ``threshold``. The denominator is at least 1e-5. The released
    code divides by zero where the softmax is uniform (e = 1); here e is held within 1e-6 of 0 and 1.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        temperature: Softness ``T`` of the threshold, > 0. The paper tunes it; 0.1 is our choice.
        threshold: Normalised entropy :math:`\kappa` in (0, 1) of a prediction half certain. The paper tunes it; 0.5 is the
            released code's helper's default.

    Returns:
        Scalar ``[]``, at least 0; 0 is best. Raises ``ValueError`` if shapes disagree or a number is out of range.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0]])  # two certain predictions, the second is wrong
        >>> soft_avuc_penalty(logits, torch.tensor([0, 1]))  # ln 2: as much wrong as right
        tensor(0.6931)

    Reference:
        Karandikar et al., "Soft calibration objectives for neural networks", NeurIPS 2021, eq. 15.
    """
    where = "soft_avuc_penalty"
    check_logits(logits, labels, where=where)
    check_positive(temperature, where=where, name="temperature")
    if not 0 < threshold < 1:
        raise ValueError(f"{where}: `threshold` must lie in (0, 1), got {threshold!r}.")
    scores = widen(logits)
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


class AvUC(Penalty):
    """`avuc_penalty` as a module whose threshold can follow the training.

    Args:
        threshold: Entropy in nats to start with.
        beta: Weight inside the penalty.
        shared: ``ignore_index``, as in `Penalty`.

    Attributes:
        current_threshold: Buffer ``[]``, the threshold in use; saved with the module's state.
    """

    current_threshold: Tensor

    def __init__(self, *, threshold: float = 1.0, beta: float = 3.0, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
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


class SoftAvUC(Penalty):
    """`soft_avuc_penalty` as a module.

    Args:
        temperature: Softness of the threshold.
        threshold: Normalised entropy of a prediction half certain.
        shared: ``ignore_index``, as in `Penalty`.
    """

    def __init__(self, *, temperature: float = 0.1, threshold: float = 0.5, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.temperature = temperature
        self.threshold = threshold

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return soft_avuc_penalty(logits, labels, temperature=self.temperature, threshold=self.threshold)
