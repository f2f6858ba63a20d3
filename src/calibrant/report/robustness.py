"""Robustness to binning: ECE and MCE against the number of bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from calibrant.core.entry import BinSweep, Entry
from calibrant.metrics.sweep import BIN_COUNTS, bin_sweep
from calibrant.report.bands import Band, band_of, draw_bands, draw_shared_legend, log_axis, seeds_note, wide_figure
from calibrant.report.rows import Row
from calibrant.report.style import print_style

if TYPE_CHECKING:
    from matplotlib.axis import XAxis
    from matplotlib.figure import Figure

# Where the axis has numbers: the numbers of bins of published figures.
_TICKS = (10, 20, 50, 100, 200, 500, 1000)


@dataclass(frozen=True)
class Robustness:
    """What the figure shows: the ECE and the MCE of every row against the number of bins."""

    ece: tuple[Band, ...]
    mce: tuple[Band, ...]


def prepare_robustness(rows: Sequence[Row], *, n_bins: Sequence[int] = BIN_COUNTS) -> Robustness | None:
    """Take the binned errors of every run from its record, or else from its test predictions.

    Args:
        rows: Rows of one data set.
        n_bins: Numbers of bins, for runs whose record has none.

    Returns:
        The curves of all rows that have any, or None if no row has.
    """
    ece, mce = [], []
    for row in rows:
        sweeps = [found for run in row.runs if (found := _sweep(run, n_bins)) is not None]
        first = band_of(row, [(sweep.n_bins, sweep.ece) for sweep in sweeps])
        second = band_of(row, [(sweep.n_bins, sweep.mce) for sweep in sweeps])
        if first is not None and second is not None:
            ece.append(first)
            mce.append(second)
    return Robustness(tuple(ece), tuple(mce)) if ece else None


def _sweep(entry: Entry, n_bins: Sequence[int]) -> BinSweep | None:
    if entry.sweep is not None:
        return entry.sweep
    return None if entry.test is None else bin_sweep(entry.test, n_bins=n_bins)


def draw_robustness(robustness: Robustness, *, title: str | None = None) -> Figure:
    """Draw ECE (left, logarithmic) and MCE (right) in per cent against the number of bins.

    Lines are means over seeds, bands one standard deviation. More bins hold fewer examples each, and chance alone makes both
    errors of any model grow with them; what is robust grows least.

    Args:
        robustness: What to draw; see `prepare_robustness`.
        title: Text above the figure.

    Returns:
        A figure as wide as a page's text.

    Example:
        >>> from calibrant import Predictions, measure
        >>> from calibrant.core.entry import Entry
        >>> from calibrant.report.rows import group_rows
        >>> test = Predictions(probs=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]] * 40, labels=[0, 1, 1] * 40)
        >>> rows = group_rows([Entry("coins", "ce", measure(test), test=test)])[0].rows
        >>> figure = draw_robustness(prepare_robustness(rows, n_bins=(10, 100)))
        >>> figure.axes[1].get_lines()[0].get_ydata().round(2).tolist()
        [70.0, 70.0]

    Reference:
        Wang and Golebiowski, TMLR 2024, figure 5.
    """
    with print_style():
        figure = wide_figure(2)
        left, right = figure.subplots(1, 2)
        for ax, bands, name in ((left, robustness.ece, "ECE"), (right, robustness.mce, "MCE")):
            draw_bands(ax, bands)
            ax.set(xlabel="number of bins", ylabel=f"test {name} (%)", xscale="log")
            _number_axis(ax.xaxis, [x for band in bands for x in band.x])
        log_axis(left, robustness.ece)
        right.set_ylim(0, 100)
        right.grid(axis="y")
        note = seeds_note([band.seeds for band in robustness.ece])
        draw_shared_legend(figure, title=", ".join(said for said in (title, note) if said) or None)
    return figure


def _number_axis(axis: XAxis, shown: Sequence[float]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    ticks: list[float] = [tick for tick in _TICKS if min(shown) <= tick <= max(shown)]
    ticks = ticks or sorted(set(shown))
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_major_formatter(StrMethodFormatter("{x:.0f}"))
    axis.set_minor_locator(NullLocator())
