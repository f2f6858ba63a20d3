from __future__ import annotations

import math

import pytest
import torch

from calibrant.losses import CRL, CrossEntropyLoss, crl_penalty
from helpers import golden, with_confidence


def test_crl_of_three_samples_by_hand() -> None:
    logits, labels = with_confidence([0.9, 0.6, 0.7], [1, 1, 0])
    correctness = torch.tensor([0.5, 0.75, 0.5], dtype=torch.float64)
    # Pairs (1, 2): the second should lead by 0.25 but trails by 0.3; (2, 3): leads by -0.1; (3, 1): equal, no target.
    assert crl_penalty(logits, labels, correctness).item() == pytest.approx((0.55 + 0.35 + 0) / 3)


def test_crl_of_a_batch_ranked_with_its_margins_is_zero() -> None:
    logits, labels = with_confidence([0.95, 0.6], [1, 1])
    assert crl_penalty(logits, labels, torch.tensor([0.8, 0.5])).item() == 0


def test_crl_agrees_with_the_margin_ranking_loss_of_the_released_code() -> None:
    logits, labels = golden()
    correctness = (torch.arange(24, dtype=torch.float64) * 0.37) % 1
    confidence = logits.softmax(1).amax(1)
    lead = correctness - correctness.roll(-1)
    target, margin = lead.sign(), lead.abs()
    second = confidence.roll(-1) + margin / torch.where(target == 0, 1.0, target)
    expected = torch.nn.functional.margin_ranking_loss(confidence, second, target)
    torch.testing.assert_close(crl_penalty(logits, labels, correctness), expected)


def test_crl_score_by_entropy_and_by_margin() -> None:
    logits, labels = with_confidence([0.9, 0.6], [1, 1])
    correctness = torch.tensor([0.0, 1.0])

    def entropy(c: float) -> float:
        return -(c * math.log(c) + (1 - c) * math.log(1 - c)) / math.log(2)

    # Both pairs say the same: the second sample should lead by one.
    by_entropy = 1 + entropy(0.6) - entropy(0.9)
    assert crl_penalty(logits, labels, correctness, score="entropy").item() == pytest.approx(by_entropy)
    assert crl_penalty(logits, labels, correctness, score="margin").item() == pytest.approx(1 + 0.8 - 0.2)


def test_crl_module_counts_and_normalises_as_the_released_code() -> None:
    crl = CRL(num_samples=4)
    logits = torch.tensor([[2.0, 0.0]] * 2)
    right, wrong = torch.tensor([0, 0]), torch.tensor([1, 1])
    for epoch in range(3):
        crl.set_epoch(epoch)
        crl.update(logits, right, indices=torch.tensor([0, 2]))
        crl.update(logits, right if epoch else wrong, indices=torch.tensor([1, 3]))
    crl.set_epoch(3)
    assert crl.times_right.tolist() == [3, 2, 3, 2]
    # The least count becomes 0, the number of epochs 1.
    assert crl.correctness(torch.tensor([3, 0])).tolist() == [0, 1]
    value = crl(logits, right, indices=torch.tensor([3, 0]))
    assert value.item() == pytest.approx(1)
    assert set(crl.state_dict()) == {"times_right", "epochs"}


def test_crl_module_where_all_were_right_each_time_gives_zero() -> None:
    # The released code divides zero by zero.
    crl = CRL(num_samples=2)
    crl.update(torch.tensor([[2.0, 0.0]] * 2), torch.tensor([0, 0]), indices=torch.tensor([0, 1]))
    crl.set_epoch(1)
    assert crl.correctness(torch.tensor([0, 1])).tolist() == [0, 0]


def test_crl_joins_a_sum_that_passes_its_indices_on() -> None:
    logits, labels = golden()
    loss = CrossEntropyLoss() + CRL(num_samples=50)
    value = loss(logits, labels, indices=torch.arange(24))
    torch.testing.assert_close(value, CrossEntropyLoss()(logits, labels))
    with pytest.raises(ValueError, match=r"`indices` must be given as a keyword argument"):
        loss(logits, labels)


def test_crl_of_bad_input_raises() -> None:
    logits, labels = golden()
    with pytest.raises(
        ValueError, match=r"crl_penalty: `correctness` must be floating \[B\] = \[24\], got torch.float32 \[3\]"
    ):
        crl_penalty(logits, labels, torch.zeros(3))
    with pytest.raises(ValueError, match=r"`score` must be one of 'confidence', 'entropy', 'margin', got 'top'"):
        crl_penalty(logits, labels, torch.zeros(24), score="top")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"CRL: `num_samples` must be a whole number >= 1, got 0"):
        CRL(num_samples=0)
    with pytest.raises(ValueError, match=r"crl_penalty: `correctness` must lie in \[0, 1\], got 1.5"):
        crl_penalty(logits, labels, torch.full((24,), 1.5))


@pytest.mark.parametrize("use", ["call", "update"])
def test_crl_module_refuses_indices_that_name_no_sample(use: str) -> None:
    crl = CRL(num_samples=3)
    logits, labels = torch.zeros(2, 2), torch.tensor([0, 1])
    call = crl if use == "call" else crl.update
    for indices, got in (([0, 3], "3"), ([-1, 2], "-1")):
        with pytest.raises(ValueError, match=rf"CRL: `indices` must lie in \[0, num_samples\) = \[0, 3\), got {got}"):
            call(logits, labels, indices=torch.tensor(indices))
    with pytest.raises(ValueError, match=r"CRL: `indices` must be int64 or int32 \[B\] = \[2\], got torch.int64 \[3\]"):
        call(logits, labels, indices=torch.arange(3))
    with pytest.raises(ValueError, match=r"`indices` must be int64 or int32 \[B\] = \[2\], got torch.float32 \[2\]"):
        call(logits, labels, indices=torch.zeros(2))
    assert crl.times_right.tolist() == [0, 0, 0]
