"""Attended temperature scaling: more terms in the likelihood, for fit sets that are small or wrongly labelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import FitData, chunk_rows
from calibrant.calibrators.log_space import floor_logits, log_complements
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
        >>> import torch
        >>> data = FitData(torch.tensor([[0.0, 0.0]]), torch.tensor([0]), torch.ones(1, dtype=torch.float64))
        >>> round(attended_nll(data, 1.0, threshold=0.4), 4), round(attended_nll(data, 1.0, threshold=0.6), 4)
        (1.3863, 0.6931)
    """
    total = 0.0
    rows = chunk_rows(data.num_classes)
    for part, labels, weights in zip(data.logits.split(rows), data.labels.split(rows), data.weights.split(rows), strict=True):
        logits = floor_logits(part.double())
        attended = logits.softmax(1) > threshold
        attended.scatter_(1, logits.argmax(1, keepdim=True), value=True).scatter_(1, labels.unsqueeze(1), value=False)
        log_probs = temperature_log_probs(logits, temperature)
        # One minus a probability of one has no logarithm; float64's smallest number stands for it.
        extra = 2 * log_probs - log_complements(log_probs).clamp(min=-745.0)
        own = log_probs.gather(1, labels.unsqueeze(1)).squeeze(1)
        total -= float(weights @ (own + (extra * attended).sum(1)))
    return total


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
        def loss(temperature: float) -> float:
            return attended_nll(data, temperature, threshold=self.threshold)

        temperature, at_bound = least_in_log(loss, bounds=self.bounds)
        if at_bound:
            warn_at_bound(temperature, data, where="AttendedTemperatureScaling.fit")
        return {"temperature": temperature}
