"""Every entry of METRICS keeps the contract of its kind."""

import numpy as np
import pytest
import torch

from calibrant.metrics import METRICS
from helpers import mixed_gaps

UNBOUNDED = {"nll"}
RANGES = {"brier": (0, 2), "signed_gap": (-1, 1), "binary_gap": (-1, 1), "skce": (-1, 1)}
# What a perfect classifier that says 1.0 scores, where that is not 0: it leaves no wrong ones to tell from right ones.
NOT_ZERO_IF_PERFECT = {"auroc": float("nan")}
# Sums over pairs of different samples: a single one has no value.
OF_PAIRS = {"kde_ece", "skce"}


def examples(name, n):
    return mixed_gaps(n, 2 if METRICS[name].positive else 10)


def one_hot(labels, num_classes):
    return torch.nn.functional.one_hot(labels, num_classes).double()


@pytest.mark.parametrize("name", METRICS)
def test_metric_returns_a_float64_scalar_on_the_cpu_in_range(name):
    probs, labels = examples(name, 300)
    value = METRICS[name](probs, labels)
    assert value.shape == ()
    assert value.dtype == torch.float64
    assert value.device.type == "cpu"
    low, high = RANGES.get(name, (0, 1))
    assert low <= float(value)
    assert name in UNBOUNDED or float(value) <= high


@pytest.mark.parametrize("name", METRICS)
def test_metric_order_of_samples_does_not_matter_even_with_ties(name):
    probs, labels = examples(name, 300)
    probs = (probs * 20).round()
    probs[:, 0] += (probs.sum(1) == 0).double()
    probs = probs / probs.sum(1, keepdim=True)
    order = torch.randperm(300, generator=torch.Generator().manual_seed(1))
    value, again = METRICS[name](probs, labels), METRICS[name](probs[order], labels[order])
    torch.testing.assert_close(value, again, rtol=1e-9, atol=1e-12, equal_nan=True)


@pytest.mark.parametrize("name", METRICS)
def test_metric_takes_other_precisions(name):
    probs, labels = examples(name, 200)
    exact = float(METRICS[name](probs, labels))
    single = float(METRICS[name](probs.float(), labels.int()))
    # Rounding to float32 may move a sample across a bin edge; one of 200 moves a binned number by less than 1/200.
    assert abs(single - exact) < 5e-3


@pytest.mark.parametrize("name", METRICS)
def test_metric_half_precision_accumulates_in_float64(name):
    probs, labels = examples(name, 400)
    half = probs.half()
    value = METRICS[name](half, labels)
    same = METRICS[name](half.double() / half.double().sum(1, keepdim=True), labels)
    assert value.dtype == torch.float64
    assert abs(float(value) - float(same)) < 2e-2


@pytest.mark.parametrize("name", METRICS)
def test_metric_unit_weights_change_nothing_and_zero_weights_leave_out(name):
    probs, labels = examples(name, 200)
    plain = float(METRICS[name](probs, labels))
    assert float(METRICS[name](probs, labels, weights=torch.ones(200))) == pytest.approx(plain, rel=1e-9, abs=1e-12)
    half = torch.cat([torch.ones(100), torch.zeros(100)])
    kept = float(METRICS[name](probs[:100], labels[:100]))
    assert float(METRICS[name](probs, labels, weights=half)) == pytest.approx(kept, rel=1e-6, abs=1e-10)


@pytest.mark.parametrize("name", METRICS)
def test_metric_ignored_and_dense_input_equal_the_flat_one(name):
    probs, labels = examples(name, 120)
    flat = float(METRICS[name](probs, labels))
    dense = probs.view(2, 6, 10, -1).permute(0, 3, 1, 2)
    assert float(METRICS[name](dense, labels.view(2, 6, 10))) == pytest.approx(flat, rel=1e-9, abs=1e-12)
    more = torch.cat([probs, probs[:30]])
    marked = torch.cat([labels, torch.full((30,), -100)])
    assert float(METRICS[name](more, marked, ignore_index=-100)) == pytest.approx(flat, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", METRICS)
def test_metric_perfect_predictions_score_zero(name):
    classes = 2 if METRICS[name].positive else 7
    labels = torch.arange(60) % classes
    expected = NOT_ZERO_IF_PERFECT.get(name, 0)
    assert float(METRICS[name](one_hot(labels, classes), labels)) == pytest.approx(expected, abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("name", METRICS)
def test_metric_few_samples_absent_classes_and_two_classes_work(name):
    probs, labels = examples(name, 6)
    few = METRICS[name](probs, labels)
    absent = METRICS[name](probs, torch.ones(6, dtype=torch.long))
    pair = torch.tensor([[0.7, 0.3], [0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)
    two = METRICS[name](pair, torch.tensor([0, 1, 1]))
    values = [few, absent, two]
    if name in OF_PAIRS:
        with pytest.raises(ValueError, match="N >= 2"):
            METRICS[name](pair[:1], torch.tensor([1]))
    else:
        values.append(METRICS[name](pair[:1], torch.tensor([1])))
    for value in values:
        assert value.dtype == torch.float64
        # With every prediction right or every one wrong there is nothing to separate.
        assert bool(value.isfinite()) or name == "auroc"


@pytest.mark.parametrize("name", METRICS)
def test_metric_inputs_stay_as_they_are(name):
    probs, labels = examples(name, 50)
    before, labels_before = probs.clone(), labels.clone()
    METRICS[name](probs, labels)
    assert probs.equal(before)
    assert labels.equal(labels_before)


BAD = [
    (torch.full((4, 3), float("nan")), torch.zeros(4, dtype=torch.long), "must be finite, got nan"),
    (torch.tensor([[2.0, -1.0], [0.5, 0.5]]), torch.tensor([0, 1]), r"`probs` must lie in \[0, 1\]"),
    (torch.tensor([[0.2, 0.2], [0.5, 0.5]]), torch.tensor([0, 1]), "must sum to 1"),
    (torch.tensor([[0.5, 0.5]]), torch.tensor([2]), r"must lie in \[0, 1\], got 2"),
    (torch.tensor([[0.5, 0.5]]), torch.tensor([[1, 0]]), "one-hot"),
    (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), "at least one example"),
    (torch.tensor([0, 1]), torch.tensor([[0.5, 0.5], [0.1, 0.9]]), "look swapped"),
    (torch.tensor([[0.5, 0.5]]), torch.tensor([0.5]), "must be class indices"),
    (torch.tensor([0.5, 0.5]), torch.tensor([0, 1]), "binary"),
]


@pytest.mark.parametrize(("probs", "labels", "message"), BAD)
@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if not metric.positive])
def test_metric_bad_input_is_one_clear_sentence(name, probs, labels, message):
    with pytest.raises(ValueError, match=message):
        METRICS[name](probs, labels)


def test_metric_read_only_numpy_is_accepted():
    probs, labels = mixed_gaps(50)
    frozen = probs.numpy().copy()
    frozen.flags.writeable = False
    assert np.isfinite(float(METRICS["ece"](frozen, labels.numpy())))
