"""The synthetic classifier: its true calibration error is what it says."""

from __future__ import annotations

import pytest
import torch

from calibrant.data.synthetic import synthetic_predictions


@pytest.mark.parametrize(("temperature", "sign"), [(2.4, 1), (1.5, 1), (0.6, -1)])
def test_synthetic_truth_is_the_gap_between_confidence_and_accuracy(temperature: float, sign: int) -> None:
    predictions, truth = synthetic_predictions(200_000, 5, temperature=temperature)
    gap = predictions.confidence - predictions.correct.double()
    # Standard error of the mean of 200,000 values of spread at most 0.5: 0.0011; four of them.
    assert float(gap.mean()) == pytest.approx(sign * truth, abs=0.0045)
    assert truth > 0.02


def test_synthetic_same_seed_gives_the_same() -> None:
    first, second, other = (synthetic_predictions(100, seed=seed)[0] for seed in (3, 3, 4))
    assert torch.equal(first.logits, second.logits)
    assert torch.equal(first.labels, second.labels)
    assert not torch.equal(first.logits, other.logits)
    assert first.split == "test"
    easy, hard = (synthetic_predictions(5000, hardness=value)[0] for value in (0.5, 2.0))
    assert float(easy.correct.double().mean()) > float(hard.correct.double().mean()) + 0.1
    assert first.logits.dtype == torch.float32
