"""Proper scoring rules as losses, cross-entropy and Brier; and mixup, which trains on two labels at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.checks import check_share, range_if_free
from calibrant.losses.base import Loss, Objective, WeightedSum, checked, widen


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
    where = "mixup_inputs"
    if inputs.shape[:1] != labels.shape[:1]:
        shapes = f"{list(inputs.shape)} and {list(labels.shape)}"
        raise ValueError(f"{where}: `inputs` and `labels` must have the same batch size, got {shapes}.")
    if not 0 <= alpha < float("inf"):
        raise ValueError(f"{where}: `alpha` must be a finite number >= 0, got {alpha!r}.")
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
            raise ValueError(
                "MixupLoss: neither it nor `base` may have an `ignore_index` or a `weight`: a mixed sample has two labels. "
                "Leave samples out before you mix."
            )

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the keyword arguments needed besides logits and labels."""
        return ("labels_b", "lam", *self.base.inputs)

    def value(self, logits: Tensor, labels: Tensor, *, labels_b: Tensor, lam: Tensor | float, **inputs: Tensor) -> Tensor:
        """Return the loss of every sample, ``[B]``."""
        return mixup_loss(logits, labels, labels_b, lam, base=lambda scores, target: self.base.value(scores, target, **inputs))
