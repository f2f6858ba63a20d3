"""Calibrators that keep a table: a piecewise map of each class's probability, of all of them, or of the confidence alone.

Of two classes only the second has a map, as the first is its complement. Maps may need fewer knots for one class than for
another: rows are filled up at the end with `PAD`, which no probability reaches.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from scipy.special import betaln
from sklearn.isotonic import IsotonicRegression
from torch import Tensor

from calibrant.calibrators.base import Calibrator, FitData, Learned, Positions, Vector, floor_logits, option
from calibrant.core.checks import check_choice, check_count, check_positive

__all__ = [
    "BayesianBinning",
    "HistogramBinning",
    "IsotonicCalibration",
    "JointIsotonicCalibration",
    "SplineCalibration",
    "TopLabelBinning",
]

PAD = 2.0
# Share of the original probability that is mixed into a one-vs-rest estimate: keeps order within a step of the map, and the
# log-likelihood finite where an estimate is zero. As in Zhang, Kailkhura and Han (ICML 2020), section 3.
MIXED_IN = 1e-9
# Part of the original probability in the joint map: more than the 1e-9 of the published code, which rounding swallows where
# two probabilities differ by less than 1e-7.
_JOINT_MIXED_IN = 1e-6
# A histogram this much less likely than the best adds nothing that can be seen.
_LEAST_LOG_WEIGHT = math.log(1e-3)
# Log-odds this near are equal: float32 keeps the difference of two logits below 32 to within 2e-6. Beside it, the rounding of a
# probability in double precision, and the smallest one of float32, up to which zeros are given numbers (`floor_logits`).
_NEAR_LOG_ODDS, _NEAR, _SMALLEST = 2e-6, 1e-15, 2.0**-149
# Points at which the recalibrated confidence is kept.
_POINTS = 256


def count_below(x: Tensor, table: Tensor, row: Tensor | int = 0) -> Tensor:
    """How many numbers of an ascending ``row`` of the table ``[K, L]`` (or of ``[L]``) are below each point of x.

    As `torch.searchsorted`, which has no form in ONNX: a bisection of as many steps as the table is long in binary, made of
    operations that every exporter knows. The number of steps depends on the shape of the table alone.
    """
    flat = table.reshape(-1)
    left = table.shape[-1]
    first = row * left
    found = torch.zeros_like(x, dtype=torch.long)
    while left > 1:
        half = left // 2
        found = torch.where(flat[first + found + (half - 1)] < x, found + half, found)
        left -= half
    return found + (flat[first + found] < x)


def interpolate(x: Tensor, knots: Tensor, values: Tensor, row: Tensor | int = 0) -> Tensor:
    """Straight lines between knots ``[K, L]`` (or ``[L]``), L at least two, constant beyond the first and the last."""
    right = count_below(x, knots, row).clamp(1, knots.shape[-1] - 1) + row * knots.shape[-1]
    places, heights = knots.reshape(-1), values.reshape(-1)
    start, low = places[right - 1], heights[right - 1]
    width = places[right] - start
    share = ((x - start) / torch.where(width > 0, width, torch.ones_like(width))).clamp(0, 1)
    return low + share * (heights[right] - low)


def step_values(x: Tensor, edges: Tensor, values: Tensor, row: Tensor | int = 0) -> Tensor:
    """Value of the step (``edges [K, L]``, ``values [K, L + 1]``) that holds x; a point on an edge is in the step below it."""
    return values.reshape(-1)[count_below(x, edges, row) + row * values.shape[-1]]


def mix_in(values: Tensor, log_probs: Tensor, *, part: float = MIXED_IN) -> Tensor:
    """Add ``part`` of the original probabilities to ``values [..., C]``, scale rows to sum to one, return their logarithm.

    Adding in log space keeps classes apart whose probability underflows. A row of zeros gets its original probabilities back.
    """
    mixed_in = log_probs + math.log(part)
    present = values > 0
    # The logarithm of a zero that is not used would still give the gradient a NaN.
    mixed = torch.logaddexp(torch.where(present, values, torch.ones_like(values)).log(), mixed_in)
    return torch.where(present, mixed, mixed_in).log_softmax(-1)


def replace_confidence(log_probs: Tensor, confidence: Tensor) -> Tensor:
    """Give the top class a new probability ``[...]``, and scale the others to fill up the rest; ``[..., C]``."""
    top = log_probs.argmax(-1, keepdim=True)
    others = log_probs.scatter(-1, top, -torch.inf)
    rest = others.logsumexp(-1, keepdim=True)
    # The part mixed in keeps both sides away from probability zero.
    mixed_in = max(MIXED_IN, torch.finfo(confidence.dtype).eps)
    sure = (1 - 2 * mixed_in) * confidence.unsqueeze(-1) + mixed_in
    return (others - rest + torch.log1p(-sure)).scatter(-1, top, sure.log())


def table_log_probs(logits: Tensor, table: Tensor, values: Tensor, *, lookup: Callable[..., Tensor]) -> Tensor:
    """Map every class's probability by its row of a table ``[K, L]`` (or all by one ``[L]``), and normalise; ``[..., C]``.

    A small part of the original probability keeps the order of classes that share a step.
    """
    log_probs = floor_logits(logits).log_softmax(-1)
    if table.ndim == 1:
        return mix_in(lookup(log_probs.exp(), table, values), log_probs, part=_JOINT_MIXED_IN)
    rows = torch.arange(table.shape[0], device=logits.device)
    found = lookup(log_probs[..., -table.shape[0] :].exp(), table, values, rows)
    return mix_in(torch.cat([1 - found, found], -1) if found.shape[-1] == 1 else found, log_probs)


def lines_log_probs(logits: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Apply straight lines between ``knots`` (``[K, L]``, or ``[L]`` for all classes) and normalise; ``[..., C]``."""
    return table_log_probs(logits, knots, values, lookup=interpolate)


