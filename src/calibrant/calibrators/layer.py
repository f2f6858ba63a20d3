"""A fitted calibrator as part of a network: an `nn.Module` that can be saved, exported and moved between devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Self

import torch
from torch import Tensor, nn

from calibrant.calibrators.log_space import keep_top
from calibrant.core.collect import find_logits


class CalibrationLayer(nn.Module):
    """Maps logits ``[B, C]`` (or dense ``[B, C, ...]``) to calibrated log-probabilities of the same shape.

    What was learned is held in buffers, so it is part of the ``state_dict`` and follows ``.to(device)``, but no optimiser
    changes it, and ``.half()`` leaves its precision. Computed in the precision of the buffers, or that of the logits if it is
    higher.

    Args:
        transform: Pure function ``(logits [..., C], **learned) -> log-probabilities [..., C]``.
        learned: Arguments of ``transform`` besides the logits.
        dtype: Precision of the buffers.
        out_dtype: Precision of the result; that of the logits, float32 for half precision, if None.
        classes_last: Whether classes are the last axis of the logits instead of the second.
        keeps_top: Whether the top class must stay whatever the rounding.
    """

    def __init__(
        self,
        transform: Callable[..., Tensor],
        learned: Mapping[str, Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        out_dtype: torch.dtype | None = None,
        classes_last: bool = False,
        keeps_top: bool = False,
    ) -> None:
        super().__init__()
        self._classes_last = classes_last
        self._keeps_top = keeps_top
        self._out_dtype = out_dtype
        self._transform = transform
        self._names = tuple(learned)
        for name, value in learned.items():
            self.register_buffer(name, value.detach().clone().to(dtype))

    def forward(self, logits: Tensor) -> Tensor:
        """Return calibrated log-probabilities, shaped as the logits."""
        learned = {name: self.get_buffer(name) for name in self._names}
        held = next(iter(learned.values())).dtype if learned else torch.float32
        wide = logits.to(torch.promote_types(held, logits.dtype))
        learned = {name: value.to(wide.dtype) for name, value in learned.items()}
        dense = logits.ndim > 2 and not self._classes_last
        wide = wide.movedim(1, -1) if dense else wide
        device = logits.device.type
        with torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext():
            found = self._transform(wide, **learned)
        found = keep_top(found, wide) if self._keeps_top else found
        single = logits.dtype if logits.dtype in (torch.float32, torch.float64) else torch.float32
        return (found.movedim(-1, 1) if dense else found).to(self._out_dtype or single)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move the buffers but keep their precision: in half of it a table of probabilities is no repair any more."""

        def move(value: Tensor) -> Tensor:
            moved = fn(value)
            return moved if moved.dtype == value.dtype else value.to(moved.device)

        super()._apply(move, recurse)
        return self


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

    def forward(self, inputs: object = None, /, *args: object, **kwargs: object) -> Tensor:
        """Return calibrated log-probabilities ``[B, C]`` (or ``[B, C, ...]``), for whatever the model is given.

        Of a model that returns more than logits, as those of Transformers do, only the logits are kept.
        """
        # The first argument has a name of its own, or `torch.export` would ask for other dynamic shapes than the model's.
        given = args if inputs is None and not args else (inputs, *args)
        logits = find_logits(self.model(*given, **kwargs), where="CalibratedModel")
        calibrated: Tensor = self.calibration(logits)
        return calibrated
