"""Arrays by name, as a file holds them, in numpy's ``.npz`` and torch's ``.pt``; nothing in either can run code.

Sizes that a file claims are compared with the bytes that it has before anything is allocated.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import warnings
import zipfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
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
# Kinds of numpy arrays that can be slice columns of a file: booleans, whole numbers, floating point, text and dates.
COLUMN_KINDS = "biufUM"
_TORCH_DTYPES = {str(d).removeprefix("torch."): d for d in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}
# Deflate cannot do better than this.
_MOST_INFLATED = 1032


@dataclass(frozen=True)
class Extras:
    """What a format cannot hold in its own way: precision of the scores, names of classes, numpy types of slice columns."""

    dtype: str | None = None
    class_names: tuple[str, ...] | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the parts that say something, as JSON text; empty text if none does."""
        parts = {"dtype": self.dtype, "class_names": self.class_names, "columns": dict(self.columns)}
        said = {key: value for key, value in parts.items() if value}
        return json.dumps(said, ensure_ascii=False) if said else ""

    @classmethod
    def from_json(cls, text: str, *, path: str | Path) -> Extras:
        """Read what `to_json` wrote; empty text is a file that says nothing."""
        try:
            data = json.loads(text or "{}")
            names = data.get("class_names")
            columns = {str(name): str(kind) for name, kind in data.get("columns", {}).items()}
            dtype = data.get("dtype")
            if dtype is not None and dtype not in _TORCH_DTYPES:
                raise ValueError(dtype)
            return cls(dtype, None if names is None else tuple(str(name) for name in names), columns)
        except (ValueError, AttributeError, TypeError, RecursionError):
            raise ValueError(f"{path}: `{EXTRAS_KEY}` must hold what `save_predictions` wrote, got {text[:80]!r}.") from None

    def restore_scores(self, scores: Tensor) -> Tensor:
        """Return ``scores`` in the precision in which they were saved."""
        return scores if self.dtype is None else scores.to(_TORCH_DTYPES[self.dtype])

    def restore_column(self, values: Column, name: str, *, path: str | Path) -> Column:
        """Return a slice column in the type in which it was saved."""
        dtype = self.columns.get(name)
        if dtype is None:
            return values.astype(str) if values.dtype.kind == "O" else values
        try:
            wanted = np.dtype(dtype)
            if wanted.kind not in COLUMN_KINDS:
                raise TypeError(dtype)
            if wanted.kind == "b" and values.dtype.kind in "OU":
                return np.asarray(np.char.lower(values.astype(str)) == "true")
            return values.astype(wanted)
        except (TypeError, ValueError):
            raise ValueError(f"{path}: column `{name}` must hold {dtype}, as the file says, got {values.dtype}.") from None


class ArrayHeader(NamedTuple):
    """What an ``.npz`` says about one of its arrays."""

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]


def npz_headers(path: Path) -> dict[str, ArrayHeader]:
    """Return shape and type of every array in an ``.npz`` without reading any; raises ``ValueError`` on another file."""
    with decoding(path), zipfile.ZipFile(path) as archive:
        members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
        return {info.filename.removesuffix(".npy"): _header(archive, info) for info in members}


def read_npz(path: Path, keys: Collection[str]) -> Fields:
    """Read some arrays of an ``.npz``; an object array, which only unpickling could read, is refused."""
    fields: Fields = {}
    for key, header in npz_headers(path).items():
        if key in keys and header.dtype.hasobject:
            raise ValueError(
                f"{path}: `{key}` must be a plain array, got an array of Python objects, which is not read because it could "
                "run code. Save it as numbers or text, for instance with `.astype(str)`."
            )
    with decoding(path), zipfile.ZipFile(path) as archive:
        for info in archive.infolist():
            if (key := info.filename.removesuffix(".npy")) in keys:
                with archive.open(info) as member:
                    fields[key] = np.lib.format.read_array(member, allow_pickle=False)
    return fields


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArrayHeader:
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
        claimed = math.prod(shape) * dtype.itemsize
        if not dtype.hasobject and not claimed == info.file_size - member.tell() <= _MOST_INFLATED * (info.compress_size + 8):
            raise ValueError("an array claims more than the file has")
    return ArrayHeader(shape, dtype)


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
    said = content.pop(EXTRAS_KEY, "")
    extras = Extras.from_json(said if isinstance(said, str) else "", path=path)
    arrays = {str(key): _to_numpy(value, str(key), path) for key, value in content.items()}
    scores = [content[key] for key in ("logits", "probs") if key in content]
    # numpy has no bfloat16.
    narrow = any(isinstance(value, Tensor) and value.dtype == torch.bfloat16 for value in scores)
    fields = {key: array for key, array in arrays.items() if array is not None}
    return fields, Extras("bfloat16" if narrow else None, extras.class_names, extras.columns)


def _load_pt(path: Path) -> object:
    with decoding(path), warnings.catch_warnings():
        warnings.simplefilter("ignore")
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


def _to_numpy(value: object, key: str, path: Path) -> Column | None:
    if isinstance(value, Tensor):
        if value.is_sparse or value.is_quantized:
            raise ValueError(f"{path}: `{key}` must be a dense tensor, got {value.layout}. Save `{key}.to_dense()`.")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise ValueError(
                f"{path}: `{key}` must hold every value of its shape {list(value.shape)}, got a view that repeats some. "
                f"Save `{key}.contiguous()`."
            )
        return (value.float() if value.dtype == torch.bfloat16 else value).detach().numpy()
    if isinstance(value, (str, int, float, list, tuple)):
        with suppress(ValueError):
            return np.asarray(value)
    return None


def write_pt(fields: Fields, extras: Extras, handle: BinaryIO) -> None:
    """Write a dict of tensors; text becomes lists of text, dates whole numbers (their type is kept beside them)."""
    content: dict[str, object] = {}
    for key, array in fields.items():
        if array.dtype.kind == "U":
            content[key] = array.tolist()
            continue
        plain = array.astype(np.int64) if array.dtype.kind == "M" else array
        tensor = torch.from_numpy(np.ascontiguousarray(plain).astype(plain.dtype.newbyteorder("=")))
        content[key] = extras.restore_scores(tensor) if key in ("logits", "probs") else tensor
    said = Extras(columns=extras.columns).to_json()
    # torch turns a full disk into an error of its own, so that it must not write to the file itself.
    buffer = io.BytesIO()
    torch.save({**content, EXTRAS_KEY: said} if said else content, buffer)
    handle.write(buffer.getbuffer())
