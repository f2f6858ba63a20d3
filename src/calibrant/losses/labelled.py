"""From logits of images, sentences or pixels to the rows that an objective is about: flattened, without ignored labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from calibrant.core.checks import check_logits, check_shapes


class Rows(NamedTuple):
    """The labelled rows of a batch.

    Attributes:
        logits: ``[K, C]``.
        labels: ``[K]``, or targets ``[K, C]``.
        inputs: Further inputs; those with an entry for every label have lost the same entries.
        shape: Shape of the labels as they came.
        kept: Positions ``[K]`` of the rows among all labels; None where none was left out.
    """

    logits: Tensor
    labels: Tensor
    inputs: dict[str, Tensor]
    shape: torch.Size
    kept: Tensor | None = None


def to_rows(logits: Tensor, labels: Tensor, inputs: Mapping[str, Tensor], *, ignore_index: int | None, where: str) -> Rows:
    """Flatten dense logits and leave out the labels that are ``ignore_index``.

    Leaving out waits for the device, which has to say how many rows are left.

    Args:
        logits: ``[B, C]`` or ``[B, C, d1, ...]``.
        labels: ``[B]`` or ``[B, d1, ...]``; or targets of the logits' shape, of which none is left out.
        inputs: Name → further input of the objective.
        ignore_index: Label to leave out, or None.
        where: Name for messages.

    Returns:
        The rows, perhaps none. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> rows = to_rows(torch.zeros(2, 3, 4), torch.tensor([[0, 1, 2, -1]] * 2), {}, ignore_index=-1, where="example")
        >>> rows.logits.shape, rows.labels
        (torch.Size([6, 3]), tensor([0, 1, 2, 0, 1, 2]))
    """
    if not all(isinstance(value, Tensor) for value in (logits, labels)):
        check_logits(logits, labels, where=where)
    soft = labels.is_floating_point() and labels.shape == logits.shape and logits.ndim > 1
    if not soft:
        if logits.ndim > 2 and labels.shape == logits.shape[:-1] and labels.shape[1:] != logits.shape[2:]:
            raise ValueError(
                f"{where}: `logits` must be [B, C, ...] and labels [B, ...], got {list(logits.shape)}, {list(labels.shape)}. "
                "The classes come last: pass `logits.movedim(-1, 1)`."
            )
        check_shapes(logits, labels, where=where, kind="logits")
    shape = logits.shape[:1] + logits.shape[2:]

    def flat(value: Tensor) -> Tensor:
        return value.movedim(1, -1).reshape(-1, value.shape[1]) if value.shape == logits.shape else value.reshape(-1)

    # A proportion that is given once for an example holds at all of its positions.
    given = {name: _spread(value, shape) for name, value in inputs.items()}
    every = [name for name, value in given.items() if isinstance(value, Tensor) and value.shape in (shape, logits.shape)]
    more = {name: flat(value) if name in every else value for name, value in given.items()}
    rows = Rows(flat(logits), flat(labels), more, shape)
    if ignore_index is None or soft:
        return rows
    kept = (rows.labels.long() != ignore_index).nonzero().squeeze(1)
    if len(kept) == len(rows.labels):
        return rows
    more = {name: value.index_select(0, kept) if name in every else value for name, value in more.items()}
    return Rows(rows.logits.index_select(0, kept), rows.labels.index_select(0, kept), more, shape, kept)


def _spread(value: Tensor, shape: torch.Size) -> Tensor:
    if not isinstance(value, Tensor) or not value.is_floating_point() or len(shape) == 1 or value.shape != shape[:1]:
        return value
    return value.reshape(-1, *[1] * (len(shape) - 1)).expand(shape)


def from_rows(values: Tensor, rows: Rows) -> Tensor:
    """Put one value per row back into the labels' shape; 0 where a label was left out."""
    if rows.kept is not None:
        values = values.new_zeros(rows.shape.numel()).index_copy(0, rows.kept, values)
    return values.reshape(rows.shape)


def check_ignore_index(ignore_index: int | None, *, where: str) -> int | None:
    """Return ``ignore_index`` if it is a whole number or None."""
    if ignore_index is not None and (not isinstance(ignore_index, int) or isinstance(ignore_index, bool)):
        raise ValueError(f"{where}: `ignore_index` must be a whole number or None, got {ignore_index!r}.")
    return ignore_index


def check_class_weight(weight: Tensor, *, where: str) -> None:
    """Raise unless ``weight`` is floating ``[C]``, finite and not negative."""
    if not isinstance(weight, Tensor) or weight.ndim != 1 or not weight.is_floating_point():
        got = f"{weight.dtype} {list(weight.shape)}" if isinstance(weight, Tensor) else type(weight).__name__
        raise ValueError(f"{where}: `weight` must be a floating tensor [C], one number per class, got {got}.")
    if not bool((weight >= 0).all()) or not bool(weight.isfinite().all()):
        raise ValueError(f"{where}: `weight` must be finite and >= 0, got {weight.tolist()}.")


def weight_of_rows(weight: Tensor, rows: Rows, *, where: str) -> Tensor:
    """Weight ``[K]`` of the class of each row, in the precision of ``weight``; labels must have been checked."""
    if len(weight) != rows.logits.shape[1]:
        raise ValueError(f"{where}: `weight` must be [C] = [{rows.logits.shape[1]}], got {list(weight.shape)}.")
    if rows.labels.ndim > 1:
        raise ValueError(f"{where}: `labels` must be class indices where there is a `weight`, got targets of every class.")
    return weight[rows.labels.long()]
