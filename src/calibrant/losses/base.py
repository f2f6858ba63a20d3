"""What every objective shares: the two kinds of `nn.Module` facade, their sum, and the line each has in the tables.

The formulas are not here: each lives, as a plain function, in the file named after it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.core.lookup import lookup

Reduction: TypeAlias = Literal["mean", "sum", "none"]
_REDUCTIONS: dict[str, Reduction] = {"mean": "mean", "sum": "sum", "none": "none"}


class Objective(nn.Module):
    """Something to minimise: ``objective(logits, labels)``, which can be weighted (``0.5 * a``) and added (``a + b``).

    A facade keeps every argument of its constructor as an attribute of the same name; printing reads them back. What it
    needs besides logits and labels is named in ``inputs`` and passed by keyword.
    """

    inputs: ClassVar[tuple[str, ...]] = ()
    # ``value(logits, labels, **inputs)``: what the objective gives before any reduction, [B] for a loss, [] for a penalty.
    # A callable, like `forward` in `nn.Module`, so that each facade may state its own inputs.
    value: Callable[..., Tensor]
    # NumPy scalars would otherwise try to multiply an objective element by element.
    __array_ufunc__ = None

    def set_epoch(self, epoch: int) -> None:
        """Tell the objective which epoch, counted from 0, is about to run; most have no use for it."""

    def __add__(self, other: Objective) -> WeightedSum:
        if not isinstance(other, Objective):
            raise TypeError(
                f"{type(self).__name__}: `+` must join two objectives of calibrant.losses, got {type(other).__name__}."
            )
        return WeightedSum([(1.0, self), (1.0, other)])

    def __radd__(self, other: int) -> Objective:
        # The builtin `sum` starts from 0.
        if other == 0:
            return self
        raise TypeError(f"{type(self).__name__}: `+` must join two objectives of calibrant.losses, got {other!r}.")

    def __mul__(self, weight: float) -> WeightedSum:
        return WeightedSum([(weight, self)])

    def __rmul__(self, weight: float) -> WeightedSum:
        return self * weight

    def __repr__(self) -> str:
        parameters = inspect.signature(type(self).__init__).parameters.values()
        names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
        kept = [name for name in names if name != "reduction" or getattr(self, name) != "mean"]
        return f"{type(self).__name__}({', '.join(f'{name}={_say(getattr(self, name))}' for name in kept)})"

    def _check_inputs(self, inputs: Mapping[str, Tensor]) -> None:
        for name in inputs:
            if name not in self.inputs:
                known = dict.fromkeys(self.inputs)
                if known:
                    lookup(known, name, kind=f"input of {type(self).__name__}")
                raise ValueError(f"{type(self).__name__}: takes logits and labels only, got `{name}`.")
        for name in self.inputs:
            if name not in inputs:
                raise ValueError(f"{type(self).__name__}: `{name}` must be given as a keyword argument, got nothing.")


class Loss(Objective):
    """Facade of a per-sample loss: ``value`` gives ``[B]``, and ``reduction`` says what becomes of it.

    Args:
        reduction: "mean" (scalar), "sum" (scalar) or "none" (``[B]``).
    """

    reduction: Reduction

    def __init__(self, *, reduction: Reduction = "mean") -> None:
        super().__init__()
        self.reduction = check_reduction(reduction, where=type(self).__name__)

    def forward(self, logits: Tensor, labels: Tensor, **inputs: Tensor) -> Tensor:
        """Return the reduced loss of a batch."""
        self._check_inputs(inputs)
        return reduce_loss(self.value(logits, labels, **inputs), self.reduction)


class Penalty(Objective):
    """Facade of a batch penalty: ``value`` gives a scalar ``[]`` that needs the whole batch. Usable alone as a loss."""

    def forward(self, logits: Tensor, labels: Tensor, **inputs: Tensor) -> Tensor:
        """Return the penalty of a batch."""
        self._check_inputs(inputs)
        return self.value(logits, labels, **inputs)


class WeightedSum(Objective):
    r"""Sum of weighted objectives, :math:`\sum_t w_t L_t`, as written: ``FocalLoss(gamma=3) + 0.5 * MDCA()``.

    The losses in it must share one reduction, which becomes that of the sum. A weight means the same under all three: with
    "mean" a penalty is added once, with "sum" it is multiplied by the batch size, and with "none" every sample's loss
    carries the whole penalty, so that the mean of the ``[B]`` values is the "mean" result. A sum of penalties is a scalar.

    Args:
        terms: Pairs (weight, objective); weights are finite and not negative.

    Example:
        >>> from calibrant.losses import CrossEntropyLoss, FocalLoss
        >>> loss = FocalLoss(gamma=3) + 0.5 * CrossEntropyLoss()
        >>> loss
        FocalLoss(gamma=3) + 0.5 * CrossEntropyLoss(label_smoothing=0)
        >>> loss(torch.zeros(2, 4), torch.tensor([0, 3]))
        tensor(1.2780)
    """

    weights: tuple[float, ...]
    reduction: Reduction | None

    def __init__(self, terms: Iterable[tuple[float, Objective]]) -> None:
        super().__init__()
        pairs = [(float(weight) * own, term) for weight, given in terms for own, term in weighted_terms(given, by=weight)]
        if not pairs:
            raise ValueError("WeightedSum: `terms` must hold at least one objective, got none.")
        self.weights = tuple(weight for weight, _ in pairs)
        self.terms = nn.ModuleList(term for _, term in pairs)
        reductions = {term.reduction for _, term in pairs if isinstance(term, Loss)}
        if len(reductions) > 1:
            raise ValueError(
                f"WeightedSum: losses added together must share one `reduction`, got {', '.join(sorted(reductions))}."
            )
        self.reduction = next(iter(reductions), None)

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the keyword arguments that some term needs besides logits and labels."""
        return tuple(dict.fromkeys(name for term in self.objectives for name in term.inputs))

    @property
    def objectives(self) -> Sequence[Objective]:
        """The terms without their weights."""
        return [term for term in self.terms if isinstance(term, Objective)]

    def set_epoch(self, epoch: int) -> None:
        """Tell every term which epoch, counted from 0, is about to run."""
        for term in self.objectives:
            term.set_epoch(epoch)

    def value(self, logits: Tensor, labels: Tensor, **inputs: Tensor) -> Tensor:
        """Return the weighted sum before reduction: ``[B]`` where a loss is in it, else ``[]``."""
        total: Tensor | None = None
        for weight, term in zip(self.weights, self.objectives, strict=True):
            part = term.value(logits, labels, **{name: inputs[name] for name in term.inputs})
            part = part if weight == 1 else weight * part
            total = part if total is None else total + part
        assert total is not None
        return total

    def forward(self, logits: Tensor, labels: Tensor, **inputs: Tensor) -> Tensor:
        """Return the weighted sum over a batch, reduced as its losses are."""
        self._check_inputs(inputs)
        total = self.value(logits, labels, **inputs)
        return total if self.reduction is None else reduce_loss(total, self.reduction)

    def __repr__(self) -> str:
        parts = zip(self.weights, self.terms, strict=True)
        return " + ".join(repr(term) if weight == 1 else f"{_say(weight)} * {term!r}" for weight, term in parts)


