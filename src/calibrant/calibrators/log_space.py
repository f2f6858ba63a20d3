"""Probabilities in log space, where saturated logits lose nothing: complements, odds, and vectors put together again."""

from __future__ import annotations

import math

import torch
from torch import Tensor

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


def normalise(log_values: Tensor) -> Tensor:
    """Scale ``exp(log_values [..., C])`` to sum to one, in log space."""
    return log_values - log_values.logsumexp(-1, keepdim=True)


def keep_top(log_probs: Tensor, logits: Tensor) -> Tensor:
    """Make sure that the top class of ``logits [..., C]`` is that of ``log_probs [..., C]`` even after rounding to float32.

    Where a repair brings classes so near to one another that rounding could swap them, the top one is raised above its rival
    by `_MARGIN` and the row scaled to sum to one again. Classes that tie in the logits may tie.

    Example:
        >>> flat = torch.full((1, 2), 0.5, dtype=torch.float64).log()
        >>> keep_top(flat, torch.tensor([[0.0, 1.0]])).exp().float()
        tensor([[0.5000, 0.5000]])
        >>> keep_top(flat, torch.tensor([[0.0, 1.0]])).float().argmax(1)
        tensor([1])
    """
    top = logits.argmax(-1, keepdim=True)
    leads = logits.gather(-1, top) > logits.scatter(-1, top, -torch.inf).amax(-1, keepdim=True)
    own = log_probs.gather(-1, top)
    rival = log_probs.scatter(-1, top, -torch.inf).amax(-1, keepdim=True)
    raised = torch.where(leads, torch.maximum(own, rival + _MARGIN), own)
    return log_probs.scatter(-1, top, raised) - torch.log1p((raised.exp() - own.exp()).clamp(min=0))


def join_one_vs_rest(values: Tensor, log_probs: Tensor) -> Tensor:
    """Make one distribution of one-vs-rest estimates.

    Args:
        values: Estimates in ``[0, 1]``: ``[..., C]``, or ``[..., 1]`` for class 1 of two.
        log_probs: The original log-probabilities ``[..., C]``, of which `MIXED_IN` is added to every estimate.

    Returns:
        Log-probabilities ``[..., C]``. A row of zeros gets its original probabilities back.
    """
    if values.shape[-1] == 1:
        values = torch.cat([1 - values, values], -1)
    return normalise(log_mix(values, log_probs, part=MIXED_IN))


def log_mix(values: Tensor, log_probs: Tensor, *, part: float) -> Tensor:
    """Return the logarithm of ``values + part * exp(log_probs)``, whose gradient is finite where a value is zero.

    Adding in log space keeps classes apart whose probability underflows.

    Example:
        >>> log_mix(torch.tensor([0.25, 0.0]), torch.zeros(2), part=0.5).exp()
        tensor([0.7500, 0.5000])
    """
    mixed_in = log_probs + math.log(part)
    present = values > 0
    # The logarithm of a zero that is not used would still give the gradient a NaN.
    mixed = torch.logaddexp(torch.where(present, values, torch.ones_like(values)).log(), mixed_in)
    return torch.where(present, mixed, mixed_in)


def replace_confidence(log_probs: Tensor, confidence: Tensor) -> Tensor:
    r"""Give the top class a new probability, and scale the others to fill up the rest.

    A confidence below :math:`p_2 / (p_2 + 1 - p_1)`, with the two largest probabilities :math:`p_1 \ge p_2`, would hand the
    top to the runner-up; it is raised to that, so that the top class stays.

    Args:
        log_probs: Log-probabilities ``[..., C]``.
        confidence: New probability of the top class ``[...]`` in ``[0, 1]``.

    Returns:
        Log-probabilities ``[..., C]``.
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
