"""The binned metrics against installed libraries: ours where definitions agree, our named conventions on hard data."""

from __future__ import annotations

import math
import warnings
from functools import partial

import numpy as np
import pytest
import torch

from calibrant.metrics.binned import (
    adaptive_calibration_error,
    average_calibration_error,
    binary_expected_calibration_error,
    binary_maximum_calibration_error,
    classwise_calibration_error,
    debiased_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
)
from helpers import hard_gaps, mixed_gaps

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import calibration
    import netcal.metrics as netcal
    import relplot.metrics as relplot
    import torchmetrics.functional.classification as torchmetrics

# Everything is float64 on both sides except torchmetrics, which rounds to float32 first.
EXACT, ROUNDED = 1e-12, 1e-6
BIN_NUMBERS = [5, 10, 15, 20, 49]


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


def by_netcal(probs: torch.Tensor, labels: torch.Tensor, n_bins: int) -> dict[object, float]:
    arrays = probs.numpy(), labels.numpy()
    return {
        expected_calibration_error: netcal.ECE(n_bins).measure(*arrays),
        maximum_calibration_error: netcal.MCE(n_bins).measure(*arrays),
        average_calibration_error: netcal.ACE(n_bins).measure(*arrays),
    }


def by_torchmetrics(probs: torch.Tensor, labels: torch.Tensor, n_bins: int) -> dict[object, float]:
    call = partial(torchmetrics.multiclass_calibration_error, probs, labels, num_classes=probs.shape[1], n_bins=n_bins)
    return {
        expected_calibration_error: float(call(norm="l1")),
        partial(expected_calibration_error, p=2): float(call(norm="l2")),
        partial(expected_calibration_error, p=math.inf): float(call(norm="max")),
        maximum_calibration_error: float(call(norm="max")),
    }


def by_uncertainty_calibration(probs: torch.Tensor, labels: torch.Tensor, n_bins: int) -> dict[object, float]:
    arrays = probs.numpy(), labels.numpy()
    found = {
        expected_calibration_error: calibration.get_ece(*arrays, num_bins=n_bins),
        adaptive_calibration_error: calibration.get_ece_em(*arrays, num_bins=n_bins),
    }
    if len(probs) < 1000:
        found[classwise_calibration_error] = calibration.get_ece(*arrays, num_bins=n_bins, mode="marginal")
    return found


def by_relplot(probs: torch.Tensor, labels: torch.Tensor, n_bins: int) -> dict[object, float]:
    return {expected_calibration_error: relplot.binnedECE(*top_of(probs, labels), nbins=n_bins)}


CONVENTIONS = {
    "netcal": by_netcal,
    "torchmetrics": by_torchmetrics,
    "uncertainty_calibration": by_uncertainty_calibration,
    "relplot": by_relplot,
}
DTYPES = [(name, dtype) for name in CONVENTIONS for dtype in (torch.float64, torch.float32)]


@pytest.mark.parametrize(("convention", "dtype"), [*DTYPES, *(("torchmetrics", t) for t in (torch.float16, torch.bfloat16))])
@pytest.mark.parametrize(("n", "num_classes"), [(2000, 10), (401, 3), (37, 5)])
def test_convention_hard_data_prints_the_numbers_of_its_library(
    n: int, num_classes: int, convention: str, dtype: torch.dtype
) -> None:
    probs, labels = hard_gaps(n, num_classes, dtype=dtype)
    # Means are taken in the precision of the input, by torchmetrics always in float32.
    tolerance = EXACT if dtype == torch.float64 and convention != "torchmetrics" else ROUNDED
    for n_bins in BIN_NUMBERS:
        for ours, peer in CONVENTIONS[convention](probs, labels, n_bins).items():
            assert float(ours(probs, labels, n_bins=n_bins, convention=convention)) == pytest.approx(peer, abs=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_netcal_convention_equal_mass_prints_its_number(dtype: torch.dtype) -> None:
    for n_bins in BIN_NUMBERS:
        peer = netcal.ECE(n_bins, equal_intervals=False)
        probs, labels = mixed_gaps(dtype=dtype)
        shown = float(adaptive_calibration_error(probs, labels, n_bins=n_bins, convention="netcal"))
        tolerance = EXACT if dtype == torch.float64 else ROUNDED
        assert shown == pytest.approx(peer.measure(probs.numpy(), labels.numpy()), abs=tolerance)
