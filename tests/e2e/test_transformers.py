"""Transformers: the example without a network, the callback's numbers, resumed runs, accumulation, precision, two processes."""

from __future__ import annotations

import inspect
import os
import runpy
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    EvalPrediction,
    Trainer,
    TrainingArguments,
    set_seed,
)

from calibrant.integrations.transformers import STATE_FILE, CalibratedTrainer, CalibrationCallback
from calibrant.meta import MetaLearner
from calibrant.metrics import expected_calibration_error
from helpers import board_images, reserved_port, start_ranks

PATH = Path(__file__).parents[2] / "examples" / "transformers_loop.py"
pytestmark = pytest.mark.filterwarnings("ignore:.*pin_memory.*no accelerator is found.*")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every attempt to reach another machine fail."""

    def refuse(self: socket.socket, address: Any) -> None:
        raise AssertionError(f"the network was touched: {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: refuse(None, args))  # type: ignore[arg-type]


def rows(n: int = 64, seed: int = 0) -> list[dict[str, Tensor]]:
    g = torch.Generator().manual_seed(seed)
    ids, labels = torch.randint(2, 20, (n, 6), generator=g), torch.randint(0, 3, (n,), generator=g)
    mask = (torch.arange(6) < torch.randint(2, 7, (n, 1), generator=g)).long()
    return [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in zip(ids * mask, mask, labels, strict=True)]


def stack(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}


def model(dropout: float = 0.1) -> BertForSequenceClassification:
    set_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    return BertForSequenceClassification(BertConfig(**sizes, **rates, max_position_embeddings=6, num_labels=3))


def arguments(folder: Path | str, **options: Any) -> TrainingArguments:
    usual = {"per_device_train_batch_size": 16, "per_device_eval_batch_size": 40, "learning_rate": 1e-2, "max_steps": 4}
    quiet = {"save_strategy": "no", "logging_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    return TrainingArguments(output_dir=str(folder), **{**usual, **quiet, **options})


def calibrated(folder: Path | str, *, dropout: float = 0.1, train: Any = None, **options: Any) -> CalibratedTrainer:
    meta = {"every": 1, "generator": torch.Generator().manual_seed(2), **options.pop("meta", {})}
    return CalibratedTrainer(
        model(dropout), arguments(folder, **options), train_dataset=train or rows(), meta_dataset=rows(48, 1), meta=meta
    )


def weights(network: torch.nn.Module) -> Tensor:
    return torch.cat([value.detach().reshape(-1) for value in network.parameters()])


def hyper_of(trainer: CalibratedTrainer) -> dict[str, Tensor]:
    assert trainer.learner is not None
    return trainer.learner.hyper


def test_transformers_example_calibrates_without_a_network(offline: None, capsys: pytest.CaptureFixture[str]) -> None:
    example = runpy.run_path(str(PATH))
    results = example["main"]()
    plain, calibrated = results["plain"], results["calibrated"]
    # 11 % against 4 % when written; the ECE of 1,000 samples alone is about 3 %.
    assert plain["ece_low"] > 0.06
    assert calibrated["ece"] < 0.6 * plain["ece"]
    assert calibrated["error"] < plain["error"] + 0.03
    assert "calibrated  error" in capsys.readouterr().out
    before = [line.strip() for line in inspect.getsource(example["train_plain"]).splitlines()]
    changed = [line.strip() for line in inspect.getsource(example["train_calibrated"]).splitlines()]
    assert len([line for line in changed if "# +" in line]) <= 10
    assert [line for line in changed if "# +" not in line and line not in before] == changed[:2]


def test_trainer_takes_the_steps_of_a_plain_loop(tmp_path: Path) -> None:
    samples = rows(16)
    options = {"lr_scheduler_type": "constant", "optim": "sgd", "max_grad_norm": 0.0}
    trainer = calibrated(tmp_path, dropout=0.0, train=samples, **options)
    trainer.train()
    twin = model(0.0).train()
    optimizer = torch.optim.SGD(twin.parameters(), lr=1e-2)
    learner = MetaLearner(twin, optimizer, every=1, generator=torch.Generator().manual_seed(2))
    x, meta = stack(samples), stack(rows(48, 1))
    labels, meta_labels = x.pop("labels"), meta.pop("labels")
    for _ in range(4):
        learner.step(x, labels, meta, meta_labels)
    assert trainer.learner is not None
    assert trainer.learner.meta_updates == 4
    # Sums of the same samples in another order.
    torch.testing.assert_close(weights(trainer.model), weights(twin), rtol=1e-4, atol=1e-6)
    for name, value in learner.hyper.items():
        torch.testing.assert_close(hyper_of(trainer)[name], value, rtol=1e-3, atol=1e-6)
    assert not torch.allclose(weights(twin), weights(model(0.0)), atol=1e-4)


def test_trainer_accumulating_halves_steps_as_with_the_whole_and_updates_once(tmp_path: Path) -> None:
    found = []
    for size, parts in ((16, 1), (8, 2)):
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": parts, "optim": "sgd"}
        trainer = calibrated(tmp_path, dropout=0.0, train=rows(16), max_grad_norm=0.0, meta={"every": 100}, **options)
        trainer.train()
        assert trainer.learner is not None
        found.append((weights(trainer.model), trainer.learner.meta_updates, trainer.state.global_step))
    assert [entry[1:] for entry in found] == [(1, 4), (1, 4)]
    # Both meta updates see 48 held-out samples; the second starts from half of the training batch, so gamma differs a little.
    assert float((found[0][0] - found[1][0]).norm()) < 0.02 * float((found[0][0] - weights(model(0.0))).norm())


def test_trainer_resumed_from_a_checkpoint_goes_on_as_if_never_stopped(tmp_path: Path) -> None:
    # With dropout, a learner that draws from the global numbers, and a checkpoint within a pass over the held-out samples.
    saving = {"save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant", "meta": {"generator": None}}
    through, rest = calibrated(tmp_path / "a", **saving), calibrated(tmp_path / "b", **saving)
    through.meta_batch_size = rest.meta_batch_size = 20
    set_seed(0)
    through.train()
    rest.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-1"))
    assert torch.equal(weights(rest.model), weights(through.model))
    for name, value in hyper_of(through).items():
        assert torch.equal(hyper_of(rest)[name], value)
    assert (tmp_path / "a" / "checkpoint-4" / STATE_FILE).exists()
    through.save_model(str(tmp_path / "final"))
    assert not (tmp_path / "final" / STATE_FILE).exists()


@pytest.mark.parametrize("lookahead", ["head", "full"])
def test_trainer_in_bfloat16_stays_near_full_precision(lookahead: str, tmp_path: Path) -> None:
    found = []
    for bf16 in (False, True):
        trainer = calibrated(tmp_path, dropout=0.0, bf16=bf16, meta={"lookahead": lookahead}, optim="sgd")
        trainer.train()
        found.append(weights(trainer.model))
    moved = float((found[0] - weights(model(0.0))).norm())
    assert moved > 0
    # Bfloat16 has eight bits.
    assert 0 < float((found[0] - found[1]).norm()) < 0.1 * moved


def test_trainer_with_settings_that_are_the_trainers_raises(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="`meta` must leave 'clip' to the Trainer"):
        calibrated(tmp_path, meta={"clip": 1.0})
    with pytest.raises(ValueError, match="`label_smoothing_factor` .* must not be given"):
        calibrated(tmp_path, label_smoothing_factor=0.1)


def test_trainer_of_tokens_leaves_padding_out(tmp_path: Path) -> None:
    samples: Any = [{**row, "labels": torch.where(row["attention_mask"] > 0, row["input_ids"] % 3, -100)} for row in rows()]
    trainer = CalibratedTrainer(
        BertForTokenClassification(model().config),
        arguments(tmp_path),
        train_dataset=samples[:48],
        meta_dataset=samples[48:],
        meta={"ignore_index": -100, "every": 1},
    )
    before = trainer.evaluate(samples)["eval_loss"]
    trainer.train()
    assert trainer.evaluate(samples)["eval_loss"] < before
    assert trainer.learner is not None
    # Every one of the four meta updates was finite.
    steps = {int(value) for name, value in trainer.learner.state_dict()["tensors"].items() if name.endswith(".step")}
    assert steps == {trainer.learner.meta_updates} == {4}


@pytest.mark.parametrize("by_batch", [True, False])
def test_callback_logs_and_keeps_the_ece_of_the_whole_set(
    by_batch: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    figures: list[int] = []
    callback = CalibrationCallback(num_classes=3, metrics=("ece", "nll"), log_figure=lambda figure, step: figures.append(step))
    samples = rows(90, 5)
    options = {"eval_strategy": "steps", "eval_steps": 2, "batch_eval_metrics": by_batch, "report_to": "tensorboard"}
    trainer = Trainer(
        model(),
        arguments(tmp_path, **options),
        train_dataset=rows(),
        eval_dataset=samples,
        compute_metrics=callback.compute_metrics,
        callbacks=[callback],
    )
    trainer.train()
    assert isinstance(trainer.model, BertForSequenceClassification)
    given = stack(samples)
    labels = given.pop("labels")
    with torch.no_grad():
        probs = trainer.model.eval()(**given).logits.softmax(1)
    logged = [entry for entry in trainer.state.log_history if "eval_ece" in entry]
    first, last = callback.history
    assert [(entry["name"], entry["step"], entry["n"]) for entry in callback.history] == [("eval", 2, 90), ("eval", 4, 90)]
    assert last["ece"] == pytest.approx(float(expected_calibration_error(probs, labels)), abs=1e-6)
    assert last["ece_low"] <= last["ece"] <= last["ece_high"]
    for entry, row in zip(logged, (first, last), strict=True):
        keys = ("ece", "ece_low", "ece_high", "nll")
        assert [entry[f"eval_{key}"] for key in keys] == [row[key] for key in keys]
    assert figures == [2, 4]
    assert board_images(tmp_path / "board") == {"eval/reliability": [2, 4]}


def test_callback_keeps_evaluation_sets_apart(tmp_path: Path) -> None:
    callback = CalibrationCallback(num_classes=3, also=lambda prediction: {"extra": 7.0})
    trainer = Trainer(
        model(),
        arguments(tmp_path),
        eval_dataset={"small": rows(20), "large": rows(50)},
        compute_metrics=callback.compute_metrics,
        callbacks=[callback],
    )
    found = trainer.evaluate()
    assert [(entry["name"], entry["n"]) for entry in callback.history] == [("eval_small", 20), ("eval_large", 50)]
    assert found["eval_small_ece"] == callback.history[0]["ece"]
    assert found["eval_large_extra"] == 7.0


def test_compute_metrics_leaves_out_tokens_marked_minus_100() -> None:
    logits, labels = (
        torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)),
        torch.tensor([[0, -100, 2], [3, 1, -100]]),
    )
    callback = CalibrationCallback(num_classes=4)
    found = callback.compute_metrics(EvalPrediction(predictions=(logits.numpy(), logits.numpy()), label_ids=labels.numpy()))
    kept = labels >= 0
    assert callback.scores is not None
    assert callback.scores.n == 4
    assert found["ece"] == pytest.approx(float(expected_calibration_error(logits[kept].softmax(1), labels[kept])), abs=1e-6)


def test_callback_without_its_compute_metrics_raises(tmp_path: Path) -> None:
    trainer = Trainer(model(), arguments(tmp_path), eval_dataset=rows(), callbacks=[CalibrationCallback(num_classes=3)])
    with pytest.raises(ValueError, match="the evaluation must give 'ece', got eval_loss"):
        trainer.evaluate()


def fit_half(folder: str, batch_size: int) -> dict[str, Any]:
    callback = CalibrationCallback(num_classes=3)
    sizes = {"per_device_train_batch_size": batch_size, "per_device_eval_batch_size": batch_size, "batch_eval_metrics": True}
    trainer = CalibratedTrainer(
        model(0.0),
        arguments(folder, **sizes, optim="sgd", max_steps=3, ddp_find_unused_parameters=False),
        train_dataset=rows(32),
        eval_dataset=rows(89, 5),
        compute_metrics=callback.compute_metrics,
        callbacks=[callback],
        meta_dataset=rows(48, 1),
        # A different draw in every process: the first one's must win.
        meta={"every": 1, "generator": torch.Generator().manual_seed(int(os.environ.get("RANK", "0")))},
    )
    trainer.train()
    trainer.evaluate()
    return {"weights": weights(trainer.model), "hyper": dict(hyper_of(trainer)), "history": callback.history}


def work(rank: int, folder: str, port: int) -> None:
    import warnings

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {**address, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.save(fit_half(folder, 16), f"{folder}/rank{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_train_and_measure_as_one(tmp_path: Path) -> None:
    running = start_ranks(work, str(tmp_path), reserved_port(), load="calibrant.integrations.transformers", join=False)
    expected = fit_half(str(tmp_path / "one"), 32)
    while not running.join(timeout=120):
        pass
    for rank in (0, 1):
        found = torch.load(tmp_path / f"rank{rank}.pt", weights_only=True)
        torch.testing.assert_close(found["weights"], expected["weights"], rtol=1e-4, atol=1e-6)
        for name, value in expected["hyper"].items():
            torch.testing.assert_close(found["hyper"][name], value, rtol=1e-3, atol=1e-6)
        (row,), (one,) = found["history"], expected["history"]
        assert row["n"] == one["n"] == 89
        assert row["ece"] == pytest.approx(one["ece"], abs=1e-5)
