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


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1) -> nn.Conv2d:
    """A square convolution without bias, padded to keep the size of the image."""
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


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
        self.conv1 = conv(in_channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, 2 * width)
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


Block: TypeAlias = Callable[[int, int, int], nn.Module]


def projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The shortcut: identity where shapes agree, else a strided 1x1 convolution with BatchNorm."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


def padding(inputs: int, outputs: int, stride: int) -> nn.Module:
    """The shortcut without parameters: subsample, and pad new channels with zeros on both sides (option A)."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    before = (outputs - inputs) // 2
    return nn.Sequential(nn.AvgPool2d(1, stride), nn.ZeroPad3d((0, 0, 0, 0, before, outputs - inputs - before)))


class Residual(nn.Module):
    """Convolutions with BatchNorm, and a ReLU between them, beside a shortcut."""

    def __init__(self, convolutions: Sequence[nn.Conv2d], shortcut: nn.Module) -> None:
        super().__init__()
        for place, part in enumerate(convolutions, 1):
            self.add_module(f"conv{place}", part)
            self.add_module(f"bn{place}", nn.BatchNorm2d(part.out_channels))
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, outputs, H/stride, W/stride]``."""
        out = x
        for name, part in self.named_children():
            if name.startswith("conv"):
                out = part(out if name == "conv1" else F.relu(out))
            elif name.startswith("bn"):
                out = part(out)
        return F.relu(out + self.shortcut(x))


def basic(inputs: int, planes: int, stride: int, shortcut: Block = projection) -> nn.Module:
    """Two 3x3 convolutions beside a shortcut."""
    return Residual([conv(inputs, planes, 3, stride), conv(planes, planes)], shortcut(inputs, planes, stride))


def bottleneck(inputs: int, planes: int, stride: int) -> nn.Module:
    """A 1x1 - 3x3 - 1x1 chain beside a shortcut, widening fourfold."""
    chain = [conv(inputs, planes, 1), conv(planes, planes, 3, stride), conv(planes, 4 * planes, 1)]
    return Residual(chain, projection(inputs, 4 * planes, stride))


class WideBlock(nn.Module):
    """Pre-activation block: BatchNorm and ReLU stand before each of two 3x3 convolutions."""

    def __init__(self, inputs: int, planes: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, planes, 3, stride)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = conv(planes, planes)
        self.same = stride == 1 and inputs == planes
        self.shortcut = nn.Identity() if self.same else conv(inputs, planes, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, planes, H/stride, W/stride]``."""
        active = F.relu(self.bn1(x))
        out = self.conv2(F.relu(self.bn2(self.conv1(active))))
        # A projected shortcut starts from the activated input, an identity one from the input itself, as in the paper's code.
        return cast(Tensor, out + self.shortcut(x if self.same else active))


class DenseLayer(nn.Module):
    """BN-ReLU-1x1 to four times the growth rate, BN-ReLU-3x3 to the growth rate; the output is appended to the input."""

    def __init__(self, inputs: int, growth: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv(inputs, 4 * growth, 1)
        self.bn2 = nn.BatchNorm2d(4 * growth)
        self.conv2 = conv(4 * growth, growth)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, inputs + growth, H, W]``."""
        out = self.conv1(F.relu(self.bn1(x)))
        return torch.cat([x, self.conv2(F.relu(self.bn2(out)))], 1)


class Transition(nn.Module):
    """Halve the channels by a 1x1 convolution and the image by a mean."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bn = nn.BatchNorm2d(inputs)
        self.conv = conv(inputs, outputs, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, outputs, H/2, W/2]``."""
        return F.avg_pool2d(self.conv(F.relu(self.bn(x))), 2)


