"""One meta step, for one's own loop (`MetaLearner`) and for training by recipe alike: look ahead, step, project.

Everything that a step changes lies in tensors of fixed address, and nothing waits for the device: a CUDA graph can hold it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.meta.gamma_net import Values
from calibrant.meta.lookahead import Batch, Hypergradient, MetaObjective, head_hypergradient, total_norm, virtual_sgd
from calibrant.meta.regularizers import Regularizer
from calibrant.meta.settings import MetaSettings


class HeldOut(NamedTuple):
    """What a meta step reads of held-out data: penultimate ``features [M, d]`` and ``labels [M]``."""

    features: Tensor
    labels: Tensor


class HyperParameters:
    """Hyper-parameters of a regularizer, and the Adam that moves them.

    Args:
        regularizer: The training loss they belong to.
        settings: How they are stepped.
        head: The network's last layer, whose size, device and precision they follow.
        pace: How far a step moves what they control, where the settings name no learning rate; the regularizer's own if None.
        group: Processes that start with the first one's values, or None.
        generator: Source of the start's draw.

    Attributes:
        params: Name → value.
        adam: Their optimizer; on CUDA its learning rate is a tensor.
    """

    def __init__(
        self,
        regularizer: Regularizer,
        settings: MetaSettings,
        head: nn.Linear,
        *,
        pace: float | None = None,
        group: dist.ProcessGroup | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.regularizer, self.settings = regularizer, settings
        device, dtype = head.weight.device, torch.promote_types(head.weight.dtype, torch.float32)
        start = regularizer.init(head.in_features, head.out_features, bias=head.bias is not None, generator=generator)
        self.params = {name: value.to(device, dtype) for name, value in start.items()}
        if group is not None:
            for value in self.params.values():
                dist.broadcast(value, src=dist.get_global_rank(group, 0), group=group)
        lr = settings.meta_lr or (pace or regularizer.pace) / float(regularizer.speed(self.params))
        self._lr, captured = lr, _capturable(device)
        self.adam = torch.optim.Adam(
            list(self.params.values()), lr=lr, betas=settings.betas, eps=settings.eps, capturable=captured
        )
        if captured:
            self.adam.param_groups[0]["lr"] = torch.tensor(lr, device=device)
        for value in self.params.values():
            # Adam would make its state in the first step; a captured one must find it in place.
            count = torch.zeros((), device=device if captured else "cpu")
            self.adam.state[value] = {"step": count, "exp_avg": torch.zeros_like(value), "exp_avg_sq": torch.zeros_like(value)}

    @property
    def lr(self) -> float:
        """Learning rate; what is set here reaches a captured step too."""
        return self._lr

    @lr.setter
    def lr(self, lr: float) -> None:
        self._lr = lr
        held = self.adam.param_groups[0]["lr"]
        self.adam.param_groups[0]["lr"] = held.fill_(lr) if isinstance(held, Tensor) else lr

    @property
    def taken(self) -> int:
        """Steps taken, those left out not counted; waits for the device."""
        return int(next(iter(self.adam.state.values()))["step"])

    def relative_step(self) -> float:
        """Mean size of Adam's last step in units of its learning rate, after many steps; waits for the device."""
        states, eps = self.adam.state.values(), self.settings.eps
        return float(torch.cat([(s["exp_avg"].abs() / (s["exp_avg_sq"].sqrt() + eps)).reshape(-1) for s in states]).mean())

    @torch.no_grad()
    def step(self, grads: Values) -> None:
        """Take one step down ``grads`` and project; where they are not finite (an overflow, a bad batch) nothing changes."""
        finite = torch.isfinite(total_norm(grads))
        for name, value in self.params.items():
            value.grad = grads[name]
        state = list(self.state().values())
        before = [value.clone() for value in state]
        self.adam.step()
        for value, old in zip(state, before, strict=True):
            torch.where(finite, value, old, out=value)
        for name, allowed in self.regularizer.project(self.params).items():
            self.params[name].copy_(allowed)

    def state(self) -> dict[str, Tensor]:
        """Every tensor that a run must keep, by name; the values themselves come first."""
        kept = {f"hyper.{name}": value for name, value in self.params.items()}
        for name, value in self.params.items():
            kept |= {f"adam.{name}.{key}": entry for key, entry in self.adam.state[value].items()}
        return kept


def meta_step(
    hyper: HyperParameters,
    objective: MetaObjective,
    *,
    head: Values,
    batch: Batch,
    held_out: HeldOut,
    lr: float | Tensor,
    group: dist.ProcessGroup | None = None,
) -> Hypergradient:
    """Look one step of the head ahead, and move the hyper-parameters so that it lowers a held-out objective.

    Args:
        hyper: What is learned; changed in place.
        objective: ``(logits, labels) -> []``, what is minimised.
        head: Parameters of the layer that takes the virtual step.
        batch: The training batch.
        held_out: Held-out features and labels.
        lr: The network's learning rate, for a virtual step that follows it.
        group: Processes that share the step, or None for one.

    Returns:
        The objective's value after the virtual step, and the hypergradient.
    """
    found = head_hypergradient(
        hyper.regularizer,
        objective,
        hyper.params,
        head=head,
        batch=batch,
        meta_features=held_out.features,
        meta_labels=held_out.labels,
        step=hyper.settings.virtual_step(lr),
        group=group,
    )
    hyper.step(found.grads)
    return found


def leaked_value(
    hyper: HyperParameters, objective: MetaObjective, *, head: Values, batch: Batch, held_out: HeldOut, lr: float | Tensor
) -> Tensor:
    """Meta objective after a virtual step of the head, as a function ``[]`` of the network itself.

    The published code adds its gradient to the network's own, by not clearing it after the meta step. It reaches the network
    through the head and the features of both batches (which come with their graph). Late in training it can be as large as the
    training gradient: part of the calibration then comes from training on the held-out data directly. Hyper-parameters are
    held constant, and may change before the gradient is asked for.
    """
    step, loss = hyper.settings.virtual_step(lr), hyper.regularizer.loss
    fixed = {name: value.detach().clone() for name, value in hyper.params.items()}
    # Features from compiled code depend, for all that autograd knows, on every parameter, also on the head; the virtual step's
    # gradient is not to run through that code, which cannot be differentiated twice.
    own = {name: value.view_as(value) for name, value in head.items()}
    features, meta_features = (value.to(own["weight"].dtype) for value in (batch.features, held_out.features))
    logits = F.linear(features, own["weight"], own.get("bias"))
    total = loss(fixed, batch.features.detach(), logits, batch.labels, own).sum() * step.factor(len(batch.labels))
    found = torch.autograd.grad(total, list(own.values()), create_graph=True)
    virtual = virtual_sgd(own, dict(zip(own, found, strict=True)), lr=step.lr)
    return objective(F.linear(meta_features, virtual["weight"], virtual.get("bias")), held_out.labels)


def _capturable(device: torch.device) -> bool:
    return device.type == "cuda"
