"""Cross-entropy with a learnable L2 coefficient for every weight of the head: the regularizer of CE-DECE and CE-SECE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from calibrant.losses import cross_entropy_loss
from calibrant.meta.regularizers.base import Head, Params, Regularizer, cross_entropy_gradient


class UnitwiseL2(Regularizer):
    r"""Cross-entropy plus :math:`\sum_u \omega_u \theta_u^2` over every weight and bias :math:`\theta_u` of the head.

    The mixed derivative is closed: a step of size :math:`\eta` moves :math:`\theta_u` by :math:`-2 \eta \omega_u \theta_u`.
    Left unconstrained, as in the published code, coefficients may become negative and push weights away from zero without
    end: on a small planted problem the penalty fell to -700 within 300 meta steps.

    Args:
        nonnegative: Clamp coefficients at zero after every meta step; the published code does not.
        init: Coefficient of every unit at the start.
        share: Whether the penalty counts once per "example", so that it weighs the same under a mean and under a sum of losses,
            or once per "batch", as in the published code, where a summed loss of 128 samples drowns it 128-fold.

    Example:
        >>> penalised = UnitwiseL2(init=0.5)
        >>> hyper = penalised.init(1, 2)
        >>> head = {"weight": torch.tensor([[2.0], [0.0]]), "bias": torch.zeros(2)}
        >>> penalised.loss(hyper, torch.ones(1, 1), torch.zeros(1, 2), torch.tensor([0]), head)  # ln 2 + 0.5 * 4
        tensor([2.6931])

    Reference:
        Bohdal, Yang and Hospedales, "Meta-Calibration", 2021; TMLR 2023.
    """

    # Per meta step and coefficient. On small planted problems 1e-5 was too slow to be felt and 1e-3 diverged.
    pace: ClassVar[float] = 1e-4

    def __init__(self, *, nonnegative: bool = True, init: float = 0.0, share: Literal["example", "batch"] = "example") -> None:
        if share not in ("example", "batch"):
            raise ValueError(f"UnitwiseL2: `share` must be 'example' or 'batch', got {share!r}.")
        self.nonnegative, self.start, self.share = nonnegative, init, share

    def init(
        self, num_features: int, num_classes: int, *, bias: bool = True, generator: torch.Generator | None = None
    ) -> Params:
        """Return one coefficient per entry of the head: ``weight [C, d]`` and, with a bias, ``bias [C]``."""
        hyper = {"weight": torch.full((num_classes, num_features), self.start)}
        return hyper | ({"bias": torch.full((num_classes,), self.start)} if bias else {})

    def loss(self, hyper: Mapping[str, Tensor], features: Tensor, logits: Tensor, labels: Tensor, head: Head) -> Tensor:
        """Return cross-entropy plus the penalty, ``[B]``."""
        penalty = torch.stack([(hyper[name] * head[name].square()).sum() for name in hyper]).sum()
        return cross_entropy_loss(logits, labels) + penalty * (self._count(labels) / len(labels))

    def gradients(
        self, hyper: Mapping[str, Tensor], features: Tensor, logits: Tensor, labels: Tensor, head: Head
    ) -> tuple[Tensor, Params]:
        """Return the gradient of cross-entropy ``[B, C]`` and that of the summed penalty."""
        count = self._count(labels)
        direct = {name: 2 * count * hyper[name] * head[name].detach() for name in hyper}
        return cross_entropy_gradient(logits.detach(), labels), direct

    def project(self, hyper: Mapping[str, Tensor]) -> Params:
        """Return the coefficients, clamped at zero if they must not be negative."""
        return {name: value.clamp(min=0.0) if self.nonnegative else value for name, value in hyper.items()}

    def summary(
        self, hyper: Mapping[str, Tensor], *, features: Tensor | None = None, head: Head | None = None
    ) -> dict[str, Tensor]:
        """Return the spread of the coefficients and, given the head, the penalty they make."""
        found = super().summary(hyper)
        if head is not None:
            found["penalty"] = torch.stack([(hyper[n].detach() * head[n].detach().square()).sum() for n in hyper]).sum()
        return found

    def alarm(self, values: Mapping[str, float]) -> str | None:
        """Say so if negative coefficients outweigh any cross-entropy."""
        if values.get("penalty", 0.0) < -1.0:
            return (
                f"the learned L2 penalty is {values['penalty']:.3g}: negative coefficients push the head's weights away from "
                "zero without end. Use `nonnegative=True` or lower `meta_lr`."
            )
        return None

    def _count(self, labels: Tensor) -> int:
        return len(labels) if self.share == "example" else 1
