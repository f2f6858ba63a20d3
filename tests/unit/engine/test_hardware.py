from contextlib import nullcontext, suppress

import pytest
import torch

from calibrant.engine.setup import Group, Hardware, choose_hardware, joined_group


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", "`device` must .*got cuda:0; `--device cpu` needs none"),
        ("gpu", "`device` must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 'gpu'"),
        ("meta", "`device` must be 'auto', 'cpu', 'cuda' or 'cuda:1', got 'meta'"),
    ],
)
def test_choose_hardware_absent_or_odd_device_is_one_sentence(device, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=message):
        choose_hardware(device=device)


def test_choose_hardware_several_processes_take_a_gpu_each_and_no_graph(monkeypatch):
    for name, value in (("is_available", True), ("device_count", 2), ("is_bf16_supported", True), ("current_device", 0)):
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    alone = choose_hardware(steps=50_000)
    assert alone[:4] == (torch.device("cuda", 0), "bf16", True, True)
    second = choose_hardware(steps=50_000, group=Group(rank=3, world_size=4, local_rank=1))
    assert second[:4] == (torch.device("cuda", 1), "bf16", False, False)
    forced = choose_hardware(graph="yes", compiled="yes", group=Group(1, 2, 1))
    assert (forced.captured, forced.compiled) == (True, True)
    assert not choose_hardware(graph="no").captured
    with pytest.raises(ValueError, match="`device` must be one of 2 CUDA devices, counted from 0, got cuda:5"):
        choose_hardware(device="cuda:5")


def test_joined_group_more_processes_than_gpus_is_one_sentence(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for name, value in (("RANK", 2), ("WORLD_SIZE", 4), ("LOCAL_RANK", 2)):
        monkeypatch.setenv(name, str(value))
    with (
        pytest.raises(ValueError, match="`device` must be one of 2 CUDA devices, counted from 0, got cuda:2"),
        joined_group("auto"),
    ):
        pass


@pytest.mark.parametrize("deterministic", [False, True])
def test_hardware_active_lets_cudnn_try_algorithms_on_a_gpu_and_leaves_the_flag_as_it_was(deterministic, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: deterministic)
    with suppress(KeyError), Hardware(torch.device("cuda", 1)).active():
        assert torch.backends.cudnn.benchmark is not deterministic
        raise KeyError
    assert not torch.backends.cudnn.benchmark
