from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from calibrant.report.rows import group_rows
from calibrant.report.tradeoff import TradeoffPoint, draw_tradeoff, prepare_tradeoff
from figure_data import run_of

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
    assert (point.error, point.ece) == pytest.approx((0.051, 0.042))
    assert (point.error_std, point.ece_std) == pytest.approx((0.001, 0.002))
    assert point.seeds == 3
    (single,) = points_of({"ce": (5.0, 4.0)})
    assert (single.error_std, single.ece_std) == (None, None)


def test_prepare_tradeoff_front_holds_what_no_other_beats_in_both() -> None:
    best = {point.label for point in points_of(CROWDED) if point.best}
    assert best == {"Mixup", "LS-0.05", "FLγ-SECE"}


def test_prepare_tradeoff_of_equal_rows_keeps_both() -> None:
    points = points_of({"ce": (5.0, 4.0), "focal": (5.0, 4.0), "flsd": (5.0, 4.1)})
    assert [point.best for point in points] == [True, True, False]


def test_prepare_tradeoff_front_has_no_part_of_the_test_set() -> None:
    easy = run_of("theirs", model=None, epochs=None, error=0.001, ece=0.001)
    easy = replace(easy, scores=replace(easy.scores, n=7))
    runs = [easy, run_of("ce", error=0.05, ece=0.04), run_of("focal", error=0.06, ece=0.05)]
    points = prepare_tradeoff(group_rows(runs)[0].rows)
    assert [(point.label, point.best) for point in points] == [("theirs", False), ("CE", True), ("Focal", False)]
    assert [point.best for point in prepare_tradeoff(group_rows([easy])[0].rows)] == [True]
    # Where only a part has both numbers there is still a front.
    bare = replace(runs[1], scores=replace(runs[1].scores, metrics={}))
    assert [point.best for point in prepare_tradeoff(group_rows([bare, easy])[0].rows)] == [True]


def test_prepare_tradeoff_leaves_out_rows_without_a_number() -> None:
    known, unknown, other = run_of("ce"), run_of("focal", ece=float("nan")), run_of("flsd")
    bare = replace(other, scores=replace(other.scores, metrics={"error": other.scores["error"]}))
    assert [point.label for point in prepare_tradeoff(group_rows([known, unknown, bare])[0].rows)] == ["CE"]


def test_draw_tradeoff_points_lie_at_error_and_ece() -> None:
    ax = draw_tradeoff(points_of({"ce": (5.0, 4.0), "focal": (6.0, 3.0)}, seeds=2)).axes[0]
    drawn = [container[0] for container in ax.containers]
    assert [line.get_xydata()[0] for line in drawn] == [pytest.approx((5.05, 4.1)), pytest.approx((6.05, 3.1))]
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
    assert ax.get_title() == "cifar10, mean ± std over 2 seeds"


def test_draw_tradeoff_axes_hold_every_point() -> None:
    ax = draw_tradeoff(points_of(CROWDED)).axes[0]
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    for error, ece in CROWDED.values():
        assert left < error < right
        assert bottom < ece < top
    assert ax.get_yscale() == "log"


def test_draw_tradeoff_of_nothing_but_zeros_is_linear() -> None:
    assert draw_tradeoff(points_of({"ce": (5.0, 0.0), "focal": (4.0, 0.0)})).axes[0].get_yscale() == "linear"


@pytest.mark.parametrize("seeds", [1, 3])
def test_draw_tradeoff_labels_of_a_crowd_do_not_meet(seeds: int) -> None:
    figure = draw_tradeoff(points_of(CROWDED, seeds=seeds))
    ax = figure.axes[0]
    assert [text.get_text() for text in ax.texts][:2] == ["CE", "CE (TS)"]
    figure.draw_without_rendering()
    # Of the text alone: that of an annotation holds the line to its point.
    boxes = [super(type(text), text).get_window_extent() for text in ax.texts]
    for place, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:place]), ax.texts[place].get_text()
        assert ax.get_window_extent().containsx(box.x0)
        assert ax.get_window_extent().containsx(box.x1)


@pytest.mark.parametrize("rows", [2, 6, 8])
def test_draw_tradeoff_labels_of_long_settings_are_whole_and_inside_the_axes(rows: int) -> None:
    settings = [f"train.average=phase, train.average_share={k}.0, optim.weight_decay=0.00{k}" for k in range(1, rows)]
    made = [run_of(preset=text, error=0.1 + 0.001 * k, ece=0.03 + 0.004 * k) for k, text in enumerate(["default", *settings])]
    figure = draw_tradeoff(prepare_tradeoff(group_rows(made)[0].rows))
    figure.draw_without_rendering()
    ax = figure.axes[0]
    whole = [text.get_text().replace("\n", " ") for text in ax.texts]
    assert whole[1] == "CE (average=phase, average_share=1.0, weight_decay=0.001)"
    outer = ax.get_window_extent()
    for text in ax.texts:
        box = super(type(text), text).get_window_extent()
        assert outer.x0 < box.x0 < box.x1 < outer.x1, text.get_text()
        assert outer.y0 < box.y0 < box.y1 < outer.y1, text.get_text()


def test_draw_tradeoff_leaves_room_beside_a_method_that_failed() -> None:
    ax = draw_tradeoff(points_of(CROWDED)).axes[0]
    assert ax.get_xscale() == "linear"
    ax = draw_tradeoff(points_of({**CROWDED, "flgamma": (16.8, 12.0)})).axes[0]
    assert ax.get_xscale() == "log"
    low, high = ax.get_xlim()
    assert low < 4.126 < 16.8 < high
    ticks = [tick for tick in ax.get_xticks() if low <= tick <= high]
    assert len(ticks) >= 3
    assert [text.get_text() for text in ax.get_xticklabels()] == [f"{tick:g}" for tick in ticks]
    # No error at all has no place on such an axis.
    assert draw_tradeoff(points_of({"ce": (0.0, 4.0), "focal": (16.8, 12.0)})).axes[0].get_xscale() == "linear"
