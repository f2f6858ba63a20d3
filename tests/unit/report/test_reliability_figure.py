from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.container import BarContainer

from calibrant import Predictions, measure
from calibrant.core.checks import ArrayLike
from calibrant.core.records import Bins, Entry
from calibrant.metrics import expected_calibration_error, reliability_bins
from calibrant.report.figures import ReliabilityPanel, draw_reliability_grid, prepare_reliability
from calibrant.report.rows import group_rows
from figure_data import run_of
from helpers import mixed_gaps


def by_hand(count: list[float], confidence: list[float], accuracy: list[float]) -> Bins:
    edges = torch.linspace(0, 1, len(count) + 1, dtype=torch.float64)
    return Bins(edges, *(torch.tensor(values, dtype=torch.float64) for values in (count, confidence, accuracy)))


def bars(ax: Axes, label: str) -> list[tuple[float, float, float, float]]:
    """Left, width, foot and height of the bars of one kind."""
    found = [box for box in ax.containers if isinstance(box, BarContainer) and box.get_label() == label]
    return sorted((p.get_x(), p.get_width(), p.get_y(), p.get_height()) for box in found for p in box.patches)


# Empty; under-confident by 0.3; over-confident by 0.3; exact.
BINS = by_hand([0, 4, 10, 2], [0.0, 0.45, 0.7, 1.0], [0.0, 0.75, 0.4, 1.0])
ENDS = torch.tensor([[math.nan, math.nan], [0.3, 0.95], [0.17, 0.69], [0.34, 1.0]], dtype=torch.float64)
PANEL = ReliabilityPanel("CE", 0.4567, 0.1234, BINS, ENDS)


def test_draw_reliability_bars_are_accuracy_and_signed_gap_of_the_record() -> None:
    upper, lower = draw_reliability_grid([PANEL]).axes
    np.testing.assert_allclose(
        bars(upper, "accuracy"), [(0.25, 0.25, 0, 0.75), (0.5, 0.25, 0, 0.4), (0.75, 0.25, 0, 1.0)], atol=1e-12
    )
    # Positive, upwards from the accuracy to the confidence, where the accuracy is lower.
    np.testing.assert_allclose(bars(upper, "gap: over-confident"), [(0.5, 0.25, 0.4, 0.3)], atol=1e-12)
    np.testing.assert_allclose(bars(upper, "gap: under-confident"), [(0.25, 0.25, 0.75, -0.3)], atol=1e-12)
    assert [bar[::3] for bar in bars(lower, "_container0")] == [(0, 0), (0.25, 4.0), (0.5, 10.0), (0.75, 2.0)]


def test_draw_reliability_bars_of_few_examples_are_faint() -> None:
    # Bins of 1, 10 and 1000 examples that are all right at a confidence of about half: 1, 10 and 1000 of n + 3.84.
    bins = by_hand([1, 10, 1000], [0.2, 0.5, 0.7], [1.0, 1.0, 1.0])
    upper = draw_reliability_grid([ReliabilityPanel("CE", 0, 0, bins, None)]).axes[0]
    for label, full in (("accuracy", "#56B4E9"), ("gap: under-confident", "#009E73")):
        (box,) = (box for box in upper.containers if isinstance(box, BarContainer) and box.get_label() == label)
        # The legend shows the first.
        assert [patch.get_x() for patch in box.patches] == pytest.approx([2 / 3, 1 / 3, 0])
        lost = [1 - np.array(patch.get_facecolor()[:3]) for patch in box.patches]
        share = 1.0 if label == "accuracy" else 0.25
        for colour, n in zip(lost, (1000, 10, 1), strict=True):
            np.testing.assert_allclose(colour, share * n / (n + 1.96**2) * (1 - np.array(to_rgb(full))), rtol=1e-3)


def test_draw_reliability_intervals_stand_at_the_mean_confidence() -> None:
    upper = draw_reliability_grid([PANEL]).axes[0]
    lines = sorted(line.tolist() for line in upper.collections[0].get_segments())
    assert lines == [[[0.45, 0.3], [0.45, 0.95]], [[0.7, 0.17], [0.7, 0.69]], [[1, 0.34], [1, 1]]]


def test_draw_reliability_many_bins_show_intervals_as_a_band() -> None:
    panel = prepare_reliability(group_rows([run_of(n=500)])[0].rows, n_bins=100)[0]
    upper = draw_reliability_grid([panel]).axes[0]
    assert panel.intervals is not None
    expected = panel.intervals[panel.bins.count > 0].numpy()
    found = bars(upper, "95% interval")
    np.testing.assert_allclose([(foot, foot + high) for _, _, foot, high in found], expected, atol=1e-12)
    assert all(width == pytest.approx(0.01) for _, width, _, _ in found)


def measured(entry: Entry) -> Entry:
    """The run with what its predictions score."""
    assert entry.test is not None
    return replace(entry, scores=measure(entry.test, n_resamples=100))


def test_prepare_reliability_shows_the_numbers_that_were_measured() -> None:
    # In the middle of two that are printed, 29.97 and 29.98: added up from bins it would be rounded to the other one.
    probs, labels = mixed_gaps(4000, 4)
    labels = torch.where(torch.arange(4000) < 1199, (probs.argmax(1) + 1) % 4, probs.argmax(1))
    run = measured(replace(run_of(), test=Predictions(probs=probs, labels=labels)))
    (panel,) = prepare_reliability(group_rows([run])[0].rows, n_bins=15)
    assert (panel.error, panel.ece) == (run.scores["error"].value, run.scores["ece"].value)
    bins = panel.bins
    assert f"{100 * panel.error:.2f}" != f"{100 * float(1 - bins.weight @ bins.accuracy):.2f}"


