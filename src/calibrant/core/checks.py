"""Checks of arguments, and the tables of named things.

A message reads ``where: `argument` must RULE, got WHAT. Remedy if one is likely.`` Shapes and dtypes are checked in every
public function, which costs nothing. Values are checked once, in ``Predictions`` and in the metrics.
"""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# What `to_tensor` takes: tensors, and whatever numpy can read, such as data frames and arrays of other libraries.
ArrayLike: TypeAlias = Tensor | npt.ArrayLike

# How far the sum of a row of probabilities may be from one, by precision. Rounding C entries to half precision moves their sum
# by C * 2^-11 at worst; typical errors grow with sqrt(C).
SUM_TOLERANCE = {torch.float64: 1e-6, torch.float32: 1e-3, torch.float16: 1e-2, torch.bfloat16: 5e-2}
# What to do with a multi-label problem, which has one sigmoid per class.
_SEVERAL = " Several labels at once are measured class by class, each as a binary problem."
# Classwise bins take C times as much memory, and nobody has data for more.
MOST_BINS = 10_000
# None, NaN and pandas' NA as text.
_MISSING = ("", "None", "nan", "NaN", "<NA>")


class FitError(RuntimeError):
    """A fit could not be done on the given data; nothing was learned."""


def to_tensor(value: object, *, where: str, name: str) -> Tensor:
    """Return any array (torch, numpy, pandas, polars, JAX, nested lists) as a detached, contiguous tensor of numbers.

    Memory is shared with an array that is contiguous, writeable and of a type that torch computes with.
    """
    if isinstance(value, Tensor):
        return value.detach().contiguous()
    refuse_masked(value, where=where, name=name)
    try:
        array = np.asarray(value)
        # So numpy reads nullable columns of a data frame, and those of Arrow.
        array = array.astype(float) if array.dtype == object and array.ndim else array
        if array.dtype.kind not in "fiub":
            raise TypeError(array.dtype)
        # torch cannot compare wide unsigned integers, and has neither long doubles nor another byte order.
        wide = {"u": np.int64, "f": np.float64}.get(array.dtype.kind)
        if wide and array.dtype.itemsize > (1 if array.dtype.kind == "u" else 8):
            array = array.astype(wide)
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueError(
            f"{where}: `{name}` must be a tensor, a numpy array or a nested list of numbers, got {type(value).__name__} "
            f"({error})."
        ) from None


def refuse_masked(value: object, *, where: str, name: str) -> None:
    """Raise if entries of a numpy array are masked."""
    if np.ma.is_masked(value):
        raise ValueError(f"{where}: `{name}` must have no masked entries. Leave those rows out of all arrays, or fill them.")


