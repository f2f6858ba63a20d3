"""Runs to draw figures of: small, quick to make, and with every number known."""

from __future__ import annotations

import numpy as np

from calibrant import Predictions
from calibrant.core.records import Entry
from helpers import mixed_gaps
from made_up_runs import scores_of


def history_of(ece: list[float | None], *, gamma: list[float] | None = None) -> tuple[dict[str, float | int | None], ...]:
    """Epochs with these test ECEs, twice as large test errors, and a learning rate that drops after the second one."""
    return tuple(
        {
            "epoch": epoch,
            "lr": 0.1 if epoch < 2 else 0.01,
            "test_ece": value,
            "test_error": None if value is None else 2 * value,
            "val_ece": None if value is None else value / 2,
            "val_error": value,
            "gamma_mean": None if gamma is None else gamma[epoch],
            "gamma_std": None if gamma is None else gamma[epoch] / 10,
        }
        for epoch, value in enumerate(ece)
    )


def run_of(
    method: str = "ce",
    *,
    seed: int | None = 0,
    data: str = "digits",
    model: str | None = "convnet",
    preset: str | None = "default",
    epochs: int | None = 3,
    error: float = 0.1,
    ece: float = 0.03,
    curve: list[float | None] | None = None,
    gamma: list[float] | None = None,
    n: int = 200,
    temperature: float | None = None,
) -> Entry:
    """A run whose test predictions have gaps of both signs; with a history if ``curve`` is given."""
    probs, labels = mixed_gaps(n, 4, seed=0 if seed is None else seed)
    columns = None if gamma is None else {"gamma": np.linspace(gamma[0], gamma[-1], n)}
    return Entry(
        data=data,
        method=method,
        scores=scores_of({"error": error, "ece": ece}),
        preset=preset,
        model=model,
        epochs=epochs,
        seed=seed,
        test=Predictions(probs=probs, labels=labels, split="test", columns=columns),
        history=() if curve is None else history_of(curve, gamma=gamma),
        temperature=temperature,
    )
