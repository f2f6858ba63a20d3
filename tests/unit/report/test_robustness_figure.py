from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibrant.core.entry import BinSweep, Entry
from calibrant.metrics import expected_calibration_error, maximum_calibration_error
from calibrant.metrics.sweep import bin_sweep
from calibrant.report.robustness import draw_robustness, prepare_robustness, usual_ece
from calibrant.report.rows import group_rows
from figure_data import run_of
from helpers import mixed_gaps


def swept(method: str, seed: int, ece: tuple[float, ...], mce: tuple[float, ...]) -> Entry:
    return replace(run_of(method, seed=seed), test=None, sweep=BinSweep((10, 100, 1000), ece, mce))


ENTRIES = [
    swept("ce", 0, (0.02, 0.03, 0.06), (0.2, 0.5, 0.9)),
    swept("ce", 1, (0.04, 0.05, 0.06), (0.4, 0.7, 0.9)),
    swept("flgamma-sece", 0, (0.01, 0.01, 0.02), (0.1, 0.2, 0.3)),
]


def test_draw_robustness_lines_are_the_sweeps_of_the_records() -> None:
    found = prepare_robustness(group_rows(ENTRIES)[0].rows)
    assert found is not None
    left, right = draw_robustness(found).axes
    first, second = left.get_lines()
    np.testing.assert_allclose(first.get_xydata(), [(10, 3), (100, 4), (1000, 6)])
    np.testing.assert_allclose(second.get_xydata(), [(10, 1), (100, 1), (1000, 2)])
    np.testing.assert_allclose(right.get_lines()[0].get_ydata(), [30, 60, 90])
    np.testing.assert_allclose(right.get_lines()[1].get_ydata(), [10, 20, 30])
    assert [line.get_label() for line in left.get_lines()] == ["CE", r"FL$_\gamma$-SECE"]


def test_draw_robustness_axes_are_logarithmic_in_the_bins() -> None:
    found = prepare_robustness(group_rows(ENTRIES)[0].rows)
    assert found is not None
    figure = draw_robustness(found, title="digits")
    left, right = figure.axes
    for ax, name in ((left, "ECE"), (right, "MCE")):
        assert ax.get_xscale() == "log"
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("number of bins", f"test {name} (%)")
        assert [tick for tick in ax.get_xticks() if 10 <= tick <= 1000] == [10, 20, 50, 100, 200, 500, 1000]
    assert right.get_ylim() == (0, 100)
    assert left.get_ylim()[0] < 1 < 6 < left.get_ylim()[1]
    assert figure.legends[0].get_title().get_text() == "digits, mean ± std over 1 to 2 seeds"


def test_draw_robustness_band_is_the_spread_over_seeds() -> None:
    found = prepare_robustness(group_rows(ENTRIES)[0].rows)
    assert found is not None
    assert found.ece[0].std == pytest.approx((np.sqrt(0.0002), np.sqrt(0.0002), 0))
    assert found.ece[1].std is None
    right = draw_robustness(found).axes[1]
    assert len(right.collections) == 1
    corners = right.collections[0].get_paths()[0].vertices
    at_ten = corners[np.isclose(corners[:, 0], 10)][:, 1]
    assert (at_ten.min(), at_ten.max()) == pytest.approx((30 - 100 * np.sqrt(0.02), 30 + 100 * np.sqrt(0.02)))


def with_chance(entry: Entry, ece: tuple[float, ...], mce: tuple[float, ...]) -> Entry:
    assert entry.sweep is not None
    return replace(entry, sweep=replace(entry.sweep, ece_if_calibrated=ece, mce_if_calibrated=mce))


KNOWING = [
    with_chance(ENTRIES[0], (0.001, 0.002, 0.003), (0.1, 0.2, 0.3)),
    with_chance(ENTRIES[1], (0.001, 0.002, 0.003), (0.1, 0.2, 0.3)),
    with_chance(ENTRIES[2], (0.002, 0.006, 0.018), (0.05, 0.15, 0.25)),
    with_chance(swept("flgamma-sece", 1, (0.01, 0.02, 0.03), (0.1, 0.2, 0.3)), (0.004, 0.008, 0.02), (0.07, 0.17, 0.27)),
]


