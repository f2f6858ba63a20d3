"""Groups of examples by the values of their columns; many different numbers or dates are cut into ranges."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import numpy as np
from numpy.typing import NDArray

from calibrant.core.records import Column, Predictions
from calibrant.core.registry import lookup

# More different numbers or dates than this are cut into so many ranges of about as many examples each.
_MOST_VALUES, _RANGES = 20, 5
_MOST_GROUPS = 1000
# Place of the column or columns in the list, and for each of them the place and text of the value.
Group = tuple[int, tuple[tuple[int, str], ...]]


def column_names(slice_by: str | Sequence[str] | None, known: Sequence[str], *, where: str) -> list[tuple[str, ...]]:
    """Take ``slice_by`` apart: one or several columns, of which ``"site,light"`` means every site by every light."""
    given = [slice_by] if isinstance(slice_by, str) else list(slice_by or ())
    found = [(text,) if text in known else tuple(name.strip() for name in text.split(",")) for text in dict.fromkeys(given)]
    for name in (name for names in found for name in names):
        lookup(dict.fromkeys(known), name, kind=f"column of {where}")
    return found


class Slices:
    """How examples are grouped, learned from the columns of all of them or of a random part.

    Args:
        slice_by: As `column_names` gives it.
        columns: Column → values, at least of those that are sliced by.
        where: Where the columns come from, for messages.
    """

    def __init__(self, slice_by: Sequence[tuple[str, ...]], columns: Mapping[str, Column], *, where: str) -> None:
        self.slice_by, self.where = list(slice_by), where
        self._cuts = {name: _cuts(columns[name]) for names in slice_by for name in names}
        self._seen: set[Group] = set()

    def split(self, predictions: Predictions) -> Iterator[tuple[Group, Predictions]]:
        """Yield the examples of every group that weighs anything; sorted, the groups are in the order of columns and values."""
        for place, names in enumerate(self.slice_by):
            coded = [self._code(name, predictions.columns[name]) for name in names]
            keys, group = np.unique(np.stack([codes for codes, _ in coded]), axis=1, return_inverse=True)
            for number, key in enumerate(keys.T):
                found = place, tuple(texts[code] for code, (_, texts) in zip(key, coded, strict=True))
                self._seen.add(found)
                if len(self._seen) > _MOST_GROUPS:
                    raise ValueError(f"{self.where}: columns to slice by must make at most {_MOST_GROUPS} groups, got more.")
                rows = group.reshape(-1) == number
                if predictions.weights is None or bool(predictions.weights[rows].any()):
                    yield found, predictions.subset(rows)

    def title(self, group: Group) -> str:
        """What a group is called: by its value, and where several columns are sliced by, by their names too."""
        place, values = group
        if len(self.slice_by) == len(values) == 1:
            return values[0][1]
        return ", ".join(f"{name}: {text}" for name, (_, text) in zip(self.slice_by[place], values, strict=True))

    def _code(self, name: str, values: Column) -> tuple[Column, list[tuple[int, str]]]:
        """Whole numbers for the values of a column, and what they stand for."""
        found = self._cuts[name]
        if found is None:
            texts, codes = np.unique(values.astype(str), return_inverse=True)
            return codes, [(0, text) for text in texts.tolist()]
        cuts, ranges = found
        numbers, _ = as_numbers(values)
        return np.where(np.isnan(numbers), len(cuts) + 1, np.searchsorted(cuts, numbers)), list(enumerate(ranges))


def _cuts(values: Column) -> tuple[NDArray[np.float64], list[str]] | None:
    """Where a column of many numbers or dates is cut, and the names of the ranges; None for any other column."""
    numbers, are_dates = as_numbers(values)
    if len(np.unique(numbers)) <= _MOST_VALUES:
        return None
    cuts = np.unique(np.nanquantile(numbers, np.arange(1, _RANGES) / _RANGES, method="nearest"))
    if are_dates:
        texts = [str(moment).removesuffix("T00:00:00") for moment in cuts.astype("int64").astype("M8[s]")]
    else:
        # As many digits as tell the cuts apart.
        texts = next(t for d in range(4, 18) if len({*(t := [f"{cut:.{d}g}" for cut in cuts])}) == len(cuts))
    between = [f"{low} – {high}" for low, high in zip(texts, texts[1:], strict=False)]
    return cuts, [f"up to {texts[0]}", *between, f"over {texts[-1]}", "missing"]


def as_numbers(values: Column) -> tuple[NDArray[np.float64], bool]:
    """Numbers as they are and dates as seconds, also those written as text, and whether they are dates; anything else is NaN.

    Example:
        >>> as_numbers(np.array(["1", "2.5", ""])), as_numbers(np.array(["1970-01-02"])), as_numbers(np.array(["day"]))
        ((array([1. , 2.5, nan]), False), (array([86400.]), True), (array([nan]), False))
    """
    kind = values.dtype.kind
    for dtype, missing in (("f8", "nan"), ("M8[s]", "NaT")):
        if kind in ("iufU" if dtype == "f8" else "UM"):
            with warnings.catch_warnings(action="ignore"), suppress(ValueError):
                found = (np.where(values == "", missing, values) if kind == "U" else values).astype(dtype)
                return np.where(np.isnan(found), np.nan, found.astype("f8")), dtype != "f8"
    return np.full(len(values), np.nan), False
