"""Keeping two processes from writing the same run folder."""

from __future__ import annotations

import os
from pathlib import Path


class FolderLock:
    """Holds a folder until it is closed, or its process ends in whatever way.

    Args:
        handle: Open handle of the folder, or None where folders cannot be locked.
    """

    def __init__(self, handle: int | None) -> None:
        self._handle = handle

    def close(self) -> None:
        """Let the folder go."""
        if self._handle is not None:
            os.close(self._handle)
        self._handle = None


def lock_folder(path: Path, *, where: str = "train") -> FolderLock:
    """Take a folder for this process; raises ``ValueError`` if another one has it. Systems without such locks have none.

    Args:
        path: The folder.
        where: What the message begins with.
    """
    try:
        import fcntl

        handle = os.open(path, os.O_RDONLY)
    except (ImportError, OSError):
        return FolderLock(None)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise ValueError(f"{where}: {path} is being written by another process. Wait for it, or name another folder.") from None
    except OSError:
        # Some network file systems know no locks.
        os.close(handle)
        return FolderLock(None)
    return FolderLock(handle)
