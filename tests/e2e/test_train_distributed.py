"""Two processes that share every batch reach the parameters of one process that has all of it."""

import json
import os
import subprocess
import sys
from datetime import timedelta

import pytest
import torch

from calibrant.engine.folder import load_run
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.train import train

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
    "data.same_data": "true",
}
CASES = {
    "ce": {},
    "mdca": {},
    "flgamma-sece": {"method.options.every": "2"},
    # At a rate of 0.1 its gamma runs away, and a rounding grows by thirteen orders in twenty steps, in one process too.
    "paper": {"method.name": "flgamma-sece", "method.preset": "paper", "optim.lr": "0.01"},
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


def recipe_of_case(case):
    return override(Recipe(), TWENTY_STEPS | {"method.name": case} | (CASES | APART)[case])


def results(run):
    values = {f"model.{name}": value for name, value in run.model.state_dict().items()}
    values |= {f"hyper.{name}": value for name, value in run.hyper.items()}
    losses = torch.tensor([[record.train_loss, record.test_nll or 0.0] for record in run.history], dtype=torch.float64)
    return values | {"logits": run.test.logits, "val": run.val.logits, "losses": losses}


def work(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=LIMIT_S)
    )
    torch.save({case: results(train(recipe_of_case(case))) for case in CASES | APART}, f"{folder}/rank{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, args=(str(folder),), nprocs=2, join=True)
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_to_the_parameters_of_one(case, runs):
    expected = results(train(recipe_of_case(case)))
    for found in (runs[0][case], runs[1][case]):
        assert set(found) == set(expected)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-8, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("case", APART)
def test_two_processes_end_with_one_network_statistics_included(case, runs):
    first, second = (run[case] for run in runs)
    assert any("running_var" in name for name in first)
    for name, value in first.items():
        assert value.equal(second[name]), name


def launch(*arguments):
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "calibrant", *arguments]
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def test_torchrun_into_a_folder_that_holds_a_run_says_so_once(tmp_path):
    (tmp_path / "recipe.toml").write_text("")
    done = launch("train", "--data", "mixture", "--model", "mlp", "--device", "cpu", "--out", str(tmp_path))
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("calibrant:")]
    assert said == [
        f"calibrant: train: `out` must be a new folder, got {tmp_path}, which holds a run. Add `--resume` to go on with it, or "
        "name another."
    ]


def test_torchrun_goes_on_with_a_run_that_one_process_began_and_writes_once(tmp_path):
    out = tmp_path / "run"
    settings = {"train.epochs": "3", "method.name": "flgamma-sece+ts", "train.checkpoint_every_seconds": "0"}
    recipe = override(Recipe(), TWENTY_STEPS | settings)

    def stop(record):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        train(recipe, out=out, report=stop)
    done = launch("train", "--resume", "--out", str(out))
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line.split()[1] for line in said[:2]] == ["2/3", "3/3"]
    assert len(said) == 4
    run, alone = load_run(out), train(recipe)
    assert json.loads((out / "run.json").read_text())["processes"] == 2
    assert [record.epoch for record in run.history] == [0, 1, 2]
    torch.testing.assert_close(run.test.logits, alone.test.logits, rtol=1e-8, atol=1e-8)
    assert run.temperature == pytest.approx(alone.temperature, rel=1e-8)
