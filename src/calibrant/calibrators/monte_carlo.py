"""Temperature scaling of Monte-Carlo predictions: logits of several dropout passes, or of the members of an ensemble."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor, nn

from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import (
    FitData,
    at_least_single,
    chunk_rows,
    possible_labels,
    warn_if_seen,
    weighted_data,
)
from calibrant.calibrators.layer import CalibrationLayer
from calibrant.calibrators.scalar_search import least_in_log
from calibrant.calibrators.temperature import check_bounds, temperature_log_probs, warn_at_bound
from calibrant.core.checks import ArrayLike, check_before_softmax, check_weights, to_tensor
from calibrant.core.labels import label_shape, read_labels
from calibrant.core.records import Predictions


def monte_carlo_log_probs(logits: Tensor, temperature: Tensor | float) -> Tensor:
    r"""Log of the mean, over samples, of the probabilities of scaled logits.

    .. math:: q = \frac1S \sum_{s=1}^{S} \mathrm{softmax}(z_s / T)

    Args:
        logits: Scores ``[S, ..., C]``; ``[N, C]`` is a single sample.
        temperature: The positive number T, ``[]``.

    Returns:
        Log-probabilities ``[..., C]``.

    Example:
        >>> monte_carlo_log_probs(torch.tensor([[[1.0986, 0.0]], [[0.0, 0.0]]]), 1.0).exp()
        tensor([[0.6250, 0.3750]])

    Reference:
        Laves, Ihler, Kortmann and Ortmaier, "Well-calibrated model uncertainty with temperature scaling for dropout
        variational inference", Bayesian Deep Learning workshop, NeurIPS 2019.
    """
    log_probs = temperature_log_probs(logits, temperature)
    if logits.ndim == 2:
        return log_probs
    return log_probs.logsumexp(0) - torch.log(torch.full_like(log_probs[0, ..., :1], logits.shape[0]))


class MonteCarloTemperatureScaling(Calibrator):
    """Divides the logits of all samples by one temperature before their probabilities are averaged.

    Averaging makes a model less confident, so the best T differs from that of a single sample. It is found by least NLL of the
    average, which need not be convex: the whole range is searched.

    Logits are ``[S, N, C]``, S samples of N examples; ``[N, C]`` counts as one sample. Probabilities come back as ``[N, C]``.
    The top class of an average can depend on T, so predictions may change.

    Args:
        bounds: Smallest and largest T.

    Attributes:
        temperature_: The learned T.

    Reference:
        Laves, Ihler, Kortmann and Ortmaier, 2019.
    """

    learned: ClassVar[tuple[str, ...]] = ("temperature",)
    transform = staticmethod(monte_carlo_log_probs)
    needs_every_class: ClassVar[bool] = False

    temperature_: float

    def __init__(self, *, bounds: tuple[float, float] = (1e-3, 1e5)) -> None:
        check_bounds(bounds, where="MonteCarloTemperatureScaling")
        self.bounds = bounds

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return 50

    def _check_input(
        self,
        logits: ArrayLike | Predictions,
        labels: ArrayLike | None,
        weights: ArrayLike | None,
        *,
        ignore_index: int | None,
        where: str,
    ) -> FitData:
        if isinstance(logits, Predictions):
            return super()._check_input(logits, labels, weights, ignore_index=ignore_index, where=where)
        samples = to_tensor(logits, where=where, name="logits").cpu()
        if samples.ndim not in (2, 3) or samples.shape[0] == 0:
            raise ValueError(f"{where}: `logits` must be [S, N, C] or [N, C], got {list(samples.shape)}.")
        first = samples if samples.ndim == 2 else samples[0]
        if labels is not None:
            labels = read_labels(labels, label_shape(first), where=where, ignore_index=ignore_index).cpu()
        checked = super()._check_input(first, labels, None, ignore_index=ignore_index, where=where)
        assert labels is not None
        weight = None if weights is None else to_tensor(weights, where=where, name="weights").cpu().double()
        if weight is not None:
            check_weights(weight, labels, where=where)
        if ignore_index is not None:
            kept = labels != ignore_index
            samples, weight = samples[..., kept, :], None if weight is None else weight[kept]
            if weight is not None:
                check_weights(weight, checked.labels, where=where)
        for sample in samples[1:] if samples.ndim == 3 else ():
            check_before_softmax(sample, where=where)
        return weighted_data(at_least_single(samples), checked.labels, weight)

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        kept = possible_labels(data, warn_as="MonteCarloTemperatureScaling.fit")
        logits = kept.logits
        samples = 1 if logits.ndim == 2 else logits.shape[0]
        rows = chunk_rows(data.num_classes * samples)

        def loss(temperature: float) -> float:
            total = 0.0
            pieces = logits.split(rows, dim=-2)
            for part, labels, weights in zip(pieces, kept.labels.split(rows), kept.weights.split(rows), strict=True):
                found = monte_carlo_log_probs(part.double(), temperature)
                total -= float(weights @ found.gather(1, labels.unsqueeze(1)).squeeze(1))
            return total

        temperature, at_bound = least_in_log(loss, bounds=self.bounds)
        if at_bound:
            warn_at_bound(temperature, data, where="MonteCarloTemperatureScaling.fit")
        return {"temperature": temperature}

    def _check_scores(self, scores: Tensor, *, where: str) -> None:
        if scores.ndim not in (2, 3):
            raise ValueError(f"{where}: `logits` must be [S, N, C] or [N, C], got {list(scores.shape)}.")
        super()._check_scores(scores.reshape(-1, scores.shape[-1]), where=where)

    def _checked_log_probs(self, scores: Tensor, *, where: str) -> Tensor:
        self._check_fitted(where)
        self._check_scores(scores, where=where)
        if scores.numel():
            check_before_softmax(scores.reshape(-1, scores.shape[-1]), where=where)
        warn_if_seen(scores if scores.ndim == 2 else scores[0], self._seen, where=where)
        return self.log_probs(scores)

    def log_probs(self, logits: Tensor) -> Tensor:
        """Apply the temperature to checked logits and average; no guard rails."""
        return monte_carlo_log_probs(logits.double(), self.temperature_)

    def as_layer(self, *, dtype: torch.dtype | None = None) -> nn.Module:
        """Return a module from logits ``[S, B, C]`` (or ``[B, C]``) to log-probabilities ``[B, C]``; ``dtype`` as in `wrap`."""
        self._check_fitted("MonteCarloTemperatureScaling.as_layer")
        return CalibrationLayer(
            monte_carlo_log_probs,
            self.learned_values(),
            dtype=dtype or self.layer_dtype,
            out_dtype=dtype,
            classes_last=True,
        )
