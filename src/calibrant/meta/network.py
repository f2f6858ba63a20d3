"""A classifier seen as penultimate features and a linear head, and how it runs on meta batches: modes, tangents, randomness."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.parameter import is_lazy

from calibrant.core.collect import find_logits
from calibrant.meta.gamma_net import Params

Inputs: TypeAlias = "Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]"
MetaBN: TypeAlias = Literal["batch", "update", "frozen"]

_USUAL_NAMES = ("head", "fc", "classifier", "linear", "output", "score", "heads.head", "head.fc", "classifier.out_proj")


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
        """Entry of the head → its name in `parameters`: tied weights stand there once, by the name of the first layer."""
        names = {id(value): name for name, value in self.parameters().items()}
        for entry, value in self.head_values.items():
            if id(value) not in names:
                raise ValueError(
                    f"MetaLearner: `head` must be trained where the look-ahead is full, but its {entry} ({self.head_name}) "
                    'takes no gradient. Unfreeze it, or use lookahead="head".'
                )
        return {entry: names[id(value)] for entry, value in self.head_values.items()}


def lazy_parameters(model: nn.Module) -> list[str]:
    """Names of the parameters and buffers that get their size, and their values, only from the first batch."""
    return [name for name, value in [*model.named_parameters(), *model.named_buffers()] if is_lazy(value)]


def find_network(model: nn.Module, head: str | nn.Module | None = None) -> Network:
    """Find the linear layer that ends ``model``, inside wrappers of distributed training and of ``torch.compile``.

    ``head`` is its name, the layer itself, or None: then the usual names are tried ("head", "fc", "classifier", ...), and last
    the final ``nn.Linear`` in the order of definition. The first batch tells whether the guess was right.
    """
    inner, group = unwrap(model)
    if lazy := lazy_parameters(inner):
        raise ValueError(
            f"MetaLearner: `model` must have parameters of known size, got lazy ones ({lazy[0]}). Run a batch through it first."
        )
    layers = {name: module for name, module in inner.named_modules() if isinstance(module, nn.Linear)}
    if isinstance(head, nn.Module):
        found = next((name for name, module in layers.items() if module is head), None)
    elif head is not None:
        found = head if head in layers else None
    else:
        found = next((name for name in _USUAL_NAMES if name in layers), next(reversed(layers), None))
    if found is None:
        got = repr(head) if isinstance(head, str) else "no such layer"
        known = ", ".join(layers) or "none"
        raise ValueError(f"MetaLearner: `head` must name an `nn.Linear` of the model, got {got}. Linear layers: {known}.")
    return Network(model, inner, layers[found], found, group)


def unwrap(model: nn.Module) -> tuple[nn.Module, dist.ProcessGroup | None]:
    """Return the module inside distributed and compiled wrappers, and the processes of ``DistributedDataParallel``."""
    group: dist.ProcessGroup | None = None
    while True:
        inside = getattr(model, "_orig_mod", None)
        if isinstance(model, nn.parallel.DistributedDataParallel | nn.DataParallel):
            inside, group = model.module, getattr(model, "process_group", None)
        if not isinstance(inside, nn.Module):
            return model, group
        model = inside


def call(function: Callable[..., Any], x: Inputs) -> Any:
    """Call ``function`` with a tensor, a tuple of positional arguments or a mapping of keyword arguments."""
    if isinstance(x, Mapping):
        return function(**x)
    return function(*x) if isinstance(x, tuple | list) else function(x)


def call_at(network: Network, params: Mapping[str, Tensor], x: Inputs) -> Tensor:
    """Logits ``[B, C]`` of ``x`` with these parameters in place of the network's own."""
    return logits_of(call(lambda *args, **kwargs: functional_call(network.inner, dict(params), args, kwargs), x))


def logits_of(output: object) -> Tensor:
    """Logits ``[B, C]`` in what a model returned (see `find_logits`); those of tokens, ``[B, T, C]``, become ``[B T, C]``."""
    return _flat(find_logits(output, where="MetaLearner"))


