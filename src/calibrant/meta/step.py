r"""A meta step: how the network runs on meta batches, hypergradients through a virtual step, objectives, settings, presets.

How does a held-out objective change with the training loss's hyper-parameters? One plain gradient step gives virtual
parameters :math:`\theta' = \theta - \eta\, \nabla_\theta L(\theta, \phi)`; the hypergradient is
:math:`d M(\theta') / d \phi` for the objective M on meta data. With :math:`v = \nabla M(\theta')` it equals
:math:`-\eta\, \nabla_\phi \langle \nabla_\theta L(\theta, \phi), v \rangle`. The loss reads :math:`\phi` only together with the
logits z (and, directly, the head), so the bracket is :math:`\langle \partial L / \partial z, \dot z \rangle` with
:math:`\dot z` the tangent of the training logits along v: nothing is ever differentiated twice through the network.

`MetaLearner` and training by recipe share the step. Everything that it changes lies in tensors of fixed address, and nothing
waits for the device, so a CUDA graph can hold it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias, cast, get_args, get_type_hints

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel

from calibrant.core.checks import check_choice, check_count, check_positive, lookup
from calibrant.losses import LOSSES, PENALTIES, sece_penalty
from calibrant.meta.regularizers import REGULARIZERS, GammaFocal, Params, Regularizer, UnitwiseL2, Values

__all__ = ["PRESETS", "Batch", "Hypergradient", "MetaSettings", "Preset", "VirtualStep", "full_hypergradient"]
__all__ += ["head_hypergradient", "hypergradient", "make_objective", "virtual_sgd"]

MetaBN: TypeAlias = Literal["batch", "update", "frozen"]
# An object, the name of one of its attributes, and a value for it.
Attribute: TypeAlias = tuple[object, str, object]
_WRAPPERS = (nn.parallel.DistributedDataParallel, AveragedModel)
_USUAL_NAMES = ("head", "fc", "classifier", "linear", "output", "score", "heads.head", "head.fc", "classifier.out_proj")
Reduction: TypeAlias = Literal["mean", "sum"]
MetaObjective: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Network:
    """A model, perhaps wrapped for distributed training; the module inside; and the last linear layer, with its name there."""

    model: nn.Module
    inner: nn.Module
    head: nn.Linear
    head_name: str
    group: dist.ProcessGroup | None = None

    @property
    def head_values(self) -> Params:
        """Entry of the head ("weight", "bias") → the parameter itself."""
        return {"weight": self.head.weight} | ({} if self.head.bias is None else {"bias": self.head.bias})

    @property
    def device(self) -> torch.device:
        """Where the head lies."""
        return self.head.weight.device

    def parameters(self) -> Params:
        """Every parameter that is trained, by its name in ``inner``."""
        return {name: value for name, value in self.inner.named_parameters() if value.requires_grad}

    def head_names(self) -> dict[str, str]:
        """Entry of the head → its name in `parameters`: tied weights appear there once, under the name of the first layer."""
        names = {id(value): name for name, value in self.parameters().items()}
        if not all(id(value) in names for value in self.head_values.values()):
            raise ValueError(
                f"MetaLearner: `head` must be trained where the look-ahead is full, but {self.head_name!r} is frozen. "
                'Unfreeze it, or use lookahead="head".'
            )
        return {entry: names[id(value)] for entry, value in self.head_values.items()}


def find_head(model: nn.Module, head: str | nn.Module | None = None) -> tuple[str, nn.Linear]:
    """Return name and module of the linear layer that ends ``model``.

    ``head`` is its name, the layer itself, or None: then the usual names are tried ("head", "fc", "classifier", ...), and last
    the final ``nn.Linear`` in the order of definition. The first batch tells whether the guess was right.
    """
    layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    if head is None:
        found = [name for name in _USUAL_NAMES if name in layers] or list(layers)[-1:]
    else:
        found = [name for name, module in layers.items() if head == name or head is module]
    if not found:
        known = ", ".join(layers) or "none"
        raise ValueError(f"model: `head` must name an `nn.Linear` of the model, got {head!r}. Linear layers: {known}.")
    return found[0], layers[found[0]]


def find_network(model: nn.Module, head: str | nn.Module | None = None) -> Network:
    """Find the `find_head` of ``model`` inside wrappers of distributed training, of averages and of ``torch.compile``."""
    inner: Any = model
    group: dist.ProcessGroup | None = None
    while isinstance(inner, _WRAPPERS) or hasattr(inner, "_orig_mod"):
        group = getattr(inner, "process_group", group)
        inner = inner.module if isinstance(inner, _WRAPPERS) else inner._orig_mod
    name, layer = find_head(inner, head)
    return Network(model, inner, layer, name, group)


def own_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Leave the global generators of the CPU and of ``device`` as they were, whatever is drawn inside."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


@contextmanager
def changed(attributes: Sequence[Attribute]) -> Iterator[None]:
    """Give objects other attributes, and their own back afterwards."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in attributes]
    try:
        for owner, name, value in attributes:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


