from __future__ import annotations

import pytest
import torch

from calibrant.losses import DCA, MDCA, dca_penalty, mdca_penalty
from helpers import golden, with_confidence


def test_mdca_of_golden_input_has_the_golden_value() -> None:
    assert MDCA()(*golden()).item() == pytest.approx(0.050418, abs=6e-7)


def test_mdca_by_hand() -> None:
    # Mean probabilities (0.75, 0.25) against frequencies (0.5, 0.5).
    logits, labels = with_confidence([0.8, 0.7], [1, 0])
    assert mdca_penalty(logits, labels).item() == pytest.approx((0.25 + 0.25) / 2)


def test_mdca_of_a_class_absent_from_the_batch_counts_its_probability() -> None:
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.2], [0.7, 0.1, 0.2]], dtype=torch.float64))
    assert mdca_penalty(logits, torch.tensor([0, 1])).item() == pytest.approx((0.1 + 0.3 + 0.2) / 3)


def test_mdca_is_zero_where_mean_probabilities_are_the_frequencies() -> None:
    assert mdca_penalty(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0])).item() == 0


def test_mdca_takes_labels_of_any_integer_type() -> None:
    logits, labels = golden()
    assert torch.equal(mdca_penalty(logits, labels.to(torch.uint8)), mdca_penalty(logits, labels))


def test_dca_of_golden_input_is_the_gap_of_its_means() -> None:
    # Mean confidence 0.678025, accuracy 2/3.
    assert DCA()(*golden()).item() == pytest.approx(0.678025 - 2 / 3, abs=6e-7)


def test_dca_is_blind_to_gaps_that_cancel() -> None:
    logits, labels = with_confidence([0.6, 0.9], [0, 1])
    assert dca_penalty(logits, labels).item() == pytest.approx(0.25)
    logits, labels = with_confidence([0.5, 0.5], [0, 1])
    assert dca_penalty(logits, labels).item() == pytest.approx(0)
