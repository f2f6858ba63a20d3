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

from calibrant.core.binning import equal_width_bins, equal_width_edges, means_of_sums, one_vs_rest, summarize, top_label
from calibrant.core.checks import ArrayLike
from calibrant.core.records import Predictions, Scores, as_record
from calibrant.metrics.measure import class_scores
from calibrant.metrics.verdict import PALETTE, draw_diagram, known_share, metric_of, table_rows, verdict, write_estimate
from calibrant.report.figures import ReliabilityPanel, panel_of_bins
from calibrant.report.rows import styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["before_after", "compare", "confidence_histogram", "per_class", "reliability"]

# Probabilities (with labels), a record of both, or what `measure` found.
Drawable: TypeAlias = "ArrayLike | Predictions | Scores"
# Classes that `per_class` shows, if none are asked for.
_WORST = 4


def reliability(probs: Drawable, labels: ArrayLike | None = None, *, n_bins: int = 15, ax: Axes | None = None) -> Axes:
    """Draw a reliability diagram: the accuracy of every bin of confidence, its 95 % interval, and the gap to the confidence.

    In a binary problem it shows the probability of the positive class, and how often that class occurs.

    Args:
        probs: Probabilities ``[N, C]``, of the positive class ``[N]``, a `Predictions`, or `Scores` (then over their bins).
        labels: Class indices ``[N]``; only with an array of probabilities.
        n_bins: Number of equal-width bins.
        ax: Where to draw; a new figure by default.

    Example:
        >>> ax = reliability([[0.9, 0.1], [0.2, 0.8]], [0, 0])
        >>> ax.get_title()
        'binary ECE 45.00%'
    """
    panel, ax = _panel(probs, labels, n_bins=n_bins, where="plot.reliability"), _axes(ax)
    draw_diagram(ax, panel.bins, panel.intervals, positive=bool(panel.label))
    title = f"ECE {100 * panel.ece:.2f}%, error {100 * panel.error:.2f}%"
    if panel.label:
        return _finish(ax, xlabel=panel.label, ylabel="observed", title=f"binary ECE {100 * panel.ece:.2f}%")
    return _finish(ax, xlabel="confidence", ylabel="accuracy", title=title)


def confidence_histogram(probs: Drawable, labels: ArrayLike | None = None, *, n_bins: int = 20, ax: Axes | None = None) -> Axes:
    """Draw how many predictions of each confidence are right and wrong, with lines at the mean confidence and the accuracy.

    If the confidence is to the right of the accuracy, the model is over-confident on the whole. Arguments as in `reliability`.
    """
    bins, ax = _panel(probs, labels, n_bins=n_bins, where="plot.confidence_histogram", binary=False).bins, _axes(ax)
    left, width = bins.edges[:-1].numpy(), bins.edges.diff().numpy()
    right = (bins.count * bins.accuracy).numpy()
    look: dict[str, Any] = {"align": "edge", "edgecolor": "white", "linewidth": 0.4}
    ax.bar(left, right, width, color=PALETTE["sky"], label="right", **look)
    ax.bar(left, bins.count.numpy() - right, width, right, color=PALETTE["vermillion"], label="wrong", **look)
    ax.axvline(float(bins.weight @ bins.confidence), color="black", linestyle=":", label="mean confidence")
    ax.axvline(float(bins.weight @ bins.accuracy), color=PALETTE["blue"], label="accuracy")
    return _finish(ax, xlim=(0, 1), xlabel="confidence", ylabel="examples")


def per_class(
    probs: ArrayLike | Predictions,
    labels: ArrayLike | None = None,
    *,
    classes: Sequence[int] | None = None,
    n_bins: int = 15,
    ax: Axes | None = None,
) -> Axes:
    """Draw how often some classes occur against their probability, over all examples.

    In a binary problem, ``classes=[1]`` is the positive class.

    Args:
        probs: Probabilities ``[N, C]``, or a `Predictions`.
        labels: Class indices ``[N]``; only with an array of probabilities.
        classes: Indices of the classes; by default the four whose calibration error is largest.
        n_bins: Number of equal-width bins.
        ax: Where to draw; a new figure by default.
    """
    given = as_record(probs, labels, where="plot.per_class")
    summary = summarize(given, n_bins=n_bins, keep=None)
    shown = [entry.index for entry in class_scores(summary)][:_WORST] if classes is None else classes
    names, edges = given.class_names or range(given.num_classes), equal_width_edges(n_bins)
    panels = [panel_of_bins(means_of_sums(edges, *summary.by_class[:, k]), weighted=True, label=str(names[k])) for k in shown]
    return _draw_curves(panels, ax, xlabel="probability of the class", ylabel="frequency of the class")


