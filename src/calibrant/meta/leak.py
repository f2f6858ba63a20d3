"""Moved to `calibrant.meta.lookahead`; goes with the next step of the engine."""

import torch
from torch import Tensor

from calibrant.meta.lookahead import leaked_value as leaked_value


def own_gradient(grad: Tensor, value: Tensor) -> Tensor:
    """Copy a gradient, laid out as its parameter."""
    return torch.empty_like(value).copy_(grad)
