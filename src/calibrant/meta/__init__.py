"""Meta-regularization: training losses that learn, on held-out data, how to keep a network calibrated.

`MetaLearner` puts it into any training loop; the rest are the parts it is made of, each a function of values.
"""

from calibrant.meta.adam import AdamState, adam_update, init_adam
from calibrant.meta.batches import LoaderBatches, MetaBatches
from calibrant.meta.gamma_net import GammaNet, HeadUse, gamma_of, gamma_speed, init_gamma_net
from calibrant.meta.info import StepInfo
from calibrant.meta.learner import MetaLearner
from calibrant.meta.lookahead import full_hypergradient, head_hypergradient, hypergradient
from calibrant.meta.monitor import MetaWarning
from calibrant.meta.objectives import make_objective
from calibrant.meta.presets import PRESETS, MetaSettings, Preset
from calibrant.meta.regularizers import REGULARIZERS, GammaFocal, LabelSmoothing, Regularizer, UnitwiseL2
from calibrant.meta.virtual import Batch, Hypergradient, VirtualStep, virtual_sgd

__all__ = [
    "PRESETS",
    "REGULARIZERS",
    "AdamState",
    "Batch",
    "GammaFocal",
    "GammaNet",
    "HeadUse",
    "Hypergradient",
    "LabelSmoothing",
    "LoaderBatches",
    "MetaBatches",
    "MetaLearner",
    "MetaSettings",
    "MetaWarning",
    "Preset",
    "Regularizer",
    "StepInfo",
    "UnitwiseL2",
    "VirtualStep",
    "adam_update",
    "full_hypergradient",
    "gamma_of",
    "gamma_speed",
    "head_hypergradient",
    "hypergradient",
    "init_adam",
    "init_gamma_net",
    "make_objective",
    "virtual_sgd",
]
