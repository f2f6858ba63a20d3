"""Hypergradients against double backward, against central differences, and against an independent library."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from calibrant.backbones import basic, resnet
from calibrant.losses import dece_penalty, sece_penalty
from calibrant.meta import REGULARIZERS, GammaFocal, LabelSmoothing, MetaLearner, Regularizer, UnitwiseL2, hypergradient
from calibrant.meta.step import Batch, VirtualStep, head_hypergradient, meta_mode, untracked

DOUBLE = torch.float64
# The table's own entries, so that a new one is tested before its author thinks of it, and variants of some.
KINDS = {name: make() for name, make in REGULARIZERS.items()} | {
    "gamma-focal-wide": GammaFocal(num_heads=9),
    "unitwise-l2-batch": UnitwiseL2(share="batch", init=0.01),
}


class Numbers(dict):
    """A head, a training batch and a meta batch in float64."""

    def __init__(self, seed=0, n=24, m=40, d=7, num_classes=5):
        g = torch.Generator().manual_seed(seed)

        def rand(*shape):
            return torch.randn(*shape, dtype=DOUBLE, generator=g)

        self.head = {"weight": rand(num_classes, d), "bias": rand(num_classes)}
        self.x, self.y = rand(n, d).abs(), torch.randint(0, num_classes, (n,), generator=g)
        self.xm, self.ym = rand(m, d).abs(), torch.randint(0, num_classes, (m,), generator=g)
        self.generator, self.shape = g, (d, num_classes)

    def hyper(self, regularizer):
        start = regularizer.init(*self.shape, generator=self.generator)
        # Off the start, where symmetries could hide a wrong term.
        return {k: v.to(DOUBLE) + 0.01 * torch.rand(v.shape, dtype=DOUBLE, generator=self.generator) for k, v in start.items()}

    def batch(self):
        return Batch(self.x, F.linear(self.x, self.head["weight"], self.head["bias"]), self.y)

    def inner(self, regularizer, reduction):
        def loss(params, hyper):
            logits = F.linear(self.x, params["weight"], params["bias"])
            values = regularizer.loss(hyper, self.x, logits, self.y, params)
            return values.mean() if reduction == "mean" else values.sum()

        return loss

    def outer(self, objective):
        return lambda params: objective(F.linear(self.xm, params["weight"], params["bias"]), self.ym)

    def closed(self, regularizer, objective, hyper, step):
        return head_hypergradient(
            regularizer,
            objective,
            hyper,
            head=self.head,
            batch=self.batch(),
            meta_features=self.xm,
            meta_labels=self.ym,
            step=step,
        )


def assert_same(found, expected, tolerance):
    assert set(found.grads) == set(expected.grads)
    torch.testing.assert_close(found.value, expected.value, rtol=tolerance, atol=0)
    for name, grad in expected.grads.items():
        assert float(grad.abs().max()) > 0
        torch.testing.assert_close(found.grads[name], grad, rtol=0, atol=tolerance * float(grad.abs().max()))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", KINDS)
def test_head_hypergradient_equals_double_backward(name, reduction):
    numbers, regularizer = Numbers(), KINDS[name]
    hyper = numbers.hyper(regularizer)
    found = numbers.closed(regularizer, sece_penalty, hyper, VirtualStep(lr=0.3, reduction=reduction))
    inner, outer = numbers.inner(regularizer, reduction), numbers.outer(sece_penalty)
    assert_same(found, hypergradient(inner, outer, numbers.head, hyper, lr=0.3), 1e-10)


def test_head_hypergradient_general_gradients_equal_the_closed_forms():
    numbers = Numbers()
    for regularizer in KINDS.values():
        hyper = {name: value.requires_grad_() for name, value in numbers.hyper(regularizer).items()}
        arguments = (hyper, numbers.x, numbers.batch().logits, numbers.y, numbers.head)
        slopes, direct = regularizer.gradients(*arguments)
        general, general_direct = Regularizer.gradients(regularizer, *arguments)
        torch.testing.assert_close(slopes, general, rtol=1e-12, atol=1e-12)
        for name, value in direct.items():
            torch.testing.assert_close(value, general_direct[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["gamma-focal", "unitwise-l2", "label-smoothing-per-class"])
def test_head_hypergradient_equals_central_differences(name):
    numbers, regularizer = Numbers(seed=1), KINDS[name]
    hyper = numbers.hyper(regularizer)
    # DECE is smooth; SECE's absolute value would put a kink between the two points now and then.
    found = numbers.closed(regularizer, dece_penalty, hyper, VirtualStep(lr=0.3))
    inner, outer = numbers.inner(regularizer, "mean"), numbers.outer(dece_penalty)
    for entry, value in hyper.items():
        way = torch.randn(value.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(3))
        ends = [
            hypergradient(inner, outer, numbers.head, hyper | {entry: value + sign * 1e-5 * way}, lr=0.3).value
            for sign in (1, -1)
        ]
        difference = float(ends[0] - ends[1]) / 2e-5
        assert float((found.grads[entry] * way).sum()) == pytest.approx(difference, rel=1e-5)


def test_head_hypergradient_equals_torchopt():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torchopt
    numbers, regularizer = Numbers(), GammaFocal()
    hyper = {name: value.requires_grad_() for name, value in numbers.hyper(regularizer).items()}
    head = nn.Linear(7, 5, dtype=DOUBLE)
    head.load_state_dict(numbers.head)
    inner = torchopt.MetaSGD(head, lr=0.3)
    inner.step(regularizer.loss(hyper, numbers.x, head(numbers.x), numbers.y, {}).mean())
    expected = torch.autograd.grad(sece_penalty(head(numbers.xm), numbers.ym), list(hyper.values()))
    found = numbers.closed(regularizer, sece_penalty, hyper, VirtualStep(lr=0.3))
    for grad, name in zip(expected, hyper, strict=True):
        torch.testing.assert_close(found.grads[name], grad, rtol=0, atol=1e-10 * float(grad.abs().max()))


class NetworkCase:
    """A network in training mode, and the hypergradient of a learner's full look-ahead two ways."""

    def __init__(self, model, shape, *, regularizer, num_classes=4, **settings):
        g = torch.Generator().manual_seed(5)
        self.model = model.to(DOUBLE).train()
        self.x, self.y = torch.randn(12, *shape, dtype=DOUBLE, generator=g), torch.randint(0, num_classes, (12,), generator=g)
        self.xm, self.ym = torch.randn(16, *shape, dtype=DOUBLE, generator=g), torch.randint(0, num_classes, (16,), generator=g)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        options = {"regularizer": regularizer, "objective": dece_penalty, "lookahead": "full", "meta_lr": 1e-9} | settings
        self.learner = MetaLearner(self.model, optimizer, generator=g, **options)
        self.network, self.settings = self.learner.network, self.learner.settings
        for value in self.learner.hyper.values():
            # Off the start, where symmetries could hide a wrong term.
            value += 0.01 * torch.rand(value.shape, dtype=DOUBLE, generator=g)
        self.hyper = {name: value.clone() for name, value in self.learner.hyper.items()}

    def forward(self, params, x):
        seen = []
        hook = self.network.head.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
        logits = functional_call(self.model, params, (x,))
        hook.remove()
        return seen[0], logits

    def inner(self, params, hyper):
        with untracked(self.model):
            features, logits = self.forward(params, self.x)
        head = {entry: params[name] for entry, name in self.network.head_names().items()}
        values = self.learner.regularizer.loss(hyper, features.detach(), logits, self.y, head)
        return values.mean() if self.settings.lookahead_reduction == "mean" else values.sum()

    def outer(self, params):
        if self.learner.average_share is not None:
            kept = dict(self.learner.shown.inner.named_parameters())
            params = {name: 0.8 * kept[name].detach() + 0.2 * value for name, value in params.items()}
        with meta_mode(self.model, self.settings.meta_bn):
            return dece_penalty(self.forward(params, self.xm)[1], self.ym)

    def reference(self, hyper=None):
        settings, hyper = self.settings, self.hyper if hyper is None else hyper
        params = {name: value.detach() for name, value in self.network.parameters().items()}
        return hypergradient(self.inner, self.outer, params, hyper, lr=settings.lookahead_lr)

    def found(self):
        with untracked(self.model):
            features, logits = self.learner.forward(self.x)
        return self.learner.meta_update(features, logits, self.y, self.xm, self.ym, x=self.x)


