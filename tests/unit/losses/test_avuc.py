from __future__ import annotations

import math

import pytest
import torch

from calibrant.losses import AvUC, SoftAvUC, avuc_penalty, avuc_threshold, soft_avuc_penalty
from helpers import golden, with_confidence


def entropy(c: float) -> float:
    return -c * math.log(c) - (1 - c) * math.log(1 - c)


def test_avuc_of_golden_input_has_the_golden_value() -> None:
    assert AvUC(beta=1)(*golden()).item() == pytest.approx(0.406628, abs=6e-7)
    assert AvUC()(*golden()).item() == pytest.approx(3 * 0.406628, abs=2e-6)


def test_avuc_counts_by_hand() -> None:
    # Entropies 0.056, 0.693, 0.056, 0.693: right certain, right uncertain, wrong certain, wrong uncertain.
    logits, labels = with_confidence([0.99, 0.51, 0.99, 0.51], [1, 1, 0, 0])
    sure, unsure = math.tanh(entropy(0.99)), math.tanh(entropy(0.51))
    counts = {"ac": 0.99 * (1 - sure), "au": 0.51 * unsure, "ic": 0.01 * (1 - sure), "iu": 0.49 * unsure}
    expected = math.log(sum(counts.values()) / (counts["ac"] + counts["iu"]))
    assert avuc_penalty(logits, labels, threshold=0.5, beta=1).item() == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_avuc_module_moved_to_another_precision_gives_the_same(dtype: torch.dtype) -> None:
    logits, labels = golden()
    assert AvUC(threshold=0.5).to(dtype)(logits, labels).item() == AvUC(threshold=0.5)(logits, labels).item()


def test_avuc_is_zero_where_the_right_are_certain_and_the_wrong_are_not() -> None:
    logits, labels = with_confidence([0.99, 0.98, 0.51], [1, 1, 0])
    assert avuc_penalty(logits, labels, threshold=0.5).item() == pytest.approx(0, abs=1e-9)


def test_avuc_threshold_is_half_way_between_the_two_mean_entropies() -> None:
    logits, labels = with_confidence([0.99, 0.9, 0.6], [1, 1, 0])
    expected = ((entropy(0.99) + entropy(0.9)) / 2 + entropy(0.6)) / 2
    assert avuc_threshold(logits, labels).item() == pytest.approx(expected)


@pytest.mark.parametrize("correct", [1, 0])
def test_avuc_threshold_of_one_group_is_its_mean_entropy(correct: int) -> None:
    logits, labels = with_confidence([0.9, 0.6], [correct] * 2)
    assert avuc_threshold(logits, labels).item() == pytest.approx((entropy(0.9) + entropy(0.6)) / 2)


def test_avuc_module_updates_the_threshold_it_uses_and_saves_it() -> None:
    logits, labels = golden()
    module = AvUC()
    module.update_threshold(logits.requires_grad_(), labels)
    expected = avuc_threshold(logits, labels)
    assert not module.current_threshold.requires_grad
    assert module.current_threshold.item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(
        module(logits, labels), avuc_penalty(logits, labels, threshold=module.current_threshold.double())
    )
    assert set(module.state_dict()) == {"current_threshold"}


def test_soft_avuc_of_golden_input_has_the_golden_value() -> None:
    assert SoftAvUC(temperature=0.1, threshold=0.5)(*golden()).item() == pytest.approx(0.843105, abs=6e-7)


def test_soft_avuc_by_hand() -> None:
    logits, labels = with_confidence([0.95, 0.7], [1, 0])
    doubts, unsure = [], []
    for c in (0.95, 0.7):
        mixed = (1 - 1e-5) * c + 0.5e-5
        h = entropy(mixed)
        e = h / math.log(2)
        doubts.append(math.tanh(h))
        unsure.append(1 / (1 + ((1 - e) * 0.3 / (e * 0.7)) ** (1 / 0.5)))
    bad = unsure[0] * doubts[0] + (1 - unsure[1]) * (1 - doubts[1])
    good = (1 - unsure[0]) * (1 - doubts[0]) + unsure[1] * doubts[1]
    value = soft_avuc_penalty(logits, labels, temperature=0.5, threshold=0.3)
    assert value.item() == pytest.approx(math.log1p(bad / good))


def test_soft_avuc_of_a_uniform_softmax_has_a_finite_gradient() -> None:
    # The released code takes the log of a division by zero here.
    logits = torch.zeros(3, 4, requires_grad=True)
    value = soft_avuc_penalty(logits, torch.tensor([0, 1, 2]))
    value.backward()
    assert torch.isfinite(value)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_avuc_of_bad_options_raises() -> None:
    logits, labels = golden()
    with pytest.raises(ValueError, match=r"avuc_penalty: `beta` must be a finite number > 0, got 0"):
        avuc_penalty(logits, labels, beta=0)
    with pytest.raises(ValueError, match=r"soft_avuc_penalty: `temperature` must be a finite number > 0, got 0"):
        soft_avuc_penalty(logits, labels, temperature=0)
    with pytest.raises(ValueError, match=r"soft_avuc_penalty: `threshold` must lie in \(0, 1\), got 1"):
        soft_avuc_penalty(logits, labels, threshold=1)
