"""The second half of docs/losses.md comes from the tables of the losses; run this file to write it."""

from __future__ import annotations

import inspect
from pathlib import Path

from calibrant.losses import LOSSES, PENALTIES, LossEntry

PAGE = Path(__file__).parents[3] / "docs" / "losses.md"
HEADING = "## Per-sample losses"


def losses_page(page: str) -> str:
    """The page with its tables written anew; what stands before them stays."""
    losses, penalties = ("\n".join(section(name, table[name]) for name in table.builtin) for table in (LOSSES, PENALTIES))
    return f"{page.partition(HEADING)[0]}{HEADING}\n\n{losses}\n## Batch penalties\n\n{penalties}"


def section(name: str, entry: LossEntry) -> str:
    text = inspect.getdoc(entry.function) or ""
    return (
        f"### `{name}`\n\n{text.partition(chr(10))[0]}\n\n"
        f"- `{entry.function.__name__}{signature(entry)}`, module `{entry.module.__name__}`\n"
        f"- Defaults: {entry.source}\n"
        f"- Reference: {' '.join(text.partition('Reference:')[2].split())}\n"
    )


def signature(entry: LossEntry) -> str:
    parts = []
    for parameter in inspect.signature(entry.function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        default = parameter.default
        shown = getattr(default, "__name__", repr(default))
        parts.append(parameter.name if default is parameter.empty else f"{parameter.name}={shown}")
    return f"({', '.join(parts)})"


def test_page_of_the_losses_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == losses_page(page), f"write it anew: python {__file__}"


if __name__ == "__main__":
    PAGE.write_text(losses_page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
