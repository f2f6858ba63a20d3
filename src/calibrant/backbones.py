"""Networks for small images, each a feature extractor and a linear classifier named ``head``; the table stands at the end.

ResNet-18/34/50, the thin ResNet-110, Wide-ResNet and DenseNet with a 3x3 stem, and two small ones for a CPU. All take the
number of classes C as ``num_classes`` and the number of channels of the images as ``in_channels``.
"""

from __future__ import annotations

from collections import OrderedDict
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


def _through(model: nn.Module, x: Tensor, *, but: str) -> Tensor:
    """Pass ``x`` through the parts of ``model`` in their order, except one."""
    for name, part in model.named_children():
        x = x if name == but else part(x)
    return x


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
            if place > 1:
                self.add_module(f"relu{place}", nn.ReLU())
            self.add_module(f"conv{place}", part)
            self.add_module(f"bn{place}", nn.BatchNorm2d(part.out_channels))
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, outputs, H/stride, W/stride]``."""
        return F.relu(_through(self, x, but="shortcut") + self.shortcut(x))


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


class DenseLayer(nn.Sequential):
    """Parts in a row, whose output is appended to their input."""

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[B, inputs, H, W]`` to ``[B, inputs + growth, H, W]``."""
        return torch.cat([x, super().forward(x)], 1)


def dense_layer(inputs: int, growth: int) -> DenseLayer:
    """BN-ReLU-1x1 to four times the growth rate, BN-ReLU-3x3 to the growth rate."""
    parts = OrderedDict(
        bn1=nn.BatchNorm2d(inputs),
        relu1=nn.ReLU(),
        conv1=conv(inputs, 4 * growth, 1),
        bn2=nn.BatchNorm2d(4 * growth),
        relu2=nn.ReLU(),
        conv2=conv(4 * growth, growth),
    )
    return DenseLayer(parts)


class Chain(Classifier):
    """Parts in a row and, where they end in a feature map, its global mean."""

    def add(self, **parts: nn.Module) -> Chain:
        """Append parts by name."""
        for name, part in parts.items():
            self.add_module(name, part)
        return self

    def features(self, images: Tensor) -> Tensor:
        """Return the features ``[B, num_features]``."""
        out = _through(self, images, but="head")
        return out.mean((2, 3)) if out.ndim == 4 else out


def convnet(num_classes: int, *, in_channels: int = 3) -> Classifier:
    """Two 3x3 convolutions, pooling, and a hidden layer of 128 features; any image of at least 4x4 pixels works."""
    return Chain(128, num_classes).add(
        conv1=conv(in_channels, 32),
        bn1=nn.BatchNorm2d(32),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=conv(32, 64),
        bn2=nn.BatchNorm2d(64),
        relu2=nn.ReLU(),
        pool2=nn.AdaptiveAvgPool2d(2),
        flat=nn.Flatten(),
        hidden=nn.Linear(256, 128),
        relu3=nn.ReLU(),
    )


def mlp(num_classes: int, *, num_inputs: int) -> Classifier:
    """Two hidden layers of 128 features over ``num_inputs`` numbers (channels x height x width)."""
    return Chain(128, num_classes).add(
        flat=nn.Flatten(),
        hidden1=nn.Linear(num_inputs, 128),
        relu1=nn.ReLU(),
        hidden2=nn.Linear(128, 128),
        relu2=nn.ReLU(),
    )


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
    return model.add(conv1=stem, bn1=nn.BatchNorm2d(widths[0]), relu=nn.ReLU(), blocks=blocks)


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
    blocks = _stages(WideBlock, (4, 4, 4), (160, 320, 640), inputs=16)
    return model.add(conv1=stem, blocks=blocks, bn=nn.BatchNorm2d(640), relu=nn.ReLU())


def densenet_bc100(num_classes: int, *, in_channels: int = 3) -> Classifier:
    """DenseNet-BC-100 with growth rate 12, 342 features; 769,162 parameters at ten classes (Huang et al., CVPR 2017)."""
    channels = 24
    parts: list[nn.Module] = [conv(in_channels, channels)]
    for stage in range(3):
        parts += [dense_layer(channels + 12 * place, 12) for place in range(16)]
        channels += 16 * 12
        if stage < 2:
            halved = {"conv": conv(channels, channels // 2, 1), "pool": nn.AvgPool2d(2)}
            parts.append(nn.Sequential(OrderedDict(bn=nn.BatchNorm2d(channels), relu=nn.ReLU(), **halved)))
            channels //= 2
    dense = nn.Sequential(*parts)
    return Chain(channels, num_classes).add(blocks=dense, bn=nn.BatchNorm2d(channels), relu=nn.ReLU())


BACKBONES: dict[str, Callable[..., Classifier]] = {
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet110": resnet110,
    "wrn28-10": wide_resnet28_10,
    "densenet100": densenet_bc100,
    "convnet": convnet,
    "mlp": mlp,
}

__all__ = ["BACKBONES", "Classifier", *(function.__name__ for function in BACKBONES.values())]
