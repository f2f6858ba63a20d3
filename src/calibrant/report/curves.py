"""Learning curves: calibration error and error over the epochs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from calibrant.core.entry import Entry
from calibrant.report.bands import Band, band_of, draw_bands, draw_shared_legend, epoch_axis, log_axis, seeds_note, wide_figure
from calibrant.report.rows import Row
from calibrant.report.style import print_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class LearningCurves:
    """What the figure of learning curves shows.

    Attributes:
        split: Part of the data that was evaluated.
        ece: ECE of every row over the epochs.
        error: Its error.
        drops: Epochs from which on the learning rate is at most half of what it was, in the first row that says it.
    """

    split: Literal["test", "val"]
    ece: tuple[Band, ...]
    error: tuple[Band, ...]
    drops: tuple[int, ...]


def prepare_curves(rows: Sequence[Row], *, split: Literal["test", "val"] = "test") -> LearningCurves | None:
    """Read the learning curves of all rows that have a history.

    The history of a run that was repaired afterwards (``+ts``) is that of its network before; it is left out.

    Args:
        rows: Rows of one data set.
        split: Which curves.

    Returns:
        The curves, or None if no row has any.
    """
    trained = [row for row in rows if all(run.temperature is None for run in row.runs)]
    found = {
        key: tuple(b for row in trained if (b := band_of(row, [run.curve(f"{split}_{key}") for run in row.runs])) is not None)
        for key in ("ece", "error")
    }
    if not found["ece"] and not found["error"]:
        return None
    rated = next((row.runs[0] for row in trained if row.runs[0].curve("lr")[0]), trained[0].runs[0])
    return LearningCurves(split, found["ece"], found["error"], learning_rate_drops(rated))


def learning_rate_drops(entry: Entry) -> tuple[int, ...]:
    """Epochs, from 1, from which on the learning rate is at most half of what it was.

    Example:
        >>> from calibrant import Predictions, measure
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0]))
        >>> learning_rate_drops(Entry("coins", "ce", scores, history=({"lr": 0.1}, {"lr": 0.1}, {"lr": 0.01})))
        (3,)
    """
    epochs, rates = entry.curve("lr")
    return tuple(epoch for epoch, before, now in zip(epochs[1:], rates, rates[1:], strict=False) if now <= before / 2)


def draw_curves(curves: LearningCurves, *, title: str | None = None) -> Figure:
    """Draw ECE (left) and error (right) over the epochs, both in per cent on logarithmic axes.

    Lines are means over seeds, bands one standard deviation; dotted lines show where the learning rate drops.

    Args:
        curves: What to draw; see `prepare_curves`.
        title: Text above the figure.

    Returns:
        A figure as wide as a page's text.

    Example:
        >>> from calibrant import Predictions, measure
        >>> from calibrant.core.entry import Entry
        >>> from calibrant.report.rows import group_rows
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0]))
        >>> history = [{"test_ece": 0.02, "test_error": 0.3}, {"test_ece": 0.01, "test_error": 0.2}]
        >>> rows = group_rows([Entry("coins", "ce", scores, history=tuple(history))])[0].rows
        >>> figure = draw_curves(prepare_curves(rows))
        >>> figure.axes[0].get_lines()[0].get_ydata().tolist()
        [2.0, 1.0]
    """
    part = {"test": "test", "val": "validation"}[curves.split]
    with print_style():
        figure = wide_figure(2)
        left, right = figure.subplots(1, 2)
        for ax, bands, name in ((left, curves.ece, "ECE"), (right, curves.error, "error")):
            draw_bands(ax, bands)
            for epoch in curves.drops:
                ax.axvline(epoch - 0.5, color="0.6", linestyle=":", linewidth=0.7, zorder=1)
            ax.set_ylabel(f"{part} {name} (%)")
            log_axis(ax, bands)
            epoch_axis(ax)
        note = seeds_note([band.seeds for band in (*curves.ece, *curves.error)])
        draw_shared_legend(figure, title=", ".join(said for said in (title, note) if said) or None)
    return figure
