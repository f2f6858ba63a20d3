r"""Hypergradients through one virtual step: how a held-out objective changes with the training loss's hyper-parameters.

One plain gradient step gives virtual parameters :math:`\theta' = \theta - \eta\, \nabla_\theta L(\theta, \phi)`; the
hypergradient is :math:`d M(\theta') / d \phi` for the objective M on meta data. With :math:`v = \nabla M(\theta')` it equals
:math:`-\eta\, \nabla_\phi \langle \nabla_\theta L(\theta, \phi), v \rangle`. The loss reads :math:`\phi` only together with the
logits z (and, directly, the head), so the bracket is :math:`\langle \partial L / \partial z, \dot z \rangle` with
:math:`\dot z` the tangent of the training logits along v: nothing is ever differentiated twice through the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from calibrant.meta.regularizers import Params, Regularizer, Values

MetaObjective: TypeAlias = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class VirtualStep:
    """The step that is looked ahead: plain gradient descent, without momentum or weight decay.

    Attributes:
        lr: Its size, a number or a scalar tensor.
        reduction: Whether the training loss of the step is the "mean" or the "sum" over the batch.
    """

    lr: float | Tensor = 0.1
    reduction: Literal["mean", "sum"] = "mean"

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
    """All processes' tensors, one after the other; the gradient is one's own part.

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


def combine(grads: Params, reduction: str, group: dist.ProcessGroup | None) -> Params:
    """Sum (``reduction="sum"``) or average the gradients of all processes of ``group``, in one message."""
    if group is None:
        return grads
    flat = torch.cat([grad.reshape(-1) for grad in grads.values()])
    dist.all_reduce(flat, group=group)
    if reduction == "mean":
        flat = flat / dist.get_world_size(group)
    parts = flat.split([grad.numel() for grad in grads.values()])
    return {name: part.view_as(grad) for (name, grad), part in zip(grads.items(), parts, strict=True)}


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
