"""Calibrators that treat every class as a yes-or-no question of its own and put the answers together again.

Of two classes only the second asks, as the first is its complement. `OrderPreservingIsotonic`, one map for all classes, is
here too; what maps the confidence alone is in `calibrant.calibrators.confidence`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from scipy.special import betaln
from sklearn.isotonic import IsotonicRegression
from torch import Tensor
from torch.nn import functional

from calibrant.calibrators.base import Calibrator, Learned, check_choice
from calibrant.calibrators.fit_data import FitData
from calibrant.calibrators.maps import (
    PAD,
    Vector,
    floor_logits,
    interpolate,
    log_complements,
    log_odds,
    mix_in,
    pad_rows,
    pad_steps,
    step_values,
)
from calibrant.core.checks import check_count, check_positive

Positions: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.int64]]"

# Entries [K, N] of one round of regressions: with so few they stay in the cache, and few classes wait for the slowest.
_ROUND_ENTRIES = 100_000
# Keeps Newton's equations solvable where features do not vary; far too weak to be seen in the result.
_FAINT = 1e-9
_MOST_STEPS, _MOST_HALVINGS = 100, 30
# Part of the original probability in the joint map: more than the 1e-9 of the published code, which rounding swallows where
# two probabilities differ by less than 1e-7.
_JOINT_MIXED_IN = 1e-6
# A histogram this much less likely than the best adds nothing that can be seen.
_LEAST_WEIGHT = 1e-3
# Log-odds this near are equal: float32 keeps the difference of two logits below 32 to within 2e-6. Beside it, the rounding of a
# probability in double precision, and the smallest one of float32, up to which zeros are given numbers (`floor_logits`).
_NEAR_LOG_ODDS, _NEAR, _SMALLEST = 2e-6, 1e-15, 2.0**-149


def asked(values: Tensor, rows: int) -> Tensor:
    """The columns of ``values [..., C]`` that have a question: all, or the second of two if there is one row."""
    return values[..., 1:] if rows == 1 else values


# Platt scaling and beta calibration: a sigmoid of features, fitted by logistic regression.


def beta_log_probs(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Log-probabilities of one beta curve for every class (``weight [C, 2]``, ``bias [C]``; one row for two), normalised."""
    log_probs = floor_logits(logits).log_softmax(-1)
    own, rest = (asked(part, weight.shape[0]) for part in (log_probs, -log_complements(log_probs)))
    odds = own * weight[:, 0] + rest * weight[:, 1] + bias
    if weight.shape[0] == 1:
        return functional.logsigmoid(torch.cat([-odds, odds], -1))
    return functional.logsigmoid(odds).log_softmax(-1)


def platt_log_probs(logits: Tensor, slope: Tensor, intercept: Tensor) -> Tensor:
    """Log-probabilities of one sigmoid of the log-odds of every class, normalised: a beta curve with a = b."""
    return beta_log_probs(logits, slope.unsqueeze(1).expand(-1, 2), intercept)


def fit_logistic(features: Tensor, answers: Tensor, weights: Tensor, *, ridge: Tensor, centre: Tensor) -> Tensor:
    r"""Coefficients of least penalised cross-entropy of many small regressions at once, by Newton's method with step halving.

    .. math:: \sum_i w_i \bigl[\log(1 + e^{s_i}) - t_i s_i\bigr] + \tfrac12 \sum_p r_p (\theta_p - c_p)^2, \qquad s = F \theta

    with features F ``[K, N, P]`` of order one, answers t ``[K, N]``, weights w ``[N]``, strengths r and centre c ``[K, P]``.
    """
    # Examples last, where memory is read in one stride.
    across = features.transpose(1, 2).contiguous()

    def loss(theta: Tensor) -> tuple[Tensor, Tensor]:
        score = (theta.unsqueeze(1) @ across).squeeze(1)
        fit = (functional.softplus(score) - answers * score) @ weights
        return fit + 0.5 * (ridge * (theta - centre) ** 2).sum(1), score

    theta = centre.clone()
    value, score = loss(theta)
    for _ in range(_MOST_STEPS):
        probs = score.sigmoid()
        slope = (across @ ((probs - answers) * weights).unsqueeze(2)).squeeze(2) + ridge * (theta - centre)
        bend = (across * (probs * (1 - probs) * weights).unsqueeze(1)) @ across.transpose(1, 2) + torch.diag_embed(ridge)
        step = torch.linalg.solve(bend, slope)
        size, slack = torch.ones_like(value), 1e-13 * (1 + value.abs())
        for halving in range(_MOST_HALVINGS + 1):
            found, score = loss(theta - size.unsqueeze(1) * step)
            worse = found > value + slack
            if not bool(worse.any()):
                break
            # Where no downhill step is left, they stay where they are.
            size = torch.where(worse, size / 2 if halving < _MOST_HALVINGS - 1 else 0 * size, size)
        theta = theta - size.unsqueeze(1) * step
        last, value = value, found
        # A second small gain in a row is not awaited: Newton's error is squared by every step.
        if bool((last - value <= 1e-12 * (1 + value.abs())).all()):
            break
    return theta


