"""Downloading a file of known content by pooch: compared with its checksum, resumed where it stopped, never seen half-done."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

# What an interrupted download loses at most.
_BLOCK = 1 << 14


def download(urls: Sequence[str], path: str | Path, *, md5: str, report: Callable[[int], None] | None = None) -> Path:
    """Make sure that ``path`` holds the file with the given checksum, downloading what is missing of it.

    What has arrived lies in ``<path>.part``, which an interrupted download leaves behind and the next one continues.

    Args:
        urls: Addresses (http or https) of the same file, tried in order.
        path: Where to put it; its folder is made.
        md5: MD5 of the whole file.
        report: Called with the number of bytes that were added.

    Returns:
        The path. Raises ``ConnectionError`` if no address gave the file (what has arrived is kept), ``ValueError`` if its
        content is another one (and is removed), ``OSError`` if it cannot be written.
    """
    import pooch
    import requests

    tell = report or (lambda number: None)
    final = Path(path)
    part = final.with_name(f"{final.name}.part")

    def receive(url: str, output_file: object, _: object) -> None:
        have = part.stat().st_size if part.exists() else 0
        headers = {"User-Agent": "calibrant", "Accept-Encoding": "identity", "Range": f"bytes={have}-"}
        with requests.get(url, headers=headers, stream=True, timeout=30) as answer:
            if answer.status_code == 416:  # The server's file ends before ours does: what we have is of something else.
                part.unlink()
            answer.raise_for_status()
            resumed = answer.status_code == 206
            tell(have if resumed else 0)
            with part.open("ab" if resumed else "wb", buffering=0) as handle:
                for block in answer.iter_content(_BLOCK):
                    handle.write(block)
                    tell(len(block))
        os.replace(part, str(output_file))

    pooch.get_logger().setLevel("WARNING")
    problem: Exception | None = None
    for url in urls:
        try:
            pooch.retrieve(url, f"md5:{md5}", fname=final.name, path=final.parent, downloader=receive)
            return final
        except requests.RequestException as error:
            said = f"got {type(error).__name__} ({error}). Run the same command again to go on where it stopped."
            problem = ConnectionError(f"{url}: must give the file, {said}")
        except ValueError as error:
            problem = ValueError(f"{url}: must be the published file. {error}")
    raise problem or ValueError(f"{path}: needs an address to download from, got none.")
