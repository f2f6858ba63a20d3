"""Figures of lines: what is prepared from the records, and that the figures show exactly that."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes

from calibrant import Predictions
from calibrant.core.records import BinSweep, Entry
from calibrant.metrics import expected_calibration_error, maximum_calibration_error
from calibrant.metrics.levels import bin_sweep
from calibrant.report.figures import (
    Band,
    Line,
    TradeoffPoint,
    band_of,
    draw_gamma_confidence,
    draw_lines,
    draw_tradeoff,
    prepare_curves,
    prepare_gamma_confidence,
    prepare_gamma_epochs,
    prepare_robustness,
    prepare_tradeoff,
)
from calibrant.report.rows import Style, group_rows
from figure_data import run_of
from helpers import mixed_gaps

CURVES = ("test_ece", "test_error")
BINS = ("ece", "mce")
STYLE = Style("#000000", "o", "-")


def two_methods() -> list[Line]:
    entries = [
        run_of("ce", seed=0, curve=[0.2, None, 0.04]),
        run_of("ce", seed=1, curve=[0.4, 0.1, 0.06]),
        run_of("focal", seed=0, curve=[0.3, 0.2, 0.02]),
    ]
    return prepare_curves(group_rows(entries)[0].rows)


def ends_of_band(ax: Axes, x: float) -> tuple[float, float]:
    """Lower and upper end of the first band at a place."""
    corners = ax.collections[0].get_paths()[0].vertices
    there = corners[np.isclose(corners[:, 0], x)][:, 1]
    return there.min(), there.max()


def test_prepare_curves_takes_mean_and_spread_over_seeds_at_shared_epochs() -> None:
    first, second = two_methods()
    # The first seed was not evaluated in its second epoch.
    assert first.bands["test_ece"].x == (1, 3)
    assert first.bands["test_ece"].mean == pytest.approx((0.3, 0.05))
    assert first.bands["test_ece"].std == pytest.approx((np.sqrt(0.02), np.sqrt(0.0002)))
    assert (first.label, second.label) == ("CE", "Focal")
    assert second.bands["test_ece"] == Band((1, 2, 3), (0.3, 0.2, 0.02), None)
    assert second.bands["test_error"].mean == pytest.approx((0.6, 0.4, 0.04))
    assert second.bands["val_ece"].mean == pytest.approx((0.15, 0.1, 0.01))


def test_band_of_curves_without_a_shared_point_is_none() -> None:
    assert band_of([([1], [0.1]), ([2], [0.2])]) is None
    assert band_of([([], [])]) is None
    assert band_of([([1], [float("nan")])]) is None
    # A run that has no curve does not take that of the others away.
    assert band_of([([], []), ([2], [0.2])]) == Band((2,), (0.2,), None)


def test_prepare_curves_leaves_out_runs_without_history() -> None:
    entries = [run_of("ce", curve=[0.2]), run_of("ce+ts", temperature=1.5), run_of("focal")]
    assert [line.label for line in prepare_curves(group_rows(entries)[0].rows)] == ["CE"]
    assert prepare_curves(group_rows(entries[1:])[0].rows) == []


def test_draw_curves_shows_means_in_per_cent_with_bands_of_one_deviation() -> None:
    figure = draw_lines(two_methods(), keys=CURVES, title="digits")
    left, right = figure.axes
    lines = {line.get_label(): line for line in left.get_lines()}
    np.testing.assert_allclose(lines["CE"].get_xydata(), [(1, 30), (3, 5)])
    np.testing.assert_allclose(lines["Focal"].get_xydata(), [(1, 30), (2, 20), (3, 2)])
    np.testing.assert_allclose(right.get_lines()[1].get_ydata(), [60, 40, 4])
    assert (lines["CE"].get_color(), lines["CE"].get_marker()) == ("#000000", "o")
    assert len(left.collections) == 1
    assert ends_of_band(left, 1) == pytest.approx((30 - 100 * np.sqrt(0.02), 30 + 100 * np.sqrt(0.02)))
    legend = figure.legends[0]
    assert legend.get_title().get_text() == "digits, mean ± std over seeds"
    assert [text.get_text() for text in legend.get_texts()] == ["CE", "Focal"]


def test_draw_curves_axes_are_named_logarithmic_and_hold_everything() -> None:
    left, right = draw_lines(two_methods(), keys=CURVES).axes
    assert (left.get_xlabel(), left.get_ylabel(), right.get_ylabel()) == ("epoch", "test ECE (%)", "test error (%)")
    assert left.get_yscale() == "log"
    low, high = left.get_ylim()
    assert low < 2
    assert high > 30 + 100 * np.sqrt(0.02)
    # The learning rate drops between the second and the third epoch.
    assert [line.get_xdata()[0] for line in left.get_lines() if line.get_linestyle() == ":"] == [2.5]


def test_draw_curves_shows_what_is_asked_for_or_the_validation_set() -> None:
    entry = run_of(curve=[0.3, 0.2])
    kept = tuple({key: value for key, value in line.items() if not key.startswith("test")} for line in entry.history)
    lines = prepare_curves(group_rows([replace(entry, history=kept)])[0].rows)
    assert draw_lines(lines, keys=CURVES).axes[0].get_ylabel() == "validation ECE (%)"
    (ax,) = draw_lines(two_methods(), keys=("val_error",), legend=False).axes
    assert ax.get_ylabel() == "validation error (%)"
    assert not ax.figure.legends


@pytest.mark.parametrize("least", [0.0, 1e-7])
def test_log_axis_is_not_stretched_by_what_is_nearly_zero(least: float) -> None:
    lines = [Line(name, STYLE, {"test_ece": Band((1, 2), y, None)}) for name, y in (("a", (0.04, 0.05)), ("b", (least, 0.01)))]
    (ax,) = draw_lines(lines, keys=("test_ece",)).axes
    bottom, low, high, top = (ax.transData.transform((0, y))[1] for y in (ax.get_ylim()[0], 1.0, 5.0, ax.get_ylim()[1]))
    assert (high - low) / (top - bottom) > 0.5


def swept(method: str, seed: int, ece: tuple[float, ...], mce: tuple[float, ...], *chance: tuple[float, ...]) -> Entry:
    return replace(run_of(method, seed=seed), test=None, sweep=BinSweep((10, 100, 1000), ece, mce, *chance))


OLDER = [
    swept("ce", 0, (0.02, 0.03, 0.06), (0.2, 0.5, 0.9)),
    swept("ce", 1, (0.04, 0.05, 0.06), (0.4, 0.7, 0.9)),
    swept("flgamma-sece", 0, (0.01, 0.01, 0.02), (0.1, 0.2, 0.3)),
]
KNOWING = [
    swept("ce", 0, (0.02, 0.03, 0.06), (0.2, 0.5, 0.9), (0.001, 0.002, 0.003), (0.1, 0.2, 0.3)),
    swept("ce", 1, (0.04, 0.05, 0.06), (0.4, 0.7, 0.9), (0.001, 0.002, 0.003), (0.1, 0.2, 0.3)),
    swept("flgamma-sece", 0, (0.01, 0.01, 0.02), (0.1, 0.2, 0.3), (0.002, 0.006, 0.018), (0.05, 0.15, 0.25)),
    swept("flgamma-sece", 1, (0.01, 0.02, 0.03), (0.1, 0.2, 0.3), (0.004, 0.008, 0.02), (0.07, 0.17, 0.27)),
]


def test_draw_robustness_lines_and_bands_are_the_sweeps_of_the_records() -> None:
    figure = draw_lines(prepare_robustness(group_rows(OLDER)[0].rows), keys=BINS, title="digits")
    left, right = figure.axes
    # Records of older versions have no line of chance.
    first, second = left.get_lines()
    np.testing.assert_allclose(first.get_xydata(), [(10, 3), (100, 4), (1000, 6)])
    np.testing.assert_allclose(second.get_xydata(), [(10, 1), (100, 1), (1000, 2)])
    np.testing.assert_allclose(right.get_lines()[0].get_ydata(), [30, 60, 90])
    assert [line.get_label() for line in left.get_lines()] == ["CE", "FLγ-SECE (averaged)"]
    assert ends_of_band(right, 10) == pytest.approx((30 - 100 * np.sqrt(0.02), 30 + 100 * np.sqrt(0.02)))
    for ax, name in ((left, "ECE"), (right, "MCE")):
        assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_xscale()) == ("number of bins", f"test {name} (%)", "log")
        assert [tick for tick in ax.get_xticks() if 10 <= tick <= 1000] == [10, 20, 50, 100, 200, 500, 1000]
    assert right.get_ylim() == (0, 100)
    assert left.get_ylim()[0] < 1 < 6 < left.get_ylim()[1]


def test_draw_robustness_chance_is_that_of_the_row_of_least_ece_over_its_seeds() -> None:
    figure = draw_lines(prepare_robustness(group_rows(KNOWING)[0].rows), keys=BINS)
    left, right = figure.axes
    np.testing.assert_allclose(left.get_lines()[-1].get_xydata(), [(10, 0.3), (100, 0.7), (1000, 1.9)])
    np.testing.assert_allclose(right.get_lines()[-1].get_xydata(), [(10, 6), (100, 16), (1000, 26)])
    for ax in (left, right):
        *rows, chance = ax.get_lines()
        assert chance.get_label() == "FLγ-SECE if calibrated"
        assert chance.get_linewidth() < min(row.get_linewidth() for row in rows)
    # It lies below the lines of rows and is seen all the same.
    assert left.get_ylim()[0] < 0.3


def test_draw_robustness_ranks_rows_by_the_ece_over_fifteen_bins() -> None:
    # The first has the least ECE over 10 bins and over 20, the second over 15; a third does not know its chance.
    sweeps = {
        "ce": BinSweep((10, 15, 20), (0.01, 0.05, 0.01), (0.1,) * 3, (0.1,) * 3, (0.1,) * 3),
        "focal": BinSweep((10, 15, 20), (0.02,) * 3, (0.1,) * 3, (0.2,) * 3, (0.2,) * 3),
        "flsd": BinSweep((10, 15, 20), (0.001,) * 3, (0.1,) * 3),
    }
    runs = [replace(run_of(name), test=None, sweep=sweep) for name, sweep in sweeps.items()]
    chance = draw_lines(prepare_robustness(group_rows(runs)[0].rows), keys=BINS).axes[0].get_lines()[-1]
    assert chance.get_label() == "Focal if calibrated"
    np.testing.assert_allclose(chance.get_ydata(), [20] * 3)


def test_prepare_robustness_without_a_sweep_uses_the_predictions() -> None:
    (line,) = prepare_robustness(group_rows([run_of()])[0].rows)
    probs, labels = mixed_gaps(200, 4)
    expected = bin_sweep(Predictions(probs=probs, labels=labels))
    assert line.bands["ece"].x == expected.n_bins
    for key, metric in (("ece", expected_calibration_error), ("mce", maximum_calibration_error)):
        assert line.bands[key].mean == pytest.approx([float(metric(probs, labels, n_bins=m)) for m in expected.n_bins])
    assert line.bands["ece_if_calibrated"].mean == expected.ece_if_calibrated
    assert prepare_robustness(group_rows([replace(run_of(), test=None)])[0].rows) == []


def gamma_runs() -> list[Entry]:
    curve: list[float | None] = [0.3, 0.2, 0.1]
    return [
        run_of("ce", curve=curve),
        run_of("flgamma-sece", seed=0, curve=curve, gamma=[1.0, 1.2, 1.6]),
        run_of("flgamma-sece", seed=1, curve=curve, gamma=[1.0, 1.4, 2.0]),
        run_of("flgamma-sece+ts", temperature=1.5),
    ]


def test_draw_gamma_epochs_line_and_band_are_mean_and_std_over_examples() -> None:
    figure = draw_lines(prepare_gamma_epochs(group_rows(gamma_runs())[0].rows), keys=("gamma",), title="digits")
    ax = figure.axes[0]
    # One row has no gamma, and one was repaired afterwards.
    (line,) = ax.get_lines()
    np.testing.assert_allclose(line.get_xydata(), [(1, 1.0), (2, 1.3), (3, 1.8)])
    # The records' std is a tenth of the mean; the seeds' mean of it at the last epoch is 0.18.
    assert ends_of_band(ax, 3) == pytest.approx((1.62, 1.98))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epoch", "γ on test examples")
    assert figure.legends[0].get_title().get_text().replace("\n", " ") == "digits, mean ± std over examples"
    assert prepare_gamma_epochs(group_rows(gamma_runs()[:1])[0].rows) == []


def test_gamma_confidence_shows_the_examples_and_the_means_of_right_and_wrong() -> None:
    test = Predictions(
        probs=[[0.75, 0.25]] * 10 + [[0.4, 0.6]] * 5,
        labels=[0] * 5 + [1] * 5 + [1] * 5,
        columns={"gamma": [1.0, 2.0, 3.0, 4.0, 5.0] + [7.0] * 5 + [9.0] * 5},
    )
    panels = prepare_gamma_confidence(group_rows([run_of("ce"), replace(run_of("flgamma"), test=test)])[0].rows)
    figure = draw_gamma_confidence(panels, title="digits")
    (ax,) = figure.axes
    lines = {line.get_label(): line for line in ax.get_lines()}
    np.testing.assert_allclose(lines["right"].get_ydata(), [1, 2, 3, 4, 5, 9, 9, 9, 9, 9])
    # The axis is that of what a confidence misses of 1.
    np.testing.assert_allclose(lines["wrong"].get_xydata(), [(0.25, 7)] * 5)
    # Sure to 0.6 and 0.75 and right: gamma 9, and 3 on average; sure to 0.75 and wrong: 7.
    np.testing.assert_allclose(lines["right, mean"].get_xydata(), [(0.4, 9), (0.25, 3)])
    np.testing.assert_allclose(lines["wrong, mean"].get_xydata(), [(0.25, 7)])
    assert lines["right"].get_marker() != lines["wrong"].get_marker()
    assert lines["right"].get_rasterized()
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == ("FLγ", "confidence", "γ")
    assert ax.get_xlim()[0] > 0.4 > 0.25 > ax.get_xlim()[1]
    assert ax.xaxis.get_major_formatter()(0.01) == "0.99"


# Error and ECE in per cent; the published averages of eleven methods on CIFAR-10: a crowded figure.
CROWDED = {
    "ce": (4.812, 4.056),
    "ce+ts": (4.812, 3.083),
    "focal": (4.874, 3.193),
    "flsd": (4.916, 6.904),
    "ls-0.05": (4.744, 2.907),
    "ls-0.1": (4.918, 7.566),
    "mixup": (4.126, 12.857),
    "mmce": (4.808, 4.027),
    "ce-dece": (5.194, 4.106),
    "ce-sece": (5.222, 4.062),
    "flgamma-dece": (5.434, 2.251),
    "flgamma-sece": (5.428, 2.138),
}


def points_of(places: dict[str, tuple[float, float]], *, seeds: int = 1) -> list[TradeoffPoint]:
    entries = [
        run_of(method, seed=seed, error=(error + 0.1 * seed) / 100, ece=(ece + 0.2 * seed) / 100, n=4)
        for method, (error, ece) in places.items()
        for seed in range(seeds)
    ]
    return prepare_tradeoff(group_rows(entries)[0].rows)


def test_prepare_tradeoff_gives_means_and_spread_over_seeds() -> None:
    (point,) = points_of({"ce": (5.0, 4.0)}, seeds=3)
    assert (point.error.mean, point.ece.mean) == pytest.approx((0.051, 0.042))
    assert (point.error.std, point.ece.std) == pytest.approx((0.001, 0.002))
    (single,) = points_of({"ce": (5.0, 4.0)})
    assert (single.error.std, single.ece.std) == (None, None)


def test_prepare_tradeoff_front_holds_what_no_other_beats_in_both() -> None:
    best = {point.label for point in points_of(CROWDED) if point.best}
    assert best == {"Mixup", "LS-0.05", "FLγ-SECE"}


def test_prepare_tradeoff_front_has_no_part_of_the_test_set() -> None:
    easy = run_of("theirs", model=None, epochs=None, error=0.001, ece=0.001)
    easy = replace(easy, scores=replace(easy.scores, n=7))
    runs = [easy, run_of("ce", error=0.05, ece=0.04), run_of("focal", error=0.06, ece=0.05)]
    points = prepare_tradeoff(group_rows(runs)[0].rows)
    assert [(point.label, point.best) for point in points] == [("theirs (7 examples)", False), ("CE", True), ("Focal", False)]
    assert [point.best for point in prepare_tradeoff(group_rows([easy])[0].rows)] == [True]
    # Where only a part has both numbers there is still a front.
    bare = replace(runs[1], scores=replace(runs[1].scores, metrics={}))
    assert [point.best for point in prepare_tradeoff(group_rows([bare, easy])[0].rows)] == [True]


def test_draw_tradeoff_points_lie_at_error_and_ece() -> None:
    ax = draw_tradeoff(points_of({"ce": (5.0, 4.0), "focal": (6.0, 3.0)}, seeds=2)).axes[0]
    drawn = {point.get_label(): point[0].get_xydata()[0] for point in ax.containers}
    assert (drawn["CE"], drawn["Focal"]) == (pytest.approx((5.05, 4.1)), pytest.approx((6.05, 3.1)))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("test error (%)", "test ECE (%)")
    across, up = (bar.get_segments()[0] for bar in ax.containers[0][2])
    # The standard deviation of x and x + 0.1 is 0.1 / sqrt(2).
    assert np.ptp(across[:, 0]) == pytest.approx(2 * 0.1 / np.sqrt(2))
    assert np.ptp(up[:, 1]) == pytest.approx(2 * 0.2 / np.sqrt(2))


def test_draw_tradeoff_front_steps_through_the_best_to_the_edges() -> None:
    ax = draw_tradeoff(points_of(CROWDED, seeds=2), title="cifar10").axes[0]
    (front,) = (line for line in ax.get_lines() if line.get_label() == "Pareto front")
    x, y = front.get_data()
    np.testing.assert_allclose(x[:-1], [4.176, 4.176, 4.794, 5.478])
    np.testing.assert_allclose(y[1:], [12.957, 3.007, 2.238, 2.238])
    assert y[0] > ax.get_ylim()[1]
    assert x[-1] > ax.get_xlim()[1]
    assert front.get_drawstyle() == "steps-post"
    legend = ax.figure.legends[0]
    assert legend.get_title().get_text() == "cifar10, mean ± std over seeds"
    shown = {*(point.row.legend for point in points_of(CROWDED)), "Pareto front"}
    assert {text.get_text() for text in legend.get_texts()} == shown >= {"CE", "FLγ-SECE (averaged)"}


def test_draw_tradeoff_is_as_wide_on_a_page_however_many_rows_there_are() -> None:
    few, many = (draw_tradeoff(points_of(places), legend=False) for places in ({"ce": (5.0, 4.0)}, CROWDED))
    assert many.get_figwidth() == few.get_figwidth()


def test_tradeoff_has_a_front_for_each_number_of_training_examples() -> None:
    trained = {"ce": 45000, "focal": 45000, "flgamma-sece": 40000, "ce-dece": 40000}
    entries = [
        replace(run_of(method, error=error, ece=ece), facts={"examples": {"train": trained[method]}})
        for method, error, ece in (
            ("ce", 0.05, 0.04),
            ("focal", 0.06, 0.05),
            ("flgamma-sece", 0.06, 0.05),
            ("ce-dece", 0.07, 0.06),
        )
    ]
    # Somebody's predictions may be held against all.
    entries.append(run_of("mine", model=None, preset=None, epochs=None, error=0.04, ece=0.09))
    points = prepare_tradeoff(group_rows(entries)[0].rows)
    assert {point.label for point in points if point.best} == {"CE", "FLγ-SECE", "mine"}
    fronts = {
        line.get_label(): line.get_data() for line in draw_tradeoff(points).axes[0].get_lines() if "front" in line.get_label()
    }
    assert {label: list(x[1:-1]) for label, (x, _) in fronts.items()} == {
        "Pareto front (40,000)": pytest.approx([4, 6]),
        "Pareto front (45,000)": pytest.approx([4, 5]),
    }


def test_draw_tradeoff_puts_a_method_that_failed_at_the_edge_and_says_so() -> None:
    ax = draw_tradeoff(points_of({**CROWDED, "flgamma": (16.8, 12.0)})).axes[0]
    drawn = {point.get_label(): point[0].get_xdata()[0] for point in ax.containers}
    edge = drawn.pop("FLγ (averaged) (16.8% error →)")
    assert max(drawn.values()) < edge < ax.get_xlim()[1] < 7
    # Where there is no error at all, every other is above three times the lowest.
    ax = draw_tradeoff(points_of({"ce": (0.0, 4.0), "focal": (16.8, 12.0)})).axes[0]
    assert ax.get_xlim()[1] > 16.8