def check_count(value: int, *, where: str, name: str, least: int = 1, most: float = math.inf) -> None:
    """Raise unless ``value`` is a whole number from ``least`` to ``most``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
        rule = f">= {least}" if math.isinf(most) else f"from {least} to {most:,}"
        raise ValueError(f"{where}: `{name}` must be a whole number {rule}, got {value!r}.")


def check_positive(value: float, *, where: str, name: str, zero: bool = False) -> None:
    """Raise unless ``value`` is a finite number above zero, or zero where that is allowed."""
    # Plain comparisons, so that torch.compile can trace them; NaN fails both.
    if not (isinstance(value, (int, float, np.number)) and 0 <= value < float("inf")) or (value == 0 and not zero):
        raise ValueError(f"{where}: `{name}` must be a finite number {'>=' if zero else '>'} 0, got {value!r}.")


def check_share(value: float, *, where: str, name: str, zero: bool = True) -> None:
    """Raise unless ``value`` lies in [0, 1), or in (0, 1) where zero is not allowed."""
    if not 0 <= value < 1 or (value == 0 and not zero):
        raise ValueError(f"{where}: `{name}` must lie in {'[' if zero else '('}0, 1), got {value!r}.")


def check_choice(value: object, choices: Sequence[object], *, where: str, name: str) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{where}: `{name}` must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def check_shapes(scores: Tensor, labels: Tensor, *, where: str, kind: str = "probs", allow_empty: bool = False) -> None:
    """Raise unless ``scores`` is floating ``[N, C, ...]``, ``labels`` integer ``[N, ...]``, N >= 1 (or 0) and C >= 2."""
    expected = [*scores.shape[:1], *scores.shape[2:]]
    wrong, hint = "", ""
    if scores.ndim < 2 or scores.shape[1] < 2:
        wrong = f"`{kind}` must be [N, C] with C >= 2, got {_say(scores)} with labels {_say(labels)}"
        hint = " For one probability per example use the `binary_` metrics or `Predictions.from_binary`."
        if labels.is_floating_point() and not scores.is_floating_point():
            hint = f" The arguments look swapped: pass `{kind}` first, `labels` second."
    elif not scores.is_floating_point():
        wrong = f"`{kind}` must be floating point, got {scores.dtype}"
    elif list(labels.shape) != expected:
        wrong = f"`labels` must be {'[N]' if scores.ndim == 2 else '[N, ...]'} = {expected}, got {list(labels.shape)}"
        if labels.shape == scores.shape:
            # Who gives logits does not measure.
            hint = f" Pass `labels.argmax(1)` if they are one-hot.{_SEVERAL if kind == 'probs' else ''}"
    elif labels.is_floating_point() or labels.is_complex():
        wrong = f"`labels` must be integer class indices, got {labels.dtype}"
        hint = " Leave out rows without a label, then pass `labels.long()` or `labels.astype(int)`."
    elif scores.numel() == 0 and not allow_empty:
        wrong = f"`{kind}` must hold at least one example, got {list(scores.shape)}"
    if wrong:
        raise ValueError(f"{where}: {wrong}.{hint}")


def check_logits(logits: Tensor, labels: Tensor, *, where: str, soft_targets: bool = False, values: bool = True) -> None:
    """Check the arguments of a loss: ``logits [B, C]`` with ``labels [B]``, or with ``[B, C]`` if ``soft_targets``.

    Shape and dtype are always checked; the range of labels only if ``values`` and `range_if_free` can read it.
    """
    for name, value in (("logits", logits), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise ValueError(f"{where}: `{name}` must be a tensor, got {type(value).__name__}. Pass `torch.as_tensor({name})`.")
    if logits.ndim > 2:
        raise ValueError(f"{where}: `logits` must be [B, C], got {list(logits.shape)}. Flatten dense logits to [B, C] first.")
    if labels.ndim == 2 and labels.is_floating_point() and logits.is_floating_point():
        if not soft_targets or labels.shape != logits.shape or logits.numel() == 0:
            rule = f"soft targets [B, C] as the logits {_say(logits)}" if soft_targets else "class indices [B]"
            raise ValueError(
                f"{where}: `labels` must be {rule}, got {_say(labels)}. Pass `labels.argmax(1)` if they are one-hot."
            )
        low, high = range_if_free(labels, 0.0, 1.0)
        # Mixtures of one-hot rows may round to just outside.
        if not (low >= -1e-3 and high <= 1 + 1e-3):
            raise ValueError(f"{where}: soft `labels` must be probabilities in [0, 1], got {low:.4g} to {high:.4g}.")
        return
    check_shapes(logits, labels, where=where, kind="logits")
    if labels.dtype == torch.bool:
        raise ValueError(f"{where}: `labels` must be integer class indices, got {labels.dtype}. Pass `labels.long()`.")
    if values:
        _check_label_range(*range_if_free(labels, 0, 0), logits.shape[1], where=where)


def range_if_free(values: Tensor, low: float, high: float) -> tuple[float, float]:
    """Least and largest of ``values`` if they are plain tensors on the CPU; else ``low`` and ``high``.

    Reading from a device would wait for it; while compiling and under ``vmap`` there are no values to read.
    """
    if torch.compiler.is_compiling() or values.device.type != "cpu":
        return low, high
    try:
        least, most = torch.aminmax(values.detach())
        return least.item(), most.item()
    except RuntimeError:
        return low, high


def check_prob_values(probs: Tensor, *, where: str, first_row: int = 0) -> None:
    """Raise unless every row of ``probs [N, C]`` is a probability distribution, within its dtype's rounding.

    ``first_row`` is the number of the first row in messages.
    """
    tolerance = SUM_TOLERANCE.get(probs.dtype, 1e-6)
    work = probs if probs.dtype in (torch.float32, torch.float64) else probs.float()
    # A matrix-vector product is the cheapest row sum, and a NaN or inf anywhere shows in it.
    off = (work @ torch.ones(work.shape[1], dtype=work.dtype, device=work.device) - 1).abs()
    low, high = float(work.amin()), float(work.amax())
    if float(off.amax()) <= tolerance and low >= 0:
        return
    _refuse_infinite(work.sum(1), "`probs` must be finite", where=where, first_row=first_row)
    if low < 0 or high > 1 + tolerance:
        if work.shape[1] == 2 and float(off.amax()) <= tolerance:
            # Mostly made from one score, that of the positive class.
            low, high = float(work[:, 1].amin()), float(work[:, 1].amax())
        hint = "Divide percentages by 100; give logits as `logits`, or take their softmax or sigmoid; clip rounding errors."
        raise ValueError(f"{where}: `probs` must lie in [0, 1], got values from {low:.4g} to {high:.4g}. {hint}")
    row = int(off.argmax())
    raise ValueError(
        f"{where}: rows of `probs` must sum to 1 (within {tolerance:g}), got {float(work[row].sum()):.6g} in row "
        f"{first_row + row}. Normalise them, or give them as `logits` if they are scores.{_SEVERAL}"
    )


def check_before_softmax(logits: Tensor, *, where: str, first_row: int = 0) -> None:
    """Raise if ``logits [N, C]`` hold NaN or +inf, have a row of nothing but -inf, or are probabilities."""
    rule = "`logits` must not hold NaN or +inf and must have a finite entry in every row"
    _refuse_infinite(logits.amax(1), rule, where=where, first_row=first_row)
    # A few rows may be made by hand, but ten rows that look like a softmax are one.
    if len(logits) >= 10 and _are_probs(logits[:10]) and _are_probs(logits):
        raise ValueError(
            f"{where}: `logits` must be scores before softmax, got rows in [0, 1] that sum to 1. "
            "They look like probabilities: give them as `probs`, or take their logarithm."
        )


def _refuse_infinite(values: Tensor, rule: str, *, where: str, first_row: int) -> None:
    bad = ~torch.isfinite(values)
    if bool(bad.any()):
        row = int(bad.nonzero()[0])
        raise ValueError(f"{where}: {rule}, got {float(values[row])} in row {first_row + row}.")


def _are_probs(rows: Tensor) -> bool:
    tolerance = max(1e-3, SUM_TOLERANCE.get(rows.dtype, 1e-3))
    return bool((rows >= 0).all()) and bool(((rows.double().sum(1) - 1).abs() <= tolerance).all())


def read_labels(
    labels: ArrayLike,
    shape: Sequence[int],
    *,
    where: str,
    names: Sequence[str] | None = None,
    first_row: int = 0,
    ignore_index: int | None = None,
) -> Tensor:
    """Return labels as a tensor of integers.

    They may be whole numbers of any type, or class names and ``ignore_index`` as text. Numbers of another shape than ``shape``
    come back as they are, for `check_shapes` to refuse.
    """
    refuse_masked(labels, where=where, name="labels")
    if not isinstance(labels, Tensor):
        # `to_tensor` says what is wrong with rows of different lengths.
        with suppress(ValueError):
            labels = np.asarray(labels)
    said: object = labels
    if isinstance(labels, np.ndarray) and labels.dtype.kind in "USO":
        said, labels = _numbers_of_text(labels, names, ignore_index, where=where)
    target = to_tensor(labels, where=where, name="labels")
    if not target.is_floating_point() or list(target.shape) != list(shape):
        return target
    # The fractional part of NaN and inf is NaN.
    bad = (target.double().frac() != 0).nonzero()
    if len(bad):
        place = tuple(bad[0].tolist())
        got = (said if isinstance(said, Tensor) else np.asarray(said))[place].item()
        rule = "`labels` must be class indices 0, 1, 2, …" + ("" if names is None else " or among the class names")
        raise ValueError(
            f"{where}: {rule}, got {got!r} in row {first_row + place[0]}. Give indices, or names that are in `class_names` "
            "(`--class-names`). Leave out rows without a label, or mark them by a number for `ignore_index` (`--ignore-index`)."
        )
    return target.long()


def _numbers_of_text(
    labels: np.ndarray[tuple[int, ...], np.dtype[np.generic]], names: Sequence[str] | None, ignored: int | None, *, where: str
) -> tuple[object, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """Labels as text, and their numbers: all read as names or all as numbers; NaN where that fails."""
    text = np.char.decode(labels.astype(bytes), "utf-8", "replace") if labels.dtype.kind == "S" else labels.astype(str)
    distinct, place = np.unique(np.char.strip(text), return_inverse=True)
    names = [] if names is None else [str(name).strip() for name in names]
    known = {name: float(number) for number, name in enumerate(names)}
    if len(known) < len(names) and not known.keys().isdisjoint(distinct):
        raise ValueError(f"{where}: `class_names` must differ where labels are names, got some twice. Rename one class.")
    known |= {} if ignored is None else {str(ignored): float(ignored)}
    numbers = {value: _number(value) for value in distinct}
    strange = any(math.isnan(number) and value not in _MISSING for value, number in numbers.items())
    if known.keys() >= numbers.keys() or (names and strange):
        numbers = {value: known.get(value, math.nan) for value in distinct}
    return text, np.array(list(numbers.values()))[place].reshape(text.shape)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return {"false": 0.0, "true": 1.0}.get(text.lower(), math.nan)


def check_label_values(labels: Tensor, num_classes: int, *, where: str) -> None:
    """Raise unless every label is in ``[0, num_classes)``."""
    low, high = torch.aminmax(labels)
    _check_label_range(int(low), int(high), num_classes, where=where)


def _check_label_range(low: float, high: float, num_classes: int, *, where: str) -> None:
    if low < 0 or high >= num_classes:
        hint = " They look one-based: pass `labels - 1`." if low >= 1 and high == num_classes else ""
        if low < 0:
            signs = "Write labels -1 and 1 as 0 and 1. " if (low, high, num_classes) == (-1, 1, 2) else ""
            hint = f" {signs}Pass `ignore_index={low}` if it marks examples to leave out (`--ignore-index {low}`)."
        raise ValueError(f"{where}: `labels` must lie in [0, {num_classes - 1}], got {low if low < 0 else high}.{hint}")


def check_weights(weights: Tensor, labels: Tensor, *, where: str) -> None:
    """Raise unless ``weights`` has the shape of ``labels``, is finite and >= 0, and has a positive sum."""
    if weights.shape != labels.shape:
        raise ValueError(f"{where}: `weights` must be {list(labels.shape)} as the labels, got {list(weights.shape)}.")
    low, total = float(weights.min()), float(weights.double().sum())
    if not low >= 0:
        raise ValueError(f"{where}: `weights` must be finite and >= 0, got {low:.4g}.")
    # Squares and products of weights must not overflow.
    if not 1e-100 < total < 1e100:
        raise ValueError(f"{where}: `weights` must have a positive sum from 1e-100 to 1e100, got {total:.4g}. Rescale them.")


def _say(value: Tensor) -> str:
    return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"


T = TypeVar("T")


class UnknownNameError(ValueError, KeyError):
    """A table has no entry of that name; a ``KeyError``, so that ``get`` works on tables."""

    __str__ = Exception.__str__


class Registry(Mapping[str, T]):
    """The entries of one kind by name: the built-in ones first, then those that installed packages offer.

    A package adds an entry through a Python entry point of ``group``. Its name shows up in every list; its code is loaded when
    somebody asks for the entry. Built-in names cannot be replaced.

    Args:
        kind: What the entries are ("metric"), for messages.
        group: Entry-point group of other packages ("calibrant.metrics").
        entries: The built-in entries.
        of: The class of every entry.
    """

    def __init__(self, kind: str, group: str, entries: Mapping[str, T], *, of: type[T]) -> None:
        self.kind, self.group, self._of = kind, group, of
        self._entries = dict(entries)
        self.builtin = tuple(entries)

    @cached_property
    def _offered(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.builtin}

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            self._entries[name] = self._load(lookup(self._offered, name, kind=self.kind, known=self))
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._offered

    def __iter__(self) -> Iterator[str]:
        return iter([*self.builtin, *self._offered])

    def __len__(self) -> int:
        return len(self.builtin) + len(self._offered)

    def available(self) -> dict[str, T]:
        """Return all entries by name, without those that cannot be loaded, of which it warns."""
        found = {}
        for name in self:
            try:
                found[name] = self[name]
            except ValueError as error:
                warnings.warn(f"left out: {error}", stacklevel=2)
        return found

    def _load(self, point: EntryPoint) -> T:
        where = f"{self.kind} {point.name!r} of the installed package {point.dist.name if point.dist else point.value!r}"
        try:
            entry = point.load()
        except Exception as error:
            raise ValueError(f"{where} cannot be loaded: {type(error).__name__}: {error}") from error
        if not isinstance(entry, self._of):
            raise ValueError(f"{where} must be a {self._of.__name__}, got {type(entry).__name__}.")
        return entry


def lookup(table: Mapping[str, T], name: str, *, kind: str, also: Iterable[str] = (), known: Iterable[str] | None = None) -> T:
    """Return ``table[name]``.

    Args:
        table: Name → entry.
        name: The name looked for.
        kind: What the entries are ("metric"), for the message.
        also: Names that are not listed but may be meant.
        known: The names to list; those of the table unless given.

    Returns:
        The entry. Raises `UnknownNameError`, a ``ValueError``, with all names, and the nearest one, if there is none.
    """
    if name in table:
        return table[name]
    names = list(table if known is None else known)
    # Ignoring case: figures write CE for ce.
    folded = {known.casefold(): known for known in (*names, *also)}
    near = difflib.get_close_matches(str(name).casefold(), list(folded), n=1, cutoff=0.5)
    hint = f" Did you mean {folded[near[0]]!r}?" if near else ""
    raise UnknownNameError(f"unknown {kind} {name!r}.{hint} There are: {', '.join(names) or 'none'}.")