def steps_log_probs(logits: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Apply steps (``edges [K, L]``, ``values [K, L + 1]``) to every class's probability and normalise; ``[..., C]``."""
    return table_log_probs(logits, edges, values, lookup=step_values)


def spline_log_probs(logits: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Map the confidence by straight lines between ``knots [L]``, and scale the other classes to fill up the rest."""
    log_probs = floor_logits(logits).log_softmax(-1)
    return replace_confidence(log_probs, interpolate(log_probs.amax(-1).exp(), knots, values))


def top_label_log_probs(logits: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Map the confidence by the steps (``edges [C, L]``) of the predicted class, and scale the others to fill up the rest."""
    log_probs = floor_logits(logits).log_softmax(-1)
    confidence, top = log_probs.max(-1)
    return replace_confidence(log_probs, step_values(confidence.exp(), edges, values, top))


# What a map is fitted to, and bins whose edges keep equal scores together whatever their rounding.


class Outcomes(NamedTuple):
    """How probable an event was ``[N]``, ascending, whether it happened (0.0 or 1.0), and weights."""

    probs: Vector
    happened: Vector
    weights: Vector


def label_outcomes(data: FitData) -> Iterator[Outcomes]:
    """For every class, whether it is the label; with two classes only for the second."""
    probs = floor_logits(data.logits.double()).softmax(1)
    for k in range(1 if data.num_classes == 2 else 0, data.num_classes):
        ordered, order = merge_ties(probs[:, k].numpy())
        yield Outcomes(ordered, (data.labels == k).double().numpy()[order], data.weights.numpy()[order])


def top_outcomes(data: FitData) -> tuple[Outcomes, Tensor]:
    """Whether the prediction is right, with the confidence as its probability; and the predicted class ``[N]``."""
    confidence, predicted = floor_logits(data.logits.double()).softmax(1).max(1)
    ordered, order = merge_ties(confidence.numpy())
    # A curve may follow examples one by one: those that tie stay in their order, whatever their rounding.
    order = order[np.lexsort((order, ordered))]
    correct = (predicted == data.labels).double()
    return Outcomes(ordered, correct.numpy()[order], data.weights.numpy()[order]), predicted[order]


def just_above(probs: Vector) -> Vector:
    """The largest probability that differs from each by rounding alone."""
    return np.asarray(probs + probs * (_NEAR_LOG_ODDS * (1 - probs) + _NEAR) + _SMALLEST)


def merge_ties(probs: Vector) -> tuple[Vector, Positions]:
    """Sort probabilities, and make those equal that differ by rounding alone: groups that narrow, with wider gaps around.

    Values that lie so dense everywhere are no ties, and stay as they are. Beside the result it returns where each stood.
    """
    order = np.argsort(probs, kind="stable")
    ordered = probs[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] > just_above(ordered[:-1])]))
    sizes = np.diff(np.append(starts, len(ordered)))
    last = ordered[starts + sizes - 1]
    alike = np.repeat(last <= just_above(ordered[starts]), sizes)
    return np.where(alike, np.repeat(last, sizes), ordered), order


