"""One-vs-rest calibration: every class is a yes-or-no question of its own, and the answers are put together again."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from calibrant.calibrators.base import Calibrator, Learned
from calibrant.calibrators.fit_data import FitData
from calibrant.calibrators.log_space import floor_logits, join_one_vs_rest
from calibrant.calibrators.piecewise import PAD, interpolate_rows, lookup_rows, own_row, pad_rows

Vector = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


class Question(NamedTuple):
    """One class against the rest: its probability ``[N]``, whether it is the label ``[N]`` (0.0 or 1.0), and weights."""

    probs: Vector
    answers: Vector
    weights: Vector


def questions(data: FitData) -> Iterator[Question]:
    """One question for every class; of two classes only the second asks, as the first is its complement."""
    probs = floor_logits(data.logits.double()).softmax(1)
    weights = data.weights.numpy()
    for k in range(1 if data.num_classes == 2 else 0, data.num_classes):
        yield Question(probs[:, k].numpy(), (data.labels == k).double().numpy(), weights)


def asked(values: Tensor, rows: int) -> Tensor:
    """The columns of ``values [..., C]`` that have a question: all, or the second of two if there is one row."""
    return values[..., 1:] if rows == 1 else values


def lines_log_probs(logits: Tensor, knots: Tensor, values: Tensor) -> Tensor:
    """Apply a piecewise linear map ``[K, L]`` to every class's probability and normalise; ``[..., C]``.

    Example:
        >>> knots, values = torch.tensor([[0.0, 1.0]] * 3), torch.tensor([[0.5, 0.5]] * 3)
        >>> lines_log_probs(torch.tensor([[5.0, 0.0, 0.0]]), knots, values).exp()
        tensor([[0.3333, 0.3333, 0.3333]])
    """
    log_probs = floor_logits(logits).log_softmax(-1)
    chosen = asked(log_probs, knots.shape[0])
    return join_one_vs_rest(interpolate_rows(chosen.exp(), knots, values, own_row(chosen)), log_probs)


def steps_log_probs(logits: Tensor, edges: Tensor, values: Tensor) -> Tensor:
    """Apply a step function (``edges [K, L]``, ``values [K, L + 1]``) to every class's probability and normalise; ``[..., C]``.

    Example:
        >>> edges, values = torch.tensor([[0.5]] * 2 + [[0.1]]), torch.tensor([[0.2, 0.6]] * 3)
        >>> steps_log_probs(torch.tensor([[5.0, 0.0, 0.0]]), edges, values).exp()
        tensor([[0.6000, 0.2000, 0.2000]])
    """
    log_probs = floor_logits(logits).log_softmax(-1)
    chosen = asked(log_probs, edges.shape[0])
    return join_one_vs_rest(lookup_rows(chosen.exp(), edges, values, own_row(chosen)), log_probs)


class StepCalibrator(Calibrator):
    """One-vs-rest calibrators whose map is a step function of each class's probability.

    Attributes:
        edges_: Inner edges ``[C, L]`` (``[1, L]`` for two classes), filled up with 2.
        values_: Probability within each step ``[C, L + 1]``, before rows are normalised.
    """

    learned: ClassVar[tuple[str, ...]] = ("edges", "values")
    transform = staticmethod(steps_log_probs)
    layer_dtype: ClassVar[torch.dtype] = torch.float64

    edges_: Tensor
    values_: Tensor

    @abstractmethod
    def _steps(self, question: Question) -> tuple[Vector, Vector]:
        """Inner edges ``[L]`` and values ``[L + 1]`` for one class."""

    def _fit(self, data: FitData) -> Mapping[str, Learned]:
        found = [self._steps(question) for question in questions(data)]
        edges = pad_rows([edges for edges, _ in found], least=1, fill=PAD)
        values = pad_rows([values for _, values in found], least=edges.shape[1] + 1, fill=None)
        return {"edges": edges, "values": torch.as_tensor(values)}
