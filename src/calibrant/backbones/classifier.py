"""What every backbone is: a feature extractor and a linear classifier named ``head``."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn


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
