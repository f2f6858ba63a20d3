"""Lightning: the example, the callback's numbers, resumed runs, schedulers, precision and two processes."""

from __future__ import annotations

import os
import runpy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from calibrant.integrations.lightning import CalibratedMixin, CalibrationCallback, meta_learner
from calibrant.meta import MetaBatches, MetaLearner
from calibrant.metrics import expected_calibration_error
from helpers import board_images, reserved_port, start_ranks

PATH = Path(__file__).parents[2] / "examples" / "lightning_loop.py"
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*number of training batches.*smaller than the logging interval.*"),
    pytest.mark.filterwarnings("ignore:.*have no `val_dataloader`.*"),
]


def data(n: int = 96, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=g), torch.randint(0, 3, (n,), generator=g)


class Module(pl.LightningModule):
    """A small classifier whose validation step returns what the test asks for."""

    def __init__(self, returns: str = "mapping") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.returns = returns

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.net(x)
        return found

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> Any:
        logits = 3 * self(batch[0])
        made = {"mapping": {"logits": logits, "labels": batch[1]}, "tensor": logits, "nothing": None, "loss": logits.mean()}
        return made[self.returns]

    test_step = validation_step

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Calibrated(CalibratedMixin, Module):
    options: Mapping[str, Any] = {}

    def configure_learner(self) -> MetaLearner:
        batches = MetaBatches(*data(48, seed=1), batch_size=48, generator=torch.Generator().manual_seed(3))
        generator = torch.Generator().manual_seed(2)
        return meta_learner(self, self.net, **{"meta_batches": batches, "every": 1, "generator": generator, **self.options})


class Averaged(Calibrated):
    def configure_learner(self) -> MetaLearner:
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        batches = MetaBatches(*data(48, seed=1), batch_size=16)
        self.options = {"average": self.average, "bank": 40, "meta_batches": batches}
        return super().configure_learner()

    def on_train_batch_end(self, *_: Any) -> None:
        self.average.update_parameters(self.net)


def test_a_module_with_averaged_weights_looks_through_them_at_a_bank() -> None:
    module = Averaged()
    trainer(max_epochs=2).fit(module, loader())
    assert module.learner.shown.inner is module.average.module
    assert module.learner.bank is not None
    assert len(module.learner.bank.labels) == 40


def trainer(**options: Any) -> pl.Trainer:
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    return pl.Trainer(**{"logger": False, "enable_checkpointing": False, "max_epochs": 1, **quiet, **options})


def loader(n: int = 96, seed: int = 0, batch_size: int = 32) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*data(n, seed)), batch_size=batch_size)


def weights(module: pl.LightningModule) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in module.parameters()])


def test_lightning_example_calibrates_at_equal_error(capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(PATH))["main"]
    main.__globals__["EPOCHS"] = 30
    results = main()
    plain, calibrated = results["plain"], results["calibrated"]
    # Half of its epochs: 17 % against 7 % when written; the ECE of 597 samples alone is about 3 %.
    assert plain["ece_low"] > 0.09
    assert calibrated["ece"] < 0.6 * plain["ece"]
    # One standard deviation of an error rate of a third on 597 samples is 2 points.
    assert calibrated["error"] < plain["error"] + 0.04
    assert "calibrated  error" in capsys.readouterr().out
    assert 5 <= sum(line.endswith("# +") for line in PATH.read_text().splitlines()) <= 10


@pytest.mark.parametrize("returns", ["mapping", "tensor", "extract"])
def test_callback_logs_and_keeps_the_ece_of_the_whole_set(returns: str, tmp_path: Path) -> None:
    module = Module("nothing" if returns == "extract" else returns)
    figures: list[int] = []
    callback = CalibrationCallback(
        num_classes=3,
        metrics=("ece", "nll"),
        extract=(lambda outputs, batch: (3 * module(batch[0]), batch[1])) if returns == "extract" else None,
        log_figure=lambda figure, step: figures.append(step),
    )
    board = TensorBoardLogger(tmp_path, name="", version="")
    run = trainer(callbacks=[callback], logger=board, max_epochs=2)
    run.fit(module, loader(), loader(90, seed=5, batch_size=40))
    x, y = data(90, seed=5)
    expected = float(expected_calibration_error((3 * module(x)).softmax(1).detach(), y))
    last = callback.history[-1]
    assert [(entry["stage"], entry["epoch"], entry["step"], entry["n"]) for entry in callback.history] == [
        ("val", 0, 3, 90),
        ("val", 1, 6, 90),
    ]
    assert last["ece"] == pytest.approx(expected, abs=1e-6)
    assert last["ece_low"] <= last["ece"] <= last["ece_high"]
    assert {key: float(run.callback_metrics[key]) for key in ("ece", "ece_low", "ece_high", "nll")} == pytest.approx(
        {key: last[key] for key in ("ece", "ece_low", "ece_high", "nll")}, abs=1e-6
    )
    assert callback.scores is not None
    assert callback.scores.n == 90
    assert figures == [3, 6]
    assert board_images(tmp_path) == {"reliability": [3, 6]}


