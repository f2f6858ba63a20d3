from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibrant.core.entry import BinSweep, Entry
from calibrant.metrics import expected_calibration_error, maximum_calibration_error
from calibrant.report.robustness import draw_robustness, prepare_robustness
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
