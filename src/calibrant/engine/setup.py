"""Where and how a run computes, the network that it trains, and what moves the weights.

Each process takes its slice of one global batch. What needs the whole batch (penalties, meta objectives) gathers the logits;
each process gets the gradient of its own slice, and gradients are then summed. So any number of processes gives the result of
one. Optimizer and averages change tensors in place and never wait for the host, so a captured step can include them.
"""

from __future__ import annotations

import copy
import importlib
import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from calibrant.backbones import BACKBONES, Classifier
from calibrant.core.checks import lookup
from calibrant.data.image_set import ImageSet
from calibrant.engine.recipe import BackbonePart, OptimPart, Recipe, TrainPart
from calibrant.io.files import write_file
from calibrant.meta.step import all_summed, changed, find_head, gather, gathering_norms, meta_mode, own_randomness

T = TypeVar("T")


class Group(NamedTuple):
    """The processes that train together; by default a single one, for which every method is the identity.

    ``local_rank`` counts the processes on one machine; each takes the GPU of that number.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0

    @property
    def processes(self) -> dist.ProcessGroup | None:
        """The processes that share a look-ahead step; None for a single process."""
        return dist.group.WORLD if self.world_size > 1 else None

    def gather(self, tensor: Tensor) -> Tensor:
        """Concatenate equal parts ``[B, ...]`` of all processes; each gets the gradient of its own part."""
        return gather(tensor, self.processes)

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its sum over the processes, in one message."""
        if self.world_size == 1 or not tensors:
            return
        with torch.no_grad():
            for tensor, total in zip(tensors, all_summed(tensors, self.processes), strict=True):
                tensor.copy_(total)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by its mean over the processes."""
        if self.world_size > 1:
            self.add_up(tensors)
            for tensor in tensors:
                tensor /= self.world_size

    def by_first(self, make: Callable[[], T]) -> T:
        """Call ``make`` in the first process only, and return its result in all; if it raises, so do all."""
        if self.world_size == 1:
            return make()
        box: list[object] = [None, None]
        fault: ValueError | OSError | None = None
        if self.rank == 0:
            try:
                box[0] = make()
            except (ValueError, OSError) as error:
                fault, box[1] = error, str(error)
        dist.broadcast_object_list(box, src=0)
        if box[1] is not None:
            raise fault or ValueError(box[1])
        return cast(T, box[0])


ALONE_GROUP = Group()


@contextmanager
def joined_group(device: str) -> Iterator[Group]:
    """Join the other processes of a launcher such as ``torchrun``, and leave them afterwards.

    If there is a process group, it is used and stays. Without launcher and group there is one process.
    """
    group = launched_group()
    if dist.is_available() and dist.is_initialized():
        yield Group(dist.get_rank(), dist.get_world_size(), group.local_rank)
        return
    if group.world_size == 1:
        yield ALONE_GROUP
        return
    # NCCL sends from the current GPU, even what is not a tensor; given the device, it connects now and not in the first step.
    chosen = choose_hardware(device=device, precision="float32", group=group).device
    own = chosen if chosen.type == "cuda" else None
    with nullcontext() if own is None else torch.cuda.device(own):
        dist.init_process_group("gloo" if own is None else "nccl", rank=group.rank, world_size=group.world_size, device_id=own)
        try:
            yield group
            # The first one is last to write, and a launcher may end it when others leave. One that failed says why itself.
            with suppress(RuntimeError):
                dist.barrier()
        finally:
            dist.destroy_process_group()


def launched_group() -> Group:
    """Return what a launcher such as ``torchrun`` has told this process; without one it is alone."""
    usual = {"RANK": 0, "WORLD_SIZE": 1, "LOCAL_RANK": 0}
    return Group(*(int(os.environ.get(name) or value) for name, value in usual.items()))


class Hardware(NamedTuple):
    """Where and how a run computes."""

    device: torch.device
    precision: Literal["bf16", "float32", "float64"] = "float32"
    compiled: bool = False
    captured: bool = False
    group: Group = ALONE_GROUP

    @property
    def dtype(self) -> torch.dtype:
        """Floating type of weights and images."""
        return torch.float64 if self.precision == "float64" else torch.float32

    def autocast(self) -> torch.autocast:
        """Return a context in which networks compute in bf16, if that is the precision."""
        return torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=self.precision == "bf16")

    @contextmanager
    def active(self) -> Iterator[None]:
        """Make the run's GPU the current one, as captured graphs and NCCL need it.

        cuDNN then also tries out its algorithms (6 to 8 % faster with ResNet-18 on an H200), unless PyTorch must be
        deterministic.
        """
        if self.device.type != "cuda":
            yield
            return
        cudnn = torch.backends.cudnn
        tries = cudnn.benchmark or not torch.are_deterministic_algorithms_enabled()
        with changed([(cudnn, "benchmark", tries)]), torch.cuda.device(self.device):
            yield


def choose_hardware(
    *,
    device: str = "auto",
    precision: Literal["auto", "bf16", "float32", "float64"] = "auto",
    compiled: Literal["auto", "yes", "no"] = "auto",
    graph: Literal["auto", "yes", "no"] = "auto",
    steps: int = 1,
    group: Group = ALONE_GROUP,
) -> Hardware:
    """Resolve the "auto" entries of a recipe for this machine; raise ``ValueError`` if there is no such device.

    A network is compiled on CUDA if the run has many ``steps``: compiling takes half a minute and makes a ResNet-18 step about
    a fifth faster (0.5 ms of 2.8), so it pays from about 50,000 steps on. Not if several processes train together, where
    synchronised BatchNorm would break the network into as many pieces as it has layers.
    """
    available = torch.cuda.is_available()
    try:
        chosen = torch.device(("cuda" if available else "cpu") if device == "auto" else device)
    except RuntimeError:
        chosen = torch.device("meta")
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"train: `device` must be 'auto', 'cpu', 'cuda' or 'cuda:1', got {device!r}.")
    cuda, alone = chosen.type == "cuda", group.world_size == 1
    if cuda:
        index, count = chosen.index if alone else group.local_rank, torch.cuda.device_count() if available else 0
        if (index or 0) >= count:
            got = f"cuda:{index or 0}; `--device cpu` needs none"
            raise ValueError(f"train: `device` must be one of {count} CUDA devices, counted from 0, got {got}.")
        chosen = torch.device("cuda", torch.cuda.current_device() if index is None else index)
    if precision == "auto":
        precision = "bf16" if cuda and torch.cuda.is_bf16_supported() else "float32"
    compile_it = compiled == "yes" or (compiled == "auto" and cuda and steps >= 50_000 and alone)
    captured = cuda and (graph == "yes" or (graph == "auto" and alone))
    return Hardware(chosen, precision, compile_it, captured, group)


FeatureFunction = Callable[[Tensor], tuple[Tensor, Tensor]]
# A file of weights has the hyper-parameters that a method has learned under this prefix.
HYPER = "hyper."


class InputShape(NamedTuple):
    """What a network must know about its input and output; an `ImageSet` has the same attributes.

    Runs of earlier releases lack ``mean`` and ``std``, which normalise the images.
    """

    num_classes: int
    channels: int
    size: tuple[int, int]
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


def feature_function(model: nn.Module) -> FeatureFunction:
    """Return a function that maps images to ``(features, logits)`` of ``model``.

    A `Classifier` has a method for its features; of any other network they are the input of the last linear layer, which a hook
    sees.
    """
    if isinstance(model, Classifier):

        def direct(images: Tensor) -> tuple[Tensor, Tensor]:
            features = model.features(images)
            return features, model.head(features)

        return direct
    name, head = find_head(model)

    def hooked(images: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        handle = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            logits = model(images)
        finally:
            handle.remove()
        if not seen:
            raise ValueError(f"the last linear layer, {name!r}, is not used; name the classifier `head`, or register it last")
        return seen[-1], logits

    return hooked


def build_network(recipe: Recipe, data: ImageSet | InputShape, hardware: Hardware, *, uses_head: bool) -> nn.Module:
    """Return the network of a recipe, ready to train on the hardware; raise ``ValueError`` if it cannot be built or used.

    ``uses_head`` says whether the method looks ahead with the last layer.
    """
    part = recipe.backbone
    model = build_backbone(part, data, seed=recipe.seed)
    if part.init is not None:
        load_initial_weights(model, part.init)
    if hardware.group.world_size > 1 and hardware.device.type == "cuda":
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
    model = model.to(hardware.device, hardware.dtype).train()
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    check_network(model, data, hardware, name=part.name, uses_head=uses_head)
    freeze(model, part.freeze)
    if uses_head and not find_head(model)[1].weight.requires_grad:
        raise ValueError(
            f"train: `backbone.freeze` must leave the head free for {recipe.method.name}, which looks ahead with it."
        )
    return model


def build_backbone(part: BackbonePart, data: ImageSet | InputShape, *, seed: int) -> nn.Module:
    """Build the network for a set's classes, channels and size, initialised from ``seed`` alone."""
    # Layers draw their weights from the global generator; it is forked, so that the caller's numbers stay the same.
    with torch.random.fork_rng(devices=[]):
        if ":" in part.name:
            return _users_network(part.name, data.num_classes, seed=seed)
        torch.manual_seed(seed)
        height, width = data.size
        options = {"num_inputs": height * width * data.channels} if part.name == "mlp" else {"in_channels": data.channels}
        return lookup(BACKBONES, part.name, kind="backbone")(data.num_classes, **options)


