"""A fitted calibrator as part of a network: an `nn.Module` that can be saved, exported and moved between devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


class CalibrationLayer(nn.Module):
    """Maps logits ``[B, C]`` (or dense ``[B, C, ...]``) to calibrated log-probabilities of the same shape.

    What was learned is held in buffers, so it is part of the ``state_dict`` and follows ``.to(device)``, but no optimiser
    changes it. Logits are computed in the dtype of the buffers.

    Args:
        transform: Pure function ``(logits [..., C], **learned) -> log-probabilities [..., C]``.
        learned: Arguments of ``transform`` besides the logits.
        dtype: Precision of the buffers.
        classes_last: Whether classes are the last axis of the logits instead of the second.
    """

    def __init__(
        self,
        transform: Callable[..., Tensor],
        learned: Mapping[str, Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        classes_last: bool = False,
    ) -> None:
        super().__init__()
        self._classes_last = classes_last
        self._transform = transform
        self._names = tuple(learned)
        for name, value in learned.items():
            self.register_buffer(name, value.detach().clone().to(dtype))

    def forward(self, logits: Tensor) -> Tensor:
        """Return calibrated log-probabilities, shaped as the logits."""
        learned = {name: self.get_buffer(name) for name in self._names}
        wide = logits.to(next(iter(learned.values())).dtype) if learned else logits
        if logits.ndim <= 2 or self._classes_last:
            return self._transform(wide, **learned)
        return self._transform(wide.movedim(1, -1), **learned).movedim(-1, 1)


class CalibratedModel(nn.Module):
    """A model whose output is calibrated: ``model`` gives logits, ``calibration`` turns them into log-probabilities.

    Args:
        model: The network.
        calibration: Its repair.
    """

    def __init__(self, model: nn.Module, calibration: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.calibration = calibration

    def forward(self, inputs: Tensor, *args: Tensor, **kwargs: Tensor) -> Tensor:
        """Return calibrated log-probabilities of what the model is given."""
        logits: Tensor = self.model(inputs, *args, **kwargs)
        calibrated: Tensor = self.calibration(logits)
        return calibrated
