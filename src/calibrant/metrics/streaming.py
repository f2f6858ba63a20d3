"""Streaming metrics: `torchmetrics` classes over a state of constant size, however many examples pass.

`CalibrationSuite` gives all scores; the other classes give one of them each. In a ``MetricCollection`` those with equal
settings share one state. Importing this module imports torchmetrics.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import torch
from torch import Tensor
from torch.nn import Module
from torchmetrics import Metric

from calibrant.core.binning import EXACT_BINS, KEPT_EXAMPLES, NUM_CELLS, Summary, TopLabel, in_chunks, summarize_rows
from calibrant.core.checks import ArrayLike, check_choice, check_count
from calibrant.core.records import Bins, Scores, check_examples, one_of
from calibrant.metrics.measure import measure_summary, values_of
from calibrant.metrics.table import METRICS
from calibrant.metrics.verdict import draw_reliability

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure


class Stream(Metric):
    """Sums over all examples seen, in float64: the base of every streaming metric.

    The state is that of `calibrant.core.binning.Summary`: the cells of confidence (1 MB, and once more for the positive one of
    two classes), the first 65,536 examples (1 MB, or 1.5 of two classes; as long as there are no more, every metric is exact),
    some totals and, if ``classwise``, sums per class and bin (24·C·M bytes: 0.4 MB at 1,000 classes and 15 bins).

    Its options are those of `CalibrationSuite`.
    """

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False
    plot_lower_bound: float | None = 0.0

    count: Tensor
    weights: Tensor
    cells: Tensor
    kept: Tensor

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
        where = type(self).__name__
        check_count(num_classes, where=where, name="num_classes", least=2)
        check_choice(n_bins, EXACT_BINS, where=where, name="n_bins")
        super().__init__(**kwargs)
        self.num_classes, self.n_bins, self.ignore_index = int(num_classes), int(n_bins), ignore_index
        shapes: dict[str, tuple[int, ...]] = {"weights": (2,), "nll": (3,), "brier": (3,), "cells": (5, NUM_CELLS)}
        if num_classes == 2:
            shapes["positive_cells"] = shapes["cells"]
        if classwise:
            shapes |= {"class_bins": (3, num_classes, n_bins), "class_counts": (2, num_classes)}
        # The states that are sums of the same name in a `Summary`.
        self.sums = tuple(shapes)
        states = {name: torch.zeros(shape, dtype=torch.float64, device="cpu") for name, shape in shapes.items()}
        states["count"] = torch.zeros(1, dtype=torch.int64, device="cpu")
        if ignore_index is not None:
            # torchmetrics lets metrics of a collection share a state if names and first values agree. The name keeps
            # apart those that ignore different labels; the value is the number of examples left out.
            states[f"ignored_{ignore_index}"] = torch.zeros((), dtype=torch.int64, device="cpu")
        for name, zeros in states.items():
            self.add_state(name, zeros, dist_reduce_fx="sum", persistent=persistent)
        # Of each example its weight, -1 where there is none, the confidence, negative where the prediction is wrong, and of two
        # classes the probability of the second, negative where that is not the label.
        unused = torch.full((3 if num_classes == 2 else 2, KEPT_EXAMPLES), -1.0, dtype=torch.float64, device="cpu")
        self.add_state("kept", unused, dist_reduce_fx=_join_kept, persistent=persistent)

    def update(
        self,
        probs: ArrayLike | None = None,
        labels: ArrayLike | None = None,
        *,
        logits: ArrayLike | None = None,
        weights: ArrayLike | None = None,
    ) -> None:
        """Add a batch; one without examples adds nothing.

        Args:
            probs: Probabilities ``[N, C]`` or dense ``[N, C, ...]``, on any device.
            labels: Class indices ``[N]`` or ``[N, ...]`` in ``[0, C)``.
            logits: Instead of ``probs``: scores whose softmax is the probability. The log-likelihood is then exact even
                where a probability rounds to zero.
            weights: Sample weights, shaped as the labels.
        """
        where = f"{type(self).__name__}.update"
        given, kind = one_of(logits=logits, probs=probs, where=where)
        if labels is None:
            raise ValueError(f"{where}: `labels` must be given, got None.")
        scores, target, weight, kept = check_examples(
            given,
            labels,
            weights,
            kind=kind,
            where=where,
            ignore_index=self.ignore_index,
            device=self.cells.device,
            allow_empty=True,
        )
        if scores.shape[1] != self.num_classes:
            raise ValueError(f"{where}: `{kind}` must have C = {self.num_classes} columns, got {list(scores.shape)}.")
        if self.cells.is_inference() and not torch.is_inference_mode_enabled():
            # States made under `torch.inference_mode` (by a reset there) cannot be changed outside it.
            for name in self._defaults:
                setattr(self, name, getattr(self, name).clone())
        if self.ignore_index is not None:
            getattr(self, f"ignored_{self.ignore_index}").add_((~kept).sum())
        if weight is not None:
            scores, target, weight = (part[weight > 0] for part in (scores, target, weight))
        with torch.no_grad():
            for chunk in in_chunks(scores, target, weight):
                self._add(*chunk, are_logits=probs is None)

    def _add(self, scores: Tensor, labels: Tensor, weights: Tensor | None, *, are_logits: bool) -> None:
        classwise = "class_bins" in self.sums
        found = summarize_rows(scores, labels, weights, are_logits=are_logits, n_bins=self.n_bins, classwise=classwise)
        seen, n = int(self.count), found.n
        assert found.top is not None
        if seen + n <= KEPT_EXAMPLES:
            tops = [top for top in (found.top, found.positive_top) if top is not None]
            signed = [torch.copysign(top.confidence, top.correct - 0.5) for top in tops]
            self.kept[:, seen : seen + n] = torch.stack([found.top.mass, *signed])
        self.count += n
        for name in self.sums:
            getattr(self, name).add_(getattr(found, name))

    def merge(self, *others: Self) -> Self:
        """Return a new metric that has seen the examples of this one and of ``others``; none of them is changed."""
        joined: Self = self.clone()  # type: ignore[assignment]
        for other in others:
            joined.merge_state(other)
        return joined

    def merge_state(self, incoming_state: object) -> None:
        """Add the examples of another metric of the same settings (or its ``metric_state``) to this one."""
        given: Any = incoming_state.metric_state if isinstance(incoming_state, Metric) else incoming_state
        incoming = given if isinstance(given, dict) else {}
        wanted, got = (
            {name: list(state.shape) for name, state in cast("dict[str, Tensor]", states).items()}
            for states in (self.metric_state, incoming)
        )
        if wanted != got:
            where = f"{type(self).__name__}.merge_state"
            raise ValueError(f"{where}: `incoming_state` must have the states {wanted}, got {got or given!r}.")
        super().merge_state({name: state.to(self.cells.device) for name, state in incoming.items()})
        # The base class keeps a value computed before, and would warn that nothing was added by `update`.
        self._computed = None
        self._update_count += incoming_state._update_count if isinstance(incoming_state, Metric) else 1

    def _summary(self) -> Summary:
        """What is known of all examples seen (by all processes, once they are synchronised), on the CPU."""
        n = int(self.count)
        if n == 0:
            if self._is_synced:
                self.unsync()
            raise ValueError(f"{type(self).__name__}: no examples yet. Call `update(probs, labels)` first.")
        sums = {name: getattr(self, name).cpu().clone() for name in self.sums}
        weights, *signed = self.kept[:, :n].cpu()
        own = None if float(self.weights[0]) == n == float(self.weights[1]) else weights
        tops = [TopLabel(values.abs(), (~values.signbit()).double(), own) for values in signed] if n <= KEPT_EXAMPLES else []
        named: dict[str, Any] = dict(zip(("top", "positive_top"), tops, strict=False))
        return Summary(n=n, num_classes=self.num_classes, n_bins=self.n_bins, **sums, **named)

    def set_dtype(self, dst_type: str | torch.dtype) -> Self:
        """Do nothing: sums stay in float64 and int64, whatever the precision of model and input."""
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> Module:
        def move(state: Tensor) -> Tensor:
            try:
                moved = fn(state)
                return moved if moved.dtype == state.dtype else state.to(moved.device)
            except TypeError:  # The device has no float64 (Apple's MPS): the state stays where it is.
                return state

        return super()._apply(move, exclude_state)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        device = self.cells.device
        super()._load_from_state_dict(state_dict, prefix, *args)
        for name in self._defaults:
            # `update` writes into the state, which must not be the caller's tensor.
            setattr(self, name, getattr(self, name).clone().to(device))
        self._computed = None
        self._update_count = max(self._update_count, int(self.count > 0))


def _join_kept(parts: Tensor) -> Tensor:
    """Join ``[W, R, K]`` kept examples into ``[R, K]``; if they do not fit, none is kept."""
    found = parts.movedim(1, 0)[:, parts[:, 0] >= 0]
    joined = torch.full_like(parts[0], -1.0)
    if found.shape[1] <= joined.shape[1]:
        joined[:, : found.shape[1]] = found
    return joined


class CalibrationSuite(Stream):
    """All calibration metrics of a classifier at once, from batches, in constant memory.

    ``update(probs, labels)`` or ``update(logits=..., labels=...)``, then ``compute()`` gives by key every score of
    `calibrant.measure` that can be read from sums. Means, proper scores and equal-width bins are exact. The others (ace, sece,
    smece, mmce, ece_debiased, aurc) are exact up to 65,536 examples; beyond, confidences closer than 1/24,000 (and ever closer
    towards one) count as tied, which moves them by less than 1e-3 (by 2e-4 on all data tried). Only bins of equal mass that are
    hardly wider than that, as 1,000 bins over confidences within a few per cent of each other, can move ``ace`` and
    ``ece_debiased`` further.

    Processes are joined by adding their sums, so the numbers do not depend on who saw which example. The state is 2 MB (3.5 MB
    of two classes) plus 24·C·M bytes for C classes and M bins (0.4 MB at 1,000 classes and 15 bins, without ``classwise``
    nothing). Sums are float64, on the metric's device, or on the CPU where that has no float64. No autograd graph is kept.

    Args:
        num_classes: Number of classes C.
        n_bins: Number of bins M, one of 5, 10, 15, 20, 25, 30, 50, 100, 200, 500 and 1,000.
        classwise: Measure ``classwise_ece`` too, which ``summary`` and ``scores`` need.
        ignore_index: Label of examples to leave out.
        persistent: Save the state in ``state_dict``.
        kwargs: Options of `torchmetrics.Metric` (``sync_on_compute``, ``process_group``, ...).

    Example:
        >>> suite = CalibrationSuite(num_classes=2, n_bins=5)
        >>> suite.update(torch.tensor([[0.9, 0.1]]), torch.tensor([0]))
        >>> suite.update(torch.tensor([[0.2, 0.8]]), torch.tensor([0]))
        >>> {key: round(float(value), 4) for key, value in suite.compute().items() if key in ("error", "brier", "ece")}
        {'error': 0.5, 'brier': 0.65, 'ece': 0.45}
    """

    def compute(self) -> dict[str, Tensor]:
        """Return every metric by key, as float64 scalars ``[]``. Raises ``ValueError`` if no example was seen."""
        device = self.cells.device
        return {key: torch.tensor(v, dtype=torch.float64, device=device) for key, v in values_of(self._summary()).items()}

    def bins(self, *, n_bins: int | None = None) -> Bins:
        """Return the confidence bins of all examples seen: ``n_bins`` of them, or as many as the metrics use."""
        return self.summary().bins_of(n_bins or self.n_bins)

    def summary(self) -> Summary:
        """Return the record of constant size that `calibrant.metrics.measure_summary` makes scores with intervals of."""
        if self._is_synced:
            return self._summary()
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            return self._summary()

    def scores(
        self,
        *,
        by_class: bool = False,
        class_names: Sequence[str] | None = None,
        n_resamples: int = 1000,
        seed: int = 0,
    ) -> Scores:
        """Return the values of ``compute()`` with their 95 % intervals, and the ECE that a calibrated model would show.

        It is the record that `calibrant.measure` gives of predictions in memory, and takes the arguments of that, and
        ``class_names``, C names for the table of classes.
        """
        summary = self.summary()
        return measure_summary(summary, by_class=by_class, class_names=class_names, n_resamples=n_resamples, seed=seed)

    def plot(self, ax: Axes | None = None, *, n_bins: int | None = None) -> tuple[Figure | SubFigure | None, Axes]:
        """Draw the reliability diagram of all examples seen; of two classes that of the probability of the second.

        Args:
            ax: Axes to draw in; a new figure if not given.
            n_bins: Number of bins, as many as the metrics use if not given.

        Returns:
            The figure and the axes of the diagram.
        """
        summary = self.summary()
        bins = (summary.positive or summary).bins_of(n_bins or self.n_bins)
        name, probability = ("ECE", "") if summary.positive is None else ("binary ECE", "P(positive)")
        title = f"{name} {float(bins.weight @ bins.gap.abs()):.4f} in {len(bins.count)} bins, {summary.n:,} examples"
        return draw_reliability(bins, title=title, ax=ax, probability=probability)


class SingleMetric(Stream):
    """One number of the `CalibrationSuite`, by its key; takes the options of that class but for ``classwise``."""

    key: ClassVar[str]
    plot_upper_bound: float | None = None

    def __init_subclass__(cls, key: str = "") -> None:
        super().__init_subclass__()
        cls.key = key or cls.key
        metric = METRICS[cls.key]
        cls.plot_upper_bound = None if math.isinf(metric.largest) else metric.largest
        if metric.better is None:
            cls.higher_is_better, cls.plot_lower_bound, cls.plot_upper_bound = None, -1.0, 1.0

    def __init__(self, **options: Any) -> None:
        super().__init__(classwise=METRICS[self.key].classwise, **options)

    def compute(self) -> Tensor:
        """Return the value, a float64 scalar ``[]``. Raises ``ValueError`` if no example was seen."""
        read = METRICS[self.key].read
        assert read is not None
        return read(self._summary()).to(self.cells.device)

    def plot(
        self, val: Tensor | Sequence[Tensor] | None = None, ax: Axes | None = None
    ) -> tuple[Figure | SubFigure | None, Axes]:
        """Draw the value, or a sequence of values of several steps, as all torchmetrics do; returns figure and axes."""
        figure, axes = self._plot(val, ax)
        return figure, cast("Axes", axes)


class ExpectedCalibrationError(SingleMetric, key="ece"):
    """Streaming `expected_calibration_error`: mean gap between confidence and accuracy over equal-width bins.

    Example:
        >>> metric = ExpectedCalibrationError(num_classes=2, n_bins=5)
        >>> metric.update(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0]))
        >>> metric.compute()
        tensor(0.4500, dtype=torch.float64)
    """


class MaximumCalibrationError(SingleMetric, key="mce"):
    """Streaming `maximum_calibration_error`: largest gap between confidence and accuracy over equal-width bins."""


class AdaptiveCalibrationError(SingleMetric, key="ace"):
    """Streaming `adaptive_calibration_error`: mean gap over equal-mass bins, ties shared."""


class ClasswiseCalibrationError(SingleMetric, key="classwise_ece"):
    """Streaming `classwise_calibration_error`: mean gap over classes and equal-width bins of each class's probability."""