def _users_network(name: str, num_classes: int, *, seed: int) -> nn.Module:
    place, _, factory = name.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # the current folder comes first, as under ``python -m``
    with _explained(f"be package.module:function that builds a network for {num_classes} classes", name):
        module = importlib.import_module(place)
        torch.manual_seed(seed)
        model = getattr(module, factory)(num_classes)
        if not isinstance(model, nn.Module):
            raise TypeError(f"{type(model).__name__} and no `nn.Module`")
    return model


@contextmanager
def _explained(must: str, name: str) -> Iterator[None]:
    """Turn an error in the user's own code into one sentence; but running out of memory says nothing about the network."""
    try:
        yield
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:200]}".rstrip(": .")
        raise ValueError(
            f"train: `model` must {must}, got {said} from {name!r}. CALIBRANT_TRACEBACK=1 before the same command shows where."
        ) from error


def check_network(
    model: nn.Module, data: ImageSet | InputShape, hardware: Hardware, *, name: str, uses_head: bool = False
) -> None:
    """Raise ``ValueError`` unless a network maps images to one logit per class (those of its last layer, if ``uses_head``).

    Two black images are passed through it in evaluation mode; parameters, statistics, random generators and the mode of each
    module stay as they were.
    """
    images = torch.zeros(2, data.channels, *data.size, device=hardware.device, dtype=hardware.dtype)
    images = images.contiguous(memory_format=torch.channels_last)
    forward = feature_function(model)
    with hardware.active(), own_randomness(hardware.device), torch.no_grad(), meta_mode(model, "frozen"), hardware.autocast():
        must = (
            f"map images {list(images.shape[1:])} (channels, height, width) to one logit for each of {data.num_classes} classes"
        )
        with _explained(must, name):
            features, logits = forward(images)
            if logits.shape != (2, data.num_classes):
                raise ValueError(f"logits {list(logits.shape)} for two images")
        if bool((logits >= 0).all()) and bool(((logits.double().sum(1) - 1).abs() < 1e-5).all()):
            raise ValueError(
                f"train: `model` must return scores before softmax, got probabilities from {name!r}. Leave its softmax out."
            )
        given = find_head(model)[1](features)
        same = given.shape == logits.shape and bool((given - logits).abs().max() <= 0.01 * (1 + logits.abs().max()))
    if uses_head and not same:
        raise ValueError(
            "train: `model` must return the output of its last `nn.Linear`, because methods that learn on held-out data look "
            f"ahead with that layer, got something else from {name!r}. Return its output, or choose another method."
        )