@pytest.mark.parametrize("n_bins", [10, 20, 50, 100])
def test_prepare_reliability_gives_the_bins_error_and_ece_of_the_run(n_bins: int) -> None:
    entry = measured(run_of(n=400))
    panel = prepare_reliability(group_rows([entry])[0].rows, n_bins=n_bins)[0]
    assert entry.test is not None
    probs, labels = entry.test.probs, entry.test.labels
    bins = reliability_bins(probs, labels, n_bins=n_bins)
    assert len(panel.bins.count) == n_bins
    assert torch.equal(panel.bins.accuracy, bins.accuracy)
    assert panel.error == pytest.approx(float((probs.argmax(1) != labels).double().mean()), abs=1e-12)
    assert panel.ece == pytest.approx(float(expected_calibration_error(probs, labels, n_bins=n_bins)), abs=1e-12)


@pytest.mark.parametrize("weights", [np.linspace(0.1, 1, 50), [1, 3] * 25])
def test_prepare_reliability_of_weighted_examples_has_no_interval(weights: ArrayLike) -> None:
    probs, labels = mixed_gaps(50, 4)
    test = Predictions(probs=probs, labels=labels, weights=weights)
    panel = prepare_reliability(group_rows([Entry("digits", "ce", run_of().scores, test=test)])[0].rows)[0]
    assert panel.intervals is None
    assert not draw_reliability_grid([panel]).axes[0].collections


def test_prepare_reliability_takes_the_run_of_the_seed_and_skips_bare_numbers() -> None:
    bare = Entry("digits", "focal", run_of().scores, model="convnet", preset="default", epochs=3)
    rows = group_rows([run_of(seed=0), run_of(seed=1), bare])[0].rows
    first, last = prepare_reliability(rows, seed=0), prepare_reliability(rows)
    assert [panel.label for panel in first] == ["CE"]
    assert not torch.equal(first[0].bins.accuracy, last[0].bins.accuracy)


def kept(entry: Entry, n_bins: int) -> Entry:
    """What a record keeps of a run: scores with bins, no predictions."""
    assert entry.test is not None
    bins = reliability_bins(entry.test.probs, entry.test.labels, n_bins=n_bins)
    return replace(entry, scores=replace(entry.scores, bins=bins, n_bins=n_bins), test=None)


def test_prepare_reliability_without_predictions_takes_the_bins_that_were_kept() -> None:
    whole = run_of(n=400)
    (panel,) = prepare_reliability(group_rows([kept(whole, 15)])[0].rows, n_bins=15)
    (expected,) = prepare_reliability(group_rows([whole])[0].rows, n_bins=15)
    assert torch.equal(panel.bins.count, expected.bins.count)
    assert torch.equal(panel.bins.accuracy, expected.bins.accuracy)
    assert (panel.error, panel.ece) == (expected.error, expected.ece)
    assert panel.intervals is not None
    assert expected.intervals is not None
    np.testing.assert_equal(panel.intervals.numpy(), expected.intervals.numpy())


def test_draw_reliability_captions_give_the_error() -> None:
    labels = ["CE", "CE (TS)", "Focal", "FLSD", "LS-0.05", "MMCE", "FLγ-SECE"]
    panels = [ReliabilityPanel(label, 0.1 + place / 100, 0.05, BINS, None) for place, label in enumerate(labels)]
    figure = draw_reliability_grid(panels, title="digits, 4 bins")
    captions = [ax.get_xlabel() for ax in figure.axes[1::2]]
    assert captions[0] == "confidence\nCE (10.00%)\nECE 5.00%"
    assert captions[6] == "confidence\nFLγ-SECE (16.00%)\nECE 5.00%"
    assert figure.legends[0].get_title().get_text() == "digits, 4 bins"


@pytest.mark.parametrize("label", ["FLγ-SECE", "FLγ-SECE (paper, 350 epochs)", "my_best_ensemble_of_five_resnets_v2_last"])
@pytest.mark.parametrize("panels", [1, 2, 3, 11])
def test_draw_reliability_texts_meet_nothing(panels: int, label: str) -> None:
    named = [ReliabilityPanel(label, 0.2378, 0.1234, BINS, None)] * panels
    figure = draw_reliability_grid(named, title="cifar100, resnet18, 15 bins")
    figure.draw_without_rendering()
    captions = [ax.xaxis.label.get_window_extent() for ax in figure.axes[1::2]]
    drawn = [ax.get_window_extent() for ax in figure.axes]
    legend = figure.legends[0].get_window_extent()
    for place, caption in enumerate(captions):
        assert not any(caption.overlaps(other) for other in [*captions[:place], *drawn, legend])
    assert not any(legend.overlaps(ax) for ax in drawn)
    page = figure.bbox
    assert all(page.x0 <= box.x0 and box.x1 <= page.x1 and page.y0 <= box.y0 for box in [*captions, legend])


def test_draw_reliability_of_nothing_raises() -> None:
    with pytest.raises(ValueError, match="`panels` must hold at least one"):
        draw_reliability_grid([])
    with pytest.raises(ValueError, match="`columns` must be a whole number >= 1, got 0"):
        draw_reliability_grid([PANEL], columns=0)
