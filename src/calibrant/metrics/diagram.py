"""The reliability diagram that a streaming metric draws of itself, and the bars that every such diagram is made of.

Figures of comparisons live in `calibrant.report`; they use these bars.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from calibrant.core.records import Bins
from calibrant.metrics.intervals import NORMAL_95

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
# The palette of Okabe and Ito, distinct for all common kinds of colour vision, without its yellow, which is too light for lines
# on white paper, and with a grey.
PALETTE = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "blue": "#0072B2",
    "vermillion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#7F7F7F",
}
_ACCURACY, _OVER, _UNDER, _GREY = PALETTE["sky"], PALETTE["vermillion"], PALETTE["green"], "0.55"
# Narrower bars than this many to the axis show neither outline nor hatching.
_FEW = 50


def draw_reliability(bins: Bins, *, title: str, ax: Axes | None = None) -> tuple[Figure | SubFigure | None, Axes]:
    """Draw the accuracy of every confidence bin with its gap to the mean confidence, above the share of examples in it."""
    import matplotlib.pyplot as plt
    from mpl_toolkits.axes_grid1 import make_axes_locatable

    if ax is None:
        _, ax = plt.subplots(figsize=(4.8, 5.8), layout="tight")
    below = make_axes_locatable(ax).append_axes("bottom", size="22%", pad=0.1, sharex=ax)
    draw_gap_bars(ax, bins)
    ax.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    ax.set_title(title, fontsize=10)
    ax.tick_params(labelbottom=False)
    ax.legend(loc="upper left", fontsize=8.5, frameon=False)
    _draw_shares(below, bins)
    for panel in (ax, below):
        panel.spines[["top", "right"]].set_visible(False)
    return ax.get_figure(), ax


def draw_gap_bars(ax: Axes, bins: Bins, *, outline: float = 0.8) -> None:
    """Draw a bar of each filled bin's accuracy and, from its top to the mean confidence, a bar of the gap; and the diagonal.

    A point of the diagonal at the mean confidence is where the accuracy of a calibrated model would be. The gap is positive,
    and its bar stands on the accuracy's, where the accuracy is lower (over-confident); it hangs inside it where it is higher.
    Bars of few examples are faint, by `known_share`: a single example is no finding.

    Args:
        ax: Axes to draw in.
        bins: Equal-width bins.
        outline: Width of the bars' outlines in points. Without, or with more than 50 bins, gaps are not hatched either: what
            is narrower than the hatching shows none, and takes long to draw.
    """
    filled = (bins.count > 0).numpy()
    left, width = bins.edges[:-1].numpy()[filled], bins.edges.diff().numpy()[filled]
    accuracy, gap = bins.accuracy.numpy()[filled], bins.gap.numpy()[filled]
    few = outline > 0 and len(bins.count) <= _FEW
    line = outline if few else 0.0
    known = known_share(bins.count)[filled]
    # The legend shows the first bar, which is to be the clearest.
    order = (-known).argsort(kind="stable")
    left, width, accuracy, gap, known = (part[order] for part in (left, width, accuracy, gap, known))
    # Hatching tells the gaps apart in grey.
    for name, color, hatch, shown, height, bottom in (
        ("accuracy", _ACCURACY, None, accuracy >= 0, accuracy, 0 * accuracy),
        ("gap: over-confident", _OVER, "////", gap > 0, gap, accuracy),
        ("gap: under-confident", _UNDER, "....", gap < 0, gap, accuracy),
    ):
        if shown.any():
            places = {"width": width[shown], "bottom": bottom[shown], "align": "edge"}
            bars = ax.bar(left[shown], height[shown], **places, linewidth=line, label=name)
            for bar, part in zip(bars, known[shown], strict=True):
                bar.set_facecolor(_tint(color, part * (1 if hatch is None else 0.25 if few else 0.6)))
                bar.set_edgecolor("white" if hatch is None else _tint(color, part))
                bar.set_hatch(hatch if few else None)
    ax.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="perfect")


def known_share(count: Tensor) -> Array:
    """How much is known of bins of n examples, n / (n + 3.84): the weight of the data in Wilson's interval."""
    return (count / (count + NORMAL_95**2)).numpy()


def _tint(color: str, share: float) -> tuple[float, ...]:
    """The colour on white paper. It covers what is below, so that a gap inside a bar looks as its key does."""
    from matplotlib.colors import to_rgb

    return tuple(1 - share * (1 - part) for part in to_rgb(color))


def _draw_shares(ax: Axes, bins: Bins) -> None:
    left, width, share = bins.edges[:-1].numpy(), bins.edges.diff().numpy(), bins.weight
    top = float(share.max())
    ax.bar(left, share.numpy(), width=width, align="edge", color=_GREY, edgecolor="white", linewidth=0.4)
    for value, color, style, name in (
        (float(share @ bins.accuracy), _ACCURACY, "-", "mean accuracy"),
        (float(share @ bins.confidence), "black", ":", "mean confidence"),
    ):
        ax.vlines(value, 0, top, color=color, linestyle=style, linewidth=1.6, label=name)
    # Room for the legend above the highest bar.
    ax.set(xlabel="confidence", ylabel="share", ylim=(0, 1.5 * top))
    ax.legend(loc="upper left", fontsize=8, frameon=False, ncols=2, borderaxespad=0.0)
