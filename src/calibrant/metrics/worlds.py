r"""Intervals of calibration errors by test inversion: which true errors could have given the observed one?

A calibration error is a norm of gaps. Chance adds to every gap, and a norm only grows by it: the observed error sits above the
true one, all the more the smaller that is, and the usual bootstrap adds the same chance again. Here the question is turned
round. A *world* says how accurate the model truly is at each confidence, so its true error is known; data of the observed
size drawn from it show which errors one would observe. The interval holds the true errors of all worlds under which the
observed error is not exceptional (hybrid resampling: the family of worlds follows the data, Chuang and Lai 2000).

Worlds form a path from the calibrated one through the observed one to worse ones. The gap :math:`\hat g_k` of piece k (a
confidence bin) with accuracy :math:`a_k` becomes

.. math:: g_k(\lambda) = \operatorname{sign}(\hat g_k) \, [\, |\hat g_k| + \lambda \, a_k (1 - a_k) \,]_+

which, for each value of :math:`\sum_k w_k |g_k|`, is the most likely set of gaps (for normal noise of variance
:math:`a_k (1 - a_k) / n_k`; a Lagrange multiplier gives it). Each world is tried with 2.5 % at either end; towards the
calibrated world, which has no error below it, the 5 % move to the upper end. Accuracies end at 0 and 1, and so do worlds;
beyond the last one the observed error is taken to move as the true one does.

Reference: Chuang and Lai, Statistica Sinica 10, 2000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from calibrant.metrics.batched import Batched
from calibrant.metrics.levels import Levels

# Worlds along the path. Quantiles are joined linearly between them, and bend little.
WORLDS = 12
_TAIL = 0.025
# Bisection steps: a step of the path, of the order of 1,000, is found to 1e-9.
_HALVINGS = 40
# Values of resamples that differ by less than this part of their size are equal.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class _Pieces:
    """Levels put together to K pieces with one gap each, float64.

    Attributes:
        piece: Piece of each level ``[G]``.
        weight: Share of all examples ``[K]``.
        confidence: Mean confidence ``[K]``.
        gap: Confidence minus accuracy ``[K]``.
        variance: Of one example's correctness ``[K]``.
        noise: Standard deviation of the sum of all gaps, weighted, that chance gives.
    """

    piece: Tensor
    weight: Tensor
    confidence: Tensor
    gap: Tensor
    variance: Tensor
    noise: float

    def error(self, levels: Levels, worlds: Tensor) -> Tensor:
        """Weighted mean size of the gaps in each of ``worlds [S, G]``; ``[S]``."""
        return _sum_by(self.piece, levels.share * (levels.confidence - worlds)).abs().sum(1)

    def stuck(self, size: int) -> Tensor:
        """Where confidence is so near 1 that a gap within chance cannot grow on its side, and must on the other ``[K]``."""
        return (self.gap < 0) & (1 - self.confidence < 2 * (self.variance / (size * self.weight)).sqrt())


def _pieces_of(levels: Levels, pieces: Tensor) -> _Pieces:
    _, piece = torch.unique(pieces, return_inverse=True)
    weight = _sum_by(piece, levels.share)
    confidence, accuracy = (_sum_by(piece, levels.share * v) / weight for v in (levels.confidence, levels.accuracy))
    # Two more of each kind (Agresti and Coull): a bin seen without errors is not thereby free of them.
    guess = (levels.size * weight * accuracy + 2) / (levels.size * weight + 4)
    variance = guess * (1 - guess)
    noise = float((weight @ variance / levels.size).sqrt())
    return _Pieces(piece, weight, confidence, confidence - accuracy, variance, noise)


def _sum_by(piece: Tensor, values: Tensor) -> Tensor:
    """Add up ``values [..., G]`` by piece ``[G]``; ``[..., K]``."""
    return values.new_zeros(*values.shape[:-1], int(piece.max()) + 1).index_add_(-1, piece, values)


def worlds_by_mean_gap(levels: Levels, pieces: Tensor, *, count: int = WORLDS) -> Tensor:
    """True accuracy per level in worlds of increasing weighted mean gap ``[S, G]``, the calibrated one first.

    Args:
        levels: The observed levels.
        pieces: Piece of each level ``[G]``, int64: the gap is one number per piece.
        count: Number of worlds S.

    Returns:
        Accuracies in ``[0, 1]``.
    """
    given = _pieces_of(levels, pieces)
    observed = float(given.weight @ given.gap.abs())
    chance = float((given.weight * given.variance / levels.size).sqrt().sum()) * (2 / math.pi) ** 0.5
    most = observed + 4 * given.noise
    least = max(observed - chance - 5 * given.noise, most / (count - 1))
    steps = torch.linspace(least, most, count - 1, dtype=torch.float64)
    return torch.cat([levels.confidence.unsqueeze(0), _push_to(steps, levels, given)])


def worlds_by_largest_gap(levels: Levels, pieces: Tensor, *, count: int = WORLDS) -> Tensor:
    """True accuracy per level in worlds of increasing largest gap ``[S, G]``, the calibrated one first.

    Below the observed largest gap all larger ones are cut to size, which is the most likely way to be smaller; above it, the
    worlds are those of `worlds_by_mean_gap`. Two more worlds cut the largest by one and two standard deviations of its bin,
    since a bin seen without errors may well have some. Arguments and result as there, but for two worlds more.
    """
    given = _pieces_of(levels, pieces)
    size = given.gap.abs()
    below = count // 2
    largest = int(size.argmax())
    near = (given.variance[largest] / (levels.size * given.weight[largest])).sqrt() * torch.tensor([1.0, 2.0])
    limits = torch.linspace(0, 1, below + 1, dtype=torch.float64)[:-1] * size.max()
    limits = torch.cat([limits, (size.max() - near).clamp_min(0)]).sort().values.unsqueeze(1)
    cut = given.gap.sign() * size.minimum(limits)
    observed = float(given.weight @ size)
    steps = torch.linspace(observed, observed + 4 * given.noise, count - below, dtype=torch.float64)
    return torch.cat([(levels.confidence - cut[:, given.piece]).clamp(0, 1), _push_to(steps, levels, given)])


def worlds_of_even_gaps(levels: Levels, pieces: Tensor, *, count: int = WORLDS) -> Tensor:
    """True accuracy per level in worlds with the same gap everywhere ``[S, G]``, the calibrated one first.

    Of few examples, most at confidences near 1, a gap there is hardly seen, but makes errors likelier and chance larger than
    in a calibrated model. Gaps go to the side of over-confidence if the data do on the whole. Arguments and result as of
    `worlds_by_mean_gap`.
    """
    given = _pieces_of(levels, pieces)
    side = 1.0 if float(given.weight @ given.gap) >= 0 else -1.0
    most = float(given.weight @ given.gap.abs()) + 4 * given.noise
    gaps = side * most * torch.linspace(0, 1, count, dtype=torch.float64).unsqueeze(1)
    return (levels.confidence - gaps).clamp(0, 1)


def worlds_of_few_gaps(levels: Levels, pieces: Tensor, *, count: int = WORLDS) -> Tensor:
    """True accuracy per level in worlds with ever more of the observed gaps ``[S, G]``, the calibrated one first.

    The gaps that stand out most from chance come first, in full; the others are zero. Where pieces are many, chance alone
    gives most of their gaps, and most of the error. Arguments and result as of `worlds_by_mean_gap`; the last world has all
    the observed gaps.
    """
    given = _pieces_of(levels, pieces)
    order = torch.argsort(given.gap.square() * given.weight / given.variance, descending=True)
    reached = (given.weight * given.gap.abs())[order].cumsum(0)
    steps = torch.linspace(0, 1, count, dtype=torch.float64) * reached[-1]
    rank = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    kept = torch.where(rank <= torch.searchsorted(reached, steps).unsqueeze(1), given.gap, 0.0)
    kept[0] = 0
    return (levels.confidence - kept[:, given.piece]).clamp(0, 1)


def worlds_by_embedding(levels: Levels, pieces: Tensor, *, count: int = WORLDS) -> Tensor:
    r"""True accuracy per level in worlds of increasing MMCE ``[S, G]``, the calibrated one first.

    MMCE is the root of a quadratic form of the gaps, :math:`g^T A g`. With noise of covariance :math:`\Sigma` the most likely
    gaps of a given MMCE are :math:`(1 - \lambda \Sigma A)^{-1} \hat g`: what the kernel sees least changes least.
    Arguments and result as of `worlds_by_mean_gap`.
    """
    given = _pieces_of(levels, pieces)
    spread = (given.variance / (levels.size * given.weight)).sqrt()
    gap = torch.where(given.stuck(levels.size), -given.gap, given.gap)
    scale = given.weight * spread
    size, axes = torch.linalg.eigh(scale.unsqueeze(1) * levels.laplace_between(given.confidence) * scale)
    size = size.clamp_min(0)
    part = axes.T @ (gap / spread)
    observed, noise = float((size @ part**2).sqrt()), float(size[-1].sqrt())
    most = observed + 4 * noise
    least = max(observed - float(size.sum().sqrt()) - 5 * noise, most / (count - 1))
    steps = torch.linspace(least, most, count - 1, dtype=torch.float64)
    # The multiplier approaches its pole at the largest eigenvalue from below; its distance is found on a logarithmic scale.
    low, high = torch.full_like(steps, -30.0), torch.full_like(steps, 30.0)

    def parts(distance: Tensor) -> Tensor:
        moved: Tensor = part / (1 - (1 - distance.exp()).unsqueeze(1) * size / size[-1])
        return moved

    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        short = (parts(middle) ** 2 @ size).sqrt() < steps
        low, high = torch.where(short, low, middle), torch.where(short, middle, high)
    gaps = (parts(low) @ axes.T) * spread
    worlds = (levels.confidence - gaps[:, given.piece]).clamp(0, 1)
    return torch.cat([levels.confidence.unsqueeze(0), worlds])


def _push_to(errors: Tensor, levels: Levels, given: _Pieces) -> Tensor:
    """Worlds ``[S, G]`` whose weighted mean gap is as given ``[S]``, or as near as accuracies in [0, 1] allow."""
    size, sign = given.gap.abs(), torch.where(given.gap < 0, -1.0, 1.0).double()
    direction = torch.where(given.stuck(levels.size), 1.0, sign)

    def world(push: Tensor) -> Tensor:
        step = push.unsqueeze(1) * given.variance
        moved = torch.where(step > 0, given.gap + direction * step, sign * (size + step).clamp_min(0))
        return (levels.confidence - moved[:, given.piece]).clamp(0, 1)

    low = torch.full_like(errors, -float((size / given.variance).max()))
    high = torch.full_like(errors, 1 / float(given.variance.min()))
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        short = given.error(levels, world(middle)) < errors
        low, high = torch.where(short, middle, low), torch.where(short, high, middle)
    return world(high)


def draw_from(worlds: Tensor, levels: Levels, *, n_resamples: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw data sets of the observed size from each world.

    Args:
        worlds: True accuracy per level ``[S, G]``.
        levels: Where confidences lie, and how many examples there are.
        n_resamples: Number R of data sets per world.
        rng: Source of randomness.

    Returns:
        Shares ``mass [S·R, G]`` and ``right [S·R, G]``, world after world.
    """
    right = levels.share * worlds
    chances = torch.cat([right, (levels.share - right).clamp_min(0)], dim=1)
    chances = chances / chances.sum(1, keepdim=True)
    mass, hits = torch.empty(2, len(worlds), n_resamples, len(levels), dtype=torch.float64)
    # World after world: as whole numbers and for all at once, draws at 1,000 levels would fill 200 MB, and copies of them more.
    for k, chance in enumerate(chances.numpy()):
        counts = torch.from_numpy(rng.multinomial(levels.size, chance, size=n_resamples)).double() / levels.size
        hits[k] = counts[:, : len(levels)]
        mass[k] = hits[k] + counts[:, len(levels) :]
    return mass.flatten(0, 1), hits.flatten(0, 1)


