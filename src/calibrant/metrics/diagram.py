"""The reliability diagram: the bars that all of them are made of, and the one that a streaming metric draws of itself.

Figures of comparisons live in `calibrant.report`; they use these bars.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibrant.core.records import Bins
from calibrant.metrics.intervals import NORMAL_95, rate_interval

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
# More bins than these show neither outlines nor hatching, and their intervals as a band: lines would hide what they are about.
_FEW = 20


def draw_reliability(bins: Bins, *, title: str, ax: Axes | None = None) -> tuple[Figure | SubFigure | None, Axes]:
    """Draw a reliability diagram above the numbers of examples in its bins."""
    import matplotlib.pyplot as plt
    from mpl_toolkits.axes_grid1 import make_axes_locatable

    if ax is None:
        _, ax = plt.subplots(figsize=(4.8, 5.8), layout="tight")
    below = make_axes_locatable(ax).append_axes("bottom", size="22%", pad=0.1, sharex=ax)
    draw_diagram(ax, bins)
    draw_counts(below, bins, most=float(bins.count.max()))
    ax.set(ylabel="accuracy", title=title)
    ax.tick_params(labelbottom=False)
    ax.legend(loc="upper left", frameon=False, fontsize="small")
    below.set(xlabel="confidence", ylabel="count")
    return ax.get_figure(), ax


def draw_diagram(ax: Axes, bins: Bins, intervals: Tensor | None = None) -> None:
    """Draw a bar of each filled bin's accuracy and, from its top to the mean confidence, a bar of the gap; and the diagonal.

    A point of the diagonal at the mean confidence is where the accuracy of a calibrated model would be. The gap is positive,
    and its bar stands on the accuracy's, where the accuracy is lower (over-confident); it hangs inside it where it is higher.
    Bars of few examples are faint, by `known_share`: a single example is no finding.

    Args:
        ax: Axes to draw in.
        bins: Equal-width bins.
        intervals: Intervals of their accuracies; see `intervals_of`.
    """
    # The legend shows the first bar, which is to be the clearest.
    at = (-bins.count).argsort(stable=True)
    at = at[bins.count[at] > 0]
    left, width, accuracy, gap = (part[at].numpy() for part in (bins.edges[:-1], bins.edges.diff(), bins.accuracy, bins.gap))
    known, few = known_share(bins.count[at]), len(bins.count) <= _FEW
    # Hatching tells the gaps apart in grey.
    for name, color, hatch, shown, height, bottom in (
        ("accuracy", "sky", None, accuracy >= 0, accuracy, 0 * accuracy),
        ("gap: over-confident", "vermillion", "////", gap > 0, gap, accuracy),
        ("gap: under-confident", "green", "....", gap < 0, gap, accuracy),
    ):
        if shown.any():
            edge, fill = known[shown], 1 if hatch is None else 0.25 if few else 0.6
            colors = {"color": _tint(color, fill * edge), "edgecolor": "white" if hatch is None else _tint(color, edge)}
            look: dict[str, Any] = colors | {
                "align": "edge",
                "linewidth": 0.4 if few else 0,
                "hatch": hatch if few else None,
                "label": name,
            }
            ax.bar(left[shown], height[shown], width[shown], bottom[shown], **look)
    ax.plot([0, 1], [0, 1], color="black", linestyle="--", linewidth=1, label="perfect")
    if intervals is not None and few:
        look = {"color": "black", "linewidth": 0.8, "clip_on": False, "label": "95% interval"}
        ax.vlines(bins.confidence[at].numpy(), *intervals[at].T.numpy(), **look)
    elif intervals is not None:
        low, high = intervals[at].T.numpy()
        look = {"align": "edge", "color": "black", "alpha": 0.18, "linewidth": 0, "label": "95% interval"}
        ax.bar(left, high - low, width, low, **look)
    ax.set(xlim=(0, 1), ylim=(0, 1))


def draw_counts(ax: Axes, bins: Bins, *, most: float) -> None:
    """Draw the number of examples in every bin, on a logarithmic axis that holds up to ``most``."""
    ax.bar(bins.edges[:-1].numpy(), bins.count.numpy(), bins.edges.diff().numpy(), align="edge", color="0.55", linewidth=0)
    # Logarithmic, because most examples of a good classifier lie in the last bin, and the worst gaps where there are few.
    ax.set(yscale="log", ylim=(0.5, 2 * most), yticks=(1, 10 ** max(1, int(math.log10(most)))))
    ax.yaxis.set_major_formatter("{x:,g}")
    ax.minorticks_off()


def intervals_of(bins: Bins, *, scale: float = 1.0) -> Tensor:
    """Wilson's 95 % intervals of the accuracies ``[M, 2]``, nan for empty bins.

    Args:
        bins: The bins.
        scale: Independent examples to a unit of ``bins.count``: below one for examples of unequal weight.
    """
    rates = zip(bins.accuracy.tolist(), bins.count.tolist(), strict=True)
    ends = [rate_interval(rate, size=count * scale) if count else (math.nan, math.nan) for rate, count in rates]
    return torch.tensor(ends, dtype=torch.float64)


def known_share(count: Tensor) -> Array:
    """How much is known of bins of n examples, n / (n + 3.84): the weight of the data in Wilson's interval."""
    return (count / (count + NORMAL_95**2)).numpy()


def _tint(color: str, share: Array) -> Array:
    """The colour on white paper ``[M, 3]``. It covers what is below, so that a gap inside a bar looks as its key does."""
    from matplotlib.colors import to_rgb

    return np.asarray(1 - share[:, None] * (1 - np.array(to_rgb(PALETTE[color]))))
