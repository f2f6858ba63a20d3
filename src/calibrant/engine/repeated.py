"""What a TOML text says twice, of which the parser names the line alone."""

from __future__ import annotations

import re

_TWICE = re.compile(r"overwrite a value|declare .* twice|[Dd]uplicate inline table key '(?P<inner>[^']*)'")
_LINE = re.compile(r"at line (\d+)")
_TABLE = re.compile(r"\s*\[+\s*([^\[\]]+?)\s*\]+\s*(?:#.*)?$")
_KEY = re.compile(r"""\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_QUOTES = re.compile(r"""["'\s]""")


def repeated_key(text: str, problem: str) -> tuple[str, int] | None:
    r"""Return which key or table the parser found a second time, and in which line; None if that is not the problem.

    Args:
        text: The TOML text.
        problem: What `tomllib` said of it.

    Example:
        >>> repeated_key("[train]\nepochs = 2\nepochs = 3", "Cannot overwrite a value (at end of document)")
        ('train.epochs', 3)
        >>> repeated_key("[train]\n[optim]\n[train]\n", "Cannot declare ('train',) twice (at line 3, column 7)")
        ('[train]', 3)
        >>> repeated_key("epochs 3", "Expected '=' after a key in a key/value pair (at line 1, column 8)")
    """
    found = _TWICE.search(problem)
    if found is None:
        return None
    lines = text.split("\n")
    at = _LINE.search(problem)
    said = _said(lines[: int(at[1]) if at else None])
    if not said:
        return None
    # A value may go over several lines; its key is in the first of them.
    number, name = said.pop()
    if found["inner"]:
        return f"{name}.{found['inner']}", number
    is_table = name.startswith("[")
    before = {other.strip("[]") for _, other in said}
    if is_table and any(other == name.strip("[]") or other.startswith(f"{name.strip('[]')}.") for other in before):
        return name, number
    return (name, number) if name in before else None


def _said(lines: list[str]) -> list[tuple[int, str]]:
    """Line and name of every key, with that of its table, and of every table, in brackets."""
    said, above = [], ""
    for number, line in enumerate(lines, 1):
        if table := _TABLE.match(line):
            above = _QUOTES.sub("", table[1])
            said.append((number, f"[{above}]"))
        elif key := _KEY.match(line):
            name = _QUOTES.sub("", key[1])
            said.append((number, f"{above}.{name}" if above else name))
    return said
