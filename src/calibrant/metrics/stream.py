"""The state that all streaming metrics share, and how batches, processes and devices add to it.

What is read from the state is in `from_grid`; the metric classes themselves are in `streaming`. Importing this module
imports torchmetrics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn import Module
from torchmetrics import Metric

from calibrant.core.binning import TopLabel
from calibrant.core.checks import (
    ArrayLike,
    check_before_softmax,
    check_count,
    check_label_values,
    check_prob_values,
    check_shapes,
    check_weights,
    to_tensor,
)
from calibrant.core.grid import EXACT_BINS, FINE_CELLS, fine_index
from calibrant.core.labels import label_shape, read_labels
from calibrant.core.records import flatten_examples
from calibrant.core.summary import class_bins_of
from calibrant.metrics.from_grid import KEPT_EXAMPLES, Sums

# Entries of a batch whose float64 copies are held at once: 64 MiB each.
_CHUNK_ENTRIES = 8_000_000


class Stream(Metric):
    """Sums over all examples seen, in float64: the base of every streaming metric.

    The state is the top-label cells of `calibrant.core.grid` (weight, weighted confidence, weighted correctness, squared
    weight; 0.8 MB), the first 65,536 examples (1 MB; as long as there are no more, every metric is exact), eight totals and,
    if ``classwise``, three sums per class and bin (24·C·M bytes: 0.4 MB at 1,000 classes and 15 bins).

    Args:
        num_classes: Number of classes C.
        n_bins: Number of bins M of the binned metrics, one of 5, 10, 15, 20, 25, 30, 50, 100, 200, 500 and 1,000.
        classwise: Keep what the classwise error needs.
        ignore_index: Label of examples to leave out.
        persistent: Save the state in ``state_dict``.
        kwargs: Options of `torchmetrics.Metric` (``sync_on_compute``, ``process_group``, ...).
    """

    is_differentiable = False
    higher_is_better: bool | None = False
    full_state_update = False
    plot_lower_bound: float | None = 0.0

    count: Tensor
    totals: Tensor
    cells: Tensor
    kept: Tensor
    class_bins: Tensor
    class_correct: Tensor
    class_rows: Tensor

    def __init__(
        self,
        *,
        num_classes: int,
        n_bins: int = 15,
        classwise: bool = False,
        ignore_index: int | None = None,
        persistent: bool = False,
        **kwargs: Any,
    ) -> None:
        where = type(self).__name__
        check_count(num_classes, where=where, name="num_classes", least=2)
        if n_bins not in EXACT_BINS:
            listed = ", ".join(str(n) for n in EXACT_BINS)
            raise ValueError(f"{where}: `n_bins` must be one of {listed}, got {n_bins!r}.")
        super().__init__(**kwargs)
        self.num_classes = int(num_classes)
        self.n_bins = int(n_bins)
        self.classwise = bool(classwise)
        self.ignore_index = ignore_index
        states: dict[str, Tensor] = {
            "count": torch.zeros(2, dtype=torch.int64, device="cpu"),
            "totals": torch.zeros(8, dtype=torch.float64, device="cpu"),
            "cells": torch.zeros(4, FINE_CELLS, dtype=torch.float64, device="cpu"),
        }
        if classwise:
            states["class_bins"] = torch.zeros(3, num_classes, n_bins, dtype=torch.float64, device="cpu")
            states["class_correct"] = torch.zeros(num_classes, dtype=torch.float64, device="cpu")
            states["class_rows"] = torch.zeros(num_classes, dtype=torch.float64, device="cpu")
        if ignore_index is not None:
            # torchmetrics lets metrics of a collection share a state if names and first values agree. The name keeps
            # apart those that ignore different labels; the value is the number of examples left out.
            states[f"ignored_{ignore_index}"] = torch.zeros((), dtype=torch.int64, device="cpu")
        for name, zeros in states.items():
            self.add_state(name, zeros, dist_reduce_fx="sum", persistent=persistent)
        # Confidence, negative where the prediction is wrong (it is never zero), and weight, -1 where there is no example.
        unused = torch.full((2, KEPT_EXAMPLES), -1.0, dtype=torch.float64, device="cpu")
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
        if (probs is None) == (logits is None):
            got = "neither" if probs is None else "both"
            raise ValueError(f"{where}: exactly one of `probs` and `logits` must be given, got {got}.")
        if labels is None:
            raise ValueError(f"{where}: `labels` must be given, got None.")
        kind, given = ("logits", logits) if probs is None else ("probs", probs)
        assert given is not None
        device = self.cells.device
        scores = to_tensor(given, where=where, name=kind).to(device)
        target = read_labels(labels, label_shape(scores), where=where, ignore_index=self.ignore_index).to(device)
        weight = None if weights is None else to_tensor(weights, where=where, name="weights").to(device).double()
        batch = self._check(scores, target, weight, kind=kind, where=where)
        self._leave_inference_mode()
        if self.ignore_index is not None:
            getattr(self, f"ignored_{self.ignore_index}").add_((target == self.ignore_index).sum())
        if batch is None:
            return
        scores, target, weight = batch
        rows = max(_CHUNK_ENTRIES // self.num_classes, 1)
        with torch.no_grad():
            for at in range(0, len(target), rows):
                part = slice(at, at + rows)
                self._add(scores[part], target[part], None if weight is None else weight[part], kind=kind)

    def _check(
        self, scores: Tensor, labels: Tensor, weights: Tensor | None, *, kind: str, where: str
    ) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Checked ``[N, C]``, ``[N]`` and ``[N]``, or None if there is no example, or none that is not to be ignored."""
        check_shapes(scores, labels, where=where, kind=kind, allow_empty=True)
        if scores.shape[1] != self.num_classes:
            raise ValueError(f"{where}: `{kind}` must have C = {self.num_classes} columns, got {list(scores.shape)}.")
        if labels.numel() == 0:
            return None
        if weights is not None:
            check_weights(weights, labels, where=where)
        if self.ignore_index is not None and bool((labels == self.ignore_index).all()):
            return None
        if scores.ndim > 2 or self.ignore_index is not None:
            scores, labels, weights, _ = flatten_examples(scores, labels, weights, ignore_index=self.ignore_index, where=where)
        check_label_values(labels, self.num_classes, where=where)
        (check_prob_values if kind == "probs" else check_before_softmax)(scores, where=where)
        return scores, labels.long(), weights

    def _add(self, scores: Tensor, labels: Tensor, weights: Tensor | None, *, kind: str) -> None:
        # Of the logits, which tell apart classes whose probabilities round to the same.
        predicted = scores.argmax(1)
        probs = scores.double().softmax(1) if kind == "logits" else scores
        chosen = probs.gather(1, torch.stack([predicted, labels], 1)).double()
        confidence, at_label = chosen.unbind(1)
        nll = 0 - at_label.log()
        if kind == "logits":
            _mend_underflow(nll, scores, labels)
        brier = torch.linalg.vector_norm(probs, dim=1, dtype=torch.float64).square()
        brier = (brier - 2 * at_label + 1).clamp_min(0)
        top = TopLabel(confidence.contiguous(), (predicted == labels).double(), weights, probs.dtype)
        self._add_top(top)
        weight = torch.ones_like(brier) if weights is None else weights
        if weights is not None:
            nll = nll.masked_fill(weights == 0, 0.0)
        values = torch.stack([nll, brier])
        powers = torch.stack([values, values.square(), values**3], 1).flatten(0, 1)
        self.totals[0] += weight.sum()
        self.totals[1] += weight.square().sum()
        self.totals[2:] += powers @ weight
        if self.classwise:
            bins = class_bins_of(probs, labels, weights, n_bins=self.n_bins)
            self.class_bins += torch.stack([bins.weight, bins.confidence, bins.correct])
            self.class_correct.index_add_(0, labels, weight * top.correct)
            self.class_rows.index_add_(0, labels, torch.ones_like(weight))

    def _add_top(self, top: TopLabel) -> None:
        n, seen = len(top), int(self.count[0])
        index = fine_index(top.confidence, dtype=top.dtype)
        if top.weights is None:
            weight = squares = torch.ones_like(top.confidence)
            confidence, correct = top.confidence, top.correct
        else:
            weight, squares = top.weights, top.weights.square()
            confidence, correct = weight * top.confidence, weight * top.correct
        for cells, values in zip(self.cells, (weight, confidence, correct, squares), strict=True):
            cells.index_add_(0, index, values)
        if seen + n <= KEPT_EXAMPLES:
            sign = 2 * top.correct - 1
            self.kept[:, seen : seen + n] = torch.stack([sign * top.confidence, weight])
        self.count[0] += n
        self.count[1] += n if top.weights is None else (weight > 0).sum()

    def _leave_inference_mode(self) -> None:
        """Replace states made under ``torch.inference_mode`` (by a reset there), which cannot be changed outside it."""
        if self.cells.is_inference() and not torch.is_inference_mode_enabled():
            for name in self._defaults:
                setattr(self, name, getattr(self, name).clone())

    def merge(self, *others: Self) -> Self:
        """Return a new metric that has seen the examples of this one and of ``others``; none of them is changed."""
        joined = self.clone()
        for other in others:
            joined.merge_state(other)
        assert isinstance(joined, type(self))
        return joined

    def merge_state(self, incoming_state: object) -> None:
        """Add the examples of another metric of the same class and settings (or its ``metric_state``) to this one."""
        where = f"{type(self).__name__}.merge_state"
        if isinstance(incoming_state, Stream) and incoming_state._settings() != self._settings():
            raise ValueError(
                f"{where}: `incoming_state` must have the same settings {self._settings()}, got {incoming_state._settings()}."
            )
        if not isinstance(incoming_state, (dict, Metric)):
            got = type(incoming_state).__name__
            raise ValueError(f"{where}: `incoming_state` must be a metric or its `metric_state`, got {got}.")
        incoming: dict[str, Any] = incoming_state if isinstance(incoming_state, dict) else incoming_state.metric_state
        for name in self._defaults:
            own = getattr(self, name)
            if name not in incoming or incoming[name].shape != own.shape:
                shape = str(list(incoming[name].shape)) if name in incoming else "none"
                raise ValueError(f"{where}: state `{name}` must be {list(own.shape)}, got {shape}.")
        super().merge_state({name: incoming[name].to(self.cells.device) for name in self._defaults})
        # The base class keeps a value computed before, and would warn that nothing was added by `update`.
        self._computed = None
        self._update_count += incoming_state._update_count if isinstance(incoming_state, Metric) else 1

    def _settings(self) -> dict[str, object]:
        return {
            "metric": type(self).__name__,
            "num_classes": self.num_classes,
            "n_bins": self.n_bins,
            "classwise": self.classwise,
            "ignore_index": self.ignore_index,
        }

    @contextmanager
    def _synced(self) -> Iterator[None]:
        """Within, the state is that of all processes; outside, it is this process's again."""
        if self._is_synced:
            yield
            return
        with self.sync_context(dist_sync_fn=self.dist_sync_fn, should_sync=self._to_sync):
            yield

    def sums(self) -> Sums:
        """Return the state (of all processes, if there are several) as the record that metrics are read from, on the CPU."""
        with self._synced():
            return self._sums()

    def _sums(self) -> Sums:
        n, size = self.count.tolist()
        if n == 0 or size == 0:
            if self._is_synced:
                self.unsync()
            raise ValueError(f"{type(self).__name__}: no examples yet. Call `update(probs, labels)` first.")
        signed, weights = self.kept[:, :n].cpu()
        plain = float(self.totals[0]) == n == float(self.totals[1])
        return Sums(
            n=n,
            size=size,
            n_bins=self.n_bins,
            totals=self.totals.cpu(),
            cells=self.cells.cpu(),
            kept=TopLabel(signed.abs(), (signed > 0).double(), None if plain else weights) if n <= KEPT_EXAMPLES else None,
            class_bins=self.class_bins.cpu() if self.classwise else None,
            class_correct=self.class_correct.cpu() if self.classwise else None,
            class_rows=self.class_rows.cpu() if self.classwise and not plain else None,
        )

    def _wrap_compute(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        wrapped = super()._wrap_compute(compute)

        @wraps(compute)
        def checked(*args: Any, **kwargs: Any) -> Any:
            if not self.update_called and not self.distributed_available_fn():
                self._sums()
            return wrapped(*args, **kwargs)

        return checked

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
        self._update_count = max(self._update_count, int(self.count[0] > 0))


def _join_kept(parts: Tensor) -> Tensor:
    """Join ``[W, 2, K]`` kept examples into ``[2, K]``; if they do not fit, none is kept."""
    used = parts[:, 1] >= 0
    found = parts.movedim(1, 0)[:, used]
    joined = torch.full_like(parts[0], -1.0)
    if found.shape[1] <= joined.shape[1]:
        joined[:, : found.shape[1]] = found
    return joined


def _mend_underflow(nll: Tensor, logits: Tensor, labels: Tensor) -> None:
    """Compute anew, from logits, the log-likelihoods of labels whose probability is too small for float64."""
    rows = (nll > 600).nonzero().squeeze(1)
    if len(rows):
        exact = logits[rows].double()
        nll[rows] = exact.logsumexp(1) - exact.gather(1, labels[rows].unsqueeze(1)).squeeze(1)
