"""What is computed from images where nobody has published it."""

from __future__ import annotations

import torch
from torch import Tensor


def channel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    r"""Mean and standard deviation of each channel, after division by 255.

    With the share :math:`f_{cv}` of the pixels of channel c that have value v, the mean is :math:`\sum_v f_{cv} v / 255` and
    the variance :math:`\sum_v f_{cv} (v / 255)^2` minus its square: exact, and no pixel is ever turned into a float.

    Args:
        images: ``[N, H, W, channels]``, uint8.

    Returns:
        The means and the standard deviations; a channel of one value throughout gets 1 for the latter, so that normalising
        by it is harmless.

    Example:
        >>> channel_statistics(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1))
        ((0.5,), (0.5,))
    """
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean, std = [], []
    for channel in images.unbind(3):
        share = torch.zeros(256, dtype=torch.float64)
        for block in channel.split(4096):
            share += torch.bincount(block.flatten(), minlength=256)
        share /= channel.numel()
        centre = float(share @ levels)
        spread = float(share @ (levels - centre).square()) ** 0.5
        mean.append(centre)
        std.append(spread if spread > 1e-9 else 1.0)
    return tuple(mean), tuple(std)
