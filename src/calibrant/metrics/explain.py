"""What stands behind a calibration error: the bin rule, the sample, and the numbers that other sources would print."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from calibrant.core.binning import (
    Checked,
    TopLabel,
    check_input,
    equal_mass_bins,
    equal_width_bins,
    norm_of_bins,
    reduce_top_label,
)
from calibrant.core.checks import ArrayLike, check_count
from calibrant.core.records import Bins
from calibrant.metrics.binned import check_norm
from calibrant.metrics.conventions import CONVENTIONS, Metric, reproduce

_RULES = {
    "width": "{m} equal-width bins (lo, hi], edges k/{m} in {dtype}, 0 in the first and 1 in the last",
    "mass": "{m} equal-mass bins, tied confidences shared between the bins they span",
}


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
    probs: ArrayLike,
    labels: ArrayLike,
    *,
    n_bins: int = 15,
    p: float = 1,
    binning: Literal["width", "mass"] = "width",
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Explanation:
    """Say what a top-label calibration error rests on, and what it would be under every other convention.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``.
        n_bins: Number of bins ``M``.
        p: Order of the norm, from 1 to ``math.inf``.
        binning: "width" to explain `expected_calibration_error`, "mass" for `adaptive_calibration_error`.
        weights: Sample weights, shaped as the labels; no other source takes them.
        ignore_index: Label of examples to leave out.

    Returns:
        The record. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> told = explain([[0.95, 0.05, 0.0], [1.0, 0.0, 0.0], [0.2, 0.2, 0.6]], [0, 1, 2])
        >>> told.saturated, told.empty_bins, round(told.value, 4), round(told.others["torchmetrics"], 4)
        (1, 13, 0.45, 0.4833)

    Reference:
        The sources are named in `calibrant.metrics.conventions.CONVENTIONS`.
    """
    where = "explain"
    check_count(n_bins, where=where, name="n_bins")
    check_norm(p, where=where)
    if binning not in _RULES:
        raise ValueError(f"{where}: `binning` must be 'width' or 'mass', got {binning!r}.")
    given = check_input(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
    top = reduce_top_label(given.probs, given.labels, given.weights)
    group = equal_width_bins if binning == "width" else equal_mass_bins
    bins = group(top, n_bins=n_bins)
    held = bins.count[bins.count > 0]
    dtype = str(top.dtype).removeprefix("torch.")
    return Explanation(
        value=float(norm_of_bins(bins, p=p)),
        metric="expected_calibration_error" if binning == "width" else "adaptive_calibration_error",
        kind="top-label: the highest probability against whether its class is right",
        rule=_RULES[binning].format(m=n_bins, dtype=dtype),
        p=p,
        n=len(top),
        num_classes=int(given.probs.shape[1]),
        n_bins=n_bins,
        empty_bins=n_bins - len(held),
        smallest_bin=float(held.min()),
        saturated=int((top.confidence == 1).sum()),
        distinct=len(top.confidence.unique()),
        signed_gap=_signed_gap(bins),
        others=_others(given, "expected" if binning == "width" else "adaptive", n_bins, p),
        binary=_as_binary(given, binning, n_bins, p),
    )


def _signed_gap(bins: Bins) -> float:
    return float(bins.weight @ bins.gap)


def _others(given: Checked, metric: Metric, n_bins: int, p: float) -> Mapping[str, float | None]:
    values: dict[str, float | None] = {}
    for name, convention in CONVENTIONS.items():
        if metric == "adaptive" and convention.mass is None:
            continue
        try:
            values[name] = float(reproduce(given, convention=name, metric=metric, n_bins=n_bins, p=p, where="explain"))
        except ValueError:
            values[name] = None
    return MappingProxyType(values)


def _as_binary(given: Checked, binning: str, n_bins: int, p: float) -> float | None:
    if given.probs.shape[1] != 2:
        return None
    weights = None if given.weights is None else given.weights.cpu()
    positive = TopLabel(given.probs[:, 1].cpu().double(), given.labels.cpu().double(), weights, given.probs.dtype)
    group = equal_width_bins if binning == "width" else equal_mass_bins
    return float(norm_of_bins(group(positive, n_bins=n_bins), p=p))
