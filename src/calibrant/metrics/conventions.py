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
    one_vs_rest,
    reduce_top_label,
    top_label,
)
from calibrant.core.checks import ArrayLike, check_choice, lookup
from calibrant.core.records import Bins, Predictions, as_predictions

__all__ = ["CONVENTIONS", "Explanation", "explain"]

# From a top-label (or binary) record and the number of bins as one would pass it to the source, to the bins that the source
# sums over: these may be more or fewer than asked for, and examples that it loses are in none of them.
Rule = Callable[[TopLabel, int], Bins]
ErrorKind = Literal["expected", "maximum", "average", "adaptive", "classwise"]

_TOP_LABEL = "top-label: the highest probability against whether its class is right"
_BELOW = torch.tensor([-math.inf], dtype=torch.float64)
_ABOVE = torch.tensor([math.inf], dtype=torch.float64)


@dataclass(frozen=True)
class Convention:
    """How one source computes calibration errors.

    A rule fixes the bins. The norm of order p is taken over them, also where the source itself offers p = 1 only.

    Attributes:
        source: What the numbers are those of.
        description: The rule of its expected calibration error in words.
        rules: Kind of error → its bins; those of "expected" are also for "maximum" and "average" unless given.
        mass_description: The rule of its adaptive calibration error in words.
        reduce: How it gets confidence and correctness from probabilities and labels.
        labels_name_classes: Whether it takes the classes to be those up to the largest label.
    """

    source: str
    description: str
    rules: Mapping[ErrorKind, Rule]
    mass_description: str = ""
    reduce: Callable[[Predictions], TopLabel] = lambda given: top_label(given, where="convention")
    labels_name_classes: bool = False

    def rule_of(self, kind: ErrorKind) -> Rule | None:
        """The bins of one kind of error; None where the source has no such metric."""
        return self.rules.get(kind) or (self.rules["expected"] if kind in ("maximum", "average") else None)


def error_by_convention(given: Predictions, kind: ErrorKind, convention: str, *, n_bins: int, p: float = 1) -> Tensor:
    """Calibration error ``[]`` over the bins of the named source.

    Raises ``ValueError`` if there is no such convention, if its source has no such metric, or if there are weights, which no
    source takes.
    """
    where, chosen = f"{kind}_calibration_error", lookup(CONVENTIONS, convention, kind="convention")
    if given.weights is not None:
        raise ValueError(f"{where}: `weights` must be None with a `convention`, got {list(given.weights.shape)}.")
    rule = chosen.rule_of(kind)
    if rule is None:
        having = ", ".join(name for name, entry in CONVENTIONS.items() if entry.rule_of(kind))
        raise ValueError(f"{where}: `convention` must be one that has this metric, got {convention!r}. These do: {having}.")
    # A source divides by the number of examples, also of those that are in none of its bins.
    if kind == "classwise":
        classes = range(int(given.labels.max()) + 1 if chosen.labels_name_classes else given.num_classes)
        columns = [one_vs_rest(given.probs, given.labels, index=k) for k in classes]
        errors = [norm_of_bins(rule(column, n_bins), p=p, total=len(given)) for column in columns]
        return mean_over_classes(torch.stack(errors), p)
    bins = rule(chosen.reduce(given), n_bins)
    if kind == "average":
        return bins.gap[bins.count > 0].abs().mean()
    return norm_of_bins(bins, p=math.inf if kind == "maximum" else p, total=len(given))


def mean_over_classes(errors: Tensor, p: float) -> Tensor:
    """Mean of order p of the errors of every class ``[C]``; the largest for ``p=inf``."""
    return errors.amax() if math.isinf(p) else (errors**p).mean() ** (1 / p)


def bin_rule(binning: str, *, where: str) -> Callable[..., Bins]:
    """The function that groups examples into our own bins "width" or "mass"."""
    check_choice(binning, ("width", "mass"), where=where, name="binning")
    return equal_width_bins if binning == "width" else equal_mass_bins


