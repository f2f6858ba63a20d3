"""All figures of a comparison, as files for print and as pictures in a page: curves, gamma, errors by bins, error against ECE.

And the chart of a stream, window after window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import equal_width_bins, top_label
from calibrant.core.checks import check_count
from calibrant.core.records import Bins, BinSweep, Entry
from calibrant.metrics.levels import bin_sweep
from calibrant.metrics.measure import Watched
from calibrant.metrics.verdict import PALETTE, draw_counts, draw_diagram, intervals_of
from calibrant.report.rows import Mean, Row, Section, Style, group_rows, metric_column, trained_alike
from calibrant.report.save import (
    COLUMN_WIDTH,
    TEXT_WIDTH,
    add_legend,
    figure_stem,
    fold_text,
    print_figure,
    print_style,
    save_figure,
    svg_element,
    tell,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Curve = tuple[Sequence[float], Sequence[float]]

# What a panel can show: how its axis is named, and what values are multiplied by.
PANELS = {
    "test_ece": ("test ECE (%)", 100),
    "test_error": ("test error (%)", 100),
    "test_nll": ("test NLL", 1),
    "val_ece": ("validation ECE (%)", 100),
    "val_error": ("validation error (%)", 100),
    "val_nll": ("validation NLL", 1),
    "train_loss": ("training loss", 1),
    "gamma": ("γ on test examples", 1),
    "ece": ("test ECE (%)", 100),
    "mce": ("test MCE (%)", 100),
}
# Those that are learning curves.
CURVES = tuple(PANELS)[:7]
# Numbers of bins for each of which there is a grid of reliability diagrams.
GRID_BINS = (10, 15, 20, 50, 100)
# Reliability diagrams in a row, and in inches what stands beside the first.
_MOST_COLUMNS = 5
_LEFT = 0.55
# Windows of a stream that have a name below them.
_MOST_NAMES = 12
# Most confidences of a good classifier lie within a hundredth of 1, so that the axis is stretched there, up to 1 - 0.0001.
_SMALLEST = 1e-4


class Band(NamedTuple):
    """A line with its spread: places, mean over the seeds, and standard deviation over them (n - 1), None for a single seed."""

    x: tuple[float, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...] | None


class Line(NamedTuple):
    """What is drawn of one row: its label, its look, name → line, and what the legend calls it."""

    label: str
    style: Style
    bands: Mapping[str, Band]
    legend: str = ""


def band_of(curves: Sequence[Curve]) -> Band | None:
    """Take the mean and spread of one curve a run, at the points where all have a finite value; None where there is none."""
    tables = [{x: y for x, y in zip(*curve, strict=True) if math.isfinite(y)} for curve in curves]
    tables = [table for table in tables if table]
    shared = sorted(set.intersection(*map(set, tables))) if tables else []
    if not shared:
        return None
    values = np.array([[table[x] for x in shared] for table in tables])
    std = tuple(values.std(0, ddof=1).tolist()) if len(tables) > 1 else None
    return Band(tuple(shared), tuple(values.mean(0).tolist()), std)


def _lines(rows: Sequence[Row], curves_of: Callable[[Entry], Mapping[str, Curve]], *, needs: Sequence[str]) -> list[Line]:
    """The bands of all rows that have any of those that the figure ``needs``."""
    lines = []
    for row in rows:
        runs = [curves_of(run) for run in row.runs]
        bands = {key: band for key in runs[0] if (band := band_of([run[key] for run in runs if key in run])) is not None}
        if any(key in bands for key in needs):
            lines.append(Line(row.label, row.style, bands, row.legend))
    return lines


def prepare_curves(rows: Sequence[Row]) -> list[Line]:
    """Read the learning curves (`CURVES`, and the learning rate as ``lr``) of all rows that have a history.

    They are of averaged weights where a run predicts with these. A run that was repaired afterwards (``+ts``) has none.
    """
    return _lines(rows, lambda run: {key: run.curve(key) for key in (*CURVES, "lr")}, needs=CURVES)


def prepare_robustness(rows: Sequence[Row]) -> list[Line]:
    """Take the binned errors of every run from its record, or else from its test predictions.

    Lines are ``ece`` and ``mce``, and ``ece_if_calibrated`` and ``mce_if_calibrated``, which a calibrated model with the same
    confidences would show on average. Records of older versions lack the last two.
    """

    def curves_of(run: Entry) -> Mapping[str, Curve]:
        sweep = run.sweep or (BinSweep((), (), ()) if run.test is None else bin_sweep(run.test))
        values = {key: getattr(sweep, key) for key in ("ece", "mce", "ece_if_calibrated", "mce_if_calibrated")}
        return {key: (sweep.n_bins if value else (), value) for key, value in values.items()}

    return _lines(rows, curves_of, needs=["ece"])


def prepare_gamma_epochs(rows: Sequence[Row]) -> list[Line]:
    """Read the mean of gamma over the test examples, and its spread over them, of all rows that have a history of it.

    Both are means over the seeds.
    """
    keys = ("gamma_mean", "gamma_std")
    lines = _lines(rows, lambda run: {key: run.curve(key) for key in keys}, needs=["gamma_std"])
    # Both bands are drawn as one: the spread is that over examples.
    return [
        line._replace(bands={"gamma": Band(mean.x, mean.mean, std.mean)})
        for line in lines
        if (std := line.bands["gamma_std"]).x == (mean := line.bands.get("gamma_mean", Band((), (), None))).x
    ]


def draw_lines(lines: Sequence[Line], *, keys: Sequence[str], title: str | None = None, legend: bool = True) -> Figure:
    """Draw panels of lines side by side, means over seeds with bands of one standard deviation.

    The band of gamma is its spread over examples. Over epochs dotted lines show where the learning rate halves or drops
    further. Over numbers of bins chance alone makes the errors of any model grow: the thin grey line is what it makes of a
    calibrated model with the confidences of the row of least ECE over 15 bins, which the legend names. If that row runs along
    the line, its rise is due to chance. Of ``keys`` that no row has on the test set, those on the validation set are drawn.

    Reference:
        Wang and Golebiowski, TMLR 2024, figures 3 and 5.
    """
    known = {key for line in lines for key in line.bands}
    shown = [found for key in keys if (found := key if key in known else key.replace("test", "val")) in known]
    over = "examples" if "gamma" in shown else "seeds"
    has_band = any(line.bands[key].std is not None for key in shown for line in lines if key in line.bands)
    with print_figure(TEXT_WIDTH * len(shown) / 2, 2.45) as figure:
        for ax, key in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            _draw_panel(ax, [line for line in lines if key in line.bands], key)
        if legend:
            add_legend(figure, title, f"mean ± std over {over}" if has_band else "")
    return figure


def _draw_panel(ax: Axes, lines: Sequence[Line], key: str) -> None:
    name, factor = PANELS[key]
    # Many bands over one another would hide the lines.
    alpha = 0.15 if len(lines) <= 5 else 0.08
    for number, line in enumerate(lines):
        x, mean, std = line.bands[key]
        y = factor * np.array(mean)
        # About eight markers a line, of which those of different lines do not coincide.
        every = -(-len(x) // 8)
        look = line.style.options() | {"label": line.legend or line.label, "markevery": (number % every, every)}
        drawn: list[Artist] = [*ax.plot(x, y, **look)]
        if std is not None:
            ends = y - factor * np.array(std), y + factor * np.array(std)
            drawn.append(ax.fill_between(x, *ends, color=line.style.color, alpha=alpha, linewidth=0))
        for artist in drawn:
            tell(artist, line.label, f"least {y.min():.4g} (at {x[y.argmin()]:g}), last {y[-1]:.4g}")
    is_over_bins = key in ("ece", "mce")
    ax.set(xlabel="number of bins" if is_over_bins else "epoch", ylabel=name)
    ax.grid(axis="y")
    if is_over_bins:
        _draw_chance(ax, lines, key)
        log_axis(ax, "x")
    if key == "mce":
        ax.set_ylim(0, 100)
    elif key != "gamma":
        log_axis(ax, "y")
    if not is_over_bins:
        ax.locator_params(axis="x", integer=True, min_n_ticks=1)
        _draw_drops(ax, lines)


def _draw_drops(ax: Axes, lines: Sequence[Line]) -> None:
    """Mark the epochs before which the learning rate at least halves."""
    rate = next((line.bands["lr"] for line in lines if "lr" in line.bands), Band((), (), None))
    for epoch, before, now in zip(rate.x[1:], rate.mean, rate.mean[1:], strict=False):
        if now <= before / 2:
            ax.axvline(epoch - 0.5, color="0.6", linestyle=":", linewidth=0.7, zorder=1)


def _draw_chance(ax: Axes, lines: Sequence[Line], key: str) -> None:
    """Draw what the best row would show if it were calibrated: chance is the largest part of its error."""
    known = [line for line in lines if f"{key}_if_calibrated" in line.bands]
    if known:
        best = min(known, key=lambda line: np.interp(15, *line.bands["ece"][:2]))
        chance = best.bands[f"{key}_if_calibrated"]
        label = f"{best.label} if calibrated"
        (drawn,) = ax.plot(chance.x, 100 * np.array(chance.mean), color="0.4", linewidth=0.8, zorder=2.5, label=label)
        tell(drawn, best.label, "if calibrated")


def log_axis(ax: Axes, name: Literal["x", "y"]) -> None:
    """Make an axis logarithmic around its lines, with ticks at 1, 2, 5, 10 and so on; not where no value is above zero."""
    from matplotlib.ticker import LogLocator, NullLocator

    values = np.concatenate([np.asarray(line.get_data()[name == "y"], dtype=float) for line in ax.get_lines()])
    # What is nearly zero runs out of the axis and does not stretch it; a band that comes close to zero is cut off.
    held = values[values > 1e-3 * values.max()]
    if len(held):
        ax.set(**{f"{name}scale": "log"})
        axis = getattr(ax, f"{name}axis")
        ax.set(**{f"{name}lim": (max(axis.get_view_interval()[0], held.min() / 2), None)})
        axis.set(major_locator=LogLocator(subs=(1, 2, 5)), major_formatter="{x:g}", minor_locator=NullLocator())


class TradeoffPoint(NamedTuple):
    """A row's place: error and ECE over its seeds.

    ``best`` says whether it is on the Pareto front: no other row that had as many training examples is as good in both and
    better in one. A part of a test set may be an easy one, so a row of fewer test examples is not on it.
    """

    row: Row
    error: Mean
    ece: Mean
    best: bool

    @property
    def label(self) -> str:
        """That of its row."""
        return self.row.label

    def beats(self, other: TradeoffPoint) -> bool:
        """Whether it is as good in both, and better in one, with as many training examples."""
        own, theirs = ((point.error.mean, point.ece.mean) for point in (self, other))
        return trained_alike(self.row, other.row) and own != theirs and own[0] <= theirs[0] and own[1] <= theirs[1]


def prepare_tradeoff(rows: Sequence[Row]) -> list[TradeoffPoint]:
    """Take error and ECE of all rows that have both, and find the Pareto front of each number of training examples."""
    placed = [row for row in rows if all(math.isfinite(row.mean(key)) for key in ("error", "ece"))]
    most = max((row.examples or 0 for row in placed), default=0)
    points = [TradeoffPoint(row, row.cells["error"], row.cells["ece"], row.examples == most) for row in placed]
    rivals = [point for point in points if point.best]
    return [point._replace(best=point.best and not any(rival.beats(point) for rival in rivals)) for point in points]


def draw_tradeoff(points: Sequence[TradeoffPoint], *, title: str | None = None, legend: bool = True) -> Figure:
    """Draw ECE against error in per cent, a point a row, with the Pareto front.

    The stepped line joins the rows that no other row beats in both, for each number of training examples. Bars are standard
    deviations over seeds. An error above three times the lowest lies at the right edge, and the legend tells it.

    Reference:
        Wang and Golebiowski, TMLR 2024, appendix (predictive-calibration trade-off).
    """
    # On a page, which has the names beside it, two figures stand side by side.
    with print_figure(*((TEXT_WIDTH, 3.4) if legend and len(points) > 6 else (COLUMN_WIDTH, 2.7))) as figure:
        ax = figure.subplots()
        errors = [point.error.mean for point in points]
        edge = 104 * max(error for error in errors if error <= 3 * min(errors)) or math.inf
        for point in points:
            _draw_point(ax, point, edge)
        ax.set(xlabel="test error (%)", ylabel="test ECE (%)")
        ax.margins(0.08)
        log_axis(ax, "y")
        ax.autoscale(False)
        best = [point for point in points if point.best]
        amounts: Sequence[int | None] = sorted({point.row.trained or 0 for point in best} - {0}) or [None]
        for amount, line in zip(amounts, cycle(("--", ":", "-.")), strict=False):
            on = [point for point in best if point.row.trained in (amount, None)]
            front = sorted((100 * point.error.mean, 100 * point.ece.mean) for point in on)
            # To the edges of the figure and beyond: what is as bad as that in one is beaten by the ends of the front.
            x, y = zip((front[0][0], 1000), *front, (1000, front[-1][1]), strict=True)
            label = f"Pareto front{f' ({amount:,})' if len(amounts) > 1 else ''}"
            ax.step(x, y, where="post", color="0.35", linewidth=0.9, linestyle=line, zorder=2, label=label)
        ax.grid()
        if legend:
            add_legend(figure, title, "mean ± std over seeds" if any(point.error.std is not None for point in points) else "")
    return figure


def _draw_point(ax: Axes, point: TradeoffPoint, edge: float) -> None:
    x, y = 100 * point.error.mean, 100 * point.ece.mean
    look = point.row.style.options() | {"linestyle": "none", "markersize": 6.5 if point.best else 5}
    look |= {"label": point.row.legend + f" ({x:.1f}% error →)" * (x > edge), "elinewidth": 0.7, "capsize": 1.5, "zorder": 4}
    stds = [None if std is None else 100 * std for std in (point.ece.std, point.error.std)]
    drawn = ax.errorbar(min(x, edge), y, yerr=stds[0], xerr=None if x > edge else stds[1], **look)
    seeds = len(point.error.values)
    runs = f"mean of {seeds} seeds" if seeds > 1 else "one run"
    rank = "no method beats it in both" if point.best else "another method beats it"
    for artist in drawn.get_children():
        tell(artist, point.label, f"error {x:.2f}%, ECE {y:.2f}%, {runs}; {rank}")


class GammaPanel(NamedTuple):
    """Confidence and gamma of the "right" and the "wrong" test examples of one run, and the `running_mean` of each."""

    label: str
    dots: Mapping[str, tuple[Array, Array]]
    means: Mapping[str, tuple[Array, Array]]


def prepare_gamma_confidence(rows: Sequence[Row], *, seed: int | None = None) -> list[GammaPanel]:
    """Read gamma and confidence of one run of each row that has a column ``gamma``: that of ``seed``, or else the last."""
    panels = []
    for row in rows:
        test = row.run(seed).test
        if test is None or "gamma" not in test.columns:
            continue
        gamma = np.asarray(test.columns["gamma"], dtype=np.float64)
        top = top_label(test, where="figure")
        parts = {"right": top.correct.numpy() == 1, "wrong": top.correct.numpy() != 1}
        dots = {name: (top.confidence.numpy()[part], gamma[part]) for name, part in parts.items()}
        panels.append(GammaPanel(row.label, dots, {name: running_mean(*part) for name, part in dots.items()}))
    return panels


def running_mean(confidence: Array, gamma: Array) -> tuple[Array, Array]:
    """Mean confidence and mean gamma of the examples in each fifth of a digit of 9 that holds at least five."""
    index = np.floor(5 * np.log10(unsureness(confidence))).astype(int)
    groups = [group for place in np.unique(index)[::-1] if (group := index == place).sum() >= 5]
    return np.array([confidence[group].mean() for group in groups]), np.array([gamma[group].mean() for group in groups])


def unsureness(confidence: Array) -> Array:
    """Where a confidence lies on the figure's axis: how much of 1 it misses."""
    return np.maximum(1 - confidence, _SMALLEST)


