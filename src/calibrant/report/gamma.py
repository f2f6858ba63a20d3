"""The learned gamma of focal losses: its mean and spread over the epochs, and its value per example against confidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from calibrant.core.summary import top_labels
from calibrant.metrics.diagram import PALETTE
from calibrant.report.bands import Band, band_of, draw_shared_legend, epoch_axis, plain_ticks, wide_figure
from calibrant.report.rows import Row
from calibrant.report.style import COLUMN_WIDTH, TEXT_WIDTH, fold_label, print_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

# Most confidences of a good classifier lie within a hundredth of 1, so that the axis is stretched there; 1 itself lies where
# 1 - 0.0001 would lie on a logarithmic axis of the missing part.
_SMALLEST = 1e-4
_TICKS = (0.5, 0.9, 0.99, 0.999, 1.0)
# Length on that axis, and least number of examples, of one point of a running mean.
_STEP, _LEAST_GROUP = 0.2, 5
# Where one method's gamma grows so many times as large as another's, both are seen on a logarithmic axis only.
_APART = 20.0


@dataclass(frozen=True)
class GammaEpochs:
    """Gamma on the test examples over the epochs: for every row its mean, and its spread over examples (not over seeds)."""

    mean: tuple[Band, ...]
    std: tuple[Band, ...]


def prepare_gamma_epochs(rows: Sequence[Row]) -> GammaEpochs | None:
    """Read gamma's curves of all rows that have them; both are means over the seeds. None if no row has any.

    Rows that were repaired afterwards (``+ts``) would repeat the curve of their network before; they are left out.
    """
    mean, std = [], []
    for row in (row for row in rows if all(run.temperature is None for run in row.runs)):
        first = band_of(row, [run.curve("gamma_mean") for run in row.runs])
        second = band_of(row, [run.curve("gamma_std") for run in row.runs])
        if first is not None and second is not None and first.x == second.x:
            mean.append(first)
            std.append(second)
    return GammaEpochs(tuple(mean), tuple(std)) if mean else None


def draw_gamma_epochs(gamma: GammaEpochs, *, title: str | None = None) -> Figure:
    r"""Draw the mean of gamma on the test examples at each epoch, with a band of one standard deviation over the examples.

    A narrow band says that all examples share one gamma, a wide one that each has its own. With several seeds both are the
    seeds' means. Where one method's gamma grows twenty times as large as another's, the axis is logarithmic above that one's.

    Args:
        gamma: What to draw; see `prepare_gamma_epochs`.
        title: Text above the figure.

    Returns:
        A figure as wide as a column.

    Example:
        >>> from calibrant import Predictions, measure
        >>> from calibrant.core.entry import Entry
        >>> from calibrant.report.rows import group_rows
        >>> scores = measure(Predictions(probs=[[0.9, 0.1], [0.2, 0.8]], labels=[0, 0]))
        >>> history = [{"gamma_mean": 1.0, "gamma_std": 0.0}, {"gamma_mean": 1.5, "gamma_std": 0.25}]
        >>> rows = group_rows([Entry("coins", "flgamma-sece", scores, history=tuple(history))])[0].rows
        >>> figure = draw_gamma_epochs(prepare_gamma_epochs(rows))
        >>> figure.axes[0].get_lines()[0].get_ydata().tolist()
        [1.0, 1.5]

    Reference:
        Wang and Golebiowski, TMLR 2024, figure 3 (c-d).
    """
    with print_style():
        figure = wide_figure(1, height=2.4)
        ax = figure.subplots()
        for mean, std in zip(gamma.mean, gamma.std, strict=True):
            x, middle, spread = (np.array(values, dtype=float) for values in (mean.x, mean.mean, std.mean))
            every = max(1, len(x) // 8)
            ax.plot(x, middle, markevery=every, label=mean.label, zorder=3, **mean.style.line_options())  # type: ignore[arg-type]
            color = mean.style.color
            ax.fill_between(x, middle - spread, middle + spread, color=color, alpha=0.2, linewidth=0, zorder=2)
        ax.set_ylabel(r"$\gamma$ on test examples")
        ax.grid(axis="y")
        _scale_gamma(ax, gamma)
        epoch_axis(ax)
        least, most = (end(band.seeds for band in gamma.mean) for end in (min, max))
        several = f", {most if least == most else f'{least} to {most}'} seeds" if most > 1 else ""
        note = f"mean ± std over examples{several}"
        draw_shared_legend(figure, title="\n".join(said for said in (title, note) if said))
    return figure


def _scale_gamma(ax: Axes, gamma: GammaEpochs) -> None:
    """Make the axis logarithmic, but for its part around zero, where the methods' gammas differ by factors."""
    peaks = [peak for band in gamma.mean if 0 < (peak := max(map(abs, band.mean))) < math.inf]
    if not peaks or max(peaks) <= _APART * min(peaks):
        return
    power = math.floor(math.log10(min(peaks)))
    bottom, top = ax.get_ylim()
    ax.set_yscale("symlog", linthresh=10.0**power)
    ax.set_ylim(bottom if min(min(band.mean) for band in gamma.mean) < 0 else 0.0, 1.5 * top)
    decades = [10.0**k for k in range(power, math.ceil(math.log10(1.5 * top)))]
    plain_ticks(ax.yaxis, [*(-decade for decade in reversed(decades)), 0.0, *decades])


