"""What every objective shares: the two kinds of `nn.Module` facade, their sum, and the line each has in the tables.

The formulas are not here: each lives, as a plain function, in the file named after it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from calibrant.core.registry import lookup
from calibrant.losses.labelled import Rows, check_class_weight, check_ignore_index, from_rows, to_rows, weight_of_rows
from calibrant.losses.logprob import widen

Reduction: TypeAlias = Literal["mean", "sum", "none"]
_REDUCTIONS: dict[str, Reduction] = {"mean": "mean", "sum": "sum", "none": "none"}


class Shared(TypedDict, total=False):
    """Arguments that every facade takes besides its own, as `torch.nn.CrossEntropyLoss` does."""

    ignore_index: int | None
    weight: Tensor | None


class Objective(nn.Module):
    """Something to minimise: ``objective(logits, labels)``, which can be weighted (``0.5 * a``) and added (``a + b``).

    Logits are ``[B, C]`` with labels ``[B]``, or dense, ``[B, C, d1, ...]`` with labels ``[B, d1, ...]``: every position is a
    sample. A facade keeps every argument of its constructor as an attribute of the same name; printing reads them back.
    What it needs besides logits and labels is named in ``inputs`` and passed by keyword.

    Args:
        ignore_index: Label of the samples to leave out, or None. The rest is what it would be without them; a batch
            of nothing else gives 0.
    """

    inputs: ClassVar[tuple[str, ...]] = ()
    reduction: Reduction | None = None
    ignore_index: int | None = None
    # Whether there is nothing to do for logits [B, C] but to call `value`.
    _plain = True
    # ``value(logits, labels, **inputs)``: what the objective gives before any reduction, [B] for a loss, [] for a penalty.
    # A callable, like `forward` in `nn.Module`, so that each facade may state its own inputs.
    value: Callable[..., Tensor]
    # NumPy scalars would otherwise try to multiply an objective element by element.
    __array_ufunc__ = None

    def __init__(self, *, ignore_index: int | None = None) -> None:
        super().__init__()
        self.ignore_index = check_ignore_index(ignore_index, where=type(self).__name__)
        self._plain = ignore_index is None

    def forward(self, logits: Tensor, labels: Tensor, **inputs: Tensor) -> Tensor:
        """Return the objective of a batch, reduced."""
        self._check_inputs(inputs)
        if self._plain and not (isinstance(logits, Tensor) and logits.ndim > 2):
            return self._reduced(logits, labels, inputs, self.reduction)
        rows = to_rows(logits, labels, inputs, ignore_index=self.ignore_index, where=type(self).__name__)
        if len(rows.labels):
            found = self._of_rows(rows, self.reduction)
        else:
            found = widen(rows.logits)[:, 0]
            found = found if self.reduction == "none" else found.sum()
        return from_rows(found, rows) if self.reduction == "none" else found

    def _reduced(self, logits: Tensor, labels: Tensor, inputs: Mapping[str, Tensor], reduction: Reduction | None) -> Tensor:
        """Value of logits ``[B, C]``, reduced; overridden where a closed form does both at once."""
        total = self.value(logits, labels, **inputs)
        return total if reduction is None else reduce_loss(total, reduction)

    def _of_rows(self, rows: Rows, reduction: Reduction | None) -> Tensor:
        """Value of the rows, reduced; a penalty in a sum over rows counts once for each."""
        value = self._reduced(rows.logits, rows.labels, self._own(rows.inputs), None)
        return len(rows.labels) * value if reduction == "sum" else value

    def _own(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: inputs[name] for name in self.inputs}

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
        names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in Shared.__annotations__]
        kept = [name for name in names if name != "reduction" or getattr(self, name) != "mean"]
        kept += [name for name in Shared.__annotations__ if getattr(self, name, None) is not None]
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


def refuse_unknown(kind: type[Objective], unknown: Mapping[str, object]) -> None:
    """Raise ``TypeError`` naming the class and the nearest of its arguments, where one is none of them."""
    for name in unknown:
        known = [p.name for p in inspect.signature(kind).parameters.values() if p.kind is p.KEYWORD_ONLY]
        try:
            lookup(dict.fromkeys([*known, *Shared.__annotations__]), name, kind=f"argument of {kind.__name__}")
        except ValueError as error:
            raise TypeError(str(error)) from None


class Loss(Objective):
    """Facade of a per-sample loss: ``value`` gives ``[B]``, and ``reduction`` says what becomes of it.

    Args:
        reduction: "mean" (scalar), "sum" (scalar) or "none" (the labels' shape, 0 where ignored).
        ignore_index: Label of the samples to leave out, or None.
        weight: Weight of every class ``[C]``, or None. A sample counts as its class does, and the mean is divided by the sum
            of the samples' weights.
    """

    reduction: Reduction
    weight: Tensor | None

    def __init__(
        self,
        *,
        reduction: Reduction = "mean",
        ignore_index: int | None = None,
        weight: Tensor | None = None,
        **unknown: object,
    ) -> None:
        refuse_unknown(type(self), unknown)
        super().__init__(ignore_index=ignore_index)
        where = type(self).__name__
        self.reduction = check_reduction(reduction, where=where)
        if weight is None:
            self.weight = None
        else:
            check_class_weight(weight, where=where)
            self.register_buffer("weight", weight.clone())
            self._plain = False

    def _of_rows(self, rows: Rows, reduction: Reduction | None) -> Tensor:
        assert reduction is not None
        if self.weight is None:
            return self._reduced(rows.logits, rows.labels, self._own(rows.inputs), reduction)
        values, share = self._weighted(rows, self.weight)
        if reduction != "mean":
            return reduce_loss(values, reduction)
        # Samples of no weight make nothing, and not 0/0.
        return values.sum() / share.sum().clamp(min=torch.finfo(share.dtype).tiny)

    def _weighted(self, rows: Rows, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Values ``[K]`` times the weights of their classes, and these weights."""
        values = self.value(rows.logits, rows.labels, **self._own(rows.inputs))
        share = weight_of_rows(weight.to(values.dtype), rows, where=type(self).__name__)
        return share * values, share


class Penalty(Objective):
    """Facade of a batch penalty: ``value`` gives a scalar ``[]`` that needs the whole batch. Usable alone as a loss.

    Args:
        ignore_index: Label of the samples to leave out, or None.
        weight: Only losses have one: raises ``ValueError`` unless None.
    """

    def __init__(self, *, ignore_index: int | None = None, weight: Tensor | None = None, **unknown: object) -> None:
        refuse_unknown(type(self), unknown)
        super().__init__(ignore_index=ignore_index)
        if weight is not None:
            raise ValueError(
                f"{type(self).__name__}: `weight` must not be given, as a penalty is about the batch as a whole. "
                "Give it to the loss beside the penalty."
            )


class WeightedSum(Objective):
    r"""Sum of weighted objectives, :math:`\sum_t w_t L_t`, as written: ``FocalLoss(gamma=3) + 0.5 * MDCA()``.

    The losses in it must share one reduction, which becomes that of the sum, and an ``ignore_index`` that one term has holds
    for all. A weight means the same under all three: with
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

    def __init__(self, terms: Iterable[tuple[float, Objective]]) -> None:
        pairs = [(float(weight) * own, term) for weight, given in terms for own, term in weighted_terms(given, by=weight)]
        if not pairs:
            raise ValueError("WeightedSum: `terms` must hold at least one objective, got none.")
        ignored = {term.ignore_index for _, term in pairs} - {None}
        if len(ignored) > 1:
            raise ValueError(f"WeightedSum: terms must share one `ignore_index`, got {', '.join(map(str, ignored))}.")
        super().__init__(ignore_index=next(iter(ignored), None))
        self._plain = all(term._plain for _, term in pairs)
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
            part = term.value(logits, labels, **term._own(inputs))
            part = part if weight == 1 else weight * part
            total = part if total is None else total + part
        assert total is not None
        return total

    def _of_rows(self, rows: Rows, reduction: Reduction | None) -> Tensor:
        parts = [weight * term._of_rows(rows, reduction) for weight, term in zip(self.weights, self.objectives, strict=True)]
        return sum(parts[1:], parts[0])

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