def gathering_norms(model: nn.Module) -> list[_BatchNorm]:
    """Every BatchNorm of ``model`` that learns running statistics: it keeps them, and is in training mode."""
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    return [norm for norm in norms if norm.training and norm.track_running_stats]


def untracked(model: nn.Module) -> AbstractContextManager[None]:
    """Keep the running statistics of ``model`` as they are; layers in training mode use those of the batch alone."""
    # PyTorch hands the running buffers to a layer in training mode only if this flag is set: nothing need be copied back.
    return changed([(norm, "track_running_stats", False) for norm in gathering_norms(model)])


@contextmanager
def meta_mode(model: nn.Module, how: MetaBN | Literal["follow", "gather"]) -> Iterator[None]:
    """Set ``model``, which is in training mode, up for passes that do not train it, and put it back afterwards.

    "batch": BatchNorm normalises with the batch's own statistics and leaves the running ones alone. "frozen": the whole network
    as in ``eval()``. "follow": the running statistics follow what passes, as in training. "gather": they become the means over
    all that passes. Dropout is off in all of these. "update": the whole network as in training, as in the published
    meta-calibration code.
    """
    if how == "update":
        yield
        return
    norms = [] if how == "frozen" else gathering_norms(model)
    kept = {id(norm) for norm in norms}
    attributes: list[Attribute] = [(module, "training", id(module) in kept) for module in model.modules() if module.training]
    for norm in norms if how == "gather" else ():
        # Without a momentum PyTorch weighs all batches alike, beginning with the first that is counted.
        count = torch.zeros_like(norm.num_batches_tracked)  # type: ignore[arg-type]
        attributes += [(norm, "momentum", None), (norm, "num_batches_tracked", count)]
    with untracked(model) if how == "batch" else nullcontext(), changed(attributes):
        yield


@dataclass(frozen=True)
class VirtualStep:
    """The step that is looked ahead: plain gradient descent, without momentum or weight decay.

    Attributes:
        lr: Its size, a number or a scalar tensor.
        reduction: Whether the training loss of the step is the "mean" or the "sum" over the batch.
    """

    lr: float | Tensor = 0.1
    reduction: Reduction = "mean"

    def factor(self, count: int) -> float:
        """What the gradient of a summed loss over ``count`` samples is multiplied by."""
        return 1.0 / count if self.reduction == "mean" else 1.0


class Hypergradient(NamedTuple):
    """Value of the objective after the virtual step, and its gradient with respect to every hyper-parameter."""

    value: Tensor
    grads: Params

    def norm(self) -> Tensor:
        """Euclidean norm over all hyper-parameters, ``[]``."""
        return total_norm(self.grads)


class Batch(NamedTuple):
    """What a training batch gives to a regularizer: penultimate ``features [B, d]``, ``logits [B, C]`` and ``labels [B]``."""

    features: Tensor
    logits: Tensor
    labels: Tensor


