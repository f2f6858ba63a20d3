"""ECE and MCE against the number of bins: how much a result owes to the binning.

`sweep_calibration_error`, in `adaptive`, is something else: one number, for which the data choose the number of bins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from calibrant.core.binning import MassCurve, equal_width_edges, mass_curve
from calibrant.core.checks import check_count
from calibrant.core.entry import BinSweep
from calibrant.core.records import Predictions
from calibrant.core.summary import top_labels
from calibrant.metrics.null import null_of_cuts

# 10, 20, 50, 100, 200, 500 and 1000 are those of published figures; the others fill the gaps on a logarithmic axis.
BIN_COUNTS = (10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)


def bin_sweep(
    predictions: Predictions, *, n_bins: Sequence[int] = BIN_COUNTS, n_resamples: int = 500, seed: int = 0
) -> BinSweep:
    """Expected and maximum calibration error of one set of predictions for each of several numbers of bins.

    The numbers are those of `calibrant.metrics.expected_calibration_error` and `maximum_calibration_error`. The examples are
    sorted once and every binning is read off their running sums, so that also all numbers from 10 to 1000 are quick (without
    resamples).

    More bins hold fewer examples each, and chance alone makes both errors grow with them. How much is said beside: the mean of
    both over data sets in which every example is right with a chance that equals its confidence, as in
    `calibrant.metrics.null_distribution`, but with the same data sets for all numbers of bins. Examples within 0.001 of
    confidence, and of one bin whatever their number, share their mean one.

    Args:
        predictions: N examples of C classes; sample weights are respected.
        n_bins: Numbers of bins, in any order.
        n_resamples: Number of data sets drawn for what a calibrated model would show; 0 leaves that out.
        seed: Of the random draws; the same seed gives the same numbers.

    Returns:
        The errors, by rising number of bins. Raises ``ValueError`` if there is no number, or one that is not whole and >= 1.

    Example:
        >>> from calibrant import Predictions
        >>> predictions = Predictions(probs=[[0.9, 0.1], [0.8, 0.2]], labels=[0, 1])
        >>> sweep = bin_sweep(predictions, n_bins=(10, 2))
        >>> sweep.n_bins, [round(value, 2) for value in sweep.ece], [round(value, 2) for value in sweep.mce]
        ((2, 10), [0.35, 0.45], [0.35, 0.8])
        >>> sweep.ece_if_calibrated[0] < sweep.ece_if_calibrated[1]  # by chance alone
        True

    Reference:
        Minderer et al., NeurIPS 2021 (bias of binned errors against the number of bins); Bröcker and Smith, Weather and
        Forecasting 22, 2007 (what chance alone gives).
    """
    where = "bin_sweep"
    given: object = predictions
    if not isinstance(given, Predictions):
        got = type(given).__name__
        raise ValueError(f"{where}: `predictions` must be a `Predictions`, got {got}. Make one of `probs` and `labels`.")
    if len(n_bins) == 0:
        raise ValueError(f"{where}: `n_bins` must hold at least one number of bins, got none.")
    for number in n_bins:
        check_count(number, where=where, name="n_bins")
    check_count(n_resamples, where=where, name="n_resamples", least=0)
    check_count(seed, where=where, name="seed", least=0)
    numbers = tuple(sorted({int(number) for number in n_bins}))
    top = top_labels(predictions)
    curve = mass_curve(top)
    cuts = [_cuts(curve, number, top.dtype) for number in numbers]
    found = [_errors(curve, cut) for cut in cuts]
    chance = _chance(curve, [*cuts, _cuts(curve, BIN_COUNTS[-1], top.dtype)], n_resamples=n_resamples, seed=seed)
    return BinSweep(numbers, tuple(ece for ece, _ in found), tuple(mce for _, mce in found), *chance)


def _cuts(curve: MassCurve, n_bins: int, dtype: torch.dtype) -> Tensor:
    """How many of the distinct confidences lie below each edge ``[M + 1]``."""
    # A value on an edge belongs to the bin that ends there; 0 and 1 belong to the first and the last bin.
    ends = torch.searchsorted(curve.values, equal_width_edges(n_bins, dtype)[1:-1], right=True)
    return torch.cat([ends.new_zeros(1), ends, ends.new_tensor([len(curve.values)])])


def _errors(curve: MassCurve, cuts: Tensor) -> tuple[float, float]:
    """ECE and MCE over the bins between ``cuts``."""
    weight, gap = curve.mass[cuts].diff(), (curve.confidence - curve.correct)[cuts].diff().abs()
    filled = weight > 0
    return float(gap.sum() / curve.mass[-1]), float((gap[filled] / weight[filled]).max())


def _chance(curve: MassCurve, cuts: Sequence[Tensor], *, n_resamples: int, seed: int) -> list[tuple[float, ...]]:
    """Mean ECE and MCE of a calibrated model over all binnings but the last, which is there to be narrow."""
    if n_resamples == 0:
        return []
    drawn = null_of_cuts(curve, cuts, n_resamples=n_resamples, rng=np.random.default_rng(seed))
    return [tuple(values.mean(0)[:-1].tolist()) for values in drawn]
