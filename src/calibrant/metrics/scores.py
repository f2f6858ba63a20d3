"""Proper scores and plain rates: log-likelihood, Brier score, error rate, signed gap. Brier's parts are in `decomposition`.

They take ``(probs, labels)`` or one `Predictions`, whose logits, if it has them, keep what probabilities round away.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from calibrant.core.checks import ArrayLike, check_weights, to_tensor
from calibrant.core.records import Predictions
from calibrant.core.top_label import TopLabel, check_input, reduce_top_label

# Entries of [N, C] widened to float64 at once: 64 MiB.
_CHUNK_ENTRIES = 8_000_000


@dataclass(frozen=True)
class Given:
    """Checked input of a proper score: probabilities or logits ``[N, C]``, labels ``[N]``, weights ``[N]`` or None."""

    scores: Tensor
    labels: Tensor
    weights: Tensor | None
    are_logits: bool

    def chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Scores as float64 ``[n, C]`` and labels ``[n, 1]`` on the CPU, some rows at a time."""
        rows = max(_CHUNK_ENTRIES // self.scores.shape[1], 1)
        for scores, labels in zip(self.scores.split(rows), self.labels.split(rows), strict=True):
            yield scores.cpu().double(), labels.cpu().unsqueeze(1)

    def top(self) -> TopLabel:
        """Confidence and correctness; the top class is that of the logits, which saturated probabilities may hide."""
        if not self.are_logits:
            return reduce_top_label(self.scores, self.labels, self.weights)
        confidence = torch.cat([scores.softmax(1).amax(1) for scores, _ in self.chunks()])
        return TopLabel(confidence, (self.scores.argmax(1) == self.labels).double(), self.weights)


def negative_log_likelihood(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean negative log-likelihood of the labels, in nats.

    .. math:: \mathrm{NLL} = -\frac1N \sum_{i=1}^{N} \log p_{i y_i}

    A label of probability zero makes it infinite: no value is clipped. float32 probabilities underflow to zero for a label
    104 nats below the top; a `Predictions` of logits does not, since their log-softmax is taken in float64.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``; left out with a `Predictions`.
        weights: Sample weights, shaped as the labels (those of the `Predictions` if not given).
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, inf]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
        >>> negative_log_likelihood(probs, torch.tensor([0, 0]))  # -(log 0.9 + log 0.2) / 2
        tensor(0.8574, dtype=torch.float64)

    Reference:
        Good, Journal of the Royal Statistical Society B 1952.
    """
    given = take_scores(probs, labels, where="negative_log_likelihood", weights=weights, ignore_index=ignore_index)
    if given.are_logits:
        losses = [z.logsumexp(1) - z.gather(1, y).squeeze(1) for z, y in given.chunks()]
    else:
        losses = [0 - given.scores.gather(1, given.labels.unsqueeze(1)).squeeze(1).cpu().double().log()]
    return weighted_mean(torch.cat(losses), given.weights)


def brier_score(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean squared distance between the probabilities and the one-hot label, summed over classes.

    .. math:: \mathrm{Brier} = \frac1N \sum_{i=1}^{N} \sum_{k=1}^{C} \bigl( p_{ik} - [y_i = k] \bigr)^2

    Some libraries halve it, or divide by C.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``; left out with a `Predictions`.
        weights: Sample weights, shaped as the labels (those of the `Predictions` if not given).
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 2]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
        >>> brier_score(probs, torch.tensor([0, 0]))  # (0.02 + 1.28) / 2
        tensor(0.6500, dtype=torch.float64)

    Reference:
        Brier, Monthly Weather Review 1950.
    """
    given = take_scores(probs, labels, where="brier_score", weights=weights, ignore_index=ignore_index)
    distances = []
    for scores, label in given.chunks():
        probability = scores.softmax(1) if given.are_logits else scores
        gap = probability.scatter_add(1, label, probability.new_full(label.shape, -1.0))
        distances.append(gap.square_().sum(1))
    return weighted_mean(torch.cat(distances), given.weights)


def error_rate(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Share of wrong predictions.

    .. math:: \frac1N \sum_{i=1}^{N} \bigl[ \arg\max_k p_{ik} \ne y_i \bigr]

    Where several classes tie for the top, the first one is the prediction.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``; left out with a `Predictions`.
        weights: Sample weights, shaped as the labels (those of the `Predictions` if not given).
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[0, 1]``, float64; 0 is best. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
        >>> error_rate(probs, torch.tensor([0, 0]))
        tensor(0.5000, dtype=torch.float64)
    """
    top = take_scores(probs, labels, where="error_rate", weights=weights, ignore_index=ignore_index).top()
    return weighted_mean(1 - top.correct, top.weights)


def signed_calibration_gap(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    weights: ArrayLike | None = None,
    ignore_index: int | None = None,
) -> Tensor:
    r"""Mean confidence minus accuracy: which way the model errs.

    .. math:: \frac1N \sum_{i=1}^{N} (c_i - a_i)

    with confidence :math:`c_i = \max_k p_{ik}` and correctness :math:`a_i = [\arg\max_k p_{ik} = y_i]`.

    Args:
        probs: Probabilities ``[N, C]`` (or dense ``[N, C, ...]``), rows summing to one; or a `Predictions` alone.
        labels: Class indices ``[N]`` (or ``[N, ...]``) in ``[0, C)``; left out with a `Predictions`.
        weights: Sample weights, shaped as the labels (those of the `Predictions` if not given).
        ignore_index: Label of examples to leave out.

    Returns:
        Scalar ``[]`` in ``[-1, 1]``, float64; positive is over-confident, negative under-confident. Gaps of both signs may
        cancel to 0. Raises ``ValueError`` if the input is not probabilities with labels.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.2, 0.8]], dtype=torch.float64)
        >>> signed_calibration_gap(probs, torch.tensor([0, 0]))
        tensor(0.3500, dtype=torch.float64)
    """
    top = take_scores(probs, labels, where="signed_calibration_gap", weights=weights, ignore_index=ignore_index).top()
    return weighted_mean(top.confidence - top.correct, top.weights)


def take_scores(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None,
    *,
    where: str,
    weights: ArrayLike | None,
    ignore_index: int | None,
) -> Given:
    """Check the arguments of a proper score: ``(probs, labels)`` or one `Predictions`."""
    if not isinstance(probs, Predictions):
        if labels is None:
            raise ValueError(f"{where}: `labels` must be given unless the first argument is a `Predictions`, got None.")
        checked = check_input(probs, labels, where=where, weights=weights, ignore_index=ignore_index)
        return Given(checked.probs, checked.labels, checked.weights, are_logits=False)
    if labels is not None or ignore_index is not None:
        name = "labels" if labels is not None else "ignore_index"
        raise ValueError(f"{where}: `{name}` must be left out where a `Predictions` is given, which has its own.")
    weight = probs.weights
    if weights is not None:
        weight = to_tensor(weights, where=where, name="weights").cpu().double()
        check_weights(weight, probs.labels, where=where)
    return Given(probs.logits if probs.has_logits else probs.probs, probs.labels, weight, are_logits=probs.has_logits)


def weighted_mean(values: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of ``values [N]``; examples of weight zero do not count, even where their value is infinite."""
    if weights is None:
        return values.mean()
    kept = weights > 0
    return weights[kept] @ values[kept] / weights[kept].sum()
