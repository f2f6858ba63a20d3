from __future__ import annotations

import math

import pytest
import torch

from calibrant.losses import SBECE, LabelBinnedSBECE, label_binned_sb_ece_penalty, sb_ece_penalty
from calibrant.metrics.binned import expected_calibration_error
from helpers import golden, mixed_gaps, with_confidence


@pytest.mark.parametrize(
    ("temperature", "p", "value"), [(0.01, 2, 0.280120), (0.01, 1, 0.252784), (0.001, 2, 0.330962), (0.001, 1, 0.287732)]
)
def test_sb_ece_of_golden_input_has_the_golden_values(temperature: float, p: int, value: float) -> None:
    penalty = SBECE(bin_temperature=temperature, p=p)  # type: ignore[arg-type]
    assert penalty(*golden()).item() == pytest.approx(value, abs=6e-7)


def test_sb_ece_of_two_bins_by_hand() -> None:
    logits, labels = with_confidence([0.6, 0.9], [0, 1])
    # Centres 1/4 and 3/4: odds of the upper bin exp((0.35² - 0.15²)/T) and exp((0.65² - 0.15²)/T).
    upper = [1 / (1 + math.exp(-(0.35**2 - 0.15**2) / 0.1)), 1 / (1 + math.exp(-(0.65**2 - 0.15**2) / 0.1))]
    bins = [[1 - u for u in upper], upper]
    gaps = [abs(b[0] * -0.6 + b[1] * 0.1) / sum(b) for b in bins]
    one = sum(sum(b) / 2 * gap for b, gap in zip(bins, gaps, strict=True))
    two = math.sqrt(sum(sum(b) / 2 * gap**2 for b, gap in zip(bins, gaps, strict=True)))
    assert sb_ece_penalty(logits, labels, n_bins=2, bin_temperature=0.1, p=1).item() == pytest.approx(one)
    assert sb_ece_penalty(logits, labels, n_bins=2, bin_temperature=0.1, p=2).item() == pytest.approx(two)


def test_sb_ece_with_cold_bins_is_ece() -> None:
    probs, labels = mixed_gaps(500)
    cold = sb_ece_penalty(probs.log(), labels, bin_temperature=1e-6, p=1).item()
    assert cold == pytest.approx(expected_calibration_error(probs, labels).item(), abs=1e-3)


def test_sb_ece_at_zero_has_a_finite_gradient() -> None:
    # The released code's bare root gives NaN here.
    logits = torch.tensor([[0.0, 0.0], [0.0, 0.0]], requires_grad=True)
    value = sb_ece_penalty(logits, torch.tensor([0, 1]), n_bins=1)
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-5)
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()


def test_label_binned_sb_ece_of_one_bin_is_the_mean_squared_gap_to_the_accuracy() -> None:
    logits, labels = with_confidence([0.9, 0.7], [1, 0])
    assert LabelBinnedSBECE(n_bins=1)(logits, labels).item() == pytest.approx((0.4**2 + 0.2**2) / 2)


def test_label_binned_sb_ece_bins_begin_at_one_over_the_number_of_classes() -> None:
    # Two bins of [1/2, 1]: 0.75 lies on the border, so both samples share both bins evenly at any temperature.
    logits, labels = with_confidence([0.75, 0.75], [1, 0])
    for temperature in (1e-4, 1.0):
        value = label_binned_sb_ece_penalty(logits, labels, n_bins=2, bin_temperature=temperature)
        assert value.item() == pytest.approx(0.25**2)
    logits, labels = with_confidence([0.99, 0.51], [1, 0])
    cold = label_binned_sb_ece_penalty(logits, labels, n_bins=2, bin_temperature=1e-4)
    assert cold.item() == pytest.approx((0.01**2 + 0.51**2) / 2, rel=1e-3)


def test_sb_ece_of_bad_options_raises() -> None:
    logits, labels = golden()
    with pytest.raises(ValueError, match=r"sb_ece_penalty: `n_bins` must be a whole number >= 1, got 1.5"):
        sb_ece_penalty(logits, labels, n_bins=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"label_binned_sb_ece_penalty: `bin_temperature` must be a finite number > 0, got 0"):
        label_binned_sb_ece_penalty(logits, labels, bin_temperature=0)
    with pytest.raises(ValueError, match=r"sb_ece_penalty: `p` must be 1 or 2, got 3"):
        sb_ece_penalty(logits, labels, p=3)  # type: ignore[arg-type]
