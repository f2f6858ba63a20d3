"""`calibrant data` as typed, against a server on the loopback interface; training on what it fetched, and on one's own."""

import gzip
import hashlib
import shutil
import struct
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from calibrant.data import DATASETS, RemoteFile, sets
from calibrant.engine.run import load_run
from helpers import run_command as run
from helpers import serve_files

SHORT = ("--model", "mlp", "--device", "cpu", "--epochs", "1", "--set", "train.batch_size=8")
TINY = (*SHORT, "--method", "ce")
GRID = ("compare", "--data", "pictures", "--out", "out", "--jobs", "1", "--no-figures", *SHORT)
RUN = "pictures-mlp-ce-seed0"


def idx(array):
    content = struct.pack(">HBB", 0, 8, array.ndim) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()
    return content, gzip.compress(content, mtime=0)


@pytest.fixture
def server(monkeypatch):
    """Serve a little MNIST from the loopback interface, with the tables of the package pointed to it."""
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (40, 28, 28)), np.arange(40) % 10, rng.integers(0, 256, (20, 28, 28)), np.arange(20) % 10]
    packed = {name: idx(array.astype(np.uint8)) for name, array in zip(sets.MNIST_FILES, arrays, strict=True)}
    with serve_files({f"{name}.gz": gz for name, (_, gz) in packed.items()}) as started:
        files = tuple(
            RemoteFile(f"mnist/{name}", len(gz), hashlib.md5(gz).hexdigest(), (f"{started.address}/{name}",))
            for name, gz in started.files.items()
        )
        monkeypatch.setitem(DATASETS._entries, "mnist", replace(DATASETS["mnist"], files=files, others=()))
        sums = {name: [hashlib.md5(content).hexdigest() for content in pair] for name, pair in packed.items()}
        contents = {name: (md5, 0, packed_md5) for name, (md5, packed_md5) in sums.items()}
        monkeypatch.setattr(sets, "MNIST_FILES", contents)
        yield started


def test_cli_data_fetch_interrupted_goes_on_and_the_set_can_be_trained_on(server, tmp_path, capsys):
    root = tmp_path / "sets"
    train = ("train", "--data", "mnist", "--data-root", root, *TINY, "--out", tmp_path / "r")
    code, _, err = run(capsys, *train)
    assert (code, "`calibrant data fetch mnist`" in err) == (2, True)
    assert "to fetch" in listed(root, capsys)["mnist"]
    server.cut = [len(server.files["train-images-idx3-ubyte.gz"]) // 2]
    code, out, err = run(capsys, "data", "fetch", "mnist", "--root", root)
    assert (code, out) == (2, "")
    assert "Run the same command again" in err
    assert [p.name for p in (root / "mnist").iterdir()] == ["train-images-idx3-ubyte.gz.part"]
    have = next((root / "mnist").iterdir()).stat().st_size
    server.asked.clear()
    code, out, err = run(capsys, "data", "fetch", "mnist", "digits", "--root", root)
    assert (code, err) == (0, "")
    assert server.asked[0] == f"bytes={have}-"
    assert out.startswith(f"mnist: {root / 'mnist' / 'train-images-idx3-ubyte.gz'}, ")
    assert sorted(p.name for p in (root / "mnist").iterdir()) == sorted(server.files)
    assert " there " in listed(root, capsys)["mnist"]
    code, _, err = run(capsys, *train)
    assert (code, err) == (0, "")
    assert len(load_run(tmp_path / "r").test) == 20


def listed(root, capsys):
    code, out, err = run(capsys, "data", "list", "--root", root)
    assert (code, err) == (0, "")
    lines = {line.split()[0]: line for line in out.splitlines()}
    assert "embedded" in lines["digits"]
    assert "to fetch, 170 MB" in lines["cifar10"]
    return lines


def test_cli_data_unknown_name_and_no_command_are_answered(capsys):
    code, _, err = run(capsys, "data", "fetch", "cifar1")
    assert (code, "Did you mean 'cifar10'?" in err) == (2, True)
    code, out, _ = run(capsys, "data")
    assert code == 0
    assert all(word in out for word in ("list", "fetch"))


def test_cli_train_on_an_embedded_set_needs_no_optional_package(tmp_path, capsys, monkeypatch):
    for package in ("pooch", "requests", "ray", "plotly"):
        monkeypatch.setitem(sys.modules, package, None)
    code, _, err = run(capsys, "train", "--data", "digits", *TINY, "--set", "train.batch_size=100", "--out", tmp_path / "r")
    assert (code, err) == (0, "")
    assert len(load_run(tmp_path / "r").test) == 500


def draw(root, *, seed=0, classes=2, each=20):
    """Make a folder of class folders, and an .npz of the same pictures, anew."""
    shutil.rmtree(root, ignore_errors=True)
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), each)
    images = (random.integers(0, 120, (len(labels), 6, 6, 3)) + 60 * labels[:, None, None, None]).astype(np.uint8)
    for number, (image, label) in enumerate(zip(images, labels, strict=True)):
        path = root / f"class{label}" / f"{number:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    np.savez(root.with_suffix(".npz"), images=images, labels=labels)


def test_cli_train_on_an_npz_and_on_a_folder_by_path(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "shapes", classes=3)
    for place, data in enumerate(("shapes.npz", "shapes", tmp_path / "shapes")):
        out = tmp_path / f"run{place}"
        code, _, err = run(capsys, "train", "--data", data, *TINY, "--out", out, "--seed", 3)
        assert (code, err) == (0, "")
        test = load_run(out).test
        assert (len(test), test.num_classes) == (12, 3)
    code, _, err = run(capsys, "train", "--data", "shapez.npz", *TINY, "--out", tmp_path / "r")
    assert (code, "shapez.npz" in err) == (2, True)


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def place(tmp_path, monkeypatch, capsys):
    """A folder with pictures and a finished grid of one run on them."""
    monkeypatch.chdir(tmp_path)
    draw(tmp_path / "pictures")
    code, out, err = run(capsys, *GRID, "--methods", "ce")
    assert (code, "1/1" in err or "1/1" in out) == (0, True)
    return tmp_path


def test_commands_notice_pictures_that_changed_and_go_on_with_the_old_ones(place, capsys):
    before = content(place / "out")
    for change in ({"seed": 1}, {"each": 25}, {"classes": 3}):
        draw(place / "pictures", **change)
        for methods in ("ce", "ce,focal"):
            code, _, err = run(capsys, *GRID, "--methods", methods)
            assert (code, len(err.strip().splitlines())) == (2, 1)
            assert "`data` must be what" in err
            assert RUN in err
    code, _, err = run(capsys, "train", "--resume", "--out", f"out/runs/{RUN}")
    assert (code, "`data` must be what" in err) == (2, True)
    assert content(place / "out") == before
    train = ("train", "--data", "pictures", "--method", "ce", "--seed", "1", "--out", "other", *SHORT)
    assert run(capsys, *train)[0] == 0
    code, _, err = run(capsys, "report", "--run", "out/runs", "--run", "other", "--out", "report.html")
    assert (code, "`--run` must be about the same test examples" in err) == (2, True)
    assert not (place / "report.html").exists()
    draw(place / "pictures")
    code, out, _ = run(capsys, *GRID, "--methods", "ce,focal")
    assert code == 0
    assert {"CE", "Focal"} <= {line.split()[0] for line in out.splitlines() if line.strip()}
