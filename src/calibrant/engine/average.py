"""A running average of a network's weights, made inside the step and put in the network's place where predictions are made."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import compress

import torch
from torch import Tensor, nn

from calibrant.meta.network import gathering_norms


class WeightAverage:
    r"""Average of weights and BatchNorm statistics over steps.

    After the t-th step the average becomes :math:`\theta + k\,(\bar\theta - \theta)` with :math:`k = 1 - c/(t + c - 1)`, where
    1/c is the ``share`` of the steps that it remembers: for 1 it is uniform, below it later steps weigh more. For an
    exponential one k is at most the ``decay``, so that the weights which training began with are never in it. Before
    ``first_epoch`` it is the network itself. All of it happens in tensors of fixed address without a look at the host, so a
    captured step can hold it.

    Args:
        model: The network, its parameters and buffers where they will stay.
        decay: Most that k can be, in [0, 1), for an exponential average; None for others.
        share: Part of the steps so far that is remembered, in (0, 1].
        first_epoch: Epoch from whose beginning on steps count.
        by_phase: Whether it begins anew with every drop of the learning rate, and needs new statistics of BatchNorm before
            predictions are made (`renew`).
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
        decay: float | None,
        share: float = 1.0,
        first_epoch: int = 0,
        by_phase: bool = False,
        own_statistics: bool = False,
    ) -> None:
        self._decay, self._ahead, self._first = decay, 1 / share, first_epoch
        self.by_phase = by_phase
        state = {name: value for name, value in model.state_dict(keep_vars=True).items() if value.is_floating_point()}
        # A tensor that goes by several names is averaged once.
        tensors = {id(value): value.detach() for value in state.values()}
        means = {key: value.clone(memory_format=torch.preserve_format) for key, value in tensors.items()}
        self._values, self._means = list(tensors.values()), list(means.values())
        self.means = {name: means[id(value)] for name, value in state.items()}
        self.buffer_means = [means[id(buffer)] for buffer in model.buffers() if id(buffer) in means]
        norms = gathering_norms(model) if own_statistics else []
        apart = {id(value) for norm in norms for value in (norm.running_mean, norm.running_var)}
        kept = [key not in apart for key in tensors]
        self._followed = [list(compress(whole, kept)) for whole in (self._means, self._values)]
        some = self._values[0]
        self._count, self._active = some.new_zeros(()), some.new_zeros(())

    def network(self, model: nn.Module) -> nn.Module:
        """Return a copy of the network that has the averaged weights at any step, so that what steers training can look.

        Raises ``ValueError`` with one sentence if it cannot be copied.
        """
        try:
            found = copy.deepcopy(model).requires_grad_(False)
        except Exception as error:
            raise ValueError(
                "train: the network must be one that `copy.deepcopy` can copy, so that meta batches can pass its averaged "
                f"weights, got {type(model).__name__} ({type(error).__name__}: {str(error).partition('.')[0]}). Use "
                "`--set train.average=no`, or keep no computed tensors in the network."
            ) from None
        for name, value in found.state_dict(keep_vars=True).items():
            if name in self.means:
                value.data = self.means[name]
        return found

    def begin_epoch(self, epoch: int, *, anew: bool = False) -> None:
        """Count the steps of this epoch or not, and forget those before it if asked."""
        self._active.fill_(float(epoch >= self._first))
        if anew:
            self._count.zero_()

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights after a step."""
        self._count += self._active
        count = self._count.clamp(min=1)
        kept = (count - 1) / (count + (self._ahead - 1))
        kept = kept.clamp(max=1.0 if self._decay is None else self._decay)
        means, values = self._followed
        torch._foreach_sub_(means, values)
        torch._foreach_mul_(means, kept)
        torch._foreach_add_(means, values)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let the network have the averaged weights for a while."""
        own = [value.clone(memory_format=torch.preserve_format) for value in self._values]
        self._put(self._means)
        try:
            yield
        finally:
            self._put(own)

    @torch.no_grad()
    def renew(self, pass_batches: Callable[[], None]) -> None:
        """Let the network have the averaged weights while batches pass, and keep the statistics that it then has."""
        with self.applied():
            pass_batches()
            for mean, value in zip(self._means, self._values, strict=True):
                mean.copy_(value)

    def state(self) -> dict[str, Tensor]:
        """Every tensor that `update` changes, by name."""
        return {"count": self._count} | {f"mean.{name}": value for name, value in self.means.items()}

    @torch.no_grad()
    def _put(self, weights: list[Tensor]) -> None:
        for value, weight in zip(self._values, weights, strict=True):
            value.copy_(weight)
