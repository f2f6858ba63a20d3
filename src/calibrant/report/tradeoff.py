"""The trade-off between error and calibration error, and the methods that no other one beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibrant.core.sizes import common_size, usual_size
from calibrant.report.bands import log_scale, log_ticks, plain_ticks, seeds_note
from calibrant.report.placing import Box, place_labels
from calibrant.report.rows import Row
from calibrant.report.style import COLUMN_WIDTH, TEXT_WIDTH, Style, fold_label, fold_to_width, print_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

# A label that begins within so many points of its point needs no line to it.
_CLOSE = 9.0
# Labels stay so many points away from the axes, which their white edge would cut.
_FROM_AXES = 3.0
# Characters of a line of a label, so that it takes less than half of a column.
_LABEL_WIDTH = 22
# Lines of all labels together that a figure as wide as a column has room for.
_FEW_LINES = 12
# The largest ratio of two ECEs that the axis shows on its logarithmic scale.
_SPAN = 200.0
# The ratio of two errors from which on their axis is logarithmic, too: a method that failed leaves the others room.
_ERRORS_APART = 2.5
# The part of both axes that is left free on every side.
_MARGIN = 0.12
# The part of the axis of errors that a mark at zero may take to its left.
_MARK_ROOM = 0.04
# So many times lower than the lowest point the axis goes for the end of a bar.
_BELOW = 4.0


@dataclass(frozen=True)
class TradeoffPoint:
    """A row's place.

    Attributes:
        label: What it is called.
        style: How it is drawn.
        error: Mean test error over its seeds.
        ece: Mean ECE over its seeds.
        error_std: Standard deviation of the error over the seeds (n - 1); None for a single seed.
        ece_std: That of the ECE.
        seeds: Number of seeds.
        best: Whether it is on the Pareto front: no other row of as many test examples is as good in both and better in one. A
            part of a test set may be an easy one, so a row of another number than the usual one is not on it.
    """

    label: str
    style: Style
    error: float
    ece: float
    error_std: float | None
    ece_std: float | None
    seeds: int
    best: bool


def prepare_tradeoff(rows: Sequence[Row]) -> list[TradeoffPoint]:
    """Take error and ECE of all rows from their scores and find the Pareto front.

    Args:
        rows: Rows of one data set.

    Returns:
        One point a row. Rows of which one of the two is not known are left out.
    """
    placed = [(row, value) for row in rows if len(value := _values(row))]
    usual = usual_size(run for row in rows for run in row.runs)
    # Where no row is of the usual number, as where its runs have no ECE, the others have only each other.
    sizes = [common_size(row.runs) for row, _ in placed]
    held = [size == usual or usual not in sizes for size in sizes]
    rivals = [value.mean(0) for is_held, (_, value) in zip(held, placed, strict=True) if is_held]
    points = []
    for is_held, (row, value) in zip(held, placed, strict=True):
        mean = value.mean(0)
        beaten = not is_held or any((other <= mean).all() and (other < mean).any() for other in rivals)
        spread = value.std(0, ddof=1) if len(value) > 1 else None
        points.append(
            TradeoffPoint(
                label=row.label,
                style=row.style,
                error=float(mean[0]),
                ece=float(mean[1]),
                error_std=None if spread is None else float(spread[0]),
                ece_std=None if spread is None else float(spread[1]),
                seeds=len(value),
                best=not beaten,
            )
        )
    return points


def _values(row: Row) -> Array:
    """Error and ECE of every run that has both ``[runs, 2]``."""
    found = [[run.scores[key].value for key in ("error", "ece")] for run in row.runs if {"error", "ece"} <= set(run.scores)]
    values: Array = np.array(found, dtype=np.float64).reshape(-1, 2)
    return values[np.isfinite(values).all(1)]


def draw_tradeoff(points: Sequence[TradeoffPoint], *, title: str | None = None) -> Figure:
    """Draw ECE against error in per cent, a labelled point a row, with the Pareto front.

    Better is further left and further down. The stepped line joins the rows that no other row beats in both; what lies above
    and to the right of it is beaten by one of them. Bars are standard deviations over seeds; one that goes on below the axis,
    or below an error of zero, ends in an arrow. The axis of ECE is logarithmic down to the least value that is not nearly
    zero, that of the error where one is more than two and a half times another.

    Args:
        points: What to draw; see `prepare_tradeoff`.
        title: Text above the figure.

    Returns:
        A figure as wide as a column for up to six points with short labels, else wider. Raises ``ValueError`` if there is none.

    Example:
        >>> from calibrant.report.style import METHOD_STYLES
        >>> place = dict(error_std=None, ece_std=None, seeds=1)
        >>> first = TradeoffPoint("CE", METHOD_STYLES["ce"], 0.05, 0.04, best=True, **place)
        >>> second = TradeoffPoint("Focal", METHOD_STYLES["focal"], 0.06, 0.03, best=True, **place)
        >>> figure = draw_tradeoff([first, second])
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['CE', 'Focal']

    Reference:
        Wang and Golebiowski, TMLR 2024, appendix (predictive-calibration trade-off).
    """
    from matplotlib.figure import Figure

    if not points:
        raise ValueError("draw_tradeoff: `points` must hold at least one row, got none.")
    with print_style():
        lines = sum(fold_label(point.label, _LABEL_WIDTH).count("\n") + 1 for point in points)
        size = (COLUMN_WIDTH, 2.7) if len(points) <= 6 and lines <= _FEW_LINES else (0.75 * TEXT_WIDTH, 3.4)
        figure = Figure(figsize=size, layout="constrained")
        ax = figure.subplots()
        for point in points:
            _draw_point(ax, point)
        ax.set(xlabel="test error (%)", ylabel="test ECE (%)")
        ax.margins(_MARGIN)
        _scale_error(ax, points)
        _scale_ece(ax, points)
        _draw_front(ax, points)
        ax.grid()
        # On white: grid lines would go through its text.
        ax.legend(loc="best", handlelength=1.8, frameon=True, framealpha=1, edgecolor="none", borderpad=0.2)
        note = seeds_note([point.seeds for point in points])
        figure.draw_without_rendering()  # a title stands above the axes, whose width is known from here on
        wide = ax.get_window_extent().width / figure.dpi
        ax.set_title(fold_to_width(", ".join(said for said in (title, note) if said), wide))
        _draw_labels(figure, ax, points)
    return figure


def _draw_point(ax: Axes, point: TradeoffPoint) -> None:
    ax.errorbar(
        100 * point.error,
        100 * point.ece,
        xerr=None if point.error_std is None else 100 * point.error_std,
        yerr=None if point.ece_std is None else 100 * point.ece_std,
        elinewidth=0.7,
        capsize=1.5,
        zorder=4,
        **(point.style.point_options() | {"markersize": 6 if point.best else 4.5}),  # type: ignore[arg-type]
    )


def _scale_error(ax: Axes, points: Sequence[TradeoffPoint]) -> None:
    """Make the axis of the error logarithmic where errors differ by factors; it has nothing to say below zero."""
    least, most = (end(point.error for point in points) for end in (min, max))
    # What failed at one seed has a bar down to zero, too.
    usual = [point for point in points if point.error <= _ERRORS_APART * least]
    if not 0 < _ERRORS_APART * least < most or any((point.error_std or 0.0) >= point.error for point in usual):
        _end_at_zero(ax, points)
        return
    ax.set_xscale("log")
    left = max(100 * min(point.error - (point.error_std or 0.0) for point in points), 100 * least / _BELOW)
    right = 100 * max(point.error + (point.error_std or 0.0) for point in points)
    room = (right / left) ** _MARGIN
    ax.set_xlim(left / room, right * room)
    _draw_arrows(ax, points)
    plain_ticks(ax.xaxis, log_ticks(*ax.get_xlim()))


def _end_at_zero(ax: Axes, points: Sequence[TradeoffPoint]) -> None:
    """Let an axis of errors that bars, or the margin, take below zero end there, with room for the mark of a point at zero."""
    from matplotlib.ticker import FixedLocator

    left, right = ax.get_xlim()
    if left >= 0:
        return
    near = 100 * min(point.error for point in points) < _MARK_ROOM * right
    ax.set_xlim(max(left, -_MARK_ROOM * right) if near else 0.0, right)
    ax.xaxis.set_major_locator(FixedLocator([tick for tick in ax.get_xticks() if 0 <= tick <= right]))
    _draw_arrows(ax, points)


def _draw_arrows(ax: Axes, points: Sequence[TradeoffPoint]) -> None:
    """Draw an arrow where the bar of an error goes on to the left of the axis."""
    for point in points:
        if point.error_std is not None and 100 * (point.error - point.error_std) < ax.get_xlim()[0]:
            options = {"color": point.style.color, "marker": "<", "markersize": 3.5, "clip_on": False, "zorder": 4}
            ax.plot([0.02], [100 * point.ece], transform=ax.get_yaxis_transform(), **options)  # type: ignore[arg-type]


def _scale_ece(ax: Axes, points: Sequence[TradeoffPoint]) -> None:
    """Make the axis of ECE logarithmic: methods differ in it by factors. An ECE of nearly zero does not stretch it.

    The axis holds the bars where they do not come much closer to zero than the points; others end in an arrow.
    """
    least, high = min(point.ece for point in points), max(point.ece + (point.ece_std or 0.0) for point in points)
    lows = [max(point.ece - (point.ece_std or 0.0), min(point.ece, least / _BELOW)) for point in points]
    kept = [low for low in lows if low > high / _SPAN]
    log_scale(
        ax, [100 * low for low in lows], 100 * high, room=max((high / min(kept)) ** 0.1, 1.1) if kept else 1.1, span=_SPAN
    )
    bottom = ax.get_ylim()[0]
    for point in points:
        if point.ece_std is not None and 100 * (point.ece - point.ece_std) < bottom:
            options = {"color": point.style.color, "marker": "v", "markersize": 3.5, "clip_on": False, "zorder": 4}
            ax.plot([100 * point.error], [0.02], transform=ax.get_xaxis_transform(), **options)  # type: ignore[arg-type]


def _draw_front(ax: Axes, points: Sequence[TradeoffPoint]) -> None:
    front = sorted((100 * point.error, 100 * point.ece) for point in points if point.best)
    (_, right), (_, top) = ax.get_xlim(), ax.get_ylim()
    # To the edges of the figure and beyond: what is as bad as that in one is beaten by the ends of the front.
    x, y = (np.array(values) for values in zip((front[0][0], 10 * top), *front, (10 * right, front[-1][1]), strict=True))
    limits = ax.get_xlim(), ax.get_ylim()
    ax.step(x, y, where="post", color="0.35", linewidth=0.9, linestyle="--", zorder=2, label="Pareto front")
    ax.set(xlim=limits[0], ylim=limits[1])


def _draw_labels(figure: Figure, ax: Axes, points: Sequence[TradeoffPoint]) -> None:
    """Write every label where `place_labels` puts it, joined to its point by a thin line if that is not close."""
    from matplotlib.patheffects import withStroke
    from matplotlib.text import Text

    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the places hold for this layout
    scale = 72 / figure.dpi
    texts = [
        ax.annotate(
            fold_label(point.label, _LABEL_WIDTH),
            xy=(100 * point.error, 100 * point.ece),
            xytext=(0, 0),
            textcoords="offset points",
            ha="left",
            va="bottom",
            fontsize=7.5,
            linespacing=1.15,
            zorder=5,
            color=_dark(point.style.color),
            path_effects=[withStroke(linewidth=1.5, foreground="white")],  # to be read across a line
            arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "0.4", "shrinkA": 0, "shrinkB": 2},
        )
        for point in points
    ]
    extents = [Text.get_window_extent(text) for text in texts]
    pixels = ax.transData.transform([text.xy for text in texts])
    places = [(float(x) * scale, float(y) * scale) for x, y in pixels]
    legend = ax.get_legend()
    boxes = place_labels(
        places,
        # At the finer grid of a file some letters are a little wider.
        [(1.03 * scale * extent.width + 1, scale * extent.height) for extent in extents],
        inside=_box(ax.get_window_extent(), scale).grown(-_FROM_AXES),
        taken=_bars(ax, points, scale),
        texts=[] if legend is None else [_box(legend.get_window_extent(), scale)],
    )
    for text, (x, y), box in zip(texts, places, boxes, strict=True):
        text.set_position((box.left - x, box.bottom - y))
        near = box.overlap(Box(x - _CLOSE, y - _CLOSE, x + _CLOSE, y + _CLOSE)) > 0
        if near and text.arrow_patch is not None:
            text.arrow_patch.set_visible(False)


def _bars(ax: Axes, points: Sequence[TradeoffPoint], scale: float) -> list[Box]:
    """The error bars and the front, as boxes that labels keep away from."""
    boxes = []
    for point in points:
        for across, up in ((point.error_std or 0.0, 0.0), (0.0, point.ece_std or 0.0)):
            ends = [(100 * (point.error + s * across), 100 * (point.ece + s * up)) for s in (-1, 1)]
            (left, bottom), (right, top) = scale * ax.transData.transform(ends)
            boxes.append(Box(left - 1, bottom - 1, right + 1, top + 1))
    front = scale * ax.transData.transform(ax.get_lines()[-1].get_xydata())
    for (left, top), (right, bottom) in zip(front, front[1:], strict=False):
        boxes += [Box(left - 1, top - 1, right + 1, top + 1), Box(right - 1, bottom - 1, right + 1, top + 1)]
    return boxes


def _dark(color: str) -> tuple[float, float, float]:
    """The colour, dark enough for text on white."""
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(color)
    return 0.6 * red, 0.6 * green, 0.6 * blue


def _box(extent: Bbox, scale: float) -> Box:
    return Box(*(scale * float(side) for side in extent.extents))
