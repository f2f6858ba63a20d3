"""Predictions of the network on a whole set, and the numbers that an epoch reports of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from calibrant.core.records import Predictions
from calibrant.data.augment import normalize
from calibrant.data.image_set import ImageSet
from calibrant.engine.hardware import Hardware
from calibrant.engine.network import FeatureFunction
from calibrant.meta.network import meta_mode
from calibrant.metrics.binned import expected_calibration_error
from calibrant.metrics.scores import error_rate, negative_log_likelihood

# Images of CIFAR-10's size that a pass on a GPU takes.
_AT_ONCE = 2000


class Outputs(NamedTuple):
    """What the network makes of a set: logits ``[N, C]`` and, where asked for, gammas ``[N]``; on the device."""

    logits: Tensor
    gammas: Tensor | None


class EpochScores(NamedTuple):
    """The three numbers of the paper's learning curves."""

    error: float
    nll: float
    ece: float


class EvalSet:
    """A set, run through the network in evaluation mode.

    Args:
        data: The set.
        hardware: Where it is computed, and by which processes: they share the work, and each gets all of the result.
        resident: Whether the images lie on the device all along.
    """

    def __init__(self, data: ImageSet, hardware: Hardware, *, resident: bool = True) -> None:
        self._hardware, self.labels = hardware, data.labels
        group, device = hardware.group, hardware.device
        share = -(-len(data) // group.world_size)
        # Equal shares, as gathering needs; what the last one lacks is filled with its last example and cut off again.
        rows = (torch.arange(share) + group.rank * share).clamp(max=len(data) - 1)
        own = data.images if group.world_size == 1 else data.images[rows]
        self._images = own.to(device) if resident else own
        self._mean = torch.tensor(data.mean, dtype=hardware.dtype, device=device)
        self._std = torch.tensor(data.std, dtype=hardware.dtype, device=device)

    def run(self, model: nn.Module, forward: FeatureFunction, *, gamma: Callable[[Tensor], Tensor] | None = None) -> Outputs:
        """Return logits (and gammas of the features) of every example; the network's mode is put back."""
        device, narrow = self._hardware.device, self._hardware.precision == "bf16"
        logits, gammas = [], []
        with torch.no_grad(), meta_mode(model, "frozen"), self._hardware.autocast():
            for images in self._images.split(at_once(self._images[0], device)):
                features, scores = forward(normalize(images.to(device), self._mean, self._std))
                logits.append(scores.float() if narrow else scores)
                if gamma is not None:
                    gammas.append(gamma(features.float() if narrow else features))
        return Outputs(self._whole(logits), self._whole(gammas) if gammas else None)

    def _whole(self, parts: list[Tensor]) -> Tensor:
        return self._hardware.group.gather(torch.cat(parts))[: len(self.labels)]


def at_once(image: Tensor, device: torch.device) -> int:
    """How many images like ``image`` a forward pass in evaluation mode should take.

    On a GPU 2,000 of CIFAR-10's size or less, and as many fewer of larger ones, so that activations take no more memory: 40 of
    224 x 224 pixels, where input and output of ResNet-18's largest layer then take 0.5 GB in bf16 instead of 26. On a CPU, so
    few that they stay in its caches: ResNet-18 takes 1,024 images of CIFAR-10 in 5.6 s by 32 and in 7.3 s at once (two cores).
    Of small images as many more, for what a pass costs besides arithmetic.
    """
    if device.type == "cuda":
        return min(_AT_ONCE, max(32, _AT_ONCE * 3 * 32**2 // image.numel()))
    return max(32, 3 * 32**3 // image.numel())


def epoch_scores(logits: Tensor, labels: Tensor) -> EpochScores:
    """Error, NLL and 15-bin ECE of ``logits`` (any device) against ``labels``."""
    predictions = Predictions(logits=logits, labels=labels)
    probs = predictions.probs
    return EpochScores(
        float(error_rate(probs, labels)),
        float(negative_log_likelihood(predictions)),
        float(expected_calibration_error(probs, labels)),
    )
