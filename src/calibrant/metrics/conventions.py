"""Named conventions: how other sources bin, so that the number each of them prints can be reproduced.

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

import torch
from torch import Tensor

from calibrant.core.binning import Checked, TopLabel, norm_of_bins, reduce_top_label
from calibrant.core.records import Bins
from calibrant.core.registry import lookup
from calibrant.metrics import _bin_rules as rules

Rule = Callable[[TopLabel, int], Bins]
Metric = Literal["expected", "maximum", "average", "adaptive", "classwise"]


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
    reduce: Callable[[Checked], TopLabel] = lambda given: reduce_top_label(given.probs, given.labels)
    labels_name_classes: bool = False


def reproduce(given: Checked, *, convention: str, metric: Metric, n_bins: int, p: float = 1, where: str) -> Tensor:
    """Value of a metric as the named source computes it.

    Args:
        given: Checked input.
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


def _rule_of(convention: Convention, metric: Metric) -> Rule | None:
    if metric == "adaptive":
        return convention.mass
    if metric == "classwise":
        return convention.column
    return convention.width if metric == "expected" else convention.extremes or convention.width


def _classwise(given: Checked, convention: Convention, rule: Rule, n_bins: int, p: float) -> Tensor:
    probs, labels = given.probs.cpu(), given.labels.cpu()
    classes = int(labels.max()) + 1 if convention.labels_name_classes else probs.shape[1]
    errors = []
    for k in range(classes):
        column = TopLabel(probs[:, k].double().contiguous(), (labels == k).double(), None, probs.dtype)
        errors.append(norm_of_bins(rule(column, n_bins), p=p, total=len(labels)))
    stacked = torch.stack(errors)
    return stacked.amax() if math.isinf(p) else (stacked**p).mean() ** (1 / p)


CONVENTIONS: Mapping[str, Convention] = MappingProxyType(
    {
        "guo2017": Convention(
            "Guo et al., ICML 2017, as in gpleiss/temperature_scaling",
            "(lo, hi], edges of a float32 linspace; 0 in no bin",
            rules.guo_width,
        ),
        "focal_calibration": Convention(
            "Mukhoti et al., NeurIPS 2020, torrvision/focal_calibration",
            "(lo, hi], edges of a float32 linspace; 0 in no bin",
            rules.guo_width,
            mass=rules.focal_mass,
            mass_description="(lo, hi], edges interpolated between sorted confidences; the smallest in no bin",
            extremes=rules.focal_extremes,
            column=rules.guo_width,
            labels_name_classes=True,
        ),
        "netcal": Convention(
            "netcal 1.4",
            "[lo, hi), confidences clipped away from 0 and 1; of two columns only the second counts",
            rules.netcal_width,
            mass=rules.netcal_mass,
            mass_description="[lo, hi), edges are quantiles; fails where two coincide",
            reduce=rules.netcal_reduce,
        ),
        "torchmetrics": Convention(
            "torchmetrics 1.9",
            "[lo, hi) in float32; exactly 1 in a bin of its own beyond the last",
            rules.torchmetrics_width,
            reduce=rules.torchmetrics_reduce,
        ),
        "torch_uncertainty": Convention(
            "torch-uncertainty 0.13",
            "as torchmetrics",
            rules.torchmetrics_width,
            mass=rules.split_mass,
            mass_description="sorted examples split into equal parts, ties as the sort leaves them",
            column=rules.torchmetrics_width,
            reduce=rules.torchmetrics_reduce,
        ),
        "uncertainty_calibration": Convention(
            "Kumar, Liang and Ma, NeurIPS 2019, uncertainty-calibration 0.1.4",
            "(lo, hi], edges in float64 whatever the input",
            rules.kumar_width,
            mass=rules.kumar_mass,
            mass_description="(lo, hi], edges midway between equal parts; coinciding ones merged",
            column=rules.kumar_width,
        ),
        "relplot": Convention(
            "Blasiok and Nakkiran, ICLR 2024, relplot 1.0",
            "[lo, hi) by truncation; exactly 1 in a bin of its own beyond the last",
            rules.relplot_width,
        ),
        "pycalib": Convention(
            "PyCalib 0.1",
            "(lo, hi], edges by repeated addition; for some numbers of bins 1 in no bin",
            rules.pycalib_width,
            column=rules.pycalib_column,
        ),
        "mapie": Convention(
            "MAPIE 1",
            "(lo, hi] between n_bins edges, hence one bin fewer",
            rules.mapie_width,
            mass=rules.mapie_mass,
            mass_description="(lo, hi] between n_bins quantiles, hence one bin fewer; the smallest in a bin of its own",
        ),
        "caltrain": Convention(
            "Roelofs et al., AISTATS 2022, google-research/caltrain",
            "[lo, hi), 1 in the last",
            rules.caltrain_width,
        ),
    }
)
