"""What every backbone is, a feature extractor and a linear classifier named ``head``, and two small ones for a CPU."""

from __future__ import annotations

from typing import cast

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
    """Two 3x3 convolutions with BatchNorm, a 2x2 maximum after each, and one hidden layer.

    Args:
        num_classes: Number of classes C.
        width: Channels of the first convolution; the second has twice as many.
        num_features: Width of the hidden layer.
        in_channels: Channels of the images.
    """

    def __init__(self, num_classes: int, *, width: int = 32, num_features: int = 128, in_channels: int = 3) -> None:
        super().__init__(num_features, num_classes)
        self.conv1 = conv3x3(in_channels, width)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, 2 * width)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.hidden = nn.Linear(2 * width * 4, num_features)

    def features(self, images: Tensor) -> Tensor:
        """Return the hidden layer ``[B, num_features]``; any image of at least 4x4 pixels works."""
        out = F.max_pool2d(F.relu(self.bn1(self.conv1(images))), 2)
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(cast(Tensor, self.hidden(F.adaptive_avg_pool2d(out, 2).flatten(1))))


class MLP(Classifier):
    """Two hidden layers over flattened inputs of a known size.

    Args:
        num_classes: Number of classes C.
        num_inputs: Numbers in one example (channels x height x width).
        num_features: Width of both hidden layers.
    """

    def __init__(self, num_classes: int, *, num_inputs: int, num_features: int = 128) -> None:
        super().__init__(num_features, num_classes)
        self.hidden1 = nn.Linear(num_inputs, num_features)
        self.hidden2 = nn.Linear(num_features, num_features)

    def features(self, images: Tensor) -> Tensor:
        """Return the second hidden layer ``[B, num_features]``."""
        out = F.relu(cast(Tensor, self.hidden1(images.flatten(1))))
        return F.relu(cast(Tensor, self.hidden2(out)))


def convnet(num_classes: int, *, in_channels: int = 3, width: int = 32) -> ConvNet:
    """The small convolutional network, 128 features."""
    return ConvNet(num_classes, width=width, in_channels=in_channels)


def mlp(num_classes: int, *, num_inputs: int, num_features: int = 128) -> MLP:
    """The multi-layer perceptron, 128 features."""
    return MLP(num_classes, num_inputs=num_inputs, num_features=num_features)
