import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from calibrant.metrics import METRICS, smooth_expected_calibration_error
from helpers import mixed_gaps


@settings(max_examples=25, deadline=None, derandomize=True)
@given(n=st.integers(2, 60), num_classes=st.integers(2, 6), seed=st.integers(0, 10_000))
def test_sece_narrow_kernel_is_the_mean_absolute_error_on_distinct_confidences(n, num_classes, seed):
    probs, labels = mixed_gaps(n, num_classes, seed=seed)
    confidence = probs.amax(1)
    correct = (probs.argmax(1) == labels).double()
    assert len(confidence.unique()) == n
    value = smooth_expected_calibration_error(probs, labels, bandwidth=1e-12)
    torch.testing.assert_close(value, (correct - confidence).abs().mean(), rtol=1e-9, atol=1e-12)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(n=st.integers(2, 80), seed=st.integers(0, 10_000), name=st.sampled_from(sorted(set(METRICS) - {"auroc"})))
def test_metric_any_data_ignores_the_order_of_samples(n, seed, name):
    probs, labels = mixed_gaps(n, 4, seed=seed)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    first, second = METRICS[name](probs, labels), METRICS[name](probs[order], labels[order])
    torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-12)
