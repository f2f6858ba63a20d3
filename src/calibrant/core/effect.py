"""What a repair did, in words: whether it helped, did nothing, or did harm. One measurement is put in words in `words`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from calibrant.core.scores import Paired, Scores
from calibrant.core.words import SIGNIFICANT, is_miscalibrated, metric_of, write_p, write_value

# What makes one of these worse has its price; what makes two worse does harm, whatever becomes of the calibration error.
_PRICES = ("error", "nll", "brier")
_UNLIKE = "The examples it was fitted on seem to be unlike these, or too few"


def tell_effect(before: Scores, after: Scores, paired: Mapping[str, Paired], *, it: str) -> str:
    """Say what a repair did to the calibration error: what follows its name, with a full stop, and perhaps a sentence more.

    Args:
        before: Scores without the repair.
        after: Scores with it, on the same examples.
        paired: Key → test of after minus before.
        it: What to call the calibration error.

    Returns:
        The words.
    """
    test = paired["ece"]
    was, to = (write_percent(scores["ece"].value) for scores in (before, after))
    worse = [key for key in _PRICES if key in paired and _clear_change(paired[key]) > 0]
    change, p = 0 if was == to else _clear_change(test), write_p(test.p_value)
    if change > 0:
        return f"makes {it} worse here: {to} ({p}). The examples it was fitted on seem to differ from these; do not use it."
    if change:
        told = f"brings {it} to {to}" + ("" if is_miscalibrated(after) else ", which can no longer be told from calibrated")
        told += f", but {_tell_rises(worse, before, after)}" if worse else f"; {_tell_error(before, after)}"
    else:
        told = f"leaves {it} at {to}" if was == to else f"changes {it} to {to}, a difference that chance explains ({p})"
        told += f", and {_tell_rises(worse, before, after)}" if worse else ""
    if len(worse) > 1:
        return f"{told}: this repair does harm. {_UNLIKE}; do not use it."
    if change:
        return f"{told}."
    if not is_miscalibrated(before):
        return f"{told}: no repair is needed."
    return f"{told}: this repair does not help. {_UNLIKE}; fit on examples of the kind that is to be repaired."


def write_percent(value: float) -> str:
    """Write a share in percent: two digits for small ones, where they matter, else one.

    Example:
        >>> write_percent(0.0412), write_percent(0.412)
        ('4.12%', '41.2%')
    """
    return f"{100 * value:.{2 if abs(value) < 0.1 else 1}f}%"


def join_words(words: Sequence[str]) -> str:
    """Write an enumeration.

    Example:
        >>> join_words(["a", "b", "c"])
        'a, b and c'
    """
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]


def _clear_change(test: Paired) -> int:
    """1 for a clear rise, -1 for a clear fall, 0 for what chance explains."""
    return (test.difference > 0) - (test.difference < 0) if test.p_value < SIGNIFICANT else 0


def _tell_rises(keys: Sequence[str], before: Scores, after: Scores) -> str:
    """Say by how much these metrics rise; the first has the verb."""
    told: list[str] = []
    for key in keys:
        metric = metric_of(key)
        write = write_percent if key == "error" else lambda value, unit=metric.unit: write_value(value, unit)
        ends = f"from {write(before[key].value)} to {write(after[key].value)}"
        told.append(f"the {metric.name} {'' if told else 'rises '}{ends}")
    return join_words(told)


def _tell_error(before: Scores, after: Scores) -> str:
    old, new = before["error"].value, after["error"].value
    if old == new:
        return f"the error rate stays at {write_percent(old)}"
    return f"the error rate goes from {write_percent(old)} to {write_percent(new)}"