def compare(
    models: Mapping[str, Drawable], labels: ArrayLike | None = None, *, n_bins: int = 15, ax: Axes | None = None
) -> Axes:
    """Draw the accuracy of several models against their confidence, a line each, with their ECE in the legend.

    Points of few examples are small. In a binary problem it shows the positive class, as `reliability` does.

    Args:
        models: Name → probabilities ``[N, C]``, `Predictions` or `Scores`.
        labels: Class indices ``[N]`` of all arrays of probabilities.
        n_bins: Number of equal-width bins.
        ax: Where to draw; a new figure by default.
    """
    own = {name: None if isinstance(said, Predictions | Scores) else labels for name, said in models.items()}
    panels = [_panel(said, own[name], n_bins=n_bins, where="plot.compare") for name, said in models.items()]
    probability = next((panel.label for panel in panels), "")
    names = {"xlabel": probability or "confidence", "ylabel": "observed" if probability else "accuracy"}
    return _draw_curves([panel._replace(label=name) for name, panel in zip(models, panels, strict=True)], ax, **names)


def before_after(
    before: Drawable, after: Drawable, labels: ArrayLike | None = None, *, n_bins: int = 15, ax: Axes | None = None
) -> Axes:
    """Draw what a repair did, for instance with the scores ``before`` and ``after`` that `calibrant.repair` returns."""
    return compare({"before": before, "after": after}, labels, n_bins=n_bins, ax=ax)


def scores_html(scores: Scores) -> str:
    """Return what notebooks show: the finding, a table of all numbers with their intervals, and a diagram."""
    from matplotlib.figure import Figure

    found = [(metric.label, *write_estimate(scores[key], metric)) for key, metric, _ in table_rows(scores)]
    table = _html_table(f"{scores.n:,} examples", ("value", "95% interval"), found)
    parts = [(name, f"{n:,g}", f"{error:.2%}", f"{ece:.2%}") for name, (n, error, ece) in scores.parts().items()]
    columns = ("examples", "error", metric_of(scores.main_error[0]).label)
    more = f"<details><summary>Classes and slices</summary>{_html_table('', columns, parts)}</details>"
    picture = ""
    if len(scores.bins.count):
        figure, buffer = Figure(figsize=(3.6, 3.6), layout="constrained"), io.BytesIO()
        reliability(scores, ax=figure.subplots())
        figure.savefig(buffer, format="png", dpi=110)
        content = base64.b64encode(buffer.getvalue()).decode()
        picture = f'<img alt="Reliability diagram" src="data:image/png;base64,{content}">'
    sides = f"<div style='display: flex; gap: 1.5em'><div>{table}</div><div>{picture}</div></div>"
    return f"<p>{escape(verdict(scores))}</p>{sides}{more if parts else ''}"


def _html_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first entry of a row is its name."""
    lines = [f"<th>{escape(name)}</th><td>{'</td><td>'.join(cells)}</td>" for name, *cells in [("", *columns), *rows]]
    return f"<table><caption>{title}</caption><tr>{'</tr><tr>'.join(lines)}</tr></table>"


def _axes(ax: Axes | None) -> Axes:
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(4.8, 4.8), layout="constrained")[1]


def _panel(said: Drawable, labels: ArrayLike | None, *, n_bins: int, where: str, binary: bool = True) -> ReliabilityPanel:
    """Bins of confidence; of a ``binary`` problem those of the positive class's probability, which is then the label."""
    positive, name = None, ""
    if isinstance(said, Scores):
        bins, weighted, positive = said.bins, said.weight is not None, said.positive
        if not len(bins.count):
            raise ValueError(f"{where}: `probs` must be scores with their bins, got scores without, as JSON keeps them.")
        if binary and positive is not None:
            bins, name = positive.bins, positive.probability
    else:
        given = as_record(said, labels, where=where)
        top, weighted = top_label(given, where=where), given.weights is not None
        if binary and given.num_classes == 2:
            top = one_vs_rest(given.probs, given.labels, given.weights, index=1)
            name = f"P({given.class_names[1] if given.class_names else 'positive'})"
        bins = equal_width_bins(top, n_bins=n_bins)
    return panel_of_bins(bins, weighted=weighted, label=name)


def _draw_curves(panels: Sequence[ReliabilityPanel], ax: Axes | None, **names: str) -> Axes:
    """Draw a line for each panel through its filled bins; points of many examples are larger."""
    ax, styles = _axes(ax), styles_of((panel.label, "") for panel in panels)
    for panel in panels:
        style, filled = styles[panel.label, ""], panel.bins.count > 0
        at = (panel.bins.confidence[filled].numpy(), panel.bins.accuracy[filled].numpy())
        ax.plot(*at, color=style.color, linestyle=style.line, label=f"{panel.label} (ECE {100 * panel.ece:.2f}%)")
        ax.scatter(*at, s=36 * known_share(panel.bins.count[filled]), color=style.color, marker=style.marker, zorder=3)
    ax.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, zorder=1)
    return _finish(ax, xlim=(0, 1), ylim=(0, 1), **names)


def _finish(ax: Axes, **names: Any) -> Axes:
    ax.set(**names)
    ax.legend(loc="upper left", framealpha=0.8, edgecolor="none", fontsize="small")
    return ax
