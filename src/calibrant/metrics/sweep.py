"""ECE and MCE against the number of bins: how much a result owes to the binning.

`sweep_calibration_error`, in `adaptive`, is something else: one number, for which the data choose the number of bins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from calibrant.core.binning import equal_width_edges, mass_curve, reduce_top_label
from calibrant.core.checks import check_count
from calibrant.core.entry import BinSweep
from calibrant.core.records import Predictions

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

# 10, 20, 50, 100, 200, 500 and 1000 are those of published figures; the others fill the gaps on a logarithmic axis.
BIN_COUNTS = (10, 15, 20, 30, 50, 70, 100, 150, 200, 300, 500, 700, 1000)


def bin_sweep(predictions: Predictions, *, n_bins: Sequence[int] = BIN_COUNTS) -> BinSweep:
    """Expected and maximum calibration error of one set of predictions for each of several numbers of bins.

    The numbers are those of `calibrant.metrics.expected_calibration_error` and `maximum_calibration_error`. The examples are
    sorted once and every binning is read off their running sums, so that also all numbers from 10 to 1000 are quick.

    Args:
        predictions: N examples of C classes; sample weights are respected.
        n_bins: Numbers of bins, in any order.

    Returns:
        The errors, by rising number of bins. Raises ``ValueError`` if there is no number, or one that is not whole and >= 1.

    Example:
        >>> from calibrant import Predictions
        >>> predictions = Predictions(probs=[[0.9, 0.1], [0.8, 0.2]], labels=[0, 1])
        >>> sweep = bin_sweep(predictions, n_bins=(10, 2))
        >>> sweep.n_bins, [round(value, 2) for value in sweep.ece], [round(value, 2) for value in sweep.mce]
        ((2, 10), [0.35, 0.45], [0.35, 0.8])

    Reference:
        Minderer et al., NeurIPS 2021 (bias of binned errors against the number of bins).
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
    numbers = tuple(sorted({int(number) for number in n_bins}))
    top = reduce_top_label(predictions.probs, predictions.labels, predictions.weights)
    curve = mass_curve(top)
    values, mass = curve.values.numpy(), curve.mass.numpy()
    residual = (curve.confidence - curve.correct).numpy()
    found = [_errors(values, mass, residual, equal_width_edges(number, top.dtype).numpy()) for number in numbers]
    return BinSweep(n_bins=numbers, ece=tuple(ece for ece, _ in found), mce=tuple(mce for _, mce in found))


def _errors(values: Array, mass: Array, residual: Array, edges: Array) -> tuple[float, float]:
    """ECE and MCE over the bins between ``edges``, from running sums of weight and of weight x (confidence - correctness)."""
    # A value on an edge belongs to the bin that ends there; 0 and 1 belong to the first and the last bin.
    ends = np.searchsorted(values, edges[1:-1], side="right")
    cuts = np.concatenate([[0], ends, [len(values)]])
    weight, gap = np.diff(mass[cuts]), np.abs(np.diff(residual[cuts]))
    filled = weight > 0
    return float(gap.sum() / mass[-1]), float((gap[filled] / weight[filled]).max())
