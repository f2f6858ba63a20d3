"""`calibrant data` as typed, against a server on the loopback interface; and training on what it fetched."""

import gzip
import hashlib
import struct
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from PIL import Image

from calibrant.cli.main import run as run_command
from calibrant.data import DATASETS, RemoteFile, mnist
from calibrant.engine.folder import load_run

TINY = ["--model", "mlp", "--device", "cpu", "--epochs", "1", "--method", "ce", "--set", "train.batch_size=8"]


def call(*arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        run_command([str(argument) for argument in arguments])
    said = capsys.readouterr()
    return ended.value.code, said.out, said.err


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        content = self.server.files[self.path.rpartition("/")[2]]
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        self.server.asked.append((self.path.rpartition("/")[2], start))
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        # While the line is bad, half of a file comes and then nothing more.
        self.wfile.write(content[start : len(content) // 2] if self.server.bad_line else content[start:])
        self.close_connection = True

    def log_message(self, *_):
        pass


def idx(array):
    content = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    return content, gzip.compress(content, mtime=0)


@pytest.fixture
def server(monkeypatch):
    """Serve a little MNIST from the loopback interface, with the tables of the package pointed to it."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (40, 28, 28)), np.arange(40) % 10, rng.integers(0, 256, (20, 28, 28)), np.arange(20) % 10]
    packed = {name: idx(array.astype(np.uint8)) for name, array in zip(mnist.MNIST_FILES, arrays, strict=True)}
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as started:
        started.daemon_threads = True
        started.files = {f"{name}.gz": gz for name, (_, gz) in packed.items()}
        started.asked, started.bad_line = [], False
        url = f"http://127.0.0.1:{started.server_port}"
        files = tuple(
            RemoteFile(f"mnist/{name}", len(gz), hashlib.md5(gz).hexdigest(), (f"{url}/{name}",))
            for name, gz in started.files.items()
        )
        monkeypatch.setitem(DATASETS._entries, "mnist", replace(DATASETS["mnist"], files=files, others=()))
        contents = {name: mnist.IdxFile(len(raw), hashlib.md5(raw).hexdigest()) for name, (raw, _) in packed.items()}
        monkeypatch.setattr(mnist, "MNIST_FILES", contents)
        thread = threading.Thread(target=started.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield started
        started.shutdown()
        thread.join()


def test_cli_data_fetch_interrupted_goes_on_and_the_set_can_be_trained_on(server, tmp_path, capsys):
    root = tmp_path / "sets"
    code, _, err = call("train", "--data", "mnist", "--data-root", root, *TINY, "--out", tmp_path / "r", capsys=capsys)
    assert code == 2
    assert "Get it with `calibrant data fetch mnist`" in err
    server.bad_line = True
    code, out, err = call("data", "fetch", "mnist", "--root", root, capsys=capsys)
    assert (code, out) == (2, "")
    assert "must give the file" in err
    assert "Run the same command again to go on where it stopped." in err
    assert [p.name for p in (root / "mnist").iterdir()] == ["train-images-idx3-ubyte.gz.part"]
    have = next((root / "mnist").iterdir()).stat().st_size
    server.bad_line, server.asked = False, []
    code, out, err = call("data", "fetch", "mnist", "--root", root, capsys=capsys)
    assert (code, err) == (0, "")
    assert server.asked[0] == ("train-images-idx3-ubyte.gz", have)
    assert out.startswith(f"mnist: {root / 'mnist' / 'train-images-idx3-ubyte.gz'}, ")
    assert sorted(p.name for p in (root / "mnist").iterdir()) == sorted(server.files)
    code, _, err = call("train", "--data", "mnist", "--data-root", root, *TINY, "--out", tmp_path / "r", capsys=capsys)
    assert (code, err) == (0, "")
    assert len(load_run(tmp_path / "r").test) == 20


def test_cli_data_fetch_changed_file_is_removed_with_one_sentence(server, tmp_path, capsys):
    name = "train-images-idx3-ubyte.gz"
    server.files[name] = server.files[name][:-1] + b"?"
    code, _, err = call("data", "fetch", "mnist", "--root", tmp_path, capsys=capsys)
    assert code == 2
    assert "must be the published file" in err
    assert len(err.splitlines()) == 1
    assert list((tmp_path / "mnist").iterdir()) == []


def test_cli_data_list_says_what_is_there(server, tmp_path, capsys):
    def lines():
        code, out, err = call("data", "list", "--root", tmp_path, capsys=capsys)
        assert (code, err) == (0, "")
        return {line.split()[0]: line for line in out.splitlines()}

    assert "embedded" in lines()["digits"]
    assert "to fetch, 170 MB" in lines()["cifar10"]
    assert "to fetch" in lines()["mnist"]
    call("data", "fetch", "mnist", "digits", "--root", tmp_path, capsys=capsys)
    assert " there " in lines()["mnist"]


def test_cli_data_unknown_name_and_no_command_are_answered(capsys):
    code, _, err = call("data", "fetch", "cifar1", capsys=capsys)
    assert code == 2
    assert "Did you mean 'cifar10'?" in err
    code, out, _ = call("data", capsys=capsys)
    assert code == 0
    assert all(word in out for word in ("list", "fetch"))


def test_cli_data_fetch_interrupted_by_hand_says_how_to_go_on(tmp_path, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("calibrant.data.source.download", interrupt)
    code, _, err = call("data", "fetch", "cifar10", "--root", tmp_path, capsys=capsys)
    assert code == 130
    assert "interrupted. The same command goes on." in err


def test_cli_train_on_an_npz_and_on_a_folder_by_path(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    images, labels = rng.integers(0, 256, (60, 8, 8, 3), dtype=np.uint8), np.arange(60) % 3
    np.savez("shapes.npz", images=images, labels=labels)
    for place, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = tmp_path / "shapes" / "abc"[label] / f"{place}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    for data in ("shapes.npz", "shapes", tmp_path / "shapes"):
        code, _, err = call("train", "--data", data, *TINY, "--out", tmp_path / "r", "--seed", 3, capsys=capsys)
        assert (code, err) == (0, "")
        run = load_run(tmp_path / "r")
        assert (len(run.test), run.test.num_classes) == (12, 3)
        (tmp_path / "r").rename(tmp_path / f"r-{len(list(tmp_path.iterdir()))}")
    code, _, err = call("train", "--data", "shapez.npz", *TINY, "--out", tmp_path / "r", capsys=capsys)
    assert code == 2
    assert "there is no such file. Did you mean shapes.npz?" in err


def test_cli_train_on_an_embedded_set_needs_no_optional_package(tmp_path, capsys, monkeypatch):
    for package in ("pooch", "requests", "ray", "plotly"):
        monkeypatch.setitem(sys.modules, package, None)
    code, _, err = call("train", "--data", "digits", *TINY, "--out", tmp_path / "r", capsys=capsys)
    assert (code, err) == (0, "")
    assert len(load_run(tmp_path / "r").test) == 500