class Chain(Classifier):
    """Parts one after another, with a ReLU behind every BatchNorm among them, and a global mean."""

    def add(self, **parts: nn.Module) -> Chain:
        """Append parts by name; BatchNorm by a name that begins with ``bn``."""
        for name, part in parts.items():
            self.add_module(name, part)
        return self

    def features(self, images: Tensor) -> Tensor:
        """Return the globally averaged last feature map ``[B, num_features]``."""
        out = images
        for name, part in self.named_children():
            if name != "head":
                out = F.relu(part(out)) if name.startswith("bn") else part(out)
        return out.mean((2, 3))


def _stages(block: Block, depths: Sequence[int], widths: Sequence[int], *, inputs: int, expansion: int = 1) -> nn.Sequential:
    """Residual blocks in a row; the first block of each stage but the first halves the image."""
    blocks: list[nn.Module] = []
    for stage, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        for place in range(depth):
            blocks.append(block(inputs, width, 2 if stage > 0 and place == 0 else 1))
            inputs = width * expansion
    return nn.Sequential(*blocks)


def resnet(
    block: Block, depths: Sequence[int], widths: Sequence[int], num_classes: int, *, in_channels: int = 3, expansion: int = 1
) -> Chain:
    """A stem, and stages of residual blocks with so many planes, each of which gives ``expansion`` channels."""
    model, stem = Chain(widths[-1] * expansion, num_classes), conv(in_channels, widths[0])
    blocks = _stages(block, depths, widths, inputs=widths[0], expansion=expansion)
    return model.add(conv1=stem, bn1=nn.BatchNorm2d(widths[0]), blocks=blocks)


def resnet18(num_classes: int, *, in_channels: int = 3) -> Classifier:
    """ResNet-18 with a 3x3 stem, 512 features; 11,173,962 parameters at ten classes (He et al., CVPR 2016)."""
    return resnet(basic, (2, 2, 2, 2), (64, 128, 256, 512), num_classes, in_channels=in_channels)


def resnet34(num_classes: int, *, in_channels: int = 3) -> Classifier:
    """ResNet-34 with a 3x3 stem, 512 features."""
    return resnet(basic, (3, 4, 6, 3), (64, 128, 256, 512), num_classes, in_channels=in_channels)


def resnet50(num_classes: int, *, in_channels: int = 3) -> Classifier:
    """ResNet-50 with a 3x3 stem, 2,048 features."""
    return resnet(bottleneck, (3, 4, 6, 3), (64, 128, 256, 512), num_classes, in_channels=in_channels, expansion=4)


def resnet110(num_classes: int, *, in_channels: int = 3) -> Classifier:
    """The thin three-stage ResNet-110 (6n + 2 with n = 18, parameter-free shortcuts), 64 features; He's initialisation.

    With PyTorch's default initialisation a network of this depth hardly starts to learn; He et al. (CVPR 2016, section 4.2)
    initialise convolutions by fan-out.
    """
    model = resnet(partial(basic, shortcut=padding), (18, 18, 18), (16, 32, 64), num_classes, in_channels=in_channels)
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def wide_resnet28_10(num_classes: int, *, in_channels: int = 3) -> Classifier:
    """Wide-ResNet-28-10, 640 features; 36,479,194 parameters at ten classes (Zagoruyko and Komodakis, BMVC 2016)."""
    model, stem = Chain(640, num_classes), conv(in_channels, 16)
    return model.add(conv1=stem, blocks=_stages(WideBlock, (4, 4, 4), (160, 320, 640), inputs=16), bn=nn.BatchNorm2d(640))


def densenet_bc100(num_classes: int, *, in_channels: int = 3) -> Classifier:
    """DenseNet-BC-100 with growth rate 12, 342 features; 769,162 parameters at ten classes (Huang et al., CVPR 2017)."""
    channels = 24
    parts: list[nn.Module] = [conv(in_channels, channels)]
    for stage in range(3):
        parts += [DenseLayer(channels + 12 * place, 12) for place in range(16)]
        channels += 16 * 12
        if stage < 2:
            parts.append(Transition(channels, channels // 2))
            channels //= 2
    return Chain(channels, num_classes).add(blocks=nn.Sequential(*parts), bn=nn.BatchNorm2d(channels))
