"""Checking, writing and downloading files of any kind, and small text files: JSON records and names of classes."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path, PurePath
from typing import Any, BinaryIO

_JSON_VERSION = 1
# What an interrupted download loses at most.
_BLOCK = 1 << 14


def locate(path: str | Path) -> tuple[Any, str]:
    """The file system (of fsspec) of a path or of an address such as ``s3://bucket/file``, and the place in it."""
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    # In the name of a file of this machine, "::" and "file:" mean nothing.
    filesystem, place = url_to_fs(str(path)) if is_address(path) else (LocalFileSystem(), os.path.abspath(path))
    return filesystem, place


def is_address(path: str | Path) -> bool:
    """Whether a path is an address of another file system."""
    return "://" in str(path)


@contextmanager
def reaching(path: str | Path) -> Iterator[None]:
    """Say in one sentence what libraries for addresses raise in their own ways: no credentials, no answer."""
    try:
        yield
    except (OSError, ValueError, ImportError):
        raise
    except Exception as error:
        raise OSError(f"{path}: cannot be reached: {error}") from error


def check_readable(path: str | Path, *, content: str = "predictions") -> None:
    """Raise ``OSError`` or ``ValueError`` with one sentence unless ``path`` is a file that holds something."""
    filesystem, place = locate(path)
    try:
        with reaching(path):
            found = filesystem.info(place)
    except FileNotFoundError:
        raise FileNotFoundError(f"{path}: there is no such file. Looked in {PurePath(place).parent}.") from None
    if found["type"] == "directory":
        raise IsADirectoryError(f"{path}: must be a file, got a folder. Name a file in it.")
    if found["size"] == 0:
        raise ValueError(f"{path}: must hold {content}, got an empty file. Write it again.")


def check_ending(path: str | Path, endings: Collection[str]) -> str:
    """Return the ending of a file name; raise unless it is one of these."""
    ending = Path(path).suffix.lower()
    if ending in endings:
        return ending
    raise ValueError(f"{path}: the file name must end in {', '.join(endings)}, got {ending or 'no ending'!r}.")


@contextmanager
def decoding(path: str | Path) -> Iterator[None]:
    """Turn whatever a library raises while it decodes ``path`` into one sentence; only library calls belong in the block."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise MemoryError(f"{path}: holds more than memory does") from error
        kind = Path(path).suffix.lower()
        if is_address(path):
            raise ValueError(f"{path}: cannot be read as a {kind} file: {error}") from error
        raise ValueError(f"{path}: must be a {kind} file, got one that is damaged or of another kind.") from error


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory is full, in the words of Python, numpy, pyarrow or torch."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in str(error))


@contextmanager
def atomic_writer(path: str | Path) -> Iterator[BinaryIO]:
    """Open a temporary neighbour of ``path`` for writing; it takes the place of ``path`` once the block ends well.

    Args:
        path: The file to write. A link is followed: the file that it points to is replaced, not the link.

    Yields:
        A binary handle. If the block raises, the temporary file is removed and ``path`` stays as it was. ``OSError`` with one
        sentence is raised where the folder is missing or cannot be written to.
    """
    target = Path(path).resolve()
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        for old in target.parent.glob(f".{escape(target.name)}.*.tmp"):
            # Who writes to one holds it; what nobody holds was left by a process that was killed.
            with suppress(OSError), old.open("rb") as left:
                if _hold(left):
                    old.unlink()
        with temporary.open("xb") as handle:
            _hold(handle)
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        os.replace(temporary, target)
    except OSError as error:
        if error.strerror is None:
            raise
        raise type(error)(
            f"{path}: cannot be written ({error.strerror}). The folder must exist and have room for a file of that name."
        ) from None
    finally:
        temporary.unlink(missing_ok=True)


def _hold(handle: BinaryIO) -> bool:
    """Lock a file until it is closed, where files can be locked; whether nobody else held it."""
    with suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def write_file(path: str | Path, content: str | bytes) -> None:
    """Write a whole file, which appears complete or not at all; see `atomic_writer`."""
    with atomic_writer(path) as handle:
        # A name read from a file may hold half a surrogate pair, which UTF-8 has no bytes for.
        handle.write(content if isinstance(content, bytes) else content.encode(errors="replace"))


def write_json(data: Mapping[str, object], path: str | Path, *, kind: str) -> None:
    """Write plain data, whose numbers must be finite, as a JSON file of a ``kind`` that `read_json` asks for."""
    text = json.dumps({"format": f"calibrant {kind}", "version": _JSON_VERSION, **data}, allow_nan=False)
    write_file(path, text)


def read_json(path: str | Path, *, kind: str) -> dict[str, object]:
    """Read a file that `write_json` wrote; raise ``ValueError`` or ``OSError`` with one sentence if it holds another kind."""
    check_readable(path, content=f"a {kind}")
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: must be a JSON file of a {kind}, got something else ({error}).") from None
    found = (data.get("format"), data.get("version")) if isinstance(data, dict) else None
    if found != (f"calibrant {kind}", _JSON_VERSION):
        raise ValueError(f"{path}: must be a JSON file of a {kind}, version {_JSON_VERSION}, got {found}. Update calibrant.")
    return {key: value for key, value in data.items() if key not in ("format", "version")}


def load_class_names(path: str | Path) -> tuple[str, ...]:
    """Read class names: a text file with one name a line in the order of the classes, or JSON.

    JSON is a list, or an object that has the names by index as in the ``config.json`` of Transformers (``id2label``).

    Args:
        path: The file; a name that ends in ``.json`` is read as JSON, every other as UTF-8 text.

    Returns:
        The names, without surrounding blanks. Raises ``ValueError`` or ``OSError`` with one sentence on a file that is
        missing or holds no names.
    """
    check_readable(path, content="class names")
    with suppress(ValueError, KeyError, TypeError, RecursionError):
        text = Path(path).read_text(encoding="utf-8-sig")
        is_json = Path(path).suffix.lower() == ".json"
        names = json.loads(text) if is_json else [line.strip() for line in text.rstrip().splitlines()]
        if isinstance(names, dict):
            by_index = names.get("id2label", names)
            names = [by_index[str(index)] for index in range(len(by_index))]
        if names and isinstance(names, list) and all(isinstance(name, str) for name in names):
            return tuple(names)
    raise ValueError(f"{path}: must be UTF-8 text with one class name a line, or a JSON list of names, got something else.")


def download(urls: Sequence[str], path: str | Path, *, md5: str, report: Callable[[int], None] | None = None) -> Path:
    """Make sure, by pooch, that ``path`` holds the file with the given checksum, downloading what is missing of it.

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
    problem: Exception = ValueError(f"{path}: needs an address to download from, got none.")
    for url in urls:
        try:
            pooch.retrieve(url, f"md5:{md5}", fname=final.name, path=final.parent, downloader=receive)
            return final
        except requests.RequestException as error:
            said = f"got {type(error).__name__} ({error}). Run the same command again to continue."
            problem = ConnectionError(f"{url}: must give the file, {said}")
        except ValueError as error:
            problem = ValueError(f"{url}: must be the published file. {error}")
    raise problem
