"""Robustness to binning: ECE and MCE against the number of bins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from calibrant.core.entry import BinSweep, Entry
from calibrant.metrics.sweep import BIN_COUNTS, bin_sweep
from calibrant.report.bands import Band, band_of, draw_bands, draw_shared_legend, log_axis, plain_ticks, seeds_note, wide_figure
from calibrant.report.rows import Row
from calibrant.report.style import print_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import XAxis
    from matplotlib.figure import Figure

# Where the axis has numbers: the numbers of bins of published figures.
_TICKS = (10, 20, 50, 100, 200, 500, 1000)
# The number of bins by whose ECE rows are ranked: that of tables.
_USUAL_BINS = 15


@dataclass(frozen=True)
class Chance:
    """What a calibrated model with the confidences of one row would show on average: means over its seeds."""

    ece: Band
    mce: Band


@dataclass(frozen=True)
class Robustness:
    """What the figure shows against the number of bins.

    Attributes:
        ece: ECE of every row.
        mce: MCE of every row.
        chance: What chance alone gives, for the row of least ECE; None where no row says it.
    """

    ece: tuple[Band, ...]
    mce: tuple[Band, ...]
    chance: Chance | None = None


def prepare_robustness(rows: Sequence[Row], *, n_bins: Sequence[int] = BIN_COUNTS) -> Robustness | None:
    """Take the binned errors of every run from its record, or else from its test predictions.

    What chance alone gives depends on the confidences: the more of them lie near 1, the less. It is given for one row, that
    of least ECE over 15 bins (see `usual_ece`) among those that say it, because there it is the largest part of the error.

    Args:
        rows: Rows of one data set.
        n_bins: Numbers of bins, for runs whose record has none.

    Returns:
        The curves of all rows that have any, or None if no row has.
    """
    ece, mce, chances = [], [], []
    for row in rows:
        sweeps = [found for run in row.runs if (found := _sweep(run, n_bins)) is not None]
        first = band_of(row, [(sweep.n_bins, sweep.ece) for sweep in sweeps])
        second = band_of(row, [(sweep.n_bins, sweep.mce) for sweep in sweeps])
        if first is not None and second is not None:
            ece.append(first)
            mce.append(second)
            chances.append(_chance(row, sweeps))
    known = [(usual_ece(band), chance) for band, chance in zip(ece, chances, strict=True) if chance is not None]
    _, chance = min(known, key=lambda found: found[0], default=(None, None))
    return Robustness(tuple(ece), tuple(mce), chance) if ece else None


def usual_ece(band: Band) -> float:
    """ECE of a row over 15 bins, by which rows are ranked; over the nearest number of bins where it has no such value."""
    return band.mean[min(range(len(band.x)), key=lambda place: abs(band.x[place] - _USUAL_BINS))]


def _chance(row: Row, sweeps: Sequence[BinSweep]) -> Chance | None:
    """Means over the seeds that say what a calibrated model would show; records made by older versions do not."""
    known = [sweep for sweep in sweeps if sweep.ece_if_calibrated and sweep.mce_if_calibrated]
    ece = band_of(row, [(sweep.n_bins, sweep.ece_if_calibrated) for sweep in known])
    mce = band_of(row, [(sweep.n_bins, sweep.mce_if_calibrated) for sweep in known])
    if ece is None or mce is None:
        return None
    label = f"{row.label} if calibrated"
    return Chance(replace(ece, label=label, std=None), replace(mce, label=label, std=None))


def _sweep(entry: Entry, n_bins: Sequence[int]) -> BinSweep | None:
    if entry.sweep is not None:
        return entry.sweep
    return None if entry.test is None else bin_sweep(entry.test, n_bins=n_bins)


def draw_robustness(robustness: Robustness, *, title: str | None = None) -> Figure:
    """Draw ECE (left, logarithmic) and MCE (right) in per cent against the number of bins.

    Lines are means over seeds, bands one standard deviation. More bins hold fewer examples each, and chance alone makes both
    errors of any model grow with them. The thin grey line is what it makes of a calibrated model with the confidences of the
    row that the legend names: a row that runs along it owes its rise to chance, not to its calibration.

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
        chance = robustness.chance
        for ax, bands, name in ((left, robustness.ece, "ECE"), (right, robustness.mce, "MCE")):
            draw_bands(ax, bands)
            ax.set(xlabel="number of bins", ylabel=f"test {name} (%)", xscale="log")
            _number_axis(ax.xaxis, [x for band in bands for x in band.x])
        if chance is not None:
            _draw_chance(left, chance.ece)
            _draw_chance(right, chance.mce)
        log_axis(left, [*robustness.ece, *([] if chance is None else [chance.ece])])
        right.set_ylim(0, 100)
        right.grid(axis="y")
        note = seeds_note([band.seeds for band in robustness.ece])
        draw_shared_legend(figure, title=", ".join(said for said in (title, note) if said) or None)
    return figure


def _draw_chance(ax: Axes, band: Band) -> None:
    """Draw a thin grey line without markers, below the lines of rows and above their bands: it measures them, and is none."""
    mean = [100 * value for value in band.mean]
    ax.plot(band.x, mean, color="0.4", linewidth=0.8, zorder=2.5, label=band.label)


def _number_axis(axis: XAxis, shown: Sequence[float]) -> None:
    ticks: list[float] = [tick for tick in _TICKS if min(shown) <= tick <= max(shown)]
    plain_ticks(axis, ticks or sorted(set(shown)))
