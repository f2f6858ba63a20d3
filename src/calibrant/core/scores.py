"""The record of a measurement, printable as a table and exportable as JSON; and of a run in a comparison, which holds one."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from calibrant.core.records import Bins, Predictions
from calibrant.core.registry import lookup

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


class Estimate(NamedTuple):
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float

    def __float__(self) -> float:
        return self.value


class IfCalibrated(NamedTuple):
    """What the ECE of a perfectly calibrated model with these confidences would be, and how rarely it exceeds ours."""

    mean: float
    p95: float
    p_value: float


class Paired(NamedTuple):
    """Difference of two models on the same examples (second minus first), its interval and two-sided p-value."""

    difference: float
    low: float
    high: float
    p_value: float


@dataclass(frozen=True)
class Promise:
    """What a guarantee came to: a threshold learned on one set of examples, tried on another.

    Attributes:
        max_error: The error that is guaranteed, among what is answered.
        threshold: The confidence above which it answers; None where nothing can be guaranteed.
        coverage: Share of the other examples that it answers.
        error: Share of these answers that are wrong; nan where there is none.
        answered: Number of these answers.
    """

    max_error: float
    threshold: float | None = None
    coverage: float = 0.0
    error: float = math.nan
    answered: int = 0


@dataclass(frozen=True)
class ClassScore:
    """How one class is calibrated.

    Attributes:
        index: Class index.
        name: Its name, or the index as text.
        count: Examples that carry this label.
        ece: Its term of the classwise ECE (15 equal-width bins over this class's probability).
        signed_gap: Mean probability given to the class minus its frequency; positive is over-prediction.
        error: Share of its examples that are misclassified (nan where it has none).
        weight: Sum of the weights of its examples; None where they have none.
        chance: How large ``signed_gap`` would be, in 95 of 100 cases at most, were the class calibrated; None where unknown.
    """

    index: int
    name: str
    count: float
    ece: float
    signed_gap: float
    error: float
    weight: float | None = None
    chance: float | None = None


@dataclass(frozen=True)
class PositiveClass:
    """How the probability of the positive class of a binary problem, the second one, is calibrated.

    Attributes:
        name: Name of the class, or None if it has none.
        predicted: Mean of its probability.
        observed: Share of examples that carry its label.
        if_calibrated: The calibration error of that probability to expect of a perfectly calibrated model.
        bins: Content of its reliability diagram, with the probability as confidence and the share of positives as accuracy.
    """

    name: str | None
    predicted: float
    observed: float
    if_calibrated: IfCalibrated
    bins: Bins = field(compare=False)

    @property
    def probability(self) -> str:
        """How its probability is written."""
        return f"P({self.name or 'positive'})"

    def to_dict(self) -> dict[str, object]:
        """Return plain data in the schema of ``calibrant measure --json``, which leaves the bins out."""
        plain = {name: getattr(self, name) for name in ("name", "predicted", "observed")}
        return {**plain, "if_calibrated": self.if_calibrated._asdict()}


@dataclass(frozen=True, repr=False)
class Scores:
    """Everything measured of one set of predictions. Notebooks show it as a table with a reliability diagram.

    Attributes:
        n: Number of examples.
        num_classes: Number of classes.
        n_bins: Bins of the binned metrics.
        metrics: Key → estimate.
        ece_if_calibrated: The ECE to expect of a perfectly calibrated model.
        bins: Content of the reliability diagram.
        classes: Per class, worst calibrated first; filled on request.
        slices: Group → its own scores; filled on request.
        file: Where the predictions came from, if from a file.
        weight: Sum of the weights of the examples; None where they have none.
        positive: How the probability of the positive class is calibrated; None of more than two classes.
    """

    n: int
    num_classes: int
    n_bins: int
    metrics: Mapping[str, Estimate]
    ece_if_calibrated: IfCalibrated
    # Tensors have no single truth value; the same numbers in `metrics` come from the same bins.
    bins: Bins = field(compare=False)
    classes: tuple[ClassScore, ...] = ()
    slices: Mapping[str, Scores] = field(default_factory=dict)
    file: str | None = None
    weight: float | None = None
    positive: PositiveClass | None = None

    def __getitem__(self, key: str) -> Estimate:
        return lookup(self.metrics, key, kind="metric")

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __contains__(self, key: object) -> bool:
        return key in self.metrics

    def to_dict(self) -> dict[str, object]:
        """Return plain data in the schema of ``calibrant measure --json``."""
        data = {
            "n": self.n,
            "weight": self.weight,
            "num_classes": self.num_classes,
            "n_bins": self.n_bins,
            "metrics": {key: estimate._asdict() for key, estimate in self.metrics.items()},
            "ece_if_calibrated": self.ece_if_calibrated._asdict(),
            "positive": self.positive and self.positive.to_dict(),
            "classes": [{key: value for key, value in vars(entry).items() if value is not None} for entry in self.classes],
            "slices": {name: scores.to_dict() for name, scores in self.slices.items()},
        }
        return {"file": self.file, **{key: value for key, value in data.items() if value}}

    def to_json(self, *, indent: int | None = None) -> str:
        """Return `to_dict` as strict JSON text: a value that is not a number is written as null."""
        return json.dumps(without_nan(self.to_dict()), indent=indent)

    @staticmethod
    def from_dict(data: Mapping[str, Any], *, bins: Bins | None = None, n_bins: int = 15) -> Scores:
        """Return the scores that `to_dict` wrote.

        Args:
            data: What ``calibrant measure --json`` wrote of one file; a null is read as nan.
            bins: Content of the reliability diagram, which that schema leaves out; without it there are no bins.
            n_bins: Bins of the binned metrics, where neither ``bins`` nor ``data`` says.

        Raises ``ValueError`` naming the key that is missing or malformed.
        """
        none = torch.empty(0, dtype=torch.float64)
        no_bins, positive = Bins(none, none, none, none), data.get("positive")
        try:
            count = int(data.get("n_bins", n_bins)) if bins is None else len(bins.count)
            if positive is not None:
                positive = positive | {"if_calibrated": IfCalibrated(**_with_nan(positive["if_calibrated"])), "bins": no_bins}
            return Scores(
                n=int(data["n"]),
                num_classes=int(data["num_classes"]),
                n_bins=count,
                metrics={key: Estimate(**_with_nan(found)) for key, found in data["metrics"].items()},
                ece_if_calibrated=IfCalibrated(**_with_nan(data["ece_if_calibrated"])),
                bins=no_bins if bins is None else bins,
                classes=tuple(ClassScore(**_with_nan(found)) for found in data.get("classes", ())),
                slices={name: Scores.from_dict(part, n_bins=count) for name, part in data.get("slices", {}).items()},
                file=data.get("file"),
                weight=data.get("weight"),
                positive=positive and PositiveClass(**positive),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"Scores.from_dict: `data` must be what `calibrant measure --json` writes, but {error}.") from None

    def __str__(self) -> str:
        null = self.ece_if_calibrated
        said = f"ece {null.mean:.4f} (95th percentile {null.p95:.4f}); p = {null.p_value:.3g}"
        classes = {f"class {entry.name}": (entry.count, entry.error, entry.ece) for entry in self.classes}
        slices = {f"slice {name}": (part.n, part["error"].value, part["ece"].value) for name, part in self.slices.items()}
        wide = max(map(len, (*self.metrics, *classes, *slices)))
        return "\n".join(
            [
                f"{self.n} examples, {self.num_classes} classes, {self.n_bins} bins",
                *(f"  {key:<{wide}}  {e.value:8.4f}  [{e.low:.4f}, {e.high:.4f}]" for key, e in self.metrics.items()),
                f"  a calibrated model would show {said}",
                *(
                    f"  {name:<{wide}}  {count:g} examples, error {error:.4f}, ece {ece:.4f}"
                    for name, (count, error, ece) in (classes | slices).items()
                ),
            ]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from calibrant.plot import scores_html

        return scores_html(self)

    def plot(self, *, ax: Axes | None = None) -> Axes:
        """Draw the reliability diagram into ``ax`` or a new figure; see `calibrant.plot.reliability`."""
        from calibrant.plot import reliability

        return reliability(self, ax=ax)

    def to_frame(self) -> DataFrame:
        """Return the metrics as a pandas data frame with the columns value, low and high."""
        import pandas as pd

        return pd.DataFrame.from_dict(self.metrics, orient="index", columns=Estimate._fields)


@dataclass(frozen=True)
class BinSweep:
    """The binned errors of one set of predictions against the number of bins.

    Attributes:
        n_bins: Numbers of bins, rising.
        ece: ECE for each.
        mce: MCE for each.
        ece_if_calibrated: ECE that a calibrated model with these confidences would show on average for each; empty if unknown.
        mce_if_calibrated: The same of the MCE.
    """

    n_bins: tuple[int, ...]
    ece: tuple[float, ...]
    mce: tuple[float, ...]
    ece_if_calibrated: tuple[float, ...] = ()
    mce_if_calibrated: tuple[float, ...] = ()


@dataclass(frozen=True)
class Entry:
    """One run of a comparison.

    Entries that differ in their seed alone are one row of a table.

    Attributes:
        data: Name of the data set.
        method: Name of the method, or what somebody's predictions are to be called.
        scores: What `calibrant.measure` says of the test predictions.
        preset: Settings of the method, ``"default"`` or ``"paper"``; None where that means nothing.
        model: Name of the network, or None if unknown.
        epochs: Length of training, or None if unknown.
        seed: Seed of the run, or None if unknown.
        test: The test predictions; None where only numbers were kept. Methods with a gamma have it in the column ``gamma``.
        history: One mapping an epoch, with the keys of ``history.jsonl``; a value is None where the epoch was not evaluated.
        best_epoch: Epoch that the predictions come from.
        sweep: Binned errors against the number of bins, where they were computed.
        temperature: What ``+ts`` divided the logits by.
        recipe: What decided the run, dotted recipe key → value; what is left out is as its method has it by itself.
        facts: Where it comes from: ``command``, ``machine``, ``versions``, ``seconds``, ``examples``, ``data``, ``note``, where
            known.
        folder: Where it was read from.
        is_top_label: Whether ``test`` comes from a record, which keeps of every example the top confidence, whether it was
            right, and the probability of the true class; the rest is spread evenly over the other classes.
    """

    data: str
    method: str
    scores: Scores
    preset: str | None = None
    model: str | None = None
    epochs: int | None = None
    seed: int | None = None
    test: Predictions | None = field(default=None, repr=False, compare=False)
    history: tuple[Mapping[str, float | int | None], ...] = field(default=(), repr=False)
    best_epoch: int | None = None
    sweep: BinSweep | None = field(default=None, repr=False)
    temperature: float | None = None
    recipe: Mapping[str, object] = field(default_factory=dict, repr=False)
    facts: Mapping[str, object] = field(default_factory=dict, repr=False)
    folder: str | None = None
    is_top_label: bool = False

    @property
    def is_foreign(self) -> bool:
        """Whether it is somebody's predictions: neither network nor length of training is known."""
        return self.model is None and self.epochs is None

    def curve(self, key: str) -> tuple[list[int], list[float]]:
        """Epochs, from 1, at which ``key`` was evaluated, and its values there."""
        values = ((epoch, line.get(key)) for epoch, line in enumerate(self.history, 1))
        known = [(epoch, float(value)) for epoch, value in values if value is not None]
        return [epoch for epoch, _ in known], [value for _, value in known]


def without_nan(data: object) -> Any:
    """Return plain data as JSON can hold it: a number that is not finite becomes None."""
    return json.loads(json.dumps(data), parse_constant=lambda _: None)


def _with_nan(found: Mapping[str, Any]) -> dict[str, Any]:
    return {key: float("nan") if value is None else value for key, value in found.items()}