@dataclass(frozen=True)
class Explanation:
    """A calibration error and what it rests on; ``print`` shows it as text.

    Attributes:
        value: The error.
        metric: Name of the function that gives it.
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
        others: Convention → its value, or None with weights, which no source takes.
        binary: For two classes, the error of the second column as a binary problem; else None.
    """

    value: float
    metric: str
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
        gap = round(self.signed_gap, 6)
        side = "over-confident" if gap > 0 else "under-confident" if gap < 0 else "no direction"
        facts = {
            "kind": _TOP_LABEL if self.p == 1 else f"{_TOP_LABEL}, norm of order {self.p:g}",
            "bins": self.rule,
            "examples": f"{self.n} of {self.num_classes} classes; {self.distinct} different confidences",
            "empty": f"{self.empty_bins} of {self.n_bins} bins; the smallest of the others holds {self.smallest_bin:g}",
            "saturated": f"{self.saturated} confidences are exactly 1",
            "direction": f"mean confidence minus accuracy {self.signed_gap:+.6f} ({side} on average)",
        }
        if self.binary is not None:
            facts["binary"] = f"{self.binary:.6f} if the second column is taken as the probability of a positive class"
        lines = [f"{self.metric} = {self.value:.6f}", *(f"  {name:<9}  {fact}" for name, fact in facts.items())]
        lines.append("  the same predictions elsewhere:")
        for name, value in self.others.items():
            shown, entry = "none    " if value is None else f"{value:.6f}", CONVENTIONS[name]
            text = entry.mass_description if self.metric == "adaptive_calibration_error" else entry.description
            lines.append(f"    {name:<{max(map(len, CONVENTIONS))}}  {shown}  {text}")
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

    The arguments are those of `expected_calibration_error`, and ``binning``: "width" to explain that, "mass" for
    `adaptive_calibration_error`. No other source takes weights.

    Example:
        >>> told = explain([[0.95, 0.05, 0.0], [1.0, 0.0, 0.0], [0.2, 0.2, 0.6]], [0, 1, 2])
        >>> told.saturated, told.empty_bins, round(told.value, 4), round(told.others["torchmetrics"], 4)
        (1, 13, 0.45, 0.4833)

    Reference:
        The sources are named in `calibrant.metrics.conventions.CONVENTIONS`.
    """
    group = bin_rule(binning, where="explain")
    given = as_predictions(probs, labels, where="explain", n_bins=n_bins, p=p, weights=weights, ignore_index=ignore_index)
    top = top_label(given, where="explain")
    bins = group(top, n_bins=n_bins)
    kind: ErrorKind = "expected" if binning == "width" else "adaptive"
    held = bins.count[bins.count > 0]
    others = {
        name: None if given.weights is not None else float(error_by_convention(given, kind, name, n_bins=n_bins, p=p))
        for name, entry in CONVENTIONS.items()
        if entry.rule_of(kind)
    }
    edges = f"edges k/{n_bins} in {str(top.dtype).removeprefix('torch.')}"
    second = one_vs_rest(given.probs, given.labels, given.weights, index=1) if given.num_classes == 2 else None
    return Explanation(
        value=float(norm_of_bins(bins, p=p)),
        metric=f"{kind}_calibration_error",
        rule=f"{n_bins} equal-width bins (lo, hi], {edges}, 0 in the first and 1 in the last"
        if binning == "width"
        else f"{n_bins} equal-mass bins, tied confidences shared between the bins they span",
        p=p,
        n=len(top),
        num_classes=given.num_classes,
        n_bins=n_bins,
        empty_bins=n_bins - len(held),
        smallest_bin=float(held.min()),
        saturated=int((top.confidence == 1).sum()),
        distinct=len(top.confidence.unique()),
        signed_gap=float(bins.weight @ bins.gap),
        others=MappingProxyType(others),
        binary=None if second is None else float(norm_of_bins(group(second, n_bins=n_bins), p=p)),
    )


def _by_index(top: TopLabel, index: Tensor, size: int) -> Bins:
    sums = [torch.bincount(index, weights=v, minlength=size) for v in (top.confidence, top.correct)]
    return means_of_sums(torch.empty(0), torch.bincount(index, minlength=size).double(), *sums)


def _between(top: TopLabel, edges: Tensor, *, closed: Literal["left", "right"]) -> Bins:
    """Bins between consecutive float64 ``edges [M + 1]``; examples beyond the outer edges are in none."""
    found = _by_index(top, torch.bucketize(top.confidence, edges, right=closed == "left"), len(edges) + 1)
    return Bins(edges, *(part[1:-1] for part in (found.count, found.confidence, found.accuracy)))


def _rule(edges: Callable[[TopLabel, int], Tensor], *, closed: Literal["left", "right"]) -> Rule:
    return lambda top, n_bins: _between(top, edges(top, n_bins), closed=closed)


def _as_numpy(top: TopLabel) -> np.ndarray[tuple[int], np.dtype[np.floating]]:
    return top.confidence.to(torch.float32 if top.dtype == torch.bfloat16 else top.dtype).numpy()


def _compared(edges: Tensor, dtype: torch.dtype) -> Tensor:
    """Edges as torch compares them with a tensor of ``dtype``: a Python number takes the tensor's precision."""
    return edges.double().to(dtype).double()


