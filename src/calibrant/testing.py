"""Limits for calibration: in a test suite by `assert_calibrated`, on the command line by ``calibrant measure --fail-if``."""

from __future__ import annotations

import operator
import re
from typing import Literal, NamedTuple, Self

from calibrant.core.checks import ArrayLike, lookup
from calibrant.core.records import Predictions, Scores
from calibrant.metrics.measure import measure
from calibrant.metrics.table import score_metrics

__all__ = ["assert_calibrated"]

_FORM = re.compile(r"\s*(\w+)(?:\.(value|low|high))?\s*([<>]=?)\s*(\S+)\s*")
# What is true as long as a limit is kept; of NaN nothing is.
_KEPT = {">": operator.le, ">=": operator.lt, "<": operator.ge, "<=": operator.gt}


class Limit(NamedTuple):
    """A limit that a score must not break: ``ece>0.05``, or ``ece.high>0.05`` for the upper end of its interval."""

    text: str
    key: str
    part: str
    sign: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a limit."""
        try:
            key, part, sign, number = _FORM.fullmatch(text).groups()  # type: ignore[union-attr]
            bound = float(number)
        except (AttributeError, ValueError):
            raise ValueError(f"fail-if: a limit must read `ece>0.05` or `ece.high>0.05`, got {text!r}.") from None
        lookup(score_metrics(positive=True), key, kind="score")
        return cls(text, key, part or "value", sign, bound)

    def broken_by(self, scores: Scores) -> str:
        """Say what breaks the limit; empty if nothing does. NaN, as score or as limit, always does."""
        if self.key not in scores:
            raise ValueError(f"fail-if: these data have no `{self.key}`. It may need two classes, or all examples at once.")
        found = float(getattr(scores[self.key], self.part))
        what = self.key if self.part == "value" else f"{self.key}.{self.part}"
        return "" if _KEPT[self.sign](found, self.bound) else f"{what} is {found:.4g} ({self.text})"


def assert_calibrated(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    bound: Literal["value", "low", "high"] = "value",
    n_bins: int = 15,
    **limits: float,
) -> None:
    """Raise ``AssertionError`` if a score is above its limit.

    Args:
        probs: Probabilities ``[N, C]``, or a `Predictions`.
        labels: Class indices ``[N]``, with probabilities.
        bound: Which number is compared: the value; ``"high"``, the upper end of its 95 % interval, to be sure that it is below
            the limit; or ``"low"``, to fail only where it is surely above.
        n_bins: Bins of the binned scores.
        limits: Score → the most it may be.

    Example:
        >>> assert_calibrated([[0.9, 0.1], [0.2, 0.8]] * 50, [0, 1] * 50, ece=0.2)
        >>> assert_calibrated([[0.9, 0.1], [0.2, 0.8]] * 50, [0, 1] * 50, ece=0.1)
        Traceback (most recent call last):
        ...
        AssertionError: of 100 examples ece is 0.15 (ece.value>0.1)
    """
    if not limits:
        raise ValueError("assert_calibrated: a limit must be given, such as `ece=0.05`, got none.")
    scores = measure(probs, labels, n_bins=n_bins)
    broken = [said for key, most in limits.items() if (said := Limit.parse(f"{key}.{bound}>{most}").broken_by(scores))]
    if broken:
        raise AssertionError(f"of {scores.n} examples {', '.join(broken)}")
