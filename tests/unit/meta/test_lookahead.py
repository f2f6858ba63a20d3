import pytest
import torch

from calibrant.losses import cross_entropy_loss
from calibrant.meta import Batch, Regularizer, VirtualStep, head_hypergradient, virtual_sgd


class Stuck(Regularizer):
    """Has a hyper-parameter that its loss does not use."""

    def init(self, num_features, num_classes, *, bias=True, generator=None):
        return {"used": torch.ones(()), "unused": torch.ones(())}

    def loss(self, hyper, features, logits, labels, head):
        return hyper["used"] * cross_entropy_loss(logits, labels)


class Detached(Stuck):
    def loss(self, hyper, features, logits, labels, head):
        return hyper["used"].detach() * cross_entropy_loss(logits, labels)


def mean_nll(logits, labels):
    return cross_entropy_loss(logits, labels).mean()


def head_step(regularizer, hyper, objective=mean_nll, **changes):
    x, labels = torch.eye(3), torch.tensor([0, 1, 2])
    weight = torch.zeros(3, 3)
    arguments = {
        "head": {"weight": weight, "bias": torch.zeros(3)},
        "batch": Batch(x, x @ weight.T, labels),
        "meta_features": x,
        "meta_labels": labels,
        "step": VirtualStep(lr=1.0),
    }
    return head_hypergradient(regularizer, objective, hyper, **(arguments | changes))


@pytest.mark.parametrize(("regularizer", "name"), [(Stuck(), "unused"), (Detached(), "used")])
def test_head_hypergradient_hyper_parameter_without_gradient_raises(regularizer, name):
    with pytest.raises(ValueError, match=f"`{name}` receives no gradient"):
        head_step(regularizer, regularizer.init(3, 3))


def test_head_hypergradient_changes_none_of_its_arguments():
    x, labels = torch.eye(3), torch.tensor([0, 1, 2])
    weight = torch.zeros(3, 3, requires_grad=True)
    hyper = {"used": torch.tensor(2.0)}
    head_step(Stuck(), hyper, head={"weight": weight, "bias": torch.zeros(3)}, batch=Batch(x, x @ weight.T, labels))
    assert weight.grad is None
    assert weight.abs().sum() == 0
    assert float(hyper["used"]) == 2.0
    assert not hyper["used"].requires_grad


def test_head_hypergradient_half_precision_batch_is_computed_in_float32():
    g = torch.Generator().manual_seed(0)
    x, labels = torch.randn(16, 4, generator=g).bfloat16(), torch.arange(16) % 3
    weight = torch.randn(3, 4, generator=g)
    logits = x @ weight.bfloat16().T

    def step(x, logits):
        given = {"head": {"weight": weight}, "batch": Batch(x, logits, labels), "meta_features": x, "meta_labels": labels}
        return head_step(Stuck(), {"used": torch.tensor(1.0)}, **given)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = step(x, logits)
    wide = step(x.float(), logits.float())
    assert found.value.dtype == torch.float32
    assert torch.equal(found.value, wide.value)
    assert torch.equal(found.grads["used"], wide.grads["used"])


def test_virtual_sgd_moves_only_parameters_with_a_gradient():
    params = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor(3.0)}
    moved = virtual_sgd(params, {"a": torch.tensor([1.0, -1.0])}, lr=0.5)
    assert moved["a"].tolist() == [0.5, 2.5]
    assert moved["b"] is params["b"]
    assert params["a"].tolist() == [1.0, 2.0]
