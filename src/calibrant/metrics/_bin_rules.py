"""How other sources put confidences into bins, one function per rule; `conventions` names them.

A rule takes a top-label (or binary) record and the number of bins as one would pass it to the source. The result holds the
bins that the source sums over, which may be more or fewer than asked for; examples that it loses are in none of them.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import Checked, TopLabel, means_of_sums, reduce_top_label
from calibrant.core.records import Bins

_BELOW = torch.tensor([-math.inf], dtype=torch.float64)
_ABOVE = torch.tensor([math.inf], dtype=torch.float64)


def _between(top: TopLabel, edges: Tensor, *, closed: Literal["left", "right"]) -> Bins:
    """Bins between consecutive float64 ``edges [M + 1]``; examples beyond the outer edges are in none."""
    slot = torch.bucketize(top.confidence, edges, right=closed == "left")
    size = len(edges) + 1
    sums = [torch.bincount(slot, weights=v, minlength=size)[1:-1] for v in (top.confidence, top.correct)]
    count = torch.bincount(slot, minlength=size)[1:-1].double()
    return means_of_sums(edges, count, *sums)


def _by_index(top: TopLabel, index: Tensor, size: int) -> Bins:
    sums = [torch.bincount(index, weights=v, minlength=size) for v in (top.confidence, top.correct)]
    return means_of_sums(torch.empty(0), torch.bincount(index, minlength=size).double(), *sums)


def _as_numpy(top: TopLabel) -> np.ndarray[tuple[int], np.dtype[np.floating]]:
    dtype = torch.float32 if top.dtype == torch.bfloat16 else top.dtype
    array: np.ndarray[tuple[int], np.dtype[np.floating]] = top.confidence.to(dtype).numpy()
    return array


def _compared(edges: Tensor, dtype: torch.dtype) -> Tensor:
    """Edges as torch compares them with a tensor of ``dtype``: a Python number takes the tensor's precision."""
    return edges.double().to(dtype).double()


def guo_width(top: TopLabel, n_bins: int) -> Bins:
    return _between(top, _compared(torch.linspace(0, 1, n_bins + 1), top.dtype), closed="right")


def focal_mass(top: TopLabel, n_bins: int) -> Bins:
    values, total = np.sort(_as_numpy(top)), len(top)
    edges = np.interp(np.linspace(0, total, n_bins + 1), np.arange(total), values)
    return _between(top, _compared(torch.from_numpy(edges), top.dtype), closed="right")


def focal_extremes(top: TopLabel, n_bins: int) -> Bins:
    return _by_index(top, (top.confidence * n_bins - 1).ceil().long().clamp_(0, n_bins - 1), n_bins)


def netcal_reduce(given: Checked) -> TopLabel:
    probs, labels = given.probs.cpu(), given.labels.cpu()
    if probs.shape[1] == 2:
        top = TopLabel(probs[:, 1].double().contiguous(), labels.double(), None, probs.dtype)
    elif len(labels.unique()) <= 2:
        raise ValueError(
            f"netcal has no number for labels of at most two distinct values with {probs.shape[1]} columns: it takes the "
            "problem for a binary one and fails."
        )
    else:
        top = reduce_top_label(probs, labels)
    eps = torch.finfo(probs.dtype).eps
    return TopLabel(top.confidence.clamp(eps, 1 - eps), top.correct, None, top.dtype)


def netcal_width(top: TopLabel, n_bins: int) -> Bins:
    return _netcal_bins(top, torch.from_numpy(np.linspace(0.0, 1.0, n_bins + 1)))


def netcal_mass(top: TopLabel, n_bins: int) -> Bins:
    edges = np.quantile(_as_numpy(top), np.linspace(0.0, 1.0, n_bins + 1)).astype(np.float64)
    edges[0], edges[-1] = 0.0, 1.0
    if np.diff(edges).min() == 0:
        raise ValueError(f"netcal has no number for {n_bins} equal-mass bins: tied confidences make two edges coincide.")
    return _netcal_bins(top, torch.from_numpy(edges))


def _netcal_bins(top: TopLabel, edges: Tensor) -> Bins:
    # Examples are counted by numpy between float64 edges and averaged by scipy between edges in the input's precision: an
    # example on an edge can weigh in one bin and be averaged in the next.
    count = _between(top, edges, closed="left").count
    means = _between(top, edges.to(top.dtype).double(), closed="left")
    return Bins(edges, count, means.confidence.where(count > 0, 0.0), means.accuracy.where(count > 0, 0.0))


