"""The ranking of calibrators as a table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from calibrant.calibrators import Identity, Ranked
from calibrant.cli.terminal import Row, fit_table


def ranking_table(ranking: Sequence[Ranked], chosen: str, *, score: str, width: int) -> Table:
    """Methods by their held-out score, best first, with what each gains on doing nothing."""
    rows: list[Row] = []
    for entry in ranking:
        name = Identity.label if entry.name == "none" else entry.name
        style = "bold green" if entry.name == chosen else ""
        if entry.failure is not None:
            rows.append([Text(name, style="dim"), "n/a", "", "", Text("not used", style="dim")])
            continue
        gain, ends = f"{entry.gain:+.4f}", f"{entry.gain_low:+.4f} – {entry.gain_high:+.4f}"
        # Doing nothing gains nothing; and where that has an infinite score, a gain on it says nothing.
        idle = entry.name == "none" or not all(map(math.isfinite, (entry.gain, entry.gain_low, entry.gain_high)))
        rows.append(
            [
                Text(name, style=style),
                Text(f"{entry.score:.4f}", style=style),
                "" if idle else gain.replace("-", "−"),
                Text("" if idle else ends.replace("-", "−"), style="dim"),
                Text("chosen" if entry.name == chosen else "", style=style),
            ]
        )
    return fit_table(("Method", f"Held-out {score}", "Gain", "95% interval", ""), rows, width=width, drop=(3, 4))
