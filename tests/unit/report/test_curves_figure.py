from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from calibrant.report.bands import Band, band_of, log_axis, log_ticks, seeds_note
from calibrant.report.curves import LearningCurves, draw_curves, learning_rate_drops, prepare_curves
from calibrant.report.rows import Row, group_rows
from calibrant.report.style import METHOD_STYLES
from figure_data import run_of

CE = METHOD_STYLES["ce"]


def two_methods() -> LearningCurves:
    entries = [
        run_of("ce", seed=0, curve=[0.2, None, 0.04]),
        run_of("ce", seed=1, curve=[0.4, 0.1, 0.06]),
        run_of("focal", seed=0, curve=[0.3, 0.2, 0.02]),
    ]
    found = prepare_curves(group_rows(entries)[0].rows)
    assert found is not None
    return found


def test_prepare_curves_takes_mean_and_spread_over_seeds_at_shared_epochs() -> None:
    curves = two_methods()
    first, second = curves.ece
    # The first seed was not evaluated in its second epoch.
    assert first.x == (1, 3)
    assert first.mean == pytest.approx((0.3, 0.05))
    assert first.std == pytest.approx((np.sqrt(0.02), np.sqrt(0.0002)))
    assert (second.x, second.mean, second.std) == ((1, 2, 3), (0.3, 0.2, 0.02), None)
    assert curves.error[1].mean == pytest.approx((0.6, 0.4, 0.04))


def test_prepare_curves_finds_where_the_learning_rate_drops() -> None:
    # 0.1, 0.1, 0.01: the third epoch is the first at a tenth.
    assert two_methods().drops == (3,)


def test_learning_rate_drops_are_those_to_half_or_less() -> None:
    rates = (0.4, 0.2, 0.11, 0.11, 0.01)
    assert learning_rate_drops(replace(run_of(), history=tuple({"lr": rate} for rate in rates))) == (2, 5)


def test_prepare_curves_of_validation_reads_the_other_column() -> None:
    found = prepare_curves(group_rows([run_of(curve=[0.2, 0.1])])[0].rows, split="val")
    assert found is not None
    assert found.ece[0].mean == (0.1, 0.05)


def test_prepare_curves_leaves_out_repaired_runs_and_those_without_history() -> None:
    entries = [run_of("ce", curve=[0.2]), run_of("ce+ts", curve=[0.2], temperature=1.5), run_of("focal")]
    found = prepare_curves(group_rows(entries)[0].rows)
    assert found is not None
    assert [band.label for band in found.ece] == ["CE"]
    assert prepare_curves(group_rows(entries[1:])[0].rows) is None


def test_draw_curves_lines_are_the_means_in_per_cent() -> None:
    left, right = draw_curves(two_methods()).axes
    lines = {line.get_label(): line for line in left.get_lines()}
    np.testing.assert_allclose(lines["CE"].get_xydata(), [(1, 30), (3, 5)])
    np.testing.assert_allclose(lines["Focal"].get_xydata(), [(1, 30), (2, 20), (3, 2)])
    np.testing.assert_allclose(right.get_lines()[1].get_ydata(), [60, 40, 4])
    assert lines["CE"].get_color() == CE.color
    assert lines["CE"].get_marker() == CE.marker


def test_draw_curves_band_is_one_standard_deviation() -> None:
    left = draw_curves(two_methods()).axes[0]
    bands = [found for found in left.collections if isinstance(found, PolyCollection)]
    assert len(bands) == 1
    corners = bands[0].get_paths()[0].vertices
    at_one = corners[np.isclose(corners[:, 0], 1)][:, 1]
    assert (at_one.min(), at_one.max()) == pytest.approx((30 - 100 * np.sqrt(0.02), 30 + 100 * np.sqrt(0.02)))


def test_draw_curves_axes_are_named_logarithmic_and_hold_everything() -> None:
    left, right = draw_curves(two_methods()).axes
    assert (left.get_xlabel(), left.get_ylabel()) == ("epoch", "test ECE (%)")
    assert (right.get_xlabel(), right.get_ylabel()) == ("epoch", "test error (%)")
    assert left.get_yscale() == "log"
    low, high = left.get_ylim()
    assert low < 2
    assert high > 30 + 100 * np.sqrt(0.02)
    # The drop lies between the second and the third epoch.
    assert [line.get_xdata()[0] for line in left.get_lines() if line.get_linestyle() == ":"] == [2.5]


def test_prepare_curves_takes_the_drops_from_a_row_with_a_history() -> None:
    theirs = run_of("theirs", model=None, preset=None, epochs=None, seed=None)
    found = prepare_curves(group_rows([theirs, run_of(curve=[0.3, 0.2, 0.1])])[0].rows)
    assert found is not None
    assert found.drops == (3,)
    assert [band.label for band in found.ece] == ["CE"]


@pytest.mark.parametrize("epochs", [1, 2, 4, 5, 8, 350])
def test_draw_curves_names_whole_epochs_only(epochs: int) -> None:
    found = prepare_curves(group_rows([run_of(curve=[0.1] * epochs)])[0].rows)
    assert found is not None
    figure = draw_curves(found)
    figure.draw_without_rendering()
    for ax in figure.axes:
        left, right = ax.get_xlim()
        shown = [tick for tick in ax.get_xticks() if left <= tick <= right]
        assert shown
        assert all(tick == round(tick) and 0 <= tick <= epochs for tick in shown)
        assert all(text.get_text().isdigit() for text in ax.get_xticklabels() if left <= text.get_position()[0] <= right)


