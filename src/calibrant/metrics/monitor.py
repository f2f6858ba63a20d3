"""Watching a deployed model: what is measured in each window of time, and an alarm that is rarely false."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import ArrayLike, check_choice, check_share
from calibrant.core.records import Column, Predictions
from calibrant.core.scores import Estimate, Scores
from calibrant.core.summary import Summary, summarize
from calibrant.metrics.measure import measure_summary

Length = Literal["hour", "day", "week", "month"]
_UNITS = {"hour": "h", "day": "D", "week": "D", "month": "M"}
_MOST_WINDOWS = 1000
# How the model may have changed: log-odds that are stretched and shifted.
_STRETCHES, _SHIFTS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0), (-0.8, -0.4, -0.2, -0.1, -0.05, 0.0, 0.05, 0.1, 0.2, 0.4, 0.8)
_SUREST = 1e-7


@dataclass(frozen=True)
class Window:
    """What was measured in a window of time.

    Attributes:
        name: When it begins, or the value that its examples share.
        scores: What `calibrant.measure` says of its examples.
        evidence: How many times better the examples up to here are explained by a change than by a calibrated model.
        alarm: Whether that is enough for an alarm.
    """

    name: str
    scores: Scores
    evidence: float
    alarm: bool

    @property
    def bias(self) -> Estimate:
        """Confidence minus accuracy; of two classes mean probability of class 1 minus its frequency."""
        return self.scores["signed_gap" if self.scores.positive is None else "binary_gap"]


@dataclass(frozen=True)
class Watched:
    """What was seen of a stream of predictions, window after window.

    Attributes:
        windows: The windows in the order of time.
        tolerance: How far probabilities may be off without an alarm.
        false_alarms: Probability of any alarm, over all windows there will ever be, if none is due.
    """

    windows: tuple[Window, ...]
    tolerance: float
    false_alarms: float

    @property
    def first_alarm(self) -> Window | None:
        """The first window with an alarm."""
        return next((window for window in self.windows if window.alarm), None)

    def to_dict(self) -> dict[str, object]:
        """Return plain data in the schema of ``calibrant monitor --json``."""
        first = self.first_alarm
        return {
            "tolerance": self.tolerance,
            "false_alarms": self.false_alarms,
            "first_alarm": None if first is None else first.name,
            "windows": [
                {"window": window.name, "evidence": window.evidence, "alarm": window.alarm, **window.scores.to_dict()}
                for window in self.windows
            ],
        }


class CalibrationMonitor:
    r"""Measures a stream of predictions in windows of time, and raises an alarm when the model is no longer calibrated.

    The alarm is for probabilities :math:`c_i` (the confidence and whether the prediction was right; of two classes, the
    probability of class 1 and whether it was that) that are off by more than a tolerance :math:`\epsilon`. Each of 76 ways k
    in which they may be off, :math:`q_{ik} = \sigma(b_k \operatorname{logit} c_i + a_k)`, is compared with the nearest
    probability that is no cause for alarm, :math:`p_{ik}` in :math:`[c_i - \epsilon, c_i + \epsilon]`:

    .. math::
        E_{tk} = \prod_{i \in \text{window } t}
            \Bigl(\frac{q_{ik}}{p_{ik}}\Bigr)^{a_i} \Bigl(\frac{1 - q_{ik}}{1 - p_{ik}}\Bigr)^{1 - a_i},
        \qquad A_{tk} = E_{tk} \Bigl(A_{t-1,k} + \frac{1}{t (t + 1)}\Bigr),
        \qquad A_t = \frac{1}{K} \sum_k A_{tk}

    While no alarm is due each :math:`E_{tk}` is at most 1 on average, whatever came before, so :math:`A_t` plus the weights
    :math:`1 / (t (t + 1))` of windows to come is a supermartingale that begins at 1. By Ville's inequality :math:`A_t` ever
    reaches :math:`1 / \alpha` with probability :math:`\alpha` at most, over all windows, however many. The weights let a change
    begin at any window.

    Args:
        window: Length of a window; None makes one of each distinct value.
        tolerance: How far probabilities may be off without an alarm. No model is calibrated exactly.
        false_alarms: Probability :math:`\alpha` of any alarm while none is due.
        n_bins: Number of bins of the binned metrics.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> monitor = CalibrationMonitor(window="month")
        >>> for month, right in (("2024-01", 0.9), ("2024-02", 0.9), ("2024-03", 0.7)):
        ...     labels = (torch.rand(500, generator=generator) > right).long()
        ...     monitor.update(Predictions(probs=torch.tensor([[0.9, 0.1]] * 500), labels=labels), [month] * 500)
        >>> [(window.name, window.alarm) for window in monitor.result().windows]
        [('2024-01', False), ('2024-02', False), ('2024-03', True)]

    Reference:
        Shafer, "Testing by betting", JRSS A 184, 2021; Ramdas, Grünwald, Vovk and Shafer, Statistical Science 38, 2023; Shin,
        Ramdas and Rinaldo, "E-detectors", 2024 (changes at any time).
    """

    def __init__(
        self, *, window: Length | None = "day", tolerance: float = 0.02, false_alarms: float = 0.05, n_bins: int = 15
    ) -> None:
        where = "CalibrationMonitor"
        check_choice(window, (*_UNITS, None), where=where, name="window")
        check_share(tolerance, where=where, name="tolerance")
        check_share(false_alarms, where=where, name="false_alarms", zero=False)
        self.window, self.tolerance, self.false_alarms, self.n_bins = window, tolerance, false_alarms, n_bins
        self._seen: dict[Any, tuple[Summary, Tensor]] = {}

    def update(self, predictions: Predictions, times: ArrayLike) -> None:
        """Add examples, in any order.

        Args:
            predictions: N examples.
            times: When each was predicted ``[N]``: dates, or text such as "2024-05-31 17:00"; with ``window=None`` any values.
        """
        begins, index = np.unique(self._windows_of(np.asarray(times), len(predictions)), return_inverse=True)
        keys = begins.tolist() if self.window is None else begins.astype(str).tolist()
        if len({*self._seen, *keys}) > _MOST_WINDOWS:
            raise ValueError(
                f"CalibrationMonitor: `times` must fall into {_MOST_WINDOWS} windows at most, got more. Choose longer windows."
            )
        ratios = log_ratios(predictions, torch.from_numpy(index), len(keys), tolerance=self.tolerance)
        for number, key in enumerate(keys):
            found = summarize(predictions.subset(index == number), n_bins=self.n_bins), ratios[:, number]
            if key in self._seen:
                found = self._seen[key][0] + found[0], self._seen[key][1] + found[1]
            self._seen[key] = found

    def result(self, *, n_resamples: int = 1000, seed: int = 0) -> Watched:
        """Measure every window; ``n_resamples`` and ``seed`` as in `calibrant.measure`."""
        keys = sorted(self._seen)
        evidence = running_evidence([self._seen[key][1] for key in keys])
        windows = []
        for key, value in zip(keys, evidence, strict=True):
            total = self._seen[key][0]
            scores = measure_summary(total, n_resamples=n_resamples, seed=seed)
            windows.append(Window(str(key), scores, value, alarm=value >= 1 / self.false_alarms))
        return Watched(tuple(windows), self.tolerance, self.false_alarms)

    def _windows_of(self, times: Column, size: int) -> Column:
        where = "CalibrationMonitor.update"
        if times.shape != (size,):
            raise ValueError(f"{where}: `times` must be [N] = [{size}], got {list(times.shape)}.")
        if self.window is None:
            return times
        try:
            dates = times if times.dtype.kind == "M" else np.char.rstrip(times.astype(str), "Z").astype("datetime64[s]")
        except ValueError:
            dates = np.array(["NaT"], dtype="datetime64[s]")
        if bool(np.isnat(dates).any()):
            raise ValueError(f"{where}: `times` must be dates such as 2024-05-31, got {times[:1].tolist()} or other values.")
        begins = dates.astype(f"datetime64[{_UNITS[self.window]}]")
        # Days are counted from a Thursday; weeks begin on Monday.
        return begins - (begins.astype(int) + 3) % 7 if self.window == "week" else begins


def log_ratios(predictions: Predictions, index: Tensor, n_windows: int, *, tolerance: float) -> Tensor:
    """How much better each way of being off explains the examples of a window than what is no cause for alarm.

    Args:
        predictions: N examples.
        index: Window of each ``[N]``.
        n_windows: Number of windows T.
        tolerance: How far probabilities may be off.

    Returns:
        Logarithms of likelihood ratios ``[K, T]``.
    """
    if predictions.num_classes == 2:
        probs, happened = predictions.probs[:, 1].double(), predictions.labels == 1
    else:
        probs, happened = predictions.confidence, predictions.correct
    odds, low, high = torch.logit(probs, eps=_SUREST), (probs - tolerance).clamp_min(0), (probs + tolerance).clamp_max(1)
    ways = [(stretch, shift) for stretch in _STRETCHES for shift in _SHIFTS if (stretch, shift) != (1.0, 0.0)]
    found = torch.zeros(len(ways), n_windows, dtype=torch.float64)
    for total, (stretch, shift) in zip(found, ways, strict=True):
        q = torch.sigmoid(stretch * odds + shift)
        p = q.clamp(low, high)
        total.index_add_(0, index, torch.where(happened, q.log() - p.log(), torch.log1p(-q) - torch.log1p(-p)))
    return found


def running_evidence(ratios: Sequence[Tensor]) -> list[float]:
    """The evidence :math:`A_t` for a change up to each window, from its `log_ratios`."""
    found, logs = [], torch.full_like(ratios[0], -math.inf) if ratios else torch.empty(0)
    for t, values in enumerate(ratios, 1):
        logs = values + torch.logaddexp(logs, torch.full_like(logs, -math.log(t * (t + 1))))
        found.append(math.exp(min(float(torch.logsumexp(logs, 0)) - math.log(len(logs)), 700.0)))
    return found
