"""Diagrams for notebooks, and how records show themselves there."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.container import BarContainer

from calibrant import Predictions, measure, plot, repair, train
from calibrant.core.records import Scores
from calibrant.data import load_digits
from helpers import mixed_gaps

PROBS, LABELS = mixed_gaps(300, 4)
VAL = Predictions(probs=mixed_gaps(300, 4, seed=1)[0], labels=mixed_gaps(300, 4, seed=1)[1], split="val")
TEST = Predictions(probs=PROBS, labels=LABELS, class_names=("ant", "bee", "cat", "dog"))


@pytest.fixture(autouse=True)
def _no_windows() -> Iterator[None]:
    plt.switch_backend("Agg")
    yield
    plt.close("all")


def test_reliability_draws_the_same_of_arrays_predictions_and_scores_into_given_axes() -> None:
    axes = plt.subplots(1, 3)[1]
    scores = measure(TEST, n_resamples=100)
    for said, ax in zip(((PROBS.numpy(), LABELS.numpy()), (TEST,), (scores,)), axes, strict=True):
        assert plot.reliability(*said, ax=ax) is ax
        heights = {
            box.get_label(): sorted(bar.get_height() for bar in box) for box in ax.containers if "gap" in box.get_label()
        }
        gaps = scores.bins.gap[scores.bins.count > 0].numpy()
        np.testing.assert_allclose(heights["gap: over-confident"], sorted(gaps[gaps > 0]))
        np.testing.assert_allclose(heights["gap: under-confident"], sorted(gaps[gaps < 0]))
        assert ax.get_title() == f"ECE {100 * scores['ece'].value:.2f}%, error {100 * scores['error'].value:.2f}%"
    assert plot.reliability(TEST).figure is not axes[0].figure


def test_confidence_histogram_counts_right_and_wrong() -> None:
    ax = plot.confidence_histogram([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], [0, 1, 1], n_bins=2)
    right, wrong = (box for box in ax.containers if isinstance(box, BarContainer))
    assert [bar.get_height() for bar in right] == [0, 2]
    assert [(bar.get_y(), bar.get_height()) for bar in wrong] == [(0, 0), (2, 1)]
    lines = {line.get_label(): line.get_xdata()[0] for line in ax.get_lines()}
    assert lines == pytest.approx({"mean confidence": 0.8, "accuracy": 2 / 3})


def curves(ax: plt.Axes) -> list[np.ndarray]:
    """Points of the lines, without keys and diagonal."""
    return [line.get_xydata() for line in ax.get_lines()[:-1] if len(line.get_xdata())]


def names(ax: plt.Axes) -> list[str]:
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_per_class_shows_the_worst_or_those_asked_for() -> None:
    probs, labels = [[0.9, 0.1], [0.9, 0.1], [0.2, 0.8], [0.2, 0.8]], [0, 1, 1, 1]
    ax = plot.per_class(probs, labels, classes=[1], n_bins=10)
    (points,) = curves(ax)
    np.testing.assert_allclose(points, [(0.1, 0.5), (0.8, 1.0)])
    assert names(ax) == ["1 (ECE 30.00%)"]
    worst = [entry.name for entry in measure(TEST, by_class=True, n_resamples=100).classes]
    assert [name.split(" ")[0] for name in names(plot.per_class(TEST))] == worst


def test_diagrams_of_a_binary_problem_are_about_the_positive_class() -> None:
    p, happened = np.array([0.1, 0.9, 0.9, 0.9]), [0, 1, 1, 0]
    record = Predictions.from_binary(probs=p, labels=happened, class_names=["no", "rain"])
    for said, name in (((p, happened), "P(positive)"), ((record,), "P(rain)"), ((measure(record),), "P(rain)")):
        ax = plot.reliability(*said)
        bars = {box.get_label(): [bar.get_height() for bar in box] for box in ax.containers}
        assert (ax.get_xlabel(), ax.get_title()) == (name, "binary ECE 20.00%")
        np.testing.assert_allclose(bars["observed"], [2 / 3, 0])
        np.testing.assert_allclose(bars["predicted too often"], [0.9 - 2 / 3, 0.1])
    assert plot.compare({"a": p}, happened).get_xlabel() == "P(positive)"
    assert plot.confidence_histogram(p, happened).get_xlabel() == "confidence"
    assert names(plot.per_class(p, happened, classes=[1])) == ["1 (ECE 20.00%)"]


def test_compare_draws_a_line_for_each_model_and_before_after_is_two_of_them() -> None:
    calibrated = Predictions(probs=[[0.75, 0.25]] * 4, labels=[0, 0, 0, 1])
    ax = plot.compare({"ours": [[0.95, 0.05]] * 4, "theirs": calibrated}, [0, 0, 0, 1])
    np.testing.assert_allclose(curves(ax), [[(0.05, 0.25)], [(0.25, 0.25)]])
    assert names(ax) == ["ours (ECE 20.00%)", "theirs (ECE 0.00%)"]
    # Points of few examples are small: 4 of 7.84.
    assert ax.collections[0].get_sizes().tolist() == pytest.approx([36 * 4 / (4 + 1.96**2)], rel=1e-3)
    done = repair(VAL, TEST, method="temperature", n_resamples=100)
    ax = plot.before_after(done.before, done.after)
    assert [name.split(" ")[0] for name in names(ax)] == ["before", "after"]


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="plot.reliability: `labels` must be given"):
        plot.reliability(PROBS)
    bare = Scores.from_dict(measure(TEST, n_resamples=100).to_dict())
    with pytest.raises(ValueError, match="plot.reliability: `probs` must be scores with their bins"):
        bare.plot()
    assert "<img" not in bare._repr_html_()


def test_scores_show_themselves_as_a_table_with_a_diagram_a_plot_and_a_frame() -> None:
    scores = measure(TEST, n_resamples=100)
    shown = scores._repr_html_()
    assert re.search(r"<th>[^<]*ECE[^<]*</th><td>\d", shown)
    assert 'src="data:image/png;base64,' in shown
    assert len(shown) < 100_000
    assert "<details>" not in shown
    parted = measure(TEST.replace(columns={"day": ["<b>", "tu"] * (len(TEST) // 2)}), slice_by="day", n_resamples=100)
    assert "slice &lt;b&gt;" in parted._repr_html_()
    assert scores.plot().get_title().startswith("ECE")
    frame = scores.to_frame()
    assert frame.loc["ece"].tolist() == list(scores["ece"])
    assert list(frame.columns) == ["value", "low", "high"]


def test_no_record_prints_a_matrix() -> None:
    done = repair(VAL, TEST, method="vector", n_resamples=100)
    parts = {key: {"name": name} for key, name in {"data": "mixture", "backbone": "mlp", "method": "flgamma-sece"}.items()}
    run = train(parts | {"train": {"epochs": 1}})
    for record in (TEST, done, done.before, done.calibrator, done.after.bins, run, load_digits()):
        assert not re.search(r"tensor\(\[\[|array\(\[\[", repr(record))
        assert len(repr(record)) < 2000
    for record in (done, done.before):
        assert "tensor" not in repr(record)
        assert len(repr(record).splitlines()) > 3


def test_importing_plot_does_not_load_matplotlib() -> None:
    code = "import sys, calibrant.plot; raise SystemExit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
