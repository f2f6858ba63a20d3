"""Predictions as a table: a row for each example; columns ``p0…`` or ``logit0…``, ``label``, ``split``, ``weight``, others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from calibrant.core.records import Column
from calibrant.io.content import Fields
from calibrant.io.extras import EXTRAS_KEY

_KINDS = {"p": "probs", "logit": "logits"}
_SCORE = re.compile(r"(p|logit)(0|[1-9]\d*)")
LABELS = ("label", "labels")
_NUMBERS = (*LABELS, "weight", "weights", "sample_weight")
_BINARY = {
    "p": "For a binary problem write p0 = 1 - p and p1 = p",
    "logit": "For a binary problem write logit0 = 0 and logit1 = the log-odds",
}
ROLES = {*_NUMBERS, "split", "probs", "logits", EXTRAS_KEY}


def score_columns(names: Sequence[str], *, path: str | Path) -> tuple[str, list[str]]:
    """Find the columns that hold the scores.

    Args:
        names: Names of all columns of the file.
        path: The file, for messages.

    Returns:
        "probs" or "logits", and the names in the order of the classes; ``("", [])`` where no column is named so.
        Raises ``ValueError`` on both kinds at once, on a gap in the numbers and on a name that occurs twice.
    """
    twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twice:
        raise ValueError(f"{path}: every column must have a name of its own, got `{twice[0]}` twice. Rename one of them.")
    found: dict[str, list[int]] = {"p": [], "logit": []}
    for name in names:
        match = _SCORE.fullmatch(name)
        if match:
            found[match[1]].append(int(match[2]))
    if found["p"] and found["logit"]:
        raise ValueError(f"{path}: must hold either columns p0… or logit0…, got both. Remove one kind.")
    prefix = "p" if found["p"] else "logit"
    numbers = sorted(found[prefix])
    missing = sorted(set(range(numbers[-1])) - set(numbers))[:3] if numbers else []
    if missing:
        gap = ", ".join(f"{prefix}{number}" for number in missing)
        one_based = missing == [0] and len(numbers) == numbers[-1] > 1
        hint = f"Count the classes from {prefix}0" if one_based else "Write one column for every class"
        hint = _BINARY[prefix] if numbers == [1] else hint
        raise ValueError(f"{path}: columns {prefix}0…{prefix}{numbers[-1]} must have no gap, got none named {gap}. {hint}.")
    if len(numbers) == 1:
        raise ValueError(f"{path}: must hold a column for each of two or more classes, got only {prefix}0. {_BINARY[prefix]}.")
    return (_KINDS[prefix], [f"{prefix}{number}" for number in numbers]) if numbers else ("", [])


def is_number_column(name: str) -> bool:
    """Whether a column of this name must hold numbers."""
    return name in _NUMBERS or _SCORE.fullmatch(name) is not None


def is_score_column(name: str) -> bool:
    """Whether a column of this name holds the scores of a class."""
    return _SCORE.fullmatch(name) is not None


def further_columns(names: Iterable[str]) -> list[str]:
    """Names of the columns that have no meaning of their own and can be sliced by."""
    return [name for name in names if name not in ROLES and not _SCORE.fullmatch(name)]


def from_table(table: Mapping[str, Column], *, path: str | Path) -> Fields:
    """Put the score columns side by side and keep all others."""
    kind, names = score_columns(list(table), path=path)
    if names and "label" not in table and "labels" not in table:
        others = [name for name in table if name not in set(names)]
        found = ", ".join([f"{names[0]}…{names[-1]}", *others[:12]])
        raise ValueError(f"{path}: must hold a column `label`, found {found}. Name the column of true classes `label`.")
    fields = {name: values for name, values in table.items() if name not in set(names)}
    if names:
        if kind in fields:
            raise ValueError(f"{path}: must hold either a column `{kind}` or columns {names[0]}…, got both. Remove one kind.")
        fields[kind] = np.stack([table[name] for name in names], axis=1)
    return fields


def to_table(fields: Fields) -> dict[str, Column]:
    """Take ``[N, C]`` scores apart into columns; dates become text, the split is repeated in every row."""
    kind = "logits" if "logits" in fields else "probs"
    prefix = "logit" if kind == "logits" else "p"
    scores = fields[kind]
    # float16 is rare in tables and not understood by every reader; the precision is kept beside the data.
    scores = scores.astype(np.float32) if scores.dtype == np.float16 else scores
    table: dict[str, Column] = {f"{prefix}{k}": np.ascontiguousarray(scores[:, k]) for k in range(scores.shape[1])}
    table["label"] = fields["labels"]
    if "split" in fields:
        table["split"] = np.full(len(scores), str(fields["split"]))
    if "weights" in fields:
        table["weight"] = fields["weights"]
    for name, values in fields.items():
        if name not in ROLES and name != "class_names":
            table[name] = values.astype(str) if values.dtype.kind == "M" else values
    return table


def text_precision(fields: Fields) -> Fields:
    """Give probabilities read from text the precision that they really have.

    Text holds no precision, and decides how far a row may be from summing to one. Probabilities that are float32 numbers
    exactly, or whose rows sum to one only as float32 rows do (a file with four decimals), are float32; others stay float64.
    """
    probs = fields.get("probs")
    if probs is None or probs.dtype != np.float64 or not len(probs):
        return fields
    rough = probs.astype(np.float32)
    off = np.abs(probs.sum(axis=1) - 1).max()
    return {**fields, "probs": rough} if off > 1e-6 or np.array_equal(rough.astype(np.float64), probs) else fields
