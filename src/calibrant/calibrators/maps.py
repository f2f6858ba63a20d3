"""Probabilities in log space, where saturated logits lose nothing."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

Vector: TypeAlias = "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"
# A logit of -inf is probability zero. Where a finite number is needed it counts as the logarithm of float32's smallest
# probability, 2^-149, below the top class, or as the smallest finite logit of its row if that is lower still.
_LOG_SMALLEST = -103.2789
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


def asked(values: Tensor, rows: int) -> Tensor:
    """The columns of ``values [..., C]`` that have a question: all, or the second of two if there is one row."""
    return values[..., 1:] if rows == 1 else values