class _Gather(torch.autograd.Function):
    """All processes' tensors, one after the other; the gradient is that of one's own part.

    Every process evaluates the same objective on the same gathered batch, so each already holds the whole derivative of it and
    need only take its slice. (``torch.distributed.nn.all_gather`` adds the processes' derivatives: too large by their number.)
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.slot, ctx.size = dist.get_rank(group), len(tensor)
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, tensor.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0].narrow(0, ctx.slot * ctx.size, ctx.size), None


def gather(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Concatenate ``tensor [M, ...]`` over all processes of ``group`` to ``[world · M, ...]``; M must be the same in each."""
    made: Tensor = tensor if group is None else _Gather.apply(tensor, group)
    return made


def all_summed(tensors: Sequence[Tensor], group: dist.ProcessGroup | None) -> list[Tensor]:
    """Sums of tensors over all processes of ``group``, in one message."""
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
    dist.all_reduce(flat, group=group)
    parts = flat.split([tensor.numel() for tensor in tensors])
    return [part.view_as(tensor) for tensor, part in zip(tensors, parts, strict=True)]


def combine(grads: Params, reduction: str, group: dist.ProcessGroup | None) -> Params:
    """Sum (``reduction="sum"``) or average the gradients of all processes of ``group``."""
    if group is None:
        return grads
    processes = dist.get_world_size(group) if reduction == "mean" else 1
    return {name: total / processes for name, total in zip(grads, all_summed(list(grads.values()), group), strict=True)}


def total_norm(values: Values) -> Tensor:
    """Euclidean norm ``[]`` over all entries of all tensors."""
    return torch.stack([torch.linalg.vector_norm(value) for value in values.values()]).square().sum().sqrt()


def virtual_sgd(params: Values, grads: Values, *, lr: float | Tensor) -> Params:
    """Return the parameters after one plain gradient step; the arguments stay as they are, and the graph is kept.

    Args:
        params: Name → tensor.
        grads: Name → gradient, for some of them.
        lr: Step size.

    Returns:
        Name → new tensor.

    Example:
        >>> virtual_sgd({"w": torch.tensor([1.0])}, {"w": torch.tensor([2.0])}, lr=0.25)
        {'w': tensor([0.5000])}
    """
    if isinstance(lr, Tensor):
        return {name: value - lr * grads[name] if name in grads else value for name, value in params.items()}
    return {name: value.sub(grads[name], alpha=lr) if name in grads else value for name, value in params.items()}


def hypergradient(
    inner: Callable[[Params, Params], Tensor],
    outer: Callable[[Params], Tensor],
    params: Values,
    hyper: Values,
    *,
    lr: float | Tensor,
) -> Hypergradient:
    """Hypergradient of any two losses by double backward: general and slow, the reference for the other two.

    Args:
        inner: Training loss ``(params, hyper) -> []``.
        outer: Objective ``(params) -> []`` on held-out data.
        params: Parameters that take the virtual step.
        hyper: Hyper-parameters.
        lr: Size of the virtual step.

    Returns:
        Value and gradients. Raises ``ValueError`` if a hyper-parameter receives no gradient.

    Example:
        >>> w, phi = {"w": torch.tensor(1.0)}, {"phi": torch.tensor(3.0)}
        >>> found = hypergradient(lambda p, h: h["phi"] * p["w"], lambda p: p["w"] ** 2, w, phi, lr=0.1)
        >>> found.value, found.grads["phi"]  # w' = 1 - 0.1 phi = 0.7; -0.1 * 2 w'
        (tensor(0.4900), tensor(-0.1400))
    """
    start, leaves = _leaves(params), _leaves(hyper)
    with torch.enable_grad():
        found = torch.autograd.grad(inner(start, leaves), list(start.values()), create_graph=True, allow_unused=True)
        grads = {name: grad for name, grad in zip(start, found, strict=True) if grad is not None}
        value = outer(virtual_sgd(start, grads, lr=lr))
        return Hypergradient(value.detach(), _gradients_by(value, leaves))


