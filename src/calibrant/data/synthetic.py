"""Made-up data of which the truth is known: predictions with a known calibration error, images with a known posterior."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from calibrant.core.checks import check_count, check_positive
from calibrant.core.records import Predictions, Split
from calibrant.data.image_set import DataSet, DataSource, ImageSet, Shape


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
    where = "synthetic_predictions"
    check_count(n, where=where, name="n")
    check_count(num_classes, where=where, name="num_classes", least=2)
    check_positive(temperature, where=where, name="temperature")
    check_positive(hardness, where=where, name="hardness")
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


MIXTURE = DataSource(
    name="mixture",
    label="mixture",
    about="noisy templates of 8x8 pixels, 4 classes, true posterior known",
    load=lambda root: load_mixture(),
    shape=Shape(2000, 4000, (8, 8), 1, 4),
    settings={"backbone.name": "mlp", "train.epochs": 60},
)
