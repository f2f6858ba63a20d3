"""A step of the learner can be recorded as a CUDA graph, and replaying it does what calling it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from calibrant.backbones.resnet import BasicBlock, ResNet
from calibrant.meta import MetaLearner

pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


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


@pytest.mark.parametrize("amp", [None, torch.bfloat16])
@pytest.mark.parametrize("lookahead", ["head", "full"])
def test_step_cuda_graph_replays_the_step(lookahead: str, amp: torch.dtype | None) -> None:
    model, learner, step = build(lookahead, amp)
    warm(step)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(4):
        graph.replay()
    twin, expected, plain = build(lookahead, amp)
    warm(plain)
    for _ in range(4):
        plain()
    torch.cuda.synchronize()
    tolerance = 1e-3 if amp is None else 3e-2
    for name, value in expected.hyper.items():
        assert float((value - init_of(lookahead)[name]).abs().max()) > 0
        torch.testing.assert_close(learner.hyper[name], value, rtol=tolerance, atol=tolerance * float(value.abs().max()))
    for name, value in twin.named_parameters():
        found = dict(model.named_parameters())[name]
        torch.testing.assert_close(found, value, rtol=tolerance, atol=tolerance * float(value.detach().abs().max()))


def init_of(lookahead: str) -> dict[str, Tensor]:
    return build(lookahead, None)[1].hyper


def test_step_cuda_waits_for_nothing() -> None:
    _, _, step = build("head", torch.bfloat16)
    warm(step)
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert bool(torch.isfinite(loss))
