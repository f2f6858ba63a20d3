"""The binned metrics against installed libraries: ours where definitions agree, our named conventions on hard data."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch

from calibrant.metrics.binned import (
    adaptive_calibration_error,
    average_calibration_error,
    binary_expected_calibration_error,
    binary_maximum_calibration_error,
    debiased_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
)
from calibrant.metrics.classwise import classwise_calibration_error
from helpers import hard_gaps, mixed_gaps

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import calibration
    import netcal.metrics as netcal
    import relplot.metrics as relplot
    import torchmetrics.functional.classification as torchmetrics
    from sklearn.calibration import calibration_curve

# Everything is float64 on both sides except torchmetrics, which rounds to float32 first.
EXACT, ROUNDED = 1e-12, 1e-6
BIN_NUMBERS = [5, 10, 15, 20, 49]
SIZES = [(2000, 10), (401, 3), (37, 5)]


def top_of(probs: torch.Tensor, labels: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    return probs.amax(1).numpy(), (probs.argmax(1) == labels).double().numpy()


@pytest.mark.parametrize("n_bins", [10, 15, 100])
@pytest.mark.parametrize("seed", [0, 1])
def test_ece_continuous_data_agrees_with_four_libraries(n_bins: int, seed: int) -> None:
    probs, labels = mixed_gaps(seed=seed)
    ours = float(expected_calibration_error(probs, labels, n_bins=n_bins))
    confidence, correct = top_of(probs, labels)
    assert ours == pytest.approx(netcal.ECE(n_bins).measure(probs.numpy(), labels.numpy()), abs=EXACT)
    assert ours == pytest.approx(calibration.get_ece(probs.numpy(), labels.numpy(), num_bins=n_bins), abs=EXACT)
    assert ours == pytest.approx(relplot.binnedECE(confidence, correct, nbins=n_bins), abs=EXACT)
    peer = torchmetrics.multiclass_calibration_error(probs, labels, num_classes=10, n_bins=n_bins)
    assert ours == pytest.approx(float(peer), abs=ROUNDED)


def test_ece_continuous_data_agrees_with_the_curve_of_scikit_learn() -> None:
    probs, labels = mixed_gaps()
    confidence, correct = top_of(probs, labels)
    accuracy, mean = calibration_curve(correct, confidence, n_bins=15)
    count = np.histogram(confidence, np.linspace(0, 1, 16))[0]
    expected = (count[count > 0] / 2000 * np.abs(accuracy - mean)).sum()
    assert float(expected_calibration_error(probs, labels)) == pytest.approx(expected, abs=EXACT)
    assert float(maximum_calibration_error(probs, labels)) == pytest.approx(np.abs(accuracy - mean).max(), abs=EXACT)


@pytest.mark.parametrize("p", [1, 2, 3])
def test_equal_mass_continuous_data_agrees_with_uncertainty_calibration(p: int) -> None:
    probs, labels = mixed_gaps()
    for n_bins in (5, 15, 64):
        ours = float(adaptive_calibration_error(probs, labels, n_bins=n_bins, p=p))
        peer = calibration.lower_bound_scaling_top_ce(probs.numpy(), labels.numpy(), p=p, debias=False, num_bins=n_bins)
        assert ours == pytest.approx(peer, abs=EXACT)


@pytest.mark.parametrize("n", [12, 100, 2000])
def test_debiased_continuous_data_agrees_with_uncertainty_calibration(n: int) -> None:
    probs, labels = mixed_gaps(n)
    for n_bins in (1, 5, 15):
        ours = float(debiased_calibration_error(probs, labels, n_bins=n_bins))
        peer = calibration.lower_bound_scaling_top_ce(probs.numpy(), labels.numpy(), p=2, debias=True, num_bins=n_bins)
        assert ours == pytest.approx(peer, abs=EXACT)


@pytest.mark.parametrize("p", [1, 2])
def test_classwise_continuous_data_agrees_with_uncertainty_calibration(p: int) -> None:
    probs, labels = mixed_gaps(500)
    peer = calibration.lower_bound_scaling_ce(
        probs.numpy(), labels.numpy(), p=p, debias=False, num_bins=15, binning_scheme=calibration.get_equal_prob_bins
    )
    assert float(classwise_calibration_error(probs, labels, p=p)) == pytest.approx(peer, abs=EXACT)


def test_mce_and_average_continuous_data_agree_with_netcal() -> None:
    probs, labels = mixed_gaps()
    assert float(maximum_calibration_error(probs, labels)) == pytest.approx(
        netcal.MCE(15).measure(probs.numpy(), labels.numpy()), abs=EXACT
    )
    assert float(average_calibration_error(probs, labels)) == pytest.approx(
        netcal.ACE(15).measure(probs.numpy(), labels.numpy()), abs=EXACT
    )


def test_binary_continuous_data_agrees_with_three_libraries() -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(1000, generator=generator, dtype=torch.float64)
    labels = (torch.rand(1000, generator=generator, dtype=torch.float64) < probs**1.5).long()
    ours = float(binary_expected_calibration_error(probs, labels))
    assert ours == pytest.approx(netcal.ECE(15).measure(probs.numpy(), labels.numpy()), abs=EXACT)
    assert ours == pytest.approx(calibration.get_ece(probs.numpy(), labels.numpy(), num_bins=15), abs=EXACT)
    assert ours == pytest.approx(float(torchmetrics.binary_calibration_error(probs, labels, n_bins=15)), abs=EXACT)
    largest = float(binary_maximum_calibration_error(probs, labels))
    assert largest == pytest.approx(
        float(torchmetrics.binary_calibration_error(probs, labels, n_bins=15, norm="max")), abs=EXACT
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("n_bins", BIN_NUMBERS)
@pytest.mark.parametrize(("n", "num_classes"), SIZES)
def test_netcal_convention_hard_data_prints_its_numbers(n: int, num_classes: int, n_bins: int, dtype: torch.dtype) -> None:
    probs, labels = hard_gaps(n, num_classes, dtype=dtype)
    arrays = probs.numpy(), labels.numpy()
    tolerance = EXACT if dtype == torch.float64 else ROUNDED
    for ours, peer in (
        (expected_calibration_error, netcal.ECE),
        (maximum_calibration_error, netcal.MCE),
        (average_calibration_error, netcal.ACE),
    ):
        shown = float(ours(probs, labels, n_bins=n_bins, convention="netcal"))
        assert shown == pytest.approx(peer(n_bins).measure(*arrays), abs=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("n_bins", BIN_NUMBERS)
def test_netcal_convention_equal_mass_prints_its_number_or_fails_with_it(n_bins: int, dtype: torch.dtype) -> None:
    peer = netcal.ECE(n_bins, equal_intervals=False)
    probs, labels = mixed_gaps(dtype=dtype)
    shown = float(adaptive_calibration_error(probs, labels, n_bins=n_bins, convention="netcal"))
    assert shown == pytest.approx(peer.measure(probs.numpy(), labels.numpy()), abs=EXACT if dtype == torch.float64 else ROUNDED)
    tied, labels = hard_gaps(2000, 10, dtype=dtype)
    if n_bins >= 10:
        with pytest.raises(ValueError, match="edge difference is numerically 0"):
            peer.measure(tied.numpy(), labels.numpy())
        with pytest.raises(ValueError, match="netcal has no number"):
            adaptive_calibration_error(tied, labels, n_bins=n_bins, convention="netcal")


def test_netcal_convention_two_columns_are_binary_there() -> None:
    probs, labels = mixed_gaps(300, 2)
    shown = float(expected_calibration_error(probs, labels, convention="netcal"))
    assert shown == pytest.approx(netcal.ECE(15).measure(probs.numpy(), labels.numpy()), abs=EXACT)
    assert shown != pytest.approx(float(expected_calibration_error(probs, labels)), rel=0.01)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("n_bins", BIN_NUMBERS)
@pytest.mark.parametrize(("n", "num_classes"), SIZES)
def test_torchmetrics_convention_hard_data_prints_its_numbers(
    n: int, num_classes: int, n_bins: int, dtype: torch.dtype
) -> None:
    probs, labels = hard_gaps(n, num_classes, dtype=dtype)
    for p, norm in ((1, "l1"), (2, "l2"), (math.inf, "max")):
        peer = float(
            torchmetrics.multiclass_calibration_error(probs, labels, num_classes=num_classes, n_bins=n_bins, norm=norm)
        )
        shown = float(expected_calibration_error(probs, labels, n_bins=n_bins, p=p, convention="torchmetrics"))
        # The same sums in float32; only the last steps are float64 here.
        assert shown == pytest.approx(peer, abs=3e-7)
    assert float(maximum_calibration_error(probs, labels, n_bins=n_bins, convention="torchmetrics")) == pytest.approx(
        peer, abs=3e-7
    )


def test_torchmetrics_convention_saturated_data_differs_from_ours() -> None:
    probs, labels = hard_gaps(2000, 10, dtype=torch.float32)
    shown = float(expected_calibration_error(probs, labels, convention="torchmetrics"))
    assert abs(shown - float(expected_calibration_error(probs, labels))) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("n_bins", BIN_NUMBERS)
@pytest.mark.parametrize(("n", "num_classes"), SIZES)
def test_uncertainty_calibration_convention_hard_data_prints_its_numbers(
    n: int, num_classes: int, n_bins: int, dtype: torch.dtype
) -> None:
    probs, labels = hard_gaps(n, num_classes, dtype=dtype)
    arrays, name = (probs.numpy(), labels.numpy()), "uncertainty_calibration"
    # Its means are taken in the precision of the input.
    tolerance = EXACT if dtype == torch.float64 else ROUNDED
    shown = float(expected_calibration_error(probs, labels, n_bins=n_bins, convention=name))
    assert shown == pytest.approx(calibration.get_ece(*arrays, num_bins=n_bins), abs=tolerance)
    shown = float(adaptive_calibration_error(probs, labels, n_bins=n_bins, convention=name))
    assert shown == pytest.approx(calibration.get_ece_em(*arrays, num_bins=n_bins), abs=tolerance)
    if n < 1000:
        shown = float(classwise_calibration_error(probs, labels, n_bins=n_bins, convention=name))
        assert shown == pytest.approx(calibration.get_ece(*arrays, num_bins=n_bins, mode="marginal"), abs=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("n_bins", BIN_NUMBERS)
@pytest.mark.parametrize(("n", "num_classes"), SIZES)
def test_relplot_convention_hard_data_prints_its_number(n: int, num_classes: int, n_bins: int, dtype: torch.dtype) -> None:
    probs, labels = hard_gaps(n, num_classes, dtype=dtype)
    confidence, correct = top_of(probs, labels)
    shown = float(expected_calibration_error(probs, labels, n_bins=n_bins, convention="relplot"))
    assert shown == pytest.approx(relplot.binnedECE(confidence, correct, nbins=n_bins), abs=EXACT)
