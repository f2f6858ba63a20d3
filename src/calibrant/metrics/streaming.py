"""Streaming metrics: `torchmetrics` classes over a state of constant size, however many examples pass.

`CalibrationSuite` gives all thirteen numbers; the other classes give one of them each. In a ``MetricCollection`` those with
equal settings share one state. What the state holds is in `stream`, how numbers are read from it in `from_grid`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from torch import Tensor

from calibrant.core.records import Bins
from calibrant.core.scores import Scores
from calibrant.core.summary import Summary
from calibrant.metrics.diagram import draw_reliability
from calibrant.metrics.from_grid import read_metrics
from calibrant.metrics.measure import measure_summary
from calibrant.metrics.stream import Stream
from calibrant.metrics.values import READERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

__all__ = [
    "AdaptiveCalibrationError",
    "AreaUnderRiskCoverage",
    "BrierScore",
    "CalibrationSuite",
    "ClasswiseCalibrationError",
    "DebiasedCalibrationError",
    "ErrorRate",
    "ExpectedCalibrationError",
    "MaximumCalibrationError",
    "MaximumMeanCalibrationError",
    "NegativeLogLikelihood",
    "SignedCalibrationGap",
    "SmoothCalibrationError",
    "SmoothExpectedCalibrationError",
]


class CalibrationSuite(Stream):
    """All calibration metrics of a classifier at once, from batches, in constant memory.

    ``update(probs, labels)`` or ``update(logits=..., labels=...)``, then ``compute()`` gives the values under the keys error,
    nll, brier, ece, mce, ace, classwise_ece, sece, smece, mmce, ece_debiased, signed_gap and aurc, as the functions of
    `calibrant.metrics` define them. Means, proper scores and equal-width bins are exact. The others (ace, sece, smece, mmce,
    ece_debiased, aurc) are exact up to 65,536 examples; beyond, confidences closer than 1/24,000 (and ever closer towards
    one) count as tied, which moves them by less than 1e-3 (by 2e-4 on all data tried). Only bins of equal mass that are hardly
    wider than that, as 1,000 bins over confidences within a few per cent of each other, can move ``ace`` and
    ``ece_debiased`` further.

    Processes are joined by adding their sums, so the numbers do not depend on who saw which example. The state is 1.8 MB plus
    24·C·M bytes for C classes and M bins (0.4 MB at 1,000 classes and 15 bins, without ``classwise`` nothing). Sums are
    float64, on the metric's device, or on the CPU where that has no float64; nothing of the autograd graph is kept.

    Args:
        num_classes: Number of classes C.
        n_bins: Number of bins M, one of 5, 10, 15, 20, 25, 30, 50, 100, 200, 500 and 1,000.
        classwise: Measure ``classwise_ece`` too, which ``summary`` and ``scores`` need.
        ignore_index: Label of examples to leave out.
        persistent: Save the state in ``state_dict``.
        kwargs: Options of `torchmetrics.Metric` (``sync_on_compute``, ``process_group``, ...).

    Example:
        >>> import torch
        >>> suite = CalibrationSuite(num_classes=2, n_bins=5)
        >>> suite.update(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
        >>> suite.update(torch.tensor([[0.2, 0.8]]), torch.tensor([0]))
        >>> {key: round(float(value), 4) for key, value in suite.compute().items() if key in ("error", "brier", "ece")}
        {'error': 0.5, 'brier': 0.65, 'ece': 0.45}
    """

    def __init__(
        self,
        *,
        num_classes: int,
        n_bins: int = 15,
        classwise: bool = True,
        ignore_index: int | None = None,
        persistent: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            n_bins=n_bins,
            classwise=classwise,
            ignore_index=ignore_index,
            persistent=persistent,
            **kwargs,
        )

    def compute(self) -> dict[str, Tensor]:
        """Return every metric by key, as float64 scalars ``[]``. Raises ``ValueError`` if no example was seen."""
        values = read_metrics(self._sums())
        return {key: value.to(self.cells.device) for key, value in values.items()}

    def bins(self, *, n_bins: int | None = None) -> Bins:
        """Return the confidence bins of all examples seen: ``n_bins`` of them, or as many as the metrics use."""
        return self.sums().bins_of(n_bins or self.n_bins)

    def summary(self) -> Summary:
        """Return the record of constant size that `calibrant.metrics.measure_summary` makes scores with intervals of."""
        return self.sums().summary()

    def scores(
        self,
        *,
        by_class: bool = False,
        class_names: Sequence[str] | None = None,
        n_resamples: int = 1000,
        seed: int = 0,
    ) -> Scores:
        """Return the values of ``compute()`` with their 95 % intervals, and the ECE that a calibrated model would show.

        Args:
            by_class: Whether to add a table of the classes, worst calibrated first.
            class_names: C names for that table.
            n_resamples: Number of resamples behind the intervals and the p-value.
            seed: Of the random draws.

        Returns:
            The record that `calibrant.measure` gives of predictions in memory.
        """
        sums = self.sums()
        summary = sums.summary()
        values = {key: float(value) for key, value in read_metrics(sums).items()}
        return measure_summary(
            summary, values=values, by_class=by_class, class_names=class_names, n_resamples=n_resamples, seed=seed
        )

    def plot(self, ax: Axes | None = None, *, n_bins: int | None = None) -> tuple[Figure | SubFigure | None, Axes]:
        """Draw the reliability diagram of all examples seen.

        Args:
            ax: Axes to draw in; a new figure if not given.
            n_bins: Number of bins, as many as the metrics use if not given.

        Returns:
            The figure and the axes of the diagram.
        """
        sums = self.sums()
        bins = sums.bins_of(n_bins or self.n_bins)
        error = float(bins.weight @ bins.gap.abs())
        return draw_reliability(bins, title=f"ECE {error:.4f} in {len(bins.count)} bins, {sums.n:,} examples", ax=ax)


class SingleMetric(Stream):
    """One number of the `CalibrationSuite`, by its key.

    Args:
        num_classes: Number of classes C.
        n_bins: Number of bins M, one of 5, 10, 15, 20, 25, 30, 50, 100, 200, 500 and 1,000.
        ignore_index: Label of examples to leave out.
        persistent: Save the state in ``state_dict``.
        kwargs: Options of `torchmetrics.Metric` (``sync_on_compute``, ``process_group``, ...).
    """

    key: ClassVar[str]
    plot_upper_bound: float | None = 1.0

    def __init__(
        self,
        *,
        num_classes: int,
        n_bins: int = 15,
        ignore_index: int | None = None,
        persistent: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_classes=num_classes,
            n_bins=n_bins,
            classwise=self.key == "classwise_ece",
            ignore_index=ignore_index,
            persistent=persistent,
            **kwargs,
        )

    def compute(self) -> Tensor:
        """Return the value, a float64 scalar ``[]``. Raises ``ValueError`` if no example was seen."""
        return READERS[self.key](self._sums()).to(self.cells.device)

    def plot(
        self, val: Tensor | Sequence[Tensor] | None = None, ax: Axes | None = None
    ) -> tuple[Figure | SubFigure | None, Axes]:
        """Draw the value, or a sequence of values of several steps, as all torchmetrics do; returns figure and axes."""
        figure, axes = self._plot(val, ax)
        return figure, cast("Axes", axes)


class ExpectedCalibrationError(SingleMetric):
    """Streaming `expected_calibration_error`: mean gap between confidence and accuracy over equal-width bins.

    Example:
        >>> import torch
        >>> metric = ExpectedCalibrationError(num_classes=2, n_bins=5)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
        >>> metric.compute()
        tensor(0.4500, dtype=torch.float64)
    """

    key = "ece"


class MaximumCalibrationError(SingleMetric):
    """Streaming `maximum_calibration_error`: largest gap between confidence and accuracy over equal-width bins."""

    key = "mce"


class AdaptiveCalibrationError(SingleMetric):
    """Streaming `adaptive_calibration_error`: mean gap over equal-mass bins, ties shared."""

    key = "ace"


class ClasswiseCalibrationError(SingleMetric):
    """Streaming `classwise_calibration_error`: mean gap over classes and equal-width bins of each class's probability."""

    key = "classwise_ece"


class SmoothExpectedCalibrationError(SingleMetric):
    """Streaming ``sece``: gap between confidence and kernel-smoothed accuracy, bandwidth 0.05."""

    key = "sece"


class SmoothCalibrationError(SingleMetric):
    """Streaming ``smece``: the smooth calibration error of Blasiok and Nakkiran at its own bandwidth."""

    key = "smece"


class MaximumMeanCalibrationError(SingleMetric):
    """Streaming ``mmce``: maximum mean calibration error with a Laplace kernel of width 0.4, with the root."""

    key = "mmce"


class DebiasedCalibrationError(SingleMetric):
    """Streaming `debiased_calibration_error`: root-mean-square gap over equal-mass bins, less what chance gives."""

    key = "ece_debiased"


class SignedCalibrationGap(SingleMetric):
    """Streaming signed gap: mean confidence minus accuracy, positive for an over-confident model."""

    key = "signed_gap"
    higher_is_better = None
    plot_lower_bound = -1.0


class NegativeLogLikelihood(SingleMetric):
    """Streaming negative log-likelihood of the label, in nats; exact from ``update(logits=...)``."""

    key = "nll"
    plot_upper_bound = None


class BrierScore(SingleMetric):
    """Streaming Brier score: squared distance of the probabilities from the label, summed over classes."""

    key = "brier"
    plot_upper_bound = 2.0


class ErrorRate(SingleMetric):
    """Streaming share of examples whose most probable class is not the label."""

    key = "error"


class AreaUnderRiskCoverage(SingleMetric):
    """Streaming area under the risk-coverage curve: mean error rate over all confidence thresholds."""

    key = "aurc"
