"""A LightningModule, and the same module made calibrated by about ten lines.

    python examples/lightning_loop.py

Handwritten digits under heavy noise, a small network, half a minute on one core. The lines that differ are marked ``# +``.
Both runs log the calibration error of every epoch, with its interval, by a callback.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.integrations.lightning import CalibratedMixin, CalibrationCallback, meta_learner
from calibrant.meta import MetaBatches, MetaLearner

EPOCHS = 60


def load(seed: int = 0) -> dict[str, tuple[Tensor, Tensor]]:
    """Noisy digits in three parts: training, held-out for the meta updates, validation."""
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 8 - 1, torch.tensor(digits.target)
    generator = torch.Generator().manual_seed(seed)
    x = x + 1.0 * torch.randn(x.shape, generator=generator)
    order = torch.randperm(len(x), generator=generator)
    parts = {"train": order[:800], "meta": order[800:1200], "val": order[1200:]}
    return {name: (x[index], y[index]) for name, index in parts.items()}


class Plain(pl.LightningModule):
    """The module everyone has."""

    def __init__(self) -> None:
        super().__init__()
        hidden = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        self.net = nn.Sequential(*hidden, nn.Linear(128, 10))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Cross-entropy of a batch."""
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor]:
        """Logits and labels, where the callback looks for them."""
        x, y = batch
        return {"logits": self.net(x), "labels": y}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Gradient descent with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9, weight_decay=3e-3)


class Calibrated(CalibratedMixin, Plain):  # +
    """The same with a gamma-Net that watches calibration on held-out samples."""  # +

    def __init__(self, x_meta: Tensor, y_meta: Tensor) -> None:  # +
        super().__init__()  # +
        self.held_out = MetaBatches(x_meta, y_meta, batch_size=400)  # +

    def configure_learner(self) -> MetaLearner:  # +
        """Say what is learned, and on what; the mix-in steps by it."""  # +
        return meta_learner(self, self.net, meta_batches=self.held_out)  # +


def fit(module: pl.LightningModule, data: dict[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Train a module and return the last line of the callback's history."""
    callback = CalibrationCallback(num_classes=10, metrics=("ece", "error"))
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        check_val_every_n_epoch=EPOCHS // 4,
        callbacks=[callback],
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    generator = torch.Generator().manual_seed(1)
    train = DataLoader(TensorDataset(*data["train"]), batch_size=64, shuffle=True, generator=generator)
    trainer.fit(module, train, DataLoader(TensorDataset(*data["val"]), batch_size=512))
    return callback.history[-1]


def main() -> dict[str, dict[str, float]]:
    """Train both ways and print what came out."""
    torch.set_num_threads(1)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    # Lightning asks for worker processes, which tensors in memory do not need.
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    data, results = load(), {}
    for name in ("plain", "calibrated"):
        torch.manual_seed(0)
        module = Plain() if name == "plain" else Calibrated(*data["meta"])
        found = results[name] = fit(module, data)
        interval = f"[{100 * found['ece_low']:.1f}, {100 * found['ece_high']:.1f}]"
        print(f"{name:<11} error {100 * found['error']:5.1f} %   ECE {100 * found['ece']:5.1f} % {interval}")
    return results


if __name__ == "__main__":
    main()
