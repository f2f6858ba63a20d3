"""``calibrant decide``: how sure a model must be before it answers, for errors that are guaranteed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from calibrant.cli.measure import Request
from calibrant.cli.repair import load_pair
from calibrant.cli.terminal import Row, Terminal, fit_table, say, show_heading, show_prose
from calibrant.core.scores import without_nan
from calibrant.decisions import promise_table
from calibrant.metrics.verdict import write_value


def decide(
    fit: Path,
    file: Path,
    *,
    max_errors: Sequence[float] | None,
    delta: float,
    class_names: Path | None,
    ignore_index: int | None,
    as_json: bool,
) -> None:
    """Learn thresholds on ``fit``, try them on ``file`` and print both; ``max_errors`` as in `promise_table`."""
    given, tried = load_pair(fit, file, Request(class_names=class_names, ignore_index=ignore_index))
    promises = promise_table(given, tried, max_errors=max_errors, delta=delta)
    if as_json:
        say(json.dumps(without_nan([asdict(promise) for promise in promises]), indent=2, allow_nan=False))
        return
    console = Terminal()
    show_heading(console, "Answer only when sure", f"learned on {len(given):,} examples of {fit.name}, tried on {file.name}")
    rows: list[Row] = []
    for promise in promises:
        found = ["cannot be guaranteed", "", ""]
        if promise.threshold is not None:
            shares = [write_value(share, "%") for share in (promise.coverage, promise.error)]
            found = [f"{100 * promise.threshold:.6g}%", *shares]
        rows.append([f"{100 * promise.max_error:.4g}%", *found])
    console.print(fit_table(("Error at most", "If surer than", "Answered", "Error here"), rows, width=console.width))
    console.print()
    sure = f"With {100 * (1 - delta):g}% probability for each row, the error among its answers is at most the first column"
    show_prose(console, f"{sure}, as long as examples are drawn like those of {fit.name}.")
