"""Mixup: training on convex combinations of pairs of examples, inputs and loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

import torch
from torch import Tensor

from calibrant.core.checks import range_if_free
from calibrant.losses.base import Loss, Objective, Reduction, Shared, WeightedSum
from calibrant.losses.cross_entropy import CrossEntropyLoss, cross_entropy_loss


def mixup_inputs(
    inputs: Tensor, labels: Tensor, *, alpha: float = 1.0, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    r"""Mix every example of a batch with another of the same batch.

    One :math:`\lambda \sim \mathrm{Beta}(\alpha, \alpha)` is drawn per batch, and one permutation :math:`\pi`:

    .. math:: \tilde x_i = \lambda x_i + (1 - \lambda) x_{\pi(i)}, \qquad a_i = y_i, \qquad b_i = y_{\pi(i)} .

    Args:
        inputs: Floating ``[B, ...]``.
        labels: ``[B]``, or targets ``[B, C]``.
        alpha: Strength, at least 0; 0 leaves the inputs as they are. The default 1, a uniform :math:`\lambda`, is that of
            the released code.
        generator: Source of randomness, on any device.

    Returns:
        Mixed inputs ``[B, ...]``, labels a ``[B]``, labels b ``[B]`` and :math:`\lambda` ``[]`` (float32), for `mixup_loss`.
        Raises ``ValueError`` if shapes disagree.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> mixed, labels_a, labels_b, lam = mixup_inputs(torch.eye(2), torch.tensor([0, 1]), generator=generator)
        >>> lam, labels_b
        (tensor(0.4963), tensor([1, 0]))

    Reference:
        Zhang et al., ICLR 2018, section 2; for calibration Thulasidasan et al., NeurIPS 2019.
    """
    where = "mixup_inputs"
    if not inputs.is_floating_point():
        raise ValueError(f"{where}: `inputs` must be floating point, got {inputs.dtype}. Convert images first.")
    if inputs.ndim < 1 or labels.ndim < 1 or len(labels) != len(inputs) or len(inputs) == 0:
        raise ValueError(
            f"{where}: `inputs` and `labels` must have the same batch size B >= 1, got {list(inputs.shape)} and "
            f"{list(labels.shape)}."
        )
    if not 0 <= alpha < float("inf"):
        raise ValueError(f"{where}: `alpha` must be a finite number >= 0, got {alpha!r}.")
    lam = torch.full((), _draw_beta(alpha, generator), device=inputs.device)
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
        logits: Scores ``[B, C]`` of the mixed inputs. float16 and bfloat16 are computed, and returned, in float32.
        labels_a: Class indices ``[B]`` of the first examples.
        labels_b: Class indices ``[B]`` of those mixed into them.
        lam: Proportion :math:`\lambda` in [0, 1] of the first ones: a number, or a tensor ``[]`` or ``[B]``.
        base: Per-sample loss.

    Returns:
        ``[B]``. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> mixup_loss(logits, torch.tensor([0]), torch.tensor([1]), 0.75)
        tensor([0.6269])

    Reference:
        Zhang et al., ICLR 2018, section 2, in the form of their released code.
    """
    _check_proportion(lam, logits)
    return lam * base(logits, labels_a) + (1 - lam) * base(logits, labels_b)


class MixupLoss(Loss):
    """`mixup_loss` as a module, called ``loss(logits, labels_a, labels_b=labels_b, lam=lam)``.

    Args:
        base: What is mixed: a loss, or a sum with penalties, each of which is then taken towards both labels.
            Cross-entropy if None.
        reduction: "mean", "sum" or "none"; that of ``base`` is not used.
        shared: Neither ``ignore_index`` nor ``weight``: a mixed sample has two labels.

    Example:
        >>> loss = MixupLoss()
        >>> loss(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), labels_b=torch.tensor([1]), lam=torch.tensor(0.75))
        tensor(0.6269)
    """

    def __init__(
        self, *, base: Loss | WeightedSum | None = None, reduction: Reduction = "mean", **shared: Unpack[Shared]
    ) -> None:
        super().__init__(reduction=reduction, **shared)
        self.base: Objective = CrossEntropyLoss() if base is None else base
        given = getattr(self.base, "reduction", None)
        if given is None:
            raise ValueError(f"MixupLoss: `base` must be or hold a per-sample loss, got {self.base!r}.")
        if given not in ("mean", reduction):
            raise ValueError(f"MixupLoss: `base` must not reduce by {given!r}. Pass `reduction={given!r}` to MixupLoss itself.")
        if not (self._plain and self.base._plain):
            raise ValueError(
                "MixupLoss: neither it nor `base` may have an `ignore_index` or a `weight`, as a mixed sample has two labels. "
                "Leave samples out before they are mixed."
            )

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the keyword arguments needed besides logits and labels."""
        return ("labels_b", "lam", *self.base.inputs)

    def set_epoch(self, epoch: int) -> None:
        """Tell ``base`` which epoch, counted from 0, is about to run."""
        self.base.set_epoch(epoch)

    def value(self, logits: Tensor, labels: Tensor, *, labels_b: Tensor, lam: Tensor | float, **inputs: Tensor) -> Tensor:
        """Return the loss of every sample, ``[B]``."""
        return mixup_loss(logits, labels, labels_b, lam, base=lambda scores, target: self.base.value(scores, target, **inputs))


def _draw_beta(alpha: float, generator: torch.Generator | None) -> float:
    # torch's own Beta sampler takes no generator, so the quantile function is applied to a uniform draw.
    from scipy.special import betaincinv

    device = "cpu" if generator is None else generator.device
    uniform = float(torch.rand((), generator=generator, device=device))
    return 1.0 if alpha == 0 else float(betaincinv(alpha, alpha, uniform))


def _check_proportion(lam: Tensor | float, logits: Tensor) -> None:
    if isinstance(lam, Tensor):
        if lam.ndim and lam.shape != logits.shape[:1]:
            raise ValueError(f"mixup_loss: `lam` must be a number, [] or [B] = [{len(logits)}], got {list(lam.shape)}.")
        low, high = range_if_free(lam, 0.0, 1.0)
        if not (low >= 0 and high <= 1):
            raise ValueError(f"mixup_loss: `lam` must lie in [0, 1], got {low if not low >= 0 else high:.4g}.")
    elif not 0 <= lam <= 1:
        raise ValueError(f"mixup_loss: `lam` must lie in [0, 1], got {lam!r}.")
