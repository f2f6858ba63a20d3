"""What leaks into the network's gradient must be a gradient as autograd would have left it."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from calibrant.backbones.resnet import BasicBlock, Bottleneck, ResNet
from calibrant.meta import Batch, MetaLearner, VirtualStep
from calibrant.meta.leak import leaked_value, own_gradient
from helpers import convolve_contiguously, layout

LAST = torch.channels_last


def depthwise():
    layers = [nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.Conv2d(6, 5, 1), nn.AdaptiveAvgPool2d(1)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(5, 4))


NETWORKS = {
    "basic": lambda: ResNet(BasicBlock, (1, 1), (4, 8), 4),
    "bottleneck": lambda: ResNet(Bottleneck, (1, 1), (4, 8), 4),
    "depthwise": depthwise,
}


def leaking(model, optimizer):
    return MetaLearner(model, optimizer, every=1, leak_meta_grad=True, generator=torch.Generator().manual_seed(0))


def leaked_steps(network, *, weights, images, make, dtype=torch.float32, n=2):
    torch.manual_seed(0)
    model = NETWORKS[network]().to(dtype=dtype, memory_format=weights).train()
    optimizer = make(model.parameters())
    learner = leaking(model, optimizer)
    for _ in range(n):
        x, x_meta = (torch.randn(8, 3, 8, 8, dtype=dtype).to(memory_format=images) for _ in range(2))
        learner.step(x, torch.arange(8) % 4, x_meta, torch.arange(8) % 4)
    return model, optimizer


def momentum_sgd(parameters, **options):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("weights", "images"), [(LAST, LAST), (torch.contiguous_format, LAST)])
@pytest.mark.parametrize("contiguously", [True, False])
@pytest.mark.parametrize("network", NETWORKS)
def test_leaked_step_gradient_and_momentum_lie_as_the_parameter(network, contiguously, weights, images, dtype, monkeypatch):
    if contiguously:
        convolve_contiguously(monkeypatch)
    model, optimizer = leaked_steps(network, weights=weights, images=images, make=momentum_sgd, dtype=dtype)
    for name, value in model.named_parameters():
        assert layout(value.grad) == layout(value), name
        assert layout(optimizer.state[value]["momentum_buffer"]) == layout(value), name


# On the CPU fused optimizers go through memory as it lies, without a look at strides: another layout is another step.
@pytest.mark.parametrize("optimizer", [momentum_sgd, torch.optim.AdamW])
@pytest.mark.parametrize("weights", [LAST, torch.contiguous_format])
def test_leaked_step_fused_optimizer_steps_as_the_plain_one(weights, optimizer, monkeypatch):
    if weights is LAST:
        convolve_contiguously(monkeypatch)
    found, expected = (
        leaked_steps("basic", weights=weights, images=LAST, make=lambda p, f=fused: optimizer(p, fused=f), dtype=torch.float64)
        for fused in (True, False)
    )
    for value, wanted in zip(found[0].parameters(), expected[0].parameters(), strict=True):
        torch.testing.assert_close(value, wanted)


class Shifted(nn.Module):
    """Weight plus a shift: autograd hands both the same tensor as their gradient."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(8, 6, dtype=torch.float64))

    def forward(self, weight):
        return weight + self.shift


def test_leaked_gradient_that_two_parameters_share_is_not_added_to_twice():
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    plain.load_state_dict(model.state_dict())
    parametrize.register_parametrization(model[0], "weight", Shifted())
    x, x_meta, labels = torch.randn(9, 6).double(), torch.randn(9, 6).double(), torch.arange(9) % 3
    for network in (model, plain):
        learner = leaking(network, torch.optim.SGD(network.parameters(), lr=0.0))
        # Made once, the sum has one gradient, where two forward passes' would be added up for each part.
        with parametrize.cached():
            learner.step(x, labels, x_meta, labels)
    parts = model[0].parametrizations.weight
    assert float(plain[0].weight.grad.abs().max()) > 0
    torch.testing.assert_close(parts.original.grad, plain[0].weight.grad)
    torch.testing.assert_close(parts[0].shift.grad, plain[0].weight.grad)


def test_leaked_gradient_of_a_sparse_embedding_stays_sparse():
    def built(*, sparse):
        torch.manual_seed(0)
        return nn.Sequential(nn.Embedding(7, 6, sparse=sparse), nn.Tanh(), nn.Linear(6, 3))

    words, other, labels = torch.arange(5), torch.arange(2, 7), torch.arange(5) % 3
    models = [built(sparse=sparse) for sparse in (True, False)]
    for model in models:
        leaking(model, torch.optim.SGD(model.parameters(), lr=0.1)).step(words, labels, other, labels)
    assert models[0][0].weight.grad.is_sparse
    torch.testing.assert_close(models[0][0].weight, models[1][0].weight)


def test_leaked_gradient_is_added_to_what_is_there():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    x, x_meta, labels = torch.randn(9, 6).double(), torch.randn(9, 6).double(), torch.arange(9) % 3
    found = []
    for before in (None, 1.0):
        learner = leaking(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for value in model.parameters():
            value.grad = None if before is None else torch.full_like(value, before)
        learner.meta_update(*learner.forward(x), labels, x_meta, labels)
        found.append([value.grad for value in model.parameters()])
    for alone, added in zip(*found, strict=True):
        torch.testing.assert_close(added, alone + 1)


def test_own_gradient_is_laid_out_typed_and_stored_apart():
    value = nn.Parameter(torch.zeros(2, 3, 4, 5).to(memory_format=LAST))
    spread = torch.ones(()).double().expand(2, 3, 4, 5)
    found = own_gradient(spread, value)
    assert layout(found) == layout(value)
    assert not found.requires_grad
    assert found.equal(torch.ones(2, 3, 4, 5))
    same = torch.ones_like(value)
    assert own_gradient(same, value).data_ptr() != same.data_ptr()


class Wave:
    """A loss whose second derivative by the head has the hyper-parameter in it."""

    def loss(self, hyper, features, logits, labels, head):
        return F.cross_entropy(logits, labels, reduction="none") + (hyper["pace"] * head["weight"]).sin().sum()


def test_leaked_value_keeps_the_hyper_parameters_it_was_made_with():
    head = {"weight": torch.randn(3, 4, requires_grad=True)}
    hyper, labels = {"pace": torch.ones(3, 4)}, torch.arange(6) % 3
    x, x_meta = torch.randn(6, 4, requires_grad=True), torch.randn(6, 4)
    batch = Batch(x, F.linear(x, head["weight"]), labels)
    step = VirtualStep(lr=0.1)
    value = leaked_value(
        Wave(), F.cross_entropy, hyper, head=head, batch=batch, meta_features=x_meta, meta_labels=labels, step=step
    )
    before = torch.autograd.grad(value, [head["weight"], x], retain_graph=True)
    hyper["pace"].fill_(7.0)
    after = torch.autograd.grad(value, [head["weight"], x])
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_leaked_step_of_a_compiled_model_is_that_of_the_plain_one():
    plain = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    model.load_state_dict(plain.state_dict())
    x, x_meta, labels = torch.randn(9, 6).double(), torch.randn(9, 6).double(), torch.arange(9) % 3
    try:
        for network in (torch.compile(model, backend="aot_eager"), plain):
            leaking(network, torch.optim.SGD(network.parameters(), lr=0.1)).step(x, labels, x_meta, labels)
    finally:
        torch.compiler.reset()
    for value, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(value, expected)
