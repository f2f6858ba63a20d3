r"""Hypergradients through one virtual step: how a held-out objective changes with the training loss's hyper-parameters.

One plain gradient step gives virtual parameters :math:`\theta' = \theta - \eta\, \nabla_\theta L(\theta, \phi)`; the
hypergradient is :math:`d M(\theta') / d \phi` for the objective M on meta data. With :math:`v = \nabla M(\theta')` it equals
:math:`-\eta\, \nabla_\phi \langle \nabla_\theta L(\theta, \phi), v \rangle`. The loss reads :math:`\phi` only together with the
logits z (and, directly, the head), so the bracket is :math:`\langle \partial L / \partial z, \dot z \rangle` with
:math:`\dot z` the tangent of the training logits along v: nothing is ever differentiated twice through the network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.meta.regularizers.base import Head, Params, Regularizer
from calibrant.meta.virtual import (
    ALONE,
    Batch,
    Exchange,
    Hypergradient,
    MetaObjective,
    VirtualStep,
    through_clip,
    virtual_sgd,
)


def hypergradient(
    inner: Callable[[Params, Params], Tensor],
    outer: Callable[[Params], Tensor],
    params: Mapping[str, Tensor],
    hyper: Mapping[str, Tensor],
    *,
    lr: float | Tensor,
    clip: float | None = None,
) -> Hypergradient:
    """Hypergradient of any two losses by double backward: general and slow, the reference for the other two.

    Args:
        inner: Training loss ``(params, hyper) -> []``.
        outer: Objective ``(params) -> []`` on held-out data.
        params: Parameters that take the virtual step.
        hyper: Hyper-parameters.
        lr: Size of the virtual step.
        clip: Largest norm of the virtual step's gradient, or None.

    Returns:
        Value and gradients. Raises ``ValueError`` if a hyper-parameter receives no gradient.

    Example:
        >>> w, phi = {"w": torch.tensor(1.0)}, {"phi": torch.tensor(3.0)}
        >>> found = hypergradient(lambda p, h: h["phi"] * p["w"], lambda p: p["w"] ** 2, w, phi, lr=0.1)
        >>> found.value, found.grads["phi"]  # w' = 1 - 0.1 phi = 0.7; -0.1 * 2 w'
        (tensor(0.4900), tensor(-0.1400))
    """
    start = {name: value.detach().requires_grad_() for name, value in params.items()}
    leaves = {name: value.detach().requires_grad_() for name, value in hyper.items()}
    with torch.enable_grad():
        found = torch.autograd.grad(inner(start, leaves), list(start.values()), create_graph=True, allow_unused=True)
        grads = {name: grad for name, grad in zip(start, found, strict=True) if grad is not None}
        value = outer(virtual_sgd(start, grads, lr=lr, clip=clip))
        return Hypergradient(value.detach(), _gradients_by(value, leaves))


def head_hypergradient(
    regularizer: Regularizer,
    objective: MetaObjective,
    hyper: Mapping[str, Tensor],
    *,
    head: Head,
    batch: Batch,
    meta_features: Tensor,
    meta_labels: Tensor,
    step: VirtualStep,
    exchange: Exchange = ALONE,
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
        exchange: How processes share the step.

    Returns:
        Value and gradients. Raises ``ValueError`` if a hyper-parameter receives no gradient.
    """
    entries = {name: _wide(value.detach()) for name, value in head.items()}
    with torch.autocast(entries["weight"].device.type, enabled=False):
        x, meta_x = batch.features.detach().to(entries["weight"].dtype), meta_features.detach()
        leaves, slopes, direct = _loss_gradients(regularizer, hyper, batch, entries)
        with torch.no_grad():
            factor = step.factor(len(batch.labels))
            grads = {"weight": slopes.T @ x, "bias": slopes.sum(0)} if "bias" in entries else {"weight": slopes.T @ x}
            grads = {name: factor * (grad + direct.get(name, 0.0)) for name, grad in grads.items()}
            grads = exchange.combine(grads, step.reduction)
            virtual = virtual_sgd(entries, grads, lr=step.lr, clip=step.clip)
            all_x, all_labels = exchange.gather(meta_x.to(x.dtype)), exchange.gather(meta_labels)
        points = {name: value.requires_grad_() for name, value in virtual.items()}
        with torch.enable_grad():
            value = _checked(objective(F.linear(all_x, points["weight"], points.get("bias")), all_labels))
            pull = dict(zip(points, torch.autograd.grad(value, list(points.values())), strict=True))
        with torch.no_grad():
            pull = through_clip(pull, grads, step.clip)
            tangent = F.linear(x, pull["weight"], pull.get("bias"))
        found = _mixed(leaves, slopes, direct, tangent, pull, scale=-step.lr * factor)
    return Hypergradient(value.detach(), exchange.combine(found, step.reduction))


