"""Probabilities that were rounded before they were saved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from calibrant.core.records import Column
from calibrant.io import iter_prediction_batches, load_predictions
from calibrant.io.predictions import without_rounding


def made(n: int = 400, num_classes: int = 10, spread: float = 1.5) -> Column:
    scores = np.random.default_rng(0).normal(size=(n, num_classes)) * spread
    probs = np.exp(scores)
    return np.asarray(probs / probs.sum(axis=1, keepdims=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("decimals", [2, 3, 4])
def test_rounded_probabilities_sum_to_one_again_and_stay_close(decimals: int, dtype: type) -> None:
    exact = made()
    rounded = exact.round(decimals).astype(dtype)
    found = without_rounding(rounded)
    assert found.dtype == dtype
    assert np.abs(found.sum(axis=1) - 1).max() < 2e-6 or dtype == np.float32 and np.abs(rounded.sum(axis=1) - 1).max() <= 1e-3
    # One part by rounding an entry, one by the sum.
    assert np.abs(found - exact).max() < 0.5 * 10.0**-decimals * (1 + 10)
    assert np.array_equal(found.argmax(axis=1), rounded.argmax(axis=1))


@pytest.mark.parametrize(
    "probs",
    [
        made(),
        # Off by more than ten entries of three decimals can be.
        made().round(3) * np.array([[1.0]] * 399 + [[0.99]]),
        np.array([[0.994, 0.0], [0.5, 0.5]]),
        # Each of two entries of three decimals is off by half of the last one at most.
        np.array([[0.499, 0.499], [0.5, 0.5]]),
        # Not rounded: only unnormalised.
        made() * 0.99,
        # A hundred entries of two decimals: what is lost cannot be known.
        made(num_classes=100).round(2),
        np.array([[0.333, 0.333, np.nan]]),
        np.array([[-0.001, 0.5, 0.5]]),
        np.array([0.333, 0.333, 0.333]),
        np.zeros((0, 3)),
        np.array([[1, 0], [0, 2]]),
    ],
)
def test_probabilities_that_rounding_does_not_explain_stay_as_they_are(probs: Column) -> None:
    assert without_rounding(probs) is probs


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_saved_as_float32_sums_to_one_again(dtype: torch.dtype) -> None:
    narrow = torch.from_numpy(made(num_classes=40)).to(dtype).float().numpy()
    off = np.abs(narrow.sum(axis=1) - 1).max()
    found = without_rounding(narrow)
    assert off > 1e-3 or dtype == torch.float16
    assert np.abs(found.sum(axis=1) - 1).max() < 1e-6 or off <= 1e-3


@pytest.mark.parametrize("ending", ["csv", "npz", "pt"])
def test_files_of_rounded_probabilities_are_read(tmp_path: Path, ending: str) -> None:
    probs, labels, path = made().round(3), np.arange(400) % 10, tmp_path / f"x.{ending}"
    assert np.abs(probs.sum(axis=1) - 1).max() > 1.5e-3
    if ending == "csv":
        header = ",".join([*(f"p{k}" for k in range(10)), "label"])
        np.savetxt(path, np.column_stack([probs, labels]), fmt="%g", delimiter=",", header=header, comments="")
    elif ending == "npz":
        np.savez(path, probs=probs, labels=labels)
    else:
        torch.save({"probs": torch.from_numpy(probs.astype(np.float32)), "labels": torch.from_numpy(labels)}, path)
    pieces = list(iter_prediction_batches(path, batch_rows=150))
    for found in (load_predictions(path), *pieces):
        assert float((found.probs.double().sum(1) - 1).abs().max()) < 1e-6
    assert sum(map(len, pieces)) == 400
