"""A run of a `MetaLearner` saved after any part of an accumulated batch goes on bit for bit."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from calibrant.meta import MetaBatches, MetaLearner

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(28, 6, generator=G), torch.randint(0, 3, (28,), generator=G)
HELD_OUT = torch.randn(48, 6, generator=G), torch.randint(0, 3, (48,), generator=G)


def build(seed: int, *, half: bool) -> tuple[nn.Module, MetaLearner]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    model.register_parameter("unused", nn.Parameter(torch.zeros(2)))
    mixed: dict[str, Any] = {"amp": torch.float16, "scaler": torch.amp.GradScaler("cpu", init_scale=2.0**10)}
    learner = MetaLearner(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        accumulate=3,
        every=1,
        leak_meta_grad=not half,
        meta_batches=MetaBatches(*HELD_OUT, batch_size=20, generator=torch.Generator().manual_seed(seed)),
        generator=torch.Generator().manual_seed(seed),
        **(mixed if half else {}),
    )
    return model, learner


def holders(model: nn.Module, learner: MetaLearner) -> list[Any]:
    return [holder for holder in (learner, model, learner.optimizer, learner.scaler) if holder is not None]


def train(learner: MetaLearner, first: int, last: int) -> None:
    for at in range(4 * first, 4 * last, 4):
        learner.step(X[at : at + 4], Y[at : at + 4])


@pytest.mark.parametrize("half", [False, True])
def test_resume_after_any_part_continues_bit_for_bit(half: bool) -> None:
    through, learner = build(0, half=half)
    train(learner, 0, 7)
    for stop in (1, 2, 3, 5):
        model, learner = build(0, half=half)
        train(learner, 0, stop)
        file = io.BytesIO()
        torch.save([holder.state_dict() for holder in holders(model, learner)], file)
        file.seek(0)
        states = torch.load(file, weights_only=True)
        assert bool(states[0]["grads"]) == (stop % 3 != 0)
        assert "unused" not in states[0]["grads"]
        again, resumed = build(7, half=half)
        again.get_parameter("unused").grad = torch.ones(2)  # Left over from before: it belongs to no part.
        for holder, state in zip(holders(again, resumed), states, strict=True):
            holder.load_state_dict(state)
        train(resumed, stop, 7)
        for name, value in through.state_dict().items():
            assert torch.equal(value, again.state_dict()[name]), (stop, name)


def test_load_state_dict_of_another_regularizer_raises_and_changes_nothing() -> None:
    _, learner = build(0, half=False)
    state = learner.state_dict()
    before = {name: value.clone() for name, value in learner.hyper.items()}
    state["tensors"] |= {"hyper.attention": torch.zeros(8, 7)}
    with pytest.raises(ValueError, match=r"`state` must hold \{'hyper.attention': \[8, 3\].*got \{'hyper.attention': \[8, 7\]"):
        learner.load_state_dict(state)
    assert all(torch.equal(value, before[name]) for name, value in learner.hyper.items())
