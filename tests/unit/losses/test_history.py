"""Training that remembers samples: CRL and the pruner."""

from __future__ import annotations

import math

import pytest
import torch

from calibrant.losses import CRL, ConfidencePruner, crl_penalty
from helpers import golden, with_confidence


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


def test_crl_leaves_out_the_indices_of_ignored_labels() -> None:
    logits, labels = golden()
    padded = labels.where(labels > 0, -100)
    kept, indices = padded >= 0, torch.arange(24) + 2
    whole, part = CRL(num_samples=26, ignore_index=-100), CRL(num_samples=26)
    whole.update(logits, padded, indices=indices)
    part.update(logits[kept], labels[kept], indices=indices[kept])
    assert torch.equal(whole.times_right, part.times_right)
    whole.set_epoch(1)
    part.set_epoch(1)
    assert torch.equal(whole(logits, padded, indices=indices), part(logits[kept], labels[kept], indices=indices[kept]))


@pytest.mark.parametrize("indices", [[0, 3], [0, 1, 2], [0.0, 1.0]])
def test_crl_refuses_indices_that_name_no_sample(indices: list[float]) -> None:
    crl = CRL(num_samples=3)
    for call in (crl, crl.update):
        with pytest.raises((ValueError, IndexError, RuntimeError)):
            call(torch.zeros(2, 2), torch.tensor([0, 1]), indices=torch.tensor(indices))


def test_crl_refuses_a_history_that_is_none() -> None:
    for wrong in (torch.zeros(3), torch.zeros(24, dtype=torch.int64)):
        with pytest.raises(ValueError, match="`correctness` must"):
            crl_penalty(*golden(), wrong)
    with pytest.raises(ValueError, match="`score` must"):
        crl_penalty(*golden(), torch.zeros(24), score="top")  # type: ignore[arg-type]
