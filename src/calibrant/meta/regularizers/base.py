"""What every learnable regularizer is: a training loss with hyper-parameters that a look-ahead step can improve.

The hyper-parameters travel as values, ``dict[str, Tensor]``; a regularizer holds only its constants.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor

Params: TypeAlias = "dict[str, Tensor]"
Head: TypeAlias = "Mapping[str, Tensor]"


class Regularizer(ABC):
    """A training loss with learnable hyper-parameters.

    ``init`` and ``loss`` are all that a new one must define. Contract: ``loss`` depends on the network through ``logits`` and
    through ``head`` (``weight [C, d]`` and, if the layer has one, ``bias [C]``) only; ``features`` are constants, handed over
    detached, since a loss that could be lowered by changing them would train the network to please its hyper-parameters.

    Attributes:
        pace: How far one meta step of the default preset moves what the hyper-parameters control, in its own unit.
    """

    pace: ClassVar[float] = 1e-3

    @abstractmethod
    def init(
        self, num_features: int, num_classes: int, *, bias: bool = True, generator: torch.Generator | None = None
    ) -> Params:
        """Return the hyper-parameters to start from, for a head ``[num_classes, num_features]`` with or without ``bias``."""

    @abstractmethod
    def loss(self, hyper: Mapping[str, Tensor], features: Tensor, logits: Tensor, labels: Tensor, head: Head) -> Tensor:
        """Return the training loss of every sample ``[B]``, differentiable in ``hyper``, ``logits`` and ``head``."""

    def gradients(
        self, hyper: Mapping[str, Tensor], features: Tensor, logits: Tensor, labels: Tensor, head: Head
    ) -> tuple[Tensor, Params]:
        """Gradient of the *summed* loss, still differentiable in ``hyper``.

        This general form differentiates `loss` over the last layer's small graph; a regularizer overrides it where a closed
        form is cheaper.

        Returns:
            With respect to the logits ``[B, C]``, and with respect to those entries of ``head`` that the loss reads directly.
        """
        at = logits.detach().requires_grad_()
        entries = {name: value.detach().requires_grad_() for name, value in head.items()}
        with torch.enable_grad():
            total = self.loss(hyper, features, at, labels, entries).sum()
            found = torch.autograd.grad(total, [at, *entries.values()], create_graph=True, allow_unused=True)
        direct = {name: grad for name, grad in zip(entries, found[1:], strict=True) if grad is not None}
        return torch.zeros_like(at) if found[0] is None else found[0], direct

    def project(self, hyper: Mapping[str, Tensor]) -> Params:
        """Return the nearest hyper-parameters that are allowed; called after every meta step."""
        return dict(hyper)

    def speed(self, hyper: Mapping[str, Tensor]) -> Tensor | float:
        """How far a unit step in every hyper-parameter moves what they control; `pace` divided by it is the learning rate."""
        return 1.0

    def summary(
        self, hyper: Mapping[str, Tensor], *, features: Tensor | None = None, head: Head | None = None
    ) -> dict[str, Tensor]:
        """Return the numbers worth logging, each ``[]`` and without a device synchronisation."""
        return {f"{name}_{key}": value for name, tensor in hyper.items() for key, value in spread_of(tensor.detach()).items()}

    def alarm(self, values: Mapping[str, float]) -> str | None:
        """Say what is wrong if the summary ``values`` show hyper-parameters that ran away, else None."""
        return None


def spread_of(values: Tensor) -> dict[str, Tensor]:
    """Mean, standard deviation (of the values themselves, 0 for one), least and greatest."""
    low, high = values.aminmax()
    return {"mean": values.mean(), "std": values.std(correction=0), "min": low, "max": high}


def cross_entropy_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Gradient of every sample's cross-entropy with respect to its logits, :math:`q_i - \mathrm{onehot}(y_i)`, ``[B, C]``."""
    scores = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    probs = torch.softmax(scores, 1)
    index = labels.long().unsqueeze(1)
    # p - 1 of a probable true class, computed as minus the sum of the others, does not round to zero.
    others = probs.scatter(1, index, 0.0)
    return others.scatter(1, index, -others.sum(1, keepdim=True))
