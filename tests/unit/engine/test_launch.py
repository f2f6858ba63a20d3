"""What one process finds wrong, all find wrong: whichever speaks says the same, and none waits for another."""

from contextlib import nullcontext

import pytest
import torch

from calibrant.engine.distributed import Group, joined_group


@pytest.mark.parametrize("rank", ["0", "2"])
def test_joined_group_more_processes_than_gpus_is_the_same_sentence_in_each(rank: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", "3"), ("LOCAL_WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    said = "every process must have a GPU of its own, got 3 processes on a machine with 2. Lower `--nproc-per-node`."
    with pytest.raises(ValueError, match=said), joined_group("auto"):
        pass


def test_joined_group_without_the_number_of_processes_counts_from_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    for name, value in (("RANK", "4"), ("LOCAL_RANK", "4"), ("WORLD_SIZE", "8")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="got 5 processes on a machine with 2"), joined_group("cuda"):
        pass


@pytest.mark.parametrize("fault", [None, "here", "there"])
def test_joined_group_leaves_when_all_are_done_and_at_once_after_a_fault(
    fault: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def wait() -> None:
        done.append("wait")
        if fault == "there":
            raise RuntimeError("Connection closed by peer")

    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *_, **__: done.append("join"))
    monkeypatch.setattr(torch.distributed, "barrier", wait)
    monkeypatch.setattr(torch.distributed, "destroy_process_group", lambda: done.append("leave"))
    for name, value in (("RANK", "1"), ("LOCAL_RANK", "1"), ("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match="^no$") if fault == "here" else nullcontext(), joined_group("cpu") as group:
        done.append(f"work as {group.rank} of {group.world_size}")
        if fault == "here":
            raise ValueError("no")
    assert done == ["join", "work as 1 of 2", *(["wait"] if fault != "here" else []), "leave"]


def test_by_first_is_called_in_the_first_process_alone_and_its_fault_raised_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    wire: list[object] = []

    def share(self: Group, value: object) -> object:
        if self.leads:
            wire.append(value)
        return wire[-1]

    def refuse() -> int:
        raise FileNotFoundError("there is no such file")

    monkeypatch.setattr(Group, "share", share)
    first, second = Group(0, 2, 0), Group(1, 2, 1)
    assert first.by_first(lambda: 5) == 5
    assert second.by_first(lambda: 6) == 5
    with pytest.raises(FileNotFoundError, match="^there is no such file$"):
        first.by_first(refuse)
    with pytest.raises(ValueError, match="^there is no such file$"):
        second.by_first(lambda: 6)
    assert Group().by_first(lambda: 7) == 7
