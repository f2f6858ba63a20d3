import errno
import sys

import pytest

import calibrant.engine.train as engine
from calibrant.engine.recipe import recipe_of, to_dict
from calibrant.engine.result import EpochRecord
from calibrant.grid import worker
from calibrant.grid.worker import run_task


def test_run_task_gives_the_run_its_command_word_by_word(tmp_path, monkeypatch):
    seen, sent = [], []

    def train(recipe, **_):
        seen.append(list(sys.argv))
        raise ValueError("enough")

    monkeypatch.setattr(sys, "argv", ["worker"])
    monkeypatch.setattr(engine, "train", train)
    recipe = recipe_of({"data": {"name": "/data/my pictures"}, "train": {"epochs": 3, "device": "cpu"}})
    run_task({"recipe": to_dict(recipe), "folder": str(tmp_path / "run"), "base": None}, send=sent.append)
    assert sent == [{"kind": "failed", "text": "enough", "again": False, "memory": False}]
    assert seen[0][:4] == ["calibrant", "train", "--data", "/data/my pictures"]
    assert seen[0][-2:] == ["--set", "train.device=cpu"]


@pytest.mark.parametrize(
    ("error", "again", "memory"),
    [
        (FloatingPointError("the loss became nan"), False, False),
        (ImportError("no such module"), False, False),
        (OSError("no space left"), True, False),
        (MemoryError("too big"), True, True),
        # As a GPU that is full says it, where torch's own allocator was not asked.
        (RuntimeError("CUDA error: out of memory"), True, True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True, True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), True, True),
        (RuntimeError("the sizes of tensors do not match"), True, False),
    ],
)
def test_run_task_tells_what_another_try_may_help(error, again, memory, tmp_path, monkeypatch):
    def train(recipe, **_):
        raise error

    sent = []
    monkeypatch.setattr(sys, "argv", ["worker"])
    monkeypatch.setattr(engine, "train", train)
    run_task({"recipe": to_dict(recipe_of({})), "folder": str(tmp_path / "run"), "base": None}, send=sent.append)
    assert [(said["kind"], said["again"], said["memory"]) for said in sent] == [("failed", again, memory)]
    assert str(error) in sent[0]["text"]


@pytest.mark.parametrize(("device", "used"), [("cuda:1", "cuda"), ("cuda", "cuda"), ("cpu", "cpu"), ("auto", "auto")])
def test_run_task_on_a_numbered_gpu_uses_the_one_that_its_process_sees(device, used, tmp_path, monkeypatch):
    seen = []

    def train(recipe, **_):
        seen.append(recipe.train.device)
        raise ValueError("enough")

    monkeypatch.setattr(sys, "argv", ["worker"])
    monkeypatch.setattr(engine, "train", train)
    recipe = recipe_of({"train": {"device": device}})
    run_task({"recipe": to_dict(recipe), "folder": str(tmp_path / "run"), "base": None}, send=lambda message: None)
    assert seen == [used]


def test_run_task_tells_of_parts_of_an_epoch_once_a_second_at_most(tmp_path, monkeypatch):
    def train(recipe, *, tick, **_):
        for now, step in ((100.0, 1), (100.9, 2), (101.0, 3)):
            monkeypatch.setattr(worker.time, "monotonic", lambda now=now: now)
            tick(2, step, 4)
        raise ValueError("enough")

    sent = []
    monkeypatch.setattr(sys, "argv", ["worker"])
    monkeypatch.setattr(engine, "train", train)
    run_task({"recipe": to_dict(recipe_of({})), "folder": str(tmp_path / "run"), "base": None}, send=sent.append)
    assert [said["epochs"] for said in sent[:-1]] == [2.25, 2.75]


def test_run_task_counts_an_epoch_as_done_once_it_is_reported(tmp_path, monkeypatch):
    def train(recipe, *, report, **_):
        report(EpochRecord(0, 0.1, 2.0))
        report(EpochRecord(1, 0.1, 1.0, val_error=0.3, val_ece=0.02))
        raise ValueError("enough")

    sent = []
    monkeypatch.setattr(sys, "argv", ["worker"])
    monkeypatch.setattr(engine, "train", train)
    run_task({"recipe": to_dict(recipe_of({})), "folder": str(tmp_path / "run"), "base": None}, send=sent.append)
    assert [(said["epochs"], said["numbers"]) for said in sent[:-1]] == [(1.0, {}), (2.0, {"val_error": 0.3, "val_ece": 0.02})]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "{folder}: cannot be written (No space left on device). Make room."),
        (
            OSError(errno.ENOSPC, "No space left on device", "a/b.npz"),
            "a/b.npz: cannot be written (No space left on device). Make room.",
        ),
        (
            OSError("train: no checkpoint. Make room, and add `--resume`."),
            "train: no checkpoint. Make room, and give the same command again.",
        ),
        (RuntimeError("a bug"), "RuntimeError: a bug"),
    ],
)
def test_run_task_says_what_helps_a_grid(error, text, tmp_path, monkeypatch):
    def train(recipe, **_):
        raise error

    sent, folder = [], str(tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["worker"])
    monkeypatch.setattr(engine, "train", train)
    run_task({"recipe": to_dict(recipe_of({"train": {"device": "cpu"}})), "folder": folder, "base": None}, send=sent.append)
    assert sent[0]["text"] == text.format(folder=folder)
