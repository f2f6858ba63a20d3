"""Calibrated training and calibration logs for Hugging Face Transformers' ``Trainer``."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from transformers import EvalPrediction, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from calibrant.core.checks import check_count
from calibrant.core.collect import split_batch
from calibrant.integrations.trackers import Recorder, add_batch, with_ends
from calibrant.meta import MetaLearner
from calibrant.meta.step import own_randomness

__all__ = ["CalibratedTrainer", "CalibrationCallback"]

STATE_FILE = "calibrant_meta_learner.pt"
# Arguments of the learner that follow from the Trainer's.
_TRAINERS_OWN = {"meta_batches", "accumulate", "amp", "scaler", "backward", "process_group", "clip"}


class CalibratedTrainer(Trainer):
    """A ``Trainer`` that trains a classifier of sequences (or tokens: ``meta={"ignore_index": -100}``) by a `MetaLearner`.

    Everything else is the Trainer's: optimizer, schedule, precision, accumulation, clipping (``max_grad_norm``), processes
    started by ``torchrun`` or ``accelerate launch``. Checkpoints hold the learner too. Not for FSDP, DeepSpeed or
    ``DataParallel``, where no process sees the whole last layer or the whole batch.

    Args:
        args: Arguments of ``Trainer``.
        meta_dataset: Held-out samples for the meta updates, in the form of the training set; do not train on them.
        meta_batch_size: Samples of a meta batch, of every process.
        meta: Arguments of `calibrant.meta.MetaLearner`: ``{"regularizer": "label-smoothing", "every": 2}``.
        kwargs: Keyword arguments of ``Trainer``.

    Attributes:
        learner: The learner; None until training starts.
    """

    def __init__(
        self,
        *args: Any,
        meta_dataset: Dataset[Any],
        meta_batch_size: int = 256,
        meta: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        check_count(meta_batch_size, where="CalibratedTrainer", name="meta_batch_size")
        if taken := _TRAINERS_OWN & set(meta or {}):
            raise ValueError(f"CalibratedTrainer: `meta` must leave {min(taken)!r} to the Trainer and its TrainingArguments.")
        if self.label_smoother is not None or self.compute_loss_func is not None:
            raise ValueError(
                "CalibratedTrainer: `label_smoothing_factor` and `compute_loss_func` must not be given: the learner has its "
                "own loss."
            )
        # The learner's loss is a mean over the batch, so the Trainer is to divide it by the number of accumulated batches.
        self.model_accepts_loss_kwargs = False
        self.meta_dataset, self.meta_batch_size, self.meta = meta_dataset, meta_batch_size, dict(meta or {})
        self.learner: MetaLearner | None = None
        self._resumed: str | None = None
        self._updated_at = -1

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train, or continue from a checkpoint, as ``Trainer.train``."""
        found = resume_from_checkpoint
        self._resumed = get_last_checkpoint(str(self.args.output_dir)) if found is True else found or None
        self.learner, self._updated_at = None, -1
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the learner's loss of a training batch, after a meta update where one is due; else the model's own loss."""
        if not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.learner is None:
            # The Trainer has restored the random numbers of a checkpoint by now: dropout must go on with them.
            with own_randomness(next(model.parameters()).device):
                self.learner = self.make_learner(model)
        learner, (x, labels) = self.learner, split_batch(inputs, where="CalibratedTrainer")
        learner.steps = self.state.global_step
        due = learner.due and self._updated_at != learner.steps
        features, logits = learner.forward(x)
        if due:
            self._updated_at = learner.steps
            loss, _ = learner.update_and_loss(features, logits, labels, *learner.draw(), x=x)
        else:
            loss = learner.loss(features, logits, labels)
        return (loss, {"logits": logits}) if return_outputs else loss

    def make_learner(self, model: nn.Module) -> MetaLearner:
        """Return the learner for ``model`` as the Trainer has wrapped it; called once, by the first training step."""
        assert self.optimizer is not None
        args, dataset = self.args, self.meta_dataset
        # Each process draws its own part, in a new order every pass. Also for one process: its order follows from the seed and
        # the number of the pass, so a resumed run repeats it.
        sampler: DistributedSampler[Any] = DistributedSampler(
            dataset, num_replicas=args.world_size, rank=args.process_index, seed=args.seed, drop_last=args.world_size > 1
        )
        batches = DataLoader(
            dataset,
            batch_size=min(self.meta_batch_size, len(sampler)),
            sampler=sampler,
            collate_fn=self.data_collator,
            drop_last=True,
            # A loader without a generator draws from the global one whenever a pass begins.
            generator=torch.Generator().manual_seed(args.seed),
        )
        scaler = getattr(self.accelerator, "scaler", None)
        learner = MetaLearner(model, self.optimizer, meta_batches=batches, scaler=scaler, **self.meta)
        saved = Path(self._resumed or "") / STATE_FILE
        if self._resumed is not None and saved.exists():
            learner.load_state_dict(torch.load(saved, map_location="cpu", weights_only=True))
        return learner

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model and, in a checkpoint to resume from, the learner beside it."""
        super().save_model(output_dir, _internal_call)
        # Only checkpoints are saved by an internal call; a model saved by the user is for use.
        wanted = _internal_call and self.args.should_save and not self.args.save_only_model
        if wanted and self.learner is not None and output_dir is not None:
            torch.save(self.learner.state_dict(), Path(output_dir) / STATE_FILE)


