"""The choice between methods that were tried: their ranking, the rule, and what it found in words."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from calibrant.metrics.ordinary import NORMAL_95


class Ranked(NamedTuple):
    """How one method did in the cross-validation.

    Attributes:
        name: Its name; "none" is doing nothing.
        score: Mean held-out score per example; lower is better.
        low: Lower end of its 95 % interval.
        high: Upper end.
        gain: Mean score of doing nothing minus its own, on the same examples: positive is an improvement.
        gain_low: Lower end of the 95 % interval of the gain.
        gain_high: Upper end.
        failure: Why it was not used, or None: it failed, or the fit data lack a class.
    """

    name: str
    score: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float
    failure: str | None = None


def mean_interval(values: Tensor, weights: Tensor) -> tuple[float, float, float]:
    """Weighted mean of ``values [N]`` and its 95 % interval, from the weighted variance.

    Example:
        >>> import torch
        >>> mean_interval(torch.tensor([1.0, 3.0]).double(), torch.ones(2).double())
        (2.0, 0.04003..., 3.95996...)
    """
    total = weights.sum()
    mean = (weights @ values) / total
    n_effective = total**2 / (weights @ weights)
    spread = (weights @ (values - mean) ** 2) / total
    half = NORMAL_95 * math.sqrt(float(spread / (n_effective - 1).clamp(min=1)))
    return float(mean), float(mean) - half, float(mean) + half


def rank(held: Mapping[str, Tensor], failures: Mapping[str, str], weights: Tensor) -> tuple[Ranked, ...]:
    """Rank methods by their mean held-out score; those that failed come last."""
    entries = [
        Ranked(name, *mean_interval(scores, weights), *mean_interval(held["none"] - scores, weights))
        for name, scores in held.items()
    ]
    nan = math.nan
    lost = [Ranked(name, nan, nan, nan, nan, nan, nan, why) for name, why in failures.items()]
    return (*sorted(entries, key=lambda entry: entry.score), *lost)


def choose(held: Mapping[str, Tensor], weights: Tensor, order: Sequence[str], *, doubtful: Collection[str] = ()) -> str:
    """Return the simplest name that nothing is clearly better than.

    Only what is clearly better than doing nothing can be chosen: a gain whose 95 % interval includes zero may be chance. Of
    these it is the first in ``order`` that is worse than the best by at most one standard error of their difference.

    Args:
        held: Name → held-out score of every example ``[N]``, among them "none".
        weights: Their weights ``[N]``.
        order: Names, simplest first.
        doubtful: Names that must not be chosen.

    Returns:
        The name.
    """
    able = {"none", *(name for name in held if name not in doubtful and _clearly_better(held[name], held["none"], weights))}
    best = min((name for name in held if name in able), key=lambda name: float(weights @ held[name]))
    for name in order:
        if name in able:
            worse, low, _ = mean_interval(held[name] - held[best], weights)
            if name == best or worse <= (worse - low) / NORMAL_95:
                return name
    return best


def _clearly_better(scores: Tensor, idle: Tensor, weights: Tensor) -> bool:
    gain, low, _ = mean_interval(idle - scores, weights)
    # An infinite gain has no interval.
    return low > 0 or gain == math.inf


def advise(ranking: Sequence[Ranked], chosen: str, score: str, *, doubtful: Collection[str] = ()) -> str:
    """Say in a sentence what the ranking means; ``doubtful`` are those that would warn of the examples."""
    what = {"nll": "negative log-likelihood", "brier": "Brier score"}[score]
    tried = [item for item in ranking if item.name != "none" and item.failure is None]
    able = [item for item in tried if item.name not in doubtful]
    of_them = " of the methods that these examples suffice for" if ranking[0].name in doubtful else ""
    if chosen == "none":
        if not tried:
            return "Doing nothing is all that is left: no method could be used."
        if not able:
            return "Doing nothing is best: these examples are too few, too easy or too odd for every method."
        none = f"none{of_them}" if of_them else "no method"
        interval = f"95% interval {-able[0].gain_high:+.4f} to {-able[0].gain_low:+.4f}"
        return (
            f"Doing nothing is best: {none} improves the held-out {what} clearly (the nearest, {able[0].name}, changes it by "
            f"{-able[0].gain:+.4f}, {interval})."
        )
    entry = next(item for item in ranking if item.name == chosen)
    lowers = f"it lowers the held-out {what} by {entry.gain:.4f} (95% interval {entry.gain_low:.4f} to {entry.gain_high:.4f})"
    if math.isinf(entry.gain):
        lowers = f"as given, held-out labels have probability zero; with it the {what} is {entry.score:.4f} instead of infinite"
    if able[0].name == chosen:
        return f"{chosen} is best{of_them}: {lowers}."
    return f"{chosen} is enough: {lowers}, and {able[0].name}, with the least{of_them}, is not clearly better."