@dataclass(frozen=True)
class GammaPanel:
    """Gamma of every test example of one run.

    Attributes:
        label: The method.
        confidence: Confidence of every example.
        gamma: Its gamma.
        correct: Whether its prediction is right.
        means: For right and for wrong predictions, the mean confidence and mean gamma of neighbouring examples.
    """

    label: str
    confidence: Array
    gamma: Array
    correct: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    means: dict[bool, tuple[Array, Array]]


def prepare_gamma_confidence(rows: Sequence[Row], *, seed: int | None = None) -> list[GammaPanel]:
    """Read gamma and confidence of one run of each row that has a column ``gamma``.

    Args:
        rows: Rows of one data set.
        seed: Which run of a row; its last one if it has none of this seed, or by default.

    Returns:
        One panel a row; empty if no row has gammas.
    """
    panels = []
    for row in rows:
        test = row.run(seed).test
        if test is None or "gamma" not in test.columns:
            continue
        gamma = np.asarray(test.columns["gamma"], dtype=np.float64)
        top = top_labels(test)
        confidence, correct = top.confidence.numpy(), top.correct.numpy() == 1
        means = {right: running_mean(confidence[correct == right], gamma[correct == right]) for right in (True, False)}
        panels.append(GammaPanel(row.label, confidence, gamma, correct, means))
    return panels


def running_mean(confidence: Array, gamma: Array) -> tuple[Array, Array]:
    """Mean confidence and mean gamma of the examples in each interval of the figure's axis that holds at least five.

    Example:
        >>> [values.tolist() for values in running_mean(np.array([0.5, 0.99] * 5), np.array([1.0, 2.0] * 5))]
        [[0.5, 0.99], [1.0, 2.0]]
    """
    index = np.floor(stretch(confidence) / _STEP).astype(int)
    groups = [index == place for place in np.unique(index)]
    kept = [group for group in groups if group.sum() >= _LEAST_GROUP]
    return np.array([confidence[group].mean() for group in kept]), np.array([gamma[group].mean() for group in kept])


def stretch(confidence: Array) -> Array:
    """Where a confidence lies on the figure's axis: as many digits of 9 as it has, up to four.

    Example:
        >>> stretch(np.array([0.0, 0.9, 0.99, 1.0])).round(2).tolist()
        [-0.0, 1.0, 2.0, 4.0]
    """
    # The axis goes on a little beyond 1, so that points at 1 are not cut in half.
    return -np.log10(1 - np.clip(confidence, 0, 1 + 0.5 * _SMALLEST) + _SMALLEST)


