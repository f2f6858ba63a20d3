"""What the maps of calibrators are made of: probabilities in log space, and piecewise maps of them.

In log space saturated logits lose nothing. Piecewise maps may need fewer knots in one row than in another: rows are filled up
at the end with `PAD`, which no probability reaches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

Vector: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
PAD = 2.0
# A logit of -inf is probability zero. Where a finite number is needed it counts as the logarithm of float32's smallest
# probability, 2^-149, below the top class, or as the smallest finite logit of its row if that is lower still.
_LOG_SMALLEST = -103.2789
# Share of the original probability that is mixed into a one-vs-rest estimate: keeps order within a step of the map, and the
# log-likelihood finite where an estimate is zero. As in Zhang, Kailkhura and Han (ICML 2020), section 3.
MIXED_IN = 1e-9
# Two log-probabilities this far apart differ in float32 too: its numbers near ln 1/C lie 1e-6 apart for C = 100,000 classes.
_MARGIN = 2e-6


def floor_logits(logits: Tensor) -> Tensor:
    """Replace ``-inf`` in ``logits [..., C]`` by a finite number at most as large as the rest of its row."""
    absent = torch.isneginf(logits)
    lowest = torch.where(absent, torch.inf, logits).amin(-1, keepdim=True)
    floor = torch.minimum(lowest, logits.amax(-1, keepdim=True) + _LOG_SMALLEST)
    return torch.where(absent, floor, logits)


def log_complements(log_probs: Tensor) -> Tensor:
    r"""Return :math:`\log(1 - p_k)` for every class of ``log_probs [..., C]``.

    For the top class it is the log-sum of all others, since 1 - p cancels where p is near one.
    """
    top = log_probs.argmax(-1, keepdim=True)
    rest = log_probs.scatter(-1, top, -torch.inf).logsumexp(-1, keepdim=True)
    # A class that is not on top has at most probability one half, where log1p is exact.
    return torch.log1p(-log_probs.exp().clamp(max=0.75)).scatter(-1, top, rest)


def log_odds(logits: Tensor) -> Tensor:
    r"""Return :math:`\log p_k / (1 - p_k)` for every class of finite ``logits [..., C]``."""
    log_probs = logits.log_softmax(-1)
    return log_probs - log_complements(log_probs)


def keep_top(log_probs: Tensor, logits: Tensor) -> Tensor:
    """Make sure that the top class of ``logits [..., C]`` is that of ``log_probs [..., C]`` even after rounding to float32.

    Where a repair brings classes so near to one another that rounding could swap them, the top one is raised above its rival
    by `_MARGIN` and the row scaled to sum to one again. Classes that tie in the logits may tie.
    """
    top = logits.argmax(-1, keepdim=True)
    leads = logits.gather(-1, top) > logits.scatter(-1, top, -torch.inf).amax(-1, keepdim=True)
    own = log_probs.gather(-1, top)
    rival = log_probs.scatter(-1, top, -torch.inf).amax(-1, keepdim=True)
    raised = torch.where(leads, torch.maximum(own, rival + _MARGIN), own)
    return log_probs.scatter(-1, top, raised) - torch.log1p((raised.exp() - own.exp()).clamp(min=0))


def mix_in(values: Tensor, log_probs: Tensor, *, part: float = MIXED_IN) -> Tensor:
    """Add ``part`` of the original probabilities to ``values [..., C]``, scale rows to sum to one, return their logarithm.

    Adding in log space keeps classes apart whose probability underflows. A row of zeros gets its original probabilities back.
    """
    mixed_in = log_probs + math.log(part)
    present = values > 0
    # The logarithm of a zero that is not used would still give the gradient a NaN.
    mixed = torch.logaddexp(torch.where(present, values, torch.ones_like(values)).log(), mixed_in)
    return torch.where(present, mixed, mixed_in).log_softmax(-1)


def replace_confidence(log_probs: Tensor, confidence: Tensor) -> Tensor:
    r"""Give the top class a new probability ``[...]``, and scale the others to fill up the rest; ``[..., C]``.

    A confidence below :math:`p_2 / (p_2 + 1 - p_1)`, with the two largest probabilities :math:`p_1 \ge p_2`, would hand the
    top to the runner-up; it is raised to that, so that the top class stays.
    """
    top = log_probs.argmax(-1, keepdim=True)
    others = log_probs.scatter(-1, top, -torch.inf)
    rest = others.logsumexp(-1, keepdim=True)
    share = (others.amax(-1, keepdim=True) - rest).exp()
    # A hair above the tie: a new tie would go to the class with the smaller index.
    least = share / (1 + share) * (1 + 1e-7)
    # The part mixed in keeps both sides away from probability zero.
    mixed_in = max(MIXED_IN, torch.finfo(confidence.dtype).eps)
    wanted = (1 - 2 * mixed_in) * confidence.unsqueeze(-1) + mixed_in
    sure = torch.maximum(wanted, least)
    return (others - rest + torch.log1p(-sure)).scatter(-1, top, sure.log())


def count_below(x: Tensor, table: Tensor, row: Tensor | int = 0) -> Tensor:
    """How many numbers of an ascending ``row`` of the table ``[K, L]`` (or of ``[L]``) are below each point of x.

    As `torch.searchsorted`, which has no form in ONNX: a bisection of as many steps as the table is long in binary, made of
    operations that every exporter knows. The number of steps depends on the shape of the table alone.
    """
    flat = table.reshape(-1)
    left = table.shape[-1]
    first = row * left
    found = torch.zeros_like(x, dtype=torch.long)
    while left > 1:
        half = left // 2
        found = torch.where(flat[first + found + (half - 1)] < x, found + half, found)
        left -= half
    return found + (flat[first + found] < x)


def interpolate(x: Tensor, knots: Tensor, values: Tensor, row: Tensor | int = 0) -> Tensor:
    """Straight lines between knots ``[K, L]`` (or ``[L]``), L at least two, constant beyond the first and the last."""
    right = count_below(x, knots, row).clamp(1, knots.shape[-1] - 1) + row * knots.shape[-1]
    places, heights = knots.reshape(-1), values.reshape(-1)
    start, low = places[right - 1], heights[right - 1]
    width = places[right] - start
    share = ((x - start) / torch.where(width > 0, width, torch.ones_like(width))).clamp(0, 1)
    return low + share * (heights[right] - low)


def step_values(x: Tensor, edges: Tensor, values: Tensor, row: Tensor | int = 0) -> Tensor:
    """Value of the step (``edges [K, L]``, ``values [K, L + 1]``) that holds x; a point on an edge is in the step below it."""
    return values.reshape(-1)[count_below(x, edges, row) + row * values.shape[-1]]


def pad_rows(rows: Sequence[Vector], *, least: int, fill: float | None) -> Tensor:
    """Stack rows of different lengths, filled up with ``fill`` (None: with their last value) to ``least`` or more."""
    longest = max([least, *(len(row) for row in rows)])
    padded = [np.pad(row, (0, longest - len(row)), constant_values=row[-1] if fill is None else fill) for row in rows]
    return torch.from_numpy(np.stack(padded).astype(np.float64))


def pad_steps(found: Sequence[tuple[Vector, Vector]]) -> dict[str, Tensor]:
    """Stack the edges ``[L]`` and values ``[L + 1]`` of step functions of different lengths."""
    edges = pad_rows([edges for edges, _ in found], least=1, fill=PAD)
    return {"edges": edges, "values": pad_rows([values for _, values in found], least=edges.shape[1] + 1, fill=None)}
