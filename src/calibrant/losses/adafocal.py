"""AdaFocal: focal loss with one gamma per confidence bin, steered by the calibration gap on validation data."""

from __future__ import annotations

from typing import Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from calibrant.core.binning import equal_mass_bins, top_label
from calibrant.core.checks import ArrayLike, check_count, check_logits, check_positive
from calibrant.core.records import Bins, Predictions, Split
from calibrant.losses.base import Loss, Reduction, Shared
from calibrant.losses.logprob import minus_log_p, true_class_log_odds, widen


def adafocal_loss(logits: Tensor, labels: Tensor, *, gammas: Tensor, edges: Tensor) -> Tensor:
    r"""Focal loss, or inverse focal loss, with the gamma of the bin that holds the true-class probability.

    With :math:`p_i` the probability of the true class and :math:`\gamma_i` the gamma of the bin :math:`(e_{m-1}, e_m]` that
    holds it (the first and last bins reach to 0 and 1),

    .. math:: L_i = -(1 - p_i)^{\gamma_i} \log p_i \;\text{ if } \gamma_i \ge 0, \qquad
        L_i = -(1 + p_i)^{|\gamma_i|} \log p_i \;\text{ if } \gamma_i < 0 .

    The choice of bin is held constant in the gradient. Bins come from the top-label confidence of validation data, yet are
    looked up by the *true-class* probability of training data: so it is in the paper. A bin of zero width is never chosen.

    Args:
        logits: Scores ``[B, C]``. float16 and bfloat16 are computed, and returned, in float32.
        labels: Class indices ``[B]``.
        gammas: Gamma of each bin ``[M]``, of either sign.
        edges: Edges of the bins ``[M + 1]``, not falling.

    Returns:
        ``[B]``, at least 0. Raises ``ValueError`` if shapes disagree.

    Example:
        >>> gammas, edges = torch.tensor([2.0, -1.0]), torch.tensor([0.0, 0.5, 1.0])
        >>> adafocal_loss(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1, 0]), gammas=gammas, edges=edges)
        tensor([0.1733, 0.2387])

    Reference:
        Ghosh, Schaaf and Gormley, "AdaFocal: Calibration-aware Adaptive Focal Loss", NeurIPS 2022; eq. 5 of the
        earlier submission to ICLR 2022, which has no inverse branch yet. The released code adds 1e-20 to the base of the
        power and sums over the batch.
    """
    where = "adafocal_loss"
    check_logits(logits, labels, where=where)
    if gammas.ndim != 1 or edges.shape != (len(gammas) + 1,):
        raise ValueError(f"{where}: `gammas` must be [M] and `edges` [M + 1], got {list(gammas.shape)}, {list(edges.shape)}.")
    odds = true_class_log_odds(widen(logits), labels)
    surprise = minus_log_p(odds)
    probs = torch.exp(-surprise)
    index = torch.bucketize(probs.detach(), edges[1:-1].to(probs.dtype).contiguous())
    strength = gammas.to(probs.dtype)[index]
    log_base = torch.where(strength >= 0, F.logsigmoid(odds), torch.log1p(probs))
    return torch.exp(strength.abs() * log_base) * surprise


def adafocal_gammas(
    gammas: Tensor,
    gaps: Tensor,
    *,
    rate: float = 1.0,
    switch: float = 0.2,
    gamma_min: float = -2.0,
    gamma_max: float = 20.0,
) -> Tensor:
    r"""Move each bin's gamma against the calibration gap that its validation examples show.

    With gap :math:`E_m` = confidence - accuracy of bin m, rate :math:`\lambda` and switch threshold :math:`S`,

    .. math:: \gamma_m \leftarrow \gamma_m e^{\lambda E_m} \text{ if } \gamma_m > 0, \text{ else } \gamma_m e^{-\lambda E_m};

    if then :math:`|\gamma_m| < S` the bin changes over, to :math:`-S` from a positive and to :math:`+S` from a negative
    gamma; at last gamma is clipped to ``[gamma_min, gamma_max]``.

    Args:
        gammas: Gammas ``[M]``.
        gaps: Gaps ``[M]``, 0 for an empty bin.
        rate: :math:`\lambda`, above 0.
        switch: :math:`S`, above 0.
        gamma_min: Least gamma.
        gamma_max: Largest gamma.

    Returns:
        New gammas ``[M]``; the argument is not changed.

    Example:
        >>> adafocal_gammas(torch.tensor([1.0, 0.21, -0.21]), torch.tensor([0.5, -0.1, 0.1]))
        tensor([ 1.6487, -0.2000,  0.2000])

    Reference:
        Ghosh, Schaaf and Gormley, NeurIPS 2022 (algorithm 1 of the earlier submission to ICLR 2022); switch and
        defaults of the released code.
    """
    moved = gammas * torch.exp(rate * gaps * torch.where(gammas > 0, 1.0, -1.0))
    switched = torch.where(moved.abs() < switch, torch.where(moved > 0, -switch, switch), moved)
    return switched.clamp(gamma_min, gamma_max)


