"""Training that is stopped, killed, or whose disk is full, goes on to the same weights."""

import errno
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import calibrant.engine.run as checkpoint_module
from calibrant.engine.recipe import Recipe, override, to_toml
from calibrant.engine.train import train

TINY = {
    "data.name": "mixture",
    "backbone.name": "mlp",
    "method.name": "flgamma-sece",
    "train.batch_size": "50",
    "train.epochs": "15",
    "train.device": "cpu",
    "train.checkpoint_every_seconds": "0",
}
RECIPE = override(Recipe(), TINY)


def assert_same(first, second):
    for name, value in first.model.state_dict().items():
        assert value.equal(second.model.state_dict()[name]), name
    for name, value in first.hyper.items():
        assert value.equal(second.hyper[name]), name
    assert first.test.logits.equal(second.test.logits)
    for name, found in first.alternatives.items():
        assert (found.epoch, found.test.logits.tolist()) == (
            second.alternatives[name].epoch,
            second.alternatives[name].test.logits.tolist(),
        )
    assert [(r.epoch, r.train_loss, r.test_nll) for r in first.history] == [
        (r.epoch, r.train_loss, r.test_nll) for r in second.history
    ]


def lines_of(file):
    return len(file.read_bytes().splitlines()) if file.exists() else 0


class Hold(torch.nn.Module):
    """Hands its input on, but waits where the history of a run, named by the environment, has as many lines as it may."""

    def forward(self, inputs):
        history, _, most = os.environ.get("HOLD_AT", "").rpartition(":")
        while history and lines_of(Path(history)) >= int(most):
            time.sleep(0.05)
        return inputs


def held_net(num_classes):
    layers = (Hold(), torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU())
    return torch.nn.Sequential(*layers, torch.nn.Linear(32, num_classes))


def start_and_kill(folder, recipe, *, after):
    """Start the command, wait until it has begun to train and ``after`` seconds more, and kill it within four epochs."""
    history = folder / "history.jsonl"
    before = lines_of(history)
    # One thread, as in this process: sums of floating numbers depend on how they are split.
    places = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": places}
    environment["HOLD_AT"] = f"{history}:{before + 4}"
    command = [sys.executable, "-m", "calibrant", "train", str(recipe), "--resume", "--out", str(folder)]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        limit = time.monotonic() + 600
        while lines_of(history) <= before and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.002)
        time.sleep(after)
    finally:
        process.send_signal(signal.SIGKILL)
        said, _ = process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, said


def test_train_killed_twice_at_random_moments_ends_with_the_same_weights(tmp_path):
    recipe = override(RECIPE, {"backbone.name": "test_train_killed:held_net"})
    whole = train(recipe)
    file, folder = tmp_path / "recipe.toml", tmp_path / "run"
    file.write_text(to_toml(recipe))
    epoch_seconds = whole.history[-1].seconds / len(whole.history)
    moments = random.Random(0)
    reached = []
    for _ in range(2):
        # This falls anywhere in an epoch or in the writing of files; should this process be late, the other waits.
        start_and_kill(folder, file, after=moments.uniform(0, 3 * epoch_seconds))
        reached.append(lines_of(folder / "history.jsonl"))
    resumed = train(recipe, out=folder, resume=True)
    assert 0 < reached[0] < reached[1] < 15
    assert_same(whole, resumed)


@pytest.mark.parametrize("failing", ["replace", "write"])
def test_train_full_disk_keeps_the_last_good_checkpoint(tmp_path, monkeypatch, failing):
    recipe = override(RECIPE, {"train.epochs": "5"})
    whole = train(recipe)
    folder, calls = tmp_path / "run", []
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    replace, save = os.replace, torch.save

    def replace_until_full(source, destination):
        calls.append(destination)
        if len([name for name in calls if str(name).endswith("state.pt")]) == 3:
            raise full
        replace(source, destination)

    def save_until_full(value, file):
        calls.append(file)
        if len(calls) == 3:
            file.write(b"half of it")
            raise full
        save(value, file)

    if failing == "replace":
        monkeypatch.setattr(os, "replace", replace_until_full)
    else:
        monkeypatch.setattr(checkpoint_module.torch, "save", save_until_full)
    with pytest.raises(OSError, match="state.pt: cannot be written .No space left on device"):
        train(recipe, out=folder)
    monkeypatch.undo()
    assert [record["epoch"] for record in torch.load(folder / "state.pt")["history"]] == [0, 1]
    assert not list(folder.glob("*.tmp"))
    assert_same(whole, train(recipe, out=folder, resume=True))


def test_train_unwritable_folder_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for place in ("file", "file/run"):
        with pytest.raises(OSError, match=place):
            train(RECIPE, out=tmp_path / place)

    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    # The tests may run as a user whom permissions do not stop.
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(PermissionError, match=r"recipe.toml: cannot be written"):
        train(RECIPE, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def dropout_net(num_classes):
    layers = (torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Dropout(0.5))
    return torch.nn.Sequential(*layers, torch.nn.Linear(32, num_classes))


# Those that keep something from step to step or from epoch to epoch, and a network that draws.
@pytest.mark.parametrize(
    ("method", "network"),
    [(name, "mlp") for name in ("flgamma-sece", "crl", "adafocal", "mixup", "patra")]
    + [("ce", "test_train_killed:dropout_net")],
)
def test_train_interrupted_and_resumed_ends_with_the_same_weights(tmp_path, method, network):
    recipe = override(RECIPE, {"method.name": method, "backbone.name": network, "train.epochs": "4", "data.meta": "300"})
    recipe = override(recipe, {"train.alternatives": "true"})
    torch.manual_seed(1)
    state = torch.get_rng_state()
    whole = train(recipe)
    # The caller's own stream of random numbers does not move.
    assert torch.get_rng_state().equal(state)

    def stop(record):
        if record.epoch == 1:
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        train(recipe, out=tmp_path / "run", report=stop)
    assert lines_of(tmp_path / "run" / "history.jsonl") == 2
    torch.rand(3)
    assert_same(whole, train(recipe, out=tmp_path / "run", resume=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method.name": "focal", "method.options.gamma": "-1"}, "gamma"),
        ({"method.name": "ce", "optim.lr": "1e30"}, "the loss became nan.*`optim.lr`"),
        # One step an epoch: its loss is still a number, only the predictions after it are none.
        (
            {"method.name": "ce", "optim.lr": "1e38", "train.batch_size": "1600", "train.clip_norm": "0"},
            "no longer finite after epoch 1.*`optim.lr`",
        ),
        ({"method.name": "flgamma-sece", "optim.lr": "1e30"}, "broke down in epoch 1.*`optim.lr`"),
    ],
)
def test_train_that_ends_before_its_first_epoch_leaves_the_folder_free(tmp_path, settings, message):
    good = override(RECIPE, {"train.epochs": "1"})
    with pytest.raises((ValueError, FloatingPointError), match=message):
        train(override(good, settings), out=tmp_path / "new" / "run")
    assert not (tmp_path / "new" / "run").exists()
    assert len(train(good, out=tmp_path / "new" / "run").history) == 1
