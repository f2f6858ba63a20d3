"""Data that are computed: predictions with a known calibration error, images with a known posterior, corrupted images."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from calibrant.core.checks import check_choice, lookup
from calibrant.core.records import Predictions, Split
from calibrant.data.image_set import DataSet, DataSource, ImageSet, check_images

__all__ = ["CORRUPTIONS", "corrupt", "load_mixture", "shifted_sets"]


def synthetic_predictions(
    n: int,
    num_classes: int = 10,
    *,
    temperature: float = 2.4,
    hardness: float = 1.0,
    seed: int = 0,
    split: Split | str | None = Split.TEST,
    class_names: Sequence[str] | None = None,
) -> tuple[Predictions, float]:
    r"""Draw predictions whose logits are too large by a known factor.

    An example has logits :math:`z`, its label is drawn from the true posterior :math:`q = \mathrm{softmax}(z / T)` and the
    classifier claims :math:`p = \mathrm{softmax}(z)`. With the claimed class :math:`k = \arg\max z`, confidence :math:`p_k` is
    above :math:`q_k` for every :math:`z` if T > 1 (and below if T < 1): errors of the two signs never cancel, so that

    .. math:: \mathbb{E}\,\bigl|\, P(\text{correct} \mid p_k) - p_k \,\bigr| = \bigl|\, \mathbb{E}[p_k - q_k] \,\bigr|

    holds exactly, and the right side is the mean over the examples drawn.

    Args:
        n: Number of examples.
        num_classes: Number of classes C.
        temperature: The factor T; 1 is perfectly calibrated, above 1 over-confident, below 1 under-confident.
        hardness: Divides the true logits; larger values give a larger error rate.
        seed: Seed of logits and labels.
        split: Part of the data that the record is marked with.
        class_names: Names of the classes.

    Returns:
        The predictions (float32 logits, as a network would give) and the true top-label calibration error in ``[0, 1]``.

    Example:
        >>> predictions, truth = synthetic_predictions(1000, temperature=1.0)
        >>> len(predictions), predictions.num_classes, truth
        (1000, 10, 0.0)
    """
    generator = torch.Generator().manual_seed(seed)
    true_logits = torch.randn(n, num_classes, generator=generator, dtype=torch.float64) / hardness
    favoured = torch.randint(num_classes, (n, 1), generator=generator)
    strength = 12 * torch.rand(n, 1, generator=generator, dtype=torch.float64) / hardness
    true_logits.scatter_add_(1, favoured, strength)
    claimed = (temperature * true_logits).float()
    # The truth is that of the rounded numbers which the user sees.
    posterior = (claimed.double() / temperature).softmax(1)
    labels = torch.multinomial(posterior, 1, generator=generator).squeeze(1)
    predictions = Predictions(logits=claimed, labels=labels, split=split, class_names=class_names)
    top = predictions.predicted.unsqueeze(1)
    gap = claimed.double().softmax(1).gather(1, top) - posterior.gather(1, top)
    return predictions, abs(float(gap.mean()))


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
    distance = torch.cdist((pixels - 128) / 32, templates)
    posterior = torch.softmax(-distance.square() / (2 * spread**2), 1)
    images = pixels.to(torch.uint8).view(-1, size, size, 1)
    whole = ImageSet(images, labels, num_classes, mean=(128 / 255,), std=(32 / 255,), posterior=posterior)
    return DataSet("mixture", whole.pick(range(n_train)), whole.pick(range(n_train, n_train + n_test)))


MIXTURE = DataSource(
    name="mixture",
    label="mixture",
    about="noisy templates of 8x8 pixels, 4 classes, true posterior known",
    load=lambda root: load_mixture(),
    settings={"backbone.name": "mlp", "train.epochs": 60},
)


SEVERITIES = (1, 2, 3, 4, 5)
# Images are corrupted so many at a time: floats of all of them at once would take twelve times the memory of the set. The
# number is part of what a seed means.
_BLOCK = 1000


def _add_noise(pixels: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    spread = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return pixels + spread * torch.randn(pixels.shape, generator=generator).to(pixels.device)


def _blur(pixels: Tensor, severity: int, generator: torch.Generator) -> Tensor:
    from scipy.ndimage import gaussian_filter

    sigma = (0.4, 0.6, 0.7, 0.8, 1.0)[severity - 1]
    blurred = gaussian_filter(pixels.cpu().numpy(), (0, sigma, sigma, 0), mode="nearest")
    return torch.from_numpy(blurred).to(pixels.device)


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
