"""Meta-regularization: training losses that learn, on held-out data, how to keep a network calibrated.

`MetaLearner` puts it into any training loop; the rest are the parts it is made of, each a function of values.
"""

from calibrant.meta.learner import LoaderBatches, MetaBatches, MetaLearner, MetaWarning, StepInfo
from calibrant.meta.regularizers import (
    REGULARIZERS,
    GammaFocal,
    GammaNet,
    HeadUse,
    LabelSmoothing,
    Regularizer,
    UnitwiseL2,
    gamma_of,
    gamma_speed,
    init_gamma_net,
)
from calibrant.meta.step import (
    PRESETS,
    Batch,
    Hypergradient,
    MetaSettings,
    Preset,
    VirtualStep,
    full_hypergradient,
    head_hypergradient,
    hypergradient,
    make_objective,
    virtual_sgd,
)

__all__ = [
    "PRESETS",
    "REGULARIZERS",
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
    "full_hypergradient",
    "gamma_of",
    "gamma_speed",
    "head_hypergradient",
    "hypergradient",
    "init_gamma_net",
    "make_objective",
    "virtual_sgd",
]
