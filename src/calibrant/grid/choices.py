"""What methods decide themselves where nothing was set, averaging and selection: in which lines of a table these differ."""

from __future__ import annotations

from collections.abc import Sequence

from calibrant.core.effect import join_words
from calibrant.grid.layout import Line

_AVERAGE, _SELECT = "train.average", "train.select"
_EPOCHS = {
    "error": "of the epoch of least validation error",
    "nll": "of the epoch of least validation NLL",
    "error+nll": "of an epoch chosen by validation error and NLL",
    "error+ece": "of an epoch chosen by validation error and ECE",
    "last": "of the last epoch",
}
# What needs no name: the published protocol.
_USUAL = {_AVERAGE: "no", _SELECT: "error"}


def choice_notes(lines: Sequence[Line]) -> list[str]:
    """Say which lines average weights or choose their epoch in another way than the rest, where labels do not say it.

    Methods decide both where nothing was set, so that lines of the same settings may differ in them.

    Example:
        >>> usual, own = ("train.average=no", "train.select=error"), ("train.average=phase", "train.select=error")
        >>> choice_notes([Line("CE", "ce", {}, choices=usual), Line("FLγ", "flgamma", {}, choices=own)])
        ['By preset, FLγ predicts with averaged weights (train.average=phase); all others with weights as they are.']
    """
    known = [(line, dict(text.split("=", 1) for text in line.choices)) for line in lines if line.choices]
    keys = [
        key
        for key in (_AVERAGE, _SELECT)
        if len({said.get(key) for _, said in known}) > 1 and not all(f"{key}=" in line.label for line, _ in known)
    ]
    groups: dict[tuple[str | None, ...], dict[str, None]] = {}
    for line, said in known:
        groups.setdefault(tuple(said.get(key) for key in keys), {})[_name(line, lines)] = None
    if len(groups) < 2:
        return []
    usual = max(groups, key=lambda values: len(groups[values]))
    told = [
        f"{join_words([*names])} {'predicts' if len(names) == 1 else 'predict'} {_way(keys, values)}"
        for values, names in groups.items()
        if values != usual
    ]
    # Of somebody's predictions nothing is known.
    rest = "all others" if len(known) == len(lines) else "all other runs"
    return [f"By preset, {'; '.join(told)}; {rest} {_way(keys, usual)}."]


def _name(line: Line, lines: Sequence[Line]) -> str:
    """A line's label, with its preset where another line has the same one."""
    presets = {other.preset for other in lines if other.label == line.label and other.choices}
    return f"{line.label} ({line.preset})" if len(presets) > 1 and line.preset else line.label


def _way(keys: Sequence[str], values: Sequence[str | None]) -> str:
    found = dict(zip(keys, values, strict=True))
    words = ["with weights"]
    if _AVERAGE in found:
        words = ["with weights as they are" if found[_AVERAGE] == "no" else "with averaged weights" + _key(_AVERAGE, found)]
    if _SELECT in found:
        words.append(_EPOCHS.get(str(found[_SELECT]), "of an epoch chosen in another way") + _key(_SELECT, found))
    return (", " if len(found) > 1 else " ").join(words)


def _key(key: str, found: dict[str, str | None]) -> str:
    return "" if found[key] == _USUAL[key] else f" ({key}={found[key]})"