def test_callback_keeps_loaders_and_stages_apart() -> None:
    callback = CalibrationCallback(num_classes=3, prefix="my_")
    run, module = trainer(callbacks=[callback]), Module()
    sizes = (40, 70)
    run.validate(module, [loader(n, seed=n) for n in sizes], verbose=False)
    assert [(entry["loader"], entry["n"]) for entry in callback.history] == [(0, 40), (1, 70)]
    assert {"my_ece/dataloader_0", "my_ece_high/dataloader_1"} <= set(run.callback_metrics)
    run.test(module, loader(40, seed=40), verbose=False)
    assert callback.history[-1]["stage"] == "test"
    assert float(run.callback_metrics["test_my_ece"]) == pytest.approx(callback.history[0]["ece"], abs=1e-6)


def test_callback_of_a_step_without_logits_raises() -> None:
    callback = CalibrationCallback(num_classes=3)
    with pytest.raises(
        ValueError, match=r"`validation_step` must return logits \[B, C\] or a mapping with 'logits', got Tensor"
    ):
        trainer(callbacks=[callback]).validate(Module("loss"), loader(), verbose=False)


def test_mixin_takes_the_steps_of_a_plain_loop() -> None:
    module, twin = Calibrated(), Module()
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    batches = MetaBatches(*data(48, seed=1), batch_size=48, generator=torch.Generator().manual_seed(3))
    learner = MetaLearner(twin.net, optimizer, meta_batches=batches, every=1, generator=torch.Generator().manual_seed(2))
    run = trainer(max_epochs=2)
    run.fit(module, loader())
    for _ in range(2):
        for x, y in loader():
            learner.step(x, y)
    assert run.global_step == learner.steps == 6
    assert torch.equal(weights(module), weights(twin))
    assert not torch.equal(weights(module), weights(Module()))
    assert all(torch.equal(value, module.learner.hyper[name]) for name, value in learner.hyper.items())


@pytest.mark.parametrize("parts", [1, 2])
def test_mixin_resumed_from_a_checkpoint_goes_on_as_if_never_stopped(parts: int, tmp_path: Path) -> None:
    class Parts(Calibrated):
        options = {"accumulate": parts}  # Of three batches an epoch: after the first epoch one may wait for its second half.

    through, half, rest = Parts(), Parts(), Parts()
    callback, resumed = CalibrationCallback(num_classes=3), CalibrationCallback(num_classes=3)
    trainer(max_epochs=3, callbacks=[callback]).fit(through, loader(), loader(seed=5))
    first = trainer(max_epochs=1, callbacks=[CalibrationCallback(num_classes=3)])
    first.fit(half, loader(), loader(seed=5))
    first.save_checkpoint(tmp_path / "half.ckpt")
    trainer(max_epochs=3, callbacks=[resumed]).fit(rest, loader(), loader(seed=5), ckpt_path=tmp_path / "half.ckpt")
    assert torch.equal(weights(rest), weights(through))
    assert rest.learner.meta_updates == through.learner.meta_updates > half.learner.meta_updates > 0
    assert all(torch.equal(value, rest.learner.hyper[name]) for name, value in through.learner.hyper.items())
    assert resumed.history == callback.history[1:]


def test_mixin_makes_its_learner_without_touching_the_random_numbers() -> None:
    states = []

    class Drawing(Calibrated):
        options = {"generator": None}

        def on_train_start(self) -> None:
            states.append(torch.get_rng_state())
            super().on_train_start()
            states.append(torch.get_rng_state())

    trainer().fit(Drawing(), loader())
    assert torch.equal(*states)


def test_mixin_moves_schedulers_by_step_and_by_epoch() -> None:
    class Scheduled(Calibrated):
        interval = "step"

        def configure_optimizers(self) -> Any:
            optimizer = super().configure_optimizers()
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": self.interval}}

    class ByEpoch(Scheduled):
        interval = "epoch"

    found = []
    for kind in (Scheduled, ByEpoch):
        run = trainer(max_epochs=2)
        run.fit(kind(), loader())
        found.append(run.optimizers[0].param_groups[0]["lr"])
    assert found == pytest.approx([0.1 * 0.5**6, 0.1 * 0.5**2])


