"""The tables of ``docs/losses.md``, written from ``LOSSES`` and ``PENALTIES``."""

from __future__ import annotations

import inspect

from calibrant.core.registry import Registry
from calibrant.losses import LOSSES, PENALTIES
from calibrant.losses.base import Entry

_FIRST_HEADING = "## Per-sample losses"


def losses_page(page: str) -> str:
    """Return the text of ``docs/losses.md`` with its tables written anew; what stands before them stays.

    Example:
        >>> "### `focal`" in losses_page("# Train-time objectives")
        True
    """
    tables = [_section(_FIRST_HEADING, LOSSES), _section("## Batch penalties", PENALTIES)]
    return "\n".join([page.partition(_FIRST_HEADING)[0].rstrip() + "\n", *tables])


def _section(title: str, table: Registry[Entry]) -> str:
    parts = [f"{title}\n"]
    for name in table.builtin:
        entry = table[name]
        parts.append(
            f"### `{name}`\n\n{entry.summary}\n\n"
            f"- `{entry.function.__name__}{_signature(entry)}`, module `{entry.module.__name__}`\n"
            f"- Defaults: {entry.source}\n"
            f"- Reference: {entry.reference}\n"
        )
    return "\n".join(parts)


def _signature(entry: Entry) -> str:
    parts = []
    for parameter in inspect.signature(entry.function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = parameter.default
        shown = getattr(default, "__name__", repr(default))
        parts.append(parameter.name if default is parameter.empty else f"{parameter.name}={shown}")
    return f"({', '.join(parts)})"
