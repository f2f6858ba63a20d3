"""Where to write the names of points so that no two texts meet."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

Point = tuple[float, float]

_ROUNDS = 3
# A label this near to a point, in points, stands beside its marker.
_BESIDE = 8.0


class Box(NamedTuple):
    """A rectangle, in points (1/72 inch)."""

    left: float
    bottom: float
    right: float
    top: float

    def overlap(self, other: Box) -> float:
        """Area that two boxes share."""
        wide = min(self.right, other.right) - max(self.left, other.left)
        high = min(self.top, other.top) - max(self.bottom, other.bottom)
        return max(wide, 0.0) * max(high, 0.0)

    @property
    def middle(self) -> Point:
        """Its centre."""
        return (self.left + self.right) / 2, (self.bottom + self.top) / 2

    def grown(self, by: float) -> Box:
        """The box with ``by`` points more on every side."""
        return Box(self.left - by, self.bottom - by, self.right + by, self.top + by)

    def holds(self, x: float, y: float) -> bool:
        """Whether a point lies inside."""
        return self.left <= x <= self.right and self.bottom <= y <= self.top

    def moved_into(self, outer: Box) -> Box:
        """The box, moved as little as needed to lie in ``outer``; where it is too large for that, at its left or lower side."""
        right = max(outer.left - self.left, 0.0) or min(max(outer.right - self.right, outer.left - self.left), 0.0)
        up = max(outer.bottom - self.bottom, 0.0) or min(max(outer.top - self.top, outer.bottom - self.bottom), 0.0)
        return Box(self.left + right, self.bottom + up, self.right + right, self.top + up)

    def nearest(self, point: Point) -> Point:
        """The point of the box that is nearest to ``point``."""
        return min(max(point[0], self.left), self.right), min(max(point[1], self.bottom), self.top)


def place_labels(
    points: Sequence[Point],
    sizes: Sequence[tuple[float, float]],
    *,
    inside: Box,
    taken: Sequence[Box] = (),
    texts: Sequence[Box] = (),
) -> list[Box]:
    """Choose a box for the label of every point, near it, inside the axes and apart from all other labels and obstacles.

    Labels are placed one after the other, those with the nearest neighbours first, and then a few times anew given all the
    others. Each takes the cheapest of about 150 places around its point: two texts on each other cost most, then a line
    from label to point through another text, a text nearer to another point or on an obstacle, and last the distance.

    Args:
        points: The points.
        sizes: Width and height of each label.
        inside: Where labels may lie.
        taken: What they should not cover, besides the points.
        texts: Other texts, which they should cover no more than each other.

    Returns:
        The boxes, in the order of the points.

    Example:
        >>> place_labels([(50, 50)], [(20, 8)], inside=Box(0, 0, 100, 100))
        [Box(left=55.0, bottom=46.0, right=75.0, top=54.0)]
    """
    spots = [Box(x - 3, y - 3, x + 3, y + 3) for x, y in points]
    order = sorted(range(len(points)), key=lambda i: _nearest(points, i))
    found: dict[int, Box] = {}
    for _ in range(_ROUNDS):
        before = dict(found)
        for index in order:
            labels = [(points[i], box) for i, box in found.items() if i != index] + [(box.middle, box) for box in texts]
            strange = [spot for i, spot in enumerate(spots) if i != index]
            least = math.inf
            for free, distance in _places(*points[index], *sizes[index]):
                if distance >= least:
                    break  # all that follow are further away
                box = free.moved_into(inside)
                cost = distance + _cost_of_texts(box, points[index], labels, inside)
                if cost < least:
                    cost += _cost_of_marks(box, points[index], strange, spots) + sum(box.overlap(mark) for mark in taken)
                if cost < least:
                    found[index], least = box, cost
        if found == before:
            break
    return [found[index] for index in range(len(points))]


def _cost_of_texts(box: Box, point: Point, labels: Sequence[tuple[Point, Box]], inside: Box) -> float:
    outside = box.overlap(box) - box.overlap(inside)
    met = sum(box.grown(2).overlap(other) for _, other in labels)
    crossed = sum(_crosses(point, box, other) + _crosses(place, other, box) for place, other in labels)
    return 1000 * (outside + met) + 200 * crossed


def _cost_of_marks(box: Box, point: Point, strange: Sequence[Box], spots: Sequence[Box]) -> float:
    covered = sum(box.overlap(spot) for spot in spots)
    crossed = sum(_crosses(point, box, spot) for spot in strange)
    # A label nearer to another point would be taken for that one's, above all where it stands right beside it.
    own = math.dist(point, box.nearest(point))
    nearer = [far for far in (math.dist(spot.middle, box.nearest(spot.middle)) for spot in strange) if far < own]
    return 5 * covered + 100 * crossed + sum(60 + 10 * max(_BESIDE - far, 0.0) for far in nearer)


def _crosses(point: Point, label: Box, other: Box) -> int:
    """How much of the line from ``point`` to its ``label`` runs through ``other``, in tenths."""
    x, y = label.nearest(point)
    if max(x, point[0]) < other.left or min(x, point[0]) > other.right:
        return 0
    if max(y, point[1]) < other.bottom or min(y, point[1]) > other.top:
        return 0
    steps = (step / 10 for step in range(1, 10))
    return sum(other.holds(point[0] + t * (x - point[0]), point[1] + t * (y - point[1])) for t in steps)


def _nearest(points: Sequence[Point], index: int) -> float:
    return min((math.dist(points[index], other) for i, other in enumerate(points) if i != index), default=0.0)


def _places(x: float, y: float, width: float, height: float) -> Iterator[tuple[Box, float]]:
    """Boxes around a point, nearest first, with their distance from it; to the right of it before elsewhere."""
    for ring in range(9):
        away = 5.0 + 7.0 * ring
        for step in range(16):
            turn = (step + 1) // 2 * (1 if step % 2 else -1) * math.pi / 8
            along, up = math.cos(turn), math.sin(turn)
            # The label's nearest side, not its middle, keeps the distance.
            left = x + away * along + (0.0 if along > 0.3 else -width if along < -0.3 else -width / 2)
            bottom = y + away * up + (0.0 if up > 0.3 else -height if up < -0.3 else -height / 2)
            yield Box(left, bottom, left + width, bottom + height), away + 0.2 * step
