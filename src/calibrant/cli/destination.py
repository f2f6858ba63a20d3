"""Where a result is to be written: checked before the long work that makes it."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path


def check_destination(out: Path, endings: Collection[str]) -> None:
    """Raise before a long computation if its result could not be written.

    Args:
        out: The file to write.
        endings: Endings that its name may have, with their dots.
    """
    if out.suffix.lower() not in endings:
        raise ValueError(f"{out}: the file name must end in {', '.join(endings)}, got {out.suffix or 'no ending'!r}.")
    folder = out.resolve().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"{out}: the folder {out.parent} must exist before a file is written to it. Create it first.")
    if out.is_dir():
        raise IsADirectoryError(f"{out}: must be a file, got a folder. Add a file name to it.")
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{out}: the folder {out.parent} must be writable, got one that is not. Choose another.")
