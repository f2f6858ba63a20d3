"""Every top-label metric of many resamples at once, as matrix products over the levels of `calibrant.metrics.levels`.

A resample is a row: ``mass [R, G]`` is the share of its examples at each level, ``right [R, G]`` the share of its examples that
lie there and are rightly predicted. The expected shares of a known world are such a row too; its metrics are the true ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from calibrant.metrics.levels import LADDER, Levels

# Rows smoothed at once: bounds the ladder of smoothed residuals to 29 x 1024 x 150 float32 numbers, 18 MB.
_ROWS = 1024
_SCOUTS = 48
_MARGIN = 2


def batched_ece(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Expected calibration error of each row ``[R]``."""
    return levels.sum_by_bin((mass * levels.confidence).sub_(right)).abs_().sum(-1)


def batched_mce(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Maximum calibration error of each row ``[R]``."""
    gap = levels.sum_by_bin((mass * levels.confidence).sub_(right)).abs_()
    held = levels.sum_by_bin(mass)
    return gap.div_(held.where(held > 0, 1.0)).masked_fill_(held <= 0, 0.0).amax(-1)


def batched_ace(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Adaptive (equal-mass) calibration error of each row ``[R]``."""
    (residual,) = _between_cuts(levels, mass, mass * levels.confidence - right)
    return residual.abs().sum(-1)


def batched_debiased(levels: Levels, mass: Tensor, right: Tensor, *, size: float) -> Tensor:
    """Debiased L2 calibration error of each row ``[R]``; of infinitely many examples if ``size`` is infinite."""
    residual, correct = _between_cuts(levels, mass, mass * levels.confidence - right, right)
    weight = levels.mass_cuts.diff()
    safe = weight.where(weight > 0, 1.0)
    accuracy = correct / safe
    count = weight * size
    held = count >= 2 - 1e-9
    variance = accuracy * (1 - accuracy) / (count - 1).where(held, 1.0)
    return torch.where(held, weight * ((residual / safe) ** 2 - variance), 0.0).sum(-1).clamp_min(0).sqrt()


def batched_sece(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Smooth expected calibration error (SECE, hard accuracy) of each row ``[R]``."""
    near = mass @ levels.gauss
    accuracy = (right @ levels.gauss) / near.clamp_min(torch.finfo(near.dtype).tiny)
    return (mass * (accuracy - levels.confidence).abs()).sum(-1)


def batched_mmce(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Maximum mean calibration error (root of the pair statistic) of each row ``[R]``."""
    residual = mass * levels.confidence - right
    return ((residual @ levels.laplace) * residual).sum(-1).clamp_min(0).sqrt()


def batched_smece(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Smooth calibration error (smECE) of each row ``[R]``: the bandwidth that equals its smoothed residual."""
    residual = (mass * levels.confidence - right).float()
    # Resamples differ little in size: some of them tell which rungs of the ladder the others will need.
    some, _ = _crossings(levels, residual[:: max(len(residual) // _SCOUTS, 1)], 0, len(LADDER))
    first, last = int(some.min()) - _MARGIN, int(some.max()) + _MARGIN
    first, last = max(first, 0), min(last, len(LADDER))
    found = torch.empty(len(residual), dtype=torch.float64)
    for at in range(0, len(residual), _ROWS):
        rows = residual[at : at + _ROWS]
        above, error = _crossings(levels, rows, first, last)
        outside = ((above == first) & (first > 0)) | ((above == last) & (last < len(LADDER)))
        found[at : at + _ROWS] = error
        if bool(outside.any()):
            where = outside.nonzero().squeeze(1)
            found[at + where] = _crossings(levels, rows[where], 0, len(LADDER))[1]
    return found


def _crossings(levels: Levels, residual: Tensor, first: int, last: int) -> tuple[Tensor, Tensor]:
    """Number of rungs at which the smoothed residual exceeds the bandwidth, and where the two are equal, ``[R]`` each.

    Smoothed residuals fall as the bandwidth grows, so each row crosses once; the rungs on either side are joined linearly.
    Only rungs ``first`` to ``last`` are looked at; those before are taken to be exceeded, those from ``last`` on not.
    """
    rungs = LADDER[first:last]
    error = torch.matmul(residual, levels.smoothers[first:last]).abs_().sum(-1).double()
    above = (error > rungs.unsqueeze(1)).sum(0)
    left, right = (above - 1).clamp_min(0), above.clamp_max(len(rungs) - 1)
    row = torch.arange(error.shape[1])
    e0, e1, s0, s1 = error[left, row], error[right, row], rungs[left], rungs[right]
    between = left != right
    share = torch.where(between, (e0 - s0) / ((e0 - s0) - (e1 - s1)).where(between, 1.0), 0.0)
    # Below the first rung the residual no longer depends on the bandwidth.
    return above + first, torch.where(above == 0, error[0], s0 + share * (s1 - s0))


def batched_aurc(levels: Levels, mass: Tensor, right: Tensor) -> Tensor:
    """Area under the risk-coverage curve of each row ``[R]``, the most confident first."""
    mass, wrong = mass.flip(-1), (mass - right).flip(-1)
    covered = mass.cumsum(-1) - mass / 2
    risk = (wrong.cumsum(-1) - wrong / 2) / covered.clamp_min(torch.finfo(mass.dtype).tiny)
    return (mass * risk).sum(-1)


def _between_cuts(levels: Levels, mass: Tensor, *sums: Tensor) -> list[Tensor]:
    """Content ``[R, M]`` of equal-mass bins: cumulative sums, read by interpolation where the cumulative mass is cut."""
    rising = torch.nn.functional.pad(mass.cumsum(-1), (1, 0))
    cuts = levels.mass_cuts.expand(len(mass), -1) * rising[:, -1:]
    after = torch.searchsorted(rising, cuts.contiguous()).clamp(1, mass.shape[-1])
    start, end = rising.gather(1, after - 1), rising.gather(1, after)
    share = torch.where(end > start, (cuts - start) / (end - start).where(end > start, 1.0), 0.0).clamp(0, 1)
    content = []
    for part in sums:
        total = torch.nn.functional.pad(part.cumsum(-1), (1, 0))
        at = torch.lerp(total.gather(1, after - 1), total.gather(1, after), share)
        content.append(at.diff(dim=-1))
    return content


# Calibration errors of the top label whose intervals need more than ordinary resampling.
Batched = Callable[[Levels, Tensor, Tensor], Tensor]
BATCHED: dict[str, Batched] = {
    "ece": batched_ece,
    "mce": batched_mce,
    "ace": batched_ace,
    "sece": batched_sece,
    "smece": batched_smece,
    "mmce": batched_mmce,
}
