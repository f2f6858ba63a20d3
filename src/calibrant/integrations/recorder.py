"""What both trainers' callbacks are made of: measuring evaluations in constant memory, their history and figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from calibrant.core.registry import lookup
from calibrant.core.scores import Scores
from calibrant.metrics.chance import check_draws
from calibrant.metrics.diagram import draw_reliability
from calibrant.metrics.streaming import CalibrationSuite
from calibrant.metrics.table import score_metrics

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch.utils.tensorboard import SummaryWriter

# The label by which sequence models and their trainers mark what is to be left out.
IGNORED_LABEL = -100


class Recorder:
    """Measures evaluations and keeps one flat row of numbers for each.

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
        check_draws(n_bins, n_resamples, 0, where=type(self).__name__)
        streamed = {key: metric for key, metric in score_metrics().items() if metric.read is not None}
        for key in metrics:
            lookup(streamed, key, kind="metric")
        self.metrics, self.n_resamples, self.log_figure = tuple(metrics), n_resamples, log_figure
        self.history: list[dict[str, Any]] = []
        self.scores: Scores | None = None
        self._settings: dict[str, Any] = {"num_classes": num_classes, "n_bins": n_bins, "ignore_index": IGNORED_LABEL, **kwargs}
        self.suite()

    def suite(self) -> CalibrationSuite:
        """Return a new, empty state."""
        return CalibrationSuite(**self._settings)

    def measure(self, suite: CalibrationSuite) -> dict[str, float]:
        """Keep the scores of all examples that ``suite`` has seen (in every process); return each metric with its interval.

        The names are ``ece``, ``ece_low``, ``ece_high``.
        """
        scores = self.scores = suite.scores(n_resamples=self.n_resamples)
        ends = ("", "_low", "_high")
        return {f"{key}{end}": value for key in self.metrics for end, value in zip(ends, scores[key], strict=True)}

    def show(self, tag: str, epoch: float | None, step: int, boards: Sequence[SummaryWriter]) -> None:
        """Draw the reliability diagram of the last scores for TensorBoard and for ``log_figure``, if anybody looks."""
        if not boards and self.log_figure is None:
            return
        from matplotlib.figure import Figure

        assert self.scores is not None
        ece = self.scores["ece"]
        title = tag if epoch is None else f"{tag}, epoch {epoch:g}"
        text = f"{title}\nECE {ece.value:.4f} [{ece.low:.4f}, {ece.high:.4f}], {self.scores.n:,} examples"
        # A figure of its own, which pyplot does not keep.
        figure = Figure(figsize=(4.8, 5.8), layout="tight")
        draw_reliability(self.scores.bins, title=text, ax=figure.subplots())
        for board in boards:
            board.add_figure(tag, figure, global_step=step, close=False)
        if self.log_figure is not None:
            self.log_figure(figure, step)


def add_batch(suite: CalibrationSuite, logits: Tensor, labels: Tensor) -> None:
    """Add logits ``[..., C]`` and labels ``[...]``, of which those marked -100 are left out."""
    suite.update(logits=logits.detach().flatten(0, -2), labels=labels.detach().reshape(-1))
