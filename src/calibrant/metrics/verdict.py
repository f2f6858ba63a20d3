"""How a measurement is shown: numbers as text, what they mean in a sentence, and the reliability diagram."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from calibrant.core.records import Bins, Estimate, Paired, PositiveClass, Scores
from calibrant.metrics.intervals import NORMAL_95, rate_interval
from calibrant.metrics.table import METRICS, Metric

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

# An error below the first is called slight, one above the second strong.
_SLIGHT, _STRONG = 0.02, 0.10
SIGNIFICANT = 0.05
# With fewer examples, not to see an error says little.
FEW = 200
# A repair that makes one of these worse has its price; one that makes two worse, or one for nothing, does harm.
_PRICES = ("error", "nll", "brier")
_UNLIKE = "The examples it was fitted on seem to be unlike these, or too few"
# The palette of Okabe and Ito, distinct for all common kinds of colour vision; a grey replaces its yellow, which is too light
# for lines on white paper.
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
# More bins have neither outlines nor hatching, and their intervals are a band: lines would hide what they are about.
_FEW_BINS = 20
Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def count_examples(n: int) -> str:
    """Write how many examples there are."""
    return f"{n:,} example" + ("" if n == 1 else "s")


def metric_of(key: str) -> Metric:
    """Return the metric ``key``; one that only an old record knows is called by its key."""
    return METRICS[key] if key in METRICS else Metric(lambda *_: torch.tensor(math.nan), label=key.replace("_", " "))


def table_rows(keys: Iterable[str]) -> list[tuple[str, Metric, bool]]:
    """Key and metric in the order of tables, and whether a new group of metrics begins; unknown ones come last."""
    given = list(keys)
    metrics = {key: metric_of(key) for key in sorted(given, key=[*METRICS, *given].index)}
    groups = [metric.group for metric in metrics.values()]
    begins = [before != group for before, group in zip(groups[:1] + groups, groups, strict=False)]
    return list(zip(metrics, metrics.values(), begins, strict=True))


def judge(key: str, test: Paired) -> str:
    """Say in a word or two what a difference means: "better", "worse", "higher", "lower", "same" or "unclear"."""
    if test.low == test.high == 0:
        return "same"
    if test.difference == 0 or not test.p_value < SIGNIFICANT:
        return "unclear"
    words = {"lower": ("better", "worse"), "higher": ("worse", "better"), None: ("lower", "higher")}
    return words[metric_of(key).better][test.difference > 0]


def write_value(value: float, unit: str, *, signed: bool = False) -> str:
    """Write a fraction in per cent, any other number with four digits after the point."""
    sign = "+" if signed else ""
    if not math.isfinite(value):
        return {math.inf: f"{sign}inf", -math.inf: "−inf"}.get(value, "n/a")
    text = f"{100 * value:{sign}.2f}%" if unit == "%" else f"{value:{sign}.4f}"
    # What rounds to nothing has no direction.
    return text.replace("-", "−") if any(digit in text for digit in "123456789") else text.lstrip("+-")


def write_interval(estimate: Estimate | Paired, unit: str, *, signed: bool = False) -> str:
    """Write the two ends of an interval, in the unit of its value."""
    ends = [write_value(end, unit, signed=signed).removesuffix("%") for end in (estimate.low, estimate.high)]
    return f"{ends[0]} – {ends[1]}"


def write_estimate(estimate: Estimate | Paired, metric: Metric, *, signed: bool = False) -> tuple[str, str]:
    """Write a value, or a difference, and its interval; always with a sign where the sign is the direction."""
    signed = signed or metric.better is None
    return write_value(estimate[0], metric.unit, signed=signed), write_interval(estimate, metric.unit, signed=signed)


def write_p(p_value: float) -> str:
    """Write a p-value, never as zero, without digits that mean nothing."""
    if not math.isfinite(p_value):
        return "p = n/a"
    return "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}" if p_value < 0.1 else f"p = {p_value:.2f}"


def is_miscalibrated(scores: Scores) -> bool:
    """Whether chance alone would hardly show a calibration error as large as this."""
    return scores.main_error[1].p_value < SIGNIFICANT


def direction(scores: Scores) -> str:
    """Return "over-confident", "under-confident", "over- and under-confident" (in different places) or "no clear error".

    With two classes: "too often", "too rarely" or "too often and too rarely", of the positive one.
    """
    gap = scores["signed_gap" if scores.positive is None else "binary_gap"]
    if not is_miscalibrated(scores):
        return "no clear error"
    if gap.low <= 0 <= gap.high:
        return "over- and under-confident" if scores.positive is None else "too often and too rarely"
    words = ("under-confident", "over-confident") if scores.positive is None else ("too rarely", "too often")
    return words[gap.value > 0]


def verdict(scores: Scores) -> str:
    """Say in one sentence what the measurement means."""
    (key, null), positive, said = scores.main_error, scores.positive, direction(scores)
    ece, mean, p95 = (write_value(value, "%") for value in (scores[key].value, null.mean, null.p95))
    what = "ECE" if positive is None else f"calibration error of {positive.probability}"
    if not is_miscalibrated(scores):
        opening = "Too few examples to see an error" if scores.n < FEW else "No sign of miscalibration"
        shown = f"a perfectly calibrated model shows on {count_examples(scores.n)} ({mean} on average, rarely over {p95})"
        return f"{opening}: {'a' if positive else 'an'} {what} of {ece} is what {shown}."
    chance = f"{ece} where a calibrated model would show {mean} ({write_p(null.p_value)})."
    if positive is not None:
        return f"{_tell_place(positive, said)} The {what} is {chance}"
    accuracy = 1 - scores["error"].value
    sure, right = (f"{100 * value:.1f}%" for value in (accuracy + scores["signed_gap"].value, accuracy))
    strength = "slightly " if scores[key].value < _SLIGHT else "strongly " if scores[key].value > _STRONG else ""
    opening = strength + said.replace("over- and under-confident", "over-confident here and under-confident there")
    return f"{opening.capitalize()}: {sure} sure on average, {right} right; the ECE is {chance}"


def _tell_place(positive: PositiveClass, said: str) -> str:
    """Say how far predictions of the positive class are off on average, and where most; ``said`` is its `direction`."""
    predicted, observed = write_percent(positive.predicted), write_percent(positive.observed)
    how = said.replace("too often and too rarely", "too often here and too rarely there")
    told = f"Predicts {positive.name or 'the positive class'} {how}: {predicted} on average, {observed} observed"
    if said == "too often" and positive.predicted >= 1.1 * positive.observed > 0:
        told += f" ({positive.predicted / positive.observed:.1f} times as much)"
    bins = positive.bins
    if not 1e-9 < positive.observed < 1 - 1e-9:
        return f"{told}. Every example has the same label: look at where the labels come from."
    if not bins.count.numel():
        return f"{told}."
    worst = int((bins.weight * bins.gap.abs()).argmax())
    low, high = (f"{100 * float(edge):.0f}" for edge in bins.edges[worst : worst + 2])
    there, happens = (write_percent(float(part[worst])) for part in (bins.confidence, bins.accuracy))
    lies = "goes the other way," if bins.gap[worst] * {"too often": 1, "too rarely": -1}.get(said, 0) < 0 else "lies"
    return f"{told}. The largest part of the error {lies} between {low} and {high}%: {there} predicted, {happens} observed."


def worst_slice(scores: Scores) -> str:
    """Name the group whose ECE stands out most above what a calibrated model would show there."""
    key, _ = scores.main_error
    name, worst = max(scores.slices.items(), key=lambda item: item[1][key].value - item[1].main_error[1].p95)
    if not is_miscalibrated(worst):
        return "none stands out: each could be that of a calibrated model"
    return f"{name} stands out most, with {metric_of(key).short or metric_of(key).label} {write_value(worst[key].value, '%')}"


def tell_effect(before: Scores, after: Scores, paired: Mapping[str, Paired]) -> str:
    """Say what a repair did to `Scores.main_error`, to follow the name of the repair."""
    key, _ = before.main_error
    it, test = f"the {metric_of(key).short or metric_of(key).label}", paired[key]
    was, to = (write_percent(scores[key].value) for scores in (before, after))
    clear, p = was != to and test.p_value < SIGNIFICANT, write_p(test.p_value)
    if clear and test.difference > 0:
        return f"makes {it} worse here: {to} ({p}). {_UNLIKE}; do not use it."
    if clear:
        told = f"brings {it} to {to}" + ("" if is_miscalibrated(after) else ", which can no longer be told from calibrated")
    else:
        told = f"leaves {it} at {to}" if was == to else f"changes {it} to {to}, a difference that chance explains ({p})"
    judged = {key: judge(key, paired[key]) for key in _PRICES if key in paired}
    worse, better = ([key for key in judged if judged[key] == how] for how in ("worse", "better"))
    for metric, key in ((metric_of(key), key) for key in worse or (not clear and better) or ["error"]):
        old, new = (write_value(scores[key].value, metric.unit) for scores in (before, after))
        told += f"; the {metric.label} goes from {old} to {new}" if old != new else ""
    if worse and (len(worse) > 1 or not clear):
        return f"{told}: this repair does harm. {_UNLIKE}; do not use it."
    if clear or better:
        return f"{told}."
    if not is_miscalibrated(before):
        return f"{told}: no repair is needed."
    return f"{told}: this repair does not help. {_UNLIKE}; fit on examples of the kind that is to be repaired."


def write_percent(value: float) -> str:
    """Write a share in percent: two digits for small ones, where they matter, else one.

    Example:
        >>> write_percent(0.0412), write_percent(0.412)
        ('4.12%', '41.2%')
    """
    return f"{100 * value:.{2 if abs(value) < 0.1 else 1}f}%"


def join_words(words: Sequence[str]) -> str:
    """Write an enumeration.

    Example:
        >>> join_words(["a", "b", "c"])
        'a, b and c'
    """
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else words[0]


def draw_reliability(
    bins: Bins, *, title: str, ax: Axes | None = None, probability: str = ""
) -> tuple[Figure | SubFigure | None, Axes]:
    """Draw a reliability diagram above the numbers of examples in its bins: of confidence, or of the named ``probability``."""
    import matplotlib.pyplot as plt
    from mpl_toolkits.axes_grid1 import make_axes_locatable

    if ax is None:
        _, ax = plt.subplots(figsize=(4.8, 5.8), layout="tight")
    below = make_axes_locatable(ax).append_axes("bottom", size="22%", pad=0.1, sharex=ax)
    draw_diagram(ax, bins, positive=bool(probability))
    draw_counts(below, bins, most=float(bins.count.max()))
    ax.set(ylabel="observed" if probability else "accuracy", title=title)
    ax.tick_params(labelbottom=False)
    ax.legend(loc="upper left", framealpha=0.8, edgecolor="none", fontsize="small")
    below.set(xlabel=probability or "confidence", ylabel="count")
    return ax.get_figure(), ax


_CONFIDENCE = ("accuracy", "gap: over-confident", "gap: under-confident")
_POSITIVE = ("observed", "predicted too often", "predicted too rarely")


def draw_diagram(ax: Axes, bins: Bins, intervals: Tensor | None = None, *, positive: bool = False) -> None:
    """Draw a bar for the accuracy of each filled bin, one for its gap to the mean confidence, and the diagonal.

    The accuracy of a calibrated model would lie on the diagonal, at the mean confidence. The bar of the gap stands on that of
    the accuracy if it is positive (over-confident), else it hangs inside. Bars of few examples are faint; see `known_share`.

    Args:
        ax: Axes to draw in.
        bins: Equal-width bins.
        intervals: Intervals of their accuracies; see `intervals_of`.
        positive: Whether the bins are of the probability of a positive class.
    """
    # The legend shows the first bar, so it must be the clearest.
    at = (-bins.count).argsort(stable=True)
    at = at[bins.count[at] > 0]
    left, width, accuracy, gap = (part[at].numpy() for part in (bins.edges[:-1], bins.edges.diff(), bins.accuracy, bins.gap))
    known, few = known_share(bins.count[at]), len(bins.count) <= _FEW_BINS
    # Hatching tells the gaps apart in grey.
    bars = (
        ("sky", None, accuracy >= 0, accuracy, 0 * accuracy),
        ("vermillion", "////", gap > 0, gap, accuracy),
        ("green", "....", gap < 0, gap, accuracy),
    )
    for name, (color, hatch, shown, height, bottom) in zip(_POSITIVE if positive else _CONFIDENCE, bars, strict=True):
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
    """How much is known of a bin of n examples, n / (n + 3.84): the weight of the data in Wilson's interval."""
    return (count / (count + NORMAL_95**2)).numpy()


def _tint(color: str, share: Array) -> Array:
    """The colour on white ``[M, 3]``. It covers what is below, so that a gap inside a bar looks as in the legend."""
    from matplotlib.colors import to_rgb

    return np.asarray(1 - share[:, None] * (1 - np.array(to_rgb(PALETTE[color]))))