def labelled(labels: Tensor, rows: int, ignore_index: int | None) -> tuple[Tensor, Tensor | None]:
    """Labels of those of so many ``rows`` that are not ignored, and their positions, for which it waits; None for all."""
    if labels.ndim > 1 and labels.numel() == rows:
        labels = labels.reshape(-1)
    if ignore_index is None:
        return labels, None
    if len(labels) != rows or labels.ndim != 1:
        got = list(labels.shape)
        raise ValueError(f"MetaLearner: `labels` must be one for each of {rows} rows of logits, got {got}. Shift both alike.")
    kept = (labels.long() != ignore_index).nonzero().squeeze(1)
    return labels[kept], kept


def rows_of(values: Tensor, kept: Tensor | None) -> Tensor:
    """Rows ``kept`` of ``values``, or all."""
    return values if kept is None else values.index_select(0, kept)


def read_features(network: Network, x: Inputs, *, inner: bool = False, verify: bool = False) -> tuple[Tensor, Tensor]:
    """Run the model and return the input of its head, ``[B, d]``, and its logits, ``[B, C]``; of tokens one row each.

    ``inner`` calls the module inside the wrappers, which are for training passes only. ``verify`` compares the head's output
    with the model's (and waits for the device), and raises if they differ.
    """
    seen: list[Tensor] = []
    made: list[Tensor] = []
    hooks = [network.head.register_forward_pre_hook(lambda module, given: seen.append(given[0]))]
    if verify:
        hooks.append(network.head.register_forward_hook(lambda module, given, out: made.append(out.detach())))
    try:
        logits = logits_of(call(network.inner if inner else network.model, x))
    finally:
        for hook in hooks:
            hook.remove()
    where = f"MetaLearner: `head` must be the layer whose output the model returns, but `{network.head_name}`"
    if len(seen) != 1:
        # Compiled code that was made without a hook does not notice one that came later.
        compiled = not seen and network.model is not network.inner and not inner
        hint = " If the model was compiled and called before, call `torch.compiler.reset()`." if compiled else ""
        raise ValueError(f"{where} ran {len(seen)} times. Name the last linear layer.{hint}")
    features = _flat(seen[0])
    if len(features) != len(logits):
        raise ValueError(f"{where} takes {list(seen[0].shape)}, not [B, d]. Pool or flatten before it.")
    # Trainers of mixed precision widen what the model returns, which does not change a number.
    if verify and not _same(_flat(made[0].to(logits.dtype)), logits.detach()):
        raise ValueError(f"{where} makes something else. Name the last linear layer, and return its output unchanged.")
    return features, logits


def _flat(values: Tensor) -> Tensor:
    return values if values.ndim == 2 else values.reshape(-1, values.shape[-1])


def _same(first: Tensor, second: Tensor) -> bool:
    # NaN in both is the same: losses complain of it themselves.
    return first.shape == second.shape and torch.allclose(first, second, rtol=0, atol=0, equal_nan=True)


def logits_tangent(network: Network, x: Inputs, params: Mapping[str, Tensor], along: Mapping[str, Tensor]) -> Tensor:
    """Derivative ``[B, C]`` of the logits at ``params`` along a direction, by one forward-mode pass.

    Running statistics stay as they are. Raises ``RuntimeError`` if a layer has no forward-mode derivative.
    """
    # Fused attention kernels have no forward-mode derivative; the plain one has, and gives the same numbers.
    with (
        torch.no_grad(),
        untracked(network.inner),
        sdpa_kernel(SDPBackend.MATH),
        warnings.catch_warnings(),
        forward_ad.dual_level(),
    ):
        # The first use of forward mode makes PyTorch 2.13 load rules by `torch.jit.script`, which warns that it is deprecated.
        warnings.simplefilter("ignore", DeprecationWarning)
        duals = {name: forward_ad.make_dual(value.detach(), along[name].to(value.dtype)) for name, value in params.items()}
        try:
            logits = call_at(network, duals, x)
        except NotImplementedError as error:
            raise RuntimeError(
                f"MetaLearner: the full look-ahead needs a forward-mode derivative that a layer lacks ({error}). "
                'Use lookahead="head".'
            ) from error
        tangent = forward_ad.unpack_dual(logits).tangent
        return torch.zeros_like(logits) if tangent is None else tangent