class SmoothExpectedCalibrationError(SingleMetric, key="sece"):
    """Streaming ``sece``: gap between confidence and kernel-smoothed accuracy, bandwidth 0.05."""


class SmoothCalibrationError(SingleMetric, key="smece"):
    """Streaming ``smece``: the smooth calibration error of Blasiok and Nakkiran at its own bandwidth."""


class MaximumMeanCalibrationError(SingleMetric, key="mmce"):
    """Streaming ``mmce``: maximum mean calibration error with a Laplace kernel of width 0.4, with the root."""


class DebiasedCalibrationError(SingleMetric, key="ece_debiased"):
    """Streaming `debiased_calibration_error`: root-mean-square gap over equal-mass bins, less what chance gives."""


class SignedCalibrationGap(SingleMetric, key="signed_gap"):
    """Streaming signed gap: mean confidence minus accuracy, positive for an over-confident model."""


class NegativeLogLikelihood(SingleMetric, key="nll"):
    """Streaming negative log-likelihood of the label, in nats; exact from ``update(logits=...)``."""


class BrierScore(SingleMetric, key="brier"):
    """Streaming Brier score: squared distance of the probabilities from the label, summed over classes."""


class ErrorRate(SingleMetric, key="error"):
    """Streaming share of examples whose most probable class is not the label."""


class AreaUnderRiskCoverage(SingleMetric, key="aurc"):
    """Streaming area under the risk-coverage curve: mean error rate over all confidence thresholds."""
