"""Shared inputs of the tests."""

from __future__ import annotations

import torch
from torch import Tensor


def golden() -> tuple[Tensor, Tensor]:
    """Logits ``[24, 5]`` (float64) and labels of the golden values: one third of the predictions are wrong, gaps of both signs."""
    i = torch.arange(24, dtype=torch.float64).unsqueeze(1)
    k = torch.arange(5, dtype=torch.float64).unsqueeze(0)
    logits = 3 * torch.sin(1.7 * i + 0.9 * k**2) + 0.5 * torch.cos(i * k)
    predicted = logits.argmax(1)
    row = torch.arange(24)
    labels = torch.where(row % 3 == 2, (predicted + 1 + row % 4) % 5, predicted)
    return logits, labels


def mixed_gaps(n: int = 2000, num_classes: int = 10, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Probabilities and labels whose confidence is too high in some places and too low in others.

    On uniformly over-confident data all binnings agree and hide bugs, so the true label is drawn from a distorted posterior:
    sharper than the stated one for even classes, flatter for odd ones.
    """
    generator = torch.Generator().manual_seed(seed)
    logits = 2.0 * torch.randn(n, num_classes, generator=generator, dtype=torch.float64)
    top = logits.argmax(1)
    scale = torch.where(top % 2 == 0, 1.6, 0.6).unsqueeze(1)
    labels = torch.multinomial((logits * scale).softmax(1), 1, generator=generator).squeeze(1)
    return logits.softmax(1).to(dtype), labels