def edges_behind(ordered: Vector, ends: Positions) -> Vector:
    """Edges between ascending probabilities, right behind the value before each of ``ends`` in ``[1, N)``, which it holds."""
    before, behind = ordered[ends - 1], ordered[ends]
    return np.asarray(np.minimum(just_above(before), (before + behind) / 2))


def equal_mass_edges(ordered: Vector, weights: Vector, n_bins: int) -> Vector:
    """Inner edges of bins of equal weight, as far as ties allow; each is right behind the last probability of its bin."""
    return edges_behind(ordered, equal_mass_ends(ordered, np.cumsum(weights), n_bins))


def equal_mass_ends(ordered: Vector, mass: Vector, n_bins: int) -> Positions:
    """Positions in ``[1, N)`` behind which bins of equal weight end, ties together; ``mass`` is the sum of weights so far."""
    cuts = np.searchsorted(mass, mass[-1] * np.arange(1, n_bins) / n_bins * (1 - 1e-12))
    ends = np.unique(np.searchsorted(ordered, ordered[np.minimum(cuts, len(ordered) - 1)], side="right"))
    # Nothing lies above an edge at the largest probability.
    return ends[ends < len(ordered)]


def bin_values(outcomes: Outcomes, edges: Vector) -> Vector:
    """Weighted frequency of the class in each bin ``(lower, upper]``; the middle of the bin where it is empty."""
    index = np.searchsorted(edges, outcomes.probs)
    mass = np.bincount(index, outcomes.weights, len(edges) + 1)
    hits = np.bincount(index, outcomes.weights * outcomes.happened, len(edges) + 1)
    ends = np.concatenate([[0.0], edges, [1.0]])
    return np.asarray(np.where(mass > 0, hits / np.where(mass > 0, mass, 1.0), (ends[1:] + ends[:-1]) / 2))


def stack_maps(names: Sequence[str], found: Sequence[tuple[Vector, Vector]]) -> dict[str, Tensor]:
    """Stack maps of different lengths, each with places and values: filled up with `PAD`, once or more, and the last value."""
    longest = 1 + max(len(places) for places, _ in found)
    stacked = [
        (np.pad(p, (0, longest - len(p)), constant_values=PAD), np.pad(v, (0, longest - len(p)), "edge")) for p, v in found
    ]
    parts = (torch.from_numpy(np.stack(part).astype(np.float64)) for part in zip(*stacked, strict=True))
    return dict(zip(names, parts, strict=True))


