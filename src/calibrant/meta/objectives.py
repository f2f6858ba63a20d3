"""Moved to `calibrant.meta.settings`; goes with the next step of the engine."""

from calibrant.meta.settings import make_objective as make_objective
from calibrant.meta.settings import words_of as words_of