def test_draw_curves_of_many_long_labels_folds_them_and_leaves_the_axes_their_height() -> None:
    settings = [f"train.average=phase, train.average_share=0.{k}, optim.weight_decay=0.00{k}" for k in range(1, 8)]
    usual = draw_curves(two_methods())
    found = prepare_curves(group_rows([run_of(curve=[0.2, 0.1], preset=text) for text in ("default", *settings)])[0].rows)
    assert found is not None
    figure = draw_curves(found, title="digits")
    for one in (usual, figure):
        one.draw_without_rendering()
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert texts[1] == "CE (average=phase, average_share=0.1,\nweight_decay=0.001)"
    assert not any("…" in text for text in texts)
    assert figure.get_figwidth() == usual.get_figwidth()
    assert figure.bbox.containsx(figure.legends[0].get_window_extent().x0)
    assert figure.bbox.containsx(figure.legends[0].get_window_extent().x1)
    heights = [one.axes[0].get_window_extent().height for one in (usual, figure)]
    assert heights[1] > 0.85 * heights[0]


def test_draw_curves_of_many_settings_gives_each_line_a_look_of_its_own() -> None:
    settings = ["default", "train.average=ema", "train.select=last", "train.average=phase", "optim.lr=0.2", "data.val=300"]
    found = prepare_curves(group_rows([run_of(curve=[0.2, 0.1], preset=text) for text in settings])[0].rows)
    assert found is not None
    lines = draw_curves(found).axes[0].get_lines()[: len(settings)]
    looks = {(line.get_color(), line.get_marker(), str(line._dash_pattern)) for line in lines}  # type: ignore[attr-defined]
    assert len(looks) == len(settings)
    assert lines[0].get_color() == CE.color


def test_draw_curves_of_validation_says_so() -> None:
    found = prepare_curves(group_rows([run_of(curve=[0.2, 0.1])])[0].rows, split="val")
    assert found is not None
    assert draw_curves(found).axes[0].get_ylabel() == "validation ECE (%)"


def test_draw_curves_legend_says_what_the_bands_are() -> None:
    legend = draw_curves(two_methods(), title="digits").legends[0]
    assert legend.get_title().get_text() == "digits, mean ± std over 1 to 2 seeds"
    assert [text.get_text() for text in legend.get_texts()] == ["CE", "Focal"]


def test_draw_curves_of_an_ece_of_zero_has_zero_at_the_axis() -> None:
    found = prepare_curves(group_rows([run_of(curve=[0.1, 0.0, 0.05])])[0].rows)
    assert found is not None
    low, high = draw_curves(found).axes[0].get_ylim()
    assert (low, high) == pytest.approx((-5 / 1.15 / 3, 10 * 1.15))


def test_band_of_curves_without_a_shared_point_is_none() -> None:
    row = Row("CE", CE, ())
    assert band_of(row, [([1], [0.1]), ([2], [0.2])]) is None
    assert band_of(row, [([], [])]) is None
    assert band_of(row, [([1], [float("nan")])]) is None
    # A run that has no curve does not take that of the others away.
    found = band_of(row, [([], []), ([2], [0.2])])
    assert found is not None
    assert (found.x, found.seeds) == ((2,), 1)


def test_seeds_note_says_what_every_row_has() -> None:
    assert seeds_note([]) is None
    assert seeds_note([1, 1]) is None
    assert seeds_note([3, 1]) == "mean ± std over 1 to 3 seeds"
    assert seeds_note([5, 3]) == "mean ± std over 3 to 5 seeds"
    assert seeds_note([2, 2]) == "mean ± std over 2 seeds"


def test_log_axis_holds_bands_that_stay_away_from_zero() -> None:
    ax = Figure().subplots()
    log_axis(ax, [Band("CE", CE, (1, 2), (0.04, 0.05), (0.01, 0.02), 2)])
    assert ax.get_ylim() == pytest.approx((3 / 1.15, 7 * 1.15))
    log_axis(ax, [Band("CE", CE, (1, 2), (0.04, 0.05), (0.04, 0.0), 2)])
    assert ax.get_ylim() == pytest.approx((2 / 1.15, 8 * 1.15))


@pytest.mark.parametrize("least", [0.0, 1e-7])
def test_log_axis_is_not_stretched_by_what_is_nearly_zero(least: float) -> None:
    ax = Figure().subplots()
    log_axis(ax, [Band("CE", CE, (1, 2), (0.04, 0.05), None, 1), Band("mine", CE, (1, 2), (least, 0.01), None, 1)])
    bottom, low, high, top = (ax.transData.transform((0, y))[1] for y in (ax.get_ylim()[0], 1.0, 5.0, ax.get_ylim()[1]))
    # A fifth is half of the height, and zero is on the axis.
    assert (high - low) / (top - bottom) > 0.5
    assert ax.get_ylim()[0] < 0
    assert ax.get_yticks()[0] == 0


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.8, 60, [1, 2, 5, 10, 20, 50]),
        (4, 11, [5, 7, 10]),
        (4.8, 5.2, [4.8, 5, 5.2]),
        (20.6, 28.9, [22, 24, 26, 28]),
        (24.99, 25.02, [24.99, 25, 25.01, 25.02]),
        (0.001, 90, [0.001, 0.01, 0.1, 1, 10]),
        (0.04, 90, [0.1, 0.3, 1, 3, 10, 30]),
    ],
)
def test_log_ticks_are_round_and_neither_few_nor_many(low: float, high: float, ticks: list[float]) -> None:
    assert log_ticks(low, high) == pytest.approx(ticks)