class _TableCalibrator(Calibrator):
    layer_dtype = torch.float64

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        return stack_maps(self.learned, [self._map(outcomes) for outcomes in label_outcomes(data)])

    def _check_learned(self) -> None:
        places, values = self.learned_values().values()
        # Between edges there is one step more.
        count = places.shape[-1] + (self.learned[0] == "edges")
        if values.shape != (*places.shape[:-1], count) or not bool(((values >= 0) & (values <= 1)).all()):
            raise ValueError(f"{type(self).__name__}: `values_` must be probabilities, one for each place, got others.")
        super()._check_learned()

    @abstractmethod
    def _map(self, outcomes: Outcomes) -> tuple[Vector, Vector]:
        """Knots and values ``[L]``; or inner edges ``[L]`` and the values of the steps ``[L + 1]``."""


class IsotonicCalibration(_TableCalibrator, formula=lines_log_probs):
    """Maps every class's probability by its own non-decreasing function, then normalises.

    The function is that of scikit-learn's ``IsotonicRegression``: constant where neighbours violate the order, straight
    between, clipped outside. Its zeros would make the likelihood infinite; 1e-9 of the original probability is added.

    Attributes:
        knots_: Positions ``[C, L]`` (``[1, L]``, of the second class, for two), filled up with 2.
        values_: Values at the knots ``[C, L]``.

    Reference:
        Zadrozny and Elkan, "Transforming Classifier Scores into Accurate Multiclass Probability Estimates", KDD 2002.
    """

    label = "isotonic calibration"
    few_samples_per_class = 50

    def _map(self, outcomes: Outcomes) -> tuple[Vector, Vector]:
        fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
        fitted.fit(outcomes.probs, outcomes.happened, sample_weight=outcomes.weights)
        return np.asarray(fitted.X_thresholds_, dtype=np.float64), np.asarray(fitted.y_thresholds_, dtype=np.float64)


class JointIsotonicCalibration(IsotonicCalibration):
    """Maps the probabilities of all classes by one non-decreasing function, then normalises: the order of classes stays.

    The function is fitted to all pairs of a class's probability and whether it is the label, N C of them. A part of 1e-6 of
    the original probability is added, so that the map is strictly increasing and the top class never changes.

    Attributes:
        knots_: Positions ``[L]``, the last one 2.
        values_: Values ``[L]`` at the knots.

    Reference:
        Zhang, Kailkhura and Han, "Mix-n-Match", ICML 2020 (IRM).
    """

    label = "joint isotonic calibration"
    preserves_accuracy = True
    few_samples = 200

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        probs = floor_logits(data.logits.double()).softmax(1)
        happened = torch.zeros_like(probs).scatter_(1, data.labels.unsqueeze(1), 1.0)
        weights = data.weights.unsqueeze(1).expand_as(probs)
        outcomes = Outcomes(*(part.reshape(-1).numpy() for part in (probs, happened, weights)))
        return {name: part[0] for name, part in stack_maps(self.learned, [self._map(outcomes)]).items()}


@dataclass(kw_only=True, eq=False, repr=False)
class SplineCalibration(_TableCalibrator, formula=spline_log_probs):
    r"""Maps the confidence by a curve whose slope a spline gives, and scales the other classes in proportion.

    With examples in ascending order of confidence and t their share of the total weight so far, a natural cubic spline is
    fitted to :math:`h(t) = \sum_{j: t_j \le t} w_j (a_j - c_j)`; its slope is the mean difference between correctness a and
    confidence c at t, so that the new confidence is :math:`c + h'(t)`. Where that would hand the top to another class it is
    raised to a tie, so that predictions stay.

    Args:
        n_knots: Knots of the spline.

    Attributes:
        knots_: Confidences ``[L]``, the last one 2.
        values_: Their recalibrated values ``[L]``; between them the map is straight.

    Reference:
        Gupta et al., "Calibration of Neural Networks using Splines", ICLR 2021.
    """

    n_knots: int = option(6, check_count, least=3)

    label = "spline calibration"
    preserves_accuracy = True
    few_samples = 300

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        outcomes, _ = top_outcomes(data)
        return {name: part[0] for name, part in stack_maps(self.learned, [self._map(outcomes)]).items()}

    def _map(self, outcomes: Outcomes) -> tuple[Vector, Vector]:
        ordered, correct, weights = outcomes
        share = weights / weights.sum()
        # The middle of an example's own share, so that both ends are treated alike.
        at = np.cumsum(share) - share / 2
        gap = (correct - ordered) * share
        drift = np.cumsum(gap) - gap / 2
        places = np.linspace(0, 1, self.n_knots)
        basis = CubicSpline(places, np.eye(self.n_knots), bc_type="natural")
        root = np.sqrt(share)[:, None]
        heights = np.linalg.lstsq(basis(at) * root, drift * root[:, 0], rcond=None)[0]
        spline = CubicSpline(places, heights, bc_type="natural")
        picked = np.unique(np.linspace(0, len(ordered) - 1, _POINTS).round().astype(int))
        knots = np.unique(ordered[picked])
        # Examples of equal confidence stand for one point: the middle of their run.
        first, last = (np.searchsorted(ordered, knots, side=side) for side in ("left", "right"))
        middle = (at[first] + at[last - 1]) / 2
        return knots, np.clip(knots + spline(middle, 1), 0.0, 1.0)


