"""Calibrated training and calibration logs for Lightning: a mix-in for modules and a callback for any trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any, cast

import lightning.pytorch as pl
import torch.distributed as dist
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from calibrant.core.collect import split_batch
from calibrant.integrations.trackers import Recorder, add_batch, with_ends
from calibrant.meta import MetaLearner
from calibrant.meta.step import own_randomness
from calibrant.metrics.streaming import CalibrationSuite

__all__ = ["CalibratedMixin", "CalibrationCallback", "meta_learner"]

# Entry of a checkpoint.
_STATE = "calibrant_meta_learner"


def meta_learner(module: pl.LightningModule, network: nn.Module, **options: Any) -> MetaLearner:
    """Make a learner that steps through Lightning: its optimizer, precision, backward pass and processes.

    Call it once the trainer has set everything up, as in ``on_train_start``, in a module with
    ``automatic_optimization = False``; `CalibratedMixin` does.

    Args:
        module: The module in training, with one optimizer.
        network: The module or the part of it that maps inputs to logits.
        options: Arguments of `calibrant.meta.MetaLearner`.

    Returns:
        The learner. Raises ``ValueError`` with several optimizers and with strategies that split the network over processes.
    """
    optimizer, strategy = module.optimizers(), module.trainer.strategy
    if isinstance(optimizer, list):
        raise ValueError(f"meta_learner: `module` must have one optimizer, got {len(optimizer)}.")
    if not isinstance(strategy, DDPStrategy | SingleDeviceStrategy):
        name = type(strategy).__name__
        raise ValueError(f'meta_learner: `strategy` must keep the network whole in every process, got {name}. Use "ddp".')
    return MetaLearner(
        network,
        cast(Optimizer, optimizer),  # Lightning's wrapper stands in for it.
        backward=module.manual_backward,
        process_group=dist.group.WORLD if isinstance(strategy, DDPStrategy) and dist.is_initialized() else None,
        scaler=getattr(module.trainer.precision_plugin, "scaler", None),
        **options,
    )


class CalibratedMixin(pl.LightningModule):
    """Trains a LightningModule by a `MetaLearner`; put it before the module's own class.

    The module says what to learn in ``configure_learner``; this class takes the steps, moves learning-rate schedulers as
    automatic optimization would (except ``ReduceLROnPlateau``), logs ``train_loss`` and keeps the learner in checkpoints. The
    module's own ``training_step`` is not used. Batches are (x, labels), or mappings with the labels under "labels".

    Example:
        >>> from calibrant.meta import MetaBatches
        >>> class Plain(pl.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.net = nn.Linear(4, 3)
        >>> class Calibrated(CalibratedMixin, Plain):
        ...     def configure_learner(self):
        ...         return meta_learner(self, self.net, meta_batches=self.held_out)
        >>> Calibrated().automatic_optimization
        False
    """

    automatic_optimization = False
    learner: MetaLearner
    _resumed: Mapping[str, Any] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        steps = [base for base in cls.__mro__ if issubclass(base, pl.LightningModule) and "training_step" in vars(base)]
        if not issubclass(steps[0], CalibratedMixin):
            raise TypeError(f"{cls.__name__}: CalibratedMixin must be its first base class.")

    def configure_learner(self) -> MetaLearner:
        """Return the learner, made by `meta_learner`; called when training starts."""
        raise TypeError(f"{type(self).__name__}: `configure_learner` must return `meta_learner(self, ...)`.")

    def on_train_start(self) -> None:
        """Make the learner, and let it continue from a checkpoint."""
        super().on_train_start()
        # A module may have restored the random numbers of a checkpoint by now: dropout must go on with them.
        with own_randomness(self.device):
            self.learner = self.configure_learner()
        if self._resumed is not None:
            self.learner.load_state_dict(self._resumed)
            self._resumed = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        """Take one step of the learner and return its loss."""
        x, labels = split_batch(batch, where="CalibratedMixin")
        info = self.learner.step(x, labels)
        self.log("train_loss", info.loss)
        if info.stepped:
            self._move_schedulers("step", self.learner.steps)
        return info.loss

    def on_train_epoch_end(self) -> None:
        """Move the schedulers that count epochs."""
        super().on_train_epoch_end()
        self._move_schedulers("epoch", self.current_epoch + 1)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Keep the learner's state beside the module's."""
        super().on_save_checkpoint(checkpoint)
        if hasattr(self, "learner"):
            checkpoint[_STATE] = self.learner.state_dict()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Read the learner's state from the checkpoint, for the start of training."""
        super().on_load_checkpoint(checkpoint)
        self._resumed = checkpoint.get(_STATE)

    def _move_schedulers(self, interval: str, count: int) -> None:
        for config in self.trainer.lr_scheduler_configs:
            due = config.interval == interval and count % config.frequency == 0
            if due and not isinstance(config.scheduler, ReduceLROnPlateau):
                self.lr_scheduler_step(config.scheduler, None)


class CalibrationCallback(Recorder, pl.Callback):
    """Logs the calibration error of every validation (and test) with its 95 % interval, and draws reliability diagrams.

    It logs ``ece``, ``ece_low`` and ``ece_high``, and the same of every other entry of ``metrics``. Names begin with ``test_``
    in a test, and end in "/dataloader_1" where there are several loaders. The state is of constant size; under DDP it is that
    of all processes. Figures go to every `TensorBoardLogger`.

    Args:
        num_classes: Number of classes C.
        extract: ``(outputs, batch) -> (logits, labels)`` of a validation step, where ``outputs`` is what it returned. By
            default the step returns logits, or a mapping with "logits" and perhaps "labels"; labels are otherwise the batch's.
        prefix: Put before every name that is logged.
        options: ``n_bins=15``, ``metrics=("ece",)``, ``n_resamples=1000`` and ``log_figure=None`` of `Recorder`, which also
            says what ``history`` and ``scores`` hold.

    Example:
        >>> callback = CalibrationCallback(num_classes=10, metrics=("ece", "nll"))
        >>> trainer = pl.Trainer(callbacks=[callback], accelerator="cpu", logger=False, enable_checkpointing=False)
        >>> callback.history
        []
    """

    def __init__(
        self,
        *,
        num_classes: int,
        extract: Callable[[Any, Any], tuple[Tensor, Tensor]] | None = None,
        prefix: str = "",
        **options: Any,
    ) -> None:
        super().__init__(num_classes=num_classes, **options)
        self.extract, self.prefix = extract if extract is not None else logits_and_labels, prefix
        self._suites: list[CalibrationSuite] = []

    def on_validation_epoch_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Start with an empty state for every loader, on the module's device, where the processes of a cluster can talk."""
        loaders = trainer.num_test_batches if trainer.testing else trainer.num_val_batches
        self._suites = [deepcopy(self.suite).to(pl_module.device) for _ in loaders]

    on_test_epoch_start = on_validation_epoch_start

    def on_validation_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Add a batch."""
        add_batch(self._suites[dataloader_idx], *self.extract(outputs, batch))

    on_test_batch_end = on_validation_batch_end

    def on_validation_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Log what was measured."""
        if trainer.sanity_checking:
            return
        stage, before = ("test", f"test_{self.prefix}") if trainer.testing else ("val", self.prefix)
        epoch, step = trainer.current_epoch, trainer.global_step
        for loader, suite in enumerate(self._suites):
            after = f"/dataloader_{loader}" if len(self._suites) > 1 else ""
            scores = self.measure(suite)
            values = with_ends(scores, self.metrics)
            # Every process holds the numbers of all; their mean changes nothing, and Lightning warns without it.
            pl_module.log_dict({f"{before}{key}{after}": value for key, value in values.items()}, sync_dist=True)
            self.history.append({"stage": stage, "epoch": epoch, "step": step, "loader": loader, "n": scores.n} | values)
            if trainer.is_global_zero:
                boards = [logger.experiment for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
                self.show(scores, f"{before}reliability{after}", epoch, step, boards)

    on_test_epoch_end = on_validation_epoch_end


def logits_and_labels(outputs: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Logits and labels of a validation step that returned the logits, or a mapping with "logits" and perhaps "labels"."""
    found = outputs if isinstance(outputs, Mapping) else {"logits": outputs}
    logits = found.get("logits")
    if not isinstance(logits, Tensor) or logits.ndim < 2:
        raise ValueError(
            f"CalibrationCallback: `validation_step` must return logits [B, C] or a mapping with 'logits', got "
            f"{type(outputs).__name__}. Or pass `extract=lambda outputs, batch: (logits, labels)`."
        )
    return logits, found["labels"] if "labels" in found else split_batch(batch, where="CalibrationCallback")[1]
