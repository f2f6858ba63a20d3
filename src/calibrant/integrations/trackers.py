"""Metrics and figures to MLflow or Weights & Biases, from `calibrant.train`, the callbacks here, and `calibrant.measure`.

The extras ``mlflow`` and ``wandb`` install them; each is imported when its tracker is made. Lightning and Transformers already
send what the callbacks log to their own trackers: of these classes they only need ``log_figure``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from calibrant.core.scores import Scores
from calibrant.metrics.diagram import draw_reliability

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["MLflowTracker", "Tracker", "WandbTracker"]


class Tracker(ABC):
    """Sends numbers and figures to a run of a tracking service; a subclass defines ``log`` and ``log_figure``."""

    @abstractmethod
    def log(self, values: Mapping[str, float], step: int) -> None:
        """Send numbers that belong to a step."""

    @abstractmethod
    def log_figure(self, figure: Figure, step: int) -> None:
        """Send a figure; what ``CalibrationCallback(log_figure=...)`` takes."""

    def log_epoch(self, record: Any) -> None:
        """Send the numbers of an epoch; what ``calibrant.train(report=...)`` takes."""
        values = {name: value for name, value in vars(record).items() if name != "epoch" and value is not None}
        self.log(values, record.epoch)

    def log_scores(self, scores: Scores, *, step: int = 0, prefix: str = "") -> None:
        """Send every metric with the ends of its interval (``ece``, ``ece_low``, ``ece_high``), and a reliability diagram."""
        from matplotlib.figure import Figure

        ends = ("", "_low", "_high")
        values = {f"{prefix}{key}{end}": value for key in scores for end, value in zip(ends, scores[key], strict=True)}
        self.log({name: value for name, value in values.items() if math.isfinite(value)}, step)
        figure = Figure(figsize=(4.8, 5.8), layout="tight")
        draw_reliability(scores.bins, title=f"{prefix}reliability", ax=figure.subplots())
        self.log_figure(figure, step)


class MLflowTracker(Tracker):
    """Sends to the active run of MLflow, which makes one where there is none.

    Example::

        with mlflow.start_run():
            tracker = MLflowTracker()
            run = calibrant.train(recipe, report=tracker.log_epoch)
            tracker.log_scores(calibrant.measure(run.test), prefix="test_")
    """

    def __init__(self) -> None:
        import mlflow

        self._mlflow = mlflow

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Send numbers that belong to a step."""
        self._mlflow.log_metrics(dict(values), step=step)

    def log_figure(self, figure: Figure, step: int) -> None:
        """Send a figure, as ``reliability/STEP.png`` among the artifacts."""
        self._mlflow.log_figure(figure, f"reliability/{step:06d}.png")


class WandbTracker(Tracker):
    """Sends to a run of Weights & Biases; ``step`` is a number beside the others, since W&B's own must never fall.

    Args:
        run: What ``wandb.init`` returned.
    """

    def __init__(self, run: Any) -> None:
        import wandb

        self.run, self._image = run, wandb.Image

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Send numbers that belong to a step."""
        self.run.log({**values, "step": step})

    def log_figure(self, figure: Figure, step: int) -> None:
        """Send a figure."""
        self.run.log({"reliability": self._image(figure), "step": step})