class _SigmoidCalibrator(Calibrator):
    def _regress(self, data: FitData, *features: Tensor) -> Tensor:
        """Fit every class that asks, some at a time, to features ``[N, C]`` each; coefficients ``[K, P]``."""
        classes = torch.arange(1 if data.num_classes == 2 else 0, data.num_classes)
        found = []
        for some in classes.split(max(_ROUND_ENTRIES // len(data), 1)):
            is_label = data.labels.unsqueeze(0) == some.unsqueeze(1)
            own = torch.stack([feature[:, some].T for feature in features], 2)
            found.append(self._fit_classes(own, is_label, data.weights))
        return torch.cat(found)

    @abstractmethod
    def _fit_classes(self, features: Tensor, is_label: Tensor, weights: Tensor) -> Tensor:
        """Coefficients of some classes from their features ``[K, N, P]``, the last one the intercept."""


class PlattScaling(_SigmoidCalibrator):
    r"""Fits a sigmoid to the log-odds of every class, then normalises.

    .. math:: q_k \propto \sigma(a_k f_k + b_k), \qquad f_k = \log \frac{p_k}{1 - p_k}, \quad p = \mathrm{softmax}(z)

    Targets are smoothed as Platt's: with N+ examples of the class and N- others they are (N+ + 1) / (N+ + 2) and
    1 / (N- + 2), so the fit is finite where a class is separable, or absent.

    Attributes:
        slope_: Slopes ``[C]`` (``[1]``, of the second class, for two).
        intercept_: Intercepts, shaped as the slopes.

    Reference:
        Platt, "Probabilistic outputs for support vector machines and comparisons to regularized likelihood methods", 1999;
        Zadrozny and Elkan, KDD 2002 for many classes.
    """

    label = "Platt scaling"
    learned = ("slope", "intercept")
    formula = staticmethod(platt_log_probs)

    slope_: Tensor
    intercept_: Tensor

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        found = self._regress(data, log_odds(floor_logits(data.logits.double())))
        return {"slope": found[:, 0].clone(), "intercept": found[:, 1].clone()}

    def _fit_classes(self, features: Tensor, is_label: Tensor, weights: Tensor) -> Tensor:
        hits = (is_label * weights).sum(1, keepdim=True)
        misses = weights.sum() - hits
        answers = torch.where(is_label, (hits + 1) / (hits + 2), 1 / (misses + 2))
        scale = features.std(1, correction=0).clamp(min=1e-12)
        scaled = torch.cat([features / scale.unsqueeze(1), torch.ones_like(features)], 2)
        centre = torch.cat([torch.zeros_like(hits), torch.log((hits + 1) / (misses + 1))], 1)
        found = fit_logistic(scaled, answers, weights, ridge=torch.full_like(centre, _FAINT), centre=centre)
        return torch.cat([found[:, :1] / scale, found[:, 1:]], 1)


class BetaCalibration(_SigmoidCalibrator):
    r"""Fits a beta curve, which can bend either way at both ends, to the probability of every class, then normalises.

    .. math:: q_k \propto \sigma\bigl(a_k \log p_k - b_k \log(1 - p_k) + c_k\bigr), \qquad p = \mathrm{softmax}(z)

    The two coefficients must not be negative: where one comes out so, the curve is fitted again without it. A weak prior around
    the identity (a = b = 1, c = 0, variance 1 / ``ridge``) keeps the fit finite where a class is separable or absent.

    Args:
        ridge: Strength of the prior, in examples.

    Attributes:
        weight_: a and b of every class ``[C, 2]`` (``[1, 2]``, of the second class, for two).
        bias_: c ``[C]``.

    Reference:
        Kull, Silva Filho and Flach, "Beta calibration: a well-founded and easily implemented improvement on logistic
        calibration for binary classifiers", AISTATS 2017.
    """

    label = "beta calibration"
    rules = {"ridge": check_positive}
    learned = ("weight", "bias")
    formula = staticmethod(beta_log_probs)

    weight_: Tensor
    bias_: Tensor

    def __init__(self, *, ridge: float = 0.01) -> None:
        self.ridge = ridge

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        log_probs = floor_logits(data.logits.double()).log_softmax(-1)
        found = self._regress(data, log_probs, -log_complements(log_probs))
        return {"weight": found[:, :2].clone(), "bias": found[:, 2].clone()}

    def _fit_classes(self, features: Tensor, is_label: Tensor, weights: Tensor) -> Tensor:
        keep = torch.ones(len(features), 3, dtype=torch.bool)
        found = torch.zeros(len(features), 3, dtype=torch.float64)
        again = torch.arange(len(features))
        while len(again):
            found[again] = self._fit_kept(features[again], is_label[again].double(), weights, keep[again])
            # Of two negative coefficients the more negative goes first.
            lowest, which = found[:, :2].min(1)
            again = (lowest < 0).nonzero().flatten()
            keep[again, which[again]] = False
        return found

    def _fit_kept(self, features: Tensor, answers: Tensor, weights: Tensor, keep: Tensor) -> Tensor:
        """Fit the coefficients that ``keep [K, 3]`` marks; the others are zero."""
        unit = torch.cat([features.abs().amax(1).clamp(min=1e-12), torch.ones(len(features), 1, dtype=torch.float64)], 1)
        scaled = torch.cat([features, torch.ones_like(features[..., :1])], 2) / unit.unsqueeze(1) * keep.unsqueeze(1)
        identity = torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
        found = fit_logistic(scaled, answers, weights, ridge=self.ridge / unit**2 + _FAINT, centre=identity * keep * unit)
        return found / unit * keep


# Isotonic calibration, histograms and BBQ: a piecewise map of each class's probability.


class Question(NamedTuple):
    """One class against the rest: its probability ``[N]``, whether it is the label ``[N]`` (0.0 or 1.0), and weights."""

    probs: Vector
    answers: Vector
    weights: Vector


def questions(data: FitData) -> Iterator[Question]:
    """One question for every class; of two classes only the second asks."""
    probs = floor_logits(data.logits.double()).softmax(1)
    for k in range(1 if data.num_classes == 2 else 0, data.num_classes):
        yield Question(probs[:, k].numpy(), (data.labels == k).double().numpy(), data.weights.numpy())


def table_log_probs(logits: Tensor, table: Tensor, values: Tensor, *, lookup: Callable[..., Tensor]) -> Tensor:
    """Map every class's probability by its row of a table ``[K, L]`` (or all by one ``[L]``), and normalise; ``[..., C]``.

    A small part of the original probability keeps the order of classes that share a step.
    """
    log_probs = floor_logits(logits).log_softmax(-1)
    if table.ndim == 1:
        return mix_in(lookup(log_probs.exp(), table, values), log_probs, part=_JOINT_MIXED_IN)
    rows = torch.arange(table.shape[0], device=logits.device)
    found = lookup(asked(log_probs, table.shape[0]).exp(), table, values, rows)
    return mix_in(torch.cat([1 - found, found], -1) if found.shape[-1] == 1 else found, log_probs)


def lines_log_probs(logits: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Apply straight lines between ``knots`` (``[K, L]``, or ``[L]`` for all classes) and normalise; ``[..., C]``."""
    return table_log_probs(logits, knots, values, lookup=interpolate)


def steps_log_probs(logits: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Apply steps (``edges [K, L]``, ``values [K, L + 1]``) to every class's probability and normalise; ``[..., C]``."""
    return table_log_probs(logits, edges, values, lookup=step_values)


def isotonic_lines(question: Question) -> tuple[Vector, Vector]:
    """Knots and values of the non-decreasing map of least squared error (pool adjacent violators)."""
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    fitted.fit(question.probs, question.answers, sample_weight=question.weights)
    return np.asarray(fitted.X_thresholds_, dtype=np.float64), np.asarray(fitted.y_thresholds_, dtype=np.float64)


class LinesCalibrator(Calibrator):
    """Has a map of straight lines between knots."""

    learned = ("knots", "values")
    formula: ClassVar[Callable[..., Tensor]] = staticmethod(lines_log_probs)
    layer_dtype = torch.float64

    knots_: Tensor
    values_: Tensor


class StepsCalibrator(Calibrator):
    """Has a map of steps between edges."""

    learned = ("edges", "values")
    formula: ClassVar[Callable[..., Tensor]] = staticmethod(steps_log_probs)
    layer_dtype = torch.float64

    edges_: Tensor
    values_: Tensor


class IsotonicCalibration(LinesCalibrator):
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

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        knots, values = zip(*map(isotonic_lines, questions(data)), strict=True)
        return {"knots": pad_rows(knots, least=2, fill=PAD), "values": pad_rows(values, least=2, fill=None)}


class OrderPreservingIsotonic(LinesCalibrator):
    """Maps the probabilities of all classes by one non-decreasing function, then normalises: the order of classes stays.

    The function is fitted to all pairs of a class's probability and whether it is the label, N C of them. A part of 1e-6 of
    the original probability is added, so that the map is strictly increasing and the top class never changes.

    Attributes:
        knots_: Positions ``[L]``.
        values_: Values ``[L]`` at the knots.

    Reference:
        Zhang, Kailkhura and Han, "Mix-n-Match", ICML 2020, section 3.3 (IRM).
    """

    label = "joint isotonic calibration"
    preserves_accuracy = True
    needs_every_class = False
    few_samples = 200

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        probs = floor_logits(data.logits.double()).softmax(1)
        answers = torch.zeros_like(probs).scatter_(1, data.labels.unsqueeze(1), 1.0)
        weights = data.weights.unsqueeze(1).expand_as(probs)
        knots, values = isotonic_lines(Question(*(part.reshape(-1).numpy() for part in (probs, answers, weights))))
        return {"knots": pad_rows([knots], least=2, fill=PAD)[0], "values": pad_rows([values], least=2, fill=None)[0]}


def just_above(probs: Vector) -> Vector:
    """The largest probability that differs from each by rounding alone."""
    return np.asarray(probs + probs * (_NEAR_LOG_ODDS * (1 - probs) + _NEAR) + _SMALLEST)


def merge_ties(probs: Vector) -> Vector:
    """Make probabilities equal that differ by rounding alone: groups no wider than that, with a wider gap on either side.

    Values that lie so dense everywhere are no ties, and stay as they are.

    Example:
        >>> merge_ties(np.array([0.1 + 0.2, 0.3, 0.5])).tolist()
        [0.30000000000000004, 0.30000000000000004, 0.5]
    """
    order = np.argsort(probs, kind="stable")
    ordered = probs[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] > just_above(ordered[:-1])]))
    sizes = np.diff(np.append(starts, len(ordered)))
    last = ordered[starts + sizes - 1]
    alike = np.repeat(last <= just_above(ordered[starts]), sizes)
    merged = np.empty_like(ordered)
    merged[order] = np.where(alike, np.repeat(last, sizes), ordered)
    return merged


