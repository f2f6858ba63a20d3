"""Random crop, mirror and normalisation of whole batches on the device that holds the images.

All randomness is drawn beforehand (`draw_epoch`), so that a step captured once and replayed sees new crops every time and a
resumed epoch sees the same ones.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class EpochDraw(NamedTuple):
    """The random choices of one epoch: order of the examples, and crop corner and mirroring of each place in the order."""

    order: Tensor
    rows: Tensor
    columns: Tensor
    mirrored: Tensor


def draw_epoch(n: int, *, pad: int, flip: bool, seed: int, epoch: int) -> EpochDraw:
    """Draw one epoch's order and augmentation from ``(seed, epoch)`` alone, on the CPU; crops start at 0..2 pad."""
    # Seeds of neighbouring epochs must not overlap between runs: one run's epoch 1 is not another's epoch 0.
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    order = torch.randperm(n, generator=generator)
    corner = torch.randint(0, 2 * pad + 1, (2, n), generator=generator)
    coin = torch.rand(n, generator=generator) < 0.5
    return EpochDraw(order, corner[0], corner[1], coin if flip else torch.zeros(n, dtype=torch.bool))


def pad_images(images: Tensor, pad: int) -> Tensor:
    """Surround ``[N, H, W, channels]`` with ``pad`` pixels of zero, once, so that a crop is a plain lookup."""
    return images if pad == 0 else F.pad(images, (0, 0, pad, pad, pad, pad))


def crop_batch(
    padded: Tensor, index: Tensor, rows: Tensor, columns: Tensor, mirrored: Tensor, *, size: tuple[int, int]
) -> Tensor:
    """Look up the examples ``index [B]`` of padded images, crop each at its row and column, and mirror some."""
    height, width = size
    down = torch.arange(height, device=padded.device)
    across = torch.arange(width, device=padded.device)
    y = rows.unsqueeze(1) + down
    x = columns.unsqueeze(1) + torch.where(mirrored.unsqueeze(1), width - 1 - across, across)
    return padded[index[:, None, None], y[:, :, None], x[:, None, :]]


def normalize(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Turn uint8 ``[B, H, W, channels]`` into standardised floats ``[B, channels, H, W]`` (channels-last in memory)."""
    scaled = images.to(mean.dtype).div(255).sub(mean).div(std)
    return scaled.permute(0, 3, 1, 2)
