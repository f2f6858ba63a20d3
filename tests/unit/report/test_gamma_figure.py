from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibrant import Predictions
from calibrant.core.entry import Entry
from calibrant.report.gamma import (
    GammaPanel,
    draw_gamma_confidence,
    draw_gamma_epochs,
    prepare_gamma_confidence,
    prepare_gamma_epochs,
    running_mean,
    stretch,
)
from calibrant.report.rows import group_rows
from figure_data import run_of


def gamma_runs() -> list[Entry]:
    curve: list[float | None] = [0.3, 0.2, 0.1]
    return [
        run_of("ce", curve=curve),
        run_of("flgamma-sece", seed=0, curve=curve, gamma=[1.0, 1.2, 1.6]),
        run_of("flgamma-sece", seed=1, curve=curve, gamma=[1.0, 1.4, 2.0]),
    ]


def test_draw_gamma_epochs_line_and_band_are_mean_and_std_over_examples() -> None:
    found = prepare_gamma_epochs(group_rows(gamma_runs())[0].rows)
    assert found is not None
    figure = draw_gamma_epochs(found, title="digits")
    ax = figure.axes[0]
    assert len(ax.get_lines()) == 1
    np.testing.assert_allclose(ax.get_lines()[0].get_xydata(), [(1, 1.0), (2, 1.3), (3, 1.8)])
    # The records' std is a tenth of the mean; the seeds' mean of it at the last epoch is 0.18.
    corners = ax.collections[0].get_paths()[0].vertices
    at_end = corners[np.isclose(corners[:, 0], 3)][:, 1]
    assert (at_end.min(), at_end.max()) == pytest.approx((1.62, 1.98))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("epoch", r"$\gamma$ on test examples")
    legend = figure.legends[0]
    assert legend.get_title().get_text() == "digits\nmean ± std over examples, 2 seeds"
    assert [text.get_text() for text in legend.get_texts()] == [r"FL$_\gamma$-SECE"]


def test_draw_gamma_epochs_says_how_many_seeds_every_row_has() -> None:
    runs = [run_of("flgamma-sece", seed=seed, curve=[0.1, 0.2], gamma=[1.0, 1.2]) for seed in (0, 1)]
    found = prepare_gamma_epochs(group_rows([*runs, run_of("flgamma-dece", curve=[0.1, 0.2], gamma=[1.0, 1.2])])[0].rows)
    assert found is not None
    assert draw_gamma_epochs(found).legends[0].get_title().get_text() == "mean ± std over examples, 1 to 2 seeds"


def test_draw_gamma_epochs_names_whole_epochs_only() -> None:
    found = prepare_gamma_epochs(group_rows([run_of("flgamma-sece", curve=[0.1] * 4, gamma=[1.0, 1.2, 1.4, 1.5])])[0].rows)
    assert found is not None
    ax = draw_gamma_epochs(found).axes[0]
    left, right = ax.get_xlim()
    assert [tick for tick in ax.get_xticks() if left <= tick <= right] == [1, 2, 3, 4]
    assert ax.get_xlabel() == "epoch"


def test_prepare_gamma_epochs_leaves_out_repaired_runs() -> None:
    runs = [run_of(name, curve=[0.1, 0.2], gamma=[1.0, 1.2]) for name in ("flgamma-sece", "flgamma-sece+ts")]
    found = prepare_gamma_epochs(group_rows([runs[0], replace(runs[1], temperature=1.5)])[0].rows)
    assert found is not None
    assert [band.label for band in found.mean] == [r"FL$_\gamma$-SECE"]


def test_prepare_gamma_of_methods_without_gamma_is_none() -> None:
    rows = group_rows(gamma_runs()[:1])[0].rows
    assert prepare_gamma_epochs(rows) is None
    assert prepare_gamma_confidence(rows) == []


def test_draw_gamma_confidence_points_are_the_examples() -> None:
    rows = group_rows(gamma_runs())[0].rows
    panel = prepare_gamma_confidence(rows, seed=0)[0]
    test = rows[1].run(0).test
    assert test is not None
    figure = draw_gamma_confidence([panel], title="digits")
    right, wrong = figure.axes[0].get_lines()[:2]
    correct = test.correct.numpy()
    np.testing.assert_allclose(right.get_xdata(), test.confidence.numpy()[correct])
    np.testing.assert_allclose(right.get_ydata(), test.columns["gamma"][correct])
    np.testing.assert_allclose(wrong.get_xdata(), test.confidence.numpy()[~correct])
    np.testing.assert_allclose(wrong.get_ydata(), test.columns["gamma"][~correct])
    assert (right.get_label(), wrong.get_label()) == ("right", "wrong")
    assert right.get_marker() != wrong.get_marker()
    assert right.get_rasterized()


def test_draw_gamma_confidence_means_are_those_of_the_record() -> None:
    confidence = np.array([0.5] * 5 + [0.99] * 5 + [0.5] * 5)
    gamma = np.array([1.0, 2, 3, 4, 5] + [3.0] * 5 + [7.0] * 5)
    correct = np.array([True] * 10 + [False] * 5)
    means = {right: running_mean(confidence[correct == right], gamma[correct == right]) for right in (True, False)}
    ax = draw_gamma_confidence([GammaPanel("mine", confidence, gamma, correct, means)]).axes[0]
    lines = {line.get_label(): line for line in ax.get_lines()}
    np.testing.assert_allclose(lines["right, mean"].get_xydata(), [(0.5, 3), (0.99, 3)])
    np.testing.assert_allclose(lines["wrong, mean"].get_xydata(), [(0.5, 7)])


