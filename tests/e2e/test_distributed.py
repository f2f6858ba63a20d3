"""Two processes that share every batch give what one gives that has all of it: training, meta steps, streamed metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant.engine.recipe import Recipe, override
from calibrant.engine.run import Run, load_run
from calibrant.engine.train import train
from calibrant.meta import MetaLearner
from calibrant.metrics.streaming import CalibrationSuite
from helpers import mixed_gaps, start_ranks

LIMIT_S = 600
# Twenty steps: 1,600 training examples in batches of 80.
TWENTY_STEPS = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "train.batch_size": "80",
    "train.epochs": "1",
    "train.device": "cpu",
    "train.precision": "float64",
    "train.select": "last",
    "data.meta": "200",
}
CASES: dict[str, dict[str, str]] = {
    "ce": {},
    "mdca": {},
    "flgamma-sece": {"method.options.every": "2"},
    "bank": {"method.name": "flgamma-sece", "method.options.every": "2", "method.options.refresh": "64"},
    # At a rate of 0.1 its gamma runs away, and a rounding grows by thirteen orders in twenty steps, in one process too.
    "paper": {"method.name": "flgamma-sece", "method.preset": "paper", "optim.lr": "0.01"},
    "full": {"method.name": "flgamma-sece", "method.options.every": "2", "method.options.lookahead": "full"},
    "ce-dece": {"train.reduction": "mean"},
    "mixup": {},
    "crl": {"train.epochs": "3"},
    # Sizes that two processes cannot share evenly.
    "adafocal": {"train.epochs": "2", "data.val": "201", "data.meta": "199"},
    # The validation part is predicted by both after epochs without an evaluation, too.
    "seldom": {"method.name": "adafocal", "train.epochs": "3", "train.eval_every_epochs": "3"},
    "patra": {"train.epochs": "3", "method.options.every": "1"},
    "averaged": {"method.name": "ce", "train.average": "ema", "train.average_decay": "0.8"},
    "phase": {"method.name": "flgamma-sece", "train.average": "phase", "train.epochs": "2", "optim.milestones_epochs": "1"},
}
# BatchNorm here sees its own process's part of a batch, so that two processes do not train as one.
APART = {
    "statistics": {"method.name": "ce", "backbone.name": "convnet"},
    "phase-statistics": {"method.name": "flgamma-sece", "backbone.name": "convnet", "train.average": "phase"},
}
LEARNERS: dict[str, dict[str, Any]] = {
    "head": {"lookahead": "head"},
    "head-sum": {"lookahead": "head", "lookahead_reduction": "sum", "objective": "dece"},
    "head-l2": {"lookahead": "head", "regularizer": "unitwise-l2", "objective": "nll"},
    "full": {"lookahead": "full"},
    "full-sum": {"lookahead": "full", "lookahead_reduction": "sum"},
    "leak": {"leak_meta_grad": True},
}
# (examples of the first process, of the second): all kept, more than are kept, and one process without any.
SHARES = {"few": (700, 1300), "many": (30_000, 41_000), "lopsided": (1500, 0)}


def recipe_of_case(case: str) -> Recipe:
    return override(Recipe(), TWENTY_STEPS | {"method.name": case} | (CASES | APART)[case])


def results_of(run: Run) -> dict[str, Tensor]:
    values = {f"model.{name}": value for name, value in run.model.state_dict().items()}
    values |= {f"hyper.{name}": value for name, value in run.hyper.items()}
    losses = torch.tensor([[record.train_loss, record.test_nll or 0.0] for record in run.history], dtype=torch.float64)
    return values | {"logits": run.test.logits, "val": run.val.logits, "losses": losses}


def meta_steps(case: str, rank: int | None) -> dict[str, Tensor]:
    """Three meta steps on a small network, with half of the batches where there is a rank."""
    g = torch.Generator().manual_seed(0)
    x, xm = torch.randn(32, 6, generator=g).double(), torch.randn(64, 6, generator=g).double()
    y, ym = torch.randint(0, 3, (32,), generator=g), torch.randint(0, 3, (64,), generator=g)
    torch.manual_seed(1)
    model: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    if rank is not None:
        x, y, xm, ym = (tensor.chunk(2)[rank] for tensor in (x, y, xm, ym))
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # A different draw in every process: the first one's must win.
    learner = MetaLearner(model, optimizer, every=1, generator=torch.Generator().manual_seed(rank or 0), **LEARNERS[case])
    results: dict[str, Tensor] = {}
    for step in range(3):
        features, logits = learner.forward(x)
        found = learner.meta_update(features, logits, y, xm, ym, x=x)
        optimizer.zero_grad()
        learner.loss(features, logits, y).backward()
        optimizer.step()
        results[f"value{step}"] = found.value
        results |= {f"grad{step}.{name}": grad for name, grad in found.grads.items()}
    results |= {f"hyper.{name}": value for name, value in learner.hyper.items()}
    return results | {f"model.{name.removeprefix('module.')}": v.detach() for name, v in model.named_parameters()}


def streamed(case: str, ranks: tuple[int, ...]) -> dict[str, Any]:
    """What a suite says of the examples of these processes."""
    probs, labels = mixed_gaps(sum(SHARES[case]), num_classes=4, seed=len(case))
    suite = CalibrationSuite(num_classes=4)
    for rank in ranks:
        first = sum(SHARES[case][:rank])
        for place in range(first, first + SHARES[case][rank], 9000):
            end = min(place + 9000, first + SHARES[case][rank])
            suite.update(probs[place:end], labels[place:end])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*was called before the ``update``")  # The process without examples.
        values = suite.compute()
        return {"values": values, "bins": suite.bins(n_bins=5).count, "local": int(suite.count[0]), "n": suite.summary().n}


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=LIMIT_S)
    )
    found = {
        "train": {case: results_of(train(recipe_of_case(case))) for case in CASES | APART},
        "meta": {case: meta_steps(case, rank) for case in LEARNERS},
        "streamed": {case: streamed(case, (rank,)) for case in SHARES},
    }
    torch.save(found, f"{folder}/rank{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    start_ranks(work, str(folder), load="calibrant.metrics.streaming")
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], *, atol: float) -> None:
    assert set(found) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-8, atol=atol, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_to_the_parameters_of_one(case: str, ranks: list[dict[str, Any]]) -> None:
    expected = results_of(train(recipe_of_case(case)))
    for rank in ranks:
        assert_same(rank["train"][case], expected, atol=1e-8)


@pytest.mark.parametrize("case", APART)
def test_two_processes_end_with_one_network_statistics_included(case: str, ranks: list[dict[str, Any]]) -> None:
    first, second = (rank["train"][case] for rank in ranks)
    assert any("running_var" in name for name in first)
    for name, value in first.items():
        assert value.equal(second[name]), name


@pytest.mark.parametrize("case", LEARNERS)
def test_two_processes_take_the_meta_steps_of_one(case: str, ranks: list[dict[str, Any]]) -> None:
    expected = meta_steps(case, None)
    for rank in ranks:
        assert_same(rank["meta"][case], expected, atol=1e-10)


@pytest.mark.parametrize("case", SHARES)
def test_two_processes_stream_to_the_numbers_of_one(case: str, ranks: list[dict[str, Any]]) -> None:
    expected = streamed(case, (0, 1))["values"]
    for size, rank in zip(SHARES[case], ranks, strict=True):
        found = rank["streamed"][case]
        assert (found["local"], found["n"], float(found["bins"].sum())) == (size, sum(SHARES[case]), sum(SHARES[case]))
        assert set(found["values"]) == set(expected)
        for key, value in expected.items():
            assert abs(float(found["values"][key] - value)) <= 1e-12, key


def test_torchrun_goes_on_with_a_run_that_one_process_began_and_writes_once(tmp_path: Path) -> None:
    out = tmp_path / "run"
    settings = {"train.epochs": "3", "method.name": "flgamma-sece+ts", "train.checkpoint_every_seconds": "0"}
    recipe = override(Recipe(), TWENTY_STEPS | settings)

    def stop(record: object) -> None:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        train(recipe, out=out, report=stop)
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "calibrant", "train", "--resume"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *command, "--out", out], env=environment, capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line.split()[1] for line in said[:2]] == ["2/3", "3/3"]
    assert len(said) == 4
    run, alone = load_run(out), train(recipe)
    assert json.loads((out / "run.json").read_text())["processes"] == 2
    assert [record.epoch for record in run.history] == [0, 1, 2]
    torch.testing.assert_close(run.test.logits, alone.test.logits, rtol=1e-8, atol=1e-8)
    assert run.temperature == pytest.approx(alone.temperature, rel=1e-8)
