"""Reading the names of classes."""

from __future__ import annotations

import json
from pathlib import Path

from calibrant.io.content import check_readable


def load_class_names(path: str | Path) -> tuple[str, ...]:
    """Read class names: a text file with one name a line in the order of the classes, or JSON.

    JSON is a list, or an object that has the names by index as in the ``config.json`` of Transformers (``id2label``).

    Args:
        path: The file; a name that ends in ``.json`` is read as JSON, every other as UTF-8 text.

    Returns:
        The names, without surrounding blanks. Raises ``ValueError`` or ``OSError`` with one sentence on a file that is
        missing or holds no names.
    """
    check_readable(path, content="class names", remedy="Write one name a line.")
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: must be UTF-8 text with one class name a line, got other bytes.") from None
    if not text.strip():
        raise ValueError(f"{path}: must hold class names, got only blanks. Write one name a line.")
    if Path(path).suffix.lower() != ".json":
        return tuple(line.strip() for line in text.rstrip().splitlines())
    try:
        names = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: must be a JSON list of class names, got text that is not JSON ({error}).") from None
    if isinstance(names, dict):
        names = _by_index(names)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f'{path}: must be a JSON list of class names such as ["cat", "dog"], got {type(names).__name__}.')
    return tuple(names)


def _by_index(names: dict[str, object]) -> object:
    """The names of ``{"0": "cat", "1": "dog"}`` in order, alone or as ``id2label``; else what was given."""
    found = names.get("id2label", names)
    if not found or not isinstance(found, dict) or set(found) != {str(index) for index in range(len(found))}:
        return names
    return [found[str(index)] for index in range(len(found))]
