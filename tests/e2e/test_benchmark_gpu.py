"""`benchmarks/gpu.py` finds what needs a GPU and tells what came of it."""

import argparse
import importlib
import json
import sys
from pathlib import Path

import pytest


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    yield importlib.import_module("gpu")
    sys.modules.pop("gpu", None)


def test_gpu_finds_marked_tests_and_leaves_out_what_lacks_a_package(gpu, monkeypatch):
    files, lacking = gpu.marked_files()
    assert {"test_train_cuda.py", "test_meta_cuda.py"} <= {Path(file).name for file in files}
    assert lacking == {}
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "hypothesis" else find(name))
    fewer, lacking = gpu.marked_files()
    assert set(lacking.values()) == {"hypothesis"}
    assert len(fewer) + len(lacking) == len(files)


def test_gpu_commands_are_called_with_the_package_and_a_limit(gpu):
    found = gpu.call(["-c", "import calibrant, sys; print('{\"a\": 1}'); print('x'); sys.exit(3)"], limit=120)
    assert found.code == 3
    assert gpu.records(found.text) == [{"a": 1}]


def test_gpu_counts_what_failed_and_shows_why(gpu, monkeypatch, capsys):
    def ended(arguments, *, limit):
        name = Path(arguments[0]).name if arguments[0] != "-m" else "pytest"
        said = {
            "pytest": (1, "2 failed, 7 passed in 3.00s\n"),
            "meta.py": (0, '{"head_over_plain": 1.5}\n') if "--eager" in arguments else (-11, "Segmentation fault\n"),
            "train.py": (1, '{"program": "ce", "images_per_second": 1}\nmissed: ce: 1 < 45000 images/s\n'),
        }[name]
        return gpu.Ended(*said, 1.0)

    monkeypatch.setattr(gpu, "call", ended)
    assert gpu.main(["--data-root", "here"]) == 3
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    assert [(line["check"], line["ok"]) for line in lines] == [
        ("tests", False),
        ("meta", False),
        ("meta --eager", True),
        ("train", True),
        ("train", False),
    ]
    assert (lines[0]["failed"], lines[0]["passed"]) == (2, 7)
    assert lines[4]["missed"] == ["missed: ce: 1 < 45000 images/s"]
    assert "Segmentation fault" in err
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert next(gpu.run_tests(argparse.Namespace(limit=1)))["skipped"] == "pytest is not installed"
