"""A line per row: the mean over its seeds with a band of one standard deviation. Shared by all figures of such lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibrant.report.rows import Row
from calibrant.report.style import TEXT_WIDTH, Style, fold_label, fold_to_width, seen_length

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# Characters of a legend's entry from which on it is folded, so that two stand side by side.
_LONGEST_LINE = 44
# Lines of a legend that the height of a figure has room for.
_USUAL_LINES = 3


@dataclass(frozen=True)
class Band:
    """A line with its spread.

    Attributes:
        label: What it is called.
        style: How it is drawn.
        x: Where its points lie, rising.
        mean: Mean over the seeds at each point.
        std: Standard deviation over the seeds (n - 1) at each point; None for a single seed.
        seeds: Number of seeds.
    """

    label: str
    style: Style
    x: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...] | None
    seeds: int


def band_of(row: Row, curves: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Band | None:
    """Take the mean and spread of one curve a run, at the points where all have a finite value; None where there is none.

    Example:
        >>> from calibrant.report.style import METHOD_STYLES
        >>> band = band_of(Row("CE", METHOD_STYLES["ce"], ()), [([1, 2], [0.2, 0.1]), ([2, 3], [0.3, 0.1])])
        >>> band.x, band.mean, round(band.std[0], 4), band.seeds
        ((2,), (0.2,), 0.1414, 2)
    """
    tables = [{x: y for x, y in zip(*curve, strict=True) if math.isfinite(y)} for curve in curves]
    tables = [table for table in tables if table]
    if not tables:
        return None
    shared = sorted(set(tables[0]).intersection(*tables[1:]))
    if not shared:
        return None
    values = np.array([[table[x] for x in shared] for table in tables])
    std = tuple(values.std(0, ddof=1).tolist()) if len(tables) > 1 else None
    return Band(row.label, row.style, tuple(shared), tuple(values.mean(0).tolist()), std, len(tables))


def draw_bands(ax: Axes, bands: Sequence[Band], *, factor: float = 100.0) -> None:
    """Draw lines and bands, their values times ``factor`` (in per cent, that is); markers are set apart from line to line."""
    # Many bands over one another would hide the lines.
    alpha = 0.15 if len(bands) <= 5 else 0.08
    for place, band in enumerate(bands):
        x, mean = np.array(band.x, dtype=float), factor * np.array(band.mean)
        # About eight markers a line, of which those of different lines do not coincide.
        every = max(1, math.ceil(len(x) / 8))
        start = place * every // max(1, len(bands)) if len(x) > 16 else 0
        options = band.style.line_options()
        ax.plot(x, mean, markevery=(start, every), label=band.label, zorder=3, **options)  # type: ignore[arg-type]
        if band.std is not None:
            std = factor * np.array(band.std)
            ax.fill_between(x, mean - std, mean + std, color=band.style.color, alpha=alpha, linewidth=0, zorder=2)


def log_axis(ax: Axes, bands: Sequence[Band], *, factor: float = 100.0) -> None:
    """Make the vertical axis logarithmic around ``bands``, with plain numbers at it; see `log_scale`."""
    spans = [(m, s) for band in bands for m, s in zip(band.mean, band.std or [0.0] * len(band.mean), strict=True)]
    # A band that comes close to zero is cut off: on this scale it would have no end.
    lows = [factor * max(mean - std, mean / 2) for mean, std in spans]
    log_scale(ax, lows, max((factor * (mean + std) for mean, std in spans), default=0.0), room=1.15)
    ax.grid(axis="y")


def log_scale(ax: Axes, lows: Sequence[float], high: float, *, room: float, span: float = 1000.0) -> None:
    """Make the vertical axis logarithmic from the least of ``lows`` to ``high``, with plain numbers at it.

    What is below the ``span``-th part of ``high``, zero above all, does not stretch the axis: it lies in a short linear part at
    the bottom, which ends at zero.

    Args:
        ax: The axes.
        lows: What the axis has to reach down to, in its unit.
        high: What it has to reach up to.
        room: Factor to leave free at both ends.
        span: The largest ratio that is shown on a logarithmic scale.
    """
    least, kept = min(lows, default=0.0), [low for low in lows if low > high / span]
    if not kept:
        return
    # From here on upwards the axis is logarithmic.
    start, top = min(kept) / room, high * room
    ticks = log_ticks(start, top)
    if least >= min(kept):
        ax.set_yscale("log")
        ax.set_ylim(start, top)
    else:
        ax.set_yscale("symlog", linthresh=start, linscale=0.3)
        ax.set_ylim(-start / 3, top)
        ticks = [0.0, *ticks]
    plain_ticks(ax.yaxis, ticks)


def plain_ticks(axis: Axis, ticks: Sequence[float]) -> None:
    """Put ``ticks`` on an axis, and none between them, each written as the plain number that it is."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers from ``low`` to ``high``: 1, 2, 5, 10 and so on, fewer if these are more than eight, more if under three.

    Example:
        >>> log_ticks(0.8, 60), log_ticks(4, 11), log_ticks(20.6, 29)
        ([1.0, 2.0, 5.0, 10.0, 20.0, 50.0], [5.0, 7.0, 10.0], [22.0, 24.0, 26.0, 28.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found = []
    for leading in ((1, 2, 5), (1, 3), (1,), (1, 1.5, 2, 3, 5, 7), (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8, 9)):
        ticks = [round(digit * 10.0**power, 12) for power in powers for digit in leading]
        found.append([tick for tick in ticks if low <= tick <= high])
    usual, *fewer, more, most = found
    if len(usual) > 8:
        return fewer[0] if len(fewer[0]) <= 8 else fewer[1]
    return next((ticks for ticks in (usual, more, most) if len(ticks) >= 3), _even_ticks(low, high))


def _even_ticks(low: float, high: float) -> list[float]:
    """Multiples of the largest round number of which three or more lie between ``low`` and ``high``."""
    power = math.floor(math.log10(high - low))
    steps = (digit * 10.0**exponent for exponent in (power, power - 1) for digit in (5, 2, 1))
    ticks = ([k * step for k in range(math.ceil(low / step), math.floor(high / step) + 1)] for step in steps)
    return [round(tick, 12) for tick in next(found for found in ticks if len(found) >= 3)]


def epoch_axis(ax: Axes) -> None:
    """Name the horizontal axis after the epochs, and put its ticks at whole ones."""
    from matplotlib.ticker import MaxNLocator

    ax.set_xlabel("epoch")
    ax.margins(x=0.02)
    ax.xaxis.set_major_locator(MaxNLocator(nbins="auto", steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))


def seeds_note(counts: Sequence[int]) -> str | None:
    """Say over how many seeds the rows of a figure were averaged, in the words of a caption; None where none has several.

    Example:
        >>> seeds_note([3, 3]), seeds_note([1, 2]), seeds_note([1, 1])
        ('mean ± std over 3 seeds', 'mean ± std over 1 to 2 seeds', None)
    """
    least, most = min(counts, default=0), max(counts, default=0)
    if most < 2:
        return None
    return f"mean ± std over {most if least == most else f'{least} to {most}'} seeds"


def draw_shared_legend(figure: Figure, *, title: str | None) -> None:
    """Put one legend above all axes of ``figure``, under its title; equal labels are named once.

    Long labels are folded, and the figure is made higher where the legend has more than three lines.
    """
    from matplotlib.lines import Line2D

    shown: dict[str, Artist] = {}
    for ax in figure.axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            shown.setdefault(label, handle)
    # A legend's entry needs its text, at some 17 characters to the inch, and more than half an inch for line and space.
    wide = figure.get_figwidth() - 0.2
    longest = min(max(seen_length(label) for label in shown), _LONGEST_LINE, int(17 * (wide - 0.62)))
    fitting = max(1, int(wide / (longest / 17 + 0.62)))
    rows = math.ceil(len(shown) / fitting)
    labels = [fold_label(label, longest) for label in shown]
    deep = sum(max(label.count("\n") + 1 for label in labels[row::rows]) for row in range(rows))
    # What a long legend takes is not taken from the axes.
    figure.set_figheight(figure.get_figheight() + 0.15 * max(deep - _USUAL_LINES, 0))
    legend = figure.legend(
        shown.values(),
        labels,
        loc="outside upper center",
        ncols=math.ceil(len(shown) / rows),
        handlelength=3.2,
        title=title and "\n".join(fold_to_width(line, wide) for line in title.splitlines()),
        title_fontsize=8,
        columnspacing=1.2,
        borderpad=0.1,
        labelspacing=0.3,
    )
    legend.get_title().set_multialignment("center")
    for drawn in legend.legend_handles:
        # Ten thousand faint points make a cloud; one of them alone would not be seen.
        if isinstance(drawn, Line2D):
            drawn.set(alpha=1.0, markersize=max(4.0, float(drawn.get_markersize())))


def wide_figure(panels: int, *, height: float = 2.45) -> Figure:
    """Return an empty figure as wide as a page's text for two panels, half as wide for one."""
    from matplotlib.figure import Figure

    return Figure(figsize=(TEXT_WIDTH * panels / 2, height), layout="constrained")