def random_state(device: torch.device) -> Tensor | None:
    """State of the random numbers of ``device``; None while a CUDA graph is captured, where it cannot be read."""
    if device.type != "cuda":
        return torch.get_rng_state()
    return None if capturing(device) else torch.cuda.get_rng_state(device)


def capturing(device: torch.device) -> bool:
    """Whether what runs on ``device`` is being captured as a CUDA graph, so that nothing can be read from it."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def own_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Leave the global generators of the CPU and of ``device`` as they were, whatever is drawn inside."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


@contextmanager
def replayed_randomness(state: Tensor | None, device: torch.device) -> Iterator[None]:
    """Draw the same dropout masks as when `random_state` gave ``state``; the present state is put back."""
    if state is None:
        yield
        return
    with own_randomness(device):
        if device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
        yield


@contextmanager
def changed(attributes: Sequence[tuple[nn.Module, str, object]]) -> Iterator[None]:
    """Give modules other attributes, and their own back afterwards."""
    before = [(module, name, getattr(module, name)) for module, name, _ in attributes]
    for module, name, value in attributes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)


def _training(model: nn.Module, parts: Sequence[nn.Module]) -> list[tuple[nn.Module, str, object]]:
    """How these parts of ``model`` alone, of those in training mode, stay in it."""
    return [(module, "training", any(module is part for part in parts)) for module in model.modules() if module.training]


def meta_mode(model: nn.Module, meta_bn: MetaBN) -> AbstractContextManager[None]:
    """Set ``model``, which is in training mode, up for a forward pass over meta data, and put it back afterwards.

    "batch": BatchNorm normalises with the meta batch's statistics and leaves the running ones alone; dropout is off, as it
    will be when predictions are made. "frozen": the whole network as in ``eval()``. "update": the whole network as in
    training, running statistics included, as in the published meta-calibration code.
    """
    if meta_bn == "update":
        return nullcontext()
    kept = [norm for norm in norms_of(model) if norm.training and meta_bn == "batch"]
    return changed(_training(model, kept) + _untracked(kept))


def following(model: nn.Module) -> AbstractContextManager[None]:
    """Let the running statistics of ``model`` follow the batches that pass through it, as in training, but dropout off."""
    return changed(_training(model, gathering_norms(model)))


def gathering(model: nn.Module) -> AbstractContextManager[None]:
    """Let the running statistics of ``model`` become the means over all batches that pass through it, dropout off.

    Layers that are not in training mode keep theirs. Counts of batches are put back afterwards, as is the network's mode.
    """
    norms = gathering_norms(model)
    attributes = _training(model, norms)
    for norm in norms:
        assert norm.running_mean is not None
        # Without a momentum PyTorch weighs all batches alike, beginning with the first that is counted.
        count = torch.zeros((), dtype=torch.long, device=norm.running_mean.device)
        attributes += [(norm, "momentum", None), (norm, "num_batches_tracked", count)]
    return changed(attributes)


def untracked(model: nn.Module) -> AbstractContextManager[None]:
    """Keep the running statistics of ``model`` as they are; layers in training mode use those of the batch alone."""
    return changed(_untracked(norms_of(model)))


def _untracked(norms: Sequence[_NormBase]) -> list[tuple[nn.Module, str, object]]:
    # PyTorch hands the running buffers to a layer in training mode only if this flag is set: nothing need be copied back.
    return [(norm, "track_running_stats", False) for norm in norms if norm.training and norm.track_running_stats]


def gathering_norms(model: nn.Module) -> list[_BatchNorm]:
    """Every BatchNorm of ``model`` that learns running statistics: it keeps them, and is in training mode."""
    return [norm for norm in norms_of(model) if isinstance(norm, _BatchNorm) and norm.training and norm.track_running_stats]


def norms_of(model: nn.Module) -> list[_NormBase]:
    """Every layer of ``model`` that may keep running statistics."""
    return [module for module in model.modules() if isinstance(module, _NormBase)]
