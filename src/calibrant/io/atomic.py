"""Writing a file so that nobody ever sees half of it."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def atomic_writer(path: str | Path) -> Iterator[BinaryIO]:
    """Open a temporary neighbour of ``path`` for writing; it takes the place of ``path`` once the block ends well.

    Args:
        path: The file to write. A link is followed, so that the file it points to is replaced and not the link.

    Yields:
        A binary handle. If the block raises, the temporary file is removed and ``path`` stays as it was.
        ``OSError`` with one sentence is raised where the folder is missing or cannot be written to.
    """
    target = Path(path).resolve()
    if target.is_dir():
        raise IsADirectoryError(f"{path}: must be a file, got a folder. Add a file name to it.")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"{path}: the folder {target.parent} must exist before a file is written to it. Create it first."
        )
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, target)
    except OSError as error:
        if error.strerror is None:
            raise
        raise type(error)(f"{path}: cannot be written ({error.strerror}). Choose another folder or make room.") from None
    finally:
        temporary.unlink(missing_ok=True)
