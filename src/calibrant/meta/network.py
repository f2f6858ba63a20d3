"""A classifier seen as penultimate features and a linear head, and how it runs on meta batches: modes, tangents, randomness."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim.swa_utils import AveragedModel

from calibrant.core.collect import find_logits
from calibrant.meta.regularizers import Params, Values

Inputs: TypeAlias = "Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]"
MetaBN: TypeAlias = Literal["batch", "update", "frozen"]
# An object, the name of one of its attributes, and a value for it.
Attribute: TypeAlias = tuple[object, str, object]

_WRAPPERS = (nn.parallel.DistributedDataParallel, AveragedModel)
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


def labelled_rows(labels: Tensor, ignore_index: int | None, *values: Tensor) -> tuple[Tensor, ...]:
    """Labels, one for each row of ``values [N, ...]``, and these, without the rows to ignore (for which it waits)."""
    rows = len(values[0])
    if labels.ndim > 1 and labels.numel() == rows:
        labels = labels.reshape(-1)
    if ignore_index is None:
        return labels, *values
    if list(labels.shape) != [rows]:
        got = list(labels.shape)
        raise ValueError(f"MetaLearner: `labels` must be one for each of {rows} rows of logits, got {got}. Shift both alike.")
    kept = (labels.long() != ignore_index).nonzero().squeeze(1)
    return labels[kept], *(value.index_select(0, kept) for value in values)


def read_features(
    network: Network, x: Inputs, *, params: Values | None = None, inner: bool = False, verify: bool = False
) -> tuple[Tensor, Tensor]:
    """Run the model and return the input of its head, ``[B, d]``, and its logits, ``[B, C]``; of tokens one row each.

    ``params`` replace the model's own; ``inner`` calls the module inside the wrappers, which are for training passes only;
    ``verify`` raises if the head's output is not the model's (and waits for the device).
    """
    seen: list[tuple[Tensor, Tensor]] = []
    hook = network.head.register_forward_hook(lambda module, given, made: seen.append((given[0], made)))
    args = () if isinstance(x, Mapping) else tuple(x) if isinstance(x, tuple | list) else (x,)
    kwargs = dict(x) if isinstance(x, Mapping) else {}
    try:
        if params is not None:
            output = functional_call(network.inner, dict(params), args, kwargs)
        else:
            output = (network.inner if inner else network.model)(*args, **kwargs)
    finally:
        hook.remove()
    logits = find_logits(output, where="MetaLearner").flatten(0, -2)
    where = f"MetaLearner: `head` must be the layer whose output the model returns, but `{network.head_name}`"
    if len(seen) != 1:
        raise ValueError(
            f"{where} ran {len(seen)} times. Name the last linear layer; if the model was compiled and called before, call "
            "`torch.compiler.reset()`."
        )
    features, made = (value.flatten(0, -2) for value in seen[0])
    if len(features) != len(logits):
        raise ValueError(f"{where} takes {list(seen[0][0].shape)}, not [B, d]. Pool or flatten before it.")
    # Trainers of mixed precision widen what the model returns, which does not change a number. NaN is for losses to refuse.
    if verify and not torch.equal(made.detach().to(logits.dtype).nan_to_num(), logits.detach().nan_to_num()):
        raise ValueError(f"{where} makes something else. Name the last linear layer, and return its output unchanged.")
    return features, logits


def logits_tangent(network: Network, x: Inputs, params: Values, along: Values) -> Tensor:
    """Derivative ``[B, C]`` of the logits at ``params`` along a direction, by one forward-mode pass.

    Running statistics stay as they are. Raises ``NotImplementedError`` if a layer has no forward-mode derivative.
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
        logits = read_features(network, x, params=duals)[1]
        tangent = forward_ad.unpack_dual(logits).tangent
        return torch.zeros_like(logits) if tangent is None else tangent


def random_state(device: torch.device) -> Tensor | None:
    """State of the random numbers of ``device``; None while a CUDA graph is captured, where it cannot be read."""
    if device.type != "cuda":
        return torch.get_rng_state()
    return None if torch.cuda.is_current_stream_capturing() else torch.cuda.get_rng_state(device)


def own_randomness(device: torch.device) -> AbstractContextManager[None]:
    """Leave the global generators of the CPU and of ``device`` as they were, whatever is drawn inside."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


@contextmanager
def replayed_randomness(state: Tensor | None, device: torch.device) -> Iterator[None]:
    """Draw the same dropout masks as when `random_state` gave ``state``; the present state is put back."""
    with nullcontext() if state is None else own_randomness(device):
        if state is not None and device.type == "cuda":
            torch.cuda.set_rng_state(state, device)
        elif state is not None:
            torch.set_rng_state(state)
        yield


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