def test_mixin_in_half_precision_with_a_scaler_stays_near_full_precision() -> None:
    from lightning.pytorch.plugins import MixedPrecision

    class Clipped(Calibrated):
        options = {"clip": 0.5, "lookahead": "full"}

    full, half = Clipped(), Clipped()
    start = weights(full)
    trainer(max_epochs=2).fit(full, loader())
    trainer(max_epochs=2, plugins=[MixedPrecision("16-mixed", "cpu")]).fit(half, loader())
    moved = float((weights(full) - start).norm())
    assert moved > 0.05
    # Half precision has eleven bits: a thousandth of every number, over six steps.
    assert float((weights(half) - weights(full)).norm()) < 0.02 * moved


def test_mixin_written_after_another_module_is_refused_when_the_class_is_made() -> None:
    class Logged:
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return super().training_step(batch, batch_idx)  # type: ignore[misc]

    with pytest.raises(TypeError, match="^Late: CalibratedMixin"):
        type("Late", (Module, CalibratedMixin), {})
    with pytest.raises(TypeError, match="^Late: CalibratedMixin"):
        type("Late", (Logged, Module, CalibratedMixin), {})
    early = type("Early", (Logged, Calibrated), {})()
    trainer(limit_train_batches=1).fit(early, loader())
    assert early.learner.steps == 1


def test_mixin_without_a_learner_or_with_two_optimizers_raises() -> None:
    class Nothing(CalibratedMixin, Module):
        pass

    class Two(Calibrated):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=0.1), torch.optim.SGD(self.parameters(), lr=0.1)]

    with pytest.raises(TypeError, match="Nothing: `configure_learner` must return"):
        trainer().fit(Nothing(), loader())
    with pytest.raises(ValueError, match="`module` must have one optimizer, got 2"):
        trainer().fit(Two(), loader())


class Half(Calibrated):
    """Draws its own half of the meta batch, in order."""

    def configure_learner(self) -> MetaLearner:
        x, y = data(48, seed=1)
        part = slice(self.global_rank, None, self.trainer.world_size)
        batches = iter(lambda: (x[part], y[part]), None)
        return meta_learner(
            self, self.net, meta_batches=batches, every=1, generator=torch.Generator().manual_seed(self.global_rank)
        )


def share(n: int, seed: int, rank: int, world: int) -> DataLoader[Any]:
    """Every world-th sample, in batches whose union over the processes is a batch of 32."""
    x, y = data(n, seed)
    return DataLoader(TensorDataset(x[rank::world], y[rank::world]), batch_size=32 // world)


def fit_half(rank: int = 0, world: int = 1) -> dict[str, Any]:
    module, callback = Half(), CalibrationCallback(num_classes=3)
    options = {"strategy": "ddp", "devices": world, "use_distributed_sampler": False} if world > 1 else {}
    run = trainer(callbacks=[callback], **options)
    # 89 samples to measure: more in the first process than in the second.
    run.fit(module, share(96, 0, rank, world), share(89, 5, rank, world))
    return {
        "weights": weights(module),
        "hyper": dict(module.learner.hyper),
        "history": callback.history,
        "steps": run.global_step,
        "logged": float(run.callback_metrics["ece"]),
    }


def work(rank: int, folder: str, port: int) -> None:
    import warnings

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "LOCAL_RANK": str(rank), "NODE_RANK": "0"}
    torch.save(fit_half(rank, 2), f"{folder}/rank{rank}.pt")


def test_two_processes_train_and_measure_as_one(tmp_path: Path) -> None:
    running = start_ranks(work, str(tmp_path), reserved_port(), load="calibrant.integrations.lightning", join=False)
    expected = fit_half()
    while not running.join(timeout=120):
        pass
    for rank in (0, 1):
        found = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        assert found["steps"] == expected["steps"] == 3
        torch.testing.assert_close(found["weights"], expected["weights"], rtol=1e-5, atol=1e-6)
        for name, value in expected["hyper"].items():
            torch.testing.assert_close(found["hyper"][name], value, rtol=1e-4, atol=1e-6)
        (row,), (one,) = found["history"], expected["history"]
        assert row["n"] == one["n"] == 89
        assert row["ece"] == pytest.approx(one["ece"], abs=1e-5)
        assert found["logged"] == pytest.approx(row["ece"], abs=1e-6)
