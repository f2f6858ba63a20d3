"""What the published meta-calibration code adds to the network's gradient by not clearing it after the meta step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.meta.regularizers.base import Params, Regularizer
from calibrant.meta.virtual import Batch, MetaObjective, VirtualStep, virtual_sgd


def leaked_value(
    regularizer: Regularizer,
    objective: MetaObjective,
    hyper: Mapping[str, Tensor],
    *,
    head: Mapping[str, Tensor],
    batch: Batch,
    meta_features: Tensor,
    meta_labels: Tensor,
    step: VirtualStep,
) -> Tensor:
    """Meta objective after a virtual step of the head, as a function of the network itself.

    Its gradient reaches the network through the meta batch's features, through the head and, by second order, through the
    training batch whose gradient made the virtual step. Late in training, when the training loss is nearly zero, it can be as
    large as the training gradient: part of the calibration then comes from training on the held-out data directly.

    Args:
        regularizer: The training loss.
        objective: ``(logits, labels) -> []`` on the meta batch.
        hyper: Values of the hyper-parameters, held constant; they may change before the gradient is asked for.
        head: The head's own parameters.
        batch: The training batch, features and logits with their graph.
        meta_features: Features of the meta batch, with their graph.
        meta_labels: ``[M]``.
        step: The virtual step.

    Returns:
        The value ``[]``, with its graph.
    """
    fixed = {name: value.detach().clone() for name, value in hyper.items()}
    # Features from compiled code depend, for all that autograd knows, on every parameter, also on the head; the virtual step's
    # gradient is not to run through that code, which cannot be differentiated twice.
    own = {name: value.view_as(value) for name, value in head.items()}
    logits = F.linear(batch.features.to(own["weight"].dtype), own["weight"], own.get("bias"))
    total = regularizer.loss(fixed, batch.features.detach(), logits, batch.labels, own).sum()
    found = torch.autograd.grad(total * step.factor(len(batch.labels)), list(own.values()), create_graph=True)
    virtual = virtual_sgd(own, dict(zip(own, found, strict=True)), lr=step.lr, clip=step.clip)
    meta_logits = F.linear(meta_features.to(own["weight"].dtype), virtual["weight"], virtual.get("bias"))
    return objective(meta_logits, meta_labels)


def leaked_gradients(value: Tensor, params: Mapping[str, Tensor], *, loss_scale: float | Tensor = 1.0) -> Params:
    """Gradient of `leaked_value` with respect to the network; the graph of the training batch is kept.

    Args:
        value: The value ``[]``, with its graph.
        params: Parameters of the network.
        loss_scale: What the gradients are multiplied by, as those of the training loss will be.

    Returns:
        Name → gradient, fit to be the parameter's ``grad``; parameters that are not reached are left out.
    """
    grads = torch.autograd.grad(value * loss_scale, list(params.values()), retain_graph=True, allow_unused=True)
    return {name: own_gradient(grad, params[name]) for name, grad in zip(params, grads, strict=True) if grad is not None}


def own_gradient(grad: Tensor, value: Tensor) -> Tensor:
    """Copy what `torch.autograd.grad` returned, to be ``value.grad``: laid out as ``value`` and in memory of its own.

    Autograd's own accumulation sees to both. A gradient may lie otherwise than its parameter (cuDNN knows no channels last in
    float64; images may lie otherwise than weights): fused optimizers then raise on CUDA, and on the CPU step wrongly without a
    word. And it may be one tensor for two parameters (``a + b``), to which a later backward pass would add twice.

    Args:
        grad: The gradient, strided or sparse.
        value: Its parameter.

    Returns:
        The gradient with the strides and the type of ``value``; a sparse one stays as it lies.
    """
    return torch.empty_like(value).copy_(grad) if grad.layout == torch.strided else grad.clone()
