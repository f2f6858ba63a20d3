"""Predictions in a ``.pt`` file: a dict of tensors, read with ``weights_only`` so that nothing in it can run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from calibrant.core.records import Column
from calibrant.io.content import Fields
from calibrant.io.extras import EXTRAS_KEY, Extras


def read_pt(path: Path) -> tuple[Fields, Extras]:
    """Read a dict of tensors, lists of numbers or text, and text."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch names no closed set of exceptions for a hostile or damaged file; whichever it is, nothing was loaded.
        if "weights_only" in str(error) or "Weights only" in str(error):
            raise ValueError(
                f"{path}: must hold only tensors, lists and text, got other Python objects, which are not loaded because they "
                "could run code. Save it with `torch.save({'logits': logits, 'labels': labels}, file)`."
            ) from None
        raise
    if not isinstance(content, dict):
        raise ValueError(f"{path}: must hold a dict with `logits` or `probs` and `labels`, got {type(content).__name__}.")
    said = content.pop(EXTRAS_KEY, "")
    extras = Extras.from_json(said if isinstance(said, str) else "", path=path)
    fields: Fields = {}
    for key, value in content.items():
        array = _to_numpy(value, str(key), path)
        if array is not None:
            fields[str(key)] = array
    return fields, _with_scores_dtype(content, extras)


def write_pt(fields: Fields, extras: Extras, handle: BinaryIO) -> None:
    """Write a dict of tensors; text becomes lists of text, dates whole numbers (their type is kept beside them)."""
    content: dict[str, object] = {}
    for key, array in fields.items():
        if array.dtype.kind == "U":
            content[key] = array.tolist()
        else:
            plain = array.astype(np.int64) if array.dtype.kind == "M" else array
            content[key] = torch.from_numpy(np.ascontiguousarray(plain).astype(plain.dtype.newbyteorder("=")))
    for key in ("logits", "probs"):
        scores = content.get(key)
        if isinstance(scores, Tensor):
            content[key] = extras.restore_scores(scores)
    said = Extras(columns=extras.columns).to_json()
    torch.save({**content, EXTRAS_KEY: said} if said else content, handle)


def _to_numpy(value: object, key: str, path: Path) -> Column | None:
    if isinstance(value, Tensor):
        if value.is_sparse or value.is_quantized:
            raise ValueError(f"{path}: `{key}` must be a dense tensor, got {value.layout}. Save `{key}.to_dense()`.")
        dense = value.detach()
        return (dense.float() if dense.dtype == torch.bfloat16 else dense).numpy()
    if isinstance(value, (str, int, float, list, tuple)):
        try:
            return np.asarray(value)
        except ValueError:
            return None
    return None


def _with_scores_dtype(content: dict[object, object], extras: Extras) -> Extras:
    """Remember bfloat16, which numpy lacks."""
    given = next((content[key] for key in ("logits", "probs") if isinstance(content.get(key), Tensor)), None)
    is_bfloat16 = isinstance(given, Tensor) and given.dtype == torch.bfloat16
    return Extras("bfloat16" if is_bfloat16 else None, extras.class_names, extras.columns)