def small_resnet():
    torch.manual_seed(0)
    return resnet(basic, (1, 1), (4, 8), 4)


@pytest.mark.parametrize("name", ["gamma-focal", "unitwise-l2", "label-smoothing"])
def test_full_hypergradient_resnet_with_batchnorm_equals_double_backward(name):
    case = NetworkCase(small_resnet(), (3, 8, 8), regularizer=KINDS[name])
    before = {k: v.clone() for k, v in case.model.state_dict().items()}
    assert_same(case.found(), case.reference(), 1e-8)
    assert all(torch.equal(value, before[name]) for name, value in case.model.state_dict().items())


@pytest.mark.parametrize("name", ["gamma-focal", "unitwise-l2"])
def test_full_hypergradient_through_averaged_weights_equals_double_backward(name):
    average = small_resnet().to(DOUBLE).train()
    with torch.no_grad():
        for value in average.parameters():
            value.mul_(1.1)
    options = {"average": average, "average_share": lambda: torch.tensor(0.2, dtype=DOUBLE)}
    case = NetworkCase(small_resnet(), (3, 8, 8), regularizer=KINDS[name], **options)
    assert_same(case.found(), case.reference(), 1e-8)


def test_full_hypergradient_frozen_statistics_and_summed_loss_equal_double_backward():
    settings = {"meta_bn": "frozen", "lookahead_reduction": "sum", "lookahead_lr": 0.02}
    case = NetworkCase(small_resnet(), (3, 8, 8), regularizer=GammaFocal(), **settings)
    assert_same(case.found(), case.reference(), 1e-8)


def test_full_hypergradient_equals_central_differences():
    case = NetworkCase(small_resnet(), (3, 8, 8), regularizer=LabelSmoothing(form="per-class"))
    found = case.found().grads["amount"]
    for place in range(4):
        way = torch.zeros(4, dtype=DOUBLE)
        way[place] = 1e-5
        ends = [float(case.reference({"amount": case.hyper["amount"] + sign * way}).value) for sign in (1, -1)]
        assert float(found[place]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4)


def test_full_hypergradient_repeats_dropout_of_the_training_pass():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 4))
    case = NetworkCase(model, (6,), regularizer=GammaFocal())
    torch.manual_seed(7)
    found = case.found()
    after = torch.get_rng_state()
    torch.manual_seed(7)
    assert_same(found, case.reference(), 1e-8)
    assert torch.equal(after, torch.get_rng_state())


def test_full_hypergradient_attention_layer_has_a_tangent():
    class Attentive(nn.Module):
        def __init__(self):
            super().__init__()
            self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.mix(x, x, x, need_weights=False)[0].mean(1))

    torch.manual_seed(2)
    case = NetworkCase(Attentive(), (5, 8), regularizer=GammaFocal())
    # The reference's fused kernel has no second derivative either; the plain one gives the same numbers.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        expected = case.reference()
    assert_same(case.found(), expected, 1e-8)
