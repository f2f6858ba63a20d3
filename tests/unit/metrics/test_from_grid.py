"""Metrics read from the sums of a stream against the functions that see every example."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from calibrant.core.grid import EXACT_BINS, FINE_CELLS, NUM_CELLS, fine_index, fold_to_grid, grid_index, grid_of
from calibrant.core.records import Predictions
from calibrant.core.summary import summarize
from calibrant.metrics.adaptive import adaptive_calibration_error, debiased_calibration_error
from calibrant.metrics.binned import expected_calibration_error, maximum_calibration_error, reliability_bins
from calibrant.metrics.classwise import classwise_calibration_error
from calibrant.metrics.from_grid import KEPT_EXAMPLES, Sums, read_metrics
from calibrant.metrics.kernel import maximum_mean_calibration_error, smooth_expected_calibration_error
from calibrant.metrics.ranking import area_under_risk_coverage
from calibrant.metrics.scores import brier_score, error_rate, negative_log_likelihood, signed_calibration_gap
from calibrant.metrics.smooth import smooth_calibration_error
from calibrant.metrics.streaming import CalibrationSuite
from calibrant.metrics.values import READERS
from helpers import mixed_gaps

F64 = torch.float64
BINNED: dict[str, Callable[..., Tensor]] = {
    "ece": expected_calibration_error,
    "mce": maximum_calibration_error,
    "classwise_ece": classwise_calibration_error,
}
MEANS: dict[str, Callable[..., Tensor]] = {
    "error": error_rate,
    "nll": negative_log_likelihood,
    "brier": brier_score,
    "signed_gap": signed_calibration_gap,
}
ORDERED: dict[str, Callable[..., Tensor]] = {
    "ace": adaptive_calibration_error,
    "ece_debiased": debiased_calibration_error,
    "sece": smooth_expected_calibration_error,
    "smece": smooth_calibration_error,
    "mmce": maximum_mean_calibration_error,
    "aurc": area_under_risk_coverage,
}
EXACT = MEANS | BINNED
ALL = EXACT | ORDERED

Data = tuple[Tensor, Tensor]


def with_accuracy(confidence: Tensor, accuracy: Tensor, generator: torch.Generator) -> Data:
    """Three classes, the first predicted with ``confidence`` and right with ``accuracy``."""
    rest = (1 - confidence) / 2
    right = torch.rand(len(confidence), generator=generator, dtype=F64) < accuracy
    return torch.stack([confidence, rest, rest], 1), torch.where(right, 0, 1)


def calibrated(n: int, g: torch.Generator) -> Data:
    probs = (2 * torch.randn(n, 10, generator=g, dtype=F64)).softmax(1)
    return probs, torch.multinomial(probs, 1, generator=g).squeeze(1)


def mixed(n: int, g: torch.Generator) -> Data:
    return mixed_gaps(n, seed=g.initial_seed())


def saturated(n: int, g: torch.Generator) -> Data:
    near_one = 1 - 1e-5 * (0.5 + torch.rand(n, generator=g, dtype=F64))
    spread = 0.4 + 0.6 * torch.rand(n, generator=g, dtype=F64)
    confidence = torch.where(torch.rand(n, generator=g) < 0.5, near_one, spread)
    return with_accuracy(confidence, confidence - 0.03 * torch.sin(9 * confidence), g)


def saturated_and_tied(n: int, g: torch.Generator) -> Data:
    spread = 0.4 + 0.6 * torch.rand(n, generator=g, dtype=F64)
    confidence = torch.where(torch.rand(n, generator=g) < 0.5, 1 - 1e-5, spread)
    return with_accuracy(confidence, 0.97 * confidence, g)


def tied(n: int, g: torch.Generator) -> Data:
    confidence = (20 + 30 * torch.rand(n, generator=g, dtype=F64)).round() / 50
    return with_accuracy(confidence, confidence**1.2, g)


def narrow(n: int, g: torch.Generator) -> Data:
    confidence = 0.9 + 0.02 * torch.rand(n, generator=g, dtype=F64)
    return with_accuracy(confidence, torch.full_like(confidence, 0.91), g)


def float32_at_one(n: int, g: torch.Generator) -> Data:
    logits = torch.randn(n, 10, generator=g)
    logits[:, 0] += 14 + 4 * torch.randn(n, generator=g)
    return logits.softmax(1), torch.multinomial((0.4 * logits).softmax(1), 1, generator=g).squeeze(1)


KINDS = [calibrated, mixed, saturated, saturated_and_tied, tied, narrow, float32_at_one]


def streamed(probs: Tensor, labels: Tensor, *, n_bins: int = 15, weights: Tensor | None = None) -> CalibrationSuite:
    suite = CalibrationSuite(num_classes=probs.shape[1], n_bins=n_bins)
    for at in torch.arange(len(labels)).split(max(len(labels) // 5, 1)):
        suite.update(probs[at], labels[at], weights=None if weights is None else weights[at])
    return suite


def test_readers_are_all_compared_with_their_function() -> None:
    assert set(READERS) == set(ALL)


@pytest.mark.parametrize("kind", KINDS)
def test_stream_of_few_examples_is_exact(kind: Callable[..., Data]) -> None:
    probs, labels = kind(700, torch.Generator().manual_seed(1))
    values = streamed(probs, labels).compute()
    for key, function in ALL.items():
        # A root near zero (mmce, debiased) turns rounding of 1e-16 into 1e-8.
        assert float(values[key]) == pytest.approx(float(function(probs, labels)), abs=1e-8), key


@pytest.mark.parametrize("kind", KINDS)
def test_stream_beyond_the_kept_examples_is_within_the_promise(kind: Callable[..., Data]) -> None:
    probs, labels = kind(KEPT_EXAMPLES + 500, torch.Generator().manual_seed(2))
    suite = streamed(probs, labels)
    values = suite.compute()
    assert suite.sums().kept is None
    for key, function in EXACT.items():
        assert float(values[key]) == pytest.approx(float(function(probs, labels)), abs=1e-12), key
    for key, function in ORDERED.items():
        # Promised is 1e-3, and on other seeds 2e-4 was the most; the 3,020 cells of a grid would miss this.
        assert float(values[key]) == pytest.approx(float(function(probs, labels)), abs=1e-4), key


def test_stream_keeps_exactly_as_many_examples_as_there_is_room_for() -> None:
    probs, labels = mixed(KEPT_EXAMPLES, torch.Generator().manual_seed(4))
    suite = streamed(probs, labels)
    kept = suite.sums().kept
    assert kept is not None
    assert torch.equal(kept.confidence, probs.amax(1))
    assert float(suite.compute()["ace"]) == pytest.approx(float(adaptive_calibration_error(probs, labels)), abs=1e-12)


def test_stream_of_weights_that_are_one_on_average_keeps_them() -> None:
    probs, labels = mixed(400, torch.Generator().manual_seed(5))
    weights = torch.tensor([0.5, 1.5] * 200, dtype=F64)
    suite = CalibrationSuite(num_classes=probs.shape[1])
    suite.update(probs, labels, weights=weights)
    for key in ("ace", "sece", "aurc"):
        assert float(suite.compute()[key]) == pytest.approx(float(ALL[key](probs, labels, weights=weights)), abs=1e-12), key
    assert suite.sums().class_rows is not None


@pytest.mark.parametrize("depth", [650.0, 720.0, 740.0, 900.0])
def test_stream_of_logits_has_the_likelihood_of_what_is_hardly_possible(depth: float) -> None:
    suite = CalibrationSuite(num_classes=2)
    suite.update(logits=torch.tensor([[0.0, -depth]], dtype=F64), labels=torch.tensor([1]))
    # Below 1e-308 probabilities have fewer digits, and below 1e-323 none.
    assert float(suite.compute()["nll"]) == pytest.approx(depth, rel=1e-13)


def test_cells_alone_are_within_the_promise_where_nothing_hangs_on_the_order() -> None:
    probs, labels = mixed(3000, torch.Generator().manual_seed(3))
    sums = streamed(probs, labels).sums()
    from_cells = Sums(**{**{f: getattr(sums, f) for f in sums.__dataclass_fields__}, "kept": None})
    for key in ("sece", "smece", "mmce", "aurc"):
        assert float(READERS[key](from_cells)) == pytest.approx(float(ALL[key](probs, labels)), abs=1e-4), key


@pytest.mark.parametrize("n_bins", EXACT_BINS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_equal_width_metrics_are_exact_for_every_promised_number_of_bins(n_bins: int, dtype: torch.dtype) -> None:
    probs, labels = mixed_gaps(2000, 4, seed=n_bins)
    # Confidences on and beside the edges of every binning, zero and one among them.
    edges = torch.arange(0, 3001, dtype=F64) / 3000
    two = torch.stack([edges, 1 - edges, torch.zeros_like(edges), torch.zeros_like(edges)], 1)
    probs = torch.cat([probs, two]).to(dtype)
    labels = torch.cat([labels, torch.arange(3001) % 3])
    values = streamed(probs, labels, n_bins=n_bins).compute()
    for key, function in BINNED.items():
        assert float(values[key]) == pytest.approx(float(function(probs, labels, n_bins=n_bins)), abs=1e-12), key


def test_weights_count_as_in_the_functions() -> None:
    probs, labels = mixed_gaps(1500, 4)
    weights = torch.rand(1500, generator=torch.Generator().manual_seed(0), dtype=F64) * 3
    weights[::50] = 0
    suite = streamed(probs, labels, weights=weights)
    for key, value in suite.compute().items():
        assert float(value) == pytest.approx(float(ALL[key](probs, labels, weights=weights)), abs=1e-8), key
    assert suite.sums().size == 1470
    many = [torch.cat([part] * 50) for part in (probs, labels, weights)]
    suite = streamed(many[0], many[1], weights=many[2])
    curve = suite.sums().curve
    assert curve.size == 50 * 1470
    assert float(curve.squares[-1]) == pytest.approx(float(many[2].square().sum()))
    for key, value in suite.compute().items():
        expected = float(ALL[key](many[0], many[1], weights=many[2]))
        assert float(value) == pytest.approx(expected, abs=1e-3), key


def test_bins_of_another_number_are_those_of_the_function() -> None:
    probs, labels = mixed_gaps(1000, 4)
    sums = streamed(probs, labels).sums()
    found, expected = sums.bins_of(100), reliability_bins(probs, labels, n_bins=100)
    assert torch.equal(found.count, expected.count)
    assert torch.allclose(found.confidence, expected.confidence, atol=1e-14)
    assert torch.equal(found.accuracy, expected.accuracy)
    with pytest.raises(ValueError, match="`n_bins` must divide 3000, got 7"):
        sums.bins_of(7)


def test_summary_is_that_of_the_predictions() -> None:
    probs, labels = mixed_gaps(1000, 4)
    weights = torch.rand(1000, generator=torch.Generator().manual_seed(0), dtype=F64)
    found = streamed(probs, labels, weights=weights).summary()
    expected = summarize(Predictions(probs=probs, labels=labels, weights=weights))
    assert (found.n, found.num_classes, found.n_bins) == (1000, 4, 15)
    assert found.weight == pytest.approx(expected.weight)
    assert found.weight_squares == pytest.approx(expected.weight_squares)
    for name in ("nll", "brier", "class_correct"):
        assert torch.allclose(getattr(found, name), getattr(expected, name), atol=1e-9)
    for name in ("grid", "class_bins"):
        for field in ("weight", "confidence", "correct"):
            a, b = getattr(getattr(found, name), field), getattr(getattr(expected, name), field)
            assert torch.allclose(a, b, atol=1e-9), (name, field)
    assert (found + expected).n == 2000


def test_suite_without_classes_leaves_their_metric_out() -> None:
    probs, labels = mixed_gaps(100, 4)
    suite = CalibrationSuite(num_classes=4, classwise=False)
    suite.update(probs, labels)
    assert set(suite.compute()) == set(READERS) - {"classwise_ece"} == set(read_metrics(suite.sums()))
    with pytest.raises(ValueError, match=r"the classwise sums must have been kept, got none\. Construct with `classwise=True`"):
        suite.summary()
    with pytest.raises(ValueError, match="classwise_ece: the classwise sums must have been kept"):
        READERS["classwise_ece"](suite.sums())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_fine_cells_rise_with_confidence_and_fold_into_the_grid(dtype: torch.dtype) -> None:
    g = torch.Generator().manual_seed(0)
    parts = [
        torch.rand(20_000, generator=g, dtype=F64),
        1 - 1e-2 * torch.rand(20_000, generator=g, dtype=F64) ** 6,
        torch.arange(3001, dtype=F64) / 3000,
    ]
    confidence = torch.cat(parts).to(dtype).double().sort().values
    index = fine_index(confidence, dtype=dtype)
    assert bool((index.diff() >= 0).all())
    assert (int(index[0]), int(index[-1])) == (0, FINE_CELLS - 1)
    fine = torch.bincount(index, minlength=FINE_CELLS)
    assert torch.equal(fold_to_grid(fine), torch.bincount(grid_index(confidence, dtype=dtype), minlength=NUM_CELLS))
    correct = torch.ones_like(confidence)
    assert float(grid_of(confidence, correct, dtype=dtype).correct.sum()) == len(confidence)
