"""CPC: calibration by pairwise constraints, a discrimination term (BDC) and an exclusion term (BEC)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.checks import check_logits
from calibrant.losses.base import Penalty, Shared
from calibrant.losses.logprob import widen

# A block of pairs holds about this many numbers (4 MB in float32: within a processor's cache), more only where there would
# be over _MOST_BLOCKS of them.
_BLOCK = 2**20
_MOST_BLOCKS = 64


def cpc_penalty(logits: Tensor, labels: Tensor, *, bdc_weight: float = 0.1, bec_weight: float = 1.0) -> Tensor:
    r"""Binary constraints between classes: the true one above every other, the others level with each other.

    .. math:: \mathrm{CPC} = \lambda_d\,\mathrm{BDC} + \lambda_e\,\mathrm{BEC}

    with `bdc_penalty`, `bec_penalty` and their weights :math:`\lambda`. The exclusion term sums over pairs of classes and
    dominates the cost: see there.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        bdc_weight: :math:`\lambda_d` >= 0; 0.1 in the configuration of CALS, the port of a method without released code.
        bec_weight: :math:`\lambda_e` >= 0; 1.0 there. 0 leaves the term out, and its cost.

    Returns:
        Scalar ``[]``, at least 0. Raises ``ValueError`` if shapes disagree or a weight is negative.

    Example:
        >>> cpc_penalty(torch.zeros(1, 4), torch.tensor([0]))  # 0.1 ln 2 + 9 ln 2 / 12
        tensor(0.5892)

    Reference:
        Cheng and Vasconcelos, "Calibrating deep neural networks by pairwise constraints", CVPR 2022. Others
        cite eqs. 15 and 16 for it.
    """
    for name, weight in (("bdc_weight", bdc_weight), ("bec_weight", bec_weight)):
        if not weight >= 0:
            raise ValueError(f"cpc_penalty: `{name}` must be a number >= 0, got {weight!r}.")
    total = bdc_weight * bdc_penalty(logits, labels)
    return total + bec_weight * bec_penalty(logits, labels) if bec_weight else total


def bdc_penalty(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Binary discrimination constraints: cross-entropy of the true class against each other class alone.

    With logits :math:`z`, labels :math:`y`, a batch of B, C classes and the logistic function :math:`\sigma`,

    .. math:: \mathrm{BDC} = -\frac{1}{B (C - 1)} \sum_{i=1}^{B} \sum_{k \ne y_i} \log \sigma(z_{iy_i} - z_{ik}) .

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.

    Returns:
        Scalar ``[]``, at least 0. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> bdc_penalty(torch.zeros(1, 4), torch.tensor([0]))  # ln 2
        tensor(0.6931)

    Reference:
        Cheng and Vasconcelos, CVPR 2022. Others cite eqs. 15 and 16 for the two constraints.
    """
    check_logits(logits, labels, where="bdc_penalty")
    scores = widen(logits)
    batch, num_classes = scores.shape
    true = scores.gather(1, labels.long().unsqueeze(1))
    # The true class against itself is ln 2, without gradient.
    total = -F.logsigmoid(true - scores).sum() - batch * math.log(2)
    return total / (batch * (num_classes - 1))


