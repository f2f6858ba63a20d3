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
    if val < 1 or meta < 0 or val + meta >= n:
        raise ValueError(f"split_indices: `val` + `meta` must leave examples to train on, got {val} + {meta} of {n}.")
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    held = order[val : val + meta]
    if with_meta:
        return Parts(order[val + meta :], order[:val], held)
    train = order[val + meta :] if keep_meta_out else order[val:]
    return Parts(train, order[:val], held[:0])
