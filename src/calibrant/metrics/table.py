"""The table of all metrics, one record each."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from torch import Tensor

from calibrant.core.binning import Summary, equal_mass_bins, norm_of_bins
from calibrant.core.checks import Registry
from calibrant.metrics import binned, intervals, kernel, scores
from calibrant.metrics import levels as of

__all__ = ["METRICS", "Metric"]


@dataclass(frozen=True)
class Metric:
    """One metric. Call it like its function. A metric of another package needs only a function and a label.

    Attributes:
        function: From ``(probs, labels)`` to a number; takes ``weights`` by name if it supports weighted examples.
        label: Name in tables and pages.
        short: Name where space is short; default: the label.
        meaning: What it says, in a few words.
        unit: "%" for a fraction shown in per cent, "nats", or "" for a plain number.
        better: Which direction is better; None if 0 is best and the sign matters.
        largest: Largest absolute value it can take.
        group: Part of the table it is listed in.
        is_score: Whether `calibrant.measure` and reports show it.
        compared: Whether the page of a comparison has a column for it.
        classwise: Whether it needs sums for every class, which a stream can leave out.
        is_calibration: Whether a calibrated model shows it by chance alone, which the paired test then allows for.
        positive: Whether it is about the probability of the positive class, and so about problems of two classes only.
        read: How it is read from the sums that all scores share (which makes it a streaming metric, too); without it the
            function is called with all examples.
        interval: How its 95 % interval is computed from those sums; default: a bootstrap of the function.
        of_levels: Its value on many resamples at once, for the paired test; default: the function on each of them.
        shrinks: Bins whose gaps the paired test shrinks by what chance added to them: of equal "width" or "mass", or of equal
            width where the "worst" one decides; default: none.

    Example:
        >>> import torch
        >>> wrong = Metric(lambda probs, labels: (probs.argmax(1) != labels).double().mean(), label="share of errors")
        >>> wrong(torch.tensor([[0.9, 0.1], [0.2, 0.8]]), torch.tensor([0, 0])).item()
        0.5
    """

    function: Callable[..., Tensor]
    label: str
    short: str = ""
    meaning: str = ""
    unit: Literal["%", "nats", ""] = ""
    better: Literal["lower", "higher"] | None = "lower"
    largest: float = 1.0
    group: Literal["positive class", "score", "top label", "other"] = "other"
    is_score: bool = True
    compared: bool = True
    classwise: bool = False
    is_calibration: bool = False
    positive: bool = False
    read: Callable[[Summary], Tensor] | None = None
    interval: intervals.Interval | None = None
    of_levels: of.OfLevels | None = None
    shrinks: Literal["width", "mass", "worst"] | None = None

    def __post_init__(self) -> None:
        if self.read is not None and self.interval is None:
            raise ValueError(
                f"Metric: `interval` must be given with `read`, got none for {self.label!r}. A stream has no examples."
            )

    def __call__(self, probs: object, labels: object = None, **options: object) -> Tensor:
        """Return what the function returns."""
        return self.function(probs, labels, **options)


def _of_examples(function: Callable[..., Tensor], *, binned: bool = False) -> Callable[[Summary], Tensor]:
    """Read a top-label metric from the examples of a summary, of which many may be one entry of mean correctness."""
    return lambda summary: function(summary.examples, **({"n_bins": summary.n_bins} if binned else {}))


_top_label = partial(Metric, unit="%", group="top label", is_calibration=True)
_SCORES = {
    "error": Metric(
        scores.error_rate,
        label="error rate",
        short="Error",
        meaning="wrong predictions",
        unit="%",
        group="score",
        read=_of_examples(scores.error_rate),
        interval=lambda evidence, value: intervals.rate_interval(value, size=evidence.size),
        of_levels=lambda levels, mass, right: (mass - right).sum(-1),
    ),
    "nll": Metric(
        scores.negative_log_likelihood,
        label="negative log-likelihood",
        short="NLL",
        meaning="surprise at the true class, in nats",
        unit="nats",
        largest=float("inf"),
        group="score",
        read=lambda summary: summary.nll[0] / summary.weights[0],
        interval=lambda evidence, _: intervals.mean_interval(
            evidence.summary.nll, weight=evidence.summary.weight, size=evidence.size
        ),
    ),
    "brier": Metric(
        scores.brier_score,
        label="Brier score",
        short="Brier",
        meaning="squared error, summed over classes",
        largest=2.0,
        group="score",
        read=lambda summary: summary.brier[0] / summary.weights[0],
        interval=intervals.brier_interval,
    ),
    "aurc": Metric(
        scores.area_under_risk_coverage,
        label="area under risk-coverage",
        short="AURC",
        meaning="mean error if the least sure are dropped first",
        unit="%",
        group="score",
        read=_of_examples(scores.area_under_risk_coverage),
        interval=intervals.aurc_interval,
        of_levels=of.aurc_of_levels,
        compared=False,
    ),
    "ece": _top_label(
        binned.expected_calibration_error,
        label="expected calibration error",
        short="ECE",
        meaning="mean gap between confidence and accuracy",
        read=lambda summary: norm_of_bins(summary.bins),
        interval=intervals.ECE_INVERSION,
        of_levels=of.ece_of_levels,
        shrinks="width",
    ),
    "ece_debiased": _top_label(
        binned.debiased_calibration_error,
        label="debiased L2 error",
        short="debiased L2",
        meaning="root mean squared gap, noise taken out",
        read=_of_examples(binned.debiased_calibration_error, binned=True),
        interval=intervals.Inversion(of.debiased_of_levels, truly=partial(of.debiased_of_levels, noise=0.0)),
        of_levels=of.debiased_of_levels,
        compared=False,
    ),
    "ace": _top_label(
        binned.adaptive_calibration_error,
        label="adaptive calibration error",
        short="ACE",
        meaning="mean gap over bins of equal size",
        read=lambda summary: norm_of_bins(equal_mass_bins(summary.examples, n_bins=summary.n_bins)),
        interval=intervals.Inversion(of.ace_of_levels),
        of_levels=of.ace_of_levels,
        shrinks="mass",
    ),
    "mce": _top_label(
        binned.maximum_calibration_error,
        label="maximum calibration error",
        short="MCE",
        meaning="gap of the worst bin",
        read=lambda summary: summary.bins.gap.abs().amax(),
        interval=intervals.mce_interval,
        of_levels=of.mce_of_levels,
        shrinks="worst",
    ),
    "sece": _top_label(
        kernel.smooth_expected_calibration_error,
        label="SECE",
        meaning="mean gap to accuracy smoothed by a kernel",
        read=_of_examples(kernel.smooth_expected_calibration_error),
        interval=intervals.Inversion(of.sece_of_levels, families=intervals.KERNEL_FAMILIES),
        of_levels=of.sece_of_levels,
        compared=False,
    ),
    "smece": _top_label(
        kernel.smooth_calibration_error,
        label="smooth ECE",
        meaning="gap at the scale that its own size sets",
        read=_of_examples(kernel.smooth_calibration_error),
        interval=intervals.Inversion(of.smece_of_levels, families=intervals.KERNEL_FAMILIES),
        of_levels=of.smece_of_levels,
        compared=False,
    ),
    "mmce": _top_label(
        kernel.maximum_mean_calibration_error,
        label="MMCE",
        meaning="kernel distance from calibration",
        read=_of_examples(kernel.maximum_mean_calibration_error),
        interval=intervals.Inversion(of.mmce_of_levels, families=intervals.KERNEL_FAMILIES),
        of_levels=of.mmce_of_levels,
        compared=False,
    ),
    "classwise_ece": Metric(
        binned.classwise_calibration_error,
        label="classwise ECE",
        short="Classwise ECE",
        meaning="mean gap of every class's probability",
        is_calibration=True,
        unit="%",
        classwise=True,
        read=lambda summary: (summary.by_class[1] - summary.by_class[2]).abs().sum() / summary.weights[0] / summary.num_classes,
        interval=intervals.classwise_interval,
    ),
    "signed_gap": Metric(
        scores.signed_calibration_gap,
        label="confidence minus accuracy",
        short="conf. − accuracy",
        meaning="above zero: over-confident",
        unit="%",
        better=None,
        largest=2.0,
        read=_of_examples(scores.signed_calibration_gap),
        interval=intervals.signed_gap_interval,
        of_levels=lambda levels, mass, right: mass @ levels.confidence - right.sum(-1),
        compared=False,
    ),
}


def _of_positive(key: str, function: Callable[..., Tensor], *, label: str, meaning: str) -> Metric:
    """The score ``key`` with the probability of the positive class as confidence, and whether it is the label."""
    told = {"label": label, "short": "", "meaning": meaning, "group": "positive class"}
    return replace(_SCORES[key], function=function, positive=True, **told)  # type: ignore[arg-type]


_BINARY = {
    "binary_gap": _of_positive(
        "signed_gap",
        binned.binary_signed_calibration_gap,
        label="predicted minus observed",
        meaning="above zero: predicts too many positives",
    ),
    "binary_ece": _of_positive(
        "ece",
        binned.binary_expected_calibration_error,
        label="binary ECE",
        meaning="mean gap of P(positive) to its frequency",
    ),
    "binary_ace": _of_positive(
        "ace", binned.binary_adaptive_calibration_error, label="binary ACE", meaning="the same over bins of equal size"
    ),
}
_OTHERS = {
    "average_ce": Metric(binned.average_calibration_error, label="average calibration error", unit="%", is_score=False),
    "ece_sweep": Metric(binned.sweep_calibration_error, label="monotone-sweep ECE", unit="%", is_score=False),
    "ks": Metric(binned.kolmogorov_smirnov_error, label="Kolmogorov-Smirnov error", unit="%", is_score=False),
    "ace_nixon": Metric(binned.nixon_adaptive_calibration_error, label="Nixon's ACE", unit="%", is_score=False),
    "tace": Metric(binned.thresholded_adaptive_calibration_error, label="thresholded ACE", unit="%", is_score=False),
    "kde_ece": Metric(kernel.kde_calibration_error, label="ECE-KDE", unit="%", is_score=False),
    "skce": Metric(kernel.squared_kernel_calibration_error, label="SKCE", better=None, is_score=False),
    "auroc": Metric(scores.failure_detection_auroc, label="AUROC of failures", unit="%", better="higher", is_score=False),
}

# In the order of tables.
METRICS = Registry("metric", "calibrant.metrics", {**_BINARY, **_SCORES, **_OTHERS}, of=Metric)


def is_top_label(key: str) -> bool:
    """Whether a score needs no more of an example than what a record of a result keeps; see `Entry.is_top_label`."""
    return key == "nll" or METRICS[key].of_levels is not None


def score_metrics(*, positive: bool = False) -> dict[str, Metric]:
    """The metrics that `calibrant.measure`, tables and reports show, including those of installed packages.

    Those of a ``positive`` class are left out unless asked for: problems of more than two classes do not have them.
    """
    return {key: metric for key, metric in METRICS.available().items() if metric.is_score and (positive or not metric.positive)}
