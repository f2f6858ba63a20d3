"""Named conventions: how other sources bin, so that the number each of them prints can be reproduced; and `explain`.

Bin rules are taken over as they are, quirks included: who owns an edge, in which precision edges are rounded, which examples
fall into no bin or into one too many. Sums are float64, except where a source's own precision decides its number
(torchmetrics). `calibrant`'s own bins live in `calibrant.core.binning`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import (
    TopLabel,
    equal_mass_bins,
    equal_width_bins,
    means_of_sums,
    norm_of_bins,
    reduce_top_label,
    top_label,
)
from calibrant.core.checks import ArrayLike, check_count
from calibrant.core.records import Bins, Predictions, as_predictions
from calibrant.core.registry import lookup

# From a top-label (or binary) record and the number of bins as one would pass it to the source, to the bins that the source
# sums over: these may be more or fewer than asked for, and examples that it loses are in none of them.
Rule = Callable[[TopLabel, int], Bins]
Kind = Literal["expected", "maximum", "average", "adaptive", "classwise"]

_BELOW = torch.tensor([-math.inf], dtype=torch.float64)
_ABOVE = torch.tensor([math.inf], dtype=torch.float64)
_RULES = {
    "width": "{m} equal-width bins (lo, hi], edges k/{m} in {dtype}, 0 in the first and 1 in the last",
    "mass": "{m} equal-mass bins, tied confidences shared between the bins they span",
}


@dataclass(frozen=True)
class Convention:
    """How one source computes calibration errors; a rule is None where the source has no such metric.

    A rule fixes the bins. The norm of order p is taken over them, also where the source itself offers p = 1 only.

    Attributes:
        source: What the numbers are those of.
        description: The rule of its expected calibration error in words.
        width: Bins of its expected calibration error.
        mass: Bins of its adaptive (equal-mass) calibration error.
        mass_description: The rule of its adaptive calibration error in words.
        extremes: Bins of its maximum and average calibration error, where they differ from ``width``.
        column: Bins of each class in its classwise error.
        reduce: How it gets confidence and correctness from probabilities and labels.
        labels_name_classes: Whether it takes the classes to be those up to the largest label.
    """

    source: str
    description: str
    width: Rule
    mass: Rule | None = None
    mass_description: str = ""
    extremes: Rule | None = None
    column: Rule | None = None
    reduce: Callable[[Predictions], TopLabel] = lambda given: top_label(given, where="reproduce")
    labels_name_classes: bool = False


def reproduce(given: Predictions, *, convention: str, metric: Kind, n_bins: int, p: float = 1, where: str) -> Tensor:
    """Value of a metric as the named source computes it.

    Args:
        given: Predictions input.
        convention: Name in `CONVENTIONS`.
        metric: Which error.
        n_bins: Number of bins, as one would pass it to the source.
        p: Order of the norm.
        where: Name of the calling function, for messages.

    Returns:
        Scalar ``[]``. Raises ``ValueError`` if there is no such convention, if its source has no such metric, fails on
        this input, or if weights are given, which no source takes.
    """
    chosen = lookup(CONVENTIONS, convention, kind="convention")
    if given.weights is not None:
        raise ValueError(f"{where}: `weights` must be None with a `convention`, got {list(given.weights.shape)}.")
    rule = _rule_of(chosen, metric)
    if rule is None:
        having = ", ".join(name for name, entry in CONVENTIONS.items() if _rule_of(entry, metric))
        raise ValueError(f"{where}: `convention` must be one that has this metric, got {convention!r}. These do: {having}.")
    if metric == "classwise":
        return _classwise(given, chosen, rule, n_bins, p)
    top = chosen.reduce(given)
    bins = rule(top, n_bins)
    if metric == "maximum":
        return norm_of_bins(bins, p=math.inf)
    if metric == "average":
        return bins.gap[bins.count > 0].abs().mean()
    return norm_of_bins(bins, p=p, total=len(top))


def _rule_of(convention: Convention, metric: Kind) -> Rule | None:
    if metric == "adaptive":
        return convention.mass
    if metric == "classwise":
        return convention.column
    return convention.width if metric == "expected" else convention.extremes or convention.width


def _classwise(given: Predictions, convention: Convention, rule: Rule, n_bins: int, p: float) -> Tensor:
    probs, labels = given.probs, given.labels
    classes = int(labels.max()) + 1 if convention.labels_name_classes else probs.shape[1]
    errors = []
    for k in range(classes):
        column = TopLabel(probs[:, k].double().contiguous(), (labels == k).double(), None, probs.dtype)
        errors.append(norm_of_bins(rule(column, n_bins), p=p, total=len(labels)))
    stacked = torch.stack(errors)
    return stacked.amax() if math.isinf(p) else (stacked**p).mean() ** (1 / p)


@dataclass(frozen=True)
class Explanation:
    """A calibration error and what it rests on; ``print`` shows it as text.

    Attributes:
        value: The error.
        metric: Name of the function that gives it.
        kind: Which probability is compared with which event.
        rule: The bin rule in words.
        p: Order of the norm.
        n: Number of examples N.
        num_classes: Number of classes C.
        n_bins: Number of bins M.
        empty_bins: Bins that hold no example.
        smallest_bin: Examples (or weight) in the smallest bin that is not empty.
        saturated: Examples whose confidence is exactly 1.
        distinct: Number of different confidences.
        signed_gap: Mean confidence minus accuracy; positive is over-confident.
        others: Convention → its value, or None where its source fails on this input or takes no weights.
        binary: For two classes, the error of the second column as a binary problem; else None.
    """

    value: float
    metric: str
    kind: str
    rule: str
    p: float
    n: int
    num_classes: int
    n_bins: int
    empty_bins: int
    smallest_bin: float
    saturated: int
    distinct: int
    signed_gap: float
    others: Mapping[str, float | None]
    binary: float | None = None

    def __str__(self) -> str:
        order = "" if self.p == 1 else f", norm of order {self.p:g}"
        side = "over-confident" if self.signed_gap > 0 else "under-confident"
        # Below half of the last digit there is no direction.
        side = f"{side if abs(self.signed_gap) >= 5e-7 else 'no direction'} on average"
        lines = [
            f"{self.metric} = {self.value:.6f}",
            f"  kind       {self.kind}{order}",
            f"  bins       {self.rule}",
            f"  examples   {self.n} of {self.num_classes} classes; {self.distinct} different confidences",
            f"  empty      {self.empty_bins} of {self.n_bins} bins; the smallest of the others holds {self.smallest_bin:g}",
            f"  saturated  {self.saturated} confidences are exactly 1",
            f"  direction  mean confidence minus accuracy {self.signed_gap:+.6f} ({side})",
        ]
        if self.binary is not None:
            lines.append(f"  binary     {self.binary:.6f} if the second column is taken as the probability of a positive class")
        lines.append("  the same predictions elsewhere:")
        wide = max(len(name) for name in CONVENTIONS)
        for name, value in self.others.items():
            shown = "none    " if value is None else f"{value:.6f}"
            entry = CONVENTIONS[name]
            text = entry.mass_description if self.metric == "adaptive_calibration_error" else entry.description
            lines.append(f"    {name:<{wide}}  {shown}  {text}")
        return "\n".join(lines)


def explain(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    n_bins: int = 15,
    p: float = 1,
    binning: Literal["width", "mass"] = "width",
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Explanation:
    """Say what a top-label calibration error rests on, and what it would be under every other convention.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        n_bins: Number of bins ``M``.
        p: Order of the norm, from 1 to ``math.inf``.
        binning: "width" to explain `expected_calibration_error`, "mass" for `adaptive_calibration_error`.
        weights: Sample weights, shaped as the labels; no other source takes them.
        ignore_index: Label of examples to leave out.

    Returns:
        The record.

    Example:
        >>> told = explain([[0.95, 0.05, 0.0], [1.0, 0.0, 0.0], [0.2, 0.2, 0.6]], [0, 1, 2])
        >>> told.saturated, told.empty_bins, round(told.value, 4), round(told.others["torchmetrics"], 4)
        (1, 13, 0.45, 0.4833)

    Reference:
        The sources are named in `calibrant.metrics.conventions.CONVENTIONS`.
    """
    where = "explain"
    check_count(n_bins, where=where, name="n_bins")
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not p >= 1:
        raise ValueError(f"{where}: `p` must be a number >= 1 (`math.inf` for the largest gap), got {p!r}.")
    if binning not in _RULES:
        raise ValueError(f"{where}: `binning` must be 'width' or 'mass', got {binning!r}.")
    given = as_predictions(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    top = top_label(given, where=where)
    group = equal_width_bins if binning == "width" else equal_mass_bins
    bins = group(top, n_bins=n_bins)
    held = bins.count[bins.count > 0]
    dtype, binary = str(top.dtype).removeprefix("torch."), None
    if given.num_classes == 2:
        positive = TopLabel(given.probs[:, 1].double(), given.labels.double(), given.weights, given.probs.dtype)
        binary = float(norm_of_bins(group(positive, n_bins=n_bins), p=p))
    return Explanation(
        value=float(norm_of_bins(bins, p=p)),
        metric="expected_calibration_error" if binning == "width" else "adaptive_calibration_error",
        kind="top-label: the highest probability against whether its class is right",
        rule=_RULES[binning].format(m=n_bins, dtype=dtype),
        p=p,
        n=len(top),
        num_classes=given.num_classes,
        n_bins=n_bins,
        empty_bins=n_bins - len(held),
        smallest_bin=float(held.min()),
        saturated=int((top.confidence == 1).sum()),
        distinct=len(top.confidence.unique()),
        signed_gap=float(bins.weight @ bins.gap),
        others=_others(given, "expected" if binning == "width" else "adaptive", n_bins, p),
        binary=binary,
    )


def _others(given: Predictions, metric: Kind, n_bins: int, p: float) -> Mapping[str, float | None]:
    values: dict[str, float | None] = {}
    for name, convention in CONVENTIONS.items():
        if metric == "adaptive" and convention.mass is None:
            continue
        try:
            values[name] = float(reproduce(given, convention=name, metric=metric, n_bins=n_bins, p=p, where="explain"))
        except ValueError:
            values[name] = None
    return MappingProxyType(values)


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


def _guo_width(top: TopLabel, n_bins: int) -> Bins:
    return _between(top, _compared(torch.linspace(0, 1, n_bins + 1), top.dtype), closed="right")


def _focal_mass(top: TopLabel, n_bins: int) -> Bins:
    values, total = np.sort(_as_numpy(top)), len(top)
    edges = np.interp(np.linspace(0, total, n_bins + 1), np.arange(total), values)
    return _between(top, _compared(torch.from_numpy(edges), top.dtype), closed="right")


def _focal_extremes(top: TopLabel, n_bins: int) -> Bins:
    return _by_index(top, (top.confidence * n_bins - 1).ceil().long().clamp_(0, n_bins - 1), n_bins)


def _netcal_reduce(given: Predictions) -> TopLabel:
    probs, labels = given.probs, given.labels
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


def _netcal_width(top: TopLabel, n_bins: int) -> Bins:
    return _netcal_bins(top, torch.from_numpy(np.linspace(0.0, 1.0, n_bins + 1)))


def _netcal_mass(top: TopLabel, n_bins: int) -> Bins:
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


def _torchmetrics_reduce(given: Predictions) -> TopLabel:
    probs = given.probs
    if bool((probs > 1).any()):  # one value rounded above 1 makes it take all of them for logits
        probs = probs.softmax(1)
    top = reduce_top_label(probs, given.labels)
    return TopLabel(top.confidence.float().double(), top.correct, None, torch.float32)


def _torchmetrics_width(top: TopLabel, n_bins: int) -> Bins:
    values = top.confidence.to(top.dtype)
    index = torch.bucketize(values, torch.linspace(0, 1, n_bins + 1, dtype=top.dtype), right=True) - 1
    zeros = torch.zeros(n_bins + 1, dtype=top.dtype)
    # Sums are kept in the input's precision, as there: in half precision counts stop growing at 2048.
    sums = [zeros.scatter_add(0, index, v).double() for v in (torch.ones_like(values), values, top.correct.to(top.dtype))]
    return means_of_sums(torch.empty(0), *sums)


def _split_mass(top: TopLabel, n_bins: int) -> Bins:
    total = len(top)
    if total < n_bins:
        raise ValueError(f"torch_uncertainty has no number for {n_bins} equal-mass bins of {total} examples: it returns NaN.")
    order = torch.sort(top.confidence.float()).indices  # not stable, as there: ties fall as this call leaves them
    index = torch.empty_like(order)
    parts = torch.arange(total).tensor_split(n_bins)
    index[order] = torch.repeat_interleave(torch.arange(n_bins), torch.tensor([len(part) for part in parts]))
    return _by_index(top, index, n_bins)


def _kumar_width(top: TopLabel, n_bins: int) -> Bins:
    edges = torch.tensor([i * 1.0 / n_bins for i in range(1, n_bins + 1)], dtype=torch.float64)
    return _between(top, torch.cat([_BELOW, edges]), closed="right")


def _kumar_mass(top: TopLabel, n_bins: int) -> Bins:
    parts = np.array_split(np.sort(_as_numpy(top)), min(n_bins, len(top)))
    middles = [float((left[-1] + right[0]) / 2.0) for left, right in zip(parts[:-1], parts[1:], strict=True)]
    edges = torch.tensor(sorted({*middles, 1.0}), dtype=torch.float64)
    return _between(top, torch.cat([_BELOW, edges]), closed="right")


def _relplot_width(top: TopLabel, n_bins: int) -> Bins:
    index = torch.from_numpy((_as_numpy(top) / (1.0 / n_bins)).astype(np.int64))
    return _by_index(top, index, n_bins + 1)


def _pycalib_width(top: TopLabel, n_bins: int) -> Bins:
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


def _pycalib_column(top: TopLabel, n_bins: int) -> Bins:
    edges = torch.from_numpy(np.linspace(0, 1 + 1e-8, n_bins + 1))
    return _between(top, torch.cat([edges, _ABOVE]), closed="left")


def _mapie_width(top: TopLabel, n_bins: int) -> Bins:
    return _between(top, torch.cat([_BELOW, torch.from_numpy(np.linspace(0.0, 1.0, n_bins))]), closed="right")


def _mapie_mass(top: TopLabel, n_bins: int) -> Bins:
    edges = np.percentile(_as_numpy(top), np.linspace(0, 1, n_bins) * 100).astype(np.float64)
    return _between(top, torch.cat([_BELOW, torch.from_numpy(edges)]), closed="right")


def _caltrain_width(top: TopLabel, n_bins: int) -> Bins:
    edges = torch.from_numpy(np.linspace(0.0, 1.0, n_bins + 1))
    index = (torch.bucketize(top.confidence, edges, right=True) - 1).clamp_(max=n_bins - 1)
    return _by_index(top, index, n_bins)


CONVENTIONS: Mapping[str, Convention] = MappingProxyType(
    {
        "guo2017": Convention(
            "Guo et al., ICML 2017, as in gpleiss/temperature_scaling",
            "(lo, hi], edges of a float32 linspace; 0 in no bin",
            _guo_width,
        ),
        "focal_calibration": Convention(
            "Mukhoti et al., NeurIPS 2020, torrvision/focal_calibration",
            "(lo, hi], edges of a float32 linspace; 0 in no bin",
            _guo_width,
            mass=_focal_mass,
            mass_description="(lo, hi], edges interpolated between sorted confidences; the smallest in no bin",
            extremes=_focal_extremes,
            column=_guo_width,
            labels_name_classes=True,
        ),
        "netcal": Convention(
            "netcal 1.4",
            "[lo, hi), confidences clipped away from 0 and 1; of two columns only the second counts",
            _netcal_width,
            mass=_netcal_mass,
            mass_description="[lo, hi), edges are quantiles; fails where two coincide",
            reduce=_netcal_reduce,
        ),
        "torchmetrics": Convention(
            "torchmetrics 1.9",
            "[lo, hi) in float32; exactly 1 in a bin of its own beyond the last",
            _torchmetrics_width,
            reduce=_torchmetrics_reduce,
        ),
        "torch_uncertainty": Convention(
            "torch-uncertainty 0.13",
            "as torchmetrics",
            _torchmetrics_width,
            mass=_split_mass,
            mass_description="sorted examples split into equal parts, ties as the sort leaves them",
            column=_torchmetrics_width,
            reduce=_torchmetrics_reduce,
        ),
        "uncertainty_calibration": Convention(
            "Kumar, Liang and Ma, NeurIPS 2019, uncertainty-calibration 0.1.4",
            "(lo, hi], edges in float64 whatever the input",
            _kumar_width,
            mass=_kumar_mass,
            mass_description="(lo, hi], edges midway between equal parts; coinciding ones merged",
            column=_kumar_width,
        ),
        "relplot": Convention(
            "Blasiok and Nakkiran, ICLR 2024, relplot 1.0",
            "[lo, hi) by truncation; exactly 1 in a bin of its own beyond the last",
            _relplot_width,
        ),
        "pycalib": Convention(
            "PyCalib 0.1",
            "(lo, hi], edges by repeated addition; for some numbers of bins 1 in no bin",
            _pycalib_width,
            column=_pycalib_column,
        ),
        "mapie": Convention(
            "MAPIE 1",
            "(lo, hi] between n_bins edges, hence one bin fewer",
            _mapie_width,
            mass=_mapie_mass,
            mass_description="(lo, hi] between n_bins quantiles, hence one bin fewer; the smallest in a bin of its own",
        ),
        "caltrain": Convention(
            "Roelofs et al., AISTATS 2022, google-research/caltrain",
            "[lo, hi), 1 in the last",
            _caltrain_width,
        ),
    }
)