def torchmetrics_reduce(given: Checked) -> TopLabel:
    probs = given.probs.cpu()
    if bool((probs > 1).any()):  # one value rounded above 1 makes it take all of them for logits
        probs = probs.softmax(1)
    top = reduce_top_label(probs, given.labels.cpu())
    return TopLabel(top.confidence.float().double(), top.correct, None, torch.float32)


def torchmetrics_width(top: TopLabel, n_bins: int) -> Bins:
    values = top.confidence.to(top.dtype)
    index = torch.bucketize(values, torch.linspace(0, 1, n_bins + 1, dtype=top.dtype), right=True) - 1
    zeros = torch.zeros(n_bins + 1, dtype=top.dtype)
    # Sums are kept in the input's precision, as there: in half precision counts stop growing at 2048.
    sums = [zeros.scatter_add(0, index, v).double() for v in (torch.ones_like(values), values, top.correct.to(top.dtype))]
    return means_of_sums(torch.empty(0), *sums)


def split_mass(top: TopLabel, n_bins: int) -> Bins:
    total = len(top)
    if total < n_bins:
        raise ValueError(f"torch_uncertainty has no number for {n_bins} equal-mass bins of {total} examples: it returns NaN.")
    order = torch.sort(top.confidence.float()).indices  # not stable, as there: ties fall as this call leaves them
    index = torch.empty_like(order)
    parts = torch.arange(total).tensor_split(n_bins)
    index[order] = torch.repeat_interleave(torch.arange(n_bins), torch.tensor([len(part) for part in parts]))
    return _by_index(top, index, n_bins)


def kumar_width(top: TopLabel, n_bins: int) -> Bins:
    edges = torch.tensor([i * 1.0 / n_bins for i in range(1, n_bins + 1)], dtype=torch.float64)
    return _between(top, torch.cat([_BELOW, edges]), closed="right")


def kumar_mass(top: TopLabel, n_bins: int) -> Bins:
    parts = np.array_split(np.sort(_as_numpy(top)), min(n_bins, len(top)))
    middles = [float((left[-1] + right[0]) / 2.0) for left, right in zip(parts[:-1], parts[1:], strict=True)]
    edges = torch.tensor(sorted({*middles, 1.0}), dtype=torch.float64)
    return _between(top, torch.cat([_BELOW, edges]), closed="right")


def relplot_width(top: TopLabel, n_bins: int) -> Bins:
    index = torch.from_numpy((_as_numpy(top) / (1.0 / n_bins)).astype(np.int64))
    return _by_index(top, index, n_bins + 1)


def pycalib_width(top: TopLabel, n_bins: int) -> Bins:
    size = 1 / n_bins
    uppers = torch.from_numpy(np.arange(size, 1 + size, size))
    rows = []
    # A lower edge is an upper edge less the bin size, which need not round to the upper edge before it: bins can overlap.
    for upper in uppers:
        lower = upper - size
        inside = (top.confidence <= upper) & ((top.confidence > lower) | (lower == 0))
        rows.append(torch.stack([inside.sum().double(), top.confidence[inside].sum(), top.correct[inside].sum()]))
    count, confidence, correct = torch.stack(rows).unbind(1)
    return means_of_sums(uppers, count, confidence, correct)


def pycalib_column(top: TopLabel, n_bins: int) -> Bins:
    edges = torch.from_numpy(np.linspace(0, 1 + 1e-8, n_bins + 1))
    return _between(top, torch.cat([edges, _ABOVE]), closed="left")


def mapie_width(top: TopLabel, n_bins: int) -> Bins:
    return _between(top, torch.cat([_BELOW, torch.from_numpy(np.linspace(0.0, 1.0, n_bins))]), closed="right")


def mapie_mass(top: TopLabel, n_bins: int) -> Bins:
    edges = np.percentile(_as_numpy(top), np.linspace(0, 1, n_bins) * 100).astype(np.float64)
    return _between(top, torch.cat([_BELOW, torch.from_numpy(edges)]), closed="right")


def caltrain_width(top: TopLabel, n_bins: int) -> Bins:
    edges = torch.from_numpy(np.linspace(0.0, 1.0, n_bins + 1))
    index = (torch.bucketize(top.confidence, edges, right=True) - 1).clamp_(max=n_bins - 1)
    return _by_index(top, index, n_bins)
