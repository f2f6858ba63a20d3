"""Moved to `calibrant.grid`; this name stays for one release."""

from calibrant.grid.export import to_markdown as to_markdown
