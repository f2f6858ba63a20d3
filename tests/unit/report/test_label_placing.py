from __future__ import annotations

import itertools
import math
import random

import pytest

from calibrant.report.placing import Box, place_labels

PAGE = Box(0, 0, 300, 200)


def test_place_labels_of_a_lone_point_is_to_its_right() -> None:
    (box,) = place_labels([(100, 100)], [(40, 8)], inside=PAGE)
    assert box == Box(105, 96, 145, 104)


def test_place_labels_near_the_edge_stays_inside() -> None:
    (box,) = place_labels([(295, 195)], [(40, 8)], inside=PAGE)
    assert box.right <= 300
    assert box.top <= 200


@pytest.mark.parametrize("seed", range(5))
def test_place_labels_of_a_crowd_do_not_meet(seed: int) -> None:
    draw = random.Random(seed)
    points = [(draw.uniform(80, 200), draw.uniform(50, 150)) for _ in range(14)]
    boxes = place_labels(points, [(40, 8)] * 14, inside=PAGE)
    assert all(one.overlap(two) == 0 for one, two in itertools.combinations(boxes, 2))
    assert all(box.left >= 0 and box.bottom >= 0 and box.right <= 300 and box.top <= 200 for box in boxes)


def test_place_labels_of_one_place_for_three_do_not_meet() -> None:
    boxes = place_labels([(100, 100)] * 3, [(40, 8)] * 3, inside=PAGE)
    assert all(one.overlap(two) == 0 for one, two in itertools.combinations(boxes, 2))


def test_place_labels_keeps_off_what_is_taken() -> None:
    taken = Box(103, 90, 160, 110)
    (box,) = place_labels([(100, 100)], [(40, 8)], inside=PAGE, taken=[taken])
    assert box.overlap(taken) == 0


def test_place_labels_is_nearest_to_its_own_point() -> None:
    points = [(100.0, 100.0), (112.0, 100.0)]
    first, second = place_labels(points, [(30, 8)] * 2, inside=PAGE)
    assert first.nearest(points[0]) != points[1]
    assert second.left >= 112


def test_box_overlap_is_the_shared_area() -> None:
    assert Box(0, 0, 4, 4).overlap(Box(2, 3, 9, 9)) == 2
    assert Box(0, 0, 4, 4).overlap(Box(4, 0, 9, 9)) == 0
    assert Box(0, 0, 4, 2).middle == (2, 1)
    assert Box(0, 0, 4, 2).nearest((9, 1)) == (4, 1)


def test_place_labels_of_nothing_is_nothing() -> None:
    assert place_labels([], [], inside=PAGE) == []


def test_box_is_moved_no_further_than_needed() -> None:
    outer = Box(0, 0, 100, 50)
    assert Box(-5, 10, 15, 20).moved_into(outer) == Box(0, 10, 20, 20)
    assert Box(90, 45, 110, 55).moved_into(outer) == Box(80, 40, 100, 50)
    assert Box(10, 10, 20, 20).moved_into(outer) == Box(10, 10, 20, 20)
    assert Box(-10, 10, 140, 20).moved_into(outer) == Box(0, 10, 150, 20)
    assert Box(10, 10, 140, 20).moved_into(outer) == Box(0, 10, 130, 20)


def test_place_labels_keeps_a_long_label_beside_a_point_in_a_narrow_frame_inside() -> None:
    # To either side of the point there is too little room for it.
    (box,) = place_labels([(50, 50)], [(80, 8)], inside=Box(0, 0, 100, 100))
    assert Box(0, 0, 100, 100).overlap(box) == 80 * 8
    assert not box.holds(50, 50)


def test_place_labels_covers_no_other_text_for_a_shorter_way() -> None:
    # An obstacle may be covered where everything else is further away; a text, as the legend, may not.
    text = Box(60, 60, 150, 140)
    (box,) = place_labels([(100, 100)], [(10, 4)], inside=PAGE, texts=[text])
    assert box.overlap(text) == 0


def test_place_labels_puts_no_name_right_beside_the_marker_of_another() -> None:
    # The trade-off on CIFAR-10 around cross-entropy: names, widths of labels and the front as they are drawn there.
    drawn = {
        "CE": (94.5, 154.7, 10.6),
        "CE (TS)": (94.5, 82.3, 27.7),
        "Focal": (86.4, 137.2, 20.7),
        "FLSD": (111.8, 112.5, 20.3),
        "LS-0.05": (100.3, 144.6, 28.4),
        "MMCE": (101.8, 155.2, 24.0),
        "CE-DECE": (95.3, 135.6, 33.6),
        "CE-SECE": (93.3, 129.0, 32.1),
        "FLγ-DECE": (94.5, 134.4, 37.3),
    }
    points, widths = [(x, y) for x, y, _ in drawn.values()], [width for _, _, width in drawn.values()]
    front = [
        Box(85.4, 136.2, 87.4, 185.3),
        Box(85.4, 136.2, 94.3, 138.2),
        Box(92.3, 128, 94.3, 138.2),
        Box(92.8, 54.7, 94.8, 130),
    ]
    boxes = place_labels(points, [(width, 8.6) for width in widths], inside=Box(35.2, 31.4, 361.2, 226.3), taken=front)
    for (own, box), (other, point) in itertools.product(enumerate(boxes), enumerate(points)):
        beside = math.dist(point, box.nearest(point))
        assert own == other or beside > 6 or beside > math.dist(points[own], box.nearest(points[own]))
