"""The trade-off between error and calibration error, and the methods that no other one beats in both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from calibrant.core.entry import common_size, usual_size
from calibrant.report.curves import count_seeds, plain_log_ticks
from calibrant.report.rows import Row
from calibrant.report.save import tell
from calibrant.report.style import COLUMN_WIDTH, TEXT_WIDTH, Style, fold_text, print_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

# Width of a label in inches, and how many lines of all labels a figure as wide as a column has room for.
_LABEL_WIDTH, _FEW_LINES = 1.4, 12
# The ratio of two errors from which on their axis is logarithmic, too: a method that failed leaves the others room.
_ERRORS_APART = 2.5
# A label that begins within so many points of its point needs no line to it.
_CLOSE = 9.0


class TradeoffPoint(NamedTuple):
    """A row's place: mean error and ECE over its seeds, their standard deviations (n - 1; None for a single seed).

    ``best`` says whether it is on the Pareto front: no other row of as many test examples is as good in both and better in one.
    A part of a test set may be an easy one, so a row of another number than the usual one is not on it.
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
    """Take error and ECE of all rows that have both from their scores, and find the Pareto front."""
    placed = [(row, values) for row in rows if len(values := _values(row))]
    usual = usual_size(run for row in rows for run in row.runs)
    # Where no row is of the usual number, as where its runs have no ECE, the others have only each other.
    sizes = [common_size(row.runs) for row, _ in placed]
    held = [size == usual or usual not in sizes for size in sizes]
    rivals = [values.mean(0) for is_held, (_, values) in zip(held, placed, strict=True) if is_held]
    points = []
    for is_held, (row, values) in zip(held, placed, strict=True):
        mean = values.mean(0)
        beaten = not is_held or any((other <= mean).all() and (other < mean).any() for other in rivals)
        error, ece = mean.tolist()
        error_std, ece_std = values.std(0, ddof=1).tolist() if len(values) > 1 else (None, None)
        points.append(TradeoffPoint(row.label, row.style, error, ece, error_std, ece_std, len(values), not beaten))
    return points


def _values(row: Row) -> Array:
    """Error and ECE of every run that has both ``[runs, 2]``."""
    found = [[run.scores[key].value for key in ("error", "ece")] for run in row.runs if {"error", "ece"} <= set(run.scores)]
    values: Array = np.array(found, dtype=np.float64).reshape(-1, 2)
    return values[np.isfinite(values).all(1)]


def draw_tradeoff(points: Sequence[TradeoffPoint], *, title: str | None = None) -> Figure:
    """Draw ECE against error in per cent, a labelled point a row, with the Pareto front.

    Better is further left and further down. The stepped line joins the rows that no other row beats in both; what lies above
    and to the right of it is beaten by one of them. Bars are standard deviations over seeds. The axis of ECE is logarithmic,
    that of the error where one is more than two and a half times another.

    Reference:
        Wang and Golebiowski, TMLR 2024, appendix (predictive-calibration trade-off).
    """
    from matplotlib.figure import Figure

    lines = sum(fold_text(point.label, _LABEL_WIDTH).count("\n") + 1 for point in points)
    small = len(points) <= 6 and lines <= _FEW_LINES
    with print_style():
        size = (COLUMN_WIDTH, 2.7) if small else (0.75 * TEXT_WIDTH, 3.4)
        figure = Figure(figsize=size, layout="constrained")
        ax = figure.subplots()
        for point in points:
            _draw_point(ax, point)
        ax.set(xlabel="test error (%)", ylabel="test ECE (%)")
        ax.margins(0.12)
        _scale(ax, points)
        _draw_front(ax, points)
        ax.grid()
        # On white: grid lines would go through its text.
        legend = ax.legend(loc="best", handlelength=1.8, frameon=True, framealpha=1, edgecolor="none", borderpad=0.2)
        seeds = count_seeds([point.seeds for point in points])
        if title:
            ax.set_title(fold_text(f"{title}, mean ± std over {seeds}" if seeds else title, size[0] - 0.6))
        _draw_labels(figure, ax, legend, points)
    return figure


def _draw_point(ax: Axes, point: TradeoffPoint) -> None:
    drawn = ax.errorbar(
        100 * point.error,
        100 * point.ece,
        xerr=None if point.error_std is None else 100 * point.error_std,
        yerr=None if point.ece_std is None else 100 * point.ece_std,
        elinewidth=0.7,
        capsize=1.5,
        zorder=4,
        **(point.style.options() | {"linestyle": "none", "markersize": 6 if point.best else 4.5}),  # type: ignore[arg-type]
    )
    line, caps, bars = drawn.lines
    for artist in (line, *caps, *bars):
        tell(artist, point.label, _facts(point))


def _facts(point: TradeoffPoint) -> str:
    runs = f"mean of {point.seeds} seeds" if point.seeds > 1 else "one run"
    rank = "no method beats it in both" if point.best else "another method beats it"
    return f"error {100 * point.error:.2f}%, ECE {100 * point.ece:.2f}%, {runs}; {rank}"


