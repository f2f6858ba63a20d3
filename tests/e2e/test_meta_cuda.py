"""A step of the learner can be recorded as a CUDA graph, and replaying it does what calling it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from calibrant.backbones.resnet import BasicBlock, ResNet
from calibrant.meta import MetaLearner

pytestmark = [
    pytest.mark.cuda,
    # PyTorch gives advice about every GPU (precision, prototypes, streams); ours are no `UserWarning`.
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def build(lookahead: str, amp: torch.dtype | None) -> tuple[nn.Module, MetaLearner, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model = ResNet(BasicBlock, (1, 1), (16, 32), 10).cuda().train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator().manual_seed(0)
    learner = MetaLearner(
        model,
        optimizer,
        every=1,
        lookahead=lookahead,  # type: ignore[arg-type]
        amp=amp,
        clip=2.0,
        monitor_every=0,
        generator=generator,
    )
    x, y = torch.randn(64, 3, 16, 16, generator=generator).cuda(), torch.randint(0, 10, (64,), generator=generator).cuda()
    x_meta = torch.randn(64, 3, 16, 16, generator=generator).cuda()

    def step() -> Tensor:
        return learner.step(x, y, x_meta, y.flip(0)).loss

    return model, learner, step


def warm(step: Callable[[], Tensor]) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)


def moved(values: dict[str, Tensor], start: dict[str, Tensor]) -> float:
    """Distance of all ``values`` from ``start`` together."""
    return float(torch.stack([(values[name] - start[name]).norm() for name in start]).norm())


@pytest.mark.parametrize("amp", [None, torch.bfloat16])
@pytest.mark.parametrize("lookahead", ["head", "full"])
def test_step_cuda_graph_replays_the_step(lookahead: str, amp: torch.dtype | None) -> None:
    model, learner, step = build(lookahead, amp)
    warm(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    # What the step read while it was recorded and has dropped since goes back to the driver: a replay must not miss it.
    torch.cuda.empty_cache()
    for _ in range(4):
        graph.replay()
    twin, expected, plain = build(lookahead, amp)
    first = build(lookahead, amp)
    warm(plain)
    for _ in range(4):
        plain()
    torch.cuda.synchronize()
    hyper = learner.hyper, expected.hyper, first[1].hyper
    weights = values_of(model), values_of(twin), values_of(first[0])
    for found, wanted, start in (hyper, weights):
        # One step of seven left out, or taken twice, would be a tenth of the way or more.
        assert moved(wanted, start) > 0
        assert moved(found, wanted) < 0.05 * moved(wanted, start)


def values_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in model.named_parameters()}


def test_step_cuda_waits_for_nothing() -> None:
    _, _, step = build("head", torch.bfloat16)
    warm(step)
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert bool(torch.isfinite(loss))
