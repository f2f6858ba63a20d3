"""Calibration metrics read from the sums that a stream keeps instead of its examples.

Binned metrics, proper scores and means are exact. Those that follow the order of confidences or a kernel over them are exact
while all examples are kept; beyond, examples of one fine cell of `calibrant.core.grid` are treated as tied at their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from calibrant.core.binning import MassCurve, TopLabel, equal_width_edges, mass_curve, means_of_sums
from calibrant.core.grid import Grid, fold_to_bins, fold_to_grid
from calibrant.core.records import Bins
from calibrant.core.summary import Summary
from calibrant.metrics.values import READERS

# Examples kept as they are (1 MB): the usual test sets, ImageNet's 50,000 included, are measured exactly. Of more, equal-mass
# bins hold so many that it hardly matters where in a cell a cut goes: of 66,000 the debiased error, whose root magnifies
# small differences near zero, moves by 2e-4 at most, where of 17,000 it moved by up to 1.3e-3.
KEPT_EXAMPLES = 65_536


@dataclass(frozen=True)
class Sums:
    """What a stream knows of its examples i with weights w_i, float64 on the CPU.

    Attributes:
        n: Number of examples.
        size: Number of examples of positive weight.
        n_bins: Number of bins M.
        totals: Sums ``[8]`` of w, w², and of w v, w v², w v³ for the negative log-likelihood v, then for the Brier score v.
        cells: Sums ``[4, FINE_CELLS]`` of w, w times confidence, w times correctness and w² by cell of confidence.
        kept: All examples, if there are few enough, else None.
        class_bins: Sums ``[3, C, M]`` of w, w times probability and w of examples with that label, by class and bin of
            its probability; or None.
        class_correct: Weight of the correctly predicted examples by label ``[C]``, or None.
        class_rows: Number of examples by label ``[C]``, or None if they have no weights.
    """

    n: int
    size: int
    n_bins: int
    totals: Tensor
    cells: Tensor
    kept: TopLabel | None
    class_bins: Tensor | None
    class_correct: Tensor | None
    class_rows: Tensor | None = None

    @cached_property
    def bins(self) -> Bins:
        """Equal-width confidence bins, exact."""
        return self.bins_of(self.n_bins)

    def bins_of(self, n_bins: int) -> Bins:
        """Equal-width confidence bins for any number of them that divides 3,000, exact."""
        sums = fold_to_bins(fold_to_grid(self.cells[:3]), n_bins)
        return means_of_sums(equal_width_edges(n_bins), *sums)

    @cached_property
    def top(self) -> TopLabel:
        """The examples, or one per cell with its mean confidence, mean correctness and weight."""
        if self.kept is not None:
            return self.kept
        weight, confidence, correct, _ = self._filled
        return TopLabel(confidence / weight, correct / weight, weight)

    @cached_property
    def curve(self) -> MassCurve:
        """The examples sorted by confidence and added up."""
        if self.kept is not None:
            return mass_curve(self.kept)
        weight, confidence, correct, squares = self._filled
        rising = torch.nn.functional.pad(self._filled.cumsum(1), (1, 0))
        return MassCurve(self.size, confidence / weight, rising[0], rising[1], rising[2], rising[3])

    @property
    def nll(self) -> Tensor:
        """Mean negative log-likelihood ``[]``."""
        return self.totals[2] / self.totals[0]

    @property
    def brier(self) -> Tensor:
        """Mean Brier score ``[]``."""
        return self.totals[5] / self.totals[0]

    @property
    def class_gaps(self) -> Tensor:
        """Summed probability less summed label by class and bin ``[C, M]``, over the weight of all examples."""
        if self.class_bins is None:
            raise ValueError(
                "classwise_ece: the classwise sums must have been kept, got none. Construct with `classwise=True`."
            )
        _, probability, labelled = self.class_bins
        gaps: Tensor = (probability - labelled) / self.totals[0]
        return gaps

    @cached_property
    def _filled(self) -> Tensor:
        return self.cells[:, self.cells[0] > 0]

    def summary(self) -> Summary:
        """The record from which `calibrant.metrics` computes scores with intervals."""
        if self.class_bins is None or self.class_correct is None:
            raise ValueError("Sums.summary: the classwise sums must have been kept, got none. Construct with `classwise=True`.")
        return Summary(
            n=self.n,
            num_classes=self.class_bins.shape[1],
            n_bins=self.n_bins,
            weight=float(self.totals[0]),
            weight_squares=float(self.totals[1]),
            grid=Grid(*fold_to_grid(self.cells[:3])),
            nll=self.totals[2:5].clone(),
            brier=self.totals[5:8].clone(),
            class_bins=Grid(*self.class_bins),
            class_correct=self.class_correct.clone(),
            class_rows=None if self.class_rows is None else self.class_rows.clone(),
        )


def read_metrics(sums: Sums) -> dict[str, Tensor]:
    """Read every metric for which the sums were kept: key → scalar ``[]``."""
    return {key: read(sums) for key, read in READERS.items() if key != "classwise_ece" or sums.class_bins is not None}