def _focal_extremes(top: TopLabel, n_bins: int) -> Bins:
    return _by_index(top, (top.confidence * n_bins - 1).ceil().long().clamp_(0, n_bins - 1), n_bins)


def _focal_edges(top: TopLabel, n_bins: int) -> Tensor:
    edges = np.interp(np.linspace(0, len(top), n_bins + 1), np.arange(len(top)), np.sort(_as_numpy(top)))
    return _compared(torch.from_numpy(edges), top.dtype)


def _netcal_reduce(given: Predictions) -> TopLabel:
    is_binary = given.num_classes == 2
    top = one_vs_rest(given.probs, given.labels, index=1) if is_binary else reduce_top_label(given.probs, given.labels)
    eps = torch.finfo(top.dtype).eps
    return TopLabel(top.confidence.clamp(eps, 1 - eps), top.correct, None, top.dtype)


def _netcal_edges(top: TopLabel, n_bins: int) -> Tensor:
    edges = torch.from_numpy(np.quantile(_as_numpy(top), np.linspace(0.0, 1.0, n_bins + 1)).astype(np.float64))
    return edges.index_put((torch.tensor([0, n_bins]),), torch.tensor([0.0, 1.0], dtype=torch.float64))


def _netcal_bins(top: TopLabel, edges: Tensor) -> Bins:
    # Examples are counted by numpy between float64 edges and averaged by scipy between edges in the input's precision: an
    # example on an edge can weigh in one bin and be averaged in the next.
    count = _between(top, edges, closed="left").count
    means = _between(top, edges.to(top.dtype).double(), closed="left")
    return Bins(edges, count, means.confidence.where(count > 0, 0.0), means.accuracy.where(count > 0, 0.0))


def _torchmetrics_reduce(given: Predictions) -> TopLabel:
    # One value rounded above 1 makes it take all of them for logits.
    probs = given.probs.softmax(1) if bool((given.probs > 1).any()) else given.probs
    top = reduce_top_label(probs, given.labels)
    return TopLabel(top.confidence.float().double(), top.correct, None, torch.float32)


def _torchmetrics_width(top: TopLabel, n_bins: int) -> Bins:
    values = top.confidence.to(top.dtype)
    index = torch.bucketize(values, torch.linspace(0, 1, n_bins + 1, dtype=top.dtype), right=True) - 1
    # Sums are kept in the input's precision, as there.
    parts = (torch.ones_like(values), values, top.correct.to(top.dtype))
    sums = [values.new_zeros(n_bins + 1).scatter_add(0, index, part).double() for part in parts]
    return means_of_sums(torch.empty(0), *sums)


def _split_mass(top: TopLabel, n_bins: int) -> Bins:
    order = torch.sort(top.confidence.float()).indices  # not stable, as there: ties fall as this call leaves them
    sizes = torch.tensor([len(part) for part in order.tensor_split(n_bins)])
    index = torch.empty_like(order).scatter_(0, order, torch.arange(n_bins).repeat_interleave(sizes))
    return _by_index(top, index, n_bins)


def _kumar_edges(top: TopLabel, n_bins: int) -> Tensor:
    parts = np.array_split(np.sort(_as_numpy(top)), min(n_bins, len(top)))
    middles = [float((left[-1] + right[0]) / 2.0) for left, right in zip(parts[:-1], parts[1:], strict=True)]
    return torch.cat([_BELOW, torch.tensor(sorted({*middles, 1.0}), dtype=torch.float64)])


def _pycalib_width(top: TopLabel, n_bins: int) -> Bins:
    size = 1 / n_bins
    uppers = np.arange(size, 1 + size, size)
    # A lower edge is an upper edge less the bin size, which need not round to the upper edge before it: bins can overlap.
    inside = ((top.confidence <= upper) & ((top.confidence > upper - size) | (upper == size)) for upper in uppers.tolist())
    sums = [[float(part[rows].sum()) for part in (top.mass, top.confidence, top.correct)] for rows in inside]
    return means_of_sums(torch.from_numpy(uppers), *torch.tensor(sums, dtype=torch.float64).T)


def _mapie_edges(top: TopLabel, n_bins: int) -> Tensor:
    edges = np.percentile(_as_numpy(top), np.linspace(0, 1, n_bins) * 100).astype(np.float64)
    return torch.cat([_BELOW, torch.from_numpy(edges)])


