"""Top-label conditional binning: the confidence is calibrated apart for every class that is predicted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import FitData
from calibrant.calibrators.histogram import bin_values, equal_mass_edges
from calibrant.calibrators.log_space import floor_logits, replace_confidence
from calibrant.calibrators.one_vs_rest import Question, Vector
from calibrant.calibrators.piecewise import PAD, lookup_rows, pad_rows
from calibrant.core.checks import check_count


def top_label_log_probs(logits: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Map the confidence by the step function of the predicted class, and scale the other classes to fill up the rest.

    Args:
        logits: Scores ``[..., C]``.
        edges: Inner edges for every predicted class ``[C, L]``.
        values: Values of the steps ``[C, L + 1]``.

    Returns:
        Log-probabilities ``[..., C]``.

    Example:
        >>> edges, values = torch.tensor([[0.9], [0.6]]), torch.tensor([[0.6, 0.8], [0.7, 0.9]])
        >>> top_label_log_probs(torch.tensor([[1.0986, 0.0], [0.0, 1.0986]]), edges, values).exp()
        tensor([[0.6000, 0.4000],
                [0.1000, 0.9000]])
    """
    log_probs = floor_logits(logits).log_softmax(-1)
    confidence, top = log_probs.max(-1)
    return replace_confidence(log_probs, lookup_rows(confidence.exp(), edges, values, top))


class TopLabelBinning(Calibrator):
    """Replaces the confidence by the accuracy in its bin, with bins of their own for every predicted class.

    Bins of a class hold ``points_per_bin`` examples or a few more; a class predicted less often than that is given the bins
    of all examples together. The other classes are scaled in proportion; where the new confidence would hand the top to
    another class it is raised to a tie, so that predictions stay.

    Args:
        points_per_bin: Examples in a bin, at least.

    Attributes:
        edges_: Inner edges for every predicted class ``[C, L]``, filled up with 2.
        values_: Accuracy in each bin ``[C, L + 1]``.

    Reference:
        Gupta and Ramdas, "Top-label calibration and multiclass-to-binary reductions", ICLR 2022.
    """

    preserves_accuracy: ClassVar[bool] = True
    learned: ClassVar[tuple[str, ...]] = ("edges", "values")
    transform = staticmethod(top_label_log_probs)
    layer_dtype: ClassVar[torch.dtype] = torch.float64

    edges_: Tensor
    values_: Tensor

    def __init__(self, *, points_per_bin: int = 50) -> None:
        check_count(points_per_bin, where="TopLabelBinning", name="points_per_bin")
        self.points_per_bin = points_per_bin

    def fewest_samples(self, num_classes: int) -> int:
        """Number of examples below which a fit warns."""
        return 2 * self.points_per_bin * num_classes

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        probs = floor_logits(data.logits.double()).softmax(1)
        confidence, predicted = probs.max(1)
        correct = (predicted == data.labels).double()

        def steps(rows: Tensor) -> tuple[Vector, Vector]:
            question = Question(*(part[rows].numpy() for part in (confidence, correct, data.weights)))
            n_bins = max(len(question.probs) // self.points_per_bin, 1)
            edges = equal_mass_edges(question.probs, question.weights, n_bins)
            return edges, bin_values(question, edges)

        everything = steps(torch.ones(len(data), dtype=torch.bool))
        found = []
        for k in range(data.num_classes):
            rows = predicted == k
            found.append(steps(rows) if int(rows.sum()) >= self.points_per_bin else everything)
        edges = pad_rows([edges for edges, _ in found], least=1, fill=PAD)
        return {"edges": edges, "values": pad_rows([values for _, values in found], least=edges.shape[1] + 1, fill=None)}
