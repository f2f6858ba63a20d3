import math

import pytest
import torch
import torch.nn.functional as F

from calibrant.losses import focal_loss
from calibrant.meta import REGULARIZERS, GammaFocal, LabelSmoothing, UnitwiseL2
from calibrant.meta.regularizers import cross_entropy_gradient


def batch(n=9, d=6, num_classes=4, dtype=torch.float32):
    g = torch.Generator().manual_seed(0)
    head = {
        "weight": torch.randn(num_classes, d, generator=g, dtype=dtype),
        "bias": torch.randn(num_classes, generator=g, dtype=dtype),
    }
    x = torch.rand(n, d, generator=g, dtype=dtype)
    return x, F.linear(x, head["weight"], head["bias"]), torch.arange(n) % num_classes, head


@pytest.mark.parametrize("name", REGULARIZERS)
def test_every_regularizer_starts_as_its_plain_loss_and_keeps_its_contract(name):
    regularizer = REGULARIZERS[name]()
    x, logits, labels, head = batch()
    hyper = regularizer.init(6, 4)
    loss = regularizer.loss(hyper, x, logits, labels, head)
    plain = (
        focal_loss(logits, labels, gamma=1.0) if name == "gamma-focal" else F.cross_entropy(logits, labels, reduction="none")
    )
    torch.testing.assert_close(loss, plain, rtol=1e-4, atol=1e-5)
    assert {n: v.shape for n, v in regularizer.project(hyper).items()} == {n: v.shape for n, v in hyper.items()}
    assert float(regularizer.speed(hyper)) > 0
    summary = regularizer.summary(hyper, features=x, head=head)
    assert summary
    assert all(value.ndim == 0 and bool(torch.isfinite(value)) for value in summary.values())
    assert regularizer.alarm({key: float(value) for key, value in summary.items()}) is None


def test_cross_entropy_gradient_equals_autograd_and_keeps_tiny_errors():
    _, logits, labels, _ = batch()
    leaf = logits.clone().requires_grad_()
    F.cross_entropy(leaf, labels, reduction="sum").backward()
    torch.testing.assert_close(cross_entropy_gradient(logits, labels), leaf.grad, rtol=1e-5, atol=1e-7)
    far = cross_entropy_gradient(torch.tensor([[30.0, 0.0]]), torch.tensor([0]))
    assert far[0, 0] == pytest.approx(-math.exp(-30), rel=1e-4)


def test_gamma_focal_features_get_no_gradient():
    x, logits, labels, head = batch()
    x.requires_grad_()
    hyper = {name: value.requires_grad_() for name, value in GammaFocal().init(6, 4).items()}
    GammaFocal().loss(hyper, x, logits, labels, head).sum().backward()
    assert x.grad is None
    assert hyper["readout"].grad is not None


def test_gamma_focal_project_keeps_every_gamma_at_the_bound():
    regularizer = GammaFocal(gamma_max=5.0)
    hyper = {name: 10 * value for name, value in regularizer.init(6, 4).items()}
    hyper = regularizer.project(hyper)
    x = batch()[0]
    gamma = regularizer.gamma(hyper, x)
    torch.testing.assert_close(gamma, torch.full((9,), 5.0))
    summary = regularizer.summary(hyper, features=x)
    assert float(summary["gamma_at_bound"]) == 1.0
    assert float(summary["gamma_mean"]) == pytest.approx(5.0, rel=1e-4)


def test_gamma_focal_alarm_speaks_of_runaway():
    regularizer = GammaFocal()
    assert regularizer.alarm({"gamma_mean": 7.9, "gamma_at_bound": 0.0}) is None
    assert "gamma runs away: its mean is 9" in regularizer.alarm({"gamma_mean": 9.0, "gamma_at_bound": 0.0})
    assert "60% of the samples are at the bound" in regularizer.alarm({"gamma_mean": 5.0, "gamma_at_bound": 0.6})


def test_unitwise_l2_loss_by_hand_per_example_and_per_batch():
    head = {"weight": torch.tensor([[2.0], [0.0]]), "bias": torch.tensor([1.0, 0.0])}
    hyper = {"weight": torch.tensor([[0.5], [9.0]]), "bias": torch.tensor([0.25, 9.0])}
    x, logits, labels = torch.ones(4, 1), torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64)
    each = UnitwiseL2().loss(hyper, x, logits, labels, head)
    torch.testing.assert_close(each, torch.full((4,), math.log(2) + 2.25))
    shared = UnitwiseL2(share="batch").loss(hyper, x, logits, labels, head)
    assert float(shared.sum()) == pytest.approx(4 * math.log(2) + 2.25)


def test_unitwise_l2_without_bias():
    hyper = UnitwiseL2(init=-1.0).init(3, 2, bias=False)
    assert list(hyper) == ["weight"]
    summary = UnitwiseL2().summary(hyper, head={"weight": torch.ones(2, 3)})
    assert float(summary["penalty"]) == -6.0
    with pytest.raises(ValueError, match="`share` must be"):
        UnitwiseL2(share="step")


def test_label_smoothing_per_class_uses_the_true_class_amount():
    smoothing = LabelSmoothing(form="per-class")
    rows = smoothing.target({"amount": torch.tensor([0.0, 0.3, 0.0])}, torch.tensor([0, 1]), num_classes=3)
    torch.testing.assert_close(rows, torch.tensor([[1.0, 0.0, 0.0], [0.1, 0.8, 0.1]]))


def test_label_smoothing_project():
    assert LabelSmoothing(form="per-class").project({"amount": torch.tensor([-0.1, 0.9])})["amount"].tolist() == [0.0, 0.5]
    with pytest.raises(ValueError, match="`form` must be"):
        LabelSmoothing(form="matrix")
