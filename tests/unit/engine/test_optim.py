import pytest
import torch
from torch.optim import SGD, AdamW

from calibrant.engine.optim import build_optimizer, set_learning_rate
from calibrant.engine.recipe import OptimPart

# PyTorch advises to capture what can be captured.
pytestmark = pytest.mark.filterwarnings("ignore:This instance was constructed with capturable:UserWarning")
CUDA = pytest.param("cuda", marks=pytest.mark.cuda)


def path(make, device):
    """Where three steps along uneven gradients lead, the learning rate lowered before the last."""
    values = [torch.nn.Parameter(torch.linspace(-1, 1, 5, device=device)), torch.nn.Parameter(torch.ones(2, 3, device=device))]
    optimizer, found = make(values), []
    for step in range(3):
        if step == 2:
            set_learning_rate(optimizer, 0.03)
        for number, value in enumerate(values):
            value.grad = torch.cos(value.detach() * (step + 2) + number)
        optimizer.step()
        found += [value.detach().clone() for value in values]
    return found


def assert_same(make, reference, device):
    for found, expected in zip(path(make, device), path(reference, device), strict=True):
        # Fused and capturable updates round otherwise; on the CPU they are the same lines.
        torch.testing.assert_close(found, expected, rtol=1e-5 if device == "cuda" else 0, atol=1e-6 if device == "cuda" else 0)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_build_optimizer_adamw_steps_as_torch_does(weight_decay, device):
    def make(values):
        return build_optimizer(values, OptimPart(name="adamw", lr=0.1, weight_decay=weight_decay))

    assert_same(make, lambda values: AdamW(values, lr=0.1, weight_decay=weight_decay), device)


@pytest.mark.parametrize("device", ["cpu", CUDA])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_build_optimizer_sgd_steps_as_torch_does(momentum, nesterov, device):
    options = {"lr": 0.1, "momentum": momentum, "nesterov": nesterov, "weight_decay": 0.1}
    assert_same(lambda values: build_optimizer(values, OptimPart(**options)), lambda values: SGD(values, **options), device)
