"""Two processes, each with half of the training and of the meta batch, take the meta steps of one process with all of both."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from calibrant.meta import MetaLearner

LIMIT_S = 600
CASES = {
    "head": {"lookahead": "head"},
    "head-sum-clip": {"lookahead": "head", "lookahead_reduction": "sum", "lookahead_clip": 0.5, "objective": "dece"},
    "head-l2": {"lookahead": "head", "regularizer": "unitwise-l2", "objective": "nll"},
    "full": {"lookahead": "full"},
    "full-clip": {"lookahead": "full", "lookahead_clip": 0.05, "lookahead_reduction": "sum"},
}


def data() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    x, xm = torch.randn(32, 6, generator=g), torch.randn(64, 6, generator=g)
    return x.double(), torch.randint(0, 3, (32,), generator=g), xm.double(), torch.randint(0, 3, (64,), generator=g)


def train(case: str, rank: int | None) -> dict[str, Tensor]:
    torch.manual_seed(1)
    model: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    parts = data()
    if rank is not None:
        parts = tuple(tensor.chunk(2)[rank] for tensor in parts)  # type: ignore[assignment]
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    # A different draw in every process: the first one's must win.
    generator = torch.Generator().manual_seed(rank or 0)
    learner = MetaLearner(model, optimizer, every=1, generator=generator, **CASES[case])
    x, y, xm, ym = parts
    results: dict[str, Tensor] = {}
    for step in range(3):
        features, logits = learner.forward(x)
        found = learner.meta_update(features, logits, y, xm, ym, x=x)
        optimizer.zero_grad()
        learner.loss(features, logits, y).backward()
        optimizer.step()
        results[f"value{step}"] = found.value
        results |= {f"grad{step}.{name}": grad for name, grad in found.grads.items()}
    results |= {f"hyper.{name}": value for name, value in learner.hyper.items()}
    return results | {f"model.{name.removeprefix('module.')}": v.detach() for name, v in model.named_parameters()}


def work(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=LIMIT_S)
    )
    torch.save({case: train(case, rank) for case in CASES}, f"{folder}/rank{rank}.pt")
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, dict[str, Tensor]]]:
    folder: Path = tmp_path_factory.mktemp("ranks")
    torch.multiprocessing.spawn(work, args=(str(folder),), nprocs=2, join=True)
    return [torch.load(folder / f"rank{rank}.pt") for rank in (0, 1)]


@pytest.mark.parametrize("case", CASES)
def test_two_processes_take_the_meta_steps_of_one(case: str, runs: list[dict[str, dict[str, Tensor]]]) -> None:
    expected = train(case, None)
    for found in (runs[0][case], runs[1][case]):
        assert set(found) == set(expected)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-8, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")
