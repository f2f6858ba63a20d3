"""A plain PyTorch training loop, and the same loop made calibrated by a change of about ten lines.

    python examples/own_loop.py

Handwritten digits under heavy noise, a small network, a minute on one core. The lines that differ are marked with ``# +``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from calibrant.meta import MetaBatches, MetaLearner
from calibrant.metrics import expected_calibration_error

STEPS, BATCH = 1600, 64


def load(seed: int = 0) -> dict[str, tuple[Tensor, Tensor]]:
    """Noisy digits in three parts: training, held-out for the meta updates, test."""
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 8 - 1, torch.tensor(digits.target)
    generator = torch.Generator().manual_seed(seed)
    x = x + 1.0 * torch.randn(x.shape, generator=generator)
    order = torch.randperm(len(x), generator=generator)
    parts = {"train": order[:800], "meta": order[800:1200], "test": order[1200:]}
    return {name: (x[index], y[index]) for name, index in parts.items()}


def build(seed: int = 0) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network of two hidden layers and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=3e-3)


def train_plain(data: dict[str, tuple[Tensor, Tensor]]) -> nn.Module:
    """The loop everyone has."""
    model, optimizer = build()
    x, y = data["train"]
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        index = torch.randint(0, len(x), (BATCH,), generator=generator)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x[index]), y[index])
        loss.backward()
        optimizer.step()
    return model


def train_calibrated(data: dict[str, tuple[Tensor, Tensor]]) -> nn.Module:
    """The same loop with a gamma-Net that watches calibration on held-out samples."""
    model, optimizer = build()
    x, y = data["train"]
    x_meta, y_meta = data["meta"]  # +
    learner = MetaLearner(  # +
        model,  # +
        optimizer,  # +
        meta_batches=MetaBatches(x_meta, y_meta, batch_size=400),  # +
    )  # +
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        index = torch.randint(0, len(x), (BATCH,), generator=generator)
        info = learner.step(x[index], y[index])  # + instead of zero_grad, loss, backward and step
    print("gamma at the end:", {name: round(float(value), 2) for name, value in info.values.items()})  # +
    return model


def evaluate(model: nn.Module, data: dict[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    """Error rate and calibration error on the test part."""
    x, y = data["test"]
    with torch.no_grad():
        probs = model(x).softmax(1)
    error = (probs.argmax(1) != y).float().mean()
    return {"error": float(error), "ece": float(expected_calibration_error(probs, y))}


def main() -> dict[str, dict[str, float]]:
    """Train both ways and print what came out."""
    torch.set_num_threads(1)
    data = load()
    results = {name: evaluate(train(data), data) for name, train in (("plain", train_plain), ("calibrated", train_calibrated))}
    for name, values in results.items():
        print(f"{name:<11} error {100 * values['error']:5.1f} %   ECE {100 * values['ece']:5.1f} %")
    return results


if __name__ == "__main__":
    main()
