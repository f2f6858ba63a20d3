"""A text classifier trained by Transformers' ``Trainer``, and the same made calibrated by about ten lines.

    python examples/transformers_loop.py

A tiny BERT that starts from random weights and sentences of made-up words, so that nothing is downloaded; half a minute on one
core. Three topics share most of their words: many sentences cannot be told apart by anyone, and a network that is sure of them
is over-confident. The lines that differ are marked ``# +``. Both runs measure the calibration error, with its interval, by a
callback.
"""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

from calibrant.integrations.transformers import CalibratedTrainer, CalibrationCallback

Sentences = list[dict[str, torch.Tensor]]
WORDS, TOPICS, LENGTH, EPOCHS = 60, 3, 16, 20


def load(seed: int = 0) -> dict[str, Sentences]:
    """Sentences of 6 to 16 words in three parts: training, held-out for the meta updates, evaluation."""
    generator = torch.Generator().manual_seed(seed)
    frequencies = (0.45 * torch.randn(TOPICS, WORDS, generator=generator)).softmax(1)
    parts: dict[str, Sentences] = {}
    for name, size in (("train", 800), ("meta", 400), ("eval", 1000)):
        labels = torch.randint(0, TOPICS, (size,), generator=generator)
        # Word 0 fills up short sentences, word 1 begins every one of them.
        ids = 2 + torch.multinomial(frequencies[labels], LENGTH, replacement=True, generator=generator)
        ids[:, 0] = 1
        lengths = torch.randint(6, LENGTH + 1, (size, 1), generator=generator)
        mask = (torch.arange(LENGTH) < lengths).long()
        rows = zip(ids * mask, mask, labels, strict=True)
        parts[name] = [{"input_ids": i, "attention_mask": m, "labels": y} for i, m, y in rows]
    return parts


def build(seed: int = 0) -> BertForSequenceClassification:
    """A BERT of two layers, 32 wide."""
    set_seed(seed)
    config = BertConfig(
        vocab_size=WORDS + 2,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=LENGTH,
        num_labels=TOPICS,
    )
    return BertForSequenceClassification(config)


def arguments(folder: str) -> TrainingArguments:
    """The settings of both runs."""
    return TrainingArguments(
        output_dir=folder,
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=32,
        per_device_eval_batch_size=500,
        learning_rate=2e-3,
        eval_strategy="no",
        save_strategy="no",
        logging_strategy="no",
        batch_eval_metrics=True,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )


def train_plain(data: dict[str, Sentences], folder: str) -> dict[str, Any]:
    """The Trainer everyone has, with the callback that measures calibration."""
    callback = CalibrationCallback(num_classes=TOPICS, metrics=("ece", "error"))
    trainer = Trainer(
        build(),
        arguments(folder),
        train_dataset=data["train"],
        eval_dataset=data["eval"],
        compute_metrics=callback.compute_metrics,
        callbacks=[callback],
    )
    trainer.train()
    trainer.evaluate()
    return callback.history[-1]


def train_calibrated(data: dict[str, Sentences], folder: str) -> dict[str, Any]:
    """The same with a gamma-Net that watches calibration on held-out samples."""
    callback = CalibrationCallback(num_classes=TOPICS, metrics=("ece", "error"))
    trainer = CalibratedTrainer(  # +
        build(),
        arguments(folder),
        train_dataset=data["train"],
        eval_dataset=data["eval"],
        compute_metrics=callback.compute_metrics,
        callbacks=[callback],
        meta_dataset=data["meta"],  # +
        meta_batch_size=400,  # +
    )
    trainer.train()
    trainer.evaluate()
    return callback.history[-1]


def main() -> dict[str, dict[str, Any]]:
    """Train both ways and print what came out."""
    torch.set_num_threads(1)
    data, results = load(), {}
    for name, train in (("plain", train_plain), ("calibrated", train_calibrated)):
        with tempfile.TemporaryDirectory() as folder:
            found = results[name] = train(data, folder)
        interval = f"[{100 * found['ece_low']:.1f}, {100 * found['ece_high']:.1f}]"
        print(f"{name:<11} error {100 * found['error']:5.1f} %   ECE {100 * found['ece']:5.1f} % {interval}")
    return results


if __name__ == "__main__":
    main()