def _scale(ax: Axes, points: Sequence[TradeoffPoint]) -> None:
    """Make the axis of ECE logarithmic, and that of errors where they differ by factors; otherwise it may end at zero."""
    eces, errors = ([getattr(point, key) for point in points] for key in ("ece", "error"))
    if min(eces) > 0:
        ax.set_yscale("log")
        # A bar that comes close to zero would have no end on this scale.
        low = min(max(point.ece - (point.ece_std or 0.0), point.ece / 2) for point in points)
        high = max(point.ece + (point.ece_std or 0.0) for point in points)
        room = max((high / low) ** 0.12, 1.1)
        ax.set_ylim(100 * low / room, 100 * high * room)
        plain_log_ticks(ax.yaxis)
    if 0 < _ERRORS_APART * min(errors) < max(errors):
        ax.set_xscale("log")
        room = (max(errors) / min(errors)) ** 0.12
        ax.set_xlim(100 * min(errors) / room, 100 * max(errors) * room)
        plain_log_ticks(ax.xaxis)
    elif min(errors) > 0:
        ax.set_xlim(left=max(0.0, ax.get_xlim()[0]))


def _draw_front(ax: Axes, points: Sequence[TradeoffPoint]) -> None:
    front = sorted((100 * point.error, 100 * point.ece) for point in points if point.best)
    limits = ax.get_xlim(), ax.get_ylim()
    # To the edges of the figure and beyond: what is as bad as that in one is beaten by the ends of the front.
    corners = [(front[0][0], 10 * limits[1][1]), *front, (10 * limits[0][1], front[-1][1])]
    x, y = zip(*corners, strict=True)
    ax.step(x, y, where="post", color="0.35", linewidth=0.9, linestyle="--", zorder=2, label="Pareto front")
    ax.set(xlim=limits[0], ylim=limits[1])


def _draw_labels(figure: Figure, ax: Axes, legend: Legend, points: Sequence[TradeoffPoint]) -> None:
    """Write every label where there is room for it, joined to its point by a thin line if that is not close."""
    from matplotlib.text import Text

    line = {"arrowstyle": "-", "linewidth": 0.4, "color": "0.4", "shrinkA": 0, "shrinkB": 2}
    options: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7.5, "linespacing": 1.15, "zorder": 5}
    texts = [
        ax.annotate(
            fold_text(point.label, _LABEL_WIDTH),
            (100 * point.error, 100 * point.ece),
            (0, 0),
            va="bottom",
            arrowprops=line,
            **options,
        )
        for point in points
    ]
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # the places hold for this layout
    scale = 72 / figure.dpi  # places are in points from here on
    spots = scale * ax.transData.transform([text.xy for text in texts])
    inside = scale * np.array(ax.get_window_extent().extents) + (3, 3, -3, -3)
    # Left, bottom, right and top of what labels should not cover: marks and bars a little, other texts not at all.
    marks: list[Any] = [box for point in points for box in _bars(ax, point, scale)]
    for (left, top), (right, bottom) in pairwise(scale * ax.transData.transform(ax.get_lines()[-1].get_xydata())):
        marks += [(left - 1, top - 1, right + 1, top + 1), (right - 1, bottom - 1, right + 1, top + 1)]
    taken = [scale * np.array(legend.get_window_extent().extents)]
    # Those with the nearest neighbours first: they have the least choice.
    for k in sorted(range(len(texts)), key=lambda k: sorted(math.dist(spots[k], other) for other in spots)[:2]):
        extent = Text.get_window_extent(texts[k])
        places, distance = _places(spots[k], scale * extent.width, scale * extent.height)
        outside = scale**2 * extent.width * extent.height - _shared(places, inside[None])
        cost = (
            distance + 3 * _shared(places, np.array(marks)) + 10 * (outside + _shared(places + (-2, -2, 2, 2), np.array(taken)))
        )
        taken.append(places[cost.argmin()])
        tell(texts[k], points[k].label, _facts(points[k]))
        texts[k].set_position(taken[-1][:2] - spots[k])
        texts[k].arrow_patch.set_visible(distance[cost.argmin()] >= _CLOSE)  # type: ignore[union-attr]


def _bars(ax: Axes, point: TradeoffPoint, scale: float) -> Iterator[Array]:
    """Boxes around the mark of a point and its two bars."""
    for across, up, around in ((point.error_std or 0.0, 0.0, 1), (0.0, point.ece_std or 0.0, 1), (0.0, 0.0, 3)):
        ends = [(100 * (point.error + s * across), 100 * max(point.ece + s * up, 1e-9)) for s in (-1, 1)]
        yield scale * ax.transData.transform(ends).flatten() + (-around, -around, around, around)


def _places(spot: Array, width: float, height: float) -> tuple[Array, Array]:
    """Boxes for a label around a point ``[K, 4]``, and their distances ``[K]``; a little more for those not to its right."""
    ring, step = (part.flatten() for part in np.meshgrid(np.arange(7), np.arange(16), indexing="ij"))
    turn = (step + 1) // 2 * np.where(step % 2, 1, -1) * np.pi / 8
    along, up, away = np.cos(turn), np.sin(turn), 5 + 7 * ring
    # The label's nearest side, not its middle, keeps the distance.
    left = spot[0] + away * along - width * np.select([along > 0.3, along < -0.3], [0.0, 1.0], 0.5)
    bottom = spot[1] + away * up - height * np.select([up > 0.3, up < -0.3], [0.0, 1.0], 0.5)
    return np.stack([left, bottom, left + width, bottom + height], axis=1), away + 0.2 * step


def _shared(boxes: Array, others: Array) -> Array:
    """Area that each of ``boxes [K, 4]`` shares with ``others [M, 4]``, summed over these."""
    low, high = np.maximum(boxes[:, None, :2], others[:, :2]), np.minimum(boxes[:, None, 2:], others[:, 2:])
    area: Array = np.clip(high - low, 0, None).prod(2).sum(1)
    return area
