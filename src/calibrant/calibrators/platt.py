"""Platt scaling and beta calibration: a parametric curve for every class, fitted by logistic regression."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import FitData
from calibrant.calibrators.log_space import floor_logits, log_complements, log_odds, normalise
from calibrant.calibrators.logistic import fit_logistic
from calibrant.calibrators.one_vs_rest import asked
from calibrant.core.checks import check_positive

# Entries [K, N] of one round of regressions: with so few they stay in the cache, and few classes wait for the slowest.
_ROUND_ENTRIES = 100_000
# Keeps Newton's equations solvable where features do not vary; far too weak to be seen in the result.
_FAINT = 1e-9


def sigmoids_log_probs(scores: Tensor) -> Tensor:
    """Make one distribution of one-vs-rest log-odds: ``[..., C]``, or ``[..., 1]`` for class 1 of two.

    Example:
        >>> sigmoids_log_probs(torch.tensor([[1.0986]])).exp()
        tensor([[0.2500, 0.7500]])
    """
    if scores.shape[-1] == 1:
        return torch.nn.functional.logsigmoid(torch.cat([-scores, scores], -1))
    return normalise(torch.nn.functional.logsigmoid(scores))


def platt_log_probs(logits: Tensor, slope: Tensor, intercept: Tensor) -> Tensor:
    r"""Log-probabilities of one sigmoid for every class, normalised.

    .. math:: q_k \propto \sigma(a_k f_k + b_k), \qquad f_k = \log \frac{p_k}{1 - p_k}, \quad p = \mathrm{softmax}(z)

    Args:
        logits: Scores ``[..., C]``.
        slope: Slopes a ``[C]``, or ``[1]`` for class 1 of two.
        intercept: Intercepts b, shaped as the slopes.

    Returns:
        Log-probabilities ``[..., C]``.

    Example:
        >>> platt_log_probs(torch.tensor([[0.0, 1.0986]]), torch.tensor([1.0]), torch.tensor([0.0])).exp()
        tensor([[0.2500, 0.7500]])

    Reference:
        Platt, "Probabilistic outputs for support vector machines", 1999; Zadrozny and Elkan, KDD 2002 for many classes.
    """
    return sigmoids_log_probs(asked(log_odds(floor_logits(logits)), slope.shape[0]) * slope + intercept)


def beta_log_probs(logits: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    r"""Log-probabilities of one beta curve for every class, normalised.

    .. math:: q_k \propto \sigma\bigl(a_k \log p_k - b_k \log(1 - p_k) + c_k\bigr), \qquad p = \mathrm{softmax}(z)

    Args:
        logits: Scores ``[..., C]``.
        weight: a and b of every class ``[C, 2]``, or ``[1, 2]`` for class 1 of two.
        bias: c ``[C]`` or ``[1]``.

    Returns:
        Log-probabilities ``[..., C]``.

    Example:
        >>> beta_log_probs(torch.tensor([[0.0, 1.0986]]), torch.ones(1, 2), torch.zeros(1)).exp()
        tensor([[0.2500, 0.7500]])

    Reference:
        Kull, Silva Filho and Flach, "Beta calibration", AISTATS 2017.
    """
    own, rest = _beta_features(logits, weight.shape[0])
    return sigmoids_log_probs(own * weight[:, 0] + rest * weight[:, 1] + bias)


def _beta_features(logits: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    log_probs = floor_logits(logits).log_softmax(-1)
    return asked(log_probs, rows), -asked(log_complements(log_probs), rows)


def _rounds(data: FitData) -> Iterator[Tensor]:
    """Classes with a question, some at a time ``[K]``."""
    classes = torch.arange(1 if data.num_classes == 2 else 0, data.num_classes)
    yield from classes.split(max(_ROUND_ENTRIES // len(data), 1))


class PlattScaling(Calibrator):
    """Fits a sigmoid to the log-odds of every class, then normalises.

    Targets are smoothed as Platt's: with N+ examples of the class and N- others they are (N+ + 1) / (N+ + 2) and
    1 / (N- + 2), so the fit is finite where a class is separable, or absent.

    Attributes:
        slope_: Slopes ``[C]`` (``[1]``, of the second class, for two).
        intercept_: Intercepts, shaped as the slopes.

    Reference:
        Platt, "Probabilistic outputs for support vector machines and comparisons to regularized likelihood methods", 1999.
    """

    learned: ClassVar[tuple[str, ...]] = ("slope", "intercept")
    transform = staticmethod(platt_log_probs)

    slope_: Tensor
    intercept_: Tensor

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        odds = log_odds(floor_logits(data.logits.double()))
        parts = [self._fit_classes(odds[:, classes].T, data, classes) for classes in _rounds(data)]
        found = torch.cat(parts)
        return {"slope": found[:, 0].clone(), "intercept": found[:, 1].clone()}

    def _fit_classes(self, odds: Tensor, data: FitData, classes: Tensor) -> Tensor:
        is_label = data.labels.unsqueeze(0) == classes.unsqueeze(1)
        hits = (is_label * data.weights).sum(1, keepdim=True)
        misses = data.weights.sum() - hits
        answers = torch.where(is_label, (hits + 1) / (hits + 2), 1 / (misses + 2))
        scale = odds.std(1, keepdim=True, correction=0).clamp(min=1e-12)
        features = torch.stack([odds / scale, torch.ones_like(odds)], 2)
        centre = torch.stack([torch.zeros_like(hits), torch.log((hits + 1) / (misses + 1))], 2).squeeze(1)
        found = fit_logistic(features, answers, data.weights, ridge=torch.full_like(centre, _FAINT), centre=centre)
        return torch.stack([found[:, 0] / scale.squeeze(1), found[:, 1]], 1)


class BetaCalibration(Calibrator):
    """Fits a beta curve, which can bend either way at both ends, to the probability of every class, then normalises.

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

    learned: ClassVar[tuple[str, ...]] = ("weight", "bias")
    transform = staticmethod(beta_log_probs)

    weight_: Tensor
    bias_: Tensor

    def __init__(self, *, ridge: float = 0.01) -> None:
        check_positive(ridge, where="BetaCalibration", name="ridge")
        self.ridge = ridge

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        own, rest = _beta_features(data.logits.double(), data.num_classes)
        parts = []
        for classes in _rounds(data):
            answers = (data.labels.unsqueeze(0) == classes.unsqueeze(1)).double()
            parts.append(self._fit_classes(torch.stack([own[:, classes].T, rest[:, classes].T], 2), answers, data.weights))
        found = torch.cat(parts)
        return {"weight": found[:, :2].clone(), "bias": found[:, 2].clone()}

    def _fit_classes(self, features: Tensor, answers: Tensor, weights: Tensor) -> Tensor:
        found = self._regress(features, answers, weights, torch.ones(len(answers), 2, dtype=torch.bool))
        negative = found[:, :2] < 0
        again = negative.any(1).nonzero().flatten()
        if len(again):
            # Of two negative ones the more negative goes first; what then remains negative is cut to zero, a flat curve.
            keep = found[again, :2] > found[again, :2].amin(1, keepdim=True)
            refitted = self._regress(features[again], answers[again], weights, keep)
            flat = refitted[:, :2].amin(1) < 0
            if bool(flat.any()):
                rows = again[flat]
                none = torch.zeros(len(rows), 2, dtype=torch.bool)
                refitted[flat] = self._regress(features[rows], answers[rows], weights, none)
            found[again] = refitted
        return found

    def _regress(self, features: Tensor, answers: Tensor, weights: Tensor, keep: Tensor) -> Tensor:
        """Regress on the features that ``keep [K, 2]`` marks; the coefficients of the others are zero."""
        scale = features.abs().amax(1, keepdim=True).clamp(min=1e-12)
        shown = torch.cat([features / scale * keep.unsqueeze(1), torch.ones_like(features[..., :1])], 2)
        unit = torch.cat([scale.squeeze(1), torch.ones(len(features), 1, dtype=torch.float64)], 1)
        centre = torch.cat([keep.double(), torch.zeros(len(features), 1, dtype=torch.float64)], 1)
        found = fit_logistic(shown, answers, weights, ridge=self.ridge / unit**2 + _FAINT, centre=centre * unit)
        return found / unit * torch.cat([keep, torch.ones_like(keep[:, :1])], 1)
