"""Networks by name: each entry builds an ``nn.Module`` that maps images to logits and whose classifier is ``head``."""

from collections.abc import Callable

from calibrant.backbones.resnet import (
    Classifier,
    convnet,
    densenet_bc100,
    mlp,
    resnet18,
    resnet34,
    resnet50,
    resnet110,
    wide_resnet28_10,
)

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

__all__ = [
    "BACKBONES",
    "Classifier",
    "convnet",
    "densenet_bc100",
    "mlp",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet110",
    "wide_resnet28_10",
]
