"""What comes of a run: predictions on whole sets, a record of every epoch, the best epoch, and the finished run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from calibrant.core.checks import ArrayLike
from calibrant.core.records import Predictions, Split
from calibrant.core.scores import Scores
from calibrant.data.image_set import ImageSet, normalize
from calibrant.data.own_images import read_images
from calibrant.engine.hardware import Hardware, choose_hardware
from calibrant.engine.network import FeatureFunction, Shape, feature_function
from calibrant.engine.recipe import Recipe
from calibrant.meta.network import meta_mode
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.scores import error_rate, negative_log_likelihood

# Images of CIFAR-10's size that a pass on a GPU takes.
_AT_ONCE = 2000
# Features → the gamma of every example, for methods that have one.
Gamma: TypeAlias = "Callable[[Tensor], Tensor] | None"


class EvalSet:
    """A set, run through the network in evaluation mode.

    Several processes share the work, and each gets all of the result. ``resident`` images lie on the device all along.
    """

    def __init__(self, data: ImageSet, hardware: Hardware, *, resident: bool = True) -> None:
        self._hardware, self.labels, self._class_names = hardware, data.labels, data.class_names
        group, device = hardware.group, hardware.device
        share = -(-len(data) // group.world_size)
        # Equal shares, as gathering needs; what the last one lacks is filled with its last example and cut off again.
        rows = (torch.arange(share) + group.rank * share).clamp(max=len(data) - 1)
        own = data.images if group.world_size == 1 else data.images[rows]
        self._images = own.to(device) if resident else own
        self._mean = torch.tensor(data.mean, dtype=hardware.dtype, device=device)
        self._std = torch.tensor(data.std, dtype=hardware.dtype, device=device)

    def run(self, model: nn.Module, forward: FeatureFunction, *, gamma: Gamma = None) -> tuple[Tensor, Tensor | None]:
        """Return logits ``[N, C]`` and, where asked for, gammas ``[N]``, on the device; the network's mode is put back."""
        device, narrow = self._hardware.device, self._hardware.precision == "bf16"
        logits, gammas = [], []
        with torch.no_grad(), meta_mode(model, "frozen"), self._hardware.autocast():
            for images in self._images.split(at_once(self._images[0], device)):
                features, scores = forward(normalize(images.to(device), self._mean, self._std))
                logits.append(scores.float() if narrow else scores)
                if gamma is not None:
                    gammas.append(gamma(features.float() if narrow else features))
        return self._whole(logits), self._whole(gammas) if gammas else None

    def predict(self, model: nn.Module, forward: FeatureFunction, split: Split, *, gamma: Gamma = None) -> Predictions:
        """Return what `run` does as a record on the CPU."""
        logits, gammas = self.run(model, forward, gamma=gamma)
        columns = {} if gammas is None else {"gamma": gammas.cpu()}
        return Predictions(logits=logits.cpu(), labels=self.labels, split=split, class_names=self._class_names, columns=columns)

    def _whole(self, parts: list[Tensor]) -> Tensor:
        return self._hardware.group.gather(torch.cat(parts))[: len(self.labels)]


