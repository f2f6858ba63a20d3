"""How a gamma-Net's score becomes a gamma that is not negative: the paper's absolute value and the maps it names beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

# Upper end of the sigmoid map where no `gamma_max` is given: a plain sigmoid could not start at gamma = 1.
SIGMOID_TOP = 20.0


class PositiveMap(NamedTuple):
    """How a score ``u`` becomes a gamma >= 0: the map, the score of a wanted gamma, and the map's slope there."""

    apply: Callable[[Tensor, float | None], Tensor]
    inverse: Callable[[float, float | None], float]
    slope: Callable[[float, float | None], float]


def _minmax(score: Tensor, gamma_max: float | None) -> Tensor:
    # The range [min(u, 0), max(u)] of the batch is stretched onto [0, max(u)]: the identity while no score is negative.
    low, high = score.amin().clamp(max=0.0), score.amax().clamp(min=0.0)
    tiny = torch.finfo(score.dtype).tiny
    return (score - low) * (high / (high - low).clamp(min=tiny))


def sigmoid_top(gamma_max: float | None) -> float:
    """Upper end of the sigmoid map."""
    return SIGMOID_TOP if gamma_max is None else gamma_max


def _identity(gamma: float, gamma_max: float | None) -> float:
    return gamma


def _one(gamma: float, gamma_max: float | None) -> float:
    return 1.0


POSITIVE_MAPS: dict[str, PositiveMap] = {
    "abs": PositiveMap(lambda u, top: u.abs(), _identity, _one),
    "relu": PositiveMap(lambda u, top: F.relu(u), _identity, _one),
    "softplus": PositiveMap(
        lambda u, top: F.softplus(u), lambda g, top: g + math.log(-math.expm1(-g)), lambda g, top: -math.expm1(-g)
    ),
    "sigmoid": PositiveMap(
        lambda u, top: sigmoid_top(top) * torch.sigmoid(u),
        lambda g, top: math.log(g / (sigmoid_top(top) - g)),
        lambda g, top: g * (1 - g / sigmoid_top(top)),
    ),
    "minmax": PositiveMap(_minmax, _identity, _one),
}
