"""What trainers need of the learner: their own backward pass, loss scaling and autocast, dictionaries as inputs, one group."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from calibrant.meta import MetaBatches, MetaLearner
from calibrant.meta.batches import split_batch, to_device

X, Y = torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3
X_META, Y_META = torch.randn(32, 4, generator=torch.Generator().manual_seed(1)), torch.arange(32) % 3


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def make(model: nn.Module, optimizer: torch.optim.Optimizer | None = None, **options: Any) -> MetaLearner:
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    return MetaLearner(model, optimizer, every=1, generator=torch.Generator().manual_seed(2), **options)


def weights(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in model.parameters()])


class ScaledOptimizer(torch.optim.SGD):
    """Steps as a trainer's wrapper does: unscales (which a scaler allows once) and steps by the scaler."""

    scaler: torch.amp.GradScaler

    def step(self, closure: Any = None) -> None:
        inner = torch.optim.SGD(self.param_groups[0]["params"], lr=self.param_groups[0]["lr"])
        self.scaler.unscale_(inner)
        self.scaler.step(inner)
        self.scaler.update()


@pytest.mark.parametrize("clip", [None, 0.05])
def test_step_with_a_trainers_backward_and_scaler_takes_the_plain_step(clip: float | None) -> None:
    plain, scaled = network(), network()
    before = weights(plain)
    make(plain, clip=clip).step(X, Y, X_META, Y_META)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = ScaledOptimizer(scaled.parameters(), lr=0.1)
    optimizer.scaler = scaler
    calls: list[Tensor] = []

    def backward(loss: Tensor) -> None:
        calls.append(loss)
        scaler.scale(loss).backward()

    make(scaled, optimizer, clip=clip, scaler=scaler, backward=backward).step(X, Y, X_META, Y_META)
    assert len(calls) == 1
    if clip is not None:
        assert float((weights(plain) - before).norm()) == pytest.approx(0.1 * clip, rel=1e-3)
    torch.testing.assert_close(weights(scaled), weights(plain), rtol=1e-6, atol=1e-7)


def test_accumulated_parts_reach_a_trainers_backward_as_shares() -> None:
    model, losses = network(), []

    def backward(loss: Tensor) -> None:
        losses.append(float(loss.detach()))
        loss.backward()

    learner = make(model, accumulate=2, backward=backward)
    first, second = learner.step(X, Y, X_META, Y_META), learner.step(X, Y)
    assert losses == pytest.approx([float(first.loss) / 2, float(second.loss) / 2])
    assert (first.stepped, second.stepped) == (False, True)


def test_full_lookahead_under_a_trainers_autocast_equals_the_learners_own() -> None:
    def objective(logits: Tensor, labels: Tensor) -> Tensor:
        # A matrix product, which autocast would take in bfloat16.
        return (logits @ logits.T).square().mean()

    found = []
    for own in (True, False):
        learner = make(network(), lookahead="full", objective=objective, amp=torch.bfloat16 if own else None)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not own):
            found.append(learner.step(X, Y, X_META, Y_META))
    assert found[1].meta_value is not None
    assert found[1].meta_value.dtype == torch.float32
    torch.testing.assert_close(found[0].meta_value, found[1].meta_value, rtol=0, atol=0)
    torch.testing.assert_close(found[0].hypergradient_norm, found[1].hypergradient_norm, rtol=0, atol=0)


def test_logits_widened_by_a_trainer_are_known_as_the_heads() -> None:
    model = network()
    original = model.forward
    # As accelerate does: autocast inside, float32 outside.
    model.forward = lambda x: torch.autocast("cpu", dtype=torch.bfloat16)(original)(x).float()  # type: ignore[method-assign]
    features, logits = make(model).forward(X)
    assert (features.dtype, logits.dtype) == (torch.bfloat16, torch.float32)


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, values: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.net(values * mask.unsqueeze(1))}


def test_meta_batches_of_a_mapping_step_as_those_of_a_tensor() -> None:
    mask = (torch.arange(32) % 2).float()
    plain, named = network(), TwoInputs()
    tensors = MetaBatches(X_META * mask.unsqueeze(1), Y_META, batch_size=8, generator=torch.Generator().manual_seed(3))
    mapping = MetaBatches({"values": X_META, "mask": mask}, Y_META, batch_size=8, generator=torch.Generator().manual_seed(3))
    first = make(plain, meta_batches=tensors).step(X, Y)
    second = make(named, meta_batches=mapping).step({"values": X, "mask": torch.ones(16)}, Y)
    torch.testing.assert_close(first.meta_value, second.meta_value, rtol=0, atol=0)
    torch.testing.assert_close(weights(plain), weights(named), rtol=0, atol=0)


def test_split_batch_without_labels_raises() -> None:
    for batch in ({"ids": X}, X):
        with pytest.raises(ValueError, match=r"`batch` must be \(x, labels\) or a mapping with 'labels'"):
            split_batch(batch)


def test_to_device_moves_nested_tensors_and_leaves_the_rest() -> None:
    moved = to_device({"a": (X, "text"), "b": 3}, torch.device("meta"))
    assert moved["a"][0].device.type == "meta"
    assert moved["a"][1:] == ["text"]
    assert moved["b"] == 3
