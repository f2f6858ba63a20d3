from __future__ import annotations

import pytest
import torch

from calibrant.losses import ConfidencePruner, HuberDCA, dca_penalty, huber_dca_penalty
from helpers import golden, with_confidence


def test_huber_dca_of_a_small_gap_is_quadratic() -> None:
    logits, labels = with_confidence([0.6, 0.55], [1, 0])
    assert huber_dca_penalty(logits, labels, alpha=0.1).item() == pytest.approx(0.5 * 0.075**2)


def test_huber_dca_of_a_large_gap_is_linear() -> None:
    logits, labels = with_confidence([0.9, 0.9], [1, 0])
    assert huber_dca_penalty(logits, labels, alpha=0.1).item() == pytest.approx(0.1 * (0.4 - 0.05))


def test_huber_dca_agrees_with_the_library_function_and_with_dca_far_out() -> None:
    logits, labels = golden()
    gap = dca_penalty(logits, labels)
    for alpha in (0.005, 0.0113, 0.5):
        expected = torch.nn.functional.huber_loss(gap, torch.zeros_like(gap), delta=alpha)
        torch.testing.assert_close(HuberDCA(alpha=alpha)(logits, labels), expected)
    assert (huber_dca_penalty(logits, labels, alpha=1e-6) / 1e-6).item() == pytest.approx(gap.item(), rel=1e-3)


def test_huber_dca_of_a_bad_alpha_raises() -> None:
    with pytest.raises(ValueError, match=r"huber_dca_penalty: `alpha` must be a finite number > 0, got 0"):
        huber_dca_penalty(*golden(), alpha=0)


def test_pruner_keeps_a_moving_average_of_confidence() -> None:
    pruner = ConfidencePruner(num_samples=3, ema=0.75)
    for confidence in (0.9, 0.5):
        logits, _ = with_confidence([confidence], [1])
        pruner.update(logits, indices=torch.tensor([1]))
    assert pruner.confidence[1].item() == pytest.approx(0.75 * 0.9 + 0.25 * 0.5)
    assert pruner.confidence[[0, 2]].isnan().all()


def test_pruner_drops_the_least_confident_fraction_of_those_kept_on_schedule() -> None:
    pruner = ConfidencePruner(num_samples=10, fraction=0.2, every=2)
    logits, _ = with_confidence([0.9, 0.51, 0.8, 0.7, 0.52, 0.6, 0.65, 0.75, 0.85, 0.95], [1] * 10)
    pruner.update(logits, indices=torch.arange(10))
    sizes = []
    for _ in range(5):
        pruner.end_epoch()
        sizes.append(len(pruner.kept_indices()))
    assert sizes == [10, 8, 8, 7, 7]
    assert pruner.kept_indices().tolist() == [0, 2, 3, 6, 7, 8, 9]


def test_pruner_never_drops_what_it_has_not_seen() -> None:
    pruner = ConfidencePruner(num_samples=4, fraction=0.75, every=1)
    pruner.update(with_confidence([0.9], [1])[0], indices=torch.tensor([2]))
    pruner.end_epoch()
    assert pruner.kept_indices().tolist() == [0, 1, 3]


def test_pruner_state_is_restored_by_its_state_dict() -> None:
    first, second = (ConfidencePruner(num_samples=4, fraction=0.5, every=1) for _ in range(2))
    first.update(with_confidence([0.9, 0.8, 0.7, 0.6], [1] * 4)[0], indices=torch.arange(4))
    first.end_epoch()
    second.load_state_dict(first.state_dict())
    assert second.kept_indices().tolist() == first.kept_indices().tolist() == [0, 1]
    assert int(second.epoch) == 1


def test_pruner_of_bad_arguments_raises() -> None:
    with pytest.raises(ValueError, match=r"ConfidencePruner: `fraction` must lie in \[0, 1\), got 1"):
        ConfidencePruner(num_samples=4, fraction=1)
    with pytest.raises(ValueError, match=r"ConfidencePruner: `ema` must lie in \[0, 1\), got -0.1"):
        ConfidencePruner(num_samples=4, ema=-0.1)
    with pytest.raises(ValueError, match=r"ConfidencePruner: `every` must be a whole number >= 1, got 0"):
        ConfidencePruner(num_samples=4, every=0)
