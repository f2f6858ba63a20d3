"""Downloads from a server on the loopback interface that breaks off, lies and refuses."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from calibrant.io.files import download
from helpers import serve_files

CONTENT = random.Random(0).randbytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def server() -> Iterator[Any]:
    with serve_files({"file.bin": CONTENT}) as started:
        yield started


def get(server: Any, path: Path, **options: Any) -> Path:
    return download([f"{server.address}/file.bin"], path, md5=MD5, **options)


def test_download_makes_the_folder_counts_bytes_and_asks_no_more(server: Any, tmp_path: Path) -> None:
    seen: list[int] = []
    path = get(server, tmp_path / "a" / "b" / "file.bin", report=seen.append)
    assert path.read_bytes() == CONTENT
    assert sum(seen) == len(CONTENT)
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]
    get(server, path)
    assert len(server.asked) == 1
    path.write_bytes(CONTENT[:-1] + b"?")
    assert get(server, path).read_bytes() == CONTENT


@pytest.mark.parametrize("ranges", [True, False])
def test_download_broken_off_goes_on_where_it_stopped_or_starts_again(server: Any, tmp_path: Path, ranges: bool) -> None:
    server.cut, server.ranges, path = [120_000], ranges, tmp_path / "file.bin"
    with pytest.raises(ConnectionError, match=r"must give the file, got .* Run the same command again"):
        get(server, path)
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin.part"]
    have = (tmp_path / "file.bin.part").stat().st_size
    assert 100_000 < have <= 120_000
    seen: list[int] = []
    assert get(server, path, report=seen.append).read_bytes() == CONTENT
    assert server.asked == ["bytes=0-", f"bytes={have}-"]
    assert sum(seen) == len(CONTENT)
    assert [p.name for p in tmp_path.iterdir()] == ["file.bin"]


def test_download_part_of_something_longer_is_thrown_away(server: Any, tmp_path: Path) -> None:
    (tmp_path / "file.bin.part").write_bytes(2 * CONTENT)
    with pytest.raises(ConnectionError, match="416"):
        get(server, tmp_path / "file.bin")
    assert get(server, tmp_path / "file.bin").read_bytes() == CONTENT


def test_download_wrong_content_is_removed_with_one_sentence(server: Any, tmp_path: Path) -> None:
    server.files["file.bin"] = CONTENT[:-1] + b"?"
    with pytest.raises(ValueError, match=rf"must be the published file.*{MD5}"):
        get(server, tmp_path / "file.bin")
    assert list(tmp_path.iterdir()) == []


def test_download_tries_every_address_in_order(server: Any, tmp_path: Path) -> None:
    urls = [f"{server.address}/gone.bin", f"{server.address}/file.bin"]
    assert download(urls, tmp_path / "file.bin", md5=MD5).read_bytes() == CONTENT
    with pytest.raises(ConnectionError, match=r"gone.bin: must give the file, got HTTPError \(404"):
        download(urls[:1], tmp_path / "other.bin", md5=MD5)
    with pytest.raises(ConnectionError, match=r"must give the file, got ConnectionError"):
        download(["http://127.0.0.1:9/file.bin"], tmp_path / "other.bin", md5=MD5)
    assert not (tmp_path / "other.bin").exists()


def test_download_unwritable_place_is_one_sentence(server: Any, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(OSError, match="taken"):
        get(server, tmp_path / "taken" / "file.bin")
