"""The hyper-parameters' own step, and that a CUDA graph can hold a whole step of the learner."""

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from calibrant.backbones import basic, resnet
from calibrant.meta import MetaLearner, UnitwiseL2, VirtualStep
from calibrant.meta.step import Batch, leaked_value
from tracing import autocast_everywhere, trace_step


def learned(regularizer=None, **settings):
    head = nn.Linear(4, 3)
    return MetaLearner(head, torch.optim.SGD(head.parameters()), regularizer=regularizer or UnitwiseL2(), **settings)


def taken(learner):
    return float(learner.tensors()["adam.weight.step"])


def drawn(learner, seed, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    return {name: scale * torch.randn(value.shape, generator=g) for name, value in learner.hyper.items()}


def test_step_is_adams_then_the_projection():
    learner = learned(UnitwiseL2(init=0.1), meta_lr=0.05, betas=(0.9, 0.99), eps=1e-8)
    twins = {name: value.clone().requires_grad_() for name, value in learner.hyper.items()}
    adam = torch.optim.Adam(twins.values(), lr=0.05, betas=(0.9, 0.99), eps=1e-8)
    for seed in range(6):
        grads = drawn(learner, seed)
        learner.move(grads)
        for name, twin in twins.items():
            twin.grad = grads[name]
        adam.step()
        with torch.no_grad():
            for twin in twins.values():
                twin.clamp_(min=0.0)
        assert all(torch.equal(learner.hyper[name], twin) for name, twin in twins.items())
    assert any(bool((value == 0).any()) for value in learner.hyper.values())
    assert taken(learner) == 6


def test_step_down_a_gradient_that_is_not_finite_changes_nothing():
    learner = learned()
    learner.move(drawn(learner, 0))
    before = {name: value.clone() for name, value in learner.tensors().items()}
    bad = drawn(learner, 1)
    bad["weight"][0, 0] = float("inf")
    learner.move(bad)
    assert all(torch.equal(value, before[name]) for name, value in learner.tensors().items())
    assert taken(learner) == 1
    learner.move(drawn(learner, 1))
    assert taken(learner) == 2


def test_step_of_a_tiny_gradient_is_as_large_as_that_of_a_large_one():
    for scale in (1e3, 1e-9):
        learner = learned(UnitwiseL2(nonnegative=False), meta_lr=0.1)
        learner.move({name: torch.full_like(value, scale) for name, value in learner.hyper.items()})
        torch.testing.assert_close(learner.hyper["weight"], torch.full((3, 4), -0.1), rtol=2e-3, atol=0)


def test_learning_rate_is_the_settings_or_the_pace():
    assert learned(meta_lr=0.3).meta_lr == 0.3
    assert learned().meta_lr == UnitwiseL2.pace
    learner = learned()
    learner.meta_lr = 0.2
    assert learner.meta_lr == learner.adam.param_groups[0]["lr"] == 0.2


class Wave(UnitwiseL2):
    """A loss whose second derivative by the head has the hyper-parameter in it."""

    def loss(self, hyper, features, logits, labels, head):
        return F.cross_entropy(logits, labels, reduction="none") + (hyper["weight"] * head["weight"]).sin().sum()


def test_leaked_value_keeps_the_hyper_parameters_it_was_made_with():
    learner, labels = learned(Wave(init=1.0)), torch.arange(6) % 3
    head = {"weight": torch.randn(3, 4, requires_grad=True)}
    x = torch.randn(6, 4, requires_grad=True)
    given = {
        "head": head,
        "batch": Batch(x, F.linear(x, head["weight"]), labels),
        "meta_features": x.detach() + 1,
        "meta_labels": labels,
    }
    value = leaked_value(learner.regularizer, F.cross_entropy, learner.hyper, step=VirtualStep(0.1), **given)
    before = torch.autograd.grad(value, [head["weight"], x], retain_graph=True)
    learner.hyper["weight"].fill_(7.0)
    after = torch.autograd.grad(value, [head["weight"], x])
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


OPTIONS = {
    "head": {},
    "clipped": {"clip": 2.0},
    "full": {"lookahead": "full"},
    "unit-wise": {"regularizer": "unitwise-l2", "objective": "dece"},
    "smoothing": {"regularizer": "label-smoothing-per-class", "objective": "nll"},
    "paper": {"preset": "paper"},
}


@pytest.fixture
def capturable(monkeypatch):
    """Let Adam step on any device as it does on CUDA: its count and its learning rate are tensors there."""
    monkeypatch.setattr("calibrant.meta.learner._capturable", lambda device: True)
    adam = sys.modules["torch.optim.adam"]
    monkeypatch.setattr(adam, "_get_capturable_supported_devices", lambda *args, **kwargs: ["cpu", "meta"])


def build(device, **options):
    torch.manual_seed(0)
    model = resnet(basic, (1,), (4,), 3).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    learner = MetaLearner(model, optimizer, every=1, meta_lr=1e-4, monitor_every=0, **options)
    x, x_meta = torch.randn(6, 3, 8, 8, device=device), torch.randn(8, 3, 8, 8, device=device)
    y, y_meta = (torch.arange(n, device=device) % 3 for n in (6, 8))
    return learner, lambda: learner.step(x, y, x_meta, y_meta)


@pytest.mark.usefixtures("capturable")
@pytest.mark.parametrize("case", OPTIONS)
def test_learner_step_reads_only_what_stays_and_is_the_same_program_every_time(case):
    learner, step = build("cpu", **OPTIONS[case])
    for _ in range(2):
        step()
    first = trace_step(step)
    learner.meta_lr = 2e-4
    second = trace_step(step)
    assert len(first.program) > 100
    assert (first.lost, second.lost) == ([], [])
    assert first.program == second.program


@pytest.mark.usefixtures("capturable")
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
