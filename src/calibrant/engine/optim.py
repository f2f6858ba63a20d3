"""What moves the weights, and what is made of them: optimizer, learning rate of every epoch, running averages.

All of it changes tensors of fixed address without a look at the host, so a captured step can hold it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from calibrant.engine.recipe import OptimPart, TrainPart
from calibrant.meta.network import gathering_norms


def build_optimizer(parameters: Iterable[Tensor], part: OptimPart) -> Optimizer:
    """Build SGD or AdamW with its state allocated.

    On CUDA the learning rate is a tensor and the update fused, so that one captured step serves every schedule. Momentum starts
    as an explicit zero, which gives the same first step as none.
    """
    values = [p for p in parameters if p.requires_grad]
    cuda = values[0].is_cuda
    rate: float | Tensor = torch.tensor(part.lr, device=values[0].device) if cuda else part.lr
    optimizer: Optimizer
    if part.name == "adamw":
        optimizer = AdamW(values, lr=rate, weight_decay=part.weight_decay, capturable=cuda, fused=cuda)
        kept = ["exp_avg", "exp_avg_sq"]
    else:
        optimizer = SGD(values, rate, part.momentum, weight_decay=part.weight_decay, nesterov=part.nesterov, fused=cuda)
        kept = ["momentum_buffer"] if part.momentum else []
    for value in values:
        optimizer.state[value] = {name: torch.zeros_like(value, memory_format=torch.preserve_format) for name in kept}
        if part.name == "adamw":
            optimizer.state[value]["step"] = torch.zeros((), device=value.device if cuda else "cpu")
    return optimizer


def set_learning_rate(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of every group, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr


def learning_rate(part: OptimPart, epoch: int, *, epochs: int) -> float:
    """Learning rate of an epoch under a recipe.

    Example:
        >>> [learning_rate(OptimPart(), epoch, epochs=350) for epoch in (0, 149, 150, 250)]
        [0.1, 0.1, 0.010000000000000002, 0.0010000000000000002]
        >>> [learning_rate(OptimPart(schedule="constant", warmup_epochs=4), epoch, epochs=10) for epoch in (0, 1, 3, 8)]
        [0.025, 0.05, 0.1, 0.1]
    """
    rate = part.lr
    if part.schedule == "cosine":
        rate = part.lr * (1 + math.cos(math.pi * (epoch / epochs))) / 2
    elif part.schedule == "multistep":
        rate = part.lr * part.decay ** sum(epoch >= milestone for milestone in _milestones(part, epochs))
    return rate * min(1.0, (epoch + 1) / part.warmup_epochs) if part.warmup_epochs > 0 else rate


def drops(part: OptimPart, epoch: int, *, epochs: int) -> bool:
    """Whether a milestone of the learning rate is reached with this epoch.

    Example:
        >>> [epoch for epoch in range(350) if drops(OptimPart(), epoch, epochs=350)]
        [150, 250]
    """
    return part.schedule == "multistep" and any(epoch - 1 < place <= epoch for place in _milestones(part, epochs))


def _milestones(part: OptimPart, epochs: int) -> Sequence[float]:
    if part.milestones_epochs is not None:
        return part.milestones_epochs
    # The paper drops at 150 and 250 of 350 epochs; other lengths keep the proportions, but the first epoch has the rate that
    # was asked for and no two drops come together.
    first = max(1, round(epochs * 3 / 7))
    return first, max(first + 1, round(epochs * 5 / 7))


class WeightAverage:
    r"""Average of weights and BatchNorm statistics over steps.

    After the t-th step the average becomes :math:`\theta + k\,(\bar\theta - \theta)` with :math:`k = 1 - c/(t + c - 1)`, where
    1/c is the ``share`` of the steps that it remembers: for 1 it is uniform, below it later steps weigh more. For an
    exponential one k is at most the ``decay``, so that the weights which training began with are never in it.

    Args:
        model: The network, its parameters and buffers where they will stay.
        decay: Most that k can be, in [0, 1), for an exponential average; None for others.
        share: Part of the steps so far that is remembered, in (0, 1].
        by_phase: Whether it begins anew with every drop of the learning rate, and needs new statistics of BatchNorm before
            predictions are made (`applied` with ``keep``).
        own_statistics: Whether those that BatchNorm learns are left out, to be learned from what passes through its network.
            Averaged ones belong to the single networks, whose activations vary more than those of a far-reaching average.

    Reference:
        Polyak and Juditsky, SIAM J. Control Optim. 1992; over the tail of training, with new statistics, Izmailov et al., UAI
        2018; later steps weighing more, Shamir and Zhang, ICML 2013 (polynomial-decay averaging).
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        decay: float | None = None,
        share: float = 1.0,
        by_phase: bool = False,
        own_statistics: bool = False,
    ) -> None:
        self._decay, self._ahead, self.by_phase = 1.0 if decay is None else decay, 1 / share, by_phase
        state = model.state_dict()
        self._values = {name: value.detach() for name, value in state.items() if value.is_floating_point()}
        self.means = {name: value.clone(memory_format=torch.preserve_format) for name, value in self._values.items()}
        self.buffer_means = [self.means[name] for name, _ in model.named_buffers() if name in self.means]
        norms = gathering_norms(model) if own_statistics else []
        apart = {value.data_ptr() for norm in norms for value in (norm.running_mean, norm.running_var) if value is not None}
        followed = [name for name, value in self._values.items() if value.data_ptr() not in apart]
        self._followed = [self.means[name] for name in followed], [self._values[name] for name in followed]
        self._count = next(iter(self._values.values())).new_zeros(())

    def network(self, model: nn.Module) -> nn.Module:
        """Return a copy of the network that has the averaged weights at any step, so that what steers training can look."""
        found = copy.deepcopy(model).requires_grad_(False)
        for name, value in found.state_dict(keep_vars=True).items():
            if name in self.means:
                value.data = self.means[name]
        return found

    def forget(self) -> None:
        """Begin anew with the next step."""
        self._count.zero_()

    def next_share(self) -> Tensor:
        """What the average will take of the weights after the step to come, ``[]``."""
        return 1 - self._kept()

    def _kept(self) -> Tensor:
        t = self._count + 1
        kept: Tensor = (t - 1) / (t + (self._ahead - 1))
        return kept.clamp(max=self._decay)

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        kept = self._kept()
        self._count += 1
        means, values = self._followed
        torch._foreach_sub_(means, values)
        torch._foreach_mul_(means, kept)
        torch._foreach_add_(means, values)

    @contextmanager
    def applied(self, *, keep: bool = False) -> Iterator[None]:
        """Let the network have the averaged weights for a while; ``keep`` takes over what becomes of them, as statistics do."""
        own = {name: value.clone(memory_format=torch.preserve_format) for name, value in self._values.items()}
        _copy(self.means, self._values)
        try:
            yield
            if keep:
                _copy(self._values, self.means)
        finally:
            _copy(own, self._values)

    def state(self) -> dict[str, Tensor]:
        """Every tensor that `update` changes, by name."""
        return {"count": self._count} | {f"mean.{name}": value for name, value in self.means.items()}


