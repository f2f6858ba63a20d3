"""Runs with made-up numbers, for the tests of tables and results."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from matplotlib.figure import Figure

from calibrant.core.records import Bins, Entry, Estimate, IfCalibrated, Predictions, Scores
from calibrant.report.save import render_figure

NONE = torch.empty(0, dtype=torch.float64)


def scores_of(metrics: Mapping[str, float], *, p_value: float = 0.5) -> Scores:
    """Scores with these values and nothing else."""
    return Scores(
        n=10000,
        num_classes=10,
        n_bins=15,
        metrics={key: Estimate(value, 0.9 * value, 1.1 * value) for key, value in metrics.items()},
        ece_if_calibrated=IfCalibrated(0.002, 0.003, p_value),
        bins=Bins(NONE, NONE, NONE, NONE),
    )


def run_of(
    method: str,
    error: float = 0.05,
    ece: float = 0.04,
    *,
    data: str = "cifar10",
    model: str | None = "resnet18",
    epochs: int | None = 350,
    seed: int | None = 0,
    preset: str | None = "default",
    p_value: float = 0.5,
    test: Predictions | None = None,
    told: str = "",
) -> Entry:
    """A run whose six metrics follow from error and ECE; ``told`` are settings, as ``"optim.lr=0.2 data.val=300"``."""
    metrics = {"error": error, "nll": 7 * error, "ece": ece, "mce": 5 * ece, "ace": ece, "classwise_ece": ece / 5}
    return Entry(
        data,
        method,
        scores_of(metrics, p_value=p_value),
        preset=preset,
        model=model,
        epochs=epochs,
        seed=seed,
        test=test,
        recipe=dict(text.split("=", 1) for text in told.split()),
    )


def seeds(method: str, error: float, *, jitter: float = 0.001) -> list[Entry]:
    """Four seeds of a method, their errors a little apart."""
    return [run_of(method, error + jitter * s * (1 + (method != "ce") / 7), seed=s) for s in range(4)]


def no_files(figure: Figure, *, kind: str) -> bytes:
    """In place of `render_figure`: pictures for a page, but of a file only the mark of its writer, as files take long."""
    return render_figure(figure, kind=kind) if kind == "svg" else b"Software\0calibrant /Creator (calibrant)"
