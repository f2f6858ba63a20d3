"""The programs in ``benchmarks`` run at a tiny size on the CPU and say what they should."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
TINY = ["--device", "cpu", "--model", "mlp", "--examples", "400", "--batch-size", "50"]


@pytest.fixture
def program(monkeypatch, request):
    """The program that a test is marked with by its parameter."""
    monkeypatch.syspath_prepend(str(FOLDER))
    # Other tests' modules may be called `train` too.
    monkeypatch.delitem(sys.modules, request.param, raising=False)
    yield importlib.import_module(request.param)
    sys.modules.pop(request.param, None)


def of(name):
    return pytest.mark.parametrize("program", [name], indirect=True)


@of("train")
def test_train_gives_speed_first_step_and_ratio_to_the_plain_loop(program, capsys):
    programs = ["plain", "ce", "flgamma-sece/32/1"]
    wanted = ("--whole-epochs", "--epochs", "1", "--plain-steps", "3", "--programs", ",".join(programs))
    assert program.main([*TINY, *wanted]) == 0
    found = {line["program"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}
    assert list(found) == programs
    assert found["plain"]["times_plain"] == 1.0
    assert all(line["images_per_second"] > 0 and line["first_step_seconds"] >= 0 for line in found.values())
    ratio = found["ce"]["images_per_second"] / found["plain"]["images_per_second"]
    # Both were rounded.
    assert found["ce"]["times_plain"] == pytest.approx(ratio, rel=0.02, abs=0.02)
    # Eight batches of random labels: nothing is learned, and nothing has gone wrong.
    assert 1.5 < found["flgamma-sece/32/1"]["loss"] < 10


@of("train")
def test_train_names_missed_limits(program):
    line = {"program": "ce", "images_per_second": 44_000, "first_step_seconds": 50.0, "seconds_for_350_epochs": 700}
    assert len(program.missed(line)) == 3
    assert len(program.missed({"program": "flgamma-sece", "steps_of_ce": 1.3})) == 1
    assert program.missed({"program": "plain", "images_per_second": 1.0, "first_step_seconds": 99.0}) == []


@of("gpu")
def test_gpu_finds_marked_tests_and_leaves_out_what_lacks_a_package(program, monkeypatch):
    files, lacking = program.marked_files()
    assert "test_cuda.py" in {Path(file).name for file in files}
    assert lacking == {}
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "hypothesis" else find(name))
    fewer, lacking = program.marked_files()
    assert set(lacking.values()) == {"hypothesis"}
    assert len(fewer) + len(lacking) == len(files)


@of("gpu")
def test_gpu_counts_what_failed_and_shows_why(program, monkeypatch, capsys):
    def ended(arguments, *, limit):
        name = Path(arguments[0]).name if arguments[0] != "-m" else "pytest"
        said = {
            "pytest": (1, "2 failed, 7 passed in 3.00s\n"),
            "meta.py": (0, '{"head_over_plain": 1.5}\n') if "--eager" in arguments else (-11, "Segmentation fault\n"),
            "train.py": (1, '{"program": "ce", "images_per_second": 1}\nmissed: ce: 1 < 45000 images/s\n'),
        }[name]
        return program.Ended(*said, 1.0)

    monkeypatch.setattr(program, "call", ended)
    assert program.main(["--data-root", "here"]) == 3
    out, err = capsys.readouterr()
    lines = [json.loads(line) for line in out.splitlines()]
    checks = [("tests", False), ("meta", False), ("meta --eager", True), ("train", True), ("train", False)]
    assert [(line["check"], line["ok"]) for line in lines] == checks
    assert (lines[0]["failed"], lines[0]["passed"]) == (2, 7)
    assert lines[4]["missed"] == ["missed: ce: 1 < 45000 images/s"]
    assert "Segmentation fault" in err


@of("choice")
def test_choice_leaves_calibrated_models_alone_and_keeps_what_others_gain(program, capsys):
    # A sure model makes some ten mistakes in 300 examples: with standard errors alone, one draw in ten was harmed.
    wanted = ("--draws", "20", "--planted-draws", "3", "--classes", "2", "--sizes", "300", "1000")
    assert program.main([*wanted, "--methods", "temperature", "spline", "platt", "beta"]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["harmed"] <= 0.05 for line in found if "harmed" in line] == [True] * 4
    assert min(line["kept"] for line in found if "kept" in line) >= 0.9


@pytest.mark.skipif(importlib.util.find_spec("psutil") is None, reason="psutil is not installed")
@of("scale")
def test_scale_reads_all_rows_and_says_how_fast(program, capsys, monkeypatch):
    monkeypatch.setattr(program, "FILE_ROWS", 2000)
    assert program.main(["--rows", "5000", "--classes", "3", "--no-ray"]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["way"], line["rows"], line["difference"]) == ("one process", 5000, 0.0)
    assert line["largest_process_mb"] > 50
