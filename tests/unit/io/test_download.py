import hashlib
import os
import random
import signal
import ssl
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from calibrant.io import download as module
from calibrant.io.download import download, file_md5

CONTENT = random.Random(0).randbytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


class Served(ThreadingHTTPServer):
    """One file over HTTP on the loopback interface; what it does to its clients is set on it."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content, self.ranges, self.cut, self.status, self.mute = CONTENT, True, [], None, 0.0
        # What has been sent when the line goes dead, and until when.
        self.dead_after, self.revived = None, threading.Event()
        self.asked = []

    def handle_error(self, *_):
        """Clients that leave in the middle are what these tests are about."""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}/file.bin"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        wanted = self.headers.get("Range")
        server.asked.append(wanted)
        time.sleep(server.mute)
        if server.status:
            self.send_error(server.status)
            return
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
        if start and start >= len(server.content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(server.content) - 1}/{len(server.content)}")
        self.send_header("Content-Length", str(len(server.content) - start))
        self.end_headers()
        end = min(len(server.content), start + server.cut.pop(0)) if server.cut else len(server.content)
        for place in range(start, end, 10_000):
            self.wfile.write(server.content[place : min(end, place + 10_000)])
            if server.dead_after and place + 10_000 >= server.dead_after:
                server.revived.wait()
        self.close_connection = True

    def log_message(self, *_):
        pass


@contextmanager
def serving():
    server = Served()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.revived.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def server():
    with serving() as started:
        yield started


def get(server, path, **options):
    return download([server.url], path, **{"md5": MD5, "size": len(CONTENT)} | options)


def test_download_writes_the_file_makes_its_folder_and_counts_bytes(server, tmp_path):
    seen = []
    path = get(server, tmp_path / "a" / "b" / "file.bin", report=seen.append)
    assert path.read_bytes() == CONTENT
    assert file_md5(path) == MD5
    assert sum(seen) == len(CONTENT)
    assert [p.name for p in path.parent.iterdir()] == ["file.bin"]


def test_download_of_a_file_that_is_there_asks_nothing(server, tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT)
    seen = []
    get(server, path, report=seen.append)
    assert (server.asked, seen) == ([], [len(CONTENT)])


def test_download_of_a_file_that_is_there_but_wrong_replaces_it(server, tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(CONTENT[:-1] + b"?")
    get(server, path)
    assert path.read_bytes() == CONTENT


def test_download_broken_connections_are_taken_up_where_they_stopped(server, tmp_path):
    server.cut = [100_000, 50_000]
    seen = []
    assert get(server, tmp_path / "file.bin", report=seen.append).read_bytes() == CONTENT
    assert server.asked == [None, "bytes=100000-", "bytes=150000-"]
    assert sum(seen) == len(CONTENT)


def test_download_given_up_keeps_the_part_and_goes_on_later(server, tmp_path):
    path = tmp_path / "file.bin"
    server.cut = [120_000, 0, 0, 0]
    with pytest.raises(ConnectionError, match=r"must give 300,000 bytes, got 120,000 of them .* Run the same command again"):
        get(server, path)
    assert not path.exists()
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:120_000]
    seen = []
    get(server, path, report=seen.append)
    assert server.asked[-1] == "bytes=120000-"
    assert (seen[0], sum(seen)) == (120_000, len(CONTENT))
    assert path.read_bytes() == CONTENT
    assert not (tmp_path / "file.bin.part").exists()


def test_download_server_without_ranges_starts_again(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    server.ranges = False
    seen = []
    assert get(server, tmp_path / "file.bin", report=seen.append).read_bytes() == CONTENT
    assert seen[:2] == [1000, -1000]
    assert sum(seen) == len(CONTENT)


def test_download_part_longer_than_the_file_starts_again(server, tmp_path):
    server.content = CONTENT[:1000]
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:2000])
    path = download([server.url], tmp_path / "file.bin", md5=hashlib.md5(server.content).hexdigest(), size=1000)
    assert path.read_bytes() == CONTENT[:1000]


def test_download_range_beyond_the_servers_file_starts_again(server, tmp_path):
    server.content = CONTENT[:1000]
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:2000])
    with pytest.raises(ConnectionError, match=r"must give 3,000 bytes, got 0 of them \(the answer 416"):
        download([server.url], tmp_path / "file.bin", md5=MD5, size=3000)
    assert server.asked == ["bytes=2000-", None, "bytes=1000-"]


def test_download_flaky_server_without_ranges_is_given_up(server, tmp_path):
    server.ranges = False
    server.cut = [20_000, 50_000, *[10_000, 30_000] * 50]
    with pytest.raises(ConnectionError, match="must give 300,000 bytes"):
        get(server, tmp_path / "file.bin")
    assert len(server.asked) == 5


def test_download_wrong_content_is_removed_with_one_sentence(server, tmp_path):
    server.content = CONTENT[:-1] + b"?"
    with pytest.raises(ValueError, match=rf"must be the published file \(MD5 {MD5}\), got another one .* was removed"):
        get(server, tmp_path / "file.bin")
    assert list(tmp_path.iterdir()) == []


def test_download_more_than_expected_is_cut_off_and_removed(server, tmp_path):
    server.content = CONTENT * 10
    with pytest.raises(ValueError, match="must give 300,000 bytes, got more, which were removed"):
        get(server, tmp_path / "file.bin")
    assert list(tmp_path.iterdir()) == []


def test_download_first_address_gone_second_serves(server, tmp_path):
    with serving() as other:
        other.status = 404
        path = download([other.url, server.url], tmp_path / "file.bin", md5=MD5, size=len(CONTENT))
    assert path.read_bytes() == CONTENT
    assert len(other.asked) == 1


def test_download_no_such_address_says_so_and_leaves_nothing(server, tmp_path):
    server.status = 404
    with pytest.raises(ConnectionError, match=r"file.bin: must be there, got the answer 404 \(Not Found\)"):
        get(server, tmp_path / "file.bin")
    assert list(tmp_path.iterdir()) == []


def test_download_busy_server_is_asked_three_times(server, tmp_path):
    server.status = 503
    with pytest.raises(ConnectionError, match=r"got 0 of them \(the answer 503 \(Service Unavailable\)\)"):
        get(server, tmp_path / "file.bin")
    assert len(server.asked) == 3


def test_download_nobody_answers_says_so(tmp_path):
    with serving() as gone:
        url = gone.url
    with pytest.raises(ConnectionError, match=r"must give 10 bytes, got 0 of them \(.*refused"):
        download([url], tmp_path / "file.bin", md5=MD5, size=10)


class Stalling:
    """An answer that hands over 10,000 bytes and then times out, as a line that went dead does; no clock is involved."""

    def __init__(self, answer):
        self.answer, self.left = answer, 10_000

    def __getattr__(self, name):
        return getattr(self.answer, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return self.answer.__exit__(*error)

    def read1(self, most):
        if self.left == 0:
            raise TimeoutError("timed out")
        block = self.answer.read1(min(most, self.left))
        self.left -= len(block)
        return block


def test_download_stalling_server_is_asked_for_the_rest(server, tmp_path, monkeypatch):
    server.content = CONTENT[:40_000]
    urlopen = module.urllib.request.urlopen
    monkeypatch.setattr(module.urllib.request, "urlopen", lambda *given, **options: Stalling(urlopen(*given, **options)))
    path = download([server.url], tmp_path / "file.bin", md5=hashlib.md5(server.content).hexdigest(), size=40_000)
    assert path.read_bytes() == CONTENT[:40_000]
    assert server.asked == [None, "bytes=10000-", "bytes=20000-", "bytes=30000-"]


def test_download_silent_server_is_given_up_after_the_timeout(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(CONTENT[:1000])
    server.mute = 5.0
    with pytest.raises(ConnectionError, match=r"got 1,000 of them \(.*timed out"):
        get(server, tmp_path / "file.bin", timeout=0.05)
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:1000]


def test_download_second_process_is_refused(server, tmp_path):
    with (
        module._opened_alone(tmp_path / "file.bin.part"),
        pytest.raises(BlockingIOError, match="must be written by one process"),
    ):
        get(server, tmp_path / "file.bin")
    assert get(server, tmp_path / "file.bin").read_bytes() == CONTENT


def test_download_unwritable_place_is_one_sentence(server, tmp_path):
    (tmp_path / "taken").write_text("a file, not a folder")
    with pytest.raises(OSError, match=r"cannot be written \(.*\). Choose another folder or make room"):
        get(server, tmp_path / "taken" / "file.bin")


def test_download_full_disk_is_one_sentence_and_keeps_the_part(server, tmp_path, monkeypatch):
    def fill_up(handle, *_, **__):
        handle.write(CONTENT[:500])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "_transfer", fill_up)
        with pytest.raises(OSError, match=r"cannot be written \(No space left on device\)"):
            get(server, tmp_path / "file.bin")
    assert (tmp_path / "file.bin.part").read_bytes() == CONTENT[:500]
    assert get(server, tmp_path / "file.bin").read_bytes() == CONTENT
    assert server.asked == ["bytes=500-"]


def test_download_line_that_breaks_while_reading_is_no_fault_of_the_disk(server, tmp_path, monkeypatch):
    def break_off(*_, **__):
        raise ssl.SSLError(1, "bad record")

    monkeypatch.setattr(module.urllib.request, "urlopen", break_off)
    with pytest.raises(ConnectionError, match=r"got 0 of them \(.*bad record.*\). Run the same command again"):
        get(server, tmp_path / "file.bin")


def test_download_killed_in_the_middle_goes_on_where_it_was(server, tmp_path):
    # The child waits for the rest until it is killed, however long that takes.
    server.dead_after = 100_000
    code = (
        f"from calibrant.io.download import download\ndownload([{server.url!r}], 'file.bin', md5={MD5!r}, size={len(CONTENT)})"
    )
    part = tmp_path / "file.bin.part"
    child = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path)
    deadline = time.monotonic() + 600
    while not (part.exists() and part.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    have = part.stat().st_size
    assert 0 < have < len(CONTENT)
    server.revived.set()
    path = get(server, tmp_path / "file.bin")
    assert server.asked[-1] == f"bytes={have}-"
    assert Path(path).read_bytes() == CONTENT
