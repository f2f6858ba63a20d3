"""Training that remembers each sample: the correctness ranking loss (CRL), and the pruning of samples by confidence."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from calibrant.core.checks import check_choice, check_count, check_share
from calibrant.losses.base import Penalty, checked, confidence_and_correct, probs_and_entropy, to_rows

Score: TypeAlias = Literal["confidence", "entropy", "margin"]


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
    times_right: Tensor
    epochs: Tensor

    def __init__(self, *, num_samples: int, score: Score = "confidence", ignore_index: int | None = None) -> None:
        super().__init__(ignore_index=ignore_index)
        check_count(num_samples, where="CRL", name="num_samples")
        self.num_samples = num_samples
        self.score: Score = score
        self.register_buffer("times_right", torch.zeros(num_samples))
        self.register_buffer("epochs", torch.zeros(()))

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
        rows = to_rows(logits, labels, {"indices": indices}, ignore_index=self.ignore_index, where="CRL.update")
        right = (rows.logits.argmax(1) == rows.labels).to(self.times_right.dtype)
        self.times_right.index_add_(0, rows.inputs["indices"], right)

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

    confidence: Tensor
    kept: Tensor
    epoch: Tensor

    def __init__(self, *, num_samples: int, ema: float = 0.7, fraction: float = 0.1, every: int = 20) -> None:
        super().__init__()
        where = type(self).__name__
        check_count(num_samples, where=where, name="num_samples")
        check_count(every, where=where, name="every")
        check_share(ema, where=where, name="ema")
        check_share(fraction, where=where, name="fraction")
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