def bec_penalty(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Binary exclusion constraints: no class but the true one should be preferred to another.

    With logits :math:`z`, labels :math:`y`, a batch of B, C classes and the logistic function :math:`\sigma`,

    .. math:: \mathrm{BEC} = -\frac{1}{2 B (C - 1)(C - 2)} \sum_{i=1}^{B} \sum_{j \ne y_i} \sum_{k \ne y_i}
        \log \sigma(z_{ij} - z_{ik}) .

    The pairs j = k, a constant ln 2 / (2 (C - 2)), are counted as in the port the golden values come from. Two classes have
    no pair to exclude: 0.

    The sum has B C²/2 different terms and no smaller exact form. They are computed in blocks that are not kept, so memory
    stays O(B C) plus one block (4 MB, or B C²/64 numbers if that is more) and the gradient, a sum of hyperbolic tangents,
    takes a second pass. At batch 512 on one thread, forward and backward take about 5 times cross-entropy's with 10
    classes, 100 times with 100 (20 ms) and 2,000 times with 1,000 (1.5 s). Twice differentiable.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.

    Returns:
        Scalar ``[]``, at least 0; smallest where all logits but the true one are equal. Raises ``ValueError`` if shapes
        disagree.

    Example:
        >>> bec_penalty(torch.zeros(1, 4), torch.tensor([0]))  # 9 ln 2 / 12
        tensor(0.5199)

    Reference:
        Cheng and Vasconcelos, CVPR 2022. Others cite eqs. 15 and 16 for the two constraints.
    """
    check_logits(logits, labels, where="bec_penalty")
    scores = widen(logits)
    batch, num_classes = scores.shape
    if num_classes < 3:
        return scores[:, :0].sum()
    column = torch.arange(num_classes - 1, device=labels.device)
    others = scores.gather(1, column + (column >= labels.unsqueeze(1)))
    # The compiler fuses the plain sum and recomputes it in backward by itself.
    total: Tensor = _pair_softplus(others) if torch.compiler.is_compiling() else _PairSoftplus.apply(others)
    return total / (2 * batch * (num_classes - 1) * (num_classes - 2))


class CPC(Penalty):
    """`cpc_penalty` as a module.

    Args:
        bdc_weight: Weight of the discrimination term.
        bec_weight: Weight of the exclusion term.
        shared: ``ignore_index``, as in `Penalty`.
    """

    def __init__(self, *, bdc_weight: float = 0.1, bec_weight: float = 1.0, **shared: Unpack[Shared]) -> None:
        super().__init__(**shared)
        self.bdc_weight = bdc_weight
        self.bec_weight = bec_weight

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the penalty of the batch, ``[]``."""
        return cpc_penalty(logits, labels, bdc_weight=self.bdc_weight, bec_weight=self.bec_weight)


def _blocks(x: Tensor) -> Iterator[tuple[slice, slice, float]]:
    """Cut the pairs of columns of ``x [B, M]`` into blocks; yields rows, columns and how often a pair of it counts.

    A diagonal block holds each of its pairs in both orders; one beside it stands for both orders.
    """
    batch, width = x.shape
    rows = min(width, max(_BLOCK // (batch * width), -(-width // _MOST_BLOCKS), 1))
    for start in range(0, width, rows):
        stop = min(start + rows, width)
        yield slice(start, stop), slice(start, stop), 0.5
        if stop < width:
            yield slice(start, stop), slice(stop, width), 1.0


def _differences(x: Tensor, rows: slice, columns: slice) -> Tensor:
    return x[:, rows].unsqueeze(2) - x[:, columns].unsqueeze(1)


def _pair_softplus(x: Tensor) -> Tensor:
    """Sum over all ordered pairs j, k of softplus(x_k - x_j), for ``x [B, M]``, in operations that PyTorch differentiates."""
    total = x.new_zeros(())
    for rows, columns, count in _blocks(x):
        # softplus(d) + softplus(-d) = d - 2 log sigmoid(d), smooth at 0.
        difference = _differences(x, rows, columns)
        total = total + count * (difference - 2 * F.logsigmoid(difference)).sum()
    return total


class _PairSoftplus(torch.autograd.Function):
    """`_pair_softplus` that keeps no block for backward."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        total = x.new_zeros(())
        for rows, columns, count in _blocks(x):
            # softplus(d) + softplus(-d) = |d| + 2 log1p(exp(-|d|)), exact at any distance.
            distance = _differences(x, rows, columns).abs_()
            total += count * distance.sum()
            total += 2 * count * distance.neg_().exp_().log1p_().sum()
        return total

    @staticmethod
    def setup_context(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        slope: Tensor = _PairTanh.apply(x)
        return grad * slope


class _PairTanh(torch.autograd.Function):
    """Gradient of `_PairSoftplus`: column k is the sum over j of tanh((x_k - x_j) / 2)."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        slope = torch.zeros_like(x)
        for rows, columns, count in _blocks(x):
            preferred = _differences(x, rows, columns).mul_(0.5).tanh_()
            slope[:, rows] += count * preferred.sum(2)
            slope[:, columns] -= count * preferred.sum(1)
        return slope

    @staticmethod
    def setup_context(ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors  # type: ignore[attr-defined]
        out = torch.zeros_like(x)
        for rows, columns, count in _blocks(x):
            # Half of sech², from 1 - tanh²; times the difference of the two incoming gradients.
            steep = _differences(x, rows, columns).mul_(0.5).tanh_().square_().neg_().add_(1).mul_(0.5 * count)
            steep *= _differences(grad, rows, columns)
            out[:, rows] += steep.sum(2)
            out[:, columns] -= steep.sum(1)
        return out
