"""Sample-dependent focal loss (FLSD-53), and the rule from which its gammas come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from calibrant.core.checks import check_logits
from calibrant.core.closed_form import Array, Result, closed_form
from calibrant.losses.base import Loss, Reduction, Shared, reduce_loss
from calibrant.losses.focal import check_gamma, focal_by_numpy, focal_from_log_odds
from calibrant.losses.logprob import true_class_log_odds, widen


def flsd_loss(
    logits: Tensor, labels: Tensor, *, threshold: float = 0.2, gamma_below: float = 5.0, gamma_above: float = 3.0
) -> Tensor:
    r"""Focal loss with a larger gamma where the true class is improbable: 5 below 0.2, else 3.

    With :math:`p_i` the probability of the true class, `focal_loss` with

    .. math:: \gamma_i = \gamma_{\mathrm{below}} \text{ if } p_i < \theta, \text{ else } \gamma_{\mathrm{above}},

    chosen anew at every step and held constant in the gradient. `lambert_gamma` gives the rule behind the numbers. The
    released code has a third step from p = 0.5 on, whose gamma is its command-line argument: 3 in the authors' scripts, which
    is the rule here, but 1 by default, which silently gives "FLSD-531". It loops over samples; this does not.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        threshold: Probability :math:`\theta` in (0, 1) at which gamma changes; p equal to it counts as above.
        gamma_below: Gamma for p below it.
        gamma_above: Gamma for the others.

    Returns:
        ``[B]``, at least 0. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> flsd_loss(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), torch.tensor([1, 1]))
        tensor([0.0866, 8.9946])

    Reference:
        Mukhoti et al., "Calibrating Deep Neural Networks using Focal Loss", NeurIPS 2020, section 5.
    """
    steps = (threshold, gamma_below, gamma_above)
    return _reduced_flsd(logits, labels, steps=steps, reduction="none")


def _reduced_flsd(logits: Tensor, labels: Tensor, *, steps: tuple[float, float, float], reduction: Reduction) -> Tensor:
    where = "flsd_loss"
    # The closed form looks at the labels itself, and leaves it to the other to speak of bad ones.
    check_logits(logits, labels, where=where, values=False)
    threshold, below, above = steps
    if not 0 < threshold < 1:
        raise ValueError(f"{where}: `threshold` must lie in (0, 1), got {threshold!r}.")
    below, above = float(check_gamma(below, logits, where=where)), float(check_gamma(above, logits, where=where))

    def by_torch(scores: Tensor, labels: Tensor) -> Tensor:
        check_logits(scores, labels, where=where)
        odds = true_class_log_odds(scores, labels)
        # p < threshold, said in log-odds.
        improbable = odds.detach() > math.log((1 - threshold) / threshold)
        gammas = torch.full_like(odds, above).masked_fill_(improbable, below)
        return reduce_loss(focal_from_log_odds(odds, gammas), reduction)

    def gammas_of(p: Array) -> Array:
        # One for p below the threshold, zero from it on.
        improbable: Array = np.heaviside(float(threshold) - p, 0)
        return above + (below - above) * improbable

    def by_numpy(scores: Array, labels: Array) -> Result | None:
        return focal_by_numpy(scores, labels, gammas_of, reduction=reduction)

    return closed_form(by_torch, by_numpy, widen(logits), labels)


def lambert_gamma(probability: float) -> float:
    r"""Smallest gamma with which focal loss has no larger gradient than cross-entropy at and above a probability.

    It is the root :math:`\gamma > 0` of :math:`g(p_0, \gamma) = 1` (see `focal_gradient_weight`). With
    :math:`a = \log(1 - p_0)`, :math:`h = -p_0 \log p_0 / (1 - p_0)` and the lower branch :math:`W_{-1}` of Lambert's function,

    .. math:: \gamma^*(p_0) = \frac{1}{a}\,W_{-1}\!\Bigl(\frac{a}{h}\, e^{a/h}\Bigr) - \frac{1}{h} .

    From :math:`p_0 = 0.5` on, only the root 0 is left. The rule gives 4.85 at 0.2, whence FLSD's 5; its 3 belongs to 0.25.

    Args:
        probability: :math:`p_0` in (0, 1).

    Returns:
        Gamma, at least 0. Raises ``ValueError`` for a probability outside (0, 1).

    Example:
        >>> round(lambert_gamma(0.2), 3), round(lambert_gamma(0.25), 3), lambert_gamma(0.6)
        (4.851, 3.07, 0.0)

    Reference:
        Mukhoti et al., NeurIPS 2020, proposition 2 (there with 1e-12 added inside W).
    """
    if not 0 < probability < 1:
        raise ValueError(f"lambert_gamma: `probability` must lie in (0, 1), got {probability!r}.")
    if probability >= 0.5:
        return 0.0
    from scipy.special import lambertw

    slope = math.log1p(-probability)
    ratio = -probability * math.log(probability) / (1 - probability)
    branch = float(lambertw(slope / ratio * math.exp(slope / ratio), k=-1).real)
    return branch / slope - 1 / ratio


class FLSDLoss(Loss):
    """`flsd_loss` as a module.

    Args:
        threshold: Probability at which gamma changes.
        gamma_below: Gamma for p below it.
        gamma_above: Gamma for the others.
        reduction: "mean", "sum" or "none".
        shared: ``ignore_index`` and ``weight``, as in `Loss`.
    """

    def __init__(
        self,
        *,
        threshold: float = 0.2,
        gamma_below: float = 5.0,
        gamma_above: float = 3.0,
        reduction: Reduction = "mean",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(reduction=reduction, **shared)
        self.threshold = threshold
        self.gamma_below = gamma_below
        self.gamma_above = gamma_above

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample, ``[B]``."""
        return flsd_loss(logits, labels, threshold=self.threshold, gamma_below=self.gamma_below, gamma_above=self.gamma_above)

    def _reduced(self, logits: Tensor, labels: Tensor, inputs: Mapping[str, Tensor], reduction: Reduction | None) -> Tensor:
        steps = (self.threshold, self.gamma_below, self.gamma_above)
        return _reduced_flsd(logits, labels, steps=steps, reduction=reduction or "none")
