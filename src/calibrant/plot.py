"""Diagrams for notebooks, drawn into axes of your own: ``calibrant.plot.reliability(probs, labels, ax=ax)``.

Functions take arrays of any library, a `Predictions` or `Scores`, draw into ``ax`` or a new figure, and return the axes.
Figures of whole comparisons, for print, are in `calibrant.report`.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, TypeAlias

from torch import Tensor

from calibrant.core.binning import equal_width_bins, top_label
from calibrant.core.checks import ArrayLike
from calibrant.core.records import Predictions, as_predictions
from calibrant.core.scores import Scores
from calibrant.core.summary import summarize
from calibrant.metrics.diagram import PALETTE, known_share
from calibrant.metrics.measure import class_scores
from calibrant.metrics.verdict import table_rows, verdict, write_estimate
from calibrant.report.reliability import ReliabilityPanel, draw_panel, intervals_of
from calibrant.report.rows import Style, styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["before_after", "compare", "confidence_histogram", "per_class", "reliability"]

# What the functions draw: probabilities with `labels`, a record that has both, or what `measure` found.
Said: TypeAlias = "ArrayLike | Predictions | Scores"
# Classes that `per_class` shows, if none are asked for.
_WORST = 4


def reliability(probs: Said, labels: ArrayLike | None = None, *, n_bins: int = 15, ax: Axes | None = None) -> Axes:
    """Draw a reliability diagram: the accuracy of every bin of confidence, its 95 % interval, and the gap to the confidence.

    Args:
        probs: Probabilities ``[N, C]``, a `Predictions`, or `Scores` (then over the bins that these have).
        labels: Class indices ``[N]``; only with an array of probabilities.
        n_bins: Number of equal-width bins.
        ax: Where to draw; a new figure by default.

    Example:
        >>> ax = reliability([[0.9, 0.1], [0.2, 0.8]], [0, 0])
        >>> ax.get_title()
        'ECE 45.00%, error 50.00%'
    """
    panel, ax = _panel(probs, labels, n_bins=n_bins, where="plot.reliability"), _axes(ax)
    draw_panel(ax, panel)
    ax.set(xlabel="confidence", ylabel="accuracy", title=f"ECE {100 * panel.ece:.2f}%, error {100 * panel.error:.2f}%")
    ax.legend(loc="upper left", frameon=False, fontsize="small")
    return ax


def confidence_histogram(probs: Said, labels: ArrayLike | None = None, *, n_bins: int = 20, ax: Axes | None = None) -> Axes:
    """Draw how many predictions of each confidence are right and wrong, with mean confidence and accuracy.

    Where the line of the mean confidence is to the right of that of the accuracy, the model is over-confident on the whole.
    Arguments as in `reliability`.
    """
    bins, ax = _panel(probs, labels, n_bins=n_bins, where="plot.confidence_histogram").bins, _axes(ax)
    right = bins.count * bins.accuracy
    bars = {"right": (right, 0 * right, PALETTE["sky"]), "wrong": (bins.count - right, right, PALETTE["vermillion"])}
    for name, (height, bottom, color) in bars.items():
        look: dict[str, Any] = {"align": "edge", "color": color, "edgecolor": "white", "linewidth": 0.4, "label": name}
        left, width = bins.edges[:-1].numpy(), bins.edges.diff().numpy()
        ax.bar(left, height.numpy(), width=width, bottom=bottom.numpy(), **look)
    ax.axvline(float(bins.weight @ bins.confidence), color="black", linestyle=":", label="mean confidence")
    ax.axvline(float(bins.weight @ bins.accuracy), color=PALETTE["blue"], label="accuracy")
    ax.set(xlim=(0, 1), xlabel="confidence", ylabel="examples")
    ax.legend(loc="upper left", frameon=False, fontsize="small")
    return ax


def per_class(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    classes: Sequence[int] | None = None,
    n_bins: int = 15,
    ax: Axes | None = None,
) -> Axes:
    """Draw, for some classes, how often they occur against how probable the model finds them, over all examples.

    In a binary problem ``classes=[1]`` shows the probability of the positive class.

    Args:
        probs: Probabilities ``[N, C]``, or a `Predictions`.
        labels: Class indices ``[N]``; only with an array of probabilities.
        classes: Indices of the classes; by default the four whose calibration error is largest.
        n_bins: Number of equal-width bins.
        ax: Where to draw; a new figure by default.
    """
    given, ax = as_predictions(probs, labels, where="plot.per_class"), _axes(ax)
    summary = summarize(given, n_bins=n_bins, keep=None)
    found = {entry.index: entry for entry in class_scores(summary, names=given.class_names)}
    shown = [found[k] for k in (list(found)[:_WORST] if classes is None else classes)]
    styles = styles_of((entry.name, "") for entry in shown)
    for entry in shown:
        count, probability, times = (part[entry.index] for part in summary.by_class)
        label = f"{entry.name} ({100 * entry.ece:.2f}%)"
        _draw_curve(ax, count, probability / count, times / count, styles[entry.name, ""], label)
    return _finish(ax, xlabel="probability of the class", ylabel="frequency of the class")


def compare(models: Mapping[str, Said], labels: ArrayLike | None = None, *, n_bins: int = 15, ax: Axes | None = None) -> Axes:
    """Draw the accuracy of several models against their confidence, a line each, with their ECE in the legend.

    Points of few examples are small.

    Args:
        models: Name → probabilities ``[N, C]``, `Predictions` or `Scores`.
        labels: Class indices ``[N]`` of all arrays of probabilities.
        n_bins: Number of equal-width bins.
        ax: Where to draw; a new figure by default.
    """
    ax, styles = _axes(ax), styles_of((name, "") for name in models)
    for name, said in models.items():
        own = None if isinstance(said, Predictions | Scores) else labels
        panel = _panel(said, own, n_bins=n_bins, where="plot.compare")
        bins = panel.bins
        _draw_curve(ax, bins.count, bins.confidence, bins.accuracy, styles[name, ""], f"{name} (ECE {100 * panel.ece:.2f}%)")
    return _finish(ax, xlabel="confidence", ylabel="accuracy")


def before_after(
    before: Said, after: Said, labels: ArrayLike | None = None, *, n_bins: int = 15, ax: Axes | None = None
) -> Axes:
    """Draw what a repair did: `compare` of two, as of the scores ``before`` and ``after`` that `calibrant.repair` returns."""
    return compare({"before": before, "after": after}, labels, n_bins=n_bins, ax=ax)


def scores_html(scores: Scores) -> str:
    """Return what notebooks show of ``scores``: the finding, a table of all numbers with their intervals, and a diagram."""
    from matplotlib.figure import Figure

    found = [(metric.label, *write_estimate(scores[key], metric)) for key, metric, _ in table_rows(scores)]
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{value}</td><td>{interval}</td></tr>" for name, value, interval in found)
    table = f"<table><tr><th></th><th>value</th><th>95% interval</th></tr>{cells}</table>"
    picture = ""
    if len(scores.bins.count):
        figure, buffer = Figure(figsize=(3.6, 3.6), layout="constrained"), io.BytesIO()
        reliability(scores, ax=figure.subplots())
        figure.savefig(buffer, format="png", dpi=110)
        content = base64.b64encode(buffer.getvalue()).decode()
        picture = f'<img alt="Reliability diagram" src="data:image/png;base64,{content}">'
    return (
        f"<p>{escape(verdict(scores))}</p><div style='display: flex; gap: 1.5em'><div>{table}</div><div>{picture}</div></div>"
    )


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(4.8, 4.8), layout="constrained")[1]


def _panel(said: Said, labels: ArrayLike | None, *, n_bins: int, where: str) -> ReliabilityPanel:
    if isinstance(said, Scores):
        bins, weighted = said.bins, said.weight is not None
        if not len(bins.count):
            raise ValueError(f"{where}: `probs` must be scores with their bins, got scores without, as JSON keeps them.")
    else:
        given = as_predictions(said, labels, where=where)
        bins, weighted = equal_width_bins(top_label(given, where=where), n_bins=n_bins), given.weights is not None
    error, ece = float(1 - bins.weight @ bins.accuracy), float(bins.weight @ bins.gap.abs())
    return ReliabilityPanel("", error, ece, bins, None if weighted else intervals_of(bins))


def _draw_curve(ax: Axes, count: Tensor, x: Tensor, y: Tensor, style: Style, label: str) -> None:
    """Draw a line through the bins that hold examples; the larger a point, the more is known of it."""
    filled = count > 0
    at = (x[filled].numpy(), y[filled].numpy())
    ax.plot(*at, color=style.color, linestyle=style.line, linewidth=1.2)
    ax.scatter(*at, s=36 * known_share(count[filled]), color=style.color, marker=style.marker, zorder=3)
    ax.plot([], [], label=label, **style.options())


def _finish(ax: Axes, **names: str) -> Axes:
    ax.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, zorder=1)
    ax.set(xlim=(0, 1), ylim=(0, 1), **names)
    ax.legend(loc="upper left", frameon=False, fontsize="small")
    return ax
