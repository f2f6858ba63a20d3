"""Networks for small images, each a feature extractor and a linear classifier named ``head``.

ResNet-18/34/50, the thin ResNet-110, Wide-ResNet and DenseNet with a 3x3 stem, and two small ones for a CPU. All take the
number of classes C as ``num_classes`` and the number of channels of the images as ``in_channels``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution without bias, padded to keep the size."""
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class Classifier(nn.Module):
    """A network whose logits are ``head(features(x))``.

    Subclasses define ``features``, which maps images ``[B, 3, H, W]`` to ``[B, num_features]``. Gamma-Net reads those features,
    and look-ahead steps move ``head`` alone, so the two halves are public.

    Args:
        num_features: Width of the penultimate layer.
        num_classes: Number of classes C.
    """

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        if num_classes < 2:
            raise ValueError(f"Classifier: `num_classes` must be >= 2, got {num_classes}.")
        self.num_features = num_features
        self.head = nn.Linear(num_features, num_classes)

    def features(self, images: Tensor) -> Tensor:
        """Return the penultimate features ``[B, num_features]``."""
        raise TypeError(f"{type(self).__name__} must define `features(images)`.")

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits ``[B, C]``."""
        return cast(Tensor, self.head(self.features(images)))


class ConvNet(Classifier):
    """Two 3x3 convolutions of ``width`` and twice ``width`` channels with BatchNorm, pooling, and a hidden layer."""

    def __init__(self, num_classes: int, *, in_channels: int = 3, width: int = 32) -> None:
        super().__init__(128, num_classes)
        self.conv1 = conv3x3(in_channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, 2 * width)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.hidden = nn.Linear(2 * width * 4, self.num_features)

    def features(self, images: Tensor) -> Tensor:
        """Return the hidden layer ``[B, num_features]``; any image of at least 4x4 pixels works."""
        out = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 2)
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(cast(Tensor, self.hidden(F.adaptive_avg_pool2d(out, 2).flatten(1))))


class MLP(Classifier):
    """Two hidden layers of ``num_features`` over flattened inputs of ``num_inputs`` numbers (channels x height x width)."""

    def __init__(self, num_classes: int, *, num_inputs: int, num_features: int = 128) -> None:
        super().__init__(num_features, num_classes)
        self.hidden1 = nn.Linear(num_inputs, num_features)
        self.hidden2 = nn.Linear(num_features, num_features)

    def features(self, images: Tensor) -> Tensor:
        """Return the second hidden layer ``[B, num_features]``."""
        out = F.relu(cast(Tensor, self.hidden1(images.flatten(1))))
        return F.relu(cast(Tensor, self.hidden2(out)))


convnet = ConvNet
mlp = MLP


def projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The shortcut: identity where shapes agree, else a strided 1x1 convolution with BatchNorm."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs))


def padding(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The shortcut without parameters: subsample, and pad new channels with zeros on both sides (option A)."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    before = (outputs - inputs) // 2
    return nn.Sequential(nn.AvgPool2d(1, stride), nn.ZeroPad3d((0, 0, 0, 0, before, outputs - inputs - before)))


Block: TypeAlias = Callable[[int, int, int], nn.Module]


def stages(block: Block, depths: Sequence[int], widths: Sequence[int], *, inputs: int, expansion: int = 1) -> nn.Sequential:
    """Residual blocks in a row; the first block of each stage but the first halves the image."""
    blocks: list[nn.Module] = []
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for place in range(depth):
            blocks.append(block(inputs, width, 2 if stage > 0 and place == 0 else 1))
            inputs = width * expansion
    return nn.Sequential(*blocks)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut."""

    def __init__(self, inputs: int, planes: int, stride: int, shortcut: Block = projection) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, planes, stride)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = conv3x3(planes, planes)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = shortcut(inputs, planes, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, planes, H/stride, W/stride]``."""
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 1x1 - 3x3 - 1x1 chain beside a shortcut, widening fourfold."""

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


class ResNet(Classifier):
    """A stem, stages of residual blocks (each after the first halving the image), and a global mean.

    Args:
        block: Kind of block.
        depths: Blocks of each stage.
        widths: Planes of each stage.
        num_classes: Number of classes.
        in_channels: Channels of the images.
        expansion: Channels that a block gives for each of its planes.
    """

    def __init__(
        self,
        block: Block,
        depths: Sequence[int],
        widths: Sequence[int],
        num_classes: int,
        *,
        in_channels: int = 3,
        expansion: int = 1,
    ) -> None:
        super().__init__(widths[-1] * expansion, num_classes)
        self.conv1 = conv3x3(in_channels, widths[0])
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.blocks = stages(block, depths, widths, inputs=widths[0], expansion=expansion)

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
    return ResNet(Bottleneck, (3, 4, 6, 3), (64, 128, 256, 512), num_classes, in_channels=in_channels, expansion=4)


def resnet110(num_classes: int, *, in_channels: int = 3) -> ResNet:
    """The thin three-stage ResNet-110 (6n + 2 with n = 18, parameter-free shortcuts), 64 features; He's initialisation.

    With PyTorch's default initialisation a network of this depth hardly starts to learn; He et al. (CVPR 2016, section 4.2)
    initialise convolutions by fan-out.
    """
    block = partial(BasicBlock, shortcut=padding)
    model = ResNet(block, (18, 18, 18), (16, 32, 64), num_classes, in_channels=in_channels)
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
        self.same = stride == 1 and inputs == planes
        self.shortcut = nn.Identity() if self.same else nn.Conv2d(inputs, planes, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, planes, H/stride, W/stride]``."""
        active = F.relu(self.bn1(x))
        out = self.conv2(F.relu(self.bn2(self.conv1(active))))
        # A projected shortcut starts from the activated input, an identity one from the input itself, as in the paper's code.
        return cast(Tensor, out + self.shortcut(x if self.same else active))


class WideResNet(Classifier):
    """Three stages of blocks, ``widen`` times as wide and 6n + 4 layers deep (Zagoruyko and Komodakis, BMVC 2016)."""

    def __init__(self, depth: int, widen: int, num_classes: int, *, in_channels: int = 3) -> None:
        super().__init__(64 * widen, num_classes)
        self.conv1 = conv3x3(in_channels, 16)
        self.blocks = stages(WideBlock, [(depth - 4) // 6] * 3, (16 * widen, 32 * widen, 64 * widen), inputs=16)
        self.bn = nn.BatchNorm2d(64 * widen)

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
    """DenseNet-BC for small images: three blocks, 6n + 4 layers that add ``growth`` channels each (Huang et al., CVPR 2017)."""

    def __init__(self, depth: int, growth: int, num_classes: int, *, in_channels: int = 3) -> None:
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
