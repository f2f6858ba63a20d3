"""Arrays by name, as a file holds them, in numpy's ``.npz`` and torch's ``.pt``; nothing in either can run code.

Sizes that a file claims are compared with the bytes that it has before anything is allocated.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import re
import warnings
import zipfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from calibrant.core.records import Column
from calibrant.io.files import decoding

Fields: TypeAlias = dict[str, Column]

# The key, column or metadata entry that holds `Extras` as JSON.
EXTRAS_KEY = "calibrant"
SCORE_COLUMN = re.compile(r"(p|logit)(0|[1-9]\d*)")
# Kinds of numpy arrays that can be slice columns of a file: booleans, whole numbers, floating point, text and dates.
COLUMN_KINDS = "biufUM"
TORCH_DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
# Deflate cannot do better than this.
_MOST_INFLATED = 1032
# A value of more bytes is no label, name or number.
_MOST_BYTES = 1 << 16


class Extras(NamedTuple):
    """What a format cannot hold in its own way: precision of the scores, names of classes, numpy types of slice columns."""

    dtype: str | None = None
    class_names: tuple[str, ...] | None = None
    columns: Mapping[str, str] = {}

    def to_json(self) -> str:
        """Return the parts that say something, as JSON text; empty text if none does."""
        said = {key: value for key, value in self._asdict().items() if value}
        return json.dumps(said, ensure_ascii=False) if said else ""

    @classmethod
    def from_json(cls, text: str, *, path: str | Path) -> Extras:
        """Read what `to_json` wrote; empty text is a file that says nothing."""
        try:
            data = json.loads(text or "{}")
            names = data.get("class_names")
            found = cls(data.get("dtype"), None if names is None else tuple(map(str, names)), dict(data.get("columns", {})))
            if found.dtype not in (None, *TORCH_DTYPES) or any(
                np.dtype(kind).kind not in COLUMN_KINDS for kind in found.columns.values()
            ):
                raise ValueError(text)
            return found
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise ValueError(f"{path}: `{EXTRAS_KEY}` must hold what `save_predictions` wrote, got {text[:80]!r}.") from None


def npz_headers(path: Path) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
    """Return shape and type of every array in an ``.npz`` without reading any; raises ``ValueError`` on another file."""
    headers = {}
    with decoding(path), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                continue
            with archive.open(info) as member:
                version = np.lib.format.read_magic(member)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, _, dtype = read(member)
                held = info.file_size - member.tell()
            most = _MOST_INFLATED * (info.compress_size + 8)
            if not dtype.hasobject and not math.prod(shape) * dtype.itemsize == held <= most:
                raise ValueError("an array claims more than the file has")
            headers[info.filename.removesuffix(".npy")] = shape, dtype
    return headers


def read_npz(path: Path, keys: Collection[str], *, most: int | None = None) -> Fields:
    """Read some arrays of an ``.npz``.

    An object array, which only unpickling could read, is refused, and so are arrays of more than ``most`` values, of which one
    may be a text of 16,384 characters.
    """
    headers = npz_headers(path)
    for key in headers.keys() & keys:
        shape, dtype = headers[key]
        if dtype.hasobject:
            raise ValueError(
                f"{path}: `{key}` must be a plain array, got an array of Python objects, which is not read because it could "
                "run code. Save it as numbers or text, for instance with `.astype(str)`."
            )
        if most is not None and (math.prod(shape) > most or dtype.itemsize > _MOST_BYTES):
            raise ValueError(f"{path}: `{key}` must not hold more than the scores do, got {list(shape)} of {dtype}.")
    with decoding(path), np.load(path, allow_pickle=False) as archive:
        return {key: archive[key] for key in headers if key in keys}


def write_npz(fields: Fields, extras: Extras, handle: BinaryIO) -> None:
    """Write one array for each key; the same content gives the same bytes."""
    said = Extras(dtype=extras.dtype if extras.dtype == "bfloat16" else None).to_json()
    content = {**fields, EXTRAS_KEY: np.array(said)} if said else fields
    with zipfile.ZipFile(handle, "w", zipfile.ZIP_STORED) as archive:
        for key, array in content.items():
            # `numpy.savez` would take a key named "file" for its own argument, and stamps the time on every member.
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def read_pt(path: Path) -> tuple[Fields, Extras]:
    """Read a dict of tensors, lists of numbers or text, and text; with ``weights_only``, so that nothing in it can run."""
    content = _load_pt(path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: must hold a dict with `logits` or `probs` and `labels`, got {type(content).__name__}.")
    extras = Extras.from_json(str(content.pop(EXTRAS_KEY, "")), path=path)
    fields: Fields = {}
    for key, value in content.items():
        if not isinstance(value, Tensor):
            with suppress(ValueError):
                fields[key] = np.asarray(value)
            continue
        # A view may claim more values than are stored.
        is_plain = value.layout == torch.strided and not value.is_quantized
        if not is_plain or value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ValueError(f"{path}: `{key}` must be a dense tensor that holds every value. Save `{key}.to_dense().clone()`.")
        if value.dtype == torch.bfloat16 and key in ("logits", "probs"):
            extras = extras._replace(dtype="bfloat16")
        # numpy has no bfloat16.
        fields[key] = (value.float() if value.dtype == torch.bfloat16 else value).detach().numpy()
    return fields, extras


def _load_pt(path: Path) -> object:
    with decoding(path), warnings.catch_warnings(action="ignore"):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                # torch does not look at checksums. What it writes is not compressed.
                if any(info.compress_size != info.file_size for info in archive.infolist()) or archive.testzip():
                    raise ValueError("a member is compressed, or its checksum is wrong")
        with suppress(pickle.UnpicklingError):
            return torch.load(path, map_location="cpu", weights_only=True)
    raise ValueError(
        f"{path}: must hold only tensors, lists and text, got other Python objects, which are not loaded because they could "
        "run code. Save it with `torch.save({'logits': logits, 'labels': labels}, file)`."
    )


def write_pt(fields: Fields, extras: Extras, handle: BinaryIO) -> None:
    """Write a dict of tensors; text becomes lists of text, dates whole numbers (their type is kept beside them)."""
    content: dict[str, object] = {}
    for key, array in fields.items():
        if array.dtype.kind == "U":
            content[key] = array.tolist()
            continue
        plain = array.astype(np.int64) if array.dtype.kind == "M" else array
        tensor = torch.from_numpy(np.ascontiguousarray(plain, dtype=plain.dtype.newbyteorder("=")))
        content[key] = tensor.to(TORCH_DTYPES[extras.dtype]) if key in ("logits", "probs") and extras.dtype else tensor
    said = Extras(columns=extras.columns).to_json()
    # torch turns a full disk into an error of its own, so that it must not write to the file itself.
    buffer = io.BytesIO()
    torch.save({**content, EXTRAS_KEY: said} if said else content, buffer)
    handle.write(buffer.getbuffer())
