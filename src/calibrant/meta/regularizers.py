"""Learnable regularizers: training losses whose hyper-parameters a look-ahead step improves. The table stands at the end.

Hyper-parameters travel as values, ``dict[str, Tensor]``; a regularizer holds only its constants. First comes gamma-Net, the
gate that gives every sample its own focal gamma.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from calibrant.core.checks import check_choice, check_count, check_positive
from calibrant.losses import cross_entropy_loss, focal_gradient_weight, focal_loss

__all__ = ["REGULARIZERS", "GammaFocal", "GammaNet", "HeadUse", "LabelSmoothing", "Regularizer", "UnitwiseL2"]
__all__ += ["gamma_of", "gamma_speed", "init_gamma_net"]

Params: TypeAlias = "dict[str, Tensor]"
Values: TypeAlias = "Mapping[str, Tensor]"
Generator: TypeAlias = "torch.Generator | None"

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
    def head_use(self, features: Tensor) -> HeadUse:
        """Return the head-gammas and how the batch ``features [B, d]`` is spread over them."""
        gammas = head_gammas_of(self.params(), temperature=self.temperature)
        share = attention_of(self.params(), features).mean(0)
        return HeadUse(gammas, share, torch.special.entr(share).sum().exp())


# Where the weight g(p, gamma) of a sample with p = 0.5 falls below 2 %: the batch hardly trains, the hypergradient vanishes,
# and gamma cannot come back by itself.
RUNAWAY_GAMMA = 8.0
# Most that label smoothing may take from the true class; beyond one half it would no longer be the target.
MOST_SMOOTHING = 0.5


class Regularizer(ABC):
    """A training loss with learnable hyper-parameters.

    A new one must define ``init`` and ``loss``. Contract: ``loss`` depends on the network through ``logits`` and through
    ``head`` (``weight [C, d]`` and, if the layer has one, ``bias [C]``) only; ``features`` come
    detached, because a loss that could be lowered by changing them would train the network to please its hyper-parameters.

    Attributes:
        pace: How far one meta step of the default preset moves what the hyper-parameters control, in its own unit.
    """

    pace: ClassVar[float] = 1e-3

    @abstractmethod
    def init(self, num_features: int, num_classes: int, *, bias: bool = True, generator: Generator = None) -> Params:
        """Return the hyper-parameters to start from, for a head ``[num_classes, num_features]`` with or without ``bias``."""

    @abstractmethod
    def loss(self, hyper: Values, features: Tensor, logits: Tensor, labels: Tensor, head: Values) -> Tensor:
        """Return the training loss of every sample ``[B]``, differentiable in ``hyper``, ``logits`` and ``head``."""

    def gradients(self, hyper: Values, features: Tensor, logits: Tensor, labels: Tensor, head: Values) -> tuple[Tensor, Params]:
        """Gradient of the *summed* loss, still differentiable in ``hyper``.

        This general form differentiates `loss` over the last layer's small graph; a regularizer overrides it where a closed
        form is cheaper.

        Returns:
            With respect to the logits ``[B, C]``, and with respect to those entries of ``head`` that the loss reads directly.
        """
        at = logits.detach().requires_grad_()
        entries = {name: value.detach().requires_grad_() for name, value in head.items()}
        with torch.enable_grad():
            total = self.loss(hyper, features, at, labels, entries).sum()
            found = torch.autograd.grad(total, [at, *entries.values()], create_graph=True, allow_unused=True)
        direct = {name: grad for name, grad in zip(entries, found[1:], strict=True) if grad is not None}
        return torch.zeros_like(at) if found[0] is None else found[0], direct

    def project(self, hyper: Values) -> Params:
        """Return the nearest hyper-parameters that are allowed; called after every meta step."""
        return dict(hyper)

    def speed(self, hyper: Values) -> Tensor | float:
        """How far a unit step in every hyper-parameter moves what they control; `pace` divided by it is the learning rate."""
        return 1.0

    def summary(self, hyper: Values, *, features: Tensor | None = None, head: Values | None = None) -> Params:
        """Return the numbers worth logging, each ``[]`` and without a device synchronisation."""
        return {f"{name}_{key}": value for name, tensor in hyper.items() for key, value in spread_of(tensor.detach()).items()}

    def alarm(self, values: Mapping[str, float]) -> str | None:
        """Say what is wrong if the summary ``values`` show hyper-parameters that ran away, else None."""
        return None


class GammaFocal(Regularizer):
    r"""Focal loss whose gamma a gamma-Net sets for every sample.

    :math:`L_i = -(1 - p_i)^{\gamma_i} \log p_i` with :math:`p_i` the probability of the true class and :math:`\gamma_i` what
    `calibrant.meta.gamma_of` makes of the features. The gradient with respect to the logits is cross-entropy's times a weight
    :math:`g(p_i, \gamma_i)` (`calibrant.losses.focal_gradient_weight`): gamma-Net reweights samples and never turns a gradient.
    The look-ahead differentiates that closed form.

    Args:
        num_heads: Heads k of the gamma-Net; the number of classes if None.
        temperature: Divisor of its score.
        gamma_max: Upper bound, kept by projecting the head-gammas after every meta step; None for no bound.
        gamma_init: Gamma of every sample at the start.

    Example:
        >>> focal = GammaFocal()
        >>> hyper = focal.init(4, 3, generator=torch.Generator().manual_seed(0))
        >>> features, logits = torch.rand(2, 4), torch.zeros(2, 3)
        >>> focal.loss(hyper, features, logits, torch.tensor([0, 2]), {})
        tensor([0.7324, 0.7324])
    """

    # Gamma per meta step: what Adam with a learning rate of 6e-5 gives at 512 features and 10 or 100 classes, the setting
    # in which calibration on CIFAR-10 and CIFAR-100 was best (three times slower was too slow, ten times ran away).
    pace: ClassVar[float] = 0.026

    def __init__(
        self,
        *,
        num_heads: int | None = None,
        temperature: float = 0.01,
        gamma_max: float | None = 20.0,
        gamma_init: float = 1.0,
    ) -> None:
        self.num_heads, self.temperature, self.gamma_max, self.gamma_init = num_heads, temperature, gamma_max, gamma_init

    @property
    def _gate(self) -> dict[str, Any]:
        return {"temperature": self.temperature, "gamma_max": self.gamma_max}

    def init(self, num_features: int, num_classes: int, *, bias: bool = True, generator: Generator = None) -> Params:
        """Return ``attention [d, k]`` and ``readout [d]`` that give ``gamma_init`` to every sample."""
        heads = self.num_heads or num_classes
        return init_gamma_net(num_features, heads, gamma_init=self.gamma_init, generator=generator, **self._gate)

    def net(self, hyper: Values) -> GammaNet:
        """Return a gamma-Net module with a copy of the parameters ``hyper``."""
        net = GammaNet(*hyper["attention"].shape, gamma_init=self.gamma_init, **self._gate).to(hyper["attention"])
        net.load_state_dict(dict(hyper))
        return net

    def gamma(self, hyper: Values, features: Tensor) -> Tensor:
        """Return the gamma of every sample ``[B]``; features are taken as constants."""
        return gamma_of(hyper, features.detach(), **self._gate)

    def loss(self, hyper: Values, features: Tensor, logits: Tensor, labels: Tensor, head: Values) -> Tensor:
        """Return the focal loss of every sample ``[B]``."""
        return focal_loss(logits, labels, gamma=self.gamma(hyper, features))

    def gradients(self, hyper: Values, features: Tensor, logits: Tensor, labels: Tensor, head: Values) -> tuple[Tensor, Params]:
        """Return the weighted gradient of cross-entropy ``[B, C]``; the loss does not read the head."""
        scores = logits.detach()
        weight = focal_gradient_weight(scores, labels, gamma=self.gamma(hyper, features))
        return weight.unsqueeze(1) * cross_entropy_gradient(scores, labels), {}

    def project(self, hyper: Values) -> Params:
        """Pull head-gammas above ``gamma_max`` back to it (and with them every sample's), by a rank-one change of A."""
        if self.gamma_max is None:
            return dict(hyper)
        top = self.temperature * self.gamma_max
        return with_head_scores(hyper, (hyper["attention"].T @ hyper["readout"]).clamp(-top, top))

    def speed(self, hyper: Values) -> Tensor:
        """Return the change of gamma per unit of learning rate."""
        return gamma_speed(hyper, temperature=self.temperature)

    def summary(self, hyper: Values, *, features: Tensor | None = None, head: Values | None = None) -> Params:
        """Return gamma's mean, spread and extremes over the batch (over the heads without one) and the share at the bound."""
        values = {name: value.detach() for name, value in hyper.items()}
        gamma = head_gammas_of(values, temperature=self.temperature) if features is None else self.gamma(values, features)
        found = {f"gamma_{key}": value for key, value in spread_of(gamma).items()}
        if self.gamma_max is not None:
            found["gamma_at_bound"] = (gamma >= self.gamma_max * (1 - 1e-4)).to(gamma.dtype).mean()
        return found

    def alarm(self, values: Mapping[str, float]) -> str | None:
        """Say so if the mean gamma is beyond what can still be learned from, or half of the samples are at the bound."""
        mean, bound = values.get("gamma_mean", 0.0), values.get("gamma_at_bound", 0.0)
        if mean > RUNAWAY_GAMMA or bound > 0.5:
            return (
                f"gamma runs away: its mean is {mean:.3g} and {bound:.0%} of the samples are at the bound, so most samples "
                "hardly train. Lower `meta_lr`, or `gamma_max`, or use more meta samples."
            )
        return None


class UnitwiseL2(Regularizer):
    r"""Cross-entropy plus :math:`\sum_u \omega_u \theta_u^2` over every weight and bias :math:`\theta_u` of the head.

    The regularizer of CE-DECE and CE-SECE. Its mixed derivative is closed: a step of size :math:`\eta` moves :math:`\theta_u`
    by :math:`-2 \eta \omega_u \theta_u`. Left unconstrained, as in the published code, coefficients may become negative and
    push weights away from zero without end: on a small planted problem the penalty fell to -700 within 300 meta steps.

    Args:
        nonnegative: Clamp coefficients at zero after every meta step; the published code does not.
        init: Coefficient of every unit at the start.
        share: Whether the penalty counts once per "example", so that it weighs the same under a mean and under a sum of losses,
            or once per "batch", as in the published code, where a summed loss of 128 samples drowns it 128-fold.

    Example:
        >>> penalised = UnitwiseL2(init=0.5)
        >>> hyper = penalised.init(1, 2)
        >>> head = {"weight": torch.tensor([[2.0], [0.0]]), "bias": torch.zeros(2)}
        >>> penalised.loss(hyper, torch.ones(1, 1), torch.zeros(1, 2), torch.tensor([0]), head)  # ln 2 + 0.5 * 4
        tensor([2.6931])

    Reference:
        Bohdal, Yang and Hospedales, "Meta-Calibration", 2021; TMLR 2023.
    """

    # Per meta step and coefficient. On small planted problems 1e-5 was too slow to be felt and 1e-3 diverged.
    pace: ClassVar[float] = 1e-4

    def __init__(self, *, nonnegative: bool = True, init: float = 0.0, share: Literal["example", "batch"] = "example") -> None:
        check_choice(share, ("example", "batch"), where="UnitwiseL2", name="share")
        self.nonnegative, self.start, self.share = nonnegative, init, share

    def init(self, num_features: int, num_classes: int, *, bias: bool = True, generator: Generator = None) -> Params:
        """Return one coefficient per entry of the head: ``weight [C, d]`` and, with a bias, ``bias [C]``."""
        hyper = {"weight": torch.full((num_classes, num_features), self.start)}
        return hyper | ({"bias": torch.full((num_classes,), self.start)} if bias else {})

    def loss(self, hyper: Values, features: Tensor, logits: Tensor, labels: Tensor, head: Values) -> Tensor:
        """Return cross-entropy plus the penalty, ``[B]``."""
        return cross_entropy_loss(logits, labels) + self._penalty(hyper, head) * (self._count(labels) / len(labels))

    def gradients(self, hyper: Values, features: Tensor, logits: Tensor, labels: Tensor, head: Values) -> tuple[Tensor, Params]:
        """Return the gradient of cross-entropy ``[B, C]`` and that of the summed penalty."""
        count = self._count(labels)
        direct = {name: 2 * count * hyper[name] * head[name].detach() for name in hyper}
        return cross_entropy_gradient(logits.detach(), labels), direct

    def project(self, hyper: Values) -> Params:
        """Return the coefficients, clamped at zero if they must not be negative."""
        return {name: value.clamp(min=0.0) if self.nonnegative else value for name, value in hyper.items()}

    def summary(self, hyper: Values, *, features: Tensor | None = None, head: Values | None = None) -> Params:
        """Return the spread of the coefficients and, given the head, the penalty they make."""
        return super().summary(hyper) | ({} if head is None else {"penalty": self._penalty(hyper, head).detach()})

    def _penalty(self, hyper: Values, head: Values) -> Tensor:
        return torch.stack([(hyper[name] * head[name].square()).sum() for name in hyper]).sum()

    def _count(self, labels: Tensor) -> int:
        return len(labels) if self.share == "example" else 1


class LabelSmoothing(Regularizer):
    r"""Cross-entropy with a target that keeps :math:`1 - s` for the true class and spreads :math:`s`, learnably.

    With :math:`s_y` the ``amount`` of class y (one number for all in the "scalar" form), the target of a sample is
    :math:`(1 - s_y)\,\mathrm{onehot}(y) + s_y / C`.

    Args:
        form: "scalar", or "per-class" for an amount of each true class.

    Example:
        >>> smoothing = LabelSmoothing()
        >>> smoothing.target({"amount": torch.tensor(0.3)}, torch.tensor([1]), num_classes=3)
        tensor([[0.1000, 0.8000, 0.1000]])

    Reference:
        Bohdal, Yang and Hospedales, "Meta-Calibration", TMLR 2023.
    """

    def __init__(self, *, form: Literal["scalar", "per-class"] = "scalar") -> None:
        check_choice(form, ("scalar", "per-class"), where="LabelSmoothing", name="form")
        self.form = form

    def init(self, num_features: int, num_classes: int, *, bias: bool = True, generator: Generator = None) -> Params:
        """Return an ``amount`` (``[]`` or ``[C]``) of zero."""
        return {"amount": torch.zeros(() if self.form == "scalar" else num_classes)}

    def target(self, hyper: Values, labels: Tensor, *, num_classes: int) -> Tensor:
        """Return the target ``[B, C]`` of every sample, differentiable in ``hyper``."""
        amount = hyper["amount"]
        taken = (amount.expand(len(labels)) if amount.ndim == 0 else amount[labels]).unsqueeze(1)
        truth = torch.nn.functional.one_hot(labels.long(), num_classes).to(amount.dtype)
        return (1 - taken) * truth + taken / num_classes

    def loss(self, hyper: Values, features: Tensor, logits: Tensor, labels: Tensor, head: Values) -> Tensor:
        """Return cross-entropy against the smoothed target, ``[B]``."""
        return cross_entropy_loss(logits, self.target(hyper, labels, num_classes=logits.shape[1]))

    def project(self, hyper: Values) -> Params:
        """Return amounts within [0, 0.5]."""
        return {"amount": hyper["amount"].clamp(0.0, MOST_SMOOTHING)}


REGULARIZERS: dict[str, Callable[..., Regularizer]] = {
    "gamma-focal": GammaFocal,
    "unitwise-l2": UnitwiseL2,
    "label-smoothing": LabelSmoothing,
    "label-smoothing-per-class": partial(LabelSmoothing, form="per-class"),
}


def spread_of(values: Tensor) -> dict[str, Tensor]:
    """Mean, standard deviation (of the values themselves, 0 for one), least and greatest."""
    low, high = values.aminmax()
    return {"mean": values.mean(), "std": values.std(correction=0), "min": low, "max": high}


def cross_entropy_gradient(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Gradient of every sample's cross-entropy with respect to its logits, :math:`q_i - \mathrm{onehot}(y_i)`, ``[B, C]``."""
    probs = torch.softmax(logits, 1)
    index = labels.long().unsqueeze(1)
    # p - 1 of a probable true class, computed as minus the sum of the others, does not round to zero.
    others = probs.scatter(1, index, 0.0)
    return others.scatter(1, index, -others.sum(1, keepdim=True))