@dataclass(kw_only=True, eq=False, repr=False)
class HistogramBinning(_TableCalibrator, formula=steps_log_probs):
    """Replaces every class's probability by the class's frequency in its bin, then normalises.

    A bin without examples keeps its middle. 1e-9 of the original probability is added, as frequencies of zero would make the
    likelihood infinite.

    Args:
        n_bins: Number of bins of each class.
        binning: "width" for bins ``(m/M, (m+1)/M]``, "mass" for bins of equal weight.

    Attributes:
        edges_: Inner edges ``[C, L]`` (``[1, L]``, of the second class, for two), filled up with 2.
        values_: Frequency in each bin ``[C, L + 1]``.

    Reference:
        Zadrozny and Elkan, "Obtaining calibrated probability estimates from decision trees and naive Bayesian classifiers",
        ICML 2001.
    """

    n_bins: int = option(15, check_count)
    binning: Literal["width", "mass"] = option("width", check_choice, choices=("width", "mass"))

    label = "histogram binning"
    few_samples_per_class = 150

    def _map(self, outcomes: Outcomes) -> tuple[Vector, Vector]:
        # A rounded score on an edge is in the bin below it, whichever way its probability was rounded.
        edges = just_above(np.arange(1, self.n_bins) / self.n_bins)
        if self.binning == "mass":
            edges = equal_mass_edges(outcomes.probs, outcomes.weights, self.n_bins)
        return edges, bin_values(outcomes, edges)


