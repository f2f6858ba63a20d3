"""Small records as JSON files that say what they are. Predictions have their own formats."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from calibrant.io.atomic import atomic_writer

_VERSION = 1


def write_json(data: Mapping[str, object], path: str | Path, *, kind: str) -> None:
    """Write plain data as a JSON file.

    Args:
        data: What to write; numbers must be finite.
        path: The file.
        kind: What the data describes; `read_json` asks for the same.
    """
    text = json.dumps({"format": f"calibrant {kind}", "version": _VERSION, **data}, allow_nan=False)
    with atomic_writer(path) as handle:
        handle.write(text.encode())


def read_json(path: str | Path, *, kind: str) -> dict[str, object]:
    """Read a file that `write_json` wrote.

    Args:
        path: The file.
        kind: What it must describe.

    Returns:
        The data. Raises ``ValueError`` with one sentence if the file holds something else, ``OSError`` if it cannot be read.
    """
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: must be a file of a {kind}, got nothing there.") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path}: must be a JSON file of a {kind}, got something else ({error}).") from None
    found = data.get("format") if isinstance(data, dict) else None
    if found != f"calibrant {kind}":
        raise ValueError(f"{path}: must be a JSON file of a {kind}, got format {found!r}.")
    if data.get("version") != _VERSION:
        raise ValueError(f"{path}: must have version {_VERSION}, got {data.get('version')!r}. Update calibrant to read it.")
    return {key: value for key, value in data.items() if key not in ("format", "version")}
