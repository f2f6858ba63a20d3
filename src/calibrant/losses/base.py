"""What every objective shares: the two kinds of module, their sum, and the record each has in the tables.

The formulas are plain functions, in the files of their families.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from calibrant.core.checks import check_choice, check_logits, check_positive, check_shapes, lookup

__all__ = ["Entry", "Loss", "LossEntry", "Objective", "Penalty", "WeightedSum"]

Reduction: TypeAlias = Literal["mean", "sum", "none"]
# Arguments that every `Loss` takes besides its own.
_SHARED = ("reduction", "ignore_index", "weight")
# Stands for a logit that is not there. Finite, and with a finite square in float32, so that a row whose other logits are all
# -inf (p = 1 exactly) has zero derivatives of both orders instead of inf * 0.
_ABSENT = -1e18
# Below exp(-1000) a probability is 0 even in float64, so the bound changes no entropy; it replaces the log of a -inf logit.
_LEAST_LOG = -1e3


class Objective(nn.Module):
    """Something to minimise: ``objective(logits, labels)``, which can be weighted (``0.5 * a``) and added (``a + b``).

    Logits are ``[B, C]`` with labels ``[B]``, or dense, ``[B, C, d1, ...]`` with labels ``[B, d1, ...]``: every position is a
    sample. A subclass names its function (``class FocalLoss(Loss, function=focal_loss)``), whose keyword-only arguments become
    arguments of the constructor and attributes; or it defines ``value(logits, labels, **inputs)`` itself. ``inputs`` names what
    it needs besides logits and labels, passed by keyword.

    Args:
        ignore_index: Label of the samples to leave out, or None. A batch of nothing else gives 0.
        **options: The keyword-only arguments of ``function``.
    """

    function: ClassVar[Callable[..., Tensor]]
    # Argument of `function` → its default.
    options: ClassVar[Mapping[str, object]] = {}
    inputs: ClassVar[tuple[str, ...]] = ()
    reduction: Reduction | None = None
    # NumPy scalars would otherwise try to multiply an objective element by element.
    __array_ufunc__ = None

    def __init_subclass__(cls, function: Callable[..., Tensor] | None = None) -> None:
        super().__init_subclass__()
        if function is not None:
            cls.function = staticmethod(function)
            if "__init__" not in vars(cls):
                own = _keywords(function)
                cls.options = {parameter.name: parameter.default for parameter in own}
                cls.__signature__ = inspect.Signature([*own, *_keywords(cls.__init__)])  # type: ignore[attr-defined]

    def __init__(self, *, ignore_index: int | None = None, **options: object) -> None:
        super().__init__()
        where = type(self).__name__
        self.ignore_index = ignore_index
        for name in options:
            lookup(self.options, name, kind=f"argument of {where}", known=[known.name for known in _keywords(type(self))])
        for name, value in {**self.options, **options}.items():
            if value is inspect.Parameter.empty:
                raise TypeError(f"{where}: `{name}` must be given.")
            setattr(self, name, value)

    # `Any`, so that a subclass may state its own inputs.
    def value(self, logits: Tensor, labels: Tensor, *args: Any, **inputs: Any) -> Tensor:
        """Return the objective of ``logits [B, C]`` before any reduction: ``[B]`` for a loss, ``[]`` for a penalty."""
        return self.function(logits, labels, *args, **inputs, **{name: getattr(self, name) for name in self.options})

    def forward(self, logits: Tensor, labels: Tensor, **inputs: Tensor) -> Tensor:
        """Return the objective of a batch, reduced."""
        where = type(self).__name__
        if set(inputs) != set(self.inputs):
            raise ValueError(f"{where}: arguments besides logits and labels must be {list(self.inputs)}, got {list(inputs)}.")
        samples = to_samples(logits, labels, inputs, ignore_index=self.ignore_index, where=where)
        nothing_left = samples.kept is not None and len(samples.kept) == 0
        values = widen(samples.logits).sum(1) if nothing_left else self._of_samples(samples)
        if self.reduction == "none":
            if samples.kept is not None:
                values = values.new_zeros(samples.shape.numel()).index_copy(0, samples.kept, values)
            return values.reshape(samples.shape)
        return values.mean() if self.reduction == "mean" and not nothing_left else values.sum()

    def _of_samples(self, samples: Samples) -> Tensor:
        """Values ``[K]`` whose sum, or mean, is the reduced objective; ``[]`` for a penalty."""
        return self.value(samples.logits, samples.labels, **{name: samples.inputs[name] for name in self.inputs})

    def set_epoch(self, epoch: int) -> None:
        """Tell the objective, and those within it, which epoch, counted from 0, is about to run; most have no use for it."""
        for part in self.modules():
            if part is not self and isinstance(part, Objective):
                part.set_epoch(epoch)

    def observe_batch(self, logits: Tensor, labels: Tensor, *, indices: Tensor) -> None:
        """Remember what a training batch shows, after its loss; most remember nothing."""

    def needs_validation(self, epoch: int) -> bool:
        """Whether it learns from validation data at the end of this epoch; most never do."""
        return False

    def observe_validation(self, logits: Tensor, labels: Tensor) -> None:
        """Learn from logits ``[N, C]`` of the validation part."""

    def __add__(self, other: Objective) -> WeightedSum:
        return WeightedSum([(1.0, self), (1.0, other)]) if isinstance(other, Objective) else NotImplemented

    def __radd__(self, other: int) -> Objective:
        # The builtin `sum` starts from 0.
        return self if other == 0 else NotImplemented

    def __mul__(self, weight: float) -> WeightedSum:
        return WeightedSum([(weight, self)])

    __rmul__ = __mul__

    def __repr__(self) -> str:
        own = [parameter.name for parameter in _keywords(type(self)) if parameter.name not in _SHARED]
        # The reduction is not told where it is the usual one.
        given = [name for name in _SHARED if getattr(self, name, None) is not None and getattr(self, name) != "mean"]
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in own + given)})"


class Loss(Objective):
    """Module of a per-sample loss: ``value`` gives ``[B]``, and ``reduction`` says what becomes of it.

    Args:
        reduction: "mean" (scalar), "sum" (scalar) or "none" (the labels' shape, 0 where ignored).
        ignore_index: Label of the samples to leave out, or None.
        weight: Weight of every class ``[C]``, or None. A sample counts as its class does, and the mean is divided by the sum
            of the samples' weights.
        **options: The keyword-only arguments of ``function``.
    """

    reduction: Reduction
    weight: Tensor | None

    def __init__(
        self,
        *,
        reduction: Reduction = "mean",
        ignore_index: int | None = None,
        weight: Tensor | None = None,
        **options: object,
    ) -> None:
        super().__init__(ignore_index=ignore_index, **options)
        where = type(self).__name__
        check_choice(reduction, ("mean", "sum", "none"), where=where, name="reduction")
        self.reduction = reduction
        if weight is not None and not (isinstance(weight, Tensor) and weight.ndim == 1 and bool((weight >= 0).all())):
            raise ValueError(f"{where}: `weight` must be a tensor [C] of numbers >= 0, one per class, got {weight}.")
        self.register_buffer("weight", None if weight is None else weight.clone())

    def _of_samples(self, samples: Samples) -> Tensor:
        values = super()._of_samples(samples)
        if self.weight is None:
            return values
        if samples.labels.ndim > 1 or len(self.weight) != samples.logits.shape[1]:
            got = f"{list(self.weight.shape)} with logits {list(samples.logits.shape)} and labels {list(samples.labels.shape)}"
            raise ValueError(f"{type(self).__name__}: `weight` must be [C], and the labels class indices [B], got {got}.")
        weight, labels = self.weight.to(values.dtype), samples.labels.long()
        values = self._weighted(values, samples.logits, labels, weight)
        if self.reduction != "mean":
            return values
        # Samples of no weight make nothing, and not 0/0.
        return values * len(labels) / weight[labels].sum().clamp(min=torch.finfo(weight.dtype).tiny)

    def _weighted(self, values: Tensor, logits: Tensor, labels: Tensor, weight: Tensor) -> Tensor:
        return weight[labels] * values


class Penalty(Objective):
    """Module of a batch penalty: ``value`` gives a scalar ``[]`` that needs the whole batch. Usable alone as a loss."""


class WeightedSum(Objective):
    r"""Sum of weighted objectives, :math:`\sum_t w_t L_t`, as written: ``FocalLoss(gamma=3) + 0.5 * MDCA()``.

    The losses in it must share one reduction, which becomes that of the sum, and an ``ignore_index`` that one term has holds
    for all. A weight means the same under every reduction: with "mean" a penalty is added once, with "sum" it is multiplied by
    the batch size, and with "none" every sample carries the whole penalty. A sum of penalties is a scalar.

    Args:
        terms: Pairs (weight, objective); weights are finite and not negative.

    Example:
        >>> from calibrant.losses import CrossEntropyLoss, FocalLoss
        >>> loss = FocalLoss(gamma=3) + 0.5 * CrossEntropyLoss()
        >>> loss
        FocalLoss(gamma=3) + 0.5 * CrossEntropyLoss(label_smoothing=0.0)
        >>> loss(torch.zeros(2, 4), torch.tensor([0, 3]))
        tensor(1.2780)
    """

    weights: tuple[float, ...]

    def __init__(self, terms: Iterable[tuple[float, Objective]]) -> None:
        pairs: list[tuple[float, Objective]] = []
        for weight, term in terms:
            if not isinstance(weight, (int, float, np.number)) or not 0 <= weight < math.inf:
                raise ValueError(f"{type(term).__name__}: its weight in a sum must be a finite number >= 0, got {weight!r}.")
            inner = zip(term.weights, term.objectives, strict=True) if isinstance(term, WeightedSum) else [(1.0, term)]
            pairs += [(float(weight) * own, objective) for own, objective in inner]
        super().__init__()
        for name in ("ignore_index", "reduction"):
            found = dict.fromkeys(getattr(term, name) for _, term in pairs if getattr(term, name) is not None)
            if len(found) > 1:
                raise ValueError(f"WeightedSum: terms must share one `{name}`, got {', '.join(map(str, found))}.")
            setattr(self, name, next(iter(found), None))
        self.weights = tuple(weight for weight, _ in pairs)
        self.terms = nn.ModuleList(term for _, term in pairs)

    @property
    def inputs(self) -> tuple[str, ...]:  # type: ignore[override]
        """Names of the keyword arguments that some term needs besides logits and labels."""
        return tuple(dict.fromkeys(name for term in self.objectives for name in term.inputs))

    @property
    def objectives(self) -> list[Objective]:
        """The terms without their weights."""
        return list(self.terms)  # type: ignore[arg-type]

    def value(self, logits: Tensor, labels: Tensor, **inputs: Tensor) -> Tensor:
        """Return the weighted sum before reduction: ``[B]`` where a loss is in it, else ``[]``."""
        return self._of_samples(Samples(logits, labels, inputs, labels.shape))

    def _of_samples(self, samples: Samples) -> Tensor:
        parts = zip(self.weights, self.objectives, strict=True)
        values = [term._of_samples(samples) if weight == 1 else weight * term._of_samples(samples) for weight, term in parts]
        return sum(values[1:], values[0])

    def __repr__(self) -> str:
        parts = zip(self.weights, self.terms, strict=True)
        return " + ".join(repr(term) if weight == 1 else f"{weight} * {term!r}" for weight, term in parts)


class Samples(NamedTuple):
    """The K labelled samples of a batch, the shape of its labels, and which of these the K are (None: all)."""

    logits: Tensor
    labels: Tensor
    inputs: Mapping[str, Tensor]
    shape: torch.Size
    kept: Tensor | None = None


def to_samples(
    logits: Tensor, labels: Tensor, inputs: Mapping[str, Tensor], *, ignore_index: int | None, where: str
) -> Samples:
    """Flatten dense logits and leave out the labels that are ``ignore_index`` (soft targets are never left out).

    Leaving out waits for the device, which has to say how many samples are left.
    """
    tensors = isinstance(logits, Tensor) and isinstance(labels, Tensor)
    if not tensors or (logits.ndim == 2 and ignore_index is None):
        check_logits(logits, labels, where=where, soft_targets=True, values=False)
        return Samples(logits, labels, inputs, labels.shape[:1])
    shape = logits.shape[:1] + logits.shape[2:]
    soft = labels.is_floating_point() and labels.shape == logits.shape
    if not soft:
        check_shapes(logits, labels, where=where, kind="logits")

    def flat(value: Tensor) -> Tensor:
        if value.shape == logits.shape:
            return value.movedim(1, -1).reshape(-1, value.shape[1])
        return value.reshape(-1) if value.shape == shape else value

    more = {name: flat(value) if isinstance(value, Tensor) else value for name, value in inputs.items()}
    samples = Samples(flat(logits), flat(labels), more, shape)
    if ignore_index is None or soft:
        return samples
    kept = (samples.labels.long() != ignore_index).nonzero().squeeze(1)
    # Inputs that have an entry for every label lose the same entries.
    each = {name: value[kept] for name, value in more.items() if getattr(value, "shape", ())[:1] == samples.labels.shape}
    return Samples(samples.logits[kept], samples.labels[kept], more | each, shape, kept)


@dataclass(frozen=True)
class LossEntry:
    """A line of the tables ``LOSSES`` and ``PENALTIES``: all there is to know about an objective.

    Attributes:
        module: The class, a `Loss` or a `Penalty`, that names its ``function``.
        source: Where the default hyper-parameters come from.
        required: Hyper-parameters without a default, with a value to try (dual focal's gamma).
        soft_targets: Whether ``labels`` may be probabilities ``[B, C]``.
        twice: Whether it has a second derivative almost everywhere that is not merely zero.
    """

    module: type[Objective]
    source: str
    required: Mapping[str, object] = field(default_factory=dict)
    soft_targets: bool = False
    twice: bool = True

    @property
    def function(self) -> Callable[..., Tensor]:
        """``(logits, labels, *, ...) -> [B]`` (loss) or ``[]`` (penalty)."""
        return self.module.function


# Former name, for one release.
Entry = LossEntry


def _keywords(made: Callable[..., object]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(made).parameters.values() if p.kind is p.KEYWORD_ONLY]


# What the functions of objectives share: checks, and probabilities that are differentiable at any logits.


def checked(
    logits: Tensor, labels: Tensor, *, where: str, soft_targets: bool = False, zero: bool = False, **positive: float
) -> Tensor:
    """Check the arguments of an objective, and return the logits in a precision to compute in.

    Options that are named must be ``positive``, or may be ``zero``.
    """
    check_logits(logits, labels, where=where, soft_targets=soft_targets)
    for name, value in positive.items():
        check_positive(value, where=where, name=name, zero=zero)
    return widen(logits)


def widen(logits: Tensor) -> Tensor:
    """Return ``logits`` in a precision to compute in: float16 and bfloat16 become float32, others stay."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def log_sum_others(logits: Tensor, index: Tensor) -> Tensor:
    r"""Return :math:`\mathrm{LSE}_{j \ne y_i} z_{ij}` as ``[B, 1]``, with labels given as ``index [B, 1]`` (int64)."""
    others = logits.scatter(1, index, _ABSENT)
    # Shifted by hand: the gradient of `logsumexp` subtracts its result again, and loses the digits that large logits cost it.
    shift = others.detach().amax(1, keepdim=True)
    return (others - shift).exp().sum(1, keepdim=True).log() + shift


def true_class_log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Log-odds ``[B]`` *against* the true class, :math:`t_i = \log\frac{1 - p_i}{p_i}`.

    Focal losses need no other number: :math:`\log p = \log\sigma(-t)` and :math:`\log(1 - p) = \log\sigma(t)` are exact however
    close p comes to 0 or 1, where ``1 - softmax`` is rounded to 0 from a logit gap of 17 on (float32).
    """
    index = labels.long().unsqueeze(1)
    return (log_sum_others(logits, index) - logits.gather(1, index)).squeeze(1)


def minus_log_p(odds: Tensor) -> Tensor:
    """Return -log p of the true class, ``[B]``, from its log-odds: softplus, linear only where float64 cannot tell."""
    return F.softplus(odds, threshold=40.0)


def confidence_and_correct(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return confidence :math:`c_i = \max_k q_{ik}` and correctness :math:`a_i \in \{0, 1\}`, each ``[B]``.

    The first of the most probable classes is the predicted one; the gradient of the confidence goes to it alone.
    """
    log_confidence, top = scores.log_softmax(1).max(1)
    return log_confidence.exp(), (top == labels).to(log_confidence.dtype)


def top_of(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return confidence and correctness as above where ``probs [B, C]`` are at hand."""
    confidence, top = probs.max(1)
    return confidence, (top == labels).to(probs.dtype)


def probs_and_entropy(scores: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return the softmax ``[B, C]`` and its entropy :math:`-\sum_k q_{ik} \log q_{ik}` ``[B]`` in nats; 0 log 0 is 0."""
    log_probs = scores.log_softmax(1)
    probs = log_probs.exp()
    return probs, -(probs * log_probs.clamp(min=_LEAST_LOG)).sum(1)
