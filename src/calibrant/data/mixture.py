"""Noisy images of known class probabilities: the true calibration error of any model on them can be computed."""

from __future__ import annotations

import torch
from torch import Tensor

from calibrant.data.image_set import DataSet, ImageSet


def load_mixture(
    *, n_train: int = 2000, n_test: int = 4000, num_classes: int = 4, size: int = 8, spread: float = 1.0, seed: int = 0
) -> DataSet:
    r"""Draw images from overlapping Gaussian classes with equal priors.

    Class k has a smooth random template :math:`t_k` and an image of it is :math:`x = 128 + 32 (t_k + s\,\epsilon)` with white
    noise :math:`\epsilon`, rounded to bytes. The posterior follows from Bayes' rule:
    :math:`P(k | x) \propto \exp(-\lVert (x - 128)/32 - t_k \rVert^2 / (2 s^2))`.

    Args:
        n_train: Training examples.
        n_test: Test examples.
        num_classes: Number of classes.
        size: Height and width in pixels.
        spread: Standard deviation ``s`` of the noise; templates are scaled so that 1 gives an error of about 22 % at best.
        seed: Seed of templates and noise.

    Returns:
        The set, with ``posterior`` filled.
    """
    generator = torch.Generator().manual_seed(seed)
    rough = torch.randn(num_classes, 1, 3, 3, generator=generator, dtype=torch.float64)
    templates = torch.nn.functional.interpolate(rough, size=(size, size), mode="bilinear").flatten(1)
    templates = 1.7 * templates / templates.norm(dim=1, keepdim=True)
    labels = torch.randint(num_classes, (n_train + n_test,), generator=generator)
    noise = torch.randn(len(labels), size * size, generator=generator, dtype=torch.float64)
    pixels = (128 + 32 * (templates[labels] + spread * noise)).round().clamp(0, 255)
    posterior = _posterior((pixels - 128) / 32, templates, spread)
    whole = ImageSet(
        images=pixels.to(torch.uint8).view(-1, size, size, 1),
        labels=labels,
        num_classes=num_classes,
        mean=(128 / 255,),
        std=(32 / 255,),
        posterior=posterior,
    )
    rows = torch.arange(len(labels))
    return DataSet("mixture", whole.pick(rows[:n_train]), whole.pick(rows[n_train:]))


def _posterior(values: Tensor, templates: Tensor, spread: float) -> Tensor:
    return torch.softmax(-torch.cdist(values, templates).square() / (2 * spread**2), 1)
