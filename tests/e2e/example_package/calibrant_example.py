"""A loss, a metric, a calibrator, a data set and a training method that an installed package adds to calibrant."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.calibrators import Calibrator, FitData
from calibrant.data import DataSet, DataSource, ImageSet
from calibrant.engine.methods import Facts, LossPlan, Method
from calibrant.losses import LossEntry
from calibrant.losses.base import Loss
from calibrant.metrics.table import Metric


def squared_entropy_loss(logits: Tensor, labels: Tensor, *, power: float = 2.0) -> Tensor:
    """Cross-entropy to a power, divided by it."""
    return F.cross_entropy(logits, labels, reduction="none") ** power / power


class SquaredEntropyLoss(Loss, function=squared_entropy_loss):
    """`squared_entropy_loss` as a module."""

    power: float


SQUARED_ENTROPY = LossEntry(SquaredEntropyLoss, "made up")


def sure_errors(probs: Tensor, labels: Tensor) -> Tensor:
    """Share of all examples that are wrong with a confidence above 0.8."""
    confidence, predicted = torch.as_tensor(probs).max(1)
    return ((predicted != torch.as_tensor(labels)) & (confidence > 0.8)).double().mean()


SURE_ERRORS = Metric(sure_errors, label="confident errors", meaning="wrong and above 80 % sure", unit="%")


def prior_log_probs(logits: Tensor, bias: Tensor) -> Tensor:
    """Log-probabilities of shifted logits."""
    return (logits + bias.to(logits)).log_softmax(-1)


class PriorShift(Calibrator):
    """Shifts logits by how much more often a class occurs than it is predicted."""

    label = "prior shift"
    learned = ("bias",)
    formula = staticmethod(prior_log_probs)

    def _fit(self, data: FitData) -> Mapping[str, Tensor]:
        share = (torch.bincount(data.labels, minlength=data.num_classes) + 1.0) / (len(data) + data.num_classes)
        return {"bias": (share / data.logits.softmax(1).mean(0)).log().double()}


def load_stripes(root: Path) -> DataSet:
    """Noisy pictures with bright rows (class 0) or columns (class 1)."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (900,), generator=generator)
    rows = torch.zeros(8, 8)
    rows[::2] = 40
    pixels = torch.stack([rows, rows.T])[labels] + 128 + 60 * torch.randn(900, 8, 8, generator=generator)
    images = pixels.round().clamp(0, 255).to(torch.uint8).unsqueeze(3)
    whole = ImageSet(images, labels, num_classes=2, mean=(0.5,), std=(0.25,), class_names=("rows", "columns"))
    return DataSet("stripes", whole.pick(range(500)), whole.pick(range(500, 900)))


STRIPES = DataSource(
    "stripes",
    "Stripes",
    "noisy rows or columns, 2 classes",
    load_stripes,
    settings={"backbone.name": "mlp", "train.epochs": 2, "train.batch_size": 50, "data.val": 100, "data.meta": 100},
)


def build_squared(facts: Facts, *, power: float = 2.0) -> LossPlan:
    """The plan of a run that trains with the loss."""
    return LossPlan(SquaredEntropyLoss(power=power, reduction=facts.reduction))


SQUARED = Method(
    "Squared entropy",
    "cross-entropy to a power",
    "squared_entropy",
    build_squared,
    ("orange", "D", "--"),
    average="ema",
    select="nll",
)