def full_hypergradient(
    regularizer: Regularizer,
    objective: MetaObjective,
    hyper: Mapping[str, Tensor],
    *,
    params: Mapping[str, Tensor],
    head: Mapping[str, str],
    batch: Batch,
    tangent_of: Callable[[Params], Tensor],
    meta_logits_of: Callable[[Params], Tensor],
    meta_labels: Tensor,
    step: VirtualStep,
    exchange: Exchange = ALONE,
    loss_scale: float | Tensor = 1.0,
) -> Hypergradient:
    r"""Hypergradient through a step of all parameters, without differentiating the network twice. Exact.

    One backward pass for the virtual step, one for :math:`v = \nabla M(\theta')`, one forward-mode pass for the tangent of the
    training logits along v; the mixed derivative is then that of the last layer.

    Args:
        regularizer: The training loss with hyper-parameters.
        objective: ``(logits, labels) -> []`` on the meta batch.
        hyper: Values of the hyper-parameters.
        params: Parameters that take the step; leaves of the graph of ``batch.logits``.
        head: Entry of the head ("weight", "bias") → its name in ``params``.
        batch: The training batch, its logits with their graph (which is kept).
        tangent_of: Directions → derivative ``[B, C]`` of the training logits along them.
        meta_logits_of: Parameters → logits ``[M, C]`` of the meta batch.
        meta_labels: ``[M]``.
        step: The virtual step.
        exchange: How processes share the step.
        loss_scale: What gradients inside the network are multiplied by, so that half precision does not lose them.

    Returns:
        Value and gradients. Raises ``ValueError`` if a hyper-parameter receives no gradient.
    """
    entries = {entry: params[name].detach() for entry, name in head.items()}
    leaves, slopes, direct = _loss_gradients(regularizer, hyper, batch, entries)
    factor = step.factor(len(batch.labels))
    seed = (slopes.detach() * (factor * loss_scale)).to(batch.logits.dtype)
    found = torch.autograd.grad(batch.logits, list(params.values()), seed, retain_graph=True, allow_unused=True)
    with torch.no_grad():
        grads = _unscaled(params, found, loss_scale)
        for entry, grad in direct.items():
            grads[head[entry]] = grads[head[entry]] + factor * grad
        grads = exchange.combine(grads, step.reduction)
        virtual = virtual_sgd({name: value.detach() for name, value in params.items()}, grads, lr=step.lr, clip=step.clip)
    points = {name: value.requires_grad_() for name, value in virtual.items()}
    with torch.enable_grad():
        value = _checked(objective(exchange.gather(_wide(meta_logits_of(points))), exchange.gather(meta_labels)))
        pulls = torch.autograd.grad(value * loss_scale, list(points.values()), allow_unused=True)
    with torch.no_grad():
        pull = _unscaled(params, pulls, loss_scale)
        pull = through_clip(exchange.combine(pull, "sum"), grads, step.clip)
        tangent = _wide(tangent_of(pull))
    along = {entry: pull[name] for entry, name in head.items()}
    mixed = _mixed(leaves, slopes, direct, tangent, along, scale=-step.lr * factor)
    return Hypergradient(value.detach(), exchange.combine(mixed, step.reduction))


def _loss_gradients(
    regularizer: Regularizer, hyper: Mapping[str, Tensor], batch: Batch, head: Head
) -> tuple[Params, Tensor, Params]:
    """Leaves for the hyper-parameters, and the summed loss's gradients by logits and head as functions of them."""
    leaves = {name: value.detach().requires_grad_() for name, value in hyper.items()}
    with torch.enable_grad():
        slopes, direct = regularizer.gradients(
            leaves, _wide(batch.features.detach()), _wide(batch.logits.detach()), batch.labels, head
        )
    return leaves, slopes, direct


def _mixed(leaves: Params, slopes: Tensor, direct: Params, tangent: Tensor, along: Params, *, scale: float | Tensor) -> Params:
    """Gradient by the leaves of the directional derivative of the training loss."""
    with torch.enable_grad():
        total = (slopes * tangent).sum()
        for name, grad in direct.items():
            total = total + (grad * along[name]).sum()
        return _gradients_by(scale * total, leaves)


def _gradients_by(value: Tensor, leaves: Params) -> Params:
    none: tuple[Tensor | None, ...] = (None,) * len(leaves)
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True) if value.requires_grad else none
    grads = {name: grad for name, grad in zip(leaves, found, strict=True) if grad is not None}
    for name in leaves:
        if name not in grads:
            raise ValueError(
                f"hypergradient: every hyper-parameter must enter the training loss, but `{name}` receives no gradient. "
                "Check that the regularizer uses it, and uses it without `detach` or `item`."
            )
    return grads


def _checked(value: object) -> Tensor:
    """What an objective returned, if it is a scalar with a gradient; it may be a function of the user's own."""
    if not isinstance(value, Tensor) or value.ndim != 0:
        got = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"MetaLearner: `objective` must return a scalar tensor [], got {got}. Take the mean over examples.")
    if not value.requires_grad:
        raise ValueError(
            "MetaLearner: `objective` must return a value with a gradient, got one without. Compute it from the logits with "
            "PyTorch's operations, and without `detach` or `item`."
        )
    return value


def _wide(value: Tensor) -> Tensor:
    return value.float() if value.dtype in (torch.float16, torch.bfloat16) else value


def _unscaled(params: Mapping[str, Tensor], grads: tuple[Tensor | None, ...], scale: float | Tensor) -> Params:
    """Gradients by name, zero where there is none, divided by the loss scale (one small kernel each: not for nothing)."""
    found = {name: torch.zeros_like(params[name]) if g is None else g for name, g in zip(params, grads, strict=True)}
    return found if isinstance(scale, float) and scale == 1.0 else {name: grad / scale for name, grad in found.items()}