def freeze(model: nn.Module, prefixes: Sequence[str]) -> None:
    """Freeze some parts of ``model``: they get no gradient, and their BatchNorm stays in evaluation mode.

    ``prefixes`` are names of modules or parameters: "layer1" means all of ``layer1.*``.
    """
    parts: dict[str, Any] = {name: part for name, part in (*model.named_modules(), *model.named_parameters()) if name}
    for prefix in prefixes:
        part = lookup(parts, prefix, kind="part of the network", known=[name for name in parts if "." not in name])
        part.requires_grad_(False)
        if isinstance(part, nn.Module):
            part.eval()
    if not any(value.requires_grad for value in model.parameters()):
        raise ValueError("train: `backbone.freeze` must leave a part of the network to train, got all of it.")


def save_weights(path: Path, weights: Mapping[str, Tensor], hyper: Mapping[str, Tensor], *, notes: Mapping[str, str]) -> None:
    """Write a network's state and learned hyper-parameters as safetensors, with ``notes`` as JSON in the file's header."""
    from safetensors.torch import save

    named = dict(weights) | {f"{HYPER}{name}": value for name, value in hyper.items()}
    # Copies, because safetensors refuses tensors that share memory, such as one with two names.
    plain = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in named.items()}
    # Several entries would be written in a random order, and the files of equal runs would differ.
    write_file(path, save(plain, metadata={"calibrant": json.dumps(dict(notes), sort_keys=True)}))


