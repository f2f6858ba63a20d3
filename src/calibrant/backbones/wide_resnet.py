"""Wide residual networks (Zagoruyko and Komodakis, BMVC 2016)."""

from __future__ import annotations

from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.backbones.classifier import Classifier
from calibrant.backbones.resnet import conv3x3


class WideBlock(nn.Module):
    """Pre-activation block: BatchNorm and ReLU stand before each of two 3x3 convolutions."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, planes, stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes)
        same = stride == 1 and inputs == planes
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, planes, 1, stride=stride, bias=False)
        self.same = same

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, planes, H/stride, W/stride]``."""
        active = F.relu(self.bn1(x))
        out = self.conv2(F.relu(self.bn2(self.conv1(active))))
        # A projected shortcut starts from the activated input, an identity one from the input itself, as in the paper's code.
        return cast(Tensor, out + self.shortcut(x if self.same else active))


class WideResNet(Classifier):
    """Three stages of wide blocks and a global mean.

    Args:
        depth: Total depth, 6n + 4.
        widen: Width factor.
        num_classes: Number of classes C.
        in_channels: Channels of the images.
    """

    def __init__(self, depth: int, widen: int, num_classes: int, *, in_channels: int = 3) -> None:
        if (depth - 4) % 6:
            raise ValueError(f"WideResNet: `depth` must be 6n + 4, got {depth}.")
        super().__init__(64 * widen, num_classes)
        self.conv1 = conv3x3(in_channels, 16)
        blocks: list[nn.Module] = []
        inputs = 16
        for stage, width in enumerate((16 * widen, 32 * widen, 64 * widen)):
            for place in range((depth - 4) // 6):
                blocks.append(WideBlock(inputs, width, 2 if stage > 0 and place == 0 else 1))
                inputs = width
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(inputs)

    def features(self, images: Tensor) -> Tensor:
        """Return the globally averaged last feature map ``[B, num_features]``."""
        return F.relu(self.bn(self.blocks(self.conv1(images)))).mean((2, 3))


def wide_resnet28_10(num_classes: int, *, in_channels: int = 3) -> WideResNet:
    """Wide-ResNet-28-10, 640 features; 36,479,194 parameters at ten classes."""
    return WideResNet(28, 10, num_classes, in_channels=in_channels)