def head_hypergradient(
    regularizer: Regularizer,
    objective: MetaObjective,
    hyper: Values,
    *,
    head: Values,
    batch: Batch,
    meta_features: Tensor,
    meta_labels: Tensor,
    step: VirtualStep,
    group: dist.ProcessGroup | None = None,
) -> Hypergradient:
    r"""Hypergradient through a step of the linear head alone, the features being constants. Exact, and nearly free.

    With training features :math:`x_i`, :math:`\delta_i = \partial L_i / \partial z_i` and R the reduction,

    .. math:: W' = W - \eta R \sum_i \delta_i(\phi)\, x_i^\top, \quad b' = b - \eta R \sum_i \delta_i(\phi), \quad
        \frac{dM}{d\phi} = -\eta R\, \nabla_\phi \sum_i \langle \delta_i(\phi),\, V x_i + v \rangle

    where :math:`V, v` is the gradient of the objective at :math:`W', b'`. What a regularizer reads of the head directly is
    added to both. No host synchronisation and no shape that depends on data: it can be captured in a CUDA graph.

    Args:
        regularizer: The training loss with hyper-parameters.
        objective: ``(logits, labels) -> []`` on the meta batch.
        hyper: Values of the hyper-parameters.
        head: ``weight [C, d]`` and, if the layer has one, ``bias [C]``.
        batch: The training batch at the present parameters.
        meta_features: Features ``[M, d]`` of the meta batch at the present parameters.
        meta_labels: ``[M]``.
        step: The virtual step.
        group: Processes that share the step, or None for one.

    Returns:
        Value and gradients. Raises ``ValueError`` if a hyper-parameter receives no gradient.
    """
    params = {name: _wide(value.detach()) for name, value in head.items()}
    x, meta_x = (value.detach().to(params["weight"].dtype) for value in (batch.features, meta_features))

    def backward(slopes: Tensor, direct: Params, factor: float) -> Params:
        grads = {"weight": slopes.T @ x} | ({"bias": slopes.sum(0)} if "bias" in params else {})
        return {name: factor * (grad + direct.get(name, 0.0)) for name, grad in grads.items()}

    return full_hypergradient(
        regularizer,
        objective,
        hyper,
        params=params,
        head={name: name for name in params},
        batch=batch,
        tangent_of=lambda along: F.linear(x, along["weight"], along.get("bias")),
        meta_logits_of=lambda virtual: F.linear(meta_x, virtual["weight"], virtual.get("bias")),
        meta_labels=meta_labels,
        step=step,
        group=group,
        backward=backward,
    )


def full_hypergradient(
    regularizer: Regularizer,
    objective: MetaObjective,
    hyper: Values,
    *,
    params: Values,
    head: Mapping[str, str],
    batch: Batch,
    tangent_of: Callable[[Params], Tensor],
    meta_logits_of: Callable[[Params], Tensor],
    meta_labels: Tensor,
    step: VirtualStep,
    average: Values | None = None,
    share: float | Tensor = 1.0,
    group: dist.ProcessGroup | None = None,
    loss_scale: float | Tensor = 1.0,
    backward: Callable[[Tensor, Params, float], Params] | None = None,
) -> Hypergradient:
    r"""Hypergradient through a step of all parameters, without differentiating the network twice. Exact.

    One backward pass for the virtual step, one for :math:`v = \nabla M(\theta')`, one forward-mode pass for the tangent of the
    training logits along v; the mixed derivative is then that of the last layer.

    What it takes beyond `head_hypergradient`: ``params`` take the step and are leaves of the graph of ``batch.logits``, which
    is kept; ``head`` says by what names they hold the head's entries; ``tangent_of`` gives the derivative ``[B, C]`` of the
    training logits along directions, ``meta_logits_of`` the logits ``[M, C]`` of the meta batch at other parameters. Where
    averaged weights predict, the objective is that of the ``average`` after it has taken its ``share`` of the step. Gradients
    inside the network are multiplied by ``loss_scale``, so that half precision does not lose them. ``backward`` makes the
    step's gradient of the summed loss's slopes by logits and head and of the factor of the reduction, by default by a backward
    pass through the network. Returns and raises likewise.
    """

    def network_backward(slopes: Tensor, direct: Params, factor: float) -> Params:
        seed = (slopes * (factor * loss_scale)).to(batch.logits.dtype)
        found = torch.autograd.grad(batch.logits, list(params.values()), seed, retain_graph=True, allow_unused=True)
        grads = _unscaled(params, found, loss_scale)
        return grads | {head[entry]: grads[head[entry]] + factor * grad for entry, grad in direct.items()}

    leaves, fixed = _leaves(hyper), {name: value.detach() for name, value in params.items()}
    entries, factor = {entry: fixed[name] for entry, name in head.items()}, step.factor(len(batch.labels))
    with torch.autocast(batch.logits.device.type, enabled=False), torch.enable_grad():
        features, logits = _wide(batch.features.detach()), _wide(batch.logits.detach())
        slopes, direct = regularizer.gradients(leaves, features, logits, batch.labels, entries)
        with torch.no_grad():
            grads = combine((backward or network_backward)(slopes, direct, factor), step.reduction, group)
            stepped = virtual_sgd(fixed, grads, lr=step.lr)
            if average is not None:
                stepped = {name: average[name].lerp(value, share) for name, value in stepped.items()}
            points = _leaves(stepped)
        value = objective(gather(_wide(meta_logits_of(points)), group), gather(meta_labels, group))
        pulls = torch.autograd.grad(value * loss_scale, list(points.values()), allow_unused=True)
        with torch.no_grad():
            pull = combine(_unscaled(params, pulls, loss_scale), "sum", group)
            tangent = _wide(tangent_of(pull))
        total = (slopes * tangent).sum()
        for entry, grad in direct.items():
            total = total + (grad * pull[head[entry]]).sum()
        found = _gradients_by(-step.lr * factor * share * total, leaves)
    return Hypergradient(value.detach(), combine(found, step.reduction, group))