class CalibrationCallback(Recorder, TrainerCallback):
    """Measures the calibration error of every evaluation with its 95 % interval, and draws reliability diagrams.

    A ``Trainer`` shows no predictions to its callbacks, so this object is given to it twice:
    ``Trainer(..., compute_metrics=callback.compute_metrics, callbacks=[callback])``. The Trainer then logs ``eval_ece``,
    ``eval_ece_low`` and ``eval_ece_high`` (and likewise every other of ``metrics``). With
    ``TrainingArguments(batch_eval_metrics=True)`` predictions are measured batch by batch in constant memory; without, the
    Trainer collects them all. Either way the numbers are those of the whole set, however many processes there are. Labels of
    -100 are left out, so token classifiers work too. Where the Trainer reports to TensorBoard, the diagrams go there.

    Args:
        num_classes: Number of classes C.
        also: Another ``compute_metrics`` function, whose numbers are added; not with ``batch_eval_metrics``.
        options: ``n_bins=15``, ``metrics=("ece",)``, ``n_resamples=1000`` and ``log_figure=None`` of `Recorder`, which also
            says what ``history`` and ``scores`` hold.

    Example:
        >>> callback = CalibrationCallback(num_classes=2)
        >>> logits, labels = torch.tensor([[2.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 0])
        >>> found = callback.compute_metrics(EvalPrediction(predictions=logits.numpy(), label_ids=labels.numpy()))
        >>> list(found), round(found["ece"], 4)
        (['ece', 'ece_low', 'ece_high'], 0.3808)
    """

    def __init__(
        self,
        *,
        num_classes: int,
        also: Callable[[EvalPrediction], Mapping[str, float]] | None = None,
        **options: Any,
    ) -> None:
        # The Trainer gathers the predictions of all processes (without the copies that fill up the last batch) before it shows
        # them, so every process has seen every example, and adding them up again would count them twice.
        super().__init__(num_classes=num_classes, sync_on_compute=False, **options)
        self.also = also

    def compute_metrics(self, prediction: EvalPrediction, compute_result: bool = True) -> dict[str, float]:
        """Add predictions and, after the last, return the numbers to log.

        Args:
            prediction: Logits ``[N, C]`` or ``[N, T, C]`` (or a tuple that begins with them) and labels.
            compute_result: False where more batches follow.
        """
        if self.also is not None and not (compute_result and not self.suite.update_called):
            raise ValueError("CalibrationCallback: `also` must not be given with `batch_eval_metrics=True`.")
        given = (prediction.predictions, prediction.label_ids)
        logits, labels = (torch.as_tensor(value[0] if isinstance(value, tuple) else value) for value in given)
        add_batch(self.suite.to(logits.device), logits, labels)
        if not compute_result:
            return {}
        values = with_ends(self.measure(self.suite), self.metrics)
        self.suite.reset()
        return values if self.also is None else {**self.also(prediction), **values}

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add a row to the history and draw the diagram."""
        end = f"_{self.metrics[0]}_low"
        name = next((name.removesuffix(end) for name in metrics or {} if name.endswith(end)), None)
        if name is None or self.scores is None:
            raise ValueError(
                f"CalibrationCallback: the evaluation must give {self.metrics[0]!r}, got {', '.join(metrics or {})}. "
                "Pass `compute_metrics=callback.compute_metrics` to the Trainer."
            )
        epoch, step, scores = state.epoch, state.global_step, self.scores
        self.history.append({"name": name, "epoch": epoch, "step": step, "n": scores.n, **with_ends(scores, self.metrics)})
        if not state.is_world_process_zero:
            return
        if "tensorboard" not in (args.report_to or ()):
            self.show(scores, f"{name}/reliability", epoch, step, [])
            return
        from torch.utils.tensorboard import SummaryWriter

        # Where the Trainer's own callback writes if it was told where; otherwise it makes up a name from the time of day.
        folder = os.getenv("TENSORBOARD_LOGGING_DIR") or Path(str(args.output_dir)) / "runs" / "calibration"
        with SummaryWriter(log_dir=str(folder)) as board:
            self.show(scores, f"{name}/reliability", epoch, step, [board])
