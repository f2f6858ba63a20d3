"""Predictions in numpy's ``.npz``: one array for each key, never an object array."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import BinaryIO

import numpy as np

from calibrant.core.records import Column
from calibrant.io.content import Fields
from calibrant.io.extras import EXTRAS_KEY, Extras


def read_npz(path: Path) -> tuple[Fields, Extras]:
    """Read every array of the file; an object array, which only unpickling could read, is refused."""
    # numpy leaves a damaged file open if it opened it itself.
    with path.open("rb") as handle:
        archive = np.load(handle, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError(f"{path}: must hold named arrays, got one array. Use `numpy.savez(file, logits=…, labels=…)`.")
        with archive:
            fields = {key: _read_array(archive, key, path) for key in archive.files}
    said = fields.pop(EXTRAS_KEY, np.array(""))
    return fields, Extras.from_json(str(said), path=path)


def _read_array(archive: np.lib.npyio.NpzFile, key: str, path: Path) -> Column:
    try:
        return np.asarray(archive[key])
    except ValueError as error:
        if "Object arrays" in str(error):
            raise ValueError(
                f"{path}: `{key}` must be a plain array, got an array of Python objects, which is not read because it could "
                f"run code. Save it as numbers or text, for instance with `.astype(str)`."
            ) from None
        raise


def write_npz(fields: Fields, extras: Extras, handle: BinaryIO) -> None:
    """Write one array for each key; the same content gives the same bytes."""
    said = Extras(dtype=extras.dtype if extras.dtype == "bfloat16" else None).to_json()
    content = {**fields, EXTRAS_KEY: np.array(said)} if said else fields
    with zipfile.ZipFile(handle, "w", zipfile.ZIP_STORED) as archive:
        for key, array in content.items():
            # `numpy.savez` would take a key named "file" for its own argument, and stamps the time on every member.
            with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)