def _leaves(values: Values) -> Params:
    return {name: value.detach().requires_grad_() for name, value in values.items()}


def _gradients_by(value: Tensor, leaves: Params) -> Params:
    found: Sequence[Tensor | None] = [None] * len(leaves)
    if value.requires_grad:
        found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    grads = {name: grad for name, grad in zip(leaves, found, strict=True) if grad is not None}
    if missing := [name for name in leaves if name not in grads]:
        raise ValueError(
            f"hypergradient: every hyper-parameter must enter the training loss, but `{missing[0]}` receives no gradient. "
            "Check that the regularizer uses it, and uses it without `detach` or `item`."
        )
    return grads


def _wide(value: Tensor) -> Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _unscaled(params: Values, grads: Sequence[Tensor | None], scale: float | Tensor) -> Params:
    """Gradients by name, zero where there is none, divided by the loss scale."""
    found = {name: torch.zeros_like(params[name]) if g is None else g for name, g in zip(params, grads, strict=True)}
    return found if isinstance(scale, float) and scale == 1.0 else {name: grad / scale for name, grad in found.items()}


@dataclass(frozen=True)
class MetaSettings:
    """How the hyper-parameters, and with them the network, take their steps.

    Attributes:
        lookahead: Whether the virtual step moves the "head" alone or the "full" network.
        lookahead_lr: Size of the virtual step: a number, or "current" for the optimizer's learning rate.
        lookahead_reduction: Whether the virtual step's loss is the "mean" or the "sum" over the training batch.
        every: Optimizer steps from one meta update to the next.
        meta_lr: Learning rate of Adam on the hyper-parameters; None takes the regularizer's own pace, which does not depend on
            feature width, number of classes or temperature.
        betas: Memory of Adam's two means.
        eps: What Adam adds to the root of the second mean. Hypergradients shrink by orders of magnitude as training proceeds:
            with the usual 1e-8 they would fall below it and freeze.
        meta_bn: BatchNorm on meta batches: "batch", "update" or "frozen" (see `calibrant.meta.step.meta_mode`).
        leak_meta_grad: Add the gradient of the meta objective to the network's own, as the published code does by omission.
        reduction: Whether the network's own step minimises the "mean" or the "sum" of the loss over the batch.
        clip: Largest norm of the network's gradient, or None.
        network_first: Whether the network takes its step with the hyper-parameters as they were, and these move afterwards, as
            in Algorithm 1 of the paper; the published code moves them first.
    """

    lookahead: Literal["head", "full"] = "head"
    lookahead_lr: float | Literal["current"] = 0.1
    lookahead_reduction: Reduction = "mean"
    every: int = 4
    meta_lr: float | None = None
    betas: tuple[float, float] = (0.5, 0.9)
    eps: float = 1e-12
    meta_bn: MetaBN = "batch"
    leak_meta_grad: bool = False
    reduction: Reduction = "mean"
    clip: float | None = None
    network_first: bool = False

    def __post_init__(self) -> None:
        hints = get_type_hints(MetaSettings)
        for name in ("lookahead", "lookahead_reduction", "meta_bn", "reduction"):
            check_choice(getattr(self, name), get_args(hints[name]), where="MetaLearner", name=name)
        check_count(self.every, where="MetaLearner", name="every")
        for name in ("lookahead_lr", "meta_lr", "eps", "clip"):
            value = getattr(self, name)
            if value is not None and value != "current":
                check_positive(value, where="MetaLearner", name=name)

    def virtual_step(self, lr: float | Tensor) -> VirtualStep:
        """The virtual step while the optimizer's learning rate is ``lr``."""
        return VirtualStep(lr if isinstance(self.lookahead_lr, str) else self.lookahead_lr, self.lookahead_reduction)


