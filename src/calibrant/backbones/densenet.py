"""Densely connected networks with bottlenecks and compression (Huang et al., CVPR 2017)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.backbones.classifier import Classifier
from calibrant.backbones.resnet import conv3x3


class DenseLayer(nn.Module):
    """BN-ReLU-1x1 to four times the growth rate, BN-ReLU-3x3 to the growth rate; the output is appended to the input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, 4 * growth, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = conv3x3(4 * growth, growth)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, inputs + growth, H, W]``."""
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        return torch.cat([x, out], 1)


class Transition(nn.Module):
    """Halve the channels by a 1x1 convolution and the image by a mean."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, outputs, H/2, W/2]``."""
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class DenseNet(Classifier):
    """DenseNet-BC for small images: three dense blocks.

    Args:
        depth: Total depth, 6n + 4.
        growth: Channels that each layer adds.
        num_classes: Number of classes C.
        in_channels: Channels of the images.
    """

    def __init__(self, depth: int, growth: int, num_classes: int, *, in_channels: int = 3) -> None:
        if (depth - 4) % 6:
            raise ValueError(f"DenseNet: `depth` must be 6n + 4, got {depth}.")
        channels = 2 * growth
        parts: list[nn.Module] = [conv3x3(in_channels, channels)]
        for stage in range(3):
            for _ in range((depth - 4) // 6):
                parts.append(DenseLayer(channels, growth))
                channels += growth
            if stage < 2:
                parts.append(Transition(channels, channels // 2))
                channels //= 2
        super().__init__(channels, num_classes)
        self.blocks = nn.Sequential(*parts)
        self.bn = nn.BatchNorm2d(channels)

    def features(self, images: Tensor) -> Tensor:
        """Return the globally averaged last feature map ``[B, num_features]``."""
        return F.relu(self.bn(self.blocks(images))).mean((2, 3))


def densenet_bc100(num_classes: int, *, in_channels: int = 3) -> DenseNet:
    """DenseNet-BC-100 with growth rate 12, 342 features; 769,162 parameters at ten classes."""
    return DenseNet(100, 12, num_classes, in_channels=in_channels)