def draw_right(levels: Levels, accuracy: Tensor, *, n_resamples: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw how many examples are right, at the observed confidences.

    Args:
        levels: How many examples there are at each level.
        accuracy: Chance to be right at each level ``[G]``.
        n_resamples: Number R of data sets.
        rng: Source of randomness.

    Returns:
        Numbers ``count`` (``[G]``, or ``[R, G]`` where they vary) and ``right [R, G]``, float64.
    """
    return draw_hits(levels.share * levels.size, accuracy, n_resamples=n_resamples, rng=rng)


def draw_hits(expected: Tensor, accuracy: Tensor, *, n_resamples: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw how many of ``expected [G]`` examples, which need not be whole numbers, are right; result as of `draw_right`."""
    given = expected.numpy()
    # Effective numbers need not be whole: the fraction is rounded up as often as it says. Whole ones are met within rounding.
    whole = np.floor(given + 1e-6)
    fraction = given - whole
    shape = (n_resamples, len(given))
    count = whole if fraction.max() < 1e-5 else whole + (rng.random(shape) < fraction)
    right = rng.binomial(count.astype(np.int64), accuracy.numpy(), size=shape)
    return torch.from_numpy(count), torch.from_numpy(right).double()


def draw_labels(worlds: Tensor, levels: Levels, *, n_resamples: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw whether examples at the observed confidences are right, in each world; arguments and result as of `draw_from`.

    Levels are cut where equal-mass bins begin. With confidences drawn anew the cuts would fall inside levels, whose examples
    would be shared out evenly instead of by chance: an equal-mass error would come out 3 % too small.
    """
    mass, hits = [], []
    for world in worlds:
        count, right = draw_right(levels, world, n_resamples=n_resamples, rng=rng)
        mass.append(count.expand_as(right) / levels.size)
        hits.append(right / levels.size)
    return torch.cat(mass), torch.cat(hits)


def spread_of_confidences(
    worlds: Tensor, levels: Levels, metric: Batched, *, n_resamples: int, rng: np.random.Generator
) -> Tensor:
    """Standard deviation of the true value in each world ``[S]`` that comes from which confidences happen to be drawn.

    `draw_labels` leaves confidences as they are. Where gaps differ from one confidence to another, other examples have other
    gaps: this is all the chance there is in a model that is always right.

    Args:
        worlds: True accuracy per level ``[S, G]``.
        levels: Where confidences lie, and how many examples there are.
        metric: Value of rows ``mass, right [R, G]`` if examples were infinitely many.
        n_resamples: Number R of sets of confidences, at least 2; the same for all worlds.
        rng: Source of randomness.
    """
    drawn = torch.from_numpy(rng.multinomial(levels.size, levels.share.numpy(), size=n_resamples)).double() / levels.size
    mass = drawn.repeat(len(worlds), 1)
    return metric(levels, mass, mass * worlds.repeat_interleave(n_resamples, 0)).view(len(worlds), -1).std(1)


def accepted_range(truth: Tensor, drawn: Tensor, observed: float, *, null: Tensor | None = None) -> tuple[float, float]:
    """Smallest and largest true value among the worlds that could have given the observed value.

    Args:
        truth: True value in each world ``[S]``, the calibrated world first.
        drawn: Values that data from each world show ``[S, R]``.
        observed: The value seen.
        null: More values that data from the calibrated world show, to be used for that one.

    Returns:
        The two values; the first is 0 if the calibrated world is among them.
    """
    floor = float(drawn[0].mean() - truth[0])
    reach = ((truth - truth[0]) / floor).clamp(0, 1) if floor > 0 else torch.ones_like(truth)
    low_tail = _TAIL * reach
    lower, upper = _quantiles(drawn, low_tail), _quantiles(drawn, 1 - (2 * _TAIL - low_tail))
    lower[0] = lower[0].clamp_max(observed)
    if null is not None:
        # As a p-value (1 + number as large) / (1 + R) would have it: so few cannot reject where R is below 19.
        rank = int(2 * _TAIL * (len(null) + 1) + 1e-9)
        upper[0] = null.sort(descending=True).values[rank - 1] if rank else torch.inf
    lower, upper = lower.cummax(0).values, upper.cummax(0).values
    first = _position(upper, observed, int((upper < observed).sum()))
    last = max(first, _position(lower, observed, int((lower <= observed).sum())))
    places = [first, *range(math.ceil(first), math.floor(last) + 1), last]
    values = np.interp(places, np.arange(len(truth)), truth.numpy())
    low, high = float(values.min()), float(values.max())
    # Accuracies end at 0 and 1, and worlds with them. Beyond the worst one values are taken to move as the truth does.
    worst = int(truth.argmax())
    if upper[-1] < observed:
        low = float(truth[worst] - upper[worst]) + observed
    if lower[-1] <= observed:
        high = max(high, float(truth[worst] - lower[worst]) + observed)
    return (0.0 if first == 0 else low), high


def _position(curve: Tensor, level: float, below: int) -> float:
    """Position at which an increasing ``curve [S]``, ``below`` of whose values are below, reaches ``level``."""
    if below == 0 or below == len(curve):
        return float(max(below - 1, 0))
    start, end = float(curve[below - 1]), float(curve[below])
    return below - 1 + (level - start) / (end - start)


def _quantiles(values: Tensor, chance: Tensor) -> Tensor:
    """Quantile of each row of ``values [S, R]`` at its own ``chance [S]``.

    A row's mean and spread are its own; the shape of its distribution is taken from its two neighbours as well, which
    makes one resample do the work of three. Rows whose values are equal but for rounding have no shape to give.
    """
    middle, spread = values.mean(1, keepdim=True), values.std(1, keepdim=True)
    varies = spread > _ROUNDING * values.abs().amax(1, keepdim=True)
    shape = torch.where(varies, (values - middle) / spread.where(varies, 1.0), 0.0)
    around, known = (torch.cat([part[:1], part, part[-1:]]) for part in (shape, varies))
    sides = [torch.where(known[at], around[at], shape) for at in (slice(None, -2), slice(2, None))]
    near = torch.cat([sides[0], shape, sides[1]], dim=1).sort(dim=1).values
    size = near.shape[1]
    place = (chance * (size + 1) - 1).clamp(0, size - 1).unsqueeze(1)
    left = place.floor().long()
    start, end = near.gather(1, left), near.gather(1, (left + 1).clamp_max(size - 1))
    return (middle + spread * torch.lerp(start, end, place - left)).squeeze(1)
