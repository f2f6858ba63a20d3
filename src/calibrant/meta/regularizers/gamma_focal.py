"""Focal loss whose gamma a gamma-Net sets for every sample: FL-gamma of Wang and Golebiowski."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.core.registry import lookup
from calibrant.losses import focal_gradient_weight, focal_loss
from calibrant.meta.gamma_net import GammaNet, Params, bound_heads, gamma_of, gamma_speed, head_gammas_of, init_gamma_net
from calibrant.meta.positive import POSITIVE_MAPS
from calibrant.meta.regularizers.base import Head, Regularizer, cross_entropy_gradient, spread_of

# Where the weight g(p, gamma) of a sample with p = 0.5 falls below 2 %: the batch hardly trains, the hypergradient vanishes,
# and gamma cannot come back by itself.
RUNAWAY_GAMMA = 8.0


class GammaFocal(Regularizer):
    r"""Focal loss with a gamma for every sample.

    :math:`L_i = -(1 - p_i)^{\gamma_i} \log p_i` with :math:`p_i` the probability of the true class and :math:`\gamma_i` what
    `calibrant.meta.gamma_of` makes of the features. The gradient with respect to the logits is cross-entropy's times a weight
    :math:`g(p_i, \gamma_i)` (`calibrant.losses.focal_gradient_weight`): gamma-Net reweights samples and never turns a gradient.
    That closed form is what the look-ahead differentiates.

    Args:
        num_heads: Heads k of the gamma-Net; the number of classes if None.
        temperature: Divisor of its score.
        positive: How its score becomes positive: "abs", "sigmoid", "relu", "softplus" or "minmax".
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
        positive: str = "abs",
        gamma_max: float | None = 20.0,
        gamma_init: float = 1.0,
    ) -> None:
        lookup(POSITIVE_MAPS, positive, kind="positive map")
        self.num_heads, self.temperature, self.positive = num_heads, temperature, positive
        self.gamma_max, self.gamma_init = gamma_max, gamma_init

    def init(
        self, num_features: int, num_classes: int, *, bias: bool = True, generator: torch.Generator | None = None
    ) -> Params:
        """Return ``attention [d, k]`` and ``readout [d]`` that give ``gamma_init`` to every sample."""
        return init_gamma_net(
            num_features,
            self.num_heads or num_classes,
            temperature=self.temperature,
            positive=self.positive,
            gamma_max=self.gamma_max,
            gamma_init=self.gamma_init,
            generator=generator,
        )

    def net(self, hyper: Mapping[str, Tensor]) -> GammaNet:
        """Return a gamma-Net module with a copy of the parameters ``hyper``."""
        num_features, num_heads = hyper["attention"].shape
        net = GammaNet(
            num_features,
            num_heads,
            temperature=self.temperature,
            positive=self.positive,
            gamma_max=self.gamma_max,
            gamma_init=self.gamma_init,
        )
        net = net.to(hyper["attention"])
        net.load_state_dict(dict(hyper))
        return net

    def gamma(self, hyper: Mapping[str, Tensor], features: Tensor) -> Tensor:
        """Return the gamma of every sample ``[B]``; features are taken as constants."""
        return gamma_of(
            hyper, features.detach(), temperature=self.temperature, positive=self.positive, gamma_max=self.gamma_max
        )

    def loss(self, hyper: Mapping[str, Tensor], features: Tensor, logits: Tensor, labels: Tensor, head: Head) -> Tensor:
        """Return the focal loss of every sample ``[B]``."""
        return focal_loss(logits, labels, gamma=self.gamma(hyper, features))

    def gradients(
        self, hyper: Mapping[str, Tensor], features: Tensor, logits: Tensor, labels: Tensor, head: Head
    ) -> tuple[Tensor, Params]:
        """Return the weighted gradient of cross-entropy ``[B, C]``; the loss does not read the head."""
        scores = logits.detach()
        weight = focal_gradient_weight(scores, labels, gamma=self.gamma(hyper, features))
        return weight.unsqueeze(1) * cross_entropy_gradient(scores, labels), {}

    def project(self, hyper: Mapping[str, Tensor]) -> Params:
        """Return parameters whose head-gammas do not exceed ``gamma_max``."""
        return bound_heads(hyper, temperature=self.temperature, positive=self.positive, gamma_max=self.gamma_max)

    def speed(self, hyper: Mapping[str, Tensor]) -> Tensor:
        """Return the change of gamma per unit of learning rate."""
        slope = POSITIVE_MAPS[self.positive].slope(self.gamma_init, self.gamma_max)
        return gamma_speed(hyper, temperature=self.temperature, slope=slope)

    def summary(
        self, hyper: Mapping[str, Tensor], *, features: Tensor | None = None, head: Head | None = None
    ) -> dict[str, Tensor]:
        """Return gamma's mean, spread and extremes over the batch (over the heads without one) and the share at the bound."""
        values = {name: value.detach() for name, value in hyper.items()}
        if features is None:
            gamma = head_gammas_of(values, temperature=self.temperature, positive=self.positive, gamma_max=self.gamma_max)
        else:
            gamma = self.gamma(values, features)
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
