"""Predictions of a classifier that does not exist: its true calibration error is known.

For images with a known posterior, on which a real network can be trained, see `mixture`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from calibrant.core.checks import check_count, check_positive
from calibrant.core.records import Predictions, Split


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
