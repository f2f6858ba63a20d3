"""Networks for small images with a 3x3 stem: ResNet-18/34/50, the thin ResNet-110, Wide-ResNet and DenseNet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.backbones.classifier import Classifier, conv3x3


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
    """Three stages of wide blocks and a global mean (Zagoruyko and Komodakis, BMVC 2016).

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
    """DenseNet-BC for small images: three dense blocks (Huang et al., CVPR 2017).

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
