"""Moved to `calibrant.meta.network`; goes with the next step of the engine."""

from calibrant.meta.network import (
    MetaBN as MetaBN,
)
from calibrant.meta.network import (
    following as following,
)
from calibrant.meta.network import (
    gathering as gathering,
)
from calibrant.meta.network import (
    gathering_norms as gathering_norms,
)
from calibrant.meta.network import (
    meta_mode as meta_mode,
)
from calibrant.meta.network import (
    norms_of as norms_of,
)