def _unstretch(place: Array) -> Array:
    return 1 + _SMALLEST - 10 ** -np.asarray(place)


def draw_gamma_confidence(panels: Sequence[GammaPanel], *, title: str | None = None) -> Figure:
    """Draw gamma against confidence, a point an example, and the running means of right and wrong predictions.

    The axis of confidence is stretched towards 1, where most examples of a good classifier lie.

    Args:
        panels: What to draw, at most three side by side; see `prepare_gamma_confidence`.
        title: Text above the figure.

    Returns:
        A figure as wide as a column for one panel, as wide as a page's text for more. Raises ``ValueError`` if there is none.

    Example:
        >>> panel = GammaPanel("mine", np.array([0.5, 0.9]), np.array([2.0, 1.0]), np.array([False, True]), {})
        >>> figure = draw_gamma_confidence([panel])
        >>> figure.axes[0].get_xlabel(), [line.get_xdata().tolist() for line in figure.axes[0].get_lines()]
        ('confidence', [[0.9], [0.5]])
    """
    from matplotlib.figure import Figure

    if not panels:
        raise ValueError("draw_gamma_confidence: `panels` must hold at least one run with gammas, got none.")
    wide = min(3, len(panels))
    deep = -(-len(panels) // wide)
    with print_style():
        size = (COLUMN_WIDTH if wide == 1 else TEXT_WIDTH, 0.35 + deep * (2.2 if wide < 3 else 1.9))
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(deep, wide, squeeze=False).flatten()
        least = min(float(panel.confidence.min()) for panel in panels)
        for place, (ax, panel) in enumerate(zip(axes, panels, strict=False)):
            _draw_points(ax, panel)
            ax.set(xlabel="confidence", ylabel=r"$\gamma$" if place % wide == 0 else "")
            _stretch_axis(ax, least)
            if len(panels) > 1:
                ax.set_title(fold_label(panel.label, 44 if wide == 2 else 28))
        for ax in axes[len(panels) :]:
            ax.remove()
        shown = title if len(panels) > 1 else ", ".join(said for said in (title, panels[0].label) if said)
        draw_shared_legend(figure, title=shown or None)
    return figure


def _stretch_axis(ax: Axes, least: float) -> None:
    ax.set_xscale("function", functions=(stretch, _unstretch))
    start = float(_unstretch(stretch(np.array(least)) - 0.1))
    ax.set_xlim(start, 1 + 0.2 * _SMALLEST)
    plain_ticks(ax.xaxis, [tick for tick in _TICKS if tick > start])


def _draw_points(ax: Axes, panel: GammaPanel) -> None:
    # Wrong predictions are few, so that they are drawn over the right ones, and larger.
    faint = float(np.clip(1500 / len(panel.gamma), 0.15, 0.7))
    looks = ((True, "right", PALETTE["sky"], ".", 1.5, faint), (False, "wrong", PALETTE["vermillion"], "x", 2.5, 0.6))
    for right, name, color, marker, size, alpha in looks:
        chosen = panel.correct == right
        ax.plot(
            panel.confidence[chosen],
            panel.gamma[chosen],
            linestyle="none",
            marker=marker,
            markersize=size,
            markeredgewidth=0.5,
            color=color,
            alpha=alpha,
            label=name,
            rasterized=True,  # ten thousand vectors would make a slow page
        )
    for right, name, color, line in ((True, "right", PALETTE["blue"], "-"), (False, "wrong", "black", (0, (3, 1)))):
        x, y = panel.means.get(right, ((), ()))
        if len(x):
            ax.plot(x, y, color="white", linewidth=2.6, zorder=3)
            ax.plot(
                x, y, color=color, linestyle=line, linewidth=1.4, marker="o", markersize=2.5, zorder=4, label=f"{name}, mean"
            )
    ax.grid()