def edges_behind(ordered: Vector, ends: Positions) -> Vector:
    """Edges between ascending probabilities, right behind the value before each of ``ends`` in ``[1, N)``, which it holds."""
    before, behind = ordered[ends - 1], ordered[ends]
    return np.asarray(np.minimum(just_above(before), (before + behind) / 2))


def equal_mass_edges(probs: Vector, weights: Vector, n_bins: int) -> Vector:
    """Inner edges, each right behind the last probability of its bin, that give every bin the same weight as far as ties allow.

    Example:
        >>> equal_mass_edges(np.array([0.1, 0.2, 0.3, 0.4, 0.9, 0.9]), np.ones(6), 3).round(4).tolist()
        [0.2, 0.4]
    """
    probs = merge_ties(probs)
    order = np.argsort(probs, kind="stable")
    ordered, mass = probs[order], np.cumsum(weights[order])
    cuts = np.searchsorted(mass, mass[-1] * np.arange(1, n_bins) / n_bins * (1 - 1e-12))
    ends = np.unique(np.searchsorted(ordered, ordered[np.minimum(cuts, len(probs) - 1)], side="right"))
    # Nothing lies above an edge at the largest probability.
    return edges_behind(ordered, ends[ends < len(probs)])


def bin_values(question: Question, edges: Vector) -> Vector:
    """Weighted frequency of the class in each bin ``(lower, upper]``; the middle of the bin where it is empty."""
    index = np.searchsorted(edges, question.probs)
    mass = np.bincount(index, question.weights, len(edges) + 1)
    hits = np.bincount(index, question.weights * question.answers, len(edges) + 1)
    ends = np.concatenate([[0.0], edges, [1.0]])
    return np.asarray(np.where(mass > 0, hits / np.where(mass > 0, mass, 1.0), (ends[1:] + ends[:-1]) / 2))