@dataclass(frozen=True)
class Entry:
    """A line of the tables ``LOSSES`` and ``PENALTIES``: the objective, and what its document says of it.

    Attributes:
        function: ``(logits, labels, *, ...) -> [B]`` (loss) or ``[]`` (penalty).
        module: Its facade; same hyper-parameters, same defaults.
        source: Where the default hyper-parameters come from.
        reference: Authors, venue, year and, where the text could be checked, equation or section.
        code: Repository, file and name of the authors' released code, or of what stands for it; empty if there is none.
        required: Hyper-parameters without a default, with a value to try (dual focal's gamma).
        soft_targets: Whether ``labels`` may be probabilities ``[B, C]``.
        twice: Whether it has a second derivative almost everywhere that is not merely zero.
        kernel: Whether it sums over pairs of samples (slower, by nature).
    """

    function: Callable[..., Tensor]
    module: Callable[..., Objective]
    source: str
    reference: str
    code: str = ""
    required: Mapping[str, object] = field(default_factory=dict)
    soft_targets: bool = False
    twice: bool = True
    kernel: bool = False

    @property
    def summary(self) -> str:
        """First line of the function's docstring."""
        return (inspect.getdoc(self.function) or "").split("\n", 1)[0]

    @property
    def defaults(self) -> dict[str, object]:
        """Hyper-parameter → default of the function; those that must be given are left out."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}


def check_reduction(reduction: str, *, where: str) -> Reduction:
    """Return ``reduction`` if it is one; else raise with the three names."""
    if reduction not in _REDUCTIONS:
        raise ValueError(f"{where}: `reduction` must be one of 'mean', 'sum', 'none', got {reduction!r}.")
    return _REDUCTIONS[reduction]


def reduce_loss(values: Tensor, reduction: Reduction) -> Tensor:
    """Reduce per-sample ``values [B]``: their mean, their sum, or as they are."""
    if reduction == "mean":
        return values.mean()
    return values.sum() if reduction == "sum" else values


def weighted_terms(objective: Objective, *, by: float = 1.0) -> list[tuple[float, Objective]]:
    """Return the (weight, term) pairs of ``objective``; ``by`` is checked as a weight about to multiply them."""
    number = isinstance(by, (int, float, np.number)) and not isinstance(by, bool)
    if not number or not math.isfinite(by) or by < 0:
        raise ValueError(f"{type(objective).__name__}: its weight in a sum must be a finite number >= 0, got {by!r}.")
    if isinstance(objective, WeightedSum):
        return list(zip(objective.weights, objective.objectives, strict=True))
    return [(1.0, objective)]


def _say(value: object) -> str:
    if isinstance(value, float) and math.isfinite(value):
        return repr(value).removesuffix(".0")
    return f"tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
