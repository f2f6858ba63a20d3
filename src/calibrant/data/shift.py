"""Corrupted copies of a test set: how calibration holds up when images get worse than those trained on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from calibrant.core.checks import check_choice
from calibrant.core.registry import lookup
from calibrant.data.image_set import ImageSet, check_images

SEVERITIES = (1, 2, 3, 4, 5)
# Images are corrupted so many at a time: floats of all of them at once would take twelve times the memory of the set. The
# number is part of what a seed means.
_BLOCK = 1000


def _add_noise(pixels: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    spread = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return pixels + spread * torch.randn(pixels.shape, generator=generator).to(pixels.device)


def _blur(pixels: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    sigma = (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1]
    rows, columns = (_blur_matrix(n, sigma, like=pixels) for n in pixels.shape[1:3])
    # As two products of matrices it takes a tenth of the time of a convolution with one channel.
    blurred: Tensor = rows @ pixels.permute(0, 3, 1, 2) @ columns.T
    return blurred.permute(0, 2, 3, 1)


def _blur_matrix(n: int, sigma: float, *, like: Tensor) -> Tensor:
    """Return ``[n, n]``: row i holds what each pixel of a line adds to pixel i; the ends stand for all that lies beyond."""
    radius = math.floor(4 * sigma + 0.5)
    offsets = torch.arange(-radius, radius + 1)
    weight = torch.softmax(-offsets.double().square() / (2 * sigma**2), 0).expand(n, -1)
    places = (torch.arange(n).unsqueeze(1) + offsets).clamp(0, n - 1)
    return torch.zeros(n, n, dtype=torch.float64).scatter_add(1, places, weight).to(like)


def _lower_contrast(pixels: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    kept = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    mean = pixels.mean((1, 2), keepdim=True)
    return (pixels - mean) * kept + mean


# Named as in the published corrupted sets.
CORRUPTIONS: dict[str, Callable[[Tensor, int, torch.Generator], Tensor]] = {
    "gaussian_noise": _add_noise,
    "gaussian_blur": _blur,
    "contrast": _lower_contrast,
}


def corrupt(images: Tensor, *, kind: str, severity: int, seed: int = 0) -> Tensor:
    r"""Make images worse in one way.

    With pixels x in [0, 1], and c by severity 1 to 5 as published for images of 32x32 pixels (c is in pixels for the blur, and
    the same for images of any size):

    - ``gaussian_noise``: :math:`x + c\,\epsilon` with white noise, c = 0.04, 0.06, 0.08, 0.09, 0.10;
    - ``gaussian_blur``: convolution with a Gaussian of standard deviation c = 0.4, 0.6, 0.7, 0.8, 1.0, cut off at 4c, the
      border continued by its last pixel;
    - ``contrast``: :math:`\bar x + c (x - \bar x)` with the mean of each channel of the image, c = 0.75, 0.5, 0.4, 0.3, 0.15;

    clipped to [0, 1] and rounded to bytes (the published sets cut the fraction off, which darkens them by half a level).

    Args:
        images: ``[N, H, W, channels]``, uint8.
        kind: A key of ``CORRUPTIONS``.
        severity: 1 to 5.
        seed: Seed of the noise; each kind and severity has noise of its own.

    Returns:
        New images of the same shape, type and device. Raises ``ValueError`` on anything else than the above.

    Example:
        >>> image = torch.tensor([0, 200], dtype=torch.uint8).view(1, 1, 2, 1)
        >>> corrupt(image, kind="contrast", severity=2).flatten().tolist()
        [50, 150]

    Reference:
        Hendrycks and Dietterich, Benchmarking neural network robustness to common corruptions and perturbations, ICLR 2019.
    """
    check_images(images, where="corrupt")
    check_choice(severity, SEVERITIES, where="corrupt", name="severity")
    change = lookup(CORRUPTIONS, kind, kind="corruption")
    place = list(CORRUPTIONS).index(kind) * len(SEVERITIES) + severity
    generator = torch.Generator().manual_seed((seed * 1_000_003 + place) % 2**63)
    found = torch.empty_like(images)
    for start in range(0, len(images), _BLOCK):
        pixels = images[start : start + _BLOCK].float() / 255
        worse = change(pixels, severity, generator).clamp(0, 1)
        found[start : start + _BLOCK] = worse.mul(255).round().to(torch.uint8)
    return found


def shifted_sets(test: ImageSet, *, seed: int = 0) -> dict[str, ImageSet]:
    """Corrupt a test set in every way, at every severity: ``"gaussian_noise-1"`` … ``"contrast-5"`` → the corrupted set.

    Labels and what the set says of normalisation stay: a model sees worse images, and does not know. A known posterior is
    dropped: it was that of the clean images.
    """
    return {
        f"{kind}-{severity}": replace(
            test, images=corrupt(test.images, kind=kind, severity=severity, seed=seed), posterior=None
        )
        for kind in CORRUPTIONS
        for severity in SEVERITIES
    }
