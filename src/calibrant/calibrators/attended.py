"""Attended temperature scaling: more terms in the likelihood, for fit sets that are small or wrongly labelled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import FitData, chunk_rows, possible_labels
from calibrant.calibrators.scalar_search import least_in_log
from calibrant.calibrators.temperature import check_bounds, temperature_log_probs, warn_at_bound

# Below this many classes the bias is half of the temperature and more.
_FEWEST_CLASSES = 10


def attended_nll(data: FitData, temperature: float, *, threshold: float) -> float:
    r"""The attended negative log-likelihood, summed.

    Besides the label, an example is counted for every other class k that is its top class or whose probability at T = 1
    exceeds the threshold, as if drawn from it:

    .. math:: L(T) = -\sum_i w_i \Bigl[ \log q_{i y_i} + \sum_{k \in A_i} \log \frac{q_{ik}^2}{1 - q_{ik}} \Bigr],
        \qquad q_i = \mathrm{softmax}(z_i / T)

    Args:
        data: Checked logits, labels and weights.
        temperature: T.
        threshold: Probability at T = 1 that a class must exceed.

    Returns:
        The sum; it may be negative.

    Example:
        >>> data = FitData(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), torch.ones(1, dtype=torch.float64))
        >>> round(attended_nll(data, 1.0, threshold=0.4), 4), round(attended_nll(data, 1.0, threshold=0.6), 4)
        (1.3863, 0.6931)
    """
    return Attended.of(data, threshold=threshold).nll(temperature)


@dataclass(frozen=True)
class Attended:
    """What `attended_nll` is made of at any temperature, so that a search finds it once: an evaluation is one exponential.

    Attributes:
        logits: Logits without ``-inf`` ``[N, C]``, of the examples whose label has a chance.
        weights: Weights ``[N]``.
        top: Their top class ``[N, 1]``.
        runner: The largest logit of the other classes ``[N, 1]``, float64.
        lead: By how much the top class is above it ``[N]``, float64.
        own: The label's logit minus the top one's ``[N]``.
        rows: Example of every attended class ``[A]``.
        below: Logits of the attended classes minus their row's top one ``[A]``.
        on_top: Which of them are the top class of their row ``[A]``.
    """

    logits: Tensor
    weights: Tensor
    top: Tensor
    runner: Tensor
    lead: Tensor
    own: Tensor
    rows: Tensor
    below: Tensor
    on_top: Tensor

    @classmethod
    def of(cls, data: FitData, *, threshold: float) -> Attended:
        """Find the attended classes of ``data``."""
        data = possible_labels(data)
        logits = data.logits
        size = chunk_rows(data.num_classes)
        parts = []
        for start, part in zip(range(0, len(logits), size), logits.split(size), strict=True):
            wide, labels = part.double(), data.labels[start : start + size].unsqueeze(1)
            peak, top = wide.max(1, keepdim=True)
            runner = wide.scatter(1, top, -torch.inf).amax(1, keepdim=True)
            attended = (wide.softmax(1) > threshold).scatter_(1, top, value=True).scatter_(1, labels, value=False)
            rows, classes = attended.nonzero(as_tuple=True)
            below = wide - peak
            own = below.gather(1, labels).squeeze(1)
            lead = (peak - runner).squeeze(1)
            parts.append((top, runner, lead, own, rows + start, below[rows, classes], top[rows, 0] == classes))
        return cls(logits, data.weights, *(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def nll(self, temperature: float) -> float:
        """The sum of `attended_nll`."""
        size = chunk_rows(self.logits.shape[1])
        sums = []
        for part, top, runner in zip(self.logits.split(size), self.top.split(size), self.runner.split(size), strict=True):
            power = (part.double() - runner).div_(temperature).exp_()
            sums.append(power.scatter_(1, top, 0.0).sum(1))
        # Of the other classes together, relative to the top one: no 1 - q that would cancel.
        rest = torch.cat(sums).log_() - self.lead / temperature
        total = torch.logaddexp(rest, torch.zeros_like(rest))
        own = self.own / temperature - total
        log_probs = self.below / temperature - total[self.rows]
        # A class that is not on top has at most probability one half, where log1p is exact.
        complement = torch.where(self.on_top, (rest - total)[self.rows], torch.log1p(-log_probs.exp().clamp(max=0.75)))
        # One minus a probability of one has no logarithm; float64's smallest number stands for it.
        extra = 2 * log_probs - complement.clamp(min=-745.0)
        return -float(self.weights @ own + self.weights[self.rows] @ extra)


class AttendedTemperatureScaling(Calibrator):
    """Divides all logits by a temperature found from labels and from the other likely classes of every example.

    The extra terms make the estimate vary less from one small fit set to the next, and depend less on single wrong labels;
    the price is a bias that no number of examples removes. It depends on the threshold (on 5,000 examples of true temperature
    2.4, 10 classes and 19 % error: 2.5 at a threshold of 0.01, but 10 at the 1e-5 of the authors' notebook) and on the number
    of classes (at a true temperature of 2: near 4 with 2 classes, 3.0 with 5, 2.5 with 10, 1.6 with 100). With two classes the
    label cancels out of most examples, since 1 - q of the other class is its own probability. Prefer `TemperatureScaling`; with
    10 classes or more, fewer than some hundred examples and labels that may be wrong, compare the two. A fit on fewer classes
    warns.

    The objective is that of the authors' released code.

    Args:
        threshold: Probability that a class which is not the label must exceed to be attended.
        bounds: Smallest and largest T.

    Attributes:
        temperature_: The learned T.

    Reference:
        Mozafari, Gomes, Leão, Janny and Gagné, "Attended Temperature Scaling: A Practical Approach for Calibrating Deep Neural
        Networks", arXiv 1810.11586, 2018.
    """

    preserves_accuracy: ClassVar[bool] = True
    learned: ClassVar[tuple[str, ...]] = ("temperature",)
    transform = staticmethod(temperature_log_probs)
    needs_every_class: ClassVar[bool] = False

    temperature_: float

    def __init__(self, *, threshold: float = 0.01, bounds: tuple[float, float] = (1e-3, 1e5)) -> None:
        where = "AttendedTemperatureScaling"
        if not 0 <= threshold < 1:
            raise ValueError(f"{where}: `threshold` must lie in [0, 1), got {threshold!r}.")
        check_bounds(bounds, where=where)
        self.threshold = threshold
        self.bounds = bounds

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns: it is made for few."""
        return 20

    def doubts(self, data: FitData) -> list[str]:
        """Why a fit on ``data`` may not be trusted: too few examples, or too few classes."""
        few = (
            f"AttendedTemperatureScaling.fit: {data.num_classes} classes are few for this method ({_FEWEST_CLASSES} or more "
            "are advised). Its temperature will be far too high; use temperature scaling."
        )
        return super().doubts(data) + ([few] if data.num_classes < _FEWEST_CLASSES else [])

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        kept = possible_labels(data, warn_as="AttendedTemperatureScaling.fit")
        attended = Attended.of(kept, threshold=self.threshold)
        temperature, at_bound = least_in_log(attended.nll, bounds=self.bounds)
        if at_bound:
            warn_at_bound(temperature, data, where="AttendedTemperatureScaling.fit")
        return {"temperature": temperature}
