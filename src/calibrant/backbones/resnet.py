"""Residual networks for small images: the 3x3-stem ResNet-18/34/50 and the thin ResNet-110."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.backbones.classifier import Classifier


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution without bias, padded to keep the size."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = projection(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, planes, H/stride, W/stride]``."""
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 1x1 - 3x3 - 1x1 chain beside a shortcut, widening fourfold."""

    expansion = 4

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes, stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.shortcut = projection(inputs, 4 * planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, 4 planes, H/stride, W/stride]``."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


class PaddedBlock(nn.Module):
    """A basic block whose shortcut has no parameters: subsample, and pad new channels with zeros (option A)."""

    expansion = 1

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.stride = stride
        self.padding = planes - inputs

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, planes, H/stride, W/stride]``."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        short = x[:, :, :: self.stride, :: self.stride]
        half = self.padding // 2
        return F.relu(out + F.pad(short, (0, 0, 0, 0, half, self.padding - half)))


def projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The shortcut: identity where shapes agree, else a strided 1x1 convolution with BatchNorm."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


class ResNet(Classifier):
    """A stem, stages of residual blocks (each after the first halving the image), and a global mean.

    Args:
        block: Kind of block.
        depths: Blocks of each stage.
        widths: Planes of each stage.
        num_classes: Number of classes C.
        in_channels: Channels of the images.
    """

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck] | type[PaddedBlock],
        depths: Sequence[int],
        widths: Sequence[int],
        num_classes: int,
        *,
        in_channels: int = 3,
    ) -> None:
        super().__init__(widths[-1] * block.expansion, num_classes)
        self.conv1 = conv3x3(in_channels, widths[0])
        self.bn1 = nn.BatchNorm2d(widths[0])
        blocks: list[nn.Module] = []
        inputs = widths[0]
        for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            for place in range(depth):
                stride = 2 if stage > 0 and place == 0 else 1
                blocks.append(block(inputs, width, stride))
                inputs = width * block.expansion
        self.blocks = nn.Sequential(*blocks)

    def features(self, images: Tensor) -> Tensor:
        """Return the globally averaged last feature map ``[B, num_features]``."""
        out = F.relu(self.bn1(self.conv1(images)))
        return cast(Tensor, self.blocks(out)).mean((2, 3))


def resnet18(num_classes: int, *, in_channels: int = 3) -> ResNet:
    """ResNet-18 with a 3x3 stem, 512 features; 11,173,962 parameters at ten classes (He et al., CVPR 2016)."""
    return ResNet(BasicBlock, (2, 2, 2, 2), (64, 128, 256, 512), num_classes, in_channels=in_channels)


def resnet34(num_classes: int, *, in_channels: int = 3) -> ResNet:
    """ResNet-34 with a 3x3 stem, 512 features."""
    return ResNet(BasicBlock, (3, 4, 6, 3), (64, 128, 256, 512), num_classes, in_channels=in_channels)


def resnet50(num_classes: int, *, in_channels: int = 3) -> ResNet:
    """ResNet-50 with a 3x3 stem, 2,048 features."""
    return ResNet(Bottleneck, (3, 4, 6, 3), (64, 128, 256, 512), num_classes, in_channels=in_channels)


def resnet110(num_classes: int, *, in_channels: int = 3) -> ResNet:
    """The thin three-stage ResNet-110 (6n + 2 with n = 18, parameter-free shortcuts), 64 features; He's initialisation.

    With PyTorch's default initialisation a network of this depth hardly starts to learn; He et al. (CVPR 2016, section 4.2)
    initialise convolutions by fan-out.
    """
    model = ResNet(PaddedBlock, (18, 18, 18), (16, 32, 64), num_classes, in_channels=in_channels)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model
