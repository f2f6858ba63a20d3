"""Reliability diagrams: a grid of methods, each with its gap bars, intervals and counts, captioned with its test error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from calibrant.core.binning import equal_width_bins, top_label
from calibrant.core.checks import check_count
from calibrant.core.records import Bins
from calibrant.core.scores import Entry
from calibrant.metrics.diagram import draw_counts, draw_diagram, intervals_of
from calibrant.report.rows import Row
from calibrant.report.save import COLUMN_WIDTH, TEXT_WIDTH, add_legend, fold_text, print_style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_COLUMNS = 5
# In inches: what stands beside the first diagram.
_LEFT = 0.55


class ReliabilityPanel(NamedTuple):
    """What one diagram shows: the label, test error and ECE of a run, its bins, and 95 % intervals of their accuracies.

    Intervals are Wilson's ``[M, 2]``, or None for weighted examples, for which they do not hold.
    """

    label: str
    error: float
    ece: float
    bins: Bins
    intervals: Tensor | None

    @property
    def ends(self) -> Tensor:
        """The intervals, or the accuracies themselves where there are none."""
        return torch.stack([self.bins.accuracy] * 2, 1) if self.intervals is None else self.intervals


def prepare_reliability(rows: Sequence[Row], *, n_bins: int = 15, seed: int | None = None) -> list[ReliabilityPanel]:
    """Bin the test predictions of one run of each row that has them.

    Args:
        rows: Rows of one data set.
        n_bins: Number of equal-width bins.
        seed: Which run of a row; its last one if it has none of this seed, or by default.

    Returns:
        One panel a row. A record without predictions is left out unless it keeps ``n_bins`` bins.
    """
    panels = [panel_of_run(row.run(seed), n_bins, label=row.label) for row in rows]
    return [panel for panel in panels if panel is not None]


def panel_of_run(run: Entry, n_bins: int, *, label: str = "") -> ReliabilityPanel | None:
    """Bin the test predictions of a run; None where it has none, and its record does not keep so many bins."""
    bins, weighted = run.scores.bins, run.scores.weight is not None
    if run.test is not None:
        bins, weighted = equal_width_bins(top_label(run.test, where="figure"), n_bins=n_bins), run.test.weights is not None
    if len(bins.count) != n_bins:
        return None
    panel = panel_of_bins(bins, weighted=weighted, label=label)
    # Adding up bins gives what was measured but for the last digits, by which a number is rounded up here and down there.
    known: dict[str, Any] = {key: run.scores[key].value for key in ("error", "ece") if key in run.scores}
    if n_bins != run.scores.n_bins:
        known.pop("ece", None)
    return panel._replace(**known)


def panel_of_bins(bins: Bins, *, weighted: bool, label: str = "") -> ReliabilityPanel:
    """Add up error and ECE over bins, and find their intervals."""
    error, ece = float(1 - bins.weight @ bins.accuracy), float(bins.weight @ bins.gap.abs())
    return ReliabilityPanel(label, error, ece, bins, None if weighted else intervals_of(bins))


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
    deep = -(-len(panels) // wide)
    width = max(COLUMN_WIDTH, TEXT_WIDTH * wide / _MOST_COLUMNS)
    # In inches: axes about as high as they are wide, and below them counts, numbers and texts.
    side = (width - _LEFT) / wide
    names = [fold_text(f"{panel.label} ({100 * panel.error:.2f}%)", side) for panel in panels]
    row = 1.25 * side + 0.13 * (5 + max(name.count("\n") for name in names))
    most = max(float(panel.bins.count.max()) for panel in panels)
    with print_style():
        figure = Figure(figsize=(width, 0.6 + deep * row), layout="constrained")
        grid = figure.add_gridspec(2 * deep, wide, height_ratios=[1, 0.25] * deep, hspace=0)
        for place, (panel, name) in enumerate(zip(panels, names, strict=True)):
            at, across = 2 * (place // wide), place % wide
            upper = figure.add_subplot(grid[at, across])
            lower = figure.add_subplot(grid[at + 1, across], sharex=upper)
            draw_diagram(upper, panel.bins, panel.intervals)
            draw_counts(lower, panel.bins, most=most)
            upper.set_yticks((0, 0.5, 1), ("0", "0.5", "1"))
            upper.set_ylabel("" if across else "accuracy")
            upper.tick_params(labelbottom=False, labelleft=not across)
            lower.set_xticks((0, 0.5, 1), ("0", "0.5", "1"))
            lower.set_xlabel(f"confidence\n{name}\nECE {100 * panel.ece:.2f}%", fontsize=7.5)
            lower.set_ylabel("" if across else "count", fontsize=7)
            lower.tick_params(labelleft=not across)
        add_legend(figure, title)
    return figure
