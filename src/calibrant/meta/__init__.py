"""Meta-regularization: training losses that learn, on held-out data, how to keep a network calibrated.

`MetaLearner` puts it into any training loop; the rest are the parts it is made of, each a function of values.
"""

from calibrant.meta import learner, regularizers, step
from calibrant.meta.learner import *
from calibrant.meta.regularizers import *
from calibrant.meta.step import *

__all__ = [*learner.__all__, *regularizers.__all__, *step.__all__]