def make_objective(
    objective: str | Mapping[str, float] | MetaObjective, *, variants: Mapping[str, MetaObjective] | None = None
) -> MetaObjective:
    """Make a function ``(logits, labels) -> []`` of a name or of weighted names; one that is a function already stays.

    Args:
        objective: "sece", "dece", "skce", "nll" or any other key of ``LOSSES`` (whose mean is taken) and ``PENALTIES``; a
            mapping of such names to weights; or a callable.
        variants: Name → function to use for it instead of the table's.

    Returns:
        The function. Raises ``ValueError`` if a name is unknown.

    Example:
        >>> import torch
        >>> objective = make_objective({"sece": 1.0, "nll": 0.5})
        >>> objective(torch.zeros(2, 2), torch.tensor([0, 1]))  # 0 + 0.5 ln 2
        tensor(0.3466)
    """
    table = objective_table() | dict(variants or {})
    if isinstance(objective, str):
        return lookup(table, objective, kind="meta objective")
    if isinstance(objective, Mapping) and objective:
        return partial(_weighted, [(float(w), lookup(table, name, kind="meta objective")) for name, w in objective.items()])
    if not callable(objective):
        raise ValueError(f"MetaLearner: `objective` must be a name, names with weights, or a function, got {objective!r}.")
    return objective


def objective_table() -> dict[str, MetaObjective]:
    """Name → objective with its defaults, of everything in ``LOSSES`` and ``PENALTIES`` that needs logits and labels only."""
    losses = {"nll": LOSSES["cross_entropy"].function} | {name: entry.function for name, entry in LOSSES.available().items()}
    means = {name: partial(_mean, function) for name, function in losses.items() if _needs_nothing_else(function)}
    return means | {
        name: entry.function for name, entry in PENALTIES.available().items() if _needs_nothing_else(entry.function)
    }


def _needs_nothing_else(function: Callable[..., Tensor]) -> bool:
    return sum(parameter.default is parameter.empty for parameter in inspect.signature(function).parameters.values()) == 2


def _mean(function: Callable[..., Tensor], logits: Tensor, labels: Tensor) -> Tensor:
    return function(logits, labels).mean()


def _weighted(terms: list[tuple[float, MetaObjective]], logits: Tensor, labels: Tensor) -> Tensor:
    return cast(Tensor, sum(weight * term(logits, labels) for weight, term in terms))


# As the paper's text has it. At 0.01 on a small batch it is close to the mean of |correct - confidence|, which rewards
# sharpness and pulls gamma to zero.
PAPER_SECE = partial(sece_penalty, bandwidth=0.01, accuracy="soft", sharpness=100.0)
# The gradient flows through the confidences alone: what flows through the kernel, as confidences move past each other, is
# nearly all noise (the hypergradient by gamma has the right sign in 66-92 % of the steps without it, in 50-68 % with it).
# Centred and by divergence it has a slope where most confidences are near one; the plain one has none there (docs/meta.md).
DEFAULT_SECE = partial(sece_penalty, bandwidth=0.05, accuracy="hard", detach_accuracy=True, centred=True, distance="kl")