class _BinningCalibrator(StepsCalibrator):
    @abstractmethod
    def _steps(self, question: Question) -> tuple[Vector, Vector]:
        """Inner edges ``[L]`` and values ``[L + 1]`` for one class."""

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        return pad_steps([self._steps(question) for question in questions(data)])


class HistogramBinning(_BinningCalibrator):
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

    label = "histogram binning"
    rules = {"n_bins": check_count, "binning": check_choice("width", "mass")}

    def __init__(self, *, n_bins: int = 15, binning: Literal["width", "mass"] = "width") -> None:
        self.n_bins = n_bins
        self.binning = binning

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return 10 * self.n_bins * (1 if num_classes == 2 else num_classes)

    def _steps(self, question: Question) -> tuple[Vector, Vector]:
        # A rounded score on an edge is in the bin below it, whichever way its probability was rounded.
        edges = just_above(np.arange(1, self.n_bins) / self.n_bins)
        if self.binning == "mass":
            edges = equal_mass_edges(question.probs, question.weights, self.n_bins)
        return edges, bin_values(question, edges)


class BayesianBinning(_BinningCalibrator):
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

    label = "Bayesian binning"
    rules = {"span": check_positive}
    few_samples_per_class = 50

    def __init__(self, *, span: float = 10.0) -> None:
        self.span = span

    def _steps(self, question: Question) -> tuple[Vector, Vector]:
        n = len(question.probs)
        root = n ** (1 / 3)
        least = max(1, math.floor(root / self.span))
        most = max(least, min(math.ceil(n / 5), math.ceil(self.span * root)))
        sizes = np.arange(least, most + 1)
        return average_histograms(*equal_mass_histograms(question, sizes), sizes)


