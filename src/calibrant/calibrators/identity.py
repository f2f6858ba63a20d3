"""Doing nothing, as a calibrator: what is chosen where no repair helps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor

from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import FitData


def identity_log_probs(logits: Tensor) -> Tensor:
    """Log-softmax of ``logits [..., C]``.

    Example:
        >>> import torch
        >>> identity_log_probs(torch.tensor([1.0986, 0.0])).exp()
        tensor([0.7500, 0.2500])
    """
    return logits.log_softmax(-1)


class Identity(Calibrator):
    """Leaves probabilities as they are."""

    preserves_accuracy: ClassVar[bool] = True
    transform = staticmethod(identity_log_probs)
    needs_every_class: ClassVar[bool] = False

    def fewest_samples(self, num_classes: int) -> int:
        """Any number of examples will do."""
        return 1

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        return {}
