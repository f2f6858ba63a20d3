"""Dividing what may be trained on into training, validation and meta-validation parts, by seed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Parts(NamedTuple):
    """Indices of each part; ``meta`` is empty for methods that need none."""

    train: Tensor
    val: Tensor
    meta: Tensor


def split_indices(n: int, *, val: int, meta: int, seed: int, keep_meta_out: bool = False, with_meta: bool = True) -> Parts:
    """Shuffle ``n`` positions once and cut: first ``val``, then ``meta``, the rest for training.

    The validation part depends on the seed alone, so it is the same for every method. Methods without a meta-validation set
    train on what it leaves (as the published code does), or leave it unused (``keep_meta_out``) so that all methods train on
    the same examples.

    Args:
        n: Number of examples.
        val: Size of the validation part.
        meta: Size of the meta-validation part.
        seed: Seed of the shuffle.
        keep_meta_out: Leave the meta part out of training also where it is not used.
        with_meta: Whether the method uses a meta part.

    Returns:
        Three disjoint index tensors; raises ``ValueError`` if nothing is left to train on.

    Example:
        >>> parts = split_indices(10, val=2, meta=3, seed=0)
        >>> [len(part) for part in parts]
        [5, 2, 3]
    """
    if val < 1 or meta < 0:
        raise ValueError(f"split_indices: `val` must be >= 1 and `meta` >= 0, got {val} and {meta}.")
    counted = with_meta or keep_meta_out
    if val + (meta if counted else 0) >= n:
        names, got = ("`val` + `meta`", f"{val} + {meta}") if counted else ("`val`", f"{val}")
        raise ValueError(f"split_indices: {names} must leave examples to train on, got {got} of {n}. Hold out fewer.")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    held = order[val : val + meta]
    if with_meta:
        return Parts(order[val + meta :], order[:val], held)
    train = order[val + meta :] if keep_meta_out else order[val:]
    return Parts(train, order[:val], held[:0])


def held_out_rows(labels: Tensor, *, share: float = 0.2, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Hold out a share of every class for testing, where a set comes without a test part.

    Args:
        labels: Class indices ``[N]``.
        share: Share of each class to hold out, rounded; at least one example, and at least one stays. A class of a single
            example is not divided.
        seed: Seed of the choice. It is not the seed of a run: all runs on a set are tested on the same examples.

    Returns:
        Indices of what stays and of what is held out: disjoint, complete, each in ascending order.

    Example:
        >>> [rows.tolist() for rows in held_out_rows(torch.tensor([0, 0, 1, 1, 2]), share=0.5)]
        [[1, 2, 4], [0, 3]]
    """
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero().squeeze(1)
        count = min(len(rows) - 1, max(1, round(share * len(rows))))
        held[rows[torch.randperm(len(rows), generator=generator)[:count]]] = True
    return (~held).nonzero().squeeze(1), held.nonzero().squeeze(1)
