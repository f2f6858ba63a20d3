"""Downloading a file of known content by pooch: compared with its checksum, resumed where it stopped, never seen half-done."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

# What an interrupted download loses at most.
_BLOCK = 1 << 14


def file_md5(path: str | Path) -> str:
    """Return the MD5 of a file's content as hexadecimal digits (it tells whether a copy is good, not who made it)."""
    with Path(path).open("rb") as handle:
        return hashlib.file_digest(handle, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(
    urls: Sequence[str],
    path: str | Path,
    *,
    md5: str,
    report: Callable[[int], None] | None = None,
    timeout: float = 30.0,
) -> Path:
    """Make sure that ``path`` holds the file with the given checksum, downloading what is missing of it.

    What has arrived lies in ``<path>.part``, which an interrupted download leaves behind and the next one continues.

    Args:
        urls: Addresses (http or https) of the same file, tried in order.
        path: Where to put it; its folder is made.
        md5: MD5 of the whole file.
        report: Called with the number of bytes that were added (negative if some had to be thrown away).
        timeout: Seconds without an answer after which a connection counts as broken.

    Returns:
        The path. Raises ``ConnectionError`` if no address gave the file (what has arrived is kept), ``ValueError`` if its
        content is another one (and is removed), ``OSError`` if it cannot be written; each with one sentence.
    """
    import pooch
    import requests

    final = Path(path)
    part = final.with_name(f"{final.name}.part")

    def receive(url: str, output_file: object, _: object) -> None:
        _append(url, part, report=report or (lambda _: None), timeout=timeout)
        os.replace(part, str(output_file))

    pooch.get_logger().setLevel("WARNING")
    problem: Exception = ValueError(f"{path}: needs an address to download from, got none.")
    for url in urls:
        try:
            pooch.retrieve(url, f"md5:{md5}", fname=final.name, path=final.parent, downloader=receive)
            return final
        except requests.RequestException as error:
            again = " Run the same command again to go on where it stopped." if part.exists() else ""
            problem = ConnectionError(f"{url}: must give the file, got {type(error).__name__} ({error}).{again}")
        except ValueError:
            problem = ValueError(
                f"{url}: must be the published file (MD5 {md5}), got another one, which was removed. "
                "Try again, or put the file in place by hand."
            )
        except OSError as error:
            raise type(error)(f"{path}: cannot be written ({error.strerror}). Choose another folder or make room.") from None
    raise problem


def _append(url: str, part: Path, *, report: Callable[[int], None], timeout: float) -> None:
    """Add to ``part`` what is missing of it, or write it anew if the server cannot continue."""
    import requests

    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "calibrant", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(url, headers=headers, stream=True, timeout=timeout) as answer:
        if answer.status_code == 416:  # The server's file ends before ours does: what we have is of something else.
            part.unlink()
        answer.raise_for_status()
        resumed = answer.status_code == 206
        report(have if resumed else 0)
        with part.open("ab" if resumed else "wb", buffering=0) as handle:
            for block in answer.iter_content(_BLOCK):
                handle.write(block)
                report(len(block))
