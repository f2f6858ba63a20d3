"""Reliability diagrams: a grid of methods, each with its gap bars, intervals and counts, captioned with its test error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from string import ascii_lowercase
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from calibrant.core.binning import equal_width_bins, top_label
from calibrant.core.checks import check_count
from calibrant.core.records import Bins
from calibrant.core.scores import Entry
from calibrant.metrics.diagram import draw_gap_bars
from calibrant.metrics.intervals import rate_interval
from calibrant.report.rows import Row
from calibrant.report.save import COLUMN_WIDTH, PER_INCH, TEXT_WIDTH, add_legend, fold_text, print_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_COLUMNS = 5
_INTERVAL = "95% interval of the accuracy"
# In inches: what stands beside the first diagram.
_LEFT = 0.55


class ReliabilityPanel(NamedTuple):
    """What one diagram shows: the label, test error and ECE of a run, its bins, and 95 % intervals of their accuracies.

    Intervals are Wilson's, None where a bin is empty, and None altogether for weighted examples, for which they do not hold.
    """

    label: str
    error: float
    ece: float
    bins: Bins
    intervals: tuple[tuple[float, float] | None, ...] | None


def prepare_reliability(rows: Sequence[Row], *, n_bins: int = 15, seed: int | None = None) -> list[ReliabilityPanel]:
    """Bin the test predictions of one run of each row that has them.

    Args:
        rows: Rows of one data set.
        n_bins: Number of equal-width bins.
        seed: Which run of a row; its last one if it has none of this seed, or by default.

    Returns:
        One panel a row. A record without predictions is left out unless it keeps ``n_bins`` bins of equal width.
    """
    panels = []
    for row in rows:
        run = row.run(seed)
        bins = (
            kept_bins(run, n_bins) if run.test is None else equal_width_bins(top_label(run.test, where="figure"), n_bins=n_bins)
        )
        if bins is not None:
            known = intervals_of(bins) if counts_examples(run, bins) else None
            panels.append(ReliabilityPanel(row.label, *error_and_ece(run, bins), bins, known))
    return panels


def intervals_of(bins: Bins) -> tuple[tuple[float, float] | None, ...]:
    """Wilson's 95 % intervals of the accuracies; None for empty bins."""
    rates = zip(bins.accuracy.tolist(), bins.count.tolist(), strict=True)
    found = [rate_interval(rate, size=count) if count else None for rate, count in rates]
    return tuple(None if ends is None else (ends.low, ends.high) for ends in found)


def error_and_ece(entry: Entry, bins: Bins) -> tuple[float, float]:
    """Error of a run, and its ECE over these bins: what was measured, where it was.

    Adding up bins gives the same numbers but for their last digits, by which a number is rounded up here and down there.
    """
    known, usual = entry.scores, len(bins.count) == entry.scores.n_bins
    error = known["error"].value if "error" in known else float(1 - bins.weight @ bins.accuracy)
    return error, known["ece"].value if usual and "ece" in known else float(bins.weight @ bins.gap.abs())


def kept_bins(entry: Entry, n_bins: int) -> Bins | None:
    """Return the bins that the record of a run holds, where they are so many of equal width."""
    bins = entry.scores.bins
    if len(bins.count) != n_bins:
        return None
    # Records keep ten digits.
    return bins if np.allclose(bins.edges.numpy(), np.linspace(0, 1, n_bins + 1), atol=1e-6) else None


def counts_examples(entry: Entry, bins: Bins) -> bool:
    """Whether the counts of a run's bins are numbers of examples, and not sums of their weights, which may be whole, too."""
    weights = entry.scores.weight if entry.test is None else entry.test.weights
    return weights is None and bool((bins.count == bins.count.round()).all())