def test_draw_robustness_chance_is_that_of_the_row_of_least_ece_over_its_seeds() -> None:
    found = prepare_robustness(group_rows(KNOWING)[0].rows)
    assert found is not None
    figure = draw_robustness(found)
    left, right = figure.axes
    np.testing.assert_allclose(left.get_lines()[-1].get_xydata(), [(10, 0.3), (100, 0.7), (1000, 1.9)])
    np.testing.assert_allclose(right.get_lines()[-1].get_xydata(), [(10, 6), (100, 16), (1000, 26)])
    for ax in (left, right):
        assert [line.get_label() for line in ax.get_lines()] == ["CE", r"FL$_\gamma$-SECE", r"FL$_\gamma$-SECE if calibrated"]
        *rows, chance = ax.get_lines()
        # It has no marker, is thinner than any row, and lies below all of them.
        assert chance.get_marker() == "None"
        assert chance.get_linewidth() < min(row.get_linewidth() for row in rows)
        assert chance.get_zorder() < min(row.get_zorder() for row in rows)
    # It lies below the lines of rows and is seen all the same.
    assert left.get_ylim()[0] < 0.3
    assert [text.get_text() for text in figure.legends[0].get_texts()][-1] == r"FL$_\gamma$-SECE if calibrated"


def test_prepare_robustness_ranks_rows_by_the_ece_over_fifteen_bins() -> None:
    # The first has the least ECE over 10 bins and over 20, the second over 15.
    one = replace(run_of("ce"), test=None, sweep=BinSweep((10, 15, 20), (0.01, 0.05, 0.01), (0.1,) * 3, (0.1,) * 3, (0.1,) * 3))
    two = replace(run_of("focal"), test=None, sweep=BinSweep((10, 15, 20), (0.02,) * 3, (0.1,) * 3, (0.2,) * 3, (0.2,) * 3))
    found = prepare_robustness(group_rows([one, two])[0].rows)
    assert found is not None
    assert found.chance is not None
    assert found.chance.ece.label == "Focal if calibrated"
    assert found.chance.ece.mean == (0.2,) * 3
    assert usual_ece(found.ece[0]) == 0.05
    # Without 15, the nearest number counts.
    assert usual_ece(replace(found.ece[0], x=(10, 12, 40))) == 0.05


def test_draw_robustness_of_older_records_has_no_line_of_chance() -> None:
    found = prepare_robustness(group_rows(ENTRIES)[0].rows)
    assert found is not None
    assert found.chance is None
    assert all(len(ax.get_lines()) == 2 for ax in draw_robustness(found).axes)


def test_prepare_robustness_takes_chance_from_the_runs_that_say_it() -> None:
    # The row of least ECE does not, and of the other one a single seed does.
    found = prepare_robustness(group_rows([ENTRIES[0], KNOWING[1], ENTRIES[2]])[0].rows)
    assert found is not None
    assert found.chance is not None
    assert found.chance.ece.label == "CE if calibrated"
    assert found.chance.ece.mean == (0.001, 0.002, 0.003)
    assert found.chance.mce.mean == (0.1, 0.2, 0.3)
    assert found.chance.ece.std is None


def test_prepare_robustness_from_predictions_says_what_chance_gives() -> None:
    entry = run_of()
    found = prepare_robustness(group_rows([entry])[0].rows, n_bins=(20, 10))
    assert found is not None
    assert found.chance is not None
    assert entry.test is not None
    expected = bin_sweep(entry.test, n_bins=(10, 20))
    assert found.chance.ece.mean == expected.ece_if_calibrated
    assert found.chance.mce.mean == expected.mce_if_calibrated


def test_draw_robustness_legend_with_a_line_of_chance_stays_inside_the_figure() -> None:
    long = [
        replace(entry, preset=preset) for entry in KNOWING for preset in ("default", "train.average=phase, train.select=last")
    ]
    found = prepare_robustness(group_rows(long)[0].rows)
    assert found is not None
    figure = draw_robustness(found, title="digits")
    figure.draw_without_rendering()
    box, whole = figure.legends[0].get_window_extent(), figure.bbox
    assert box.x0 >= whole.x0
    assert box.x1 <= whole.x1
    assert box.y0 > max(ax.get_window_extent().y1 for ax in figure.axes)


def test_prepare_robustness_without_a_sweep_uses_the_predictions() -> None:
    found = prepare_robustness(group_rows([run_of()])[0].rows, n_bins=(20, 10))
    assert found is not None
    probs, labels = mixed_gaps(200, 4)
    assert found.ece[0].x == (10, 20)
    assert found.ece[0].mean == pytest.approx([float(expected_calibration_error(probs, labels, n_bins=m)) for m in (10, 20)])
    assert found.mce[0].mean == pytest.approx([float(maximum_calibration_error(probs, labels, n_bins=m)) for m in (10, 20)])


def test_prepare_robustness_of_bare_numbers_is_none() -> None:
    assert prepare_robustness(group_rows([replace(run_of(), test=None)])[0].rows) is None


def test_draw_robustness_of_few_bins_shows_ticks_at_them() -> None:
    found = prepare_robustness(group_rows([run_of()])[0].rows, n_bins=(5, 8))
    assert found is not None
    assert draw_robustness(found).axes[0].get_xticks().tolist() == [5, 8]
