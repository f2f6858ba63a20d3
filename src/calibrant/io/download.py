"""Downloading a file of known content: resumed where it stopped, compared with its checksum, never seen half-finished."""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

_BLOCK = 1 << 18
# A connection that breaks is taken up again at once; so many times in a row without a new byte, and it is given up.
_ATTEMPTS = 3
_AGAIN = "Run the same command again to go on where it stopped."


def file_md5(path: str | Path) -> str:
    """Return the MD5 of a file's content as hexadecimal digits (it tells whether a copy is good, not who made it)."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(
    urls: Sequence[str],
    path: str | Path,
    *,
    md5: str,
    size: int,
    report: Callable[[int], None] | None = None,
    timeout: float = 30.0,
) -> Path:
    """Make sure that ``path`` holds the file with the given checksum, downloading what is missing of it.

    What has arrived lies in ``<path>.part``, is kept when the download is interrupted in any way, and takes the place of
    ``path`` once it is whole and its checksum is right.

    Args:
        urls: Addresses (http or https) of the same file, tried in order.
        path: Where to put it; its folder is made.
        md5: MD5 of the whole file.
        size: Bytes of the whole file.
        report: Called with the number of bytes that were added (negative if some had to be thrown away).
        timeout: Seconds without an answer after which a connection counts as broken.

    Returns:
        The path. Raises ``ConnectionError`` if no address gave the file (what has arrived is kept), ``ValueError`` if its
        content is another one (and is removed), ``OSError`` if it cannot be written; each with one sentence.
    """
    final, told = Path(path), report or (lambda _: None)
    if final.is_file() and final.stat().st_size == size and file_md5(final) == md5:
        told(size)
        return final
    part = final.with_name(f"{final.name}.part")
    with _one_sentence(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        with _opened_alone(part) as handle:
            told(have := handle.seek(0, os.SEEK_END))
            if have > size:  # left by something else
                _empty(handle, told)
            _fill_from_any(handle, urls, md5=md5, size=size, told=told, timeout=timeout)
            os.fsync(handle.fileno())
            os.replace(part, final)
    return final


def _fill_from_any(
    handle: FileIO, urls: Sequence[str], *, md5: str, size: int, told: Callable[[int], None], timeout: float
) -> None:
    """Complete the open file from the first address that serves; raise what the last one said if none does."""
    for place, url in enumerate(urls):
        try:
            _fill(handle, url, size=size, told=told, timeout=timeout)
            handle.seek(0)
            found = hashlib.file_digest(handle, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            if found == md5:
                return
            _empty(handle, told)
            raise ValueError(
                f"{url}: must be the published file (MD5 {md5}), got another one (MD5 {found}), which was removed. "
                "Try again, or put the file in place by hand."
            )
        except (ConnectionError, ValueError):
            if place == len(urls) - 1:
                if handle.seek(0, os.SEEK_END) == 0:
                    Path(handle.name).unlink(missing_ok=True)
                raise


def _fill(handle: FileIO, url: str, *, size: int, told: Callable[[int], None], timeout: float) -> None:
    """Append to the open file until it has ``size`` bytes, taking up broken connections."""
    failures, most = 0, handle.seek(0, os.SEEK_END)
    while (have := handle.seek(0, os.SEEK_END)) < size:
        try:
            _transfer(handle, url, size=size, told=told, timeout=timeout)
            reason = "the connection was closed"
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416 and have:
                # The server's file ends before ours does: what we have is of something else.
                _empty(handle, told)
            elif error.code < 500:
                raise ConnectionError(f"{url}: must be there, got the answer {error.code} ({error.reason}).") from None
            reason = f"the answer {error.code} ({error.reason})"
        except ConnectionError as error:
            reason = str(error)
        arrived = handle.seek(0, os.SEEK_END)
        # Only more than ever before is progress: a server that makes us start again must not keep us for ever.
        failures, most = (0, arrived) if arrived > most else (failures + 1, most)
        if failures == _ATTEMPTS:
            raise ConnectionError(f"{url}: must give {size:,} bytes, got {arrived:,} of them ({reason}). {_AGAIN}")
    if have > size:
        _empty(handle, told)
        raise ValueError(f"{url}: must give {size:,} bytes, got more, which were removed. Try again.")


def _transfer(handle: FileIO, url: str, *, size: int, told: Callable[[int], None], timeout: float) -> None:
    """Ask once for what is missing and append what comes."""
    have = handle.seek(0, os.SEEK_END)
    # One byte more than wanted tells a longer file, and a server without end fills no disk.
    for place, block in _receive(url, have=have, most=size + 1, timeout=timeout):
        if place != have:  # the server knows no ranges
            _empty(handle, told)
        handle.write(block)
        have = place + len(block)
        told(len(block))


def _receive(url: str, *, have: int, most: int, timeout: float) -> Iterator[tuple[int, bytes]]:
    """Yield blocks and their places in the file, from ``have`` on if the server can; any failure is a ``ConnectionError``."""
    request = urllib.request.Request(url, headers={"User-Agent": "calibrant"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer:
            resumed = answer.status == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
            place = have if resumed else 0
            # `read1` hands over what has come; `read` would wait for a whole block and lose it if the connection breaks.
            while place < most and (block := answer.read1(min(_BLOCK, most - place))):
                yield place, block
                place += len(block)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as error:
        raise ConnectionError(str(getattr(error, "reason", "") or error) or type(error).__name__) from None


def _empty(handle: FileIO, told: Callable[[int], None]) -> None:
    told(-handle.seek(0, os.SEEK_END))
    handle.seek(0)
    handle.truncate()


@contextmanager
def _opened_alone(part: Path) -> Iterator[FileIO]:
    """Open a file for reading and writing at its end; raise if another process is writing it."""
    while True:
        # Unbuffered: what was received is on disk also if the process is killed.
        with part.open("a+b", buffering=0) as handle:
            _lock(handle, part)
            # The one who held it before may have finished and moved it away between opening and locking.
            if part.exists() and os.path.samestat(part.stat(), os.fstat(handle.fileno())):
                yield handle
                return


def _lock(handle: FileIO, part: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows keeps others from moving a file that is open.
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise BlockingIOError(f"{part}: must be written by one process, got another that is downloading it.") from None


@contextmanager
def _one_sentence(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.strerror is None:
            raise
        raise type(error)(f"{path}: cannot be written ({error.strerror}). Choose another folder or make room.") from None