def load_weights(path: str | Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Read a safetensors file, or that of a run folder; return the network's state and the hyper-parameters."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = Path(path) / "weights.safetensors" if Path(path).is_dir() else Path(path)
    try:
        found = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"train: `{file}` must be a safetensors file of weights, got {error}. Write one with "
            "`safetensors.torch.save_model(model, 'weights.safetensors')`."
        ) from None
    hyper = {name.removeprefix(HYPER): value for name, value in found.items() if name.startswith(HYPER)}
    return {name: value for name, value in found.items() if not name.startswith(HYPER)}, hyper


def load_initial_weights(model: nn.Module, path: str | Path) -> None:
    """Load weights of a safetensors file into ``model``; a head for another number of classes is left out, with a warning."""
    found, head = load_weights(path)[0], find_head(model)[0]
    own = {name: value for name, value in model.state_dict().items() if name.startswith(f"{head}.")}
    if any(name in found and found[name].shape != value.shape for name, value in own.items()):
        warnings.warn(f"the head in {path} is for a different number of classes; the head starts from scratch.", stacklevel=2)
        found |= own
    try:
        model.load_state_dict(found)
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        raise ValueError(
            f"train: `backbone.init` must hold the weights of this network, got: {said}. Check `--model` and `--data`."
        ) from None


def build_optimizer(parameters: Iterable[Tensor], part: OptimPart) -> Optimizer:
    """Build SGD or AdamW with its state allocated.

    On CUDA the learning rate is a tensor and the update fused, so that one captured step serves every schedule. Momentum starts
    as a tensor of zeros, which gives the same first step as none.
    """
    values = [p for p in parameters if p.requires_grad]
    cuda = values[0].is_cuda
    rate: float | Tensor = torch.tensor(part.lr, device=values[0].device) if cuda else part.lr
    optimizer: Optimizer
    if part.name == "adamw":
        optimizer = AdamW(values, lr=rate, weight_decay=part.weight_decay, capturable=cuda, fused=cuda)
        kept = ["exp_avg", "exp_avg_sq"]
    else:
        optimizer = SGD(values, rate, part.momentum, weight_decay=part.weight_decay, nesterov=part.nesterov, fused=cuda)
        kept = ["momentum_buffer"] if part.momentum else []
    for value in values:
        optimizer.state[value] = {name: torch.zeros_like(value, memory_format=torch.preserve_format) for name in kept}
        if part.name == "adamw":
            optimizer.state[value]["step"] = torch.zeros((), device=value.device if cuda else "cpu")
    return optimizer


def learning_rate(part: OptimPart, epoch: int, *, epochs: int) -> float:
    """Learning rate of an epoch under a recipe."""
    rate = part.lr
    if part.schedule == "cosine":
        rate = part.lr * (1 + math.cos(math.pi * (epoch / epochs))) / 2
    elif part.schedule == "multistep":
        rate = part.lr * part.decay ** sum(epoch >= milestone for milestone in _milestones(part, epochs))
    return rate * min(1.0, (epoch + 1) / part.warmup_epochs) if part.warmup_epochs > 0 else rate


def drops(part: OptimPart, epoch: int, *, epochs: int) -> bool:
    """Whether the learning rate drops with this epoch."""
    return part.schedule == "multistep" and any(epoch - 1 < place <= epoch for place in _milestones(part, epochs))


def _milestones(part: OptimPart, epochs: int) -> Sequence[float]:
    if part.milestones_epochs is not None:
        return part.milestones_epochs
    # The paper drops at 150 and 250 of 350 epochs. Other lengths keep these proportions, but the first epoch always has the
    # full rate, and two drops never coincide.
    first = max(1, round(epochs * 3 / 7))
    return first, max(first + 1, round(epochs * 5 / 7))