class AdaFocalLoss(Loss):
    """`adafocal_loss` with its state: gammas and edges, in the ``state_dict``, moved by ``update`` after each epoch.

    Call ``update`` with predictions on validation data; without it the loss is focal loss with ``gamma_init``. Of the released
    code it keeps the rule and the defaults. Confidences that tie across a cut are shared between bins of equal mass here;
    there they are sorted as they come, and bins left empty have no gap.

    Args:
        n_bins: Number of bins.
        gamma_init: Gamma of every bin at the start.
        rate: Step of `adafocal_gammas`.
        switch: Size of gamma below which a bin changes between focal and inverse focal loss.
        gamma_min: Least gamma, negative.
        gamma_max: Largest gamma.
        reduction: "mean", "sum" (as the authors train, with gradients clipped to norm 2) or "none".
        shared: ``ignore_index`` and ``weight``, as in `Loss`.

    Example:
        >>> loss = AdaFocalLoss(n_bins=2)
        >>> bins = loss.update([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4], [0.7, 0.3]], [0, 1, 0, 0])
        >>> loss.gammas
        tensor([0.7047, 1.4191])
    """

    gammas: Tensor
    edges: Tensor

    def __init__(
        self,
        *,
        n_bins: int = 15,
        gamma_init: float = 1.0,
        rate: float = 1.0,
        switch: float = 0.2,
        gamma_min: float = -2.0,
        gamma_max: float = 20.0,
        reduction: Reduction = "mean",
        **shared: Unpack[Shared],
    ) -> None:
        super().__init__(reduction=reduction, **shared)
        check_count(n_bins, where="AdaFocalLoss", name="n_bins")
        for name, value in {"gamma_init": gamma_init, "rate": rate, "switch": switch, "gamma_max": gamma_max}.items():
            check_positive(value, where="AdaFocalLoss", name=name)
        if gamma_min > -switch:
            raise ValueError(f"AdaFocalLoss: `gamma_min` must be at most -switch = {-switch}, got {gamma_min!r}.")
        self.n_bins = n_bins
        self.gamma_init = gamma_init
        self.rate = rate
        self.switch = switch
        self.gamma_min = gamma_min
        self.gamma_max = gamma_max
        self.register_buffer("gammas", torch.full((n_bins,), float(gamma_init)))
        self.register_buffer("edges", torch.linspace(0, 1, n_bins + 1))

    def update(self, probs: Predictions | ArrayLike, labels: ArrayLike | None = None) -> Bins:
        """Move gammas and edges by what validation data show.

        Args:
            probs: Probabilities ``[N, C]`` on validation data, or `Predictions` (then without ``labels``).
            labels: Class indices ``[N]``.

        Returns:
            The equal-mass bins of the validation data. Raises ``ValueError`` on predictions marked as test data.
        """
        where = "AdaFocalLoss.update"
        if isinstance(probs, Predictions):
            if labels is not None:
                raise ValueError(f"{where}: `labels` must not be given beside `Predictions`, which hold their own.")
            if probs.split is Split.TEST:
                raise ValueError(f"{where}: predictions must not be of the test split, got split=test. Pass validation data.")
            top = top_label(probs.probs, probs.labels, where=where, weights=probs.weights)
        elif labels is None:
            raise ValueError(f"{where}: `labels` must be given beside `probs`, got nothing.")
        else:
            top = top_label(probs, labels, where=where, ignore_index=self.ignore_index)
        bins = equal_mass_bins(top, n_bins=self.n_bins)
        moved = adafocal_gammas(
            self.gammas.double().cpu(),
            bins.gap,
            rate=self.rate,
            switch=self.switch,
            gamma_min=self.gamma_min,
            gamma_max=self.gamma_max,
        )
        # In place, so that a captured step reads the new values.
        self.gammas.copy_(moved)
        self.edges.copy_(bins.edges)
        return bins

    def value(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of every sample, ``[B]``."""
        return adafocal_loss(logits, labels, gammas=self.gammas, edges=self.edges)