def draw_reliability_grid(
    panels: Sequence[ReliabilityPanel], *, title: str | None = None, columns: int = _MOST_COLUMNS
) -> Figure:
    r"""Draw reliability diagrams side by side, each above the counts of its bins.

    Blue bars are the accuracy of a bin, hatched ones its gap to the mean confidence: standing on the accuracy, positive,
    where that is lower than the confidence; hanging down from it, negative, where it is higher. Thin lines are 95 %
    intervals of the accuracy, at the mean confidence of the bin: one that crosses the diagonal is no sign of an error. With
    more than 20 bins they are a grey band, and nothing is hatched. The caption below each diagram gives the method, in
    brackets its test error, and its ECE over these bins.

    Args:
        panels: What to draw; see `prepare_reliability`.
        title: Text above the figure.
        columns: Diagrams in a row.

    Returns:
        A figure as wide as a page's text for five columns. Raises ``ValueError`` if there is no panel, or no column.

    Example:
        >>> from calibrant import Predictions, measure
        >>> from calibrant.core.scores import Entry
        >>> from calibrant.report.rows import group_rows
        >>> test = Predictions(probs=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]] * 40, labels=[0, 1, 1] * 40)
        >>> rows = group_rows([Entry("coins", "ce", measure(test), test=test)])[0].rows
        >>> figure = draw_reliability_grid(prepare_reliability(rows, n_bins=10))
        >>> figure.axes[1].get_xlabel()
        'confidence\nCE (33.33%)\nECE 33.33%'

    Reference:
        DeGroot and Fienberg, The Statistician 1983; the layout follows Wang and Golebiowski, TMLR 2024, figure 2.
    """
    from matplotlib.figure import Figure

    if not panels:
        raise ValueError("draw_reliability_grid: `panels` must hold at least one diagram, got none.")
    check_count(columns, where="draw_reliability_grid", name="columns")
    wide = min(columns, len(panels))
    deep = math.ceil(len(panels) / wide)
    width = max(COLUMN_WIDTH, TEXT_WIDTH * wide / _MOST_COLUMNS)
    # In inches: axes about as high as they are wide, and below them counts, numbers and texts.
    side = (width - _LEFT) / wide
    captions = _captions(panels, side)
    row = 1.25 * side + 0.13 * (4 + max(caption.count("\n") for caption in captions))
    keys, head = (5, 0.45) if width > 0.9 * TEXT_WIDTH else (2, 0.75)
    most = max(float(panel.bins.count.max()) for panel in panels)
    with print_style():
        figure = Figure(figsize=(width, head + deep * row), layout="constrained")
        grid = figure.add_gridspec(2 * deep, wide, height_ratios=[1, 0.25] * deep, hspace=0)
        for place, (panel, caption) in enumerate(zip(panels, captions, strict=True)):
            at, across = 2 * (place // wide), place % wide
            upper = figure.add_subplot(grid[at, across])
            lower = figure.add_subplot(grid[at + 1, across], sharex=upper)
            draw_panel(upper, panel)
            upper.tick_params(labelbottom=False)
            _draw_counts(lower, panel.bins, most=most)
            lower.set_xticks((0, 0.5, 1), ("0", "0.5", "1"))
            lower.set_xlabel(f"confidence\n{caption}", fontsize=7.5)
            for ax in (upper, lower):
                ax.tick_params(labelleft=across == 0)
            if across == 0:
                upper.set_ylabel("accuracy")
                lower.set_ylabel("count", fontsize=7)
        add_legend(figure, title, columns=keys)
    return figure


def _captions(panels: Sequence[ReliabilityPanel], width: float) -> list[str]:
    """Method, error and ECE in lines of at most ``width`` inches: the error beside the method if that fits everywhere."""
    marks = [f"({letter}) " for letter in ascii_lowercase] if 1 < len(panels) <= len(ascii_lowercase) else [""] * len(panels)
    names = [mark + panel.label for mark, panel in zip(marks, panels, strict=False)]
    first, second = (" ", "\n") if max(map(len, names)) + 9 <= PER_INCH * width else ("\n", ", ")
    return [
        f"{fold_text(name, width)}{first}({100 * panel.error:.2f}%){second}ECE {100 * panel.ece:.2f}%"
        for name, panel in zip(names, panels, strict=True)
    ]


def draw_panel(ax: Axes, panel: ReliabilityPanel) -> None:
    """Draw one diagram, without labels of its axes."""
    bins = panel.bins
    few = len(bins.count) <= 20
    ax.set(xlim=(0, 1), ylim=(0, 1), xticks=(0, 0.5, 1))
    ax.set_yticks((0, 0.5, 1), ("0", "0.5", "1"))
    draw_gap_bars(ax, bins, outline=0.4 if few else 0.0)
    if panel.intervals is None:
        return
    shown = [place for place, ends in enumerate(panel.intervals) if ends is not None]
    low, high = np.array([panel.intervals[place] for place in shown]).T
    if few:
        ax.vlines(bins.confidence.numpy()[shown], low, high, color="black", linewidth=0.8, clip_on=False, label=_INTERVAL)
    else:
        # Lines would hide what they are about.
        left, width = bins.edges.numpy()[shown], bins.edges.diff().numpy()[shown]
        ax.bar(left, high - low, width=width, bottom=low, align="edge", color="black", alpha=0.18, linewidth=0, label=_INTERVAL)


def _draw_counts(ax: Axes, bins: Bins, *, most: float) -> None:
    filled = (bins.count > 0).numpy()
    left, width, count = bins.edges[:-1].numpy(), bins.edges.diff().numpy(), bins.count.numpy()
    ax.bar(left[filled], count[filled], width=width[filled], align="edge", color="0.55", linewidth=0)
    # Logarithmic, because most examples of a good classifier lie in the last bin, and the worst gaps where there are few.
    ax.set(yscale="log", ylim=(0.5, 2 * most))
    power = max(1, int(np.log10(most)))
    ax.set_yticks((1, 10**power), ("1", f"10{'⁰¹²³⁴⁵⁶⁷⁸⁹'[power]}"))
    ax.minorticks_off()