def test_prepare_gamma_confidence_means_are_of_right_and_wrong_apart() -> None:
    test = Predictions(
        probs=[[0.75, 0.25]] * 10 + [[0.4, 0.6]] * 5,
        labels=[0] * 5 + [1] * 5 + [1] * 5,
        columns={"gamma": [1.0, 2.0, 3.0, 4.0, 5.0] + [7.0] * 5 + [9.0] * 5},
    )
    (panel,) = prepare_gamma_confidence(group_rows([replace(run_of("flgamma"), test=test)])[0].rows)
    # Sure to 0.6 and 0.75 and right: gamma 9, and 3 on average; sure to 0.75 and wrong: 7.
    np.testing.assert_allclose(np.transpose(panel.means[True]), [(0.6, 9), (0.75, 3)])
    np.testing.assert_allclose(np.transpose(panel.means[False]), [(0.75, 7)])


def test_draw_gamma_confidence_axes_reach_from_the_least_confidence_to_1() -> None:
    panels = prepare_gamma_confidence(group_rows(gamma_runs())[0].rows)
    figure = draw_gamma_confidence(panels)
    ax = figure.axes[0]
    least = float(panels[0].confidence.min())
    assert ax.get_xlim()[0] < least
    assert ax.get_xlim()[1] >= 1
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("confidence", r"$\gamma$")
    assert ax.get_xticks()[-1] == 1
    assert figure.legends[0].get_title().get_text() == r"FL$_\gamma$-SECE"


def test_draw_gamma_confidence_of_several_methods_titles_each() -> None:
    panels = [GammaPanel(name, np.array([0.5, 0.9]), np.array([2.0, 1.0]), np.array([False, True]), {}) for name in "abcd"]
    figure = draw_gamma_confidence(panels, title="digits")
    assert [ax.get_title() for ax in figure.axes] == ["a", "b", "c", "d"]
    assert figure.legends[0].get_title().get_text() == "digits"


def test_draw_gamma_confidence_of_several_methods_has_one_range_that_holds_every_example() -> None:
    starts = (0.6, 0.3, 0.9)
    panels = [GammaPanel("a", np.array([x, 1.0]), np.array([2.0, 1.0]), np.array([False, True]), {}) for x in starts]
    ranges = {ax.get_xlim() for ax in draw_gamma_confidence(panels).axes}
    assert len(ranges) == 1
    assert ranges.pop()[0] < 0.3


@pytest.mark.parametrize("panels", [1, 2, 3])
def test_draw_gamma_confidence_numbers_at_the_axis_do_not_meet(panels: int) -> None:
    confidence = np.array([0.2, 0.9, 1.0])
    panel = GammaPanel("a", confidence, np.array([2.0, 1.0, 1.0]), np.array([False, True, True]), {})
    figure = draw_gamma_confidence([panel] * panels)
    figure.draw_without_rendering()
    for ax in figure.axes:
        boxes = [label.get_window_extent() for label in ax.get_xticklabels()]
        assert len(boxes) == 5
        assert all(left.x1 < right.x0 for left, right in zip(boxes, boxes[1:], strict=False))


def test_running_mean_leaves_out_groups_of_less_than_five() -> None:
    x, y = running_mean(np.array([0.5] * 4 + [0.99] * 5), np.ones(9))
    assert x == pytest.approx([0.99])
    assert y == pytest.approx([1.0])
    empty = running_mean(np.empty(0), np.empty(0))
    assert [len(values) for values in empty] == [0, 0]


def test_stretch_is_finite_and_rising_up_to_1() -> None:
    places = stretch(np.array([0.0, 0.5, 0.9, 0.99, 0.999, 1.0]))
    assert np.all(np.diff(places) > 0)
    assert places[-1] == pytest.approx(4)
    assert places[2] == pytest.approx(1, abs=1e-3)


def test_draw_gamma_confidence_of_nothing_raises() -> None:
    with pytest.raises(ValueError, match="draw_gamma_confidence: `panels` must hold at least one run with gammas, got none"):
        draw_gamma_confidence([])


@pytest.mark.parametrize(("other", "scale"), [(30.0, "linear"), (800.0, "symlog")])
def test_draw_gamma_epochs_shows_a_small_gamma_beside_one_that_grew(other: float, scale: str) -> None:
    curve: list[float | None] = [0.3, 0.2, 0.1]
    grown = run_of("flgamma", curve=curve, gamma=[1.0, 20.0, other])
    found = prepare_gamma_epochs(group_rows([*gamma_runs(), grown])[0].rows)
    assert found is not None
    ax = draw_gamma_epochs(found).axes[0]
    assert ax.get_yscale() == scale
    heights = ax.transAxes.inverted().transform(ax.transData.transform([(1, 0.0), (1, 1.8), (1, other)]))[:, 1]
    assert 0 <= heights[0] < heights[1] < heights[2] < 1
    if scale == "symlog":
        assert heights[1] > 0.2
        assert [tick for tick in ax.get_yticks() if 0 <= tick < ax.get_ylim()[1]] == [0, 1, 10, 100, 1000]
        assert ax.yaxis.get_major_formatter()(1000, 0) == "1000"
