"""Losses of one value per sample: proper scoring rules, the focal losses, and mixup, which trains on two labels at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.core.binning import equal_mass_bins, top_label
from calibrant.core.checks import ArrayLike, check_count, check_positive, check_share, range_if_free
from calibrant.core.records import Bins, Predictions, Split, as_predictions, refuse_test_split
from calibrant.losses.base import Loss, Objective, WeightedSum, checked, log_sum_others, minus_log_p, true_class_log_odds, widen

__all__ = [
    "AdaFocalLoss",
    "BrierLoss",
    "CrossEntropyLoss",
    "DualFocalLoss",
    "FLSDLoss",
    "FocalLoss",
    "InverseFocalLoss",
    "MixupLoss",
    "ScheduledFocalLoss",
    "adafocal_gammas",
    "adafocal_loss",
    "brier_loss",
    "cross_entropy_loss",
    "dual_focal_loss",
    "flsd_loss",
    "focal_gradient_weight",
    "focal_loss",
    "inverse_focal_loss",
    "mixup_inputs",
    "mixup_loss",
    "scheduled_focal_loss",
    "scheduled_gamma",
]

Gamma: TypeAlias = "float | Tensor"
Schedule: TypeAlias = Sequence[tuple[int, float]]


def cross_entropy_loss(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    r"""Negative log-likelihood of the label, or of a target distribution, optionally smoothed.

    With smoothing :math:`\epsilon`,

    .. math:: L_i = -\sum_{k=1}^{C} t_{ik} \log q_{ik}, \qquad t_{ik} = (1 - \epsilon)\,[k = y_i] + \epsilon / C .

    A soft target :math:`s_i` takes the place of :math:`[k = y_i]`. The true class keeps :math:`1 - \epsilon + \epsilon / C`, as
    in ``torch.nn.CrossEntropyLoss``; code that spreads :math:`\epsilon'` over the C - 1 *other* classes (MDCA's) means
    :math:`\epsilon = \epsilon' C / (C - 1)`.

    Args:
        label_smoothing: Smoothing :math:`\epsilon` in [0, 1). 0 is plain cross-entropy; 0.05 and 0.1 are usual.

    Example:
        >>> cross_entropy_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor([0.6931])

    Reference:
        Szegedy et al., CVPR 2016; Müller, Kornblith and Hinton, NeurIPS 2019.
    """
    scores = checked(logits, labels, where="cross_entropy_loss", soft_targets=True)
    check_share(label_smoothing, where="cross_entropy_loss", name="label_smoothing")
    target = labels.to(scores.dtype) if labels.ndim == 2 else labels.long()
    return F.cross_entropy(scores, target, reduction="none", label_smoothing=label_smoothing)


class CrossEntropyLoss(Loss, function=cross_entropy_loss):
    """`cross_entropy_loss` as a module."""

    label_smoothing: float

    def _weighted(self, values: Tensor, logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        # As torch has it: in a smoothed target every class has its own weight.
        return F.cross_entropy(widen(logits), labels, weight, reduction="none", label_smoothing=self.label_smoothing)


def brier_loss(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Squared distance between predicted probabilities and the target, summed over classes.

    .. math:: L_i = \sum_{k=1}^{C} (q_{ik} - [k = y_i])^2 .

    A soft target :math:`s_i` takes the place of :math:`[k = y_i]`. Sources disagree on the scale: this is the sum, neither
    halved nor divided by C, so that the range is 0 to 2.

    Returns:
        ``[B]`` in [0, 2].

    Example:
        >>> brier_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]))
        tensor([0.5000])

    Reference:
        Brier, Monthly Weather Review 1950.
    """
    probs = checked(logits, labels, where="brier_loss", soft_targets=True).softmax(1)
    if labels.ndim == 2:
        return (probs - labels.to(probs.dtype)).square().sum(1)
    index = labels.long().unsqueeze(1)
    return probs.scatter_add(1, index, probs.new_full((1, 1), -1.0).expand_as(index)).square().sum(1)


class BrierLoss(Loss, function=brier_loss):
    """`brier_loss` as a module."""


def mixup_inputs(
    inputs: Tensor, labels: Tensor, *, alpha: float = 1.0, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Mix every example of a batch with another of the same batch.

    One :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)` is drawn per batch, and one permutation :math:`\pi`:

    .. math:: \tilde x_i = \lambda x_i + (1 - \lambda) x_{\pi(i)}, \qquad a_i = y_i, \qquad b_i = y_{\pi(i)} .

    Args:
        inputs: Floating ``[B, ...]``.
        labels: ``[B]``, or targets ``[B, C]``.
        alpha: Strength, at least 0; 0 leaves the inputs as they are, 1 (as in the released code) is a uniform :math:`\lambda`.
        generator: Source of randomness, on any device.

    Returns:
        Mixed inputs ``[B, ...]``, labels a ``[B]``, labels b ``[B]`` and :math:`\lambda` ``[]`` (float32), for `mixup_loss`.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> mixed, labels_a, labels_b, lam = mixup_inputs(torch.eye(2), torch.tensor([0, 1]), generator=generator)
        >>> lam, labels_b
        (tensor(0.4963), tensor([1, 0]))
    """
    check_positive(alpha, where="mixup_inputs", name="alpha", zero=True)
    # torch's own Beta sampler takes no generator, so the quantile function is applied to a uniform draw.
    from scipy.special import betaincinv

    uniform = float(torch.rand((), generator=generator, device="cpu" if generator is None else generator.device))
    lam = torch.full((), float(betaincinv(alpha, alpha, uniform)) if alpha else 1.0, device=inputs.device)
    order = torch.randperm(len(inputs), generator=generator, device=inputs.device if generator is None else generator.device)
    mixed = torch.lerp(inputs[order.to(inputs.device)], inputs, lam.to(inputs.dtype))
    return mixed, labels, labels[order.to(labels.device)], lam


def mixup_loss(
    logits: Tensor,
    labels_a: Tensor,
    labels_b: Tensor,
    lam: Tensor | float,
    *,
    base: Callable[[Tensor, Tensor], Tensor] = cross_entropy_loss,
) -> Tensor:
    r"""Loss of mixed examples: the base loss towards both labels, in the proportion of the mixture.

    With base loss :math:`\ell`, labels :math:`a_i, b_i` and proportion :math:`\lambda` from `mixup_inputs`,

    .. math:: L_i = \lambda\,\ell(z_i, a_i) + (1 - \lambda)\,\ell(z_i, b_i) .

    Args:
        logits: Scores ``[B, C]`` of the mixed inputs.
        labels_a: Class indices ``[B]`` of the first examples.
        labels_b: Class indices ``[B]`` of those mixed into them.
        lam: Proportion :math:`\lambda` in [0, 1] of the first ones: a number, or a tensor ``[]`` or ``[B]``.
        base: Per-sample loss.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> mixup_loss(logits, torch.tensor([0]), torch.tensor([1]), 0.75)
        tensor([0.6269])

    Reference:
        Zhang et al., ICLR 2018, in the form of their code: facebookresearch/mixup-cifar10, train.py; for calibration
        Thulasidasan et al., NeurIPS 2019.
    """
    if isinstance(lam, Tensor) and lam.ndim and lam.shape != logits.shape[:1]:
        raise ValueError(f"mixup_loss: `lam` must be a number, [] or [B] = [{len(logits)}], got {list(lam.shape)}.")
    low, high = range_if_free(lam, 0.0, 1.0) if isinstance(lam, Tensor) else (lam, lam)
    if not (low >= 0 and high <= 1):
        raise ValueError(f"mixup_loss: `lam` must lie in [0, 1], got {low if not low >= 0 else high:.4g}.")
    return lam * base(logits, labels_a) + (1 - lam) * base(logits, labels_b)


class MixupLoss(Loss, function=mixup_loss):
    """`mixup_loss` as a module, called ``loss(logits, labels_a, labels_b=labels_b, lam=lam)``.

    Args:
        base: What is mixed: a loss, or a sum with penalties, each of which is then taken towards both labels.
            Cross-entropy if None.
        shared: ``reduction``, which holds in the place of that of ``base``. Neither ``ignore_index`` nor ``weight``: a mixed
            sample has two labels.

    Example:
        >>> loss = MixupLoss()
        >>> loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), labels_b=torch.tensor([1]), lam=torch.tensor(0.75))
        tensor(0.6269)
    """

    def __init__(self, *, base: Loss | WeightedSum | None = None, **shared: Any) -> None:
        super().__init__(**shared)
        self.base: Objective = CrossEntropyLoss() if base is None else base
        if self.base.reduction not in ("mean", self.reduction):
            rule = "be, or hold, a per-sample loss whose reduction is 'mean' or that of MixupLoss"
            raise ValueError(f"MixupLoss: `base` must {rule}, got {self.base!r}.")
        if any(getattr(part, name, None) is not None for part in self.modules() for name in ("ignore_index", "weight")):
            raise ValueError("MixupLoss: no part may have an `ignore_index` or a `weight`: mixed samples have two labels.")

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the keyword arguments needed besides logits and labels."""
        return ("labels_b", "lam", *self.base.inputs)

    def value(self, logits: Tensor, labels: Tensor, *, labels_b: Tensor, lam: Tensor | float, **inputs: Tensor) -> Tensor:
        """Return the loss of every sample, ``[B]``."""
        return mixup_loss(logits, labels, labels_b, lam, base=lambda scores, target: self.base.value(scores, target, **inputs))


def focal_loss(logits: Tensor, labels: Tensor, *, gamma: Gamma = 3.0) -> Tensor:
    r"""Cross-entropy scaled down where the true class is already probable.

    .. math:: L_i = -(1 - p_i)^{\gamma_i} \log p_i .

    Computed from the log-odds of the true class: exact and twice differentiable in logits and gamma, also at gamma = 0 and at
    saturation. The usual ``(1 - p) ** gamma`` has a NaN gradient from a logit gap of 17 on (float32).

    Args:
        gamma: Focusing strength, at least 0: a number, or a tensor ``[]`` or ``[B]`` (which receives a gradient). 0 is
            cross-entropy. The default 3 is the "FL-3" of Mukhoti et al.; their code defaults to 1.

    Example:
        >>> focal_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), gamma=2)
        tensor([0.1733])

    Reference:
        Lin et al., ICCV 2017; for calibration Mukhoti et al., NeurIPS 2020. Code: torrvision/focal_calibration,
        Losses/focal_loss.py.
    """
    scores = checked(logits, labels, where="focal_loss")
    return _focal(true_class_log_odds(scores, labels), _check_gamma(gamma, scores, where="focal_loss"))


class FocalLoss(Loss, function=focal_loss):
    """`focal_loss` as a module."""


def focal_gradient_weight(logits: Tensor, labels: Tensor, *, gamma: Gamma = 3.0) -> Tensor:
    r"""Factor ``[B]`` by which focal loss scales cross-entropy's gradient of each sample.

    :math:`\partial L_i / \partial z_i = g(p_i, \gamma_i)\,(q_i - \mathrm{onehot}(y_i))` where

    .. math:: g(p, \gamma) = (1-p)^\gamma \Bigl(1 + \gamma\,\frac{-p \log p}{1 - p}\Bigr) \ge 0 .

    It is 1 for gamma = 0, and else above 1 for improbable, below 1 for probable true classes. Arguments as in `focal_loss`;
    differentiable in logits and gamma.

    Example:
        >>> focal_gradient_weight(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), gamma=1)
        tensor([0.8466])
    """
    scores = checked(logits, labels, where="focal_gradient_weight")
    strength = _check_gamma(gamma, scores, where="focal_gradient_weight")
    odds = true_class_log_odds(scores, labels)
    # -p log p / (1 - p) = e^-t softplus(t); below t = -18 the product is 0 * inf, and log1p(x)/x = 1 - x/2 to 1e-16.
    bounded = odds.clamp(min=-18.0)
    direct = torch.exp(-bounded) * minus_log_p(bounded)
    ratio = torch.where(odds < -18.0, 1 - odds.clamp(max=0.0).exp() / 2, direct)
    return torch.exp(strength * F.logsigmoid(odds)) * (1 + strength * ratio)


def flsd_loss(
    logits: Tensor, labels: Tensor, *, threshold: float = 0.2, gamma_below: float = 5.0, gamma_above: float = 3.0
) -> Tensor:
    r"""Focal loss with a larger gamma where the true class is improbable: 5 below 0.2, else 3.

    This is `focal_loss` with

    .. math:: \gamma_i = \gamma_{\mathrm{below}} \text{ if } p_i < \theta, \text{ else } \gamma_{\mathrm{above}},

    held constant in the gradient. The gradient is at most that of cross-entropy from p = 0.2 on with gamma 4.85, and from p =
    0.25 on with 3.07; hence the numbers. The released code has a third step from p = 0.5 on: 3 in the authors' scripts, as
    here, but 1 by default ("FLSD-531").

    Args:
        threshold: Probability :math:`\theta` in (0, 1) at which gamma changes; p equal to it counts as above.
        gamma_below: Gamma below it.
        gamma_above: Gamma above it.

    Example:
        >>> flsd_loss(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), torch.tensor([1, 1]))
        tensor([0.0866, 8.9946])

    Reference:
        Mukhoti et al., "Calibrating Deep Neural Networks using Focal Loss", NeurIPS 2020. Code:
        torrvision/focal_calibration, Losses/focal_loss_adaptive_gamma.py.
    """
    where = "flsd_loss"
    scores = checked(logits, labels, where=where)
    check_share(threshold, where=where, name="threshold", zero=False)
    below, above = (float(_check_gamma(gamma, scores, where=where)) for gamma in (gamma_below, gamma_above))
    odds = true_class_log_odds(scores, labels)
    # p < threshold, said in log-odds.
    improbable = odds.detach() > math.log((1 - threshold) / threshold)
    return _focal(odds, torch.full_like(odds, above).masked_fill(improbable, below))


class FLSDLoss(Loss, function=flsd_loss):
    """`flsd_loss` as a module."""


def scheduled_gamma(epoch: int, *, schedule: Schedule = ((0, 5.0), (100, 3.0), (250, 1.0))) -> float:
    """Gamma of an epoch under a step schedule: 5 before epoch 100, 3 before 250, then 1.

    Args:
        epoch: Epoch, counted from 0.
        schedule: Pairs (first epoch, gamma), the first starting at 0, in rising order.

    Returns:
        The gamma of the last pair whose first epoch is not after ``epoch``.

    Example:
        >>> [scheduled_gamma(epoch) for epoch in (0, 99, 100, 250, 349)]
        [5.0, 5.0, 3.0, 1.0, 1.0]
    """
    check_count(epoch, where="scheduled_gamma", name="epoch", least=0)
    firsts = [first for first, _ in schedule]
    if not firsts or firsts[0] != 0 or firsts != sorted(set(firsts)) or not all(0 <= gamma < math.inf for _, gamma in schedule):
        rule = "start at epoch 0 and rise, with finite gammas >= 0"
        raise ValueError(f"scheduled_gamma: `schedule` must {rule}, got {list(schedule)}.")
    return [float(gamma) for first, gamma in schedule if first <= epoch][-1]


def scheduled_focal_loss(
    logits: Tensor, labels: Tensor, *, epoch: int = 0, schedule: Schedule = ((0, 5.0), (100, 3.0), (250, 1.0))
) -> Tensor:
    r"""Focal loss with a gamma that falls during training: 5, then 3, then 1.

    `focal_loss` with :math:`\gamma(e)` given by `scheduled_gamma` at epoch e.

    Args:
        epoch: Epoch e, counted from 0.
        schedule: Pairs (first epoch, gamma). The default is made for 350 epochs, as in the source.

    Example:
        >>> scheduled_focal_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), epoch=300)
        tensor([0.3466])

    Reference:
        Mukhoti et al., NeurIPS 2020, appendix ("FLSc-531"). Code: torrvision/focal_calibration, train.py, option
        `--gamma-schedule`.
    """
    return focal_loss(logits, labels, gamma=scheduled_gamma(epoch, schedule=schedule))


class ScheduledFocalLoss(Loss, function=scheduled_focal_loss):
    """`scheduled_focal_loss` as a module that is told the epoch by ``set_epoch`` and keeps it in its ``state_dict``."""

    def __init__(self, *, epoch: int = 0, schedule: Schedule = ((0, 5.0), (100, 3.0), (250, 1.0)), **shared: Any) -> None:
        super().__init__(**shared)
        scheduled_gamma(epoch, schedule=schedule)  # raises if there is no such gamma
        self.schedule = schedule
        # Buffers, so that a compiled or captured step need not be made again when the epoch changes.
        self.epoch_now = nn.Buffer(torch.tensor(epoch))
        self.first_epochs = nn.Buffer(torch.tensor([first for first, _ in schedule]), persistent=False)
        self.gammas = nn.Buffer(torch.tensor([float(gamma) for _, gamma in schedule]), persistent=False)

    @property
    def epoch(self) -> int:
        """Epoch the loss was last told."""
        return int(self.epoch_now)

    def set_epoch(self, epoch: int) -> None:
        """Tell the loss which epoch, counted from 0, is about to run."""
        self.epoch_now.fill_(epoch)

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample, ``[B]``."""
        # `take`, since indexing by a scalar tensor reads its value and so waits for the device.
        step = torch.bucketize(self.epoch_now, self.first_epochs, right=True) - 1
        return focal_loss(logits, labels, gamma=self.gammas.take(step))


def inverse_focal_loss(logits: Tensor, labels: Tensor, *, gamma: Gamma) -> Tensor:
    r"""Cross-entropy scaled up where the true class is already probable.

    .. math:: L_i = -(1 + p_i)^{\gamma_i} \log p_i .

    It makes a network *more* confident, for use with a post-hoc calibrator, and is the branch of negative gamma in AdaFocal.

    Args:
        gamma: Strength, at least 0: a number, or a tensor ``[]`` or ``[B]``. 0 is cross-entropy. The source names no default.

    Example:
        >>> inverse_focal_loss(torch.tensor([[0.0, 0.0]]), torch.tensor([1]), gamma=2)
        tensor([1.5596])

    Reference:
        Wang, Feng and Zhang, "Rethinking Calibration of Deep Neural Networks: Do Not Be Afraid of Overconfidence",
        NeurIPS 2021.
    """
    scores = checked(logits, labels, where="inverse_focal_loss")
    strength = _check_gamma(gamma, scores, where="inverse_focal_loss")
    surprise = cross_entropy_loss(logits, labels)
    return torch.exp(strength * torch.log1p(torch.exp(-surprise))) * surprise


class InverseFocalLoss(Loss, function=inverse_focal_loss):
    """`inverse_focal_loss` as a module."""


def dual_focal_loss(logits: Tensor, labels: Tensor, *, gamma: Gamma) -> Tensor:
    r"""Focal loss that relents while a rival class lies close behind the true one.

    With :math:`r_i = \max \{ q_{ik} : q_{ik} < p_i \}` the largest probability strictly below the true class's (0 if there is
    none),

    .. math:: L_i = -(1 - p_i + r_i)^{\gamma_i} \log p_i .

    The gradient flows through :math:`r_i`; where several classes tie for it, the first receives it. Exact at saturation.

    Args:
        gamma: Strength, at least 0: a number, or a tensor ``[]`` or ``[B]``. The authors choose it per data set by validation;
            their class defaults to 0, which is plain cross-entropy.

    Example:
        >>> dual_focal_loss(torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0]), gamma=2)
        tensor([0.4436])

    Reference:
        Tao, Dong and Xu, "Dual Focal Loss for Calibration", ICML 2023. Code: Linwei94/ICML2023-DualFocalLoss,
        Losses/dual_focal_loss.py (which squeezes away a batch of one).
    """
    scores = checked(logits, labels, where="dual_focal_loss")
    strength = _check_gamma(gamma, scores, where="dual_focal_loss")
    index = labels.long().unsqueeze(1)
    # The rival, the class least far below the true one, is a matter of choice: no gradient flows through the search.
    lead = scores.detach().gather(1, index) - scores.detach()
    gap, rival = lead.masked_fill(lead <= 0, float("inf")).min(1, keepdim=True)
    rest = log_sum_others(scores, index)
    # With nothing below the true class every logit is at least as large, so the exponential is at most 1, and masked.
    share = torch.exp(scores.gather(1, rival) - rest) * (gap < float("inf"))
    odds = (rest - scores.gather(1, index)).squeeze(1)
    # log(1 - p + r) = log(1 - p) + log(1 + r / (1 - p)).
    return torch.exp(strength * (F.logsigmoid(odds) + torch.log1p(share.squeeze(1)))) * minus_log_p(odds)


class DualFocalLoss(Loss, function=dual_focal_loss):
    """`dual_focal_loss` as a module."""


def adafocal_loss(logits: Tensor, labels: Tensor, *, gammas: Tensor, edges: Tensor) -> Tensor:
    r"""Focal loss, or inverse focal loss, with the gamma of the bin that holds the true-class probability.

    With :math:`\gamma_i` the gamma of the bin :math:`(e_{m-1}, e_m]` that holds :math:`p_i` (the first and last bins reach to 0
    and 1): `focal_loss` where :math:`\gamma_i \ge 0`, else `inverse_focal_loss` with :math:`|\gamma_i|`. The choice of bin is
    held constant in the gradient. Bins come from the top-label confidence of validation data, yet are looked up by the
    *true-class* probability of training data, as in the paper.

    Args:
        gammas: Gamma of each bin ``[M]``, of either sign.
        edges: Edges of the bins ``[M + 1]``, not falling.

    Example:
        >>> gammas, edges = torch.tensor([2.0, -1.0]), torch.tensor([0.0, 0.5, 1.0])
        >>> adafocal_loss(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1, 0]), gammas=gammas, edges=edges)
        tensor([0.1733, 0.2387])

    Reference:
        Ghosh, Schaaf and Gormley, "AdaFocal: Calibration-aware Adaptive Focal Loss", NeurIPS 2022. Code: 3mcloud/adafocal,
        losses/adafocal.py (which adds 1e-20 to the base of the power and sums over the batch).
    """
    scores = checked(logits, labels, where="adafocal_loss")
    odds = true_class_log_odds(scores, labels)
    surprise = minus_log_p(odds)
    probs = torch.exp(-surprise)
    index = torch.bucketize(probs.detach(), edges[1:-1].to(probs.dtype).contiguous())
    strength = gammas.to(probs.dtype)[index]
    log_base = torch.where(strength >= 0, F.logsigmoid(odds), torch.log1p(probs))
    return torch.exp(strength.abs() * log_base) * surprise


def adafocal_gammas(
    gammas: Tensor, gaps: Tensor, *, rate: float = 1.0, switch: float = 0.2, gamma_min: float = -2.0, gamma_max: float = 20.0
) -> Tensor:
    r"""Move each bin's gamma against the calibration gap that its validation examples show.

    With gap :math:`E_m` = confidence - accuracy of bin m, rate :math:`\lambda` and switch threshold :math:`S`,

    .. math:: \gamma_m \leftarrow \gamma_m e^{\lambda E_m} \text{ if } \gamma_m > 0, \text{ else } \gamma_m e^{-\lambda E_m};

    if then :math:`|\gamma_m| < S` the bin changes over, to :math:`-S` from a positive and to :math:`+S` from a negative gamma.
    Switch and defaults are those of the released code. ``gammas`` and ``gaps``, 0 for an empty bin, are ``[M]``; so are the new
    gammas, which stay between ``gamma_min`` and ``gamma_max``.

    Example:
        >>> adafocal_gammas(torch.tensor([1.0, 0.21, -0.21]), torch.tensor([0.5, -0.1, 0.1]))
        tensor([ 1.6487, -0.2000,  0.2000])
    """
    moved = gammas * torch.exp(rate * gaps * torch.where(gammas > 0, 1.0, -1.0))
    switched = torch.where(moved.abs() < switch, torch.where(moved > 0, -switch, switch), moved)
    return switched.clamp(gamma_min, gamma_max)


class AdaFocalLoss(Loss, function=adafocal_loss):
    """`adafocal_loss` with its state: gammas and edges, in the ``state_dict``, moved by ``update`` after each epoch.

    Without ``update`` it is focal loss with ``gamma_init``. Confidences that tie across a cut are shared between bins of equal
    mass here; the released code sorts them as they come.

    Args:
        n_bins: Number of bins.
        gamma_init: Gamma of every bin at the start.
        rate: As ``switch``, ``gamma_min`` and ``gamma_max`` in `adafocal_gammas`.
        shared: As in `Loss`. The authors train with ``reduction="sum"`` and gradients clipped to norm 2.

    Example:
        >>> loss = AdaFocalLoss(n_bins=2)
        >>> bins = loss.update([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.7, 0.3]], [0, 1, 0, 0])
        >>> loss.gammas
        tensor([0.7047, 1.4191])
    """

    def __init__(
        self,
        *,
        n_bins: int = 15,
        gamma_init: float = 1.0,
        rate: float = 1.0,
        switch: float = 0.2,
        gamma_min: float = -2.0,
        gamma_max: float = 20.0,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        check_count(n_bins, where="AdaFocalLoss", name="n_bins")
        for name, value in {"gamma_init": gamma_init, "rate": rate, "switch": switch, "gamma_max": gamma_max}.items():
            check_positive(value, where="AdaFocalLoss", name=name)
        self.n_bins = n_bins
        self.gamma_init = gamma_init
        self.rate = rate
        self.switch = switch
        self.gamma_min = gamma_min
        self.gamma_max = gamma_max
        self.gammas = nn.Buffer(torch.full((n_bins,), float(gamma_init)))
        self.edges = nn.Buffer(torch.linspace(0, 1, n_bins + 1))

    def update(self, probs: Predictions | ArrayLike, labels: ArrayLike | None = None) -> Bins:
        """Move gammas and edges by what validation data show, and return their equal-mass bins.

        Args:
            probs: Probabilities ``[N, C]``, or `Predictions` (then without ``labels``) that are not of the test split.
            labels: Class indices ``[N]``.
        """
        where = "AdaFocalLoss.update"
        ignored = None if isinstance(probs, Predictions) else self.ignore_index
        given = as_predictions(probs, labels, where=where, ignore_index=ignored)
        refuse_test_split(given, where=where)
        bins = equal_mass_bins(top_label(given.probs, given.labels, where=where, weights=given.weights), n_bins=self.n_bins)
        rule = {"rate": self.rate, "switch": self.switch, "gamma_min": self.gamma_min, "gamma_max": self.gamma_max}
        # In place, so that a captured step reads the new values.
        self.gammas.copy_(adafocal_gammas(self.gammas.double().cpu(), bins.gap, **rule))
        self.edges.copy_(bins.edges)
        return bins

    def needs_validation(self, epoch: int) -> bool:
        """After every epoch."""
        return True

    def observe_validation(self, logits: Tensor, labels: Tensor) -> None:
        """Move gammas and edges by validation logits."""
        self.update(Predictions(logits=logits, labels=labels, split=Split.VAL))

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample, ``[B]``."""
        return adafocal_loss(logits, labels, gammas=self.gammas, edges=self.edges)


def _focal(odds: Tensor, gamma: Gamma) -> Tensor:
    """Focal loss ``[B]`` of samples whose log-odds against the true class are ``odds [B]``."""
    return torch.exp(gamma * F.logsigmoid(odds)) * minus_log_p(odds)


def _check_gamma(gamma: Gamma, scores: Tensor, *, where: str) -> Gamma:
    """Return ``gamma`` as a number or as a tensor of the precision of ``scores``; raise if it cannot be one per sample."""
    if isinstance(gamma, Tensor) and gamma.ndim and gamma.shape != scores.shape[:1]:
        raise ValueError(f"{where}: `gamma` must be a number, [] or [B] = [{len(scores)}], got {list(gamma.shape)}.")
    low, high = range_if_free(gamma, 0.0, 0.0) if isinstance(gamma, Tensor) else (gamma, gamma)
    # Finite differences at gamma = 0, and steps of an optimiser, may bring a tensor just below it.
    if not (low >= (-1e-3 if isinstance(gamma, Tensor) else 0) and high < math.inf):
        raise ValueError(f"{where}: `gamma` must be finite and >= 0, got {low:.4g} to {high:.4g}.")
    # A float64 of numpy would lift everything it meets to its precision.
    return gamma.to(scores.dtype) if isinstance(gamma, Tensor) else float(gamma)