def equal_mass_histograms(question: Question, sizes: Positions) -> tuple[Vector, Vector, Vector]:
    """Equal-mass histograms with each of ``sizes`` bins; ties may leave bins empty, whose evidence is one.

    Returns the upper edges and values of all bins, one histogram after the other, and the log-evidence of each.
    """
    probs = merge_ties(question.probs)
    order = np.argsort(probs, kind="stable")
    probs, weights, n = probs[order], question.weights[order], len(probs)
    hits = weights * question.answers[order]
    sums = np.concatenate([np.zeros((1, 3)), np.cumsum(np.stack([weights, hits, hits * probs], 1), 0)])
    # All bins of all histograms lie in one array, so that one class costs a dozen numpy calls and not a dozen for every size.
    starts = np.cumsum(sizes) - sizes
    share = (np.arange(sizes.sum()) - np.repeat(starts, sizes) + 1) / np.repeat(sizes, sizes)
    cuts = np.minimum(np.searchsorted(sums[:, 0], sums[-1, 0] * share * (1 - 1e-12)), n)
    # A cut inside a run of equal probabilities moves behind the run.
    cuts = np.where(share == 1, n, np.searchsorted(probs, probs[cuts - 1], side="right"))
    upper = np.where(cuts == n, 1.0, probs[cuts - 1])
    edges = np.where(cuts == n, 1.0, edges_behind(probs, np.minimum(cuts, n - 1)))
    before, lower = np.roll(cuts, 1), np.roll(upper, 1)
    before[starts], lower[starts] = 0, 0.0
    mass, hits, hit_probs = (sums[cuts] - sums[before]).T
    middle = np.clip((upper + lower) / 2, 0.005, 0.995)
    alpha, beta = 2 * middle, 2 * (1 - middle)
    evidence = betaln(hits + alpha, np.maximum(mass - hits, 0) + beta) - betaln(alpha, beta)
    values = np.clip((hits + (hit_probs + middle) / (hits + 1)) / (mass + 1), 0.0, 1.0)
    return edges, values, np.add.reduceat(evidence, starts)


def average_histograms(edges: Vector, values: Vector, log_evidence: Vector, sizes: Positions) -> tuple[Vector, Vector]:
    """Mean of histograms, weighted by their evidence: inner edges ``[L]`` and values ``[L + 1]``."""
    weights = np.exp(log_evidence - log_evidence.max())
    kept = weights >= _LEAST_WEIGHT
    bins = np.repeat(kept, sizes)
    edges, values, sizes, weights = edges[bins], values[bins], sizes[kept], weights[kept] / weights[kept].sum()
    ends = np.cumsum(sizes)
    # The mean jumps where one of them does: a sum over all edges instead of a look into every histogram at every edge.
    jumps = np.append(np.diff(values), 0.0)
    jumps[ends - 1] = 0.0
    places, which = np.unique(edges, return_inverse=True)
    steps = np.bincount(which, jumps * np.repeat(weights, sizes), len(places))
    total = np.cumsum(np.append(weights @ values[ends - sizes], steps))
    inner = int((places < 1.0).sum())
    return places[:inner], np.clip(total[: inner + 1], 0.0, 1.0)