@torch.no_grad()
def _copy(source: dict[str, Tensor], target: dict[str, Tensor]) -> None:
    for name, value in target.items():
        value.copy_(source[name])


def build_averages(model: nn.Module, train: TrainPart, *, steps: int, watched: bool) -> dict[str, WeightAverage]:
    """Make the averages of a run: the one that predicts and, where it must be another, the one that meta batches go through.

    The longer an average's memory, the later it shows what gamma has done; what steers by it then swings. So by phase there
    are two: "average" predicts, and meta batches, if they are to be ``watched``, go through "watch".
    """
    if train.average == "no":
        return {}
    decay = 1 - 1 / average_memory(train, steps)
    if train.average == "ema":
        return {"average": WeightAverage(model, decay=decay)}
    found = {"average": WeightAverage(model, share=train.average_share, by_phase=True)}
    if watched:
        found["watch"] = WeightAverage(model, decay=decay, own_statistics=True)
    return found


def average_memory(train: TrainPart, steps: int) -> float:
    """Steps that an exponential average remembers in a run of this length, even if none is kept.

    Three epochs of CIFAR-10 are long enough to even the steps out; in a short run that would reach back to its beginning.
    """
    if train.average != "no" and train.average_decay is not None:
        return 1 / (1 - train.average_decay)
    return min(max(steps / 50, 1.0), 1000.0)
