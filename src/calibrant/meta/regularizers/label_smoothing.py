"""Learnable label smoothing: one amount for all, one per class, or a full matrix of where the mass goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from calibrant.losses import cross_entropy_loss
from calibrant.meta.regularizers.base import Head, Params, Regularizer

# Most that may be taken from the true class; beyond one half it would no longer be the target.
MOST = 0.5


class LabelSmoothing(Regularizer):
    r"""Cross-entropy with a target that keeps :math:`1 - s` for the true class and spreads :math:`s`, learnably.

    With :math:`s_y` the ``amount`` of class y (one number for all in the "scalar" form), the target of a sample is
    :math:`(1 - s_y)\,\mathrm{onehot}(y) + s_y / C` ("scalar", "per-class"), or :math:`1 - s_y` on y and
    :math:`s_y U_{yk} / (\sum_{l \ne y} U_{yl} + 10^{-6})` on every other class k ("non-uniform").

    Args:
        form: "scalar", "per-class" (one amount for each true class) or "non-uniform" (also a matrix ``share [C, C]``).
        flat_start: Start the matrix at ones, so that the first amount taken is spread evenly. The published code starts it at
            zeros, where mass taken from the true class is lost and the matrix receives no gradient until the amounts move.

    Example:
        >>> smoothing = LabelSmoothing()
        >>> smoothing.target({"amount": torch.tensor(0.3)}, torch.tensor([1]), num_classes=3)
        tensor([[0.1000, 0.8000, 0.1000]])

    Reference:
        Bohdal, Yang and Hospedales, "Meta-Calibration", TMLR 2023.
    """

    pace: ClassVar[float] = 1e-3

    def __init__(self, *, form: Literal["scalar", "per-class", "non-uniform"] = "scalar", flat_start: bool = True) -> None:
        if form not in ("scalar", "per-class", "non-uniform"):
            raise ValueError(f"LabelSmoothing: `form` must be 'scalar', 'per-class' or 'non-uniform', got {form!r}.")
        self.form, self.flat_start = form, flat_start

    def init(
        self, num_features: int, num_classes: int, *, bias: bool = True, generator: torch.Generator | None = None
    ) -> Params:
        """Return ``amount`` (``[]`` or ``[C]``) of zero and, for the non-uniform form, ``share [C, C]``."""
        if self.form == "scalar":
            return {"amount": torch.zeros(())}
        hyper = {"amount": torch.zeros(num_classes)}
        if self.form == "non-uniform":
            hyper["share"] = torch.full((num_classes, num_classes), 1.0 if self.flat_start else 0.0)
        return hyper

    def target(self, hyper: Mapping[str, Tensor], labels: Tensor, *, num_classes: int) -> Tensor:
        """Return the target ``[B, C]`` of every sample, differentiable in ``hyper``."""
        amount = hyper["amount"]
        taken = (amount.expand(len(labels)) if amount.ndim == 0 else amount[labels]).unsqueeze(1)
        truth = torch.nn.functional.one_hot(labels.long(), num_classes).to(amount.dtype)
        if "share" not in hyper:
            return (1 - taken) * truth + taken / num_classes
        others = hyper["share"][labels] * (1 - truth)
        return (1 - taken) * truth + taken * others / (others.sum(1, keepdim=True) + 1e-6)

    def loss(self, hyper: Mapping[str, Tensor], features: Tensor, logits: Tensor, labels: Tensor, head: Head) -> Tensor:
        """Return cross-entropy against the smoothed target, ``[B]``."""
        return cross_entropy_loss(logits, self.target(hyper, labels, num_classes=logits.shape[1]))

    def gradients(
        self, hyper: Mapping[str, Tensor], features: Tensor, logits: Tensor, labels: Tensor, head: Head
    ) -> tuple[Tensor, Params]:
        r"""Return :math:`q_i \sum_k t_{ik} - t_i`, ``[B, C]``; the loss does not read the head."""
        target = self.target(hyper, labels, num_classes=logits.shape[1])
        probs = torch.softmax(logits.detach().to(target.dtype), 1)
        return probs * target.sum(1, keepdim=True) - target, {}

    def project(self, hyper: Mapping[str, Tensor]) -> Params:
        """Return amounts within [0, 0.5] and a matrix without negative entries."""
        return {name: value.clamp(0.0, MOST) if name == "amount" else value.clamp(min=0.0) for name, value in hyper.items()}

    def alarm(self, values: Mapping[str, float]) -> str | None:
        """Say so if the mean amount is at its bound."""
        if values.get("amount_mean", 0.0) >= MOST - 1e-3:
            return f"label smoothing is at its bound of {MOST:g}: half of every target is spread. Lower `meta_lr`."
        return None