@dataclass(kw_only=True, eq=False, repr=False)
class TopLabelBinning(_TableCalibrator, formula=top_label_log_probs):
    """Replaces the confidence by the accuracy in its bin, with bins of their own for every predicted class.

    Bins of a class hold ``points_per_bin`` examples or a few more; a class predicted less often than that is given the bins
    of all examples together. The other classes are scaled in proportion; where the new confidence would hand the top to
    another class it is raised to a tie, so that predictions stay.

    Args:
        points_per_bin: Examples in a bin, at least.

    Attributes:
        edges_: Inner edges for every predicted class ``[C, L]``, filled up with 2.
        values_: Accuracy in each bin ``[C, L + 1]``.

    Reference:
        Gupta and Ramdas, "Top-label calibration and multiclass-to-binary reductions", ICLR 2022.
    """

    points_per_bin: int = option(50, check_count)

    label = "top-label binning"
    preserves_accuracy = True
    few_samples_per_class = 100

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        outcomes, predicted = top_outcomes(data)
        found = [self._map(outcomes)] * data.num_classes
        for k in (torch.bincount(predicted) >= self.points_per_bin).nonzero().flatten().tolist():
            rows = (predicted == k).numpy()
            found[k] = self._map(Outcomes(*(part[rows] for part in outcomes)))
        return stack_maps(self.learned, found)

    def _map(self, outcomes: Outcomes) -> tuple[Vector, Vector]:
        n_bins = max(len(outcomes.probs) // self.points_per_bin, 1)
        edges = equal_mass_edges(outcomes.probs, outcomes.weights, n_bins)
        return edges, bin_values(outcomes, edges)


@dataclass(kw_only=True, eq=False, repr=False)
class BayesianBinning(_TableCalibrator, formula=steps_log_probs):
    r"""Averages equal-mass histograms of many sizes, each weighted by how likely it makes the labels (BBQ), then normalises.

    The sizes run from N^(1/3) / ``span`` to ``span`` N^(1/3), and never over N / 5. With :math:`n_1` of the n examples of a bin
    in the class and its middle m, clipped to [0.005, 0.995], the evidence is that of a Beta prior with
    :math:`\alpha = 2m, \beta = 2(1 - m)`; the value is :math:`(n_1 + p_0) / (n + 1)` with
    :math:`p_0 = (\sum_{\text{hits}} p + m) / (n_1 + 1)`. Histograms less than a thousandth as likely as the best are left out;
    the published code prunes by the variance of the weights instead.

    Args:
        span: How far the sizes reach to both sides of N^(1/3).

    Attributes:
        edges_: Inner edges of the mean ``[C, L]`` (``[1, L]``, of the second class, for two), filled up with 2.
        values_: Its values ``[C, L + 1]``.

    Reference:
        Naeini, Cooper and Hauskrecht, "Obtaining Well Calibrated Probabilities Using Bayesian Binning", AAAI 2015.
    """

    span: float = option(10.0, check_positive)

    label = "Bayesian binning"
    few_samples_per_class = 50

    def _map(self, outcomes: Outcomes) -> tuple[Vector, Vector]:
        ordered, happened, weights = outcomes
        n, hits = len(ordered), weights * happened
        sums = np.concatenate([np.zeros((1, 3)), np.cumsum(np.stack([weights, hits, hits * ordered], 1), 0)])
        least = max(1, math.floor(n ** (1 / 3) / self.span))
        most = max(least, min(math.ceil(n / 5), math.ceil(self.span * n ** (1 / 3))))
        found = [equal_mass_histogram(ordered, sums, size) for size in range(least, most + 1)]
        best = max(log_evidence for _, _, log_evidence in found)
        kept = [(edges, values, math.exp(e - best)) for edges, values, e in found if e - best >= _LEAST_LOG_WEIGHT]
        places = np.unique(np.concatenate([edges for edges, _, _ in kept]))
        total = sum(weight * values[np.searchsorted(edges, np.append(places, 1.0))] for edges, values, weight in kept)
        return places, np.asarray(np.clip(total / sum(weight for _, _, weight in kept), 0.0, 1.0))


def equal_mass_histogram(ordered: Vector, sums: Vector, size: int) -> tuple[Vector, Vector, float]:
    """Inner edges, values and log-evidence of ``size`` equal-mass bins (fewer where scores tie) of ascending probabilities.

    ``sums [N + 1, 3]`` are those of weights, hits and hits times probabilities, up to each of them.
    """
    ends = equal_mass_ends(ordered, sums[1:, 0], size)
    mass, hits, hit_probs = np.diff(sums[np.concatenate([[0], ends, [len(ordered)]])], axis=0).T
    borders = np.concatenate([[0.0], ordered[ends - 1], [1.0]])
    middle = np.clip((borders[1:] + borders[:-1]) / 2, 0.005, 0.995)
    alpha, beta = 2 * middle, 2 * (1 - middle)
    evidence = betaln(hits + alpha, np.maximum(mass - hits, 0) + beta) - betaln(alpha, beta)
    values = np.clip((hits + (hit_probs + middle) / (hits + 1)) / (mass + 1), 0.0, 1.0)
    return edges_behind(ordered, ends), values, float(evidence.sum())
