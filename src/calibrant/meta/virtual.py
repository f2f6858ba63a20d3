"""Moved to `calibrant.meta.lookahead`; goes with the next step of the engine."""

from calibrant.meta.lookahead import (
    ALONE as ALONE,
)
from calibrant.meta.lookahead import (
    Batch as Batch,
)
from calibrant.meta.lookahead import (
    Exchange as Exchange,
)
from calibrant.meta.lookahead import (
    Hypergradient as Hypergradient,
)
from calibrant.meta.lookahead import (
    MetaObjective as MetaObjective,
)
from calibrant.meta.lookahead import (
    VirtualStep as VirtualStep,
)
from calibrant.meta.lookahead import (
    clip_factor as clip_factor,
)
