"""Learnable regularizers: training losses whose hyper-parameters a look-ahead step improves. The table is the registry."""

from collections.abc import Callable
from functools import partial

from calibrant.meta.regularizers.base import Regularizer
from calibrant.meta.regularizers.gamma_focal import GammaFocal
from calibrant.meta.regularizers.label_smoothing import LabelSmoothing
from calibrant.meta.regularizers.unitwise_l2 import UnitwiseL2

REGULARIZERS: dict[str, Callable[..., Regularizer]] = {
    "gamma-focal": GammaFocal,
    "unitwise-l2": UnitwiseL2,
    "label-smoothing": LabelSmoothing,
    "label-smoothing-per-class": partial(LabelSmoothing, form="per-class"),
    "label-smoothing-non-uniform": partial(LabelSmoothing, form="non-uniform"),
}

__all__ = ["REGULARIZERS", "GammaFocal", "LabelSmoothing", "Regularizer", "UnitwiseL2"]