class WeightAverage:
    r"""Average of weights and BatchNorm statistics over steps.

    After the t-th step the average becomes :math:`\theta + k\,(\bar\theta - \theta)` with :math:`k = 1 - c/(t + c - 1)`, where
    1/c is the ``share`` of the steps that it remembers: 1 weighs all steps alike, less weighs later steps more. For an
    exponential average k is at most ``decay``, and the weights that training began with are never part of it.

    Reference:
        Polyak and Juditsky, SIAM J. Control Optim. 1992; over the tail of training, with new statistics, Izmailov et al., UAI
        2018; later steps weighing more, Shamir and Zhang, ICML 2013 (polynomial-decay averaging).
    """

    def __init__(
        self,
        model: nn.Module,  # its parameters and buffers must stay where they are
        *,
        decay: float | None = None,
        share: float = 1.0,
        by_phase: bool = False,  # begins anew with every drop of the learning rate, and needs new statistics to predict
        # BatchNorm statistics are not averaged, but learned from what passes through its own network: averaged ones are those
        # of the single networks, whose activations vary more than those of a long average.
        own_statistics: bool = False,
    ) -> None:
        self._decay, self._ahead, self.by_phase = 1.0 if decay is None else decay, 1 / share, by_phase
        state = model.state_dict()
        self._values = {name: value.detach() for name, value in state.items() if value.is_floating_point()}
        self.means = {name: value.clone(memory_format=torch.preserve_format) for name, value in self._values.items()}
        self.buffer_means = [self.means[name] for name, _ in model.named_buffers() if name in self.means]
        norms = gathering_norms(model) if own_statistics else []
        apart = {value.data_ptr() for norm in norms for value in (norm.running_mean, norm.running_var) if value is not None}
        followed = [name for name, value in self._values.items() if value.data_ptr() not in apart]
        self._followed = [self.means[name] for name in followed], [self._values[name] for name in followed]
        self._count = next(iter(self._values.values())).new_zeros(())

    def network(self, model: nn.Module) -> nn.Module:
        """Return a copy of the network whose weights are the averaged ones at every step."""
        found = copy.deepcopy(model).requires_grad_(False)
        for name, value in found.state_dict(keep_vars=True).items():
            if name in self.means:
                value.data = self.means[name]
        return found

    def forget(self) -> None:
        """Begin anew with the next step."""
        self._count.zero_()

    def kept(self) -> Tensor:
        """Share of itself ``[]`` that the average keeps in the next step."""
        t = self._count + 1
        kept: Tensor = (t - 1) / (t + (self._ahead - 1))
        return kept.clamp(max=self._decay)

    @torch.no_grad()
    def update(self) -> None:
        """Add the weights after a step."""
        kept = self.kept()
        self._count += 1
        means, values = self._followed
        torch._foreach_sub_(means, values)
        torch._foreach_mul_(means, kept)
        torch._foreach_add_(means, values)

    @contextmanager
    def applied(self, *, keep: bool = False) -> Iterator[None]:
        """Give the network the averaged weights for a while; ``keep`` keeps what changes meanwhile, such as statistics."""
        means, values = list(self.means.values()), list(self._values.values())
        own = [value.clone(memory_format=torch.preserve_format) for value in values]
        torch._foreach_copy_(values, means)
        try:
            yield
            if keep:
                torch._foreach_copy_(means, values)
        finally:
            torch._foreach_copy_(values, own)

    def state(self) -> dict[str, Tensor]:
        """Every tensor that `update` changes, by name."""
        return {"count": self._count} | {f"mean.{name}": value for name, value in self.means.items()}


def build_averages(model: nn.Module, train: TrainPart, *, steps: int, watched: bool) -> dict[str, WeightAverage]:
    """Make the averages of a run: the one that predicts and, if it must be another one, the one that meta batches pass through.

    The longer the memory of an average, the later it shows what gamma has done, and what it steers then swings. So by phase
    there are two: "average" predicts, and meta batches, if they are ``watched``, pass through "watch".
    """
    if train.average == "no":
        return {}
    decay = 1 - 1 / average_memory(train, steps)
    if train.average == "ema":
        return {"average": WeightAverage(model, decay=decay)}
    found = {"average": WeightAverage(model, share=train.average_share, by_phase=True)}
    if watched:
        found["watch"] = WeightAverage(model, decay=decay, own_statistics=True)
    return found


def average_memory(train: TrainPart, steps: int) -> float:
    """Steps that an exponential average remembers in a run of this length, even if the run keeps none.

    Three epochs of CIFAR-10 are enough to even out the steps; in a short run that would reach back to the beginning.
    """
    if train.average != "no" and train.average_decay is not None:
        return 1 / (1 - train.average_decay)
    return min(max(steps / 50, 1.0), 1000.0)
