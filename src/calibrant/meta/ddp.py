"""Moved to `calibrant.meta.lookahead`; goes with the next step of the engine."""

from calibrant.meta.lookahead import combine as combine
from calibrant.meta.lookahead import gather as gather
