"""`benchmarks/train.py` runs at a tiny size on the CPU, the plain loop it compares with included, and says what it should."""

import importlib
import json
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
TINY = ["--device", "cpu", "--model", "mlp", "--examples", "400", "--batch-size", "50"]


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    # Other tests' modules may be called `train` too.
    monkeypatch.delitem(sys.modules, "train", raising=False)
    yield importlib.import_module("train")
    sys.modules.pop("train", None)


def lines_of(benchmark, capsys, *arguments):
    assert benchmark.main([*TINY, *arguments]) == 0
    return {line["program"]: line for line in map(json.loads, capsys.readouterr().out.splitlines())}


def test_benchmark_train_whole_epochs_gives_speed_first_step_and_ratio(benchmark, capsys):
    programs = ["plain", "ce", "flgamma-sece/32/1", "flgamma-sece/40/4"]
    wanted = ("--whole-epochs", "--epochs", "1", "--plain-steps", "3", "--programs", ",".join(programs))
    found = lines_of(benchmark, capsys, *wanted)
    assert list(found) == programs
    assert found["plain"]["times_plain"] == 1.0
    for line in found.values():
        assert line["images_per_second"] > 0
        assert line["first_step_seconds"] >= 0
        assert line["data"] == "random"
    ratio = found["ce"]["images_per_second"] / found["plain"]["images_per_second"]
    # Both were rounded.
    assert found["ce"]["times_plain"] == pytest.approx(ratio, rel=0.02, abs=0.02)
    assert found["ce"]["seconds_for_350_epochs"] > found["ce"]["epoch_seconds"]
    # Eight batches of random labels: nothing is learned, and nothing has gone wrong.
    assert 1.5 < found["flgamma-sece/32/1"]["loss"] < 10


def test_benchmark_train_on_the_cpu_gives_the_cost_of_a_step_beside_cross_entropy(benchmark, capsys):
    found = lines_of(benchmark, capsys, "--turns", "2")
    assert list(found) == ["ce", "flgamma-sece/128/4", "flgamma-sece/1024/4"]
    assert found["ce"]["steps_of_ce"] == 1.0
    assert all(line["processor_seconds_per_step"] >= 0 for line in found.values())


def test_benchmark_train_names_missed_limits(benchmark):
    line = {"program": "ce", "images_per_second": 44_000, "first_step_seconds": 50.0, "seconds_for_350_epochs": 700}
    found = benchmark.missed(line)
    assert len(found) == 3
    assert found[0] == "ce: 44000 < 45000 images/s"
    assert benchmark.missed({"program": "flgamma-sece/128/4", "steps_of_ce": 1.3}) == [
        "flgamma-sece/128/4: 1.3 > 1.2 steps of ce"
    ]
    assert benchmark.missed({"program": "plain", "images_per_second": 1.0, "first_step_seconds": 99.0}) == []


def test_plain_loop_moves_network_and_hyper_parameters(benchmark, tmp_path):
    args = benchmark.parse(TINY)
    args.data = benchmark.random_images(tmp_path, args)
    loop = benchmark.plain_loop(args)
    before = {name: value.detach().clone() for name, value in loop.hyper.items()}
    weight = loop.head.weight.detach().clone()
    loop.step()
    assert all(not value.detach().equal(before[name]) for name, value in loop.hyper.items())
    assert not loop.head.weight.detach().equal(weight)
    assert loop.seen > 0
