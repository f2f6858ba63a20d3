"""Training on a GPU: captured steps do what called ones do, alone, with NCCL inside, and two processes do what one does.

And a step of the learner, recorded as a CUDA graph, does what calling it does.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from calibrant.backbones import basic, resnet
from calibrant.engine.recipe import Recipe, override
from calibrant.engine.run import load_run
from calibrant.engine.setup import Group
from calibrant.engine.train import Assembly, evaluate_shift, run_epoch, train
from calibrant.meta import MetaLearner
from calibrant.meta.step import gather

pytestmark = [
    pytest.mark.cuda,
    # PyTorch gives advice about every GPU (precision, prototypes, streams); ours are no `UserWarning`.
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

TINY = {
    "data.name": "mixture",
    "backbone.name": "convnet",
    "train.batch_size": "80",
    "train.epochs": "2",
    "train.device": "cuda",
    "train.precision": "float64",
    "train.compile": "no",
    "train.select": "last",
    "data.meta": "200",
}
# Those that carry state from step to step, or from epoch to epoch.
CASES = {
    "ce": {},
    "flgamma-sece": {"method.options.every": "2"},
    "scheduled": {"method.name": "flgamma-sece", "method.options.meta_schedule": "constant"},
    # At the usual learning rate this run is chaotic: what differs by 1e-14 differs by a tenth of a logit two epochs later.
    # And a captured Adam counts its steps in float32, so that 1 - 0.999 is off by 6e-5 of itself: gamma must not move far.
    "paper": {"method.name": "flgamma-sece", "method.preset": "paper", "optim.lr": "0.01", "method.options.meta_lr": "1e-5"},
    "ce-dece": {},
    "mixup": {},
    "crl": {},
    "adafocal": {},
    "patra": {"method.options.every": "1"},
    "averaged": {"method.name": "ce", "train.average": "ema"},
    "averaged-meta": {"method.name": "flgamma-sece", "method.options.every": "2", "train.average": "ema"},
    "full": {"method.name": "flgamma-sece", "method.options.lookahead": "full", "method.options.every": "2"},
    "phase": {"method.name": "flgamma-sece", "train.average": "phase", "optim.milestones_epochs": "1"},
    "adamw": {"method.name": "ce", "optim.name": "adamw", "optim.lr": "0.001"},
}


def recipe_of_case(case: str, **settings: str) -> Recipe:
    return override(
        Recipe(), TINY | {"method.name": case} | CASES[case] | {k.replace("__", "."): v for k, v in settings.items()}
    )


@pytest.mark.parametrize("case", CASES)
def test_train_cuda_captured_steps_do_what_called_ones_do(case: str) -> None:
    runs = [train(recipe_of_case(case, train__graph=graph)) for graph in ("yes", "no")]
    losses = torch.tensor([[record.train_loss for record in run.history] for run in runs])
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(runs[0].test.logits, runs[1].test.logits, rtol=1e-4, atol=1e-4)
    for name, value in runs[1].hyper.items():
        torch.testing.assert_close(runs[0].hyper[name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("case", ["flgamma-sece", "paper", "averaged-meta"])
def test_train_cuda_bf16_and_compiled_learns(case: str) -> None:
    settings = {"train__precision": "bf16", "train__compile": "yes", "train__epochs": "3"}
    run = train(recipe_of_case(case, **settings))
    # At best 22 %.
    assert run.history[-1].test_error < 0.4


def test_train_cuda_images_sent_from_the_host_give_the_same_run() -> None:
    runs = [train(recipe_of_case("flgamma-sece", data__place=place)) for place in ("device", "host")]
    torch.testing.assert_close(runs[0].test.logits, runs[1].test.logits, rtol=1e-5, atol=1e-5)


class Talking(Group):
    """One process that sends everything through the process group all the same."""

    @property
    def processes(self) -> dist.ProcessGroup | None:
        return dist.group.WORLD

    def gather(self, tensor: Tensor) -> Tensor:
        return gather(tensor.contiguous(), dist.group.WORLD)

    def add_up(self, tensors: list[Tensor]) -> None:
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        dist.all_reduce(flat)
        with torch.no_grad():
            for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
                tensor.copy_(part.view_as(tensor))


@pytest.mark.parametrize("graph", ["no", "yes"])
def test_train_cuda_nccl_within_the_step_changes_nothing(graph: str, tmp_path: Path) -> None:
    own = torch.device("cuda", torch.cuda.current_device())
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1, device_id=own)
    try:
        recipe = recipe_of_case("flgamma-sece", train__graph=graph)
        parts = [Assembly(recipe, group=group) for group in (Talking(), Group())]
        for epoch in range(2):
            records = [run_epoch(part, epoch, started=0.0) for part in parts]
        assert records[0].test_nll == pytest.approx(records[1].test_nll, rel=1e-6)
    finally:
        dist.destroy_process_group()


def work(rank: int, folder: str) -> None:
    # NCCL wants a GPU for every process; gloo carries the same tensors, so that one GPU is enough.
    os.environ["LOCAL_RANK"] = "0"
    torch.cuda.set_device(0)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2, timeout=timedelta(seconds=120)
    )
    run = train(recipe_of_case("flgamma-sece"))
    state = {name: value.cpu() for name, value in run.model.state_dict().items()}
    torch.save({"state": state, "hyper": run.hyper, "logits": run.test.logits}, f"{folder}/rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def test_train_cuda_two_processes_with_synchronised_batchnorm_do_what_one_does(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(work, args=(str(tmp_path),), nprocs=2, join=True)
    alone = train(recipe_of_case("flgamma-sece", train__graph="no"))
    for rank in range(2):
        found = torch.load(tmp_path / f"rank{rank}.pt")
        torch.testing.assert_close(found["logits"], alone.test.logits, rtol=1e-6, atol=1e-6)
        for name, value in alone.model.state_dict().items():
            torch.testing.assert_close(found["state"][name], value.cpu(), rtol=1e-6, atol=1e-6)
        for name, value in alone.hyper.items():
            torch.testing.assert_close(found["hyper"][name], value, rtol=1e-6, atol=1e-8)


def test_train_cuda_run_is_written_read_and_evaluated_under_shift(tmp_path: Path) -> None:
    recipe = recipe_of_case("averaged", train__precision="bf16", data__shift="true")
    run = train(recipe, out=tmp_path / "run")
    loaded = load_run(tmp_path / "run")
    assert loaded.test.logits.equal(run.test.logits)
    for name, value in run.model.state_dict().items():
        assert loaded.model.state_dict()[name].equal(value.cpu())
    assert len(loaded.shift) == 15
    again = evaluate_shift(loaded)
    for name, scores in run.shift.items():
        assert again[name]["nll"].value == pytest.approx(scores["nll"].value, rel=1e-3)
    assert run.shift["contrast-5"]["error"].value > run.shift["contrast-1"]["error"].value


def build(lookahead: str, amp: torch.dtype | None) -> tuple[nn.Module, MetaLearner, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model = resnet(basic, (1, 1), (16, 32), 10).cuda().train()
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
