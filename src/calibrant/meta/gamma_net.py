"""Gamma-Net: a gate that gives every sample its own focal gamma, as a module and as functions of its parameters.

The loss that uses it is `calibrant.meta.GammaFocal`; how it learns is in `calibrant.meta.lookahead`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from calibrant.core.checks import check_count, check_positive

Params: TypeAlias = "dict[str, Tensor]"
Values: TypeAlias = "Mapping[str, Tensor]"

# Singular values below this share of the largest do not carry the least-norm start: for 512 features it is exact up to about
# 400 heads; beyond, W would grow without bound as A becomes square, and the rank-one correction of A takes over.
_RANK_TOLERANCE = 0.05


def gamma_of(params: Values, features: Tensor, *, temperature: float = 0.01, gamma_max: float | None = None) -> Tensor:
    r"""Focal gamma of every sample, from the network's penultimate features.

    With features :math:`x_i`, ``attention`` :math:`A` (``[d, k]``) and ``readout`` :math:`W` (``[d]``),

    .. math:: p_i = \mathrm{softmax}(x_i A), \qquad \gamma_i = |\, p_i A^\top W \,| / \tau
        = \Bigl| \sum_{j=1}^{k} p_{ij}\, c_j \Bigr| / \tau, \qquad c = A^\top W,

    a mixture, with attention weights :math:`p_i`, of the k head-gammas :math:`c_j / \tau`.

    Args:
        params: ``attention [d, k]`` and ``readout [d]``.
        features: ``[B, d]``; half precision is computed in float32.
        temperature: Divisor :math:`\tau` of the score.
        gamma_max: Upper bound. Its gradient passes (straight through), so that a gamma at the bound can come back.

    Returns:
        ``[B]``, at least 0.

    Example:
        >>> params = {"attention": torch.eye(2), "readout": torch.tensor([0.01, 0.03])}
        >>> gamma_of(params, torch.tensor([[0.0, 0.0], [9.0, 0.0]]))
        tensor([2.0000, 1.0002])

    Reference:
        Wang and Golebiowski, TMLR 2024.
    """
    # Autocast would do the products in half precision, whose rounding a temperature of 0.01 magnifies a hundredfold.
    with torch.autocast(features.device.type, enabled=False):
        score = attention_of(params, features) @ (params["attention"].T @ params["readout"]) / temperature
    gamma = score.abs()
    return gamma if gamma_max is None else gamma - (gamma.detach() - gamma_max).clamp(min=0.0)


def attention_of(params: Values, features: Tensor) -> Tensor:
    """Attention ``[B, k]`` of every sample over the heads, rows summing to one."""
    attention = params["attention"]
    return torch.softmax(features.to(attention.dtype) @ attention, 1)


def head_gammas_of(params: Values, *, temperature: float = 0.01) -> Tensor:
    """Gamma ``[k]`` of a sample that attends to one head alone; every gamma is a mixture of these (before the modulus)."""
    return (params["attention"].T @ params["readout"] / temperature).abs()


def with_head_scores(params: Values, scores: Tensor) -> Params:
    r"""Change A by the rank-one :math:`W (s - A^\top W)^\top / \lVert W \rVert^2`, so that the head scores ``[k]`` are s.

    The readout must not be zero. Columns whose score is already right stay as they are.
    """
    attention, readout = params["attention"], params["readout"]
    tiny = torch.finfo(readout.dtype).tiny
    change = torch.outer(readout / readout.square().sum().clamp(min=tiny), scores - attention.T @ readout)
    return {"attention": attention + change, "readout": readout}


def init_gamma_net(
    num_features: int,
    num_heads: int,
    *,
    temperature: float = 0.01,
    gamma_max: float | None = None,
    gamma_init: float = 1.0,
    generator: torch.Generator | None = None,
) -> Params:
    r"""Draw parameters for which every sample, whatever its features, starts at ``gamma_init``.

    A is drawn as PyTorch draws a linear layer (uniform within :math:`\pm 1/\sqrt d`). All k head-gammas are then made equal, so
    that their mixture does not depend on the attention: W is the least-norm solution of :math:`A^\top W = \tau \gamma_0 1`;
    where none exists (more heads than features) or it is badly conditioned, A is corrected by a rank-one term, which is exact
    for every k. The arguments are those of `GammaNet`.

    Returns:
        ``attention [d, k]`` and ``readout [d]``, float32.

    Example:
        >>> params = init_gamma_net(8, 20, generator=torch.Generator().manual_seed(0))
        >>> gamma_of(params, torch.rand(3, 8)).round(decimals=4)
        tensor([1., 1., 1.])
    """
    where = "GammaNet"
    check_count(num_features, where=where, name="num_features")
    check_count(num_heads, where=where, name="num_heads")
    check_positive(temperature, where=where, name="temperature")
    check_positive(gamma_init, where=where, name="gamma_init")
    if not gamma_init < (gamma_max or math.inf):
        raise ValueError(f"{where}: `gamma_init` must be below `gamma_max`, {gamma_max:g}, got {gamma_init:g}.")
    score = temperature * gamma_init
    attention = (2 * torch.rand(num_features, num_heads, generator=generator).double() - 1) * num_features**-0.5
    readout = torch.linalg.pinv(attention.T, rtol=_RANK_TOLERANCE) @ torch.full((num_heads,), score, dtype=torch.float64)
    exact = with_head_scores({"attention": attention, "readout": readout}, torch.full((num_heads,), score).double())
    return {name: value.float() for name, value in exact.items()}


def bound_heads(params: Values, *, temperature: float, gamma_max: float | None = None) -> Params:
    """Pull head-gammas above ``gamma_max`` back to it (and with them every sample's), by the rank-one change of A."""
    if gamma_max is None:
        return dict(params)
    top = temperature * gamma_max
    return with_head_scores(params, (params["attention"].T @ params["readout"]).clamp(-top, top))


def gamma_speed(params: Values, *, temperature: float) -> Tensor:
    r"""How far gamma moves if every parameter takes a unit step in the direction that raises it.

    Adam moves each parameter by about its learning rate lr, whatever the gradient's size. At the start, with attention close to
    uniform, that moves gamma by lr times

    .. math:: ( \lVert A \bar p \rVert_1 + \lVert W \rVert_1 ) / \tau , \qquad \bar p = 1/k ,

    which depends on the widths and on the temperature. A wanted speed divided by this number suits every network.

    Returns:
        Scalar ``[]``: gamma per unit of learning rate.
    """
    reach = params["attention"].mean(1).abs().sum() + params["readout"].abs().sum()
    return reach * (1 / temperature)


class HeadUse(NamedTuple):
    """How a batch is spread over the heads of a gamma-Net.

    Attributes:
        gammas: Gamma of each head ``[k]``.
        share: Mean attention of the batch on each head ``[k]``, summing to one.
        effective: exp of the entropy of ``share``: k if all heads are used alike, 1 if one takes all.
    """

    gammas: Tensor
    share: Tensor
    effective: Tensor


class GammaNet(nn.Module):
    """`gamma_of` as a module with exactly d·k + d parameters, starting at ``gamma_init`` for every sample.

    Args:
        num_features: Width d of the features.
        num_heads: Number k of heads; the paper takes the number of classes.
        temperature: Divisor of the score.
        gamma_max: Upper bound, or None.
        gamma_init: Gamma of every sample at the start.
        generator: Source of the draw.

    Example:
        >>> net = GammaNet(512, 10)
        >>> sum(p.numel() for p in net.parameters())
        5632
        >>> net(torch.rand(2, 512)).detach().round(decimals=4)
        tensor([1., 1.])

    Reference:
        Wang and Golebiowski, TMLR 2024, section 4.1.
    """

    def __init__(
        self,
        num_features: int,
        num_heads: int,
        *,
        temperature: float = 0.01,
        gamma_max: float | None = None,
        gamma_init: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.temperature, self.gamma_max = temperature, gamma_max
        options = {"temperature": temperature, "gamma_init": gamma_init}
        start = init_gamma_net(num_features, num_heads, gamma_max=gamma_max, generator=generator, **options)
        self.attention = nn.Parameter(start["attention"])
        self.readout = nn.Parameter(start["readout"])

    def params(self) -> Params:
        """Return the parameters as values: ``attention [d, k]`` and ``readout [d]``."""
        return {"attention": self.attention, "readout": self.readout}

    def forward(self, features: Tensor) -> Tensor:
        """Return the gamma of every sample, ``[B]``."""
        return gamma_of(self.params(), features, temperature=self.temperature, gamma_max=self.gamma_max)

    @torch.no_grad()
    def head_gammas(self) -> Tensor:
        """Return the gamma of each head, ``[k]``."""
        return head_gammas_of(self.params(), temperature=self.temperature)

    @torch.no_grad()
    def head_use(self, features: Tensor) -> HeadUse:
        """Return the head-gammas and how the batch ``features [B, d]`` is spread over them."""
        share = attention_of(self.params(), features).mean(0)
        return HeadUse(self.head_gammas(), share, torch.special.entr(share).sum().exp())
