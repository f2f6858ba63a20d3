"""Penalties on how sure predictions are: their entropy (AvUC, confidence penalty), distances of logits (MbLS, ACLS, CPC).

And training that remembers each sample: the correctness ranking loss (CRL), and the pruning of samples by confidence.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from calibrant.core.checks import check_choice, check_count, check_share
from calibrant.losses.base import Penalty, checked, confidence_and_correct, probs_and_entropy, to_samples, top_of

__all__ = [
    "ACLS",
    "CPC",
    "CRL",
    "AvUC",
    "ConfidencePenalty",
    "ConfidencePruner",
    "MbLS",
    "SoftAvUC",
    "acls_penalty",
    "avuc_penalty",
    "avuc_threshold",
    "confidence_penalty",
    "cpc_penalty",
    "crl_penalty",
    "mbls_penalty",
    "soft_avuc_penalty",
]

Score: TypeAlias = Literal["confidence", "entropy", "margin"]
# In the authors' code of AvUC: added to the ratio and to its denominator.
_RATIO_EPS = 1e-10
# In the authors' code of soft AvUC: share of the uniform distribution mixed in before the entropy, and least denominator.
_UNIFORM_SHARE = 1e-5
_LEAST_COUNT = 1e-5
# Normalised entropy stays this far from 0 and 1, where its log-odds are infinite (a uniform softmax reaches 1).
_ODDS_EPS = 1e-6
# Pairs of classes computed at once: 16 MB in float32.
_BLOCK = 2**22


def avuc_penalty(logits: Tensor, labels: Tensor, *, threshold: float | Tensor = 1.0, beta: float = 3.0) -> Tensor:
    r"""Penalty for being uncertain where right or certain where wrong, certain meaning an entropy below a threshold.

    With entropy :math:`u_i` of the softmax, threshold :math:`u_{th}` and the soft counts

    .. math::
        n_{AC} &= \sum_{\text{right},\, u_i \le u_{th}} c_i (1 - \tanh u_i), &
        n_{AU} &= \sum_{\text{right},\, u_i > u_{th}} c_i \tanh u_i, \\
        n_{IC} &= \sum_{\text{wrong},\, u_i \le u_{th}} (1 - c_i)(1 - \tanh u_i), &
        n_{IU} &= \sum_{\text{wrong},\, u_i > u_{th}} (1 - c_i) \tanh u_i,

    .. math:: \mathrm{AvUC} = -\beta \log \frac{n_{AC} + n_{IU}}{n_{AC} + n_{AU} + n_{IC} + n_{IU}} .

    As in the released code 1e-10 is added to the denominator and to the ratio. That code lets the threshold start at 1 and
    sets it after each of the first epochs by `avuc_threshold`. Which samples count as certain carries no gradient.

    Args:
        threshold: Entropy in nats above which a prediction is uncertain: a number or a tensor ``[]``.
        beta: Weight inside the penalty; 3 in the released CIFAR and ImageNet scripts.

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
    """`avuc_penalty` as a module whose threshold can follow the training: the buffer ``current_threshold``."""

    def __init__(self, *, threshold: float = 1.0, beta: float = 3.0, ignore_index: int | None = None) -> None:
        super().__init__(ignore_index=ignore_index)
        self.threshold = threshold
        self.beta = beta
        self.current_threshold = nn.Buffer(torch.tensor(float(threshold)))

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return avuc_penalty(logits, labels, threshold=self.current_threshold, beta=self.beta)

    @torch.no_grad()
    def update_threshold(self, logits: Tensor, labels: Tensor) -> None:
        """Set the threshold from predictions (of an epoch) by `avuc_threshold`; the released code does so for five epochs."""
        samples = to_samples(logits, labels.to(logits.device), {}, ignore_index=self.ignore_index, where="AvUC")
        self.current_threshold.copy_(avuc_threshold(samples.logits, samples.labels))

    observe_validation = update_threshold

    def needs_validation(self, epoch: int) -> bool:
        """As the released code: in the first five epochs."""
        return epoch < 5


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
        temperature: Softness ``T`` of the threshold, > 0. The paper tunes it; 0.1 is our choice.
        threshold: Normalised entropy :math:`\kappa` in (0, 1) of a prediction half certain. The paper tunes it; 0.5 is the
            released code's helper's default.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [4.0, 0.0]])  # two certain predictions, the second is wrong
        >>> soft_avuc_penalty(logits, torch.tensor([0, 1]))  # ln 2: as much wrong as right
        tensor(0.6931)

    Reference:
        Karandikar et al., "Soft calibration objectives for neural networks", NeurIPS 2021. Code:
        google/uncertainty-baselines, experimental/caltrain/secondary_losses.py.
    """
    scores = checked(logits, labels, where="soft_avuc_penalty", temperature=temperature)
    check_share(threshold, where="soft_avuc_penalty", name="threshold", zero=False)
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

    .. math:: P = -\frac{1}{B} \sum_{i=1}^{B} H(q_i), \qquad H(q) = -\sum_{k=1}^{C} q_k \log q_k .

    The paper's weight is 0.1 for most tasks. The code of MbLS and CALS averages entropy over classes: their weight is C times
    this one's. Labels are not looked at.

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


def mbls_penalty(logits: Tensor, labels: Tensor, *, margin: float = 10.0) -> Tensor:
    r"""Mean amount by which logits fall behind the largest one by more than a margin.

    With m the ``margin``,

    .. math:: P = \frac{1}{B C} \sum_{i=1}^{B} \sum_{k=1}^{C} \bigl[ \max_j z_{ij} - z_{ik} - m \bigr]_+ .

    The gradient flows into the largest logit as well, shared evenly where several tie. The weight that goes with it is 0.1.
    Labels are not looked at.

    Args:
        margin: Distance ``m`` >= 0 left unpunished; 10 in the released configuration (6 for CIFAR-10 in the paper).

    Example:
        >>> mbls_penalty(torch.tensor([[9.0, 3.0, 0.0]]), torch.tensor([0]), margin=5)  # (0 + 1 + 4) / 3
        tensor(1.6667)

    Reference:
        Liu et al., "The devil is in the margin: margin-based label smoothing for network calibration", CVPR 2022. Code:
        by-liu/MbLS, calibrate/losses/logit_margin_l1.py.
    """
    scores = checked(logits, labels, where="mbls_penalty", zero=True, margin=margin)
    return torch.relu(scores.amax(1, keepdim=True) - margin - scores).mean()


class MbLS(Penalty, function=mbls_penalty):
    """`mbls_penalty` as a module."""


def acls_penalty(
    logits: Tensor, labels: Tensor, *, margin: float = 10.0, top_weight: float = 1.0, rest_weight: float = 0.1
) -> Tensor:
    r"""Squared hinge on a large top logit, and on the logits that fall far behind it.

    With :math:`\hat z_i = \max_k z_{ik}`, sg a stop of the gradient and m the ``margin``,

    .. math:: R = \frac{\lambda_1}{B} \sum_{i=1}^{B} \bigl[ \hat z_i - m \bigr]_+^2
        + \frac{\lambda_2}{B (C - 1)} \sum_{i=1}^{B} \sum_{k:\, z_{ik} < \hat z_i}
        \bigl[ \mathrm{sg}(\hat z_i) - z_{ik} - m \bigr]_+^2 .

    As in the released code, every logit that ties for the largest counts in the first sum. The weight that goes with it is 0.1.
    Labels are not looked at.

    Args:
        margin: ``m`` >= 0; 10 in the released code (its Tiny-ImageNet setting).
        top_weight: :math:`\lambda_1` >= 0; 1 in the released code.
        rest_weight: :math:`\lambda_2` >= 0; 0.1 in the released code.

    Example:
        >>> acls_penalty(torch.tensor([[4.0, 1.0, -2.0]]), torch.tensor([0]), margin=2)  # 2² + 0.1 (1² + 4²) / 2
        tensor(4.8500)

    Reference:
        Park et al., "ACLS: adaptive and conditional label smoothing for network calibration", ICCV 2023. Code:
        cvlab-yonsei/ACLS, calibrate/losses/acls.py.
    """
    where = "acls_penalty"
    scores = checked(logits, labels, where=where, zero=True, margin=margin, top_weight=top_weight, rest_weight=rest_weight)
    batch, num_classes = scores.shape
    largest = scores.amax(1, keepdim=True)
    # Ties with the largest are at distance 0 and so drop out of the second sum by themselves; in the first they count.
    ties = (scores.detach() == largest.detach()).sum(1, keepdim=True)
    top = (ties * torch.relu(largest - margin).square()).sum() / batch
    rest = torch.relu(largest.detach() - margin - scores).square().sum() / (batch * (num_classes - 1))
    return top_weight * top + rest_weight * rest


class ACLS(Penalty, function=acls_penalty):
    """`acls_penalty` as a module."""


def cpc_penalty(logits: Tensor, labels: Tensor, *, bdc_weight: float = 0.1, bec_weight: float = 1.0) -> Tensor:
    r"""Binary constraints between classes: the true one above every other, the others level with each other.

    :math:`\mathrm{CPC}` is

    .. math:: -\frac{\lambda_d}{B (C - 1)} \sum_{i=1}^{B} \sum_{k \ne y_i} \log \sigma(z_{iy_i} - z_{ik})
        - \frac{\lambda_e}{2 B (C - 1)(C - 2)} \sum_{i=1}^{B} \sum_{j \ne y_i} \sum_{k \ne y_i} \log \sigma(z_{ij} - z_{ik}) .

    The pairs j = k, a constant, are counted as in the port the golden values come from. Two classes have no pair to exclude.
    The second sum has B C² terms and no smaller exact form: with 1,000 classes choose another penalty, or leave it out. Where
    the terms are many they are computed in blocks, twice, so that memory stays O(B C) plus one block.

    Args:
        bdc_weight: :math:`\lambda_d` >= 0 of the discrimination constraints; 0.1 in the port in CALS.
        bec_weight: :math:`\lambda_e` >= 0 of the exclusion constraints; 1.0 there. 0 leaves the sum out, and its cost.

    Example:
        >>> cpc_penalty(torch.zeros(1, 4), torch.tensor([0]))  # 0.1 ln 2 + 9 ln 2 / 12
        tensor(0.5892)

    Reference:
        Cheng and Vasconcelos, "Calibrating deep neural networks by pairwise constraints", CVPR 2022. A port is in
        by-liu/CALS, calibrate/losses/cpc_loss.py.
    """
    scores = checked(logits, labels, where="cpc_penalty", zero=True, bdc_weight=bdc_weight, bec_weight=bec_weight)
    batch, num_classes = scores.shape
    true = scores.gather(1, labels.long().unsqueeze(1))
    # The true class against itself is ln 2, without gradient.
    total = bdc_weight * ((-F.logsigmoid(true - scores).sum() - batch * math.log(2)) / (batch * (num_classes - 1)))
    return total + bec_weight * _exclusion(scores, labels) if bec_weight and num_classes > 2 else total


class CPC(Penalty, function=cpc_penalty):
    """`cpc_penalty` as a module."""


def _exclusion(scores: Tensor, labels: Tensor) -> Tensor:
    batch, num_classes = scores.shape
    column = torch.arange(num_classes - 1, device=labels.device)
    others = scores.gather(1, column + (column >= labels.unsqueeze(1)))
    # Whole samples, as many as make a block.
    blocks = others.split(max(1, _BLOCK // num_classes**2))
    # Computed again for the gradient: pairs of many classes do not fit in memory.
    again = partial(checkpoint, _pair_softplus, use_reentrant=False, preserve_rng_state=False)
    parts = [again(block) if len(blocks) > 1 else _pair_softplus(block) for block in blocks]
    return torch.stack(parts).sum() / (2 * batch * (num_classes - 1) * (num_classes - 2))


def _pair_softplus(x: Tensor) -> Tensor:
    """Sum over all ordered pairs j, k of -log sigmoid(x_j - x_k), for ``x [B, M]``."""
    return -F.logsigmoid(x.unsqueeze(2) - x.unsqueeze(1)).sum()


def crl_penalty(logits: Tensor, labels: Tensor, correctness: Tensor, *, score: Score = "confidence") -> Tensor:
    r"""Mean ranking loss of neighbouring samples of the batch, by how often each was right so far.

    With :math:`\kappa_i` the certainty of sample i, :math:`s_i` its past correctness and j = i + 1 its neighbour (the last
    one's is the first),

    .. math:: P = \frac{1}{B} \sum_{i=1}^{B} \bigl[ -\mathrm{sgn}(s_i - s_j)(\kappa_i - \kappa_j) + |s_i - s_j| \bigr]_+

    where pairs with :math:`s_i = s_j` count zero. Certainty is the top probability ("confidence"), the negative entropy over
    ln C ("entropy") or the lead of the top probability over the second ("margin"). Batches have to be shuffled, since the
    pairs follow their order. In the paper s is the plain share of epochs in which a sample was right; the released code takes
    off the least count, as `CRL` does.

    Args:
        correctness: ``[B]`` in [0, 1], the share of earlier epochs in which each sample was right; `CRL` keeps it.
        score: "confidence" (the released default), "entropy" or "margin".

    Example:
        >>> logits = torch.zeros(2, 2)  # equally confident, though the first was right twice as often
        >>> crl_penalty(logits, torch.tensor([0, 1]), torch.tensor([1.0, 0.5]))
        tensor(0.5000)

    Reference:
        Moon et al., "Confidence-aware learning for deep neural networks", ICML 2020. Code:
        daintlab/confidence-aware-learning, train.py and crl_utils.py.
    """
    where = "crl_penalty"
    scores = checked(logits, labels, where=where)
    check_choice(score, ("confidence", "entropy", "margin"), where=where, name="score")
    if correctness.shape != labels.shape or not correctness.is_floating_point():
        got = f"{correctness.dtype} {list(correctness.shape)}"
        raise ValueError(f"{where}: `correctness` must be floating [B] = {list(labels.shape)}, got {got}.")
    if score == "confidence":
        certainty, _ = confidence_and_correct(scores, labels)
    elif score == "entropy":
        certainty = -probs_and_entropy(scores)[1] / math.log(scores.shape[1])
    else:
        certainty = -scores.softmax(1).topk(2, dim=1).values.diff(dim=1).squeeze(1)
    target = correctness.detach().to(certainty.dtype)
    lead = target - target.roll(-1)
    return torch.relu(lead.abs() - lead.sign() * (certainty - certainty.roll(-1))).mean()


class CRL(Penalty, function=crl_penalty):
    r"""`crl_penalty` as a module that counts how often each training sample was right.

    Past correctness is :math:`s_n = (r_n - \min r) / (E - \min r)` with :math:`r_n` the times sample n was right and E the
    number of epochs ended; 0 where all were right each time. Call ``set_epoch`` before each epoch, ``update`` after a step.

    Args:
        num_samples: Size of the training set.
        score: As in `crl_penalty`.

    Example:
        >>> crl = CRL(num_samples=100)
        >>> logits, labels, indices = torch.tensor([[2.0, 0.0], [2.0, 0.0]]), torch.tensor([0, 1]), torch.tensor([7, 42])
        >>> crl.update(logits, labels, indices=indices)
        >>> crl.set_epoch(1)
        >>> crl(logits, labels, indices=indices)  # the first was right, the second not: they should be 1 apart
        tensor(1.)
    """

    inputs: ClassVar[tuple[str, ...]] = ("indices",)

    def __init__(self, *, num_samples: int, score: Score = "confidence", ignore_index: int | None = None) -> None:
        super().__init__(ignore_index=ignore_index)
        check_count(num_samples, where="CRL", name="num_samples")
        self.num_samples = num_samples
        self.score: Score = score
        self.times_right = nn.Buffer(torch.zeros(num_samples))
        self.epochs = nn.Buffer(torch.zeros(()))

    def value(self, logits: Tensor, labels: Tensor, *, indices: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``; ``indices [B]`` are the samples' positions in the training set."""
        return crl_penalty(logits, labels, self.correctness(indices), score=self.score)

    def correctness(self, indices: Tensor) -> Tensor:
        """Return the past correctness ``[B]`` in [0, 1] of the samples ``indices [B]``."""
        least = self.times_right.amin()
        return (self.times_right[indices] - least) / (self.epochs.clamp(min=1) - least).clamp(min=1)

    @torch.no_grad()
    def update(self, logits: Tensor, labels: Tensor, *, indices: Tensor) -> None:
        """Count which samples of a batch were right; ``indices [B]`` must not repeat. No device synchronisation."""
        samples = to_samples(logits, labels, {"indices": indices}, ignore_index=self.ignore_index, where="CRL.update")
        right = (samples.logits.argmax(1) == samples.labels).to(self.times_right.dtype)
        self.times_right.index_add_(0, samples.inputs["indices"], right)

    observe_batch = update

    @torch.no_grad()
    def set_epoch(self, epoch: int) -> None:
        """Tell which epoch, counted from 0, is about to run: so many have ended."""
        self.epochs.fill_(epoch)


class ConfidencePruner(nn.Module):
    r"""Drops, every few epochs, the training samples of lowest confidence (re-implemented from the description).

    The confidence of a sample is remembered as a moving average, so that one odd epoch does not decide. After every ``every``
    epochs the ``fraction`` of the kept samples whose average is lowest leaves for good. Samples never seen stay. No code of
    the authors (Patra et al., WACV 2023) is public, so the defaults are ours.

    Args:
        num_samples: Size of the training set.
        ema: Share in [0, 1) of the old average kept at an update.
        fraction: Share in [0, 1) of the kept samples dropped at each pruning.
        every: Epochs between prunings.

    Example:
        >>> pruner = ConfidencePruner(num_samples=4, fraction=0.25, every=1)
        >>> logits = torch.tensor([[3.0, 0.0], [1.0, 0.0], [2.0, 0.0], [4.0, 0.0]])
        >>> pruner.update(logits, indices=torch.arange(4))
        >>> pruner.end_epoch()
        >>> pruner.kept_indices()
        tensor([0, 2, 3])
    """

    def __init__(self, *, num_samples: int, ema: float = 0.7, fraction: float = 0.1, every: int = 20) -> None:
        super().__init__()
        where = type(self).__name__
        check_count(num_samples, where=where, name="num_samples")
        check_count(every, where=where, name="every")
        check_share(ema, where=where, name="ema")
        check_share(fraction, where=where, name="fraction")
        self.ema = ema
        self.fraction = fraction
        self.every = every
        self.confidence = nn.Buffer(torch.full((num_samples,), float("nan")))
        self.kept = nn.Buffer(torch.ones(num_samples, dtype=torch.bool))
        self.epoch = nn.Buffer(torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self, logits: Tensor, *, indices: Tensor) -> None:
        """Take in the confidences of a batch: ``logits [B, C]`` of the samples ``indices [B]``. No device synchronisation."""
        new = logits.detach().to(self.confidence.dtype).softmax(1).amax(1)
        old = self.confidence[indices]
        self.confidence[indices] = torch.where(old.isnan(), new, self.ema * old + (1 - self.ema) * new)

    @torch.no_grad()
    def end_epoch(self) -> None:
        """Count an epoch and, if it is one of those, prune."""
        self.epoch.add_(1)
        if int(self.epoch) % self.every:
            return
        rank = torch.where(self.kept & ~self.confidence.isnan(), self.confidence, float("inf"))
        drop = min(int(self.fraction * int(self.kept.sum())), int(rank.isfinite().sum()))
        self.kept[torch.argsort(rank, stable=True)[:drop]] = False

    def kept_indices(self) -> Tensor:
        """Return the positions ``[K]`` of the samples still in training, ascending: what a sampler draws from."""
        return self.kept.nonzero().squeeze(1)