def at_once(image: Tensor, device: torch.device) -> int:
    """How many images like ``image`` a forward pass in evaluation mode should take.

    On a GPU 2,000 of CIFAR-10's size, and as many fewer of larger ones, so that activations take no more memory. On a CPU so
    few that they stay in its caches: ResNet-18 takes 1,024 images of CIFAR-10 in 5.6 s by 32 and in 7.3 s at once.
    """
    if device.type == "cuda":
        return min(_AT_ONCE, max(32, _AT_ONCE * 3 * 32**2 // image.numel()))
    return max(32, 3 * 32**3 // image.numel())


def epoch_scores(logits: Tensor, labels: Tensor) -> dict[str, float]:
    """The three numbers of the paper's learning curves: error, NLL and 15-bin ECE of ``logits`` (any device)."""
    predictions = Predictions(logits=logits, labels=labels)
    probs = predictions.probs
    return {
        "error": float(error_rate(probs, labels)),
        "nll": float(negative_log_likelihood(predictions)),
        "ece": float(expected_calibration_error(probs, labels)),
    }


@dataclass(frozen=True)
class EpochRecord:
    """One line of the history: what the paper's learning curves show.

    Attributes:
        epoch: Number of the epoch, from 0.
        lr: Its learning rate.
        train_loss: Mean training loss of an example.
        val_error: Validation error; with ``val_nll`` and ``val_ece`` None where the epoch was not evaluated.
        val_nll: Validation NLL.
        val_ece: Validation ECE.
        test_error: Test error; never used to choose anything.
        test_nll: Test NLL.
        test_ece: Test ECE.
        gamma_mean: Mean gamma on the test set, for methods that have one.
        gamma_std: Its standard deviation over examples.
        images_per_second: Training speed, evaluation not counted.
        seconds: Time since the run began.
    """

    epoch: int
    lr: float
    train_loss: float
    val_error: float | None = None
    val_nll: float | None = None
    val_ece: float | None = None
    test_error: float | None = None
    test_nll: float | None = None
    test_ece: float | None = None
    gamma_mean: float | None = None
    gamma_std: float | None = None
    images_per_second: float | None = None
    seconds: float | None = None


class Alternative(NamedTuple):
    """Predictions of a run with other weights, or of an epoch that another rule chooses."""

    epoch: int
    val: Predictions
    test: Predictions


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        recipe: What was run.
        history: One record an epoch.
        best_epoch: Epoch whose weights the model and the predictions have.
        val: Predictions on the validation part; with ``+ts`` after temperature scaling, as ``test``.
        test: Predictions on the test set. Methods with a gamma have it for every example in the column ``gamma``.
        hyper: The learned hyper-parameters, name → value; empty for methods without.
        network: Builds or returns the network; see `model`.
        inputs: Form and normalisation of the images that it takes.
        temperature: What ``+ts`` divided the logits by, or None.
        folder: Where the run was written, or None.
        shift: ``"gaussian_noise-1"`` … → scores on the corrupted test set, where they were asked for (`data.shift`).
        alternatives: ``"raw-error"`` … ``"averaged-error+nll"`` → predictions, where they were asked for
            (`train.alternatives`); before temperature scaling.
    """

    recipe: Recipe
    history: tuple[EpochRecord, ...]
    best_epoch: int
    val: Predictions
    test: Predictions
    hyper: dict[str, Tensor]
    network: Callable[[], nn.Module] = field(repr=False)
    inputs: Shape
    temperature: float | None = None
    folder: Path | None = None
    shift: Mapping[str, Scores] = field(default_factory=dict, repr=False)
    alternatives: Mapping[str, Alternative] = field(default_factory=dict, repr=False)

    @cached_property
    def model(self) -> nn.Module:
        """The network at the best epoch, in evaluation mode; its logits are those before temperature scaling."""
        return self.network().eval()

    def predict(self, images: ArrayLike | str | Path, *, device: str = "auto") -> Tensor:
        """Predict images that need no labels, normalised as those that the run was trained on.

        Args:
            images: ``[N, H, W]``, ``[N, H, W, channels]`` or ``[N, channels, H, W]`` of the run's size, whole numbers from 0 to
                255 or others from 0 to 1; or the path of an ``.npz`` with ``images``, of a picture, or of a folder of pictures,
                which are resized where needed.
            device: Where to compute: auto, cpu, cuda or cuda:1.

        Returns:
            Logits ``[N, C]`` on the CPU, after temperature scaling where the run has it; ``.softmax(1)`` gives probabilities.

        Example:
            >>> from calibrant import train
            >>> parts = {"data": {"name": "mixture"}, "backbone": {"name": "mlp"}, "method": {"name": "ce"}}
            >>> run = train(parts | {"train": {"epochs": 1}})
            >>> run.predict(torch.zeros(3, 8, 8)).softmax(1).shape
            torch.Size([3, 4])
        """
        return self.predict_named(images, device=device)[0]

    def predict_named(self, images: ArrayLike | str | Path, *, device: str = "auto") -> tuple[Tensor, list[str]]:
        """Return what `predict` does, and what each image is called: its path in the folder, or its number."""
        shape: Shape | ImageSet = self.inputs
        if not shape.mean:
            from calibrant.engine.loop import load_data

            shape = load_data(self.recipe.data).train
        read, names = read_images(images, form=(*shape.size, shape.channels), where="predict")
        labels = torch.zeros(len(read), dtype=torch.int64)
        hardware = choose_hardware(device=device, precision=self.recipe.train.precision)
        return self.logits_of(ImageSet(read, labels, shape.num_classes, shape.mean, shape.std), hardware), names

    def logits_of(self, data: ImageSet, hardware: Hardware) -> Tensor:
        """Logits ``[N, C]`` of other images, on the CPU; after temperature scaling where the run has it."""
        model = self.network().to(hardware.device, hardware.dtype).eval()
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with hardware.active():
            # The set passes once, so it need not lie on the device.
            logits, _ = EvalSet(data, hardware, resident=False).run(model, feature_function(model))
        return logits.cpu() / (self.temperature or 1.0)


# What each way of selecting compares; lower is better, and "last" takes the last.
_VALUES = {"error": "val_error", "nll": "val_nll", "error+nll": "val_nll", "error+ece": "val_ece"}


class Candidate(NamedTuple):
    """An epoch that is, or may turn out to be, the best; its weights lie in host memory, as dozens may wait for the choice.

    The ``error`` counts only where the choice asks for one close to the lowest; of the ``value`` the lowest is best.
    """

    epoch: int
    error: float
    value: float
    weights: dict[str, Tensor]


class BestEpoch:
    r"""Keeps the weights of the best epoch so far, and of those that may yet turn out to be.

    "error" and "nll" take the first epoch with the lowest validation error or NLL, "last" the last. "error+nll" and "error+ece"
    take the lowest NLL or ECE among the epochs whose error is at most :math:`e + w \sqrt{e (1 - e) / n}`, with e the lowest
    error, n validation examples (``n_val``) and w standard errors (``within``). The bound can only fall, so an epoch beyond it,
    or beaten in both numbers, never comes back: only the others' weights are kept.
    """

    def __init__(self, select: str, *, n_val: int, within: float = 2.0) -> None:
        self._key, self._close, self._n, self._within = _VALUES.get(select), "+" in select, n_val, within
        self.candidates: list[Candidate] = []

    @property
    def best(self) -> Candidate:
        """The best epoch; the earliest of several."""
        return min(self.candidates, key=lambda candidate: (candidate.value, candidate.epoch))

    def offer(self, record: EpochRecord, copy_weights: Callable[[], dict[str, Tensor]]) -> None:
        """Keep the weights if the epoch is the best or may become it."""
        value = -float(record.epoch) if self._key is None else getattr(record, self._key)
        error = record.val_error if self._close else 0.0
        if value is None or error is None:
            return
        # What is no number is worse than any number, and better than no epoch at all.
        value = math.inf if math.isnan(value) else value
        if any(held.error <= error and held.value <= value for held in self.candidates):
            return
        lowest = min([error, *(held.error for held in self.candidates)])
        bound = lowest + self._within * math.sqrt(lowest * (1 - lowest) / self._n)
        self.candidates = [
            held for held in self.candidates if (held.error < error or held.value < value) and held.error <= bound
        ]
        if error <= bound:
            self.candidates.append(Candidate(record.epoch, error, value, copy_weights()))

    def state(self) -> list[dict[str, Any]]:
        """Return the candidates as plain data."""
        return [candidate._asdict() for candidate in self.candidates]

    def restore(self, state: Sequence[Mapping[str, Any]]) -> None:
        """Take up what `state` gave."""
        self.candidates = [Candidate(**held) for held in state]


def copy_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies on the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}
