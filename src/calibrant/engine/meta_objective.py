"""A training loss with learnable hyper-parameters, improved on held-out batches inside the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from calibrant.engine.batches import Batch, MetaBatches
from calibrant.engine.features import FeatureFunction
from calibrant.engine.optim import allocate_state
from calibrant.engine.step import Precision
from calibrant.meta.lookahead import head_hypergradient
from calibrant.meta.regularizers import Regularizer
from calibrant.meta.virtual import Batch as Seen
from calibrant.meta.virtual import VirtualStep

MetaBatchNorm = Literal["batch", "update", "frozen"]


class MetaObjective:
    """Minimise a regularizer's loss, and move its hyper-parameters so that the next step lowers a held-out objective.

    Args:
        regularizer: The training loss with hyper-parameters.
        objective: ``(logits, labels) -> []``, what is minimised on meta batches.
        hyper: Values to start from, on the device.
        head: The network's classifier, which takes the look-ahead step.
        model: The network.
        forward: Images → (features, logits) of the network.
        batches: Meta batches.
        step: The virtual step.
        optimizer: Builds the optimizer of the hyper-parameters.
        reduction: How the training loss of a batch is reduced.
        precision: Arithmetic of the network's forward pass.
        batch_norm: What BatchNorm does on meta batches: "batch" statistics without keeping them, "update" the running ones as
            the published code does, or use them "frozen".
    """

    has_meta = True

    def __init__(
        self,
        regularizer: Regularizer,
        objective: Callable[[Tensor, Tensor], Tensor],
        *,
        hyper: dict[str, Tensor],
        head: nn.Linear,
        model: nn.Module,
        forward: FeatureFunction,
        batches: MetaBatches,
        step: VirtualStep,
        optimizer: Callable[[Sequence[Tensor]], torch.optim.Optimizer],
        reduction: Literal["sum", "mean"],
        precision: Precision,
        batch_norm: MetaBatchNorm = "batch",
    ) -> None:
        self.regularizer, self.objective, self.head, self.model = regularizer, objective, head, model
        self.forward, self.batches, self.step, self.reduction = forward, batches, step, reduction
        self.precision, self.batch_norm = precision, batch_norm
        self.hyper = {name: nn.Parameter(value) for name, value in hyper.items()}
        self.optimizer = allocate_state(optimizer(list(self.hyper.values())))
        self.value = torch.zeros((), device=head.weight.device)

    def begin_epoch(self, epoch: int) -> None:
        """Draw the epoch's meta batches."""
        self.batches.begin_epoch(epoch)

    def inputs(self, batch: Batch) -> Tensor:
        """Return the images as they are."""
        return batch.images

    def meta_update(self, batch: Batch, features: Tensor, logits: Tensor) -> None:
        """Look one step of the head ahead, and step the hyper-parameters down the held-out objective."""
        meta = self.batches.next()
        kind = meta.images.device.type
        with torch.no_grad(), meta_batch_norm(self.model, self.batch_norm):
            with torch.autocast(kind, dtype=torch.bfloat16, enabled=self.precision == "bf16"):
                seen, _ = self.forward(meta.images)
        found = head_hypergradient(
            self.regularizer,
            self.objective,
            self.hyper,
            head=self._head(),
            batch=Seen(features, logits, batch.labels),
            meta_features=seen.float() if self.precision == "bf16" else seen,
            meta_labels=meta.labels,
            step=self.step,
        )
        for name, value in self.hyper.items():
            value.grad = found.grads[name]
        self.optimizer.step()
        with torch.no_grad():
            for name, allowed in self.regularizer.project(self.hyper).items():
                self.hyper[name].copy_(allowed)
            self.value.copy_(found.value)

    def loss(self, batch: Batch, features: Tensor, logits: Tensor) -> Tensor:
        """Return the regularizer's loss ``[]`` with the hyper-parameters as constants."""
        fixed = {name: value.detach() for name, value in self.hyper.items()}
        values = self.regularizer.loss(fixed, features.detach(), logits, batch.labels, dict(self.head.named_parameters()))
        return values.sum() if self.reduction == "sum" else values.mean()

    def gamma(self, features: Tensor) -> Tensor:
        """Return the gamma of every sample ``[B]``, for regularizers that have one."""
        rule: Callable[[dict[str, nn.Parameter], Tensor], Tensor] = self.regularizer.gamma  # type: ignore[attr-defined]
        return rule(self.hyper, features).detach()

    def state(self) -> Sequence[Tensor]:
        """Return hyper-parameters, their optimizer's state and the meta cursor."""
        kept = [value for entry in self.optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]
        return [*self.hyper.values(), *kept, self.value, *self.batches.state()]

    def _head(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.head.named_parameters()}


@contextmanager
def meta_batch_norm(model: nn.Module, mode: MetaBatchNorm) -> Iterator[None]:
    """Set how BatchNorm layers treat a meta batch, and put them back."""
    layers = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.training]
    if mode == "batch":
        # A layer in training that does not track passes no running statistics to the kernel: it uses the batch's, keeps none.
        for layer in layers:
            layer.track_running_stats = False
    elif mode == "frozen":
        for layer in layers:
            layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.track_running_stats = True
            layer.train()
