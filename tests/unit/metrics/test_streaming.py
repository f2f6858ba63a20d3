"""Streaming metrics: their values, and what users of torchmetrics expect of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torchmetrics import MetricCollection

from calibrant.core.grid import EXACT_BINS
from calibrant.core.records import Bins, Predictions
from calibrant.metrics import streaming
from calibrant.metrics.diagram import draw_reliability
from calibrant.metrics.measure import measure
from calibrant.metrics.streaming import (
    AdaptiveCalibrationError,
    BrierScore,
    CalibrationSuite,
    ClasswiseCalibrationError,
    ExpectedCalibrationError,
    SingleMetric,
)
from calibrant.metrics.values import READERS
from helpers import golden, mixed_gaps

KEYS = "error nll brier ece mce ace classwise_ece sece smece mmce ece_debiased signed_gap aurc".split()
SINGLES = [
    cls
    for cls in vars(streaming).values()
    if isinstance(cls, type) and issubclass(cls, SingleMetric) and cls is not SingleMetric
]


def filled(n: int = 400, *, seed: int = 0, num_classes: int = 4, **options: object) -> CalibrationSuite:
    suite = CalibrationSuite(num_classes=num_classes, **options)
    suite.update(*mixed_gaps(n, num_classes, seed=seed))
    return suite


def assert_same(a: dict[str, Tensor], b: dict[str, Tensor], tolerance: float = 1e-12) -> None:
    assert set(a) == set(b)
    for key, value in a.items():
        assert float(value) == float(b[key]) or abs(float(value - b[key])) <= tolerance, key


def test_suite_compute_gives_the_thirteen_keys_as_float64_scalars() -> None:
    values = filled().compute()
    assert list(values) == KEYS
    assert all(v.shape == () and v.dtype == torch.float64 and bool(v.isfinite()) for v in values.values())


def test_suite_of_the_golden_input_gives_its_values() -> None:
    logits, labels = golden()
    suite = CalibrationSuite(num_classes=5)
    suite.update(logits=logits, labels=labels)
    values = suite.compute()
    # Printed from float32 runs of the sources, hence the tolerance.
    for key, value in {
        "nll": 1.209579,
        "brier": 0.601093,
        "ece": 0.268477,
        "mce": 0.559181,
        "ace": 0.334314,
        "classwise_ece": 0.174134,
        "sece": 0.272692,
        "mmce": 0.140817,
    }.items():
        assert float(values[key]) == pytest.approx(value, rel=3e-6), key


@pytest.mark.parametrize("cls", SINGLES)
def test_single_metric_equals_its_entry_of_the_suite(cls: type[SingleMetric]) -> None:
    metric = cls(num_classes=4)
    metric.update(*mixed_gaps(400, 4))
    value = metric.compute()
    assert value.dtype == torch.float64
    assert float(value) == pytest.approx(float(filled().compute()[cls.key]), abs=1e-15)


def test_single_metrics_cover_every_key_once() -> None:
    assert sorted(cls.key for cls in SINGLES) == sorted(KEYS) == sorted(READERS)


P, Y = torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([0])


@pytest.mark.parametrize("cls", [CalibrationSuite, ExpectedCalibrationError])
def test_compute_without_examples_says_so(cls: type[CalibrationSuite]) -> None:
    metric = cls(num_classes=3)
    with pytest.raises(ValueError, match=rf"{cls.__name__}: no examples yet\. Call `update\(probs, labels\)` first"):
        metric.compute()
    metric.update(P, Y)
    metric.compute()
    metric.reset()
    with pytest.raises(ValueError, match="no examples yet"):
        metric.compute()


def test_forward_gives_the_batch_and_accumulates_all() -> None:
    probs, labels = mixed_gaps(600, 4)
    suite = CalibrationSuite(num_classes=4)
    first, second = suite(probs[:250], labels[:250]), suite(probs[250:], labels[250:])
    assert_same(first, filled_with(probs[:250], labels[:250]))
    assert_same(second, filled_with(probs[250:], labels[250:]))
    assert_same(suite.compute(), filled_with(probs, labels))


def filled_with(probs: Tensor, labels: Tensor) -> dict[str, Tensor]:
    suite = CalibrationSuite(num_classes=4)
    suite.update(probs, labels)
    return suite.compute()


def test_metric_collection_shares_one_state_among_equal_settings() -> None:
    probs, labels = mixed_gaps(600, 4)
    collection = MetricCollection(
        {
            "ece": ExpectedCalibrationError(num_classes=4),
            "ece5": ExpectedCalibrationError(num_classes=4, n_bins=5),
            "ace": AdaptiveCalibrationError(num_classes=4),
            "brier": BrierScore(num_classes=4),
            "classwise": ClasswiseCalibrationError(num_classes=4),
            "ignoring": ExpectedCalibrationError(num_classes=4, ignore_index=7),
        }
    )
    for at in (0, 300):
        collection.update(probs[at : at + 300], labels[at : at + 300])
    assert sorted(sorted(group) for group in collection.compute_groups.values()) == [
        ["ace", "brier", "ece", "ece5"],
        ["classwise"],
        ["ignoring"],
    ]
    values, expected = collection.compute(), filled_with(probs, labels)
    for name, key in {"ece": "ece", "ace": "ace", "brier": "brier", "classwise": "classwise_ece", "ignoring": "ece"}.items():
        assert float(values[name]) == pytest.approx(float(expected[key]), abs=1e-14)
    assert float(values["ece5"]) != float(values["ece"])
    collection.reset()
    collection.update(probs[:9], labels[:9])
    assert int(collection["ece5"].count[0]) == 9


def test_suite_in_a_collection_prefixes_its_keys() -> None:
    collection = MetricCollection([CalibrationSuite(num_classes=4)], prefix="val_")
    values = collection(*mixed_gaps(50, 4))
    assert sorted(values) == sorted(f"val_{key}" for key in KEYS)


@pytest.mark.parametrize("n_bins", EXACT_BINS)
def test_bins_hold_every_example_once(n_bins: int) -> None:
    bins = filled().bins(n_bins=n_bins)
    assert float(bins.count.sum()) == 400
    assert bins.edges.shape == (n_bins + 1,)


def test_scores_are_those_of_measuring_the_predictions() -> None:
    probs, labels = mixed_gaps(1500, 4)
    suite = filled(1500)
    found = suite.scores(by_class=True, class_names=list("abcd"), n_resamples=50)
    expected = measure(Predictions(probs=probs, labels=labels, class_names=list("abcd")), by_class=True, n_resamples=50)
    assert (found.n, found.num_classes, found.n_bins) == (1500, 4, 15)
    assert list(found) == list(expected) == KEYS
    for key in KEYS:
        assert found[key].value == pytest.approx(float(suite.compute()[key]), abs=0)
        assert found[key] == pytest.approx(expected[key], abs=1e-6), key
    assert found.ece_if_calibrated == pytest.approx(expected.ece_if_calibrated, abs=1e-9)
    assert [c.name for c in found.classes] == [c.name for c in expected.classes]


def test_plot_draws_the_reliability_diagram(monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib import pyplot as plt

    plt.switch_backend("Agg")
    suite = filled()
    figure, ax = suite.plot()
    assert ax.get_title() == f"ECE {float(suite.compute()['ece']):.4f} in 15 bins, 400 examples"
    assert len(figure.axes) == 2
    given = plt.figure().subplots()
    assert suite.plot(given, n_bins=100)[1] is given
    metric = ExpectedCalibrationError(num_classes=4)
    metric.update(*mixed_gaps(50, 4))
    assert metric.plot()[1].get_lines()
    assert metric.plot([metric.compute(), metric.compute()])[0] is not None
    plt.close("all")


def test_draw_reliability_marks_mean_accuracy_and_mean_confidence_among_the_shares() -> None:
    from matplotlib import pyplot as plt

    plt.switch_backend("Agg")
    parts = ([0, 0.5, 1], [6, 2], [0.4, 0.8], [0.3, 0.5])
    figure, _ = draw_reliability(Bins(*(torch.tensor(part, dtype=torch.float64) for part in parts)), title="two bins")
    assert figure is not None
    below = figure.axes[1]
    assert [(bar.get_x(), bar.get_height()) for bar in below.patches] == [(0, 0.75), (0.5, 0.25)]
    lines = {found.get_label(): found.get_segments()[0][0][0] for found in below.collections}
    assert lines == pytest.approx({"mean accuracy": 0.35, "mean confidence": 0.5})
    plt.close("all")
