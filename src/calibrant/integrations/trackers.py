"""What evaluations showed, and where it goes: the part that both trainers' callbacks share; MLflow and Weights & Biases.

The extras ``mlflow`` and ``wandb`` install these; each is imported when its tracker is made. Trackers take what
`calibrant.train` and `calibrant.measure` give. Lightning and Transformers already send what the callbacks log to their own
trackers: of these classes they only need ``log_figure``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from calibrant.core.checks import lookup
from calibrant.core.records import Scores
from calibrant.metrics.levels import check_draws
from calibrant.metrics.streaming import CalibrationSuite
from calibrant.metrics.table import score_metrics
from calibrant.metrics.verdict import draw_reliability

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch.utils.tensorboard import SummaryWriter

__all__ = ["MLflowTracker", "Tracker", "WandbTracker"]


def with_ends(scores: Scores, keys: Iterable[str]) -> dict[str, float]:
    """Metrics with the ends of their intervals, as they are logged: ``ece``, ``ece_low``, ``ece_high``."""
    ends = ("", "_low", "_high")
    return {f"{key}{end}": value for key in keys for end, value in zip(ends, scores[key], strict=True)}


def draw_scores(scores: Scores, title: str) -> Figure:
    """Draw the reliability diagram in a figure of its own, which pyplot does not keep."""
    from matplotlib.figure import Figure

    figure, positive = Figure(figsize=(4.8, 5.8), layout="tight"), scores.positive
    name, ece = ("ECE", scores["ece"]) if positive is None else ("binary ECE", scores["binary_ece"])
    text = f"{title}\n{name} {ece.value:.4f} [{ece.low:.4f}, {ece.high:.4f}], {scores.n:,} examples"
    shown = {} if positive is None else {"probability": positive.probability}
    draw_reliability((positive or scores).bins, title=text, ax=figure.subplots(), **shown)
    return figure


class Recorder:
    """Measures evaluations in constant memory and keeps one flat row of numbers for each; a part of both callbacks.

    Args:
        num_classes: Number of classes C.
        n_bins: Bins of the binned metrics and of the diagram.
        metrics: Keys of the metrics to log, of those that `CalibrationSuite` gives.
        n_resamples: Resamples behind the intervals.
        log_figure: ``(figure, step)``, called with every diagram in the first process, for other loggers.
        kwargs: Options of `torchmetrics.Metric`.

    Attributes:
        history: One row (a dictionary) for every evaluation: where it was, n, and the numbers logged.
        scores: Everything measured in the last evaluation; None before the first.
        suite: An empty state, that leaves out labels of -100 as sequence models mark them.
    """

    def __init__(
        self,
        *,
        num_classes: int,
        n_bins: int = 15,
        metrics: Sequence[str] = ("ece",),
        n_resamples: int = 1000,
        log_figure: Callable[[Figure, int], object] | None = None,
        **kwargs: Any,
    ) -> None:
        streamed = {key: metric for key, metric in score_metrics(positive=num_classes == 2).items() if metric.read is not None}
        for key in metrics:
            lookup(streamed, key, kind="metric")
        check_draws(n_bins, n_resamples, 0, where=type(self).__name__)
        self.metrics, self.n_resamples, self.log_figure = tuple(metrics), n_resamples, log_figure
        self.history: list[dict[str, Any]] = []
        self.scores: Scores | None = None
        self.suite = CalibrationSuite(num_classes=num_classes, n_bins=n_bins, ignore_index=-100, **kwargs)

    def measure(self, suite: CalibrationSuite) -> Scores:
        """Keep and return the scores of all examples that ``suite`` has seen, in every process."""
        self.scores = scores = suite.scores(n_resamples=self.n_resamples)
        return scores

    def show(self, scores: Scores, tag: str, epoch: float | None, step: int, boards: Sequence[SummaryWriter]) -> None:
        """Draw the reliability diagram for TensorBoard and ``log_figure``, if either is there."""
        if not boards and self.log_figure is None:
            return
        figure = draw_scores(scores, tag if epoch is None else f"{tag}, epoch {epoch:g}")
        for board in boards:
            board.add_figure(tag, figure, global_step=step, close=False)
        if self.log_figure is not None:
            self.log_figure(figure, step)


def add_batch(suite: CalibrationSuite, logits: Tensor, labels: Tensor) -> None:
    """Add logits ``[..., C]`` and labels ``[...]``."""
    suite.update(logits=logits.detach().flatten(0, -2), labels=labels.detach().reshape(-1))


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
        values = with_ends(scores, scores)
        self.log({f"{prefix}{name}": value for name, value in values.items() if math.isfinite(value)}, step)
        self.log_figure(draw_scores(scores, f"{prefix}reliability"), step)


class MLflowTracker(Tracker):
    """Sends to the active run of MLflow, which makes one where there is none."""

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