def draw_gamma_confidence(panels: Sequence[GammaPanel], *, title: str | None = None, columns: int = 3) -> Figure:
    """Draw gamma against confidence, a point an example, and the running means of right and wrong predictions.

    The axis of confidence is stretched towards 1, where most examples of a good classifier lie.
    """
    wide = min(columns, len(panels))
    deep = -(-len(panels) // wide)
    width = COLUMN_WIDTH if wide == 1 else TEXT_WIDTH
    with print_figure(width, 0.35 + deep * (2.2 if wide < 3 else 1.9)) as figure:
        for place, panel in enumerate(panels):
            ax = figure.add_subplot(deep, wide, place + 1)
            _draw_points(ax, panel)
            ax.set(xscale="log", xlabel="confidence", ylabel="γ", title=fold_text(panel.label, width / wide - 0.4))
            ax.invert_xaxis()
            ax.minorticks_off()
            ax.xaxis.set_major_formatter(lambda missing, _: f"{1 - missing:g}")
            ax.grid()
        add_legend(figure, title)
        for handle in figure.legends[0].legend_handles:
            # Ten thousand faint points make a cloud; one of them alone would not be seen.
            handle.set(alpha=1.0, markersize=4)  # type: ignore[union-attr]
    return figure


def _draw_points(ax: Axes, panel: GammaPanel) -> None:
    # Wrong predictions are few, so that they are drawn over the right ones, and larger.
    faint = min(max(1500 / max(len(panel.dots["right"][0]), 1), 0.15), 0.6)
    for name, color, marker, size, alpha in (("right", "sky", ".", 1.5, faint), ("wrong", "vermillion", "x", 2.5, 0.6)):
        x, y = panel.dots[name]
        look: dict[str, Any] = {"color": PALETTE[color], "marker": marker, "markersize": size, "markeredgewidth": 0.5}
        # As dots: ten thousand vectors would make a slow page.
        ax.plot(unsureness(x), y, linestyle="none", alpha=alpha, rasterized=True, label=name, **look)
    for name, color, line in (("right", "blue", "-"), ("wrong", "black", "--")):
        x, y = panel.means[name]
        if len(x):
            ax.plot(unsureness(x), y, color="white", linewidth=2.6, zorder=3)
            look = {"color": PALETTE[color], "linestyle": line, "linewidth": 1.4, "marker": "o", "markersize": 2.5}
            ax.plot(unsureness(x), y, zorder=4, label=f"{name}, mean", **look)


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
        >>> from calibrant.core.records import Entry
        >>> from calibrant.report.rows import group_rows
        >>> test = Predictions(probs=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]] * 40, labels=[0, 1, 1] * 40)
        >>> rows = group_rows([Entry("coins", "ce", measure(test), test=test)])[0].rows
        >>> figure = draw_reliability_grid(prepare_reliability(rows, n_bins=10))
        >>> figure.axes[1].get_xlabel()
        'confidence\nCE (33.33%)\nECE 33.33%'

    Reference:
        DeGroot and Fienberg, The Statistician 1983; the layout follows Wang and Golebiowski, TMLR 2024, figure 2.
    """
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
    with print_figure(width, 0.6 + deep * row) as figure:
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


def draw_monitor(watched: Watched) -> Figure:
    """Draw calibration error and bias with their intervals, and the evidence with the line of the alarm."""
    windows, at = watched.windows, range(len(watched.windows))
    key, _ = windows[0].scores.main_error
    look = {"marker": "o", "markersize": 2.5}
    with print_figure(TEXT_WIDTH, 5.2) as figure:
        ece, gap, evidence = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
        for ax, found in ((ece, [window.scores[key] for window in windows]), (gap, [window.bias for window in windows])):
            value, low, high = 100 * np.array(found, dtype=float).T
            ax.fill_between(at, low, high, color=PALETTE["sky"], alpha=0.35, linewidth=0, label="95 % interval")
            ax.plot(at, value, color=PALETTE["blue"], **look)
        chance = [100 * window.scores.main_error[1].p95 for window in windows]
        ece.plot(at, chance, color="0.5", linestyle="--", label="a calibrated model, 95 of 100 times")
        ece.set(ylabel=metric_column(key).heading, ylim=(0, None))
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


@dataclass(frozen=True)
class FigureKind:
    """One kind of figure."""

    prepare: Callable[..., Sequence[Any]]  # returns one record, with a ``label``, for each row of a group that has the data
    draw: Callable[..., Figure]  # draws these records under a title
    needs: str  # what a row must have to be shown
    title: str = ""  # heading on a page
    about: str = ""  # text below the heading
    choices: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # of a reader → options of ``draw``; none: no page
    least: int = 1  # fewest records worth drawing
    of_run: bool = False  # whether ``prepare`` takes the ``seed`` of the run to show of each row
    of_bins: bool = False  # whether ``prepare`` takes ``n_bins``; there is then one figure per number of bins


FIGURES: dict[str, FigureKind] = {
    # Pages have diagrams of their own, with a slider for the bins.
    "reliability": FigureKind(
        prepare_reliability,
        draw_reliability_grid,
        "test predictions, or as many bins in its record",
        "Reliability diagrams",
        "Bars are the accuracy of a bin, hatched parts its gap to the mean confidence, thin lines 95 % intervals: one that "
        "crosses the diagonal is no sign of an error.",
        of_run=True,
        of_bins=True,
    ),
    "tradeoff": FigureKind(
        prepare_tradeoff,
        draw_tradeoff,
        "two rows or more with an error and an ECE",
        "Error against calibration error",
        "Lower left is best. The stepped line joins the methods that no other beats in both; each number of training examples "
        "has a line of its own. Bars are standard deviations over seeds.",
        {"": {"legend": False}},
        least=2,
    ),
    "robustness": FigureKind(
        prepare_robustness,
        partial(draw_lines, keys=("ece", "mce")),
        "test predictions or errors by number of bins",
        "Binned error against the number of bins",
        "With more bins, each holds fewer examples, and chance alone raises the error of any model. The thin grey line is what "
        "a calibrated model would show.",
        {key.upper(): {"keys": (key,), "legend": False} for key in ("ece", "mce")},
    ),
    "curves": FigureKind(
        prepare_curves,
        partial(draw_lines, keys=("test_ece", "test_error")),
        "a history of training",
        "Learning curves",
        "Lines are means over the seeds, bands one standard deviation; dotted lines are drops of the learning rate. A run that "
        "averages its weights shows the averaged network. Tables are about the epoch that a run kept (train.select), which "
        "need not be its last.",
        {PANELS[key][0].removesuffix(" (%)"): {"keys": (key,), "legend": False} for key in CURVES},
    ),
    "gamma-epochs": FigureKind(
        prepare_gamma_epochs,
        partial(draw_lines, keys=("gamma",)),
        "a gamma in its history",
        "Gamma while training",
        "The line is the mean over the test examples, the band the spread over them, narrow where all share one gamma.",
        {"": {"legend": False}},
    ),
    "gamma-confidence": FigureKind(
        prepare_gamma_confidence,
        draw_gamma_confidence,
        "test predictions with a column `gamma`",
        "Gamma against confidence",
        "Each dot is a test example; lines are running means. The axis is stretched towards 1, where a good classifier has "
        "most of its examples.",
        {"": {"columns": 1}},
        of_run=True,
    ),
}


class Drawing(NamedTuple):
    """What `draw_all` did: the files written, and why a figure was not drawn, by its name."""

    files: list[Path]
    skipped: dict[str, str]


def draw_all(
    entries: Sequence[Entry],
    out_folder: str | Path,
    *,
    n_bins: Sequence[int] = GRID_BINS,
    seed: int | None = None,
    kinds: Sequence[str] = ("png", "pdf"),
) -> Drawing:
    """Write every figure that the runs allow, as PNG and PDF: one set for each data set and network.

    Args:
        entries: Runs and predictions of any number of data sets.
        out_folder: Where the files go; made if it is not there.
        n_bins: Numbers of bins, for each of which there is a grid of reliability diagrams.
        seed: Seed of the run that figures of a single run show, or the row's last run if it has none; by default the highest
            seed that all rows have.
        kinds: Endings of the files to write.

    Returns:
        The files, and the reason for each figure that could not be drawn. Raises ``ValueError`` if there are no entries.

    Example:
        >>> import tempfile
        >>> from calibrant import Predictions, measure
        >>> test = Predictions(probs=[[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]] * 40, labels=[0, 1, 1] * 40)
        >>> done = draw_all([Entry("coins", "ce", measure(test), test=test)], tempfile.mkdtemp(), n_bins=(10,))
        >>> [file.name for file in done.files if file.suffix == ".pdf"]
        ['reliability-coins-10bins.pdf', 'robustness-coins.pdf']
        >>> done.skipped["curves-coins"]
        'needs a history of training'
    """
    for number in n_bins:
        check_count(number, where="draw_all", name="n_bins")
    groups = group_rows(entries)
    folder = Path(out_folder)
    folder.mkdir(parents=True, exist_ok=True)
    done = Drawing([], {})
    for group in groups:
        shown_seed = group.common_seed if seed is None else seed
        for name, kind in FIGURES.items():
            for bins in n_bins if kind.of_bins else [None]:
                stem = figure_stem(name, group.data, group.model) + ("" if bins is None else f"-{bins}bins")
                records = _records(kind, group, seed=shown_seed, n_bins=bins)
                if len(records) < kind.least:
                    done.skipped[stem] = f"needs {kind.needs}"
                    continue
                title = _title(kind, group, seed=shown_seed, n_bins=bins)
                done.files.extend(save_figure(kind.draw(records, title=title), folder / stem, kinds=kinds))
    return done


def _records(kind: FigureKind, group: Section, *, seed: int | None, n_bins: int | None = None) -> Sequence[Any]:
    chosen: dict[str, int | None] = {"seed": seed} if kind.of_run else {}
    return kind.prepare(group.rows, **(chosen | ({"n_bins": n_bins} if kind.of_bins else {})))


def _title(kind: FigureKind, group: Section, *, seed: int | None, n_bins: int | None) -> str:
    seeds = {row.run(seed).seed for row in group.rows} - {None}
    said = [f"seed {seeds.pop()}"] if kind.of_run and len(seeds) == 1 else []
    return ", ".join([group.title, *said, *([] if n_bins is None else [f"{n_bins} bins"])])


def page_charts(groups: Sequence[Section]) -> list[dict[str, object]]:
    """The figures of runs as pictures in a page, one panel each and without legends of rows.

    A chart has a picture (``svg``) for each ``choice`` of a reader and each group (``place``, its number).
    """
    view: list[dict[str, object]] = []
    for name, kind in FIGURES.items():
        pictures = []
        for place, group in enumerate(groups if kind.choices else ()):
            records = _records(kind, group, seed=group.common_seed)
            for number, (choice, options) in enumerate(kind.choices.items()):
                shown = [record for record in records if all(key in record.bands for key in options.get("keys", ()))]
                if len(shown) >= kind.least:
                    label = f"{kind.title}{f': {choice}' if choice else ''}, {group.title}."
                    svg = svg_element(kind.draw(shown, **options), name=f"{name}-{place}-{number}", label=label)
                    pictures.append({"place": place, "choice": choice, "svg": svg})
        if pictures:
            choices = [choice for choice in kind.choices if choice in {picture["choice"] for picture in pictures}]
            view.append({"name": name, "title": kind.title, "about": kind.about, "choices": choices, "pictures": pictures})
    return view


def swatch(row: Row, name: str) -> str:
    """The line and marker of a row as a small picture, for the legend of a page."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    with print_style():
        figure = Figure(figsize=(0.42, 0.14))
        figure.add_artist(Line2D((0.05, 0.5, 0.95), (0.5, 0.5, 0.5), markevery=[1], **row.style.options()))
    return svg_element(figure, name=name, label="")
