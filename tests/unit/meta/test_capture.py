"""A step of the learner can be recorded as a CUDA graph: it is one program, over tensors that stay where they are."""

import pytest
import torch

from calibrant.backbones.resnet import BasicBlock, ResNet
from calibrant.meta import MetaLearner
from calibrant.meta.monitor import Watch
from tracing import autocast_everywhere, trace_step

OPTIONS = {
    "head": {},
    "clipped": {"lookahead_clip": 1.0, "meta_clip": 1.0, "clip": 2.0},
    "full": {"lookahead": "full"},
    "unit-wise": {"regularizer": "unitwise-l2", "objective": "dece"},
    "smoothing": {"regularizer": "label-smoothing-non-uniform", "objective": "nll"},
    "paper": {"preset": "paper"},
}


def build(device, **options):
    torch.manual_seed(0)
    model = ResNet(BasicBlock, (1,), (4,), 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    learner = MetaLearner(model, optimizer, every=1, meta_lr=1e-4, monitor_every=0, **options)
    x, x_meta = torch.randn(6, 3, 8, 8, device=device), torch.randn(8, 3, 8, 8, device=device)
    y, y_meta = (torch.arange(n, device=device) % 3 for n in (6, 8))
    return learner, lambda: learner.step(x, y, x_meta, y_meta)


@pytest.mark.parametrize("case", OPTIONS)
def test_learner_step_reads_only_what_stays_and_is_the_same_program_every_time(case):
    _, step = build("cpu", **OPTIONS[case])
    for _ in range(2):
        step()
    first, second = trace_step(step), trace_step(step)
    assert len(first.program) > 100
    assert (first.lost, second.lost) == ([], [])
    assert first.program == second.program


@pytest.mark.parametrize("case", OPTIONS)
def test_learner_step_takes_nothing_from_the_host(case):
    # On the meta device reading a number fails, and a tensor of the host's memory is one of another device.
    learner, step = build("meta", amp=torch.bfloat16, **OPTIONS[case])
    learner._verified = True
    with autocast_everywhere():
        step()
        trace = trace_step(step)
    assert len(trace.program) > 100
    assert trace.mixed == []


def test_trace_step_finds_what_a_replay_would_miss():
    kept = {"sum": torch.zeros(3), "times": 0}

    def careless():
        kept["sum"] = kept["sum"] + 1.0
        kept["times"] += 1
        return torch.ones(3, device="meta") * torch.tensor(float(kept["times"]))

    first, second = trace_step(careless), trace_step(careless)
    # The sum of the step before, and a number that was put into the host's memory for this step.
    assert first.lost == ["aten.add.Tensor", "aten.lift_fresh.default"]
    assert first.mixed == ["aten.mul.Tensor"]
    assert trace_step(lambda: kept["sum"].add_(1.0)).lost == []
    assert first.program == second.program
    assert trace_step(lambda: kept["sum"] * kept["times"]).program != trace_step(lambda: kept["sum"] * 7).program


def test_watch_adds_up_in_place():
    watch, move = Watch().add(torch.tensor(0.5), {}), torch.tensor(0.25)
    place = watch.moved.data_ptr()
    after = watch.add(move, {})
    assert float(after.moved) == 0.75
    assert after.moved.data_ptr() == place
    assert (float(move), after.updates) == (0.25, 2)
