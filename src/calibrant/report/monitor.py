"""The chart of a stream: calibration error, bias and evidence of a change, window after window."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from calibrant.metrics.diagram import PALETTE
from calibrant.metrics.monitor import Watched
from calibrant.report.save import TEXT_WIDTH, print_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NAMES = 12


def draw_monitor(watched: Watched, *, title: str = "") -> Figure:
    """Draw ECE and bias with their intervals, and the evidence with the line of the alarm."""
    from matplotlib.figure import Figure

    windows, at = watched.windows, range(len(watched.windows))
    look = {"marker": "o", "markersize": 2.5}
    with print_style():
        figure = Figure(figsize=(TEXT_WIDTH, 5.2), layout="constrained")
        ece, gap, evidence = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
        for ax, found in ((ece, [window.scores["ece"] for window in windows]), (gap, [window.bias for window in windows])):
            value, low, high = 100 * np.array(found, dtype=float).T
            ax.fill_between(at, low, high, color=PALETTE["sky"], alpha=0.35, linewidth=0, label="95 % interval")
            ax.plot(at, value, color=PALETTE["blue"], **look)
        chance = [100 * window.scores.ece_if_calibrated.p95 for window in windows]
        ece.plot(at, chance, color="0.5", linestyle="--", label="a calibrated model, 95 of 100 times")
        ece.set(ylabel="ECE (%)", title=title, ylim=(0, None))
        gap.axhline(0, color="0.5", linewidth=0.6)
        gap.set(ylabel="bias (%)")
        # What is beyond these is drawn at the edge.
        evidence.plot(at, np.clip([window.evidence for window in windows], 1e-2, 1e5), color=PALETTE["black"], **look)
        evidence.axhline(1 / watched.false_alarms, color=PALETTE["vermillion"], linestyle="--", label="alarm")
        evidence.set(ylabel="evidence of a change", yscale="log")
        evidence.yaxis.set_major_formatter("{x:,g}")
        for number, ax in ((number, ax) for number in at if windows[number].alarm for ax in figure.axes):
            ax.axvspan(number - 0.5, number + 0.5, color=PALETTE["vermillion"], alpha=0.12, linewidth=0)
        named = at[:: -(-len(windows) // _MOST_NAMES)]
        evidence.set_xticks(named, [windows[number].name for number in named], rotation=30, ha="right")
        ece.legend(loc="upper left")
        evidence.legend(loc="upper left")
    return figure