def _linspace(end: float, number: int) -> Tensor:
    return torch.from_numpy(np.linspace(0.0, end, number))


_guo_width = _rule(lambda top, n_bins: _compared(torch.linspace(0, 1, n_bins + 1), top.dtype), closed="right")
_kumar_width = _rule(
    lambda _, n_bins: torch.cat([_BELOW, torch.arange(1, n_bins + 1, dtype=torch.float64) / n_bins]), closed="right"
)
CONVENTIONS: Mapping[str, Convention] = MappingProxyType(
    {
        "guo2017": Convention(
            "Guo et al., ICML 2017, as in gpleiss/temperature_scaling",
            "(lo, hi], edges of a float32 linspace; 0 in no bin",
            {"expected": _guo_width},
        ),
        "focal_calibration": Convention(
            "Mukhoti et al., NeurIPS 2020, torrvision/focal_calibration",
            "(lo, hi], edges of a float32 linspace; 0 in no bin",
            {
                "expected": _guo_width,
                "classwise": _guo_width,
                "adaptive": _rule(_focal_edges, closed="right"),
                "maximum": _focal_extremes,
                "average": _focal_extremes,
            },
            mass_description="(lo, hi], edges interpolated between sorted confidences; the smallest in no bin",
            labels_name_classes=True,
        ),
        "netcal": Convention(
            "netcal 1.4",
            "[lo, hi), confidences clipped away from 0 and 1; of two columns only the second counts",
            {
                "expected": lambda top, n_bins: _netcal_bins(top, _linspace(1.0, n_bins + 1)),
                "adaptive": lambda top, n_bins: _netcal_bins(top, _netcal_edges(top, n_bins)),
            },
            mass_description="[lo, hi), edges are quantiles; it fails where two coincide",
            reduce=_netcal_reduce,
        ),
        "torchmetrics": Convention(
            "torchmetrics 1.9",
            "[lo, hi) in float32; exactly 1 in a bin of its own beyond the last",
            {"expected": _torchmetrics_width},
            reduce=_torchmetrics_reduce,
        ),
        "torch_uncertainty": Convention(
            "torch-uncertainty 0.13",
            "as torchmetrics",
            {"expected": _torchmetrics_width, "classwise": _torchmetrics_width, "adaptive": _split_mass},
            mass_description="sorted examples split into equal parts, ties as the sort leaves them",
            reduce=_torchmetrics_reduce,
        ),
        "uncertainty_calibration": Convention(
            "Kumar, Liang and Ma, NeurIPS 2019, uncertainty-calibration 0.1.4",
            "(lo, hi], edges in float64 whatever the input",
            {"expected": _kumar_width, "classwise": _kumar_width, "adaptive": _rule(_kumar_edges, closed="right")},
            mass_description="(lo, hi], edges midway between equal parts; coinciding ones merged",
        ),
        "relplot": Convention(
            "Blasiok and Nakkiran, ICLR 2024, relplot 1.0",
            "[lo, hi) by truncation; exactly 1 in a bin of its own beyond the last",
            {
                "expected": lambda top, n_bins: _by_index(
                    top, torch.from_numpy((_as_numpy(top) / (1.0 / n_bins)).astype(np.int64)), n_bins + 1
                )
            },
        ),
        "pycalib": Convention(
            "PyCalib 0.1",
            "(lo, hi], edges by repeated addition; for some numbers of bins 1 in no bin",
            {
                "expected": _pycalib_width,
                "classwise": _rule(lambda _, n_bins: torch.cat([_linspace(1 + 1e-8, n_bins + 1), _ABOVE]), closed="left"),
            },
        ),
        "mapie": Convention(
            "MAPIE 1",
            "(lo, hi] between n_bins edges, hence one bin fewer",
            {
                "expected": _rule(lambda _, n_bins: torch.cat([_BELOW, _linspace(1.0, n_bins)]), closed="right"),
                "adaptive": _rule(_mapie_edges, closed="right"),
            },
            mass_description="(lo, hi] between n_bins quantiles, hence one bin fewer; the smallest in a bin of its own",
        ),
        "caltrain": Convention(
            "Roelofs et al., AISTATS 2022, google-research/caltrain",
            "[lo, hi), 1 in the last",
            {"expected": _rule(lambda _, n_bins: torch.cat([_linspace(1.0, n_bins + 1)[:-1], _ABOVE]), closed="left")},
        ),
    }
)