@dataclass(frozen=True)
class Preset:
    """A named set of choices.

    Attributes:
        settings: How steps are taken.
        regularizers: Key → constructor.
        objectives: Key → objective, where it is not the table's.
    """

    settings: MetaSettings
    regularizers: Mapping[str, Callable[..., Regularizer]]
    objectives: Mapping[str, MetaObjective]


PRESETS: dict[str, Preset] = {
    # Found on CIFAR-10 and CIFAR-100. A short memory and a virtual step that does not follow the learning rate keep gamma
    # moving when the hypergradient shrinks a thousandfold; (0.9, 0.999) froze it at the first drop of the learning rate.
    "default": Preset(MetaSettings(), REGULARIZERS, {"sece": DEFAULT_SECE}),
    # What the paper and the code it extends say, where they say something: Adam as PyTorch has it, the virtual step with the
    # scheduled learning rate and the summed gradient, unclipped, a meta update every step, the real step summed and clipped,
    # BatchNorm in training mode, the meta gradient left in the network's. It can explode.
    "paper": Preset(
        MetaSettings(
            lookahead_lr="current",
            lookahead_reduction="sum",
            every=1,
            meta_lr=1e-3,
            betas=(0.9, 0.999),
            eps=1e-8,
            meta_bn="update",
            leak_meta_grad=True,
            reduction="sum",
            clip=2.0,
        ),
        REGULARIZERS
        | {
            "gamma-focal": partial(GammaFocal, gamma_max=None),
            "unitwise-l2": partial(UnitwiseL2, nonnegative=False, share="batch"),
        },
        {"sece": PAPER_SECE},
    ),
}


def settings_of(preset: Preset, options: Mapping[str, Any]) -> MetaSettings:
    """Return the preset's settings with ``options`` in their place; an unknown option raises, naming the nearest."""
    known = {field.name: None for field in fields(MetaSettings)}
    for name in options:
        lookup(known, name, kind="option of MetaLearner")
    return replace(preset.settings, **options)


class HeldOut(NamedTuple):
    """What a meta step reads of held-out data: penultimate ``features [M, d]`` and ``labels [M]``."""

    features: Tensor
    labels: Tensor


def leaked_value(
    regularizer: Regularizer,
    objective: MetaObjective,
    hyper: Values,
    *,
    head: Values,
    batch: Batch,
    meta_features: Tensor,
    meta_labels: Tensor,
    step: VirtualStep,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Meta objective after a virtual step of the head, as a function ``[]`` of the network itself.

    The published code adds its gradient to the network's own, by not clearing it after the meta step. It reaches the network
    through the head and the features of both batches (which come with their graph). Late in training it can be as large as the
    training gradient: part of the calibration then comes from training on the held-out data directly. Hyper-parameters are
    held constant, and may change before the gradient is asked for. Summed over the processes of ``group`` the gradient is that
    of one process with all samples.
    """
    fixed = {name: value.detach().clone() for name, value in hyper.items()}
    # Features from compiled code depend, for all that autograd knows, on every parameter, also on the head; the virtual step's
    # gradient is not to run through that code, which cannot be differentiated twice.
    own = {name: value.view_as(value) for name, value in head.items()}
    if group is not None:
        # Features are one's own part of the batch, but the head enters whole in every process: its gradient is divided, and by
        # this sum its value is not rounded.
        own = {n: value.detach() + (value - value.detach()) / dist.get_world_size(group) for n, value in head.items()}
    features, seen = (gather(value.to(own["weight"].dtype), group) for value in (batch.features, meta_features))
    labels, seen_labels = gather(batch.labels, group), gather(meta_labels, group)
    logits = F.linear(features, own["weight"], own.get("bias"))
    total = regularizer.loss(fixed, features.detach(), logits, labels, own).sum() * step.factor(len(labels))
    found = torch.autograd.grad(total, list(own.values()), create_graph=True)
    virtual = virtual_sgd(own, dict(zip(own, found, strict=True)), lr=step.lr)
    return objective(F.linear(seen, virtual["weight"], virtual.get("bias")), seen_labels)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of every group, in place where it is a tensor."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(lr)
        else:
            group["lr"] = lr
