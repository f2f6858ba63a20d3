"""Moved to `calibrant.meta.settings`; goes with the next step of the engine."""

from calibrant.meta.settings import PRESETS as PRESETS
from calibrant.meta.settings import MetaSettings as MetaSettings
from calibrant.meta.settings import settings_of as settings_of
